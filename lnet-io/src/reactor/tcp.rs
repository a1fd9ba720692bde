//! Streams of bytes: the TCP sockets of one shard, over one `io_uring` or by readiness.
//!
//! A stream is accepted, dialled or adopted. It receives into provided buffers, on and on or once, or
//! straight to where the bytes belong; it sends what is queued, copied or in a lease, one operation at a
//! time. [`Streams`] know nothing of what the bytes mean.
//!
//! The driver of streams asks for something, upon which nothing happens at once. It has that started by
//! [`Streams::flush`] or [`Streams::turn`], and takes what happened from [`Streams::poll_event`]. What is
//! asked of a stream puts it on a list; `advance` then compares what is wanted with what is under way. So an
//! operation that ends before its time, because buffers are lacking or another thread drives, is started
//! again by the same function.
//!
//! Invariants:
//! - The kernel uses no memory that was freed: a slot, its lease and its queue live until nothing is under
//!   way on it and the kernel has let go of what it sends without copying. Where the kernel does not do that,
//!   they are given up.
//! - No completion is lost: the kernel stores those that the ring has no room for (`IORING_FEAT_NODROP`).
//! - What is under way belongs to the thread that started it, so a thread that finds another's ends that
//!   first. An operation that was cancelled has taken no bytes of the stream that it did not tell of.
//! - One operation receives and one sends on a stream at a time, so its bytes stay in order.
//! - No operation can block: the kernel would make a thread for it.
//! - What is received straight into its place is received by a system call of the driver's, which takes what
//!   there is: no memory of others is the kernel's from one turn to the next.

mod error;
mod listen;
mod operation;
mod outgoing;
mod polled;
mod receive;
mod send;
pub mod socket;
mod stream;
mod submission;
mod types;

#[cfg(test)]
mod tests;

use core::fmt;
use core::mem::ManuallyDrop;
use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread::ThreadId;
use std::time::Instant;

use lnet_core::lnd::Full;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;

use super::Reactor;
use super::buffers::Buffers;
use super::waiter::{WaitError, system};
use crate::epoll::Completion;
use listen::Listeners;
use operation::{Operation, Purpose, SLOTS_MAX, Tag};
use outgoing::SpareMemory;
use polled::Polled;
use socket::{set_tos, set_unacknowledged_max, unacknowledged_bytes};
use stream::{Phase, Stream};
use submission::{Request, Submission};

pub use error::TcpError;
pub use types::{ListenerId, Mode, ReceivedBytes, StreamCounters, StreamEvent, StreamId, StreamsConfig};

/// How long the kernel may take to end what is under way.
const END_PATIENCE: Duration = Duration::from_secs(2);
const END_INTERVAL: Duration = Duration::from_millis(10);

/// The TCP sockets of one shard. May be moved between threads; they are best driven by one.
pub struct Streams {
    submission: Submission,
    /// The kernel uses these while something is under way.
    buffers: ManuallyDrop<Buffers>,
    slots: ManuallyDrop<Vec<Stream>>,
    chunks: SpareMemory,
    free: Vec<u32>,
    streams_max: u32,
    /// Leases from so many bytes on are sent without copying.
    zero_copy_min_bytes: usize,
    listeners: Listeners,
    /// Streams that may have something to start.
    due: VecDeque<u32>,
    /// Streams that wait for a provided buffer.
    starved: VecDeque<u32>,
    polled: Polled,
    events: VecDeque<StreamEvent>,
    completions: Vec<Completion>,
    driver: Option<ThreadId>,
    counters: StreamCounters,
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let streams = self.slots.len() - self.free.len();
        f.debug_struct("Streams").field("streams", &streams).finish_non_exhaustive()
    }
}

