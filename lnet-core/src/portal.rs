//! Portals: match entries, and which of them takes a message.
//!
//! Invariants:
//! - Each entry has a stamp. One put before the others gets the lowest of its portal so far, one put after
//!   them the highest; so every list is in the order of the stamps, and the lowest stamp that matches wins,
//!   whether it stands in a hash bucket or in its portal's list.
//! - An entry beside another one gets the stamp that belongs there. Stamps have no gaps for that: those of
//!   all entries behind move on by one, which keeps the order of every list. An entry has no room in its cache
//!   line for a list of the whole portal, and so the ones behind are looked for among all entries of the
//!   shard. Only entries inside a list cost that; those at its ends cost what they always did.
//! - An entry without ignore bits is in one hash bucket: of (portal, match bits) on a wildcard portal, of
//!   (portal, match bits, NID, pid) on a unique one. An entry with ignore bits is in its portal's list.
//!   So finding an exact entry takes the same steps however many there are.
//! - A portal has a kind exactly while it has entries. LNet keeps the kind for the life of the stack
//!   (`lib-ptl.c: lnet_ptl_match_type`); here the last entry that goes takes it along.

use lnet_wire::ProcessId;
use lnet_wire::steer::PORTALS;
use thiserror::Error;

use crate::bucket::Buckets;
use crate::collections::{Link, List, NONE, Seed, Slab, nid_words};
use crate::entry::{MatchEntry, MatchQuery, Stamps, takes};
use crate::handle::{MeHandle, ShardId};
use crate::md::{MdOptions, MemoryDesc};
use crate::stats::DropReason;

/// Where a new entry stands among those of its portal on its shard. On unique portals, where no order can be
/// seen, only [`Position::Last`] is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// Before all others (`LNetMEAttach` with `LNET_INS_BEFORE`).
    First,
    /// After all others (`LNET_INS_AFTER`). An entry always belongs to the shard that attaches it, so this is
    /// `LNET_INS_LOCAL` as well.
    Last,
    /// Directly before this entry (`LNetMEInsert` with `LNET_INS_BEFORE`, which LNet had up to 2.12). Unless
    /// that is the first one of the portal, the shard looks through all of its entries.
    Before(MeHandle),
    /// Directly after this entry (`LNetMEInsert` with `LNET_INS_AFTER`). Unless that is the last one of the
    /// portal, the shard looks through all of its entries.
    After(MeHandle),
}

/// A match entry to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntrySpec {
    /// Portal index, 0 to 63.
    pub portal: u32,
    /// Who may send to it; NID and pid may each be wildcards.
    pub source: ProcessId,
    /// Match bits.
    pub match_bits: u64,
    /// Bits that need not be equal.
    pub ignore_bits: u64,
    /// Whether it goes with its descriptor; else it stays and may be given another one (`LNET_RETAIN`).
    pub auto_unlink: bool,
    /// Where it stands.
    pub position: Position,
    /// Whether it is of a service of the node itself, as the answers to pings are: no use of the node by a
    /// program ([`Shard::portals_of_programs`](crate::shard::Shard::portals_of_programs)).
    pub is_of_node: bool,
}

impl EntrySpec {
    /// An entry for exactly these match bits and any initiator, behind those that are there; it goes with its
    /// descriptor.
    #[must_use]
    pub const fn new(portal: u32, match_bits: u64) -> Self {
        Self {
            portal,
            source: ProcessId::ANY,
            match_bits,
            ignore_bits: 0,
            auto_unlink: true,
            position: Position::Last,
            is_of_node: false,
        }
    }

    /// Makes it an entry of a service of the node itself.
    #[must_use]
    pub const fn of_node(self) -> Self {
        Self { is_of_node: true, ..self }
    }
}

/// Why a match entry is not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum EntryError {
    /// The portal index is 64 or more (`-EINVAL`).
    #[error("portal {0}: below {PORTALS} is expected")]
    Portal(u32),
    /// The portal has entries of the other kind (`-EPERM`): unique ones name NID and pid and have no ignore
    /// bits, wildcard ones do not.
    #[error("portal {portal} has entries of the other kind")]
    Kind {
        /// Portal index.
        portal: u32,
    },
    /// A unique portal knows no order (`-EPERM`).
    #[error("portal {portal} is unique: an entry after the others is expected")]
    Position {
        /// Portal index.
        portal: u32,
    },
    /// The entry that the new one is to stand beside is unlinked, or went with its descriptor (`-ENOENT`).
    #[error("match entry {:?}, beside which another one is wanted, has gone", .0.0)]
    Gone(MeHandle),
    /// The entry that the new one is to stand beside is on another portal.
    #[error("match entry {:?} is on portal {portal}: one of portal {expected} is expected", entry.0)]
    OtherPortal {
        /// The entry that is there.
        entry: MeHandle,
        /// Portal of the other entry.
        portal: u32,
        /// The portal of the new one.
        expected: u32,
    },
    /// The entry that the new one is to stand beside is on another shard: they have no common order.
    #[error("match entry {:?} is on shard {}: one of shard {} is expected", entry.0, shard.0, expected.0)]
    OtherShard {
        /// The entry that is there.
        entry: MeHandle,
        /// Shard of the other entry.
        shard: ShardId,
        /// The shard of the new one.
        expected: ShardId,
    },
    /// The portal's policy is about to change (`-EBUSY`): try again.
    #[error("the policy of portal {portal} is about to change: try again")]
    Frozen {
        /// Portal index.
        portal: u32,
    },
    /// Every entry of the shard is in use (`-ENOMEM`).
    #[error("every match entry is in use")]
    Full,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryKind {
    Unique,
    Wildcard,
}

