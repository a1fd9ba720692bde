//! The `xdp` LND: LNet messages in UDP datagrams, over `AF_XDP` rings or plain UDP sockets.
//!
//! Each shard has one [`XdpLnd`]. What carries an NI's frames is its port's affair: rings (`lane`), a socket
//! on every receive queue of its interface and the fill and completion rings of the queues that the shard
//! owns; or a UDP socket (`socket`), which takes no privileges. The frames are the same, so an NI of either
//! kind talks to both, and a message that left by one and leaves again by the other is recognised. NIs come
//! and go (`ports`).
//!
//! [`lnet_xdp_proto`] decides what travels in which frame, and again when it is lost: the LND turns what that
//! wants sent into frames, and frames into what that takes in. `lnet-wire` says what a frame looks like and
//! which shard it belongs to ([`lnet_wire::frame`], [`lnet_wire::steer`]).
//!
//! Invariants: each UMEM frame and each datagram buffer has a home shard and always returns there; a message
//! that was submitted ends in exactly one `sent`; nothing on the data path allocates or blocks; a frame is
//! polled only while there is room for the largest one, and what cannot be sent then is a loss.

mod announce;
mod bulk;
mod counters;
mod devices;
mod early;
mod exchange;
mod fault;
mod frames;
mod home;
mod in_place;
mod lane;
mod path;
mod paths;
mod ports;
mod receive;
mod refusals;
mod refused_senders;
pub(crate) mod reuseport;
mod socket;
mod traffic;
mod transmit;
mod unresolved;
mod write;

#[cfg(any(test, feature = "testing"))]
#[path = "tests/node.rs"]
#[allow(clippy::unwrap_used, reason = "tests fail by it")]
pub mod played;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lnet_core::handle::ShardId;
use lnet_core::lnd::{Cause, Full, Lent, Lnd, NiId, Progress, RxId, Status, Transmit, TxId, Uplink, Verdict};
use lnet_core::time::{self, Instant};
use lnet_io::capture::Tap;
use lnet_io::memory::Memory;
use lnet_io::netlink::Mac;
use lnet_io::reactor::Waker;
use lnet_io::xsk::{CHUNK_BYTES, FRAGMENTS_MAX, Frame, RECEIVE_BYTES, RingDescriptor, RingSizes, Statistics};
use lnet_wire::Nid;
use lnet_wire::packet::{ETHERNET_BYTES, Endpoint, IPV4_BYTES, IPV6_BYTES, UDP_BYTES};
use lnet_xdp_proto::{BUNDLE_MAX, Narrowed, Xfer, XferConfig, XferCounters, XferUsage};

pub(crate) use bulk::{Bulk, SharedRuns};
use devices::Devices;
use early::EarlyFrames;
use exchange::{Arrival, Exchange, Packet, Sizes};
use fault::FaultInjector;
use frames::{Further, Owner};
use home::Home;
use in_place::{InPlace, InPlaceUplink};
use ports::Nis;
use receive::Origin;
use refused_senders::RefusedSenders;
use unresolved::Unresolved;

pub use counters::{XdpCounters, XdpDrop};
pub(crate) use exchange::ReturnRings;
pub use fault::SendFault;
pub(crate) use frames::DATAGRAM_BYTES_MIN;
pub(crate) use lane::{Lane, OwnedQueue};
use paths::Paths;
pub(crate) use ports::{FurtherQueues, Rings, UmemShare};
pub use ports::{RingPort, XdpPort};
use refusals::Asked;
pub use socket::SocketPort;
pub use traffic::{RingTraffic, Tuples};

/// Most frames that one turn takes off one ring.
const BUDGET_MAX: u32 = 256;
/// Least time between two lines of a log on narrow paths.
const NARROW_INTERVAL: Duration = Duration::from_secs(60);
/// Turns in a row that do nothing but receive.
const TURNS_UNKEPT_MAX: u32 = 4;

/// An NI of the node, as its LND sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub(crate) ni: NiId,
    pub(crate) nid: Nid,
    pub(crate) address: IpAddr,
    pub(crate) udp_port: u16,
    pub(crate) endpoint: Endpoint,
    pub(crate) interface_index: u32,
    pub(crate) mac: Mac,
    /// Bytes of an IP packet at most.
    pub(crate) mtu_bytes: usize,
    /// Whether payloads are to have checksums.
    pub(crate) checksum: bool,
}

