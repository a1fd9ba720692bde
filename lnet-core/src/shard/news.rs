//! News that a shard has to tell: the node's control state machine, of health, paths and peers that it is to
//! find out about; a log, of what peers have done.
//!
//! Invariants: what is kept is bounded, and what finds no room is lost: another note follows where something
//! goes on failing, and a peer that is wanted stays so. Each is told once.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use lnet_wire::{Net, Nid};

use super::Shard;
use crate::lnd::{NiId, PathReport};
use crate::time::Instant;

/// Notes of health, and of paths, that are kept at most.
const NOTES_MAX: usize = 64;
/// How long the node may take to hear of poor paths once it has heard of some: they answer, and each costs a
/// step a second at most.
const POOR_WAITS: Duration = Duration::from_millis(250);
/// NIDs that wait at most to be told by [`Shard::poll_wanted`].
const WANTED_MAX: usize = 256;
/// NIDs that wait at most to be told by [`Shard::poll_waiting`].
const WAITING_MAX: usize = 64;
/// Peer NIs that speak from other addresses than their own, and wait at most to be told.
const CAME_FROM_MAX: usize = 64;
/// Gateways that are taken for dead, and nets that messages have come from by them, told at most until the
/// routes are others.
const FOREIGN_MAX: usize = 64;
/// Changes of peers that wait at most to be told by a log.
const PEER_CHANGES_MAX: usize = 64;

/// Failures and successes of messages by an NI since the last note of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HealthNote {
    /// The NID of a local NI, or of a peer NI.
    pub nid: Nid,
    /// Messages that failed for its sake.
    pub failures: u32,
    /// Messages that it carried well.
    pub successes: u32,
}

/// A path's state as its LND has found it, long before a message times out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathNote {
    /// The NID of the local NI.
    pub local: Nid,
    /// The NID of the peer NI.
    pub peer: Nid,
    /// How the path is.
    pub state: PathState,
}

/// How a path is, as an LND finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathState {
    /// Messages by the path are answered.
    Answers,
    /// Messages by the path are not answered; told again each second as long as something goes by it.
    Silent,
    /// Messages by the path are answered, and far worse than by another path to the same peer; told again as
    /// long as that lasts.
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

/// A message whose header names a source that is not its sender's: it was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForgedSource {
    /// The NI that it came by.
    pub ni: NiId,
    /// The peer NI that sent it.
    pub from: Nid,
    /// The source that it named.
    pub source: Nid,
}

/// A change of a peer that a shard has seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PeerChange {
    /// Messages to the peer by a path are not answered: any more, or still not.
    Silent,
    /// Messages to the peer are answered again.
    Answers,
    /// The peer has begun a new life.
    Restarted,
}

/// News that was not told yet.
pub(super) struct News {
    health: Vec<HealthNote>,
    paths: Vec<PathNote>,
    /// Whether a failure was noted since all notes were polled.
    has_failures: bool,
    /// When a poor path was told of last as a failure.
    poor_at: Option<Instant>,
    /// NIDs that requests went to, to be found out about.
    wanted: VecDeque<Nid>,
    /// NIDs whose requests wait for a name.
    waiting: VecDeque<Nid>,
    /// How many of these there were in all.
    wanted_count: u64,
    /// Gateways that are taken for dead, with the nets of messages that have come by them, and how many of
    /// these were told.
    foreign: Vec<(Nid, Net)>,
    foreign_told: usize,
    peer_changes: VecDeque<(Nid, PeerChange)>,
    came_from: VecDeque<(Nid, IpAddr)>,
    /// Whether there was ever one.
    speaks_any_from_elsewhere: bool,
    /// The last message with a source that is not its sender's.
    forged: Option<ForgedSource>,
}

impl News {
    pub(super) fn new() -> Self {
        Self {
            health: Vec::with_capacity(NOTES_MAX),
            paths: Vec::with_capacity(NOTES_MAX),
            has_failures: false,
            poor_at: None,
            wanted: VecDeque::with_capacity(WANTED_MAX),
            waiting: VecDeque::with_capacity(WAITING_MAX),
            wanted_count: 0,
            foreign: Vec::with_capacity(FOREIGN_MAX),
            foreign_told: 0,
            peer_changes: VecDeque::with_capacity(PEER_CHANGES_MAX),
            came_from: VecDeque::with_capacity(CAME_FROM_MAX),
            speaks_any_from_elsewhere: false,
            forged: None,
        }
    }

