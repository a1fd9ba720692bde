//! Requests of a descriptor: queued, started or awaited.
//!
//! Invariants: a request that is queued and then refused is told by an event, for which a place was reserved
//! when it was queued: of one descriptor at most [`REFUSALS_MAX`] requests are on their way to the shard or
//! refused and not yet told. The outcome of a request that is awaited goes to its future alone.
//!
//! The caller of a queued request does not wait for the shard. The refusal of a started request is the call's
//! error.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use lnet_core::event::{Event, EventKind, EventMd};
use lnet_core::handle::{Cookie, EqHandle, MdHandle};
use lnet_core::lnd::{Cause, Status};
use lnet_core::md::{MdOptions, MdSpec};
use lnet_core::shard::{GetRequest, MdPart, PutRequest, SubmitError};
use lnet_wire::MessageType;
use tokio::sync::oneshot;

use super::calls::Command;
use super::descriptor::{Ack, Descriptor, Target};
use super::error::LnetError;
use super::queue::QueuedEvent;
use super::waits::Answered;

/// Queued requests of one descriptor that may yet be refused, or whose refusal was not yet taken.
const REFUSALS_MAX: u32 = 256;

/// What a shard is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum PutOrGet {
    Put(PutRequest),
    Get(GetRequest),
}

/// Names no descriptor.
pub(super) const NO_MD: MdHandle = MdHandle(Cookie(0));

impl PutOrGet {
    pub(super) fn put(md: MdHandle, to: &Target, ack: Ack, hdr_data: u64) -> Self {
        let Target { process, portal, match_bits, offset, self_nid } = *to;
        let ack = ack == Ack::Wanted;
        Self::Put(PutRequest {
            md,
            part: None,
            ack,
            self_nid,
            target: process,
            portal,
            match_bits,
            offset,
            hdr_data,
        })
    }

    pub(super) fn get(md: MdHandle, from: &Target) -> Self {
        let Target { process, portal, match_bits, offset, self_nid } = *from;
        Self::Get(GetRequest { md, part: None, self_nid, target: process, portal, match_bits, offset })
    }

    /// Asks for a part of the descriptor.
    pub(super) fn of_part(self, part: MdPart) -> Self {
        let part = Some(part);
        match self {
            Self::Put(put) => Self::Put(PutRequest { part, ..put }),
            Self::Get(get) => Self::Get(GetRequest { part, ..get }),
        }
    }

    /// Asks for another descriptor.
    pub(super) fn of(self, md: MdHandle) -> Self {
        match self {
            Self::Put(put) => Self::Put(PutRequest { md, ..put }),
            Self::Get(get) => Self::Get(GetRequest { md, ..get }),
        }
    }

    pub(super) fn md(&self) -> MdHandle {
        match self {
            Self::Put(put) => put.md,
            Self::Get(get) => get.md,
        }
    }

    /// The event that answers it last.
    pub(super) fn answer(&self) -> EventKind {
        match self {
            Self::Put(PutRequest { ack: true, .. }) => EventKind::Ack,
            Self::Put(_) => EventKind::Send,
            Self::Get(_) => EventKind::Reply,
        }
    }

    /// The event that says that it was refused.
    fn refused(&self, md: EventMd) -> Event {
        let (message_type, target, portal, match_bits, hdr_data, offset_bytes) = match *self {
            Self::Put(PutRequest { target, portal, match_bits, hdr_data, offset, .. }) => {
                (MessageType::Put, target, portal, match_bits, hdr_data, offset)
            }
            Self::Get(GetRequest { target, portal, match_bits, offset, .. }) => {
                (MessageType::Get, target, portal, match_bits, 0, offset)
            }
        };
        let length_bytes = 0;
        Event::Send { md, message_type, target, portal, match_bits, hdr_data, length_bytes, offset_bytes }
    }
}

/// Places for the refusals of one descriptor's requests.
#[derive(Debug)]
pub(super) struct Refusals {
    md: EventMd,
    queue: Option<EqHandle>,
    used: AtomicU32,
}

impl Refusals {
    pub(super) fn new(handle: MdHandle, md: &MdSpec) -> Arc<Self> {
        let status = Status::NeverSent(Cause::Refused);
        let (user_ptr, options) = (md.user_ptr, md.options);
        let queue = md.event_queue;
        let md = EventMd { handle, user_ptr, options, status, unlinked: false };
        Arc::new(Self { md, queue, used: AtomicU32::new(0) })
    }

    /// Places for the refusals of a shard's entries that are queued.
    pub(super) fn of_entries() -> Arc<Self> {
        let (handle, options) = (NO_MD, MdOptions::NONE);
        let status = Status::NeverSent(Cause::Refused);
        let md = EventMd { handle, user_ptr: 0, options, status, unlinked: true };
        Arc::new(Self { md, queue: None, used: AtomicU32::new(0) })
    }

    /// Where they are told.
    pub(super) fn queue(&self) -> Option<EqHandle> {
        self.queue
    }
}

/// A place for the refusal of one request.
#[derive(Debug)]
pub(super) struct RefusalSlot(Arc<Refusals>);

impl RefusalSlot {
    /// Takes one of the descriptor's places, if one is free.
    pub(super) fn reserve(refusals: &Arc<Refusals>) -> Result<Self, SubmitError> {
        let slot = Self(Arc::clone(refusals));
        // What is one too many is given back by the drop.
        match refusals.used.fetch_add(1, Ordering::AcqRel) {
            REFUSALS_MAX.. => Err(SubmitError::EventQueueFull(refusals.md.handle)),
            _ => Ok(slot),
        }
    }

