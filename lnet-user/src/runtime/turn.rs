//! What a shard does when it is driven: whole turns, and less where nothing or little has happened.

use std::time::Duration;

use lnet_core::lnd::{Lnd, Progress};
use lnet_core::shard::ForgedSource;
use lnet_core::stats::DropReason;
use lnet_core::time::{self, Instant};

use super::worker::Worker;

/// How far apart log lines about forged sources are at least: any peer can have them written.
const FORGED_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Frames per direction and ring in one turn.
const FRAME_BUDGET: u32 = 64;
/// Messages handed to the LND in one turn.
const TRANSMIT_BUDGET: u32 = 64;
/// Idle polls between two looks at the clock at most.
const IDLE_POLLS_MAX: u32 = 16;
/// How far apart whole turns are at first of a shard that is driven all the time, has nothing to do and no
/// timer due: what arrives during one waits for its end. They become twice as rare each time that one finds
/// nothing: a thread may drive many shards, most of which are idle.
const TURN_INTERVAL: Duration = Duration::from_micros(10);
const TURN_INTERVAL_MAX: Duration = Duration::from_micros(160);

/// How far apart looks at the clock are at most, give or take an idle poll, where a timer is due, which is as
/// late then; and else: completions that siblings begin to wait for are as late.
const LOOK_INTERVAL: Duration = Duration::from_micros(1);
const LOOK_INTERVAL_MAX: Duration = Duration::from_micros(4);

/// Looks whether something has come, in place of whole turns, which look at the timers too.
pub(super) struct IdlePolls {
    /// Until the next look at the clock; 0 where the next turn is a whole one.
    left: u32,
    /// Polls from one look to the next: fewer where the shard is driven slowly.
    between: u32,
    looked_at: Instant,
    /// How far apart looks are.
    look_interval: Duration,
    /// When the next whole turn is.
    until: Instant,
    /// How long after the last one, if that finds nothing.
    interval: Duration,
}

impl IdlePolls {
    pub(super) const fn new() -> Self {
        Self {
            left: 0,
            between: 1,
            looked_at: Instant(0),
            look_interval: LOOK_INTERVAL,
            until: Instant(0),
            interval: TURN_INTERVAL,
        }
    }

    /// The next turn is a whole one.
    pub(super) const fn end(&mut self) {
        (self.left, self.interval) = (0, TURN_INTERVAL);
    }

    /// Whether the next turn is an idle poll.
    #[cfg(test)]
    pub(super) const fn are_on(&self) -> bool {
        self.left != 0
    }

    /// A turn found nothing to do, and nothing is due before `due`.
    fn begin(&mut self, now: Instant, due: Option<Instant>) {
        let latest = now + self.interval;
        let due = due.filter(|due| *due < latest);
        self.look_interval =
            if due.is_some() { LOOK_INTERVAL } else { (self.interval / 10).min(LOOK_INTERVAL_MAX) };
        self.until = due.unwrap_or(latest);
        self.interval = (self.interval * 2).min(TURN_INTERVAL_MAX);
        (self.left, self.looked_at) = (self.between, now);
    }

