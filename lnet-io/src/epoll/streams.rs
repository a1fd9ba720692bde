//! Operations on sockets of streams, begun at once and finished when the socket is ready.
//!
//! An operation is asked for, tried, and tried again after each edge that the kernel tells of. A socket is
//! watched from the first time on that the kernel has said "not now", for both directions and for good.

use core::mem::zeroed;
use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, Result};
use rustix::net::SocketFlags;

use super::{Supply, last_error};

/// Events that one call takes.
const EVENTS_MAX: usize = 128;
/// Buffers or connections that one socket is given in a turn.
const TURN_MAX: usize = 16;

// Flags of completions (include/uapi/linux/io_uring.h).
const IORING_CQE_F_BUFFER: u32 = 1 << 0;
const IORING_CQE_F_MORE: u32 = 1 << 1;
const IORING_CQE_BUFFER_SHIFT: u32 = 16;

/// What a ring's completion says, in the same words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Completion {
    /// What the operation was named by.
    pub(crate) user_data: u64,
    /// Result of the operation, or an errno below zero.
    pub(crate) result: i32,
    /// The kernel's flags (`IORING_CQE_F_`).
    pub(crate) flags: u32,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamRequest<'a> {
    /// Receives into buffers of the supply until it is cancelled or the stream ends.
    ReceiveMany,
    /// Receives into one such buffer at most so many bytes; 0: as many as it holds.
    ReceiveOnce(u32),
    /// Waits until something can be received.
    AwaitBytes,
    /// Sends of these pieces as much as the socket has room for.
    Send(&'a [libc::iovec]),
    /// Connects.
    Connect(SocketAddr),
    /// Waits until a connection was made, or was not.
    AwaitConnection,
    /// Accepts connections until it is cancelled.
    Accept,
}

/// An operation that is under way.
#[derive(Clone, Copy, Debug)]
enum Attempt {
    ReceiveMany,
    ReceiveOnce(u32),
    AwaitBytes,
    Send,
    Connect(SocketAddr),
    AwaitConnection,
    Accept,
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    user_data: u64,
    attempt: Attempt,
}

/// One direction of a socket.
#[derive(Default)]
struct Half {
    under_way: Option<UnderWay>,
    /// The memory of that, if it names some.
    pieces: Vec<libc::iovec>,
    /// Whether the kernel has not said "not now" since the last edge.
    is_ready: bool,
}

impl Half {
    fn is_runnable(&self) -> bool {
        self.is_ready && self.under_way.is_some()
    }
}

#[derive(Default)]
struct Socket {
    incoming: Half,
    outgoing: Half,
    is_watched: bool,
    /// The peer has gone, or has marked bytes as urgent, where a read ends short of what there is: no edge
    /// tells of what is left to read.
    is_read_out: bool,
    is_queued: bool,
}

/// What has become of an operation that was tried.
enum Tried {
    /// More is to be done, after others had their turn.
    GoesOn,
    NotNow,
    Ended(i32),
    /// The last completion was written already.
    Told,
}

/// Operations on many sockets.
pub(crate) struct Operations {
    epoll: OwnedFd,
    /// By the number of the descriptor.
    sockets: Vec<Option<Box<Socket>>>,
    /// Sockets that something is to be tried on.
    queue: VecDeque<RawFd>,
    events: Vec<Event>,
    completions: VecDeque<Completion>,
}

// SAFETY: the pointers in pieces lead into memory whose owner has asked for the operation, and mean the same
// on every thread; events hold numbers.
unsafe impl Send for Operations {}

