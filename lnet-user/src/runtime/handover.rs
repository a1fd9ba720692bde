//! Who drives a shard: its own thread, the keeper, or a guest, a thread that waits for the shard's events.
//!
//! ```text
//!  keeper:  drives, sleeps in the shard --- a guest asks --> stands by --- no guest came for a while --> drives
//!  guest:                                     drives until its event is there; comes again, and again
//! ```
//!
//! Invariants: the driver has the shard's lock, for many turns at a time, and no thread blocks on it. It is
//! released for what wakes programs ([`super::wakes`]). A keeper that stands by looks now and then
//! ([`STAND_BY`]) whether a guest has driven since, and sleeps for good only during a long visit, whose end
//! wakes it. Where none has, it does what there is to do, and drives if that goes on, or if no guest comes
//! for many such looks: a guest that pauses finds the shard as it has left it. So a shard that is left alone
//! is driven again soon.
//!
//! A waiter's ring and the receives of sockets belong to one thread in the kernel. A new driver makes the
//! ring anew, which takes some tens of microseconds. Hence a guest asks for the shard only after four waits
//! within 5 ms of each other, or within 100 us with sockets or streams.
//!
//! A thread that runs tasks is a guest for moments, in which it never sleeps. Other tasks may wait meanwhile,
//! of the same thread or of another one: the keeper then naps for no longer than 100 us, and drives at once
//! where no moment has ended since, or where a task has given up.
//!
//! The keeper drives at once where sockets or streams receive, and where several threads wait. Elsewhere it
//! looks every 100 to 500 us, or 1.8 ms while guests come often, and drives if there was work for three
//! looks, or if no guest came for 64. What arrives after the last visit waits for 1.8 ms at most. A shard
//! that panics while a guest drives has ended, and the guest learns it as others do. The node ends with it
//! ([`super::fate`]).
//!
//! A keeper that runs code of a program, a waker's, may be made to wait there. Another thread drives the
//! shard meanwhile (`super::deputy`).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(not(loom))]
use std::sync::TryLockError;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
use std::thread::{self, Thread};
use std::time::Duration;

#[cfg(not(loom))]
use lnet_io::locks::{Mutex, MutexGuard};
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(loom)]
use loom::thread::{self, Thread};
#[cfg(loom)]
use std::sync::TryLockError;

use super::wakes::{self, NoWakes};

/// How long a keeper that stands by sleeps at first; twice as long each time that a guest has driven
/// meanwhile.
const STAND_BY: Duration = Duration::from_micros(100);

/// How long it sleeps at most while guests come often: each time costs the guest some microseconds where both
/// are on one CPU, so these are to be fewer than one in a hundred of its messages. What arrives after the
/// last visit waits for no longer, which is less than what the sender waits for before it sends again.
const STAND_BY_MAX: Duration = Duration::from_micros(1800);

/// How long it sleeps at most otherwise. What arrives after the last visit waits for up to two such times
/// where the keeper cannot look.
const PAUSE_MAX: Duration = Duration::from_micros(500);

/// Visits during a nap that are often.
const OFTEN: usize = 8;

/// Naps after which a keeper sleeps until a visit ends: that end costs a wake-up.
const LONG_VISIT: u32 = if cfg!(loom) { 1 } else { 20 };

/// Looks in a row between two visits after which the keeper drives.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 64 };

/// Looks in a row that find something to do after which the keeper drives.
const BUSY_LOOKS: u32 = 3;

/// What a keeper that stands by finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// Nothing to do.
    Quiet,
    /// Something, which was done.
    Busy,
    /// What belongs to the thread that drove last: another one is to drive for long or not at all.
    Bound,
}

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
    /// Visits that have ended, but for those of tasks.
    visits: AtomicUsize,
    /// Visits of tasks that have ended.
    moments: AtomicUsize,
    /// Whether a task has given up: the keeper that stands by is to drive.
    is_wanted: AtomicBool,
    /// Whether the keeper sleeps until a visit ends.
    keeper_waits: AtomicBool,
    /// Whether the keeper has the lock for a look.
    keeper_looks: AtomicBool,
    /// Whether the last look found what belongs to a thread.
    is_bound: AtomicBool,
    keeper: Mutex<Option<Thread>>,
    /// Threads that wait for events, and do not drive.
    waiting_threads: AtomicUsize,
    /// Tasks that wait, and do not drive.
    waiting_tasks: AtomicUsize,
}

