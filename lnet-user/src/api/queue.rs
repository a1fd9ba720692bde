//! The application's end of an event queue.
//!
//! Invariants: of each shard one producer, its thread, and one consumer, the owner of the [`EventQueue`];
//! between them a bounded ring without a lock. What is left in the ring when the shard ends can still be
//! taken. A consumer that waits is woken after what was waited for is there, and looks again after it has
//! said that it waits.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use futures_util::stream::Stream;
use futures_util::task::AtomicWaker;
use lnet_io::memory::Buffer;
use lnet_io::region::{Fragments, ReadLease};
use rtrb::{Consumer, Producer, RingBuffer};

use lnet_core::event::{EqError, Event};
use lnet_core::handle::{EqHandle, MdHandle};
use lnet_core::lnd::Span;
use lnet_core::time::Instant;

use super::ShardHandle;
use super::calls::Signals;
use super::error::LnetError;
use super::request::RefusalSlot;
use super::service::Queues;
use super::waits::{Wait, Waits};
use crate::runtime::{Clock, Deputy, WaitKind, Worker, wakes};

/// Places of the ring; events that find none stay with the shard.
const RING_SLOTS: u32 = 1024;

/// A lease whose shard learns when it is dropped.
#[derive(Debug)]
pub(super) struct SharedLease {
    pub(super) lease: Option<ReadLease>,
    pub(super) signals: Arc<Signals>,
}

impl Drop for SharedLease {
    fn drop(&mut self) {
        drop(self.lease.take());
        self.signals.lease_returned();
    }
}

/// What comes with an event.
#[derive(Debug)]
pub(super) enum Payload {
    None,
    Lease(SharedLease),
    Buffer(Buffer),
    /// A refusal, in a box: refusals are rare, and events are moved around.
    Refusal(Box<RefusedRequest>),
}

/// Why a queued request was not started, or an entry not made.
#[derive(Debug)]
pub(super) struct RefusedRequest {
    pub(super) error: LnetError,
    /// The buffer of the entry.
    pub(super) buffer: Option<Buffer>,
    #[expect(dead_code, reason = "it counts by being there")]
    pub(super) slot: RefusalSlot,
}

/// An event, with the payload that it tells of or the buffer that it brings.
pub struct QueuedEvent {
    /// What happened.
    pub event: Event,
    pub(super) payload: Payload,
}

impl fmt::Debug for QueuedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MdHandle(md) = self.event.md();
        let mut line = f.debug_struct("QueuedEvent");
        line.field("kind", &self.event.kind()).field("status", &self.event.status()).field("md", &md);
        match &self.payload {
            Payload::None => line.finish(),
            Payload::Lease(_) => line.field("payload_bytes", &self.event.manipulated_bytes()).finish(),
            Payload::Buffer(buffer) => line.field("buffer_bytes", &buffer.len()).finish(),
            Payload::Refusal(refused) => line.field("refusal", &refused.error).finish(),
        }
    }
}

impl QueuedEvent {
    /// The payload of a PUT or REPLY that has arrived, to be read on any thread for as long as the event
    /// lives. `None` for other events, and where messages may be written to the same bytes again
    /// (`MANAGE_REMOTE`, REPLYs) before the last event brings the buffer; and where it lies in several
    /// fragments.
    #[must_use]
    pub fn payload(&self) -> Option<&[u8]> {
        self.payload_fragments()?.contiguous()
    }

    /// The [`QueuedEvent::payload`], one slice for each fragment of the buffer that it lies in.
    #[must_use]
    pub fn payload_fragments(&self) -> Option<Fragments<'_>> {
        match &self.payload {
            Payload::None | Payload::Refusal(..) => None,
            Payload::Lease(lease) => lease.lease.as_ref().map(ReadLease::fragments),
            Payload::Buffer(buffer) => {
                let Span { offset_bytes, length_bytes, .. } = self.event.payload()?;
                let start = usize::try_from(offset_bytes).ok()?;
                Some(buffer.part(start..start + length_bytes as usize))
            }
        }
    }

    /// The descriptor's buffer, if this is its last event ([`Event::unlinked`]).
    #[must_use]
    pub fn into_buffer(self) -> Option<Buffer> {
        match self.payload {
            Payload::Buffer(buffer) => Some(buffer),
            Payload::Refusal(refusal) => refusal.buffer,
            Payload::None | Payload::Lease(_) => None,
        }
    }

    /// Why a request that was queued was not started, or an entry not made: then this is no event of the
    /// shard, but stands for its SEND, or for the UNLINK of its descriptor.
    #[must_use]
    pub fn refusal(&self) -> Option<&LnetError> {
        match &self.payload {
            Payload::Refusal(refusal) => Some(&refusal.error),
            _ => None,
        }
    }
}

