//! The node's word of itself to other nodes, by answers to pings and by pushes.
//!
//! Invariant: what is told has a new number whenever it is new.

use alloc::sync::Arc;
use alloc::vec::Vec;

use lnet_wire::Nid;
use lnet_wire::ping::{self, Features, PingNi};

use super::{Action, Node};

/// The node and its NIs, as other nodes are told.
#[derive(Default, Debug)]
pub(super) struct Told {
    features: Features,
    nis: Vec<PingNi>,
    /// Counts what was new of the NIs.
    pub(super) sequence: u32,
    /// The answer to pings, and the payload of pushes.
    pub(super) bytes: Arc<[u8]>,
    /// Whether peers are to be pushed to: those that are behind, or all.
    pub(super) push_due: Option<bool>,
}

impl Told {
    /// The NIDs of the NIs.
    pub(super) fn nids(&self) -> Vec<Nid> {
        self.nis.iter().map(|ni| ni.nid).collect()
    }
}

impl<O: Clone> Node<O> {
    /// Tells those who ping, if there is anything new (LNet `api-ni.c: lnet_ping_target_update`). The NIs
    /// stand there by net, in the order in which they were made.
    pub(super) fn tell(&mut self) {
        let mut nis = Vec::new();
        for net in self.nis.nets() {
            let stays =
                self.nis.0.iter().filter(|config| config.spec.nid.net() == net && config.going.is_none());
            nis.extend(stays.map(|config| {
                let status = if config.is_told_up() { ping::NiStatus::UP } else { ping::NiStatus::DOWN };
                PingNi { nid: config.spec.nid, status }
            }));
        }
        let mut features = Features::NI_STATUS.with(Features::MULTI_RAIL);
        if !self.routing.is_told() {
            features = features.with(Features::ROUTING_DISABLED);
        }
        if self.is_discovery_on() {
            features = features.with(Features::DISCOVERY);
        }
        let told = &mut self.told;
        let are_same = told.sequence != 0 && nis == told.nis;
        if are_same && features == told.features {
            return;
        }
        // News is pushed: the end of discovery and routing to all peers, the rest to those that are behind.
        let ends_discovery =
            !features.contains(Features::DISCOVERY) && told.features.contains(Features::DISCOVERY);
        let routes = [features, told.features].map(|told| !told.contains(Features::ROUTING_DISABLED));
        let is_for_all = ends_discovery || told.sequence != 0 && routes[0] != routes[1];
        told.push_due = Some(told.push_due.unwrap_or(false) || is_for_all);
        (told.nis, told.features) = (nis, features);
        if !are_same {
            told.sequence = told.sequence.wrapping_add(1).max(1);
            self.peers.follow_own(&told.nids(), told.sequence);
        }
        let nis = told.nis.iter().copied();
        let mut bytes = alloc::vec![0; ping::encoded_bytes(nis.clone()).unwrap_or(0)];
        let written = ping::write(&mut bytes, features, self.config.pid, told.sequence, nis);
        assert!(written.is_ok(), "what was validated cannot be told: {written:?}");
        told.bytes = bytes.into();
        self.actions.push_back(Action::Publish(Arc::clone(&told.bytes)));
    }
}
