//! NIDs that peers claim: that they tell to be their own, and that have not said so themselves.
//!
//! A claimed NID becomes its claimant's by proof: a ping to it is answered by a list that holds it and a NID
//! which the claimant has. Until then it is shown, and counted among the claimant's NIDs: no message goes
//! there, none that comes from there counts as the claimant's, and who has the NID keeps it.
//!
//! Invariants: no NID is both its peer's and claimed by it; a NID is shown with one peer: with the one that
//! has it, else with the one that has claimed it first; a NID that is the peer's by configuration is not
//! claimed from it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use lnet_wire::{Net, Nid};

use super::peer_state::{BAD_CONFIG, CONFIGURED, LOCK_PRIMARY, NO_DISCOVERY, PING_SENT, PUSH_SENT};
use super::{Peer, PeerNi, PeerOrigin, PeerTable, TOLD_MAX};
use crate::time::Instant;

/// How far apart questions to a NID are at least.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// And at most.
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// A NID that a peer claims.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The NI as it is shown.
    pub(in crate::node) ni: PeerNi,
    /// Whether it is shown with this peer.
    pub(super) is_shown: bool,
    /// Number among all claims, in the order in which they were made.
    number: u64,
    /// When the NID was asked last.
    asked_at: Option<Instant>,
    /// When it is to be asked next; `None` while it is being asked, or cannot be asked.
    next_at: Option<Instant>,
    /// How often it was asked since something last spoke for an answer.
    ask_count: u32,
    /// Whether no question has ended since it was told last.
    is_fresh: bool,
    /// Whether the last answer from there was a list without the claimant, or who has the NID keeps it.
    pub(in crate::node) is_denied: bool,
    /// Whether that was counted since the claim was told last.
    is_counted: bool,
}

impl Claim {
    fn new(nid: Nid, number: u64) -> Self {
        let ni = PeerNi::new(nid);
        let (asked_at, next_at, ask_count) = (None, None, 0);
        let (is_shown, is_fresh, is_denied, is_counted) = (false, true, false, false);
        Self { ni, is_shown, number, asked_at, next_at, ask_count, is_fresh, is_denied, is_counted }
    }

    /// Something speaks for an answer: the NID is asked as soon as may be, and the intervals begin anew.
    fn hurry(&mut self, now: Instant) {
        self.ask_count = 0;
        // While it is asked, the answer says when it is asked next.
        if self.next_at.is_some() || self.asked_at.is_none() {
            let earliest = self.asked_at.map_or(now, |at| at + INTERVAL_MIN);
            self.next_at = Some(now.max(earliest));
        }
    }

    /// The NID is being asked.
    fn asked(&mut self, now: Instant) {
        (self.asked_at, self.next_at) = (Some(now), None);
        self.ask_count = self.ask_count.saturating_add(1);
    }

    /// The question has ended without proof.
    fn ended(&mut self, now: Instant) {
        self.is_fresh = false;
        let seconds = 1_u64 << self.ask_count.saturating_sub(1).min(6);
        self.next_at = Some(now + Duration::from_secs(seconds).min(INTERVAL_MAX));
    }
}

/// Indexes by which the claims of all peers are found.
#[derive(Clone, Default, Debug)]
pub(in crate::node) struct Claims {
    /// The primary NIDs of claimants by what they claim, in the order of their claims.
    claimants: BTreeMap<(Nid, u64), Nid>,
    /// Claims by when they are to be asked: the NID, and the primary NID of the claimant.
    due: BTreeSet<(Instant, Nid, Nid)>,
    /// Claims that were ever made.
    count: u64,
}

impl Claims {
    pub(super) const fn new() -> Self {
        Self { claimants: BTreeMap::new(), due: BTreeSet::new(), count: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.claimants.len()
    }

    pub(super) fn insert(&mut self, peer: &Peer) {
        for claim in &peer.claims {
            self.claimants.insert((claim.ni.nid, claim.number), peer.primary);
            self.due.extend(claim.next_at.map(|at| (at, claim.ni.nid, peer.primary)));
        }
    }

    pub(super) fn remove(&mut self, peer: &Peer) {
        for claim in &peer.claims {
            self.claimants.remove(&(claim.ni.nid, claim.number));
            if let Some(at) = claim.next_at {
                self.due.remove(&(at, claim.ni.nid, peer.primary));
            }
        }
    }

    fn of(&self, nid: &Nid) -> impl Iterator<Item = &Nid> {
        self.claimants.range((*nid, 0)..=(*nid, u64::MAX)).map(|(_, primary)| primary)
    }
}

/// Outcome of a claim by the word of the NID itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::node) enum Proof {
    /// The NID is the claimant's.
    Taken,
    /// The NID is not the claimant's: that is news, or was counted before.
    Denied { is_news: bool },
}

