//! What runs a node's control state machine: it tells the shards, opens and closes NIs, sends and answers
//! pings, takes pushes, and looks at links and traffic.
//!
//! Invariants: one thread runs the machine, and never waits for the kernel or a peer while it has something
//! else to do; snapshots reach the shards in their order, and before what was decided after them is carried
//! out; what blocks (opening and closing NIs) runs on threads of its own. The handles by which it pings
//! are its own, so that the last one of the program stops it.
//!
//! The runner waits for a shard only where the queue of its calls is full, and for what a ping takes or posts
//! there. So `lnetctl net show` is answered while an NI is being opened.

mod follow;
mod pools;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{AbortHandle, LocalBoxFuture, abortable};
use futures_util::stream::FuturesUnordered;
use lnet_core::lnd::NiId;
use lnet_core::node::{
    self, Action, DriverError, NodeChange, Outcome, PingId, PingKind, Report, Request, RequestError,
    RequestId,
};
use lnet_core::shard::Confirmation;
use lnet_core::topology::{NiStatus, Topology};
use lnet_io::blocking;
use lnet_io::locks::{Mutex, MutexGuard};
use lnet_io::netlink::device_of;
use lnet_wire::Nid;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until};
use tracing::{error, info, warn};

use super::calls::Caller;
use super::errno::driver_error;
use super::news::News;
use super::peer_log::PeerLog;
use super::pings::{self, Posted};
use super::pushes::{Push, PushTargets};
use super::queue::this_thread;
use super::traffic::SeenTraffic;
use super::{Core, Lnet, LnetError};
use crate::node::{DownReason, LndOptions, Machine, NiConfig, NiState, Numa, is_back};
use crate::runtime::wakes::{self, Awaited, NoWakes};
use crate::runtime::{Clock, Deputy, Fate, Worker};

/// How often new peers that have sent something are looked for, and interfaces that have gone; those that
/// there are tell what changes, and shards tell at once of peers that requests go to.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How often it is looked whether frames arrive nowhere, and that where rings have just been opened.
const WATCH_INTERVAL: Duration = Duration::from_secs(3);
const YOUNG_INTERVAL: Duration = Duration::from_secs(1);
/// How soon shards are asked after one has noted a failure: others that follow at once are seen together.
const FAILURE_INTERVAL: Duration = Duration::from_millis(20);
/// How often shards are asked whether they are done with what goes.
const QUIET_INTERVAL: Duration = Duration::from_millis(2);
/// GETs of pings that are under way at once; further ones wait, but for questions to NIDs that peers claim,
/// which the state machine bounds by whom they are about.
const PINGS_MAX: usize = 32;

/// The state machine, and what the runner and its clients share.
#[derive(Debug)]
pub(super) struct Runner {
    clock: Clock,
    numa: Numa,
    machine: Mutex<Machine>,
    /// Locked after the machine, if that is locked too.
    books: Mutex<Books>,
    /// There is something to be done.
    wake: Notify,
    /// Whether the thread has ended, or is to end.
    over: watch::Sender<bool>,
    ping_slots: Semaphore,
    pub(super) pushes: PushTargets,
    news: Arc<News>,
    fate: Arc<Fate>,
}

#[derive(Default, Debug)]
struct Books {
    /// What waits for the end of a request.
    waiting: HashMap<RequestId, oneshot::Sender<Result<Outcome, RequestError>>>,
    /// What is known of open NIs, by slot.
    nis: BTreeMap<u16, NiState>,
    /// GETs of pings.
    gets: BTreeMap<PingId, AbortHandle>,
    /// NIs whose interface is being looked for, and why those that were not opened anew the last time were
    /// not.
    sought: HashSet<Nid>,
    /// NIs whose interface is being followed.
    followed: HashSet<NiId>,
    refusals: HashMap<Nid, String>,
    /// Whether shards may have router buffers.
    has_router_buffers: bool,
    /// What answers pings.
    posted: Vec<Posted>,
    traffic: SeenTraffic,
    log: PeerLog,
    /// Pushes and answers to pings that were refused, as far as the log tells.
    refused_discovery: u64,
    evicted_discovery: u64,
}

