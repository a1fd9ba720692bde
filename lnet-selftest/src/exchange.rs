//! Messages of selftest: requests with their replies, and bulk data (LNet `selftest/rpc.c`).
//!
//! A client posts room for the reply, and its bulk data or the room for that, under match bits that cannot be
//! guessed; the request names them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::rc::{Rc, Weak};

use lnet_user::api::{
    Ack, Entry, EventQueue, LnetError, NotLent, OwnedRequest, QueuedEvent, ShardHandle, Target,
};
use lnet_user::runtime::{Home, entry_home};
use lnet_user::{
    Buffer, EntrySpec, EqHandle, Event, Limits, Lnet, MdOptions, MdSpec, Nid, ProcessId, Status, Threshold,
};
use lnet_wire::selftest::{Body, MESSAGE_BYTES, Message, REPLY_PORTAL, RpcCounters};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::bulk::Sinks;
use crate::failure::{CALL_PATIENCE, CallError, not_sent};
use crate::source::{Offer, Source};

/// Requests of this node that are under way at once; more wait.
pub(crate) const CALLS_MAX: usize = 256;
/// Requests of the console, which do not wait behind those of tests: it asks for no more at once.
pub(crate) const ORDERS_MAX: usize = 128;
/// Replies and bulk data for requests of others that are under way at once, at most.
pub(crate) const ANSWERS_MAX: usize = 192;
/// Event slots of a request: those of itself, of its reply and of bulk data, each with the end of its
/// descriptor.
const CALL_SLOTS: usize = 6;
/// Event slots of an answer: bulk data with its REPLY, and the reply.
const ANSWER_SLOTS: usize = 5;
/// Bulk data that a request lends to its server.
pub(crate) enum Bulk {
    Nothing,
    /// Bytes to be got.
    Source(Buffer),
    /// The bytes of an [`Offer`], by its match bits.
    Offered(u64),
    /// Room to be put into.
    Sink(Buffer),
}

/// A request but for its body.
pub(crate) struct Call {
    pub(crate) to: ProcessId,
    pub(crate) features: u32,
    pub(crate) bulk: Bulk,
}

/// Nothing was counted yet.
pub(crate) const NO_RPCS: RpcCounters = RpcCounters {
    errors: 0,
    sent: 0,
    received: 0,
    dropped: 0,
    expired: 0,
    bulk_get_bytes: 0,
    bulk_put_bytes: 0,
};

/// A node's messages of selftest.
pub(crate) struct Exchange {
    pub(crate) lnet: Lnet,
    /// Where messages start.
    shard: ShardHandle,
    pub(crate) source: Source,
    pub(crate) sinks: Sinks,
    /// The offer of the tests that run.
    offer: RefCell<Weak<OnceCell<Offer>>>,
    events: EqHandle,
    /// Who waits for the event of an entry, by user pointer.
    routes: RefCell<HashMap<u64, oneshot::Sender<QueuedEvent>>>,
    next: Cell<u64>,
    secret: RandomState,
    calls: Semaphore,
    pub(crate) counters: RefCell<RpcCounters>,
}

/// An entry that one message is to come to.
struct Posted<'a> {
    exchange: &'a Exchange,
    route: u64,
    arrived: oneshot::Receiver<QueuedEvent>,
    entry: Posting,
}

/// An entry, on its way to the shard at first.
enum Posting {
    Begun(Pin<Box<dyn Future<Output = Result<Entry, NotLent>>>>),
    Done(Entry),
    Over,
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        self.exchange.routes.borrow_mut().remove(&self.route);
    }
}

impl Posted<'_> {
    /// Waits until the entry is there.
    async fn made(&mut self) -> Result<(), LnetError> {
        if let Posting::Begun(making) = &mut self.entry {
            let made = making.await;
            self.entry = Posting::Over;
            self.entry = Posting::Done(made.map_err(|refused| refused.error)?);
        }
        Ok(())
    }

    async fn arrived(&mut self, deadline: Instant) -> Result<QueuedEvent, CallError> {
        self.made().await?;
        let arrived = timeout_at(deadline, &mut self.arrived).await.map_err(|_| CallError::Expired)?;
        let queued = arrived.map_err(|_| CallError::Expired)?;
        if queued.event.unlinked()
            && let Posting::Done(entry) = std::mem::replace(&mut self.entry, Posting::Over)
        {
            entry.detach();
        }
        match queued.event.status() {
            Status::Ok => Ok(queued),
            status => {
                let origin = queued.event.origin();
                Err(not_sent(origin.map_or(Nid::ANY, |origin| origin.initiator.nid), status))
            }
        }
    }
}

