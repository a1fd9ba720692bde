//! Slabs: storage of a fixed number of values, made once, named by slot and generation.
//!
//! Invariants: a slab never grows; a generation is never 0 and changes whenever a slot is vacated, so that
//! a name kept too long resolves to nothing; the slot that was vacated last is used first (it is warm), and
//! one that never was in use only when none was vacated: memory that was never needed is never touched, so
//! the kernel does not provide it.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use crate::handle::SLOT_BITS;

/// No slot.
pub const NONE: u32 = u32::MAX;

/// An answer that hands the value back, or names it: there was no room for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full<T>(pub T);

/// Has the cache fetch the line of an address; reads nothing, waits for nothing, and may do nothing. The
/// driver's, since safe code cannot do it.
pub type Prefetch = fn(*const u8);

enum Content<T> {
    /// The next free slot, or [`NONE`].
    Free(u32),
    Used(T),
}

/// Values in slots, of a fixed number.
pub struct Slab<T> {
    /// Slots that were ever in use, in memory for all. Apart from the generations, so that a value of a cache
    /// line is in one.
    slots: Vec<Content<T>>,
    generations: Vec<u32>,
    capacity: u32,
    /// The slot that was vacated last, or [`NONE`].
    free: u32,
    used_count: u32,
}

impl<T> Slab<T> {
    /// A slab for `capacity` values; at most `1 << SLOT_BITS`, what a cookie can name.
    ///
    /// # Panics
    /// If they are more.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        assert!(capacity <= 1 << SLOT_BITS, "a slab of {capacity} slots exceeds a cookie's slot number");
        let (slots, generations) =
            (Vec::with_capacity(capacity as usize), Vec::with_capacity(capacity as usize));
        Self { slots, generations, capacity, free: NONE, used_count: 0 }
    }

    /// Slots that are in use.
    #[must_use]
    pub const fn used_count(&self) -> u32 {
        self.used_count
    }

    /// The slot that the next value gets; `None` if there is none.
    #[must_use]
    pub fn first_free(&self) -> Option<u32> {
        let fresh = self.slots.len() as u32;
        if self.free == NONE { (fresh < self.capacity).then_some(fresh) } else { Some(self.free) }
    }

    /// Values that it has room for.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Whether all slots are in use.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.used_count == self.capacity
    }

    /// Stores a value and says in which slot.
    ///
    /// # Errors
    /// [`Full`] with the value if there is no room.
    ///
    /// # Panics
    /// Never, unless the slab is broken.
    #[inline]
    pub fn insert(&mut self, value: T) -> Result<u32, Full<T>> {
        let slot = self.free;
        let Some(vacant) = self.slots.get_mut(slot as usize) else { return self.insert_fresh(value) };
        let Content::Free(next) = *vacant else { unreachable!("slot {slot} of the free list is in use") };
        *vacant = Content::Used(value);
        self.free = next;
        self.used_count += 1;
        Ok(slot)
    }

    /// Stores a value where none ever was.
    fn insert_fresh(&mut self, value: T) -> Result<u32, Full<T>> {
        let slot = self.slots.len() as u32;
        if slot == self.capacity {
            return Err(Full(value));
        }
        self.slots.push(Content::Used(value));
        self.generations.push(1);
        self.used_count += 1;
        Ok(slot)
    }

    /// Vacates a slot that is in use.
    ///
    /// # Panics
    /// If the slot is not in use.
    pub fn remove(&mut self, slot: u32) -> T {
        let content = core::mem::replace(&mut self.slots[slot as usize], Content::Free(self.free));
        let Content::Used(value) = content else { unreachable!("slot {slot} is vacated twice") };
        self.vacated(slot);
        value
    }

    /// Drops the value in a slot that is in use: the way to vacate it without moving what may be large.
    ///
    /// # Panics
    /// If the slot is not in use.
    #[inline]
    pub fn vacate(&mut self, slot: u32) {
        let content = &mut self.slots[slot as usize];
        assert!(matches!(content, Content::Used(_)), "slot {slot} is vacated twice");
        *content = Content::Free(self.free);
        self.vacated(slot);
    }

    #[inline]
    fn vacated(&mut self, slot: u32) {
        let generation = &mut self.generations[slot as usize];
        *generation = generation.wrapping_add(1).max(1);
        self.free = slot;
        self.used_count -= 1;
    }

    /// Generation of the value in a slot.
    #[must_use]
    pub fn generation(&self, slot: u32) -> u32 {
        self.generations.get(slot as usize).copied().unwrap_or(1)
    }

    /// Whether this name still has a value.
    #[must_use]
    #[inline]
    pub fn holds(&self, slot: u32, generation: u32) -> bool {
        self.generations.get(slot as usize) == Some(&generation)
            && matches!(self.slots[slot as usize], Content::Used(_))
    }

    /// The slots that are in use, in their order.
    pub fn used(&self) -> impl Iterator<Item = (u32, &T)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(slot, content)| match content {
            Content::Used(value) => Some((slot as u32, value)),
            Content::Free(_) => None,
        })
    }

    /// The values in the order of their slots, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|content| match content {
            Content::Used(value) => Some(value),
            Content::Free(_) => None,
        })
    }

    /// Has a slot, if it exists, and its generation fetched.
    #[inline]
    pub fn prefetch(&self, slot: u32, prefetch: Prefetch) {
        let slot = slot as usize;
        if let (Some(content), Some(generation)) = (self.slots.get(slot), self.generations.get(slot)) {
            prefetch(core::ptr::from_ref(content).cast());
            prefetch(core::ptr::from_ref(generation).cast());
        }
    }

    /// The value in a slot, if the slot exists and is in use.
    #[must_use]
    pub fn get(&self, slot: u32) -> Option<&T> {
        match self.slots.get(slot as usize)? {
            Content::Used(value) => Some(value),
            Content::Free(_) => None,
        }
    }

    /// The value in a slot, if there is one, to be changed.
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        match self.slots.get_mut(slot as usize)? {
            Content::Used(value) => Some(value),
            Content::Free(_) => None,
        }
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: u32) -> &T {
        match &self.slots[slot as usize] {
            Content::Used(value) => value,
            Content::Free(_) => panic!("slot {slot} is vacant"),
        }
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut T {
        match &mut self.slots[slot as usize] {
            Content::Used(value) => value,
            Content::Free(_) => panic!("slot {slot} is vacant"),
        }
    }
}

