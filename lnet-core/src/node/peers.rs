//! Peers: nodes that this one knows of, found by traffic and by pings.
//!
//! Invariants: a NID belongs to one peer; there are at most as many peers as the configuration says, of which
//! the one without traffic for longest makes room, and a peer has told at most [`TOLD_MAX`] NIDs. What a
//! peer tells about itself when it is pinged is kept, and makes no peer (LNet: only discovery does).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use lnet_wire::Nid;

/// Most NIDs of a peer's own account that are kept.
pub const TOLD_MAX: usize = 64;

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
    /// The primary NID of each further NID of a peer.
    primaries: BTreeMap<Nid, Nid>,
    /// By when their last traffic was.
    order: BTreeMap<u64, Nid>,
    last_traffic: u64,
    max: usize,
}

impl PeerTable {
    pub(super) fn new(max: usize) -> Self {
        let (peers, primaries, order) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { peers, primaries, order, last_traffic: 0, max }
    }

    /// Traffic with a NID.
    pub(super) fn note_traffic(&mut self, nid: &Nid) {
        if self.max == 0 {
            return;
        }
        let nid = &self.primaries.get(nid).copied().unwrap_or(*nid);
        if self.peers.len() == self.max
            && !self.peers.contains_key(nid)
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.remove(&oldest);
        }
        self.last_traffic += 1;
        let last_traffic = self.last_traffic;
        let peer = self.peers.entry(*nid).or_insert_with(|| Peer {
            primary: *nid,
            nids: alloc::vec![*nid],
            is_multi_rail: false,
            state: 0,
            told: Vec::new(),
            last_traffic: 0,
        });
        self.order.remove(&core::mem::replace(&mut peer.last_traffic, last_traffic));
        self.order.insert(last_traffic, *nid);
    }

    /// A peer has told its NIDs.
    pub(super) fn tell(&mut self, nid: &Nid, told: &[Nid]) {
        self.note_traffic(nid);
        let primary = self.primaries.get(nid).unwrap_or(nid);
        if let Some(peer) = self.peers.get_mut(primary) {
            peer.told = told.iter().take(TOLD_MAX).copied().collect();
        }
    }

    /// A Multi-Rail peer has told its NIDs, its primary one first; those that were known apart are one peer from now on.
    pub(super) fn learn(&mut self, from: &Nid, told: &[Nid]) {
        let Some(primary) = told.first() else { return };
        let nids: Vec<Nid> = told.iter().take(TOLD_MAX).copied().collect();
        for nid in nids.iter().chain([from]) {
            let known = self.primaries.get(nid).copied().unwrap_or(*nid);
            self.remove(&known);
        }
        self.note_traffic(primary);
        self.primaries.extend(nids.iter().filter(|nid| *nid != primary).map(|nid| (*nid, *primary)));
        if let Some(peer) = self.peers.get_mut(primary) {
            (peer.is_multi_rail, peer.told, peer.nids) = (true, nids.clone(), nids);
        }
    }

    fn remove(&mut self, primary: &Nid) {
        let Some(peer) = self.peers.remove(primary) else { return };
        self.order.remove(&peer.last_traffic);
        for nid in &peer.nids {
            self.primaries.remove(nid);
        }
    }

    pub(super) fn get(&self, nid: &Nid) -> Option<&Peer> {
        self.peers.get(self.primaries.get(nid).unwrap_or(nid))
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
    fn a_peer_that_was_known_by_several_nids_becomes_one() {
        let mut peers = PeerTable::new(3);
        for host in 1..=3 {
            peers.note_traffic(&nid(1, host));
        }
        peers.learn(&nid(1, 2), &[nid(1, 1), nid(1, 2), nid(2, 1)]);
        let known: Vec<_> = peers.iter().map(|peer| (peer.primary, peer.nids.len())).collect();
        assert_eq!(known, [(nid(1, 1), 3), (nid(1, 3), 1)]);
        peers.note_traffic(&nid(2, 1));
        assert!(peers.get(&nid(1, 2)).is_some_and(|peer| peer.is_multi_rail && peer.primary == nid(1, 1)));
        // It says something else by now.
        peers.learn(&nid(1, 1), &[nid(1, 1), nid(1, 3)]);
        assert_eq!(peers.iter().count(), 1);
        assert_eq!(peers.get(&nid(2, 1)), None);
        for host in 10..20 {
            peers.note_traffic(&nid(1, host));
        }
        assert_eq!((peers.peers.len(), peers.order.len(), peers.primaries.len()), (3, 3, 0));
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
