//! Events and event queues.
//!
//! Invariants: a descriptor reserves the slots of all its events when it is made, so that an event always
//! finds room and none is ever lost; a slot is free again when its event was polled. In each queue
//! `reserved` + `lent` = slots promised to descriptors + slots of operations under way + events not yet
//! polled; `reserved` is at most `capacity`, and the capacities add up to at most the shard's slots.
//!
//! Descriptors without a threshold borrow spare slots of the shard when their own are in use, so that how
//! many they may have at once does not depend on what else was reserved in their queue. What they have
//! borrowed is `lent`, goes back with the next of their events that are polled, and never counts against a
//! capacity.
//!
//! An [`Event`] is an enum, so that a field exists only where it means something.

use lnet_wire::{MessageType, Nid, ProcessId};
use thiserror::Error;

use crate::collections::{Link, List, Slab, linked};
use crate::handle::MdHandle;
use crate::limits::has_share;
use crate::lnd::{Span, Status};
use crate::md::MdOptions;

/// The kinds of [`Event`]s, with the values of LNet's `enum lnet_event_kind`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum EventKind {
    /// [`Event::Get`].
    Get = 1,
    /// [`Event::Put`].
    Put = 2,
    /// [`Event::Reply`].
    Reply = 3,
    /// [`Event::Ack`].
    Ack = 4,
    /// [`Event::Send`].
    Send = 5,
    /// [`Event::Unlink`].
    Unlink = 6,
}

/// What events of all kinds say: a snapshot of their descriptor, and how the operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventMd {
    /// The descriptor.
    pub handle: MdHandle,
    /// Its `user_ptr`.
    pub user_ptr: u64,
    /// Its options.
    pub options: MdOptions,
    /// How the message ended. Of an aborted descriptor, what went well reads as a timeout.
    pub status: Status,
    /// Whether this is the descriptor's last event; the handle is stale then. Exactly one event of each
    /// descriptor that has a queue is marked.
    pub unlinked: bool,
}

/// Where a message that arrived came from, and the process that it named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The header's destination.
    pub target: ProcessId,
    /// Primary NID and pid of the sender: the header's source, of a peer that is known by one NID.
    pub initiator: ProcessId,
    /// The header's source.
    pub source: Nid,
    /// NID of the last hop: of a message that was not routed, that of the header's source.
    pub sender: Nid,
}

/// Something that happened to a descriptor, with the fields that LNet's event of the kind has (LNet
/// `lib-msg.c: lnet_build_msg_event`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Target: the payload of a PUT is in place. The ACK has not been sent yet.
    Put {
        /// The descriptor.
        md: EventMd,
        /// Where the message came from.
        origin: Origin,
        /// Portal index.
        portal: u32,
        /// Match bits of the message.
        match_bits: u64,
        /// The sender's 64 bits.
        hdr_data: u64,
        /// Payload length of the message.
        requested_bytes: u32,
        /// Bytes of it that were accepted.
        manipulated_bytes: u32,
        /// Where they lie in the descriptor.
        offset_bytes: u64,
    },
    /// Target: the REPLY to a GET has been handed to the network, or failed.
    Get {
        /// The descriptor.
        md: EventMd,
        /// Where the message came from.
        origin: Origin,
        /// Portal index.
        portal: u32,
        /// Match bits of the message.
        match_bits: u64,
        /// Bytes that were returned.
        manipulated_bytes: u32,
        /// Where they lie in the descriptor.
        offset_bytes: u64,
    },
    /// Initiator: the REPLY is in place, from the start of the descriptor or of the part that was asked for.
    Reply {
        /// The descriptor.
        md: EventMd,
        /// Where the message came from.
        origin: Origin,
        /// Payload length of the message.
        requested_bytes: u32,
        /// Bytes of it that were accepted.
        manipulated_bytes: u32,
        /// Where they lie in the descriptor.
        offset_bytes: u64,
    },
    /// Initiator: the target has acknowledged a PUT.
    Ack {
        /// The descriptor.
        md: EventMd,
        /// Where the message came from.
        origin: Origin,
        /// Match bits of the PUT.
        match_bits: u64,
        /// Bytes that the target says it has accepted.
        manipulated_bytes: u32,
    },
    /// Initiator: the LND has finished with the buffer. Says nothing about delivery, and may come after
    /// the ACK or REPLY.
    Send {
        /// The descriptor.
        md: EventMd,
        /// What was sent: a PUT or a GET.
        message_type: MessageType,
        /// The process that the caller named.
        target: ProcessId,
        /// Portal index.
        portal: u32,
        /// Match bits.
        match_bits: u64,
        /// The own 64 bits; of a GET 0.
        hdr_data: u64,
        /// Length of the descriptor, or of the part: of the payload of a PUT, of the sink of a GET.
        length_bytes: u32,
        /// Offset asked for at the target.
        offset_bytes: u32,
    },
    /// An idle descriptor was unlinked: explicitly, with the status `Unknown(Cancelled)` where an ACK or a
    /// REPLY to one of its requests may still have come, of which nothing will be told; or with a timeout as
    /// status because such a response did not come in time. (LNet's has no status.)
    Unlink {
        /// The descriptor.
        md: EventMd,
    },
}

