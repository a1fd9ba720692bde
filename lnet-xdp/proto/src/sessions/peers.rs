//! The incarnations of peers that are known.

use core::time::Duration;

use lnet_core::collections::{Chain, Keyed, Link, Seed, Table, linked};
use lnet_core::time::Instant;
use lnet_wire::steer::{self, PORTALS, PolicyWord, SteerKey};

use crate::contract::Address;

/// Peers among which one is chosen to be forgotten.
const FORGET_CANDIDATES_MAX: u32 = 16;

linked!(PeerIncarnation, Chain, chain);

impl Keyed for PeerIncarnation {
    fn hash(&self, seed: Seed) -> u64 {
        seed.hash([self.incarnation])
    }
}

/// Where a peer's frames belong: what it has told of its shards.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PeerSteering {
    pub(crate) shards: u32,
    pub(crate) policies: [PolicyWord; PORTALS],
}

impl PeerSteering {
    /// The shard that a message goes to.
    #[inline]
    pub(crate) fn shard_of(&self, key: &SteerKey) -> u8 {
        steer::shard_of(key, self.policies[usize::from(key.portal)], self.shards) as u8
    }
}

/// One life of a peer node.
pub(crate) struct PeerIncarnation {
    pub(crate) incarnation: u64,
    /// What it told with its sessions; nothing while it was only received from.
    pub(crate) steering: Option<PeerSteering>,
    /// Where its last frame came from, and when.
    pub(crate) address: Address,
    /// Where the last one before came from that came by another NI.
    pub(crate) other_address: Option<Address>,
    pub(crate) received_at: Instant,
    /// Whether another incarnation lives at one of its addresses, and it has given no session since.
    pub(crate) is_doubted: bool,
    /// A round trip to it, if one was measured.
    pub(crate) rtt: Option<Duration>,
    chain: Link,
}

/// The incarnations that are known.
pub(crate) type Peers = Table<PeerIncarnation>;

impl PeerIncarnation {
    /// A peer from which something has come for the first time.
    pub(crate) const fn new(now: Instant, incarnation: u64, address: Address) -> Self {
        Self {
            incarnation,
            steering: None,
            address,
            other_address: None,
            received_at: now,
            is_doubted: false,
            rtt: None,
            chain: Link::UNLINKED,
        }
    }

    /// The slot of this incarnation.
    #[inline]
    pub(crate) fn find(peers: &Peers, incarnation: u64) -> Option<u32> {
        peers.find(|| [incarnation], |peer| peer.incarnation == incarnation)
    }

    /// The slot of a peer that may be forgotten: of a few of those, the one that has been silent for longest.
    /// `hand` is where they are looked for, and moves on.
    pub(crate) fn oldest(peers: &Peers, hand: &mut u32, may_go: impl Fn(u32) -> bool) -> Option<u32> {
        let capacity = peers.capacity();
        let mut oldest = None;
        let mut candidates = 0;
        for _ in 0..capacity {
            let slot = core::mem::replace(hand, (*hand + 1) % capacity);
            let Some(peer) = peers.get(slot).filter(|_| may_go(slot)) else { continue };
            oldest = oldest.into_iter().chain([(peer.received_at, slot)]).min();
            candidates += 1;
            if candidates == FORGET_CANDIDATES_MAX {
                break;
            }
        }
        oldest.map(|(_, slot)| slot)
    }

    /// A frame of it has arrived.
    #[inline]
    pub(crate) fn received_from(&mut self, now: Instant, address: Address) {
        if self.address.0 != address.0 {
            self.other_address = Some(self.address);
        }
        (self.address, self.received_at) = (address, now);
    }
}
