//! Requests and replies: a client sends a few bytes to a server and awaits a few bytes back, within a time.
//!
//! ```text
//!  Client::call   -- PUT, match bits of the service, header data N -->  Server::next
//!                 <------- PUT to the reply portal, match bits N -----  ReceivedRequest::reply
//! ```
//!
//! Longer data goes beside that: the client posts it, or room for it, under match bits that its request
//! names, and the server gets or puts it there ([`ReceivedRequest::event`], [`Target::reply_to`]);
//! `examples/request_reply.rs` does so.
//!
//! Invariants: `N` is a number that no other node can guess and that no two calls of a client share, so a
//! reply reaches the call that it answers or none. Nothing of a call that has ended, or whose future was
//! dropped, stays posted.
//!
//! ```
//! use std::time::Duration;
//! use lnet_user::rpc::{Client, Server, ServiceSpec};
//! use lnet_user::{Buffer, Lnet, Nid, NodeConfig};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let lnet = Lnet::start(&NodeConfig::loopback())?;
//! let service = ServiceSpec::new(4, 5);
//! let mut server = Server::start(&lnet, &service)?;
//! let client = Client::new(&lnet, &service)?;
//!
//! let asking = client.call(Nid::LO, Buffer::from(b"ping".to_vec()), Duration::from_secs(5));
//! let answering = async {
//!     let call = server.next().await?;
//!     let reply = [call.request(), b" pong"].concat();
//!     call.reply(Buffer::from(reply)).await
//! };
//! let (reply, _) = tokio::try_join!(asking, answering)?;
//! assert_eq!(reply.payload(), Some(&b"ping pong"[..]));
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example()).unwrap();
//! ```

use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::stream::Stream;
use lnet_core::event::Event;
use lnet_core::handle::{MdHandle, MeHandle};
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_io::locks::Mutex;
use lnet_io::memory::Buffer;
use lnet_wire::{Nid, ProcessId};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::calls::Command;
use super::request::PutOrGet;
use super::service::Queues;
use super::waits::Answered;
use super::{Ack, Entry, EventQueue, Lnet, LnetError, QueuedEvent, ShardHandle, Target};
use crate::node::setters;
use crate::runtime::wakes::Awaited;
use crate::runtime::{Home, LendError, Worker, entry_home};

/// Buffers for requests on each shard: one is filled while another is posted anew.
const ROOMS: u64 = 2;
/// Event slots of a call at its client: its PUT and the reply, each with one for its end.
const CALL_EVENTS: u32 = 4;

/// Where a service is found, and how long its messages are: the same at both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ServiceSpec {
    /// Portal of the requests, 0 to 63. Another one than that of the replies, and the service's alone.
    pub portal: u32,
    /// Portal of the replies, at the clients.
    pub reply_portal: u32,
    /// Match bits of the requests; 0 by default.
    pub match_bits: u64,
    /// Longest request in bytes; 4096 by default.
    pub request_bytes: u32,
    /// Longest reply in bytes; 4096 by default.
    pub reply_bytes: u32,
    /// Calls at once: of a client those that are not answered, of a server those whose requests were not yet
    /// taken. 64 by default.
    pub calls: u32,
}

impl ServiceSpec {
    /// A service with these portals, and the defaults.
    #[must_use]
    pub const fn new(portal: u32, reply_portal: u32) -> Self {
        Self { portal, reply_portal, match_bits: 0, request_bytes: 4096, reply_bytes: 4096, calls: 64 }
    }

    setters! {
        match_bits: u64,
        request_bytes: u32,
        reply_bytes: u32,
        calls: u32,
    }
}

/// What sends requests. May be used by many tasks at once.
#[derive(Debug)]
pub struct Client {
    lnet: Lnet,
    service: ServiceSpec,
    /// Takes what no call waits for any more.
    events: Mutex<EventQueue>,
    secret: RandomState,
    next: AtomicU64,
}

impl Client {
    /// A client of a service, whichever nodes offer it.
    ///
    /// # Errors
    /// [`LnetError::Queue`] when a shard has no room for its event queue.
    pub fn new(lnet: &Lnet, service: &ServiceSpec) -> Result<Self, LnetError> {
        let events = Mutex::new(lnet.create_event_queue(service.calls.saturating_mul(CALL_EVENTS))?);
        let (secret, next) = (RandomState::new(), AtomicU64::new(0));
        Ok(Self { lnet: lnet.clone(), service: *service, events, secret, next })
    }