// Each event is written once and copied twice.
const _: () = assert!(size_of::<Event>() <= 152, "an event has grown");

impl Event {
    const fn common(&self) -> &EventMd {
        match self {
            Self::Put { md, .. }
            | Self::Get { md, .. }
            | Self::Reply { md, .. }
            | Self::Ack { md, .. }
            | Self::Send { md, .. }
            | Self::Unlink { md } => md,
        }
    }

    /// What happened.
    #[must_use]
    pub const fn kind(&self) -> EventKind {
        match self {
            Self::Put { .. } => EventKind::Put,
            Self::Get { .. } => EventKind::Get,
            Self::Reply { .. } => EventKind::Reply,
            Self::Ack { .. } => EventKind::Ack,
            Self::Send { .. } => EventKind::Send,
            Self::Unlink { .. } => EventKind::Unlink,
        }
    }

    /// The descriptor.
    #[must_use]
    pub const fn md(&self) -> MdHandle {
        self.common().handle
    }

    /// How the message ended ([`EventMd::status`]).
    #[must_use]
    pub const fn status(&self) -> Status {
        self.common().status
    }

    /// Whether this is the descriptor's last event ([`EventMd::unlinked`]).
    #[must_use]
    pub const fn unlinked(&self) -> bool {
        self.common().unlinked
    }

    /// The descriptor's `user_ptr`.
    #[must_use]
    pub const fn user_ptr(&self) -> u64 {
        self.common().user_ptr
    }

    /// The descriptor's options.
    #[must_use]
    pub const fn options(&self) -> MdOptions {
        self.common().options
    }

    /// Where a message that arrived came from.
    #[must_use]
    pub const fn origin(&self) -> Option<&Origin> {
        match self {
            Self::Put { origin, .. }
            | Self::Get { origin, .. }
            | Self::Reply { origin, .. }
            | Self::Ack { origin, .. } => Some(origin),
            Self::Send { .. } | Self::Unlink { .. } => None,
        }
    }

    /// Match bits of the request.
    #[must_use]
    pub const fn match_bits(&self) -> Option<u64> {
        match *self {
            Self::Put { match_bits, .. }
            | Self::Get { match_bits, .. }
            | Self::Ack { match_bits, .. }
            | Self::Send { match_bits, .. } => Some(match_bits),
            Self::Reply { .. } | Self::Unlink { .. } => None,
        }
    }

    /// The 64 bits that a PUT brings, or that a request was sent with.
    #[must_use]
    pub const fn hdr_data(&self) -> Option<u64> {
        match *self {
            Self::Put { hdr_data, .. } | Self::Send { hdr_data, .. } => Some(hdr_data),
            _ => None,
        }
    }

