//! The receiving side: frames become messages.

use lnet_wire::Header;
use lnet_wire::frame::{FRAGMENT_UNIT_BYTES, Kind};

use super::flow::Busy;
use super::inflow::{AckDue, Inflow, OfInflow, Phase};
use super::outgoing::Reply;
use super::peer::Peer;
use super::record::Cargo;
use super::session::Worth;
use super::state::Xfer;
use super::stats::XferDrop;
use super::window::{FramesSeen, Seen};
use super::{Action, Arrived};
use crate::list::{List, NONE};
use crate::lnd::{Cause, RxId, Span, Status, Uplink, Verdict};
use crate::slab::Slab;
use crate::time::Instant;

/// Frames after which an acknowledgement does not wait any longer.
const ACK_FRAMES: u32 = 16;
/// Frames that are received at most between two acknowledgements, which tell of 65.
const ACK_FRAMES_MAX: u32 = 56;

/// What [`Xfer::written`] concludes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writing {
    inflow: u32,
    rx: RxId,
    /// Number of the frame; none while a bundle goes on.
    number: Option<u32>,
    what: Written,
}

#[derive(Clone, Copy, Debug)]
enum Written {
    /// A message that came in one piece and has no record.
    Whole { id: u64 },
    /// A part of a message that has one.
    Fragment { offset: u32, length: u32 },
}

/// A message, or a part of one, that has arrived.
struct Part<'a> {
    ni: crate::lnd::NiId,
    id: u64,
    offset: u32,
    length: u32,
    total: u32,
    lnet: Option<&'a Header>,
    ticket: Option<u32>,
    /// The frame's number; none in a bundle.
    number: Option<u32>,
}

impl Xfer {
    /// Takes in a frame, which is this shard's. What it brings to an end goes to `up`.
    pub fn receive(&mut self, now: Instant, frame: &Arrived<'_>, up: &mut impl Uplink) -> Action {
        assert!(self.writing.is_none(), "the driver has not said that it has written");
        let outcome = match frame.header.kind {
            Kind::Hello => self.hello(now, frame),
            Kind::Welcome => self.welcome(now, frame, up),
            Kind::Reset => self.reset(now, frame, up),
            Kind::Ack => self.lone_ack(now, frame, up),
            Kind::Data | Kind::Parked | Kind::Pull | Kind::Discard | Kind::Ping | Kind::Gone => {
                self.numbered(now, frame, up)
            }
        };
        outcome.unwrap_or_else(|reason| {
            self.counters.count_drop(reason);
            Action::Drop(reason)
        })
    }

    /// Takes in a further message of a frame whose first one was not dropped; `id_delta` is what its record
    /// says.
    pub fn receive_record(
        &mut self,
        now: Instant,
        frame: &Arrived<'_>,
        id_delta: u16,
        lnet: &Header,
        up: &mut impl Uplink,
    ) -> Action {
        let part = Part {
            ni: frame.ni,
            id: frame.header.key.message_id.wrapping_add(u64::from(id_delta)),
            offset: 0,
            length: lnet.payload_length,
            total: lnet.payload_length,
            lnet: Some(lnet),
            ticket: None,
            number: None,
        };
        let inflow =
            self.sender(frame).map(|peer| self.peers.slab[peer].inflows[usize::from(frame.transfer.shard)]);
        let outcome = match inflow {
            Some(inflow) if inflow != NONE => self.part(now, inflow, &part, up),
            _ => Err(XferDrop::UnknownSession),
        };
        outcome.unwrap_or_else(|reason| self.dropped_in_bundle(reason))
    }

    /// A frame with several messages is dealt with.
    pub fn end_bundle(&mut self, now: Instant, frame: &Arrived<'_>) {
        let spoiled = core::mem::take(&mut self.bundle_spoiled);
        let Some(peer) = self.sender(frame) else { return };
        let inflow = self.peers.slab[peer].inflows[usize::from(frame.transfer.shard)];
        if !spoiled && inflow != NONE {
            self.note_frame(now, inflow, frame.transfer.number, frame.transfer.ack_now);
        }
    }

    /// A message of a bundle that was not here before and is not taken spoils the whole frame: it is not
    /// acknowledged, and those that were taken are recognised when they come again.
    fn dropped_in_bundle(&mut self, reason: XferDrop) -> Action {
        self.counters.count_drop(reason);
        self.bundle_spoiled |= reason != XferDrop::Duplicate;
        Action::Drop(reason)
    }

    fn sender(&self, frame: &Arrived<'_>) -> Option<u32> {
        self.peers.find(frame.transfer.incarnation)
    }

