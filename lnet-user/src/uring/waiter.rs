//! Waiting for descriptors, a waker, or time.

use core::fmt;
use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread::ThreadId;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::sleep::Waker;

/// The most descriptors that a waiter can watch.
pub(crate) const WATCHES_MAX: u32 = 4096;

/// What the caller knows a descriptor by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// Names a watched descriptor, to watch it no longer.
#[derive(PartialEq, Eq, Debug)]
pub struct WatchId {
    slot: u32,
    generation: u32,
}

/// Why waiting is impossible.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WaitError {
    /// The process may not use io_uring.
    #[error(
        "io_uring is not permitted (sysctl kernel.io_uring_disabled is {}); set it to 0, or to 1 with this \
         process in the group kernel.io_uring_group, or allow it in the container's seccomp profile",
        .sysctl.as_deref().unwrap_or("unknown")
    )]
    NotPermitted {
        /// What the sysctl says, where it can be read.
        sysctl: Option<String>,
    },
    /// The kernel lacks something that is needed.
    #[error("the kernel's io_uring has no {feature}; Linux 5.13 or newer is needed")]
    Unsupported {
        /// What is missing.
        feature: &'static str,
    },
    /// More descriptors than the waiter was made for, or than any can have.
    #[error("no room to watch one more descriptor; expected at most {watches_max}")]
    TooManyWatches {
        /// How many the waiter has room for.
        watches_max: u32,
    },
    /// The descriptor is not watched any more.
    #[error("that descriptor is not watched")]
    NotWatched,
    /// The descriptor cannot be polled.
    #[error("the descriptor with token {} cannot be polled: {source}", .token.0)]
    Watch {
        /// Which one.
        token: Token,
        /// The kernel's answer.
        source: Errno,
    },
    /// Something else that the kernel refused.
    #[error("{operation}: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// The kernel's answer.
        source: Errno,
    },
}

fn system(operation: &'static str, error: &std::io::Error) -> WaitError {
    let source = Errno::from_io_error(error).unwrap_or(Errno::IO);
    WaitError::System { operation, source }
}

/// How completions are delivered; kernels before 6.1 know less.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flavour {
    /// Only when this thread asks, so that traffic does not interrupt a busy shard.
    Deferred,
    /// Whenever the kernel likes.
    Plain,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No poll is in flight.
    Idle,
    /// A poll is in flight.
    Polled,
    /// The poll is being removed.
    Ending,
}

/// A slot of the slab; its number and generation are the user data of its operations.
struct Watch {
    fd: Option<OwnedFd>,
    token: Option<Token>,
    state: State,
    generation: u32,
    ready: bool,
    failed: Option<Errno>,
}

/// Set in the user data of a removal; generations stay below.
const REMOVAL: u64 = 1 << 63;
const GENERATION_MASK: u32 = u32::MAX >> 1;

/// The slot that the waker's eventfd has.
const WAKER_SLOT: u32 = 0;

/// Blocks a thread until a watched descriptor is readable, a [`Waker`] calls, or time is up.
///
/// Polls are multishot: a descriptor is armed once and reports until it is unwatched. It reports when
/// something arrives, not for as long as something is there, so the caller empties what it was told of, or
/// looks again before it sleeps. May be moved to another thread until the first wait.
pub struct Waiter {
    ring: IoUring,
    watches: Vec<Watch>,
    watches_max: u32,
    /// Watches that are idle and have a descriptor.
    idle: u32,
    waker: Waker,
    /// The thread that the ring was made for, for good, if it has waited.
    driver: Option<ThreadId>,
    flavour: Flavour,
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter")
            .field("watches", &self.watches.iter().filter(|watch| watch.fd.is_some()).count())
            .field("watches_max", &self.watches_max)
            .finish_non_exhaustive()
    }
}

