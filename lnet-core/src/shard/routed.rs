//! Messages of other nodes on their way through this one: what each has, and what it waits for.
//!
//! A message takes a router credit of the peer NI that it came from, and then a buffer of the first pool
//! whose buffers have room for it. When it has been sent on or is given up, the buffer returns first, to a
//! message that waits for one, and then the credit (LNet `lib-move.c: lnet_post_routed_recv_locked`,
//! `lnet_return_rx_credits_locked`).
//!
//! A pool is shared: messages for one next hop have no more of its buffers than are left, and so have
//! messages from one sender, as tables are shared ([`has_share`]). So a receiver that takes nothing, and a
//! flood for it, leave buffers to others. Next hops take turns. What comes by a gateway comes from many: of
//! its credits one source has no more than are left.
//!
//! A quarter of a pool is for messages whose next hop is the node that they are for. Such a node takes what
//! it is sent whatever the routers do, so their buffers become free; and those of the messages that come here
//! on their last hop but one, in the routers before, with them.
//!
//! Invariants: a record is in exactly the lists that its state names; none waits that could go on; buffers
//! that are free, in use and surplus are those that were added. A message waits for [`BUFFER_WAIT`] at most:
//! around a ring of routers each may wait for the next one, and without an end nothing there would move.

mod cut;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_model::pool::PoolKind;
use lnet_wire::{Header, Nid};

use super::Choice;
use crate::collections::{Link, List, Slab, linked};
use crate::handle::BufferHandle;
use crate::limits::{Limits, has_share};
use crate::lnd::{NiId, RxId, Span};
use crate::time::Instant;

pub use self::cut::{CUT_PATIENCE, CUT_PAUSE, CUT_SOON, CUT_STEP_BYTES, CUTS_MAX};
pub(super) use self::cut::{Inward, Onward};

/// How long a message waits at most for a router credit and a buffer. What is behind it in a stream waits
/// too, so this is short beside the 50 s after which kernel nodes end a connection that does not move.
pub const BUFFER_WAIT: Duration = Duration::from_secs(10);
/// Bytes of a page of a pool.
const PAGE_BYTES: u32 = 4096;
/// Pools of a router.
const POOLS: usize = PoolKind::ALL.len();
/// Parts in which the sources behind a gateway share its credits.
const SOURCES: usize = 16;
/// Messages in front of a queue among which one is looked for that may go on.
const LOOKED_AT: usize = 32;

/// Use of a pool of router buffers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolUsage {
    /// Buffers that there are.
    pub buffers: u32,
    /// Buffers that are not in use, less the messages that wait for one.
    pub credits: i64,
    /// The least that `credits` was.
    pub credits_min: i64,
}

/// Things of which messages take one each, and how many messages wait for one.
#[derive(Clone, Copy, Default)]
struct Stock {
    total: u32,
    taken: u32,
    waiting: u32,
    lowest: i64,
}

impl Stock {
    const fn left(&self) -> u32 {
        self.total.saturating_sub(self.taken)
    }

    /// Whether who has so many may have one more.
    const fn admits(&self, has: u32) -> bool {
        has_share(has, self.left(), self.total)
    }

    fn available(&self) -> i64 {
        i64::from(self.total) - i64::from(self.taken) - i64::from(self.waiting)
    }

    fn take(&mut self) {
        self.taken += 1;
        self.lowest = self.lowest.min(self.available());
    }

    fn wait(&mut self) {
        self.waiting += 1;
        self.lowest = self.lowest.min(self.available());
    }

    /// Changes how many there are; the least is counted anew.
    fn set_total(&mut self, total: u32) {
        if total != self.total {
            self.total = total;
            self.lowest = self.available();
        }
    }
}

/// How far a message is; each state says which lists its record is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RoutedState {
    /// Waits for a router credit: that of its hop, and the one of all that wait.
    AtHop,
    /// Waits for a buffer: that of its next hop for the pool, and the one of all that wait.
    AtPool,
    /// Its LND is to be told, to drop it if it has no buffer: `resumed`.
    Resumed,
    /// With an LND that puts it in place, or on its way out: those that [`cut`] tells of, or none.
    Moving,
}

