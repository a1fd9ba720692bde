//! HELLOs: who speaks, in which life, in which protocol version, and what the connection is for.
//!
//! | version 2, 3 | version 4 | size | field |
//! |---|---|---|---|
//! | 0 | 0 | 4 | magic |
//! | 4 | 4 | 4 | version |
//! | 8 | 8 | 8 or 20 | source NID |
//! | 16 | 28 | 8 or 20 | destination NID |
//! | 24 | 48 | 4 | source pid |
//! | 28 | 52 | 4 | destination pid |
//! | 32 | 56 | 8 | source incarnation |
//! | 40 | 64 | 8 | destination incarnation |
//! | 48 | 72 | 4 | connection type |
//! | 52 | 76 | 4 | number of addresses that follow, 16 at most; none in version 4 |
//!
//! Version 1 is a small LNet header of type HELLO whose destination NID is the magic and the version.

use core::fmt;

use super::{ByteOrder, HELLO_MAGIC, OLD_MAGIC, Parsed};
use crate::bytes::{get, get_u32, get_u64, put, put_u32, put_u64};
use crate::header::{LARGE_HEADER_BYTES, SMALL_HEADER_BYTES};
use crate::nid::{NID_BYTES, Nid, NidError, ProcessId};

/// Bytes of the longest HELLO without addresses.
pub const HELLO_BYTES_MAX: usize = LARGE_BYTES;
const SMALL_BYTES: usize = 56;
const LARGE_BYTES: usize = 80;
const OLD_BYTES: usize = SMALL_HEADER_BYTES;
/// Bytes that tell the version.
const START_BYTES: usize = 8;
const ADDRESSES_MAX: u32 = 16;
const ADDRESS_BYTES: usize = 4;
/// The type of a HELLO that refuses.
const NONE: u32 = u32::MAX;
/// LNet message type of a HELLO.
const OLD_TYPE: u32 = 4;

/// A version of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Version {
    /// Bare headers.
    V1 = 1,
    /// Prefixes with one cookie.
    V2 = 2,
    /// Prefixes with several cookies.
    V3 = 3,
    /// Large NIDs.
    V4 = 4,
}

impl Version {
    /// Bytes of an LNet header.
    #[must_use]
    pub const fn header_bytes(self) -> usize {
        if matches!(self, Self::V4) { LARGE_HEADER_BYTES } else { SMALL_HEADER_BYTES }
    }

    const fn from_wire(number: u32) -> Option<Self> {
        match number {
            2 => Some(Self::V2),
            3 => Some(Self::V3),
            4 => Some(Self::V4),
            _ => None,
        }
    }
}

/// The use of a connection, as one end sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ConnectionType {
    /// Everything.
    Any = 0,
    /// Small messages.
    Control = 1,
    /// Large messages that arrive.
    BulkIn = 2,
    /// Large messages that leave.
    BulkOut = 3,
}

impl ConnectionType {
    /// The type of the connection as the other end sees it.
    #[must_use]
    pub const fn inverted(self) -> Self {
        match self {
            Self::BulkIn => Self::BulkOut,
            Self::BulkOut => Self::BulkIn,
            same => same,
        }
    }

    const fn from_wire(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Any),
            1 => Some(Self::Control),
            2 => Some(Self::BulkIn),
            3 => Some(Self::BulkOut),
            _ => None,
        }
    }
}

/// The first words of either end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The protocol version.
    pub version: Version,
    /// The byte order in which it came.
    pub order: ByteOrder,
    /// Who speaks. A listener does not believe an unprivileged dialler.
    pub source: ProcessId,
    /// Who is spoken to; not verified. The wildcard where version 1 has none, and where it is no NID.
    pub destination: ProcessId,
    /// The life of the speaker's NI.
    pub source_incarnation: u64,
    /// The life of the other end, as the speaker knows it; kernel nodes say 0, or what they were told.
    pub destination_incarnation: u64,
    /// The speaker's view of the connection; `None` refuses it.
    pub connection: Option<ConnectionType>,
}

/// Why bytes are no HELLO, or one cannot be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HelloError {
    /// Another magic number at the beginning.
    Magic(u32),
    /// A version that is not spoken here.
    Version {
        /// The version.
        number: u32,
        /// The byte order in which it came.
        order: ByteOrder,
    },
    /// More addresses than may follow.
    AddressCount(u32),
    /// An address of 0.
    ZeroAddress,
    /// A connection type that does not exist.
    Connection(u32),
    /// The speaker is the wildcard.
    AnySource,
    /// A NID is none.
    Nid(NidError),
    /// A NID does not fit the version.
    LargeNid(Nid),
    /// A HELLO of version 1 that is none by its LNet message type or its length.
    Old,
}

