//! Deadlines of messages, losses that time tells of, and probes.

use lnet_core::collections::List;
use lnet_core::lnd::{Cause, Uplink};
use lnet_core::time::Instant;

use super::failover::FAILOVER_PROBES;
use super::item::{Cargo, SentItem};
use super::message::Deadlines;
use super::{SendContext, SendingSide};
use crate::sessions::{Sessions, is_far_longer};

/// Probes without an answer with which all that is in flight counts as lost.
const LOSS_PROBES: u32 = 3;
/// Fragments that go then before those that were sent: half of the narrowest window.
const FRESH_FRAGMENTS: u32 = 8;

impl SendingSide {
    /// Has no message end later than this. Deadlines stay in order.
    pub(crate) fn end_by(&mut self, latest: Instant) {
        let mut next = self.deadlines.first();
        while let Some(slot) = List::<Deadlines>::step(&self.messages, &mut next) {
            let deadline = &mut self.messages[slot].deadline;
            *deadline = (*deadline).min(latest);
        }
    }

    /// When the next message's time is over.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.messages.get(self.deadlines.first()).map(|message| message.deadline)
    }

    /// Ends messages whose time is over.
    pub(crate) fn end_messages(&mut self, call: &mut SendContext<'_, impl Uplink>) {
        let now = call.sessions.local.now;
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            let slot = self.deadlines.first();
            let status = self.messages[slot].unfinished(Cause::Timeout);
            self.finish(slot, status, call);
        }
    }

    /// Tries once more what has waited for room in a table.
    pub(crate) fn try_again(&mut self, sessions: &mut Sessions) {
        for path in 0..sessions.paths.capacity() {
            if sessions.paths.get(path).is_some() {
                self.dispatch_waiting(path, sessions);
            }
        }
        self.go_on_with_all();
    }

    /// Looks for peers that have been silent for long; `is_silent` tells whether nothing comes from a shard
    /// of one.
    pub(crate) fn sweep(
        &mut self,
        is_silent: impl Fn((u32, u8)) -> bool,
        call: &mut SendContext<'_, impl Uplink>,
    ) {
        let now = call.sessions.local.now;
        if self.items.used_count() != 0 {
            for slot in 0..self.streams.capacity() {
                let Some(stream) = self.streams.get(slot) else { continue };
                let (peer, shard) = (stream.peer, stream.shard);
                if stream.is_unanswered(now, call.sessions.local.times.message) && is_silent((peer, shard)) {
                    self.drop_control_frames(slot);
                    self.end_deferred(peer, |message| message.shard == shard, call);
                }
            }
        }
        if self.messages.used_count() != 0 {
            for peer in 0..call.sessions.peers.capacity() {
                if call.sessions.peers.get(peer).is_some() {
                    self.follow_deferred(peer, call);
                }
            }
        }
    }

    /// Losses by time, and probes. When the next stream is due.
    pub(crate) fn follow_streams(&mut self, call: &mut SendContext<'_, impl Uplink>) -> Option<Instant> {
        let now = call.sessions.local.now;
        while let Some(at) = self.timers.pop_due(now) {
            self.streams[at].forget_failover(now, &call.sessions.paths);
            if self.loss_time(at, now).is_some_and(|lost| lost <= now) {
                self.ask_about_overtaken(at, call);
            }
            if !self.streams[at].outstanding.is_empty() {
                if self.streams[at].probe_at(&call.sessions.local.times) <= now {
                    self.probe(at, call);
                }
                let times = &call.sessions.local.times;
                // Not once more in this call.
                let probe_at = self.streams[at].probe_at(times).max(Instant(now.0 + 1));
                self.timers.set(at, self.loss_time(at, now).map_or(probe_at, |lost| lost.min(probe_at)));
            }
            self.go_on(at);
        }
        self.timers.first()
    }

    /// Sends an overtaken frame again, twice as many each time, and asks for an acknowledgement, which tells
    /// what has become of the others: a receiver that is not scheduled acknowledges nothing, and has lost
    /// nothing.
    fn ask_about_overtaken(&mut self, slot: u32, call: &mut SendContext<'_, impl Uplink>) {
        let now = call.sessions.local.now;
        let (asked_count, _) = self.streams[slot].asked;
        for _ in 0..1 << asked_count.min(16) {
            let first = self.streams[slot].outstanding.first();
            if self.items.get(first).is_none_or(|item| item.overtaken_at.is_none()) {
                break;
            }
            self.lose_overtaken(slot, first, call);
        }
        let stream = &mut self.streams[slot];
        stream.probes_due = 1;
        stream.asked = (asked_count + 1, now);
    }

    /// Sends the oldest frame again, to learn what has become of it and of those after it: a receiver that
    /// was only slow has them. A long frame may be too long for the path, which would be silent for no other
    /// one: the probe is a short piece of it, the first one already where no frame as long has arrived of
    /// late and a piece costs little. Where many probes bring no answer, all count as lost, and follow those
    /// that have waited, some of them fragments of messages that are begun which were never sent: a receiver
    /// that has no room for some may be waiting for others.
    fn probe(&mut self, slot: u32, call: &mut SendContext<'_, impl Uplink>) {
        let now = call.sessions.local.now;
        let probed = self.beginning_of(self.streams[slot].outstanding.first(), slot);
        let SentItem { path, datagram_bytes, .. } = self.items[probed];
        self.give_up((slot, probed), None, call);
        let stream = &mut self.streams[slot];
        stream.congestion.probes += 1;
        let is_cut = stream.congestion.probes > LOSS_PROBES
            || is_far_longer(datagram_bytes)
                && (stream.congestion.probes > 1
                    || call.sessions.may_be_too_long((path, stream.peer), datagram_bytes));
        if stream.congestion.probes >= LOSS_PROBES {
            self.lose_all(slot);
            self.streams[slot].fresh_due = FRESH_FRAGMENTS;
            self.send_beginning_first(slot);
            if is_cut {
                self.cut_short(slot, self.streams[slot].pending.first());
            }
        } else {
            if is_cut {
                self.cut_short(slot, probed);
            }
            let stream = &mut self.streams[slot];
            stream.pending.remove(&mut self.items, probed);
            stream.pending.push_front(&mut self.items, probed);
        }
        let stream = &mut self.streams[slot];
        stream.probes_due = 1;
        stream.waits_since = now;
        if stream.congestion.probes >= FAILOVER_PROBES {
            stream.congestion.collapse(stream.next_number);
            self.fail_over(slot, probed, call);
        }
        call.sessions.local.counters.probes += 1;
    }

    /// The first fragment of the message of an item, if that is outstanding as well, or the item: a receiver
    /// that has not had the beginning takes nothing else.
    fn beginning_of(&self, item: u32, slot: u32) -> u32 {
        let Cargo::Fragment { message, offset: 1.., .. } = self.items[item].cargo else { return item };
        let is_first = |item: &SentItem| matches!(item.cargo, Cargo::Fragment { message: of, offset: 0, .. } if of == message);
        self.streams[slot].outstanding.find(&self.items, is_first).unwrap_or(item)
    }

    /// Fragments mean nothing to a receiver that has not had the first one of their message: where the next
    /// to be sent waits for it, too, that goes before. The others keep their turns.
    fn send_beginning_first(&mut self, slot: u32) {
        let stream = &mut self.streams[slot];
        let next = self.items.get(stream.pending.first()).map(|item| item.cargo);
        let Some(Cargo::Fragment { message, offset: 1.., .. }) = next else { return };
        let is_first = |item: &SentItem| matches!(item.cargo, Cargo::Fragment { message: of, offset: 0, .. } if of == message);
        if let Some(at) = stream.pending.find(&self.items, is_first) {
            stream.pending.remove(&mut self.items, at);
            stream.pending.push_front(&mut self.items, at);
        }
    }
}
