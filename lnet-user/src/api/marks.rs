//! Event queues of a shard that are to be looked at, as their consumers say on any thread.
//!
//! Invariant: a mark is set after what it tells of has happened, and taken before the queue is looked at, so
//! that none is lost. One that is taken may have been taken before.

use std::sync::atomic::{AtomicU64, Ordering};

/// A bit for each queue, and one for each word of them, so that a look at all costs little where there are
/// thousands.
#[derive(Debug)]
pub(super) struct Marks {
    words: Box<[AtomicU64]>,
    groups: Box<[AtomicU64]>,
}

/// The position of a bit.
const fn position(bit: u32) -> (usize, u64) {
    ((bit / u64::BITS) as usize, 1 << (bit % u64::BITS))
}

/// The bits that are set, which are taken away.
fn take(word: &AtomicU64) -> impl Iterator<Item = u32> + use<> {
    // Most times there is none.
    let mut bits = if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Acquire) };
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(bit)
    })
}

impl Marks {
    /// Marks of so many queues.
    pub(super) fn new(queues: u32) -> Self {
        let words = queues.div_ceil(u64::BITS);
        let zeros = |count: u32| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { words: zeros(words), groups: zeros(words.div_ceil(u64::BITS)) }
    }

    /// Marks the queue in a slot.
    pub(super) fn set(&self, slot: u32) {
        let (word, bit) = position(slot);
        self.words[word].fetch_or(bit, Ordering::Release);
        let (group, bit) = position(slot / u64::BITS);
        self.groups[group].fetch_or(bit, Ordering::Release);
    }

    /// Whether a queue may be marked.
    pub(super) fn any(&self) -> bool {
        self.groups.iter().any(|group| group.load(Ordering::Acquire) != 0)
    }

    /// Takes all marks.
    pub(super) fn take(&self, mut marked: impl FnMut(u32)) {
        for (group, words) in (0..).zip(&self.groups) {
            for word in take(words).map(|bit| group * u64::BITS + bit) {
                take(&self.words[word as usize]).for_each(|bit| marked(word * u64::BITS + bit));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::Marks;

    proptest! {
        #[test]
        fn what_is_marked_is_taken_once(
            rounds in proptest::collection::vec(proptest::collection::btree_set(0_u32..9000, 0..20), 0..5),
        ) {
            let marks = Marks::new(9000);
            for round in rounds {
                round.iter().for_each(|slot| marks.set(*slot));
                prop_assert_eq!(marks.any(), !round.is_empty());
                let (mut taken, mut count) = (BTreeSet::new(), 0);
                marks.take(|slot| {
                    taken.insert(slot);
                    count += 1;
                });
                prop_assert_eq!((count, &taken), (round.len(), &round));
                prop_assert!(!marks.any());
            }
        }
    }

    #[test]
    fn no_mark_of_another_thread_is_lost() {
        const ROUNDS: u64 = 20_000;
        let marks = Marks::new(100);
        let told = [70_u32, 71].map(|slot| (slot, std::sync::atomic::AtomicU64::new(0)));
        std::thread::scope(|scope| {
            for (slot, count) in &told {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        count.fetch_add(1, super::Ordering::Relaxed);
                        marks.set(*slot);
                    }
                });
            }
            // The last mark of each tells of all that its thread has counted.
            let mut seen = [0; 2];
            while seen != [ROUNDS; 2] {
                marks.take(|slot| {
                    let index = (slot - 70) as usize;
                    seen[index] = told[index].1.load(super::Ordering::Relaxed);
                });
            }
        });
    }
}
