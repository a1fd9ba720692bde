//! The contract with transports: what carries the buffers of a domain.
//!
//! ```text
//!  application                front                            transport
//!  TransferMachine::add  -->  checks, queue, statistics   -->  TransportTm::add
//!  Handler, Callback     <--  bookkeeping, end points     <--  TmLink::post ...   (from a thread of the transport)
//! ```
//!
//! Invariants: what a [`TransportTm`] is asked for, it is asked under the lock of its transfer machine, and
//! it does not block; what it reports it reports without that lock, from a thread of its own, and each
//! buffer's operation ends with exactly one [`Completion`] that is not retained. A transport's own locks are
//! taken under that of a transfer machine, never around it.

mod front;
mod link;
mod names;

use std::fmt;
use std::task::Waker;

use crate::end_point::EndPoint;
use crate::errno::{Errno, Error, Status};
use crate::memory::{Limits, Memory};
use crate::operation::BulkDescriptor;
use crate::queue::BufferId;

pub use front::{QueuedBuffer, TmFront, TmState};
pub(crate) use link::Linked;
pub use link::{Report, TmLink};
pub(crate) use names::NAME_MASK;

/// A kind of network. Programs choose one by its name ([`Registry`](crate::Registry)) or by hand.
pub trait Transport: Send + Sync + 'static {
    /// Its name, such as `lnet` or `mem`.
    fn name(&self) -> &str;

    /// The limits of its buffers: the same at all times.
    fn limits(&self) -> Limits;

    /// Makes what it needs for one more domain. Called under the lock of all domains; that of the domain is
    /// not taken.
    ///
    /// # Errors
    /// Why there can be none.
    fn create_domain(&self) -> Result<Box<dyn TransportDomain>, Error>;
}

/// A transport's part of a domain. All but the end is called under the domain's lock; the last domain handle
/// drops it.
pub trait TransportDomain: Send {
    /// Prepares memory whose shape is within the limits, and returns it, or other memory with the same bytes
    /// that the transport moves with fewer copies.
    ///
    /// # Errors
    /// `EFBIG` where the transport cannot take it all the same; the memory comes back.
    fn register(&mut self, memory: Memory) -> Result<Memory, (Error, Memory)> {
        Ok(memory)
    }

    /// Notes that one buffer of the domain is gone.
    fn deregister(&mut self) {}

    /// Makes what it needs for one more transfer machine.
    ///
    /// # Errors
    /// Why there can be none.
    fn create_tm(&mut self) -> Result<Box<dyn TransportTm>, Error>;
}

/// A transport's part of a transfer machine. All but [`finish`](TransportTm::finish) is called under the lock
/// of the transfer machine, and does not block.
pub trait TransportTm: Send {
    /// Confines its threads to these CPUs, instead of those of an earlier call.
    ///
    /// # Errors
    /// `ENOSYS` where the transport has no threads to confine.
    fn confine(&mut self, cpus: &[usize]) -> Result<(), Error> {
        let _ = cpus;
        Err(Error::new(Errno::NotSupported, "the transport confines no threads to CPUs"))
    }

    /// Begins to work under this address. The outcome is posted from another thread: [`Report::Started`] or
    /// [`Report::Failed`].
    ///
    /// # Errors
    /// The start has failed already.
    fn start(&mut self, link: &TmLink, address: &str) -> Result<(), Error>;

    /// Refuses what is new from now on. The front asks for the end of all buffers behind this, if the stop
    /// aborts. When the transfer machine [is quiet](TmFront::is_quiet), [`Report::Stopped`] follows from
    /// another thread.
    ///
    /// # Errors
    /// Nothing has changed.
    fn stop(&mut self, front: &mut TmFront) -> Result<(), Error>;

    /// Has threads that wait look again: a transfer machine that stops may have become quiet, or its settings
    /// have changed.
    fn wake(&mut self);

