//! Counts of a client, and the report that is printed of them.

use std::time::{Duration, Instant};

use lnet_load::Distribution;
use lnet_messaging::Errno;
use serde::{Deserialize, Serialize};

use crate::options::Test;
use crate::output::note;

/// Most exchanges in a second that are told apart.
const RATE_MAX: u64 = 1_000_000_000;

/// Round trips in ns, or rates in exchanges a second.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) count: u64,
    pub(crate) min: u64,
    pub(crate) mean: f64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) stddev: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) p50: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) p99: Option<u64>,
    pub(crate) max: u64,
}

impl Summary {
    pub(crate) fn of(distribution: &Distribution) -> Self {
        let histogram = distribution.histogram();
        if histogram.is_empty() {
            return Self::default();
        }
        Self {
            count: histogram.len(),
            min: histogram.min(),
            mean: histogram.mean(),
            stddev: Some(histogram.stdev()),
            p50: Some(histogram.value_at_quantile(0.5)),
            p99: Some(histogram.value_at_quantile(0.99)),
            max: histogram.max(),
        }
    }
}

/// How exchanges have ended.
#[derive(Serialize, Deserialize, Clone, Default, Debug)]
pub(crate) struct Tally {
    /// Exchanges that went well.
    pub(crate) done: u64,
    /// Exchanges with an operation that ended with an error, or was refused.
    pub(crate) failed: u64,
    /// The name of the errno of the first of these.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) first_error: Option<String>,
    /// Exchanges that came back with other bytes.
    pub(crate) bad: u64,
    /// Exchanges that did not come back in time.
    pub(crate) lost: u64,
}

impl Tally {
    /// Number of exchanges that have come to an end.
    pub(crate) fn ended(&self) -> u64 {
        self.done + self.failed + self.bad + self.lost
    }

    pub(crate) fn fail(&mut self, errno: Errno) {
        self.failed += 1;
        self.first_error.get_or_insert_with(|| errno.to_string());
    }

    /// Adds what was counted elsewhere.
    fn add(&mut self, other: &Self) {
        self.done += other.done;
        self.failed += other.failed;
        self.first_error = self.first_error.take().or_else(|| other.first_error.clone());
        self.bad += other.bad;
        self.lost += other.lost;
    }
}

/// The outcome of a test.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Report {
    pub(crate) test: Test,
    pub(crate) client: String,
    pub(crate) server: String,
    pub(crate) elapsed_s: f64,
    #[serde(flatten)]
    pub(crate) tally: Tally,
    /// Bytes a second, in each direction.
    pub(crate) bytes_per_s: f64,
    pub(crate) exchanges_per_s: f64,
    pub(crate) round_trip_ns: Summary,
    /// Exchanges of each whole second.
    pub(crate) exchanges_in_a_second: Summary,
    /// Reports of a console's clients and servers.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) parts: Vec<Part>,
    /// Nodes of a console from which nothing came, or nothing any more.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) silent: Vec<String>,
}

/// The part of a console's node.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    Client(Box<Report>),
    Server {
        address: String,
        #[serde(flatten)]
        served: Served,
    },
}

/// Counts of a server.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Served {
    /// Messages of tests, and those that were sent back.
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// Bulk buffers, from clients and to them.
    pub(crate) read: u64,
    pub(crate) written: u64,
    /// Operations that were refused, or ended with an error.
    pub(crate) failed: u64,
    /// Messages that are none of a test, or ask for what the server is not ready for.
    pub(crate) bad: u64,
}

impl Served {
    #[cfg(test)]
    pub(crate) fn plus(self, other: &Self) -> Self {
        Self {
            received: self.received + other.received,
            sent: self.sent + other.sent,
            read: self.read + other.read,
            written: self.written + other.written,
            failed: self.failed + other.failed,
            bad: self.bad + other.bad,
        }
    }
}

impl Report {
    /// The report of a test of which nothing was done.
    #[cfg(test)]
    pub(crate) fn empty(test: &Test, client: &str, server: &str) -> Self {
        Counts::new().report(test, client, server)
    }
}

