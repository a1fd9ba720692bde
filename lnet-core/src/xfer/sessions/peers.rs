//! The incarnations of peers that are known.

use alloc::boxed::Box;
use core::cell::Cell;
use core::ops::{Index, IndexMut};
use core::time::Duration;

use lnet_wire::Nid;
use lnet_wire::steer::{self, PORTALS, PolicyWord, SteerKey};

use crate::hash::Seed;
use crate::list::{Link, Linked, List, NONE};
use crate::lnd::NiId;
use crate::slab::Slab;
use crate::time::Instant;

/// Where a peer is: by which interface, under which NID.
pub(crate) type Address = (NiId, Nid);

/// Marks paths whose NIDs have the same hash, or peers whose incarnations have.
pub(crate) struct Chain;

node!(PeerIncarnation, Chain, chain);

/// Where a peer's frames belong: what it has told of its shards.
#[derive(PartialEq, Eq)]
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
    /// Where the last one before came from that came by another interface.
    pub(crate) other_address: Option<Address>,
    pub(crate) received_at: Instant,
    /// A round trip to it, if one was measured.
    pub(crate) rtt: Option<Duration>,
    bucket: u32,
    chain: Link,
}

impl PeerIncarnation {
    /// A frame of it has arrived.
    #[inline]
    pub(crate) fn received_from(&mut self, now: Instant, address: Address) {
        if self.address.0 != address.0 {
            self.other_address = Some(self.address);
        }
        (self.address, self.received_at) = (address, now);
    }
}

/// The incarnations that are known.
pub(crate) struct Peers {
    slab: Slab<PeerIncarnation>,
    /// The one that was found last.
    last: Cell<u32>,
    buckets: Box<[List<Chain>]>,
    seed: Seed,
}

impl Peers {
    pub(crate) fn new(capacity: u32, seed: Seed) -> Self {
        Self {
            slab: Slab::new(capacity),
            last: Cell::new(NONE),
            buckets: (0..capacity.next_power_of_two()).map(|_| List::new()).collect(),
            seed,
        }
    }

    #[inline]
    pub(crate) fn find(&self, incarnation: u64) -> Option<u32> {
        let last = self.last.get();
        if self.slab.get(last).is_some_and(|peer| peer.incarnation == incarnation) {
            return Some(last);
        }
        let mut slot = self.buckets[self.bucket(incarnation) as usize].first();
        while slot != NONE && self.slab[slot].incarnation != incarnation {
            slot = List::<Chain>::next(&self.slab, slot);
        }
        self.last.set(slot);
        (slot != NONE).then_some(slot)
    }

    /// Makes a peer, if there is room for it.
    pub(crate) fn insert(&mut self, now: Instant, incarnation: u64, address: Address) -> Option<u32> {
        let bucket = self.bucket(incarnation);
        let peer = PeerIncarnation {
            incarnation,
            steering: None,
            address,
            other_address: None,
            received_at: now,
            rtt: None,
            bucket,
            chain: Link::UNLINKED,
        };
        let slot = self.slab.insert(peer).ok()?;
        self.buckets[bucket as usize].push_front(&mut self.slab, slot);
        Some(slot)
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        let bucket = self.slab[slot].bucket;
        self.buckets[bucket as usize].remove(&mut self.slab, slot);
        self.slab.vacate(slot);
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&PeerIncarnation> {
        self.slab.get(slot)
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.slab.is_full()
    }

    pub(crate) const fn capacity(&self) -> u32 {
        self.slab.capacity()
    }

    pub(crate) const fn used_count(&self) -> u32 {
        self.slab.used_count()
    }

    /// The peer that has been silent for longest among those that may be forgotten.
    pub(crate) fn oldest(&self, may_go: impl Fn(u32) -> bool) -> Option<u32> {
        let used = self.slab.used().filter(|(slot, _)| may_go(*slot));
        used.min_by_key(|(_, peer)| peer.received_at).map(|(slot, _)| slot)
    }

    #[inline]
    fn bucket(&self, incarnation: u64) -> u32 {
        (self.seed.hash([incarnation]) & (self.buckets.len() as u64 - 1)) as u32
    }
}

impl Index<u32> for Peers {
    type Output = PeerIncarnation;

    #[inline]
    fn index(&self, slot: u32) -> &PeerIncarnation {
        &self.slab[slot]
    }
}

impl IndexMut<u32> for Peers {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut PeerIncarnation {
        &mut self.slab[slot]
    }
}
