//! Snapshots: how the shards of a node learn of its topology, and what they have confirmed.
//!
//! Invariant: generations grow.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use lnet_wire::Nid;

use super::Node;
use super::error::RequestError;
use super::peers::{FormerNids, Peer, peer_state};
use crate::shard::Confirmation;
use crate::topology::{FailedDiscovery, PRIORITY_NONE, PeerMap, PeerNid, PeerView, Steering, Topology};

/// The errno of what has none of Linux.
const EIO: u8 = 5;

/// The snapshot that shards are to have, and their confirmations.
#[derive(Debug)]
pub(super) struct Snapshots {
    /// The peers as the shards know them.
    peers: PeerMap,
    /// Portals that get no entries now.
    pub(super) frozen: u64,
    /// Whether requests to peers that were never discovered wait for that.
    gates_requests: bool,
    /// Whether something has changed that shards do not know.
    pub(super) is_changed: bool,
    pub(super) generation: u64,
    /// The newest one, until it is taken.
    newest: Option<Arc<Topology>>,
    /// The last word of each shard.
    confirmations: Box<[Option<Confirmation>]>,
}

impl Snapshots {
    pub(super) fn new(shard_count: u8) -> Self {
        Self {
            peers: PeerMap::default(),
            frozen: 0,
            gates_requests: false,
            is_changed: false,
            generation: 0,
            newest: None,
            confirmations: (0..shard_count).map(|_| None).collect(),
        }
    }

    /// Has requests to peers that were never discovered wait for that.
    pub(super) const fn gate_requests(&mut self) {
        (self.gates_requests, self.is_changed) = (true, true);
    }

    /// Takes note of the NIDs that peers have lost.
    pub(super) fn set_former(&mut self, former: &FormerNids) {
        self.peers.set_former(former.others());
        self.peers.set_moved(former.moved());
        self.is_changed = true;
    }

    /// Takes note of what a shard says of its snapshot.
    ///
    /// # Panics
    /// If there is no such shard.
    pub(super) fn confirm(&mut self, confirmation: Confirmation) {
        let shard = usize::from(confirmation.shard.0);
        assert!(shard < self.confirmations.len(), "there is no shard {shard}");
        self.confirmations[shard] = Some(confirmation);
    }

    /// Whether all shards have a snapshot of this generation or a newer one.
    pub(super) fn all_have(&self, generation: u64) -> bool {
        self.confirmations.iter().all(|shard| shard.is_some_and(|shard| shard.generation >= generation))
    }

    /// Whether all shards have it, and have nothing of an NI that goes.
    pub(super) fn are_quiet(&self, generation: u64) -> bool {
        self.all_have(generation) && self.confirmations.iter().flatten().all(|shard| shard.is_quiet)
    }

    /// Whether a shard has messages of others under way while routing ends.
    pub(super) fn are_forwarding(&self) -> bool {
        self.confirmations.iter().flatten().any(|shard| shard.is_forwarding)
    }

    /// Messages that have ever come by the NIs that are leaving, modulo 2^64.
    pub(super) fn arrived_count(&self) -> u64 {
        let counts = self.confirmations.iter().flatten().map(|shard| shard.arrived_count);
        counts.fold(0, u64::wrapping_add)
    }

    /// Portals of which a shard says that they are in use, a bit each.
    pub(super) fn portals_in_use(&self) -> u64 {
        self.confirmations.iter().flatten().fold(0, |bits, shard| bits | shard.portals_in_use)
    }
}

impl<O: Clone> Node<O> {
    /// The newest snapshot, once.
    pub fn poll_snapshot(&mut self) -> Option<Arc<Topology>> {
        let has_news = self.tell_of_peers();
        if core::mem::take(&mut self.snapshots.is_changed) || has_news {
            self.publish();
        }
        self.snapshots.newest.take()
    }

    /// Makes a snapshot of what there is now.
    pub(super) fn publish(&mut self) {
        self.snapshots.generation += 1;
        let steering = Steering { shard_count: self.config.shard_count, policies: self.policies };
        let net_routes = self.route_table();
        let topology = Topology::with_slots(self.nis.slots(&self.settings, &self.rules))
            .with_numa_distances(self.nis.numa_distances(&self.settings))
            .with_memory_distances(self.nis.memory_distances(&self.settings))
            .with_reaches(self.nis.reaches())
            .with_tunables(self.settings.tunables())
            .with_steering(steering)
            .with_frozen(self.snapshots.frozen)
            .with_peers(self.snapshots.peers.clone())
            .with_net_routes(net_routes)
            .with_forwarding(self.routing.forwarding())
            .with_gated_requests(self.snapshots.gates_requests && self.config.peers_max > 0)
            .with_generation(self.snapshots.generation);
        self.snapshots.newest = Some(Arc::new(topology));
    }

    /// Brings the peers as the shards know them up to date; whether that changed something.
    fn tell_of_peers(&mut self) -> bool {
        let Some([removed, changed, unowned]) = self.peers.take_changes() else { return false };
        self.note_changed_gateways(removed.iter().chain(&changed));
        for nid in removed.iter().chain(&unowned) {
            self.snapshots.peers.remove(nid);
        }
        for primary in &changed {
            self.record_sources(primary);
        }
        let peers = changed.iter().filter_map(|primary| self.peers.get(primary));
        for peer in peers.filter(|peer| !peer.is_own()) {
            if let Some(view) = self.view(peer) {
                self.snapshots.peers.insert(view);
            }
        }
        for nid in unowned.iter().filter(|nid| self.peers.is_in_question(nid)) {
            if let Some(view) = self.peers.get(nid).is_none().then(|| PeerView::in_question(*nid)) {
                self.snapshots.peers.insert(view);
            }
        }
        true
    }

    /// A peer as the shards know it. A NID of this node's own that is configured for the peer is no path to
    /// it, nor its name: what goes there stays here.
    fn view(&self, peer: &Peer) -> Option<PeerView> {
        let foreign = peer.nis.iter().filter(|ni| !self.is_local(&ni.nid));
        // There are many peers, and few have own NIDs.
        let mut nis = Vec::with_capacity(peer.nis.len());
        nis.extend(foreign.map(|ni| PeerNid {
            priority: self.rules.peer_priority(&ni.nid),
            preferred: self.preferred(peer, ni),
            ..PeerNid::new(ni.nid, ni.health)
        }));
        let view = PeerView::new(peer.is_multi_rail(), nis)?;
        let own_count = peer.nis.len() - view.nis.len();
        let nid_count = (peer.nid_count() - own_count) as u16;
        let is_its = |nid: &&Nid| self.peers.reached_as(nid).is_some_and(|its| its.primary == peer.primary);
        let names = peer.left().iter().filter(is_its).copied().collect();
        let nets: BTreeSet<_> = view.nis.iter().map(|ni| ni.nid.net()).collect();
        let priorities = nets.into_iter().map(|net| (net, self.rules.peer_net_priority(net)));
        let net_priorities = priorities.filter(|(_, priority)| *priority != PRIORITY_NONE).collect();
        let failed = |error: &RequestError| FailedDiscovery {
            generation: peer.failed_at,
            errno: u8::try_from(error.errno()).unwrap_or(EIO),
        };
        Some(PeerView {
            is_wanted: self.is_wanted(peer) || self.is_waited_for(peer),
            is_gated: Self::is_gated(peer) && !peer.is(peer_state::ROUTER_DISCOVERY),
            awaits_name: self.awaits_name(peer),
            failed: peer.error.as_deref().map(failed),
            nid_count,
            names,
            net_priorities,
            ..view
        })
    }
}