    /// Bytes that were accepted or returned; of a SEND the length of its descriptor.
    #[must_use]
    pub const fn manipulated_bytes(&self) -> u32 {
        match *self {
            Self::Put { manipulated_bytes, .. }
            | Self::Get { manipulated_bytes, .. }
            | Self::Reply { manipulated_bytes, .. }
            | Self::Ack { manipulated_bytes, .. } => manipulated_bytes,
            Self::Send { length_bytes, .. } => length_bytes,
            Self::Unlink { .. } => 0,
        }
    }

    /// Where the payload lies that has arrived: of a PUT or REPLY that went well.
    #[must_use]
    pub fn payload(&self) -> Option<Span> {
        let (md, offset_bytes, length_bytes) = match *self {
            Self::Put { md, offset_bytes, manipulated_bytes, .. } => (md, offset_bytes, manipulated_bytes),
            Self::Reply { md, offset_bytes, manipulated_bytes, .. } => (md, offset_bytes, manipulated_bytes),
            _ => return None,
        };
        let span = Span { buffer: md.handle.into(), offset_bytes, length_bytes };
        (md.status == Status::Ok).then_some(span)
    }
}

/// Why an event queue is not made or not freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum EqError {
    /// Every event queue of the shard is in use ([`Limits::event_queues`](crate::Limits::event_queues)).
    #[error("every event queue is in use: `Limits::event_queues` says how many a shard has")]
    Full,
    /// Fewer slots are left in the shard.
    #[error("{wanted} event slots wanted, {free} left in the shard")]
    Slots {
        /// Slots wanted.
        wanted: u32,
        /// Slots left.
        free: u32,
    },
    /// The event queue does not exist (any more).
    #[error("no such event queue")]
    Unknown,
    /// Descriptors have slots in it, or events wait in it.
    #[error("{reserved} slots of the event queue are in use")]
    Busy {
        /// How many slots.
        reserved: u32,
    },
}

/// Marks the order of arrival in a queue.
struct Arrival;

struct Pending {
    event: Event,
    /// Whether the slot returns to its descriptor (one without a threshold) when the event is polled.
    recurring: bool,
    link: Link,
}

linked!(Pending, Arrival, link);

/// The slot of an event that is in no queue any more.
#[must_use = "a slot that is not given up is lost"]
pub(crate) struct Popped(u32);

struct EventQueue {
    capacity: u32,
    reserved: u32,
    /// Spare slots of the shard that descriptors have borrowed, or that events have which those have left.
    lent: u32,
    /// Slots of these that only events have any more: their descriptors are gone.
    orphaned: u32,
    arrivals: List<Arrival>,
    ready: Link,
}

/// Marks the order in which queues came to have events.
struct ReadyQueues;

linked!(EventQueue, ReadyQueues, ready);

/// The event queues of a shard.
pub(crate) struct EventQueues {
    queues: Slab<EventQueue>,
    pending: Slab<Pending>,
    /// Queues to which an event came when they had none. Those that were emptied since stay until they are
    /// found here.
    ready: List<ReadyQueues>,
    /// Slots that no queue has.
    free: u32,
    /// Spare slots, and how many of them nothing has borrowed.
    spare: u32,
    spare_left: u32,
}

impl EventQueues {
    pub(crate) fn new(queues: u32, events: u32, spare: u32) -> Self {
        Self {
            queues: Slab::new(queues),
            pending: Slab::new(events + spare),
            ready: List::new(),
            free: events,
            spare,
            spare_left: spare,
        }
    }

    /// Makes a queue and returns its slot.
    pub(crate) fn create(&mut self, capacity: u32) -> Result<u32, EqError> {
        if capacity > self.free {
            return Err(EqError::Slots { wanted: capacity, free: self.free });
        }
        let (arrivals, ready) = (List::new(), Link::UNLINKED);
        let queue = EventQueue { capacity, reserved: 0, lent: 0, orphaned: 0, arrivals, ready };
        let slot = self.queues.insert(queue).map_err(|_| EqError::Full)?;
        self.free -= capacity;
        Ok(slot)
    }

