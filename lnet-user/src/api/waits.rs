//! Waits for a shard: how often a thread waits, and how its tasks do. A thread that waits again and again
//! drives the shard itself, so that no message wakes another thread.
//!
//! ```text
//!  first poll, nothing there --> again, behind whatever else is ready --> drive for a moment --> there
//!       |  seldom, and the keeper drives                                       |  nothing has come
//!       +---------------------------> the keeper drives, and wakes the task <--+
//! ```
//!
//! Invariants: what a task waits for wakes it, also where the runtime forgets that it was to be polled
//! again. A thread drives for [`MOMENT`] at most, does not sleep in the shard, and has its runtime poll
//! whatever is ready before it does so again; where no other task waits for a shard, every [`ALONE`]. Of its
//! tasks one drives a shard at a time, and the others leave it to that one: else those that were woken would
//! wait until each of the others had driven. A moment in which nothing came is the last one for a while, of
//! all tasks of the thread: twice as long each time. Threads that drive shards anyway, and the one that
//! controls the node, leave it at that.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lnet_core::time::Instant;
use tokio::sync::oneshot;

use super::error::LnetError;
use super::service::Service;
use crate::runtime::wakes::{self, Awaited};
use crate::runtime::{Clock, Drivable, Moment, WaitKind, is_keeper};

/// How long a task's thread drives at most, and tries to, before it polls other tasks.
const MOMENT: Duration = Duration::from_micros(50);

/// How long a thread whose runtime had no other task that waits for a shard does not ask it again. To ask
/// takes a turn of the runtime, some with system calls.
const ALONE: Duration = Duration::from_micros(10);

/// How often the waits that a thread drives for become twice as rare, at most.
const MISSES_MAX: u32 = 8;

/// How often a thread waits, and how soon after the last time.
#[derive(Default)]
pub(super) struct Waits {
    ended_at: Option<Instant>,
    /// Waits that began soon after the one before.
    streak: u32,
    /// Moments since something came in one.
    misses: u32,
    /// Times that tasks found nothing there.
    polls: u64,
    /// Until when the runtime is not asked for other tasks.
    alone_until: Option<Instant>,
    /// The shard that a task drove last until others were to be polled, by address, and when that was.
    woken: Option<(usize, Instant)>,
}

impl Waits {
    /// Waits in a row after which a thread drives the shard itself.
    const STREAK: u32 = 4;
    /// How soon the next wait begins in such a row, where the keeper only has looks at the shard meanwhile.
    const SOON: Duration = Duration::from_millis(5);
    /// How soon it begins where the keeper drives in pauses.
    const SOON_BOUND: Duration = Duration::from_micros(100);

    /// A wait begins: whether the thread is to drive the shard while it waits.
    pub(super) fn begin(&mut self, now: Instant, is_driven: bool) -> bool {
        let soon = if is_driven { Self::SOON_BOUND } else { Self::SOON };
        let is_soon = self.ended_at.is_some_and(|ended| now - ended < soon);
        self.streak = if is_soon { self.streak.saturating_add(1) } else { 0 };
        self.is_eager()
    }

    fn is_eager(&self) -> bool {
        self.streak >= Self::STREAK << self.misses
    }

    /// A wait is over.
    pub(super) fn end(&mut self) {
        self.ended_at = Some(Clock::of_process().now());
    }

    /// Leaves the next waits to the keeper.
    pub(super) fn reset(&mut self) {
        self.streak = 0;
    }

    /// Nothing has come while the thread drove.
    fn miss(&mut self) {
        self.reset();
        self.misses = (self.misses + 1).min(MISSES_MAX);
    }
}

thread_local! {
    /// The waits of the thread's tasks.
    static WAITS: RefCell<Waits> = RefCell::default();
    /// Address of the shard whose guest polls its tasks on the thread.
    static GUEST_OF: Cell<usize> = const { Cell::new(0) };
}

