//! Peers that shards have traffic with.
//!
//! Invariant: where nothing moves, nothing is looked through; the data path is not involved.

use std::collections::HashMap;
use std::sync::Arc;

use lnet_core::lnd::NiId;
use lnet_core::shard::Shard;
use lnet_core::stats::NiCounters;
use lnet_wire::Nid;

/// What the shards had counted when they were last asked.
#[derive(Default, Debug)]
pub(super) struct SeenTraffic {
    /// Messages by shard.
    totals: Arc<Vec<u64>>,
    /// Messages by shard and peer.
    peers: HashMap<(usize, Nid), Messages>,
}

/// What a shard has counted in all, and of each peer, with the NI by which it was first heard; `None` if
/// nothing has moved.
pub(super) type Moved = Option<(u64, Vec<(Nid, Option<NiId>, Messages)>)>;

/// Messages of a peer: in all, and those that came from it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Messages {
    all: u64,
    received: u64,
}

impl SeenTraffic {
    /// What the shards had counted in all, by shard.
    pub(super) fn totals(&self) -> Arc<Vec<u64>> {
        Arc::clone(&self.totals)
    }

    /// Takes what the shards tell; the peers with which there was traffic meanwhile, and whether some of it
    /// came from them, and the NIs by which they were first heard.
    pub(super) fn note(&mut self, told: Vec<Moved>) -> Vec<(Nid, bool, Option<NiId>)> {
        let mut totals = self.totals.to_vec();
        totals.resize(told.len(), 0);
        let mut traffic = Vec::new();
        for (index, moved) in told.into_iter().enumerate() {
            let Some((total, peers)) = moved else { continue };
            totals[index] = total;
            // Shards forget peers too.
            let former: HashMap<_, _> = self.peers.extract_if(|(shard, _), _| *shard == index).collect();
            for (nid, first_ni, count) in peers {
                let before = former.get(&(index, nid)).copied().unwrap_or_default();
                if count.all != before.all {
                    traffic.push((nid, count.received != before.received && count.received > 0, first_ni));
                }
                self.peers.insert((index, nid), count);
            }
        }
        self.totals = Arc::new(totals);
        traffic
    }
}

/// What a shard tells that had counted so much when it was last asked.
pub(super) fn moved(shard: &Shard, before: u64) -> Moved {
    let counters = shard.counters();
    let total = counters.sent.messages
        + counters.received.messages
        + counters.lent
        + counters.dropped().messages
        + counters.send_failures;
    let known = || shard.peers().filter(|peer| !peer.is_own);
    let peers = || known().map(|peer| (peer.nid, peer.first_ni, messages(&peer.counters)));
    (total != before).then(|| (total, peers().collect()))
}

fn messages(counters: &NiCounters) -> Messages {
    let received = counters.received.total() + counters.dropped.total();
    Messages { all: counters.sent.total() + received, received }
}
