//! What each of the four rings carries, from the user's side.

use core::mem::{align_of, size_of};
use core::sync::atomic::{Ordering, fence};
use std::sync::Arc;

use rustix::net::xdp::XdpDesc;

use super::half::{Entry, Half};
use crate::xsk::memory::CACHE_LINE_BYTES;
use crate::xsk::registered::RegisteredRun;
use crate::xsk::umem::{CHUNK_BYTES, Frame, RingsId, Umem};

/// The most descriptors of one frame on the wire: the first one and 17 fragments, what a kernel with the
/// default `CONFIG_MAX_SKB_FRAGS` takes in copy mode (net/xdp/xsk.c: `xsk_build_skb`). It drops a longer
/// frame and never gives its chunks back. A zero-copy driver may take fewer.
pub const FRAGMENTS_MAX: u32 = 18;

/// The frame goes on in the next descriptor (`XDP_PKT_CONTD`).
pub(in crate::xsk) const OPTION_CONTINUED: u32 = 1;

/// An entry of a receive or transmit ring (`struct xdp_desc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(in crate::xsk) struct RawDescriptor {
    pub(in crate::xsk) address: u64,
    pub(in crate::xsk) length: u32,
    pub(in crate::xsk) options: u32,
}

// SAFETY: integers without padding.
unsafe impl Entry for RawDescriptor {}

const _: () = assert!(size_of::<RawDescriptor>() == size_of::<XdpDesc>());
const _: () = assert!(align_of::<RawDescriptor>() == align_of::<XdpDesc>());

/// A run of bytes, received or to be sent, with the chunk that it lies in.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped frame takes its chunk out of use"]
pub struct RingDescriptor {
    /// The chunk.
    pub frame: Frame,
    /// First byte, from the start of the chunk.
    pub offset: u16,
    /// Number of bytes, of those to be sent 1 or more; `offset + length` is at most [`CHUNK_BYTES`].
    pub length: u32,
    /// Whether the frame on the wire goes on in the next descriptor of the ring.
    pub more: bool,
}

impl RingDescriptor {
    /// The bytes.
    ///
    /// # Panics
    /// If the frame is another UMEM's, or the fields reach beyond the chunk.
    #[inline]
    #[must_use]
    pub fn bytes<'a>(&'a self, umem: &'a Umem) -> &'a [u8] {
        &umem.bytes(&self.frame)[self.offset as usize..][..self.length as usize]
    }
}

/// Why a transmit ring does not take bytes.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PushError {
    /// The ring has no room: the descriptor may be pushed again later.
    #[error("the transmit ring is full")]
    Full,
    /// The bytes do not lie in the chunk, or there are none; the kernel would keep the chunk for ever.
    #[error("the bytes do not lie in a chunk of {CHUNK_BYTES} bytes, or are none")]
    Bounds,
    /// The frame would have more than [`FRAGMENTS_MAX`] descriptors; the kernel would keep its chunks for
    /// ever. The descriptors before this one are in the ring: end their frame with one that has no `more`.
    #[error("a frame of more than {FRAGMENTS_MAX} descriptors")]
    Fragments,
}

/// Frames on their way to the kernel, to be received into. One per queue, shared by its sockets.
#[derive(Debug)]
pub struct FillRing {
    half: Half<u64>,
    umem: Arc<Umem>,
    id: RingsId,
}

impl FillRing {
    pub(in crate::xsk) fn new(half: Half<u64>, umem: Arc<Umem>, id: RingsId) -> Self {
        Self { half, umem, id }
    }

    /// Moves as many frames as fit from the end of `stock` to the kernel; returns how many.
    ///
    /// # Panics
    /// If a frame is another UMEM's.
    #[inline]
    pub fn fill(&mut self, stock: &mut Vec<Frame>) -> u32 {
        let wanted = u32::try_from(stock.len()).unwrap_or(u32::MAX);
        let count = self.half.available(wanted);
        for _ in 0..count {
            let Some(frame) = stock.pop() else { break };
            let written = self.half.write(self.umem.give(frame, self.id));
            debug_assert!(written, "the ring has room for `count` entries");
        }
        if count > 0 {
            self.half.publish();
        }
        count
    }

