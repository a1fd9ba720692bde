//! Diallers that claim to be others, and more of them than there is room for.

use alloc::vec::Vec;
use core::net::IpAddr;

use lnet_core::handle::{BufferHandle, Cookie, CookieKind};
use lnet_core::lnd::{PrefetchHints, RxId, Uplink, Verdict};
use lnet_wire::header::SMALL_HEADER_BYTES;
use lnet_wire::socklnd::{
    ByteOrder, CONNECTION_REQUEST_BYTES_MAX, ConnectionRequest, ConnectionType, HELLO_BYTES_MAX, Hello,
    PREFIX_BYTES, Parsed, Prefix, Version,
};
use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};

use super::*;
use crate::testing::nid;

#[path = "shares_tests.rs"]
mod shares_tests;

const NI: NiId = NiId(1);
const OWN: u8 = 2;
const PEERS: u32 = 6;
const NOW: Instant = Instant(1);
/// Payload that is matched before it is there.
const LONG_BYTES: u32 = 5000;

/// A host whose names the shard has no room to note.
const UNNOTED: u8 = 250;

/// A shard that takes PUTs, and nothing else.
struct Shard;

impl PrefetchHints for Shard {}

impl Uplink for Shard {
    fn header(&mut self, _: Instant, _: NiId, _: &Nid, _: RxId, header: &Header) -> Verdict {
        let is_put = matches!(header.body, Body::Put { .. });
        if is_put { Verdict::Deliver(span(header.payload_length)) } else { Verdict::Drop }
    }

    fn received(&mut self, _: Instant, _: RxId, _: Status) {}

    fn sent(&mut self, _: Instant, _: TxId, _: Status) {}

    fn came_from(&mut self, peer: &Nid, _: IpAddr) -> bool {
        *peer != nid(0, UNNOTED)
    }
}

fn span(length_bytes: u32) -> Span {
    let buffer = BufferHandle(Cookie::new(CookieKind::Buffer, ShardId(0), 0, 1)).into();
    Span { buffer, offset_bytes: 0, length_bytes }
}

/// The head of a message from a host.
fn head(from: u8, payload_length: u32, body: Body) -> [u8; PREFIX_BYTES + SMALL_HEADER_BYTES] {
    let mut bytes = [0; PREFIX_BYTES + SMALL_HEADER_BYTES];
    Prefix::message().encode(bytes.first_chunk_mut().unwrap());
    let (source, destination) = (ProcessId::lustre(nid(0, from)), ProcessId::lustre(nid(0, OWN)));
    let header = Header { source, destination, payload_length, body };
    header.encode_small(bytes[PREFIX_BYTES..].first_chunk_mut().unwrap()).unwrap();
    bytes
}

fn put(from: u8, payload_length: u32) -> [u8; PREFIX_BYTES + SMALL_HEADER_BYTES] {
    let body = Body::Put { ack_md: WireHandle::NONE, match_bits: 5, hdr_data: 6, portal: 7, offset: 0 };
    head(from, payload_length, body)
}

/// What became of a HELLO.
#[derive(PartialEq, Eq, Debug)]
enum Answer {
    Taken(ConnId),
    /// NONE was said.
    Refused,
    Closed,
}

/// A node that is dialled.
struct Node {
    sock: Socklnd,
    closed: Vec<ConnId>,
}

impl Node {
    fn new() -> Self {
        Self::with(SocklndLimits { connections: 64, handshakes: 8, peers: PEERS, messages: 4 })
    }

    fn with(limits: SocklndLimits) -> Self {
        let mut sock = Socklnd::new(SocklndConfig {
            shard: ShardId(0),
            pid: ProcessId::LUSTRE_PID,
            tunables: SockTunables { accept: Accept::All, ..SockTunables::DEFAULT },
            limits,
            seed: 1,
        });
        sock.add_ni(SocklndNi {
            ni: NI,
            nid: nid(0, OWN),
            incarnation: 2,
            conns_per_peer: 2,
            serving: ShardSet::all(1),
        });
        Self { sock, closed: Vec::new() }
    }

    fn act(&mut self) {
        while let Some(action) = self.sock.poll_action() {
            match action {
                StreamOrder::Serve { .. } | StreamOrder::Ask { .. } => {}
                StreamOrder::Close { conn } => {
                    self.sock.closed(NOW, conn, &mut Shard);
                    self.closed.push(conn);
                }
                _ => panic!("{action:?}"),
            }
        }
    }

