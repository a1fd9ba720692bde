//! Why TCP over `io_uring` does not work.

use std::net::SocketAddr;

use rustix::io::Errno;

use super::super::WaitError;

/// Why streams or a socket cannot be made, or the kernel does not go on with them.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TcpError {
    /// Sizes that no streams have.
    #[error(
        "{streams_max} streams, {receive_buffers} buffers of {receive_buffer_bytes} bytes to receive into; \
         expected 1 to 16777215, a power of two up to 32768, and 1 to 16777216"
    )]
    Sizes {
        /// Streams at once.
        streams_max: u32,
        /// Buffers to receive into.
        receive_buffers: u16,
        /// Bytes of each.
        receive_buffer_bytes: u32,
    },
    /// The kernel is too old.
    #[error("the kernel's io_uring has no {feature}; Linux 6.0 or newer is needed for TCP")]
    Unsupported {
        /// What is missing.
        feature: &'static str,
    },
    /// There is no ring, or the kernel does not go on with it.
    #[error(transparent)]
    Ring(#[from] WaitError),
    /// A socket is not as it should be.
    #[error("{operation} of the TCP socket at {address}: {source}{}", port_hint(*source))]
    Socket {
        /// What was tried.
        operation: &'static str,
        /// Where the socket is, or was to be.
        address: SocketAddr,
        /// The kernel's answer.
        source: Errno,
    },
}

/// The way out where a process may not have a port.
const fn port_hint(errno: Errno) -> &'static str {
    match errno {
        // The port is below the first unprivileged one.
        Errno::ACCESS => {
            "; ports below net.ipv4.ip_unprivileged_port_start want CAP_NET_BIND_SERVICE, and other ports peers with \
             the same (`--sock accept_port=PORT`, `accept_port_bulk`, `accept=all`)"
        }
        _ => "",
    }
}

impl TcpError {
    /// The kernel's errno; that of a wrong argument where the kernel was not asked.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Socket { source, .. } => *source,
            Self::Sizes { .. } | Self::Unsupported { .. } | Self::Ring(_) => Errno::INVAL,
        }
    }
}
