//! The LNet message header in its 72-byte (small) and 96-byte (large) forms.

use crate::nid::ProcessId;

/// Bytes of the large header form.
pub const LARGE_HEADER_BYTES: usize = 96;
/// Bytes of the small header form.
pub const SMALL_HEADER_BYTES: usize = 72;
/// Largest payload of one message, `LNET_MTU`.
pub const PAYLOAD_MAX_BYTES: u32 = 1 << 20;

/// What a message asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum MessageType {
    /// Acknowledges a PUT.
    Ack = 0,
    /// Carries payload to a matching memory descriptor.
    Put = 1,
    /// Asks for payload of a matching memory descriptor.
    Get = 2,
    /// Answers a GET.
    Reply = 3,
    /// Handshake of socklnd protocol v1; illegal as a message.
    Hello = 4,
}

/// A handle as it crosses the wire: opaque to everyone but its creator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WireHandle {
    /// Names one life of one node.
    pub interface_cookie: u64,
    /// Names the object within that life.
    pub object_cookie: u64,
}

impl WireHandle {
    /// "No handle": both words all ones.
    pub const NONE: Self = Self { interface_cookie: u64::MAX, object_cookie: u64::MAX };
}

/// A message header, in meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Who is to get it.
    pub destination: ProcessId,
    /// Who sent it.
    pub source: ProcessId,
    /// Bytes of payload that follow the header.
    pub payload_length: u32,
    /// What depends on the type.
    pub body: Body,
}

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

/// Why bytes are no LNet header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HeaderError {
    /// Fewer bytes than a header has.
    Truncated {
        /// Bytes that were there.
        length: usize,
        /// Bytes that a header has.
        expected: usize,
    },
}