impl Books {
    /// The interface of an NI was looked for.
    fn sought(&mut self, nid: Nid, reopened: Option<Result<(), LnetError>>) {
        self.sought.remove(&nid);
        match reopened {
            None => {}
            Some(Ok(())) => {
                self.refusals.remove(&nid);
                info!(%nid, "NI opened anew: its interface is back");
            }
            Some(Err(error)) => {
                let why = error.to_string();
                // The NI is tried again and again.
                if self.refusals.insert(nid, why.clone()).is_none_or(|former| former != why) {
                    warn!(%nid, why, "NI not opened anew");
                }
            }
        }
    }
}

/// Something that was carried out.
enum Done {
    Opened {
        ni: NiId,
        result: Result<Box<NiState>, DriverError>,
    },
    Closed {
        ni: NiId,
    },
    Pools {
        result: Result<(), DriverError>,
    },
    Answered {
        ping: PingId,
        result: Result<Vec<u8>, DriverError>,
    },
    /// A ping that was given up.
    Forgotten,
    /// The interface of an NI was looked for, and the NI opened anew if it was there.
    Sought {
        nid: Nid,
        reopened: Option<Result<(), LnetError>>,
    },
    /// Changes of an NI's interface were followed.
    Followed {
        ni: NiId,
    },
}

type Work = FuturesUnordered<LocalBoxFuture<'static, Done>>;

impl Runner {
    pub(super) fn new(
        mut machine: Machine,
        clock: Clock,
        numa: Numa,
        nis: impl Iterator<Item = NiState>,
        news: Arc<News>,
        fate: Arc<Fate>,
    ) -> Self {
        let nis: BTreeMap<_, _> = nis.map(|state| (state.ni.0, state)).collect();
        for state in nis.values() {
            report_distances(&mut machine, clock.now(), &numa, state);
        }
        Self {
            clock,
            numa,
            machine: Mutex::new(machine),
            books: Mutex::new(Books { nis, ..Books::default() }),
            wake: Notify::new(),
            over: watch::Sender::new(false),
            ping_slots: Semaphore::new(PINGS_MAX),
            pushes: PushTargets::default(),
            news,
            fate,
        }
    }

    /// The state machine, for a look; what changes it wakes the runner.
    pub(super) fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has it end.
    pub(super) fn stop(&self) {
        self.over.send_replace(true);
        self.wake.notify_one();
    }

    /// Ready when it has ended, with the reason.
    pub(super) async fn ended(&self) -> LnetError {
        let mut over = self.over.subscribe();
        let is_over = Box::pin(over.wait_for(|is_over| *is_over));
        // The sender lives as long as this.
        let _ = Awaited::new(is_over).await;
        self.why_ended()
    }

    pub(super) fn why_ended(&self) -> LnetError {
        self.fate.why().into()
    }

    /// What is known of an open NI, without asking the kernel.
    pub(super) fn ni(&self, ni: NiId) -> Option<NiState> {
        self.books().nis.get(&ni.0).cloned()
    }

    /// Entries of a shard that answer pings or take pushes.
    pub(super) fn posted_count(&self, shard: usize) -> u32 {
        let answers = self.books().posted.iter().filter(|posted| posted.shard == shard).count() as u32;
        answers + self.pushes.posted_count(shard)
    }

    pub(super) fn forget_peers(&self) {
        self.machine().forget_peers();
        let mut books = self.books();
        (books.traffic, books.log) = (SeenTraffic::default(), PeerLog::default());
    }

    /// Gives up all requests that are not being carried out.
    pub(super) fn cancel_all(&self) {
        let requests: Vec<_> = self.books().waiting.keys().copied().collect();
        for request in requests {
            // A request that has just ended needs no end.
            let _ = self.machine().cancel(request);
        }
        self.wake.notify_one();
    }

    /// Has something asked of the state machine be carried out. Dropping the future gives it up; a batch that
    /// has begun goes on.
    pub(super) async fn request(&self, request: Request<LndOptions>) -> Result<Outcome, LnetError> {
        let (waiter, ended) = oneshot::channel();
        let id = {
            let mut machine = self.machine();
            if *self.over.borrow() {
                return Err(self.why_ended());
            }
            let id = machine.handle_request(self.clock.now(), request)?;
            self.books().waiting.insert(id, waiter);
            id
        };
        let _given_up = GivenUp { runner: self, id };
        self.wake.notify_one();
        Ok(Awaited::new(ended).await.map_err(|_| self.why_ended())??)
    }

