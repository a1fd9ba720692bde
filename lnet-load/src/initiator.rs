//! The node that puts and gets.
//!
//! Invariants: a thread for each shard takes the next numbers that are free and sends those messages from
//! places of its own part of the window, each place a run of them by one descriptor; every number is taken
//! once, and ends once, well or as a fault. When all places together have failed, one message after the
//! other, there is no more to be tried.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lnet_model::lnd::LndRow;
use lnet_user::Nid;
use lnet_user::api::{EventQueue, Lnet, OwnedRequest, QueuedEvent};
use lnet_user::node::NiState;
use tracing::warn;

use super::distribution::Distribution;
use super::error::LoadError;
use super::plan::{LoadMessage, LoadPlan, Posting};
use super::report::{ClassReport, Fault, FaultKind, InitiatorReport, Progress, Tally};
use super::slot::{MessageEnd, Next, Outcomes, RunSlot};
use super::{Kind, probe};

/// How often a thread without events looks at the time and whether it is to stop.
const TICK: Duration = Duration::from_millis(20);
/// How long it waits when its node is busy with others.
const BUSY_TICK: Duration = Duration::from_millis(1);
/// How long messages that were given up may take to end.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// Runs that are started by one call of the shard at most, and payload after which there are no more.
const BATCH_RUNS: usize = 32;
const BATCH_BYTES: u32 = 1 << 16;
/// Messages that one descriptor is bound for at most, and payload after which there are no more.
const RUN_MESSAGES: u32 = 32;
const RUN_BYTES: u32 = 1 << 15;
/// Events of a message: SEND, and ACK or REPLY. A descriptor has one more, its end.
const EVENTS: u32 = 2;
/// The part of a shard's event slots that a load takes for its runs.
const EVENTS_SHARE: u32 = 4;

/// A [`LoadPlan`] that is being carried out. Dropping it cancels it.
#[derive(Debug)]
pub struct Initiator {
    shared: Arc<InitiatorState>,
    threads: Vec<JoinHandle<InitiatorReport>>,
}

#[derive(Debug)]
struct InitiatorState {
    plan: LoadPlan,
    /// Targets that may not bear a Get where no target of a load is.
    fragile: Vec<Nid>,
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
    pub fn start(lnet: &Lnet, plan: &LoadPlan) -> Result<Self, LoadError> {
        plan.validate()?;
        let shards = lnet.shard_count();
        let slots = (plan.window as usize).div_ceil(shards).max(1);
        let room = lnet.limits().events / EVENTS_SHARE / slots as u32;
        let run_messages = (room.saturating_sub(1) / EVENTS).clamp(1, RUN_MESSAGES);
        let event_slots = slots as u32 * (run_messages * EVENTS + 1);
        let queues = (0..shards).map(|shard| lnet.shard(shard)?.create_event_queue(event_slots));
        let queues: Vec<EventQueue> = queues.collect::<Result<_, _>>()?;
        let shared = Arc::new(InitiatorState {
            plan: plan.clone(),
            fragile: plan.targets.iter().copied().filter(|nid| is_fragile(lnet, *nid)).collect(),
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
            let shared = Arc::clone(&initiator.shared);
            let sender = ShardInitiator::new(shared, queue, (slots, run_messages), shard, shards);
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
        // A load that was over by itself was not cut short by who came later.
        let is_whole = self.shared.ended.load(Ordering::Acquire) >= self.shared.plan.messages;
        let is_cut_short = !is_whole || sum.faults.of(FaultKind::Cancelled) > 0;
        sum.is_cancelled = self.shared.cancel.load(Ordering::Acquire) && is_cut_short;
        sum
    }

    fn join(&mut self) -> InitiatorReport {
        let mut sum = InitiatorReport::default();
        for thread in self.threads.drain(..) {
            // A thread that has panicked has said so on standard error.
            if let Ok(report) = thread.join() {
                sum.merge(&report);
            }
        }
        sum
    }
}

/// Whether a node may die of a Get for a portal where it has posted nothing, by the LND that reaches it.
fn is_fragile(lnet: &Lnet, nid: Nid) -> bool {
    let nis = lnet.nis();
    let own = nis.iter().find(|ni| ni.config.nid.net() == nid.net());
    let lnd = own.map_or_else(|| LndRow::of_net_type(nid.net().net_type()), NiState::lnd);
    lnd.is_some_and(|lnd| !lnd.takes_any_get)
}

impl Drop for Initiator {
    fn drop(&mut self) {
        self.cancel();
        self.join();
    }
}

impl InitiatorState {
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

    /// Messages of a run that is made now: towards the end there are fewer, so that all places have some.
    fn run_messages(&self, most: u32) -> u32 {
        let left = self.plan.messages.saturating_sub(self.next.load(Ordering::Relaxed));
        let share = left / (2 * u64::from(self.plan.window));
        share.clamp(1, most.into()) as u32
    }

    /// Counts a message as ended. One whose bytes are wrong was answered all the same.
    fn count(&self, ended: &MessageEnd) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        if matches!(ended.outcome, Ok(_) | Err((FaultKind::Byte | FaultKind::Length, _))) {
            self.failed_since.store(0, Ordering::Relaxed);
            return;
        }
        let failed = self.failed_since.fetch_add(1, Ordering::Relaxed) + 1;
        if failed >= u64::from(self.plan.window) && !self.is_stopping() {
            self.give_up.store(true, Ordering::Release);
        }
    }
}

impl Drop for ShardInitiator {
    fn drop(&mut self) {
        let shared = &self.shared;
        if shared.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            // The last one: no other thread sets it.
            let _ = shared.over.set(shared.elapsed_ns());
        }
    }
}

