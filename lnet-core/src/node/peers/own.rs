//! This node as a peer of itself, once it was pinged or discovered by one of its own NIDs (LNet `peer.c`;
//! reference tests 219, 401 and 525).
//!
//! The peer is there to be shown, and policies are seen by it. Invariants: shards never hear of it, since
//! what is for this node goes by `lo`; it has no NID but those of local NIs; a NID that another peer has
//! stays that one's.

use alloc::vec::Vec;

use lnet_wire::Nid;

use super::peer_state::{DISCOVERED, MULTI_RAIL, NIDS_UP_TO_DATE};
use super::{Peer, PeerNi, PeerTable};

impl PeerTable {
    /// This node has been pinged by one of its NIDs.
    pub(in crate::node) fn note_own(&mut self, nid: &Nid) {
        if self.get(nid).is_none() {
            self.note_traffic(nid, false);
            self.change(nid, |peer| peer.is_own = true);
        }
    }

    /// This node has been discovered: these are its NIDs, the primary one first, as it tells others by that
    /// number.
    pub(in crate::node) fn discover_own(&mut self, told: &[Nid], sequence: u32) {
        for nid in told {
            let own = self.get(nid).filter(|peer| peer.is_own).map(|peer| peer.primary);
            own.into_iter().for_each(|primary| self.remove(&primary));
        }
        let free: Vec<Nid> = told.iter().filter(|nid| self.get(nid).is_none()).copied().collect();
        let Some((primary, others)) = free.split_first() else { return };
        self.note_own(primary);
        self.change(primary, |peer| {
            peer.nis.extend(others.iter().map(|nid| PeerNi::new(*nid)));
            peer.nis.iter_mut().for_each(|ni| ni.is_up = Some(true));
            peer.state |= MULTI_RAIL | DISCOVERED | NIDS_UP_TO_DATE;
            (peer.sequence, peer.acked) = (sequence, sequence);
            peer.told = free.as_slice().into();
        });
    }

    /// This node tells others something new of itself, and knows it too.
    pub(in crate::node) fn follow_own(&mut self, told: &[Nid], sequence: u32) {
        let own: Vec<(Nid, bool)> =
            self.iter().filter(|peer| peer.is_own).map(|peer| (peer.primary, peer.is_multi_rail())).collect();
        for (primary, is_multi_rail) in own {
            if is_multi_rail {
                self.take_out(&primary);
                self.discover_own(told, sequence);
            } else if !told.contains(&primary) {
                self.remove(&primary);
            }
        }
    }
}

impl Peer {
    /// Whether it is this node itself.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        self.is_own
    }
}
