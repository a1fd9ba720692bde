//! NIs, and the queues of their interfaces, that come and go.
//!
//! Invariants: the first NI over rings of a node brings the frames, the last one takes them along; the first
//! one of an interface brings its lanes, the last one takes them along; NIs between share them. A shard's own
//! frames stay with it when lanes go, or come home later by [`super::exchange::ReturnRings`]: those that the
//! kernel has.
//!
//! An NI that some shards serve has no receive side on the others. What is for one of these arrives at
//! another shard and is handed over, as all that is steered wrongly. So neither the XDP program nor the core
//! knows of such NIs. All shards send by the NI themselves.
//!
//! An NI whose rings are deaf is carried by something else from then on ([`Driver::suspend_port`]). Meanwhile
//! it is suspended: the transfer protocol has it and its messages, and what leaves is lost and leaves again.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lnet_core::limits::Limits;
use lnet_core::lnd::{Cause, NiId, Status, Uplink};
use lnet_core::time::Instant;
use lnet_io::capture::Tap;
use lnet_io::driver::{Counted, Driver};
use lnet_io::memory::Memory;
use lnet_io::netlink::Neighbours;
use lnet_io::reactor::udp::RefusalProbe;
use lnet_io::xsk::{Device, Frame, RingSizes, Umem};
use lnet_model::ni::NiOptions;
use lnet_wire::steer::{PORTALS, PolicyWord};
use lnet_xdp_proto::XferNi;

use super::in_place::{InPlace, InPlaceUplink};
use super::receive::Sender;
use super::refusals;
use super::socket::SocketPort;
use super::{Bulk, Common, Lane, OwnedQueue, Port, XdpLnd, bulk, receive_bytes, reuseport};

/// What one shard has of an interface.
pub struct Rings {
    pub(crate) interface_index: u32,
    /// Finds next hops, and follows the interface.
    pub(crate) neighbours: Arc<Neighbours>,
    /// A lane on each receive queue.
    pub(crate) lanes: Vec<Lane>,
    /// The queues that the shard owns.
    pub(crate) owned: Vec<OwnedQueue>,
    /// Queues of all interfaces that the shard owns which owns most; 0 where memory is not dealt out by that.
    pub(crate) most_owned: u32,
}

impl Rings {
    /// Takes further queues of the interface.
    pub(crate) fn extend(&mut self, more: Self) {
        self.lanes.extend(more.lanes);
        self.owned.extend(more.owned);
        self.most_owned = more.most_owned;
    }

    /// Sockets to watch while the shard sleeps.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let receiving = self.lanes.iter().filter(|lane| lane.receives());
        receiving.filter_map(|lane| lane.device.as_ref()).map(Device::as_fd)
    }
}

/// What one shard has of the node's frames.
pub struct UmemShare {
    pub(crate) umem: Arc<Umem>,
    /// The frames whose home the shard is.
    pub(crate) frames: VecDeque<Frame>,
}

/// An NI as one shard gets it, and gives it back.
pub enum XdpPort {
    /// Over `AF_XDP` rings.
    Rings {
        /// The shard's part of it.
        port: RingPort,
        /// The frames, with the node's first NI over rings, and with the last.
        frames: Option<UmemShare>,
        /// The rings of its interface, with the first NI that it has, and with the last.
        rings: Option<Rings>,
    },
    /// Over a UDP socket.
    Socket(SocketPort),
    /// Queues of an open NI over rings that have come, on their way to the shard.
    Queues(FurtherQueues),
    /// No carrier any more, on its way back: the former one was given up, and none came instead.
    Nothing(NoCarrier),
}

/// An NI that nothing carries, as one shard gives it back.
pub struct NoCarrier {
    port: Port,
}

/// Queues of the interface of an open NI that have come, as one shard gets them.
pub struct FurtherQueues {
    pub(crate) port: Port,
    pub(crate) rings: Rings,
    /// Transmit queues of its interface.
    pub(crate) transmit_queues: u32,
}

