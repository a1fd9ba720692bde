//! What the shards of a node hear of it by snapshots, and other nodes by its answers to pings and its pushes.
//!
//! Invariants: generations grow; what others hear has a new number whenever it is new.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use lnet_wire::ping::{self, Features, PingNi};

use super::error::RequestError;
use super::peers::Peer;
use super::{Action, Node};
use crate::topology::{FailedDiscovery, PRIORITY_NONE, PeerNid, PeerView, Steering, Topology};

/// The errno of what has none of Linux.
const EIO: u8 = 5;

impl<O: Clone> Node<O> {
    /// The newest snapshot, once.
    pub fn poll_snapshot(&mut self) -> Option<Arc<Topology>> {
        let has_news = self.tell_of_peers();
        if has_news || core::mem::take(&mut self.is_changed) {
            self.publish();
        }
        self.snapshot.take()
    }

    /// Makes a snapshot of what there is now.
    pub(super) fn publish(&mut self) {
        self.generation += 1;
        let steering = Steering { shard_count: self.config.shard_count, policies: self.policies };
        let topology = Topology::with_slots(self.nis.slots(&self.settings, &self.rules))
            .with_numa_distances(self.nis.numa_distances(&self.settings))
            .with_tunables(self.settings.tunables())
            .with_steering(steering)
            .with_frozen(self.frozen)
            .with_peers(self.peer_map.clone())
            .with_gated_requests(self.gates_requests && self.config.peers_max > 0)
            .with_generation(self.generation);
        self.snapshot = Some(Arc::new(topology));
    }

    /// Brings the peers as the shards know them up to date; whether that changed something.
    fn tell_of_peers(&mut self) -> bool {
        let Some((removed, changed)) = self.peers.take_changes() else { return false };
        for nid in &removed {
            self.peer_map.remove(nid);
        }
        for primary in &changed {
            self.record_sources(primary);
        }
        let peers = changed.iter().filter_map(|primary| self.peers.get(primary));
        for peer in peers.filter(|peer| !peer.is_own()) {
            if let Some(view) = self.view(peer) {
                self.peer_map.insert(view);
            }
        }
        true
    }

    /// A peer as the shards know it.
    fn view(&self, peer: &Peer) -> Option<PeerView> {
        let nis = peer.nis.iter().map(|ni| PeerNid {
            priority: self.rules.peer_priority(&ni.nid),
            preferred: self.preferred(peer, ni),
            ..PeerNid::new(ni.nid, ni.health)
        });
        let view = PeerView::new(peer.is_multi_rail(), nis.collect())?;
        let nets: BTreeSet<_> = view.nis.iter().map(|ni| ni.nid.net()).collect();
        let priorities = nets.into_iter().map(|net| (net, self.rules.peer_net_priority(net)));
        let net_priorities = priorities.filter(|(_, priority)| *priority != PRIORITY_NONE).collect();
        let failed = |error: &RequestError| FailedDiscovery {
            generation: peer.failed_at,
            errno: u8::try_from(error.errno()).unwrap_or(EIO),
        };
        Some(PeerView {
            is_wanted: self.is_wanted(peer),
            is_gated: Self::is_gated(peer),
            failed: peer.error.as_deref().map(failed),
            net_priorities,
            ..view
        })
    }

    /// Tells those who ping, if there is anything new (LNet `api-ni.c: lnet_ping_target_update`). The
    /// interfaces stand there by net, in the order in which they were made; the sequence number counts what
    /// is new of them.
    pub(super) fn tell(&mut self) {
        let mut told = Vec::new();
        for net in self.nis.nets() {
            let stays =
                self.nis.0.iter().filter(|config| config.spec.nid.net() == net && config.going.is_none());
            told.extend(stays.map(|config| {
                let status = if config.is_told_up() { ping::NiStatus::UP } else { ping::NiStatus::DOWN };
                PingNi { nid: config.spec.nid, status }
            }));
        }
        let mut features = Features::NI_STATUS.with(Features::ROUTING_DISABLED).with(Features::MULTI_RAIL);
        if self.is_discovery_on() {
            features = features.with(Features::DISCOVERY);
        }
        let are_same = self.sequence != 0 && told == self.told;
        if are_same && features == self.features {
            return;
        }
        if !are_same {
            self.sequence = self.sequence.wrapping_add(1).max(1);
            let nids: Vec<_> = told.iter().map(|ni| ni.nid).collect();
            self.peers.follow_own(&nids, self.sequence);
        }
        // What is new is pushed; that discovery is off now, to all.
        let ends_discovery =
            !features.contains(Features::DISCOVERY) && self.features.contains(Features::DISCOVERY);
        self.push_due = Some(self.push_due.unwrap_or(false) || ends_discovery);
        (self.told, self.features) = (told, features);
        let interfaces = self.told.iter().copied();
        let mut bytes = alloc::vec![0; ping::encoded_bytes(interfaces.clone()).unwrap_or(0)];
        let written = ping::write(&mut bytes, features, self.config.pid, self.sequence, interfaces);
        assert!(written.is_ok(), "what was validated cannot be told: {written:?}");
        self.published = bytes.into();
        self.actions.push_back(Action::Publish(Arc::clone(&self.published)));
    }
}
