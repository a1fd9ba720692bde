//! Requests that wait until their peers are discovered.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::ShardConfig;
use lnet_core::event::EventKind;
use lnet_core::limits::Limits;
use lnet_core::lnd::{Cause, NiId, PING_MATCH_BITS, PING_PORTAL, Status, Transmit, Uplink};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::{GetRequest, PutRequest, SubmitError};
use lnet_core::time::Instant;
use lnet_core::topology::{
    FailedDiscovery, HEALTH_MAX, LocalNi, NiStatus, PeerMap, PeerNid, PeerView, Topology,
};
use lnet_core::tunables::Tunables;
use lnet_wire::{Nid, ProcessId};

use crate::common::{MESSAGE_TIMEOUT, NOW, Node, config, get_request, local_ni, nid, put_request};

/// How long a request waits at most with the default tunables.
const GATED_MAX: Duration = Tunables::DEFAULT.transaction_timeout;
const HOST_UNREACHABLE: u8 = 113;
const TIMED_OUT: u8 = 110;

fn locals() -> Vec<LocalNi> {
    vec![local_ni(nid(1, 1), 8, 4), local_ni(nid(2, 1), 8, 4)]
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
    let limits = Limits { nis: 4, ..config().limits };
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
    let by = |node: &mut Node, ni| node.shard.poll_transmit(NOW, NiId(ni)).map(|lent| *lent.transmit);
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

/// A peer that could not be discovered, as the snapshot with this generation was the first to tell.
fn undiscovered(generation: u64) -> PeerView {
    undiscovered_at(nid(1, 11), generation)
}

fn undiscovered_at(nid: Nid, generation: u64) -> PeerView {
    let view = PeerView::new(false, vec![PeerNid::new(nid, HEALTH_MAX)]).unwrap();
    let failed = Some(FailedDiscovery { generation, errno: HOST_UNREACHABLE });
    PeerView { is_wanted: true, is_gated: true, failed, ..view }
}

/// LNet ends what waited with the error of the discovery, at no cost to health; what comes later waits for
/// the next attempt (LNet `peer.c: lnet_peer_discovery_complete`).
#[test]
fn what_waited_for_a_discovery_that_failed_ends_with_its_error() {
    let failed = Status::NeverSent(Cause::Undiscovered(HOST_UNREACHABLE));
    let mut node = node();
    for match_bits in 1..3 {
        put(&mut node, nid(1, 11), match_bits);
    }
    assert_eq!(wanted(&mut node), [nid(1, 11)]);
    update(&mut node, topology(2, locals(), [undiscovered(2)]));
    assert_eq!(sent(&mut node), []);
    let statuses: Vec<_> = node.events().iter().map(lnet_core::event::Event::status).collect();
    assert_eq!(statuses, [failed; 2]);
    let counters = node.shard.counters();
    assert_eq!((counters.send_failures, counters.resends, counters.failed_resends), (2, 0, 0));
    assert_eq!((node.shard.poll_health(), wanted(&mut node)), (None, vec![]));
    check_rest(&mut node);
    // The next one waits for the next attempt, and what is told anew of the former one is not about that.
    put(&mut node, nid(1, 11), 3);
    assert_eq!((sent(&mut node), wanted(&mut node)), (vec![], vec![nid(1, 11)]));
    update(&mut node, topology(3, locals(), [undiscovered(2)]));
    assert_eq!((sent(&mut node), node.events().len()), (vec![], 0));
    update(&mut node, topology(4, locals(), [PeerView { is_wanted: false, ..undiscovered(2) }]));
    assert_eq!((sent(&mut node), node.events().len()), (vec![], 0));
    update(&mut node, topology(5, locals(), [undiscovered(5)]));
    assert_eq!((sent(&mut node), node.event().status()), (vec![], failed));
    // One that is discovered at last gets what waits for that.
    put(&mut node, nid(1, 11), 4);
    update(&mut node, topology(6, locals(), [peer(|_| {})]));
    let [transmit] = sent(&mut node)[..] else { panic!("one message") };
    assert_eq!((bits(&transmit), node.shard.counters().gated), (4, 4));
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    assert_eq!(node.event().status(), Status::Ok);
    check_rest(&mut node);
}

/// A GET that has waited in vain costs its peer no health for the answer that has not come; one that was sent
/// at last does.
#[test]
fn a_get_that_waited_in_vain_blames_no_peer() {
    for (change, sent_status, blamed) in [
        (
            Some(undiscovered_at(nid(2, 11), 2)),
            Status::NeverSent(Cause::Undiscovered(HOST_UNREACHABLE)),
            None,
        ),
        (None, Status::NeverSent(Cause::Undiscovered(TIMED_OUT)), None),
        (
            Some(PeerView { nis: vec![PeerNid::new(nid(2, 11), HEALTH_MAX)], ..peer(|_| {}) }),
            Status::Ok,
            Some(nid(2, 11)),
        ),
    ] {
        let mut node = node();
        let spec = MdSpec { threshold: Threshold::Count(2), options: MdOptions::NONE, ..node.md(10) };
        let md = node.shard.bind(&spec).unwrap();
        let target = ProcessId::lustre(nid(2, 11));
        let get = GetRequest { md, part: None, self_nid: None, target, portal: 4, match_bits: 1, offset: 0 };
        node.shard.get(NOW, &get).unwrap();
        if let Some(view) = change {
            update(&mut node, topology(2, locals(), [view]));
        }
        check_unanswered(&mut node, sent_status, blamed);
    }
}

/// What comes of a GET without an answer.
#[track_caller]
fn check_unanswered(node: &mut Node, sent_status: Status, blamed: Option<Nid>) {
    for transmit in sent(node) {
        node.shard.sent(NOW, transmit.tx, Status::Ok);
    }
    node.shard.handle_timeout(NOW + GATED_MAX);
    let ended: Vec<_> = node.events().iter().map(|event| (event.kind(), event.status())).collect();
    let unlinked = (EventKind::Unlink, Status::Unknown(Cause::Timeout));
    assert_eq!(ended, [(EventKind::Send, sent_status), unlinked]);
    assert_eq!(node.shard.poll_health().map(|note| note.nid), blamed);
    assert_eq!((node.shard.poll_health(), node.shard.counters().response_timeouts), (None, 1));
    check_rest(node);
}

#[test]
fn none_waits_longer_than_the_transaction_timeout() {
    let short = Tunables { transaction_timeout: Duration::from_secs(6), ..Tunables::DEFAULT };
    for tunables in [Tunables::DEFAULT, short] {
        let mut node = node_of(topology(1, locals(), []).with_tunables(tunables));
        put(&mut node, nid(1, 11), 1);
        let until = NOW + tunables.transaction_timeout;
        assert_eq!(node.shard.poll_timeout(), Some(until));
        node.shard.handle_timeout(Instant(until.0 - 1));
        assert_eq!((sent(&mut node), node.events().len()), (vec![], 0));
        node.shard.handle_timeout(until);
        let failed = Status::NeverSent(Cause::Undiscovered(TIMED_OUT));
        assert_eq!((sent(&mut node), node.event().status()), (vec![], failed));
        assert_eq!(node.shard.poll_health(), None);
        check_rest(&mut node);
    }
}

/// The time of a message itself begins when it has waited for its peer (LNet `lib-msg.c: lnet_msg_commit`).
#[test]
fn a_request_that_has_waited_has_all_of_its_time() {
    // The last moment at which it waits, before that is noticed, counts as the others.
    for waited in [Duration::from_secs(3), GATED_MAX] {
        let message_timeout = Duration::from_secs(1);
        let one_credit = || vec![LocalNi { message_timeout, ..local_ni(nid(1, 1), 1, 1) }];
        let known = PeerView::new(false, vec![PeerNid::new(nid(1, 11), HEALTH_MAX)]).unwrap();
        let mut node = node_of(topology(1, one_credit(), []));
        for match_bits in 1..3 {
            put(&mut node, nid(1, 11), match_bits);
        }
        let later = NOW + waited;
        node.shard.update(later, Arc::new(topology(2, one_credit(), [known])));
        let [first] = sent(&mut node)[..] else { panic!("one has the credit") };
        assert_eq!((bits(&first), node.shard.poll_timeout()), (1, Some(later + message_timeout)));
        node.shard.sent(later, first.tx, Status::Ok);
        let [second] = sent(&mut node)[..] else { panic!("it has time left") };
        node.shard.sent(later, second.tx, Status::Ok);
        assert_eq!(node.events().iter().filter(|event| event.status() == Status::Ok).count(), 2);
        check_rest(&mut node);
    }
}

/// Each peer has its own time.
#[test]
fn requests_to_a_silent_peer_end_in_their_order() {
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
    node.shard.handle_timeout(NOW + GATED_MAX);
    assert_eq!((sent(&mut node), node.events().len()), (vec![], 1));
    put_at(&mut node, NOW + GATED_MAX, 11, 4);
    node.shard.handle_timeout(later + GATED_MAX);
    assert_eq!((sent(&mut node), node.events().len()), (vec![], 2));
    assert_eq!(node.shard.poll_timeout(), Some(NOW + GATED_MAX * 2));
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
    assert!(node.shard.poll_transmit(NOW, NiId(2)).is_some(), "to itself");
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
    let limits = Limits { nis: 4, peers: 512, requests: 512, memory_descs: 512, ..config().limits };
    let limits = Limits { events: 2048, ..limits };
    let topology = Arc::new(topology(1, locals(), []));
    let mut node = Node::new(ShardConfig { limits, topology, ..config() });
    node.queue = node.shard.create_event_queue(1024).unwrap();
    for index in 0..300 {
        put(&mut node, Nid::from_small(2 << 48 | 1 << 32 | (index + 1000)).unwrap(), 1);
    }
    assert_eq!((node.shard.counters().gated, wanted(&mut node).len()), (256, 256));
}

/// Requests that wait for a discovery leave room for the ping that ends their waiting.
#[test]
fn what_waits_for_a_discovery_leaves_room_for_its_ping() {
    let limits = Limits { nis: 4, requests: 128, memory_descs: 256, events: 1024, ..config().limits };
    let topology = Arc::new(topology(1, locals(), []));
    let mut node = Node::new(ShardConfig { limits, topology, ..config() });
    node.queue = node.shard.create_event_queue(512).unwrap();
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(200), ..node.md(1) }).unwrap();
    let mut put =
        || node.shard.put(NOW, &PutRequest { target: ProcessId::lustre(nid(1, 11)), ..put_request(md, 2) });
    let taken = (0..200).take_while(|_| put().is_ok()).count();
    assert!((100..128).contains(&taken), "{taken}");
    assert_eq!(put(), Err(SubmitError::RequestsFull));
    let sink = MdSpec { threshold: Threshold::Count(2), ..node.md(64) };
    let sink = node.shard.bind(&sink).unwrap();
    let target = ProcessId::lustre(nid(1, 11));
    let ping = GetRequest { target, portal: PING_PORTAL, match_bits: PING_MATCH_BITS, ..get_request(sink) };
    node.shard.get(NOW, &ping).unwrap();
    assert_eq!(sent(&mut node).len(), 1);
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

