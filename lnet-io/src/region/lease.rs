//! Regions, their leases, and the owner's books of what is lent.

use core::ops::{Deref, DerefMut, Range};

#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, Ordering};
#[cfg(loom)]
use loom::sync::Arc;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
use std::sync::Arc;

use super::storage::{Storage, View};

/// What a lease lets its holder do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    Read,
    Write,
}

/// Why bytes are not given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// A write lease on some of them is out.
    #[error("bytes {start}..{end} of the buffer are lent to be written")]
    BeingWritten {
        /// First byte of the lease.
        start: usize,
        /// The byte behind its last.
        end: usize,
    },
    /// A read lease on some of them is out, and they were to be written.
    #[error("bytes {start}..{end} of the buffer are lent to be read")]
    BeingRead {
        /// First byte of the lease.
        start: usize,
        /// The byte behind its last.
        end: usize,
    },
    /// A message may be written to these bytes again: peers choose the bytes (`LNET_MD_MANAGE_REMOTE`), or
    /// REPLYs go there. They can be read elsewhere once the descriptor has given its buffer back.
    #[error("peers may write these bytes again at any time; take the buffer when it comes home")]
    PeersChoose,
    /// The bytes lie in several fragments of the buffer, and were asked for as one slice.
    #[error("the bytes lie in several fragments of the buffer: those are to be asked for")]
    Fragmented,
    /// The event tells of no payload that has arrived.
    #[error("the event tells of no payload: a PUT or a REPLY that went well is expected")]
    NoPayload,
    /// The descriptor has given its buffer back: its last event was taken, which brought it.
    #[error("the buffer has come home already: read it there")]
    Home,
}

/// What a lease shares with its region. The region uses it again for another lease once this one is back.
#[derive(Debug)]
struct Seat {
    /// Whether the lease is out. The lessee clears it with its last act.
    out: AtomicBool,
    /// Lives for as long as the lease does.
    storage: Arc<Storage>,
}

impl Seat {
    /// Whether the lessee may still use the bytes; if not, what it did to them is visible now.
    fn is_out(&self) -> bool {
        self.out.load(Ordering::Acquire)
    }
}

/// A lease that was given out, in the books of its region.
#[derive(Debug)]
struct LentRange {
    start: usize,
    end: usize,
    access: Access,
    seat: Arc<Seat>,
}

impl LentRange {
    /// Whether the lease is out and keeps others from `wanted` to the bytes of `range`.
    fn bars(&self, start: usize, end: usize, wanted: Access) -> bool {
        let overlaps = self.start.max(start) < self.end.min(end);
        let excludes = self.access == Access::Write || wanted == Access::Write;
        // The flag last: it may be in another CPU's cache.
        overlaps && excludes && self.seat.is_out()
    }
}

/// A region's books.
#[derive(Debug)]
struct Books {
    storage: Arc<Storage>,
    /// Leases that may be out.
    lent: Vec<LentRange>,
    /// Seats of leases that are back.
    free: Vec<Arc<Seat>>,
}

impl Books {
    fn over(storage: Arc<Storage>) -> Box<Self> {
        Box::new(Self { storage, lent: Vec::new(), free: Vec::new() })
    }

    // Numbers by value, so that the caller, who seldom comes here, need not keep a range in memory.
    #[cold]
    fn check(&self, start: usize, end: usize, wanted: Access) -> Result<(), LeaseError> {
        match self.lent.iter().find(|entry| entry.bars(start, end, wanted)) {
            None => Ok(()),
            Some(&LentRange { start, end, access: Access::Write, .. }) => {
                Err(LeaseError::BeingWritten { start, end })
            }
            Some(&LentRange { start, end, .. }) => Err(LeaseError::BeingRead { start, end }),
        }
    }

    /// Makes room for one more lease.
    fn make_room(&mut self) {
        // Only when the books are full, so that leases which stay out long are not looked at with each new
        // one; and they grow where that does not leave half of them free.
        if self.lent.len() < self.lent.capacity() {
            return;
        }
        self.settle();
        if self.lent.len() >= self.lent.capacity() / 2 {
            self.lent.reserve(self.lent.capacity().max(1));
            // There are never more seats than places in the books.
            self.free.reserve(self.lent.capacity() - self.free.len());
        }
    }

