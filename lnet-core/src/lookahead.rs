//! What matching reads of messages that are on their way is fetched before they come.
//!
//! With many entries a match waits for memory: for its bucket, then for the descriptor that this names, then,
//! if it uses the entry up, for that. So announced messages are fetched for in these three steps, each some
//! messages before the next and the last some before the message itself: the memory works while the messages
//! before are matched. Only the first few of an announcement are waited for, all of them at once.
//!
//! Nothing here changes what is found: a message that does not come has had lines fetched for nothing.

use alloc::collections::VecDeque;

use lnet_wire::{Body, Header};

use crate::collections::{NONE, Slab};
use crate::lnd::{Prefetch, PrefetchHint};
use crate::md::MemoryDesc;
use crate::portal::MatchTables;

/// Messages that are fetched for; those that are announced beyond come as if they were not.
const AHEAD_MAX: usize = 64;
/// How many messages before its own each line is fetched. Six matches take longer than a load from memory.
const BUCKET_DISTANCE: usize = 24;
const MD_DISTANCE: usize = 12;
const ENTRY_DISTANCE: usize = 6;
/// PrefetchHint messages that may not come, one after the other, before the next one that does.
const SKIPPED_MAX: usize = 8;

#[derive(Clone, Copy)]
struct Upcoming {
    portal: u32,
    match_bits: u64,
    /// The bucket that it looks through, or [`NONE`].
    bucket: u32,
    /// The entry that the bucket names for it, or [`NONE`]; also until that is known.
    entry: u32,
    /// The descriptor of that entry, or [`NONE`].
    md: u32,
}

impl Upcoming {
    #[inline]
    const fn is(&self, portal: u32, match_bits: u64) -> bool {
        self.match_bits == match_bits && self.portal == portal
    }
}

/// The messages that were announced and have not come.
pub(crate) struct Lookahead {
    upcoming: VecDeque<Upcoming>,
    prefetch: Prefetch,
}

impl Lookahead {
    pub(crate) fn new() -> Self {
        Self { upcoming: VecDeque::with_capacity(AHEAD_MAX), prefetch: |_| {} }
    }

    /// Announces what comes next, before all that was announced already. The first of these messages may be
    /// what was to come next.
    pub(crate) fn hint(
        &mut self,
        tables: &MatchTables,
        mds: &Slab<MemoryDesc>,
        arrivals: &[PrefetchHint],
        prefetch: Prefetch,
    ) {
        let arrivals = &arrivals[..arrivals.len().min(AHEAD_MAX)];
        let Some(first) = arrivals.first() else { return };
        self.upcoming.pop_front_if(|next| next.is(first.portal, first.match_bits));
        self.upcoming.truncate(AHEAD_MAX - arrivals.len());
        for &PrefetchHint { portal, match_bits, source } in arrivals.iter().rev() {
            let bucket = tables.bucket_of_message(portal, match_bits, &source).unwrap_or(NONE);
            self.upcoming.push_front(Upcoming { portal, match_bits, bucket, entry: NONE, md: NONE });
        }
        self.prefetch = prefetch;
        // What the first ones would have had fetched while others were matched.
        (0..BUCKET_DISTANCE).for_each(|at| self.fetch_bucket(tables, at));
        (0..MD_DISTANCE).for_each(|at| self.fetch_md(tables, mds, at));
        (0..ENTRY_DISTANCE).for_each(|at| self.fetch_entry(tables, mds, at));
    }

    /// A message has come.
    #[inline]
    pub(crate) fn advance(&mut self, tables: &MatchTables, mds: &Slab<MemoryDesc>, header: &Header) {
        if !self.upcoming.is_empty()
            && let Body::Put { portal, match_bits, .. } | Body::Get { portal, match_bits, .. } = header.body
        {
            self.advance_to(tables, mds, portal, match_bits);
        }
    }

    /// Slot of the descriptor that the message after the next `distance` ones will most likely get, if it is
    /// known by now: those below [`MD_DISTANCE`] are.
    #[inline]
    pub(crate) fn expected_md(&self, distance: usize) -> Option<u32> {
        let md = self.upcoming.get(distance)?.md;
        (md != NONE).then_some(md)
    }

    // Apart, so that messages without a hint do not carry it through the cache.
    #[inline(never)]
    fn advance_to(&mut self, tables: &MatchTables, mds: &Slab<MemoryDesc>, portal: u32, match_bits: u64) {
        // Nearly always; looking further costs a tenth of a match.
        if self.upcoming.front().is_some_and(|next| next.is(portal, match_bits)) {
            return self.step(tables, mds);
        }
        let mut nearest = self.upcoming.iter().take(SKIPPED_MAX + 1);
        let Some(skipped) = nearest.position(|next| next.is(portal, match_bits)) else { return };
        for _ in 0..=skipped {
            self.step(tables, mds);
        }
    }

    #[inline(always)]
    fn step(&mut self, tables: &MatchTables, mds: &Slab<MemoryDesc>) {
        self.fetch_bucket(tables, BUCKET_DISTANCE);
        self.fetch_md(tables, mds, MD_DISTANCE);
        self.fetch_entry(tables, mds, ENTRY_DISTANCE);
        self.upcoming.pop_front();
    }

    #[inline]
    fn fetch_bucket(&self, tables: &MatchTables, at: usize) {
        if let Some(message) = self.upcoming.get(at) {
            tables.buckets.prefetch(message.bucket, self.prefetch);
        }
    }

    #[inline]
    fn fetch_md(&mut self, tables: &MatchTables, mds: &Slab<MemoryDesc>, at: usize) {
        if let Some(message) = self.upcoming.get_mut(at) {
            (message.entry, message.md) =
                tables.buckets.guess(message.bucket, message.portal, message.match_bits);
            mds.prefetch(message.md, self.prefetch);
        }
    }

    #[inline]
    fn fetch_entry(&self, tables: &MatchTables, mds: &Slab<MemoryDesc>, at: usize) {
        if let Some(message) = self.upcoming.get(at)
            && mds.get(message.md).is_some_and(MemoryDesc::ends_with_next)
        {
            tables.entries.prefetch(message.entry, self.prefetch);
        }
    }
}