    pub(crate) fn remove(&mut self, queue: u32) -> Result<(), EqError> {
        let EventQueue { reserved, lent, .. } = self.queues[queue];
        match reserved + lent {
            0 => {
                self.ready.discard(&mut self.queues, queue);
                self.free += self.queues.remove(queue).capacity;
                Ok(())
            }
            reserved => Err(EqError::Busy { reserved }),
        }
    }

    pub(crate) fn holds(&self, slot: u32, generation: u32) -> bool {
        self.queues.holds(slot, generation)
    }

    pub(crate) fn generation(&self, queue: u32) -> u32 {
        self.queues.generation(queue)
    }

    /// Promises `wanted` slots.
    ///
    /// # Errors
    /// How many are free, when that is fewer.
    pub(crate) fn reserve(&mut self, queue: u32, wanted: u32) -> Result<(), u32> {
        let queue = &mut self.queues[queue];
        let free = queue.capacity - queue.reserved;
        if wanted > free {
            return Err(free);
        }
        queue.reserved += wanted;
        Ok(())
    }

    /// Takes a promise of `count` slots back.
    pub(crate) fn release(&mut self, queue: u32, count: u32) {
        self.queues[queue].reserved -= count;
    }

    /// Whether a descriptor that has borrowed so many spare slots may have one more: no more than are left,
    /// and the last ones are for those that have few.
    #[inline]
    pub(crate) const fn lends_to(&self, borrowed: u32) -> bool {
        has_share(borrowed, self.spare_left, self.spare)
    }

    /// Lends a spare slot to a descriptor of a queue; there is one.
    pub(crate) fn lend(&mut self, queue: u32) {
        self.spare_left -= 1;
        self.queues[queue].lent += 1;
    }

    /// Takes a spare slot back that a descriptor of a queue has borrowed.
    pub(crate) fn take_back(&mut self, queue: u32) {
        self.spare_left += 1;
        self.queues[queue].lent -= 1;
    }

    /// Notes that a descriptor of a queue is gone, and that so many spare slots which it has borrowed come
    /// back with its events.
    pub(crate) fn orphan_slots(&mut self, queue: u32, borrowed: u32) {
        self.queues[queue].orphaned += borrowed;
    }

    /// Frees the slot of an event that was polled and whose descriptor is gone; `recurring` says whether that
    /// could borrow.
    pub(crate) fn free_slot(&mut self, queue: u32, recurring: bool) {
        if recurring && self.queues[queue].orphaned > 0 {
            self.queues[queue].orphaned -= 1;
            self.take_back(queue);
        } else {
            self.release(queue, 1);
        }
    }

    /// Puts an event into a slot that was reserved for it.
    #[inline(always)]
    pub(crate) fn push(&mut self, queue: u32, event: Event, recurring: bool) {
        let Ok(slot) = self.pending.insert(Pending { event, recurring, link: Link::UNLINKED }) else {
            unreachable!("an event came without a reserved slot")
        };
        let arrivals = &mut self.queues[queue].arrivals;
        let is_first = arrivals.is_empty();
        arrivals.push_back(&mut self.pending, slot);
        if is_first {
            self.ready.add(&mut self.queues, queue);
        }
    }

    /// A queue that has events, and had none before the first of them; each is told once until it is empty
    /// again.
    pub(crate) fn pop_ready(&mut self) -> Option<u32> {
        loop {
            let queue = self.ready.pop_front(&mut self.queues)?;
            if !self.queues[queue].arrivals.is_empty() {
                return Some(queue);
            }
        }
    }

    /// Queues that there may be.
    pub(crate) const fn capacity(&self) -> u32 {
        self.queues.capacity()
    }

