//! ACK and REPLY at the initiator (LNet `lib-move.c: lnet_parse_ack`, `lnet_parse_reply`).

use lnet_wire::{Header, Nid, WireHandle};

use super::target::{Inbound, NotTaken};
use super::{MdPart, Shard};
use crate::handle::{Cookie, MdHandle};
use crate::lnd::Span;
use crate::md::{Ending, MdOptions, MemoryDesc};
use crate::stats::{DelayReason, DropReason};
use crate::topology::PeerView;

impl Shard {
    pub(super) fn admit_ack(&mut self, header: &Header, handle: &WireHandle) -> Result<Inbound, NotTaken> {
        let (md, part) = self.respondent(header, handle)?;
        if part.is_some() {
            return Err(DropReason::UnknownMd.into());
        }
        if !self.has_event_slot(&self.mds[md]) {
            return Err(NotTaken::Busy { md, reason: DelayReason::EventSlots });
        }
        Ok(self.take_response(md, MdPart::default()))
    }

    pub(super) fn admit_reply(
        &mut self,
        header: &Header,
        handle: &WireHandle,
        lends: bool,
    ) -> Result<Inbound, NotTaken> {
        let (md, part) = self.respondent(header, handle)?;
        let descriptor = &self.mds[md];
        // A bound descriptor is no longer than a message.
        let whole = MdPart { offset_bytes: 0, length_bytes: descriptor.length_bytes as u32 };
        let MdPart { offset_bytes, length_bytes: room_bytes } = part.unwrap_or(whole);
        if header.payload_length > room_bytes && !descriptor.options.contains(MdOptions::TRUNCATE) {
            return Err(DropReason::ReplyTooLong.into());
        }
        let length_bytes = header.payload_length.min(room_bytes);
        // PUTs read the bytes that it writes. GETs alone have done so when its own operation is counted out.
        let is_alone = lends || descriptor.options.contains(MdOptions::SOURCE);
        self.may_start(md, is_alone)?;
        let inbound = self.take_response(md, MdPart { offset_bytes, length_bytes });
        if part.is_some() {
            self.parts.end(Cookie(handle.object_cookie).slot());
        }
        let withheld = &mut self.mds[md].withheld;
        if is_alone {
            withheld.fill_alone();
        } else {
            withheld.fill();
        }
        Ok(inbound)
    }

    /// The descriptor that an ACK or REPLY names, if it takes one more operation, and the part that a REPLY
    /// does.
    fn respondent(&self, header: &Header, handle: &WireHandle) -> Result<(u32, Option<MdPart>), DropReason> {
        let cookie = Cookie(handle.object_cookie);
        let (slot, part) = match self.awaited_part(cookie) {
            Some((slot, part)) if self.mds[slot].ending != Ending::Aborted => (slot, Some(part)),
            _ => (self.md_slot(MdHandle(cookie)).ok_or(DropReason::UnknownMd)?, None),
        };
        let md = &self.mds[slot];
        if !self.seals.is_for(handle, &header.source.nid) && !self.was_given(handle, &header.source.nid, md) {
            Err(DropReason::UnknownMd)
        } else if !md.is_bound() {
            Err(DropReason::MdAttached)
        } else if md.is_used_up() {
            Err(DropReason::MdExhausted)
        } else {
            Ok((slot, part))
        }
    }

    /// Whether a sender that was not asked was given its handle: at another NID of its peer, or at the NID
    /// that was asked last, whose peer may have NIDs that this node does not know yet. LNet looks for the
    /// descriptor alone (`lib-move.c: lnet_parse_reply`), so that a node that guesses a handle answers in
    /// another one's stead.
    #[cold]
    fn was_given(&self, handle: &WireHandle, nid: &Nid, md: &MemoryDesc) -> bool {
        let mut aliases = self.topology.peer_with_aliases(nid).into_iter().flat_map(PeerView::found_by);
        aliases.any(|asked| self.seals.is_for(handle, asked))
            || self.trackers.asked_last(md.tracker).is_some_and(|asked| self.seals.is_for(handle, asked))
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
