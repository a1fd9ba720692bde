//! Paths: the addresses that this shard sends to, each by one of its NIs, and the sessions that were given
//! there.
//!
//! Invariants: a path stays while messages refer to it or a question of its is open. Whether a path is silent
//! is said here alone. Streams ask; the shard is told, and tells the node.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::cell::Cell;
use core::ops::{Deref, DerefMut};
use core::time::Duration;

use lnet_core::collections::{Chain, Keyed, Link, List, NONE, Schedule, Seed, Table, linked, nid_words};
use lnet_core::lnd::{self, NiId, PeerSlot, SILENCE, Transmit};
use lnet_core::time::Instant;
use lnet_wire::Nid;

use super::quality::Quality;
use super::tokens::RENEWAL_NS;
use super::width::Width;
use crate::local::BySlot;
use crate::met::MetAddresses;

/// How long a node has from the first HELLO to its address until its host may refuse in its stead. Programs
/// that belong together start in any order.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);
/// How long a peer that was met has to answer until its host may refuse pings in its stead: a daemon that
/// begins anew takes less.
const MET_REFUSAL_PATIENCE: Duration = Duration::from_secs(3);

/// What ends where a host says that it has no node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusable {
    /// All that waits for the first session there.
    Waiting,
    /// Pings alone. A peer was met there, and what else goes there waits for its next life.
    Pings,
}

/// An open question for a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    /// What the answer must repeat.
    pub(crate) nonce: u64,
    /// When the first HELLO was sent.
    pub(crate) asked_at: Instant,
    pub(crate) next_at: Instant,
    pub(crate) interval: Duration,
    pub(crate) is_repeated: bool,
    /// The incarnation on whose behalf it was asked last.
    pub(crate) asker: Option<u64>,
}

impl Asking {
    /// When the last HELLO was sent: who answers may answer any of them, and lives since then at least.
    pub(crate) fn last_asked_at(&self) -> Instant {
        Instant(self.next_at.0 - self.interval.as_nanos() as u64)
    }
}

/// An address that messages are sent to, or answers.
pub(crate) struct PeerPath {
    pub(crate) nid: Nid,
    pub(crate) ni: NiId,
    /// The incarnation that has answered under it, or that messages go to there which went by another one
    /// before; or [`NONE`].
    pub(crate) peer: u32,
    /// Whether an incarnation ever lived there: the next one may be on its way.
    is_met: bool,
    pub(crate) asking: Option<Asking>,
    /// What was given there.
    pub(crate) session: Option<Session>,
    /// The token of a session that ended there before its peer was known to have ended: it may be refused
    /// yet.
    pub(crate) ended_token: Option<u64>,
    /// Since when, and until when, it is avoided, since it did not answer; the end is zero once it has.
    silent_since: Instant,
    silent_until: Instant,
    /// Whether the shard was told that it is silent, and not that it answers since.
    is_told_silent: bool,
    pub(crate) quality: Quality,
    pub(crate) width: Width,
    /// Messages that go there.
    pub(crate) references: u32,
    chain: Link,
    idle: Link,
    of_peer: Link,
}

impl PeerPath {
    /// The path as the shard knows it, which chooses.
    pub(crate) const fn as_path(&self) -> lnd::Path {
        lnd::Path { ni: self.ni, peer: self.nid }
    }

    /// Whether it has not answered, of late or the first time that it was asked.
    #[inline]
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        now < self.silent_until || self.asking.is_some_and(|asking| asking.is_repeated)
    }

    /// Since when and until when it is avoided, if it is. A path that is found silent again meanwhile has
    /// been silent since the first time.
    #[inline]
    pub(crate) fn silence(&self, now: Instant) -> Option<(Instant, Instant)> {
        (now < self.silent_until).then_some((self.silent_since, self.silent_until))
    }

    /// Whether it has answered since it was silent, or has carried a whole window of frames.
    pub(super) fn answers(&self, now: Instant) -> bool {
        !self.is_silent(now)
            && (self.silent_until == Instant(0) || self.quality.is_known_since(self.silent_until, now))
    }
}

/// Marks paths that nothing refers to.
pub(crate) struct IdlePaths;
/// Marks the paths that lead to a peer.
pub(crate) struct OfPeer;