/// The shard's end.
pub(super) struct QueueEnd {
    /// There until the end.
    ring: Option<Producer<QueuedEvent>>,
    /// What came when there was no room: last events whose buffers came home, as many as leases were out,
    /// refusals, as many as were reserved, and what is in front of an event that a future waits for.
    overflow: VecDeque<QueuedEvent>,
    /// Whether the consumer is to be woken.
    is_news: bool,
    waiting: Arc<AtomicWaker>,
    /// Whether the shard is to be woken when there is room.
    wants_room: Arc<AtomicBool>,
}

impl QueueEnd {
    /// Both ends of the ring of a queue of so many slots.
    pub(super) fn new(slots: u32, waiting: Arc<AtomicWaker>) -> (Self, Consumer<QueuedEvent>) {
        let (producer, ring) = RingBuffer::new(slots.clamp(1, RING_SLOTS) as usize);
        let (overflow, wants_room) = (VecDeque::new(), Arc::default());
        (Self { ring: Some(producer), overflow, is_news: false, waiting, wants_room }, ring)
    }

    fn ring(&self) -> &Producer<QueuedEvent> {
        self.ring.as_ref().expect("a queue has its ring until it is dropped")
    }

    pub(super) fn is_full(&self) -> bool {
        self.ring().is_full()
    }

    /// Whether an event of the shard has room; what came earlier and had none goes first.
    pub(super) fn has_room(&self) -> bool {
        self.overflow.is_empty() && !self.is_full()
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.ring().is_abandoned()
    }

    /// Has the consumer wake the shard when it has made room. What it has made before is to be looked for
    /// after this.
    pub(super) fn await_room(&self) {
        self.wants_room.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Leaves a event; where there is no room, for when there is.
    pub(super) fn push(&mut self, queued: QueuedEvent) {
        if self.overflow.is_empty() && (!self.is_full() || self.is_abandoned()) {
            self.pass_on(queued);
        } else {
            self.overflow.push_back(queued);
        }
    }

    fn pass_on(&mut self, queued: QueuedEvent) {
        // What a full ring without a consumer refuses is dropped: it has no consumer any more.
        if let Some(ring) = &mut self.ring {
            let _ = ring.push(queued);
        }
        self.is_news = true;
    }

    /// Notices that have no room.
    pub(super) fn late_count(&self) -> usize {
        self.overflow.len()
    }

    /// Moves what had no room.
    pub(super) fn flush(&mut self) {
        while !self.overflow.is_empty() && (!self.ring().is_full() || self.is_abandoned()) {
            let Some(queued) = self.overflow.pop_front() else { break };
            self.pass_on(queued);
        }
    }

    /// Wakes the waiting consumer, if there is anything new for it.
    pub(super) fn tell(&mut self) {
        if std::mem::take(&mut self.is_news) {
            wakes::wake(self.waiting.take());
        }
    }
}

impl Drop for QueueEnd {
    fn drop(&mut self) {
        drop(self.ring.take());
        wakes::wake(self.waiting.take());
    }
}

/// The events of descriptors that were made with its [handle](EventQueue::handle), in the order in which they
/// happened; the last one of a descriptor comes when no event of an earlier one is left whose payload lies in
/// the same buffer, and brings that.
///
/// Dropping it unlinks those descriptors.
pub struct EventQueue {
    handle: EqHandle,
    /// A ring for each shard that it is on.
    ends: Vec<EventRing>,
    /// The one that is looked at first.
    next: usize,
    waiting: Arc<AtomicWaker>,
    /// Whether the shards know that a thread or task waits here, and does not drive.
    told: Option<WaitKind>,
    /// Waits of the application's thread.
    waits: Waits,
    /// The wait of a task, where the queue is on one shard.
    wait: Wait,
}

/// The ring of one shard.
struct EventRing {
    // Before the shard, which learns of its end.
    ring: Consumer<QueuedEvent>,
    wants_room: Arc<AtomicBool>,
    wakes: Wakes,
}

/// A shard that looks at the queue when this is dropped.
struct Wakes {
    shard: ShardHandle,
    /// The slot of the queue on it.
    slot: u32,
}

impl Wakes {
    fn wake(&self) {
        self.shard.end().caller.signals().mark(self.slot);
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.wake();
    }
}

impl EventRing {
    /// The oldest event; `None` if there is none and will be none.
    fn pop(&mut self) -> Option<Option<QueuedEvent>> {
        // Looked at first: what was left before the end is found after it.
        let is_over = self.ring.is_abandoned();
        let queued = self.ring.pop().ok();
        if queued.is_some() {
            fence(Ordering::SeqCst);
            if self.wants_room.load(Ordering::Relaxed) && self.wants_room.swap(false, Ordering::Relaxed) {
                self.wakes.wake();
            }
        }
        (queued.is_some() || !is_over).then_some(queued)
    }
}

impl fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shards = self.ends.len();
        f.debug_struct("EventQueue").field("handle", &self.handle.0).field("shards", &shards).finish()
    }
}

