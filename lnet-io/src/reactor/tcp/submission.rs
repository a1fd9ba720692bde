//! What streams ask the kernel for: a ring with the operations that wait to be submitted and what describes
//! them, or readiness instead.
//!
//! Invariant: with a ring, what describes an operation stays where it is until the kernel has taken the
//! operation; then the kernel has a copy (`IORING_FEAT_SUBMIT_STABLE`).

use core::mem::zeroed;
use core::ptr::NonNull;
use core::time::Duration;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::super::WaitError;
use super::super::buffers::{Buffers, GROUP};
use super::super::ring;
use super::super::socket::write_address;
use super::super::waiter::{is_passing, refused, system};
use super::TcpError;
use super::operation::Tag;
use crate::epoll::{self, Completion, Operations};

/// Operations that can wait to be submitted.
const ENTRIES: usize = 512;
/// Pieces that one operation sends or receives, at most.
pub(super) const PIECES_MAX: usize = 64;
/// Entries and pieces that a stream may use at once.
const ENTRIES_OF_STREAM: usize = 4;
const PIECES_OF_STREAM: usize = 2 * PIECES_MAX;
/// Pieces that can wait to be submitted.
const PIECES: usize = 4096;
/// Completions beyond these wait in the kernel.
const COMPLETIONS_MAX: usize = 8192;

/// Flag of a send (include/uapi/linux/io_uring.h): the kernel reports whether it has copied.
const IORING_SEND_ZC_REPORT_USAGE: u16 = 1 << 3;

/// A vector of pieces, which [`Submission::vector`] has made.
type Vector = (*const libc::iovec, usize);

/// An operation of a stream or a listener.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    /// Receives into provided buffers, again and again.
    ReceiveMany,
    /// Receives once into a provided buffer, at most so many bytes; 0: as many as it holds.
    ReceiveOnce(u32),
    /// Waits until something can be received.
    AwaitBytes,
    /// Sends these pieces.
    Send { pieces: Vector, zero_copy: bool },
    /// Connects.
    Connect(SocketAddr),
    /// Waits for a connection that was begun.
    AwaitConnection,
    /// Accepts connections.
    Accept,
}

/// How the kernel is asked.
enum TcpReactor {
    Ring(IoUring),
    Readiness(Operations),
}

/// A ring and what was not submitted, or readiness.
pub(super) struct Submission {
    inner: TcpReactor,
    /// Lists that never grow.
    messages: Vec<libc::msghdr>,
    pieces: Vec<libc::iovec>,
    addresses: Vec<libc::sockaddr_in6>,
    /// Entries that the kernel has not taken.
    waiting: usize,
    /// Operations that have not ended, cancellations and zero-copy reports aside.
    under_way: usize,
    /// Whether the kernel can send without copying.
    pub(super) sends_zero_copy: bool,
}

// SAFETY: the pointers lead into memory that belongs to this value, or to the streams that the operations are
// of, and mean the same on every thread.
unsafe impl Send for Submission {}

impl Submission {
    pub(super) fn new(streams_max: u32, receive_buffers: u16) -> Result<Self, TcpError> {
        let unsupported = |feature| TcpError::Unsupported { feature };
        let completions = usize::from(receive_buffers) + 2 * streams_max as usize + ENTRIES;
        let ring =
            ring::make(ENTRIES, completions.min(COMPLETIONS_MAX)).map_err(
                |error| match Errno::from_io_error(&error) {
                    Some(Errno::INVAL) => unsupported("cooperative completions"),
                    _ => refused(&error).into(),
                },
            )?;
        if !ring.params().is_feature_nodrop() || !ring.params().is_feature_submit_stable() {
            return Err(unsupported("lossless completions"));
        }
        let mut probe = Probe::new();
        let probed = ring.submitter().register_probe(&mut probe);
        probed.map_err(|error| system("IORING_REGISTER_PROBE", &error))?;
        // SendZc came with multishot receives, of which nothing else tells.
        if !probe.is_supported(opcode::SendZc::CODE) {
            return Err(unsupported("multishot recv"));
        }
        let sends_zero_copy = probe.is_supported(opcode::SendMsgZc::CODE);
        Ok(Self { sends_zero_copy, ..Self::by(TcpReactor::Ring(ring)) })
    }

