//! Peer NIs, found by traffic, their credits and their counters.
//!
//! Invariants: traffic makes at most as many as the limits say, whatever the senders; the node's own
//! NIs find room besides, and stay; one that is referred to by a message stays; of the others the one
//! that has been idle longest makes room for a newcomer, those that take their messages soon after all
//! others: so many strangers do not have this node forget who its friends are. A peer without references has
//! all its credits at home and no message waiting.

use lnet_wire::Nid;

use crate::collections::{Chain, Keyed, Link, List, NONE, Seed, Table, linked, nid_words, slot_bytes};
use crate::credit::Credits;
use crate::lnd::NiId;
use crate::message::Queued;
use crate::standing::{Standing, Turn};
use crate::stats::NiCounters;

pub(crate) struct PeerNi {
    pub(crate) nid: Nid,
    pub(crate) credits: Credits<Queued>,
    references: u32,
    /// Responses to it that were promised and have not ended.
    pub(crate) responses: u32,
    /// Bytes of the messages to it that have not ended, headers included.
    pub(crate) queued_bytes: u64,
    pub(crate) counters: NiCounters,
    /// When it was last chosen among several, as a number that grows.
    pub(crate) sequence: u64,
    /// The local NI that a message of it came by which made it known.
    first_ni: Option<NiId>,
    /// Under which snapshot it was last looked at whether its peer is to be found out about.
    pub(crate) looked_at: u64,
    /// Under which snapshot its NID was last told to be found out about.
    pub(crate) wanted_at: u64,
    /// How soon it takes what is sent to it.
    pub(crate) standing: Standing,
    /// Messages to it that an LND was found to have for long.
    pub(crate) stuck_count: u32,
    /// Credits of NIs that messages to it have.
    pub(crate) credit_count: u32,
    /// The first of the messages to it that are its heads at NIs, or [`NONE`].
    pub(crate) heads: u32,
    /// Whether it is this node itself, which is referred to once for that.
    is_own: bool,
    chain: Link,
    idle: Link,
}

/// Marks peers without references, the one that has been so for longest first. The standing of a peer changes
/// only while messages to it are under way.
struct IdlePeers;

linked!(PeerNi, Chain, chain);

linked!(PeerNi, IdlePeers, idle);

impl PeerNi {
    /// The turn of its messages.
    #[inline]
    pub(crate) const fn turn(&self) -> Turn {
        Turn::of(self.standing, self.credit_count)
    }

    fn record(&self) -> PeerRecord {
        let (credits_max, credits_min) = self.credits.bounds();
        PeerRecord {
            nid: self.nid,
            is_own: self.is_own,
            first_ni: self.first_ni,
            credits_max,
            credits: self.credits.available(),
            credits_min,
            queued_bytes: self.queued_bytes,
            reference_count: self.references,
            counters: self.counters,
        }
    }
}

impl Keyed for PeerNi {
    fn hash(&self, seed: Seed) -> u64 {
        seed.hash(nid_words(&self.nid))
    }
}

/// Bytes that a peer NI takes in the table.
pub const PEER_BYTES: usize = slot_bytes::<PeerNi>();

/// Peers that are found again without hashing.
const RECENT: usize = 64;

/// A peer's NI as a shard knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerRecord {
    /// Its NID.
    pub nid: Nid,
    /// Whether it is this node's own.
    pub is_own: bool,
    /// The local NI that a message of it came by, if that made it known here.
    pub first_ni: Option<NiId>,
    /// Messages to it that this shard may have in flight.
    pub credits_max: u32,
    /// Free credits, less the messages that wait for one.
    pub credits: i64,
    /// The least that `credits` was.
    pub credits_min: i64,
    /// Bytes of the messages to it that have not ended, 72 for each header.
    pub queued_bytes: u64,
    /// Messages to it, promised responses, and messages that came from it and wait.
    pub reference_count: u32,
    /// What has been counted.
    pub counters: NiCounters,
}

pub(crate) struct Peers {
    peers: Table<PeerNi>,
    /// Peers that make room first, and those that are [prompt](Standing::Prompt).
    idle: [List<IdlePeers>; 2],
    /// Peer NIs that messages came from, by a few bits of their NIDs.
    recent: [u32; RECENT],
    /// How many traffic makes at most.
    limit: u32,
}

impl Peers {
    /// Room for `limit`, and for as many of this node's own NIs.
    pub(crate) fn new(limit: u32, own_max: u16, seed: Seed) -> Self {
        let peers = Table::new(limit + u32::from(own_max), seed);
        Self { peers, idle: [List::new(), List::new()], recent: [NONE; RECENT], limit }
    }

    /// Finds or makes the peer with this NID and takes a reference; `None` when every slot is busy with
    /// another peer. A new one gets this many credits.
    #[inline]
    pub(crate) fn acquire(&mut self, nid: &Nid, credits: u32) -> Option<u32> {
        if let Some(slot) = self.find(nid) {
            self.refer(slot);
            return Some(slot);
        }
        if self.peers.used_count() >= self.limit && !self.forget_oldest() {
            return None;
        }
        self.make(nid, credits)
    }

