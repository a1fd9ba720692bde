//! What is reported of operations when they end (LNet `lib-msg.c: lnet_build_msg_event`).

use lnet_wire::{Body, Header, MessageType, Nid, ProcessId};

use super::Shard;
use crate::event::{Event, EventKind};
use crate::lnd::{Span, Status};
use crate::message::Purpose;

/// The message that an operation is: what its event is made of when it ends.
#[derive(Clone, Copy)]
pub(super) enum Ended<'a> {
    /// A request of this descriptor's.
    Sent(u32, &'a Header),
    /// One that arrived, and the part of the descriptor that it was for.
    Arrived(&'a Header, &'a Span),
}

impl<'a> Ended<'a> {
    /// What ends with a message on its way out, if anything does.
    #[inline]
    pub(super) const fn of(purpose: &'a Purpose, header: &'a Header) -> Option<Self> {
        match purpose {
            Purpose::Request { md } => Some(Self::Sent(*md, header)),
            Purpose::Reply { get, span } => Some(Self::Arrived(get, span)),
            Purpose::Ack => None,
        }
    }

    /// The descriptor.
    #[inline]
    pub(super) const fn md(&self) -> u32 {
        match self {
            Self::Sent(md, _) => *md,
            Self::Arrived(_, span) => span.md.slot(),
        }
    }

    /// The kind of its event.
    #[inline]
    pub(super) fn kind(&self) -> EventKind {
        let Self::Arrived(header, _) = self else { return EventKind::Send };
        match header.message_type() {
            MessageType::Put => EventKind::Put,
            MessageType::Get => EventKind::Get,
            MessageType::Ack => EventKind::Ack,
            MessageType::Reply => EventKind::Reply,
            MessageType::Hello => unreachable!("a HELLO is no operation"),
        }
    }
}

impl Shard {
    /// The event of an operation that went well.
    #[inline]
    pub(super) fn event_at_end(&self, ended: Ended<'_>) -> Event {
        let (Ended::Sent(_, header) | Ended::Arrived(header, _)) = ended;
        let event = Event {
            message_type: Some(header.message_type()),
            target: header.destination,
            ..self.bare_event(ended.md(), ended.kind())
        };
        let payload_bytes = header.payload_length;
        match ended {
            Ended::Sent(..) => {
                let own = ProcessId { pid: self.pid, ..ProcessId::ANY };
                let event = Event { initiator: own, source: own, ..event };
                match header.body {
                    Body::Put { portal, match_bits, hdr_data, offset, .. } => Event {
                        portal,
                        match_bits,
                        hdr_data,
                        requested_bytes: payload_bytes,
                        manipulated_bytes: payload_bytes,
                        offset_bytes: offset.into(),
                        ..event
                    },
                    Body::Get { portal, match_bits, offset, .. } => {
                        Event { portal, match_bits, offset_bytes: offset.into(), ..event }
                    }
                    _ => unreachable!("a request is a PUT or a GET"),
                }
            }
            Ended::Arrived(_, span) => {
                let event = Event {
                    initiator: header.source,
                    source: header.source,
                    sender: header.source.nid,
                    manipulated_bytes: span.length_bytes,
                    offset_bytes: span.offset_bytes,
                    ..event
                };
                match header.body {
                    Body::Put { portal, match_bits, hdr_data, .. } => {
                        Event { portal, match_bits, hdr_data, requested_bytes: payload_bytes, ..event }
                    }
                    Body::Get { portal, match_bits, .. } => Event { portal, match_bits, ..event },
                    Body::Ack { match_bits, manipulated_length, .. } => {
                        Event { match_bits, manipulated_bytes: manipulated_length, ..event }
                    }
                    Body::Reply { .. } => Event { requested_bytes: payload_bytes, ..event },
                    Body::Hello { .. } => unreachable!("a HELLO is no operation"),
                }
            }
        }
    }

    /// An event of a descriptor that says nothing but its kind.
    #[inline]
    pub(super) fn bare_event(&self, slot: u32, kind: EventKind) -> Event {
        let md = &self.mds[slot];
        Event {
            kind,
            status: Status::Ok,
            unlinked: false,
            md: self.md_handle(slot),
            user_ptr: md.user_ptr,
            options: md.options,
            message_type: None,
            target: ProcessId::ANY,
            initiator: ProcessId::ANY,
            source: ProcessId::ANY,
            sender: Nid::ANY,
            portal: 0,
            match_bits: 0,
            hdr_data: 0,
            requested_bytes: 0,
            manipulated_bytes: 0,
            offset_bytes: 0,
        }
    }
}
