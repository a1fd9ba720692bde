//! The packet memory, and the tokens that stand for its chunks.

use core::num::NonZeroU32;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use super::error::{SocketError, UmemError};
use super::memory::{self, CACHE_LINE_BYTES, Mapping, PageKind};
use super::registered::Area;
use super::socket::Attachment;
use crate::locks::{Mutex, MutexGuard};

/// Bytes of a chunk; the most that AF_XDP takes in aligned mode on pages of 4 KiB.
pub const CHUNK_BYTES: u32 = 4096;
/// Bytes that the kernel keeps free before a received frame in each chunk (`XDP_PACKET_HEADROOM`).
const PACKET_HEADROOM_BYTES: u32 = 256;
/// Bytes of a chunk that receiving can fill.
pub const RECEIVE_BYTES: u32 = CHUNK_BYTES - PACKET_HEADROOM_BYTES;
/// The most chunks of one UMEM: 64 GiB.
pub const CHUNK_COUNT_MAX: u32 = 1 << 24;

const HUGE_PAGE_BYTES: usize = 2 << 20;

const USER: u8 = 0;
/// The kernel has chunks with this number and those above, one for each [`RingsId`] of a queue. The number
/// between is for tests, which play the kernel.
const KERNEL: u8 = 2;

/// The rings of one queue of a UMEM, by which the kernel got a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RingsId(u8);

impl RingsId {
    /// Queues that one UMEM tells apart.
    pub(super) const QUEUES_MAX: usize = (u8::MAX - KERNEL) as usize + 1;

    /// Its place among all of them.
    #[inline]
    pub(super) const fn index(self) -> usize {
        (self.0 - KERNEL) as usize
    }

    /// Rings of the queue with this number, below [`RingsId::QUEUES_MAX`].
    pub(super) const fn of_queue(number: usize) -> Self {
        Self(KERNEL + number as u8)
    }
}

/// How large a UMEM is and where it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UmemConfig {
    /// Number of chunks of [`CHUNK_BYTES`], 1 to [`CHUNK_COUNT_MAX`].
    pub chunk_count: u32,
    /// Whether to take 2 MiB pages of the system's pool when it has enough, else normal pages with a request
    /// for transparent huge ones.
    pub huge_pages: bool,
    /// Bytes of registered memory ([`Umem::register`]), beyond the chunks; rounded up to whole ones, which
    /// count towards [`CHUNK_COUNT_MAX`].
    pub registered_bytes: u64,
}

impl UmemConfig {
    /// `chunk_count` chunks, no registered memory, huge pages when there are any.
    #[must_use]
    pub const fn new(chunk_count: u32) -> Self {
        Self { chunk_count, huge_pages: true, registered_bytes: 0 }
    }

    /// Whole chunks of registered memory.
    fn registered_chunks(&self) -> u64 {
        self.registered_bytes.div_ceil(u64::from(CHUNK_BYTES))
    }
}

/// The exclusive right to one chunk of one UMEM.
///
/// It is neither `Copy` nor `Clone`: sending and filling consume it, and only receiving and completing
/// give it back. A frame that is dropped takes its chunk out of use for as long as the UMEM lives.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped frame takes its chunk out of use"]
pub struct Frame {
    chunk_index: u32,
    umem: NonZeroU32,
}

impl Frame {
    /// Number of the chunk in its UMEM.
    #[inline]
    pub const fn chunk_index(&self) -> u32 {
        self.chunk_index
    }

    /// The chunk's first byte, as the kernel counts.
    pub(super) fn address(&self) -> u64 {
        u64::from(self.chunk_index) * u64::from(CHUNK_BYTES)
    }
}

/// Who holds the chunks of a UMEM.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Census {
    /// Chunks that frames stand for, dropped frames among them.
    pub user: u32,
    /// Chunks that the kernel holds.
    pub kernel: u32,
}

/// What the UMEM remembers of the sockets and rings that use it.
#[derive(Default, Debug)]
pub(super) struct Registry {
    /// Everything that was attached and may still be there.
    pub(super) attached: Vec<Weak<Attachment>>,
    /// Queues that were bound since the kernel was last seen to use nothing of theirs; each is told apart by
    /// its position ([`RingsId::of_queue`]).
    pub(super) bound: Vec<Option<super::socket::QueueId>>,
}

