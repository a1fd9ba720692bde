//! Whose turn it is to be discovered, where there is not room for all at once.
//!
//! Peers that something here waits for come first, then those that have acknowledged a push before, then
//! strangers, which have only spoken. Strangers have half of the room at most, and a quarter of it is left to
//! what something waits for. Among peers of one rank the
//! addresses that they came from take turns, so that who comes by many names waits behind its own names. An
//! address has no more visits than there is room for others, and the last quarter of the room is for
//! addresses without any. Where none of a rank may begin, places that are free go to the next rank.
//!
//! Where there is no room, the visit that has been silent for longest gives its place up once that was for a
//! second, one of its own to an address that has some: one that something waits for is visited again when
//! its turn comes, until its time is over; another one has failed. A visit whose end lets none begin goes on.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use lnet_wire::Nid;

use super::error::RequestError;
use super::peers::{Peer, PeerOrigin, peer_state};
use super::pings::{Ping, PingPurpose};
use super::{Action, Node};
use crate::time::Instant;

/// Peers that are pinged or pushed to at once.
pub(super) const DISCOVERIES_UNDER_WAY_MAX: usize = 64;
/// How many of these are strangers at most.
const STRANGERS_UNDER_WAY_MAX: usize = DISCOVERIES_UNDER_WAY_MAX / 2;
/// The part of the room that is for addresses without a visit; as much of it is for what something waits for.
const RESERVE_PART: usize = 4;
/// How many visits are under way at most for which nothing waits.
const UNAWAITED_UNDER_WAY_MAX: usize = DISCOVERIES_UNDER_WAY_MAX - DISCOVERIES_UNDER_WAY_MAX / RESERVE_PART;
/// How long a visit may be silent while others have no room.
const SILENT_MAX: Duration = Duration::from_secs(1);
/// How long a ping or push of a stranger's visit may take.
pub(super) const STRANGER_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a peer is discovered: what comes first has the lower value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Rank {
    /// A message or a request waits for it.
    Awaited,
    /// The peer is configured, a gateway, or has acknowledged a push.
    Known,
    /// The peer has spoken, and nothing else is known of it.
    Stranger,
}

const RANKS: [Rank; 3] = [Rank::Awaited, Rank::Known, Rank::Stranger];

/// Peers that are to be visited, by a NID of each.
#[derive(Debug, Default)]
pub(super) struct Turns([RankTurns; 3]);

/// Peers of one rank.
#[derive(Debug, Default)]
struct RankTurns {
    /// Peers whose visit has taken a step, and takes the next one at once.
    going_on: VecDeque<Nid>,
    /// The addresses of the others, in their turns.
    order: VecDeque<PeerOrigin>,
    /// The others by address, none of which is without any.
    by_origin: BTreeMap<PeerOrigin, VecDeque<Nid>>,
}

impl RankTurns {
    fn is_empty(&self) -> bool {
        self.going_on.is_empty() && self.order.is_empty()
    }

    /// Takes out the first peer of an address, which has the last turn from then on.
    fn pop(&mut self, origin: PeerOrigin) -> Option<Nid> {
        let its = self.by_origin.get_mut(&origin)?;
        let nid = its.pop_front();
        let is_last = its.is_empty();
        self.order.retain(|other| *other != origin);
        if is_last {
            self.by_origin.remove(&origin);
        } else {
            self.order.push_back(origin);
        }
        nid
    }
}

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(RankTurns::is_empty)
    }

    fn push_back(&mut self, rank: Rank, origin: PeerOrigin, nid: Nid) {
        let RankTurns { order, by_origin, .. } = &mut self.0[rank as usize];
        let its = by_origin.entry(origin).or_default();
        if its.is_empty() {
            order.push_back(origin);
        }
        its.push_back(nid);
    }

    pub(super) fn push_front(&mut self, rank: Rank, nid: Nid) {
        self.0[rank as usize].going_on.push_front(nid);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Nid> {
        self.0.iter().flat_map(|turns| turns.going_on.iter().chain(turns.by_origin.values().flatten()))
    }

    /// The ranks of which peers wait, the best first.
    fn ranks(&self) -> impl Iterator<Item = Rank> {
        RANKS.into_iter().filter(|rank| !self.0[*rank as usize].is_empty())
    }
}

/// A visit that is under way.
#[derive(Clone, Copy)]
struct Visit {
    rank: Rank,
    origin: PeerOrigin,
    ping: Ping,
}

/// A turn that is next.
enum NextTurn {
    /// A peer whose visit goes on.
    GoingOn,
    /// A peer of this address.
    Of(PeerOrigin),
    /// A visit is to give its place up first, from then on.
    Evict(Instant, Ping),
    /// The ends of visits are awaited.
    Wait,
}

impl NextTurn {
    /// Whether it is to be taken now.
    fn is_due(&self, now: Instant) -> bool {
        match self {
            Self::GoingOn | Self::Of(_) => true,
            Self::Evict(at, _) => *at <= now,
            Self::Wait => false,
        }
    }
}

