//! How streams are accepted.
//!
//! Invariant: nothing is accepted while no slot for a stream is free, but for what was under way by then.
//! That waits.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use io_uring::cqueue;
use rustix::io::Errno;

use super::operation::{Operation, Purpose, SLOTS_MAX, Tag};
use super::submission::{Request, Submission};
use super::{ListenerId, StreamEvent, Streams, TcpError, errno_of, is_pause, socket_address};

/// A socket that streams are accepted from.
struct Listener {
    id: u32,
    socket: OwnedFd,
    accept: Operation,
    sequence: u32,
    /// Why its last accept has failed, which waits to be tried again.
    failure: Option<Errno>,
    is_closing: bool,
}

/// All of them.
#[derive(Default)]
pub(super) struct Listeners {
    list: Vec<Listener>,
    next_id: u32,
    /// Accepted, and without a slot.
    pub(super) waiting: VecDeque<(u32, OwnedFd)>,
    are_due: bool,
}

impl Listeners {
    pub(super) fn make_due(&mut self) {
        self.are_due |= !self.list.is_empty() || !self.waiting.is_empty();
    }

    pub(super) fn are_due(&self) -> bool {
        self.are_due
    }

    /// Accepts no more.
    pub(super) fn close_all(&mut self) {
        self.list.iter_mut().for_each(|listener| listener.is_closing = true);
        self.make_due();
    }

    fn find(&mut self, id: u32) -> Option<&mut Listener> {
        self.list.iter_mut().find(|listener| listener.id == id)
    }

    /// A cancellation has not found the accept.
    pub(super) fn was_missed(&mut self, id: u32, sequence: u32) {
        if self.find(id).is_some_and(|listener| listener.accept.was_missed(sequence)) {
            self.make_due();
        }
    }

    /// Ends what is under way.
    pub(super) fn cancel_all(&mut self, submission: &mut Submission) -> Result<(), TcpError> {
        for listener in &mut self.list {
            if !submission.make_room()? {
                break;
            }
            listener.cancel(submission);
        }
        Ok(())
    }
}

impl Listener {
    fn cancel(&mut self, submission: &mut Submission) {
        if let Some(sequence) = self.accept.end() {
            let tag = Tag { purpose: Purpose::Accept, sequence, slot: self.id };
            submission.cancel(self.socket.as_raw_fd(), tag);
        }
    }

    fn start(&mut self, submission: &mut Submission) {
        self.sequence = self.sequence.wrapping_add(1);
        self.accept = Operation::UnderWay(self.sequence);
        let tag = Tag { purpose: Purpose::Accept, sequence: self.sequence, slot: self.id };
        submission.start(self.socket.as_raw_fd(), Request::Accept, tag);
    }
}

impl Streams {
    /// Accepts streams from a socket that listens; each brings a [`StreamEvent::Accepted`].
    pub fn listen(&mut self, socket: OwnedFd) -> ListenerId {
        let id = self.listeners.next_id;
        assert!(id < SLOTS_MAX, "more than {SLOTS_MAX} listeners in one life");
        self.listeners.next_id += 1;
        let (accept, sequence) = (Operation::Idle, 0);
        let listener = Listener { id, socket, accept, sequence, failure: None, is_closing: false };
        self.listeners.list.push(listener);
        self.listeners.make_due();
        ListenerId(id)
    }

    /// Accepts no more streams from a socket, and closes it. Events of those that were accepted may follow.
    pub fn unlisten(&mut self, ListenerId(id): ListenerId) {
        if let Some(listener) = self.listeners.find(id) {
            listener.is_closing = true;
            self.listeners.make_due();
        }
    }

    /// Why accepting has failed somewhere, such as for lack of descriptors or memory:
    /// [`Streams::retry_failed`] is to be called after a while.
    #[must_use]
    pub fn accept_error(&self) -> Option<Errno> {
        self.listeners.list.iter().find_map(|listener| listener.failure)
    }

    /// Tries again to accept streams where that has failed.
    pub fn retry_failed(&mut self) {
        for listener in &mut self.listeners.list {
            self.listeners.are_due |= listener.failure.take().is_some();
        }
    }

    /// Starts and ends accepts, and makes streams of what was accepted.
    pub(super) fn advance_listeners(&mut self) -> Result<(), TcpError> {
        let waiting = core::mem::take(&mut self.listeners.waiting);
        for (id, socket) in waiting {
            if self.listeners.find(id).is_some_and(|listener| !listener.is_closing) {
                self.accept(id, socket);
            }
        }
        let has_room = self.has_free_slot() && self.listeners.waiting.is_empty();
        for listener in &mut self.listeners.list {
            if !self.submission.make_room()? {
                return Ok(());
            }
            if !has_room || listener.is_closing {
                listener.cancel(&mut self.submission);
            } else if listener.accept.is_idle() && listener.failure.is_none() {
                listener.start(&mut self.submission);
            }
        }
        for closed in self.listeners.list.extract_if(.., |one| one.is_closing && one.accept.is_idle()) {
            self.submission.forget(&closed.socket);
        }
        self.listeners.are_due = false;
        Ok(())
    }

    /// A stream was accepted, or accepting has ended.
    pub(super) fn accepted(&mut self, id: u32, result: i32, flags: u32) {
        let socket = (result >= 0).then(|| {
            // SAFETY: the kernel has opened this descriptor for the completion.
            unsafe { OwnedFd::from_raw_fd(result) }
        });
        let has_ended = !cqueue::more(flags);
        if has_ended {
            self.submission.ended();
        }
        self.listeners.are_due |= has_ended;
        let Some(listener) = self.listeners.find(id) else { return };
        if has_ended {
            listener.accept = Operation::Idle;
        }
        match errno_of(result) {
            None | Some(Errno::CONNABORTED) => {}
            Some(errno) if is_pause(errno) => {}
            Some(errno) => {
                listener.failure = Some(errno);
                self.counters.accept_errors += 1;
            }
        }
        if let Some(socket) = socket
            && !listener.is_closing
        {
            self.accept(id, socket);
        }
    }

    fn accept(&mut self, id: u32, socket: OwnedFd) {
        if !self.has_free_slot() || !self.listeners.waiting.is_empty() {
            self.listeners.waiting.push_back((id, socket));
            self.listeners.are_due = true;
            return;
        }
        let addresses = peer_address(&socket).and_then(|from| Ok((from, socket_address(Some(&socket))?)));
        match addresses {
            Ok((from, local)) => {
                let Ok(stream) = self.adopt(socket) else { return };
                self.counters.accepted += 1;
                self.events.push_back(StreamEvent::Accepted { id: stream, from, local });
                self.listeners.are_due |= !self.has_free_slot();
            }
            // The peer has gone.
            Err(_) => self.counters.accept_errors += 1,
        }
    }
}

fn peer_address(socket: &OwnedFd) -> Result<SocketAddr, Errno> {
    rustix::net::getpeername(socket)?.ok_or(Errno::NOTCONN)?.try_into()
}
