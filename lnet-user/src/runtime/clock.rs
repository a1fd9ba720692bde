//! The clock that drivers read for the core.

use lnet_core::time::Instant;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds since the clock was made; never goes back (`CLOCK_MONOTONIC`).
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start_ns: u64,
}

impl Clock {
    /// A clock that starts at zero.
    #[must_use]
    pub fn start() -> Self {
        // The kernel's tick, which the coarse time goes by, may be older than this clock.
        Self { start_ns: nanoseconds(clock_gettime(ClockId::MonotonicCoarse)) }
    }

    /// The time now.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant(nanoseconds(clock_gettime(ClockId::Monotonic)) - self.start_ns)
    }

    /// The time at the kernel's last tick: 1 to 10 ms old at most, and a tenth of the cost. What deadlines
    /// are measured by, which are seconds; never ahead of [`Clock::now`].
    #[inline]
    #[must_use]
    pub fn coarse(&self) -> Instant {
        Instant(nanoseconds(clock_gettime(ClockId::MonotonicCoarse)) - self.start_ns)
    }
}

#[inline]
fn nanoseconds(time: Timespec) -> u64 {
    // Neither part is ever negative, and 64 bits last for 584 years.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarse_time_follows_and_never_leads() {
        let clock = Clock::start();
        let mut last = clock.coarse();
        while last.0 < 20_000_000 {
            let coarse = clock.coarse();
            assert!(last <= coarse && coarse <= clock.now());
            last = coarse;
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(clock.now().0 - last.0 < 1_000_000_000, "a tick is not a second");
    }
}