impl lnet_io::driver::Port for XdpPort {
    fn ni(&self) -> NiId {
        self.port().ni
    }

    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Rings { port, rings, .. } => {
                let beside = port.bulk.iter().map(Bulk::fd);
                rings.iter().flat_map(Rings::sockets).chain(beside).collect()
            }
            Self::Socket(open) => vec![open.endpoint.fd()],
            Self::Queues(further) => further.rings.sockets().collect(),
            Self::Nothing(_) => Vec::new(),
        }
    }
}

impl XdpPort {
    fn port(&self) -> &Port {
        match self {
            Self::Rings { port, .. } => &port.port,
            Self::Socket(socket) => &socket.port,
            Self::Queues(further) => &further.port,
            Self::Nothing(NoCarrier { port }) => port,
        }
    }
}

/// An NI over rings that a shard has.
pub struct RingPort {
    pub(super) port: Port,
    /// Bytes of frames that the shard can take at once by it: what it grants its peers.
    pub(super) receive_bytes: u32,
    /// Bytes of a frame that the rings of its interface can hold.
    pub(super) frame_max_bytes: usize,
    /// ACKs and REPLYs that may wait for a next hop at once while this NI is there: others are refused.
    pub(super) unresolved_responses_max: u32,
    /// The lane that its frames leave by.
    pub(super) lane_index: usize,
    /// Its interface's index among the links.
    pub(super) link_index: usize,
    /// If its interface is known to be down.
    pub(super) down: Option<Down>,
    /// Who sent its last packet.
    pub(super) last_sender: Sender,
    /// Tells hosts without a daemon from silent ones.
    pub(super) refusals: Option<RefusalProbe>,
    /// Socket by which long messages may leave.
    pub(super) bulk: Option<Bulk>,
    /// Whether what comes by its rings may leave its sender in runs: those are cut up on the way.
    takes_runs: bool,
}

impl RingPort {
    pub(crate) fn new(
        port: Port,
        receive_bytes: u32,
        frame_max_bytes: usize,
        unresolved_responses_max: u32,
    ) -> Self {
        let (lane_index, link_index, down) = (0, 0, None);
        let last_sender = Sender::UNKNOWN;
        let refusals = refusals::probe(&port);
        Self {
            port,
            receive_bytes,
            frame_max_bytes,
            unresolved_responses_max,
            lane_index,
            link_index,
            down,
            last_sender,
            refusals,
            bulk: None,
            takes_runs: false,
        }
    }

    /// The NI with a socket for long messages, if there is one.
    pub(crate) fn with_bulk(self, bulk: Option<Bulk>) -> Self {
        Self { bulk, ..self }
    }

    /// The NI with frames that may leave their sender in runs, if the XDP program sees each alone.
    pub(crate) fn with_runs(self, takes_runs: bool) -> Self {
        Self { takes_runs, ..self }
    }
}

/// An interface that is down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Down {
    /// Since when that is known.
    pub(super) since: Instant,
    /// The peer that could not be reached.
    pub(super) address: IpAddr,
    /// Whether it has been so for too long: nothing waits for it any more.
    pub(super) is_given_up: bool,
}

/// An interface, as a shard follows it.
pub(super) struct ShardInterface {
    pub(super) interface_index: u32,
    pub(super) neighbours: Arc<Neighbours>,
    /// Epoch of the answers that paths were made of.
    pub(super) epoch: u64,
    /// Generation of the answers that messages without a path have waited for.
    pub(super) generation: u64,
}

/// An NI that nothing carries for a while.
struct Suspended {
    port: Port,
    /// Whether it was closed meanwhile.
    is_closed: bool,
}

/// The NIs of a shard.
#[derive(Default)]
pub(super) struct Nis {
    /// The NIs over rings that are open.
    pub(super) ports: Vec<RingPort>,
    /// The NIs over sockets that are open.
    pub(super) sockets: Vec<SocketPort>,
    /// The NIs that were closed and are to be removed.
    closed: Vec<XdpPort>,
    /// The NIs whose rings were given up, until something else carries them.
    suspended: Vec<Suspended>,
    /// The interfaces of those over rings.
    pub(super) links: Vec<ShardInterface>,
    /// Datagrams that sockets had no room for which have gone.
    dropped_by_gone: u64,
}

