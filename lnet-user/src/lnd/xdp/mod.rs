//! The `xdp` LND: LNet messages in UDP datagrams over `AF_XDP` rings.
//!
//! Each shard has one [`XdpLnd`]: a socket (a *lane*) on every receive queue of the node's interfaces, and
//! the fill and completion rings of the queues that it owns. What a frame looks like and which shard it
//! belongs to is `lnet-wire`'s to say ([`lnet_wire::frame`], [`lnet_wire::steer`]).
//!
//! Invariants: every frame has a home shard, given by its chunk index, and always returns there; a
//! message that was submitted ends in exactly one `sent`; nothing on the data path allocates or blocks.
//!
//! A message travels in one frame, so its payload is bounded by the path MTU; there is no loss recovery
//! at this level: a frame that the receiver had no room for is lost, and counted by its rings.

mod exchange;
mod lane;
mod path;
mod paths;
mod receive;
mod transmit;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lnet_core::handle::ShardId;
use lnet_core::lnd::{Full, Lnd, NiId, Progress, RxId, Status, Transmit, TxId, Uplink, Verdict};
use lnet_core::time::Instant;
use lnet_wire::frame::FRAME_HEADER_BYTES;
use lnet_wire::header::LARGE_HEADER_BYTES;
use lnet_wire::packet::ENDPOINT_BYTES;
use lnet_wire::steer::{PORTALS, PolicyWord};

use crate::memory::Memory;
use crate::netlink::{Mac, Neighbours};
use crate::uring::Waker;
use crate::xsk::{FRAGMENTS_MAX, Frame, RxDescriptor, Socket, Statistics, Umem};

use exchange::{Arrival, Exchange, Sizes};
use paths::Paths;

pub(crate) use lane::{Lane, OwnedQueue};

/// Most frames that one turn takes off one ring.
const BUDGET_MAX: u32 = 256;
/// Bytes that a frame of ours spends on headers behind the UDP header.
pub const OVERHEAD_BYTES: usize = FRAME_HEADER_BYTES + LARGE_HEADER_BYTES;

/// Why the LND dropped a frame that XDP had steered to it, or a message that it was to send.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum XdpDrop {
    /// Not a frame to one of this node's NIs, although it reached its ring.
    NotOurs,
    /// The checksum of the headers does not fit them.
    BadChecksum,
    /// The LNet header cannot be read.
    BadHeader,
    /// The LNet header contradicts the frame header.
    HeaderMismatch,
    /// A part of a message of several frames, which this version neither sends nor takes.
    Fragment,
    /// It belongs to a sibling shard that has too many handed-over packets to deal with already.
    SiblingBusy,
}

impl XdpDrop {
    /// All reasons, in the order in which they are counted.
    pub const ALL: [Self; 6] = [
        Self::NotOurs,
        Self::BadChecksum,
        Self::BadHeader,
        Self::HeaderMismatch,
        Self::Fragment,
        Self::SiblingBusy,
    ];

    /// The reason as reports name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotOurs => "not_ours",
            Self::BadChecksum => "bad_checksum",
            Self::BadHeader => "bad_header",
            Self::HeaderMismatch => "header_mismatch",
            Self::Fragment => "fragment",
            Self::SiblingBusy => "sibling_busy",
        }
    }
}

/// What an [`XdpLnd`] has counted since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct XdpCounters {
    /// Frames handed to the device.
    pub frames_sent: u64,
    /// Frames that arrived on this shard's sockets, those that it handed over included.
    pub frames_received: u64,
    /// Frames that arrived here and belong to another shard; they were handed over.
    pub frames_misdirected: u64,
    /// Messages that were never sent: longer than a frame, to nobody, by a device that refuses, or answers beyond
    /// those that may wait for a next hop.
    pub messages_refused: u64,
    drops: [u64; XdpDrop::ALL.len()],
}

