//! How values are distributed: how long messages took, how many there were in a second.
//!
//! Invariant: a histogram has its full size from the start, so that recording allocates nothing.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Values from 1 on, each to within some decimal digits. What is larger than the largest counts as that.
#[derive(Clone, PartialEq, Debug)]
pub struct Distribution(Histogram<u64>);

impl Default for Distribution {
    /// Nanoseconds up to ten minutes, to within one percent.
    fn default() -> Self {
        Self::new(600_000_000_000, 2)
    }
}

impl Distribution {
    /// An empty distribution of values up to `largest`, with 1 to 5 digits.
    ///
    /// # Panics
    /// The bounds are others than these.
    #[must_use]
    pub fn new(largest: u64, digits: u8) -> Self {
        Self(Histogram::new_with_bounds(1, largest, digits).expect("bounds that go together"))
    }

    /// The largest time of [`Distribution::measured`], in nanoseconds: a minute.
    pub const MEASURED_NS_MAX: u64 = 60_000_000_000;

    /// An empty distribution of times: nanoseconds up to a minute, with three digits.
    #[must_use]
    pub fn measured() -> Self {
        Self::new(Self::MEASURED_NS_MAX, 3)
    }

    /// Counts some equal values in.
    pub fn record(&mut self, value: u64, count: u64) {
        self.0.saturating_record_n(value, count);
    }

    /// Counts a time in, as nanoseconds.
    pub fn record_time(&mut self, time: Duration) {
        self.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), 1);
    }

    /// How many were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The value that this share of all, 0 to 1, did not exceed; 0 if there are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.value_at_quantile(share) }
    }

    /// The largest; 0 if there are none.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.0.max()
    }

    /// Values that stand for those around them, in order, and how many there are of each.
    pub fn values(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()))
    }

    /// Adds what another one has recorded.
    pub fn merge(&mut self, other: &Self) {
        other.values().for_each(|(value, count)| self.record(value, count));
    }

    /// The histogram, for what else it tells.
    #[must_use]
    pub const fn histogram(&self) -> &Histogram<u64> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_merge() {
        let mut latency = Distribution::default();
        for us in 1..=1000 {
            latency.record_time(Duration::from_micros(us));
        }
        latency.record_time(Duration::from_secs(1 << 20));
        let mut sum = latency.clone();
        assert!((495_000..=505_000).contains(&sum.quantile(0.5)), "{}", sum.quantile(0.5));
        sum.merge(&latency);
        assert_eq!((sum.count(), sum.quantile(0.5)), (2002, latency.quantile(0.5)));
        assert_eq!(sum.max(), latency.max());
        assert_eq!(Distribution::default().quantile(0.5), 0);
    }
}