/// Who waits for a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitKind {
    /// A thread that is blocked.
    Thread,
    /// A task, whose thread may run others.
    Task,
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
            moments: AtomicUsize::new(0),
            is_wanted: AtomicBool::new(false),
            keeper_waits: AtomicBool::new(false),
            keeper_looks: AtomicBool::new(false),
            is_bound: AtomicBool::new(false),
            keeper: Mutex::new(None),
            waiting_threads: AtomicUsize::new(0),
            waiting_tasks: AtomicUsize::new(0),
        }
    }

    /// Makes the calling thread its driver, if no other is.
    pub(super) fn try_visit(&self) -> Result<Visit<'_, T>, NoVisit> {
        match self.driven.try_lock() {
            Ok(driven) if driven.is_some() => {
                Ok(Visit { handover: self, driven: Some(driven), drove: None, _no_wakes: NoWakes::new() })
            }
            Err(TryLockError::WouldBlock) => Err(NoVisit::Busy),
            Ok(_) | Err(TryLockError::Poisoned(_)) => Err(NoVisit::Gone),
        }
    }

    /// Whether the keeper drives, and no thread or task waits for events: then a guest may ask for it.
    pub(super) fn is_for_a_guest(&self) -> bool {
        self.keeper_drives.load(Ordering::Relaxed) && !self.has_waiting()
    }

    /// Whether the keeper drives, and no thread is blocked until events come: then a task may ask for it.
    pub(super) fn is_for_a_task(&self) -> bool {
        self.keeper_drives.load(Ordering::Relaxed) && !self.has_blocked()
    }

    /// Whether the keeper leaves the shard to guests, and none of their tasks has given up.
    pub(super) fn is_left_to_guests(&self) -> bool {
        !self.keeper_drives.load(Ordering::Relaxed) && !self.is_wanted.load(Ordering::Relaxed)
    }

    /// Whether the keeper is having a look, which ends soon.
    pub(super) fn is_looked_at(&self) -> bool {
        self.keeper_looks.load(Ordering::Relaxed)
    }

    /// Whether a guest that pauses finds that the keeper drives.
    pub(super) fn is_bound(&self) -> bool {
        self.is_bound.load(Ordering::Relaxed)
    }

    /// Notes whether it has what belongs to the thread that drives.
    pub(super) fn set_bound(&self, is_bound: bool) {
        if self.is_bound() != is_bound {
            self.is_bound.store(is_bound, Ordering::Relaxed);
        }
    }

    /// Whether threads are blocked until events come: then the keeper drives for all.
    pub(super) fn has_blocked(&self) -> bool {
        self.waiting_threads.load(Ordering::SeqCst) != 0
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

    /// Takes back what a task has asked, and has the keeper drive if it stands by.
    pub(super) fn call_keeper(&self) {
        if self.is_asked.swap(false, Ordering::SeqCst) {
            drop(lock(&self.asker).take());
        }
        if !self.keeper_drives.load(Ordering::SeqCst) {
            self.is_wanted.store(true, Ordering::SeqCst);
            self.unpark_keeper();
        }
    }

    /// A thread or task begins to wait for events, or has them: the keeper drives meanwhile.
    pub(super) fn set_waiting(&self, waiter: WaitKind, waits: bool) {
        let count = match waiter {
            WaitKind::Thread => &self.waiting_threads,
            WaitKind::Task => &self.waiting_tasks,
        };
        if waits {
            count.fetch_add(1, Ordering::SeqCst);
        } else {
            count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(super) fn has_waiting(&self) -> bool {
        [&self.waiting_threads, &self.waiting_tasks]
            .into_iter()
            .any(|count| count.load(Ordering::SeqCst) != 0)
    }

    /// Whether some wait that do not drive, beside guests of this kind.
    fn has_others_waiting(&self, guest: WaitKind) -> bool {
        match guest {
            WaitKind::Thread => self.has_waiting(),
            // Tasks come and go beside each other.
            WaitKind::Task => self.has_blocked(),
        }
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
    /// [`Handover::is_asked`], `look` does what there is to do. What panics has ended, and `died` is told.
    pub(super) fn keep(
        &self,
        mut drive: impl FnMut(&mut T),
        mut look: impl FnMut(&mut T) -> Look,
        died: impl Fn(&(dyn Any + Send)),
    ) {
        *lock(&self.keeper) = Some(thread::current());
        while !self.is_stopped() {
            if !self.drive_as_keeper(&mut drive, &died) {
                return drop(self.take());
            }
            self.stand_by(&mut look, &died);
        }
    }

    /// Drives it on the calling thread in place of a keeper that waits, until `is_over`.
    pub(super) fn stand_in(
        &self,
        is_over: impl Fn() -> bool,
        mut drive: impl FnMut(&mut T),
        died: impl Fn(&(dyn Any + Send)),
    ) {
        while !is_over() && !self.is_stopped() && self.drive_as_keeper(&mut drive, &died) {
            // Another thread drives, or has asked for it.
            nap(PAUSE_MAX);
        }
    }

    /// Drives it, if no other thread does, until another one asks for it; `false` where it has ended.
    fn drive_as_keeper(&self, drive: &mut impl FnMut(&mut T), died: &impl Fn(&(dyn Any + Send))) -> bool {
        loop {
            let mut visit = match self.try_visit() {
                Ok(visit) => visit,
                Err(no_visit) => return no_visit == NoVisit::Busy,
            };
            self.keeper_drives.store(true, Ordering::SeqCst);
            self.is_wanted.store(false, Ordering::SeqCst);
            // A panic ends what is driven: the next visit finds it gone.
            let _ = visit.run(&mut *drive, died);
            self.keeper_drives.store(false, Ordering::SeqCst);
            // A shard that was left to wake a program is driven further.
            if !wakes::any_postponed() || self.is_asked() {
                return true;
            }
        }
    }

    /// Returns when the shard is alone for a while, or others wait for its events.
    fn stand_by(&self, look: &mut impl FnMut(&mut T) -> Look, died: &impl Fn(&(dyn Any + Send))) {
        // Looks and, of those, the last ones that found something; none before the first visit.
        let (mut looks, mut busy_looks) = (LOOKS, 0);
        let (mut seen, mut seen_moments) = self.ended_visits();
        let (mut naps, mut length) = (0, STAND_BY);
        while !self.is_stopped() {
            nap(length);
            naps += 1;
            let (visits, moments) = self.ended_visits();
            let is_wanted = self.is_wanted.swap(false, Ordering::SeqCst);
            let is_driven = visits != seen && !self.has_others_waiting(WaitKind::Thread)
                || moments != seen_moments && !self.has_others_waiting(WaitKind::Task);
            if is_driven && !is_wanted {
                let count = visits.wrapping_sub(seen).wrapping_add(moments.wrapping_sub(seen_moments));
                (seen, seen_moments, naps) = (visits, moments, 0);
                (looks, busy_looks) = (0, 0);
                // Work that came after the last visit does not wait for another nap.
                let found = match self.try_visit() {
                    Ok(mut visit) => self.look(&mut visit, look, died),
                    Err(_) if self.is_bound() => Look::Bound,
                    Err(_) => Look::Quiet,
                };
                let most = match found {
                    Look::Quiet if count >= OFTEN => STAND_BY_MAX,
                    Look::Quiet | Look::Bound => PAUSE_MAX,
                    Look::Busy => STAND_BY,
                };
                length = if self.has_waiting() { STAND_BY } else { (length * 2).min(most) };
                continue;
            }
            length = length.min(PAUSE_MAX);
            let is_long = naps >= LONG_VISIT;
            self.keeper_waits.store(is_long, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            match self.try_visit() {
                Err(NoVisit::Busy) => {}
                Ok(mut visit) if looks < LOOKS && !self.has_waiting() && !is_wanted => {
                    self.keeper_waits.store(false, Ordering::SeqCst);
                    let found = self.look(&mut visit, look, died);
                    drop(visit);
                    busy_looks = if found == Look::Busy { busy_looks + 1 } else { 0 };
                    if found == Look::Bound || busy_looks == BUSY_LOOKS {
                        return;
                    }
                    (looks, naps) = (looks + 1, 0);
                    continue;
                }
                Ok(_) | Err(NoVisit::Gone) => {
                    self.keeper_waits.store(false, Ordering::SeqCst);
                    return;
                }
            }
            if is_long && !self.is_stopped() {
                thread::park();
                self.keeper_waits.store(false, Ordering::SeqCst);
                (seen, seen_moments) = self.ended_visits();
                naps = 0;
            }
        }
    }

    /// Visits of threads that wait and of tasks that have ended.
    fn ended_visits(&self) -> (usize, usize) {
        (self.visits.load(Ordering::SeqCst), self.moments.load(Ordering::SeqCst))
    }

    /// Visits of tasks that have ended.
    #[cfg(test)]
    pub(super) fn moments(&self) -> usize {
        self.ended_visits().1
    }

    fn look(
        &self,
        visit: &mut Visit<'_, T>,
        look: &mut impl FnMut(&mut T) -> Look,
        died: &impl Fn(&(dyn Any + Send)),
    ) -> Look {
        self.keeper_looks.store(true, Ordering::Relaxed);
        let found = visit.run(look, died).unwrap_or(Look::Quiet);
        self.keeper_looks.store(false, Ordering::Relaxed);
        self.is_bound.store(found == Look::Bound, Ordering::Relaxed);
        found
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
    /// The kind of guest that has driven.
    drove: Option<WaitKind>,
    /// Dropped last.
    _no_wakes: NoWakes,
}

impl<T> Visit<'_, T> {
    /// What is driven.
    pub(super) fn get(&mut self) -> &mut T {
        let driven = self.driven.as_mut().and_then(|driven| driven.as_mut());
        driven.expect("a visit has what it drives until it is dropped")
    }

    /// Runs something between two turns. What panics has ended; `died` is told what it said, before other
    /// threads can see that. This thread, which has no part in it, goes on.
    ///
    /// # Errors
    /// The error that `died` makes of the panic.
    pub(super) fn run<R, E>(
        &mut self,
        run: impl FnOnce(&mut T) -> R,
        died: impl FnOnce(&(dyn Any + Send)) -> E,
    ) -> Result<R, E> {
        let driven = self.get();
        catch_unwind(AssertUnwindSafe(|| run(driven))).map_err(|panic| {
            let error = died(&*panic);
            drop(self.driven.as_mut().and_then(|driven| driven.take()));
            error
        })
    }

    /// Drives, as a guest, which will again soon. One that finds the shard gone learns it as others do.
    pub(super) fn drive<E>(
        &mut self,
        guest: WaitKind,
        drive: impl FnOnce(&mut T),
        died: impl FnOnce(&(dyn Any + Send)) -> E,
    ) {
        self.drove = self.run(drive, died).is_ok().then_some(guest);
    }
}

impl<T> Drop for Visit<'_, T> {
    fn drop(&mut self) {
        drop(self.driven.take());
        let Handover { visits, moments, keeper_waits, .. } = self.handover;
        match self.drove {
            Some(WaitKind::Thread) => drop(visits.fetch_add(1, Ordering::SeqCst)),
            Some(WaitKind::Task) => drop(moments.fetch_add(1, Ordering::SeqCst)),
            None => {}
        }
        fence(Ordering::SeqCst);
        let waits = keeper_waits.load(Ordering::SeqCst) && keeper_waits.swap(false, Ordering::SeqCst);
        if waits || self.drove.is_some_and(|guest| self.handover.has_others_waiting(guest)) {
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

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::Arc;

    use super::*;

    const ROUNDS: usize = 40;
    const PAUSE: Duration = Duration::from_millis(1);

    /// A keeper that finds such things, and how often it has driven.
    fn keeper(look: Look) -> (Arc<Handover<()>>, Arc<AtomicUsize>, thread::JoinHandle<()>) {
        let handover = Arc::new(Handover::new(()));
        let drives = Arc::new(AtomicUsize::new(0));
        let (own, counted) = (Arc::clone(&handover), Arc::clone(&drives));
        let drive = move |()| {
            counted.fetch_add(1, Ordering::SeqCst);
        };
        let keeper = thread::spawn(move || own.keep(|()| drive(()), |()| look, |_| {}));
        (handover, drives, keeper)
    }

    /// How often the keeper drives while a guest comes again and again, with pauses in between.
    fn drives_in_pauses(look: Look) -> usize {
        let (handover, drives, keeper) = keeper(look);
        for _ in 0..ROUNDS {
            if let Ok(mut visit) = handover.try_visit() {
                visit.drive(WaitKind::Thread, |()| {}, |_| {});
            }
            thread::sleep(PAUSE);
        }
        let count = drives.load(Ordering::SeqCst);
        handover.stop();
        keeper.join().unwrap();
        count
    }

    #[test]
    fn a_guest_that_pauses_finds_the_shard_as_it_has_left_it() {
        let [quiet, bound] = [Look::Quiet, Look::Bound].map(drives_in_pauses);
        assert!(quiet < ROUNDS / 4, "the keeper drove {quiet} times");
        assert!(bound > ROUNDS / 4, "the keeper drove {bound} times");
    }

    /// Times that the keeper drives while tasks drive for moments without a pause, or have stopped.
    fn drives_beside_tasks(waiter: WaitKind, has_given_up: bool) -> bool {
        let (handover, drives, keeper) = keeper(Look::Quiet);
        while handover.try_visit().map(|mut visit| visit.drive(WaitKind::Task, |()| {}, |_| {})).is_err() {
            thread::yield_now();
        }
        handover.set_waiting(waiter, true);
        let before = drives.load(Ordering::SeqCst);
        let begun = std::time::Instant::now();
        let drove = || drives.load(Ordering::SeqCst) != before;
        if has_given_up {
            handover.call_keeper();
            while !drove() && begun.elapsed() < PAUSE * 10_000 {
                thread::yield_now();
            }
        }
        while !has_given_up && !drove() && begun.elapsed() < PAUSE * 40 {
            if let Ok(mut visit) = handover.try_visit() {
                visit.drive(WaitKind::Task, |()| thread::sleep(PAUSE / 10), |_| {});
            }
            if waiter == WaitKind::Thread {
                thread::sleep(PAUSE / 10);
            }
        }
        handover.stop();
        keeper.join().unwrap();
        drove()
    }

    #[test]
    fn a_keeper_leaves_the_shard_to_tasks_until_they_give_up() {
        assert!(drives_beside_tasks(WaitKind::Task, true), "a task has given up");
        assert!(drives_beside_tasks(WaitKind::Thread, false), "a thread is blocked meanwhile");
        // A machine that is busy may keep the tasks' thread from its visits for the time of a nap.
        assert!((0..20).any(|_| !drives_beside_tasks(WaitKind::Task, false)), "tasks drive");
    }

    /// A shard that has something to do again and again is driven, and so is one that is left for good.
    #[test]
    fn a_shard_that_is_left_is_driven() {
        for look in [Look::Busy, Look::Quiet] {
            let (handover, drives, keeper) = keeper(look);
            while handover
                .try_visit()
                .map(|mut visit| visit.drive(WaitKind::Thread, |()| {}, |_| {}))
                .is_err()
            {
                thread::yield_now();
            }
            let before = drives.load(Ordering::SeqCst);
            let begun = std::time::Instant::now();
            while drives.load(Ordering::SeqCst) == before {
                assert!(begun.elapsed() < Duration::from_secs(20), "{look:?}");
                thread::sleep(PAUSE);
            }
            handover.stop();
            keeper.join().unwrap();
        }
    }
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
                    let drive = |driven: &mut Driven| {
                        driven.turn();
                        if driven.done == 1 {
                            handover.stop();
                        }
                    };
                    let look = |driven: &mut Driven| {
                        let before = driven.done;
                        driven.turn();
                        if driven.done == before { Look::Quiet } else { Look::Busy }
                    };
                    handover.keep(drive, look, |_| {});
                })
            };
            handover.ask();
            if let Ok(mut visit) = handover.try_visit() {
                visit.drive(WaitKind::Thread, Driven::turn, |_| {});
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
                    handover.stand_by(&mut |()| Look::Quiet, &|_| {});
                    assert!(handover.try_visit().is_ok());
                })
            };
            visit.drive(WaitKind::Thread, |()| {}, |_| {});
            drop(visit);
            keeper.join().unwrap();
        });
    }
}
