//! Receive queues that are filled from a pool.
//!
//! Invariant: after a pass the queue has as many buffers as it shall have, or the deficit says how many it
//! lacks. The pool's lock is taken before that of the transfer machine, and the pool's handler is called
//! without the latter.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::{Addition, Callback, TmShared, TransferMachine};
use crate::buffer::{LockedPool, Pool, Taker};
use crate::errno::{Errno, Error};
use crate::operation::Operation;
use crate::queue::QueueType;
use crate::transport::TmState;

/// Receive buffers that a transfer machine with a pool always asks for.
const RECEIVE_QUEUE_LENGTH_MIN: usize = 2;
/// Buffers that are added by one call of the transport.
const BURST: usize = 64;

/// A pool that a transfer machine takes receive buffers from, and how they are added.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// The pool.
    pub pool: Pool,
    /// Room that a message is given, in bytes ([`Operation::Receive`]).
    pub min_receive_bytes: u64,
    /// Messages after which a buffer ends.
    pub max_messages: u32,
    /// Called with their events; `None`: the transfer machine's handler is.
    pub callback: Option<Callback>,
}

/// How the receive queue of a transfer machine is filled.
pub(super) struct Provision {
    pub(super) attachment: Option<Attachment>,
    queue_length: usize,
    colour: Option<usize>,
}

impl Default for Provision {
    fn default() -> Self {
        Self { attachment: None, queue_length: RECEIVE_QUEUE_LENGTH_MIN, colour: None }
    }
}

impl TransferMachine {
    /// Has the receive queue filled from a pool as long as the transfer machine is started: with `length`
    /// buffers, and two at least.
    ///
    /// # Errors
    /// `EPERM` unless initialised and not started; `EINVAL` for a pool of another domain, and where no
    /// message would fit; `ENOMEM` for buffers of more messages than the transport takes.
    pub fn attach_pool(&self, attachment: Attachment, length: usize) -> Result<(), Error> {
        let mut locked = self.shared.lock();
        locked.front.expect_state(&[TmState::Initialized], "a pool is attached")?;
        if *attachment.pool.domain() != self.shared.domain {
            return Err(Error::invalid(
                "a pool of another domain: one of the transfer machine's is expected",
            ));
        }
        let Attachment { min_receive_bytes, max_messages, .. } = attachment;
        if min_receive_bytes == 0 || max_messages == 0 {
            return Err(Error::invalid(format!(
                "receive buffers for {max_messages} messages of {min_receive_bytes} bytes: one of each at least is \
                 expected"
            )));
        }
        let messages_max = locked.transport()?.messages_max();
        if max_messages > messages_max {
            let found =
                format!("receive buffers for {max_messages} messages: at most {messages_max} are expected");
            return Err(Error::new(Errno::NoMemory, found));
        }
        let pool = attachment.pool.clone();
        locked.provision.queue_length = length.max(RECEIVE_QUEUE_LENGTH_MIN);
        locked.provision.attachment = Some(attachment);
        drop(locked);
        let taker: Weak<TmShared> = Arc::downgrade(&self.shared);
        pool.lock().add_taker(taker);
        Ok(())
    }

    /// Sets how many buffers the receive queue is to have, two at least; fills it before it returns. No
    /// buffer is taken back from it.
    ///
    /// # Errors
    /// `EPERM` unless initialised, starting or started.
    pub fn set_receive_queue_length(&self, length: usize) -> Result<(), Error> {
        let allowed = [TmState::Initialized, TmState::Starting, TmState::Started];
        let mut locked = self.shared.lock();
        locked.front.expect_state(&allowed, "the receive queue's length is set")?;
        locked.provision.queue_length = length.max(RECEIVE_QUEUE_LENGTH_MIN);
        // Until the pass is over, it is not finished.
        locked.front.callback_count += 1;
        drop(locked);
        self.shared.provision();
        self.shared.end_callback();
        Ok(())
    }

    /// Sets the colour by which buffers are taken from the pool; `None`: any.
    ///
    /// # Errors
    /// `EPERM` unless initialised, starting or started.
    pub fn set_colour(&self, colour: Option<usize>) -> Result<(), Error> {
        let allowed = [TmState::Initialized, TmState::Starting, TmState::Started];
        let mut locked = self.shared.lock();
        locked.front.expect_state(&allowed, "the colour is set")?;
        locked.provision.colour = colour;
        Ok(())
    }

    /// The colour by which buffers are taken from the pool.
    #[must_use]
    pub fn colour(&self) -> Option<usize> {
        self.shared.lock().provision.colour
    }

    /// Receive buffers that the queue lacks, since the pool had none.
    #[must_use]
    pub fn deficit(&self) -> usize {
        self.shared.deficit.load(Ordering::Relaxed)
    }
}

impl TmShared {
    /// Fills the receive queue. The callback counter was raised, and no lock is taken.
    pub(super) fn provision(&self) {
        let Some(pool) = self.lock().provision.attachment.as_ref().map(|attachment| attachment.pool.clone())
        else {
            return;
        };
        self.provision_from(&mut pool.lock());
    }

    fn provision_from(&self, pool: &mut LockedPool<'_>) {
        let mut added_count = 0;
        let mut locked = self.lock();
        let Some(attachment) = locked.provision.attachment.clone() else { return };
        if locked.front.state() != TmState::Started || attachment.pool != *pool.pool() {
            return;
        }
        let queue = QueueType::Receive;
        let colour = locked.provision.colour;
        let mut need = locked.provision.queue_length.saturating_sub(locked.front.queue_length(queue));
        let Attachment { min_receive_bytes, max_messages, ref callback, .. } = attachment;
        let addition = || {
            let operation = Operation::Receive { min_receive_bytes, max_messages };
            Addition { operation, deadline: None, callback: callback.clone() }
        };
        let now = Instant::now();
        while need > 0 {
            let mut buffers = Vec::with_capacity(need.min(BURST));
            while buffers.len() < need.min(BURST) {
                let Some(buffer) = pool.get_silently(colour) else { break };
                buffers.push(buffer);
            }
            let count = buffers.len();
            let refused = locked.add_receives(&self.domain, buffers, addition, now);
            need -= count - refused.len();
            added_count += count - refused.len();
            let is_over = count == 0 || !refused.is_empty();
            for refused in refused {
                tracing::warn!(error = %refused.error, "a receive buffer is not added");
                pool.put_silently(refused.buffer, colour);
            }
            if is_over {
                break;
            }
        }
        let former = self.deficit.swap(need, Ordering::Relaxed);
        locked.front.stats[queue as usize].num_f_events += need.saturating_sub(former) as u64;
        drop(locked);
        // One call for each buffer that is gone and left too few. Those that were refused are back, and have
        // left none.
        for _ in 0..added_count.min(pool.lack()) {
            pool.tell_below_threshold();
        }
    }
}

impl Taker for TmShared {
    /// Locks no transfer machine that lacks nothing.
    fn take_if_short(&self, pool: &mut LockedPool<'_>) {
        if self.deficit.load(Ordering::Relaxed) != 0 {
            self.provision_from(pool);
        }
    }
}