impl Port {
    /// Where its frames arrive.
    pub(crate) fn udp_address(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.udp_port)
    }

    /// Whether no frame goes from here to a NID: one has an IPv4 address and the other an IPv6 one.
    #[inline]
    fn is_of_other_family(&self, nid: &Nid) -> bool {
        nid.ip().is_some_and(|address| address.is_ipv4() != self.address.is_ipv4())
    }

    /// Where a peer listens; a link-local address is one of the interface's link.
    #[inline]
    fn remote(&self, address: IpAddr) -> SocketAddr {
        match address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                SocketAddr::V6(SocketAddrV6::new(v6, self.udp_port, 0, self.interface_index))
            }
            _ => SocketAddr::new(address, self.udp_port),
        }
    }

    /// Bytes of an IP packet of ours before the UDP payload.
    fn headers_bytes(&self) -> usize {
        UDP_BYTES + if self.address.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES }
    }

    /// The longest frame that it carries, in rings that hold at most `frame_max_bytes`.
    fn frame_max_bytes(&self, frame_max_bytes: usize) -> usize {
        ETHERNET_BYTES + self.headers_bytes() + self.ring_datagram_max_bytes(frame_max_bytes) as usize
    }

    /// The longest UDP payload that it can carry, in frames of at most `frame_max_bytes`.
    fn ring_datagram_max_bytes(&self, frame_max_bytes: usize) -> u32 {
        self.datagram_max_bytes((frame_max_bytes - ETHERNET_BYTES).saturating_sub(self.headers_bytes()) as u32)
    }

    /// The longest UDP payload that it can carry, in buffers of `buffer_bytes`. An IP packet is never longer
    /// than 65535 bytes.
    pub(crate) fn datagram_max_bytes(&self, buffer_bytes: u32) -> u32 {
        let bytes = self.mtu_bytes.min(usize::from(u16::MAX)).saturating_sub(self.headers_bytes());
        // An interface whose MTU was made smaller than that later carries nothing.
        (bytes.max(DATAGRAM_BYTES_MIN) as u32).min(buffer_bytes)
    }
}

/// Bytes of the longest frame that rings of these sizes can hold, to send and to receive.
pub(crate) fn frame_max_bytes(rings: &RingSizes) -> usize {
    let bytes = |chunks: u32, chunk_bytes: u32| chunks.min(FRAGMENTS_MAX) as usize * chunk_bytes as usize;
    bytes(rings.tx, CHUNK_BYTES).min(bytes(rings.rx.min(rings.fill), RECEIVE_BYTES))
}

/// Bytes of frames that one of `shards` shards can take at once by rings of these sizes, in whole chunks: its
/// share of one fill ring, less what may be missing there, as far as a receive ring holds it that so many of
/// them have.
pub(crate) fn receive_bytes(rings: &RingSizes, shards: u32, sharers: u32) -> u32 {
    (rings.rx / sharers).min(rings.fill / 4 * 3 / shards).max(1) * (RECEIVE_BYTES / 256 * 256)
}

/// What the LNDs of all shards of a node have in common.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) shards: u32,
    /// Chunks whose home one shard is.
    pub(crate) frames_per_shard: u32,
    /// Sizes of the rings of each queue and socket.
    pub(crate) rings: RingSizes,
    /// Chunks of packets that a shard keeps for the transfer protocol at most.
    pub(crate) early_chunks_max: usize,
    /// What goes wrong on purpose.
    pub(crate) send_fault: SendFault,
    /// Whether the node lets frames in: until then, sockets receive nothing.
    pub(crate) opened: Arc<AtomicBool>,
    /// The transfer protocol of each shard, but for the shard's number and seed, and the interfaces.
    pub(crate) xfer: XferConfig,
}

impl Common {
    /// What decides which frames are for a shard.
    #[inline]
    fn owner(&self, shard: ShardId) -> Owner<'_> {
        Owner { policies: &self.xfer.policies, shards: self.shards, shard: u32::from(shard.0) }
    }
}