linked!(PeerPath, Chain, chain);
linked!(PeerPath, IdlePaths, idle);
linked!(PeerPath, OfPeer, of_peer);

impl Keyed for PeerPath {
    fn hash(&self, seed: Seed) -> u64 {
        seed.hash(nid_words(&self.nid))
    }
}

/// The addresses that are known.
pub(crate) struct Paths {
    table: Table<PeerPath>,
    idle: List<IdlePaths>,
    /// When each open question is asked again.
    asked: Schedule,
    /// Paths by the slot of the peer to which they lead.
    of_peers: BySlot<List<OfPeer>>,
    /// The path by which the last message went to a peer NI, by the shard's slot of that; or [`NONE`].
    taken: Box<[Cell<u32>]>,
    /// Where any shard has met a peer, also by paths that have made room since.
    met: Arc<MetAddresses>,
    /// No path is avoided from then on.
    silent_until: Instant,
}

/// Bytes that a path takes besides its slot.
pub(super) const TAKEN_BYTES: usize = size_of::<Cell<u32>>();

impl Paths {
    /// Room for so many, to so many peers.
    pub(crate) fn new(capacity: u32, peers: u32, seed: Seed, met: Arc<MetAddresses>) -> Self {
        Self {
            table: Table::new(capacity, seed),
            idle: List::new(),
            asked: Schedule::new(capacity),
            of_peers: BySlot::new(peers, List::new),
            taken: (0..capacity).map(|_| Cell::new(NONE)).collect(),
            met,
            silent_until: Instant(0),
        }
    }

    /// Notes that a path does not answer: it is avoided for a while where there is another one.
    pub(crate) fn note_silence(&mut self, now: Instant, slot: u32) {
        self.silent_until = now + SILENCE;
        let path = &mut self.table[slot];
        // Probes come as far apart as a path is avoided.
        if path.silent_until == Instant(0) || now >= path.silent_until + SILENCE {
            path.silent_since = now;
        }
        (path.silent_until, path.is_told_silent) = (now + SILENCE, true);
    }

    /// Notes that a path answers.
    pub(crate) fn note_answer(&mut self, slot: u32) {
        (self.table[slot].silent_until, self.table[slot].is_told_silent) = (Instant(0), false);
    }

    /// A frame has arrived by a path; whether the shard is to be told that it answers again. What arrives
    /// while it is avoided had left before.
    #[inline]
    pub(super) fn answers_again(&mut self, now: Instant, slot: u32) -> bool {
        let path = &mut self.table[slot];
        let is_over = path.is_told_silent && now >= path.silent_until;
        path.is_told_silent &= !is_over;
        is_over
    }

    /// Whether any path may be avoided.
    pub(super) fn has_silent(&self, now: Instant) -> bool {
        now < self.silent_until
    }

    /// A path, as long as it leads to this peer: it may have made room for one to another peer.
    #[inline]
    pub(crate) fn leading(&self, (path, peer): (u32, u32)) -> Option<&PeerPath> {
        self.table.get(path).filter(|path| path.peer == peer)
    }

    /// A path, as long as it leads to this peer.
    #[inline]
    pub(crate) fn leading_mut(&mut self, (path, peer): (u32, u32)) -> Option<&mut PeerPath> {
        self.table.get_mut(path).filter(|path| path.peer == peer)
    }

    /// The path for an address.
    #[inline]
    pub(crate) fn find(&self, ni: NiId, nid: &Nid) -> Option<u32> {
        self.to_nid(nid, |path| path.ni == ni)
    }

    /// The path of a message. It is looked up once for all messages to a peer NI, as long as the shard calls
    /// that the same.
    #[inline]
    pub(crate) fn of(&self, transmit: &Transmit) -> Option<u32> {
        let Transmit { ni, next_hop, peer: PeerSlot(slot), .. } = transmit;
        let Some(taken) = self.taken.get(*slot as usize) else { return self.find(*ni, next_hop) };
        if self.table.get(taken.get()).is_some_and(|path| path.ni == *ni && path.nid == *next_hop) {
            return Some(taken.get());
        }
        let path = self.find(*ni, next_hop)?;
        taken.set(path);
        Some(path)
    }

