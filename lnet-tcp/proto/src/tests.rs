//! Two machines, or one and a peer played by hand, over pipes of bytes.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::errno;
use lnet_core::handle::{BufferRef, Cookie, CookieKind};
use lnet_core::lnd::{Cause, Path, PeerSlot, PrefetchHints, RxId, Transmit, Uplink, Verdict};
use lnet_wire::socklnd::{
    ByteOrder, CONNECTION_REQUEST_BYTES_MAX, ConnectionRequest, ConnectionType, HELLO_BYTES_MAX, Hello,
    PREFIX_BYTES, Parsed, Prefix, PrefixKind, Version,
};
use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};

use super::*;
use crate::testing::nid;

#[path = "checksum_tests.rs"]
mod checksum;
#[path = "close_tests.rs"]
mod close;
#[path = "doubt_tests.rs"]
mod doubt;
#[path = "refusal_tests.rs"]
mod refusal;
#[path = "shelf_tests.rs"]
mod shelved;
#[path = "silence_tests.rs"]
mod silence;

const NI: NiId = NiId(1);
const SECOND: Duration = Duration::from_secs(1);
/// Payload that is matched before it is there.
const LONG_BYTES: u32 = 5000;

/// A shard that takes every message into one span, or does what it is told.
#[derive(Default)]
struct Shard {
    verdicts: VecDeque<Verdict>,
    /// NIDs whose requests wait for a name.
    unnamed: Vec<Nid>,
    /// NIDs of the node on nets of other LNDs.
    others: Vec<Nid>,
    headers: Vec<(Nid, RxId, Header)>,
    received: Vec<(RxId, Status)>,
    /// Paths by which messages may be lost.
    lost: Vec<(Path, Cause)>,
}

impl PrefetchHints for Shard {}

impl Uplink for Shard {
    fn header(&mut self, _: Instant, _: NiId, from: &Nid, rx: RxId, header: &Header) -> Verdict {
        self.headers.push((*from, rx, *header));
        let whole = Verdict::Deliver(span(header.payload_length));
        self.verdicts.pop_front().unwrap_or(whole)
    }

    fn is_local(&self, nid: &Nid) -> bool {
        self.others.contains(nid)
    }

    fn awaits_name(&mut self, header: &Header, _: bool) -> bool {
        matches!(header.body, Body::Put { .. }) && self.unnamed.contains(&header.source.nid)
    }

    fn lost(&mut self, path: &Path, cause: Cause) {
        self.lost.push((*path, cause));
    }

    fn received(&mut self, _: Instant, rx: RxId, status: Status) {
        self.received.push((rx, status));
    }

    fn sent(&mut self, _: Instant, _: TxId, _: Status) {
        unreachable!("ends are polled")
    }
}

fn span(length_bytes: u32) -> Span {
    let buffer: BufferRef =
        lnet_core::handle::BufferHandle(Cookie::new(CookieKind::Buffer, ShardId(0), 0, 1)).into();
    Span { buffer, offset_bytes: 0, length_bytes }
}

fn header(from: Nid, to: Nid, payload_length: u32) -> Header {
    let body = Body::Put { ack_md: WireHandle::NONE, match_bits: 5, hdr_data: 6, portal: 7, offset: 0 };
    Header { destination: ProcessId::lustre(to), source: ProcessId::lustre(from), payload_length, body }
}

fn transmit(tx: u32, from: Nid, to: Nid, payload_length: u32) -> Transmit {
    let payload = (payload_length != 0).then(|| span(payload_length));
    Transmit {
        tx: TxId(tx),
        ni: NI,
        next_hop: to,
        peer: PeerSlot(0),
        header: header(from, to, payload_length),
        payload,
    }
}

/// A machine with its shard, and what its driver has.
struct Node {
    nid: Nid,
    sock: Socklnd,
    shard: Shard,
    /// Streams by connection: the number of the pipe, and which end of it.
    streams: BTreeMap<ConnId, (usize, usize)>,
    ended: Vec<(TxId, Status)>,
    /// Payload bytes that arrived.
    payload: Vec<u8>,
    /// Payload of requests that are shelved.
    shelved: Vec<u8>,
}

