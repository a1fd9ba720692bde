//! Who drives a shard: its own thread, the keeper, or a guest, a thread that waits for the shard's events.
//!
//! ```text
//!  keeper:  drives, sleeps in the shard --- a guest asks --> stands by --- no guest came for a while --> drives
//!  guest:                                     drives until its event is there; comes again, and again
//! ```
//!
//! Invariants: the driver has the shard's lock, for many turns at a time, and no thread blocks on it. A keeper that stands
//! by looks now and then ([`STAND_BY`]) whether a guest has driven since, and sleeps for good only during a long visit,
//! whose end wakes it. So a shard that is left alone is driven again soon.

use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard, TryLockError};
#[cfg(not(loom))]
use std::thread::{self, Thread};
use std::time::Duration;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(loom)]
use loom::thread::{self, Thread};
#[cfg(loom)]
use std::sync::TryLockError;

/// How long a keeper that stands by sleeps at first; twice as long each time that a guest has driven meanwhile.
const STAND_BY: Duration = Duration::from_micros(100);

/// How long it sleeps at most: each time costs the guest some microseconds where both are on one CPU. What arrives after
/// the last visit waits for up to two such times, less than what the sender waits for before it sends again.
const STAND_BY_MAX: Duration = Duration::from_micros(500);

/// Naps after which a keeper sleeps until a visit ends: that end costs a wake-up.
const LONG_VISIT: u32 = if cfg!(loom) { 1 } else { 20 };

/// What is driven, and by whom.
#[derive(Debug)]
pub(super) struct Handover<T> {
    /// `None` when it has ended.
    driven: Mutex<Option<T>>,
    /// Whether the keeper drives.
    keeper_drives: AtomicBool,
    /// The thread that has asked for it.
    asker: Mutex<Option<Thread>>,
    is_asked: AtomicBool,
    stop: AtomicBool,
    /// Visits that have ended.
    visits: AtomicUsize,
    /// Whether the keeper sleeps until a visit ends.
    keeper_waits: AtomicBool,
    keeper: Mutex<Option<Thread>>,
    /// Threads and tasks that wait for events, and do not drive.
    waiting: AtomicUsize,
}

/// Why there is no visit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoVisit {
    /// Another thread drives.
    Busy,
    /// What was to be driven has ended.
    Gone,
}

impl<T> Handover<T> {
    pub(super) fn new(driven: T) -> Self {
        Self {
            driven: Mutex::new(Some(driven)),
            keeper_drives: AtomicBool::new(false),
            asker: Mutex::new(None),
            is_asked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            visits: AtomicUsize::new(0),
            keeper_waits: AtomicBool::new(false),
            keeper: Mutex::new(None),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Makes the calling thread its driver, if no other is.
    pub(super) fn try_visit(&self) -> Result<Visit<'_, T>, NoVisit> {
        match self.driven.try_lock() {
            Ok(driven) if driven.is_some() => {
                Ok(Visit { handover: self, driven: Some(driven), drove: false })
            }
            Err(TryLockError::WouldBlock) => Err(NoVisit::Busy),
            Ok(_) | Err(TryLockError::Poisoned(_)) => Err(NoVisit::Gone),
        }
    }

    /// Whether the keeper drives, and no thread or task waits for events: then a guest may ask for it.
    pub(super) fn is_for_a_guest(&self) -> bool {
        self.keeper_drives.load(Ordering::Relaxed) && !self.has_waiting()
    }

    /// Asks the driver to leave; the calling thread is unparked when it has. The shard is to be woken then.
    pub(super) fn ask(&self) {
        *lock(&self.asker) = Some(thread::current());
        self.is_asked.store(true, Ordering::SeqCst);
    }

    /// Whether the driver is to leave.
    #[inline]
    pub(super) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed)
    }

    /// A thread or task begins to wait for events, or has them: the keeper drives meanwhile.
    pub(super) fn set_waiting(&self, waits: bool) {
        if waits {
            self.waiting.fetch_add(1, Ordering::SeqCst);
        } else {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) != 0
    }

    /// Ends the keeper. The shard is to be woken then.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.unpark_keeper();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// What is driven, when the keeper has ended.
    pub(super) fn take(&self) -> Option<T> {
        match self.driven.lock() {
            Ok(mut driven) => driven.take(),
            // A driver has panicked in the middle of a turn.
            Err(poisoned) => {
                drop(poisoned.into_inner().take());
                None
            }
        }
    }

    /// Keeps it on the calling thread until it is stopped or has ended. `drive` drives until
    /// [`Handover::is_asked`].
    pub(super) fn keep(&self, mut drive: impl FnMut(&mut T)) {
        *lock(&self.keeper) = Some(thread::current());
        while !self.is_stopped() {
            match self.try_visit() {
                Ok(mut visit) => {
                    self.keeper_drives.store(true, Ordering::Relaxed);
                    drive(visit.get());
                    self.keeper_drives.store(false, Ordering::Relaxed);
                }
                Err(NoVisit::Busy) => {}
                Err(NoVisit::Gone) => return drop(self.take()),
            }
            self.stand_by();
        }
    }

    /// Returns when the shard is alone for a while, or others wait for its events.
    fn stand_by(&self) {
        let (mut seen, mut naps, mut length) = (self.visits.load(Ordering::SeqCst), 0, STAND_BY);
        while !self.is_stopped() {
            nap(length);
            naps += 1;
            let visits = self.visits.load(Ordering::SeqCst);
            if visits != seen && !self.has_waiting() {
                (seen, naps, length) = (visits, 0, (length * 2).min(STAND_BY_MAX));
                continue;
            }
            let is_long = naps >= LONG_VISIT;
            self.keeper_waits.store(is_long, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if !matches!(self.try_visit().map(drop), Err(NoVisit::Busy)) {
                self.keeper_waits.store(false, Ordering::SeqCst);
                return;
            }
            if is_long && !self.is_stopped() {
                thread::park();
                self.keeper_waits.store(false, Ordering::SeqCst);
                (seen, naps) = (self.visits.load(Ordering::SeqCst), 0);
            }
        }
    }

    /// Tells the thread that has asked.
    fn answer(&self) {
        if self.is_asked.load(Ordering::SeqCst)
            && self.is_asked.swap(false, Ordering::SeqCst)
            && let Some(asker) = lock(&self.asker).take()
        {
            asker.unpark();
        }
    }

    fn unpark_keeper(&self) {
        if let Some(keeper) = lock(&self.keeper).as_ref() {
            keeper.unpark();
        }
    }
}

