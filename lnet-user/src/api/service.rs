//! What a shard's driver does for the application: it answers calls and passes events on.
//!
//! Invariants: an event that the application has no room for stays in the shard's queue, where its place is
//! reserved. The last event of a descriptor brings its buffer, so it is held back while leases on the
//! buffer are out. A queue that the application has dropped is emptied: its descriptors are unlinked, and it
//! goes with the last of them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use lnet_core::event::{EqError, Event, EventKind};
use lnet_core::handle::{EqHandle, MdHandle, MeHandle};
use lnet_core::lnd::Status;
use lnet_core::md::MdSpec;
use lnet_core::portal::EntrySpec;
use lnet_core::shard::SubmitError;
use tokio::sync::{Notify, oneshot};

use super::calls::{CALLS_MAX, Call, Calls, Signals};
use super::error::{LnetError, NotLent};
use super::lend::Outgoing;
use super::queue::{Payload, QueueEnd, QueuedEvent, Refusal, SharedLease};
use super::request::{Answer, Message};
use crate::memory::Buffer;
use crate::runtime::{Delivery, Refused, Worker};

/// Calls that are answered in one turn.
const CALL_BUDGET: u32 = 64;

/// What a shard's driver has for the application.
pub(super) struct Service {
    calls: Calls,
    queues: Queues,
    /// Wake-ups before the last turn.
    wake_count: usize,
    /// Learns of failures that the shard has noted.
    failures: Arc<Notify>,
    /// Whether it knows of those that were not polled.
    has_told_failures: bool,
}

impl Service {
    pub(super) fn new(calls: Calls, signals: Arc<Signals>, failures: Arc<Notify>) -> Self {
        let queues = Queues { queues: Vec::new(), returned_count: 0, is_blocked: false, signals };
        Self { calls, queues, wake_count: 0, failures, has_told_failures: false }
    }

    /// One turn, if there is anything to do.
    pub(super) fn turn(&mut self, worker: &mut Worker) {
        // What comes from now on counts as another wake-up.
        let signals = &self.queues.signals;
        let (wake_count, has_calls) = (signals.wake_count(), signals.has_calls());
        let is_woken = wake_count != self.wake_count || has_calls;
        if is_woken || self.queues.is_blocked || worker.waiting_events() != 0 {
            self.wake_count = wake_count;
            self.answer(worker, CALL_BUDGET);
            self.queues.turn(worker);
        }
        let has_failures = worker.has_failures();
        if has_failures && !self.has_told_failures {
            self.failures.notify_one();
        }
        self.has_told_failures = has_failures;
    }

    /// Runs something behind the calls that wait.
    pub(super) fn run<R>(
        &mut self,
        run: impl FnOnce(&mut Worker, &mut Queues) -> R,
        worker: &mut Worker,
    ) -> R {
        self.answer(worker, CALLS_MAX as u32);
        run(worker, &mut self.queues)
    }

    fn answer(&mut self, worker: &mut Worker, most: u32) {
        for _ in 0..most {
            match self.calls.pop() {
                Some(call) => self.queues.answer(call, worker),
                None => break,
            }
        }
    }

    #[cfg(test)]
    pub(super) fn queues(&mut self) -> &mut Queues {
        &mut self.queues
    }

    /// Whether there is something to do that caused no wake-up.
    pub(super) fn has_work(&self) -> bool {
        self.queues.signals.has_calls() || self.queues.has_work()
    }
}

/// The event queues of a shard that the application has made.
pub(super) struct Queues {
    queues: Vec<Queue>,
    /// Leases that had been returned in the last turn.
    returned_count: usize,
    /// Whether the application's end of a queue had no room in the last turn.
    is_blocked: bool,
    signals: Arc<Signals>,
}

struct Queue {
    /// What the application calls it.
    name: EqHandle,
    handle: EqHandle,
    end: QueueEnd,
    /// Descriptors whose last event is still to come.
    live: HashSet<MdHandle>,
    /// Requests whose outcome a future waits for.
    awaited: HashMap<MdHandle, Awaited>,
    /// Last events whose buffers are not at home yet.
    last_events: Vec<Event>,
    /// Events that may wait for room in the application's end, so that those behind them reach a future.
    slots: u32,
    /// Whether the application's end had no room in the last turn.
    blocked: bool,
    closing: bool,
}

/// Where the outcome of a request goes.
pub(super) type Sender = oneshot::Sender<Result<QueuedEvent, LnetError>>;

/// A request, or an entry for one PUT, whose outcome a future waits for.
struct Awaited {
    sender: Sender,
    /// The event that is its outcome.
    kind: EventKind,
    /// The events so far, of which none was passed on: the SEND, or the outcome that came before it.
    events: [Option<Event>; 2],
}

