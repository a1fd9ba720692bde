//! A match entry, and whether it takes a message.

use lnet_wire::ProcessId;

use crate::collections::{Link, NONE, Slab, linked, slot_bytes};
use crate::md::{MdOptions, MemoryDesc};
use crate::topology::PeerView;

/// Marks the order of stamps: entries beyond a hash bucket, or the list of a portal.
pub(crate) struct Stamps;

/// A match entry as a shard holds it: a cache line.
#[repr(align(64))]
pub(crate) struct MatchEntry {
    pub(crate) match_bits: u64,
    pub(crate) ignore_bits: u64,
    pub(crate) stamp: i64,
    pub(crate) link: Link,
    /// Its descriptor, or [`NONE`].
    pub(crate) md: u32,
    pub(crate) source: ProcessId,
    pub(crate) portal: u8,
    pub(crate) auto_unlink: bool,
    /// Whether it is of a service of the node itself.
    pub(crate) is_of_node: bool,
}

linked!(MatchEntry, Stamps, link);

/// A PUT or GET that looks for an entry.
#[derive(Clone, Copy)]
pub(crate) struct MatchQuery<'a> {
    pub(crate) portal: u32,
    /// Initiator, by the primary NID of its peer.
    pub(crate) source: ProcessId,
    /// The peer whose NID that is, if some peer has more than one.
    pub(crate) peer: Option<&'a PeerView>,
    pub(crate) match_bits: u64,
    /// [`MdOptions::PUT`] or [`MdOptions::GET`].
    pub(crate) operation: MdOptions,
    /// Bytes of payload of a PUT, bytes that a GET can take.
    pub(crate) requested_bytes: u32,
    /// The offset that counts where the descriptor leaves it to the sender.
    pub(crate) remote_offset_bytes: u32,
}

/// Whether a descriptor, if it is one, takes such an operation now.
#[inline]
pub(crate) fn takes(mds: &Slab<MemoryDesc>, md: u32, message: &MatchQuery<'_>) -> bool {
    md != NONE && {
        let md = &mds[md];
        !md.is_exhausted() && md.options.contains(message.operation)
    }
}

const _: () = assert!(slot_bytes::<MatchEntry>() == 64, "an entry exceeds a cache line");

impl MatchEntry {
    /// Whether it takes messages of every initiator.
    pub(crate) const fn is_for_any_initiator(&self) -> bool {
        self.source.nid.is_any() && self.source.pid == ProcessId::ANY_PID
    }

    /// Whether it takes a message, its descriptor aside. An entry may name its initiator by any of its NIDs:
    /// which of them is the primary one may have changed since (LNet `lib-ptl.c: lnet_try_match_md`).
    #[inline]
    pub(crate) fn accepts(&self, message: &MatchQuery<'_>) -> bool {
        #[cfg(test)]
        looks::COUNT.set(looks::COUNT.get() + 1);
        (self.match_bits ^ message.match_bits) & !self.ignore_bits == 0
            && u32::from(self.portal) == message.portal
            && (self.source.pid == ProcessId::ANY_PID || self.source.pid == message.source.pid)
            && (self.source.nid.is_any()
                || self.source.nid == message.source.nid
                || message.peer.is_some_and(|peer| peer.is_found_by(&self.source.nid)))
    }
}

/// How many entries tests have looked at.
#[cfg(test)]
pub(crate) mod looks {
    extern crate std;

    use core::cell::Cell;

    std::thread_local! {
        /// Entries that were compared with messages on this thread. A bucket's cells are looked at before, of
        /// which there are few.
        pub(crate) static COUNT: Cell<u32> = const { Cell::new(0) };
    }
}
