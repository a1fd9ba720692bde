//! The LND over rings without a kernel.

mod node;
mod refusals;
mod shards;

use lnet_core::lnd::{Cause, Full, Progress, Status, TxId};
use lnet_core::time::Instant;
use lnet_wire::{Body, WireHandle};

use super::OVERHEAD_BYTES;

use self::node::{INTERFACE, NOW, Node, Plan};
use crate::netlink::{Resolution, Unreachable};
use crate::xsk::RingSizes;

/// Fills the first bytes of a shard's buffer with a pattern of its own.
fn pattern(node: &mut Node, shard: usize, mark: u8) {
    for (index, byte) in node.shards[shard].buffer().iter_mut().enumerate() {
        *byte = mark ^ index as u8 ^ (index >> 8) as u8;
    }
}

/// Sends one message from `a` to `b` and checks every byte of it.
fn carry(a: &mut Node, b: &mut Node, length_bytes: u32) {
    pattern(a, 0, length_bytes as u8);
    b.shards[0].buffer().fill(0);
    let put = a.put(1, &b.plan, 9, length_bytes);
    a.shards[0].submit(put).unwrap();
    let packets = a.take_sent(0);
    assert_eq!(packets.len(), 1);
    assert_eq!(b.owner_of(&packets[0]), 0);
    assert!(b.deliver(0, 0, &packets[0]));
    a.settle();
    b.settle();
    assert_eq!(std::mem::take(&mut a.shards[0].up.sent), [(TxId(1), Status::Ok)]);
    assert_eq!(std::mem::take(&mut b.shards[0].up.arrived), [(9, length_bytes)]);
    assert_eq!(std::mem::take(&mut b.shards[0].up.received), 1);
    let length = length_bytes as usize;
    assert_eq!(a.shards[0].buffer()[..length], b.shards[0].buffer()[..length], "{length} bytes");
    assert!(b.shards[0].buffer()[length..].iter().all(|byte| *byte == 0), "bytes behind {length}");
}

#[test]
fn a_message_goes_out_and_in() {
    for ipv6 in [false, true] {
        let [mut a, mut b] = Node::pair(Plan { ipv6, ..Plan::new(1) }, Plan { ipv6, ..Plan::new(2) });
        // Empty, small, up to the end of one chunk to send and to receive, beyond it, and the largest.
        let largest = 65535 - 40 - 8 - OVERHEAD_BYTES as u32;
        for length_bytes in
            [0, 1, 64, 1400, 3617, 3618, 3637, 3638, 3639, 3873, 3874, 3894, 3895, 8191, 20_000, largest]
        {
            carry(&mut a, &mut b, length_bytes);
        }
        a.assert_frames_conserved();
        b.assert_frames_conserved();
        assert_eq!(a.shards[0].lnd.counters().frames_sent, 16);
        assert_eq!(b.shards[0].lnd.counters().frames_received, 16);
    }
}

#[test]
fn a_packet_that_arrives_in_parts_waits_for_its_end() {
    let [mut a, mut b] = Node::pair(Plan::new(1), Plan::new(2));
    pattern(&mut a, 0, 3);
    let put = a.put(1, &b.plan, 9, 20_000);
    a.shards[0].submit(put).unwrap();
    assert!(b.deliver(0, 0, &a.take_sent(0)[0]));
    let shard = &mut b.shards[0];
    for _ in 0..5 {
        assert_eq!(shard.drive_at_most(NOW, 1).received, 1);
        assert!(shard.up.arrived.is_empty());
    }
    b.settle();
    assert_eq!(b.shards[0].up.arrived, [(9, 20_000)]);
    assert_eq!(a.shards[0].buffer()[..20_000], b.shards[0].buffer()[..20_000]);
    b.assert_frames_conserved();
}

#[test]
fn a_message_longer_than_a_frame_is_refused() {
    let [mut a, b] = Node::pair(Plan::new(1), Plan::new(2));
    let put = a.put(1, &b.plan, 9, 65535 - 20 - 8 - OVERHEAD_BYTES as u32 + 1);
    a.shards[0].submit(put).unwrap();
    a.settle();
    assert_eq!(a.shards[0].up.sent, [(TxId(1), Status::NeverSent(Cause::TooLong))]);
    assert_eq!(a.shards[0].lnd.counters().messages_refused, 1);
    assert!(a.take_sent(0).is_empty());
    a.assert_frames_conserved();
}

