//! What travels: Puts and Gets whose every byte and field follows from their number.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use lnet_load::Pattern;
use lnet_wire::ProcessId;

use crate::bpf::random::Random;

/// Operations that one [`super::Source`] has under way at most.
pub const WINDOW: usize = 16;

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A PUT with an acknowledgement.
    Put,
    /// A PUT without one.
    PutNoAck,
    /// A GET.
    Get,
}

/// A Put or Get with an entry of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// What it does.
    pub kind: Kind,
    /// Portal.
    pub portal: u32,
    /// Match bits; no other operation of the portal has the same.
    pub match_bits: u64,
    /// Bytes that the initiator puts, or has room for.
    pub length_bytes: u32,
    /// Bytes that the target has room for or gives, from `offset` on.
    pub room_bytes: u32,
    /// Offset that the initiator names; `None` leaves it to the target.
    pub offset: Option<u32>,
}

impl Operation {
    /// Bytes that travel and arrive.
    #[must_use]
    pub fn moved_bytes(&self) -> u32 {
        self.length_bytes.min(self.room_bytes)
    }

    /// Bytes of the target's buffer.
    #[must_use]
    pub fn target_bytes(&self) -> usize {
        self.offset.unwrap_or(0) as usize + self.room_bytes as usize
    }
}

/// All operations between two nodes, and how far they are.
#[derive(Debug)]
pub struct Plan {
    /// Who starts them and whose entries they meet: one pair for each rail, which the operations take in
    /// turn.
    pub rails: Vec<(ProcessId, ProcessId)>,
    /// The operations; an operation's number is its place here.
    pub operations: Vec<Operation>,
    /// How often each has arrived.
    arrived: Vec<AtomicU32>,
    arrived_count: AtomicUsize,
    ended_count: AtomicUsize,
    /// Events of messages that took another rail than their operation's.
    detours_count: AtomicUsize,
}

impl Plan {
    /// A plan of these operations.
    #[must_use]
    pub fn new(rails: Vec<(ProcessId, ProcessId)>, operations: Vec<Operation>) -> Self {
        let arrived = operations.iter().map(|_| AtomicU32::new(0)).collect();
        let [arrived_count, ended_count, detours_count] = [0; 3].map(AtomicUsize::new);
        Self { rails, operations, arrived, arrived_count, ended_count, detours_count }
    }

    /// Puts, Gets and Puts without ACK of each of `sizes` to each of `portals`, some cut, some at an offset.
    #[must_use]
    pub fn of_sizes(rails: Vec<(ProcessId, ProcessId)>, portals: &[u32], sizes: &[u32]) -> Self {
        let mut operations = Vec::new();
        let mut random = Random::new(sizes.len() as u64);
        for (index, length_bytes) in sizes.iter().copied().enumerate() {
            for portal in portals.iter().copied() {
                let number = operations.len();
                let kind = match number % 5 {
                    0 => Kind::Get,
                    1 => Kind::PutNoAck,
                    _ => Kind::Put,
                };
                // Cut at the target now and then; the operation is as long as it is all the same.
                let room_bytes = if number % 7 == 3 { length_bytes / 2 } else { length_bytes };
                let offset = ((index + number) % 3 == 0).then(|| random.below(5000) as u32);
                let match_bits = (number as u64) << 16 | random.bits() & 0xFFFF;
                operations.push(Operation { kind, portal, match_bits, length_bytes, room_bytes, offset });
            }
        }
        Self::new(rails, operations)
    }

    /// Who starts operation `number`, and whose entry it meets.
    #[must_use]
    pub fn ends(&self, number: usize) -> (ProcessId, ProcessId) {
        self.rails[number % self.rails.len()]
    }

    /// The 64 bits that a Put brings along.
    #[must_use]
    pub fn hdr_data(number: usize) -> u64 {
        Random::new(number as u64 ^ 0xD47A).bits()
    }

    /// Fills `bytes` with what operation `number` carries.
    pub fn fill(number: usize, bytes: &mut [u8]) {
        Pattern::of(0, number as u64, 0).fill(0, bytes);
    }

    /// Whether `bytes` are the first ones that operation `number` carries.
    #[must_use]
    pub fn holds(number: usize, bytes: &[u8]) -> bool {
        Pattern::of(0, number as u64, 0).check(0, bytes).is_none()
    }

    /// Whether every operation has arrived and ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let all = self.operations.len();
        self.arrived() >= all && self.ended() >= all
    }

    /// Operations that have arrived.
    #[must_use]
    pub fn arrived(&self) -> usize {
        self.arrived_count.load(Ordering::Acquire)
    }

    /// Operations that have ended at their initiator.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.ended_count.load(Ordering::Acquire)
    }

    /// Events that told of another rail than that of their operation.
    #[must_use]
    pub fn detours(&self) -> usize {
        self.detours_count.load(Ordering::Acquire)
    }

    /// The ends that an event of operation `number` tells of, as `is_told` finds them: those of its rail; or
    /// those of another one, since what a silent path does not carry takes another path, and a machine that
    /// is slow enough makes any path silent. Where none fits, those of its rail.
    pub(super) fn ends_told(
        &self,
        number: usize,
        is_told: impl Fn(&(ProcessId, ProcessId)) -> bool,
    ) -> (ProcessId, ProcessId) {
        let own = self.ends(number);
        match self.rails.iter().find(|rail| is_told(rail)) {
            Some(rail) if *rail != own && !is_told(&own) => {
                self.detours_count.fetch_add(1, Ordering::Release);
                *rail
            }
            _ => own,
        }
    }

    pub(super) fn note_arrival(&self, number: usize) {
        let before = self.arrived[number].fetch_add(1, Ordering::Relaxed);
        assert_eq!(before, 0, "operation {number} arrived twice");
        self.arrived_count.fetch_add(1, Ordering::Release);
    }

    pub(super) fn note_end(&self) {
        self.ended_count.fetch_add(1, Ordering::Release);
    }
}
