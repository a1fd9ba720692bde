//! NIs that come and go, each with a socket on a ring of its own.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use lnet_core::lnd::{NiId, Uplink};
use lnet_core::time::Instant;
use lnet_wire::Nid;
use lnet_wire::packet::{IPV4_BYTES, IPV6_BYTES, UDP_BYTES};
use lnet_wire::steer::{PORTALS, PolicyWord};

use super::super::frames::DATAGRAM_MIN_BYTES;
use super::transmit::peer_address;
use super::{SocketLnd, reuseport};
use crate::capture::{Direction, Headers, Link, Tap};
use crate::memory::Memory;
use crate::netlink::Neighbours;
use crate::uring::udp::Endpoint;

/// An NI of the node, as its LND sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub(crate) ni: NiId,
    pub(crate) nid: Nid,
    pub(crate) udp_port: u16,
    pub(crate) interface_index: u32,
    /// Bytes of an IP packet at most: those of the interface, or of the narrowest way that was met.
    pub(crate) mtu_bytes: usize,
}

impl Port {
    /// The longest UDP payload that it can carry, in buffers of `buffer_bytes`.
    pub(crate) fn datagram_max_bytes(&self, buffer_bytes: u32) -> u32 {
        let is_ipv4 = self.nid.ip().is_some_and(|address| address.is_ipv4());
        let headers_bytes = UDP_BYTES + if is_ipv4 { IPV4_BYTES } else { IPV6_BYTES };
        let bytes = self.mtu_bytes.min(usize::from(u16::MAX)).saturating_sub(headers_bytes);
        // An interface whose MTU was made smaller than that later carries nothing.
        (bytes.max(DATAGRAM_MIN_BYTES) as u32).min(buffer_bytes)
    }

    /// Where it listens.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.nid.ip()?, self.udp_port))
    }

    pub(super) fn to(&self, address: IpAddr) -> SocketAddr {
        peer_address(address, self.udp_port, self.interface_index)
    }
}

/// An NI as one shard gets it, and gives it back.
pub(crate) struct ShardPort {
    pub(crate) port: Port,
    /// Its one socket.
    pub(crate) endpoint: Endpoint,
    /// Follows the interface.
    pub(crate) neighbours: Arc<Neighbours>,
}

impl ShardPort {
    /// What to watch while the shard sleeps.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.endpoint.fd()
    }
}

/// An NI that a shard has.
pub(super) struct OpenPort {
    pub(super) port: Port,
    pub(super) endpoint: Endpoint,
    pub(super) neighbours: Arc<Neighbours>,
    /// Of what is known of the interface.
    pub(super) generation: u64,
    /// The interface's MTU.
    pub(super) interface_mtu_bytes: u32,
    /// Since when it is known to be down, or its messages were ended for that.
    pub(super) down_since: Option<Instant>,
    /// When the socket is tried again whose receive has ended with an error.
    pub(super) retry_at: Option<Instant>,
}

/// Shows captures a datagram between two ends.
pub(super) fn record(
    tap: &mut Tap,
    port: &Port,
    direction: Direction,
    ends: Option<(SocketAddr, SocketAddr)>,
    payload: &[u8],
) {
    let headers = ends.and_then(|(from, to)| Headers::new(from, to, payload));
    if let Some(headers) = headers {
        let pieces = [headers.as_bytes(), payload].into_iter();
        tap.record((port.interface_index, Link::RawIp), direction, pieces);
    }
}

impl SocketLnd {
    /// Whether it has no NI.
    pub(crate) fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.closed.is_empty()
    }

    /// Takes part in an NI from now on.
    ///
    /// # Panics
    /// If it has one of this number.
    pub(crate) fn add_port(&mut self, port: ShardPort) {
        let ShardPort { port, endpoint, neighbours } = port;
        let datagram_max_bytes = port.datagram_max_bytes(self.intake.common.datagram_max_bytes);
        self.intake.xfer.add_interface(port.ni, port.nid, datagram_max_bytes);
        self.ports.push(OpenPort {
            interface_mtu_bytes: port.mtu_bytes as u32,
            port,
            endpoint,
            neighbours,
            generation: u64::MAX,
            down_since: None,
            retry_at: None,
        });
    }

    /// Ends all that is under way by an NI, as far as it can go no other way; nothing begins any more.
    pub(crate) fn close_port(&mut self, now: Instant, ni: NiId, up: &mut impl Uplink, memory: &Memory) {
        let Some(place) = self.ports.iter().position(|open| open.port.ni == ni) else { return };
        // Peers need not wonder what has arrived.
        self.intake.xfer.acknowledge_now(now);
        self.send_ready(now, memory);
        self.intake.xfer.remove_interface(now, ni, up);
        let port = self.ports.swap_remove(place);
        self.closed.push(port);
        self.replay_due = true;
    }

    /// Gives up an NI, after it was closed.
    ///
    /// # Panics
    /// If it has not closed one of this number.
    pub(crate) fn remove_port(&mut self, ni: NiId) -> ShardPort {
        let place = self.closed.iter().position(|closed| closed.port.ni == ni).expect("the NI was closed");
        let OpenPort { port, endpoint, neighbours, .. } = self.closed.swap_remove(place);
        ShardPort { port, endpoint, neighbours }
    }

    /// Steers by other policies from now on. The first shard tells the kernel.
    pub(crate) fn set_policies(&mut self, policies: &[PolicyWord; PORTALS]) {
        let intake = &mut self.intake;
        intake.common.xfer.policies = *policies;
        intake.xfer.set_policies(policies);
        if intake.shard == 0 {
            let program = reuseport::program(policies, intake.common.shards());
            for socket in self.ports.iter().flat_map(|open| open.endpoint.sockets()) {
                if let Err(error) = socket.choose_by(&program) {
                    tracing::warn!(%error, "the kernel goes on steering as before: more is handed over");
                }
            }
        }
    }
}
