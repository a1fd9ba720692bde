//! A question to the kernel of another host: whether a UDP port is taken there.

use std::net::SocketAddr;

use rustix::io::Errno;
use rustix::net::{SendFlags, connect, send, sockopt};

use super::{UdpError, UdpSocket};

/// A UDP socket that asks one port at a time with an empty datagram. A host without a program there answers
/// by an ICMP message, "port unreachable", of which the kernel tells a connected socket alone. The datagram
/// comes from a port of its own, which the kernel chose: who has not seen it cannot forge the answer.
#[derive(Debug)]
pub struct RefusalProbe(UdpSocket);

impl RefusalProbe {
    /// Makes the socket, at an address of an interface.
    ///
    /// # Errors
    /// [`UdpError::Socket`] names what the kernel refused.
    pub fn new(address: SocketAddr, interface_index: u32) -> Result<Self, UdpError> {
        let socket = UdpSocket::bind(SocketAddr::new(address.ip(), 0), Some(interface_index))?;
        // Nothing is read of what arrives. The kernel rounds 0 up to its smallest buffer.
        let shrunk = sockopt::set_socket_recv_buffer_size(socket.fd(), 0);
        shrunk.map_err(|source| UdpError::Socket { operation: "SO_RCVBUF", address, source })?;
        Ok(Self(socket))
    }

    /// Asks this port; an answer about another one is of no interest from now on.
    ///
    /// # Errors
    /// The kernel's refusal, such as having no route.
    pub fn ask(&self, port: SocketAddr) -> Result<(), Errno> {
        connect(self.0.fd(), &port)?;
        // The error of the former port.
        sockopt::socket_error(self.0.fd())?.ok();
        send(self.0.fd(), &[], SendFlags::DONTWAIT).map(drop)
    }

    /// Whether the answer has come that no program has the port. That is said once.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(sockopt::socket_error(self.0.fd()), Ok(Err(Errno::CONNREFUSED)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket as Std;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_port_without_a_program_is_refused_and_another_one_is_silent() {
        let taken = Std::bind("127.0.0.1:0").unwrap();
        let free = Std::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let probe = RefusalProbe::new(free, 1).unwrap();
        let is_refused = |within: Duration| {
            let begun = Instant::now();
            while begun.elapsed() < within {
                if probe.is_refused() {
                    return true;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            false
        };
        for _ in 0..3 {
            probe.ask(free).unwrap();
            assert!(is_refused(Duration::from_secs(10)));
            probe.ask(taken.local_addr().unwrap()).unwrap();
            assert!(!is_refused(Duration::from_millis(20)));
        }
    }
}
