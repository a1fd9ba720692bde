//! Times of slots, the earliest first: a binary heap that knows where each slot stands, so that a time can be
//! changed.
//!
//! Invariant: a slot has one time at most, so there is always room.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::slab::NONE;
use crate::time::Instant;

/// When each slot is to be looked at.
pub struct Schedule {
    heap: Vec<(Instant, u32)>,
    /// Where a slot stands in the heap, or [`NONE`].
    positions: Box<[u32]>,
}

impl Schedule {
    /// A schedule for slots below `capacity`, none of which has a time.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        let positions = (0..capacity).map(|_| NONE).collect();
        Self { heap: Vec::with_capacity(capacity as usize), positions }
    }

    /// The earliest time.
    #[must_use]
    pub fn first(&self) -> Option<Instant> {
        self.heap.first().map(|(at, _)| *at)
    }

    /// Takes out a slot whose time has come.
    pub fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let &(at, slot) = self.heap.first()?;
        if at > now {
            return None;
        }
        self.remove(slot);
        Some(slot)
    }

    /// Has a slot looked at by then, unless it is earlier already.
    #[inline]
    pub fn set(&mut self, slot: u32, at: Instant) {
        let position = self.positions[slot as usize];
        let Some(entry) = self.heap.get_mut(position as usize) else {
            self.positions[slot as usize] = self.heap.len() as u32;
            self.heap.push((at, slot));
            return self.rise(self.heap.len() - 1);
        };
        if at < entry.0 {
            entry.0 = at;
            self.rise(position as usize);
        }
    }

    /// Takes the time of a slot away, if it has one.
    pub fn remove(&mut self, slot: u32) {
        let position = core::mem::replace(&mut self.positions[slot as usize], NONE) as usize;
        if position >= self.heap.len() {
            return;
        }
        self.heap.swap_remove(position);
        if let Some(&(_, moved)) = self.heap.get(position) {
            self.positions[moved as usize] = position as u32;
            self.rise(position);
            self.sink(self.positions[moved as usize] as usize);
        }
    }

    fn rise(&mut self, mut position: usize) {
        while position != 0 && self.heap[position] < self.heap[(position - 1) / 2] {
            position = self.swap(position, (position - 1) / 2);
        }
    }

    fn sink(&mut self, mut position: usize) {
        loop {
            let children = 2 * position + 1..(2 * position + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|child| self.heap[*child]) else { return };
            if self.heap[position] <= self.heap[least] {
                return;
            }
            position = self.swap(position, least);
        }
    }

    /// Swaps two positions; the second one.
    fn swap(&mut self, one: usize, other: usize) -> usize {
        self.heap.swap(one, other);
        for position in [one, other] {
            self.positions[self.heap[position].1 as usize] = position as u32;
        }
        other
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_a_map_in_the_order_of_its_values(
            steps in proptest::collection::vec((0_u8..4, 0..20_u32, 0..50_u64), 1..300),
        ) {
            let (mut schedule, mut model) = (Schedule::new(20), BTreeMap::new());
            for (what, slot, time) in steps {
                match what {
                    0 | 1 => {
                        schedule.set(slot, Instant(time));
                        let at = model.entry(slot).or_insert(time);
                        *at = time.min(*at);
                    }
                    2 => {
                        schedule.remove(slot);
                        model.remove(&slot);
                    }
                    _ => {
                        let first = model.iter().map(|(slot, at)| (*at, *slot)).min();
                        let due = first.filter(|(at, _)| *at <= time).map(|(_, slot)| slot);
                        prop_assert_eq!(schedule.pop_due(Instant(time)), due);
                        due.map(|due| model.remove(&due));
                    }
                }
                prop_assert_eq!(schedule.first(), model.values().min().map(|at| Instant(*at)));
            }
        }
    }
}
