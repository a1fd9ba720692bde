//! The LNet message header in its 72-byte (small) and 96-byte (large) forms.
//!
//! All integers are little endian, whatever the framing around the header uses; large NIDs are in network
//! order. Both forms end in the same 40 bytes, whose meaning depends on the message type; what a type does
//! not use of them is zero when sent and ignored when received.
//!
//! | small | large | size | field |
//! |---|---|---|---|
//! | 0 | 0 | 8 or 20 | destination NID |
//! | 8 | 20 | 8 or 20 | source NID |
//! | 16 | 40 | 4 | destination pid |
//! | 20 | 44 | 4 | source pid |
//! | 24 | 48 | 4 | message type |
//! | 28 | 52 | 4 | payload length |
//! | 32 | 56 | 40 | type-specific part |
//!
//! | type-specific part | 0 | 8 | 12 | 16 | 24 | 28 | 32 | 36 |
//! |---|---|---|---|---|---|---|---|---|
//! | ACK | handle of the PUT | | | match bits | manipulated length | | | |
//! | PUT | handle for the ACK | | | match bits | header data (8) | | portal | offset |
//! | GET | handle for the REPLY | | | match bits | portal | offset | sink length | |
//! | REPLY | handle of the GET | | | | | | | |
//! | HELLO | incarnation | connection type | | | | | | |
//!
//! Source: `uapi/linux/lnet/lnet-idl.h`, `struct lnet_hdr`, `struct _lnet_hdr_nid4`.

mod body;

#[cfg(test)]
mod tests;

use core::fmt;

use crate::bytes::{get, get_u32, get_u64, put, put_u32, put_u64};
use crate::nid::{NID_BYTES, Nid, NidError, ProcessId};

pub use body::Body;

/// Bytes of the large header form.
pub const LARGE_HEADER_BYTES: usize = 96;
/// Bytes of the small header form.
pub const SMALL_HEADER_BYTES: usize = 72;
/// Largest payload of one message, `LNET_MTU`.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 20;
/// Bytes of the type-specific part.
pub const BODY_BYTES: usize = 40;
/// Bytes of a handle on the wire.
pub const HANDLE_BYTES: usize = 16;

/// Offsets of the fields of the small form.
mod small {
    pub(super) const DESTINATION_NID: usize = 0;
    pub(super) const SOURCE_NID: usize = 8;
    pub(super) const DESTINATION_PID: usize = 16;
    pub(super) const SOURCE_PID: usize = 20;
    pub(super) const TYPE: usize = 24;
    pub(super) const PAYLOAD_LENGTH: usize = 28;
    pub(super) const BODY: usize = 32;
}

/// Offsets of the fields of the large form.
mod large {
    pub(super) const DESTINATION_NID: usize = 0;
    pub(super) const SOURCE_NID: usize = 20;
    pub(super) const DESTINATION_PID: usize = 40;
    pub(super) const SOURCE_PID: usize = 44;
    pub(super) const TYPE: usize = 48;
    pub(super) const PAYLOAD_LENGTH: usize = 52;
    pub(super) const BODY: usize = 56;
}

const _: () = assert!(small::BODY + BODY_BYTES == SMALL_HEADER_BYTES);
const _: () = assert!(large::BODY + BODY_BYTES == LARGE_HEADER_BYTES);
const _: () = assert!(large::SOURCE_NID + NID_BYTES == large::DESTINATION_PID);

/// The types of messages.
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

impl MessageType {
    /// The type of this number; `None` for numbers without one.
    #[inline(always)]
    #[must_use]
    pub const fn from_wire(value: u32) -> Option<Self> {
        match value {
            0 => Some(Self::Ack),
            1 => Some(Self::Put),
            2 => Some(Self::Get),
            3 => Some(Self::Reply),
            4 => Some(Self::Hello),
            _ => None,
        }
    }

    /// Whether messages of this type may carry payload.
    #[inline(always)]
    #[must_use]
    pub const fn carries_payload(self) -> bool {
        matches!(self, Self::Put | Self::Reply)
    }
}

impl fmt::Display for MessageType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Ack => "ACK",
            Self::Put => "PUT",
            Self::Get => "GET",
            Self::Reply => "REPLY",
            Self::Hello => "HELLO",
        })
    }
}

