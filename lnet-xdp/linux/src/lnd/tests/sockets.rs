//! The LND over sockets of the loopback interface.

use std::net::{IpAddr, SocketAddr, UdpSocket as Plain};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lnet_core::handle::{Cookie, CookieKind, MdHandle, ShardId, ShardSet};
use lnet_core::limits::Limits;
use lnet_core::lnd::{
    Lent, Lnd, NiId, PeerSlot, Prefetch, PrefetchHint, PrefetchHints, RxId, Span, Status, Transmit, TxId,
    Uplink, Verdict,
};
use lnet_core::time::Instant;
use lnet_io::driver::Driver;
use lnet_io::memory::{Buffer, Memory, Terms};
use lnet_io::netlink::Neighbours;
use lnet_io::reactor::udp::{Endpoint, EndpointConfig, UdpSocket};
use lnet_io::reactor::{Reactor, Waiter, Waker};
use lnet_io::xsk::RingSizes;
use lnet_wire::header::{Body, PAYLOAD_BYTES_MAX, WireHandle};
use lnet_wire::nid::Net;
use lnet_wire::packet::{IPV4_BYTES, UDP_BYTES, endpoint};
use lnet_wire::steer::{self, PORTALS, Policy, PolicyWord, Spread};
use lnet_wire::{Header, Nid, ProcessId};
use lnet_xdp_proto::{Identity, MetAddresses, XferConfig, XferLimits, XferTimes};

use super::super::{
    Common, DATAGRAM_BYTES_MIN, Port, SendFault, SharedRuns, SocketPort, XdpCounters, XdpDrop, XdpLnd,
    XdpPort, reuseport,
};
use super::node::cut;

const SHARDS: u32 = 2;
const PORTAL: u32 = 4;
const MTU_BYTES: usize = 9000;
pub(super) const DATAGRAM_BYTES_MAX: u32 = (MTU_BYTES - UDP_BYTES - IPV4_BYTES) as u32;
const BUFFER_BYTES: usize = PAYLOAD_BYTES_MAX as usize;
const PATIENCE: Duration = Duration::from_secs(10);

/// The port of a shard that serves an NI over a socket.
pub(super) fn socket_port(
    port: Port,
    endpoint: Endpoint,
    neighbours: &Arc<Neighbours>,
    served: (ShardSet, ShardId),
) -> XdpPort {
    let how = (Box::new(endpoint), &SharedRuns::default());
    let neighbours = Arc::clone(neighbours);
    XdpPort::Socket(SocketPort::new(port, 1 << 20, how, neighbours, DATAGRAM_BYTES_MAX, served))
}

/// A shard as its LND sees it: one descriptor, which takes every message.
#[derive(Default)]
struct Recorder {
    received: u32,
    ok: u32,
    failed: u32,
    announced: usize,
}

impl PrefetchHints for Recorder {
    fn wants_hints(&self) -> bool {
        true
    }

    fn hint(&mut self, arrivals: &[PrefetchHint], _: Prefetch) {
        assert!(arrivals.len() > 1 && arrivals.iter().all(|announced| announced.portal == PORTAL));
        self.announced += arrivals.len();
    }
}

impl Uplink for Recorder {
    fn header(&mut self, _: Instant, _: NiId, _: &Nid, _: RxId, header: &Header) -> Verdict {
        Verdict::Deliver(span(header.payload_length))
    }

    fn received(&mut self, _: Instant, _: RxId, status: Status) {
        assert_eq!(status, Status::Ok);
        self.received += 1;
    }

    fn sent(&mut self, _: Instant, _: TxId, status: Status) {
        *if status == Status::Ok { &mut self.ok } else { &mut self.failed } += 1;
    }
}

fn span(length_bytes: u32) -> Span {
    let md = MdHandle(Cookie::new(CookieKind::MemoryDesc, ShardId(0), 0, 1));
    Span { buffer: md.into(), offset_bytes: 0, length_bytes }
}

struct Shard {
    lnd: XdpLnd,
    up: Recorder,
    memory: Memory,
}

struct Node {
    nid: Nid,
    udp_port: u16,
    shards: Vec<Shard>,
}

