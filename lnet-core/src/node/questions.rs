//! Questions to NIDs that peers claim: whose they are.
//!
//! A question is a ping. It is asked when the claim is told, again with each push of the claimant, with each
//! change of the NID's status or path, and with each message from there that waits for the answer, and else
//! after 1, 2, 4 and so on seconds, at most 60. Not asked are NIDs on nets that this node is not on and no
//! route leads to, and what an administrator has given to another peer.
//!
//! Invariants: at most [`QUESTIONS_MAX`] are under way for the claims of one address, and one to a NID; no
//! discovery waits for an answer, and no message longer than [`NAME_WAIT`]; an answer makes no peer.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use lnet_wire::ping::{BUFFER_BYTES_MIN, Features, HEADER_BYTES, LARGE_ENTRY_BYTES, PingInfo};
use lnet_wire::{Net, Nid};

use super::error::RequestError;
use super::peers::{Peer, PeerOrigin, Proof, TURN, peer_state};
use super::pings::{Ping, PingPurpose, nids_of};
use super::upper::pinged;
use super::{Node, Outcome};
use crate::shard::NAME_WAIT;
use crate::time::Instant;

/// Questions that are under way at once for the claims of one address.
const QUESTIONS_MAX: usize = 8;
/// Questions that are under way at once for all of them.
const ALL_QUESTIONS_MAX: usize = 256;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The questions that are under way.
#[derive(Default, Debug)]
pub(super) struct Asking {
    /// The NIDs that are asked.
    nids: BTreeSet<Nid>,
    /// How many, by the address of the claimant.
    by_origin: BTreeMap<PeerOrigin, usize>,
}

impl Asking {
    /// Whether one more may be asked for the claims of an address. Half of the room is for the first question
    /// of each.
    fn has_room(&self, origin: PeerOrigin) -> bool {
        let its = self.by_origin.get(&origin).copied().unwrap_or(0);
        let all = if its == 0 { ALL_QUESTIONS_MAX } else { ALL_QUESTIONS_MAX / 2 };
        its < QUESTIONS_MAX && self.nids.len() < all
    }

    fn begin(&mut self, nid: &Nid, origin: PeerOrigin) {
        self.nids.insert(*nid);
        *self.by_origin.entry(origin).or_default() += 1;
    }

    fn end(&mut self, nid: &Nid, origin: PeerOrigin) {
        self.nids.remove(nid);
        if let Some(count) = self.by_origin.get_mut(&origin) {
            *count -= 1;
            if *count == 0 {
                self.by_origin.remove(&origin);
            }
        }
    }
}

/// A NID that a peer has claimed, and the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamedClaim {
    /// The NID.
    pub nid: Nid,
    /// The primary NID of the claimant.
    pub claimant: Nid,
}

impl<O: Clone> Node<O> {
    /// The last claim that was proven since this was asked, for a log.
    pub const fn poll_proven(&mut self) -> Option<NamedClaim> {
        self.discoveries.proven.take()
    }

    /// The last claim that was contradicted since this was asked, for a log.
    pub const fn poll_contradicted(&mut self) -> Option<NamedClaim> {
        self.discoveries.contradicted.take()
    }

    /// Has the claimed NIDs asked that could not be asked before, since neither this node was on their nets
    /// nor a route led there.
    pub(super) fn ask_on_new_nets(&mut self, now: Instant, former: &[Net]) {
        let nets = self.nets_in_reach();
        self.peers.hurry_nets(now, |net| nets.contains(&net) && !former.contains(&net));
    }

