//! This node as a peer of itself, once it was pinged or discovered by one of its own NIDs, or an
//! administrator or a program has made it so (LNet `peer.c`; reference tests 40, 219, 304, 401 and 525).
//!
//! The peer is there to be shown, and policies are seen by it. Invariants: shards never hear of it, since
//! what is for this node goes by `lo`; it has no NID but those of local NIs; a NID that another peer has
//! stays that one's. What was found follows the local NIs. A configured peer is this node while all its NIDs
//! are, and changes as every configured one. No message makes one or changes it.

use alloc::vec::Vec;

use lnet_wire::Nid;

use super::peer_state::{CONFIGURED, DISCOVERED, LOCK_PRIMARY, MULTI_RAIL, NIDS_UP_TO_DATE};
use super::{Peer, PeerNi, PeerTable};

impl PeerTable {
    /// This node has been pinged by one of its NIDs.
    pub(in crate::node) fn note_own(&mut self, nid: &Nid) {
        if self.get(nid).is_none() {
            self.note_traffic(nid, false);
            self.change(nid, |peer| peer.is_own = true);
        }
    }

    /// This node has been discovered by one of its NIDs: these are all, the first one first, as it tells
    /// others by that number. The primary NID stays if it is locked.
    pub(in crate::node) fn discover_own(&mut self, by: &Nid, told: &[Nid], sequence: u32) {
        let by = if told.contains(by) { by } else { told.first().unwrap_or(by) };
        if let Some(peer) = self.get(by).filter(|peer| peer.is(CONFIGURED)) {
            if peer.is_own {
                self.update_configured(by, told, sequence);
            }
            return;
        }
        self.discover_found(by, told, sequence);
    }

    /// Makes one peer of all NIDs of this node that no configured peer has.
    fn discover_found(&mut self, by: &Nid, told: &[Nid], sequence: u32) {
        let is_found = |peer: &&Peer| peer.is_own && !peer.is(CONFIGURED);
        let found: Vec<Nid> = self.iter().filter(is_found).map(|peer| peer.primary).collect();
        let mut found: Vec<_> = found.iter().filter_map(|primary| self.take_out(primary)).collect();
        self.orphans.extend(found.iter_mut().flat_map(|peer| core::mem::take(&mut peer.waiting)));
        let mut free: Vec<Nid> = told.iter().filter(|nid| self.get(nid).is_none()).copied().collect();
        let locked = found.iter().filter(|peer| peer.is(LOCK_PRIMARY) && free.contains(&peer.primary));
        let locked = locked.min_by_key(|peer| peer.locked_at);
        let Some(primary) = locked.map(|peer| peer.primary).or(free.first().copied()) else { return };
        free.retain(|nid| *nid != primary);
        self.note_own(&primary);
        self.change(&primary, |peer| {
            peer.nis.extend(free.iter().map(|nid| PeerNi::new(*nid)));
            for ni in &mut peer.nis {
                if let Some(former) = found.iter().find_map(|peer| peer.ni(&ni.nid)) {
                    *ni = former.clone();
                }
                ni.is_up = Some(true);
            }
            if let Some(locked) = locked {
                peer.state |= LOCK_PRIMARY;
                peer.locked_at = locked.locked_at;
                peer.is_found_by_other = locked.is_found_by_other || locked.ni(by).is_none();
            }
            peer.state |= MULTI_RAIL | DISCOVERED | NIDS_UP_TO_DATE;
            (peer.sequence, peer.acked) = (sequence, sequence);
            peer.told = told.into();
        });
    }

    /// This node tells others something new of itself, and knows it too.
    pub(in crate::node) fn follow_own(&mut self, told: &[Nid], sequence: u32) {
        let own = self.iter().filter(|peer| peer.is_own);
        let own: Vec<_> = own.map(|peer| (peer.primary, peer.state, peer.is_multi_rail())).collect();
        for (primary, state, is_multi_rail) in own {
            if state & CONFIGURED != 0 {
                if state & DISCOVERED != 0 {
                    self.update_configured(&primary, told, sequence);
                }
            } else if is_multi_rail && self.get(&primary).is_some() {
                self.discover_found(&primary, told, sequence);
            } else if !told.contains(&primary) {
                self.remove(&primary);
            } else {
                self.change(&primary, |peer| peer.nis.retain(|ni| told.contains(&ni.nid)));
            }
        }
    }

    /// Brings a configured peer that is this node up to date: what was found of it and is this node's no more
    /// goes.
    fn update_configured(&mut self, nid: &Nid, told: &[Nid], sequence: u32) {
        self.change(nid, |peer| {
            let primary = peer.primary;
            peer.nis.retain(|ni| ni.is_configured || ni.nid == primary || told.contains(&ni.nid));
            peer.nis.iter_mut().for_each(|ni| ni.is_up = Some(told.contains(&ni.nid)));
            peer.state |= DISCOVERED | NIDS_UP_TO_DATE;
            (peer.sequence, peer.acked) = (sequence, sequence);
            peer.told = told.into();
        });
    }

    /// Notes of the configured peers that have these NIDs whether each is this node, which has the second
    /// ones. Shards hear of all these peers: own NIDs are none of what leads to a peer.
    pub(in crate::node) fn mark_own(&mut self, nids: &[Nid], own: &[Nid]) {
        for nid in nids {
            let Some(peer) = self.get(nid).filter(|peer| peer.is(CONFIGURED)) else { continue };
            let is_own = peer.nis.iter().all(|ni| own.contains(&ni.nid));
            self.change(nid, |peer| peer.is_own = is_own);
        }
    }

    /// A program says that this node has these of its NIDs, the primary one first. What an administrator or a
    /// program has fixed before stays. The peer then; `None` if there is no room for one.
    pub(in crate::node) fn announce_own(&mut self, nids: &[Nid], locks: bool, is_mr: bool) -> Option<&Peer> {
        let (first, others) = nids.split_first()?;
        self.note_own(first);
        self.announce(first, locks, is_mr)?;
        for nid in others.iter().filter(|_| !is_mr) {
            self.note_own(nid);
            self.announce(nid, locks, false)?;
        }
        for nid in others.iter().filter(|_| is_mr) {
            let is_free = self.get(nid).is_none_or(|peer| peer.is_own && !peer.stays());
            let whole = self.get(first).filter(|peer| !peer.is(CONFIGURED));
            if !is_free || whole.is_none_or(|peer| peer.ni(nid).is_some()) {
                continue;
            }
            let former = self.get(nid).map(|peer| peer.primary).and_then(|primary| self.take_out(&primary));
            self.change(first, |peer| match former {
                Some(former) => peer.nis.extend(former.nis),
                None => peer.nis.push(PeerNi::new(*nid)),
            });
        }
        self.get(first)
    }
}

impl Peer {
    /// Whether it is this node itself.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        self.is_own
    }
}
