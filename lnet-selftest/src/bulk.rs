//! Bulk data: 8-byte words that are all the same (LNet `brw_test.c: brw_fill_page`, `brw_check_page`).

use std::cell::RefCell;
use std::collections::VecDeque;

use lnet_user::Buffer;
use lnet_wire::selftest::{Check, SINK_WORD, SOURCE_WORD};

const WORD: usize = size_of::<u64>();

/// Bytes of free sinks that are kept at most.
const FREE_BYTES_MAX: usize = 64 << 20;

/// Buffers for the data of others that are free: between two transfers, and while there is a session.
#[derive(Default)]
pub(crate) struct Sinks(RefCell<Free>);

#[derive(Default)]
struct Free {
    /// The one that was used last is the last.
    buffers: VecDeque<Buffer>,
    bytes: usize,
}

impl Sinks {
    /// A buffer of this length, filled as far as a check would look at it. One that was used last is in the
    /// caches still.
    pub(crate) fn take(&self, length: usize, check: Check) -> Buffer {
        let mut free = self.0.borrow_mut();
        let used = free.buffers.iter().rposition(|buffer| buffer.len() == length);
        let used = used.and_then(|used| free.buffers.remove(used));
        if used.is_some() {
            free.bytes -= length;
        }
        drop(free);
        let mut sink = used.unwrap_or_else(|| Buffer::zeroed(length));
        fill_sink(&mut sink, check);
        sink
    }

    /// Keeps a buffer for the next transfer; where that is too much, those go that were not used for longest.
    pub(crate) fn give_back(&self, buffer: Buffer) {
        let mut free = self.0.borrow_mut();
        free.bytes += buffer.len();
        free.buffers.push_back(buffer);
        while free.bytes > FREE_BYTES_MAX
            && let Some(oldest) = free.buffers.pop_front()
        {
            free.bytes -= oldest.len();
        }
    }

    /// Frees all of them.
    pub(crate) fn clear(&self) {
        self.0.take();
    }
}

/// A source's data.
pub(crate) fn fill_source(bytes: &mut [u8]) {
    fill(bytes, SOURCE_WORD);
}

/// Fills a sink before data comes, as far as a check would look at it.
fn fill_sink(bytes: &mut [u8], check: Check) {
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
    fn free_sinks_are_bounded_and_go_when_they_are_cleared() {
        let sinks = Sinks::default();
        for _ in 0..FREE_BYTES_MAX >> 20 {
            sinks.give_back(Buffer::zeroed(1 << 20));
        }
        sinks.give_back(Buffer::zeroed(4096));
        let kept = |sinks: &Sinks| {
            let free = sinks.0.borrow();
            assert_eq!(free.bytes, free.buffers.iter().map(|buffer| buffer.len()).sum::<usize>());
            (free.bytes, free.buffers.len())
        };
        let full = FREE_BYTES_MAX - (1 << 20);
        assert_eq!(kept(&sinks), (full + 4096, (full >> 20) + 1));
        assert_eq!(sinks.take(4096, Check::None).len(), 4096);
        assert_eq!(sinks.take(8, Check::None).len(), 8);
        assert_eq!(kept(&sinks), (full, full >> 20));
        sinks.clear();
        assert_eq!(kept(&sinks), (0, 0));
    }

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