impl Node {
    fn new(host: u8, tunables: SockTunables) -> Self {
        let limits = SocklndLimits { connections: 64, handshakes: 8, peers: 16, messages: 64 };
        let config =
            SocklndConfig { shard: ShardId(0), pid: ProcessId::LUSTRE_PID, tunables, limits, seed: 1 };
        let mut sock = Socklnd::new(config);
        let nid = nid(0, host);
        sock.add_ni(SocklndNi {
            ni: NI,
            nid,
            incarnation: u64::from(host),
            conns_per_peer: 2,
            serving: ShardSet::all(1),
        });
        let (shard, streams) = (Shard::default(), BTreeMap::new());
        Self { nid, sock, shard, streams, ended: Vec::new(), payload: Vec::new(), shelved: Vec::new() }
    }

    /// Bytes of a stream, after what was shelved and comes again.
    fn take_again(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) -> Vec<u8> {
        let mut left = Vec::new();
        while let Wants::Replay(count) = self.sock.wants(conn) {
            left.extend(self.shelved.drain(..count as usize));
            self.sock.replayed(now, conn, &mut self.shard);
            left = self.take(now, conn, &left, 64);
        }
        left.extend(bytes);
        self.take(now, conn, &left, 64)
    }

    /// Gives bytes of a stream to the protocol, `chunk` at a time; what it does not want yet.
    fn take(&mut self, now: Instant, conn: ConnId, bytes: &[u8], chunk: usize) -> Vec<u8> {
        let mut left = bytes;
        while !left.is_empty() {
            let some = &left[..left.len().min(chunk)];
            let used = match self.sock.wants(conn) {
                Wants::Nothing | Wants::Replay(_) => break,
                Wants::Shelve(count) => {
                    let count = some.len().min(count as usize);
                    self.shelved.extend(&some[..count]);
                    self.sock.shelved(conn, count as u32);
                    count
                }
                Wants::Whole(count) if left.len() < count as usize => break,
                Wants::Whole(_) => {
                    self.sock.whole(now, conn, &mut self.shard);
                    0
                }
                Wants::Head => self.sock.take(now, conn, some, &mut self.shard),
                Wants::Payload(span) => {
                    let count = some.len().min(span.length_bytes as usize);
                    if let Some(sum) = self.sock.checksum_mut(conn) {
                        sum.update(&some[..count]);
                    }
                    self.payload.extend(&some[..count]);
                    self.sock.placed(now, conn, count as u32, &mut self.shard);
                    count
                }
                Wants::Skip(count) => {
                    let count = some.len().min(count as usize);
                    self.sock.placed(now, conn, count as u32, &mut self.shard);
                    count
                }
            };
            left = &left[used..];
            if self.has_closed(conn) {
                return Vec::new();
            }
        }
        left.to_vec()
    }

    fn has_closed(&self, conn: ConnId) -> bool {
        self.sock
            .actions
            .iter()
            .any(|action| matches!(action, StreamOrder::Close { conn: closed } if *closed == conn))
    }

    /// All that was sent has arrived.
    fn answer(&mut self, now: Instant, conn: ConnId) {
        self.sock.unacknowledged(now, conn, 0, &mut self.shard);
    }

    /// Closes what is to be closed, and does nothing else.
    fn close(&mut self, now: Instant) {
        while let Some(action) = self.sock.poll_action() {
            if let StreamOrder::Close { conn } = action {
                self.sock.closed(now, conn, &mut self.shard);
            }
        }
    }

    fn count(&self, event: SocklndEvent) -> u64 {
        self.sock.counters().get(event)
    }
}

/// A privileged port.
const PORT: u16 = 1000;

/// One direction of a pipe.
#[derive(Default)]
struct Way {
    bytes: Vec<u8>,
    is_closed: bool,
}

/// Two nodes and what is under way between them.
struct Pair {
    now: Instant,
    nodes: [Node; 2],
    pipes: Vec<[Way; 2]>,
    chunk: usize,
    /// The ports that they dial from.
    ports: [u16; 2],
}

impl Pair {
    fn new(chunk: usize) -> Self {
        Self::with([SockTunables::DEFAULT; 2], chunk)
    }

    fn with(tunables: [SockTunables; 2], chunk: usize) -> Self {
        let [a, b] = tunables;
        let nodes = [Node::new(1, a), Node::new(2, b)];
        Self { now: Instant(1), nodes, pipes: Vec::new(), chunk, ports: [PORT; 2] }
    }

