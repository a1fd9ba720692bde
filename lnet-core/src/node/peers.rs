//! Peers: nodes that this one knows of, found by traffic, by pings and by what they push.
//!
//! Invariants: a NID belongs to one peer; there are at most as many peers as the configuration says, of which
//! the one without traffic for longest makes room, and a peer has told at most [`TOLD_MAX`] NIDs. What a
//! peer answers to a ping on request is kept, and makes no peer (LNet: only discovery does); what it pushes makes it one with
//! all its NIDs.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use lnet_wire::Nid;

/// Most NIDs of a peer's own account that are kept.
pub const TOLD_MAX: usize = 64;

/// Bits of [`Peer::state`] (LNet `lib-types.h: LNET_PEER_*`).
pub(super) const MULTI_RAIL: u32 = 1;
pub(super) const NO_DISCOVERY: u32 = 1 << 1;
pub(super) const ROUTER_ENABLED: u32 = 1 << 2;
pub(super) const DISCOVERED: u32 = 1 << 4;
pub(super) const NIDS_UP_TO_DATE: u32 = 1 << 8;

/// A node that this one knows of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The NID that it goes by here.
    pub primary: Nid,
    /// Its interfaces, the primary first.
    pub nids: Vec<Nid>,
    /// Whether it takes messages by any of its interfaces.
    pub is_multi_rail: bool,
    /// The state in LNet's bits (`lnetctl peer show -v 3`); 0 for one found by traffic.
    pub state: u32,
    /// What it said its NIDs were when it was last pinged, in its order.
    pub told: Vec<Nid>,
    /// When its last traffic was, as a number that grows.
    last_traffic: u64,
}

#[derive(Debug)]
pub(super) struct PeerTable {
    /// By primary NID.
    peers: BTreeMap<Nid, Peer>,
    /// The primary NIDs of peers by all their NIDs.
    primaries: BTreeMap<Nid, Nid>,
    /// By when their last traffic was.
    order: BTreeMap<u64, Nid>,
    last_traffic: u64,
    max: usize,
}

impl PeerTable {
    pub(super) const fn new(max: usize) -> Self {
        Self {
            peers: BTreeMap::new(),
            primaries: BTreeMap::new(),
            order: BTreeMap::new(),
            last_traffic: 0,
            max,
        }
    }

    /// Traffic with a NID.
    pub(super) fn note_traffic(&mut self, nid: &Nid) {
        if self.max == 0 {
            return;
        }
        let primary = self.primaries.get(nid).copied().unwrap_or(*nid);
        if !self.peers.contains_key(&primary) {
            self.make_room();
            let peer = Peer {
                primary,
                nids: alloc::vec![primary],
                is_multi_rail: false,
                state: 0,
                told: Vec::new(),
                last_traffic: 0,
            };
            self.primaries.insert(primary, primary);
            self.peers.insert(primary, peer);
        }
        self.last_traffic += 1;
        let last_traffic = self.last_traffic;
        if let Some(peer) = self.peers.get_mut(&primary) {
            self.order.remove(&core::mem::replace(&mut peer.last_traffic, last_traffic));
            self.order.insert(last_traffic, primary);
        }
    }

