//! What the ends of messages say of the health of interfaces (LNet `lib-msg.c: lnet_health_check`).
//!
//! A shard notes, and the node's control state machine keeps the values: those of all shards come together
//! there, and come back with a snapshot. Invariants: what is noted is bounded, and a note that finds no room
//! is lost, as another one follows where something goes on failing; while all are in full health, what ends
//! well notes nothing.

use alloc::vec::Vec;
use core::time::Duration;

use lnet_wire::{Header, Nid};

use super::Shard;
use super::initiator::is_ping;
use crate::health::HealthStatus;
use crate::lnd::{Cause, NiId, Path, PathReport, Status};
use crate::time::Instant;
use crate::topology::HEALTH_MAX;

/// Notes that are kept at most until they are polled.
const NOTES_MAX: usize = 64;
/// How long the node may take to hear of poor paths once it has heard of some: they answer, and each costs a
/// step a second at most.
const POOR_WAITS: Duration = Duration::from_millis(250);

/// What messages have said of an interface since the last note of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HealthNote {
    /// The NID of a local interface, or of a peer's.
    pub nid: Nid,
    /// Messages that failed for its sake.
    pub failures: u32,
    /// Messages that it carried well.
    pub successes: u32,
}

/// What an LND has learned of a path, long before a message times out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathNote {
    /// The NID of the local interface.
    pub local: Nid,
    /// The NID of the peer's.
    pub peer: Nid,
    /// What that is.
    pub state: PathState,
}

/// How a path is, as an LND finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathState {
    /// What goes by it is answered.
    Answers,
    /// What goes by it is not answered; told again each second as long as something goes by it.
    Silent,
    /// What goes by it is answered, and far worse than by another path to the same peer; told again as long
    /// as that lasts.
    Poor,
}

impl From<PathReport> for PathState {
    fn from(report: PathReport) -> Self {
        match report {
            PathReport::Answers { .. } => Self::Answers,
            PathReport::Silent => Self::Silent,
            PathReport::Lossy | PathReport::Slow => Self::Poor,
        }
    }
}

/// Notes that were not polled yet.
pub(super) struct HealthNotes {
    notes: Vec<HealthNote>,
    paths: Vec<PathNote>,
    /// Whether a failure was noted since all were polled.
    has_failures: bool,
    /// When a poor path was told of last as a failure.
    poor_at: Option<Instant>,
}

impl HealthNotes {
    pub(super) fn new() -> Self {
        let (notes, paths) = (Vec::with_capacity(NOTES_MAX), Vec::with_capacity(NOTES_MAX));
        Self { notes, paths, has_failures: false, poor_at: None }
    }

    /// Of each path the last note counts on whether it answers, and beside it one that it is poor. Those
    /// leave half of the room to the others, which are not told again.
    fn note_path(&mut self, now: Instant, note: PathNote) {
        let is_poor = note.state == PathState::Poor;
        let key = |note: &PathNote| (note.local, note.peer, note.state == PathState::Poor);
        let is_its = |former: &PathNote| key(former) == key(&note);
        let room = if is_poor { NOTES_MAX / 2 } else { NOTES_MAX };
        if let Some(former) = self.paths.iter_mut().find(|former| is_its(former)) {
            *former = note;
        } else if self.paths.len() < room {
            self.paths.push(note);
        } else {
            return;
        }
        if is_poor && self.poor_at.is_some_and(|at| now < at + POOR_WAITS) {
            return;
        }
        if is_poor {
            self.poor_at = Some(now);
        }
        self.has_failures |= note.state != PathState::Answers;
    }

    fn note(&mut self, nid: &Nid, has_failed: bool) {
        let notes = &mut self.notes;
        let at = notes.iter().position(|note| note.nid == *nid);
        let at = at.or_else(|| {
            let fits = notes.len() < NOTES_MAX;
            fits.then(|| notes.push(HealthNote { nid: *nid, failures: 0, successes: 0 }))?;
            Some(notes.len() - 1)
        });
        let Some(note) = at.map(|at| &mut notes[at]) else { return };
        self.has_failures |= has_failed;
        let count = if has_failed { &mut note.failures } else { &mut note.successes };
        *count = count.saturating_add(1);
    }
}