    fn submit(&mut self, from: usize, tx: u32, payload_length: u32) {
        let [own, other] = [self.nodes[from].nid, self.nodes[1 - from].nid];
        self.nodes[from].sock.submit(self.now, &transmit(tx, own, other, payload_length)).unwrap();
    }

    /// Until nothing more happens at this time.
    fn run(&mut self) {
        while self.step() {}
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        for node in &mut self.nodes {
            node.sock.handle_timeout(self.now, &mut node.shard);
        }
        self.run();
    }

    fn step(&mut self) -> bool {
        let mut moved = false;
        for index in 0..2 {
            moved |= self.act(index) | self.send(index) | self.deliver(index);
            let node = &mut self.nodes[index];
            while let Some(ended) = node.sock.poll_ended() {
                node.ended.push(ended);
            }
            while node.sock.poll_report().is_some() || node.sock.poll_resumed().is_some() {}
            while node.sock.poll_failed_dial().is_some() {}
        }
        moved
    }

    fn act(&mut self, index: usize) -> bool {
        let mut moved = false;
        while let Some(action) = self.nodes[index].sock.poll_action() {
            moved = true;
            match action {
                StreamOrder::Dial { conn, .. } => {
                    self.pipes.push(Default::default());
                    let pipe = self.pipes.len() - 1;
                    self.nodes[index].streams.insert(conn, (pipe, 0));
                    let [dialler, listener] = if index == 0 { [1, 2] } else { [2, 1] };
                    let port = self.ports[index];
                    // Each connection has a port of its own; of privileged ones none is looked at.
                    self.ports[index] += u16::from(port > PORT);
                    let ends = Ends {
                        remote: (core::net::Ipv4Addr::new(10, 0, 0, dialler), port).into(),
                        local: core::net::Ipv4Addr::new(10, 0, 0, listener).into(),
                    };
                    let other = &mut self.nodes[1 - index];
                    let accepted = other.sock.accept(self.now, ends, &mut other.shard);
                    if let Some(accepted) = accepted {
                        other.streams.insert(accepted, (pipe, 1));
                    }
                    let node = &mut self.nodes[index];
                    let result = accepted.map(|_| port).ok_or(errno::ECONNREFUSED);
                    node.sock.dialled(self.now, conn, result, &mut node.shard);
                }
                StreamOrder::Close { conn } => {
                    if let Some((pipe, end)) = self.nodes[index].streams.remove(&conn) {
                        self.pipes[pipe][end].is_closed = true;
                    }
                    let node = &mut self.nodes[index];
                    node.sock.closed(self.now, conn, &mut node.shard);
                }
                StreamOrder::Serve { .. } => {}
                StreamOrder::Ask { conn } => self.nodes[index].answer(self.now, conn),
                StreamOrder::HandOver { .. } => unreachable!("there is one shard"),
            }
        }
        moved
    }

    fn send(&mut self, index: usize) -> bool {
        let node = &mut self.nodes[index];
        let mut moved = false;
        while let Some(conn) = node.sock.poll_ready() {
            let Some((pipe, end)) = node.streams.get(&conn).copied() else { continue };
            while let Some(piece) = node.sock.poll_send(self.now, conn) {
                moved = true;
                let whole = bytes_of(piece);
                self.pipes[pipe][end].bytes.extend(&whole);
                let sent = whole.len() as u64;
                node.sock.sent(self.now, conn, sent, &mut node.shard);
            }
        }
        moved
    }

    fn deliver(&mut self, index: usize) -> bool {
        let node = &mut self.nodes[index];
        let mut moved = false;
        for (conn, (pipe, end)) in node.streams.clone() {
            let way = &mut self.pipes[pipe][1 - end];
            let bytes = core::mem::take(&mut way.bytes);
            let left = node.take(self.now, conn, &bytes, self.chunk);
            moved |= left.len() != bytes.len();
            way.bytes = left;
            if way.is_closed && way.bytes.is_empty() && !node.has_closed(conn) {
                node.sock.ended(self.now, conn, None, &mut node.shard);
                node.streams.remove(&conn);
                moved = true;
            }
            if node.has_closed(conn) {
                break;
            }
        }
        moved
    }

    fn cut(&mut self) {
        for pipe in &mut self.pipes {
            for way in pipe {
                (way.bytes, way.is_closed) = (Vec::new(), true);
            }
        }
    }

