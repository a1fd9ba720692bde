//! Captures of what goes over the rings: each frame once in each direction, byte for byte.

use super::reading::{Captured, Contents};
use lnet_io::capture::{CaptureInterface, CaptureSpec, Captures, Link, TapEnd};

use crate::lnd::SendFault;
use crate::lnd::XdpDrop;

use super::node::{INTERFACE, Node, Plan};
use super::wire::Wire;

/// A capture of a node whose shards are driven here.
struct Capture {
    captures: Captures,
    spec: CaptureSpec,
}

impl Capture {
    fn of(node: &mut Node, name: &str) -> Self {
        let name = format!("lnet-rings-{}-{name}-{}", std::process::id(), node.plan.host);
        let spec = CaptureSpec {
            buffer_bytes: 32 << 20,
            ..CaptureSpec::new(std::env::temp_dir().join(name).to_str().unwrap(), 1 << 30)
        };
        let interface =
            CaptureInterface { index: INTERFACE, name: "veth-a".to_owned(), link: Link::Ethernet };
        let mut captures = Captures::default();
        let shards = node.shards.len();
        let tap = |ends: Vec<TapEnd>| {
            for (shard, end) in node.shards.iter_mut().zip(ends) {
                shard.lnd.tap.add(end);
            }
            Ok::<_, lnet_io::capture::CaptureError>(())
        };
        captures.start(&spec, (&[interface], shards), tap, |_| {}).unwrap();
        Self { captures, spec }
    }

    /// Nothing is sent or received any more.
    fn end(mut self) -> Vec<Captured> {
        let state = self.captures.take(self.spec.path.as_ref()).unwrap().stop();
        let contents = Contents::read_complete(&std::fs::read(&self.spec.path).unwrap());
        std::fs::remove_file(&self.spec.path).unwrap();
        assert_eq!((state.missed_count, state.failure), (0, None));
        assert!(contents.frames.is_sorted_by_key(|frame| frame.time_ns));
        contents.frames
    }
}

fn of_direction(frames: &[Captured], is_received: bool) -> Vec<&[u8]> {
    let of_it = frames.iter().filter(|frame| frame.is_received == is_received);
    of_it.map(|frame| &frame.bytes[..]).collect()
}

/// One shard and one queue each, so that there is one order of frames: some are doubled, some late, some
/// spoilt.
#[test]
fn every_frame_is_there_once_for_each_direction() {
    let send_fault = SendFault { double_every: 7, delay_every: 11, delay_frames: 3 };
    for (ipv6, mtu_bytes, registered) in [(false, 1500, false), (true, 65535, false), (false, 9000, true)] {
        let plan = |host| Plan { ipv6, mtu_bytes, send_fault, registered, ..Plan::new(host) };
        let mut wire = Wire::new(plan(1), plan(2));
        let captures = [0, 1].map(|node| Capture::of(&mut wire.nodes[node], "one"));
        let (mut sent, mut arrived) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        let mut number = 0_u32;
        for (tx, length_bytes) in (1..).zip([0, 64, 1400, 9000, 65_290, 300_000]) {
            let [a, b] = &mut wire.nodes;
            let put = a.put(tx, &b.plan, 9, length_bytes);
            wire.submit(0, 0, put);
            wire.run_with(&mut |sender, packet| {
                sent[sender].push(packet.clone());
                number += 1;
                let mut spoilt = packet.clone();
                // The checksum of the headers, which XDP does not look at.
                let headers_bytes = if ipv6 { 62 } else { 42 };
                spoilt[headers_bytes + lnet_wire::frame::CRC_OFFSET] ^= u8::from(number.is_multiple_of(5));
                arrived[1 - sender].push(spoilt.clone());
                vec![spoilt]
            });
        }
        let spoilt =
            wire.nodes.iter().map(|node| node.shards[0].lnd.counters().dropped(XdpDrop::BadChecksum));
        assert_eq!((spoilt.sum::<u64>(), number > 20), (u64::from(number / 5), true), "{number} frames");
        assert_eq!(wire.nodes[0].shards[0].lnd.counters().frames_sent_in_place != 0, registered);
        for (node, capture) in captures.into_iter().enumerate() {
            let frames = capture.end();
            let counters = wire.nodes[node].shards[0].lnd.counters();
            let [received, sent_frames] = [true, false].map(|is_received| of_direction(&frames, is_received));
            // What the wire carries after the last message (acknowledgements) is not shown to the test.
            assert!(sent_frames.starts_with(&sent[node].iter().map(Vec::as_slice).collect::<Vec<_>>()));
            assert!(received.starts_with(&arrived[node].iter().map(Vec::as_slice).collect::<Vec<_>>()));
            assert_eq!(sent_frames.len() as u64, counters.frames_sent);
            assert_eq!(received.len() as u64, counters.frames_received);
        }
    }
}

/// Shards that hand frames over to each other: what one receives is captured by it alone.
#[test]
fn frames_that_are_handed_over_are_there_once() {
    let plan = |host| Plan { shards: 3, queues: 2, ..Plan::new(host) };
    let mut nodes = Node::pair(plan(1), plan(2));
    let captures: Vec<Capture> = nodes.iter_mut().map(|node| Capture::of(node, "handed")).collect();
    let [mut sent, mut arrived] = [(); 2].map(|()| [Vec::new(), Vec::new()]);
    for round in 0..200_u32 {
        if round < 40 {
            let put = nodes[0].put(round, &nodes[1].plan, round.into(), 3000);
            nodes[0].shards[round as usize % 3].submit(put).unwrap();
        }
        for sender in 0..2 {
            for queue in 0..2 {
                for (number, packet) in nodes[sender].take_sent(queue).into_iter().enumerate() {
                    // The packet goes to any shard, its own or not.
                    if nodes[1 - sender].deliver(queue, (number + round as usize) % 3, &packet) {
                        arrived[1 - sender].push(packet.clone());
                    }
                    sent[sender].push(packet);
                }
            }
            nodes[1 - sender].settle();
        }
    }
    let misdirected =
        |node: &Node| node.shards.iter().map(|shard| shard.lnd.counters().frames_misdirected).sum::<u64>();
    assert!(misdirected(&nodes[1]) > 20, "{}", misdirected(&nodes[1]));
    for (node, capture) in captures.into_iter().enumerate() {
        let frames = capture.end();
        for (is_received, expected) in [(false, &mut sent[node]), (true, &mut arrived[node])] {
            let mut captured = of_direction(&frames, is_received);
            captured.sort_unstable();
            expected.sort_unstable();
            assert!(
                !captured.is_empty() && captured == *expected,
                "{} of {}",
                captured.len(),
                expected.len()
            );
        }
    }
}
