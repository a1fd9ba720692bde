//! What is saved of sessions whose path, or peer, had to make room: enough to go on with them without a
//! question.
//!
//! Invariants: no session is saved that is to be renewed, nor one of an incarnation that is known to have
//! ended. What is saved gives no rights: its token is shown to the peer that gave it, which takes or refuses
//! it like any other.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use lnet_core::collections::{List, Seed, nid_words};
use lnet_core::lnd::NiId;
use lnet_core::time::Instant;
use lnet_wire::Nid;

use super::Sessions;
use super::paths::{OfPeer, PeerPath, Session};
use super::peers::{PeerIncarnation, PeerSteering};
use crate::contract::Address;

/// Sessions that are saved for each peer that is, as many as certificates.
const SAVED_PER_PEER: usize = 4;
/// Words of a session: the digest of its path, the incarnation, the token, the time, and the longest
/// datagram, fourfold, plus 2 if runs are taken and 1 if checksums are wanted, with the number of the
/// steering. They are plain numbers, so that memory is touched as it is used.
const WORDS: usize = 5;
/// Bytes that sessions take for each peer.
pub(crate) const SAVED_BYTES: usize = SAVED_PER_PEER * size_of::<[u64; WORDS]>();
/// Slots of a group: a session is saved in any slot of its group.
const GROUP_SLOTS: usize = 8;
/// Different steerings that are saved: as a rule the nodes of a cluster have the same.
const STEERINGS_MAX: usize = 16;

/// A session that was saved.
struct Resumed {
    incarnation: u64,
    session: Session,
    /// The number of its steering.
    steering: u32,
}

/// The sessions that are saved.
pub(super) struct Saved {
    seed: Seed,
    slots: Box<[[u64; WORDS]]>,
    /// The last ones, by their numbers.
    steerings: Vec<PeerSteering>,
    /// How many steerings there have been.
    steering_count: u32,
}

impl Saved {
    /// Room for so many peers.
    pub(super) fn new(peers: u32, seed: Seed) -> Self {
        let count = (SAVED_PER_PEER * peers as usize).max(GROUP_SLOTS);
        Self {
            seed,
            slots: vec![[0; WORDS]; count - count % GROUP_SLOTS].into(),
            steerings: Vec::with_capacity(STEERINGS_MAX),
            steering_count: 0,
        }
    }

    /// Names the path between two addresses; zero is what an empty slot holds.
    fn digest(&self, own: &Nid, peer: &Nid) -> u64 {
        let ([a, b, c], [d, e, f]) = (nid_words(own), nid_words(peer));
        self.seed.hash([a, b, c, d, e, f]) | 1
    }

    /// The slots that a session may be in.
    fn slots(&mut self, digest: u64) -> &mut [[u64; WORDS]] {
        let group = (digest >> 1) as usize % (self.slots.len() / GROUP_SLOTS);
        &mut self.slots[group * GROUP_SLOTS..][..GROUP_SLOTS]
    }

    /// Saves a session, over the oldest one where there is no other.
    fn save(&mut self, digest: u64, incarnation: u64, session: &Session, steering: &PeerSteering) {
        // None is as long as what would not fit.
        let options = u32::from(session.runs) << 1 | u32::from(session.checksum);
        let datagram = session.datagram_max_bytes.min(u32::MAX >> 2) << 2 | options;
        let last = u64::from(datagram) << 32 | u64::from(self.number_of(steering));
        let slots = self.slots(digest);
        let own = slots.iter().position(|slot| slot[0] == digest);
        let oldest = || (0..GROUP_SLOTS).min_by_key(|at| slots[*at][3]).unwrap_or(0);
        slots[own.unwrap_or_else(oldest)] = [digest, incarnation, session.token, session.since.0, last];
    }

    /// Takes a session out.
    fn take(&mut self, digest: u64) -> Option<Resumed> {
        let slot = self.slots(digest).iter_mut().find(|slot| slot[0] == digest)?;
        let [_, incarnation, token, since, last] = core::mem::take(slot);
        let session = Session {
            token,
            former_token: None,
            since: Instant(since),
            datagram_max_bytes: (last >> 34) as u32,
            checksum: last >> 32 & 1 != 0,
            runs: last >> 33 & 1 != 0,
        };
        Some(Resumed { incarnation, session, steering: last as u32 })
    }

