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
