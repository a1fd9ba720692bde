//! Events of buffers and of transfer machines, what is called with them, and the stream of them.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::stream::Stream;
use tokio::sync::mpsc;

use crate::buffer::{Buffer, part};
use crate::end_point::EndPoint;
use crate::errno::{Errno, Status};
use crate::queue::{BufferId, QueueType};
use crate::tm::{TmState, TransferMachine};

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

/// What became of a buffer's operation, or of one message of several in a receive buffer.
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
    /// It has not.
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

/// What happened to a transfer machine.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TmEvent {
    /// Trouble that concerns no buffer: `ENOBUFS` where messages were lost for want of receive buffers.
    Error(Errno),
    /// It has another state.
    StateChange {
        /// Which one.
        state: TmState,
        /// Why it failed, or success.
        status: Status,
        /// Its own end point, if it has started.
        end_point: Option<EndPoint>,
    },
}

/// What is called with the events of a transfer machine. It runs on a thread of the transport, without any
/// lock of the layer: it may call what it likes, but for what waits for the transfer machine to be quiet.
pub trait Handler: Send + Sync {
    /// Something happened to the transfer machine.
    fn tm_event(&self, tm: &TransferMachine, event: &TmEvent) {
        let _ = (tm, event);
    }

    /// Something happened to a buffer that was added without a callback of its own. By default the buffer is
    /// dropped.
    fn buffer_event(&self, tm: &TransferMachine, event: BufferEvent) {
        let _ = (tm, event);
    }
}

/// An event of either kind.
#[derive(Debug)]
pub enum Event {
    /// Of the transfer machine.
    Tm(TmEvent),
    /// Of a buffer.
    Buffer(BufferEvent),
}

/// The events of a transfer machine, for one task or thread to take: the other way than callbacks. There are
/// no more of them than buffers and messages are queued. It is a [`Stream`] as well:
///
/// ```
/// use futures_util::StreamExt;
/// use lnet_messaging::{Domain, Event, Events, MemTransport, StopMode, TmEvent, TmState, TransferMachine};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let domain = Domain::new(&MemTransport::default().shared())?;
/// let (handler, events) = Events::channel();
/// let tm = TransferMachine::new(&domain, handler)?;
/// tm.start("127.0.0.1:9")?;
/// tm.stop(StopMode::Drain)?;
/// let states = events.filter_map(|event| async move {
///     match event {
///         Event::Tm(TmEvent::StateChange { state, .. }) => Some(state),
///         _ => None,
///     }
/// });
/// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// let last = runtime.block_on(Box::pin(states.filter(|state| std::future::ready(*state == TmState::Stopped))).next());
/// assert_eq!(last, Some(TmState::Stopped));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Events(mpsc::UnboundedReceiver<Event>);

impl Events {
    /// A handler, to make a transfer machine with, and the stream of what it is called with.
    #[must_use]
    pub fn channel() -> (Arc<dyn Handler>, Self) {
        let (sender, events) = mpsc::unbounded_channel();
        (Arc::new(Forward(sender)), Self(events))
    }

    /// The next event; `None` after the last one.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }

    /// The same, on a thread of its own, which no runtime drives.
    pub fn next_blocking(&mut self) -> Option<Event> {
        self.0.blocking_recv()
    }

    /// The next event, if there is one.
    pub fn try_next(&mut self) -> Option<Event> {
        self.0.try_recv().ok()
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.0.poll_recv(context)
    }
}

struct Forward(mpsc::UnboundedSender<Event>);

impl Handler for Forward {
    fn tm_event(&self, _: &TransferMachine, event: &TmEvent) {
        // Without a receiver the event is not asked for.
        let _ = self.0.send(Event::Tm(event.clone()));
    }

    fn buffer_event(&self, _: &TransferMachine, event: BufferEvent) {
        // As above; the buffer is deregistered with it.
        let _ = self.0.send(Event::Buffer(event));
    }
}
