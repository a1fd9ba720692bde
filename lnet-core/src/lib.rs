//! The LNet protocol as state machines, without I/O and without a clock.
//!
//! Invariants: no files, sockets, threads, clocks or payload bytes; `now` and seeds are arguments;
//! `handle_*` and the [`lnd::Uplink`] methods bring the world in, `poll_*` take work out, getters take
//! `&self`. Nothing on the data path allocates after start-up. Peer input never trips an assertion.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod bucket;
mod credit;
pub mod event;
pub mod fault;
pub mod handle;
mod hash;
pub mod health;
pub mod limits;
mod list;
pub mod lnd;
mod lookahead;
pub mod md;
mod message;
pub mod node;
mod peer;
pub mod portal;
mod random;
mod schedule;
pub mod shard;
mod slab;
pub mod socklnd;
pub mod stats;
mod table;
pub mod time;
pub mod topology;
mod track;
pub mod tunables;
pub mod udsp;
pub mod xfer;

#[cfg(test)]
mod testing;

pub use limits::Limits;
pub use shard::{Shard, ShardConfig};