impl Nis {
    /// Datagrams that sockets had no room for, those that have gone among them.
    pub(super) fn datagrams_dropped(&self) -> u64 {
        let closed = self.closed.iter().filter_map(|closed| match closed {
            XdpPort::Socket(socket) => Some(socket),
            XdpPort::Rings { .. } | XdpPort::Queues(_) | XdpPort::Nothing(_) => None,
        });
        self.dropped_by_gone + self.sockets.iter().chain(closed).map(SocketPort::dropped).sum::<u64>()
    }

    /// The index of an open NI over rings.
    #[inline]
    pub(super) fn ring_of(&self, ni: NiId) -> Option<usize> {
        self.ports.iter().position(|open| open.port.ni == ni)
    }

    /// Whether an open NI goes by a socket, or is to go by something else than its rings soon: its messages
    /// need no next hop.
    #[inline]
    pub(super) fn needs_no_hop(&self, ni: NiId) -> bool {
        let waits = |waiting: &Suspended| waiting.port.ni == ni && !waiting.is_closed;
        self.socket_of(ni).is_some() || self.suspended.iter().any(waits)
    }

    /// The index of an open NI over a socket.
    #[inline]
    pub(super) fn socket_of(&self, ni: NiId) -> Option<usize> {
        self.sockets.iter().position(|open| open.port.ni == ni)
    }
}

impl XdpLnd {
    fn add_frames(&mut self, share: UmemShare) {
        let messages = self.common.xfer.limits.messages;
        // Messages that ended by former rings are still to be reported.
        let former = self.in_place.take();
        self.in_place = (share.umem.registered_bytes() != 0)
            .then(|| former.unwrap_or_else(|| Box::new(InPlace::new(messages))));
        self.home.add_frames(share);
    }

    fn add_rings(&mut self, rings: Rings) {
        let Rings { interface_index, neighbours, mut lanes, mut owned, most_owned } = rings;
        self.devices.lanes.append(&mut lanes);
        self.devices.owned.append(&mut owned);
        self.devices.most_owned = most_owned;
        self.nis.links.push(ShardInterface {
            interface_index,
            neighbours,
            epoch: u64::MAX,
            generation: u64::MAX,
        });
        self.follow_rings();
        self.devices.refill(&mut self.home, true);
    }

    /// Takes queues that have come, and sends by those that can be sent by now. Frames of the others go on.
    fn add_queues(&mut self, FurtherQueues { port, rings, transmit_queues }: FurtherQueues) {
        let Rings { mut lanes, mut owned, most_owned, .. } = rings;
        let interface_index = port.interface_index;
        self.devices.lanes.append(&mut lanes);
        self.devices.owned.append(&mut owned);
        self.devices.most_owned = most_owned;
        for lane in self.devices.lanes.iter_mut().filter(|lane| lane.interface_index == interface_index) {
            lane.sends = lane.queue < transmit_queues;
        }
        self.follow_rings();
        self.devices.refill(&mut self.home, true);
        self.follow_ports();
    }

    /// Whether an NI was closed whose device refuses to send: what it has not sent by now it never will, for
    /// its sockets are about to be closed, or are closed.
    pub(super) fn is_given_up(&self, ni: NiId) -> bool {
        let closed = self.nis.closed.iter().map(XdpPort::port).find(|closed| closed.ni == ni);
        self.home.umem.is_none()
            || closed.is_some_and(|closed| {
                let mut its =
                    self.devices.lanes.iter().filter(|lane| lane.interface_index == closed.interface_index);
                its.any(Lane::refuses)
            })
    }

    /// Gives an NI over rings that goes what was there for it: the rings of its interface with the last NI
    /// that has them, the frames with the last one of all.
    fn take_rings_along(&mut self, going: &mut XdpPort) {
        let XdpPort::Rings { port, frames, rings } = going else { return };
        let interface_index = port.port.interface_index;
        let others = || {
            let is_ring = |other: &&XdpPort| matches!(other, XdpPort::Rings { .. });
            let closed = self.nis.closed.iter().filter(is_ring).map(XdpPort::port);
            self.nis.ports.iter().map(|open| &open.port).chain(closed)
        };
        let is_last = others().all(|other| other.interface_index != interface_index);
        let is_last_of_all = others().next().is_none();
        if is_last {
            *rings = Some(self.remove_rings(interface_index));
        }
        if is_last_of_all {
            *frames = self.home.remove_frames();
        }
    }