impl Streams {
    /// No streams yet.
    ///
    /// # Errors
    /// [`TcpError`] when io_uring is not permitted or lacks what is needed, or there is no memory.
    pub fn new(config: &StreamsConfig) -> Result<Self, TcpError> {
        let &StreamsConfig { streams_max, receive_buffers, receive_buffer_bytes, .. } = config;
        let fits = (1..SLOTS_MAX).contains(&streams_max)
            && receive_buffers.is_power_of_two()
            && (1..=1 << 24).contains(&receive_buffer_bytes);
        if !fits {
            return Err(TcpError::Sizes { streams_max, receive_buffers, receive_buffer_bytes });
        }
        let submission = match config.reactor {
            Reactor::IoUring => Submission::new(streams_max, receive_buffers)?,
            Reactor::Epoll => Submission::by_readiness()?,
        };
        let buffers = Buffers::new(receive_buffers, receive_buffer_bytes as usize)
            .map_err(|source| WaitError::System { operation: "mmap", source })?;
        if let Some(ring) = submission.ring() {
            // SAFETY: the streams free the buffers only when nothing is under way.
            unsafe { buffers.register(ring) }.map_err(|error| match Errno::from_io_error(&error) {
                Some(Errno::INVAL) => TcpError::Unsupported { feature: "rings of buffers" },
                _ => system("IORING_REGISTER_PBUF_RING", &error).into(),
            })?;
        }
        let polled = Polled::new(receive_buffer_bytes as usize)
            .map_err(|source| WaitError::System { operation: "mmap", source })?;
        Ok(Self {
            submission,
            buffers: ManuallyDrop::new(buffers),
            slots: ManuallyDrop::default(),
            chunks: SpareMemory::default(),
            free: Vec::new(),
            streams_max,
            zero_copy_min_bytes: config.zero_copy_min_bytes as usize,
            listeners: Listeners::default(),
            due: VecDeque::new(),
            starved: VecDeque::new(),
            polled,
            events: VecDeque::new(),
            completions: Vec::new(),
            driver: None,
            counters: StreamCounters::default(),
        })
    }

    /// Becomes readable when something has completed.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.submission.fd()
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> &StreamCounters {
        &self.counters
    }

    /// Connects a socket that is bound already; [`StreamEvent::Dialled`] tells how that went. What is queued
    /// meanwhile is sent afterwards.
    ///
    /// # Errors
    /// The socket, when there are `streams_max` streams.
    pub fn dial(&mut self, socket: OwnedFd, to: SocketAddr) -> Result<StreamId, Full<OwnedFd>> {
        self.insert(socket, Phase::Dialling(to))
    }

    /// A stream over a socket that is connected already.
    ///
    /// # Errors
    /// The socket, when there are `streams_max` streams.
    pub fn adopt(&mut self, socket: OwnedFd) -> Result<StreamId, Full<OwnedFd>> {
        self.insert(socket, Phase::Open)
    }

