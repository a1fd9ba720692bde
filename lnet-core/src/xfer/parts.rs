//! The receiving side: (parts of) messages and where they go.

use lnet_wire::frame::{FRAGMENT_UNIT_BYTES, Kind};
use lnet_wire::{Header, Nid};

use super::Action;
use super::inflow::Phase;
use super::receive::{Writing, Written};
use super::state::Xfer;
use super::stats::XferDrop;
use super::window::Seen;
use crate::list::NONE;
use crate::lnd::{Cause, NiId, RxId, Span, Status, Uplink, Verdict};
use crate::time::Instant;

/// A message, or a part of one, that has arrived.
pub(super) struct Part<'a> {
    pub(super) ni: NiId,
    /// The address that its frame came from.
    pub(super) from: &'a Nid,
    pub(super) id: u64,
    pub(super) offset: u32,
    pub(super) length: u32,
    pub(super) total: u32,
    pub(super) lnet: Option<&'a Header>,
    pub(super) ticket: Option<u32>,
    /// The frame's number; none in a bundle.
    pub(super) number: Option<u32>,
}

impl Xfer {
    /// Takes in (a part of) a message.
    pub(super) fn part(
        &mut self,
        now: Instant,
        inflow: u32,
        part: &Part<'_>,
        up: &mut impl Uplink,
    ) -> Result<Action, XferDrop> {
        let ends = part.offset.checked_add(part.length).ok_or(XferDrop::Malformed)?;
        let aligned = part.offset.is_multiple_of(FRAGMENT_UNIT_BYTES)
            && (ends == part.total || part.length.is_multiple_of(FRAGMENT_UNIT_BYTES));
        if !aligned || ends > part.total || (part.length == 0 && part.total != 0) {
            return Err(XferDrop::Malformed);
        }
        if let Some(slot) = self.arrivals.find(inflow, part.id) {
            return self.known_part(now, inflow, slot, part, up);
        }
        match self.inflows[inflow].window.look(part.id) {
            Seen::New => {}
            #[cfg(feature = "sabotage")]
            Seen::Old if self.sabotage.no_duplicate_window => {}
            Seen::Beyond => return Err(XferDrop::BeyondWindow),
            Seen::Old => {
                self.note_part(now, inflow, part, true);
                return Err(XferDrop::Duplicate);
            }
        }
        if let Some(ticket) = part.ticket {
            return self.pulled_part(now, inflow, ticket, part, up);
        }
        let Some(lnet) = part.lnet.filter(|_| part.offset == 0) else {
            return self.hold(now, inflow, part.id).map(Action::Hold).ok_or(XferDrop::TooEarly);
        };
        let whole = part.length == part.total;
        let slot = self.arrivals.slab.first_free().ok_or(XferDrop::IncomingFull)?;
        if (!whole && self.maps.is_full()) || self.has_its_share(inflow, whole) {
            return Err(XferDrop::IncomingFull);
        }
        let rx = RxId(slot);
        // It may have gone around a rail that does not answer.
        let ni = self.interface_of(&lnet.destination.nid).unwrap_or(part.ni);
        match up.header(now, ni, part.from, rx, lnet) {
            Verdict::Deliver(span) if whole => Ok(self.whole(now, inflow, rx, part, span, up)),
            Verdict::Deliver(span) => {
                self.remember(now, inflow, part, Phase::Receiving(span));
                self.replay(inflow, part.id);
                self.fragment(now, inflow, slot, span, part, up)
            }
            Verdict::Delay => {
                self.remember(now, inflow, part, Phase::Delayed);
                self.delayed_part(now, inflow, slot, part)
            }
            Verdict::Drop => {
                self.inflows[inflow].window.mark(part.id);
                self.note_part(now, inflow, part, false);
                self.replay(inflow, part.id);
                Ok(Action::Done)
            }
        }
    }

