//! Interfaces that come and go while messages are under way.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::lnd::{Cause, NiId, Status};
use lnet_wire::frame::Kind;

use super::wire::{Faults, Network, Node, limits};
use crate::testing::nid;

const SECOND: Duration = Duration::from_secs(1);

fn network(shards: u8) -> Network {
    Network::new(vec![Node::new(1, 1, shards), Node::new(2, 1, shards)], 1)
}

/// Messages `first..` to the second node, six by each of `rails` in turn: each shard uses all of them.
fn put_by(network: &mut Network, first: u64, count: u64, rails: &[u16], length: u32) {
    for number in first..first + count {
        let rail = rails[number as usize / 6 % rails.len()];
        let (now, to) = (network.now, network.nodes[1].nids[usize::from(rail)]);
        network.nodes[0].put(now, &to, rail, 4, number, length);
    }
}

/// The same from the second node to the first.
fn put_back(network: &mut Network, first: u64, count: u64, rails: &[u16]) {
    for number in first..first + count {
        let rail = rails[number as usize / 6 % rails.len()];
        let (now, to) = (network.now, network.nodes[0].nids[usize::from(rail)]);
        network.nodes[1].put(now, &to, rail, 4, number, 100);
    }
}

fn remove(network: &mut Network, node: usize, ni: u16) {
    let now = network.now;
    network.nodes[node].remove_ni(now, ni);
}

#[test]
fn what_went_by_an_interface_that_is_removed_goes_by_another() {
    for seed in 0..20 {
        let mut network = network(1 + seed as u8 % 3);
        // Who only loses its peer's address learns of the other way by one frame.
        let bad = if seed % 3 == 1 { 0 } else { 100 };
        network.faults = Faults { lost: bad / 5, doubled: bad, late: bad };
        put_by(&mut network, 0, 12, &[0, 1], 100);
        network.run(SECOND / 4);
        put_by(&mut network, 12, 30, &[0, 1], 40_000);
        network.run(Duration::from_micros(20 + 13 * seed));
        // The sender's goes, the receiver's, or both.
        if seed % 3 != 1 {
            remove(&mut network, 0, 0);
        }
        if seed % 3 != 0 {
            remove(&mut network, 1, 0);
        }
        network.run(4 * SECOND);
        network.assert_all_arrived(0, 1, 42);
    }
}

#[test]
fn what_has_no_other_path_ends_at_once() {
    let mut network = network(1);
    // The peer is known by one interface alone; the other has a question open.
    put_by(&mut network, 0, 1, &[0], 100);
    network.run(SECOND / 10);
    network.dead = vec![0, 1];
    put_by(&mut network, 1, 5, &[0], 200_000);
    network.run(SECOND / 10);
    put_by(&mut network, 6, 1, &[0], 10);
    let third = nid(1, 3);
    let now = network.now;
    network.nodes[0].put(now, &third, 0, 4, 7, 10);
    remove(&mut network, 0, 0);
    let sent = network.nodes[0].sent();
    let expected = |tx| match tx {
        0 => Status::Ok,
        // The window lets some frames of each be sent.
        1..=4 => Status::Unknown(Cause::Device),
        _ => Status::NeverSent(Cause::Device),
    };
    assert_eq!(sent.len(), 8, "{sent:?}");
    for (tx, status) in [0, 1, 6, 7].map(|tx| sent[tx]) {
        assert_eq!(status, expected(tx), "{tx}");
    }
    network.nodes[0].assert_idle();
}

#[test]
fn what_arrives_from_a_peer_that_nothing_leads_to_ends() {
    let mut network = network(1);
    put_by(&mut network, 0, 1, &[0], 500_000);
    while network.nodes[1].shards[0].xfer.usage().partials == 0 {
        assert!(network.step(network.now + SECOND));
    }
    remove(&mut network, 1, 0);
    assert_eq!(network.nodes[1].arrived(), [(0, Status::Unknown(Cause::Device))]);
    assert_eq!(network.nodes[1].shards[0].xfer.usage().incoming, 0);
    network.run(5 * SECOND);
    assert_eq!(network.nodes[0].sent(), [(0, Status::Unknown(Cause::Timeout))]);
    network.nodes.iter().for_each(Node::assert_idle);
}