#[test]
fn a_full_ring_gives_the_message_back() {
    let rings = RingSizes { fill: 8, completion: 8, rx: 8, tx: 4 };
    let [mut a, b] = Node::pair(Plan { rings, ..Plan::new(1) }, Plan::new(2));
    for tx in 0..4 {
        let put = a.put(tx, &b.plan, 9, 64);
        a.shards[0].submit(put).unwrap();
    }
    let put = a.put(4, &b.plan, 9, 64);
    assert_eq!(a.shards[0].submit(put), Err(Full(put)));
    assert_eq!(a.take_sent(0).len(), 4);
    a.settle();
    a.shards[0].submit(put).unwrap();
    assert_eq!(a.take_sent(0).len(), 1);
    a.settle();
    let sent: Vec<_> = (0..5).map(|tx| (TxId(tx), Status::Ok)).collect();
    assert_eq!(a.shards[0].up.sent, sent);
    a.assert_frames_conserved();
}

#[test]
fn fill_rings_are_topped_up_in_batches_and_never_run_dry() {
    let [mut a, mut b] = Node::pair(Plan::new(1), Plan::new(2));
    for round in 0..200_u32 {
        let put = a.put(round, &b.plan, 9, 64);
        a.shards[0].submit(put).unwrap();
        let packet = a.take_sent(0).remove(0);
        assert!(b.deliver(0, 0, &packet), "round {round}: the kernel has no frame left");
        b.shards[0].drive(NOW);
        a.settle();
        let spare = b.shards[0].lnd.stock.len() - b.plan.rings.tx as usize;
        assert!(spare < 16, "round {round}: {spare} frames wait for a quarter of 64 to be missing");
    }
    // Emptied at a blow while no frame is at home, then in an idle turn.
    let kept = std::mem::take(&mut b.shards[0].lnd.stock);
    let put = a.put(0, &b.plan, 9, 64);
    a.shards[0].submit(put).unwrap();
    let packet = a.take_sent(0).remove(0);
    while b.deliver(0, 0, &packet) {}
    assert!(b.shards[0].drive(NOW).received != 0);
    b.shards[0].lnd.stock.extend(kept);
    b.settle();
    assert!(b.deliver(0, 0, &packet));
    b.settle();
    b.assert_frames_conserved();
}

#[test]
fn a_parked_message_leaves_when_its_next_hop_is_known() {
    let (mut a, peer) = (Node::new(Plan::new(1)), Plan::new(2));
    a.settle();
    let put = a.put(1, &peer, 9, 64);
    a.shards[0].submit(put).unwrap();
    a.settle();
    assert!(a.take_sent(0).is_empty() && a.shards[0].up.sent.is_empty());
    // Between the answer and the next turn other messages are submitted: they find the way themselves,
    // and must not make the LND believe that it has dealt with the change.
    a.learn(&peer);
    for tx in 2..4 {
        let put = a.put(tx, &peer, 9, 64);
        a.shards[0].submit(put).unwrap();
    }
    assert!(a.shards[0].lnd.has_work());
    a.settle();
    assert_eq!(a.take_sent(0).len(), 3);
    a.settle();
    let mut sent = a.shards[0].up.sent.clone();
    sent.sort_unstable_by_key(|(tx, _)| *tx);
    assert_eq!(sent, [1, 2, 3].map(|tx| (TxId(tx), Status::Ok)));
    assert!(!a.shards[0].lnd.has_work());
    a.assert_frames_conserved();
}

#[test]
fn a_message_waits_for_its_next_hop_until_its_time_is_up() {
    let (mut a, peer) = (Node::new(Plan::new(1)), Plan::new(2));
    let put = a.put(1, &peer, 9, 64);
    a.shards[0].submit(put).unwrap();
    let due = a.shards[0].poll_timeout().unwrap();
    a.shards[0].drive(Instant(due.0 - 1));
    assert!(a.shards[0].up.sent.is_empty());
    a.shards[0].drive(due);
    assert_eq!(a.shards[0].up.sent, [(TxId(1), Status::NeverSent(Cause::Unreachable))]);
}