    fn remove_rings(&mut self, interface_index: u32) -> Rings {
        self.take_completions(u32::MAX);
        if let Some(late) = self.faults.give_up() {
            self.home.stock.extend(late.map(|part| part.frame));
        }
        let owned =
            self.devices.owned.extract_if(.., |queue| queue.interface_index == interface_index).collect();
        let mut lanes: Vec<Lane> =
            self.devices.lanes.extract_if(.., |lane| lane.interface_index == interface_index).collect();
        for lane in &mut lanes {
            self.devices.end_counts(lane);
            // A packet whose last part has not been seen.
            while let Some(descriptor) = lane.arrived.pop_front() {
                self.settle(descriptor.frame);
            }
        }
        let link = self.nis.links.iter().position(|link| link.interface_index == interface_index);
        let ShardInterface { neighbours, .. } =
            self.nis.links.remove(link.expect("an interface with lanes has a link"));
        if self.nis.links.is_empty() {
            self.devices.most_owned = 0;
        }
        let most_owned = self.devices.most_owned;
        self.follow_rings();
        self.follow_ports();
        Rings { interface_index, neighbours, lanes, owned, most_owned }
    }

    /// Takes in which queues there are.
    fn follow_rings(&mut self) {
        let Common { frames_per_shard, early_chunks_max, rings, .. } = &self.common;
        let frames = frames_per_shard.saturating_sub(*early_chunks_max as u32);
        self.devices.follow_rings(self.nis.links.len(), rings.tx, frames);
    }

    /// Takes in which NIs there are.
    fn follow_ports(&mut self) {
        for index in 0..self.nis.ports.len() {
            let interface_index = self.nis.ports[index].port.interface_index;
            let is_its = |link: &ShardInterface| link.interface_index == interface_index;
            let link_index = self.nis.links.iter().position(is_its);
            self.nis.ports[index].link_index = link_index.expect("the first NI of an interface brings rings");
            self.nis.ports[index].lane_index = self.lane_to(interface_index);
        }
        let responses_max = self.nis.ports.iter().map(|port| port.unresolved_responses_max).min();
        self.unresolved.set_responses_max(responses_max.unwrap_or(0));
        let rings = self.nis.ports.iter().map(|port| port.receive_bytes);
        // Peers are not told by which NI they may send how much.
        if let Some(least) = rings.chain(self.nis.sockets.iter().map(|socket| socket.receive_bytes)).min() {
            let rings = &self.common.rings;
            let rings = RingSizes { fill: rings.fill.min(self.devices.fill_max), ..*rings };
            self.receive_bytes = least.min(receive_bytes(&rings, self.common.shards, 1));
            self.follow_siblings();
        }
        self.follow_interfaces();
        self.paths.clear();
        self.unresolved.retry = true;
    }

    /// The lane by which frames of this shard leave: that of a queue that it owns, or any. A driver that has
    /// fewer transmit queues than lanes has one at least.
    fn lane_to(&self, interface_index: u32) -> usize {
        let is_candidate = |lane: &Lane| lane.interface_index == interface_index && lane.sends;
        let all: Vec<usize> =
            (0..self.devices.lanes.len()).filter(|lane| is_candidate(&self.devices.lanes[*lane])).collect();
        let own = all.iter().find(|lane| self.devices.lanes[**lane].owner.is_none());
        *own.unwrap_or_else(|| &all[usize::from(self.shard.0) % all.len()])
    }
}

impl Driver for XdpLnd {
    type Port = XdpPort;

    fn names_max(limits: &Limits) -> u32 {
        limits.incoming
    }

    // The transfer protocol names messages from 0 on.
    fn set_first_name(&mut self, first: u32) {
        assert!(first == 0, "the xdp LND names messages from 0 on, not from {first}");
    }

