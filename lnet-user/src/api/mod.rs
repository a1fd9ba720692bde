//! A node for an application: shards on threads of their own, and handles that any thread may use.
//!
//! ```text
//!  application threads                          the shard's driver
//!  Descriptor::put, ShardHandle::attach  ---->  calls, one after the other, between two turns
//!  EventQueue::next                      <----  events, with payload or buffer
//! ```
//!
//! The driver is the shard's own thread, or one that waits for the shard again and again, be it blocked
//! ([`EventQueue::next_blocking`]) or with a task that awaits ([`EventQueue::next`], [`UnsentRequest`]) and
//! no other one that is ready: then no message wakes another thread.
//!
//! [`Lnet::start`] starts the node; [`ShardHandle`]s make event queues, match entries and descriptors, for
//! which the caller waits or does not ([`ShardHandle::attach_async`], [`ShardHandle::attach_queued`]), or
//! once for many ([`Lnet::attach_all`]); [`Descriptor::put`] and [`Descriptor::get`] make requests that are
//! queued, started or awaited ([`UnsentRequest`]); an [`EventQueue`] tells what came of them. Buffers are
//! lent by value and come home with the last event of their descriptor. An application that would rather
//! drive the shards itself, without any hand-over between threads, uses
//! [`NodeDriver::start`](crate::node::NodeDriver::start) and [`Worker`] instead.
//!
//! [`Lnet::attach`] finds an entry's shard by its portal's policy, and a queue of [`Lnet`] is on all shards:
//! an application needs no shard numbers.
//!
//! Invariants: everything is bounded: calls that wait at a shard (then callers wait), events (their places
//! are reserved when a descriptor is made, or else that is refused). Dropping a handle unlinks what it stands
//! for, and the last one of a node stops its threads. A PUT or GET that is queued allocates nothing.
//!
//! ```
//! use lnet_user::api::{Ack, Lnet, Target};
//! use lnet_user::{Buffer, EntrySpec, MdOptions, MdSpec, Nid, NodeConfig, Threshold};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let lnet = Lnet::start(&NodeConfig::loopback())?;
//! let shard = lnet.shard(0)?;
//! let mut queue = shard.create_event_queue(16)?;
//! let target = MdSpec::new(5, Threshold::Count(1), MdOptions::PUT, queue.handle());
//! shard.attach(&EntrySpec::new(4, 7), &target, Buffer::zeroed(5))?.detach();
//!
//! let source = MdSpec::new(5, Threshold::Count(1), MdOptions::NONE, queue.handle());
//! let source = shard.bind(&source, Buffer::from(b"hello".to_vec()))?;
//! source.put(&Target::new(Nid::LO, 4, 7), Ack::NotWanted, 0).queue()?;
//!
//! let put = queue.next_blocking(None)?.expect("no timeout was given");
//! assert_eq!(put.payload(), Some(&b"hello"[..]));
//! # Ok(())
//! # }
//! ```

mod calls;
mod captures;
mod descriptor;
mod errno;
mod error;
mod faults;
mod guest;
mod handler;
mod lend;
mod marks;
mod news;
mod peer_log;
mod pings;
mod ports;
mod pushes;
mod queue;
mod request;
pub mod rpc;
mod runner;
mod service;
mod shard_queue;
mod traffic;
mod waits;

