//! The type-specific part of a header: the table in [`super`].

use super::{BODY_BYTES, HeaderError, MessageType, WireHandle};
use crate::bytes::{get, get_u32, get_u64, put, put_u32, put_u64};

/// The handle of ACK, PUT, GET and REPLY.
const HANDLE: usize = 0;
/// Match bits of ACK, PUT and GET.
const MATCH_BITS: usize = 16;
const ACK_MANIPULATED_LENGTH: usize = 24;
const PUT_HDR_DATA: usize = 24;
const PUT_PORTAL: usize = 32;
const PUT_OFFSET: usize = 36;
const GET_PORTAL: usize = 24;
const GET_OFFSET: usize = 28;
const GET_SINK_LENGTH: usize = 32;
const HELLO_INCARNATION: usize = 0;
const HELLO_TYPE: usize = 8;

/// The type-specific part of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    /// Acknowledges a PUT.
    Ack {
        /// The handle of the PUT, verbatim.
        md: WireHandle,
        /// Match bits of the PUT.
        match_bits: u64,
        /// Bytes that the target took.
        manipulated_length: u32,
    },
    /// Carries payload.
    Put {
        /// Where the ACK goes; [`WireHandle::NONE`] when none is wanted.
        ack_md: WireHandle,
        /// Match bits.
        match_bits: u64,
        /// 64 bits of the caller's, delivered with the event.
        hdr_data: u64,
        /// Portal index.
        portal: u32,
        /// Offset for remote-managed descriptors.
        offset: u32,
    },
    /// Asks for payload.
    Get {
        /// Where the REPLY goes.
        return_md: WireHandle,
        /// Match bits.
        match_bits: u64,
        /// Portal index.
        portal: u32,
        /// Offset for remote-managed descriptors.
        offset: u32,
        /// Bytes that the initiator can take.
        sink_length: u32,
    },
    /// Answers a GET.
    Reply {
        /// The handle of the GET, verbatim.
        md: WireHandle,
    },
    /// Handshake of socklnd protocol v1.
    Hello {
        /// Incarnation of the sender.
        incarnation: u64,
        /// Connection type.
        connection_type: u32,
    },
}

impl Body {
    /// The message type that has this part.
    #[inline(always)]
    #[must_use]
    pub const fn message_type(&self) -> MessageType {
        match self {
            Self::Ack { .. } => MessageType::Ack,
            Self::Put { .. } => MessageType::Put,
            Self::Get { .. } => MessageType::Get,
            Self::Reply { .. } => MessageType::Reply,
            Self::Hello { .. } => MessageType::Hello,
        }
    }

    #[inline]
    pub(super) fn to_bytes(self) -> [u8; BODY_BYTES] {
        let mut bytes = [0; BODY_BYTES];
        match self {
            Self::Ack { md, match_bits, manipulated_length } => {
                put::<HANDLE, _, _>(&mut bytes, md.to_bytes());
                put_u64::<MATCH_BITS, _>(&mut bytes, match_bits);
                put_u32::<ACK_MANIPULATED_LENGTH, _>(&mut bytes, manipulated_length);
            }
            Self::Put { ack_md, match_bits, hdr_data, portal, offset } => {
                put::<HANDLE, _, _>(&mut bytes, ack_md.to_bytes());
                put_u64::<MATCH_BITS, _>(&mut bytes, match_bits);
                put_u64::<PUT_HDR_DATA, _>(&mut bytes, hdr_data);
                put_u32::<PUT_PORTAL, _>(&mut bytes, portal);
                put_u32::<PUT_OFFSET, _>(&mut bytes, offset);
            }
            Self::Get { return_md, match_bits, portal, offset, sink_length } => {
                put::<HANDLE, _, _>(&mut bytes, return_md.to_bytes());
                put_u64::<MATCH_BITS, _>(&mut bytes, match_bits);
                put_u32::<GET_PORTAL, _>(&mut bytes, portal);
                put_u32::<GET_OFFSET, _>(&mut bytes, offset);
                put_u32::<GET_SINK_LENGTH, _>(&mut bytes, sink_length);
            }
            Self::Reply { md } => put::<HANDLE, _, _>(&mut bytes, md.to_bytes()),
            Self::Hello { incarnation, connection_type } => {
                put_u64::<HELLO_INCARNATION, _>(&mut bytes, incarnation);
                put_u32::<HELLO_TYPE, _>(&mut bytes, connection_type);
            }
        }
        bytes
    }

    #[inline]
    pub(super) fn from_bytes(message_type: u32, bytes: &[u8; BODY_BYTES]) -> Result<Self, HeaderError> {
        let handle = || WireHandle::from_bytes(&get::<HANDLE, _, _>(bytes));
        let match_bits = || get_u64::<MATCH_BITS, _>(bytes);
        let message_type =
            MessageType::from_wire(message_type).ok_or(HeaderError::MessageType(message_type))?;
        Ok(match message_type {
            MessageType::Ack => Self::Ack {
                md: handle(),
                match_bits: match_bits(),
                manipulated_length: get_u32::<ACK_MANIPULATED_LENGTH, _>(bytes),
            },
            MessageType::Put => Self::Put {
                ack_md: handle(),
                match_bits: match_bits(),
                hdr_data: get_u64::<PUT_HDR_DATA, _>(bytes),
                portal: get_u32::<PUT_PORTAL, _>(bytes),
                offset: get_u32::<PUT_OFFSET, _>(bytes),
            },
            MessageType::Get => Self::Get {
                return_md: handle(),
                match_bits: match_bits(),
                portal: get_u32::<GET_PORTAL, _>(bytes),
                offset: get_u32::<GET_OFFSET, _>(bytes),
                sink_length: get_u32::<GET_SINK_LENGTH, _>(bytes),
            },
            MessageType::Reply => Self::Reply { md: handle() },
            MessageType::Hello => Self::Hello {
                incarnation: get_u64::<HELLO_INCARNATION, _>(bytes),
                connection_type: get_u32::<HELLO_TYPE, _>(bytes),
            },
        })
    }
}