    /// A dialler at this address says HELLO in the name of a host.
    fn dial(&mut self, address: u8, name: u8, incarnation: u64, kind: ConnectionType) -> Answer {
        self.dial_as(address, nid(0, name), incarnation, kind)
    }

    /// The same in a name of any net.
    fn dial_as(&mut self, address: u8, name: Nid, incarnation: u64, kind: ConnectionType) -> Answer {
        self.dial_of(address, ProcessId::lustre(name), incarnation, kind)
    }

    /// Says HELLO in the name of any process.
    fn dial_of(&mut self, address: u8, source: ProcessId, incarnation: u64, kind: ConnectionType) -> Answer {
        self.dial_by((address, 1000), source, incarnation, kind)
    }

    /// The same from any port.
    fn dial_by(
        &mut self,
        (address, port): (u8, u16),
        source: ProcessId,
        incarnation: u64,
        kind: ConnectionType,
    ) -> Answer {
        let ends =
            Ends { remote: (nid(0, address).ip().unwrap(), port).into(), local: nid(0, OWN).ip().unwrap() };
        let Some(conn) = self.sock.accept(NOW, ends, &mut Shard) else { return Answer::Closed };
        let mut request = [0; CONNECTION_REQUEST_BYTES_MAX];
        let length = ConnectionRequest { target: nid(0, OWN) }.encode(&mut request);
        assert_eq!(self.sock.take(NOW, conn, &request[..length], &mut Shard), length);
        let hello = Hello {
            version: Version::V3,
            order: ByteOrder::Little,
            source,
            destination: ProcessId::lustre(nid(0, OWN)),
            source_incarnation: incarnation,
            destination_incarnation: 0,
            connection: Some(kind),
        };
        let mut bytes = [0; HELLO_BYTES_MAX];
        let length = hello.encode(&mut bytes).unwrap();
        assert_eq!(self.sock.take(NOW, conn, &bytes[..length], &mut Shard), length);
        self.act();
        let mut said = Vec::new();
        while let Some(ready) = self.sock.poll_ready() {
            while let Some(piece) = self.sock.poll_send(NOW, ready) {
                said.extend_from_slice(piece.head());
                self.sock.sent(NOW, ready, piece.head().len() as u64, &mut Shard);
            }
        }
        self.act();
        if said.is_empty() {
            assert!(self.closed.contains(&conn));
            return Answer::Closed;
        }
        let Ok(Parsed::Whole(answer, _)) = Hello::parse(&said) else { panic!("{said:?}") };
        assert_eq!(self.closed.contains(&conn), answer.connection.is_none());
        if answer.connection.is_some() { Answer::Taken(conn) } else { Answer::Refused }
    }

    fn take(&mut self, address: u8, name: u8, incarnation: u64, kind: ConnectionType) -> ConnId {
        self.closed.clear();
        match self.dial(address, name, incarnation, kind) {
            Answer::Taken(conn) => conn,
            answer => panic!("{answer:?}"),
        }
    }

    fn count(&self, event: SocklndEvent) -> u64 {
        self.sock.counters().get(event)
    }
}

#[test]
fn a_connected_peer_loses_neither_name_nor_connections_to_a_dialler_elsewhere() {
    let mut node = Node::new();
    node.take(1, 1, 5, ConnectionType::Control);
    node.take(1, 1, 5, ConnectionType::BulkIn);
    // Diallers come in a new life, in the same one, and again.
    for (incarnation, kind) in
        [(6, ConnectionType::Control), (5, ConnectionType::BulkOut), (7, ConnectionType::Any)]
    {
        node.closed.clear();
        assert_eq!(node.dial(9, 1, incarnation, kind), Answer::Refused);
        assert_eq!(node.closed.len(), 1, "its own connection alone");
    }
    assert_eq!((node.count(SocklndEvent::Impostor), node.count(SocklndEvent::Restarted)), (3, 0));
    assert_eq!(node.sock.usage().connections, 2);
    // A dialler at the peer's own address is a new life: what there was ends, and the dialler comes again.
    node.closed.clear();
    assert_eq!(node.dial(1, 1, 6, ConnectionType::Control), Answer::Refused);
    assert_eq!(node.closed.len(), 3);
    node.take(1, 1, 6, ConnectionType::Control);
}

