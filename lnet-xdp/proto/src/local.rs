//! What all three owners work with: this shard's numbers, its limits of time, its timer and its counters.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};
use core::time::Duration;

use lnet_core::collections::NONE;
use lnet_core::time::Instant;
use lnet_wire::frame::Transfer;
use lnet_wire::steer::SHARDS_MAX;

use super::config::{XferConfig, XferTimes};
use super::stats::XferCounters;

/// How often what was not touched for long is looked for.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// This shard, as its peers know it, and what it has counted.
pub(super) struct Local {
    pub(super) shard: u8,
    pub(super) incarnation: u64,
    pub(super) initiator_hash: u32,
    pub(super) times: XferTimes,
    /// The longest message timeout that there was: peers may still have it.
    pub(super) patience_max: Duration,
    /// The time of the call at hand.
    pub(super) now: Instant,
    /// Nothing is due before.
    pub(super) timer: Option<Instant>,
    /// When what was not touched for long is looked for.
    pub(super) sweep_at: Instant,
    /// Whether something waits for room in a table; it is tried again by the next timer.
    pub(super) starved: bool,
    pub(super) counters: XferCounters,
    #[cfg(feature = "sabotage")]
    pub(super) sabotage: super::Sabotage,
}

impl Local {
    pub(super) fn new(config: &XferConfig) -> Self {
        Self {
            shard: config.shard.0,
            incarnation: config.identity.incarnation(),
            initiator_hash: config.initiator_hash,
            times: config.times,
            patience_max: config.times.message,
            now: Instant(0),
            timer: None,
            sweep_at: Instant(0),
            starved: false,
            counters: XferCounters::default(),
            #[cfg(feature = "sabotage")]
            sabotage: super::Sabotage::default(),
        }
    }

    /// Something is due at this time.
    #[inline]
    pub(super) fn set_timer(&mut self, at: Instant) {
        if self.timer.is_none_or(|timer| at < timer) {
            self.timer = Some(at);
        }
    }

    /// Something was begun that is to be looked at when it was not touched for long.
    pub(super) fn schedule_sweep(&mut self) {
        let now = self.now;
        if self.sweep_at <= now {
            self.sweep_at = now + SWEEP_INTERVAL;
        }
        self.set_timer(self.sweep_at);
    }

    /// Something waits for room in a table: it is tried again soon.
    pub(super) fn starve(&mut self) {
        let now = self.now;
        self.starved = true;
        self.set_timer(now + self.times.buffered);
    }

    /// The fields that are the same in every frame of this shard.
    #[inline]
    pub(super) fn transfer(&self, number: u64, session: u64) -> Transfer {
        Transfer {
            number: number as u32,
            incarnation: self.incarnation,
            session,
            oldest: 0,
            shard: self.shard,
            ack_now: false,
            ack: None,
            payload_crc: None,
            ticket: None,
        }
    }
}

/// The streams to or from the shards of a peer, by shard, or [`NONE`].
pub(super) type Streams = [u32; SHARDS_MAX as usize];

/// The streams that there are.
pub(super) fn existing(streams: Streams) -> impl Iterator<Item = u32> {
    streams.into_iter().filter(|stream| *stream != NONE)
}

/// What one owner has of each value in a table of another one's, by its slot there. Like the slots, its
/// memory is touched when it is used first.
pub(super) struct BySlot<T> {
    values: Vec<T>,
    /// What a slot has that was never written.
    untouched: T,
    make: fn() -> T,
}

impl<T> BySlot<T> {
    pub(super) fn new(capacity: u32, make: fn() -> T) -> Self {
        Self { values: Vec::with_capacity(capacity as usize), untouched: make(), make }
    }

    /// Makes the values up to this slot.
    #[cold]
    fn reach(&mut self, slot: usize) {
        assert!(slot < self.values.capacity(), "there is no slot {slot}");
        self.values.resize_with(slot + 1, self.make);
    }
}

impl<T> Index<u32> for BySlot<T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: u32) -> &T {
        self.values.get(slot as usize).unwrap_or(&self.untouched)
    }
}

impl<T> IndexMut<u32> for BySlot<T> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut T {
        if slot as usize >= self.values.len() {
            self.reach(slot as usize);
        }
        &mut self.values[slot as usize]
    }
}