    /// Frames that fit now.
    #[inline]
    pub fn free_slots(&mut self) -> u32 {
        self.half.available(self.half.size())
    }

    /// Whether the driver waits to be woken ([`crate::xsk::Device::wake_fill`]) before it takes frames that
    /// are there. Never in copy mode. A driver may say so at any time: it looks for frames and finds none,
    /// frames are given to it, and only then it says that it waits. So it is asked in each turn, with frames
    /// given or not; and behind a full fence, without which this CPU may look before others see the frames.
    #[inline]
    #[must_use]
    pub fn needs_wakeup(&mut self) -> bool {
        fence(Ordering::SeqCst);
        self.half.needs_wakeup() && self.half.available(self.half.size()) != self.half.size()
    }

    /// Entries of the ring.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.half.size()
    }
}

/// Sent frames on their way back. One per queue, shared by its sockets: what comes out was sent by any.
#[derive(Debug)]
pub struct CompletionRing {
    half: Half<u64>,
    umem: Arc<Umem>,
    id: RingsId,
    /// Descriptors of registered memory that have come back, ever.
    registered: u64,
}

impl CompletionRing {
    pub(in crate::xsk) fn new(half: Half<u64>, umem: Arc<Umem>, id: RingsId) -> Self {
        Self { half, umem, id, registered: 0 }
    }

    /// Hands at most `budget` frames that the kernel has finished with to `take`; returns how many. What
    /// was sent from registered memory counts towards the budget and is not handed out.
    #[inline]
    pub fn drain(&mut self, budget: u32, mut take: impl FnMut(Frame)) -> u32 {
        let count = self.half.available(budget);
        let mut taken = 0;
        for _ in 0..count {
            let Some(address) = self.half.read() else { break };
            match self.umem.take(address, self.id) {
                Some(frame) => {
                    taken += 1;
                    take(frame);
                }
                None if self.umem.area().take_back(address, self.id) => self.registered += 1,
                None => self.umem.count_bad_descriptor(),
            }
        }
        if count > 0 {
            self.half.publish();
        }
        taken
    }

    /// Descriptors of registered memory that the kernel has finished with and [`Self::drain`] has seen, since
    /// the ring was made.
    #[must_use]
    pub fn registered(&self) -> u64 {
        self.registered
    }
}

/// Received frames of one socket.
#[derive(Debug)]
pub struct RxRing {
    half: Half<RawDescriptor>,
    umem: Arc<Umem>,
    id: RingsId,
    /// Cache lines of each run that are fetched before it is looked at.
    lines_ahead: u32,
}

impl RxRing {
    pub(in crate::xsk) fn new(half: Half<RawDescriptor>, umem: Arc<Umem>, id: RingsId) -> Self {
        Self { half, umem, id, lines_ahead: 0 }
    }

    /// Has `bytes` of each run, and the next descriptor while it is waited for, fetched into the cache before
    /// they are looked at: another CPU wrote them. For a user who will look at as many bytes of each.
    pub fn fetch_ahead(&mut self, bytes: u32) {
        self.lines_ahead = bytes.div_ceil(CACHE_LINE_BYTES as u32);
    }

    /// Hands at most `budget` descriptors to `take`, in the order of arrival; returns how many. A frame of
    /// several descriptors may be cut by the budget: its rest comes with the next call.
    #[inline]
    pub fn receive(&mut self, budget: u32, mut take: impl FnMut(RingDescriptor)) -> u32 {
        let count = self.half.available(budget);
        let mut taken = 0;
        for _ in 0..count {
            let Some(raw) = self.half.read() else { break };
            let lines = raw.length.div_ceil(CACHE_LINE_BYTES as u32).min(self.lines_ahead);
            self.umem.prefetch(raw.address, lines);
            match self.believe(raw) {
                Some(descriptor) => {
                    taken += 1;
                    take(descriptor);
                }
                None => self.umem.count_bad_descriptor(),
            }
        }
        if count > 0 {
            self.half.publish();
        }
        taken
    }