    /// Gives the packets of a stream this type of service; `None` for the system's.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_tos(&self, id: StreamId, tos: Option<u8>) -> Result<(), TcpError> {
        self.get(id).and_then(|stream| stream.socket.as_ref()).map_or(Ok(()), |socket| set_tos(socket, tos))
    }

    /// Has a stream end when its peer leaves bytes unacknowledged for so long; `None` for the kernel's
    /// choice.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_unacknowledged_max(&self, id: StreamId, limit: Option<Duration>) -> Result<(), TcpError> {
        let socket = self.get(id).and_then(|stream| stream.socket.as_ref());
        socket.map_or(Ok(()), |socket| set_unacknowledged_max(socket, limit))
    }

    /// Bytes that the kernel has taken, and the peer's has not acknowledged.
    #[must_use]
    pub fn unacknowledged_bytes(&self, id: StreamId) -> u64 {
        self.get(id).and_then(|stream| stream.socket.as_ref()).map_or(0, unacknowledged_bytes)
    }

    fn insert(&mut self, socket: OwnedFd, phase: Phase) -> Result<StreamId, Full<OwnedFd>> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < self.streams_max as usize => {
                self.slots.push(Stream::default());
                self.slots.len() as u32 - 1
            }
            None => return Err(Full(socket)),
        };
        let stream = &mut self.slots[slot as usize];
        (stream.phase, stream.socket) = (phase, Some(socket));
        let id = StreamId { slot, generation: stream.generation };
        self.make_due(slot);
        Ok(id)
    }

    fn has_free_slot(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.streams_max as usize
    }

    fn free(&mut self, slot: u32) {
        let stream = &mut self.slots[slot as usize];
        *stream = core::mem::take(stream).into_free();
        self.free.push(slot);
        self.listeners.make_due();
    }

    /// Detaches a stream, for another shard. Receiving ends, what is queued is sent; then
    /// [`StreamEvent::Detached`] brings the socket. Bytes that arrived before are told of before.
    pub fn detach(&mut self, id: StreamId) {
        if let Some(stream) = self.find(id) {
            stream.is_detaching = true;
            self.make_due(id.slot);
        }
    }

    /// Closes a stream: ends what is under way, drops what is queued. [`StreamEvent::Closed`] is all that
    /// follows, once its leases are back. What the kernel has taken before is sent, unless it reads that from
    /// leases: then the connection is reset.
    pub fn close(&mut self, id: StreamId) {
        if let Some(stream) = self.find(id) {
            stream.phase = Phase::Closing;
            self.make_due(id.slot);
        }
    }

    /// What is known by this id.
    fn get(&self, id: StreamId) -> Option<&Stream> {
        let stream = self.slots.get(id.slot as usize)?;
        (stream.generation == id.generation && stream.is_known()).then_some(stream)
    }

    fn find(&mut self, id: StreamId) -> Option<&mut Stream> {
        let stream = self.slots.get_mut(id.slot as usize)?;
        (stream.generation == id.generation && stream.is_known()).then_some(stream)
    }

    fn id(&self, slot: u32) -> StreamId {
        StreamId { slot, generation: self.slots[slot as usize].generation }
    }

    fn make_due(&mut self, slot: u32) {
        if !core::mem::replace(&mut self.slots[slot as usize].is_due, true) {
            self.due.push_back(slot);
        }
    }

    /// Whether [`Streams::turn`] or [`Streams::poll_event`] would find something.
    #[must_use]
    pub fn has_work(&mut self) -> bool {
        self.has_due() || !self.events.is_empty() || self.submission.needs_enter() || {
            self.submission.has_completions()
        }
    }

    fn has_due(&self) -> bool {
        let is_fed = !self.starved.is_empty() && self.buffers.is_stocked();
        is_fed || !self.due.is_empty() || self.listeners.are_due()
    }

    /// Takes in what has completed, and starts what is due. Call it once a turn, before
    /// [`Streams::poll_event`].
    ///
    /// # Errors
    /// The kernel's refusal to go on.
    pub fn turn(&mut self) -> Result<(), TcpError> {
        self.attend();
        self.start_due()?;
        if self.submission.needs_enter() {
            self.submission.enter(&mut self.buffers)?;
        }
        self.reap();
        self.look();
        // What has ended often has a successor.
        if self.has_due() {
            self.flush()?;
        }
        Ok(())
    }

    /// Starts what is due, all of it by one system call.
    ///
    /// # Errors
    /// The kernel's refusal to go on.
    pub fn flush(&mut self) -> Result<(), TcpError> {
        self.attend();
        self.start_due()?;
        if self.submission.has_entries() {
            self.submission.enter(&mut self.buffers)?;
            self.reap();
        }
        Ok(())
    }

    /// What has happened next.
    pub fn poll_event(&mut self) -> Option<StreamEvent> {
        while let Some(event) = self.events.pop_front() {
            let id = event.id();
            if matches!(event, StreamEvent::Closed { .. }) {
                return Some(event);
            }
            if self.get(id).is_some() {
                if matches!(event, StreamEvent::Detached { .. }) {
                    self.free(id.slot);
                }
                return Some(event);
            }
            // The stream was closed meanwhile.
            if let StreamEvent::Received { bytes, .. } = event {
                self.give_back(bytes);
            }
        }
        None
    }

    /// Sees to it that this thread is the one whose operations are under way.
    #[inline]
    fn attend(&mut self) {
        let thread = std::thread::current().id();
        if self.driver != Some(thread) {
            self.take_over(thread);
        }
    }

    #[cold]
    fn take_over(&mut self, thread: ThreadId) {
        if self.driver.is_some() && self.submission.is_of_thread() && !self.end_all() {
            tracing::error!("what another thread started on TCP streams does not end; bytes may be late");
        }
        self.driver = Some(thread);
    }

    /// Starts what is due, as far as the ring has room.
    fn start_due(&mut self) -> Result<(), TcpError> {
        for _ in 0..self.starved.len().min(self.buffers.stocked_count()) {
            let Some(slot) = self.starved.pop_front() else { break };
            self.slots[slot as usize].is_starved = false;
            self.make_due(slot);
        }
        if self.listeners.are_due() {
            self.advance_listeners()?;
        }
        // Streams that become due meanwhile have their turn later.
        for _ in 0..self.due.len() {
            if !self.submission.make_room()? {
                break;
            }
            let Some(slot) = self.due.pop_front() else { break };
            self.slots[slot as usize].is_due = false;
            self.advance(slot);
        }
        Ok(())
    }

    /// Starts and ends operations of a stream, as its user wants it.
    fn advance(&mut self, slot: u32) {
        match self.slots[slot as usize].phase {
            Phase::Free | Phase::Detached => {}
            Phase::Dialling(to) => self.advance_dial(slot, to),
            Phase::Open => {
                self.advance_receive(slot);
                self.advance_send(slot);
                self.settle(slot);
            }
            Phase::Closing => {
                for purpose in [Purpose::Dial, Purpose::Receive, Purpose::Send] {
                    self.cancel(slot, purpose);
                }
                self.settle_closing(slot);
            }
        }
    }

    fn cancel(&mut self, slot: u32, purpose: Purpose) {
        let stream = &mut self.slots[slot as usize];
        if let Some(sequence) = stream.operation(purpose).end() {
            self.submission.cancel(stream.fd(), Tag { purpose, sequence, slot });
        }
    }

    /// Tells what is true once operations have ended.
    fn settle(&mut self, slot: u32) {
        let id = self.id(slot);
        let stream = &mut self.slots[slot as usize];
        if !stream.receive.is_idle() {
            return;
        }
        if stream.stops() {
            stream.wanted = stream::Wanted::Nothing;
        }
        if core::mem::take(&mut stream.is_pausing) {
            self.events.push_back(StreamEvent::Paused { id });
        }
        if stream.error.is_some() && stream.wanted.is_nothing() {
            self.end(slot, None);
        }
        let stream = &mut self.slots[slot as usize];
        let sends = !stream.send.is_idle() || !stream.outgoing.is_empty() || stream.outgoing.awaits_release();
        if stream.is_detaching
            && !sends
            && let Some(socket) = stream.socket.take()
        {
            stream.phase = Phase::Detached;
            self.submission.forget(&socket);
            self.events.push_back(StreamEvent::Detached { id, socket });
        }
    }

    fn settle_closing(&mut self, slot: u32) {
        let stream = &mut self.slots[slot as usize];
        if !stream.is_idle() {
            return;
        }
        stream.outgoing.clear(&mut self.chunks);
        let awaits_release = stream.outgoing.awaits_release();
        if let Some(socket) = stream.socket.take() {
            self.submission.forget(&socket);
            if awaits_release {
                // A reset has the kernel let go of the memory at once.
                let reset = set_socket_linger(&socket, Some(Duration::ZERO));
                debug_assert!(reset.is_ok(), "SO_LINGER: {reset:?}");
            }
        }
        if !awaits_release {
            let id = self.id(slot);
            self.free(slot);
            self.events.push_back(StreamEvent::Closed { id });
        }
    }

    /// Tells of the end of a stream, once.
    fn end(&mut self, slot: u32, error: Option<Errno>) {
        let id = self.id(slot);
        let stream = &mut self.slots[slot as usize];
        if !core::mem::replace(&mut stream.is_ended, true) {
            // The first reason: the receive may find the consequences of a failed send.
            let error = stream.error.or(error);
            self.events.push_back(StreamEvent::Ended { id, error });
        }
    }

    fn advance_dial(&mut self, slot: u32, to: SocketAddr) {
        let stream = &mut self.slots[slot as usize];
        if !stream.dial.is_idle() {
            return;
        }
        let (fd, sequence) = (stream.fd(), stream.next_sequence());
        let request = if stream.is_connecting { Request::AwaitConnection } else { Request::Connect(to) };
        stream.dial = Operation::UnderWay(sequence);
        self.submission.start(fd, request, Tag { purpose: Purpose::Dial, sequence, slot });
    }

    fn dialled(&mut self, slot: u32, result: i32) {
        let id = self.id(slot);
        self.submission.ended();
        self.make_due(slot);
        let stream = &mut self.slots[slot as usize];
        stream.dial = Operation::Idle;
        if stream.phase == Phase::Closing {
            return;
        }
        let polled = core::mem::take(&mut stream.is_connecting);
        let result = match errno_of(result) {
            // The socket is connected, or will not be: connecting again tells.
            None if polled => return,
            None => Ok(()),
            Some(Errno::ISCONN) => Ok(()),
            Some(Errno::CANCELED | Errno::INTR | Errno::AGAIN | Errno::ALREADY | Errno::INPROGRESS) => {
                stream.is_connecting = true;
                return;
            }
            Some(errno) => Err(errno),
        };
        stream.phase = Phase::Open;
        let result = result.and_then(|()| socket_address(stream.socket.as_ref()));
        match result {
            Ok(_) => self.counters.dialled += 1,
            Err(errno) => {
                stream.outgoing.clear(&mut self.chunks);
                (stream.error, stream.is_ended) = (Some(errno), true);
            }
        }
        self.events.push_back(StreamEvent::Dialled { id, result });
    }

    /// Notes what has completed.
    fn reap(&mut self) {
        let mut completions = core::mem::take(&mut self.completions);
        self.submission.completions(&mut completions);
        for completion in completions.drain(..) {
            self.complete(&completion);
        }
        self.completions = completions;
    }

    fn complete(&mut self, &Completion { user_data, result, flags }: &Completion) {
        let (tag, is_cancellation) = Tag::parse(user_data);
        let Tag { purpose, sequence, slot } = tag;
        match purpose {
            _ if is_cancellation => self.cancelled(tag, result),
            Purpose::Accept => self.accepted(slot, result, flags),
            Purpose::Dial => self.dialled(slot, result),
            Purpose::Receive => self.received(slot, result, flags),
            Purpose::Send => self.sent(slot, sequence, result, flags),
        }
    }

    /// A cancellation has done nothing. If the operation is under way yet, the kernel was just about to go on
    /// with it.
    fn cancelled(&mut self, Tag { purpose, sequence, slot }: Tag, result: i32) {
        if errno_of(result) != Some(Errno::NOENT) {
            return;
        }
        if purpose == Purpose::Accept {
            self.listeners.was_missed(slot, sequence);
        } else if self.slots[slot as usize].operation(purpose).was_missed(sequence) {
            self.make_due(slot);
        }
    }

    /// Ends all that is under way; false if the kernel does not do it in time. What has arrived meanwhile is
    /// not lost.
    fn end_all(&mut self) -> bool {
        let begun = Instant::now();
        while self.submission.is_under_way() {
            if begun.elapsed() > END_PATIENCE || self.cancel_all().is_err() {
                return false;
            }
            if self.submission.enter_and_wait(END_INTERVAL, &mut self.buffers).is_err() {
                return false;
            }
            self.reap();
        }
        true
    }

    fn cancel_all(&mut self) -> Result<(), TcpError> {
        self.listeners.cancel_all(&mut self.submission)?;
        for slot in 0..self.slots.len() as u32 {
            if self.slots[slot as usize].is_idle() {
                continue;
            }
            if !self.submission.make_room()? {
                break;
            }
            for purpose in [Purpose::Dial, Purpose::Receive, Purpose::Send] {
                self.cancel(slot, purpose);
            }
        }
        Ok(())
    }

    /// Closes all sockets, and waits until the kernel uses no memory of the streams; false if it goes on.
    fn shut_down(&mut self) -> bool {
        self.listeners.close_all();
        for slot in 0..self.slots.len() as u32 {
            self.close(self.id(slot));
        }
        let begun = Instant::now();
        loop {
            if begun.elapsed() > END_PATIENCE || !self.end_all() || self.start_due().is_err() {
                return false;
            }
            let is_closing = self.slots.iter().any(|stream| stream.phase == Phase::Closing);
            if !is_closing && !self.submission.is_under_way() {
                return true;
            }
            if self.submission.enter_and_wait(END_INTERVAL, &mut self.buffers).is_err() {
                return false;
            }
            self.reap();
        }
    }
}

/// The error in a completion's result.
fn errno_of(result: i32) -> Option<Errno> {
    (result < 0).then(|| Errno::from_raw_os_error(-result))
}

/// The operation is simply to be started again: it was cancelled, or interrupted.
fn is_pause(errno: Errno) -> bool {
    matches!(errno, Errno::CANCELED | Errno::INTR | Errno::AGAIN)
}

fn socket_address(socket: Option<&OwnedFd>) -> Result<SocketAddr, Errno> {
    rustix::net::getsockname(socket.ok_or(Errno::BADF)?)?.try_into()
}

impl Drop for Streams {
    fn drop(&mut self) {
        if !self.shut_down() {
            tracing::error!("what is under way on TCP streams does not end; its memory is given up");
            return;
        }
        // SAFETY: they are not used afterwards, and the kernel uses them no more.
        unsafe { ManuallyDrop::drop(&mut self.slots) };
        // SAFETY: likewise.
        unsafe { ManuallyDrop::drop(&mut self.buffers) };
    }
}