impl Peer {
    /// Why it is discovered.
    pub(super) const fn rank(&self) -> Rank {
        if self.awaited_since.is_some() {
            Rank::Awaited
        } else if self.acked != 0 || self.is(peer_state::CONFIGURED) || self.is_gateway() {
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

    /// Has a peer visited when it is its turn.
    pub(super) fn queue_visit(&mut self, rank: Rank, nid: Nid) {
        let origin = self.peers.origin(&nid);
        self.discoveries.turns.push_back(rank, origin, nid);
    }

    /// Visits peers that wait, as far as there is room.
    pub(super) fn go_on_discovering(&mut self, now: Instant) {
        while let Some((rank, next)) =
            self.next_turns().into_iter().flatten().find(|(_, next)| next.is_due(now))
        {
            let turns = &mut self.discoveries.turns.0[rank as usize];
            let nid = match next {
                NextTurn::GoingOn => turns.going_on.pop_front(),
                NextTurn::Of(origin) => turns.pop(origin),
                NextTurn::Evict(_, ping) => {
                    self.give_up(now, &ping);
                    continue;
                }
                NextTurn::Wait => return,
            };
            let Some(nid) = nid else { return };
            self.visit(now, &nid);
        }
    }

    /// The next turn of each rank of which peers wait, the best rank first.
    fn next_turns(&self) -> [Option<(Rank, NextTurn)>; 3] {
        let mut next = [const { None }; 3];
        if !self.discoveries.turns.is_empty() {
            let visits = self.visits();
            for rank in self.discoveries.turns.ranks() {
                next[rank as usize] = Some((rank, self.next_visit(&visits, rank)));
            }
        }
        next
    }

    /// The visits that are under way.
    fn visits(&self) -> Vec<Visit> {
        let visits = self.pings.values().filter(|ping| ping.is_discovery());
        let visit = |ping: &Ping| Visit {
            rank: self.rank_of(&ping.nid),
            origin: self.peers.origin(&ping.nid),
            ping: *ping,
        };
        visits.map(visit).collect()
    }

    /// The next turn of a rank of which peers wait, where these visits are under way.
    fn next_visit(&self, visits: &[Visit], rank: Rank) -> NextTurn {
        // A visit of a rank counts against those that are not worse, and strangers have a part of the room.
        let counts = |visit: &&Visit| match rank {
            Rank::Stranger => visit.rank == rank,
            _ => visit.rank <= rank,
        };
        let most = if rank == Rank::Stranger { STRANGERS_UNDER_WAY_MAX } else { DISCOVERIES_UNDER_WAY_MAX };
        let mut taken = 0;
        let mut by_origin = BTreeMap::<PeerOrigin, usize>::new();
        for visit in visits.iter().filter(counts) {
            taken += 1;
            *by_origin.entry(visit.origin).or_default() += 1;
        }
        let left = most - most.min(taken);
        let turns = &self.discoveries.turns.0[rank as usize];
        // There are not more addresses with visits than so many: the others have the same chance.
        let mut first = turns.order.iter().copied().take(DISCOVERIES_UNDER_WAY_MAX + 1);
        let next = if turns.going_on.is_empty() {
            let may_begin = |origin: &PeerOrigin| {
                let its = by_origin.get(origin).copied().unwrap_or(0);
                left > 0 && (its == 0 || its < left && left > most / RESERVE_PART)
            };
            first.clone().find(may_begin).map(NextTurn::Of)
        } else {
            (left > 0).then_some(NextTurn::GoingOn)
        };
        let is_admitted = next.is_some();
        let unawaited = visits.iter().filter(|visit| visit.rank != Rank::Awaited).count();
        let has_room = visits.len() < DISCOVERIES_UNDER_WAY_MAX
            && (rank == Rank::Awaited || unawaited < UNAWAITED_UNDER_WAY_MAX);
        if let Some(next) = next.filter(|_| has_room) {
            return next;
        }
        // An address that has visits waits for the ends of these, and for no place of the last quarter.
        let is_new = !turns.going_on.is_empty() || first.any(|origin| !by_origin.contains_key(&origin));
        let may_follow =
            |origin: &PeerOrigin| left + 1 > most / RESERVE_PART && turns.by_origin.contains_key(origin);
        let makes_room =
            |visit: &&Visit| is_admitted || counts(visit) && (is_new || may_follow(&visit.origin));
        // The place of a stranger does where strangers have all of theirs.
        let last = visits.iter().filter(|visit| visit.rank >= rank).filter(makes_room);
        let last = last.min_by_key(|visit| (Reverse(visit.rank), begun_at(&visit.ping)));
        last.map_or(NextTurn::Wait, |visit| NextTurn::Evict(begun_at(&visit.ping) + SILENT_MAX, visit.ping))
    }

    /// Has a visit give its place up.
    fn give_up(&mut self, now: Instant, ping: &Ping) {
        self.pings.remove(&ping.id.request);
        self.actions.push_back(Action::Forget { ping: ping.id });
        self.discoveries.counters.evicted += 1;
        let Some(primary) = self.end_wait(ping) else { return };
        let awaited = self.peers.get(&primary).and_then(|peer| peer.awaited_since);
        let until = awaited.map(|since| since + self.own_timeout());
        let until = until.or_else(|| self.check_of(&primary).map(|check| check.begun_at + check.timeout));
        if until.is_some_and(|until| now < until) {
            let is_ping = ping.purpose == PingPurpose::Discovery;
            self.set_state(
                &primary,
                if is_ping { peer_state::FORCE_PING } else { peer_state::FORCE_PUSH },
                0,
            );
            self.queue_visit(self.rank_of(&primary), primary);
        } else {
            let error = RequestError::PingTimeout { nid: ping.nid, timeout: now - begun_at(ping) };
            self.discovered(&primary, Err(error));
        }
    }

    /// When a visit gives its place up for one that waits.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        let end = |(_, next)| match next {
            NextTurn::Evict(at, _) => Some(at),
            _ => None,
        };
        self.next_turns().into_iter().flatten().filter_map(end).min()
    }
}

/// When a ping began.
fn begun_at(ping: &Ping) -> Instant {
    Instant(ping.deadline.0.saturating_sub(ping.timeout.as_nanos() as u64))
}