impl Registry {
    /// What is attached now.
    pub(super) fn alive(&mut self) -> impl Iterator<Item = Arc<Attachment>> + '_ {
        self.attached.retain(|attachment| attachment.strong_count() > 0);
        self.attached.iter().filter_map(Weak::upgrade)
    }

    /// The number by which a queue is told apart, its former one if it still has that; others are free.
    pub(super) fn number_of(&mut self, queue: super::socket::QueueId) -> Result<usize, SocketError> {
        let known = self.bound.iter().position(|bound| *bound == Some(queue));
        let free = || self.bound.iter().position(Option::is_none);
        let number = known.or_else(free).unwrap_or(self.bound.len());
        if number >= RingsId::QUEUES_MAX {
            return Err(SocketError::TooManyQueues { max: RingsId::QUEUES_MAX });
        }
        if number == self.bound.len() {
            self.bound.push(None);
        }
        Ok(number)
    }
}

/// Packet memory: chunks that frames stand for, shared with the kernel by the sockets on it.
#[derive(Debug)]
pub struct Umem {
    memory: Mapping,
    /// Who holds each chunk: `USER`, or the kernel by some rings.
    holders: Box<[AtomicU8]>,
    /// The memory behind the chunks that `holders` are about.
    area: Area,
    bad_descriptors: AtomicU64,
    id: NonZeroU32,
    registry: Mutex<Registry>,
}

static NEXT_ID: AtomicU32 = AtomicU32::new(1);

