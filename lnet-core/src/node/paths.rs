//! What LNDs know of paths, and the health that it costs before a message times out.
//!
//! A path that is silent costs a step of health, each path at most once a second, and again while it stays silent and is used:
//! that of the peer NI, or of the local NI if it reaches none of several peers while another local NI reaches one. So an NI of
//! which several paths are silent loses a step for each. Recovery pings bring back what has lost health so. Invariant: at most
//! [`PATHS_MAX`] paths are remembered.

use alloc::collections::BTreeMap;
use alloc::collections::BTreeSet;
use core::time::Duration;

use lnet_wire::Nid;

use super::Node;
use crate::shard::{HealthNote, PathNote};
use crate::time::Instant;

/// Paths that are remembered at most; of more, those that answer are forgotten.
const PATHS_MAX: usize = 1024;
/// How long a path that has cost health costs no more.
const PAUSE: Duration = Duration::from_secs(1);

/// Paths of which something was reported, by their NIDs: local, peer.
#[derive(Clone, Default, Debug)]
pub(super) struct PathTable(BTreeMap<(Nid, Nid), Known>);

#[derive(Clone, Copy, Default, Debug)]
struct Known {
    is_silent: bool,
    /// When it has cost health last.
    charged_at: Option<Instant>,
}

impl PathTable {
    /// Notes what is known of a path; whether that is to cost health.
    fn note(&mut self, now: Instant, note: &PathNote) -> bool {
        let key = (note.local, note.peer);
        if !self.0.contains_key(&key) && self.0.len() >= PATHS_MAX {
            self.0.retain(|_, known| known.is_silent);
            if self.0.len() >= PATHS_MAX {
                self.0.pop_first();
            }
        }
        let known = self.0.entry(key).or_default();
        known.is_silent = note.is_silent;
        let is_due = note.is_silent && known.charged_at.is_none_or(|at| at + PAUSE <= now);
        if is_due {
            known.charged_at = Some(now);
        }
        is_due
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
        let is_local = |nid: &Nid| nis.0.iter().any(|config| config.spec.nid == *nid);
        self.paths.clear(|local, peer| is_local(local) && peers.get(peer).is_some());
        let nid = if self.is_cut_off(&note.local) { note.local } else { note.peer };
        self.note_health(now, &HealthNote { nid, failures: 1, successes: 0 });
    }

    /// Whether a local NI reaches none of several peers, while another one reaches one.
    fn is_cut_off(&self, local: &Nid) -> bool {
        let paths = || self.paths.0.iter().map(|((local, peer), known)| (local, peer, known.is_silent));
        let own = || paths().filter(|(from, ..)| *from == local);
        let others_answer = paths().any(|(from, _, is_silent)| from != local && !is_silent);
        let primary = |peer: &Nid| self.peers.get(peer).map(|peer| peer.primary);
        let peers: BTreeSet<_> = own().filter_map(|(_, peer, _)| primary(peer)).collect();
        others_answer && peers.len() > 1 && own().all(|(.., is_silent)| is_silent)
    }
}
