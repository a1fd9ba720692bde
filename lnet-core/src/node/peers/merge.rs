//! Peers that turn out to be one node, and NIDs that a node tells to be its own (LNet `peer.c:
//! lnet_peer_data_present`, `lnet_peer_merge_data`; spec: core 8.5).

use alloc::vec::Vec;

use lnet_wire::Nid;

use super::peer_state::{
    BAD_CONFIG, CONFIGURED, DISCOVERED, LOCK_PRIMARY, NIDS_UP_TO_DATE, NO_DISCOVERY, PING_SENT, PUSH_SENT,
};
use super::{LostNid, PeerNi, PeerTable, TOLD_MAX};

impl PeerTable {
    /// A peer tells that these are its NIDs, `primary` the first among them. What speaks against that, since
    /// a NID is another one's by configuration or by its own account, stays as it is; the primary NIDs of
    /// such peers are returned, which are to be asked again.
    pub(in crate::node) fn merge(&mut self, from: &Nid, primary: &Nid, told: &[Nid]) -> Vec<Nid> {
        let Some(peer) = self.get(from) else { return Vec::new() };
        if peer.is(CONFIGURED) {
            return Vec::new();
        }
        let mut owner = peer.primary;
        let knows_primary = peer.nis.iter().any(|ni| ni.nid == *primary);
        match self.primaries.get(primary).copied().filter(|other| *other != owner) {
            // The other one is the same node, found under another NID.
            Some(other) if self.yields(&other, from) => {
                if let Some(gone) = self.take_out(&owner) {
                    self.change(&other, |peer| {
                        peer.state =
                            peer.state & !NO_DISCOVERY | gone.state & !(LOCK_PRIMARY | PING_SENT | PUSH_SENT);
                        peer.take_lock(&gone);
                        peer.waiting.extend(gone.waiting);
                    });
                }
                owner = other;
            }
            None if !knows_primary => {
                self.change(&owner, |peer| peer.nis.push(PeerNi::new(*primary)));
            }
            _ => {}
        }
        self.set_primary(&owner, primary);
        let owner = self.get(&owner).map_or(owner, |peer| peer.primary);
        self.take_nids(owner, from, told)
    }

    /// Gives a peer these NIDs, and takes all others from it but the primary one.
    fn take_nids(&mut self, owner: Nid, from: &Nid, told: &[Nid]) -> Vec<Nid> {
        let mut contradicting = Vec::new();
        let mut taken = alloc::vec![owner];
        for nid in told.iter().filter(|nid| **nid != owner) {
            let other = self.primaries.get(nid).copied().filter(|other| *other != owner);
            match other {
                Some(other) if !self.yields(&other, from) => {
                    self.change(&other, |peer| peer.state |= BAD_CONFIG);
                    self.change(&owner, |peer| peer.state |= BAD_CONFIG);
                    contradicting.push(other);
                    continue;
                }
                Some(other) if other == *nid => {
                    if let Some(gone) = self.take_out(&other) {
                        self.change(&owner, |peer| peer.take_lock(&gone));
                        // The owner may be discovered already.
                        self.orphans.extend(gone.waiting);
                    }
                }
                Some(other) => {
                    self.change(&other, |peer| peer.nis.retain(|ni| ni.nid != *nid));
                    // What led by this NID to the peer leads to it by its primary one.
                    self.lost.push(LostNid { nid: *nid, other, is_told: false });
                }
                None => {}
            }
            taken.push(*nid);
        }
        self.retain_nis(&owner, true, |nid| taken.contains(nid));
        self.change(&owner, |peer| {
            if contradicting.is_empty() {
                peer.state &= !BAD_CONFIG;
            }
            for nid in taken {
                if peer.nis.len() < TOLD_MAX && peer.nis.iter().all(|ni| ni.nid != nid) {
                    peer.nis.push(PeerNi::new(nid));
                }
            }
        });
        contradicting
    }

    /// Whether a peer loses a NID that another node claims, which speaks from `from`: one that is configured,
    /// or locked with several NIDs, does not; nor does one that has told which NIDs are its own, without
    /// `from` among them.
    fn yields(&self, primary: &Nid, from: &Nid) -> bool {
        self.get(primary).is_none_or(|peer| {
            let is_locked = peer.is(LOCK_PRIMARY) && peer.nis.len() > 1;
            // A peer whose NID another one claims has told before its discovery ends.
            let has_told = peer.is(NIDS_UP_TO_DATE) && (peer.is(DISCOVERED) || peer.is(BAD_CONFIG));
            let denies = has_told && !peer.told.contains(from);
            !peer.is(CONFIGURED) && !is_locked && !denies
        })
    }

    fn set_primary(&mut self, of: &Nid, primary: &Nid) {
        self.change(of, |peer| {
            if !peer.is(LOCK_PRIMARY) && peer.nis.iter().any(|ni| ni.nid == *primary) {
                peer.primary = *primary;
            }
        });
    }
}
