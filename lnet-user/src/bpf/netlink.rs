//! As much of netlink as asking about one interface takes: one request, one answer, attributes.
//!
//! Source: the kernel's `Documentation/userspace-api/netlink/intro.rst`.

use std::io;

use rustix::fd::OwnedFd;
use rustix::net::netlink::GENERIC;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Bytes of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// Bytes of an attribute's header.
const ATTRIBUTE_BYTES: usize = 4;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// Marks an attribute of attributes (`NLA_F_NESTED`); with the byte order flag above it no part of the type.
const NESTED: u16 = 0x8000;
const TYPE_MASK: u16 = 0x3FFF;
/// More than any answer about one interface.
const ANSWER_BYTES: usize = 64 * 1024;

/// A netlink socket.
pub(super) struct Netlink {
    socket: OwnedFd,
}

impl Netlink {
    /// Speaks to `rtnetlink`.
    pub(super) fn route() -> io::Result<Self> {
        // `NETLINK_ROUTE` is 0, the protocol by default.
        Self::open(None)
    }

    /// Speaks to generic netlink families.
    pub(super) fn generic() -> io::Result<Self> {
        Self::open(Some(GENERIC))
    }

    fn open(protocol: Option<rustix::net::Protocol>) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        Ok(Self { socket })
    }

    /// Sends a request of `message_type` and returns the answer's body, behind its netlink header.
    ///
    /// # Errors
    /// That of the system call, or the one that the kernel answered with.
    pub(super) fn ask(&self, message_type: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        let length = HEADER_BYTES + body.len();
        let mut message = Vec::with_capacity(length);
        message.extend_from_slice(&u32::try_from(length).map_err(io::Error::other)?.to_ne_bytes());
        message.extend_from_slice(&message_type.to_ne_bytes());
        message.extend_from_slice(&REQUEST.to_ne_bytes());
        // Sequence number and port: one request is under way at a time, and the kernel fills in the port.
        message.extend_from_slice(&[0; 8]);
        message.extend_from_slice(body);
        rustix::net::send(&self.socket, &message, SendFlags::empty())?;
        let mut answer = vec![0; ANSWER_BYTES];
        let (received, _) = rustix::net::recv(&self.socket, &mut answer, RecvFlags::empty())?;
        answer.truncate(received);
        parse_answer(&answer)
    }
}

fn parse_answer(answer: &[u8]) -> io::Result<Vec<u8>> {
    let truncated = || io::Error::new(io::ErrorKind::InvalidData, "truncated netlink answer");
    let length = u32_at(answer, 0).ok_or_else(truncated)? as usize;
    let kind = u16_at(answer, 4).ok_or_else(truncated)?;
    let body = answer.get(HEADER_BYTES..length).ok_or_else(truncated)?;
    if kind == ERROR {
        let code = u32_at(body, 0).ok_or_else(truncated)?.cast_signed();
        return Err(io::Error::from_raw_os_error(code.saturating_neg()));
    }
    Ok(body.to_vec())
}

/// Appends an attribute.
pub(super) fn push_attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(ATTRIBUTE_BYTES + value.len()).unwrap_or(u16::MAX);
    message.extend_from_slice(&length.to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// Appends an attribute of attributes.
pub(super) fn push_nested(message: &mut Vec<u8>, kind: u16, attributes: &[u8]) {
    push_attribute(message, kind | NESTED, attributes);
}

/// The value of the first attribute `kind`.
pub(super) fn attribute(mut bytes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16_at(bytes, 0)?);
        let value = bytes.get(ATTRIBUTE_BYTES..length)?;
        if u16_at(bytes, 2)? & TYPE_MASK == kind {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

/// The first attribute `kind`, as a number.
pub(super) fn attribute_u32(bytes: &[u8], kind: u16) -> Option<u32> {
    u32_at(attribute(bytes, kind)?, 0)
}

/// The first attribute `kind`, as a short number.
pub(super) fn attribute_u16(bytes: &[u8], kind: u16) -> Option<u16> {
    u16_at(attribute(bytes, kind)?, 0)
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_others_and_inside_nests() {
        let mut inner = Vec::new();
        push_attribute(&mut inner, 7, &5_u32.to_ne_bytes());
        let mut bytes = Vec::new();
        push_attribute(&mut bytes, 1, b"abcde");
        push_nested(&mut bytes, 2, &inner);
        assert_eq!(attribute(&bytes, 1), Some(b"abcde".as_slice()));
        assert_eq!(attribute(&bytes, 2).and_then(|nest| attribute_u32(nest, 7)), Some(5));
        assert_eq!(attribute(&bytes, 3), None);
        for end in 0..bytes.len() {
            // Cut anywhere, nothing is read beyond the end.
            assert_eq!(attribute(&bytes[..end], 3), None);
        }
        // A length of zero must not loop for ever.
        assert_eq!(attribute(&[0; 8], 3), None);
    }

    #[test]
    fn an_error_answer_becomes_its_errno() {
        let mut answer = vec![20, 0, 0, 0, 2, 0];
        answer.resize(16, 0);
        answer.extend_from_slice(&(-19_i32).to_ne_bytes());
        assert_eq!(parse_answer(&answer).unwrap_err().raw_os_error(), Some(19));
        assert_eq!(parse_answer(&answer[..18]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
