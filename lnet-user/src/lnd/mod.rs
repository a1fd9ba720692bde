//! Network drivers: what carries LNet messages between nodes.
//!
//! Invariant: drivers never call each other and never reach up into the runtime; they know a shard only
//! as a [`lnet_core::lnd::Uplink`].

mod driver;
pub mod in_process;
mod lnds;
pub mod lo;
pub mod xdp;

pub(crate) use driver::{Driver, Watched};
pub use lnds::ShardPort;
pub(crate) use lnds::{AnyLnd, LndPort, Lnds};
