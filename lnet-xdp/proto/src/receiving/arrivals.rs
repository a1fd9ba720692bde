//! Messages that arrive and are not done with, and which parts of them are there.

use alloc::boxed::Box;
use alloc::vec;
use core::time::Duration;

use lnet_core::collections::{Chain, Keyed, Link, NONE, Seed, Table, linked};
use lnet_core::lnd::{PING_PORTAL, Span};
use lnet_core::time::Instant;
use lnet_wire::frame::FRAGMENT_UNIT_BYTES;
use lnet_wire::header::PAYLOAD_BYTES_MAX;
use lnet_wire::{Body, Header};

/// How long a push may keep its place.
const PUSH_LASTS: Duration = Duration::from_secs(1);

/// Where an arriving message stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ArrivalStage {
    /// Its fragments are written there.
    Receiving(Span),
    /// The shard has delayed it; its frames are kept, or come again.
    Delayed,
    /// The shard has delayed it; its sender knows, and keeps it.
    Deferred,
    /// The sender was asked for it.
    Pulled(Span),
    /// Nothing of it is wanted any longer; its sender is still to be told.
    Dismissed,
}

/// A message that arrives and is not done with. Its slot is its `RxId`.
pub(crate) struct Arriving {
    pub(crate) stream: u32,
    pub(crate) id: u64,
    pub(crate) total_bytes: u32,
    pub(crate) phase: ArrivalStage,
    /// Its map of what has arrived, or [`NONE`] while it has arrived in one piece or not at all.
    pub(crate) map: u32,
    pub(crate) missing_bytes: u32,
    /// Bytes that have arrived from its beginning, as far as the shard was told.
    pub(crate) first_bytes: u32,
    /// Whether its sender is still to be asked for it.
    pub(crate) pull_owed: bool,
    /// When something of it came last.
    pub(crate) touched_at: Instant,
    /// Whether it is a push, and when it began to be put in place.
    is_push: bool,
    begun_at: Instant,
    pub(crate) by_stream: Link,
    chain: Link,
}

/// Marks the arriving messages of an stream.
pub(crate) struct OfStream;

linked!(Arriving, OfStream, by_stream);
linked!(Arriving, Chain, chain);

impl Keyed for Arriving {
    fn hash(&self, seed: Seed) -> u64 {
        seed.hash(key_words(self.stream, self.id))
    }
}

fn key_words(stream: u32, id: u64) -> [u64; 2] {
    [id, u64::from(stream)]
}

/// The messages that arrive at a shard.
pub(crate) type Arrivals = Table<Arriving>;

impl Arriving {
    /// A message of which nothing is there.
    pub(crate) const fn new(now: Instant, stream: u32, id: u64, total_bytes: u32) -> Self {
        Self {
            stream,
            id,
            total_bytes,
            phase: ArrivalStage::Delayed,
            map: NONE,
            missing_bytes: total_bytes,
            first_bytes: 0,
            pull_owed: false,
            touched_at: now,
            is_push: false,
            begun_at: now,
            by_stream: Link::UNLINKED,
            chain: Link::UNLINKED,
        }
    }

    /// Takes note of what the message is.
    pub(crate) const fn is_of(&mut self, header: &Header) {
        self.is_push = matches!(header.body, Body::Put { portal: PING_PORTAL, .. });
    }

    /// Begins to keep the place that is known now.
    pub(crate) const fn begin(&mut self, now: Instant, phase: ArrivalStage) {
        (self.phase, self.touched_at, self.begun_at) = (phase, now, now);
    }

    /// Whether it has kept its place for too long without coming to its end: for so long without progress, or
    /// as a push for long, since there is one place for those of all peers, and a push comes again.
    pub(crate) fn is_overdue(&self, now: Instant, patience: Duration) -> bool {
        let goes_on = !matches!(self.phase, ArrivalStage::Delayed | ArrivalStage::Deferred);
        goes_on && (now - self.touched_at > patience || self.is_push && now - self.begun_at > PUSH_LASTS)
    }

    /// The slot of a message.
    #[inline]
    pub(crate) fn find(arrivals: &Arrivals, stream: u32, id: u64) -> Option<u32> {
        if arrivals.used_count() == 0 {
            return None;
        }
        arrivals.find(|| key_words(stream, id), |arriving| arriving.id == id && arriving.stream == stream)
    }
}