impl XdpCounters {
    /// Frames dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: XdpDrop) -> u64 {
        self.drops[reason as usize]
    }
}

/// An NI of the node, as its LND sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub(crate) ni: NiId,
    pub(crate) address: IpAddr,
    pub(crate) udp_port: u16,
    pub(crate) endpoint: [u8; ENDPOINT_BYTES],
    pub(crate) interface_index: u32,
    pub(crate) mac: Mac,
    /// Bytes of an IP packet at most.
    pub(crate) mtu_bytes: usize,
}

/// What the LNDs of all shards of a node have in common.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) umem: Arc<Umem>,
    pub(crate) neighbours: Arc<Neighbours>,
    pub(crate) ports: Vec<Port>,
    pub(crate) policies: [PolicyWord; PORTALS],
    pub(crate) shards: u32,
    /// Hash of the node's primary NID.
    pub(crate) initiator_hash: u32,
    /// Chunks whose home one shard is.
    pub(crate) frames_per_shard: u32,
    /// Frames of a shard that are kept for sending.
    pub(crate) transmit_reserve: usize,
    /// Messages of a shard that can be with its LND.
    pub(crate) transmits_max: u32,
    /// ACKs and REPLYs of a shard that may wait for a next hop at once, others are refused: they hold credits,
    /// and whoever sends requests under made-up addresses could otherwise have all of them.
    pub(crate) parked_responses_max: u32,
}

/// A message whose last frame is with the device.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    tx: TxId,
    lane_index: u32,
}

/// The `xdp` LND of one shard.
pub struct XdpLnd {
    common: Common,
    shard: ShardId,
    /// Number of the first chunk whose home this shard is.
    first_chunk: u32,
    lanes: Vec<Lane>,
    owned: Vec<OwnedQueue>,
    /// Frames missing in a fill ring, or waiting for one, that make a refill worth its while.
    refill_count: u32,
    exchange: Exchange,
    /// Frames at home that nobody uses: those that ended a message at the back, from where they are sent again
    /// while this CPU's cache has them; those that another CPU's kernel wrote to at the front, from where
    /// they are given back to it.
    stock: VecDeque<Frame>,
    /// By chunk index, from this shard's first: the message that the chunk is the last frame of.
    in_flight: Vec<Option<InFlight>>,
    in_flight_count: u32,
    /// By NI: the lane that its frames leave by.
    transmit_lanes: Vec<usize>,
    paths: Paths,
    paths_generation: u64,
    /// Messages whose next hop is being looked up, with the time at which that is given up.
    parked: VecDeque<(Instant, Transmit)>,
    /// How many of them are ACKs and REPLYs.
    parked_responses: u32,
    /// Whether a next hop has changed since the parked messages were tried.
    retry_parked: bool,
    /// Whether a parked message knows its next hop and the device had no room for it.
    parked_full: bool,
    /// When to ask again for next hops, because the question found no room.
    ask_again_at: Option<Instant>,
    /// Messages that ended without reaching the device.
    ended: VecDeque<(TxId, Status)>,
    next_message_id: u64,
    counters: XdpCounters,
    /// Scratch of `drive`: empty between calls.
    packet: Vec<RxDescriptor>,
    moving: Vec<Frame>,
}

impl XdpLnd {
    /// The LNDs of all shards of a node. `frames` are all frames of the UMEM; `lanes` and `owned` come by
    /// shard, as do `wakers`.
    pub(crate) fn for_shards(
        common: &Common,
        frames: Vec<Frame>,
        lanes: Vec<(Vec<Lane>, Vec<OwnedQueue>)>,
        wakers: &[Waker],
    ) -> Vec<Self> {
        let per_shard = common.frames_per_shard;
        let mut stocks: Vec<_> = lanes.iter().map(|_| VecDeque::with_capacity(per_shard as usize)).collect();
        for frame in frames {
            stocks[(frame.chunk_index() / per_shard) as usize].push_back(frame);
        }
        let smallest_fill = lanes.iter().flat_map(|(_, owned)| owned).map(|queue| queue.fill.size()).min();
        let sizes = Sizes {
            frames_per_shard: per_shard as usize,
            // All siblings together keep back at most a quarter of a fill ring.
            home_wake_count: (smallest_fill.unwrap_or(1) as usize / (4 * stocks.len())).max(1),
        };
        let ends = Exchange::mesh(sizes, wakers);
        lanes
            .into_iter()
            .zip(stocks)
            .zip(ends)
            .enumerate()
            .map(|(shard, (((lanes, owned), stock), exchange))| {
                Self::new(common.clone(), ShardId(shard as u8), lanes, owned, stock, exchange)
            })
            .collect()
    }

