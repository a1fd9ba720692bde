//! Peers: the addresses that this shard sends to, and the incarnations behind them.
//!
//! Invariants: a contact stays while messages refer to it or a question of its is open; a peer stays while it
//! has messages or is received from. Forgetting a peer loses nothing: its next ids and frame
//! numbers begin above all that were used.

use alloc::boxed::Box;
use core::cell::Cell;
use core::time::Duration;

use lnet_wire::Nid;
use lnet_wire::steer::{self, PORTALS, PolicyWord, SHARDS_MAX, SteerKey};

use super::message::{Outbound, Queued, Unfinished};
use super::session::RENEWAL_NS;
use crate::hash::{Seed, nid_words};
use crate::list::{Link, List, NONE, Node};
use crate::lnd::NiId;
use crate::slab::Slab;
use crate::time::Instant;

/// Where a peer is: by which interface, under which NID.
pub(super) type Address = (NiId, Nid);

/// An open question for a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    /// What the answer must repeat.
    pub(super) nonce: u64,
    /// When the first HELLO was sent.
    pub(super) asked_at: Instant,
    pub(super) next_at: Instant,
    pub(super) interval_ns: u64,
    pub(super) is_repeated: bool,
    /// The incarnation on whose behalf it was asked last.
    pub(super) asker: Option<u64>,
}

/// An address that messages are sent to, or answers.
pub(super) struct Contact {
    pub(super) nid: Nid,
    pub(super) ni: NiId,
    /// The incarnation that has answered under it, or that messages go to there which went by another one before; or
    /// [`NONE`].
    pub(super) peer: u32,
    pub(super) asking: Option<Asking>,
    /// What was given there.
    pub(super) session: Option<Session>,
    /// Messages that wait for the answer.
    pub(super) waiting: List<Queued>,
    /// Messages that go there.
    pub(super) references: u32,
    bucket: u32,
    chain: Link,
    idle: Link,
    asked: Link,
}

/// Marks contacts whose NIDs have the same hash, or peers whose incarnations have.
pub(super) struct Chain;
/// Marks contacts that nothing refers to.
pub(super) struct Idle;
/// Marks contacts with an open question.
pub(super) struct Asked;

macro_rules! node {
    ($value:ty, $list:ty, $field:ident) => {
        impl Node<$list> for $value {
            fn link(&self) -> &Link {
                &self.$field
            }
            fn link_mut(&mut self) -> &mut Link {
                &mut self.$field
            }
        }
    };
}
pub(super) use node;

node!(Contact, Chain, chain);
node!(Contact, Idle, idle);
node!(Contact, Asked, asked);
node!(Peer, Chain, chain);

/// The addresses that are known.
pub(super) struct Contacts {
    pub(super) slab: Slab<Contact>,
    buckets: Box<[List<Chain>]>,
    idle: List<Idle>,
    pub(super) asked: List<Asked>,
    /// The one that was acquired last.
    last: u32,
    seed: Seed,
}

impl Contacts {
    pub(super) fn new(capacity: u32, seed: Seed) -> Self {
        Self {
            slab: Slab::new(capacity),
            buckets: (0..capacity.next_power_of_two()).map(|_| List::new()).collect(),
            idle: List::new(),
            asked: List::new(),
            last: NONE,
            seed,
        }
    }

    #[inline]
    fn bucket(&self, nid: &Nid) -> u32 {
        (self.seed.hash(nid_words(nid)) & (self.buckets.len() as u64 - 1)) as u32
    }

    #[inline]
    fn find_in(&self, bucket: u32, ni: NiId, nid: &Nid) -> Option<u32> {
        let mut slot = self.buckets[bucket as usize].first();
        while slot != NONE && (self.slab[slot].nid != *nid || self.slab[slot].ni != ni) {
            slot = List::<Chain>::next(&self.slab, slot);
        }
        (slot != NONE).then_some(slot)
    }

    /// The contact for an address.
    pub(super) fn find(&self, ni: NiId, nid: &Nid) -> Option<u32> {
        self.find_in(self.bucket(nid), ni, nid)
    }

    /// The contact for an address, if it was acquired last.
    #[inline]
    pub(super) fn last(&self, ni: NiId, nid: &Nid) -> Option<&Contact> {
        self.slab.get(self.last).filter(|contact| contact.nid == *nid && contact.ni == ni)
    }

    /// Finds or makes the contact for an address, and takes a reference on it; `None` if all are in use.
    #[inline]
    pub(super) fn acquire(&mut self, ni: NiId, nid: &Nid) -> Option<u32> {
        if self.last(ni, nid).is_some() {
            self.refer(self.last);
            return Some(self.last);
        }
        self.last = self.find_or_make(ni, nid)?;
        Some(self.last)
    }

