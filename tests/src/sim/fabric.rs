//! The wire between the nodes: frames under way, and what befalls them.

use std::rc::Rc;

use lnet_core::lnd::NiId;
use lnet_wire::Nid;

use super::Hostility;
use super::plan::{Cut, Directions, Plan, happens};
use super::report::{Counts, Fault};
use crate::bpf::random::Random;

/// A frame that its sender's device has and has not read.
pub(super) struct Departure {
    /// The sending node, the life that it has, its pool and the buffer in it.
    pub(super) sender: usize,
    pub(super) life: u32,
    pub(super) pool: usize,
    pub(super) frame: u32,
    /// The receiving node and its NI.
    pub(super) node: usize,
    pub(super) ni: NiId,
    pub(super) from: Nid,
    /// The NID that it is for, where that is none of a node's.
    pub(super) stranger: Option<Nid>,
    pub(super) fate: Fate,
}

/// A frame under way.
pub(super) struct Packet {
    pub(super) bytes: Rc<Vec<u8>>,
    /// The receiving node and its NI.
    pub(super) node: usize,
    pub(super) ni: NiId,
    pub(super) from: Nid,
    /// The sending node.
    pub(super) sender: usize,
    /// Lives of its sender and its receiver when it was sent.
    pub(super) lives: (u32, u32),
    /// Bits to be turned over.
    pub(super) flips: [Option<u64>; 2],
    /// Where it arrives, if not where it should.
    pub(super) astray: Option<u64>,
}

/// What is on the wire.
pub(super) enum Passage {
    Departure(Departure),
    Packet(Packet),
}

/// All frames under way.
#[derive(Default)]
pub(super) struct Fabric {
    passages: Vec<Option<Passage>>,
    free: Vec<u32>,
    /// Rails that are down, by node.
    pub(super) down: Vec<[bool; 2]>,
    /// The rail that is cut, which it stays when the other faults have stopped.
    pub(super) cut: Option<Cut>,
    /// Whether frames are lost, doubled and so on.
    pub(super) is_faulty: bool,
    /// Behaviour of hostile nodes, by node, while they attack.
    pub(super) attack: Vec<Option<Hostility>>,
}

/// What befalls a frame: how late each copy is.
pub(super) struct Fate {
    pub(super) delays_ns: [Option<u64>; 2],
}

impl Fate {
    /// The fate of a lost frame.
    pub(super) const LOST: Self = Self { delays_ns: [None; 2] };
}

impl Fabric {
    pub(super) fn new(nodes: usize) -> Self {
        Self { down: vec![[false; 2]; nodes], is_faulty: true, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.passages.len()
    }

    pub(super) fn insert(&mut self, passage: Passage) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.passages.push(None);
            self.passages.len() as u32 - 1
        });
        self.passages[slot as usize] = Some(passage);
        slot
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Passage> {
        let passage = self.passages.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(passage)
    }

    /// Whether a rail of a node carries frames in one of the directions.
    pub(super) fn carries(&self, node: usize, ni: NiId, direction: Directions) -> bool {
        let rail = usize::from(ni.0);
        let is_cut = self.cut.is_some_and(|cut| {
            (cut.node, cut.rail) == (node, rail)
                && (cut.directions == Directions::Both || cut.directions == direction)
        });
        let is_deaf = direction == Directions::Received && self.attack_of(node) == Some(Hostility::Deaf);
        !self.down[node][rail] && !is_cut && !is_deaf
    }

    /// The behaviour of a node that attacks at this time.
    pub(super) fn attack_of(&self, node: usize) -> Option<Hostility> {
        self.attack.get(node).copied().flatten()
    }

    /// Decides on a frame.
    pub(super) fn fate(&self, plan: &Plan, random: &mut Random, counts: &mut Counts) -> Fate {
        let mut delay = || plan.latency_ns + random.bits() % (plan.jitter_ns + 1);
        let mut delays_ns = [Some(delay()), None];
        if !self.is_faulty {
            return Fate { delays_ns };
        }
        if happens(random, plan.loss) {
            counts.add(Fault::Lost);
            return Fate::LOST;
        }
        if happens(random, plan.reordering) {
            counts.add(Fault::Late);
            delays_ns[0] = delays_ns[0].map(|delay| delay + random.bits() % plan.late_ns);
        }
        if happens(random, plan.duplication) {
            counts.add(Fault::Doubled);
            delays_ns[1] = Some(plan.latency_ns + random.bits() % plan.late_ns);
        }
        Fate { delays_ns }
    }

    /// Bits of a frame that are turned over.
    pub(super) fn flips(&self, plan: &Plan, random: &mut Random, counts: &mut Counts) -> [Option<u64>; 2] {
        if !self.is_faulty || !happens(random, plan.corruption) {
            return [None; 2];
        }
        counts.add(Fault::Corrupted);
        [Some(random.bits()), random.once_in(2).then(|| random.bits())]
    }
}

impl Packet {
    /// The frame as it arrives.
    pub(super) fn copy_to(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        bytes.extend_from_slice(&self.bytes);
        for flip in self.flips.into_iter().flatten() {
            let bit = (flip % (bytes.len() as u64 * 8)) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
