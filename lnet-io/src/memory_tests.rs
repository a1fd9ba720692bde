use std::collections::BTreeMap;

use lnet_core::handle::{Cookie, CookieKind};
use lnet_core::md::Threshold;
use proptest::prelude::*;

use super::*;
use crate::xsk::{CHUNK_BYTES, Umem, UmemConfig};

const TERMS: Terms = Terms { comes_home: true, peers_choose: false, is_read_alone: false };

impl Memory {
    /// The bytes of a span that lies in one fragment.
    pub(crate) fn bytes(&self, span: &Span) -> &[u8] {
        self.fragments(span).contiguous().unwrap()
    }

    /// As [`Memory::bytes`], to write.
    pub(crate) fn bytes_mut(&mut self, span: &Span) -> &mut [u8] {
        self.fragments_mut(span).contiguous().unwrap()
    }
}

fn md_of(shard: u8, slot: u32, generation: u32) -> MdHandle {
    MdHandle(Cookie::new(CookieKind::MemoryDesc, ShardId(shard), slot, generation))
}

fn md(slot: u32, generation: u32) -> MdHandle {
    md_of(0, slot, generation)
}

fn span(md: MdHandle, offset_bytes: u64, length_bytes: u32) -> Span {
    Span { buffer: md.into(), offset_bytes, length_bytes }
}

fn buffer(byte: u8) -> Buffer {
    Buffer::from(vec![byte; 4])
}

fn memory(descriptors: u32) -> Memory {
    Memory::new(ShardId(0), descriptors, 4)
}

#[test]
fn a_buffer_whose_event_waits_survives_the_reuse_of_its_slot() {
    let mut memory = memory(2);
    memory.lend(md(1, 1), buffer(1), TERMS);
    memory.lend(md(1, 2), buffer(2), TERMS);
    assert_eq!(memory.bytes(&span(md(1, 2), 1, 2)), [2, 2]);
    // An event of the former descriptor is being looked at while its last one waits.
    assert_eq!(memory.bytes(&span(md(1, 1), 0, 3)), [1, 1, 1]);
    assert_eq!(memory.give_back(md(1, 1)), Some(buffer(1)));
    assert_eq!(memory.give_back(md(1, 1)), None);
    assert_eq!(memory.give_back(md(1, 2)), Some(buffer(2)));
}

#[test]
fn a_buffer_without_events_is_freed_with_its_slot() {
    let mut memory = memory(1);
    memory.lend(md(0, 1), buffer(1), Terms { comes_home: false, ..TERMS });
    memory.lend(md(0, 2), buffer(2), TERMS);
    assert_eq!(memory.give_back(md(0, 1)), None);
    assert!(memory.ended.is_empty());
}

#[test]
fn a_buffer_of_the_node_is_found_beside_those_of_descriptors() {
    let mut memory = memory(2);
    memory.lend(md(0, 1), buffer(1), TERMS);
    let own = memory.add_buffer(Buffer::from(vec![9; 8]));
    let in_own = |offset_bytes, length_bytes| Span { buffer: own.into(), offset_bytes, length_bytes };
    assert_eq!(memory.bytes(&in_own(6, 2)), [9, 9]);
    assert!(memory.registered(&in_own(0, 8)).is_none());
    assert!(!memory.is_in_flight(&in_own(0, 8)) && !memory.is_lent(&in_own(0, 8)));
    memory.bytes_mut(&in_own(0, 1))[0] = 7;
    memory.copy(&in_own(0, 2), &span(md(0, 1), 1, 2));
    assert_eq!(memory.bytes(&span(md(0, 1), 0, 4)), [1, 7, 9, 1]);
    memory.copy(&span(md(0, 1), 0, 4), &in_own(4, 4));
    let whole = [7, 9, 9, 9, 1, 7, 9, 1];
    assert_eq!(memory.bytes(&in_own(0, 8)), whole);
    assert_eq!(memory.take_buffer(own), Some(Buffer::from(whole.to_vec())));
    assert_eq!(memory.take_buffer(own), None);
    let next = memory.add_buffer(buffer(3));
    assert_ne!(next, own, "a handle is not used twice");
    assert_eq!(memory.take_buffer(own), None);
    assert_eq!(memory.bytes(&Span { buffer: next.into(), offset_bytes: 0, length_bytes: 4 }), [3; 4]);
}

