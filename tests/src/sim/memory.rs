//! What the descriptors of a node lend: buffers to be written, and patterns to be read.
//!
//! Invariants: each byte that is sent is a function of a seed and its offset, so what arrives can be checked
//! without having kept it; a span of a descriptor that has ended is a failure.

use std::collections::BTreeMap;
use std::ops::Range;

use lnet_core::handle::{BufferHandle, BufferRef, MdHandle};
use lnet_core::lnd::Span;

/// What a descriptor has lent.
pub(super) enum Region {
    /// Bytes that follow from this seed.
    Source(u64),
    /// Bytes to be written; whether spans of different messages may overlap.
    Sink { bytes: Vec<u8>, overlaps: bool },
}

/// The regions of a node's descriptors, and the buffers of a router.
#[derive(Default)]
pub(super) struct Memory {
    regions: BTreeMap<MdHandle, Region>,
    /// Buffers of a router, and where each lies.
    buffers: BTreeMap<BufferRef, usize>,
    bytes_of_buffers: Vec<Vec<u8>>,
}

/// Eight bytes of a pattern.
#[inline]
fn word(seed: u64, index: u64) -> [u8; 8] {
    let value = (seed ^ index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (value ^ value >> 29).to_le_bytes()
}

/// Appends a part of a pattern.
pub(super) fn append_pattern(seed: u64, offset: u64, length: u32, bytes: &mut Vec<u8>) {
    let (first, end) = (offset / 8, (offset + u64::from(length)).div_ceil(8));
    let start = bytes.len();
    bytes.extend((first..end).flat_map(|index| word(seed, index)));
    let skip = (offset % 8) as usize;
    if skip != 0 {
        bytes.copy_within(start + skip.., start);
    }
    bytes.truncate(start + length as usize);
}

/// Where bytes first differ from a part of a pattern.
pub(super) fn differs(seed: u64, offset: u64, bytes: &[u8]) -> Option<usize> {
    if offset.is_multiple_of(8) {
        let (words, rest) = bytes.as_chunks::<8>();
        let first = offset / 8;
        if let Some(at) = words.iter().zip(first..).position(|(found, index)| *found != word(seed, index)) {
            return Some(at * 8);
        }
        let last = word(seed, first + words.len() as u64);
        return (rest != &last[..rest.len()]).then_some(words.len() * 8);
    }
    let mut expected = Vec::new();
    append_pattern(seed, offset, bytes.len() as u32, &mut expected);
    expected.iter().zip(bytes).position(|(expected, found)| expected != found)
}

/// Where a span is in its buffer.
fn range(span: &Span) -> Range<usize> {
    let start = span.offset_bytes as usize;
    start..start + span.length_bytes as usize
}

impl Memory {
    pub(super) fn lend(&mut self, md: MdHandle, region: Region) {
        self.regions.insert(md, region);
    }

    /// There is a buffer for messages of other nodes, which lies where another one does if it is `shared`.
    pub(super) fn provide(&mut self, buffer: BufferHandle, length_bytes: usize, shared: bool) {
        let mut others = self.bytes_of_buffers.iter();
        let other = others.position(|bytes| shared && bytes.len() == length_bytes);
        let at = other.unwrap_or_else(|| {
            self.bytes_of_buffers.push(vec![0; length_bytes]);
            self.bytes_of_buffers.len() - 1
        });
        self.buffers.insert(buffer.into(), at);
    }

    /// The descriptor has had its last event.
    pub(super) fn end(&mut self, md: MdHandle) -> Option<Region> {
        self.regions.remove(&md)
    }

    pub(super) fn get(&self, md: MdHandle) -> Option<&Region> {
        self.regions.get(&md)
    }

    /// The descriptors that have not ended.
    pub(super) fn living(&self) -> impl Iterator<Item = MdHandle> {
        self.regions.keys().copied()
    }

    /// Appends what a span holds; `false` if there is none.
    pub(super) fn read(&self, span: &Span, bytes: &mut Vec<u8>) -> bool {
        if let Some(at) = self.buffers.get(&span.buffer) {
            bytes.extend_from_slice(&self.bytes_of_buffers[*at][range(span)]);
            return true;
        }
        match span.buffer.md().and_then(|md| self.regions.get(&md)) {
            Some(Region::Source(seed)) => {
                append_pattern(*seed, span.offset_bytes, span.length_bytes, bytes);
                true
            }
            // Content that was put there: it is not checked.
            Some(Region::Sink { bytes: sink, .. }) => {
                bytes.extend_from_slice(&sink[range(span)]);
                true
            }
            None => false,
        }
    }

    /// The bytes of a span to be written; `None` if its descriptor has ended, or is not to be written.
    pub(super) fn bytes_mut(&mut self, span: &Span) -> Option<&mut [u8]> {
        if let Some(at) = self.buffers.get(&span.buffer) {
            return self.bytes_of_buffers[*at].get_mut(range(span));
        }
        let Some(Region::Sink { bytes, .. }) = self.regions.get_mut(&span.buffer.md()?) else { return None };
        bytes.get_mut(range(span))
    }

    /// The bytes of a span that was written.
    pub(super) fn bytes(&self, span: &Span) -> Option<&[u8]> {
        if let Some(at) = self.buffers.get(&span.buffer) {
            return self.bytes_of_buffers[*at].get(range(span));
        }
        let Some(Region::Sink { bytes, .. }) = self.regions.get(&span.buffer.md()?) else { return None };
        bytes.get(range(span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_pattern_are_what_they_are_in_the_whole() {
        let mut whole = Vec::new();
        append_pattern(7, 0, 1000, &mut whole);
        for (offset, length) in [(0, 1000), (64, 64), (3, 100), (999, 1), (16, 13), (5, 0)] {
            let mut part = Vec::new();
            append_pattern(7, offset as u64, length as u32, &mut part);
            assert_eq!(part, whole[offset..offset + length]);
            assert_eq!(differs(7, offset as u64, &part), None);
            if let Some(last) = part.last_mut() {
                *last ^= 1;
                assert_eq!(differs(7, offset as u64, &part).map(|at| at / 8 * 8), Some((length - 1) / 8 * 8));
            }
        }
    }
}
