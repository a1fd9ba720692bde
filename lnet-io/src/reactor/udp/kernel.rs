//! What the kernel is asked for, and how it answers.

use std::net::IpAddr;

use io_uring::IoUring;
use io_uring::types::RecvMsgOut;
use rustix::io::Errno;

use super::super::ring;
use super::super::waiter::refused;
use super::UdpError;

/// A ring with room for all operations and completions that there can be at once.
pub(super) fn make_ring(receive_buffers: usize, send_buffers: usize) -> Result<IoUring, UdpError> {
    // A receive that has ended is started again while its last completion may not have been taken.
    let completions = receive_buffers + send_buffers + 2;
    ring::make(send_buffers + 1, completions).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::INVAL) => UdpError::Unsupported { feature: "cooperative completions" },
        _ => refused(&error).into(),
    })
}

/// The kernel ended a receive that is simply to be started again: there was no buffer for it, or its thread
/// has ended.
pub(super) fn is_pause(result: i32) -> bool {
    let errno = Errno::from_raw_os_error(-result);
    matches!(errno, Errno::NOBUFS | Errno::CANCELED | Errno::INTR | Errno::AGAIN)
}

/// The address and port that a datagram came from, and its length, if the kernel has written it whole for
/// this request.
#[inline]
pub(super) fn read_datagram(written: &[u8], request: &libc::msghdr) -> Option<(IpAddr, u16, u32)> {
    let out = RecvMsgOut::parse(written, request).ok().filter(|out| !out.is_payload_truncated())?;
    let (from, from_port) = read_address(out.name_data())?;
    Some((from, from_port, out.payload_data().len() as u32))
}

/// The address and port in what the kernel has written of a `struct sockaddr_in` or `sockaddr_in6`.
#[inline]
pub(super) fn read_address(name: &[u8]) -> Option<(IpAddr, u16)> {
    let family = u16::from_ne_bytes(*name.first_chunk()?);
    let port = u16::from_be_bytes(*name.get(2..)?.first_chunk()?);
    let address = match i32::from(family) {
        libc::AF_INET => IpAddr::from(*name.get(4..)?.first_chunk::<4>()?),
        libc::AF_INET6 => IpAddr::from(*name.get(8..)?.first_chunk::<16>()?),
        _ => return None,
    };
    Some((address, port))
}
