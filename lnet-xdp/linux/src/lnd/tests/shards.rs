//! Several shards: packets that arrive on the wrong one, frames on their way home, random traffic.

use std::collections::BTreeMap;

use lnet_core::lnd::{NiId, Status, TxId};
use lnet_core::time::Instant;
use lnet_io::driver::Driver;
use lnet_io::reactor::{Reactor, Waiter, Waker};
use lnet_io::xsk::{CHUNK_BYTES, RingDescriptor, RingSizes, Umem};
use lnet_wire::Nid;
use lnet_wire::frame::Transfer;
use lnet_wire::nid::Net;
use proptest::prelude::*;

use super::super::exchange::{Arrival, BUFFERS_MAX, DatagramBuffer, Exchange, Packet, Sizes};
use super::node::{Node, Plan};
use super::wire::Wire;
use super::{acquainted, pattern};
use crate::lnd::XdpDrop;

fn plan(host: u8) -> Plan {
    Plan { shards: 2, queues: 2, ..Plan::new(host) }
}

/// Two nodes with sessions, match bits whose owner is `shard` of two, and a packet with them.
fn packet_for(shard: usize) -> (Wire, u64, Vec<u8>) {
    packet_between([plan(1), plan(2)], shard)
}

fn packet_between([a, b]: [Plan; 2], shard: usize) -> (Wire, u64, Vec<u8>) {
    let mut wire = acquainted(a, b);
    pattern(&mut wire.nodes[0], 0, 7);
    let now = wire.now;
    let [a, b] = &mut wire.nodes;
    for match_bits in 0..64 {
        let put = a.put(1, &b.plan, match_bits, 5000);
        a.shards[0].submit_at(now, put).unwrap();
        let packet = a.take_sent(0).remove(0);
        if b.owner_of(&packet) == shard {
            return (wire, match_bits, packet);
        }
    }
    panic!("no match bits lead to shard {shard}");
}

#[test]
fn a_misdirected_packet_is_handed_over_and_its_frames_come_home() {
    let (mut wire, match_bits, packet) = packet_for(1);
    let now = wire.now;
    let [a, b] = &mut wire.nodes;
    let home = b.shards[0].lnd.home.stock.len();
    let received = b.shards[1].lnd.counters().frames_received;
    // Shard 0 owns queue 0, and gets a packet there that is not its own. It takes two descriptors.
    assert!(b.deliver(0, 0, &packet));
    b.shards[0].drive(now);
    assert!(b.shards[0].up.arrived.is_empty());
    assert_eq!(b.shards[0].lnd.counters().frames_misdirected, 1);
    assert_eq!(b.shards[0].lnd.home.stock.len(), home, "the frames are with the other shard");
    assert!(b.shards[1].lnd.has_work());
    b.shards[1].drive(now);
    assert_eq!(b.shards[1].up.arrived, [(match_bits, 5000)]);
    assert!(a.shards[0].buffer()[..5000] == b.shards[1].buffer()[..5000]);
    assert_eq!(b.shards[1].lnd.counters().frames_received, received, "counted where it arrived");
    assert!(b.shards[0].lnd.has_work());
    b.shards[0].drive(now);
    assert_eq!(b.shards[0].lnd.home.stock.len(), home + 2, "and now they are home");
    wire.run();
    wire.assert_frames_conserved();
}

/// The rings of a node go, and an NI over a socket stays: what is between two shards is counted all the same.
#[test]
fn a_misdirected_packet_of_rings_that_have_gone_is_counted() {
    let (mut wire, _, packet) = packet_for(1);
    let now = wire.now;
    let b = &mut wire.nodes[1];
    assert!(b.deliver(0, 0, &packet));
    b.shards[0].drive(now);
    let shard = &mut b.shards[1];
    shard.lnd.close_port(now, NiId(0), &mut shard.up, &shard.memory);
    let port = shard.lnd.remove_port(NiId(0));
    shard.drive(now);
    assert!(shard.up.arrived.is_empty());
    assert_eq!(shard.lnd.counters().dropped(XdpDrop::NotOurs), 1);
    drop(port);
}

