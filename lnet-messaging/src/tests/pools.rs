//! Buffer pools.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use super::fake::Fake;
use crate::{Buffer, Domain, Errno, LockedPool, Pool, PoolHandler, PoolSpec, Reprovision};

pub(super) const SPEC: PoolSpec = PoolSpec { threshold: 2, segments: 2, segment_bytes: 32, colours: 10 };

fn pool(domain: &Domain) -> Pool {
    Pool::new(domain, SPEC, Arc::new(Reprovision)).unwrap()
}

/// Tells buffers apart.
fn mark(buffer: &mut Buffer, number: u64) {
    buffer.user_data = number;
}

#[test]
fn bp_01_to_bp_04_a_pool_gives_takes_grows_and_shrinks() {
    let domain = Fake::default().domain();
    let pool = pool(&domain);
    let mut locked = pool.lock();
    assert_eq!((locked.provision(10), locked.free_count(), locked.total()), (10, 10, 10));
    assert_eq!(domain.buffer_count(), 10);

    let mut buffer = locked.get(None).unwrap();
    assert_eq!((locked.free_count(), locked.total(), buffer.size_bytes()), (9, 10, 64));
    assert_eq!(buffer.pool(), Some(&pool));
    mark(&mut buffer, 7);
    locked.put(buffer, Some(1)).unwrap();
    assert_eq!(locked.free_count(), 10);
    let again = locked.get(Some(1)).unwrap();
    assert_eq!(again.user_data, 7, "the same comes back by its colour");
    locked.put(again, None).unwrap();

    assert_eq!((locked.provision(1), locked.total()), (1, 11));
    assert!(locked.prune());
    assert_eq!((locked.total(), domain.buffer_count()), (10, 10));
    while locked.free_count() > SPEC.threshold {
        assert!(locked.prune());
    }
    assert!(!locked.prune());
    assert_eq!((locked.free_count(), locked.total()), (2, 2));
}

/// Wakes those that wait for a buffer.
#[derive(Default)]
struct Waiters {
    epoch: Mutex<u64>,
    grown: Condvar,
}

impl PoolHandler for Waiters {
    fn not_empty(&self, _: &mut LockedPool<'_>) {
        *self.epoch.lock().unwrap() += 1;
        self.grown.notify_all();
    }
}

#[test]
fn bp_05_threads_share_a_pool() {
    const BUFFERS: usize = 3;
    let domain = Fake::default().domain();
    let waiters = Arc::new(Waiters::default());
    let pool = Pool::new(&domain, SPEC, waiters.clone()).unwrap();
    pool.lock().provision(BUFFERS);
    std::thread::scope(|scope| {
        for index in 0..10 {
            let (pool, waiters) = (&pool, &waiters);
            scope.spawn(move || {
                let colour = (index % 2 == 0).then_some(index);
                for _ in 0..200 {
                    let buffer = loop {
                        let epoch = *waiters.epoch.lock().unwrap();
                        if let Some(buffer) = pool.lock().get(colour) {
                            break buffer;
                        }
                        let current = waiters.epoch.lock().unwrap();
                        drop(waiters.grown.wait_while(current, |now| *now == epoch).unwrap());
                    };
                    std::thread::yield_now();
                    pool.lock().put(buffer, colour).unwrap();
                    // Another one may wait although more than one is free.
                    *waiters.epoch.lock().unwrap() += 1;
                    waiters.grown.notify_all();
                }
            });
        }
    });
    let locked = pool.lock();
    assert_eq!((locked.free_count(), locked.total()), (BUFFERS, BUFFERS));
}

#[test]
fn bp_06_a_pool_is_finished_when_all_are_back() {
    let domain = Fake::default().domain();
    let pool = pool(&domain);
    pool.lock().provision(3);
    let buffer = pool.lock().get(None).unwrap();
    let error = pool.finish().unwrap_err();
    assert_eq!(error.to_string(), "2 of 3 buffers of the pool are free: all of them are expected (EBUSY)");
    pool.lock().put(buffer, None).unwrap();
    pool.finish().unwrap();
    assert_eq!(domain.buffer_count(), 0);
}