use std::ops::Deref;
use std::sync::{Arc, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use lnet_core::handle::ShardId;
use lnet_core::node::Report;
use lnet_core::shard::Usage;
use lnet_core::stats::Counters;
use lnet_core::topology::Topology;
use lnet_io::capture::Captures;
use lnet_io::locks::{Mutex, MutexGuard};
use lnet_io::memory::Buffer;
use lnet_wire::Nid;
use lnet_wire::steer::{PORTALS, PolicyWord};
use lnet_xdp::XdpFrames;
use tokio::sync::oneshot;

use crate::node::{
    ConfigError, LndDefaults, NodeConfig, NodeDriver, NodeError, NodeView, Numa, Started, setters,
};
use crate::runtime::wakes::Awaited;
use crate::runtime::{Deputy, Fate, Idle, ShardThread, Steering, Worker};

use calls::{Caller, Command, Signals, channel};
use news::News;
use request::Refusals;
use runner::Runner;
use service::{Queues, Service};

pub use descriptor::{Ack, Descriptor, Entry, Target};
pub use errno::netlink_errno;
pub use error::{LnetError, NotLent};
pub use faults::{FaultEdit, FaultRules};
pub use guest::Guest;
pub use handler::EventHandler;
pub use lend::OwnedRequest;
pub use queue::{EventQueue, QueuedEvent};
pub use request::{Outcome, UnsentRequest};

/// Where the shards run, and what they do when there is nothing to do.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Threads {
    /// The CPU of each shard's thread, by shard; those without one run anywhere.
    pub cpus: Vec<usize>,
    /// What a thread does that has nothing to do.
    pub idle: Idle,
}

impl Default for Threads {
    fn default() -> Self {
        Self::new()
    }
}

impl Threads {
    /// Threads that run where the kernel puts them, and poll up to 200 us before they sleep.
    #[must_use]
    pub fn new() -> Self {
        Self { cpus: Vec::new(), idle: Idle::new(Duration::from_micros(200)) }
    }

    setters! {
        cpus: Vec<usize>,
        idle: Idle,
    }
}

/// What all handles of a node have in common. The threads stop with the last of them; those of the runner do
/// not count.
struct Inner {
    core: Arc<Core>,
    /// The thread of the runner, until it is stopped; the runner's own handles have none, and stop nothing.
    control: Option<JoinHandle<()>>,
}

/// What the handles share with the runner.
struct Core {
    /// First: while the shards run that have their taps. Locked after the node and before the view, if those
    /// are locked too.
    captures: Mutex<Captures>,
    // Before the node: no frame is steered to a shard that is not there.
    node: Mutex<NodeDriver>,
    /// What calls take that are not to wait while an NI is opened or closed.
    view: Arc<NodeView>,
    shards: Vec<ShardEnd>,
    nid: Mutex<Nid>,
    /// The snapshot that was published last.
    topology: ArcSwap<Topology>,
    runner: Runner,
    /// What NIs have that are added.
    lnd_defaults: Mutex<LndDefaults>,
    /// Where the tcp LND listens.
    accept_ports: [u16; 2],
    /// Locked before what a call to a shard locks.
    faults: Mutex<FaultRules>,
    /// The names that [`Hold`]s have.
    holds: Mutex<Vec<Weak<str>>>,
}

impl Lnet {
    /// A handle for the runner, which ends with it.
    fn of_runner(core: &Arc<Core>) -> Self {
        Self { inner: Arc::new(Inner { core: Arc::clone(core), control: None }) }
    }
}

impl Deref for Inner {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(control) = self.control.take() else { return };
        self.runner.stop();
        if control.thread().id() != std::thread::current().id() {
            let _deputy = Deputy::appoint();
            // A panic of the thread has been printed by then.
            let _ = control.join();
        }
    }
}

struct ShardEnd {
    caller: Caller,
    /// Refusals of entries that are queued.
    refusals: Arc<Refusals>,
    /// Stops with this.
    thread: ShardThread<Service>,
    /// Calls whose callers waited for their result.
    #[cfg(test)]
    run_count: std::sync::atomic::AtomicUsize,
}

/// A running node. Cheap to clone, and may be used on any thread.
#[derive(Clone)]
pub struct Lnet {
    inner: Arc<Inner>,
}

/// A program's reliance on a node ([`Lnet::hold`]).
#[derive(Debug)]
pub struct Hold(#[expect(dead_code, reason = "it counts by being there")] Arc<str>);

impl std::fmt::Debug for Lnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lnet").field("nid", &self.nid()).field("shards", &self.shard_count()).finish()
    }
}

impl Lnet {
    /// Starts a node, its shards on threads as [`Threads::new`] says. No frame reaches them before
    /// [`Lnet::open`].
    ///
    /// # Errors
    /// [`LnetError::Node`] or [`LnetError::Thread`].
    pub fn start(config: &NodeConfig) -> Result<Self, LnetError> {
        Self::start_on(config, &Threads::new())
    }

