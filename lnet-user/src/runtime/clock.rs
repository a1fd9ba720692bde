//! The clock that drivers read for the core.

use lnet_core::time::Instant;

/// Nanoseconds since the clock was made; never goes back. By the processor's time stamp counter where that runs
/// evenly, which is read in half the time that `clock_gettime` takes and waits for nothing; else by
/// `CLOCK_MONOTONIC`. It is not set right afterwards: in days it may be seconds away from the kernel's, and so nothing
/// but the core goes by it.
#[derive(Clone, Debug)]
pub struct Clock {
    source: quanta::Clock,
    /// What the source said when it was made.
    start: u64,
}

impl Clock {
    /// A clock that starts at zero. The first one of a process finds out how fast the counter runs, in 20 ms as a rule
    /// and in 200 ms at most.
    #[must_use]
    pub fn start() -> Self {
        let source = quanta::Clock::new();
        let start = source.raw();
        Self { source, start }
    }

    /// The time now.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant(self.source.delta_as_nanos(self.start, self.source.raw()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_as_the_kernels_does() {
        let clock = Clock::start();
        let (begun, first) = (std::time::Instant::now(), clock.now());
        let mut last = first;
        while last.0 - first.0 < 50_000_000 {
            let now = clock.now();
            assert!(last <= now);
            last = now;
        }
        // The kernel's second reading comes later, by whatever else runs.
        let (ours_ns, kernels_ns) = (u128::from(last.0 - first.0), begun.elapsed().as_nanos());
        assert!(ours_ns <= kernels_ns + kernels_ns / 1000, "{ours_ns} against {kernels_ns}");
        assert!(kernels_ns < 1_000_000_000, "{ours_ns} against {kernels_ns}");
    }

    #[test]
    fn copies_agree() {
        let clock = Clock::start();
        let copy = clock.clone();
        let (before, between, after) = (clock.now(), copy.now(), clock.now());
        assert!(before <= between && between <= after);
    }
}