impl EventQueue {
    /// Makes a queue of so many slots on each of these shards. It has the name that the first of them gives
    /// it.
    pub(super) fn create(
        shards: impl IntoIterator<Item = ShardHandle>,
        slots: u32,
    ) -> Result<Self, LnetError> {
        let waiting = Arc::new(AtomicWaker::new());
        let (mut ends, mut name) = (Vec::new(), None);
        for shard in shards {
            let (end, ring) = QueueEnd::new(slots, Arc::clone(&waiting));
            let wants_room = Arc::clone(&end.wants_room);
            let create =
                move |worker: &mut Worker, queues: &mut Queues| queues.create(worker, slots, end, name);
            let handle = shard.end().run(create)??;
            name.get_or_insert(handle);
            ends.push(EventRing { ring, wants_room, wakes: Wakes { shard, slot: handle.0.slot() } });
        }
        let handle = name.ok_or(EqError::Unknown)?;
        let first: &EventRing = ends.first().ok_or(EqError::Unknown)?;
        let wait = Wait::new(first.wakes.shard.end().thread.shared());
        Ok(Self { handle, ends, next: 0, waiting, told: None, waits: Waits::default(), wait })
    }

    /// What descriptors name it by, on each of its shards:
    /// [`MdSpec::event_queue`](lnet_core::md::MdSpec::event_queue).
    #[must_use]
    pub fn handle(&self) -> EqHandle {
        self.handle
    }

    /// The next event, if there is one. Never blocks.
    ///
    /// # Errors
    /// [`LnetError::Ended`] when the node has ended and all events were taken.
    pub fn try_next(&mut self) -> Result<Option<QueuedEvent>, LnetError> {
        let mut stopped = None;
        for _ in 0..self.ends.len() {
            let end = &mut self.ends[self.next];
            match end.pop() {
                Some(Some(queued)) => return Ok(Some(queued)),
                Some(None) => {}
                None => stopped = Some(end.wakes.shard.end().caller.ended()),
            }
            self.next = (self.next + 1) % self.ends.len();
        }
        stopped.map_or(Ok(None), Err)
    }

    /// The next event. Blocks until there is one, or until `timeout` is over: then `None`. A thread that
    /// waits again and again drives the shard itself meanwhile, if the queue is on one shard.
    ///
    /// # Errors
    /// As [`EventQueue::try_next`].
    pub fn next_blocking(&mut self, timeout: Option<Duration>) -> Result<Option<QueuedEvent>, LnetError> {
        if let Some(queued) = self.try_next()? {
            return Ok(Some(queued));
        }
        let now = Clock::of_process().now();
        let until = timeout.map(|timeout| now + timeout);
        // A task that was polled before does not wait any more: the thread does.
        self.give_up();
        let eager =
            self.waits.begin(now, self.ends[0].wakes.shard.end().thread.shared().is_driven_in_pauses());
        let next = self.wait(until, eager);
        self.tell(None);
        self.waits.end();
        next
    }

