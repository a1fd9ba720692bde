//! Words of LNDs on their paths: by a report, or by the end of a message that never left.
//!
//! The LND that a path belongs to finds out whether it is silent. What was told last counts here, and makes
//! room where too many paths are silent: a choice may try a path too often then, and never too seldom.

use alloc::vec::Vec;
use core::time::Duration;

use crate::lnd::{Path, PathReport, SILENCE};
use crate::time::Instant;

/// Paths that are remembered: the oldest report of an answer makes room, of a silence only for another one.
const SHARD_PATHS_MAX: usize = 32;

/// What is known of a path.
#[derive(Clone, Copy)]
struct Known {
    path: Path,
    told_at: Instant,
    /// Until when it is avoided.
    silent_until: Option<Instant>,
    /// When it was first found silent after it had answered last.
    silent_since: Option<Instant>,
    round_trip: Option<Duration>,
}

/// The paths of which something was reported.
pub(in crate::shard) struct KnownPaths {
    /// The known paths, at most [`SHARD_PATHS_MAX`].
    known: Vec<Known>,
    /// Whether a path was reported silent, ever: else nothing is looked up.
    has_silent: bool,
    /// Since when an answer by a path that is not known is no news, since there is no room to know it.
    full_since: Option<Instant>,
}

impl KnownPaths {
    pub(in crate::shard) fn new() -> Self {
        Self { known: Vec::with_capacity(SHARD_PATHS_MAX), has_silent: false, full_since: None }
    }

    fn of(&self, path: &Path) -> Option<&Known> {
        self.known.iter().find(|known| known.path == *path)
    }

    /// Whether a path was reported silent, ever.
    #[inline]
    pub(super) const fn has_silent(&self) -> bool {
        self.has_silent
    }

    /// Until when a path is avoided, or was, if it has not answered since.
    pub(super) fn silent_until(&self, path: &Path) -> Option<Instant> {
        self.of(path).filter(|_| self.has_silent)?.silent_until
    }

    /// Whether a path has not answered since it was reported silent.
    pub(in crate::shard) fn was_silent(&self, path: &Path) -> bool {
        self.silent_until(path).is_some()
    }

    /// Whether a path is to be avoided.
    #[inline]
    pub(super) fn is_silent(&self, now: Instant, path: &Path) -> bool {
        self.has_silent && self.silent_until(path).is_some_and(|until| now < until)
    }

    /// Since when a path that is to be avoided has not answered.
    pub(super) fn silent_since(&self, now: Instant, path: &Path) -> Option<Instant> {
        self.of(path).filter(|_| self.is_silent(now, path))?.silent_since
    }

    pub(super) fn round_trip(&self, path: &Path) -> Duration {
        self.of(path).and_then(|known| known.round_trip).unwrap_or(Duration::MAX)
    }

    /// Notes what was reported of a path; whether that is news: a path that answers did not before, or is
    /// known for the first time; one that is silent was not, or for as long as it is avoided. Where more
    /// paths answer than there is room for, each is known for the first time again and again: that is news
    /// once in the time for which a path is avoided.
    pub(in crate::shard) fn note(&mut self, now: Instant, path: &Path, report: PathReport) -> bool {
        let is_silence = report == PathReport::Silent;
        self.has_silent |= is_silence;
        let former = self.known.iter().position(|known| known.path == *path);
        let former = former.map(|at| self.known.swap_remove(at));
        let was_silent = former.and_then(|known| known.silent_until);
        let is_news = if is_silence {
            was_silent.is_none_or(|until| until <= now)
        } else {
            was_silent.is_some() || former.is_none() && self.is_first_answer(now)
        };
        if self.known.len() == SHARD_PATHS_MAX {
            let rank = |(_, known): &(usize, &Known)| (known.silent_until.is_some(), known.told_at);
            let least = self.known.iter().enumerate().min_by_key(rank);
            // What answers makes room, and nothing that is silent for that.
            match least.filter(|(_, least)| is_silence || least.silent_until.is_none()) {
                Some((at, _)) => self.known.swap_remove(at),
                None => return is_news,
            };
        }
        let mut round_trip = former.and_then(|known| known.round_trip);
        if let PathReport::Answers { round_trip: measured } = report {
            round_trip = measured.or(round_trip);
        }
        let silent_until = is_silence.then(|| now + SILENCE);
        let silent_since = is_silence.then(|| former.and_then(|known| known.silent_since).unwrap_or(now));
        self.known.push(Known { path: *path, told_at: now, silent_until, silent_since, round_trip });
        is_news
    }

    /// Whether an answer by a path that is not known is news.
    fn is_first_answer(&mut self, now: Instant) -> bool {
        let is_full = self.known.len() == SHARD_PATHS_MAX;
        let is_news = !is_full || self.full_since.is_none_or(|since| since + SILENCE <= now);
        if is_full && is_news {
            self.full_since = Some(now);
        }
        is_news
    }
}
