//! The frame header of the `xdp` LND: what follows the UDP header of each of our datagrams.
//!
//! Every fragment of a message repeats the steering key, so that each is steered alike and the XDP
//! program reads fixed offsets. The first fragment (`fragment_offset` 0) carries the LNet header in its
//! large form right behind the frame header; payload follows. All integers are little endian.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic, the bytes `LNDX` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | kind, 1 = data |
//! | 6 | 1 | LNet message type, 0 to 3 |
//! | 7 | 1 | portal index of a PUT or GET, else 0 |
//! | 8 | 8 | steering key: match bits of a PUT or GET, object cookie of an ACK or REPLY |
//! | 16 | 8 | message id: the sender's shard in the top 8 bits, then a counter |
//! | 24 | 4 | hash of the initiator's primary NID ([`crate::steer::initiator_hash`]) |
//! | 28 | 4 | fragment offset: payload bytes of the message before this frame |
//! | 32 | 4 | total length: payload bytes of the whole message, at most 1 MiB |
//! | 36 | 24 | zero in version 1, where acknowledgements and grants will stand |
//! | 60 | 4 | CRC32C over this header, with zero in this field, and in the first fragment the LNet header |

#[cfg(test)]
mod tests;

use core::fmt;

use crate::bytes::{get, get_u32, get_u64, put, put_u32, put_u64};
use crate::header::{LARGE_HEADER_BYTES, MessageType, PAYLOAD_MAX_BYTES};
use crate::steer::{PORTALS, SteerKey};

/// Bytes of the frame header.
pub const FRAME_HEADER_BYTES: usize = 64;
/// The first four bytes of a frame, read as a little-endian integer: `LNDX`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"LNDX");
/// The version that this module speaks.
pub const VERSION: u8 = 1;
/// The kind of a frame that carries (a fragment of) an LNet message.
pub const KIND_DATA: u8 = 1;

/// Offset of the magic.
pub const MAGIC_OFFSET: usize = 0;
/// Offset of the version.
pub const VERSION_OFFSET: usize = 4;
/// Offset of the kind.
pub const KIND_OFFSET: usize = 5;
/// Offset of the LNet message type.
pub const TYPE_OFFSET: usize = 6;
/// Offset of the portal index.
pub const PORTAL_OFFSET: usize = 7;
/// Offset of the steering key.
pub const KEY_OFFSET: usize = 8;
/// Offset of the message id.
pub const MESSAGE_ID_OFFSET: usize = 16;
/// Offset of the hash of the initiator's primary NID.
pub const INITIATOR_OFFSET: usize = 24;
/// Offset of the fragment offset.
pub const FRAGMENT_OFFSET_OFFSET: usize = 28;
/// Offset of the total length.
pub const TOTAL_LENGTH_OFFSET: usize = 32;
/// Offset of the bytes that are zero in version 1.
pub const RESERVED_OFFSET: usize = 36;
/// Offset of the CRC32C, which is computed with zero in its place.
pub const CRC_OFFSET: usize = 60;

const _: () = assert!(PORTAL_OFFSET + 1 == VERSION_OFFSET + 4, "version to portal are read as one field");

/// A frame header, in meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// What the frame is steered by.
    pub key: SteerKey,
    /// Payload bytes of the message before this frame.
    pub fragment_offset: u32,
    /// Payload bytes of the whole message, at most [`PAYLOAD_MAX_BYTES`].
    pub total_length: u32,
}

/// Why bytes are no frame of ours. The values say what was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FrameError {
    /// Fewer bytes than the header has, or a first fragment without its whole LNet header.
    Truncated,
    /// Another magic.
    Magic(u32),
    /// Another version.
    Version(u8),
    /// A kind that this version does not know.
    Kind(u8),
    /// A message type other than ACK, PUT, GET, REPLY.
    MessageType(u8),
    /// A portal of a PUT or GET beyond the last one, or one where there is none.
    Portal(u8),
    /// Lengths that contradict each other or exceed [`PAYLOAD_MAX_BYTES`].
    Length,
}

impl fmt::Display for FrameError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => formatter.write_str("ends within its headers"),
            Self::Magic(magic) => write!(formatter, "frame magic 0x{magic:08x}, expected 0x{MAGIC:08x}"),
            Self::Version(version) => write!(formatter, "frame version {version}, expected {VERSION}"),
            Self::Kind(kind) => write!(formatter, "frame kind {kind}, expected {KIND_DATA}"),
            Self::MessageType(value) => write!(formatter, "message type {value}, expected 0 to 3"),
            Self::Portal(portal) => {
                write!(formatter, "portal {portal}, expected one below {PORTALS}, or 0 in an ACK or REPLY")
            }
            Self::Length => {
                write!(
                    formatter,
                    "a fragment beyond its message, or a message above {PAYLOAD_MAX_BYTES} bytes"
                )
            }
        }
    }
}

