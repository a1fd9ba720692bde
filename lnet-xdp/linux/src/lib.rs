//! The xdp LND on Linux: LNet messages in UDP datagrams, over `AF_XDP` rings or UDP sockets.
//!
//! | module | what | knows |
//! |---|---|---|
//! | [`bpf`] | the XDP program and its maps; the only place that knows aya | `lnet-io` |
//! | `lnd` | the LND of a shard: frames, ports, next hops, over the transfer protocol | `lnet-io` |
//! | `kind` | the LND of a node: NIs that are planned, opened and closed | `lnd`, `bpf` |
//!
//! Invariants: no unsafe code; the LND knows a shard only as a [`lnet_core::lnd::Uplink`], and no other LND.
#![forbid(unsafe_code)]

pub mod bpf;
mod kind;
mod lnd;

pub use kind::{
    DEFAULT_PORT, Programs, SharedProgram, XdpConfig, XdpError, XdpFrames, XdpKind, XdpNi, XdpNiState,
    XdpPlan,
};
#[cfg(any(test, feature = "testing"))]
pub use lnd::played;
pub use lnd::{RingPort, RingTraffic, SendFault, SocketPort, Tuples, XdpCounters, XdpDrop, XdpLnd, XdpPort};
pub use lnet_xdp_proto::{XferCounters, XferUsage};
