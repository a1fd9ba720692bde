//! Peers that are gateways.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use lnet_wire::Nid;

use super::{Peer, PeerTable};

impl PeerTable {
    /// The gateways of routes were named by these NIDs. Each is a peer's from now on, which makes no room for
    /// others as long as a route is by it.
    pub(in crate::node) fn set_gateways(&mut self, gateways: BTreeSet<Nid>) {
        let former = core::mem::replace(&mut self.gateways, gateways);
        let changed: Vec<Nid> = former.symmetric_difference(&self.gateways).copied().collect();
        for nid in changed {
            if self.get(&nid).is_some() {
                self.change(&nid, |_| ());
            } else if self.max > 0 && self.gateways.contains(&nid) {
                self.insert(Box::new(Peer::new(nid, 0)));
            }
            // A node that was no peer before makes room as any other.
            if self.get(&nid).is_some_and(|peer| !peer.stays() && peer.last_traffic == 0) {
                self.note_traffic(&nid, false);
            }
        }
    }
}
