//! What application threads want of a shard.
//!
//! Invariants: at most [`CALLS_MAX`] calls wait at one shard, and the caller with one more waits for room.
//! Each call is answered, or its caller learns that the shard has ended. A shard that sleeps is woken for a
//! call, and looks for one after it has said that it is about to sleep. A PUT or GET that is queued allocates
//! nothing; other calls may.
//!
//! A call runs on its caller's thread while no other thread drives the shard, behind the calls that wait. So
//! do those that make entries and descriptors and start requests, if the one that drives sleeps. Else it
//! waits in the queue for the driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use lnet_core::handle::{MdHandle, MeHandle, ShardId};
use lnet_io::mailbox::{Mailbox, Sender, Unsent};
use lnet_io::reactor::Waker;
use tokio::sync::oneshot;

use super::error::LnetError;
use super::marks::Marks;
use super::request::{Answer, PutOrGet};
use super::service::Queues;
use crate::runtime::wakes::Awaited;
use crate::runtime::{Deputy, Fate, Worker};

/// Calls that wait at one shard.
pub(super) const CALLS_MAX: usize = 256;

type Run = Box<dyn FnOnce(&mut Worker, &mut Queues) + Send>;

/// Something to be done by a shard's driver.
pub(super) enum Command {
    Request(PutOrGet, Answer),
    /// A handle was dropped.
    Unlink(MdHandle),
    UnlinkEntry(MeHandle, MdHandle),
    Run(Run),
}

/// What wakes a shard, and what it looks at before it sleeps.
#[derive(Debug)]
pub(super) struct Signals {
    waker: Waker,
    /// Times that it was woken, asleep or not.
    wakes: AtomicUsize,
    /// Leases that were returned, ever.
    returned: AtomicUsize,
    /// Queues whose consumers want a look at them.
    marks: Marks,
}

impl Signals {
    /// Signals of a shard that this wakes, with so many event queues at most.
    pub(super) fn new(waker: Waker, queues: u32) -> Arc<Self> {
        Arc::new(Self {
            waker,
            wakes: AtomicUsize::new(0),
            returned: AtomicUsize::new(0),
            marks: Marks::new(queues),
        })
    }

    /// Makes sure that the shard looks at the queue in this slot.
    pub(super) fn mark(&self, slot: u32) {
        self.marks.set(slot);
        self.wake();
    }

    pub(super) fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Makes sure that the shard looks at its calls, its leases and the queues that are marked.
    fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn wake_count(&self) -> usize {
        self.wakes.load(Ordering::Acquire)
    }

    /// A lease is back.
    pub(super) fn lease_returned(&self) {
        self.returned.fetch_add(1, Ordering::Release);
        self.wake();
    }

    pub(super) fn returned_count(&self) -> usize {
        self.returned.load(Ordering::Acquire)
    }
}

/// An application's end of the calls to one shard.
#[derive(Clone)]
pub(super) struct Caller {
    shard: ShardId,
    calls: Sender<Command>,
    signals: Arc<Signals>,
    fate: Arc<Fate>,
}

/// Both ends of the calls to a shard.
pub(super) fn channel(
    shard: ShardId,
    signals: &Arc<Signals>,
    fate: &Arc<Fate>,
) -> (Caller, Mailbox<Command>) {
    let (sender, calls) = Mailbox::new(CALLS_MAX, &signals.waker);
    let (signals, fate) = (Arc::clone(signals), Arc::clone(fate));
    (Caller { shard, calls: sender, signals, fate }, calls)
}

impl Caller {
    pub(super) fn shard(&self) -> ShardId {
        self.shard
    }

    /// Why the shard is gone.
    pub(super) fn ended(&self) -> LnetError {
        self.fate.why().into()
    }

    pub(super) fn fate(&self) -> &Arc<Fate> {
        &self.fate
    }

    pub(super) fn signals(&self) -> &Arc<Signals> {
        &self.signals
    }

    /// Leaves a call. Where there are too many, it waits until some were taken; before it does, `relieve` may
    /// take some.
    pub(super) fn enqueue(&self, call: Command, relieve: impl FnOnce()) -> Result<(), LnetError> {
        let left = match self.calls.send(call) {
            Ok(()) => true,
            Err(Unsent::Full(call)) => {
                self.signals.wake();
                relieve();
                let _deputy = Deputy::appoint();
                self.calls.send_waiting(call)
            }
            Err(Unsent::Gone(_)) => false,
        };
        self.signals.wake();
        if left { Ok(()) } else { Err(self.ended()) }
    }

    /// Has something run by the shard's driver, and brings its result. It must not own what ends the shard.
    pub(super) fn begin<R: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Worker, &mut Queues) -> R + Send + 'static,
    ) -> Result<Awaited<oneshot::Receiver<R>>, LnetError> {
        let (answer, result) = oneshot::channel();
        let run = move |worker: &mut Worker, queues: &mut Queues| {
            // The caller may have lost interest.
            let _ = answer.send(run(worker, queues));
        };
        self.enqueue(Command::Run(Box::new(run)), || {})?;
        Ok(Awaited::new(result))
    }

    /// Has something run by the shard's driver and waits for its result. It must not own what ends the shard.
    pub(super) fn run<R: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Worker, &mut Queues) -> R + Send + 'static,
    ) -> Result<R, LnetError> {
        let (answer, result) = mpsc::sync_channel(1);
        let run = move |worker: &mut Worker, queues: &mut Queues| {
            // A caller waits for the answer, unless its thread has ended.
            let _ = answer.send(run(worker, queues));
        };
        self.enqueue(Command::Run(Box::new(run)), || {})?;
        let _deputy = Deputy::appoint();
        result.recv().map_err(|_| self.ended())
    }
}
