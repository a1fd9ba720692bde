//! Nodes over rings without a kernel, and the kernel's side of them.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lnet_core::handle::{Cookie, CookieKind, MdHandle, ShardId};
use lnet_core::limits::Limits;
use lnet_core::lnd::{
    Full, Lent, Lnd, NiId, Path as LndPath, PeerSlot, Prefetch, PrefetchHint, PrefetchHints, Progress, RxId,
    Span, Status, Transmit, TxId, Uplink, Verdict,
};
use lnet_core::time::Instant;
use lnet_io::driver::{Driver, Part};
use lnet_io::memory::{Buffer, Memory, Terms};
use lnet_io::netlink::{Neighbours, Resolution};
use lnet_io::reactor::{Reactor, Waiter, Waker};
use lnet_io::xsk::plain::{
    KernelCompletion, KernelDescriptor, KernelFill, KernelFrame, KernelRegistered, KernelRx, KernelSent,
    KernelTx, rings,
};
use lnet_io::xsk::{CHUNK_BYTES, FRAGMENTS_MAX, RECEIVE_BYTES, RingSizes, Umem, UmemConfig};
use lnet_wire::header::{Body, WireHandle};
use lnet_wire::nid::Net;
use lnet_wire::packet::{Located, endpoint, ethernet_address};
use lnet_wire::steer::{self, PORTALS, Policy, PolicyWord, Spread};
use lnet_wire::verdict::{self, Tables};
use lnet_wire::{Header, Nid, ProcessId};
use lnet_xdp_proto::{Identity, MetAddresses, XferConfig, XferLimits, XferTimes};

use super::{
    Common, Lane, OwnedQueue, Port, ReturnRings, RingPort, Rings, SendFault, UmemShare, XdpLnd, XdpPort,
    frame_max_bytes, receive_bytes,
};

/// The time at which messages are sent unless a test says another.
pub const NOW: Instant = Instant(1_000_000);
/// Index of the interface of each node.
pub const INTERFACE: u32 = 7;
/// UDP port of all nodes.
pub const UDP_PORT: u16 = 988;
/// A portal that shard 0 serves.
pub const PORTAL: u32 = 4;
/// Portals that all shards serve.
pub const ROTOR: u32 = 5;
/// A lazy portal that all shards serve.
pub const LAZY_ROTOR: u32 = 6;
const BUDGET: u32 = 64;
/// Room for a message of the largest size wrapped another one.
pub const BUFFER_BYTES: usize = 3 << 20;
/// Bytes that the kernel keeps free before a frame.
const HEADROOM: u32 = 256;

/// What a node is made of.
#[derive(Clone, Copy)]
pub struct Plan {
    /// The last byte of its address.
    pub host: u8,
    /// Whether its address is one of IPv6.
    pub ipv6: bool,
    /// How many shards it has.
    pub shards: u32,
    /// How many receive queues its interface has.
    pub queues: u32,
    /// Entries of the rings.
    pub rings: RingSizes,
    /// Bytes of an IP packet at most.
    pub mtu_bytes: usize,
    /// Whether payloads are sent with a checksum.
    pub checksum: bool,
    /// Fault that is made on purpose when it sends.
    pub send_fault: SendFault,
    /// Whether the shards' buffers are registered.
    pub registered: bool,
    /// Whether a frame has one descriptor, as with zero copy in many drivers.
    pub one_buffer: bool,
}

impl Plan {
    /// A node with this last byte of its address: one shard, one queue, small rings.
    pub fn new(host: u8) -> Self {
        let rings = RingSizes { fill: 64, completion: 64, rx: 64, tx: 64 };
        Self {
            host,
            ipv6: false,
            shards: 1,
            queues: 1,
            rings,
            mtu_bytes: 65535,
            checksum: true,
            send_fault: SendFault::default(),
            registered: false,
            one_buffer: false,
        }
    }

    /// Its address.
    pub fn address(&self) -> IpAddr {
        if self.ipv6 {
            IpAddr::from([0xFD00, 0, 0, 0, 0, 0, 0, u16::from(self.host)])
        } else {
            IpAddr::from([10, 0, 0, self.host])
        }
    }

    /// The Ethernet address of its interface.
    pub fn mac(&self) -> [u8; 6] {
        [2, 0, 0, 0, 0, self.host]
    }

    /// Its NID.
    pub fn nid(&self) -> Nid {
        Nid::new_ip(Net::XDP, self.address()).unwrap()
    }
}

