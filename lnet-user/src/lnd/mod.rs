//! Network drivers: what carries LNet messages between nodes.
//!
//! Invariant: drivers never call each other and never reach up into the runtime; they know a shard only
//! as a [`lnet_core::lnd::Uplink`].

pub(crate) mod in_process;
mod lnds;
pub(crate) mod lo;
pub(crate) mod tcp;
pub(crate) mod xdp;

pub(crate) use lnds::{Lnds, Part, ShardPort};
