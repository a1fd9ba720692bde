//! Linux drivers and runtime of LNet nodes.
//!
//! [`node::Node::start`] makes a node of a configuration and hands out its shards as
//! [`runtime::Worker`]s; who drives them is the caller's choice: its own threads, or pinned ones
//! ([`runtime::ShardThread`]).
//!
//! Invariants: `runtime` knows `lnd`, `lnd` knows `xsk` and `netlink`, never back up; only `runtime` owns a
//! shard; only `bpf` knows aya; unsafe code is in `xsk`, `uring` and `region` alone.

pub mod bpf;
pub mod lnd;
pub mod memory;
pub mod netlink;
pub mod node;
pub mod region;
pub mod runtime;
pub mod uring;
pub mod xsk;
