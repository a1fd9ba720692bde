//! Delayed messages: their frames are buffered for a moment, then the header is kept here and the payload by
//! the sender.
//!
//! ```text
//! Delayed --buffered for long enough--> Deferred --resume--> Pulled --first fragment--> Receiving
//!                                          |
//!                                          '--resume, nothing is wanted--> Dismissed, until DISCARD is said
//! ```
//!
//! Frames of a deferred message are not acknowledged: its sender withdraws them when it learns of the
//! deferral.
//!
//! Frames of a delayed message are buffered for 2 ms.

use lnet_core::lnd::{Cause, RxId, Status, Uplink, Verdict};
use lnet_wire::frame::Kind;

use super::arrivals::{ArrivalStage, Arriving};
use super::stream::ReceiveStream;
use super::window::Seen;
use super::{ReceiveContext, ReceivingSide};
use crate::contract::{BufferId, Control, NO_TICKET};
use crate::sending;

impl ReceivingSide {
    /// Has the driver buffer a frame of a message that cannot go on; `None` if it has too many, or as many
    /// for this address as is left for others. Names the stream, the message, and whether that is delayed.
    pub(crate) fn buffer_frame(
        &mut self,
        (stream, id, is_delayed): (u32, u64, bool),
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) -> Option<BufferId> {
        let free = self.buffer.capacity() - self.buffer.count();
        let address = &self.streams[stream].opened_at;
        let is_its = |stream: u32| self.streams[stream].opened_at == *address;
        if self.buffer.count() >= free && self.buffer.count_of(is_its) >= free {
            return None;
        }
        let until = call.now() + call.sessions.local.times.buffered;
        let frame = self.buffer.keep((stream, id, is_delayed), until)?;
        call.sessions.local.counters.frames_buffered += 1;
        call.sessions.local.set_timer(until);
        Some(frame)
    }

    /// Frames that were buffered for long enough are forgotten; delayed messages of theirs are deferred.
    pub(crate) fn end_buffered(&mut self, call: &mut ReceiveContext<'_, impl Uplink>) {
        while let Some((stream, id, until)) = self.buffer.first()
            && until <= call.now()
        {
            self.buffer.forget(stream, id);
            if let Some(slot) = Arriving::find(&self.arrivals, stream, id)
                && self.arrivals[slot].phase == ArrivalStage::Delayed
            {
                self.defer(slot, call);
            }
        }
    }

    /// Has the sender of a delayed message keep it. If that cannot be said now, its frames come again.
    pub(crate) fn defer(&mut self, slot: u32, call: &mut ReceiveContext<'_, impl Uplink>) {
        let arriving = &self.arrivals[slot];
        let (stream, id) = (arriving.stream, arriving.id);
        if self.tell(stream, Kind::Deferred, id, self.ticket(slot), call) {
            self.arrivals[slot].phase = ArrivalStage::Deferred;
            self.windows[stream].mark(id);
            call.sessions.local.counters.messages_deferred += 1;
        }
    }

    /// What the sender is to name a deferred message by.
    fn ticket(&self, slot: u32) -> u32 {
        slot | self.arrivals.generation(slot) << lnet_core::handle::SLOT_BITS
    }

    /// The message of a sender that a ticket names.
    pub(crate) fn ticket_holder(&self, stream: u32, ticket: u32) -> Option<u32> {
        let slot = ticket & ((1 << lnet_core::handle::SLOT_BITS) - 1);
        let arriving = self.arrivals.get(slot)?;
        (arriving.stream == stream && self.ticket(slot) == ticket).then_some(slot)
    }

    /// Tells the sender of a stream something about a message; says whether that is on its way.
    pub(crate) fn tell(
        &self,
        stream: u32,
        kind: Kind,
        id: u64,
        ticket: u32,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) -> bool {
        let ReceiveStream { peer, shard, .. } = self.streams[stream];
        call.sending.tell((peer, shard), Control { kind, id, ticket }, call.sessions)
    }

