//! Frames that are dropped: each is counted under its reason, touches no buffer and gives its frames back.

use lnet_core::lnd::Lnd;
use lnet_wire::frame::{
    CRC_OFFSET, FIRST_HEADERS_BYTES, FRAGMENT_OFFSET_OFFSET, FRAME_HEADER_BYTES, HANDSHAKE_BYTES, KEY_OFFSET,
    RECORD_BYTES, RECORD_CRC_OFFSET, TOTAL_LENGTH_OFFSET,
};
use lnet_wire::header::LARGE_HEADER_BYTES;

use super::acquainted;
use super::node::{Node, Plan};
use crate::lnd::XdpDrop;

/// Where the frame header begins over IPv4.
pub(super) const FRAME: usize = 42;
const LNET: usize = FRAME + FRAME_HEADER_BYTES;

/// A node, and a packet that it would take.
pub(super) fn target() -> (Node, Vec<u8>) {
    let mut wire = acquainted(Plan::new(1), Plan::new(2));
    let now = wire.now;
    let [a, b] = &mut wire.nodes;
    let put = a.put(1, &b.plan, 9, 64);
    a.shards[0].submit_at(now, put).unwrap();
    let packet = a.take_sent(0).remove(0);
    let [_, b] = wire.nodes;
    (b, packet)
}

/// Makes the checksum right again.
pub(super) fn seal(packet: &mut [u8]) {
    let covered = &mut packet[FRAME..FRAME + FIRST_HEADERS_BYTES];
    covered[CRC_OFFSET..CRC_OFFSET + 4].fill(0);
    let crc = crc_fast::crc32_iscsi(covered);
    covered[CRC_OFFSET..CRC_OFFSET + 4].copy_from_slice(&crc.to_le_bytes());
}

#[track_caller]
pub(super) fn assert_dropped(node: &mut Node, pieces: &[&[u8]], reason: XdpDrop) {
    let before = XdpDrop::ALL.map(|reason| node.shards[0].lnd.counters().dropped(reason));
    node.shards[0].buffer().fill(0xEE);
    assert!(node.deliver_in(0, 0, pieces));
    node.settle();
    let after = XdpDrop::ALL.map(|reason| node.shards[0].lnd.counters().dropped(reason));
    let counted: Vec<_> = XdpDrop::ALL
        .into_iter()
        .zip(before.iter().zip(after))
        .filter(|(_, (was, is))| **was != *is)
        .collect();
    assert!(matches!(counted[..], [(one, (was, is))] if one == reason && *was + 1 == is), "{counted:?}");
    let shard = &mut node.shards[0];
    assert!(shard.up.arrived.is_empty() && shard.up.received == 0);
    assert!(shard.buffer().iter().all(|byte| *byte == 0xEE), "a dropped frame wrote to the buffer");
    node.assert_frames_conserved();
}

#[test]
fn whole_frames_are_taken() {
    let (mut node, packet) = target();
    assert!(node.deliver(0, 0, &packet));
    node.settle();
    assert_eq!(node.shards[0].up.arrived, [(9, 64)]);
    assert_eq!(XdpDrop::ALL.map(|reason| node.shards[0].lnd.counters().dropped(reason)), [0; 6]);
}

#[test]
fn a_frame_to_somebody_else_is_not_ours() {
    let (mut node, packet) = target();
    let changed = |place: usize, value: u8| {
        let mut packet = packet.clone();
        packet[place] = value;
        packet
    };
    // Another EtherType, a fragment of IP, another address, another port, another magic.
    for (place, value) in [(13, 6), (20, 0x20), (33, 9), (37, 1), (FRAME, 0)] {
        assert_dropped(&mut node, &[&changed(place, value)], XdpDrop::NotOurs);
    }
    // Every length that cuts its headers short, or what they promise.
    for length in [1, 13, 14, 33, 41, 42, FRAME + 10, LNET, LNET + 95, packet.len() - 1] {
        assert_dropped(&mut node, &[&packet[..length]], XdpDrop::NotOurs);
    }
}

#[test]
fn a_frame_whose_checksum_is_wrong_is_dropped() {
    let (mut node, packet) = target();
    // All covered bytes but those that say by themselves that the frame is none: magic to portal, lengths.
    let lengths = FRAGMENT_OFFSET_OFFSET..TOTAL_LENGTH_OFFSET + 4;
    for place in (KEY_OFFSET..FIRST_HEADERS_BYTES).filter(|place| !lengths.contains(place)) {
        let mut packet = packet.clone();
        packet[FRAME + place] ^= 0x10;
        assert_dropped(&mut node, &[&packet], XdpDrop::BadChecksum);
    }
}

