//! Buffers that the kernel receives into: it takes them from a ring that both sides map.
//!
//! Invariant: a buffer is in the ring, in a completion that was not taken yet, or in one or more [`Buffer`]s,
//! which name its ring. With the last of them it comes back into the ring.

use core::mem::size_of;
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use io_uring::types::BufRingEntry;
use io_uring::{IoUring, Submitter};
use rustix::io;

use super::memory::Slots;
use crate::epoll::{Spare, Supply};

/// The group that all receives of a ring take their buffers from.
pub(super) const GROUP: u16 = 0;

/// A buffer that the kernel has filled. It cannot be copied; give it back, or it is never used again.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "it is to be given back"]
pub(super) struct Buffer {
    index: u16,
    of: NonZeroU32,
}

/// The buffers and their ring.
pub(super) struct Buffers {
    /// The ring; its entry 0 holds the tail where others have reserved bytes (`struct io_uring_buf_ring`).
    ring: Slots,
    slots: Slots,
    count: u16,
    tail: u16,
    /// The first buffer of the ring, where the kernel does not take them itself.
    head: u16,
    /// Buffers that are in the ring, or in a completion.
    with_kernel: u16,
    /// Tokens of each buffer, besides the first.
    shares: Box<[u16]>,
    /// A number that tells them from the buffers of other rings.
    id: NonZeroU32,
}

static NEXT_ID: AtomicU32 = AtomicU32::new(1);

impl Buffers {
    /// `count` buffers of `bytes`, a power of two, all of them in the ring.
    pub(super) fn new(count: u16, bytes: usize) -> io::Result<Self> {
        let ring = Slots::new(1, usize::from(count) * size_of::<BufRingEntry>())?;
        let slots = Slots::new(usize::from(count), bytes)?;
        // Zero after a wrap: no number is given twice.
        let next = |id: u32| (id != 0).then(|| id.wrapping_add(1));
        let id = NEXT_ID.try_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(0);
        let id = NonZeroU32::new(id).ok_or(io::Errno::NOMEM)?;
        let shares = vec![0; usize::from(count)].into();
        let mut buffers = Self { ring, slots, count, tail: 0, head: 0, with_kernel: 0, shares, id };
        for index in 0..count {
            buffers.give_back(Buffer { index, of: id });
        }
        Ok(buffers)
    }

    /// Lets receives of `ring` take them.
    ///
    /// # Safety
    /// The buffers outlive the ring's operations.
    pub(super) unsafe fn register(&self, ring: &IoUring) -> std::io::Result<()> {
        let submitter: Submitter<'_> = ring.submitter();
        // SAFETY: the ring of buffers is mapped and has as many entries; it outlives the operations.
        unsafe { submitter.register_buf_ring_with_flags(self.ring.address(0) as u64, self.count, GROUP, 0) }
    }

    /// What the kernel says that it has filled.
    ///
    /// # Panics
    /// If there is no such buffer: the kernel names its own.
    #[inline]
    pub(super) fn take(&mut self, index: u16) -> Buffer {
        assert!(index < self.count, "the kernel has filled buffer {index} of {}", self.count);
        self.with_kernel -= 1;
        Buffer { index, of: self.id }
    }

    /// Another token of a filled buffer.
    ///
    /// # Panics
    /// If it is of others.
    #[inline]
    pub(super) fn share(&mut self, buffer: &Buffer) -> Buffer {
        let index = self.own(buffer);
        self.shares[index] += 1;
        Buffer { index: buffer.index, of: self.id }
    }

    /// The number of a buffer of these.
    ///
    /// # Panics
    /// If it is of others.
    #[inline]
    fn own(&self, buffer: &Buffer) -> usize {
        let Buffer { index, of } = *buffer;
        assert!(of == self.id, "a buffer of ring {of} was used with ring {}", self.id);
        usize::from(index)
    }

    /// Whether a buffer is one of these.
    pub(super) fn has(&self, buffer: &Buffer) -> bool {
        buffer.of == self.id
    }

    /// The bytes of a filled buffer.
    ///
    /// # Panics
    /// If it is of others.
    #[inline]
    pub(super) fn bytes(&self, buffer: &Buffer) -> &[u8] {
        // SAFETY: the kernel has given the buffer away with its completion, and the token is borrowed.
        unsafe { self.slots.bytes(self.own(buffer)) }
    }

