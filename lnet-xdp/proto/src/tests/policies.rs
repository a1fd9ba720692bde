//! Policies that change under way.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::lnd::Status;
use lnet_wire::steer::{Policy, Spread};

use super::wire::{Faults, Network, Node, ROTOR};

const SECOND: Duration = Duration::from_secs(1);
const OTHER: u32 = 4;

/// Frames that were steered by the former policy carry numbers that mean nothing to their new shard.
#[test]
fn nothing_is_lost_or_doubled_when_policies_change() {
    let policies = [
        Policy::Pin(1),
        Policy::MatchBits { shift: 0, bits: 4, spread: Spread::Hash },
        Policy::Pin(2),
        Policy::Rotor,
    ];
    for seed in 0..24 {
        let mut network = Network::new(vec![Node::new(1, 1, 2), Node::new(2, 1, 3)], seed);
        network.faults = Faults { lost: 10 * (seed % 4), doubled: 50, late: 100 };
        let to = network.nodes[1].nids[0];
        let mut number = 0;
        for policy in policies {
            for _ in 0..40 {
                let portal = if number % 3 == 0 { ROTOR } else { OTHER };
                let length = [10, 3000, 0, 60_000][number as usize / 2 % 4];
                let now = network.now;
                network.nodes[0].put(now, &to, 0, portal, number, length);
                number += 1;
            }
            network.run(Duration::from_micros(30 + 50 * seed));
            // Not all shards hear of it at once.
            network.nodes[1].set_policy(ROTOR, policy, 0..2);
            network.run(Duration::from_micros(100));
            network.nodes[1].set_policy(ROTOR, policy, 2..3);
        }
        network.run(4 * SECOND);
        let arrived = network.nodes[1].arrived();
        let mut numbers: Vec<u64> = arrived.iter().map(|(number, _)| *number).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), arrived.len(), "each arrives once");
        let sent = network.nodes[0].sent();
        assert_eq!(sent.len() as u64, number);
        for (tx, status) in sent {
            let there = arrived.contains(&(u64::from(tx), Status::Ok));
            match status {
                Status::Ok => assert!(there, "{tx} was sent and did not arrive"),
                Status::NeverSent(_) => assert!(!there, "{tx} was not sent and arrived"),
                Status::Unknown(_) => assert_eq!(tx % 3, 0, "{tx} goes to another portal"),
            }
        }
        network.nodes.iter().for_each(Node::assert_idle);
    }
}
