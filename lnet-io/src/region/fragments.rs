//! Regions whose bytes lie in several allocations, and slices of whatever region, one for each fragment.
//!
//! Invariant: a region in one piece is found by its view alone. One of several fragments has a view of no
//! bytes, and books, so that only what the view does not have is looked for in the list.

use core::ops::Range;
use core::ptr::NonNull;
use std::sync::Arc;

use super::{Access, Lease, LeaseError, ReadLease, Region, SEVERAL, WriteLease};
use crate::region::storage::{Fragment, Storage, View, outside};
use crate::xsk::Registered;

/// Fragments that bytes from `start` to `end` lie in, with the range of each that is theirs.
#[derive(Clone, Default, Debug)]
struct Parts<'a> {
    list: &'a [Fragment],
    start: usize,
    end: usize,
}

impl<'a> Parts<'a> {
    /// # Panics
    /// If the range leaves the list.
    fn of(list: &'a [Fragment], start: usize, end: usize) -> Self {
        let length_bytes = list.last().map_or(0, |last| last.end);
        if start > end || end > length_bytes {
            outside(start, end, length_bytes);
        }
        let list = &list[list.partition_point(|fragment| fragment.end <= start)..];
        Self { list, start, end }
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = (&'a Fragment, Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        let (fragment, rest) = self.list.split_first().filter(|_| self.start < self.end)?;
        let begin = fragment.end - fragment.view.length_bytes();
        let part = self.start - begin..self.end.min(fragment.end) - begin;
        (self.list, self.start) = (rest, fragment.end);
        Some((fragment, part))
    }
}

fn view_of((fragment, part): (&Fragment, Range<usize>)) -> View {
    fragment.view.part(part)
}

/// The bytes of a span as slices: one for each fragment of its buffer that they lie in, none of them empty.
#[derive(Clone, Default, Debug)]
pub struct Fragments<'a> {
    /// The first piece.
    view: View,
    rest: Parts<'a>,
}

impl<'a> Fragments<'a> {
    /// Bytes of one piece if they lie in `view`, else of the list.
    #[inline]
    fn of(view: &View, list: impl FnOnce() -> Parts<'a>, start: usize, end: usize) -> Self {
        if let Some(view) = view.try_part(start, end) {
            return Self { view, rest: Parts::default() };
        }
        let mut rest = list();
        Self { view: rest.next().map_or_else(View::default, view_of), rest }
    }

    #[inline]
    pub(super) fn one_view(&self) -> Option<View> {
        (self.rest.start >= self.rest.end).then(|| self.view.clone())
    }

    /// Where the slices are. An address holds for as long as the lease or region that it was taken of, even
    /// if that is moved; who uses it has that one's rights.
    pub(crate) fn into_addresses(mut self) -> impl Iterator<Item = NonNull<[u8]>> + use<'a> {
        core::iter::from_fn(move || self.next_view().map(|view| view.address()))
    }

    #[inline]
    fn next_view(&mut self) -> Option<View> {
        let next = if self.one_view().is_some() { None } else { self.rest.next().map(view_of) };
        let view = std::mem::replace(&mut self.view, next.unwrap_or_default());
        (view.length_bytes() != 0).then_some(view)
    }

    /// The bytes as one slice, if they lie in one fragment.
    #[inline]
    #[must_use]
    pub fn contiguous(&self) -> Option<&'a [u8]> {
        // SAFETY: who made this value has borrowed the bytes for `'a`, to be read.
        self.one_view().map(|view| unsafe { view.bytes() })
    }

    /// Bytes of all slices that are left.
    #[inline]
    pub fn length_bytes(&self) -> usize {
        self.view.length_bytes() + self.rest.end.saturating_sub(self.rest.start)
    }

    /// Copies the first bytes to `target`, which is no longer.
    pub fn copy_to(mut self, target: FragmentsMut<'_>) {
        let mut source: &[u8] = &[];
        for mut target in target {
            while !target.is_empty() {
                if source.is_empty() {
                    source = self.next().expect("the source is as long as the target");
                }
                let (bytes, rest) = source.split_at(source.len().min(target.len()));
                target.split_off_mut(..bytes.len()).expect("it is as long").copy_from_slice(bytes);
                source = rest;
            }
        }
    }
}

