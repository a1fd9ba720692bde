//! Who speaks in another's name: with all that a node can learn that asks, is asked, and is sent messages,
//! but not what others are told.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::lnd::{NiId, Status};
use lnet_wire::Nid;
use lnet_wire::frame::{Ack, FrameHeader, Kind};
use lnet_wire::steer::Policy;

use super::super::{Disposition, XferDrop};
use super::wire::{Frame, Network, Node, ROTOR, identity, limits};
use crate::testing::nid;

const SECOND: Duration = Duration::from_secs(1);
const VICTIM: usize = 0;
const TARGET: usize = 1;
const IMPOSTOR: usize = 2;

/// Three nodes that have sent each other messages by their first rails, and their frames.
fn met() -> (Network, Vec<Frame>) {
    let nodes = vec![Node::new(1, 1, 1), Node::new(2, 1, 1), Node::new(3, 1, 1)];
    let mut network = Network::new(nodes, 1);
    for from in 0..3 {
        for to in (0..3).filter(|to| *to != from) {
            let (now, to) = (network.now, network.nodes[to].nids[0]);
            network.nodes[from].put(now, &to, 0, 4, 900 + from as u64, 100);
        }
    }
    network.run(SECOND / 10);
    let log = core::mem::take(&mut network.log);
    (network, log)
}

/// The frame of a kind that one of them has sent another.
fn find(log: &[Frame], kind: Kind, from: usize, to: usize) -> Frame {
    let host = |node: usize| nid(1, node as u8 + 1);
    let its = |frame: &&Frame| frame.header.kind == kind && frame.from == host(from) && frame.to == host(to);
    log.iter().find(its).unwrap().clone()
}

/// The two others exchange messages as if nothing had been.
fn assert_unhurt(network: &mut Network) {
    for number in 0..20 {
        for (from, to) in [(VICTIM, TARGET), (TARGET, VICTIM)] {
            let (now, to) = (network.now, network.nodes[to].nids[0]);
            network.nodes[from].put(now, &to, 0, 4, number, 3000);
        }
        network.run(SECOND / 1000);
    }
    network.run(SECOND / 10);
    for node in [VICTIM, TARGET] {
        let arrived = network.nodes[node].arrived();
        for number in 0..20 {
            assert!(arrived.contains(&(number, Status::Ok)), "{number} has not arrived at {node}");
        }
        assert!(network.nodes[node].sent().iter().all(|(_, status)| *status == Status::Ok));
        assert_eq!(network.nodes[node].counters()[0].frames_resent, 0);
    }
}

fn expect(network: &mut Network, node: usize, frame: &Frame, reason: XferDrop) {
    let now = network.now;
    assert_eq!(network.nodes[node].receive(now, frame), Some(Disposition::Drop(reason)), "{frame:?}");
}

#[test]
fn no_session_is_given_under_the_name_of_another() {
    let (mut network, log) = met();
    let (honest, own) = (find(&log, Kind::Hello, VICTIM, TARGET), find(&log, Kind::Hello, IMPOSTOR, TARGET));
    // What the victim tells of itself, from elsewhere; then its name, with the own certificate, and with a
    // new one.
    let mut elsewhere = honest.clone();
    elsewhere.from = own.from;
    expect(&mut network, TARGET, &elsewhere, XferDrop::BadIdentity);
    let mut renamed = own.clone();
    renamed.transfer.incarnation = honest.transfer.incarnation;
    expect(&mut network, TARGET, &renamed, XferDrop::BadIdentity);
    renamed.handshake.as_mut().unwrap().certificate.key = honest.handshake.unwrap().certificate.key;
    expect(&mut network, TARGET, &renamed, XferDrop::BadIdentity);
    let now = network.now;
    assert_eq!(network.nodes[TARGET].poll(now).len(), 0, "none is answered");
    // The answer to a frame from the victim's address goes to the victim, which did not ask.
    network.nodes[TARGET].receive(now, &honest);
    let welcome = network.nodes[TARGET].poll(now).remove(0);
    assert_eq!(welcome.to, honest.from);
    expect(&mut network, VICTIM, &welcome, XferDrop::Unasked);
    assert_unhurt(&mut network);
}