struct Portal {
    kind: Option<EntryKind>,
    entry_count: u32,
    /// Entries among them of services of the node itself.
    own_count: u32,
    /// The lowest stamp given out, and the next one above all.
    lowest: i64,
    next: i64,
    /// Entries with ignore bits.
    ranges: List<Stamps>,
}

/// Room for a message in a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    pub(crate) md: u32,
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u32,
}

/// The match entries of a shard.
pub(crate) struct MatchTables {
    pub(crate) entries: Slab<MatchEntry>,
    pub(crate) buckets: Buckets,
    portals: [Portal; PORTALS],
    seed: Seed,
}

impl MatchTables {
    pub(crate) fn new(capacity: u32, seed: Seed) -> Self {
        Self {
            entries: Slab::new(capacity),
            buckets: Buckets::new(capacity),
            portals: core::array::from_fn(|_| Portal {
                kind: None,
                entry_count: 0,
                own_count: 0,
                lowest: 0,
                next: 0,
                ranges: List::new(),
            }),
            seed,
        }
    }

    /// Portals that have entries, a bit each.
    pub(crate) fn portals_in_use(&self) -> u64 {
        let portals = self.portals.iter().enumerate();
        portals.fold(0, |bits, (portal, state)| bits | u64::from(state.entry_count > 0) << portal)
    }

    /// Portals that have entries of services of the node itself, and those that have others, a bit each.
    pub(crate) fn portals_by_user(&self) -> [u64; 2] {
        let portals = self.portals.iter().enumerate();
        portals.fold([0; 2], |[own, others], (portal, state)| {
            let bit = |is_set: bool| u64::from(is_set) << portal;
            [own | bit(state.own_count > 0), others | bit(state.entry_count > state.own_count)]
        })
    }

    /// Makes an entry, without a descriptor, and returns its slot. `beside` is the slot of the entry that the
    /// position names, or [`NONE`].
    pub(crate) fn insert(&mut self, spec: &EntrySpec, beside: u32) -> Result<u32, EntryError> {
        let portal_index = spec.portal;
        let Some(portal) = self.portals.get(portal_index as usize) else {
            return Err(EntryError::Portal(portal_index));
        };
        let exact = spec.ignore_bits == 0;
        let named = !spec.source.nid.is_any() && spec.source.pid != ProcessId::ANY_PID;
        let kind = if exact && named { EntryKind::Unique } else { EntryKind::Wildcard };
        if portal.kind.is_some_and(|fixed| fixed != kind) {
            return Err(EntryError::Kind { portal: portal_index });
        }
        if kind == EntryKind::Unique && spec.position != Position::Last {
            return Err(EntryError::Position { portal: portal_index });
        }
        let bucket =
            if exact { self.bucket(kind, portal_index, spec.match_bits, &spec.source) } else { NONE };
        if self.entries.is_full() {
            return Err(EntryError::Full);
        }
        let (position, stamp) = self.make_room(spec, beside);
        let entry = MatchEntry {
            match_bits: spec.match_bits,
            ignore_bits: spec.ignore_bits,
            stamp,
            link: Link::UNLINKED,
            md: NONE,
            source: spec.source,
            portal: portal_index as u8,
            auto_unlink: spec.auto_unlink,
            is_of_node: spec.is_of_node,
        };
        let slot = self.entries.insert(entry).map_err(|_| EntryError::Full)?;
        let portal = &mut self.portals[portal_index as usize];
        portal.kind = Some(kind);
        portal.entry_count += 1;
        portal.own_count += u32::from(spec.is_of_node);
        let (entries, buckets, ranges) = (&mut self.entries, &mut self.buckets, &mut portal.ranges);
        match (position, exact) {
            (Position::First, true) => buckets.push_front(entries, bucket, slot),
            (Position::First, false) => ranges.push_front(entries, slot),
            (Position::Last, true) => buckets.push_back(entries, bucket, slot),
            (Position::Last, false) => ranges.push_back(entries, slot),
            (_, true) => buckets.insert_by_stamp(entries, bucket, slot),
            (_, false) => ranges.insert_by_key(entries, slot, |entry| entry.stamp),
        }
        Ok(slot)
    }