/// The interface is back before the sender has given up: what was given up with it is told to be lost, not
/// acknowledged.
#[test]
fn what_was_given_up_with_an_interface_is_not_acknowledged() {
    for delayed in [false, true] {
        let mut network = network(1);
        put_by(&mut network, 0, 1, &[0], 500_000);
        if delayed {
            network.nodes[1].shards[0].up.delays.push(4);
        }
        while network.nodes[1].shards[0].xfer.usage().incoming == 0 {
            assert!(network.step(network.now + SECOND));
        }
        let nid = network.nodes[1].nids[0];
        remove(&mut network, 1, 0);
        assert_eq!(network.nodes[1].arrived(), [(0, Status::Unknown(Cause::Device))]);
        network.nodes[1].add_ni(0, nid);
        // It asks after one that was deferred.
        network.run(SECOND);
        assert_eq!(network.nodes[0].sent(), [(0, Status::Unknown(Cause::Timeout))], "delayed: {delayed}");
        network.run(SECOND);
        network.nodes.iter().for_each(Node::assert_idle);
    }
}

/// The interface is back before its peer has given up: the windows are still there.
#[test]
fn an_interface_that_comes_back_doubles_nothing() {
    for seed in 0..30 {
        let mut network = network(1 + seed as u8 % 2);
        network.faults = Faults { lost: 30, doubled: 100, late: 200 };
        let (mut number, node) = (0, usize::from(seed % 2 == 0));
        for round in 0..6 {
            put_by(&mut network, number, 10, &[0], [100, 30_000][round % 2]);
            number += 10;
            network.run(Duration::from_micros(40 + 97 * seed + 300 * round as u64));
            let nid = network.nodes[node].nids[0];
            remove(&mut network, node, 0);
            network.run(Duration::from_micros(500));
            network.nodes[node].add_ni(0, nid);
            network.run(SECOND / 2);
        }
        network.run(5 * SECOND);
        // Whose own interface went knows that some were not sent, or may not have been.
        let arrived = network.nodes[1].arrived();
        let mut numbers: Vec<u64> = arrived.iter().map(|(number, _)| *number).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), arrived.len(), "each arrives once");
        assert_eq!(network.nodes[0].sent().len() as u64, number);
        for (tx, status) in network.nodes[0].sent() {
            let there = arrived.iter().find(|(number, _)| *number == u64::from(tx));
            match status {
                Status::Ok => {
                    let arrived = there.map(|(_, status)| *status);
                    assert_eq!(arrived, Some(Status::Ok), "{tx} was sent and did not arrive");
                }
                Status::NeverSent(_) => assert_eq!(there, None, "{tx} was not sent and arrived"),
                Status::Unknown(_) => {}
            }
        }
        network.nodes.iter().for_each(Node::assert_idle);
    }
}

#[test]
fn a_number_that_is_used_again_is_another_interface() {
    let mut network = network(1);
    put_by(&mut network, 0, 12, &[0, 1], 100);
    network.run(SECOND / 10);
    for node in 0..2 {
        remove(&mut network, node, 0);
        let host = node as u8 + 1;
        network.nodes[node].add_ni(0, nid(7, host));
    }
    let hellos = network.frames(Kind::Hello);
    put_by(&mut network, 12, 12, &[0, 1], 3000);
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 24);
    assert_eq!(network.frames(Kind::Hello), hellos + 1, "nothing was known of its addresses");
}

/// A node deletes all its interfaces, which ends its life, and begins anew with the first; its peer makes its
/// first one anew. What the peer answers by the second one is for the new life, although the former one was
/// known there.
#[test]
fn what_answers_a_new_life_is_not_sent_to_the_former() {
    let mut network = network(1);
    let first = network.nodes[0].nids.clone();
    put_by(&mut network, 0, 12, &[0, 1], 100);
    put_back(&mut network, 0, 12, &[0, 1]);
    network.run(SECOND / 4);
    network.nodes[0] = Node::new(1, 2, 1);
    (0..2).for_each(|ni| remove(&mut network, 0, ni));
    network.nodes[0].add_ni(0, first[0]);
    let peer = network.nodes[1].nids[0];
    remove(&mut network, 1, 0);
    network.nodes[1].add_ni(0, peer);
    put_by(&mut network, 12, 6, &[0], 100);
    network.run(SECOND / 4);
    network.nodes[0].add_ni(1, first[1]);
    put_by(&mut network, 18, 6, &[1], 100);
    while network.nodes[1].arrived().len() < 24 {
        assert!(network.step(network.now + SECOND));
    }
    put_back(&mut network, 12, 6, &[1]);
    network.run(SECOND);
    let sent = network.nodes[1].sent();
    assert!(sent.len() == 18 && sent.iter().all(|(_, status)| *status == Status::Ok), "{sent:?}");
    network.nodes.iter().for_each(Node::assert_idle);
}

