//! Peers: nodes that this one knows of, configured by an administrator, or found by traffic, discovery and by
//! what they push.
//!
//! Invariants: a NID belongs to one peer; a peer has a primary NID, which is the first of its NIs; there are
//! at most as many peers that are neither configured nor locked as the configuration says, and at most
//! [`NIDS_PER_PEER`] NIDs for each of these, of which `shares` says who makes room; a peer has at most
//! [`TOLD_MAX`] NIs, those that it only claims (`claims`) included. What is configured is changed by the
//! administrator alone: the kind and the primary NID of a configured peer, and those of its NIs that are
//! marked as configured. Others were found before, and go once it does not tell them. Where locked peers turn
//! out to be one node, the lock that was made first stays (LNet `peer.c`).
//!
//! Peers have one owner, this machine. Shards get them with the snapshot, a map that shares all that has not
//! changed, and report which NIDs are used and how messages end. So health is the node's and not a shard's. A
//! shard knows nothing but silent paths before it has reported them.

mod announce;
mod aside;
mod claims;
mod edit;
mod elsewhere;
mod former;
mod gateways;
mod nets;
mod own;
mod shares;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::Bound;

use lnet_model::peer::PeerSpec;
use lnet_wire::{Net, Nid};
use thiserror::Error;

pub use claims::Claim;
pub(super) use claims::{Claims, Proof, TURN};
use elsewhere::Elsewhere;
pub(super) use former::{FormerNids, LostNid};

use super::RequestId;
use super::error::RequestError;
use super::recovery::Recovery;
use crate::time::Instant;
use crate::topology::HEALTH_MAX;

use aside::Aside;
pub(super) use shares::PeerOrigin;
use shares::Shares;

/// Most NIs of a peer: as many as `lnetctl` takes of one. What a peer tells beyond them is cut, with a
/// warning.
pub const TOLD_MAX: usize = 128;

/// NIDs that all peers have together, for each peer that there may be.
const NIDS_PER_PEER: usize = 4;

/// Shares of the table: peers from one address make room before others if they have more than one.
const SHARES: usize = 16;

pub use lnet_model::peer::peer_state;
use peer_state::{
    CONFIGURED, DISCOVERED, DISCOVERING, FORCE_PING, FORCE_PUSH, LOCK_PRIMARY, MULTI_RAIL, NIDS_UP_TO_DATE,
    NO_DISCOVERY, PUSH_SENT, REDISCOVER,
};

/// An NI of a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerNi {
    /// Its NID.
    pub nid: Nid,
    /// 0 to 1000.
    pub health: u32,
    /// Whether the peer says that it is up; `None` if it has said nothing.
    pub is_up: Option<bool>,
    /// When a message came from it last, as far as this node has noticed.
    pub received_at: Option<Instant>,
    /// Pings to it while it is not in full health.
    pub recovery: Recovery,
    /// The local NID by which requests to it go, and no other, while its peer is not Multi-Rail: that by
    /// which it was heard, or the best one when it was first used. What a selection policy prefers replaces
    /// it.
    pub source: Option<Box<Nid>>,
    /// Whether an administrator has given it to its peer: then it stays, whatever the peer tells.
    pub is_configured: bool,
}

impl PeerNi {
    pub(super) fn new(nid: Nid) -> Self {
        let recovery = Recovery::default();
        let (is_up, received_at, source) = (None, None, None);
        Self { nid, health: HEALTH_MAX, is_up, received_at, recovery, source, is_configured: false }
    }
}

