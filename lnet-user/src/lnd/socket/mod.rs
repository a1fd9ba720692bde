//! The frames of the `xdp` LND over plain UDP sockets, which take no privileges.
//!
//! Each shard has one [`SocketLnd`]: a socket for each NI on one `io_uring` ([`crate::uring::udp`]). The sockets
//! of all shards share the NI's address and port; the kernel chooses among them as far as it can steer
//! (`reuseport`), and a frame that it gave to the wrong shard is handed over. Frames are those of the rings
//! ([`crate::lnd::xdp`]), so nodes of either kind talk to each other. The kernel finds next hops.
//!
//! Invariants: a message that was submitted ends in exactly one `sent`; nothing on the data path allocates or
//! blocks; a frame that the kernel refuses is a loss, counted, and never the end of a socket.

mod exchange;
mod held;
mod receive;
pub(crate) mod reuseport;
mod transmit;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lnet_core::handle::ShardId;
use lnet_core::lnd::{Full, Lnd, NiId, Progress, RxId, Transmit, Uplink, Verdict};
use lnet_core::time::Instant;
use lnet_core::xfer::{BUNDLE_MAX, Xfer, XferConfig, XferCounters, XferUsage};
use lnet_wire::Nid;
use lnet_wire::packet::{IPV4_BYTES, IPV6_BYTES, UDP_BYTES};

use super::counters::XdpCounters;
use super::frames::DATAGRAM_MIN_BYTES;
use crate::memory::Memory;
use crate::netlink::Neighbours;
use crate::uring::Waker;
use crate::uring::udp::{Endpoint, UdpError};

use exchange::Exchange;
use held::Held;
use receive::Intake;
use transmit::peer_address;

/// How long a socket rests whose receive has ended with an error.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

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

    fn to(&self, address: IpAddr) -> SocketAddr {
        peer_address(address, self.udp_port, self.interface_index)
    }
}

/// What is known of an NI's interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct InterfaceState {
    mtu_bytes: u32,
    /// Since when it is known to be down, or its messages were ended for that.
    down_since: Option<Instant>,
}

impl InterfaceState {
    fn of(port: &Port) -> Self {
        Self { mtu_bytes: port.mtu_bytes as u32, down_since: None }
    }
}

/// What the LNDs of all shards of a node have in common.
#[derive(Clone)]
pub(crate) struct Common {
    /// Follows the interfaces' MTUs.
    pub(crate) neighbours: Arc<Neighbours>,
    pub(crate) ports: Vec<Port>,
    /// Bytes of the longest datagram that buffers hold.
    pub(crate) datagram_max_bytes: u32,
    /// Whether payloads that are sent get a checksum.
    pub(crate) payload_checksum: bool,
    /// Whether the node lets frames in.
    pub(crate) opened: Arc<AtomicBool>,
    /// The transfer protocol of each shard, but for the shard's number and seed.
    pub(crate) xfer: XferConfig,
}

impl Common {
    fn shards(&self) -> u32 {
        u32::from(self.xfer.shard_count)
    }
}

/// The `xdp` LND of one shard, over sockets.
pub struct SocketLnd {
    endpoint: Endpoint,
    intake: Intake,
    /// By NI.
    interfaces: Vec<InterfaceState>,
    interfaces_generation: u64,
    /// When sockets are tried again whose receive has ended with an error.
    retry_at: Option<Instant>,
    /// Whether the transfer protocol may want frames that were kept.
    replay_due: bool,
    /// Whether the kernel's refusal to go on was logged.
    told_of_failure: bool,
}

