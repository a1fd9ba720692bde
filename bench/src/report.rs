//! Latencies: how they are recorded, and what is told of them.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Percentiles, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// Half were faster.
    pub p50: u64,
    /// 90 % were faster.
    pub p90: u64,
    /// 99 % were faster.
    pub p99: u64,
    /// 99.9 % were faster.
    pub p999: u64,
    /// The slowest.
    pub max: u64,
}

impl From<&Histogram<u64>> for Latency {
    fn from(histogram: &Histogram<u64>) -> Self {
        Self {
            p50: histogram.value_at_quantile(0.5),
            p90: histogram.value_at_quantile(0.9),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        }
    }
}

/// A histogram of nanoseconds, three digits, up to a minute.
///
/// # Panics
/// Never: the bounds are constants that the library takes.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid")
}
