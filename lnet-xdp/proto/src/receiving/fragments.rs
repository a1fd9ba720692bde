//! Messages, or fragments of them, and where they go.

use lnet_core::collections::NONE;
use lnet_core::lnd::{Cause, NiId, RxId, Span, Status, Uplink, Verdict};
use lnet_wire::frame::{FRAGMENT_UNIT_BYTES, Kind};
use lnet_wire::{Header, Nid};

use super::arrivals::{ArrivalStage, Arriving};
use super::window::Seen;
use super::{ReceiveContext, ReceivingSide};
use crate::contract::{Disposition, NO_TICKET};
use crate::stats::XferDrop;

/// A copy into a descriptor that [`ReceivingSide::written`] concludes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writing {
    pub(crate) stream: u32,
    pub(crate) rx: RxId,
    /// Number of the frame; none while a bundle goes on.
    pub(crate) number: Option<u32>,
    pub(crate) what: Written,
    /// Where it is written.
    pub(crate) span: Span,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Written {
    /// A message that came in one piece and has no slot.
    Whole { id: u64 },
    /// A fragment of a message that has one.
    Fragment { offset: u32, length: u32 },
}

/// A message, or a part of one, that has arrived.
pub(crate) struct Fragment<'a> {
    pub(crate) stream: u32,
    pub(crate) ni: NiId,
    /// The address that its frame came from.
    pub(crate) from: &'a Nid,
    pub(crate) id: u64,
    pub(crate) offset: u32,
    pub(crate) length: u32,
    pub(crate) total: u32,
    pub(crate) lnet: Option<&'a Header>,
    pub(crate) ticket: Option<u32>,
    /// The frame's number; none in a bundle.
    pub(crate) number: Option<u32>,
}

impl ReceivingSide {
    /// Takes in (a part of) a message.
    pub(crate) fn take(
        &mut self,
        fragment: &Fragment<'_>,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) -> Result<Disposition, XferDrop> {
        let stream = fragment.stream;
        let ends = fragment.offset.checked_add(fragment.length).ok_or(XferDrop::Malformed)?;
        let aligned = fragment.offset.is_multiple_of(FRAGMENT_UNIT_BYTES)
            && (ends == fragment.total || fragment.length.is_multiple_of(FRAGMENT_UNIT_BYTES));
        if !aligned || ends > fragment.total || (fragment.length == 0 && fragment.total != 0) {
            return Err(XferDrop::Malformed);
        }
        if let Some(slot) = Arriving::find(&self.arrivals, stream, fragment.id) {
            return self.known_fragment(slot, fragment, call);
        }
        match self.windows[stream].look(fragment.id) {
            Seen::New => {}
            #[cfg(feature = "sabotage")]
            Seen::Old if call.sessions.local.sabotage.no_duplicate_window => {}
            Seen::Beyond => return Err(XferDrop::BeyondWindow),
            Seen::Old if self.given_up.contains(&(stream, fragment.id)) => {
                self.tell(stream, Kind::Lost, fragment.id, NO_TICKET, call);
                self.bundle_spoiled = true;
                return Err(XferDrop::Duplicate);
            }
            Seen::Old => {
                self.note_fragment(fragment, true, call);
                return Err(XferDrop::Duplicate);
            }
        }
        if let Some(ticket) = fragment.ticket {
            return self.pulled_fragment(ticket, fragment, call);
        }
        let Some(lnet) = fragment.lnet.filter(|_| fragment.offset == 0) else {
            return self
                .buffer_frame((stream, fragment.id, false), call)
                .map(Disposition::Buffer)
                .ok_or(XferDrop::TooEarly);
        };
        let whole = fragment.length == fragment.total;
        let slot = self.arrivals.first_free().ok_or(XferDrop::IncomingFull)?;
        if (!whole && self.maps.is_full()) || self.has_its_share(stream, whole) {
            return Err(XferDrop::IncomingFull);
        }
        let rx = RxId(slot);
        // The fragment may have gone around a rail that does not answer.
        let ni = call.sessions.ni_of(&lnet.destination.nid).unwrap_or(fragment.ni);
        // What a header says of its source is a claim: it holds for addresses that the same incarnation has
        // shown.
        let source = &lnet.source.nid;
        let is_shown = source == fragment.from || call.sessions.lives_at(self.streams[stream].peer, source);
        let from = if is_shown { source } else { fragment.from };
        match call.up.header(call.now(), ni, from, rx, lnet) {
            Verdict::Deliver(span) if whole => Ok(self.whole(rx, fragment, span, call)),
            Verdict::Deliver(span) => {
                self.remember(fragment, ArrivalStage::Receiving(span), call);
                self.buffer.replay(stream, fragment.id);
                self.write_fragment(slot, span, fragment, call)
            }
            Verdict::Delay => {
                self.remember(fragment, ArrivalStage::Delayed, call);
                self.delayed_fragment(slot, fragment, call)
            }
            Verdict::Drop => {
                self.windows[stream].mark(fragment.id);
                self.note_fragment(fragment, false, call);
                self.buffer.replay(stream, fragment.id);
                Ok(Disposition::Done)
            }
        }
    }