    /// Takes a reference on the path of a message, if there is one.
    #[inline]
    pub(crate) fn acquire_of(&mut self, transmit: &Transmit) -> Option<u32> {
        let slot = self.of(transmit)?;
        self.refer(slot);
        Some(slot)
    }

    /// A path to this NID, by any NI, of which `is` is true.
    #[inline]
    pub(crate) fn to_nid(&self, nid: &Nid, is: impl Fn(&PeerPath) -> bool) -> Option<u32> {
        self.table.find(|| nid_words(nid), |path| path.nid == *nid && is(path))
    }

    /// Finds or makes the path for an address, and takes a reference on it; `None` if all are in use.
    #[inline]
    pub(crate) fn acquire(&mut self, ni: NiId, nid: &Nid) -> Option<u32> {
        if let Some(slot) = self.acquire_known(ni, nid) {
            return Some(slot);
        }
        if self.table.is_full() {
            let oldest = self.idle.pop_front(&mut self.table)?;
            self.set_peer(oldest, NONE);
            self.table.remove(oldest);
        }
        self.table.insert(PeerPath {
            nid: *nid,
            ni,
            peer: NONE,
            is_met: false,
            asking: None,
            session: None,
            ended_token: None,
            silent_since: Instant(0),
            silent_until: Instant(0),
            is_told_silent: false,
            quality: Quality::NEW,
            width: Width::NEW,
            references: 1,
            chain: Link::UNLINKED,
            idle: Link::UNLINKED,
            of_peer: Link::UNLINKED,
        })
    }

    /// Takes a reference on the path for an address, if there is one.
    #[inline]
    pub(crate) fn acquire_known(&mut self, ni: NiId, nid: &Nid) -> Option<u32> {
        let slot = self.find(ni, nid)?;
        self.refer(slot);
        Some(slot)
    }

    /// What the host there may refuse in its node's stead: something where nothing has been answered for as
    /// long as a node may take to start.
    pub(crate) fn refusable(&self, now: Instant, slot: u32) -> Option<Refusable> {
        let path = &self.table[slot];
        let asked_at = path.asking.map(|asking| asking.asked_at);
        let is_for_long =
            |since: Option<Instant>, patience| since.is_some_and(|since| now - since >= patience);
        if !path.is_met && !self.met.has(&path.nid) {
            // No shard has met a peer there, as far as is remembered.
            return is_for_long(asked_at, REFUSAL_PATIENCE).then_some(Refusable::Waiting);
        }
        let silent_since = path.silence(now).map(|(since, _)| since);
        (is_for_long(asked_at, MET_REFUSAL_PATIENCE) || is_for_long(silent_since, MET_REFUSAL_PATIENCE))
            .then_some(Refusable::Pings)
    }

    /// The path that makes room for the next new one, if one has to.
    pub(crate) fn next_to_go(&self) -> Option<u32> {
        let first = self.idle.first();
        (self.table.is_full() && first != NONE).then_some(first)
    }

    /// Takes a reference.
    #[inline]
    pub(crate) fn refer(&mut self, slot: u32) {
        if self.table[slot].references == 0 {
            self.idle.remove(&mut self.table, slot);
        }
        self.table[slot].references += 1;
    }

    /// Gives a reference back.
    pub(crate) fn release(&mut self, slot: u32) {
        self.table[slot].references -= 1;
        if self.table[slot].references == 0 {
            self.idle.push_back(&mut self.table, slot);
        }
    }

    /// Forgets a path that nothing refers to.
    fn remove(&mut self, slot: u32) {
        assert_eq!(self.table[slot].references, 0, "a path is in use");
        self.idle.remove(&mut self.table, slot);
        self.set_peer(slot, NONE);
        self.table.remove(slot);
    }

    /// Opens a question where none is open; it holds a reference.
    pub(crate) fn ask(&mut self, slot: u32, asking: Asking) {
        self.refer(slot);
        self.table[slot].asking = Some(asking);
        self.asked.set(slot, asking.next_at);
    }

    /// Asks once more, and notes when the next time is.
    pub(crate) fn ask_again(&mut self, slot: u32, asking: Asking) {
        self.table[slot].asking = Some(asking);
        self.asked.set(slot, asking.next_at);
    }

