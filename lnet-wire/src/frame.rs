//! The frame header of the `xdp` LND: what follows the UDP header of each of our datagrams.
//!
//! Every fragment of a message repeats the steering key, so that each is steered alike and the XDP
//! program reads fixed offsets. The first fragment (`fragment_offset` 0) carries the LNet header in its
//! large form right behind the frame header; payload follows. All integers are little endian. A short
//! frame does without the LNet header.
//!
//! [`FrameHeader`] is what the XDP program reads of it, [`Transfer`] the rest, which loss recovery is made
//! of.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic, the bytes `LNDX` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | [`Kind`] |
//! | 6 | 1 | data: LNet message type, 0 to 3; else 0 |
//! | 7 | 1 | portal index of a PUT or GET, else 0 |
//! | 8 | 8 | steering key: match bits of a PUT or GET, object cookie of an ACK or REPLY; of other kinds the addressee's shard in bits 2 to 7 |
//! | 16 | 8 | id of the message that it carries or is about: the shard of that message's sender in the top 8 bits, then a counter |
//! | 24 | 4 | hash of the initiator's primary NID ([`crate::steer::initiator_hash`]) |
//! | 28 | 4 | fragment offset: payload bytes of the message before this frame |
//! | 32 | 4 | total length: payload bytes of the whole message, at most 1 MiB |
//! | 36 | 4 | frame number |
//! | 40 | 8 | incarnation of the sending node |
//! | 48 | 8 | session: the token that the addressee gave to this incarnation at the address that the frame comes from |
//! | 56 | 2 | message id less the oldest id that its sender has not finished with |
//! | 58 | 1 | shard that sends the frame |
//! | 59 | 1 | flags |
//! | 60 | 4 | CRC32C over this header, with zero in this field, and in the first fragment the LNet header |
//! | 64 | 4 | highest frame number received from the addressee |
//! | 68 | 4 | grant: bytes of frames that the addressee may have in flight |
//! | 72 | 8 | bit n: the frame n + 1 below the highest was received |
//! | 80 | 4 | CRC32C of the payload, if the flag says so |
//! | 84 | 4 | ticket of a deferred message |
//!
//! In a [short](FrameHeader::short) frame `hdr_data` of the PUT stands at 72, its offset at 80 and the CRC32C
//! of the payload at 84, and there is no LNet header; the CRC32C at 60 is that of the frame header and of the
//! NIDs of destination and source, which are not sent.

mod transfer;

#[cfg(test)]
mod tests;

use core::fmt;

use crate::bytes::{get, get_u32, get_u64, put, put_u32, put_u64};
use crate::header::{LARGE_HEADER_BYTES, MessageType, PAYLOAD_BYTES_MAX};
use crate::steer::{COOKIE_SHARD_SHIFT, PORTALS, SteerKey};

pub use transfer::{
    Ack, Certificate, HANDSHAKE_BYTES, Handshake, RECORD_BYTES, RECORD_CRC_OFFSET, Record, Transfer,
};

/// Bytes of the frame header.
pub const FRAME_HEADER_BYTES: usize = 88;
/// Bytes before the payload in the first frame of a message, unless it is a short one: the LNet header is
/// there too.
pub const FIRST_HEADERS_BYTES: usize = FRAME_HEADER_BYTES + LARGE_HEADER_BYTES;
/// The first four bytes of a frame, read as a little-endian integer: `LNDX`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"LNDX");
/// The version that this module speaks.
pub const VERSION: u8 = 1;

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
/// Offset of the frame number: the first field that the XDP program does not look at.
pub const FRAME_NUMBER_OFFSET: usize = 36;
/// Offset of the sending node's incarnation.
pub const INCARNATION_OFFSET: usize = 40;
/// Offset of the session token.
pub const SESSION_OFFSET: usize = 48;
/// Offset of the distance to the oldest unfinished id.
pub const OLDEST_OFFSET: usize = 56;
/// Offset of the sending shard.
pub const SHARD_OFFSET: usize = 58;
/// Offset of the flags.
pub const FLAGS_OFFSET: usize = 59;
/// Offset of the CRC32C, which is computed with zero in its place.
pub const CRC_OFFSET: usize = 60;
/// Offset of the highest frame number that was received.
pub const ACK_OFFSET: usize = 64;
/// Offset of the granted bytes.
pub const GRANT_OFFSET: usize = 68;
/// Offset of the bits of the frames below the highest.
pub const ACK_BITS_OFFSET: usize = 72;
/// Offset of the CRC32C of the payload.
pub const PAYLOAD_CRC_OFFSET: usize = 80;
/// Offset of the ticket.
pub const TICKET_OFFSET: usize = 84;