    /// The driver has copied what [`Action::Write`] told it to copy.
    ///
    /// # Panics
    /// If there was none.
    pub fn written(&mut self, now: Instant, up: &mut impl Uplink) {
        let Some(Writing { inflow, rx, number, what }) = self.writing.take() else {
            panic!("nothing was to be written")
        };
        match what {
            Written::Whole { id } => {
                self.inflows[inflow].window.mark(id);
                up.received(now, rx, Status::Ok);
            }
            Written::Fragment { offset, length } => self.take_fragment(now, rx, offset, length, up),
        }
        if let Some(number) = number {
            self.note_frame(now, inflow, number, false);
        }
    }

    fn numbered(
        &mut self,
        now: Instant,
        frame: &Arrived<'_>,
        up: &mut impl Uplink,
    ) -> Result<Action, XferDrop> {
        let transfer = &frame.transfer;
        let inflow = self.admit(now, frame)?;
        let peer = self.inflows[inflow].peer;
        if let Some(ack) = &transfer.ack {
            self.acknowledged(now, peer, transfer.shard, ack, up);
        }
        if self.inflows[inflow].frames.is_some_and(|frames| frames.contains(transfer.number)) {
            self.ack_soon(now, inflow, true);
            return Err(XferDrop::Duplicate);
        }
        let id = frame.header.key.message_id;
        if frame.header.kind != Kind::Data {
            let ticket = transfer.ticket.ok_or(XferDrop::Malformed)?;
            self.noticed(now, inflow, frame.header.kind, id, ticket, up);
            self.note_frame(now, inflow, transfer.number, transfer.ack_now);
            return Ok(Action::Done);
        }
        self.move_window(now, inflow, id, transfer.oldest, transfer.shard, up)?;
        let part = Part {
            ni: frame.ni,
            id,
            offset: frame.header.fragment_offset,
            length: frame.payload_bytes,
            total: frame.header.total_length,
            lnet: frame.lnet,
            ticket: transfer.ticket,
            number: (!frame.header.bundled).then_some(transfer.number),
        };
        if transfer.ack_now {
            self.hurry_ack(inflow);
        }
        #[cfg(feature = "sabotage")]
        if self.sabotage.early_ack {
            self.note_frame(now, inflow, transfer.number, false);
        }
        if frame.header.bundled {
            self.bundle_spoiled = false;
            return Ok(self.part(now, inflow, &part, up).unwrap_or_else(|reason| match reason {
                // The others may be new.
                XferDrop::Duplicate => {
                    self.counters.count_drop(reason);
                    Action::Done
                }
                reason => self.dropped_in_bundle(reason),
            }));
        }
        self.part(now, inflow, &part, up)
    }

    /// The inflow that a frame belongs to; made for whoever shows a fresh token.
    #[inline]
    fn admit(&mut self, now: Instant, frame: &Arrived<'_>) -> Result<u32, XferDrop> {
        let transfer = &frame.transfer;
        let peer = self.sender(frame);
        let known = peer.map_or(NONE, |peer| self.peers.slab[peer].inflows[usize::from(transfer.shard)]);
        let address = (frame.ni, frame.from);
        if known == NONE || self.inflows[known].token != transfer.session {
            let worth = self.tokens.worth(now, transfer.incarnation, transfer.shard, transfer.session);
            let good = worth == Worth::Fresh || (worth == Worth::Aged && known != NONE);
            if !good {
                let (ni, nid) = address;
                self.reply(Reply::Reset { ni, nid, shard: transfer.shard, session: transfer.session });
                return Err(XferDrop::UnknownSession);
            }
            if known != NONE {
                self.inflows[known].token = transfer.session;
            }
        }
        let slot = if known == NONE { self.new_inflow(now, frame)? } else { known };
        let inflow = &mut self.inflows[slot];
        (inflow.address, inflow.seen_at) = (address, now);
        let was_busy = core::mem::replace(&mut inflow.is_busy, true);
        let peer = &mut self.peers.slab[inflow.peer];
        (peer.address, peer.heard_at) = (address, now);
        if self.recent.last() != slot {
            self.recent.remove(&mut self.inflows, slot);
            self.recent.push_back(&mut self.inflows, slot);
        }
        if !was_busy {
            self.busy_inflows.push_back(&mut self.inflows, slot);
            self.busy_inflow_count += 1;
            self.schedule_sweep(now);
        }
        Ok(slot)
    }

