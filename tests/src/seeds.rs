//! Consecutive seeds, run on some CPUs: so many of them, or as many as a time allows.

use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often progress is told.
const PROGRESS: Duration = Duration::from_secs(2);
/// Random starts are below this, so that they are short to write.
const STARTS: u64 = 1_000_000_000_000;

/// When seeds come to their end.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// After so many runs.
    Runs(u64),
    /// With the runs that are under way at this time.
    At(Instant),
}

/// Seeds to be run.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// The first one; each run takes the next one.
    pub first: u64,
    /// When they end.
    pub end: End,
    /// Runs at once.
    pub cpus: usize,
}

impl Seeds {
    /// A random start.
    #[must_use]
    pub fn random_start() -> u64 {
        RandomState::new().hash_one(std::process::id()) % STARTS
    }

    /// Runs the seeds until their end, or until a run says that it is enough. `progress` hears from time to
    /// time how many have been run of which all before have been, too. How many were run: no seed is left
    /// out.
    pub fn run(&self, run: impl Fn(u64) -> ControlFlow<()> + Sync, mut progress: impl FnMut(u64)) -> u64 {
        let next = AtomicU64::new(0);
        let enough = AtomicBool::new(false);
        // The run that each worker is at, or `u64::MAX` if it is at none.
        let under_way: Vec<_> = (0..self.cpus.max(1)).map(|_| AtomicU64::new(0)).collect();
        let is_over = |index: u64| match self.end {
            End::Runs(runs) => index >= runs,
            End::At(end) => Instant::now() >= end,
        };
        let work = |at: &AtomicU64| {
            while !enough.load(Ordering::SeqCst) && !is_over(next.load(Ordering::SeqCst)) {
                // A run that is about to begin counts as under way.
                at.store(next.load(Ordering::SeqCst), Ordering::SeqCst);
                let index = next.fetch_add(1, Ordering::SeqCst);
                at.store(index, Ordering::SeqCst);
                if matches!(self.end, End::Runs(runs) if index >= runs) {
                    break;
                }
                if run(self.first.wrapping_add(index)).is_break() {
                    enough.store(true, Ordering::SeqCst);
                }
            }
            at.store(u64::MAX, Ordering::SeqCst);
        };
        let taken = || match self.end {
            End::Runs(runs) => next.load(Ordering::SeqCst).min(runs),
            End::At(_) => next.load(Ordering::SeqCst),
        };
        std::thread::scope(|scope| {
            let handles: Vec<_> = under_way.iter().map(|at| scope.spawn(|| work(at))).collect();
            let mut told_at = Instant::now();
            while !handles.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                std::thread::sleep(Duration::from_millis(20));
                if told_at.elapsed() > PROGRESS {
                    told_at = Instant::now();
                    let taken = taken();
                    let oldest = under_way.iter().map(|at| at.load(Ordering::SeqCst)).min();
                    progress(oldest.map_or(taken, |oldest| oldest.min(taken)));
                }
            }
        });
        taken()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn run(seeds: &Seeds, enough_at: u64) -> (u64, Vec<u64>) {
        let ran = Mutex::new(Vec::new());
        let run = |seed| {
            ran.lock().unwrap().push(seed);
            std::thread::sleep(Duration::from_millis(1));
            if seed == enough_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let count = seeds.run(run, |_| {});
        let mut ran = ran.into_inner().unwrap();
        ran.sort_unstable();
        (count, ran)
    }

    fn check(end: End, cpus: usize) {
        let (count, ran) = run(&Seeds { first: 100, end, cpus }, u64::MAX);
        assert!(matches!(end, End::Runs(runs) if runs == count) || count > 0, "{end:?}: {count}");
        assert!(ran.iter().copied().eq(100..100 + count), "{end:?}: {ran:?}");
    }

    #[test]
    fn each_seed_is_run_once_and_none_is_left_out() {
        for (runs, cpus) in [(20, 1), (20, 3), (0, 2)] {
            check(End::Runs(runs), cpus);
        }
        check(End::At(Instant::now() + Duration::from_millis(50)), 3);
    }

    #[test]
    fn a_run_that_is_enough_ends_them() {
        let (count, ran) = run(&Seeds { first: 7, end: End::Runs(1000), cpus: 2 }, 10);
        assert!((4..50).contains(&count) && ran.iter().copied().eq(7..7 + count), "{count}: {ran:?}");
    }

    #[test]
    fn starts_differ() {
        assert_ne!(Seeds::random_start(), Seeds::random_start());
    }
}
