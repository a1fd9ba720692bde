//! Messages that are sent while they arrive: what is there of them goes, and they wait for the rest.
//!
//! A message that waits takes no turn of its stream, and none of the few that are begun at once: others go
//! past it. Its id stays the oldest for as long, so its sender withdraws one whose rest does not come soon.

use lnet_core::lnd::{Cause, Span, TxId, Uplink};
use lnet_wire::frame::Kind;

use super::message::Stage;
use super::{SendContext, SendingSide};
use crate::contract::{Control, NO_TICKET};

impl SendingSide {
    /// The message of this name, if more of it is to come.
    fn partial(&self, tx: TxId) -> Option<u32> {
        self.partial.iter().copied().find(|slot| self.messages[*slot].transmit.tx == tx)
    }

    /// More of the payload of a message is there. Whether the message is known.
    pub(crate) fn extend(&mut self, tx: TxId, payload: Option<Span>) -> bool {
        let Some(slot) = self.partial(tx) else { return false };
        let message = &mut self.messages[slot];
        message.transmit.payload = payload;
        let (stream, goes_on) = (message.stream, message.next_offset < message.there_bytes());
        if !message.is_partial() {
            self.partial.retain(|partial| *partial != slot);
        }
        if self.messages[slot].stage == Stage::Awaiting && goes_on {
            self.messages[slot].stage = Stage::Queued;
            let its = &mut self.streams[stream];
            its.awaiting_count -= 1;
            its.begun.push_back(&mut self.messages, slot);
            its.begun_count += 1;
            self.go_on(stream);
        }
        true
    }

    /// The rest of a message does not come: its receiver is told, if it may know of it. Whether the message
    /// is known.
    pub(crate) fn withdraw_message(&mut self, tx: TxId, call: &mut SendContext<'_, impl Uplink>) -> bool {
        let Some(slot) = self.partial(tx) else { return false };
        let message = &self.messages[slot];
        let (to, id) = ((message.peer, message.shard), message.id);
        // Who has deferred it asks after it, and is answered then.
        let is_there = matches!(message.stage, Stage::Queued | Stage::Awaiting) && message.polled();
        let status = message.unfinished(Cause::Cancelled);
        self.finish(slot, status, call);
        if is_there {
            self.tell(to, Control { kind: Kind::Gone, id, ticket: NO_TICKET }, call.sessions);
        }
        true
    }
}