    /// Notes how a path is. The last note of each path counts on whether it answers, and beside it one that
    /// it is poor. Notes of poor paths leave half of the room to the others, which are not told again.
    pub(super) fn note_path(&mut self, now: Instant, note: PathNote) {
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

    /// Notes that a message has failed for the sake of an NI, or went well by it.
    pub(super) fn note_health(&mut self, nid: &Nid, has_failed: bool) {
        let notes = &mut self.health;
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

    /// Notes that a peer is to be found out about; says whether there was room, or it was noted already.
    pub(super) fn want(&mut self, nid: &Nid) -> bool {
        if self.wanted.contains(nid) {
            return true;
        }
        let has_room = self.wanted.len() < WANTED_MAX;
        if has_room {
            self.wanted.push_back(*nid);
            self.wanted_count += 1;
        }
        has_room
    }

    /// Notes that a request from a NID waits for the name that its peer is to go by. Without room it waits
    /// for as long as it may.
    pub(super) fn note_waiting(&mut self, nid: &Nid) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(*nid);
            self.wanted_count += 1;
        }
    }

    /// Notes that a message from a net has come by a gateway that is taken for dead.
    pub(super) fn note_foreign(&mut self, by: &Nid, net: Net) {
        if self.foreign.len() < FOREIGN_MAX && !self.foreign.contains(&(*by, net)) {
            self.foreign.push((*by, net));
            self.wanted_count += 1;
        }
    }

    /// Has what comes by dead gateways told anew: other ones may be dead.
    pub(super) fn forget_foreign(&mut self) {
        self.foreign.clear();
        self.foreign_told = 0;
    }

    /// Whether a peer NI spoke from another address than its own, ever.
    pub(super) const fn speaks_any_from_elsewhere(&self) -> bool {
        self.speaks_any_from_elsewhere
    }

    /// Notes where a peer NI speaks from; says whether there was room. Half of it is for those that speak
    /// from their own addresses.
    pub(super) fn note_came_from(&mut self, nid: &Nid, address: IpAddr) -> bool {
        let room = if nid.ip() == Some(address) { CAME_FROM_MAX } else { CAME_FROM_MAX / 2 };
        let has_room = self.came_from.len() < room;
        if has_room {
            self.came_from.push_back((*nid, address));
            self.speaks_any_from_elsewhere = true;
            self.wanted_count += 1;
        }
        has_room
    }

    /// Notes what a peer has done.
    pub(super) fn note_peer(&mut self, peer: &Nid, change: PeerChange) {
        // Silence is found again and again, and says as much when it is fetched once.
        let former = self.peer_changes.iter().rfind(|(nid, _)| nid == peer);
        let is_told = change == PeerChange::Silent && former.is_some_and(|(_, former)| *former == change);
        if !is_told && self.peer_changes.len() < PEER_CHANGES_MAX {
            self.peer_changes.push_back((*peer, change));
        }
    }

    pub(super) const fn note_forged(&mut self, forged: ForgedSource) {
        self.forged = Some(forged);
    }
}

impl Shard {
    /// The next note on the health of an NI.
    pub fn poll_health(&mut self) -> Option<HealthNote> {
        let note = self.news.health.pop();
        self.news.has_failures &= note.is_some();
        note
    }

    /// The next note on a path; to be asked for before [`Shard::poll_health`] ends.
    pub fn poll_paths(&mut self) -> Option<PathNote> {
        self.news.paths.pop()
    }

    /// Whether a failure was noted since [`Shard::poll_health`] had nothing more to tell: others are to hear
    /// of it soon.
    #[must_use]
    #[inline]
    pub const fn has_failures(&self) -> bool {
        self.news.has_failures
    }

    /// A NID that a request has gone to, or waits for, and of whose peer the snapshot says that it is to be
    /// found out about.
    pub fn poll_wanted(&mut self) -> Option<Nid> {
        self.news.wanted.pop_front()
    }

    /// A peer NI that speaks from another address than that of its NID, and the address.
    pub fn poll_came_from(&mut self) -> Option<(Nid, IpAddr)> {
        self.news.came_from.pop_front()
    }

    /// A NID from which a request waits, since the snapshot says that another NID is being asked which its
    /// peer may have to go by.
    pub fn poll_waiting(&mut self) -> Option<Nid> {
        self.news.waiting.pop_front()
    }

    /// A NID of a gateway that the snapshot has as dead, and the net of a message that has come by it: each
    /// once for each table of routes.
    pub fn poll_foreign(&mut self) -> Option<(Nid, Net)> {
        let next = self.news.foreign.get(self.news.foreign_told).copied()?;
        self.news.foreign_told += 1;
        Some(next)
    }

    /// How many there were in all of what [`Shard::poll_wanted`], [`Shard::poll_waiting`] and
    /// [`Shard::poll_foreign`] tell: there is something new when this has grown.
    #[must_use]
    #[inline]
    pub const fn wanted_count(&self) -> u64 {
        self.news.wanted_count
    }

    /// The next change of a peer, with a NID of the peer, for a log.
    pub fn poll_peer_change(&mut self) -> Option<(Nid, PeerChange)> {
        self.news.peer_changes.pop_front()
    }

    /// The last message that was dropped for [`DropReason::ForgedSource`] since this was called, for a log.
    ///
    /// [`DropReason::ForgedSource`]: crate::stats::DropReason::ForgedSource
    pub const fn poll_forged(&mut self) -> Option<ForgedSource> {
        self.news.forged.take()
    }
}
