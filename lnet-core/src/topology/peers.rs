//! Peers, as a snapshot tells of them: which NIDs are one node, and what speaks for each of them.
//!
//! Invariant: a copy of the map shares all that has not changed since; what changes a peer copies a few
//! lists.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use lnet_wire::{Net, Nid};

use super::{HEALTH_MAX, PRIORITY_NONE, PreferredSources};
use crate::collections::{Seed, nid_words};

/// NIDs that a list of the map has at most on average.
const LIST_NIDS: usize = 8;
/// No secret: the number of peers is bounded, and so is a list that one of them fills on purpose.
const SEED: Seed = Seed::new(0);

/// The place of a local NI among equal ones as the source of what goes to a NID: the least is taken. It is
/// the same on all shards, and spreads NIDs over the NIs.
pub(crate) fn source_rank(own: &Nid, to: &Nid) -> u32 {
    let [a, b, c] = nid_words(own);
    let [d, e, f] = nid_words(to);
    (SEED.hash([a, b, c, d, e, f]) >> 32) as u32
}

/// An NI of a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerNid {
    /// Its NID.
    pub nid: Nid,
    /// Its health, at most [`HEALTH_MAX`].
    pub health: u32,
    /// Its priority by the selection policies; the lower one wins.
    pub priority: u32,
    /// Local NIDs that messages to it come from before others do.
    pub preferred: PreferredSources,
}

impl PeerNid {
    /// An NI of this health, without priority or preference.
    #[must_use]
    pub fn new(nid: Nid, health: u32) -> Self {
        Self { nid, health, priority: PRIORITY_NONE, preferred: PreferredSources::default() }
    }
}

/// An attempt to discover a peer that has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedDiscovery {
    /// The generation of the first snapshot that may tell of it.
    pub generation: u64,
    /// Its errno, positive.
    pub errno: u8,
}

/// A node that this one knows of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerView {
    /// The NID that it goes by here.
    pub primary: Nid,
    /// Whether it takes messages by any of its NIs.
    pub is_multi_rail: bool,
    /// Whether it is to be told when a request goes to it ([`Shard::poll_wanted`]), since it is to be found
    /// out about.
    ///
    /// [`Shard::poll_wanted`]: crate::shard::Shard::poll_wanted
    pub is_wanted: bool,
    /// Whether requests to it wait until it is discovered, where they do at all
    /// ([`Topology::gates_requests`]).
    ///
    /// [`Topology::gates_requests`]: super::Topology::gates_requests
    pub is_gated: bool,
    /// Whether its requests wait here for the name that it is to go by: a peer claims its NID, or it claims a
    /// NID as its primary one, and that NID is being asked.
    pub awaits_name: bool,
    /// The last attempt to discover it, if that has failed: it ends the requests that waited for it.
    pub failed: Option<FailedDiscovery>,
    /// Its NIs; those of one net stand together.
    pub nis: Vec<PeerNid>,
    /// How many NIDs it has by its own account: also those on nets that this node is not on, which are none
    /// of its NIs here.
    pub nid_count: u16,
    /// NIDs that were its own on nets that this node has left: what is for one of these goes to its NIs.
    pub names: Box<[Nid]>,
    /// Priorities of its nets by the selection policies, where they are not [`PRIORITY_NONE`].
    pub net_priorities: Box<[(Net, u32)]>,
}

impl PeerView {
    /// A peer with these NIs, the primary one first; NIs of one net are brought together.
    #[must_use]
    pub fn new(is_multi_rail: bool, mut nis: Vec<PeerNid>) -> Option<Self> {
        let primary = nis.first()?.nid;
        let mut nets: Vec<Net> = Vec::new();
        for ni in &nis {
            if !nets.contains(&ni.nid.net()) {
                nets.push(ni.nid.net());
            }
        }
        nis.sort_by_key(|ni| nets.iter().position(|net| *net == ni.nid.net()));
        Some(Self {
            primary,
            is_multi_rail,
            is_wanted: false,
            is_gated: false,
            awaits_name: false,
            failed: None,
            nid_count: nis.len() as u16,
            nis,
            names: Box::default(),
            net_priorities: Box::default(),
        })
    }