/// Brings the events of entries, and of the source, to those that wait for them.
pub(crate) async fn dispatch(exchange: Rc<Exchange>, mut events: EventQueue) {
    while let Ok(queued) = events.next().await {
        if matches!(queued.event, Event::Put { .. } | Event::Get { .. }) {
            let route = exchange.routes.borrow_mut().remove(&queued.event.user_ptr());
            // Its request may have been given up.
            let _ = route.map(|route| route.send(queued));
        } else {
            exchange.source.sent(&queued.event);
        }
    }
}

impl Exchange {
    /// The exchange, and the events for [`dispatch`].
    pub(crate) fn new(lnet: &Lnet) -> Result<(Rc<Self>, EventQueue), LnetError> {
        let slots = ((CALLS_MAX + ORDERS_MAX) * CALL_SLOTS + ANSWERS_MAX * ANSWER_SLOTS) as u32
            + Limits::DEFAULT.unlimited_events;
        let events = lnet.create_event_queue(slots)?;
        let exchange = Self {
            lnet: lnet.clone(),
            shard: events.shard().clone(),
            source: Source::new(events.shard(), events.handle()),
            sinks: Sinks::default(),
            offer: RefCell::default(),
            events: events.handle(),
            routes: RefCell::default(),
            next: Cell::new(1),
            secret: RandomState::new(),
            calls: Semaphore::new(CALLS_MAX),
            counters: RefCell::new(NO_RPCS),
        };
        Ok((Rc::new(exchange), events))
    }

    /// An event queue for a task.
    pub(crate) fn create_event_queue(&self, slots: u32) -> Result<EventQueue, LnetError> {
        self.lnet.create_event_queue(slots)
    }

    fn next(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// Match bits that cannot be guessed.
    fn draw(&self) -> u64 {
        self.secret.hash_one(self.next())
    }

    /// The place of the data that tests write, which they share. It is posted for the first of them, and goes
    /// with the last.
    pub(crate) fn offer(&self) -> Rc<OnceCell<Offer>> {
        let mut known = self.offer.borrow_mut();
        known.upgrade().unwrap_or_else(|| {
            let new = Rc::default();
            *known = Rc::downgrade(&new);
            new
        })
    }

    /// The match bits of a write's data.
    pub(crate) async fn offered(&self, offer: &OnceCell<Offer>) -> Result<u64, LnetError> {
        let posted = offer.get_or_try_init(|| Offer::post(&self.lnet, || self.draw())).await?;
        Ok(posted.match_bits())
    }

    /// Posts an entry, which is on its way to its shard when this returns.
    fn post(&self, match_bits: u64, options: MdOptions, buffer: Buffer) -> Posted<'_> {
        let route = self.next();
        let (sender, arrived) = oneshot::channel();
        self.routes.borrow_mut().insert(route, sender);
        let spec = buffer.spec(Threshold::Count(1), options, self.events);
        let md = MdSpec { user_ptr: route, ..spec };
        let spec = EntrySpec::new(REPLY_PORTAL, match_bits).of_node();
        let making = self.lnet.attach_async(&spec, &md, buffer);
        Posted { exchange: self, route, arrived, entry: Posting::Begun(Box::pin(making)) }
    }

    /// Whether an entry for these match bits is posted on the shard that messages start on.
    fn is_near(&self, match_bits: u64) -> bool {
        match entry_home(&self.lnet.steering(), REPLY_PORTAL, &ProcessId::ANY, match_bits, 0) {
            Ok(Home::Shard(shard)) => shard == u32::from(self.shard.id().0),
            Ok(Home::Any) => true,
            Ok(Home::Each) | Err(_) => false,
        }
    }

