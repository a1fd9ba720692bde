//! Datagrams, many in one call.

use core::mem::{size_of, zeroed};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, Result};

use super::{Supply, last_error};

/// Datagrams of one call.
const BATCH: usize = 64;
/// Calls that receive in one turn; what waits longer has the next one.
const CALLS_MAX: usize = 8;

/// Bytes in front of a datagram in its buffer, besides those that tell what else there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HeadRoom {
    /// Room for the address that it came from.
    pub(crate) name_bytes: usize,
    /// Room for control data.
    pub(crate) control_bytes: usize,
}

impl HeadRoom {
    /// All of it.
    pub(crate) const fn bytes(self) -> usize {
        size_of::<[u32; 4]>() + self.name_bytes + self.control_bytes
    }
}

/// Messages that are to be sent.
///
/// # Safety
/// Each message leads to memory that is readable until it has ended.
pub(crate) unsafe trait Outbox {
    /// The message of this number.
    fn message(&self, number: u16) -> &libc::msghdr;

    /// The kernel has taken it, or refuses it for this reason.
    fn ended(&mut self, number: u16, refusal: Option<Errno>);
}

/// Lists for calls about one socket, and the descriptor that becomes readable when one is due.
pub(crate) struct Datagrams {
    /// Watches the socket, as far as that is wanted.
    epoll: OwnedFd,
    /// What it is watched for; `None` before it is watched at all.
    watched: Option<EventFlags>,
    headers: Vec<libc::mmsghdr>,
    pieces: Vec<libc::iovec>,
    receives: bool,
    is_blocked: bool,
}

// SAFETY: the pointers in the lists mean something during a call alone.
unsafe impl Send for Datagrams {}