    /// A NID that a peer claims and no peer has: as one that is not known, but that its requests wait.
    #[must_use]
    pub fn in_question(nid: Nid) -> Self {
        let (primary, nis) = (nid, alloc::vec![PeerNid::new(nid, HEALTH_MAX)]);
        let (is_wanted, is_gated, awaits_name) = (true, true, true);
        let (is_multi_rail, failed, nid_count) = (false, None, 1);
        let (names, net_priorities) = (Box::default(), Box::default());
        Self {
            primary,
            is_multi_rail,
            is_wanted,
            is_gated,
            awaits_name,
            failed,
            nis,
            nid_count,
            names,
            net_priorities,
        }
    }

    /// The NI with a NID.
    #[must_use]
    pub fn ni(&self, nid: &Nid) -> Option<&PeerNid> {
        self.nis.iter().find(|ni| ni.nid == *nid)
    }

    /// The NIDs that it is found by: those of its NIs, and its former names.
    pub(crate) fn found_by(&self) -> impl Iterator<Item = &Nid> + Clone {
        self.nis.iter().map(|ni| &ni.nid).chain(&self.names)
    }

    /// Whether it is found by a NID.
    pub(crate) fn is_found_by(&self, nid: &Nid) -> bool {
        self.found_by().any(|its| its == nid)
    }

    fn has_aliases(&self) -> bool {
        self.nis.len() + self.names.len() > 1
    }

    /// Its nets, each with its NIs there.
    pub(crate) fn nets(&self) -> impl Iterator<Item = (Net, &[PeerNid])> + Clone {
        self.nis.chunk_by(|one, other| one.nid.net() == other.nid.net()).map(|nis| (nis[0].nid.net(), nis))
    }

    pub(crate) fn net_priority(&self, net: Net) -> u32 {
        let found = self.net_priorities.iter().find(|(its, _)| *its == net);
        found.map_or(PRIORITY_NONE, |(_, priority)| *priority)
    }

    fn is_ill(&self) -> bool {
        self.nis.iter().any(|ni| ni.health < HEALTH_MAX)
    }

    /// Whether more than one path may lead to it.
    fn has_choice(&self) -> bool {
        self.is_multi_rail && self.has_aliases() || self.nis.iter().any(|ni| !ni.preferred.is_empty())
    }
}

type List = Arc<Vec<(Nid, Arc<PeerView>)>>;

/// Peers by each of their NIDs.
#[derive(Clone, Debug)]
pub struct PeerMap {
    /// A power of two of them; a NID is in the one that its hash says, in order.
    lists: Arc<Vec<List>>,
    nid_count: usize,
    /// Peers with an NI that is not in full health.
    ill_count: usize,
    /// Peers among whose paths there is something to choose.
    choice_count: usize,
    /// Peers with more than one NID.
    alias_count: usize,
    /// Peers whose requests wait for a name.
    unnamed_count: usize,
    /// NIDs that peers had until of late, in order, each with one that its peer still has.
    former: Arc<[(Nid, Nid)]>,
    /// Former NIDs by which a request goes to the peer that had them: no node has them any more, as far as
    /// asking there tells.
    moved: Arc<[(Nid, Nid)]>,
}

impl Default for PeerMap {
    fn default() -> Self {
        let lists = Arc::new(alloc::vec![List::default()]);
        let (nid_count, ill_count, choice_count, alias_count, unnamed_count) = (0, 0, 0, 0, 0);
        let (former, moved) = (Arc::default(), Arc::default());
        Self { lists, nid_count, ill_count, choice_count, alias_count, unnamed_count, former, moved }
    }
}

impl PartialEq for PeerMap {
    fn eq(&self, other: &Self) -> bool {
        let has_same_peers = Arc::ptr_eq(&self.lists, &other.lists) || self.lists == other.lists;
        has_same_peers && self.former == other.former && self.moved == other.moved
    }
}

impl Eq for PeerMap {}

impl PeerMap {
    fn position(lists: &[List], nid: &Nid) -> usize {
        SEED.hash(nid_words(nid)) as usize & (lists.len() - 1)
    }

