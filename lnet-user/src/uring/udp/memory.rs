//! Memory that the kernel reads from and writes to behind the borrow checker's back.

use rustix::io;

use crate::xsk::{Mapping, PageKind};

/// Slots of equal length in one anonymous mapping: zero at first, and on pages of their own.
#[derive(Debug)]
pub(super) struct Slots {
    mapping: Mapping,
    slot_bytes: usize,
    count: usize,
}

impl Slots {
    /// `count` slots of `slot_bytes`, neither of them 0. Pages that are never touched take no memory.
    pub(super) fn new(count: usize, slot_bytes: usize) -> io::Result<Self> {
        let length = count.checked_mul(slot_bytes).ok_or(io::Errno::NOMEM)?;
        let mapping = Mapping::anonymous(length, PageKind::Normal)?;
        Ok(Self { mapping, slot_bytes, count })
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
        unsafe { self.mapping.base().as_ptr().add(slot * self.slot_bytes) }
    }

    /// The bytes of a slot.
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