    pub(super) fn queue(&self) -> Option<EqHandle> {
        self.0.queue()
    }

    pub(super) fn event(&self, message: &PutOrGet) -> Event {
        message.refused(self.0.md)
    }

    /// The end of a descriptor that was never made.
    pub(super) fn end_event(&self, md: &MdSpec) -> Event {
        let (user_ptr, options) = (md.user_ptr, md.options);
        Event::Unlink { md: EventMd { user_ptr, options, ..self.0.md } }
    }
}

impl Drop for RefusalSlot {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How it is told what became of a request.
pub(super) enum Answer {
    /// Events answer; only a refusal takes the slot.
    Events(RefusalSlot),
    /// A future answers; the descriptor's event queue tells nothing.
    Outcome(oneshot::Sender<Result<QueuedEvent, LnetError>>, EqHandle),
}

/// A PUT or a GET that is to be sent. It does nothing until it is queued, started or awaited:
///
/// - `put(..).queue()` returns at once. Events tell what came of it, also when it is refused.
/// - `put(..).start()` blocks until the shard has started it, and returns the refusal. Events tell the rest.
/// - `put(..).await` gives its outcome, in any runtime: the [`QueuedEvent`] of the REPLY, of the ACK if that
///   was wanted, or else of the SEND; or that of the event that says that none of them will come. A thread
///   whose tasks wait so again and again drives the shard itself, as with [`EventQueue::next`](super::EventQueue::next). No event of
///   the request comes by the queue then. A PUT that no entry takes is never answered, so give the descriptor
///   [`MdOptions::TRACK_RESPONSE`](lnet_core::md::MdOptions::TRACK_RESPONSE), or drop the future. A
///   descriptor has one awaited request at a time, and no other one meanwhile: their events could not be told
///   apart. The outcome comes behind the earlier events of the same queue: a task that is the only one to
///   take those must not wait for it, or give the descriptor a queue of its own.
#[derive(Debug)]
#[must_use = "a request does nothing until it is queued, started or awaited"]
pub struct UnsentRequest<'a> {
    pub(super) descriptor: &'a Descriptor,
    pub(super) message: PutOrGet,
}

impl UnsentRequest<'_> {
    /// A request for `length_bytes` of the descriptor from `offset_bytes` on: what a PUT sends, or what a
    /// REPLY fills. So one descriptor, bound once with a threshold for all of them or
    /// [`Threshold::Infinite`](lnet_core::md::Threshold), serves many messages. Requests for whatever parts
    /// may be under way at once. Events tell PUTs apart by match bits and `hdr_data`, and REPLYs by their
    /// offset. What GETs have got is in the buffer when the last event brings that. A part that leaves the
    /// descriptor is refused when the request starts ([`SubmitError::Part`]).
    pub fn part(self, offset_bytes: u32, length_bytes: u32) -> Self {
        let message = self.message.of_part(MdPart { offset_bytes, length_bytes });
        Self { message, ..self }
    }

    /// Leaves it for the shard and returns. Should the shard refuse it, a SEND event with the status
    /// [`Cause::Refused`] says so, and [`QueuedEvent::refusal`] why.
    /// Requests of one descriptor start in the order of these calls. Waits only while 256 calls wait at the
    /// shard already.
    ///
    /// # Errors
    /// [`LnetError::Ended`]; [`LnetError::NoEventQueue`], since a descriptor without an event queue could
    /// not tell of a refusal ([`UnsentRequest::start`] returns it); and [`SubmitError::EventQueueFull`] while
    /// 256 requests of the descriptor are on their way to the shard, or refused and still in the event queue.
    pub fn queue(self) -> Result<(), LnetError> {
        let refusals = self.descriptor.refusals();
        refusals.queue().ok_or(LnetError::NoEventQueue)?;
        let slot = RefusalSlot::reserve(refusals)?;
        self.descriptor.shard().end().enqueue(Command::Request(self.message, Answer::Events(slot)))
    }

    /// Waits until the shard has started it.
    ///
    /// # Errors
    /// [`LnetError::Request`] when it does not start; nothing has changed then.
    pub fn start(self) -> Result<(), LnetError> {
        let message = self.message;
        let queue = self.descriptor.refusals().queue();
        self.descriptor.shard().end().run_soon(move |worker, queues| queues.start(&message, queue, worker))?
    }
}

impl IntoFuture for UnsentRequest<'_> {
    type Output = Result<QueuedEvent, LnetError>;
    type IntoFuture = Outcome;

    fn into_future(self) -> Outcome {
        let shard = self.descriptor.shard();
        let (sender, outcome) = oneshot::channel();
        let left = match self.descriptor.refusals().queue() {
            Some(queue) => {
                shard.end().enqueue(Command::Request(self.message, Answer::Outcome(sender, queue)))
            }
            None => Err(LnetError::NoEventQueue),
        };
        Outcome { outcome: Answered::new(shard.end().thread.shared(), outcome), refused: left.err() }
    }
}

/// What comes of a request. Dropped before that is known, the events come by the event queue.
#[derive(Debug)]
pub struct Outcome {
    pub(super) outcome: Answered<Result<QueuedEvent, LnetError>>,
    /// Why the shard was not asked.
    pub(super) refused: Option<LnetError>,
}

impl Future for Outcome {
    type Output = Result<QueuedEvent, LnetError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(error) = self.refused.take() {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.outcome).poll(context).map(Result::flatten)
    }
}
