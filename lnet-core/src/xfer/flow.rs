//! Flows: what this shard sends to one shard of a peer.

use core::time::Duration;

use super::congestion::Congestion;
use super::message::Queued;
use super::peer::node;
use super::record::InFlow;
use crate::list::{Link, List, Node};
use crate::time::Instant;

pub(super) struct Flow {
    pub(super) peer: u32,
    /// The peer's shard.
    pub(super) shard: u8,
    pub(super) next_number: u64,
    /// The highest number that was acknowledged, once one was.
    pub(super) highest_acked: Option<u64>,
    /// Sent, in the order of frame numbers.
    pub(super) outstanding: List<InFlow>,
    /// To be sent again, or notices to be sent.
    pub(super) pending: List<InFlow>,
    /// Messages of which nothing was sent.
    pub(super) queue: List<Queued>,
    /// Messages of which parts were sent, and others never; a few at a time, since each takes room of its
    /// receiver until it is whole.
    pub(super) begun: List<Queued>,
    pub(super) begun_count: u32,
    /// Fragments since a message of the queue had its turn.
    pub(super) turn: u32,
    pub(super) in_flight_bytes: u32,
    pub(super) congestion: Congestion,
    /// When something was acknowledged last, if ever.
    pub(super) acked_at: Option<Instant>,
    /// Since when there has always been something that is not acknowledged.
    pub(super) owed_since: Instant,
    /// From when on the wait for an acknowledgement counts.
    pub(super) waits_since: Instant,
    /// Frames that may be sent although the window is full.
    pub(super) probes_due: u32,
    /// Until when frames go the way by which the peer was heard last, because their own does not answer.
    pub(super) detour_until: Option<Instant>,
    /// Whether it is in the list of those with something to send.
    pub(super) is_ready: bool,
    pub(super) ready: Link,
    /// Whether it is in the list of those that wait for acknowledgements.
    pub(super) is_busy: bool,
    pub(super) busy: Link,
}

/// How long another way is gone when the own one does not answer.
pub(super) const DETOUR: Duration = Duration::from_secs(1);

/// Marks flows that may have something to send.
pub(super) struct Ready;
/// Marks flows, or inflows, that have timers.
pub(super) struct Busy;

node!(Flow, Ready, ready);
node!(Flow, Busy, busy);

impl Flow {
    pub(super) fn new(peer: u32, shard: u8, first_number: u64, now: Instant) -> Self {
        Self {
            peer,
            shard,
            next_number: first_number,
            highest_acked: None,
            outstanding: List::new(),
            pending: List::new(),
            queue: List::new(),
            begun: List::new(),
            begun_count: 0,
            turn: 0,
            in_flight_bytes: 0,
            congestion: Congestion::new(),
            acked_at: None,
            owed_since: now,
            waits_since: now,
            probes_due: 0,
            detour_until: None,
            is_ready: false,
            ready: Link::UNLINKED,
            is_busy: false,
            busy: Link::UNLINKED,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.outstanding.is_empty() && !self.has_more()
    }

    /// Whether frames of so many bytes fit what may be in flight.
    #[inline]
    pub(super) fn has_room_for(&self, cost_bytes: u32) -> bool {
        self.in_flight_bytes + cost_bytes <= self.congestion.window_bytes()
    }

    /// Whether its receiver has answered of late, and so knows this sender.
    #[inline]
    pub(super) fn is_open(&self, now: Instant, patience: Duration) -> bool {
        self.acked_at.is_some_and(|at| now - at < patience)
    }

    /// Something is about to be added that is to be acknowledged.
    #[inline]
    pub(super) fn owes(&mut self, now: Instant) {
        if self.outstanding.is_empty() && self.pending.is_empty() {
            self.owed_since = now;
        }
    }

    /// Whether its receiver has acknowledged nothing for so long although there was something to acknowledge.
    pub(super) fn is_unanswered(&self, now: Instant, patience: Duration) -> bool {
        let has_records = !self.outstanding.is_empty() || !self.pending.is_empty();
        has_records && now - self.acked_at.map_or(self.owed_since, |at| at.max(self.owed_since)) > patience
    }

    /// Whether frames go the way by which the peer was heard last.
    #[inline]
    pub(super) fn takes_detour(&self, now: Instant) -> bool {
        self.detour_until.is_some_and(|until| now < until)
    }

    /// Whether there is something to send.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        !self.pending.is_empty() || !self.queue.is_empty() || !self.begun.is_empty()
    }

    /// The number that an acknowledgement means, of those that were used; `None` if it was not.
    pub(super) fn number_of(&self, wire: u32) -> Option<u64> {
        let last = self.next_number.checked_sub(1)?;
        let distance = (last as u32).wrapping_sub(wire);
        last.checked_sub(u64::from(distance))
    }
}
