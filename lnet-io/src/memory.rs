//! Buffers of memory descriptors: where a shard's payload bytes are.
//!
//! A [`Buffer`] is lent by value when a descriptor is attached or bound, and comes home with the event
//! that carries the descriptor's unlinked mark, or once the last lease on it is back, if that is later. In
//! between only the shard's drivers write to it, and those to whom they lend a part.
//!
//! Buffers of the node itself, which belong to no descriptor, are added and taken ([`Memory::add_buffer`]);
//! spans of both kinds are found alike.
//!
//! Leases (`region`) are of two kinds. A message that arrives on another shard than its descriptor's is
//! received there: the descriptor's shard lends the span ([`Memory::lend_write`]), the other one adopts the
//! lease ([`Memory::adopt`]) and from then on finds the span's bytes as if they were its own, until it
//! releases them ([`Memory::release`]). And an event's payload is read on other threads by a read lease
//! (`Memory::read_lease`, behind the worker's of the same name).
//!
//! A read lease is given only where no message can be written to its bytes any more: not where peers choose
//! the offset, nor where REPLYs go.

use std::ops::Range;

use lnet_core::handle::{BufferHandle, BufferRef, Cookie, CookieKind, MdHandle, ShardId};
use lnet_core::lnd::Span;
use lnet_core::md::{MdOptions, MdSpec};

use crate::region::LeaseError;
pub use crate::region::{Fragments, FragmentsMut, checksum};
pub use crate::region::{ReadLease, WriteLease};
use crate::xsk::{RegisteredRuns, prefetch};

mod buffer;

pub use buffer::{BUFFER_FRAGMENTS_MAX, Buffer, FragmentsError};

/// How a descriptor borrows its buffer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Terms {
    /// Whether an event will bring it home. Without an event queue it is freed when the slot is reused.
    pub comes_home: bool,
    /// Whether a span may be written again: peers choose it, or REPLYs go there.
    pub peers_choose: bool,
    /// Whether peers read it, and no peer writes to it; or whether no peer does either.
    pub is_read_alone: bool,
}

impl Terms {
    /// Terms of a descriptor that is made like this.
    pub fn of(md: &MdSpec) -> Self {
        Self {
            comes_home: md.event_queue.is_some(),
            peers_choose: md.options.contains(MdOptions::MANAGE_REMOTE)
                || !md.options.intersects(MdOptions::PUT | MdOptions::GET),
            is_read_alone: !md.options.contains(MdOptions::PUT),
        }
    }
}

/// What a descriptor has lent. Small, for there are many and each message looks one up.
#[derive(Debug)]
struct Loan {
    md: MdHandle,
    buffer: Buffer,
}

const _: () = assert!(size_of::<Option<Loan>>() == 32);

/// The loan of a descriptor that is gone while its buffer is still here: its slot was reused before its last
/// event was taken, or that event was taken while a lease was out.
#[derive(Debug)]
struct Ended {
    loan: Loan,
    terms: Terms,
    /// Whether the last event has been taken, and only leases keep the buffer from coming home.
    is_due: bool,
}

impl Ended {
    /// Whether its buffer can go home.
    fn is_ready(&mut self) -> bool {
        self.is_due && self.loan.buffer.0.is_whole()
    }
}

/// A run of a sibling shard's buffer that is this shard's to write.
#[derive(Debug)]
struct Adopted {
    buffer: BufferRef,
    offset_bytes: u64,
    lease: WriteLease,
}

impl Adopted {
    /// Where the bytes of `span` are in the lease, if they are there.
    fn range(&self, span: &Span) -> Option<Range<usize>> {
        let start = usize::try_from(span.offset_bytes.checked_sub(self.offset_bytes)?).ok()?;
        let range = start..start.checked_add(span.length_bytes as usize)?;
        (self.buffer == span.buffer && range.end <= self.lease.length_bytes()).then_some(range)
    }
}

