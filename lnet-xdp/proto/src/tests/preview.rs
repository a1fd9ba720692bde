//! What is sent before it is written down is what would have been sent.

use alloc::vec;
use core::time::Duration;

use lnet_core::handle::{Cookie, CookieKind, MdHandle, ShardId};
use lnet_core::lnd::{NiId, PeerSlot, Span, Transmit, TxId};
use lnet_wire::{Body, Header, ProcessId, WireHandle};

use super::super::Content;
use super::wire::{Network, Node, limits};

const SECOND: Duration = Duration::from_secs(1);
const PORTAL: u32 = 4;

/// Two nodes of which the first has sent messages to the second, and has heard of them.
fn acquainted() -> Network {
    let mut network = Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 1)], 1);
    for number in 0..3 {
        let (now, to) = (network.now, network.nodes[1].nids[0]);
        network.nodes[0].put(now, &to, 0, PORTAL, number, 10);
        network.run(SECOND / 10);
    }
    network
}

/// A PUT to the second node.
fn transmit(network: &Network, length_bytes: u32) -> Transmit {
    let process = |node: usize| ProcessId { nid: network.nodes[node].nids[0], pid: 12345 };
    let body =
        Body::Put { ack_md: WireHandle::NONE, match_bits: 7, hdr_data: 100, portal: PORTAL, offset: 0 };
    let header = Header { destination: process(1), source: process(0), payload_length: length_bytes, body };
    let md = MdHandle(Cookie::new(CookieKind::MemoryDesc, ShardId(0), 100, 1));
    let payload = (length_bytes != 0).then_some(Span { buffer: md.into(), offset_bytes: 0, length_bytes });
    Transmit {
        tx: TxId(100),
        ni: NiId(0),
        next_hop: header.destination.nid,
        peer: PeerSlot(0),
        header,
        payload,
    }
}

#[test]
fn a_preview_is_the_frame_that_is_polled() {
    for length_bytes in [0, 1, 64, 1024] {
        let mut network = acquainted();
        if length_bytes == 64 {
            // It acknowledges what came.
            let (now, to) = (network.now, network.nodes[0].nids[0]);
            network.nodes[1].put(now, &to, 0, PORTAL, 50, 10);
            network.run(Duration::from_micros(200));
        }
        let (now, transmit) = (network.now, transmit(&network, length_bytes));
        let xfer = &mut network.nodes[0].shards[0].xfer;
        let preview = xfer.preview(now, &transmit).expect("nothing is in its way");
        xfer.submit(now, &transmit).unwrap();
        assert_eq!(xfer.poll_transmit(now), Some(preview), "{length_bytes} bytes");
        assert_eq!(preview.transfer.ack.is_some(), length_bytes == 64);
        assert!(matches!(preview.content, Content::Message { lnet: Some(_), bundled: 0, .. }));
    }
}

#[test]
fn what_takes_more_to_say_has_no_preview() {
    let strangers = Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 1)], 1);
    let xfer = &strangers.nodes[0].shards[0].xfer;
    assert_eq!(xfer.preview(strangers.now, &transmit(&strangers, 64)), None, "there is no session");

    let mut network = acquainted();
    let now = network.now;
    let (small, long) = (transmit(&network, 64), transmit(&network, 1025));
    let xfer = &mut network.nodes[0].shards[0].xfer;
    assert_eq!(xfer.preview(now, &long), None, "it is long");
    assert_eq!(xfer.preview(now, &Transmit { ni: NiId(1), ..small }), None, "nothing has gone there");
    assert!(xfer.preview(now, &small).is_some());

    xfer.submit(now, &small).unwrap();
    assert_eq!(xfer.preview(now, &small), None, "another one is before it");
    while xfer.poll_transmit(now).is_some() {}
    assert!(xfer.preview(now, &small).is_some(), "one under way is not in its way");

    // The window is full, and then every message is under way.
    let mut previewed = 1;
    while xfer.preview(now, &small).is_some() {
        xfer.submit(now, &small).expect("what has a preview is taken");
        while xfer.poll_transmit(now).is_some() {}
        previewed += 1;
        assert!(previewed < limits().messages, "a window is narrower");
    }
    while xfer.submit(now, &small).is_ok() {}
    assert_eq!(xfer.usage().messages, limits().messages);
    assert_eq!(xfer.preview(now, &small), None, "there is no room for it");
}