impl PeerTable {
    /// The peers that claim a NID, by their primary NIDs.
    pub(in crate::node) fn claimants(&self, nid: &Nid) -> Vec<Nid> {
        self.claims.of(nid).copied().collect()
    }

    /// The peer that a NID is shown with.
    pub(in crate::node) fn shown_with(&self, nid: &Nid) -> Option<&Peer> {
        self.get(nid).or_else(|| self.peers.get(self.claims.of(nid).next()?).map(|peer| &**peer))
    }

    /// Whether a NID is claimed, and can be asked whose it is.
    pub(in crate::node) fn is_in_question(&self, nid: &Nid) -> bool {
        self.claims.of(nid).any(|primary| {
            let claim = self.peers.get(primary).and_then(|peer| peer.claim(nid));
            claim.is_some_and(Claim::is_askable)
        })
    }

    /// When the next claim is to be asked.
    pub(in crate::node) fn next_question(&self) -> Option<(Instant, Nid, Nid)> {
        self.claims.due.first().copied()
    }

    /// Where the claimant with a primary NID came from.
    pub(in crate::node) fn origin(&self, primary: &Nid) -> PeerOrigin {
        let origin = self.get(primary).map_or(PeerOrigin::NONE, |peer| peer.origin);
        if origin == PeerOrigin::NONE { primary.ip().map_or(origin, PeerOrigin::of) } else { origin }
    }

    /// Settles with which peers NIDs are shown, whose peers or claims have changed.
    pub(super) fn settle_claims(&mut self, nids: &[Nid]) {
        if self.claims.count == 0 {
            return;
        }
        for nid in nids {
            let has_owner = self.primaries.contains_key(nid);
            // The first claim alone is ever shown, and is first or second after one that came or went.
            for (at, claimant) in self.claims.of(nid).take(2).enumerate() {
                let claim = self.peers.get_mut(claimant).and_then(|peer| peer.claim_mut(nid));
                let is_shown = !has_owner && at == 0;
                if let Some(claim) = claim.filter(|claim| claim.is_shown != is_shown) {
                    claim.is_shown = is_shown;
                    self.changed.insert(*claimant);
                }
            }
            self.claimed.insert(*nid);
        }
    }

    /// Changes when a claim is to be asked.
    fn schedule(&mut self, primary: &Nid, nid: &Nid, change: impl FnOnce(&mut Claim)) {
        let Some(peer) = self.peers.get_mut(primary) else { return };
        let could_be_renamed = peer.may_be_renamed();
        let Some(claim) = peer.claim_mut(nid) else { return };
        let was_askable = claim.is_askable();
        if let Some(at) = claim.next_at {
            self.claims.due.remove(&(at, *nid, *primary));
        }
        change(claim);
        self.claims.due.extend(claim.next_at.map(|at| (at, *nid, *primary)));
        if claim.is_askable() != was_askable {
            self.claimed.insert(*nid);
        }
        if peer.may_be_renamed() != could_be_renamed {
            self.changed.insert(*primary);
        }
    }

    /// A claim is being asked.
    pub(in crate::node) fn asked(&mut self, now: Instant, primary: &Nid, nid: &Nid) {
        self.schedule(primary, nid, |claim| claim.asked(now));
    }

    /// A claim is to be asked at another time: it cannot be now.
    pub(in crate::node) fn postpone(&mut self, at: Option<Instant>, primary: &Nid, nid: &Nid) {
        self.schedule(primary, nid, |claim| {
            claim.next_at = at;
            if at.is_none() {
                claim.asked_at = None;
            }
        });
    }

    /// Ends a question to a NID that has brought no proof: it is asked again in its time.
    pub(in crate::node) fn question_ended(&mut self, now: Instant, nid: &Nid) {
        for primary in self.claimants(nid) {
            self.schedule(&primary, nid, |claim| {
                if claim.next_at.is_none() && claim.asked_at.is_some() {
                    claim.ended(now);
                }
            });
        }
    }