impl Node {
    /// A node at 127.0.0.`host` that lets frames in.
    fn new(host: u8, udp_port: u16, checksum: bool) -> Self {
        let address = IpAddr::from([127, 0, 0, host]);
        let nid = Nid::new_ip(Net::XDP, address).unwrap();
        let spread = Policy::MatchBits { shift: 0, bits: 8, spread: Spread::Hash };
        let mut policies = [PolicyWord::default(); PORTALS];
        policies[PORTAL as usize] = spread.pack().unwrap();
        let limits = Limits { requests: 128, responses: 128, forwards: 0, incoming: 128, ..Limits::DEFAULT };
        let limits = XferLimits { peers: 8, streams: 16, ..XferLimits::for_shard(&limits) };
        let first = UdpSocket::bind(SocketAddr::new(address, udp_port), None).unwrap();
        let udp_port = first.address().port();
        first.choose_by(&reuseport::program(&policies, SHARDS, ShardSet::all(SHARDS as u8))).unwrap();
        let second = UdpSocket::bind(first.address(), None).unwrap();
        let port = Port {
            ni: NiId(0),
            nid,
            address,
            udp_port,
            endpoint: endpoint(address, udp_port),
            interface_index: 1,
            mac: [0; 6],
            mtu_bytes: MTU_BYTES,
            checksum,
        };
        assert_eq!(port.datagram_max_bytes(u32::MAX), DATAGRAM_BYTES_MAX);
        let rings = RingSizes::default();
        let common = Common {
            shards: SHARDS,
            frames_per_shard: 16,
            rings,
            early_chunks_max: 0,
            send_fault: SendFault::default(),
            opened: Arc::new(AtomicBool::new(true)),
            xfer: XferConfig {
                shard_count: SHARDS as u8,
                identity: Identity::new([host; 32]),
                secret: [host.into(), 1],
                seed: host.into(),
                initiator_hash: steer::initiator_hash(&nid),
                policies,
                met: Arc::new(MetAddresses::new(limits.peers, 1)),
                receive_bytes: 1 << 20,
                shard: ShardId(0),
                nis: Vec::new(),
                limits,
                times: XferTimes::DEFAULT,
            },
        };
        // Both reactors, since hosts of either number speak with each other.
        let reactor = if host.is_multiple_of(2) { Reactor::Epoll } else { Reactor::IoUring };
        let sizes = EndpointConfig {
            receive_buffers: 64,
            send_buffers: 16,
            datagram_max_bytes: DATAGRAM_BYTES_MAX,
            receives_runs: true,
            reactor,
        };
        let endpoints = [first, second].map(|socket| Endpoint::new(socket, &sizes).unwrap());
        let wakers: Vec<Waker> =
            (0..SHARDS).map(|_| Waiter::new(1, Reactor::default()).unwrap().waker()).collect();
        let neighbours = Neighbours::silent();
        let lnds = XdpLnd::for_shards(&common, &wakers).0.into_iter().zip(endpoints);
        let shards = lnds.zip((0..).map(ShardId)).map(|((mut lnd, endpoint), shard)| {
            let served = (ShardSet::all(SHARDS as u8), shard);
            lnd.add_port(socket_port(port, endpoint, &neighbours, served));
            let mut memory = Memory::new(ShardId(0), 1, 1);
            let terms = Terms { comes_home: true, ..Terms::default() };
            memory.lend(span(0).buffer.md().unwrap(), Buffer::zeroed(BUFFER_BYTES), terms);
            Shard { lnd, up: Recorder::default(), memory }
        });
        Self { nid, udp_port, shards: shards.collect() }
    }

    /// Submits a PUT of the first bytes of a shard's buffer.
    fn put(&mut self, now: Instant, shard: usize, to: Nid, match_bits: u64, length_bytes: u32) {
        let process = |nid| ProcessId::lustre(nid);
        let ack_md = WireHandle::NONE;
        let header = Header {
            destination: process(to),
            source: process(self.nid),
            payload_length: length_bytes,
            body: Body::Put { ack_md, match_bits, hdr_data: 0, portal: PORTAL, offset: 0 },
        };
        let payload = (length_bytes != 0).then(|| span(length_bytes));
        let Shard { lnd, memory, .. } = &mut self.shards[shard];
        let transmit = &Transmit {
            tx: TxId(1),
            ni: NiId(0),
            next_hop: header.destination.nid,
            peer: PeerSlot(0),
            header,
            payload,
        };
        lnd.submit(now, Lent { transmit, more: false }, memory).unwrap();
    }