impl<'a> Iterator for Fragments<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        // SAFETY: as for `contiguous`.
        self.next_view().map(|view| unsafe { view.bytes() })
    }
}

/// CRC32C of slices in a row.
#[inline]
pub fn checksum<'a>(mut slices: impl Iterator<Item = &'a [u8]>) -> u32 {
    let first = slices.next().unwrap_or_default();
    let Some(second) = slices.next() else { return crc_fast::crc32_iscsi(first) };
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    [first, second].into_iter().chain(slices).for_each(|bytes| digest.update(bytes));
    digest.finalize() as u32
}

/// Fragments like [`Fragments`], to write.
#[derive(Default, Debug)]
pub struct FragmentsMut<'a>(Fragments<'a>);

impl<'a> FragmentsMut<'a> {
    /// The bytes as one slice, if they lie in one fragment.
    #[inline]
    #[must_use]
    pub fn contiguous(self) -> Option<&'a mut [u8]> {
        // SAFETY: who made this value has borrowed the bytes for `'a`, to be written, and it is used up.
        self.0.one_view().map(|view| unsafe { view.bytes_mut() })
    }

    /// Bytes of all slices that are left.
    #[must_use]
    pub fn length_bytes(&self) -> usize {
        self.0.length_bytes()
    }

    /// Fills all of them with the first bytes of `source`, which is as long at least.
    #[inline]
    pub fn copy_from(self, mut source: &[u8]) {
        for piece in self {
            let (bytes, rest) = source.split_at(piece.len());
            piece.copy_from_slice(bytes);
            source = rest;
        }
    }
}

impl<'a> Iterator for FragmentsMut<'a> {
    type Item = &'a mut [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a mut [u8]> {
        // SAFETY: as for `contiguous`, and each piece comes once: fragments do not overlap.
        self.0.next_view().map(|view| unsafe { view.bytes_mut() })
    }
}

impl Region {
    /// The bytes of these regions, one behind the other.
    ///
    /// # Panics
    /// If there are none, or some of the bytes are lent. Each is in one piece.
    pub(crate) fn of_fragments(regions: impl IntoIterator<Item = Self>) -> Self {
        let mut end = 0;
        let fragment = |mut region: Self| {
            assert!(region.is_whole(), "a fragment of a buffer is lent");
            end += region.view.length_bytes();
            let storage = Arc::clone(&region.books().storage);
            Fragment { end, view: region.view.clone(), storage }
        };
        let list: Box<[Fragment]> = regions.into_iter().map(fragment).collect();
        Self::from(Arc::new(Storage::from(list)))
    }

    /// Its fragments, each a region; itself if it is in one piece.
    ///
    /// # Panics
    /// If some of its bytes are lent.
    pub(crate) fn into_fragments(mut self) -> Vec<Self> {
        assert!(self.is_whole(), "the fragments of a buffer are lent");
        let region = |fragment: &Fragment| Self::from(Arc::clone(&fragment.storage));
        let fragments = self.list().map(|list| list.iter().map(region).collect());
        fragments.unwrap_or_else(|| vec![self])
    }

