//! The receiving side: frames become messages.

use lnet_wire::Header;
use lnet_wire::frame::Kind;

use super::acknowledge::Unread;
use super::flow::Busy;
use super::inflow::{Inflow, OfInflow, Phase};
use super::parts::Part;
use super::peer::Session;
use super::state::Xfer;
use super::stats::XferDrop;
use super::{Action, Arrived};
use crate::list::{List, NONE};
use crate::lnd::{Cause, RxId, Span, Status, Uplink};
use crate::slab::Slab;
use crate::time::Instant;

/// What [`Xfer::written`] concludes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writing {
    pub(super) inflow: u32,
    pub(super) rx: RxId,
    /// Number of the frame; none while a bundle goes on.
    pub(super) number: Option<u32>,
    pub(super) what: Written,
    /// Where it is written.
    pub(super) span: Span,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Written {
    /// A message that came in one piece and has no record.
    Whole { id: u64 },
    /// A part of a message that has one.
    Fragment { offset: u32, length: u32 },
}

impl Xfer {
    /// Takes in a frame, which is this shard's. What it brings to an end goes to `up`.
    ///
    /// # Panics
    /// If [`Action::Write`] was returned and [`Xfer::written`] has not been called since.
    pub fn receive(&mut self, now: Instant, frame: &Arrived<'_>, up: &mut impl Uplink) -> Action {
        assert!(self.writing.is_none(), "the driver has not said that it has written");
        self.catch_up(up);
        let outcome = match frame.header.kind {
            Kind::Hello => self.hello(now, frame),
            Kind::Welcome => self.welcome(now, frame, up),
            Kind::Reset => self.reset(now, frame, up),
            Kind::Ack => self.lone_ack(now, frame, up),
            Kind::Data | Kind::Parked | Kind::Pull | Kind::Discard | Kind::Ping | Kind::Gone | Kind::Lost => {
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
            from: &frame.from,
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

    pub(super) fn sender(&self, frame: &Arrived<'_>) -> Option<u32> {
        self.peers.find(frame.transfer.incarnation)
    }

    /// Where the driver is to copy the payload to, and how much of it, after [`Action::Write`].
    ///
    /// # Panics
    /// If it is not to.
    #[inline]
    #[must_use]
    pub fn destination(&self) -> &Span {
        let Some(Writing { span, .. }) = &self.writing else { panic!("nothing is to be written") };
        span
    }

    /// The driver has copied what [`Action::Write`] told it to copy.
    ///
    /// # Panics
    /// If there was none.
    pub fn written(&mut self, now: Instant, up: &mut impl Uplink) {
        let Some(Writing { inflow, rx, number, what, .. }) = self.writing else {
            panic!("nothing was to be written")
        };
        self.writing = None;
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
        if let Some(ack) = transfer.ack {
            self.unread = Some(Unread { at: now, peer, shard: transfer.shard, ack });
        }
        if self.inflows[inflow].frames.is_some_and(|frames| frames.contains(transfer.number)) {
            self.ack_soon(now, inflow, true);
            return Err(XferDrop::Duplicate);
        }
        let id = frame.header.key.message_id;
        if frame.header.kind != Kind::Data {
            if self.inflows[inflow].frames.is_some_and(|frames| frames.has_forgotten(transfer.number)) {
                // It may have been here, and no window remembers words.
                return Err(XferDrop::Duplicate);
            }
            let ticket = transfer.ticket.ok_or(XferDrop::Malformed)?;
            self.noticed(now, inflow, frame.header.kind, id, ticket, up);
            self.note_frame(now, inflow, transfer.number, transfer.ack_now);
            return Ok(Action::Done);
        }
        self.move_window(now, inflow, id, transfer.oldest, transfer.shard, up)?;
        let part = Part {
            ni: frame.ni,
            from: &frame.from,
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

    fn lone_ack(
        &mut self,
        now: Instant,
        frame: &Arrived<'_>,
        up: &mut impl Uplink,
    ) -> Result<Action, XferDrop> {
        let peer = self.sender(frame).ok_or(XferDrop::BadAck)?;
        let ours = self.has_given(peer, frame);
        let ack = frame.transfer.ack.as_ref().filter(|_| ours).ok_or(XferDrop::BadAck)?;
        // Where it has not answered a question others may speak in its name.
        let contact = self.contacts.find(frame.ni, &frame.from);
        if contact.is_some_and(|contact| self.contacts.slab[contact].peer == peer) {
            self.peers.slab[peer].heard(now, (frame.ni, frame.from));
        }
        self.acknowledged(now, peer, frame.transfer.shard, ack, up);
        Ok(Action::Done)
    }

    /// Whether the session that a frame names is one that a peer has given: as a rule where the frame comes from.
    fn has_given(&self, peer: u32, frame: &Arrived<'_>) -> bool {
        let token = frame.transfer.session;
        let gave = |contact: u32| {
            let contact = &self.contacts.slab[contact];
            let is_its = |session: Session| session.token == token || session.former_token == Some(token);
            contact.peer == peer && contact.session.is_some_and(is_its)
        };
        self.contacts.find(frame.ni, &frame.from).is_some_and(gave) || self.contacts.of_peer(peer).any(gave)
    }

    pub(super) fn next_busy(inflows: &Slab<Inflow>, slot: u32) -> u32 {
        List::<Busy>::next(inflows, slot)
    }
}