#[test]
fn a_frame_received_on_a_siblings_queue_goes_home() {
    let (mut wire, match_bits, packet) = packet_for(1);
    let now = wire.now;
    let b = &mut wire.nodes[1];
    // Steered well, but the queue is shard 0's.
    assert!(b.deliver(0, 1, &packet));
    b.shards[1].drive(now);
    assert_eq!(b.shards[1].up.arrived, [(match_bits, 5000)]);
    assert!(b.shards[0].lnd.has_work());
    wire.run();
    wire.assert_frames_conserved();
}

/// The queue is of a shard that does not run: frames that its sibling takes from it are missing until it
/// does.
#[test]
fn no_frame_is_granted_that_a_sibling_has_yet_to_give_to_the_kernel() {
    let rings = RingSizes { fill: 256, completion: 256, rx: 256, tx: 256 };
    let plan = |host| Plan { rings, ..plan(host) };
    let (mut wire, match_bits, packet) = packet_between([plan(1), plan(2)], 1);
    let now = wire.now;
    let [a, b] = &mut wire.nodes;
    let take = |b: &mut Node, now, packet: &[u8]| {
        assert!(b.deliver(0, 1, packet));
        b.shards[1].drive(now);
    };
    take(b, now, &packet);
    for tx in 2..32 {
        let put = a.put(tx, &b.plan, match_bits, 64);
        a.shards[0].submit_at(now, put).unwrap();
        a.take_sent(0).iter().for_each(|packet| take(b, now, packet));
    }
    // An acknowledgement is due some time after a message.
    let granted = |b: &mut Node, now: Instant| {
        let later = Instant(now.0 + 1_000_000);
        b.shards[1].drive(later);
        let acks = b.take_sent(1);
        let ack = acks.last().expect("what came is acknowledged");
        Transfer::decode(ack[42..].first_chunk().unwrap()).unwrap().ack.unwrap().grant_bytes
    };
    let less = granted(b, now);
    b.settle_at(now);
    let put = a.put(32, &b.plan, match_bits, 64);
    a.shards[0].submit_at(now, put).unwrap();
    a.take_sent(0).iter().for_each(|packet| take(b, now, packet));
    let all = granted(b, now);
    assert!(less + 30 * CHUNK_BYTES <= all, "{less} of {all} bytes while more than 30 frames are missing");
    wire.run();
    wire.assert_frames_conserved();
}

#[test]
fn packets_of_two_senders_are_not_mixed_up_while_their_parts_arrive() {
    let (_umem, mut frames) = Umem::plain(8).unwrap();
    let wakers: Vec<Waker> = (0..3).map(|_| Waiter::new(1, Reactor::default()).unwrap().waker()).collect();
    let (mut ends, _return_rings) =
        Exchange::mesh(Sizes { frames_per_shard: 4, home_wake_count: 1 }, &wakers);
    let mut part = |mark: u32, more: bool| {
        let frame = frames.pop().unwrap();
        Packet { parts: vec![RingDescriptor { frame, offset: 0, length: mark, more }], datagram: None }
    };
    let mut packet = Packet::default();
    assert!(ends[1].hand_over(0, &mut part(10, true)));
    assert!(ends[0].receive(&mut packet).is_none(), "half a packet");
    assert!(ends[2].hand_over(0, &mut part(20, true)));
    assert!(ends[1].hand_over(0, &mut part(11, true)));
    assert!(ends[0].receive(&mut packet).is_none(), "halves of two");
    assert!(ends[2].hand_over(0, &mut part(21, false)));
    let mut lengths = |packet: &mut Packet| {
        let Some(Arrival::Packet) = ends[0].receive(packet) else { panic!("no packet") };
        packet.parts.drain(..).map(|part| part.length).collect::<Vec<u32>>()
    };
    assert_eq!(lengths(&mut packet), [20, 21]);
    assert!(ends[1].hand_over(0, &mut part(12, false)));
    let Some(Arrival::Packet) = ends[0].receive(&mut packet) else { panic!("no packet") };
    assert_eq!(packet.parts.iter().map(|part| part.length).collect::<Vec<_>>(), [10, 11, 12]);
    // The shard may be told of more than has come, until it finds nothing.
    packet.parts.clear();
    assert!(ends[0].receive(&mut packet).is_none());
    assert!(!ends[0].has_arrivals());
}

