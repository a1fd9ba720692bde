//! The LND over rings without a kernel.

mod captures;
mod faults;
mod fragments;
mod mixed;
use super::played as node;
mod ports;
#[path = "../../../../../lnet-io/src/capture/tests/reading.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests of other crates")]
mod reading;
mod refusals;
mod registered;
mod shards;
mod short;
mod sockets;
mod strangers;
mod wire;

use std::collections::BTreeSet;

use lnet_core::lnd::{Cause, Full, Progress, Status, TxId};
use lnet_core::time::Instant;
use lnet_io::driver::Driver;
use lnet_io::netlink::{Resolution, Unreachable};
use lnet_io::xsk::{CHUNK_BYTES, RECEIVE_BYTES, RingSizes};
use lnet_wire::frame::{FIRST_HEADERS_BYTES, KIND_OFFSET, Kind};
use lnet_wire::header::PAYLOAD_BYTES_MAX;
use lnet_wire::packet::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, UDP_BYTES};
use lnet_wire::{Body, WireHandle};

use self::node::{BUFFER_BYTES, NOW, Node, Plan};
use self::refusals::assert_dropped;
use self::wire::Wire;
use super::{XdpDrop, frame_max_bytes};

/// Fills a shard's buffer with a pattern of its own.
fn pattern(node: &mut Node, shard: usize, mark: u8) {
    for (index, byte) in node.shards[shard].buffer().iter_mut().enumerate() {
        *byte = mark ^ index as u8 ^ (index >> 8) as u8 ^ (index >> 16) as u8;
    }
}

/// What a packet over IPv4 is for.
fn kind_of(packet: &[u8]) -> u8 {
    packet[42 + KIND_OFFSET]
}

/// Sends one message from node 0 to node 1 and checks every byte of it; the lengths of the frames that it
/// took.
fn carry(wire: &mut Wire, length_bytes: u32) -> Vec<usize> {
    let [a, b] = &mut wire.nodes;
    pattern(a, 0, length_bytes as u8);
    b.shards[0].buffer().fill(0);
    let put = a.put(1, &b.plan, 9, length_bytes);
    wire.submit(0, 0, put);
    let mut lengths = Vec::new();
    wire.run_with(&mut |sender, packet| {
        lengths.extend((sender == 0).then_some(packet.len()));
        vec![packet]
    });
    let [a, b] = &mut wire.nodes;
    assert_eq!(std::mem::take(&mut a.shards[0].up.sent), [(TxId(1), Status::Ok)], "{length_bytes} bytes");
    assert_eq!(std::mem::take(&mut b.shards[0].up.arrived), [(9, length_bytes)]);
    assert_eq!(std::mem::take(&mut b.shards[0].up.received), 1);
    let length = length_bytes as usize;
    assert!(a.shards[0].buffer()[..length] == b.shards[0].buffer()[..length], "{length} bytes");
    assert!(b.shards[0].buffer()[length..].iter().all(|byte| *byte == 0), "bytes wrapped {length}");
    lengths
}

/// Two nodes that have a session each with the other.
fn acquainted(a: Plan, b: Plan) -> Wire {
    let mut wire = Wire::new(a, b);
    for (sender, peer) in [(0, b), (1, a)] {
        for shard in 0..wire.nodes[sender].shards.len() {
            for match_bits in 0..8 {
                let put = wire.nodes[sender].put(0, &peer, match_bits, 0);
                wire.submit(sender, shard, put);
            }
        }
    }
    wire.run();
    for shard in wire.nodes.iter_mut().flat_map(|node| &mut node.shards) {
        assert!(shard.up.sent.iter().all(|(_, status)| *status == Status::Ok));
        (shard.up.sent, shard.up.arrived, shard.up.received) = (Vec::new(), Vec::new(), 0);
    }
    wire
}

/// Lengths of frames that fill so many chunks to send or to receive, up to those of the longest IP packet,
/// and of the longest frame.
fn full_frames(frame_max_bytes: usize) -> BTreeSet<usize> {
    let of_chunks =
        |chunk_bytes: u32| [1, 2, 16, 17].map(|chunks| (chunks * chunk_bytes) as usize).into_iter();
    of_chunks(CHUNK_BYTES).chain(of_chunks(RECEIVE_BYTES)).chain([frame_max_bytes]).collect()
}

