//! Hosts that say they have no node.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::lnd::{Cause, NiId, Status};
use lnet_wire::frame::Kind;

use super::wire::{Network, Node};

const SECOND: Duration = Duration::from_secs(1);
const REFUSED: Cause = Cause::System(111);

fn network() -> Network {
    Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 1)], 1)
}

/// The first node has so many shards, and messages of it wait for as long as those of an NI.
fn patient_network(shards: u8) -> Network {
    Network::new(vec![Node::patient(1, 1, shards, 49 * SECOND), Node::new(2, 1, 1)], 1)
}

fn put(network: &mut Network, number: u64, length: u32) {
    let (now, to) = (network.now, network.nodes[1].nids[0]);
    network.nodes[0].put(now, &to, 0, 4, number, length);
}

fn ping(network: &mut Network, number: u64) -> u32 {
    let (now, to) = (network.now, network.nodes[1].nids[0]);
    network.nodes[0].ping(now, &to, number)
}

/// The host of the second node says that it has none; by which NIs the first one had told of it before.
fn refuse(network: &mut Network) -> Vec<NiId> {
    refuse_shard(network, 0)
}

/// The host of the second node says so to one shard of the first.
fn refuse_shard(network: &mut Network, shard: usize) -> Vec<NiId> {
    let (now, nid) = (network.now, network.nodes[1].nids[0]);
    let shard = &mut network.nodes[0].shards[shard];
    let mut told = Vec::new();
    while let Some((ni, address)) = shard.xfer.poll_unanswered() {
        assert_eq!(address, nid);
        told.push(ni);
    }
    shard.xfer.refused(now, (NiId(0), nid), REFUSED, &mut shard.up);
    told
}

/// A host says that it has no node. A node may be starting there: what waits goes on waiting for a second.
#[test]
fn a_host_without_a_node_ends_nothing_while_one_may_be_starting() {
    let mut network = network();
    network.dead = vec![0];
    put(&mut network, 0, 10);
    put(&mut network, 1, 10_000);
    for _ in 0..9 {
        network.run(SECOND / 10);
        assert_eq!(refuse(&mut network), [], "at {:?}", network.now);
        assert_eq!(network.nodes[0].sent(), []);
    }
    network.dead.clear();
    network.run(SECOND);
    assert_eq!(network.nodes[0].sent(), [(0, Status::Ok), (1, Status::Ok)]);
    network.run(SECOND);
    network.nodes.iter().for_each(Node::assert_idle);
}

#[test]
fn a_host_without_a_node_ends_what_waits_once_none_can_be_starting() {
    let mut network = network();
    network.dead = vec![0];
    put(&mut network, 0, 10);
    put(&mut network, 1, 10_000);
    network.run(3 * SECOND / 2);
    assert_eq!(refuse(&mut network), [NiId(0)]);
    let never = Status::NeverSent(REFUSED);
    assert_eq!(network.nodes[0].sent(), [(0, never), (1, never)]);
    network.dead.clear();
    put(&mut network, 2, 10);
    network.run(SECOND);
    assert_eq!(network.nodes[0].sent()[2], (2, Status::Ok), "the next one asks again");
    network.run(SECOND);
    network.nodes.iter().for_each(Node::assert_idle);
}