impl Operations {
    /// No operations yet.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            sockets: Vec::new(),
            queue: VecDeque::new(),
            events: Vec::with_capacity(EVENTS_MAX),
            completions: VecDeque::new(),
        })
    }

    /// Becomes readable when a socket may be ready.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Whether [`Operations::enter`] would try something, or completions wait.
    pub(crate) fn has_work(&mut self) -> Result<bool> {
        self.collect(Duration::ZERO)?;
        Ok(!self.queue.is_empty() || !self.completions.is_empty())
    }

    /// Whether completions wait.
    pub(crate) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Takes the completions.
    pub(crate) fn completions(&mut self, out: &mut Vec<Completion>) {
        out.extend(self.completions.drain(..));
    }

    /// Asks for an operation. A socket has one that receives or accepts, and one that sends or connects, at a
    /// time.
    ///
    /// # Safety
    /// The memory that the request names, and the socket, stay as they are until the operation has completed.
    pub(crate) unsafe fn start(&mut self, fd: RawFd, user_data: u64, request: StreamRequest<'_>) {
        let index = fd as usize;
        if self.sockets.len() <= index {
            self.sockets.resize_with(index + 1, || None);
        }
        let fresh = || {
            let half = || Half { is_ready: true, ..Half::default() };
            Box::new(Socket { incoming: half(), outgoing: half(), ..Socket::default() })
        };
        let socket = self.sockets[index].get_or_insert_with(fresh);
        let none: &[libc::iovec] = &[];
        let (receives, attempt, pieces) = match request {
            StreamRequest::ReceiveMany => (true, Attempt::ReceiveMany, none),
            StreamRequest::ReceiveOnce(bytes) => (true, Attempt::ReceiveOnce(bytes), none),
            StreamRequest::AwaitBytes => (true, Attempt::AwaitBytes, none),
            StreamRequest::Accept => (true, Attempt::Accept, none),
            StreamRequest::Send(pieces) => (false, Attempt::Send, pieces),
            StreamRequest::Connect(to) => (false, Attempt::Connect(to), none),
            StreamRequest::AwaitConnection => (false, Attempt::AwaitConnection, none),
        };
        if let Attempt::Connect(_) | Attempt::Accept = attempt {
            // SAFETY: the caller has the socket open.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            let set = rustix::io::ioctl_fionbio(fd, true);
            debug_assert!(set.is_ok(), "FIONBIO: {set:?}");
        }
        let half = if receives { &mut socket.incoming } else { &mut socket.outgoing };
        assert!(half.under_way.is_none(), "two operations at once on descriptor {fd}");
        half.under_way = Some(UnderWay { user_data, attempt });
        half.pieces.clear();
        half.pieces.extend_from_slice(pieces);
        // A socket that does not connect yet has nothing to tell of; asking it is what begins that.
        half.is_ready |= matches!(attempt, Attempt::Connect(_));
        self.enqueue(fd);
    }

    /// Ends an operation; one that has completed meanwhile completes the cancellation with `ENOENT`.
    pub(crate) fn cancel(&mut self, fd: RawFd, user_data: u64, cancellation: u64) {
        if let Some(Some(socket)) = self.sockets.get_mut(fd as usize) {
            for half in [&mut socket.incoming, &mut socket.outgoing] {
                if half.under_way.take_if(|under_way| under_way.user_data == user_data).is_some() {
                    let result = -Errno::CANCELED.raw_os_error();
                    self.completions.push_back(Completion { user_data, result, flags: 0 });
                    return;
                }
            }
        }
        let result = -Errno::NOENT.raw_os_error();
        self.completions.push_back(Completion { user_data: cancellation, result, flags: 0 });
    }

    /// Forgets a socket that is to be closed or is another's from now on, and has no operation.
    pub(crate) fn forget(&mut self, fd: BorrowedFd<'_>) {
        let Some(slot) = self.sockets.get_mut(fd.as_raw_fd() as usize) else { return };
        if slot.take().is_some_and(|socket| socket.is_watched) {
            let deleted = epoll::delete(&self.epoll, fd);
            debug_assert!(deleted.is_ok(), "EPOLL_CTL_DEL: {deleted:?}");
        }
    }

    fn enqueue(&mut self, fd: RawFd) {
        if let Some(Some(socket)) = self.sockets.get_mut(fd as usize)
            && !socket.is_queued
            && (socket.incoming.is_runnable() || socket.outgoing.is_runnable())
        {
            socket.is_queued = true;
            self.queue.push_back(fd);
        }
    }

    /// Takes in what the kernel says of sockets, which it may take so long for.
    fn collect(&mut self, patience: Duration) -> Result<()> {
        let mut patience = Timespec::try_from(patience).unwrap_or_default();
        loop {
            self.events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&patience)) {
                Ok(_) => {}
                Err(Errno::INTR) => return Ok(()),
                Err(errno) => return Err(errno),
            }
            for index in 0..self.events.len() {
                let Event { flags, data } = self.events[index];
                let fd = data.u64() as RawFd;
                let Some(Some(socket)) = self.sockets.get_mut(fd as usize) else { continue };
                let has_hung_up = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
                socket.is_read_out |= has_hung_up || flags.contains(EventFlags::PRI);
                socket.incoming.is_ready |= flags.contains(EventFlags::IN) || has_hung_up;
                let has_failed = flags.intersects(EventFlags::HUP | EventFlags::ERR);
                socket.outgoing.is_ready |= flags.contains(EventFlags::OUT) || has_failed;
                self.enqueue(fd);
            }
            // A full list may not be all.
            if self.events.len() < EVENTS_MAX {
                return Ok(());
            }
            patience = Timespec::default();
        }
    }

    /// Tries what may succeed.
    pub(crate) fn enter(&mut self, supply: &mut impl Supply) -> Result<()> {
        self.enter_and_wait(supply, Duration::ZERO)
    }

    /// Tries like [`Operations::enter`], and waits for a socket that is ready, but not for long.
    pub(crate) fn enter_and_wait(&mut self, supply: &mut impl Supply, patience: Duration) -> Result<()> {
        let has_work = !self.queue.is_empty() || !self.completions.is_empty();
        self.collect(if has_work { Duration::ZERO } else { patience })?;
        for _ in 0..self.queue.len() {
            let Some(fd) = self.queue.pop_front() else { break };
            let Some(slot) = self.sockets.get_mut(fd as usize) else { continue };
            // A socket that was forgotten meanwhile, or another with its number.
            let Some(mut socket) = slot.take() else { continue };
            socket.is_queued = false;
            self.run(fd, &mut socket, supply);
            self.sockets[fd as usize] = Some(socket);
            self.enqueue(fd);
        }
        Ok(())
    }

    fn run(&mut self, fd: RawFd, socket: &mut Socket, supply: &mut impl Supply) {
        // SAFETY: the descriptor is open while an operation is under way on it, as `start` was promised.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        let may_wait = socket.is_watched && !socket.is_read_out;
        for is_incoming in [true, false] {
            let half = if is_incoming { &mut socket.incoming } else { &mut socket.outgoing };
            if !half.is_runnable() {
                continue;
            }
            let Some(UnderWay { user_data, attempt }) = half.under_way else { continue };
            let tried = match attempt {
                Attempt::ReceiveMany => self.receive_many(borrowed, user_data, half, may_wait, supply),
                Attempt::ReceiveOnce(bytes) => self.receive_once(borrowed, user_data, bytes, supply),
                Attempt::AwaitBytes => await_readiness(borrowed, PollFlags::IN),
                Attempt::Send => send(borrowed, half),
                Attempt::Connect(to) => connect(borrowed, to),
                Attempt::AwaitConnection => await_readiness(borrowed, PollFlags::OUT),
                Attempt::Accept => self.accept(borrowed, user_data),
            };
            match tried {
                Tried::GoesOn => {}
                Tried::Told => half.under_way = None,
                Tried::Ended(result) => {
                    half.under_way = None;
                    self.completions.push_back(Completion { user_data, result, flags: 0 });
                }
                Tried::NotNow => {
                    half.is_ready = false;
                    if let Err(errno) = self.watch(borrowed, &mut socket.is_watched) {
                        let half = if is_incoming { &mut socket.incoming } else { &mut socket.outgoing };
                        half.under_way = None;
                        let result = -errno.raw_os_error();
                        self.completions.push_back(Completion { user_data, result, flags: 0 });
                    }
                }
            }
        }
    }

    /// Watches a socket. What it is ready for already, the kernel tells as an edge.
    fn watch(&self, fd: BorrowedFd<'_>, is_watched: &mut bool) -> Result<()> {
        if !*is_watched {
            let flags =
                EventFlags::IN | EventFlags::PRI | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            epoll::add(&self.epoll, fd, EventData::new_u64(fd.as_raw_fd() as u64), flags)?;
            *is_watched = true;
        }
        Ok(())
    }

    /// `may_wait`: whether an edge tells of what arrives after a buffer was not filled.
    fn receive_many(
        &mut self,
        fd: BorrowedFd<'_>,
        user_data: u64,
        half: &Half,
        may_wait: bool,
        supply: &mut impl Supply,
    ) -> Tried {
        debug_assert!(half.pieces.is_empty());
        for _ in 0..TURN_MAX {
            let Some((bytes, room)) = self.receive_into_buffer(fd, user_data, 0, true, supply) else {
                return Tried::Ended(-Errno::NOBUFS.raw_os_error());
            };
            match bytes {
                Ok(0) => return Tried::Ended(0),
                Ok(bytes) if bytes < room && may_wait => return Tried::NotNow,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Tried::NotNow,
                Err(errno) => return Tried::Ended(-errno.raw_os_error()),
            }
        }
        Tried::GoesOn
    }

    fn receive_once(
        &mut self,
        fd: BorrowedFd<'_>,
        user_data: u64,
        bytes_max: u32,
        supply: &mut impl Supply,
    ) -> Tried {
        match self.receive_into_buffer(fd, user_data, bytes_max as usize, false, supply) {
            None => Tried::Ended(-Errno::NOBUFS.raw_os_error()),
            Some((Ok(0), _)) => Tried::Ended(0),
            Some((Ok(_), _)) => Tried::Told,
            Some((Err(Errno::INTR), _)) => Tried::GoesOn,
            Some((Err(Errno::AGAIN), _)) => Tried::NotNow,
            Some((Err(errno), _)) => Tried::Ended(-errno.raw_os_error()),
        }
    }

    /// Receives into the next buffer and tells of that; how many bytes, and for how many there was room.
    /// `None` without a buffer.
    fn receive_into_buffer(
        &mut self,
        fd: BorrowedFd<'_>,
        user_data: u64,
        bytes_max: usize,
        goes_on: bool,
        supply: &mut impl Supply,
    ) -> Option<(Result<usize>, usize)> {
        let spare = supply.peek(0)?;
        let room = if bytes_max == 0 { spare.length } else { spare.length.min(bytes_max) };
        // SAFETY: the buffer is the supply's, so nothing else uses it, and has so many bytes.
        let got = unsafe { libc::recv(fd.as_raw_fd(), spare.address.cast(), room, libc::MSG_DONTWAIT) };
        let got = usize::try_from(got).map_err(|_| last_error());
        if let Ok(bytes @ 1..) = got {
            supply.advance(1);
            let more = if goes_on { IORING_CQE_F_MORE } else { 0 };
            let flags = IORING_CQE_F_BUFFER | more | u32::from(spare.index) << IORING_CQE_BUFFER_SHIFT;
            self.completions.push_back(Completion { user_data, result: bytes as i32, flags });
        }
        Some((got, room))
    }

    fn accept(&mut self, fd: BorrowedFd<'_>, user_data: u64) -> Tried {
        for _ in 0..TURN_MAX {
            match rustix::net::accept_with(fd, SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    let result = socket.into_raw_fd();
                    self.completions.push_back(Completion { user_data, result, flags: IORING_CQE_F_MORE });
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Tried::NotNow,
                Err(errno) => return Tried::Ended(-errno.raw_os_error()),
            }
        }
        Tried::GoesOn
    }
}

