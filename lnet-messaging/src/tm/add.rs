//! Buffers are added to queues, and their end is asked for.

use std::fmt;
use std::time::Instant;

use super::{Callback, LockedTm, Owned, StopMode, TransferMachine};
use crate::buffer::Buffer;
use crate::domain::Domain;
use crate::errno::{Errno, Error};
use crate::operation::{BulkDescriptor, Operation};
use crate::queue::BufferId;
use crate::transport::{TmFront, TmState};

/// A buffer's addition to a queue.
#[derive(Debug)]
pub struct Addition {
    pub(crate) operation: Operation,
    pub(crate) deadline: Option<Instant>,
    pub(crate) callback: Option<Callback>,
}

impl From<Operation> for Addition {
    fn from(operation: Operation) -> Self {
        Self { operation, deadline: None, callback: None }
    }
}

impl Addition {
    /// Has the operation end with [`Errno::TimedOut`] if it is not over by then: not earlier, and somewhat
    /// later.
    #[must_use]
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Has events of the buffer go to this callback, instead of the transfer machine's
    /// [`Handler`](crate::Handler).
    #[must_use]
    pub fn callback(mut self, callback: &Callback) -> Self {
        self.callback = Some(callback.clone());
        self
    }
}

/// A buffer that is queued.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Added {
    /// Names this use of it.
    pub id: BufferId,
    /// The descriptor of a passive buffer, for the other end. It is usable already.
    pub descriptor: Option<BulkDescriptor>,
}

/// A refusal that hands the buffer back.
#[derive(Debug)]
pub struct NotAdded {
    /// Why.
    pub error: Error,
    /// The buffer.
    pub buffer: Buffer,
}

impl fmt::Display for NotAdded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for NotAdded {}

impl TransferMachine {
    /// Adds a buffer to the queue of its operation. Its bytes are the layer's until the event that brings it
    /// back, which is on its way already where this returns. That event never comes on this thread, but for
    /// [`TransferMachine::deliver_all`].
    ///
    /// # Errors
    /// [`NotAdded`] with the buffer, and nothing has changed: `EPERM` unless started; `EINVAL` for an
    /// argument that is wrong, or a buffer or end point of another owner; `ETIME` where the deadline has
    /// passed; what the transport says else.
    pub fn add(&self, buffer: Buffer, addition: impl Into<Addition>) -> Result<Added, NotAdded> {
        self.shared.lock().add(&self.shared.domain, buffer, addition.into(), Instant::now())
    }

    /// Asks for the end of a queued buffer. `false` if it is not queued any more, which is no error. What
    /// came of it says the event: `ECANCELED`, or the result, where that was there before.
    pub fn del(&self, id: BufferId) -> bool {
        self.shared.lock().del(id)
    }
}

impl LockedTm {
    pub(super) fn add(
        &mut self,
        domain: &Domain,
        buffer: Buffer,
        addition: Addition,
        now: Instant,
    ) -> Result<Added, NotAdded> {
        if let Err(error) = check(&self.front, domain, &buffer, &addition, now) {
            return Err(NotAdded { error, buffer });
        }
        let id = self.enqueue(buffer, addition, now);
        let added = self.parts().and_then(|(front, transport)| transport.add(front, id));
        match added {
            Ok(descriptor) => {
                self.front.stats[id.queue as usize].num_adds += 1;
                Ok(Added { id, descriptor })
            }
            Err(error) => Err(self.take_back(id, error)),
        }
    }

    /// Adds these buffers for receiving, as [`LockedTm::add`] does each, and returns those that are refused.
    pub(super) fn add_receives(
        &mut self,
        domain: &Domain,
        buffers: Vec<Buffer>,
        addition: impl Fn() -> Addition,
        now: Instant,
    ) -> Vec<NotAdded> {
        let (mut ids, mut refused) = (Vec::with_capacity(buffers.len()), Vec::new());
        for buffer in buffers {
            let addition = addition();
            match check(&self.front, domain, &buffer, &addition, now) {
                Ok(()) => ids.push(self.enqueue(buffer, addition, now)),
                Err(error) => refused.push(NotAdded { error, buffer }),
            }
        }
        let added = match self.parts() {
            Ok((front, transport)) => transport.add_receives(front, &ids),
            Err(error) => vec![Err(error); ids.len()],
        };
        for (id, added) in ids.into_iter().zip(added) {
            match added {
                Ok(()) => self.front.stats[id.queue as usize].num_adds += 1,
                Err(error) => refused.push(self.take_back(id, error)),
            }
        }
        refused
    }

    /// Puts a buffer into its queue; its operation has not begun.
    fn enqueue(&mut self, mut buffer: Buffer, addition: Addition, added_at: Instant) -> BufferId {
        let Addition { operation, deadline, callback } = addition;
        let id = self.front.insert(buffer.take_memory(), operation, deadline);
        self.owned.insert(id.number, Owned { buffer, callback, added_at });
        id
    }

    /// Takes a buffer out of its queue whose operation has not begun.
    fn take_back(&mut self, id: BufferId, error: Error) -> NotAdded {
        // The buffer is there: an addition that is refused posts nothing.
        let (_, Owned { buffer, .. }) =
            self.remove(id, None).expect("a buffer stays queued while it is added");
        NotAdded { error, buffer }
    }

    pub(super) fn del(&mut self, id: BufferId) -> bool {
        if self.front.queued(id).is_none() {
            return false;
        }
        if let Ok((front, transport)) = self.parts() {
            transport.del(front, id);
        }
        self.front.stats[id.queue as usize].num_dels += 1;
        true
    }

    pub(super) fn stop(&mut self, mode: StopMode) -> Result<(), Error> {
        let (front, transport) = self.parts()?;
        transport.stop(front)?;
        if mode == StopMode::Abort {
            self.del_all();
        }
        if let Ok((_, transport)) = self.parts() {
            transport.wake();
        }
        Ok(())
    }

    /// Has each buffer that is queued end.
    pub(super) fn del_all(&mut self) {
        for id in self.front.ids() {
            self.del(id);
        }
    }
}

/// Checks whether a buffer may be added like this.
fn check(
    front: &TmFront,
    domain: &Domain,
    buffer: &Buffer,
    addition: &Addition,
    now: Instant,
) -> Result<(), Error> {
    front.expect_state(&[TmState::Started], "a buffer is added")?;
    if buffer.domain() != domain {
        return Err(Error::invalid("a buffer of another domain: one of the transfer machine's is expected"));
    }
    let size_bytes = buffer.size_bytes();
    if let Operation::Receive { min_receive_bytes, max_messages } = addition.operation
        && (!(1..=size_bytes).contains(&min_receive_bytes) || max_messages == 0)
    {
        return Err(Error::invalid(format!(
            "a receive buffer for {max_messages} messages of {min_receive_bytes} bytes: one at least, of 1 to \
             {size_bytes} bytes, is expected"
        )));
    }
    let length_bytes = addition.operation.length_bytes();
    if let Some(length) = length_bytes.filter(|length| !(1..=size_bytes).contains(length)) {
        return Err(Error::invalid(format!("{length} bytes of data: 1 to {size_bytes} are expected")));
    }
    if let Some(end_point) = addition.operation.end_point().filter(|end_point| !front.is_mine(end_point)) {
        return Err(Error::invalid(format!(
            "{end_point:?} of another transfer machine: one of this transfer machine is expected"
        )));
    }
    match addition.deadline {
        Some(deadline) if deadline <= now => {
            let late = now - deadline;
            Err(Error::new(Errno::Expired, format!("a deadline {late:?} ago: one to come is expected")))
        }
        _ => Ok(()),
    }
}
