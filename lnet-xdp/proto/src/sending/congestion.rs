//! How much a sender has in flight, and how long it waits.
//!
//! Round trips are measured as in RFC 6298; frames count as lost some time after later ones were
//! acknowledged, as in RFC 8985, and silence is probed, as in RFC 9002. A single loss says nothing on a wire
//! that loses by chance: the window narrows when more than a sixteenth of the frames of a round trip were
//! lost, and never below a few frames.

use lnet_core::time::Instant;

use core::time::Duration;

/// What a frame takes of its receiver at least: a chunk of its UMEM.
pub(crate) const CHUNK_BYTES: u32 = 4096;
/// What a sender may have in flight before its receiver has granted anything, and what it always may.
pub(crate) const UNSOLICITED_BYTES: u32 = 16 * CHUNK_BYTES;
/// Narrowest window.
const WINDOW_BYTES_MIN: u32 = 16 * CHUNK_BYTES;
const WINDOW_FIRST_BYTES: u32 = 64 * CHUNK_BYTES;
const WINDOW_BYTES_MAX: u32 = 1 << 24;
/// Round trip before one was measured.
const RTT_FIRST: Duration = Duration::from_millis(1);
/// Longest interval between two probes.
const PROBE_MAX: Duration = Duration::from_secs(1);
/// The least and the most time that an overtaken frame is waited for: a receiver reads one ring after the
/// other.
const REORDERING_MIN: Duration = Duration::from_micros(100);
const REORDERING_MAX: Duration = Duration::from_millis(20);
/// How long it is remembered that frames were late.
const LATENESS_LASTS: Duration = Duration::from_secs(4);

/// The bytes that a frame of this length takes of its receiver.
#[inline]
pub(crate) const fn frame_cost(datagram_bytes: u32) -> u32 {
    (datagram_bytes + HEADERS_BYTES).next_multiple_of(CHUNK_BYTES)
}

/// Ethernet, IPv6 and UDP headers, roughly.
const HEADERS_BYTES: u32 = 64;

/// What one stream knows of its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Congestion {
    smoothed: Duration,
    variation: Duration,
    measured: bool,
    window_bytes: u32,
    /// The window grows by what is acknowledged below this, and slowly above.
    threshold_bytes: u32,
    grant_bytes: u32,
    /// How long the receiver may keep frames that have arrived from being acknowledged.
    buffered: Duration,
    /// How long after one sent later a frame was acknowledged, at most of late; and when that was last.
    lateness: Duration,
    late_at: Instant,
    /// The first frame of the round trip whose losses are being counted.
    round_ends_at: u64,
    round_acked: u32,
    round_lost: u32,
    /// Probes since something was acknowledged.
    pub(crate) probes: u32,
    /// When the window began anew: the next frame then, and the window and threshold until then.
    before: Option<(u64, u32, u32)>,
}

impl Congestion {
    pub(crate) const fn new() -> Self {
        Self {
            smoothed: RTT_FIRST,
            variation: Duration::from_micros(500),
            measured: false,
            window_bytes: WINDOW_FIRST_BYTES,
            threshold_bytes: WINDOW_BYTES_MAX,
            grant_bytes: UNSOLICITED_BYTES,
            buffered: Duration::ZERO,
            lateness: Duration::ZERO,
            late_at: Instant(0),
            round_ends_at: 0,
            round_acked: 0,
            round_lost: 0,
            probes: 0,
            before: None,
        }
    }

    /// Takes in a measured round trip.
    pub(crate) fn measure(&mut self, rtt: Duration) {
        if !self.measured {
            (self.smoothed, self.variation, self.measured) = (rtt, rtt / 2, true);
            return;
        }
        let difference = self.smoothed.abs_diff(rtt);
        self.variation = (self.variation * 3 + difference) / 4;
        self.smoothed = (self.smoothed * 7 + rtt) / 8;
    }