/// A message of another node.
pub(super) struct Routed {
    pub(super) rx: RxId,
    /// The NI that it came by.
    pub(super) ni: NiId,
    /// The peer NI that sent it.
    pub(super) from: Nid,
    pub(super) header: Header,
    /// The path by which it is to go on.
    pub(super) path: Choice,
    /// Slots of the peer NIs that it comes from and goes to, which are referred to.
    pub(super) hop: u32,
    pub(super) next: u32,
    pool: PoolKind,
    /// The part of its source, if its hop is a gateway.
    source: Option<u8>,
    buffer: Option<BufferHandle>,
    has_credit: bool,
    state: RoutedState,
    /// Bytes of it that have arrived, in steps, and when the first of them had.
    arrived_bytes: u32,
    begun_at: Option<Instant>,
    pub(super) arrival: Inward,
    pub(super) onward: Onward,
    /// When it is dropped if it still waits then, or is to be there if it goes on before.
    deadline: Instant,
    queue: Link,
    wait: Link,
}

/// Marks the list that the state of a record names.
struct InQueue;
/// Marks the records that wait, in the order of their deadlines.
struct Waits;

linked!(Routed, InQueue, queue);

linked!(Routed, Waits, wait);

impl Routed {
    /// A message that has come, of which nothing is decided but its path.
    pub(super) fn new(
        now: Instant,
        rx: RxId,
        (ni, from): (NiId, &Nid),
        header: &Header,
        (path, pool): (Choice, PoolKind),
        (hop, next): (u32, u32),
    ) -> Self {
        Self {
            rx,
            ni,
            from: *from,
            header: *header,
            path,
            hop,
            next,
            pool,
            source: (header.source.nid != *from).then(|| part_of(&header.source.nid)),
            buffer: None,
            has_credit: false,
            state: RoutedState::Moving,
            arrived_bytes: 0,
            begun_at: None,
            arrival: Inward::Coming,
            onward: Onward::Later,
            deadline: now + BUFFER_WAIT,
            queue: Link::UNLINKED,
            wait: Link::UNLINKED,
        }
    }

    /// Whether it goes from here to the node that it is for.
    fn is_last_hop(&self) -> bool {
        self.path.next_hop == self.path.destination
    }

    /// Where its payload goes, once it has a buffer.
    pub(super) fn span(&self) -> Option<Span> {
        let length_bytes = self.header.payload_length;
        self.buffer.map(|buffer| Span { buffer: buffer.into(), offset_bytes: 0, length_bytes })
    }
}

/// Buffers of a pool of so many that are for messages which go from here to the node that they are for.
const fn reserve_of(total: u32) -> u32 {
    match total {
        0 | 1 => 0,
        2..8 => 1,
        _ => total / 4,
    }
}

/// The part of a source among those behind a gateway.
fn part_of(source: &Nid) -> u8 {
    let bytes = source.to_bytes();
    bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte)) % SOURCES as u8
}

/// A peer NI, as messages come from it and go to it.
#[derive(Default)]
struct RoutedPeer {
    /// Its NID, once a message has come from it: another one may have its slot later.
    nid: Option<Nid>,
    /// Its router credits, and the messages from it that wait for one.
    credits: Stock,
    waiting: List<InQueue>,
    /// Credits that each part of the sources behind it has.
    sources: [u32; SOURCES],
    /// Messages for it that wait for a buffer, by pool, and whether it is among those of the pool that take
    /// turns.
    towards: [List<InQueue>; POOLS],
    has_turn: [bool; POOLS],
    /// Buffers of each pool that messages from it have, and those that messages for it have.
    from_count: [u32; POOLS],
    to_count: [u32; POOLS],
    /// Messages for it that go on while they arrive, and when the next one may that is for it or from it.
    cut_count: u32,
    cut_again_at: Instant,
}

/// Buffers of one size.
#[derive(Default)]
struct RouterPool {
    stock: Stock,
    free: Vec<BufferHandle>,
    /// How many there are to be.
    wanted: u32,
    /// Next hops for which messages wait, in the order of their turns.
    turns: VecDeque<u32>,
}

/// The messages of other nodes that a shard forwards.
pub(super) struct RoutedMessages {
    records: Slab<Routed>,
    /// Peer NIs by their slots, as far as any slot was used.
    hops: Vec<RoutedPeer>,
    pools: [RouterPool; POOLS],
    surplus: Vec<BufferHandle>,
    resumed: List<InQueue>,
    waiting: List<Waits>,
    /// Messages that go on while they arrive, in the order in which they are to be there, and those whose LND
    /// is to be told.
    cuts: List<InQueue>,
    told: List<Waits>,
    /// Buffers that there may be, in all pools.
    buffers_max: u32,
    /// Slots of peers, for which there is room once there are to be buffers.
    peers_max: u32,
}

