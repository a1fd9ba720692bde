//! The LNet protocol as state machines, without I/O and without a clock.
//!
//! Invariants: no files, sockets, threads, clocks or payload bytes; `now` and seeds are arguments;
//! `handle_*` and the [`lnd::Uplink`] methods bring the world in, `poll_*` take work out, getters take
//! `&self`. Nothing on the data path allocates after start-up. Peer input never trips an assertion.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod handle;
pub mod lnd;
pub mod time;
