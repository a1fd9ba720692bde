//! Datagrams: a UDP socket that one shard drives.
//!
//! Over an `io_uring`, the socket has one receive under way that goes on by itself (multishot `recvmsg`);
//! the kernel takes the buffers for it from a ring of them. Datagrams are sent from a pool of buffers, many
//! in one system call. By readiness (`epoll`), the same buffers are filled and sent by
//! `recvmmsg` and `sendmmsg`.
//!
//! Datagrams to one peer leave in *runs* (`send`), as far as the caller says that they may. What arrives
//! comes in runs as well where the kernel has any (`UDP_GRO`), each in one buffer, out of which its datagrams
//! are read.
//!
//! Invariants:
//! - The kernel uses no memory that an [`Endpoint`] has freed: before it does that it ends what is under way,
//!   and where it cannot, it gives the memory up.
//! - There is a completion for each buffer, each send and the receive at most, and room for all of them: no
//!   completion is ever lost.
//! - What is under way belongs to the thread that started it, so a thread that finds another's ends that
//!   first.
//!
//! Nothing is allocated after [`Endpoint::new`].

mod error;
mod kernel;
mod readiness;
mod refusal_probe;
mod send;
mod socket;
mod types;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use core::fmt;
use core::mem::ManuallyDrop;
use core::mem::size_of;
use core::time::Duration;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::thread::ThreadId;

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;

use super::Reactor;
use super::buffers::{Buffer, Buffers, GROUP};
use super::waiter::{WaitError, is_passing, system};
use crate::epoll::HeadRoom;
use kernel::{Run, is_pause, make_ring, read_run};
use readiness::Readiness;
use send::Sends;

pub use error::UdpError;
pub use refusal_probe::RefusalProbe;
pub use socket::{Instruction, UdpSocket};
pub use types::{EndpointConfig, NoRuns, Refusal};

/// Room for an address, and for the length of a run's datagrams (`struct cmsghdr` and an `int`), behind
/// `struct io_uring_recvmsg_out`.
const HEAD: HeadRoom = HeadRoom {
    name_bytes: size_of::<libc::sockaddr_in6>(),
    control_bytes: (size_of::<libc::cmsghdr>() + size_of::<i32>()).next_multiple_of(size_of::<usize>()),
};
/// Bytes in front of what has arrived in its buffer.
const HEAD_BYTES: usize = HEAD.bytes();
/// Bytes of the longest run: those of an IP packet.
const RUN_BYTES_MAX: usize = u16::MAX as usize;
/// How long the kernel may take to end what is under way.
const END_PATIENCE: Duration = Duration::from_secs(2);
const END_INTERVAL: Duration = Duration::from_millis(10);
/// Tells a receive's user data from a send's.
const RECEIVE: u64 = 1 << 32;

/// A datagram that has arrived. It holds a buffer of its endpoint, with the others of its run: give it back
/// with [`Endpoint::give_back`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "its buffer is to be given back"]
pub struct Received {
    /// Where it came from.
    pub from: IpAddr,
    /// The UDP port there.
    pub from_port: u16,
    buffer: Buffer,
    start: u32,
    length: u32,
}

/// Where the receive stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Receiving {
    /// Not started yet.
    Idle,
    UnderWay,
    /// Ended with an error; started again by [`Endpoint::retry_failed`].
    Failed,
}

/// Datagrams of a run that is taken, at most: no kernel makes longer ones (include/linux/udp.h:
/// `UDP_MAX_SEGMENTS`). A guest may hand its host a packet that is cut into single bytes.
const RUN_DATAGRAMS_MAX: usize = 128;

/// A completed receive, of which the bytes below `at` were taken.
struct Filled {
    buffer: Buffer,
    run: Run,
    at: u32,
}

/// What has arrived, and was not taken.
struct Arrivals {
    filled: VecDeque<Filled>,
    /// Datagrams in there.
    count: usize,
    /// Bytes of the longest that is taken.
    datagram_max_bytes: u32,
}

impl Arrivals {
    /// Takes in a buffer of which the kernel has filled so many bytes.
    #[inline]
    fn take(&mut self, buffers: &mut Buffers, request: &libc::msghdr, mut buffer: Buffer, length: u32) {
        // The kernel says no more than it has written.
        let written = &buffers.bytes_mut(&mut buffer)[..length as usize];
        let run = read_run(written, request);
        let is_taken =
            |run: &Run| run.longest_bytes() <= self.datagram_max_bytes && run.count() <= RUN_DATAGRAMS_MAX;
        match run.filter(is_taken) {
            Some(run) => {
                self.count += run.count();
                self.filled.push_back(Filled { buffer, run, at: 0 });
            }
            None => buffers.give_back(buffer),
        }
    }