impl Waiter {
    /// A waiter with room for `watches_max` descriptors, 1 to [`WATCHES_MAX`], and its waker.
    ///
    /// # Errors
    /// [`WaitError`] when io_uring is not permitted or lacks what is needed.
    pub fn new(watches_max: u32) -> Result<Self, WaitError> {
        match Self::with_flavour(watches_max, Flavour::Deferred) {
            Err(WaitError::System { source: Errno::INVAL, .. }) => {
                Self::with_flavour(watches_max, Flavour::Plain)
            }
            made => made,
        }
    }

    fn with_flavour(watches_max: u32, flavour: Flavour) -> Result<Self, WaitError> {
        if watches_max == 0 || watches_max > WATCHES_MAX {
            return Err(WaitError::TooManyWatches { watches_max: WATCHES_MAX });
        }
        let ring = Self::ring(watches_max, flavour)?;
        let waker = Waker::new().map_err(|source| WaitError::System { operation: "eventfd", source })?;
        let watches = Vec::with_capacity(watches_max as usize + 1);
        let mut waiter = Self { ring, watches, watches_max, idle: 0, waker, driver: None, flavour };
        let fd = waiter.waker.fd().try_clone_to_owned().map_err(|error| system("dup", &error))?;
        waiter.insert(fd, None);
        Ok(waiter)
    }

    fn ring(watches_max: u32, flavour: Flavour) -> Result<IoUring, WaitError> {
        // One more for the waker; each may have a poll and a removal in flight.
        let operations = (watches_max + 1) * 2;
        let mut builder = IoUring::builder();
        builder.dontfork().setup_cqsize((operations * 2).next_power_of_two());
        if flavour == Flavour::Deferred {
            // Disabled until the first wait, which decides whose ring it is.
            builder.setup_single_issuer().setup_defer_taskrun().setup_r_disabled();
        }
        let ring = builder.build(operations.next_power_of_two()).map_err(|error| refused(&error))?;
        check_features(&ring)?;
        Ok(ring)
    }

    /// Wakes this waiter.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Watches a descriptor for something to read, an error or its other end's going. `token` is told when
    /// that happens. The waiter keeps a duplicate, so the file stays open until it is unwatched.
    ///
    /// # Errors
    /// [`WaitError::TooManyWatches`] when there is no room.
    pub fn watch(&mut self, fd: impl AsFd, token: Token) -> Result<WatchId, WaitError> {
        let watched = self.watches.iter().filter(|watch| watch.fd.is_some()).count();
        if watched > self.watches_max as usize {
            return Err(WaitError::TooManyWatches { watches_max: self.watches_max });
        }
        let fd = duplicate(fd.as_fd())?;
        Ok(self.insert(fd, Some(token)))
    }

    fn insert(&mut self, fd: OwnedFd, token: Option<Token>) -> WatchId {
        self.idle += 1;
        let free = self.watches.iter().position(|watch| watch.fd.is_none() && watch.state == State::Idle);
        let slot = free.unwrap_or_else(|| {
            self.watches.push(Watch {
                fd: None,
                token: None,
                state: State::Idle,
                generation: 0,
                ready: false,
                failed: None,
            });
            self.watches.len() - 1
        });
        let watch = &mut self.watches[slot];
        watch.generation = (watch.generation + 1) & GENERATION_MASK;
        (watch.fd, watch.token, watch.ready, watch.failed) = (Some(fd), token, false, None);
        WatchId { slot: slot as u32, generation: watch.generation }
    }

