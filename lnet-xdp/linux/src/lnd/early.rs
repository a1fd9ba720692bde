//! Early frames: packets that are kept for the transfer protocol until it wants them again, or not at all.

use lnet_xdp_proto::BufferId;

use super::exchange::Packet;

/// Packets by the number that the transfer protocol knows them by. Allocates all that it will ever use.
///
/// Chunks of early frames are bounded, so that enough are left to receive into: a packet beyond them is not
/// kept, which is a loss.
pub(super) struct EarlyFrames {
    packets: Box<[Packet]>,
    count: usize,
    chunks_count: usize,
    chunks_max: usize,
}

impl EarlyFrames {
    pub(super) fn new(packets: u32, chunks_max: usize) -> Self {
        let packets = (0..packets).map(|_| Packet::with_capacity()).collect();
        Self { packets, count: 0, chunks_count: 0, chunks_max }
    }

    /// Keeps a packet, which leaves `packet` empty; false, and it stays, if there are too many chunks.
    pub(super) fn keep(&mut self, BufferId(id): BufferId, packet: &mut Packet) -> bool {
        let slot = &mut self.packets[id as usize];
        assert!(slot.is_empty(), "a packet is kept as {id} already");
        if packet.is_empty() || self.chunks_count + packet.parts.len() > self.chunks_max {
            return false;
        }
        self.count += 1;
        self.chunks_count += packet.parts.len();
        std::mem::swap(slot, packet);
        true
    }

    /// Gives a packet back, in an empty `packet`; nothing if it was not kept.
    pub(super) fn take(&mut self, BufferId(id): BufferId, packet: &mut Packet) {
        std::mem::swap(&mut self.packets[id as usize], packet);
        self.count -= usize::from(!packet.is_empty());
        self.chunks_count -= packet.parts.len();
    }

    /// Whether none is kept.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Chunks of the packets that are kept.
    pub(super) fn chunks_count(&self) -> usize {
        self.chunks_count
    }
}