    /// The datagram that arrived next.
    #[inline]
    fn pop(&mut self, buffers: &mut Buffers) -> Option<Received> {
        let first = self.filled.front_mut()?;
        let Run { from, from_port, bytes, .. } = first.run;
        let (at, length) = (first.at, first.run.bytes_at(first.at));
        first.at += length;
        let is_last = first.at == bytes;
        let shared = (!is_last).then(|| buffers.share(&first.buffer));
        let buffer = shared.or_else(|| self.filled.pop_front().map(|last| last.buffer))?;
        self.count -= 1;
        Some(Received { from, from_port, buffer, start: HEAD_BYTES as u32 + at, length })
    }
}

/// How the kernel is asked.
enum UdpReactor {
    Ring(IoUring),
    Readiness(Readiness),
}

/// A UDP socket of one shard, over a ring of its own or by readiness. May be moved between threads; it is
/// best driven by one.
pub struct Endpoint {
    inner: UdpReactor,
    socket: UdpSocket,
    receiving: Receiving,
    /// Memory that the kernel uses. The endpoint's end alone frees it, once nothing is under way; a panic in
    /// that end gives it up.
    shared: ManuallyDrop<KernelMemory>,
    arrived: Arrivals,
    refusals: VecDeque<Refusal>,
    unsubmitted: u32,
    driver: Option<ThreadId>,
    /// Whether receives are wanted.
    receives: bool,
    /// The kernel's refusal of runs that were sent.
    no_runs_sent: Option<NoRuns>,
    /// The kernel's refusal to give runs that arrive.
    no_runs_received: Option<NoRuns>,
}

struct KernelMemory {
    buffers: Buffers,
    sends: Sends,
    /// What every receive is told; never moves.
    request: Box<libc::msghdr>,
}