/// The `xdp` LND of one shard.
pub struct XdpLnd {
    common: Common,
    shard: ShardId,
    xfer: Xfer,
    devices: Devices,
    home: Home,
    nis: Nis,
    exchange: Exchange,
    /// Bytes of frames that the shard can take at once while all frames of its siblings' queues are at home.
    receive_bytes: u32,
    /// Whether there was something to send and no room for it.
    wants_room: bool,
    paths: Paths,
    /// Where frames came from that were refused.
    refused_senders: RefusedSenders,
    /// Messages whose next hop is being looked up, with the time at which that is given up.
    unresolved: Unresolved,
    /// Messages that ended before the transfer protocol had them.
    ended: VecDeque<(TxId, Status)>,
    early: EarlyFrames,
    /// What is sent in place; nothing is where no memory is registered.
    in_place: Option<Box<InPlace>>,
    /// Whether the transfer protocol may want packets that were kept.
    replay_due: bool,
    pace: Pace,
    /// Whether the kernel's refusal to go on with sockets was logged.
    told_of_failure: bool,
    /// When a path that was found to be narrow is logged again at the earliest.
    tells_narrow_at: Instant,
    /// Until when hosts may answer that were asked whether they have a node.
    asked: Option<Asked>,
    faults: FaultInjector,
    counters: XdpCounters,
    tap: Tap,
    scratch: Scratch,
}

/// How the shard keeps up with what can wait for a turn or a few.
#[derive(Default)]
struct Pace {
    /// Whether the last turn found nothing to do.
    was_idle: bool,
    /// Turns since the last one that kept up.
    turns_unkept: u32,
    /// Frames received since then.
    frames_unkept: u32,
}

/// Places for the work of one call, empty between calls.
struct Scratch {
    packet: Packet,
    /// Further finds of [`frames::take`].
    further: Vec<Further>,
    sending: Vec<RingDescriptor>,
}

impl XdpLnd {
    /// The LNDs of all shards of a node, without any NI yet, and the way home for frames of queues that are
    /// closed. `wakers` are the shards' own.
    pub(crate) fn for_shards(common: &Common, wakers: &[Waker]) -> (Vec<Self>, ReturnRings) {
        let sizes = Sizes {
            frames_per_shard: common.frames_per_shard as usize,
            // All siblings together keep back at most a quarter of a fill ring.
            home_wake_count: (common.rings.fill as usize / (4 * wakers.len())).max(1),
        };
        let (ends, return_rings) = Exchange::mesh(sizes, wakers);
        let lnds = ends
            .into_iter()
            .enumerate()
            .map(|(shard, exchange)| Self::new(common.clone(), ShardId(shard as u8), exchange));
        (lnds.collect(), return_rings)
    }

    fn new(common: Common, shard: ShardId, exchange: Exchange) -> Self {
        let limits = common.xfer.limits;
        let seed = common.xfer.seed.wrapping_add(u64::from(shard.0));
        Self {
            xfer: Xfer::new(XferConfig { shard, seed, ..common.xfer.clone() }),
            devices: Devices::new(),
            home: Home::new(shard.0, common.frames_per_shard),
            nis: Nis::default(),
            wants_room: false,
            refused_senders: RefusedSenders::default(),
            unresolved: Unresolved::new(limits.messages),
            ended: VecDeque::with_capacity(limits.messages as usize),
            early: EarlyFrames::new(limits.buffered, common.early_chunks_max),
            in_place: None,
            faults: FaultInjector::new(common.send_fault),
            scratch: Scratch {
                packet: Packet::with_capacity(),
                further: Vec::with_capacity(BUNDLE_MAX),
                sending: Vec::with_capacity(FRAGMENTS_MAX as usize),
            },
            common,
            shard,
            exchange,
            receive_bytes: 0,
            paths: Paths::new(limits.peers as usize),
            replay_due: false,
            pace: Pace { was_idle: true, ..Pace::default() },
            told_of_failure: false,
            tells_narrow_at: Instant(0),
            asked: None,
            counters: XdpCounters::default(),
            tap: Tap::default(),
        }
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &XdpCounters {
        &self.counters
    }

    /// What the transfer protocol has counted.
    #[must_use]
    pub fn transfer_counters(&self) -> &XferCounters {
        self.xfer.counters()
    }

    /// What the transfer protocol holds at this moment.
    #[must_use]
    pub fn transfer_usage(&self) -> XferUsage {
        self.xfer.usage()
    }

    /// Frames that this shard has: neither the kernel nor another shard, nor on their way between shards.
    #[must_use]
    pub fn frames_count(&self) -> usize {
        let arrived: usize = self.devices.lanes.iter().map(|lane| lane.arrived.len()).sum();
        self.home.stock.len() + self.early.chunks_count() + self.faults.chunks_count() + arrived
    }

    /// What the kernel counted on this shard's rings.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn ring_statistics(&self) -> Result<Vec<Statistics>, lnet_io::xsk::SocketError> {
        self.devices.statistics().collect()
    }

