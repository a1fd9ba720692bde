//! The front of a transfer machine, which its transport sees under its lock: state, queues, deadlines, end
//! points.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::end_point::{EndPoint, EndPoints};
use crate::errno::{Errno, Error};
use crate::memory::Memory;
use crate::operation::Operation;
use crate::queue::{BufferId, Flags, QueueType};
use crate::stats::QueueStats;

use super::names::Names;

/// How far a transfer machine is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TmState {
    /// Before it is initialised, and after it was finished.
    Undefined,
    /// Ready to be set up and started.
    Initialized,
    /// Its start was asked for.
    Starting,
    /// Works.
    Started,
    /// Its end was asked for.
    Stopping,
    /// Quiet.
    Stopped,
    /// Broken down, or not started.
    Failed,
}

/// A buffer in a queue.
#[derive(Debug)]
pub struct QueuedBuffer {
    pub(crate) memory: Memory,
    size_bytes: u64,
    operation: Operation,
    /// How far it is.
    pub flags: Flags,
    deadline: Option<Instant>,
    /// Name in a bulk descriptor, if the buffer has one.
    name: Option<u64>,
    pub(crate) messages_received: u32,
    /// Messages that a transport has put there, told of or not.
    pub messages_taken: u32,
    /// Bytes that a transport has received: of messages, or of bulk data that comes in parts.
    pub received_bytes: u64,
}

impl QueuedBuffer {
    /// The operation that it was queued for.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// The operation, for the end of the buffer's time in the queue, and the memory if it is here.
    pub(crate) fn into_parts(self) -> (Operation, Memory) {
        (self.operation, self.memory)
    }

    /// When it is to end; `None`: never.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Number of messages that it has received.
    #[must_use]
    pub fn messages_received(&self) -> u32 {
        self.messages_received
    }

    /// Bytes of the whole buffer.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The memory, unless it was taken.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The memory, to write.
    pub fn memory_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Takes the memory, which comes back with the event that ends the operation, or before that
    /// ([`QueuedBuffer::restore_memory`]).
    #[must_use]
    pub fn take_memory(&mut self) -> Memory {
        std::mem::take(&mut self.memory)
    }

    /// Gives the memory back before that event.
    pub fn restore_memory(&mut self, memory: Memory) {
        self.memory = memory;
    }

    /// Bytes that nothing has been received in.
    #[must_use]
    pub fn room_bytes(&self) -> u64 {
        self.size_bytes - self.received_bytes
    }

    /// Whether a message or a bulk operation may take it: no other has, and its end is not near.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.flags == Flags::default()
    }
}

/// A transfer machine under its lock, as its transport and those who wait see it.
pub struct TmFront {
    state: TmState,
    pub(crate) callback_count: u32,
    pub(crate) own: Option<EndPoint>,
    /// Buffers of each queue, in the order in which they were added.
    queues: [BTreeMap<u64, QueuedBuffer>; 6],
    pub(crate) stats: [QueueStats; 6],
    /// Deadlines of queued buffers that have not passed.
    deadlines: BTreeSet<(Instant, BufferId)>,
    next_number: u64,
    names: Names,
    pub(crate) delivers_synchronously: bool,
    /// Diagnostics that the program has asked for, and was not told.
    pub(crate) diagnostics: Vec<String>,
    end_points: Arc<EndPoints>,
}

impl fmt::Debug for TmFront {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TmFront").field(&self.state).finish()
    }
}

/// Numbers that one life of a transfer machine may give to uses of buffers: each life has its own.
const NUMBERS_PER_LIFE: u64 = 1 << 40;
/// Lives of transfer machines so far.
static LIVES: AtomicU64 = AtomicU64::new(0);

impl TmFront {
    pub(crate) fn new(end_points: Arc<EndPoints>, state: TmState) -> Self {
        Self {
            state,
            callback_count: 0,
            own: None,
            queues: Default::default(),
            stats: Default::default(),
            deadlines: BTreeSet::new(),
            next_number: LIVES.fetch_add(1, Ordering::Relaxed).wrapping_mul(NUMBERS_PER_LIFE),
            names: Names::default(),
            delivers_synchronously: false,
            diagnostics: Vec::new(),
            end_points,
        }
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> TmState {
        self.state
    }

    pub(crate) fn set_state(&mut self, state: TmState) {
        self.state = state;
    }

    /// Whether the state is one of `allowed`.
    pub(crate) fn expect_state(&self, allowed: &[TmState], what: &str) -> Result<(), Error> {
        if allowed.contains(&self.state) {
            return Ok(());
        }
        let found = format!("{what} while {:?}: one of {allowed:?} is expected", self.state);
        Err(Error::new(Errno::NotPermitted, found))
    }

    /// Its own end point, while it is started or stops.
    #[must_use]
    pub fn own_end_point(&self) -> Option<&EndPoint> {
        self.own.as_ref()
    }

    /// Number of buffers in a queue.
    #[must_use]
    pub fn queue_length(&self, queue: QueueType) -> usize {
        self.queues[queue as usize].len()
    }

    /// Number of callbacks that run at this moment.
    #[must_use]
    pub fn callback_count(&self) -> u32 {
        self.callback_count
    }

    /// Whether no buffer is queued and no callback runs.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.callback_count == 0 && self.queues.iter().all(BTreeMap::is_empty)
    }