    /// A path whose question is to be asked again.
    pub(crate) fn pop_asked(&mut self, now: Instant) -> Option<u32> {
        self.asked.pop_due(now)
    }

    /// When the next question is asked again.
    pub(crate) fn next_asked(&self) -> Option<Instant> {
        self.asked.first()
    }

    /// Closes the question.
    pub(crate) fn answered(&mut self, slot: u32) {
        if self.table[slot].asking.take().is_some() {
            self.asked.remove(slot);
            self.release(slot);
        }
    }

    /// The paths that lead to a peer.
    pub(crate) fn of_peer(&self, peer: u32) -> impl Iterator<Item = u32> {
        self.of_peers[peer].iter(&self.table).map(|(slot, _)| slot)
    }

    /// The paths that lead to a peer, from the one behind `path` on, and all of them once more: so each has
    /// its turn.
    pub(crate) fn of_peer_after(&self, peer: u32, path: u32) -> impl Iterator<Item = u32> {
        let behind = self.of_peer(peer).skip_while(move |of| *of != path).skip(1);
        behind.chain(self.of_peer(peer))
    }

    /// The first path that leads to a peer, or [`NONE`].
    pub(crate) fn first_of_peer(&self, peer: u32) -> u32 {
        self.of_peers[peer].first()
    }

    /// A path leads to a peer from now on, or to none that is known ([`NONE`]); where it led before.
    pub(crate) fn set_peer(&mut self, slot: u32, peer: u32) -> u32 {
        let former = core::mem::replace(&mut self.table[slot].peer, peer);
        self.table[slot].ended_token = None;
        if peer != NONE {
            self.table[slot].is_met = true;
            self.met.note(&self.table[slot].nid);
        }
        if former != peer {
            self.table[slot].quality = Quality::NEW;
            if former != NONE {
                self.of_peers[former].remove(&mut self.table, slot);
            }
            if peer != NONE {
                self.of_peers[peer].push_back(&mut self.table, slot);
            }
        }
        former
    }

    /// Makes every path of a peer one to an unknown peer.
    pub(crate) fn forget_peer(&mut self, peer: u32) {
        self.end_sessions(peer);
        while self.first_of_peer(peer) != NONE {
            self.set_peer(self.first_of_peer(peer), NONE);
        }
    }

    /// Ends the sessions of a peer.
    pub(crate) fn end_sessions(&mut self, peer: u32) {
        let mut next = self.first_of_peer(peer);
        while let Some(path) = List::<OfPeer>::step(&self.table, &mut next) {
            let session = self.table[path].session.take();
            self.table[path].ended_token = session.map(|it| it.token).or(self.table[path].ended_token);
        }
    }

    /// An NI takes other datagrams from now on: longer ones are tried soon by its narrow paths.
    pub(super) fn end_changed(&mut self, ni: NiId) {
        for slot in 0..self.table.capacity() {
            if let Some(path) = self.table.get_mut(slot).filter(|path| path.ni == ni) {
                path.width.end_changed();
            }
        }
    }

    /// Forgets the paths of an NI, which no message takes any more.
    pub(crate) fn remove_ni(&mut self, ni: NiId) {
        for slot in 0..self.table.capacity() {
            if self.table.get(slot).is_some_and(|path| path.ni == ni) {
                self.answered(slot);
                self.remove(slot);
            }
        }
    }

    /// The address of a path that has a session, and the session's token.
    ///
    /// # Panics
    /// If it has none.
    #[inline]
    pub(crate) fn session(&self, slot: u32) -> (NiId, Nid, u64) {
        let path = &self.table[slot];
        let Some(session) = path.session else { panic!("frames go by a path without a session") };
        (path.ni, path.nid, session.token)
    }

    /// The path to this NID where this token was given, and counts.
    pub(crate) fn with_token(&self, nid: &Nid, token: u64) -> Option<u32> {
        self.to_nid(nid, |path| path.session.is_some_and(|session| session.token == token))
    }

    /// The path to this NID where this token was given, and has ended.
    pub(crate) fn with_ended_token(&self, nid: &Nid, token: u64) -> Option<u32> {
        self.to_nid(nid, |path| path.peer != NONE && path.ended_token == Some(token))
    }
}