/// The buffers that a shard's memory descriptors hold, by slot of their handle, and the spans of its
/// siblings' that it has been lent.
#[derive(Debug)]
pub struct Memory {
    shard: ShardId,
    loans: Vec<Option<Loan>>,
    /// Terms of the loan in the same place.
    terms: Vec<Terms>,
    /// No more than there are events and leases.
    ended: Vec<Ended>,
    /// Adopted fragments, in the order of buffer and offset. The lenders see to it that none overlap.
    adopted: Vec<Adopted>,
    adopted_max: usize,
    /// Buffers of the node itself, by slot of their handle, with the generation of the slot.
    node_buffers: Vec<(u32, Option<Buffer>)>,
    /// Slots of those that were given back.
    free_node_slots: Vec<u32>,
}

impl Memory {
    /// The memory of `shard`, with room for the buffers of `descriptors` memory descriptors and for
    /// `adopted_max` leases of siblings: as many as messages may arrive at once.
    #[must_use]
    pub fn new(shard: ShardId, descriptors: u32, adopted_max: u32) -> Self {
        Self {
            shard,
            loans: (0..descriptors).map(|_| None).collect(),
            terms: vec![Terms::default(); descriptors as usize],
            ended: Vec::new(),
            adopted: Vec::with_capacity(adopted_max as usize),
            adopted_max: adopted_max as usize,
            node_buffers: Vec::new(),
            free_node_slots: Vec::new(),
        }
    }

    /// Takes a buffer that belongs to no descriptor, for messages that are forwarded. Not on the data path.
    ///
    /// # Panics
    /// If there are as many as a handle can name.
    pub fn add_buffer(&mut self, buffer: Buffer) -> BufferHandle {
        let slot = self.free_node_slots.pop().unwrap_or_else(|| {
            self.node_buffers.push((0, None));
            self.node_buffers.len() as u32 - 1
        });
        let (generation, stored) = &mut self.node_buffers[slot as usize];
        *generation = generation.checked_add(1).unwrap_or(1);
        *stored = Some(buffer);
        BufferHandle(Cookie::new(CookieKind::Buffer, self.shard, slot, *generation))
    }

    /// Gives a buffer back that was added; `None` if it has been given back, or is lent or in flight in part.
    pub fn take_buffer(&mut self, handle: BufferHandle) -> Option<Buffer> {
        let buffer =
            node_slot(&mut self.node_buffers, handle.into())?.take_if(|buffer| buffer.0.is_whole())?;
        self.free_node_slots.push(handle.0.slot());
        Some(buffer)
    }

    /// Takes the buffer of a descriptor that was just made.
    pub fn lend(&mut self, md: MdHandle, buffer: Buffer, terms: Terms) {
        let slot = md.0.slot() as usize;
        let former = self.loans[slot].replace(Loan { md, buffer });
        let terms = std::mem::replace(&mut self.terms[slot], terms);
        let waits = former.filter(|_| terms.comes_home);
        self.ended.extend(waits.map(|loan| Ended { loan, terms, is_due: false }));
    }

    /// Gives the buffer of a descriptor back whose last event has been taken. While a lease on it is out it
    /// stays, and [`Memory::poll_home`] gives it back.
    pub fn give_back(&mut self, md: MdHandle) -> Option<Buffer> {
        let slot = md.0.slot() as usize;
        let current = self.loans[slot].take_if(|loan| loan.md == md);
        let current = current.map(|loan| Ended { loan, terms: self.terms[slot], is_due: false });
        let ended = || {
            let index = self.ended.iter().position(|ended| ended.loan.md == md && !ended.is_due)?;
            Some(self.ended.swap_remove(index))
        };
        let mut ended = current.or_else(ended)?;
        if ended.loan.buffer.0.is_whole() {
            return Some(ended.loan.buffer);
        }
        self.ended.push(Ended { is_due: true, ..ended });
        None
    }

