//! Paths: the addresses that this shard sends to, each by one of its NIs, and the sessions that were given there.
//!
//! Invariant: a path stays while messages refer to it or a question of its is open.

use core::ops::{Deref, DerefMut};
use core::time::Duration;

use lnet_wire::Nid;

use super::tokens::RENEWAL_NS;
use crate::hash::{Seed, nid_words};
use crate::list::{Link, List, NONE, linked};
use crate::lnd::{self, NiId};
use crate::table::{Chain, Keyed, Table};
use crate::time::Instant;

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

/// An address that messages are sent to, or answers.
pub(crate) struct Path {
    pub(crate) nid: Nid,
    pub(crate) ni: NiId,
    /// The incarnation that has answered under it, or that messages go to there which went by another one before; or
    /// [`NONE`].
    pub(crate) peer: u32,
    pub(crate) asking: Option<Asking>,
    /// What was given there.
    pub(crate) session: Option<Session>,
    /// Until when it is avoided, since it did not answer.
    pub(crate) silent_until: Instant,
    /// Messages that go there.
    pub(crate) references: u32,
    chain: Link,
    idle: Link,
    asked: Link,
}

impl Path {
    /// As it is told to those that choose.
    pub(crate) const fn as_path(&self) -> lnd::Path {
        lnd::Path { ni: self.ni, peer: self.nid }
    }

    /// Whether it has not answered, of late or the first time that it was asked.
    #[inline]
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        now < self.silent_until || self.asking.is_some_and(|asking| asking.is_repeated)
    }
}

/// Marks paths that nothing refers to.
pub(crate) struct Idle;
/// Marks paths with an open question.
pub(crate) struct Asked;

linked!(Path, Chain, chain);
linked!(Path, Idle, idle);
linked!(Path, Asked, asked);

impl Keyed for Path {
    fn hash(&self, seed: Seed) -> u64 {
        seed.hash(nid_words(&self.nid))
    }
}

/// The addresses that are known.
pub(crate) struct Paths {
    table: Table<Path>,
    idle: List<Idle>,
    asked: List<Asked>,
}

impl Paths {
    pub(crate) fn new(capacity: u32, seed: Seed) -> Self {
        Self { table: Table::new(capacity, seed), idle: List::new(), asked: List::new() }
    }

    /// The path for an address.
    #[inline]
    pub(crate) fn find(&self, ni: NiId, nid: &Nid) -> Option<u32> {
        self.to_nid(nid, |path| path.ni == ni)
    }

    /// A path to this NID, by any NI, of which `is` is true.
    #[inline]
    pub(crate) fn to_nid(&self, nid: &Nid, is: impl Fn(&Path) -> bool) -> Option<u32> {
        self.table.find(|| nid_words(nid), |path| path.nid == *nid && is(path))
    }

    /// Finds or makes the path for an address, and takes a reference on it; `None` if all are in use.
    #[inline]
    pub(crate) fn acquire(&mut self, ni: NiId, nid: &Nid) -> Option<u32> {
        if let Some(slot) = self.find(ni, nid) {
            self.refer(slot);
            return Some(slot);
        }
        if self.table.is_full() {
            let oldest = self.idle.pop_front(&mut self.table)?;
            self.table.remove(oldest);
        }
        self.table.insert(Path {
            nid: *nid,
            ni,
            peer: NONE,
            asking: None,
            session: None,
            silent_until: Instant(0),
            references: 1,
            chain: Link::UNLINKED,
            idle: Link::UNLINKED,
            asked: Link::UNLINKED,
        })
    }

    #[inline]
    fn refer(&mut self, slot: u32) {
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
        self.table.remove(slot);
    }

    /// Opens a question where none is open; it holds a reference.
    pub(crate) fn ask(&mut self, slot: u32, asking: Asking) {
        self.refer(slot);
        self.table[slot].asking = Some(asking);
        self.asked.push_back(&mut self.table, slot);
    }

    /// The path that has had a question open for longest, or [`NONE`].
    pub(crate) const fn first_asked(&self) -> u32 {
        self.asked.first()
    }

    /// Closes the question.
    pub(crate) fn answered(&mut self, slot: u32) {
        if self.table[slot].asking.take().is_some() {
            self.asked.remove(&mut self.table, slot);
            self.release(slot);
        }
    }

    /// The paths that lead to a peer.
    pub(crate) fn of_peer(&self, peer: u32) -> impl Iterator<Item = u32> {
        self.table.used().filter(move |(_, path)| path.peer == peer).map(|(slot, _)| slot)
    }

    /// Makes every path of a peer one to an unknown peer.
    pub(crate) fn forget_peer(&mut self, peer: u32) {
        self.for_each_of(peer, |path| (path.peer, path.session) = (NONE, None));
    }

    /// Ends the sessions of a peer.
    pub(crate) fn end_sessions(&mut self, peer: u32) {
        self.for_each_of(peer, |path| path.session = None);
    }

    fn for_each_of(&mut self, peer: u32, change: impl Fn(&mut Path)) {
        for slot in 0..self.table.capacity() {
            if self.table.get(slot).is_some_and(|path| path.peer == peer) {
                change(&mut self.table[slot]);
            }
        }
    }

    /// Forgets the paths of an interface, which no message takes any more.
    pub(crate) fn remove_interface(&mut self, ni: NiId) {
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

    /// The path where this token was given, and counts.
    pub(crate) fn with_token(&self, token: u64) -> Option<u32> {
        let gave = |path: &Path| path.session.is_some_and(|session| session.token == token);
        (0..self.table.capacity()).find(|slot| self.table.get(*slot).is_some_and(gave))
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
}

impl Session {
    /// Whether it is to be renewed where nothing has been answered of late.
    #[inline]
    pub(crate) fn is_aged(&self, now: Instant) -> bool {
        now.0.saturating_sub(self.since.0) > RENEWAL_NS
    }
}

impl Deref for Paths {
    type Target = Table<Path>;

    #[inline]
    fn deref(&self) -> &Table<Path> {
        &self.table
    }
}

impl DerefMut for Paths {
    #[inline]
    fn deref_mut(&mut self) -> &mut Table<Path> {
        &mut self.table
    }
}