/// Offset of `hdr_data` in a short frame.
pub const HDR_DATA_OFFSET: usize = 72;
/// Offset of a PUT's offset in a short frame.
pub const PUT_OFFSET_OFFSET: usize = 80;
/// Offset of the CRC32C of the payload in a short frame.
pub const SHORT_PAYLOAD_CRC_OFFSET: usize = 84;

/// Flag: the acknowledgement fields hold something.
pub const FLAG_ACK: u8 = 1 << 0;
/// Flag: further whole messages follow, as records.
pub const FLAG_BUNDLE: u8 = 1 << 1;
/// Flag: the payload's CRC32C is to be checked.
pub const FLAG_PAYLOAD_CRC: u8 = 1 << 2;
/// Flag: the message was pulled by the ticket.
pub const FLAG_PULLED: u8 = 1 << 3;
/// Flag: the sender waits for an acknowledgement.
pub const FLAG_ACK_NOW: u8 = 1 << 4;
/// Flag: the frame is short.
pub const FLAG_SHORT: u8 = 1 << 5;
/// Beside [`FLAG_ACK`]: the acknowledging shard buffers frames of messages that are delayed.
pub const FLAG_BUFFERED: u8 = 1 << 6;
const FLAGS_KNOWN: u8 =
    FLAG_ACK | FLAG_BUNDLE | FLAG_PAYLOAD_CRC | FLAG_PULLED | FLAG_ACK_NOW | FLAG_SHORT | FLAG_BUFFERED;

/// Fragments begin at, and but for the last one end at, a multiple of this.
pub const FRAGMENT_UNIT_BYTES: u32 = 64;

/// The kinds of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// (A fragment of) an LNet message.
    Data = 1,
    /// An acknowledgement without data.
    Ack = 2,
    /// Asks for a session; as long as its answer, so that the answer cannot amplify a flood.
    Hello = 3,
    /// Gives a session.
    Welcome = 4,
    /// Says that a session is not known.
    Reset = 5,
    /// The receiver keeps the header of a message and has no place for it yet.
    Deferred = 6,
    /// The receiver wants a deferred message now.
    Pull = 7,
    /// The receiver wants a deferred message no longer.
    Discard = 8,
    /// The sender asks whether a deferred message is still wanted.
    Ping = 9,
    /// The sender has a deferred message no longer.
    Gone = 10,
    /// The receiver knows nothing of a deferred message.
    Lost = 11,
}

impl Kind {
    const fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Data,
            2 => Self::Ack,
            3 => Self::Hello,
            4 => Self::Welcome,
            5 => Self::Reset,
            6 => Self::Deferred,
            7 => Self::Pull,
            8 => Self::Discard,
            9 => Self::Ping,
            10 => Self::Gone,
            11 => Self::Lost,
            _ => return None,
        })
    }

    /// Bytes behind the frame header of a kind other than data.
    const fn body_bytes(self) -> usize {
        match self {
            Self::Hello | Self::Welcome => HANDSHAKE_BYTES,
            _ => 0,
        }
    }
}

const _: () = assert!(PORTAL_OFFSET + 1 == VERSION_OFFSET + 4, "version to portal are read as one field");

