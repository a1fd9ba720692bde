//! Handles: what an object of a shard is named by, here and across the wire.

use core::fmt;

use lnet_wire::steer::{COOKIE_SHARD_BITS, COOKIE_SHARD_SHIFT, SHARDS_MAX};

/// Number of a shard of this node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardId(pub u8);

/// Some of a node's shards, at least one: those that serve an NI.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ShardSet(u64);

impl ShardSet {
    /// Shards 0 to `count` - 1.
    ///
    /// # Panics
    /// If these are none, or more than there can be ([`SHARDS_MAX`]).
    #[must_use]
    pub const fn all(count: u8) -> Self {
        assert!(count >= 1 && count as u32 <= SHARDS_MAX);
        Self(u64::MAX >> (SHARDS_MAX - count as u32))
    }

    /// The set of these shards; `None` if there are none, or one has a number that no shard can have.
    #[must_use]
    pub fn of(shards: impl IntoIterator<Item = u32>) -> Option<Self> {
        let bits = shards.into_iter().try_fold(0, |bits, shard| Some(bits | 1_u64.checked_shl(shard)?))?;
        (bits != 0).then_some(Self(bits))
    }

    /// How many they are.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether a shard is among them.
    #[must_use]
    pub const fn has(self, shard: ShardId) -> bool {
        self.0 >> shard.0 & 1 != 0
    }

    /// Them, in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = ShardId> + Clone {
        (0..SHARDS_MAX as u8).map(ShardId).filter(move |shard| self.has(*shard))
    }

    /// The one that a number falls to, so that each gets its share.
    #[must_use]
    pub fn share(self, number: u32) -> ShardId {
        let mut bits = self.0;
        for _ in 0..number % self.count() {
            bits &= bits - 1;
        }
        ShardId(bits.trailing_zeros() as u8)
    }

    /// The one that receives what is for a shard: that shard if it is among them, else another one for it.
    #[must_use]
    pub fn stand_in(self, shard: ShardId) -> ShardId {
        if self.has(shard) { shard } else { self.share(shard.0.into()) }
    }

    /// Most shards of a node that share one of these, if there are `count` shards in all.
    #[must_use]
    pub fn sharers_max(self, count: u8) -> u32 {
        let sharers = |own: ShardId| (0..count).filter(|shard| self.stand_in(ShardId(*shard)) == own).count();
        self.iter().map(sharers).max().unwrap_or(1) as u32
    }
}

/// An object cookie: kind in bits 0..2, shard in 2..8, slot in 8..32, generation in 32..64.
///
/// The kinds are those of kernel LNet (spec "wire handles"); the shard number stands where
/// [`lnet_wire::steer::shard_of`] reads it. A generation is never 0 and changes whenever a slot is reused,
/// so that a stale cookie misses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie(pub u64);

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Bits of the slot number in a cookie.
pub const SLOT_BITS: u32 = 24;
const SLOT_SHIFT: u32 = COOKIE_SHARD_SHIFT + COOKIE_SHARD_BITS;

/// What a cookie names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CookieKind {
    /// A buffer of the node itself.
    Buffer = 0,
    /// A memory descriptor.
    MemoryDesc = 1,
    /// A match entry.
    MatchEntry = 2,
    /// An event queue.
    EventQueue = 3,
}

impl Cookie {
    /// Packs a cookie; `slot` must be below `1 << SLOT_BITS`.
    ///
    /// # Panics
    /// If it is not.
    #[must_use]
    pub const fn new(kind: CookieKind, shard: ShardId, slot: u32, generation: u32) -> Self {
        assert!(slot < 1 << SLOT_BITS);
        Self(
            kind as u64
                | (shard.0 as u64) << COOKIE_SHARD_SHIFT
                | (slot as u64) << SLOT_SHIFT
                | (generation as u64) << 32,
        )
    }

    /// Slot in the shard's slab of that kind.
    #[must_use]
    pub const fn slot(self) -> u32 {
        (self.0 >> SLOT_SHIFT) as u32 & ((1 << SLOT_BITS) - 1)
    }

    /// Generation of the slot.
    #[must_use]
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The shard that made the object.
    #[must_use]
    pub const fn shard(self) -> ShardId {
        ShardId((self.0 >> COOKIE_SHARD_SHIFT) as u8 & ((1 << COOKIE_SHARD_BITS) - 1))
    }

    /// Whether the cookie names an object of this kind.
    #[must_use]
    pub const fn is(self, kind: CookieKind) -> bool {
        self.0 & 3 == kind as u64
    }
}

/// Handle of a memory descriptor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MdHandle(pub Cookie);

/// Handle of a buffer of the node itself, which belongs to no descriptor: what a router receives into.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufferHandle(pub Cookie);

/// The buffer that a span lies in: that of a memory descriptor, or one of the node itself. As large as either
/// handle, since the kind is in the cookie.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufferRef(pub Cookie);

impl BufferRef {
    /// The descriptor, if it is one's.
    #[must_use]
    pub fn md(self) -> Option<MdHandle> {
        self.0.is(CookieKind::MemoryDesc).then_some(MdHandle(self.0))
    }

    /// The slot of the descriptor or buffer.
    pub(crate) const fn slot(self) -> u32 {
        self.0.slot()
    }
}

impl From<MdHandle> for BufferRef {
    fn from(md: MdHandle) -> Self {
        Self(md.0)
    }
}

impl From<BufferHandle> for BufferRef {
    fn from(buffer: BufferHandle) -> Self {
        Self(buffer.0)
    }
}

impl PartialEq<MdHandle> for BufferRef {
    fn eq(&self, md: &MdHandle) -> bool {
        self.0 == md.0
    }
}

/// Handle of a match entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MeHandle(pub Cookie);

/// Handle of an event queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EqHandle(pub Cookie);

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn a_set_of_shards_has_what_it_was_made_of() {
        let all = |count: u8| ShardSet::all(count).iter().map(|shard| shard.0).collect::<Vec<_>>();
        assert_eq!(all(1), [0]);
        assert_eq!(all(3), [0, 1, 2]);
        assert_eq!(all(64).len(), 64);
        assert_eq!(ShardSet::of([2, 0, 2, 1]), Some(ShardSet::all(3)));
        assert_eq!(ShardSet::of([]), None);
        assert_eq!(ShardSet::of([1, 64]), None);
        let some = ShardSet::of([1, 63]).unwrap();
        assert_eq!((some.count(), some.has(ShardId(63)), some.has(ShardId(0))), (2, true, false));
    }

    #[test]
    fn what_is_for_a_shard_that_is_left_out_goes_to_another_one() {
        let stand_ins = |set: ShardSet, count: u8| {
            (0..count).map(|shard| set.stand_in(ShardId(shard)).0).collect::<Vec<_>>()
        };
        assert_eq!(stand_ins(ShardSet::all(4), 4), [0, 1, 2, 3]);
        assert_eq!(stand_ins(ShardSet::of([2]).unwrap(), 4), [2; 4]);
        let some = ShardSet::of([0, 3]).unwrap();
        assert_eq!(stand_ins(some, 4), [0, 3, 0, 3]);
        assert_eq!((0..5).map(|number| some.share(number).0).collect::<Vec<_>>(), [0, 3, 0, 3, 0]);
        let sharers =
            |shards: &[u32], count| ShardSet::of(shards.iter().copied()).unwrap().sharers_max(count);
        assert_eq!([sharers(&[0, 1], 2), sharers(&[1], 2), sharers(&[0, 3], 4)], [1, 2, 2]);
    }
}
