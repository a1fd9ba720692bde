//! What an [`Endpoint`](super::Endpoint) is told, and tells.

use core::fmt;
use std::net::SocketAddr;

use rustix::io::Errno;

use super::super::Reactor;

/// Sizes of an [`Endpoint`](super::Endpoint).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndpointConfig {
    /// Buffers for what has arrived and was not given back, each for a datagram or a run of them; a power of
    /// two, at most 32768.
    pub receive_buffers: u16,
    /// Datagrams that are being sent, at most 32768.
    pub send_buffers: u16,
    /// Bytes of the longest datagram, at most 65535: longer ones are not sent, and dropped when they arrive.
    pub datagram_max_bytes: u32,
    /// Whether what arrives may lie in runs (udp(7): `UDP_GRO`). The kernel makes a run of what comes from
    /// one peer, and gives it to one socket: several that share a port by what is in a datagram must not ask
    /// for it.
    pub receives_runs: bool,
    /// How datagrams are exchanged.
    pub reactor: Reactor,
}

/// A refusal of the kernel to take or to give runs of datagrams: each goes alone from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRuns {
    /// The option of the socket that runs need.
    pub option: &'static str,
    /// Answer of the kernel.
    pub errno: Errno,
}

impl fmt::Display for NoRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel refuses runs of frames ({}): {}", self.option, self.errno)
    }
}

/// A datagram that the kernel refused to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Where it was to go.
    pub to: SocketAddr,
    /// Why not.
    pub errno: Errno,
}