#[test]
fn who_claims_a_name_of_this_node_or_of_another_net_is_turned_away() {
    let mut node = Node::new();
    for name in [Nid::LO, nid(7, 1), "10.0.0.1@o2ib".parse().unwrap(), "9@gni".parse().unwrap()] {
        assert_eq!(node.dial_as(1, name, 1, ConnectionType::Control), Answer::Closed, "{name}");
    }
    assert_eq!(node.count(SocklndEvent::BadHello), 4);
    // Its own connections come from its own address.
    assert_eq!(node.dial(1, OWN, 1, ConnectionType::Control), Answer::Refused);
    assert_eq!(node.count(SocklndEvent::Impostor), 1);
    node.take(OWN, OWN, 2, ConnectionType::Control);
    node.take(1, 1, 1, ConnectionType::Control);
    // No other peer is remembered.
    assert_eq!(node.sock.usage().peers, 2);
}

/// Over IPv6 a connection of this host comes from the address that it leads to.
#[test]
fn what_has_one_address_at_both_ends_speaks_for_every_ni_of_this_node() {
    let mut node = Node::new();
    let other = 77;
    node.sock.add_ni(SocklndNi {
        ni: NiId(NI.0 + 1),
        nid: nid(0, other),
        incarnation: 1,
        conns_per_peer: 1,
        serving: ShardSet::all(1),
    });
    assert_eq!(node.dial(1, other, 1, ConnectionType::Control), Answer::Refused);
    assert_eq!(node.count(SocklndEvent::Impostor), 1);
    node.take(OWN, other, 1, ConnectionType::Control);
    // A name that is none of its own is a claim there too, and ends when its owner comes.
    let strange = node.take(OWN, 1, 5, ConnectionType::Control);
    node.take(1, 1, 5, ConnectionType::Control);
    assert_eq!(node.closed, [strange]);
}

#[test]
fn a_peer_that_comes_from_its_own_address_ends_those_in_its_name() {
    for incarnation in [5, 6] {
        let mut node = Node::new();
        // As kernel nodes do: a name without a connection may come from anywhere.
        let strange = [ConnectionType::Control, ConnectionType::BulkIn].map(|kind| node.take(9, 1, 5, kind));
        node.take(1, 1, incarnation, ConnectionType::Control);
        assert_eq!(node.closed, strange);
        assert_eq!(node.count(SocklndEvent::Impostor), 2);
        assert_eq!(node.sock.usage().connections, 1);
    }
}

/// A name ends that is no more to be heard from elsewhere; one that comes from its own address goes on.
#[test]
fn a_name_from_elsewhere_is_ended_on_demand() {
    let mut node = Node::new();
    let own = node.take(1, 1, 5, ConnectionType::Control);
    let other = node.take(9, 3, 5, ConnectionType::Control);
    let named = [ConnectionType::Control, ConnectionType::BulkIn].map(|kind| node.take(9, 7, 5, kind));
    for host in [1, 7] {
        node.sock.end_from_elsewhere(NOW, &nid(0, host), &mut Shard);
        node.act();
    }
    assert_eq!(node.closed, named);
    assert!(!node.closed.contains(&own) && !node.closed.contains(&other));
}

/// One host claims one name after the other: it has a few, the newest ones, whose owners are not connected.
#[test]
fn a_host_has_few_names_that_are_not_its_own() {
    let mut node = Node::new();
    let friend = node.take(1, 1, 5, ConnectionType::Control);
    let own = node.take(9, 9, 5, ConnectionType::Control);
    let mut names = Vec::new();
    for name in 10..60 {
        let kinds = [ConnectionType::Control, ConnectionType::BulkIn];
        names.push(node.take(9, name, 5, kinds[0]));
        node.take(9, name, 5, kinds[1]);
        assert!(!node.closed.contains(&friend) && !node.closed.contains(&own));
        assert!(node.sock.usage().connections <= 2 + 4 * 2);
    }
    assert_eq!(node.count(SocklndEvent::NamesFull), 46);
    assert_eq!(node.count(SocklndEvent::PeersFull), 0);
    // Another host has as many, once there is room for it.
    node.sock.ended(NOW, own, None, &mut Shard);
    node.act();
    let other = node.take(8, 70, 5, ConnectionType::Control);
    assert_eq!(node.count(SocklndEvent::NamesFull), 46);
    assert!(!node.closed.contains(&other));
}