    /// Counts an idle poll that saw nothing. Whether the clock is to be looked at.
    #[inline]
    const fn is_look_due(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// The clock was looked at. Whether the next turn is a whole one.
    fn look(&mut self, now: Instant) -> bool {
        let since = now - std::mem::replace(&mut self.looked_at, now);
        let between = if since > self.look_interval { self.between / 2 } else { self.between * 2 };
        self.between = between.clamp(1, IDLE_POLLS_MAX);
        if now >= self.until {
            return true;
        }
        self.left = self.between;
        false
    }
}

impl Worker {
    /// One turn: what has arrived is taken in, what is due is done, what is ready is sent. Whether
    /// there was anything to do. Never blocks. After a turn that found nothing, the next ones are idle
    /// polls: they look only at where something may have come, until a timer is due or 10 us are over, or
    /// up to 160 us after several turns of that kind.
    pub fn progress(&mut self) -> bool {
        let mut progressed = false;
        if self.idle_polls.left != 0 && !self.shard.has_work() {
            if self.lnd.has_arrivals() {
                progressed = self.take_arrivals();
                if progressed && !self.shard.has_work() {
                    return true;
                }
            } else if !self.may_have_news() {
                if !self.idle_polls.is_look_due() {
                    return false;
                }
                // Siblings may have begun to wait for completions of this shard's queues.
                let now = self.look_at_clock();
                if !self.idle_polls.look(now) && !self.lnd.awaits_completions() {
                    return false;
                }
            }
        }
        let now = self.look_at_clock();
        progressed |= self.turn(now);
        if progressed || self.lnd.awaits_completions() || self.lnd.has_work() {
            self.idle_polls.end();
        } else {
            let due = time::earliest([self.shard.poll_timeout(), self.lnd.poll_timeout()]);
            self.idle_polls.begin(now, due);
        }
        progressed
    }

    /// Whether something may have come that only a whole turn sees.
    #[inline]
    fn may_have_news(&self) -> bool {
        self.lnd.may_hide_arrivals() || self.mesh.has_arrivals()
    }

    /// Takes in what has arrived after a while without anything to do; whether there was anything. The rest
    /// of a turn is left to the next one, if it can be, and the application has its events before.
    fn take_arrivals(&mut self) -> bool {
        self.idle_polls.end();
        let now = self.look_at_clock();
        let progress = self.lnd.drive(now, FRAME_BUDGET, &mut self.shard, &mut self.memory);
        progress != Progress::default()
    }

    fn turn(&mut self, mut now: Instant) -> bool {
        let handed_off = self.mesh.receive(now, &mut self.shard, &mut self.memory);
        let mut resumed = self.resume(now);
        // What the application has just started does not wait for what has arrived meanwhile.
        let mut submitted = self.submit(now);
        if submitted {
            self.lnd.flush(now, &self.memory);
            // Flushing may have taken as long as the peer's answer: what arrives does so after it was sent.
            now = self.look_at_clock();
        }
        let Progress { received, completed } =
            self.lnd.drive(now, FRAME_BUDGET, &mut self.shard, &mut self.memory);
        let moved = received + completed != 0;
        self.log_forged(now);
        let due = self.shard.poll_timeout().is_some_and(|due| due <= now);
        if due {
            self.shard.handle_timeout(now);
        }
        resumed |= self.resume(now);
        // Answers, and messages that got a credit; then what is to be sent for any reason.
        if moved || due || handed_off || resumed {
            submitted |= self.submit(now);
        }
        let sent = self.mesh.send(&mut self.shard, &mut self.memory);
        self.lnd.flush(now, &self.memory);
        submitted || moved || handed_off || resumed || sent
    }

    /// Logs a message whose source is not its sender's, once a while.
    fn log_forged(&mut self, now: Instant) {
        if now < self.forged_quiet_until {
            return;
        }
        let Some(ForgedSource { ni, from, source }) = self.shard.poll_forged() else { return };
        self.forged_quiet_until = now + FORGED_LOG_INTERVAL;
        let (shard, dropped) =
            (self.shard.id().0, self.shard.counters().drops(DropReason::ForgedSource).messages);
        tracing::warn!(shard, ni = ni.0, %from, %source, dropped, "a message whose source is not its sender's");
    }

