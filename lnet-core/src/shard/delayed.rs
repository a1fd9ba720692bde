//! Delayed messages: they have arrived and wait. The shard stores the header, an LND or a sibling the
//! payload.
//!
//! Invariants: a record is in exactly the list that its state names, so what happens next finds it without
//! a search and nothing allocates. A message that an LND holds here is named by its [`RxId`] until the LND
//! has finished with it; the record outlives that while a sibling has still to be told. Those of this shard
//! are at most [`Limits::delayed`](crate::Limits::delayed); those that siblings ask about have room of their
//! own, a fixed share for each sibling, which never asks about more at once: so asking finds room always.
//! Half of that share may be unmatched. No peer has more delayed messages of this shard, nor more unmatched
//! ones that one sibling asks about, than there is room left for; their records refer to it.

use alloc::boxed::Box;
use alloc::vec;

use lnet_wire::steer::PORTALS;
use lnet_wire::{Body, Header, Nid};

use super::mesh::{AskId, LeaseId};
use super::target::Inbound;
use crate::collections::{Link, List, Slab, linked};
use crate::handle::ShardId;
use crate::limits::{Limits, has_share};
use crate::lnd::{NiId, RxId, Span, Status};
use crate::stats::DropReason;
use crate::time::Instant;

/// Who holds the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PayloadHolder {
    /// An LND of this shard.
    Rx(RxId),
    /// A sibling shard, which names it so. With `steal` it belongs to no shard, and goes on to the next
    /// sibling where nothing matches.
    Sibling { shard: ShardId, ask: AskId, steal: bool },
    /// No payload any more; a sibling has still to answer, or to be told.
    Gone,
}

/// What a message waits for; each state says which list its record is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DelayState {
    /// A delay rule: `timed`.
    Timed { until: Instant, rule: u64 },
    /// The name of its sender: `unnamed`.
    Unnamed { until: Instant },
    /// An entry, if `md` is `NONE`, else this descriptor: `unmatched`.
    Unmatched { md: u32 },
    /// Its turn to ask a sibling: its `asks`.
    Asking(Ask),
    /// The sibling's answer: none.
    Asked(Ask),
    /// Its turn to tell the sibling that the message is lost; then [`DelayState::Asked`]: its `outbox`.
    Withdrawing(Ask),
    /// Its turn to be resumed: `resumed`.
    Resumed(Resumption),
    /// Its LND, which puts it into a span of the lender's: none.
    Borrowed { lender: ShardId, lease: LeaseId },
    /// Its turn to give the span back: the lender's `outbox`.
    Returning { lender: ShardId, lease: LeaseId, status: Status },
    /// Its turn to tell the sibling that it may have the span: its `outbox`.
    Lending,
    /// Its turn to tell the sibling that it may not: its `outbox`.
    Refusing(DropReason),
    /// The sibling, which puts it into the span: none.
    Lent,
}

/// A question to a sibling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ask {
    pub(super) shard: ShardId,
    /// Whether any shard may take it, and then how many siblings are to be asked after this one; else this
    /// one is where it belongs.
    pub(super) steal: Option<u8>,
    /// What was known of new entries of the siblings when the first was asked.
    pub(super) news: u32,
}

/// What a delayed message is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resumption {
    /// Goes into a descriptor of this shard.
    Take,
    /// Goes into a descriptor of a sibling.
    Borrow { lender: ShardId, lease: LeaseId },
    /// Is skipped.
    Drop,
}

pub(super) struct DelayedMessage {
    pub(super) origin: PayloadHolder,
    pub(super) ni: NiId,
    /// The peer NI that it came from.
    pub(super) from: Nid,
    pub(super) header: Header,
    /// The peer that sent it, which is referred to; `NONE` if it is a sibling's and was never unmatched.
    pub(super) peer: u32,
    pub(super) state: DelayState,
    /// The operation that it has become, here.
    pub(super) inbound: Option<Inbound>,
    /// Where it goes, here or at a sibling.
    pub(super) span: Option<Span>,
    /// When a sibling's request was sent that it answers, if its answer is awaited.
    pub(super) asked_at: Option<Instant>,
    /// The order of arrival.
    stamp: u64,
    link: Link,
}

