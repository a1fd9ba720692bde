//! The bytes of the load: a function of a key and the offset.
//!
//! Invariant: a byte can be told without those before it.

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
const FACTOR: u64 = 0xD6E8_FEB8_6659_FD93;
/// A value of a payload that differs from the expected one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Offset of the byte in the payload; 0 where no byte is meant.
    pub offset_bytes: u64,
    /// The value that was sent.
    pub expected: u64,
    /// The value that arrived.
    pub found: u64,
}

/// Words that are checked together.
const BLOCK_WORDS: usize = 32;

/// A well mixed function of 64 bits, one to one (the finalizer of SplitMix64).
pub(super) const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(STEP);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

/// A rule for the bytes of a payload: each follows from the pattern and its offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern(u64);

impl Pattern {
    /// The pattern of these numbers.
    #[must_use]
    pub const fn of(seed: u64, number: u64, salt: u64) -> Self {
        Self(mix(mix(seed ^ salt) ^ number).wrapping_mul(FACTOR))
    }

    /// Words follow each other by an addition, so that one instruction makes several of them.
    const fn word(self, index: u64) -> [u8; 8] {
        let value = self.0.wrapping_add(index.wrapping_mul(STEP.wrapping_mul(FACTOR)));
        (value ^ value >> 32).to_le_bytes()
    }

    /// Bytes from `offset` to the next multiple of 8 are the tail of a word.
    const fn head_bytes(offset: u64, length: usize) -> usize {
        let to_word = (8 - offset % 8) as usize % 8;
        if to_word < length { to_word } else { length }
    }

    /// Writes what stands at `offset` and behind.
    pub fn fill(self, offset: u64, bytes: &mut [u8]) {
        let (head, body) = bytes.split_at_mut(Self::head_bytes(offset, bytes.len()));
        let tail = (offset % 8) as usize;
        head.copy_from_slice(&self.word(offset / 8)[tail..][..head.len()]);
        let first = offset.div_ceil(8);
        let (words, rest) = body.as_chunks_mut::<8>();
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.word(first + index as u64);
        }
        rest.copy_from_slice(&self.word(first + words.len() as u64)[..rest.len()]);
    }

    /// The first byte that is not as [`Pattern::fill`] writes it; its offset counts from the start of
    /// `bytes`.
    #[must_use]
    pub fn check(self, offset: u64, bytes: &[u8]) -> Option<Difference> {
        let (head, body) = bytes.split_at(Self::head_bytes(offset, bytes.len()));
        let tail = (offset % 8) as usize;
        if let Some(difference) = differing(0, &self.word(offset / 8)[tail..][..head.len()], head) {
            return Some(difference);
        }
        let first = offset.div_ceil(8);
        let (words, rest) = body.as_chunks::<8>();
        // The differences of a block are gathered before they are looked at, so that a word costs no branch.
        let (mut blocks, mut index) = (words.chunks(BLOCK_WORDS), 0);
        let wrong = blocks.find(|block| {
            let differences = (first + index..).zip(*block).fold(0, |differences, (index, found)| {
                differences | u64::from_ne_bytes(self.word(index)) ^ u64::from_ne_bytes(*found)
            });
            index += if differences == 0 { block.len() as u64 } else { 0 };
            differences != 0
        });
        for (index, found) in (index..).zip(wrong.unwrap_or_default()) {
            let position = head.len() + 8 * index as usize;
            if let Some(difference) = differing(position, &self.word(first + index), found) {
                return Some(difference);
            }
        }
        let last = self.word(first + words.len() as u64);
        differing(head.len() + 8 * words.len(), &last[..rest.len()], rest)
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

    /// Beyond a block, whose words are checked together.
    #[test]
    fn a_wrong_byte_is_found_wherever_it_is() {
        let (pattern, offset) = (Pattern(7), 3);
        let mut bytes = vec![0; 5 + 8 * (2 * BLOCK_WORDS + 3) + 6];
        pattern.fill(offset, &mut bytes);
        assert_eq!(pattern.check(offset, &bytes), None);
        for at in 0..bytes.len() {
            bytes[at] ^= 0x40;
            let found = pattern.check(offset, &bytes).map(|difference| difference.offset_bytes);
            assert_eq!(found, Some(at as u64));
            bytes[at] ^= 0x40;
        }
    }

    /// A MiB is filled and checked in some tens of microseconds by a program that is optimised.
    #[cfg(not(debug_assertions))]
    #[test]
    fn payload_goes_by_words() {
        let (pattern, mut bytes) = (Pattern(7), vec![0; 1 << 20]);
        let mut best = [std::time::Duration::MAX; 2];
        for _ in 0..100 {
            let begun = std::time::Instant::now();
            pattern.fill(0, &mut bytes);
            best[0] = best[0].min(begun.elapsed());
            let begun = std::time::Instant::now();
            assert_eq!(pattern.check(0, std::hint::black_box(&bytes)), None);
            best[1] = best[1].min(begun.elapsed());
        }
        assert!(best.iter().all(|time| time.as_micros() < 250), "filled and checked in {best:?}");
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