    /// A buffer that could not come home with its descriptor's last event, and can now that its leases are
    /// back. Until then, and until it is taken here, its spans can be read and lent as before.
    pub fn poll_home(&mut self) -> Option<(MdHandle, Buffer)> {
        let index = self.ended.iter_mut().position(Ended::is_ready)?;
        let Loan { md, buffer } = self.ended.swap_remove(index).loan;
        Some((md, buffer))
    }

    /// Whether [`Memory::poll_home`] has one.
    pub fn has_home(&mut self) -> bool {
        self.ended.iter_mut().any(Ended::is_ready)
    }

    /// The bytes of a span: of a descriptor of this shard's, or of a sibling's that was adopted, or of a part
    /// of one.
    ///
    /// # Panics
    /// If the descriptor has no buffer or the span leaves it: spans come from the shard, which checked
    /// them against the descriptor's length. If a write lease on some of the bytes is out.
    #[inline]
    #[must_use]
    pub fn fragments(&self, span: &Span) -> Fragments<'_> {
        match self.current(span) {
            Some(buffer) => granted(buffer.0.fragments(range(span))),
            None => self.fragments_elsewhere(span),
        }
    }

    /// The bytes of a span of this shard's, for the application.
    ///
    /// # Errors
    /// [`LeaseError::BeingWritten`] when a write lease on some of them is out.
    ///
    /// # Panics
    /// If the descriptor has no buffer, or the span leaves it.
    pub fn read(&self, span: &Span) -> Result<Fragments<'_>, LeaseError> {
        let ended = || self.ended.iter().map(|ended| &ended.loan).find(|loan| span.buffer == loan.md);
        let buffer = self.current(span).or_else(|| ended().map(|loan| &loan.buffer));
        buffer.expect(NO_LOAN).0.fragments(range(span))
    }

    /// The bytes of a span, to be written; otherwise as [`Memory::fragments`].
    ///
    /// # Panics
    /// As [`Memory::fragments`], and if a read lease on some of the bytes is out.
    #[inline]
    #[must_use]
    pub fn fragments_mut(&mut self, span: &Span) -> FragmentsMut<'_> {
        // Only a descriptor that still lives is written to, and that one has its slot.
        match self.loans.get_mut(span.buffer.0.slot() as usize) {
            Some(Some(loan)) if span.buffer == loan.md => granted(loan.buffer.0.fragments_mut(range(span))),
            _ if span.buffer.0.is(CookieKind::Buffer) => {
                granted(node_buffer_mut(&mut self.node_buffers, span.buffer).0.fragments_mut(range(span)))
            }
            _ => adopted_fragments_mut(&mut self.adopted, self.shard, span),
        }
    }

    /// Fragments like [`Memory::fragments`]; `None` while some of the bytes are lent to be written.
    pub fn try_fragments(&self, span: &Span) -> Option<Fragments<'_>> {
        match self.current(span) {
            Some(buffer) => buffer.0.fragments(range(span)).ok(),
            None => Some(self.fragments_elsewhere(span)),
        }
    }

    /// Fragments like [`Memory::fragments_mut`]; `None` while some of the bytes are lent.
    pub fn try_fragments_mut(&mut self, span: &Span) -> Option<FragmentsMut<'_>> {
        let slot = span.buffer.0.slot() as usize;
        if !matches!(self.loans.get(slot), Some(Some(loan)) if span.buffer == loan.md) {
            return Some(self.fragments_mut(span));
        }
        self.loans[slot].as_mut()?.buffer.0.fragments_mut(range(span)).ok()
    }

    /// Lends a span of this shard's to the kernel, which reads it; `None` where peers might have it written
    /// to meanwhile, or it is lent. A message that is forwarded lies in a buffer of the node: nothing is
    /// written there before it has ended.
    pub fn lend_to_device(&mut self, span: &Span) -> Option<ReadLease> {
        if span.buffer.0.is(CookieKind::Buffer) {
            let stored = node_slot(&mut self.node_buffers, span.buffer)?.as_mut()?;
            return stored.0.lend_read(range(span)).ok();
        }
        let slot = span.buffer.0.slot() as usize;
        self.terms.get(slot).filter(|terms| terms.is_read_alone)?;
        let loan = self.loans.get_mut(slot)?.as_mut().filter(|loan| span.buffer == loan.md)?;
        loan.buffer.0.lend_read(range(span)).ok()
    }

    /// Has fetched where the buffer of a descriptor of this shard's lies.
    #[inline]
    pub fn prefetch_loan(&self, md_slot: u32) {
        if let Some(loan) = self.loans.get(md_slot as usize) {
            prefetch(std::ptr::from_ref(loan).cast());
        }
    }

    /// Has the beginning of the buffer of a descriptor of this shard's fetched.
    #[inline]
    pub fn prefetch_bytes(&self, md_slot: u32) {
        if let Some(Some(loan)) = self.loans.get(md_slot as usize) {
            loan.buffer.0.prefetch();
        }
    }

    /// Copies the first bytes of a span of this shard's into another descriptor's span, of this shard's or an
    /// adopted one: as many as that has.
    ///
    /// # Panics
    /// As [`Memory::fragments`] and [`Memory::fragments_mut`], and if `from` is shorter or is not this
    /// shard's, or both are of one buffer: a message is not sent out of an attached descriptor.
    pub fn copy(&mut self, from: &Span, to: &Span) {
        assert!(from.length_bytes >= to.length_bytes, "{to:?} is longer than {from:?}");
        assert!(from.buffer != to.buffer, "{to:?} is copied to from its own buffer");
        let from = Span { length_bytes: to.length_bytes, ..*from };
        // Out of its slot for as long as both are used.
        if let Some(mut target) = node_slot(&mut self.node_buffers, to.buffer).and_then(Option::take) {
            self.fragments(&from).copy_to(granted(target.0.fragments_mut(range(to))));
            self.node_buffers[to.buffer.0.slot() as usize].1 = Some(target);
            return;
        }
        if let Some(source) = node_slot(&mut self.node_buffers, from.buffer).and_then(Option::take) {
            granted(source.0.fragments(range(&from))).copy_to(self.fragments_mut(to));
            self.node_buffers[from.buffer.0.slot() as usize].1 = Some(source);
            return;
        }
        let slots = [from.buffer, to.buffer].map(|buffer| buffer.0.slot() as usize);
        if to.buffer.0.shard() == self.shard {
            let loans = self.loans.get_disjoint_mut(slots).expect(NO_LOAN);
            let [Some(source), Some(target)] = loans else { panic!("{NO_LOAN}") };
            assert!(from.buffer == source.md && to.buffer == target.md, "{NO_LOAN}");
            let source = granted(source.buffer.0.fragments(range(&from)));
            source.copy_to(granted(target.buffer.0.fragments_mut(range(to))));
        } else {
            let source = self.loans[slots[0]].as_ref().filter(|loan| from.buffer == loan.md).expect(NO_LOAN);
            let source = granted(source.buffer.0.fragments(range(&from)));
            source.copy_to(adopted_fragments_mut(&mut self.adopted, self.shard, to));
        }
    }

    /// The bytes of a span, if all lie in one fragment in the UMEM: these runs can go into a transmit ring as
    /// they are ([`crate::xsk::TxRing::push_registered`]). The message has been sent only when
    /// [`Memory::is_in_flight`] says no.
    ///
    /// # Panics
    /// If the span leaves its buffer.
    #[inline]
    #[must_use]
    pub fn registered(&self, span: &Span) -> Option<RegisteredRuns<'_>> {
        let (registered, range) = self.current(span)?.0.registered(range(span))?;
        Some(registered.runs(range))
    }

    /// Whether the kernel has descriptors of registered chunks that the span lies in, for whatever message.
    ///
    /// # Panics
    /// If the span's descriptor is none of this shard's, or the span leaves it.
    #[must_use]
    pub fn is_in_flight(&self, span: &Span) -> bool {
        self.current(span).expect(NO_LOAN).0.is_in_flight(range(span))
    }

    /// Whether a lease on some of the span's bytes is out.
    #[cfg(test)]
    pub fn is_lent(&self, span: &Span) -> bool {
        self.current(span).expect(NO_LOAN).0.is_lent(range(span))
    }

    /// Lends a span of this shard's to a sibling, which receives into it. This shard leaves it alone until
    /// the lease has been dropped.
    ///
    /// # Errors
    /// [`LeaseError`] when some of the bytes are lent already.
    ///
    /// # Panics
    /// If the descriptor has no buffer, or the span leaves it.
    pub fn lend_write(&mut self, span: &Span) -> Result<WriteLease, LeaseError> {
        let current = self.loans.get_mut(span.buffer.0.slot() as usize).and_then(Option::as_mut);
        current.filter(|loan| span.buffer == loan.md).expect(NO_LOAN).buffer.0.lend_write(range(span))
    }

    /// Lends the payload of an event to other threads to be read. The buffer comes home after the last event
    /// and the last lease. Nothing may be written to it any more: the event has been told.
    ///
    /// # Errors
    /// [`LeaseError`] when messages might be written to the bytes meanwhile, or their buffer has been given
    /// back.
    ///
    /// # Panics
    /// If the span leaves the descriptor.
    pub fn read_lease(&mut self, span: &Span) -> Result<ReadLease, LeaseError> {
        let slot = span.buffer.0.slot() as usize;
        let (loan, terms) = match self.loans.get_mut(slot) {
            Some(Some(loan)) if span.buffer == loan.md => (loan, self.terms[slot]),
            _ => {
                let ended = self.ended.iter_mut().find(|ended| span.buffer == ended.loan.md);
                let ended = ended.ok_or(LeaseError::Home)?;
                (&mut ended.loan, ended.terms)
            }
        };
        if terms.peers_choose {
            return Err(LeaseError::PeersChoose);
        }
        loan.buffer.0.lend_read(range(span))
    }

    /// Takes a lease that a sibling has given on a span of its own: [`Memory::fragments_mut`] finds it until
    /// [`Memory::release`].
    ///
    /// # Panics
    /// If the span is this shard's or not as long as the lease, or more leases are adopted than there is room
    /// for: each belongs to a message that arrives.
    pub fn adopt(&mut self, lease: WriteLease, span: &Span) {
        assert!(span.buffer.0.shard() != self.shard, "a shard adopted a span of its own");
        assert!(span.length_bytes as usize == lease.length_bytes(), "a lease is as long as its span");
        // Nothing to find: there is no need to, either.
        if span.length_bytes == 0 {
            return;
        }
        assert!(self.adopted.len() < self.adopted_max, "more leases were adopted than messages may arrive");
        let index = index_of(&self.adopted, span);
        let Span { buffer, offset_bytes, .. } = *span;
        self.adopted.insert(index, Adopted { buffer, offset_bytes, lease });
    }

    /// Returns the lease on an adopted span to the sibling that gave it. Before the sibling is told of it:
    /// what was written is there then.
    ///
    /// # Panics
    /// If the span was not adopted.
    pub fn release(&mut self, span: &Span) {
        if span.length_bytes == 0 {
            return;
        }
        let index = index_of(&self.adopted, span).checked_sub(1).expect(NO_LOAN);
        let Adopted { buffer, offset_bytes, ref lease } = self.adopted[index];
        let is_whole = (buffer, offset_bytes, lease.length_bytes())
            == (span.buffer, span.offset_bytes, span.length_bytes as usize);
        assert!(is_whole, "a span is released as it was adopted");
        self.adopted.remove(index);
    }

    /// The buffer of the descriptor that has its slot, or of the node.
    #[inline]
    fn current(&self, span: &Span) -> Option<&Buffer> {
        match self.loans.get(span.buffer.0.slot() as usize) {
            Some(Some(loan)) if span.buffer == loan.md => Some(&loan.buffer),
            _ => self.node_buffer(span.buffer),
        }
    }

    #[cold]
    fn node_buffer(&self, buffer: BufferRef) -> Option<&Buffer> {
        let (generation, stored) = self.node_buffers.get(buffer.0.slot() as usize)?;
        stored.as_ref().filter(|_| buffer.0.is(CookieKind::Buffer) && buffer.0.generation() == *generation)
    }

    #[cold]
    fn fragments_elsewhere(&self, span: &Span) -> Fragments<'_> {
        if span.buffer.0.shard() == self.shard {
            let ended = self.ended.iter().find(|ended| span.buffer == ended.loan.md).expect(NO_LOAN);
            return granted(ended.loan.buffer.0.fragments(range(span)));
        }
        if span.length_bytes == 0 {
            return Fragments::default();
        }
        let index = index_of(&self.adopted, span).checked_sub(1).expect(NO_LOAN);
        let adopted = &self.adopted[index];
        adopted.lease.fragments(adopted.range(span).expect(NO_LOAN))
    }
}