    /// Datagrams that this shard's UDP sockets had no room for, those of NIs that have gone among them.
    #[must_use]
    pub fn datagrams_dropped(&self) -> u64 {
        self.nis.datagrams_dropped()
    }

    /// Traffic of the shard by rings: interfaces, each as often as it has lanes, the frames that have come
    /// and their flows since this was last asked, and how often the kernel has taken some that leave.
    pub fn ring_traffic(&self) -> impl Iterator<Item = (u32, RingTraffic)> {
        let traffic = |lane: &Lane| RingTraffic {
            arrived: lane.frames_received,
            tuples: lane.tuples.take(),
            sendings: lane.sendings,
        };
        self.devices.lanes.iter().map(move |lane| (lane.interface_index, traffic(lane)))
    }

    /// Frames that the shard received by interfaces that have gone, or whose last NI was closed; those that
    /// a ring had no room for among them. What XDP had steered by these interfaces beyond that is lost.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn arrived_by_gone(&self) -> Result<u64, lnet_io::xsk::SocketError> {
        self.devices.arrived_by_gone(|interface_index| {
            let mut links = self.nis.links.iter();
            links.any(|link| link.interface_index == interface_index && link.neighbours.is_gone())
        })
    }

    /// Takes a frame home that was received into, and that is not used any more.
    #[inline]
    fn settle(&mut self, frame: Frame) {
        self.home.settle(frame, &mut self.exchange);
    }

    /// Takes the frames or the buffer of a packet home that is not used any more.
    fn settle_packet(&mut self, packet: &mut Packet) {
        self.home.settle_packet(packet, &mut self.exchange);
    }

    #[inline(never)]
    fn take_handed_over(
        &mut self,
        now: Instant,
        budget: u32,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) -> u32 {
        for taken in 0..budget {
            match self.exchange.receive(&mut self.scratch.packet) {
                Some(Arrival::Frame(frame)) if self.home.is_ours(&frame) => self.settle(frame),
                Some(Arrival::Buffer(buffer)) => self.home.buffers.push(buffer),
                Some(Arrival::Packet)
                    if self.scratch.packet.parts.iter().all(|part| self.home.is_ours(&part.frame)) =>
                {
                    self.receive_packet(now, Origin::Sibling, up, memory);
                }
                // The frame is one of a UMEM that is gone.
                Some(Arrival::Frame(_)) => {}
                Some(Arrival::Packet) => {
                    self.scratch.packet.parts.clear();
                    self.counters.count_drop(XdpDrop::NotOurs);
                }
                None => return taken,
            }
        }
        budget
    }

    /// Whether it must not wait any longer: the fill rings might run dry, frames to send are missed, a
    /// message waits for its end, or it was put off often enough.
    fn must_keep_up(&self) -> bool {
        self.pace.turns_unkept >= TURNS_UNKEPT_MAX
            || self.pace.frames_unkept >= self.devices.refill_count
            || self.wants_room
            || !self.ended.is_empty()
            || self.devices.is_short(&self.home)
    }

    /// Does all that can wait for a turn or a few: takes frames back that were sent, gives frames to receive
    /// into, runs the timers, follows the interfaces.
    // Apart from what takes messages in: that is called more often, and is not to be spread over so much more
    // code.
    #[inline(never)]
    fn keep_up(&mut self, now: Instant, budget: u32, up: &mut impl Uplink, memory: &mut Memory) -> u32 {
        let completed = self.take_completions(budget);
        self.devices.refill(&mut self.home, self.pace.was_idle);
        self.follow_siblings();
        self.xfer.handle_timeout(now, up);
        self.follow_refusals(now, up);
        self.follow_neighbours(now);
        self.follow_devices(now, up);
        self.follow_sockets(now, up);
        self.follow_bulk(now);
        self.tell_of_narrow_paths(now);
        let replayed = self.replay(now, up, memory);
        let ended = self.ended.len() as u32;
        while let Some((tx, status)) = self.ended.pop_front() {
            up.sent(now, tx, status);
        }
        completed + replayed + ended
    }

    /// Logs a path that was found to carry shorter datagrams than both ends take, once in a while.
    #[inline]
    fn tell_of_narrow_paths(&mut self, now: Instant) {
        if now < self.tells_narrow_at {
            return;
        }
        if let Some(Narrowed { path, datagram_bytes }) = self.xfer.poll_narrowed() {
            self.tells_narrow_at = now + NARROW_INTERVAL;
            let local = self.xfer.nid_of(path.ni);
            let local = local.map(tracing::field::display);
            let peer = path.peer;
            tracing::warn!(
                local,
                %peer,
                datagram_bytes,
                "longer frames are lost on the way to a peer: a link between has a lower MTU than both ends"
            );
        }
    }

    /// Grants peers no frame that a sibling has yet to give to the kernel again: one that is not scheduled
    /// lets its fill rings run dry while this shard takes frames from them, and what comes then is lost.
    fn follow_siblings(&mut self) {
        let away_bytes = self.exchange.waiting() as u32 * CHUNK_BYTES;
        self.xfer.set_receive_bytes(self.receive_bytes.saturating_sub(away_bytes));
    }

    /// Takes frames whose sending is complete from the owned queues.
    #[inline]
    fn take_completions(&mut self, budget: u32) -> u32 {
        self.devices.take_completions(&mut self.home, &mut self.exchange, budget)
    }
}