    /// Strikes leases out that are back.
    fn settle(&mut self) {
        let Self { lent, free, .. } = self;
        free.extend(lent.extract_if(.., |entry| !entry.seat.is_out()).map(|entry| entry.seat));
    }
}

/// An owned run of bytes, parts of which can be lent. The bytes are in one piece, or in several fragments.
#[derive(Debug)]
pub struct Region {
    /// The bytes if they are in one piece, else none.
    view: View,
    /// Without books the bytes are boxed ones of the region's own, and nothing has been lent; so the bytes of
    /// most buffers are two words away.
    books: Option<Box<Books>>,
}

impl Region {
    #[inline]
    fn check(&self, range: &Range<usize>, wanted: Access) -> Result<(), LeaseError> {
        match &self.books {
            Some(books) if !books.lent.is_empty() => books.check(range.start, range.end, wanted),
            _ => Ok(()),
        }
    }

    /// Has the beginning fetched.
    #[cfg(not(loom))]
    #[inline]
    pub fn prefetch(&self) {
        crate::xsk::prefetch(self.view.base());
    }

    /// The bytes of `range`, which lie in one piece.
    ///
    /// # Errors
    /// [`LeaseError`] when some of them are lent to be written.
    ///
    /// # Panics
    /// If the range leaves the region, or the bytes lie in several fragments.
    #[inline]
    pub fn bytes(&self, range: Range<usize>) -> Result<&[u8], LeaseError> {
        self.check(&range, Access::Read)?;
        // SAFETY: the storage lives while `self` does. No lease to write is out, none can be given while
        // `self` is borrowed, and the region itself writes only when borrowed exclusively.
        Ok(unsafe { self.one_view(range).bytes() })
    }

    /// The bytes of `range`, to write; otherwise as [`Region::bytes`].
    ///
    /// # Errors
    /// [`LeaseError`] when some of them are lent.
    ///
    /// # Panics
    /// As [`Region::bytes`].
    #[inline]
    pub fn bytes_mut(&mut self, range: Range<usize>) -> Result<&mut [u8], LeaseError> {
        self.check(&range, Access::Write)?;
        // SAFETY: the storage lives while `self` does. No lease is out, and `self` is borrowed exclusively:
        // no lease can be given and no other thread read by way of the region.
        Ok(unsafe { self.one_view(range).bytes_mut() })
    }

    #[cfg(loom)]
    fn one_view(&self, range: Range<usize>) -> View {
        self.view.part(range)
    }

    /// The storage, which has an owner of its own from here on.
    fn books(&mut self) -> &mut Books {
        self.books.get_or_insert_with(|| {
            // SAFETY: a region without books owns its bytes, boxed ones; from here on it has books.
            Books::over(Arc::new(unsafe { Storage::boxed(self.view.clone()) }))
        })
    }

    /// Lends the bytes of `range` to be written.
    ///
    /// # Errors
    /// [`LeaseError`] when some of them are lent already.
    ///
    /// # Panics
    /// If the range leaves the region.
    pub fn lend_write(&mut self, range: Range<usize>) -> Result<WriteLease, LeaseError> {
        Ok(WriteLease(self.lend(range, Access::Write)?))
    }

    /// Lends the bytes of `range` to be read.
    ///
    /// # Errors
    /// [`LeaseError`] when some of them are lent to be written.
    ///
    /// # Panics
    /// If the range leaves the region.
    pub(crate) fn lend_read(&mut self, range: Range<usize>) -> Result<ReadLease, LeaseError> {
        Ok(ReadLease(self.lend(range, Access::Read)?))
    }

    fn lend(&mut self, range: Range<usize>, access: Access) -> Result<Lease, LeaseError> {
        self.check(&range, access)?;
        #[cfg(loom)]
        let view = self.one_view(range.clone());
        #[cfg(not(loom))]
        let view = self.pieces(range.start, range.end).one_view().unwrap_or_default();
        let books = self.books();
        books.make_room();
        let seat = match books.free.pop() {
            Some(seat) => {
                // The lessee is told of it by whatever hands it the lease.
                seat.out.store(true, Ordering::Relaxed);
                seat
            }
            None => Arc::new(Seat { out: AtomicBool::new(true), storage: Arc::clone(&books.storage) }),
        };
        books.lent.push(LentRange { start: range.start, end: range.end, access, seat: Arc::clone(&seat) });
        Ok(Lease { view, range, seat })
    }

