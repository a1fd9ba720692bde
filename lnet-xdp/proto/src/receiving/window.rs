//! What a receiver remembers: which messages it has had, and which frames.

use crate::contract::WINDOW_IDS;

/// Which messages of one sending shard have been here.
///
/// Invariant: ids below `base` count as seen, whatever was remembered of them.
pub(crate) struct Window {
    base: u64,
    bits: [u64; (WINDOW_IDS / 64) as usize],
}

/// What a window says of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    New,
    Old,
    /// The sender has not moved the window that far.
    Beyond,
}

impl Window {
    pub(crate) const fn new() -> Self {
        Self { base: 0, bits: [0; (WINDOW_IDS / 64) as usize] }
    }

    /// Forgets everything.
    pub(crate) fn restart(&mut self, base: u64) {
        self.base = base;
        self.bits.fill(0);
    }

    /// The oldest id that its sender may still be sending.
    pub(crate) const fn base(&self) -> u64 {
        self.base
    }

    /// Moves the window on: ids below `base` will not come any more. Never goes back.
    pub(crate) fn advance(&mut self, base: u64) {
        if base <= self.base {
            return;
        }
        if base - self.base >= WINDOW_IDS {
            return self.restart(base);
        }
        // Whole words at once, the ends bit by bit.
        let mut id = self.base;
        while id < base {
            if id.is_multiple_of(64) && base - id >= 64 {
                self.bits[position_of(id).0] = 0;
                id += 64;
            } else {
                let (word, bit) = position_of(id);
                self.bits[word] &= !bit;
                id += 1;
            }
        }
        self.base = base;
    }

    #[inline]
    pub(crate) fn look(&self, id: u64) -> Seen {
        let Some(distance) = id.checked_sub(self.base) else { return Seen::Old };
        if distance >= WINDOW_IDS {
            return Seen::Beyond;
        }
        let (word, bit) = position_of(id);
        if self.bits[word] & bit == 0 { Seen::New } else { Seen::Old }
    }

    /// Remembers an id that lies in the window.
    #[inline]
    pub(crate) fn mark(&mut self, id: u64) {
        if self.look(id) == Seen::New {
            let (word, bit) = position_of(id);
            self.bits[word] |= bit;
        }
    }
}

#[inline]
const fn position_of(id: u64) -> (usize, u64) {
    (((id % WINDOW_IDS) / 64) as usize, 1 << (id % 64))
}

/// Which frames of one sending shard have been here: the highest, and the 64 below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FramesSeen {
    pub(crate) highest: u32,
    /// Bit n: the frame n + 1 below.
    pub(crate) below: u64,
}

impl FramesSeen {
    pub(crate) const fn starting_with(number: u32) -> Self {
        Self { highest: number, below: 0 }
    }

    /// Whether this frame is known to have been here.
    #[inline]
    pub(crate) const fn contains(&self, number: u32) -> bool {
        match self.highest.wrapping_sub(number) {
            0 => true,
            distance @ 1..=64 => self.below >> (distance - 1) & 1 != 0,
            _ => false,
        }
    }

    /// Whether this frame and all that are remembered do not fit together.
    pub(crate) const fn is_apart(&self, number: u32) -> bool {
        let ahead = number.wrapping_sub(self.highest) as i32;
        match ahead {
            65.. | ..=-65 => true,
            1..=64 => self.below.leading_zeros() < ahead as u32,
            _ => false,
        }
    }

    /// Whether a frame is so old that nothing is known of it.
    pub(crate) const fn has_forgotten(&self, number: u32) -> bool {
        let distance = self.highest.wrapping_sub(number);
        distance > 64 && distance < 1 << 31
    }

    /// Remembers a frame, if it is not too far below the highest; says whether some before it is missing.
    #[inline]
    pub(crate) const fn insert(&mut self, number: u32) -> bool {
        let ahead = number.wrapping_sub(self.highest);
        if ahead == 0 {
            return false;
        }
        if (ahead as i32) < 0 {
            let distance = self.highest.wrapping_sub(number);
            if distance <= 64 {
                self.below |= 1 << (distance - 1);
            }
            return true;
        }
        self.below = match ahead {
            1..=63 => self.below << ahead | 1 << (ahead - 1),
            64 => 1 << 63,
            _ => 0,
        };
        self.highest = number;
        ahead != 1
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_window_is_a_set_with_a_moving_end(
            start in any::<u32>(),
            steps in proptest::collection::vec((0..5000_u64, 0..3_u8), 1..200),
        ) {
            let mut window = Window::new();
            window.restart(u64::from(start));
            let mut base = u64::from(start);
            let mut seen = BTreeSet::new();
            for (distance, what) in steps {
                let id = base + distance;
                if what == 0 {
                    base += distance / 3;
                    window.advance(base);
                    window.advance(base.saturating_sub(distance));
                }
                let expected = if id >= base + WINDOW_IDS {
                    Seen::Beyond
                } else if id < base || seen.contains(&id) {
                    Seen::Old
                } else {
                    Seen::New
                };
                prop_assert_eq!(window.look(id), expected);
                if what == 1 && expected == Seen::New {
                    window.mark(id);
                    seen.insert(id);
                }
                prop_assert_eq!(window.base(), base);
            }
        }

        #[test]
        fn frames_near_the_highest_are_remembered(
            start in any::<u32>(),
            steps in proptest::collection::vec(-100_i64..100, 1..300),
        ) {
            let mut frames = FramesSeen::starting_with(start);
            let mut seen = BTreeSet::from([0_i64]);
            let mut highest = 0;
            for step in steps {
                let number = highest + step;
                let wire = start.wrapping_add(number as u32);
                if highest - number <= 64 {
                    prop_assert_eq!(frames.contains(wire), seen.contains(&number), "{} of {}", number, highest);
                    seen.insert(number);
                } else {
                    prop_assert!(!frames.contains(wire));
                }
                let apart = highest - number > 64 || seen.range(..number - 64).next().is_some();
                prop_assert_eq!(frames.is_apart(wire), apart, "{} and {:?}", number, seen);
                let gap = frames.insert(wire);
                prop_assert_eq!(gap, number < highest || number > highest + 1);
                highest = highest.max(number);
                // What falls behind is forgotten.
                seen.retain(|number| highest - number <= 64);
                prop_assert_eq!(frames.highest, start.wrapping_add(highest as u32));
            }
        }
    }
}