impl Shard {
    /// The next note on the health of an interface; each is told once.
    pub fn poll_health(&mut self) -> Option<HealthNote> {
        let note = self.health.notes.pop();
        self.health.has_failures &= note.is_some();
        note
    }

    /// The next note on a path; each is told once, and before those that [`Shard::poll_health`] ends.
    pub fn poll_paths(&mut self) -> Option<PathNote> {
        self.health.paths.pop()
    }

    /// Something is reported of a path: the node hears of it, and whether it answers counts where paths are
    /// chosen.
    pub(super) fn note_path(&mut self, now: Instant, path: &Path, report: PathReport) {
        let state = report.into();
        // A poor path answers, and is told of as often as it is found so.
        let is_news = state == PathState::Poor || self.paths.note(now, path, report);
        if is_news
            && let Some(local) = self.topology.ni(path.ni).map(|local| local.nid)
            && !self.topology.is_local(&path.peer)
        {
            self.health.note_path(now, PathNote { local, peer: path.peer, state });
        }
    }

    /// Whether a failure was noted since [`Shard::poll_health`] had nothing more to tell: others are to hear
    /// of it soon.
    #[must_use]
    #[inline]
    pub const fn has_failures(&self) -> bool {
        self.health.has_failures
    }

    /// A message by an interface to a peer NI has failed for this reason. A ping of an own NID that was
    /// looped back is the matter of the interface that has sent it.
    #[cold]
    pub(super) fn note_failure(&mut self, ni: NiId, header: &Header, peer: &Nid, status: HealthStatus) {
        let Some(local) = self.topology.ni(ni).map(|local| local.nid) else { return };
        let local = match local.is_loopback() {
            true if is_ping(&header.body) => header.source.nid,
            // Nothing happens for other messages that stay here.
            true => return,
            false => local,
        };
        if status.blames_local() && !local.is_loopback() {
            self.health.note(&local, true);
        }
        if status.blames_peer() && !self.topology.is_local(peer) {
            self.health.note(peer, true);
        }
    }

    /// Whether a message that has failed for this reason may go by another path: where this node is to blame
    /// if it has another interface, where the peer is if that has one (LNet `lib-msg.c: lnet_health_check`).
    /// One to a NID that nothing leads to from here, or that its peer has lost meanwhile, may go to another
    /// NID as well.
    pub(super) fn has_another_path(&self, status: Status, next_hop: &Nid) -> bool {
        let has_other_locals =
            || self.topology.local_nis().filter(|(_, ni)| !ni.nid.is_loopback()).count() > 1;
        let known_as = self.topology.known_as(next_hop);
        let is_lost = known_as != *next_hop;
        let has_other_nids =
            || self.topology.peer(&known_as).is_some_and(|peer| is_lost || peer.nis.len() > 1);
        match (status, status.health()) {
            (Status::NeverSent(Cause::Unreachable), _) => has_other_locals() || has_other_nids(),
            _ if is_lost => has_other_nids(),
            (_, Some(status)) if status.blames_peer() => has_other_nids(),
            _ => has_other_locals(),
        }
    }

    /// A response has not come in time: the peer NI that was asked is to blame, if one was (LNet `lib-move.c:
    /// lnet_finalize_expired_responses`).
    pub(super) fn note_no_response(&mut self, peer: &Nid) {
        if !peer.is_any() && !self.topology.is_local(peer) {
            self.health.note(peer, true);
        }
    }

    /// A message has left well by an interface.
    #[inline]
    pub(super) fn note_sent(&mut self, ni: NiId) {
        if self.topology.has_ill()
            && let Some(local) = self.topology.ni(ni).filter(|local| local.health < HEALTH_MAX)
        {
            self.health.note(&local.nid, false);
        }
    }

    /// A message has come from a peer NI, by an interface.
    #[inline]
    pub(super) fn note_received(&mut self, ni: NiId, peer: &Nid) {
        if self.topology.has_ill() {
            self.note_sent(ni);
            if self.topology.peer_health(peer) < HEALTH_MAX {
                self.health.note(peer, false);
            }
        }
    }
}
