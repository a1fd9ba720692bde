//! A shard: the data path of one CPU.
//!
//! A shard owns its match entries, descriptors, event queues and its share of the credits; no other shard
//! touches them. Its driver calls, in any order:
//!
//! - [`Shard::attach_entry`], [`Shard::attach`], [`Shard::bind`], [`Shard::unlink`], [`Shard::put`],
//!   [`Shard::get`] for the application;
//! - the [`Uplink`](crate::lnd::Uplink) methods for its LNDs;
//! - [`Shard::handle_timeout`] at the time that [`Shard::poll_timeout`] says;
//! - [`Shard::handle_mesh`] for its siblings;
//! - after any of these [`Shard::poll_transmit`], [`Shard::poll_event`], [`Shard::poll_resume`],
//!   [`Shard::poll_extended`] and, for each sibling, [`Shard::poll_mesh_to`] until they return `None`.
//!
//! Invariants: nothing allocates after [`Shard::new`]; what a peer sends never trips an assertion, what an
//! LND does against its contract always does; a message ends exactly once, and with it its operation on a
//! descriptor, its credits and its reference on a peer.

mod cut;
mod delay;
mod delayed;
mod forward;
mod gate;
mod health;
mod initiator;
mod inspect;
mod loops;
mod memory;
pub mod mesh;
mod news;
mod parts;
mod promise;
mod report;
mod response;
mod routed;
mod select;
mod target;
mod transmit;
mod update;

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use lnet_wire::steer::{PORTALS, SHARDS_MAX};

pub use crate::peer::{PEER_BYTES, PeerRecord};
pub use crate::stats::Usage;
#[cfg(feature = "sabotage")]
pub use crate::turns::TurnsBug;
pub use delay::NAME_WAIT;
pub use initiator::{GetRequest, MdPart, PutRequest, SubmitError};
pub use inspect::NiUsage;
pub use loops::{LOOP_HOLD, PROBE_INTERVAL};
pub use news::{ForgedSource, HealthNote, PathNote, PathState, PeerChange};
pub use promise::ACK_WAIT;
pub use routed::{BUFFER_WAIT, CUT_PATIENCE, CUT_PAUSE, CUT_SOON, CUT_STEP_BYTES, CUTS_MAX, PoolUsage};
pub use select::criteria::{Candidate, Criterion, Weighed};
pub use select::{Choice, Explanation, NEXT_HOP_PATIENCE};
pub use update::Confirmation;

use crate::collections::{NONE, Seed, Slab};
use crate::event::{EqError, Event, EventQueues};
use crate::fault::Faults;
use crate::handle::{Cookie, CookieKind, EqHandle, MdHandle, MeHandle, ShardId};
use crate::limits::Limits;
use crate::lnd::NiId;
use crate::lookahead::Lookahead;
use crate::md::{Ending, MemoryDesc};
use crate::message::{Credited, MessageQueue, Messages, Timers};
use crate::peer::Peers;
use crate::portal::MatchTables;
use crate::seal::Seals;
use crate::stats::{Counters, NiCounters, NiLatencies};
use crate::time::{self, Instant};
use crate::topology::{MemoryNode, Topology};
use crate::track::Trackers;
use crate::turns::NiCredits;

use delayed::DelayedMessages;
use loops::Loops;
use mesh::Mesh;
use news::News;
use parts::AwaitedParts;
use routed::RoutedMessages;
use select::KnownPaths;
use target::Incoming;

/// What a shard is made of.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// Its number, below `shard_count`.
    pub shard: ShardId,
    /// Shards of the node, at most [`SHARDS_MAX`].
    pub shard_count: u8,
    /// Keys the seals of this life's wire handles ([`Seals`]). A secret, the same for all shards.
    pub seal_key: [u64; 2],
    /// The node's pid, [`lnet_wire::ProcessId::LUSTRE_PID`] everywhere in practice.
    pub pid: u32,
    /// How much of everything it may hold.
    pub limits: Limits,
    /// The node's NIs.
    pub topology: Arc<Topology>,
    /// Seeds the hash tables. Peers should not know it.
    pub hash_seed: u64,
}

