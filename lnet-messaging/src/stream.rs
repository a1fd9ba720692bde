//! The events of a transfer machine as a stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::stream::Stream;
use tokio::sync::mpsc;

use crate::event::{BufferEvent, TmEvent};
use crate::tm::{Handler, TransferMachine};

/// An event of either kind.
#[derive(Debug)]
pub enum Event {
    /// An event of the transfer machine.
    Tm(TmEvent),
    /// An event of a buffer.
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

    /// Waits for the next event on a thread of its own, which no runtime drives; `None` after the last one.
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
        // Without a receiver the buffer is deregistered with its event.
        let _ = self.0.send(Event::Buffer(event));
    }
}
