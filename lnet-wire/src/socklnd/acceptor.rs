//! Connection requests: which NID a dialler wants to speak with.

use core::fmt;

use super::{ACCEPTOR_MAGIC, ByteOrder, HELLO_MAGIC, Parsed};
use crate::bytes::{get, put, put_u32, put_u64};
use crate::nid::{NID_BYTES, Nid, NidError};

/// Bytes of the longest request.
pub const CONNECTION_REQUEST_BYTES_MAX: usize = 28;
const SMALL_BYTES: usize = 16;
/// Bytes that tell its version.
const START_BYTES: usize = 8;
const MAGIC: usize = 0;
const VERSION: usize = 4;
const NID: usize = 8;

/// The first bytes of a dialler: version 1 (16 bytes) for a small NID, version 2 (28 bytes) for a large one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionRequest {
    /// The NID of the listener's NI.
    pub target: Nid,
}

/// Why bytes are no connection request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConnectionRequestError {
    /// Another magic number at the beginning.
    Magic(u32),
    /// A question: which protocol is spoken here?
    Query,
    /// A version that does not exist.
    Version(u32),
    /// The target is no NID.
    Nid(NidError),
}

impl fmt::Display for ConnectionRequestError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(magic) => write!(formatter, "magic 0x{magic:08x}, expected 0x{ACCEPTOR_MAGIC:08x}"),
            Self::Query => write!(formatter, "a query of the protocol, expected a connection request"),
            Self::Version(version) => write!(formatter, "request version {version}, expected 1 or 2"),
            Self::Nid(error) => error.fmt(formatter),
        }
    }
}

impl core::error::Error for ConnectionRequestError {}

impl ConnectionRequestError {
    /// The bytes that a listener says before it closes the connection, if it says anything (`acceptor.c:
    /// lnet_acceptor`).
    #[must_use]
    pub fn answer(&self) -> Option<[u8; SMALL_BYTES]> {
        let is_answered = matches!(self, Self::Query | Self::Version(_));
        is_answered.then(|| {
            let mut bytes = [0; SMALL_BYTES];
            put_u32::<MAGIC, _>(&mut bytes, ACCEPTOR_MAGIC);
            put_u32::<VERSION, _>(&mut bytes, 1);
            bytes
        })
    }
}

impl ConnectionRequest {
    /// Writes it to the start of `bytes`; how many bytes it has.
    pub fn encode(&self, bytes: &mut [u8; CONNECTION_REQUEST_BYTES_MAX]) -> usize {
        put_u32::<MAGIC, _>(bytes, ACCEPTOR_MAGIC);
        if let Some(small) = self.target.to_small() {
            put_u32::<VERSION, _>(bytes, 1);
            put_u64::<NID, _>(bytes, small);
            SMALL_BYTES
        } else {
            put_u32::<VERSION, _>(bytes, 2);
            put::<NID, NID_BYTES, _>(bytes, self.target.to_bytes());
            CONNECTION_REQUEST_BYTES_MAX
        }
    }

    /// Reads the beginning of a stream.
    ///
    /// # Errors
    /// [`ConnectionRequestError`], as soon as the bytes show it.
    pub fn parse(bytes: &[u8]) -> Result<Parsed<Self>, ConnectionRequestError> {
        let Some(magic) = bytes.first_chunk() else { return Ok(Parsed::Needs(4)) };
        let Some(order) = ByteOrder::of_magic(*magic, ACCEPTOR_MAGIC) else {
            let is_query = ByteOrder::of_magic(*magic, HELLO_MAGIC).is_some();
            return Err(if is_query {
                ConnectionRequestError::Query
            } else {
                ConnectionRequestError::Magic(u32::from_le_bytes(*magic))
            });
        };
        let Some(start) = bytes.first_chunk::<START_BYTES>() else { return Ok(Parsed::Needs(START_BYTES)) };
        let (target, length) = match order.u32(get::<VERSION, 4, _>(start)) {
            1 => {
                let Some(whole) = bytes.first_chunk::<SMALL_BYTES>() else {
                    return Ok(Parsed::Needs(SMALL_BYTES));
                };
                (Nid::from_small(order.u64(get::<NID, 8, _>(whole))), SMALL_BYTES)
            }
            2 => {
                let Some(whole) = bytes.first_chunk::<CONNECTION_REQUEST_BYTES_MAX>() else {
                    return Ok(Parsed::Needs(CONNECTION_REQUEST_BYTES_MAX));
                };
                (Nid::from_bytes(&get::<NID, NID_BYTES, _>(whole)), CONNECTION_REQUEST_BYTES_MAX)
            }
            version => return Err(ConnectionRequestError::Version(version)),
        };
        Ok(Parsed::Whole(Self { target: target.map_err(ConnectionRequestError::Nid)? }, length))
    }
}
