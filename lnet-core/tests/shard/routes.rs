//! Messages to nets that this node is not on, and from there: gateways forward them.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::ShardConfig;
use lnet_core::limits::Limits;
use lnet_core::lnd::{Cause, LndFacts, NiId, Path, PathReport, RxId, Status, Transmit, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::{Criterion, GetRequest, PutRequest, SubmitError};
use lnet_core::stats::DropReason;
use lnet_core::topology::{
    GatewayNi, HEALTH_MAX, LocalNi, NetRoutes, NiStatus, PRIORITY_NONE, PeerMap, PeerNid, PeerView, Topology,
};
use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};

use crate::common::{FOREIGN, NOW, Node, config, local_ni, nid, put_request};

/// A NID behind gateways, and another one.
const FAR: (u16, u8) = (9, 5);
/// Two local nets.
pub(crate) const NIS: [NiId; 2] = [NiId(0), NiId(1)];

pub(crate) fn far() -> Nid {
    nid(FAR.0, FAR.1)
}

/// An NI of a gateway of its own, like any other.
pub(crate) fn gateway(net: u16, host: u8) -> GatewayNi {
    let nid = nid(net, host);
    let (awaits_link, priority, hops) = (false, 0, 1);
    let (health, ni_priority) = (HEALTH_MAX, PRIORITY_NONE);
    GatewayNi { nid, gateway: nid, awaits_link, priority, hops, health, ni_priority }
}

/// Routes to the nets of these NIDs by these gateways.
pub(crate) fn routes(to: &[(Nid, GatewayNi)]) -> Option<Arc<NetRoutes>> {
    let gateways = to.iter().map(|(_, ni)| ni.nid).collect();
    let nis = to.iter().map(|(far, ni)| (far.net(), *ni)).collect();
    Some(Arc::new(NetRoutes::new(nis, gateways)))
}

/// A node on `tcp1` and `tcp2`.
pub(crate) fn topology(by: &[GatewayNi]) -> Topology {
    let locals = vec![local_ni(nid(1, 1), 16, 4), local_ni(nid(2, 1), 16, 4)];
    let by: Vec<_> = by.iter().map(|ni| (far(), *ni)).collect();
    Topology::new(locals).with_net_routes(routes(&by))
}

pub(crate) fn node_of(topology: Topology) -> Node {
    let limits = Limits { peers: 64, ..config().limits };
    Node::new(ShardConfig { topology: Arc::new(topology), limits, ..config() })
}

pub(crate) fn update(node: &mut Node, topology: Topology) {
    let generation = node.shard.topology().generation() + 1;
    node.shard.update(NOW, Arc::new(topology.with_generation(generation)));
}

pub(crate) fn put(node: &mut Node, to: Nid) {
    put_from(node, to, None);
}

pub(crate) fn put_from(node: &mut Node, to: Nid, self_nid: Option<Nid>) {
    let md = node.shard.bind(&node.md(10)).unwrap();
    let target = ProcessId::lustre(to);
    node.shard.put(NOW, &PutRequest { target, self_nid, ..put_request(md, 0) }).unwrap();
}

pub(crate) fn sent(node: &mut Node) -> Vec<Transmit> {
    let by = |node: &mut Node, ni| node.shard.poll_transmit(NOW, ni).map(|lent| *lent.transmit);
    NIS.into_iter().flat_map(|ni| std::iter::from_fn(|| by(node, ni)).collect::<Vec<_>>()).collect()
}

/// The only message that leaves.
#[track_caller]
pub(crate) fn one(node: &mut Node) -> Transmit {
    let sent = sent(node);
    assert_eq!(sent.len(), 1, "{sent:?}");
    sent[0]
}

/// The next hops of messages that are sent one after the other.
fn hops(node: &mut Node, to: Nid, count: usize) -> Vec<Nid> {
    (0..count)
        .map(|_| {
            put(node, to);
            let sent = one(node);
            node.shard.sent(NOW, sent.tx, Status::Ok);
            node.events();
            sent.next_hop
        })
        .collect()
}