impl SocketLnd {
    /// The LNDs of all shards of a node, whose `endpoints` have a socket for each port in the order of those;
    /// `wakers` are the shards' own.
    pub(crate) fn for_shards(common: &Common, endpoints: Vec<Endpoint>, wakers: &[Waker]) -> Vec<Self> {
        let datagram_max_bytes = common.datagram_max_bytes as usize;
        let exchanges = Exchange::mesh(datagram_max_bytes, wakers);
        let lnd = |(shard, (endpoint, exchange)): (usize, (Endpoint, Exchange))| {
            let shard = shard as u8;
            let seed = common.xfer.seed.wrapping_add(u64::from(shard));
            let xfer = Xfer::new(XferConfig { shard: ShardId(shard), seed, ..common.xfer.clone() });
            let intake = Intake {
                shard: u32::from(shard),
                xfer,
                exchange,
                held: Held::new(common.xfer.limits.held, datagram_max_bytes),
                counters: XdpCounters::default(),
                further: Vec::with_capacity(BUNDLE_MAX),
                common: common.clone(),
            };
            Self {
                endpoint,
                intake,
                interfaces: common.ports.iter().map(InterfaceState::of).collect(),
                interfaces_generation: 0,
                retry_at: None,
                replay_due: false,
                told_of_failure: false,
            }
        };
        endpoints.into_iter().zip(exchanges).enumerate().map(lnd).collect()
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &XdpCounters {
        &self.intake.counters
    }

    /// What the transfer protocol has counted.
    #[must_use]
    pub fn transfer_counters(&self) -> &XferCounters {
        self.intake.xfer.counters()
    }

    /// What the transfer protocol holds at this moment.
    #[must_use]
    pub fn transfer_usage(&self) -> XferUsage {
        self.intake.xfer.usage()
    }

    /// The sockets.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What to watch while the shard sleeps.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.endpoint.fd()
    }

    /// Whether there is something to do that [`SocketLnd::fd`] would not report.
    pub(crate) fn has_work(&mut self) -> bool {
        self.intake.exchange.has_parcels()
            || self.replay_due
            || (self.intake.xfer.has_transmit() && self.endpoint.has_room())
            || (self.is_open() && !self.endpoint.is_receiving())
            || self.intake.common.neighbours.generation() != self.interfaces_generation
            || self.endpoint.has_work()
    }

    fn is_open(&self) -> bool {
        self.intake.common.opened.load(Ordering::Acquire)
    }

    /// Takes in what the kernel has to say.
    #[inline]
    fn turn_endpoint(&mut self, now: Instant) {
        if !self.endpoint.is_receiving() && self.is_open() {
            self.endpoint.start_receiving();
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.endpoint.retry_failed();
        }
        let outcome = self.endpoint.turn();
        self.note(outcome);
        if self.endpoint.has_failed() {
            self.retry_at.get_or_insert(now + RETRY_INTERVAL);
        }
    }

    #[inline]
    fn flush_endpoint(&mut self) {
        let outcome = self.endpoint.flush();
        self.note(outcome);
    }

    #[inline]
    fn note(&mut self, outcome: Result<(), UdpError>) {
        if let Err(error) = outcome
            && !std::mem::replace(&mut self.told_of_failure, true)
        {
            tracing::error!(%error, "the kernel does not go on with the sockets; it is asked again");
        }
    }
}

impl Lnd for SocketLnd {
    type Memory = Memory;

    #[inline]
    fn submit(&mut self, now: Instant, transmit: Transmit, _: &Memory) -> Result<(), Full<Transmit>> {
        self.intake.xfer.submit(now, transmit)
    }

    #[inline]
    fn flush(&mut self, now: Instant, memory: &Memory) {
        self.send_ready(now, memory);
    }

    fn drive(&mut self, now: Instant, budget: u32, up: &mut impl Uplink, memory: &mut Memory) -> Progress {
        let mut progress = Progress::default();
        self.follow_interfaces(now);
        self.turn_endpoint(now);
        let parcels = self.take_parcels(now, budget, up, memory);
        progress.received = self.receive(now, budget, up, memory);
        self.intake.xfer.handle_timeout(now, up);
        self.follow_refusals();
        self.follow_downs(now, up);
        progress.completed = parcels + self.replay(now, up, memory);
        progress
    }

    fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut impl Uplink) {
        self.intake.xfer.resume(now, rx, verdict, up);
        self.replay_due = true;
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let others = [self.intake.xfer.poll_timeout(), self.retry_at, self.down_until()];
        others.into_iter().flatten().min()
    }
}
