//! Event handlers: code of the program that the thread which drives a shard runs for each event, so that no
//! other thread is woken (LNet `lib-eq.c`: handlers run where the event happens).
//!
//! Invariants: a handler runs behind the shard's lock, as wakers do ([`wakes`](crate::runtime::wakes)): what
//! it calls may wait for the shard, which another thread drives meanwhile ([`Deputy`]). It never runs twice
//! at once, nor within itself. Where it panics it has ended, with its queue; the node goes on.
//!
//! [`Deputy`]: crate::runtime::Deputy

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use lnet_core::handle::EqHandle;

use super::error::LnetError;
use super::queue::{EventQueue, QueuedEvent};
use super::{Lnet, ShardHandle};
use crate::runtime::WaitKind;

/// A handler of events, with their queue. Dropping it unlinks the descriptors of that: no event is handled
/// from then on, but for one that is being handled.
pub struct EventHandler {
    handle: EqHandle,
    handled: Arc<Handled>,
}

/// A queue whose waker handles its events.
#[derive(Default)]
struct Handled {
    /// Wake-ups that have not been dealt with: who raises it from 0 deals with them, all others leave it to
    /// that one.
    looks: AtomicUsize,
    ends: AtomicBool,
    /// Until the end; not there while it is being used. Locked for a moment only.
    state: Mutex<Option<State>>,
}

struct State {
    queue: EventQueue,
    handle_event: Box<dyn FnMut(QueuedEvent) + Send>,
}

impl std::fmt::Debug for EventHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let has_ended = self.handled.ends.load(Ordering::Relaxed);
        f.debug_struct("EventHandler").field("queue", &self.handle.0).field("has_ended", &has_ended).finish()
    }
}

impl Wake for Handled {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

impl Handled {
    fn replace(&self, state: Option<State>) -> Option<State> {
        std::mem::replace(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner), state)
    }

    /// Handles the events that there are, unless that is being done: then who does it looks once more.
    fn look(self: &Arc<Self>) {
        if self.looks.fetch_add(1, Ordering::AcqRel) != 0 {
            return;
        }
        let mut seen = 1;
        loop {
            let state = self.replace(None).and_then(|state| self.drain(state));
            self.replace(state);
            let looks = self.looks.fetch_sub(seen, Ordering::AcqRel);
            if looks == seen {
                return;
            }
            seen = looks - seen;
        }
    }

    /// Handles events until there are none, and has the next one wake this; `None` where there will be none.
    fn drain(self: &Arc<Self>, mut state: State) -> Option<State> {
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        while !self.ends.load(Ordering::Acquire) {
            match state.queue.poll_event(&mut context, WaitKind::Task) {
                Poll::Pending => return Some(state),
                Poll::Ready(Err(_)) => return None,
                Poll::Ready(Ok(event)) => {
                    if catch_unwind(AssertUnwindSafe(|| (state.handle_event)(event))).is_err() {
                        let queue = format_args!("{:#x}", state.queue.handle().0.0).to_string();
                        tracing::error!(queue, "an event handler of the program has panicked, and has ended");
                        return None;
                    }
                }
            }
        }
        None
    }
}

impl EventHandler {
    fn new(queue: EventQueue, handle_event: impl FnMut(QueuedEvent) + Send + 'static) -> Self {
        let handle = queue.handle();
        let state = Mutex::new(Some(State { queue, handle_event: Box::new(handle_event) }));
        let handled = Arc::new(Handled { state, ..Handled::default() });
        // Nothing has happened yet: this has the first event wake it.
        handled.look();
        Self { handle, handled }
    }

    /// Name of its queue, for [`MdSpec::event_queue`](lnet_core::md::MdSpec::event_queue).
    #[must_use]
    pub fn handle(&self) -> EqHandle {
        self.handle
    }
}

impl Drop for EventHandler {
    fn drop(&mut self) {
        self.handled.ends.store(true, Ordering::Release);
        self.handled.look();
    }
}

impl ShardHandle {
    /// Makes an event queue of `slots` places as [`ShardHandle::create_event_queue`] does, whose events the
    /// thread handles that drives the shard: mostly the shard's own, else that of a program which calls, or
    /// waits for, the shard at that moment. The shard stands still for so long: a handler is short.
    ///
    /// # Errors
    /// [`ShardHandle::create_event_queue`] names them.
    pub fn create_event_handler(
        &self,
        slots: u32,
        handle_event: impl FnMut(QueuedEvent) + Send + 'static,
    ) -> Result<EventHandler, LnetError> {
        Ok(EventHandler::new(self.create_event_queue(slots)?, handle_event))
    }
}

impl Lnet {
    /// Makes an event queue of `slots` places on each shard as [`Lnet::create_event_queue`] does, whose
    /// events are handled as [`ShardHandle::create_event_handler`] says, one after the other, by the thread
    /// of one of the shards.
    ///
    /// # Errors
    /// [`Lnet::create_event_queue`] names them.
    pub fn create_event_handler(
        &self,
        slots: u32,
        handle_event: impl FnMut(QueuedEvent) + Send + 'static,
    ) -> Result<EventHandler, LnetError> {
        Ok(EventHandler::new(self.create_event_queue(slots)?, handle_event))
    }
}