/// One host comes as one process after the other: it has a few, the newest ones; those of others stay.
#[test]
fn a_host_has_few_processes() {
    let mut node = Node::new();
    let friend = node.take(1, 1, 5, ConnectionType::Control);
    let elsewhere = node.take(9, 7, 5, ConnectionType::Control);
    for pid in 0..50 {
        let source = ProcessId { nid: nid(0, 9), pid };
        node.closed.clear();
        let taken = node.dial_of(9, source, 5, ConnectionType::Control);
        assert!(matches!(taken, Answer::Taken(_)), "{taken:?}");
        assert!(!node.closed.contains(&friend) && !node.closed.contains(&elsewhere));
        assert!(node.sock.usage().connections <= 2 + 4);
    }
    assert_eq!(node.count(SocklndEvent::NamesFull), 46);
}

/// A name that is not taken ends none of the names that its host has.
#[test]
fn a_name_that_is_refused_ends_no_other_one() {
    let mut node = Node::new();
    for name in 10..14 {
        node.take(9, name, 5, ConnectionType::Control);
    }
    assert_eq!(node.dial(9, UNNOTED, 5, ConnectionType::Control), Answer::Closed);
    assert_eq!(node.sock.usage().connections, 4);
    node.take(9, 14, 5, ConnectionType::Control);
    assert_eq!(node.sock.usage().connections, 4);
}

/// A name that is refused ends none where there is no room for its peer either.
#[test]
fn a_name_that_is_refused_where_peers_are_full_ends_no_other_one() {
    let mut node = Node::new();
    for name in 10..14 {
        node.take(9, name, 5, ConnectionType::Control);
    }
    for friend in 20..20 + PEERS as u8 - 4 {
        node.take(friend, friend, 5, ConnectionType::Control);
    }
    node.closed.clear();
    assert_eq!(node.dial(9, UNNOTED, 5, ConnectionType::Control), Answer::Closed);
    assert_eq!((node.sock.usage().connections, node.closed.len()), (PEERS, 1));
    node.take(9, 14, 5, ConnectionType::Control);
    assert_eq!(node.sock.usage().connections, PEERS);
}

#[test]
fn idle_peers_make_room_and_connected_ones_stay() {
    let mut node = Node::new();
    let stays = node.take(1, 1, 5, ConnectionType::Control);
    for name in 10..100 {
        let conn = node.take(name, name, 5, ConnectionType::Control);
        node.sock.ended(NOW, conn, None, &mut Shard);
        node.act();
        assert_eq!(node.closed, [conn]);
    }
    assert_eq!(node.count(SocklndEvent::PeersFull), 0);
    let others = (100..99 + PEERS as u8).map(|name| node.take(name, name, 5, ConnectionType::Control));
    let others: Vec<_> = others.collect();
    assert_eq!(node.dial(200, 200, 5, ConnectionType::Control), Answer::Closed);
    assert_eq!(node.count(SocklndEvent::PeersFull), 1);
    assert!(!node.closed.contains(&stays) && others.iter().all(|conn| !node.closed.contains(conn)));
}

#[test]
fn a_connection_whose_bytes_find_no_room_ends_with_its_siblings() {
    let mut node = Node::new();
    let conns = [ConnectionType::Control, ConnectionType::BulkIn].map(|kind| node.take(1, 1, 5, kind));
    let other = node.take(3, 3, 5, ConnectionType::Control);
    node.sock.overrun(NOW, conns[1], &mut Shard);
    node.act();
    assert_eq!(node.closed, conns);
    assert_eq!((node.count(SocklndEvent::Overrun), node.sock.usage().connections), (1, 1));
    assert!(!node.closed.contains(&other));
}

#[test]
fn what_is_missing_of_a_head_is_known_from_the_handshake_on() {
    let mut node = Node::new();
    let ends = Ends { remote: (nid(0, 1).ip().unwrap(), 1000).into(), local: nid(0, OWN).ip().unwrap() };
    let greeting = node.sock.accept(NOW, ends, &mut Shard).unwrap();
    assert_eq!(node.sock.missing_of_head(greeting), None);
    let conn = node.take(3, 3, 5, ConnectionType::BulkOut);
    let bytes = head(3, 40, Body::Reply { md: WireHandle::NONE });
    for from in 0..bytes.len() {
        assert_eq!(node.sock.missing_of_head(conn), Some(bytes.len() - from));
        assert_eq!(node.sock.take(NOW, conn, &bytes[from..=from], &mut Shard), 1);
    }
    assert_eq!((node.sock.wants(conn), node.sock.missing_of_head(conn)), (Wants::Whole(40), None));
    node.sock.whole(NOW, conn, &mut Shard);
    // It was dropped.
    assert_eq!((node.sock.wants(conn), node.sock.missing_of_head(conn)), (Wants::Skip(40), None));
    node.sock.placed(NOW, conn, 40, &mut Shard);
    assert_eq!(node.sock.missing_of_head(conn), Some(bytes.len()));
}

