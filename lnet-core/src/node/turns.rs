//! Whose turn it is to be discovered, where there is not room for all at once.
//!
//! Peers that something here waits for come first, then those that have acknowledged a push before, then
//! strangers, which have only spoken. Strangers have half of the room at most. Where there is no room, the
//! visit that has been silent for longest gives its place up once that was for a second: one that something
//! waits for is visited again when its turn comes, until its time is over; another one has failed.

use alloc::collections::VecDeque;
use core::time::Duration;

use lnet_wire::Nid;

use super::error::RequestError;
use super::peers::{Peer, peer_state};
use super::pings::{Ping, PingPurpose};
use super::{Action, Node};
use crate::time::Instant;

/// Peers that are pinged or pushed to at once.
pub(super) const DISCOVERIES_UNDER_WAY_MAX: usize = 64;
/// How many of these are strangers at most.
const STRANGERS_UNDER_WAY_MAX: usize = DISCOVERIES_UNDER_WAY_MAX / 2;
/// How long a visit may be silent while others have no room.
const SILENT_MAX: Duration = Duration::from_secs(1);
/// How long a ping or push of a stranger's visit may take.
pub(super) const STRANGER_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a peer is discovered: what comes first has the lower value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Rank {
    /// A message or a request waits for it.
    Awaited,
    /// The peer is configured, or has acknowledged a push.
    Known,
    /// The peer has spoken, and nothing else is known of it.
    Stranger,
}

/// Peers that are to be visited, by a NID of each.
#[derive(Debug, Default)]
pub(super) struct Turns([VecDeque<Nid>; 3]);

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(VecDeque::is_empty)
    }

    pub(super) fn push_back(&mut self, rank: Rank, nid: Nid) {
        self.0[rank as usize].push_back(nid);
    }

    pub(super) fn push_front(&mut self, rank: Rank, nid: Nid) {
        self.0[rank as usize].push_front(nid);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Nid> {
        self.0.iter().flatten()
    }

    /// The first rank of which peers wait.
    fn first(&self) -> Option<Rank> {
        let ranks = [Rank::Awaited, Rank::Known, Rank::Stranger];
        ranks.into_iter().find(|rank| !self.0[*rank as usize].is_empty())
    }
}

impl Peer {
    /// Why it is discovered.
    pub(super) const fn rank(&self) -> Rank {
        if self.awaited_since.is_some() {
            Rank::Awaited
        } else if self.acked != 0 || self.is(peer_state::CONFIGURED) {
            Rank::Known
        } else {
            Rank::Stranger
        }
    }
}

impl<O: Clone> Node<O> {
    pub(super) fn rank_of(&self, nid: &Nid) -> Rank {
        self.peers.get(nid).map_or(Rank::Stranger, Peer::rank)
    }

    /// Visits peers that wait, as far as there is room.
    pub(super) fn go_on_discovering(&mut self, now: Instant) {
        while let Some(rank) = self.discoveries.turns.first() {
            if !self.has_room_for(rank) && !self.make_room_for(now, rank) {
                return;
            }
            let Some(nid) = self.discoveries.turns.0[rank as usize].pop_front() else { return };
            self.visit(now, &nid);
        }
    }

    /// The visits that are under way.
    fn visits(&self) -> impl Iterator<Item = (Rank, &Ping)> {
        let visits = self.pings.values().filter(|ping| ping.is_discovery());
        visits.map(|ping| (self.rank_of(&ping.nid), ping))
    }

    fn has_room_for(&self, rank: Rank) -> bool {
        let all = self.visits().count();
        let strangers = || self.visits().filter(|(its, _)| *its == Rank::Stranger).count();
        all < DISCOVERIES_UNDER_WAY_MAX && (rank != Rank::Stranger || strangers() < STRANGERS_UNDER_WAY_MAX)
    }

    /// The visit that gives its place up for one of this rank, and from when on it does.
    fn next_to_go(&self, rank: Rank) -> Option<(Instant, Ping)> {
        // The place of a stranger does where strangers have all of theirs.
        let visits = self.visits().filter(|(its, _)| *its >= rank);
        let last = visits.min_by_key(|(its, ping)| (core::cmp::Reverse(*its), begun_at(ping)));
        last.map(|(_, ping)| (begun_at(ping) + SILENT_MAX, *ping))
    }

    /// Has the visit that was silent for longest give its place up; whether it does.
    fn make_room_for(&mut self, now: Instant, rank: Rank) -> bool {
        let Some((_, ping)) = self.next_to_go(rank).filter(|(at, _)| *at <= now) else { return false };
        self.pings.remove(&ping.id.request);
        self.actions.push_back(Action::Forget { ping: ping.id });
        self.discoveries.counters.evicted += 1;
        let Some(primary) = self.end_wait(&ping) else { return true };
        let since = self.peers.get(&primary).and_then(|peer| peer.awaited_since);
        let time = self.own_timeout();
        if since.is_some_and(|since| now < since + time) {
            let is_ping = ping.purpose == PingPurpose::Discovery;
            self.set_state(
                &primary,
                if is_ping { peer_state::FORCE_PING } else { peer_state::FORCE_PUSH },
                0,
            );
            self.discoveries.turns.push_back(Rank::Awaited, primary);
        } else {
            let error = RequestError::PingTimeout { nid: ping.nid, timeout: now - begun_at(&ping) };
            self.discovered(&primary, Err(error));
        }
        true
    }

    /// When a visit gives its place up for one that waits.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        let rank = self.discoveries.turns.first()?;
        self.next_to_go(rank).map(|(at, _)| at)
    }
}

/// When a ping began.
fn begun_at(ping: &Ping) -> Instant {
    Instant(ping.deadline.0.saturating_sub(ping.timeout.as_nanos() as u64))
}