    /// Asks the claimed NIDs whose time has come.
    pub(super) fn ask_claims(&mut self, now: Instant) {
        while let Some((at, nid, claimant)) = self.peers.next_question().filter(|(at, ..)| *at <= now) {
            let is_configured = self.peers.get(&nid).is_some_and(|peer| peer.is(peer_state::CONFIGURED));
            let origin = self.peers.origin(&claimant);
            // By itself a gateway is not asked as another one: LNet ends what brings that.
            let is_gateway = self.peers.get(&claimant).is_some_and(Peer::is_gateway);
            let is_behind_itself = is_gateway && !self.is_on(nid.net());
            let is_ignored = !self.takes_lists() || is_configured || is_behind_itself;
            if is_ignored || !self.is_in_reach(nid.net()) || self.is_local(&nid) {
                self.peers.postpone(None, &claimant, &nid);
            } else if self.asking.nids.contains(&nid) {
                // The answer counts for all claimants.
                self.peers.asked(now, &claimant, &nid);
            } else if !self.asking.has_room(origin) {
                self.peers.postpone(Some(at.max(now) + TURN), &claimant, &nid);
            } else if !self.leads_to(&nid, None) {
                self.peers.asked(now, &claimant, &nid);
                self.peers.question_ended(now, &nid);
            } else {
                self.peers.asked(now, &claimant, &nid);
                let known = self.peers.get(&claimant).map_or(0, |peer| peer.nis.len() + peer.claims.len());
                let length_bytes = (HEADER_BYTES + known * LARGE_ENTRY_BYTES).max(BUFFER_BYTES_MIN);
                let ping = self.own_ping(now, nid, PingPurpose::Question { claimant, origin });
                self.asking.begin(&nid, origin);
                let ping = Ping { deadline: now + PATIENCE.min(ping.timeout), ..ping };
                self.send_ping(ping, length_bytes);
            }
        }
    }

    /// Weighs the answer to a question; `None` where none has come.
    pub(super) fn question_answered(&mut self, now: Instant, ping: &Ping, answer: Option<&[u8]>) {
        let PingPurpose::Question { claimant, origin } = ping.purpose else { return };
        self.asking.end(&ping.nid, origin);
        match answer.map(PingInfo::parse) {
            Some(Ok(info)) => {
                // The owner of the NID says more of itself by it.
                let is_news = |peer: &Peer| info.sequence() >= peer.sequence && !info.is_truncated();
                if self.peers.get(&ping.nid).is_some_and(is_news) {
                    self.learn(now, &ping.nid, &info, false);
                }
                self.weigh_claims(&ping.nid, &info);
                // The NI that has become a peer's by that was heard as well.
                self.received_from(now, &ping.nid);
            }
            Some(Err(_)) => self.discoveries.counters.answers_refused += 1,
            None => {}
        }
        self.peers.question_ended(now, &ping.nid);
        self.peers.next_turn(now, &claimant);
    }

    /// A NID has answered a ping with this list: what that means for those who claim it.
    pub(super) fn weigh_claims(&mut self, nid: &Nid, info: &PingInfo<'_>) {
        let claimants = self.peers.claimants(nid);
        let features = info.features();
        let takes_part = features.contains(Features::MULTI_RAIL) && features.contains(Features::DISCOVERY);
        // A list that is ignored proves nothing, and denies nothing.
        let is_word = takes_part && self.takes_lists() && !self.peers.speaks_from_elsewhere(nid);
        if claimants.is_empty() || !is_word {
            return;
        }
        let told = nids_of(info);
        if !told.contains(nid) {
            return;
        }
        let (taken, denied): (Vec<_>, Vec<_>) = claimants
            .into_iter()
            .map(|claimant| (claimant, self.peers.weigh(&claimant, nid, &told)))
            .fold((Vec::new(), Vec::new()), |(mut taken, mut denied), (claimant, proof)| {
                match proof {
                    Some(Proof::Taken) => taken.push(claimant),
                    Some(Proof::Denied { is_news: true }) => denied.push(claimant),
                    _ => {}
                }
                (taken, denied)
            });
        for claimant in taken {
            self.discoveries.counters.proven += 1;
            self.discoveries.proven = Some(NamedClaim { nid: *nid, claimant });
            self.requeue(nid);
        }
        denied.into_iter().for_each(|claimant| self.note_contradiction(nid, &claimant));
        self.peers.bound_nids(nid);
    }