    fn wait(&mut self, until: Option<Instant>, eager: bool) -> Result<Option<QueuedEvent>, LnetError> {
        let waker = this_thread();
        let mut context = Context::from_waker(&waker);
        let mut deputy = None;
        loop {
            if let [EventRing { ring, wakes, .. }] = &self.ends[..] {
                let thread = &wakes.shard.end().thread;
                thread.drive(|| !ring.is_empty(), until, eager);
                if thread.has_waiting() {
                    // The keeper drives for all.
                    self.waits.reset();
                }
            }
            if let Poll::Ready(next) = self.poll_event(&mut context, WaitKind::Thread) {
                return next.map(Some);
            }
            deputy = deputy.or_else(Deputy::appoint);
            match until.map(|until| until - Clock::of_process().now()) {
                Some(Duration::ZERO) => return Ok(None),
                Some(left) => std::thread::park_timeout(left),
                None => std::thread::park(),
            }
            self.tell(None);
        }
    }

    /// Tells the shards who waits here.
    fn tell(&mut self, waiter: Option<WaitKind>) {
        let told = std::mem::replace(&mut self.told, waiter);
        if told != waiter {
            for EventRing { wakes, .. } in &self.ends {
                let shard = wakes.shard.end().thread.shared();
                for (waiter, waits) in [(told, false), (waiter, true)] {
                    waiter.into_iter().for_each(|waiter| shard.set_waiting(waiter, waits));
                }
            }
        }
    }

    /// No task waits here any more.
    fn give_up(&mut self) {
        self.wait.give_up();
        self.tell(None);
    }

    /// The next event, in whatever runtime. Dropping the future loses nothing. A thread whose tasks wait
    /// again and again drives the shard itself where none of them is ready, for some 50 us at most, if the
    /// queue is on one shard.
    ///
    /// # Errors
    /// As [`EventQueue::try_next`].
    pub async fn next(&mut self) -> Result<QueuedEvent, LnetError> {
        /// What waits, until its future is dropped.
        struct Waiting<'a>(&'a mut EventQueue);

        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.give_up();
            }
        }

        let queue = Waiting(self);
        poll_fn(|context| queue.0.poll_driving(context)).await
    }

    /// Polls for the next event; the thread may drive the shard for a moment before it lets the task wait.
    fn poll_driving(&mut self, context: &mut Context<'_>) -> Poll<Result<QueuedEvent, LnetError>> {
        if self.is_on_several_shards() {
            return self.poll_event(context, WaitKind::Task);
        }
        let mut next = self.poll_ring(context);
        if next.is_pending() && self.wait.is_to_drive(context) {
            // The task, which is polled now, need not be woken.
            drop(self.waiting.take());
            let ring = &self.ends[0].ring;
            let moment = self.wait.drive(|| !ring.is_empty());
            next = self.poll_ring(context);
            if next.is_pending() {
                self.wait.go_on(moment, context);
            }
        }
        if next.is_ready() {
            self.wait.end();
        }
        next
    }

    /// The next event, or a promise to wake the context's task when there is one; the shards are told who
    /// waits.
    pub(super) fn poll_event(
        &mut self,
        context: &mut Context<'_>,
        waiter: WaitKind,
    ) -> Poll<Result<QueuedEvent, LnetError>> {
        self.tell(None);
        let mut next = self.poll_ring(context);
        if next.is_pending() {
            self.tell(Some(waiter));
            // An event that came before the shards were told is not to wait.
            next = self.poll_ring(context);
            if next.is_ready() {
                self.tell(None);
            }
        }
        next
    }

    /// The next event, or a promise to wake the context's task when there is one.
    fn poll_ring(&mut self, context: &mut Context<'_>) -> Poll<Result<QueuedEvent, LnetError>> {
        if let Some(next) = self.try_next().transpose() {
            return Poll::Ready(next);
        }
        self.waiting.register(context.waker());
        // An event that came before the promise has not woken the consumer.
        self.try_next().transpose().map_or(Poll::Pending, Poll::Ready)
    }

    /// The shard that it is on, or the first of them.
    #[must_use]
    pub fn shard(&self) -> &ShardHandle {
        &self.ends[0].wakes.shard
    }

    /// Whether it is on several shards.
    #[must_use]
    pub fn is_on_several_shards(&self) -> bool {
        self.ends.len() > 1
    }
}

/// The events until the shard ends.
impl Stream for EventQueue {
    type Item = QueuedEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<QueuedEvent>> {
        self.poll_driving(context).map(Result::ok)
    }
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        self.tell(None);
    }
}

/// A waker of the thread that calls; made once for each.
pub(super) fn this_thread() -> Waker {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
        fn wake_by_ref(self: &Arc<Self>) {
            self.0.unpark();
        }
    }

    thread_local! {
        static WAKER: Waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    }
    WAKER.with(Waker::clone)
}
