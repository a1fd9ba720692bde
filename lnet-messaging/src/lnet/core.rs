//! The meaning of LNet's events for buffers: the producer's side of a transfer machine's event ring.
//!
//! Invariants: each operation has a record from before it starts until its last event is in the ring; what is
//! behind that, LNet says of no live operation. Of a GET the REPLY and the SEND may come in either order, and
//! make one event.

use lnet_user::{EventKind, ProcessId};

use super::address::LnetAddress;
use super::network::{NetworkEvent, Payload};
use crate::errno::{Errno, Status};
use crate::queue::{BufferId, ByNumber, QueueType};
use crate::ring::Producer;

/// The outcome of an operation, or of a message in a receive buffer. Small, for each goes from one CPU's
/// cache to another's.
#[derive(Debug)]
pub(crate) struct RingEvent {
    number: u64,
    pub(crate) payload: Payload,
    pub(crate) length_bytes: u32,
    pub(crate) offset_bytes: u32,
    pub(crate) sender: Sender,
    pub(crate) status: Status,
    queue: QueueType,
    pub(crate) is_last: bool,
}

const _: () = assert!(size_of::<RingEvent>() <= 80);

impl RingEvent {
    /// The buffer's use that it is about.
    pub(crate) fn id(&self) -> BufferId {
        BufferId { queue: self.queue, number: self.number }
    }
}

/// Where a message came from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sender {
    /// No sender: the event is of no message.
    None,
    /// No transfer machine.
    Nameless,
    /// The transfer machine of this process, portal and identifier.
    Tm(ProcessId, u8, u16),
}

impl Sender {
    /// The sender of a message with this header data.
    fn of(initiator: ProcessId, hdr_data: u64) -> Self {
        let address = LnetAddress::of_sender(initiator, hdr_data);
        let parts = address.and_then(|address| Some((u8::try_from(address.portal).ok()?, address.tmid?)));
        parts.map_or(Self::Nameless, |(portal, tmid)| Self::Tm(initiator, portal, tmid))
    }
}

/// The state of an operation besides its buffer.
struct Operation {
    id: BufferId,
    /// A REPLY that came before the SEND.
    reply: Option<(Status, u64, u64)>,
    /// Why its message was not started: then the end of its descriptor says nothing else.
    refusal: Option<Errno>,
}

/// The operations of a transfer machine, and the end of the ring where their events go.
pub(crate) struct Operations {
    by_number: ByNumber<Operation>,
    ring: Producer<RingEvent>,
}

impl Operations {
    pub(crate) fn new(ring: Producer<RingEvent>) -> Self {
        Self { by_number: ByNumber::default(), ring }
    }

    /// Notes an operation that starts.
    pub(crate) fn begin(&mut self, id: BufferId) {
        self.by_number.insert(id.number, Operation { id, reply: None, refusal: None });
    }

    /// Forgets an operation that has not started.
    pub(crate) fn abandon(&mut self, id: BufferId) {
        self.by_number.remove(&id.number);
    }

    /// Notes an operation whose descriptor was made, but whose message was not started.
    pub(crate) fn refuse(&mut self, id: BufferId, errno: Errno) {
        if let Some(operation) = self.by_number.get_mut(&id.number) {
            operation.refusal = Some(errno);
        }
    }

    /// Takes an event of LNet. Returns whether there is a new one in the ring.
    pub(crate) fn take(&mut self, event: NetworkEvent) -> bool {
        if event.kind == EventKind::Ack {
            return false;
        }
        let Some(operation) = self.by_number.get_mut(&event.user_ptr) else {
            tracing::warn!(?event, "an event of no operation");
            return false;
        };
        let Some(event) = operation.meaning(event) else { return false };
        if event.is_last {
            self.by_number.remove(&event.number);
        }
        match self.ring.push(event) {
            Ok(()) => true,
            Err(event) => {
                debug_assert!(false, "no slot was reserved for {event:?}");
                false
            }
        }
    }
}

impl Operation {
    /// The meaning of an event for the buffer, if it has one.
    fn meaning(&mut self, event: NetworkEvent) -> Option<RingEvent> {
        let NetworkEvent { kind, status, is_unlinked, length_bytes, offset_bytes, .. } = event;
        let (status, length_bytes, offset_bytes) = match (self.id.queue, kind) {
            (_, EventKind::Unlink) => {
                let ended = if status.is_ok() { Err(Errno::Canceled) } else { status };
                (self.refusal.map_or(ended, Err), 0, 0)
            }
            (QueueType::ActiveReceive, EventKind::Send) if !is_unlinked => return None,
            (QueueType::ActiveReceive, EventKind::Send) => match (status, self.reply) {
                (Err(_), _) => (status, 0, 0),
                (Ok(()), Some(reply)) => reply,
                // Its end was asked for, which rides on the SEND.
                (Ok(()), None) => (Err(Errno::Canceled), 0, 0),
            },
            (QueueType::ActiveReceive, EventKind::Reply) if !is_unlinked => {
                self.reply = Some((status, length_bytes, offset_bytes));
                return None;
            }
            _ => (status, length_bytes, offset_bytes),
        };
        let is_message = self.id.queue == QueueType::Receive && kind == EventKind::Put;
        if !is_unlinked && !is_message {
            debug_assert!(false, "{kind:?} of {:?} without its end", self.id.queue);
            return None;
        }
        let sender = event.initiator.filter(|_| is_message);
        let sender = sender.map_or(Sender::None, |initiator| Sender::of(initiator, event.hdr_data));
        let BufferId { queue, number } = self.id;
        // No buffer of lnet has more than 1 MiB.
        let length_bytes = if queue.is_receive() { length_bytes as u32 } else { 0 };
        let (payload, offset_bytes) = (event.payload, offset_bytes as u32);
        let is_last = is_unlinked;
        Some(RingEvent { number, payload, length_bytes, offset_bytes, sender, status, queue, is_last })
    }
}