/// No entry is matched by a message that is short and not there: it ends with its time.
#[test]
fn short_messages_are_matched_once_they_are_whole() {
    let mut node = Node::new();
    let push = |length_bytes| {
        let body = Body::Put { ack_md: WireHandle::NONE, match_bits: 5, hdr_data: 6, portal: 0, offset: 0 };
        head(3, length_bytes, body)
    };
    for (bytes, awaited) in [(put(3, 4095), 4095), (push(5000), 5000), (push(1 << 20), 16 << 10)] {
        let conn = node.take(3, 3, 5, ConnectionType::BulkIn);
        node.sock.take(NOW, conn, &bytes, &mut Shard);
        assert_eq!(node.sock.wants(conn), Wants::Whole(awaited));
        assert_eq!(node.sock.usage().incoming, 0, "the shard knows nothing of it");
        node.closed.clear();
        node.sock.handle_timeout(NOW + SockTunables::DEFAULT.timeout, &mut Shard);
        node.act();
        assert_eq!(node.closed, [conn]);
    }
    // What is longer has a place at once.
    let conn = node.take(3, 3, 5, ConnectionType::BulkIn);
    node.sock.take(NOW, conn, &put(3, 4096), &mut Shard);
    assert_eq!(node.sock.wants(conn), Wants::Payload(span(4096)));
}

/// Payload that comes byte by byte is progress, as with kernel nodes: it may go on for ever, and holds up its
/// own connection alone.
#[track_caller]
fn served_beside_dripping(hosts: core::ops::Range<u8>, kinds: &[ConnectionType]) {
    let mut node = Node::new();
    let honest = node.take(1, 1, 5, ConnectionType::Control);
    let mut dripping = Vec::new();
    for host in hosts {
        for kind in kinds {
            let conn = node.take(host, host, 5, *kind);
            node.sock.take(NOW, conn, &put(host, LONG_BYTES), &mut Shard);
            dripping.push(conn);
        }
    }
    let serve = |node: &mut Node, now| {
        let head = put(1, 8);
        assert_eq!(node.sock.take(now, honest, &head, &mut Shard), head.len());
        assert_eq!(node.sock.wants(honest), Wants::Whole(8));
        node.sock.whole(now, honest, &mut Shard);
        assert_eq!(node.sock.wants(honest), Wants::Payload(span(8)));
        node.sock.placed(now, honest, 8, &mut Shard);
        assert_eq!(node.sock.wants(honest), Wants::Head);
    };
    let mut now = NOW;
    for left in (LONG_BYTES - 100..LONG_BYTES).rev() {
        now = now + SockTunables::DEFAULT.timeout * 9 / 10;
        for conn in &dripping {
            assert!(matches!(node.sock.wants(*conn), Wants::Payload(span) if span.length_bytes == left + 1));
            node.sock.placed(now, *conn, 1, &mut Shard);
        }
        node.sock.handle_timeout(now, &mut Shard);
        serve(&mut node, now);
        assert_eq!(node.sock.usage().incoming as usize, dripping.len());
    }
    // They stop.
    now = now + SockTunables::DEFAULT.timeout;
    node.closed.clear();
    node.sock.handle_timeout(now, &mut Shard);
    node.act();
    node.closed.sort_unstable();
    assert_eq!((node.closed.as_slice(), node.sock.usage().incoming), (dripping.as_slice(), 0));
    serve(&mut node, now);
}

#[test]
fn one_peer_that_drips_on_all_its_connections_holds_up_no_other_peer() {
    use ConnectionType::{Any, BulkIn, BulkOut, Control};
    served_beside_dripping(10..11, &[Control, BulkIn, BulkIn, BulkOut, BulkOut, Any, Any]);
}

#[test]
fn peers_that_drip_on_one_connection_each_hold_up_no_other_peer() {
    served_beside_dripping(10..9 + PEERS as u8, &[ConnectionType::BulkIn]);
}
