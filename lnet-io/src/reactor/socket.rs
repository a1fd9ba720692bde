//! What sockets of all protocols have in common: addresses as the kernel has them, and options.

use core::ffi::{c_int, c_void};
use core::mem::{size_of, size_of_val};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

// Values of include/uapi/asm-generic/socket.h, which every architecture of the compiler's but parisc and
// sparc follows.
const SO_BINDTOIFINDEX: c_int = 62;

/// Writes an address as the kernel reads it; its length.
#[inline]
pub(super) fn write_address(out: &mut libc::sockaddr_in6, address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(v4) => {
            let name = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the longer address has room for the shorter one, and is aligned as strictly.
            unsafe { (&raw mut *out).cast::<libc::sockaddr_in>().write(name) };
            size_of::<libc::sockaddr_in>() as u32
        }
        SocketAddr::V6(v6) => {
            *out = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            size_of::<libc::sockaddr_in6>() as u32
        }
    }
}

const _: () = assert!(size_of::<libc::sockaddr_in>() <= size_of::<libc::sockaddr_in6>());

/// The address with its link, if it is link-local: it means nothing without.
pub(super) fn scoped(address: SocketAddr, interface_index: Option<u32>) -> SocketAddr {
    match (address.ip(), interface_index) {
        (IpAddr::V6(ip), Some(index)) if ip.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(ip, address.port(), 0, index))
        }
        _ => address,
    }
}

/// Binds a socket to an interface: what it sends leaves by that, and what arrives by others is not its.
pub(super) fn bind_to_interface(fd: impl AsFd, index: u32) -> Result<(), Errno> {
    let index = c_int::try_from(index).map_err(|_| Errno::NODEV)?;
    set_option(fd, libc::SOL_SOCKET, SO_BINDTOIFINDEX, &index)
}

/// Sets an option whose value is a `T`.
pub(super) fn set_option<T: Copy>(
    fd: impl AsFd,
    level: c_int,
    option: c_int,
    value: &T,
) -> Result<(), Errno> {
    let (fd, length) = (fd.as_fd().as_raw_fd(), size_of_val(value) as u32);
    let value: *const T = value;
    // SAFETY: the value is readable, of that length, and of the type that the option has at each caller.
    let outcome = unsafe { libc::setsockopt(fd, level, option, value.cast::<c_void>(), length) };
    match outcome {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
