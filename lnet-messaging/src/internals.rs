//! What benches measure by itself. No part of the interface: it may change with each version.

use std::time::{Duration, Instant};

use crate::lnet::pass_through_ring;

/// The time that so many events take from one thread to another through the event ring of a transfer machine.
#[must_use]
pub fn pass_events(count: u64) -> Duration {
    let begun = Instant::now();
    pass_through_ring(count);
    begun.elapsed()
}
