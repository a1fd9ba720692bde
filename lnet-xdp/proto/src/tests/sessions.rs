//! Lives of nodes, and who is remembered.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::lnd::{Cause, Status};
use lnet_core::time::Instant;
use lnet_wire::frame::Kind;
use lnet_wire::steer::Policy;

use super::super::{Disposition, XferDrop};
use super::wire::{Frame, Network, Node, ROTOR, identity};
use crate::testing::nid;

const SECOND: Duration = Duration::from_secs(1);

fn network() -> Network {
    Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 1)], 1)
}

/// The second node receives the data among old frames again.
fn receive_late(network: &mut Network, frames: &[Frame]) {
    for frame in frames.iter().filter(|frame| frame.header.kind == Kind::Data) {
        network.nodes[1].receive(network.now, frame);
    }
}

fn put(network: &mut Network, number: u64, length: u32) {
    let (now, to) = (network.now, network.nodes[1].nids[0]);
    network.nodes[0].put(now, &to, 0, 4, number, length);
}

#[test]
fn a_restarted_receiver_ends_what_the_former_one_was_sent() {
    let mut network = network();
    put(&mut network, 0, 10);
    network.run(SECOND);
    network.dead = vec![0];
    put(&mut network, 1, 10);
    network.run(SECOND / 10);
    let frames = network.log.clone();
    network.nodes[1] = Node::new(2, 2, 1);
    network.dead.clear();
    network.run(SECOND);
    assert_eq!(network.nodes[0].sent(), [(0, Status::Ok), (1, Status::Unknown(Cause::Reset))]);
    assert_eq!(network.nodes[1].arrived(), []);
    put(&mut network, 2, 10);
    network.run(SECOND);
    assert_eq!(network.nodes[1].arrived(), [(2, Status::Ok)]);
    // Frames to its former life.
    for frame in frames {
        network.nodes[1].receive(network.now, &frame);
    }
    assert_eq!(network.nodes[1].arrived(), [(2, Status::Ok)]);
    network.run(SECOND);
    network.nodes.iter().for_each(Node::assert_idle);
}

#[test]
fn a_restarted_sender_is_another_one() {
    let mut network = network();
    for number in 0..3 {
        put(&mut network, number, 10);
    }
    network.run(SECOND);
    let frames = network.log.clone();
    network.nodes[0] = Node::new(1, 2, 1);
    for number in 3..6 {
        put(&mut network, number, 10);
    }
    network.run(SECOND);
    receive_late(&mut network, &frames);
    assert_eq!(network.nodes[1].arrived().len(), 6, "late duplicates of both lives");
}

#[test]
fn answers_to_a_restarted_sender_are_not_lost_in_its_former_life() {
    let mut network = network();
    let answer = |network: &mut Network, rail: u16, number| {
        let (now, to) = (network.now, network.nodes[0].nids[usize::from(rail)]);
        network.nodes[1].put(now, &to, rail, 4, number, 10);
    };
    put(&mut network, 0, 10);
    answer(&mut network, 0, 1);
    answer(&mut network, 1, 2);
    network.run(SECOND);
    network.nodes[0] = Node::new(1, 2, 1);
    // Heard by one of its addresses, it is another one at all of them.
    put(&mut network, 3, 10);
    network.run(SECOND / 10);
    answer(&mut network, 0, 4);
    answer(&mut network, 1, 5);
    network.run(SECOND / 10);
    assert_eq!(network.nodes[1].sent(), [0, 1, 2, 3].map(|message| (message, Status::Ok)));
    assert_eq!(network.nodes[0].arrived(), [4, 5].map(|number| (number, Status::Ok)));
    network.run(SECOND);
    network.nodes.iter().for_each(Node::assert_idle);
}