impl DelayedMessage {
    /// The message has become an operation, and its payload goes there.
    pub(super) const fn take(&mut self, inbound: Inbound, landing: Span) {
        (self.inbound, self.span) = (Some(inbound), Some(landing));
    }
}

/// Marks the one list that a record is in.
pub(super) struct Membership;

linked!(DelayedMessage, Membership, link);

/// The list of ACKs and REPLYs, behind those of the portals.
pub(super) const RESPONSES: usize = PORTALS;

/// The list that an unmatched message is in: of its portal, or of responses.
pub(super) const fn list_of(header: &Header) -> usize {
    match header.body {
        Body::Put { portal, .. } | Body::Get { portal, .. } => portal as usize,
        Body::Ack { .. } | Body::Reply { .. } | Body::Hello { .. } => RESPONSES,
    }
}

/// Room for messages that wait. A peer whose messages do not go on leaves as much of it as they take, and the
/// last places are for peers that have few.
pub(super) struct Quota {
    most: u32,
    left: u32,
    by_peer: Box<[u32]>,
}

impl Quota {
    fn new(most: u32, peers: u32) -> Self {
        Self { most, left: most, by_peer: vec![0; peers as usize].into() }
    }

    pub(super) const fn is_used_up(&self) -> bool {
        self.left == 0
    }

    /// Whether there is room for one more message of this peer.
    pub(super) fn admits(&self, peer: u32) -> bool {
        has_share(self.by_peer[peer as usize], self.left, self.most)
    }

    pub(super) fn take(&mut self, peer: u32) {
        assert!(!self.is_used_up(), "a message is delayed without room");
        self.left -= 1;
        self.by_peer[peer as usize] += 1;
    }

    pub(super) fn give_back(&mut self, peer: u32) {
        self.left += 1;
        self.by_peer[peer as usize] -= 1;
    }
}

/// What a shard has to do with one sibling.
pub(super) struct Sibling {
    /// The room for messages that it is asked about, or whose payload goes there.
    pub(super) asking: Quota,
    /// Messages to ask about.
    pub(super) asks: List<Membership>,
    /// Everything else to tell.
    pub(super) outbox: List<Membership>,
    /// Messages of the sibling's that are here, and the room for the unmatched ones of them.
    sibling_messages: u32,
    unmatched_room: Quota,
}

/// The delayed messages of a shard.
pub(super) struct DelayedMessages {
    /// Lazy portals, a bit each.
    pub(super) lazy: u64,
    /// Lists of unmatched messages in which one is to be tried again, a bit each; 0 between calls of the
    /// shard.
    retry_lists: u128,
    pub(super) records: Slab<DelayedMessage>,
    pub(super) unmatched: [List<Membership>; PORTALS + 1],
    /// Messages that wait for a time, in the order of their times.
    pub(super) timed: List<Membership>,
    /// Messages that wait for the names of their senders, in the order in which they came.
    pub(super) unnamed: List<Membership>,
    pub(super) resumed: List<Membership>,
    pub(super) siblings: Box<[Sibling]>,
    /// The room for messages of this shard.
    own: Quota,
    /// Messages by the NI that they came by, here or at a sibling.
    by_ni: Box<[u32]>,
    /// The most of each sibling.
    sibling_messages_max: u32,
    arrivals: u64,
}

impl DelayedMessages {
    /// The delayed messages of a shard of so many, none yet, with this many slots of peers.
    pub(super) fn new(limits: &Limits, shard_count: u8, peers: u32) -> Self {
        let sibling_messages_max = limits.asks(shard_count);
        let sibling_messages = sibling_messages_max * u32::from(shard_count).saturating_sub(1);
        let sibling = |_| Sibling {
            asking: Quota::new(sibling_messages_max, peers),
            asks: List::new(),
            outbox: List::new(),
            sibling_messages: 0,
            // The other half is for messages that need not wait.
            unmatched_room: Quota::new(sibling_messages_max.div_ceil(2), peers),
        };
        Self {
            lazy: 0,
            retry_lists: 0,
            records: Slab::new(limits.delayed + sibling_messages),
            unmatched: [const { List::new() }; PORTALS + 1],
            timed: List::new(),
            unnamed: List::new(),
            resumed: List::new(),
            siblings: (0..shard_count).map(sibling).collect(),
            own: Quota::new(limits.delayed, peers),
            by_ni: (0..limits.nis).map(|_| 0).collect(),
            sibling_messages_max,
            arrivals: 0,
        }
    }

