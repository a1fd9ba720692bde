//! Requests that wait until their peers are discovered.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::ShardConfig;
use lnet_core::limits::Limits;
use lnet_core::lnd::{Cause, NiId, Status, Transmit, Uplink};
use lnet_core::md::{MdOptions, MdSpec};
use lnet_core::shard::PutRequest;
use lnet_core::time::Instant;
use lnet_core::topology::{HEALTH_MAX, LocalNi, NiStatus, PeerMap, PeerNid, PeerView, Topology};
use lnet_core::tunables::Tunables;
use lnet_wire::{Nid, ProcessId};

use crate::common::{MESSAGE_TIMEOUT, NOW, Node, config, interface, nid, put_request};

/// How long a request waits at most with the default tunables.
const GATED_MAX: Duration = Duration::from_secs(5);

fn locals() -> Vec<LocalNi> {
    vec![interface(nid(1, 1), 8, 4), interface(nid(2, 1), 8, 4)]
}

/// A peer with NIs on both nets, whose primary NID is the one on the second.
fn peer(change: impl Fn(&mut PeerView)) -> PeerView {
    let nis = [(2, 11), (1, 11)].map(|(net, host)| PeerNid::new(nid(net, host), HEALTH_MAX));
    let mut view = PeerView::new(true, nis.to_vec()).unwrap();
    change(&mut view);
    view
}

fn topology(generation: u64, locals: Vec<LocalNi>, peers: impl IntoIterator<Item = PeerView>) -> Topology {
    let mut map = PeerMap::default();
    peers.into_iter().for_each(|peer| map.insert(peer));
    Topology::new(locals).with_peers(map).with_gated_requests(true).with_generation(generation)
}

fn node_of(topology: Topology) -> Node {
    let limits = Limits { interfaces: 4, ..config().limits };
    Node::new(ShardConfig { limits, topology: Arc::new(topology), ..config() })
}

/// A node that knows no peers yet.
fn node() -> Node {
    node_of(topology(1, locals(), []))
}

fn update(node: &mut Node, topology: Topology) {
    node.shard.update(NOW, Arc::new(topology));
}

fn put(node: &mut Node, to: Nid, match_bits: u64) -> lnet_core::handle::MdHandle {
    let md = node.shard.bind(&node.md(10)).unwrap();
    put_by(node, &PutRequest { target: ProcessId::lustre(to), match_bits, ..put_request(md, 0) })
}

fn put_by(node: &mut Node, request: &PutRequest) -> lnet_core::handle::MdHandle {
    node.shard.put(NOW, request).unwrap();
    request.md
}

fn sent(node: &mut Node) -> Vec<Transmit> {
    let by = |node: &mut Node, ni| node.shard.poll_transmit(NiId(ni)).map(|lent| *lent.transmit);
    (0..2).flat_map(|ni| std::iter::from_fn(|| by(node, ni)).collect::<Vec<_>>()).collect()
}

fn wanted(node: &mut Node) -> Vec<Nid> {
    std::iter::from_fn(|| node.shard.poll_wanted()).collect()
}

fn bits(transmit: &Transmit) -> u64 {
    let lnet_wire::Body::Put { match_bits, .. } = transmit.header.body else { panic!("{transmit:?}") };
    match_bits
}

/// All has come home.
#[track_caller]
fn check_rest(node: &mut Node) {
    for transmit in sent(node) {
        node.shard.sent(NOW, transmit.tx, Status::Ok);
    }
    assert_eq!((node.shard.usage().messages, node.shard.poll_timeout()), (0, None));
    for peer in node.shard.peers() {
        assert_eq!(peer.credits, i64::from(peer.credits_max), "{peer:?}");
        assert_eq!((peer.queued_bytes, peer.reference_count), (0, u32::from(peer.is_own)), "{peer:?}");
    }
    assert!((0..2).all(|ni| node.shard.is_quiet(NiId(ni))));
}