/// A shard's books of one slot of the local NIs.
struct ShardNi {
    credits: NiCredits,
    counters: NiCounters,
    latencies: NiLatencies,
    /// Messages on their way out by it.
    outgoing_count: u32,
    /// Messages that LNDs of this shard put in place, which came by it.
    arriving_count: u32,
    /// Pings that have come by it.
    ping_count: u64,
    /// When a ping of another node is news again, and whether there is such news, of a router.
    ping_news: (Instant, bool),
    /// Credits that a peer on its net gets.
    peer_share: u32,
    /// When it was last chosen among several, as a number that grows.
    sequence: u64,
    /// Messages that hold their credits, to be polled.
    ready: MessageQueue<Credited>,
    timers: Timers,
    /// While messages wait for a credit: when it is looked who has one for long.
    look_at: Instant,
}

impl ShardNi {
    /// The state of an empty slot.
    fn vacant() -> Self {
        Self {
            credits: NiCredits::new(0),
            counters: NiCounters::default(),
            latencies: NiLatencies::default(),
            outgoing_count: 0,
            arriving_count: 0,
            ping_count: 0,
            ping_news: (Instant(0), false),
            peer_share: 0,
            sequence: 0,
            ready: MessageQueue::new(),
            timers: Timers::new(),
            look_at: Instant(0),
        }
    }

    /// When it is to be looked who passes on a credit, if a message waits for one.
    fn next_look(&self) -> Option<Instant> {
        (self.credits.waiting_count() > 0).then_some(self.look_at)
    }
}

/// The data path of one CPU. See the [module](self) for the order of calls.
pub struct Shard {
    id: ShardId,
    seals: Seals,
    pid: u32,
    /// Event slots of a descriptor without a threshold.
    unlimited_events: u32,
    topology: Arc<Topology>,
    tables: MatchTables,
    lookahead: Lookahead,
    mds: Slab<MemoryDesc>,
    /// Where REPLYs go that fill a part of their descriptor.
    parts: AwaitedParts,
    /// Where buffers lie, by descriptor, as far as that was told.
    memory_nodes: Vec<Option<MemoryNode>>,
    events: EventQueues,
    messages: Messages,
    trackers: Trackers,
    peers: Peers,
    nis: Vec<ShardNi>,
    incoming: Incoming,
    delayed: DelayedMessages,
    routed: RoutedMessages,
    loops: Loops,
    mesh: Mesh,
    faults: Faults,
    /// What LNDs have reported of paths.
    paths: KnownPaths,
    /// Counts the choices among paths.
    sequence: u64,
    news: News,
    counters: Counters,
    #[cfg(feature = "sabotage")]
    loses_credit: bool,
}

