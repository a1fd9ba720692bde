//! Messages on the control socket: JSON in one part or several, each behind a header of 12 bytes.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | `LNCT` |
//! | 4 | 2 | version of the protocol, big endian |
//! | 6 | 2 | flags: 1 where another part of the message follows |
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
pub const VERSION: u16 = 4;
/// What each message begins with.
pub const MAGIC: [u8; 4] = *b"LNCT";
/// Bytes of the header.
pub const HEADER_BYTES: usize = 12;
/// Flag of a part behind which another one of the message follows.
pub const MORE: u16 = 1;
/// Most bytes of JSON in a part.
pub const PART_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a request.
pub const REQUEST_BYTES_MAX: usize = PART_BYTES_MAX;
/// Most bytes of a request of root and the node's owner: all changes of a document are one.
pub const CHANGES_BYTES_MAX: usize = 16 << 20;
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
    /// A part says nothing and is not the last.
    #[error("a part of 0 bytes where more of the message follows")]
    EmptyPart,
    /// Its bytes are not what such a message holds.
    #[error("a message that cannot be read: {0}")]
    Json(#[from] serde_json::Error),
}

/// Whether another part of the message follows the one behind this header.
#[must_use]
pub const fn has_more(header: &[u8; HEADER_BYTES]) -> bool {
    let [_, _, _, _, _, _, f0, f1, ..] = *header;
    u16::from_be_bytes([f0, f1]) & MORE != 0
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
    if length == 0 && has_more(header) {
        return Err(ProtocolError::EmptyPart);
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

/// A whole message, in as many parts as it takes.
///
/// # Errors
/// [`ProtocolError::Length`] if it would be longer than `limit`.
pub fn encode<T: Serialize>(value: &T, limit: usize) -> Result<Vec<u8>, ProtocolError> {
    let mut parts = Parts { message: vec![0; HEADER_BYTES], begin: 0, length: 0, limit };
    serde_json::to_writer(&mut parts, value)?;
    let length = parts.length;
    if length > limit {
        return Err(ProtocolError::Length { length, limit });
    }
    parts.end(0);
    Ok(parts.message)
}

/// A message that takes no more bytes behind its headers than it may; those beyond are counted.
struct Parts {
    message: Vec<u8>,
    /// Where the last part begins.
    begin: usize,
    length: usize,
    limit: usize,
}

impl Parts {
    /// Bytes of JSON in the last part.
    fn used(&self) -> usize {
        self.message.len() - self.begin - HEADER_BYTES
    }

    /// Gives the last part its header.
    fn end(&mut self, flags: u16) {
        let header = header(self.used() as u32, flags);
        let begin = self.message.iter_mut().skip(self.begin);
        begin.zip(header).for_each(|(to, from)| *to = from);
    }
}

impl Write for Parts {
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<usize> {
        let length = bytes.len();
        self.length += length;
        while self.length <= self.limit && !bytes.is_empty() {
            if self.used() == PART_BYTES_MAX {
                self.end(MORE);
                self.begin = self.message.len();
                self.message.extend([0; HEADER_BYTES]);
            }
            let (now, later) = bytes.split_at(bytes.len().min(PART_BYTES_MAX - self.used()));
            self.message.extend_from_slice(now);
            bytes = later;
        }
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn header(length: u32, flags: u16) -> [u8; HEADER_BYTES] {
    let [a, b, c, d] = MAGIC;
    let [v0, v1] = VERSION.to_be_bytes();
    let [f0, f1] = flags.to_be_bytes();
    let [l0, l1, l2, l3] = length.to_be_bytes();
    [a, b, c, d, v0, v1, f0, f1, l0, l1, l2, l3]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ControlRequest;
    use lnet_model::request::{Change, ChangeSet};

    #[test]
    fn messages_come_back() {
        let changes = vec![Change::Configure { all: true, large: false }, Change::Unconfigure];
        let request = ControlRequest::Apply(ChangeSet { changes, dry_run: true, generation: None });
        let message = encode(&request, REQUEST_BYTES_MAX).unwrap();
        let header = message[..HEADER_BYTES].try_into().unwrap();
        assert_eq!(read_header(header, REQUEST_BYTES_MAX).unwrap(), message.len() - HEADER_BYTES);
        assert_eq!(decode::<ControlRequest>(&message[HEADER_BYTES..]).unwrap(), request);
    }

    #[test]
    fn bad_headers_are_told_apart() {
        let check = |change: fn(&mut [u8; HEADER_BYTES]), expected: &str| {
            let mut header = header(100, 0);
            change(&mut header);
            let error = read_header(&header, 100).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        assert_eq!(read_header(&header(100, 0), 100).unwrap(), 100);
        check(|header| header[0] = b'G', "expected to begin");
        check(|header| header[5] = 9, "protocol version 9, expected 4");
        check(|header| header[11] = 101, "101 bytes, expected at most 100");
        check(|header| header[8..].fill(0xFF), "4294967295 bytes");
        check(|header| (header[7], header[11]) = (1, 0), "0 bytes where more");
    }

    #[test]
    fn what_is_long_goes_in_parts() {
        // The quotes are sent too.
        for (bytes, parts) in
            [(0, 1), (PART_BYTES_MAX - 2, 1), (PART_BYTES_MAX - 1, 2), (3 * PART_BYTES_MAX, 4)]
        {
            let message = encode(&"a".repeat(bytes), CHANGES_BYTES_MAX).unwrap();
            let (mut rest, mut json, mut count) = (message.as_slice(), Vec::new(), 0);
            loop {
                let header = rest.first_chunk().unwrap();
                let length = read_header(header, PART_BYTES_MAX).unwrap();
                json.extend_from_slice(&rest[HEADER_BYTES..HEADER_BYTES + length]);
                rest = &rest[HEADER_BYTES + length..];
                count += 1;
                if !has_more(header) {
                    break;
                }
            }
            assert_eq!((decode::<String>(&json).unwrap().len(), count, rest.len()), (bytes, parts, 0));
        }
    }

    #[test]
    fn what_is_too_long_is_not_sent() {
        assert!(matches!(encode(&"four", 5), Err(ProtocolError::Length { length: 6, limit: 5 })));
        assert!(decode::<ControlRequest>(b"{\"nets\":").is_err());
        assert!(decode::<ControlRequest>(b"\"frob\"").is_err());
    }
}
