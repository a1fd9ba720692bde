//! The node that puts and gets.
//!
//! Invariants: a thread for each shard takes the next numbers that are free and sends those messages from places of its
//! own part of the window, some by one call of the shard; every number is taken once, and ends once, well or as a fault. When all places
//! together have failed, one message after the other, there is no more to be tried.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lnet_wire::Nid;

use super::latency::Latency;
use super::plan::{Message, Plan};
use super::report::{ClassReport, Fault, FaultKind, InitiatorReport, Progress, Tally};
use super::slot::{Ended, Slot, Started};
use super::{Kind, LoadError};
use crate::api::{EventQueue, Lnet, Outgoing};

/// How often a thread without events looks at the time and whether it is to stop.
const TICK: Duration = Duration::from_millis(20);
/// How long it waits when its node is busy with others.
const BUSY_TICK: Duration = Duration::from_millis(1);
/// How long messages that were given up may take to end.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// Messages that are started by one call of the shard at most, and payload after which there are no more.
const BATCH_MESSAGES: usize = 32;
const BATCH_BYTES: u32 = 1 << 16;
/// Events of a message: SEND, ACK or REPLY, and the end of its descriptor.
const EVENTS: u32 = 3;

/// A [`Plan`] that is being carried out. Dropping it cancels it.
#[derive(Debug)]
pub struct Initiator {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<InitiatorReport>>,
}

#[derive(Debug)]
struct Shared {
    plan: Plan,
    begun: Instant,
    /// When the last thread was done, in nanoseconds after the beginning.
    over: OnceLock<u64>,
    running: AtomicU64,
    next: AtomicU64,
    ended: AtomicU64,
    /// Failures since something went well.
    failed_since: AtomicU64,
    cancel: AtomicBool,
    give_up: AtomicBool,
}

impl Initiator {
    /// Begins: on all shards of the node at once, on threads of its own.
    ///
    /// # Errors
    /// [`LoadError`]; nothing is sent then.
    pub fn start(lnet: &Lnet, plan: &Plan) -> Result<Self, LoadError> {
        plan.validate()?;
        let shards = lnet.shard_count();
        let slots = (plan.window as usize).div_ceil(shards).max(1);
        let queues = (0..shards).map(|shard| lnet.shard(shard)?.create_event_queue(slots as u32 * EVENTS));
        let queues: Vec<EventQueue> = queues.collect::<Result<_, _>>()?;
        let shared = Arc::new(Shared {
            plan: plan.clone(),
            begun: Instant::now(),
            over: OnceLock::new(),
            running: AtomicU64::new(shards as u64),
            next: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            failed_since: AtomicU64::new(0),
            cancel: AtomicBool::new(false),
            give_up: AtomicBool::new(false),
        });
        // If a thread is not made, dropping this cancels the others.
        let mut initiator = Self { shared, threads: Vec::new() };
        for (shard, queue) in queues.into_iter().enumerate() {
            let sender = Sender::new(Arc::clone(&initiator.shared), queue, slots, shard, shards);
            let thread = std::thread::Builder::new().name(format!("load-initiator-{shard}"));
            initiator.threads.push(thread.spawn(move || sender.run())?);
        }
        Ok(initiator)
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let shared = &*self.shared;
        let (messages, is_over) = (shared.plan.messages, shared.over.get().is_some());
        Progress { messages, ended: shared.ended.load(Ordering::Relaxed), is_over }
    }

    /// Starts no more messages, and gives up those that are under way.
    pub fn cancel(&self) {
        self.shared.cancel.store(true, Ordering::Release);
    }

    /// Waits until it is over, and says what came of it.
    #[must_use]
    pub fn wait(mut self) -> InitiatorReport {
        let mut sum = self.join();
        sum.elapsed_ns = self.shared.elapsed_ns();
        sum.has_given_up = self.shared.give_up.load(Ordering::Acquire);
        // One that was over by itself was not cut short by who came later.
        let is_whole = self.shared.ended.load(Ordering::Acquire) >= self.shared.plan.messages;
        let is_cut_short = !is_whole || sum.faults.of(FaultKind::Cancelled) > 0;
        sum.is_cancelled = self.shared.cancel.load(Ordering::Acquire) && is_cut_short;
        sum
    }

