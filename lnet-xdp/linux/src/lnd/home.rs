//! Home of a shard's frames and buffers, while nothing is in them.
//!
//! Invariant: a frame or a buffer whose home another shard is goes there, and never stays.

use std::collections::VecDeque;
use std::sync::Arc;

use lnet_io::xsk::{Frame, Umem};

use super::exchange::{BUFFERS_MAX, DatagramBuffer, Exchange, Packet};
use super::ports::UmemShare;

/// The frames and buffers of a shard that are at home.
pub(super) struct Home {
    shard: u8,
    /// Number of the first chunk whose home this shard is.
    pub(super) first_chunk: u32,
    /// Chunks whose home one shard is.
    frames_per_shard: u32,
    /// Frames at home that are not in use: those that were sent at the back, from where they are sent again
    /// while this CPU's cache has them; those that another CPU's kernel wrote to at the front, from where
    /// they are given back to it.
    pub(super) stock: VecDeque<Frame>,
    /// The UMEM that the frames lie in, while there is an NI over rings.
    pub(super) umem: Option<Arc<Umem>>,
    /// Buffers at home that no datagram is in: for those that are kept or handed to a sibling.
    #[expect(clippy::vec_box, reason = "they travel between shards as they are, in small places")]
    pub(super) buffers: Vec<Box<DatagramBuffer>>,
    /// Whether they were made.
    has_buffers: bool,
    /// Scratch: frames on their way to the kernel.
    pub(super) moving: Vec<Frame>,
}

impl Home {
    pub(super) fn new(shard: u8, frames_per_shard: u32) -> Self {
        Self {
            shard,
            first_chunk: u32::from(shard) * frames_per_shard,
            frames_per_shard,
            stock: VecDeque::new(),
            umem: None,
            buffers: Vec::new(),
            has_buffers: false,
            moving: Vec::with_capacity(frames_per_shard as usize),
        }
    }

    /// The UMEM that frames lie in: rings bring it.
    #[inline]
    pub(super) fn umem(&self) -> &Arc<Umem> {
        self.umem.as_ref().expect("NIs over rings have a UMEM")
    }

    /// The UMEM, and the stock that frames to send are taken from.
    #[inline]
    pub(super) fn umem_and_stock(&mut self) -> (&Arc<Umem>, &mut VecDeque<Frame>) {
        (self.umem.as_ref().expect("NIs over rings have a UMEM"), &mut self.stock)
    }

    /// Whether a frame is of the present UMEM.
    pub(super) fn is_ours(&self, frame: &Frame) -> bool {
        self.umem.as_ref().is_some_and(|umem| umem.has(frame))
    }

    /// Whether this shard is a frame's home.
    #[inline]
    fn has(&self, frame: &Frame) -> bool {
        frame.chunk_index().wrapping_sub(self.first_chunk) < self.frames_per_shard
    }

    /// Sends a frame to the shard whose home it is.
    #[inline]
    fn send_home(&self, frame: Frame, exchange: &mut Exchange) {
        exchange.send_home((frame.chunk_index() / self.frames_per_shard) as usize, frame);
    }

    /// Takes a frame home that was received into, and that is not used any more.
    #[inline]
    pub(super) fn settle(&mut self, frame: Frame, exchange: &mut Exchange) {
        if self.has(&frame) {
            self.stock.push_front(frame);
        } else {
            self.send_home(frame, exchange);
        }
    }

    /// Takes a frame home that was sent; whether its home is here.
    #[inline]
    pub(super) fn take_sent(&mut self, frame: Frame, exchange: &mut Exchange) -> bool {
        let is_own = self.has(&frame);
        if is_own {
            self.stock.push_back(frame);
        } else {
            self.send_home(frame, exchange);
        }
        is_own
    }

    /// Takes the frames or the buffer of a packet home that is not used any more.
    pub(super) fn settle_packet(&mut self, packet: &mut Packet, exchange: &mut Exchange) {
        for descriptor in packet.parts.drain(..) {
            self.settle(descriptor.frame, exchange);
        }
        if let Some(datagram) = packet.datagram.take() {
            if datagram.home == self.shard {
                self.buffers.push(datagram);
            } else {
                exchange.return_buffer(datagram);
            }
        }
    }

    /// Takes the shard's frames in, with the first NI over rings.
    pub(super) fn add_frames(&mut self, UmemShare { umem, frames }: UmemShare) {
        self.stock = frames;
        self.stock.reserve(self.frames_per_shard as usize - self.stock.len());
        self.umem = Some(umem);
    }

    /// Gives the frames up, with the last NI over rings.
    pub(super) fn remove_frames(&mut self) -> Option<UmemShare> {
        let umem = self.umem.take()?;
        Some(UmemShare { umem, frames: std::mem::take(&mut self.stock) })
    }

    /// Makes buffers for datagrams that are kept, as many as `early_count`, or handed over, before the first
    /// one comes.
    pub(super) fn add_buffers(&mut self, early_count: usize, exchange: &Exchange, datagram_max_bytes: u32) {
        if self.has_buffers {
            return;
        }
        self.has_buffers = true;
        let count = (early_count + exchange.buffer_count(datagram_max_bytes)).min(BUFFERS_MAX);
        self.buffers.extend(DatagramBuffer::several(self.shard, count, datagram_max_bytes));
    }
}
