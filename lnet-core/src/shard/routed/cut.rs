//! Messages that go on before all of them has arrived: how much has, which half goes on, and what bounds
//! them.
//!
//! Invariants: a record is in `cuts` while both of its halves are under way and its time is not over, and in
//! `told` while an LND is to hear of it; a next hop counts the records of which both halves are under way.

use core::time::Duration;

use super::{Routed, RoutedMessages};
use crate::collections::NONE;
use crate::lnd::{Span, Status, TxId};
use crate::time::Instant;

/// Steps in which what has arrived goes on, and the least of a message with which that begins. An LND looks
/// for the message at each of them.
pub const CUT_STEP_BYTES: u32 = 64 << 10;
/// How long the first half of a message takes to arrive at most, if it is to go on before the other one.
pub const CUT_SOON: Duration = Duration::from_millis(50);
/// How long the other half takes then, unless it comes slowly: longer than two losses of TCP's in a row.
pub const CUT_PATIENCE: Duration = Duration::from_millis(750);
/// How long messages from a hop, and those for a next hop, go on when they are whole, after one between them
/// took longer.
pub const CUT_PAUSE: Duration = Duration::from_secs(60);
/// Messages for one next hop that go on at once while they arrive: each takes room there.
pub const CUTS_MAX: u32 = 4;
/// Credits of a next hop for each of them that may be: others have the rest.
const CUT_CREDITS: u32 = 4;

/// How far a message has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) enum Inward {
    /// Some of it is to come.
    Coming,
    /// All of it is there.
    Whole,
    /// The rest does not come.
    Failed,
}

/// State of the half of a message that goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) enum Onward {
    /// Nothing goes on before all is there.
    Later,
    /// The message goes on while it arrives, or went on then.
    Cut(TxId),
    /// The message went on so, and is to end: the rest does not come.
    Withdrawn(TxId),
    /// The message went on so, and has ended; whether it goes on once more when it is whole.
    Ended { goes_again: bool },
}

impl Onward {
    /// Whether the half that goes on has begun before all had arrived, and has not ended.
    const fn is_under_way(self) -> bool {
        matches!(self, Self::Cut(_) | Self::Withdrawn(_))
    }
}

impl Routed {
    /// Bytes that have arrived, in whole steps until all are there, and where they are.
    pub(in crate::shard) fn arrived_span(&self) -> Option<Span> {
        let length_bytes =
            if self.arrival == Inward::Whole { self.header.payload_length } else { self.arrived_bytes };
        self.span().map(|span| Span { length_bytes, ..span }).filter(|span| span.length_bytes > 0)
    }
}

impl RoutedMessages {
    /// Notes that so many bytes of a message have arrived. Whether these are a step more than before.
    pub(in crate::shard) fn extend(&mut self, now: Instant, slot: u32, bytes: u32) -> bool {
        let record = &mut self.records[slot];
        let length_bytes = record.header.payload_length;
        assert!(bytes < length_bytes, "{bytes} bytes of {length_bytes} are more than some");
        record.begun_at.get_or_insert(now);
        let steps_bytes = bytes / CUT_STEP_BYTES * CUT_STEP_BYTES;
        let is_more = steps_bytes > record.arrived_bytes;
        record.arrived_bytes = record.arrived_bytes.max(steps_bytes);
        is_more
    }

    /// Whether a message of which a step has arrived may go on now: half of it is there and came soon, and
    /// its hop has had none lately that came slowly.
    pub(in crate::shard) fn may_cut(&self, now: Instant, slot: u32) -> bool {
        let Routed { arrived_bytes, begun_at, header, hop, .. } = &self.records[slot];
        arrived_bytes.saturating_mul(2) >= header.payload_length
            && begun_at.is_some_and(|begun_at| now - begun_at <= CUT_SOON)
            && self.hops[*hop as usize].cut_again_at <= now
    }

    /// Whether a next hop of so many credits may have one more that goes on while it arrives, and has had
    /// none lately that came slowly.
    pub(in crate::shard) fn has_cut_for(&self, now: Instant, next: u32, credits: u32) -> bool {
        let (count, again_at) =
            self.hops.get(next as usize).map_or((0, Instant(0)), |hop| (hop.cut_count, hop.cut_again_at));
        count < CUTS_MAX.min(credits / CUT_CREDITS) && again_at <= now
    }

