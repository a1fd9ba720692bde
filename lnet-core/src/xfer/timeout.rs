//! Timers: acknowledgements, losses, probes, questions, deadlines, and what was forgotten.

use core::time::Duration;

use super::congestion::earlier;
use super::flow::{Busy, DETOUR};
use super::inflow::{AckDue, Phase};
use super::message::{Outbound, Queued};
use super::peer::Asked;
use super::record::Cargo;
use super::reply::Reply;
use super::state::Xfer;
use crate::list::{List, NONE};
use crate::lnd::{Cause, NiId, Status, Uplink};
use crate::time::Instant;

/// How often senders that have gone silent are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// A receiver remembers a sender for so long at least, so that no token outlives what is remembered.
const MEMORY_MIN: Duration = Duration::from_secs(10);
/// Longest interval between two HELLOs.
const HELLO_MAX: Duration = Duration::from_secs(1);
/// Probes without an answer after which another way is tried.
const DETOUR_PROBES: u32 = 2;

impl Xfer {
    /// Does what is due.
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant, up: &mut impl Uplink) {
        self.catch_up(up);
        if self.timer.is_some_and(|timer| timer <= now) {
            self.run_timers(now, up);
        }
    }

    fn run_timers(&mut self, now: Instant, up: &mut impl Uplink) {
        self.timer = None;
        self.end_holds(now);
        self.end_messages(now, up);
        self.repeat_questions(now);
        if core::mem::take(&mut self.starved) {
            for contact in 0..self.contacts.slab.capacity() {
                if self.contacts.slab.get(contact).is_some() {
                    self.dispatch_waiting(now, contact);
                }
            }
            for flow in 0..self.flows.capacity() {
                if self.flows.get(flow).is_some() {
                    self.go_on(flow);
                }
            }
        }
        let mut next = self.follow_flows(now);
        next = earlier(next, self.follow_inflows(now));
        if self.sweep_at <= now {
            self.sweep(now, up);
        }
        let kept = [self.inflows.used_count(), self.messages.used_count(), self.records.used_count()];
        let sweeps = kept != [0; 3];
        next = earlier(next, sweeps.then_some(self.sweep_at));
        next = earlier(next, self.messages.get(self.deadlines.first()).map(|message| message.deadline));
        next = earlier(next, self.holds.first().map(|(_, _, until)| until));
        if let Some(next) = next {
            self.set_timer(next);
        }
    }

    pub(super) fn schedule_sweep(&mut self, now: Instant) {
        if self.sweep_at <= now {
            self.sweep_at = now + SWEEP_INTERVAL;
        }
        self.set_timer(self.sweep_at);
    }

    /// Ends messages whose time is over.
    fn end_messages(&mut self, now: Instant, up: &mut impl Uplink) {
        while let Some(message) = self.messages.get(self.deadlines.first())
            && message.deadline <= now
        {
            let status = unfinished(message.polled, Cause::Timeout);
            self.finish(now, self.deadlines.first(), status, up);
        }
    }

    /// Asks again where no answer has come, and something waits for it, or its peer may have something to say.
    fn repeat_questions(&mut self, now: Instant) {
        let mut at = self.contacts.asked.first();
        while at != NONE {
            let next = List::<Asked>::next(&self.contacts.slab, at);
            let contact = &mut self.contacts.slab[at];
            let (ni, nid, peer) = (contact.ni, contact.nid, contact.peer);
            let asker = contact.asking.and_then(|asking| asking.asker);
            let is_in_use = |peer: u32| self.peers.slab.get(peer).is_some_and(|peer| !peer.is_idle());
            let asker = asker.and_then(|asker| self.peers.find(asker));
            let wanted = contact.references > 1 || is_in_use(peer) || asker.is_some_and(is_in_use);
            if let Some(asking) = contact.asking.as_mut().filter(|_| wanted) {
                if asking.next_at <= now {
                    asking.interval_ns = (asking.interval_ns * 2).min(HELLO_MAX.as_nanos() as u64);
                    asking.next_at = now + Duration::from_nanos(asking.interval_ns);
                    asking.is_repeated = true;
                    let nonce = asking.nonce;
                    self.reply(Reply::Hello { ni, nid, nonce });
                    if peer != NONE {
                        self.ask_where_heard(now, peer);
                        self.dispatch_waiting(now, at);
                    }
                }
                if let Some(asking) = self.contacts.slab[at].asking {
                    self.set_timer(asking.next_at);
                }
            } else {
                // Whoever needs a session asks again.
                self.contacts.answered(at);
            }
            at = next;
        }
    }

    /// Losses by time, and probes. When the next flow is due.
    fn follow_flows(&mut self, now: Instant) -> Option<Instant> {
        let mut due = None;
        let mut at = self.busy_flows.first();
        while at != NONE {
            let next = List::<Busy>::next(&self.flows, at);
            while self.loss_time(at).is_some_and(|lost| lost <= now) {
                let first = self.flows[at].outstanding.first();
                self.lose(at, first);
            }
            let flow = &self.flows[at];
            if flow.outstanding.is_empty() {
                self.busy_flows.remove(&mut self.flows, at);
                self.flows[at].is_busy = false;
            } else {
                let interval = flow.congestion.probe_interval(self.times.probe_min, self.times.ack_delay);
                let probe_at = flow.waits_since + interval;
                if probe_at <= now {
                    self.probe(now, at);
                }
                let flow = &self.flows[at];
                let interval = flow.congestion.probe_interval(self.times.probe_min, self.times.ack_delay);
                due = earlier(due, Some(flow.waits_since + interval));
                due = earlier(due, self.loss_time(at));
            }
            self.go_on(at);
            at = next;
        }
        due
    }

    /// Sends the oldest frame again, to learn what has become of it and of those after it. Where that brings
    /// no answer, all count as lost, and follow those that have waited: a receiver that has no room for some
    /// may be waiting for others.
    fn probe(&mut self, now: Instant, slot: u32) {
        let first = self.flows[slot].outstanding.first();
        self.lose(slot, first);
        let flow = &mut self.flows[slot];
        if flow.congestion.probes() == 0 {
            flow.pending.remove(&mut self.records, first);
            flow.pending.push_front(&mut self.records, first);
        } else {
            while !self.flows[slot].outstanding.is_empty() {
                let first = self.flows[slot].outstanding.first();
                self.lose(slot, first);
            }
            let flow = &mut self.flows[slot];
            flow.congestion.collapse(flow.next_number);
            self.send_beginning_first(slot);
        }
        let flow = &mut self.flows[slot];
        flow.probes_due = 1;
        flow.waits_since = now;
        flow.congestion.probed();
        if flow.congestion.probes().is_multiple_of(DETOUR_PROBES) {
            let until = now + DETOUR;
            flow.detour_until = if flow.takes_detour(now) { None } else { Some(until) };
            let peer = flow.peer;
            self.ask_where_heard(now, peer);
        }
        self.counters.probes += 1;
    }

    /// Fragments mean nothing to a receiver that has not had the first one of their message: where the next to be
    /// sent waits for it, too, that goes before. The others keep their turns.
    fn send_beginning_first(&mut self, slot: u32) {
        let flow = &mut self.flows[slot];
        let next = self.records.get(flow.pending.first()).map(|record| record.cargo);
        let Some(Cargo::Fragment { message, offset: 1.., .. }) = next else { return };
        let mut at = flow.pending.first();
        while let Some(record) = self.records.get(at) {
            if matches!(record.cargo, Cargo::Fragment { message: of, offset: 0, .. } if of == message) {
                flow.pending.remove(&mut self.records, at);
                return flow.pending.push_front(&mut self.records, at);
            }
            at = List::next(&self.records, at);
        }
    }

    /// Acknowledgements that have waited for long enough. When the next one is due.
    fn follow_inflows(&mut self, now: Instant) -> Option<Instant> {
        let mut due = None;
        let mut at = self.busy_inflows.first();
        while at != NONE {
            match self.inflows[at].ack {
                AckDue::At(when) if when <= now => self.ack_soon(now, at, true),
                AckDue::At(when) => due = earlier(due, Some(when)),
                AckDue::No | AckDue::Now => {}
            }
            at = Self::next_busy(&self.inflows, at);
        }
        due
    }

    /// Looks for what nobody has touched for long.
    fn sweep(&mut self, now: Instant, up: &mut impl Uplink) {
        self.sweep_at = now + SWEEP_INTERVAL;
        let mut at = self.busy_inflows.first();
        while at != NONE {
            let next = Self::next_busy(&self.inflows, at);
            if now - self.inflows[at].seen_at > SWEEP_INTERVAL && self.inflows[at].ack == AckDue::No {
                self.busy_inflows.remove(&mut self.inflows, at);
                self.inflows[at].is_busy = false;
                self.busy_inflow_count -= 1;
            }
            at = next;
        }
        let memory = (self.times.message * 2).max(MEMORY_MIN);
        while let Some(inflow) = self.inflows.get(self.recent.first())
            && now - inflow.seen_at > memory
        {
            self.end_inflow(now, self.recent.first(), Cause::Timeout, up);
        }
        if self.arrivals.slab.used_count() != 0 {
            for slot in 0..self.arrivals.slab.capacity() {
                let Some(arriving) = self.arrivals.slab.get(slot) else { continue };
                if arriving.pull_owed {
                    self.pull(now, slot);
                }
                let arriving = &self.arrivals.slab[slot];
                let moves = matches!(arriving.phase, Phase::Receiving(_) | Phase::Pulled(_));
                if moves && now - arriving.touched_at > self.times.message {
                    self.abandon(now, slot, Cause::Timeout, up);
                }
            }
        }
        if self.records.used_count() != 0 {
            for slot in 0..self.flows.capacity() {
                let Some(flow) = self.flows.get(slot) else { continue };
                let (peer, shard) = (flow.peer, flow.shard);
                let inflow = self.inflows.get(self.peers.slab[peer].inflows[usize::from(shard)]);
                let is_silent = inflow.is_none_or(|inflow| now - inflow.seen_at > self.times.message);
                if is_silent && flow.is_unanswered(now, self.times.message) {
                    self.drop_notices(slot);
                    self.end_parked(now, peer, |message| message.shard == shard, up);
                }
            }
        }
        if self.messages.used_count() != 0 {
            for peer in 0..self.peers.slab.capacity() {
                self.follow_parked(now, peer, up);
            }
        }
    }

    /// Asks after the parked messages of a peer; ends those of one that is silent.
    fn follow_parked(&mut self, now: Instant, peer: u32, up: &mut impl Uplink) {
        let Some(entry) = self.peers.slab.get(peer).filter(|peer| !peer.parked.is_empty()) else { return };
        if now - entry.heard_at <= self.times.message {
            self.ask_after_parked(now, peer);
        } else {
            self.end_parked(now, peer, |_| true, up);
        }
    }

    /// Ends parked messages of a peer that does not answer.
    fn end_parked(
        &mut self,
        now: Instant,
        peer: u32,
        which: impl Fn(&Outbound) -> bool,
        up: &mut impl Uplink,
    ) {
        let mut at = self.peers.slab[peer].parked.first();
        while at != NONE {
            let next = List::<Queued>::next(&self.messages, at);
            if which(&self.messages[at]) {
                self.finish(now, at, Status::Unknown(Cause::Timeout), up);
            }
            at = next;
        }
    }

    /// An interface does not send any more: messages that only it carried end.
    pub fn fail_interface(&mut self, now: Instant, ni: NiId, cause: Cause, up: &mut impl Uplink) {
        self.catch_up(up);
        for slot in 0..self.messages.capacity() {
            let Some(message) = self.messages.get(slot) else { continue };
            if self.contacts.slab[message.contact].ni != ni {
                continue;
            }
            let elsewhere = self.peers.slab.get(message.peer).is_some_and(|peer| peer.address.0 != ni);
            if !elsewhere {
                self.finish(now, slot, unfinished(message.polled, cause), up);
            }
        }
    }
}

/// How a message ends that was not acknowledged.
pub(super) const fn unfinished(polled: bool, cause: Cause) -> Status {
    if polled { Status::Unknown(cause) } else { Status::NeverSent(cause) }
}
