//! The port of an NI, which no other node may have.
//!
//! The XDP program passes malformed frames up. The node holds the UDP port with a socket that is never read,
//! so that the kernel does not answer them. The port is first bound alone: sockets that share it would let a
//! second node of the same user in.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use thiserror::Error;

use crate::netlink::{self, NetlinkError};
use crate::reactor::tcp::TcpError;
use crate::reactor::tcp::socket::{self, SocketOptions};
use crate::reactor::udp::{UdpError, UdpSocket};

/// How long a port may seem taken that is free: a process that was killed has it until the kernel has ended
/// what that had under way, and a child of this process from its fork until its exec.
const PATIENCE: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(20);

/// Why sockets do not share a port.
#[derive(Debug, Error)]
pub enum BindError {
    /// Another node has it, or it may not be had.
    #[error(transparent)]
    Reserve(#[from] NetlinkError),
    /// The kernel refuses a socket.
    #[error(transparent)]
    Udp(#[from] UdpError),
}

/// Takes the UDP port for frames that come by rings; see [`netlink::reserve_port`].
///
/// # Errors
/// [`NetlinkError`] when another socket has it, or it may not be had.
pub fn reserve(address: SocketAddr) -> Result<std::net::UdpSocket, NetlinkError> {
    patiently(|| netlink::reserve_port(address.ip(), address.port()), is_reserved)
}

/// Binds `count` sockets that share the UDP port on this interface.
///
/// # Errors
/// [`BindError`]: another socket has it, or the kernel refuses these.
pub fn bind(address: SocketAddr, interface_index: u32, count: u32) -> Result<Vec<UdpSocket>, BindError> {
    let attempt = || {
        // Sockets that share a port would let another node of this user in, and the kernel would count that
        // one's in.
        drop(netlink::reserve_port(address.ip(), address.port())?);
        let bind = |_| UdpSocket::bind(address, Some(interface_index));
        Ok((0..count).map(bind).collect::<Result<_, _>>()?)
    };
    let is_taken = |error: &BindError| match error {
        BindError::Reserve(error) => is_reserved(error),
        BindError::Udp(error) => matches!(error, UdpError::Socket { source: Errno::ADDRINUSE, .. }),
    };
    patiently(attempt, is_taken)
}

/// Makes a socket that listens at this TCP port, which no other has.
///
/// # Errors
/// [`TcpError`], the kernel's refusal.
pub fn listen(address: SocketAddr, backlog: u32, options: &SocketOptions) -> Result<OwnedFd, TcpError> {
    let backlog = u16::try_from(backlog).unwrap_or(u16::MAX);
    let is_taken = |error: &TcpError| matches!(error, TcpError::Socket { source: Errno::ADDRINUSE, .. });
    patiently(|| socket::listener(address, backlog, false, options), is_taken)
}

fn is_reserved(error: &NetlinkError) -> bool {
    error.is_port(ErrorKind::AddrInUse)
}

fn patiently<T, E>(attempt: impl Fn() -> Result<T, E>, is_taken: impl Fn(&E) -> bool) -> Result<T, E> {
    let begun = Instant::now();
    loop {
        let outcome = attempt();
        if !outcome.as_ref().is_err_and(&is_taken) || begun.elapsed() >= PATIENCE {
            return outcome;
        }
        std::thread::sleep(INTERVAL);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    /// A child has the sockets of its parent from its fork until its exec closes them.
    #[test]
    fn children_that_begin_meanwhile_do_not_hold_the_port() {
        let probe = netlink::reserve_port([127, 0, 0, 1].into(), 0).unwrap();
        let address = probe.local_addr().unwrap();
        drop(probe);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // A directory of its own makes the library fork, and not share memory until the exec.
                    Command::new("true").current_dir("/").status().unwrap();
                }
            });
            for _ in 0..300 {
                let bound = bind(address, 1, 2);
                if let Err(error) = bound {
                    is_over.store(true, Ordering::Relaxed);
                    panic!("{error}");
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