impl fmt::Display for HelloError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(magic) => write!(formatter, "magic 0x{magic:08x}, expected 0x{HELLO_MAGIC:08x}"),
            Self::Version { number, .. } => write!(formatter, "protocol version {number}, expected 1 to 4"),
            Self::AddressCount(count) => {
                write!(formatter, "{count} addresses, expected at most {ADDRESSES_MAX}")
            }
            Self::ZeroAddress => formatter.write_str("an address 0.0.0.0, expected those of the speaker"),
            Self::Connection(number) => write!(formatter, "connection type {number}, expected 0 to 3 or -1"),
            Self::AnySource => formatter.write_str("the wildcard speaks, expected a nid"),
            Self::Nid(error) => error.fmt(formatter),
            Self::LargeNid(nid) => write!(formatter, "nid {nid} needs protocol version 4"),
            Self::Old => formatter.write_str("no HELLO of protocol version 1"),
        }
    }
}

impl core::error::Error for HelloError {}

impl From<NidError> for HelloError {
    fn from(error: NidError) -> Self {
        Self::Nid(error)
    }
}

impl Hello {
    /// Writes it to the start of `bytes`, little endian and without addresses; how many bytes it has.
    ///
    /// # Errors
    /// [`HelloError::LargeNid`], where the version has no room for one.
    pub fn encode(&self, bytes: &mut [u8; HELLO_BYTES_MAX]) -> Result<usize, HelloError> {
        *bytes = [0; HELLO_BYTES_MAX];
        let connection = self.connection.map_or(NONE, |connection| connection as u32);
        if self.version == Version::V4 {
            put::<8, NID_BYTES, _>(bytes, self.source.nid.to_bytes());
            put::<28, NID_BYTES, _>(bytes, self.destination.nid.to_bytes());
            put_u32::<48, _>(bytes, self.source.pid);
            put_u32::<52, _>(bytes, self.destination.pid);
            put_u64::<56, _>(bytes, self.source_incarnation);
            put_u64::<64, _>(bytes, self.destination_incarnation);
            put_u32::<72, _>(bytes, connection);
        } else {
            let small = |nid: &Nid| nid.to_small().ok_or(HelloError::LargeNid(*nid));
            let [source, destination] = [small(&self.source.nid)?, small(&self.destination.nid)?];
            put_u64::<8, _>(bytes, source);
            if self.version == Version::V1 {
                put_u32::<0, _>(bytes, OLD_MAGIC);
                // Major 1, minor 0.
                put_u32::<4, _>(bytes, 1);
                put_u32::<20, _>(bytes, self.source.pid);
                put_u32::<24, _>(bytes, OLD_TYPE);
                put_u64::<32, _>(bytes, self.source_incarnation);
                put_u32::<40, _>(bytes, connection);
                return Ok(OLD_BYTES);
            }
            put_u64::<16, _>(bytes, destination);
            put_u32::<24, _>(bytes, self.source.pid);
            put_u32::<28, _>(bytes, self.destination.pid);
            put_u64::<32, _>(bytes, self.source_incarnation);
            put_u64::<40, _>(bytes, self.destination_incarnation);
            put_u32::<48, _>(bytes, connection);
        }
        put_u32::<0, _>(bytes, HELLO_MAGIC);
        put_u32::<4, _>(bytes, self.version as u32);
        Ok(if self.version == Version::V4 { LARGE_BYTES } else { SMALL_BYTES })
    }

    /// Reads the beginning of a stream, or what follows the connection request.
    ///
    /// NIDs of versions 2 and 3 are taken to be in the sender's byte order, as its other fields are, and else
    /// to be little endian: kernel nodes of the other byte order understand no others. A destination that is
    /// no NID is the wildcard.
    ///
    /// # Errors
    /// [`HelloError`], as soon as the bytes show it.
    pub fn parse(bytes: &[u8]) -> Result<Parsed<Self>, HelloError> {
        let Some(magic) = bytes.first_chunk() else { return Ok(Parsed::Needs(4)) };
        if u32::from_le_bytes(*magic) == OLD_MAGIC {
            return Self::parse_old(bytes);
        }
        let order = ByteOrder::of_magic(*magic, HELLO_MAGIC);
        let order = order.ok_or(HelloError::Magic(u32::from_le_bytes(*magic)))?;
        let Some(start) = bytes.first_chunk::<START_BYTES>() else { return Ok(Parsed::Needs(START_BYTES)) };
        let number = order.u32(get::<4, 4, _>(start));
        let version = Version::from_wire(number).ok_or(HelloError::Version { number, order })?;
        if version == Version::V4 {
            let Some(whole) = bytes.first_chunk() else { return Ok(Parsed::Needs(LARGE_BYTES)) };
            return Ok(Parsed::Whole(Self::read_large(whole, order)?, LARGE_BYTES));
        }
        let Some(fixed) = bytes.first_chunk() else { return Ok(Parsed::Needs(SMALL_BYTES)) };
        let hello = Self::read_small(fixed, version, order)?;
        let count = order.u32(get::<52, 4, _>(fixed));
        Ok(behind_addresses(bytes, SMALL_BYTES, count)?.with(hello))
    }