    /// Sends a request and waits for its reply, at most so long, in whatever runtime: the event of the reply,
    /// whose [`QueuedEvent::payload`] it is. The request may have been carried out even where no reply comes.
    /// Dropping the future gives the call up.
    ///
    /// # Errors
    /// [`LnetError::NotSent`], [`LnetError::NoReply`] after the timeout, [`LnetError::LongReply`];
    /// [`LnetError::Lend`] and [`LnetError::Request`] when it does not start, for instance since too many
    /// calls are under way; [`LnetError::EachShard`] if the reply portal has the policy `Initiator`.
    pub async fn call(
        &self,
        server: Nid,
        request: Buffer,
        timeout: Duration,
    ) -> Result<QueuedEvent, LnetError> {
        let expired = sleep(timeout)?;
        let number = self.secret.hash_one(self.next.fetch_add(1, Ordering::Relaxed));
        let (shard, queue) = (self.shard_of_reply(number)?, self.drained());
        let ServiceSpec { portal, reply_portal, match_bits, reply_bytes, .. } = self.service;
        let room = Buffer::zeroed(reply_bytes as usize);
        let room_md = room.spec(Threshold::Count(1), MdOptions::PUT | MdOptions::TRUNCATE, queue);
        let entry = EntrySpec::new(reply_portal, number);
        let request_md = request.spec(Threshold::Count(1), MdOptions::NONE, queue);
        let to = Target::new(server, portal, match_bits);
        let ((tell_reply, reply), (tell_sent, sent)) = (oneshot::channel(), oneshot::channel());
        let (mut reply, mut sent) = (Answered::new(shard.end().thread.shared(), reply), Awaited::new(sent));
        let start = move |worker: &mut Worker, queues: &mut Queues| {
            let (entry, room) = queues.expect(worker, &entry, &room_md, room, tell_reply)?;
            let put = |md| PutOrGet::put(md, &to, Ack::NotWanted, number);
            let request = queues.send(worker, &request_md, request, put, tell_sent).inspect_err(|_| {
                // The entry is there, so that this succeeds.
                let _ = worker.unlink_entry(entry);
            })?;
            Ok::<_, LnetError>((entry, room, request))
        };
        let started = shard.end().run_async(start, |started, worker, queues| {
            let calls = started.map(undo).ok();
            calls.into_iter().flatten().for_each(|call| queues.answer(call, worker));
        })?;
        let mut posted = Posted { shard: &shard, started, handles: None, is_over: false };
        let ended = || shard.end().caller.ended();
        posted.handles = Some((&mut posted.started).await.map_err(|_| ended())??);
        let (mut expired, mut is_sent) = (std::pin::pin!(expired), false);
        let reply = loop {
            tokio::select! {
                biased;
                reply = &mut reply => break reply??,
                sent = &mut sent, if !is_sent => {
                    let status = sent.map_err(|_| ended())??.event.status();
                    is_sent = true;
                    if status != Status::Ok {
                        return Err(LnetError::NotSent { nid: server, status });
                    }
                }
                () = &mut expired => return Err(LnetError::NoReply { server, timeout }),
            }
        };
        posted.is_over = reply.event.unlinked();
        match reply.event {
            Event::Put { md, requested_bytes, manipulated_bytes, .. } if md.status == Status::Ok => {
                let is_whole = requested_bytes == manipulated_bytes;
                if is_whole { Ok(reply) } else { Err(LnetError::LongReply { requested_bytes, reply_bytes }) }
            }
            event => Err(LnetError::NotSent { nid: server, status: event.status() }),
        }
    }

    /// Where the reply of this number arrives.
    fn shard_of_reply(&self, number: u64) -> Result<ShardHandle, LnetError> {
        let portal = self.service.reply_portal;
        let home = entry_home(&self.lnet.steering(), portal, &ProcessId::ANY, number, 0);
        match home.map_err(LendError::from)? {
            Home::Shard(shard) => self.lnet.shard(shard as usize),
            Home::Any => self.lnet.shard((number % self.lnet.shard_count() as u64) as usize),
            Home::Each => Err(LnetError::EachShard(portal)),
        }
    }