    /// The position of a new entry, and its stamp, which it makes free; the position is an end of the list
    /// where the entry comes to stand there.
    fn make_room(&mut self, spec: &EntrySpec, beside: u32) -> (Position, i64) {
        let portal = &mut self.portals[spec.portal as usize];
        let stamp = match spec.position {
            Position::First => portal.lowest,
            Position::Last => portal.next,
            Position::Before(_) => self.entries[beside].stamp,
            Position::After(_) => self.entries[beside].stamp + 1,
        };
        if stamp == portal.next {
            portal.next += 1;
            return (Position::Last, stamp);
        }
        if stamp == portal.lowest {
            portal.lowest -= 1;
            return (Position::First, portal.lowest);
        }
        let of_portal = self.entries.values_mut().filter(|entry| u32::from(entry.portal) == spec.portal);
        of_portal.filter(|entry| entry.stamp >= stamp).for_each(|entry| entry.stamp += 1);
        portal.next += 1;
        (spec.position, stamp)
    }

    /// Takes an entry out, in constant time.
    pub(crate) fn remove(&mut self, slot: u32) {
        let bucket = self.bucket_of(slot);
        let portal = &mut self.portals[usize::from(self.entries[slot].portal)];
        if bucket == NONE {
            portal.ranges.remove(&mut self.entries, slot);
        } else {
            self.buckets.remove(&mut self.entries, bucket, slot);
        }
        portal.entry_count -= 1;
        portal.own_count -= u32::from(self.entries[slot].is_of_node);
        if portal.entry_count == 0 {
            portal.kind = None;
            (portal.lowest, portal.next) = (0, 0);
        }
        self.entries.vacate(slot);
    }

    /// Gives an entry a descriptor, or with [`NONE`] takes it away.
    pub(crate) fn set_md(&mut self, slot: u32, md: u32) {
        self.entries[slot].md = md;
        let bucket = self.bucket_of(slot);
        if bucket != NONE {
            self.buckets.set_md(bucket, slot, md);
        }
    }

    /// Makes an entry go with its descriptor.
    pub(crate) fn set_auto_unlink(&mut self, slot: u32) {
        self.entries[slot].auto_unlink = true;
    }

    pub(crate) fn entry(&self, slot: u32) -> &MatchEntry {
        &self.entries[slot]
    }

    /// The first entry, in the order of the stamps, that takes the message, and how much of it (LNet
    /// `lib-ptl.c: lnet_try_match_md`). Changes nothing.
    #[inline(always)]
    pub(crate) fn find(&self, mds: &Slab<MemoryDesc>, message: &MatchQuery<'_>) -> Result<Room, DropReason> {
        let portal = self.portals.get(message.portal as usize).ok_or(DropReason::Portal)?;
        let kind = portal.kind.ok_or(DropReason::NoMatch)?;
        let bucket = self.bucket(kind, message.portal, message.match_bits, &message.source);
        let exact = self.buckets.find(&self.entries, mds, bucket, message);
        let exact = if kind == EntryKind::Unique {
            exact.or_else(|| self.find_other_names(mds, message))
        } else {
            exact
        };
        let found = if portal.ranges.is_empty() {
            exact
        } else {
            let bound = exact.map_or(i64::MAX, |(slot, _)| self.entries[slot].stamp);
            self.first_range(mds, message, &portal.ranges, bound).or(exact)
        };
        let (_, md) = found.ok_or(DropReason::NoMatch)?;
        Self::room(md, &mds[md], message)
    }

    /// The entry of a unique portal that names the initiator by another NID than the primary one. LNet finds
    /// only those that chance has put into the bucket of the primary one.
    fn find_other_names(&self, mds: &Slab<MemoryDesc>, message: &MatchQuery<'_>) -> Option<(u32, u32)> {
        let others = message.peer?.nis.iter().map(|ni| ni.nid).filter(|nid| *nid != message.source.nid);
        let buckets = others.map(|nid| {
            let source = ProcessId { nid, ..message.source };
            self.bucket(EntryKind::Unique, message.portal, message.match_bits, &source)
        });
        buckets.filter_map(|bucket| self.buckets.find(&self.entries, mds, bucket, message)).next()
    }

    /// The bucket that a message looks through for exact entries, if its portal has entries.
    #[inline]
    pub(crate) fn bucket_of_message(&self, portal: u32, match_bits: u64, source: &ProcessId) -> Option<u32> {
        let kind = self.portals.get(portal as usize)?.kind?;
        Some(self.bucket(kind, portal, match_bits, source))
    }