    fn note_contradiction(&mut self, nid: &Nid, claimant: &Nid) {
        self.discoveries.counters.contradicted += 1;
        self.discoveries.contradicted = Some(NamedClaim { nid: *nid, claimant: *claimant });
    }

    /// Contradicts the claims of a peer to what an administrator has given to others.
    pub(super) fn deny_configured(&mut self, claimant: &Nid) {
        let Some(peer) = self.peers.get(claimant) else { return };
        let primary = peer.primary;
        let is_configured =
            |nid: &Nid| self.peers.get(nid).is_some_and(|other| other.is(peer_state::CONFIGURED));
        let denied: Vec<_> = peer.claims.iter().map(|claim| claim.ni.nid).filter(is_configured).collect();
        for nid in denied {
            if self.peers.deny(&primary, &nid) == (Proof::Denied { is_news: true }) {
                self.note_contradiction(&nid, &primary);
            }
        }
    }

    /// Whether messages of a peer wait for the name that it is to go by.
    pub(super) fn awaits_name(&self, peer: &Peer) -> bool {
        let is_in_question = || peer.nis.iter().any(|ni| self.peers.is_in_question(&ni.nid));
        peer.may_be_renamed() || !peer.has_waited && peer.told.is_empty() && is_in_question()
    }

    /// A request from a NID waits for the name that its peer is to go by: the NID in question is asked. The
    /// request waits for [`NAME_WAIT`] at most, and the next one does not. Its peer is discovered as any that
    /// has spoken.
    pub(super) fn note_waiting(&mut self, now: Instant, nid: &Nid) {
        let known = self.peers.get(nid);
        let renamed = known.filter(|peer| peer.may_be_renamed()).and_then(|peer| peer.told.first().copied());
        if let Some(first) = renamed {
            self.peers.hurry(now, &first);
        } else if !self.peers.is_in_question(nid) || known.is_some_and(|peer| !self.awaits_name(peer)) {
            return;
        } else {
            self.peers.note_traffic(nid, true);
            self.peers.hurry(now, nid);
            // Nothing of this node waits for it.
            self.discover(now, nid);
        }
        self.windows.entry(*nid).or_insert(now + NAME_WAIT);
    }

    /// Ends the requests for primary NIDs that are known now, or that have waited for as long as they may.
    pub(super) fn end_unnamed(&mut self, now: Instant) {
        let waiting: Vec<_> =
            self.discoveries.unnamed.iter().map(|(request, until)| (*request, *until)).collect();
        for (request, until) in waiting {
            let until = until.unwrap_or(now + NAME_WAIT);
            self.discoveries.unnamed.insert(request, Some(until));
            let nid = self.discoveries.requests.get(&request).copied();
            let peer = nid.and_then(|nid| self.peers.get(&nid));
            if until > now && peer.is_some_and(Peer::may_be_renamed) {
                continue;
            }
            let told = nid.map(|nid| peer.map(|peer| pinged(&nid, peer)).ok_or(RequestError::PeerGone(nid)));
            self.discoveries.unnamed.remove(&request);
            // A request that was given up has ended.
            if let Some(told) = told {
                self.discoveries.requests.remove(&request);
                self.end_request(request, told.map(Outcome::Pinged));
            }
        }
    }

    /// Has no message wait any more whose time is over.
    pub(super) fn end_waiting(&mut self, now: Instant) {
        let over: Vec<Nid> =
            self.windows.extract_if(.., |_, until| *until <= now).map(|(nid, _)| nid).collect();
        for nid in over {
            let is_unproven = |peer: &Peer| !peer.claims.is_empty() || self.peers.is_in_question(&nid);
            if self.peers.get(&nid).is_some_and(is_unproven) {
                self.peers.change(&nid, |peer| peer.has_waited = true);
            }
        }
    }
}