    /// The event queue, without what came of calls that were given up.
    fn drained(&self) -> lnet_core::handle::EqHandle {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        // A shard that has ended is told of where it is called.
        while let Ok(Some(_)) = events.try_next() {}
        events.handle()
    }
}

/// What a call has made on a shard, which goes with its future.
struct Posted<'a> {
    shard: &'a ShardHandle,
    started: Awaited<oneshot::Receiver<Result<Handles, LnetError>>>,
    handles: Option<Handles>,
    /// The entry has gone by itself.
    is_over: bool,
}

/// The entry and the descriptor for the reply, and the descriptor of the request.
type Handles = (MeHandle, MdHandle, MdHandle);

/// What takes them away again.
fn undo((entry, room, request): Handles) -> [Command; 2] {
    [Command::UnlinkEntry(entry, room), Command::Unlink(request)]
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let started = self.started.get();
        started.close();
        let late = || started.try_recv().ok().and_then(Result::ok);
        for call in self.handles.or_else(late).map(undo).into_iter().flatten() {
            // A shard that has ended has unlinked everything.
            let _ = self.shard.end().enqueue(call);
        }
    }
}

/// What takes requests. Its portal is lazy while it lives, so requests wait where no room is posted at the
/// moment.
#[derive(Debug)]
pub struct Server {
    lnet: Lnet,
    service: ServiceSpec,
    events: EventQueue,
    /// Entries with their shards, by user pointer, which begins at 1.
    rooms: Vec<(usize, Option<Entry>)>,
}

impl Server {
    /// Posts room for requests on each shard that they come to. Call [`Lnet::open`] behind it.
    ///
    /// # Errors
    /// [`LnetError::Portal`], [`LnetError::Queue`], [`LnetError::Lend`]: what the node has no room for.
    pub fn start(lnet: &Lnet, service: &ServiceSpec) -> Result<Self, LnetError> {
        let ServiceSpec { portal, match_bits, calls, .. } = *service;
        let home = entry_home(&lnet.steering(), portal, &ProcessId::ANY, match_bits, 0);
        let homes = match home.map_err(LendError::from)? {
            Home::Shard(shard) => vec![shard as usize],
            Home::Any | Home::Each => (0..lnet.shard_count()).collect(),
        };
        // Events of requests in all rooms, and of replies: a SEND and the end.
        let slots =
            (ROOMS as u32).saturating_mul(calls.saturating_add(1)).saturating_add(calls.saturating_mul(2));
        let events = lnet.create_event_queue(slots)?;
        lnet.set_lazy(portal, true)?;
        let mut server = Self { lnet: lnet.clone(), service: *service, events, rooms: Vec::new() };
        for shard in homes {
            for _ in 0..ROOMS {
                server.rooms.push((shard, None));
                server.post(server.rooms.len() - 1)?;
            }
        }
        Ok(server)
    }

    fn post(&mut self, room: usize) -> Result<(), LnetError> {
        let ServiceSpec { portal, match_bits, request_bytes, calls, .. } = self.service;
        let buffer = Buffer::zeroed(request_bytes as usize * calls as usize);
        let md = MdSpec {
            max_size_bytes: Some(request_bytes.into()),
            user_ptr: room as u64 + 1,
            ..buffer.spec(Threshold::Count(calls), MdOptions::PUT, self.events.handle())
        };
        let (shard, former) = &mut self.rooms[room];
        // The entry is gone already.
        if let Some(former) = former.take() {
            former.detach();
        }
        let entry = self.lnet.shard(*shard)?.attach(&EntrySpec::new(portal, match_bits), &md, buffer);
        *former = Some(entry.map_err(|refused| refused.error)?);
        Ok(())
    }

    /// The next request, in whatever runtime. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`LnetError::Ended`] when the node has ended.
    pub async fn next(&mut self) -> Result<ReceivedRequest, LnetError> {
        loop {
            let queued = self.events.next().await?;
            if let Some(call) = self.take(queued)? {
                return Ok(call);
            }
        }
    }

