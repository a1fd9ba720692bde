//! Doubly linked lists threaded through the slots of a [`Slab`]: no node is ever allocated, and a value
//! leaves its list in constant time.
//!
//! Invariant: for each marker type `L` a value has one [`Link`], so it is in at most one list of that
//! kind. The link says whether it is in one; the owner of the lists knows which.

use core::marker::PhantomData;

use super::slab::{NONE, Slab};

/// Neighbours of a value in its list.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    prev: u32,
    next: u32,
}

impl Link {
    /// The link of a value that is in no list.
    pub const UNLINKED: Self = Self { prev: NO_LIST, next: NO_LIST };

    /// Whether the value is in a list.
    #[inline]
    pub const fn is_linked(&self) -> bool {
        self.next != NO_LIST
    }
}

/// Both neighbours of a value that is in no list.
const NO_LIST: u32 = NONE - 1;

/// A value that can be in a list of kind `L`.
pub trait Linked<L> {
    /// Its neighbours in such a list.
    fn link(&self) -> &Link;
    /// Its neighbours, to be changed.
    fn link_mut(&mut self) -> &mut Link;
}

/// Says by which of its fields a value is in the lists of a kind: `linked!(Value, Kind, field)`.
#[macro_export]
macro_rules! linked {
    ($value:ty, $kind:ty, $field:ident) => {
        impl $crate::collections::Linked<$kind> for $value {
            fn link(&self) -> &$crate::collections::Link {
                &self.$field
            }
            fn link_mut(&mut self) -> &mut $crate::collections::Link {
                &mut self.$field
            }
        }
    };
}

/// First and last slot of a list.
pub struct List<L> {
    head: u32,
    tail: u32,
    kind: PhantomData<fn() -> L>,
}

impl<L> Default for List<L> {
    fn default() -> Self {
        Self::new()
    }
}

impl<L> List<L> {
    /// A list without values.
    #[must_use]
    pub const fn new() -> Self {
        Self { head: NONE, tail: NONE, kind: PhantomData }
    }

    /// First slot, or [`NONE`].
    #[must_use]
    pub const fn first(&self) -> u32 {
        self.head
    }

    /// Whether it has no value.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Last slot, or [`NONE`].
    #[must_use]
    pub const fn last(&self) -> u32 {
        self.tail
    }

    /// The slot after `slot`, or [`NONE`].
    #[must_use]
    #[inline]
    pub fn next<T: Linked<L>>(slab: &Slab<T>, slot: u32) -> u32 {
        slab[slot].link().next
    }