#[test]
fn a_message_without_a_way_ends_at_once() {
    let (mut a, peer) = (Node::new(Plan::new(1)), Plan::new(2));
    a.neighbours.answer(INTERFACE, peer.address(), Resolution::Unreachable(Unreachable::NoRoute));
    let put = a.put(1, &peer, 9, 64);
    a.shards[0].submit(put).unwrap();
    a.settle();
    assert_eq!(a.shards[0].up.sent, [(TxId(1), Status::NeverSent(Cause::Unreachable))]);
}

/// The new address counts from the next message on, not only from the next turn.
#[test]
fn a_message_takes_the_way_that_its_peer_has_now() {
    let [mut a, b] = Node::pair(Plan::new(1), Plan::new(2));
    let put = a.put(1, &b.plan, 9, 64);
    a.shards[0].submit(put).unwrap();
    assert_eq!(a.take_sent(0)[0][..6], [2, 0, 0, 0, 0, 2]);
    a.neighbours.answer(INTERFACE, b.plan.address(), Resolution::Mac([2, 0, 0, 0, 0, 77]));
    let put = a.put(2, &b.plan, 9, 64);
    a.shards[0].submit(put).unwrap();
    assert_eq!(a.take_sent(0)[0][..6], [2, 0, 0, 0, 0, 77]);
    a.settle();
    a.assert_frames_conserved();
}

/// Requests under made-up addresses: their answers wait for next hops that never come, and may not hold all
/// credits meanwhile. The node's own requests wait as ever.
#[test]
fn a_bounded_number_of_answers_waits_for_next_hops() {
    let (mut a, peer) = (Node::new(Plan::new(1)), Plan::new(2));
    for tx in 1..=6 {
        let mut ack = a.put(tx, &peer, 9, 0);
        ack.header.body = Body::Ack { md: WireHandle::NONE, match_bits: 9, manipulated_length: 0 };
        a.shards[0].submit(ack).unwrap();
    }
    let put = a.put(7, &peer, 9, 64);
    a.shards[0].submit(put).unwrap();
    a.shards[0].drive(NOW);
    let refused = Status::NeverSent(Cause::Unreachable);
    assert_eq!(a.shards[0].up.sent, [(TxId(5), refused), (TxId(6), refused)], "four may wait");
    a.learn(&peer);
    a.settle();
    assert_eq!(a.take_sent(0).len(), 5);
    let ack = Body::Ack { md: WireHandle::NONE, match_bits: 9, manipulated_length: 0 };
    let mut again = a.put(8, &peer, 9, 0);
    again.header.body = ack;
    a.shards[0].submit(again).unwrap();
    assert_eq!(a.take_sent(0).len(), 1, "those that left make room");
}

#[test]
fn nothing_allocates_once_traffic_flows() {
    let [mut a, mut b] = Node::pair(Plan::new(1), Plan::new(2));
    carry(&mut a, &mut b, 9000);
    let packet = {
        let put = a.put(1, &b.plan, 9, 9000);
        a.shards[0].submit(put).unwrap();
        a.take_sent(0).remove(0)
    };
    let [unknown, known] = [Plan::new(3), b.plan].map(|peer| a.put(1, &peer, 9, 64));
    // The recorder is no part of the data path.
    for up in [&mut a.shards[0].up, &mut b.shards[0].up] {
        up.arrived.reserve(1000);
        up.sent.reserve(1000);
    }
    let allocations = allocation_counter::measure(|| {
        for _ in 0..200 {
            // A ring that is full refuses, which allocates nothing either.
            let _ = a.shards[0].submit(known);
            a.shards[0].drive(NOW);
        }
        for _ in 0..200 {
            a.shards[0].submit(unknown).unwrap();
            a.shards[0].drive(NOW);
        }
    });
    assert_eq!(allocations.count_total, 0, "{allocations:?}");
    for _ in 0..10 {
        assert!(b.deliver(0, 0, &packet));
        let allocations = allocation_counter::measure(|| {
            assert_ne!(b.shards[0].drive(NOW), Progress::default());
        });
        assert_eq!(allocations.count_total, 0, "{allocations:?}");
    }
}
