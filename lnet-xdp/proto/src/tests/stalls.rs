//! Receivers that do nothing for a while, and read what has come by several rails one ring after the other:
//! nothing was lost, so nothing is sent again.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::lnd::Status;
use lnet_core::time::Instant;
use lnet_wire::frame::Kind;

use super::wire::{Frame, Network, Node};

const SECOND: Duration = Duration::from_secs(1);
/// Frames that a driver takes off one ring in a turn.
const TURN_FRAMES: usize = 64;

/// A pair of nodes that have sessions by both rails, and wide windows.
fn warm_pair(seed: u64) -> Network {
    let mut network = Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 1)], seed);
    for number in 0..200 {
        put(&mut network, number);
        network.run(SECOND / 20_000);
    }
    network.run(SECOND / 10);
    assert_eq!(network.nodes[0].counters()[0].frames_resent, 0);
    network.log.clear();
    network
}

/// Puts too much for a bundle by the one rail or the other.
fn put(network: &mut Network, number: u64) {
    let (rail, now) = (number as u16 % 2, network.now);
    let to = network.nodes[1].nids[usize::from(rail)];
    network.nodes[0].put(now, &to, rail, 4, number, 1000);
}

/// What lies in the rings of a receiver, by rail.
#[derive(Default)]
struct Rings([VecDeque<Frame>; 2]);

impl Rings {
    fn take_in(&mut self, frames: Vec<Frame>) {
        for frame in frames {
            self.0[usize::from(frame.ni.0)].push_back(frame);
        }
    }

    /// A turn of the receiver: so many frames of each ring, and then what it has to say.
    fn turn(&mut self, now: Instant, node: &mut Node, most: usize) -> Vec<Frame> {
        for ring in &mut self.0 {
            let count = ring.len().min(most);
            for frame in ring.drain(..count) {
                node.receive(now, &frame);
            }
        }
        node.poll(now)
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(VecDeque::is_empty)
    }
}

/// Sends `count` messages, one every `gap`, to a receiver that stalls, and then reads ring after ring. How
/// often something was sent again.
fn stall(seed: u64, count: u64, gap: Duration) -> u64 {
    let mut network = warm_pair(seed);
    let mut rings = Rings::default();
    for number in 200..200 + count {
        put(&mut network, number);
        let now = network.now;
        rings.take_in(network.nodes[0].poll(now));
        network.now = now + gap;
    }
    while !rings.is_empty() {
        network.now = network.now + Duration::from_micros(50);
        let now = network.now;
        for answer in rings.turn(now, &mut network.nodes[1], TURN_FRAMES) {
            // Each comes by itself.
            network.nodes[0].receive(now, &answer);
            rings.take_in(network.nodes[0].poll(now));
        }
    }
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 200 + count);
    network.nodes[0].counters()[0].frames_resent
}

#[test]
fn what_a_stalled_receiver_reads_late_is_not_sent_again() {
    for seed in 0..4 {
        for gap_us in [0, 1, 9] {
            let resent = stall(seed, 190, Duration::from_micros(gap_us));
            assert_eq!(resent, 0, "a frame every {gap_us} us");
        }
    }
}

/// Many frames come by one rail, then by the other one that was sent before all of these.
#[test]
fn frames_of_one_ring_do_not_hide_each_other() {
    let mut network = warm_pair(1);
    let mut rings = Rings::default();
    for number in 200..350 {
        put(&mut network, number);
    }
    let now = network.now;
    rings.take_in(network.nodes[0].poll(now));
    let sent: Vec<u32> = rings.0.iter().flatten().map(|frame| frame.transfer.number).collect();
    assert!(sent.len() > 120, "{}", sent.len());
    // All of one ring, in one go.
    let answers = rings.turn(now, &mut network.nodes[1], usize::MAX);
    let told = |number: u32| {
        answers
            .iter()
            .filter(|frame| frame.header.kind == Kind::Ack)
            .filter_map(|frame| frame.transfer.ack)
            .any(|ack| match ack.highest.wrapping_sub(number) {
                0 => true,
                below @ 1..=64 => ack.below >> (below - 1) & 1 != 0,
                _ => false,
            })
    };
    let untold: Vec<u32> = sent.into_iter().filter(|number| !told(*number)).collect();
    assert_eq!(untold, [], "received and never acknowledged");
}

/// A receiver that does nothing for long is asked for an answer, and not sent everything again.
#[test]
fn a_receiver_that_is_silent_for_some_time_is_sent_a_frame_for_each_probe() {
    let mut network = warm_pair(2);
    for number in 200..300 {
        put(&mut network, number);
    }
    network.stalled = Some(1);
    network.run(Duration::from_millis(12));
    network.stalled = None;
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 300);
    let counters = network.nodes[0].counters()[0];
    assert!(counters.probes >= 2, "{counters:?}");
    assert_eq!(counters.frames_resent, counters.probes);
}

/// What is under way with a longer time ends with the shorter one; a longer one holds for what comes.
#[test]
fn a_message_timeout_changes_while_messages_are_under_way() {
    let ends_after = |set: Option<(u64, Duration)>| {
        let mut network = warm_pair(3);
        let begun = network.now;
        put(&mut network, 200);
        for step in 1..=100_u64 {
            network.now = begun + Duration::from_millis(50 * step);
            let now = network.now;
            if let Some((_, timeout)) = set.filter(|(at, _)| *at == step) {
                network.nodes[0].shards[0].xfer.set_message_timeout(now, timeout);
                put(&mut network, 201);
            }
            // All frames are lost.
            network.nodes[0].poll(now);
            let ended = network.nodes[0].sent().iter().filter(|(_, status)| *status != Status::Ok).count();
            if ended == if set.is_some() { 2 } else { 1 } {
                return 50 * step;
            }
        }
        panic!("no end")
    };
    assert!((1950..=2200).contains(&ends_after(None)), "{}", ends_after(None));
    let shortened = ends_after(Some((4, SECOND / 2)));
    assert!((650..=900).contains(&shortened), "{shortened}");
    let lengthened = ends_after(Some((4, SECOND * 4)));
    assert!((4150..=4500).contains(&lengthened), "{lengthened}");
}
