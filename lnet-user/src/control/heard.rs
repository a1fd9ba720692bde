//! Peers that shards have traffic with.
//!
//! Invariant: where nothing moves, nothing is looked through; the data path is not involved.

use std::collections::HashMap;

use lnet_core::node::Report;
use lnet_core::shard::Shard;
use lnet_core::stats::NiCounters;
use lnet_wire::Nid;

use super::Control;
use crate::api::LnetError;

/// What the shards had counted when they were last asked.
#[derive(Default, Debug)]
pub(super) struct Heard {
    /// By shard.
    totals: Vec<u64>,
    /// By shard and peer.
    peers: HashMap<(usize, Nid), u64>,
}

impl Control {
    /// Finds out with whom there was traffic.
    pub(super) async fn hear(&self) -> Result<(), LnetError> {
        for (place, shard) in self.lnet.shards().enumerate() {
            let before = self.heard.borrow().totals.get(place).copied().unwrap_or_default();
            let told = shard.run_async(move |worker| moved(worker.shard(), before)).await?;
            if let Some((total, peers)) = told {
                self.note(place, total, peers);
            }
        }
        Ok(())
    }

    fn note(&self, place: usize, total: u64, peers: Vec<(Nid, u64)>) {
        let mut heard = self.heard.borrow_mut();
        let places = self.lnet.shard_count();
        heard.totals.resize(places, 0);
        heard.totals[place] = total;
        // Shards forget peers too.
        let mut former = HashMap::with_capacity(peers.len());
        heard.peers.retain(|(shard, nid), count| {
            let is_this = *shard == place;
            if is_this {
                former.insert(*nid, *count);
            }
            !is_this
        });
        let mut node = self.node.borrow_mut();
        for (nid, count) in peers {
            if count > 0 && former.get(&nid) != Some(&count) {
                node.handle_report(self.clock.now(), Report::Heard { nid });
            }
            heard.peers.insert((place, nid), count);
        }
    }
}

/// What a shard has counted in all, and of each peer; `None` if nothing has moved since.
fn moved(shard: &Shard, before: u64) -> Option<(u64, Vec<(Nid, u64)>)> {
    let counters = shard.counters();
    let total = counters.sent.messages
        + counters.received.messages
        + counters.lent
        + counters.dropped().messages
        + counters.send_failures;
    let peers = || shard.peers().filter(|peer| !peer.is_own).map(|peer| (peer.nid, messages(&peer.counters)));
    (total != before).then(|| (total, peers().collect()))
}

fn messages(counters: &NiCounters) -> u64 {
    counters.sent.total() + counters.received.total() + counters.dropped.total()
}