    /// Asks by readiness.
    pub(super) fn by_readiness() -> Result<Self, TcpError> {
        let made =
            Operations::new().map_err(|source| WaitError::System { operation: "epoll_create1", source });
        Ok(Self::by(TcpReactor::Readiness(made?)))
    }

    fn by(inner: TcpReactor) -> Self {
        Self {
            inner,
            messages: Vec::with_capacity(ENTRIES),
            pieces: Vec::with_capacity(PIECES),
            addresses: Vec::with_capacity(ENTRIES),
            waiting: 0,
            under_way: 0,
            sends_zero_copy: false,
        }
    }

    /// The ring, if there is one.
    pub(super) fn ring(&self) -> Option<&IoUring> {
        match &self.inner {
            TcpReactor::Ring(ring) => Some(ring),
            TcpReactor::Readiness(_) => None,
        }
    }

    /// Becomes readable when something has completed, or a socket is ready.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match &self.inner {
            // SAFETY: the ring is open as long as `self` lives.
            TcpReactor::Ring(ring) => unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) },
            TcpReactor::Readiness(operations) => operations.fd(),
        }
    }

    /// Whether what is under way belongs to the thread that has started it.
    pub(super) fn is_of_thread(&self) -> bool {
        matches!(self.inner, TcpReactor::Ring(_))
    }

    /// Whether the kernel is to be entered: for entries, or for what it has put off.
    pub(super) fn needs_enter(&mut self) -> bool {
        match &mut self.inner {
            TcpReactor::Ring(ring) => {
                let submission = ring.submission();
                self.waiting != 0 || submission.taskrun() || submission.cq_overflow()
            }
            // An error comes back by the next entry.
            TcpReactor::Readiness(operations) => operations.has_work().unwrap_or(true),
        }
    }

    /// Whether entries wait.
    pub(super) fn has_entries(&self) -> bool {
        self.waiting != 0
    }

    /// Whether completions can be taken.
    pub(super) fn has_completions(&mut self) -> bool {
        match &mut self.inner {
            TcpReactor::Ring(ring) => !ring.completion().is_empty(),
            TcpReactor::Readiness(operations) => operations.has_completions(),
        }
    }

    /// Takes the completions.
    pub(super) fn completions(&mut self, out: &mut Vec<Completion>) {
        match &mut self.inner {
            TcpReactor::Ring(ring) => out.extend(ring.completion().map(|entry| Completion {
                user_data: entry.user_data(),
                result: entry.result(),
                flags: entry.flags(),
            })),
            TcpReactor::Readiness(operations) => operations.completions(out),
        }
    }

    /// Whether an operation has not ended.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way != 0
    }

    /// Makes room for the operations of one stream; false if the kernel takes none now.
    pub(super) fn make_room(&mut self) -> Result<bool, TcpError> {
        if self.has_room() {
            return Ok(true);
        }
        self.submit()?;
        Ok(self.has_room())
    }

    fn has_room(&self) -> bool {
        // Descriptions of operations stay until the kernel has taken all of them.
        let of_entries = [self.waiting, self.messages.len(), self.addresses.len()];
        of_entries.into_iter().all(|used| used + ENTRIES_OF_STREAM <= ENTRIES)
            && self.pieces.len() + PIECES_OF_STREAM <= PIECES
    }

    /// A vector of pieces for an operation that is pushed next, at most [`PIECES_MAX`].
    pub(super) fn vector(&mut self, pieces: impl Iterator<Item = NonNull<[u8]>>) -> Vector {
        let start = self.pieces.len();
        let pieces = pieces.take(PIECES_MAX);
        let piece =
            |piece: NonNull<[u8]>| libc::iovec { iov_base: piece.as_ptr().cast(), iov_len: piece.len() };
        for piece in pieces.map(piece) {
            assert!(self.pieces.len() < PIECES, "pieces without room");
            self.pieces.push(piece);
        }
        (self.pieces[start..].as_ptr(), self.pieces.len() - start)
    }

    /// Sends as much of these pieces as the socket has room for, at once: how many bytes, and whether that
    /// is all of them.
    pub(super) fn send_now(
        &mut self,
        fd: RawFd,
        pieces: impl Iterator<Item = NonNull<[u8]>>,
    ) -> (Result<usize, Errno>, bool) {
        let start = self.pieces.len();
        let (vector, count) = self.vector(pieces);
        // SAFETY: all zeros is a message without anything.
        let mut message: libc::msghdr = unsafe { zeroed() };
        (message.msg_iov, message.msg_iovlen) = (vector.cast_mut(), count);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the pieces are the stream's, which leaves them as they are while it lends itself for this.
        let sent = unsafe { libc::sendmsg(fd, &raw const message, flags) };
        let all: usize = self.pieces.drain(start..).map(|piece| piece.iov_len).sum();
        let sent = usize::try_from(sent).map_err(|_| epoll::last_error());
        (sent, sent == Ok(all))
    }

    /// A message of these pieces, likewise.
    fn message(&mut self, (pieces, count): (*const libc::iovec, usize)) -> *const libc::msghdr {
        // SAFETY: all zeros is a message without anything.
        let mut message: libc::msghdr = unsafe { zeroed() };
        (message.msg_iov, message.msg_iovlen) = (pieces.cast_mut(), count);
        assert!(self.messages.len() < ENTRIES, "a message without room");
        self.messages.push(message);
        &raw const self.messages[self.messages.len() - 1]
    }

    /// An address, likewise, and its length.
    fn address(&mut self, address: SocketAddr) -> (*const libc::sockaddr, u32) {
        // SAFETY: all zeros is an address of no family.
        let mut name: libc::sockaddr_in6 = unsafe { zeroed() };
        let length = write_address(&mut name, address);
        assert!(self.addresses.len() < ENTRIES, "an address without room");
        self.addresses.push(name);
        ((&raw const self.addresses[self.addresses.len() - 1]).cast(), length)
    }

    /// Starts an operation. Its memory belongs to the streams, which do not free it before it has ended.
    #[inline]
    pub(super) fn start(&mut self, fd: RawFd, request: Request, tag: Tag) {
        self.under_way += 1;
        if let TcpReactor::Readiness(operations) = &mut self.inner {
            // SAFETY: as for `push`.
            unsafe { operations.start(fd, tag.user_data(), by_readiness(&request)) };
            self.pieces.clear();
            self.waiting += 1;
            return;
        }
        let entry = self.entry(Fd(fd), request);
        self.push(&entry.user_data(tag.user_data()));
    }

    #[inline]
    fn entry(&mut self, fd: Fd, request: Request) -> squeue::Entry {
        match request {
            Request::ReceiveMany => opcode::RecvMulti::new(fd, GROUP).build(),
            Request::ReceiveOnce(length) => {
                let entry = opcode::Recv::new(fd, core::ptr::null_mut(), length).buf_group(GROUP).build();
                entry.flags(squeue::Flags::BUFFER_SELECT)
            }
            Request::AwaitBytes => opcode::PollAdd::new(fd, u32::from(PollFlags::IN.bits())).build(),
            Request::Send { pieces, zero_copy } => {
                let (message, flags) =
                    (self.message(pieces), (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32);
                if zero_copy {
                    let send = opcode::SendMsgZc::new(fd, message).flags(flags);
                    send.ioprio(IORING_SEND_ZC_REPORT_USAGE).build()
                } else {
                    opcode::SendMsg::new(fd, message).flags(flags).build()
                }
            }
            Request::Connect(to) => {
                let (address, length) = self.address(to);
                opcode::Connect::new(fd, address, length).build()
            }
            Request::AwaitConnection => opcode::PollAdd::new(fd, u32::from(PollFlags::OUT.bits())).build(),
            Request::Accept => opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build(),
        }
    }

    /// Cancels an operation.
    pub(super) fn cancel(&mut self, fd: RawFd, tag: Tag) {
        if let TcpReactor::Readiness(operations) = &mut self.inner {
            operations.cancel(fd, tag.user_data(), tag.cancellation());
            self.waiting += 1;
            return;
        }
        let entry = opcode::AsyncCancel::new(tag.user_data()).build().user_data(tag.cancellation());
        // Only a cancellation that does not find its operation says so.
        self.push(&entry.flags(squeue::Flags::SKIP_SUCCESS));
    }

    /// Nothing is under way on a socket, and nothing will be.
    pub(super) fn forget(&mut self, socket: &OwnedFd) {
        if let TcpReactor::Readiness(operations) = &mut self.inner {
            operations.forget(socket.as_fd());
        }
    }

    /// An operation has ended.
    #[inline]
    pub(super) fn ended(&mut self) {
        self.under_way -= 1;
    }

    #[inline]
    fn push(&mut self, entry: &squeue::Entry) {
        let TcpReactor::Ring(ring) = &mut self.inner else { return };
        // SAFETY: what the entry points to is in `self` until the entry is submitted, or in the streams until
        // the operation has ended.
        let pushed = unsafe { ring.submission().push(entry) };
        assert!(pushed.is_ok(), "room was made for each operation");
        self.waiting += 1;
    }

    /// Hands the kernel what waits, and lets it do what it has put off. `buffers`: those that the ring has.
    #[inline]
    pub(super) fn enter(&mut self, buffers: &mut Buffers) -> Result<(), TcpError> {
        match &mut self.inner {
            TcpReactor::Ring(_) => self.submit(),
            TcpReactor::Readiness(operations) => {
                self.waiting = 0;
                Ok(operations.enter(buffers).map_err(not_waited)?)
            }
        }
    }

    /// Enters like [`Submission::enter`], and waits for a completion, but not for long.
    pub(super) fn enter_and_wait(
        &mut self,
        interval: Duration,
        buffers: &mut Buffers,
    ) -> Result<(), TcpError> {
        match &mut self.inner {
            TcpReactor::Ring(ring) => {
                let timespec = Timespec::from(interval);
                let outcome = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timespec));
                self.submitted(outcome)
            }
            TcpReactor::Readiness(operations) => {
                self.waiting = 0;
                Ok(operations.enter_and_wait(buffers, interval).map_err(not_waited)?)
            }
        }
    }

    /// Hands the kernel the entries of the ring.
    fn submit(&mut self) -> Result<(), TcpError> {
        let TcpReactor::Ring(ring) = &mut self.inner else { return Ok(()) };
        let outcome = ring.submitter().submit();
        self.submitted(outcome)
    }

    fn submitted(&mut self, outcome: std::io::Result<usize>) -> Result<(), TcpError> {
        match outcome {
            Ok(_) => {}
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(system("io_uring_enter", &error).into()),
        }
        let TcpReactor::Ring(ring) = &mut self.inner else { return Ok(()) };
        self.waiting = ring.submission().len();
        if self.waiting == 0 {
            self.messages.clear();
            self.pieces.clear();
            self.addresses.clear();
        }
        Ok(())
    }
}

