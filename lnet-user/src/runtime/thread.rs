//! A shard with a thread of its own, its keeper; a thread that waits for the shard's events drives it
//! instead.
//!
//! A driver that sleeps lets go of the shard, so that a call need not wait until it is awake: it runs on the
//! caller's thread meanwhile, which wakes the driver if there is something to do then.
//!
//! Invariants: a shard is with its driver, or at rest while that sleeps, or with a call that found it there.
//! The waiter in which the driver sleeps is its own, and such a call does not touch it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use lnet_core::handle::ShardId;
use lnet_core::time::Instant;
use lnet_io::locks::Mutex;
use lnet_io::reactor::{WaitError, Waker};
use rustix::thread::{Pid, gettid};

use super::cpu::pin_to_cpu;
use super::deputy::{self, StandIn};
use super::fate::{Ended, Fate};
use super::handover::{Handover, Look, NoVisit, WaitKind};
use super::spin::Spin;
use super::wakes::{self, NoWakes};
use super::worker::{Sleep, Worker};

/// What a thread does that drives a shard and has nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Idle {
    /// How long it polls at most before it sleeps. It sleeps at once where things come further apart than
    /// that, and where another thread wants its CPU.
    pub spin: Duration,
}

/// Turns of a keeper that has a look, at most.
const LOOK_TURNS: u32 = 64;

impl Idle {
    /// Polls for `spin` at most.
    #[must_use]
    pub const fn new(spin: Duration) -> Self {
        Self { spin }
    }
}

type Turn<S> = Box<dyn FnMut(&mut Worker, &mut S) + Send>;

/// A shard, what takes its events, and what its driver does with both.
struct ShardParts<S> {
    worker: Worker,
    service: S,
    turn: Turn<S>,
}

/// A shard whose driver sleeps.
struct Resting<S> {
    parts: Box<ShardParts<S>>,
    sleep: Sleep,
}

/// The shard of a driver, and how it drives that.
struct Driven<S> {
    /// `None` while it sleeps.
    parts: Option<Box<ShardParts<S>>>,
    /// Where the parts are meanwhile.
    resting: Arc<Mutex<Option<Resting<S>>>>,
    has_work: fn(&S) -> bool,
    spin: Spin,
    /// The guest that drove last, if no keeper has since.
    guest: Option<ThreadId>,
}

impl<S> Driven<S> {
    fn parts(&mut self) -> &mut ShardParts<S> {
        self.parts.as_mut().expect(AWAKE)
    }

    /// Takes turns until there is nothing to do, or a few.
    fn look(&mut self) -> Look {
        let ShardParts { worker, service, turn } = self.parts();
        if worker.is_bound_to_driver() {
            return Look::Bound;
        }
        let mut found = Look::Quiet;
        for _ in 0..LOOK_TURNS {
            let busy = worker.progress();
            let events = worker.event_counts();
            turn(worker, service);
            if !busy && worker.event_counts() == events {
                break;
            }
            found = Look::Busy;
            if wakes::any_postponed() {
                break;
            }
        }
        found
    }

    /// Takes turns until `is_done`, until a time, or until a program is to be woken. Sleeps in between, or
    /// yields the CPU where it would: the other end of a message may wait for it.
    fn drive(&mut self, is_done: impl Fn() -> bool, until: Option<Instant>, sleeps: bool) {
        let (mut idle_since, mut can_sleep) = (None, true);
        // The time that the last driver knew is old.
        self.parts().worker.look_at_clock();
        loop {
            let Self { parts, spin, .. } = self;
            let ShardParts { worker, service, turn } = &mut **parts.as_mut().expect(AWAKE);
            let busy = worker.progress();
            let events = worker.event_counts();
            turn(worker, service);
            let now = worker.looked_at();
            let gap = idle_since.map_or(Duration::ZERO, |since| now - since);
            if is_done() || wakes::any_postponed() {
                return spin.end(Some(gap));
            }
            // Events that the turn leaves are for another thread to take, and no reason to stay awake. But
            // where it took one, another may have taken its place that the turn would take too.
            let has_moved = busy || worker.event_counts() != events;
            if until.is_some_and(|until| until <= now) {
                return spin.end(has_moved.then_some(gap));
            }
            if has_moved {
                if idle_since.take().is_some() {
                    spin.end(Some(gap));
                }
                continue;
            }
            if spin.goes_on(now - *idle_since.get_or_insert(now)) {
                std::hint::spin_loop();
            } else if !sleeps || !can_sleep {
                std::thread::yield_now();
            } else if let Err(error) = self.sleep(&is_done, until.map(|until| until - now)) {
                tracing::error!(%error, "a thread that drives a shard cannot sleep; it goes on polling");
                can_sleep = false;
            }
        }
    }