#[test]
fn what_one_node_was_given_is_worth_nothing_for_another() {
    let (mut network, log) = met();
    let (honest, own) = (find(&log, Kind::Data, VICTIM, TARGET), find(&log, Kind::Data, IMPOSTOR, TARGET));
    let given = own.transfer.session;
    assert_ne!(given, honest.transfer.session);
    for kind in [Kind::Data, Kind::Deferred, Kind::Pull, Kind::Discard, Kind::Ping, Kind::Gone, Kind::Lost] {
        // The victim's name from here; the own name from there; the victim's name from there.
        for (name, from) in [(VICTIM, own.from), (IMPOSTOR, honest.from), (VICTIM, honest.from)] {
            let mut forged = if name == VICTIM { honest.clone() } else { own.clone() };
            forged.from = from;
            forged.transfer.session = given;
            forged.transfer.number += 10;
            forged.transfer.ticket = Some(7);
            forged.transfer.ack =
                Some(Ack { highest: 1000, below: u64::MAX, grant_bytes: 1, buffered: false });
            let id = forged.header.key.message_id + 30;
            forged.header = if kind == Kind::Data {
                FrameHeader {
                    key: lnet_wire::steer::SteerKey { message_id: id, ..forged.header.key },
                    ..forged.header
                }
            } else {
                FrameHeader::other(kind, 0, id)
            };
            expect(&mut network, TARGET, &forged, XferDrop::UnknownSession);
            // What is refused is told to the node that lives there: it knows nothing of it.
            let now = network.now;
            let told = network.nodes[TARGET].poll(now).remove(0);
            assert_eq!((told.header.kind, told.to), (Kind::Reset, from));
            if from == honest.from {
                expect(&mut network, VICTIM, &told, XferDrop::UnknownSession);
            }
        }
    }
    assert_unhurt(&mut network);
}

/// The impostor is asked by the victim and by the target, and lies to both.
#[test]
fn acknowledgements_and_endings_in_the_name_of_another_do_nothing() {
    let (mut network, log) = met();
    let (now, to) = (network.now, network.nodes[TARGET].nids[0]);
    network.nodes[VICTIM].put(now, &to, 0, 4, 100, 100);
    let under_way = network.nodes[VICTIM].poll(now);
    // What the victim and the target have shown to the impostor, and it to them.
    let known: Vec<u64> = [(VICTIM, IMPOSTOR), (TARGET, IMPOSTOR), (IMPOSTOR, VICTIM), (IMPOSTOR, TARGET)]
        .map(|(from, to)| find(&log, Kind::Data, from, to).transfer.session)
        .into();
    let shown_to_target = find(&log, Kind::Data, VICTIM, TARGET);
    let answer = find(&log, Kind::Data, TARGET, VICTIM);
    for session in known {
        assert_ne!(session, shown_to_target.transfer.session);
        for from in [nid(1, 2), nid(1, 3)] {
            let mut ack = answer.clone();
            ack.from = from;
            ack.header = FrameHeader::other(Kind::Ack, 0, 0);
            ack.transfer.session = session;
            ack.transfer.ack = Some(Ack {
                highest: under_way[0].transfer.number,
                below: u64::MAX,
                grant_bytes: 1 << 20,
                buffered: false,
            });
            ack.lnet = None;
            ack.payload.clear();
            let mut reset = ack.clone();
            reset.header = FrameHeader::other(Kind::Reset, 0, 0);
            reset.transfer.ack = None;
            expect(&mut network, VICTIM, &ack, XferDrop::BadAck);
            // It ends the sessions of the impostor with those that showed it this, and no others.
            network.nodes[VICTIM].receive(now, &reset);
        }
    }
    assert_eq!(network.nodes[VICTIM].sent().len(), 2, "nothing is acknowledged");
    under_way.into_iter().for_each(|frame| network.launch(frame));
    assert_unhurt(&mut network);
}

#[test]
fn whoever_is_asked_answers_for_itself_alone() {
    let (mut network, log) = met();
    // The victim asks the impostor by another way, which answers with the target's name.
    let (now, to) = (network.now, nid(2, 3));
    network.nodes[VICTIM].put(now, &to, 1, 4, 100, 100);
    let asked = network.nodes[VICTIM].poll(now).remove(0);
    assert_eq!((asked.header.kind, asked.to), (Kind::Hello, to));
    network.nodes[IMPOSTOR].receive(now, &asked);
    let honest = network.nodes[IMPOSTOR].poll(now).remove(0);
    let target = find(&log, Kind::Welcome, TARGET, VICTIM);
    let mut lie = honest.clone();
    lie.transfer.incarnation = target.transfer.incarnation;
    expect(&mut network, VICTIM, &lie, XferDrop::BadIdentity);
    lie.handshake.as_mut().unwrap().certificate = target.handshake.unwrap().certificate;
    expect(&mut network, VICTIM, &lie, XferDrop::BadIdentity);
    // Or with the name of a node that it makes up, under the other's address.
    let mut made_up = honest.of(&identity(9, 9));
    made_up.from = nid(2, 2);
    expect(&mut network, VICTIM, &made_up, XferDrop::Unasked);
    network.launch(honest);
    network.run(SECOND / 100);
    assert_eq!(network.nodes[IMPOSTOR].arrived().len(), 3);
    assert_unhurt(&mut network);
}