    /// Whether a lease on some bytes of `range` is out.
    #[cfg(test)]
    pub fn is_lent(&self, range: Range<usize>) -> bool {
        self.check(&range, Access::Write).is_err()
    }

    /// Whether no lease is out.
    pub fn is_whole(&mut self) -> bool {
        self.books.as_mut().is_none_or(|books| {
            books.settle();
            books.lent.is_empty()
        })
    }
}

impl From<Box<[u8]>> for Region {
    fn from(bytes: Box<[u8]>) -> Self {
        Self { view: View::leak(bytes), books: None }
    }
}

#[cfg(not(loom))]
impl Region {
    /// Regions of `length_bytes` zero bytes each, in memory that the kernel provides as it is touched.
    ///
    /// # Errors
    /// The kernel's, where there is no room for them.
    pub fn mapped(count: usize, length_bytes: usize) -> std::io::Result<impl Iterator<Item = Self>> {
        Ok(Storage::mapped(count, length_bytes)?.map(|storage| Self::from(Arc::new(storage))))
    }
}

#[cfg(not(loom))]
impl From<Arc<Storage>> for Region {
    fn from(storage: Arc<Storage>) -> Self {
        Self { view: storage.view(), books: Some(Books::over(storage)) }
    }
}

#[cfg(not(loom))]
impl From<crate::xsk::Registered> for Region {
    fn from(run: crate::xsk::Registered) -> Self {
        Self::from(Arc::new(Storage::from(run)))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.books.is_none() {
            // SAFETY: a region without books owns its bytes, boxed ones, and this is its end.
            drop(unsafe { Storage::boxed(self.view.clone()) });
        }
    }
}

/// What both kinds of leases are.
#[derive(Debug)]
struct Lease {
    /// The bytes if they are in one piece, else none.
    view: View,
    /// Where they are in the region.
    range: Range<usize>,
    seat: Arc<Seat>,
}

impl Lease {
    /// The bytes in one piece.
    fn one_view(&self) -> &View {
        assert!(self.view.length_bytes() == self.range.len(), "{SEVERAL}");
        &self.view
    }
}

/// Bytes of several fragments were asked for as one slice.
const SEVERAL: &str = "the bytes lie in several fragments of a buffer: those are to be asked for";

impl Drop for Lease {
    fn drop(&mut self) {
        debug_assert!(self.seat.is_out());
        // Release: what was done to the bytes comes before it. The seat itself, and with it the storage, goes
        // after.
        self.seat.out.store(false, Ordering::Release);
    }
}

/// The exclusive right to a run of a buffer's bytes, on any thread. Dropping it returns them. It is a slice
/// of bytes if they lie in one fragment; used as one otherwise, it panics.
#[derive(Debug)]
#[must_use = "dropping a lease returns it"]
pub struct WriteLease(Lease);

impl Deref for WriteLease {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the seat keeps the storage. While the lease is out, the region lends these bytes to
        // no other thread and leaves them alone, and the lease writes only when borrowed exclusively.
        unsafe { self.0.one_view().bytes() }
    }
}

impl DerefMut for WriteLease {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and the lease is borrowed exclusively.
        unsafe { self.0.one_view().bytes_mut() }
    }
}

/// The right to read a run of a buffer's bytes, on any threads; they are not written meanwhile. Dropping it
/// returns it. It is a slice of bytes if they lie in one fragment; used as one otherwise, it panics.
#[derive(Debug)]
#[must_use = "dropping a lease returns it"]
pub struct ReadLease(Lease);

impl Deref for ReadLease {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the seat keeps the storage. While the lease is out the region lends these bytes to no
        // writer and does not write them.
        unsafe { self.0.one_view().bytes() }
    }
}

#[cfg(not(loom))]
#[path = "fragments.rs"]
pub(super) mod fragments;

#[cfg(test)]
#[cfg(loom)]
#[path = "lease_models.rs"]
mod models;
#[cfg(test)]
#[cfg(not(loom))]
#[path = "lease_tests.rs"]
mod tests;