/// All has come home.
#[track_caller]
pub(crate) fn check_rest(node: &mut Node) {
    assert_eq!(sent(node), []);
    assert_eq!((node.shard.usage().messages, node.shard.poll_timeout()), (0, None));
    for peer in node.shard.peers() {
        assert_eq!(peer.credits, i64::from(peer.credits_max), "{peer:?}");
        assert_eq!((peer.queued_bytes, peer.reference_count), (0, u32::from(peer.is_own)), "{peer:?}");
    }
    assert!(NIS.iter().all(|ni| node.shard.is_quiet(*ni)));
}

#[test]
fn a_gateway_takes_what_is_for_its_net_and_without_one_it_ends_at_once() {
    let mut node = node_of(topology(&[gateway(1, 7)]));
    put(&mut node, far());
    let message = one(&mut node);
    let ends = (message.header.source.nid, message.next_hop, message.header.destination.nid);
    assert_eq!(ends, (nid(1, 1), nid(1, 7), far()));
    assert_eq!(node.shard.peer_credits(&nid(1, 7)), Some(3), "the gateway's credits count");
    node.shard.sent(NOW, message.tx, Status::Ok);
    assert_eq!(node.event().status(), Status::Ok);
    put(&mut node, nid(8, 5));
    assert_eq!(node.event().status(), Status::NeverSent(Cause::Unreachable));
    update(&mut node, topology(&[]));
    put(&mut node, far());
    assert_eq!(node.event().status(), Status::NeverSent(Cause::Unreachable));
    check_rest(&mut node);
}

#[test]
fn a_source_that_is_named_is_obeyed() {
    let mut node = node_of(topology(&[gateway(1, 7), gateway(2, 7)]));
    for _ in 0..4 {
        put_from(&mut node, far(), Some(nid(2, 1)));
        let message = one(&mut node);
        assert_eq!((message.ni, message.next_hop), (NIS[1], nid(2, 7)));
        node.shard.sent(NOW, message.tx, Status::Ok);
    }
    node.events();
    update(&mut node, topology(&[gateway(1, 7)]));
    put_from(&mut node, far(), Some(nid(2, 1)));
    assert_eq!(node.event().status(), Status::NeverSent(Cause::Unreachable), "no gateway is on its net");
    put_from(&mut node, far(), Some(nid(2, 9)));
    assert_eq!(node.event().status(), Status::NeverSent(Cause::Unreachable), "it is no NID of this node");
    check_rest(&mut node);
}

/// Which gateway a message goes by, and by which criteria the others are left out.
fn explained(node: &Node) -> (Nid, Vec<Criterion>) {
    let explanation = node.shard.explain(NOW, &far());
    let choice = explanation.choice.unwrap();
    let step = explanation.steps.iter().find(|step| {
        step.iter().any(|weighed| weighed.values.iter().any(|(criterion, _)| *criterion == Criterion::Hops))
    });
    let lost = step.unwrap().iter().filter_map(|weighed| weighed.lost_by).collect();
    (choice.next_hop, lost)
}

/// The peer behind the gateways.
fn peer(is_multi_rail: bool) -> PeerMap {
    let mut peers = PeerMap::default();
    peers.insert(PeerView::new(is_multi_rail, vec![PeerNid::new(far(), HEALTH_MAX)]).unwrap());
    peers
}

#[test]
fn each_criterion_decides_in_its_turn() {
    let [first, second] = [gateway(1, 7), gateway(1, 8)];
    // Faults of the first gateway, that by the weakest criterion first: each outweighs those before it.
    let worse: [(Criterion, GatewayNi, GatewayNi); 5] = [
        (Criterion::PeerPriority, first, GatewayNi { ni_priority: 1, ..second }),
        (Criterion::PeerHealth, GatewayNi { health: 900, ni_priority: 0, ..first }, second),
        (Criterion::Hops, GatewayNi { hops: 2, ..first }, GatewayNi { health: 1, ..second }),
        (Criterion::RoutePriority, GatewayNi { priority: 1, ..first }, GatewayNi { hops: 9, ..second }),
        (Criterion::Link, GatewayNi { awaits_link: true, ..first }, GatewayNi { priority: 9, ..second }),
    ];
    for (criterion, first, second) in worse {
        let node = node_of(topology(&[first, second]));
        assert_eq!(explained(&node), (second.nid, vec![criterion]));
    }
    let preferring = |pattern: &str| {
        let second = GatewayNi { priority: 9, ..second };
        let nis = [first, second].map(|ni| (far().net(), ni)).to_vec();
        let preferences = vec![(pattern.parse().unwrap(), [second.gateway].into())];
        let routes = NetRoutes::new(nis, vec![first.nid, second.nid]).with_preferences(preferences);
        node_of(topology(&[]).with_net_routes(Some(Arc::new(routes))))
    };
    assert_eq!(explained(&preferring("10.0.0.6@tcp9")), (first.nid, vec![Criterion::RoutePriority]));
    let mut node = preferring("10.0.0.5@tcp9");
    assert_eq!(explained(&node), (second.nid, vec![Criterion::Preferred]));
    node.shard.path_health(NOW, &Path { ni: NIS[0], peer: second.nid }, PathReport::Silent);
    assert_eq!(explained(&node), (first.nid, vec![Criterion::Answers]));
}

