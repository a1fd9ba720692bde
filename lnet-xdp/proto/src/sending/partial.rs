//! Messages that are sent while they arrive: what is there of them goes, and they wait for the rest.
//!
//! A message that waits takes no turn of its stream, and none of the few that are begun at once: others go
//! past it. Its id stays the oldest for as long: where others wait for ids far behind it, and its rest has
//! not come for [`PATIENCE`], it is withdrawn.

use core::time::Duration;

use lnet_core::lnd::{Cause, Span, TxId, Uplink};
use lnet_core::time::Instant;
use lnet_wire::frame::Kind;

use super::message::{Outbound, Stage};
use super::{SendContext, SendingSide};
use crate::contract::{Control, NO_TICKET, WINDOW_IDS};

/// How long others wait for an id because a message waits for its rest: longer than two losses of TCP's in a
/// row.
const PATIENCE: Duration = Duration::from_millis(750);

impl SendingSide {
    /// The message of this name, if more of it is to come.
    fn partial(&self, tx: TxId) -> Option<u32> {
        self.partial.iter().copied().find(|slot| self.messages[*slot].transmit.tx == tx)
    }

    /// More of the payload of a message is there. Whether the message is known.
    pub(crate) fn extend(&mut self, now: Instant, tx: TxId, payload: Option<Span>) -> bool {
        let Some(slot) = self.partial(tx) else { return false };
        let message = &mut self.messages[slot];
        (message.transmit.payload, message.extended_at) = (payload, now);
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
        let slot = self.partial(tx);
        slot.into_iter().for_each(|slot| self.withdraw_partial(slot, call));
        slot.is_some()
    }

    /// Withdraws the messages that have waited for their rest for long, and behind whose ids others wait.
    pub(crate) fn withdraw_oldest(&mut self, call: &mut SendContext<'_, impl Uplink>) {
        let now = call.sessions.local.now;
        let mut index = 0;
        while let Some(&slot) = self.partial.get(index) {
            let Outbound { stage, extended_at, peer, id, .. } = self.messages[slot];
            let waits = stage == Stage::Awaiting && now - extended_at >= PATIENCE;
            if waits && self.peers[peer].next_id - id >= WINDOW_IDS / 2 {
                self.withdraw_partial(slot, call);
            } else {
                index += 1;
            }
        }
    }

    fn withdraw_partial(&mut self, slot: u32, call: &mut SendContext<'_, impl Uplink>) {
        let message = &self.messages[slot];
        let (to, id) = ((message.peer, message.shard), message.id);
        // Who has deferred it asks after it, and is answered then.
        let is_there = matches!(message.stage, Stage::Queued | Stage::Awaiting) && message.polled();
        let status = message.unfinished(Cause::Cancelled);
        self.finish(slot, status, call);
        if is_there {
            self.tell(to, Control { kind: Kind::Gone, id, ticket: NO_TICKET }, call.sessions);
        }
    }
}
