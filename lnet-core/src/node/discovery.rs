//! Discovery: what this node finds out about peers, and what it tells them (LNet `peer.c:
//! lnet_peer_discovery`; spec: core 8).
//!
//! A peer to be discovered waits in a queue. A visit takes the first step that applies: it is pinged unless
//! its NIs are up to date; it is pushed to if it is Multi-Rail and has not acknowledged what this node tells;
//! else it is discovered. What comes of a ping or push brings the next visit. The first requests to a peer
//! wait for that ([`Node::gate_requests`]), all others go by what is known. No discovery waits for what
//! becomes of the NIDs that a peer claims (`questions`).
//!
//! Invariants: at most [`DISCOVERIES_UNDER_WAY_MAX`] peers are pinged or pushed to at once, each in its turn;
//! what a peer says
//! is checked as any answer to a ping, bounded, and about the peer itself; each request that waits for a peer
//! ends once; where nothing changes nothing is sent.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use lnet_wire::ping::{
    BUFFER_BYTES_MAX, BUFFER_BYTES_MIN, Features, HEADER_BYTES, LARGE_ENTRY_BYTES, PingInfo,
};
use lnet_wire::{Discovery, Global, Nid};

use super::error::RequestError;
use super::gateways::Check;
use super::peers::{Peer, peer_state};
use super::pings::{Ping, PingId, PingPurpose, Pinged, nids_of};
use super::questions::NamedClaim;
#[cfg(doc)]
use super::turns::DISCOVERIES_UNDER_WAY_MAX;
use super::turns::{Rank, STRANGER_TIMEOUT, Turns};
use super::{Action, Node, Outcome, RequestId};
use crate::errno;
use crate::time::Instant;

/// What became of pushes that came, and of answers to pings.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DiscoveryCounters {
    /// The peer is known by what it said.
    pub taken: u64,
    /// Malformed, or not of its sender: ignored.
    pub refused: u64,
    /// Longer than the buffer, older than what is known, or without Multi-Rail: the sender is pinged instead.
    pub pinged: u64,
    /// NIDs that a peer claimed, and that have said that they are another node's, or are another peer's by
    /// configuration.
    pub contradicted: u64,
    /// NIDs that a peer claimed, and that have proven to be its own.
    pub proven: u64,
    /// Answers to pings that were malformed, or not of the peer that was asked: nothing is known by them.
    pub answers_refused: u64,
    /// Pings and pushes that were given up while they were silent, since others had no room.
    pub evicted: u64,
}

/// Peers that are being discovered, and what was learned so.
#[derive(Debug)]
pub(super) struct Discoveries {
    /// Peers that are to be visited.
    pub(super) turns: Turns,
    /// Requests that wait for a peer to be discovered, by its NID.
    pub(super) requests: BTreeMap<RequestId, Nid>,
    /// Requests of these that ask for a primary NID; and those whose peers are discovered since, with the
    /// time until which they wait for the name that the peer is to go by, once that has begun.
    pub(super) names: BTreeSet<RequestId>,
    pub(super) unnamed: BTreeMap<RequestId, Option<Instant>>,
    pub(super) counters: DiscoveryCounters,
    push_room_bytes: usize,
    /// The last claims that were proven and contradicted, for a log.
    pub(super) proven: Option<NamedClaim>,
    pub(super) contradicted: Option<NamedClaim>,
}

impl Discoveries {
    pub(super) fn new() -> Self {
        Self {
            turns: Turns::default(),
            requests: BTreeMap::new(),
            names: BTreeSet::new(),
            unnamed: BTreeMap::new(),
            counters: DiscoveryCounters::default(),
            push_room_bytes: BUFFER_BYTES_MIN,
            proven: None,
            contradicted: None,
        }
    }
}

impl<O: Clone> Node<O> {
    /// What became of pushes and of answers to pings so far.
    #[must_use]
    pub const fn discovery_counters(&self) -> &DiscoveryCounters {
        &self.discoveries.counters
    }

    /// Counts them from 0 on again.
    pub fn reset_discovery_counters(&mut self) {
        self.discoveries.counters = DiscoveryCounters::default();
    }

    /// Bytes that are to be there for the next push: those of the longest one yet.
    #[must_use]
    pub const fn push_room_bytes(&self) -> usize {
        self.discoveries.push_room_bytes
    }

    /// Whether what peers tell of their NIDs changes what is known.
    pub(super) fn takes_lists(&self) -> bool {
        self.settings.discovery() == Discovery::On
    }

    pub(super) fn is_discovery_on(&self) -> bool {
        self.settings.discovery() != Discovery::Off
    }

