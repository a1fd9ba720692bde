//! Readiness instead of rings: what [`reactor`](crate::reactor) asks of the kernel, by `epoll` and by system
//! calls that never block. It serves where `io_uring` is refused, as in containers, or lacks an operation.
//!
//! [`Poller`] is what a shard waits by. [`Datagrams`] send and receive many datagrams in one call.
//! [`Operations`] carry out what streams ask a ring for, and complete as a ring does, so that the
//! driver of streams does not know which of them it has.
//!
//! Invariants:
//! - An arrival is never lost. Descriptors are watched for edges, and code that stops before the kernel has
//!   said that nothing is left remembers that there may be more.
//! - Memory of datagrams is used while a call runs, and never between calls. Operations of streams keep the
//!   addresses that they were given until they complete, as a ring does.

// System calls that take lists of addresses: that is what unsafe code is for here.
#![allow(unsafe_code)]

mod datagrams;
mod poller;
mod streams;

pub(crate) use datagrams::{Datagrams, HeadRoom, Outbox};
pub(crate) use poller::Poller;
pub(crate) use streams::{Completion, Operations, StreamRequest};

use rustix::io::Errno;

/// A buffer to receive into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spare {
    /// Number of the buffer among those of its owner.
    pub(crate) index: u16,
    /// Where it begins. No reference to its bytes exists.
    pub(crate) address: *mut u8,
    /// Bytes of it.
    pub(crate) length: usize,
}

/// Buffers to receive into, in the order in which they are filled.
pub(crate) trait Supply {
    /// The buffer that is `ahead` behind the next one, if there are so many.
    fn peek(&self, ahead: u16) -> Option<Spare>;

    /// Takes the next `count` out, which were filled.
    fn advance(&mut self, count: u16);
}

/// The error of the system call that has just failed.
pub(crate) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