    fn types(&self, index: usize) -> Vec<(ConnectionType, Version)> {
        let connections = self.nodes[index].sock.connections.used();
        connections.map(|(_, connection)| (connection.kind, connection.version)).collect()
    }
}

#[test]
fn messages_arrive_whatever_the_chunks() {
    for chunk in [1, 7, 100, 1 << 20] {
        let mut pair = Pair::new(chunk);
        for (tx, length) in [(0, 0), (1, 64), (2, 5000), (3, 1 << 20)] {
            pair.submit(0, tx, length);
        }
        pair.run();
        pair.submit(1, 9, 3000);
        pair.run();
        let [a, b] = &mut pair.nodes;
        a.ended.sort_unstable_by_key(|(tx, _)| *tx);
        assert_eq!(a.ended, (0..4).map(|tx| (TxId(tx), Status::Ok)).collect::<Vec<_>>());
        assert_eq!(b.ended, [(TxId(9), Status::Ok)]);
        assert_eq!(b.payload.len(), 64 + 5000 + (1 << 20));
        assert_eq!(a.payload, (0..3000).map(|index| index as u8).collect::<Vec<_>>());
        assert_eq!(a.shard.headers.len(), 1);
        assert!(b.shard.headers.iter().all(|(from, ..)| *from == nid(0, 1)));
        assert_eq!(b.shard.received.len(), 4);
        assert!(b.shard.received.iter().all(|(_, status)| *status == Status::Ok));
    }
}

#[test]
fn one_side_opens_all_types_and_the_other_sends_by_them() {
    use ConnectionType::{BulkIn, BulkOut, Control};
    let mut pair = Pair::new(1000);
    pair.submit(0, 0, 64);
    pair.run();
    let types = |list: [ConnectionType; 5]| list.map(|kind| (kind, Version::V3)).to_vec();
    assert_eq!(pair.types(0), types([Control, BulkIn, BulkOut, BulkIn, BulkOut]));
    assert_eq!(pair.types(1), types([Control, BulkOut, BulkIn, BulkOut, BulkIn]));
    pair.submit(1, 0, 4096);
    pair.submit(1, 1, 64);
    pair.run();
    assert_eq!(pair.pipes.len(), 5);
    assert_eq!(pair.nodes[1].ended.len(), 2);
}

#[test]
fn both_dial_at_once_and_the_larger_nid_wins() {
    let mut pair = Pair::new(1000);
    pair.submit(0, 0, 64);
    pair.submit(1, 0, 64);
    pair.run();
    pair.wait(SECOND * 2);
    pair.wait(SECOND * 2);
    assert_eq!(pair.nodes.each_ref().map(|node| node.ended.as_slice()), [&[(TxId(0), Status::Ok)]; 2]);
    assert!(pair.nodes[1].count(SocklndEvent::RaceLost) >= 1);
    assert_eq!(pair.types(0).len(), 5);
}

#[test]
fn a_peer_in_a_new_life_is_refused_once() {
    let mut pair = Pair::new(1000);
    pair.submit(0, 0, 64);
    pair.run();
    // The first node is killed: nothing tells the second.
    pair.nodes[0] = Node::new(1, SockTunables::DEFAULT);
    pair.nodes[0].sock.nis[0].incarnation = 77;
    pair.submit(0, 5, 64);
    pair.run();
    assert_eq!(pair.nodes[0].count(SocklndEvent::Refused), 1);
    assert!(pair.nodes[0].ended.is_empty());
    pair.wait(SECOND);
    assert_eq!(pair.nodes[0].ended, [(TxId(5), Status::Ok)]);
    assert_eq!(pair.nodes[1].count(SocklndEvent::Restarted), 1);
    assert_eq!(pair.nodes[1].sock.poll_restart(), Some(nid(0, 1)));
    assert_eq!(pair.nodes[1].sock.poll_restart(), None);
}