    /// Takes in what the sender of a message says of it, or its receiver, which the sending side is told.
    pub(crate) fn controlled(
        &mut self,
        stream: u32,
        control: Control,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) {
        let Control { kind, id, ticket } = control;
        let ReceiveStream { peer, shard, .. } = self.streams[stream];
        match kind {
            Kind::Gone if ticket == NO_TICKET => self.withdrawn(stream, id, call),
            Kind::Gone => {
                if let Some(slot) = self.ticket_holder(stream, ticket)
                    && self.arrivals[slot].id == id
                    && !matches!(
                        self.arrivals[slot].phase,
                        ArrivalStage::Delayed | ArrivalStage::Receiving(_)
                    )
                {
                    self.abandon(slot, Cause::Timeout, call);
                }
            }
            Kind::Ping => {
                let is_known = self.ticket_holder(stream, ticket).is_some();
                if !is_known && !call.sending.is_telling((peer, shard), ticket) {
                    self.tell(stream, Kind::Lost, id, ticket, call);
                }
            }
            _ => {
                let mut its = sending::SendContext { sessions: call.sessions, up: call.up };
                call.sending.controlled((peer, shard), control, &mut its);
            }
        }
    }

    /// The rest of a message does not come: its sender had begun before it had all of it. Frames of it that
    /// come later are those of a message that is over.
    fn withdrawn(&mut self, stream: u32, id: u64, call: &mut ReceiveContext<'_, impl Uplink>) {
        match Arriving::find(&self.arrivals, stream, id) {
            Some(slot) if matches!(self.arrivals[slot].phase, ArrivalStage::Receiving(_)) => {
                self.abandon(slot, Cause::Timeout, call);
            }
            Some(_) => {}
            None if matches!(self.windows[stream].look(id), Seen::New) => self.windows[stream].mark(id),
            None => {}
        }
    }

    /// Goes on with a message that the shard has delayed.
    pub(crate) fn resume(&mut self, rx: RxId, verdict: Verdict, call: &mut ReceiveContext<'_, impl Uplink>) {
        let RxId(slot) = rx;
        let arriving = self.arrivals.get(slot).unwrap_or_else(|| panic!("{rx:?} is no message"));
        let (stream, id, total_bytes) = (arriving.stream, arriving.id, arriving.total_bytes);
        match (arriving.phase, verdict) {
            (ArrivalStage::Delayed, Verdict::Deliver(span)) => {
                self.arrivals[slot].begin(call.now(), ArrivalStage::Receiving(span));
                self.buffer.replay(stream, id);
            }
            (ArrivalStage::Delayed, Verdict::Drop) => {
                self.windows[stream].mark(id);
                self.remove_arriving(slot);
                self.buffer.replay(stream, id);
            }
            (ArrivalStage::Deferred, Verdict::Deliver(_)) if total_bytes == 0 => {
                self.dismiss(slot, call);
                call.up.received(call.now(), rx, Status::Ok);
            }
            (ArrivalStage::Deferred, Verdict::Deliver(span)) => {
                self.arrivals[slot].begin(call.now(), ArrivalStage::Pulled(span));
                call.sessions.local.counters.messages_pulled += 1;
                self.pull(slot, call);
            }
            (ArrivalStage::Deferred, Verdict::Drop) => self.dismiss(slot, call),
            (phase, verdict) => panic!("{rx:?} is {phase:?}, and {verdict:?} comes"),
        }
    }

    /// Has the sender of a deferred message send it. What cannot be said now is said later.
    pub(crate) fn pull(&mut self, slot: u32, call: &mut ReceiveContext<'_, impl Uplink>) {
        let (stream, id) = (self.arrivals[slot].stream, self.arrivals[slot].id);
        let said = self.tell(stream, Kind::Pull, id, self.ticket(slot), call);
        self.arrivals[slot].pull_owed = !said;
    }

    /// Lets go of a deferred message, and tells its sender. What cannot be said now is said later.
    pub(crate) fn dismiss(&mut self, slot: u32, call: &mut ReceiveContext<'_, impl Uplink>) {
        let (stream, id) = (self.arrivals[slot].stream, self.arrivals[slot].id);
        if self.tell(stream, Kind::Discard, id, self.ticket(slot), call) {
            self.remove_arriving(slot);
        } else if self.arrivals[slot].phase != ArrivalStage::Dismissed {
            self.arrivals[slot].begin(call.now(), ArrivalStage::Dismissed);
        }
    }
}