    /// The turn of a test's request, until it is dropped. What a request takes is made in its turn.
    pub(crate) async fn turn(&self) -> Result<SemaphorePermit<'_>, CallError> {
        self.calls.acquire().await.map_err(|_| CallError::Expired)
    }

    /// Sends a request, and waits for its reply and for its bulk data, which comes back. `body` makes the
    /// request of the match bits of reply and bulk data. There is room for the requests of tests that have
    /// their turn ([`Exchange::turn`]), and for [`ORDERS_MAX`] of the console.
    pub(crate) async fn call(
        &self,
        call: Call,
        body: impl FnOnce(u64, u64) -> Body,
    ) -> Result<(Message, Option<Buffer>), CallError> {
        let done = self.exchange(call, body).await;
        let mut counters = self.counters.borrow_mut();
        match &done {
            Ok(_) => {}
            Err(CallError::Expired) => counters.expired += 1,
            Err(_) => counters.errors += 1,
        }
        done
    }

    async fn exchange(
        &self,
        Call { to, features, bulk }: Call,
        body: impl FnOnce(u64, u64) -> Body,
    ) -> Result<(Message, Option<Buffer>), CallError> {
        let deadline = Instant::now() + CALL_PATIENCE;
        let [reply_id, mut bulk_id] = [(); 2].map(|()| self.draw());
        let room = Buffer::zeroed(MESSAGE_BYTES);
        let mut reply = self.post(reply_id, MdOptions::PUT | MdOptions::TRUNCATE, room);
        let lent = match bulk {
            Bulk::Nothing => None,
            Bulk::Source(buffer) => Some((MdOptions::GET, buffer)),
            Bulk::Offered(match_bits) => {
                bulk_id = match_bits;
                None
            }
            Bulk::Sink(buffer) => Some((MdOptions::PUT | MdOptions::TRUNCATE, buffer)),
        };
        let mut data = None;
        if let Some((options, buffer)) = lent {
            let length = buffer.len();
            data = Some((self.post(bulk_id, options, buffer), length));
        }
        // What is posted on the shard that the request starts on is there before that, and not waited for.
        if !self.is_near(reply_id) {
            reply.made().await?;
        }
        if let Some((data, _)) = &mut data
            && !self.is_near(bulk_id)
        {
            data.made().await?;
        }
        let body = body(reply_id, bulk_id);
        let service = body.request().map(|(service, _)| service).ok_or(CallError::NoRequest)?;
        let target = Target::new(to.nid, service.portal(), service.match_bits());
        let target = Target { process: to, ..target };
        let request = Message::new(features, body);
        self.send(&target, Buffer::from(request.encode().to_vec()), deadline).await?;
        self.counters.borrow_mut().sent += 1;
        let replied = reply.arrived(deadline).await?;
        let reply = Message::decode(replied.payload().unwrap_or_default())?;
        let mut buffer = None;
        if let Some((data, length)) = &mut data
            && reply.body.status().is_some_and(|status| status.0 == 0)
        {
            let moved = data.arrived(deadline).await?;
            let bytes = moved.event.manipulated_bytes();
            if bytes as usize != *length {
                return Err(CallError::Length(bytes, *length));
            }
            buffer = moved.into_buffer();
        }
        Ok((reply, buffer))
    }

    /// Puts bytes to a node, without an ACK.
    pub(crate) async fn send(&self, to: &Target, bytes: Buffer, deadline: Instant) -> Result<(), CallError> {
        let md = bytes.spec(Threshold::Count(1), MdOptions::NONE, self.events);
        let put = self.shard.send(OwnedRequest::put(&md, bytes, to, Ack::NotWanted, 0));
        let sent = timeout_at(deadline, put).await.map_err(|_| CallError::Expired)??;
        match sent.event.status() {
            Status::Ok => Ok(()),
            status => Err(not_sent(to.process.nid, status)),
        }
    }

    /// Gets bytes from a node into the whole of a buffer: how many have come, and the buffer.
    pub(crate) async fn fetch(&self, from: &Target, room: Buffer) -> Result<(u32, Buffer), CallError> {
        let deadline = Instant::now() + CALL_PATIENCE;
        let length = room.len();
        let md = room.spec(Threshold::Count(2), MdOptions::TRACK_RESPONSE, self.events);
        let get = self.shard.send(OwnedRequest::get(&md, room, from));
        let got = timeout_at(deadline, get).await.map_err(|_| CallError::Expired)??;
        match got.event.status() {
            Status::Ok => {
                let bytes = got.event.manipulated_bytes();
                Ok((bytes, got.into_buffer().ok_or(CallError::Length(bytes, length))?))
            }
            status => Err(not_sent(from.process.nid, status)),
        }
    }
}