    /// Whether a peer is to be found out about when it is used.
    pub(super) fn is_wanted(&self, peer: &Peer) -> bool {
        !peer.is(peer_state::DISCOVERING) && !peer.is_up_to_date(self.told.sequence, self.is_discovery_on())
    }

    /// Whether messages may wait for a peer that is being discovered, and this node has not been told that
    /// any does.
    pub(super) const fn is_waited_for(&self, peer: &Peer) -> bool {
        peer.is(peer_state::DISCOVERING) && Self::is_gated(peer) && peer.awaited_since.is_none()
    }

    /// Whether requests to a peer wait: until it is discovered for the first time. From then on they go by
    /// what is known, whatever else there is to be found out or told.
    pub(super) const fn is_gated(peer: &Peer) -> bool {
        !peer.is(peer_state::DISCOVERED)
    }

    /// Has the peer with a NID discovered, which is made if there is none; nothing waits for that.
    pub(super) fn discover(&mut self, now: Instant, nid: &Nid) {
        if self.peers.get(nid).is_none() {
            self.peers.note_traffic(nid, true);
        }
        let queued = self.peers.change(nid, |peer| {
            let is_queued = peer.is(peer_state::DISCOVERING);
            peer.state |= peer_state::DISCOVERING;
            (!is_queued).then_some((peer.rank(), peer.primary))
        });
        if let Some(Some((rank, primary))) = queued {
            self.queue_visit(rank, primary);
        }
        self.go_on_discovering(now);
    }

    /// Has the peer with a NID discovered, which is made if there is none, since something waits for that:
    /// messages, or a request, which ends with it.
    pub(super) fn discover_for(&mut self, now: Instant, nid: &Nid, waiting: Option<RequestId>) {
        if self.peers.get(nid).is_none() {
            self.peers.note_traffic(nid, false);
        }
        self.discoveries.requests.extend(waiting.map(|request| (request, *nid)));
        let queued = self.peers.change(nid, |peer| {
            peer.waiting.extend(waiting);
            // A peer that is in the queue as a stranger has an earlier turn from now on.
            let is_queued = peer.awaited_since.is_some();
            peer.awaited_since.get_or_insert(now);
            peer.state |= peer_state::DISCOVERING;
            (!is_queued).then_some(peer.primary)
        });
        match queued {
            Some(Some(primary)) => self.queue_visit(Rank::Awaited, primary),
            Some(None) => {}
            // There is no room for peers.
            None => waiting.into_iter().for_each(|request| self.lose_discovery(request)),
        }
        self.go_on_discovering(now);
    }

    /// Ends a request whose peer is gone.
    fn lose_discovery(&mut self, request: RequestId) {
        self.discoveries.names.remove(&request);
        if let Some(nid) = self.discoveries.requests.remove(&request) {
            self.end_request(request, Err(RequestError::PeerGone(nid)));
        }
    }

    /// Does what calls have left to be done: pushes that are due, peers that wait, requests whose peers are
    /// gone.
    pub(super) fn go_on(&mut self, now: Instant) {
        self.remember_lost(now);
        self.check_gateways(now);
        if let Some(is_forced) = self.told.push_due.take() {
            self.push_to_all(now, is_forced);
        }
        self.go_on_discovering(now);
        self.queue_stranded();
        self.go_on_discovering(now);
        self.ask_claims(now);
        self.end_unnamed(now);
        for request in self.peers.take_orphans() {
            // The NID may be that of another peer now.
            match self.discoveries.requests.get(&request).copied().filter(|nid| self.peers.get(nid).is_some())
            {
                Some(nid) => self.discover_for(now, &nid, Some(request)),
                None => self.lose_discovery(request),
            }
        }
    }

    /// Remembers the NIDs that peers have lost for as long as what was sent to them, or by them, may be under
    /// way.
    fn remember_lost(&mut self, now: Instant) {
        let lost = self.peers.take_lost();
        if self.former.forget(now) || !lost.is_empty() {
            let time = Duration::from_secs(self.settings.get(Global::TransactionTimeout).into());
            self.former.remember(now, time, lost);
            self.snapshots.set_former(&self.former);
        }
    }

    /// Queues peers that are being discovered, and that nothing is under way for: they were made of others
    /// or have lost the NID by which they were to be visited. They are looked for while requests wait and no
    /// peer is queued.
    fn queue_stranded(&mut self) {
        if self.discoveries.requests.is_empty() || !self.discoveries.turns.is_empty() {
            return;
        }
        let is_stranded = |peer: &&Peer| {
            let has_ping = peer.under_way.is_some_and(|ping| self.pings.contains_key(&ping));
            peer.is(peer_state::DISCOVERING) && !has_ping && !peer.is_own()
        };
        let stranded = self.peers.iter().filter(is_stranded).map(|peer| (peer.rank(), peer.primary));
        for (rank, primary) in stranded.collect::<Vec<_>>() {
            if let Some(peer) = self.peers.get_mut(&primary) {
                peer.under_way = None;
            }
            self.queue_visit(rank, primary);
        }
    }

