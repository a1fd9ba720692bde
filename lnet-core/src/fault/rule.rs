//! Rules: when they fire, and what they have counted.

use alloc::vec::Vec;
use core::time::Duration;

use lnet_model::fault::{DropRule, Filter, HealthError, RuleCounters, check_pace};
use lnet_wire::{Header, MessageType, Nid};

use super::{FAULT_RULES_MAX, FaultError};
use crate::collections::Random;
use crate::health::HealthStatus;
use crate::lnd::{Cause, Status};
use crate::time::Instant;

/// A status of those that health errors name, by chance: any if they name the random one, else the one of
/// them whose number is nearest to a random one, the lower one of two (LNet `net_fault.c:
/// lnet_fault_match_health`).
fn pick(errors: &[HealthError], random: &mut Random) -> HealthStatus {
    let drawn = random.below(HealthStatus::ALL.len() as u64) as usize;
    // The errors but the random one stand in the order of the statuses.
    let numbers =
        errors.iter().map(|error| *error as usize).filter(|_| !errors.contains(&HealthError::Random));
    let nearest = numbers.min_by_key(|number| (number.abs_diff(drawn), *number));
    HealthStatus::ALL[nearest.unwrap_or(drawn)]
}

/// How a send with this health status ends. What is said to have failed here, or to have been dropped by the
/// peer, never left; of the rest a sender could not know.
const fn simulated(status: HealthStatus) -> Status {
    let cause = Cause::Simulated(status);
    match status {
        HealthStatus::LocalInterrupt
        | HealthStatus::LocalDropped
        | HealthStatus::LocalAborted
        | HealthStatus::LocalNoRoute
        | HealthStatus::LocalError
        | HealthStatus::LocalTimeout
        | HealthStatus::RemoteDropped => Status::NeverSent(cause),
        HealthStatus::RemoteError | HealthStatus::RemoteTimeout | HealthStatus::NetworkTimeout => {
            Status::Unknown(cause)
        }
    }
}

/// The rule in plain terms, if it makes sense.
pub(super) fn checked(rule: &DropRule) -> Result<DropRule, FaultError> {
    rule.check()?;
    Ok(DropRule { filter: rule.filter.checked()?, ..rule.clone() })
}

/// A rule by which messages are delayed: on their way out once they hold their credits, and as they arrive
/// before they are matched.
///
/// Exactly one of `rate` and `interval` is not zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DelayRule {
    /// Which messages.
    pub filter: Filter,
    /// Holds up one of so many, as the rate of a [`DropRule`] drops it.
    pub rate: u32,
    /// Holds up one message in each such time, as the interval of a [`DropRule`] drops it.
    pub interval: Duration,
    /// How long a message is held up; not zero.
    pub latency: Duration,
}

impl DelayRule {
    /// Whether the rule makes sense.
    ///
    /// # Errors
    /// [`FaultError`] says what does not.
    pub fn check(&self) -> Result<(), FaultError> {
        self.checked().map(drop)
    }

    /// The rule in plain terms, if it makes sense.
    pub(super) fn checked(mut self) -> Result<Self, FaultError> {
        check_pace(self.rate, self.interval)?;
        if self.latency.is_zero() {
            return Err(FaultError::Latency);
        }
        self.filter = self.filter.checked()?;
        Ok(self)
    }
}

fn count_fired(counters: &mut RuleCounters, message_type: MessageType) {
    match message_type {
        MessageType::Put => counters.put += 1,
        MessageType::Ack => counters.ack += 1,
        MessageType::Get => counters.get += 1,
        MessageType::Reply => counters.reply += 1,
        MessageType::Hello => {}
    }
}

/// What all rules have.
pub(super) trait Rule {
    fn filter(&self) -> &Filter;

    /// Rate and interval.
    fn pace(&self) -> (u32, Duration);

    /// Whether it fires without regard to rate and interval, or does not; `None` if they decide.
    fn fires_always(&self, _: &mut Random) -> Option<bool> {
        None
    }
}

impl Rule for DropRule {
    fn filter(&self) -> &Filter {
        &self.filter
    }
    fn pace(&self) -> (u32, Duration) {
        (self.rate, self.interval())
    }
    fn fires_always(&self, random: &mut Random) -> Option<bool> {
        if self.drop_all { Some(true) } else { self.random.then(|| random.below(2) == 0) }
    }
}

impl Rule for DelayRule {
    fn filter(&self) -> &Filter {
        &self.filter
    }
    fn pace(&self) -> (u32, Duration) {
        (self.rate, self.interval)
    }
}