    /// Ready when the state machine's next deadline is over.
    async fn deadline(&self) {
        let deadline = self.machine().poll_timeout();
        match deadline {
            Some(deadline) => {
                sleep(Duration::from_nanos(deadline.0.saturating_sub(self.clock.now().0))).await;
            }
            None => std::future::pending().await,
        }
    }

    /// The NIs whose interface is to be looked for, with its name and their address; they are noted.
    fn lost(&self) -> Vec<(Nid, String, IpAddr)> {
        let machine = self.machine();
        let mut books = self.books();
        let nets = machine.nets();
        let is_lost = |config: &&node::NiConfig<LndOptions>| {
            let is_gone = books.nis.get(&config.ni.0).is_some_and(|ni| ni.down == Some(DownReason::Gone));
            (config.is_absent || is_gone) && !books.sought.contains(&config.spec.nid)
        };
        let lost = nets.iter().flat_map(|net| net.nis.iter().copied()).filter(is_lost);
        let lost = lost.filter_map(|node::NiConfig { spec, .. }| {
            Some((spec.nid, spec.interface.clone(), spec.nid.ip()?))
        });
        let lost: Vec<_> = lost.collect();
        books.sought.extend(lost.iter().map(|(nid, ..)| *nid));
        lost
    }

    fn confirm(&self, confirmations: Vec<Confirmation>) {
        let mut machine = self.machine();
        for confirmation in confirmations {
            machine.handle_report(self.clock.now(), Report::Confirmed(confirmation));
        }
    }

    fn pushed(&self, push: &Push) {
        let Push { from, bytes, length_bytes } = push;
        let report = Report::Pushed { from: *from, bytes, length_bytes: *length_bytes };
        self.machine().handle_report(self.clock.now(), report);
    }

    fn report(&self, done: Done) {
        let now = self.clock.now();
        let mut machine = self.machine();
        let mut books = self.books();
        match done {
            Done::Opened { ni, result } => {
                let result = result.map(|state| drop(books.nis.insert(ni.0, *state)));
                machine.handle_report(now, Report::Opened { ni, result });
                if let Some(state) = books.nis.get(&ni.0) {
                    let is_awaited = state.down == Some(DownReason::NoLink);
                    machine.handle_report(now, Report::Carrier { ni, is_awaited });
                    machine.handle_report(now, Report::Link { ni, is_up: state.down.is_none() });
                    report_distances(&mut machine, now, &self.numa, state);
                    if let Some(reach) = &state.reach {
                        machine.handle_report(now, Report::Reach { ni, reach });
                    }
                }
            }
            Done::Closed { ni } => {
                books.nis.remove(&ni.0);
                machine.handle_report(now, Report::Closed { ni });
            }
            Done::Pools { result } => machine.handle_report(now, Report::Pools { result }),
            Done::Answered { ping, result } => {
                books.gets.remove(&ping);
                match result {
                    Ok(bytes) => machine.handle_report(now, Report::Answered { ping, bytes: &bytes }),
                    Err(error) => machine.handle_report(now, Report::Unanswered { ping, error }),
                }
            }
            Done::Forgotten => {}
            Done::Sought { nid, reopened } => books.sought(nid, reopened),
            Done::Followed { ni } => drop(books.followed.remove(&ni)),
        }
    }
}

/// Tells how far the device of an NI is from the memory of each shard, and from each memory node.
fn report_distances(machine: &mut Machine, now: lnet_core::time::Instant, numa: &Numa, state: &NiState) {
    let device = device_of(&state.config.interface);
    let (distances, by_memory) = (numa.distances(device), numa.memory_distances(device));
    let report = Report::Distance { ni: state.ni, distances: &distances, by_memory: &by_memory };
    machine.handle_report(now, report);
}

