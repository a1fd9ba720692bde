//! A shard's rings: its sockets, one on each queue, and the rings of the queues that it owns.

use std::collections::VecDeque;

use super::BUDGET_MAX;
#[cfg(all(test, not(loom)))]
use crate::xsk::RxRing;
use crate::xsk::{CompletionRing, FRAGMENTS_MAX, FillRing, Kick, RxDescriptor, Socket, TxDescriptor, TxRing};

/// A call of `sendto` moves a bounded number of descriptors; this many calls empty any ring of ours.
const KICKS_MAX: u32 = 256;

/// A socket's rings, and how the device is told of them.
pub(crate) enum Device {
    /// A socket.
    Socket(Socket),
    /// Rings of a stand-in for the kernel, which needs no telling.
    #[cfg(all(test, not(loom)))]
    Plain { rx: RxRing, tx: TxRing },
}

/// This shard's socket on one queue of one interface.
pub(crate) struct Lane {
    pub(crate) interface_index: u32,
    pub(crate) queue: u32,
    device: Device,
    /// Received descriptors: those of a packet whose last one has not been seen wait here.
    pub(super) arrived: VecDeque<RxDescriptor>,
    /// Descriptors pushed that the kernel has not been told of.
    unflushed: bool,
}

impl Lane {
    pub(crate) fn new(interface_index: u32, queue: u32, socket: Socket) -> Self {
        Self::over(interface_index, queue, Device::Socket(socket))
    }

    pub(super) fn over(interface_index: u32, queue: u32, device: Device) -> Self {
        let arrived = VecDeque::with_capacity((BUDGET_MAX + FRAGMENTS_MAX) as usize);
        Self { interface_index, queue, device, arrived, unflushed: false }
    }

    /// The socket; stand-ins have none.
    pub(super) fn socket(&self) -> Option<&Socket> {
        match &self.device {
            Device::Socket(socket) => Some(socket),
            #[cfg(all(test, not(loom)))]
            Device::Plain { .. } => None,
        }
    }

    #[inline]
    fn tx(&mut self) -> &mut TxRing {
        match &mut self.device {
            Device::Socket(socket) => &mut socket.tx,
            #[cfg(all(test, not(loom)))]
            Device::Plain { tx, .. } => tx,
        }
    }

    /// Takes at most `budget` descriptors, at most [`BUDGET_MAX`], off the receive ring, behind those that
    /// wait already.
    #[inline]
    pub(super) fn receive(&mut self, budget: u32) -> u32 {
        let rx = match &mut self.device {
            Device::Socket(socket) => &mut socket.rx,
            #[cfg(all(test, not(loom)))]
            Device::Plain { rx, .. } => rx,
        };
        let arrived = &mut self.arrived;
        rx.receive(budget.min(BUDGET_MAX), |descriptor| arrived.push_back(descriptor))
    }

    /// Whether the transmit ring has room for `count` descriptors.
    #[inline]
    pub(super) fn has_room(&mut self, count: usize) -> bool {
        self.tx().free_slots() as usize >= count
    }

    /// Puts a descriptor into the transmit ring, which has room; the kernel is told with the next
    /// [`Lane::flush`].
    #[inline]
    pub(super) fn push(&mut self, descriptor: TxDescriptor) {
        if self.tx().push(descriptor).is_err() {
            unreachable!("the ring had room for the whole frame, and its parts lie in their chunks");
        }
        self.unflushed = true;
    }

    /// Whether the kernel is still to be told of something.
    pub(super) fn is_unflushed(&self) -> bool {
        self.unflushed
    }

    /// Tells the kernel of all that was pushed. What it has no memory for is tried again with the next call.
    #[inline]
    pub(super) fn flush(&mut self) {
        if self.unflushed {
            self.tx().commit();
            self.unflushed = !self.socket().is_none_or(kick);
        }
    }
}

/// Has the kernel send; whether it has taken everything.
fn kick(socket: &Socket) -> bool {
    for _ in 0..KICKS_MAX {
        match socket.kick() {
            Ok(Kick::Done) => return true,
            Ok(Kick::Again | Kick::Busy) => {}
            Ok(Kick::NoBuffers) => return false,
            Err(error) => {
                tracing::warn!(%error, "the kernel refused to send");
                return false;
            }
        }
    }
    false
}

/// The rings of a queue that this shard owns.
pub(crate) struct OwnedQueue {
    /// The lane of this queue, which wakes the kernel for the fill ring.
    pub(crate) lane_index: usize,
    pub(crate) fill: FillRing,
    pub(crate) completion: CompletionRing,
}

impl OwnedQueue {
    /// Free entries of its fill ring that make a refill worth its while: seldom, and many at once.
    pub(super) fn refill_count(&self) -> u32 {
        (self.fill.size() / 4).max(1)
    }
}