impl Datagrams {
    /// Watches nothing yet.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            watched: None,
            headers: Vec::with_capacity(BATCH),
            pieces: Vec::with_capacity(BATCH),
            receives: false,
            is_blocked: false,
        })
    }

    /// Becomes readable when something arrives, or there is room again.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Whether what is queued waits for room.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Tells of arrivals at the socket from now on.
    pub(crate) fn start_receiving(&mut self, socket: BorrowedFd<'_>) -> Result<()> {
        self.receives = true;
        self.watch(socket)
    }

    fn watch(&mut self, socket: BorrowedFd<'_>) -> Result<()> {
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, self.receives);
        wanted.set(EventFlags::OUT, self.is_blocked);
        match self.watched {
            Some(watched) if watched == wanted => return Ok(()),
            Some(_) => epoll::modify(&self.epoll, socket, EventData::new_u64(0), wanted)?,
            None => epoll::add(&self.epoll, socket, EventData::new_u64(0), wanted)?,
        }
        self.watched = Some(wanted);
        Ok(())
    }

    /// Whether the socket has something to receive, or has room for what waits.
    pub(crate) fn is_ready(&self, socket: BorrowedFd<'_>) -> bool {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, self.receives);
        wanted.set(PollFlags::OUT, self.is_blocked);
        let mut fds = [PollFd::from_borrowed_fd(socket, wanted)];
        !wanted.is_empty() && rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|n| n != 0)
    }

    /// Sends the messages of these numbers, in their order.
    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        queue: &mut VecDeque<u16>,
        outbox: &mut impl Outbox,
    ) -> Result<()> {
        self.is_blocked = false;
        while !queue.is_empty() {
            self.headers.clear();
            let header = |number: &u16| libc::mmsghdr { msg_hdr: *outbox.message(*number), msg_len: 0 };
            self.headers.extend(queue.iter().take(BATCH).map(header));
            let (headers, count) = (self.headers.as_mut_ptr(), self.headers.len() as u32);
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: there are so many headers, of messages as an outbox has them.
            let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers, count, flags as _) };
            if let Ok(sent) = usize::try_from(sent) {
                queue.drain(..sent).for_each(|number| outbox.ended(number, None));
                continue;
            }
            match last_error() {
                Errno::INTR => {}
                Errno::AGAIN => {
                    self.is_blocked = true;
                    break;
                }
                errno => {
                    if let Some(refused) = queue.pop_front() {
                        outbox.ended(refused, Some(errno));
                    }
                }
            }
        }
        self.watch_if_known(socket)
    }

    /// Watches for room, or no longer.
    fn watch_if_known(&mut self, socket: BorrowedFd<'_>) -> Result<()> {
        if self.is_blocked || self.watched.is_some() { self.watch(socket) } else { Ok(()) }
    }

    /// Receives into buffers of the supply until it or the socket is empty, or others want their turn. A
    /// buffer gets what a ring would write there: `struct io_uring_recvmsg_out`, the address and the control
    /// data in so many bytes, the datagram. `filled` is told of each buffer, and of how many bytes it has.
    pub(crate) fn receive<S: Supply>(
        &mut self,
        socket: BorrowedFd<'_>,
        head: HeadRoom,
        supply: &mut S,
        mut filled: impl FnMut(&mut S, u16, u32),
    ) -> Result<()> {
        for _ in 0..CALLS_MAX {
            let wanted = self.prepare(head, supply);
            if wanted == 0 {
                return Ok(());
            }
            let (headers, none) = (self.headers.as_mut_ptr(), core::ptr::null_mut());
            let flags = libc::MSG_DONTWAIT;
            // SAFETY: the messages lead into buffers of the supply, which nothing else uses.
            let got = unsafe { libc::recvmmsg(socket.as_raw_fd(), headers, wanted as u32, flags as _, none) };
            let Ok(got) = usize::try_from(got) else {
                return match last_error() {
                    Errno::AGAIN | Errno::INTR => Ok(()),
                    errno => Err(errno),
                };
            };
            for header in &self.headers[..got] {
                let Some(spare) = supply.peek(0) else { break };
                supply.advance(1);
                let message = &header.msg_hdr;
                let control_bytes = message.msg_controllen as u32;
                let out: [u32; 4] =
                    [message.msg_namelen, control_bytes, header.msg_len, message.msg_flags as u32];
                // SAFETY: the buffer begins with that, as `prepare` has seen.
                unsafe { spare.address.cast::<[u32; 4]>().write_unaligned(out) };
                filled(supply, spare.index, head.bytes() as u32 + header.msg_len);
            }
            if got < wanted {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Describes the next buffers; how many.
    fn prepare(&mut self, head: HeadRoom, supply: &impl Supply) -> usize {
        self.headers.clear();
        self.pieces.clear();
        let head_bytes = head.bytes();
        for ahead in 0..BATCH as u16 {
            let Some(spare) = supply.peek(ahead) else { break };
            assert!(spare.length > head_bytes, "a buffer of {} bytes", spare.length);
            // SAFETY: the buffer is longer than that.
            let payload = unsafe { spare.address.add(head_bytes) };
            self.pieces.push(libc::iovec { iov_base: payload.cast(), iov_len: spare.length - head_bytes });
            // SAFETY: all zeros is a message without anything.
            let mut message: libc::msghdr = unsafe { zeroed() };
            // SAFETY: likewise.
            message.msg_name = unsafe { spare.address.add(size_of::<[u32; 4]>()) }.cast();
            message.msg_namelen = head.name_bytes as u32;
            // SAFETY: likewise.
            message.msg_control =
                unsafe { spare.address.add(size_of::<[u32; 4]>() + head.name_bytes) }.cast();
            message.msg_controllen = head.control_bytes as _;
            // The list has room for a batch, so that it never moves.
            message.msg_iov = &raw mut self.pieces[usize::from(ahead)];
            message.msg_iovlen = 1;
            self.headers.push(libc::mmsghdr { msg_hdr: message, msg_len: 0 });
        }
        self.headers.len()
    }
}
