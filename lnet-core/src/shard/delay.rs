//! Messages that wait, and what becomes of them.
//!
//! A PUT without an entry waits on a lazy portal until one takes it (LNet `lib-ptl.c:
//! lnet_ptl_attach_md`); a message for a descriptor without a threshold waits for its event slots; one for a
//! descriptor that a sibling writes into waits for that; one that a delay rule is about waits its time; a
//! request of whose sender another NID is being asked, since it may have to go by that, waits for the answer,
//! [`NAME_WAIT`] at most, and is refused for want of no name and of no room.
//! Messages of one portal wait in the order in which they came and are tried in that order, so none overtakes
//! another that is after the same.
//!
//! A message that is matched late promises its response then. If there is no room for that it is
//! dropped and counted, as one that has just arrived is: it has taken nothing yet, its sender must reckon
//! with a drop at any time, and to wait for room would let what arrives later, when there is room again,
//! pass it by. [`Limits`](crate::Limits) by default have room for the responses to all that may be delayed.
//!
//! A message that waits refers to the peer that sent it, whether that can be answered or not, and takes part
//! of the room that this peer may have (`delayed`).

use core::time::Duration;

use lnet_wire::steer::PORTALS;
use lnet_wire::{Header, MessageType, Nid};

use super::Shard;
use super::delayed::{Ask, DelayState, DelayedMessage, PayloadHolder, RESPONSES, Resumption, list_of};
use super::initiator::{finds_out, is_ping};
use super::target::{Arriving, Decision, Scope, Wait};
use crate::collections::NONE;
use crate::lnd::{NiId, RxId, Status, Verdict};
use crate::md::Ending;
use crate::portal::EntryError;
use crate::stats::{DelayReason, DropReason};
use crate::time::Instant;
use crate::topology::NiStatus;

/// How long a request waits at most for the name that its peer is to go by.
pub const NAME_WAIT: Duration = Duration::from_secs(1);

impl Shard {
    /// Makes a portal lazy: a PUT that no entry takes waits for one (LNet `lib-ptl.c: LNetSetLazyPortal`).
    /// GETs never wait. Each shard has to be told.
    ///
    /// # Errors
    /// [`EntryError::Portal`] if the index is 64 or more.
    pub fn set_lazy(&mut self, portal: u32) -> Result<(), EntryError> {
        self.delayed.lazy |= lazy_bit(portal)?;
        Ok(())
    }

    /// Makes a portal an ordinary one again (LNet `lib-ptl.c: LNetClearLazyPortal`): the PUTs that wait for
    /// an entry are dropped for [`DropReason::NotLazy`].
    ///
    /// # Errors
    /// [`EntryError::Portal`] if the index is 64 or more.
    pub fn clear_lazy(&mut self, portal: u32) -> Result<(), EntryError> {
        self.delayed.lazy &= !lazy_bit(portal)?;
        let mut next = self.delayed.unmatched[portal as usize].first();
        while let Some(slot) = self.delayed.step(&mut next) {
            if self.delayed.records[slot].state == (DelayState::Unmatched { md: NONE }) {
                self.settle_delayed(slot, Decision::Drop(DropReason::NotLazy));
            }
        }
        Ok(())
    }

    /// The next message that was delayed and is delayed no more, for the LND that holds it
    /// ([`Lnd::resume`](crate::lnd::Lnd::resume)).
    pub fn poll_resume(&mut self) -> Option<(NiId, RxId, Verdict)> {
        let slot = self.delayed.resumed.first();
        let Some(record) = self.delayed.records.get(slot) else { return self.resume_routed() };
        let (PayloadHolder::Rx(rx), DelayState::Resumed(resumption)) = (record.origin, record.state) else {
            unreachable!("a message without an LND is resumed")
        };
        let (ni, span) = (record.ni, record.span);
        let verdict = span.map_or(Verdict::Drop, Verdict::Deliver);
        if let Resumption::Borrow { lender, lease } = resumption {
            self.delayed.set_state(slot, DelayState::Borrowed { lender, lease });
            return Some((ni, rx, verdict));
        }
        let DelayedMessage { from, header, inbound, .. } = self.delayed.records[slot];
        match inbound {
            Some(inbound) => self.deliver((ni, &from), rx, &header, inbound),
            None => self.incoming.set(rx, Arriving::Idle),
        }
        self.forget_delayed(slot);
        Some((ni, rx, verdict))
    }