/// The peer has told meanwhile that the NID is not its own any more.
#[test]
fn a_request_that_waits_goes_to_another_nid_than_the_one_that_its_peer_has_lost() {
    let mut node = node();
    put(&mut node, nid(1, 11), 0);
    let map = |net, host| {
        let mut map = PeerMap::default();
        for nid in [nid(2, 11), nid(net, host)] {
            map.insert(PeerView::new(true, vec![PeerNid::new(nid, HEALTH_MAX)]).unwrap());
        }
        map
    };
    let snapshot = |map, generation| {
        Topology::new(locals()).with_peers(map).with_gated_requests(true).with_generation(generation)
    };
    let mut known = map(2, 11);
    known.set_former([(nid(1, 11), nid(2, 11))].into());
    update(&mut node, snapshot(known, 2));
    let [transmit] = sent(&mut node)[..] else { panic!("one message") };
    assert_eq!((transmit.header.source.nid, transmit.next_hop), (nid(2, 1), nid(2, 11)));
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    check_rest(&mut node);
    // Who gives that NID from now on means the node that has it now, which is yet to be discovered.
    put(&mut node, nid(1, 11), 0);
    let mut other = map(1, 12);
    other.set_former([(nid(1, 11), nid(2, 11))].into());
    update(&mut node, snapshot(other, 3));
    assert_eq!(sent(&mut node), []);
    update(&mut node, snapshot(map(1, 11), 4));
    let [transmit] = sent(&mut node)[..] else { panic!("one message") };
    assert_eq!(transmit.next_hop, nid(1, 11));
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    check_rest(&mut node);
}