#[test]
fn paths_of_interfaces_that_are_gone_take_no_room() {
    let mut network = network(1);
    for round in 0..2 * u64::from(limits().peers) {
        put_by(&mut network, round, 1, &[0], 100);
        network.run(SECOND / 50);
        let nid = network.nodes[0].nids[0];
        remove(&mut network, 0, 0);
        network.nodes[0].add_ni(0, nid);
    }
    put_by(&mut network, 2 * u64::from(limits().peers), 1, &[0], 100);
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 2 * u64::from(limits().peers) + 1);
}

#[test]
#[should_panic(expected = "there is no NI 1")]
fn an_interface_is_removed_once() {
    let mut network = network(1);
    remove(&mut network, 0, 1);
    let now = network.now;
    let shard = &mut network.nodes[0].shards[0];
    shard.xfer.remove_ni(now, NiId(1), &mut shard.up);
}

#[test]
fn acknowledgements_need_not_wait() {
    let mut network = network(1);
    put_by(&mut network, 0, 1, &[0], 100);
    network.run(SECOND / 10);
    put_by(&mut network, 1, 1, &[0], 100);
    while network.nodes[1].arrived().len() < 2 {
        assert!(network.step(network.now + SECOND));
    }
    let acks = network.frames(Kind::Ack);
    let now = network.now;
    network.nodes[1].shards[0].xfer.acknowledge_now(now);
    let frames = network.nodes[1].poll(now);
    assert_eq!(frames.len(), 1, "without waiting for anything to travel with");
    assert_eq!((frames[0].header.kind, network.frames(Kind::Ack)), (Kind::Ack, acks));
}

/// The second node's interface is made anew, over sockets and over rings, while the first node has a session:
/// frames are refused that may have come in a run, until none may.
#[test]
fn frames_leave_in_runs_only_where_the_session_says_so() {
    let mut network = network(1);
    for (round, runs) in [false, true, false, true].into_iter().enumerate() {
        let nid = network.nodes[1].nids[0];
        remove(&mut network, 1, 0);
        network.nodes[1].runs = runs;
        network.nodes[1].add_ni(0, nid);
        network.log.clear();
        put_by(&mut network, 7 * round as u64, 6, &[0], 3000);
        // Small messages go alone all the same.
        put_by(&mut network, 7 * round as u64 + 6, 1, &[0], 64);
        network.run(SECOND);
        let told = network.log.iter().rposition(|frame| frame.header.kind == Kind::Welcome).unwrap();
        let (before, after) = network.log.split_at(told);
        assert_eq!(after[0].handshake.unwrap().runs, runs);
        let of_data = |frames: &[super::wire::Frame]| {
            let data = frames.iter().filter(|frame| frame.header.kind == Kind::Data);
            let (small, long): (Vec<_>, _) = data.partition(|frame| frame.header.total_length == 64);
            assert!(small.iter().all(|frame| frame.run.is_none()));
            long.iter().map(|frame| frame.run).collect::<Vec<_>>()
        };
        // What was sent in the former session was refused, and is sent again.
        let expected = if runs { Some(0) } else { None };
        assert!(of_data(after).len() >= 6 && of_data(after).iter().all(|run| *run == expected));
        assert!(of_data(before).iter().all(|run| *run != expected));
    }
    network.assert_all_arrived(0, 1, 28);
}

/// The second node's interface comes back with another wish while the first one has a session: frames without
/// checksums are not taken where they are wanted.
#[test]
fn payloads_have_checksums_unless_neither_end_wants_them() {
    let mut network = network(1);
    let wishes = [(true, true), (false, true), (false, false), (false, true), (false, false), (true, false)];
    for (round, (near, far)) in wishes.into_iter().enumerate() {
        for (node, checksum) in [near, far].into_iter().enumerate() {
            if network.nodes[node].checksum != checksum {
                let nid = network.nodes[node].nids[0];
                remove(&mut network, node, 0);
                network.nodes[node].checksum = checksum;
                network.nodes[node].add_ni(0, nid);
            }
        }
        network.log.clear();
        put_by(&mut network, 6 * round as u64, 6, &[0], 3000);
        network.run(SECOND);
        let told = network.log.iter().rposition(|frame| frame.header.kind == Kind::Welcome).unwrap_or(0);
        let data: Vec<_> =
            network.log[told..].iter().filter(|frame| frame.header.kind == Kind::Data).collect();
        let has_checksum = |frame: &&super::wire::Frame| frame.transfer.payload_crc.is_some();
        assert!(data.len() >= 6, "all that was sent before is refused");
        assert_eq!(
            data.iter().filter(|frame| has_checksum(frame)).count(),
            if near || far { data.len() } else { 0 }
        );
    }
    network.assert_all_arrived(0, 1, 6 * wishes.len() as u64);
}
