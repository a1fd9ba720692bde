//! Time as the core sees it: whatever its driver says.

use core::ops::{Add, Sub};
use core::time::Duration;

/// A moment, in nanoseconds since an epoch of the driver's choice; never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

/// The earliest of these times; `None` if there is none.
///
/// The minimum of a chain of iterators over options compiles to far more code; shards ask in every turn.
#[inline]
#[must_use]
pub fn earliest<const N: usize>(times: [Option<Instant>; N]) -> Option<Instant> {
    times.into_iter().fold(None, |earliest, time| match (earliest, time) {
        (Some(earliest), Some(time)) => Some(earliest.min(time)),
        _ => earliest.or(time),
    })
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_of_those_that_are() {
        let at = |ns| Some(Instant(ns));
        assert_eq!(earliest([]), None);
        assert_eq!(earliest([None, None]), None);
        assert_eq!(earliest([None, at(7), None]), at(7));
        assert_eq!(earliest([at(9), None, at(3), at(u64::MAX)]), at(3));
    }
}