#[test]
fn late_frames_of_a_life_that_is_known_to_be_over_are_not_taken_for_new() {
    let mut network = network();
    let answer = |network: &mut Network, number| {
        let (now, to) = (network.now, network.nodes[0].nids[0]);
        network.nodes[1].put(now, &to, 0, 4, number, 10);
    };
    put(&mut network, 0, 10);
    answer(&mut network, 1);
    network.run(SECOND / 10);
    let frames = network.log.clone();
    network.nodes[0] = Node::new(1, 2, 1);
    answer(&mut network, 2);
    network.run(SECOND / 10);
    assert_eq!(network.nodes[1].counters()[0].peers_restarted, 1);
    receive_late(&mut network, &frames);
    assert_eq!(network.nodes[1].arrived(), [(0, Status::Ok)]);
    put(&mut network, 3, 10);
    network.run(SECOND / 10);
    assert_eq!(network.nodes[1].arrived(), [(0, Status::Ok), (3, Status::Ok)]);
}

#[test]
fn a_receiver_that_has_forgotten_a_silent_sender_takes_it_again_but_none_of_its_old_frames() {
    let mut network = network();
    put(&mut network, 0, 10);
    network.run(SECOND);
    let frames = network.log.clone();
    network.run(SECOND * 40);
    assert_eq!(network.nodes[1].shards[0].xfer.usage().receive_streams, 0);
    receive_late(&mut network, &frames);
    assert_eq!(network.nodes[1].counters()[0].dropped(XferDrop::UnknownSession), 1);
    put(&mut network, 1, 10);
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 2);
    receive_late(&mut network, &frames);
    network.assert_all_arrived(0, 1, 2);
    assert!(network.frames(Kind::Hello) <= 3);
}

#[test]
fn an_old_frame_does_not_begin_the_window_of_a_sender_that_was_forgotten_and_speaks_again() {
    let mut network = network();
    put(&mut network, 0, 10);
    network.run(SECOND);
    let frames = network.log.clone();
    network.run(SECOND * 40);
    assert_eq!(network.nodes[1].shards[0].xfer.usage().receive_streams, 0);
    // What it says first is no message, but a word about one.
    network.nodes[0].shards[0].up.delays = vec![7];
    let (now, to) = (network.now, network.nodes[0].nids[0]);
    network.nodes[1].put(now, &to, 0, 7, 1, 10);
    network.run(SECOND);
    assert_eq!(network.nodes[1].shards[0].xfer.usage().receive_streams, 1);
    receive_late(&mut network, &frames);
    assert_eq!(network.nodes[1].arrived(), [(0, Status::Ok)]);
}

#[test]
fn a_session_does_not_go_back_to_an_older_token() {
    let mut network = network();
    let nids = network.nodes[1].nids.clone();
    // Tokens tell the time in units of 2^30 ns: the late answer brings one of the unit before.
    network.now = Instant((2 << 30) - 1000);
    network.nodes[0].put(network.now, &nids[1], 1, 4, 0, 10);
    let hello = network.nodes[0].poll(network.now);
    network.nodes[1].receive(network.now, &hello[0]);
    let late = network.nodes[1].poll(network.now);
    network.now = Instant((2 << 30) + 1000);
    network.nodes[0].put(network.now, &nids[0], 0, 4, 1, 10);
    network.run(SECOND / 1000);
    assert_eq!(network.nodes[1].arrived(), [(1, Status::Ok)]);
    network.nodes[0].receive(network.now, &late[0]);
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 2);
    assert_eq!(network.nodes[0].counters()[0].dropped(XferDrop::BadAck), 0);
}

#[test]
fn more_peers_than_there_is_room_for_take_turns() {
    let mut nodes = vec![Node::new(1, 1, 1)];
    nodes.extend((2..22).map(|host| Node::new(host, 1, 1)));
    let mut network = Network::new(nodes, 1);
    for round in 0..2 {
        for host in 1..21_usize {
            let (now, to) = (network.now, network.nodes[host].nids[0]);
            network.nodes[0].put(now, &to, 0, 4, round * 20 + host as u64, 3000);
            network.run(SECOND / 100);
        }
    }
    network.run(SECOND);
    assert_eq!(network.nodes[0].sent().len(), 40);
    assert!(network.nodes[0].sent().iter().all(|(_, status)| *status == Status::Ok));
    for host in 1..21 {
        assert_eq!(network.nodes[host].arrived().len(), 2, "node {host}");
    }
    assert_eq!(network.nodes[0].shards[0].xfer.usage().peers, 8);
}

