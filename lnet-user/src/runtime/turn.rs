//! What a shard does when it is driven: whole turns, and less where nothing or little has happened.

use std::time::Duration;

use lnet_core::lnd::{Lnd, Progress};
use lnet_core::time::Instant;

use super::worker::Worker;

/// Frames per direction and ring in one turn.
const FRAME_BUDGET: u32 = 64;
/// Messages handed to the LND in one turn.
const TRANSMIT_BUDGET: u32 = 64;
/// Glances between two whole turns at most; of so many one looks at the clock.
const GLANCES_MAX: u32 = 1 << 12;
const CLOCK_GLANCES: u32 = 16;
/// How far apart whole turns are about, of a shard that is driven all the time and has nothing to do: what arrives
/// during one waits for its end, and the shortest timer, that of acknowledgements, is five times as long.
const TURN_INTERVAL: Duration = Duration::from_micros(10);

/// Looks whether something has come, in place of whole turns, which look at the timers too. How many there are
/// between two whole turns depends on how often the shard is driven.
pub(super) struct Glances {
    left: u32,
    between: u32,
    /// When the last turn was that found nothing to do.
    idle_at: Instant,
}

impl Glances {
    pub(super) const fn new() -> Self {
        Self { left: 0, between: 1, idle_at: Instant(0) }
    }

    /// The next turn is a whole one.
    pub(super) const fn end(&mut self) {
        self.left = 0;
    }

    /// A turn found nothing to do.
    fn begin(&mut self, now: Instant) {
        let since = now - std::mem::replace(&mut self.idle_at, now);
        if since < TURN_INTERVAL {
            self.between = (self.between * 2).min(GLANCES_MAX);
        } else if since > 2 * TURN_INTERVAL {
            self.between = (self.between / 2).max(1);
        }
        self.left = self.between;
    }

    /// Counts a glance that saw nothing. Whether it was enough: whoever drives the shard may have become slower.
    #[inline]
    fn is_enough(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.left -= 1;
        !(self.left.is_multiple_of(CLOCK_GLANCES) && now() - self.idle_at > 2 * TURN_INTERVAL)
    }
}

impl Worker {
    /// One turn: what has arrived is taken in, what is due is done, what is ready is sent. Whether
    /// there was anything to do. Never blocks. After a turn that found nothing, the next ones only glance at where
    /// something may have come, timers and completions that nobody waits for apart, for ten microseconds or so if calls follow closely.
    pub fn progress(&mut self) -> bool {
        let mut progressed = false;
        if self.glances.left != 0 {
            if !self.has_news() {
                if self.glances.is_enough(|| self.clock.now()) {
                    return false;
                }
            } else if !self.shard.has_work() && self.lnd.has_arrivals() {
                progressed = self.take_arrivals();
                if progressed && !self.shard.has_work() {
                    return true;
                }
            }
        }
        let now = self.clock.now();
        progressed |= self.turn(now);
        if progressed || self.device_full || self.lnd.awaits_completions() {
            self.glances.end();
        } else {
            self.glances.begin(now);
        }
        progressed
    }

    /// Whether something has come since a turn that found nothing to do, timers apart.
    #[inline]
    fn has_news(&mut self) -> bool {
        self.shard.has_work()
            || self.lnd.may_have_arrivals()
            || self.calls.as_ref().is_some_and(|calls| !calls.is_empty())
            || self.mesh.has_parcels()
    }

    /// Takes in what has arrived after a while without anything to do; whether there was anything. The rest of a turn is
    /// left to the next one, if it can be, and the application has its events before.
    fn take_arrivals(&mut self) -> bool {
        self.glances.end();
        let now = self.clock.now();
        let progress = self.lnd.drive(now, FRAME_BUDGET, &mut self.shard, &mut self.memory);
        progress != Progress::default()
    }

    fn turn(&mut self, now: Instant) -> bool {
        let called = self.run_calls();
        let heard = self.mesh.hear(now, &mut self.shard, &mut self.memory);
        let mut resumed = self.resume(now);
        // What the application has just started does not wait for what has arrived meanwhile.
        let mut submitted = self.submit(now);
        if submitted {
            self.lnd.flush(now, &self.memory);
        }
        let Progress { received, completed } =
            self.lnd.drive(now, FRAME_BUDGET, &mut self.shard, &mut self.memory);
        let moved = received + completed != 0;
        let due = self.shard.poll_timeout().is_some_and(|due| due <= now);
        if due {
            self.shard.handle_timeout(now);
        }
        resumed |= self.resume(now);
        // Answers, and messages that got a credit; then what is to be sent for any reason.
        if moved || due || heard || resumed {
            submitted |= self.submit(now);
        }
        let said = self.mesh.say(&mut self.shard, &mut self.memory);
        self.lnd.flush(now, &self.memory);
        called || submitted || moved || heard || resumed || said
    }

    /// Tells the LNDs of messages that wait no more; whether there were any.
    fn resume(&mut self, now: Instant) -> bool {
        let mut resumed = false;
        while let Some((_, rx, verdict)) = self.shard.poll_resume() {
            self.lnd.resume(now, rx, verdict, &mut self.shard);
            resumed = true;
        }
        resumed
    }

    /// Hands messages to the LND; whether there were any.
    fn submit(&mut self, now: Instant) -> bool {
        self.device_full = false;
        if !self.shard.has_transmit() {
            return false;
        }
        let mut submitted = 0;
        let count = self.nis.len();
        for step in 0..count {
            let ni = self.nis[(self.first_ni + step) % count];
            while submitted < TRANSMIT_BUDGET {
                let Some(transmit) = self.shard.poll_transmit(ni) else { break };
                if let Err(full) = self.lnd.submit(now, transmit, &self.memory) {
                    self.shard.give_back(full);
                    self.device_full = true;
                    break;
                }
                submitted += 1;
            }
        }
        // Each NI is first in its turn, so that none uses up the budget for ever.
        self.first_ni = (self.first_ni + 1) % count;
        submitted != 0
    }

    fn run_calls(&mut self) -> bool {
        let Some(mut calls) = self.calls.take() else { return false };
        let mut called = false;
        while let Ok(call) = calls.pop() {
            call(self);
            called = true;
        }
        self.calls = Some(calls);
        called
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Glances until a whole turn is due, as many nanoseconds apart.
    fn count(glances: &mut Glances, glance_ns: u64) -> u32 {
        let (mut count, begun) = (0, glances.idle_at.0);
        while glances.left != 0 && glances.is_enough(|| Instant(begun + glance_ns * u64::from(count))) {
            count += 1;
        }
        count
    }

    #[test]
    fn whole_turns_are_as_far_apart_whoever_drives() {
        for (glance_ns, expected) in [(4, 1024..=4096), (100, 64..=256), (7000, 1..=4), (50_000, 1..=1)] {
            let (mut glances, mut now) = (Glances::new(), Instant(0));
            for _ in 0..30 {
                glances.begin(now);
                now.0 += 60 + glance_ns * u64::from(count(&mut glances, glance_ns).max(1));
            }
            assert!(expected.contains(&glances.between), "{glance_ns} ns: {}", glances.between);
        }
    }

    #[test]
    fn they_end_soon_where_the_driver_has_become_slow() {
        let mut glances = Glances { left: 0, between: GLANCES_MAX, idle_at: Instant(0) };
        glances.begin(Instant(500));
        assert!(count(&mut glances, 10_000) < CLOCK_GLANCES);
        glances.end();
        assert_eq!(count(&mut glances, 4), 0);
    }
}