#[test]
fn a_message_goes_out_and_in() {
    for mtu_bytes in [1500, 9000, 65535] {
        for (ipv6, checksum) in [(false, true), (true, false)] {
            let plan = |host| Plan { ipv6, mtu_bytes, checksum, ..Plan::new(host) };
            let mut wire = Wire::new(plan(1), plan(2));
            for length_bytes in [0, 1, 64, 8191, 20_000, 200_001, PAYLOAD_BYTES_MAX] {
                carry(&mut wire, length_bytes);
            }
            // Up to the end of a frame, of a chunk to send and to receive, and beyond: in one frame if it is
            // no longer than a frame may be.
            let frame_max_bytes = (ETHERNET_BYTES + mtu_bytes).min(frame_max_bytes(&plan(1).rings));
            let ip_bytes = if ipv6 { IPV6_BYTES } else { IPV4_BYTES };
            let headers_bytes = ETHERNET_BYTES + ip_bytes + UDP_BYTES + FIRST_HEADERS_BYTES;
            for full_bytes in full_frames(frame_max_bytes) {
                for frame_bytes in [full_bytes - 1, full_bytes, full_bytes + 1] {
                    let lengths = carry(&mut wire, (frame_bytes - headers_bytes) as u32);
                    assert_eq!(lengths.contains(&frame_bytes), frame_bytes <= frame_max_bytes, "{lengths:?}");
                }
            }
            wire.assert_frames_conserved();
            let resent = wire.nodes[0].shards[0].lnd.transfer_counters().frames_resent;
            assert_eq!(resent, 0, "nothing was lost at MTU {mtu_bytes}");
        }
    }
}

/// Messages that are ready together share a frame, and a lone one does not wait.
#[test]
fn small_messages_travel_together() {
    for checksum in [false, true] {
        for mtu_bytes in [1500, 65535] {
            let plan = |host| Plan { checksum, mtu_bytes, ..Plan::new(host) };
            let mut wire = acquainted(plan(1), plan(2));
            let [a, b] = &mut wire.nodes;
            pattern(a, 0, 77);
            b.shards[0].buffer().fill(0);
            let before = *a.shards[0].lnd.counters();
            for tx in 0..50 {
                let put = a.put_at(tx, &b.plan, 9, tx * 1024, tx * 20);
                a.shards[0].hand_over(wire.now, &put, tx != 49).unwrap();
            }
            wire.run();
            let [a, b] = &mut wire.nodes;
            assert_eq!(a.shards[0].up.sent.len(), 50);
            assert_eq!(b.shards[0].up.received, 50);
            for tx in 0..50_usize {
                let range = tx * 1024..tx * 1024 + tx * 20;
                assert!(a.shards[0].buffer()[range.clone()] == b.shards[0].buffer()[range], "message {tx}");
            }
            let sent = a.shards[0].lnd.counters().frames_sent - before.frames_sent;
            assert!(sent < 40, "{sent} frames for 50 messages");
            assert_ne!(a.shards[0].lnd.transfer_counters().messages_bundled, 0);
            wire.assert_frames_conserved();
        }
    }
}

/// A message that none follows is sent before the transfer protocol has it; either way it arrives.
#[test]
fn a_lone_message_goes_first() {
    let mut wire = acquainted(Plan::new(1), Plan::new(2));
    for (tx, more) in [(1, false), (2, true)] {
        let now = wire.now;
        let [a, b] = &mut wire.nodes;
        let put = a.put(tx, &b.plan, 9, 64);
        let shard = &mut a.shards[0];
        let before = shard.lnd.counters().frames_sent;
        shard.hand_over(now, &put, more).unwrap();
        assert_eq!(shard.lnd.counters().frames_sent - before, u64::from(!more));
        assert_eq!(shard.lnd.has_work(), more, "it may still be joined by others");
        assert_eq!(shard.lnd.transfer_usage().messages, 1);
        lnet_core::lnd::Lnd::flush(&mut shard.lnd, now, &shard.memory);
        assert_eq!(shard.lnd.counters().frames_sent - before, 1);
        wire.run();
        let [a, b] = &mut wire.nodes;
        assert_eq!(std::mem::take(&mut a.shards[0].up.sent), [(TxId(tx), Status::Ok)]);
        assert_eq!(std::mem::take(&mut b.shards[0].up.arrived), [(9, 64)]);
        assert_eq!(a.shards[0].lnd.transfer_counters().frames_resent, 0);
    }
    wire.assert_frames_conserved();
}