    fn new(
        common: Common,
        shard: ShardId,
        lanes: Vec<Lane>,
        owned: Vec<OwnedQueue>,
        stock: VecDeque<Frame>,
        exchange: Exchange,
    ) -> Self {
        let transmit_lanes = common
            .ports
            .iter()
            .map(|port| {
                let of_interface =
                    |lane: &usize| lanes[*lane].interface_index == port.interface_index && lanes[*lane].sends;
                let own = owned.iter().map(|queue| queue.lane_index).find(of_interface);
                let any = || {
                    let all: Vec<usize> = (0..lanes.len()).filter(of_interface).collect();
                    all[usize::from(shard.0) % all.len()]
                };
                own.unwrap_or_else(any)
            })
            .collect();
        let transmits_max = common.transmits_max as usize;
        let mut lnd = Self {
            first_chunk: u32::from(shard.0) * common.frames_per_shard,
            in_flight: vec![None; common.frames_per_shard as usize],
            in_flight_count: 0,
            next_message_id: u64::from(shard.0) << 56 | 1,
            refill_count: owned.iter().map(OwnedQueue::refill_count).min().unwrap_or(1),
            packet: Vec::with_capacity(FRAGMENTS_MAX as usize),
            moving: Vec::with_capacity(common.frames_per_shard as usize),
            common,
            shard,
            lanes,
            owned,
            exchange,
            stock,
            transmit_lanes,
            paths: Paths::new(),
            paths_generation: 0,
            parked: VecDeque::with_capacity(transmits_max),
            parked_responses: 0,
            retry_parked: false,
            parked_full: false,
            ask_again_at: None,
            ended: VecDeque::with_capacity(transmits_max),
            counters: XdpCounters::default(),
        };
        lnd.refill(true);
        lnd
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &XdpCounters {
        &self.counters
    }

    /// What the kernel counted on this shard's sockets.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn ring_statistics(&self) -> Result<Vec<Statistics>, crate::xsk::SocketError> {
        self.lanes.iter().filter_map(Lane::socket).map(Socket::statistics).collect()
    }