    fn read_large(bytes: &[u8; LARGE_BYTES], order: ByteOrder) -> Result<Self, HelloError> {
        let nids = [get::<8, NID_BYTES, _>(bytes), get::<28, NID_BYTES, _>(bytes)];
        let [source, destination] = nids.map(|nid| Nid::from_bytes(&nid));
        Ok(Self {
            version: Version::V4,
            order,
            source: speaker(source?, order.u32(get::<48, 4, _>(bytes)))?,
            destination: ProcessId {
                nid: destination.unwrap_or(Nid::ANY),
                pid: order.u32(get::<52, 4, _>(bytes)),
            },
            source_incarnation: order.u64(get::<56, 8, _>(bytes)),
            destination_incarnation: order.u64(get::<64, 8, _>(bytes)),
            connection: read_connection(order.u32(get::<72, 4, _>(bytes)))?,
        })
    }

    fn read_small(bytes: &[u8; SMALL_BYTES], version: Version, order: ByteOrder) -> Result<Self, HelloError> {
        let nids = [get::<8, 8, _>(bytes), get::<16, 8, _>(bytes)];
        let [source, destination] = nids.map(|nid| read_small_nid(nid, order));
        Ok(Self {
            version,
            order,
            source: speaker(source?, order.u32(get::<24, 4, _>(bytes)))?,
            destination: ProcessId {
                nid: destination.unwrap_or(Nid::ANY),
                pid: order.u32(get::<28, 4, _>(bytes)),
            },
            source_incarnation: order.u64(get::<32, 8, _>(bytes)),
            destination_incarnation: order.u64(get::<40, 8, _>(bytes)),
            connection: read_connection(order.u32(get::<48, 4, _>(bytes)))?,
        })
    }

    fn parse_old(bytes: &[u8]) -> Result<Parsed<Self>, HelloError> {
        let Some(fixed) = bytes.first_chunk::<OLD_BYTES>() else { return Ok(Parsed::Needs(OLD_BYTES)) };
        let (version, message_type) = (get_u32::<4, _>(fixed), get_u32::<24, _>(fixed));
        if version != 1 {
            // Major in the low half, minor in the high one.
            return Err(HelloError::Version { number: version & 0xFFFF, order: ByteOrder::Little });
        }
        let length = get_u32::<28, _>(fixed);
        if message_type != OLD_TYPE || !(length as usize).is_multiple_of(ADDRESS_BYTES) {
            return Err(HelloError::Old);
        }
        let hello = Self {
            version: Version::V1,
            order: ByteOrder::Little,
            source: speaker(Nid::from_small(get_u64::<8, _>(fixed))?, get_u32::<20, _>(fixed))?,
            destination: ProcessId::ANY,
            source_incarnation: get_u64::<32, _>(fixed),
            destination_incarnation: 0,
            connection: read_connection(get_u32::<40, _>(fixed))?,
        };
        Ok(behind_addresses(bytes, OLD_BYTES, length / ADDRESS_BYTES as u32)?.with(hello))
    }
}

impl Parsed<()> {
    fn with<T>(self, value: T) -> Parsed<T> {
        match self {
            Self::Needs(bytes) => Parsed::Needs(bytes),
            Self::Whole((), bytes) => Parsed::Whole(value, bytes),
        }
    }
}

/// Passes over the addresses that follow the fixed part.
fn behind_addresses(bytes: &[u8], fixed_bytes: usize, count: u32) -> Result<Parsed<()>, HelloError> {
    if count > ADDRESSES_MAX {
        return Err(HelloError::AddressCount(count));
    }
    let length = fixed_bytes + count as usize * ADDRESS_BYTES;
    let Some(addresses) = bytes.get(fixed_bytes..length) else { return Ok(Parsed::Needs(length)) };
    if addresses.chunks(ADDRESS_BYTES).any(|address| address.iter().all(|byte| *byte == 0)) {
        return Err(HelloError::ZeroAddress);
    }
    Ok(Parsed::Whole((), length))
}

fn read_small_nid(bytes: [u8; 8], order: ByteOrder) -> Result<Nid, NidError> {
    Nid::from_small(order.u64(bytes)).or_else(|error| match order {
        ByteOrder::Little => Err(error),
        ByteOrder::Big => Nid::from_small(u64::from_le_bytes(bytes)),
    })
}

fn speaker(nid: Nid, pid: u32) -> Result<ProcessId, HelloError> {
    if nid.is_any() { Err(HelloError::AnySource) } else { Ok(ProcessId { nid, pid }) }
}

fn read_connection(number: u32) -> Result<Option<ConnectionType>, HelloError> {
    if number == NONE {
        return Ok(None);
    }
    ConnectionType::from_wire(number).map(Some).ok_or(HelloError::Connection(number))
}