    /// Sleeps until there is something to do, or `is_done`. Calls find the shard meanwhile.
    fn sleep(&mut self, is_done: impl Fn() -> bool, timeout: Option<Duration>) -> Result<(), WaitError> {
        let Self { parts, resting, has_work, .. } = self;
        let Some(mut own) = parts.take() else { panic!("{AWAKE}") };
        let mut waiter = own.worker.take_waiter();
        let armed = waiter.arm();
        let ShardParts { worker, service, .. } = &mut *own;
        let Some(sleep) = worker.sleep(|| is_done() || has_work(service), false, timeout) else {
            drop(armed);
            own.worker.give_waiter(waiter);
            *parts = Some(own);
            return Ok(());
        };
        let longest = sleep.longest;
        *lock(resting) = Some(Resting { parts: own, sleep });
        let slept = armed.wait(longest, |_| {}).map(drop);
        let Some(Resting { parts: mut own, .. }) = lock(resting).take() else {
            // A call has panicked, and said so.
            resume_unwind(Box::new("a call has panicked"))
        };
        own.worker.give_waiter(waiter);
        *parts = Some(own);
        slept
    }
}

const AWAKE: &str = "a driver that is awake has its shard";

fn lock<T>(mutex: &Mutex<T>) -> lnet_io::locks::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A shard that its keeper drives, or others do, and what ends it.
pub(crate) struct Drivable<S> {
    shard: Handover<Driven<S>>,
    resting: Arc<Mutex<Option<Resting<S>>>>,
    waker: Waker,
    shard_id: ShardId,
    fate: Arc<Fate>,
    /// Whether its handles are gone, so that the keeper drops it when it ends.
    is_left: AtomicBool,
}

impl<S> std::fmt::Debug for Drivable<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Drivable").field(&self.shard_id.0).finish()
    }
}

/// Outcome of a moment for which a task's thread was to drive a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    /// Something has come for the task, or for another one.
    Woken,
    /// Nothing has come.
    Quiet,
    /// The keeper drives still, and was asked to leave.
    Asked,
    /// Another guest drives, the keeper is to drive for a thread that is blocked, or the shard has ended.
    Taken,
}

impl<S> Drivable<S> {
    /// Why the node has ended.
    pub(crate) fn fate(&self) -> &Arc<Fate> {
        &self.fate
    }

    fn died(&self, panic: &(dyn Any + Send)) -> Ended {
        self.fate.end_by_shard(self.shard_id, panic)
    }

    /// Whether a thread that pauses between its waits finds that the keeper drives, if it does so for some
    /// milliseconds.
    pub(crate) fn is_driven_in_pauses(&self) -> bool {
        self.shard.is_bound()
    }

    /// A thread or task begins to wait for events, or has them: the keeper drives meanwhile.
    pub(crate) fn set_waiting(&self, waiter: WaitKind, waits: bool) {
        self.shard.set_waiting(waiter, waits);
    }

    /// Whether the keeper stands by, and no task wants it to drive.
    pub(crate) fn is_left_to_guests(&self) -> bool {
        self.shard.is_left_to_guests()
    }