impl Shard {
    /// A shard with nothing in it. Allocates all that it will ever use.
    ///
    /// # Panics
    /// If the limits are not valid, or the topology or the shard count exceed them.
    #[must_use]
    pub fn new(config: ShardConfig) -> Self {
        let ShardConfig { shard, shard_count, seal_key, pid, limits, topology, hash_seed } = config;
        assert!(limits.is_valid(), "{limits:?} are no valid limits");
        assert!(u32::from(shard_count) <= SHARDS_MAX, "{shard_count} shards, at most {SHARDS_MAX} expected");
        assert!(shard.0 < shard_count, "{shard:?} of {shard_count} shards");
        let seed = Seed::new(hash_seed);
        let peers = Peers::new(limits.peers, limits.nis, seed);
        let delayed = DelayedMessages::new(&limits, shard_count, peers.capacity());
        let routed = RoutedMessages::new(&limits, peers.capacity());
        let mut shard = Self {
            id: shard,
            seals: Seals::new(seal_key),
            pid,
            unlimited_events: limits.unlimited_events,
            topology: Arc::default(),
            tables: MatchTables::new(limits.match_entries, seed),
            lookahead: Lookahead::new(),
            mds: Slab::new(limits.memory_descs),
            parts: AwaitedParts::new(limits.memory_descs),
            memory_nodes: vec![None; limits.memory_descs as usize],
            events: EventQueues::new(limits.event_queues, limits.events, limits.spare_events),
            messages: Messages::new(&limits),
            trackers: Trackers::new(limits.memory_descs),
            peers,
            nis: Vec::with_capacity(usize::from(limits.nis)),
            incoming: Incoming::new(limits.incoming),
            delayed,
            routed,
            loops: Loops::new(),
            mesh: Mesh::new(),
            faults: Faults::new(),
            paths: KnownPaths::new(),
            sequence: 0,
            news: News::new(),
            counters: Counters::default(),
            #[cfg(feature = "sabotage")]
            loses_credit: false,
        };
        shard.install(Instant::default(), topology);
        shard
    }

    /// Its number.
    #[must_use]
    pub const fn id(&self) -> ShardId {
        self.id
    }

    /// Makes an event queue for `slots` events, taken from those of the shard.
    ///
    /// # Errors
    /// [`EqError::Full`] or [`EqError::Slots`] when the shard has no more.
    pub fn create_event_queue(&mut self, slots: u32) -> Result<EqHandle, EqError> {
        let slot = self.events.create(slots)?;
        Ok(EqHandle(Cookie::new(CookieKind::EventQueue, self.id, slot, self.events.generation(slot))))
    }

    /// Frees an event queue.
    ///
    /// # Errors
    /// [`EqError::Busy`] while a descriptor has slots in it or an event waits: none is ever lost.
    /// [`EqError::Unknown`] if there is no such queue.
    pub fn free_event_queue(&mut self, queue: EqHandle) -> Result<(), EqError> {
        let slot = self.event_queue_slot(queue).ok_or(EqError::Unknown)?;
        self.events.remove(slot)
    }

    /// An event queue that has events, and had none before the first of them. Each is told once until it is
    /// empty again; what is left in one that was told is for the caller to remember.
    #[inline]
    pub fn poll_ready_queue(&mut self) -> Option<EqHandle> {
        let slot = self.events.pop_ready()?;
        Some(EqHandle(Cookie::new(CookieKind::EventQueue, self.id, slot, self.events.generation(slot))))
    }

    /// Takes the oldest event out of a queue; `None` when there is none, or no such queue.
    #[inline]
    pub fn poll_event(&mut self, queue: EqHandle) -> Option<Event> {
        let queue = self.event_queue_slot(queue)?;
        let popped = self.events.pop(queue)?;
        let (event, recurring) = self.events.read(&popped);
        let MdHandle(md) = event.md();
        let event = Some(*event);
        self.events.forget(popped);
        if recurring && self.mds.holds(md.slot(), md.generation()) {
            let md_slot = md.slot();
            if self.mds[md_slot].borrowed_slots() > 0 {
                self.events.take_back(queue);
            }
            self.mds[md_slot].event_slots += 1;
            self.note_retry(md_slot);
            self.wake();
        } else {
            self.events.free_slot(queue, recurring);
        }
        event
    }

    /// Whether an operation of a descriptor finds an event slot: its own, or one that it may borrow.
    #[inline]
    fn has_event_slot(&self, md: &MemoryDesc) -> bool {
        md.has_own_event_slot() || md.is_infinite() && self.events.lends_to(md.borrowed_slots())
    }

    /// Switches a bug on: the next credit of an NI that would return is lost.
    #[cfg(feature = "sabotage")]
    pub const fn lose_credit(&mut self) {
        self.loses_credit = true;
    }

