//! ACK and REPLY at the initiator (LNet `lib-move.c: lnet_parse_ack`, `lnet_parse_reply`).

use lnet_wire::{Header, Nid, WireHandle};

use super::target::{Inbound, Refusal};
use super::{MdPart, Shard};
use crate::handle::{Cookie, MdHandle};
use crate::lnd::{Cause, Span, Status};
use crate::md::{MdOptions, Withheld};
use crate::stats::{DelayReason, DropReason};

impl Shard {
    pub(super) fn admit_ack(&mut self, handle: &WireHandle) -> Result<Inbound, Refusal> {
        let md = self.respondent(handle)?;
        if !self.mds[md].has_event_slot() {
            return Err(Refusal::Busy { md, reason: DelayReason::EventSlots });
        }
        Ok(self.take_response(md, MdPart::default()))
    }

    pub(super) fn admit_reply(
        &mut self,
        header: &Header,
        handle: &WireHandle,
        lends: bool,
    ) -> Result<Inbound, Refusal> {
        let md = self.respondent(handle)?;
        let descriptor = &self.mds[md];
        // A bound descriptor is no longer than a message.
        let whole = MdPart { offset_bytes: 0, length_bytes: descriptor.length_bytes as u32 };
        let MdPart { offset_bytes, length_bytes: room_bytes } = self.part_filled(md).unwrap_or(whole);
        if header.payload_length > room_bytes && !descriptor.options.contains(MdOptions::TRUNCATE) {
            return Err(DropReason::ReplyTooLong.into());
        }
        let length_bytes = header.payload_length.min(room_bytes);
        // PUTs read the bytes that it writes. GETs alone have done so when its own operation is counted out.
        let is_source = descriptor.options.contains(MdOptions::SOURCE);
        self.may_start(md, lends || is_source)?;
        let inbound = self.take_response(md, MdPart { offset_bytes, length_bytes });
        self.mds[md].withheld = Withheld::Filled;
        Ok(inbound)
    }

    /// The descriptor that an ACK or REPLY names, if it takes one more operation.
    fn respondent(&self, handle: &WireHandle) -> Result<u32, DropReason> {
        if handle.interface_cookie != self.interface_cookie {
            return Err(DropReason::UnknownMd);
        }
        let slot = self.md_slot(MdHandle(Cookie(handle.object_cookie))).ok_or(DropReason::UnknownMd)?;
        let md = &self.mds[slot];
        if !md.is_bound() {
            Err(DropReason::MdAttached)
        } else if md.is_used_up() {
            Err(DropReason::MdExhausted)
        } else {
            Ok(slot)
        }
    }

    /// A peer NI has begun a new life, which answers nothing that the former one was asked: what awaits such
    /// responses is unlinked, as when they do not come in time. Spared are requests that an LND has, which go
    /// to the new life or end by themselves; responses that arrive; descriptors that await responses of other
    /// peers too; and those without a threshold, which outlive a lost response.
    #[cold]
    pub(super) fn lose_responses(&mut self, peer: &Nid) {
        let mut next = self.trackers.first();
        while let Some(tracker) = self.trackers.step(&mut next) {
            let Some((slot, awaited)) = self.trackers.awaited_from(tracker, peer) else { continue };
            let md = &self.mds[slot];
            if awaited > md.operations && !md.is_infinite() {
                self.unlink_slot(slot, Status::Unknown(Cause::Reset));
            }
        }
    }

    fn take_response(&mut self, md: u32, part: MdPart) -> Inbound {
        let MdPart { offset_bytes, length_bytes } = part;
        let buffer = self.md_handle(md).into();
        let span = Span { buffer, offset_bytes: offset_bytes.into(), length_bytes };
        self.start(md);
        let md = &mut self.mds[md];
        md.responses = md.responses.saturating_sub(1);
        Inbound::new(span, None)
    }
}
