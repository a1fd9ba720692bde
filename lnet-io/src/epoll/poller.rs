//! Waiting for descriptors or time.

use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::{Errno, Result};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::last_error;

/// Events that one call takes.
const EVENTS_MAX: usize = 256;
/// The number of the timer: no watch has it.
const TIMER: u64 = u64::MAX;

/// How a wait is told when to end. Milliseconds are too long for a shard's timers.
#[derive(Debug)]
enum Timing {
    /// By `epoll_pwait2`, which takes nanoseconds (Linux 5.11).
    Call,
    /// By a timer that is watched.
    Timer(OwnedFd),
}

/// Descriptors that are watched for something to read.
pub(crate) struct Poller {
    epoll: OwnedFd,
    timing: Timing,
    events: Vec<Event>,
}

// SAFETY: events hold numbers and no pointers.
unsafe impl Send for Poller {}

impl Poller {
    /// Watches nothing yet.
    pub(crate) fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, timing: Timing::Call, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Waits by a timer, as on kernels without `epoll_pwait2`.
    pub(crate) fn use_timer(&mut self) -> Result<()> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        self.watch(&timer, TIMER)?;
        self.timing = Timing::Timer(timer);
        Ok(())
    }

    /// Watches a descriptor for arrivals alone: an `AF_XDP` socket can be written to nearly always, which is
    /// no reason to wake a shard.
    pub(crate) fn watch(&self, fd: impl AsFd, id: u64) -> Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(id), EventFlags::IN | EventFlags::ET)
    }

    /// Watches it no longer.
    pub(crate) fn unwatch(&self, fd: impl AsFd) -> Result<()> {
        epoll::delete(&self.epoll, fd)
    }

    /// Waits until something has arrived, a signal comes or time is up, and tells what has arrived where.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>, mut tell: impl FnMut(u64)) -> Result<()> {
        if let Err(errno) = self.wait_once(timeout) {
            return if errno == Errno::INTR { Ok(()) } else { Err(errno) };
        }
        for event in &self.events {
            let id = event.data.u64();
            if id != TIMER {
                tell(id);
            }
        }
        Ok(())
    }

    fn wait_once(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.events.clear();
        let Some(timeout) = timeout.filter(|timeout| !timeout.is_zero()) else {
            let at_once = timeout.is_some().then_some(Timespec { tv_sec: 0, tv_nsec: 0 });
            return epoll::wait(&self.epoll, spare_capacity(&mut self.events), at_once.as_ref()).map(drop);
        };
        let value = Timespec::try_from(timeout).map_err(|_| Errno::INVAL)?;
        if matches!(self.timing, Timing::Call) {
            match self.wait_precisely(&value) {
                // Containers of old refuse calls that they do not know.
                Err(Errno::NOSYS | Errno::PERM) => self.use_timer()?,
                outcome => return outcome,
            }
        }
        if let Timing::Timer(timer) = &self.timing {
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let once = Itimerspec { it_interval, it_value: value };
            timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)?;
        }
        epoll::wait(&self.epoll, spare_capacity(&mut self.events), None).map(drop)
    }

    fn wait_precisely(&mut self, timeout: &Timespec) -> Result<()> {
        let (fd, timeout): (_, *const Timespec) = (self.epoll.as_raw_fd(), timeout);
        let no_mask: *const libc::sigset_t = core::ptr::null();
        let room = self.events.spare_capacity_mut();
        let (events, count) = (room.as_mut_ptr(), room.len());
        // SAFETY: there is room for as many events, and the timeout is a `struct __kernel_timespec`.
        let found = unsafe { libc::syscall(libc::SYS_epoll_pwait2, fd, events, count, timeout, no_mask, 0) };
        let Ok(found) = usize::try_from(found) else { return Err(last_error()) };
        // SAFETY: the kernel has written so many events.
        unsafe { self.events.set_len(found) };
        Ok(())
    }
}
