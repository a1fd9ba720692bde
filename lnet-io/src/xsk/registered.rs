//! Registered memory: the part of a UMEM behind the chunks of its frames, for buffers that are sent without a
//! copy.
//!
//! Invariants:
//! - A [`Registered`] has its run of chunks to itself, among all of them and among the frames.
//! - A run goes back to the free ones when it is dropped and no descriptor of it is with the kernel. Until
//!   both are so it is not given away, so the kernel never sends what another buffer has become.
//! - The kernel reads registered memory and never writes it: no frame stands for it, so it cannot be filled
//!   in.
//! - Taking and dropping a run takes a lock: it is for making buffers, not for sending messages.

use core::marker::PhantomData;
use core::num::NonZeroU32;
use core::ops::{Deref, DerefMut, Range};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

use super::umem::{CHUNK_BYTES, RingsId, Umem};
use crate::locks::{Mutex, MutexGuard};

/// The registered part of a UMEM.
#[derive(Debug)]
pub(super) struct Area {
    /// Number of its first chunk in the UMEM.
    first_chunk: u32,
    chunk_count: u32,
    /// Descriptors with the kernel: of each queue's rings, made when they are, by chunk of this area.
    in_flight: Box<[OnceLock<Box<[AtomicU32]>>]>,
    runs: Mutex<Runs>,
}

/// Neighbouring chunks of the area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Chunks {
    first: u32,
    count: u32,
}

impl Chunks {
    fn end(self) -> u32 {
        self.first + self.count
    }
}

#[derive(Debug)]
struct Runs {
    /// Free chunks in their order; between two of these runs there is a gap.
    free: Vec<Chunks>,
    /// Dropped, while the kernel had descriptors of them.
    dropped: Vec<Chunks>,
}

impl Runs {
    /// The first run that is long enough, or the beginning of a longer one.
    fn take(&mut self, count: u32) -> Option<Chunks> {
        let index = self.free.iter().position(|run| run.count >= count)?;
        let run = &mut self.free[index];
        let taken = Chunks { first: run.first, count };
        *run = Chunks { first: run.first + count, count: run.count - count };
        if run.count == 0 {
            self.free.remove(index);
        }
        Some(taken)
    }

    fn give_back(&mut self, run: Chunks) {
        let index = self.free.partition_point(|free| free.first < run.first);
        let before = index.checked_sub(1).filter(|&before| self.free[before].end() == run.first);
        let after = self.free.get(index).filter(|after| run.end() == after.first).copied();
        match (before, after) {
            (Some(before), Some(after)) => {
                self.free[before].count += run.count + after.count;
                self.free.remove(index);
            }
            (Some(before), None) => self.free[before].count += run.count,
            (None, Some(after)) => {
                self.free[index] = Chunks { first: run.first, count: run.count + after.count }
            }
            (None, None) => self.free.insert(index, run),
        }
    }
}

impl Area {
    /// `chunk_count` chunks from `first_chunk` on.
    pub(super) fn new(first_chunk: u32, chunk_count: u32) -> Self {
        let whole = (chunk_count != 0).then_some(Chunks { first: 0, count: chunk_count });
        Self {
            first_chunk,
            chunk_count,
            in_flight: (0..RingsId::QUEUES_MAX).map(|_| OnceLock::new()).collect(),
            runs: Mutex::new(Runs { free: whole.into_iter().collect(), dropped: Vec::new() }),
        }
    }

    /// Number of chunks.
    pub(super) fn chunk_count(&self) -> u32 {
        self.chunk_count
    }

    /// Makes room to count what goes out by these rings.
    pub(super) fn open(&self, rings: RingsId) {
        if self.chunk_count != 0 {
            self.in_flight[rings.index()]
                .get_or_init(|| (0..self.chunk_count).map(|_| AtomicU32::new(0)).collect());
        }
    }