    /// Concludes the copy that [`Disposition::Write`] named.
    pub(crate) fn written(&mut self, call: &mut ReceiveContext<'_, impl Uplink>) {
        let Some(Writing { stream, rx, number, what, span }) = self.writing else {
            panic!("nothing was to be written")
        };
        self.writing = None;
        call.sessions.local.counters.payload_bytes_copied += u64::from(span.length_bytes);
        let is_whole = matches!(what, Written::Whole { .. });
        match what {
            Written::Whole { id } => {
                self.windows[stream].mark(id);
                call.up.received(call.now(), rx, Status::Ok);
            }
            Written::Fragment { offset, length } => self.take_fragment(rx, offset, length, call),
        }
        if let Some(number) = number {
            self.note_frame(stream, number, (false, is_whole), call.sessions);
        }
    }

    /// A message that came in one piece.
    #[inline(always)]
    fn whole(
        &mut self,
        rx: RxId,
        fragment: &Fragment<'_>,
        span: Span,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) -> Disposition {
        if span.length_bytes != 0 {
            let what = Written::Whole { id: fragment.id };
            self.writing = Some(Writing { stream: fragment.stream, rx, number: fragment.number, what, span });
            return Disposition::Write;
        }
        self.windows[fragment.stream].mark(fragment.id);
        call.up.received(call.now(), rx, Status::Ok);
        self.note_fragment(fragment, false, call);
        Disposition::Done
    }

    /// Whether the address that a stream was opened from has all the room for messages that arrive that one
    /// may have: as much as is left for others.
    fn has_its_share(&self, stream: u32, whole: bool) -> bool {
        let (slots_used, maps_used) = (self.arrivals.used_count(), self.maps.used_count());
        let slots_free = self.arrivals.capacity() - slots_used;
        let maps_free = self.maps.capacity() - maps_used;
        if slots_used < slots_free && (whole || maps_used < maps_free) {
            return false;
        }
        let address = &self.streams[stream].opened_at;
        let its = self.streams.used().map(|(_, stream)| stream).filter(|its| its.opened_at == *address);
        let (arriving, partial) = its.fold((0, 0), |(arriving, partial), stream| {
            (arriving + stream.arriving_count, partial + stream.partial_count)
        });
        arriving >= slots_free || (!whole && partial >= maps_free)
    }

    /// Gives a message the slot that was promised to it.
    fn remember(
        &mut self,
        fragment: &Fragment<'_>,
        phase: ArrivalStage,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) {
        let stream = fragment.stream;
        let new = Arriving::new(call.now(), stream, fragment.id, fragment.total);
        let Some(slot) = self.arrivals.insert(new) else { unreachable!("a slot was free") };
        self.arrivals[slot].begin(call.now(), phase);
        if let Some(header) = fragment.lnet {
            self.arrivals[slot].is_of(header);
        }
        self.streams[stream].arriving.push_back(&mut self.arrivals, slot);
        self.streams[stream].arriving_count += 1;
        call.sessions.local.schedule_sweep();
    }

    /// A part of a message that has a slot.
    fn known_fragment(
        &mut self,
        slot: u32,
        fragment: &Fragment<'_>,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) -> Result<Disposition, XferDrop> {
        let arriving = &self.arrivals[slot];
        if arriving.total_bytes != fragment.total {
            return Err(XferDrop::Malformed);
        }
        match arriving.phase {
            ArrivalStage::Receiving(span) => self.write_fragment(slot, span, fragment, call),
            ArrivalStage::Delayed => self.delayed_fragment(slot, fragment, call),
            // Its sender is about to withdraw it.
            ArrivalStage::Deferred | ArrivalStage::Pulled(_) | ArrivalStage::Dismissed => {
                self.bundle_spoiled = true;
                Err(XferDrop::Duplicate)
            }
        }
    }

    /// A part of a delayed message is kept, or the message is deferred.
    fn delayed_fragment(
        &mut self,
        slot: u32,
        fragment: &Fragment<'_>,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) -> Result<Disposition, XferDrop> {
        if fragment.number.is_some()
            && let Some(buffer) = self.buffer_frame((fragment.stream, fragment.id, true), call)
        {
            return Ok(Disposition::Buffer(buffer));
        }
        self.bundle_spoiled = true;
        self.defer(slot, call);
        self.buffer.forget(fragment.stream, fragment.id);
        Ok(Disposition::Done)
    }