    /// The smoothed round trip, once one was measured.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.measured.then_some(self.smoothed)
    }

    /// The receiver says how much it can take. It cannot grant less than what it is always sent.
    pub(crate) fn granted(&mut self, bytes: u32) {
        self.grant_bytes = bytes.max(UNSOLICITED_BYTES);
    }

    /// The receiver says whether it buffers frames of delayed messages, which takes no longer than `most`;
    /// whether it may have had what it tells of for a while.
    pub(crate) fn set_buffered(&mut self, is_buffered: bool, most: Duration) -> bool {
        let former = core::mem::replace(&mut self.buffered, if is_buffered { most } else { Duration::ZERO });
        is_buffered || !former.is_zero()
    }

    /// Bytes of frames that may be in flight.
    pub(crate) fn window_bytes(&self) -> u32 {
        self.window_bytes.min(self.grant_bytes)
    }

    /// A frame counts as lost.
    pub(crate) const fn note_lost(&mut self) {
        self.round_lost += 1;
    }

    /// Takes in one acknowledgement, and what was lost since the last one. `next_number` is that of the next
    /// frame. Says whether the window was narrowed.
    pub(crate) fn acknowledged(&mut self, highest: u64, next_number: u64, acked: (u32, u32)) -> bool {
        let (acked_frames, acked_bytes) = acked;
        if acked_frames != 0 {
            self.probes = 0;
        }
        // Frames that were sent since are acknowledged, and none from before is: those were lost indeed.
        self.before.take_if(|(next, ..)| highest >= *next);
        self.round_acked += acked_frames;
        let narrows = self.round_lost >= 2 && self.round_lost * 16 > self.round_acked + self.round_lost;
        if highest >= self.round_ends_at {
            self.round_ends_at = next_number;
            (self.round_acked, self.round_lost) = (0, 0);
            if narrows {
                self.window_bytes = (self.window_bytes / 10 * 7).max(WINDOW_BYTES_MIN);
                self.threshold_bytes = self.window_bytes;
                return true;
            }
        }
        let growth = if self.window_bytes < self.threshold_bytes {
            acked_bytes
        } else {
            // A chunk or so for each window's worth.
            (u64::from(acked_bytes) * u64::from(2 * CHUNK_BYTES) / u64::from(self.window_bytes)) as u32
        };
        self.window_bytes = self.window_bytes.saturating_add(growth).min(WINDOW_BYTES_MAX);
        false
    }

    /// How long a frame is waited for once one sent later is acknowledged (RFC 8985, 6.2). How old it is by
    /// then is no matter: after a stall of its receiver all are old. It does not count how many have
    /// overtaken it: frames go by several rails, and headers to several shards. Where this side has stalled
    /// between two rails, what it was late with is acknowledged a round trip later. Where others came late,
    /// more may.
    pub(crate) fn reordering(&self, now: Instant) -> Duration {
        let late = if now - self.late_at < LATENESS_LASTS { self.lateness } else { Duration::ZERO };
        let round_trip = self.smoothed + self.variation * 2;
        round_trip.max(REORDERING_MIN).max(late * 2).min(REORDERING_MAX) + self.buffered
    }

    /// A frame is acknowledged, and one that was sent later was at `overtaken_at`.
    pub(crate) fn note_late(&mut self, now: Instant, overtaken_at: Instant) {
        let former = if now - self.late_at < LATENESS_LASTS { self.lateness } else { Duration::ZERO };
        self.lateness = former.max(now - overtaken_at);
        self.late_at = now;
    }

    /// How long to wait for any acknowledgement before a probe (RFC 9002, 6.2).
    pub(crate) fn probe_interval(&self, probe_min: Duration, ack_delay: Duration) -> Duration {
        let interval = (self.smoothed + self.variation * 4 + ack_delay).max(probe_min);
        interval.saturating_mul(1 << self.probes.min(16)).min(PROBE_MAX)
    }

    /// Nothing that was in flight has been answered: the window begins anew.
    pub(crate) fn collapse(&mut self, next_number: u64) {
        self.before.get_or_insert((next_number, self.window_bytes, self.threshold_bytes));
        self.threshold_bytes = (self.window_bytes / 2).max(WINDOW_BYTES_MIN);
        self.window_bytes = WINDOW_BYTES_MIN;
    }

    /// A frame has arrived. If it was sent before the window began anew its receiver was only slow, and the
    /// window is what it was.
    #[inline]
    pub(crate) fn landed(&mut self, number: u64) {
        if let Some((_, window_bytes, threshold_bytes)) = self.before.take_if(|(next, ..)| number < *next) {
            self.window_bytes = self.window_bytes.max(window_bytes);
            self.threshold_bytes = threshold_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(congestion: &mut Congestion, rounds: u64, acked: u32, lost: u32) {
        let mut number = congestion.round_ends_at;
        for _ in 0..rounds {
            number += u64::from(acked + lost);
            (0..lost).for_each(|_| congestion.note_lost());
            congestion.acknowledged(number, number + 1, (acked, acked * CHUNK_BYTES));
        }
    }

    #[test]
    fn chance_losses_leave_the_window_alone_and_many_narrow_it() {
        let mut congestion = Congestion::new();
        congestion.granted(u32::MAX);
        let first = congestion.window_bytes();
        run(&mut congestion, 10, 50, 1);
        let grown = congestion.window_bytes();
        assert!(grown > first, "{grown}");
        run(&mut congestion, 1, 50, 10);
        let narrowed = congestion.window_bytes();
        assert!(narrowed < grown / 4 * 3, "{narrowed} of {grown}");
        run(&mut congestion, 100, 0, 50);
        assert_eq!(congestion.window_bytes(), WINDOW_BYTES_MIN, "never collapses");
        run(&mut congestion, 100, 16, 0);
        assert!(congestion.window_bytes() > WINDOW_BYTES_MIN, "and grows again");
    }

    #[test]
    fn grants_bound_the_window_but_not_below_what_is_always_allowed() {
        let mut congestion = Congestion::new();
        congestion.granted(0);
        assert_eq!(congestion.window_bytes(), UNSOLICITED_BYTES);
        congestion.granted(20 * CHUNK_BYTES);
        assert_eq!(congestion.window_bytes(), 20 * CHUNK_BYTES);
        congestion.granted(u32::MAX);
        run(&mut congestion, 10_000, 1 << 12, 0);
        assert_eq!(congestion.window_bytes(), WINDOW_BYTES_MAX);
    }

    #[test]
    fn probes_wait_longer_each_time_and_acknowledgements_end_that() {
        let mut congestion = Congestion::new();
        for _ in 0..20 {
            congestion.measure(Duration::from_micros(40));
        }
        let (min, delay) = (Duration::from_millis(2), Duration::from_micros(50));
        assert_eq!(congestion.probe_interval(min, delay), min);
        congestion.probes += 1;
        congestion.probes += 1;
        assert_eq!(congestion.probe_interval(min, delay), min * 4);
        for _ in 0..40 {
            congestion.probes += 1;
        }
        assert_eq!(congestion.probe_interval(min, delay), PROBE_MAX);
        congestion.acknowledged(1, 2, (1, CHUNK_BYTES));
        assert_eq!(congestion.probe_interval(min, delay), min);
        congestion.measure(Duration::from_millis(80));
        assert!(congestion.probe_interval(min, delay) > Duration::from_millis(40), "one slow round trip");
    }

    #[test]
    fn frames_cost_whole_chunks() {
        assert_eq!(
            [frame_cost(88), frame_cost(4000), frame_cost(4096), frame_cost(8900)],
            [4096, 4096, 8192, 12288]
        );
    }
}
