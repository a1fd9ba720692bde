//! Why UDP over `io_uring` does not work.

use std::net::SocketAddr;

use rustix::io::Errno;

use super::super::WaitError;

/// Why an endpoint or a socket cannot be made, or the kernel does not go on with it.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UdpError {
    /// Sizes that no endpoint has.
    #[error(
        "{receive_buffers} buffers to receive into, {send_buffers} to send from, of {datagram_max_bytes} bytes; \
         expected a power of two up to 32768, 1 to 32768, and 1 to 65535"
    )]
    Sizes {
        /// Buffers to receive into.
        receive_buffers: u16,
        /// Buffers to send from.
        send_buffers: u16,
        /// Bytes of the longest datagram.
        datagram_max_bytes: u32,
    },
    /// The kernel is too old.
    #[error("the kernel's io_uring has no {feature}; Linux 6.0 or newer is needed for UDP sockets")]
    Unsupported {
        /// What is missing.
        feature: &'static str,
    },
    /// There is no ring, or the kernel does not go on with it.
    #[error(transparent)]
    Ring(#[from] WaitError),
    /// A socket is not as it should be.
    #[error("{operation} of the UDP socket at {address}: {source}")]
    Socket {
        /// What was tried.
        operation: &'static str,
        /// Where the socket is, or was to be.
        address: SocketAddr,
        /// The kernel's answer.
        source: Errno,
    },
}
