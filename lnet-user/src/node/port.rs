//! The UDP port of an NI, which no other node may have.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::NodeError;
use crate::netlink;
use crate::uring::tcp::TcpError;
use crate::uring::tcp::socket::{self, SocketOptions};
use crate::uring::udp::{UdpError, UdpSocket};

/// How long a port may seem taken that is free: a process that was killed has it until the kernel has ended
/// what that had under way, and a child of this process from its fork until its exec.
const PATIENCE: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(20);

/// Takes the port for frames that come by rings; see [`netlink::reserve_port`].
pub(super) fn reserve(address: SocketAddr) -> Result<std::net::UdpSocket, NodeError> {
    patiently(|| Ok(netlink::reserve_port(address.ip(), address.port())?))
}

/// `count` sockets that share the port on this interface.
pub(super) fn bind(
    address: SocketAddr,
    interface_index: u32,
    count: u32,
) -> Result<Vec<UdpSocket>, NodeError> {
    patiently(|| {
        // Sockets that share a port would let another node of this user in, and the kernel would count that
        // one's in.
        drop(netlink::reserve_port(address.ip(), address.port())?);
        let bind = |_| UdpSocket::bind(address, Some(interface_index));
        Ok((0..count).map(bind).collect::<Result<_, _>>()?)
    })
}

/// A socket that listens at this port, which no other has.
pub(super) fn listen(
    address: SocketAddr,
    backlog: u32,
    options: &SocketOptions,
) -> Result<OwnedFd, NodeError> {
    let backlog = u16::try_from(backlog).unwrap_or(u16::MAX);
    patiently(|| Ok(socket::listener(address, backlog, false, options)?))
}

fn patiently<T>(attempt: impl Fn() -> Result<T, NodeError>) -> Result<T, NodeError> {
    let begun = Instant::now();
    loop {
        let outcome = attempt();
        let is_taken = match &outcome {
            Err(NodeError::Netlink(error)) => error.is_port(ErrorKind::AddrInUse),
            Err(NodeError::Udp(UdpError::Socket { source, .. })) => *source == Errno::ADDRINUSE,
            Err(NodeError::Tcp(TcpError::Socket { source, .. })) => *source == Errno::ADDRINUSE,
            _ => false,
        };
        if !is_taken || begun.elapsed() >= PATIENCE {
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
