//! The services of a node: requests are taken, and answered (LNet `rpc.c: srpc_server_rpc_done`,
//! `framework.c`, `brw_test.c`, `ping_test.c`).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use lnet_model::pattern::escaped;
use lnet_user::api::{Entry, EventQueue, LnetError, QueuedEvent, ShardHandle, Target};
use lnet_user::runtime::{Home, LendError, entry_home};
use lnet_user::{
    Buffer, EntrySpec, Event, MdOptions, MdSpec, Nid, Position, ProcessId, Status as LnetStatus, Threshold,
};
use lnet_wire::selftest::{
    AddTest, BULK_BYTES_MAX, Body, Brw, Check, DebugReply, Destination, Direction, FEATURE_VARIABLE_LENGTH,
    FEATURES, FRAMEWORK_PORTAL, FrameworkCounters, LnetCounters, MESSAGE_BYTES, Message, Name, PAGE_BYTES,
    PING_MAGIC, Ping, PingReply, REPLY_PORTAL, SessionId, SessionReply, StatReply, Status, StatusReply,
    TEST_PORTAL, VERSION, WORD_BYTES,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::exchange::{ANSWERS_MAX, CALLS_MAX, Exchange, NO_RPCS, ORDERS_MAX};
use crate::failure::CallError;
use crate::session::Sessions;
use crate::turns::{Room, Turns};
use crate::{bulk, client};

/// Requests that a posted buffer takes.
const ROOM_REQUESTS: u32 = 64;
/// Buffers that are posted on a shard: one is filled while another is posted anew.
const ROOMS: usize = 2;
/// Requests to the framework that are answered at once.
const FRAMEWORK_ANSWERS_MAX: usize = 64;
/// Requests to the framework that wait: for any source as many as a console may have under way.
const FRAMEWORK_ROOM: usize = 8 * ORDERS_MAX;
/// Requests of tests that wait: for any source as many as a client may have under way, and for a kernel node
/// the most units of three tests.
const TEST_ROOM: usize = 64 * CALLS_MAX;
/// How long a reply may be on its way.
const REPLY_PATIENCE: Duration = Duration::from_secs(64);
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// A node's services.
pub(crate) struct Server {
    common: Rc<Common>,
}

/// The parts of a node that all requests have in common.
struct Common {
    exchange: Rc<Exchange>,
    sessions: RefCell<Sessions>,
}

/// The taker of a portal's requests.
struct Requests {
    portal: u32,
    events: EventQueue,
    /// Entries with their shards, by user pointer.
    rooms: Vec<(ShardHandle, Option<Entry>)>,
}

/// The requests of a portal that are answered, and those that wait for that.
struct Answers {
    common: Rc<Common>,
    turns: RefCell<Turns<(Message, Target, Instant)>>,
    /// Told when a request that waited does so no more.
    moved: Notify,
}

impl Server {
    /// Posts room for requests, and answers those that come.
    pub(crate) fn start(exchange: &Rc<Exchange>) -> Result<Self, LnetError> {
        let common = Rc::new(Common { exchange: Rc::clone(exchange), sessions: RefCell::default() });
        let framework = Turns::new(FRAMEWORK_ANSWERS_MAX, FRAMEWORK_ROOM, ORDERS_MAX);
        let tests = Turns::new(ANSWERS_MAX - FRAMEWORK_ANSWERS_MAX, TEST_ROOM, CALLS_MAX);
        let portals = [(FRAMEWORK_PORTAL, framework), (TEST_PORTAL, tests)];
        let queues = portals.map(|(portal, turns)| (Requests::post_all(exchange, portal), turns));
        for (requests, turns) in queues {
            let (common, turns) = (Rc::clone(&common), RefCell::new(turns));
            let answers = Rc::new(Answers { common, turns, moved: Notify::new() });
            tokio::task::spawn_local(take_requests(answers, requests?));
        }
        let watched = Rc::clone(&common);
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(EXPIRY_INTERVAL).await;
                let mut sessions = watched.sessions.borrow_mut();
                sessions.expire();
                if !sessions.is_any() {
                    watched.exchange.sinks.clear();
                }
            }
        });
        Ok(Self { common })
    }

    /// Ends the session; requests wait nowhere any more.
    pub(crate) fn stop(&self) {
        self.common.sessions.borrow_mut().end();
        for portal in [FRAMEWORK_PORTAL, TEST_PORTAL] {
            // A shard that has ended has nothing left to be changed.
            let _ = self.common.exchange.lnet.set_lazy(portal, false);
        }
    }
}

