//! Paths that carry shorter datagrams than both ends take.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::lnd::{NiId, Path, Status};

use super::wire::{Faults, Frame, Network, Node, limits};

const SECOND: Duration = Duration::from_secs(1);
/// Datagrams of the ends, of a narrow link, and of a tunnel.
const LONG: u32 = 9000 - 28;
const ETHERNET: u32 = 1500 - 28;
const TUNNEL: u32 = 1300 - 28;

fn pair(seed: u64, shards: u8) -> Network {
    let mut nodes = vec![Node::new(1, 1, shards), Node::new(2, 1, shards)];
    nodes.iter_mut().for_each(|node| node.set_datagram_max(LONG));
    Network::new(nodes, seed)
}

fn put(network: &mut Network, from: usize, rail: u16, number: u64, length: u32) {
    let to = network.nodes[1 - from].nids[usize::from(rail)];
    let now = network.now;
    network.nodes[from].put(now, &to, rail, 4, number, length);
}

/// Runs until all of these have been sent; how long that takes.
fn finish(network: &mut Network, from: usize, count: u64) -> Duration {
    let begun = network.now;
    while (network.nodes[from].sent().len() as u64) < count {
        assert!(network.step(begun + SECOND * 30), "{:?}", network.nodes[from].counters());
    }
    network.now - begun
}

fn narrowed(network: &Network, node: usize) -> u64 {
    network.nodes[node].counters().iter().map(|counters| counters.paths_narrowed).sum()
}

/// The longest frame of the last ones that went by a rail, and how many of these were longer than it carries.
fn last_frames(network: &Network, rail: u16, count: usize) -> (u32, usize) {
    let by_rail = network.log.iter().rev().filter(|frame| frame.ni.0 == rail);
    let lengths: Vec<u32> = by_rail.map(Frame::length).take(count).collect();
    let width = network.widths[usize::from(rail)];
    let too_long = lengths.iter().filter(|length| **length > width).count();
    (lengths.into_iter().filter(|length| *length <= width).max().unwrap_or(0), too_long)
}

#[test]
fn the_first_message_to_a_peer_is_long() {
    for seed in 0..10 {
        for (from, width) in [(0, ETHERNET), (1, ETHERNET), (0, TUNNEL), (0, 4096)] {
            let mut network = pair(seed, 1);
            network.widths = [width; 2];
            put(&mut network, from, 0, 0, 1 << 20);
            let took = finish(&mut network, from, 1);
            network.run(SECOND);
            network.assert_all_arrived(from, 1 - from, 1);
            assert!(took < SECOND / 2, "seed {seed}, width {width}: {took:?}");
            assert_eq!(narrowed(&network, from), 1, "seed {seed}, width {width}");
            let found = network.nodes[from].shards[0].xfer.poll_narrowed().unwrap();
            assert_eq!((found.path.ni, found.path.peer), (NiId(0), network.nodes[1 - from].nids[0]));
            let (longest, too_long) = last_frames(&network, 0, 200);
            assert!(longest > width / 10 * 9 && longest <= width && too_long <= 2, "{longest}, {too_long}");
        }
    }
}

/// Frames that are but little too long are found out as well.
#[test]
fn a_tunnel_is_narrower_than_ethernet() {
    for seed in 0..10 {
        let mut network = Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 1)], seed);
        network.widths = [TUNNEL; 2];
        for number in 0..20 {
            put(&mut network, 0, 0, number, [100_000, 100][number as usize % 2]);
        }
        let took = finish(&mut network, 0, 20);
        network.run(SECOND);
        network.assert_all_arrived(0, 1, 20);
        assert!(took < SECOND / 2, "seed {seed}: {took:?}");
        assert!(narrowed(&network, 0) != 0, "seed {seed}");
    }
}

/// Messages of all lengths in both directions, on a wire that loses some, too.
#[test]
fn long_and_short_messages_pass_both_ways() {
    for seed in 0..10 {
        for lost in [0, 50] {
            let mut network = pair(seed, 2);
            network.widths = [ETHERNET; 2];
            network.faults = Faults { lost, doubled: lost, late: lost };
            for number in 0..60 {
                let length = [0, 60_000, 1000, 5000, 2000, 200_000][number as usize % 6];
                (0..2).for_each(|from| put(&mut network, from, 0, number, length));
                network.run(SECOND / 2000);
            }
            (0..2).for_each(|from| {
                finish(&mut network, from, 60);
            });
            network.run(SECOND * 5);
            network.assert_all_arrived(0, 1, 60);
            network.assert_all_arrived(1, 0, 60);
            assert!(narrowed(&network, 0) != 0 && narrowed(&network, 1) != 0, "seed {seed}");
        }
    }
}

/// More is under way than there are items for, when it is cut anew.
#[test]
fn many_long_messages_are_cut_anew_with_few_items() {
    for seed in 0..10 {
        let mut network = pair(seed, 1);
        // The windows are wide.
        for number in 0..8 {
            put(&mut network, 0, 0, number, 1 << 20);
        }
        finish(&mut network, 0, 8);
        assert_eq!(narrowed(&network, 0), 0, "seed {seed}");
        network.widths = [ETHERNET; 2];
        let count = u64::from(limits().messages);
        for number in 8..count {
            put(&mut network, 0, 0, number, 40_000);
        }
        finish(&mut network, 0, count);
        network.run(SECOND);
        network.assert_all_arrived(0, 1, count);
        assert!(narrowed(&network, 0) != 0, "seed {seed}");
    }
}

