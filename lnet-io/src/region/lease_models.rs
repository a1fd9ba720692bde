//! What loom is to find true of leases, and what it is to find wrong.

use loom::thread;

use super::*;

fn region() -> Region {
    Region::from(Box::from([1u8, 1]))
}

/// Asks until the answer is not that the bytes are lent.
fn wait<T>(mut ask: impl FnMut() -> Result<T, LeaseError>) -> T {
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(_) => thread::yield_now(),
        }
    }
}

#[test]
fn the_owner_sees_all_that_was_written_or_is_refused() {
    loom::model(|| {
        let mut region = region();
        let mut lease = region.lend_write(0..2).unwrap();
        let writer = thread::spawn(move || {
            lease[0] = 2;
            lease[1] = 2;
        });
        assert_eq!(wait(|| region.bytes(0..2).map(<[u8]>::to_vec)), [2, 2]);
        wait(|| region.bytes_mut(0..2).map(|bytes| bytes.fill(3)));
        writer.join().unwrap();
        assert_eq!(region.bytes(0..2).unwrap(), [3, 3]);
    });
}

#[test]
fn a_reader_sees_no_later_write() {
    loom::model(|| {
        let mut region = region();
        let lease = region.lend_read(0..2).unwrap();
        let reader = thread::spawn(move || {
            let first = lease[0];
            // The owner may read, too.
            assert_eq!((first, lease[1]), (1, 1));
        });
        assert_eq!(region.bytes(0..2).unwrap(), [1, 1]);
        wait(|| region.bytes_mut(0..2).map(|bytes| bytes.fill(2)));
        reader.join().unwrap();
    });
}

#[test]
fn parts_are_written_side_by_side() {
    loom::model(|| {
        let mut region = region();
        let mut lease = region.lend_write(1..2).unwrap();
        let writer = thread::spawn(move || lease[0] = 2);
        region.bytes_mut(0..1).unwrap()[0] = 3;
        writer.join().unwrap();
        assert!(region.is_whole());
        assert_eq!(region.bytes(0..2).unwrap(), [3, 2]);
    });
}

#[test]
fn a_lease_outlives_its_region() {
    for write in [false, true] {
        loom::model(move || {
            let mut region = region();
            let user = if write {
                let mut lease = region.lend_write(0..2).unwrap();
                thread::spawn(move || lease.fill(2))
            } else {
                let lease = region.lend_read(0..2).unwrap();
                thread::spawn(move || assert_eq!(*lease, [1, 1]))
            };
            drop(region);
            user.join().unwrap();
        });
    }
}

#[test]
fn the_last_of_two_leases_frees() {
    loom::model(|| {
        let mut region = region();
        let readers = [0..1, 0..2].map(|range| {
            let lease = region.lend_read(range).unwrap();
            thread::spawn(move || assert_eq!(lease[0], 1))
        });
        drop(region);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn a_region_comes_home_whole() {
    loom::model(|| {
        let mut region = region();
        let readers = [0..2, 1..2].map(|range| {
            let lease = region.lend_read(range).unwrap();
            thread::spawn(move || assert_eq!(lease.last(), Some(&1)))
        });
        while !region.is_whole() {
            thread::yield_now();
        }
        region.bytes_mut(0..2).unwrap().fill(2);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn a_seat_is_used_again_while_its_last_user_leaves() {
    loom::model(|| {
        let mut region = region();
        let mut lease = region.lend_write(0..2).unwrap();
        let first = thread::spawn(move || lease.fill(2));
        while !region.is_whole() {
            thread::yield_now();
        }
        let mut lease = region.lend_write(0..2).unwrap();
        let seats = region.books.as_ref().map(|books| (books.lent.len(), books.free.len()));
        assert_eq!(seats, Some((1, 0)), "the seat was used again");
        assert!(region.bytes(0..1).is_err());
        let second = thread::spawn(move || {
            assert_eq!(*lease, [2, 2]);
            lease.fill(3);
        });
        drop(region);
        first.join().unwrap();
        second.join().unwrap();
    });
}

/// The models above mean something only if loom finds what is wrong in these.
mod wrong {
    use super::*;

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn an_owner_that_does_not_ask() {
        loom::model(|| {
            let mut region = region();
            let mut lease = region.lend_write(0..2).unwrap();
            let writer = thread::spawn(move || lease.fill(2));
            // SAFETY: none: loom has to say so.
            let _ = unsafe { region.view.bytes() };
            writer.join().unwrap();
        });
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn an_owner_that_asks_without_acquiring() {
        loom::model(|| {
            let mut region = region();
            let mut lease = region.lend_write(0..2).unwrap();
            let seat = Arc::clone(&lease.0.seat);
            let writer = thread::spawn(move || lease.fill(2));
            while seat.out.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            // SAFETY: none: loom has to say so.
            let _ = unsafe { region.view.bytes() };
            writer.join().unwrap();
        });
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn an_owner_that_writes_while_a_reader_reads() {
        loom::model(|| {
            let mut region = region();
            let lease = region.lend_read(0..2).unwrap();
            let reader = thread::spawn(move || assert_eq!(lease.len(), 2));
            // SAFETY: none: loom has to say so.
            let _ = unsafe { region.view.bytes_mut() };
            reader.join().unwrap();
        });
    }

    #[test]
    #[should_panic(expected = "bytes are used that were freed")]
    fn a_lease_that_keeps_no_storage() {
        loom::model(|| {
            let region = region();
            let view = region.view.clone();
            drop(region);
            // SAFETY: none: the stand-in has to say so.
            let _ = unsafe { view.bytes() };
        });
    }
}