    /// A message that came in one piece.
    #[inline(always)]
    fn whole(
        &mut self,
        now: Instant,
        inflow: u32,
        rx: RxId,
        part: &Part<'_>,
        span: Span,
        up: &mut impl Uplink,
    ) -> Action {
        if span.length_bytes != 0 {
            let what = Written::Whole { id: part.id };
            self.writing = Some(Writing { inflow, rx, number: part.number, what, span });
            return Action::Write;
        }
        self.inflows[inflow].window.mark(part.id);
        up.received(now, rx, Status::Ok);
        self.note_part(now, inflow, part, false);
        Action::Done
    }

    /// Whether the address of an inflow has all the room for messages that arrive that one may have: three
    /// quarters, so that there is some for others.
    fn has_its_share(&self, inflow: u32, whole: bool) -> bool {
        let (slots, maps) = (self.arrivals.slab.capacity(), self.maps.capacity());
        let slots_scarce = self.arrivals.slab.used_count() >= slots / 2;
        let maps_scarce = !whole && self.maps.used_count() >= maps / 2;
        if !slots_scarce && !maps_scarce {
            return false;
        }
        let address = &self.inflows[inflow].address.1;
        let its = (0..self.inflows.capacity()).filter_map(|slot| self.inflows.get(slot));
        let its = its.filter(|inflow| inflow.address.1 == *address);
        let (arriving, partial) = its.fold((0, 0), |(arriving, partial), inflow| {
            (arriving + inflow.arriving_count, partial + inflow.partial_count)
        });
        (slots_scarce && arriving >= slots / 4 * 3) || (maps_scarce && partial >= maps / 4 * 3)
    }

    /// Gives a message the slot that was promised to it.
    fn remember(&mut self, now: Instant, inflow: u32, part: &Part<'_>, phase: Phase) {
        let slot = self.arrivals.insert(now, inflow, part.id, part.total);
        let Some(slot) = slot else { unreachable!("a slot was free") };
        self.arrivals.slab[slot].phase = phase;
        self.inflows[inflow].arriving.push_back(&mut self.arrivals.slab, slot);
        self.inflows[inflow].arriving_count += 1;
        self.schedule_sweep(now);
    }

    /// A part of a message that has a record.
    fn known_part(
        &mut self,
        now: Instant,
        inflow: u32,
        slot: u32,
        part: &Part<'_>,
        up: &mut impl Uplink,
    ) -> Result<Action, XferDrop> {
        let arriving = &self.arrivals.slab[slot];
        if arriving.total_bytes != part.total {
            return Err(XferDrop::Malformed);
        }
        match arriving.phase {
            Phase::Receiving(span) => self.fragment(now, inflow, slot, span, part, up),
            Phase::Delayed => self.delayed_part(now, inflow, slot, part),
            // Its sender is about to withdraw it.
            Phase::Parked | Phase::Pulled(_) => {
                self.bundle_spoiled = true;
                Err(XferDrop::Duplicate)
            }
        }
    }

    /// A part of a delayed message is kept, or the message is parked.
    fn delayed_part(
        &mut self,
        now: Instant,
        inflow: u32,
        slot: u32,
        part: &Part<'_>,
    ) -> Result<Action, XferDrop> {
        if part.number.is_some()
            && let Some(hold) = self.hold(now, inflow, part.id)
        {
            return Ok(Action::Hold(hold));
        }
        self.bundle_spoiled = true;
        self.park(now, slot);
        self.holds_forget(inflow, part.id);
        Ok(Action::Done)
    }