    fn new_inflow(&mut self, now: Instant, frame: &Arrived<'_>) -> Result<u32, XferDrop> {
        let transfer = &frame.transfer;
        let address = (frame.ni, frame.from);
        if self.inflows.is_full() {
            return Err(XferDrop::PeersFull);
        }
        let peer = match self.sender(frame) {
            Some(peer) => peer,
            None => self.new_peer(now, transfer.incarnation, address).ok_or(XferDrop::PeersFull)?,
        };
        let inflow = Inflow::new(peer, transfer.shard, transfer.session, address, now);
        let Ok(slot) = self.inflows.insert(inflow) else { unreachable!("there was room") };
        self.peers.slab[peer].inflows[usize::from(transfer.shard)] = slot;
        self.recent.push_back(&mut self.inflows, slot);
        Ok(slot)
    }

    /// Makes a peer; one that is idle makes room.
    pub(super) fn new_peer(
        &mut self,
        now: Instant,
        incarnation: u64,
        address: (crate::lnd::NiId, lnet_wire::Nid),
    ) -> Option<u32> {
        if self.peers.slab.is_full() {
            let oldest = self.peers.oldest_idle()?;
            self.forget_peer(oldest);
        }
        self.peers.insert(now, incarnation, self.id_floor, address)
    }

    /// Forgets a peer that is idle.
    pub(super) fn forget_peer(&mut self, slot: u32) {
        for shard in 0..self.peers.slab[slot].flows.len() {
            let flow = self.peers.slab[slot].flows[shard];
            if flow != NONE {
                self.drop_notices(flow);
                self.free_flow(flow);
            }
        }
        self.contacts.forget_peer(slot);
        let Peer { next_id, .. } = self.peers.remove(slot);
        self.id_floor = self.id_floor.max(next_id);
    }

    /// Forgets what a flow still has to tell about messages.
    pub(super) fn drop_notices(&mut self, flow: u32) {
        for outstanding in [true, false] {
            let lists = &self.flows[flow];
            let mut at = if outstanding { lists.outstanding.first() } else { lists.pending.first() };
            while at != NONE {
                let next = List::next(&self.records, at);
                if matches!(self.records[at].cargo, Cargo::Notice { .. }) {
                    self.withdraw(flow, at, outstanding);
                }
                at = next;
            }
        }
    }

    /// Moves an inflow's window to where its sender says it is. What it leaves behind is abandoned.
    #[inline]
    fn move_window(
        &mut self,
        now: Instant,
        slot: u32,
        id: u64,
        oldest: u16,
        shard: u8,
        up: &mut impl Uplink,
    ) -> Result<(), XferDrop> {
        let base = id.checked_sub(u64::from(oldest)).ok_or(XferDrop::Malformed)?;
        if id >> 56 != u64::from(shard) || base >> 56 != u64::from(shard) {
            return Err(XferDrop::Malformed);
        }
        let inflow = &mut self.inflows[slot];
        if !core::mem::replace(&mut inflow.window_begun, true) {
            inflow.window.restart(base);
        } else if base > inflow.window.base() {
            inflow.window.advance(base);
            let mut at = inflow.arriving.first();
            while at != NONE {
                let next = List::<OfInflow>::next(&self.arrivals.slab, at);
                let arriving = &self.arrivals.slab[at];
                if arriving.id < base && matches!(arriving.phase, Phase::Receiving(_) | Phase::Delayed) {
                    self.abandon(now, at, Cause::Timeout, up);
                }
                at = next;
            }
        }
        Ok(())
    }