    /// The peer that has a NID.
    #[must_use]
    #[inline]
    pub fn get(&self, nid: &Nid) -> Option<&Arc<PeerView>> {
        let list = &self.lists[Self::position(&self.lists, nid)];
        let at = list.binary_search_by_key(&nid, |(its, _)| its).ok()?;
        Some(&list[at].1)
    }

    /// The NID by which a peer is known that goes by this one, or did so until of late.
    #[must_use]
    pub fn known_as(&self, nid: &Nid) -> Nid {
        let former = || {
            let at = self.former.binary_search_by_key(nid, |(former, _)| *former).ok()?;
            Some(self.former[at].1)
        };
        match self.get(nid) {
            Some(_) => *nid,
            None => former().unwrap_or(*nid),
        }
    }

    /// Peers had these NIDs until of late: in order, each with one that its peer still has.
    pub fn set_former(&mut self, former: Arc<[(Nid, Nid)]>) {
        self.former = former;
    }

    /// No node has these former NIDs any more, as far as asking there tells: in order, each with one that its
    /// peer still has.
    pub fn set_moved(&mut self, moved: Arc<[(Nid, Nid)]>) {
        self.moved = moved;
    }

    /// The NID that a new request for this one goes to: another one of the same peer's, if it was that peer's
    /// and no node has it any more.
    #[must_use]
    #[inline]
    pub fn now_at(&self, nid: &Nid) -> Nid {
        if self.moved.is_empty() || self.get(nid).is_some() {
            return *nid;
        }
        let found = self.moved.binary_search_by_key(nid, |(moved, _)| *moved);
        found.map_or(*nid, |at| self.moved[at].1)
    }

    /// A peer has these NIs from now on. What it had and has not any more is to be [removed](Self::remove)
    /// before; a NID of another peer is this one's then.
    pub fn insert(&mut self, view: PeerView) {
        let view = Arc::new(view);
        self.ill_count += usize::from(view.is_ill());
        self.choice_count += usize::from(view.has_choice());
        self.alias_count += usize::from(view.has_aliases());
        self.unnamed_count += usize::from(view.awaits_name);
        for nid in view.found_by() {
            self.take(nid);
            self.grow();
            let lists = Arc::make_mut(&mut self.lists);
            let position = Self::position(lists, nid);
            let list = Arc::make_mut(&mut lists[position]);
            if let Err(at) = list.binary_search_by_key(&nid, |(its, _)| its) {
                list.insert(at, (*nid, Arc::clone(&view)));
                self.nid_count += 1;
            }
        }
    }

    /// Removes the peer that has a NID, with all NIDs that it has.
    pub fn remove(&mut self, nid: &Nid) {
        let Some(view) = self.get(nid).cloned() else { return };
        for nid in view.found_by() {
            if self.get(nid).is_some_and(|its| Arc::ptr_eq(its, &view)) {
                self.take(nid);
            }
        }
    }

    /// Takes one NID away from its peer; the peer is not counted any more when it has none.
    fn take(&mut self, nid: &Nid) {
        if self.get(nid).is_none() {
            return;
        }
        let lists = Arc::make_mut(&mut self.lists);
        let position = Self::position(lists, nid);
        let list = Arc::make_mut(&mut lists[position]);
        let Ok(at) = list.binary_search_by_key(&nid, |(its, _)| its) else { return };
        let (_, view) = list.remove(at);
        self.nid_count -= 1;
        let is_known = view.found_by().any(|nid| self.get(nid).is_some_and(|its| Arc::ptr_eq(its, &view)));
        if !is_known {
            self.ill_count -= usize::from(view.is_ill());
            self.choice_count -= usize::from(view.has_choice());
            self.alias_count -= usize::from(view.has_aliases());
            self.unnamed_count -= usize::from(view.awaits_name);
        }
    }

