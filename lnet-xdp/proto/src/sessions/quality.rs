//! How well a path carries frames: the share of them that it loses, and its round trip: the shortest one of a
//! window, since acknowledgements may come back by another path, and late.
//!
//! The fate of a frame counts for the path that it went by: it is acknowledged, or it counts as lost and is
//! sent again. A window of some frames is judged as a whole, and a path by its last eight windows, so that
//! one burst that finds its receiver without a free buffer says nothing of a path. What all paths to a peer
//! lose alike is the peer's matter, and no path's: only one that is clearly worse than another one is
//! reported. Invariant: what is known of a path that was not used for a while is forgotten.

use lnet_core::lnd::PathReport;
use lnet_core::time::Instant;

use core::time::Duration;

/// A window has so many frames at least, and lasts so long at least.
const WINDOW_FRAMES: u32 = 64;
const WINDOW_LASTS: Duration = Duration::from_millis(20);
/// A window is bad of which at least one frame in so many was lost.
const LOST_PART: u64 = 16;
/// How many of the last eight windows are bad where a path loses too much.
const BAD_WINDOWS: u32 = 4;
/// Windows over which the share of lost frames is smoothed.
const SMOOTHED_WINDOWS: u8 = 16;
/// Few frames that counted as lost are remembered until they are found to be late.
const FOUND_STANDS_FOR: u32 = 8;
/// A path loses clearly more than so many times what another one loses.
const TIMES_MORE_LOST: u32 = 2;
/// The round trip of a slow path is so many times that of another one, and so much longer.
const TIMES_SLOWER: u32 = 8;
const SLOWER_US: u32 = 5000;
/// Round trips in a window from which on they count.
const MEASURED_MIN: u32 = 8;
/// How long what a window has shown counts.
const LASTS: Duration = Duration::from_secs(10);

/// What is known of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quality {
    /// Frames of this window whose fate is known, those of them that were lost, and measured round trips.
    frames: u32,
    lost: u32,
    measured: u32,
    /// When its first frame was counted.
    begun_at: Instant,
    /// Windows that count, up to [`SMOOTHED_WINDOWS`].
    windows: u8,
    /// The last eight, the newest one in the lowest bit: whether it was bad.
    bad: u8,
    /// The share of lost frames, smoothed, in parts of 65,536.
    lost_share: u32,
    /// The shortest round trip of this window, and of the last one in which some were measured; `u32::MAX`
    /// where none was.
    shortest_us: u32,
    round_trip_us: u32,
    /// When the last window has ended.
    judged_at: Instant,
}

impl Quality {
    pub(crate) const NEW: Self = Self {
        frames: 0,
        lost: 0,
        measured: 0,
        begun_at: Instant(0),
        windows: 0,
        bad: 0,
        lost_share: 0,
        shortest_us: u32::MAX,
        round_trip_us: u32::MAX,
        judged_at: Instant(0),
    };

    /// Frames have arrived, or were lost; whether the window is full.
    #[inline]
    pub(crate) fn count(&mut self, now: Instant, arrived: u32, lost: u32) -> bool {
        if self.frames == 0 {
            self.begun_at = now;
        } else if now - self.begun_at >= LASTS {
            (self.frames, self.lost, self.begun_at) = (0, 0, now);
            (self.measured, self.shortest_us) = (0, u32::MAX);
        }
        self.frames = self.frames.saturating_add(arrived + lost);
        self.lost = self.lost.saturating_add(lost);
        self.frames >= WINDOW_FRAMES && now - self.begun_at >= WINDOW_LASTS
    }

    /// A frame that counted as lost was only late, and so were others that are not remembered: it stands for
    /// some. Where they counted in the last window, that was not bad.
    pub(crate) fn found(&mut self) {
        if self.lost < FOUND_STANDS_FOR {
            self.bad &= !1;
        }
        self.lost = self.lost.saturating_sub(FOUND_STANDS_FOR);
    }