/// A buffer of these bytes, cut at these shares of their length, in 65536ths.
pub fn cut(bytes: &[u8], cuts: &[u16]) -> Buffer {
    let mut places: Vec<usize> = cuts.iter().map(|cut| usize::from(*cut) * bytes.len() / 65536).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places.dedup();
    Buffer::from_fragments(places.windows(2).map(|ends| bytes[ends[0]..ends[1]].to_vec())).unwrap()
}

/// A shard as its LND sees it: one descriptor, which takes every message at the offset that it asks for.
#[derive(Default)]
pub struct Recorder {
    /// Match bits and payload length of the messages that arrived, in order.
    pub arrived: Vec<(u64, u32)>,
    /// The NI that the last one came by.
    pub arrived_by: Option<NiId>,
    /// The LNet header of the last one.
    pub last: Option<Header>,
    /// How many messages have arrived whole.
    pub received: u32,
    /// How messages that were submitted have ended.
    pub sent: Vec<(TxId, Status)>,
    /// Whether messages could go another way.
    pub has_another_way: bool,
    /// Match bits of messages that are delayed.
    pub lazy: Option<u64>,
    /// Messages that are delayed, with where they are to go.
    pub delayed: Vec<(RxId, Span)>,
    /// Whether announcements are wanted; match bits of the messages that were announced, and how many had
    /// arrived before.
    pub wants_announcements: bool,
    /// Match bits of the messages that were announced, and how many had arrived before.
    pub announced: Vec<(usize, Vec<u64>)>,
}

impl PrefetchHints for Recorder {
    fn wants_hints(&self) -> bool {
        self.wants_announcements
    }

    fn hint(&mut self, arrivals: &[PrefetchHint], _: Prefetch) {
        assert!(
            arrivals.iter().all(|announced| announced.portal == PORTAL && !announced.source.nid.is_any())
        );
        let bits = arrivals.iter().map(|announced| announced.match_bits).collect();
        self.announced.push((self.arrived.len(), bits));
    }
}

impl Uplink for Recorder {
    fn header(&mut self, _now: Instant, ni: NiId, _: &Nid, rx: RxId, header: &Header) -> Verdict {
        let Body::Put { match_bits, portal: PORTAL, offset, .. } = header.body else { panic!("{header:?}") };
        self.arrived_by = Some(ni);
        self.arrived.push((match_bits, header.payload_length));
        self.last = Some(*header);
        let span = Span { offset_bytes: offset.into(), ..span(header.payload_length) };
        if self.lazy == Some(match_bits) {
            self.delayed.push((rx, span));
            return Verdict::Delay;
        }
        Verdict::Deliver(span)
    }

    fn received(&mut self, _now: Instant, _rx: RxId, status: Status) {
        assert_eq!(status, Status::Ok);
        self.received += 1;
    }

    fn sent(&mut self, _now: Instant, tx: TxId, status: Status) {
        self.sent.push((tx, status));
    }

    fn another_path(&self, path: &LndPath, has: impl Fn(NiId) -> bool) -> Option<LndPath> {
        let other = LndPath { ni: NiId(path.ni.0 + 1), ..*path };
        (self.has_another_way && has(other.ni)).then_some(other)
    }
}

/// The first bytes of a shard's only buffer.
pub fn span(length_bytes: u32) -> Span {
    let md = MdHandle(Cookie::new(CookieKind::MemoryDesc, ShardId(0), 0, 1));
    Span { buffer: md.into(), offset_bytes: 0, length_bytes }
}

/// One shard of a node.
pub struct Shard {
    /// Its LND.
    pub lnd: XdpLnd,
    /// Record of what the LND tells.
    pub up: Recorder,
    /// Its buffers.
    pub memory: Memory,
}

impl Shard {
    /// One turn of the LND.
    pub fn drive(&mut self, now: Instant) -> Progress {
        self.drive_at_most(now, BUDGET)
    }

    /// One turn of the LND, for so many messages.
    pub fn drive_at_most(&mut self, now: Instant, budget: u32) -> Progress {
        let progress = self.lnd.drive(now, budget, &mut self.up, &mut self.memory);
        self.lnd.flush(now, &self.memory);
        progress
    }

    /// Submits a message.
    ///
    /// # Errors
    /// [`Full`] if there is no room.
    pub fn submit(&mut self, transmit: Transmit) -> Result<(), Full<TxId>> {
        self.submit_at(NOW, transmit)
    }