/// Checks take time, and no node has more than a few of them done from one address.
#[test]
fn a_flood_of_names_does_not_keep_others_out() {
    let (mut network, log) = met();
    let own = find(&log, Kind::Hello, IMPOSTOR, TARGET);
    let before = network.nodes[TARGET].counters()[0];
    for life in 0..1000 {
        let lie = own.of(&identity(9, life));
        network.nodes[TARGET].receive(network.now, &lie);
    }
    let after = network.nodes[TARGET].counters()[0];
    assert!(after.dropped(XferDrop::Unchecked) > before.dropped(XferDrop::Unchecked) + 990);
    network.nodes.push(Node::new(4, 1, 1));
    let (now, to) = (network.now, network.nodes[TARGET].nids[0]);
    network.nodes[3].put(now, &to, 0, 4, 100, 100);
    network.run(SECOND / 1000);
    assert_eq!(network.nodes[3].sent(), [(0, Status::Ok)]);
    assert_unhurt(&mut network);
}

/// What was good under the policies of before is examined again, and nothing else is good meanwhile.
#[test]
fn no_token_is_made_up_when_policies_change() {
    let (mut network, log) = met();
    let honest = find(&log, Kind::Data, VICTIM, TARGET);
    network.nodes[TARGET].set_policy(ROTOR, Policy::Pin(0), 0..1);
    for session in [0, 1, u64::MAX, honest.transfer.session] {
        let mut forged = honest.clone();
        forged.transfer.session = session;
        forged.transfer.number += 1000;
        forged.header.key.message_id += 1000;
        forged.transfer.oldest = 0;
        expect(&mut network, TARGET, &forged, XferDrop::UnknownSession);
    }
    let (now, to) = (network.now, network.nodes[TARGET].nids[0]);
    network.nodes[VICTIM].put(now, &to, 0, 4, 100, 100);
    network.run(SECOND / 10);
    assert!(network.nodes[TARGET].arrived().contains(&(100, Status::Ok)));
    // It learns of the policies by the RESET, and the next ones are not hindered.
    for number in 101..110 {
        let now = network.now;
        network.nodes[VICTIM].put(now, &to, 0, 4, number, 100);
    }
    network.run(SECOND / 10);
    assert_eq!(network.nodes[VICTIM].sent().len(), 2 + 10);
}

/// An acknowledgement of the impostor's, which has the target's session, from wherever it likes.
fn own_ack(log: &[Frame], from: Nid, highest: u32) -> Frame {
    let mut ack = find(log, Kind::Data, IMPOSTOR, TARGET);
    ack.from = from;
    ack.header = FrameHeader::other(Kind::Ack, 0, 0);
    ack.transfer.session = find(log, Kind::Data, TARGET, IMPOSTOR).transfer.session;
    ack.transfer.ack = Some(Ack { highest, below: u64::MAX, grant_bytes: 1 << 20, buffered: false });
    ack.lnet = None;
    ack.payload.clear();
    ack
}

#[test]
fn acknowledgements_from_anywhere_take_no_paths() {
    let (mut network, log) = met();
    network.nodes[TARGET].shards[0].up.delays = vec![7];
    let acked = find(&log, Kind::Data, TARGET, IMPOSTOR).transfer.number;
    // It has a message deferred, so there is something to tell it.
    let (now, to) = (network.now, network.nodes[TARGET].nids[0]);
    network.nodes[IMPOSTOR].put(now, &to, 0, 7, 200, 100);
    for frame in network.nodes[IMPOSTOR].poll(now) {
        network.nodes[TARGET].receive(now, &frame);
    }
    for host in 100..100 + 2 * limits().peers as u8 {
        network.now = network.now + Duration::from_millis(3);
        let now = network.now;
        network.nodes[TARGET].receive(now, &own_ack(&log, nid(1, host), acked));
        let asked = network.nodes[TARGET].poll(now).iter().any(|frame| frame.to == nid(1, host));
        assert!(!asked, "nobody has said that it lives at {host}");
    }
    network.nodes.push(Node::new(4, 1, 1));
    let (now, to) = (network.now, network.nodes[3].nids[0]);
    network.nodes[TARGET].put(now, &to, 0, 4, 100, 100);
    network.run(SECOND / 10);
    assert_eq!(network.nodes[3].arrived(), [(100, Status::Ok)]);
}