/// What a peer gives under one of its addresses to one of ours.
#[derive(Clone, Copy)]
pub(crate) struct Session {
    pub(crate) token: u64,
    /// The one before, which acknowledgements that are under way may have.
    pub(crate) former_token: Option<u64>,
    pub(crate) since: Instant,
    /// The longest datagram that it takes there.
    pub(crate) datagram_max_bytes: u32,
    /// Whether it wants checksums with payloads there.
    pub(crate) checksum: bool,
    /// Whether it takes runs there.
    pub(crate) runs: bool,
}

impl Session {
    /// Whether it is to be renewed where nothing has been answered of late.
    #[inline]
    pub(crate) fn is_aged(&self, now: Instant) -> bool {
        now.0.saturating_sub(self.since.0) > RENEWAL_NS
    }
}

impl Deref for Paths {
    type Target = Table<PeerPath>;

    #[inline]
    fn deref(&self) -> &Table<PeerPath> {
        &self.table
    }
}

impl DerefMut for Paths {
    #[inline]
    fn deref_mut(&mut self) -> &mut Table<PeerPath> {
        &mut self.table
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use lnet_core::lnd::TxId;
    use lnet_wire::{Body, Header, ProcessId, WireHandle};

    use super::*;
    use crate::testing::nid;

    fn to(ni: NiId, next_hop: Nid, peer: u32) -> Transmit {
        let process = ProcessId::lustre(next_hop);
        let body = Body::Ack { md: WireHandle::NONE, match_bits: 0, manipulated_length: 0 };
        let header = Header { destination: process, source: process, payload_length: 0, body };
        Transmit { tx: TxId(0), ni, next_hop, peer: PeerSlot(peer), header, payload: None }
    }

    #[test]
    fn a_slot_that_names_another_peer_misleads_nothing() {
        let mut paths = Paths::new(2, 2, Seed::new(1), Arc::new(MetAddresses::new(2, 1)));
        let (first, second) = (nid(1, 1), nid(1, 2));
        for peer in [0, 9] {
            assert_eq!(paths.of(&to(NiId(0), first, peer)), None);
            let slots = [&first, &second].map(|nid| paths.acquire(NiId(0), nid).unwrap());
            for _ in 0..2 {
                assert_eq!(paths.of(&to(NiId(0), first, peer)), Some(slots[0]));
                assert_eq!(paths.of(&to(NiId(0), second, peer)), Some(slots[1]));
                assert_eq!(paths.of(&to(NiId(1), second, peer)), None);
            }
            slots.into_iter().for_each(|slot| paths.release(slot));
            slots.into_iter().for_each(|slot| paths.remove(slot));
        }
    }

    #[test]
    fn each_path_of_a_peer_has_its_turn_whatever_their_order() {
        let mut paths = Paths::new(4, 2, Seed::new(1), Arc::new(MetAddresses::new(2, 1)));
        let slots: Vec<u32> = (0..4).map(|host| paths.acquire(NiId(0), &nid(1, host)).unwrap()).collect();
        for at in [2, 0, 3, 1] {
            paths.set_peer(slots[at], 1);
        }
        let mut tried = Vec::from([slots[0]]);
        while tried.len() < 4 {
            let next = paths.of_peer_after(1, tried[tried.len() - 1]).next().unwrap();
            assert!(!tried.contains(&next), "{next} again after {tried:?}");
            tried.push(next);
        }
        assert_eq!(paths.set_peer(slots[3], 0), 1);
        assert!(paths.of_peer(1).eq([slots[2], slots[0], slots[1]]) && paths.of_peer(0).eq([slots[3]]));
        paths.forget_peer(1);
        assert!(paths.of_peer(1).next().is_none());
        assert!(slots[..3].iter().all(|slot| paths[*slot].peer == NONE));
        // One that makes room leads nowhere any more.
        slots.iter().for_each(|slot| paths.release(*slot));
        (4..8).for_each(|host| assert!(paths.acquire(NiId(0), &nid(1, host)).is_some()));
        assert!(paths.of_peer(0).next().is_none());
    }
}
