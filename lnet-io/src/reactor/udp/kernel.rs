//! What the kernel is asked for, and how it answers.

use core::mem::size_of;
use std::net::IpAddr;

use io_uring::IoUring;
use io_uring::types::RecvMsgOut;
use rustix::io::Errno;

use super::super::ring;
use super::super::waiter::refused;
use super::UdpError;

/// A datagram that has arrived, or several from one sender that the kernel has put behind each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) from: IpAddr,
    pub(super) from_port: u16,
    /// All bytes.
    pub(super) bytes: u32,
    /// Bytes of each datagram but the last; 0 if there are no bytes at all.
    pub(super) each_bytes: u32,
}

impl Run {
    /// Datagrams of it.
    #[inline]
    pub(super) const fn count(&self) -> usize {
        if self.bytes == 0 { 1 } else { self.bytes.div_ceil(self.each_bytes) as usize }
    }

    /// Bytes of the longest of its datagrams.
    #[inline]
    pub(super) fn longest_bytes(&self) -> u32 {
        self.each_bytes.min(self.bytes)
    }

    /// Bytes of the datagram that begins at this one.
    #[inline]
    pub(super) fn bytes_at(&self, at: u32) -> u32 {
        self.each_bytes.min(self.bytes - at)
    }
}

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

/// The address and port that a datagram, or a run of them, came from, and how long it is, if the kernel has
/// written it whole for this request.
#[inline]
pub(super) fn read_run(written: &[u8], request: &libc::msghdr) -> Option<Run> {
    let out = RecvMsgOut::parse(written, request).ok().filter(|out| !out.is_payload_truncated())?;
    let (from, from_port) = read_address(out.name_data())?;
    let bytes = out.payload_data().len() as u32;
    Some(Run { from, from_port, bytes, each_bytes: read_cut(out.control_data()).unwrap_or(bytes) })
}

/// Bytes of each datagram of a run but the last, in control data of the kernel (udp(7): `UDP_GRO`).
#[inline]
fn read_cut(control: &[u8]) -> Option<u32> {
    // The last two fields of `struct cmsghdr`, and behind it an `int`.
    let [level, kind, bytes] = [2, 1, 0].map(|before| {
        let at = size_of::<libc::cmsghdr>() - 4 * before;
        control.get(at..)?.first_chunk().map(|field| i32::from_ne_bytes(*field))
    });
    let is_cut = (level, kind) == (Some(libc::SOL_UDP), Some(libc::UDP_GRO));
    u32::try_from(bytes?).ok().filter(|bytes| is_cut && *bytes != 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    const NAME_BYTES: usize = 28;
    const CONTROL_BYTES: usize = 24;

    /// What the kernel would write of `payload` bytes with this control data.
    fn written(control: &[u8], payload: usize) -> (Vec<u8>, libc::msghdr) {
        let head = [NAME_BYTES as u32, control.len() as u32, payload as u32, 0];
        let mut bytes: Vec<u8> = head.into_iter().flat_map(u32::to_ne_bytes).collect();
        let mut name = [0; NAME_BYTES];
        name[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        bytes.extend(name);
        bytes.extend(control);
        bytes.resize(16 + NAME_BYTES + CONTROL_BYTES + payload, 7);
        // SAFETY: all zeros is a message without anything.
        let mut request: libc::msghdr = unsafe { core::mem::zeroed() };
        (request.msg_namelen, request.msg_controllen) = (NAME_BYTES as u32, CONTROL_BYTES as _);
        (bytes, request)
    }

    fn cut(level: i32, kind: i32, each_bytes: i32) -> Vec<u8> {
        let mut control = vec![0; size_of::<libc::cmsghdr>() - 8];
        control[0] = 20;
        control.extend([level, kind, each_bytes].into_iter().flat_map(i32::to_ne_bytes));
        control
    }

    #[test]
    fn a_run_is_cut_as_the_kernel_says() {
        let lengths = |control: &[u8], payload| {
            let (bytes, request) = written(control, payload);
            let run = read_run(&bytes, &request).unwrap();
            let mut at = 0;
            let next = (0..run.count()).map(|_| {
                let length = run.bytes_at(at);
                at += length;
                length
            });
            let lengths: Vec<u32> = next.collect();
            assert_eq!(at, payload as u32);
            lengths
        };
        let gro = |each_bytes| cut(libc::SOL_UDP, libc::UDP_GRO, each_bytes);
        assert_eq!(lengths(&gro(100), 250), [100, 100, 50]);
        assert_eq!(lengths(&gro(100), 200), [100, 100]);
        assert_eq!(lengths(&gro(1), 3), [1, 1, 1]);
        // No length that a run can have is one datagram.
        for each_bytes in [0, -1, i32::MIN, 101, i32::MAX] {
            assert_eq!(lengths(&gro(each_bytes), 100), [100], "{each_bytes}");
            assert_eq!(lengths(&gro(each_bytes), 0), [0], "{each_bytes}");
        }
        for other in [cut(libc::SOL_SOCKET, libc::UDP_GRO, 10), cut(libc::SOL_UDP, 1, 10), Vec::new()] {
            assert_eq!(lengths(&other, 100), [100]);
        }
        assert_eq!(lengths(&gro(10)[..19], 100), [100]);
    }
}
