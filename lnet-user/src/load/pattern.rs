//! The bytes of the load: a function of a key and the offset.
//!
//! Invariant: a byte can be told without those before it.

use super::report::Difference;

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A well mixed function of 64 bits, one to one (the finalizer of SplitMix64).
pub(super) const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(STEP);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

/// What the bytes follow from, besides their offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pattern(u64);

impl Pattern {
    /// The pattern of these numbers.
    pub(super) const fn of(seed: u64, number: u64, salt: u64) -> Self {
        Self(mix(mix(seed ^ salt) ^ number))
    }

    const fn word(self, index: u64) -> [u8; 8] {
        let value = (self.0.wrapping_add(index.wrapping_mul(STEP))).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (value ^ value >> 32).to_le_bytes()
    }

    /// Bytes from `offset` to the next multiple of 8 are the tail of a word.
    const fn head_bytes(offset: u64, length: usize) -> usize {
        let to_word = (8 - offset % 8) as usize % 8;
        if to_word < length { to_word } else { length }
    }

    /// Writes what stands at `offset` and behind.
    pub(super) fn fill(self, offset: u64, bytes: &mut [u8]) {
        let (head, body) = bytes.split_at_mut(Self::head_bytes(offset, bytes.len()));
        let tail = (offset % 8) as usize;
        head.copy_from_slice(&self.word(offset / 8)[tail..][..head.len()]);
        for (index, chunk) in (offset.div_ceil(8)..).zip(body.chunks_mut(8)) {
            chunk.copy_from_slice(&self.word(index)[..chunk.len()]);
        }
    }

    /// The first byte that is not as [`Pattern::fill`] writes it; its offset counts from the start of `bytes`.
    pub(super) fn check(self, offset: u64, bytes: &[u8]) -> Option<Difference> {
        let (head, body) = bytes.split_at(Self::head_bytes(offset, bytes.len()));
        let tail = (offset % 8) as usize;
        let mut position = 0;
        let expected = &self.word(offset / 8)[tail..][..head.len()];
        if head != expected {
            return differing(position, expected, head);
        }
        position += head.len();
        let (words, rest) = body.as_chunks::<8>();
        for (index, found) in (offset.div_ceil(8)..).zip(words) {
            let expected = self.word(index);
            if *found != expected {
                return differing(position, &expected, found);
            }
            position += 8;
        }
        let last = self.word(offset.div_ceil(8) + words.len() as u64);
        differing(position, &last[..rest.len()], rest)
    }
}

fn differing(start: usize, expected: &[u8], found: &[u8]) -> Option<Difference> {
    let mut pairs = expected.iter().zip(found).enumerate();
    let (position, (expected, found)) = pairs.find(|(_, (expected, found))| expected != found)?;
    let offset_bytes = (start + position) as u64;
    Some(Difference { offset_bytes, expected: u64::from(*expected), found: u64::from(*found) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_part_is_as_it_is_in_the_whole(key: u64, offset in 0..40_usize, length in 0..80_usize) {
            let pattern = Pattern(key);
            let mut whole = [0; 120];
            pattern.fill(0, &mut whole);
            let mut part = vec![0; length];
            pattern.fill(offset as u64, &mut part);
            prop_assert_eq!(&part[..], &whole[offset..offset + length]);
            prop_assert_eq!(pattern.check(offset as u64, &part), None);
        }

        #[test]
        fn each_wrong_byte_is_found(key: u64, offset in 0..40_u64, length in 1..80_usize, at: prop::sample::Index) {
            let pattern = Pattern(key);
            let mut bytes = vec![0; length];
            pattern.fill(offset, &mut bytes);
            let at = at.index(length);
            let expected = u64::from(bytes[at]);
            bytes[at] ^= 0x40;
            let found = u64::from(bytes[at]);
            prop_assert_eq!(
                pattern.check(offset, &bytes),
                Some(Difference { offset_bytes: at as u64, expected, found })
            );
        }
    }

    #[test]
    fn other_numbers_seeds_and_places_have_other_bytes() {
        let mut bytes = [0; 64];
        Pattern::of(1, 2, 3).fill(0, &mut bytes);
        for (other, offset) in [
            (Pattern::of(2, 2, 3), 0),
            (Pattern::of(1, 3, 3), 0),
            (Pattern::of(1, 2, 4), 0),
            (Pattern::of(1, 2, 3), 8),
        ] {
            let Some(difference) = other.check(offset, &bytes) else { panic!("{other:?} at {offset}") };
            assert!(difference.offset_bytes < 4, "{difference:?}");
        }
    }
}