    /// Takes the next step with a peer.
    pub(super) fn visit(&mut self, now: Instant, nid: &Nid) {
        let (sequence, is_on) = (self.told.sequence, self.is_discovery_on());
        let Some(peer) = self.peers.get(nid) else { return };
        let primary = peer.primary;
        if !peer.is(peer_state::DISCOVERING) || peer.under_way.is_some() {
            return;
        }
        // The primary one may be on a net that this node is not on, or this node's own by now.
        let foreign = || peer.nis.iter().map(|ni| ni.nid).filter(|nid| !self.is_local(nid));
        let to = foreign().find(|nid| self.leads_to(nid, None)).or_else(|| foreign().next());
        let check = self.check_of(&primary);
        let to = check.as_ref().map_or(to.unwrap_or(primary), |check| check.to);
        let bound = |ping: Ping| match &check {
            Some(Check { source, timeout, .. }) => {
                Ping { source: Some(*source), timeout: *timeout, deadline: now + *timeout, ..ping }
            }
            None => ping,
        };
        if peer.needs_ping() {
            let length_bytes = (HEADER_BYTES + peer.nis.len() * LARGE_ENTRY_BYTES).max(BUFFER_BYTES_MIN);
            let ping = bound(self.own_ping(now, to, PingPurpose::Discovery));
            self.wait_for(&primary, ping.id, peer_state::PING_SENT, peer_state::FORCE_PING);
            self.send_ping(ping, length_bytes);
        } else if peer.needs_push(sequence, is_on) {
            let push = bound(self.own_ping(now, to, PingPurpose::Push { sequence }));
            self.wait_for(&primary, push.id, peer_state::PUSH_SENT, peer_state::FORCE_PUSH);
            self.pings.insert(push.id.request, push);
            let (ping, source, bytes) = (push.id, push.source, self.told.bytes.clone());
            self.actions.push_back(Action::Push { ping, nid: to, source, bytes });
        } else {
            self.discovered(&primary, Ok(()));
        }
    }

    /// How long a ping or push of the node's own may take.
    pub(super) fn own_timeout(&self) -> Duration {
        let seconds = self.settings.get(Global::TransactionTimeout);
        Duration::from_secs(seconds.into()).min(self.config.ping_timeout_max)
    }

    /// A ping or push of the node's own.
    pub(super) fn own_ping(&mut self, now: Instant, nid: Nid, purpose: PingPurpose) -> Ping {
        let is_strange = purpose.is_discovery() && self.rank_of(&nid) == Rank::Stranger;
        let timeout = self.own_timeout().min(if is_strange { STRANGER_TIMEOUT } else { Duration::MAX });
        self.requests += 1;
        let id = PingId { request: RequestId(self.requests), is_second: false };
        Ping { id, nid, source: None, timeout, deadline: now + timeout, purpose }
    }

    pub(super) fn set_state(&mut self, nid: &Nid, set: u32, clear: u32) {
        if let Some(peer) = self.peers.get_mut(nid) {
            peer.state = peer.state & !clear | set;
        }
    }

    /// A peer waits for the end of a ping or push, which its state says.
    fn wait_for(&mut self, primary: &Nid, ping: PingId, set: u32, clear: u32) {
        self.set_state(primary, set, clear);
        if let Some(peer) = self.peers.get_mut(primary) {
            peer.under_way = Some(ping.request);
        }
    }

    /// The primary NID of the peer that has waited for a ping or push, and does so no more. There is none if
    /// it was deleted, or has become a part of another one.
    pub(super) fn end_wait(&mut self, ping: &Ping) -> Option<Nid> {
        let has_waited = |peer: &&Peer| peer.under_way == Some(ping.id.request);
        let known = self.peers.get(&ping.nid).filter(has_waited);
        // The peer may have lost the NID meanwhile.
        let primary = known.or_else(|| self.peers.iter().find(has_waited))?.primary;
        self.set_state(&primary, 0, peer_state::PING_SENT | peer_state::PUSH_SENT);
        self.peers.get_mut(&primary)?.under_way = None;
        Some(primary)
    }

