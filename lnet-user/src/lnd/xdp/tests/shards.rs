//! Several shards: packets that arrive on the wrong one, frames on their way home, random traffic.

use std::collections::BTreeMap;

use lnet_core::lnd::{Status, TxId};
use proptest::prelude::*;

use super::super::exchange::{Arrival, Exchange, Sizes};
use super::node::{NOW, Node, Plan};
use super::pattern;
use crate::uring::{Waiter, Waker};
use crate::xsk::{RxDescriptor, Umem};

fn plan(host: u8) -> Plan {
    Plan { shards: 2, queues: 2, ..Plan::new(host) }
}

/// Match bits whose owner is `shard` of two, and a packet with them.
fn packet_for(node: &mut Node, peer: &Node, shard: usize) -> (u64, Vec<u8>) {
    for match_bits in 0..64 {
        let put = node.put(1, &peer.plan, match_bits, 5000);
        node.shards[0].submit(put).unwrap();
        let packet = node.take_sent(0).remove(0);
        node.settle();
        if peer.owner_of(&packet) == shard {
            return (match_bits, packet);
        }
    }
    panic!("no match bits lead to shard {shard}");
}

#[test]
fn a_misdirected_packet_is_handed_over_and_its_frames_come_home() {
    let [mut a, mut b] = Node::pair(plan(1), plan(2));
    pattern(&mut a, 0, 7);
    let (match_bits, packet) = packet_for(&mut a, &b, 1);
    let home = b.shards[0].lnd.stock.len();
    // On queue 0, which shard 0 owns, to shard 0, whose it is not. It takes two descriptors.
    assert!(b.deliver(0, 0, &packet));
    b.shards[0].drive(NOW);
    assert!(b.shards[0].up.arrived.is_empty());
    assert_eq!(b.shards[0].lnd.counters().frames_misdirected, 1);
    assert_eq!(b.shards[0].lnd.stock.len(), home, "the frames are with the other shard");
    assert!(b.shards[1].lnd.has_work());
    b.shards[1].drive(NOW);
    assert_eq!(b.shards[1].up.arrived, [(match_bits, 5000)]);
    assert_eq!(a.shards[0].buffer()[..5000], b.shards[1].buffer()[..5000]);
    assert_eq!(b.shards[1].lnd.counters().frames_received, 0, "counted where it arrived");
    assert!(b.shards[0].lnd.has_work());
    b.shards[0].drive(NOW);
    assert_eq!(b.shards[0].lnd.stock.len(), home + 2, "and now they are home");
    b.settle();
    a.settle();
    a.assert_frames_conserved();
    b.assert_frames_conserved();
}

#[test]
fn a_frame_received_on_a_siblings_queue_goes_home() {
    let [mut a, mut b] = Node::pair(plan(1), plan(2));
    let (match_bits, packet) = packet_for(&mut a, &b, 1);
    // Steered well, but the queue is shard 0's.
    assert!(b.deliver(0, 1, &packet));
    b.shards[1].drive(NOW);
    assert_eq!(b.shards[1].up.arrived, [(match_bits, 5000)]);
    assert!(b.shards[0].lnd.has_work());
    b.settle();
    b.assert_frames_conserved();
}

#[test]
fn packets_of_two_senders_are_not_mixed_up_while_their_parts_arrive() {
    let (_umem, mut frames) = Umem::plain(8).unwrap();
    let wakers: Vec<Waker> = (0..3).map(|_| Waiter::new(1).unwrap().waker()).collect();
    let mut ends = Exchange::mesh(Sizes { frames_per_shard: 4, home_wake_count: 1 }, &wakers);
    let mut part = |mark: u32, more: bool| {
        let frame = frames.pop().unwrap();
        vec![RxDescriptor { frame, offset: 0, length: mark, more }]
    };
    let mut packet = Vec::new();
    assert!(ends[1].hand_over(0, 5, &mut part(10, true)));
    assert!(ends[0].receive(&mut packet).is_none(), "half a packet");
    assert!(ends[2].hand_over(0, 6, &mut part(20, true)));
    assert!(ends[1].hand_over(0, 5, &mut part(11, true)));
    assert!(ends[0].receive(&mut packet).is_none(), "halves of two");
    assert!(ends[2].hand_over(0, 6, &mut part(21, false)));
    let mut lengths = |packet: &mut Vec<RxDescriptor>| {
        let Some(Arrival::Packet { lane_index }) = ends[0].receive(packet) else { panic!("no packet") };
        let lengths: Vec<u32> = packet.drain(..).map(|part| part.length).collect();
        (lane_index, lengths)
    };
    assert_eq!(lengths(&mut packet), (6, vec![20, 21]));
    assert!(ends[1].hand_over(0, 5, &mut part(12, false)));
    let Some(Arrival::Packet { lane_index: 5 }) = ends[0].receive(&mut packet) else { panic!("no packet") };
    assert_eq!(packet.iter().map(|part| part.length).collect::<Vec<_>>(), [10, 11, 12]);
    assert!(!ends[0].has_parcels());
}

