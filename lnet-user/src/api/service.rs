//! What a shard's thread does for the application: it answers calls and passes events on.
//!
//! Invariants: an event that the application has no room for stays in the shard's queue, where its place is
//! reserved. The last event of a descriptor brings its buffer, so it is held back while leases on the
//! buffer are out. A queue that the application has dropped is emptied: its descriptors are unlinked, and it
//! goes with the last of them.

use std::collections::HashSet;
use std::sync::Arc;

use lnet_core::event::{EqError, Event, EventKind};
use lnet_core::handle::{EqHandle, MdHandle, MeHandle};
use lnet_core::lnd::Status;
use lnet_core::md::MdSpec;
use lnet_core::portal::EntrySpec;

use super::calls::{Call, Calls, Signals};
use super::queue::{Notice, Payload, QueueEnd, SharedLease};
use crate::memory::Buffer;
use crate::runtime::{Delivery, Refused, Worker};

/// Calls that are answered in one turn.
const CALL_BUDGET: u32 = 64;

/// What a shard's thread has for the application.
pub(super) struct Service {
    calls: Calls,
    queues: Queues,
}

impl Service {
    pub(super) fn new(calls: Calls, signals: Arc<Signals>) -> Self {
        Self { calls, queues: Queues { queues: Vec::new(), returned_count: 0, signals } }
    }

    /// One turn.
    pub(super) fn turn(&mut self, worker: &mut Worker) {
        for _ in 0..CALL_BUDGET {
            match self.calls.pop() {
                Some(call) => self.queues.answer(call, worker),
                None => break,
            }
        }
        self.queues.turn(worker);
    }

    #[cfg(test)]
    pub(super) fn queues(&mut self) -> &mut Queues {
        &mut self.queues
    }

    /// Whether there is something to do that woke nobody.
    pub(super) fn has_work(&self) -> bool {
        self.queues.signals.has_calls() || self.queues.has_work()
    }
}

/// The event queues of a shard that the application has made.
pub(super) struct Queues {
    queues: Vec<Queue>,
    /// Leases that had been returned in the last turn.
    returned_count: usize,
    signals: Arc<Signals>,
}

struct Queue {
    handle: EqHandle,
    end: QueueEnd,
    /// Descriptors whose last event is still to come.
    live: HashSet<MdHandle>,
    /// Last events whose buffers are not at home yet.
    held: Vec<Event>,
    /// Whether the application's end had no room in the last turn.
    blocked: bool,
    closing: bool,
}

impl Queues {
    fn answer(&mut self, call: Call, worker: &mut Worker) {
        match call {
            Call::Put(request, reply) => reply.send(worker.put(&request)),
            Call::Get(request, reply) => reply.send(worker.get(&request)),
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

    /// Makes an event queue whose events go to `end`.
    pub(super) fn create(
        &mut self,
        worker: &mut Worker,
        slots: u32,
        end: QueueEnd,
    ) -> Result<EqHandle, EqError> {
        let handle = worker.create_event_queue(slots)?;
        let (live, held) = (HashSet::new(), Vec::new());
        self.queues.push(Queue { handle, end, live, held, blocked: false, closing: false });
        Ok(handle)
    }

    pub(super) fn attach(
        &mut self,
        worker: &mut Worker,
        entry: &EntrySpec,
        md: &MdSpec,
        buffer: Buffer,
    ) -> Result<(MeHandle, MdHandle), Refused> {
        let (entry, handle) = worker.attach(entry, md, buffer)?;
        self.register(md, handle);
        Ok((entry, handle))
    }

    pub(super) fn bind(
        &mut self,
        worker: &mut Worker,
        md: &MdSpec,
        buffer: Buffer,
    ) -> Result<MdHandle, Refused> {
        let handle = worker.bind(md, buffer)?;
        self.register(md, handle);
        Ok(handle)
    }

    fn register(&mut self, md: &MdSpec, handle: MdHandle) {
        let queue = self.queues.iter_mut().find(|queue| Some(queue.handle) == md.event_queue);
        queue.map(|queue| queue.live.insert(handle));
    }

    fn turn(&mut self, worker: &mut Worker) {
        if self.queues.iter().any(|queue| !queue.held.is_empty()) {
            // Counted first: a lease that comes back now is seen here or counted next time.
            self.returned_count = self.signals.returned_count();
            while let Some((md, buffer)) = worker.poll_buffer() {
                self.take_home(md, buffer);
            }
        }
        for queue in &mut self.queues {
            queue.turn(worker, &self.signals);
        }
        self.queues.retain_mut(|queue| !queue.is_over(worker));
    }

    fn take_home(&mut self, md: MdHandle, buffer: Buffer) {
        for queue in &mut self.queues {
            if let Some(place) = queue.held.iter().position(|event| event.md() == md) {
                let event = queue.held.swap_remove(place);
                queue.end.push_home(Notice { event, payload: Payload::Buffer(buffer) });
                return;
            }
        }
    }

    fn has_work(&self) -> bool {
        let is_returned = self.signals.returned_count() != self.returned_count;
        self.queues.iter().any(|queue| {
            queue.blocked && queue.end.has_room()
                || queue.end.is_abandoned() != queue.closing
                || is_returned && !queue.held.is_empty()
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
        let mut passed = self.end.flush();
        self.blocked = true;
        while self.closing || self.end.has_room() {
            let Some(delivery) = worker.poll_event(self.handle) else {
                self.blocked = false;
                break;
            };
            passed |= self.pass_on(worker, delivery, signals);
        }
        if passed {
            self.end.tell();
        }
    }

    /// Passes an event on; whether it has not been held back.
    fn pass_on(&mut self, worker: &mut Worker, mut delivery: Delivery, signals: &Arc<Signals>) -> bool {
        let event = delivery.event;
        if event.unlinked() {
            self.live.remove(&event.md());
            let Some(buffer) = delivery.buffer.take() else {
                self.held.push(event);
                return false;
            };
            self.end.push(Notice { event, payload: Payload::Buffer(buffer) });
        } else {
            let has_payload = event.kind() == EventKind::Put && event.status() == Status::Ok;
            let lease = if has_payload { worker.read_lease(&delivery).ok() } else { None };
            let payload = lease.map_or(Payload::None, |lease| {
                Payload::Lease(SharedLease { lease: Some(lease), signals: Arc::clone(signals) })
            });
            self.end.push(Notice { event, payload });
        }
        true
    }

    /// Whether it is gone.
    fn is_over(&self, worker: &mut Worker) -> bool {
        self.closing
            && self.live.is_empty()
            && self.held.is_empty()
            && worker.free_event_queue(self.handle).is_ok()
    }
}