#[test]
fn equal_gateways_are_used_by_their_load_and_in_turn() {
    let two = || topology(&[gateway(1, 7), gateway(1, 8)]);
    let mut node = node_of(two());
    // One message waits for the first one.
    put(&mut node, nid(1, 7));
    assert_eq!(explained(&node), (nid(1, 8), vec![Criterion::QueuedBytes]));
    let message = one(&mut node);
    node.shard.sent(NOW, message.tx, Status::Ok);
    // The first gateway was used directly, and is used again.
    assert_eq!(explained(&node), (nid(1, 7), vec![]));
    assert_eq!(hops(&mut node, far(), 4), [7, 8, 7, 8].map(|host| nid(1, host)));
    assert_eq!(explained(&node), (nid(1, 7), vec![Criterion::PeerSequence]));
    // The second is on a net where peers have more credits.
    let locals = vec![local_ni(nid(1, 1), 16, 4), local_ni(nid(2, 1), 16, 8)];
    let by = [gateway(1, 7), gateway(2, 8)].map(|ni| (far(), ni));
    let node = node_of(Topology::new(locals).with_net_routes(routes(&by)));
    assert_eq!(explained(&node), (nid(2, 8), vec![Criterion::PeerCredits]));
}

#[test]
fn many_gateways_are_all_used() {
    let many: Vec<_> = (10..40).map(|host| gateway(1, host)).collect();
    let mut node = node_of(topology(&many));
    let (_, lost) = explained(&node);
    assert_eq!(lost.iter().filter(|lost| **lost == Criterion::Turn).count(), 22, "{lost:?}");
    let mut used = hops(&mut node, far(), 30);
    used.sort();
    assert_eq!(used, many.iter().map(|ni| ni.nid).collect::<Vec<_>>());
}

/// A peer that is not Multi-Rail gets its messages from one NI, and others from all.
#[test]
fn a_peer_that_is_not_multi_rail_sees_one_source() {
    let by = [(1, 7), (1, 8), (2, 7), (2, 8)].map(|(net, host)| gateway(net, host));
    for is_multi_rail in [false, true] {
        let mut node = node_of(topology(&by).with_peers(peer(is_multi_rail)));
        let mut used: Vec<Nid> = hops(&mut node, far(), 8);
        used.sort();
        used.dedup();
        let nets: std::collections::BTreeSet<_> = used.iter().map(Nid::net).collect();
        assert_eq!((used.len(), nets.len()), if is_multi_rail { (4, 2) } else { (2, 1) });
    }
    // The source that is recorded for it.
    for net in [1, 2] {
        let ni = PeerNid { preferred: [nid(net, 1)].into(), ..PeerNid::new(far(), HEALTH_MAX) };
        let mut peers = PeerMap::default();
        peers.insert(PeerView::new(false, vec![ni]).unwrap());
        let node = node_of(topology(&by).with_peers(peers));
        assert_eq!(explained(&node), (nid(net, 7), vec![Criterion::Source; 2]));
    }
}

