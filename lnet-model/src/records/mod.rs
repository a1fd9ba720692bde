//! Records of a node: all that it tells about itself, in full detail.
//!
//! Invariants: keys that tools print stand beside the field they belong to, in the order in which they are
//! printed; numbers are as LNet's tools show them. Source: spec of `lnetctl`, sections 3.2 to 3.9.

mod connection;
mod explain;
mod frames;
mod global;
mod load;
mod net;
mod peer;
mod route;
mod routing;
mod selftest;
mod statistics;
mod usage;

pub use connection::{ConnectionRecord, ConnectionUse};
pub use explain::{
    ExplainRecord, ExplainedCandidate, ExplainedChoice, ExplainedKind, ExplainedPath, ExplainedStep,
};
pub use frames::{FramesNi, FramesRecord, SlotFrames};
pub use global::{Globals, Parameters};
pub use load::{LoadClass, LoadKind, LoadRecord, LoadResult, LoadRole, LoadTimes};
pub use net::{NetRecord, NiHealth, NiRecord, NiStatus};
pub use peer::{
    CptRecord, PeerCredits, PeerHealth, PeerNiRecord, PeerPage, PeerQuery, PeerRecord, RecoveryRecord,
};
pub use route::{RoutePage, RouteRecord, RouteState, RouteType};
pub use routing::{PoolRecord, RoutingRecord, RoutingState};
pub use selftest::{
    SelftestAnswer, SelftestBatch, SelftestBatchTest, SelftestCommand, SelftestCounters, SelftestGroup,
    SelftestJoined, SelftestNode, SelftestRequest, SelftestSession, SelftestState, SelftestStats,
    SelftestTest,
};
pub use statistics::{LatencySummary, MessageCounts, NiTraffic, Statistics};
pub use usage::{ShardUsage, UsageCount, UsageRecord};
