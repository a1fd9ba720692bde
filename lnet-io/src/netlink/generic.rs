//! Questions by generic netlink, one at a time.

use std::time::Duration;

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// Id of the family that tells of families (`GENL_ID_CTRL`).
const CONTROL: u16 = 16;
/// Its command that asks for one (`CTRL_CMD_GETFAMILY`), and the attributes of the id and the name.
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// Type of a message that is an errno, or 0 (`NLMSG_ERROR`).
const ERROR: u16 = 2;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;
const GENERIC_HEADER_BYTES: usize = 4;
/// The kernel answers while it is asked, so this is never waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks for the id of a family, by its name; `None` where the kernel has none of that name.
pub(super) fn family(name: &str) -> Result<Option<u16>, Errno> {
    let name = [name.as_bytes(), b"\0"].concat();
    match ask(CONTROL, GET_FAMILY, &attribute(FAMILY_NAME, &name)) {
        Ok(answer) => Ok(attribute_of(&answer, FAMILY_ID).and_then(number).map(|id| id as u16)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// A socket for one question about the network namespace in which it was opened, whichever thread asks.
#[derive(Debug)]
pub(super) struct GenericSocket(OwnedFd);

impl GenericSocket {
    /// Opens one, for the network namespace of the calling thread.
    pub(super) fn open() -> Result<Self, Errno> {
        let (family, kind, flags) = (AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(family, kind, flags, Some(netlink::GENERIC))?;
        set_socket_timeout(socket.as_fd(), Timeout::Recv, Some(PATIENCE))?;
        Ok(Self(socket))
    }

    /// Asks a question with these attributes; the attributes of its answer.
    pub(super) fn ask(self, family: u16, command: u8, attributes: &[u8]) -> Result<Vec<u8>, Errno> {
        rustix::net::send(&self.0, &question(family, command, attributes), SendFlags::empty())?;
        // All features of a device, by their names, are some 8 KiB.
        let mut answer = vec![0; 32 << 10];
        let (length, _) = rustix::net::recv(&self.0, &mut answer[..], RecvFlags::empty())?;
        answer.truncate(length);
        attributes_of(&answer).map(<[u8]>::to_vec)
    }
}

/// Asks one question with these attributes; the attributes of its answer.
pub(super) fn ask(family: u16, command: u8, attributes: &[u8]) -> Result<Vec<u8>, Errno> {
    GenericSocket::open()?.ask(family, command, attributes)
}

/// A request of generic netlink.
fn question(family: u16, command: u8, attributes: &[u8]) -> Vec<u8> {
    let length = (HEADER_BYTES + GENERIC_HEADER_BYTES + attributes.len()) as u32;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(family.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    // Sequence number and port.
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(attributes);
    message
}

/// An attribute with its padding.
pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The attributes of an answer of generic netlink, or the errno that it is.
fn attributes_of(answer: &[u8]) -> Result<&[u8], Errno> {
    let (Some(length), Some(kind)) = (number_at::<4>(answer, 0), number_at::<2>(answer, 4)) else {
        return Err(Errno::BADMSG);
    };
    let message = answer.get(..length as usize).ok_or(Errno::BADMSG)?;
    if kind as u16 == ERROR {
        let errno = number_at::<4>(message, HEADER_BYTES).ok_or(Errno::BADMSG)? as u32 as i32;
        return Err(if errno < 0 { Errno::from_raw_os_error(-errno) } else { Errno::BADMSG });
    }
    message.get(HEADER_BYTES + GENERIC_HEADER_BYTES..).ok_or(Errno::BADMSG)
}

/// The value of the first attribute of a kind.
pub(super) fn attribute_of(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = number_at::<2>(attributes, 0)? as usize;
        let value = attributes.get(4..length)?;
        // The two highest bits are flags (`NLA_F_NESTED`, `NLA_F_NET_BYTEORDER`).
        if number_at::<2>(attributes, 2)? as u16 & 0x3fff == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// A number of 2, 4 or 8 bytes.
pub(super) fn number(value: &[u8]) -> Option<u64> {
    match value.len() {
        2 => number_at::<2>(value, 0),
        4 => number_at::<4>(value, 0),
        8 => number_at::<8>(value, 0),
        _ => None,
    }
}

/// The number of `N` bytes, in this machine's order, that begins at an offset.
fn number_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<u64> {
    let found = bytes.get(offset..offset.checked_add(N)?)?;
    let mut all = [0; 8];
    let start = if cfg!(target_endian = "big") { 8 - N } else { 0 };
    all[start..start + N].copy_from_slice(found);
    Some(u64::from_ne_bytes(all))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The attributes of an answer with these, and bytes behind it.
    pub(in super::super) fn answered(attributes: &[u8]) -> Vec<u8> {
        let mut message = question(30, 0, attributes);
        message.extend([7; 8]);
        attributes_of(&message).unwrap().to_vec()
    }

    #[test]
    fn what_is_cut_short_or_an_error_is_no_answer() {
        let whole = question(30, 0, &attribute(3, &[0; 8]));
        for length in 0..whole.len() {
            assert_eq!(attributes_of(&whole[..length]), Err(Errno::BADMSG), "{length}");
        }
        let attributes = attribute(3, &[0; 8]);
        for length in 0..attributes.len() {
            assert_eq!(attribute_of(&attributes[..length], 3), None, "{length}");
        }
        assert_eq!(attribute_of(&[0; 4], 3), None, "an attribute without a length");
        let mut refusal = question(ERROR, 0, &[]);
        refusal[HEADER_BYTES..].copy_from_slice(&(-2_i32).to_ne_bytes());
        assert_eq!(attributes_of(&refusal), Err(Errno::NOENT));
    }

    #[test]
    fn families_have_ids() {
        assert_eq!(family("nlctrl").unwrap(), Some(CONTROL));
        assert_eq!(family("no_such_family").unwrap(), None);
    }
}
