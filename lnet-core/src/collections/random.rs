//! Random numbers of fault rules and tests: the same ones for the same seed, for ever.

use super::hash::Seed;

/// A stream of numbers.
pub struct Random {
    seed: Seed,
    drawn: u64,
}

impl Random {
    /// The numbers that follow from a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed: Seed::new(seed), drawn: 0 }
    }

    /// The next number, below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.drawn = self.drawn.wrapping_add(1);
        let number = self.seed.hash([self.drawn]);
        // The high half of the product is below `bound`.
        ((u128::from(number) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn numbers_spread_and_follow_from_the_seed() {
        for bound in [1, 2, 3, 7, 64] {
            let mut random = Random::new(bound);
            let mut counts = [0_u64; 64];
            for _ in 0..bound * 1000 {
                counts[random.below(bound) as usize] += 1;
            }
            // 1000 expected of each; 200 is more than six standard deviations.
            assert!(counts[..bound as usize].iter().all(|count| count.abs_diff(1000) < 200), "{counts:?}");
        }
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..8).map(|_| random.below(u64::MAX)).collect::<Vec<_>>()
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
        assert_eq!(Random::new(5).below(0), 0);
    }
}