#[test]
fn who_is_not_there_ends_messages_at_once_and_is_not_asked_too_often() {
    let mut node = Node::new(1, SockTunables::DEFAULT);
    let to = nid(0, 9);
    let mut now = Instant(1);
    let mut dials = 0;
    for tx in 0..120 {
        node.sock.submit(now, &transmit(tx, node.nid, to, 0)).unwrap();
        while let Some(action) = node.sock.poll_action() {
            match action {
                StreamOrder::Dial { conn, .. } => {
                    dials += 1;
                    node.sock.dialled(now, conn, Err(errno::EHOSTUNREACH), &mut node.shard);
                }
                StreamOrder::Close { conn } => node.sock.closed(now, conn, &mut node.shard),
                StreamOrder::Serve { .. } | StreamOrder::Ask { .. } => {}
                StreamOrder::HandOver { .. } => unreachable!("there is one shard"),
            }
        }
        assert_eq!(
            node.sock.poll_ended(),
            Some((TxId(tx), Status::NeverSent(Cause::System(errno::EHOSTUNREACH))))
        );
        now = now + SECOND;
        node.sock.handle_timeout(now, &mut node.shard);
    }
    // After 1, 2, 4, 8, 16, 32 and 60 seconds.
    assert!((6..=8).contains(&dials), "{dials}");
    node.sock.handle_timeout(now + SECOND * 2000, &mut node.shard);
    assert_eq!(node.sock.peers.used_count(), 0);
}

#[test]
fn silence_ends_handshakes_and_what_is_half_received() {
    let mut pair = Pair::new(1000);
    pair.submit(0, 0, 64);
    pair.run();
    let conn = *pair.nodes[1].streams.first_key_value().unwrap().0;
    let node = &mut pair.nodes[1];
    node.take(pair.now, conn, &[0xC1, 0, 0, 0], 4);
    let now = pair.now + SECOND * 51;
    node.sock.handle_timeout(now, &mut node.shard);
    assert_eq!(node.count(SocklndEvent::Stalled), 1);
    node.close(now);
    assert_eq!(node.sock.usage().connections, 0);

    let ends = Ends {
        remote: (core::net::Ipv4Addr::new(10, 0, 0, 3), 1000).into(),
        local: core::net::Ipv4Addr::new(10, 0, 0, 2).into(),
    };
    for _ in 0..20 {
        assert!(node.sock.accept(now, ends, &mut node.shard).is_some());
    }
    node.close(now);
    // The oldest of more than four from one address ends, and of more than eight in all.
    assert_eq!((node.sock.usage().connections, node.count(SocklndEvent::HandshakesFull)), (4, 16));
    for host in 4..24 {
        let ends = Ends { remote: (core::net::Ipv4Addr::new(10, 0, 0, host), 1000).into(), ..ends };
        assert!(node.sock.accept(now, ends, &mut node.shard).is_some());
    }
    node.close(now);
    assert_eq!((node.sock.usage().connections, node.count(SocklndEvent::HandshakesFull)), (8, 32));
    node.sock.handle_timeout(now + SECOND * 5, &mut node.shard);
    node.close(now);
    assert_eq!(node.sock.usage().connections, 0);
}

/// A peer played by hand, which has dialled a connection of this type.
fn played(node: &mut Node, now: Instant, host: u8, port: u16, said: Hello) -> ConnId {
    let ends = Ends {
        remote: (core::net::Ipv4Addr::new(10, 0, 0, host), port).into(),
        local: core::net::Ipv4Addr::new(10, 0, 0, 2).into(),
    };
    let conn = node.sock.accept(now, ends, &mut node.shard).unwrap();
    let mut bytes = [0; CONNECTION_REQUEST_BYTES_MAX];
    let length = ConnectionRequest { target: node.nid }.encode(&mut bytes);
    node.take(now, conn, &bytes[..length], 3);
    node.sock.actions.retain(|action| *action != StreamOrder::Serve { conn, ni: NI });
    let mut bytes = [0; HELLO_BYTES_MAX];
    let length = said.encode(&mut bytes).unwrap();
    node.take(now, conn, &bytes[..length], 5);
    conn
}

fn hello(host: u8, version: Version, connection: ConnectionType) -> Hello {
    Hello {
        version,
        order: ByteOrder::Little,
        source: ProcessId::lustre(nid(0, host)),
        destination: ProcessId { nid: nid(0, 2), pid: 0 },
        source_incarnation: 5,
        destination_incarnation: 0,
        connection: Some(connection),
    }
}