/// A router sends out of the buffer that it has received into. What the kernel still reads when the next
/// message comes stays as it was.
#[test]
fn a_buffer_of_the_node_is_lent_to_the_kernel() {
    let mut memory = memory(2);
    memory.lend(md(0, 1), buffer(1), TERMS);
    let own = memory.add_buffer(Buffer::from(vec![9; 8]));
    let in_own = |offset_bytes, length_bytes| Span { buffer: own.into(), offset_bytes, length_bytes };
    let lease = memory.lend_to_device(&in_own(2, 4)).unwrap();
    assert_eq!(&*lease, [9; 4]);
    assert!(memory.is_lent(&in_own(0, 8)) && memory.take_buffer(own).is_none());
    memory.try_fragments_mut(&in_own(4, 2)).unwrap().copy_from(&[7; 2]);
    memory.fragments_mut(&in_own(0, 2)).copy_from(&[6; 2]);
    assert_eq!(memory.bytes(&in_own(0, 8)), [6, 6, 0, 0, 7, 7, 0, 0]);
    assert_eq!(&*lease, [9; 4]);
    assert!(memory.take_buffer(own).is_some(), "the lease is on bytes that it has no more");
    drop(lease);
    assert!(memory.lend_to_device(&in_own(2, 4)).is_none(), "it has been given back");
    let handles: Vec<_> = (0..3).map(|_| memory.add_buffer(buffer(3))).collect();
    let slots: Vec<_> = handles.iter().map(|handle| handle.0.slot()).collect();
    assert_eq!(slots, [0, 1, 2], "slots are used again");
}

/// Buffers of one mapping are apart, and lent as others are.
#[test]
fn buffers_of_one_mapping_are_apart() {
    let mut memory = memory(1);
    let buffers = Buffer::mapped(3, 4096).unwrap();
    assert_eq!(buffers.iter().map(Buffer::len).collect::<Vec<_>>(), [4096; 3]);
    let handles: Vec<_> = buffers.into_iter().map(|buffer| memory.add_buffer(buffer)).collect();
    let whole = |at: usize| Span { buffer: handles[at].into(), offset_bytes: 0, length_bytes: 4096 };
    memory.fragments_mut(&whole(1)).copy_from(&[5; 4096]);
    let lease = memory.lend_to_device(&whole(1)).unwrap();
    for at in [0, 2] {
        assert_eq!(memory.bytes(&whole(at)), [0; 4096]);
        drop(memory.take_buffer(handles[at]).unwrap());
    }
    memory.fragments_mut(&whole(1)).copy_from(&[4; 4096]);
    assert!(lease.iter().all(|byte| *byte == 5), "the mapping lives as long as a lease on it");
    assert!(Buffer::mapped(1 << 30, 1 << 40).is_err(), "more than there is room for");
}

#[test]
fn terms_are_those_of_the_descriptor() {
    let mut md = MdSpec {
        length_bytes: 1,
        max_size_bytes: None,
        threshold: Threshold::Infinite,
        options: MdOptions::PUT,
        auto_unlink: false,
        event_queue: None,
        user_ptr: 0,
    };
    let terms = |comes_home, peers_choose, is_read_alone| Terms { comes_home, peers_choose, is_read_alone };
    assert_eq!(Terms::of(&md), terms(false, false, false));
    md.event_queue = Some(lnet_core::handle::EqHandle(Cookie::new(CookieKind::EventQueue, ShardId(0), 0, 1)));
    assert_eq!(Terms::of(&md), terms(true, false, false));
    md.options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
    assert_eq!(Terms::of(&md), terms(true, true, false));
    md.options = MdOptions::PUT | MdOptions::GET;
    assert_eq!(Terms::of(&md), terms(true, false, false));
    md.options = MdOptions::GET | MdOptions::MANAGE_REMOTE;
    assert_eq!(Terms::of(&md), terms(true, true, true));
    md.options = MdOptions::NONE;
    assert_eq!(Terms::of(&md), terms(true, true, true), "REPLYs go there");
}

#[test]
fn what_has_come_home_is_lent_to_nobody() {
    let mut memory = memory(1);
    memory.lend(md(0, 1), buffer(1), TERMS);
    assert!(memory.give_back(md(0, 1)).is_some());
    assert_eq!(memory.read_lease(&span(md(0, 1), 0, 1)).unwrap_err(), LeaseError::Home);
}

fn stale(use_it: impl FnOnce(&mut Memory, &Span)) {
    let mut memory = memory(1);
    memory.lend(md(0, 2), buffer(2), TERMS);
    use_it(&mut memory, &span(md(0, 1), 0, 0));
}

