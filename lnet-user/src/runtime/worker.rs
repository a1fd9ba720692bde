//! One shard and all that it drives.

use std::os::fd::RawFd;
use std::time::Duration;

use lnet_core::event::{EqError, Event};
use lnet_core::fault::Faults;
use lnet_core::handle::{EqHandle, MdHandle, MeHandle, ShardId};
use lnet_core::lnd::{Lnd, NiId, Span};
use lnet_core::md::{MdError, MdSpec, Unlinked};
use lnet_core::portal::{EntryError, EntrySpec};
use lnet_core::shard::{GetRequest, HealthNote, PathNote, PeerChange, PutRequest, Shard, SubmitError, Usage};
use lnet_core::stats::Counters;
use lnet_core::time::{self, Instant};
use lnet_core::topology::MemoryNode;
use lnet_io::memory::{Buffer, Memory, Terms};
use lnet_io::reactor::{WaitError, Waiter, Waker, WatchId};
use lnet_io::region::{Fragments, LeaseError, ReadLease};
use lnet_tcp::TcpLnd;
use lnet_wire::{Net, Nid};
use lnet_xdp::XdpLnd;
use thiserror::Error;

use super::clock::Clock;
use super::mesh::MeshEnd;
use super::pools::RouterBuffers;
use super::steering::{SteeringError, check_entry};
use super::turn::IdlePolls;
use crate::lnd::{Lnds, ShardPort};
use lnet_io::driver::Counted;

/// How long a shard sleeps at most while it waits for the device to be done with frames, which causes no
/// wake-up.
const COMPLETION_POLL: Duration = Duration::from_micros(200);

/// A sleep that is to be shorter would not end in time.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);

/// A sleep in a shard.
pub(super) struct Sleep {
    /// How long it takes at most.
    pub(super) longest: Option<Duration>,
    /// When the shard's next timer is due.
    due: Option<Instant>,
}

/// An event, and with the last one of a descriptor the buffer that it had borrowed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// What happened.
    pub event: Event,
    /// The descriptor's buffer, when the event is its last; while read leases on it are out it comes with
    /// [`Worker::poll_buffer`] instead.
    pub buffer: Option<Buffer>,
}

/// Why an entry or a descriptor is not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum LendError {
    /// The entry's messages arrive on another shard, or on several.
    #[error(transparent)]
    Steering(#[from] SteeringError),
    /// The shard refuses the entry.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// The shard refuses the descriptor.
    #[error(transparent)]
    Md(#[from] MdError),
    /// The buffer is shorter than the descriptor.
    #[error("a buffer of {buffer_bytes} bytes was lent to a descriptor of {length_bytes}")]
    ShortBuffer {
        /// Bytes of the buffer.
        buffer_bytes: usize,
        /// Length of the descriptor.
        length_bytes: u64,
    },
}

/// A refusal that hands the buffer back; nothing was made.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct Refused {
    /// Why.
    #[source]
    pub error: LendError,
    /// The buffer that was lent.
    pub buffer: Buffer,
}

/// One shard of a node with its drivers. It does nothing by itself: either the application's thread calls
/// [`Worker::progress`], or a [`super::ShardThread`] does.
pub struct Worker {
    pub(super) shard: Shard,
    pub(super) lnd: Lnds,
    pub(super) mesh: MeshEnd,
    pub(super) memory: Memory,
    pub(super) router_buffers: RouterBuffers,
    pub(super) clock: Clock,
    /// Time of the last look at the clock.
    looked_at: Instant,
    /// Waiter to sleep in; `None` while a thread sleeps there that has let go of the rest.
    waiter: Option<Box<Waiter>>,
    waker: Waker,
    /// The NIs that the LNDs have, that of `lo` included.
    pub(super) nis: Vec<NiId>,
    /// Parts of NIs that the topology does not have yet.
    pub(super) early: Vec<ShardPort>,
    /// Where the next turn begins to look for messages.
    pub(super) first_ni: usize,
    /// Watches by the descriptor of the port that brought each.
    pub(super) watches: Vec<(RawFd, WatchId)>,
    pub(super) idle_polls: IdlePolls,
    /// Whether the last turn left messages because a device had no room.
    pub(super) device_full: bool,
    /// Events that were taken, ever.
    taken_events: u64,
    /// Until when forged sources are not logged any more.
    pub(super) forged_quiet_until: Instant,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("shard", &self.shard_id()).finish_non_exhaustive()
    }
}