/// A piece as it is on the stream.
fn bytes_of(mut piece: Piece) -> Vec<u8> {
    let payload_bytes = piece.payload.map_or(0, |(_, span)| span.length_bytes);
    let payload: Vec<u8> = (0..payload_bytes).map(|index| index as u8).collect();
    piece.cover(&payload);
    [piece.head(), &payload].concat()
}

/// All bytes that a connection sends.
fn sent(node: &mut Node, now: Instant, conn: ConnId) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(piece) = node.sock.poll_send(now, conn) {
        let whole = bytes_of(piece);
        bytes.extend(&whole);
        node.sock.sent(now, conn, whole.len() as u64, &mut node.shard);
        if node.has_closed(conn) {
            break;
        }
    }
    bytes
}

fn answer(bytes: &[u8]) -> Hello {
    match Hello::parse(bytes) {
        Ok(Parsed::Whole(hello, length)) if length == bytes.len() => hello,
        other => panic!("{other:?} in {} bytes", bytes.len()),
    }
}

fn message(header: &Header, cookies: [u64; 2], checksum: u32) -> Vec<u8> {
    let mut bytes = vec![0; PREFIX_BYTES + 72];
    Prefix { kind: PrefixKind::Lnet, checksum, cookies }.encode(bytes.first_chunk_mut().unwrap());
    header.encode_small(bytes[PREFIX_BYTES..].first_chunk_mut().unwrap()).unwrap();
    bytes.extend((0..header.payload_length).map(|index| index as u8));
    bytes
}

