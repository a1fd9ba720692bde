//! Events are posted: bookkeeping under the lock, callbacks without it.
//!
//! Each event of a buffer is counted, its buffer leaves the queue if it is the last one, receive buffers are
//! made up for, and only then the callback runs. End points that the event or the operation has are dropped
//! behind it. A callback that panics fails the transfer machine: its handler is told, what is queued ends,
//! and it can be finished.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use super::{Callback, LockedTm, Owned, StopMode, TmShared, TransferMachine};
use crate::errno::{Errno, Error};
use crate::event::{BufferEvent, Content, TmEvent};
use crate::operation::Operation;
use crate::queue::QueueType;
use crate::transport::{Completion, Linked, Outcome, Report, TmFront, TmState, TransportTm};

thread_local! {
    /// The transfer machine whose callback runs on this thread.
    static CALLING: Cell<*const TmShared> = const { Cell::new(std::ptr::null()) };
}

/// A callback that runs: it counts until it is dropped.
struct Running<'a> {
    tm: &'a TmShared,
    former: *const TmShared,
}

impl<'a> Running<'a> {
    /// The counter has been raised.
    fn new(tm: &'a TmShared) -> Self {
        Self { tm, former: CALLING.replace(tm) }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        CALLING.set(self.former);
        self.tm.end_callback();
    }
}

/// An event of a buffer whose bookkeeping is done.
struct Delivery {
    event: BufferEvent,
    callback: Option<Callback>,
    /// Its end points are dropped behind the callback.
    operation: Option<Operation>,
    wants_provision: bool,
}

impl TmShared {
    pub(super) fn is_calling(&self) -> bool {
        std::ptr::eq(CALLING.get(), self)
    }

    pub(super) fn end_callback(&self) {
        let mut locked = self.lock();
        locked.front.callback_count -= 1;
        if locked.front.callback_count != 0 {
            return;
        }
        if locked.waiting > 0 {
            self.wake();
        }
        if matches!(locked.front.state(), TmState::Stopping | TmState::Failed)
            && let Ok((_, transport)) = locked.parts()
        {
            transport.wake();
        }
    }

    /// Runs a callback of this transfer machine. One that panics fails it.
    fn call(self: &Arc<Self>, tm: &TransferMachine, callback: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(callback)).is_ok() {
            return;
        }
        tracing::error!("a callback has panicked: its transfer machine fails");
        let mut locked = self.lock();
        let Some(event) = locked.meaning(Report::Failed(Errno::Io)) else { return };
        // A transport that does not stop ends what is queued all the same.
        if locked.stop(StopMode::Abort).is_err() {
            locked.del_all();
        }
        drop(locked);
        // A handler that panics again has nothing more to be told.
        let _ = catch_unwind(AssertUnwindSafe(|| self.handler.tm_event(tm, &event)));
    }

    fn wake(&self) {
        #[cfg(test)]
        self.woken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.channel.notify_all();
    }
}

impl Linked for TmShared {
    fn locked(&self, run: &mut dyn FnMut(&mut TmFront, Option<&mut dyn TransportTm>)) {
        let mut locked = self.lock();
        let LockedTm { front, transport, .. } = &mut *locked;
        match transport {
            Some(transport) => run(front, Some(transport.as_mut())),
            None => run(front, None),
        }
    }

    fn domain_id(&self) -> usize {
        self.domain.id()
    }

    fn post(self: Arc<Self>, completion: Completion) {
        let Some(delivery) = self.lock().complete(completion) else { return };
        let tm = TransferMachine::of(self);
        let running = Running::new(&tm.shared);
        let Delivery { event, callback, operation, wants_provision } = delivery;
        if wants_provision {
            tm.shared.provision();
        }
        let end_point = event.end_point.clone();
        tm.shared.call(&tm, || match callback {
            Some(callback) => callback.call(&tm, event),
            None => tm.shared.handler.buffer_event(&tm, event),
        });
        drop((end_point, operation));
        drop(running);
    }

    /// Tells the transfer machine's handler, if the report means anything now.
    fn report(self: Arc<Self>, report: Report<'_>) {
        let mut locked = self.lock();
        let Some(event) = locked.meaning(report) else { return };
        locked.front.callback_count += 1;
        drop(locked);
        let tm = TransferMachine::of(self);
        let running = Running::new(&tm.shared);
        tm.shared.call(&tm, || tm.shared.handler.tm_event(&tm, &event));
        if matches!(event, TmEvent::StateChange { state: TmState::Started, .. }) {
            tm.shared.provision();
        }
        drop(event);
        drop(running);
    }
}