    /// Something speaks for an answer of a claimed NID.
    pub(in crate::node) fn hurry(&mut self, now: Instant, nid: &Nid) {
        for primary in self.claimants(nid) {
            self.schedule(&primary, nid, |claim| {
                if claim.is_askable() {
                    claim.hurry(now);
                }
            });
        }
    }

    /// Something speaks for answers of the claimed NIDs on these nets.
    pub(in crate::node) fn hurry_nets(&mut self, now: Instant, nets: impl Fn(Net) -> bool) {
        let its = self.claims.claimants.iter().filter(|((nid, _), _)| nets(nid.net()));
        let its: Vec<_> = its.map(|((nid, _), primary)| (*nid, *primary)).collect();
        for (nid, primary) in its {
            self.schedule(&primary, &nid, |claim| claim.hurry(now));
        }
    }

    /// A NID is this node's own now: no peer claims it.
    pub(super) fn drop_claims(&mut self, nid: &Nid) {
        for primary in self.claimants(nid) {
            self.change(&primary, |peer| peer.claims.retain(|claim| claim.ni.nid != *nid));
        }
    }

    /// Gives the turn of a claimant's question that has ended to its next one.
    pub(in crate::node) fn next_turn(&mut self, now: Instant, primary: &Nid) {
        let waits = |claim: &&Claim| claim.next_at.is_some_and(|at| at <= now + TURN);
        let next = self.get(primary).and_then(|peer| {
            let waiting = peer.claims.iter().filter(waits);
            let claim = waiting.min_by_key(|claim| (claim.ask_count, claim.next_at))?;
            Some((peer.primary, claim.ni.nid))
        });
        if let Some((primary, nid)) = next {
            self.schedule(&primary, &nid, |claim| claim.next_at = Some(Instant(0)));
        }
    }

    /// The peer that speaks from `from` tells that these are its NIDs, `primary` the first among them. It
    /// loses those that it does not tell, and claims those that it has not; `is_askable` says which of them
    /// can be asked, and `has_news` whether those are that it has claimed before.
    pub(in crate::node) fn note_told(
        &mut self,
        (now, has_news): (Instant, bool),
        from: &Nid,
        (primary, told): (&Nid, &[Nid]),
        is_askable: impl Fn(&Nid) -> bool,
    ) {
        let Some(peer) = self.get(from).filter(|peer| !peer.is(CONFIGURED)) else { return };
        let known =
            [primary, &peer.primary].into_iter().find(|nid| told.contains(nid) && peer.ni(nid).is_some());
        let first = *known.unwrap_or(from);
        self.set_primary(from, &first);
        let Some(first) = self.get(from).map(|peer| peer.primary) else { return };
        self.retain_nis(from, true, |nid| *nid == first || told.contains(nid));
        let configured: BTreeSet<Nid> = told
            .iter()
            .filter(|nid| self.get(nid).is_some_and(|peer| peer.is(CONFIGURED)))
            .copied()
            .collect();
        let first_number = self.claims.count + 1;
        self.claims.count += told.len() as u64;
        self.change(from, |peer| {
            let mut former = core::mem::take(&mut peer.claims);
            for (number, nid) in (first_number..).zip(told) {
                if peer.ni(nid).is_some() {
                    continue;
                }
                if peer.nis.len() + peer.claims.len() >= TOLD_MAX {
                    break;
                }
                let at = former.iter().position(|claim| claim.ni.nid == *nid);
                let is_asked = has_news || at.is_none();
                let mut claim = at.map_or_else(|| Claim::new(*nid, number), |at| former.swap_remove(at));
                claim.is_counted &= !has_news;
                claim.is_fresh |= has_news;
                if is_asked && is_askable(nid) && !configured.contains(nid) {
                    claim.hurry(now);
                }
                peer.claims.push(claim);
            }
            if peer.claims.iter().all(|claim| !claim.is_denied) {
                peer.state &= !BAD_CONFIG;
            }
        });
    }

