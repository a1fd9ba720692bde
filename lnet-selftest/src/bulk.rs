//! Bulk data: 8-byte words that are all the same (LNet `brw_test.c: brw_fill_page`, `brw_check_page`).

use lnet_wire::selftest::{Check, SINK_WORD, SOURCE_WORD};

const WORD: usize = size_of::<u64>();

/// A source's data.
pub(crate) fn fill_source(bytes: &mut [u8]) {
    fill(bytes, SOURCE_WORD);
}

/// Fills a sink before data comes, as far as a check would look at it.
pub(crate) fn fill_sink(bytes: &mut [u8], check: Check) {
    match check {
        Check::Full => fill(bytes, SINK_WORD),
        Check::Simple => {
            for at in ends(bytes.len()) {
                fill(&mut bytes[at..at + WORD], SINK_WORD);
            }
        }
        Check::None | Check::Discard => {}
    }
}

fn fill(bytes: &mut [u8], word: u64) {
    for chunk in bytes.chunks_exact_mut(WORD) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
}

/// Whether data is what its source is to have written, in the byte order that its messages have.
pub(crate) fn is_right(bytes: &[u8], check: Check, is_swapped: bool) -> bool {
    let word = if is_swapped { SOURCE_WORD.to_be_bytes() } else { SOURCE_WORD.to_le_bytes() };
    match check {
        Check::None | Check::Discard => true,
        Check::Simple => ends(bytes.len()).all(|at| bytes[at..at + WORD] == word),
        Check::Full => {
            let (words, rest) = bytes.as_chunks::<WORD>();
            rest.is_empty() && words.iter().all(|found| *found == word)
        }
    }
}

/// Where the first and the last word begin.
fn ends(length_bytes: usize) -> impl Iterator<Item = usize> {
    length_bytes.checked_sub(WORD).into_iter().flat_map(|last| [0, last])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_looks_at_its_words() {
        let mut source = vec![0; 64];
        fill_source(&mut source);
        for check in [Check::None, Check::Simple, Check::Full, Check::Discard] {
            assert!(is_right(&source, check, false), "{check:?}");
            let mut sink = vec![0; 64];
            fill_sink(&mut sink, check);
            assert_eq!(is_right(&sink, check, false), matches!(check, Check::None | Check::Discard));
        }
        let swapped: Vec<u8> = source.chunks(WORD).flat_map(|word| word.iter().rev().copied()).collect();
        assert!(is_right(&swapped, Check::Full, true) && !is_right(&swapped, Check::Full, false));
        source[33] ^= 1;
        assert!(is_right(&source, Check::Simple, false) && !is_right(&source, Check::Full, false));
        source[63] ^= 1;
        assert!(!is_right(&source, Check::Simple, false));
    }
}
