//! Reactor of a shard: what it waits by, exchanges datagrams by ([`udp`]), and has streams by ([`tcp`]). Each
//! of these is made to have an `io_uring`, or to go by readiness ([`Reactor`]).
//!
//! A shard's only blocking point is a ring, or an `epoll`, that watches descriptors.
//!
//! A shard that has nothing to do arms its [`Waiter`], looks once more into everything that others may have
//! filled meanwhile, and blocks. A thread that gives it work afterwards calls [`Waker::wake`], which costs a
//! system call only if the shard is armed.
//!
//! Invariants:
//! - Operations in flight never exceed half of the completion ring: one poll and at most one removal each.
//! - A wake after the arming is never lost (modelled with loom in `sleep`).

// Submitting to an io_uring hands the kernel descriptors and addresses: that is what unsafe code is for here.
#![allow(unsafe_code)]

mod buffers;
mod choice;
mod memory;
mod ring;
mod sleep;
mod socket;
pub mod tcp;
pub mod udp;
mod waiter;

pub use choice::{Chosen, Reactor, ReactorChoice, UnknownReactor};
pub use sleep::Waker;
pub use waiter::{Armed, Token, WaitError, Waiter};
pub use waiter::{WATCHES_MAX, WatchId};

/// Tests of this module over both reactors.
#[cfg(test)]
#[cfg(not(loom))]
mod testing {
    use core::cell::Cell;

    use super::Reactor;

    thread_local! {
        static REACTOR: Cell<Reactor> = const { Cell::new(Reactor::IoUring) };
    }

    /// The reactor that this thread tests.
    pub(super) fn reactor() -> Reactor {
        REACTOR.get()
    }

    /// Has this thread test a reactor.
    pub(super) fn test_with(reactor: Reactor) {
        REACTOR.set(reactor);
    }

    /// Makes two tests of each function: one by rings, one by readiness.
    macro_rules! over_both {
        ($($name:ident),* $(,)?) => {
            mod by_rings {
                $(#[test]
                fn $name() {
                    $crate::reactor::testing::test_with($crate::reactor::Reactor::IoUring);
                    super::$name();
                })*
            }
            mod by_readiness {
                $(#[test]
                fn $name() {
                    $crate::reactor::testing::test_with($crate::reactor::Reactor::Epoll);
                    super::$name();
                })*
            }
        };
    }
    pub(super) use over_both;
}