impl Umem {
    /// Maps a UMEM and makes the frame of each of its chunks, in the order of their numbers. Deal
    /// frames out to shards in runs: neighbours share a cache line of bookkeeping.
    ///
    /// # Errors
    /// [`UmemError`] when the configuration is out of range or the kernel has no such memory.
    pub fn new(config: &UmemConfig) -> Result<(Arc<Self>, Vec<Frame>), UmemError> {
        let length_bytes = checked_length(config)?;
        let memory = map(length_bytes, config.huge_pages)?;
        // Zero after a wrap: ids are never given twice, so that a frame cannot pass for another UMEM's.
        let id = NEXT_ID
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |id| (id != 0).then(|| id.wrapping_add(1)))
            .ok()
            .and_then(NonZeroU32::new)
            .ok_or(UmemError::IdsExhausted)?;
        let holders = (0..config.chunk_count).map(|_| AtomicU8::new(USER)).collect();
        let umem = Self {
            memory,
            holders,
            // `checked_length` bounds it.
            area: Area::new(config.chunk_count, config.registered_chunks() as u32),
            bad_descriptors: AtomicU64::new(0),
            id,
            registry: Mutex::default(),
        };
        let frames = (0..config.chunk_count).map(|chunk_index| Frame { chunk_index, umem: id }).collect();
        Ok((Arc::new(umem), frames))
    }

    /// Number of chunks that frames stand for.
    #[must_use]
    pub fn chunk_count(&self) -> u32 {
        // `checked_length` bounds it.
        self.holders.len() as u32
    }

    /// The bytes of the frame's chunk, [`CHUNK_BYTES`] of them.
    ///
    /// # Panics
    /// If the frame is another UMEM's.
    #[inline]
    #[must_use]
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        let start = self.chunk_start(frame);
        // SAFETY: the chunk is mapped while `self` lives, and the frame, borrowed for as long as the slice,
        // is the only right to it: neither the kernel nor another slice writes there.
        unsafe { core::slice::from_raw_parts(start.as_ptr(), CHUNK_BYTES as usize) }
    }

    /// The bytes of the frame's chunk, [`CHUNK_BYTES`] of them, to write.
    ///
    /// # Panics
    /// If the frame is another UMEM's.
    #[inline]
    #[must_use]
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let start = self.chunk_start(frame);
        // SAFETY: the chunk is mapped while `self` lives, and the frame, borrowed exclusively for as long as
        // the slice, is the only right to it: no other code reads or writes there.
        unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), CHUNK_BYTES as usize) }
    }

    #[inline]
    fn chunk_start(&self, frame: &Frame) -> NonNull<u8> {
        self.assert_own(frame);
        self.address_of(frame.chunk_index)
    }

    /// The first byte of a chunk, be it a frame's or registered.
    #[inline]
    pub(super) fn address_of(&self, chunk_index: u32) -> NonNull<u8> {
        let offset = chunk_index as usize * CHUNK_BYTES as usize;
        debug_assert!(offset < self.memory.length_bytes());
        // SAFETY: frames and registered memory are made only of chunks that the mapping was sized for.
        unsafe { self.memory.base().add(offset) }
    }

    /// Fetches the first cache lines of a run.
    #[inline]
    pub(super) fn prefetch(&self, address: u64, lines: u32) {
        let start = self.memory.base().as_ptr().wrapping_add(address as usize);
        for line in 0..lines as usize {
            memory::prefetch(start.wrapping_add(line * CACHE_LINE_BYTES));
        }
    }

    /// The registered memory.
    #[inline]
    pub(super) fn area(&self) -> &Area {
        &self.area
    }

    /// What tells this UMEM from others of this process.
    #[inline]
    pub(super) fn id(&self) -> NonZeroU32 {
        self.id
    }

    #[inline]
    fn assert_own(&self, frame: &Frame) {
        assert!(frame.umem == self.id, "a frame of UMEM {} was used with UMEM {}", frame.umem, self.id);
    }

    /// Whether a frame is one of this UMEM's.
    #[inline]
    pub fn has(&self, frame: &Frame) -> bool {
        frame.umem == self.id
    }

    /// Who holds the chunks now. Exact while no other thread moves frames.
    #[must_use]
    pub fn census(&self) -> Census {
        let mut census = Census::default();
        for holder in &self.holders {
            match holder.load(Ordering::Relaxed) {
                USER => census.user += 1,
                _ => census.kernel += 1,
            }
        }
        census
    }

    /// Descriptors from the kernel that were not believed: outside of the UMEM, across the end of a chunk,
    /// or naming a chunk that the kernel does not hold.
    #[must_use]
    pub fn bad_descriptors(&self) -> u64 {
        self.bad_descriptors.load(Ordering::Relaxed)
    }

    /// Counts a descriptor that was not believed.
    #[cold]
    pub(super) fn count_bad_descriptor(&self) {
        self.bad_descriptors.fetch_add(1, Ordering::Relaxed);
    }

    /// Hands the frame's chunk to the kernel: the address of its first byte, as the kernel counts.
    ///
    /// # Panics
    /// If the frame is another UMEM's.
    #[inline]
    pub(super) fn give(&self, frame: Frame, rings: RingsId) -> u64 {
        self.assert_own(&frame);
        // Relaxed: the ring's release and acquire order this before whatever the kernel does next.
        self.holders[frame.chunk_index as usize].store(rings.0, Ordering::Relaxed);
        frame.address()
    }

    /// Takes back the chunk that `address` lies in, if the kernel got it by these rings and holds it still.
    #[inline]
    pub(super) fn take(&self, address: u64, rings: RingsId) -> Option<Frame> {
        self.pass(address, rings, USER)
    }

    /// Passes a chunk on from who got it by these rings, if it is there.
    #[inline]
    pub(super) fn pass(&self, address: u64, RingsId(from): RingsId, to: u8) -> Option<Frame> {
        let chunk_index = u32::try_from(address / u64::from(CHUNK_BYTES)).ok()?;
        let holder = self.holders.get(chunk_index as usize)?;
        // A compare-and-exchange would take 10 ns more, for each message. A kernel that brings one chunk by
        // two rings at once is not defended against: it could as well write to it while it is ours.
        if holder.load(Ordering::Relaxed) != from {
            return None;
        }
        holder.store(to, Ordering::Relaxed);
        Some(Frame { chunk_index, umem: self.id })
    }

    /// Takes back every chunk that the kernel got by these rings. The caller has made sure that it uses none
    /// of them.
    pub(super) fn take_all_of(&self, rings: RingsId) -> Vec<Frame> {
        self.area.take_all_of(rings);
        let address = |chunk_index: u32| u64::from(chunk_index) * u64::from(CHUNK_BYTES);
        (0..self.chunk_count()).filter_map(|chunk_index| self.take(address(chunk_index), rings)).collect()
    }

    /// The memory, as the kernel is told of it: address of the first byte and length in bytes.
    pub(super) fn extent(&self) -> (u64, u64) {
        let chunks = u64::from(self.chunk_count()) + u64::from(self.area.chunk_count());
        let length_bytes = chunks * u64::from(CHUNK_BYTES);
        debug_assert!(length_bytes <= self.memory.length_bytes() as u64);
        (self.memory.base().as_ptr().expose_provenance() as u64, length_bytes)
    }

    /// The sockets and rings that use this UMEM.
    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        // The list stays sound if its holder panics: entries are added and removed whole.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn checked_length(config: &UmemConfig) -> Result<usize, UmemError> {
    if config.chunk_count == 0 || config.chunk_count > CHUNK_COUNT_MAX {
        return Err(UmemError::ChunkCount { chunk_count: config.chunk_count });
    }
    let registered_chunks = config.registered_chunks();
    if registered_chunks > u64::from(CHUNK_COUNT_MAX - config.chunk_count) {
        let UmemConfig { chunk_count, registered_bytes, .. } = *config;
        return Err(UmemError::Registered { registered_bytes, chunk_count });
    }
    Ok((config.chunk_count as usize + registered_chunks as usize) * CHUNK_BYTES as usize)
}