/// Once a host has refused pings, these end, and nothing else does: a peer that was met may be about to come
/// back. Its session may be fresh, or the next life may have been asked for one.
#[test]
fn a_host_whose_node_was_met_ends_pings_alone() {
    for is_restarted in [false, true] {
        let mut network = patient_network(1);
        put(&mut network, 0, 10);
        network.run(SECOND);
        if is_restarted {
            // The next life is asked for its session, and its answer is lost.
            network.nodes[1] = Node::new(2, 2, 1);
            put(&mut network, 1, 10);
            let hellos = network.frames(Kind::Hello);
            let end = network.now + SECOND;
            while network.frames(Kind::Hello) == hellos {
                assert!(network.step(end));
            }
        }
        network.dead = vec![0];
        put(&mut network, 2, 10);
        let ping = ping(&mut network, 3);
        let ended = network.nodes[0].sent();
        for _ in 0..25 {
            network.run(SECOND / 10);
            assert_eq!(refuse(&mut network), []);
            assert_eq!(network.nodes[0].sent(), ended, "restarted: {is_restarted}");
        }
        let begun = network.now;
        while network.nodes[0].sent().len() == ended.len() {
            network.run(SECOND / 10);
            refuse(&mut network);
            // Three seconds, and what lies between two probes.
            assert!(network.now < begun + 2 * SECOND, "restarted: {is_restarted}");
        }
        let sent: Vec<_> = network.nodes[0].sent();
        let of_ping = sent.iter().find(|(tx, _)| *tx == ping).unwrap().1;
        let refused = [Status::NeverSent(REFUSED), Status::Unknown(REFUSED)];
        assert!(sent.len() == ended.len() + 1 && refused.contains(&of_ping), "{sent:?}");
        network.dead.clear();
        put(&mut network, 4, 10);
        network.run(3 * SECOND);
        for number in [2, 4] {
            assert!(network.nodes[1].arrived().contains(&(number, Status::Ok)), "{number}");
        }
    }
}

/// A host that is not reached, as behind a link that is down, says nothing of its node: pings wait for it.
#[test]
fn a_host_that_is_not_reached_ends_nothing_where_its_node_was_met() {
    let mut network = patient_network(1);
    put(&mut network, 0, 10);
    network.run(SECOND);
    network.dead = vec![0];
    ping(&mut network, 1);
    let ended = network.nodes[0].sent();
    for _ in 0..60 {
        network.run(SECOND / 10);
        let (now, nid) = (network.now, network.nodes[1].nids[0]);
        let shard = &mut network.nodes[0].shards[0];
        shard.xfer.refused(now, (NiId(0), nid), Cause::System(113), &mut shard.up);
        assert_eq!(network.nodes[0].sent(), ended);
    }
}

/// A ping goes on waiting where its peer answers by another path.
#[test]
fn a_host_that_answers_elsewhere_ends_no_ping() {
    let mut network = patient_network(1);
    for ni in [0, 1] {
        let (now, to) = (network.now, network.nodes[1].nids[usize::from(ni)]);
        network.nodes[0].put(now, &to, ni, 4, u64::from(ni), 10);
    }
    network.run(SECOND);
    network.dead = vec![0];
    let begun = network.nodes[0].sent().len();
    ping(&mut network, 2);
    for number in 3..60 {
        // The other path carries frames.
        let (now, to) = (network.now, network.nodes[1].nids[1]);
        network.nodes[0].put(now, &to, 1, 4, number, 10);
        network.run(SECOND / 10);
        refuse(&mut network);
        let sent = network.nodes[0].sent();
        assert!(sent[begun..].iter().all(|(_, status)| *status == Status::Ok), "{sent:?}");
    }
}

/// A shard that was never answered knows whom its siblings have met.
#[test]
fn a_host_whose_node_a_sibling_has_met_ends_pings_alone() {
    let mut network = patient_network(2);
    put(&mut network, 0, 10);
    network.run(SECOND);
    assert_eq!(network.nodes[0].sent(), [(0, Status::Ok)]);
    network.dead = vec![0];
    // The second shard, which sends its first messages.
    put(&mut network, 1, 10);
    let ping = ping(&mut network, 5);
    for _ in 0..25 {
        network.run(SECOND / 10);
        assert_eq!(refuse_shard(&mut network, 1), []);
        assert_eq!(network.nodes[0].sent(), [(0, Status::Ok)], "at {:?}", network.now);
    }
    network.run(2 * SECOND);
    refuse_shard(&mut network, 1);
    assert_eq!(network.nodes[0].sent()[1..], [(ping, Status::NeverSent(REFUSED))]);
    network.dead.clear();
    put(&mut network, 3, 10);
    network.run(3 * SECOND);
    for number in [1, 3] {
        assert!(network.nodes[1].arrived().contains(&(number, Status::Ok)), "{number}");
    }
}