/// The slot of a buffer of the node itself.
#[cold]
fn node_slot(buffers: &mut [(u32, Option<Buffer>)], buffer: BufferRef) -> Option<&mut Option<Buffer>> {
    let (generation, slot) = buffers.get_mut(buffer.0.slot() as usize)?;
    (buffer.0.is(CookieKind::Buffer) && buffer.0.generation() == *generation).then_some(slot)
}

/// A buffer of the node, to be written. A message that has failed may have left it to the kernel, which still
/// reads it: then it gets other bytes.
#[cold]
fn node_buffer_mut(buffers: &mut [(u32, Option<Buffer>)], buffer: BufferRef) -> &mut Buffer {
    let stored = node_slot(buffers, buffer).and_then(Option::as_mut).expect(NO_LOAN);
    if !stored.0.is_whole() {
        *stored = Buffer::zeroed(stored.len());
    }
    stored
}

/// The place behind all adopted spans of the same descriptor that begin where `span` does, or before.
fn index_of(adopted: &[Adopted], span: &Span) -> usize {
    adopted.partition_point(|one| (one.buffer, one.offset_bytes) <= (span.buffer, span.offset_bytes))
}

#[cold]
fn adopted_fragments_mut<'a>(adopted: &'a mut [Adopted], shard: ShardId, span: &Span) -> FragmentsMut<'a> {
    assert!(span.buffer.0.shard() != shard, "{NO_LOAN}");
    if span.length_bytes == 0 {
        return FragmentsMut::default();
    }
    let index = index_of(adopted, span).checked_sub(1).expect(NO_LOAN);
    let adopted = &mut adopted[index];
    let range = adopted.range(span).expect(NO_LOAN);
    adopted.lease.fragments_mut(range)
}

/// A shard's span for a descriptor that has no buffer is a programming error.
const NO_LOAN: &str = "a span names a descriptor that holds a buffer, or an adopted one";

/// Bytes that are not lent. Asking for others is a programming error: the shard knows what it
/// has lent.
#[inline]
fn granted<T>(bytes: Result<T, LeaseError>) -> T {
    match bytes {
        Ok(bytes) => bytes,
        Err(error) => panic!("bytes are used that are lent: {error}"),
    }
}

/// A buffer lies in memory, so an offset into it fits a `usize`.
#[inline]
fn range(span: &Span) -> Range<usize> {
    let start = usize::try_from(span.offset_bytes).expect("an offset within a buffer fits the address space");
    start..start + span.length_bytes as usize
}

#[cfg(test)]
#[path = "memory/fragments_tests.rs"]
mod fragments_tests;
#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