/// Gives a request up that is not waited for any more.
struct GivenUp<'a> {
    runner: &'a Runner,
    id: RequestId,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        let is_waiting = self.runner.books().waiting.remove(&self.id).is_some();
        if is_waiting {
            // A batch that has begun goes on.
            let _ = self.runner.machine().cancel(self.id);
            self.runner.wake.notify_one();
        }
    }
}

/// The end of the thread. What waits for a request learns of it. Where a thread of the node has panicked,
/// this one or a shard's, all shards end, and all who wait for one learn that.
struct Ending<'a>(&'a Core);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let Core { runner, shards, .. } = self.0;
        // Programs are woken when the locks are released, and the shards have been told.
        let _no_wakes = NoWakes::new();
        if std::thread::panicking() {
            runner.fate.end("the thread that controls it has panicked");
        }
        {
            // Under the lock: a request is refused, or its waiter is there already.
            let _machine = runner.machine();
            runner.over.send_replace(true);
            runner.books().waiting.clear();
        }
        if runner.fate.cause().is_some() {
            shards.iter().for_each(|end| end.thread.end());
        }
    }
}

/// Starts the runner of a node, in the network namespace of the calling thread.
pub(super) fn spawn(core: &Arc<Core>) -> std::io::Result<JoinHandle<()>> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().thread_name("lnet-node-work").enable_time().build()?;
    let core = Arc::clone(core);
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    let run = move || {
        wakes::wake_elsewhere();
        let _ending = Ending(&core);
        if let Err(error) = runtime.block_on(drive(&core)) {
            error!(%error, "the node ends");
            core.runner.fate.end(&error.to_string());
        }
    };
    std::thread::Builder::new()
        .name("lnet-node".into())
        .spawn(move || tracing::dispatcher::with_default(&dispatch, run))
}

