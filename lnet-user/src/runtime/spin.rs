//! How long a thread polls that has nothing to do.
//!
//! Invariant: no two threads of a process poll on one CPU. Threads of other processes are not known; one that
//! polls yields now and then, and sleeps if another thread has run meanwhile, be that one polling too.
//!
//! A driver without work polls where things came at most 200 us apart of late: four times as long as that,
//! and 200 us at most. A poller yields every 10 us. A thread does not sleep for less than 20 us.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::thread::sched_getcpu;

use super::clock::Clock;

/// CPUs that are known apart; others have no pollers.
const CPUS_MAX: usize = 1024;
/// Whether a thread of this process polls on each CPU without anything to do.
static POLLED: [AtomicBool; CPUS_MAX] = [const { AtomicBool::new(false) }; CPUS_MAX];

/// How far apart looks are whether another thread wants this CPU.
const YIELD_INTERVAL: Duration = Duration::from_micros(10);
/// A thread that yields and is away for longer had to let another one run.
const CROWDED: Duration = Duration::from_micros(3);

/// How many times in a row a thread sleeps at once after that, at most; once at first, twice as often each
/// time that nothing else has happened in between.
const RESTS_MAX: u32 = 256;

/// A poll takes no longer than so many times what things were apart of late.
const GAPS: u32 = 4;

/// A poll that is worth it takes no less.
const SHORTEST: Duration = Duration::from_micros(20);

/// When a thread stops polling and sleeps.
#[derive(Debug)]
pub(super) struct Spin {
    most: Duration,
    /// The CPU that the thread runs on.
    cpu: fn() -> usize,
    /// How long nothing came of late, on average.
    gap: Duration,
    /// Times to sleep at once, and how many there were after the last poll, since other threads want the CPU.
    rests: u32,
    rests_last: u32,
    /// Its poll, while there is one.
    poll: Option<Poll>,
}

/// A poll that goes on.
#[derive(Debug)]
struct Poll {
    /// How long it takes at most.
    limit: Duration,
    /// When it looks again whether another thread wants its CPU, after the beginning.
    yields_at: Duration,
    /// Where it began.
    cpu: usize,
}

impl Spin {
    /// Polls for `most` at a time.
    pub(super) fn new(most: Duration) -> Self {
        Self { most, cpu: sched_getcpu, gap: Duration::ZERO, rests: 0, rests_last: 0, poll: None }
    }

    /// Whether a thread that has had nothing to do for so long polls on.
    pub(super) fn goes_on(&mut self, idle: Duration) -> bool {
        let Some(poll) = &mut self.poll else { return self.begins(idle) };
        if idle >= poll.limit {
            self.end_poll();
            return false;
        }
        if idle < poll.yields_at {
            return true;
        }
        poll.yields_at = idle + YIELD_INTERVAL;
        let clock = Clock::of_process();
        let begun = clock.now();
        std::thread::yield_now();
        if clock.now() - begun > CROWDED {
            self.rests_last = (self.rests_last * 2).clamp(1, RESTS_MAX);
            self.rests = self.rests_last;
            self.end_poll();
            return false;
        }
        self.rests_last = 0;
        true
    }

    fn begins(&mut self, idle: Duration) -> bool {
        if !idle.is_zero() || self.gap >= self.most {
            return false;
        }
        if self.rests > 0 {
            self.rests -= 1;
            return false;
        }
        let cpu = (self.cpu)();
        if POLLED.get(cpu).is_none_or(|polled| polled.swap(true, Ordering::Relaxed)) {
            return false;
        }
        let limit = (self.gap * GAPS).max(SHORTEST).min(self.most);
        self.poll = Some(Poll { limit, yields_at: YIELD_INTERVAL, cpu });
        true
    }

    /// The thread goes on with something else; `gap` if something has come, after so long.
    pub(super) fn end(&mut self, gap: Option<Duration>) {
        if let Some(gap) = gap {
            self.gap = (self.gap * 3 + gap.min(self.most * 2)) / 4;
        }
        self.end_poll();
    }

    fn end_poll(&mut self) {
        if let Some(poll) = self.poll.take() {
            POLLED[poll.cpu].store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for Spin {
    fn drop(&mut self) {
        self.end_poll();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_micros(50);

    /// One on a CPU of its own: other tests poll as well.
    fn new(most: Duration, cpu: fn() -> usize) -> Spin {
        let mut spin = Spin::new(most);
        spin.cpu = cpu;
        spin
    }

    /// Whether it polls at first when something comes after each `gap`.
    fn polls(spin: &mut Spin, gap: Duration, rounds: u32) -> bool {
        let mut polls = false;
        for _ in 0..rounds {
            polls = spin.goes_on(Duration::ZERO);
            spin.end(Some(gap));
        }
        polls
    }

    #[test]
    fn what_comes_often_is_polled_for() {
        let mut spin = new(MOST, || CPUS_MAX - 1);
        assert!(polls(&mut spin, MOST / 5, 100));
        assert!(!polls(&mut spin, MOST * 100, 10), "it comes too rarely");
        assert!(polls(&mut spin, MOST / 5, 10), "it comes often again");
        assert!(!polls(&mut new(Duration::ZERO, || CPUS_MAX - 1), Duration::ZERO, 10));
    }

    #[test]
    fn a_poll_ends_in_time() {
        let mut spin = new(MOST, || CPUS_MAX - 2);
        assert!(spin.goes_on(Duration::ZERO));
        assert!(!spin.goes_on(SHORTEST), "nothing was waited for so long of late");
        spin.end(Some(MOST));
        spin.end(Some(MOST));
        assert!(spin.goes_on(Duration::ZERO) && spin.goes_on(YIELD_INTERVAL / 2));
        assert_eq!(spin.poll.as_ref().map(|poll| poll.limit), Some(MOST));
        assert!(!spin.goes_on(MOST) && !spin.goes_on(MOST * 2));
        spin.end(None);
        assert!(spin.poll.is_none());
    }

    #[test]
    fn no_two_poll_on_one_cpu() {
        let [mut one, mut other] = [(); 2].map(|()| new(MOST, || CPUS_MAX - 3));
        assert!(one.goes_on(Duration::ZERO) && !other.goes_on(Duration::ZERO));
        one.end(None);
        assert!(other.goes_on(Duration::ZERO) && !one.goes_on(Duration::ZERO));
        drop(other);
        assert!(one.goes_on(Duration::ZERO));
        assert!(!new(MOST, || CPUS_MAX).goes_on(Duration::ZERO), "an unknown CPU");
    }
}
