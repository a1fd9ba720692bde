//! The tap of an LND: copies of its frames for the captures that run.
//!
//! Invariants: without a capture it costs one look at a length; with one it copies and counts, and never
//! allocates, locks or waits. A frame is in a capture's ring whole, up to the snap length, or is counted as
//! missed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rtrb::Producer;
use rustix::time::{ClockId, clock_gettime};

use super::table::{Link, Shared};

/// Bytes before the bytes of a frame in a ring.
pub(super) const HEAD_BYTES: usize = 24;

/// Which way a frame went. The numbers are those of pcapng's `epb_flags`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Arrived here.
    Received = 1,
    /// Handed to the device, or to the kernel.
    Sent = 2,
}

/// What stands before the bytes of a frame in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    /// Since 1970.
    pub(super) time_ns: u64,
    /// The number of its interface in the capture.
    pub(super) interface: u32,
    /// `epb_flags`.
    pub(super) flags: u32,
    /// Bytes that follow.
    pub(super) captured_bytes: u32,
    /// Bytes that the frame had.
    pub(super) frame_bytes: u32,
}

impl Head {
    pub(super) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.time_ns.to_ne_bytes());
        let words = [self.interface, self.flags, self.captured_bytes, self.frame_bytes];
        for (field, word) in bytes[8..].as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *field = word.to_ne_bytes();
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HEAD_BYTES]) -> Self {
        let mut time = [0; 8];
        time.copy_from_slice(&bytes[..8]);
        let word = |index: usize| u32::from_ne_bytes(bytes[8..].as_chunks::<4>().0[index]);
        Self {
            time_ns: u64::from_ne_bytes(time),
            interface: word(0),
            flags: word(1),
            captured_bytes: word(2),
            frame_bytes: word(3),
        }
    }
}

/// How far `CLOCK_REALTIME` is ahead of `CLOCK_MONOTONIC`, nanoseconds. A capture goes by that of its start,
/// so that its time never jumps.
#[derive(Clone, Copy, Debug)]
pub(super) struct RealTime {
    ahead_ns: u64,
}

impl RealTime {
    pub(super) fn measure() -> Self {
        Self { ahead_ns: nanoseconds(ClockId::Realtime).wrapping_sub(nanoseconds(ClockId::Monotonic)) }
    }

    /// Nanoseconds since 1970.
    pub(super) fn now_ns(self) -> u64 {
        nanoseconds(ClockId::Monotonic).wrapping_add(self.ahead_ns)
    }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Neither part is negative after 1970.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Where the frames of one LND go for one capture.
pub struct TapEnd {
    /// The capture.
    pub(super) id: u64,
    pub(super) ring: Producer<u8>,
    pub(super) shared: Arc<Shared>,
    /// Whether a frame is being recorded, whose time may have been read and that is not in the ring yet.
    pub(super) is_recording: Arc<AtomicBool>,
    pub(super) real_time: RealTime,
    /// Bytes of each frame that are kept.
    pub(super) frame_bytes: u32,
}

impl TapEnd {
    fn record<'a>(
        &mut self,
        (index, link): (u32, Link),
        direction: Direction,
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        let Some(number) = self.shared.find(index, link) else { return };
        let frame_bytes = pieces.clone().map(<[u8]>::len).sum::<usize>();
        let captured_bytes = frame_bytes.min(self.frame_bytes as usize);
        if self.ring.slots() < HEAD_BYTES + captured_bytes {
            return self.shared.count_missed(number);
        }
        // Before the clock is read, for a writer that looks here after it has read the clock.
        self.is_recording.store(true, Ordering::SeqCst);
        let head = Head {
            time_ns: self.real_time.now_ns(),
            interface: number as u32,
            flags: direction as u32,
            captured_bytes: captured_bytes as u32,
            frame_bytes: frame_bytes as u32,
        };
        self.push(&head.encode());
        let mut left = captured_bytes;
        for piece in pieces {
            let taken = piece.len().min(left);
            self.push(&piece[..taken]);
            left -= taken;
        }
        self.is_recording.store(false, Ordering::Release);
    }

    fn push(&mut self, bytes: &[u8]) {
        self.ring.push_entire_slice(bytes).expect("there is room for the whole frame");
    }
}

/// The captures that run on one LND.
#[derive(Default)]
pub struct Tap {
    ends: Vec<TapEnd>,
}

impl Tap {
    /// Whether a capture is running.
    #[inline]
    pub fn is_on(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Records a frame, which is `pieces` in a row, for those captures that want its interface.
    #[cold]
    #[inline(never)]
    pub fn record<'a>(
        &mut self,
        interface: (u32, Link),
        direction: Direction,
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        for end in &mut self.ends {
            end.record(interface, direction, pieces.clone());
        }
    }

    /// Records for one more capture.
    pub fn add(&mut self, end: TapEnd) {
        self.ends.push(end);
    }

    /// Records no longer for a capture; its end, to be dropped elsewhere.
    pub fn remove(&mut self, id: u64) -> Option<TapEnd> {
        let index = self.ends.iter().position(|end| end.id == id)?;
        Some(self.ends.swap_remove(index))
    }
}