    /// Notes that a list of unmatched messages is to be looked through ([`DelayedMessages::next_retry`]).
    pub(super) const fn note_retry(&mut self, list: usize) {
        self.retry_lists |= 1 << list;
    }

    /// A list of unmatched messages that is to be looked through.
    #[inline]
    pub(super) const fn next_retry(&mut self) -> Option<usize> {
        if self.retry_lists == 0 {
            return None;
        }
        let list = self.retry_lists.trailing_zeros() as usize;
        self.retry_lists &= self.retry_lists - 1;
        Some(list)
    }

    pub(super) const fn count(&self) -> u32 {
        self.records.used_count()
    }

    /// Slots of NIs that there may be.
    pub(super) const fn slots(&self) -> usize {
        self.by_ni.len()
    }

    /// Messages that came by this NI.
    pub(super) fn count_of(&self, ni: NiId) -> u32 {
        self.by_ni[usize::from(ni.0)]
    }

    /// The room that messages of this origin wait in.
    pub(super) fn quota(&self, origin: PayloadHolder) -> &Quota {
        match origin {
            PayloadHolder::Sibling { shard, .. } => &self.siblings[usize::from(shard.0)].unmatched_room,
            PayloadHolder::Rx(_) | PayloadHolder::Gone => &self.own,
        }
    }

    pub(super) fn sibling(&mut self, shard: ShardId) -> &mut Sibling {
        &mut self.siblings[usize::from(shard.0)]
    }

    /// The first message to ask a sibling about, of a peer that may have one more there.
    pub(super) fn next_ask(&self, sibling: ShardId) -> Option<u32> {
        let Sibling { asking, asks, .. } = &self.siblings[usize::from(sibling.0)];
        if asking.is_used_up() {
            return None;
        }
        asks.find(&self.records, |record| asking.admits(record.peer))
    }

    /// Makes a record, in the list of its state. There must be room.
    pub(super) fn insert(
        &mut self,
        origin: PayloadHolder,
        (ni, from): (NiId, &Nid),
        header: &Header,
        peer: u32,
        state: DelayState,
    ) -> u32 {
        match origin {
            PayloadHolder::Rx(_) => self.own.take(peer),
            PayloadHolder::Sibling { shard, .. } => {
                let most = self.sibling_messages_max;
                let sibling = self.sibling(shard);
                assert!(sibling.sibling_messages < most, "{shard:?} asks about more messages than it may");
                sibling.sibling_messages += 1;
            }
            PayloadHolder::Gone => unreachable!("a message without an origin is delayed"),
        }
        self.by_ni[usize::from(ni.0)] += 1;
        let stamp = self.arrivals;
        self.arrivals += 1;
        let record = DelayedMessage {
            origin,
            ni,
            from: *from,
            header: *header,
            peer,
            state,
            inbound: None,
            span: None,
            asked_at: None,
            stamp,
            link: Link::UNLINKED,
        };
        let Ok(slot) = self.records.insert(record) else { unreachable!("the shares exceed the room") };
        self.link(slot);
        slot
    }

    /// Frees a record, and says which peer it referred to, or `NONE`.
    pub(super) fn remove(&mut self, slot: u32) -> u32 {
        self.unlink(slot);
        let DelayedMessage { origin, ni, peer, .. } = self.records[slot];
        self.by_ni[usize::from(ni.0)] -= 1;
        match origin {
            PayloadHolder::Sibling { shard, .. } => self.sibling(shard).sibling_messages -= 1,
            PayloadHolder::Rx(_) | PayloadHolder::Gone => self.own.give_back(peer),
        }
        self.records.vacate(slot);
        peer
    }

    /// Takes a record out of the list of its old state and puts it into that of its new one.
    pub(super) fn set_state(&mut self, slot: u32, state: DelayState) {
        self.unlink(slot);
        self.records[slot].state = state;
        self.link(slot);
    }