    fn find_or_make(&mut self, ni: NiId, nid: &Nid) -> Option<u32> {
        let bucket = self.bucket(nid);
        if let Some(slot) = self.find_in(bucket, ni, nid) {
            self.refer(slot);
            return Some(slot);
        }
        if self.slab.is_full() {
            let oldest = self.idle.pop_front(&mut self.slab)?;
            let bucket = self.slab[oldest].bucket;
            self.buckets[bucket as usize].remove(&mut self.slab, oldest);
            self.slab.vacate(oldest);
        }
        let contact = Contact {
            nid: *nid,
            ni,
            peer: NONE,
            asking: None,
            session: None,
            waiting: List::new(),
            references: 1,
            bucket,
            chain: Link::UNLINKED,
            idle: Link::UNLINKED,
            asked: Link::UNLINKED,
        };
        let slot = self.slab.insert(contact).ok()?;
        self.buckets[bucket as usize].push_front(&mut self.slab, slot);
        Some(slot)
    }

    #[inline]
    fn refer(&mut self, slot: u32) {
        if self.slab[slot].references == 0 {
            self.idle.remove(&mut self.slab, slot);
        }
        self.slab[slot].references += 1;
    }

    /// Gives a reference back.
    pub(super) fn release(&mut self, slot: u32) {
        self.slab[slot].references -= 1;
        if self.slab[slot].references == 0 {
            self.idle.push_back(&mut self.slab, slot);
        }
    }

    /// Forgets a contact that nothing refers to.
    pub(super) fn remove(&mut self, slot: u32) {
        assert_eq!(self.slab[slot].references, 0, "a contact is in use");
        self.idle.remove(&mut self.slab, slot);
        let bucket = self.slab[slot].bucket;
        self.buckets[bucket as usize].remove(&mut self.slab, slot);
        self.slab.vacate(slot);
    }

    /// An address that leads to a peer by another interface than this one.
    pub(super) fn way_to(&self, peer: u32, except: NiId) -> Option<Address> {
        let mut ways = self.of_peer(peer).map(|slot| &self.slab[slot]).filter(|way| way.ni != except);
        ways.next().map(|contact| (contact.ni, contact.nid))
    }

    /// Opens a question where none is open; it holds a reference.
    pub(super) fn ask(&mut self, slot: u32, asking: Asking) {
        self.refer(slot);
        self.slab[slot].asking = Some(asking);
        self.asked.push_back(&mut self.slab, slot);
    }

    /// Closes the question.
    pub(super) fn answered(&mut self, slot: u32) {
        if self.slab[slot].asking.take().is_some() {
            self.asked.remove(&mut self.slab, slot);
            self.release(slot);
        }
    }

    /// The contacts that lead to a peer.
    pub(super) fn of_peer(&self, peer: u32) -> impl Iterator<Item = u32> {
        (0..self.slab.capacity())
            .filter(move |slot| self.slab.get(*slot).is_some_and(|contact| contact.peer == peer))
    }

    /// Makes every contact of a peer one of nobody.
    pub(super) fn forget_peer(&mut self, peer: u32) {
        for slot in 0..self.slab.capacity() {
            if self.slab.get(slot).is_some_and(|contact| contact.peer == peer) {
                (self.slab[slot].peer, self.slab[slot].session) = (NONE, None);
            }
        }
    }

    /// Ends the sessions of a peer.
    pub(super) fn end_sessions(&mut self, peer: u32) {
        for slot in 0..self.slab.capacity() {
            if self.slab.get(slot).is_some_and(|contact| contact.peer == peer) {
                self.slab[slot].session = None;
            }
        }
    }

    /// The address of a contact that has a session, and the session's token.
    ///
    /// # Panics
    /// If it has none.
    #[inline]
    pub(super) fn session(&self, slot: u32) -> (NiId, Nid, u64) {
        let contact = &self.slab[slot];
        let Some(session) = contact.session else { panic!("frames go by a contact without a session") };
        (contact.ni, contact.nid, session.token)
    }

    /// Whether a contact has not answered the first time that it was asked.
    pub(super) fn is_silent(&self, slot: u32) -> bool {
        self.slab[slot].asking.is_some_and(|asking| asking.is_repeated)
    }

    /// The contact where this token was given, and counts.
    pub(super) fn with_token(&self, token: u64) -> Option<u32> {
        let gave = |contact: &Contact| contact.session.is_some_and(|session| session.token == token);
        (0..self.slab.capacity()).find(|slot| self.slab.get(*slot).is_some_and(gave))
    }
}

/// What a peer gives under one of its addresses to one of ours.
#[derive(Clone, Copy)]
pub(super) struct Session {
    pub(super) token: u64,
    /// The one before, which acknowledgements that are under way may have.
    pub(super) former_token: Option<u64>,
    pub(super) since: Instant,
    /// The longest datagram that it takes there.
    pub(super) datagram_max_bytes: u32,
}

/// Where a peer's frames belong: what it has told of its shards.
#[derive(PartialEq, Eq)]
pub(super) struct Steering {
    pub(super) shards: u32,
    pub(super) policies: [PolicyWord; PORTALS],
}

