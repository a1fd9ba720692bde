//! How much of everything a shard may hold. All of it is allocated by [`Shard::new`], nothing later.
//!
//! [`Shard::new`]: crate::shard::Shard::new

use crate::handle::SLOT_BITS;

/// Slots of a table by which it is shared: of so many one is few, and a quarter of so many is for these few.
pub(crate) const SHARED_SLOTS: u32 = 64;

/// Whether a peer that has so many slots of a table may have one more: no more than are left, so that a peer
/// alone has half. In tables that are not small the last quarter is for peers that have few, one in 64.
pub(crate) const fn has_share(has: u32, left: u32, most: u32) -> bool {
    let few = most / SHARED_SLOTS;
    let reserve = few * (SHARED_SLOTS / 4);
    left != 0 && (has < few || left > reserve && has < left)
}

/// Number of slots of each kind in one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Match entries, over all portals.
    pub match_entries: u32,
    /// Memory descriptors. As many GETs for parts of some may be under way; those that nothing answers count
    /// for a transaction's time, where others want to start.
    pub memory_descs: u32,
    /// Event queues: by default 1024, which cost nothing before they are made.
    pub event_queues: u32,
    /// Event slots, over all event queues.
    pub events: u32,
    /// Event slots that a memory descriptor without a threshold reserves. One of them is kept for its UNLINK
    /// event, so at least 2. While the others are in use (by events that are not polled, and of what the
    /// descriptor sends, by what is under way), it borrows spare ones; where it may have no more of these,
    /// its requests are refused, and messages for it wait. By default 128: as many events as come of the
    /// frames of two turns, or of 64 PUTs with ACK.
    pub unlimited_events: u32,
    /// Event slots besides those of the event queues, for descriptors without a threshold whose own are in
    /// use. None may have more of them than are left then, and a quarter is for those that have few: one in
    /// 64. By default 4096, so that one alone may have some 1,000 PUTs with ACK under way.
    pub spare_events: u32,
    /// PUTs and GETs of this shard that have started and that their LND has not finished with. One in 64 is
    /// for pings and pushes: what waits for its peer to be discovered cannot take the room of these.
    pub requests: u32,
    /// ACKs and REPLYs that are promised, queued or with their LND. Apart from `requests`, so that peers
    /// cannot take the room of this node's own messages. No peer is promised more than are free then, and a
    /// quarter is for peers that have few: one in 64. Where half are taken, those that have waited longest
    /// for a credit, and for a second, make room.
    pub responses: u32,
    /// Messages of other nodes that this one forwards at once, and router buffers at most, in all pools.
    /// Apart again; without any a node is no router. Memory for one is touched when it is first used.
    pub forwards: u32,
    /// Messages arriving at once: each [`RxId`](crate::lnd::RxId) is below this. Memory for one is touched
    /// when it is first used.
    pub incoming: u32,
    /// Messages that arrived here and wait: for an entry of a lazy portal, for a descriptor, for a sibling
    /// shard, for a delay rule. What would be one more is dropped. No peer has more of them than may still
    /// come, and a quarter is for peers that have few: one in 64. The same in all shards
    /// of a node, since from it follows how many a shard holds for its siblings: about as many again, over
    /// all of them. Of those of one sibling half may wait, of which peers have their shares likewise.
    pub delayed: u32,
    /// Peers that are remembered: their NIs, incarnations, shards and paths, of each so many. Those
    /// stay that a message is for, or has come from and waits, or that something has come from of late.
    /// Memory is touched as they come: [`Limits::peers_in`] says how many a number of bytes holds.
    pub peers: u32,
    /// Local NIs.
    pub nis: u16,
}

impl Limits {
    /// What [`Limits::default`] returns.
    pub const DEFAULT: Self = Self {
        match_entries: 1 << 14,
        memory_descs: 1 << 15,
        event_queues: 1 << 10,
        events: 1 << 15,
        unlimited_events: 1 << 7,
        spare_events: 1 << 12,
        requests: 1 << 12,
        responses: 1 << 12,
        forwards: 1 << 15,
        incoming: 1 << 12,
        delayed: 1 << 10,
        peers: 1 << 14,
        nis: 16,
    };

    /// Peers that so many bytes of memory hold, for [`Limits::peers`]: `peer_bytes` is what one takes, in the
    /// shard ([`PEER_BYTES`](crate::shard::PEER_BYTES)) and in its LNDs.
    #[must_use]
    pub const fn peers_in(bytes: u64, peer_bytes: usize) -> u32 {
        let count = bytes / peer_bytes as u64;
        if count < 1 << SLOT_BITS { count as u32 } else { 1 << SLOT_BITS }
    }

    /// Messages on their way out: each [`TxId`](crate::lnd::TxId) is below this.
    #[must_use]
    pub const fn transmits(&self) -> u32 {
        self.requests + self.responses + self.forwards
    }

    /// Messages that a shard of so many asks one sibling about at once: what it waits for, split evenly.
    #[must_use]
    pub(crate) fn asks(&self, shard_count: u8) -> u32 {
        (self.delayed / u32::from(shard_count).max(1)).max(1)
    }

    /// Whether a shard can be made of these numbers: every kind fits a cookie's slot number, a
    /// message can arrive, and a descriptor without a threshold has room for one event besides its last.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        const MAX: u32 = 1 << SLOT_BITS;
        self.match_entries <= MAX
            && self.memory_descs <= MAX
            && self.event_queues <= MAX
            && self.events <= MAX / 2
            && self.spare_events <= MAX / 2
            && self.requests <= MAX / 2
            && self.responses <= MAX / 4
            && self.forwards <= MAX / 4
            && self.incoming >= 1
            && self.incoming <= MAX
            && (self.forwards == 0 || self.forwards + self.incoming <= MAX)
            && self.delayed <= MAX / 4
            && self.peers <= MAX
            && self.unlimited_events >= 2
    }
}

const _: () = assert!(Limits::DEFAULT.is_valid());
// An arriving message may promise one response, so fewer responses would leave receive slots idle.
const _: () = assert!(Limits::DEFAULT.responses >= Limits::DEFAULT.incoming);
// What is delayed here or for siblings may all be matched at once, and promises responses then.
const _: () = assert!(Limits::DEFAULT.responses >= 2 * Limits::DEFAULT.delayed);
// A peer whose messages wait is remembered, here and at a sibling, and others want to be met.
const _: () = assert!(Limits::DEFAULT.peers >= 2 * Limits::DEFAULT.delayed);
// Each entry wants a descriptor, and initiators want some too.
const _: () = assert!(Limits::DEFAULT.memory_descs > Limits::DEFAULT.match_entries);

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_says_how_many_peers_there_are() {
        assert_eq!(Limits::peers_in(10 * 300 + 1, 300), 10);
        assert!(Limits { peers: Limits::peers_in(u64::MAX, 300), ..Limits::DEFAULT }.is_valid());
    }

    #[test]
    fn what_a_cookie_cannot_name_is_invalid() {
        assert!(!Limits { memory_descs: (1 << SLOT_BITS) + 1, ..Limits::DEFAULT }.is_valid());
        assert!(!Limits { requests: 1 << SLOT_BITS, ..Limits::DEFAULT }.is_valid());
        assert!(!Limits { unlimited_events: 1, ..Limits::DEFAULT }.is_valid());
        assert!(!Limits { spare_events: 1 << SLOT_BITS, ..Limits::DEFAULT }.is_valid());
        assert!(!Limits { delayed: 1 << SLOT_BITS, ..Limits::DEFAULT }.is_valid());
        assert!(!Limits { incoming: 0, ..Limits::DEFAULT }.is_valid());
    }
}