    fn drive(&mut self, now: Instant) {
        for Shard { lnd, up, memory } in &mut self.shards {
            lnd.drive(now, 64, up, memory);
            lnd.flush(now, memory);
        }
    }

    fn count(&self, what: impl Fn(&Recorder) -> u32) -> u32 {
        self.shards.iter().map(|shard| what(&shard.up)).sum()
    }

    fn counted(&self, what: impl Fn(&XdpCounters) -> u64) -> u64 {
        self.shards.iter().map(|shard| what(shard.lnd.counters())).sum()
    }

    fn buffer(&mut self, shard: usize) -> &mut [u8] {
        self.shards[shard].memory.fragments_mut(&span(BUFFER_BYTES as u32)).contiguous().unwrap()
    }
}

struct Pair {
    begun: std::time::Instant,
    near: Node,
    far: Node,
}

impl Pair {
    fn new(checksum: bool) -> Self {
        let near = Node::new(2, 0, checksum);
        let far = Node::new(3, near.udp_port, checksum);
        Self { begun: std::time::Instant::now(), near, far }
    }

    fn now(&self) -> Instant {
        Instant(self.begun.elapsed().as_nanos() as u64)
    }

    fn put(&mut self, shard: usize, match_bits: u64, length_bytes: u32) {
        let (now, to) = (self.now(), self.far.nid);
        self.near.put(now, shard, to, match_bits, length_bytes);
    }

    /// Drives both nodes until this many messages have ended well.
    fn run_until_sent(&mut self, ok: u32) {
        let begun = std::time::Instant::now();
        while self.near.count(|up| up.ok) < ok {
            let now = self.now();
            self.near.drive(now);
            self.far.drive(now);
            assert!(begun.elapsed() < PATIENCE, "{} of {ok}", self.near.count(|up| up.ok));
        }
    }
}

/// The shard that takes PUTs of these match bits.
fn shard_of(match_bits: u64) -> usize {
    let spread = Policy::MatchBits { shift: 0, bits: 8, spread: Spread::Hash }.pack().unwrap();
    let key = steer::SteerKey {
        message_type: lnet_wire::MessageType::Put,
        portal: PORTAL as u8,
        key: match_bits,
        message_id: 0,
        initiator_hash: 0,
    };
    steer::shard_of(&key, spread, SHARDS) as usize
}

#[test]
fn messages_of_every_size_arrive_at_the_right_shard() {
    for checksum in [false, true] {
        let mut pair = Pair::new(checksum);
        let mut ok = 0;
        for length_bytes in [0, 1, 64, 8700, 8812, 8813, 20_000, 100_001, PAYLOAD_BYTES_MAX] {
            for match_bits in 0..4 {
                let mark = (u64::from(length_bytes) + match_bits) as u8;
                for (index, byte) in pair.near.buffer(0).iter_mut().enumerate() {
                    *byte = mark ^ index as u8 ^ (index >> 8) as u8;
                }
                let shard = shard_of(match_bits);
                pair.far.buffer(shard).fill(0);
                let received = pair.far.shards[shard].up.received;
                pair.put(0, match_bits, length_bytes);
                ok += 1;
                pair.run_until_sent(ok);
                assert_eq!(pair.far.shards[shard].up.received, received + 1, "{length_bytes} bytes");
                let length = length_bytes as usize;
                assert!(pair.near.buffer(0)[..length] == pair.far.buffer(shard)[..length]);
                assert!(pair.far.buffer(shard)[length..].iter().all(|byte| *byte == 0));
            }
        }
        assert_eq!((pair.near.count(|up| up.failed), pair.far.count(|up| up.received)), (0, ok));
        // All data of one peer comes to one shard, which is the wrong one for about half of it.
        assert_ne!(pair.far.counted(|counters| counters.frames_misdirected), 0);
        assert_eq!(
            pair.near.counted(|counters| counters.frames_misdirected),
            0,
            "what has cookies is steered"
        );
    }
}

