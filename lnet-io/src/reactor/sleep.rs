//! Who has to wake a sleeper, and when.
//!
//! The sleeper says that it is about to sleep and then looks for work; a waker leaves work and then looks
//! whether there is a sleeper. A full fence between the two steps of each makes sure that at least one sees
//! the other's first step (Dekker's protocol). Of several wakers one finds the flag and pays.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};

/// Whether a thread is about to sleep, or sleeps.
#[derive(Debug)]
struct SleepFlag(AtomicBool);

impl SleepFlag {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// The sleeper looks for work after this.
    #[inline]
    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The sleeper is awake.
    #[inline]
    fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// The waker has left work before this; whether it has to wake the sleeper, which it is told once.
    #[inline]
    fn claim(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Sleeper {
    flag: SleepFlag,
    eventfd: OwnedFd,
}

/// Wakes the thread that waits in a worker. Cheap to clone, and may be used on any thread.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Sleeper>,
}

impl Waker {
    /// A waker without a thread.
    pub(super) fn new() -> io::Result<Self> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { shared: Arc::new(Sleeper { flag: SleepFlag::new(), eventfd }) })
    }

    /// Makes sure that the waiter looks for work that was left before this call: a system call if it is
    /// armed and no other thread is waking it, else a fence and a load. Returns whether it took the system
    /// call.
    #[inline]
    pub fn wake(&self) -> bool {
        let claimed = self.shared.flag.claim();
        if claimed {
            self.signal();
        }
        claimed
    }

    #[cold]
    fn signal(&self) {
        // Each write wakes the polling thread, whatever the counter is, so it is not read. It fails only when
        // the counter is full, after 2^64 - 2 wakes.
        let written = rustix::io::write(&self.shared.eventfd, &1u64.to_ne_bytes());
        debug_assert!(written.is_ok(), "eventfd: {written:?}");
    }

    /// The waiter is about to sleep.
    #[inline]
    pub(super) fn arm(&self) {
        self.shared.flag.set();
    }

    /// The waiter is awake.
    #[inline]
    pub(super) fn disarm(&self) {
        self.shared.flag.clear();
    }

    /// Becomes readable when the waiter is woken.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.eventfd.as_fd()
    }
}

/// `cargo test --package lnet-loom` runs it.
#[cfg(test)]
#[cfg(loom)]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;

    use super::*;

    /// Wakers that each leave a piece of work; the sleeper goes to sleep once, if it finds none of them.
    fn run(wakers: u32) {
        loom::model(move || {
            let flag = Arc::new(SleepFlag::new());
            let work = Arc::new(AtomicU32::new(0));
            let signals = Arc::new(AtomicU32::new(0));
            let threads: Vec<_> = (0..wakers)
                .map(|_| {
                    let (flag, work, signals) = (Arc::clone(&flag), Arc::clone(&work), Arc::clone(&signals));
                    loom::thread::spawn(move || {
                        work.fetch_add(1, Ordering::Release);
                        if flag.claim() {
                            signals.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            flag.set();
            let found = work.load(Ordering::Acquire);
            for thread in threads {
                thread.join().unwrap();
            }
            // Everybody has finished: what was not found must have been signalled.
            let signals = signals.load(Ordering::Relaxed);
            assert!(found == wakers || signals == 1, "{found} of {wakers} found, {signals} signals");
            assert!(signals <= 1);
        });
    }

    #[test]
    fn one_waker() {
        run(1);
    }

    #[test]
    fn two_wakers() {
        run(2);
    }
}