#[test]
fn what_is_for_a_node_that_does_not_answer_goes_to_nobody_else() {
    let (mut network, log) = met();
    let acked = find(&log, Kind::Data, TARGET, IMPOSTOR).transfer.number;
    // The impostor leaves a message unacknowledged, and speaks as if from a node that is not there yet.
    let absent = nid(1, 4);
    let (now, to) = (network.now, network.nodes[IMPOSTOR].nids[0]);
    network.nodes[TARGET].put(now, &to, 0, 4, 99, 100);
    for step in 0..100 {
        network.now = network.now + Duration::from_millis(1);
        let now = network.now;
        network.nodes[TARGET].receive(now, &own_ack(&log, absent, acked));
        if step == 30 {
            network.nodes[TARGET].put(now, &absent, 0, 4, 100, 100);
        }
        for frame in network.nodes[TARGET].poll(now) {
            let is_for_it = frame.lnet.is_some_and(|lnet| lnet.destination.nid == absent);
            assert!(!is_for_it, "{frame:?}");
        }
    }
    network.nodes.push(Node::new(4, 1, 1));
    network.run(SECOND * 3 / 2);
    assert_eq!(network.nodes[3].arrived(), [(100, Status::Ok)]);
}

/// The same frame with another certificate, which is wrong.
fn with_wrong_certificate(frame: &Frame, number: u32) -> Frame {
    let mut lie = frame.clone();
    let signature = &mut lie.handshake.as_mut().unwrap().certificate.signature;
    signature[..4].copy_from_slice(&number.to_le_bytes());
    lie
}

/// The impostor signs many addresses with keys of its own: all that the target can remember.
fn fill_with_lives(network: &mut Network, hello: &Frame) {
    for life in 0..2000_u64 {
        let mut lie = hello.clone();
        lie.from = nid((life >> 8) as u16 + 10, life as u8);
        network.now = network.now + Duration::from_millis(1);
        let now = network.now;
        network.nodes[TARGET].receive(now, &lie.of(&identity(77, life)));
        network.nodes[TARGET].poll(now);
    }
}

/// The impostor signs any address with keys of its own, and then speaks as if from the victim's.
#[test]
fn who_is_known_gets_its_session_whatever_others_say() {
    let (mut network, log) = met();
    let hello = find(&log, Kind::Hello, VICTIM, TARGET);
    fill_with_lives(&mut network, &hello);
    // The victim's session has aged, and it asks anew.
    network.run(SECOND * 5 / 2);
    let lie = hello.of(&identity(78, 0));
    for at in 0..200 {
        let (now, to) = (network.now, network.nodes[TARGET].nids[0]);
        if at == 20 {
            network.nodes[VICTIM].put(now, &to, 0, 4, 100, 100);
        }
        network.nodes[TARGET].receive(now, &with_wrong_certificate(&lie, at));
        network.run(Duration::from_micros(20));
    }
    assert!(network.nodes[TARGET].counters()[0].dropped(XferDrop::Unchecked) > 100);
    assert!(network.nodes[TARGET].arrived().contains(&(100, Status::Ok)));
}

/// The impostor speaks as if from the address of a node that is asked.
#[test]
fn an_answer_is_taken_whatever_others_say_from_its_address() {
    let (_, log) = met();
    let hello = find(&log, Kind::Hello, TARGET, VICTIM);
    let mut network = Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 1)], 1);
    for number in 0..100 {
        let (now, to) = (network.now, network.nodes[TARGET].nids[0]);
        if number == 20 {
            network.nodes[VICTIM].put(now, &to, 0, 4, 1, 100);
        }
        network.nodes[VICTIM].receive(now, &with_wrong_certificate(&hello, number));
        network.run(SECOND / 1000);
    }
    assert_eq!(network.nodes[VICTIM].sent(), [(0, Status::Ok)]);
    assert!(network.nodes[VICTIM].counters()[0].dropped(XferDrop::Unchecked) > 10);
}

