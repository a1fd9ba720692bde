//! What is reported of operations when they end (LNet `lib-msg.c: lnet_build_msg_event`).

use lnet_wire::{Body, Header, ProcessId, WireHandle};

use super::Shard;
use crate::event::{Event, EventMd, Origin};
use crate::lnd::{Span, Status};
use crate::md::MdOptions;
use crate::message::Purpose;
use crate::track::Response;

/// The message that an operation is: what its event is made of when it ends.
#[derive(Clone, Copy)]
pub(super) enum EndedOperation<'a> {
    /// A request of this descriptor's.
    Sent(u32, &'a Header),
    /// A message that arrived, and the part of the descriptor that it was for.
    Arrived(&'a Header, &'a Span),
}

impl<'a> EndedOperation<'a> {
    /// What ends with a message on its way out, if anything does.
    #[inline]
    pub(super) const fn of(purpose: &'a Purpose, header: &'a Header) -> Option<Self> {
        match purpose {
            Purpose::Request { md } => Some(Self::Sent(*md, header)),
            Purpose::Reply { get, span } => Some(Self::Arrived(get, span)),
            Purpose::Ack { .. } | Purpose::Forward { .. } => None,
        }
    }

    /// The descriptor.
    #[inline]
    pub(super) const fn md(&self) -> u32 {
        match self {
            Self::Sent(md, _) => *md,
            Self::Arrived(_, span) => span.buffer.slot(),
        }
    }

    /// Whether it is a request that was never sent, so that the response which it awaited will not come.
    #[inline]
    pub(super) fn is_unanswered(&self, status: Status) -> bool {
        let Self::Sent(_, header) = self else { return false };
        let is_answered = match header.body {
            Body::Put { ack_md, .. } => ack_md != WireHandle::NONE,
            _ => true,
        };
        is_answered && matches!(status, Status::NeverSent(_))
    }

    /// What it answers a request with, if it is a response.
    #[inline]
    pub(super) const fn response(&self) -> Option<Response> {
        match self {
            Self::Arrived(Header { body: Body::Ack { .. }, .. }, _) => Some(Response::Ack),
            Self::Arrived(Header { body: Body::Reply { .. }, .. }, _) => Some(Response::Reply),
            Self::Sent(..) | Self::Arrived(..) => None,
        }
    }
}

impl Shard {
    /// The event of an operation that has ended.
    #[inline]
    pub(super) fn event_at_end(&self, ended: EndedOperation<'_>, status: Status, unlinked: bool) -> Event {
        let md = self.event_md(ended.md(), status, unlinked);
        match ended {
            EndedOperation::Sent(_, header) => sent(md, header),
            EndedOperation::Arrived(header, span) => {
                let source = &header.source;
                let initiator = ProcessId { nid: self.topology.primary_of(&source.nid), ..*source };
                arrived(md, header, initiator, span)
            }
        }
    }

    /// What an event says of a descriptor.
    #[inline]
    pub(super) fn event_md(&self, slot: u32, status: Status, unlinked: bool) -> EventMd {
        let md = &self.mds[slot];
        let (user_ptr, options) = (md.user_ptr, md.options.without(MdOptions::INTERNAL));
        EventMd { handle: self.md_handle(slot), user_ptr, options, status, unlinked }
    }
}

/// The event of a request that was sent.
#[inline]
fn sent(md: EventMd, header: &Header) -> Event {
    let (message_type, target) = (header.message_type(), header.destination);
    let (portal, match_bits, hdr_data, length_bytes, offset_bytes) = match header.body {
        Body::Put { portal, match_bits, hdr_data, offset, .. } => {
            (portal, match_bits, hdr_data, header.payload_length, offset)
        }
        Body::Get { portal, match_bits, offset, sink_length, .. } => {
            (portal, match_bits, 0, sink_length, offset)
        }
        _ => unreachable!("a request is a PUT or a GET"),
    };
    Event::Send { md, message_type, target, portal, match_bits, hdr_data, length_bytes, offset_bytes }
}

/// The event of a message that arrived.
#[inline]
fn arrived(md: EventMd, header: &Header, initiator: ProcessId, span: &Span) -> Event {
    let Header { destination: target, source, payload_length: requested_bytes, body } = *header;
    let origin = Origin { target, initiator, source: source.nid, sender: source.nid };
    let Span { offset_bytes, length_bytes: manipulated_bytes, .. } = *span;
    match body {
        Body::Put { portal, match_bits, hdr_data, .. } => Event::Put {
            md,
            origin,
            portal,
            match_bits,
            hdr_data,
            requested_bytes,
            manipulated_bytes,
            offset_bytes,
        },
        Body::Get { portal, match_bits, .. } => {
            Event::Get { md, origin, portal, match_bits, manipulated_bytes, offset_bytes }
        }
        Body::Reply { .. } => Event::Reply { md, origin, requested_bytes, manipulated_bytes, offset_bytes },
        Body::Ack { match_bits, manipulated_length, .. } => {
            Event::Ack { md, origin, match_bits, manipulated_bytes: manipulated_length }
        }
        Body::Hello { .. } => unreachable!("a HELLO is no operation"),
    }
}
