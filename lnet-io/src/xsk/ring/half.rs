//! One side of a ring in shared memory.

use core::mem::{align_of, size_of};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use rustix::io;
use rustix::net::xdp::XdpRingOffset;

use super::cursor::Cursor;
use crate::xsk::memory::{self, Mapping};
use crate::xsk::socket::Attachment;

/// The kernel wants to be woken before it goes on with the ring (`XDP_RING_NEED_WAKEUP`).
pub(in crate::xsk) const FLAG_NEED_WAKEUP: u32 = 1;

/// Which side of a ring a half is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::xsk) enum Side {
    Producer,
    Consumer,
}

/// Where the parts of a ring lie in its memory, in bytes from its start.
#[derive(Clone, Copy, Debug)]
pub(in crate::xsk) struct Layout {
    pub(in crate::xsk) producer: u64,
    pub(in crate::xsk) consumer: u64,
    pub(in crate::xsk) flags: u64,
    pub(in crate::xsk) entries: u64,
    /// Number of entries, a power of two.
    pub(in crate::xsk) size: u32,
}

impl Layout {
    /// A ring of `size` entries as the kernel describes it; `None` from a kernel without ring flags.
    pub(in crate::xsk) fn of_kernel(offsets: &XdpRingOffset, size: u32) -> Option<Self> {
        Some(Self {
            producer: offsets.producer,
            consumer: offsets.consumer,
            flags: offsets.flags?,
            entries: offsets.desc,
            size,
        })
    }

    /// Bytes of a ring with entries of type `T`.
    pub(in crate::xsk) fn length_bytes<T>(&self) -> usize {
        self.entries as usize + self.size as usize * size_of::<T>()
    }

    /// Whether every part lies in `length_bytes` of memory, aligned, and none over another.
    fn fits<T>(&self, length_bytes: usize) -> bool {
        let words = [self.producer, self.consumer, self.flags];
        let distinct = words[0] != words[1] && words[0] != words[2] && words[1] != words[2];
        let before_entries = words.iter().all(|word| {
            word.is_multiple_of(align_of::<AtomicU32>() as u64) && word.saturating_add(4) <= self.entries
        });
        distinct
            && before_entries
            && self.size.is_power_of_two()
            && self.entries.is_multiple_of(align_of::<T>() as u64)
            && self.entries <= length_bytes as u64
            && self.length_bytes::<T>() <= length_bytes
    }
}

/// What keeps a ring's memory and, for a kernel ring, its socket.
#[derive(Debug)]
pub(super) struct Keeper {
    /// Dropped first, so that the kernel has let go of the ring before it is unmapped.
    _attachment: Arc<Attachment>,
    _memory: Arc<Mapping>,
}

/// One side of a ring with entries of type `T`, which must be valid for every bit pattern.
#[derive(Debug)]
pub(in crate::xsk) struct Half<T> {
    cursor: Cursor,
    /// Our index.
    ours: NonNull<AtomicU32>,
    /// The other side's index.
    theirs: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    _keeper: Keeper,
}

/// What a ring's entries may be.
///
/// # Safety
/// Every bit pattern must be a value of the type, for the other side may write any.
pub(in crate::xsk) unsafe trait Entry: Copy {}

// SAFETY: an integer.
unsafe impl Entry for u64 {}

// SAFETY: the half owns its side of the ring; the pointers lead to memory that its keeper holds, and what
// both sides touch there is atomic or handed over by the indices.
unsafe impl<T: Entry + Send> Send for Half<T> {}

impl<T: Entry> Half<T> {
    /// A side of a ring that lies in `memory`, with both indices at `start`: 0 for a new socket of the
    /// kernel.
    pub(in crate::xsk) fn over(
        memory: Arc<Mapping>,
        layout: &Layout,
        side: Side,
        start: u32,
        attachment: Arc<Attachment>,
    ) -> io::Result<Self> {
        if !layout.fits::<T>(memory.length_bytes()) {
            return Err(io::Errno::INVAL);
        }
        let base = memory.base();
        let part = |offset: u64| {
            // SAFETY: `fits` has checked that each part lies in the memory.
            unsafe { base.add(offset as usize) }
        };
        let (producer, consumer) = (part(layout.producer).cast(), part(layout.consumer).cast());
        let (cursor, ours, theirs) = match side {
            Side::Producer => (Cursor::producer(layout.size, start), producer, consumer),
            Side::Consumer => (Cursor::consumer(layout.size, start), consumer, producer),
        };
        Ok(Self {
            cursor,
            ours,
            theirs,
            flags: part(layout.flags).cast(),
            entries: part(layout.entries).cast(),
            _keeper: Keeper { _attachment: attachment, _memory: memory },
        })
    }

    #[inline]
    pub(in crate::xsk) fn ours(&self) -> &AtomicU32 {
        // SAFETY: the word lies in memory that the keeper holds, aligned, and is only used atomically.
        unsafe { self.ours.as_ref() }
    }

    #[inline]
    pub(in crate::xsk) fn flags(&self) -> &AtomicU32 {
        // SAFETY: as for `ours`.
        unsafe { self.flags.as_ref() }
    }

    /// How many of `wanted` entries can be written or read now.
    #[inline]
    pub(in crate::xsk) fn available(&mut self, wanted: u32) -> u32 {
        // SAFETY: as for `ours`.
        let theirs = unsafe { self.theirs.as_ref() };
        self.cursor.available(wanted, theirs)
    }

    /// Writes the next entry, which the other side sees after [`Self::publish`]; `false` if there was no
    /// room. For the producer.
    #[inline]
    pub(in crate::xsk) fn write(&mut self, value: T) -> bool {
        let Some(slot) = self.cursor.advance() else { return false };
        // SAFETY: a slot is below the ring's size, and `fits` has checked that the entries lie in memory.
        let entry = unsafe { self.entries.add(slot as usize) };
        // SAFETY: the cursor says that the entry is this side's alone until it is published.
        unsafe { entry.write(value) };
        true
    }

    /// Reads the next entry; `None` if none is known to be there. For the consumer.
    #[inline]
    pub(in crate::xsk) fn read(&mut self) -> Option<T> {
        let slot = self.cursor.advance()?;
        // SAFETY: a slot is below the ring's size, and `fits` has checked that the entries lie in memory.
        let entry = unsafe { self.entries.add(slot as usize) };
        // SAFETY: the cursor says that the entry is this side's alone until it is published, and any bits
        // are a value of `T`.
        Some(unsafe { entry.read() })
    }

    /// Fetches the line of the entry that is read next, which the other side writes a while before it says
    /// so.
    #[inline]
    pub(in crate::xsk) fn prefetch(&self) {
        let slot = self.cursor.slot() as usize;
        memory::prefetch(self.entries.as_ptr().wrapping_add(slot).cast());
    }

    /// Hands what was written, or the room of what was read, over to the other side.
    #[inline]
    pub(in crate::xsk) fn publish(&self) {
        self.cursor.publish(self.ours());
    }

    /// Whether the kernel wants to be woken before it goes on with the ring.
    #[inline]
    pub(in crate::xsk) fn needs_wakeup(&self) -> bool {
        self.flags().load(Ordering::Relaxed) & FLAG_NEED_WAKEUP != 0
    }

    /// Entries of the ring.
    pub(in crate::xsk) fn size(&self) -> u32 {
        self.cursor.size()
    }
}