impl Requests {
    fn post_all(exchange: &Exchange, portal: u32) -> Result<Self, LnetError> {
        let lnet = &exchange.lnet;
        let events = exchange.create_event_queue(ROOMS as u32 * (ROOM_REQUESTS + 1))?;
        lnet.set_lazy(portal, true)?;
        let home = entry_home(&lnet.steering(), portal, &ProcessId::ANY, 0, u64::MAX);
        let homes = match home.map_err(LendError::from)? {
            Home::Shard(shard) => vec![lnet.shard(shard as usize)?],
            Home::Any | Home::Each => lnet.shards().collect(),
        };
        let shards = homes.into_iter().flat_map(|shard| [(); ROOMS].map(|()| (shard.clone(), None)));
        let rooms = shards.collect();
        let mut requests = Self { portal, events, rooms };
        for room in 0..requests.rooms.len() {
            requests.post(room)?;
        }
        Ok(requests)
    }

    /// Posts a buffer for requests of any number: one without a service would hold up all others of its
    /// connection.
    fn post(&mut self, room: usize) -> Result<(), LnetError> {
        let buffer = Buffer::zeroed(MESSAGE_BYTES * ROOM_REQUESTS as usize);
        let options = MdOptions::PUT | MdOptions::TRUNCATE | MdOptions::ACK_DISABLE;
        let spec = buffer.spec(Threshold::Count(ROOM_REQUESTS), options, self.events.handle());
        let md = MdSpec { max_size_bytes: Some(MESSAGE_BYTES as u64), user_ptr: room as u64, ..spec };
        let entry = EntrySpec::new(self.portal, 0).of_node();
        let entry = EntrySpec { ignore_bits: u64::MAX, position: Position::Last, ..entry };
        let (shard, former) = &mut self.rooms[room];
        if let Some(former) = former.take() {
            former.detach();
        }
        *former = Some(shard.attach(&entry, &md, buffer).map_err(|refused| refused.error)?);
        Ok(())
    }
}

async fn take_requests(answers: Rc<Answers>, mut requests: Requests) {
    let counters = &answers.common.exchange.counters;
    while let Ok(queued) = requests.events.next().await {
        if queued.event.unlinked()
            && let Err(error) = requests.post(queued.event.user_ptr() as usize)
        {
            tracing::error!(%error, portal = requests.portal, "selftest takes no more requests");
            return;
        }
        let Some((request, from)) = request(&queued) else {
            let is_request = matches!(queued.event, Event::Put { .. });
            counters.borrow_mut().dropped += u32::from(is_request);
            continue;
        };
        drop(queued);
        let nid = from.process.nid;
        if !answers.has_room(nid).await {
            tracing::debug!(from = %nid, "a selftest request is dropped: others of its source wait");
            counters.borrow_mut().dropped += 1;
            continue;
        }
        answers.turns.borrow_mut().push(nid, (request, from, Instant::now()));
        counters.borrow_mut().received += 1;
        answers.begin();
    }
}

impl Answers {
    /// Whether a source may have one more request wait; where those of many others fill the room, this waits.
    async fn has_room(&self, source: Nid) -> bool {
        loop {
            let room = self.turns.borrow().room_for(source);
            match room {
                Room::Now => return true,
                Room::None => return false,
                Room::Later => self.moved.notified().await,
            }
        }
    }