    /// Takes in a measured round trip.
    #[inline]
    pub(crate) fn measure(&mut self, round_trip: Duration) {
        self.measured = self.measured.saturating_add(1);
        self.shortest_us = self.shortest_us.min(u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX));
    }

    /// Ends a window; whether the path may be ill, which only others show.
    pub(crate) fn end_window(&mut self, now: Instant) -> Suspicion {
        if !self.is_fresh(now) {
            (self.windows, self.bad, self.round_trip_us) = (0, 0, u32::MAX);
        }
        let (frames, lost) = (u64::from(self.frames), u64::from(self.lost));
        let is_bad = lost * LOST_PART >= frames && lost != 0;
        self.windows = (self.windows + 1).min(SMOOTHED_WINDOWS);
        self.bad = self.bad << 1 | u8::from(is_bad);
        let (share, count) = (((lost << 16) / frames.max(1)) as u32, u32::from(self.windows));
        self.lost_share = if count == 1 { share } else { (self.lost_share * (count - 1) + share) / count };
        if self.measured >= MEASURED_MIN {
            self.round_trip_us = self.shortest_us;
        }
        let suspicion = Suspicion {
            of_loss: is_bad && self.bad.count_ones() >= BAD_WINDOWS,
            of_slowness: self.measured >= MEASURED_MIN && self.round_trip_us > SLOWER_US,
        };
        (self.frames, self.lost, self.measured, self.shortest_us) = (0, 0, 0, u32::MAX);
        self.judged_at = now;
        suspicion
    }

    /// Whether a window has ended since then, and counts.
    pub(crate) fn is_known_since(&self, since: Instant, now: Instant) -> bool {
        self.is_fresh(now) && self.judged_at > since
    }

    fn is_fresh(&self, now: Instant) -> bool {
        self.windows != 0 && now - self.judged_at < LASTS
    }

    /// What is to be reported of the path beside others that lead to the same peer, and answer. One of which
    /// nothing is known loses nothing.
    pub(crate) fn beside(
        &self,
        now: Instant,
        suspicion: Suspicion,
        others: impl Iterator<Item = Self>,
    ) -> Option<PathReport> {
        let (mut least_share, mut shortest_us) = (None::<u32>, u32::MAX);
        for other in others {
            let is_known = other.is_fresh(now);
            let share = if is_known { other.lost_share } else { 0 };
            least_share = Some(least_share.map_or(share, |least| least.min(share)));
            if is_known {
                shortest_us = shortest_us.min(other.round_trip_us);
            }
        }
        let is_lossy = least_share.is_some_and(|least| self.lost_share > least * TIMES_MORE_LOST);
        let bound_us = shortest_us.saturating_mul(TIMES_SLOWER).max(shortest_us.saturating_add(SLOWER_US));
        if suspicion.of_loss && is_lossy {
            Some(PathReport::Lossy)
        } else if suspicion.of_slowness && self.round_trip_us >= bound_us && shortest_us != u32::MAX {
            Some(PathReport::Slow)
        } else {
            None
        }
    }
}

/// What a path may be ill of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Suspicion {
    of_loss: bool,
    of_slowness: bool,
}