    fn join(&mut self) -> InitiatorReport {
        let mut sum = InitiatorReport::default();
        for thread in self.threads.drain(..) {
            // One that has panicked has said so on standard error.
            if let Ok(report) = thread.join() {
                sum.merge(&report);
            }
        }
        sum
    }
}

impl Drop for Initiator {
    fn drop(&mut self) {
        self.cancel();
        self.join();
    }
}

impl Shared {
    fn elapsed_ns(&self) -> u64 {
        let since = || u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.over.get().copied().unwrap_or_else(since)
    }

    fn is_stopping(&self) -> bool {
        self.cancel.load(Ordering::Acquire) || self.give_up.load(Ordering::Acquire)
    }

    /// Takes the next number, if there is one.
    fn take_number(&self) -> Option<u64> {
        let number = (!self.is_at_end()).then(|| self.next.fetch_add(1, Ordering::Relaxed));
        // Another thread may have taken the last one.
        number.filter(|number| *number < self.plan.messages)
    }

    fn is_at_end(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.plan.messages
    }

    /// Counts a message as ended.
    fn count(&self, ended: &Ended) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        if ended.outcome.is_ok() {
            self.failed_since.store(0, Ordering::Relaxed);
            return;
        }
        let failed = self.failed_since.fetch_add(1, Ordering::Relaxed) + 1;
        if failed >= u64::from(self.plan.window) && !self.is_stopping() {
            self.give_up.store(true, Ordering::Release);
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let shared = &self.shared;
        if shared.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            // The last one: no other thread sets it.
            let _ = shared.over.set(shared.elapsed_ns());
        }
    }
}

/// Sends from one shard.
struct Sender {
    shared: Arc<Shared>,
    queue: EventQueue,
    slots: Vec<Slot>,
    /// Places that are free.
    free: Vec<usize>,
    /// Numbers that were taken when the node was busy.
    waiting: Vec<u64>,
    report: InitiatorReport,
    shard: usize,
}

impl Sender {
    fn new(shared: Arc<Shared>, queue: EventQueue, slots: usize, shard: usize, shards: usize) -> Self {
        let scheme = &shared.plan.scheme;
        let max_bytes = scheme.max_bytes();
        let classes = scheme.sizes.iter().flat_map(|class| {
            Kind::ALL.map(|kind| {
                let (tally, latency) = (Tally::default(), Latency::default());
                ClassReport { class: *class, kind, tally, latency }
            })
        });
        let report = InitiatorReport {
            classes: classes.collect(),
            by_shard: vec![0; shards],
            ..InitiatorReport::default()
        };
        Self {
            queue,
            slots: (0..slots).map(|_| Slot::new(max_bytes)).collect(),
            free: (0..slots).collect(),
            waiting: Vec::new(),
            report,
            shard,
            shared,
        }
    }

    fn run(mut self) -> InitiatorReport {
        let (mut looked, mut stopping) = (Instant::now(), None);
        loop {
            if !self.turn(&mut looked) {
                self.shared.give_up.store(true, Ordering::Release);
                break self.lose_all();
            }
            if self.shared.is_stopping()
                && stopping.get_or_insert_with(Instant::now).elapsed() > STOP_PATIENCE
            {
                break self.lose_all();
            }
            let is_quiet = self.slots.iter().all(|slot| !slot.is_lent());
            let is_last = self.shared.is_stopping() || self.waiting.is_empty() && self.shared.is_at_end();
            if is_quiet && is_last {
                break;
            }
        }
        let mut report = std::mem::take(&mut self.report);
        report.classes.retain(|class| class.tally.messages > 0);
        report
    }