    #[inline]
    fn refer(&mut self, slot: u32) {
        if self.peers[slot].references == 0 {
            self.idle[idle_list(&self.peers[slot])].remove(&mut self.peers, slot);
        }
        self.peers[slot].references += 1;
    }

    /// Makes room by forgetting the peer that has been idle longest, no friend if there is another one; says
    /// whether there is one.
    fn forget_oldest(&mut self) -> bool {
        let mut oldest = self.idle.iter_mut().filter_map(|idle| idle.pop_front(&mut self.peers));
        let Some(oldest) = oldest.next() else { return false };
        let peer = self.peers.remove(oldest);
        let is_idle = peer.credits.is_idle() && peer.credit_count == 0;
        assert!(is_idle, "an idle peer has credits under way");
        true
    }

    fn make(&mut self, nid: &Nid, credits: u32) -> Option<u32> {
        self.peers.insert(PeerNi {
            nid: *nid,
            credits: Credits::new(credits),
            references: 1,
            responses: 0,
            queued_bytes: 0,
            counters: NiCounters::default(),
            sequence: 0,
            first_ni: None,
            looked_at: 0,
            wanted_at: 0,
            standing: Standing::Unknown,
            stuck_count: 0,
            credit_count: 0,
            heads: NONE,
            is_own: false,
            chain: Link::UNLINKED,
            idle: Link::UNLINKED,
        })
    }

    /// Notes that a NID is this node's own: it stays, however many peers are busy.
    pub(crate) fn set_own(&mut self, nid: &Nid, credits: u32) {
        let slot = match self.find(nid) {
            Some(slot) if self.peers[slot].is_own => return,
            Some(slot) => {
                self.refer(slot);
                Some(slot)
            }
            // An NI that was own and is busy still may have its room: this one is an ordinary peer then.
            None if self.peers.is_full() && !self.forget_oldest() => None,
            None => self.make(nid, credits),
        };
        if let Some(slot) = slot {
            self.peers[slot].is_own = true;
        }
    }

    /// Notes that a NID is this node's own no more. What was counted of it is not that of a peer.
    pub(crate) fn clear_own(&mut self, nid: &Nid) {
        if let Some(slot) = self.find(nid).filter(|&slot| self.peers[slot].is_own) {
            self.peers[slot].is_own = false;
            self.peers[slot].counters = NiCounters::default();
            self.release(slot);
        }
    }

    /// The peer that a message came from, made if it is not known, and there is room or one that is idle. A
    /// new one gets this many credits.
    #[inline]
    pub(crate) fn sender(&mut self, nid: &Nid, ni: NiId, credits: u32) -> Option<&mut PeerNi> {
        let bytes = nid.to_bytes();
        // The last bytes of an IPv4 and of an IPv6 address.
        let recent = usize::from(bytes[7] ^ bytes[19]) % RECENT;
        let slot = self.recent[recent];
        if self.peers.get(slot).is_none_or(|peer| peer.nid != *nid) {
            let is_new = self.find(nid).is_none();
            let slot = self.acquire(nid, credits)?;
            if is_new {
                self.peers[slot].first_ni = Some(ni);
            }
            self.recent[recent] = slot;
            self.release(slot);
        }
        Some(&mut self.peers[self.recent[recent]])
    }

    /// The slot of the peer with this NID, if it is known.
    pub(crate) fn slot(&self, nid: &Nid) -> Option<u32> {
        self.find(nid)
    }

    /// The peer with this NID, if it is known.
    pub(crate) fn find_mut(&mut self, nid: &Nid) -> Option<&mut PeerNi> {
        let slot = self.find(nid)?;
        Some(&mut self.peers[slot])
    }

    /// Sets the counters of all to 0.
    pub(crate) fn reset_counters(&mut self) {
        for slot in 0..self.peers.capacity() {
            if self.peers.get(slot).is_some() {
                self.peers[slot].counters = NiCounters::default();
            }
        }
    }

    /// The peer NIs that are known, in no order that means anything.
    pub(crate) fn records(&self) -> impl Iterator<Item = PeerRecord> {
        self.peers.used().map(|(_, peer)| peer.record())
    }

    /// The peer NI with this NID, if it is known.
    pub(crate) fn record(&self, nid: &Nid) -> Option<PeerRecord> {
        self.find(nid).map(|slot| self.peers[slot].record())
    }

    /// The NID of a slot that is in use, and whether it is this node's own.
    pub(crate) fn nid(&self, slot: u32) -> Option<(Nid, bool)> {
        self.peers.get(slot).map(|peer| (peer.nid, peer.is_own))
    }

    /// Slots that there may be.
    pub(crate) fn capacity(&self) -> u32 {
        self.peers.capacity()
    }