    /// The counts of all rings.
    fn counts(&self) -> impl Iterator<Item = &[AtomicU32]> {
        self.in_flight.iter().filter_map(OnceLock::get).map(|counts| &**counts)
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        // Nothing panics between two changes that belong together.
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the kernel may still read one of these chunks.
    fn is_in_flight(&self, run: Chunks) -> bool {
        // Acquire: the kernel has read the bytes before they are written again.
        let is_any = |counts: &[AtomicU32]| counts.iter().any(|count| count.load(Ordering::Acquire) != 0);
        self.counts().any(|counts| is_any(&counts[run.first as usize..run.end() as usize]))
    }

    fn take(&self, count: u32) -> Option<Chunks> {
        let mut runs = self.runs();
        for index in (0..runs.dropped.len()).rev() {
            if !self.is_in_flight(runs.dropped[index]) {
                let run = runs.dropped.swap_remove(index);
                runs.give_back(run);
            }
        }
        runs.take(count)
    }

    fn give_back(&self, run: Chunks) {
        let mut runs = self.runs();
        if self.is_in_flight(run) { runs.dropped.push(run) } else { runs.give_back(run) }
    }

    /// The chunk of this area that `address`, as the kernel counts, lies in.
    #[inline]
    pub(super) fn chunk_of(&self, address: u64) -> Option<u32> {
        let chunk_index = u32::try_from(address / u64::from(CHUNK_BYTES)).ok()?;
        chunk_index.checked_sub(self.first_chunk).filter(|chunk| *chunk < self.chunk_count)
    }

    /// The count of these rings for a chunk.
    #[inline]
    fn count_of(&self, address: u64, rings: RingsId) -> Option<&AtomicU32> {
        self.in_flight[rings.index()].get()?.get(self.chunk_of(address)? as usize)
    }

    /// Counts a descriptor that goes to the kernel by these rings.
    #[inline]
    pub(super) fn give(&self, address: u64, rings: RingsId) {
        if let Some(count) = self.count_of(address, rings) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a descriptor that has come back from the kernel by these rings; false if it had none there.
    #[inline]
    pub(super) fn take_back(&self, address: u64, rings: RingsId) -> bool {
        let Some(count) = self.count_of(address, rings) else { return false };
        let less = |count: u32| count.checked_sub(1);
        // Release: the kernel's last look at the bytes, before its completion was seen, comes before.
        count.try_update(Ordering::Release, Ordering::Relaxed, less).is_ok()
    }

    /// Takes back what went out by these rings. The caller has made sure that the kernel uses nothing of it.
    pub(super) fn take_all_of(&self, rings: RingsId) {
        let counts = self.in_flight[rings.index()].get().into_iter().flatten();
        counts.for_each(|count| count.store(0, Ordering::Release));
    }
}

/// An owned run of registered memory, zeroed when it is made. Its chunks are free again once it is dropped,
/// on any thread.
#[derive(Debug)]
pub struct Registered {
    umem: Arc<Umem>,
    chunks: Chunks,
    length_bytes: usize,
}

impl Umem {
    /// Bytes of registered memory, free or not.
    #[must_use]
    pub fn registered_bytes(&self) -> u64 {
        u64::from(self.area().chunk_count()) * u64::from(CHUNK_BYTES)
    }

    /// Takes `length_bytes` zeroed bytes of registered memory, which begin at a chunk; what is left of the
    /// last chunk stays unused. `None` for no bytes, and if no free run is long enough.
    #[must_use]
    pub fn register(self: &Arc<Self>, length_bytes: usize) -> Option<Registered> {
        let count = u32::try_from(length_bytes.div_ceil(CHUNK_BYTES as usize)).ok()?;
        if count == 0 {
            return None;
        }
        let chunks = self.area().take(count)?;
        let mut registered = Registered { umem: Arc::clone(self), chunks, length_bytes };
        registered.fill(0);
        Some(registered)
    }
}

impl Registered {
    /// The first byte.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.umem.address_of(self.first_chunk())
    }

    /// Number of bytes.
    #[inline]
    pub fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    fn first_chunk(&self) -> u32 {
        self.umem.area().first_chunk + self.chunks.first
    }

    /// The bytes of `range` as descriptors can name them: one run for each chunk that they lie in.
    ///
    /// # Panics
    /// If the range leaves the buffer.
    #[must_use]
    pub fn runs(&self, range: Range<usize>) -> RegisteredRuns<'_> {
        assert!(
            range.start <= range.end && range.end <= self.length_bytes,
            "bytes {}..{} of registered memory of {}",
            range.start,
            range.end,
            self.length_bytes
        );
        let address = u64::from(self.first_chunk()) * u64::from(CHUNK_BYTES) + range.start as u64;
        RegisteredRuns { umem: self.umem.id(), address, left_bytes: range.len(), of: PhantomData }
    }

