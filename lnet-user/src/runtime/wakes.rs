//! Wakers of programs. What a waker does when it wakes, or is dropped, is code of the program: it may panic,
//! wait for the shard, or drop the last handle of the node. So none of it runs under a shard's lock: what is
//! to be woken there waits until the thread has released it.
//!
//! Invariants: a waker that is woken under a lock is woken once that is released, by the same thread. Where a
//! waker panics, the thread that wakes it goes on.

use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// Wakers that a thread has postponed.
#[derive(Default)]
struct Postponed {
    /// Locks that it has, of those under which nothing wakes.
    depth: u32,
    waiting: Vec<Deferred>,
}

enum Deferred {
    Wake(Waker),
    Late(Arc<Late>),
    Drop(#[expect(dead_code, reason = "it is only dropped")] Waker),
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
        let waiting = change(|postponed| {
            postponed.depth -= 1;
            if postponed.depth == 0 { std::mem::take(&mut postponed.waiting) } else { Vec::new() }
        });
        for deferred in waiting.unwrap_or_default() {
            guarded(|| match deferred {
                Deferred::Wake(waker) => waker.wake(),
                Deferred::Late(late) => late.pass_on(),
                Deferred::Drop(_) => {}
            });
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

/// Runs code of a program, which may panic.
fn guarded(run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        tracing::error!("a waker of the program has panicked; the node goes on");
    }
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

/// A future of the program's task whose result a shard has: what wakes it waits for the shard's lock.
#[derive(Debug)]
pub(crate) struct Awaited<F>(pub(crate) F);

impl<F: Future + Unpin> Future for Awaited<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let waker = Waker::from(Arc::new(Late(Some(context.waker().clone()))));
        Pin::new(&mut self.0).poll(&mut Context::from_waker(&waker))
    }
}
