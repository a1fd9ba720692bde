//! Frames that the driver buffers for a moment: fragments ahead of their first one, and frames of delayed
//! messages.

use alloc::collections::VecDeque;

use lnet_core::collections::{Link, List, Slab, linked};
use lnet_core::time::Instant;

use crate::contract::{BufferId, Replay};

/// A buffered frame of a message.
struct Buffered {
    stream: u32,
    id: u64,
    until: Instant,
    /// Whether its message is delayed.
    is_delayed: bool,
    link: Link,
}

/// Marks the order in which buffered frames end.
struct Order;

linked!(Buffered, Order, link);

/// The frames that the driver buffers.
pub(crate) struct BufferedFrames {
    slab: Slab<Buffered>,
    order: List<Order>,
    ended: VecDeque<Replay>,
    /// Frames of delayed messages.
    delayed_count: u32,
}

impl BufferedFrames {
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            slab: Slab::new(capacity),
            order: List::new(),
            ended: VecDeque::with_capacity(capacity as usize),
            delayed_count: 0,
        }
    }

    pub(crate) const fn count(&self) -> u32 {
        self.slab.used_count()
    }

    /// Keeps a frame of a message until then; all are for the same time.
    pub(crate) fn keep(
        &mut self,
        (stream, id, is_delayed): (u32, u64, bool),
        until: Instant,
    ) -> Option<BufferId> {
        let slot = self.slab.insert(Buffered { stream, id, until, is_delayed, link: Link::UNLINKED }).ok()?;
        self.delayed_count += u32::from(is_delayed);
        self.order.push_back(&mut self.slab, slot);
        Some(BufferId(slot))
    }

    /// Whether frames of delayed messages are buffered.
    pub(crate) const fn has_delayed(&self) -> bool {
        self.delayed_count != 0
    }

    /// How many frames of some streams are buffered.
    pub(crate) fn count_of(&self, is_its: impl Fn(u32) -> bool) -> u32 {
        self.order.iter(&self.slab).filter(|(_, frame)| is_its(frame.stream)).count() as u32
    }

    /// The frames of a message are received again.
    pub(crate) fn replay(&mut self, stream: u32, id: u64) {
        self.end_where(|frame| frame.stream == stream && frame.id == id, Replay::Again);
    }

    /// The frames of a message are forgotten.
    pub(crate) fn forget(&mut self, stream: u32, id: u64) {
        self.end_where(|frame| frame.stream == stream && frame.id == id, Replay::Forget);
    }

    /// Forgets all frames of a stream.
    pub(crate) fn forget_stream(&mut self, stream: u32) {
        self.end_where(|frame| frame.stream == stream, Replay::Forget);
    }

    fn end_where(&mut self, matches: impl Fn(&Buffered) -> bool, how: fn(BufferId) -> Replay) {
        let mut next = self.order.first();
        while let Some(at) = List::<Order>::step(&self.slab, &mut next) {
            if matches(&self.slab[at]) {
                self.order.remove(&mut self.slab, at);
                self.ended.push_back(how(BufferId(at)));
            }
        }
    }

    /// The message of the frame that has been buffered for longest, and until when it is.
    pub(crate) fn first(&self) -> Option<(u32, u64, Instant)> {
        self.slab.get(self.order.first()).map(|frame| (frame.stream, frame.id, frame.until))
    }

    /// What becomes of a frame that the driver buffers.
    pub(crate) fn poll(&mut self) -> Option<Replay> {
        let replay = self.ended.pop_front()?;
        let (Replay::Again(BufferId(slot)) | Replay::Forget(BufferId(slot))) = replay;
        self.delayed_count -= u32::from(self.slab[slot].is_delayed);
        self.slab.vacate(slot);
        Some(replay)
    }

    /// How many frames it has room for.
    pub(crate) const fn capacity(&self) -> u32 {
        self.slab.capacity()
    }
}