    /// The first entry of these, with a stamp below `bound`, that passes all tests but the one of the length.
    fn first_range(
        &self,
        mds: &Slab<MemoryDesc>,
        message: &MatchQuery<'_>,
        ranges: &List<Stamps>,
        bound: i64,
    ) -> Option<(u32, u32)> {
        let mut before = ranges.iter(&self.entries).take_while(|(_, entry)| entry.stamp < bound);
        let found = before.find(|(_, entry)| entry.accepts(message) && takes(mds, entry.md, message));
        found.map(|(slot, entry)| (slot, entry.md))
    }

    /// The last test, whose failure ends the search: whether there is room.
    fn room(slot: u32, md: &MemoryDesc, message: &MatchQuery<'_>) -> Result<Room, DropReason> {
        let offset_bytes = if md.options.contains(MdOptions::MANAGE_REMOTE) {
            // Beyond the end nothing is allowed, as at the end; a span stays inside its buffer.
            u64::from(message.remote_offset_bytes).min(md.length_bytes)
        } else {
            md.offset_bytes
        };
        let allowed = md.allowed_bytes(offset_bytes);
        if u64::from(message.requested_bytes) > allowed && !md.options.contains(MdOptions::TRUNCATE) {
            return Err(DropReason::TooLong);
        }
        // No more than was asked for, which is a u32.
        let length_bytes = u64::from(message.requested_bytes).min(allowed) as u32;
        Ok(Room { md: slot, offset_bytes, length_bytes })
    }

    /// The hash bucket of an entry, or [`NONE`] if it is in its portal's list. Computed, since it would not
    /// fit the entry's cache line.
    fn bucket_of(&self, slot: u32) -> u32 {
        let MatchEntry { ignore_bits, match_bits, portal, source, .. } = &self.entries[slot];
        match self.portals[usize::from(*portal)].kind {
            Some(kind) if *ignore_bits == 0 => self.bucket(kind, (*portal).into(), *match_bits, source),
            _ => NONE,
        }
    }

    /// The hash bucket of exact entries that such a message looks through.
    #[inline]
    fn bucket(&self, kind: EntryKind, portal: u32, match_bits: u64, source: &ProcessId) -> u32 {
        let portal = u64::from(portal);
        self.buckets.of(match kind {
            EntryKind::Wildcard => self.seed.hash([match_bits, portal]),
            EntryKind::Unique => {
                let [a, b, c] = nid_words(&source.nid);
                self.seed.hash([match_bits, portal | u64::from(source.pid) << 32, a, b, c])
            }
        })
    }
}

#[cfg(test)]
mod steps {
    use lnet_wire::{Nid, ProcessId};

    use super::{EntrySpec, MatchTables};
    use crate::collections::{NONE, Seed, Slab};
    use crate::entry::MatchQuery;
    use crate::entry::looks::COUNT;
    use crate::md::{MdOptions, MdSpec, MemoryDesc, Threshold};

    /// Most entries that one of these messages is compared with, of so many that are posted.
    fn looks_max(count: u32, source: ProcessId) -> u32 {
        let mut tables = MatchTables::new(count, Seed::new(7));
        let mut mds = Slab::new(count);
        let md = MdSpec {
            length_bytes: 8,
            max_size_bytes: None,
            threshold: Threshold::Infinite,
            options: MdOptions::PUT,
            auto_unlink: true,
            event_queue: None,
            user_ptr: 0,
        };
        for match_bits in 0..u64::from(count) {
            let entry = tables.insert(&EntrySpec { source, ..EntrySpec::new(4, match_bits) }, NONE).unwrap();
            let Ok(slot) = mds.insert(MemoryDesc::new(&md)) else { panic!("there is room for {count}") };
            tables.set_md(entry, slot);
        }
        let looks = (0..u64::from(count)).step_by(count as usize / 10).map(|match_bits| {
            COUNT.set(0);
            let source = ProcessId { nid: Nid::LO, pid: 12345 };
            let (operation, requested_bytes, remote_offset_bytes) = (MdOptions::PUT, 1, 0);
            let (portal, peer) = (4, None);
            let message = MatchQuery {
                portal,
                source,
                peer,
                match_bits,
                operation,
                requested_bytes,
                remote_offset_bytes,
            };
            assert!(tables.find(&mds, &message).is_ok(), "{match_bits} of {count}");
            COUNT.get()
        });
        looks.max().unwrap()
    }

    #[test]
    fn sm_05_a_match_takes_as_many_steps_among_many_entries_as_among_few() {
        let unique = ProcessId { nid: Nid::LO, pid: 12345 };
        let anyone = EntrySpec::new(4, 0).source;
        for source in [unique, anyone] {
            for count in [10, 100, 1000, 10_000, 100_000] {
                let looks = looks_max(count, source);
                assert!(looks <= 4, "{looks} entries are looked at among {count} of {source:?}");
            }
        }
    }
}