/// The words of a short frame about its PUT, besides those of every frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShortPut {
    /// The sender's 64 bits.
    pub hdr_data: u64,
    /// Offset at the target.
    pub offset: u32,
}

/// A frame header, in meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// The kind of the frame.
    pub kind: Kind,
    /// Whether further messages follow the one that it describes.
    pub bundled: bool,
    /// Whether the frame is short: a whole PUT that wants no ACK, without its LNet header. What that would
    /// say besides stands here, in the key, or around the frame: the NIDs are those that its IP addresses
    /// stand for, both process ids [`ProcessId::LUSTRE_PID`](crate::ProcessId::LUSTRE_PID).
    pub short: Option<ShortPut>,
    /// The key that the frame is steered by.
    pub key: SteerKey,
    /// Payload bytes of the message before this frame.
    pub fragment_offset: u32,
    /// Payload bytes of the whole message, at most [`PAYLOAD_BYTES_MAX`].
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
    /// Lengths that contradict each other or exceed [`PAYLOAD_BYTES_MAX`].
    Length,
}

impl fmt::Display for FrameError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => formatter.write_str("ends within its headers"),
            Self::Magic(magic) => write!(formatter, "frame magic 0x{magic:08x}, expected 0x{MAGIC:08x}"),
            Self::Version(version) => write!(formatter, "frame version {version}, expected {VERSION}"),
            Self::Kind(kind) => write!(formatter, "frame kind {kind}, expected 1 to {}", Kind::Lost as u8),
            Self::MessageType(value) => write!(formatter, "message type {value}, expected 0 to 3"),
            Self::Portal(portal) => {
                write!(formatter, "portal {portal}, expected one below {PORTALS}, or 0 in an ACK or REPLY")
            }
            Self::Length => {
                write!(
                    formatter,
                    "a fragment beyond its message, or a message above {PAYLOAD_BYTES_MAX} bytes"
                )
            }
        }
    }
}

impl core::error::Error for FrameError {}

impl SteerKey {
    /// Reads the key of a frame whose type and portal were checked.
    #[inline(always)]
    pub(crate) const fn read(
        bytes: &[u8; FRAME_HEADER_BYTES],
        message_type: MessageType,
        portal: u8,
    ) -> Self {
        Self {
            message_type,
            portal,
            key: get_u64::<KEY_OFFSET, _>(bytes),
            message_id: get_u64::<MESSAGE_ID_OFFSET, _>(bytes),
            initiator_hash: get_u32::<INITIATOR_OFFSET, _>(bytes),
        }
    }
}

impl FrameHeader {
    /// The header of a frame with (a fragment of) a message.
    #[must_use]
    pub const fn data(key: SteerKey, fragment_offset: u32, total_length: u32) -> Self {
        Self { kind: Kind::Data, bundled: false, short: None, key, fragment_offset, total_length }
    }

    /// The header of a frame of another kind, to a shard of its addressee; `message_id` is that of the
    /// message that it is about.
    #[must_use]
    pub const fn other(kind: Kind, to_shard: u8, message_id: u64) -> Self {
        let key = SteerKey {
            message_type: MessageType::Ack,
            portal: 0,
            key: (to_shard as u64) << COOKIE_SHARD_SHIFT,
            message_id,
            initiator_hash: 0,
        };
        Self { kind, bundled: false, short: None, key, fragment_offset: 0, total_length: 0 }
    }

    /// Bytes of LNet header that stand behind this frame header.
    #[must_use]
    pub const fn lnet_header_bytes(&self) -> usize {
        let begins = self.fragment_offset == 0 && matches!(self.kind, Kind::Data);
        if begins && self.short.is_none() { LARGE_HEADER_BYTES } else { 0 }
    }

    /// Bytes of the frame that the checksum at [`CRC_OFFSET`] covers: the headers, and the body of a
    /// handshake.
    #[must_use]
    pub const fn covered_bytes(&self) -> usize {
        FRAME_HEADER_BYTES + self.lnet_header_bytes() + self.kind.body_bytes()
    }