    fn grow(&mut self) {
        if self.nid_count < self.lists.len() * LIST_NIDS {
            return;
        }
        let mut lists = alloc::vec![Vec::new(); self.lists.len() * 2];
        let shape: Vec<List> = lists.iter().map(|_| List::default()).collect();
        for entry in self.lists.iter().flat_map(|list| list.iter()) {
            lists[Self::position(&shape, &entry.0)].push(entry.clone());
        }
        self.lists = Arc::new(lists.into_iter().map(Arc::new).collect());
    }

    /// Whether an NI of some peer is not in full health.
    pub(crate) const fn is_any_ill(&self) -> bool {
        self.ill_count > 0
    }

    /// Whether some peer has more than one NID.
    pub(crate) const fn has_aliases(&self) -> bool {
        self.alias_count > 0
    }

    /// Whether requests of some peer wait for a name.
    pub(crate) const fn has_unnamed(&self) -> bool {
        self.unnamed_count > 0
    }

    /// Whether there is something to choose among the paths to some peer.
    pub(crate) const fn has_choice(&self) -> bool {
        self.choice_count > 0
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::testing::nid;

    fn peer(hosts: &[u8], health: u32) -> PeerView {
        let nis = hosts.iter().map(|host| PeerNid::new(nid(1, *host), health)).collect();
        PeerView::new(true, nis).unwrap()
    }

    #[test]
    fn a_nid_belongs_to_the_last_peer_that_names_it() {
        let mut map = PeerMap::default();
        map.insert(peer(&[1, 2], 7));
        map.insert(peer(&[3, 2], HEALTH_MAX));
        let primary = |map: &PeerMap, host| map.get(&nid(1, host)).map(|peer| peer.primary);
        assert_eq!(
            [1, 2, 3, 4].map(|host| primary(&map, host)),
            [Some(nid(1, 1)), Some(nid(1, 3)), Some(nid(1, 3)), None]
        );
        assert!(map.is_any_ill() && map.has_choice());
        map.remove(&nid(1, 1));
        assert_eq!([1, 2].map(|host| primary(&map, host)), [None, Some(nid(1, 3))]);
        assert!(!map.is_any_ill(), "the ill one has gone");
        map.remove(&nid(1, 2));
        assert_eq!((map.nid_count, map.has_choice()), (0, false));
    }

    /// A copy keeps what it had, and the lists grow with the peers.
    #[test]
    fn copies_share_what_has_not_changed() {
        let mut map = PeerMap::default();
        let hosts = |index: u32| {
            [0_u8, 1].map(|net| {
                Nid::from_small(2 << 48 | u64::from(net) << 32 | (u64::from(index) + 1) << 8).unwrap()
            })
        };
        for index in 0..1000 {
            let nis = hosts(index).map(|nid| PeerNid::new(nid, HEALTH_MAX)).to_vec();
            map.insert(PeerView::new(true, nis).unwrap());
        }
        let copy = map.clone();
        let ill = hosts(7).map(|nid| PeerNid::new(nid, 1)).to_vec();
        map.remove(&hosts(7)[0]);
        map.insert(PeerView::new(true, ill).unwrap());
        assert!(map.is_any_ill() && !copy.is_any_ill());
        let shared = map.lists.iter().zip(copy.lists.iter()).filter(|(one, other)| Arc::ptr_eq(one, other));
        assert_eq!((shared.count(), map.lists.len()), (map.lists.len() - 2, 256));
        for nid in (0..1000).flat_map(hosts) {
            assert_eq!(copy.get(&nid).map(|peer| peer.nis.len()), Some(2));
        }
        assert_eq!(map.nid_count, 2000);
    }

    #[test]
    fn nis_of_a_net_stand_together() {
        let nids = [nid(1, 1), nid(2, 1), nid(1, 2), nid(2, 2)].map(|nid| PeerNid::new(nid, 5));
        let view = PeerView::new(false, nids.to_vec()).unwrap();
        let nets: Vec<_> = view.nets().map(|(net, nis)| (net, nis.len())).collect();
        assert_eq!(nets, [(nid(1, 1).net(), 2), (nid(2, 1).net(), 2)]);
        assert_eq!(view.primary, nid(1, 1));
        assert_eq!(PeerView::new(true, vec![]), None);
    }
}