impl core::error::Error for FrameError {}

impl FrameHeader {
    /// Bytes of LNet header that stand behind this frame header.
    #[must_use]
    pub const fn lnet_header_bytes(&self) -> usize {
        if self.fragment_offset == 0 { LARGE_HEADER_BYTES } else { 0 }
    }

    /// Writes the header with a CRC field of zero: the LND fills it in ([`CRC_OFFSET`]), since it knows
    /// the bytes of the LNet header.
    pub fn encode(&self, bytes: &mut [u8; FRAME_HEADER_BYTES]) {
        *bytes = [0; FRAME_HEADER_BYTES];
        put_u32::<MAGIC_OFFSET, _>(bytes, MAGIC);
        put::<VERSION_OFFSET, _, _>(bytes, [VERSION]);
        put::<KIND_OFFSET, _, _>(bytes, [KIND_DATA]);
        put::<TYPE_OFFSET, _, _>(bytes, [self.key.message_type as u8]);
        put::<PORTAL_OFFSET, _, _>(bytes, [self.key.portal]);
        put_u64::<KEY_OFFSET, _>(bytes, self.key.key);
        put_u64::<MESSAGE_ID_OFFSET, _>(bytes, self.key.message_id);
        put_u32::<INITIATOR_OFFSET, _>(bytes, self.key.initiator_hash);
        put_u32::<FRAGMENT_OFFSET_OFFSET, _>(bytes, self.fragment_offset);
        put_u32::<TOTAL_LENGTH_OFFSET, _>(bytes, self.total_length);
    }

    /// Reads a header and checks it against `datagram_bytes`, the bytes of the UDP payload that begins
    /// with it: magic, version, kind, type, portal and lengths. The key and the ids may be anything, and
    /// nothing is to be believed before the LND has verified the CRC.
    ///
    /// # Errors
    /// A [`FrameError`] that says which field was wrong and what it held.
    #[inline(always)]
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES], datagram_bytes: usize) -> Result<Self, FrameError> {
        let magic = get_u32::<MAGIC_OFFSET, _>(bytes);
        if magic != MAGIC {
            return Err(FrameError::Magic(magic));
        }
        let [version, kind, type_byte, portal] = get::<VERSION_OFFSET, _, _>(bytes);
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        if kind != KIND_DATA {
            return Err(FrameError::Kind(kind));
        }
        let message_type = match type_byte {
            0 => MessageType::Ack,
            1 => MessageType::Put,
            2 => MessageType::Get,
            3 => MessageType::Reply,
            other => return Err(FrameError::MessageType(other)),
        };
        let has_portal = matches!(message_type, MessageType::Put | MessageType::Get);
        if portal as usize >= PORTALS || (!has_portal && portal != 0) {
            return Err(FrameError::Portal(portal));
        }
        let header = Self {
            key: SteerKey {
                message_type,
                portal,
                key: get_u64::<KEY_OFFSET, _>(bytes),
                message_id: get_u64::<MESSAGE_ID_OFFSET, _>(bytes),
                initiator_hash: get_u32::<INITIATOR_OFFSET, _>(bytes),
            },
            fragment_offset: get_u32::<FRAGMENT_OFFSET_OFFSET, _>(bytes),
            total_length: get_u32::<TOTAL_LENGTH_OFFSET, _>(bytes),
        };
        header.check_lengths(datagram_bytes)?;
        Ok(header)
    }

    /// An empty message has one fragment at offset 0; every other fragment carries at least one byte and
    /// ends within the message.
    #[inline(always)]
    fn check_lengths(&self, datagram_bytes: usize) -> Result<(), FrameError> {
        let headers = FRAME_HEADER_BYTES + self.lnet_header_bytes();
        if datagram_bytes < headers {
            return Err(FrameError::Truncated);
        }
        let payload = (datagram_bytes - headers) as u64;
        let Some(room) = self.total_length.checked_sub(self.fragment_offset) else {
            return Err(FrameError::Length);
        };
        if self.total_length > PAYLOAD_MAX_BYTES
            || payload > u64::from(room)
            || (self.total_length != 0 && (payload == 0 || !self.key.message_type.carries_payload()))
        {
            return Err(FrameError::Length);
        }
        Ok(())
    }
}
