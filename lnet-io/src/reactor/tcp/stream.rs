//! A stream: what it is asked for, and what is under way.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::operation::{Operation, Purpose};
use super::outgoing::Outgoing;
use super::types::Mode;

/// The life of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Phase {
    /// There is none.
    #[default]
    Free,
    /// Stream that is being connected to this address.
    Dialling(SocketAddr),
    Open,
    /// Its socket is in an event that was not taken.
    Detached,
    /// Its user has closed it, and it ends once nothing is under way.
    Closing,
}

/// What is to be received.
#[derive(Clone, Copy, Default)]
pub(super) enum Wanted {
    #[default]
    Nothing,
    Buffers(Mode),
    /// Nothing; it is to be told when something could be.
    Readiness,
}

impl Wanted {
    pub(super) const fn is_nothing(self) -> bool {
        matches!(self, Self::Nothing)
    }
}

/// A slot for a stream.
#[derive(Default)]
pub(super) struct Stream {
    pub(super) generation: u32,
    pub(super) phase: Phase,
    pub(super) socket: Option<OwnedFd>,
    /// The number of the next operation.
    sequence: u32,
    pub(super) dial: Operation,
    pub(super) receive: Operation,
    pub(super) send: Operation,
    pub(super) wanted: Wanted,
    pub(super) outgoing: Outgoing,
    /// Why nothing can be sent any more.
    pub(super) error: Option<Errno>,
    /// The end was told.
    pub(super) is_ended: bool,
    pub(super) is_pausing: bool,
    pub(super) is_detaching: bool,
    /// Whether its driver looks at it itself: it has no receive under way.
    pub(super) is_polled: bool,
    /// A connection was begun by an operation that was cancelled: the next one waits for it.
    pub(super) is_connecting: bool,
    /// Whether it is in the list of those that have something to start.
    pub(super) is_due: bool,
    /// Whether it is in the list of those that wait for a provided buffer.
    pub(super) is_starved: bool,
}

impl Stream {
    /// The slot without the stream. It stays in the lists that it is in, where it does nothing.
    pub(super) fn into_free(self) -> Self {
        let Self { generation, sequence, is_due, is_starved, .. } = self;
        Self { generation: generation.wrapping_add(1), sequence, is_due, is_starved, ..Self::default() }
    }

    /// The socket.
    ///
    /// # Panics
    /// If it has gone.
    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_ref().expect("the socket lives as long as operations begin").as_raw_fd()
    }

    /// Whether the connection has gone in both directions, not only the peer's end of it. A send that has
    /// taken some bytes by then returns their number and loses the reason; the receive finds a plain end.
    pub(super) fn has_hung_up(&self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut fds = [PollFd::new(socket, PollFlags::empty())];
        let polled = rustix::event::poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }

    pub(super) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    pub(super) fn operation(&mut self, purpose: Purpose) -> &mut Operation {
        match purpose {
            Purpose::Receive | Purpose::Accept => &mut self.receive,
            Purpose::Send => &mut self.send,
            Purpose::Dial => &mut self.dial,
        }
    }

    /// Whether no operation is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.dial.is_idle() && self.receive.is_idle() && self.send.is_idle()
    }

    /// Whether its user knows it.
    pub(super) fn is_known(&self) -> bool {
        !matches!(self.phase, Phase::Free | Phase::Closing)
    }

    /// Whether a user that knows it by this generation may queue bytes.
    pub(super) fn takes_bytes(&self, generation: u32) -> bool {
        self.generation == generation && self.is_known() && self.socket.is_some() && self.error.is_none()
    }

    /// Whether receiving is to end.
    pub(super) fn stops(&self) -> bool {
        self.is_pausing || self.is_detaching
    }
}
