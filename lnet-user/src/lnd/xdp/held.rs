//! Packets that are kept for the transfer protocol until it wants them again, or not at all.

use lnet_core::xfer::HoldId;

use crate::xsk::{FRAGMENTS_MAX, RxDescriptor};

/// Packets by the number that the transfer protocol knows them by. Allocates all that it will ever use.
///
/// Their chunks are bounded, so that enough are left to receive into: a packet beyond them is not kept, which
/// is a loss.
pub(super) struct Held {
    packets: Box<[Vec<RxDescriptor>]>,
    chunks_count: usize,
    chunks_max: usize,
}

impl Held {
    pub(super) fn new(packets: u32, chunks_max: usize) -> Self {
        let packet = || Vec::with_capacity(FRAGMENTS_MAX as usize);
        Self { packets: (0..packets).map(|_| packet()).collect(), chunks_count: 0, chunks_max }
    }

    /// Keeps a packet, which leaves `packet` empty; false, and it stays, if there are too many chunks.
    pub(super) fn keep(&mut self, HoldId(id): HoldId, packet: &mut Vec<RxDescriptor>) -> bool {
        let place = &mut self.packets[id as usize];
        assert!(place.is_empty(), "a packet is kept as {id} already");
        if self.chunks_count + packet.len() > self.chunks_max {
            return false;
        }
        self.chunks_count += packet.len();
        std::mem::swap(place, packet);
        true
    }

    /// Gives a packet back, in an empty `packet`; nothing if it was not kept.
    pub(super) fn take(&mut self, HoldId(id): HoldId, packet: &mut Vec<RxDescriptor>) {
        std::mem::swap(&mut self.packets[id as usize], packet);
        self.chunks_count -= packet.len();
    }

    /// Whether none is kept.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.chunks_count == 0
    }

    /// Chunks of the packets that are kept.
    pub(super) fn chunks_count(&self) -> usize {
        self.chunks_count
    }
}
