//! Events and event queues.
//!
//! Invariants: a descriptor reserves the slots of all its events when it is made, so that an event always
//! finds room and none is ever lost; a slot is free again when its event was polled. In each queue
//! `reserved` = slots promised to descriptors + slots of operations under way + events not yet polled, and
//! is at most `capacity`; the capacities add up to at most the shard's slots.

use core::fmt;

use lnet_wire::{MessageType, Nid, ProcessId};

use crate::handle::MdHandle;
use crate::list::{Link, List, Node};
use crate::lnd::Status;
use crate::md::MdOptions;
use crate::slab::Slab;

/// What happened, with the values of LNet's `enum lnet_event_kind`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum EventKind {
    /// Target: the REPLY to a GET has been handed to the network, or failed.
    Get = 1,
    /// Target: the payload of a PUT is in place. The ACK has not been sent yet.
    Put = 2,
    /// Initiator: the REPLY is in place.
    Reply = 3,
    /// Initiator: the target has acknowledged a PUT.
    Ack = 4,
    /// Initiator: the LND has finished with the buffer. Says nothing about delivery, and may come after
    /// the ACK or REPLY.
    Send = 5,
    /// An idle descriptor was unlinked: explicitly, or with a timeout as status because a response to one
    /// of its requests did not come in time. (LNet's has no status.)
    Unlink = 6,
}

/// Something that happened to a descriptor. Which fields mean something depends on the kind (LNet
/// `lib-msg.c: lnet_build_msg_event`); the others are wildcards and zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// How the message ended. Of an aborted descriptor, what went well reads as a timeout.
    pub status: Status,
    /// Whether this is the descriptor's last event; the handle is stale then. Exactly one event of each
    /// descriptor that has a queue is marked.
    pub unlinked: bool,
    /// The descriptor.
    pub md: MdHandle,
    /// The descriptor's `user_ptr`.
    pub user_ptr: u64,
    /// The descriptor's options.
    pub options: MdOptions,
    /// Type of the message; of UNLINK events none.
    pub message_type: Option<MessageType>,
    /// The header's destination; for SEND the process that the caller named.
    pub target: ProcessId,
    /// Primary NID and pid of the sender: the header's source, of a peer that is known by one NID. For SEND any
    /// NID and the own pid.
    pub initiator: ProcessId,
    /// The header's source; for SEND as `initiator`.
    pub source: ProcessId,
    /// NID of the last hop: of a message that was not routed, that of the header's source. For SEND any.
    pub sender: Nid,
    /// Portal index: PUT, GET, SEND.
    pub portal: u32,
    /// Match bits: all but REPLY and UNLINK.
    pub match_bits: u64,
    /// The sender's 64 bits: PUT, SEND.
    pub hdr_data: u64,
    /// Payload length of the message that arrived (0 for GET and ACK); for SEND of the one sent.
    pub requested_bytes: u32,
    /// Bytes that were accepted; for ACK what the target says it accepted.
    pub manipulated_bytes: u32,
    /// Offset in the descriptor: PUT, GET; for SEND the offset asked for at the target.
    pub offset_bytes: u64,
}

/// Why an event queue is not made or not freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EqError {
    /// Every event queue of the shard is in use.
    Full,
    /// Fewer slots are left in the shard.
    Slots {
        /// Slots wanted.
        wanted: u32,
        /// Slots left.
        free: u32,
    },
    /// The event queue does not exist (any more).
    Unknown,
    /// Descriptors have slots in it, or events wait in it.
    Busy {
        /// How many slots.
        reserved: u32,
    },
}

impl fmt::Display for EqError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("every event queue is in use"),
            Self::Slots { wanted, free } => {
                write!(f, "{wanted} event slots wanted, {free} left in the shard")
            }
            Self::Unknown => f.write_str("no such event queue"),
            Self::Busy { reserved } => write!(f, "{reserved} slots of the event queue are in use"),
        }
    }
}

impl core::error::Error for EqError {}

/// Marks the order of arrival in a queue.
struct Arrival;

struct Pending {
    event: Event,
    /// Whether the slot returns to its descriptor (one without a threshold) when the event is polled.
    recurring: bool,
    link: Link,
}

impl Node<Arrival> for Pending {
    fn link(&self) -> &Link {
        &self.link
    }
    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// The place of an event that is in no queue any more.
#[must_use = "a place that is not given up is lost"]
pub(crate) struct Popped(u32);

struct EventQueue {
    capacity: u32,
    reserved: u32,
    arrivals: List<Arrival>,
}

/// The event queues of a shard.
pub(crate) struct EventQueues {
    queues: Slab<EventQueue>,
    pending: Slab<Pending>,
    /// Slots that no queue has.
    free: u32,
}

impl EventQueues {
    pub(crate) fn new(queues: u32, events: u32) -> Self {
        Self { queues: Slab::new(queues), pending: Slab::new(events), free: events }
    }

    /// Makes a queue and returns its slot.
    pub(crate) fn create(&mut self, capacity: u32) -> Result<u32, EqError> {
        if capacity > self.free {
            return Err(EqError::Slots { wanted: capacity, free: self.free });
        }
        let queue = EventQueue { capacity, reserved: 0, arrivals: List::new() };
        let slot = self.queues.insert(queue).map_err(|_| EqError::Full)?;
        self.free -= capacity;
        Ok(slot)
    }

    pub(crate) fn remove(&mut self, queue: u32) -> Result<(), EqError> {
        match self.queues[queue].reserved {
            0 => {
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

    /// Puts an event into a slot that was reserved for it.
    #[inline(always)]
    pub(crate) fn push(&mut self, queue: u32, event: Event, recurring: bool) {
        let Ok(slot) = self.pending.insert(Pending { event, recurring, link: Link::UNLINKED }) else {
            unreachable!("an event came without a reserved slot")
        };
        self.queues[queue].arrivals.push_back(&mut self.pending, slot);
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

    /// Gives up the place of an event that was taken off its queue.
    #[inline]
    pub(crate) fn forget(&mut self, Popped(slot): Popped) {
        self.pending.vacate(slot);
    }

    /// Events that wait in all queues.
    pub(crate) const fn waiting_count(&self) -> u32 {
        self.pending.used_count()
    }
}
