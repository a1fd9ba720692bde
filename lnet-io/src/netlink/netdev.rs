//! Word of a device about XDP: the family `netdev` of generic netlink, which kernels have from Linux 6.3 on
//! (Documentation/netlink/specs/netdev.yaml).

use std::io;
use std::time::Duration;

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use super::NetlinkError;

/// Bit of `xdp-features`: programs run in the driver (`NETDEV_XDP_ACT_BASIC`).
const BASIC: u64 = 1;
/// Bit of `xdp-features`: zero copy (`NETDEV_XDP_ACT_XSK_ZEROCOPY`).
const XSK_ZEROCOPY: u64 = 8;

/// Id of the family of generic netlink that tells of families (`GENL_ID_CTRL`).
const CONTROL: u16 = 16;
/// Its command that asks for one (`CTRL_CMD_GETFAMILY`), and the attributes of the id and the name.
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// The command of `netdev` that asks for a device (`NETDEV_CMD_DEV_GET`), and attributes of the device.
const DEVICE_GET: u8 = 1;
const INTERFACE_INDEX: u16 = 1;
const XDP_FEATURES: u16 = 3;
const ZERO_COPY_SEGMENTS_MAX: u16 = 4;

/// Type of a message that is an errno, or 0 (`NLMSG_ERROR`).
const ERROR: u16 = 2;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;
const GENERIC_HEADER_BYTES: usize = 4;
/// The kernel answers while it is asked, so this is never waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Abilities of a device with XDP, by its own word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XdpFeatures {
    /// Whether programs run in the driver.
    pub native: bool,
    /// Descriptors of a frame at most with zero copy, 1 or more; `None` without it.
    pub zero_copy_segments: Option<u32>,
}

/// Asks a device of the calling thread's network namespace about XDP; `None` where the kernel does not
/// tell.
///
/// # Errors
/// [`NetlinkError::Kernel`] when the device is gone, or the kernel says something else than expected.
pub fn xdp_features(interface_index: u32) -> Result<Option<XdpFeatures>, NetlinkError> {
    let failed = |source| NetlinkError::Kernel { what: "ask what a device can do with XDP", source };
    let family = ask(CONTROL, GET_FAMILY, &attribute(FAMILY_NAME, b"netdev\0"));
    let family = match family {
        Ok(answer) => attribute_of(&answer, FAMILY_ID).and_then(number),
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(failed(errno.into())),
    };
    let Some(family) = family else { return Ok(None) };
    let asked = attribute(INTERFACE_INDEX, &interface_index.to_ne_bytes());
    let answer = ask(family as u16, DEVICE_GET, &asked).map_err(|errno| failed(errno.into()))?;
    features(&answer).map(Some).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
}

/// Reads the answer about a device.
fn features(answer: &[u8]) -> Option<XdpFeatures> {
    let bits = number(attribute_of(answer, XDP_FEATURES)?)?;
    // Kernels tell of segments from Linux 6.6 on, as they have frames of several.
    let segments = attribute_of(answer, ZERO_COPY_SEGMENTS_MAX).and_then(number).unwrap_or(1).max(1);
    Some(XdpFeatures {
        native: bits & BASIC != 0,
        zero_copy_segments: (bits & XSK_ZEROCOPY != 0).then_some(segments as u32),
    })
}

/// Asks one question with these attributes; the attributes of its answer.
fn ask(family: u16, command: u8, attributes: &[u8]) -> Result<Vec<u8>, Errno> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::GENERIC),
    )?;
    set_socket_timeout(socket.as_fd(), Timeout::Recv, Some(PATIENCE))?;
    rustix::net::send(&socket, &question(family, command, attributes), SendFlags::empty())?;
    let mut answer = vec![0; 8192];
    let (length, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(length);
    attributes_of(&answer).map(<[u8]>::to_vec)
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
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
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
fn attribute_of(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
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
fn number(value: &[u8]) -> Option<u64> {
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
mod tests {
    use super::*;

    fn answer(kind: u16, behind: &[u8]) -> Vec<u8> {
        let mut message = question(kind, 0, behind);
        message.extend([7; 8]);
        message
    }

    #[test]
    fn what_a_device_says_is_read() {
        let bits = |bits: u64| attribute(XDP_FEATURES, &bits.to_ne_bytes());
        let segments = |count: u32| attribute(ZERO_COPY_SEGMENTS_MAX, &count.to_ne_bytes());
        let index = attribute(INTERFACE_INDEX, &3_u32.to_ne_bytes());
        let read =
            |attributes: &[Vec<u8>]| features(attributes_of(&answer(30, &attributes.concat())).unwrap());
        let found = |native, zero_copy_segments| Some(XdpFeatures { native, zero_copy_segments });
        assert_eq!(read(&[index.clone(), bits(0)]), found(false, None));
        assert_eq!(read(&[index.clone(), bits(3)]), found(true, None));
        assert_eq!(read(&[index.clone(), bits(3), segments(5)]), found(true, None));
        assert_eq!(read(&[index.clone(), bits(11)]), found(true, Some(1)));
        assert_eq!(read(&[bits(11), index.clone(), segments(8)]), found(true, Some(8)));
        assert_eq!(read(&[index]), None);
    }

    #[test]
    fn what_is_cut_short_or_an_error_is_no_answer() {
        let whole = question(30, 0, &attribute(XDP_FEATURES, &[0; 8]));
        for length in 0..whole.len() {
            assert_eq!(attributes_of(&whole[..length]), Err(Errno::BADMSG), "{length}");
        }
        let attributes = attribute(XDP_FEATURES, &[0; 8]);
        for length in 0..attributes.len() {
            assert_eq!(attribute_of(&attributes[..length], XDP_FEATURES), None, "{length}");
        }
        assert_eq!(attribute_of(&[0; 4], XDP_FEATURES), None, "an attribute without a length");
        let mut refusal = question(ERROR, 0, &[]);
        refusal[HEADER_BYTES..].copy_from_slice(&(-2_i32).to_ne_bytes());
        assert_eq!(attributes_of(&refusal), Err(Errno::NOENT));
    }

    #[test]
    fn the_kernel_is_asked() {
        // The loopback device has no driver for XDP, on any kernel.
        let lo = xdp_features(1).unwrap();
        assert!(lo.is_none_or(|features| features.zero_copy_segments.is_none()), "{lo:?}");
        let gone = xdp_features(i32::MAX as u32);
        assert!(gone.is_err() || lo.is_none(), "{gone:?}");
    }
}
