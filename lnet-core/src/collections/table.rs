//! Hash tables over slabs: a value is found by its key, and named by its slot.
//!
//! Invariants: never grows; what is in a bucket has the same hash, the newest first; the key of a value
//! changes only by [`Table::change_key`].

use alloc::boxed::Box;
use core::cell::Cell;
use core::ops::{Deref, DerefMut};

use super::hash::Seed;
use super::list::{Linked, List};
use super::slab::{NONE, Slab};

/// Marks the values of a bucket.
pub struct Chain;

/// A value that is found by a key.
pub trait Keyed: Linked<Chain> {
    /// The hash of its key.
    fn hash(&self, seed: Seed) -> u64;
}

/// A slab whose values are found by their keys.
pub struct Table<T> {
    slab: Slab<T>,
    buckets: Box<[List<Chain>]>,
    /// The one that was found last, which mostly is the next.
    last: Cell<u32>,
    seed: Seed,
}

impl<T: Keyed> Table<T> {
    /// A table for so many values.
    ///
    /// # Panics
    /// If a slab cannot have so many.
    #[must_use]
    pub fn new(capacity: u32, seed: Seed) -> Self {
        Self {
            slab: Slab::new(capacity),
            buckets: (0..capacity.next_power_of_two()).map(|_| List::new()).collect(),
            last: Cell::new(NONE),
            seed,
        }
    }

    /// The newest value that `is` is true of, among those whose keys are these words.
    #[inline]
    pub fn find<const N: usize>(
        &self,
        words: impl FnOnce() -> [u64; N],
        is: impl Fn(&T) -> bool,
    ) -> Option<u32> {
        let last = self.last.get();
        if self.slab.get(last).is_some_and(&is) {
            return Some(last);
        }
        let slot = self.buckets[self.bucket(self.seed.hash(words()))].find(&self.slab, is)?;
        self.last.set(slot);
        Some(slot)
    }

    /// Stores a value, if there is room for it, and says in which slot.
    pub fn insert(&mut self, value: T) -> Option<u32> {
        let bucket = self.bucket(value.hash(self.seed));
        let slot = self.slab.insert(value).ok()?;
        self.buckets[bucket].push_front(&mut self.slab, slot);
        Some(slot)
    }

    /// Takes a value out.
    ///
    /// # Panics
    /// If the slot is not in use.
    pub fn remove(&mut self, slot: u32) -> T {
        let bucket = self.bucket(self.slab[slot].hash(self.seed));
        self.buckets[bucket].remove(&mut self.slab, slot);
        self.slab.remove(slot)
    }

    /// Gives a value another key.
    pub fn change_key(&mut self, slot: u32, change: impl FnOnce(&mut T)) {
        let former = self.bucket(self.slab[slot].hash(self.seed));
        self.buckets[former].remove(&mut self.slab, slot);
        change(&mut self.slab[slot]);
        let bucket = self.bucket(self.slab[slot].hash(self.seed));
        self.buckets[bucket].push_front(&mut self.slab, slot);
    }

    #[inline]
    fn bucket(&self, hash: u64) -> usize {
        // `new` made a power of two of them.
        (hash & (self.buckets.len() as u64 - 1)) as usize
    }
}

impl<T> Deref for Table<T> {
    type Target = Slab<T>;

    #[inline]
    fn deref(&self) -> &Slab<T> {
        &self.slab
    }
}

impl<T> DerefMut for Table<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Slab<T> {
        &mut self.slab
    }
}
