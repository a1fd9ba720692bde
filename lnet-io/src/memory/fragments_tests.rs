//! Buffers of several fragments against flat vectors.

use std::iter::zip;

use lnet_core::handle::{Cookie, CookieKind};
use proptest::prelude::*;

use super::*;
use crate::xsk::{CHUNK_BYTES, Umem, UmemConfig};

const TERMS: Terms = Terms { comes_home: true, peers_choose: false, is_read_alone: false };

impl Buffer {
    /// Cuts these bytes at these shares of their length, in 65536ths.
    pub(crate) fn cut(bytes: &[u8], cuts: &[u16]) -> Self {
        let mut places: Vec<usize> = cuts.iter().map(|cut| usize::from(*cut) * bytes.len() / 65536).collect();
        places.extend([0, bytes.len()]);
        places.sort_unstable();
        places.dedup();
        Self::from_fragments(places.windows(2).map(|ends| bytes[ends[0]..ends[1]].to_vec())).unwrap()
    }

    /// The bytes of all fragments.
    pub(crate) fn flat(&self) -> Vec<u8> {
        self.fragments().flatten().copied().collect()
    }
}

fn md(shard: u8, slot: u32) -> MdHandle {
    MdHandle(Cookie::new(CookieKind::MemoryDesc, ShardId(shard), slot, 1))
}

fn span(slot: u32, range: &Range<usize>) -> Span {
    let (offset_bytes, length_bytes) = (range.start as u64, range.len() as u32);
    Span { buffer: md(0, slot).into(), offset_bytes, length_bytes }
}

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|index| seed ^ index as u8).collect()
}

fn flat(fragments: Fragments<'_>) -> Vec<u8> {
    assert!(fragments.clone().all(|piece| !piece.is_empty()));
    let bytes = fragments.clone().flatten().copied().collect::<Vec<u8>>();
    assert_eq!(fragments.length_bytes(), bytes.len());
    assert_eq!(crate::region::checksum(fragments), crc_fast::crc32_iscsi(&bytes));
    bytes
}

const BYTES: usize = 60;

fn range() -> impl Strategy<Value = Range<usize>> {
    (0..=BYTES, 0..=BYTES).prop_map(|(one, other)| one.min(other)..one.max(other))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    /// Two buffers of several fragments against two vectors: their own shard reads, writes and copies, a
    /// sibling writes by leases, and other threads' read leases see the bytes.
    #[test]
    fn fragments_equal_vectors(
        cuts in prop::array::uniform2(prop::collection::vec(any::<u16>(), 0..20)),
        steps in prop::collection::vec((0..5_u8, 0..2_u32, range(), 0..BYTES, any::<u8>()), 0..40),
    ) {
        let mut model = [pattern(1, BYTES), pattern(2, BYTES)];
        let mut memory = Memory::new(ShardId(0), 2, 1);
        let mut sibling = Memory::new(ShardId(1), 1, 1);
        for (slot, (bytes, cuts)) in (0..).zip(zip(&model, &cuts)) {
            memory.lend(md(0, slot), Buffer::cut(bytes, cuts), TERMS);
        }
        let mut reads = Vec::new();
        for (kind, slot, range, other, value) in steps {
            let (index, bytes) = (slot as usize, pattern(value, range.len()));
            let wanted = span(slot, &range);
            let is_read = memory.is_lent(&wanted);
            prop_assert_eq!(flat(memory.fragments(&wanted)), &model[index][range.clone()]);
            match kind {
                0 => {
                    let lease = memory.read_lease(&wanted).unwrap();
                    reads.push((lease, model[index][range].to_vec()));
                }
                1 if !is_read => {
                    memory.fragments_mut(&wanted).copy_from(&bytes);
                    model[index][range].copy_from_slice(&bytes);
                }
                2 if !is_read => {
                    let other = other.min(BYTES - range.len());
                    let source = other..other + range.len();
                    memory.copy(&span(1 - slot, &source), &wanted);
                    let source = model[1 - index][source].to_vec();
                    model[index][range].copy_from_slice(&source);
                }
                3 if !is_read => {
                    sibling.adopt(memory.lend_write(&wanted).unwrap(), &wanted);
                    prop_assert_eq!(memory.is_lent(&wanted), !range.is_empty());
                    let middle = other.min(range.len());
                    for part in [0..middle, middle..range.len()] {
                        let there = span(slot, &(range.start + part.start..range.start + part.end));
                        sibling.fragments_mut(&there).copy_from(&bytes[part.clone()]);
                        prop_assert_eq!(flat(sibling.fragments(&there)), &bytes[part]);
                    }
                    sibling.release(&wanted);
                    model[index][range].copy_from_slice(&bytes);
                }
                4 => reads.clear(),
                _ => prop_assert!(memory.lend_write(&wanted).is_err()),
            }
            for (lease, expected) in &reads {
                prop_assert_eq!(&flat(lease.fragments()), expected);
            }
        }
        drop(reads);
        for (slot, bytes) in (0..).zip(&model) {
            let home = memory.give_back(md(0, slot)).unwrap();
            prop_assert_eq!(home.len(), BYTES);
            prop_assert_eq!(&home.flat(), bytes);
            let fragments: Vec<u8> = home.into_fragments().iter().flat_map(|one| one.to_vec()).collect();
            prop_assert_eq!(&fragments, bytes);
        }
    }
}