    /// The first part of a message that was pulled, under its new id.
    fn pulled_fragment(
        &mut self,
        ticket: u32,
        fragment: &Fragment<'_>,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) -> Result<Disposition, XferDrop> {
        let stream = fragment.stream;
        let holder = self.ticket_holder(stream, ticket);
        let pulled = holder.and_then(|slot| match self.arrivals[slot].phase {
            ArrivalStage::Pulled(span) if self.arrivals[slot].total_bytes == fragment.total => {
                Some((slot, span))
            }
            _ => None,
        });
        let Some((slot, span)) = pulled else {
            // What was to take it is gone.
            if fragment.offset == 0 {
                self.tell(stream, Kind::Lost, fragment.id, ticket, call);
            }
            return Err(XferDrop::UnknownTicket);
        };
        self.arrivals.change_key(slot, |arriving| arriving.id = fragment.id);
        self.arrivals[slot].phase = ArrivalStage::Receiving(span);
        self.buffer.replay(stream, fragment.id);
        self.write_fragment(slot, span, fragment, call)
    }

    /// A part of a message that is being received.
    fn write_fragment(
        &mut self,
        slot: u32,
        span: Span,
        fragment: &Fragment<'_>,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) -> Result<Disposition, XferDrop> {
        let &Fragment { offset, length, total, .. } = fragment;
        if length != total && self.arrivals[slot].map == NONE {
            self.arrivals[slot].map = self.maps.take().ok_or(XferDrop::IncomingFull)?;
            self.streams[fragment.stream].partial_count += 1;
        }
        let map = self.arrivals[slot].map;
        self.arrivals[slot].touched_at = call.now();
        if map != NONE && self.maps.new_bytes(map, offset, length) == 0 {
            self.note_fragment(fragment, true, call);
            return Err(XferDrop::Duplicate);
        }
        let room = span.length_bytes.saturating_sub(offset).min(length);
        if room == 0 {
            self.take_fragment(RxId(slot), offset, length, call);
            self.note_fragment(fragment, false, call);
            return Ok(Disposition::Done);
        }
        let what = Written::Fragment { offset, length };
        let span = Span { offset_bytes: span.offset_bytes + u64::from(offset), length_bytes: room, ..span };
        self.writing =
            Some(Writing { stream: fragment.stream, rx: RxId(slot), number: fragment.number, what, span });
        Ok(Disposition::Write)
    }

    /// A part of a message is in place; the last one ends it.
    pub(crate) fn take_fragment(
        &mut self,
        rx: RxId,
        offset: u32,
        length: u32,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) {
        let arriving = &self.arrivals[rx.0];
        let (stream, id, map) = (arriving.stream, arriving.id, arriving.map);
        let missing = if map == NONE {
            0
        } else {
            let fresh = self.maps.new_bytes(map, offset, length);
            self.maps.mark(map, offset, length);
            arriving.missing_bytes - fresh
        };
        self.arrivals[rx.0].missing_bytes = missing;
        if missing != 0 {
            if let ArrivalStage::Receiving(span) = self.arrivals[rx.0].phase
                && span.is_routed()
            {
                self.tell_arrived(rx, offset, call);
            }
        } else {
            self.windows[stream].mark(id);
            self.remove_arriving(rx.0);
            // The sender waits for nothing else.
            self.hurry_ack(stream);
            call.up.received(call.now(), rx, Status::Ok);
        }
    }

    /// Tells the shard how much of a message that goes on is in place from its beginning, if a part at this
    /// offset has made that more.
    fn tell_arrived(&mut self, rx: RxId, offset: u32, call: &mut ReceiveContext<'_, impl Uplink>) {
        let Arriving { map, first_bytes, .. } = self.arrivals[rx.0];
        if offset <= first_bytes {
            let first_bytes = self.maps.first_bytes(map, first_bytes);
            self.arrivals[rx.0].first_bytes = first_bytes;
            call.up.arrived(call.now(), rx, first_bytes);
        }
    }

    /// Forgets a message that arrives, and nothing else.
    pub(crate) fn remove_arriving(&mut self, slot: u32) {
        let stream = self.arrivals[slot].stream;
        self.streams[stream].arriving.remove(&mut self.arrivals, slot);
        let arriving = self.arrivals.remove(slot);
        self.streams[stream].arriving_count -= 1;
        self.streams[stream].partial_count -= u32::from(arriving.map != NONE);
        self.maps.give_back(arriving.map);
    }

    /// Gives up a message that arrives.
    pub(crate) fn abandon(&mut self, slot: u32, cause: Cause, call: &mut ReceiveContext<'_, impl Uplink>) {
        let Arriving { stream, id, phase, .. } = self.arrivals[slot];
        self.windows[stream].mark(id);
        self.buffer.forget(stream, id);
        self.remove_arriving(slot);
        // The shard has done with one that was dismissed.
        if phase != ArrivalStage::Dismissed {
            call.up.received(call.now(), RxId(slot), Status::Unknown(cause));
        }
    }
}