/// A node that remembers fewer peers than there are others, and puts to each of them in turn, so often.
fn visit_in_turn(network: &mut Network, rounds: core::ops::Range<u64>) {
    for round in rounds {
        for host in 1..13_usize {
            let (now, to) = (network.now, network.nodes[host].nids[0]);
            network.nodes[0].put(now, &to, 0, 4, round * 20 + host as u64, 300);
            network.run(SECOND / 1000);
        }
    }
}

fn more_than_there_is_room_for() -> Network {
    Network::new((1..14).map(|host| Node::new(host, 1, 1)).collect(), 1)
}

#[test]
fn a_peer_that_had_to_make_room_is_not_asked_again() {
    let mut network = more_than_there_is_room_for();
    visit_in_turn(&mut network, 0..1);
    assert_eq!(network.frames(Kind::Hello), 12);
    visit_in_turn(&mut network, 1..20);
    assert_eq!([network.frames(Kind::Hello), network.frames(Kind::Reset)], [12, 0]);
    assert_eq!(network.nodes[0].sent().len(), 12 * 20);
    assert!(network.nodes[0].sent().iter().all(|(_, status)| *status == Status::Ok));
    for host in 1..13 {
        assert_eq!(network.nodes[host].arrived().len(), 20, "node {host}");
        // No number was used twice.
        let to = network.nodes[host].nids[0];
        let data = network.log.iter().filter(|frame| frame.header.kind == Kind::Data && frame.to == to);
        let mut numbers: Vec<_> = data.map(|frame| frame.transfer.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 20, "node {host}");
    }
    assert_eq!(network.nodes[0].shards[0].xfer.usage().peers, 8);
}

#[test]
fn a_session_that_waits_to_be_renewed_is_asked_for_anew_after_an_eviction() {
    let mut network = more_than_there_is_room_for();
    visit_in_turn(&mut network, 0..1);
    network.run(SECOND * 3);
    visit_in_turn(&mut network, 1..2);
    assert_eq!([network.frames(Kind::Hello), network.frames(Kind::Reset)], [24, 0]);
    assert_eq!(network.nodes[0].sent().len(), 24);
}

#[test]
fn a_peer_that_had_to_make_room_and_began_anew_is_asked_once() {
    let mut network = more_than_there_is_room_for();
    visit_in_turn(&mut network, 0..1);
    network.nodes[1] = Node::new(2, 2, 1);
    visit_in_turn(&mut network, 1..2);
    // The first message was sent under the session of the former life; the new one has refused it, and is
    // asked for a session.
    assert_eq!([network.frames(Kind::Hello), network.frames(Kind::Reset)], [13, 1]);
    assert_eq!(network.nodes[0].sent()[12], (12, Status::Ok));
    visit_in_turn(&mut network, 2..4);
    assert_eq!([network.frames(Kind::Hello), network.frames(Kind::Reset)], [13, 1]);
    assert_eq!(network.nodes[1].arrived(), [(21, Status::Ok), (41, Status::Ok), (61, Status::Ok)]);
}

#[test]
fn a_peer_that_had_to_make_room_and_has_other_policies_gets_every_message() {
    let mut network = more_than_there_is_room_for();
    visit_in_turn(&mut network, 0..1);
    network.nodes[1].set_policy(4, Policy::Rotor, 0..1);
    visit_in_turn(&mut network, 1..3);
    assert_eq!([network.frames(Kind::Hello), network.frames(Kind::Reset)], [13, 1]);
    assert!(network.nodes[0].sent().iter().all(|(_, status)| *status == Status::Ok));
    assert_eq!(network.nodes[1].arrived(), [1, 21, 41].map(|number| (number, Status::Ok)));
}