/// A node that this one knows of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The NID that it goes by here.
    pub primary: Nid,
    /// Its NIs, the primary one first, those of one net together.
    pub nis: Vec<PeerNi>,
    /// NIDs that it tells to be its own, and that have not said so themselves: messages go to none of them.
    pub(super) claims: Vec<Claim>,
    /// The state in LNet's bits ([`peer_state`]; `lnetctl peer show -v 3`).
    pub state: u32,
    /// What it has told of itself last: its NIDs by its own account, at most [`TOLD_MAX`] of them.
    pub(super) told: Box<[Nid]>,
    /// NIDs of it that are none of its NIs; most peers have none.
    aside: Option<Box<Aside>>,
    /// The number that it gave that.
    pub sequence: u32,
    /// The number of what this node has told and it has acknowledged.
    pub acked: u32,
    /// Why the last attempt to discover it failed.
    pub error: Option<Box<RequestError>>,
    /// The generation of the snapshot that is to tell of that.
    pub(super) failed_at: u64,
    /// The ping or push whose end its discovery waits for.
    pub(super) under_way: Option<RequestId>,
    /// Requests that wait until it is discovered.
    pub(super) waiting: Vec<RequestId>,
    /// Since when they do, or messages do.
    pub(super) awaited_since: Option<Instant>,
    /// When its last traffic was, as a number that grows.
    last_traffic: u64,
    /// When its primary NID was locked, as a number that grows; 0 if it is not.
    locked_at: u64,
    /// Whether NIDs of it went with a net of this node's.
    has_left: bool,
    /// Whether it is this node itself: all its NIDs are this node's.
    is_own: bool,
    /// Whether a route was made by one of its NIDs.
    is_gateway: bool,
    /// Whether it is locked, and was found by another NID: that one's net is shown first, and the primary NID
    /// last of its net.
    is_found_by_other: bool,
    /// A NID of the peer that it is a part of, as a program has announced.
    part_of: Option<Box<Nid>>,
    /// Where it came from.
    origin: PeerOrigin,
    /// Whether a message of it has waited for the name that it is known by ([`Claim`]).
    pub(super) has_waited: bool,
}

impl Peer {
    fn new(primary: Nid, state: u32) -> Self {
        Self {
            primary,
            nis: alloc::vec![PeerNi::new(primary)],
            claims: Vec::new(),
            state,
            told: Box::default(),
            aside: None,
            sequence: 0,
            acked: 0,
            error: None,
            failed_at: 0,
            under_way: None,
            waiting: Vec::new(),
            awaited_since: None,
            last_traffic: 0,
            locked_at: 0,
            has_left: false,
            is_own: false,
            is_gateway: false,
            is_found_by_other: false,
            part_of: None,
            origin: PeerOrigin::NONE,
            has_waited: false,
        }
    }

    /// Whether others make no room for themselves by it.
    const fn stays(&self) -> bool {
        self.state & (CONFIGURED | LOCK_PRIMARY) != 0 || self.is_gateway
    }

    /// Whether it is the gateway of a route.
    #[must_use]
    pub const fn is_gateway(&self) -> bool {
        self.is_gateway
    }

    /// Whether all of these bits of its state are set.
    #[must_use]
    pub const fn is(&self, bits: u32) -> bool {
        self.state & bits == bits
    }

    /// Whether it takes messages by any of its NIs.
    #[must_use]
    pub const fn is_multi_rail(&self) -> bool {
        self.is(MULTI_RAIL)
    }

    /// The NIDs that it has, without those that it claims, in their order.
    #[must_use]
    pub fn proven_nids(&self) -> Vec<Nid> {
        self.nis.iter().map(|ni| ni.nid).collect()
    }

    /// The NID that it goes by where it is shown: its primary one by its own account, though that is no more
    /// than a claim.
    #[must_use]
    pub fn shown_primary(&self) -> Nid {
        self.primary_claim().filter(|claim| claim.is_shown).map_or(self.primary, |claim| claim.ni.nid)
    }

    /// NIs as they are shown, [`Peer::shown_primary`] first, those of one net together. Where a peer with a
    /// locked primary NID was found by another one, what was found is first (LNet sanity test 304). NIDs
    /// that the peer claims are among them, if no other peer has them or has claimed them before.
    #[must_use]
    pub fn shown(&self) -> Vec<&PeerNi> {
        self.with_claims(|claim| claim.is_shown)
    }

    /// The NIDs that it has by its own account, in the order in which they are shown: also those that others
    /// have, but for what was contradicted.
    pub(super) fn told_nids(&self) -> Vec<Nid> {
        self.with_claims(|claim| !claim.is_denied).iter().map(|ni| ni.nid).collect()
    }

    fn with_claims(&self, is_told: impl Fn(&Claim) -> bool) -> Vec<&PeerNi> {
        let claimed = self.claims.iter().filter(|claim| is_told(claim)).map(|claim| &claim.ni);
        let mut shown: Vec<_> = self.nis.iter().chain(claimed).collect();
        let first = self.told.first().filter(|first| shown.iter().any(|ni| ni.nid == **first));
        let is_fixed = self.is(LOCK_PRIMARY) || self.is(CONFIGURED);
        let primary = *first.filter(|_| !is_fixed).unwrap_or(&self.primary);
        if !self.is(CONFIGURED) {
            shown
                .sort_by_key(|ni| self.told.iter().position(|nid| *nid == ni.nid).unwrap_or(self.told.len()));
        }
        let other = shown.iter().map(|ni| ni.nid).find(|nid| self.is_found_by_other && *nid != primary);
        let nets = nets_of(&other.unwrap_or(primary), shown.iter().copied());
        shown.sort_by_key(|ni| {
            let (net, is_other) = order_of(&nets, &primary, ni);
            (net, is_other != other.is_some())
        });
        shown
    }

