//! How long messages took.
//!
//! Invariant: a histogram has its full size from the start, so that recording allocates nothing.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Longest time that is told apart, in nanoseconds: ten minutes.
const MAX_NS: u64 = 600_000_000_000;
/// Decimal digits that are kept.
const DIGITS: u8 = 2;

/// Times from a request to its last event, to within one percent.
#[derive(Clone, PartialEq, Debug)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        Self(
            Histogram::new_with_bounds(1, MAX_NS, DIGITS).expect("the bounds are constants that go together"),
        )
    }
}

impl Latency {
    /// Counts one in. Beyond ten minutes counts as ten.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(MAX_NS));
    }

    /// How many were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// What that share of all, 0 to 1, did not exceed, in nanoseconds; 0 if there are none.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.value_at_quantile(share) }
    }

    /// The longest, in nanoseconds; 0 if there are none.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.0.max()
    }

    /// Adds what another one has recorded.
    pub fn merge(&mut self, other: &Self) {
        for bucket in other.0.iter_recorded() {
            self.0.saturating_record_n(bucket.value_iterated_to(), bucket.count_at_value());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_merge() {
        let mut latency = Latency::default();
        for us in 1..=1000 {
            latency.record(Duration::from_micros(us));
        }
        latency.record(Duration::from_secs(1 << 20));
        let mut sum = latency.clone();
        assert!((495_000..=505_000).contains(&sum.quantile_ns(0.5)), "{}", sum.quantile_ns(0.5));
        sum.merge(&latency);
        assert_eq!((sum.count(), sum.quantile_ns(0.5)), (2002, latency.quantile_ns(0.5)));
        assert_eq!(sum.max_ns(), latency.max_ns());
        assert_eq!(Latency::default().quantile_ns(0.5), 0);
    }
}