/// Round trips as they go to a console: values in ns that stand for those around them, and how many of each.
#[derive(Serialize, Deserialize, Clone, Default, Debug)]
pub(crate) struct RoundTrips(Vec<(u64, u64)>);

impl RoundTrips {
    /// Values that there may be at most, so that an answer with them fits a message.
    const COUNT_MAX: usize = 512;

    /// Sums round trips up, with as many digits as there is room for.
    fn of(round_trips: &Distribution) -> Self {
        let values = |digits| {
            let mut coarse = Distribution::new(Distribution::MEASURED_NS_MAX, digits);
            coarse.merge(round_trips);
            coarse.values().map(|(value, count)| (value.min(round_trips.max()), count)).collect::<Vec<_>>()
        };
        let fitting = [3, 2].map(values).into_iter().find(|values| values.len() <= Self::COUNT_MAX);
        Self(fitting.unwrap_or_else(|| values(1)))
    }

    #[cfg(test)]
    pub(crate) fn distribution(&self) -> Distribution {
        let mut distribution = Distribution::measured();
        self.add_to(&mut distribution);
        distribution
    }

    fn add_to(&self, distribution: &mut Distribution) {
        self.0.iter().for_each(|(value, count)| distribution.record(*value, *count));
    }

    #[cfg(test)]
    pub(crate) fn of_values(values: &[u64]) -> Self {
        let mut distribution = Distribution::measured();
        values.iter().for_each(|value| distribution.record(*value, 1));
        Self::of(&distribution)
    }

    /// Round trips that take the most room.
    #[cfg(test)]
    pub(crate) fn all_different() -> Self {
        let mut distribution = Distribution::measured();
        let values = std::iter::successors(Some(1_u64), |value| Some(value + value / 1500 + 1));
        values
            .take_while(|value| *value < Distribution::MEASURED_NS_MAX)
            .for_each(|value| distribution.record(value, 1));
        Self::of(&distribution)
    }
}

/// Counts of a test that goes on.
pub(crate) struct Counts {
    begun: Instant,
    second: Instant,
    done_before: u64,
    pub(crate) tally: Tally,
    round_trips: Distribution,
    rates: Distribution,
}

