//! What a shard's driver does for the application: it answers calls and passes events on.
//!
//! Invariants: an event that the application has no room for stays in the shard's queue, where its place is
//! reserved. A turn looks at the queues that the shard has events for, that their consumers have marked, and
//! that a call has changed, however many others there are. The last event of a descriptor brings its buffer,
//! so it is held back while leases on the buffer are out. A queue that the application has dropped is
//! emptied: its descriptors are unlinked, and it goes with the last of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use lnet_core::event::{EqError, Event, EventKind};
use lnet_core::handle::{EqHandle, MdHandle, MeHandle};
use lnet_core::md::MdSpec;
use lnet_core::portal::EntrySpec;
use lnet_core::shard::SubmitError;
use lnet_io::mailbox::Mailbox;
use lnet_io::memory::Buffer;

use super::calls::{CALLS_MAX, Command, Signals};
use super::error::{LnetError, NotLent};
use super::lend::OwnedRequest;
use super::news::{News, Told};
use super::queue::{Payload, QueueEnd, QueuedEvent, RefusedRequest};
use super::request::{Answer, PutOrGet};
use super::shard_queue::{Awaited, LastEvents, Sender, ShardQueue};
use crate::runtime::{Refused, Worker};

/// Calls that are answered in one turn.
const CALL_BUDGET: u32 = 64;

/// What a shard's driver has for the application.
pub(super) struct Service {
    calls: Mailbox<Command>,
    queues: Queues,
    /// Wake-ups before the last turn.
    wake_count: usize,
    /// Learns of what the shard has for the node's runner.
    news: Arc<News>,
    /// What it knows of, and has not polled.
    told: Told,
}

impl Service {
    pub(super) fn new(calls: Mailbox<Command>, signals: Arc<Signals>, news: Arc<News>) -> Self {
        let queues = Queues::new(signals);
        Self { calls, queues, wake_count: 0, news, told: Told::default() }
    }

    /// One turn, if there is anything to do.
    pub(super) fn turn(&mut self, worker: &mut Worker) {
        // What comes from now on counts as another wake-up.
        let signals = &self.queues.signals;
        let wake_count = signals.wake_count();
        let is_woken = wake_count != self.wake_count || !self.calls.is_empty();
        if is_woken || !self.queues.looks.is_empty() || worker.waiting_events() != 0 {
            self.wake_count = wake_count;
            self.answer(worker, CALL_BUDGET);
            self.queues.turn(worker);
        }
        self.news.tell(worker, &mut self.told);
    }

    /// Runs something behind the calls that wait.
    pub(super) fn run<R>(
        &mut self,
        run: impl FnOnce(&mut Worker, &mut Queues) -> R,
        worker: &mut Worker,
    ) -> R {
        self.answer(worker, CALLS_MAX as u32);
        self.run_alone(run, worker)
    }

    /// Whether no calls wait, and no queue is to be looked at.
    pub(super) fn is_free(&self) -> bool {
        self.calls.is_empty() && self.queues.looks.is_empty()
    }

    /// Runs something, and no call that waits.
    pub(super) fn run_alone<R>(
        &mut self,
        run: impl FnOnce(&mut Worker, &mut Queues) -> R,
        worker: &mut Worker,
    ) -> R {
        let result = run(worker, &mut self.queues);
        self.news.tell(worker, &mut self.told);
        result
    }

