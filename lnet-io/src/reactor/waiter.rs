//! Waiting for descriptors, a waker, or time.

use core::fmt;
use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread::ThreadId;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::Reactor;
use super::sleep::Waker;
use crate::epoll::Poller;

/// The most descriptors that a waiter can watch.
pub const WATCHES_MAX: u32 = 4096;

/// What the caller knows a descriptor by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// Names a watched descriptor, to watch it no longer.
#[derive(PartialEq, Eq, Debug)]
pub struct WatchId(u64);

/// Why waiting is impossible.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WaitError {
    /// The process may not use io_uring.
    #[error(
        "io_uring is not permitted: {}", remedy(.sysctl.as_deref())
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
    /// The rings would have to be locked in memory, and that is limited.
    #[error(
        "io_uring_setup: no memory can be locked (RLIMIT_MEMLOCK is {}): raise the limit, grant CAP_IPC_LOCK, \
         or free memory",
        .limit_bytes.map_or_else(|| "unlimited".to_owned(), |limit| format!("{limit} bytes"))
    )]
    MemoryLock {
        /// The soft limit; `None` is unlimited.
        limit_bytes: Option<u64>,
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

pub(super) fn system(operation: &'static str, error: &std::io::Error) -> WaitError {
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

struct Watch {
    /// The user data of its polls; never used again.
    id: u64,
    fd: OwnedFd,
    /// `None` for the waker's eventfd.
    token: Option<Token>,
    /// Whether a poll is in flight.
    is_polled: bool,
    is_ready: bool,
    failed: Option<Errno>,
}

/// The user data of cancellations: no watch has it.
const CANCELLATION: u64 = u64::MAX;

/// Blocks a thread until a watched descriptor is readable, a [`Waker`] calls, or time is up.
///
/// A descriptor is armed once and reports until it is unwatched, by a multishot poll or by edges of `epoll`.
/// It reports when something arrives, not for as long as something is there, so the caller empties what it
/// was told of, or looks again before it sleeps. Goes from thread to thread, at the cost of a new ring each
/// time.
pub struct Waiter {
    inner: WaitReactor,
    /// Watches in the order of their ids.
    watches: Vec<Watch>,
    watches_max: u32,
    next_id: u64,
    waker: Waker,
}

/// How it waits.
#[expect(clippy::large_enum_variant, reason = "a ring is reached without a detour")]
enum WaitReactor {
    Ring(Ring),
    Readiness(Poller),
}

struct Ring {
    ring: IoUring,
    /// The thread that the ring was made for, for good, if it has waited.
    driver: Option<ThreadId>,
    flavour: Flavour,
    watches_max: u32,
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter")
            .field("watches", &self.watches.len())
            .field("watches_max", &self.watches_max)
            .finish_non_exhaustive()
    }
}

impl Waiter {
    /// A waiter with room for `watches_max` descriptors, 1 to [`WATCHES_MAX`], and its waker.
    ///
    /// # Errors
    /// [`WaitError`] when io_uring is asked for, and is not permitted or lacks what is needed.
    pub fn new(watches_max: u32, reactor: Reactor) -> Result<Self, WaitError> {
        if watches_max == 0 || watches_max > WATCHES_MAX {
            return Err(WaitError::TooManyWatches { watches_max: WATCHES_MAX });
        }
        let inner = match reactor {
            Reactor::Epoll => {
                let made = Poller::new();
                WaitReactor::Readiness(
                    made.map_err(|source| WaitError::System { operation: "epoll_create1", source })?,
                )
            }
            Reactor::IoUring => match Ring::new(watches_max, Flavour::Deferred) {
                Err(WaitError::System { source: Errno::INVAL, .. }) => {
                    WaitReactor::Ring(Ring::new(watches_max, Flavour::Plain)?)
                }
                made => WaitReactor::Ring(made?),
            },
        };
        Self::by(watches_max, inner)
    }

    fn by(watches_max: u32, inner: WaitReactor) -> Result<Self, WaitError> {
        let waker = Waker::new().map_err(|source| WaitError::System { operation: "eventfd", source })?;
        let watches = Vec::with_capacity(watches_max as usize + 1);
        let mut waiter = Self { inner, watches, watches_max, next_id: 0, waker };
        let eventfd = waiter.waker.clone();
        waiter.insert(eventfd.fd(), None)?;
        Ok(waiter)
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
        if self.watches.len() > self.watches_max as usize {
            return Err(WaitError::TooManyWatches { watches_max: self.watches_max });
        }
        self.insert(fd.as_fd(), Some(token))
    }

    fn insert(&mut self, fd: impl AsFd, token: Option<Token>) -> Result<WatchId, WaitError> {
        let fd = fd.as_fd().try_clone_to_owned().map_err(|error| system("dup", &error))?;
        let id = self.next_id;
        self.next_id += 1;
        let failed = match &self.inner {
            WaitReactor::Ring(_) => None,
            WaitReactor::Readiness(poller) => poller.watch(&fd, id).err(),
        };
        self.watches.push(Watch { id, fd, token, is_polled: false, is_ready: false, failed });
        Ok(WatchId(id))
    }

    /// Watches a descriptor no longer; returns when the kernel has let go of it.
    ///
    /// # Errors
    /// [`WaitError`] when it was not watched, or this is not the waiter's thread.
    pub fn unwatch(&mut self, &WatchId(id): &WatchId) -> Result<(), WaitError> {
        let index = index_of(&self.watches, id).ok_or(WaitError::NotWatched)?;
        match &mut self.inner {
            WaitReactor::Ring(ring) => ring.end_poll(&mut self.watches, index)?,
            WaitReactor::Readiness(poller) if self.watches[index].failed.is_none() => {
                let unwatched = poller.unwatch(&self.watches[index].fd);
                unwatched.map_err(|source| WaitError::System { operation: "EPOLL_CTL_DEL", source })?;
            }
            WaitReactor::Readiness(_) => {}
        }
        self.watches.remove(index);
        Ok(())
    }

    /// Says that this thread is about to sleep: from here on [`Waker::wake`] takes a system call. Look for
    /// work once more, then wait by the answer (`Armed::wait`) or drop it.
    #[inline]
    pub fn arm(&mut self) -> Armed<'_> {
        self.waker.arm();
        Armed { waiter: self }
    }

    fn wait(&mut self, timeout: Option<Duration>, tell: &mut impl FnMut(Token)) -> Result<u32, WaitError> {
        let Self { inner, watches, .. } = self;
        match inner {
            WaitReactor::Ring(ring) => ring.wait(watches, timeout)?,
            WaitReactor::Readiness(poller) => {
                let has_failed = watches.iter().any(|watch| watch.failed.is_some());
                let timeout = if has_failed { Some(Duration::ZERO) } else { timeout };
                let waited = poller.wait(timeout, |id| {
                    if let Some(index) = index_of(watches, id) {
                        watches[index].is_ready = true;
                    }
                });
                waited.map_err(|source| WaitError::System { operation: "epoll_pwait", source })?;
            }
        }
        self.deliver(tell)
    }

    /// Passes on what was noted.
    fn deliver(&mut self, tell: &mut impl FnMut(Token)) -> Result<u32, WaitError> {
        let mut told = 0;
        for watch in &mut self.watches {
            if std::mem::take(&mut watch.is_ready)
                && let Some(token) = watch.token
            {
                told += 1;
                tell(token);
            }
        }
        for watch in &self.watches {
            if let (Some(token), Some(source)) = (watch.token, watch.failed) {
                return Err(WaitError::Watch { token, source });
            }
        }
        Ok(told)
    }
}

