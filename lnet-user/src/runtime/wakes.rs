//! Wakers of programs. What a waker does when it wakes, or is dropped, is code of the program: it may panic,
//! wait for the shard, or drop the last handle of the node. So none of it runs under a shard's lock: what is
//! to be woken there waits until the thread has released it. The thread that controls the node wakes nothing
//! itself: it has other threads do that.
//!
//! Invariants: a waker that is woken under a lock is woken once that is released, by the same thread, or for
//! the control thread by another one. Where a waker panics, the thread that wakes it goes on.

use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

#[cfg(loom)]
use std::sync::Mutex;

#[cfg(not(loom))]
use lnet_io::locks::Mutex;

/// Wakers that a thread has postponed.
#[derive(Default)]
struct Postponed {
    /// Locks that it has, of those under which nothing wakes.
    depth: u32,
    waiting: Vec<Deferred>,
    /// Whether other threads wake them.
    elsewhere: bool,
}

enum Deferred {
    Wake(Waker),
    Late(Arc<Late>),
    Drop(#[expect(dead_code, reason = "it is only dropped")] Waker),
}

impl Deferred {
    /// Runs the program's code, which may panic.
    fn pass_on(self) {
        let run = || match self {
            Self::Wake(waker) => waker.wake(),
            Self::Late(late) => late.pass_on(),
            Self::Drop(_) => {}
        };
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            tracing::error!("a waker of the program has panicked; the node goes on");
        }
    }
}

thread_local! {
    static POSTPONED: RefCell<Postponed> = RefCell::default();
}

/// Keeps the calling thread from waking anything until it is dropped. It is made before a lock is taken, or
/// with it, and dropped behind it.
#[derive(Debug)]
pub(crate) struct NoWakes(());

impl NoWakes {
    /// Begins to postpone.
    pub(crate) fn new() -> Self {
        change(|postponed| postponed.depth += 1);
        Self(())
    }
}

impl Drop for NoWakes {
    fn drop(&mut self) {
        let left = change(|postponed| {
            postponed.depth -= 1;
            let waiting =
                if postponed.depth == 0 { std::mem::take(&mut postponed.waiting) } else { Vec::new() };
            (waiting, postponed.elsewhere)
        });
        match left {
            Some((waiting, true)) if !waiting.is_empty() => pass_on_elsewhere(waiting),
            Some((waiting, _)) => waiting.into_iter().for_each(Deferred::pass_on),
            None => {}
        }
    }
}

/// Whether something waits until the calling thread has released its lock.
#[inline]
pub(crate) fn any_postponed() -> bool {
    change(|postponed| !postponed.waiting.is_empty()).unwrap_or(false)
}

/// Wakes a waker, once no lock forbids it.
pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        postpone(Deferred::Wake(waker));
    }
}

/// Has other threads wake whatever the calling thread is to wake from now on: what a program does there may
/// wait for this thread.
pub(crate) fn wake_elsewhere() {
    change(|postponed| postponed.elsewhere = true);
}

/// Whether other threads wake what the calling thread is to wake.
pub(crate) fn are_elsewhere() -> bool {
    change(|postponed| postponed.elsewhere).unwrap_or(false)
}

/// Wakes these, by a thread of its own.
fn pass_on_elsewhere(waiting: Vec<Deferred>) {
    let waiting = Arc::new(Mutex::new(waiting));
    let there = Arc::clone(&waiting);
    let wake = |waiting: &Mutex<Vec<Deferred>>| {
        let waiting = std::mem::take(&mut *waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(Deferred::pass_on);
    };
    let thread = std::thread::Builder::new().name("lnet-wakes".to_owned());
    if let Err(error) = thread.spawn(move || wake(&there)) {
        tracing::error!(%error, "no thread wakes programs: the one that controls the node does");
        wake(&waiting);
    }
}

fn postpone(what: Deferred) {
    let mut what = Some(what);
    // Without a lock it wakes here: the list is empty then, and stays so.
    let _no_wakes = NoWakes::new();
    change(|postponed| postponed.waiting.extend(what.take()));
}

/// Changes what the thread has postponed; `None` where the thread is ending, and has no more of it.
fn change<R>(change: impl FnOnce(&mut Postponed) -> R) -> Option<R> {
    POSTPONED.try_with(|postponed| change(&mut postponed.borrow_mut())).ok()
}

/// A waker that waits for the thread's locks, in front of a program's.
struct Late(Option<Waker>);

impl Late {
    fn pass_on(&self) {
        if let Some(waker) = &self.0 {
            waker.wake_by_ref();
        }
    }
}

impl Wake for Late {
    fn wake(self: Arc<Self>) {
        postpone(Deferred::Late(self));
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        if let Some(waker) = self.0.take() {
            postpone(Deferred::Drop(waker));
        }
    }
}

/// A future of the program's task whose result a thread of the node has: what wakes it waits for the locks of
/// that thread.
#[derive(Debug)]
pub(crate) struct Awaited<F> {
    future: F,
    /// The program's waker, and the one in front of it.
    waker: Option<(Waker, Waker)>,
}

impl<F> Awaited<F> {
    pub(crate) const fn new(future: F) -> Self {
        Self { future, waker: None }
    }

    /// The future itself.
    pub(crate) fn get(&mut self) -> &mut F {
        &mut self.future
    }

    /// The future itself, for a look at it.
    pub(crate) fn look(&self) -> &F {
        &self.future
    }
}

impl<F: Future + Unpin> Awaited<F> {
    /// Polls it for a caller that looks again soon: nothing wakes the task meanwhile.
    pub(crate) fn poll_unwoken(&mut self) -> Poll<F::Output> {
        Pin::new(&mut self.future).poll(&mut Context::from_waker(Waker::noop()))
    }
}

impl<F: Future + Unpin> Future for Awaited<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, waker } = &mut *self;
        let program = context.waker();
        if !waker.as_ref().is_some_and(|(former, _)| former.will_wake(program)) {
            *waker = Some((program.clone(), Waker::from(Arc::new(Late(Some(program.clone()))))));
        }
        let (_, late) = waker.as_ref().expect("it was set");
        Pin::new(future).poll(&mut Context::from_waker(late))
    }
}