#[test]
fn what_was_saved_of_a_life_ends_when_another_one_speaks_from_its_address() {
    let mut network = more_than_there_is_room_for();
    visit_in_turn(&mut network, 0..1);
    network.nodes[1] = Node::new(2, 2, 1);
    let (now, to) = (network.now, network.nodes[0].nids[0]);
    network.nodes[1].put(now, &to, 0, 4, 9, 10);
    network.run(SECOND / 1000);
    visit_in_turn(&mut network, 1..2);
    assert_eq!(network.frames(Kind::Reset), 0);
    assert!(network.nodes[0].sent().iter().all(|(_, status)| *status == Status::Ok));
    assert_eq!(network.nodes[1].arrived(), [(21, Status::Ok)]);
}

/// Asks the second node a hundred times.
fn ask_often(network: &mut Network, hello: &Frame) {
    for nonce in 0..100 {
        let mut again = hello.clone();
        again.header.key.message_id = nonce;
        assert_eq!(network.nodes[1].receive(network.now, &again), Some(Disposition::Done));
    }
}

#[test]
fn a_hello_makes_no_state() {
    let mut network = network();
    put(&mut network, 0, 10);
    network.run(SECOND);
    let hello = network.log.iter().find(|frame| frame.header.kind == Kind::Hello).unwrap().clone();
    let before = network.nodes[1].shards[0].xfer.usage();
    for _ in 0..10 {
        ask_often(&mut network, &hello);
        // Answers that have no room are not given, and counted.
        assert_eq!(network.nodes[1].poll(network.now).len(), 32);
    }
    assert_eq!(network.nodes[1].counters()[0].replies_dropped, 10 * (100 - 32));
    assert_eq!(network.nodes[1].shards[0].xfer.usage(), before);
}

/// More frames come at once than one acknowledgement tells of, behind more questions than are answered.
#[test]
fn a_flood_of_hellos_costs_no_acknowledgement() {
    let mut network = network();
    put(&mut network, 0, 10);
    network.run(SECOND);
    let hello = network.log.iter().find(|frame| frame.header.kind == Kind::Hello).unwrap().clone();
    let data = network.log.iter().rfind(|frame| frame.header.kind == Kind::Data).unwrap().clone();
    ask_often(&mut network, &hello);
    for step in 1..=120 {
        let mut next = data.clone();
        next.transfer.number += step;
        network.nodes[1].receive(network.now, &next);
    }
    let acks = network.nodes[1].poll(network.now).into_iter().filter_map(|frame| frame.transfer.ack);
    let told: Vec<u32> = acks
        .flat_map(|ack| (0..=64).map(move |below| (ack.highest, ack.below, below)))
        .filter(|(_, set, below)| *below == 0 || set >> (below - 1) & 1 != 0)
        .map(|(highest, _, below)| highest - below)
        .collect();
    for step in 1..=120 {
        assert!(told.contains(&(data.transfer.number + step)), "{step}");
    }
}

#[test]
fn one_address_cannot_take_the_room_of_all() {
    let mut network = network();
    put(&mut network, 0, 10);
    network.run(SECOND / 100);
    let data = network.log.iter().find(|frame| frame.header.kind == Kind::Data).unwrap().clone();
    let hello = network.log.iter().find(|frame| frame.header.kind == Kind::Hello).unwrap().clone();
    let streams = |network: &Network| network.nodes[1].shards[0].xfer.usage().receive_streams;
    // The peer shows good tokens of many lives, and does not say which of them lives on.
    network.stalled = Some(0);
    for life in 0..20 {
        // Not so fast that it is not heard.
        network.run(SECOND / 10);
        let now = network.now;
        let identity = identity(9, life);
        network.nodes[1].receive(now, &hello.of(&identity));
        let welcome = network.nodes[1].poll(now).into_iter().find(|frame| frame.header.kind == Kind::Welcome);
        let mut begun = data.of(&identity);
        begun.transfer.session = welcome.unwrap().transfer.session;
        network.nodes[1].receive(network.now, &begun);
    }
    assert_eq!(streams(&network), 4, "half of the room");
    network.nodes.push(Node::new(3, 1, 1));
    let (now, to) = (network.now, network.nodes[1].nids[0]);
    network.nodes[2].put(now, &to, 0, 4, 9, 100);
    network.run(SECOND / 100);
    assert_eq!(network.nodes[2].sent(), [(0, Status::Ok)]);
}