    /// Answers the requests whose turn it is.
    fn begin(self: &Rc<Self>) {
        loop {
            let next = self.turns.borrow_mut().next();
            let Some((nid, (request, from, came_at))) = next else { return };
            self.moved.notify_one();
            if came_at.elapsed() > REPLY_PATIENCE {
                // Its client has given it up.
                self.common.exchange.counters.borrow_mut().dropped += 1;
                self.turns.borrow_mut().done(nid);
                continue;
            }
            let answers = Rc::clone(self);
            let place = Place { answers: Rc::clone(self), nid };
            tokio::task::spawn_local(async move {
                if let Err(error) = answers.common.answer(&request, from).await {
                    tracing::debug!(%error, from = %nid, "a selftest request is not answered");
                    answers.common.exchange.counters.borrow_mut().errors += 1;
                }
                drop(place);
                answers.begin();
            });
        }
    }
}

/// The place of a request that is answered: free once that is over, however it ends.
struct Place {
    answers: Rc<Answers>,
    nid: Nid,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.answers.turns.borrow_mut().done(self.nid);
    }
}

/// The request that an event tells of, and where its reply goes; `None` of what is dropped.
fn request(queued: &QueuedEvent) -> Option<(Message, Target)> {
    let Event::Put { requested_bytes, .. } = queued.event else { return None };
    if queued.event.status() != LnetStatus::Ok || requested_bytes as usize != MESSAGE_BYTES {
        return None;
    }
    let request = Message::decode(queued.payload()?).ok()?;
    let (service, reply_id) = request.body.request()?;
    // A service has its own match bits.
    if queued.event.match_bits() != Some(service.match_bits()) {
        return None;
    }
    Some((request, Target::reply_to(&queued.event, REPLY_PORTAL, reply_id)?))
}

/// The session that a request of a console is about.
fn session_of(body: &Body) -> Option<SessionId> {
    Some(match body {
        Body::MakeSession(request) => request.session,
        Body::RemoveSession(request) => request.session,
        Body::Debug(request) => request.session,
        Body::AddTest(request) => request.session,
        Body::Batch(request) => request.session,
        Body::Stat(request) => request.session,
        _ => return None,
    })
}

/// The replies to requests that were not looked at any further.
fn refusal(body: &Body, status: Status, session: SessionId) -> Option<Body> {
    let reply = SessionReply { status, session };
    Some(match body {
        Body::RemoveSession(_) => Body::RemoveSessionReply(reply),
        Body::AddTest(_) => Body::AddTestReply(reply),
        Body::Brw(_) => Body::BrwReply(StatusReply { status }),
        Body::Ping(ping) => Body::PingReply(PingReply { status, magic: ping.magic, sequence: ping.sequence }),
        Body::MakeSession(_) => Body::MakeSessionReply(lnet_wire::selftest::JoinReply {
            status,
            session,
            timeout_s: 0,
            name: Name::EMPTY,
        }),
        Body::Debug(_) => {
            Body::DebugReply(DebugReply { status, session, timeout_s: 0, batches: 0, name: Name::EMPTY })
        }
        Body::Batch(_) => {
            Body::BatchReply(lnet_wire::selftest::BatchReply { status, session, active: 0, time: 0 })
        }
        Body::Stat(_) => Body::StatReply(StatReply { status, session, ..NO_STATS }),
        // Other bodies are for a console.
        _ => return None,
    })
}

const NO_STATS: StatReply = StatReply {
    status: Status::OK,
    session: SessionId::NONE,
    framework: FrameworkCounters {
        running_ms: 0,
        active_batches: 0,
        zombie_sessions: 0,
        brw_errors: 0,
        ping_errors: 0,
    },
    rpc: NO_RPCS,
    lnet: LnetCounters {
        messages: 0,
        messages_max: 0,
        errors: 0,
        sent: 0,
        received: 0,
        routed: 0,
        dropped: 0,
        sent_bytes: 0,
        received_bytes: 0,
        routed_bytes: 0,
        dropped_bytes: 0,
    },
};

impl Common {
    /// Answers a request, if it is one that has an answer.
    async fn answer(&self, request: &Message, to: Target) -> Result<(), CallError> {
        let (features, body) = match request.body {
            _ if request.version != VERSION => (FEATURES, self.refusal(&request.body, Status::PROTOCOL)),
            Body::Ping(ping) => answer_ping(request.features, &ping),
            Body::Brw(brw) => self.answer_brw(request, &brw, to).await?,
            _ => self.answer_framework(request, to).await,
        };
        let Some(body) = body else { return Ok(()) };
        let reply = Buffer::from(Message::new(features, body).encode().to_vec());
        self.exchange.send(&to, reply, Instant::now() + REPLY_PATIENCE).await
    }

