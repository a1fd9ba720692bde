//! Buffers of memory descriptors: where a shard's payload bytes are.
//!
//! A [`Buffer`] is lent by value when a descriptor is attached or bound, and comes home with the event
//! that carries the descriptor's unlinked mark. In between only the shard's drivers write to it.

use std::ops::{Deref, DerefMut, Range};

use lnet_core::handle::MdHandle;
use lnet_core::lnd::Span;

/// An owned run of payload bytes.
#[derive(PartialEq, Eq, Default)]
pub struct Buffer(Box<[u8]>);

impl Buffer {
    /// A buffer of `length_bytes` zero bytes.
    #[must_use]
    pub fn zeroed(length_bytes: usize) -> Self {
        Self(vec![0; length_bytes].into_boxed_slice())
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into_boxed_slice())
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.0.len())
    }
}

/// What a descriptor has lent, or had: the event that brings it home may wait in its queue while the slot
/// has a new descriptor.
#[derive(Debug)]
struct Loan {
    md: MdHandle,
    buffer: Buffer,
    /// Whether an event will bring it home. Without an event queue it is freed when the slot is reused.
    comes_home: bool,
}

/// The buffers that a shard's memory descriptors hold, by slot of their handle.
#[derive(Debug)]
pub struct Memory {
    loans: Vec<Option<Loan>>,
    /// Loans of descriptors whose slot was reused before their last event was taken; no more than there
    /// are events.
    ended: Vec<Loan>,
}

impl Memory {
    /// Room for the buffers of `descriptors` memory descriptors.
    #[must_use]
    pub fn new(descriptors: u32) -> Self {
        Self { loans: (0..descriptors).map(|_| None).collect(), ended: Vec::new() }
    }

    /// Takes the buffer of a descriptor that was just made; `comes_home` if it has an event queue.
    pub(crate) fn lend(&mut self, md: MdHandle, buffer: Buffer, comes_home: bool) {
        let loan = Loan { md, buffer, comes_home };
        let former = self.loans[md.0.slot() as usize].replace(loan);
        self.ended.extend(former.filter(|loan| loan.comes_home));
    }

    /// Gives the buffer of a descriptor back whose last event has been taken.
    pub(crate) fn give_back(&mut self, md: MdHandle) -> Option<Buffer> {
        let loan = self.loans[md.0.slot() as usize].take_if(|loan| loan.md == md);
        let ended = || {
            let place = self.ended.iter().position(|loan| loan.md == md)?;
            Some(self.ended.swap_remove(place))
        };
        Some(loan.or_else(ended)?.buffer)
    }

    /// The bytes of a span.
    ///
    /// # Panics
    /// If the descriptor has no buffer or the span leaves it: spans come from the shard, which checked
    /// them against the descriptor's length.
    #[inline]
    #[must_use]
    pub fn bytes(&self, span: &Span) -> &[u8] {
        let current = self.loans[span.md.0.slot() as usize].as_ref();
        let loan = current.filter(|loan| loan.md == span.md);
        let ended = || self.ended.iter().find(|loan| loan.md == span.md);
        &loan.or_else(ended).expect(NO_LOAN).buffer[range(span)]
    }

    /// The bytes of a span, to be written.
    ///
    /// # Panics
    /// As [`Memory::bytes`].
    #[inline]
    #[must_use]
    pub fn bytes_mut(&mut self, span: &Span) -> &mut [u8] {
        // Only a descriptor that still lives is written to, and that one has its slot.
        let current = self.loans[span.md.0.slot() as usize].as_mut();
        let loan = current.filter(|loan| loan.md == span.md);
        &mut loan.expect(NO_LOAN).buffer[range(span)]
    }
}

/// A shard's span for a descriptor that has no buffer is a programming error.
const NO_LOAN: &str = "a span names a descriptor that holds a buffer";

/// A buffer lies in memory, so an offset into it fits a `usize`.
#[inline]
fn range(span: &Span) -> Range<usize> {
    let start = usize::try_from(span.offset_bytes).expect("an offset within a buffer fits the address space");
    start..start + span.length_bytes as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use lnet_core::handle::{Cookie, Kind, ShardId};

    fn md(slot: u32, generation: u32) -> MdHandle {
        MdHandle(Cookie::new(Kind::MemoryDesc, ShardId(0), slot, generation))
    }

    fn buffer(byte: u8) -> Buffer {
        Buffer::from(vec![byte; 4])
    }

    #[test]
    fn a_buffer_whose_event_waits_survives_the_reuse_of_its_slot() {
        let mut memory = Memory::new(2);
        memory.lend(md(1, 1), buffer(1), true);
        memory.lend(md(1, 2), buffer(2), true);
        assert_eq!(memory.bytes(&Span { md: md(1, 2), offset_bytes: 1, length_bytes: 2 }), [2, 2]);
        // An event of the former descriptor is being looked at while its last one waits.
        assert_eq!(memory.bytes(&Span { md: md(1, 1), offset_bytes: 0, length_bytes: 3 }), [1, 1, 1]);
        assert_eq!(memory.give_back(md(1, 1)), Some(buffer(1)));
        assert_eq!(memory.give_back(md(1, 1)), None);
        assert_eq!(memory.give_back(md(1, 2)), Some(buffer(2)));
    }

    #[test]
    fn a_buffer_without_events_is_freed_with_its_slot() {
        let mut memory = Memory::new(1);
        memory.lend(md(0, 1), buffer(1), false);
        memory.lend(md(0, 2), buffer(2), true);
        assert_eq!(memory.give_back(md(0, 1)), None);
        assert!(memory.ended.is_empty());
    }

    #[test]
    #[should_panic(expected = "holds a buffer")]
    fn a_stale_span_is_a_programming_error() {
        let mut memory = Memory::new(1);
        memory.lend(md(0, 2), buffer(2), true);
        let _ = memory.bytes(&Span { md: md(0, 1), offset_bytes: 0, length_bytes: 1 });
    }
}