    /// The [`Server::next`] request, for which it blocks, at most so long; then `None`.
    ///
    /// # Errors
    /// As [`Server::next`].
    pub fn next_blocking(&mut self, timeout: Option<Duration>) -> Result<Option<ReceivedRequest>, LnetError> {
        let begun = std::time::Instant::now();
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            let Some(queued) = self.events.next_blocking(left)? else { return Ok(None) };
            if let Some(call) = self.take(queued)? {
                return Ok(Some(call));
            }
        }
    }

    /// The request that an event tells of. A room that is used up is posted anew.
    fn take(&mut self, queued: QueuedEvent) -> Result<Option<ReceivedRequest>, LnetError> {
        if let (Some(room), true) = (queued.event.user_ptr().checked_sub(1), queued.event.unlinked()) {
            self.post(room as usize)?;
        }
        let event = &queued.event;
        let (Event::Put { hdr_data, .. }, Status::Ok) = (*event, event.status()) else { return Ok(None) };
        let Some(to) = Target::reply_to(event, self.service.reply_portal, hdr_data) else { return Ok(None) };
        let shard = self.lnet.shard(event.md().0.shard().0.into())?;
        Ok(Some(ReceivedRequest { queued, to, shard, queue: self.events.handle() }))
    }
}

/// Requests until the node ends. An error is of a room that was not posted anew.
impl Stream for Server {
    type Item = Result<ReceivedRequest, LnetError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Some(queued) = ready!(Pin::new(&mut self.events).poll_next(context)) else {
                return Poll::Ready(None);
            };
            if let Some(next) = self.take(queued).transpose() {
                return Poll::Ready(Some(next));
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.rooms.clear();
        // A shard that has ended has nothing left to be changed.
        let _ = self.lnet.set_lazy(self.service.portal, false);
    }
}

/// A request that has arrived, to be answered. Dropped without an answer, its client waits until its timeout.
#[derive(Debug)]
pub struct ReceivedRequest {
    queued: QueuedEvent,
    to: Target,
    shard: ShardHandle,
    queue: lnet_core::handle::EqHandle,
}

impl ReceivedRequest {
    /// The request.
    #[must_use]
    pub fn request(&self) -> &[u8] {
        self.queued.payload().unwrap_or_default()
    }

    /// The node that asks.
    #[must_use]
    pub fn client(&self) -> Nid {
        self.to.process.nid
    }

    /// The PUT that brought it.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.queued.event
    }

    /// Sends the reply. It is on its way even if the future is dropped, which is ready when the client's node
    /// has it.
    ///
    /// # Errors
    /// [`LnetError::NotSent`]; as [`Client::call`] when it does not start.
    pub fn reply(self, reply: Buffer) -> impl Future<Output = Result<(), LnetError>> + Send + 'static {
        let Self { queued, to, shard, queue } = self;
        let md = reply.spec(Threshold::Count(1), MdOptions::NONE, queue);
        let (tell, sent) = oneshot::channel();
        let start = move |worker: &mut Worker, queues: &mut Queues| {
            queues.send(worker, &md, reply, |md| PutOrGet::put(md, &to, Ack::NotWanted, 0), tell).map(drop)
        };
        // The reply goes on without its future.
        let started = shard.end().run_async(start, |_, _, _| {});
        // Its bytes are needed no longer.
        drop(queued);
        let nid = to.process.nid;
        async move {
            let ended = || shard.end().caller.ended();
            started?.await.map_err(|_| ended())??;
            match Awaited::new(sent).await.map_err(|_| ended())??.event.status() {
                Status::Ok => Ok(()),
                status => Err(LnetError::NotSent { nid, status }),
            }
        }
    }
}

/// A timer that works in whatever runtime: those of all nodes are on one thread of the process.
fn sleep(time: Duration) -> Result<Sleep, LnetError> {
    static TIMERS: LazyLock<std::io::Result<Handle>> = LazyLock::new(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("lnet-timers".into());
        thread.spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        Ok(handle)
    });
    let timers = TIMERS.as_ref().map_err(|error| LnetError::Control(error.kind().into()))?;
    let _guard = timers.enter();
    Ok(tokio::time::sleep(time))
}