#[test]
fn cookies_are_acknowledged_once_also_of_what_is_dropped_or_truncated() {
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let conn = played(&mut node, now, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
    let said = answer(&sent(&mut node, now, conn));
    assert_eq!((said.connection, said.source_incarnation), (Some(ConnectionType::Control), 2));
    let put = header(nid(0, 1), node.nid, 100);
    node.shard.verdicts = [Verdict::Deliver(span(100)), Verdict::Drop, Verdict::Deliver(span(10))].into();
    for cookie in 7..10 {
        assert!(node.take(now, conn, &message(&put, [cookie, 0], 0), 50).is_empty());
        let mut noop = [0; PREFIX_BYTES];
        Prefix::acknowledgement(cookie).encode(&mut noop);
        assert_eq!(sent(&mut node, now, conn), noop);
    }
    assert_eq!(node.shard.received.len(), 2);
    assert_eq!(node.payload.len(), 110);
    // One that was not asked for ends all connections with the peer.
    let other = played(&mut node, now, 1, 999, hello(1, Version::V3, ConnectionType::BulkIn));
    assert_eq!(answer(&sent(&mut node, now, other)).connection, Some(ConnectionType::BulkOut));
    node.take(now, conn, &message(&put, [0, 70], 0), 500);
    assert!(node.has_closed(conn) && node.has_closed(other));
    assert_eq!(node.count(SocklndEvent::UnknownCookie), 1);
}

#[test]
fn a_delayed_message_stops_its_connection_and_no_other() {
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let conn = played(&mut node, now, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
    let other = played(&mut node, now, 3, 1000, hello(3, Version::V3, ConnectionType::Control));
    node.shard.verdicts = [Verdict::Delay].into();
    let put = header(nid(0, 1), node.nid, 40);
    let bytes = [message(&put, [0; 2], 0), message(&put, [0; 2], 0)].concat();
    let left = node.take(now, conn, &bytes, 64);
    assert_eq!(left.len(), bytes.len() - PREFIX_BYTES - 72);
    assert_eq!(node.sock.wants(conn), Wants::Nothing);
    assert!(node.take(now, other, &message(&header(nid(0, 3), node.nid, 1), [0; 2], 0), 64).is_empty());
    let rx = node.shard.headers[0].1;
    // No time limits a message that waits for its shard.
    node.sock.handle_timeout(now + SECOND * 29, &mut node.shard);
    node.sock.resume(now, rx, Verdict::Deliver(span(40)), &mut node.shard);
    assert_eq!(node.sock.poll_resumed(), Some(conn));
    assert!(node.take(now, conn, &left, 64).is_empty());
    assert_eq!(node.shard.received.len(), 3);
}

#[test]
fn who_breaks_the_protocol_is_cut_off() {
    let own = nid(0, 2);
    let ack = Header {
        payload_length: 4,
        body: Body::Ack { md: WireHandle::NONE, match_bits: 0, manipulated_length: 0 },
        ..header(nid(0, 1), own, 4)
    };
    let bad: [(&str, Vec<u8>, SocklndEvent); 7] = [
        ("prefix", vec![0xC5; 24], SocklndEvent::BadMessage),
        ("payload", message(&header(nid(0, 1), own, (1 << 20) + 1), [0; 2], 0), SocklndEvent::BadMessage),
        ("ACK", message(&ack, [0; 2], 0), SocklndEvent::BadMessage),
        ("other node", message(&header(nid(0, 1), nid(0, 8), 1), [0; 2], 0), SocklndEvent::WrongDestination),
        ("own NI", message(&header(nid(0, 1), nid(7, 2), 1), [0; 2], 0), SocklndEvent::WrongDestination),
        ("checksum", message(&header(nid(0, 1), own, 4), [0; 2], 99), SocklndEvent::BadChecksum),
        ("empty", message(&header(nid(0, 1), own, 0), [0; 2], 99), SocklndEvent::BadChecksum),
    ];
    for (what, bytes, event) in bad {
        let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
        let conn = played(&mut node, now, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
        sent(&mut node, now, conn);
        node.shard.others.push(nid(7, 2));
        node.take(now, conn, &bytes, 4000);
        assert!(node.has_closed(conn), "{what}");
        assert_eq!(node.count(event), 1, "{what}");
        node.close(now);
        assert_eq!(node.sock.usage().connections, 0, "{what}");
    }
    // A source on another net is the shard's business.
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let conn = played(&mut node, now, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
    node.take(now, conn, &message(&header(nid(0, 1), nid(5, 8), 1), [0; 2], 0), 4000);
    assert_eq!((node.has_closed(conn), node.shard.headers.len()), (false, 1));
}

#[test]
fn who_may_not_connect_is_told_no_more_than_by_kernel_nodes() {
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    // One more of a type, and another protocol than that of the connections so far.
    let conn = played(&mut node, now, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
    sent(&mut node, now, conn);
    let again = played(&mut node, now, 1, 1001, hello(1, Version::V3, ConnectionType::Control));
    assert_eq!(answer(&sent(&mut node, now, again)).connection, None);
    assert!(node.has_closed(again) && !node.has_closed(conn));
    node.close(now);
    let newer = played(&mut node, now, 1, 1002, hello(1, Version::V4, ConnectionType::BulkIn));
    let refusal = answer(&sent(&mut node, now, newer));
    assert_eq!((refusal.connection, refusal.version), (None, Version::V4));
    assert!(node.has_closed(conn));

    // An unknown version: NONE in our own.
    let ends = Ends {
        remote: (core::net::Ipv4Addr::new(10, 0, 0, 1), 1000).into(),
        local: core::net::Ipv4Addr::new(10, 0, 0, 2).into(),
    };
    node.close(now);
    let conn = node.sock.accept(now, ends, &mut node.shard).unwrap();
    let mut bytes = [0; CONNECTION_REQUEST_BYTES_MAX];
    let length = ConnectionRequest { target: node.nid }.encode(&mut bytes);
    node.take(now, conn, &bytes[..length], 100);
    node.take(now, conn, b"\x63\x69\x72\x45\x09\0\0\0", 100);
    let refusal = answer(&sent(&mut node, now, conn));
    assert_eq!((refusal.connection, refusal.version), (None, Version::V3));

    // Another's NID; an unknown version of the request; garbage.
    for (request, said) in [
        (b"\x00\x71\xCE\xAC\x01\0\0\0\x63\0\0\x0A\0\0\x02\0".to_vec(), 0),
        (b"\x00\x71\xCE\xAC\x07\0\0\0".to_vec(), 16),
        (b"\x63\x69\x72\x45".to_vec(), 16),
        (b"GET / HTTP/1.1\r\n".to_vec(), 0),
    ] {
        node.close(now);
        let conn = node.sock.accept(now, ends, &mut node.shard).unwrap();
        node.take(now, conn, &request, 100);
        assert_eq!(sent(&mut node, now, conn).len(), said);
        assert!(node.has_closed(conn));
    }
    let unprivileged = Ends { remote: (core::net::Ipv4Addr::new(10, 0, 0, 1), 2000).into(), ..ends };
    assert_eq!(node.sock.accept(now, unprivileged, &mut node.shard), None);
}