impl Awaited {
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

impl Queues {
    pub(super) fn answer(&mut self, call: Call, worker: &mut Worker) {
        match call {
            Call::Request(message, answer) => self.request(&message, answer, worker),
            // Whatever is gone already needs no unlink.
            Call::Unlink(md) => drop(worker.unlink(md)),
            Call::UnlinkEntry(entry, md) => {
                if worker.unlink_entry(entry).is_err() {
                    let _ = worker.unlink(md);
                }
            }
            Call::Run(run) => run(worker, self),
        }
    }

    /// Starts a request, and says how that went.
    fn request(&mut self, message: &Message, answer: Answer, worker: &mut Worker) {
        let md = message.md();
        match (answer, self.start(message, worker)) {
            (Answer::Events(_), Ok(())) => {}
            (Answer::Events(slot), Err(error)) => {
                let event = slot.event(message);
                self.refuse(slot.queue(), event, Refusal { error, buffer: None, slot });
            }
            (Answer::Outcome(sender), Ok(())) => self.await_outcome(md, message.answer(), sender),
            // The future may be gone.
            (Answer::Outcome(sender), Err(error)) => drop(sender.send(Err(error))),
        }
    }

    /// Tells by an event queue what was refused; one that is gone has no consumer that could be told.
    pub(super) fn refuse(&mut self, queue: Option<EqHandle>, event: Event, refusal: Refusal) {
        let queue = self.queues.iter_mut().find(|known| Some(known.name) == queue);
        if let Some(queue) = queue.filter(|queue| !queue.closing) {
            queue.end.push(QueuedEvent { event, payload: Payload::Refusal(Box::new(refusal)) });
            // The consumer is told by the next turn, which is of another thread where this is not within one.
            self.is_blocked = true;
        }
    }

    /// Makes a descriptor and starts a request with it, whose outcome goes to a future.
    pub(super) fn send(
        &mut self,
        worker: &mut Worker,
        md: &MdSpec,
        buffer: Buffer,
        message: impl FnOnce(MdHandle) -> Message,
        sender: Sender,
    ) -> Result<MdHandle, LnetError> {
        let handle = self.bind(worker, md, buffer).map_err(|refused| refused.error)?;
        let message = message(handle);
        match self.start(&message, worker) {
            Ok(()) => {
                self.await_outcome(handle, message.answer(), sender);
                Ok(handle)
            }
            Err(error) => {
                // It is there, so that this succeeds.
                let _ = worker.unlink(handle);
                Err(error)
            }
        }
    }

    /// Makes a descriptor and starts a request with it.
    pub(super) fn start_outgoing(
        &mut self,
        worker: &mut Worker,
        outgoing: Outgoing,
    ) -> Result<MdHandle, NotLent> {
        let Outgoing { md, buffer, message } = outgoing;
        let md = self.bind(worker, &md, buffer)?;
        self.start(&message.of(md), worker).map_err(|error| {
            // It is there, so that this succeeds.
            let _ = worker.unlink(md);
            NotLent { error, buffer: None }
        })?;
        Ok(md)
    }

    /// Posts an entry, whose descriptor takes one PUT, which goes to a future.
    pub(super) fn expect(
        &mut self,
        worker: &mut Worker,
        entry: &EntrySpec,
        md: &MdSpec,
        buffer: Buffer,
        sender: Sender,
    ) -> Result<(MeHandle, MdHandle), LnetError> {
        let (entry, md) = self.attach(worker, entry, md, buffer).map_err(|refused| refused.error)?;
        self.await_outcome(md, EventKind::Put, sender);
        Ok((entry, md))
    }

    fn await_outcome(&mut self, md: MdHandle, kind: EventKind, sender: Sender) {
        let queue = self.queues.iter_mut().find(|queue| queue.live.contains(&md));
        queue.map(|queue| queue.awaited.insert(md, Awaited { sender, kind, events: [None; 2] }));
    }

    /// Starts a request.
    pub(super) fn start(&mut self, message: &Message, worker: &mut Worker) -> Result<(), LnetError> {
        if self.queues.iter().any(|queue| queue.awaited.contains_key(&message.md())) {
            return Err(LnetError::Awaited);
        }
        let started = match message {
            Message::Put(put) => worker.put(put),
            Message::Get(get) => worker.get(get),
        };
        Ok(started.map_err(|error| match error {
            // A handle that the application still has is of one that its last event has ended.
            SubmitError::UnknownMd(md) => SubmitError::MdExhausted(md),
            error => error,
        })?)
    }

