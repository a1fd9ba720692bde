//! The hash of all tables: seeded, so that a peer cannot aim at one bucket.
//!
//! Which bucket something is in never decides an outcome, only how long it takes to find.

use lnet_wire::Nid;

/// Words are folded in by multiplication to 128 bits, high half over low half.
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    (product as u64) ^ ((product >> 64) as u64)
}

/// A seed, prepared.
#[derive(Clone, Copy)]
pub struct Seed {
    start: u64,
    factor: u64,
}

impl Seed {
    /// Prepares a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        // Odd constants with about as many ones as zeros; the factor must not be 0.
        let start = fold(seed ^ 0x9E37_79B9_7F4A_7C15, 0xD6E8_FEB8_6659_FD93);
        Self { start, factor: fold(start ^ 0xA076_1D64_78BD_642F, 0xE703_7ED1_A0B4_28DB) | 1 }
    }

    /// Hash of a few words.
    #[must_use]
    #[inline]
    pub fn hash<const N: usize>(self, words: [u64; N]) -> u64 {
        let mut state = self.start;
        for word in words {
            state = fold(state ^ word, self.factor);
        }
        fold(state ^ self.start, 0x9FB2_1C65_1E98_DF25)
    }
}

/// A NID as three words.
#[must_use]
#[inline]
pub fn nid_words(nid: &Nid) -> [u64; 3] {
    let bytes = nid.to_bytes();
    let mut words = [0; 3];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_le_bytes(padded);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_keys_spread_under_any_seed() {
        for seed in [0, 1, u64::MAX, 0x9E37_79B9_7F4A_7C15] {
            let seed = Seed::new(seed);
            for step in [1_u64, 1 << 32, 1 << 52] {
                let mut buckets = [0_u32; 256];
                for key in 0..4096_u64 {
                    buckets[seed.hash([key.wrapping_mul(step), 4]) as usize % 256] += 1;
                }
                // 16 expected in each; 48 is eight standard deviations away.
                assert!(buckets.iter().all(|&count| count < 48), "step {step}: {buckets:?}");
            }
        }
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(Seed::new(1).hash([5]), Seed::new(2).hash([5]));
    }

    #[test]
    fn nid_words_hold_every_byte() {
        assert_eq!(nid_words(&Nid::ANY), [u64::MAX, u64::MAX, u64::from(u32::MAX)]);
    }
}
