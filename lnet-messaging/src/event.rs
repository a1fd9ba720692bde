//! Events of buffers and of transfer machines.

use std::time::Instant;

use crate::buffer::Buffer;
use crate::end_point::EndPoint;
use crate::errno::{Errno, Status};
use crate::memory::part;
use crate::queue::{BufferId, QueueType};
use crate::transport::{RetainedPayload, TmState};

/// An event of a buffer: the end of its operation, or one message of several in a receive buffer.
///
/// An event of a buffer that stays queued ([`BufferEvent::is_last`] is false) lends bytes of that buffer.
/// Over lnet the buffer's last event is told when all such events have been dropped: also the one that a
/// deletion, a deadline or an aborting stop brings, and `STOPPED` behind it. So a program that keeps such an
/// event while it waits for any of those waits for itself. What is needed for longer is copied
/// ([`BufferEvent::payload_bytes`]), and the event dropped.
#[derive(Debug)]
pub struct BufferEvent {
    /// Which use of the buffer.
    pub id: BufferId,
    /// When it was posted.
    pub time: Instant,
    /// How it ended.
    pub status: Status,
    /// Bytes received; 0 of queues that send.
    pub length_bytes: u64,
    /// Where in the buffer they begin.
    pub offset_bytes: u64,
    /// The sender of a message that was received.
    pub end_point: Option<EndPoint>,
    pub(crate) content: Content,
}

#[derive(Debug)]
pub(crate) enum Content {
    /// The buffer, which has left its queue.
    Last(Buffer),
    /// Bytes of a buffer that has not.
    Retained(Box<dyn RetainedPayload>),
}

impl BufferEvent {
    /// The queue.
    #[must_use]
    pub fn queue(&self) -> QueueType {
        self.id.queue
    }

    /// Whether the buffer has left its queue with this event.
    #[must_use]
    pub fn is_last(&self) -> bool {
        matches!(self.content, Content::Last(_))
    }

    /// The buffer, if it has.
    #[must_use]
    pub fn buffer(&self) -> Option<&Buffer> {
        match &self.content {
            Content::Last(buffer) => Some(buffer),
            Content::Retained(_) => None,
        }
    }

    /// The buffer, if it has left its queue: to be read, added again, or dropped.
    #[must_use]
    pub fn into_buffer(self) -> Option<Buffer> {
        match self.content {
            Content::Last(buffer) => Some(buffer),
            Content::Retained(_) => None,
        }
    }

    /// The bytes that were received, in pieces. None of an operation that has failed.
    #[must_use]
    pub fn payload(&self) -> Box<dyn Iterator<Item = &[u8]> + '_> {
        match &self.content {
            _ if self.status.is_err() => Box::new(std::iter::empty()),
            Content::Last(buffer) => {
                let end = self.offset_bytes.saturating_add(self.length_bytes);
                Box::new(part(buffer.memory().segments(), self.offset_bytes, end))
            }
            Content::Retained(payload) => payload.pieces(),
        }
    }

    /// The bytes that were received, in one piece.
    #[must_use]
    pub fn payload_bytes(&self) -> Vec<u8> {
        self.payload().flatten().copied().collect()
    }
}

/// An event of a transfer machine.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TmEvent {
    /// Trouble that concerns no buffer: `ENOBUFS` where messages were lost for want of receive buffers.
    Error(Errno),
    /// A change of its state.
    StateChange {
        /// Which one.
        state: TmState,
        /// Why it failed, or success.
        status: Status,
        /// Its own end point, if it has started.
        end_point: Option<EndPoint>,
    },
    /// How it is doing, for people: what [`TransferMachine::diagnose`](crate::TransferMachine::diagnose) has
    /// asked for, and nothing else brings.
    Diagnostic(String),
}