/// Polls tasks of a guest of this shard.
pub(super) fn as_guest<R>(shard: &Arc<Drivable<Service>>, poll: impl FnOnce() -> R) -> R {
    struct Former(usize);

    impl Drop for Former {
        fn drop(&mut self) {
            GUEST_OF.set(self.0);
        }
    }

    let _former = Former(GUEST_OF.replace(Arc::as_ptr(shard).addr()));
    poll()
}

/// Looks at the waits of the calling thread's tasks, or changes them; the default where the thread ends.
fn waits<R: Default>(change: impl FnOnce(&mut Waits) -> R) -> R {
    WAITS.try_with(|waits| change(&mut waits.borrow_mut())).unwrap_or_default()
}

/// How far a task's wait is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WaitStage {
    /// Nothing was waited for yet.
    Idle,
    /// The runtime polls what else is ready, and then this task.
    Yields { since: Instant, polls: u64 },
    /// The thread drives, or tries to until then.
    Drives { until: Instant },
    /// The keeper drives, or another task of the thread.
    Left,
}

/// A task's wait for a shard.
#[derive(Debug)]
pub(super) struct Wait {
    shard: Arc<Drivable<Service>>,
    stage: WaitStage,
    /// Whether the shard knows of it.
    is_told: bool,
    /// Whether something came for it while its thread drove.
    is_hit: bool,
}

impl Wait {
    pub(super) fn new(shard: &Arc<Drivable<Service>>) -> Self {
        Self { shard: Arc::clone(shard), stage: WaitStage::Idle, is_told: false, is_hit: false }
    }

    /// Nothing is there, and what comes wakes the task: whether its thread is to drive the shard now.
    pub(super) fn is_to_drive(&mut self, context: &Context<'_>) -> bool {
        match self.stage {
            WaitStage::Left => return false,
            // A guest drives when its thread would sleep, and tells itself that it waits.
            WaitStage::Idle if self.is_of_guest() => {
                self.stage = WaitStage::Left;
                return false;
            }
            WaitStage::Idle if is_keeper() || wakes::are_elsewhere() => {
                self.hand_over();
                return false;
            }
            WaitStage::Idle | WaitStage::Yields { .. } | WaitStage::Drives { .. } => {}
        }
        let (now, is_driven) = (Clock::of_process().now(), self.shard.is_driven_in_pauses());
        let stage = self.stage;
        let own = self.address();
        let (is_eager, is_alone, has_driver, polls) = waits(|waits| {
            waits.polls += 1;
            let is_eager =
                if stage == WaitStage::Idle { waits.begin(now, is_driven) } else { waits.is_eager() };
            let mut has_driver = false;
            if let WaitStage::Yields { since, polls } = stage {
                waits.alone_until = (waits.polls == polls + 1).then(|| now + ALONE);
                has_driver = waits.woken.is_some_and(|(shard, woken_at)| shard == own && woken_at > since);
            }
            (is_eager, waits.alone_until.is_some_and(|until| now < until), has_driver, waits.polls)
        });
        // Another task of the thread drives, and those that it woke are behind this one. Where it stops, the
        // keeper has a look.
        if has_driver {
            self.stage = WaitStage::Left;
            return false;
        }
        // Another task of the thread may have found that nothing comes.
        if !is_eager && !self.shard.is_left_to_guests() {
            self.hand_over();
            return false;
        }
        match stage {
            WaitStage::Idle if !is_alone => self.yields(now, polls, context),
            WaitStage::Drives { .. } => {}
            _ => self.stage = WaitStage::Drives { until: now + MOMENT },
        }
        matches!(self.stage, WaitStage::Drives { .. })
    }

    /// Has the runtime poll what else is ready, and then this task.
    fn yields(&mut self, now: Instant, polls: u64, context: &Context<'_>) {
        self.stage = WaitStage::Yields { since: now, polls };
        context.waker().wake_by_ref();
    }

    /// Drives the shard for a moment.
    pub(super) fn drive(&mut self, is_ready: impl Fn() -> bool) -> Moment {
        let WaitStage::Drives { until } = self.stage else { return Moment::Taken };
        self.is_hit = true;
        self.shard.drive_a_moment(is_ready, until, waits(|waits| waits.is_eager()))
    }