/// The best NID of a Multi-Rail peer on a net with a route is what a header names.
#[test]
fn nids_of_a_multi_rail_peer_take_turns() {
    let nids = [nid(9, 5), nid(9, 6), nid(8, 5), nid(7, 5)];
    let peers = |healths: [u32; 4]| {
        let nis = nids.iter().zip(healths).map(|(nid, health)| PeerNid::new(*nid, health)).collect();
        let mut peers = PeerMap::default();
        peers.insert(PeerView::new(true, nis).unwrap());
        peers
    };
    let table = routes(&[(nid(9, 1), gateway(1, 7)), (nid(8, 1), gateway(2, 7))]);
    let topology = |healths| {
        let locals = vec![local_ni(nid(1, 1), 16, 4), local_ni(nid(2, 1), 16, 4)];
        Topology::new(locals).with_net_routes(table.clone()).with_peers(peers(healths))
    };
    let mut node = node_of(topology([HEALTH_MAX; 4]));
    let to = |node: &mut Node, named: Nid| {
        put(node, named);
        let message = one(node);
        node.shard.sent(NOW, message.tx, Status::Ok);
        (message.header.destination.nid, message.next_hop)
    };
    let mut used: Vec<_> = (0..3).map(|_| to(&mut node, nids[3])).collect();
    used.sort();
    assert_eq!(used, [(nids[2], nid(2, 7)), (nids[0], nid(1, 7)), (nids[1], nid(1, 7))]);
    // The other net takes what the one gateway to a net does not, at once and from then on.
    let mut node_without = node_of(topology([HEALTH_MAX; 4]));
    let silent = loop {
        put(&mut node_without, nids[0]);
        let message = one(&mut node_without);
        if message.next_hop == nid(1, 7) {
            break message;
        }
        node_without.shard.sent(NOW, message.tx, Status::Ok);
        node_without.events();
    };
    node_without.shard.sent(NOW, silent.tx, Status::NeverSent(Cause::Timeout));
    let again = one(&mut node_without);
    assert_eq!((again.header.destination.nid, again.next_hop), (nids[2], nid(2, 7)));
    node_without.shard.sent(NOW, again.tx, Status::Ok);
    node_without.events();
    assert!((0..4).all(|_| to(&mut node_without, nids[0]) == (nids[2], nid(2, 7))));
    update(&mut node, topology([900, HEALTH_MAX, HEALTH_MAX - 1, HEALTH_MAX]));
    assert!((0..3).all(|_| to(&mut node, nids[0]) == (nids[1], nid(1, 7))));
    // A NI that has its net leads there directly.
    update(&mut node, topology([1, 1, 1, 1]).with_net_routes(None));
    put(&mut node, nids[0]);
    assert_eq!(node.events().last().unwrap().status(), Status::NeverSent(Cause::Unreachable));
    check_rest(&mut node);
}

/// A message from a far node, by a gateway.
pub(crate) fn put_from_far(ack: bool) -> Header {
    let ack_md = if ack { FOREIGN } else { WireHandle::NONE };
    let body = Body::Put { ack_md, match_bits: 5, hdr_data: 0, portal: 4, offset: 0 };
    let [destination, source] = [nid(1, 1), far()].map(ProcessId::lustre);
    Header { destination, source, payload_length: 10, body }
}

/// Posts a descriptor for what comes from far.
pub(crate) fn post(node: &mut Node) {
    let sink = MdSpec { options: MdOptions::PUT, ..node.md(100) };
    node.post(5, &sink);
}

/// The header arrives by a node, whole if it is taken.
pub(crate) fn arrive(node: &mut Node, by: Nid, header: &Header) -> Verdict {
    let verdict = node.shard.header(NOW, NIS[0], &by, RxId(0), header);
    if verdict != Verdict::Drop {
        node.shard.received(NOW, RxId(0), Status::Ok);
    }
    verdict
}

#[test]
fn what_comes_by_a_gateway_is_answered_by_it() {
    let mut node = node_of(topology(&[gateway(1, 7), gateway(1, 8)]));
    for by in [nid(1, 8), nid(1, 7), nid(1, 8)] {
        post(&mut node);
        assert_ne!(arrive(&mut node, by, &put_from_far(true)), Verdict::Drop);
        let ack = one(&mut node);
        assert_eq!((ack.next_hop, ack.header.destination.nid, ack.header.source.nid), (by, far(), nid(1, 1)));
        node.shard.sent(NOW, ack.tx, Status::Ok);
        node.events();
    }
    let body = Body::Get { return_md: FOREIGN, match_bits: 6, portal: 4, offset: 0, sink_length: 10 };
    let get = Header { payload_length: 0, body, ..put_from_far(false) };
    let source = MdSpec { options: MdOptions::GET, ..node.md(10) };
    node.post(6, &source);
    let verdict = arrive(&mut node, nid(1, 7), &get);
    assert_ne!(verdict, Verdict::Drop);
    let reply = one(&mut node);
    assert_eq!((reply.next_hop, reply.header.destination.nid), (nid(1, 7), far()));
    node.shard.sent(NOW, reply.tx, Status::Ok);
    check_rest(&mut node);
}