/// The narrow one of two rails goes on carrying its messages, and the wide one long frames.
#[test]
fn one_of_two_rails_is_narrow() {
    for seed in 0..10 {
        let mut network = pair(seed, 1);
        network.widths[0] = ETHERNET;
        let count = 200;
        for number in 0..count {
            let length = if number % 4 < 2 { 60_000 } else { 1000 };
            put(&mut network, 0, number as u16 % 2, number, length);
            network.run(SECOND / 50);
        }
        finish(&mut network, 0, count);
        let [narrow, wide] = [0, 1].map(|rail| last_frames(&network, rail, 100));
        network.run(SECOND);
        network.assert_all_arrived(0, 1, count);
        assert!(narrow.0 > ETHERNET / 10 * 9 && narrow.1 <= 2, "seed {seed}: {narrow:?}");
        assert!(wide.0 > 8000, "seed {seed}: {wide:?}");
        let silent_last = network.nodes[0].shards[0].up.reroutes.len();
        assert!(silent_last <= 2, "seed {seed}: {silent_last} failovers");
        assert!(narrowed(&network, 0) <= 2, "seed {seed}");
    }
}

/// The kernel of the sender knows how narrow the path to one of two peers is, and says so before anything is
/// lost there.
#[test]
fn what_is_refused_narrows_the_path_to_its_peer_alone() {
    let mut nodes = vec![Node::new(1, 1, 1), Node::new(2, 1, 1), Node::new(3, 1, 1)];
    nodes.iter_mut().for_each(|node| node.set_datagram_max(LONG));
    let mut network = Network::new(nodes, 1);
    let peers = [1, 2].map(|node: usize| network.nodes[node].nids[0]);
    let mut number = 0;
    let mut put_to_both = |network: &mut Network| {
        network.log.clear();
        for peer in &peers {
            let now = network.now;
            network.nodes[0].put(now, peer, 0, 4, number, 100_000);
            number += 1;
        }
        network.run(SECOND);
        assert_eq!(network.nodes[0].sent().len() as u64, number);
        peers
            .map(|peer| network.log.iter().filter(|frame| frame.to == peer).map(Frame::length).max().unwrap())
    };
    let [first, second] = put_to_both(&mut network);
    assert!(first > LONG / 10 * 9 && second > LONG / 10 * 9, "{first} {second}");
    let path = Path { ni: NiId(0), peer: peers[0] };
    let now = network.now;
    network.nodes[0].shards[0].xfer.set_path_max(now, &path, ETHERNET);
    for _ in 0..3 {
        let [first, second] = put_to_both(&mut network);
        assert!(first <= ETHERNET && first > ETHERNET / 10 * 9 && second > LONG / 10 * 9, "{first} {second}");
    }
    assert_eq!(narrowed(&network, 0), 1);
    // The interface was changed: what the kernel knew was of it.
    network.nodes[0].set_datagram_max(LONG);
    let [_, _, [first, _]] = [(); 3].map(|()| put_to_both(&mut network));
    assert!(first > LONG / 10 * 9, "{first}");
}

#[test]
fn a_path_becomes_narrow_and_wide_again() {
    for seed in 0..10 {
        let mut network = pair(seed, 1);
        let mut number = 0;
        for (width, expected) in [(u32::MAX, LONG), (ETHERNET, ETHERNET), (TUNNEL, TUNNEL), (u32::MAX, LONG)]
        {
            network.widths = [width; 2];
            for _ in 0..50 {
                put(&mut network, 0, 0, number, 60_000);
                number += 1;
                network.run(SECOND / 50);
            }
            finish(&mut network, 0, number);
            let (longest, _) = last_frames(&network, 0, 12);
            assert!(longest > expected / 10 * 9, "seed {seed}, {width}: {longest}");
        }
        network.run(SECOND);
        network.assert_all_arrived(0, 1, number);
    }
}

/// Neither a wire that loses by chance is narrow nor one that carries nothing.
#[test]
fn wires_that_lose_are_not_narrow() {
    for seed in 0..10 {
        for lost in [20, 100, 300] {
            let mut network = pair(seed, 1);
            network.faults = Faults { lost, doubled: 50, late: 100 };
            for number in 0..100 {
                put(&mut network, 0, 0, number, [60_000, 100][number as usize % 2]);
                network.run(SECOND / 200);
            }
            finish(&mut network, 0, 100);
            network.run(SECOND * 5);
            network.assert_all_arrived(0, 1, 100);
            // An alarm is false once in a while, and over soon.
            let alarms = narrowed(&network, 0);
            assert!(alarms <= if lost < 300 { 0 } else { 4 }, "seed {seed}: {alarms} with {lost} lost");
            network.faults = Faults::default();
            put(&mut network, 0, 0, 100, 400_000);
            finish(&mut network, 0, 101);
            assert!(last_frames(&network, 0, 40).0 > 8000, "seed {seed}, {lost}");
            network.dead = vec![0];
            put(&mut network, 0, 0, 101, 200_000);
            put(&mut network, 0, 0, 102, 100);
            network.run(SECOND * 5);
            assert_eq!(narrowed(&network, 0), alarms, "seed {seed}: dead");
            let failed = network.nodes[0].sent().iter().filter(|(_, status)| *status != Status::Ok).count();
            assert_eq!(failed, 2);
        }
    }
}
