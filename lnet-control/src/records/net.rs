//! Nets and their local NIs.

use lnet_wire::{Net, Nid};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Traffic, UdspInfo};
use crate::text;

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
    pub traffic: Traffic,
    /// Health.
    pub health: NiHealth,
    /// Its options, each as it is; `lo` has none.
    pub options: NiOptions,
    /// Transmit timeout of its LND, seconds.
    pub timeout_s: u32,
    /// How the frames of an xdp NI reach the shards; never [`XdpMode::Auto`].
    pub active_mode: Option<XdpMode>,
    /// What rings would have taken that is not there, where mode `auto` could only have sockets.
    pub no_rings: Option<String>,
    /// Receive queues that an xdp NI has: 0 in mode `socket`.
    pub active_queues: u32,
    /// Largest IP packet that the interface of an xdp NI carries, 0 where that is not known.
    pub mtu_bytes: u32,
    /// CPTs (shards) that serve it, each of them where it is not restricted.
    pub cpts: Vec<u32>,
    /// What follows from the selection policies.
    pub udsp: UdspInfo,
    /// How far its device is from the memory of the node's shards at most: 10 is as near as can be. `lo` has
    /// none.
    pub numa_distance: Option<u32>,
    /// The same for each CPT (shard).
    pub numa_distances: Vec<u32>,
}

words! {
    /// Whether a local NI serves.
    NiStatus {
        /// It does.
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

/// The options of a local NI: as they are asked for, where `None` is the node's choice, or as an NI has them,
/// where `None` is an option of another LND. Those of the net are fixed by its first NI.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct NiOptions {
    /// Of the net: seconds without a sign of life after which a peer counts as dead; 0 is never.
    #[serde(rename = "peer_timeout")]
    pub peer_timeout_s: Option<u32>,
    /// Of the net: messages in flight to one peer NI; more than 0.
    pub peer_credits: Option<u32>,
    /// Of the net: router buffers for one peer NI; more than 0 where they are asked for.
    pub peer_buffer_credits: Option<u32>,
    /// Of the net: messages in flight by the NI; more than 0.
    pub credits: Option<u32>,
    /// Of socklnd: connections of each kind to a peer, 1 to 127, or 0 for its choice.
    pub conns_per_peer: Option<u32>,
    /// Of socklnd: IP type of service, -1 to 255; -1 inherits it.
    pub tos: Option<i32>,
    /// Which LND; `None` is asked for as that of the net's type.
    pub lnd: Option<Lnd>,
    /// Of the xdp LND: how frames reach the shards.
    pub mode: Option<XdpMode>,
    /// Of the xdp LND: UDP port of the NI and its peers.
    pub port: Option<u16>,
    /// Of the xdp LND: receive queues that the interface must have; 0 takes it as it is.
    pub queues: Option<u32>,
}

impl NiOptions {
    /// How many of [`NiOptions::entries`] are the net's; the LND's follow.
    pub const OF_NET: usize = 4;

    /// Keys and values, in the order in which tools print them; `Null` is no value.
    #[must_use]
    pub fn entries(&self) -> Map<String, Value> {
        let Value::Object(entries) = json!(self) else { return Map::new() };
        entries
    }

    /// Whether an NI with these options is what is asked for.
    #[must_use]
    pub fn fits(&self, asked: &Self) -> bool {
        let conns_per_peer = asked.conns_per_peer.filter(|count| *count > 0);
        let asked = Self { conns_per_peer, ..*asked }.entries();
        asked.values().zip(self.entries().values()).all(|(asked, found)| asked.is_null() || asked == found)
    }
}

words! {
    /// What drives the NIs of a net.
    Lnd {
        /// The protocol of LNet's socklnd.
        Tcp = "tcp",
        /// Our frames, over `AF_XDP` rings or UDP sockets.
        Xdp = "xdp",
    }
}

words! {
    /// How the frames of an xdp NI reach the shards.
    #[derive(Default)]
    XdpMode {
        /// The first of the others that works: it is asked for, and never had.
        #[default]
        Auto = "auto",
        /// Rings, with the XDP program in the driver.
        Native = "native",
        /// Rings, with the XDP program in the kernel's network stack.
        Generic = "generic",
        /// UDP sockets.
        Socket = "socket",
    }
}