/// The count of time in tokens goes round in thirteen days.
#[test]
fn a_session_of_a_week_is_renewed_like_any_other() {
    let mut network = network();
    put(&mut network, 0, 10);
    network.run(SECOND / 10);
    for number in 1..6 {
        network.now = lnet_core::time::Instant(network.now.0 + 3_u64 * 24 * 3600 * 1_000_000_000);
        network.run(SECOND);
        put(&mut network, number, 10);
        network.run(SECOND);
        network.assert_all_arrived(0, 1, number + 1);
    }
}

/// Moving costs nothing, and does not make room either.
#[test]
fn two_addresses_cannot_take_the_room_of_all() {
    let mut network = network();
    put(&mut network, 0, 10);
    network.run(SECOND / 100);
    let data = network.log.iter().find(|frame| frame.header.kind == Kind::Data).unwrap().clone();
    let hello = network.log.iter().find(|frame| frame.header.kind == Kind::Hello).unwrap().clone();
    for life in 0..20 {
        network.run(SECOND / 10);
        let now = network.now;
        let identity = identity(9, life);
        for (turn, host) in [(0, 50), (1, 51)] {
            let moved = |frame: &Frame| Frame { from: nid(1, host), ..frame.clone() };
            network.nodes[1].receive(now, &moved(&hello).of(&identity));
            let frames = network.nodes[1].poll(now);
            let welcome = frames.into_iter().find(|frame| frame.header.kind == Kind::Welcome).unwrap();
            let mut begun = moved(&data).of(&identity);
            begun.transfer.session = welcome.transfer.session;
            begun.transfer.number += turn;
            begun.header.key.message_id += u64::from(turn);
            if let Some(Disposition::Drop(_)) = network.nodes[1].receive(now, &begun) {
                break;
            }
        }
    }
    let usage = network.nodes[1].shards[0].xfer.usage();
    assert_eq!(usage.receive_streams, 1 + 4, "half of the room, and the honest one");
    network.nodes.push(Node::new(3, 1, 1));
    let (now, to) = (network.now, network.nodes[1].nids[0]);
    network.nodes[2].put(now, &to, 0, 4, 9, 100);
    network.run(SECOND / 100);
    assert_eq!(network.nodes[2].sent(), [(0, Status::Ok)]);
}

/// A message between two nodes by one of their rails.
fn send(network: &mut Network, from: usize, rail: u16, number: u64) {
    let (now, to) = (network.now, network.nodes[1 - from].nids[usize::from(rail)]);
    network.nodes[from].put(now, &to, rail, 4, number, 100);
}

/// Both nodes have spoken by both rails, by this one last.
fn met_by_both(last: u16) -> Network {
    let mut network = network();
    for rail in [1 - last, last] {
        send(&mut network, 0, rail, 50 + u64::from(rail));
        send(&mut network, 1, rail, 60 + u64::from(rail));
        network.run(SECOND / 100);
    }
    network
}

/// What a node with two rails was sent ends when it begins a new life, by whichever of them it was sent,
/// heard last, or is heard again, and if one of them is dead.
#[test]
fn a_restart_ends_at_once_what_was_sent_by_any_rail() {
    for case in 0..16_u16 {
        let [own, last, speaks, one_is_dead] = [0, 1, 2, 3].map(|bit| case >> bit & 1);
        let mut network = met_by_both(last);
        network.dead = vec![0, 1];
        send(&mut network, 0, own, 1);
        // Long enough for it to be sent again.
        network.run(SECOND / 50);
        network.nodes[1] = Node::new(2, 2, 1);
        network.dead = if one_is_dead == 1 { vec![1 - speaks] } else { vec![] };
        send(&mut network, 1, speaks, 70);
        network.run(SECOND / 2);
        let expected = [Status::Ok, Status::Ok, Status::Unknown(Cause::Reset)];
        let sent: Vec<_> = network.nodes[0].sent().into_iter().map(|(_, status)| status).collect();
        assert_eq!(sent, expected, "sent by {own}, heard by {last} and {speaks}, {:?} dead", network.dead);
    }
}

