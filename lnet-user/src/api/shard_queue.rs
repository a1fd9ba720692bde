//! The shard's side of one event queue: it passes events on to the application's end, and outcomes to
//! futures.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use lnet_core::event::{Event, EventKind};
use lnet_core::handle::{EqHandle, MdHandle};
use lnet_core::lnd::Status;
use tokio::sync::oneshot;

use super::calls::Signals;
use super::error::LnetError;
use super::queue::{Payload, QueueEnd, QueuedEvent, SharedLease};
use crate::runtime::{Delivery, Worker};

/// Last events whose buffers are not at home yet, with the slots of their queues.
pub(super) type LastEvents = HashMap<MdHandle, (u32, Event)>;

/// An event queue of the application on one shard.
pub(super) struct ShardQueue {
    /// What the application calls it.
    pub(super) name: EqHandle,
    pub(super) handle: EqHandle,
    pub(super) end: QueueEnd,
    /// Descriptors whose last event is still to come.
    pub(super) live: HashSet<MdHandle>,
    /// Requests whose outcome a future waits for.
    pub(super) awaited: HashMap<MdHandle, Awaited>,
    /// Last events whose buffers are not at home yet.
    pub(super) last_event_count: usize,
    /// Events that may wait for room in the application's end, so that those behind them reach a future.
    pub(super) slots: u32,
    /// Whether the next turn looks at it.
    pub(super) is_listed: bool,
    pub(super) closing: bool,
}

/// Where the outcome of a request goes.
pub(super) type Sender = oneshot::Sender<Result<QueuedEvent, LnetError>>;

/// A request, or an entry for one PUT, whose outcome a future waits for.
pub(super) struct Awaited {
    sender: Sender,
    /// The event that is its outcome.
    kind: EventKind,
    /// The events so far, of which none was passed on: the SEND, or the outcome that came before it.
    events: [Option<Event>; 2],
}

impl Awaited {
    pub(super) fn new(sender: Sender, kind: EventKind) -> Self {
        Self { sender, kind, events: [None; 2] }
    }

    /// Takes note of an event; the outcome, if that is known now.
    fn take(&mut self, event: &Event) -> Option<Event> {
        if let Some(free) = self.events.iter_mut().find(|event| event.is_none()) {
            *free = Some(*event);
        }
        let has = |kind| self.events.iter().flatten().find(|event| event.kind() == kind);
        match has(self.kind) {
            Some(answer) if has(EventKind::Send).is_some() || event.unlinked() => Some(*answer),
            // Nothing else will come.
            None if event.unlinked() || event.status() != Status::Ok => Some(*event),
            _ => None,
        }
    }
}

impl ShardQueue {
    /// Passes events on, as far as there is room.
    pub(super) fn turn(&mut self, worker: &mut Worker, signals: &Arc<Signals>, last_events: &mut LastEvents) {
        if self.end.is_abandoned() && !self.closing {
            self.closing = true;
            for md in &self.live {
                // Descriptors that are on their way out already need no unlink.
                let _ = worker.unlink(*md);
            }
        }
        loop {
            self.end.flush();
            let mut is_empty = false;
            while !is_empty && (self.closing || self.end.has_room() || self.is_waited_for()) {
                match worker.poll_event(self.handle) {
                    Some(delivery) => self.pass_on(worker, delivery, signals, last_events),
                    None => is_empty = true,
                }
            }
            if is_empty && self.end.late_count() == 0 {
                break;
            }
            // The consumer marks the queue from now on. What it has taken before is seen here.
            self.end.await_room();
            if self.end.is_full() {
                break;
            }
        }
        self.end.tell();
    }

    /// Whether a future waits for what may be behind events that have no room. There are as many of these as
    /// descriptors have reserved, since the application, which gives new entries, may be the one that waits.
    fn is_waited_for(&self) -> bool {
        !self.awaited.is_empty() && self.end.late_count() < self.slots as usize
    }

    /// Passes an event on, unless a future has it, or its buffer is not at home yet.
    fn pass_on(
        &mut self,
        worker: &mut Worker,
        mut delivery: Delivery,
        signals: &Arc<Signals>,
        last_events: &mut LastEvents,
    ) {
        let event = delivery.event;
        if !self.awaited.is_empty() && self.pass_to_future(&mut delivery) {
            return;
        }
        let payload = if event.unlinked() {
            self.live.remove(&event.md());
            let Some(buffer) = delivery.buffer.take() else {
                self.last_event_count += 1;
                last_events.insert(event.md(), (self.handle.0.slot(), event));
                return;
            };
            Payload::Buffer(buffer)
        } else {
            let has_payload = event.kind() == EventKind::Put && event.status() == Status::Ok;
            let lease = if has_payload { worker.read_lease(&delivery).ok() } else { None };
            lease.map_or(Payload::None, |lease| {
                Payload::Lease(SharedLease { lease: Some(lease), signals: Arc::clone(signals) })
            })
        };
        self.end.push(QueuedEvent { event, payload });
    }

    /// Passes an event to the future that waits for it; whether there is one.
    fn pass_to_future(&mut self, delivery: &mut Delivery) -> bool {
        let event = delivery.event;
        let Entry::Occupied(mut awaited) = self.awaited.entry(event.md()) else { return false };
        // An event whose buffer is not at home yet takes the usual way.
        if awaited.get().sender.is_closed() || event.unlinked() && delivery.buffer.is_none() {
            for event in awaited.remove().events.into_iter().flatten() {
                self.end.push(QueuedEvent { event, payload: Payload::None });
            }
            return false;
        }
        let Some(outcome) = awaited.get_mut().take(&event) else { return true };
        let payload = delivery.buffer.take().map_or(Payload::None, Payload::Buffer);
        let Awaited { sender, events, .. } = awaited.remove();
        let Err(unsent) = sender.send(Ok(QueuedEvent { event: outcome, payload })) else {
            if event.unlinked() {
                self.live.remove(&event.md());
            }
            return true;
        };
        // The future was dropped at this moment.
        if let Ok(QueuedEvent { payload: Payload::Buffer(buffer), .. }) = unsent {
            delivery.buffer = Some(buffer);
        }
        for earlier in events.into_iter().flatten().filter(|earlier| *earlier != event) {
            self.end.push(QueuedEvent { event: earlier, payload: Payload::None });
        }
        false
    }

    /// Whether nothing more comes for a consumer that is gone.
    pub(super) fn is_ending(&self) -> bool {
        self.closing && self.live.is_empty() && self.last_event_count == 0
    }
}
