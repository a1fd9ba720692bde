//! Messages on the control socket: a header of 12 bytes, then JSON.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | `LNCT` |
//! | 4 | 2 | version of the protocol, big endian |
//! | 6 | 2 | zero |
//! | 8 | 4 | bytes of JSON that follow, big endian |
//!
//! The client sends a [`ControlRequest`](crate::ControlRequest), the node one or more
//! [`Reply`](crate::Reply) messages; then the next request may follow.
//!
//! Invariants: the header of every version is this one, so that each side can tell the other's; a length is
//! checked before memory is taken for it.

use std::io::{self, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// The version spoken here. Records and requests have no other: any change of them is a new version.
pub const VERSION: u16 = 2;
/// What each message begins with.
pub const MAGIC: [u8; 4] = *b"LNCT";
/// Bytes of the header.
pub const HEADER_BYTES: usize = 12;
/// Most bytes of a request.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a reply. What may be longer is asked for page by page.
pub const REPLY_BYTES_MAX: usize = 8 << 20;

/// What is wrong with a message.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The bytes do not begin as a message does.
    #[error("bytes {0:02x?} where a message was expected to begin with \"LNCT\"")]
    Magic([u8; 4]),
    /// The other side speaks another version.
    #[error("protocol version {0}, expected {VERSION}: lnetctl and daemon are of different releases")]
    Version(u16),
    /// The message is longer than it may be.
    #[error("a message of {length} bytes, expected at most {limit}")]
    Length {
        /// Its length.
        length: usize,
        /// The most it may have.
        limit: usize,
    },
    /// Its bytes are not what such a message holds.
    #[error("a message that cannot be read: {0}")]
    Json(#[from] serde_json::Error),
}

/// The length of the JSON behind this header.
///
/// # Errors
/// Whatever is wrong with the header.
pub fn read_header(header: &[u8; HEADER_BYTES], limit: usize) -> Result<usize, ProtocolError> {
    let [a, b, c, d, version @ .., l0, l1, l2, l3] = *header;
    let [v0, v1, _, _] = version;
    if [a, b, c, d] != MAGIC {
        return Err(ProtocolError::Magic([a, b, c, d]));
    }
    let version = u16::from_be_bytes([v0, v1]);
    if version != VERSION {
        return Err(ProtocolError::Version(version));
    }
    let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    if length > limit {
        return Err(ProtocolError::Length { length, limit });
    }
    Ok(length)
}

/// The value in the JSON of a message.
///
/// # Errors
/// [`ProtocolError::Json`].
pub fn decode<T: DeserializeOwned>(json: &[u8]) -> Result<T, ProtocolError> {
    Ok(serde_json::from_slice(json)?)
}

/// A whole message.
///
/// # Errors
/// [`ProtocolError::Length`] if it would be longer than `limit`.
pub fn encode<T: Serialize>(value: &T, limit: usize) -> Result<Vec<u8>, ProtocolError> {
    let mut json = Limited { message: vec![0; HEADER_BYTES], length: 0, limit };
    serde_json::to_writer(&mut json, value)?;
    let Limited { mut message, length, .. } = json;
    if length > limit {
        return Err(ProtocolError::Length { length, limit });
    }
    let header = message.iter_mut().zip(header(length as u32));
    header.for_each(|(to, from)| *to = from);
    Ok(message)
}

/// A message that takes no more bytes behind its header than it may; those beyond are counted.
struct Limited {
    message: Vec<u8>,
    length: usize,
    limit: usize,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.length += bytes.len();
        if self.length <= self.limit {
            self.message.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn header(length: u32) -> [u8; HEADER_BYTES] {
    let [a, b, c, d] = MAGIC;
    let [v0, v1] = VERSION.to_be_bytes();
    let [l0, l1, l2, l3] = length.to_be_bytes();
    [a, b, c, d, v0, v1, 0, 0, l0, l1, l2, l3]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ControlRequest;
    use lnet_model::request::{Change, ChangeSet};

    #[test]
    fn messages_come_back() {
        let changes = vec![Change::Configure { all: true, large: false }, Change::Unconfigure];
        let request = ControlRequest::Apply(ChangeSet { changes, dry_run: true });
        let message = encode(&request, REQUEST_BYTES_MAX).unwrap();
        let header = message[..HEADER_BYTES].try_into().unwrap();
        assert_eq!(read_header(header, REQUEST_BYTES_MAX).unwrap(), message.len() - HEADER_BYTES);
        assert_eq!(decode::<ControlRequest>(&message[HEADER_BYTES..]).unwrap(), request);
    }

    #[test]
    fn bad_headers_are_told_apart() {
        let check = |change: fn(&mut [u8; HEADER_BYTES]), expected: &str| {
            let mut header = header(100);
            change(&mut header);
            let error = read_header(&header, 100).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        assert_eq!(read_header(&header(100), 100).unwrap(), 100);
        check(|header| header[0] = b'G', "expected to begin");
        check(|header| header[5] = 9, "protocol version 9, expected 2");
        check(|header| header[11] = 101, "101 bytes, expected at most 100");
        check(|header| header[8..].fill(0xFF), "4294967295 bytes");
    }

    #[test]
    fn what_is_too_long_is_not_sent() {
        assert!(matches!(encode(&"four", 5), Err(ProtocolError::Length { length: 6, limit: 5 })));
        assert!(decode::<ControlRequest>(b"{\"nets\":").is_err());
        assert!(decode::<ControlRequest>(b"\"frob\"").is_err());
    }
}