    /// Words for people that the program has asked for
    /// ([`TransferMachine::diagnose`](crate::TransferMachine::diagnose)). A transport that was woken takes
    /// them, and posts each ([`Report::Diagnostic`](super::Report::Diagnostic)).
    #[must_use]
    pub fn take_diagnostics(&mut self) -> Vec<String> {
        std::mem::take(&mut self.diagnostics)
    }

    /// Whether the application delivers buffer events.
    #[must_use]
    pub fn delivers_synchronously(&self) -> bool {
        self.delivers_synchronously
    }

    /// A queued buffer.
    #[must_use]
    pub fn queued(&mut self, id: BufferId) -> Option<&mut QueuedBuffer> {
        self.queues[id.queue as usize].get_mut(&id.number)
    }

    /// The name of a queued passive buffer, for its descriptor: a number that no peer can guess. It is drawn
    /// when it is first asked for, and serves until the buffer leaves its queue.
    ///
    /// # Errors
    /// `EINVAL` where it is not queued or not passive, `EIO` where the kernel gives no random numbers.
    pub fn name(&mut self, id: BufferId) -> Result<u64, Error> {
        let queued = self.queues[id.queue as usize].get_mut(&id.number);
        let Some(queued) = queued.filter(|_| id.queue.is_passive()) else {
            return Err(Error::invalid("a buffer that waits for no peer: a queued passive one is expected"));
        };
        if let Some(name) = queued.name {
            return Ok(name);
        }
        let name = self.names.give(id.number)?;
        queued.name = Some(name);
        Ok(name)
    }

    /// The passive buffer of this name that another transfer machine may use now.
    ///
    /// # Errors
    /// `ENETUNREACH` unless the transfer machine is started, `ENOENT` where no such buffer is usable.
    pub fn passive(&mut self, queue: QueueType, name: u64) -> Result<(BufferId, &mut QueuedBuffer), Errno> {
        if self.state != TmState::Started {
            return Err(Errno::NetworkUnreachable);
        }
        let number = self.names.number_of(name).ok_or(Errno::NotFound)?;
        let id = BufferId { queue, number };
        let queued = self.queued(id).filter(|queued| queued.name == Some(name) && queued.is_usable());
        queued.map(|queued| (id, queued)).ok_or(Errno::NotFound)
    }

    /// The buffers of a queue, in the order in which they were added.
    pub fn queue(&mut self, queue: QueueType) -> impl Iterator<Item = (BufferId, &mut QueuedBuffer)> {
        let buffers = self.queues[queue as usize].iter_mut();
        buffers.map(move |(number, queued)| (BufferId { queue, number: *number }, queued))
    }

    /// All buffers in all queues.
    pub(crate) fn ids(&self) -> Vec<BufferId> {
        let of = |queue: QueueType| {
            self.queues[queue as usize].keys().map(move |number| BufferId { queue, number: *number })
        };
        QueueType::ALL.into_iter().flat_map(of).collect()
    }

    /// When the next deadline of a queued buffer passes.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Counts a message that was lost, or an event that cannot be posted, as a failure of its queue.
    pub fn count_failure(&mut self, queue: QueueType) {
        self.stats[queue as usize].num_f_events += 1;
    }

    /// The end point of an address in canonical form.
    #[must_use]
    pub fn end_point(&self, address: &str) -> EndPoint {
        self.end_points.find_or_create(address)
    }

    /// Whether an end point is this transfer machine's.
    pub(crate) fn is_mine(&self, end_point: &EndPoint) -> bool {
        end_point.belongs_to(&self.end_points)
    }

    /// Puts a buffer into the queue of its operation, which has not begun.
    pub(crate) fn insert(
        &mut self,
        memory: Memory,
        operation: Operation,
        deadline: Option<Instant>,
    ) -> BufferId {
        self.next_number += 1;
        let id = BufferId { queue: operation.queue(), number: self.next_number };
        let queued = QueuedBuffer {
            size_bytes: memory.size_bytes(),
            memory,
            operation,
            flags: Flags::default(),
            deadline,
            name: None,
            messages_received: 0,
            messages_taken: 0,
            received_bytes: 0,
        };
        self.queues[id.queue as usize].insert(id.number, queued);
        self.deadlines.extend(deadline.map(|deadline| (deadline, id)));
        id
    }

    /// Takes a buffer out of its queue.
    pub(crate) fn remove(&mut self, id: BufferId) -> Option<QueuedBuffer> {
        let removed = self.queues[id.queue as usize].remove(&id.number)?;
        if let Some(deadline) = removed.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        if let Some(name) = removed.name {
            self.names.forget(name);
        }
        Some(removed)
    }

    /// Marks the buffers whose deadline has passed as timed out, and returns them. What is being moved ends
    /// by itself.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<BufferId> {
        let mut expired = Vec::new();
        while let Some((_, id)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.deadlines.pop_first();
            if let Some(queued) = self.queued(id).filter(|queued| !queued.flags.in_use) {
                queued.flags.timed_out = true;
                expired.push(id);
            }
        }
        expired
    }
}