    /// The reply to a request that is not looked at any further.
    fn refusal(&self, body: &Body, status: Status) -> Option<Body> {
        let asked = session_of(body).unwrap_or(SessionId::NONE);
        refusal(body, status, self.sessions.borrow().told(&asked))
    }

    async fn answer_framework(&self, request: &Message, from: Target) -> (u32, Option<Body>) {
        if let Some(id) = session_of(&request.body) {
            self.sessions.borrow_mut().touch(&id);
        }
        let features = request.features;
        let is_fresh = matches!(request.body, Body::MakeSession(_) | Body::Debug(_));
        let is_refused = match is_fresh {
            true => features & !FEATURES != 0,
            false => self.sessions.borrow().refuses(features),
        };
        let body = if is_refused {
            self.refusal(&request.body, Status::PROTOCOL)
        } else if let Body::AddTest(test) = &request.body {
            let status = self.add_test(request, test, from).await;
            Some(Body::AddTestReply(SessionReply {
                status,
                session: self.sessions.borrow().told(&test.session),
            }))
        } else {
            self.control(request)
        };
        (self.sessions.borrow().features(), body)
    }

    fn control(&self, request: &Message) -> Option<Body> {
        let mut sessions = self.sessions.borrow_mut();
        Some(match &request.body {
            Body::MakeSession(make) => {
                let hold = || {
                    let console = Nid::from_small(make.session.nid).ok();
                    let console = console.map(|nid| format!(" of {nid}")).unwrap_or_default();
                    let name = escaped(&make.name.to_string());
                    Some(self.exchange.lnet.hold(&format!("the LNet selftest session {name}{console}")))
                };
                Body::MakeSessionReply(sessions.make(make, request.features, hold))
            }
            Body::RemoveSession(remove) => Body::RemoveSessionReply(sessions.remove(remove)),
            Body::Debug(debug) => {
                let lnet_wire::selftest::JoinReply { status, session, timeout_s, name } =
                    sessions.describe(&debug.session);
                Body::DebugReply(DebugReply { status, session, timeout_s, batches: 0, name })
            }
            Body::Batch(batch) => {
                let run = |test: &_| client::run(&self.exchange, test);
                Body::BatchReply(sessions.control(batch, run)?)
            }
            Body::Stat(stat) => {
                let counters = sessions.counters(&stat.session);
                let session = sessions.told(&stat.session);
                Body::StatReply(match counters {
                    Ok(framework) => {
                        let rpc = *self.exchange.counters.borrow();
                        StatReply { status: Status::OK, session, framework, rpc, lnet: self.lnet_counters() }
                    }
                    Err(status) => StatReply { status, session, ..NO_STATS },
                })
            }
            _ => return None,
        })
    }

    fn lnet_counters(&self) -> LnetCounters {
        let mut sum = NO_STATS.lnet;
        for counters in self.exchange.lnet.shards().filter_map(|shard| shard.counters().ok()) {
            let dropped = counters.dropped();
            // The fields are that small; they start again from 0.
            sum.messages_max = sum.messages_max.wrapping_add(counters.messages_max);
            sum.errors = sum.errors.wrapping_add(counters.send_failures as u32);
            sum.sent = sum.sent.wrapping_add(counters.sent.messages as u32);
            sum.received = sum.received.wrapping_add(counters.received.messages as u32);
            sum.routed = sum.routed.wrapping_add(counters.routed.messages as u32);
            sum.dropped = sum.dropped.wrapping_add(dropped.messages as u32);
            sum.sent_bytes += counters.sent.bytes;
            sum.received_bytes += counters.received.bytes;
            sum.routed_bytes += counters.routed.bytes;
            sum.dropped_bytes += dropped.bytes;
        }
        sum
    }