    /// Gives a reference back.
    pub(crate) fn release(&mut self, slot: u32) {
        self.peers[slot].references -= 1;
        if self.peers[slot].references == 0 {
            self.idle[idle_list(&self.peers[slot])].push_back(&mut self.peers, slot);
        }
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut PeerNi {
        &mut self.peers[slot]
    }

    /// Credits of the peer with this NID less the messages that wait for one, if it is known.
    pub(crate) fn available(&self, nid: &Nid) -> Option<i64> {
        let slot = self.find(nid)?;
        Some(self.peers[slot].credits.available())
    }

    /// The local NI that a message of the peer with this NID came by, if that made it known.
    pub(crate) fn first_ni(&self, nid: &Nid) -> Option<NiId> {
        self.peers[self.find(nid)?].first_ni
    }

    /// Another local NI has a slot: no peer was heard by that one yet.
    pub(crate) fn forget_first_ni(&mut self, ni: NiId) {
        for slot in 0..self.peers.capacity() {
            if self.peers.get(slot).is_some_and(|peer| peer.first_ni == Some(ni)) {
                self.peers[slot].first_ni = None;
            }
        }
    }

    /// When the peer with this NID was last chosen among several, if it is known.
    pub(crate) fn sequence(&self, nid: &Nid) -> Option<u64> {
        Some(self.peers[self.find(nid)?].sequence)
    }

    /// Its credits as [`Peers::available`] tells them, and when it was last chosen, if it is known.
    pub(crate) fn credits_and_sequence(&self, nid: &Nid) -> Option<(i64, u64)> {
        let (_, credits, sequence) = self.load(nid)?;
        Some((credits, sequence))
    }

    /// The bytes that wait for it, its credits as [`Peers::available`] tells them, and when it was last
    /// chosen, if it is known.
    pub(crate) fn load(&self, nid: &Nid) -> Option<(u64, i64, u64)> {
        let peer = &self.peers[self.find(nid)?];
        Some((peer.queued_bytes, peer.credits.available(), peer.sequence))
    }

    pub(crate) fn count(&self) -> u32 {
        self.peers.used_count()
    }

    #[inline]
    fn find(&self, nid: &Nid) -> Option<u32> {
        self.peers.find(|| nid_words(nid), |peer| peer.nid == *nid)
    }
}

/// The list of idle peers that is that of a peer.
fn idle_list(peer: &PeerNi) -> usize {
    usize::from(peer.standing == Standing::Prompt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::nid;

    #[test]
    fn the_longest_idle_peer_makes_room() {
        let mut peers = Peers::new(2, 0, Seed::new(3));
        let first = peers.acquire(&nid(1, 1), 8).unwrap();
        let second = peers.acquire(&nid(1, 2), 8).unwrap();
        assert_eq!(peers.acquire(&nid(1, 3), 8), None, "both are busy");
        assert_eq!(
            peers.acquire(&nid(1, 1), 8),
            Some(first),
            "a known one is found though the table is full"
        );
        peers.release(second);
        peers.release(first);
        peers.release(first);
        assert_eq!(peers.acquire(&nid(1, 3), 8), Some(second), "it has been idle for longer");
        assert_eq!(peers.available(&nid(1, 2)), None);
        assert_eq!(peers.available(&nid(1, 1)), Some(8));
        assert_eq!(peers.count(), 2);
    }

    #[test]
    fn friends_make_room_last() {
        let mut peers = Peers::new(3, 0, Seed::new(3));
        for (host, standing) in [(1, Standing::Prompt), (2, Standing::Prompt), (3, Standing::Silent)] {
            let slot = peers.acquire(&nid(1, host), 8).unwrap();
            peers.get_mut(slot).standing = standing;
            peers.release(slot);
        }
        for host in 4..20 {
            let slot = peers.acquire(&nid(1, host), 8).unwrap();
            assert_eq!(peers.count(), 3);
            assert_eq!([1, 2].map(|friend| peers.available(&nid(1, friend))), [Some(8); 2], "host {host}");
            peers.release(slot);
        }
        let busy = peers.acquire(&nid(1, 20), 8).unwrap();
        peers.acquire(&nid(1, 21), 8).unwrap();
        assert_eq!([1, 2].map(|friend| peers.available(&nid(1, friend))), [None, Some(8)]);
        // The slot of the friend is still its own.
        let friend = peers.acquire(&nid(1, 2), 8).unwrap();
        assert_eq!(peers.get_mut(friend).standing, Standing::Prompt);
        assert_ne!(friend, busy);
    }

    #[test]
    fn a_used_idle_peer_goes_to_the_back() {
        let mut peers = Peers::new(2, 0, Seed::new(3));
        for host in [1, 2, 1] {
            let slot = peers.acquire(&nid(1, host), 8).unwrap();
            peers.release(slot);
        }
        peers.acquire(&nid(1, 3), 8).unwrap();
        assert_eq!(peers.available(&nid(1, 2)), None);
        assert_eq!(peers.available(&nid(1, 1)), Some(8));
    }
}