    /// Switches a bug of the turns on, at the NIs that there are.
    #[cfg(feature = "sabotage")]
    pub fn break_turns(&mut self, bug: TurnsBug) {
        self.nis.iter_mut().for_each(|shard_ni| shard_ni.credits.bug = Some(bug));
    }

    /// The faults that it simulates.
    #[must_use]
    pub const fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The faults that it simulates, to change them; delay rules are deleted by
    /// [`Shard::delete_delay_rules`].
    pub const fn faults_mut(&mut self) -> &mut Faults {
        &mut self.faults
    }

    /// When [`Shard::handle_timeout`] has something to do: the earliest deadline of a message that waits
    /// for a credit, or of a response, or the time of one that a delay rule holds up or that waits for its
    /// peer, or when credits are to be passed on.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let credits = self.nis.iter().filter_map(|shard_ni| {
            time::earliest([shard_ni.timers.next(&self.messages), shard_ni.next_look()])
        });
        let (released, delayed) = (self.messages.next_release(), self.delayed.next_timed());
        let (unnamed, routed) = (self.delayed.next_unnamed(), self.routed.next_deadline());
        let cut = self.routed.next_cut();
        time::earliest([credits.min(), self.trackers.next(), released, delayed, unnamed, routed, cut])
    }

    /// Whether [`Shard::poll_transmit`] has a message of any NI.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        self.nis.iter().any(|shard_ni| !shard_ni.ready.is_empty())
    }

    /// Whether [`Shard::poll_transmit`], [`Shard::poll_mesh_to`], [`Shard::poll_resume`] or
    /// [`Shard::poll_extended`] has something.
    #[inline]
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.has_transmit() || self.has_mesh() || self.has_resumed() || self.routed.has_told()
    }

    fn event_queue_slot(&self, EqHandle(queue): EqHandle) -> Option<u32> {
        let (slot, generation) = self.made(queue, CookieKind::EventQueue)?;
        self.events.holds(slot, generation).then_some(slot)
    }

    fn entry_slot(&self, MeHandle(entry): MeHandle) -> Option<u32> {
        let (slot, generation) = self.made(entry, CookieKind::MatchEntry)?;
        self.tables.entries.holds(slot, generation).then_some(slot)
    }

    /// The slot of a descriptor that can still be found.
    fn md_slot(&self, MdHandle(md): MdHandle) -> Option<u32> {
        let (slot, generation) = self.made(md, CookieKind::MemoryDesc)?;
        (self.mds.holds(slot, generation) && self.mds[slot].ending != Ending::Aborted).then_some(slot)
    }

    /// The slot of the descriptor, and the part of it, that the REPLY to a GET for a part names.
    #[inline]
    fn awaited_part(&self, reply: Cookie) -> Option<(u32, MdPart)> {
        let (name, generation) = self.made(reply, CookieKind::MemoryDesc)?;
        self.parts.find(name, generation)
    }

    fn md_handle(&self, slot: u32) -> MdHandle {
        MdHandle(Cookie::new(CookieKind::MemoryDesc, self.id, slot, self.mds.generation(slot)))
    }

    /// The slot and the generation of what this shard has made, if it is of this kind.
    fn made(&self, cookie: Cookie, kind: CookieKind) -> Option<(u32, u32)> {
        (cookie.is(kind) && cookie.shard() == self.id).then_some((cookie.slot(), cookie.generation()))
    }

    fn ni(&mut self, ni: NiId) -> &mut ShardNi {
        &mut self.nis[usize::from(ni.0)]
    }
}

// A bit for each portal's list of unmatched messages, and one for that of responses.
const _: () = assert!(PORTALS < u128::BITS as usize && PORTALS <= u64::BITS as usize);
const _: () = assert!(SHARDS_MAX <= 1 << lnet_wire::steer::COOKIE_SHARD_BITS);
const _: () = assert!(NONE as u64 > 1 << crate::handle::SLOT_BITS);