// SAFETY: the request for receives holds no pointers but null, and the rest may be sent.
unsafe impl Send for Endpoint {}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// An endpoint over this socket.
    ///
    /// # Errors
    /// [`UdpError`] when io_uring is not permitted or lacks what is needed, or there is no memory.
    pub fn new(socket: UdpSocket, config: &EndpointConfig) -> Result<Self, UdpError> {
        let EndpointConfig { receive_buffers, send_buffers, datagram_max_bytes, receives_runs, reactor } =
            *config;
        let fits = receive_buffers.is_power_of_two()
            && (1..=1 << 15).contains(&send_buffers)
            && (1..=u32::from(u16::MAX)).contains(&datagram_max_bytes);
        if !fits {
            return Err(UdpError::Sizes { receive_buffers, send_buffers, datagram_max_bytes });
        }
        let inner = match reactor {
            Reactor::IoUring => UdpReactor::Ring(make_ring(receive_buffers.into(), send_buffers.into())?),
            Reactor::Epoll => UdpReactor::Readiness(Readiness::new(send_buffers)?),
        };
        let memory = |source| WaitError::System { operation: "mmap", source };
        let received = receives_runs.then(|| socket.receive_runs());
        let longest_bytes =
            if received == Some(Ok(())) { RUN_BYTES_MAX } else { datagram_max_bytes as usize };
        let no_runs_received =
            received.and_then(Result::err).map(|errno| NoRuns { option: "UDP_GRO", errno });
        let slot_bytes = (HEAD_BYTES + longest_bytes).next_multiple_of(64);
        let buffers = Buffers::new(receive_buffers, slot_bytes).map_err(memory)?;
        let sends = Sends::new(send_buffers, datagram_max_bytes as usize).map_err(memory)?;
        // SAFETY: all zeros is a message without anything.
        let mut request: Box<libc::msghdr> = Box::new(unsafe { core::mem::zeroed() });
        request.msg_namelen = HEAD.name_bytes as u32;
        request.msg_controllen = HEAD.control_bytes as _;
        if let UdpReactor::Ring(ring) = &inner {
            // SAFETY: the endpoint frees the buffers only when nothing is under way.
            unsafe { buffers.register(ring) }.map_err(|error| match Errno::from_io_error(&error) {
                Some(Errno::INVAL) => UdpError::Unsupported { feature: "rings of buffers" },
                _ => system("IORING_REGISTER_PBUF_RING", &error).into(),
            })?;
        }
        let mut endpoint = Self {
            receiving: Receiving::Idle,
            arrived: Arrivals {
                filled: VecDeque::with_capacity(usize::from(receive_buffers)),
                count: 0,
                datagram_max_bytes,
            },
            refusals: VecDeque::with_capacity(usize::from(send_buffers)),
            inner,
            socket,
            shared: ManuallyDrop::new(KernelMemory { buffers, sends, request }),
            unsubmitted: 0,
            driver: None,
            receives: true,
            no_runs_sent: None,
            no_runs_received,
        };
        if let Err(errno) = endpoint.socket.try_runs() {
            endpoint.shared.sends.end_runs(errno);
            endpoint.follow_runs();
        }
        endpoint.try_receive()?;
        Ok(endpoint)
    }

    /// Starts and ends a receive: nothing else tells whether the kernel can.
    fn try_receive(&mut self) -> Result<(), UdpError> {
        if let UdpReactor::Readiness(_) = self.inner {
            self.receives = false;
            return Ok(());
        }
        self.attend();
        self.enter()?;
        self.reap();
        if self.has_failed() {
            return Err(UdpError::Unsupported { feature: "multishot recvmsg" });
        }
        if !self.end_all() {
            return Err(UdpError::Unsupported { feature: "synchronous cancellation" });
        }
        (self.driver, self.receives) = (None, false);
        Ok(())
    }

    /// Receives from now on; before, what arrives waits in the socket.
    pub fn start_receiving(&mut self) {
        self.receives = true;
    }

    /// Whether [`Endpoint::start_receiving`] was called.
    #[must_use]
    pub fn is_receiving(&self) -> bool {
        self.receives
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Becomes readable when something has arrived or ended.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.inner {
            // SAFETY: the ring is open as long as `self` lives.
            UdpReactor::Ring(ring) => unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) },
            UdpReactor::Readiness(readiness) => readiness.fd(),
        }
    }

    /// Whether [`Endpoint::turn`] would find something, or a receive is to be started.
    #[must_use]
    pub fn has_work(&mut self) -> bool {
        if self.is_unsubmitted() || self.arrived.count != 0 || !self.refusals.is_empty() {
            return true;
        }
        let needs_start = self.needs_start();
        match &mut self.inner {
            UdpReactor::Ring(ring) => {
                needs_start || ring.submission().taskrun() || !ring.completion().is_empty()
            }
            UdpReactor::Readiness(readiness) => readiness.is_ready(&self.socket, needs_start),
        }
    }

    /// Whether the kernel was not told of all that it is to do.
    #[inline]
    fn is_unsubmitted(&self) -> bool {
        self.unsubmitted != 0 || self.shared.sends.is_waiting()
    }

    fn needs_start(&mut self) -> bool {
        self.receives && self.receiving == Receiving::Idle && self.shared.buffers.is_stocked()
    }

    /// Takes in what the kernel has to say, and starts the receive. Call it once a turn, before
    /// [`Endpoint::poll_received`] and [`Endpoint::poll_refusal`].
    ///
    /// # Errors
    /// The kernel's refusal to go on.
    pub fn turn(&mut self) -> Result<(), UdpError> {
        let UdpReactor::Ring(_) = self.inner else { return self.turn_by_readiness() };
        self.attend();
        if self.is_unsubmitted() || self.has_put_off() {
            self.enter()?;
        }
        self.reap();
        Ok(())
    }

    /// Whether the kernel has put something off.
    #[inline]
    fn has_put_off(&mut self) -> bool {
        let UdpReactor::Ring(ring) = &mut self.inner else { return false };
        ring.submission().taskrun()
    }

    /// Starts the receive again if it has ended with an error.
    pub fn retry_failed(&mut self) {
        if self.has_failed() {
            self.receiving = Receiving::Idle;
        }
    }

    /// Whether the receive has ended with an error and was not started again.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.receiving == Receiving::Failed
    }

    /// The datagram that arrived next.
    #[inline]
    pub fn poll_received(&mut self) -> Option<Received> {
        self.arrived.pop(&mut self.shared.buffers)
    }

    /// Datagrams that have arrived and that [`Self::poll_received`] has not taken.
    #[must_use]
    pub fn waiting_count(&self) -> usize {
        self.arrived.count
    }

    /// Shows the first `count` of the datagrams that wait, and where they came from.
    pub fn peek(&mut self, count: usize, mut look: impl FnMut(IpAddr, &[u8])) {
        let mut left = count;
        for Filled { buffer, run, at } in &mut self.arrived.filled {
            let written = &self.shared.buffers.bytes_mut(buffer)[HEAD_BYTES..];
            // A run of no bytes is a datagram, too.
            let (mut at, mut goes_on) = (*at, true);
            while goes_on {
                if left == 0 {
                    return;
                }
                let length = run.bytes_at(at);
                look(run.from, &written[at as usize..][..length as usize]);
                (at, left) = (at + length, left - 1);
                goes_on = at != run.bytes;
            }
        }
    }

    /// The bytes of a datagram.
    #[inline]
    pub fn bytes_mut(&mut self, received: &mut Received) -> &mut [u8] {
        let (start, length) = (received.start as usize, received.length as usize);
        &mut self.shared.buffers.bytes_mut(&mut received.buffer)[start..start + length]
    }

    /// Lets the kernel use a datagram's buffer again.
    #[inline]
    pub fn give_back(&mut self, received: Received) {
        self.shared.buffers.give_back(received.buffer);
    }

    /// What the kernel refused to send next.
    pub fn poll_refusal(&mut self) -> Option<Refusal> {
        self.refusals.pop_front()
    }

    /// Whether there is a buffer to send from.
    #[must_use]
    #[inline]
    pub fn has_room(&mut self) -> bool {
        self.shared.sends.has_room()
    }

    /// The kernel's refusal of runs, at the start or of one that was sent and whose datagrams it takes. A
    /// refusal of runs to send goes before one of runs that arrive.
    #[must_use]
    #[inline]
    pub fn no_runs(&self) -> Option<NoRuns> {
        self.no_runs_sent.or(self.no_runs_received)
    }

    /// Bytes of the longest datagram that it sends.
    #[must_use]
    pub fn datagram_max_bytes(&self) -> u32 {
        self.arrived.datagram_max_bytes
    }

    /// Has `write` fill a buffer, of which it says how many bytes it has written; they go to `to` with the
    /// next [`Endpoint::flush`] or [`Endpoint::turn`]. Datagrams to one peer that have the same number may
    /// leave in one run, on whose way they are one packet: the peer's kernel has to cut that up.
    ///
    /// # Panics
    /// If there is no buffer, or more bytes were written than there are.
    #[inline]
    pub fn send(&mut self, to: SocketAddr, run: Option<u8>, write: impl FnOnce(&mut [u8]) -> usize) {
        self.shared.sends.begin(to, run, write);
    }

    /// Hands the kernel all datagrams at once that were filled.
    ///
    /// # Errors
    /// The kernel's refusal to go on.
    #[inline]
    pub fn flush(&mut self) -> Result<(), UdpError> {
        if !self.is_unsubmitted() {
            return Ok(());
        }
        let UdpReactor::Ring(_) = self.inner else { return self.send_by_readiness() };
        self.attend();
        self.enter()?;
        self.reap();
        // Datagrams of a run that was refused go alone.
        if self.shared.sends.is_waiting() {
            self.enter()?;
            self.reap();
        }
        Ok(())
    }

    /// Does without the checksums of UDP where the kernel makes no runs.
    #[inline]
    fn follow_runs(&mut self) {
        if self.no_runs_sent.is_none()
            && let Some(errno) = self.shared.sends.runs_refused()
        {
            self.end_runs(errno);
        }
    }

    #[cold]
    fn end_runs(&mut self, errno: Errno) {
        self.no_runs_sent = Some(NoRuns { option: "UDP_SEGMENT", errno });
        if let Err(errno) = self.socket.omit_checksums() {
            tracing::debug!(%errno, "SO_NO_CHECK: the kernel computes checksums");
        }
    }

    /// Sees to it that this thread is the one whose receive is under way.
    #[inline]
    fn attend(&mut self) {
        let thread = std::thread::current().id();
        if self.driver != Some(thread) {
            self.take_over(thread);
        }
        if self.needs_start() {
            self.start_receive();
        }
    }

    #[cold]
    fn take_over(&mut self, thread: ThreadId) {
        if self.driver.is_some() && !self.end_all() {
            tracing::error!("a receive of another thread does not end; datagrams may be late");
        }
        self.driver = Some(thread);
    }

    fn start_receive(&mut self) {
        let fd = Fd(self.socket.raw_fd());
        let entry = opcode::RecvMsgMulti::new(fd, &raw const *self.shared.request, GROUP).build();
        self.push(&entry.user_data(RECEIVE));
        self.receiving = Receiving::UnderWay;
    }

    #[inline]
    fn push(&mut self, entry: &squeue::Entry) {
        let UdpReactor::Ring(ring) = &mut self.inner else { return };
        // SAFETY: what the entry points to belongs to `self`, does not move, and is freed only when nothing
        // is under way.
        let pushed = unsafe { ring.submission().push(entry) };
        assert!(pushed.is_ok(), "the ring has room for each send and the receive");
        self.unsubmitted += 1;
    }

    #[inline]
    fn push_sends(&mut self) {
        let UdpReactor::Ring(_) = self.inner else { return };
        while let Some(leader) = self.shared.sends.next_run() {
            let message: *const libc::msghdr = self.shared.sends.message(leader);
            let entry = opcode::SendMsg::new(Fd(self.socket.raw_fd()), message).build();
            self.push(&entry.user_data(u64::from(leader)));
        }
    }

    /// Hands the kernel what was pushed, and lets it do what it has put off.
    #[inline]
    fn enter(&mut self) -> Result<(), UdpError> {
        self.push_sends();
        let UdpReactor::Ring(ring) = &mut self.inner else { return Ok(()) };
        match ring.submitter().submit() {
            Ok(_) => {}
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(system("io_uring_enter", &error).into()),
        }
        self.unsubmitted = ring.submission().len() as u32;
        Ok(())
    }

    /// Notes what has completed.
    #[inline]
    fn reap(&mut self) {
        let Self { inner, receiving, shared, arrived, refusals, .. } = self;
        let UdpReactor::Ring(ring) = inner else { return };
        let KernelMemory { buffers, sends, request } = &mut **shared;
        for completion in ring.completion() {
            let (user_data, result) = (completion.user_data(), completion.result());
            if user_data & RECEIVE == 0 {
                let refusal = (result < 0).then(|| Errno::from_raw_os_error(-result));
                sends.end(user_data as u16, refusal, |refusal| refusals.push_back(refusal));
                continue;
            }
            if let Some(index) = cqueue::buffer_select(completion.flags()) {
                let buffer = buffers.take(index);
                arrived.take(buffers, request, buffer, u32::try_from(result).unwrap_or(0));
            } else if result < 0 && !is_pause(result) {
                *receiving = Receiving::Failed;
                continue;
            }
            if !cqueue::more(completion.flags()) {
                *receiving = Receiving::Idle;
            }
        }
        self.follow_runs();
    }

    /// Ends all that is under way; false if the kernel does not do it in time. What has arrived meanwhile is
    /// kept.
    fn end_all(&mut self) -> bool {
        let begun = std::time::Instant::now();
        loop {
            if self.enter().is_err() {
                return false;
            }
            self.reap();
            let is_by_readiness = matches!(self.inner, UdpReactor::Readiness(_));
            if is_by_readiness || !self.is_under_way() {
                return true;
            }
            if begun.elapsed() > END_PATIENCE {
                return false;
            }
            let interval = Timespec::from(END_INTERVAL);
            let UdpReactor::Ring(ring) = &mut self.inner else { return true };
            let submitter = ring.submitter();
            // There may be nothing left to end, only completions to wait for.
            match submitter.register_sync_cancel(Some(interval), CancelBuilder::any()) {
                Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => return false,
                _ => {}
            }
            self.reap();
            let args = SubmitArgs::new().timespec(&interval);
            if self.is_under_way()
                && let UdpReactor::Ring(ring) = &mut self.inner
            {
                let waited = ring.submitter().submit_with_args(1, &args);
                if waited.is_err_and(|error| !is_passing(&error)) {
                    return false;
                }
            }
        }
    }

    /// Whether the kernel may use the memory.
    fn is_under_way(&mut self) -> bool {
        self.receiving == Receiving::UnderWay || self.shared.sends.under_way() != 0
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.end_all() {
            // SAFETY: nothing is under way, and the endpoint is not used any more.
            unsafe { ManuallyDrop::drop(&mut self.shared) };
        } else {
            tracing::error!("what is under way on a UDP socket does not end; its memory is given up");
        }
    }
}