/// Bytes that a slot for such a value takes.
#[must_use]
pub const fn slot_bytes<T>() -> usize {
    size_of::<Content<T>>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_gives_the_value_back() {
        let mut slab = Slab::new(2);
        assert_eq!(slab.insert('a'), Ok(0));
        assert_eq!(slab.insert('b'), Ok(1));
        assert!(slab.is_full());
        assert_eq!(slab.insert('c'), Err(Full('c')));
        assert_eq!(slab.remove(0), 'a');
        assert_eq!(slab.insert('d'), Ok(0));
        assert_eq!((slab[0], slab[1], slab.used_count()), ('d', 'b', 2));
        slab.remove(0);
        assert!(slab.used().eq([(1, &'b')]));
        assert_eq!(Slab::new(0).insert('e'), Err(Full('e')));
    }

    #[test]
    fn a_stale_generation_misses() {
        let mut slab = Slab::new(1);
        let slot = slab.insert(7).unwrap();
        let generation = slab.generation(slot);
        assert_ne!(generation, 0);
        assert!(slab.holds(slot, generation));
        slab.remove(slot);
        assert!(!slab.holds(slot, generation));
        assert!(!slab.holds(slot, slab.generation(slot)), "a vacant slot holds nothing");
        slab.insert(8).unwrap();
        assert!(!slab.holds(slot, generation));
        assert!(!slab.holds(9, 1), "there is no such slot");
    }

    #[test]
    fn generation_zero_is_skipped() {
        let mut slab = Slab::new(1);
        let slot = slab.insert(()).unwrap();
        slab.generations[0] = u32::MAX;
        slab.remove(slot);
        assert_eq!(slab.generation(slot), 1);
    }

    #[test]
    fn vacating_is_removing() {
        let (mut one, mut other) = (Slab::new(2), Slab::new(2));
        for slab in [&mut one, &mut other] {
            slab.insert(7).unwrap();
            slab.insert(8).unwrap();
        }
        one.remove(1);
        other.vacate(1);
        let state = |slab: &Slab<i32>| (slab.used_count(), slab.generation(1), slab.get(1).copied());
        assert_eq!(state(&one), state(&other));
        assert_eq!((one.insert(9), other.insert(9)), (Ok(1), Ok(1)));
    }

    #[test]
    fn slots_are_fresh_only_where_none_was_vacated() {
        let mut slab = Slab::new(3);
        let memory = slab.slots.as_ptr();
        for _ in 0..5 {
            assert_eq!(slab.first_free(), Some(0));
            slab.insert(1).unwrap();
            slab.remove(0);
        }
        assert_eq!((slab.slots.len(), slab.capacity()), (1, 3));
        assert_eq!([2, 3, 4].map(|value| slab.insert(value)), [Ok(0), Ok(1), Ok(2)]);
        assert_eq!((slab.first_free(), slab.get(3)), (None, None));
        assert_eq!(slab.slots.as_ptr(), memory, "it does not move");
    }

    #[test]
    #[should_panic(expected = "vacated twice")]
    fn a_slot_is_vacated_once() {
        let mut slab = Slab::new(1);
        slab.insert(7).unwrap();
        slab.vacate(0);
        slab.vacate(0);
    }
}
