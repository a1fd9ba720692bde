//! What benches measure by itself, and what tests reach no other way. No part of the interface: it may change
//! with each version.

use std::time::{Duration, Instant};

use crate::TransferMachine;
use crate::lnet::pass_through_ring;

/// The time that so many events take from one thread to another through the event ring of a transfer machine.
#[must_use]
pub fn pass_events(count: u64) -> Duration {
    let begun = Instant::now();
    pass_through_ring(count);
    begun.elapsed()
}

/// Has the next passive buffer of a transfer machine over lnet get this number, from 1 to 2^52 - 1.
pub fn set_match_counter(tm: &TransferMachine, counter: u64) {
    tm.set_match_counter(counter);
}
