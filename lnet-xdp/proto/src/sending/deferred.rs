//! Control frames, and messages of which the receiver keeps the header and this side the payload.
//!
//! ```text
//! Queued, Sent --DEFERRED--> Deferred --PULL--> Queued, under a new id, with the ticket
//! ```

use lnet_core::collections::{List, NONE};
use lnet_core::lnd::{Cause, Status, Uplink};
use lnet_wire::frame::Kind;

use super::item::Cargo;
use super::message::{Outbound, Queued, Stage};
use super::{SendContext, SendingSide};
use crate::contract::Control;
use crate::sessions::Sessions;

impl SendingSide {
    /// Tells a shard of a peer something about a message; says whether there was room. No peer has more of it
    /// than is free: one that acknowledges none of it leaves as much for others.
    pub(crate) fn tell(&mut self, (peer, shard): (u32, u8), control: Control, sessions: &Sessions) -> bool {
        let now = sessions.local.now;
        let Some(slot) = self.stream_to(peer, shard, sessions) else { return false };
        if self.peers[peer].control_count >= self.items_reserved - self.control_count {
            return false;
        }
        let Some(item) = self.new_item(Cargo::Control(control)) else { return false };
        self.peers[peer].control_count += 1;
        self.control_count += 1;
        let stream = &mut self.streams[slot];
        stream.owes(now);
        stream.pending.push_back(&mut self.items, item);
        self.make_ready(slot);
        true
    }

    /// Takes in what the receiver of a message says of it.
    pub(crate) fn controlled(
        &mut self,
        from: (u32, u8),
        Control { kind, id, ticket }: Control,
        call: &mut SendContext<'_, impl Uplink>,
    ) {
        let deferred = self.deferred_message(from, id, ticket);
        let known = deferred.or_else(|| self.unfinished_message(from, |its| its.id == id));
        let is_gone = match kind {
            // The latter may overtake the frame that says that the message was deferred.
            Kind::Deferred | Kind::Pull => {
                if let Some(message) = known.filter(|_| deferred.is_none()) {
                    self.set_aside(message, ticket, call.sessions);
                }
                if let Some(message) = known.filter(|_| kind == Kind::Pull) {
                    self.send_again(message, call.sessions);
                }
                known.is_none() && self.pulled_message(from, ticket).is_none()
            }
            Kind::Discard => {
                if let Some(message) = known {
                    self.finish(message, Status::Ok, call);
                }
                false
            }
            Kind::Lost => {
                // The answer to a question that was overtaken has the id from before the message was pulled.
                // A message that was given up with an NI has no ticket.
                let its =
                    |message: &Outbound| message.ticket.is_none_or(|its| its == ticket) && message.id == id;
                if let Some(message) = deferred.or_else(|| self.unfinished_message(from, its)) {
                    self.finish(message, Status::Unknown(Cause::Timeout), call);
                }
                false
            }
            kind => unreachable!("{kind:?} is not for a sender"),
        };
        if is_gone {
            self.tell(from, Control { kind: Kind::Gone, id, ticket }, call.sessions);
        }
    }

    /// Whether a shard of a peer may not have heard yet what became of a message that it asks after.
    pub(crate) fn is_telling(&self, (peer, shard): (u32, u8), asked: u32) -> bool {
        let Some(stream) = self.streams.get(self.peers[peer].streams[usize::from(shard)]) else {
            return false;
        };
        let mut items = stream.outstanding.iter(&self.items).chain(stream.pending.iter(&self.items));
        items.any(|(_, item)| {
            matches!(item.cargo, Cargo::Control(Control { kind: Kind::Discard, ticket, .. }) if ticket == asked)
        })
    }

    /// The message that a shard of a peer has deferred under this id and ticket.
    fn deferred_message(&self, (peer, shard): (u32, u8), id: u64, ticket: u32) -> Option<u32> {
        // Other shards of the peer may have given the same ticket.
        let is_it = |it: &Outbound| it.ticket == Some(ticket) && it.id == id && it.shard == shard;
        self.peers[peer].deferred.find(&self.messages, is_it)
    }