#[test]
fn only_gateways_bring_what_is_from_far() {
    for (topology, by) in [
        (topology(&[gateway(1, 7)]), nid(1, 8)),
        (topology(&[]), nid(1, 7)),
        (topology(&[gateway(1, 7)]).with_net_routes(None), nid(1, 7)),
    ] {
        let mut node = node_of(topology);
        post(&mut node);
        assert_eq!(arrive(&mut node, by, &put_from_far(true)), Verdict::Drop);
        assert_eq!(node.shard.counters().drops(DropReason::ForgedSource).messages, 1);
        let forged = node.shard.poll_forged().unwrap();
        assert_eq!((forged.from, forged.source), (by, far()));
    }
    // Not even a gateway speaks for a node on this node's own net.
    let mut node = node_of(topology(&[gateway(1, 7)]));
    let near = Header { source: ProcessId::lustre(nid(1, 5)), ..put_from_far(true) };
    assert_eq!(arrive(&mut node, nid(1, 7), &near), Verdict::Drop);
    assert_eq!(node.shard.counters().drops(DropReason::ForgedSource).messages, 1);
}

#[test]
fn a_response_goes_by_another_gateway_if_its_own_is_none_any_more() {
    for (by, expected) in [(vec![gateway(1, 8)], Some(nid(1, 8))), (vec![], None)] {
        let mut node = node_of(topology(&[gateway(1, 7)]));
        post(&mut node);
        let verdict = node.shard.header(NOW, NIS[0], &nid(1, 7), RxId(0), &put_from_far(true));
        assert_ne!(verdict, Verdict::Drop);
        update(&mut node, topology(&by));
        node.shard.received(NOW, RxId(0), Status::Ok);
        let acks: Vec<_> = sent(&mut node);
        assert_eq!(acks.first().map(|ack| ack.next_hop), expected);
        acks.iter().for_each(|ack| node.shard.sent(NOW, ack.tx, Status::Ok));
        assert_eq!(node.shard.counters().send_failures, u64::from(expected.is_none()));
        assert_eq!(node.event().status(), Status::Ok);
        check_rest(&mut node);
    }
}

/// Sends as many messages as the gateway has credits for, and two that wait.
pub(crate) fn fill(node: &mut Node) -> Vec<Transmit> {
    (0..6).for_each(|_| put(node, far()));
    let sent = sent(node);
    assert_eq!(sent.len(), 4, "the others wait");
    sent
}

#[test]
fn what_waits_goes_when_a_route_comes() {
    let mut node = node_of(topology(&[gateway(1, 7)]));
    let under_way = fill(&mut node);
    // Nothing is better than what they have.
    update(&mut node, topology(&[gateway(1, 7), gateway(1, 8)]));
    assert_eq!(sent(&mut node), []);
    update(&mut node, topology(&[]));
    assert_eq!((sent(&mut node), node.events()), (vec![], vec![]), "what was a gateway may go on");
    update(&mut node, topology(&[gateway(2, 8)]));
    let others = sent(&mut node);
    let ends: Vec<_> = others.iter().map(|message| (message.next_hop, message.header.source.nid)).collect();
    assert_eq!(ends, [(nid(2, 8), nid(2, 1)); 2]);
    for message in under_way.iter().chain(&others) {
        node.shard.sent(NOW, message.tx, Status::Ok);
    }
    let events = node.events();
    assert_eq!(events.len(), 6);
    assert!(events.iter().all(|event| event.status() == Status::Ok));
    check_rest(&mut node);
}

