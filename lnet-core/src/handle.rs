//! Handles: what an object of a shard is named by, here and across the wire.

use lnet_wire::steer::{COOKIE_SHARD_BITS, COOKIE_SHARD_SHIFT};

/// Number of a shard of this node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardId(pub u8);

/// An object cookie: kind in bits 0..2, shard in 2..8, slot in 8..32, generation in 32..64.
///
/// The kinds are those of kernel LNet (spec "wire handles"); the shard number stands where
/// [`lnet_wire::steer::shard_of`] reads it. A generation is never 0 and changes whenever a slot is reused,
/// so that a stale cookie misses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cookie(pub u64);

/// Bits of the slot number in a cookie.
pub const SLOT_BITS: u32 = 24;
const SLOT_SHIFT: u32 = COOKIE_SHARD_SHIFT + COOKIE_SHARD_BITS;

/// What a cookie names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
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
    pub const fn new(kind: Kind, shard: ShardId, slot: u32, generation: u32) -> Self {
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
    pub const fn is(self, kind: Kind) -> bool {
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
        self.0.is(Kind::MemoryDesc).then_some(MdHandle(self.0))
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