#[test]
#[should_panic(expected = "holds a buffer")]
fn reading_a_stale_span_is_a_programming_error() {
    stale(|memory, span| assert!(memory.bytes(span).is_empty()));
}

#[test]
#[should_panic(expected = "holds a buffer")]
fn writing_a_stale_span_is_a_programming_error() {
    stale(|memory, span| assert!(memory.bytes_mut(span).is_empty()));
}

#[test]
#[should_panic(expected = "holds a buffer")]
fn lending_a_stale_span_is_a_programming_error() {
    stale(|memory, span| drop(memory.lend_write(span)));
}

#[test]
fn a_sibling_receives_into_a_span() {
    let (mut lender, mut sibling) = (memory(2), Memory::new(ShardId(1), 2, 2));
    lender.lend(md(1, 1), Buffer::zeroed(8), TERMS);
    // The slot is in use on the sibling as well.
    sibling.lend(md_of(1, 1, 1), buffer(9), TERMS);
    let whole = span(md(1, 1), 2, 4);
    let lease = lender.lend_write(&whole).unwrap();
    assert!(lender.is_lent(&span(md(1, 1), 5, 3)) && !lender.is_lent(&span(md(1, 1), 6, 2)));
    assert!(lender.lend_write(&span(md(1, 1), 5, 1)).is_err());
    sibling.adopt(lease, &whole);
    sibling.bytes_mut(&whole).copy_from_slice(&[1, 2, 3, 4]);
    // A fragment.
    sibling.bytes_mut(&span(md(1, 1), 3, 2)).fill(7);
    assert_eq!(sibling.bytes(&whole), [1, 7, 7, 4]);
    assert_eq!(sibling.bytes(&span(md(1, 1), 5, 1)), [4]);
    assert_eq!(sibling.bytes(&span(md_of(1, 1, 1), 0, 4)), [9; 4]);
    sibling.release(&whole);
    assert!(!lender.is_lent(&whole));
    assert_eq!(lender.bytes(&span(md(1, 1), 0, 8)), [0, 0, 1, 7, 7, 4, 0, 0]);
    assert_eq!(lender.give_back(md(1, 1)), Some(Buffer::from(vec![0, 0, 1, 7, 7, 4, 0, 0])));
}

#[test]
fn a_span_without_bytes_needs_no_place() {
    let (mut lender, mut sibling) = (memory(1), Memory::new(ShardId(1), 1, 0));
    lender.lend(md(0, 1), buffer(1), TERMS);
    let empty = span(md(0, 1), 2, 0);
    sibling.adopt(lender.lend_write(&empty).unwrap(), &empty);
    assert!(sibling.bytes(&empty).is_empty() && sibling.bytes_mut(&empty).is_empty());
    sibling.release(&empty);
}

fn adopting(use_it: impl FnOnce(&mut Memory)) {
    let (mut lender, mut sibling) = (memory(1), Memory::new(ShardId(1), 1, 1));
    lender.lend(md(0, 1), buffer(1), TERMS);
    let whole = span(md(0, 1), 1, 2);
    sibling.adopt(lender.lend_write(&whole).unwrap(), &whole);
    use_it(&mut sibling);
}

#[test]
#[should_panic(expected = "or an adopted one")]
fn an_adopted_span_has_an_end() {
    adopting(|memory| assert!(memory.bytes_mut(&span(md(0, 1), 1, 3)).is_empty()));
}

#[test]
#[should_panic(expected = "or an adopted one")]
fn an_adopted_span_has_a_beginning() {
    adopting(|memory| assert!(memory.bytes(&span(md(0, 1), 0, 2)).is_empty()));
}

#[test]
#[should_panic(expected = "released as it was adopted")]
fn a_span_is_released_whole() {
    adopting(|memory| memory.release(&span(md(0, 1), 1, 1)));
}

#[test]
#[should_panic(expected = "than messages may arrive")]
fn adoptions_have_a_bound() {
    adopting(|memory| {
        let mut other = super::tests::memory(1);
        other.lend(md(0, 2), buffer(1), TERMS);
        let whole = span(md(0, 2), 0, 1);
        memory.adopt(other.lend_write(&whole).unwrap(), &whole);
    });
}

