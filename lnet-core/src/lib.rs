//! The LNet protocol as state machines, without I/O and without a clock.
//!
//! Invariants: no files, sockets, threads, clocks or payload bytes; `now` and seeds are arguments;
//! `handle_*` and the [`lnd::Uplink`] methods bring the world in, `poll_*` take work out, getters take
//! `&self`. Nothing on the data path allocates after start-up. Peer input never trips an assertion.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod bucket;
pub mod collections;
mod credit;
mod entry;
pub mod errno;
pub mod event;
pub mod fault;
pub mod handle;
pub mod health;
pub mod limits;
pub mod lnd;
mod lookahead;
pub mod md;
mod message;
pub mod node;
mod peer;
pub mod portal;
pub mod seal;
pub mod shard;
mod standing;
pub mod stats;
pub mod time;
pub mod topology;
mod track;
pub mod tunables;
mod turns;
pub mod udsp;

#[cfg(test)]
mod testing;

pub use limits::Limits;
pub use shard::{Shard, ShardConfig};
