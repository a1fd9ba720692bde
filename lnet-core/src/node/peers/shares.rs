//! Peers that make room for others, and in which order.
//!
//! Peers that were found count against the address that they came from, each for as many NIDs as it has told.
//! Where an address has more NIDs than a share, the one with the most makes room; else the one does that is
//! without traffic for longest. In both cases those that were never discovered come first. So who comes by
//! many names takes room from itself, and a stranger takes none from a peer that is discovered. IPv6
//! addresses of one /64 count as one: a host may have all of them.
//!
//! Invariants: configured and locked peers are none of these; what a choice costs grows with the logarithm
//! of their number; light addresses are not counted before they matter.

use alloc::collections::BTreeMap;
use core::net::IpAddr;

use lnet_wire::Nid;

use super::Peer;
use super::peer_state::DISCOVERED;

/// Where a peer came from: an IPv4 address, or the first 64 bits of an IPv6 one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(in crate::node) struct PeerOrigin(u64);

impl PeerOrigin {
    /// No address: this node itself has begun with the peer, or its NID has none.
    pub(super) const NONE: Self = Self(0);

    pub(super) fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self(address.to_bits().into()),
            IpAddr::V6(address) => Self((address.to_bits() >> 64) as u64),
        }
    }
}

/// The peers that make room.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    /// NIDs that an address may have before it makes room for all others.
    share: usize,
    /// Peers that were never discovered, and the others.
    classes: [ShareClass; 2],
}

/// Peers of one kind.
#[derive(Clone, Default, Debug)]
struct ShareClass {
    /// The primary NIDs of peers by when their last traffic was.
    order: BTreeMap<u64, Nid>,
    /// How many NIDs each has, by where it came from and when its last traffic was.
    by_origin: BTreeMap<(PeerOrigin, u64), u8>,
    /// NIDs from addresses that have more than their share.
    heavy: BTreeMap<PeerOrigin, usize>,
}

impl ShareClass {
    fn of(&self, origin: PeerOrigin) -> impl Iterator<Item = (&(PeerOrigin, u64), &u8)> {
        self.by_origin.range((origin, 0)..=(origin, u64::MAX))
    }

    fn insert(&mut self, share: usize, key: (PeerOrigin, u64), weight: u8) {
        self.by_origin.insert(key, weight);
        if let Some(sum) = self.heavy.get_mut(&key.0) {
            *sum += usize::from(weight);
            return;
        }
        let sum = self.of(key.0).map(|(_, weight)| usize::from(*weight)).sum::<usize>();
        if sum > share {
            self.heavy.insert(key.0, sum);
        }
    }

    fn remove(&mut self, share: usize, key: (PeerOrigin, u64)) {
        let Some(weight) = self.by_origin.remove(&key) else { return };
        if let Some(sum) = self.heavy.get_mut(&key.0) {
            *sum -= usize::from(weight);
            if *sum <= share {
                self.heavy.remove(&key.0);
            }
        }
    }

    /// The first peer of the address with the most NIDs, if these are more than a share.
    fn first_of_heaviest(&self, goes: impl Fn(&&Nid) -> bool) -> Option<Nid> {
        let (origin, _) = self.heavy.iter().max_by_key(|(_, sum)| **sum)?;
        let mut its = self.of(*origin).filter_map(|((_, traffic), _)| self.order.get(traffic));
        its.find(goes).copied()
    }
}

impl Shares {
    pub(super) fn new(share: usize) -> Self {
        Self { share: share.max(1), classes: [ShareClass::default(), ShareClass::default()] }
    }

    /// How many peers there are.
    pub(super) fn count(&self) -> usize {
        self.classes.iter().map(|class| class.order.len()).sum()
    }

    /// Counts a peer in, if others make room by it.
    pub(super) fn insert(&mut self, peer: &Peer) {
        if peer.last_traffic == 0 || peer.stays() {
            return;
        }
        let class = &mut self.classes[usize::from(peer.is(DISCOVERED))];
        class.order.insert(peer.last_traffic, peer.primary);
        if peer.origin != PeerOrigin::NONE {
            // No more than 128.
            let weight = (peer.nis.len() + peer.claims.len()) as u8;
            class.insert(self.share, (peer.origin, peer.last_traffic), weight);
        }
    }

    /// Counts a peer out, which is as it was when it was counted in.
    pub(super) fn remove(&mut self, peer: &Peer) {
        let class = &mut self.classes[usize::from(peer.is(DISCOVERED))];
        if class.order.remove(&peer.last_traffic).is_some() {
            class.remove(self.share, (peer.origin, peer.last_traffic));
        }
    }

    /// The primary NID of the peer that makes room, other than one that stays.
    pub(super) fn victim(&self, stays: Option<&Nid>) -> Option<Nid> {
        let goes = |nid: &&Nid| Some(*nid) != stays;
        let heavy = self.classes.iter().find_map(|class| class.first_of_heaviest(goes));
        heavy.or_else(|| self.classes.iter().find_map(|class| class.order.values().find(goes).copied()))
    }
}