/// A message of the pieces of a half, without an address.
fn message(half: &Half) -> libc::msghdr {
    // SAFETY: all zeros is a message without anything.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = half.pieces.as_ptr().cast_mut();
    message.msg_iovlen = half.pieces.len();
    message
}

fn tried(result: isize) -> Tried {
    if let Ok(bytes) = i32::try_from(result)
        && bytes >= 0
    {
        return Tried::Ended(bytes);
    }
    match last_error() {
        Errno::INTR => Tried::GoesOn,
        Errno::AGAIN => Tried::NotNow,
        errno => Tried::Ended(-errno.raw_os_error()),
    }
}

fn send(fd: BorrowedFd<'_>, half: &Half) -> Tried {
    let message = message(half);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the caller of `start` leaves the memory of the pieces as it is until it has completed.
    tried(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) })
}

fn connect(fd: BorrowedFd<'_>, to: SocketAddr) -> Tried {
    match rustix::net::connect(fd, &to) {
        Ok(()) | Err(Errno::ISCONN) => Tried::Ended(0),
        // Asked again, a socket tells how its connecting has ended.
        Err(Errno::INPROGRESS | Errno::ALREADY) => Tried::NotNow,
        Err(Errno::INTR) => Tried::GoesOn,
        Err(errno) => Tried::Ended(-errno.raw_os_error()),
    }
}

fn await_readiness(fd: BorrowedFd<'_>, wanted: PollFlags) -> Tried {
    let mut fds = [PollFd::from_borrowed_fd(fd, wanted)];
    match rustix::event::poll(&mut fds, Some(&Timespec::default())) {
        Ok(0) => Tried::NotNow,
        Err(Errno::INTR) => Tried::GoesOn,
        Ok(_) => Tried::Ended(i32::from(fds[0].revents().bits() as i16)),
        Err(errno) => Tried::Ended(-errno.raw_os_error()),
    }
}
