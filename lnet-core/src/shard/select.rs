//! The one place that chooses by which path a message goes.
//!
//! It works over the snapshot of the topology and has state of its own: a sequence number, by which equal paths take
//! turns, and what LNDs have reported of paths, a bounded table. Credits in use it finds in the shard's interfaces.
//!
//! The rule: the destination as given, by one of the interfaces that serve on its net; paths that are reported
//! silent come after all others; then the interface with the most credits free; then each in its turn. An interface
//! that the application names is obeyed. Responses are not chosen for: they go back by the interface that was
//! asked. With one interface on a net there is nothing to choose and nothing is looked up.

use alloc::vec::Vec;
use core::time::Duration;

use lnet_wire::Nid;

use super::Shard;
use crate::lnd::{NiId, Path, PathReport};
use crate::time::Instant;
use crate::topology::{LocalNi, NiStatus};

/// Paths whose health is remembered: the oldest report of an answer makes room, of a silence only for another one.
const PATHS_MAX: usize = 32;
/// How long a path that was silent is avoided, unless it is reported again.
const AVOIDED: Duration = Duration::from_secs(1);

/// What is known of a path.
#[derive(Clone, Copy)]
struct Health {
    path: Path,
    told_at: Instant,
    /// Until when it is avoided.
    silent_until: Option<Instant>,
    round_trip: Option<Duration>,
}

/// What choosing a path remembers.
pub(super) struct Selector {
    /// Counts the choices between equal paths.
    sequence: u32,
    /// At most [`PATHS_MAX`].
    health: Vec<Health>,
    /// Whether a path was reported silent, ever: else nothing is looked up.
    has_silent: bool,
}

impl Selector {
    pub(super) fn new() -> Self {
        Self { sequence: 0, health: Vec::with_capacity(PATHS_MAX), has_silent: false }
    }

    fn of(&self, path: &Path) -> Option<&Health> {
        self.health.iter().find(|health| health.path == *path)
    }

    /// Until when a path is avoided, or was, if it has not answered since.
    fn silent_until(&self, path: &Path) -> Option<Instant> {
        self.of(path).filter(|_| self.has_silent)?.silent_until
    }

    /// Whether a path has not answered since it was reported silent.
    pub(super) fn was_silent(&self, path: &Path) -> bool {
        self.silent_until(path).is_some()
    }

    /// Whether a path is to be avoided.
    fn is_silent(&self, now: Instant, path: &Path) -> bool {
        self.silent_until(path).is_some_and(|until| now < until)
    }

    fn round_trip(&self, path: &Path) -> Duration {
        self.of(path).and_then(|health| health.round_trip).unwrap_or(Duration::MAX)
    }

    /// Notes what was reported of a path.
    pub(super) fn note(&mut self, now: Instant, path: &Path, report: PathReport) {
        let is_silence = report == PathReport::Silent;
        self.has_silent |= is_silence;
        let known = self.health.iter().position(|health| health.path == *path);
        let former = known.map(|at| self.health.swap_remove(at));
        if self.health.len() == PATHS_MAX {
            let rank = |(_, health): &(usize, &Health)| (health.silent_until.is_some(), health.told_at);
            let least = self.health.iter().enumerate().min_by_key(rank);
            // What answers makes room, and nothing that is silent for that.
            match least.filter(|(_, least)| is_silence || least.silent_until.is_none()) {
                Some((at, _)) => self.health.swap_remove(at),
                None => return,
            };
        }
        let mut round_trip = former.and_then(|health| health.round_trip);
        if let PathReport::Answers { round_trip: measured } = report {
            round_trip = measured.or(round_trip);
        }
        let silent_until = is_silence.then(|| now + AVOIDED);
        self.health.push(Health { path: *path, told_at: now, silent_until, round_trip });
    }
}

impl Shard {
    /// The interface whose NID a request to `destination` comes from, and which it leaves by unless that is this
    /// node ([`LocalNi::loopback`]): with `self_nid` exactly the interface with that NID. To `0@lo` everything comes
    /// from there (LNet `lib-move.c: lnet_handle_lo_send`). `None` when no such interface serves on the destination's
    /// net.
    #[inline]
    pub(super) fn select(&mut self, now: Instant, destination: &Nid, self_nid: Option<&Nid>) -> Option<NiId> {
        let net = destination.net();
        let (first, is_single) = {
            let fits = |ni: &LocalNi| {
                let is_asked_for = ni.nid.is_loopback() || self_nid.is_none_or(|nid| ni.nid == *nid);
                ni.net == net && is_asked_for && ni.serves()
            };
            let mut fitting = self.topology.local_nis().filter(|(_, ni)| fits(ni));
            (fitting.next()?.0, fitting.next().is_none())
        };
        if is_single || self.topology.loopback_to(destination).is_some() {
            return Some(first);
        }
        Some(self.select_of_several(now, destination, first))
    }

    /// One of the interfaces on the net of a destination, of which there are several, for a request of no interface
    /// in particular.
    #[cold]
    fn select_of_several(&mut self, now: Instant, destination: &Nid, first: NiId) -> NiId {
        let count = self.topology.interfaces().len() as u32;
        let turn = self.selector.sequence % count.max(1);
        self.selector.sequence = self.selector.sequence.wrapping_add(1);
        let rank = |ni: NiId| {
            let path = Path { ni, peer: *destination };
            let credits = self.interfaces[usize::from(ni.0)].credits.available();
            // Of equal ones the first from the one on whose turn it is.
            let distance = (u32::from(ni.0) + count - turn) % count.max(1);
            (self.selector.is_silent(now, &path), core::cmp::Reverse(credits), distance)
        };
        self.topology.serving(destination.net()).min_by_key(|ni| rank(*ni)).unwrap_or(first)
    }

    /// Another interface for a message that could not leave by this one: one whose path to there was not silent before one
    /// whose path was; `None` where there is none.
    pub(super) fn select_other(&self, next_hop: &Nid, than: NiId) -> Option<NiId> {
        if self.topology.loopback_to(next_hop).is_some() {
            return None;
        }
        self.topology.serving(next_hop.net()).filter(|ni| *ni != than).min_by_key(|ni| {
            let credits = self.interfaces[usize::from(ni.0)].credits.available();
            let path = Path { ni: *ni, peer: *next_hop };
            (self.selector.silent_until(&path), core::cmp::Reverse(credits), *ni)
        })
    }

    /// Where what went by a silent path goes from now on: of the candidates whose interface serves the one that was not
    /// silent since it answered last, whose NID has the best health by the snapshot, and which has the shortest round
    /// trip, as far as these are known; of those that were, the one
    /// that was silent longest ago, so that each has its turn.
    pub(super) fn choose_path(&mut self, now: Instant, silent: &Path, candidates: &[Path]) -> Option<usize> {
        self.selector.note(now, silent, PathReport::Silent);
        let serves = |path: &Path| {
            path != silent && self.topology.ni(path.ni).is_some_and(|ni| ni.status != NiStatus::Closed)
        };
        let usable = candidates.iter().enumerate().filter(|(_, path)| serves(path));
        let best = usable.min_by_key(|(_, path)| {
            let health = core::cmp::Reverse(self.topology.peer_health(&path.peer));
            (self.selector.silent_until(path), health, self.selector.round_trip(path))
        });
        best.map(|(index, _)| index)
    }
}