impl RoutedMessages {
    /// Room for messages, with so many slots of peers; none where nothing is forwarded.
    pub(super) fn new(limits: &Limits, peers: u32) -> Self {
        let buffers_max = limits.forwards;
        let (records, peers) = if buffers_max == 0 { (0, 0) } else { (limits.incoming + buffers_max, peers) };
        Self {
            records: Slab::new(records),
            hops: Vec::new(),
            pools: Default::default(),
            surplus: Vec::new(),
            resumed: List::new(),
            waiting: List::new(),
            cuts: List::new(),
            told: List::new(),
            buffers_max,
            peers_max: peers,
        }
    }

    /// Sets how many buffers the pools are to have, the large ones first where there is no room for all.
    /// Allocates what lists of so many need.
    pub(super) fn set_wanted(&mut self, wanted: [u32; POOLS]) {
        let mut room = self.buffers_max;
        let total: u32 = self.pools.iter().map(|pool| pool.stock.total).sum();
        self.surplus.reserve(total as usize);
        if wanted.iter().any(|wanted| *wanted > 0) {
            let peers = self.peers_max as usize;
            self.hops.reserve_exact(peers.saturating_sub(self.hops.len()));
            let turns = self.pools.iter_mut().map(|pool| &mut pool.turns);
            turns.for_each(|turns| turns.reserve_exact(peers.saturating_sub(turns.len())));
        }
        for (pool, wanted) in self.pools.iter_mut().zip(wanted).rev() {
            pool.wanted = wanted.min(room);
            room -= pool.wanted;
            pool.free.reserve(pool.wanted.saturating_sub(pool.free.len() as u32) as usize);
            while pool.stock.total > pool.wanted
                && let Some(buffer) = pool.free.pop()
            {
                pool.stock.set_total(pool.stock.total - 1);
                self.surplus.push(buffer);
            }
        }
    }

    /// Buffers that the pools lack.
    pub(super) fn missing(&self) -> [u32; POOLS] {
        let mut room = self.room();
        self.pools.each_ref().map(|pool| {
            let missing = pool.wanted.saturating_sub(pool.stock.total).min(room);
            room -= missing;
            missing
        })
    }

    /// Buffers that there is room for: those of a pool that has shrunk may still be in use.
    fn room(&self) -> u32 {
        self.buffers_max.saturating_sub(self.pools.iter().map(|pool| pool.stock.total).sum())
    }

    /// Adds a buffer to a pool, for a message that waits if there is one.
    pub(super) fn add_buffer(&mut self, kind: PoolKind, buffer: BufferHandle) {
        let has_room = self.room() > 0;
        let pool = &mut self.pools[kind as usize];
        assert!(has_room && pool.stock.total < pool.wanted, "the {kind} pool has all its buffers");
        pool.stock.set_total(pool.stock.total + 1);
        pool.free.push(buffer);
        self.grant_buffers(kind);
    }

    /// A buffer that is not needed any more.
    pub(super) fn pop_surplus(&mut self) -> Option<BufferHandle> {
        self.surplus.pop()
    }

    pub(super) fn usage(&self) -> [PoolUsage; POOLS] {
        self.pools.each_ref().map(|RouterPool { stock, .. }| PoolUsage {
            buffers: stock.total,
            credits: stock.available(),
            credits_min: stock.lowest,
        })
    }

    /// The pool for a payload of this length: the first one that has buffers with room for it.
    pub(super) fn pool_for(&self, length_bytes: u32) -> Option<PoolKind> {
        let fits = |kind: &PoolKind| {
            self.pools[*kind as usize].stock.total > 0 && length_bytes <= kind.page_count() * PAGE_BYTES
        };
        PoolKind::ALL.iter().copied().find(fits)
    }

    /// Credits of the peer NI in a slot, those that are free, less the messages that wait for one, and the
    /// least that these were.
    pub(super) fn credits(&self, slot: u32, nid: &Nid) -> Option<[i64; 3]> {
        let peer = self.hops.get(slot as usize).filter(|peer| peer.nid.as_ref() == Some(nid))?;
        Some([peer.credits.total.into(), peer.credits.available(), peer.credits.lowest])
    }

    /// Whether any message is under way.
    pub(super) const fn is_empty(&self) -> bool {
        self.records.used_count() == 0
    }

    pub(super) fn record(&self, slot: u32) -> &Routed {
        &self.records[slot]
    }