    /// Puts a record into the list of its state.
    fn link(&mut self, slot: u32) {
        self.move_unmatched(slot, Quota::take);
        let Some((list, records)) = self.list(slot) else { return };
        match records[slot].state {
            DelayState::Timed { .. } => list.insert_by_key(records, slot, |message| match message.state {
                DelayState::Timed { until, .. } => until,
                state => unreachable!("{state:?} waits for no time"),
            }),
            DelayState::Unmatched { .. } => list.insert_by_key(records, slot, |message| message.stamp),
            _ => list.push_back(records, slot),
        }
    }

    /// Takes a record out of the list of its state.
    fn unlink(&mut self, slot: u32) {
        self.move_unmatched(slot, Quota::give_back);
        if let Some((list, records)) = self.list(slot) {
            list.remove(records, slot);
        }
    }

    /// Changes the room for unmatched messages of a sibling's, if this is one.
    fn move_unmatched(&mut self, slot: u32, change: impl FnOnce(&mut Quota, u32)) {
        let record = &self.records[slot];
        if let (DelayState::Unmatched { .. }, PayloadHolder::Sibling { shard, .. }) =
            (record.state, record.origin)
        {
            change(&mut self.siblings[usize::from(shard.0)].unmatched_room, record.peer);
        }
    }

    /// The list that the state of a record names, if any, and the records.
    fn list(&mut self, slot: u32) -> Option<(&mut List<Membership>, &mut Slab<DelayedMessage>)> {
        let record = &self.records[slot];
        let list = match record.state {
            DelayState::Timed { .. } => &mut self.timed,
            DelayState::Unnamed { .. } => &mut self.unnamed,
            DelayState::Unmatched { .. } => &mut self.unmatched[list_of(&record.header)],
            DelayState::Asking(Ask { shard, .. }) => &mut self.siblings[usize::from(shard.0)].asks,
            DelayState::Resumed(_) => &mut self.resumed,
            DelayState::Withdrawing(_)
            | DelayState::Returning { .. }
            | DelayState::Lending
            | DelayState::Refusing(_) => {
                let to = usize::from(self.correspondent(slot).0);
                &mut self.siblings[to].outbox
            }
            DelayState::Asked(_) | DelayState::Borrowed { .. } | DelayState::Lent => return None,
        };
        Some((list, &mut self.records))
    }

    /// The sibling that a record has something to tell.
    fn correspondent(&self, slot: u32) -> ShardId {
        let record = &self.records[slot];
        match (record.state, record.origin) {
            (DelayState::Returning { lender, .. }, _) => lender,
            (DelayState::Withdrawing(ask), _) => ask.shard,
            (_, PayloadHolder::Sibling { shard, .. }) => shard,
            (state, origin) => unreachable!("{origin:?} is {state:?} and has no sibling to tell"),
        }
    }

    /// The record in `next`, if there is one, and moves that on to the one after it in its list.
    pub(super) fn step(&self, next: &mut u32) -> Option<u32> {
        List::<Membership>::step(&self.records, next)
    }

    /// When the first delay rule is through.
    pub(super) fn next_timed(&self) -> Option<Instant> {
        match self.records.get(self.timed.first())?.state {
            DelayState::Timed { until, .. } => Some(until),
            state => unreachable!("{state:?} waits for no time"),
        }
    }

    /// The first message whose delay rule is through.
    pub(super) fn expired(&self, now: Instant) -> Option<u32> {
        self.next_timed().filter(|until| *until <= now).map(|_| self.timed.first())
    }

    /// Until when the first message waits for the name of its sender.
    pub(super) fn next_unnamed(&self) -> Option<Instant> {
        match self.records.get(self.unnamed.first())?.state {
            DelayState::Unnamed { until } => Some(until),
            state => unreachable!("{state:?} waits for no name"),
        }
    }

    /// Whether a message from a NID waits for the name of its sender.
    pub(super) fn has_unnamed_of(&self, source: &Nid) -> bool {
        self.unnamed.find(&self.records, |record| record.header.source.nid == *source).is_some()
    }

    /// A message that waits for a delay rule that does not exist any more.
    pub(super) fn first_timed(&self, is_gone: impl Fn(u64) -> bool) -> Option<u32> {
        let is_it = |state| matches!(state, DelayState::Timed { rule, .. } if is_gone(rule));
        self.timed.find(&self.records, |record| is_it(record.state))
    }
}
