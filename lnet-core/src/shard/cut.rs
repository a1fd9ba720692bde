//! Cut-through: messages of other nodes that go on before all of them has arrived.
//!
//! Where the LND of the next hop [takes parts](crate::lnd::LndFacts::takes_parts), a long message of which
//! half has come soon is handed to it, and it is told of more. So a router adds to the time of a message that
//! of a half, and not of the whole.
//!
//! A sender may stop in the middle. Others bear little of it: such messages have a quarter of the credits
//! of a next hop at most, their LND sends others past them, and for a [while](super::CUT_PAUSE) nothing
//! from that sender or for that next hop goes on before it is whole. Where its LND gives one up, or could
//! not send it, it goes on when it is whole: no receiver has had all of it, so it is not there twice.

use super::routed::{Inward, Onward, Routed};
use super::{Choice, Shard};
use crate::lnd::{Status, Transmit, TxId};
use crate::message::{MessageState, Purpose};
use crate::time::Instant;

impl Shard {
    /// A message that an LND has and of which more has arrived, for
    /// [`Lnd::extend`](crate::lnd::Lnd::extend); with `false` the rest does not come, and it is for
    /// [`Lnd::withdraw`](crate::lnd::Lnd::withdraw).
    pub fn poll_extended(&mut self) -> Option<(&Transmit, bool)> {
        let (tx, comes) = self.routed.pop_told()?;
        Some((self.messages.lent(tx), comes))
    }

    /// Some of a message is in place, and more is to come.
    pub(super) fn arrived_routed(&mut self, now: Instant, slot: u32, bytes: u32) {
        if !self.routed.extend(now, slot, bytes) {
            return;
        }
        match self.routed.record(slot).onward {
            Onward::Cut(tx) => self.extend_cut(now, slot, tx),
            Onward::Later if self.routed.may_cut(now, slot) => self.cut_through(now, slot),
            Onward::Later | Onward::Withdrawn(_) | Onward::Ended { .. } => {}
        }
    }

    /// Sends what has arrived of a message on, if its next hop is reached by an LND that takes it.
    fn cut_through(&mut self, now: Instant, slot: u32) {
        let Routed { from, header, .. } = *self.routed.record(slot);
        let path = self.next_hop_of(now, &from, &header).ok();
        let Some(path) = path.filter(|path| self.topology.known_ni(path.ni).facts.takes_parts) else {
            return;
        };
        let credits = self.ni(path.ni).peer_share;
        let Some(peer) = self.acquire_next(&path) else { return };
        if !self.routed.has_cut_for(now, peer, credits) {
            return self.peers.release(peer);
        }
        self.launch_on(now, slot, (&path, peer));
        self.settle(now);
    }

    /// Has more of a message go on.
    pub(super) fn extend_cut(&mut self, now: Instant, slot: u32, tx: TxId) {
        let payload = self.routed.record(slot).arrived_span();
        if self.messages.extend(now, tx, payload) {
            self.routed.tell(slot);
        }
    }

    /// Has a message end that goes on while it arrives: at once where an LND has it, else in its turn.
    pub(super) fn withdraw_cut(&mut self, slot: u32) {
        if let Some(tx) = self.routed.withdraw(slot)
            && self.messages.is_lent(tx)
        {
            self.routed.tell(slot);
        }
    }

    /// Whether a message goes on of which some has not arrived: by another path it goes when all is there.
    pub(super) fn is_cut(&self, record: &MessageState) -> bool {
        let Purpose::Forward { routed } = record.purpose else { return false };
        self.routed.record(routed).arrival != Inward::Whole
    }

    /// A message of another node that went on has ended.
    pub(super) fn end_onward(&mut self, slot: u32, status: Status) {
        if self.routed.end_onward(slot, status) {
            self.end_routed(slot);
        }
    }

    /// Notes which messages go on, and take long to arrive.
    pub(super) fn note_slow_cuts(&mut self, now: Instant) {
        while self.routed.pop_slow(now) {
            self.counters.cuts_slow += 1;
        }
    }

    /// Sends what there is of a message on by a path; the caller has a reference on its next hop, and settles
    /// what comes of it.
    pub(super) fn launch_on(&mut self, now: Instant, slot: u32, (path, peer): (&Choice, u32)) {
        let message = self.enlist_routed(now, slot, (path, peer));
        if self.routed.record(slot).arrival == Inward::Coming {
            self.counters.cuts += 1;
            self.routed.cut(now, slot, TxId(message.slot()));
        }
        self.take_peer_credit(now, message);
    }
}