/// A handle as it crosses the wire: opaque to everyone but its creator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WireHandle {
    /// Names one life of one node, for kernel nodes. Nodes of `lnet-core` have a seal here.
    pub interface_cookie: u64,
    /// Names the object within that life.
    pub object_cookie: u64,
}

impl WireHandle {
    /// "No handle": both words all ones.
    pub const NONE: Self = Self { interface_cookie: u64::MAX, object_cookie: u64::MAX };

    /// Whether it is [`WireHandle::NONE`]: **both** words are all ones.
    #[inline]
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.interface_cookie & self.object_cookie == u64::MAX
    }

    /// Reads the 16 bytes of a handle.
    #[inline]
    #[must_use]
    pub const fn from_bytes(bytes: &[u8; HANDLE_BYTES]) -> Self {
        Self { interface_cookie: get_u64::<0, _>(bytes), object_cookie: get_u64::<8, _>(bytes) }
    }

    /// The 16 bytes as they stand on the wire.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        put_u64::<0, _>(&mut bytes, self.interface_cookie);
        put_u64::<8, _>(&mut bytes, self.object_cookie);
        bytes
    }
}

impl fmt::Display for WireHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:x}.{:x}", self.interface_cookie, self.object_cookie)
    }
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
    /// The part that depends on the type.
    pub body: Body,
}

/// Why bytes are no LNet header, or a header none of an acceptable message.
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
    /// A message type that does not exist.
    MessageType(u32),
    /// A destination or source that is no NID.
    Nid(NidError),
    /// A NID that does not fit the small form.
    LargeNid(Nid),
    /// More payload than the type may carry.
    Payload {
        /// The type.
        message_type: MessageType,
        /// Payload bytes by the header.
        length: u32,
        /// Most bytes that the type may carry.
        maximum: u32,
    },
    /// A HELLO where a message was due.
    Hello,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { length, expected } => {
                write!(formatter, "{length} bytes, expected a header of {expected}")
            }
            Self::MessageType(value) => write!(formatter, "message type {value}, expected 0 to 4"),
            Self::Nid(error) => error.fmt(formatter),
            Self::LargeNid(nid) => {
                write!(formatter, "nid {nid} does not fit a header of {SMALL_HEADER_BYTES} bytes")
            }
            Self::Payload { message_type, length, maximum } => {
                write!(formatter, "{message_type} with {length} bytes of payload, expected at most {maximum}")
            }
            Self::Hello => formatter.write_str("HELLO, expected ACK, PUT, GET or REPLY"),
        }
    }
}

impl core::error::Error for HeaderError {}

impl From<NidError> for HeaderError {
    fn from(error: NidError) -> Self {
        Self::Nid(error)
    }
}

impl Header {
    /// The type of the message.
    #[inline(always)]
    #[must_use]
    pub const fn message_type(&self) -> MessageType {
        self.body.message_type()
    }

    /// Writes the large form.
    #[inline]
    pub fn encode_large(&self, bytes: &mut [u8; LARGE_HEADER_BYTES]) {
        put::<{ large::DESTINATION_NID }, _, _>(bytes, self.destination.nid.to_bytes());
        put::<{ large::SOURCE_NID }, _, _>(bytes, self.source.nid.to_bytes());
        put_u32::<{ large::DESTINATION_PID }, _>(bytes, self.destination.pid);
        put_u32::<{ large::SOURCE_PID }, _>(bytes, self.source.pid);
        put_u32::<{ large::TYPE }, _>(bytes, self.message_type() as u32);
        put_u32::<{ large::PAYLOAD_LENGTH }, _>(bytes, self.payload_length);
        put::<{ large::BODY }, _, _>(bytes, self.body.to_bytes());
    }

