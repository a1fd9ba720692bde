//! Notes of the health of NIs, from the ends of messages (LNet `lib-msg.c: lnet_health_check`).
//!
//! A shard notes, and the node's control state machine keeps the values: those of all shards come together
//! there, and come back with a snapshot. Invariant: while all are in full health, what ends well notes
//! nothing.

use lnet_wire::{Header, Nid};

use super::initiator::is_ping;
use super::news::{PathNote, PathState};
use super::{Choice, Shard};
use crate::health::HealthStatus;
use crate::lnd::{Cause, NiId, Path, PathReport, Status};
use crate::time::Instant;
use crate::topology::{HEALTH_MAX, NiStatus};

impl Shard {
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
            self.news.note_path(now, PathNote { local, peer: path.peer, state });
        }
    }

    /// A message by an NI to a peer NI has failed for this reason. A ping of an own NID that was
    /// looped back is the matter of the NI that has sent it.
    #[cold]
    pub(super) fn note_failure(&mut self, ni: NiId, header: &Header, peer: &Nid, status: HealthStatus) {
        let Some(local) = self.topology.ni(ni).map(|local| local.nid) else { return };
        let local = match local.is_loopback() {
            true if is_ping(&header.body) => header.source.nid,
            // Nothing happens for other messages that stay here.
            true => return,
            false => local,
        };
        self.blame(&local, peer, status);
    }

    /// Messages by a path may be lost that had ended well. Counts as one message that has failed would, since
    /// nothing tells how many they are.
    #[cold]
    pub(super) fn note_lost(&mut self, path: &Path, cause: Cause) {
        let Some(status) = Status::Unknown(cause).health() else { return };
        let Some(local) = self.topology.ni(path.ni).map(|local| local.nid) else { return };
        self.counters.failed.add(status);
        self.ni(path.ni).counters.failed.add(status);
        if let Some(peer) = self.peers.find_mut(&path.peer) {
            peer.counters.failed.add(status);
        }
        self.blame(&local, &path.peer, status);
    }

    fn blame(&mut self, local: &Nid, peer: &Nid, status: HealthStatus) {
        if status.blames_local() && !local.is_loopback() {
            self.news.note_health(local, true);
        }
        if status.blames_peer() && !self.topology.is_local(peer) {
            self.news.note_health(peer, true);
        }
    }

    /// Whether a message that has failed for this reason may go by another path: where this node is to blame
    /// if it has another NI, where the peer is if that has one (LNet `lib-msg.c: lnet_health_check`).
    /// One to a NID that nothing leads to from here, or that its peer has lost meanwhile, may go to another
    /// NID as well.
    pub(super) fn has_another_path(&self, status: Status, next_hop: &Nid) -> bool {
        let known_as = self.topology.known_as(next_hop);
        let is_lost = known_as != *next_hop;
        let has_other_nids =
            || is_lost && self.topology.peer(&known_as).is_some() || self.has_others(next_hop);
        match (status, status.health()) {
            (Status::NeverSent(cause), _) if cause.is_of_the_path() => {
                self.has_other_locals() || has_other_nids()
            }
            _ if is_lost => has_other_nids(),
            (_, Some(status)) if status.blames_peer() => has_other_nids(),
            _ => self.has_other_locals(),
        }
    }

    /// Whether a message to a Multi-Rail peer that has no other path may go once more by the same one. LNet
    /// counts the NIs of the side that failed, whether they lead anywhere or not, and then chooses anew,
    /// which may come to the same (LNet `lib-move.c: lnet_resend_pending_msgs_locked`).
    pub(super) fn may_take_the_same(&self, status: Status, failed: &Choice) -> bool {
        let is_multi_rail = self.topology.peer(&failed.next_hop).is_some_and(|peer| peer.is_multi_rail);
        let health = status.health().filter(|status| status.allows_another_path());
        is_multi_rail
            && self.topology.known_ni(failed.ni).status == NiStatus::Up
            && health.is_some_and(|status| match status.blames_peer() {
                true => self.has_others(&failed.next_hop),
                false => self.has_other_locals(),
            })
    }

    fn has_other_locals(&self) -> bool {
        self.topology.local_nis().filter(|(_, ni)| !ni.nid.is_loopback()).count() > 1
    }

    /// Whether the peer with a NID has others.
    fn has_others(&self, nid: &Nid) -> bool {
        self.topology.peer(nid).is_some_and(|peer| peer.nid_count > 1)
    }

    /// A response has not come in time: the peer NI that was asked is to blame, if one was (LNet `lib-move.c:
    /// lnet_finalize_expired_responses`).
    pub(super) fn note_no_response(&mut self, peer: &Nid) {
        if !peer.is_any() && !self.topology.is_local(peer) {
            self.news.note_health(peer, true);
        }
    }

    /// A message has left well by an NI.
    #[inline]
    pub(super) fn note_sent(&mut self, ni: NiId) {
        if self.topology.has_ill()
            && let Some(local) = self.topology.ni(ni).filter(|local| local.health < HEALTH_MAX)
        {
            self.news.note_health(&local.nid, false);
        }
    }

    /// A message has come from a peer NI, by an NI.
    #[inline]
    pub(super) fn note_received(&mut self, ni: NiId, peer: &Nid) {
        if self.topology.has_ill() {
            self.note_sent(ni);
            if self.topology.peer_health(peer) < HEALTH_MAX {
                self.news.note_health(peer, false);
            }
        }
    }
}
