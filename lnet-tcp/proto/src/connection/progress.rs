//! How far the bytes of a connection have come, and whether its path is silent.

use core::time::Duration;

use lnet_core::time::Instant;

/// Why a connection counts as silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Silence {
    /// The stream takes no bytes.
    TakesNothing,
    /// The stream takes bytes, but the peer's system acknowledges none.
    AcknowledgesNothing,
}

/// How far the bytes of a connection have come.
pub(crate) struct StreamProgress {
    /// Bytes that were polled, ever, those of them that have been sent, and those that are known to have
    /// arrived.
    polled_bytes: u64,
    sent_bytes: u64,
    acknowledged_bytes: u64,
    /// When something was last sent.
    sent_at: Instant,
    /// When more was last known to have arrived, or the first byte was polled that was not.
    acknowledged_at: Instant,
    /// Why its path was reported as silent, if it was.
    silence: Option<Silence>,
}

impl StreamProgress {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            polled_bytes: 0,
            sent_bytes: 0,
            acknowledged_bytes: 0,
            sent_at: now,
            acknowledged_at: now,
            silence: None,
        }
    }

    /// Bytes that are being sent.
    pub(super) const fn sending_bytes(&self) -> u64 {
        self.polled_bytes - self.sent_bytes
    }

    pub(crate) const fn is_sending(&self) -> bool {
        self.sending_bytes() != 0
    }

    /// Whether all that was polled has arrived.
    pub(crate) const fn is_acknowledged(&self) -> bool {
        self.polled_bytes == self.acknowledged_bytes
    }

    pub(crate) const fn sent_at(&self) -> Instant {
        self.sent_at
    }

    pub(crate) const fn acknowledged_at(&self) -> Instant {
        self.acknowledged_at
    }

    /// Begins to count the time from now on.
    pub(crate) const fn begin(&mut self, now: Instant) {
        self.sent_at = now;
    }

    /// Notes that bytes are polled, before they are counted.
    pub(crate) const fn poll(&mut self, now: Instant) {
        if !self.is_sending() {
            self.sent_at = now;
        }
        if self.is_acknowledged() {
            self.acknowledged_at = now;
        }
    }

    /// Counts bytes that were polled; the count with the last of them.
    pub(crate) const fn add(&mut self, bytes: u64) -> u64 {
        self.polled_bytes += bytes;
        self.polled_bytes
    }

    /// Counts bytes that were sent; how many these are in all.
    pub(crate) const fn send(&mut self, now: Instant, bytes: u64) -> u64 {
        self.sent_bytes += bytes;
        self.sent_at = now;
        self.sent_bytes
    }

    /// Whether more has arrived, now that so many of the bytes that were sent are not known to have.
    pub(crate) const fn acknowledge(&mut self, now: Instant, missing_bytes: u64) -> bool {
        let acknowledged_bytes = self.sent_bytes.saturating_sub(missing_bytes);
        let is_more = acknowledged_bytes > self.acknowledged_bytes;
        if is_more {
            (self.acknowledged_bytes, self.acknowledged_at) = (acknowledged_bytes, now);
        }
        is_more
    }

    /// When what is being sent has made no progress for too long.
    pub(super) fn stalls_at(&self, timeout: Duration) -> Option<Instant> {
        self.is_sending().then(|| self.sent_at + timeout)
    }

    /// Whether its path was reported as silent for this.
    pub(crate) fn is_silent(&self, why: Silence) -> bool {
        self.silence == Some(why)
    }

    pub(crate) const fn set_silence(&mut self, silence: Option<Silence>) {
        self.silence = silence;
    }
}