    /// Whether [`Shard::poll_resume`] has a message.
    #[inline]
    #[must_use]
    pub const fn has_resumed(&self) -> bool {
        self.delayed.resumed.first() != NONE || self.routed.first_resumed() != NONE
    }

    /// Delays a message that has just arrived.
    ///
    /// # Errors
    /// Why it is dropped instead, when its peer has as many delayed ones as may be.
    pub(super) fn delay(
        &mut self,
        rx: RxId,
        (ni, from): (NiId, &Nid),
        header: &Header,
        wait: Wait,
    ) -> Result<(), DropReason> {
        let origin = PayloadHolder::Rx(rx);
        let peer = self.refer_to_sender(origin, (ni, from), wait)?;
        let state = self.wait_for(wait);
        let slot = self.delayed.insert(origin, (ni, from), header, peer, state);
        self.incoming.set(rx, Arriving::Delayed(slot));
        Ok(())
    }

    /// Takes a reference on the peer of a message that has to wait, if that may have one more here.
    ///
    /// # Errors
    /// Why the message is dropped instead.
    pub(super) fn refer_to_sender(
        &mut self,
        origin: PayloadHolder,
        (ni, from): (NiId, &Nid),
        wait: Wait,
    ) -> Result<u32, DropReason> {
        let full = match wait {
            Wait::Md { reason: DelayReason::EventSlots, .. } => DropReason::EventQueueFull,
            _ => DropReason::DelayedFull,
        };
        if self.delayed.quota(origin).is_used_up() {
            return Err(full);
        }
        let credits = self.ni(ni).peer_share;
        let peer = self.peers.acquire(from, credits).ok_or(DropReason::PeersFull)?;
        if !self.delayed.quota(origin).admits(peer) {
            self.peers.release(peer);
            return Err(full);
        }
        Ok(peer)
    }

    /// A message is delayed no more.
    pub(super) fn forget_delayed(&mut self, slot: u32) {
        let peer = self.delayed.remove(slot);
        if peer != NONE {
            self.peers.release(peer);
        }
    }

    /// The state of a message that waits for this, which is noted where it comes from.
    pub(super) fn wait_for(&mut self, wait: Wait) -> DelayState {
        self.counters.count_delay(wait.reason());
        match wait {
            Wait::Entry => DelayState::Unmatched { md: NONE },
            Wait::Md { md, .. } => {
                self.mds[md].awaited = true;
                DelayState::Unmatched { md }
            }
            Wait::Sibling(ask) => {
                self.talks_to(ask.shard);
                DelayState::Asking(ask)
            }
            Wait::Time { until, rule } => DelayState::Timed { until, rule },
            Wait::Name { until } => DelayState::Unnamed { until },
        }
    }

    /// Decides anew on a delayed message.
    pub(super) fn decide_delayed(&mut self, slot: u32, scope: Scope) -> Decision {
        let DelayedMessage { ni, from, header, .. } = self.delayed.records[slot];
        // A sibling may know of an NI that this shard does not know yet.
        if self.topology.ni(ni).is_none_or(|local| local.status == NiStatus::Closed) {
            return Decision::Drop(DropReason::NiClosed);
        }
        self.decide(ni, &from, &header, scope)
    }

    /// Does with a delayed message what was decided.
    pub(super) fn settle_delayed(&mut self, slot: u32, decision: Decision) {
        let origin = self.delayed.records[slot].origin;
        if let PayloadHolder::Sibling { shard, .. } = origin {
            return self.settle_sibling_message(slot, shard, decision);
        }
        match decision {
            Decision::Take(inbound) => {
                let landing = self.landing(&self.delayed.records[slot].header, &inbound);
                self.delayed.records[slot].take(inbound, landing);
                self.delayed.set_state(slot, DelayState::Resumed(Resumption::Take));
            }
            Decision::Drop(reason) => {
                let DelayedMessage { ni, from, header, .. } = self.delayed.records[slot];
                self.count_drop((ni, &from), &header, reason);
                self.delayed.set_state(slot, DelayState::Resumed(Resumption::Drop));
            }
            Decision::Wait(wait) => {
                let state = self.wait_for(wait);
                self.delayed.set_state(slot, state);
            }
        }
    }

