//! The tcp LND on Linux: the protocol of LNet's socklnd over TCP streams, with kernel nodes and with others.
//!
//! `lnd` is the LND of a shard, `kind` that of a node, which plans, opens and closes NIs.
//!
//! Invariants: no unsafe code; the LND knows a shard only as a [`lnet_core::lnd::Uplink`], and no other LND.
#![forbid(unsafe_code)]

mod kind;
mod lnd;

pub use kind::{TcpKind, TcpNi, TcpNiError, TcpPlan};
pub use lnd::{TcpLnd, TcpPort};