    /// A peer is discovered, or the attempt failed.
    pub(super) fn discovered(&mut self, nid: &Nid, result: Result<(), RequestError>) {
        let told_by = self.snapshots.generation + 1;
        let ended = self.peers.change(nid, |peer| {
            let under_way = peer_state::DISCOVERING | peer_state::PING_SENT | peer_state::PUSH_SENT;
            peer.state &= !(under_way | peer_state::REDISCOVER);
            peer.awaited_since = None;
            match &result {
                Ok(()) => {
                    // A peer that is not Multi-Rail is not pushed to, whatever was asked.
                    peer.state = peer.state & !peer_state::FORCE_PUSH | peer_state::DISCOVERED;
                    peer.error = None;
                }
                Err(error) => {
                    peer.state |= peer_state::REDISCOVER;
                    peer.error = Some(Box::new(error.clone()));
                    peer.failed_at = told_by;
                }
            }
            let told = Pinged {
                nid: *nid,
                primary: peer.shown_primary(),
                is_multi_rail: peer.is_multi_rail(),
                nids: peer.told_nids(),
            };
            let may_be_renamed = result.is_ok() && peer.may_be_renamed();
            (core::mem::take(&mut peer.waiting), told, may_be_renamed)
        });
        self.gateway_checked(nid, &result);
        let Some((waiting, told, may_be_renamed)) = ended else { return };
        for request in waiting {
            if self.discoveries.names.remove(&request) && may_be_renamed {
                self.discoveries.unnamed.insert(request, None);
                continue;
            }
            self.discoveries.requests.remove(&request);
            self.end_request(request, result.clone().map(|()| Outcome::Pinged(told.clone())));
        }
    }

    /// What comes of a ping for discovery.
    pub(super) fn discovery_answered(
        &mut self,
        now: Instant,
        ping: &Ping,
        answer: Result<&[u8], RequestError>,
    ) {
        let Some(primary) = self.end_wait(ping) else { return self.go_on_discovering(now) };
        let parsed = answer.and_then(|bytes| {
            PingInfo::parse(bytes).map_err(|error| {
                self.discoveries.counters.answers_refused += 1;
                RequestError::PingAnswer { nid: ping.nid, error }
            })
        });
        match parsed {
            Ok(info) if self.peers.get(&primary).is_some_and(|peer| info.sequence() < peer.sequence) => {
                // A push has overtaken it, or the peer has begun a new life: it is asked once more.
                if let Some(peer) = self.peers.get_mut(&primary) {
                    peer.sequence = 0;
                    peer.state |= peer_state::FORCE_PING;
                }
                self.visit_again(&primary);
            }
            Ok(info) if self.learn(now, &ping.nid, &info, true) => {
                self.weigh_claims(&ping.nid, &info);
                self.visit_again(&ping.nid);
            }
            Ok(info) => {
                let is_of_peer = self.is_without(now, &ping.nid, &info);
                self.discoveries.counters.answers_refused += u64::from(!is_of_peer);
                self.discovered(&primary, Err(RequestError::PingStranger(ping.nid)));
                if is_of_peer {
                    self.note_moved(&ping.nid);
                }
            }
            Err(error) => {
                // No other node has the NID that its peer has taken away, as far as can be seen.
                let is_silent = self.is_silence(ping, &error);
                let is_lost = self.former.get(now, &ping.nid).is_some_and(|lost| lost.is_told);
                self.discovered(&primary, Err(error));
                if is_lost && is_silent {
                    self.note_moved(&ping.nid);
                }
            }
        }
        self.go_on_discovering(now);
    }

    /// Whether an answer by a NID that it does not hold is the word of the peer that has it, or had it until
    /// of late: it holds another NID that is proven to be that peer's.
    fn is_without(&self, now: Instant, asked: &Nid, info: &PingInfo<'_>) -> bool {
        let told = nids_of(info);
        let lost = self.former.get(now, asked).map(|lost| &lost.other);
        let known = lost.into_iter().chain([asked]).filter_map(|nid| self.peers.get(nid));
        let found = known.filter(|peer| !peer.is(peer_state::CONFIGURED));
        found.flat_map(|peer| &peer.nis).any(|ni| ni.nid != *asked && told.contains(&ni.nid))
    }

    /// Whether a ping has failed since nothing answers at its NID: the host there has refused it; or its time
    /// has passed, or no host is there, though an NI of this node leads to it. Errors of this node say
    /// nothing of the peer.
    fn is_silence(&self, ping: &Ping, error: &RequestError) -> bool {
        let errno = match error {
            RequestError::PingTimeout { .. } => Ok(errno::ETIMEDOUT),
            RequestError::Ping { error, .. } => u8::try_from(error.errno),
            _ => return false,
        };
        match errno {
            Ok(errno::ECONNREFUSED) => true,
            Ok(errno::ETIMEDOUT | errno::EHOSTDOWN | errno::EHOSTUNREACH) => {
                self.leads_to(&ping.nid, ping.source)
            }
            _ => false,
        }
    }