    /// An LND has finished with a delayed message, or gives it up.
    pub(super) fn received_delayed(&mut self, now: Instant, slot: u32, status: Status) {
        let record = &mut self.delayed.records[slot];
        let state = record.state;
        let (ni, from, message_type) = (record.ni, record.from, record.header.message_type());
        let is_ping = is_ping(&record.header.body);
        let (taken_bytes, asked_at) = (record.span.map_or(0, |span| span.length_bytes), record.asked_at);
        let borrowed = matches!(state, DelayState::Borrowed { .. });
        assert!(borrowed || status != Status::Ok, "a message that is {state:?} cannot be received");
        if state != DelayState::Resumed(Resumption::Drop) {
            if is_ping && status == Status::Ok {
                self.note_ping(now, ni, &from);
            }
            self.count_received(now, (ni, &from, message_type), status, taken_bytes, asked_at);
        }
        let record = &mut self.delayed.records[slot];
        match state {
            DelayState::Borrowed { lender, lease }
            | DelayState::Resumed(Resumption::Borrow { lender, lease }) => {
                record.origin = PayloadHolder::Gone;
                self.delayed.set_state(slot, DelayState::Returning { lender, lease, status });
                self.talks_to(lender);
            }
            DelayState::Asked(ask) => {
                record.origin = PayloadHolder::Gone;
                self.delayed.set_state(slot, DelayState::Withdrawing(ask));
                self.talks_to(ask.shard);
            }
            _ => {
                let DelayedMessage { header, inbound, .. } = *record;
                self.forget_delayed(slot);
                if let Some(inbound) = inbound {
                    self.end_arrival(now, &header, &inbound, status);
                }
            }
        }
    }

    /// Lets the messages go on whose delay rule is through, or for which `is_gone` says that it is no more.
    pub(super) fn release_timed(&mut self, now: Instant, mut due: impl FnMut(&Self) -> Option<u32>) {
        while let Some(slot) = due(self) {
            let &DelayedMessage { ni, ref header, .. } = &self.delayed.records[slot];
            if self.topology.ni(ni).is_some_and(|local| self.is_beyond(local, header)) {
                self.route_delayed(now, slot);
            } else {
                let decision = self.decide_delayed(slot, Scope::Arrived);
                self.settle_delayed(slot, decision);
            }
        }
    }

    /// Has a message for a NID beyond this node go on that a delay rule has delayed.
    fn route_delayed(&mut self, now: Instant, slot: u32) {
        let DelayedMessage { ni, from, header, origin, .. } = self.delayed.records[slot];
        let PayloadHolder::Rx(rx) = origin else { unreachable!("siblings ask about no message for others") };
        match self.route(now, (ni, &from), rx, &header) {
            Ok(_) => self.forget_delayed(slot),
            Err(reason) => self.settle_delayed(slot, Decision::Drop(reason)),
        }
    }

    /// Has a request wait until it is known by which name its peer goes; `false` if it does not, since there
    /// is no room, or it is what finds that out.
    #[cold]
    pub(super) fn await_name(&mut self, now: Instant, rx: RxId, by: (NiId, &Nid), header: &Header) -> bool {
        if !waits_for_names(header) {
            return false;
        }
        let source = &header.source.nid;
        let is_told = self.delayed.has_unnamed_of(source);
        let waits = self.delay(rx, by, header, Wait::Name { until: now + NAME_WAIT }).is_ok();
        if waits && !is_told {
            self.news.note_waiting(source);
        }
        waits
    }

    /// Has a sibling's message wait that may have to go by another name, as far as this shard knows: the
    /// sibling may know more by now. `false` if it does not wait.
    pub(super) fn await_name_here(&mut self, now: Instant, slot: u32) -> bool {
        let header = &self.delayed.records[slot].header;
        let source = header.source.nid;
        let waits = self.topology.awaits_name(&source) && waits_for_names(header);
        if waits {
            if !self.delayed.has_unnamed_of(&source) {
                self.news.note_waiting(&source);
            }
            let state = self.wait_for(Wait::Name { until: now + NAME_WAIT });
            self.delayed.set_state(slot, state);
        }
        waits
    }

    /// Whether a message that an LND has wait is one that does, and counts it if it is new.
    #[cold]
    pub(super) fn may_await_name(&mut self, header: &Header, is_new: bool) -> bool {
        let waits = waits_for_names(header);
        if waits && is_new {
            self.counters.count_delay(DelayReason::Name);
            self.news.note_waiting(&header.source.nid);
        }
        waits
    }

    /// Lets the messages go on that wait for names which are known now, and those that have waited for as
    /// long as they may.
    pub(super) fn release_unnamed(&mut self, now: Instant) {
        let mut next = self.delayed.unnamed.first();
        while let Some(slot) = self.delayed.step(&mut next) {
            let DelayedMessage { state: DelayState::Unnamed { until }, header, .. } =
                &self.delayed.records[slot]
            else {
                unreachable!("a message in that list waits for no name")
            };
            if *until <= now || !self.topology.awaits_name(&header.source.nid) {
                let scope = match self.delayed.records[slot].origin {
                    PayloadHolder::Sibling { steal, .. } => Scope::Sibling { steal },
                    _ => Scope::Arrived,
                };
                let decision = self.decide_delayed(slot, scope);
                self.settle_delayed(slot, decision);
            }
        }
    }