    /// The NIDs of its NIs as they are shown ([`Peer::shown`]).
    #[must_use]
    pub fn nids(&self) -> Vec<Nid> {
        self.shown().iter().map(|ni| ni.nid).collect()
    }

    /// How many NIDs it has as it is shown ([`Peer::shown`]).
    pub(super) fn nid_count(&self) -> usize {
        self.nis.len() + self.claims.iter().filter(|claim| claim.is_shown).count()
    }

    /// The NI with a NID.
    #[must_use]
    pub fn ni(&self, nid: &Nid) -> Option<&PeerNi> {
        self.nis.iter().find(|ni| ni.nid == *nid)
    }

    pub(super) fn ni_mut(&mut self, nid: &Nid) -> Option<&mut PeerNi> {
        self.nis.iter_mut().find(|ni| ni.nid == *nid)
    }

    pub(super) const fn needs_ping(&self) -> bool {
        self.is(FORCE_PING) || !self.is(NIDS_UP_TO_DATE)
    }

    /// Whether it is to be told what this node tells by that number, while discovery is on here or not.
    pub(super) const fn needs_push(&self, sequence: u32, is_discovery_on: bool) -> bool {
        let is_behind = is_discovery_on && !self.is(NO_DISCOVERY) && self.acked != sequence;
        self.is_multi_rail() && !self.is(PUSH_SENT) && (self.is(FORCE_PUSH) || is_behind)
    }

    /// Whether nothing is to be found out about it before it is used again (LNet `peer.c:
    /// lnet_peer_is_uptodate`).
    pub(super) const fn is_up_to_date(&self, sequence: u32, is_discovery_on: bool) -> bool {
        self.state & (DISCOVERING | FORCE_PING | FORCE_PUSH | REDISCOVER) == 0
            && !self.needs_push(sequence, is_discovery_on)
            && self.is(DISCOVERED | NIDS_UP_TO_DATE)
    }

    /// Brings its NIs into their order.
    fn sort(&mut self) {
        let primary = self.primary;
        let nets = nets_of(&primary, &self.nis);
        self.nis.sort_by_key(|ni| order_of(&nets, &primary, ni));
    }
}

/// The nets of a peer's NIs, that of its primary one first.
fn nets_of<'a>(primary: &Nid, nis: impl IntoIterator<Item = &'a PeerNi>) -> Vec<Net> {
    let mut nets: Vec<Net> = alloc::vec![primary.net()];
    for ni in nis {
        if !nets.contains(&ni.nid.net()) {
            nets.push(ni.nid.net());
        }
    }
    nets
}

/// The position of an NI among those of its peer, as a number that grows.
fn order_of(nets: &[Net], primary: &Nid, ni: &PeerNi) -> (Option<usize>, bool) {
    (nets.iter().position(|net| *net == ni.nid.net()), ni.nid != *primary)
}

