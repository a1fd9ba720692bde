//! Where exact entries are found: a hash table whose buckets are cache lines.
//!
//! Invariants:
//! - A bucket has the entries of one hash, those of a portal in the order of their stamps: the first ones in
//!   its cells, those that found none in a list behind it. While a cell is free that list is empty.
//! - A cell repeats what decides on most messages: match bits, portal, whether any initiator may send, and
//!   the descriptor. So a message that finds its entry reads the bucket and the descriptor, and the entry
//!   itself only where it matters who sent it.

use alloc::boxed::Box;

use crate::collections::{List, NONE, Slab};
use crate::entry::{MatchEntry, MatchQuery, Stamps, takes};
use crate::handle::SLOT_BITS;
use crate::lnd::Prefetch;
use crate::md::MemoryDesc;

/// What a bucket has room for: a cache line of cells.
const CELLS: usize = 4;
/// Entries for each bucket when all are in use, at most: of a thousand, four stand in a list then.
const LOAD: u32 = 1;

/// What a bucket says of an entry.
#[derive(Clone, Copy)]
struct Cell {
    match_bits: u64,
    /// Slot of the entry, its portal above that, and [`ANY_INITIATOR`]; or [`NONE`], which sets all bits, so
    /// none of an entry's: bit 31 is clear there.
    name: u32,
    /// Slot of its descriptor, or [`NONE`].
    md: u32,
}

const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
/// Marks, in a name, an entry that takes messages of every initiator.
const ANY_INITIATOR: u32 = 1 << 30;

impl Cell {
    const EMPTY: Self = Self { match_bits: 0, name: NONE, md: NONE };

    fn new(slot: u32, entry: &MatchEntry) -> Self {
        let any_initiator = if entry.is_for_any_initiator() { ANY_INITIATOR } else { 0 };
        let name = slot | u32::from(entry.portal) << SLOT_BITS | any_initiator;
        Self { match_bits: entry.match_bits, name, md: entry.md }
    }

    const fn is_empty(&self) -> bool {
        self.name == NONE
    }

    const fn entry(&self) -> u32 {
        self.name & SLOT_MASK
    }

    /// Whether the message is for this entry as far as the cell knows; the sender is looked at apart.
    #[inline]
    const fn fits(&self, portal: u32, match_bits: u64) -> bool {
        self.match_bits == match_bits && (self.name & !ANY_INITIATOR) >> SLOT_BITS == portal
    }
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Bucket {
    cells: [Cell; CELLS],
}

const _: () = assert!(size_of::<Bucket>() == 64, "a bucket exceeds a cache line");
// A portal stands between the slot and the flag.
const _: () = assert!(lnet_wire::steer::PORTALS <= 1 << (30 - SLOT_BITS));

impl Bucket {
    #[inline]
    fn is_full(&self) -> bool {
        !self.cells[CELLS - 1].is_empty()
    }
}

/// The exact entries of a shard, by the hash of what a message asks for.
pub(crate) struct Buckets {
    buckets: Box<[Bucket]>,
    /// Entries that found no cell, of each bucket.
    lists: Box<[List<Stamps>]>,
}

impl Buckets {
    /// Buckets for so many entries.
    pub(crate) fn new(capacity: u32) -> Self {
        let count = capacity.div_ceil(LOAD).next_power_of_two();
        Self {
            buckets: (0..count).map(|_| Bucket { cells: [Cell::EMPTY; CELLS] }).collect(),
            lists: (0..count).map(|_| List::new()).collect(),
        }
    }

    /// The bucket of a hash.
    #[inline]
    pub(crate) const fn of(&self, hash: u64) -> u32 {
        // `new` made a power of two of them.
        (hash & (self.buckets.len() as u64 - 1)) as u32
    }

    /// Puts an entry behind those of its bucket.
    pub(crate) fn push_back(&mut self, entries: &mut Slab<MatchEntry>, bucket: u32, slot: u32) {
        let at = bucket as usize;
        match self.buckets[at].cells.iter_mut().find(|cell| cell.is_empty()) {
            Some(cell) => *cell = Cell::new(slot, &entries[slot]),
            None => self.lists[at].push_back(entries, slot),
        }
    }

    /// Puts an entry before those of its bucket.
    pub(crate) fn push_front(&mut self, entries: &mut Slab<MatchEntry>, bucket: u32, slot: u32) {
        self.insert_cell(entries, bucket, 0, slot);
    }

