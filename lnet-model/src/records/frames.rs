//! Where the frames of a node's xdp nets went.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use lnet_wire::Nid;
use serde::{Deserialize, Serialize};

use crate::ni::XdpMode;
use crate::text;

/// Counters of the xdp LND, since the node had no NI of it; those of NIs that have gone are among them.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct FramesRecord {
    /// The NIs, in order of creation.
    pub nis: Vec<FramesNi>,
    /// Frames that the XDP programs steered, by queue and shard.
    pub slots: Vec<SlotFrames>,
    /// Frames that XDP had arrive at another shard than their key says, and that were handed over.
    pub misdirected: u64,
    /// Frames that were steered and never received: they were in a ring, or on their way to one, when their
    /// interface went, or its last NI was closed.
    pub lost_with_interfaces: u64,
    /// Frames that the XDP programs passed up, or that a fault rule met, by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Frames that reached the LND, by what became of them.
    pub handled: BTreeMap<String, u64>,
    /// What loss recovery has done and dropped.
    pub recovery: BTreeMap<String, u64>,
    /// Frames and messages that the LND and the shards dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// The kernel's counters of the rings (`struct xdp_statistics`), summed over the sockets.
    pub rings: BTreeMap<String, u64>,
    /// Frames that came by UDP sockets, to NIs in mode `socket`, which XDP does not steer: what was received,
    /// how much of it at another shard than its own, and what the kernel had no room for.
    pub sockets: BTreeMap<String, u64>,
    /// Fate of connections of NIs with the LND tcp, and of the bytes that they carried, which are no
    /// frames.
    pub connections: BTreeMap<String, u64>,
    /// Faults of the queues of an NI, by which frames arrive nowhere, and the remedy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<String>,
}

/// The name of frames that UDP sockets received.
const RECEIVED: &str = "received";
/// The name of frames that a fault rule dropped (`lnet_wire::packet::Reason`).
const FAULT_DROPPED: &str = "fault_dropped";

impl FramesRecord {
    /// Whether an NI has rings, to which XDP steers frames.
    #[must_use]
    pub fn has_rings(&self) -> bool {
        self.nis.iter().any(|ni| ni.mode != XdpMode::Socket)
    }

    /// Frames that XDP steered.
    #[must_use]
    pub fn steered(&self) -> u64 {
        self.slots.iter().map(|slot| slot.frames).sum()
    }

    /// Frames that XDP steered, or that UDP sockets received.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.steered() + self.sockets.get(RECEIVED).copied().unwrap_or(0)
    }

    /// Frames that the LND has handled, that a ring had no room for or that were lost with their interface:
    /// all that arrived, once none is under way. `rx_fill_ring_empty` is not among them: the kernel
    /// counts a frame that found no buffer in `rx_dropped` as well (net/xdp/xsk.c: `__xsk_rcv`).
    #[must_use]
    pub fn accounted(&self) -> u64 {
        let ring = |name: &str| self.rings.get(name).copied().unwrap_or(0);
        self.handled.values().sum::<u64>()
            + ring("rx_dropped")
            + ring("rx_ring_full")
            + self.lost_with_interfaces
    }

    /// Frames that a fault rule dropped.
    #[must_use]
    pub fn fault_dropped(&self) -> u64 {
        self.reasons.get(FAULT_DROPPED).copied().unwrap_or(0)
    }

    /// Frames that each shard was given.
    #[must_use]
    pub fn by_shard(&self) -> Vec<u64> {
        let mut shards = Vec::new();
        for slot in &self.slots {
            // The kernel gives at most 64 shards.
            let shard = slot.shard.min(63) as usize;
            shards.resize(shards.len().max(shard + 1), 0);
            if let Some(sum) = shards.get_mut(shard) {
                *sum += slot.frames;
            }
        }
        shards
    }
}

/// An NI that frames come and go by.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FramesNi {
    /// Its NID.
    #[serde(with = "text")]
    pub nid: Nid,
    /// How its frames reach the shards; never [`XdpMode::Auto`].
    pub mode: XdpMode,
}

/// Frames that the sockets of one queue and shard were given; queues of several interfaces are added up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlotFrames {
    /// The queue.
    pub queue: u32,
    /// The shard.
    pub shard: u32,
    /// Frames.
    pub frames: u64,
}