/// A later fragment, whose checksum covers its header alone, and a handshake, whose body it covers too.
#[test]
fn the_checksum_of_a_frame_of_any_length_is_checked() {
    let (mut node, _) = target();
    let plan = |host| Plan { mtu_bytes: 1500, ..Plan::new(host) };
    let mut wire = acquainted(plan(1), plan(2));
    let now = wire.now;
    let [a, b] = &mut wire.nodes;
    let put = a.put(1, &b.plan, 9, 4000);
    a.shards[0].submit_at(now, put).unwrap();
    let is_later = |packet: &Vec<u8>| packet[FRAME + FRAGMENT_OFFSET_OFFSET..][..4] != [0; 4];
    let fragment = a.take_sent(0).into_iter().rfind(is_later).unwrap();
    let mut stranger = Node::new(Plan::new(3));
    stranger.learn(&b.plan);
    let put = stranger.put(1, &b.plan, 9, 64);
    stranger.shards[0].submit_at(now, put).unwrap();
    let hello = stranger.take_sent(0).pop().unwrap();
    assert_eq!(hello.len(), FRAME + FRAME_HEADER_BYTES + HANDSHAKE_BYTES);
    for (packet, place) in [
        (&fragment, FRAME + KEY_OFFSET),
        (&fragment, FRAME + FRAME_HEADER_BYTES - 1),
        (&hello, FRAME + FRAME_HEADER_BYTES - 1),
        (&hello, hello.len() - 1),
    ] {
        let mut packet = packet.clone();
        packet[place] ^= 0x10;
        assert_dropped(&mut node, &[&packet], XdpDrop::BadChecksum);
    }
}

#[test]
fn headers_that_do_not_lie_in_the_first_descriptor_are_bad() {
    let (mut node, packet) = target();
    for length in [LNET, LNET + 95] {
        let (head, rest) = packet.split_at(length);
        assert_dropped(&mut node, &[head, rest], XdpDrop::BadHeader);
    }
}

#[test]
fn an_lnet_header_that_cannot_be_read_is_bad() {
    let (mut node, mut packet) = target();
    packet[LNET + 48] = 9;
    seal(&mut packet);
    assert_dropped(&mut node, &[&packet], XdpDrop::BadHeader);
}

#[test]
fn an_lnet_header_that_says_something_else_than_the_frame_is_a_mismatch() {
    let (mut node, packet) = target();
    // Its type (a REPLY has no match bits), payload length, match bits, portal.
    for (place, value) in [(48, 3), (52, 63), (56 + 16, 8), (56 + 32, 5)] {
        let mut packet = packet.clone();
        packet[LNET + place] = value;
        seal(&mut packet);
        assert_dropped(&mut node, &[&packet], XdpDrop::HeaderMismatch);
    }
}

/// A packet with three messages, the third of which is spoiled: none of them is taken.
#[test]
fn a_packet_is_looked_at_whole_before_any_of_it_is_taken() {
    for checksum in [false, true] {
        let plan = |host| Plan { checksum, ..Plan::new(host) };
        let mut wire = acquainted(plan(1), plan(2));
        let now = wire.now;
        let [a, b] = &mut wire.nodes;
        for tx in 0..3 {
            let put = a.put_at(tx, &b.plan, 9, tx * 64, 40);
            a.shards[0].hand_over(now, &put, true).unwrap();
        }
        let shard = &mut a.shards[0];
        shard.lnd.flush(now, &shard.memory);
        let packets = a.take_sent(0);
        let [packet] = &packets[..] else { panic!("{} packets", packets.len()) };
        let third = LNET + LARGE_HEADER_BYTES + 40 + (RECORD_BYTES + LARGE_HEADER_BYTES + 40);
        let changed = |place: usize, value: u8| {
            let mut packet = packet.clone();
            packet[place] ^= value;
            packet
        };
        let resealed = |place: usize, value: u8| {
            let mut packet = changed(place, value);
            let head = &mut packet[third..third + RECORD_BYTES + LARGE_HEADER_BYTES];
            head[RECORD_CRC_OFFSET..][..4].fill(0);
            let crc = crc_fast::crc32_iscsi(head);
            head[RECORD_CRC_OFFSET..][..4].copy_from_slice(&crc.to_le_bytes());
            packet
        };
        let lnet = third + RECORD_BYTES;
        assert_dropped(&mut wire.nodes[1], &[&changed(third, 1)], XdpDrop::BadChecksum);
        assert_dropped(&mut wire.nodes[1], &[&changed(lnet + 5, 1)], XdpDrop::BadChecksum);
        // Its length: longer than what is left, shorter than what its LNet header says, longer than any.
        assert_dropped(&mut wire.nodes[1], &[&resealed(third + 4, 1)], XdpDrop::BadHeader);
        assert_dropped(&mut wire.nodes[1], &[&resealed(third + 4, 8)], XdpDrop::HeaderMismatch);
        assert_dropped(&mut wire.nodes[1], &[&resealed(third + 7, 1)], XdpDrop::BadHeader);
        // A type that there is not, a REPLY, whose portal and match bits are none.
        assert_dropped(&mut wire.nodes[1], &[&resealed(lnet + 48, 8)], XdpDrop::BadHeader);
        if checksum {
            assert_dropped(&mut wire.nodes[1], &[&changed(packet.len() - 1, 1)], XdpDrop::PayloadCorrupt);
            let first = LNET + LARGE_HEADER_BYTES;
            assert_dropped(&mut wire.nodes[1], &[&changed(first, 1)], XdpDrop::PayloadCorrupt);
        }
        let b = &mut wire.nodes[1];
        assert!(b.deliver(0, 0, packet));
        b.settle_at(now);
        assert_eq!(b.shards[0].up.arrived, [(9, 40); 3]);
        assert_eq!(b.shards[0].up.received, 3);
    }
}