/// A HELLO goes to any shard, which may have nothing else of the one that asks.
#[test]
fn who_is_known_in_another_shard_gets_its_session_whatever_others_say() {
    let mut network = Network::new(vec![Node::new(1, 1, 2), Node::new(2, 1, 2)], 1);
    let put = |network: &mut Network, number| {
        // Messages go from shard 1 to a portal that is pinned to shard 0.
        let (now, to) = (network.now, network.nodes[TARGET].nids[0]);
        network.nodes[VICTIM].put(now, &to, 0, 4, number, 100);
    };
    put(&mut network, 1);
    network.run(SECOND / 10);
    let hello = network.log.iter().find(|frame| frame.header.kind == Kind::Hello).unwrap().clone();
    assert_eq!(hello.transfer.shard, 1);
    fill_with_lives(&mut network, &hello);
    network.run(SECOND * 5 / 2);
    for number in 0..200 {
        if number == 20 {
            put(&mut network, 3);
        }
        let now = network.now;
        network.nodes[TARGET].receive(now, &with_wrong_certificate(&hello, number));
        network.run(SECOND / 1000);
    }
    assert_eq!(network.nodes[VICTIM].sent(), [(0, Status::Ok), (1, Status::Ok)]);
}

/// What the first put of the impostor would be, had its header named this source.
fn naming(log: &[Frame], source: Nid, number: u32) -> Frame {
    let mut frame = find(log, Kind::Data, IMPOSTOR, TARGET);
    frame.header.key.message_id += u64::from(number);
    frame.transfer.number += number;
    frame.transfer.ack = None;
    frame.lnet.as_mut().unwrap().source.nid = source;
    frame
}

#[test]
fn a_peer_that_names_many_sources_is_one_peer() {
    let (mut network, log) = met();
    let own = nid(1, IMPOSTOR as u8 + 1);
    network.nodes[TARGET].shards[0].up.sources.clear();
    let sources =
        (0..10_000).map(|at: u32| nid(at as u16 % 256, (at >> 8) as u8)).chain([nid(1, VICTIM as u8 + 1)]);
    for (number, source) in (1..).zip(sources.filter(|source| *source != own)) {
        let now = network.now;
        network.nodes[TARGET].receive(now, &naming(&log, source, number));
    }
    let claims = &network.nodes[TARGET].shards[0].up.sources;
    assert_eq!(claims.len(), 10_000);
    assert!(claims.iter().all(|(claim, from)| *claim != own && *from == own), "each is its own address");
}

/// Each incarnation can sign any address: only the peer that receives there is believed.
#[test]
fn a_source_is_taken_where_the_same_incarnation_has_a_session() {
    let (mut network, log) = met();
    let other = network.nodes[IMPOSTOR].nids[1];
    let last_source = |network: &Network| *network.nodes[TARGET].shards[0].up.sources.last().unwrap();
    let now = network.now;
    network.nodes[TARGET].receive(now, &naming(&log, other, 1));
    assert_eq!(last_source(&network), (other, nid(1, 3)), "a claim");
    // It says hello in the name of that address, with a certificate that it made itself.
    let mut hello = find(&log, Kind::Hello, IMPOSTOR, TARGET);
    hello = Frame { ni: NiId(1), from: other, to: network.nodes[TARGET].nids[1], ..hello };
    assert_eq!(network.nodes[TARGET].receive(now, &hello.of(&identity(3, 1))), Some(Disposition::Done));
    network.nodes[TARGET].receive(now, &naming(&log, other, 2));
    assert_eq!(last_source(&network), (other, nid(1, 3)), "the answer went there and did not come back");
    // Now it receives there.
    let (mut network, log) = met();
    let (now, to) = (network.now, network.nodes[TARGET].nids[1]);
    network.nodes[IMPOSTOR].put(now, &to, 1, 4, 950, 100);
    network.run(SECOND / 10);
    let now = network.now;
    network.nodes[TARGET].receive(now, &naming(&log, other, 40));
    assert_eq!(last_source(&network), (other, other), "a session there");
}

/// Its receiver has never met it by the first rail.
#[test]
fn a_message_that_another_rail_carries_names_that_rail() {
    let mut network = Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 1)], 1);
    let put = |network: &mut Network, rail: u16, numbers: core::ops::Range<u64>| {
        for number in numbers {
            let (now, to) = (network.now, network.nodes[1].nids[usize::from(rail)]);
            network.nodes[0].put(now, &to, rail, 4, number, [100, 5000][number as usize % 2]);
        }
    };
    put(&mut network, 1, 0..2);
    network.run(SECOND / 10);
    put(&mut network, 0, 2..4);
    network.run(SECOND / 10);
    network.dead = vec![0];
    put(&mut network, 0, 4..12);
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 12);
    let sources = &network.nodes[1].shards[0].up.sources;
    assert_eq!(sources.len(), 12);
    assert!(sources.iter().all(|(source, from)| source == from), "{sources:?}");
    assert_eq!(sources.iter().filter(|(source, _)| source.net() == nid(2, 1).net()).count(), 2 + 8);
}