impl Suspicion {
    pub(crate) const fn is_any(self) -> bool {
        self.of_loss || self.of_slowness
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Windows of which so many frames are lost each; what is reported of the last one.
    fn windows(
        quality: &mut Quality,
        now: &mut Instant,
        lost: &[u32],
        others: &[Quality],
    ) -> Option<PathReport> {
        let mut report = None;
        for lost in lost {
            assert!(!quality.count(*now, WINDOW_FRAMES, 0), "it does not last long enough");
            *now = *now + WINDOW_LASTS;
            assert!(quality.count(*now, 0, *lost));
            let suspicion = quality.end_window(*now);
            report = quality.beside(*now, suspicion, others.iter().copied()).filter(|_| suspicion.is_any());
        }
        report
    }

    fn known(now: Instant, lost: u32) -> Quality {
        let (mut quality, mut at) = (Quality::NEW, now);
        windows(&mut quality, &mut at, &[lost; 16], &[]);
        quality.judged_at = now;
        quality
    }

    #[test]
    fn a_path_that_loses_more_than_another_one_is_lossy() {
        let mut now = Instant(1_000_000_000);
        let clean = known(now, 0);
        let mut path = Quality::NEW;
        assert_eq!(windows(&mut path, &mut now, &[6, 3, 7, 6], &[clean]), None, "three bad windows");
        assert_eq!(windows(&mut path, &mut now, &[6], &[clean]), Some(PathReport::Lossy));
        assert_eq!(windows(&mut path, &mut now, &[0], &[clean]), None, "a good window says nothing bad");
        assert_eq!(windows(&mut path, &mut now, &[6], &[clean]), Some(PathReport::Lossy));
        assert_eq!(windows(&mut path, &mut now, &[0; 8], &[clean]), None);
        assert_eq!(windows(&mut path, &mut now, &[6; 3], &[clean]), None, "it was well again");
    }

    #[test]
    fn a_window_that_was_begun_long_ago_begins_anew() {
        let mut now = Instant(1_000_000_000);
        let mut path = Quality::NEW;
        path.count(now, 0, 63);
        now = now + LASTS;
        assert!(!path.count(now, 1, 0));
        assert_eq!((path.frames, path.lost), (1, 0));
    }

    #[test]
    fn one_burst_is_no_illness() {
        let mut now = Instant(1_000_000_000);
        let clean = known(now, 0);
        let mut path = Quality::NEW;
        assert_eq!(windows(&mut path, &mut now, &[0, 0, 64, 30], &[clean]), None);
        assert_eq!(windows(&mut path, &mut now, &[0; 8], &[clean]), None);
    }

    #[test]
    fn what_others_lose_as_well_and_a_sole_path_are_not_reported() {
        let mut now = Instant(1_000_000_000);
        let alike = known(now, 5);
        let mut path = Quality::NEW;
        assert_eq!(windows(&mut path, &mut now, &[8; 16], &[alike]), None);
        assert_eq!(windows(&mut path, &mut now, &[8; 16], &[]), None, "there is no other");
        assert_eq!(windows(&mut path, &mut now, &[32; 16], &[alike]), Some(PathReport::Lossy), "far more");
        // Nothing is known of what was not used for long.
        now = now + SECOND * 11;
        assert_eq!(windows(&mut path, &mut now, &[8; 3], &[alike]), None);
        assert_eq!(windows(&mut path, &mut now, &[8], &[alike]), Some(PathReport::Lossy));
    }

    #[test]
    fn what_is_found_was_not_lost() {
        let mut now = Instant(1_000_000_000);
        let clean = known(now, 0);
        let mut path = Quality::NEW;
        for _ in 0..16 {
            path.count(now, 0, 20);
            (0..4).for_each(|_| path.found());
            path.count(now, WINDOW_FRAMES - 20, 0);
            now = now + WINDOW_LASTS;
            assert!(!path.end_window(now).is_any());
        }
        assert_eq!(path.lost_share, clean.lost_share);
    }

    #[test]
    fn a_path_whose_round_trip_is_many_times_that_of_another_one_is_slow() {
        let mut now = Instant(1_000_000_000);
        let with = |quality: &mut Quality, round_trip_us: u64| {
            (0..40).for_each(|_| quality.measure(Duration::from_micros(round_trip_us)));
        };
        let mut fast = known(now, 0);
        with(&mut fast, 1000);
        windows(&mut fast, &mut now, &[0], &[]);
        for (round_trip_us, expected) in [
            (900, None),
            (5900, None),
            (7900, None),
            (8100, Some(PathReport::Slow)),
            (90_000, Some(PathReport::Slow)),
        ] {
            let mut path = Quality::NEW;
            with(&mut path, round_trip_us);
            assert_eq!(windows(&mut path, &mut now, &[0], &[fast]), expected, "{round_trip_us}");
            assert_eq!(windows(&mut path, &mut now, &[0], &[fast]), None, "nothing was measured");
        }
        // Eight times as long is no matter where that is short.
        let mut fast = known(now, 0);
        with(&mut fast, 20);
        windows(&mut fast, &mut now, &[0], &[]);
        let mut path = Quality::NEW;
        with(&mut path, 2000);
        assert_eq!(windows(&mut path, &mut now, &[0], &[fast]), None);
        with(&mut path, 6000);
        assert_eq!(windows(&mut path, &mut now, &[0], &[fast]), Some(PathReport::Slow));
        with(&mut path, 6000);
        assert_eq!(windows(&mut path, &mut now, &[0], &[Quality::NEW]), None, "no other was measured");
    }
}