/// What a batch is about is said before its first message, if the shard gains by it; of a lone message
/// nothing.
#[test]
fn batches_are_announced() {
    for wants_announcements in [true, false] {
        let mut wire = acquainted(Plan::new(1), Plan::new(2));
        wire.nodes[1].shards[0].up.wants_announcements = wants_announcements;
        let mut send = |messages: &[(u64, u32)], kick_each: bool| {
            let [a, b] = &mut wire.nodes;
            for (tx, &(match_bits, length_bytes)) in messages.iter().enumerate() {
                let put = a.put(tx as u32, &b.plan, match_bits, length_bytes);
                let shard = &mut a.shards[0];
                shard.hand_over(wire.now, &put, !kick_each).unwrap();
                if kick_each {
                    lnet_core::lnd::Lnd::flush(&mut shard.lnd, wire.now, &shard.memory);
                }
            }
            wire.run();
            let up = &mut wire.nodes[1].shards[0].up;
            up.arrived.clear();
            std::mem::take(&mut up.announced)
        };
        let expected =
            |announced: Vec<(usize, Vec<u64>)>| if wants_announcements { announced } else { vec![] };
        // Messages in frames of their own, one of them cut into several descriptors.
        let large = send(&[(1, 2000), (2, 9000), (3, 2000)], true);
        assert_eq!(large, expected(vec![(0, vec![1, 2, 3])]));
        // Messages in one frame.
        let small = send(&[(4, 8), (5, 8), (6, 0)], false);
        assert_eq!(small, expected(vec![(0, vec![4, 5, 6])]));
        assert_eq!(send(&[(7, 2000)], true), []);
    }
}

#[test]
fn a_packet_that_arrives_in_parts_waits_for_its_end() {
    let mut wire = acquainted(Plan::new(1), Plan::new(2));
    let now = wire.now;
    let [a, b] = &mut wire.nodes;
    pattern(a, 0, 3);
    let put = a.put(1, &b.plan, 9, 20_000);
    a.shards[0].submit_at(now, put).unwrap();
    assert!(b.deliver(0, 0, &a.take_sent(0)[0]));
    let shard = &mut b.shards[0];
    for _ in 0..5 {
        assert_eq!(shard.drive_at_most(now, 1).received, 1);
        assert!(shard.up.arrived.is_empty());
    }
    b.settle_at(now);
    assert_eq!(b.shards[0].up.arrived, [(9, 20_000)]);
    assert!(a.shards[0].buffer()[..20_000] == b.shards[0].buffer()[..20_000]);
    wire.run();
    wire.assert_frames_conserved();
}

#[test]
fn what_finds_no_room_waits_for_it() {
    let rings = RingSizes { fill: 32, completion: 32, rx: 32, tx: 4 };
    let small = |host| Plan { rings, mtu_bytes: 1500, ..Plan::new(host) };
    let mut wire = acquainted(small(1), small(2));
    let now = wire.now;
    let [a, b] = &mut wire.nodes;
    for tx in 0..20 {
        let put = a.put(tx, &b.plan, 9, 1200);
        a.shards[0].submit_at(now, put).unwrap();
    }
    assert!(a.shards[0].lnd.awaits_completions() && !a.shards[0].lnd.has_work(), "nobody spins for room");
    assert_eq!(a.take_sent(0).len(), 4);
    wire.run();
    assert_eq!(wire.nodes[0].shards[0].up.sent.len(), 20);
    assert_eq!(wire.nodes[1].shards[0].up.received, 20);
    wire.assert_frames_conserved();
    assert!(!wire.nodes[0].shards[0].lnd.awaits_completions());
}

#[test]
fn a_full_table_takes_no_message() {
    let [mut a, b] = Node::pair(Plan::new(1), Plan::new(2));
    for tx in 0..256 {
        let put = a.put(tx, &b.plan, 9, 64);
        a.shards[0].submit(put).unwrap();
    }
    let put = a.put(256, &b.plan, 9, 64);
    assert_eq!(a.shards[0].submit(put), Err(Full(put.tx)));
}