    /// Submits a message at this time.
    ///
    /// # Errors
    /// [`Full`] if there is no room.
    pub fn submit_at(&mut self, now: Instant, transmit: Transmit) -> Result<(), Full<TxId>> {
        let result = self.hand_over(now, &transmit, false);
        self.lnd.flush(now, &self.memory);
        result
    }

    /// Submits a message, which `more` follow or none.
    pub fn hand_over(&mut self, now: Instant, transmit: &Transmit, more: bool) -> Result<(), Full<TxId>> {
        self.lnd.submit(now, Lent { transmit, more }, &self.memory)
    }

    /// Says what becomes of the messages that were delayed.
    pub fn resume(&mut self, now: Instant) {
        for (rx, span) in std::mem::take(&mut self.up.delayed) {
            self.lnd.resume(now, rx, Verdict::Deliver(span), &mut self.up);
        }
    }

    /// When the LND is to be driven at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.lnd.poll_timeout()
    }

    /// The shard's part of the node's only NI, with its LND.
    pub fn into_port(mut self) -> Part<XdpLnd> {
        self.lnd.close_port(NOW, NiId(0), &mut self.up, &self.memory);
        let port = Box::new(self.lnd.remove_port(NiId(0)));
        Part { lnd: Some(Box::new(self.lnd)), port }
    }

    /// The bytes of its descriptor.
    pub fn buffer(&mut self) -> &mut [u8] {
        self.memory.fragments_mut(&span(BUFFER_BYTES as u32)).contiguous().unwrap()
    }
}

/// What the kernel has sent, to be given back.
enum Sent {
    Frame(KernelFrame),
    /// Registered memory, by its address.
    Registered(u64),
}

/// The kernel's side of a queue: of its sockets by shard.
struct KernelQueue {
    fill: KernelFill,
    /// Taken from the fill ring and not used yet.
    free: Vec<KernelFrame>,
    completion: KernelCompletion,
    /// Sent, but the completion ring was full, or completions are kept back.
    sent: VecDeque<Sent>,
    keeps_back: bool,
    sockets: Vec<(KernelRx, KernelTx)>,
}

impl KernelQueue {
    /// Completes what was sent as far as there is room.
    fn complete(&mut self) {
        while !self.keeps_back
            && let Some(sent) = self.sent.pop_front()
        {
            let left = match sent {
                Sent::Frame(frame) => self.completion.complete(frame).err().map(Sent::Frame),
                Sent::Registered(address) => {
                    (!self.completion.complete_raw(address)).then_some(Sent::Registered(address))
                }
            };
            if let Some(left) = left {
                return self.sent.push_front(left);
            }
        }
    }
}

/// A node and its kernel.
pub struct Node {
    /// Plan that it was made by.
    pub plan: Plan,
    /// The memory of its frames.
    pub umem: Arc<Umem>,
    /// Its next hops.
    pub neighbours: Arc<Neighbours>,
    /// How many shards it has.
    pub shards: Vec<Shard>,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests of this crate alone close queues"))]
    pub(super) return_rings: ReturnRings,
    policies: [PolicyWord; PORTALS],
    queues: Vec<KernelQueue>,
}