    /// Tries the messages of a portal, which has just been given this descriptor, until it takes no more.
    pub(super) fn offer(&mut self, portal: u8, md: u32) {
        let generation = self.mds.generation(md);
        let mut next = self.delayed.unmatched[usize::from(portal)].first();
        while self.mds.holds(md, generation)
            && !self.mds[md].is_exhausted()
            && let Some(slot) = self.delayed.step(&mut next)
        {
            self.retry(slot);
        }
    }

    /// Notes that messages which wait for this descriptor are to be tried again.
    pub(super) fn note_retry(&mut self, md: u32) {
        if core::mem::take(&mut self.mds[md].awaited) {
            let entry = self.mds[md].entry;
            let list = if entry == NONE { RESPONSES } else { self.tables.entry(entry).portal.into() };
            self.delayed.note_retry(list);
        }
    }

    /// Tries the messages again whose descriptors have changed. To be called at the end of whatever may end
    /// an operation, free an event slot or unlink a descriptor.
    #[inline]
    pub(super) fn wake(&mut self) {
        while let Some(list) = self.delayed.next_retry() {
            self.wake_list(list);
        }
    }

    #[cold]
    fn wake_list(&mut self, list: usize) {
        let mut next = self.delayed.unmatched[list].first();
        while let Some(slot) = self.delayed.step(&mut next) {
            let DelayState::Unmatched { md } = self.delayed.records[slot].state else {
                unreachable!("a message that is matched is in a list of unmatched ones")
            };
            let still_waits = md == NONE
                || self.mds.get(md).is_some_and(|md| {
                    md.ending == Ending::No
                        && !md.is_exhausted()
                        && (!self.has_event_slot(md) || md.withheld.keeps_out())
                });
            if !still_waits {
                self.retry(slot);
            } else if md != NONE {
                self.mds[md].awaited = true;
            }
        }
    }

    /// Tries an unmatched message again. Where it still has to wait for an entry or
    /// a descriptor, it stays where it is in the list.
    fn retry(&mut self, slot: u32) {
        let record = &self.delayed.records[slot];
        let scope = match (record.origin, record.state) {
            (PayloadHolder::Sibling { steal, .. }, _) => Scope::Sibling { steal },
            // Its siblings have been asked, and tell of new entries.
            (_, DelayState::Unmatched { md: NONE }) => Scope::Asked,
            _ => Scope::Arrived,
        };
        match self.decide_delayed(slot, scope) {
            Decision::Wait(Wait::Entry) => {
                self.delayed.records[slot].state = DelayState::Unmatched { md: NONE }
            }
            Decision::Wait(Wait::Md { md, .. }) => {
                self.mds[md].awaited = true;
                self.delayed.records[slot].state = DelayState::Unmatched { md };
            }
            decision => self.settle_delayed(slot, decision),
        }
    }

    /// Asks a sibling that has a new entry about the messages of a portal that wait for one.
    pub(super) fn ask_again(&mut self, portal: u8, ask: Ask) {
        let mut next = self.delayed.unmatched[usize::from(portal)].first();
        while let Some(slot) = self.delayed.step(&mut next) {
            let record = &self.delayed.records[slot];
            if record.state == (DelayState::Unmatched { md: NONE })
                && matches!(record.origin, PayloadHolder::Rx(_))
            {
                self.settle_delayed(slot, Decision::Wait(Wait::Sibling(ask)));
            }
        }
    }

    /// Whether a message without an entry waits for one.
    pub(super) const fn is_lazy(&self, header: &Header) -> bool {
        let list = list_of(header);
        matches!(header.message_type(), MessageType::Put)
            && list < PORTALS
            && self.delayed.lazy >> list & 1 != 0
    }
}

/// Whether it is a request, and none that finds names out.
fn waits_for_names(header: &Header) -> bool {
    matches!(header.message_type(), MessageType::Put | MessageType::Get) && !finds_out(&header.body)
}

fn lazy_bit(portal: u32) -> Result<u64, EntryError> {
    if (portal as usize) < PORTALS { Ok(1 << portal) } else { Err(EntryError::Portal(portal)) }
}