    #[inline]
    fn believe(&self, raw: RawDescriptor) -> Option<RingDescriptor> {
        let offset = (raw.address % u64::from(CHUNK_BYTES)) as u16;
        if raw.length > CHUNK_BYTES - u32::from(offset) {
            return None;
        }
        let frame = self.umem.take(raw.address, self.id)?;
        let more = raw.options & OPTION_CONTINUED != 0;
        Some(RingDescriptor { frame, offset, length: raw.length, more })
    }

    /// Descriptors that could be received now: what to look at again before sleeping.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        if self.lines_ahead != 0 {
            self.half.prefetch();
        }
        self.half.available(self.half.size())
    }
}

/// Frames that one socket is to send.
#[derive(Debug)]
pub struct TxRing {
    half: Half<RawDescriptor>,
    umem: Arc<Umem>,
    id: RingsId,
    /// Descriptors of the frame that is not complete yet.
    fragments: u32,
}

impl TxRing {
    pub(in crate::xsk) fn new(half: Half<RawDescriptor>, umem: Arc<Umem>, id: RingsId) -> Self {
        umem.area().open(id);
        Self { half, umem, id, fragments: 0 }
    }

    /// Descriptors that can be pushed now. Before a frame of several descriptors, make sure of as many.
    #[inline]
    pub fn free_slots(&mut self) -> u32 {
        self.half.available(self.half.size())
    }

    /// Puts a descriptor into the ring, for the kernel to see after [`Self::commit`]. Its chunk is the
    /// kernel's from here on, and comes back through the queue's [`CompletionRing`].
    ///
    /// # Errors
    /// [`PushError`], with the descriptor.
    ///
    /// # Panics
    /// If the frame is another UMEM's.
    #[inline]
    pub fn push(&mut self, descriptor: RingDescriptor) -> Result<(), (PushError, RingDescriptor)> {
        let RingDescriptor { offset, length, more, .. } = descriptor;
        let offset = u32::from(offset);
        if offset >= CHUNK_BYTES || length == 0 || length > CHUNK_BYTES - offset {
            return Err((PushError::Bounds, descriptor));
        }
        if let Err(error) = self.check(more) {
            return Err((error, descriptor));
        }
        let address = self.umem.give(descriptor.frame, self.id) + u64::from(offset);
        self.write(address, length, more);
        Ok(())
    }

    /// Pushes like [`Self::push`], for bytes of registered memory: no frame goes, and none comes back.
    /// The bytes must not be written before the kernel has finished with them.
    ///
    /// # Errors
    /// [`PushError`]; the run can be pushed again.
    ///
    /// # Panics
    /// If the run is another UMEM's.
    #[inline]
    pub fn push_registered(&mut self, run: RegisteredRun<'_>, more: bool) -> Result<(), PushError> {
        assert!(run.umem() == self.umem.id(), "registered memory of another UMEM was sent");
        self.check(more)?;
        self.umem.area().give(run.address(), self.id);
        self.write(run.address(), run.length_bytes(), more);
        Ok(())
    }

    #[inline]
    fn check(&mut self, more: bool) -> Result<(), PushError> {
        if more && self.fragments + 1 >= FRAGMENTS_MAX {
            return Err(PushError::Fragments);
        }
        if self.half.available(1) == 0 { Err(PushError::Full) } else { Ok(()) }
    }

    #[inline]
    fn write(&mut self, address: u64, length: u32, more: bool) {
        let options = if more { OPTION_CONTINUED } else { 0 };
        let written = self.half.write(RawDescriptor { address, length, options });
        debug_assert!(written, "the ring has room for an entry");
        self.fragments = if more { self.fragments + 1 } else { 0 };
    }

    /// Makes what was pushed visible to the kernel. It sends it when it is kicked
    /// ([`crate::xsk::Device::kick`]).
    #[inline]
    pub fn commit(&mut self) {
        self.half.publish();
    }

    /// Entries of the ring.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.half.size()
    }
}
