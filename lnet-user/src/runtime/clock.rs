//! The clock that drivers read for the core, and for themselves.

use std::sync::LazyLock;

use lnet_core::time::Instant;
use rustix::time::{ClockId, clock_gettime};

/// Which clock source the kernel goes by.
const KERNELS_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// Clock sources that are the processor's counter.
const COUNTERS: [&str; 2] = ["tsc", "arch_sys_counter"];

/// The clock of this process.
static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::start);

/// Nanoseconds since the clock was made, which is one for all of a process. By the processor's counter where
/// the kernel goes by that, too, and so has found that it runs evenly and alike on all CPUs: it is read in
/// half the time that `clock_gettime` takes, and waits for nothing. Else by `CLOCK_MONOTONIC`. It never goes
/// back as long as the machine is not suspended. The counter is not set right afterwards: in days it may be
/// seconds away from the kernel's time, so the core goes by it, and what waits for a shard or drives it, but
/// nothing that is told to others.
#[derive(Clone, Debug)]
pub struct Clock {
    counter: Option<quanta::Clock>,
    /// What was read when it was made.
    start: u64,
}

impl Clock {
    /// The clock of this process, which its first use starts at zero. That finds out how fast the counter
    /// runs, in 20 ms as a rule and in 200 ms at most.
    #[inline]
    #[must_use]
    pub fn of_process() -> &'static Self {
        &CLOCK
    }

    fn start() -> Self {
        let source = std::fs::read_to_string(KERNELS_SOURCE).unwrap_or_default();
        Self::by(COUNTERS.contains(&source.trim()).then(quanta::Clock::new))
    }

    fn by(counter: Option<quanta::Clock>) -> Self {
        let start = counter.as_ref().map_or_else(monotonic_ns, quanta::Clock::raw);
        Self { counter, start }
    }

    /// The time now.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant(match &self.counter {
            Some(counter) => counter.delta_as_nanos(self.start, counter.raw()),
            None => monotonic_ns() - self.start,
        })
    }
}

fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // Neither part is ever negative, and 64 bits last for 584 years.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_run_as_the_kernels_does() {
        for clock in [Clock::start(), Clock::by(None)] {
            let (outer, begun, inner) = (clock.now(), monotonic_ns(), clock.now());
            let mut last = inner;
            while last - inner < std::time::Duration::from_millis(50) {
                let now = clock.now();
                assert!(last <= now);
                last = now;
            }
            let kernels_ns = monotonic_ns() - begun;
            let (at_most_ns, at_least_ns) = (kernels_ns + kernels_ns / 500, kernels_ns - kernels_ns / 500);
            assert!(last.0 - inner.0 <= at_most_ns, "{clock:?}: {inner:?} to {last:?}, {kernels_ns}");
            let last = clock.now();
            assert!(last.0 - outer.0 >= at_least_ns, "{clock:?}: {outer:?} to {last:?}, {kernels_ns}");
        }
    }

    #[test]
    fn copies_agree() {
        let clock = Clock::start();
        let copy = clock.clone();
        let (before, between, after) = (clock.now(), copy.now(), clock.now());
        assert!(before <= between && between <= after);
    }
}