#[test]
fn fill_rings_are_topped_up_in_batches_and_never_run_dry() {
    let mut wire = acquainted(Plan::new(1), Plan::new(2));
    for round in 0..200_u32 {
        let [a, b] = &mut wire.nodes;
        let put = a.put(round, &b.plan, 9, 64);
        a.shards[0].submit_at(wire.now, put).unwrap();
        let packet = a.take_sent(0).remove(0);
        assert!(b.deliver(0, 0, &packet), "round {round}: the kernel has no frame left");
        b.shards[0].drive(wire.now);
        let lnd = &b.shards[0].lnd;
        let spare = lnd.home.stock.len() - b.plan.rings.tx as usize;
        // What is kept for packets that wait is spare as well.
        assert!(spare <= 16 + 36, "round {round}: {spare} frames wait for a quarter of 64 to be missing");
        wire.run();
    }
    // Emptied at a blow while no frame is at home, then in an idle turn.
    let [a, b] = &mut wire.nodes;
    let kept = std::mem::take(&mut b.shards[0].lnd.home.stock);
    let put = a.put(0, &b.plan, 9, 64);
    a.shards[0].submit_at(wire.now, put).unwrap();
    let packet = a.take_sent(0).remove(0);
    while b.deliver(0, 0, &packet) {}
    assert!(b.shards[0].lnd.devices.lanes[0].receive(1) != 0);
    b.shards[0].lnd.home.stock.extend(kept);
    b.settle_at(wire.now);
    assert!(b.deliver(0, 0, &packet));
    wire.run();
    wire.assert_frames_conserved();
}

#[test]
fn a_message_leaves_when_its_next_hop_is_known() {
    let (mut a, peer) = (Node::new(Plan::new(1)), Plan::new(2));
    a.settle();
    let put = a.put(1, &peer, 9, 64);
    a.shards[0].submit(put).unwrap();
    a.settle();
    assert!(a.take_sent(0).is_empty() && a.shards[0].up.sent.is_empty());
    assert_eq!(a.under_way(), 0);
    // Between the answer and the next turn other messages are submitted: they find the way themselves,
    // and must not make the LND believe that it has dealt with the change.
    a.learn(&peer);
    for tx in 2..4 {
        let put = a.put(tx, &peer, 9, 64);
        a.shards[0].submit(put).unwrap();
    }
    assert!(a.shards[0].lnd.has_work());
    a.settle();
    assert_eq!(a.under_way(), 3);
    let packets = a.take_sent(0);
    assert_eq!(packets.iter().map(|packet| kind_of(packet)).collect::<Vec<_>>(), [Kind::Hello as u8]);
    a.settle();
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
    a.neighbours.answer(peer.address(), Resolution::Unreachable(Unreachable::NoRoute));
    let put = a.put(1, &peer, 9, 64);
    a.shards[0].submit(put).unwrap();
    a.settle();
    assert_eq!(a.shards[0].up.sent, [(TxId(1), Status::NeverSent(Cause::Unreachable))]);
    assert_eq!(a.shards[0].lnd.counters().messages_refused, 1);
}

/// No neighbour answers: the message was never sent, and ends at its time.
#[test]
fn a_message_to_somebody_silent_ends_in_time() {
    let [mut a, b] = Node::pair(Plan::new(1), Plan::new(2));
    let put = a.put(1, &b.plan, 9, 64);
    a.shards[0].submit(put).unwrap();
    let mut now = NOW;
    while a.under_way() != 0 {
        a.take_sent(0);
        now = a.poll_timeout().unwrap().max(now);
        a.settle_at(now);
        assert!(now.0 < 60_000_000_000);
    }
    assert_eq!(a.shards[0].up.sent, [(TxId(1), Status::NeverSent(Cause::Timeout))]);
    assert!(now.0 >= 49_000_000_000, "{now:?}");
}

/// The interface is down: what is under way goes another way after a while, not at once, and without one it
/// waits until its own time is over.
#[test]
fn messages_wait_for_their_interface_or_go_another_way() {
    for (comes_back, has_another_way) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut wire = acquainted(Plan::new(1), Plan::new(2));
        let [a, b] = &mut wire.nodes;
        a.shards[0].up.has_another_way = has_another_way;
        let put = a.put(1, &b.plan, 9, 64);
        a.shards[0].submit_at(wire.now, put).unwrap();
        a.take_sent(0);
        let down = Resolution::Unreachable(Unreachable::InterfaceDown);
        a.neighbours.answer(b.plan.address(), down);
        let (begun, mut now) = (wire.now, wire.now);
        while a.under_way() != 0 && now - begun < std::time::Duration::from_millis(900) {
            now = a.poll_timeout().unwrap().max(now);
            a.settle_at(now);
        }
        assert_eq!(a.under_way(), 1);
        assert_ne!(a.shards[0].lnd.counters().frames_let_go, 0);
        if comes_back {
            a.learn(&b.plan);
            wire.now = now;
            wire.run();
            assert_eq!(wire.nodes[0].shards[0].up.sent, [(TxId(1), Status::Ok)]);
            continue;
        }
        while a.under_way() != 0 {
            now = a.poll_timeout().unwrap().max(now);
            a.settle_at(now);
        }
        check_end(&a.shards[0].up, now - begun);
    }
}