/// The question for a peer that has ended does not go on for the one that has its place.
#[test]
fn nobody_is_asked_for_somebody_else() {
    let mut network = met_by_both(1);
    network.run(SECOND * 5 / 2);
    send(&mut network, 0, 0, 52);
    network.run(SECOND / 100);
    send(&mut network, 1, 1, 62);
    network.run(SECOND / 100);
    // Heard by rail 1 last, which dies. What goes by rail 0 is not answered, so it is asked by rail 1.
    network.dead = vec![0, 1];
    send(&mut network, 0, 0, 1);
    network.run(SECOND / 10);
    network.nodes[1] = Node::new(2, 2, 1);
    network.dead = vec![1];
    let end = network.now + SECOND * 3;
    while network.nodes[0].counters()[0].peers_restarted == 0 {
        assert!(network.step(end));
    }
    // A peer comes in its place at once, and stays in use.
    send(&mut network, 0, 0, 2);
    for number in 0..40 {
        network.log.clear();
        send(&mut network, 1, 0, 200 + number);
        network.run(SECOND);
    }
    let asks = |frame: &&Frame| frame.header.kind == Kind::Hello && frame.from == nid(2, 1);
    assert_eq!(network.log.iter().filter(asks).count(), 0, "nothing has gone to rail 1 for 40 seconds");
}

/// Policies change and change back; a late frame has an old token.
#[test]
fn a_token_of_other_policies_is_not_good_because_another_one_is() {
    let mut network = network();
    let sent = |network: &mut Network, number| {
        put(network, number, 100);
        network.run(SECOND / 10);
        network.log.iter().rfind(|frame| frame.header.kind == Kind::Data).unwrap().clone()
    };
    let first = sent(&mut network, 0);
    network.run(SECOND * 6);
    network.nodes[1].set_policy(ROTOR, Policy::Pin(0), 0..1);
    let mut second = sent(&mut network, 1);
    assert_ne!(first.transfer.session, second.transfer.session);
    network.nodes[1].set_policy(ROTOR, Policy::Rotor, 0..1);
    let now = network.now;
    let refused = Some(Disposition::Drop(XferDrop::UnknownSession));
    assert_eq!(network.nodes[1].receive(now, &second), refused);
    assert_eq!(network.nodes[1].receive(now, &first), Some(Disposition::Drop(XferDrop::Duplicate)));
    second.transfer.number += 1;
    assert_eq!(network.nodes[1].receive(now, &second), refused);
}

/// Both rails die, and the one comes back that a message goes by; its receiver was heard last by the other
/// one.
#[test]
fn the_own_path_is_tried_again() {
    let mut network = network();
    for rail in [0, 1] {
        send(&mut network, 0, rail, 50 + u64::from(rail));
        network.run(SECOND / 100);
    }
    network.dead = vec![0, 1];
    send(&mut network, 0, 0, 1);
    network.run(SECOND / 10);
    network.dead = vec![1];
    network.run(SECOND * 3 / 2);
    assert_eq!(network.nodes[0].sent(), [0, 1, 2].map(|message| (message, Status::Ok)));
}

