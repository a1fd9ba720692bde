//! Where the bytes of a region are, and who frees them.
//!
//! Invariant: a [`View`] is of the bytes of one [`Storage`], which do not move and live as long as it does.

use core::ops::Range;
use core::ptr::NonNull;
use std::sync::Arc;

use crate::xsk::{Mapping, PageKind, Registered};

/// Address and length of a storage's bytes, without any right to them.
#[derive(Clone, Debug)]
pub(super) struct View {
    base: NonNull<u8>,
    length_bytes: usize,
}

// SAFETY: the value only names memory; who may touch the bytes is the business of `lease`.
unsafe impl Send for View {}
// SAFETY: as for `Send`.
unsafe impl Sync for View {}

impl View {
    /// The bytes of a box, which [`Storage::boxed`] frees.
    pub(super) fn leak(bytes: Box<[u8]>) -> Self {
        let length_bytes = bytes.len();
        Self { base: NonNull::from(Box::leak(bytes)).cast(), length_bytes }
    }

    /// Where they begin.
    #[inline]
    pub(super) fn base(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Where they are.
    #[cfg(not(loom))]
    pub(super) fn address(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.base, self.length_bytes)
    }

    /// Bytes from the first to the last.
    #[inline]
    pub(super) fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// Bytes of the view from `range.start` to `range.end`.
    ///
    /// # Panics
    /// If the range leaves the view.
    #[inline]
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        let (start, end) = (range.start, range.end);
        self.try_part(start, end).unwrap_or_else(|| outside(start, end, self.length_bytes))
    }

    /// Bytes like [`View::part`]; `None` if the range leaves the view.
    #[inline]
    pub(super) fn try_part(&self, start: usize, end: usize) -> Option<Self> {
        if start > end || end > self.length_bytes {
            return None;
        }
        // SAFETY: the sum lies in the same allocation, as was checked.
        let base = unsafe { self.base.add(start) };
        Some(Self { base, length_bytes: end - start })
    }

    /// The bytes.
    ///
    /// # Safety
    /// The storage must live, and the bytes not be written, for as long as the slice does.
    #[inline]
    pub(super) unsafe fn bytes<'a>(&self) -> &'a [u8] {
        // SAFETY: base and length are those of a part of an allocation of bytes; the caller vouches for the
        // rest.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.length_bytes) }
    }

    /// The bytes, to write.
    ///
    /// # Safety
    /// The storage must live, and the bytes not be read or written otherwise, for as long as the slice does.
    #[inline]
    pub(super) unsafe fn bytes_mut<'a>(&self) -> &'a mut [u8] {
        // SAFETY: as for `bytes`.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr(), self.length_bytes) }
    }
}

impl Default for View {
    /// No bytes.
    fn default() -> Self {
        Self { base: NonNull::dangling(), length_bytes: 0 }
    }
}

// Numbers by value, so that their owner need not keep them in memory.
#[cold]
pub(super) fn outside(start: usize, end: usize, length_bytes: usize) -> ! {
    panic!("bytes {start}..{end} of a buffer of {length_bytes}")
}

/// An allocation, freed when this value goes.
#[derive(Debug)]
pub(super) struct Storage(Backing);

#[derive(Debug)]
enum Backing {
    /// A box, taken apart so that moving this value does not claim its bytes.
    Boxed(View),
    /// A run of chunks of a UMEM.
    Registered(Registered),
    /// A part of a mapping, which goes with the last of them.
    Mapped(View, #[expect(dead_code, reason = "it keeps the bytes")] Arc<Mapping>),
    /// Several storages, one behind the other.
    List(Box<[Fragment]>),
}

/// A storage of a list.
#[derive(Debug)]
pub(super) struct Fragment {
    /// The byte behind its last, from the beginning of the list.
    pub(super) end: usize,
    /// All of its bytes.
    pub(super) view: View,
    pub(super) storage: Arc<Storage>,
}

impl Storage {
    /// Takes over the bytes of a leaked box.
    ///
    /// # Safety
    /// The view is that of [`View::leak`], whole, and no other value is made of it.
    pub(super) unsafe fn boxed(view: View) -> Self {
        Self(Backing::Boxed(view))
    }

    /// Maps zeroed bytes and divides them among `count` storages of `length_bytes` each. The kernel provides
    /// them when they are touched.
    pub(super) fn mapped(count: usize, length_bytes: usize) -> std::io::Result<impl Iterator<Item = Self>> {
        let total = count.checked_mul(length_bytes).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let mapping = Arc::new(Mapping::anonymous(total, PageKind::Normal)?);
        let whole = View { base: mapping.base(), length_bytes: total };
        let part = move |at| whole.part(at * length_bytes..(at + 1) * length_bytes);
        Ok((0..count).map(move |at| Self(Backing::Mapped(part(at), Arc::clone(&mapping)))))
    }

    /// The bytes, all of them; of a list the beginning, and none.
    pub(super) fn view(&self) -> View {
        match &self.0 {
            Backing::Boxed(view) | Backing::Mapped(view, _) => view.clone(),
            Backing::Registered(run) => View { base: run.base(), length_bytes: run.length_bytes() },
            Backing::List(list) => list[0].view.part(0..0),
        }
    }

    /// The list that it is, if it is one.
    pub(super) fn list(&self) -> Option<&[Fragment]> {
        match &self.0 {
            Backing::List(list) => Some(list),
            Backing::Boxed(_) | Backing::Registered(_) | Backing::Mapped(..) => None,
        }
    }

    /// The run of the UMEM that the bytes lie in, if they do.
    pub(super) fn registered(&self) -> Option<&Registered> {
        match &self.0 {
            Backing::Boxed(_) | Backing::List(_) | Backing::Mapped(..) => None,
            Backing::Registered(run) => Some(run),
        }
    }
}

impl From<Registered> for Storage {
    fn from(run: Registered) -> Self {
        Self(Backing::Registered(run))
    }
}

impl From<Box<[Fragment]>> for Storage {
    /// Joins fragments, at least one.
    fn from(list: Box<[Fragment]>) -> Self {
        Self(Backing::List(list))
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Backing::Boxed(View { base, length_bytes }) = self.0 {
            let bytes = NonNull::slice_from_raw_parts(base, length_bytes);
            // SAFETY: the pointer and length are those of a box that was leaked for this value alone.
            drop(unsafe { Box::from_raw(bytes.as_ptr()) });
        }
    }
}