#[test]
fn bp_07_coloured_ones_come_newest_first_and_others_oldest_first() {
    let domain = Fake::default().domain();
    let pool = pool(&domain);
    let mut locked = pool.lock();
    locked.provision(6);
    let mut buffers: Vec<Buffer> = (0..6).map(|_| locked.get(None).unwrap()).collect();
    buffers.iter_mut().zip(0..).for_each(|(buffer, number)| mark(buffer, number));
    // 0 and 1 without colour, 2 to 4 with colour 3, 5 with colour 4.
    for buffer in buffers {
        let colour = [None, None, Some(3), Some(3), Some(3), Some(4)][buffer.user_data as usize];
        locked.put(buffer, colour).unwrap();
    }
    let mut next = |colour| locked.get(colour).map(|buffer| buffer.user_data);
    assert_eq!(next(Some(3)), Some(4), "the newest of the colour");
    assert_eq!(next(None), Some(0), "the oldest of all");
    assert_eq!(next(Some(9)), Some(1), "of a colour without buffers as well");
    assert_eq!(next(Some(99)), Some(2), "now the oldest is one of colour 3");
    assert_eq!(next(Some(3)), Some(3), "which that colour has no more");
    assert_eq!(next(Some(3)), Some(5));
    assert_eq!((next(Some(3)), next(None)), (None, None));
}

/// Counts its calls.
#[derive(Default)]
struct Count {
    not_empty: AtomicUsize,
    below: AtomicUsize,
}

impl PoolHandler for Count {
    fn not_empty(&self, pool: &mut LockedPool<'_>) {
        assert_eq!(pool.free_count(), 1);
        self.not_empty.fetch_add(1, Ordering::Relaxed);
    }

    fn below_threshold(&self, pool: &mut LockedPool<'_>) {
        assert!(pool.free_count() < SPEC.threshold);
        self.below.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn bp_08_the_handler_is_called_when_it_shall_be() {
    let domain = Fake::default().domain();
    let count = Arc::new(Count::default());
    let pool = Pool::new(&domain, SPEC, count.clone()).unwrap();
    let seen = || (count.not_empty.load(Ordering::Relaxed), count.below.load(Ordering::Relaxed));
    let mut locked = pool.lock();
    assert!(locked.get(None).is_none());
    assert_eq!(seen(), (0, 0), "none is taken");
    locked.provision(3);
    assert_eq!(seen(), (1, 0));
    let buffers: Vec<Buffer> = (0..3).map(|_| locked.get(None).unwrap()).collect();
    assert_eq!(seen(), (1, 2), "each time that fewer than two are left");
    for buffer in buffers {
        locked.put(buffer, None).unwrap();
    }
    assert_eq!(seen(), (2, 2));
}

#[test]
fn what_is_none_of_the_pools_is_refused() {
    let domain = Fake::default().domain();
    let (pool, other) = (pool(&domain), pool(&domain));
    let strange = Fake::default().domain().allocate(1, 8).unwrap();
    let (error, _) = pool.lock().put(strange, None).unwrap_err();
    assert_eq!(error.errno(), Errno::Invalid);
    other.lock().provision(1);
    let buffer = other.lock().get(None).unwrap();
    let (error, buffer) = pool.lock().put(buffer, None).unwrap_err();
    assert_eq!(error.errno(), Errno::Invalid);
    let (error, buffer) = other.lock().put(buffer, Some(SPEC.colours)).unwrap_err();
    assert_eq!(error.to_string(), "colour 10: one below 10 is expected (EINVAL)");
    let (error, buffer) = buffer.put_back(Some(SPEC.colours)).unwrap_err();
    assert_eq!(error.to_string(), "colour 10: one below 10 is expected (EINVAL)");
    buffer.put_back(Some(SPEC.colours - 1)).unwrap();
    assert_eq!(other.lock().free_count(), 1);
    let (error, _) = domain.allocate(1, 8).unwrap().put_back(None).unwrap_err();
    assert_eq!(error.errno(), Errno::Invalid);
    // A buffer of no pool becomes this one's.
    pool.lock().put(domain.allocate(1, 8).unwrap(), None).unwrap();
    assert_eq!(pool.lock().total(), 1);
    for (segments, segment_bytes) in [(0, 8), (21, 8), (1, 0), (1, 4097)] {
        let spec = PoolSpec { segments, segment_bytes, ..SPEC };
        assert_eq!(Pool::new(&domain, spec, Arc::new(Reprovision)).unwrap_err().errno(), Errno::Invalid);
    }
}