    /// Has a message take a credit, of so many that its hop has, and a buffer, or wait for them.
    pub(super) fn begin(&mut self, routed: Routed, credits: u32) -> u32 {
        let used = routed.hop.max(routed.next) as usize + 1;
        self.hops.resize_with(self.hops.len().max(used), RoutedPeer::default);
        let hop = routed.hop;
        let peer = &mut self.hops[hop as usize];
        if peer.nid != Some(routed.from) {
            (peer.nid, peer.credits, peer.cut_again_at) = (Some(routed.from), Stock::default(), Instant(0));
        }
        peer.credits.set_total(credits);
        // Credits that have come are for those that wait.
        self.grant_credits(hop);
        let Ok(slot) = self.records.insert(routed) else {
            unreachable!("each message has a name of its own")
        };
        self.waiting.push_back(&mut self.records, slot);
        if self.may_have_credit(&self.records[slot]) {
            self.take_credit(slot);
        } else {
            let hop = &mut self.hops[hop as usize];
            hop.credits.wait();
            hop.waiting.push_back(&mut self.records, slot);
            self.records[slot].state = RoutedState::AtHop;
        }
        slot
    }

    fn may_have_credit(&self, routed: &Routed) -> bool {
        let hop = &self.hops[routed.hop as usize];
        match routed.source {
            Some(part) => hop.credits.admits(hop.sources[usize::from(part)]),
            None => hop.credits.left() > 0,
        }
    }

    /// Has a message take a credit that it may have, and go on to its pool.
    fn take_credit(&mut self, slot: u32) {
        let record = &mut self.records[slot];
        record.has_credit = true;
        let (next, kind) = (record.next as usize, record.pool);
        let hop = &mut self.hops[record.hop as usize];
        hop.credits.take();
        if let Some(part) = record.source {
            hop.sources[usize::from(part)] += 1;
        }
        if self.may_have_buffer(&self.records[slot]) {
            return self.take_buffer(slot);
        }
        let (hop, pool) = (&mut self.hops[next], &mut self.pools[kind as usize]);
        pool.stock.wait();
        hop.towards[kind as usize].push_back(&mut self.records, slot);
        self.records[slot].state = RoutedState::AtPool;
        if !core::mem::replace(&mut hop.has_turn[kind as usize], true) {
            pool.turns.push_back(next as u32);
        }
    }

    fn may_have_buffer(&self, routed: &Routed) -> bool {
        let kind = routed.pool as usize;
        let stock = &self.pools[kind].stock;
        let reserve = if routed.is_last_hop() { 0 } else { reserve_of(stock.total) };
        stock.left() > reserve
            && stock.admits(self.hops[routed.next as usize].to_count[kind])
            && stock.admits(self.hops[routed.hop as usize].from_count[kind])
    }

    /// Has a message take a buffer that it may have. Its LND is to be told.
    fn take_buffer(&mut self, slot: u32) {
        let record = &mut self.records[slot];
        let kind = record.pool as usize;
        let pool = &mut self.pools[kind];
        pool.stock.take();
        record.buffer = pool.free.pop();
        assert!(record.buffer.is_some(), "a buffer is free that is not there");
        self.hops[record.hop as usize].from_count[kind] += 1;
        self.hops[record.next as usize].to_count[kind] += 1;
        self.waiting.remove(&mut self.records, slot);
        self.resume(slot);
    }

    fn resume(&mut self, slot: u32) {
        self.records[slot].state = RoutedState::Resumed;
        self.resumed.push_back(&mut self.records, slot);
    }

    /// The first message in front of a queue that may go on.
    fn first(&self, queue: &List<InQueue>, may_go_on: impl Fn(&Routed) -> bool) -> Option<u32> {
        let mut front = queue.iter(&self.records).take(LOOKED_AT);
        front.find(|(_, routed)| may_go_on(routed)).map(|(slot, _)| slot)
    }

    /// Gives free credits of a hop to messages that wait for them.
    fn grant_credits(&mut self, hop: u32) {
        while self.hops[hop as usize].credits.left() > 0 {
            let waiting = &self.hops[hop as usize].waiting;
            let Some(slot) = self.first(waiting, |routed| self.may_have_credit(routed)) else { return };
            let hop = &mut self.hops[hop as usize];
            hop.waiting.remove(&mut self.records, slot);
            hop.credits.waiting -= 1;
            self.take_credit(slot);
        }
    }

    /// Gives free buffers of a pool to messages that wait for them, one to each next hop in its turn.
    fn grant_buffers(&mut self, kind: PoolKind) {
        let at = kind as usize;
        // Next hops that have not had their turn since a buffer went.
        let mut left = self.pools[at].turns.len();
        while left > 0
            && self.pools[at].stock.left() > 0
            && let Some(next) = self.pools[at].turns.pop_front()
        {
            left -= 1;
            let hop = &self.hops[next as usize];
            if self.pools[at].stock.admits(hop.to_count[at])
                && let Some(slot) = self.first(&hop.towards[at], |routed| self.may_have_buffer(routed))
            {
                self.hops[next as usize].towards[at].remove(&mut self.records, slot);
                self.pools[at].stock.waiting -= 1;
                self.take_buffer(slot);
                left = self.pools[at].turns.len();
            }
            let hop = &mut self.hops[next as usize];
            hop.has_turn[at] = !hop.towards[at].is_empty();
            if hop.has_turn[at] {
                self.pools[at].turns.push_back(next);
            }
        }
    }

