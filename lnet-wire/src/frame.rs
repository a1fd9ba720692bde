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
//! | 60 | 4 | CRC32C over bytes 0..60 and, in the first fragment, the LNet header |

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
/// Offset of the reserved bytes.
pub const RESERVED_OFFSET: usize = 36;
/// Offset of the CRC32C; the bytes before it are what it covers of the frame header.
pub const CRC_OFFSET: usize = 60;

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
        bytes[MAGIC_OFFSET..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[VERSION_OFFSET] = VERSION;
        bytes[KIND_OFFSET] = KIND_DATA;
        bytes[TYPE_OFFSET] = self.key.message_type as u8;
        bytes[PORTAL_OFFSET] = self.key.portal;
        bytes[KEY_OFFSET..16].copy_from_slice(&self.key.key.to_le_bytes());
        bytes[MESSAGE_ID_OFFSET..24].copy_from_slice(&self.key.message_id.to_le_bytes());
        bytes[INITIATOR_OFFSET..28].copy_from_slice(&self.key.initiator_hash.to_le_bytes());
        bytes[FRAGMENT_OFFSET_OFFSET..32].copy_from_slice(&self.fragment_offset.to_le_bytes());
        bytes[TOTAL_LENGTH_OFFSET..36].copy_from_slice(&self.total_length.to_le_bytes());
    }

    /// Reads a header and checks it against `datagram_bytes`, the bytes of the UDP payload that begins
    /// with it. Of a 16-byte magic-to-portal prefix, key, ids and lengths all values are checked; the CRC
    /// is the LND's to verify before it believes any of them.
    ///
    /// # Errors
    /// A [`FrameError`] that says which field was wrong and what it held.
    #[inline(always)]
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES], datagram_bytes: usize) -> Result<Self, FrameError> {
        let magic = u32_at(bytes, MAGIC_OFFSET);
        if magic != MAGIC {
            return Err(FrameError::Magic(magic));
        }
        if bytes[VERSION_OFFSET] != VERSION {
            return Err(FrameError::Version(bytes[VERSION_OFFSET]));
        }
        if bytes[KIND_OFFSET] != KIND_DATA {
            return Err(FrameError::Kind(bytes[KIND_OFFSET]));
        }
        let message_type = match bytes[TYPE_OFFSET] {
            0 => MessageType::Ack,
            1 => MessageType::Put,
            2 => MessageType::Get,
            3 => MessageType::Reply,
            other => return Err(FrameError::MessageType(other)),
        };
        let portal = bytes[PORTAL_OFFSET];
        let has_portal = matches!(message_type, MessageType::Put | MessageType::Get);
        if portal as usize >= PORTALS || (!has_portal && portal != 0) {
            return Err(FrameError::Portal(portal));
        }
        let header = Self {
            key: SteerKey {
                message_type,
                portal,
                key: u64_at(bytes, KEY_OFFSET),
                message_id: u64_at(bytes, MESSAGE_ID_OFFSET),
                initiator_hash: u32_at(bytes, INITIATOR_OFFSET),
            },
            fragment_offset: u32_at(bytes, FRAGMENT_OFFSET_OFFSET),
            total_length: u32_at(bytes, TOTAL_LENGTH_OFFSET),
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
        let end = u64::from(self.fragment_offset) + payload;
        let carries_payload = matches!(self.key.message_type, MessageType::Put | MessageType::Reply);
        if self.total_length > PAYLOAD_MAX_BYTES
            || end > u64::from(self.total_length)
            || (!carries_payload && self.total_length != 0)
            || (payload == 0 && self.total_length != 0)
        {
            return Err(FrameError::Length);
        }
        Ok(())
    }
}

#[inline(always)]
fn u32_at(bytes: &[u8; FRAME_HEADER_BYTES], offset: usize) -> u32 {
    u32::from_le_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
}

#[inline(always)]
fn u64_at(bytes: &[u8; FRAME_HEADER_BYTES], offset: usize) -> u64 {
    u64::from(u32_at(bytes, offset)) | u64::from(u32_at(bytes, offset + 4)) << 32
}