impl Counts {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        let (round_trips, rates) = (Distribution::measured(), Distribution::new(RATE_MAX, 3));
        Self { begun: now, second: now, done_before: 0, tally: Tally::default(), round_trips, rates }
    }

    pub(crate) fn succeed(&mut self, round_trip: Duration) {
        self.tally.done += 1;
        self.round_trips.record_time(round_trip);
    }

    /// Shows progress once a second.
    pub(crate) fn look(&mut self) {
        let passed = self.second.elapsed();
        if passed < Duration::from_secs(1) {
            return;
        }
        let Tally { done, failed, bad, lost, .. } = self.tally;
        let rate = (done - self.done_before) as f64 / passed.as_secs_f64();
        self.rates.record(rate as u64, 1);
        (self.second, self.done_before) = (Instant::now(), done);
        note(format_args!(
            "{:3.0} s: {done} exchanges, {rate:.0} a second, median {} us; {failed} failed, {bad} bad, {lost} lost",
            self.begun.elapsed().as_secs_f64(),
            self.round_trips.quantile(0.5) / 1000,
        ));
    }

    /// The outcome until now.
    pub(crate) fn report(&self, test: &Test, client: &str, server: &str) -> Report {
        self.report_of(test, client, server, self.begun.elapsed())
    }

    /// The outcome of a test that took so long.
    pub(crate) fn report_of(&self, test: &Test, client: &str, server: &str, elapsed: Duration) -> Report {
        let elapsed_s = elapsed.as_secs_f64();
        let exchanges_per_s = self.tally.done as f64 / elapsed_s;
        Report {
            test: test.clone(),
            client: client.to_owned(),
            server: server.to_owned(),
            elapsed_s,
            tally: self.tally.clone(),
            bytes_per_s: exchanges_per_s * test.size as f64,
            exchanges_per_s,
            round_trip_ns: Summary::of(&self.round_trips),
            exchanges_in_a_second: Summary::of(&self.rates),
            parts: Vec::new(),
            silent: Vec::new(),
        }
    }

    /// Round trips for a console.
    pub(crate) fn round_trips(&self) -> RoundTrips {
        RoundTrips::of(&self.round_trips)
    }

    /// Adds what a client has counted of another server.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.tally.add(&other.tally);
        self.round_trips.merge(&other.round_trips);
        self.rates.merge(&other.rates);
    }

    /// Adds what a client has reported.
    pub(crate) fn add(&mut self, report: &Report, round_trips: &RoundTrips) -> anyhow::Result<()> {
        self.tally.add(&report.tally);
        round_trips.add_to(&mut self.round_trips);
        anyhow::ensure!(
            round_trips.0.iter().map(|(_, count)| count).sum::<u64>() == report.tally.done,
            "{} tells of {} exchanges, and of other round trips",
            report.client,
            report.tally.done
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distribution(values: impl Iterator<Item = u64>) -> Distribution {
        let mut distribution = Distribution::measured();
        values.for_each(|value| distribution.record(value, 1));
        distribution
    }

    /// Against the formulas, but for the three digits of a histogram.
    #[track_caller]
    fn check(values: &[u64]) {
        let found = Summary::of(&distribution(values.iter().copied()));
        let count = values.len() as f64;
        let mean = values.iter().map(|value| *value as f64).sum::<f64>() / count;
        let variance = values.iter().map(|value| (*value as f64 - mean).powi(2)).sum::<f64>() / count;
        let near = |found: f64, expected: f64| (found - expected).abs() <= expected * 0.002 + 1.0;
        assert_eq!(found.count, values.len() as u64);
        assert!(near(found.min as f64, *values.iter().min().unwrap() as f64), "{found:?}");
        assert!(near(found.max as f64, *values.iter().max().unwrap() as f64), "{found:?}");
        assert!(near(found.mean, mean), "{found:?} {mean}");
        let expected = variance.sqrt();
        assert!(
            (found.stddev.unwrap() - expected).abs() <= expected * 0.01 + mean * 0.001,
            "{found:?} {expected}"
        );
    }

    #[test]
    fn nt_04_statistics() {
        assert_eq!(Summary::of(&distribution(std::iter::empty())).count, 0);
        assert_eq!(Summary::of(&distribution(std::iter::empty())).mean, 0.0);
        let one = Summary::of(&distribution(std::iter::once(100)));
        assert_eq!((one.count, one.min, one.max, one.stddev), (1, 100, 100, Some(0.0)));
        check(&[100, 300]);
        check(&[1, Distribution::MEASURED_NS_MAX]);
        check(&(0..1_000_000).map(|index| 1000 + index * 7919 % 50_000).collect::<Vec<_>>());
        let mut counts = Counts::new();
        counts.succeed(Duration::from_secs(3600));
        (counts.tally.lost, counts.tally.bad) = (2, 1);
        assert_eq!((counts.tally.done, counts.tally.ended()), (1, 4));
    }

    #[test]
    fn nt_04_a_merge_is_the_union() {
        let (few, many) = ([5, 70_000, 900], (1..200_000).map(|index| index * 31 % 10_000_000 + 1));
        let whole = distribution(few.iter().copied().chain(many.clone()));
        let mut sum = distribution(std::iter::empty());
        for part in [distribution(few.iter().copied()), distribution(many)] {
            let sent = serde_json::to_string(&RoundTrips::of(&part)).unwrap();
            let came: RoundTrips = serde_json::from_str(&sent).unwrap();
            assert!(came.0.len() <= RoundTrips::COUNT_MAX);
            came.add_to(&mut sum);
        }
        assert_eq!(sum.count(), whole.count());
        for quantile in [0.0, 0.5, 0.99, 1.0] {
            let [found, expected] = [&sum, &whole].map(|of| of.quantile(quantile) as f64);
            assert!((found - expected).abs() <= expected * 0.1, "{quantile}: {found}, {expected}");
        }
    }
}