/// Does what there is to be done, until the node's last handle goes, or a shard panics.
async fn drive(core: &Arc<Core>) -> Result<(), LnetError> {
    let runner = &core.runner;
    let interface_changes = core.node().interface_changes();
    let mut work = Work::new();
    let mut looks = interval_at(Instant::now() + LOOK_INTERVAL, LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watch_at = Instant::now();
    // When shards are asked what has failed, if one has noted a failure.
    let mut failures_at = None;
    while !*runner.over.borrow() {
        settle(core, &work).await?;
        tokio::select! {
            () = runner.wake.notified() => {}
            ended = runner.fate.ended() => return Err(ended.into()),
            () = runner.deadline() => runner.machine().handle_timeout(runner.clock.now()),
            Some(done) = work.next() => runner.report(done),
            push = runner.pushes.next() => {
                if let Some(push) = &push {
                    // Where its sender speaks from is known before.
                    core.follow_peers().await?;
                    runner.pushed(push);
                }
                settle(core, &work).await?;
                if let Err(error) = core.post_push_targets() {
                    warn!(%error, "no room for the next push of a peer: tried again");
                }
            }
            () = sleep(QUIET_INTERVAL), if is_draining(&core.topology.load()) => {
                runner.confirm(core.confirmations().await?);
            }
            () = runner.news.wanted.notified() => core.follow_peers().await?,
            () = runner.news.failures.notified(), if failures_at.is_none() => {
                failures_at = Some(Instant::now() + FAILURE_INTERVAL);
            }
            () = sleep_until(failures_at.unwrap_or_else(Instant::now)), if failures_at.is_some() => {
                failures_at = None;
                core.follow_peers().await?;
            }
            () = interface_changes.notified() => {
                core.look_at_links();
                follow(core, &work);
            }
            _ = looks.tick() => {
                // What had no room is tried again and again.
                let _ = core.post_push_targets();
                core.look_at_links();
                seek(core, &work);
                follow(core, &work);
                if Instant::now() >= watch_at {
                    let is_young = core.view.unheard().iter().any(|(_, is_young)| *is_young);
                    let interval = if is_young { YOUNG_INTERVAL } else { WATCH_INTERVAL };
                    watch_at = Instant::now() + interval;
                    core.watch_frames().await?;
                    follow::replace(core, &work);
                }
                core.follow_traffic().await?;
                core.follow_peers().await?;
                core.follow_router().await?;
                core.log_peers().await?;
            }
        }
    }
    Ok(())
}

/// Looks for the interfaces of NIs that have lost theirs.
fn seek(core: &Arc<Core>, work: &Work) {
    let lost = core.runner.lost();
    for (nid, interface, address) in lost {
        let core = Arc::clone(core);
        work.push(Box::pin(async move {
            let is_there = blocking::run(move || is_back(&interface, address)).await;
            let mut reopened = None;
            if is_there.unwrap_or(false) {
                let changes = vec![NodeChange::ReopenNi { nid }];
                let request = Request::Batch { changes, drain_timeout: Duration::ZERO };
                reopened = Some(core.runner.request(request).await.map(drop));
            }
            Done::Sought { nid, reopened }
        }));
    }
}

/// Has LNDs follow what has changed about interfaces: queues that have come get sockets.
fn follow(core: &Arc<Core>, work: &Work) {
    let mut books = core.runner.books();
    for ni in core.view.changed() {
        // An NI that is being opened is seen to when it is open.
        if books.nis.contains_key(&ni.0) && books.followed.insert(ni) {
            let core = Arc::clone(core);
            work.push(Box::pin(async move {
                if let Err(error) = blocking::run(move || core.follow_ni(ni)).await {
                    warn!(%error, "the queues of an interface are looked at later");
                }
                Done::Followed { ni }
            }));
        }
    }
}

fn is_draining(topology: &Topology) -> bool {
    topology.local_nis().any(|(_, local)| matches!(local.status, NiStatus::Leaving | NiStatus::Closed))
}

/// Takes out all that the state machine wants done.
async fn settle(core: &Arc<Core>, work: &Work) -> Result<(), LnetError> {
    loop {
        let snapshot = core.runner.machine().poll_snapshot();
        if let Some(snapshot) = snapshot {
            core.runner.confirm(core.update(&snapshot).await?);
            continue;
        }
        let action = core.runner.machine().poll_action();
        match action {
            // Before pools that a later action makes.
            Some(Action::DropPools) => core.drop_pools().await?,
            Some(action) => carry_out(core, action, work),
            None => return Ok(()),
        }
    }
}

fn carry_out(core: &Arc<Core>, action: Action<LndOptions>, work: &Work) {
    let books = || core.runner.books();
    match action {
        Action::Open { ni, spec, tunables } => {
            work.push(Box::pin(open(Arc::clone(core), ni, NiConfig::of(spec, tunables))));
        }
        Action::Close { ni } => work.push(Box::pin(close(Arc::clone(core), ni))),
        Action::Ping { ping, nid, source, length_bytes, kind } => {
            let lnet = Lnet::of_runner(core);
            let get = async move {
                // The slots are never closed.
                let _slot = match kind {
                    PingKind::Question => None,
                    PingKind::Ordinary | PingKind::Recovery => {
                        lnet.inner.runner.ping_slots.acquire().await.ok()
                    }
                };
                pings::get(&lnet, nid, source, length_bytes, kind).await
            };
            let (get, abort) = abortable(get);
            books().gets.insert(ping, abort);
            let answered = move |result| Done::Answered { ping, result };
            work.push(Box::pin(async move { get.await.map_or(Done::Forgotten, answered) }));
        }
        Action::Push { ping, nid, source, bytes } => {
            let lnet = Lnet::of_runner(core);
            let put = async move {
                let _slot = lnet.inner.runner.ping_slots.acquire().await.ok();
                pings::push(&lnet, nid, source, &bytes).await
            };
            let (put, abort) = abortable(put);
            books().gets.insert(ping, abort);
            let acknowledged = move |result: Result<(), DriverError>| Done::Answered {
                ping,
                result: result.map(|()| Vec::new()),
            };
            work.push(Box::pin(async move { put.await.map_or(Done::Forgotten, acknowledged) }));
        }
        Action::Forget { ping } => {
            let get = books().gets.remove(&ping);
            get.into_iter().for_each(|get| get.abort());
        }
        Action::Disconnect { nid } => {
            let core = Arc::clone(core);
            work.push(Box::pin(async move {
                // A node that ends ends its connections.
                drop(core.ask(move |worker| worker.end_from_elsewhere(&nid)).await);
                Done::Forgotten
            }));
        }
        Action::Publish(answer) => core.answer_pings(&answer),
        Action::Steer { portal, policy } => {
            if let Err(error) = core.node().steer(portal as u8, policy) {
                // The shards hand over what arrives at the wrong one.
                warn!(portal, %error, "frames are not steered by the portal's new policy");
            }
        }
        Action::Pools(totals) => work.push(Box::pin(pools::make(Arc::clone(core), totals))),
        Action::DropPools => unreachable!("the caller drops them"),
        Action::Done { request, result } => {
            let waiter = books().waiting.remove(&request);
            // What asked may be gone.
            waiter.into_iter().for_each(|waiter| drop(waiter.send(result.clone())));
        }
    }
}

async fn open(core: Arc<Core>, ni: NiId, config: NiConfig) -> Done {
    let begun = Instant::now();
    let opener = Arc::clone(&core);
    let mut opened = blocking::run(move || opener.open_ni(ni, &config)).await;
    if let Ok(Ok(state)) = &mut opened {
        follow::await_carrier(state, begun).await;
        // Its link may have come, or gone, since.
        state.down = core.view.nis().into_iter().find(|now| now.ni == ni).map_or(state.down, |now| now.down);
    }
    let result = match opened {
        Ok(opened) => opened.map(Box::new).map_err(|error| driver_error(&error)),
        Err(error) => {
            Err(DriverError { errno: error.raw_os_error().unwrap_or(5), message: error.to_string() })
        }
    };
    Done::Opened { ni, result }
}

async fn close(core: Arc<Core>, ni: NiId) -> Done {
    let closed = loop {
        let core = Arc::clone(&core);
        match blocking::run(move || core.close_ni(ni)).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(LOOK_INTERVAL).await,
            closed => break closed,
        }
    };
    match closed {
        Ok(Ok(())) => {}
        Ok(Err(error)) => error!(ni = ni.0, %error, "an interface is not closed"),
        Err(error) => error!(ni = ni.0, %error, "an interface is not closed"),
    }
    Done::Closed { ni }
}

