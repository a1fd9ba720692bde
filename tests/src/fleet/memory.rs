//! What a peer costs in memory: measured by an allocator that counts, when a fleet goes.

use lnet_core::limits::Limits;
use lnet_core::time::Instant;

use super::node::{LIMITS, Member, PEERS_MAX, shard_of};
use super::routes::Routing;
use super::{World, nids_of};

/// Runs something and says how many bytes are allocated after it that were not before; fewer than none if it
/// frees them.
pub type Measure = fn(&mut dyn FnMut()) -> i64;

impl World<'_> {
    /// Measures what the peers of all nodes take: what is freed when the nodes go, less what nodes without
    /// peers free; and what room for a NID takes in a shard.
    pub(super) fn measure(&mut self, measure: Measure) {
        let peers = || self.members.iter().flat_map(|member| member.node.peers());
        let (peer_count, nid_count) = (peers().count(), peers().map(|peer| peer.nis.len()).sum::<usize>());
        if peer_count == 0 {
            return;
        }
        let mut alone_bytes = 0;
        let mut number = 0;
        for group in &self.fleet.groups {
            let (nids, routing) =
                (nids_of(self.fleet, group, number), Routing::of(self.fleet, group, number));
            let mut member = Some(Member::routed((number, 0), nids, group.discovery, true, 0, routing));
            while member.as_mut().and_then(|member| member.poll(Instant(self.now))).is_some() {}
            alone_bytes -= measure(&mut || drop(member.take())) * i64::from(group.nodes);
            number += group.nodes;
        }
        let mut members = core::mem::take(&mut self.members);
        let all_bytes = -measure(&mut || members.clear());
        let per_peer = |bytes: i64| bytes as f64 / peer_count as f64;
        self.report.peers = peer_count as u64;
        self.report.peer_bytes = per_peer(all_bytes - alone_bytes);
        self.report.shard_bytes = nid_count as f64 / peer_count as f64 * slot_bytes(measure);
    }
}

/// Bytes that room for one more NID takes in a shard.
fn slot_bytes(measure: Measure) -> f64 {
    let of = |peers: u32| {
        let mut shard = Some(shard_of(Limits { peers, ..LIMITS }));
        -measure(&mut || drop(shard.take()))
    };
    (of(2 * PEERS_MAX) - of(PEERS_MAX)) as f64 / f64::from(PEERS_MAX)
}