/// Messages in all stages: with an LND, ready for it, and waiting.
#[test]
fn a_route_goes_while_messages_are_under_way() {
    let mut node = node_of(topology(&[gateway(1, 7)]));
    (0..6).for_each(|_| put(&mut node, far()));
    let first = node.shard.poll_transmit(NOW, NIS[0]).map(|lent| *lent.transmit).unwrap();
    put_from(&mut node, far(), Some(nid(1, 1)));
    put(&mut node, nid(1, 7));
    update(&mut node, topology(&[]));
    update(&mut node, topology(&[gateway(1, 8)]));
    let mut hops: Vec<_> = Vec::new();
    loop {
        let messages = sent(&mut node);
        if messages.is_empty() {
            break;
        }
        for message in messages {
            hops.push((message.next_hop, message.header.destination.nid));
            node.shard.sent(NOW, message.tx, Status::Ok);
        }
    }
    hops.sort();
    let mut expected = vec![(nid(1, 7), nid(1, 7))];
    expected.extend([(nid(1, 8), far()); 6]);
    assert_eq!(hops, expected, "what is for the node itself that was a gateway stays");
    node.shard.sent(NOW, first.tx, Status::NeverSent(Cause::Cancelled));
    assert_eq!(node.events().len(), 8);
    check_rest(&mut node);
}

#[test]
fn what_a_gateway_does_not_take_goes_by_another_one() {
    for by in [vec![gateway(1, 7), gateway(1, 8)], vec![gateway(1, 7), gateway(2, 8)]] {
        for (is_known, cause) in [(false, Cause::Timeout), (true, Cause::Timeout), (true, Cause::Unreachable)]
        {
            let mut table = topology(&by);
            if is_known {
                table = table.with_peers(peer(true));
            }
            let mut node = node_of(table);
            put(&mut node, far());
            let first = one(&mut node);
            node.shard.sent(NOW, first.tx, Status::NeverSent(cause));
            let second = one(&mut node);
            assert_ne!(second.next_hop, first.next_hop, "{cause:?}");
            assert_eq!(second.header.destination.nid, far());
            node.shard.sent(NOW, second.tx, Status::Ok);
            assert_eq!(node.event().status(), Status::Ok);
            assert_eq!(hops(&mut node, far(), 2), [second.next_hop; 2], "the first one is silent");
            check_rest(&mut node);
        }
    }
    // The other NI of a gateway that does not answer comes after other gateways.
    let [mut one_ni, mut other_ni] = [gateway(1, 7), gateway(1, 9)];
    (one_ni.gateway, other_ni.gateway) = (nid(1, 7), nid(1, 7));
    let mut node = node_of(topology(&[one_ni, other_ni, gateway(2, 8)]));
    for _ in 0..3 {
        put(&mut node, far());
        let mut message = one(&mut node);
        if message.next_hop != nid(2, 8) {
            node.shard.sent(NOW, message.tx, Status::NeverSent(Cause::Timeout));
            message = one(&mut node);
        }
        assert_eq!(message.next_hop, nid(2, 8));
        node.shard.sent(NOW, message.tx, Status::Ok);
        node.events();
    }
    // A message that stays with its NI, and one to a peer that sees one source, go by another gateway on the
    // same net.
    let bound = topology(&[gateway(1, 7), gateway(1, 8), gateway(2, 9)]);
    let steady = topology(&[gateway(1, 7), gateway(1, 8)]).with_peers(peer(false));
    for (table, source) in [(bound, Some(nid(1, 1))), (steady, None)] {
        let mut node = node_of(table);
        put_from(&mut node, far(), source);
        let first = one(&mut node);
        node.shard.sent(NOW, first.tx, Status::NeverSent(Cause::Timeout));
        let second = one(&mut node);
        assert_eq!((second.ni, second.next_hop == first.next_hop), (first.ni, false));
        node.shard.sent(NOW, second.tx, Status::Ok);
        node.events();
        check_rest(&mut node);
    }
}

#[test]
fn what_is_for_a_gateway_waits_for_a_link() {
    let down = |awaits_carrier| {
        let ni = LocalNi { status: NiStatus::Down, awaits_carrier, ..local_ni(nid(1, 1), 16, 4) };
        Topology::new(vec![ni])
    };
    let waiting = routes(&[(far(), GatewayNi { awaits_link: true, ..gateway(1, 7) })]);
    let mut node = node_of(down(true).with_net_routes(waiting.clone()));
    put(&mut node, far());
    assert_eq!(one(&mut node).next_hop, nid(1, 7), "its LND has it wait");
    let mut node = node_of(down(false).with_net_routes(waiting));
    put(&mut node, far());
    assert_eq!(node.event().status(), Status::NeverSent(Cause::Unreachable));
}

