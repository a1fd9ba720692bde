//! Short frames: what is sent as one, that it arrives as what it stands for, and what spoils it.

use lnet_core::lnd::Transmit;
use lnet_core::time::Instant;
use lnet_wire::frame::{
    CRC_OFFSET, FLAG_PAYLOAD_CRC, FLAG_PULLED, FLAG_SHORT, FLAGS_OFFSET, FRAME_HEADER_BYTES, KEY_OFFSET,
    KIND_OFFSET, Kind, SHORT_PAYLOAD_CRC_OFFSET, TOTAL_LENGTH_OFFSET,
};
use lnet_wire::{Body, Header, ProcessId, WireHandle};

use super::acquainted;
use super::node::{Node, Plan};
use super::refusals::assert_dropped;
use super::wire::Wire;
use crate::lnd::XdpDrop;

/// Where the frame header begins over IPv4, and where the addresses end, of 4 bytes each, source first.
const FRAME: usize = 42;
const ADDRESSES: usize = 34 - 8;

/// Two nodes that have had so much from each other that no acknowledgement has gaps.
fn in_full_swing(a: Plan, b: Plan) -> Wire {
    let mut wire = acquainted(a, b);
    for round in 0..70 {
        for (sender, peer) in [(0, b), (1, a)] {
            for shard in 0..wire.nodes[sender].shards.len() {
                // Messages go to each shard of the peer's, where it has several.
                for match_bits in 0..4 * (peer.shards - 1) + 1 {
                    let put = wire.nodes[sender].put(round, &peer, match_bits.into(), 64);
                    wire.submit(sender, shard, put);
                    wire.run();
                }
            }
        }
    }
    for shard in wire.nodes.iter_mut().flat_map(|node| &mut node.shards) {
        (shard.up.sent, shard.up.arrived, shard.up.received) = (Vec::new(), Vec::new(), 0);
    }
    wire
}

/// The packet that a message is sent in.
fn sent(node: &mut Node, now: Instant, transmit: Transmit) -> Vec<u8> {
    node.take_sent(0);
    node.shards[0].submit_at(now, transmit).unwrap();
    let packets = node.take_sent(0);
    let [packet] = &packets[..] else { panic!("{} packets", packets.len()) };
    assert!(packet.windows(6).any(|bytes| *bytes == *b"LNDX\x01\x01"), "it carries data");
    packet.clone()
}

/// A PUT of 64 bytes from the first node to the second, and its packet, which is a short frame.
fn short_put(wire: &mut Wire, match_bits: u64) -> (Transmit, Vec<u8>) {
    let [a, b] = &mut wire.nodes;
    let put = a.put(7, &b.plan, match_bits, 64);
    let packet = sent(a, wire.now, put);
    assert!(is_short(&packet));
    (put, packet)
}

fn is_short(packet: &[u8]) -> bool {
    packet[FRAME + FLAGS_OFFSET] & FLAG_SHORT != 0
}

