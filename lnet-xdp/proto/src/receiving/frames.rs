//! Numbered frames of a stream: data and control frames.

use core::time::Duration;

use lnet_core::collections::List;
use lnet_core::lnd::{Cause, Uplink};
use lnet_wire::frame::Kind;
use lnet_wire::{Body, Header, WireHandle};

use super::arrivals::{ArrivalStage, OfStream};
use super::{Fragment, ReceiveContext, ReceivingSide};
use crate::contract::{Arrived, Control, Disposition};
use crate::sessions::Sessions;
use crate::stats::XferDrop;

impl ReceivingSide {
    /// Takes in a numbered frame of a stream.
    #[inline(always)]
    pub(crate) fn numbered(
        &mut self,
        stream: u32,
        frame: &Arrived<'_>,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) -> Result<Disposition, XferDrop> {
        let transfer = &frame.transfer;
        if self.streams[stream].frames.is_some_and(|frames| frames.contains(transfer.number)) {
            self.ack_within(stream, Duration::ZERO, call.sessions);
            return Err(XferDrop::Duplicate);
        }
        let id = frame.header.key.message_id;
        if frame.header.kind != Kind::Data {
            if self.streams[stream].frames.is_some_and(|frames| frames.has_forgotten(transfer.number)) {
                // The frame may have been here, and no window remembers control frames.
                return Err(XferDrop::Duplicate);
            }
            let ticket = transfer.ticket.ok_or(XferDrop::Malformed)?;
            if transfer.ack_now {
                self.streams[stream].doubt.add(call.now());
            }
            self.controlled(stream, Control { kind: frame.header.kind, id, ticket }, call);
            self.note_frame(stream, transfer.number, (transfer.ack_now, true), call.sessions);
            return Ok(Disposition::Done);
        }
        self.move_window(stream, id, transfer.oldest, transfer.shard, call)?;
        self.streams[stream].is_awaited = transfer.oldest == 0 && frame.lnet.is_some_and(asks_for_no_ack);
        let fragment = Fragment {
            stream,
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
            self.hurry_ack(stream);
        }
        #[cfg(feature = "sabotage")]
        if call.sessions.local.sabotage.early_ack {
            self.note_frame(stream, transfer.number, (false, true), call.sessions);
        }
        if frame.header.bundled {
            self.bundle_spoiled = false;
            return Ok(self.take(&fragment, call).unwrap_or_else(|reason| match reason {
                // The others may be new.
                XferDrop::Duplicate => {
                    call.sessions.local.counters.count_drop(reason);
                    Disposition::Done
                }
                reason => self.dropped_in_bundle(reason, call),
            }));
        }
        self.take(&fragment, call)
    }

    /// Takes in a further message of a frame.
    pub(crate) fn take_record(
        &mut self,
        (frame, id_delta): (&Arrived<'_>, u16),
        lnet: &Header,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) -> Disposition {
        let Some(stream) = self.stream_of(frame, call.sessions) else {
            return self.dropped_in_bundle(XferDrop::UnknownSession, call);
        };
        let fragment = Fragment {
            stream,
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
        self.take(&fragment, call).unwrap_or_else(|reason| self.dropped_in_bundle(reason, call))
    }

    /// A frame with several messages is dealt with.
    pub(crate) fn end_bundle(&mut self, frame: &Arrived<'_>, sessions: &mut Sessions) {
        let is_spoiled = core::mem::take(&mut self.bundle_spoiled);
        if let Some(stream) = self.stream_of(frame, sessions).filter(|_| !is_spoiled) {
            let transfer = frame.transfer;
            self.note_frame(stream, transfer.number, (transfer.ack_now, true), sessions);
        }
    }

    /// A message of a bundle that was not here before and is not taken spoils the whole frame: it is not
    /// acknowledged, and those that were taken are recognised when they come again.
    fn dropped_in_bundle(
        &mut self,
        reason: XferDrop,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) -> Disposition {
        call.sessions.local.counters.count_drop(reason);
        self.bundle_spoiled |= reason != XferDrop::Duplicate;
        Disposition::Drop(reason)
    }

    /// Moves a stream's window to where its sender says it is. What it leaves behind is abandoned.
    #[inline]
    fn move_window(
        &mut self,
        slot: u32,
        id: u64,
        oldest: u16,
        shard: u8,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) -> Result<(), XferDrop> {
        let base = id.checked_sub(u64::from(oldest)).ok_or(XferDrop::Malformed)?;
        if id >> 56 != u64::from(shard) || base >> 56 != u64::from(shard) {
            return Err(XferDrop::Malformed);
        }
        let stream = &mut self.streams[slot];
        if !core::mem::replace(&mut stream.window_begun, true) {
            self.windows[slot].restart(base);
        } else if base > self.windows[slot].base() {
            self.windows[slot].advance(base);
            let mut next = stream.arriving.first();
            while let Some(at) = List::<OfStream>::step(&self.arrivals, &mut next) {
                let arriving = &self.arrivals[at];
                if arriving.id < base
                    && matches!(arriving.phase, ArrivalStage::Receiving(_) | ArrivalStage::Delayed)
                {
                    self.abandon(at, Cause::Timeout, call);
                }
            }
        }
        Ok(())
    }
}

/// Whether nothing of LNet's goes back for a message that has a sender who may wait for its end.
#[inline]
fn asks_for_no_ack(lnet: &Header) -> bool {
    matches!(lnet.body, Body::Put { ack_md: WireHandle::NONE, .. })
}