impl Node {
    /// A node that does not know the way to any other.
    pub fn new(plan: Plan) -> Self {
        let owned_max = plan.queues.div_ceil(plan.shards);
        let early_chunks_max = 2 * FRAGMENTS_MAX;
        let frames_per_shard = owned_max * plan.rings.fill + plan.rings.tx + early_chunks_max;
        let registered = if plan.registered { plan.shards as usize * BUFFER_BYTES } else { 0 };
        let umem_config = UmemConfig {
            registered_bytes: registered as u64,
            ..UmemConfig::new(frames_per_shard * plan.shards)
        };
        let (umem, frames) = Umem::plain_with(&umem_config).unwrap();
        let neighbours = Neighbours::silent();
        let spread = Policy::MatchBits { shift: 0, bits: 8, spread: Spread::Hash };
        let mut policies = [PolicyWord::default(); PORTALS];
        policies[PORTAL as usize] = spread.pack().unwrap();
        for portal in [ROTOR, LAZY_ROTOR] {
            policies[portal as usize] = Policy::Rotor.pack().unwrap();
        }
        let address = plan.address();
        let port = Port {
            ni: NiId(0),
            nid: plan.nid(),
            address,
            udp_port: UDP_PORT,
            endpoint: endpoint(address, UDP_PORT),
            interface_index: INTERFACE,
            mac: plan.mac(),
            mtu_bytes: plan.mtu_bytes,
            checksum: plan.checksum,
        };
        let one_buffer = plan.one_buffer.then_some(RECEIVE_BYTES as usize);
        let frame_max_bytes = one_buffer.unwrap_or_else(|| frame_max_bytes(&plan.rings));
        let limits = Limits { requests: 128, responses: 128, forwards: 0, incoming: 128, ..Limits::DEFAULT };
        let limits = XferLimits { peers: 8, streams: 16, ..XferLimits::for_shard(&limits) };
        let xfer = XferConfig {
            shard_count: plan.shards as u8,
            identity: Identity::new([plan.host; 32]),
            secret: [plan.host.into(), 1],
            seed: plan.host.into(),
            initiator_hash: steer::initiator_hash(&plan.nid()),
            policies,
            met: Arc::new(MetAddresses::new(limits.peers, 1)),
            receive_bytes: receive_bytes(&plan.rings, plan.shards, 1),
            shard: ShardId(0),
            nis: Vec::new(),
            limits,
            times: XferTimes::DEFAULT,
        };
        let common = Common {
            shards: plan.shards,
            frames_per_shard,
            rings: plan.rings,
            early_chunks_max: early_chunks_max as usize,
            send_fault: plan.send_fault,
            opened: Arc::default(),
            xfer,
        };
        let (lanes, queues) = wire_up(&plan, &umem);
        let wakers: Vec<Waker> =
            (0..plan.shards).map(|_| Waiter::new(1, Reactor::default()).unwrap().waker()).collect();
        let mut stocks: VecDeque<VecDeque<_>> = (0..plan.shards).map(|_| VecDeque::new()).collect();
        for frame in frames {
            stocks[(frame.chunk_index() / frames_per_shard) as usize].push_back(frame);
        }
        let (lnds, return_rings) = XdpLnd::for_shards(&common, &wakers);
        let shards = lnds.into_iter().zip(lanes).map(|(mut lnd, (lanes, owned))| {
            let neighbours = Arc::clone(&neighbours);
            let rings = Some(Rings { interface_index: INTERFACE, neighbours, lanes, owned, most_owned: 0 });
            let frames = Some(UmemShare { umem: Arc::clone(&umem), frames: stocks.pop_front().unwrap() });
            let port = RingPort::new(port, receive_bytes(&plan.rings, plan.shards, 1), frame_max_bytes, 4);
            lnd.add_port(XdpPort::Rings { port, frames, rings });
            let mut memory = Memory::new(ShardId(0), 1, 1);
            let terms = Terms { comes_home: true, ..Terms::default() };
            let buffer = if plan.registered {
                Buffer::from(umem.register(BUFFER_BYTES).unwrap())
            } else {
                Buffer::zeroed(BUFFER_BYTES)
            };
            memory.lend(span(0).buffer.md().unwrap(), buffer, terms);
            Shard { lnd, up: Recorder::default(), memory }
        });
        let shards = shards.collect();
        Self { plan, umem, neighbours, shards, return_rings, policies, queues }
    }

    /// Has a shard lend another buffer than it has; that of a registered one of the same length.
    pub fn replace_buffer(&mut self, shard: usize, make: impl FnOnce(&Arc<Umem>) -> Buffer) {
        let memory = &mut self.shards[shard].memory;
        let md = span(0).buffer.md().unwrap();
        drop(memory.give_back(md));
        memory.lend(md, make(&self.umem), Terms { comes_home: true, ..Terms::default() });
    }

    /// Two nodes that know the way to each other.
    pub fn pair(a: Plan, b: Plan) -> [Self; 2] {
        let pair = [Self::new(a), Self::new(b)];
        pair[0].learn(&b);
        pair[1].learn(&a);
        pair
    }

    /// Publishes the way to a peer.
    pub fn learn(&self, peer: &Plan) {
        let mac = Resolution::Mac([2, 0, 0, 0, 0, peer.host]);
        self.neighbours.answer(peer.address(), mac);
    }

    /// A PUT of the first bytes of the sending shard's buffer.
    pub fn put(&self, tx: u32, to: &Plan, match_bits: u64, length_bytes: u32) -> Transmit {
        self.put_at(tx, to, match_bits, 0, length_bytes)
    }