/// Out of a buffer of several fragments and into another one, with and without checksums of payloads, in one
/// datagram and in several.
#[test]
fn fragments_are_gathered_and_scattered() {
    for checksum in [false, true] {
        let mut pair = Pair::new(checksum);
        let bytes: Vec<u8> = (0..BUFFER_BYTES).map(|index| index as u8 ^ (index >> 8) as u8).collect();
        let replace = |shard: &mut Shard, buffer| {
            let terms = Terms { comes_home: true, ..Terms::default() };
            shard.memory.lend(span(0).buffer.md().unwrap(), buffer, terms);
        };
        let cuts: Vec<u16> = (1..256).map(|index| (index * 250) ^ 77).collect();
        replace(&mut pair.near.shards[0], cut(&bytes, &cuts));
        let mut ok = 0;
        for length_bytes in [0, 1, 1000, 8812, 20_000, PAYLOAD_BYTES_MAX] {
            for match_bits in 0..2 {
                let shard = shard_of(match_bits);
                let cuts: Vec<u16> = (0..200).map(|index| index * 3).collect();
                replace(&mut pair.far.shards[shard], cut(&[0; BUFFER_BYTES], &cuts));
                pair.put(0, match_bits, length_bytes);
                ok += 1;
                pair.run_until_sent(ok);
                let arrived = pair.far.shards[shard].memory.fragments(&span(BUFFER_BYTES as u32));
                let arrived: Vec<u8> = arrived.flatten().copied().collect();
                let length = length_bytes as usize;
                assert!(arrived[..length] == bytes[..length], "{length_bytes} bytes");
                assert!(arrived[length..].iter().all(|byte| *byte == 0));
            }
        }
    }
}

#[test]
fn what_is_no_frame_is_counted_and_harms_nobody() {
    let mut pair = Pair::new(true);
    pair.put(0, 0, 64);
    pair.run_until_sent(1);
    let stranger = Plain::bind("127.0.0.4:0").unwrap();
    let far = SocketAddr::new(pair.far.nid.ip().unwrap(), pair.far.udp_port);
    let before = pair.far.counted(|counters| counters.frames_received);
    // Every length, with and without what a frame begins with.
    const LENGTH: usize = DATAGRAM_BYTES_MIN;
    let mut frame = [0; LENGTH];
    lnet_wire::frame::FrameHeader::other(lnet_wire::frame::Kind::Hello, 1, 0)
        .encode(frame.first_chunk_mut().unwrap());
    let mut count = 0;
    for bytes in [[0x5A; LENGTH], frame] {
        for length in (8..=LENGTH).step_by(8) {
            stranger.send_to(&bytes[..length], far).unwrap();
            count += 1;
            let now = pair.now();
            pair.far.drive(now);
        }
    }
    let begun = std::time::Instant::now();
    while pair.far.counted(|counters| counters.frames_received) < before + count {
        let now = pair.now();
        pair.far.drive(now);
        assert!(begun.elapsed() < PATIENCE);
    }
    let dropped = |reason| pair.far.counted(|counters| counters.dropped(reason));
    assert_eq!(dropped(XdpDrop::NotOurs) + dropped(XdpDrop::BadChecksum), count);
    assert_ne!(dropped(XdpDrop::BadChecksum), 0);
    for shard in 0..2 {
        pair.put(shard, 1, 5000);
    }
    pair.run_until_sent(3);
}

/// What the kernel refuses because it is too long makes the next ones to that peer shorter, and no others.
#[test]
fn a_path_that_is_too_narrow_makes_frames_shorter() {
    let mut pair = Pair::new(true);
    pair.put(0, 0, 64);
    pair.run_until_sent(1);
    let to = SocketAddr::new(pair.far.nid.ip().unwrap(), pair.far.udp_port);
    let now = pair.now();
    let Shard { lnd, .. } = &mut pair.near.shards[0];
    let socket = &mut lnd.nis.sockets[0];
    let mtu_bytes = socket.endpoint.socket().path_mtu_bytes(to).unwrap() as usize;
    assert!(mtu_bytes > MTU_BYTES, "of the loopback interface");
    socket.shorten(now, to, &mut lnd.xfer);
    assert!(lnd.xfer.poll_narrowed().is_none(), "the kernel takes what the interface does");
    // The interface seems to be wider than it is.
    socket.port.mtu_bytes = mtu_bytes + 1;
    socket.shorten(now, to, &mut lnd.xfer);
    let narrowed = lnd.xfer.poll_narrowed().unwrap();
    assert_eq!((narrowed.path.ni, narrowed.path.peer), (socket.port.ni, pair.far.nid));
    let narrow = Port { mtu_bytes, ..socket.port };
    assert_eq!(narrowed.datagram_bytes, narrow.datagram_max_bytes(socket.longest_bytes()));
    assert_eq!(socket.port.mtu_bytes, mtu_bytes + 1);
    pair.put(0, 0, 50_000);
    pair.run_until_sent(2);
}