    /// Starts a node as [`Lnet::start`] does, on these threads.
    ///
    /// # Errors
    /// As [`Lnet::start`].
    pub fn start_on(config: &NodeConfig, threads: &Threads) -> Result<Self, LnetError> {
        let Started { node, mut workers, mut machine, answer } = NodeDriver::start_managed(config)?;
        machine.gate_requests();
        let snapshot = machine.poll_snapshot();
        for (worker, snapshot) in workers.iter_mut().zip(snapshot.iter().cycle()) {
            worker.update(Arc::clone(snapshot));
            let confirmed = Report::Confirmed(worker.confirmation());
            machine.handle_report(worker.clock().now(), confirmed);
        }
        let Some(first) = workers.first() else {
            return Err(NodeError::from(ConfigError::Shards(config.shards)).into());
        };
        let (clock, topology) = (first.clock().clone(), Arc::clone(first.shard().topology()));
        let (news, fate) = (Arc::<News>::default(), Arc::<Fate>::default());
        let shards = workers.into_iter().map(|worker| {
            let cpu = threads.cpus.get(usize::from(worker.shard_id().0)).copied();
            ShardEnd::spawn(worker, cpu, threads.idle, Arc::clone(&news), &fate)
        });
        let shards = shards.collect::<Result<Vec<_>, _>>()?;
        let core = Arc::new(Core {
            captures: Mutex::default(),
            nid: Mutex::new(node.nid()),
            runner: Runner::new(
                machine,
                clock,
                Numa::of_shards(&threads.cpus, shards.len()),
                node.nis(),
                news,
                fate,
            ),
            view: Arc::clone(node.view()),
            node: Mutex::new(node),
            shards,
            topology: ArcSwap::new(topology),
            lnd_defaults: Mutex::new(config.lnd_defaults()),
            accept_ports: [config.sock.accept_port, config.sock.accept_port_bulk],
            faults: Mutex::default(),
            holds: Mutex::default(),
        });
        core.answer_pings(&answer);
        core.take_pushes()?;
        let control = Some(runner::spawn(&core).map_err(LnetError::Control)?);
        let inner = Arc::new(Inner { core, control });
        Ok(Self { inner })
    }

    /// Lets frames in. Call it when the entries are posted that peers count on.
    ///
    /// # Errors
    /// [`LnetError::Node`], the kernel's refusal.
    pub fn open(&self) -> Result<(), LnetError> {
        Ok(self.inner.view.open()?)
    }

    /// A buffer whose long payloads are sent without a copy, as [`NodeDriver::register`] says.
    #[must_use]
    pub fn register(&self, length_bytes: usize) -> Option<Buffer> {
        self.inner.view.register(length_bytes)
    }

    /// The node's primary NID.
    #[must_use]
    pub fn nid(&self) -> Nid {
        *self.inner.nid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shards on which entries are to be posted, by the policies of this moment.
    #[must_use]
    pub fn steering(&self) -> Steering {
        self.inner.steering()
    }

    /// Whether both are handles of one node.
    #[must_use]
    pub fn is_same_node(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Number of shards.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.inner.shards.len()
    }

    /// The shard of this number.
    ///
    /// # Errors
    /// [`LnetError::NoShard`] if there are fewer.
    pub fn shard(&self, shard: usize) -> Result<ShardHandle, LnetError> {
        let shards = self.shard_count();
        if shard >= shards {
            return Err(LnetError::NoShard { shard, shards });
        }
        Ok(ShardHandle { inner: Arc::clone(&self.inner), shard })
    }

    /// All of them, in their order.
    pub fn shards(&self) -> impl Iterator<Item = ShardHandle> + use<'_> {
        (0..self.shard_count()).map(|shard| ShardHandle { inner: Arc::clone(&self.inner), shard })
    }

    /// Makes a portal lazy on all shards, or an ordinary one again: PUTs that no entry takes wait for one.
    ///
    /// # Errors
    /// [`LnetError::Portal`] if there is no such portal.
    pub fn set_lazy(&self, portal: u32, is_lazy: bool) -> Result<(), LnetError> {
        for shard in &self.inner.shards {
            shard.run(
                move |worker, _| {
                    if is_lazy { worker.set_lazy(portal) } else { worker.clear_lazy(portal) }
                },
            )??;
        }
        Ok(())
    }

