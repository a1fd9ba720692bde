//! Tests, and the orders for them.

use super::fields::{Field, Source};
use super::{BODY_BYTES, BULK_BYTES_MAX, FEATURE_VARIABLE_LENGTH, PAGE_BYTES, Service, WORD_BYTES};
use crate::bytes::{get_u32, get_u64, put_u32, put_u64};

/// Offset of the parameters behind that of the service.
const PARAMETERS: usize = 18;

/// Where bulk data goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Direction {
    /// Data goes from the server to the client.
    Read = 1,
    /// Data goes from the client to the server.
    Write = 2,
}

impl Direction {
    /// The direction of this number.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Read),
            2 => Some(Self::Write),
            _ => None,
        }
    }
}

/// How bulk data is checked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Check {
    /// Not at all.
    None = 1,
    /// The first and the last word.
    Simple = 2,
    /// Each word.
    Full = 3,
    /// Not at all, and it need not be written to memory. Nodes before 2.17 refuse it.
    Discard = 4,
}

impl Check {
    /// The check of this number.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::None),
            2 => Some(Self::Simple),
            3 => Some(Self::Full),
            4 => Some(Self::Discard),
            _ => None,
        }
    }
}

/// An operation on a batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum BatchOperation {
    /// Its tests begin.
    Run = 1,
    /// Its tests end.
    Stop = 2,
    /// The node tells what is active.
    Query = 3,
}

impl BatchOperation {
    /// The operation of this number.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Run),
            2 => Some(Self::Stop),
            3 => Some(Self::Query),
            _ => None,
        }
    }
}

/// The service of a test, with its parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// Pings.
    Ping {
        /// Bytes; 0.
        size_bytes: u32,
        /// 0.
        flags: u32,
    },
    /// Bulk data of whole pages, in sessions without [`FEATURE_VARIABLE_LENGTH`].
    BrwPages {
        /// A [`Direction`].
        direction: u32,
        /// Pages of the client's size.
        pages: u32,
        /// A [`Check`].
        flags: u32,
    },
    /// Bulk data, in sessions with [`FEATURE_VARIABLE_LENGTH`].
    Brw {
        /// A [`Direction`].
        direction: u16,
        /// A [`Check`].
        flags: u16,
        /// Bytes of the data.
        length_bytes: u32,
        /// Offset of the data in the client's first page.
        offset_bytes: u32,
    },
    /// A service that is no test.
    Unknown {
        /// Its number.
        service: u32,
    },
}

impl Test {
    /// Direction, check and length of bulk data that can be sent: a multiple of [`WORD_BYTES`] up to
    /// [`BULK_BYTES_MAX`].
    #[must_use]
    pub fn bulk(&self) -> Option<(Direction, Check, u32)> {
        let (direction, flags, length_bytes) = match *self {
            Self::Brw { direction, flags, length_bytes, offset_bytes } => {
                let is_aligned = offset_bytes.is_multiple_of(WORD_BYTES);
                (u32::from(direction), u32::from(flags), is_aligned.then_some(length_bytes)?)
            }
            Self::BrwPages { direction, pages, flags } => (direction, flags, pages.checked_mul(PAGE_BYTES)?),
            Self::Ping { .. } | Self::Unknown { .. } => return None,
        };
        let is_valid =
            (WORD_BYTES..=BULK_BYTES_MAX).contains(&length_bytes) && length_bytes.is_multiple_of(WORD_BYTES);
        Some((Direction::new(direction)?, Check::new(flags)?, is_valid.then_some(length_bytes)?))
    }

    /// The number of its service.
    #[must_use]
    pub const fn service(&self) -> u32 {
        match *self {
            Self::Ping { .. } => Service::Ping as u32,
            Self::Brw { .. } | Self::BrwPages { .. } => Service::Brw as u32,
            Self::Unknown { service } => service,
        }
    }
}

impl Field for Test {
    // Bytes from the service to the end of the parameters; the fields between them are the body's.
    const BYTES: usize = PARAMETERS + 12;

    fn read(source: &Source, offset: usize) -> Self {
        const PING: u32 = Service::Ping as u32;
        const BRW: u32 = Service::Brw as u32;
        let at = offset + PARAMETERS;
        let word = |index: usize| u32::read(source, at + index * 4);
        match u32::read(source, offset) {
            PING => Self::Ping { size_bytes: word(0), flags: word(1) },
            BRW if source.features & FEATURE_VARIABLE_LENGTH == 0 => {
                Self::BrwPages { direction: word(0), pages: word(1), flags: word(2) }
            }
            BRW => Self::Brw {
                direction: u16::read(source, at),
                flags: u16::read(source, at + 2),
                length_bytes: word(1),
                offset_bytes: word(2),
            },
            service => Self::Unknown { service },
        }
    }

    fn write(&self, body: &mut [u8; BODY_BYTES], offset: usize) {
        self.service().write(body, offset);
        let at = offset + PARAMETERS;
        match *self {
            Self::Ping { size_bytes, flags } => {
                size_bytes.write(body, at);
                flags.write(body, at + 4);
            }
            Self::BrwPages { direction, pages, flags } => {
                direction.write(body, at);
                pages.write(body, at + 4);
                flags.write(body, at + 8);
            }
            Self::Brw { direction, flags, length_bytes, offset_bytes } => {
                direction.write(body, at);
                flags.write(body, at + 2);
                length_bytes.write(body, at + 4);
                offset_bytes.write(body, at + 8);
            }
            Self::Unknown { .. } => {}
        }
    }
}

/// A node that a client sends the requests of a test to, in a list of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// Its NID, in the small form.
    pub nid: u64,
    /// Its pid.
    pub pid: u32,
}

impl Destination {
    /// Bytes of an entry of the list.
    pub const BYTES: usize = 12;
    /// Entries that a page of the list has room for; none lies in two pages.
    pub const PER_PAGE: usize = PAGE_BYTES as usize / Self::BYTES;

    /// Reads an entry, in the byte order of the console.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::BYTES], is_swapped: bool) -> Self {
        let (nid, pid) = (get_u64::<0, _>(bytes), get_u32::<8, _>(bytes));
        if is_swapped { Self { nid: nid.swap_bytes(), pid: pid.swap_bytes() } } else { Self { nid, pid } }
    }

    /// Writes an entry, in little endian.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put_u64::<0, _>(&mut bytes, self.nid);
        put_u32::<8, _>(&mut bytes, self.pid);
        bytes
    }
}
