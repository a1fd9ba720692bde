//! What matching reads of messages that are on their way is fetched before they come.
//!
//! With many entries a match waits for memory: for its bucket, then for the descriptor that this names, then, if
//! it uses the entry up, for that. So announced messages are fetched for in these three steps, each step some
//! messages after the one before and ahead of the message itself: nothing is waited for, and the memory works
//! while the messages before are matched. Nothing here changes what is found; a message that does not come, or
//! comes out of turn, has had lines fetched for nothing.

use alloc::vec::Vec;

use crate::list::NONE;
use crate::lnd::{Announced, Prefetch};
use crate::md::MemoryDesc;
use crate::portal::MatchTables;
use crate::slab::Slab;

/// Messages that are fetched for after one announcement; those beyond come unannounced.
const AHEAD_MAX: usize = 64;
/// How many messages before its own each line is fetched. Eight matches take a load from memory's time twice.
const BUCKET_DISTANCE: usize = 24;
const MD_DISTANCE: usize = 12;
const ENTRY_DISTANCE: usize = 6;

#[derive(Clone, Copy)]
struct Upcoming {
    /// Its bucket; then what the bucket says of it, each or [`NONE`].
    bucket: u32,
    entry: u32,
    md: u32,
    portal: u32,
    match_bits: u64,
}

/// The messages that were announced last.
pub(crate) struct Lookahead {
    upcoming: Vec<Upcoming>,
    /// The one that comes next.
    next: usize,
    prefetch: Prefetch,
}

impl Lookahead {
    pub(crate) fn new() -> Self {
        Self { upcoming: Vec::with_capacity(AHEAD_MAX), next: 0, prefetch: |_| {} }
    }

    /// Takes these messages for the next ones, in place of those that were announced before.
    pub(crate) fn announce(
        &mut self,
        tables: &MatchTables,
        mds: &Slab<MemoryDesc>,
        arrivals: &[Announced],
        prefetch: Prefetch,
    ) {
        let upcoming = arrivals.iter().take(AHEAD_MAX).map(|announced| {
            let &Announced { portal, match_bits, source } = announced;
            let bucket = tables.bucket_of_message(portal, match_bits, &source).unwrap_or(NONE);
            Upcoming { bucket, entry: NONE, md: NONE, portal, match_bits }
        });
        self.upcoming.clear();
        self.upcoming.extend(upcoming);
        (self.next, self.prefetch) = (0, prefetch);
        // What the first ones would have had fetched while others were matched.
        (0..BUCKET_DISTANCE).for_each(|at| self.fetch_bucket(tables, at));
        (0..MD_DISTANCE).for_each(|at| self.fetch_md(tables, mds, at));
        (0..ENTRY_DISTANCE).for_each(|at| self.fetch_entry(tables, mds, at));
    }

    /// The next message has come.
    #[inline]
    pub(crate) fn advance(&mut self, tables: &MatchTables, mds: &Slab<MemoryDesc>) {
        if self.next < self.upcoming.len() {
            self.fetch_ahead(tables, mds);
        }
    }

    /// Slot of the descriptor that the message after the next `distance` ones will most likely get, if it is known
    /// by now.
    #[inline]
    pub(crate) fn foreseen(&self, distance: usize) -> Option<u32> {
        let md = self.upcoming.get(self.next + distance)?.md;
        (md != NONE).then_some(md)
    }

    // Apart, so that messages that nobody announced do not carry it through the cache.
    #[inline(never)]
    fn fetch_ahead(&mut self, tables: &MatchTables, mds: &Slab<MemoryDesc>) {
        self.fetch_bucket(tables, self.next + BUCKET_DISTANCE);
        self.fetch_md(tables, mds, self.next + MD_DISTANCE);
        self.fetch_entry(tables, mds, self.next + ENTRY_DISTANCE);
        self.next += 1;
    }

    #[inline]
    fn fetch_bucket(&self, tables: &MatchTables, at: usize) {
        if let Some(message) = self.upcoming.get(at) {
            tables.prefetch_bucket(message.bucket, self.prefetch);
        }
    }

    #[inline]
    fn fetch_md(&mut self, tables: &MatchTables, mds: &Slab<MemoryDesc>, at: usize) {
        if let Some(message) = self.upcoming.get_mut(at) {
            let Upcoming { bucket, portal, match_bits, .. } = *message;
            (message.entry, message.md) = tables.guess(bucket, portal, match_bits);
            mds.prefetch(message.md, self.prefetch);
        }
    }

    #[inline]
    fn fetch_entry(&self, tables: &MatchTables, mds: &Slab<MemoryDesc>, at: usize) {
        if let Some(message) = self.upcoming.get(at)
            && mds.get(message.md).is_some_and(MemoryDesc::ends_with_next)
        {
            tables.prefetch_entry(message.entry, self.prefetch);
        }
    }
}