#[test]
fn messages_allocate_nothing() {
    let mut pair = Pair::new(true);
    let mut ok = 0;
    let mut round = || {
        for match_bits in 0..8 {
            pair.put(0, match_bits, 64);
            pair.put(1, match_bits, 20_000);
            ok += 2;
        }
        pair.run_until_sent(ok);
    };
    round();
    let counted = allocation_counter::measure(|| (0..20).for_each(|_| round()));
    assert_eq!(counted.count_total, 0);
    let announced = |shard: &Shard| shard.up.announced;
    assert_ne!(pair.far.shards.iter().map(announced).sum::<usize>(), 0, "no two datagrams came together");
}

/// What the near node sends is what the far one receives, with the headers that each end makes for it.
#[test]
fn datagrams_are_captured_at_both_ends() {
    use super::reading::Contents;
    use lnet_io::capture::{CaptureInterface, CaptureSpec, Captures, Link, TapEnd};
    let mut pair = Pair::new(true);
    let interface = CaptureInterface { index: 1, name: "lo".to_owned(), link: Link::RawIp };
    let start = |node: &mut Node, name: &str| {
        let path = std::env::temp_dir().join(format!("lnet-socket-{}-{name}", std::process::id()));
        let mut captures = Captures::default();
        let tap = |ends: Vec<TapEnd>| {
            for (shard, end) in node.shards.iter_mut().zip(ends) {
                shard.lnd.tap.add(end);
            }
            Ok::<_, lnet_io::capture::CaptureError>(())
        };
        let spec =
            CaptureSpec { buffer_bytes: 32 << 20, ..CaptureSpec::new(path.to_str().unwrap(), 1 << 30) };
        captures.start(&spec, (std::slice::from_ref(&interface), SHARDS as usize), tap, |_| {}).unwrap();
        (captures, path)
    };
    let captures = [start(&mut pair.near, "near"), start(&mut pair.far, "far")];
    for number in 0..30 {
        pair.put(number as usize % 2, number, 700 * number as u32);
        pair.run_until_sent(number as u32 + 1);
    }
    let ports = [&pair.near, &pair.far].map(|node| (node.nid.ip().unwrap(), node.udp_port));
    let counted = [&pair.near, &pair.far].map(|node| {
        (node.counted(|counters| counters.frames_sent), node.counted(|counters| counters.frames_received))
    });
    let frames = captures.map(|(mut captures, path)| {
        assert_eq!(captures.take(&path).unwrap().stop().missed_count, 0);
        let contents = Contents::read_complete(&std::fs::read(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        contents.frames
    });
    for (frames, (sent, received)) in frames.iter().zip(counted) {
        let arrived = frames.iter().filter(|frame| frame.is_received).count() as u64;
        assert_eq!((frames.len() as u64 - arrived, arrived), (sent, received));
    }
    for (sender, receiver) in [(0, 1), (1, 0)] {
        let sent: Vec<_> = frames[sender].iter().filter(|frame| !frame.is_received).collect();
        for frame in frames[receiver].iter().filter(|frame| frame.is_received) {
            assert!(sent.iter().any(|other| other.bytes == frame.bytes));
            let [from, to] = [sender, receiver].map(|node| ports[node]);
            assert_eq!(IpAddr::from(*frame.bytes[12..].first_chunk::<4>().unwrap()), from.0);
            assert_eq!(IpAddr::from(*frame.bytes[16..].first_chunk::<4>().unwrap()), to.0);
            assert_eq!(frame.bytes[20..22], from.1.to_be_bytes());
            assert_eq!(frame.bytes[22..24], to.1.to_be_bytes());
        }
    }
}