    /// Takes all from a message that it has, and it out of all lists: first its buffer goes to another one,
    /// and then its credit.
    fn release(&mut self, slot: u32) {
        let record = &mut self.records[slot];
        let (hop, kind) = (record.hop, record.pool);
        let (next, at) = (record.next as usize, kind as usize);
        let state = core::mem::replace(&mut record.state, RoutedState::Moving);
        let (buffer, source) = (record.buffer.take(), record.source);
        let had_credit = core::mem::take(&mut record.has_credit);
        match state {
            RoutedState::AtHop => {
                self.hops[hop as usize].credits.waiting -= 1;
                self.hops[hop as usize].waiting.remove(&mut self.records, slot);
                self.waiting.remove(&mut self.records, slot);
            }
            RoutedState::AtPool => {
                self.pools[at].stock.waiting -= 1;
                self.hops[next].towards[at].remove(&mut self.records, slot);
                self.waiting.remove(&mut self.records, slot);
            }
            RoutedState::Resumed => self.resumed.remove(&mut self.records, slot),
            RoutedState::Moving => {}
        }
        if let Some(buffer) = buffer {
            self.hops[hop as usize].from_count[at] -= 1;
            self.hops[next].to_count[at] -= 1;
            let pool = &mut self.pools[at];
            pool.stock.taken -= 1;
            if pool.stock.total > pool.wanted {
                pool.stock.set_total(pool.stock.total - 1);
                self.surplus.push(buffer);
            } else {
                pool.free.push(buffer);
            }
            self.grant_buffers(kind);
        }
        if had_credit {
            let its = &mut self.hops[hop as usize];
            its.credits.taken -= 1;
            if let Some(part) = source {
                its.sources[usize::from(part)] -= 1;
            }
            self.grant_credits(hop);
        }
    }

    /// Forgets a message; the slots of the peers that it referred to.
    pub(super) fn end(&mut self, slot: u32) -> [u32; 2] {
        self.release(slot);
        let Routed { hop, next, .. } = self.records[slot];
        self.records.vacate(slot);
        [hop, next]
    }

    /// Has a message that waits be dropped: its LND is to be told.
    pub(super) fn give_up(&mut self, slot: u32) {
        self.release(slot);
        self.resume(slot);
    }

    /// Has a message go to another next hop, of whose share its buffer is from now on; the slot of the
    /// former one, which it refers to no more.
    pub(super) fn move_to(&mut self, slot: u32, next: u32) -> u32 {
        self.hops.resize_with(self.hops.len().max(next as usize + 1), RoutedPeer::default);
        let record = &mut self.records[slot];
        let kind = record.pool;
        let former = core::mem::replace(&mut record.next, next);
        if record.buffer.is_some() {
            self.hops[former as usize].to_count[kind as usize] -= 1;
            self.hops[next as usize].to_count[kind as usize] += 1;
            self.grant_buffers(kind);
        }
        former
    }

    /// The first message whose LND is to be told.
    pub(super) const fn first_resumed(&self) -> u32 {
        self.resumed.first()
    }

    /// Makes a message with a buffer over to its LND; where the payload goes. `None` if it has none.
    pub(super) fn land(&mut self, slot: u32) -> Option<Span> {
        let span = self.records[slot].span()?;
        self.resumed.remove(&mut self.records, slot);
        self.records[slot].state = RoutedState::Moving;
        Some(span)
    }

    /// Whether the LND of a message puts it in place.
    pub(super) fn is_landing(&self, slot: u32) -> bool {
        self.records[slot].state == RoutedState::Moving
    }

    /// When the message that has waited longest is dropped.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.records.get(self.waiting.first()).map(|routed| routed.deadline)
    }

    /// A message that has waited for too long.
    pub(super) fn overdue(&self, now: Instant) -> Option<u32> {
        self.next_deadline().filter(|deadline| *deadline <= now).map(|_| self.waiting.first())
    }

    /// A message that waits and of which this is true.
    pub(super) fn find_waiting(&self, is: impl FnMut(&Routed) -> bool) -> Option<u32> {
        self.waiting.find(&self.records, is)
    }
}