    /// Tells the LNDs of messages that wait no more, and of those that go on while they arrive; whether there
    /// were any.
    fn resume(&mut self, now: Instant) -> bool {
        let mut resumed = false;
        while let Some((_, rx, verdict)) = self.shard.poll_resume() {
            self.lnd.resume(now, rx, verdict, &mut self.shard);
            resumed = true;
        }
        while let Some((&transmit, comes)) = self.shard.poll_extended() {
            if comes {
                self.lnd.extend(now, &transmit);
            } else {
                self.lnd.withdraw(now, &transmit, &mut self.shard);
            }
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
        let (later, first) = self.nis.split_at(self.first_ni);
        for &ni in first.iter().chain(later) {
            while submitted < TRANSMIT_BUDGET {
                let Some(message) = self.shard.poll_transmit(now, ni) else { break };
                if let Err(full) = self.lnd.submit(now, message, &self.memory) {
                    self.shard.give_back(full);
                    self.device_full = true;
                    break;
                }
                submitted += 1;
            }
        }
        // Each NI is first in its turn, so that none uses up the budget for ever.
        self.first_ni = if self.first_ni + 1 < self.nis.len() { self.first_ni + 1 } else { 0 };
        submitted != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many nanoseconds until a whole turn is due, where idle polls are so far apart.
    fn run(idle_polls: &mut IdlePolls, now: &mut Instant, poll_ns: u64) -> u64 {
        let begun = *now;
        while idle_polls.left != 0 {
            now.0 += poll_ns;
            if idle_polls.is_look_due() && idle_polls.look(*now) {
                break;
            }
        }
        *now = Instant(now.0 + 60);
        now.0 - begun.0
    }

    #[test]
    fn whole_turns_are_as_far_apart_whoever_drives() {
        for poll_ns in [4, 100, 700, 7000, 50_000] {
            let (mut idle_polls, mut now) = (IdlePolls::new(), Instant(0));
            for round in 0..30 {
                idle_polls.end();
                idle_polls.begin(now, None);
                let time_ns = run(&mut idle_polls, &mut now, poll_ns);
                // The driver's next call may be a while after it is due.
                assert!(
                    round < 10 || (10_000..=13_000 + 2 * poll_ns).contains(&time_ns),
                    "{poll_ns}: {time_ns}"
                );
            }
            // Of those that find nothing each is later.
            for round in 0..30 {
                idle_polls.begin(now, None);
                let time_ns = run(&mut idle_polls, &mut now, poll_ns);
                let least_ns = (20_000 << round.min(3)).min(160_000);
                assert!(
                    (least_ns..=least_ns * 13 / 10 + 2 * poll_ns).contains(&time_ns),
                    "{poll_ns}: {time_ns}, {least_ns} at least"
                );
            }
        }
    }

    #[test]
    fn they_end_when_something_is_due() {
        let (mut idle_polls, mut now) = (IdlePolls::new(), Instant(0));
        idle_polls.between = IDLE_POLLS_MAX;
        idle_polls.begin(now, Some(Instant(500)));
        assert!((500..700).contains(&run(&mut idle_polls, &mut now, 5)));
        for _ in 0..10 {
            idle_polls.end();
            idle_polls.begin(now, None);
            run(&mut idle_polls, &mut now, 600);
        }
        idle_polls.begin(now, Some(now + Duration::from_nanos(1500)));
        assert!((1500..4500).contains(&run(&mut idle_polls, &mut now, 600)), "a slow driver");
        idle_polls.begin(now, Some(Instant(0)));
        assert!(run(&mut idle_polls, &mut now, 5) < 300);
        idle_polls.begin(now, None);
        idle_polls.end();
        assert_eq!(run(&mut idle_polls, &mut now, 5), 60);
    }

    #[test]
    fn they_end_soon_where_the_driver_has_become_slow() {
        let mut idle_polls = IdlePolls { between: IDLE_POLLS_MAX, ..IdlePolls::new() };
        let mut now = Instant(500);
        idle_polls.begin(now, None);
        assert!(run(&mut idle_polls, &mut now, 1_000_000) <= 1_000_000 * u64::from(IDLE_POLLS_MAX) + 60);
        idle_polls.begin(now, None);
        for _ in 0..4 {
            idle_polls.left = idle_polls.between;
            run(&mut idle_polls, &mut now, 1_000_000);
        }
        assert_eq!(idle_polls.between, 1);
    }
}