    /// Reads the large form. Whether it may stand in front of a message is for
    /// [`Header::check_payload`] to say.
    ///
    /// # Errors
    /// [`HeaderError::MessageType`], [`HeaderError::Nid`].
    #[inline]
    pub fn decode_large(bytes: &[u8; LARGE_HEADER_BYTES]) -> Result<Self, HeaderError> {
        let body = get::<{ large::BODY }, BODY_BYTES, _>(bytes);
        Ok(Self {
            destination: ProcessId {
                nid: Nid::from_bytes(&get::<{ large::DESTINATION_NID }, _, _>(bytes))?,
                pid: get_u32::<{ large::DESTINATION_PID }, _>(bytes),
            },
            source: ProcessId {
                nid: Nid::from_bytes(&get::<{ large::SOURCE_NID }, _, _>(bytes))?,
                pid: get_u32::<{ large::SOURCE_PID }, _>(bytes),
            },
            payload_length: get_u32::<{ large::PAYLOAD_LENGTH }, _>(bytes),
            body: Body::from_bytes(get_u32::<{ large::TYPE }, _>(bytes), &body)?,
        })
    }

    /// Writes the small form.
    ///
    /// # Errors
    /// [`HeaderError::LargeNid`]; `bytes` are then as they were.
    #[inline]
    pub fn encode_small(&self, bytes: &mut [u8; SMALL_HEADER_BYTES]) -> Result<(), HeaderError> {
        let small_nid = |nid: Nid| nid.to_small().ok_or(HeaderError::LargeNid(nid));
        let destination = small_nid(self.destination.nid)?;
        let source = small_nid(self.source.nid)?;
        put_u64::<{ small::DESTINATION_NID }, _>(bytes, destination);
        put_u64::<{ small::SOURCE_NID }, _>(bytes, source);
        put_u32::<{ small::DESTINATION_PID }, _>(bytes, self.destination.pid);
        put_u32::<{ small::SOURCE_PID }, _>(bytes, self.source.pid);
        put_u32::<{ small::TYPE }, _>(bytes, self.message_type() as u32);
        put_u32::<{ small::PAYLOAD_LENGTH }, _>(bytes, self.payload_length);
        put::<{ small::BODY }, _, _>(bytes, self.body.to_bytes());
        Ok(())
    }

    /// Reads the small form, as [`Header::decode_large`] the large one.
    ///
    /// # Errors
    /// [`HeaderError::MessageType`], [`HeaderError::Nid`].
    #[inline]
    pub fn decode_small(bytes: &[u8; SMALL_HEADER_BYTES]) -> Result<Self, HeaderError> {
        let body = get::<{ small::BODY }, BODY_BYTES, _>(bytes);
        Ok(Self {
            destination: ProcessId {
                nid: Nid::from_small(get_u64::<{ small::DESTINATION_NID }, _>(bytes))?,
                pid: get_u32::<{ small::DESTINATION_PID }, _>(bytes),
            },
            source: ProcessId {
                nid: Nid::from_small(get_u64::<{ small::SOURCE_NID }, _>(bytes))?,
                pid: get_u32::<{ small::SOURCE_PID }, _>(bytes),
            },
            payload_length: get_u32::<{ small::PAYLOAD_LENGTH }, _>(bytes),
            body: Body::from_bytes(get_u32::<{ small::TYPE }, _>(bytes), &body)?,
        })
    }

    /// Reads a large form at the start of `bytes`; also returns the bytes behind it, the payload.
    ///
    /// # Errors
    /// [`HeaderError::Truncated`], and those of [`Header::decode_large`].
    #[inline]
    pub fn split_large(bytes: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let (header, rest) = bytes
            .split_first_chunk()
            .ok_or(HeaderError::Truncated { length: bytes.len(), expected: LARGE_HEADER_BYTES })?;
        Ok((Self::decode_large(header)?, rest))
    }

    /// Checks what makes a receiver give up the connection: the header must be of a message, with no
    /// more payload than its type may carry (none for ACK and GET, [`PAYLOAD_BYTES_MAX`] for PUT and
    /// REPLY).
    ///
    /// Source: `lib-move.c: lnet_parse`.
    ///
    /// # Errors
    /// [`HeaderError::Payload`], [`HeaderError::Hello`].
    #[inline]
    pub const fn check_payload(&self) -> Result<(), HeaderError> {
        let message_type = self.message_type();
        if matches!(message_type, MessageType::Hello) {
            return Err(HeaderError::Hello);
        }
        let maximum = if message_type.carries_payload() { PAYLOAD_BYTES_MAX } else { 0 };
        if self.payload_length > maximum {
            return Err(HeaderError::Payload { message_type, length: self.payload_length, maximum });
        }
        Ok(())
    }
}
