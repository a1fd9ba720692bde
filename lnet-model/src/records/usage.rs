//! Use of the objects that a node may have.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// Objects of a kind that are in use, and how many there may be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UsageCount {
    /// The kind, by the name of its limit.
    pub name: String,
    /// Objects in use at this moment.
    pub used: u64,
    /// Objects that there may be.
    pub limit: u64,
}

/// Use of a shard.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardUsage {
    /// Its number.
    pub shard: u32,
    /// CPUs that its thread may run on.
    pub cpus: Vec<u32>,
    /// Its objects.
    pub counts: Vec<UsageCount>,
}

/// Use of a node.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct UsageRecord {
    /// Bytes of the process's memory that are in use (`VmRSS`).
    pub resident_bytes: u64,
    /// Most of them that ever were (`VmHWM`).
    pub resident_bytes_max: u64,
    /// Bytes that are locked (`VmLck`), frames of rings among them.
    pub locked_bytes: u64,
    /// Objects of the node as a whole.
    pub counts: Vec<UsageCount>,
    /// Its shards.
    pub shards: Vec<ShardUsage>,
}
