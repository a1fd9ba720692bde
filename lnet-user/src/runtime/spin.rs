//! How long a thread polls that has nothing to do.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::cpu::available_cpus;

/// Threads of this process that poll without anything to do.
static SPINNING: AtomicUsize = AtomicUsize::new(0);

/// How far apart looks are whether another thread wants this CPU.
const YIELD_INTERVAL: Duration = Duration::from_micros(10);
/// A thread that yields and is away for longer had to let another one run.
const CROWDED: Duration = Duration::from_micros(3);

/// How many times in a row a thread sleeps at once after that, at most; once at first, twice as often each time that
/// nothing else has happened in between.
const RESTS_MAX: u32 = 256;

/// A thread polls where things come no further apart than so many times the longest poll: part of that time is its own
/// wake-up and that of its peer, which polling saves.
const WORTH: u32 = 4;

/// When a thread stops polling and sleeps.
#[derive(Debug)]
pub(super) struct Spin {
    most: Duration,
    cpus: usize,
    /// How long nothing came of late, on average.
    gap: Duration,
    /// Times to sleep at once, and how many there were after the last poll, since other threads want the CPU.
    rests: u32,
    rests_last: u32,
    /// When it looks again whether another thread wants its CPU, after the beginning; `None` if it does not poll.
    yields_at: Option<Duration>,
}

impl Spin {
    /// Polls for `most` at a time.
    pub(super) fn new(most: Duration) -> Self {
        Self {
            most,
            cpus: available_cpus().len(),
            gap: Duration::ZERO,
            rests: 0,
            rests_last: 0,
            yields_at: None,
        }
    }

    /// Whether a thread that has had nothing to do for so long polls on.
    pub(super) fn goes_on(&mut self, idle: Duration) -> bool {
        let Some(yields_at) = self.yields_at else { return self.begins(idle) };
        if idle >= self.most {
            self.end_poll();
            return false;
        }
        if idle < yields_at {
            return true;
        }
        self.yields_at = Some(idle + YIELD_INTERVAL);
        let begun = Instant::now();
        std::thread::yield_now();
        if begun.elapsed() > CROWDED {
            self.rests_last = (self.rests_last * 2).clamp(1, RESTS_MAX);
            self.rests = self.rests_last;
            self.end_poll();
            return false;
        }
        self.rests_last = 0;
        true
    }

    fn begins(&mut self, idle: Duration) -> bool {
        if !idle.is_zero() || self.gap >= self.most * WORTH {
            return false;
        }
        if self.rests > 0 {
            self.rests -= 1;
            return false;
        }
        if SPINNING.fetch_add(1, Ordering::Relaxed) >= self.cpus {
            SPINNING.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.yields_at = Some(YIELD_INTERVAL);
        true
    }

    /// The thread goes on with something else; `gap` if something has come, after so long.
    pub(super) fn end(&mut self, gap: Option<Duration>) {
        if let Some(gap) = gap {
            self.gap = (self.gap * 3 + gap.min(self.most * WORTH * 2)) / 4;
        }
        self.end_poll();
    }

    fn end_poll(&mut self) {
        if self.yields_at.take().is_some() {
            SPINNING.fetch_sub(1, Ordering::Relaxed);
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

    /// Whether it polls at first when something comes after each `gap`.
    fn new(most: Duration) -> Spin {
        let mut spin = Spin::new(most);
        // Other tests poll as well.
        spin.cpus = usize::MAX;
        spin
    }

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
        let mut spin = new(MOST);
        assert!(polls(&mut spin, MOST / 5, 100));
        assert!(!polls(&mut spin, MOST * 100, 10), "it comes too rarely");
        assert!(polls(&mut spin, MOST / 5, 10), "it comes often again");
        assert!(!polls(&mut new(Duration::ZERO), Duration::ZERO, 10));
    }

    #[test]
    fn a_poll_ends_in_time() {
        let mut spin = new(MOST);
        assert!(spin.goes_on(Duration::ZERO));
        assert!(!spin.goes_on(MOST) && !spin.goes_on(MOST * 2));
        spin.end(None);
        assert!(spin.yields_at.is_none());
    }
}
