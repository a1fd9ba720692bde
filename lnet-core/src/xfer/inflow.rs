//! Inflows: what this shard receives from one shard of a peer, and the messages in it that are not whole.

use alloc::boxed::Box;

use lnet_wire::Nid;
use lnet_wire::frame::FRAGMENT_UNIT_BYTES;
use lnet_wire::header::PAYLOAD_MAX_BYTES;

use super::flow::Busy;
use super::peer::node;
use super::window::{FramesSeen, Window};
use crate::hash::Seed;
use crate::list::{Link, List, NONE, Node};
use crate::lnd::{NiId, Span};
use crate::slab::Slab;
use crate::time::Instant;

/// When frames are acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AckDue {
    /// There is nothing new.
    No,
    /// With the next frame, at this time at the latest.
    At(Instant),
    /// As soon as there is room for a frame.
    Now,
}

pub(super) struct Inflow {
    pub(super) peer: u32,
    /// The peer's shard.
    pub(super) shard: u8,
    /// The token that it showed last.
    pub(super) token: u64,
    /// Whether that was found good under the policies of now.
    pub(super) is_examined: bool,
    pub(super) window: Window,
    /// Whether the window has begun: with the first frame that carries an id of the sender's.
    pub(super) window_begun: bool,
    /// `None` until a frame was dealt with.
    pub(super) frames: Option<FramesSeen>,
    pub(super) ack: AckDue,
    /// Frames since the last acknowledgement.
    pub(super) unacknowledged: u32,
    /// Where its last frame came from.
    pub(super) address: (NiId, Nid),
    /// Where it was opened: whose share of the table it takes.
    pub(super) opened_at: Nid,
    pub(super) seen_at: Instant,
    pub(super) arriving: List<OfInflow>,
    /// How many these are, and how many of them have a map.
    pub(super) arriving_count: u32,
    pub(super) partial_count: u32,
    /// Whether it is in the list of those that have received of late.
    pub(super) is_busy: bool,
    pub(super) busy: Link,
    /// Whether it is in the list of those whose acknowledgement is due.
    pub(super) acks: Link,
    pub(super) recent: Link,
}

/// Marks inflows whose acknowledgement is due.
pub(super) struct Acks;
/// Marks the order in which inflows were heard last.
pub(super) struct Recent;

node!(Inflow, Busy, busy);
node!(Inflow, Acks, acks);
node!(Inflow, Recent, recent);

impl Inflow {
    pub(super) fn new(
        (peer, shard): (u32, u8),
        token: u64,
        window: Window,
        address: (NiId, Nid),
        now: Instant,
    ) -> Self {
        Self {
            peer,
            shard,
            token,
            is_examined: true,
            window,
            window_begun: false,
            frames: None,
            ack: AckDue::No,
            unacknowledged: 0,
            address,
            opened_at: address.1,
            seen_at: now,
            arriving: List::new(),
            arriving_count: 0,
            partial_count: 0,
            is_busy: false,
            busy: Link::UNLINKED,
            acks: Link::UNLINKED,
            recent: Link::UNLINKED,
        }
    }
}

/// Where an arriving message stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Its fragments are written there.
    Receiving(Span),
    /// The shard has delayed it; its frames are kept, or come again.
    Delayed,
    /// The shard has delayed it; its sender knows, and keeps it.
    Parked,
    /// The sender was asked for it.
    Pulled(Span),
}

/// A message that arrives and is not done with. Its slot is its `RxId`.
pub(super) struct Arriving {
    pub(super) inflow: u32,
    pub(super) id: u64,
    pub(super) total_bytes: u32,
    pub(super) phase: Phase,
    /// Its map of what has arrived, or [`NONE`] while it has arrived in one piece or not at all.
    pub(super) map: u32,
    pub(super) missing_bytes: u32,
    /// Whether its sender is still to be asked for it.
    pub(super) pull_owed: bool,
    /// When something of it came last.
    pub(super) touched_at: Instant,
    pub(super) by_inflow: Link,
    bucket: u32,
    chain: Link,
}

/// Marks the arriving messages of an inflow.
pub(super) struct OfInflow;
/// Marks arriving messages whose ids have the same hash.
pub(super) struct ById;

node!(Arriving, OfInflow, by_inflow);
node!(Arriving, ById, chain);

/// The messages that arrive at a shard.
pub(super) struct Arrivals {
    pub(super) slab: Slab<Arriving>,
    buckets: Box<[List<ById>]>,
    seed: Seed,
}

impl Arrivals {
    pub(super) fn new(capacity: u32, seed: Seed) -> Self {
        Self {
            slab: Slab::new(capacity),
            buckets: (0..capacity.next_power_of_two()).map(|_| List::new()).collect(),
            seed,
        }
    }

    #[inline]
    pub(super) fn find(&self, inflow: u32, id: u64) -> Option<u32> {
        if self.slab.used_count() == 0 {
            return None;
        }
        let mut slot = self.buckets[self.bucket(inflow, id) as usize].first();
        while slot != NONE && (self.slab[slot].id != id || self.slab[slot].inflow != inflow) {
            slot = List::<ById>::next(&self.slab, slot);
        }
        (slot != NONE).then_some(slot)
    }