    /// Watches a descriptor no longer; returns when the kernel has let go of it.
    ///
    /// # Errors
    /// [`WaitError`] when it was not watched, or this is not the waiter's thread.
    pub fn unwatch(&mut self, id: &WatchId) -> Result<(), WaitError> {
        let slot = id.slot as usize;
        let found = self.watches.get(slot).is_some_and(|watch| {
            watch.generation == id.generation && watch.fd.is_some() && watch.token.is_some()
        });
        if !found {
            return Err(WaitError::NotWatched);
        }
        self.start()?;
        if self.watches[slot].state == State::Polled {
            let user_data = user_data(id.slot, id.generation);
            // Not `PollRemove`, which leaves a multishot poll in flight that is about to report.
            let entry = opcode::AsyncCancel::new(user_data).build().user_data(user_data | REMOVAL);
            self.push(&entry)?;
            self.watches[slot].state = State::Ending;
            while self.watches[slot].state == State::Ending {
                match self.ring.submit_and_wait(1) {
                    Ok(_) => {}
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return Err(system("io_uring_enter", &error)),
                }
                self.reap();
            }
        }
        let watch = &mut self.watches[slot];
        (watch.fd, watch.token, watch.ready, watch.failed) = (None, None, false, None);
        self.idle -= 1;
        Ok(())
    }

    /// Says that this thread is about to sleep: from here on [`Waker::wake`] takes a system call. Look for
    /// work once more, then [`Armed::wait`] or drop the answer.
    #[inline]
    pub fn arm(&mut self) -> Armed<'_> {
        self.waker.arm();
        Armed { waiter: self }
    }

    fn wait(&mut self, timeout: Option<Duration>, tell: &mut impl FnMut(Token)) -> Result<u32, WaitError> {
        self.start()?;
        self.poll_idle()?;
        self.reap();
        if self.watches.iter().any(|watch| watch.ready || watch.failed.is_some()) {
            // What a removal has found by the way.
            return self.deliver(tell);
        }
        let timespec = timeout.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let Some(timespec) = &timespec {
            args = args.timespec(timespec);
        }
        match self.ring.submitter().submit_with_args(1, &args) {
            Ok(_) => {}
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(system("io_uring_enter", &error)),
        }
        self.reap();
        self.deliver(tell)
    }

    /// Sees to it that the ring is this thread's. What is in flight on another's ends with that, and begins anew.
    fn start(&mut self) -> Result<(), WaitError> {
        let thread = std::thread::current().id();
        if self.flavour == Flavour::Plain || self.driver == Some(thread) {
            return Ok(());
        }
        if self.driver.is_some() {
            self.ring = Self::ring(self.watches_max, self.flavour)?;
            self.idle = 0;
            for watch in &mut self.watches {
                if watch.state == State::Ending {
                    watch.fd = None;
                }
                watch.state = State::Idle;
                watch.failed = None;
                self.idle += u32::from(watch.fd.is_some());
            }
        }
        let enabled = self.ring.submitter().register_enable_rings();
        enabled.map_err(|error| system("IORING_REGISTER_ENABLE_RINGS", &error))?;
        self.driver = Some(thread);
        Ok(())
    }

    /// Polls every watched descriptor that has no poll in flight; they go to the kernel with the next enter.
    fn poll_idle(&mut self) -> Result<(), WaitError> {
        if self.idle == 0 {
            return Ok(());
        }
        for slot in 0..self.watches.len() {
            let watch = &mut self.watches[slot];
            let (State::Idle, Some(fd), None) = (watch.state, &watch.fd, watch.failed) else { continue };
            let entry = opcode::PollAdd::new(Fd(fd.as_raw_fd()), u32::from(PollFlags::IN.bits()))
                .multi(true)
                .build()
                .user_data(user_data(slot as u32, watch.generation));
            self.push(&entry)?;
            self.watches[slot].state = State::Polled;
            self.idle -= 1;
        }
        Ok(())
    }

    fn push(&mut self, entry: &squeue::Entry) -> Result<(), WaitError> {
        // SAFETY: polls and removals of polls name no memory; a wrong descriptor is an error, and the ones
        // that are polled stay open until their poll has ended.
        let pushed = unsafe { self.ring.submission().push(entry) };
        // The ring has room for every operation that a slot can have at once.
        pushed.map_err(|_| WaitError::System { operation: "submission", source: Errno::NOBUFS })
    }

    /// Notes what the kernel has said.
    fn reap(&mut self) {
        let Self { ring, watches, idle, .. } = self;
        for completion in ring.completion() {
            let user_data = completion.user_data();
            if user_data & REMOVAL != 0 {
                // The poll's own last completion ends the watch.
                continue;
            }
            let Some(watch) = watches.get_mut(user_data as u32 as usize) else { continue };
            if watch.generation != (user_data >> 32) as u32 {
                continue;
            }
            if completion.result() >= 0 {
                watch.ready = true;
            } else if watch.state != State::Ending && !is_cancelled(completion.result()) {
                watch.failed = Some(Errno::from_raw_os_error(-completion.result()));
            }
            // Without this flag the kernel has ended the poll; the next wait starts it anew.
            if !cqueue::more(completion.flags()) && watch.state != State::Idle {
                watch.state = State::Idle;
                *idle += 1;
            }
        }
    }

    /// Passes on what was noted.
    fn deliver(&mut self, tell: &mut impl FnMut(Token)) -> Result<u32, WaitError> {
        let mut told = 0;
        for watch in &mut self.watches {
            let (Some(token), true) = (watch.token, watch.ready) else { continue };
            watch.ready = false;
            told += 1;
            tell(token);
        }
        self.watches[WAKER_SLOT as usize].ready = false;
        for watch in &self.watches {
            if let (Some(token), Some(source)) = (watch.token, watch.failed) {
                return Err(WaitError::Watch { token, source });
            }
        }
        Ok(told)
    }
}