impl Ring {
    fn new(watches_max: u32, flavour: Flavour) -> Result<Self, WaitError> {
        let ring = Self::make(watches_max, flavour)?;
        Ok(Self { ring, driver: None, flavour, watches_max })
    }

    fn make(watches_max: u32, flavour: Flavour) -> Result<IoUring, WaitError> {
        // One more for the waker; each may have a poll and a cancellation in flight.
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

    /// Ends the poll of a watch.
    fn end_poll(&mut self, watches: &mut [Watch], index: usize) -> Result<(), WaitError> {
        self.start(watches)?;
        if watches[index].is_polled {
            let id = watches[index].id;
            // Not `PollRemove`, which leaves a multishot poll in flight that is about to report.
            push(&mut self.ring, &opcode::AsyncCancel::new(id).build().user_data(CANCELLATION))?;
            // The poll's own last completion ends it.
            while watches[index].is_polled {
                match self.ring.submit_and_wait(1) {
                    Ok(_) => {}
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return Err(system("io_uring_enter", &error)),
                }
                self.reap(watches);
            }
        }
        Ok(())
    }

    /// Waits until there is something to note, and notes it.
    fn wait(&mut self, watches: &mut [Watch], timeout: Option<Duration>) -> Result<(), WaitError> {
        self.start(watches)?;
        self.poll_idle(watches)?;
        self.reap(watches);
        if watches.iter().any(|watch| watch.is_ready || watch.failed.is_some()) {
            // What a cancellation has found by the way.
            return Ok(());
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
        self.reap(watches);
        Ok(())
    }

    /// Sees to it that the ring is this thread's. What is in flight on another's ends with that, and begins
    /// anew.
    fn start(&mut self, watches: &mut [Watch]) -> Result<(), WaitError> {
        let thread = std::thread::current().id();
        if self.flavour == Flavour::Plain || self.driver == Some(thread) {
            return Ok(());
        }
        if self.driver.is_some() {
            self.ring = Self::make(self.watches_max, self.flavour)?;
            self.driver = None;
            for watch in watches {
                (watch.is_polled, watch.failed) = (false, None);
            }
        }
        let enabled = self.ring.submitter().register_enable_rings();
        enabled.map_err(|error| system("IORING_REGISTER_ENABLE_RINGS", &error))?;
        self.driver = Some(thread);
        Ok(())
    }

    /// Polls every watched descriptor that has no poll in flight; they go to the kernel with the next enter.
    fn poll_idle(&mut self, watches: &mut [Watch]) -> Result<(), WaitError> {
        for watch in watches.iter_mut().filter(|watch| !watch.is_polled && watch.failed.is_none()) {
            let entry = opcode::PollAdd::new(Fd(watch.fd.as_raw_fd()), u32::from(PollFlags::IN.bits()))
                .multi(true)
                .build()
                .user_data(watch.id);
            push(&mut self.ring, &entry)?;
            watch.is_polled = true;
        }
        Ok(())
    }

    /// Notes what the kernel has said.
    fn reap(&mut self, watches: &mut [Watch]) {
        for completion in self.ring.completion() {
            let Some(index) = index_of(watches, completion.user_data()) else { continue };
            let watch = &mut watches[index];
            if completion.result() >= 0 {
                watch.is_ready = true;
            } else if !is_cancelled(completion.result()) {
                watch.failed = Some(Errno::from_raw_os_error(-completion.result()));
            }
            // Without this flag the kernel has ended the poll; the next wait starts it anew.
            watch.is_polled = cqueue::more(completion.flags());
        }
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

fn index_of(watches: &[Watch], id: u64) -> Option<usize> {
    watches.binary_search_by_key(&id, |watch| watch.id).ok()
}

fn push(ring: &mut IoUring, entry: &squeue::Entry) -> Result<(), WaitError> {
    // SAFETY: polls and cancellations name no memory; a wrong descriptor is an error, and the ones that are
    // polled stay open until their poll has ended.
    let pushed = unsafe { ring.submission().push(entry) };
    // The ring has room for every operation that a watch can have at once.
    pushed.map_err(|_| WaitError::System { operation: "submission", source: Errno::NOBUFS })
}

/// Time was up, a signal arrived, or completions must be taken first.
pub(super) fn is_passing(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN))
}

/// Says what permits io_uring, by the value of `kernel.io_uring_disabled`: where that is 0, a seccomp filter
/// refuses it.
fn remedy(sysctl: Option<&str>) -> String {
    match sysctl {
        None | Some("0") => "a seccomp filter refuses it; allow io_uring_setup, io_uring_enter and \
                             io_uring_register in the container's seccomp profile"
            .to_owned(),
        Some(value) => format!(
            "sysctl kernel.io_uring_disabled is {value}; set it to 0, or to 1 with this process in the group \
             kernel.io_uring_group"
        ),
    }
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
        // Linux before 5.12 counts the rings among a user's locked memory.
        Some(Errno::NOMEM) => WaitError::MemoryLock {
            limit_bytes: rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
        },
        Some(Errno::NOSYS) => WaitError::Unsupported { feature: "system calls" },
        _ => system("io_uring_setup", error),
    }
}

fn check_features(ring: &IoUring) -> Result<(), WaitError> {
    if !ring.params().is_feature_ext_arg() {
        return Err(WaitError::Unsupported { feature: "timeout of a wait (IORING_FEAT_EXT_ARG)" });
    }
    // Nothing tells of multishot polls but what came with them in Linux 5.13; all else that is used came
    // before.
    if !ring.params().is_feature_resource_tagging() {
        return Err(WaitError::Unsupported { feature: "multishot polls" });
    }
    Ok(())
}

#[cfg(test)]
#[path = "waiter_tests.rs"]
mod tests;
