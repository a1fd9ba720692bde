//! Memory that the kernel reads from and writes to behind the borrow checker's back.

use core::ptr::{self, NonNull};

use rustix::io;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Slots of equal length in one anonymous mapping: zero at first, and on pages of their own.
#[derive(Debug)]
pub(super) struct Slots {
    base: NonNull<u8>,
    slot_bytes: usize,
    count: usize,
}

// SAFETY: the mapping belongs to this value alone, and an address means the same on every thread.
unsafe impl Send for Slots {}

impl Slots {
    /// `count` slots of `slot_bytes`, neither of them 0. Pages that are never touched take no memory.
    pub(super) fn new(count: usize, slot_bytes: usize) -> io::Result<Self> {
        let length = count.checked_mul(slot_bytes).ok_or(io::Errno::NOMEM)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), length, protection, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?;
        Ok(Self { base, slot_bytes, count })
    }

    /// Bytes of each slot.
    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Where a slot begins.
    ///
    /// # Panics
    /// If there is no such slot.
    #[inline]
    pub(super) fn address(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.count, "slot {slot} of {}", self.count);
        // SAFETY: the slot lies within the mapping.
        unsafe { self.base.as_ptr().add(slot * self.slot_bytes) }
    }

    /// The bytes of a slot.
    ///
    /// # Safety
    /// The kernel does not write the slot while the bytes are borrowed.
    #[inline]
    pub(super) unsafe fn bytes(&self, slot: usize) -> &[u8] {
        // SAFETY: as for `bytes_mut`.
        unsafe { core::slice::from_raw_parts(self.address(slot), self.slot_bytes) }
    }

    /// The bytes of a slot, to write.
    ///
    /// # Safety
    /// The kernel does not use the slot while the bytes are borrowed.
    #[inline]
    pub(super) unsafe fn bytes_mut(&mut self, slot: usize) -> &mut [u8] {
        // SAFETY: the slot lies within the mapping, which is initialised and lives as long as `self`; the
        // caller promises that the kernel does not use it.
        unsafe { core::slice::from_raw_parts_mut(self.address(slot), self.slot_bytes) }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: the mapping is of this address and length, and it has no user: the owner forgets it where
        // the kernel might.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.count * self.slot_bytes) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}