/// What is wrong with a change of peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The NID is a wildcard, `lo`, or can be no NI's name (`-EINVAL`).
    #[error("peer nid {0}: that of an NI is expected, on a host that others reach by it")]
    Nid(Nid),
    /// There is no such peer (`-ENOENT`).
    #[error("no peer has the nid {0}")]
    Unknown(Nid),
    /// The NID is a peer's, and not its primary one (`-ENODEV`).
    #[error("{nid} is not a primary nid: {primary} is")]
    NotPrimary {
        /// The NID.
        nid: Nid,
        /// The primary NID of its peer.
        primary: Nid,
    },
    /// A configured peer has the NID (`-EEXIST`).
    #[error("{nid} belongs to the configured peer {primary}")]
    Configured {
        /// The NID.
        nid: Nid,
        /// The primary NID of its peer.
        primary: Nid,
    },
    /// The primary NID is fixed already (`-EEXIST`).
    #[error("peer {0} exists, and its primary nid is locked")]
    Locked(Nid),
    /// The NID is another one of a peer whose primary NID is fixed (`-EALREADY`).
    #[error("{nid} belongs to peer {primary}, whose primary nid is locked")]
    LockedAs {
        /// The NID.
        nid: Nid,
        /// The primary NID of its peer.
        primary: Nid,
    },
    /// The peer is Multi-Rail and the request says otherwise, or the reverse (`-EPERM`).
    #[error("peer {primary} is configured {}", if *.is_multi_rail { "as Multi-Rail" } else { "without Multi-Rail" })]
    OtherKind {
        /// Its primary NID.
        primary: Nid,
        /// What it is.
        is_multi_rail: bool,
    },
    /// A peer that is not Multi-Rail has one NID on a net (`-ENOTUNIQ`).
    #[error("{nid}: peer {primary} is not Multi-Rail and has a nid on that net")]
    NotUnique {
        /// The NID.
        nid: Nid,
        /// The primary NID of the peer.
        primary: Nid,
    },
    /// The NID is not one of this peer's (`-ECHILD`).
    #[error("{nid} is not a nid of peer {primary}")]
    NotHere {
        /// The NID.
        nid: Nid,
        /// The primary NID of the peer.
        primary: Nid,
    },
    /// The peer has as many NIs as may be (`-ENOSPC`).
    #[error("peer {0} has {TOLD_MAX} nids, the most there can be")]
    TooMany(Nid),
    /// More than 1000 (`-EINVAL`).
    #[error("health {0}: 0 to 1000 is expected")]
    Health(u32),
}

impl PeerError {
    /// Its errno, positive.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::OtherKind { .. } => 1,
            Self::Unknown(_) => 2,
            Self::NotHere { .. } => 10,
            Self::Configured { .. } | Self::Locked(_) => 17,
            Self::NotPrimary { .. } => 19,
            Self::Nid(_) | Self::Health(_) => 22,
            Self::TooMany(_) => 28,
            Self::NotUnique { .. } => 76,
            Self::LockedAs { .. } => 114,
        }
    }
}

/// A change of the peers by the administrator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerEdit {
    /// A peer comes, or more NIDs for one.
    Add(PeerSpec),
    /// A peer goes, or some of its NIDs.
    Delete {
        /// Its primary NID.
        primary: Nid,
        /// What goes; the peer without any, and if the primary one is among them.
        nids: Vec<Nid>,
        /// Whether the peer goes though its primary NID is locked.
        is_forced: bool,
    },
    /// The health of a peer NI is set, or that of all.
    SetHealth {
        /// Its NID; all without one.
        nid: Option<Nid>,
        /// 0 to 1000.
        value: u32,
    },
    /// The state bits of a peer are set: for tests.
    SetState {
        /// A NID of it.
        nid: Nid,
        /// The bits.
        state: u32,
    },
}

/// The peers of a node.
#[derive(Clone, Debug)]
pub(super) struct PeerTable {
    /// Peers by primary NID.
    peers: BTreeMap<Nid, Box<Peer>>,
    /// The primary NIDs of peers by all their NIDs.
    primaries: BTreeMap<Nid, Nid>,
    /// The primary NIDs of peers by the NIDs that they had on nets that this node has left, and that no peer
    /// has.
    left: BTreeMap<Nid, Nid>,
    /// NIDs that peers claim.
    claims: Claims,
    /// NIDs that the gateways of routes were named by.
    gateways: BTreeSet<Nid>,
    /// Peers that make room.
    shares: Shares,
    last_traffic: u64,
    /// Primary NIDs that were ever locked.
    locks: u64,
    max: usize,
    /// Primary NIDs of peers that shards do not know as they are.
    changed: BTreeSet<Nid>,
    /// NIDs that were taken away from a peer since shards heard last.
    removed: BTreeSet<Nid>,
    /// NIDs that are claimed, or are so no more, since shards heard last; those of them without a peer.
    claimed: BTreeSet<Nid>,
    unowned: BTreeSet<Nid>,
    /// NIDs that speak from other addresses than their own.
    elsewhere: Elsewhere,
    /// NIDs that peers have lost since this was asked last.
    lost: Vec<LostNid>,
    /// Requests that waited for peers that are gone.
    orphans: Vec<RequestId>,
}