impl Steering {
    /// The shard that a message goes to.
    #[inline]
    pub(super) fn shard_of(&self, key: &SteerKey) -> u8 {
        steer::shard_of(key, self.policies[usize::from(key.portal)], self.shards) as u8
    }
}

impl Session {
    /// Whether it is to be renewed where nothing has been answered of late.
    #[inline]
    pub(super) fn is_aged(&self, now: Instant) -> bool {
        now.0.saturating_sub(self.since.0) > RENEWAL_NS
    }
}

/// One life of a peer node.
pub(super) struct Peer {
    pub(super) incarnation: u64,
    /// What it told with its sessions; nothing while it was only received from.
    pub(super) steering: Option<Steering>,
    pub(super) next_id: u64,
    /// Messages with an id that are neither finished nor parked, in the order of their ids.
    pub(super) unfinished: List<Unfinished>,
    /// Messages that it keeps the headers of.
    pub(super) parked: List<Queued>,
    /// By its shard: what is sent there, or [`NONE`].
    pub(super) flows: [u32; SHARDS_MAX as usize],
    /// By its shard: what comes from there, or [`NONE`].
    pub(super) inflows: [u32; SHARDS_MAX as usize],
    /// Where it was heard from last, and when.
    pub(super) address: Address,
    /// Where it was heard from before by another interface.
    pub(super) other_address: Option<Address>,
    pub(super) heard_at: Instant,
    /// When its parked messages are to be asked for.
    pub(super) ping_at: Instant,
    /// What it is to be told about messages, and has not acknowledged.
    pub(super) notice_count: u32,
    /// A round trip to it, if one was measured.
    pub(super) rtt: Option<Duration>,
    bucket: u32,
    chain: Link,
}

impl Peer {
    /// Something came from there.
    #[inline]
    pub(super) fn heard(&mut self, now: Instant, address: Address) {
        if self.address.0 != address.0 {
            self.other_address = Some(self.address);
        }
        (self.address, self.heard_at) = (address, now);
    }

    /// Whether it may be forgotten.
    pub(super) fn is_idle(&self) -> bool {
        self.unfinished.first() == NONE
            && self.parked.first() == NONE
            && self.inflows.iter().all(|slot| *slot == NONE)
    }

    /// The oldest id that is not finished.
    #[inline]
    pub(super) fn oldest_id(&self, messages: &Slab<Outbound>) -> u64 {
        messages.get(self.unfinished.first()).map_or(self.next_id, |message| message.id)
    }
}

/// The incarnations that are known.
pub(super) struct Peers {
    pub(super) slab: Slab<Peer>,
    /// The one that was found last.
    last: Cell<u32>,
    buckets: Box<[List<Chain>]>,
    seed: Seed,
}

impl Peers {
    pub(super) fn new(capacity: u32, seed: Seed) -> Self {
        Self {
            slab: Slab::new(capacity),
            last: Cell::new(NONE),
            buckets: (0..capacity.next_power_of_two()).map(|_| List::new()).collect(),
            seed,
        }
    }

    #[inline]
    pub(super) fn find(&self, incarnation: u64) -> Option<u32> {
        let last = self.last.get();
        if self.slab.get(last).is_some_and(|peer| peer.incarnation == incarnation) {
            return Some(last);
        }
        let mut slot = self.buckets[self.bucket(incarnation) as usize].first();
        while slot != NONE && self.slab[slot].incarnation != incarnation {
            slot = List::<Chain>::next(&self.slab, slot);
        }
        self.last.set(slot);
        (slot != NONE).then_some(slot)
    }

    /// Makes a peer; there is room for it.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        incarnation: u64,
        next_id: u64,
        address: Address,
    ) -> Option<u32> {
        let bucket = self.bucket(incarnation);
        let peer = Peer {
            incarnation,
            steering: None,
            next_id,
            unfinished: List::new(),
            parked: List::new(),
            flows: [NONE; SHARDS_MAX as usize],
            inflows: [NONE; SHARDS_MAX as usize],
            address,
            other_address: None,
            heard_at: now,
            ping_at: now,
            notice_count: 0,
            rtt: None,
            bucket,
            chain: Link::UNLINKED,
        };
        let slot = self.slab.insert(peer).ok()?;
        self.buckets[bucket as usize].push_front(&mut self.slab, slot);
        Some(slot)
    }

    pub(super) fn remove(&mut self, slot: u32) -> Peer {
        let bucket = self.slab[slot].bucket;
        self.buckets[bucket as usize].remove(&mut self.slab, slot);
        self.slab.remove(slot)
    }

    /// The peer that has been silent for longest among those that may be forgotten.
    pub(super) fn oldest_idle(&self) -> Option<u32> {
        let idle = (0..self.slab.capacity()).filter(|slot| self.slab.get(*slot).is_some_and(Peer::is_idle));
        idle.min_by_key(|slot| self.slab[*slot].heard_at)
    }

    #[inline]
    fn bucket(&self, incarnation: u64) -> u32 {
        (self.seed.hash([incarnation]) & (self.buckets.len() as u64 - 1)) as u32
    }
}