/// Makes the checksum of a short frame's header right again, for these two NIDs.
fn seal(packet: &mut [u8], destination: &Plan, source: &Plan) {
    packet[FRAME + CRC_OFFSET..][..4].fill(0);
    let ends = [destination, source].map(|plan| plan.nid().to_bytes()).concat();
    let crc = crc_fast::crc32_iscsi(&[&ends, &packet[FRAME..FRAME + FRAME_HEADER_BYTES]].concat());
    packet[FRAME + CRC_OFFSET..][..4].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn a_short_frame_arrives_as_the_message_that_was_sent() {
    for (ipv6, checksum) in [(false, true), (true, true), (false, false)] {
        let plan = |host| Plan { ipv6, checksum, ..Plan::new(host) };
        let (a_plan, b_plan) = (plan(1), plan(2));
        let mut wire = in_full_swing(a_plan, b_plan);
        let now = wire.now;
        for length in [1, 64, 1024] {
            let [a, b] = &mut wire.nodes;
            let mut put = a.put_at(7, &b.plan, 0x1122_3344_5566_7788, 128, length);
            let Body::Put { hdr_data, .. } = &mut put.header.body else { unreachable!() };
            *hdr_data = 0x99AA_BBCC_DDEE_FF00;
            let pattern = |at: usize| (at as u8).wrapping_mul(37) ^ length as u8;
            let bytes = a.shards[0].buffer();
            bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
            let packet = sent(a, now, put);
            let frame = FRAME + if ipv6 { 20 } else { 0 };
            assert!(packet[frame + FLAGS_OFFSET] & FLAG_SHORT != 0, "{length} bytes");
            assert_eq!(packet.len(), frame + FRAME_HEADER_BYTES + length as usize);
            assert_eq!(packet[frame + FLAGS_OFFSET] & FLAG_PAYLOAD_CRC != 0, checksum);
            b.shards[0].buffer().fill(0xEE);
            assert!(b.deliver(0, 0, &packet));
            b.settle_at(now);
            let shard = &mut b.shards[0];
            assert_eq!(shard.up.last, Some(put.header));
            assert_eq!(std::mem::take(&mut shard.up.received), 1);
            let bytes = shard.buffer();
            assert!((128..128 + length as usize).all(|at| bytes[at] == pattern(at)));
            assert_eq!((bytes[127], bytes[128 + length as usize]), (0xEE, 0xEE));
            wire.run();
        }
        wire.assert_frames_conserved();
    }
}

#[test]
fn what_a_short_frame_cannot_say_is_sent_with_its_lnet_header() {
    let (a_plan, b_plan) = (Plan::new(1), Plan::new(2));
    let mut wire = in_full_swing(a_plan, b_plan);
    let with = |node: &Node, change: &dyn Fn(&mut Header)| {
        let mut put = node.put(7, &b_plan, 9, 64);
        change(&mut put.header);
        put
    };
    type Change<'a> = (&'a str, &'a dyn Fn(&mut Header));
    let changes: [Change<'_>; 5] = [
        ("nothing", &|_| {}),
        ("an ACK that is wanted", &|header| {
            let Body::Put { ack_md, .. } = &mut header.body else { unreachable!() };
            *ack_md = WireHandle { interface_cookie: 1, object_cookie: 2 };
        }),
        ("another process", &|header| header.destination.pid = 7),
        ("another sender's process", &|header| header.source.pid = 7),
        ("another interface's NID", &|header| header.source = ProcessId::lustre(Plan::new(5).nid())),
    ];
    for (what, change) in changes {
        let now = wire.now;
        let [a, b] = &mut wire.nodes;
        let put = with(a, change);
        let packet = sent(a, now, put);
        assert_eq!(is_short(&packet), what == "nothing", "{what}");
        assert!(b.deliver(0, 0, &packet));
        b.settle_at(now);
        assert_eq!(b.shards[0].up.last, Some(put.header), "{what}");
        wire.run();
    }
    for length in [0, 1025] {
        let now = wire.now;
        let a = &mut wire.nodes[0];
        let put = a.put(7, &b_plan, 9, length);
        assert!(!is_short(&sent(a, now, put)), "{length} bytes");
        wire.run();
    }
}

#[test]
fn a_short_frame_that_is_lost_is_sent_again_with_its_lnet_header() {
    let (a_plan, b_plan) = (Plan::new(1), Plan::new(2));
    let mut wire = in_full_swing(a_plan, b_plan);
    let put = wire.nodes[0].put(7, &b_plan, 9, 64);
    wire.nodes[0].shards[0].submit_at(wire.now, put).unwrap();
    let mut forms = Vec::new();
    wire.run_with(&mut |sender, packet| {
        let is_data = packet[FRAME + KIND_OFFSET] == Kind::Data as u8;
        if sender == 0 && is_data {
            forms.push(is_short(&packet));
        }
        if forms.len() == 1 && is_data { vec![] } else { vec![packet] }
    });
    assert_eq!(forms, [true, false]);
    assert_eq!(wire.nodes[1].shards[0].up.last, Some(put.header));
    assert_eq!(wire.nodes[1].shards[0].up.received, 1);
}

#[test]
fn a_short_frame_is_handed_over_to_its_shard() {
    let plan = |host| Plan { shards: 2, queues: 2, ..Plan::new(host) };
    let mut wire = in_full_swing(plan(1), plan(2));
    let (put, packet) = short_put(&mut wire, 2);
    let (now, b) = (wire.now, &mut wire.nodes[1]);
    let owner = b.owner_of(&packet);
    assert!(b.deliver(0, 1 - owner, &packet));
    (0..3).for_each(|_| b.settle_at(now));
    assert_eq!(b.shards[owner].up.last, Some(put.header));
    assert_eq!(b.shards[1 - owner].lnd.counters().frames_misdirected, 1);
}

#[test]
fn a_short_frame_that_must_wait_is_kept_and_taken_later() {
    let (a_plan, b_plan) = (Plan::new(1), Plan::new(2));
    let mut wire = in_full_swing(a_plan, b_plan);
    let (_, packet) = short_put(&mut wire, 5);
    let (now, b) = (wire.now, &mut wire.nodes[1]);
    b.shards[0].up.lazy = Some(5);
    assert!(b.deliver(0, 0, &packet));
    b.settle_at(now);
    assert_eq!((b.shards[0].up.delayed.len(), b.shards[0].up.received), (1, 0));
    b.shards[0].resume(now);
    b.settle_at(now);
    assert_eq!(b.shards[0].up.received, 1);
}

#[test]
fn short_frames_are_announced() {
    let (a_plan, b_plan) = (Plan::new(1), Plan::new(2));
    let mut wire = in_full_swing(a_plan, b_plan);
    wire.nodes[1].shards[0].up.wants_announcements = true;
    for match_bits in [3, 4] {
        let (_, packet) = short_put(&mut wire, match_bits);
        assert!(wire.nodes[1].deliver(0, 0, &packet));
    }
    let (now, b) = (wire.now, &mut wire.nodes[1]);
    b.settle_at(now);
    let up = &mut b.shards[0].up;
    assert_eq!(std::mem::take(&mut up.announced), [(0, vec![3, 4])]);
    assert_eq!(up.arrived, [(3, 64), (4, 64)]);
}

#[test]
fn a_session_that_has_just_begun_or_has_a_gap_uses_no_short_frames() {
    let (a_plan, b_plan) = (Plan::new(1), Plan::new(2));
    let mut young = acquainted(a_plan, b_plan);
    let now = young.now;
    let put = young.nodes[0].put(7, &b_plan, 9, 64);
    assert!(!is_short(&sent(&mut young.nodes[0], now, put)));

    let mut wire = in_full_swing(a_plan, b_plan);
    let now = wire.now;
    let [a, b] = &mut wire.nodes;
    // The first of two is on its way for a while.
    let (late, next) = (b.put(1, &a_plan, 9, 64), b.put(2, &a_plan, 9, 64));
    let late = sent(b, now, late);
    let next = sent(b, now, next);
    assert!(a.deliver(0, 0, &next));
    a.settle_at(now);
    let put = a.put(7, &b_plan, 9, 64);
    assert!(!is_short(&sent(a, now, put)), "the acknowledgement has a gap");
    assert!(a.deliver(0, 0, &late));
    a.settle_at(now);
    let put = a.put(8, &b_plan, 9, 64);
    assert!(is_short(&sent(a, now, put)));
}

/// Wherever a bit of the payload changes.
#[test]
fn a_short_frame_whose_payload_was_changed_is_lost_and_comes_again() {
    let (a_plan, b_plan) = (Plan::new(1), Plan::new(2));
    let mut wire = in_full_swing(a_plan, b_plan);
    let (put, packet) = short_put(&mut wire, 9);
    let now = wire.now;
    let payload = FRAME + FRAME_HEADER_BYTES..packet.len();
    assert_eq!(payload.len(), 64);
    for place in payload {
        let mut packet = packet.clone();
        packet[place] ^= 1 << (place % 8);
        assert_dropped(&mut wire.nodes[1], &[&packet], XdpDrop::PayloadCorrupt);
    }
    // A wrong checksum under headers that are right.
    let mut wrong = packet;
    wrong[FRAME + SHORT_PAYLOAD_CRC_OFFSET] ^= 1;
    seal(&mut wrong, &b_plan, &a_plan);
    assert_dropped(&mut wire.nodes[1], &[&wrong], XdpDrop::PayloadCorrupt);
    assert_eq!(wire.nodes[1].shards[0].up.arrived, [], "nothing of it has reached the shard");
    wire.nodes[0].settle_at(now);
    wire.run();
    assert_eq!(wire.nodes[1].shards[0].up.last, Some(put.header));
    assert_eq!(wire.nodes[1].shards[0].up.received, 1);
}

/// The ends that want checksums, and whether what goes from one to the other has them.
#[test]
fn payloads_have_checksums_unless_neither_end_wants_them() {
    for (a_wants, b_wants) in [(true, true), (true, false), (false, true), (false, false)] {
        let plan = |host, checksum| Plan { checksum, ..Plan::new(host) };
        let (a_plan, b_plan) = (plan(1, a_wants), plan(2, b_wants));
        let mut wire = in_full_swing(a_plan, b_plan);
        let now = wire.now;
        for length in [64, 1025] {
            let put = wire.nodes[0].put(7, &b_plan, 9, length);
            let packet = sent(&mut wire.nodes[0], now, put);
            let has_checksum = packet[FRAME + FLAGS_OFFSET] & FLAG_PAYLOAD_CRC != 0;
            assert_eq!(has_checksum, a_wants || b_wants, "{length} bytes, {a_wants} {b_wants}");
            assert!(wire.nodes[1].deliver(0, 0, &packet));
            wire.nodes[1].settle_at(now);
            assert_eq!(std::mem::take(&mut wire.nodes[1].shards[0].up.received), 1);
            wire.run();
        }
    }
}

#[test]
fn a_spoiled_short_frame_is_dropped() {
    let (a_plan, b_plan) = (Plan::new(1), Plan::new(2));
    let mut wire = in_full_swing(a_plan, b_plan);
    let (_, packet) = short_put(&mut wire, 9);
    let (now, b) = (wire.now, &mut wire.nodes[1]);
    let lengths = KEY_OFFSET + 20..TOTAL_LENGTH_OFFSET + 4;
    // Its flags decide what else is covered; they have a test of their own.
    let covered = (KEY_OFFSET..FRAME_HEADER_BYTES).filter(|at| !lengths.contains(at) && *at != FLAGS_OFFSET);
    for place in covered {
        let mut packet = packet.clone();
        packet[FRAME + place] ^= 0x10;
        assert_dropped(b, &[&packet], XdpDrop::BadChecksum);
    }
    // The sender's address stands for its NID.
    let mut other = packet.clone();
    other[ADDRESSES + 3] ^= 4;
    assert_dropped(b, &[&other], XdpDrop::BadChecksum);
    // Nor does a second error make up for it.
    for place in
        (FRAME + KEY_OFFSET + 20..FRAME + FRAME_HEADER_BYTES).filter(|at| *at != FRAME + FLAGS_OFFSET)
    {
        let mut twice = other.clone();
        twice[place] ^= 4;
        b.deliver(0, 0, &twice);
        b.settle_at(now);
        assert_eq!(b.shards[0].up.arrived, [], "{place}");
    }
    // As another frame it is too short.
    let mut other = packet.clone();
    other[FRAME + FLAGS_OFFSET] ^= FLAG_SHORT;
    assert_dropped(b, &[&other], XdpDrop::NotOurs);
    // A ticket, for which it has no room; a flag that there is not.
    for flag in [FLAG_PULLED, 1 << 7] {
        let mut other = packet.clone();
        other[FRAME + FLAGS_OFFSET] |= flag;
        seal(&mut other, &b_plan, &a_plan);
        assert_dropped(b, &[&other], XdpDrop::BadHeader);
    }
    // Cut.
    assert_dropped(b, &[&packet[..packet.len() - 1]], XdpDrop::NotOurs);
    // Pieces, the first of which ends within what every frame has.
    for length in [FRAME + CRC_OFFSET, FRAME + FRAME_HEADER_BYTES - 1] {
        let (head, rest) = packet.split_at(length);
        assert_dropped(b, &[head, rest], XdpDrop::NotOurs);
    }
    // As it was, it is taken.
    assert!(b.deliver(0, 0, &packet));
    b.settle_at(now);
    assert_eq!(b.shards[0].up.arrived, [(9, 64)]);
}
