//! The prefix of each message from protocol version 2 on: 24 bytes.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | type: 0xC0 without, 0xC1 with an LNet message behind it |
//! | 4 | 4 | checksum, 0 for none |
//! | 8 | 8 | cookie 0 |
//! | 16 | 8 | cookie 1 |

use core::fmt;

use super::ByteOrder;
use crate::bytes::{get, put_u32, put_u64};

/// Bytes of a prefix.
pub const PREFIX_BYTES: usize = 24;
/// Where its checksum is. For the checksum itself these bytes are zero.
pub const CHECKSUM_RANGE: core::ops::Range<usize> = 4..8;
const NOOP: u32 = 0xC0;
const LNET: u32 = 0xC1;
/// Cookie 1 of a keepalive.
const KEEPALIVE: u64 = 1;

/// Whether a message follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrefixKind {
    /// No message follows.
    Noop,
    /// An LNet message does.
    Lnet,
}

/// The beginning of a message (`struct ksock_msg_hdr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// Whether a message follows.
    pub kind: PrefixKind,
    /// Its checksum, 0 for none.
    pub checksum: u32,
    /// The first is what the sender wants acknowledged, or the beginning of a range; the second is
    /// acknowledged.
    pub cookies: [u64; 2],
}

/// The acknowledgement in a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acks {
    /// Nothing.
    None,
    /// Nothing: it shows that the sender lives.
    Keepalive,
    /// One cookie.
    One(u64),
    /// Two cookies.
    Two(u64, u64),
    /// All cookies from the first to the second.
    Range(u64, u64),
}

/// Bytes that are no prefix: their type does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefixError(pub u32);

impl fmt::Display for PrefixError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "prefix type 0x{:x}, expected 0xc0 or 0xc1", self.0)
    }
}

impl core::error::Error for PrefixError {}

impl Prefix {
    /// The prefix of an LNet message that neither asks for an acknowledgement nor brings one.
    #[must_use]
    pub const fn message() -> Self {
        Self { kind: PrefixKind::Lnet, checksum: 0, cookies: [0; 2] }
    }

    /// Acknowledges one cookie.
    #[must_use]
    pub const fn acknowledgement(cookie: u64) -> Self {
        Self { kind: PrefixKind::Noop, checksum: 0, cookies: [0, cookie] }
    }

    /// Shows that this end lives.
    #[must_use]
    pub const fn keepalive() -> Self {
        Self::acknowledgement(KEEPALIVE)
    }

    /// Writes it, little endian.
    pub fn encode(&self, bytes: &mut [u8; PREFIX_BYTES]) {
        let kind = match self.kind {
            PrefixKind::Noop => NOOP,
            PrefixKind::Lnet => LNET,
        };
        put_u32::<0, _>(bytes, kind);
        put_u32::<4, _>(bytes, self.checksum);
        put_u64::<8, _>(bytes, self.cookies[0]);
        put_u64::<16, _>(bytes, self.cookies[1]);
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`PrefixError`] for an unknown type.
    pub const fn decode(bytes: &[u8; PREFIX_BYTES], order: ByteOrder) -> Result<Self, PrefixError> {
        let kind = match order.u32(get::<0, 4, _>(bytes)) {
            NOOP => PrefixKind::Noop,
            LNET => PrefixKind::Lnet,
            other => return Err(PrefixError(other)),
        };
        let checksum = order.u32(get::<4, 4, _>(bytes));
        let cookies = [order.u64(get::<8, 8, _>(bytes)), order.u64(get::<16, 8, _>(bytes))];
        Ok(Self { kind, checksum, cookies })
    }

    /// The acknowledgement that it carries (`socklnd_proto.c: ksocknal_handle_zcack`).
    #[must_use]
    pub const fn acks(&self) -> Acks {
        let [first, second] = self.cookies;
        let first = if matches!(self.kind, PrefixKind::Lnet) { 0 } else { first };
        match (first, second) {
            (_, 0) => Acks::None,
            (0, KEEPALIVE) => Acks::Keepalive,
            (0, cookie) => Acks::One(cookie),
            (first, second) if first > second => Acks::Two(first, second),
            (first, second) => Acks::Range(first, second),
        }
    }
}