    /// Asks the keeper to stand by for the calling thread's tasks; whether it drives, and may be asked.
    pub(crate) fn ask_keeper(&self) -> bool {
        let is_askable = self.shard.is_for_a_task();
        if is_askable && !self.shard.is_asked() {
            self.shard.ask();
            self.waker.wake();
        }
        is_askable
    }

    /// Has the keeper drive: a task of the calling thread waits for longer.
    pub(crate) fn call_keeper(&self) {
        self.shard.call_keeper();
    }

    /// Drives the shard on this thread for a task, until `is_done`, until a program is to be woken, or
    /// until a time, without a sleep. Where the keeper drives, and this is `eager`, it is
    /// asked to stand by.
    pub(crate) fn drive_a_moment(&self, is_done: impl Fn() -> bool, until: Instant, eager: bool) -> Moment {
        if self.shard.has_blocked() {
            return Moment::Taken;
        }
        let mut visit = match self.shard.try_visit() {
            Ok(visit) => visit,
            Err(NoVisit::Busy) if self.shard.is_looked_at() || eager && self.ask_keeper() => {
                return Moment::Asked;
            }
            Err(_) => return Moment::Taken,
        };
        let (driven, own) = (visit.get(), std::thread::current().id());
        let is_bound = driven.parts().worker.is_bound_to_driver();
        self.shard.set_bound(is_bound);
        if is_bound && driven.guest.is_some_and(|guest| guest != own) {
            return Moment::Taken;
        }
        driven.guest = Some(own);
        let mut moment = Moment::Quiet;
        let drive = |driven: &mut Driven<S>| {
            driven.drive(|| is_done() || self.shard.is_asked(), Some(until), false);
            if is_done() || wakes::any_postponed() {
                moment = Moment::Woken;
            }
        };
        visit.drive(WaitKind::Task, drive, |panic| self.died(panic));
        moment
    }

    /// Moments for which tasks have driven.
    #[cfg(test)]
    pub(crate) fn moments(&self) -> usize {
        self.shard.moments()
    }
}

impl<S: Send> StandIn for Drivable<S> {
    fn stand_in(&self, is_over: &AtomicBool) {
        let is_over = || is_over.load(Ordering::Acquire);
        let drive = |driven: &mut Driven<S>| {
            driven.guest = None;
            driven.drive(|| is_over() || self.shard.is_asked(), None, true);
        };
        self.shard.stand_in(is_over, drive, |panic| drop(self.died(panic)));
    }

    fn wake(&self) {
        self.waker.wake();
    }
}

/// A shard with a thread of its own. Dropping it stops the thread and waits for it.
pub struct ShardThread<S> {
    shared: Arc<Drivable<S>>,
    thread: Option<JoinHandle<()>>,
    thread_id: Pid,
}

impl<S> std::fmt::Debug for ShardThread<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardThread").field("thread", &self.thread).finish_non_exhaustive()
    }
}