    /// Takes the oldest event off its queue; it can be read until [`forget`](Self::forget), and its slot goes
    /// to the caller, who passes it on to the descriptor if it is recurring, and else must
    /// [`release`](Self::release) it.
    #[inline]
    pub(crate) fn pop(&mut self, queue: u32) -> Option<Popped> {
        self.queues[queue].arrivals.pop_front(&mut self.pending).map(Popped)
    }

    /// An event that was taken off its queue, and whether its slot is recurring.
    #[inline]
    pub(crate) fn read(&self, Popped(slot): &Popped) -> (&Event, bool) {
        let pending = &self.pending[*slot];
        (&pending.event, pending.recurring)
    }

    /// Gives up the slot of an event that was taken off its queue.
    #[inline]
    pub(crate) fn forget(&mut self, Popped(slot): Popped) {
        self.pending.vacate(slot);
    }

    /// Events that wait in all queues.
    pub(crate) const fn waiting_count(&self) -> u32 {
        self.pending.used_count()
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::{BTreeSet, VecDeque};

    use proptest::prelude::*;

    use super::*;
    use crate::handle::Cookie;

    const QUEUES: u32 = 8;

    fn event(number: u64) -> Event {
        let (handle, options) = (MdHandle(Cookie(number)), MdOptions::NONE);
        Event::Unlink { md: EventMd { handle, user_ptr: 0, options, status: Status::Ok, unlinked: false } }
    }

    /// Takes so many events, and says whether the queue had fewer.
    fn take(queues: &mut EventQueues, queue: u32, most: usize, expected: &mut VecDeque<u64>) -> bool {
        for _ in 0..most {
            let Some(popped) = queues.pop(queue) else {
                assert!(expected.is_empty(), "queue {queue} has lost events");
                return true;
            };
            let (event, _) = queues.read(&popped);
            assert_eq!(Some(event.md().0.0), expected.pop_front());
            queues.forget(popped);
            queues.release(queue, 1);
        }
        false
    }

    proptest! {
        /// A consumer that looks where it is told, and again where it has left something, takes what one
        /// takes that looks at all queues.
        #[test]
        fn a_queue_with_events_is_told_or_known(
            steps in proptest::collection::vec((0_u8..8, 0..QUEUES, 0_usize..4), 0..300),
        ) {
            let mut queues = EventQueues::new(QUEUES, 512, 0);
            let mut model: [Option<VecDeque<u64>>; QUEUES as usize] = Default::default();
            let mut known = BTreeSet::new();
            for (number, (step, queue, count)) in (0_u64..).zip(steps) {
                match (step, &mut model[queue as usize]) {
                    // The slot that was vacated last is used first.
                    (0, _) => if let Ok(made) = queues.create(64) {
                        model[made as usize] = Some(VecDeque::new());
                    },
                    (1, Some(events)) if events.is_empty() => {
                        queues.remove(queue).unwrap();
                        known.remove(&queue);
                        model[queue as usize] = None;
                    }
                    (2..=4, Some(events)) if queues.reserve(queue, 1).is_ok() => {
                        queues.push(queue, event(number), false);
                        events.push_back(number);
                    }
                    // A reader that knows the queue takes from it, told or not.
                    (5, Some(events)) => if take(&mut queues, queue, count, events) {
                        known.remove(&queue);
                    },
                    _ => {
                        while let Some(ready) = queues.pop_ready() {
                            let events = model[ready as usize].as_mut().unwrap();
                            prop_assert!(!events.is_empty(), "queue {} has no events", ready);
                            known.insert(ready);
                        }
                        let has_events = |queue: &u32| !model[*queue as usize].as_ref().is_none_or(VecDeque::is_empty);
                        let all = (0..QUEUES).filter(has_events).collect::<BTreeSet<_>>();
                        prop_assert!(all.is_subset(&known), "{:?} of {:?} are told", known, all);
                        known.retain(|queue| {
                            let events = model[*queue as usize].as_mut().unwrap();
                            !take(&mut queues, *queue, count, events)
                        });
                    }
                }
            }
        }
    }
}