#[test]
fn a_buffer_has_1_to_256_fragments_with_bytes() {
    let whole = Buffer::from_fragments((0..=255_u8).map(|byte| vec![byte; 2])).unwrap();
    assert_eq!((whole.len(), whole.fragments().count()), (512, BUFFER_FRAGMENTS_MAX));
    let fragments = whole.into_fragments();
    assert!(fragments.iter().zip(0..=255).all(|(fragment, byte)| **fragment == [byte; 2]));

    let further = fragments.into_iter().chain([Buffer::zeroed(1)]);
    let error = Buffer::from_fragments(further).unwrap_err();
    assert_eq!(error.to_string(), "257 fragments: 1 to 256 are expected of a buffer");
    let FragmentsError::Count(mut fragments) = error else { panic!("{error}") };
    fragments.truncate(3);
    assert_eq!(*fragments[2], [2, 2], "they come back");

    let error = Buffer::from_fragments(Vec::<Vec<u8>>::new()).unwrap_err();
    assert_eq!(error.to_string(), "0 fragments: 1 to 256 are expected of a buffer");

    fragments.push(Buffer::default());
    let error = Buffer::from_fragments(fragments).unwrap_err();
    assert_eq!(error.to_string(), "fragment 3 of 4 has no bytes: 1 byte at least is expected");
    let FragmentsError::Empty { index: 3, mut fragments } = error else { panic!("{error}") };
    fragments.pop();

    // One of several counts as those.
    let inner = Buffer::from_fragments(fragments).unwrap();
    let outer = Buffer::from_fragments([Buffer::from(vec![9]), inner]).unwrap();
    assert_eq!(outer.fragments().collect::<Vec<_>>(), [&[9][..], &[0, 0], &[1, 1], &[2, 2]]);
    assert_eq!(outer, Buffer::from(vec![9, 0, 0, 1, 1, 2, 2]));
    assert_ne!(outer, Buffer::zeroed(7));

    let mut one = Buffer::from_fragments([vec![1, 2]]).unwrap();
    one.fragments_mut().for_each(|piece| piece.fill(3));
    assert_eq!(*one, [3, 3], "one fragment is one piece");
}

#[test]
#[should_panic(expected = "several fragments")]
fn several_fragments_are_no_slice() {
    let buffer = Buffer::from_fragments([vec![1], vec![2]]).unwrap();
    assert_eq!(buffer[0], 1);
}