impl PeerTable {
    pub(super) fn new(max: usize) -> Self {
        Self {
            peers: BTreeMap::new(),
            primaries: BTreeMap::new(),
            left: BTreeMap::new(),
            claims: Claims::new(),
            gateways: BTreeSet::new(),
            shares: Shares::new(max / SHARES),
            last_traffic: 0,
            locks: 0,
            max,
            changed: BTreeSet::new(),
            removed: BTreeSet::new(),
            claimed: BTreeSet::new(),
            unowned: BTreeSet::new(),
            elsewhere: Elsewhere::new(),
            lost: Vec::new(),
            orphans: Vec::new(),
        }
    }

    /// Requests that waited for peers that are gone.
    pub(super) fn take_orphans(&mut self) -> Vec<RequestId> {
        core::mem::take(&mut self.orphans)
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        let primaries: Vec<_> = self.peers.keys().copied().collect();
        for primary in primaries {
            self.remove(&primary);
        }
        self.lost.clear();
    }

    /// Notes that shards know none of the peers as it is.
    pub(super) fn mark_all(&mut self) {
        self.changed.extend(self.peers.keys());
    }

    /// Changes that shards are to hear of: the NIDs that have no peer any more, the peers that have changed,
    /// and the NIDs without a peer, or of this node, of which it has changed whether they are claimed.
    pub(super) fn take_changes(&mut self) -> Option<[BTreeSet<Nid>; 3]> {
        for nid in core::mem::take(&mut self.claimed) {
            // Shards hear of no peer that is this node.
            let owner = self.get(&nid).or_else(|| self.reached_as(&nid));
            let owner = owner.filter(|peer| !peer.is_own()).map(|peer| peer.primary);
            match owner {
                Some(primary) => drop(self.changed.insert(primary)),
                None => drop(self.unowned.insert(nid)),
            }
        }
        if self.changed.is_empty() && self.removed.is_empty() && self.unowned.is_empty() {
            return None;
        }
        Some([&mut self.removed, &mut self.changed, &mut self.unowned].map(core::mem::take))
    }

    /// Traffic with a NID, which makes a peer of it if it is none's; with `came_in` it came from there.
    pub(super) fn note_traffic(&mut self, nid: &Nid, came_in: bool) {
        if self.max == 0 || !nid.can_name_an_ni() {
            return;
        }
        let primary = self.primaries.get(nid).copied().unwrap_or(*nid);
        if !self.peers.contains_key(&primary) {
            let mut peer = Peer::new(primary, 0);
            if came_in {
                peer.origin = self.origin_of(nid);
            }
            while self.shares.count() >= self.max
                && let Some(victim) = self.shares.victim(None)
            {
                self.remove(&victim);
            }
            self.insert(Box::new(peer));
        }
        self.last_traffic += 1;
        let last_traffic = self.last_traffic;
        if let Some(peer) = self.peers.get_mut(&primary) {
            self.shares.remove(peer);
            peer.last_traffic = last_traffic;
            self.shares.insert(peer);
        }
    }

    /// Where a NID speaks from.
    fn origin_of(&self, nid: &Nid) -> PeerOrigin {
        let address = self.elsewhere.address(nid).or_else(|| nid.ip());
        address.map_or(PeerOrigin::NONE, PeerOrigin::of)
    }

    /// Whether a NID speaks from another address than its own: what it says of itself proves nothing.
    pub(super) fn speaks_from_elsewhere(&self, nid: &Nid) -> bool {
        self.elsewhere.address(nid).is_some()
    }

    /// A NID speaks from an address. Tells whose connections from elsewhere are to be ended, as there are
    /// more such NIDs than are remembered.
    pub(super) fn note_came_from(&mut self, nid: &Nid, address: IpAddr) -> Option<Nid> {
        let leaves = self.elsewhere.note(nid, address);
        let primary = self.primaries.get(nid).filter(|_| nid.ip() != Some(address));
        let peer = primary.and_then(|primary| self.peers.get_mut(primary));
        if let Some(peer) = peer.filter(|peer| peer.origin != PeerOrigin::NONE) {
            self.shares.remove(peer);
            peer.origin = PeerOrigin::of(address);
            self.shares.insert(peer);
        }
        leaves
    }

    /// Forgets peers until the NIDs of all fit; the one that has told most recently stays.
    pub(super) fn bound_nids(&mut self, teller: &Nid) {
        let stays = self.primaries.get(teller).copied();
        while self.primaries.len() + self.left.len() + self.claims.len() > NIDS_PER_PEER * self.max
            && let Some(victim) = self.shares.victim(stays.as_ref())
        {
            self.remove(&victim);
        }
    }