    /// Bytes like [`Buffers::bytes`], to write.
    ///
    /// # Panics
    /// If it is of others.
    #[inline]
    pub(super) fn bytes_mut(&mut self, buffer: &mut Buffer) -> &mut [u8] {
        let index = self.own(buffer);
        // SAFETY: the kernel has given the buffer away with its completion, and the token is borrowed.
        unsafe { self.slots.bytes_mut(index) }
    }

    /// Whether the kernel has a buffer to receive into.
    pub(super) fn is_stocked(&self) -> bool {
        self.with_kernel != 0
    }

    /// Whether the kernel has few buffers left to receive into: less than a quarter of all.
    pub(super) fn is_scarce(&self) -> bool {
        self.with_kernel < self.count / 4
    }

    /// Buffers that the kernel has to receive into.
    pub(super) fn stocked_count(&self) -> usize {
        usize::from(self.with_kernel)
    }

    /// Puts a buffer into the ring, if this is its last token.
    ///
    /// # Panics
    /// If it is of others.
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "the token is used up")]
    pub(super) fn give_back(&mut self, buffer: Buffer) {
        let index = self.own(&buffer);
        if let Some(others) = self.shares[index].checked_sub(1) {
            self.shares[index] = others;
            return;
        }
        let entries = self.ring.address(0).cast::<BufRingEntry>();
        let slot = usize::from(self.tail & (self.count - 1));
        // SAFETY: the place lies within the ring, whose memory is a page of its own.
        let entry = unsafe { entries.add(slot) };
        // SAFETY: the kernel reads entries only below the tail; this one is above it, and no other reference
        // to it exists. What stands in the tail's place is left alone by the setters.
        let entry = unsafe { &mut *entry };
        entry.set_addr(self.slots.address(index) as u64);
        entry.set_len(self.slots.slot_bytes() as u32);
        entry.set_bid(buffer.index);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the address is that of the first entry of the ring.
        let tail = unsafe { BufRingEntry::tail(entries) };
        // SAFETY: the tail is an aligned `u16` in the mapping, which both sides use as an atomic.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
        self.with_kernel += 1;
    }
}

/// Buffers that no `io_uring` has, the process itself takes from the ring.
impl Supply for Buffers {
    fn peek(&self, ahead: u16) -> Option<Spare> {
        if ahead >= self.tail.wrapping_sub(self.head) {
            return None;
        }
        let slot = usize::from(self.head.wrapping_add(ahead) & (self.count - 1));
        let entries = self.ring.address(0).cast::<BufRingEntry>();
        // SAFETY: the place lies within the ring, whose memory is a page of its own.
        let entry = unsafe { entries.add(slot) };
        // SAFETY: an entry was written there, and no reference to it lives on.
        let entry = unsafe { &*entry };
        let index = entry.bid();
        let (address, length) = (self.slots.address(usize::from(index)), self.slots.slot_bytes());
        Some(Spare { index, address, length })
    }

    fn advance(&mut self, count: u16) {
        debug_assert!(count <= self.tail.wrapping_sub(self.head), "{count} buffers of a ring");
        self.head = self.head.wrapping_add(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_of_several_tokens_comes_back_with_the_last() {
        let mut buffers = Buffers::new(4, 64).unwrap();
        let first = buffers.take(2);
        let others = [buffers.share(&first), buffers.share(&first)];
        assert_eq!(buffers.stocked_count(), 3);
        others.into_iter().for_each(|other| buffers.give_back(other));
        assert_eq!(buffers.stocked_count(), 3);
        buffers.give_back(first);
        assert_eq!(buffers.stocked_count(), 4);
    }

    #[test]
    #[should_panic(expected = "a buffer of ring")]
    fn a_buffer_of_another_ring_is_not_taken_back() {
        let [mut own, mut other] = [4, 8].map(|count| Buffers::new(count, 64).unwrap());
        let foreign = other.take(7);
        assert_eq!(other.bytes(&foreign).len(), 64);
        own.give_back(foreign);
    }
}