    /// The canonical form of an address.
    ///
    /// # Errors
    /// `EINVAL` where it is none.
    fn canonical_address(&self, address: &str) -> Result<String, Error>;

    /// Starts the operation of a buffer that is queued already. Of a passive one, returns the descriptor.
    ///
    /// # Errors
    /// The operation has not begun, and the buffer has its memory.
    fn add(&mut self, front: &mut TmFront, id: BufferId) -> Result<Option<BulkDescriptor>, Error>;

    /// Starts the operation of each of these receive buffers, in their order: a burst may cost less than as
    /// many calls.
    fn add_receives(&mut self, front: &mut TmFront, ids: &[BufferId]) -> Vec<Result<(), Error>> {
        ids.iter().map(|id| self.add(front, *id).map(drop)).collect()
    }

    /// Tries to end the operation of a queued buffer.
    fn del(&mut self, front: &mut TmFront, id: BufferId);

    /// Messages that a receive buffer may be for at most.
    fn messages_max(&self) -> u32 {
        u32::MAX
    }

    /// Leaves the delivery of buffer events to the application from now on.
    ///
    /// # Errors
    /// `ENOSYS` where the transport delivers by itself alone.
    fn deliver_synchronously(&mut self) -> Result<(), Error> {
        Err(Error::new(Errno::NotSupported, "the transport has no synchronous delivery of buffer events"))
    }

    /// Whether there are events to be delivered by the application.
    fn is_pending(&self) -> bool {
        false
    }

    /// The next of them.
    fn next_pending(&mut self, front: &mut TmFront) -> Option<Completion> {
        let _ = front;
        None
    }

    /// Wakes `waker` once, when there are such events or at once if there are some; a former one is
    /// forgotten.
    fn notify(&mut self, waker: Waker) {
        let _ = waker;
    }

    /// Events that may come, and the slots for them, of a transport that has slots.
    fn event_room(&self) -> Option<(usize, usize)> {
        None
    }

    /// Ends its threads. The transfer machine is stopped, has failed or was never started; its lock is not
    /// taken.
    fn finish(self: Box<Self>);
}

/// The outcome of a buffer's operation, or of a part of it.
#[derive(Debug)]
pub struct Completion {
    /// Which buffer.
    pub id: BufferId,
    /// How it ended.
    pub status: Status,
    /// Bytes received, of queues that receive.
    pub length_bytes: u64,
    /// Where they begin.
    pub offset_bytes: u64,
    /// The sender of a message that was received.
    pub end_point: Option<EndPoint>,
    /// Whether the buffer leaves its queue.
    pub outcome: Outcome,
}

/// Whether a buffer leaves its queue with an event.
#[derive(Debug)]
pub enum Outcome {
    /// The buffer leaves. The memory, if the transport has it.
    Last(Option<Memory>),
    /// The buffer stays, for more messages, and this is what can be read of it meanwhile.
    Retained(Box<dyn RetainedPayload>),
}

/// The bytes of a message in a buffer that stays queued: they can be read as long as this lives.
pub trait RetainedPayload: Send + fmt::Debug {
    /// The bytes, in pieces.
    fn pieces(&self) -> Box<dyn Iterator<Item = &[u8]> + '_>;
}

/// No bytes, for transports that have none to show.
impl RetainedPayload for () {
    fn pieces(&self) -> Box<dyn Iterator<Item = &[u8]> + '_> {
        Box::new(std::iter::empty())
    }
}

impl Completion {
    /// The end of an operation, whose memory the front has.
    #[must_use]
    pub fn new(id: BufferId, status: Status, length_bytes: u64) -> Self {
        Self { id, status, length_bytes, offset_bytes: 0, end_point: None, outcome: Outcome::Last(None) }
    }

    /// Adds the memory, where the transport has it.
    #[must_use]
    pub fn memory(mut self, memory: Memory) -> Self {
        self.outcome = Outcome::Last(Some(memory));
        self
    }
}
