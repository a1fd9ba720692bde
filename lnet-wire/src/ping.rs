//! Ping information: what a node answers to a ping and pushes to its peers.
//!
//! Fields are in the owner's byte order, which the magic tells; large NIDs are in network order always.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic |
//! | 4 | 4 | [`Features`] |
//! | 8 | 4 | pid of the node |
//! | 12 | 4 | number of small entries, entry 0 included |
//! | 16 | 16 each | small entries: NID (8), status (4), 0 (4) |
//! | | | large entries: status (4), NID (the bytes in use, padded to a multiple of 4) |
//! | | | metadata, to the end |
//!
//! Entry 0 is `0@lo`; where other entries have a status it has the sequence number of the buffer, and
//! behind that, if there are large entries, the bytes of everything but the metadata.
//!
//! Invariant: reading goes by the bytes that are there. A buffer may have been cut where the asker's
//! memory ended ([`PingInfo::is_truncated`]); its entries then end early.
//!
//! Source: `uapi/linux/lnet/lnet-idl.h`, `struct lnet_ping_info`; `lnet/lnet/api-ni.c`.

mod write;

#[cfg(test)]
mod tests;

use core::fmt;

use crate::bytes::{get, get_u32};
use crate::nid::{NID_BYTES, Nid};

pub use write::{encoded_bytes, write};

/// The magic, in the owner's byte order.
pub const MAGIC: u32 = 0x7069_6E67;
/// Bytes in front of the entries.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a small entry.
pub const SMALL_ENTRY_BYTES: usize = 16;
/// Bytes of a large entry with a 16-byte address.
pub const LARGE_ENTRY_BYTES: usize = 24;
/// Most entries of each form that a node has (kernel nodes to 2.17.0 refuse more than 200).
pub const ENTRIES_MAX: u32 = 4096;
/// Bytes that everyone asks for at the least: 16 small entries.
pub const BUFFER_BYTES_MIN: usize = HEADER_BYTES + 16 * SMALL_ENTRY_BYTES;
/// Bytes of the largest buffer, metadata aside.
pub const BUFFER_BYTES_MAX: usize =
    HEADER_BYTES + ENTRIES_MAX as usize * (SMALL_ENTRY_BYTES + LARGE_ENTRY_BYTES);

const MAGIC_OFFSET: usize = 0;
const FEATURES_OFFSET: usize = 4;
const PID_OFFSET: usize = 8;
const COUNT_OFFSET: usize = 12;
const ENTRY_NID_OFFSET: usize = 0;
const ENTRY_STATUS_OFFSET: usize = 8;
/// Only in entry 0.
const ENTRY_SIZE_OFFSET: usize = 12;
/// Bytes of a large entry in front of its NID.
const LARGE_STATUS_BYTES: usize = 4;
/// Bytes of header and entry 0, without which nothing can be said.
const FIRST_BYTES: usize = HEADER_BYTES + SMALL_ENTRY_BYTES;

/// Feature bits of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Features(pub u32);

