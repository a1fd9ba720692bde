//! Datagrams without a ring.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::super::WaitError;
use super::send::Sends;
use super::{
    Endpoint, Filled, HEAD_BYTES, KernelMemory, Receiving, Refusal, UdpError, UdpReactor, UdpSocket,
};
use crate::epoll::{Datagrams, Drained, Outbox};

/// Datagrams and buffers that stand for a ring.
pub(super) struct Readiness {
    datagrams: Datagrams,
    /// Slots that were filled and not sent.
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

    pub(super) fn queue(&mut self, slot: u16) {
        self.queue.push_back(slot);
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
    fn message(&self, slot: u16) -> &libc::msghdr {
        self.sends.message(slot)
    }

    fn ended(&mut self, slot: u16, refusal: Option<Errno>) {
        let to = self.sends.end(slot);
        self.refusals.extend(refusal.map(|errno| Refusal { to, errno }));
    }
}

impl Endpoint {
    /// Sends what is queued, and takes in what has arrived.
    pub(super) fn turn_by_readiness(&mut self) -> Result<(), UdpError> {
        let UdpReactor::Readiness(readiness) = &self.inner else { return Ok(()) };
        if self.unsubmitted != 0 || readiness.datagrams.is_blocked() {
            self.send_by_readiness()?;
        }
        if !self.needs_start() {
            return Ok(());
        }
        let Self { inner, socket, shared, filled, receiving, .. } = self;
        let UdpReactor::Readiness(Readiness { datagrams, .. }) = inner else { return Ok(()) };
        let KernelMemory { buffers, request, .. } = &mut **shared;
        datagrams.start_receiving(socket.fd()).map_err(refused("EPOLL_CTL_ADD"))?;
        let name_bytes = request.msg_namelen as usize;
        debug_assert_eq!(name_bytes + 16, HEAD_BYTES);
        let received = datagrams.receive(socket.fd(), name_bytes, buffers, |buffers, index, length| {
            filled.push_back(Filled { buffer: buffers.take(index), length });
        });
        if let Err(errno) = received {
            tracing::debug!(%errno, "recvmmsg");
            *receiving = Receiving::Failed;
        }
        Ok(())
    }

    /// Sends what is queued, as far as the socket has room.
    pub(super) fn send_by_readiness(&mut self) -> Result<(), UdpError> {
        let Self { inner, socket, shared, refusals, unsubmitted, .. } = self;
        let UdpReactor::Readiness(Readiness { datagrams, queue }) = inner else { return Ok(()) };
        let mut outbox = Leaving { sends: &mut shared.sends, refusals };
        let outcome = datagrams.send(socket.fd(), queue, &mut outbox);
        let outcome = outcome.map_err(refused("EPOLL_CTL_MOD"))?;
        // Datagrams that wait for room are no work until there is some.
        *unsubmitted = if outcome == Drained::Blocked { 0 } else { queue.len() as u32 };
        Ok(())
    }
}