    /// Notes that a message goes on under this name while it arrives.
    pub(in crate::shard) fn cut(&mut self, now: Instant, slot: u32, tx: TxId) {
        let record = &mut self.records[slot];
        (record.onward, record.deadline) = (Onward::Cut(tx), now + CUT_PATIENCE);
        self.hops[record.next as usize].cut_count += 1;
        self.cuts.push_back(&mut self.records, slot);
    }

    /// When the first message that goes on while it arrives comes slowly if it is not whole.
    pub(in crate::shard) fn next_cut(&self) -> Option<Instant> {
        self.records.get(self.cuts.first()).map(|routed| routed.deadline)
    }

    /// Notes a message whose rest has not come soon, if there is one: its hop and its next hop have none for
    /// a while that go on before they are whole.
    pub(in crate::shard) fn pop_slow(&mut self, now: Instant) -> bool {
        if self.next_cut().is_none_or(|due| due > now) {
            return false;
        }
        if let Some(slot) = self.cuts.pop_front(&mut self.records) {
            let Routed { hop, next, .. } = self.records[slot];
            for peer in [hop, next] {
                self.hops[peer as usize].cut_again_at = now + CUT_PAUSE;
            }
        }
        true
    }

    /// Notes that an LND has put a message in place, or never will. The state of the half that goes on.
    pub(in crate::shard) fn end_arrival(&mut self, slot: u32, arrival: Inward) -> Onward {
        let onward = self.records[slot].onward;
        if onward.is_under_way() {
            self.uncount(slot);
        }
        self.records[slot].arrival = arrival;
        onward
    }

    /// Has a message that goes on while it arrives end. Its name, if that was not to be before.
    pub(in crate::shard) fn withdraw(&mut self, slot: u32) -> Option<TxId> {
        let Onward::Cut(tx) = self.records[slot].onward else { return None };
        self.records[slot].onward = Onward::Withdrawn(tx);
        Some(tx)
    }

    /// Notes that an LND has a message, which it is to be told of if it has been withdrawn before.
    pub(in crate::shard) fn note_lent(&mut self, slot: u32) {
        if matches!(self.records[slot].onward, Onward::Withdrawn(_)) {
            self.tell(slot);
        }
    }

    /// Has the LND of a message be told what has become of it.
    pub(in crate::shard) fn tell(&mut self, slot: u32) {
        self.told.add(&mut self.records, slot);
    }

    /// A message whose LND is to be told; its name, and whether the rest comes.
    pub(in crate::shard) fn pop_told(&mut self) -> Option<(TxId, bool)> {
        let slot = self.told.pop_front(&mut self.records)?;
        match self.records[slot].onward {
            Onward::Cut(tx) => Some((tx, true)),
            Onward::Withdrawn(tx) => Some((tx, false)),
            Onward::Later | Onward::Ended { .. } => unreachable!("no LND has it"),
        }
    }

    /// Whether an LND is to be told of a message.
    pub(in crate::shard) const fn has_told(&self) -> bool {
        self.told.first() != NONE
    }

    /// The half of a message that goes on has ended, so that no LND has it. Whether that is all of it: else
    /// it is to arrive yet. Its receiver cannot have the whole of it then, unless that did not want it.
    pub(in crate::shard) fn end_onward(&mut self, slot: u32, status: Status) -> bool {
        let Routed { onward, arrival, .. } = self.records[slot];
        if !onward.is_under_way() {
            return true;
        }
        self.told.discard(&mut self.records, slot);
        let is_over = arrival != Inward::Coming;
        self.records[slot].onward = if is_over {
            Onward::Later
        } else {
            self.uncount(slot);
            Onward::Ended { goes_again: status != Status::Ok }
        };
        is_over
    }

    /// A message has only one half under way from now on.
    fn uncount(&mut self, slot: u32) {
        // A message that was found to be slow is not in the list any more.
        self.cuts.discard(&mut self.records, slot);
        self.hops[self.records[slot].next as usize].cut_count -= 1;
    }
}