    fn insert(&mut self, mut peer: Box<Peer>) {
        let primary = peer.primary;
        // There are many of them, and most do not change any more.
        peer.nis.shrink_to_fit();
        peer.claims.shrink_to_fit();
        self.number_lock(&mut peer);
        peer.is_gateway =
            !self.gateways.is_empty() && peer.nis.iter().any(|ni| self.gateways.contains(&ni.nid));
        for ni in &peer.nis {
            self.primaries.insert(ni.nid, primary);
            // The name of another peer ends with that.
            self.changed.extend(self.left.remove(&ni.nid));
        }
        for nid in peer.left().iter().filter(|nid| !self.primaries.contains_key(nid)) {
            self.left.insert(*nid, primary);
        }
        self.shares.insert(&peer);
        self.changed.insert(primary);
        self.claims.insert(&peer);
        let nids = named_by(&peer);
        self.peers.insert(primary, peer);
        self.settle_claims(&nids);
    }

    fn remove(&mut self, primary: &Nid) {
        let gone = self.take_out(primary);
        self.orphans.extend(gone.into_iter().flat_map(|peer| peer.waiting));
    }

    fn take_out(&mut self, primary: &Nid) -> Option<Box<Peer>> {
        let peer = self.peers.remove(primary)?;
        self.shares.remove(&peer);
        self.claims.remove(&peer);
        for ni in &peer.nis {
            self.primaries.remove(&ni.nid);
            self.removed.insert(ni.nid);
        }
        for nid in peer.left() {
            if self.left.get(nid) == Some(primary) {
                self.left.remove(nid);
                self.removed.insert(*nid);
            }
        }
        self.changed.remove(primary);
        self.settle_claims(&named_by(&peer));
        Some(peer)
    }

    /// Changes what a peer has: its NIs, its state, its primary NID, which must be among its NIs.
    pub(super) fn change<R>(&mut self, nid: &Nid, change: impl FnOnce(&mut Peer) -> R) -> Option<R> {
        let primary = *self.primaries.get(nid)?;
        let mut peer = self.take_out(&primary)?;
        let result = change(&mut peer);
        peer.sort();
        self.insert(peer);
        Some(result)
    }

    /// A peer, to change what shards do not know.
    pub(super) fn get_mut(&mut self, nid: &Nid) -> Option<&mut Peer> {
        self.peers.get_mut(self.primaries.get(nid)?).map(Box::as_mut)
    }

    /// A peer's NI, to change its health or state.
    pub(super) fn ni_mut(&mut self, nid: &Nid) -> Option<&mut PeerNi> {
        let primary = *self.primaries.get(nid)?;
        self.changed.insert(primary);
        self.peers.get_mut(&primary)?.ni_mut(nid)
    }

    pub(super) fn get(&self, nid: &Nid) -> Option<&Peer> {
        self.peers.get(self.primaries.get(nid)?).map(Box::as_ref)
    }

    /// The Multi-Rail peer that had a NID on a net that this node has left, if no peer has that NID.
    pub(super) fn reached_as(&self, nid: &Nid) -> Option<&Peer> {
        let peer = self.peers.get(self.left.get(nid)?)?;
        peer.is_multi_rail().then_some(peer)
    }

    /// Peers in the order of their primary NIDs.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.peers.values().map(Box::as_ref)
    }

    /// Peers behind a primary NID.
    pub(super) fn after(&self, nid: Option<Nid>) -> impl Iterator<Item = &Peer> {
        let from = nid.map_or(Bound::Unbounded, Bound::Excluded);
        self.peers.range((from, Bound::Unbounded)).map(|(_, peer)| peer.as_ref())
    }

    /// A peer as discovery makes it anew, which has become another node: with its primary NID alone.
    pub(super) fn reset(&mut self, nid: &Nid) {
        self.change(nid, |peer| {
            let primary = peer.primary;
            peer.nis.retain(|ni| ni.nid == primary);
            peer.claims.clear();
            peer.retain_left(|_| false);
            peer.state &= !(MULTI_RAIL | DISCOVERED);
        });
    }
}

/// The NIDs that a peer has, and those that it claims.
fn named_by(peer: &Peer) -> Vec<Nid> {
    peer.nis.iter().chain(peer.claims.iter().map(|claim| &claim.ni)).map(|ni| ni.nid).collect()
}
