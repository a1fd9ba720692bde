//! Requests that wait for the name that their sender is to go by.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::ShardConfig;
use lnet_core::event::Event;
use lnet_core::limits::Limits;
use lnet_core::lnd::{NiId, RxId, Status, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::mesh::MeshMessage;
use lnet_core::shard::{ACK_WAIT, NAME_WAIT};
use lnet_core::stats::{DelayReason, DropReason};
use lnet_core::time::Instant;
use lnet_core::topology::{NiStatus, PeerMap, PeerNid, PeerView, Steering, Topology};
use lnet_wire::steer::{PORTALS, Policy};
use lnet_wire::{Body, Header, ProcessId};

use crate::common::{
    NI, NOW, Node, ack_header, acked_put_header, config, from, get_header, local_ni, nid, poll_mesh,
    put_header,
};
use crate::mesh::Shards;

fn topology(generation: u64, peers: Vec<PeerView>) -> Arc<Topology> {
    let mut map = PeerMap::default();
    peers.into_iter().for_each(|peer| map.insert(peer));
    let topology = Topology::new(vec![local_ni(nid(1, 1), 8, 4)]);
    Arc::new(topology.with_peers(map).with_generation(generation))
}

fn known(hosts: &[u8]) -> PeerView {
    let nis = hosts.iter().map(|host| PeerNid::new(nid(1, *host), 1000)).collect();
    PeerView::new(true, nis).unwrap()
}

/// A node that knows host 2, and that the peer claims host 3. An entry names host 2.
fn node() -> Node {
    let topology = topology(1, vec![known(&[2]), PeerView::in_question(nid(1, 3))]);
    let mut node = Node::new(ShardConfig { topology, ..config() });
    let md = MdSpec { options: MdOptions::PUT, ..node.md(64) };
    let of_first = EntrySpec { source: ProcessId::lustre(nid(1, 2)), ..EntrySpec::new(4, 5) };
    let entry = node.shard.attach_entry(&of_first).unwrap();
    node.shard.attach(entry, &md).unwrap();
    node
}

fn arrive(node: &mut Node, now: Instant, rx: u32, header: &Header) -> Verdict {
    node.shard.header(now, NI, &header.source.nid, RxId(rx), header)
}

fn resumed(node: &mut Node) -> Vec<(NiId, RxId, Verdict)> {
    std::iter::from_fn(|| node.shard.poll_resume()).collect()
}

/// A request that waits is matched under the name that is proven.
#[test]
fn a_request_goes_on_under_the_name_that_is_proven() {
    let mut node = node();
    let put = from(3, put_header(5, 8));
    assert_eq!(arrive(&mut node, NOW, 0, &put), Verdict::Delay);
    assert_eq!((node.shard.poll_waiting(), node.shard.poll_waiting()), (Some(nid(1, 3)), None));
    assert_eq!(node.shard.wanted_count(), 1, "its driver is to hear of it at once");
    assert_eq!(arrive(&mut node, NOW, 1, &from(3, put_header(6, 8))), Verdict::Delay);
    assert_eq!(node.shard.poll_waiting(), None, "it is told once");
    assert_eq!(node.shard.counters().delays(DelayReason::Name), 2);
    assert_eq!(node.shard.poll_timeout(), Some(NOW + NAME_WAIT));
    // A snapshot that says nothing of it changes nothing.
    node.shard.update(NOW, topology(2, vec![known(&[2]), PeerView::in_question(nid(1, 3))]));
    assert_eq!(resumed(&mut node), []);
    node.shard.update(NOW, topology(3, vec![known(&[2, 3])]));
    let [(_, first, Verdict::Deliver(_)), (_, second, Verdict::Drop)] = resumed(&mut node)[..] else {
        panic!("both go on, in their order")
    };
    assert_eq!((first, second), (RxId(0), RxId(1)));
    node.shard.received(NOW, first, Status::Ok);
    let Event::Put { origin, .. } = node.event() else { panic!("a PUT") };
    assert_eq!((origin.initiator.nid, origin.source), (nid(1, 2), nid(1, 3)));
    assert_eq!((node.shard.usage().delayed, node.shard.poll_timeout()), (0, None));
}

/// A request is matched under its own name after a second, which is no refusal: this entry is another one's.
#[test]
fn a_request_waits_a_second_at_most() {
    let topology = topology(1, vec![known(&[2]), PeerView::in_question(nid(1, 3))]);
    let mut node = Node::new(ShardConfig { topology, ..config() });
    let md = MdSpec { options: MdOptions::PUT, ..node.md(64) };
    node.post(6, &md);
    assert_eq!(arrive(&mut node, NOW, 0, &from(3, put_header(6, 8))), Verdict::Delay);
    node.shard.handle_timeout(NOW + (NAME_WAIT - Duration::from_nanos(1)));
    assert_eq!(resumed(&mut node), []);
    node.shard.handle_timeout(NOW + NAME_WAIT);
    let [(_, rx, Verdict::Deliver(_))] = resumed(&mut node)[..] else { panic!("it goes on") };
    node.shard.received(NOW, rx, Status::Ok);
    let Event::Put { origin, .. } = node.event() else { panic!("a PUT") };
    assert_eq!(origin.initiator.nid, nid(1, 3));
}

/// Responses, and what finds out names, wait for none; nor do requests of other peers.
#[test]
fn nothing_else_waits() {
    let mut node = node();
    let bound = node.shard.bind(&node.md(8)).unwrap();
    let mut ping = from(3, get_header(1 << 63, 8));
    let Body::Get { portal, .. } = &mut ping.body else { unreachable!() };
    *portal = 0;
    let mut push = from(3, put_header(1 << 63, 8));
    let Body::Put { portal, .. } = &mut push.body else { unreachable!() };
    *portal = 0;
    let others = [from(2, get_header(9, 8)), from(4, get_header(9, 8))];
    for (rx, header) in (0..).zip([ping, push, from(3, ack_header(bound))].into_iter().chain(others)) {
        assert_ne!(arrive(&mut node, NOW, rx, &header), Verdict::Delay, "{header:?}");
    }
    assert_eq!(node.shard.poll_waiting(), None);
    // Another peer may not have its messages wait in the name of the one in question.
    let forged = node.shard.header(NOW, NI, &nid(1, 2), RxId(9), &from(3, put_header(5, 8)));
    assert_eq!((forged, node.shard.counters().drops(DropReason::ForgedSource).messages), (Verdict::Drop, 1));
}

/// Without room a request does not wait, and is not refused for that.
#[test]
fn a_request_that_finds_no_room_is_matched_at_once() {
    let mut node = node();
    let limits = Limits { delayed: 4, ..config().limits };
    let topology = topology(1, vec![PeerView::in_question(nid(1, 3))]);
    let mut small = Node::new(ShardConfig { limits, topology, ..config() });
    let md = MdSpec { options: MdOptions::PUT, ..small.md(64) };
    for _ in 0..4 {
        small.post(5, &md);
    }
    let verdicts: Vec<_> = (0..6).map(|rx| arrive(&mut small, NOW, rx, &from(3, put_header(5, 8)))).collect();
    let waiting = verdicts.iter().filter(|verdict| **verdict == Verdict::Delay).count();
    assert_eq!(waiting, 2, "half of the room: {verdicts:?}");
    assert!(verdicts[2..].iter().all(|verdict| matches!(verdict, Verdict::Deliver(_))), "{verdicts:?}");
    // The LND may give them up meanwhile.
    assert_eq!(arrive(&mut node, NOW, 0, &from(3, put_header(5, 8))), Verdict::Delay);
    node.shard.received(NOW, RxId(0), Status::Unknown(lnet_core::lnd::Cause::Reset));
    assert_eq!((node.shard.usage().delayed, node.shard.poll_timeout()), (0, None));
}

/// A peer takes for granted that what it has pushed is known once that is acknowledged: the ACK waits until
/// who takes pushes says so, a second at most, and for nothing else.
#[test]
fn a_late_ack_waits_for_who_made_the_descriptor() {
    let mut node = Node::new(config());
    for round in [0, 1] {
        let md = MdSpec { options: MdOptions::PUT | MdOptions::ACK_LATE, ..node.md(64) };
        node.post(7, &md);
        node.arrive(&acked_put_header(7, 8));
        let Event::Put { .. } = node.event() else { panic!("a PUT") };
        node.shard.update(NOW, topology(2 + round, vec![known(&[2, 3])]));
        assert!(node.transmit().is_none(), "a snapshot alone may know nothing of it");
        assert_eq!(node.shard.poll_timeout(), Some(NOW + ACK_WAIT));
        // An ACK that is not late overtakes it.
        node.post(8, &MdSpec { options: MdOptions::PUT, ..node.md(64) });
        node.arrive(&acked_put_header(8, 8));
        assert!(
            node.transmit().is_some_and(|ack| matches!(ack.header.body, Body::Ack { match_bits: 8, .. }))
        );
        node.events();
        if round == 0 {
            node.shard.acknowledge(NOW);
        } else {
            node.shard.handle_timeout(NOW + ACK_WAIT);
        }
        let ack = node.transmit().expect("an ACK");
        assert!(matches!(ack.header.body, Body::Ack { match_bits: 7, manipulated_length: 8, .. }), "{ack:?}");
        node.shard.sent(NOW + ACK_WAIT, ack.tx, Status::Ok);
    }
    node.shard.acknowledge(NOW);
    assert!(node.transmit().is_none(), "each goes once");
}

/// An ACK that waits does not keep its NI: it goes with what was under way.
#[test]
fn a_late_ack_keeps_no_ni() {
    let mut node = Node::new(config());
    node.post(7, &MdSpec { options: MdOptions::PUT | MdOptions::ACK_LATE, ..node.md(64) });
    node.arrive(&acked_put_header(7, 8));
    let mut going = local_ni(nid(1, 1), 8, 4);
    going.status = NiStatus::Leaving;
    node.shard.update(NOW, Arc::new(Topology::new(vec![going]).with_generation(2)));
    assert!(node.transmit().is_some());
}

/// A sibling may have an older snapshot than the shard that a request has arrived on: it has the request wait
/// until it knows the name as well, or that it may go on without.
#[test]
fn a_sibling_that_does_not_know_the_name_yet_waits_for_it() {
    let mut policies = [Policy::Pin(0).pack().unwrap(); PORTALS];
    policies[4] = Policy::Pin(1).pack().unwrap();
    let snapshot = |generation, peers| {
        let topology = Topology::clone(&topology(generation, peers));
        Arc::new(topology.with_steering(Steering { shard_count: 2, policies }))
    };
    let asks = |generation| snapshot(generation, vec![known(&[2]), PeerView::in_question(nid(1, 3))]);
    let proven = |generation| snapshot(generation, vec![known(&[2, 3])]);
    for ends in ["the name is known", "its time is over", "it is withdrawn"] {
        let mut shards = Shards::new(2, Policy::Pin(1));
        shards.0[0].shard.update(NOW, proven(3));
        shards.0[1].shard.update(NOW, asks(2));
        for host in [2, 3] {
            let source = ProcessId::lustre(nid(1, host));
            let entry = EntrySpec { source, ..EntrySpec::new(4, 5) };
            let md = MdSpec { options: MdOptions::PUT, ..shards.0[1].md(64) };
            let entry = shards.0[1].shard.attach_entry(&entry).unwrap();
            shards.0[1].shard.attach(entry, &md).unwrap();
        }
        assert_eq!(shards.header(0, 7, &from(3, put_header(5, 8))), Verdict::Delay);
        assert!(matches!(shards.carry(0, 1), MeshMessage::Route { .. }));
        assert_eq!(poll_mesh(&mut shards.0[1].shard), None, "it waits");
        assert_eq!(shards.0[1].shard.poll_waiting(), Some(nid(1, 3)));
        let initiator = match ends {
            "the name is known" => {
                shards.0[1].shard.update(NOW, proven(3));
                2
            }
            "its time is over" => {
                shards.0[1].shard.handle_timeout(NOW + NAME_WAIT);
                3
            }
            _ => {
                shards.received(0, 7, Status::Unknown(lnet_core::lnd::Cause::Reset));
                assert!(matches!(shards.carry(0, 1), MeshMessage::Withdraw { .. }));
                assert!(matches!(shards.carry(1, 0), MeshMessage::Refuse { .. }));
                assert_eq!(shards.0[1].shard.usage().delayed, 0);
                continue;
            }
        };
        let MeshMessage::Lend { .. } = shards.carry(1, 0) else { panic!("{ends}") };
        assert!(matches!(shards.resume(0), Some((7, Verdict::Deliver(_)))));
        shards.received(0, 7, Status::Ok);
        shards.carry(0, 1);
        let Event::Put { origin, .. } = shards.0[1].event() else { panic!("a PUT") };
        assert_eq!(origin.initiator.nid, nid(1, initiator), "{ends}");
    }
}

/// A name from elsewhere of which the node cannot be told is not heard; those that speak from their own
/// addresses again have room of their own, and all have some once the node has been told.
#[test]
fn a_name_from_elsewhere_is_heard_once_the_node_can_be_told() {
    let mut node = node();
    let elsewhere = "10.0.9.9".parse().unwrap();
    let all = (10..90).filter(|host| node.shard.came_from(&nid(1, *host), elsewhere)).count();
    assert!((16..80).contains(&all), "{all}");
    assert!(!node.shard.came_from(&nid(1, 90), elsewhere));
    let home = nid(1, 91);
    assert!(node.shard.came_from(&home, home.ip().unwrap()));
    let told: Vec<_> = std::iter::from_fn(|| node.shard.poll_came_from()).collect();
    assert_eq!((told.len(), told.last()), (all + 1, Some(&(home, home.ip().unwrap()))));
    assert!(node.shard.came_from(&nid(1, 90), elsewhere));
}
