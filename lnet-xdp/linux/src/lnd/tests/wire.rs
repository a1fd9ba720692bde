//! Two nodes and what is between them.

use lnet_core::lnd::Transmit;
use lnet_core::time::Instant;
use lnet_wire::verdict;

use super::node::{NOW, Node, Plan};

/// Two nodes that know the way to each other, and the time that they go by.
pub(super) struct Wire {
    pub(super) nodes: [Node; 2],
    pub(super) now: Instant,
}

impl Wire {
    pub(super) fn new(a: Plan, b: Plan) -> Self {
        Self { nodes: Node::pair(a, b), now: NOW }
    }

    /// Submits at a shard of a node, trying again while that is full.
    pub(super) fn submit(&mut self, node: usize, shard: usize, transmit: Transmit) {
        while self.nodes[node].shards[shard].submit_at(self.now, transmit).is_err() {
            assert!(self.step(&mut |_, packet| vec![packet]), "full, and nothing moves");
        }
    }

    /// Carries what was sent, as `pass` has it arrive: by the node that sends, each packet becomes any
    /// number. Where nothing was sent the time goes on to what is due next. False when there is nothing of
    /// either.
    pub(super) fn step(&mut self, pass: &mut impl FnMut(usize, Vec<u8>) -> Vec<Vec<u8>>) -> bool {
        let mut carried = false;
        for sender in 0..2 {
            for queue in 0..self.nodes[sender].plan.queues as usize {
                for packet in self.nodes[sender].take_sent(queue) {
                    carried = true;
                    for packet in pass(sender, packet) {
                        self.deliver(1 - sender, queue, &packet);
                    }
                }
            }
        }
        // A packet takes a while.
        self.now.0 += 2_000;
        if !carried {
            let due = self.nodes.iter().filter_map(Node::poll_timeout).min();
            let Some(due) = due.filter(|due| due.0 < self.now.0 + 10_000_000_000) else { return false };
            self.now = due.max(self.now);
        }
        self.nodes.iter_mut().for_each(|node| node.settle_at(self.now));
        true
    }

    fn deliver(&mut self, node: usize, queue: usize, packet: &[u8]) {
        let node = &mut self.nodes[node];
        // A frame that is none any more passes up.
        let verdict::Verdict::Redirect { shard, .. } = verdict::steer(packet, 0, node) else { return };
        let shard = shard as usize;
        // What finds no room is lost.
        let queue = queue % node.plan.queues as usize;
        if !node.deliver(queue, shard, packet) {
            node.settle_at(self.now);
            node.deliver(queue, shard, packet);
        }
    }

    /// Carries everything until no message is under way and no acknowledgement is owed.
    pub(super) fn run(&mut self) {
        self.run_with(&mut |_, packet| vec![packet]);
    }

    /// As [`Wire::run`], with what `pass` does to packets.
    pub(super) fn run_with(&mut self, pass: &mut impl FnMut(usize, Vec<u8>) -> Vec<Vec<u8>>) {
        let mut steps = 0;
        self.nodes.iter_mut().for_each(|node| node.settle_at(self.now));
        while self.nodes.iter().any(|node| node.under_way() != 0) {
            steps += 1;
            assert!(steps < 100_000, "messages are under way for ever");
            assert!(self.step(pass), "messages are under way, and nothing is due");
        }
        for _ in 0..4 {
            self.now.0 += 100_000;
            self.step(&mut |_, packet| vec![packet]);
        }
    }

    pub(super) fn assert_frames_conserved(&mut self) {
        for node in &mut self.nodes {
            node.take_sent(0);
            if node.plan.queues > 1 {
                node.take_sent(1);
            }
            node.settle_at(self.now);
            node.assert_frames_conserved();
        }
    }
}
