//! Health that paths cost before a message times out, by what shards were told of them last. The LND of a
//! path knows whether it is silent at this moment; here is what it said last, which may be old.
//!
//! A path that is silent, or far worse than another one to the same peer, costs a step of health, each path
//! at most once a second whatever it is, and again while it stays so and is used: that of the peer NI, or of
//! the local NI if it does well to none of several peers while another local NI does to one, or, of a path
//! that answers, if another local NI does well to the same peer NI. So an NI of which several paths are
//! silent loses a step for each; a local NI of which several are poor loses one a second. Recovery pings
//! bring back what has lost health so. Invariant: at most [`NODE_PATHS_MAX`] paths are remembered.
//!
//! The word of a single peer costs a local NI health while no other peer is known to do well by that NI: the
//! peer's NI does well by another path, so that one is not to blame, and what such a word costs is borne by
//! the peer's own traffic. The first path to another peer that does well ends it.

use alloc::collections::BTreeMap;
use alloc::collections::BTreeSet;
use core::time::Duration;

use lnet_wire::Nid;

use super::Node;
use crate::shard::{HealthNote, PathNote, PathState};
use crate::time::Instant;

/// Paths that are remembered at most; of more, those that answer are forgotten.
const NODE_PATHS_MAX: usize = 1024;
/// How long a path that has cost health costs no more.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a path counts as poor once that has cost health. It costs more if it is used and still poor.
const POOR_LASTS: Duration = Duration::from_secs(3);

/// Paths of which something was reported, by their NIDs: local, peer.
#[derive(Clone, Default, Debug)]
pub(super) struct PathTable(BTreeMap<(Nid, Nid), Known>);

/// State of a path as it was reported last, and when that has cost health.
#[derive(Clone, Copy, Debug)]
struct Known {
    state: PathState,
    /// Whether what it has cost last was the local NI's, and it was poor.
    is_local_poor: bool,
    /// When it has cost health last.
    charged_at: Option<Instant>,
}

impl Default for Known {
    fn default() -> Self {
        Self { state: PathState::Answers, is_local_poor: false, charged_at: None }
    }
}

impl Known {
    fn is_silent(&self) -> bool {
        self.state == PathState::Silent
    }

    fn was_charged_within(&self, now: Instant, time: Duration) -> bool {
        self.charged_at.is_some_and(|at| now < at + time)
    }

    fn is_ill(&self, now: Instant) -> bool {
        self.is_silent() || self.state == PathState::Poor && self.was_charged_within(now, POOR_LASTS)
    }
}

impl PathTable {
    /// Notes what is known of a path; whether that is to cost health.
    fn note(&mut self, now: Instant, note: &PathNote) -> bool {
        let key = (note.local, note.peer);
        if !self.0.contains_key(&key) && self.0.len() >= NODE_PATHS_MAX {
            self.0.retain(|_, known| known.is_silent());
            if self.0.len() >= NODE_PATHS_MAX {
                self.0.pop_first();
            }
        }
        let known = self.0.entry(key).or_default();
        known.state = match (known.state, note.state) {
            // A poor path has answered all the time, and whether a silent one does is told apart.
            (PathState::Poor, PathState::Answers) => PathState::Poor,
            (PathState::Silent, PathState::Poor) => PathState::Silent,
            (_, state) => state,
        };
        let is_due = note.state != PathState::Answers && !known.was_charged_within(now, PAUSE);
        if is_due {
            (known.charged_at, known.is_local_poor) = (Some(now), false);
        }
        is_due
    }

    /// Whether a local NI of which a path is poor is to lose health for it; it does once in a while,
    /// whichever path it is.
    fn charge_local(&mut self, now: Instant, (local, peer): (Nid, Nid)) -> bool {
        let mut own = self.0.iter().filter(|((from, _), _)| *from == local);
        let is_charged = own.any(|(_, known)| known.is_local_poor && known.was_charged_within(now, PAUSE));
        if let Some(known) = self.0.get_mut(&(local, peer)).filter(|_| !is_charged) {
            known.is_local_poor = true;
        }
        !is_charged
    }

    /// Whether a path was silent when something was reported of it last.
    pub(super) fn is_silent(&self, local: &Nid, peer: &Nid) -> bool {
        self.0.get(&(*local, *peer)).is_some_and(Known::is_silent)
    }

    fn clear(&mut self, is_there: impl Fn(&Nid, &Nid) -> bool) {
        self.0.retain(|(local, peer), _| is_there(local, peer));
    }
}

impl<O: Clone> Node<O> {
    /// A shard has heard of a path.
    pub(super) fn note_path(&mut self, now: Instant, note: &PathNote) {
        if !self.paths.note(now, note) {
            return;
        }
        let (nis, peers) = (&self.nis, &self.peers);
        self.paths.clear(|local, peer| nis.of(local).is_some() && peers.get(peer).is_some());
        let is_poor = note.state == PathState::Poor;
        let blames_local = self.is_cut_off(now, note);
        if blames_local && is_poor && !self.paths.charge_local(now, (note.local, note.peer)) {
            return;
        }
        let nid = if blames_local { note.local } else { note.peer };
        self.note_health(now, &HealthNote { nid, failures: 1, successes: 0 });
    }

    /// Whether the local NI of a path that is ill does well to none of several peers, while another one does
    /// to one; or, where the path is poor, to the same NI of the peer.
    fn is_cut_off(&self, now: Instant, note: &PathNote) -> bool {
        let paths = || self.paths.0.iter().map(|((local, peer), known)| (local, peer, known.is_ill(now)));
        let own = || paths().filter(|(from, ..)| **from == note.local);
        let others_well = || paths().filter(|(from, _, is_ill)| **from != note.local && !is_ill);
        if !own().all(|(.., is_ill)| is_ill) {
            return false;
        }
        if note.state == PathState::Poor && others_well().any(|(_, peer, _)| *peer == note.peer) {
            return true;
        }
        let primary = |peer: &Nid| self.peers.get(peer).map(|peer| peer.primary);
        let peers: BTreeSet<_> = own().filter_map(|(_, peer, _)| primary(peer)).collect();
        others_well().next().is_some() && peers.len() > 1
    }
}