    /// Sockets to watch while the shard sleeps.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.lanes.iter().filter_map(Lane::socket).map(AsFd::as_fd)
    }

    /// Whether frames are with a device whose completion this shard waits or looks for, which wakes nobody:
    /// its own, its siblings' on queues that it owns, or those that make room for a parked message.
    pub(crate) fn awaits_completions(&self) -> bool {
        self.in_flight_count != 0
            || self.parked_full
            || self.owned.iter().any(|queue| queue.borrowed.load(Ordering::Acquire) != 0)
    }

    /// Whether there is something to do that no socket would report.
    pub(crate) fn has_work(&self) -> bool {
        self.exchange.has_parcels()
            || !self.ended.is_empty()
            || self.lanes.iter().any(Lane::is_unflushed)
            || (!self.parked.is_empty()
                && (self.retry_parked || self.common.neighbours.generation() != self.paths_generation))
    }

    /// The place of a chunk among those whose home this shard is.
    #[inline]
    fn place_of(&self, frame: &Frame) -> Option<usize> {
        let place = frame.chunk_index().wrapping_sub(self.first_chunk);
        (place < self.common.frames_per_shard).then_some(place as usize)
    }

    /// A frame that nobody uses any more goes home; at home it may end a message.
    #[inline]
    fn settle(&mut self, now: Instant, frame: Frame, up: &mut impl Uplink) {
        let Some(place) = self.place_of(&frame) else {
            let home = frame.chunk_index() / self.common.frames_per_shard;
            self.exchange.send_home(home as usize, frame);
            return;
        };
        if let Some(message) = self.in_flight[place].take() {
            self.in_flight_count -= 1;
            self.stock.push_back(frame);
            up.sent(now, message.tx, Status::Ok);
        } else {
            self.stock.push_front(frame);
        }
    }

    fn take_parcels(&mut self, now: Instant, budget: u32, up: &mut impl Uplink, memory: &mut Memory) -> u32 {
        for taken in 0..budget {
            match self.exchange.receive(&mut self.packet) {
                Some(Arrival::Home(frame)) => self.settle(now, frame, up),
                Some(Arrival::Packet { lane_index }) => {
                    self.receive_packet(now, lane_index, true, up, memory);
                }
                None => return taken,
            }
        }
        budget
    }

    /// Gives the kernel what frames the fill rings have room for, but for those kept for sending. Many at
    /// a time: in a busy turn only once so many are waiting, in an idle one where so many are missing.
    #[inline]
    fn refill(&mut self, idle: bool) {
        let spare = self.stock.len().saturating_sub(self.common.transmit_reserve);
        if spare != 0 && (idle || spare >= self.refill_count as usize) {
            self.fill_rings();
        }
    }

    fn fill_rings(&mut self) {
        for queue in &mut self.owned {
            let spare = self.stock.len().saturating_sub(self.common.transmit_reserve);
            let room = queue.fill.free_slots();
            if spare == 0 || room < queue.refill_count() {
                continue;
            }
            self.moving.extend(self.stock.drain(..spare.min(room as usize)));
            queue.fill.fill(&mut self.moving);
            self.stock.extend(self.moving.drain(..));
            if queue.fill.needs_wakeup()
                && let Some(socket) = self.lanes[queue.lane_index].socket()
                && let Err(error) = socket.wake_fill()
            {
                tracing::warn!(%error, "the driver was not told of free frames");
            }
        }
    }
}

impl Lnd for XdpLnd {
    type Memory = Memory;

    fn submit(&mut self, now: Instant, transmit: Transmit, memory: &Memory) -> Result<(), Full<Transmit>> {
        self.transmit(now, transmit, memory)
    }

    fn flush(&mut self) {
        for lane in &mut self.lanes {
            if lane.flush()
                && let Some((owner, _)) = &lane.lender
            {
                self.exchange.wake(*owner);
            }
        }
    }

    fn drive(&mut self, now: Instant, budget: u32, up: &mut impl Uplink, memory: &mut Memory) -> Progress {
        let mut progress = Progress::default();
        let parcels = self.take_parcels(now, budget, up, memory);
        progress.completed = self.complete(now, budget, up);
        for lane_index in 0..self.lanes.len() {
            progress.received += self.receive(now, lane_index, budget, up, memory);
        }
        self.refill(progress == Progress::default() && parcels == 0);
        self.follow_neighbours(now, memory);
        self.follow_devices(now);
        progress.completed += parcels + self.ended.len() as u32;
        while let Some((tx, status)) = self.ended.pop_front() {
            up.sent(now, tx, status);
        }
        progress
    }

    fn resume(&mut self, _: Instant, rx: RxId, _: Verdict, _: &mut impl Uplink) {
        unreachable!("{rx:?} is resumed, and delayed messages are given up at once")
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let parked = self.parked.front().map(|(deadline, _)| *deadline);
        let devices = self.lanes.iter().filter_map(Lane::retry_at);
        devices.chain(parked).chain(self.ask_again_at).min()
    }
}
