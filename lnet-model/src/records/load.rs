//! Loads that a node takes or makes, beside its other work.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

words! {
    /// Which end of a load.
    LoadRole {
        /// Takes messages.
        Target = "target",
        /// Sends them.
        Initiator = "initiator",
    }
}

/// A load that runs, or that has ended and was not stopped yet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LoadRecord {
    /// Names it, as long as the daemon runs.
    pub id: u32,
    /// Which end it is.
    pub role: LoadRole,
    /// Whether it goes on; a target does until it is stopped.
    pub is_running: bool,
    /// Messages that have ended, well or not.
    pub messages_done: u64,
    /// Messages that there are to be; a target does not know.
    pub messages_total: Option<u64>,
    /// What came of one that has ended.
    pub result: Option<LoadResult>,
}

/// What came of a load.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct LoadResult {
    /// Messages that were verified byte for byte, by kind and, at an initiator, by size.
    pub classes: Vec<LoadClass>,
    /// Messages by shard.
    pub by_shard: Vec<u64>,
    /// Nanoseconds from the first request to the last event; a target does not measure them.
    pub elapsed_ns: Option<u64>,
    /// Messages that went wrong.
    pub faults: u64,
    /// Why not all is well; empty if every message arrived and was as it should be.
    pub failures: Vec<String>,
}

impl LoadResult {
    /// Messages of these kinds that were verified, and their bytes.
    #[must_use]
    pub fn verified(&self, kinds: &[LoadKind]) -> (u64, u64) {
        let counted = self.classes.iter().filter(|class| kinds.contains(&class.kind));
        counted.fold((0, 0), |(messages, bytes), class| (messages + class.messages, bytes + class.bytes))
    }
}

/// Messages of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LoadClass {
    /// What they are.
    pub kind: LoadKind,
    /// How many.
    pub messages: u64,
    /// Bytes of their payload.
    pub bytes: u64,
    /// Sizes and times of the messages, at an initiator.
    pub times: Option<LoadTimes>,
}

/// Whether payload goes to the target or comes from there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadKind {
    /// Bytes go to the target.
    Put,
    /// Bytes come from there.
    Get,
}

impl LoadKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Put, Self::Get];
}

impl fmt::Display for LoadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How long messages of a size took, from the request to the ACK or REPLY.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LoadTimes {
    /// Shortest payload.
    pub min_bytes: u32,
    /// Longest payload.
    pub max_bytes: u32,
    /// What so many thousandths of them did not exceed: those of [`LoadTimes::QUANTILES`].
    pub quantiles_ns: [u64; LoadTimes::QUANTILES.len()],
}

impl LoadTimes {
    /// Names and thousandths of the quantiles.
    pub const QUANTILES: [(&str, u32); 5] =
        [("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999), ("max", 1000)];
}
