use proptest::prelude::*;

use super::*;
use crate::xsk::{Umem, UmemConfig};

fn region(bytes: &[u8]) -> Region {
    Region::from(Box::from(bytes))
}

const fn goes_to_other_threads<T: Send + Sync>() {}
const _: () = goes_to_other_threads::<WriteLease>();
const _: () = goes_to_other_threads::<ReadLease>();
const _: () = goes_to_other_threads::<Region>();

#[test]
fn a_write_lease_keeps_its_bytes_from_everybody() {
    let mut region = region(&[0; 8]);
    let mut lease = region.lend_write(2..6).unwrap();
    let lent = LeaseError::BeingWritten { start: 2, end: 6 };
    for range in [0..8, 2..3, 5..6, 0..3, 5..8, 3..5] {
        assert_eq!(region.bytes(range.clone()), Err(lent));
        assert_eq!(region.bytes_mut(range.clone()), Err(lent));
        assert_eq!(region.lend_write(range.clone()).unwrap_err(), lent);
        assert_eq!(region.lend_read(range).unwrap_err(), lent);
    }
    for range in [0..2, 6..8, 4..4, 2..2] {
        assert!(region.bytes_mut(range.clone()).is_ok() && region.lend_write(range).is_ok());
    }
    lease.copy_from_slice(b"abcd");
    assert!(!region.is_whole());
    drop(lease);
    assert!(region.is_whole());
    assert_eq!(region.bytes(0..8), Ok(&b"\0\0abcd\0\0"[..]));
}

#[test]
fn a_read_lease_keeps_writers_away() {
    let mut region = region(b"abcdefgh");
    let lease = region.lend_read(2..6).unwrap();
    let further = region.lend_read(0..8).unwrap();
    assert_eq!((&*lease, &*further), (&b"cdef"[..], &b"abcdefgh"[..]));
    assert_eq!(region.bytes(0..8), Ok(&b"abcdefgh"[..]));
    drop(further);
    let lent = LeaseError::BeingRead { start: 2, end: 6 };
    assert_eq!(region.bytes_mut(5..7), Err(lent));
    assert_eq!(region.lend_write(0..3).unwrap_err(), lent);
    assert!(region.bytes_mut(6..8).is_ok());
    drop(lease);
    assert!(region.lend_write(0..8).is_ok());
}

#[test]
fn leases_outlive_their_region() {
    let mut region = region(&[1; 4096]);
    let mut write = region.lend_write(0..2048).unwrap();
    let read = region.lend_read(2048..4096).unwrap();
    drop(region);
    write.fill(2);
    drop(write);
    assert!(std::thread::spawn(move || read.iter().all(|byte| *byte == 1)).join().unwrap());
}

#[test]
fn registered_memory_is_free_again_after_the_last_lease() {
    let config = UmemConfig { registered_bytes: 1, ..UmemConfig::new(1) };
    let (umem, _frames) = Umem::plain_with(&config).unwrap();
    let mut region = Region::from(umem.register(100).unwrap());
    let lease = region.lend_read(0..100).unwrap();
    assert!(region.registered(0..100).is_some());
    drop(region);
    assert!(umem.register(1).is_none());
    drop(lease);
    assert!(umem.register(1).is_some());
}

#[test]
fn threads_read_one_lease() {
    let lease = region(&[7; 64]).lend_read(0..64).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert!(lease.iter().all(|byte| *byte == 7)));
        }
    });
}

#[test]
fn an_empty_region_lends_nothing_of_itself() {
    let mut region = region(&[]);
    assert!(region.lend_write(0..0).unwrap().is_empty());
    assert!(region.bytes(0..0).unwrap().is_empty());
}

#[test]
#[should_panic(expected = "bytes 3..9 of a buffer of 8")]
fn a_lease_leaves_no_region() {
    let _ = region(&[0; 8]).lend_read(3..9);
}

#[test]
#[should_panic(expected = "of a buffer of 8")]
fn a_range_that_ends_before_it_begins_is_refused() {
    let (start, end) = (4, 3);
    let _ = region(&[0; 8]).bytes(start..end);
}

#[test]
fn leases_allocate_no_more_once_there_are_seats() {
    let mut region = region(&[0; 64]);
    let mut turn = || {
        let leases: [_; 10] = core::array::from_fn(|index| region.lend_write(index..index + 1).unwrap());
        drop(leases);
        for _ in 0..100 {
            drop(region.lend_read(0..64).unwrap());
        }
    };
    turn();
    let allocated = allocation_counter::measure(|| (0..10).for_each(|_| turn()));
    assert_eq!(allocated.count_total, 0);
}

/// A lease in the naive model, and the real one.
enum Held {
    Write(WriteLease),
    Read(ReadLease),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    /// A region against a list of its leases and a copy of its bytes.
    #[test]
    fn equals_a_list(steps in prop::collection::vec((0u8..6, 0usize..12, 0usize..12), 0..100)) {
        let mut region = region(&[0; 12]);
        let mut copy = [0u8; 12];
        let mut held: Vec<(Range<usize>, Held)> = Vec::new();
        for (value, (kind, one, other)) in (1u8..).zip(steps) {
            let range = one.min(other)..one.max(other);
            let touches = |with: &Range<usize>| with.clone().any(|byte| range.contains(&byte));
            let written = held.iter().any(|(with, lease)| matches!(lease, Held::Write(_)) && touches(with));
            let lent = held.iter().any(|(with, _)| touches(with));
            match kind {
                0 => match region.lend_write(range.clone()) {
                    Ok(mut lease) => {
                        prop_assert!(!lent);
                        lease.fill(value);
                        copy[range.clone()].fill(value);
                        held.push((range, Held::Write(lease)));
                    }
                    Err(_) => prop_assert!(lent),
                },
                1 => match region.lend_read(range.clone()) {
                    Ok(lease) => {
                        prop_assert!(!written);
                        prop_assert_eq!(&*lease, &copy[range.clone()]);
                        held.push((range, Held::Read(lease)));
                    }
                    Err(_) => prop_assert!(written),
                },
                2 => match region.bytes_mut(range.clone()) {
                    Ok(bytes) => {
                        prop_assert!(!lent);
                        bytes.fill(value);
                        copy[range].fill(value);
                    }
                    Err(_) => prop_assert!(lent),
                },
                3 => match region.bytes(range.clone()) {
                    Ok(bytes) => {
                        prop_assert!(!written);
                        prop_assert_eq!(bytes, &copy[range]);
                    }
                    Err(_) => prop_assert!(written),
                },
                4 if !held.is_empty() => drop(held.swap_remove(one % held.len())),
                _ => prop_assert_eq!(region.is_whole(), held.is_empty()),
            }
            for (range, held) in &held {
                let length_bytes = match held {
                    Held::Write(lease) => lease.len(),
                    Held::Read(lease) => lease.len(),
                };
                prop_assert_eq!(length_bytes, range.len());
            }
        }
        drop(held);
        prop_assert!(region.is_whole());
        prop_assert_eq!(region.bytes(0..12), Ok(&copy[..]));
    }
}