    async fn add_test(&self, message: &Message, test: &AddTest, from: Target) -> Status {
        let count = match self.sessions.borrow_mut().check_test(test) {
            Ok(count) => count,
            Err(status) => return status,
        };
        let destinations = match count {
            0 => Vec::new(),
            count => match self.destinations(message, test, count, from).await {
                Ok(destinations) => destinations,
                Err(error) => {
                    tracing::debug!(%error, "destinations of a selftest");
                    return Status::INVALID;
                }
            },
        };
        // The session may have ended meanwhile.
        self.sessions.borrow_mut().add_test(test, destinations).err().unwrap_or(Status::OK)
    }

    /// Fetches the destinations of a test from the console.
    async fn destinations(
        &self,
        message: &Message,
        test: &AddTest,
        count: u32,
        from: Target,
    ) -> Result<Vec<ProcessId>, String> {
        let pages = (count as usize).div_ceil(Destination::PER_PAGE);
        let page = PAGE_BYTES as usize;
        let length = match message.features & FEATURE_VARIABLE_LENGTH {
            0 => pages * page,
            _ => count as usize * Destination::BYTES,
        };
        // With the feature, entries lie in pages as well once there are several of them.
        let length = if pages > 1 { pages * page } else { length };
        let console = Target { match_bits: test.bulk_id, ..from };
        let fetched = self.exchange.fetch(&console, Buffer::zeroed(length)).await;
        let (bytes, list) = fetched.map_err(|error| error.to_string())?;
        let entries = list[..(bytes as usize).min(length)].chunks(page).flat_map(|page| {
            let entries = page.chunks_exact(Destination::BYTES).take(Destination::PER_PAGE);
            entries.filter_map(|entry| entry.try_into().ok())
        });
        let process = |entry: &[u8; Destination::BYTES]| {
            let Destination { nid, pid } = Destination::decode(entry, message.is_swapped);
            Nid::from_small(nid).map(|nid| ProcessId { nid, pid }).map_err(|error| error.to_string())
        };
        let found = entries.take(count as usize).map(process).collect::<Result<Vec<_>, _>>()?;
        match found.len() == count as usize {
            true => Ok(found),
            false => Err(format!("{} destinations in {bytes} bytes, {count} were expected", found.len())),
        }
    }

    async fn answer_brw(
        &self,
        message: &Message,
        request: &Brw,
        from: Target,
    ) -> Result<(u32, Option<Body>), CallError> {
        let done = |status| Ok((message.features & FEATURES, Some(Body::BrwReply(StatusReply { status }))));
        if message.features & !FEATURES != 0 {
            return done(Status::PROTOCOL);
        }
        let length = request.length_bytes;
        let unit = if message.features & FEATURE_VARIABLE_LENGTH == 0 { PAGE_BYTES } else { WORD_BYTES };
        let is_valid = (unit..=BULK_BYTES_MAX).contains(&length) && length.is_multiple_of(unit);
        let known = Direction::new(request.direction).zip(Check::new(request.flags)).filter(|_| is_valid);
        let Some((direction, check)) = known else { return done(Status::INVALID) };
        let peer = Target { match_bits: request.bulk_id, ..from };
        match direction {
            Direction::Read => {
                self.exchange.source.put(&peer, length, Instant::now() + REPLY_PATIENCE).await?;
                self.exchange.counters.borrow_mut().bulk_put_bytes += u64::from(length);
                done(Status::OK)
            }
            Direction::Write => {
                let data = self.exchange.sinks.take(length as usize, check);
                let (bytes, data) = self.exchange.fetch(&peer, data).await?;
                self.exchange.counters.borrow_mut().bulk_get_bytes += u64::from(bytes);
                let is_right = bulk::is_right(&data, check, message.is_swapped);
                self.exchange.sinks.give_back(data);
                done(if is_right { Status::OK } else { Status::BAD_DATA })
            }
        }
    }
}

fn answer_ping(features: u32, ping: &Ping) -> (u32, Option<Body>) {
    if ping.magic != PING_MAGIC {
        return (FEATURES, None);
    }
    let (features, status) = match features & !FEATURES {
        0 => (features, Status::OK),
        _ => (FEATURES, Status::PROTOCOL),
    };
    let reply = PingReply { status, magic: ping.magic, sequence: ping.sequence };
    (features, Some(Body::PingReply(reply)))
}
