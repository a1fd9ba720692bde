//! Distributions of times.

use core::ops::AddAssign;

use crate::time::Instant;

/// Times below this number of nanoseconds are in the first bucket; each further bucket reaches twice as far.
const FIRST_BOUND_NS: u64 = 1 << FIRST_BITS;
const FIRST_BITS: u32 = 10;
/// Buckets: the last but one ends at some 8.6 s, and the last one has all that is longer.
const BUCKETS: usize = 25;

/// Times by how long they were: buckets by powers of two, from some microsecond on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Histogram([u64; BUCKETS]);

impl Histogram {
    /// Notes something that began then and ended now.
    pub(crate) fn note(&mut self, begun: Instant, now: Instant) {
        let ns = now.0.saturating_sub(begun.0);
        let bucket = (u64::BITS - ns.leading_zeros()).saturating_sub(FIRST_BITS);
        self.0[(bucket as usize).min(BUCKETS - 1)] += 1;
    }

    /// The buckets: a time below which theirs are, and how many; the last one has no such time.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let bound = |bucket: usize| (bucket + 1 < BUCKETS).then_some(FIRST_BOUND_NS << bucket);
        self.0.into_iter().enumerate().map(move |(bucket, count)| (bound(bucket), count))
    }

    /// Times noted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl AddAssign<&Self> for Histogram {
    fn add_assign(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }
}

/// Distributions of the times of a local NI whose sums [`NiCounters`](super::NiCounters) have.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NiLatencies {
    /// Times from the start of a PUT until its LND has finished with it.
    pub put_egress: Histogram,
    /// Times from the start of a GET until its REPLY is in place, where that was awaited.
    pub get_rtt: Histogram,
    /// Times from the start of a PUT until its ACK, where that was awaited.
    pub put_ack: Histogram,
}

impl AddAssign<&Self> for NiLatencies {
    fn add_assign(&mut self, other: &Self) {
        self.put_egress += &other.put_egress;
        self.get_rtt += &other.get_rtt;
        self.put_ack += &other.put_ack;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_first_bucket_that_reaches_beyond_it() {
        for (ns, expected) in [
            (0, Some(1 << 10)),
            (1023, Some(1 << 10)),
            (1024, Some(1 << 11)),
            ((1 << 33) - 1, Some(1 << 33)),
            (1 << 33, None),
            (u64::MAX, None),
        ] {
            let mut histogram = Histogram::default();
            histogram.note(Instant(0), Instant(ns));
            let found = histogram.buckets().find(|(_, count)| *count > 0);
            assert_eq!((found, histogram.count()), (Some((expected, 1)), 1), "{ns}");
        }
        let mut both = Histogram::default();
        both.note(Instant(5), Instant(0));
        let one = both;
        both += &one;
        assert_eq!(both.buckets().next(), Some((Some(1 << 10), 2)));
    }
}
