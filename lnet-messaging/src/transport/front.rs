//! What the front knows of a transfer machine, and shows transports under its lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::end_point::{EndPoint, EndPoints};
use crate::errno::{Errno, Error};
use crate::queue::{BufferId, QueueType, QueuedBuffer};
use crate::stats::QueueStats;
use crate::tm::Attachment;
use crate::tm::TmState;

/// A transfer machine under its lock, as its transport and those who wait see it.
pub struct TmFront {
    state: TmState,
    pub(crate) callback_count: u32,
    pub(crate) own: Option<EndPoint>,
    /// In the order in which they were added.
    pub(crate) queues: [BTreeMap<u64, QueuedBuffer>; 6],
    pub(crate) stats: [QueueStats; 6],
    /// Those of queued buffers that have not passed.
    pub(crate) deadlines: BTreeSet<(Instant, BufferId)>,
    next_number: u64,
    pub(crate) delivers_synchronously: bool,
    /// A thread delivers events synchronously at the moment.
    pub(crate) is_delivering: bool,
    pub(crate) attachment: Option<Attachment>,
    pub(crate) receive_queue_length: usize,
    pub(crate) colour: Option<usize>,
    end_points: Arc<EndPoints>,
}

impl std::fmt::Debug for TmFront {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TmFront").field(&self.state).finish()
    }
}

/// Receive buffers that a transfer machine with a pool always asks for.
pub(crate) const RECEIVE_QUEUE_LENGTH_MIN: usize = 2;

/// Numbers that one life of a transfer machine may give to uses of buffers: each life has its own.
const NUMBERS_PER_LIFE: u64 = 1 << 40;
/// Lives of transfer machines so far.
static LIVES: AtomicU64 = AtomicU64::new(0);

impl TmFront {
    pub(crate) fn new(end_points: Arc<EndPoints>) -> Self {
        Self {
            state: TmState::Undefined,
            callback_count: 0,
            own: None,
            queues: Default::default(),
            stats: Default::default(),
            deadlines: BTreeSet::new(),
            next_number: LIVES.fetch_add(1, Ordering::Relaxed).wrapping_mul(NUMBERS_PER_LIFE),
            delivers_synchronously: false,
            is_delivering: false,
            attachment: None,
            receive_queue_length: RECEIVE_QUEUE_LENGTH_MIN,
            colour: None,
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

    /// Takes a buffer out of its queue.
    pub(crate) fn remove(&mut self, id: BufferId) -> Option<QueuedBuffer> {
        let removed = self.queues[id.queue as usize].remove(&id.number)?;
        if let Some(deadline) = removed.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        Some(removed)
    }

    pub(crate) fn new_id(&mut self, queue: QueueType) -> BufferId {
        self.next_number += 1;
        BufferId { queue, number: self.next_number }
    }
}