#[test]
fn the_first_requests_wait_and_go_by_the_best_path_in_their_order() {
    let mut node = node();
    for match_bits in 0..3 {
        put(&mut node, nid(1, 11), match_bits);
    }
    assert_eq!((sent(&mut node), wanted(&mut node)), (vec![], vec![nid(1, 11)]));
    assert_eq!(node.shard.poll_timeout(), Some(NOW + GATED_MAX));
    // It is being discovered; others may be known meanwhile.
    let other = PeerView::new(false, vec![PeerNid::new(nid(1, 40), HEALTH_MAX)]).unwrap();
    let under_way = PeerView::new(false, vec![PeerNid::new(nid(1, 11), HEALTH_MAX)]).unwrap();
    let under_way = PeerView { is_gated: true, ..under_way };
    update(&mut node, topology(2, locals(), [under_way, other.clone()]));
    put(&mut node, nid(1, 11), 3);
    put(&mut node, nid(1, 40), 9);
    let [to_other] = sent(&mut node)[..] else { panic!("requests to a peer that is known do not wait") };
    assert_eq!(bits(&to_other), 9);
    node.shard.sent(NOW, to_other.tx, Status::Ok);
    assert_eq!(wanted(&mut node), []);
    // Its first net is ill, so all go by the other one, though they named a NID of the first.
    let known =
        peer(|peer| peer.nis.iter_mut().filter(|ni| ni.nid == nid(1, 11)).for_each(|ni| ni.health = 1));
    update(&mut node, topology(3, locals(), [known, other]));
    put(&mut node, nid(1, 11), 4);
    let sent = sent(&mut node);
    assert_eq!(sent.iter().map(bits).collect::<Vec<_>>(), [0, 1, 2, 3]);
    for transmit in &sent {
        let ends = (transmit.header.source.nid, transmit.header.destination.nid, transmit.next_hop);
        assert_eq!(ends, (nid(2, 1), nid(2, 11), nid(2, 11)));
        node.shard.sent(NOW, transmit.tx, Status::Ok);
    }
    assert_eq!((node.shard.counters().gated, node.events().len()), (4, 5));
    check_rest(&mut node);
}

#[test]
fn a_source_that_is_named_is_obeyed_after_the_wait() {
    let mut node = node();
    let md = node.shard.bind(&node.md(10)).unwrap();
    let target = ProcessId::lustre(nid(1, 11));
    put_by(&mut node, &PutRequest { target, self_nid: Some(nid(1, 1)), ..put_request(md, 0) });
    assert_eq!(sent(&mut node), []);
    let known = peer(|peer| peer.nis[1].health = 1);
    update(&mut node, topology(2, locals(), [known]));
    let [transmit] = sent(&mut node)[..] else { panic!("one message") };
    assert_eq!((transmit.header.source.nid, transmit.next_hop), (nid(1, 1), nid(1, 11)));
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    check_rest(&mut node);
}

/// A discovery that has failed lets all go on as they were asked for.
#[test]
fn what_waited_for_a_discovery_that_failed_goes_to_the_nid_that_it_was_given() {
    let mut node = node();
    put(&mut node, nid(1, 11), 1);
    let failed = PeerView::new(false, vec![PeerNid::new(nid(1, 11), HEALTH_MAX)]).unwrap();
    let failed = PeerView { is_wanted: true, ..failed };
    update(&mut node, topology(2, locals(), [failed.clone()]));
    let [transmit] = sent(&mut node)[..] else { panic!("one message") };
    assert_eq!(transmit.next_hop, nid(1, 11));
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    // The next one does not wait for the next attempt.
    assert_eq!(wanted(&mut node), [nid(1, 11)]);
    update(&mut node, topology(3, locals(), [failed]));
    put(&mut node, nid(1, 11), 2);
    let [transmit] = sent(&mut node)[..] else { panic!("one message") };
    assert_eq!((wanted(&mut node), node.shard.counters().gated), (vec![nid(1, 11)], 1));
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    check_rest(&mut node);
}

#[test]
fn none_waits_longer_than_its_limit_and_half_of_its_own_time() {
    // The limit is the least of 5 s, a try's share of the transaction timeout, and half of what the message
    // itself may take.
    let two_each = Tunables { transaction_timeout: Duration::from_secs(6), ..Tunables::DEFAULT };
    for (tunables, message_timeout, expected) in [
        (Tunables::DEFAULT, MESSAGE_TIMEOUT, GATED_MAX),
        (two_each, MESSAGE_TIMEOUT, Duration::from_secs(2)),
        (Tunables::DEFAULT, Duration::from_secs(1), Duration::from_millis(500)),
    ] {
        let locals = locals().into_iter().map(|ni| LocalNi { message_timeout, ..ni }).collect();
        let mut node = node_of(topology(1, locals, []).with_tunables(tunables));
        put(&mut node, nid(1, 11), 1);
        assert_eq!(node.shard.poll_timeout(), Some(NOW + expected));
        node.shard.handle_timeout(Instant((NOW + expected).0 - 1));
        assert_eq!(sent(&mut node), []);
        node.shard.handle_timeout(NOW + expected);
        let [transmit] = sent(&mut node)[..] else { panic!("one message") };
        assert_eq!(transmit.next_hop, nid(1, 11));
        node.shard.sent(NOW, transmit.tx, Status::Ok);
        check_rest(&mut node);
    }
}

