//! Peers that are to be.

use alloc::vec::Vec;

use lnet_wire::Nid;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// A peer to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct PeerSpec {
    /// Its primary NID.
    #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
    pub primary_nid: Nid,
    /// Its other NIDs; the primary one may be among them.
    #[cfg_attr(feature = "serde", serde(with = "crate::text::list"))]
    pub nids: Vec<Nid>,
    /// Whether it is a Multi-Rail node.
    pub multi_rail: bool,
    /// Whether its primary NID is fixed, whatever discovery finds.
    pub lock_primary: bool,
}

/// Bits of the state of a peer (LNet `lib-types.h: LNET_PEER_*`).
pub mod peer_state {
    /// Takes messages by any of its NIs.
    pub const MULTI_RAIL: u32 = 1;
    /// Takes no part in discovery, or this node does not.
    pub const NO_DISCOVERY: u32 = 1 << 1;
    /// Forwards messages.
    pub const ROUTER_ENABLED: u32 = 1 << 2;
    /// An administrator has made it.
    pub const CONFIGURED: u32 = 1 << 3;
    /// Was discovered once.
    pub const DISCOVERED: u32 = 1 << 4;
    /// The last attempt to discover it failed; its next use makes another one.
    pub const REDISCOVER: u32 = 1 << 5;
    /// Is being discovered, or waits for that.
    pub const DISCOVERING: u32 = 1 << 6;
    /// Its NIs are those that it has told last.
    pub const NIDS_UP_TO_DATE: u32 = 1 << 8;
    /// Was pinged, and has not answered.
    pub const PING_SENT: u32 = 1 << 9;
    /// Was pushed to, and has not acknowledged.
    pub const PUSH_SENT: u32 = 1 << 10;
    /// Is to be pinged, whatever is known.
    pub const FORCE_PING: u32 = 1 << 13;
    /// Is to be pushed to, whatever it has acknowledged.
    pub const FORCE_PUSH: u32 = 1 << 14;
    /// Is a gateway that is being checked.
    pub const ROUTER_DISCOVERY: u32 = 1 << 16;
    /// Is a gateway that was checked once.
    pub const ROUTER_DISCOVERED: u32 = 1 << 17;
    /// Its primary NID is fixed.
    pub const LOCK_PRIMARY: u32 = 1 << 20;
    /// The peer's word, or another peer's, on its NIs contradicts what is known.
    pub const BAD_CONFIG: u32 = 1 << 21;
}
