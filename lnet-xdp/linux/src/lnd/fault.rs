//! Faults of a sender, for tests: frames that go out twice, or late.

use lnet_io::xsk::{FRAGMENTS_MAX, RingDescriptor};

/// What a sending half does wrong on purpose. A test fault: no network of its own doubles or reorders frames
/// where loss recovery is to be tested, so a node can be told to
/// ([`XdpConfig::send_fault`](crate::XdpConfig::send_fault)).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SendFault {
    /// Every so many frames one is sent twice; 0 for none.
    pub double_every: u32,
    /// Every so many frames one is kept back; 0 for none.
    pub delay_every: u32,
    /// Frames that overtake one that is kept back.
    pub delay_frames: u32,
}

/// Counts frames, and keeps the one that is late.
pub(super) struct FaultInjector {
    fault: SendFault,
    frames_count: u32,
    /// The frame that is late, and the lane that it leaves by.
    late: Vec<RingDescriptor>,
    lane_index: usize,
    /// Frames that still overtake it.
    overtaking: u32,
}

/// What becomes of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Sent,
    Doubled,
    Delayed,
}

impl FaultInjector {
    pub(super) fn new(fault: SendFault) -> Self {
        let late = Vec::with_capacity(FRAGMENTS_MAX as usize);
        Self { fault, frames_count: 0, late, lane_index: 0, overtaking: 0 }
    }

    /// Whether anything goes wrong.
    #[inline]
    pub(super) fn are_set(&self) -> bool {
        self.fault != SendFault::default()
    }

    /// What is to become of the next frame.
    #[inline]
    pub(super) fn next(&mut self) -> Fate {
        if !self.are_set() {
            return Fate::Sent;
        }
        self.frames_count = self.frames_count.wrapping_add(1);
        self.overtaking = self.overtaking.saturating_sub(1);
        let is_every = |every: u32| every != 0 && self.frames_count.is_multiple_of(every);
        if is_every(self.fault.delay_every) && self.late.is_empty() {
            Fate::Delayed
        } else if is_every(self.fault.double_every) {
            Fate::Doubled
        } else {
            Fate::Sent
        }
    }

    /// Keeps a frame back.
    pub(super) fn delay(&mut self, lane_index: usize, frame: &mut Vec<RingDescriptor>) {
        std::mem::swap(&mut self.late, frame);
        (self.lane_index, self.overtaking) = (lane_index, self.fault.delay_frames);
    }

    /// The frame that is late, once enough have overtaken it, in an empty `frame`, and its lane.
    pub(super) fn overdue(&mut self, frame: &mut Vec<RingDescriptor>) -> Option<usize> {
        if self.late.is_empty() || self.overtaking != 0 {
            return None;
        }
        std::mem::swap(&mut self.late, frame);
        Some(self.lane_index)
    }

    /// Gives up the frame that is late, if one is: its lane may go.
    pub(super) fn give_up(&mut self) -> Option<impl Iterator<Item = RingDescriptor>> {
        (!self.late.is_empty()).then(|| self.late.drain(..))
    }

    /// Chunks of the frame that is late.
    pub(super) fn chunks_count(&self) -> usize {
        self.late.len()
    }
}