#[test]
#[should_panic(expected = "lent to be written")]
fn a_lent_span_is_not_touched() {
    let mut memory = memory(1);
    memory.lend(md(0, 1), buffer(1), TERMS);
    let _lease = memory.lend_write(&span(md(0, 1), 0, 4)).unwrap();
    let _ = memory.bytes(&span(md(0, 1), 3, 1));
}

#[test]
#[should_panic(expected = "lent to be read")]
fn a_span_that_is_read_elsewhere_is_not_written() {
    let mut memory = memory(1);
    memory.lend(md(0, 1), buffer(1), TERMS);
    let _lease = memory.read_lease(&span(md(0, 1), 0, 4)).unwrap();
    let _ = memory.bytes_mut(&span(md(0, 1), 3, 1));
}

#[test]
fn a_buffer_comes_home_after_its_last_event_and_its_last_lease() {
    let mut memory = memory(1);
    memory.lend(md(0, 1), buffer(1), TERMS);
    let lease = memory.read_lease(&span(md(0, 1), 1, 2)).unwrap();
    assert_eq!(memory.give_back(md(0, 1)), None);
    // The slot's next descriptor, and a lease on the payload of the last event.
    memory.lend(md(0, 2), buffer(2), TERMS);
    let last = memory.read_lease(&span(md(0, 1), 0, 1)).unwrap();
    assert_eq!((&*lease, &*last), (&[1, 1][..], &[1][..]));
    assert_eq!(memory.bytes(&span(md(0, 1), 0, 4)), [1; 4]);
    drop(lease);
    assert_eq!(memory.poll_home(), None);
    assert_eq!(memory.give_back(md(0, 1)), None, "it has had its last event");
    std::thread::spawn(move || drop(last)).join().unwrap();
    assert_eq!(memory.poll_home(), Some((md(0, 1), buffer(1))));
    assert_eq!(memory.poll_home(), None);
    assert_eq!(memory.give_back(md(0, 2)), Some(buffer(2)));
}

#[test]
fn a_lease_outlives_the_memory() {
    let mut memory = memory(1);
    memory.lend(md(0, 1), buffer(1), Terms { comes_home: false, ..TERMS });
    let lease = memory.read_lease(&span(md(0, 1), 0, 4)).unwrap();
    memory.lend(md(0, 2), buffer(2), TERMS);
    drop(memory);
    assert_eq!(*lease, [1; 4]);
}

#[test]
fn where_peers_choose_nothing_is_lent_to_readers() {
    let mut memory = memory(1);
    memory.lend(md(0, 1), buffer(1), Terms { peers_choose: true, ..TERMS });
    assert_eq!(memory.read_lease(&span(md(0, 1), 0, 1)).unwrap_err(), LeaseError::PeersChoose);
    assert!(memory.lend_write(&span(md(0, 1), 0, 1)).is_ok());
}

#[test]
fn registered_buffers_are_placed_in_the_umem() {
    let config = UmemConfig { registered_bytes: 4 * u64::from(CHUNK_BYTES), ..UmemConfig::new(2) };
    let (umem, _frames) = Umem::plain_with(&config).unwrap();
    let chunk = CHUNK_BYTES as usize;
    let mut memory = memory(2);
    memory.lend(md(0, 1), Buffer::from(umem.register(2 * chunk).unwrap()), TERMS);
    memory.lend(md(1, 1), buffer(1), TERMS);
    assert!(memory.registered(&span(md(1, 1), 1, 2)).is_none());
    let here = span(md(0, 1), 10, CHUNK_BYTES);
    memory.bytes_mut(&here).fill(5);
    let runs = memory.registered(&here).expect("the buffer is registered");
    let runs: Vec<_> = runs.map(|run| (run.address() as usize, run.length_bytes() as usize)).collect();
    assert_eq!(runs, [(2 * chunk + 10, chunk - 10), (3 * chunk, 10)]);
    assert!(!memory.is_in_flight(&here) && !memory.is_in_flight(&span(md(1, 1), 0, 4)));
    let home = memory.give_back(md(0, 1)).unwrap();
    assert!(home[10..10 + chunk].iter().all(|byte| *byte == 5) && home[10 + chunk] == 0);
    assert!(umem.register(3 * chunk).is_none());
    drop(home);
    assert!(umem.register(4 * chunk).is_some());
}