    /// Stores a message; there is room for it.
    pub(super) fn insert(&mut self, now: Instant, inflow: u32, id: u64, total_bytes: u32) -> Option<u32> {
        let bucket = self.bucket(inflow, id);
        let arriving = Arriving {
            inflow,
            id,
            total_bytes,
            phase: Phase::Delayed,
            map: NONE,
            missing_bytes: total_bytes,
            pull_owed: false,
            touched_at: now,
            by_inflow: Link::UNLINKED,
            bucket,
            chain: Link::UNLINKED,
        };
        let slot = self.slab.insert(arriving).ok()?;
        self.buckets[bucket as usize].push_front(&mut self.slab, slot);
        Some(slot)
    }

    /// Gives a message another id.
    pub(super) fn rename(&mut self, slot: u32, id: u64) {
        let (old, inflow) = (self.slab[slot].bucket, self.slab[slot].inflow);
        self.buckets[old as usize].remove(&mut self.slab, slot);
        let bucket = self.bucket(inflow, id);
        (self.slab[slot].id, self.slab[slot].bucket) = (id, bucket);
        self.buckets[bucket as usize].push_front(&mut self.slab, slot);
    }

    pub(super) fn remove(&mut self, slot: u32) -> Arriving {
        let bucket = self.slab[slot].bucket;
        self.buckets[bucket as usize].remove(&mut self.slab, slot);
        self.slab.remove(slot)
    }

    #[inline]
    fn bucket(&self, inflow: u32, id: u64) -> u32 {
        (self.seed.hash([id, u64::from(inflow)]) & (self.buckets.len() as u64 - 1)) as u32
    }
}

const MAP_WORDS: usize = (PAYLOAD_MAX_BYTES / FRAGMENT_UNIT_BYTES / 64) as usize;

/// Which units of a message have arrived.
pub(super) struct UnitMap(Box<[u64; MAP_WORDS]>);

/// The maps of a shard; one that was used is cleared when it is used again.
pub(super) struct UnitMaps {
    maps: Box<[UnitMap]>,
    free: alloc::vec::Vec<u32>,
}

impl UnitMaps {
    pub(super) fn new(count: u32) -> Self {
        Self {
            maps: (0..count).map(|_| UnitMap(Box::new([0; MAP_WORDS]))).collect(),
            free: (0..count).collect(),
        }
    }

    pub(super) fn used_count(&self) -> u32 {
        (self.maps.len() - self.free.len()) as u32
    }

    pub(super) const fn capacity(&self) -> u32 {
        self.maps.len() as u32
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// An empty map.
    pub(super) fn take(&mut self) -> Option<u32> {
        let map = self.free.pop()?;
        self.maps[map as usize].0.fill(0);
        Some(map)
    }

    pub(super) fn give_back(&mut self, map: u32) {
        if map != NONE {
            self.free.push(map);
        }
    }

    /// Bytes of a fragment, at least one long, that were not there before; 0 if all were. The fragment begins at
    /// a unit, lies within its message, and ends at a unit or with its message.
    pub(super) fn new_bytes(&self, map: u32, offset: u32, length: u32) -> u32 {
        let units = &self.maps[map as usize].0;
        let end = offset + length;
        let (first, last) = (offset / FRAGMENT_UNIT_BYTES, (end - 1) / FRAGMENT_UNIT_BYTES);
        let missing = (first / 64..=last / 64).map(|word| !units[word as usize] & mask(word, first, last));
        let missing_units: u32 = missing.map(u64::count_ones).sum();
        let last_missing = units[(last / 64) as usize] >> (last % 64) & 1 == 0;
        let short_by = (last + 1) * FRAGMENT_UNIT_BYTES - end;
        missing_units * FRAGMENT_UNIT_BYTES - if last_missing { short_by } else { 0 }
    }

    /// Remembers a fragment.
    pub(super) fn mark(&mut self, map: u32, offset: u32, length: u32) {
        let units = &mut self.maps[map as usize].0;
        let (first, last) = (offset / FRAGMENT_UNIT_BYTES, (offset + length - 1) / FRAGMENT_UNIT_BYTES);
        for word in first / 64..=last / 64 {
            units[word as usize] |= mask(word, first, last);
        }
    }
}

/// The bits of a word of units that lie between these two, both included.
const fn mask(word: u32, first: u32, last: u32) -> u64 {
    let low = first.saturating_sub(word * 64);
    let high = if last - word * 64 > 63 { 63 } else { last - word * 64 };
    u64::MAX << low & u64::MAX >> (63 - high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_map_counts_each_byte_once(
            total in 1..=PAYLOAD_MAX_BYTES,
            cuts in proptest::collection::vec((any::<u32>(), 1..40_u32), 0..60),
        ) {
            let mut maps = UnitMaps::new(1);
            let map = maps.take().unwrap();
            prop_assert!(maps.is_full());
            let mut here = alloc::vec![false; total as usize];
            let fragments = cuts.into_iter().map(|(at, units)| (at % total, units)).chain([(0, u32::MAX / 64)]);
            for (at, units) in fragments {
                let offset = at / FRAGMENT_UNIT_BYTES * FRAGMENT_UNIT_BYTES;
                let length = (units * FRAGMENT_UNIT_BYTES).min(total - offset);
                let range = offset as usize..(offset + length) as usize;
                let fresh = here[range.clone()].iter().filter(|there| !**there).count() as u32;
                prop_assert_eq!(maps.new_bytes(map, offset, length), fresh);
                maps.mark(map, offset, length);
                here[range].fill(true);
            }
            maps.give_back(map);
            prop_assert_eq!(maps.used_count(), 0);
            let again = maps.take().unwrap();
            prop_assert_eq!(maps.new_bytes(again, 0, total), total, "a used map comes back empty");
        }
    }
}
