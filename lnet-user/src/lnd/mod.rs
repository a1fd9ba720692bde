//! Network drivers: what carries LNet messages between nodes.
//!
//! Invariant: drivers never call each other and never reach up into the runtime; they know a shard only
//! as a [`lnet_core::lnd::Uplink`].

mod announce;
mod any;
mod counters;
mod frames;
mod lnds;
pub mod lo;
mod port;
pub mod socket;
pub mod xdp;

pub use any::AnyLnd;
pub(crate) use lnds::Lnds;
pub use port::ShardPort;
pub(crate) use port::{Part, Watched};
