//! What a client counts, and what is printed of it.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::options::Test;

/// Longest round trip that is told apart, in ns: a minute.
const LONGEST_NS: u64 = 60_000_000_000;

/// Round trips in ns, or rates in exchanges a second.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub(crate) struct Distribution {
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

impl Distribution {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
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

/// The outcome of a test.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Report {
    pub(crate) test: Test,
    pub(crate) client: String,
    pub(crate) server: String,
    pub(crate) elapsed_s: f64,
    /// Exchanges that went well.
    pub(crate) done: u64,
    /// With an operation that ended with an error, or was refused.
    pub(crate) failed: u64,
    /// That came back with other bytes.
    pub(crate) bad: u64,
    /// That did not come back in time.
    pub(crate) lost: u64,
    /// Bytes a second, in each direction.
    pub(crate) bytes_per_s: f64,
    pub(crate) exchanges_per_s: f64,
    pub(crate) round_trip_ns: Distribution,
    /// Of each whole second.
    pub(crate) exchanges_in_a_second: Distribution,
    /// Of a console: those of its clients.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) parts: Vec<Report>,
    /// Of a console: clients of which nothing came any more.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) silent: Vec<String>,
}

/// What is being counted.
pub(crate) struct Counts {
    begun: Instant,
    second: Instant,
    done_before: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) bad: u64,
    pub(crate) lost: u64,
    round_trips: Histogram<u64>,
    rates: Histogram<u64>,
}

impl Counts {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            begun: now,
            second: now,
            done_before: 0,
            done: 0,
            failed: 0,
            bad: 0,
            lost: 0,
            round_trips: Histogram::new_with_bounds(1, LONGEST_NS, 3)?,
            rates: Histogram::new(3)?,
        })
    }

    pub(crate) fn succeed(&mut self, round_trip: Duration) {
        self.done += 1;
        self.round_trips.saturating_record(round_trip.as_nanos() as u64);
    }

    /// Exchanges that have come to an end.
    pub(crate) fn ended(&self) -> u64 {
        self.done + self.failed + self.bad + self.lost
    }

    /// Shows progress once a second; whether it has.
    pub(crate) fn look(&mut self) -> bool {
        let passed = self.second.elapsed();
        if passed < Duration::from_secs(1) {
            return false;
        }
        let rate = (self.done - self.done_before) as f64 / passed.as_secs_f64();
        self.rates.saturating_record(rate as u64);
        (self.second, self.done_before) = (Instant::now(), self.done);
        let Self { done, failed, bad, lost, .. } = self;
        eprintln!(
            "{:3.0} s: {done} exchanges, {rate:.0} a second, median {} us; {failed} failed, {bad} bad, {lost} lost",
            self.begun.elapsed().as_secs_f64(),
            self.round_trips.value_at_quantile(0.5) / 1000,
        );
        true
    }

    pub(crate) fn report(&self, test: &Test, client: &str, server: &str) -> Report {
        let elapsed_s = self.begun.elapsed().as_secs_f64();
        let exchanges_per_s = self.done as f64 / elapsed_s;
        Report {
            test: test.clone(),
            client: client.to_owned(),
            server: server.to_owned(),
            elapsed_s,
            done: self.done,
            failed: self.failed,
            bad: self.bad,
            lost: self.lost,
            bytes_per_s: exchanges_per_s * test.size as f64,
            exchanges_per_s,
            round_trip_ns: Distribution::of(&self.round_trips),
            exchanges_in_a_second: Distribution::of(&self.rates),
            parts: Vec::new(),
            silent: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nt_04_statistics() {
        let mut histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3).unwrap();
        assert_eq!(Distribution::of(&histogram).count, 0);
        histogram.record(100).unwrap();
        let one = Distribution::of(&histogram);
        assert_eq!((one.count, one.min, one.max, one.stddev), (1, 100, 100, Some(0.0)));
        histogram.record(300).unwrap();
        let two = Distribution::of(&histogram);
        assert_eq!((two.count, two.min, two.max, two.mean), (2, 100, 300, 200.0));
        let mut counts = Counts::new().unwrap();
        counts.succeed(Duration::from_secs(3600));
        (counts.lost, counts.bad) = (2, 1);
        assert_eq!((counts.done, counts.ended()), (1, 4));
    }
}