    /// A PUT of bytes of the sending shard's buffer to the same place in that of the receiving one.
    pub fn put_at(&self, tx: u32, to: &Plan, match_bits: u64, offset: u32, length_bytes: u32) -> Transmit {
        let process = |nid| ProcessId::lustre(nid);
        let ack_md = WireHandle::NONE;
        let header = Header {
            destination: process(to.nid()),
            source: process(self.plan.nid()),
            payload_length: length_bytes,
            body: Body::Put { ack_md, match_bits, hdr_data: 0, portal: PORTAL, offset },
        };
        let payload = (length_bytes != 0).then(|| Span { offset_bytes: offset.into(), ..span(length_bytes) });
        Transmit {
            tx: TxId(tx),
            ni: NiId(0),
            next_hop: header.destination.nid,
            peer: PeerSlot(0),
            header,
            payload,
        }
    }

    /// The kernel sends what is in the transmit rings of a queue: whole packets, whose frames complete.
    pub fn take_sent(&mut self, queue: usize) -> Vec<Vec<u8>> {
        self.take_sent_at_most(queue, usize::MAX)
    }

    /// As [`Node::take_sent`], of each ring at most so many packets.
    pub fn take_sent_at_most(&mut self, queue: usize, packets_max: usize) -> Vec<Vec<u8>> {
        let queue = &mut self.queues[queue];
        let mut packets = Vec::new();
        for (_, tx) in &mut queue.sockets {
            let (mut packet, mut left) = (Vec::new(), packets_max);
            while left != 0
                && let Some(sent) = tx.take_sent()
            {
                let more = match sent {
                    KernelSent::Frame(KernelDescriptor { frame, offset, length, more }) => {
                        packet.extend(&frame.bytes(&self.umem)[offset as usize..][..length as usize]);
                        queue.sent.push_back(Sent::Frame(frame));
                        more
                    }
                    KernelSent::Registered(KernelRegistered { address, length, more }) => {
                        let at = address as usize - self.umem.chunk_count() as usize * CHUNK_BYTES as usize;
                        let offset_bytes = (at % BUFFER_BYTES) as u64;
                        let sent = Span { offset_bytes, ..span(length) };
                        packet.extend(self.shards[at / BUFFER_BYTES].memory.fragments(&sent).flatten());
                        queue.sent.push_back(Sent::Registered(address));
                        more
                    }
                };
                if !more {
                    packets.push(std::mem::take(&mut packet));
                    left -= 1;
                }
            }
            assert!(packet.is_empty(), "a packet without an end was sent");
        }
        queue.complete();
        packets
    }

    /// Has the kernel keep back what it has sent, or give all of it back.
    pub fn keep_back(&mut self, keeps_back: bool) {
        for queue in &mut self.queues {
            queue.keeps_back = keeps_back;
            queue.complete();
        }
    }

    /// The kernel delivers a packet to the socket of a shard on a queue, `RECEIVE_BYTES` in each chunk;
    /// false where it is lost for want of free frames.
    pub fn deliver(&mut self, queue: usize, shard: usize, packet: &[u8]) -> bool {
        self.deliver_in(queue, shard, &packet.chunks(RECEIVE_BYTES as usize).collect::<Vec<_>>())
    }

    /// As [`Node::deliver`], each piece in a chunk of its own.
    pub fn deliver_in(&mut self, queue: usize, shard: usize, pieces: &[&[u8]]) -> bool {
        let queue = &mut self.queues[queue];
        while queue.free.len() < pieces.len() {
            let Some(frame) = queue.fill.take() else { return false };
            queue.free.push(frame);
        }
        let frames = queue.free.drain(..pieces.len());
        for ((index, piece), mut frame) in pieces.iter().enumerate().zip(frames) {
            frame.bytes_mut(&self.umem)[HEADROOM as usize..][..piece.len()].copy_from_slice(piece);
            let more = index + 1 < pieces.len();
            let descriptor = KernelDescriptor { frame, offset: HEADROOM, length: piece.len() as u32, more };
            queue.sockets[shard].0.deliver(descriptor).unwrap();
        }
        true
    }

    /// Where messages for each portal belong.
    #[must_use]
    pub fn policies(&self) -> &[PolicyWord; PORTALS] {
        &self.policies
    }

    /// The shard that XDP gives a packet to.
    pub fn owner_of(&self, packet: &[u8]) -> usize {
        match verdict::steer(packet, 0, self) {
            verdict::Verdict::Redirect { shard, .. } => shard as usize,
            verdict::Verdict::Pass(reason) => panic!("{} passes up", reason.name()),
        }
    }

