//! NIs that are given up and taken back, with their interface's rings.

use lnet_core::lnd::{NiId, Status};
use lnet_io::driver::Driver;

use super::super::XdpPort;
use super::node::{Node, Plan};
use super::{acquainted, carry};

/// All shards of a node give the NI up and take it back; in between they have no rings.
fn give_up_and_take_back(node: &mut Node, now: lnet_core::time::Instant) {
    let mut parts = Vec::new();
    for shard in &mut node.shards {
        shard.lnd.close_port(now, NiId(0), &mut shard.up, &shard.memory);
        let part = shard.lnd.remove_port(NiId(0));
        let XdpPort::Rings { frames: Some(_), rings: Some(_), .. } = &part else {
            panic!("frames and rings go with the last NI")
        };
        assert!(
            shard.lnd.is_empty() && shard.lnd.devices.lanes.is_empty() && shard.lnd.home.stock.is_empty()
        );
        parts.push(part);
    }
    for (shard, part) in node.shards.iter_mut().zip(parts) {
        shard.lnd.add_port(part);
    }
    node.settle_at(now);
    node.assert_frames_conserved();
}

#[test]
fn an_ni_that_comes_back_goes_on_with_its_rings() {
    let plan = |host| Plan { shards: 2, queues: 2, ..Plan::new(host) };
    let mut wire = acquainted(plan(1), plan(2));
    for round in 0..4_usize {
        let now = wire.now;
        give_up_and_take_back(&mut wire.nodes[round % 2], now);
        let received = |node: &Node| node.shards.iter().map(|shard| shard.up.received).sum::<u32>();
        let before = received(&wire.nodes[1]);
        for number in 0..8 {
            let [a, b] = &wire.nodes;
            let put = a.put(number, &b.plan, number.into(), 50_000);
            wire.submit(0, number as usize % 2, put);
        }
        wire.run();
        assert_eq!(received(&wire.nodes[1]), before + 8);
        wire.assert_frames_conserved();
    }
}

/// What is under way ends when the only NI goes, and the next one arrives.
#[test]
fn messages_of_an_ni_that_goes_end() {
    let mut wire = acquainted(Plan::new(1), Plan::new(2));
    let now = wire.now;
    let [a, b] = &mut wire.nodes;
    a.shards[0].up.sent.clear();
    for number in 0..4 {
        let put = a.put(number, &b.plan, number.into(), 200_000);
        a.shards[0].submit_at(now, put).unwrap();
    }
    give_up_and_take_back(a, now);
    let ends = &a.shards[0].up.sent[..];
    assert_eq!(ends.len(), 4, "{ends:?}");
    assert!(ends.iter().all(|(_, status)| *status != Status::Ok), "{ends:?}");
    assert_eq!(a.under_way(), 0);
    a.shards[0].up.sent.clear();
    // What was sent of them is lost.
    a.take_sent(0);
    carry(&mut wire, 70_000);
    wire.assert_frames_conserved();
}

/// All shards give up what carries an NI, which stays.
fn suspend(node: &mut Node) -> Vec<XdpPort> {
    let given_up = node.shards.iter_mut().map(|shard| shard.lnd.suspend_port(NiId(0)).unwrap());
    let parts: Vec<_> = given_up.collect();
    assert!(matches!(parts[0], XdpPort::Rings { frames: Some(_), rings: Some(_), .. }));
    assert!(node.shards.iter().all(|shard| shard.lnd.devices.lanes.is_empty() && !shard.lnd.is_empty()));
    parts
}

/// Messages wait while nothing carries their NI: those under way, and those that come meanwhile.
#[test]
fn messages_wait_for_what_carries_their_ni_next() {
    let plan = |host| Plan { shards: 2, queues: 2, ..Plan::new(host) };
    let mut wire = acquainted(plan(1), plan(2));
    let now = wire.now;
    let [a, b] = &mut wire.nodes;
    let received = |node: &Node| node.shards.iter().map(|shard| shard.up.received).sum::<u32>();
    let before = received(b);
    a.shards.iter_mut().for_each(|shard| shard.up.sent.clear());
    for number in 0..4 {
        let put = a.put(number, &b.plan, number.into(), 50_000);
        a.shards[number as usize % 2].submit_at(now, put).unwrap();
    }
    let parts = suspend(a);
    for number in 4..8 {
        let put = a.put(number, &b.plan, number.into(), 50_000);
        a.shards[number as usize % 2].submit_at(now, put).unwrap();
    }
    a.settle_at(now);
    assert!(a.shards.iter().all(|shard| shard.up.sent.is_empty()), "none ends");
    for (shard, part) in a.shards.iter_mut().zip(parts) {
        shard.lnd.add_port(part);
    }
    // Frames that were sent by the former rings are lost.
    (0..2).for_each(|queue| drop(wire.nodes[0].take_sent(queue)));
    wire.run();
    let [a, b] = &wire.nodes;
    assert_eq!(received(b), before + 8);
    let ends: Vec<_> = a.shards.iter().flat_map(|shard| &shard.up.sent).collect();
    assert!(ends.len() == 8 && ends.iter().all(|(_, status)| *status == Status::Ok), "{ends:?}");
    wire.assert_frames_conserved();
}

/// An NI that is closed while nothing carries it ends its messages, whether anything comes for it then or
/// not.
#[test]
fn an_ni_that_nothing_carries_can_be_closed() {
    for comes in [false, true] {
        let mut wire = acquainted(Plan::new(1), Plan::new(2));
        let now = wire.now;
        let [a, b] = &mut wire.nodes;
        let put = a.put(0, &b.plan, 0, 50_000);
        a.shards[0].up.sent.clear();
        a.shards[0].submit_at(now, put).unwrap();
        let part = suspend(a).pop().unwrap();
        let shard = &mut a.shards[0];
        shard.lnd.close_port(now, NiId(0), &mut shard.up, &shard.memory);
        shard.drive(now);
        assert_eq!(shard.up.sent.len(), 1);
        if comes {
            shard.lnd.add_port(part);
        }
        let back = shard.lnd.remove_port(NiId(0));
        assert!(matches!(back, XdpPort::Rings { frames: Some(_), rings: Some(_), .. }) == comes);
        assert!(matches!(back, XdpPort::Nothing(_)) != comes);
        assert!(shard.lnd.is_empty());
    }
}

#[test]
fn frames_of_closed_queues_find_their_way_home() {
    let plan = Plan { shards: 2, queues: 2, ..Plan::new(1) };
    let mut node = Node::new(plan);
    let mut frames = Vec::new();
    for shard in &mut node.shards {
        frames.extend((0..5).filter_map(|_| shard.lnd.home.stock.pop_back()));
    }
    let homes = [0, 1].map(|shard| node.shards[shard].lnd.home.stock.len());
    node.return_rings.send(frames);
    assert!(node.shards.iter_mut().all(|shard| shard.lnd.has_work()), "both hear of it");
    node.settle();
    assert_eq!([0, 1].map(|shard| node.shards[shard].lnd.home.stock.len()), homes.map(|home| home + 5));
    node.assert_frames_conserved();
}