    /// Writes the header with zero in the fields of [`Transfer`] and in that of the CRC: the LND fills it in
    /// ([`CRC_OFFSET`]), since it knows the bytes of the LNet header.
    pub fn encode(&self, bytes: &mut [u8; FRAME_HEADER_BYTES]) {
        *bytes = [0; FRAME_HEADER_BYTES];
        put_u32::<MAGIC_OFFSET, _>(bytes, MAGIC);
        put::<VERSION_OFFSET, _, _>(bytes, [VERSION]);
        put::<KIND_OFFSET, _, _>(bytes, [self.kind as u8]);
        let mut flags = if self.bundled { FLAG_BUNDLE } else { 0 };
        if let Some(ShortPut { hdr_data, offset }) = self.short {
            flags |= FLAG_SHORT;
            put_u64::<HDR_DATA_OFFSET, _>(bytes, hdr_data);
            put_u32::<PUT_OFFSET_OFFSET, _>(bytes, offset);
        }
        put::<FLAGS_OFFSET, _, _>(bytes, [flags]);
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
        let Some(kind) = Kind::of(kind) else { return Err(FrameError::Kind(kind)) };
        let message_type = match type_byte {
            0 => MessageType::Ack,
            1 => MessageType::Put,
            2 => MessageType::Get,
            3 => MessageType::Reply,
            other => return Err(FrameError::MessageType(other)),
        };
        if !matches!(kind, Kind::Data) && type_byte != 0 {
            return Err(FrameError::MessageType(type_byte));
        }
        let has_portal = matches!(message_type, MessageType::Put | MessageType::Get);
        if portal as usize >= PORTALS || (!has_portal && portal != 0) {
            return Err(FrameError::Portal(portal));
        }
        let [flags] = get::<FLAGS_OFFSET, _, _>(bytes);
        let header = Self {
            kind,
            bundled: flags & FLAG_BUNDLE != 0,
            short: if flags & FLAG_SHORT != 0 {
                Some(ShortPut {
                    hdr_data: get_u64::<HDR_DATA_OFFSET, _>(bytes),
                    offset: get_u32::<PUT_OFFSET_OFFSET, _>(bytes),
                })
            } else {
                None
            },
            key: SteerKey::read(bytes, message_type, portal),
            fragment_offset: get_u32::<FRAGMENT_OFFSET_OFFSET, _>(bytes),
            total_length: get_u32::<TOTAL_LENGTH_OFFSET, _>(bytes),
        };
        header.check_lengths(datagram_bytes)?;
        Ok(header)
    }

    /// An empty message has one fragment at offset 0; every other fragment carries at least one byte and
    /// ends within the message. Records follow a whole message only, and short is a whole PUT without any.
    #[inline(always)]
    fn check_lengths(&self, datagram_bytes: usize) -> Result<(), FrameError> {
        let headers = self.covered_bytes();
        if datagram_bytes < headers {
            return Err(FrameError::Truncated);
        }
        let payload = (datagram_bytes - headers) as u64;
        let Some(room) = self.total_length.checked_sub(self.fragment_offset) else {
            return Err(FrameError::Length);
        };
        let room = u64::from(room);
        let is_data = matches!(self.kind, Kind::Data);
        let fits = if self.short.is_some() {
            let is_put = is_data && matches!(self.key.message_type, MessageType::Put);
            is_put && !self.bundled && self.fragment_offset == 0 && payload == room
        } else if self.bundled {
            is_data && self.fragment_offset == 0 && payload >= room + RECORD_BYTES as u64
        } else {
            payload <= room && (payload != 0 || self.total_length == 0)
        };
        if !fits
            || self.total_length > PAYLOAD_BYTES_MAX
            || (self.total_length != 0 && !(is_data && self.key.message_type.carries_payload()))
        {
            return Err(FrameError::Length);
        }
        Ok(())
    }
}