    /// Drives all shards until none finds anything to do.
    pub fn settle(&mut self) {
        self.settle_at(NOW);
    }

    /// As [`Node::settle`], at another time.
    pub fn settle_at(&mut self, now: Instant) {
        let mut moved = true;
        while moved {
            self.queues.iter_mut().for_each(KernelQueue::complete);
            // All of them, not only those before the first that moved something.
            let turns = self.shards.iter_mut().map(|shard| shard.drive(now) != Progress::default());
            moved = turns.fold(false, |moved, turn| moved | turn);
        }
    }

    /// Messages that were submitted and have not ended.
    pub fn under_way(&self) -> u32 {
        self.shards.iter().map(|shard| shard.lnd.transfer_usage().messages).sum()
    }

    /// When something is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.shards.iter().filter_map(Shard::poll_timeout).min()
    }

    /// Whether every frame is in a shard's stock, kept or with the kernel, and each shard has its own ones.
    pub fn assert_frames_conserved(&self) {
        let at_home = |shard: &Shard| shard.lnd.frames_count();
        let census = self.umem.census();
        let known = self.shards.iter().map(at_home).sum::<usize>();
        assert_eq!(known, census.user as usize, "frames that nobody has: {census:?}");
        for shard in &self.shards {
            let own =
                shard.lnd.home.first_chunk..shard.lnd.home.first_chunk + shard.lnd.common.frames_per_shard;
            assert!(shard.lnd.home.stock.iter().all(|frame| own.contains(&frame.chunk_index())));
            assert!(!shard.memory.is_in_flight(&span(BUFFER_BYTES as u32)), "registered memory is in flight");
            assert!(shard.lnd.devices.owned.iter().all(|queue| queue.borrowed.load(Ordering::Relaxed) == 0));
        }
    }
}

/// The configuration, as the XDP program looks it up.
impl Tables for Node {
    fn is_ours(&self, located: &Located) -> bool {
        located.mac == ethernet_address(self.plan.mac())
            && located.destination == endpoint(self.plan.address(), UDP_PORT)
    }

    fn policy(&self, portal: u8) -> PolicyWord {
        self.policies[usize::from(portal)]
    }

    fn shards(&self) -> u32 {
        self.plan.shards
    }
}

/// A shard's lanes and the queues that it owns.
type ShardRings = (Vec<Lane>, Vec<OwnedQueue>);

/// Rings for each (queue, shard). A queue's fill and completion ring are those of its owner, as on a node:
/// the queues are dealt out to the shards in turn.
fn wire_up(plan: &Plan, umem: &Arc<Umem>) -> (Vec<ShardRings>, Vec<KernelQueue>) {
    let mut lanes: Vec<ShardRings> = (0..plan.shards).map(|_| (Vec::new(), Vec::new())).collect();
    let mut queues = Vec::new();
    for queue in 0..plan.queues {
        let owner = (queue % plan.shards) as usize;
        let (mut sockets, mut shared) = (Vec::new(), None);
        for (shard, (lanes, owned)) in lanes.iter_mut().enumerate() {
            let (user, kernel) = rings(umem, &plan.rings, u32::MAX - 3).unwrap();
            if shard == owner {
                let (fill, completion) = (user.fill, user.completion);
                owned.push(OwnedQueue::new(INTERFACE, None, fill, completion, false));
                shared = Some((kernel.fill, kernel.completion));
            }
            let mut lane = Lane::over(INTERFACE, queue, Some(user.rx), user.tx);
            if plan.one_buffer {
                lane.descriptors_max = 1;
            }
            lanes.push(lane);
            sockets.push((kernel.rx, kernel.tx));
        }
        for shard in (0..lanes.len()).filter(|shard| *shard != owner) {
            let [(lent, _), (_, owned)] = lanes.get_disjoint_mut([shard, owner]).unwrap();
            owned.last().unwrap().lend_to(lent.last_mut().unwrap(), Some(owner));
        }
        let (own, owned) = &mut lanes[owner];
        owned.last().unwrap().lend_to(own.last_mut().unwrap(), None);
        let (fill, completion) = shared.unwrap();
        queues.push(KernelQueue {
            fill,
            free: Vec::new(),
            completion,
            sent: VecDeque::new(),
            keeps_back: false,
            sockets,
        });
    }
    (lanes, queues)
}