impl Features {
    /// Historic; not set today.
    pub const BASE: Self = Self(0x01);
    /// The statuses are valid. Required.
    pub const NI_STATUS: Self = Self(0x02);
    /// The node does **not** route.
    pub const ROUTING_DISABLED: Self = Self(0x04);
    /// Understands Multi-Rail; the sequence number is valid.
    pub const MULTI_RAIL: Self = Self(0x08);
    /// Dynamic discovery is enabled.
    pub const DISCOVERY: Self = Self(0x10);
    /// Large entries follow the small ones.
    pub const LARGE_ADDRESSES: Self = Self(0x20);
    /// The primary NID is that of the first large entry.
    pub const PRIMARY_LARGE: Self = Self(0x40);
    /// Metadata follows the entries.
    pub const METADATA: Self = Self(0x80);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Adds the bits of `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Takes away the bits of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// State of an NI, as its node tells it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NiStatus(pub u32);

impl NiStatus {
    /// Says nothing.
    pub const INVALID: Self = Self(0);
    /// Up.
    pub const UP: Self = Self(0x15AA_C0DE);
    /// Down.
    pub const DOWN: Self = Self(0xDEAD_FACE);
}

/// An NI of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PingNi {
    /// Its NID.
    pub nid: Nid,
    /// Its state.
    pub status: NiStatus,
}

/// Why bytes are no ping information, or information fits no bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PingError {
    /// Ends before the end of entry 0.
    Truncated {
        /// Bytes that were there.
        length: usize,
        /// Bytes of header and entry 0.
        expected: usize,
    },
    /// Another magic, in either byte order.
    Magic(u32),
    /// Feature bits without [`Features::NI_STATUS`].
    Features(Features),
    /// No entry at all, or more than [`ENTRIES_MAX`].
    Count(u32),
    /// Entry 0 is not `0@lo` but this value.
    FirstEntry(u64),
    /// Entry 0 claims more bytes than [`BUFFER_BYTES_MAX`].
    Size(u32),
    /// An NI to be written has the wildcard as its NID, a second `0@lo`, or one with bytes set
    /// behind those in use.
    Interface(Nid),
    /// The slice to be written to is shorter than the information.
    NoRoom {
        /// Bytes of the slice.
        length: usize,
        /// Bytes of the information.
        expected: usize,
    },
}

impl fmt::Display for PingError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { length, expected } => {
                write!(formatter, "{length} bytes of ping information, expected at least {expected}")
            }
            Self::Magic(magic) => write!(formatter, "ping magic 0x{magic:08x}, expected 0x{MAGIC:08x}"),
            Self::Features(features) => {
                write!(formatter, "ping features 0x{:x}, expected 0x2 among them", features.0)
            }
            Self::Count(count) => write!(formatter, "{count} ping entries, expected 1 to {ENTRIES_MAX}"),
            Self::FirstEntry(nid) => write!(formatter, "nid 0x{nid:016x} in ping entry 0, expected 0@lo"),
            Self::Size(size) => {
                write!(formatter, "{size} bytes by ping entry 0, expected at most {BUFFER_BYTES_MAX}")
            }
            Self::Interface(nid) => write!(formatter, "nid {nid}, expected that of an interface"),
            Self::NoRoom { length, expected } => {
                write!(formatter, "room for {length} bytes of ping information, expected {expected}")
            }
        }
    }
}

impl core::error::Error for PingError {}

/// Ping information that has passed its checks, over the bytes of its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PingInfo<'a> {
    bytes: &'a [u8],
    is_swapped: bool,
    features: Features,
    pid: u32,
    small_count: u32,
    sequence: u32,
    full_bytes: usize,
}

/// The integer at a constant offset, in the owner's byte order.
fn word<const OFFSET: usize, const L: usize>(bytes: &[u8; L], is_swapped: bool) -> u32 {
    let value = get_u32::<OFFSET, L>(bytes);
    if is_swapped { value.swap_bytes() } else { value }
}

/// The NID of a small entry, in its small form.
fn small_nid(entry: &[u8; SMALL_ENTRY_BYTES], is_swapped: bool) -> u64 {
    let value = u64::from_le_bytes(get::<ENTRY_NID_OFFSET, 8, _>(entry));
    if is_swapped { value.swap_bytes() } else { value }
}

impl<'a> PingInfo<'a> {
    /// Reads ping information; `bytes` may have been cut behind entry 0.
    ///
    /// # Errors
    /// A [`PingError`] that says which rule was broken and by what. The rules are those of LNet
    /// (`peer.c`, `api-ni.c: lnet_ping`), and a bound on the size.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PingError> {
        let truncated = PingError::Truncated { length: bytes.len(), expected: FIRST_BYTES };
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(truncated)?;
        let entry = rest.first_chunk::<SMALL_ENTRY_BYTES>().ok_or(truncated)?;
        let is_swapped = match get_u32::<MAGIC_OFFSET, _>(header) {
            MAGIC => false,
            magic if magic.swap_bytes() == MAGIC => true,
            magic => return Err(PingError::Magic(magic)),
        };
        let features = Features(word::<FEATURES_OFFSET, _>(header, is_swapped));
        if !features.contains(Features::NI_STATUS) {
            return Err(PingError::Features(features));
        }
        let small_count = word::<COUNT_OFFSET, _>(header, is_swapped);
        if !(1..=ENTRIES_MAX).contains(&small_count) {
            return Err(PingError::Count(small_count));
        }
        let first = small_nid(entry, is_swapped);
        if Nid::from_small(first) != Ok(Nid::LO) {
            return Err(PingError::FirstEntry(first));
        }
        let mut full_bytes = HEADER_BYTES + small_count as usize * SMALL_ENTRY_BYTES;
        if features.contains(Features::LARGE_ADDRESSES) {
            let size = word::<ENTRY_SIZE_OFFSET, _>(entry, is_swapped) & !3;
            if size as usize > BUFFER_BYTES_MAX {
                return Err(PingError::Size(size));
            }
            full_bytes = full_bytes.max(size as usize);
        }
        Ok(Self {
            bytes,
            is_swapped,
            features,
            pid: word::<PID_OFFSET, _>(header, is_swapped),
            small_count,
            sequence: word::<ENTRY_STATUS_OFFSET, _>(entry, is_swapped),
            full_bytes,
        })
    }

    /// Feature bits of the node.
    #[must_use]
    pub const fn features(&self) -> Features {
        self.features
    }

    /// The node's pid.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Sequence number of the buffer: grows when the node's NIs change. Valid if
    /// [`Features::MULTI_RAIL`] is set.
    #[must_use]
    pub const fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Bytes of the whole buffer by its own account, metadata aside.
    #[must_use]
    pub const fn full_bytes(&self) -> usize {
        self.full_bytes
    }

    /// Whether entries are missing: ask again with room for [`PingInfo::full_bytes`].
    #[must_use]
    pub const fn is_truncated(&self) -> bool {
        self.bytes.len() < self.full_bytes
    }

    /// The node's NIs in its order, small ones before large ones; without entry 0, and without
    /// entries whose NID is malformed or the wildcard.
    #[must_use]
    pub fn interfaces(&self) -> Interfaces<'a> {
        let (small, large) = self.regions();
        let (small, _) = small.as_chunks();
        Interfaces { small: small.get(1..).unwrap_or_default().iter(), large, is_swapped: self.is_swapped }
    }

    /// The NID that the node goes by; `None` if it names none: such a node cannot be discovered.
    #[must_use]
    pub fn primary(&self) -> Option<Nid> {
        let mut interfaces = self.interfaces();
        let is_large = self.features.contains(Features::PRIMARY_LARGE);
        let first = if is_large { interfaces.next_large() } else { interfaces.next_small() };
        first.map(|interface| interface.nid)
    }

    /// The metadata block, opaque to LNet; `None` if there is none, or the buffer was cut before it.
    #[must_use]
    pub fn metadata(&self) -> Option<&'a [u8]> {
        if self.features.contains(Features::METADATA) { self.bytes.get(self.full_bytes..) } else { None }
    }

    /// The bytes of the small entries and those of the large ones, as far as they are there.
    fn regions(&self) -> (&'a [u8], &'a [u8]) {
        let end = self.full_bytes.min(self.bytes.len());
        let entries = self.bytes.get(HEADER_BYTES..end).unwrap_or_default();
        let small_bytes = self.small_count as usize * SMALL_ENTRY_BYTES;
        entries.split_at_checked(small_bytes).unwrap_or((entries, &[]))
    }
}

/// Iterates over the NIs in ping information; made by [`PingInfo::interfaces`].
#[derive(Clone, Debug)]
pub struct Interfaces<'a> {
    small: core::slice::Iter<'a, [u8; SMALL_ENTRY_BYTES]>,
    large: &'a [u8],
    is_swapped: bool,
}

impl Interfaces<'_> {
    /// The next small entry that names an NI.
    fn next_small(&mut self) -> Option<PingNi> {
        let is_swapped = self.is_swapped;
        self.small.find_map(|entry| {
            let nid = Nid::from_small(small_nid(entry, is_swapped)).ok().filter(|nid| !nid.is_any())?;
            Some(PingNi { nid, status: NiStatus(word::<ENTRY_STATUS_OFFSET, _>(entry, is_swapped)) })
        })
    }

    /// The next large entry that names an NI.
    fn next_large(&mut self) -> Option<PingNi> {
        // The first bytes of an entry hold all that its length depends on.
        while let Some(head) = self.large.first_chunk::<8>() {
            let used_bytes = usize::from(head[LARGE_STATUS_BYTES]) + 8;
            let entry_bytes = large_entry_bytes(used_bytes);
            let (entry, rest) = self.large.split_at_checked(entry_bytes)?;
            self.large = rest;
            let Some(nid) = entry.get(LARGE_STATUS_BYTES..LARGE_STATUS_BYTES + used_bytes) else { continue };
            let mut bytes = [0; NID_BYTES];
            let Some(used) = bytes.get_mut(..used_bytes) else { continue };
            used.copy_from_slice(nid);
            if let Some(nid) = Nid::from_bytes(&bytes).ok().filter(|nid| !nid.is_any()) {
                return Some(PingNi { nid, status: NiStatus(word::<0, _>(head, self.is_swapped)) });
            }
        }
        None
    }
}

impl Iterator for Interfaces<'_> {
    type Item = PingNi;

    fn next(&mut self) -> Option<PingNi> {
        self.next_small().or_else(|| self.next_large())
    }
}

/// Bytes of a large entry whose NID has so many bytes in use.
const fn large_entry_bytes(used_bytes: usize) -> usize {
    LARGE_STATUS_BYTES + used_bytes.next_multiple_of(4)
}