    /// The message that goes to a shard of a peer again for its ticket.
    fn pulled_message(&self, from: (u32, u8), ticket: u32) -> Option<u32> {
        self.unfinished_message(from, |message| message.ticket == Some(ticket))
    }

    /// A message that a shard of a peer may know of: some of it was sent there.
    fn unfinished_message(
        &self,
        (peer, shard): (u32, u8),
        wanted: impl Fn(&Outbound) -> bool,
    ) -> Option<u32> {
        let is_it = |message: &Outbound| message.shard == shard && message.polled() && wanted(message);
        self.peers[peer].unfinished.find(&self.messages, is_it)
    }

    /// Keeps a message that its receiver has deferred.
    fn set_aside(&mut self, slot: u32, ticket: u32, sessions: &mut Sessions) {
        let now = sessions.local.now;
        self.detach(slot);
        self.deadlines.remove(&mut self.messages, slot);
        let message = &mut self.messages[slot];
        (message.stage, message.ticket, message.is_told) = (Stage::Deferred, Some(ticket), true);
        message.rewind();
        let (peer, stream, portal) = (message.peer, message.stream, message.portal());
        if message.bundled {
            self.streams[stream].set_apart(now, portal);
        }
        if self.peers[peer].deferred.is_empty() {
            self.peers[peer].ping_at = now + sessions.local.times.message / 4;
            sessions.local.set_timer(now + sessions.local.times.message / 4);
        }
        self.peers[peer].deferred.push_back(&mut self.messages, slot);
        self.go_on(stream);
    }

    /// Sends a deferred message under a new id.
    fn send_again(&mut self, slot: u32, sessions: &mut Sessions) {
        let now = sessions.local.now;
        self.detach(slot);
        let deadline = now + sessions.local.times.message;
        self.messages[slot].deadline = deadline;
        self.deadlines.push_back(&mut self.messages, slot);
        sessions.local.set_timer(deadline);
        self.dispatch(slot, sessions);
    }

    /// Asks after the deferred message of a peer that was asked after longest ago.
    fn ask_after_deferred(&mut self, peer: u32, sessions: &mut Sessions) {
        let now = sessions.local.now;
        let slot = self.peers[peer].deferred.first();
        if slot == NONE || self.peers[peer].ping_at > now {
            return;
        }
        let next = now + sessions.local.times.message / 4;
        self.peers[peer].ping_at = next;
        sessions.local.set_timer(next);
        self.peers[peer].deferred.remove(&mut self.messages, slot);
        self.peers[peer].deferred.push_back(&mut self.messages, slot);
        let message = &self.messages[slot];
        let (id, ticket, shard) = (message.id, message.ticket.unwrap_or_default(), message.shard);
        // Where there is no room for it now, the next question may have some.
        self.tell((peer, shard), Control { kind: Kind::Ping, id, ticket }, sessions);
    }

    /// Asks after the deferred messages of a peer; ends those of one that is silent.
    pub(crate) fn follow_deferred(&mut self, peer: u32, call: &mut SendContext<'_, impl Uplink>) {
        let now = call.sessions.local.now;
        if now - call.sessions.peers[peer].received_at <= call.sessions.local.times.message {
            self.ask_after_deferred(peer, call.sessions);
        } else {
            self.end_deferred(peer, |_| true, call);
        }
    }

    /// Ends deferred messages of a peer that does not answer.
    pub(crate) fn end_deferred(
        &mut self,
        peer: u32,
        which: impl Fn(&Outbound) -> bool,
        call: &mut SendContext<'_, impl Uplink>,
    ) {
        let mut next = self.peers[peer].deferred.first();
        while let Some(at) = List::<Queued>::step(&self.messages, &mut next) {
            if which(&self.messages[at]) {
                self.finish(at, Status::Unknown(Cause::Timeout), call);
            }
        }
    }
}