fn map(length_bytes: usize, huge_pages: bool) -> Result<Mapping, UmemError> {
    // The system may have huge pages, and a limit of a container's for fewer.
    if huge_pages
        && let Ok(memory) = Mapping::anonymous(length_bytes.next_multiple_of(HUGE_PAGE_BYTES), PageKind::Huge)
        && memory.populate().is_ok()
    {
        return Ok(memory);
    }
    let memory = Mapping::anonymous(length_bytes, PageKind::Normal)
        .map_err(|source| UmemError::Map { length_bytes, source })?;
    if huge_pages {
        // A kernel without transparent huge pages refuses the advice; the memory is as good without.
        let _ = memory.advise_huge();
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_their_bytes_to_themselves() {
        let (umem, mut frames) = Umem::plain(4).unwrap();
        for (value, frame) in (1u8..).zip(&mut frames) {
            umem.bytes_mut(frame).fill(value);
        }
        for (value, frame) in (1u8..).zip(&frames) {
            assert_eq!(umem.bytes(frame).len(), CHUNK_BYTES as usize);
            assert!(umem.bytes(frame).iter().all(|byte| *byte == value));
        }
        assert_eq!(umem.census(), Census { user: 4, kernel: 0 });
    }

    #[test]
    #[should_panic(expected = "was used with UMEM")]
    fn a_frame_of_another_umem_panics() {
        let (_first, frames) = Umem::plain(1).unwrap();
        let (second, _frames) = Umem::plain(1).unwrap();
        let _ = second.bytes(&frames[0]);
    }

    #[test]
    fn a_chunk_is_taken_back_once() {
        let (umem, mut frames) = Umem::plain(2).unwrap();
        let rings = RingsId::of_queue(3);
        let address = umem.give(frames.pop().unwrap(), rings);
        assert_eq!(address, u64::from(CHUNK_BYTES));
        assert_eq!(umem.census(), Census { user: 1, kernel: 1 });
        assert_eq!(umem.take(address, RingsId::of_queue(9)), None, "by other rings");
        assert_eq!(umem.take(address + 300, rings).unwrap().chunk_index(), 1);
        assert_eq!(umem.take(address, rings), None);
    }

    #[test]
    fn chunks_of_one_queue_are_taken_back_alone() {
        let (umem, frames) = Umem::plain(6).unwrap();
        let queues = [RingsId::of_queue(0), RingsId::of_queue(RingsId::QUEUES_MAX - 1)];
        let mut frames = frames.into_iter();
        for (number, frame) in frames.by_ref().take(5).enumerate() {
            umem.give(frame, queues[number % 2]);
        }
        let indices = |frames: Vec<Frame>| frames.iter().map(Frame::chunk_index).collect::<Vec<_>>();
        assert_eq!(indices(umem.take_all_of(queues[0])), [0, 2, 4]);
        assert_eq!(umem.census(), Census { user: 4, kernel: 2 });
        assert_eq!(indices(umem.take_all_of(queues[1])), [1, 3]);
    }

    #[test]
    fn foreign_addresses_are_not_believed() {
        let (umem, _frames) = Umem::plain(2).unwrap();
        for address in [0, 4095, 4096, 8191, 8192, 1 << 20, u64::from(u32::MAX) << 12, 1 << 44, u64::MAX] {
            assert_eq!(umem.take(address, RingsId::of_queue(9)), None, "address {address:#x}");
        }
    }

    #[test]
    fn sizes_are_checked() {
        assert!(matches!(Umem::plain(0), Err(UmemError::ChunkCount { chunk_count: 0 })));
        let count = CHUNK_COUNT_MAX + 1;
        assert!(
            matches!(Umem::plain(count), Err(UmemError::ChunkCount { chunk_count }) if chunk_count == count)
        );
        let left_bytes = u64::from(CHUNK_COUNT_MAX - 1) * u64::from(CHUNK_BYTES);
        for registered_bytes in [left_bytes + 1, u64::MAX] {
            let config = UmemConfig { registered_bytes, ..UmemConfig::new(1) };
            let expected = UmemError::Registered { registered_bytes, chunk_count: 1 };
            assert_eq!(Umem::new(&config).unwrap_err(), expected);
        }
    }

    #[test]
    fn mapped_memory_is_zeroed() {
        for huge_pages in [false, true] {
            let config = UmemConfig { huge_pages, ..UmemConfig::new(700) };
            let (umem, mut frames) = Umem::new(&config).unwrap();
            assert!(frames.iter().all(|frame| umem.bytes(frame).iter().all(|byte| *byte == 0)));
            umem.bytes_mut(&mut frames[699])[4095] = 1;
            assert_eq!(umem.bytes(&frames[699])[4095], 1);
        }
    }
}