    /// The first part of a message that was pulled, under its new id.
    fn pulled_part(
        &mut self,
        now: Instant,
        inflow: u32,
        ticket: u32,
        part: &Part<'_>,
        up: &mut impl Uplink,
    ) -> Result<Action, XferDrop> {
        let holder = self.ticket_holder(inflow, ticket);
        let pulled = holder.and_then(|slot| match self.arrivals.slab[slot].phase {
            Phase::Pulled(span) if self.arrivals.slab[slot].total_bytes == part.total => Some((slot, span)),
            _ => None,
        });
        let Some((slot, span)) = pulled else {
            // What was to take it is gone.
            if part.offset == 0 {
                self.notify(now, inflow, Kind::Lost, part.id, ticket);
            }
            return Err(XferDrop::UnknownTicket);
        };
        self.arrivals.rename(slot, part.id);
        self.arrivals.slab[slot].phase = Phase::Receiving(span);
        self.replay(inflow, part.id);
        self.fragment(now, inflow, slot, span, part, up)
    }

    /// A part of a message that is being received.
    fn fragment(
        &mut self,
        now: Instant,
        inflow: u32,
        slot: u32,
        span: Span,
        part: &Part<'_>,
        up: &mut impl Uplink,
    ) -> Result<Action, XferDrop> {
        let &Part { offset, length, total, .. } = part;
        if length != total && self.arrivals.slab[slot].map == NONE {
            self.arrivals.slab[slot].map = self.maps.take().ok_or(XferDrop::IncomingFull)?;
            self.inflows[inflow].partial_count += 1;
        }
        let map = self.arrivals.slab[slot].map;
        self.arrivals.slab[slot].touched_at = now;
        if map != NONE && self.maps.new_bytes(map, offset, length) == 0 {
            self.note_part(now, inflow, part, true);
            return Err(XferDrop::Duplicate);
        }
        let room = span.length_bytes.saturating_sub(offset).min(length);
        if room == 0 {
            self.take_fragment(now, RxId(slot), offset, length, up);
            self.note_part(now, inflow, part, false);
            return Ok(Action::Done);
        }
        let what = Written::Fragment { offset, length };
        let span = Span { offset_bytes: span.offset_bytes + u64::from(offset), length_bytes: room, ..span };
        self.writing = Some(Writing { inflow, rx: RxId(slot), number: part.number, what, span });
        Ok(Action::Write)
    }

    /// A part of a message is in place; the last one ends it.
    pub(super) fn take_fragment(
        &mut self,
        now: Instant,
        rx: RxId,
        offset: u32,
        length: u32,
        up: &mut impl Uplink,
    ) {
        let arriving = &self.arrivals.slab[rx.0];
        let (inflow, id, map) = (arriving.inflow, arriving.id, arriving.map);
        let missing = if map == NONE {
            0
        } else {
            let fresh = self.maps.new_bytes(map, offset, length);
            self.maps.mark(map, offset, length);
            arriving.missing_bytes - fresh
        };
        self.arrivals.slab[rx.0].missing_bytes = missing;
        if missing == 0 {
            self.inflows[inflow].window.mark(id);
            self.remove_arriving(rx.0);
            // The sender waits for nothing else.
            self.hurry_ack(inflow);
            up.received(now, rx, Status::Ok);
        }
    }

    /// Forgets a message that arrives, and nothing else.
    pub(super) fn remove_arriving(&mut self, slot: u32) {
        let inflow = self.arrivals.slab[slot].inflow;
        self.inflows[inflow].arriving.remove(&mut self.arrivals.slab, slot);
        let arriving = self.arrivals.remove(slot);
        self.inflows[inflow].arriving_count -= 1;
        self.inflows[inflow].partial_count -= u32::from(arriving.map != NONE);
        self.maps.give_back(arriving.map);
    }

    /// Gives up a message that arrives.
    pub(super) fn abandon(&mut self, now: Instant, slot: u32, cause: Cause, up: &mut impl Uplink) {
        let (inflow, id) = (self.arrivals.slab[slot].inflow, self.arrivals.slab[slot].id);
        self.inflows[inflow].window.mark(id);
        self.holds_forget(inflow, id);
        self.remove_arriving(slot);
        up.received(now, RxId(slot), Status::Unknown(cause));
    }
}