/// A thread's time as the driver.
pub(super) struct Visit<'a, T> {
    handover: &'a Handover<T>,
    /// There until the end.
    driven: Option<MutexGuard<'a, Option<T>>>,
    drove: bool,
}

impl<T> Visit<'_, T> {
    /// What is driven.
    pub(super) fn get(&mut self) -> &mut T {
        let driven = self.driven.as_mut().and_then(|driven| driven.as_mut());
        driven.expect("a visit has what it drives until it is dropped")
    }

    /// Runs something between two turns. What panics has ended, and this thread, which has no part in that, goes on.
    ///
    /// # Errors
    /// [`NoVisit::Gone`] if it has ended.
    pub(super) fn run<R>(&mut self, run: impl FnOnce(&mut T) -> R) -> Result<R, NoVisit> {
        let driven = self.get();
        catch_unwind(AssertUnwindSafe(|| run(driven))).map_err(|_| {
            drop(self.driven.as_mut().and_then(|driven| driven.take()));
            NoVisit::Gone
        })
    }

    /// Drives, as a guest, which will again soon. One that finds the shard gone learns it as others do.
    pub(super) fn drive(&mut self, drive: impl FnOnce(&mut T)) {
        self.drove = self.run(drive).is_ok();
    }
}

impl<T> Drop for Visit<'_, T> {
    fn drop(&mut self) {
        drop(self.driven.take());
        let Handover { visits, keeper_waits, .. } = self.handover;
        if self.drove {
            visits.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        let waits = keeper_waits.load(Ordering::SeqCst) && keeper_waits.swap(false, Ordering::SeqCst);
        if waits || self.drove && self.handover.has_waiting() {
            self.handover.unpark_keeper();
        }
        self.handover.answer();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn nap(length: Duration) {
    #[cfg(not(loom))]
    thread::park_timeout(length);
    #[cfg(loom)]
    let _ = length;
    #[cfg(loom)]
    thread::yield_now();
}

/// `cargo test --package lnet-loom` runs it.
#[cfg(test)]
#[cfg(loom)]
mod model {
    use loom::sync::Arc;

    use super::*;

    /// What a driver does: it takes the work that is there.
    struct Driven {
        work: Arc<AtomicUsize>,
        done: usize,
    }

    impl Driven {
        fn turn(&mut self) {
            self.done += self.work.swap(0, Ordering::SeqCst);
        }
    }

    /// A guest asks, drives and leaves; the keeper does the work that comes after that.
    #[test]
    fn a_shard_that_is_left_is_driven_again() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let work = Arc::new(AtomicUsize::new(0));
            let handover = Arc::new(Handover::new(Driven { work: Arc::clone(&work), done: 0 }));
            let keeper = {
                let handover = Arc::clone(&handover);
                loom::thread::spawn(move || {
                    handover.keep(|driven| {
                        driven.turn();
                        if driven.done == 1 {
                            handover.stop();
                        }
                    });
                })
            };
            handover.ask();
            if let Ok(mut visit) = handover.try_visit() {
                visit.drive(Driven::turn);
            }
            work.fetch_add(1, Ordering::SeqCst);
            keeper.join().unwrap();
        });
    }

    /// A keeper that sleeps until a visit ends is woken by its end.
    #[test]
    fn a_keeper_that_waits_for_a_visit_is_woken() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let handover = Arc::new(Handover::new(()));
            let mut visit = handover.try_visit().unwrap_or_else(|_| panic!("no other thread drives"));
            let keeper = {
                let handover = Arc::clone(&handover);
                loom::thread::spawn(move || {
                    *lock(&handover.keeper) = Some(thread::current());
                    handover.stand_by();
                    assert!(handover.try_visit().is_ok());
                })
            };
            visit.drive(|()| {});
            drop(visit);
            keeper.join().unwrap();
        });
    }
}