    /// A configured peer tells that these are its NIDs: it loses those that were found and that it does not
    /// tell, but for the one that it goes by, and claims them no more.
    pub(in crate::node) fn note_told_by_configured(&mut self, from: &Nid, told: &[Nid]) {
        let Some(peer) = self.get(from).filter(|peer| peer.is(CONFIGURED)) else { return };
        let stays = |ni: &PeerNi| ni.is_configured || ni.nid == peer.primary || told.contains(&ni.nid);
        let gone: Vec<Nid> = peer.nis.iter().filter(|ni| !stays(ni)).map(|ni| ni.nid).collect();
        let has_claims = !peer.claims.is_empty();
        if !gone.is_empty() {
            self.retain_nis(from, true, |nid| !gone.contains(nid));
        }
        if has_claims {
            self.change(from, |peer| peer.claims.retain(|claim| told.contains(&claim.ni.nid)));
        }
    }

    /// A peer tells whether a NID that it claims is up; whether that is news.
    pub(in crate::node) fn note_claimed_status(&mut self, primary: &Nid, nid: &Nid, is_up: bool) -> bool {
        let claim = self.peers.get_mut(primary).and_then(|peer| peer.claim_mut(nid));
        claim.is_some_and(|claim| claim.ni.is_up.replace(is_up) != Some(is_up))
    }

    /// A NID says of itself that its node has these NIDs: what that means for the claim of a peer.
    pub(in crate::node) fn weigh(&mut self, primary: &Nid, nid: &Nid, told: &[Nid]) -> Option<Proof> {
        let claimant = self.peers.get(primary)?;
        claimant.claim(nid)?;
        let is_mutual = claimant.nis.iter().any(|ni| told.contains(&ni.nid));
        Some(if is_mutual && self.take(primary, nid, told) { Proof::Taken } else { self.deny(primary, nid) })
    }

    /// A claim is contradicted: both sides are marked, and keep what they have.
    pub(in crate::node) fn deny(&mut self, primary: &Nid, nid: &Nid) -> Proof {
        let mut is_news = false;
        let marked = self.peers.get(primary).is_some_and(|peer| peer.is(BAD_CONFIG));
        if let Some(claim) = self.peers.get_mut(primary).and_then(|peer| peer.claim_mut(nid)) {
            is_news = !core::mem::replace(&mut claim.is_counted, true);
            claim.is_denied = true;
        }
        if !marked {
            self.change(primary, |peer| peer.state |= BAD_CONFIG);
        }
        if self.get(nid).is_some_and(|peer| !peer.is(BAD_CONFIG)) {
            self.change(nid, |peer| peer.state |= BAD_CONFIG);
        }
        Proof::Denied { is_news }
    }

    /// Gives a claimed NID to its claimant, by this word of the NID's; `false` if who has the NID keeps it.
    fn take(&mut self, primary: &Nid, nid: &Nid, told: &[Nid]) -> bool {
        let Some(owner) = self.primaries.get(nid).copied() else {
            self.change(primary, |peer| {
                let claim = peer.claims.iter().position(|claim| claim.ni.nid == *nid);
                peer.nis.extend(claim.map(|at| peer.claims.remove(at).ni));
                peer.follow_told();
            });
            return true;
        };
        self.unite(primary, &owner, told)
    }

