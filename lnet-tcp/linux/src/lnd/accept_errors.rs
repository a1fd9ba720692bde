//! Failures to accept connections: when it is tried again, and lines of the log.

use std::io;
use std::time::Duration;

use lnet_core::time::Instant;
use rustix::io::Errno;

/// After the kernel could not accept a connection.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the log says nothing more of it.
const INTERVAL: Duration = Duration::from_secs(10);

/// The kernel's refusals to accept connections: for a while after one it is not asked, and the log tells of
/// them once in a while.
#[derive(Default)]
pub(super) struct AcceptErrors {
    /// When to accept connections again.
    pub(super) again_at: Option<Instant>,
    told_at: Option<Instant>,
    times: u64,
}

impl AcceptErrors {
    /// Whether connections are to be accepted again, which ends the pause.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        self.again_at.take_if(|at| *at <= now).is_some()
    }

    /// Begins a pause, unless there is one, and logs why.
    pub(super) fn note(&mut self, now: Instant, errno: Errno) {
        if let Some(times) = self.count(now) {
            let error = io::Error::from(errno);
            tracing::warn!(%error, times, "tcp: cannot accept connections");
        }
    }

    /// How many refusals there were, if that is to be told.
    fn count(&mut self, now: Instant) -> Option<u64> {
        if self.again_at.is_some() {
            return None;
        }
        self.again_at = Some(now + PAUSE);
        self.times += 1;
        if self.told_at.is_some_and(|told_at| now < told_at + INTERVAL) {
            return None;
        }
        self.told_at = Some(now);
        Some(std::mem::take(&mut self.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_once_in_ten_seconds_and_with_how_many_there_were() {
        let mut errors = AcceptErrors::default();
        let told: Vec<_> = (0..25_000)
            .filter_map(|millis| {
                let now = Instant(millis * 1_000_000);
                errors.take_due(now);
                Some((millis, errors.count(now)?))
            })
            .collect();
        assert_eq!(told, [(0, 1), (10_000, 10), (20_000, 10)]);
    }
}