/// A sibling that takes nothing cannot be given more packets than there are places; frames of its own find
/// their way home all the same.
#[test]
fn packets_for_a_busy_sibling_are_refused_and_leave_room_for_frames() {
    let (_umem, mut frames) = Umem::plain(2048).unwrap();
    let wakers: Vec<Waker> = (0..2).map(|_| Waiter::new(1).unwrap().waker()).collect();
    let mut ends = Exchange::mesh(Sizes { frames_per_shard: 8, home_wake_count: 1 }, &wakers);
    let mut given = 0;
    loop {
        let mut packet =
            vec![RxDescriptor { frame: frames.pop().unwrap(), offset: 0, length: 1, more: false }];
        if !ends[1].hand_over(0, 0, &mut packet) {
            assert_eq!(packet.len(), 1, "a refused packet stays whole");
            break;
        }
        given += 1;
    }
    assert_eq!(given, 1024);
    for _ in 0..8 {
        ends[1].send_home(0, frames.pop().unwrap());
    }
}

/// A shard that sends on a sibling's queue: the owner looks for completions as long as there are some to come.
#[test]
fn the_owner_of_a_queue_awaits_what_its_siblings_send_there() {
    let one_queue = |host| Plan { shards: 2, queues: 1, ..Plan::new(host) };
    let [mut a, b] = Node::pair(one_queue(1), one_queue(2));
    assert!(!a.shards[0].lnd.awaits_completions());
    let put = a.put(1, &b.plan, 7, 5000);
    a.shards[1].submit(put).unwrap();
    assert!(a.shards[1].lnd.awaits_completions());
    assert!(a.shards[0].lnd.awaits_completions(), "the owner looks in the sender's stead");
    assert_eq!(a.take_sent(0).len(), 1);
    a.shards[0].drive(NOW);
    assert!(!a.shards[0].lnd.awaits_completions());
    a.shards[1].drive(NOW);
    assert!(!a.shards[1].lnd.awaits_completions());
    a.settle();
    a.assert_frames_conserved();
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

/// What became of the messages of a run.
#[derive(Default)]
struct Tally {
    submitted: u32,
    delivered: u32,
    lost: u32,
}

fn carry(nodes: &mut [Node; 2], step: Step, tally: &mut Tally) {
    let Step::Carry { node, queue, arriving, wrong_shard, change } = step else { return };
    for mut packet in nodes[node].take_sent(queue) {
        let target = &mut nodes[1 - node];
        let shard = target.owner_of(&packet) ^ usize::from(wrong_shard);
        let changed = change.and_then(|place| packet.get_mut(place)).map(|byte| *byte ^= 0xFF).is_some();
        if !target.deliver(arriving, shard, &packet) || changed {
            tally.lost += 1;
        } else {
            tally.delivered += 1;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_traffic_keeps_every_frame_and_ends_every_message_once(steps in steps()) {
        let mut nodes = Node::pair(plan(1), plan(2));
        let mut tally = Tally::default();
        for step in steps {
            match step {
                Step::Submit { node, shard, match_bits, length_bytes } => {
                    let peer = nodes[1 - node].plan;
                    let put = nodes[node].put(tally.submitted, &peer, match_bits, length_bytes);
                    tally.submitted += u32::from(nodes[node].shards[shard].submit(put).is_ok());
                }
                Step::Drive { node, shard } => {
                    nodes[node].shards[shard].drive(NOW);
                }
                Step::Carry { .. } => carry(&mut nodes, step, &mut tally),
            }
        }
        for (node, queue) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            // Room in the completion rings first.
            nodes[node].settle();
            let step = Step::Carry { node, queue, arriving: queue, wrong_shard: false, change: None };
            carry(&mut nodes, step, &mut tally);
        }
        nodes.iter_mut().for_each(Node::settle);

        let mut ends = BTreeMap::<TxId, u32>::new();
        let shards = || nodes.iter().flat_map(|node| &node.shards);
        for (tx, status) in shards().flat_map(|shard| &shard.up.sent) {
            prop_assert_eq!(*status, Status::Ok);
            *ends.entry(*tx).or_default() += 1;
        }
        prop_assert_eq!(ends.len() as u32, tally.submitted);
        prop_assert!(ends.values().all(|count| *count == 1));
        let taken = shards().map(|shard| shard.up.received).sum::<u32>();
        prop_assert_eq!(taken, tally.delivered);
        prop_assert_eq!(tally.delivered + tally.lost, tally.submitted);
        nodes.iter().for_each(Node::assert_frames_conserved);
    }
}