    /// Makes an event queue whose events go to `end`. The application calls it `name`, or by the handle.
    pub(super) fn create(
        &mut self,
        worker: &mut Worker,
        slots: u32,
        end: QueueEnd,
        name: Option<EqHandle>,
    ) -> Result<EqHandle, EqError> {
        let handle = worker.create_event_queue(slots)?;
        let (live, awaited, last_events) = (HashSet::new(), HashMap::new(), Vec::new());
        let name = name.unwrap_or(handle);
        self.queues.push(Queue {
            name,
            handle,
            end,
            live,
            awaited,
            last_events,
            slots,
            blocked: false,
            closing: false,
        });
        Ok(handle)
    }

    pub(super) fn attach(
        &mut self,
        worker: &mut Worker,
        entry: &EntrySpec,
        md: &MdSpec,
        buffer: Buffer,
    ) -> Result<(MeHandle, MdHandle), Refused> {
        let (entry, handle) = worker.attach(entry, &self.with_queue(md), buffer)?;
        self.register(md, handle);
        Ok((entry, handle))
    }

    pub(super) fn bind(
        &mut self,
        worker: &mut Worker,
        md: &MdSpec,
        buffer: Buffer,
    ) -> Result<MdHandle, Refused> {
        let handle = worker.bind(&self.with_queue(md), buffer)?;
        self.register(md, handle);
        Ok(handle)
    }

    /// The spec with this shard's handle of its event queue.
    fn with_queue(&self, md: &MdSpec) -> MdSpec {
        let queue = self.queues.iter().find(|queue| Some(queue.name) == md.event_queue);
        MdSpec { event_queue: queue.map(|queue| queue.handle).or(md.event_queue), ..*md }
    }

    fn register(&mut self, md: &MdSpec, handle: MdHandle) {
        let queue = self.queues.iter_mut().find(|queue| Some(queue.name) == md.event_queue);
        queue.map(|queue| queue.live.insert(handle));
    }

    fn turn(&mut self, worker: &mut Worker) {
        if self.queues.iter().any(|queue| !queue.last_events.is_empty()) {
            // Counted first: a lease that comes back now is seen here or counted next time.
            self.returned_count = self.signals.returned_count();
            while let Some((md, buffer)) = worker.poll_buffer() {
                self.take_home(md, buffer);
            }
        }
        self.is_blocked = false;
        for queue in &mut self.queues {
            queue.turn(worker, &self.signals);
            self.is_blocked |= queue.blocked;
        }
        self.queues.retain_mut(|queue| !queue.is_over(worker));
    }

    fn take_home(&mut self, md: MdHandle, buffer: Buffer) {
        for queue in &mut self.queues {
            if let Some(index) = queue.last_events.iter().position(|event| event.md() == md) {
                let event = queue.last_events.swap_remove(index);
                queue.end.push(QueuedEvent { event, payload: Payload::Buffer(buffer) });
                return;
            }
        }
    }

    fn has_work(&self) -> bool {
        let is_returned = self.signals.returned_count() != self.returned_count;
        self.queues.iter().any(|queue| {
            queue.blocked && !queue.end.is_full()
                || queue.end.is_abandoned() != queue.closing
                || is_returned && !queue.last_events.is_empty()
        })
    }
}

impl Queue {
    /// Passes events on, as far as there is room.
    fn turn(&mut self, worker: &mut Worker, signals: &Arc<Signals>) {
        if self.end.is_abandoned() && !self.closing {
            self.closing = true;
            for md in &self.live {
                // Those that are on their way out already need no unlink.
                let _ = worker.unlink(*md);
            }
        }
        self.end.flush();
        self.blocked = true;
        while self.closing || self.end.has_room() || self.is_waited_for() {
            let Some(delivery) = worker.poll_event(self.handle) else {
                self.blocked = false;
                break;
            };
            self.pass_on(worker, delivery, signals);
        }
        if self.blocked {
            self.end.await_room();
        }
        self.end.tell();
    }

    /// Whether a future waits for what may be behind events that have no room. There are as many of these as descriptors
    /// have reserved, since the application, which gives new entries, may be the one that waits.
    fn is_waited_for(&self) -> bool {
        !self.awaited.is_empty() && self.end.late_count() < self.slots as usize
    }

    /// Passes an event on, unless a future has it, or its buffer is not at home yet.
    fn pass_on(&mut self, worker: &mut Worker, mut delivery: Delivery, signals: &Arc<Signals>) {
        let event = delivery.event;
        if !self.awaited.is_empty() && self.pass_to_future(&mut delivery) {
            return;
        }
        let payload = if event.unlinked() {
            self.live.remove(&event.md());
            let Some(buffer) = delivery.buffer.take() else { return self.last_events.push(event) };
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
        // One whose buffer is not at home yet takes the usual way.
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

    /// Whether it is gone.
    fn is_over(&self, worker: &mut Worker) -> bool {
        self.closing
            && self.live.is_empty()
            && self.last_events.is_empty()
            && worker.free_event_queue(self.handle).is_ok()
    }
}