impl Lnd for XdpLnd {
    type Memory = Memory;

    fn submit(&mut self, now: Instant, message: Lent<'_>, memory: &Memory) -> Result<(), Full<TxId>> {
        self.take_message(now, message, memory)
    }

    fn flush(&mut self, now: Instant, memory: &Memory) {
        self.send_ready(now, memory);
        self.flush_devices();
    }

    fn drive(&mut self, now: Instant, budget: u32, up: &mut impl Uplink, memory: &mut Memory) -> Progress {
        let mut in_place = self.in_place.take();
        let wrapped = &mut InPlaceUplink { up, in_place: in_place.as_deref_mut() };
        let mut progress = self.turn(now, budget, wrapped, memory);
        if let Some(in_place) = &mut in_place {
            progress.completed += in_place.report(now, memory, up, |ni| self.is_given_up(ni));
        }
        self.in_place = in_place;
        progress
    }

    fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut impl Uplink) {
        let wrapped = &mut InPlaceUplink { up, in_place: self.in_place.as_deref_mut() };
        self.xfer.resume(now, rx, verdict, wrapped);
        self.replay_due = true;
    }

    fn extend(&mut self, now: Instant, transmit: &Transmit) {
        if !self.xfer.extend(now, transmit) {
            self.unresolved.extend(transmit);
        }
    }

    fn withdraw(&mut self, now: Instant, transmit: &Transmit, up: &mut impl Uplink) {
        let wrapped = &mut InPlaceUplink { up, in_place: self.in_place.as_deref_mut() };
        if !self.xfer.withdraw(now, transmit.tx, wrapped) && self.unresolved.remove(transmit.tx) {
            self.ended.push_back((transmit.tx, Status::NeverSent(Cause::Cancelled)));
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let devices = self.devices.retry_at();
        let unresolved = self.unresolved.poll_timeout();
        let xfer = self.xfer.poll_timeout();
        time::earliest([
            devices,
            xfer,
            unresolved,
            self.down_until(),
            self.socket_timeout(),
            self.refusal_timeout(),
        ])
    }
}

impl XdpLnd {
    /// What there is to do, but for reports that wait.
    fn turn(&mut self, now: Instant, budget: u32, up: &mut impl Uplink, memory: &mut Memory) -> Progress {
        let mut progress = Progress::default();
        if self.exchange.has_arrivals() {
            progress.completed += self.take_handed_over(now, budget, up, memory);
        }
        // First, and alone as a rule: nothing stands between what has arrived and the application.
        for lane_index in 0..self.devices.lanes.len() {
            progress.received += self.receive(now, lane_index, budget, up, memory);
        }
        for socket in 0..self.nis.sockets.len() {
            progress.received += self.receive_datagrams(now, socket, budget, up, memory);
        }
        self.pace.turns_unkept += 1;
        self.pace.frames_unkept += progress.received;
        if progress.received == 0 || self.must_keep_up() {
            (self.pace.turns_unkept, self.pace.frames_unkept) = (0, 0);
            progress.completed += self.keep_up(now, budget, up, memory);
        }
        self.devices.wake_drivers(now);
        self.pace.was_idle = progress == Progress::default();
        progress
    }
}