    /// What the XDP programs have counted since the start.
    ///
    /// # Errors
    /// [`LnetError::Node`], the kernel's refusal.
    pub fn xdp_frames(&self) -> Result<XdpFrames, LnetError> {
        Ok(self.inner.view.xdp_frames()?)
    }

    /// Says that a service of this name relies on this node: until that is dropped, no manager may take its
    /// NIs and portals away as a whole (`lnetctl lnet unconfigure`, which names it). Single NIs come and go
    /// all the same.
    #[must_use]
    pub fn hold(&self, service: &str) -> Hold {
        let service: Arc<str> = service.into();
        let mut holds = self.inner.holds.lock().unwrap_or_else(PoisonError::into_inner);
        holds.retain(|hold| hold.strong_count() > 0);
        holds.push(Arc::downgrade(&service));
        Hold(service)
    }

    /// The services that rely on this node, a name for each [`Hold`], in the order in which they began.
    #[must_use]
    pub fn services(&self) -> Vec<Arc<str>> {
        let holds = self.inner.holds.lock().unwrap_or_else(PoisonError::into_inner);
        holds.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Core {
    fn node(&self) -> MutexGuard<'_, NodeDriver> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn steering(&self) -> Steering {
        let none =
            Steering { shard_count: self.shards.len() as u8, policies: [PolicyWord::default(); PORTALS] };
        self.topology.load().steering().copied().unwrap_or(none)
    }
}

impl ShardEnd {
    fn spawn(
        worker: Worker,
        cpu: Option<usize>,
        idle: Idle,
        news: Arc<News>,
        fate: &Arc<Fate>,
    ) -> Result<Self, LnetError> {
        let shard = worker.shard_id();
        let signals = Signals::new(worker.waker(), worker.shard().event_queues_max());
        let (caller, calls) = channel(shard, &signals, fate);
        let service = Service::new(calls, signals, news);
        let turn = |worker: &mut Worker, service: &mut Service| service.turn(worker);
        let thread =
            ShardThread::spawn_with(worker, cpu, idle, service, Service::has_work, Arc::clone(fate), turn);
        match thread {
            Ok(thread) => Ok(Self {
                caller,
                refusals: Refusals::of_entries(),
                thread,
                #[cfg(test)]
                run_count: 0.into(),
            }),
            Err(error) => Err(LnetError::Thread { shard, error }),
        }
    }

    /// Runs something as [`ShardEnd::run`] does, for a caller that has other things to do meanwhile. It is
    /// carried out in any case; where the result is waited for no longer, `lost` has it.
    fn run_async<R: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Worker, &mut Queues) -> R + Send + 'static,
        lost: impl FnOnce(R, &mut Worker, &mut Queues) + Send + 'static,
    ) -> Result<Awaited<oneshot::Receiver<R>>, LnetError> {
        let (answer, result) = oneshot::channel();
        let run = move |worker: &mut Worker, queues: &mut Queues| {
            if let Err(result) = answer.send(run(worker, queues)) {
                lost(result, worker, queues);
            }
        };
        self.enqueue(Command::Run(Box::new(run)))?;
        Ok(Awaited::new(result))
    }

    /// Carries out a call if no other thread drives the shard, else leaves it for that thread.
    fn enqueue(&self, call: Command) -> Result<(), LnetError> {
        let answer = |call, worker: &mut Worker, service: &mut Service| {
            service.run(|worker, queues| queues.answer(call, worker), worker);
        };
        match self.thread.try_call(call, answer) {
            Ok(result) => result.map_err(LnetError::Ended),
            Err(call) => self.caller.enqueue(call, || self.thread.drive(|| true, None, false)),
        }
    }

    /// Runs something between two turns: on this thread if no other drives the shard, else on that, whose
    /// result it waits for. It must not own what ends the shard.
    fn run<R: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Worker, &mut Queues) -> R + Send + 'static,
    ) -> Result<R, LnetError> {
        #[cfg(test)]
        self.run_count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        match self.thread.try_call(run, |run, worker, service| service.run(run, worker)) {
            Ok(result) => result.map_err(LnetError::Ended),
            Err(run) => self.caller.run(run),
        }
    }

    /// Runs something as [`ShardEnd::run`] does, also on this thread if the one that drives the shard sleeps.
    /// The closure must not change what the shard watches.
    fn run_soon<R: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Worker, &mut Queues) -> R + Send + 'static,
    ) -> Result<R, LnetError> {
        let call = |run, worker: &mut Worker, service: &mut Service| service.run_alone(run, worker);
        match self.thread.try_call_at_rest(run, Service::is_free, call) {
            Ok(result) => {
                #[cfg(test)]
                self.run_count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                result.map_err(LnetError::Ended)
            }
            Err(run) => self.run(run),
        }
    }
}