    fn add_port(&mut self, port: XdpPort) {
        let port = match port {
            XdpPort::Queues(further) => return self.add_queues(further),
            port => port,
        };
        let Port { ni, nid, checksum, .. } = *port.port();
        let datagram_max_bytes = match &port {
            XdpPort::Rings { port, .. } => port.port.ring_datagram_max_bytes(port.frame_max_bytes),
            XdpPort::Socket(open) => open.datagram_max_bytes(),
            XdpPort::Queues(_) | XdpPort::Nothing(_) => unreachable!("such a port comes to no shard anew"),
        };
        // The kernel cuts up what comes to a socket, and what comes to a program of the driver's.
        let (runs, run_min_bytes) = match &port {
            XdpPort::Rings { port, .. } => (port.takes_runs, bulk::run_min_bytes(port.bulk.as_ref())),
            _ => (true, 0),
        };
        let at = self.nis.suspended.iter().position(|waiting| waiting.port.ni == ni);
        let suspended = at.map(|at| self.nis.suspended.swap_remove(at));
        let is_closed = suspended.as_ref().is_some_and(|waiting| waiting.is_closed);
        match suspended {
            None => self.xfer.add_ni(ni, XferNi { nid, datagram_max_bytes, checksum, runs }),
            Some(_) if is_closed => {}
            Some(_) => {
                self.xfer.set_datagram_max(ni, datagram_max_bytes);
                if !runs {
                    self.xfer.set_runs(ni, false);
                }
            }
        }
        self.xfer.set_run_min(ni, run_min_bytes);
        match port {
            XdpPort::Rings { port, frames, rings } => {
                if let Some(frames) = frames {
                    self.add_frames(frames);
                }
                if let Some(rings) = rings {
                    self.add_rings(rings);
                }
                match is_closed {
                    true => self.nis.closed.push(XdpPort::Rings { port, frames: None, rings: None }),
                    false => self.nis.ports.push(port),
                }
            }
            XdpPort::Socket(open) => {
                let early_count = self.common.xfer.limits.buffered as usize;
                self.home.add_buffers(early_count, &self.exchange, open.buffer_bytes);
                match is_closed {
                    true => self.nis.closed.push(XdpPort::Socket(open)),
                    false => self.nis.sockets.push(open),
                }
            }
            XdpPort::Queues(_) | XdpPort::Nothing(_) => unreachable!("such a port comes to no shard anew"),
        }
        self.follow_ports();
    }

    fn close_port(&mut self, now: Instant, ni: NiId, up: &mut impl Uplink, memory: &Memory) {
        let (ring, socket) = (self.nis.ring_of(ni), self.nis.socket_of(ni));
        let is_open = |waiting: &&mut Suspended| waiting.port.ni == ni && !waiting.is_closed;
        let suspended = self.nis.suspended.iter_mut().find(is_open);
        if ring.or(socket).is_none() && suspended.is_none() {
            return;
        }
        suspended.into_iter().for_each(|waiting| waiting.is_closed = true);
        let mut in_place = self.in_place.take();
        let up = &mut InPlaceUplink { up, in_place: in_place.as_deref_mut() };
        // Peers need not wonder what has arrived.
        self.xfer.acknowledge_now(now);
        self.send_ready(now, memory);
        self.flush_devices();
        for _ in 0..self.unresolved.count() {
            let Some((deadline, transmit)) = self.unresolved.pop() else { break };
            if transmit.ni == ni {
                self.counters.messages_refused += 1;
                up.sent(now, transmit.tx, Status::NeverSent(Cause::Device));
            } else {
                self.unresolved.push(deadline, transmit);
            }
        }
        self.xfer.remove_ni(now, ni, up);
        self.in_place = in_place;
        let ring = ring.map(|index| self.nis.ports.swap_remove(index));
        self.nis.closed.extend(ring.map(|port| XdpPort::Rings { port, frames: None, rings: None }));
        self.nis.closed.extend(socket.map(|index| XdpPort::Socket(self.nis.sockets.swap_remove(index))));
        self.follow_ports();
        self.replay_due = true;
    }

