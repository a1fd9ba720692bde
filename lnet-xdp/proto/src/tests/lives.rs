//! Nodes that begin anew: what goes to the next life, what ends with the former one, what room that leaves.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::lnd::{Cause, Status};
use lnet_wire::frame::Kind;

use super::wire::{Network, Node};

const SECOND: Duration = Duration::from_secs(1);

fn network() -> Network {
    Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 1)], 1)
}

fn put(network: &mut Network, number: u64, length: u32) {
    let (now, to) = (network.now, network.nodes[1].nids[0]);
    network.nodes[0].put(now, &to, 0, 4, number, length);
}

/// The new life alone has read it: of one frame, of several, or of several messages in one.
#[test]
fn a_message_that_begins_after_its_peer_began_anew_arrives() {
    for (count, length) in [(1, 10), (1, 0), (1, 50_000), (5, 10), (3, 20_000)] {
        let mut network = network();
        put(&mut network, 0, 10);
        network.run(SECOND);
        network.nodes[1] = Node::new(2, 2, 1);
        for number in 1..=count {
            put(&mut network, number, length);
        }
        network.run(SECOND);
        assert_ne!(network.frames(Kind::Reset), 0);
        let expected: Vec<_> = (1..=count).map(|number| (number, Status::Ok)).collect();
        assert_eq!(network.nodes[1].arrived(), expected, "{count} of {length} bytes");
        assert!(network.nodes[0].sent().iter().all(|(_, status)| *status == Status::Ok));
        network.nodes.iter().for_each(Node::assert_idle);
    }
}

/// Messages that shared a frame which the new life has refused go once more, and each of them counts.
#[test]
fn what_is_sent_once_more_in_a_shared_frame_is_counted() {
    let mut network = network();
    put(&mut network, 0, 10);
    network.run(SECOND);
    network.nodes[1] = Node::new(2, 2, 1);
    for number in 1..=5 {
        put(&mut network, number, 10);
    }
    network.run(SECOND);
    let counters = network.nodes[0].counters()[0];
    assert_eq!((counters.messages_bundled, counters.frames_sent_anew, counters.frames_resent), (8, 5, 0));
}

/// The former life took the first message and did not get to acknowledge it. The reset of the second one says
/// nothing of the first.
#[test]
fn a_message_that_the_former_life_took_does_not_go_to_the_next_one() {
    let mut network = network();
    put(&mut network, 0, 10);
    network.run(SECOND);
    put(&mut network, 1, 10);
    while network.nodes[1].arrived().len() < 2 {
        assert!(network.step(network.now + SECOND));
    }
    network.nodes[1] = Node::new(2, 2, 1);
    network.run(SECOND / 100_000);
    put(&mut network, 2, 10);
    network.run(SECOND);
    let expected = [(0, Status::Ok), (1, Status::Unknown(Cause::Reset)), (2, Status::Ok)];
    assert_eq!(network.nodes[0].sent(), expected);
    assert_eq!(network.nodes[1].arrived(), [(2, Status::Ok)]);
}

/// The former life took one of two that were sent at once, and the next life refuses the other. The interface
/// goes before either is sent again: the fate of both is unknown, as a frame of each was sent.
#[test]
fn a_message_that_was_refused_and_is_not_sent_again_may_have_arrived() {
    let mut network = network();
    put(&mut network, 0, 10);
    network.run(SECOND);
    put(&mut network, 1, 1200);
    put(&mut network, 2, 1200);
    let now = network.now;
    let frames = network.nodes[0].poll(now);
    assert_eq!(frames.len(), 2);
    network.nodes[1].receive(now, &frames[0]);
    assert_eq!(network.nodes[1].arrived(), [(0, Status::Ok), (1, Status::Ok)]);
    network.nodes[1] = Node::new(2, 2, 1);
    network.nodes[1].receive(now, &frames[1]);
    for frame in network.nodes[1].poll(now) {
        network.nodes[0].receive(now, &frame);
    }
    assert_eq!(network.nodes[0].counters()[0].peers_restarted, 1);
    network.nodes[0].remove_ni(now, 0);
    let unknown = Status::Unknown(Cause::Device);
    assert_eq!(network.nodes[0].sent(), [(0, Status::Ok), (1, unknown), (2, unknown)]);
    network.nodes[0].assert_idle();
}

/// Messages to a peer that has begun anew and speaks itself, by both rails and at any moment.
#[test]
fn messages_that_cross_the_first_ones_of_a_new_life_arrive() {
    for (speaks, shards) in [(0, 1), (1, 1), (1, 3)] {
        let mut network = Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, shards)], 1);
        for rail in 0..2 {
            let (now, to) = (network.now, network.nodes[1].nids[rail]);
            network.nodes[0].put(now, &to, rail as u16, 4, rail as u64, 10);
        }
        network.run(SECOND);
        network.nodes[1] = Node::new(2, 2, shards);
        let (now, back) = (network.now, network.nodes[0].nids[speaks]);
        network.nodes[1].put(now, &back, speaks as u16, 4, 1000, 10);
        for number in 2..60 {
            let rail = number as usize % 2;
            let (now, to) = (network.now, network.nodes[1].nids[rail]);
            network.nodes[0].put(now, &to, rail as u16, 4, number, 10 + number as u32 * 100);
            network.step(network.now + SECOND / 100_000);
        }
        network.run(SECOND);
        assert!(
            network.nodes[0].sent().iter().all(|(_, status)| *status == Status::Ok),
            "{speaks}, {shards}"
        );
        let expected: Vec<_> = (2..60).map(|number| (number, Status::Ok)).collect();
        assert_eq!(network.nodes[1].arrived(), expected, "{speaks}, {shards}");
    }
}