    /// Forgets the session of a path, unless this incarnation has given it.
    fn forget(&mut self, digest: u64, but_of: Option<u64>) {
        let mut slots = self.slots(digest).iter_mut();
        if let Some(slot) = slots.find(|slot| slot[0] == digest && Some(slot[1]) != but_of) {
            *slot = [0; WORDS];
        }
    }

    /// The number of a steering, which is saved from then on; the oldest one makes room.
    fn number_of(&mut self, steering: &PeerSteering) -> u32 {
        let first = self.steering_count - self.steerings.len() as u32;
        let known = |number: &u32| self.steerings[*number as usize % STEERINGS_MAX] == *steering;
        if let Some(number) = (first..self.steering_count).find(known) {
            return number;
        }
        let number = self.steering_count;
        // Numbers that begin anew could name other steerings: the last one stays.
        self.steering_count = number.saturating_add(1);
        match self.steerings.get_mut(number as usize % STEERINGS_MAX) {
            Some(slot) => *slot = steering.clone(),
            None => self.steerings.push(steering.clone()),
        }
        number
    }

    /// The steering with a number, if it is saved.
    fn steering(&self, number: u32) -> Option<&PeerSteering> {
        let age = self.steering_count.checked_sub(number)?;
        let is_saved = age != 0 && age as usize <= self.steerings.len();
        is_saved.then(|| &self.steerings[number as usize % STEERINGS_MAX])
    }
}

/// A session to go on with by a path.
pub(crate) struct Resumable {
    pub(crate) incarnation: u64,
    session: Session,
    steering: PeerSteering,
}

impl Sessions {
    /// Finds or makes the path for an address, and takes a reference on it; `None` if all are in use.
    #[inline]
    pub(crate) fn acquire(&mut self, ni: NiId, nid: &Nid) -> Option<u32> {
        if let Some(path) = self.paths.acquire_known(ni, nid) {
            return Some(path);
        }
        if let Some(path) = self.paths.next_to_go() {
            self.save(path);
        }
        self.paths.acquire(ni, nid)
    }

    /// Saves the session of a path that makes room.
    fn save(&mut self, path: u32) {
        let &PeerPath { ni, nid, peer, session, .. } = &self.paths[path];
        let Some(session) = session.filter(|session| !session.is_aged(self.local.now)) else { return };
        let Some(digest) = self.digest_of(&(ni, nid)) else { return };
        let Some(peer) = self.peers.get(peer) else { return };
        if let Some(steering) = &peer.steering {
            self.saved.save(digest, peer.incarnation, &session, steering);
        }
    }

    /// Saves the sessions of a peer that makes room.
    pub(crate) fn save_all(&mut self, peer: u32) {
        let mut next = self.paths.first_of_peer(peer);
        while let Some(path) = List::<OfPeer>::step(&self.paths, &mut next) {
            self.save(path);
        }
    }

    /// A session that was saved of a path, if it is still good.
    pub(crate) fn resumable(&mut self, path: u32) -> Option<Resumable> {
        let PeerPath { ni, nid, .. } = self.paths[path];
        let digest = self.digest_of(&(ni, nid))?;
        let Resumed { incarnation, session, steering } = self.saved.take(digest)?;
        if session.is_aged(self.local.now) || self.is_over(incarnation) {
            return None;
        }
        let steering = self.saved.steering(steering)?.clone();
        // What the peer has told since holds.
        let known = PeerIncarnation::find(&self.peers, incarnation)
            .and_then(|peer| self.peers[peer].steering.as_ref());
        known.is_none_or(|known| *known == steering).then_some(Resumable { incarnation, session, steering })
    }

    /// Goes on with a session.
    pub(crate) fn resume(&mut self, (path, peer): (u32, u32), resumable: Resumable) {
        self.paths.set_peer(path, peer);
        self.peers[peer].steering = Some(resumable.steering);
        self.paths[path].session = Some(resumable.session);
    }

    /// Forgets what was saved of a session at an address, unless this incarnation has given it.
    pub(super) fn forget_saved(&mut self, address: &Address, but_of: Option<u64>) {
        if let Some(digest) = self.digest_of(address) {
            self.saved.forget(digest, but_of);
        }
    }

    /// The digest of the path to an address, where the NI is there.
    fn digest_of(&self, (ni, nid): &Address) -> Option<u64> {
        Some(self.saved.digest(self.nid_of(*ni)?, nid))
    }
}