/// A sibling that takes nothing cannot be given more packets than there are places; frames of its own find
/// their way home all the same.
#[test]
fn packets_for_a_busy_sibling_are_refused_and_leave_room_for_frames() {
    let (_umem, mut frames) = Umem::plain(2048).unwrap();
    let wakers: Vec<Waker> = (0..2).map(|_| Waiter::new(1, Reactor::default()).unwrap().waker()).collect();
    let (mut ends, _return_rings) =
        Exchange::mesh(Sizes { frames_per_shard: 8, home_wake_count: 1 }, &wakers);
    let mut given = 0;
    loop {
        let packet = RingDescriptor { frame: frames.pop().unwrap(), offset: 0, length: 1, more: false };
        let mut packet = Packet { parts: vec![packet], datagram: None };
        if !ends[1].hand_over(0, &mut packet) {
            assert_eq!(packet.parts.len(), 1, "a refused packet stays whole");
            break;
        }
        given += 1;
    }
    assert_eq!(given, 1024);
    for _ in 0..8 {
        ends[1].send_home(0, frames.pop().unwrap());
    }
}

/// Copies of datagrams arrive in order, their buffers come back, and one sibling does not get all of them.
#[test]
fn datagrams_are_handed_over_and_their_buffers_come_home() {
    let from = Nid::new_ip(Net::XDP, [10, 0, 0, 1].into()).unwrap();
    let wakers: Vec<Waker> = (0..3).map(|_| Waiter::new(1, Reactor::default()).unwrap().waker()).collect();
    let (mut ends, _return_rings) =
        Exchange::mesh(Sizes { frames_per_shard: 8, home_wake_count: 1 }, &wakers);
    let mut buffers: Vec<_> = DatagramBuffer::several(0, BUFFERS_MAX, 100).collect();
    let mut packet = Packet::default();
    for round in 0..3_u8 {
        let mut given = 0;
        loop {
            let mut buffer = buffers.pop().unwrap();
            buffer.fill(NiId(1), from, &[round, given as u8]);
            packet.datagram = Some(buffer);
            if !ends[0].hand_over(2, &mut packet) {
                buffers.push(packet.datagram.take().unwrap());
                break;
            }
            given += 1;
        }
        assert_eq!(given, BUFFERS_MAX / 2, "a share of two siblings");
        for number in 0..given {
            assert!(matches!(ends[2].receive(&mut packet), Some(Arrival::Packet)));
            let datagram = packet.datagram.take().unwrap();
            assert_eq!((datagram.ni, datagram.from, datagram.home), (NiId(1), from, 0));
            assert_eq!(datagram.bytes(), [round, number as u8]);
            ends[2].return_buffer(datagram);
        }
        assert!(ends[2].receive(&mut packet).is_none());
        while let Some(Arrival::Buffer(buffer)) = ends[0].receive(&mut packet) {
            buffers.push(buffer);
        }
        assert_eq!(buffers.len(), BUFFERS_MAX);
    }
}

/// The shard that received a packet too many drops it, counts it, and has its frames again.
#[test]
fn a_packet_for_a_busy_sibling_is_dropped_and_counted() {
    let rings = RingSizes { fill: 2048, ..plan(1).rings };
    let (mut wire, match_bits, packet) = packet_between([1, 2].map(|host| Plan { rings, ..plan(host) }), 1);
    let now = wire.now;
    let b = &mut wire.nodes[1];
    let mut arrive = || {
        assert!(b.deliver(0, 0, &packet));
        b.shards[0].drive(now);
        XdpDrop::ALL.map(|reason| b.shards[0].lnd.counters().dropped(reason))
    };
    // Each takes two of the 1024 places.
    for count in 0..512 {
        assert_eq!(arrive(), [0; XdpDrop::ALL.len()], "packet {count}");
    }
    let only = XdpDrop::ALL.map(|reason| u64::from(reason == XdpDrop::SiblingBusy));
    assert_eq!(arrive(), only);
    assert_eq!(b.shards[0].lnd.counters().frames_misdirected, 513);
    wire.run();
    assert_eq!(wire.nodes[1].shards[1].up.arrived, [(match_bits, 5000)], "the others are the same message");
    wire.assert_frames_conserved();
}

