//! Where the frames of a node's xdp nets went.

use std::collections::BTreeMap;

use lnet_wire::Nid;
use serde::{Deserialize, Serialize};

use super::ActiveMode;
use crate::text;

/// Counters of the xdp LND, since the node was configured; those of NIs that have gone are missing.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct FramesRecord {
    /// The NIs, in order of creation.
    pub nis: Vec<FramesNi>,
    /// Frames that the XDP programs steered, by queue and shard.
    pub slots: Vec<SlotFrames>,
    /// Frames that arrived at another shard than their key says, and were handed over.
    pub misdirected: u64,
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
}

/// An NI that frames come and go by.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FramesNi {
    /// Its NID.
    #[serde(with = "text")]
    pub nid: Nid,
    /// How its frames reach the shards.
    pub mode: ActiveMode,
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
