//! Names of passive buffers: numbers that no peer can guess, which bulk descriptors carry.
//!
//! Invariants: no two passive buffers of a transfer machine have the same lower bits in their names, by which
//! lnet tells them apart; no name has them all zero, which stands for receive buffers there.

use std::collections::hash_map::Entry;

use lnet_user::random;

use crate::errno::{Errno, Error};
use crate::queue::ByNumber;

/// The lower bits of a name: no two that live have the same.
pub(crate) const NAME_MASK: u64 = (1 << 52) - 1;
/// Names that the kernel is asked for at once.
const DRAWN_AT_ONCE: usize = 16;

/// The names of a transfer machine's passive buffers that live.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Numbers of the buffers' uses, by the lower bits of their names.
    by_low_bits: ByNumber<u64>,
    /// Random numbers that no buffer has had.
    drawn: Vec<u64>,
}

impl Names {
    /// A name for a use of a passive buffer.
    ///
    /// # Errors
    /// `EIO` where the kernel gives no random numbers.
    pub(crate) fn give(&mut self, number: u64) -> Result<u64, Error> {
        loop {
            let name = self.draw()?;
            if self.claim(name, number) {
                return Ok(name);
            }
        }
    }

    fn draw(&mut self) -> Result<u64, Error> {
        let none = |why: String| Error::new(Errno::Io, why);
        if self.drawn.is_empty() {
            let bytes: [u8; 8 * DRAWN_AT_ONCE] = random::bytes().map_err(|error| none(error.to_string()))?;
            self.drawn.extend(bytes.as_chunks().0.iter().copied().map(u64::from_ne_bytes));
        }
        self.drawn.pop().ok_or_else(|| none("no random number: one is expected of the kernel".to_owned()))
    }

    /// Whether the name may serve, and does from now on.
    fn claim(&mut self, name: u64, number: u64) -> bool {
        let low_bits = name & NAME_MASK;
        match self.by_low_bits.entry(low_bits) {
            Entry::Vacant(free) if low_bits != 0 => {
                free.insert(number);
                true
            }
            Entry::Vacant(_) | Entry::Occupied(_) => false,
        }
    }

    /// The number of the use that may have this name: the upper bits are the caller's to compare.
    pub(crate) fn number_of(&self, name: u64) -> Option<u64> {
        self.by_low_bits.get(&(name & NAME_MASK)).copied()
    }

    /// Forgets the name of a use that has ended.
    pub(crate) fn forget(&mut self, name: u64) {
        self.by_low_bits.remove(&(name & NAME_MASK));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_live_buffers_differ_and_none_is_zero() {
        let mut names = Names::default();
        assert!(!names.claim(0, 1) && !names.claim(1 << 52, 1), "receive buffers have 0");
        assert!(names.claim(7, 1));
        assert!(!names.claim(7, 2) && !names.claim(7 | 1 << 63, 2), "one that lives has these bits");
        assert_eq!((names.number_of(7), names.number_of(8)), (Some(1), None));
        names.forget(7);
        assert!(names.claim(7, 2));
    }

    /// Names are drawn one after the other: each bit is set in about half of them, and no difference comes
    /// twice.
    #[test]
    fn a_name_says_nothing_of_the_next_one() {
        const COUNT: usize = 4096;
        let mut names = Names::default();
        let given: Vec<u64> = (0..COUNT as u64).map(|number| names.give(number).unwrap()).collect();
        for bit in 0..64 {
            let set = given.iter().filter(|name| *name >> bit & 1 == 1).count();
            assert!((COUNT / 2 - 400..COUNT / 2 + 400).contains(&set), "bit {bit} is set in {set}");
        }
        let mut steps: Vec<u64> = given.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        steps.sort_unstable();
        steps.dedup();
        assert_eq!(steps.len(), COUNT - 1);
    }
}
