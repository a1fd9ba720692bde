//! Peers.

use alloc::string::String;
use alloc::vec::Vec;

use lnet_wire::Nid;
use serde::{Deserialize, Serialize};

use super::NiTraffic;
use crate::text::{self, NidText};
use crate::udsp::UdspInfo;

/// Some of the peers, in the order of the NIDs by which the node has them: that which is shown as the primary
/// one may be another, which the peer only claims.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PeerPage {
    /// The peers.
    pub peers: Vec<PeerRecord>,
    /// NID by which the next page is asked for, if there are others behind them: greater with each page.
    pub next: Option<NidText>,
}

/// Peers that a node is asked for: all of them, or those that some NIDs are shown with.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PeerQuery {
    /// The NIDs, at most [`PeerQuery::NIDS_MAX`]; all peers are meant where there is no list.
    #[serde(default)]
    pub of: Option<Vec<NidText>>,
    /// NID by which the page before this one says that this one is asked for ([`PeerPage::next`]).
    #[serde(default)]
    pub after: Option<NidText>,
}

impl PeerQuery {
    /// Most NIDs of one query.
    pub const NIDS_MAX: usize = 256;
}

/// A peer with its NIDs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerRecord {
    /// The NID that it goes by.
    #[serde(with = "text")]
    pub primary_nid: Nid,
    /// Whether it is known to be a Multi-Rail node.
    pub multi_rail: bool,
    /// State bits ([`peer_state`](crate::peer::peer_state)).
    pub state: u32,
    /// Whether routes of this node go by it.
    #[serde(default)]
    pub is_gateway: bool,
    /// The name of its state by the Multi-Rail design (`docs/multi-rail.md`).
    pub fsm_state: String,
    /// NIDs that it tells and that are this node's own as well: both have the address, and the peer is not
    /// reached by it.
    #[serde(with = "text::list")]
    pub shared_nids: Vec<Nid>,
    /// Its NIs: the primary NID's net first and the primary first in it, others in order of appearance.
    pub nis: Vec<PeerNiRecord>,
}

/// An NI of a peer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerNiRecord {
    /// Its NID.
    #[serde(with = "text")]
    pub nid: Nid,
    /// Whether an administrator has given it to the peer.
    pub is_configured: bool,
    /// Whether the peer claims it, and nothing has proven that.
    pub is_claim: bool,
    /// Whether it is alive, where that is tracked: of gateways, and by routers.
    #[serde(default)]
    pub is_alive: Option<bool>,
    /// The name of its state.
    pub fsm_state: String,
    /// Credits and references.
    pub credits: PeerCredits,
    /// Traffic.
    pub traffic: NiTraffic,
    /// Health.
    pub health: PeerHealth,
    /// What follows from the selection policies.
    pub udsp: UdspInfo,
}

counters! {
    /// Credits of a peer NI. The smallest ones may be below zero: so many messages waited.
    PeerCredits {
        /// All of them.
        max_ni_tx_credits: i64 = "max_ni_tx_credits",
        /// Credits not in use.
        available_tx_credits: i64 = "available_tx_credits",
        /// Fewest that were not in use.
        min_tx_credits: i64 = "min_tx_credits",
        /// Bytes of messages that wait for credits.
        tx_queue_bytes: u64 = "tx_q_num_of_buf",
        /// Router credits not in use.
        available_rtr_credits: i64 = "available_rtr_credits",
        /// Fewest of them.
        min_rtr_credits: i64 = "min_rtr_credits",
        /// What refers to it.
        refcount: u64 = "refcount",
    }
}

counters! {
    /// Health of a peer NI.
    PeerHealth {
        /// 0 to 1000.
        health_value: u32 = "health value",
        /// Sends that ended so.
        dropped: u64 = "dropped",
        /// Sends that ended so.
        timeout: u64 = "timeout",
        /// Sends that ended so.
        error: u64 = "error",
        /// Sends that ended so.
        network_timeout: u64 = "network timeout",
        /// Pings that it has not answered while it is not in full health.
        ping_count: u32 = "ping_count",
        /// When the next one is due, seconds since the node's start; 0 if none is.
        next_ping_s: u64 = "next_ping",
    }
}

/// NIDs that are pinged until they are in full health again.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RecoveryRecord {
    /// Local NIDs.
    #[serde(with = "text::list")]
    pub local: Vec<Nid>,
    /// NIDs of peers.
    #[serde(with = "text::list")]
    pub peers: Vec<Nid>,
}

/// The CPT (shard) that a NID belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CptRecord {
    /// The NID.
    #[serde(with = "text")]
    pub nid: Nid,
    /// The CPT.
    pub cpt: u32,
}
