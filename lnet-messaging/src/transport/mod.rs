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

pub(crate) mod front;

pub use front::TmFront;

use std::task::Waker;

use crate::buffer::{BulkDescriptor, Memory};
use crate::end_point::EndPoint;
use crate::errno::{Errno, Error, Status};
use crate::event::RetainedPayload;
use crate::queue::BufferId;
use crate::tm::TmLink;

/// What a transport takes at most, and what it likes best. Buffers of any alignment are accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of a buffer.
    pub buffer_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Segments of a buffer.
    pub segments: usize,
    /// Bytes of a bulk descriptor.
    pub descriptor_bytes: usize,
    /// Alignment of segments in bytes that costs the transport least. A wish, never a precondition.
    pub preferred_alignment_bytes: usize,
    /// Bytes of a segment that cost the transport least. A wish likewise.
    pub preferred_segment_bytes: u64,
    /// Bytes of a segment of buffers for messages of an RPC layer.
    pub rpc_segment_bytes: u64,
    /// Segments of such a buffer.
    pub rpc_segments: usize,
}

impl Limits {
    /// Bytes of an RPC layer's longest message, where it would like so many: no fewer than a segment has, and
    /// no more than a buffer; 0 likes the most.
    #[must_use]
    pub const fn rpc_message_bytes(&self, wanted_bytes: u64) -> u64 {
        let fits = wanted_bytes >= self.rpc_segment_bytes;
        let bytes = if fits { wanted_bytes } else { self.rpc_segment_bytes };
        if wanted_bytes == 0 || bytes > self.buffer_bytes { self.buffer_bytes } else { bytes }
    }

    /// Such messages that a receive buffer of the most bytes has room for.
    #[must_use]
    pub const fn rpc_messages_per_buffer(&self, wanted_bytes: u64) -> u64 {
        match self.buffer_bytes.checked_div(self.rpc_message_bytes(wanted_bytes)) {
            Some(messages) => messages,
            None => 0,
        }
    }
}

/// A kind of network. Programs choose one by its name ([`Registry`](crate::Registry)) or by hand.
pub trait Transport: Send + Sync + 'static {
    /// Its name, such as `lnet` or `mem`.
    fn name(&self) -> &str;

    /// The same at all times.
    fn limits(&self) -> Limits;

    /// What it needs for one more domain. Called under the lock of all domains; that of the domain is not
    /// taken.
    ///
    /// # Errors
    /// Why there can be none.
    fn create_domain(&self) -> Result<Box<dyn TransportDomain>, Error>;
}

/// A transport's part of a domain. All but the end is called under the domain's lock; the last domain handle
/// drops it.
pub trait TransportDomain: Send {
    /// Prepares memory whose shape is within the limits.
    ///
    /// # Errors
    /// `EFBIG` where the transport cannot take it all the same.
    fn register(&mut self, memory: &Memory) -> Result<(), Error> {
        let _ = memory;
        Ok(())
    }

    /// One buffer of the domain is gone.
    fn deregister(&mut self) {}

    /// Memory that the transport sends and receives with least copies.
    ///
    /// # Errors
    /// As [`Memory::zeroed`].
    fn allocate(&mut self, segments: usize, segment_bytes: usize) -> Result<Memory, Error> {
        Memory::zeroed(segments, segment_bytes)
    }

    /// What it needs for one more transfer machine.
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

    /// Begins to work under this address. The outcome is posted from another thread: [`TmLink::post_started`]
    /// or [`TmLink::post_failed`].
    ///
    /// # Errors
    /// The start has failed already.
    fn start(&mut self, link: &TmLink, address: &str) -> Result<(), Error>;

    /// Refuses what is new from now on. The front asks for the end of all buffers behind this, if the stop
    /// aborts. When the transfer machine [is quiet](TmFront::is_quiet), [`TmLink::post_stopped`] follows from
    /// another thread.
    ///
    /// # Errors
    /// Nothing has changed.
    fn stop(&mut self, front: &mut TmFront) -> Result<(), Error>;

    /// A transfer machine that stops may have become quiet, or its settings have changed: threads that wait
    /// look again.
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

    /// The same for each of these receive buffers, in their order: a burst may cost less than as many calls.
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

    /// Events that may come, and the slots for them.
    #[cfg(test)]
    fn event_room(&self) -> Option<(usize, usize)> {
        None
    }

    /// Has the next passive buffer get this number.
    #[cfg(any(test, feature = "internals"))]
    fn set_match_counter(&mut self, counter: u64) {
        let _ = counter;
    }

    /// Ends its threads. The transfer machine is stopped, has failed or was never started; its lock is not
    /// taken.
    fn finish(self: Box<Self>);
}

/// What came of a buffer's operation, or of a part of it.
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
    /// It does. The memory, if the transport has it.
    Last(Option<Memory>),
    /// It stays, for more messages, and this is what can be read of it meanwhile.
    Retained(Box<dyn RetainedPayload>),
}

impl Completion {
    /// The end of an operation, whose memory the front has.
    #[must_use]
    pub fn new(id: BufferId, status: Status, length_bytes: u64) -> Self {
        Self { id, status, length_bytes, offset_bytes: 0, end_point: None, outcome: Outcome::Last(None) }
    }

    /// The same, with the memory.
    #[must_use]
    pub fn memory(mut self, memory: Memory) -> Self {
        self.outcome = Outcome::Last(Some(memory));
        self
    }
}