impl LockedTm {
    fn complete(&mut self, completion: Completion) -> Option<Delivery> {
        let Completion { id, mut status, length_bytes, offset_bytes, end_point, outcome } = completion;
        let now = Instant::now();
        let Some(queued) = self.front.queued(id) else {
            debug_assert!(false, "an event of {id:?}, which is not queued");
            return None;
        };
        if queued.flags.timed_out && status == Err(Errno::Canceled) {
            status = Err(Errno::TimedOut);
        }
        if id.queue == QueueType::Receive && status.is_ok() {
            queued.messages_received += 1;
        }
        let moved_bytes = queued.operation().length_bytes().unwrap_or(length_bytes);
        let (content, callback, operation, in_queue) = match outcome {
            Outcome::Retained(payload) => {
                debug_assert!(status.is_ok(), "a buffer stays queued after a failure: {status:?}");
                let callback = self.owned.get(&id.number)?.callback.clone();
                (Content::Retained(payload), callback, None, None)
            }
            Outcome::Last(memory) => {
                let (operation, Owned { buffer, callback, added_at }) = self.remove(id, memory)?;
                let in_queue = now.saturating_duration_since(added_at);
                (Content::Last(buffer), callback, Some(operation), Some(in_queue))
            }
        };
        let front = &mut self.front;
        let stats = &mut front.stats[id.queue as usize];
        match status {
            Ok(()) => stats.succeed(moved_bytes),
            Err(_) => stats.num_f_events += 1,
        }
        stats.time_in_queue += in_queue.unwrap_or_default();
        front.callback_count += 1;
        let wants_provision = id.queue == QueueType::Receive && in_queue.is_some();
        let event = BufferEvent { id, time: now, status, length_bytes, offset_bytes, end_point, content };
        Some(Delivery { event, callback, operation, wants_provision })
    }

    /// Takes a report. Returns the event that it is, if it means anything in this state.
    fn meaning(&mut self, report: Report<'_>) -> Option<TmEvent> {
        use TmState::{Failed, Started, Starting, Stopped, Stopping};
        let (expected, state, status): (&[TmState], _, _) = match report {
            Report::Trouble(errno) => return Some(TmEvent::Error(errno)),
            Report::Diagnostic(text) => return Some(TmEvent::Diagnostic(text.to_owned())),
            Report::Started(_) => (&[Starting], Started, Ok(())),
            Report::Failed(errno) => (&[Starting, Started, Stopping], Failed, Err(errno)),
            Report::Stopped => (&[Stopping], Stopped, Ok(())),
        };
        if !expected.contains(&self.front.state()) {
            return None;
        }
        self.front.set_state(state);
        let mut end_point = None;
        if let Report::Started(address) = report {
            end_point = Some(self.front.end_point(address));
            self.front.own.clone_from(&end_point);
        }
        Some(TmEvent::StateChange { state, status, end_point })
    }
}

impl TransferMachine {
    /// Whether there are events for [`TransferMachine::deliver_all`].
    ///
    /// # Errors
    /// `EPERM` unless it delivers synchronously, and is started, stops or has failed.
    pub fn is_pending(&self) -> Result<bool, Error> {
        let locked = self.shared.lock();
        locked.expect_synchronous()?;
        Ok(locked.transport()?.is_pending())
    }

    /// Runs the callbacks of all events that are pending, on this thread, in their order. While another
    /// thread does so, or a callback of this one, that call goes on with them and this one returns.
    ///
    /// # Errors
    /// The errors of [`TransferMachine::is_pending`].
    pub fn deliver_all(&self) -> Result<(), Error> {
        let mut locked = self.shared.lock();
        locked.expect_synchronous()?;
        if std::mem::replace(&mut locked.is_delivering, true) {
            return Ok(());
        }
        drop(locked);
        let mut delivering = Delivering { tm: &self.shared, has_ended: false };
        while let Some(completion) = delivering.next() {
            Arc::clone(&self.shared).post(completion);
        }
        Ok(())
    }

    /// Wakes `waker` once, when events are pending, or at once if some are. It takes the place of an earlier
    /// one.
    ///
    /// # Errors
    /// The errors of [`TransferMachine::is_pending`].
    pub fn notify(&self, waker: Waker) -> Result<(), Error> {
        let mut locked = self.shared.lock();
        locked.expect_synchronous()?;
        locked.parts()?.1.notify(waker);
        Ok(())
    }
}

/// A delivery that goes on, until there is nothing more.
struct Delivering<'a> {
    tm: &'a TmShared,
    has_ended: bool,
}

impl Delivering<'_> {
    /// The next pending event. Where there is none, the delivery ends under the same lock: another thread
    /// that brings an event has it delivered here, or delivers it itself.
    fn next(&mut self) -> Option<Completion> {
        let mut locked = self.tm.lock();
        let next = locked.parts().ok().and_then(|(front, transport)| transport.next_pending(front));
        if next.is_none() {
            locked.is_delivering = false;
            self.has_ended = true;
        }
        next
    }
}

impl Drop for Delivering<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.tm.lock().is_delivering = false;
        }
    }
}

impl LockedTm {
    fn expect_synchronous(&self) -> Result<(), Error> {
        let allowed = [TmState::Started, TmState::Stopping, TmState::Failed];
        self.front.expect_state(&allowed, "events are delivered")?;
        if self.front.delivers_synchronously {
            return Ok(());
        }
        Err(Error::new(
            Errno::NotPermitted,
            "the transport delivers events itself: synchronous delivery is expected",
        ))
    }
}