/// A shard that sends on a sibling's queue: the owner looks for completions as long as there are some to
/// come.
#[test]
fn the_owner_of_a_queue_awaits_what_its_siblings_send_there() {
    let one_queue = |host| Plan { shards: 2, queues: 1, ..Plan::new(host) };
    let mut wire = acquainted(one_queue(1), one_queue(2));
    let now = wire.now;
    let [a, b] = &mut wire.nodes;
    assert!(!a.shards[0].lnd.awaits_completions());
    let put = a.put(1, &b.plan, 7, 5000);
    a.shards[1].submit_at(now, put).unwrap();
    assert!(!a.shards[1].lnd.awaits_completions(), "it has frames enough");
    assert!(a.shards[0].lnd.awaits_completions(), "the owner looks in the sender's stead");
    assert_eq!(a.take_sent(0).len(), 1);
    a.shards[0].drive(now);
    assert!(!a.shards[0].lnd.awaits_completions());
    wire.run();
    wire.assert_frames_conserved();
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Submit {
        node: usize,
        shard: usize,
        match_bits: u64,
        length_bytes: u32,
    },
    Drive {
        node: usize,
        shard: usize,
    },
    /// The packets that a node's queue has sent arrive on a queue of the other node; one byte of some is
    /// changed, and some arrive on the wrong shard.
    Carry {
        node: usize,
        queue: usize,
        arriving: usize,
        wrong_shard: bool,
        change: Option<usize>,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (node, two) = (0..2_usize, 0..2_usize);
    let length = prop_oneof![4 => 0..200_u32, 1 => 0..20_000_u32];
    let submit =
        (node.clone(), two.clone(), 0..16_u64, length).prop_map(|(node, shard, match_bits, length_bytes)| {
            Step::Submit { node, shard, match_bits, length_bytes }
        });
    let drive = (node.clone(), two.clone()).prop_map(|(node, shard)| Step::Drive { node, shard });
    let change = prop_oneof![5 => Just(None), 1 => (42..202_usize).prop_map(Some)];
    let carry = (node, two.clone(), two, any::<bool>(), change).prop_map(
        |(node, queue, arriving, wrong_shard, change)| Step::Carry {
            node,
            queue,
            arriving,
            wrong_shard,
            change,
        },
    );
    prop::collection::vec(prop_oneof![3 => submit, 3 => drive, 2 => carry], 1..300)
}

fn carry(nodes: &mut [Node; 2], step: Step) {
    let Step::Carry { node, queue, arriving, wrong_shard, change } = step else { return };
    for mut packet in nodes[node].take_sent(queue) {
        let target = &mut nodes[1 - node];
        let shard = target.owner_of(&packet) ^ usize::from(wrong_shard);
        if let Some(byte) = change.and_then(|place| packet.get_mut(place)) {
            *byte ^= 0xFF;
        }
        target.deliver(arriving, shard, &packet);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_traffic_keeps_every_frame_and_ends_every_message_once(steps in steps()) {
        let mut wire = Wire::new(plan(1), plan(2));
        let mut submitted = 0;
        for step in steps {
            wire.now.0 += 1000;
            let (now, nodes) = (wire.now, &mut wire.nodes);
            match step {
                Step::Submit { node, shard, match_bits, length_bytes } => {
                    let peer = nodes[1 - node].plan;
                    let put = nodes[node].put(submitted, &peer, match_bits, length_bytes);
                    submitted += u32::from(nodes[node].shards[shard].submit_at(now, put).is_ok());
                }
                Step::Drive { node, shard } => {
                    nodes[node].shards[shard].drive(now);
                }
                Step::Carry { .. } => carry(nodes, step),
            }
        }
        wire.run();
        let mut ends = BTreeMap::<TxId, u32>::new();
        let shards = || wire.nodes.iter().flat_map(|node| &node.shards);
        for (tx, status) in shards().flat_map(|shard| &shard.up.sent) {
            prop_assert_eq!(*status, Status::Ok);
            *ends.entry(*tx).or_default() += 1;
        }
        prop_assert_eq!(ends.len() as u32, submitted);
        prop_assert!(ends.values().all(|count| *count == 1));
        let taken = shards().map(|shard| shard.up.received).sum::<u32>();
        prop_assert_eq!(taken, submitted);
        wire.assert_frames_conserved();
    }
}
