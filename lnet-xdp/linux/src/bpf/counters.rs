//! Counters of the XDP program, read back.

use aya::maps::{MapData, PerCpuArray};
use lnet_wire::packet::Reason;
use lnet_wire::steer::{QUEUES_MAX, SHARDS_MAX, SLOTS};

use super::error::BpfError;

/// Entries of the map of reasons per queue; `lnet-ebpf` lays it out.
const REASONS_PER_QUEUE: u32 = 32;

/// What the XDP program counted since it was loaded, summed over CPUs.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Slots that frames were redirected to, by queue, then shard.
    pub slots: Vec<SlotCount>,
    /// Reasons that frames met, by queue, then reason.
    pub reasons: Vec<ReasonCount>,
}

/// Frames redirected to one slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotCount {
    /// Receive queue.
    pub queue: u32,
    /// Shard.
    pub shard: u32,
    /// Frames; never 0.
    pub frames: u64,
}

/// Frames of one queue counted under one reason.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReasonCount {
    /// Receive queue; `None` for all queues together that steering does not reach
    /// ([`QUEUES_MAX`] and beyond).
    pub queue: Option<u32>,
    /// What happened to them.
    pub reason: Reason,
    /// Frames; never 0.
    pub frames: u64,
}

/// Frames of an interface in short.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Outline {
    /// Frames that found no socket.
    pub(crate) no_socket: u64,
    /// Frames that were redirected, by receive queue.
    pub(crate) steered: Vec<u64>,
}

impl Counters {
    /// Frames redirected, to all slots.
    #[must_use]
    pub fn redirected(&self) -> u64 {
        self.slots.iter().map(|slot| slot.frames).sum()
    }

    /// Frames counted under `reason`, of all queues.
    #[must_use]
    pub fn frames(&self, reason: Reason) -> u64 {
        self.reasons.iter().filter(|count| count.reason == reason).map(|count| count.frames).sum()
    }

    /// Frames that the program saw, whatever became of them, other than those that it redirected.
    pub(super) fn passed(reasons: &PerCpuArray<MapData, u64>) -> Result<u64, BpfError> {
        let mut passed = 0;
        for queue in 0..=QUEUES_MAX {
            for reason in Reason::ALL {
                passed += sum("REASON_FRAMES", reasons, queue * REASONS_PER_QUEUE + reason as u32)?;
            }
        }
        Ok(passed)
    }

    /// Every reason with its frames of all queues, in the order of [`Reason::ALL`].
    #[must_use]
    pub fn totals(&self) -> [(Reason, u64); Reason::ALL.len()] {
        Reason::ALL.map(|reason| (reason, self.frames(reason)))
    }

    /// Outline of what was counted for so many queues and shards: a few reads, where [`Counters`] takes
    /// thousands.
    pub(super) fn outline(
        slots: &PerCpuArray<MapData, u64>,
        reasons: &PerCpuArray<MapData, u64>,
        (queues, shards): (u32, u32),
    ) -> Result<Outline, BpfError> {
        let mut outline = Outline::default();
        for queue in 0..queues.min(QUEUES_MAX) {
            let no_socket = queue * REASONS_PER_QUEUE + Reason::NoSocket as u32;
            outline.no_socket += sum("REASON_FRAMES", reasons, no_socket)?;
            let mut steered = 0;
            for shard in 0..shards {
                steered += sum("SLOT_FRAMES", slots, queue * SHARDS_MAX + shard)?;
            }
            outline.steered.push(steered);
        }
        Ok(outline)
    }

    pub(super) fn read(
        slots: &PerCpuArray<MapData, u64>,
        reasons: &PerCpuArray<MapData, u64>,
    ) -> Result<Self, BpfError> {
        let mut counters = Self::default();
        for slot in 0..SLOTS {
            let frames = sum("SLOT_FRAMES", slots, slot)?;
            if frames > 0 {
                let (queue, shard) = (slot / SHARDS_MAX, slot % SHARDS_MAX);
                counters.slots.push(SlotCount { queue, shard, frames });
            }
        }
        for row in 0..=QUEUES_MAX {
            for reason in Reason::ALL {
                let frames = sum("REASON_FRAMES", reasons, row * REASONS_PER_QUEUE + reason as u32)?;
                if frames > 0 {
                    let queue = (row < QUEUES_MAX).then_some(row);
                    counters.reasons.push(ReasonCount { queue, reason, frames });
                }
            }
        }
        Ok(counters)
    }
}

fn sum(name: &'static str, map: &PerCpuArray<MapData, u64>, index: u32) -> Result<u64, BpfError> {
    let values = map.get(&index, 0).map_err(|error| BpfError::map(name, "read", &error))?;
    Ok(values.iter().fold(0, |sum, value| sum.wrapping_add(*value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_summed_over_queues() {
        let count = |queue, reason, frames| ReasonCount { queue, reason, frames };
        let counters = Counters {
            slots: vec![
                SlotCount { queue: 0, shard: 1, frames: 5 },
                SlotCount { queue: 2, shard: 0, frames: 6 },
            ],
            reasons: vec![
                count(Some(0), Reason::NotOurs, 1),
                count(Some(3), Reason::NotOurs, 2),
                count(None, Reason::NoShard, 4),
            ],
        };
        assert_eq!(counters.redirected(), 11);
        assert_eq!(counters.frames(Reason::NotOurs), 3);
        assert_eq!(counters.totals().iter().map(|(_, frames)| frames).sum::<u64>(), 7);
    }
}
