//! The frames of the `xdp` LND over plain UDP sockets, which take no privileges.
//!
//! Each shard has one [`SocketLnd`]: for each NI a socket on an `io_uring` ([`crate::uring::udp`]); NIs come and
//! go. The sockets
//! of all shards share the NI's address and port; the kernel chooses among them as far as it can steer
//! (`reuseport`), and a frame that it gave to the wrong shard is handed over. Frames are those of the rings
//! ([`crate::lnd::xdp`]), so nodes of either kind talk to each other. The kernel finds next hops.
//!
//! Invariants: a message that was submitted ends in exactly one `sent`; nothing on the data path allocates or
//! blocks; a frame that the kernel refuses is a loss, counted, and never the end of a socket.

mod exchange;
mod held;
mod ports;
mod receive;
pub(crate) mod reuseport;
mod transmit;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lnet_core::handle::ShardId;
use lnet_core::lnd::{Full, Lent, Lnd, Progress, RxId, TxId, Uplink, Verdict};
use lnet_core::time::{self, Instant};
use lnet_core::xfer::{BUNDLE_MAX, Xfer, XferConfig, XferCounters, XferUsage};

use super::counters::XdpCounters;
use crate::capture::Tap;
use crate::memory::Memory;
use crate::uring::Waker;
use crate::uring::udp::{UdpError, UdpSocket};

use exchange::Exchange;
use held::Held;
use ports::OpenPort;
use receive::Intake;

pub(crate) use ports::{Port, ShardPort};

/// How long a socket rests whose receive has ended with an error.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// What the LNDs of all shards of a node have in common.
#[derive(Clone)]
pub(crate) struct Common {
    /// Bytes of the longest datagram that buffers hold.
    pub(crate) datagram_max_bytes: u32,
    /// Whether payloads that are sent get a checksum.
    pub(crate) payload_checksum: bool,
    /// Whether the node lets frames in.
    pub(crate) opened: Arc<AtomicBool>,
    /// The transfer protocol of each shard, but for the shard's number and seed, and the interfaces.
    pub(crate) xfer: XferConfig,
}

impl Common {
    fn shards(&self) -> u32 {
        u32::from(self.xfer.shard_count)
    }
}

/// The `xdp` LND of one shard, over sockets.
pub struct SocketLnd {
    /// The NIs that are open.
    ports: Vec<OpenPort>,
    /// Those that were closed and are to be removed.
    closed: Vec<OpenPort>,
    intake: Intake,
    /// Whether the transfer protocol may want frames that were kept.
    replay_due: bool,
    /// Whether the kernel's refusal to go on was logged.
    told_of_failure: bool,
    pub(crate) tap: Tap,
}

impl SocketLnd {
    /// The LNDs of all shards of a node, without any NI yet; `wakers` are the shards' own.
    pub(crate) fn for_shards(common: &Common, wakers: &[Waker]) -> Vec<Self> {
        let datagram_max_bytes = common.datagram_max_bytes as usize;
        let exchanges = Exchange::mesh(datagram_max_bytes, wakers);
        let lnd = |(shard, exchange): (usize, Exchange)| {
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
                ports: Vec::new(),
                closed: Vec::new(),
                intake,
                replay_due: false,
                told_of_failure: false,
                tap: Tap::default(),
            }
        };
        exchanges.into_iter().enumerate().map(lnd).collect()
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

    /// The sockets, of the NIs that are open.
    pub fn sockets(&self) -> impl Iterator<Item = &UdpSocket> {
        self.ports.iter().flat_map(|open| open.endpoint.sockets())
    }

    /// Whether there is something to do that none of the descriptors that are watched would report.
    pub(crate) fn has_work(&mut self) -> bool {
        let is_open = self.is_open();
        self.intake.exchange.has_parcels()
            || self.replay_due
            || (self.intake.xfer.has_transmit() && self.has_room())
            || self.ports.iter_mut().any(|open| {
                (is_open && !open.endpoint.is_receiving())
                    || open.neighbours.generation() != open.generation
                    || open.endpoint.has_work()
            })
    }

    fn is_open(&self) -> bool {
        self.intake.common.opened.load(Ordering::Acquire)
    }

    /// Takes in what the kernel has to say.
    #[inline]
    fn turn_endpoints(&mut self, now: Instant) {
        let is_open = self.is_open();
        for place in 0..self.ports.len() {
            let OpenPort { endpoint, retry_at, .. } = &mut self.ports[place];
            if !endpoint.is_receiving() && is_open {
                endpoint.start_receiving();
            }
            if retry_at.is_some_and(|at| at <= now) {
                *retry_at = None;
                endpoint.retry_failed();
            }
            let outcome = endpoint.turn();
            if endpoint.has_failed() {
                retry_at.get_or_insert(now + RETRY_INTERVAL);
            }
            self.note(outcome);
        }
    }

    #[inline]
    fn flush_endpoints(&mut self) {
        for place in 0..self.ports.len() {
            let outcome = self.ports[place].endpoint.flush();
            self.note(outcome);
        }
    }

    /// Whether there is room for a frame, wherever it goes.
    #[inline]
    fn has_room(&mut self) -> bool {
        self.ports.iter_mut().all(|open| open.endpoint.has_room())
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
    fn submit(&mut self, now: Instant, message: Lent<'_>, _: &Memory) -> Result<(), Full<TxId>> {
        self.intake.xfer.submit(now, message.transmit)
    }

    #[inline]
    fn flush(&mut self, now: Instant, memory: &Memory) {
        self.send_ready(now, memory);
    }

    fn drive(&mut self, now: Instant, budget: u32, up: &mut impl Uplink, memory: &mut Memory) -> Progress {
        let mut progress = Progress::default();
        self.follow_interfaces(now);
        self.turn_endpoints(now);
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
        let retries = self.ports.iter().filter_map(|open| open.retry_at).min();
        time::earliest([self.intake.xfer.poll_timeout(), self.down_until(), retries])
    }
}