/// Adds a rule behind those that there are.
pub(super) fn add<R: Rule>(
    rules: &mut Vec<ActiveRule<R>>,
    rule_count: &mut u64,
    now: Instant,
    rule: R,
    seed: u64,
) -> Result<(), FaultError> {
    if rules.len() == FAULT_RULES_MAX {
        return Err(FaultError::RulesFull);
    }
    *rule_count += 1;
    rules.push(ActiveRule::new(now, rule, *rule_count, seed));
    Ok(())
}

/// A rule at work.
pub(super) struct ActiveRule<R> {
    pub(super) rule: R,
    /// Names it; never used again.
    pub(super) id: u64,
    pub(super) counters: RuleCounters,
    random: Random,
    /// The message to fire at, counted from 0, if the rule has a rate.
    fire_at: u64,
    /// When it fires next, and when the time after this one begins, if the rule has an interval.
    due: Instant,
    next_slot: Instant,
}

impl<R: Rule> ActiveRule<R> {
    pub(super) fn new(now: Instant, rule: R, id: u64, seed: u64) -> Self {
        let mut active = Self {
            rule,
            id,
            counters: RuleCounters::default(),
            random: Random::new(seed),
            fire_at: 0,
            due: now,
            next_slot: now,
        };
        active.reset(now);
        if active.rule.pace().0 == 2 {
            active.fire_at = 0;
        }
        active
    }

    pub(super) fn reset(&mut self, now: Instant) {
        self.counters = RuleCounters::default();
        self.fire_at = self.random.below(self.rule.pace().0.into());
        self.begin_slot(now);
    }

    /// Whether deleting what has these ends, of which each may be the wildcard, deletes it.
    pub(super) fn has_ends(&self, source: &Nid, destination: &Nid) -> bool {
        let filter = self.rule.filter();
        (source.is_any() || *source == filter.source)
            && (destination.is_any() || *destination == filter.destination)
    }

    /// Asks it about a message: whether it fires. Counts what passes its filter.
    pub(super) fn fires(&mut self, now: Instant, local: Option<&Nid>, header: &Header) -> bool {
        if !self.rule.filter().matches(local, header) {
            return false;
        }
        let position = self.counters.count;
        self.counters.count += 1;
        let fires = match self.rule.fires_always(&mut self.random) {
            Some(fires) => fires,
            None if self.rule.pace().0 == 0 => self.fires_in_time(now),
            None => self.fires_at(position),
        };
        if fires {
            count_fired(&mut self.counters, header.message_type());
        }
        fires
    }

    fn begin_slot(&mut self, start: Instant) {
        let interval = self.rule.pace().1;
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        self.due = start + Duration::from_nanos(self.random.below(interval_ns));
        self.next_slot = start + interval;
    }

    fn fires_at(&mut self, position: u64) -> bool {
        let fires = position == self.fire_at;
        let (next, rate) = (position + 1, u64::from(self.rule.pace().0));
        if next.is_multiple_of(rate) {
            self.fire_at = next + self.random.below(rate);
        }
        fires
    }

    fn fires_in_time(&mut self, now: Instant) -> bool {
        if now < self.due {
            return false;
        }
        self.begin_slot(self.next_slot.max(now));
        true
    }
}

impl ActiveRule<DropRule> {
    /// How the sending of a message ends that it fails.
    pub(super) fn failure(&mut self) -> Status {
        simulated(pick(&self.rule.health_errors, &mut self.random))
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    fn picked(errors: &[HealthError]) -> BTreeSet<HealthStatus> {
        let mut random = Random::new(7);
        (0..500).map(|_| pick(errors, &mut random)).collect()
    }

    #[test]
    fn a_status_is_one_that_the_rule_names() {
        let names = HealthStatus::ALL.iter().map(|status| status.name()).chain(["random"]);
        assert!(HealthError::NAMES.iter().copied().eq(names), "they stand in the order of the statuses");
        assert_eq!(picked(&[HealthError::Random]), HealthStatus::ALL.into_iter().collect());
        assert_eq!(
            picked(&[HealthError::LocalError, HealthError::Random]),
            HealthStatus::ALL.into_iter().collect()
        );
        for (error, status) in HealthError::ALL.into_iter().zip(HealthStatus::ALL) {
            assert_eq!(picked(&[error]), [status].into());
        }
        let ends = [HealthError::NetworkTimeout, HealthError::LocalInterrupt];
        assert_eq!(picked(&ends), [HealthStatus::LocalInterrupt, HealthStatus::NetworkTimeout].into());
    }

    #[test]
    fn what_fails_here_or_may_be_sent_again_never_leaves() {
        for status in HealthStatus::ALL {
            let local = status.name().starts_with("local");
            let is_unsent = matches!(simulated(status), Status::NeverSent(_));
            assert_eq!(is_unsent, local || status.allows_another_path(), "{status}");
            assert_eq!(simulated(status).health(), Some(status));
        }
    }
}