    /// Nothing is there after such a moment, and what comes wakes the task.
    pub(super) fn go_on(&mut self, moment: Moment, context: &Context<'_>) {
        self.is_hit = false;
        match (moment, self.stage) {
            (Moment::Woken, _) => {
                let (now, own) = (Clock::of_process().now(), self.address());
                let polls = waits(|waits| {
                    (waits.alone_until, waits.woken) = (None, Some((own, now)));
                    waits.polls
                });
                self.yields(now, polls, context);
            }
            (Moment::Asked, WaitStage::Drives { until }) if Clock::of_process().now() < until => {
                // The keeper may wait for this CPU.
                std::thread::yield_now();
                context.waker().wake_by_ref();
            }
            (Moment::Asked | Moment::Quiet, _) => {
                // A keeper that did not leave in time says nothing of what would have come.
                waits(if moment == Moment::Quiet { Waits::miss } else { Waits::reset });
                self.hand_over();
                self.shard.call_keeper();
            }
            (Moment::Taken, _) => {
                waits(Waits::reset);
                self.hand_over();
            }
        }
    }

    /// What it waited for is there.
    pub(super) fn end(&mut self) {
        if self.stage == WaitStage::Idle {
            return;
        }
        let is_hit = std::mem::take(&mut self.is_hit);
        let is_eager = waits(|waits| {
            waits.end();
            waits.misses = if is_hit { 0 } else { waits.misses };
            waits.is_eager()
        });
        self.give_up();
        // The next one most likely begins soon. The keeper, which has just woken this task, is awake now.
        if is_eager {
            self.shard.ask_keeper();
        }
    }

    /// Ends without what it waited for.
    pub(super) fn give_up(&mut self) {
        self.stage = WaitStage::Idle;
        if std::mem::take(&mut self.is_told) {
            self.shard.set_waiting(WaitKind::Task, false);
        }
    }

    fn is_of_guest(&self) -> bool {
        let guest_of = GUEST_OF.try_with(Cell::get).unwrap_or(0);
        guest_of == self.address()
    }

    /// Address of the shard.
    fn address(&self) -> usize {
        Arc::as_ptr(&self.shard).addr()
    }

    /// The keeper drives for it.
    fn hand_over(&mut self) {
        self.stage = WaitStage::Left;
        if !std::mem::replace(&mut self.is_told, true) {
            self.shard.set_waiting(WaitKind::Task, true);
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// An answer of a shard, for a task.
#[derive(Debug)]
pub(super) struct Answered<T> {
    answer: Awaited<oneshot::Receiver<T>>,
    wait: Wait,
}

impl<T> Answered<T> {
    pub(super) fn new(shard: &Arc<Drivable<Service>>, answer: oneshot::Receiver<T>) -> Self {
        Self { answer: Awaited::new(answer), wait: Wait::new(shard) }
    }
}

impl<T> Future for Answered<T> {
    type Output = Result<T, LnetError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { answer, wait } = &mut *self;
        let mut polled = Pin::new(&mut *answer).poll(context);
        if polled.is_pending() && wait.is_to_drive(context) {
            polled = answer.poll_unwoken();
            if polled.is_pending() {
                let moment = wait.drive(|| !answer.look().is_empty());
                polled = Pin::new(&mut *answer).poll(context);
                if polled.is_pending() {
                    wait.go_on(moment, context);
                }
            }
        }
        if polled.is_ready() {
            wait.end();
        }
        polled.map(|answer| answer.map_err(|_| wait.shard.fate().why().into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_in_vain_drives_more_and_more_rarely() {
        let mut waits = Waits::default();
        let mut needed = || {
            let begun = (1..).find(|_| {
                let begins = waits.begin(Clock::of_process().now(), false);
                waits.end();
                begins
            });
            waits.miss();
            begun.unwrap()
        };
        // The first of a row follows none.
        assert_eq!([needed(), needed(), needed()], [5, 8, 16]);
        assert!((0..20).all(|_| needed() <= 4 << MISSES_MAX));
    }
}
