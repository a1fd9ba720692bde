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