impl<S: Send + 'static> ShardThread<S> {
    /// Starts a thread that drives `worker`, on `cpu` if one is given. `turn` is called with `service`
    /// after every turn of the shard, by the thread that drives it: there it takes the shard's events, reads
    /// their payload in place and starts what it likes; it must not block.
    ///
    /// # Errors
    /// The kernel's refusal to make the thread or to bind it to `cpu`.
    pub fn spawn(
        worker: Worker,
        cpu: Option<usize>,
        idle: Idle,
        service: S,
        turn: impl FnMut(&mut Worker, &mut S) + Send + 'static,
    ) -> std::io::Result<Self> {
        Self::spawn_with(worker, cpu, idle, service, |_| false, Arc::default(), turn)
    }

    /// Does what [`ShardThread::spawn`] does, but its driver does not sleep if `has_work` says so once
    /// wake-ups are armed: then there is something for another turn, of which the [`Waker`] was told when the
    /// shard was still awake. A panic of a driver is noted in `fate`, and ends all shards that have the same.
    ///
    /// # Errors
    /// As [`ShardThread::spawn`].
    pub fn spawn_with(
        worker: Worker,
        cpu: Option<usize>,
        idle: Idle,
        service: S,
        has_work: fn(&S) -> bool,
        fate: Arc<Fate>,
        turn: impl FnMut(&mut Worker, &mut S) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (waker, shard_id) = (worker.waker(), worker.shard_id());
        let name = format!("lnet-shard-{}", shard_id.0);
        let (turn, spin) = (Box::new(turn), Spin::new(idle.spin));
        let (parts, resting) = (Some(Box::new(ShardParts { worker, service, turn })), Arc::default());
        let driven = Driven { parts, resting: Arc::clone(&resting), has_work, spin, guest: None };
        let (shard, is_left) = (Handover::new(driven), AtomicBool::new(false));
        let shared = Arc::new(Drivable { shard, resting, waker, shard_id, fate, is_left });
        let (tell, told) = mpsc::sync_channel(1);
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let pinned = cpu.map_or(Ok(()), pin_to_cpu).map(|()| gettid());
            let is_pinned = pinned.is_ok();
            if tell.send(pinned).is_ok() && is_pinned {
                deputy::set_shard(Some(Arc::clone(&own) as Arc<dyn StandIn>));
                let drive = |driven: &mut Driven<S>| {
                    driven.guest = None;
                    driven.drive(|| own.shard.is_asked(), None, true);
                };
                own.shard.keep(drive, Driven::look, |panic| drop(own.died(panic)));
                deputy::set_shard(None);
                if own.fate.cause().is_some() || own.is_left.load(Ordering::Acquire) {
                    drop(own.shard.take());
                }
            }
        })?;
        let thread_id =
            told.recv().unwrap_or_else(|_| Err(std::io::Error::other("the shard's thread has ended")))?;
        Ok(Self { shared, thread: Some(thread), thread_id })
    }

    /// Runs `call` between two turns, on this thread.
    ///
    /// # Errors
    /// [`Ended`] if the shard has ended, or ends now, since the call panics.
    pub fn call<R>(&self, call: impl FnOnce(&mut Worker) -> R) -> Result<R, Ended> {
        /// A driver that was asked leaves at once, unless another thread has asked as well.
        const PATIENCE: Duration = Duration::from_millis(1);
        loop {
            match self.shared.shard.try_visit() {
                Ok(mut visit) => {
                    return visit
                        .run(|driven| call(&mut driven.parts().worker), |panic| self.shared.died(panic));
                }
                Err(NoVisit::Gone) => return Err(self.shared.fate.why()),
                Err(NoVisit::Busy) => self.shared.shard.ask(),
            }
            self.shared.waker.wake();
            std::thread::park_timeout(PATIENCE);
        }
    }

    /// Makes the call like [`ShardThread::call`], if no other thread drives the shard; else gives `argument`
    /// back.
    pub(crate) fn try_call<A, R>(
        &self,
        argument: A,
        call: impl FnOnce(A, &mut Worker, &mut S) -> R,
    ) -> Result<Result<R, Ended>, A> {
        let Ok(mut visit) = self.shared.shard.try_visit() else { return Err(argument) };
        let call = |driven: &mut Driven<S>| {
            let ShardParts { worker, service, .. } = driven.parts();
            call(argument, worker, service)
        };
        Ok(visit.run(call, |panic| self.shared.died(panic)))
    }

    /// Makes the call on this thread, if the one that drives the shard sleeps and the service has nothing to
    /// do; else gives `argument` back. The driver is woken if there is something to do after the call, which
    /// must not change what the shard watches.
    pub(crate) fn try_call_at_rest<A, R>(
        &self,
        argument: A,
        is_free: fn(&S) -> bool,
        call: impl FnOnce(A, &mut Worker, &mut S) -> R,
    ) -> Result<Result<R, Ended>, A> {
        let _no_wakes = NoWakes::new();
        let Ok(mut resting) = self.shared.resting.try_lock() else { return Err(argument) };
        let Some(Resting { parts, .. }) = &mut *resting else { return Err(argument) };
        let ShardParts { worker, service, .. } = &mut **parts;
        if !is_free(service) {
            return Err(argument);
        }
        let result = catch_unwind(AssertUnwindSafe(|| call(argument, worker, service))).map_err(|panic| {
            let error = self.shared.died(&*panic);
            drop(resting.take());
            error
        });
        let is_over =
            |Resting { parts, sleep }: &Resting<S>| parts.worker.ends(sleep) || !is_free(&parts.service);
        let is_over = resting.as_ref().is_none_or(is_over);
        drop(resting);
        if is_over {
            self.shared.waker.wake();
        }
        Ok(result)
    }

    /// Drives the shard on this thread until `is_done`, until a time, or until another thread asks for it.
    /// Without effect while another thread drives it; where that is the keeper, and this is `eager`, it is
    /// asked to stand by, and unparks this thread. Should the shard panic, it has ended, and this thread goes
    /// on.
    pub(crate) fn drive(&self, is_done: impl Fn() -> bool, until: Option<Instant>, eager: bool) {
        let mut visit = self.shared.shard.try_visit();
        while matches!(visit, Err(NoVisit::Busy)) && self.shared.shard.is_looked_at() {
            std::thread::yield_now();
            visit = self.shared.shard.try_visit();
        }
        match visit {
            Ok(mut visit) => loop {
                let drive = |driven: &mut Driven<S>| {
                    driven.guest = Some(std::thread::current().id());
                    driven.drive(|| is_done() || self.shared.shard.is_asked(), until, true);
                };
                visit.drive(WaitKind::Thread, drive, |panic| self.shared.died(panic));
                let wakes = wakes::any_postponed();
                drop(visit);
                if !wakes || is_done() || self.shared.shard.is_asked() {
                    break;
                }
                // Another thread may have taken its place meanwhile.
                let Ok(next) = self.shared.shard.try_visit() else { break };
                visit = next;
            },
            Err(NoVisit::Busy) if eager && self.shared.shard.is_for_a_guest() => {
                self.shared.shard.ask();
                self.shared.waker.wake();
            }
            Err(_) => {}
        }
    }

    /// The shard, for what outlives its handles.
    pub(crate) fn shared(&self) -> &Arc<Drivable<S>> {
        &self.shared
    }

    /// Whether threads or tasks wait for events.
    pub(crate) fn has_waiting(&self) -> bool {
        self.shared.shard.has_waiting()
    }

    /// What wakes its driver.
    pub(crate) fn waker(&self) -> &Waker {
        &self.shared.waker
    }

    /// The kernel's number of the thread.
    #[must_use]
    pub fn thread_id(&self) -> Pid {
        self.thread_id
    }

    /// Stops the thread and gives the shard back, to be driven by the caller.
    ///
    /// # Errors
    /// [`Ended`] if the shard has ended, by a panic.
    pub fn stop(mut self) -> Result<(Worker, S), Ended> {
        self.join();
        let parts = self.shared.shard.take().and_then(|driven| driven.parts);
        let ShardParts { worker, service, .. } = *parts.ok_or_else(|| self.shared.fate.why())?;
        Ok((worker, service))
    }
}

impl<S> ShardThread<S> {
    /// Has the shard's thread end, and drop the shard, whose node has ended.
    pub(crate) fn end(&self) {
        self.shared.shard.stop();
        self.shared.waker.wake();
    }

    fn join(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take_if(|thread| !is_current(thread)) {
            // A panic of the shard's thread has been printed by then.
            let _ = thread.join();
        }
    }
}

impl<S> Drop for ShardThread<S> {
    fn drop(&mut self) {
        self.join();
        // The shard's own thread, where a program drops the last handle, drops the shard when it ends.
        if self.thread.is_none() {
            drop(self.shared.shard.take());
        } else {
            self.shared.is_left.store(true, Ordering::Release);
        }
    }
}

fn is_current<T>(thread: &JoinHandle<T>) -> bool {
    thread.thread().id() == std::thread::current().id()
}
