//! Fault rules: those that drop messages, and those that hold them up.

mod filter;

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

pub use filter::{Filter, MessageTypes};

use crate::errno::{Errno, Refusal};

words! {
    /// How a send can be made to end.
    #[expect(missing_docs, reason = "LNet's names, which say all there is to say")]
    HealthError {
        LocalInterrupt = "local_interrupt",
        LocalDropped = "local_dropped",
        LocalAborted = "local_aborted",
        LocalNoRoute = "local_no_route",
        LocalError = "local_error",
        LocalTimeout = "local_timeout",
        RemoteError = "remote_error",
        RemoteDropped = "remote_dropped",
        RemoteTimeout = "remote_timeout",
        NetworkTimeout = "network_timeout",
        Random = "random",
    }
}

/// A rule by which messages are dropped as they arrive; or, with `health_errors`, fail just before they
/// leave.
///
/// Exactly one of `rate` and `interval_s` is not zero, even where `drop_all` makes both irrelevant.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct DropRule {
    /// Which messages.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub filter: Filter,
    /// Messages of which one is hit, a random one of them. Of two it is the first, until the rule is reset.
    pub rate: u32,
    /// One message is hit in so many seconds: the first one after a random moment. If none comes, it is the
    /// first one later, and the next such time begins with it.
    pub interval_s: u32,
    /// About half of the messages are hit instead, each by chance. Needs `interval_s`, whose length does not
    /// matter then.
    pub random: bool,
    /// Each message is hit instead.
    pub drop_all: bool,
    /// If not empty: messages are not dropped, but their sending fails with one of these.
    pub health_errors: Vec<HealthError>,
}

counters! {
    /// What a rule has seen and hit since it was made or reset.
    RuleCounters {
        /// Messages that passed its filter.
        count: u64 = "fs_count",
        /// PUTs hit.
        put: u64 = "fs_put",
        /// ACKs hit.
        ack: u64 = "fs_ack",
        /// GETs hit.
        get: u64 = "fs_get",
        /// REPLYs hit.
        reply: u64 = "fs_reply",
    }
}

/// A rule and its counters.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct DropRuleRecord {
    /// The rule.
    pub rule: DropRule,
    /// Messages that it dropped.
    pub dropped: u64,
    /// Messages that it has seen.
    pub counters: RuleCounters,
}

impl RuleCounters {
    /// Messages hit.
    #[must_use]
    pub const fn fired(&self) -> u64 {
        self.put + self.ack + self.get + self.reply
    }
}

impl DropRule {
    /// Time in which one message is hit; zero if the rate decides.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        Duration::from_secs(self.interval_s as u64)
    }

    /// Whether the rule makes sense.
    ///
    /// # Errors
    /// The number that makes none.
    pub fn check(&self) -> Result<(), Refusal> {
        check_pace(self.rate, self.interval())?;
        if self.random && self.interval_s == 0 {
            return Err(Refusal::new(Errno::INVAL, "a random rule has an interval, not a rate"));
        }
        self.filter.checked().map(drop)
    }
}

/// A rule by which messages are held up.
///
/// Exactly one of `rate` and `interval_s` is not zero.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct DelaySpec {
    /// Which messages.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub filter: Filter,
    /// Holds up one of so many, as the rate of a [`DropRule`] drops it.
    pub rate: u32,
    /// Holds up one message in so many seconds, as the interval of a [`DropRule`] drops it.
    pub interval_s: u32,
    /// Seconds that a message is held up; not zero.
    pub latency_s: u32,
}

/// A delay rule and its counters.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct DelayRuleRecord {
    /// The rule.
    pub rule: DelaySpec,
    /// Messages that it held up.
    pub delayed: u64,
    /// What it has seen.
    pub counters: RuleCounters,
}

impl DelaySpec {
    /// Whether the rule makes sense.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<(), Refusal> {
        check_pace(self.rate, Duration::from_secs(self.interval_s.into()))?;
        if self.latency_s == 0 {
            return Err(Refusal::new(Errno::INVAL, "a latency of 0: seconds other than zero are expected"));
        }
        self.filter.checked().map(drop)
    }
}

/// Whether either one of so many messages is hit, or one in each such time.
///
/// # Errors
/// [`Refusal`]: both, or neither.
pub fn check_pace(rate: u32, interval: Duration) -> Result<(), Refusal> {
    if (rate == 0) == interval.is_zero() {
        let numbers = format!("rate {rate} and interval {}", interval.as_secs());
        let message = format!("{numbers}: exactly one other than zero is expected");
        return Err(Refusal::new(Errno::INVAL, message));
    }
    Ok(())
}
