//! Routing, as a node does it or not.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::pool::PoolKind;

/// Whether a node forwards messages; tools print the number (LNet `lib-types.h: LNET_ROUTING_*`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoutingState {
    /// Forwards nothing.
    #[default]
    Off = 0,
    /// Forwards messages.
    On = 1,
    /// Forwards what still comes, and tells peers that it is off.
    Stopping = 2,
    /// Forwards messages, and tells peers so in a while.
    Starting = 3,
}

impl RoutingState {
    /// Whether it is on, or comes to be.
    #[must_use]
    pub const fn is_to_be_on(self) -> bool {
        matches!(self, Self::On | Self::Starting)
    }
}

counters! {
    /// A pool of one CPT.
    PoolRecord {
        /// Buffers that there are.
        buffer_count: u32 = "nbuffers",
        /// Buffers not in use; below zero, so many messages wait for one.
        credits: i64 = "credits",
        /// Fewest of them.
        min_credits: i64 = "mincredits",
    }
}

/// Routing of a node.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RoutingRecord {
    /// Whether it is on.
    pub state: RoutingState,
    /// Pools of each CPT, by [`PoolKind`]; none where routing was never on.
    pub cpts: Vec<[PoolRecord; PoolKind::ALL.len()]>,
}

impl RoutingRecord {
    /// Buffers of the pools of a kind, of all CPTs.
    #[must_use]
    pub fn buffer_count(&self, kind: PoolKind) -> u32 {
        self.cpts.iter().map(|pools| pools[kind as usize].buffer_count).sum()
    }
}