fn lent() -> Memory {
    let mut memory = Memory::new(ShardId(0), 1, 1);
    memory.lend(md(0, 0), Buffer::from_fragments([vec![1; 4], vec![2; 4]]).unwrap(), TERMS);
    memory
}

#[test]
fn leases_are_slices_within_a_fragment() {
    let mut memory = lent();
    assert_eq!(*memory.read_lease(&span(0, &(4..8))).unwrap(), [2; 4]);
    let span = span(0, &(2..6));
    assert_eq!(memory.read(&span).unwrap().contiguous(), None);
    let lease = memory.read_lease(&span).unwrap();
    assert_eq!(memory.lend_write(&span).unwrap_err(), LeaseError::BeingRead { start: 2, end: 6 });
    // It outlives the buffer.
    drop(memory);
    assert_eq!(flat(lease.fragments()), [1, 1, 2, 2]);
}

#[test]
#[should_panic(expected = "several fragments")]
fn a_lease_on_several_fragments_is_no_slice() {
    let lease = lent().read_lease(&span(0, &(2..6))).unwrap();
    assert!(!lease.is_empty());
}

#[test]
#[should_panic(expected = "bytes 7..9 of a buffer of 8")]
fn a_span_leaves_no_fragments() {
    let _ = lent().fragments(&span(0, &(7..9)));
}

#[test]
#[should_panic(expected = "bytes 0..5 of a buffer of 4")]
fn a_part_leaves_no_lease_on_fragments() {
    let lease = lent().lend_write(&span(0, &(2..6))).unwrap();
    let _ = lease.fragments(0..5);
}

#[test]
#[should_panic(expected = "from its own buffer")]
fn a_buffer_is_not_copied_to_itself() {
    lent().copy(&span(0, &(0..2)), &span(0, &(4..6)));
}

#[test]
fn fragments_in_the_umem_are_found() {
    let config = UmemConfig { registered_bytes: 2 * u64::from(CHUNK_BYTES), ..UmemConfig::new(2) };
    let (umem, _frames) = Umem::plain_with(&config).unwrap();
    let chunk = CHUNK_BYTES as usize;
    let registered = || Buffer::from(umem.register(100).unwrap());
    let mut memory = Memory::new(ShardId(0), 1, 1);
    let buffer = Buffer::from_fragments([Buffer::zeroed(10), registered(), registered()]).unwrap();
    memory.lend(md(0, 0), buffer, TERMS);
    let runs = |range| {
        let runs = memory.registered(&span(0, &range))?;
        Some(runs.map(|run| (run.address() as usize, run.length_bytes())).collect::<Vec<_>>())
    };
    assert_eq!(runs(0..10), None);
    assert_eq!(runs(9..20), None, "in part");
    assert_eq!(runs(15..110), Some(vec![(2 * chunk + 5, 95)]));
    assert_eq!(runs(109..111), None, "in two");
    assert_eq!(runs(110..210), Some(vec![(3 * chunk, 100)]));
    assert!(!memory.is_in_flight(&span(0, &(0..210))));
    let fragments = memory.give_back(md(0, 0)).unwrap().into_fragments();
    assert!(umem.register(1).is_none());
    drop(fragments);
    assert!(umem.register(2 * chunk).is_some());
}

#[test]
fn leases_on_fragments_allocate_nothing() {
    let (mut memory, mut sibling) = (lent(), Memory::new(ShardId(1), 1, 1));
    let span = span(0, &(1..7));
    let mut turn = || {
        sibling.adopt(memory.lend_write(&span).unwrap(), &span);
        sibling.fragments_mut(&span).copy_from(&[3; 6]);
        sibling.release(&span);
    };
    // The books of leases grow at first.
    (0..10).for_each(|_| turn());
    assert_eq!(allocation_counter::measure(|| (0..10).for_each(|_| turn())).count_total, 0);
}
