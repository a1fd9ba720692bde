//! Rules: when they fire, and what they have counted.

use alloc::vec::Vec;
use core::time::Duration;

use lnet_wire::{Header, MessageType, Nid};

use super::{FaultError, Filter, RULES_MAX};
use crate::collections::Random;
use crate::health::HealthStatus;
use crate::lnd::{Cause, Status};
use crate::time::Instant;

/// A set of health statuses, with the bits of LNet's rules: bit n is the status of number n.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HealthMask(u32);

impl HealthMask {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// Any of them (`random` to tools).
    pub const ANY: Self = Self(u32::MAX);

    /// The set with these bits; `None` if one of them stands for nothing, unless all 32 are set.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits == u32::MAX || bits & !0x7FE == 0 { Some(Self(bits)) } else { None }
    }

    /// The set as bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The set and this one.
    #[must_use]
    pub const fn with(self, status: HealthStatus) -> Self {
        Self(self.0 | 1 << status as u32)
    }

    /// One of the set, by chance: a random one if that is in it, else the one in it whose number is nearest,
    /// the lower one of two (LNet `net_fault.c: lnet_fault_match_health`). The set is not empty.
    fn pick(self, random: &mut Random) -> HealthStatus {
        let drawn = random.below(HealthStatus::ALL.len() as u64) as usize;
        let contained = |status: &HealthStatus| self.0 >> *status as u32 & 1 != 0;
        let distance = |status: &HealthStatus| (*status as usize).abs_diff(drawn + 1);
        let nearest = HealthStatus::ALL.into_iter().filter(contained).min_by_key(distance);
        nearest.unwrap_or(HealthStatus::ALL[drawn])
    }
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

/// A rule by which messages are dropped as they arrive; or, with `health`, fail just before they leave.
///
/// Of `rate` and `interval` exactly one is not zero, even where `drop_all` makes both irrelevant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DropRule {
    /// Which messages.
    pub filter: Filter,
    /// Drops one of so many, a random one of them. With 2 the first message goes, until the rule is
    /// reset.
    pub rate: u32,
    /// Drops one message in each such time: the first one after a random moment. If none comes, it is the
    /// first one later, and the next such time begins with it.
    pub interval: Duration,
    /// Drops about half of the messages instead, each by chance. Needs `interval`, whose length does not
    /// matter then.
    pub random: bool,
    /// Drops every message instead.
    pub drop_all: bool,
    /// If it is not empty: messages are not dropped, but their sending fails with a status chosen from it.
    pub health: HealthMask,
}

impl DropRule {
    /// The rule in plain terms, if it makes sense.
    pub(super) fn checked(mut self) -> Result<Self, FaultError> {
        let Self { rate, interval, .. } = self;
        check_times(rate, interval)?;
        if self.random && interval.is_zero() {
            return Err(FaultError::RandomWithoutInterval { rate });
        }
        self.filter = self.filter.checked()?;
        Ok(self)
    }
}

/// A rule by which messages are delayed: on their way out once they hold their credits, and as they arrive
/// before they are matched.
///
/// Of `rate` and `interval` exactly one is not zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DelayRule {
    /// Which messages.
    pub filter: Filter,
    /// Holds up one of so many, as the rate of a [`DropRule`] drops it.
    pub rate: u32,
    /// Holds up one message in each such time, as the interval of a [`DropRule`] drops it.
    pub interval: Duration,
    /// For so long; not zero.
    pub latency: Duration,
}

impl DelayRule {
    /// The rule in plain terms, if it makes sense.
    pub(super) fn checked(mut self) -> Result<Self, FaultError> {
        check_times(self.rate, self.interval)?;
        if self.latency.is_zero() {
            return Err(FaultError::Latency);
        }
        self.filter = self.filter.checked()?;
        Ok(self)
    }
}

fn check_times(rate: u32, interval: Duration) -> Result<(), FaultError> {
    if (rate == 0) == interval.is_zero() {
        return Err(FaultError::RateAndInterval { rate, interval });
    }
    Ok(())
}

/// What a rule has seen and done since it was added or reset.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RuleCounters {
    /// Messages that it was asked about and that passed its filter.
    pub matched: u64,
    /// PUTs that it dropped, failed or delayed.
    pub puts: u64,
    /// ACKs likewise.
    pub acks: u64,
    /// GETs likewise.
    pub gets: u64,
    /// REPLYs likewise.
    pub replies: u64,
}

impl RuleCounters {
    /// Messages that it dropped, failed or delayed.
    #[must_use]
    pub const fn fired(&self) -> u64 {
        self.puts + self.acks + self.gets + self.replies
    }

    const fn count_fired(&mut self, message_type: MessageType) {
        match message_type {
            MessageType::Put => self.puts += 1,
            MessageType::Ack => self.acks += 1,
            MessageType::Get => self.gets += 1,
            MessageType::Reply => self.replies += 1,
            MessageType::Hello => {}
        }
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
        (self.rate, self.interval)
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
    if rules.len() == RULES_MAX {
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
    /// With a rate: the message to fire at, counted from 0.
    fire_at: u64,
    /// With an interval: when it fires next, and when the time after this one begins.
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
        let position = self.counters.matched;
        self.counters.matched += 1;
        let fires = match self.rule.fires_always(&mut self.random) {
            Some(fires) => fires,
            None if self.rule.pace().0 == 0 => self.fires_in_time(now),
            None => self.fires_at(position),
        };
        if fires {
            self.counters.count_fired(header.message_type());
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
        simulated(self.rule.health.pick(&mut self.random))
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    fn picked(mask: HealthMask) -> BTreeSet<HealthStatus> {
        let mut random = Random::new(7);
        (0..500).map(|_| mask.pick(&mut random)).collect()
    }

    #[test]
    fn a_status_comes_from_the_mask() {
        assert_eq!(picked(HealthMask::ANY), HealthStatus::ALL.into_iter().collect());
        for status in HealthStatus::ALL {
            assert_eq!(picked(HealthMask::NONE.with(status)), [status].into());
        }
        let ends = HealthMask::NONE.with(HealthStatus::LocalInterrupt).with(HealthStatus::NetworkTimeout);
        assert_eq!(picked(ends), [HealthStatus::LocalInterrupt, HealthStatus::NetworkTimeout].into());
        assert_eq!(HealthMask::from_bits(ends.bits()), Some(ends));
        assert_eq!(HealthMask::from_bits(1), None, "0 is no failure");
        assert_eq!(HealthMask::from_bits(1 << 11), None);
        assert_eq!(HealthMask::from_bits(u32::MAX), Some(HealthMask::ANY));
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