    /// Makes two peers one that turn out to be one node, by the word of a NID of the second; `false` if they
    /// stay apart: what an administrator has made does, a peer that is locked with several NIDs, and one of
    /// whose NIDs that word, or the claimant's, leaves some out.
    fn unite(&mut self, primary: &Nid, owner: &Nid, told: &[Nid]) -> bool {
        let (Some(one), Some(other)) = (self.peers.get(primary), self.peers.get(owner)) else { return false };
        let stays = |peer: &Peer| peer.is(CONFIGURED) || peer.is(LOCK_PRIMARY) && peer.nis.len() > 1;
        let is_whole = other.nis.iter().all(|ni| told.contains(&ni.nid) && one.told.contains(&ni.nid));
        if one.is(CONFIGURED) || stays(other) || !is_whole {
            return false;
        }
        // Goes on as the one that has the primary NID by the node's own account, with what is known of both.
        let first = told.first();
        let is_found_by_other = other.is(LOCK_PRIMARY) && !one.is(LOCK_PRIMARY);
        let goes_on_as_other = first.is_some_and(|first| other.ni(first).is_some()) && !stays(one);
        let (stays, goes) = if goes_on_as_other { (*owner, *primary) } else { (*primary, *owner) };
        let Some(gone) = self.take_out(&goes) else { return false };
        self.change(&stays, |peer| {
            let of_one_alone = LOCK_PRIMARY | PING_SENT | PUSH_SENT | BAD_CONFIG | NO_DISCOVERY;
            peer.state = peer.state & !NO_DISCOVERY | gone.state & !of_one_alone;
            // A ping would find out what is known.
            if peer.under_way.is_none() || gone.is(PUSH_SENT) && !peer.is(PUSH_SENT) {
                peer.under_way = gone.under_way;
                peer.state = peer.state & !PING_SENT | gone.state & (PING_SENT | PUSH_SENT);
            }
            if gone.sequence > peer.sequence {
                peer.told.clone_from(&gone.told);
            }
            peer.awaited_since = peer.awaited_since.or(gone.awaited_since);
            peer.sequence = peer.sequence.max(gone.sequence);
            peer.acked = peer.acked.max(gone.acked);
            peer.waiting.extend(gone.waiting.iter().copied());
            let mut claims = core::mem::take(&mut peer.claims);
            claims.extend(gone.claims.iter().cloned());
            for ni in &gone.nis {
                if peer.ni(&ni.nid).is_none() {
                    peer.nis.push(ni.clone());
                }
            }
            peer.take_lock(&gone);
            peer.take_names(&gone);
            peer.is_found_by_other |= is_found_by_other || gone.is_found_by_other;
            peer.nis.truncate(TOLD_MAX);
            for claim in claims {
                let is_there = peer.ni(&claim.ni.nid).is_some() || peer.claim(&claim.ni.nid).is_some();
                if !is_there && peer.nis.len() + peer.claims.len() < TOLD_MAX {
                    peer.claims.push(claim);
                }
            }
            peer.follow_told();
        });
        true
    }

    fn set_primary(&mut self, of: &Nid, primary: &Nid) {
        if self.get(of).is_some_and(|peer| peer.primary != *primary && !peer.is(LOCK_PRIMARY)) {
            self.change(of, |peer| peer.primary = *primary);
        }
    }
}

impl Claim {
    /// Whether its NID can be asked: it is being asked, or waits for its time.
    const fn is_askable(&self) -> bool {
        self.next_at.is_some() || self.asked_at.is_some()
    }
}

/// How soon what waits for a turn tries again.
pub(in crate::node) const TURN: Duration = Duration::from_millis(250);

impl Peer {
    /// The claim to a NID.
    pub(super) fn claim(&self, nid: &Nid) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.ni.nid == *nid)
    }

    pub(super) fn claim_mut(&mut self, nid: &Nid) -> Option<&mut Claim> {
        self.claims.iter_mut().find(|claim| claim.ni.nid == *nid)
    }

    /// The claim to the NID that is its primary one by its own account, if it has not that NID and may go by
    /// it.
    pub(super) fn primary_claim(&self) -> Option<&Claim> {
        let claim = self.told.first().and_then(|first| self.claim(first));
        claim.filter(|_| !self.is(LOCK_PRIMARY) && !self.is(CONFIGURED))
    }

    /// Whether it is to be asked whether the NID that is its primary one by its own account is, and has not
    /// answered: it may go by that NID in a moment. What has come from there so far, and made a peer of it,
    /// tells nothing of that.
    pub(in crate::node) fn may_be_renamed(&self) -> bool {
        let is_asked = |claim: &Claim| claim.is_askable() && claim.is_fresh;
        !self.has_waited && self.primary_claim().is_some_and(is_asked)
    }

    /// Goes by the primary NID of its own account, if it has that and is not locked, and is marked no more if
    /// nothing is denied.
    fn follow_told(&mut self) {
        if let Some(first) = self.told.first().filter(|first| self.ni(first).is_some())
            && !self.is(LOCK_PRIMARY)
            && !self.is(CONFIGURED)
        {
            self.primary = *first;
        }
        let told = &self.told;
        if !self.is(CONFIGURED) {
            self.nis.sort_by_key(|ni| told.iter().position(|nid| *nid == ni.nid).unwrap_or(told.len()));
        }
        if self.claims.iter().all(|claim| !claim.is_denied) {
            self.state &= !BAD_CONFIG;
        }
    }
}
