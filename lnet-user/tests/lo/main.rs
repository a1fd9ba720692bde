//! Nodes that talk to themselves: no privileges, no frames, real shards.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

mod allocation;
mod common;
mod leases;
mod messages;
mod random;
mod shards;
mod threads;