    /// The bytes of `range`, whatever fragments they lie in; otherwise as [`Region::bytes`].
    #[inline]
    pub fn fragments(&self, range: Range<usize>) -> Result<Fragments<'_>, LeaseError> {
        self.check(&range, Access::Read)?;
        Ok(self.pieces(range.start, range.end))
    }

    /// The bytes of `range`, to write, whatever fragments they lie in; otherwise as [`Region::bytes_mut`].
    #[inline]
    pub fn fragments_mut(&mut self, range: Range<usize>) -> Result<FragmentsMut<'_>, LeaseError> {
        self.check(&range, Access::Write)?;
        Ok(FragmentsMut(self.pieces(range.start, range.end)))
    }

    /// Number of bytes.
    #[inline]
    pub fn length_bytes(&self) -> usize {
        self.list().and_then(<[_]>::last).map_or(self.view.length_bytes(), |last| last.end)
    }

    #[inline]
    pub(super) fn pieces(&self, start: usize, end: usize) -> Fragments<'_> {
        Fragments::of(&self.view, || self.parts(start, end), start, end)
    }

    #[inline]
    pub(super) fn one_view(&self, range: Range<usize>) -> View {
        self.pieces(range.start, range.end).one_view().expect(SEVERAL)
    }

    #[cold]
    fn parts(&self, start: usize, end: usize) -> Parts<'_> {
        let Some(list) = self.list() else { outside(start, end, self.view.length_bytes()) };
        Parts::of(list, start, end)
    }

    fn list(&self) -> Option<&[Fragment]> {
        self.books.as_ref()?.storage.list()
    }

    /// The run of a UMEM that all bytes of `range` lie in, and where, if there is one.
    #[inline]
    pub fn registered(&self, range: Range<usize>) -> Option<(&Registered, Range<usize>)> {
        let storage = &self.books.as_ref()?.storage;
        let Some(list) = storage.list() else { return Some((storage.registered()?, range)) };
        let (fragment, part) = Parts::of(list, range.start, range.end).next()?;
        Some((fragment.storage.registered().filter(|_| part.len() == range.len())?, part))
    }

    /// Whether the kernel has descriptors of registered chunks that bytes of `range` lie in.
    pub fn is_in_flight(&self, range: Range<usize>) -> bool {
        let is_in_flight =
            |storage: &Storage, range| storage.registered().is_some_and(|run| run.is_in_flight(range));
        let Some(books) = &self.books else { return false };
        let Some(list) = books.storage.list() else { return is_in_flight(&books.storage, range) };
        Parts::of(list, range.start, range.end).any(|(fragment, part)| is_in_flight(&fragment.storage, part))
    }
}

impl Lease {
    fn pieces(&self, Range { start, end }: Range<usize>) -> Fragments<'_> {
        let (begin, length_bytes) = (self.range.start, self.range.len());
        let parts = || match self.seat.storage.list() {
            Some(list) if start <= end && end <= length_bytes => Parts::of(list, begin + start, begin + end),
            _ => outside(start, end, length_bytes),
        };
        Fragments::of(&self.view, parts, start, end)
    }
}

impl WriteLease {
    /// Number of bytes.
    pub fn length_bytes(&self) -> usize {
        self.0.range.len()
    }

    /// The bytes of a part, whatever fragments they lie in.
    ///
    /// # Panics
    /// If the range leaves the lease.
    pub fn fragments(&self, range: Range<usize>) -> Fragments<'_> {
        self.0.pieces(range)
    }

    /// Fragments like [`WriteLease::fragments`], to write.
    pub fn fragments_mut(&mut self, range: Range<usize>) -> FragmentsMut<'_> {
        FragmentsMut(self.0.pieces(range))
    }
}

impl ReadLease {
    /// Number of bytes.
    pub fn length_bytes(&self) -> usize {
        self.0.range.len()
    }

    /// The bytes of a part, whatever fragments they lie in.
    ///
    /// # Panics
    /// If the range leaves the lease.
    pub fn part(&self, range: Range<usize>) -> Fragments<'_> {
        self.0.pieces(range)
    }

    /// The bytes, whatever fragments they lie in.
    #[must_use]
    pub fn fragments(&self) -> Fragments<'_> {
        self.0.pieces(0..self.0.range.len())
    }
}
