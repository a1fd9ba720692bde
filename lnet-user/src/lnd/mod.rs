//! Network drivers: which there are, and those that need no other crate.
//!
//! Invariant: drivers never call each other and never reach up into the runtime; they know a shard only
//! as a [`lnet_core::lnd::Uplink`].

pub(crate) mod in_process;
mod lnds;
mod lo;
mod registry;

pub use in_process::NidInUse;
pub use lnds::LndError;
pub(crate) use lnds::{KindConfig, Kinds, Lnds, NiPlan, OpenLnd, ShardPort};
pub(crate) use lo::LoKind;