    /// The values in their order, with their slots.
    #[inline]
    pub fn iter<'a, T: Linked<L>>(
        &self,
        slab: &'a Slab<T>,
    ) -> impl Iterator<Item = (u32, &'a T)> + use<'a, L, T> {
        let mut next = self.head;
        core::iter::from_fn(move || {
            let slot = next;
            let value = slab.get(slot)?;
            next = value.link().next;
            Some((slot, value))
        })
    }

    /// The first value of which `is` is true.
    #[inline]
    pub fn find<T: Linked<L>>(&self, slab: &Slab<T>, mut is: impl FnMut(&T) -> bool) -> Option<u32> {
        self.iter(slab).find(|(_, value)| is(value)).map(|(slot, _)| slot)
    }

    /// The slot in `next`, if it is one, and moves that on: so the value may be taken out before the next
    /// step.
    #[inline]
    pub fn step<T: Linked<L>>(slab: &Slab<T>, next: &mut u32) -> Option<u32> {
        let slot = *next;
        *next = slab.get(slot)?.link().next;
        Some(slot)
    }

    /// Puts a value at the end, unless it is in such a list; says whether it was in none.
    #[inline]
    pub fn add<T: Linked<L>>(&mut self, slab: &mut Slab<T>, slot: u32) -> bool {
        let is_new = !slab[slot].link().is_linked();
        if is_new {
            self.push_back(slab, slot);
        }
        is_new
    }

    /// Takes a value out if it is in this list; says whether it was. It is in no other list of this marker.
    #[inline]
    pub fn discard<T: Linked<L>>(&mut self, slab: &mut Slab<T>, slot: u32) -> bool {
        let is_linked = slab[slot].link().is_linked();
        if is_linked {
            self.remove(slab, slot);
        }
        is_linked
    }

    /// Puts a value that is in no such list at the end.
    pub fn push_back<T: Linked<L>>(&mut self, slab: &mut Slab<T>, slot: u32) {
        *slab[slot].link_mut() = Link { prev: self.tail, next: NONE };
        if self.tail == NONE {
            self.head = slot;
        } else {
            slab[self.tail].link_mut().next = slot;
        }
        self.tail = slot;
    }

    /// Puts a value that is in no such list at the front.
    pub fn push_front<T: Linked<L>>(&mut self, slab: &mut Slab<T>, slot: u32) {
        *slab[slot].link_mut() = Link { prev: NONE, next: self.head };
        if self.head == NONE {
            self.tail = slot;
        } else {
            slab[self.head].link_mut().prev = slot;
        }
        self.head = slot;
    }

    /// Puts a value behind the last one whose key is not greater; looks from the back, where it mostly
    /// belongs. The list is in the order of the keys before and after.
    pub fn insert_by_key<T: Linked<L>, K: Ord>(
        &mut self,
        slab: &mut Slab<T>,
        slot: u32,
        key: impl Fn(&T) -> K,
    ) {
        let own = key(&slab[slot]);
        self.insert_behind(slab, slot, |other| key(other) <= own);
    }

    /// Puts a value behind the last one of which `is_before` is true, and without such a one at the front;
    /// looks from the back.
    pub fn insert_behind<T: Linked<L>>(
        &mut self,
        slab: &mut Slab<T>,
        slot: u32,
        is_before: impl Fn(&T) -> bool,
    ) {
        let mut prev = self.tail;
        while prev != NONE && !is_before(&slab[prev]) {
            prev = slab[prev].link().prev;
        }
        if prev == NONE {
            self.push_front(slab, slot);
            return;
        }
        let next = core::mem::replace(&mut slab[prev].link_mut().next, slot);
        *slab[slot].link_mut() = Link { prev, next };
        if next == NONE {
            self.tail = slot;
        } else {
            slab[next].link_mut().prev = slot;
        }
    }

    /// Takes out a value that is in this list.
    ///
    /// # Panics
    /// If an end of this list is not where the value says that it is: then it is in another list.
    pub fn remove<T: Linked<L>>(&mut self, slab: &mut Slab<T>, slot: u32) {
        let Link { prev, next } = core::mem::replace(slab[slot].link_mut(), Link::UNLINKED);
        if prev == NONE {
            assert_eq!(self.head, slot, "slot {slot} is not in this list");
            self.head = next;
        } else {
            slab[prev].link_mut().next = next;
        }
        if next == NONE {
            assert_eq!(self.tail, slot, "slot {slot} is not in this list");
            self.tail = prev;
        } else {
            slab[next].link_mut().prev = prev;
        }
    }

    /// Takes out the first value; its slot.
    pub fn pop_front<T: Linked<L>>(&mut self, slab: &mut Slab<T>) -> Option<u32> {
        let slot = self.head;
        if slot == NONE {
            return None;
        }
        self.remove(slab, slot);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    struct Item {
        link: Link,
        key: u8,
    }

    linked!(Item, (), link);

    fn slots(list: &List<()>, slab: &Slab<Item>) -> Vec<u32> {
        let found: Vec<_> = list.iter(slab).map(|(slot, _)| slot).collect();
        let mut next = list.first();
        assert!(found.iter().all(|slot| List::step(slab, &mut next) == Some(*slot)) && next == NONE);
        found
    }

    proptest! {
        #[test]
        fn behaves_as_a_deque(
            operations in proptest::collection::vec((0_u8..4, any::<prop::sample::Index>()), 0..200),
        ) {
            let mut slab = Slab::new(16);
            let mut list = List::new();
            let mut model = VecDeque::new();
            for (operation, index) in operations {
                match operation {
                    0 | 1 => {
                        let Ok(slot) = slab.insert(Item { link: Link::UNLINKED, key: 0 }) else { continue };
                        if operation == 0 {
                            list.push_back(&mut slab, slot);
                            model.push_back(slot);
                        } else {
                            list.push_front(&mut slab, slot);
                            model.push_front(slot);
                        }
                    }
                    2 => {
                        let popped = list.pop_front(&mut slab);
                        prop_assert_eq!(popped, model.pop_front());
                        if let Some(slot) = popped {
                            slab.remove(slot);
                        }
                    }
                    _ if !model.is_empty() => {
                        let slot = model.remove(index.index(model.len())).unwrap();
                        list.remove(&mut slab, slot);
                        slab.remove(slot);
                    }
                    _ => {}
                }
                prop_assert_eq!(slots(&list, &slab), model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(list.last(), model.back().copied().unwrap_or(NONE));
            }
        }
    }

    proptest! {
        #[test]
        fn keeps_the_order_of_keys(keys in proptest::collection::vec(0_u8..8, 0..50)) {
            let mut slab = Slab::new(64);
            let mut list = List::new();
            let mut model = Vec::new();
            for key in keys {
                let Ok(slot) = slab.insert(Item { link: Link::UNLINKED, key }) else { unreachable!() };
                list.insert_by_key(&mut slab, slot, |item| item.key);
                let at = model.iter().position(|&(other, _)| other > key).unwrap_or(model.len());
                model.insert(at, (key, slot));
                let expected: Vec<_> = model.iter().map(|&(_, slot)| slot).collect();
                prop_assert_eq!(slots(&list, &slab), expected);
                prop_assert_eq!(Some(list.last()), model.last().map(|&(_, slot)| slot));
            }
            // The way back is whole too.
            while let Some((_, last)) = model.pop() {
                prop_assert_eq!(list.last(), last);
                list.remove(&mut slab, last);
            }
        }
    }
}