/// Nothing reaches a peer by the rail that it sends by itself; it is known at its other address, where it
/// answers.
#[test]
fn a_path_that_is_known_as_silent_is_not_taken_where_the_peer_answers_by_another() {
    let mut network = Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 2)], 1);
    for (rail, number) in [(0, 0), (1, 1), (1, 2), (0, 3)] {
        let (now, to) = (network.now, network.nodes[1].nids[usize::from(rail)]);
        network.nodes[0].put(now, &to, rail, ROTOR, number, 100);
        let back = network.nodes[0].nids[usize::from(rail)];
        network.nodes[1].put(now, &back, rail, 4, 100 + number, 100);
        network.run(SECOND / 100);
    }
    let silent = network.nodes[1].nids[0];
    network.unreached = vec![silent];
    send(&mut network, 0, 0, 4);
    network.run(SECOND / 5);
    let answer = |network: &mut Network, number| {
        let (now, back) = (network.now, network.nodes[0].nids[0]);
        network.nodes[1].put(now, &back, 0, 4, number, 100);
    };
    // Messages to the other shard, acknowledgements, and control frames.
    network.log.clear();
    for number in 10..18 {
        if number == 14 {
            network.nodes[0].shards[0].up.delays = vec![4];
        }
        let (now, to) = (network.now, network.nodes[1].nids[0]);
        network.nodes[0].put(now, &to, 0, ROTOR, number, 100);
        network.run(SECOND / 100);
        answer(&mut network, 110 + number);
        network.run(SECOND / 100);
    }
    let kinds: Vec<_> =
        network.log.iter().filter(|frame| frame.to == silent).map(|frame| frame.header.kind).collect();
    // Acknowledgements go where the frames came from as well.
    assert!(kinds.iter().all(|kind| matches!(kind, Kind::Hello | Kind::Ack)), "{kinds:?}");
    for kind in [Kind::Ack, Kind::Data, Kind::Deferred] {
        let other = network.nodes[1].nids[1];
        assert!(network.log.iter().any(|frame| frame.to == other && frame.header.kind == kind), "{kind:?}");
    }
}

/// An address moves from one node to another. The former one lives on at its other address, and is heard
/// there.
#[test]
fn whoever_loses_an_address_has_not_ended() {
    let mut network = met_by_both(1);
    for node in &mut network.nodes {
        node.shards[0].xfer.sessions.local.times.message = SECOND * 49;
    }
    let (now, moved) = (network.now, network.nodes[1].nids[0]);
    network.nodes[1].remove_ni(now, 0);
    let mut third = Node::new(3, 1, 1);
    third.remove_ni(now, 0);
    third.add_ni(0, moved);
    network.nodes.push(third);
    // A message by the second rail arrives; its acknowledgement is lost.
    send(&mut network, 1, 1, 7);
    for frame in network.nodes[1].poll(now) {
        network.nodes[0].receive(now, &frame);
    }
    network.dead = vec![1];
    network.run(SECOND / 100);
    // What goes to the first address is refused by the node that lives there now.
    let now = network.now;
    network.nodes[0].put(now, &moved, 0, 4, 80, 100);
    network.run(SECOND / 10);
    assert_eq!(network.nodes[0].counters()[0].peers_restarted, 1, "as far as this node can tell");
    network.dead.clear();
    network.run(SECOND * 20);
    let times = network.nodes[0].arrived().iter().filter(|(number, _)| *number == 7).count();
    assert_eq!(times, 1);
    assert!(network.nodes[1].sent().iter().all(|(_, status)| *status == Status::Ok));
}

/// Acknowledgements that are under way when a session is renewed have the token of before.
#[test]
fn a_renewal_costs_no_acknowledgements() {
    let mut network = Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 2)], 1);
    let put_to = |network: &mut Network, portal: u32, number| {
        let (now, to) = (network.now, network.nodes[1].nids[0]);
        network.nodes[0].put(now, &to, 0, portal, number, 100);
    };
    let mut number = 0;
    for _ in 0..5 {
        // Messages go to one shard for three seconds; then to both, of which the other one has to be asked
        // for a session.
        for _ in 0..3000 {
            put_to(&mut network, 4, number);
            number += 1;
            network.run(Duration::from_millis(1));
        }
        for portal in [ROTOR, ROTOR, ROTOR, ROTOR, 4] {
            put_to(&mut network, portal, number);
            number += 1;
        }
    }
    network.run(SECOND / 10);
    network.assert_all_arrived(0, 1, number);
    let counters = network.nodes[0].counters()[0];
    assert_eq!((counters.dropped(XferDrop::BadAck), counters.frames_resent), (0, 0));
}