/// One of a peer's addresses is another node's now. The peer lives on at the other one, and does not get
/// twice what was sent there at the same time.
#[test]
fn a_peer_that_has_lost_an_address_is_not_sent_twice_what_went_to_the_other() {
    for last in 0..2 {
        let mut network = network();
        for (number, rail) in [(0, 1 - last), (1, last)] {
            let (now, to) = (network.now, network.nodes[1].nids[rail]);
            network.nodes[0].put(now, &to, rail as u16, 4, number, 10);
            network.run(SECOND / 100);
        }
        let lost = network.nodes[1].nids[0];
        let now = network.now;
        network.nodes[1].remove_ni(now, 0);
        network.nodes.push(Node::new(2, 2, 1));
        network.nodes[2].remove_ni(now, 1);
        let other = network.nodes[1].nids[1];
        for (number, to, rail) in [(2, lost, 0), (3, other, 1), (4, lost, 0), (5, other, 1)] {
            network.nodes[0].put(now, &to, rail, 4, number, 10);
        }
        network.run(SECOND * 5);
        assert_eq!(network.nodes[0].sent().len(), 6, "last {last}");
        let mut numbers: Vec<_> = network.nodes[1].arrived();
        numbers.dedup();
        assert_eq!(network.nodes[1].arrived(), numbers, "last {last}: nothing arrives twice");
        assert_eq!(network.nodes[2].arrived(), [(2, Status::Ok), (4, Status::Ok)], "last {last}");
    }
}

/// A part of it is acknowledged, and no frame was sent twice: the former life may have had the rest too.
#[test]
fn a_message_of_which_a_frame_was_acknowledged_by_the_former_life_ends() {
    let mut network = network();
    put(&mut network, 0, 10);
    network.run(SECOND);
    put(&mut network, 1, 800_000);
    // Frames go until the window has opened once.
    while network.nodes[1].shards[0].xfer.usage().incoming == 0 || network.frames(Kind::Ack) < 4 {
        assert!(network.step(network.now + SECOND));
    }
    network.nodes[1] = Node::new(2, 2, 1);
    network.run(SECOND);
    assert_eq!(network.nodes[0].sent(), [(0, Status::Ok), (1, Status::Unknown(Cause::Reset))]);
    assert_eq!(network.nodes[1].arrived(), []);
}

/// A sender begins anew so often that its former lives would have more than their address may: by one rail or
/// by two, to a receiver that sends it nothing or something of its own.
#[test]
fn former_lives_of_a_sender_take_no_room_from_the_last_one() {
    for (shards, rails, answers) in [(1, 1, false), (1, 2, false), (3, 1, false), (3, 2, true), (4, 1, true)]
    {
        let mut network = Network::new(vec![Node::new(1, 1, shards), Node::new(2, 1, 1)], 1);
        for life in 1..=20 {
            network.nodes[0] = Node::new(1, life, shards);
            let now = network.now;
            for number in 0..2 * u64::from(shards) {
                let rail = (number + life) % rails;
                let to = network.nodes[1].nids[rail as usize];
                network.nodes[0].put(now, &to, rail as u16, 4, 100 * life + number, 3000);
            }
            if answers {
                let to = network.nodes[0].nids[0];
                network.nodes[1].put(now, &to, 0, 4, 50 + life, 10);
            }
            network.run(SECOND / 2);
            let all_are_sent = network.nodes[0].sent().iter().all(|(_, status)| *status == Status::Ok);
            let count = network.nodes[0].sent().len();
            let what = format!("life {life} of {shards} shards by {rails} rails, {answers}");
            assert!(all_are_sent && count == 2 * usize::from(shards), "{what}: {count} were sent");
        }
        let statuses = network.nodes[1].sent();
        assert!(statuses.iter().all(|(_, status)| *status == Status::Ok), "{statuses:?}");
    }
}

/// A life of which a part of a message is there, and whose rest never comes.
#[test]
fn what_a_former_life_left_in_part_ends_when_the_next_one_speaks() {
    let mut network = network();
    put(&mut network, 0, 400_000);
    while network.nodes[1].shards[0].xfer.usage().partials == 0 {
        assert!(network.step(network.now + SECOND));
    }
    network.nodes[0] = Node::new(1, 2, 1);
    put(&mut network, 1, 10);
    network.run(SECOND / 10);
    assert_eq!(network.nodes[1].arrived(), [(0, Status::Unknown(Cause::Reset)), (1, Status::Ok)]);
}