/// One shard of a node. Cheap to clone, and may be used on any thread; a call runs between two turns,
/// on the caller's thread while no other drives the shard, or the one that does sleeps.
#[derive(Clone)]
pub struct ShardHandle {
    inner: Arc<Inner>,
    shard: usize,
}

impl std::fmt::Debug for ShardHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ShardHandle").field(&self.id().0).finish()
    }
}

impl ShardHandle {
    fn end(&self) -> &ShardEnd {
        &self.inner.shards[self.shard]
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> ShardId {
        self.end().caller.shard()
    }

    /// The node that it is a part of.
    #[must_use]
    pub fn lnet(&self) -> Lnet {
        Lnet { inner: Arc::clone(&self.inner) }
    }

    /// Makes an event queue of `slots` places, which descriptors reserve: one for each operation of their
    /// threshold, and one. A descriptor without a threshold reserves
    /// [`Limits::unlimited_events`](lnet_core::limits::Limits::unlimited_events), 128 by default, and borrows
    /// spare ones of its shard where it has more under way.
    ///
    /// # Errors
    /// [`LnetError::Queue`] when the shard has no room for it.
    pub fn create_event_queue(&self, slots: u32) -> Result<EventQueue, LnetError> {
        EventQueue::create([self.clone()], slots)
    }

    /// Runs something between two turns of the shard and waits for its result: to read what the shard and its
    /// LNDs have counted, or to set its drop rules. It must not own a handle of the node.
    ///
    /// # Errors
    /// [`LnetError::Ended`] when the node has ended.
    pub fn run<R: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Worker) -> R + Send + 'static,
    ) -> Result<R, LnetError> {
        self.end().run(move |worker, _| run(worker))
    }

    /// Runs something for a caller that has other things to do meanwhile, in whatever runtime. It begins at
    /// once, and is carried out even if the result is not waited for.
    ///
    /// # Errors
    /// [`LnetError::Ended`] when the node has ended.
    pub fn run_async<R: Send + 'static, F: FnOnce(&mut Worker) -> R + Send + 'static>(
        &self,
        run: F,
    ) -> impl Future<Output = Result<R, LnetError>> + use<R, F> {
        let fate = Arc::clone(self.end().caller.fate());
        let begun = self.end().caller.begin(move |worker, _| run(worker));
        async move { begun?.await.map_err(|_| fate.why().into()) }
    }

    /// What it has done so far.
    ///
    /// # Errors
    /// [`LnetError::Ended`] when the node has ended.
    pub fn counters(&self) -> Result<Counters, LnetError> {
        self.end().run(|worker, _| *worker.shard().counters())
    }

    /// What it has in use, but for what answers pings and takes pushes.
    ///
    /// # Errors
    /// [`LnetError::Ended`] when the node has ended.
    pub fn usage(&self) -> Result<Usage, LnetError> {
        let usage = self.end().run(|worker, _| worker.shard().usage())?;
        let own = self.inner.runner.posted_count(self.shard);
        let [match_entries, memory_descs] =
            [usage.match_entries, usage.memory_descs].map(|count| count.saturating_sub(own));
        Ok(Usage { match_entries, memory_descs, ..usage })
    }
}

#[cfg(test)]
mod tests;