impl Worker {
    pub(crate) fn new(shard: Shard, lnd: Lnds, mesh: MeshEnd, memory: Memory, waiter: Waiter) -> Self {
        Self {
            nis: Vec::new(),
            early: Vec::new(),
            watches: Vec::new(),
            shard,
            lnd,
            mesh,
            memory,
            router_buffers: RouterBuffers::default(),
            clock: Clock::of_process().clone(),
            looked_at: Instant(0),
            waker: waiter.waker(),
            waiter: Some(Box::new(waiter)),
            first_ni: 0,
            idle_polls: IdlePolls::new(),
            device_full: false,
            taken_events: 0,
            forged_quiet_until: Instant(0),
        }
    }

    /// The number of this shard.
    #[must_use]
    pub fn shard_id(&self) -> ShardId {
        self.shard.id()
    }

    /// What the shard has done so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.shard.counters()
    }

    /// What the shard has in use.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.shard.usage()
    }

    /// The shard, to be read.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// What the shard has learned of a peer, once ([`Shard::poll_peer_change`]).
    pub(crate) fn poll_peer_change(&mut self) -> Option<(Nid, PeerChange)> {
        self.shard.poll_peer_change()
    }

    /// How many NIDs [`Worker::poll_wanted`] has had in all.
    pub(crate) const fn wanted_count(&self) -> u64 {
        self.shard.wanted_count()
    }

    /// A peer NI that speaks from another address than its own, once ([`Shard::poll_came_from`]).
    pub(crate) fn poll_came_from(&mut self) -> Option<(Nid, std::net::IpAddr)> {
        self.shard.poll_came_from()
    }

    /// A gateway that is taken for dead, and the net of what has come by it, once ([`Shard::poll_foreign`]).
    pub(crate) fn poll_foreign(&mut self) -> Option<(Nid, Net)> {
        self.shard.poll_foreign()
    }

    /// An NI that another node has pinged, while this one routes ([`Shard::poll_pinged`]).
    pub(crate) fn poll_pinged(&mut self) -> Option<NiId> {
        self.shard.poll_pinged()
    }

    /// A NID from which a request waits for a name, once ([`Shard::poll_waiting`]).
    pub(crate) fn poll_waiting(&mut self) -> Option<Nid> {
        self.shard.poll_waiting()
    }

    /// A NID whose peer is to be found out about, once ([`Shard::poll_wanted`]).
    pub(crate) fn poll_wanted(&mut self) -> Option<Nid> {
        self.shard.poll_wanted()
    }

    /// What the shard has noted of an interface's health, once ([`Shard::poll_health`]).
    pub(crate) fn poll_health(&mut self) -> Option<HealthNote> {
        self.shard.poll_health()
    }

    /// What an LND has learned of a path, once ([`Shard::poll_paths`]).
    pub(crate) fn poll_paths(&mut self) -> Option<PathNote> {
        self.shard.poll_paths()
    }

    /// Whether it has noted a failure that was not polled ([`Shard::has_failures`]).
    pub(crate) const fn has_failures(&self) -> bool {
        self.shard.has_failures()
    }

    /// Rules by which the shard drops or delays messages, to be set.
    pub fn faults_mut(&mut self) -> &mut Faults {
        self.shard.faults_mut()
    }

    /// Deletes the delay rules with these ends ([`Shard::delete_delay_rules`]); how many.
    pub fn delete_delay_rules(&mut self, source: &Nid, destination: &Nid) -> usize {
        let now = self.clock.now();
        self.shard.delete_delay_rules(now, source, destination)
    }

    /// Sets all that the shard has counted to 0 ([`Shard::reset_counters`]).
    pub fn reset_counters(&mut self) {
        self.shard.reset_counters();
    }

    /// The `xdp` LND, to be read, while there is an NI of it.
    #[must_use]
    pub fn xdp(&self) -> Option<&XdpLnd> {
        self.lnd.xdp.as_deref()
    }

    /// The `tcp` LND, likewise.
    #[must_use]
    pub fn tcp(&self) -> Option<&TcpLnd> {
        self.lnd.tcp.as_deref()
    }

    /// Tells what its LNDs have counted.
    ///
    /// # Errors
    /// The kernel's refusal to tell its counters.
    pub fn count(&self, tell: &mut dyn FnMut(Counted, &'static str, u64)) -> std::io::Result<()> {
        self.lnd.count(tell)
    }

    /// Sum that its LNDs have counted under this name.
    ///
    /// # Errors
    /// The kernel's refusal to tell its counters.
    pub fn counted(&self, name: &str) -> std::io::Result<u64> {
        let mut sum = 0;
        self.count(&mut |_, counter, count| sum += if counter == name { count } else { 0 })?;
        Ok(sum)
    }

    /// The time that this shard goes by.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Looks at the clock.
    #[inline]
    pub(super) fn look_at_clock(&mut self) -> Instant {
        self.looked_at = self.clock.now();
        self.looked_at
    }

    /// Time of the last look at the clock: a turn takes one, unless it is an idle poll, and some of those do.
    /// Threads that drive a shard go by it, and look at no clock in each turn.
    #[inline]
    pub(super) const fn looked_at(&self) -> Instant {
        self.looked_at
    }

    /// Makes an event queue of `slots` places, which descriptors reserve.
    ///
    /// # Errors
    /// When the shard has no room for one.
    pub fn create_event_queue(&mut self, slots: u32) -> Result<EqHandle, EqError> {
        self.shard.create_event_queue(slots)
    }

    /// Frees an event queue.
    ///
    /// # Errors
    /// [`EqError::Busy`] while descriptors have places in it or events wait in it.
    pub fn free_event_queue(&mut self, queue: EqHandle) -> Result<(), EqError> {
        self.shard.free_event_queue(queue)
    }

    /// Posts a match entry with a memory descriptor, which borrows `buffer` until its last event.
    ///
    /// # Errors
    /// [`Refused`] says why and hands the buffer back.
    pub fn attach(
        &mut self,
        entry: &EntrySpec,
        md: &MdSpec,
        buffer: Buffer,
    ) -> Result<(MeHandle, MdHandle), Refused> {
        self.lend(md, buffer, |worker| {
            let shard = u32::from(worker.shard.id().0);
            let EntrySpec { portal, source, match_bits, ignore_bits, .. } = entry;
            if let Some(steering) = worker.shard.topology().steering() {
                check_entry(steering, shard, *portal, source, *match_bits, *ignore_bits)?;
            }
            let entry = worker.shard.attach_entry(entry)?;
            Ok((entry, worker.shard.attach(entry, md)?))
        })
    }

    /// Makes a free-floating descriptor, to put from or get into; it borrows `buffer` until its last event.
    ///
    /// # Errors
    /// As [`Worker::attach`].
    pub fn bind(&mut self, md: &MdSpec, buffer: Buffer) -> Result<MdHandle, Refused> {
        // Asked for once: the choice of an NI goes by it.
        let is_of_use = self.shard.topology().has_memory_distances();
        let node = if is_of_use { buffer.memory_node() } else { None };
        let bind = |worker: &mut Self| {
            let handle = worker.shard.bind(md)?;
            if node.is_some() {
                worker.shard.set_memory_node(handle, node.map(MemoryNode));
            }
            Ok(((), handle))
        };
        Ok(self.lend(md, buffer, bind)?.1)
    }

    fn lend<T>(
        &mut self,
        md: &MdSpec,
        buffer: Buffer,
        make: impl FnOnce(&mut Self) -> Result<(T, MdHandle), LendError>,
    ) -> Result<(T, MdHandle), Refused> {
        let (buffer_bytes, length_bytes) = (buffer.len(), md.length_bytes);
        if (buffer_bytes as u64) < length_bytes {
            return Err(Refused { error: LendError::ShortBuffer { buffer_bytes, length_bytes }, buffer });
        }
        match make(self) {
            Ok((made, handle)) => {
                self.memory.lend(handle, buffer, Terms::of(md));
                Ok((made, handle))
            }
            Err(error) => Err(Refused { error, buffer }),
        }
    }

    /// Makes a portal lazy on this shard: PUTs that no entry takes wait for one. Each shard of the node has
    /// to be told.
    ///
    /// # Errors
    /// When there is no such portal.
    pub fn set_lazy(&mut self, portal: u32) -> Result<(), EntryError> {
        self.shard.set_lazy(portal)
    }

    /// Sends the ACKs that have waited for this ([`Shard::acknowledge`]).
    pub(crate) fn acknowledge(&mut self) {
        self.shard.acknowledge(self.clock.now());
    }

    /// Makes a portal an ordinary one again on this shard: PUTs that wait for an entry are dropped.
    ///
    /// # Errors
    /// When there is no such portal.
    pub fn clear_lazy(&mut self, portal: u32) -> Result<(), EntryError> {
        self.shard.clear_lazy(portal)
    }

    /// Puts a bound descriptor's bytes to a remote portal. What comes of it arrives as events.
    ///
    /// # Errors
    /// When the descriptor cannot be put from, or there is no room for another message.
    pub fn put(&mut self, request: &PutRequest) -> Result<(), SubmitError> {
        self.shard.put(self.clock.now(), request)
    }

    /// Gets bytes from a remote portal into a bound descriptor. What comes of it arrives as events.
    ///
    /// # Errors
    /// As [`Worker::put`].
    pub fn get(&mut self, request: &GetRequest) -> Result<(), SubmitError> {
        self.shard.get(self.clock.now(), request)
    }

    /// Unlinks a descriptor: at once when idle, else with its last operation. Either way an event brings
    /// its buffer home.
    ///
    /// # Errors
    /// The handle, when it names no descriptor, or one that is unlinked already.
    pub fn unlink(&mut self, md: MdHandle) -> Result<Unlinked, MdHandle> {
        self.shard.unlink(md)
    }

    /// Removes a match entry and unlinks its descriptor, as [`Worker::unlink`] does.
    ///
    /// # Errors
    /// The handle, when it names no entry.
    pub fn unlink_entry(&mut self, entry: MeHandle) -> Result<Unlinked, MeHandle> {
        self.shard.unlink_entry(entry)
    }

    /// An event queue to which an event came when it had none ([`Shard::poll_ready_queue`]): so that a thread
    /// with many queues looks at few. Each is told once until it is empty again.
    #[inline]
    pub fn poll_ready_queue(&mut self) -> Option<EqHandle> {
        self.shard.poll_ready_queue()
    }

    /// The next event of a queue.
    #[inline]
    pub fn poll_event(&mut self, eq: EqHandle) -> Option<Delivery> {
        let event = self.shard.poll_event(eq)?;
        self.taken_events += 1;
        let buffer = if event.unlinked() { self.memory.give_back(event.md()) } else { None };
        Some(Delivery { event, buffer })
    }

    /// The bytes of a descriptor that an event told of; valid until the shard's next turn.
    ///
    /// # Errors
    /// As [`Worker::payload_fragments`]; [`LeaseError::Fragmented`] if they lie in several fragments.
    ///
    /// # Panics
    /// As [`Worker::payload_fragments`].
    pub fn payload(&self, md: MdHandle, offset_bytes: u64, length_bytes: u32) -> Result<&[u8], LeaseError> {
        self.payload_fragments(md, offset_bytes, length_bytes)?.contiguous().ok_or(LeaseError::Fragmented)
    }

    /// The bytes of a descriptor that an event told of, one slice for each fragment of its buffer that they
    /// lie in.
    ///
    /// # Errors
    /// [`LeaseError::BeingWritten`] while a sibling shard writes some of them: where peers choose the bytes
    /// (`MANAGE_REMOTE`), and where REPLYs go.
    ///
    /// # Panics
    /// If the descriptor has given its buffer back, or the range leaves it.
    pub fn payload_fragments(
        &self,
        md: MdHandle,
        offset_bytes: u64,
        length_bytes: u32,
    ) -> Result<Fragments<'_>, LeaseError> {
        self.memory.read(&Span { buffer: md.into(), offset_bytes, length_bytes })
    }

    /// Lends the payload that an event told of to other threads, to be read. The descriptor's buffer comes
    /// home after the last event and the last lease.
    ///
    /// Only what no message can be written to any more is lent: what was PUT into an attached descriptor
    /// behind what came before. Where peers choose the bytes (`MANAGE_REMOTE`), and where REPLYs go (each
    /// begins at the start), the payload is in the buffer that comes home with the last event.
    ///
    /// # Errors
    /// [`LeaseError::PeersChoose`] where it might be written to, [`LeaseError::NoPayload`] if the event told
    /// of none, [`LeaseError::Home`] if the buffer has come home.
    pub fn read_lease(&mut self, delivery: &Delivery) -> Result<ReadLease, LeaseError> {
        self.memory.read_lease(&delivery.event.payload().ok_or(LeaseError::NoPayload)?)
    }

    /// The buffer of a descriptor whose last event was taken while read leases on it were out, now that they
    /// are back. Returning a lease causes no wake-up: the lessee tells the thread that waits for the buffer.
    pub fn poll_buffer(&mut self) -> Option<(MdHandle, Buffer)> {
        self.memory.poll_home()
    }

    /// Sleeps until something arrives, a timer is due, a buffer comes home, another thread calls
    /// [`Waker::wake`], or `timeout` is over. Returns at once if there is something to do; call it when
    /// [`Worker::progress`] has found nothing.
    ///
    /// # Errors
    /// The kernel's refusal to wait.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<(), WaitError> {
        if self.waiting_events() != 0 { Ok(()) } else { self.sleep_unless(|| false, true, timeout) }
    }

    /// Sleeps unless there is something to do. `takes_buffers`: whether the caller takes what
    /// [`Worker::poll_buffer`] has.
    fn sleep_unless(
        &mut self,
        stop: impl Fn() -> bool,
        takes_buffers: bool,
        timeout: Option<Duration>,
    ) -> Result<(), WaitError> {
        let mut waiter = self.take_waiter();
        let armed = waiter.arm();
        let slept = match self.sleep(stop, takes_buffers, timeout) {
            Some(Sleep { longest, .. }) => armed.wait(longest, |_| {}).map(drop),
            None => {
                drop(armed);
                Ok(())
            }
        };
        self.give_waiter(waiter);
        slept
    }

    /// How long to sleep, `timeout` at most, once wake-ups are armed; `None` if there is something to do, or
    /// `stop` says so.
    pub(super) fn sleep(
        &mut self,
        stop: impl Fn() -> bool,
        takes_buffers: bool,
        timeout: Option<Duration>,
    ) -> Option<Sleep> {
        // After a sleep there is something to do, be it for a timer.
        self.idle_polls.end();
        self.lnd.prepare_sleep();
        // What came before the arming caused no wake-up. Frames are no matter: their arrival wakes anyway.
        let has_messages = self.shard.has_transmit() && !self.device_full;
        let has_mesh = self.mesh.has_arrivals() || self.shard.has_mesh() && !self.mesh.is_blocked();
        let has_work = has_messages || has_mesh || self.shard.has_resumed() || self.lnd.has_work();
        let has_buffer = takes_buffers && self.memory.has_home();
        if stop() || has_work || has_buffer {
            return None;
        }
        let now = self.clock.now();
        let due = time::earliest([self.shard.poll_timeout(), self.lnd.poll_timeout()]);
        let longest = [
            timeout,
            due.map(|due| due - now),
            (self.device_full || self.mesh.is_blocked() || self.lnd.awaits_completions())
                .then_some(COMPLETION_POLL),
        ];
        let longest = longest.into_iter().flatten().min();
        if longest.is_some_and(|longest| longest < SHORTEST_SLEEP) {
            return None;
        }
        Some(Sleep { longest, due: self.shard.poll_timeout() })
    }

    /// Whether a thread that sleeps like this is to wake, after a call that came meanwhile.
    pub(super) fn ends(&self, sleep: &Sleep) -> bool {
        self.shard.has_work()
            || self.waiting_events() != 0
            || self.shard.poll_timeout().is_some_and(|due| sleep.due.is_none_or(|known| due < known))
    }

    /// Takes the waiter that the shard sleeps in; it is to be given back.
    pub(super) fn take_waiter(&mut self) -> Box<Waiter> {
        self.waiter.take().expect("one thread at a time sleeps in a shard")
    }

    /// Takes back what the shard sleeps in.
    pub(super) fn give_waiter(&mut self, waiter: Box<Waiter>) {
        self.waiter = Some(waiter);
    }

    /// The waiter that the shard sleeps in, while no thread does.
    pub(super) fn waiter(&mut self) -> &mut Waiter {
        self.waiter.as_mut().expect("what is watched changes while no thread sleeps in the shard")
    }

    /// Events that wait to be taken, in all queues.
    #[must_use]
    pub fn waiting_events(&self) -> u32 {
        self.shard.waiting_events()
    }

    /// Whether its LNDs have what the kernel gives to the thread alone that drives: then another driver makes
    /// that anew.
    pub(super) fn is_bound_to_driver(&self) -> bool {
        self.lnd.is_bound_to_driver()
    }

    /// What changes with every event that comes or is taken: how many wait and how many were taken.
    pub(super) fn event_counts(&self) -> (u32, u64) {
        (self.waiting_events(), self.taken_events)
    }

    /// Wakes this shard from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }
}
