//! Datagrams without a ring.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::super::WaitError;
use super::send::Sends;
use super::{Endpoint, HEAD, KernelMemory, Receiving, Refusal, UdpError, UdpReactor, UdpSocket};
use crate::epoll::{Datagrams, Outbox};

/// Datagrams and buffers that stand for a ring.
pub(super) struct Readiness {
    datagrams: Datagrams,
    /// Slots that lead what was not sent.
    queue: VecDeque<u16>,
}

fn refused(operation: &'static str) -> impl Fn(Errno) -> UdpError {
    move |source| UdpError::Ring(WaitError::System { operation, source })
}

impl Readiness {
    pub(super) fn new(send_buffers: u16) -> Result<Self, UdpError> {
        let datagrams = Datagrams::new().map_err(refused("epoll_create1"))?;
        Ok(Self { datagrams, queue: VecDeque::with_capacity(send_buffers.into()) })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.datagrams.fd()
    }

    /// Whether a call would get on. `receives`: whether the endpoint would receive something.
    pub(super) fn is_ready(&self, socket: &UdpSocket, receives: bool) -> bool {
        (receives || self.datagrams.is_blocked()) && self.datagrams.is_ready(socket.fd())
    }
}

/// Sends of an endpoint, and where those go that are refused.
struct Leaving<'a> {
    sends: &'a mut Sends,
    refusals: &'a mut VecDeque<Refusal>,
}

// SAFETY: buffers and addresses belong to the sends, and stay as they are while a send is under way.
unsafe impl Outbox for Leaving<'_> {
    fn message(&self, leader: u16) -> &libc::msghdr {
        self.sends.message(leader)
    }

    fn ended(&mut self, leader: u16, refusal: Option<Errno>) {
        self.sends.end(leader, refusal, |refusal| self.refusals.push_back(refusal));
    }
}

impl Endpoint {
    /// Sends what is queued, and takes in what has arrived.
    pub(super) fn turn_by_readiness(&mut self) -> Result<(), UdpError> {
        let UdpReactor::Readiness(readiness) = &self.inner else { return Ok(()) };
        if self.shared.sends.is_waiting() || readiness.datagrams.is_blocked() {
            self.send_by_readiness()?;
        }
        if !self.needs_start() {
            return Ok(());
        }
        let Self { inner, socket, shared, arrived, receiving, .. } = self;
        let UdpReactor::Readiness(Readiness { datagrams, .. }) = inner else { return Ok(()) };
        let KernelMemory { buffers, request, .. } = &mut **shared;
        datagrams.start_receiving(socket.fd()).map_err(refused("EPOLL_CTL_ADD"))?;
        let received = datagrams.receive(socket.fd(), HEAD, buffers, |buffers, index, length| {
            let buffer = buffers.take(index);
            arrived.take(buffers, request, buffer, length);
        });
        if let Err(errno) = received {
            tracing::debug!(%errno, "recvmmsg");
            *receiving = Receiving::Failed;
        }
        Ok(())
    }

    /// Sends what is queued, as far as the socket has room: datagrams that wait for that are no work until
    /// there is some.
    pub(super) fn send_by_readiness(&mut self) -> Result<(), UdpError> {
        let Self { inner, socket, shared, refusals, .. } = self;
        let UdpReactor::Readiness(Readiness { datagrams, queue }) = inner else { return Ok(()) };
        let mut outbox = Leaving { sends: &mut shared.sends, refusals };
        loop {
            queue.extend(core::iter::from_fn(|| outbox.sends.next_run()));
            datagrams.send(socket.fd(), queue, &mut outbox).map_err(refused("EPOLL_CTL_MOD"))?;
            // Datagrams of a run that was refused go alone.
            if !outbox.sends.is_waiting() {
                break;
            }
        }
        self.follow_runs();
        Ok(())
    }
}