impl Core {
    /// Posts what others hear when they ping, in place of what was there.
    pub(super) fn answer_pings(&self, answer: &[u8]) {
        match self.post(answer) {
            Ok(posted) => {
                // The former ones go when the new ones are there.
                let former = std::mem::replace(&mut self.runner.books().posted, posted);
                self.withdraw(former);
            }
            Err(error) => error!(%error, "pings are answered as before, or not at all"),
        }
    }

    /// Has all shards do something, at once; what each says.
    async fn ask<R: Send + 'static>(
        &self,
        ask: impl Fn(&mut Worker) -> R + Clone + Send + 'static,
    ) -> Result<Vec<R>, LnetError> {
        let begin = |caller: &Caller| {
            let ask = ask.clone();
            caller.begin(move |worker, _| ask(worker))
        };
        let callers = self.shards.iter().map(|end| &end.caller);
        let begun =
            callers.map(|caller| Ok((caller, begin(caller)?))).collect::<Result<Vec<_>, LnetError>>()?;
        let mut told = Vec::with_capacity(begun.len());
        for (caller, answer) in begun {
            told.push(answer.await.map_err(|_| caller.ended())?);
        }
        Ok(told)
    }

    /// Gives all shards a newer snapshot of the topology; what each says of it.
    async fn update(&self, topology: &Arc<Topology>) -> Result<Vec<Confirmation>, LnetError> {
        self.topology.store(Arc::clone(topology));
        let topology = Arc::clone(topology);
        let update = move |worker: &mut Worker| {
            worker.update(Arc::clone(&topology));
            worker.confirmation()
        };
        self.ask(update).await
    }

    /// What each shard says of the snapshot that it has.
    pub(super) async fn confirmations(&self) -> Result<Vec<Confirmation>, LnetError> {
        self.ask(|worker| worker.confirmation()).await
    }
}

/// Waits for a future. Where the thread has a shard to drive, another one does so meanwhile.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = this_thread();
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let mut deputy = None;
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => {
                deputy = deputy.or_else(Deputy::appoint);
                std::thread::park();
            }
        }
    }
}