/// Checks the end of a message whose interface was down all that time.
fn check_end(up: &node::Recorder, waited: std::time::Duration) {
    let (end, least, most) =
        if up.has_another_way { (Cause::Device, 1, 4) } else { (Cause::Timeout, 45, 60) };
    assert_eq!(up.sent, [(TxId(1), Status::Unknown(end))]);
    assert!((least..most).contains(&waited.as_secs()), "{waited:?}");
}

/// What arrives may be ahead of the news that the interface is up again: its answer waits for them.
#[test]
fn a_message_waits_for_an_interface_that_is_said_to_be_down() {
    for (comes_back, has_another_way) in [(true, false), (false, false), (false, true)] {
        let mut wire = acquainted(Plan::new(1), Plan::new(2));
        let (b, to) = (&mut wire.nodes[1], Plan::new(1));
        b.shards[0].up.has_another_way = has_another_way;
        b.neighbours.answer(to.address(), Resolution::Unreachable(Unreachable::InterfaceDown));
        let put = b.put(1, &to, 9, 64);
        b.shards[0].submit_at(wire.now, put).unwrap();
        b.settle_at(wire.now);
        assert_eq!((b.under_way(), b.shards[0].lnd.counters().messages_refused), (1, 0));
        if comes_back {
            b.learn(&to);
            wire.run();
            assert_eq!(wire.nodes[1].shards[0].up.sent, [(TxId(1), Status::Ok)]);
            continue;
        }
        let (begun, mut now) = (wire.now, wire.now);
        while b.under_way() != 0 {
            now = b.poll_timeout().unwrap().max(now);
            b.settle_at(now);
        }
        check_end(&b.shards[0].up, now - begun);
    }
}

/// The new address counts from the next frame on, not only from the next turn.
#[test]
fn a_message_takes_the_way_that_its_peer_has_now() {
    let mut wire = acquainted(Plan::new(1), Plan::new(2));
    let now = wire.now;
    let [a, b] = &mut wire.nodes;
    let put = a.put(1, &b.plan, 9, 64);
    a.shards[0].submit_at(now, put).unwrap();
    assert_eq!(a.take_sent(0)[0][..6], [2, 0, 0, 0, 0, 2]);
    a.neighbours.answer(b.plan.address(), Resolution::Mac([2, 0, 0, 0, 0, 77]));
    let put = a.put(2, &b.plan, 9, 64);
    a.shards[0].submit_at(now, put).unwrap();
    assert_eq!(a.take_sent(0)[0][..6], [2, 0, 0, 0, 0, 77]);
    // And when it changes while a message waits for the next flush.
    let put = a.put(3, &b.plan, 9, 64);
    a.shards[0].hand_over(now, &put, true).unwrap();
    a.neighbours.answer(b.plan.address(), Resolution::Mac([2, 0, 0, 0, 0, 78]));
    let shard = &mut a.shards[0];
    lnet_core::lnd::Lnd::flush(&mut shard.lnd, now, &shard.memory);
    assert_eq!(a.take_sent(0)[0][..6], [2, 0, 0, 0, 0, 78]);
    a.settle();
    a.assert_frames_conserved();
}

/// Frames leave with it, and are taken that have it; those that have the former one are not.
#[test]
fn the_ethernet_address_of_an_interface_may_change() {
    let (a_plan, b_plan) = (Plan::new(1), Plan::new(2));
    let mut wire = acquainted(a_plan, b_plan);
    let now = wire.now;
    let [a, b] = &mut wire.nodes;
    for (tx, last) in [(1, 77), (2, 78)] {
        a.neighbours.answer_mac([2, 0, 0, 0, 0, last]);
        let put = a.put(tx, &b.plan, 9, 64);
        a.shards[0].submit_at(now, put).unwrap();
        let packets = a.take_sent(0);
        assert_eq!(packets[0][6..12], [2, 0, 0, 0, 0, last]);
        let mut to_b = packets[0].clone();
        b.neighbours.answer_mac([2, 0, 0, 0, 0, last + 10]);
        b.settle_at(now);
        assert_dropped(b, &[&to_b], XdpDrop::NotOurs);
        to_b[5] = last + 10;
        assert!(b.deliver(0, 0, &to_b));
        b.settle_at(now);
        let up = &mut b.shards[0].up;
        assert_eq!(std::mem::take(&mut up.received), 1);
        up.arrived.clear();
    }
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
    assert_eq!(a.under_way(), 5);
    let ack = Body::Ack { md: WireHandle::NONE, match_bits: 9, manipulated_length: 0 };
    let mut again = a.put(8, &peer, 9, 0);
    again.header.body = ack;
    a.shards[0].submit(again).unwrap();
    assert_eq!(a.under_way(), 6, "those that left make room");
}