    /// Puts an entry where its stamp belongs among those of its portal.
    pub(crate) fn insert_by_stamp(&mut self, entries: &mut Slab<MatchEntry>, bucket: u32, slot: u32) {
        let at = bucket as usize;
        let (portal, stamp) = (entries[slot].portal, entries[slot].stamp);
        let is_behind = |entry: &MatchEntry| entry.portal == portal && entry.stamp > stamp;
        let mut cells = self.buckets[at].cells.iter();
        match cells.position(|cell| cell.is_empty() || is_behind(&entries[cell.entry()])) {
            Some(index) => self.insert_cell(entries, bucket, index, slot),
            None => self.lists[at]
                .insert_behind(entries, slot, |other| other.portal == portal && other.stamp < stamp),
        }
    }

    /// Puts an entry into a cell; those from there on move by one.
    fn insert_cell(&mut self, entries: &mut Slab<MatchEntry>, bucket: u32, index: usize, slot: u32) {
        let at = bucket as usize;
        let cells = &mut self.buckets[at].cells;
        let last = cells[CELLS - 1];
        cells.copy_within(index..CELLS - 1, index + 1);
        cells[index] = Cell::new(slot, &entries[slot]);
        if !last.is_empty() {
            self.lists[at].push_front(entries, last.entry());
        }
    }

    /// Takes an entry out of its bucket.
    pub(crate) fn remove(&mut self, entries: &mut Slab<MatchEntry>, bucket: u32, slot: u32) {
        let at = bucket as usize;
        let full = self.buckets[at].is_full();
        let Some(index) = self.cell_of(bucket, slot) else {
            return self.lists[at].remove(entries, slot);
        };
        let cells = &mut self.buckets[at].cells;
        cells.copy_within(index + 1.., index);
        let next = if full { self.lists[at].pop_front(entries) } else { None };
        cells[CELLS - 1] = next.map_or(Cell::EMPTY, |next| Cell::new(next, &entries[next]));
    }

    /// Says what descriptor an entry has now.
    pub(crate) fn set_md(&mut self, bucket: u32, slot: u32, md: u32) {
        if let Some(index) = self.cell_of(bucket, slot) {
            self.buckets[bucket as usize].cells[index].md = md;
        }
    }

    fn cell_of(&self, bucket: u32, slot: u32) -> Option<usize> {
        let cells = &self.buckets[bucket as usize].cells;
        cells.iter().position(|cell| !cell.is_empty() && cell.entry() == slot)
    }

    /// The first entry of a bucket that takes the message, and its descriptor; the length is not looked at.
    #[inline]
    pub(crate) fn find(
        &self,
        entries: &Slab<MatchEntry>,
        mds: &Slab<MemoryDesc>,
        bucket: u32,
        message: &MatchQuery<'_>,
    ) -> Option<(u32, u32)> {
        let found = &self.buckets[bucket as usize];
        for cell in &found.cells {
            if cell.fits(message.portal, message.match_bits)
                && takes(mds, cell.md, message)
                && (cell.name & ANY_INITIATOR != 0 || entries[cell.entry()].accepts(message))
            {
                return Some((cell.entry(), cell.md));
            }
        }
        if !found.is_full() {
            return None;
        }
        let mut others = self.lists[bucket as usize].iter(entries);
        let found = others.find(|(_, entry)| entry.accepts(message) && takes(mds, entry.md, message));
        found.map(|(slot, entry)| (slot, entry.md))
    }

    /// Has a bucket fetched, if it is one.
    #[inline]
    pub(crate) fn prefetch(&self, bucket: u32, prefetch: Prefetch) {
        if let Some(bucket) = self.buckets.get(bucket as usize) {
            prefetch(core::ptr::from_ref(bucket).cast());
        }
    }

    /// The entry and the descriptor that [`find`](Self::find) will most likely look at for such a message,
    /// each or [`NONE`]; reads nothing but the bucket.
    #[inline]
    pub(crate) fn guess(&self, bucket: u32, portal: u32, match_bits: u64) -> (u32, u32) {
        let Some(Bucket { cells }) = self.buckets.get(bucket as usize) else { return (NONE, NONE) };
        let cell = cells.iter().find(|cell| cell.fits(portal, match_bits));
        cell.map_or((NONE, NONE), |cell| (cell.entry(), cell.md))
    }
}