    fn answer(&mut self, worker: &mut Worker, most: u32) {
        for _ in 0..most {
            match self.calls.take() {
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
        !self.calls.is_empty() || self.queues.has_work()
    }
}

/// The event queues of a shard that the application has made.
pub(super) struct Queues {
    /// Queues by the slot of their handle.
    queues: Vec<Option<ShardQueue>>,
    /// Slots, by what the application calls the queues.
    slots: HashMap<EqHandle, u32>,
    /// Slots of the queues that the next turn looks at, each once.
    looks: Vec<u32>,
    /// Last events whose buffers are not at home yet, with the slots of their queues.
    last_events: LastEvents,
    /// Leases that had been returned in the last turn.
    returned_count: usize,
    signals: Arc<Signals>,
    /// Looks at queues, ever.
    #[cfg(test)]
    pub(super) look_count: usize,
}

impl Queues {
    fn new(signals: Arc<Signals>) -> Self {
        Self {
            queues: Vec::new(),
            slots: HashMap::new(),
            looks: Vec::new(),
            last_events: HashMap::new(),
            returned_count: 0,
            signals,
            #[cfg(test)]
            look_count: 0,
        }
    }

    /// The queue that the application calls so; one that is gone has no consumer that could be told anything.
    fn named(&mut self, name: Option<EqHandle>) -> Option<&mut ShardQueue> {
        let slot = *self.slots.get(&name?)?;
        self.queues[slot as usize].as_mut()
    }

    pub(super) fn answer(&mut self, call: Command, worker: &mut Worker) {
        match call {
            Command::Request(message, answer) => self.request(&message, answer, worker),
            // Whatever is gone already needs no unlink.
            Command::Unlink(md) => drop(worker.unlink(md)),
            Command::UnlinkEntry(entry, md) => {
                if worker.unlink_entry(entry).is_err() {
                    let _ = worker.unlink(md);
                }
            }
            Command::Run(run) => run(worker, self),
        }
    }

    /// Starts a request, and says how that went.
    fn request(&mut self, message: &PutOrGet, answer: Answer, worker: &mut Worker) {
        match answer {
            Answer::Events(slot) => {
                if let Err(error) = self.start(message, slot.queue(), worker) {
                    let event = slot.event(message);
                    self.refuse(slot.queue(), event, RefusedRequest { error, buffer: None, slot });
                }
            }
            Answer::Outcome(sender, queue) => match self.start(message, Some(queue), worker) {
                Ok(()) => self.await_outcome(message.md(), Some(queue), message.answer(), sender),
                // The future may be gone.
                Err(error) => drop(sender.send(Err(error))),
            },
        }
    }

    /// Tells by an event queue what was refused.
    pub(super) fn refuse(&mut self, queue: Option<EqHandle>, event: Event, refusal: RefusedRequest) {
        if let Some(queue) = self.named(queue).filter(|queue| !queue.closing) {
            queue.end.push(QueuedEvent { event, payload: Payload::Refusal(Box::new(refusal)) });
            // The consumer is told by the next turn, which is of another thread where this is not within one.
            let slot = queue.handle.0.slot();
            self.look_at(slot);
        }
    }

    /// Has the next turn look at a queue, if it is there.
    fn look_at(&mut self, slot: u32) {
        look_at(&mut self.queues, &mut self.looks, slot);
    }

    /// Makes a descriptor and starts a request with it, whose outcome goes to a future.
    pub(super) fn send(
        &mut self,
        worker: &mut Worker,
        md: &MdSpec,
        buffer: Buffer,
        message: impl FnOnce(MdHandle) -> PutOrGet,
        sender: Sender,
    ) -> Result<MdHandle, LnetError> {
        let handle = self.bind(worker, md, buffer).map_err(|refused| refused.error)?;
        let message = message(handle);
        match self.start(&message, md.event_queue, worker) {
            Ok(()) => {
                self.await_outcome(handle, md.event_queue, message.answer(), sender);
                Ok(handle)
            }
            Err(error) => {
                // The descriptor is there, so that this succeeds.
                let _ = worker.unlink(handle);
                Err(error)
            }
        }
    }

    /// Makes a descriptor and starts a request with it.
    pub(super) fn start_outgoing(
        &mut self,
        worker: &mut Worker,
        outgoing: OwnedRequest,
    ) -> Result<MdHandle, NotLent> {
        let OwnedRequest { md: spec, buffer, message } = outgoing;
        let md = self.bind(worker, &spec, buffer)?;
        self.start(&message.of(md), spec.event_queue, worker).map_err(|error| {
            // The descriptor is there, so that this succeeds.
            let _ = worker.unlink(md);
            NotLent { error, buffer: None }
        })?;
        Ok(md)
    }

    /// Sends what is outgoing; the outcome goes to a future.
    pub(super) fn send_outgoing(&mut self, worker: &mut Worker, outgoing: OwnedRequest, sender: Sender) {
        let (queue, answer) = (outgoing.md.event_queue, outgoing.message.answer());
        match self.start_outgoing(worker, outgoing) {
            Ok(md) => self.await_outcome(md, queue, answer, sender),
            // The future may be gone.
            Err(refused) => drop(sender.send(Err(refused.error))),
        }
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
        let (entry, handle) = self.attach(worker, entry, md, buffer).map_err(|refused| refused.error)?;
        self.await_outcome(handle, md.event_queue, EventKind::Put, sender);
        Ok((entry, handle))
    }

    fn await_outcome(&mut self, md: MdHandle, queue: Option<EqHandle>, kind: EventKind, sender: Sender) {
        let Some(queue) = self.named(queue) else { return };
        queue.awaited.insert(md, Awaited::new(sender, kind));
        // The outcome may be behind events that have no room, and now comes past them.
        let slot = queue.handle.0.slot();
        self.look_at(slot);
    }

    /// Starts a request of a descriptor with this event queue.
    pub(super) fn start(
        &mut self,
        message: &PutOrGet,
        queue: Option<EqHandle>,
        worker: &mut Worker,
    ) -> Result<(), LnetError> {
        if self.named(queue).is_some_and(|queue| queue.awaited.contains_key(&message.md())) {
            return Err(LnetError::Awaited);
        }
        let started = match message {
            PutOrGet::Put(put) => worker.put(put),
            PutOrGet::Get(get) => worker.get(get),
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
        let (live, awaited) = (HashSet::new(), HashMap::new());
        let (name, slot) = (name.unwrap_or(handle), handle.0.slot());
        let queue = ShardQueue {
            name,
            handle,
            end,
            live,
            awaited,
            last_event_count: 0,
            slots,
            is_listed: false,
            closing: false,
        };
        if self.queues.len() <= slot as usize {
            self.queues.resize_with(slot as usize + 1, || None);
        }
        // Room is taken here, and no turn allocates.
        self.looks.reserve(self.queues.len());
        self.queues[slot as usize] = Some(queue);
        self.slots.insert(name, slot);
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
    fn with_queue(&mut self, md: &MdSpec) -> MdSpec {
        let queue = self.named(md.event_queue).map(|queue| queue.handle);
        MdSpec { event_queue: queue.or(md.event_queue), ..*md }
    }

    fn register(&mut self, md: &MdSpec, handle: MdHandle) {
        self.named(md.event_queue).map(|queue| queue.live.insert(handle));
    }

    fn turn(&mut self, worker: &mut Worker) {
        if !self.last_events.is_empty() {
            // Counted first: a lease that comes back now is seen here or counted next time.
            self.returned_count = self.signals.returned_count();
            while let Some((md, buffer)) = worker.poll_buffer() {
                self.take_home(md, buffer);
            }
        }
        let Self { queues, slots, looks, last_events, signals, .. } = self;
        signals.marks().take(|slot| look_at(queues, looks, slot));
        while let Some(queue) = worker.poll_ready_queue() {
            look_at(queues, looks, queue.0.slot());
        }
        #[cfg(test)]
        {
            self.look_count += looks.len();
        }
        looks.retain(|slot| {
            let known = &mut queues[*slot as usize];
            let Some(queue) = known else { return false };
            queue.turn(worker, signals, last_events);
            if !queue.is_ending() {
                queue.is_listed = false;
                return false;
            }
            let is_over = worker.free_event_queue(queue.handle).is_ok();
            if is_over {
                slots.remove(&queue.name);
                *known = None;
            }
            !is_over
        });
    }

    fn take_home(&mut self, md: MdHandle, buffer: Buffer) {
        let Some((slot, event)) = self.last_events.remove(&md) else { return };
        if let Some(queue) = &mut self.queues[slot as usize] {
            queue.last_event_count -= 1;
            queue.end.push(QueuedEvent { event, payload: Payload::Buffer(buffer) });
        }
        self.look_at(slot);
    }

    fn has_work(&self) -> bool {
        let is_returned = self.signals.returned_count() != self.returned_count;
        self.signals.marks().any() || is_returned && !self.last_events.is_empty()
    }
}

/// Has the next turn look at a queue, if it is there.
fn look_at(queues: &mut [Option<ShardQueue>], looks: &mut Vec<u32>, slot: u32) {
    // Others than the application's are none of these.
    let Some(Some(queue)) = queues.get_mut(slot as usize) else { return };
    if !std::mem::replace(&mut queue.is_listed, true) {
        looks.push(slot);
    }
}
