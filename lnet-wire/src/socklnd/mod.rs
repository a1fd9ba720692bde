//! The bytes of the socklnd protocol around LNet headers: what LNet says over TCP.
//!
//! A stream begins with the dialler's [`ConnectionRequest`] and [`Hello`], and the listener's [`Hello`]. From
//! then on each message in either direction is a [`Prefix`], an LNet header and its payload; protocol version
//! 1 has no prefix.
//!
//! Invariants: what is sent is little endian; what is received may be of either byte order, which the
//! sender's first magic number shows. An LNet header behind it is little endian always.
//!
//! Source: `lnet/acceptor.c`, `klnds/socklnd/socklnd-idl.h`, `socklnd_proto.c`.

mod acceptor;
mod checksum;
mod hello;
mod prefix;

#[cfg(test)]
mod tests;

pub use acceptor::{CONNECTION_REQUEST_BYTES_MAX, ConnectionRequest, ConnectionRequestError};
pub use checksum::Checksum;
pub use hello::{ConnectionType, HELLO_BYTES_MAX, Hello, HelloError, Version};
pub use prefix::{Acks, CHECKSUM_RANGE, PREFIX_BYTES, Prefix, PrefixError, PrefixKind};

/// Begins a connection request (`LNET_PROTO_ACCEPTOR_MAGIC`).
pub const ACCEPTOR_MAGIC: u32 = 0xACCE_7100;
/// Begins a HELLO of protocol version 2 and later (`LNET_PROTO_MAGIC`).
pub const HELLO_MAGIC: u32 = 0x4572_6963;
/// Begins a HELLO of protocol version 1 (`LNET_PROTO_TCP_MAGIC`).
pub const OLD_MAGIC: u32 = 0xEEBC_0DED;
/// The port that acceptors listen at (`accept_port`).
pub const PORT: u16 = 988;

/// Byte order of a sender's integers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByteOrder {
    /// The least significant byte first.
    Little,
    /// The most significant byte first.
    Big,
}

impl ByteOrder {
    /// The order in which these bytes are `magic`.
    const fn of_magic(bytes: [u8; 4], magic: u32) -> Option<Self> {
        if u32::from_le_bytes(bytes) == magic {
            Some(Self::Little)
        } else if u32::from_be_bytes(bytes) == magic {
            Some(Self::Big)
        } else {
            None
        }
    }

    const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    const fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }
}

/// The beginning of a stream, as far as it has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed<T> {
    /// Bytes from the beginning that are needed to say more: more than there are.
    Needs(usize),
    /// The whole of it, and how many bytes it has.
    Whole(T, usize),
}