#[test]
fn receiving_for_a_sibling_allocates_nothing() {
    let (mut lender, mut sibling) = (memory(1), Memory::new(ShardId(1), 1, 8));
    lender.lend(md(0, 1), Buffer::zeroed(64), TERMS);
    let mut turn = || {
        let spans: [_; 8] = core::array::from_fn(|index| span(md(0, 1), index as u64 * 8, 8));
        for one in &spans {
            sibling.adopt(lender.lend_write(one).unwrap(), one);
        }
        for one in &spans {
            sibling.bytes_mut(one).fill(1);
            sibling.release(one);
        }
    };
    turn();
    assert_eq!(allocation_counter::measure(|| (0..10).for_each(|_| turn())).count_total, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// A sibling's adopted spans against a map of what is in them.
    #[test]
    fn adopted_spans_equal_a_map(
        steps in prop::collection::vec((0u8..3, 0u32..3, 0u64..16, 1u32..6, any::<u8>()), 0..80),
    ) {
        const BYTES: u64 = 20;
        let (mut lender, mut sibling) = (memory(3), Memory::new(ShardId(1), 3, 60));
        let mut bytes: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for slot in 0..3 {
            lender.lend(md(slot, 1), Buffer::zeroed(BYTES as usize), TERMS);
            bytes.insert(slot, vec![0; BYTES as usize]);
        }
        let mut adopted: Vec<Span> = Vec::new();
        for (kind, slot, offset, length, value) in steps {
            let wanted = span(md(slot, 1), offset, length.min((BYTES - offset) as u32));
            let overlaps = |other: &Span| {
                let end = |span: &Span| span.offset_bytes + u64::from(span.length_bytes);
                other.buffer == wanted.buffer && other.offset_bytes.max(offset) < end(other).min(end(&wanted))
            };
            match kind {
                0 => match lender.lend_write(&wanted) {
                    Ok(lease) => {
                        prop_assert!(!adopted.iter().any(overlaps));
                        sibling.adopt(lease, &wanted);
                        adopted.push(wanted);
                    }
                    Err(_) => prop_assert!(adopted.iter().any(overlaps)),
                },
                1 if !adopted.is_empty() => {
                    let one = adopted[value as usize % adopted.len()];
                    sibling.bytes_mut(&one).fill(value);
                    let at = one.offset_bytes as usize;
                    bytes.get_mut(&one.buffer.0.slot()).unwrap()[at..at + one.length_bytes as usize].fill(value);
                }
                2 if !adopted.is_empty() => {
                    sibling.release(&adopted.swap_remove(value as usize % adopted.len()));
                }
                _ => {}
            }
        }
        adopted.iter().for_each(|one| sibling.release(one));
        for (slot, bytes) in &bytes {
            prop_assert_eq!(lender.bytes(&span(md(*slot, 1), 0, BYTES as u32)), &bytes[..]);
        }
    }
}

proptest! {
    /// Against two vectors.
    #[test]
    fn copies_are_those_of_vectors(
        from in 0..2_u32,
        from_offset in 0..20_u64,
        to_offset in 0..20_u64,
        length in 0..13_u32,
        longer in 0..4_u32,
    ) {
        let to = 1 - from;
        let bytes = |first: u8| (0..36).map(|byte| first + byte).collect::<Vec<u8>>();
        let mut model = [bytes(0), bytes(100)];
        let mut memory = memory(2);
        for (slot, bytes) in (0..).zip(&model) {
            memory.lend(md(slot, 1), Buffer::from(bytes.clone()), TERMS);
        }
        memory.copy(&span(md(from, 1), from_offset, length + longer), &span(md(to, 1), to_offset, length));
        let (start, length) = (from_offset as usize, length as usize);
        let copied = model[from as usize][start..start + length].to_vec();
        model[to as usize][to_offset as usize..][..length].copy_from_slice(&copied);
        for (slot, bytes) in (0..).zip(&model) {
            prop_assert_eq!(memory.bytes(&span(md(slot, 1), 0, 36)), bytes.as_slice());
        }
    }
}

#[test]
fn a_copy_goes_into_an_adopted_span() {
    let mut memory = memory(1);
    let mut sibling = Memory::new(ShardId(1), 1, 4);
    memory.lend(md(0, 1), buffer(7), TERMS);
    let theirs = md_of(1, 0, 1);
    sibling.lend(theirs, buffer(0), TERMS);
    let lent = span(theirs, 1, 2);
    memory.adopt(sibling.lend_write(&lent).unwrap(), &lent);
    memory.copy(&span(md(0, 1), 0, 4), &lent);
    memory.release(&lent);
    assert_eq!(sibling.bytes(&span(theirs, 0, 4)), [0, 7, 7, 0]);
}
