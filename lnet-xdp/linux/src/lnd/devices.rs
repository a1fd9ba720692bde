//! The lanes of a shard and the queues that it owns, with what it keeps for sending.
//!
//! Invariant: fill rings take no frame that is kept for sending.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lnet_core::time::{self, Instant};
use lnet_io::xsk::{Device, SocketError, Statistics};

use super::exchange::Exchange;
use super::home::Home;
use super::lane::{Lane, OwnedQueue};

/// How often a driver with zero copy is told again of what it has not taken.
const URGE_INTERVAL: Duration = Duration::from_millis(5);

/// Lanes and queues that a shard sends and receives by, of all interfaces with rings.
pub(super) struct Devices {
    pub(super) lanes: Vec<Lane>,
    pub(super) owned: Vec<OwnedQueue>,
    /// Frames missing in a fill ring, or waiting for one, that make a refill worth its while.
    pub(super) refill_count: u32,
    /// Frames that are kept for sending.
    transmit_reserve: usize,
    /// Queues that the shard owns which owns most, if memory is dealt out by that.
    pub(super) most_owned: u32,
    /// Frames that a fill ring has at most.
    pub(super) fill_max: u32,
    /// Chunks of the longest frame.
    pub(super) chunks_max: usize,
    /// Whether a device reads and writes the chunks itself.
    zero_copy: bool,
    /// When drivers are told again of what they have not taken.
    urge_at: Option<Instant>,
    /// Counts of the kernel for the lanes that were taken away.
    gone: Statistics,
    /// Frames that arrived by those lanes, or that their rings had no room for.
    arrived_by_gone: u64,
}

impl Devices {
    pub(super) fn new() -> Self {
        Self {
            lanes: Vec::new(),
            owned: Vec::new(),
            refill_count: 1,
            transmit_reserve: 0,
            most_owned: 0,
            fill_max: u32::MAX,
            chunks_max: 1,
            zero_copy: false,
            urge_at: None,
            gone: Statistics::default(),
            arrived_by_gone: 0,
        }
    }

    /// The kernel's counters of each lane, and of those that have gone together.
    pub(super) fn statistics(&self) -> impl Iterator<Item = Result<Statistics, SocketError>> {
        let present = self.lanes.iter().filter_map(|lane| lane.device.as_ref()).map(Device::statistics);
        present.chain([Ok(self.gone)])
    }

    /// Takes over the counts of a lane that goes.
    pub(super) fn end_counts(&mut self, lane: &Lane) {
        self.arrived_by_gone += lane.frames_received;
        match lane.device.as_ref().map(Device::statistics) {
            Some(Ok(statistics)) => {
                self.arrived_by_gone += statistics.receive_losses();
                self.gone.add(&statistics);
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "what a ring that is closed has dropped is not counted")
            }
            None => {}
        }
    }

    /// Frames that arrived by lanes that were taken away, and by those of interfaces that have gone; those
    /// that a ring had no room for among them.
    pub(super) fn arrived_by_gone(&self, is_gone: impl Fn(u32) -> bool) -> Result<u64, SocketError> {
        let mut count = self.arrived_by_gone;
        for lane in self.lanes.iter().filter(|lane| is_gone(lane.interface_index)) {
            let statistics = lane.device.as_ref().map(Device::statistics).transpose()?;
            count += lane.frames_received + statistics.unwrap_or_default().receive_losses();
        }
        Ok(count)
    }

    /// Takes in which queues there are, of so many interfaces, whose transmit rings have `tx` entries.
    /// `frames` are those of a shard that are no longer kept for the transfer protocol: queues that came
    /// later share what was there for others.
    pub(super) fn follow_rings(&mut self, interfaces: usize, tx: u32, frames: u32) {
        let spare = frames.saturating_sub(tx * interfaces as u32);
        self.fill_max = spare.checked_div(self.most_owned).unwrap_or(u32::MAX);
        let fill_max = self.fill_max;
        self.refill_count = self.owned.iter().map(|queue| queue.refill_count(fill_max)).min().unwrap_or(1);
        // Each interface's rings may be full of frames to send, also of one that sends nothing any more.
        // Frames in them are not in stock: with all of the rings' frames as the reserve, fill rings would run
        // dry as soon as many are there.
        self.transmit_reserve = tx as usize * interfaces / 2;
        self.zero_copy = self.lanes.iter().any(|lane| lane.zero_copy);
        self.urge_at = None;
    }

    /// Whether frames to send are missed.
    pub(super) fn is_short(&self, home: &Home) -> bool {
        home.stock.len() < self.transmit_reserve / 2
    }

    /// When the first device that refuses to send is to be tried again, or a driver told again.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        time::earliest([self.lanes.iter().filter_map(Lane::retry_at).min(), self.urge_at])
    }

    /// Tells drivers with zero copy of frames to receive into that they wait for, and of frames to send that
    /// they have left.
    #[inline]
    pub(super) fn wake_drivers(&mut self, now: Instant) {
        if self.zero_copy {
            self.wake_waiting(now);
        }
    }

    fn wake_waiting(&mut self, now: Instant) {
        let mut waiting = false;
        for queue in &mut self.owned {
            waiting |= queue.wake_driver();
        }
        if self.urge_at.is_some_and(|urge_at| now < urge_at) {
            return;
        }
        let is_due = self.urge_at.is_some();
        for lane in &mut self.lanes {
            waiting |= if is_due { lane.urge() } else { lane.has_left() };
        }
        self.urge_at = waiting.then_some(now + URGE_INTERVAL);
    }

    /// Has the kernel send what was pushed. The owner of a queue is woken to take completions off it only
    /// when they are wanted: to be able to go on.
    pub(super) fn flush(&mut self, home: &Home, exchange: &mut Exchange) {
        let short = self.is_short(home);
        for lane in &mut self.lanes {
            if lane.flush()
                && (short || lane.is_unflushed())
                && let Some(owner) = lane.owner
            {
                exchange.wake(owner);
            }
        }
    }

    /// Takes frames whose sending is complete from the owned queues.
    #[inline]
    pub(super) fn take_completions(&mut self, home: &mut Home, exchange: &mut Exchange, budget: u32) -> u32 {
        let mut count = 0;
        for queue in &mut self.owned {
            let mut borrowed = 0;
            let registered = queue.completion.registered();
            count += queue.completion.drain(budget, |frame| {
                borrowed += u32::from(!home.take_sent(frame, exchange));
            });
            let registered = (queue.completion.registered() - registered) as u32;
            count += registered;
            borrowed += registered;
            if borrowed != 0 {
                queue.borrowed.fetch_sub(borrowed, Ordering::Release);
            }
        }
        count
    }

    /// Gives the kernel what frames the fill rings have room for, but for those kept for sending. Many at
    /// a time: in a busy turn only once so many are waiting, in an idle one where so many are missing.
    #[inline]
    pub(super) fn refill(&mut self, home: &mut Home, idle: bool) {
        let spare = home.stock.len().saturating_sub(self.transmit_reserve);
        if spare != 0 && (idle || spare >= self.refill_count as usize) {
            self.fill_rings(home);
        }
    }

    fn fill_rings(&mut self, home: &mut Home) {
        for queue in &mut self.owned {
            let spare = home.stock.len().saturating_sub(self.transmit_reserve);
            let room = queue.room(self.fill_max);
            if spare == 0 || room < queue.refill_count(self.fill_max) {
                continue;
            }
            home.moving.extend(home.stock.drain(..spare.min(room as usize)));
            queue.fill.fill(&mut home.moving);
            home.stock.extend(home.moving.drain(..));
        }
    }
}
