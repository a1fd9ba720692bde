//! Payloads out of buffers of several fragments and into such, over rings.

use lnet_io::memory::Buffer;
use lnet_io::xsk::CHUNK_BYTES;
use proptest::prelude::*;

use super::node::{BUFFER_BYTES, Node, Plan, cut, span};
use super::wire::Wire;

const BYTES: usize = 150_000;

fn bytes() -> Vec<u8> {
    (0..BYTES).map(|index| index as u8 ^ (index >> 8) as u8 ^ (index >> 16) as u8).collect()
}

/// As long as the buffers of shards are.
fn long(buffer: Buffer) -> Buffer {
    Buffer::from_fragments([buffer, Buffer::zeroed(BUFFER_BYTES - BYTES)]).unwrap()
}

/// The first bytes of a shard's buffer.
fn flat(node: &Node) -> Vec<u8> {
    node.shards[0].memory.fragments(&span(BYTES as u32)).flatten().copied().collect()
}

/// Sends these parts of the near node's buffer, [`bytes`], each to the same place in the far one's, of zeros,
/// and checks every byte there.
fn send(wire: &mut Wire, messages: &[(usize, usize)]) {
    let bytes = bytes();
    let mut expected = vec![0; BYTES];
    for (tx, &(offset, length)) in messages.iter().enumerate() {
        let [a, b] = &mut wire.nodes;
        let put = a.put_at(tx as u32, &b.plan, 9, offset as u32, length as u32);
        // Those that are together may share frames.
        a.shards[0].hand_over(wire.now, &put, tx + 1 != messages.len()).unwrap();
        expected[offset..offset + length].copy_from_slice(&bytes[offset..offset + length]);
    }
    wire.run();
    assert_eq!(wire.nodes[0].shards[0].up.sent.len(), messages.len());
    assert!(flat(&wire.nodes[1]) == expected);
    assert!(flat(&wire.nodes[0]) == bytes);
    wire.assert_frames_conserved();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn fragments_are_gathered_and_scattered(
        cuts in prop::array::uniform2(prop::collection::vec(any::<u16>(), 0..254)),
        messages in prop::collection::vec((0..BYTES, prop_oneof![0..100_usize, 0..5000_usize, 0..BYTES]), 1..12),
        mtu_bytes in prop::sample::select(vec![1500, 9000, 65535]),
        ipv6 in any::<bool>(),
        checksum in any::<bool>(),
    ) {
        let plan = |host| Plan { ipv6, mtu_bytes, checksum, ..Plan::new(host) };
        let mut wire = Wire::new(plan(1), plan(2));
        wire.nodes[0].replace_buffer(0, |_| long(cut(&bytes(), &cuts[0])));
        wire.nodes[1].replace_buffer(0, |_| long(cut(&[0; BYTES], &cuts[1])));
        let within = |(offset, length): (usize, usize)| (offset, length.min(BYTES - offset));
        send(&mut wire, &messages.into_iter().map(within).collect::<Vec<_>>());
    }
}

/// A frame whose payload lies in one registered fragment is sent where that lies; others are copied.
#[test]
fn registered_fragments_are_not_copied() {
    let plan = |host| Plan { registered: true, mtu_bytes: 9000, ..Plan::new(host) };
    let mut wire = Wire::new(plan(1), plan(2));
    wire.nodes[0].replace_buffer(0, |umem| {
        let chunks = [1, 2, 5, 3, 8, 40].map(|chunks| chunks * CHUNK_BYTES as usize);
        let last = BUFFER_BYTES - chunks.iter().sum::<usize>();
        let fragment = |length: &usize| umem.register(*length).unwrap();
        let mut buffer =
            Buffer::from_fragments(chunks.iter().chain([&last]).map(|length| Buffer::from(fragment(length))))
                .unwrap();
        let mut at = 0;
        let bytes = bytes();
        for piece in buffer.fragments_mut() {
            let length = piece.len().min(BYTES - at);
            piece[..length].copy_from_slice(&bytes[at..at + length]);
            at += length;
        }
        buffer
    });
    send(&mut wire, &[(0, BYTES)]);
    let counters = *wire.nodes[0].shards[0].lnd.counters();
    assert!(counters.frames_sent_in_place > 5, "{counters:?}");
    assert!(counters.frames_sent > counters.frames_sent_in_place + 4, "{counters:?}");
    assert!(!wire.nodes[0].shards[0].memory.is_in_flight(&span(BYTES as u32)));
}