    fn make_room(&mut self) {
        while self.peers.len() >= self.max
            && let Some((_, &oldest)) = self.order.first_key_value()
        {
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, primary: &Nid) -> Option<Peer> {
        let peer = self.peers.remove(primary)?;
        self.order.remove(&peer.last_traffic);
        for nid in &peer.nids {
            self.primaries.remove(nid);
        }
        Some(peer)
    }

    /// A peer has told its NIDs.
    pub(super) fn tell(&mut self, nid: &Nid, told: &[Nid]) {
        self.note_traffic(nid);
        if let Some(peer) = self.get_mut(nid) {
            peer.told = told.iter().take(TOLD_MAX).copied().collect();
        }
    }

    /// A peer whose NIDs are of no interest has this state.
    pub(super) fn set_state(&mut self, nid: &Nid, state: u32) {
        self.note_traffic(nid);
        if let Some(peer) = self.get_mut(nid) {
            (peer.state, peer.is_multi_rail) = (state, false);
        }
    }

    /// A peer has these NIDs, the primary one first; whatever peers had them so far have them no longer, and go if one was
    /// their primary one (LNet `peer.c: lnet_peer_merge_data`).
    pub(super) fn merge(&mut self, nids: Vec<Nid>, state: u32) {
        let Some(&primary) = nids.first() else { return };
        let mut told = Vec::new();
        for nid in &nids {
            let Some(&former) = self.primaries.get(nid) else { continue };
            if former == *nid || former == primary {
                let removed = self.remove(&former);
                told = removed.map(|peer| peer.told).filter(|told| !told.is_empty()).unwrap_or(told);
            } else if let Some(peer) = self.peers.get_mut(&former) {
                peer.nids.retain(|other| other != nid);
                self.primaries.remove(nid);
            }
        }
        self.note_traffic(&primary);
        let Some(peer) = self.peers.get_mut(&primary) else { return };
        self.primaries.extend(nids.iter().map(|nid| (*nid, primary)));
        *peer = Peer { nids, is_multi_rail: true, state, told, ..*peer };
    }

    pub(super) fn get(&self, nid: &Nid) -> Option<&Peer> {
        self.peers.get(self.primaries.get(nid)?)
    }

    fn get_mut(&mut self, nid: &Nid) -> Option<&mut Peer> {
        self.peers.get_mut(self.primaries.get(nid)?)
    }

    /// In the order of their primary NIDs.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.peers.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::nid;

    #[test]
    fn the_one_without_traffic_for_longest_makes_room() {
        let mut peers = PeerTable::new(2);
        for host in [1, 2, 1, 3] {
            peers.note_traffic(&nid(1, host));
        }
        let primaries: Vec<_> = peers.iter().map(|peer| peer.primary).collect();
        assert_eq!(primaries, [nid(1, 1), nid(1, 3)]);
        assert_eq!(peers.order.len(), 2);
        let mut none = PeerTable::new(0);
        none.note_traffic(&nid(1, 1));
        assert_eq!(none.iter().count(), 0);
    }

    #[test]
    fn a_nid_belongs_to_one_peer() {
        let mut peers = PeerTable::new(3);
        peers.merge([1, 2, 3].map(|host| nid(1, host)).to_vec(), MULTI_RAIL);
        peers.note_traffic(&nid(1, 3));
        assert_eq!(peers.iter().count(), 1, "traffic with any of its NIDs");
        // Another one takes two of them, and so the primary one.
        peers.merge([9, 1].map(|host| nid(1, host)).to_vec(), MULTI_RAIL);
        assert_eq!(peers.get(&nid(1, 1)).map(|peer| peer.primary), Some(nid(1, 9)));
        assert_eq!(peers.get(&nid(1, 2)), None, "it has gone with its primary NID");
        peers.merge([9, 2].map(|host| nid(1, host)).to_vec(), MULTI_RAIL);
        assert_eq!(peers.get(&nid(1, 1)), None, "it is not told any more");
        peers.merge([5, 2].map(|host| nid(1, host)).to_vec(), MULTI_RAIL);
        assert_eq!(peers.get(&nid(1, 9)).map(|peer| &*peer.nids), Some(&[nid(1, 9)][..]));
        for host in 20..40 {
            peers.merge([host, 100 + host].map(|host| nid(1, host)).to_vec(), MULTI_RAIL);
        }
        assert_eq!((peers.peers.len(), peers.order.len(), peers.primaries.len()), (3, 3, 6));
    }

    #[test]
    fn what_a_peer_tells_is_kept_within_a_bound() {
        let mut peers = PeerTable::new(2);
        let told: Vec<_> = (0..200).map(|host| nid(2, host)).collect();
        peers.tell(&nid(1, 1), &told);
        assert_eq!(peers.get(&nid(1, 1)).map(|peer| &*peer.told), Some(&told[..TOLD_MAX]));
        assert_eq!(peers.get(&nid(2, 1)), None, "they are no peers for that");
    }
}