const MAP_WORDS: usize = (PAYLOAD_BYTES_MAX / FRAGMENT_UNIT_BYTES / 64) as usize;

/// The maps of a shard, which say what units of a message have arrived; one that was used is cleared when it
/// is used again.
pub(crate) struct UnitMaps {
    maps: Box<[[u64; MAP_WORDS]]>,
    free: alloc::vec::Vec<u32>,
}

impl UnitMaps {
    pub(crate) fn new(count: u32) -> Self {
        // Zeroed memory is not touched before it is used.
        Self { maps: vec![[0; MAP_WORDS]; count as usize].into_boxed_slice(), free: (0..count).collect() }
    }

    pub(crate) fn used_count(&self) -> u32 {
        (self.maps.len() - self.free.len()) as u32
    }

    pub(crate) const fn capacity(&self) -> u32 {
        self.maps.len() as u32
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// An empty map.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let map = self.free.pop()?;
        self.maps[map as usize].fill(0);
        Some(map)
    }

    pub(crate) fn give_back(&mut self, map: u32) {
        if map != NONE {
            self.free.push(map);
        }
    }

    /// Bytes of a fragment, at least one long, that were not there before; 0 if all were. The fragment begins
    /// at a unit, lies within its message, and ends at a unit or with its message.
    pub(crate) fn new_bytes(&self, map: u32, offset: u32, length: u32) -> u32 {
        let units = &self.maps[map as usize];
        let end = offset + length;
        let (first, last) = (offset / FRAGMENT_UNIT_BYTES, (end - 1) / FRAGMENT_UNIT_BYTES);
        let missing = (first / 64..=last / 64).map(|word| !units[word as usize] & mask(word, first, last));
        let missing_units: u32 = missing.map(u64::count_ones).sum();
        let last_missing = units[(last / 64) as usize] >> (last % 64) & 1 == 0;
        let short_by = (last + 1) * FRAGMENT_UNIT_BYTES - end;
        missing_units * FRAGMENT_UNIT_BYTES - if last_missing { short_by } else { 0 }
    }

    /// Bytes that are there from the beginning of a message of which some are missing; so many were before.
    pub(crate) fn first_bytes(&self, map: u32, before: u32) -> u32 {
        let units = &self.maps[map as usize];
        let mut unit = before / FRAGMENT_UNIT_BYTES;
        while let Some(word) = units.get((unit / 64) as usize) {
            let there = (word >> (unit % 64)).trailing_ones();
            unit += there;
            if there == 0 || !unit.is_multiple_of(64) {
                break;
            }
        }
        unit * FRAGMENT_UNIT_BYTES
    }

    /// Remembers a fragment.
    pub(crate) fn mark(&mut self, map: u32, offset: u32, length: u32) {
        let units = &mut self.maps[map as usize];
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
            total in 1..=PAYLOAD_BYTES_MAX,
            cuts in proptest::collection::vec((any::<u32>(), 1..40_u32), 0..60),
        ) {
            let mut maps = UnitMaps::new(1);
            let map = maps.take().unwrap();
            prop_assert!(maps.is_full());
            let mut here = alloc::vec![false; total as usize];
            let mut first = 0;
            let fragments = cuts.into_iter().map(|(at, units)| (at % total, units)).chain([(0, u32::MAX / 64)]);
            for (at, units) in fragments {
                let offset = at / FRAGMENT_UNIT_BYTES * FRAGMENT_UNIT_BYTES;
                let length = (units * FRAGMENT_UNIT_BYTES).min(total - offset);
                let range = offset as usize..(offset + length) as usize;
                let fresh = here[range.clone()].iter().filter(|there| !**there).count() as u32;
                prop_assert_eq!(maps.new_bytes(map, offset, length), fresh);
                maps.mark(map, offset, length);
                here[range].fill(true);
                let there = here.iter().take_while(|there| **there).count() as u32;
                if there < total {
                    for before in [0, first] {
                        prop_assert_eq!(maps.first_bytes(map, before), there);
                    }
                    first = there;
                }
            }
            maps.give_back(map);
            prop_assert_eq!(maps.used_count(), 0);
            let again = maps.take().unwrap();
            prop_assert_eq!(maps.new_bytes(again, 0, total), total, "a used map comes back empty");
        }
    }
}
