//! Checksums: who sends them, and what becomes of what arrives with one.

use lnet_wire::socklnd::CHECKSUM_RANGE;

use super::*;

const PAYLOAD_BYTES: u32 = 100;

/// What a node sends to a peer that has dialled it in this version: an acknowledgement, a message with
/// payload, and one without.
fn said(version: Version, sends_checksums: bool) -> [Vec<u8>; 3] {
    let tunables = SockTunables { sends_checksums, ..SockTunables::DEFAULT };
    let (mut node, now) = (Node::new(2, tunables), Instant(1));
    let conn = played(&mut node, now, 1, 1000, hello(1, version, ConnectionType::Control));
    answer(&sent(&mut node, now, conn));
    node.take(now, conn, &message(&header(nid(0, 1), node.nid, 0), [7, 0], 0), 1000);
    let acknowledgement = sent(&mut node, now, conn);
    let submitted = [PAYLOAD_BYTES, 0].map(|payload_bytes| {
        let transmit = transmit(payload_bytes, node.nid, nid(0, 1), payload_bytes);
        node.sock.submit(now, &transmit).unwrap();
        sent(&mut node, now, conn)
    });
    let [long, short] = submitted;
    [acknowledgement, long, short]
}

#[test]
fn they_leave_in_version_2_where_they_are_enabled() {
    for (version, is_enabled) in [(Version::V2, false), (Version::V3, true), (Version::V3, false)] {
        let sums = said(version, is_enabled).map(|bytes| bytes[CHECKSUM_RANGE].to_vec());
        assert_eq!(sums, [[0; 4]; 3], "{version:?}");
    }
    let prefixes = said(Version::V2, true).map(|bytes| bytes[..PREFIX_BYTES].to_vec());
    let without = said(Version::V2, false);
    for ((prefix, whole), plain) in prefixes.into_iter().zip(said(Version::V2, true)).zip(without) {
        let mut cleared = whole.clone();
        cleared[CHECKSUM_RANGE].fill(0);
        assert_eq!(cleared, plain, "the rest is the same");
        let mut sum = Checksum::new();
        sum.update(&cleared);
        assert_eq!(prefix[CHECKSUM_RANGE], sum.value().to_le_bytes());
        assert_ne!(sum.value(), 0);
    }
}

/// What becomes of these bytes at a node that a peer has dialled in this version: payload bytes that came,
/// and how often the peer was cut off for a checksum.
fn arrived(version: Version, bytes: &[u8]) -> (usize, u64) {
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let conn = played(&mut node, now, 1, 1000, hello(1, version, ConnectionType::Control));
    sent(&mut node, now, conn);
    node.take(now, conn, bytes, 33);
    let is_cut = node.count(SocklndEvent::BadChecksum);
    assert_eq!(node.has_closed(conn), is_cut != 0);
    assert_eq!(node.shard.received.is_empty(), is_cut != 0);
    (node.payload.len(), is_cut)
}

#[test]
fn one_bit_that_differs_is_found_wherever_it_is() {
    // Said by the node that the peer plays.
    let put = |payload_bytes, sum| message(&header(nid(0, 1), nid(0, 2), payload_bytes), [0; 2], sum);
    for payload_bytes in [0, PAYLOAD_BYTES] {
        let mut sum = Checksum::new();
        sum.update(&put(payload_bytes, 0));
        let right = put(payload_bytes, sum.value());
        assert_eq!(arrived(Version::V2, &right), (payload_bytes as usize, 0));
        assert_eq!(arrived(Version::V2, &put(payload_bytes, 0)), (payload_bytes as usize, 0), "none");
        // Bits in the checksum, a cookie, the match bits and the payload.
        let last = right.len() - 1;
        for at in [4, 7, 9, PREFIX_BYTES + 48, last] {
            let mut wrong = right.clone();
            wrong[at] ^= 4;
            let (_, cut_count) = arrived(Version::V2, &wrong);
            assert_eq!(cut_count, 1, "{payload_bytes} bytes, a bit of byte {at}");
        }
        // The other versions cover the payload alone.
        let mut sum = Checksum::new();
        sum.update(&put(payload_bytes, 0)[PREFIX_BYTES + 72..]);
        let right = put(payload_bytes, sum.value());
        assert_eq!(arrived(Version::V3, &right), (payload_bytes as usize, 0));
        assert_eq!(arrived(Version::V2, &right).1, 1);
    }
}

#[test]
fn what_is_cut_short_is_not_checked() {
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let conn = played(&mut node, now, 1, 1000, hello(1, Version::V2, ConnectionType::Control));
    sent(&mut node, now, conn);
    node.shard.verdicts = [Verdict::Deliver(span(10)), Verdict::Drop].into();
    for _ in 0..2 {
        node.take(now, conn, &message(&header(nid(0, 1), node.nid, PAYLOAD_BYTES), [0; 2], 99), 1000);
    }
    assert_eq!((node.payload.len(), node.count(SocklndEvent::BadChecksum)), (10, 0));
}

#[test]
fn an_error_is_injected_once() {
    let tunables =
        SockTunables { sends_checksums: true, injects_checksum_error: true, ..SockTunables::DEFAULT };
    let (mut node, now) = (Node::new(1, tunables), Instant(1));
    let said =
        Hello { source: ProcessId::lustre(nid(0, 2)), ..hello(2, Version::V2, ConnectionType::Control) };
    let conn = played(&mut node, now, 2, 1000, said);
    sent(&mut node, now, conn);
    let cut_counts = [0, 1].map(|tx| {
        node.sock.submit(now, &transmit(tx, node.nid, nid(0, 2), PAYLOAD_BYTES)).unwrap();
        arrived(Version::V2, &sent(&mut node, now, conn)).1
    });
    assert_eq!(cut_counts, [1, 0]);
}