    /// The node of a NID has said there that it has it no more; or the peer that had the NID has told so, and
    /// nothing is said there. What goes to the NID goes to that peer, as long as the NID is remembered.
    fn note_moved(&mut self, nid: &Nid) {
        if self.former.note_moved(nid) {
            self.snapshots.set_former(&self.former);
            self.peers.forget_moved(nid);
        }
    }

    /// What comes of a push.
    pub(super) fn push_ended(
        &mut self,
        now: Instant,
        ping: &Ping,
        sequence: u32,
        result: Result<(), RequestError>,
    ) {
        match (self.end_wait(ping), result) {
            (Some(primary), Ok(())) => {
                if let Some(peer) = self.peers.get_mut(&primary) {
                    peer.acked = sequence;
                }
                self.visit_again(&primary);
            }
            (Some(primary), Err(error)) => self.discovered(&primary, Err(error)),
            (None, _) => {}
        }
        self.go_on_discovering(now);
    }

    fn visit_again(&mut self, nid: &Nid) {
        self.discoveries.turns.push_front(self.rank_of(nid), *nid);
    }

    /// A push of so many bytes has come, of which these had room.
    pub(super) fn pushed(&mut self, now: Instant, from: Nid, bytes: &[u8], length_bytes: usize) {
        if from.is_any() || self.is_local(&from) {
            self.discoveries.counters.refused += 1;
            return;
        }
        let Ok(info) = PingInfo::parse(bytes) else {
            self.discoveries.counters.refused += 1;
            return;
        };
        let is_cut = length_bytes > bytes.len() || info.is_truncated();
        if is_cut {
            let room_bytes = info.full_bytes().clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
            self.discoveries.push_room_bytes = self.discoveries.push_room_bytes.max(room_bytes);
        }
        // An older one than what is known has been overtaken, or its sender has begun a new life.
        let is_older = |peer: &Peer| info.sequence() < peer.sequence;
        let lost = self.former.get(now, &from).filter(|_| self.peers.get(&from).is_none());
        if let Some(lost) = lost.copied()
            && self.peers.get(&lost.other).is_some_and(is_older)
        {
            self.discoveries.counters.pinged += 1;
            self.ask_again(now, &lost.other);
        } else if is_cut
            || self.peers.get(&from).is_some_and(is_older)
            || !info.features().contains(Features::MULTI_RAIL)
        {
            self.discoveries.counters.pinged += 1;
            self.ask_again(now, &from);
        } else if self.learn(now, &from, &info, true) {
            self.discoveries.counters.taken += 1;
            self.requeue(&from);
            self.discover(now, &from);
        } else {
            self.discoveries.counters.refused += 1;
        }
    }

    /// A peer that waits for its visit may be in the queue by a NID that it has no more.
    pub(super) fn requeue(&mut self, nid: &Nid) {
        let Some(peer) = self.peers.get(nid) else { return };
        let (primary, waits) = (peer.primary, peer.is(peer_state::DISCOVERING) && peer.under_way.is_none());
        if waits && !self.discoveries.turns.iter().any(|queued| peer.ni(queued).is_some()) {
            let rank = peer.rank();
            self.queue_visit(rank, primary);
        }
    }

    /// Has a peer say of itself what is not known, or contradicted.
    pub(super) fn ask_again(&mut self, now: Instant, nid: &Nid) {
        if self.peers.get(nid).is_none() {
            self.peers.note_traffic(nid, true);
        }
        self.peers.change(nid, |peer| peer.state |= peer_state::FORCE_PING);
        self.discover(now, nid);
    }

    /// Has all peers that have not acknowledged what this node tells pushed to; with `is_forced` all
    /// Multi-Rail ones.
    pub(super) fn push_to_all(&mut self, now: Instant, is_forced: bool) {
        let (sequence, is_on) = (self.told.sequence, self.is_discovery_on());
        let is_due = |peer: &&Peer| {
            peer.is_multi_rail()
                && !peer.is_own()
                && (is_forced || peer.needs_push(sequence, is_on))
                && peer.is(peer_state::DISCOVERED)
        };
        let due: Vec<_> = self.peers.iter().filter(is_due).map(|peer| peer.primary).collect();
        for primary in due {
            if is_forced {
                self.set_state(&primary, peer_state::FORCE_PUSH, 0);
            }
            self.discover(now, &primary);
        }
    }
}