/// The interface's MTU changes: frames become longer or shorter, up to what the rings can hold, and what was
/// under way arrives all the same.
#[test]
fn frames_follow_the_mtu() {
    let plan = |host| Plan { mtu_bytes: 9000, ..Plan::new(host) };
    let mut wire = Wire::new(plan(1), plan(2));
    for (mtu_bytes, longest) in [(9000, 9014), (1500, 1514), (30_000, 30_014), (80_000, 65_549)] {
        for node in &mut wire.nodes {
            node.neighbours.answer_mtu(mtu_bytes);
        }
        // Peers learn it with their next session.
        wire.now.0 += 200_000_000_000;
        carry(&mut wire, 100);
        let [a, b] = &mut wire.nodes;
        pattern(a, 0, 5);
        let put = a.put(1, &b.plan, 9, 500_000);
        wire.submit(0, 0, put);
        let mut lengths = Vec::new();
        wire.run_with(&mut |sender, packet| {
            lengths.extend((sender == 0).then_some(packet.len()));
            vec![packet]
        });
        let most = lengths.iter().max().copied().unwrap();
        // Fragments end at multiples of 64.
        assert!(most <= longest && most + 64 > longest, "MTU {mtu_bytes}: {most} bytes");
        let [a, b] = &mut wire.nodes;
        assert!(a.shards[0].buffer()[..500_000] == b.shards[0].buffer()[..500_000]);
        a.shards[0].up.sent.clear();
        (b.shards[0].up.arrived, b.shards[0].up.received) = (Vec::new(), 0);
    }
    wire.assert_frames_conserved();
}

#[test]
fn nothing_allocates_once_traffic_flows() {
    let mut wire = acquainted(Plan::new(1), Plan::new(2));
    carry(&mut wire, 9000);
    carry(&mut wire, 500_000);
    let unknown = wire.nodes[0].put(1, &Plan::new(3), 9, 64);
    let [a, b] = &mut wire.nodes;
    // The recorder is no part of the data path.
    for up in [&mut a.shards[0].up, &mut b.shards[0].up] {
        up.arrived.reserve(1000);
        up.sent.reserve(1000);
    }
    let known = [64, 9000, 100_000, BUFFER_BYTES as u32 / 3].map(|bytes| a.put(1, &b.plan, 9, bytes));
    let mut now = wire.now;
    for transmit in known.into_iter().cycle().take(100) {
        let [a, b] = &mut wire.nodes;
        now.0 += 1_000_000;
        let allocations = allocation_counter::measure(|| {
            a.shards[0].submit_at(now, transmit).unwrap();
            a.shards[0].drive(now);
        });
        assert_eq!(allocations.count_total, 0, "{allocations:?}");
        for (sender, receiver) in [(&mut *a, &mut *b)] {
            for _ in 0..100 {
                let packets = sender.take_sent(0);
                for packet in packets {
                    receiver.deliver(0, 0, &packet);
                }
                let allocations = allocation_counter::measure(|| {
                    receiver.shards[0].drive(now);
                });
                assert_eq!(allocations.count_total, 0, "{allocations:?}");
                for packet in receiver.take_sent(0) {
                    sender.deliver(0, 0, &packet);
                }
                now.0 += 100_000;
                let allocations = allocation_counter::measure(|| {
                    sender.shards[0].drive(now);
                });
                assert_eq!(allocations.count_total, 0, "{allocations:?}");
            }
        }
    }
    assert_ne!(wire.nodes[1].shards[0].up.received, 0);
    let a = &mut wire.nodes[0];
    let allocations = allocation_counter::measure(|| {
        for _ in 0..100 {
            a.shards[0].submit(unknown).unwrap();
            a.shards[0].drive(NOW);
        }
    });
    assert_eq!(allocations.count_total, 0, "{allocations:?}");
    let progress = Progress::default();
    assert_eq!(wire.nodes[1].shards[0].drive(now), progress);
}