fn not_waited(source: Errno) -> WaitError {
    WaitError::System { operation: "epoll_pwait", source }
}

/// Operation that readiness is asked for.
fn by_readiness(request: &Request) -> epoll::StreamRequest<'_> {
    // SAFETY: the pieces are in a list that stays as it is until the operation is started.
    let list = |(pieces, count): Vector| unsafe { core::slice::from_raw_parts(pieces, count) };
    match *request {
        Request::ReceiveMany => epoll::StreamRequest::ReceiveMany,
        Request::ReceiveOnce(bytes) => epoll::StreamRequest::ReceiveOnce(bytes),
        Request::AwaitBytes => epoll::StreamRequest::AwaitBytes,
        Request::Send { pieces, .. } => epoll::StreamRequest::Send(list(pieces)),
        Request::Connect(to) => epoll::StreamRequest::Connect(to),
        Request::AwaitConnection => epoll::StreamRequest::AwaitConnection,
        Request::Accept => epoll::StreamRequest::Accept,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_only_where_all_that_describes_an_operation_has_some() {
        let mut submission = Submission::new(1, 2).unwrap();
        // More than there is room for at once.
        for _ in 0..2 * ENTRIES {
            assert!(submission.make_room().unwrap());
            submission.message((core::ptr::null(), 0));
            submission.address(SocketAddr::from(([127, 0, 0, 1], 1)));
        }
    }
}