    /// Takes in (a part of) a message.
    fn part(
        &mut self,
        now: Instant,
        inflow: u32,
        part: &Part<'_>,
        up: &mut impl Uplink,
    ) -> Result<Action, XferDrop> {
        let ends = part.offset.checked_add(part.length).ok_or(XferDrop::Malformed)?;
        let aligned = part.offset.is_multiple_of(FRAGMENT_UNIT_BYTES)
            && (ends == part.total || part.length.is_multiple_of(FRAGMENT_UNIT_BYTES));
        if !aligned || ends > part.total {
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
        if !whole && self.maps.is_full() {
            return Err(XferDrop::IncomingFull);
        }
        let rx = RxId(slot);
        match up.header(now, part.ni, rx, lnet) {
            Verdict::Deliver(span) if whole => Ok(self.whole(now, inflow, rx, part, span, up)),
            Verdict::Deliver(span) => {
                self.remember(now, inflow, part, Phase::Receiving(span));
                self.fragment(now, inflow, slot, span, part, up)
            }
            Verdict::Delay => {
                self.remember(now, inflow, part, Phase::Delayed);
                self.delayed_part(now, inflow, slot, part)
            }
            Verdict::Drop => {
                self.inflows[inflow].window.mark(part.id);
                self.note_part(now, inflow, part, false);
                Ok(Action::Done)
            }
        }
    }

    /// A message that came in one piece.
    #[inline]
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
            self.writing =
                Some(Writing { inflow, rx, number: part.number, what: Written::Whole { id: part.id } });
            return Action::Write(span);
        }
        self.inflows[inflow].window.mark(part.id);
        up.received(now, rx, Status::Ok);
        self.note_part(now, inflow, part, false);
        Action::Done
    }

    /// Gives a message the slot that was promised to it.
    fn remember(&mut self, now: Instant, inflow: u32, part: &Part<'_>, phase: Phase) {
        let slot = self.arrivals.insert(now, inflow, part.id, part.total);
        let Some(slot) = slot else { unreachable!("a slot was free") };
        self.arrivals.slab[slot].phase = phase;
        self.inflows[inflow].arriving.push_back(&mut self.arrivals.slab, slot);
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
            self.inflows[inflow].window.mark(part.id);
            self.note_part(now, inflow, part, true);
            return Err(XferDrop::UnknownTicket);
        };
        self.arrivals.rename(slot, part.id);
        self.arrivals.slab[slot].phase = Phase::Receiving(span);
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
        self.writing = Some(Writing { inflow, rx: RxId(slot), number: part.number, what });
        Ok(Action::Write(Span {
            offset_bytes: span.offset_bytes + u64::from(offset),
            length_bytes: room,
            ..span
        }))
    }

    /// A part of a message is in place; the last one ends it.
    fn take_fragment(&mut self, now: Instant, rx: RxId, offset: u32, length: u32, up: &mut impl Uplink) {
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

    /// A frame's content is dealt with; `urgent`: its sender seems to have missed that.
    fn note_part(&mut self, now: Instant, inflow: u32, part: &Part<'_>, urgent: bool) {
        if let Some(number) = part.number {
            self.note_frame(now, inflow, number, urgent);
        }
    }

    /// A frame is to be acknowledged.
    #[inline]
    pub(super) fn note_frame(&mut self, now: Instant, slot: u32, number: u32, urgent: bool) {
        let inflow = &mut self.inflows[slot];
        let gap = match &mut inflow.frames {
            Some(frames) => frames.insert(number),
            None => {
                inflow.frames = Some(FramesSeen::starting_with(number));
                false
            }
        };
        inflow.unacknowledged += 1;
        let urgent = urgent || gap || inflow.unacknowledged > ACK_FRAMES;
        if inflow.unacknowledged >= ACK_FRAMES_MAX {
            return self.ack_at_once(slot);
        }
        self.ack_soon(now, slot, urgent);
    }

    /// The next acknowledgement of this inflow is not to wait.
    fn hurry_ack(&mut self, slot: u32) {
        let inflow = &mut self.inflows[slot];
        inflow.unacknowledged = inflow.unacknowledged.max(ACK_FRAMES);
    }

    /// Many frames came in one go: what is to be said of them is noted.
    fn ack_at_once(&mut self, slot: u32) {
        let Some(ack) = self.acknowledgement(slot) else { return };
        let inflow = &self.inflows[slot];
        let ((ni, nid), shard, token) = (inflow.address, inflow.shard, inflow.token);
        self.reply(Reply::Ack { ni, nid, shard, token, ack });
    }

    /// An inflow has something to acknowledge.
    #[inline]
    pub(super) fn ack_soon(&mut self, now: Instant, slot: u32, urgent: bool) {
        let inflow = &mut self.inflows[slot];
        match inflow.ack {
            AckDue::Now => {}
            _ if urgent => {
                inflow.ack = AckDue::Now;
                self.acks.push_back(&mut self.inflows, slot);
            }
            AckDue::No => {
                let at = now + self.times.ack_delay;
                inflow.ack = AckDue::At(at);
                self.set_timer(at);
            }
            AckDue::At(_) => {}
        }
    }

    fn lone_ack(
        &mut self,
        now: Instant,
        frame: &Arrived<'_>,
        up: &mut impl Uplink,
    ) -> Result<Action, XferDrop> {
        let peer = self.sender(frame).ok_or(XferDrop::BadAck)?;
        let session = self.peers.slab[peer].session.as_ref();
        let ours = session.is_some_and(|session| session.token == frame.transfer.session);
        let ack = frame.transfer.ack.as_ref().filter(|_| ours).ok_or(XferDrop::BadAck)?;
        let peer_entry = &mut self.peers.slab[peer];
        (peer_entry.heard_at, peer_entry.address) = (now, (frame.ni, frame.from));
        self.acknowledged(now, peer, frame.transfer.shard, ack, up);
        Ok(Action::Done)
    }

    pub(super) fn next_busy(inflows: &Slab<Inflow>, slot: u32) -> u32 {
        List::<Busy>::next(inflows, slot)
    }
}