    fn remove_port(&mut self, ni: NiId) -> XdpPort {
        if let Some(at) = self.nis.suspended.iter().position(|waiting| waiting.port.ni == ni) {
            let port = self.nis.suspended.swap_remove(at).port;
            return XdpPort::Nothing(NoCarrier { port });
        }
        let index =
            self.nis.closed.iter().position(|closed| closed.port().ni == ni).expect("the NI was closed");
        let mut closed = self.nis.closed.swap_remove(index);
        if let XdpPort::Socket(socket) = &closed {
            self.nis.dropped_by_gone += socket.dropped();
        }
        self.take_rings_along(&mut closed);
        closed
    }

    fn suspend_port(&mut self, ni: NiId) -> Option<XdpPort> {
        let port = self.nis.ports.swap_remove(self.nis.ring_of(ni)?);
        self.nis.suspended.push(Suspended { port: port.port, is_closed: false });
        // Rings that are given up tell of no completion any more.
        let ended = self.in_place.as_mut().map(|in_place| in_place.forget(ni));
        self.ended.extend(ended.into_iter().flatten());
        let mut given_up = XdpPort::Rings { port, frames: None, rings: None };
        self.take_rings_along(&mut given_up);
        self.follow_ports();
        Some(given_up)
    }

    fn is_empty(&self) -> bool {
        let Nis { ports, sockets, closed, suspended, .. } = &self.nis;
        ports.is_empty() && sockets.is_empty() && closed.is_empty() && suspended.is_empty()
    }

    fn change(&mut self, ni: NiId, options: &NiOptions) {
        self.change_carrier(ni, options);
    }

    fn set_timeout(&mut self, now: Instant, timeout: Duration) {
        self.xfer.set_message_timeout(now, timeout);
    }

    // The first shard tells the kernel about sockets.
    fn set_policies(&mut self, policies: &[PolicyWord; PORTALS]) {
        self.common.xfer.policies = *policies;
        self.xfer.set_policies(policies);
        if self.shard.0 == 0 {
            for open in &self.nis.sockets {
                let program = reuseport::program(policies, self.common.shards, open.serving);
                if let Err(error) = open.endpoint.socket().choose_by(&program) {
                    tracing::warn!(%error, "the kernel goes on steering as before: more is handed over");
                }
            }
        }
    }

    // Frames that make room for one to be sent, and those of siblings on queues that this shard owns.
    fn awaits_completions(&self) -> bool {
        (self.wants_room && self.xfer.has_transmit())
            || self.unresolved.is_full
            || self.in_place.as_ref().is_some_and(|in_place| !in_place.is_empty())
            || self.devices.owned.iter().any(|queue| queue.borrowed.load(Ordering::Acquire) != 0)
    }

    // Sockets hide what has arrived.
    #[inline]
    fn may_hide_arrivals(&self) -> bool {
        !self.nis.sockets.is_empty()
    }

    fn is_bound_to_driver(&self) -> bool {
        !self.nis.sockets.is_empty()
    }

    #[inline]
    fn has_arrivals(&mut self) -> bool {
        self.exchange.has_arrivals() || self.devices.lanes.iter_mut().any(Lane::has_arrivals)
    }

    fn has_work(&mut self) -> bool {
        let is_open = self.is_open();
        self.exchange.has_arrivals()
            || !self.ended.is_empty()
            || self.replay_due
            || (self.xfer.has_transmit() && !self.wants_room)
            || self.devices.lanes.iter().any(Lane::is_unflushed)
            || (!self.unresolved.is_empty() && (self.unresolved.retry || self.links_have_changed()))
            || self.nis.sockets.iter_mut().any(|socket| socket.has_work(is_open))
            || self.nis.ports.iter_mut().any(|open| open.bulk.as_mut().is_some_and(Bulk::has_work))
    }

    fn count(&self, tell: &mut dyn FnMut(Counted, &'static str, u64)) -> std::io::Result<()> {
        self.tell_counters(tell)
    }

    fn tap_mut(&mut self) -> Option<&mut Tap> {
        Some(&mut self.tap)
    }
}