/// The slot of a gateway says nothing of who is behind it.
#[test]
fn each_peer_behind_a_gateway_is_found_out_about() {
    let peers = |nids: &[Nid]| {
        let mut peers = PeerMap::default();
        for nid in nids {
            peers.insert(PeerView::new(false, vec![PeerNid::new(*nid, HEALTH_MAX)]).unwrap());
        }
        peers
    };
    let known = |nids: &[Nid]| topology(&[gateway(1, 7)]).with_peers(peers(nids)).with_gated_requests(true);
    let mut node = node_of(known(&[nid(1, 7)]).with_generation(1));
    // The gateway itself is known: what is for it goes.
    put(&mut node, nid(1, 7));
    let message = one(&mut node);
    node.shard.sent(NOW, message.tx, Status::Ok);
    let others = [far(), nid(9, 6)];
    others.iter().for_each(|nid| put(&mut node, *nid));
    // Each is told once, however many wait for it.
    put(&mut node, others[1]);
    assert_eq!(sent(&mut node), []);
    let wanted: Vec<_> = std::iter::from_fn(|| node.shard.poll_wanted()).collect();
    assert_eq!(wanted, others);
    update(&mut node, known(&[nid(1, 7), far()]));
    let message = one(&mut node);
    assert_eq!((message.next_hop, message.header.destination.nid), (nid(1, 7), far()));
    node.shard.sent(NOW, message.tx, Status::Ok);
    update(&mut node, known(&[nid(1, 7), far(), others[1]]));
    let messages = sent(&mut node);
    assert_eq!(messages.len(), 2);
    for message in messages {
        assert_eq!(message.header.destination.nid, others[1]);
        node.shard.sent(NOW, message.tx, Status::Ok);
    }
    assert_eq!(node.events().len(), 4);
    check_rest(&mut node);
}

/// A kernel node may be behind a gateway, whatever the LND is that leads to that.
#[test]
fn no_get_goes_behind_a_gateway_that_a_kernel_node_may_die_of() {
    let facts = LndFacts { takes_any_get: true, ..LndFacts::KERNEL };
    let locals = vec![LocalNi { facts, ..local_ni(nid(1, 1), 16, 4) }];
    let table = routes(&[(far(), gateway(1, 7))]);
    let mut node = node_of(Topology::new(locals).with_net_routes(table));
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(2), ..node.md(10) });
    let get = GetRequest {
        md: md.unwrap(),
        part: None,
        self_nid: None,
        target: ProcessId::lustre(far()),
        portal: 50,
        match_bits: 0,
        offset: 0,
    };
    assert_eq!(node.shard.get(NOW, &get), Err(SubmitError::OnlyPuts(50)));
    let near = GetRequest { target: ProcessId::lustre(nid(1, 7)), ..get };
    assert_eq!(node.shard.get(NOW, &near), Ok(()));
}

#[test]
fn what_is_behind_a_gateway_is_farther() {
    let far_ones =
        [GatewayNi { hops: 3, ..gateway(2, 7) }, GatewayNi { hops: 2, priority: 9, ..gateway(2, 8) }];
    let topology = topology(&far_ones);
    let [near, behind] = [nid(2, 9), far()].map(|nid| topology.distance(&nid).unwrap());
    assert_eq!((near.hops, behind.hops), (1, 3));
    assert_eq!((behind.source, behind.order), (near.source, near.order));
    assert_eq!(topology.distance(&nid(8, 1)), None);
}

/// A response that was promised is sent in time though nothing leads back at once.
#[test]
fn an_answer_to_what_was_delayed_goes_back_by_the_gateway() {
    let mut node = node_of(topology(&[gateway(1, 7)]));
    node.shard.set_lazy(4).unwrap();
    assert_eq!(node.shard.header(NOW, NIS[0], &nid(1, 7), RxId(0), &put_from_far(true)), Verdict::Delay);
    post(&mut node);
    assert!(matches!(node.shard.poll_resume(), Some((_, RxId(0), Verdict::Deliver(_)))));
    node.shard.received(NOW + Duration::from_secs(1), RxId(0), Status::Ok);
    assert_eq!(one(&mut node).next_hop, nid(1, 7));
}