    /// Whether the kernel has descriptors of chunks that bytes of `range` lie in.
    ///
    /// # Panics
    /// If the range leaves the buffer.
    #[must_use]
    pub fn is_in_flight(&self, range: Range<usize>) -> bool {
        let runs = self.runs(range);
        let (first, count) = (self.umem.area().chunk_of(runs.address), runs.len() as u32);
        first.is_some_and(|first| count != 0 && self.umem.area().is_in_flight(Chunks { first, count }))
    }
}

impl Deref for Registered {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the chunks are mapped while the UMEM lives, and are this value's alone; the kernel only
        // reads them. The area was sized for the chunks and they for the length.
        unsafe { core::slice::from_raw_parts(self.base().as_ptr(), self.length_bytes) }
    }
}

impl DerefMut for Registered {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and the value is borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.base().as_ptr(), self.length_bytes) }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.umem.area().give_back(self.chunks);
    }
}

/// Bytes of registered memory inside one chunk, for a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisteredRun<'a> {
    umem: NonZeroU32,
    address: u64,
    length: u32,
    of: PhantomData<&'a Registered>,
}

impl RegisteredRun<'_> {
    /// First byte, from the start of the UMEM.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Number of bytes, 1 to [`CHUNK_BYTES`]; they lie in one chunk.
    #[must_use]
    pub fn length_bytes(&self) -> u32 {
        self.length
    }

    /// The UMEM that the bytes lie in.
    #[inline]
    pub(super) fn umem(&self) -> NonZeroU32 {
        self.umem
    }
}

/// Runs of registered memory, in order: see [`Registered::runs`].
#[derive(Clone, Debug)]
pub struct RegisteredRuns<'a> {
    umem: NonZeroU32,
    address: u64,
    left_bytes: usize,
    of: PhantomData<&'a Registered>,
}

impl RegisteredRuns<'_> {
    /// Whether they lie in this UMEM.
    #[inline]
    #[must_use]
    pub fn are_of(&self, umem: &Umem) -> bool {
        self.umem == umem.id()
    }
}

impl<'a> Iterator for RegisteredRuns<'a> {
    type Item = RegisteredRun<'a>;

    fn next(&mut self) -> Option<RegisteredRun<'a>> {
        let in_chunk = CHUNK_BYTES - (self.address % u64::from(CHUNK_BYTES)) as u32;
        let length = self.left_bytes.min(in_chunk as usize) as u32;
        let run = RegisteredRun { umem: self.umem, address: self.address, length, of: PhantomData };
        self.address += u64::from(length);
        self.left_bytes -= length as usize;
        (length != 0).then_some(run)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let before = (self.address % u64::from(CHUNK_BYTES)) as usize;
        let chunks = if self.left_bytes == 0 { 0 } else { before + self.left_bytes };
        let count = chunks.div_ceil(CHUNK_BYTES as usize);
        (count, Some(count))
    }
}

impl ExactSizeIterator for RegisteredRuns<'_> {}

#[cfg(test)]
#[path = "registered_tests.rs"]
mod tests;