    /// Starts what can be started, and takes what has happened; whether the shard lives.
    fn turn(&mut self, looked: &mut Instant) -> bool {
        let is_busy = !self.shared.is_stopping() && self.fill();
        let tick = if is_busy { BUSY_TICK } else { TICK };
        let wait = if self.slots.iter().any(Slot::is_lent) { tick } else { BUSY_TICK };
        match self.queue.next_blocking(Some(wait)) {
            Ok(Some(queued)) => self.take(queued),
            Ok(None) => {}
            Err(_) => return false,
        }
        if !self.take_ready() {
            return false;
        }
        if self.shared.is_stopping() {
            self.slots.iter_mut().for_each(|slot| slot.give_up(Duration::ZERO, FaultKind::Cancelled));
        } else if looked.elapsed() >= TICK {
            *looked = Instant::now();
            let timeout = self.shared.plan.timeout();
            self.slots.iter_mut().for_each(|slot| slot.give_up(timeout, FaultKind::Timeout));
        }
        true
    }

    /// Fills the free places, some by each call of the shard; whether the node was busy.
    fn fill(&mut self) -> bool {
        loop {
            let (prepared, outgoing) = self.prepare();
            if prepared.is_empty() {
                return false;
            }
            let begun = Instant::now();
            let started = self.queue.shard().start_all(outgoing);
            let mut is_busy = false;
            for ((index, message, peer), started) in prepared.into_iter().zip(started) {
                let slot = &mut self.slots[index];
                let started = slot.started(message, peer, self.shared.plan.ack, begun, started);
                if slot.is_free() {
                    self.free.push(index);
                }
                match started {
                    Started::Yes => self.report.by_shard[self.shard] += 1,
                    Started::No(ended) => {
                        self.note(&ended);
                        is_busy = true;
                    }
                    Started::Later => {
                        self.waiting.push(message.number);
                        is_busy = true;
                    }
                }
            }
            if is_busy {
                return true;
            }
            if !self.take_ready() || self.shared.is_stopping() {
                return false;
            }
        }
    }

    /// Messages for free places, few enough that the first of them does not wait long for the payload of the last: each with
    /// its place and its target.
    fn prepare(&mut self) -> (Vec<(usize, Message, Nid)>, Vec<Outgoing>) {
        let (mut prepared, mut outgoing, mut bytes) = (Vec::new(), Vec::new(), 0);
        while bytes < BATCH_BYTES && outgoing.len() < BATCH_MESSAGES {
            let Some(index) = self.free.pop() else { break };
            let Some(number) = self.waiting.pop().or_else(|| self.shared.take_number()) else {
                self.free.push(index);
                break;
            };
            let plan = &self.shared.plan;
            let message = plan.scheme.message(number);
            let peer = plan.targets[(number % plan.targets.len() as u64) as usize];
            // It is free, so that it has its buffer.
            let Some(next) = self.slots[index].prepare(index, &message, peer, plan.ack, &self.queue) else {
                self.waiting.push(number);
                continue;
            };
            bytes += message.length_bytes;
            prepared.push((index, message, peer));
            outgoing.push(next);
        }
        (prepared, outgoing)
    }

    /// Takes the events that are there; whether the shard lives.
    fn take_ready(&mut self) -> bool {
        loop {
            match self.queue.try_next() {
                Ok(Some(queued)) => self.take(queued),
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    fn take(&mut self, queued: crate::api::QueuedEvent) {
        let index = queued.event.user_ptr() as usize;
        let is_last = queued.event.unlinked();
        let ended = self.slots[index].take(queued);
        if is_last && self.slots[index].is_free() {
            self.free.push(index);
        }
        if let Some(ended) = ended {
            self.note(&ended);
        }
    }

    fn note(&mut self, ended: &Ended) {
        let Ended { message, peer, outcome } = *ended;
        self.shared.count(ended);
        match outcome {
            Ok(latency) => {
                let class =
                    &mut self.report.classes[message.class * 2 + usize::from(message.kind == Kind::Get)];
                class.tally.count(message.length_bytes);
                class.latency.record(latency);
            }
            Err((fault, difference)) => {
                let super::plan::Message { kind, number, portal, match_bits, length_bytes, .. } = message;
                let faults = &mut self.report.faults;
                faults.add(Fault { fault, kind, number, peer, portal, match_bits, length_bytes, difference });
            }
        }
    }

    /// Waits for nothing more. What is still lent goes with the queue, now or when its shard is done with it.
    fn lose_all(&mut self) {
        for index in 0..self.slots.len() {
            if let Some(ended) = self.slots[index].lose() {
                self.note(&ended);
            }
        }
    }
}
