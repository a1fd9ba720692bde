//! What becomes of peers when a net goes, or comes back, or a NID of theirs becomes this node's (LNet
//! `peer.c: lnet_peer_tables_cleanup`; spec: core 8.6).

use alloc::vec::Vec;

use lnet_wire::{Net, Nid};

use super::peer_state::{LOCK_PRIMARY, NIDS_UP_TO_DATE};
use super::{Peer, PeerTable};

impl Peer {
    /// Goes by the names on nets that this node has left of a peer that has become a part of it.
    pub(super) fn take_names(&mut self, gone: &Self) {
        if !gone.left().is_empty() {
            let left: Vec<Nid> = self.left().iter().chain(gone.left()).copied().collect();
            self.set_left(left);
            self.has_left |= gone.has_left;
        }
    }
}

impl PeerTable {
    /// Takes note that this node is on a net no more. Peers that it reaches by another one, or by a gateway,
    /// lose their NIDs there, and go by the first that it reaches if their primary one was there, a
    /// configured one before others; one that is locked stays. What they had there stays a name for them. All
    /// others with a NID there go. The primary NIDs of those that stay are returned.
    pub(in crate::node) fn lose_net(&mut self, net: Net, is_local: impl Fn(Net) -> bool) -> Vec<Nid> {
        let is_there = |peer: &&Peer| peer.nis.iter().any(|ni| ni.nid.net() == net);
        let affected: Vec<Nid> = self.iter().filter(is_there).map(|peer| peer.primary).collect();
        let mut staying = Vec::new();
        for primary in affected {
            let Some(peer) = self.get(&primary) else { continue };
            let reached = peer.nis.iter().filter(|ni| is_local(ni.nid.net()));
            let Some(first) = reached.min_by_key(|ni| !ni.is_configured).map(|ni| ni.nid) else {
                self.remove(&primary);
                continue;
            };
            self.change(&primary, |peer| {
                if peer.primary.net() == net && !peer.is(LOCK_PRIMARY) {
                    peer.primary = first;
                }
                let primary = peer.primary;
                let gone = peer.nis.extract_if(.., |ni| ni.nid.net() == net && ni.nid != primary);
                let gone: Vec<Nid> = gone.map(|ni| ni.nid).collect();
                let left: Vec<Nid> = peer.left().iter().copied().chain(gone).collect();
                peer.set_left(left);
                peer.has_left = true;
            });
            staying.extend(self.get(&first).map(|peer| peer.primary));
        }
        staying
    }

    /// A NID is this node's own now: the peer that had it loses it, and goes if it has no other. One to which
    /// an administrator has given it stays as it is. The primary NID of a peer that stays without it is
    /// returned.
    pub(in crate::node) fn lose_nid(&mut self, nid: &Nid) -> Option<Nid> {
        self.drop_claims(nid);
        let peer = self.get(nid).filter(|peer| !peer.is_own())?;
        peer.ni(nid).filter(|ni| !ni.is_configured)?;
        let primary = peer.primary;
        let Some(other) = peer.nis.iter().map(|ni| ni.nid).find(|its| its != nid) else {
            self.remove(&primary);
            return None;
        };
        self.change(&primary, |peer| {
            if peer.primary == *nid {
                peer.primary = other;
                peer.state &= !LOCK_PRIMARY;
            }
            peer.nis.retain(|ni| ni.nid != *nid);
            peer.state &= !NIDS_UP_TO_DATE;
        });
        self.get(&other).map(|peer| peer.primary)
    }

    /// A net has come: peers that have lost NIDs with one are to be asked for them when they are used again.
    /// Names on the nets that this node is on now end: the NIDs are asked there.
    pub(in crate::node) fn gain_net(&mut self, is_local: impl Fn(Net) -> bool) {
        let lost: Vec<Nid> = self.iter().filter(|peer| peer.has_left).map(|peer| peer.primary).collect();
        for primary in lost {
            self.change(&primary, |peer| {
                peer.retain_left(|nid| !is_local(nid.net()));
                peer.has_left = !peer.left().is_empty();
                peer.state &= !NIDS_UP_TO_DATE;
            });
        }
    }
}