/// A waiter whose wakers take the system call. Dropping it disarms.
#[derive(Debug)]
#[must_use = "nothing has waited yet"]
pub struct Armed<'a> {
    waiter: &'a mut Waiter,
}

impl Armed<'_> {
    /// Blocks until a watched descriptor is readable, a [`Waker`] calls, a signal arrives or `timeout` (for
    /// ever without one) is over. Calls `tell` for each readable descriptor and returns how many those were:
    /// none after a wake, a signal or the timeout.
    ///
    /// # Errors
    /// [`WaitError::Watch`] names a descriptor that cannot be polled, after the others were told; it stays
    /// so until it is unwatched.
    pub fn wait(self, timeout: Option<Duration>, mut tell: impl FnMut(Token)) -> Result<u32, WaitError> {
        self.waiter.wait(timeout, &mut tell)
    }
}

impl Drop for Armed<'_> {
    #[inline]
    fn drop(&mut self) {
        self.waiter.waker.disarm();
    }
}

fn user_data(slot: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(slot)
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, WaitError> {
    fd.try_clone_to_owned().map_err(|error| system("dup", &error))
}

/// Time was up, a signal arrived, or completions must be taken first.
pub(super) fn is_passing(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN))
}

/// The kernel ends a multishot poll this way when it has no room for its completion.
fn is_cancelled(result: i32) -> bool {
    result == -Errno::CANCELED.raw_os_error()
}

pub(super) fn refused(error: &std::io::Error) -> WaitError {
    match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
            WaitError::NotPermitted { sysctl: sysctl.map(|text| text.trim().to_owned()).ok() }
        }
        Some(Errno::NOSYS) => WaitError::Unsupported { feature: "system calls" },
        _ => system("io_uring_setup", error),
    }
}

fn check_features(ring: &IoUring) -> Result<(), WaitError> {
    if !ring.params().is_feature_ext_arg() {
        return Err(WaitError::Unsupported { feature: "timeout of a wait (IORING_FEAT_EXT_ARG)" });
    }
    // Nothing tells of multishot polls but what came with them in Linux 5.13.
    if !ring.params().is_feature_resource_tagging() {
        return Err(WaitError::Unsupported { feature: "multishot polls" });
    }
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|error| system("IORING_REGISTER_PROBE", &error))?;
    for (code, feature) in
        [(opcode::PollAdd::CODE, "IORING_OP_POLL_ADD"), (opcode::AsyncCancel::CODE, "IORING_OP_ASYNC_CANCEL")]
    {
        if !probe.is_supported(code) {
            return Err(WaitError::Unsupported { feature });
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "waiter_tests.rs"]
mod tests;