/// A peer that answers no ping has its requests wait once, and not each of them: those behind the first go
/// with it, later ones at once.
#[test]
fn requests_to_a_silent_peer_wait_once() {
    let mut node = node_of(topology(1, locals(), []));
    let put_at = |node: &mut Node, now: Instant, host: u8, match_bits: u64| {
        let md = node.shard.bind(&node.md(10)).unwrap();
        let target = ProcessId::lustre(nid(1, host));
        node.shard.put(now, &PutRequest { target, match_bits, ..put_request(md, 0) }).unwrap();
    };
    let later = NOW + GATED_MAX / 2;
    put_at(&mut node, NOW, 11, 1);
    put_at(&mut node, later, 11, 2);
    put_at(&mut node, later, 12, 3);
    assert_eq!(sent(&mut node), []);
    let over = NOW + GATED_MAX;
    node.shard.handle_timeout(over);
    assert_eq!(sent(&mut node).iter().map(bits).collect::<Vec<_>>(), [1, 2]);
    put_at(&mut node, over, 11, 4);
    put_at(&mut node, over, 12, 5);
    assert_eq!(sent(&mut node).iter().map(bits).collect::<Vec<_>>(), [4]);
    node.shard.handle_timeout(later + GATED_MAX);
    assert_eq!(sent(&mut node).iter().map(bits).collect::<Vec<_>>(), [3, 5]);
}

/// Pings and pushes are what finds out, and what answers goes where it was asked.
#[test]
fn pings_responses_and_what_is_for_this_node_never_wait() {
    let loopback = LocalNi::loopback(MESSAGE_TIMEOUT);
    let mut locals = locals();
    locals.push(loopback);
    let mut node = node_of(topology(1, locals, []));
    let md = node.shard.bind(&node.md(0)).unwrap();
    let ping = PutRequest { target: ProcessId::lustre(nid(1, 11)), portal: 0, ..put_request(md, 0) };
    put_by(&mut node, &ping);
    assert_eq!((sent(&mut node).len(), wanted(&mut node)), (1, vec![]));
    put(&mut node, nid(2, 1), 1);
    assert!(node.shard.poll_transmit(NiId(2)).is_some(), "to itself");
    let spec = MdSpec { options: MdOptions::GET, ..node.md(8) };
    node.post(5, &spec);
    node.arrive(&crate::common::get_header(5, 8));
    assert_eq!(sent(&mut node).len(), 1, "a REPLY to a peer of which nothing is known");
    assert_eq!((wanted(&mut node), node.shard.counters().gated), (vec![], 0));
}

#[test]
fn what_nothing_finds_out_about_waits_for_nothing() {
    let mut node = node_of(topology(1, locals(), []).with_gated_requests(false));
    put(&mut node, nid(1, 11), 1);
    assert_eq!((sent(&mut node).len(), wanted(&mut node)), (1, vec![nid(1, 11)]));
    // More NIDs than are told at once: those beyond are not held, since nothing would find out about them.
    let limits = Limits { interfaces: 4, peers: 512, requests: 512, memory_descs: 512, ..config().limits };
    let limits = Limits { events: 2048, ..limits };
    let topology = Arc::new(topology(1, locals(), []));
    let mut node = Node::new(ShardConfig { limits, topology, ..config() });
    node.queue = node.shard.create_event_queue(1024).unwrap();
    for index in 0..300 {
        put(&mut node, Nid::from_small(2 << 48 | 1 << 32 | (index + 1000)).unwrap(), 1);
    }
    assert_eq!((node.shard.counters().gated, wanted(&mut node).len()), (256, 256));
}

/// The NI that a request would leave by goes: it is selected for at once, and fails if there is none.
#[test]
fn an_ni_that_goes_takes_no_request_along() {
    let mut node = node();
    put(&mut node, nid(1, 11), 1);
    let mut down = locals();
    down[0].status = NiStatus::Leaving;
    update(&mut node, topology(2, down, []));
    assert_eq!(sent(&mut node), []);
    assert_eq!(node.event().status(), Status::NeverSent(Cause::Unreachable));
    check_rest(&mut node);
}

#[test]
fn a_descriptor_that_is_unlinked_meanwhile_is_not_sent_from() {
    let mut node = node();
    let md = put(&mut node, nid(1, 11), 1);
    let _ = node.shard.unlink(md);
    update(&mut node, topology(2, locals(), [peer(|_| {})]));
    assert_eq!(sent(&mut node), []);
    let ended: Vec<_> = node.events().iter().map(lnet_core::event::Event::status).collect();
    assert!(ended.iter().all(|status| *status == Status::NeverSent(Cause::Cancelled)), "{ended:?}");
    check_rest(&mut node);
}