/// Sends from one shard.
struct ShardInitiator {
    shared: Arc<InitiatorState>,
    queue: EventQueue,
    slots: Vec<RunSlot>,
    /// Messages of a run at most.
    run_messages: u32,
    /// Places that are free.
    free: Vec<usize>,
    /// Places whose next message the node was too busy for.
    stalled: Vec<usize>,
    /// Messages that were taken, and are for a run of their kind.
    waiting: [Vec<LoadMessage>; Kind::ALL.len()],
    /// What is to be noted, empty between calls.
    outcomes: Outcomes,
    report: InitiatorReport,
    shard: usize,
}

impl ShardInitiator {
    fn new(
        shared: Arc<InitiatorState>,
        queue: EventQueue,
        (slots, run_messages): (usize, u32),
        shard: usize,
        shards: usize,
    ) -> Self {
        let scheme = &shared.plan.scheme;
        let classes = scheme.sizes.iter().flat_map(|class| {
            Kind::ALL.map(|kind| {
                let (tally, latency) = (Tally::default(), Distribution::default());
                ClassReport { class: *class, kind, tally, latency }
            })
        });
        let report = InitiatorReport {
            classes: classes.collect(),
            by_shard: vec![0; shards],
            ..InitiatorReport::default()
        };
        let buffer_bytes = buffer_bytes(scheme.max_bytes(), run_messages);
        Self {
            queue,
            slots: (0..slots).map(|index| RunSlot::new(index, shared.plan.ack, buffer_bytes)).collect(),
            run_messages,
            free: (0..slots).collect(),
            stalled: Vec::new(),
            waiting: Default::default(),
            outcomes: Outcomes::default(),
            report,
            shard,
            shared,
        }
    }

