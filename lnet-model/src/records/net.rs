//! Nets and their local NIs.

use alloc::string::String;
use alloc::vec::Vec;

use lnet_wire::{Net, Nid};
use serde::{Deserialize, Serialize};

use super::NiTraffic;
use crate::lnd::NiFact;
use crate::ni::NiOptions;
use crate::text;
use crate::udsp::UdspInfo;

/// A net with its local NIs, in order of creation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NetRecord {
    /// The net.
    #[serde(with = "text")]
    pub net: Net,
    /// The name of its state by the Multi-Rail design (`docs/multi-rail.md`), here and in other records.
    pub fsm_state: String,
    /// Its local NIs: at least one.
    pub nis: Vec<NiRecord>,
}

/// A local NI.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NiRecord {
    /// Its NID.
    #[serde(with = "text")]
    pub nid: Nid,
    /// Whether it serves.
    pub status: NiStatus,
    /// The name of its state.
    pub fsm_state: String,
    /// The network interface; `lo` has none.
    pub interface: Option<String>,
    /// Whether `nid` is not the address that the interface's name alone would choose.
    pub is_chosen_by_nid: bool,
    /// Traffic.
    pub traffic: NiTraffic,
    /// Health.
    pub health: NiHealth,
    /// Credits not in use, less the messages that wait for one, of all shards.
    #[serde(default)]
    pub available_credits: Option<i64>,
    /// Fewest of them that there ever were.
    #[serde(default)]
    pub min_credits: Option<i64>,
    /// Its options, each as it is; `lo` has none.
    pub options: NiOptions,
    /// Transmit timeout of its LND, seconds.
    pub timeout_s: u32,
    /// Facts that its LND tells of it, in the order of that LND's [`FactRow`](crate::lnd::FactRow)s; none
    /// until its port is open.
    pub facts: Vec<Option<NiFact>>,
    /// CPTs (shards) that serve it, each of them where it is not restricted.
    pub cpts: Vec<u32>,
    /// What follows from the selection policies.
    pub udsp: UdspInfo,
    /// How far its device is from the memory of the node's shards at most: 10 is as near as can be. `lo` has
    /// none.
    pub numa_distance: Option<u32>,
    /// Distance from the memory of each CPT (shard).
    pub numa_distances: Vec<u32>,
}

words! {
    /// Whether a local NI serves.
    NiStatus {
        /// Messages can go by the NI.
        Up = "up",
        /// Its link is down, its interface is gone, or its health is 0.
        Down = "down",
    }
}

counters! {
    /// Health of a local NI.
    NiHealth {
        /// Whether the LND says that it cannot go on: 0 or 1.
        fatal_error: u32 = "fatal_error",
        /// 0 to 1000.
        health_value: u32 = "health value",
        /// Sends that ended so.
        interrupts: u64 = "interrupts",
        /// Sends that ended so.
        dropped: u64 = "dropped",
        /// Sends that ended so.
        aborted: u64 = "aborted",
        /// Sends that ended so.
        no_route: u64 = "no route",
        /// Sends that ended so.
        timeouts: u64 = "timeouts",
        /// Sends that ended so.
        error: u64 = "error",
        /// Pings that it has not answered while it is not in full health.
        ping_count: u32 = "ping_count",
        /// When the next one is due, seconds since the node's start; 0 if none is.
        next_ping_s: u64 = "next_ping",
    }
}