    fn run(mut self) -> InitiatorReport {
        let (mut looked, mut stopping) = (Instant::now(), None);
        if !self.probe_all() {
            self.shared.give_up.store(true, Ordering::Release);
        }
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
            let has_more = self.waiting.iter().any(|waiting| !waiting.is_empty()) || !self.shared.is_at_end();
            if is_quiet && (self.shared.is_stopping() || !has_more) {
                break;
            }
        }
        let mut report = std::mem::take(&mut self.report);
        report.classes.retain(|class| class.tally.messages > 0);
        report
    }

    /// Asks each node that may not bear Gets whether a target is there; whether all are, or the load was
    /// cancelled. One that is missing is a fault.
    fn probe_all(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        if shared.plan.scheme.puts_percent == 100 || shared.is_at_end() {
            return true;
        }
        let missing = shared.fragile.iter().find(|nid| !self.finds_target(**nid));
        if let Some(&peer) = missing.filter(|_| !shared.is_stopping()) {
            warn!(
                "the load sends {peer} nothing: no target of a load answers there, and a kernel node may die of a Get"
            );
            let Posting { portal, match_bits, .. } = shared.plan.scheme.probe();
            let (fault, kind) = (FaultKind::NoTarget, Kind::Get);
            let (number, length_bytes, difference) = (0, 0, None);
            let faults = &mut self.report.faults;
            faults.add(Fault { fault, kind, number, peer, portal, match_bits, length_bytes, difference });
        }
        missing.is_none()
    }

    fn finds_target(&mut self, nid: Nid) -> bool {
        let (shared, begun) = (&self.shared, Instant::now());
        let (posting, timeout) = (shared.plan.scheme.probe(), shared.plan.timeout());
        probe::is_answered(&mut self.queue, &posting, nid, || {
            shared.is_stopping() || begun.elapsed() > timeout
        })
    }

    /// Starts what can be started, and takes what has happened; whether the shard lives.
    fn turn(&mut self, looked: &mut Instant) -> bool {
        let is_busy = !self.shared.is_stopping() && self.fill();
        let tick = if is_busy { BUSY_TICK } else { TICK };
        let wait = if self.slots.iter().any(RunSlot::is_lent) { tick } else { BUSY_TICK };
        match self.queue.next_blocking(Some(wait)) {
            Ok(Some(queued)) => self.take(queued),
            Ok(None) => {}
            Err(_) => return false,
        }
        if !self.take_ready() {
            return false;
        }
        if self.shared.is_stopping() {
            self.give_up(Duration::ZERO, FaultKind::Cancelled);
            self.slots.iter_mut().for_each(RunSlot::stop);
        } else if looked.elapsed() >= TICK {
            *looked = Instant::now();
            self.give_up(self.shared.plan.timeout(), FaultKind::Timeout);
        }
        true
    }

    fn give_up(&mut self, after: Duration, fault: FaultKind) {
        self.slots.iter_mut().for_each(|slot| slot.give_up(after, fault, &mut self.outcomes));
        self.note_outcomes();
    }

    /// Goes on with runs that were stalled, and fills the free places, some by each call of the shard;
    /// whether the node was busy.
    fn fill(&mut self) -> bool {
        let mut is_busy = false;
        for index in std::mem::take(&mut self.stalled) {
            is_busy |= self.start_next(index);
        }
        self.note_outcomes();
        while !is_busy {
            let (prepared, outgoing) = self.prepare();
            if prepared.is_empty() {
                return false;
            }
            let begun = Instant::now();
            let started = self.queue.shard().start_all(outgoing);
            for (index, started) in prepared.into_iter().zip(started) {
                is_busy |= self.slots[index].started(begun, started, &mut self.outcomes) == Next::Later;
                if self.slots[index].is_free() {
                    self.free.push(index);
                }
            }
            self.note_outcomes();
            if !self.take_ready() || self.shared.is_stopping() {
                return false;
            }
        }
        true
    }

    /// Starts the next message of a place; whether the node was busy.
    fn start_next(&mut self, index: usize) -> bool {
        let is_busy = self.slots[index].start_next(&mut self.outcomes) == Next::Later;
        if is_busy {
            self.stalled.push(index);
        }
        is_busy
    }

    /// Runs for free places, few enough that the first of them does not wait long for the payload of the
    /// last: each with its place.
    fn prepare(&mut self) -> (Vec<usize>, Vec<OwnedRequest>) {
        let (mut prepared, mut outgoing, mut bytes) = (Vec::new(), Vec::new(), 0);
        while bytes < BATCH_BYTES && outgoing.len() < BATCH_RUNS {
            let Some(index) = self.free.pop() else { break };
            let run = self.gather();
            let plan = &self.shared.plan;
            let peer = |number| plan.targets[(number % plan.targets.len() as u64) as usize];
            bytes += run.iter().map(|message| message.length_bytes).sum::<u32>();
            let run = run.into_iter().map(|message| (message, peer(message.number)));
            // The slot is free, so that it has its buffer.
            let Some(next) = self.slots[index].prepare(run, &self.queue) else {
                self.free.push(index);
                break;
            };
            prepared.push(index);
            outgoing.push(next);
        }
        (prepared, outgoing)
    }

    /// Messages for a run: all are Puts, or all are Gets, and find room in a place's buffer.
    fn gather(&mut self) -> Vec<LoadMessage> {
        let most = self.shared.run_messages(self.run_messages) as usize;
        while self.waiting.iter().all(|waiting| waiting.len() < most)
            && let Some(number) = self.shared.take_number()
        {
            let message = self.shared.plan.scheme.message(number);
            self.waiting[message.kind as usize].push(message);
        }
        let [first, second] = &self.waiting;
        let waiting = &mut self.waiting[usize::from(second.len() > first.len())];
        let mut bytes = 0;
        let fits = waiting.iter().rev().take(most).take_while(|message| {
            let is_first = bytes == 0;
            bytes += message.length_bytes;
            is_first || bytes <= RUN_BYTES
        });
        let rest = waiting.len() - fits.count();
        waiting.split_off(rest)
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

    fn take(&mut self, queued: QueuedEvent) {
        let index = queued.event.user_ptr() as usize;
        let was_free = self.slots[index].is_free();
        let next = self.slots[index].take(queued, &mut self.outcomes);
        if next == Next::Later {
            self.stalled.push(index);
        } else if !self.shared.is_stopping() {
            self.start_next(index);
        }
        if self.slots[index].is_free() && !was_free {
            self.free.push(index);
        }
        self.note_outcomes();
    }

    fn note_outcomes(&mut self) {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        outcomes.ended.drain(..).for_each(|ended| self.note(&ended));
        for number in outcomes.unstarted.drain(..) {
            let message = self.shared.plan.scheme.message(number);
            self.waiting[message.kind as usize].push(message);
        }
        self.outcomes = outcomes;
    }

    fn note(&mut self, ended: &MessageEnd) {
        let MessageEnd { message, peer, outcome } = *ended;
        self.shared.count(ended);
        if !matches!(outcome, Err((FaultKind::NotStarted, _))) {
            self.report.by_shard[self.shard] += 1;
        }
        match outcome {
            Ok(latency) => {
                let class =
                    &mut self.report.classes[message.class * 2 + usize::from(message.kind == Kind::Get)];
                class.tally.count(message.length_bytes);
                class.latency.record_time(latency);
            }
            Err((fault, difference)) => {
                let LoadMessage { kind, number, portal, match_bits, length_bytes, .. } = message;
                let faults = &mut self.report.faults;
                faults.add(Fault { fault, kind, number, peer, portal, match_bits, length_bytes, difference });
            }
        }
    }

    /// Waits for nothing more. What is still lent goes with the queue, now or when its shard is done with it.
    fn lose_all(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.lose(&mut self.outcomes));
        self.note_outcomes();
    }
}

/// Bytes of a place's buffer: those of a run, or of the longest message.
fn buffer_bytes(max_bytes: u32, run_messages: u32) -> u32 {
    max_bytes.saturating_mul(run_messages).min(RUN_BYTES).max(max_bytes)
}
