//! A place of the initiator's window: one message after the other, in the same buffer.
//!
//! Invariant: a place is free, and has its buffer, or it is busy, and the buffer is lent until the last event of
//! the message's descriptor.

use std::time::{Duration, Instant};

use lnet_core::event::EventKind;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_wire::Nid;

use super::Kind;
use super::plan::Message;
use super::report::{Difference, FaultKind};
use crate::api::{Ack, Descriptor, EventQueue, LnetError, NotLent, Outgoing, QueuedEvent, Target};
use crate::memory::Buffer;

/// Byte that GETs are to replace. A GET asks for what an earlier one may have left in the same buffer.
const BLANK: u8 = 0xA5;

/// What came of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) message: Message,
    pub(super) peer: Nid,
    /// How long it took, or what went wrong.
    pub(super) outcome: Result<Duration, (FaultKind, Option<Difference>)>,
}

/// A message under way.
struct Busy {
    message: Message,
    peer: Nid,
    ack: bool,
    /// `None` when it was unlinked.
    descriptor: Option<Descriptor>,
    begun: Instant,
    /// When the event came that tells that it went well.
    done: Option<Instant>,
    /// Bytes that an ACK or REPLY tells of.
    moved_bytes: u32,
    fault: Option<FaultKind>,
}

/// How starting a message went.
pub(super) enum Started {
    /// It is under way.
    Yes,
    /// The node is busy: again, later. The place is free, or will be.
    Later,
    /// The node refuses it.
    No(Ended),
}

/// A place for a message.
pub(super) struct Slot {
    /// `None` while it is lent, or if it has gone with its shard.
    buffer: Option<Buffer>,
    busy: Option<Busy>,
    /// The message did not start, and the buffer comes back by the descriptor's end.
    is_returning: bool,
}

impl Slot {
    /// A free place, for messages of up to `max_bytes`.
    pub(super) fn new(max_bytes: u32) -> Self {
        Self { buffer: Some(Buffer::zeroed(max_bytes as usize)), busy: None, is_returning: false }
    }

    pub(super) const fn is_free(&self) -> bool {
        self.buffer.is_some()
    }

    /// Makes a message ready, whose payload is in the place's buffer from now on. The place is free.
    pub(super) fn prepare(
        &mut self,
        index: usize,
        message: &Message,
        peer: Nid,
        ack: bool,
        queue: &EventQueue,
    ) -> Option<Outgoing> {
        let mut buffer = self.buffer.take()?;
        let bytes = &mut buffer[..message.length_bytes as usize];
        match message.kind {
            Kind::Put => message.fill(bytes),
            Kind::Get => bytes.fill(BLANK),
        }
        let operations = if message.kind == Kind::Put && !ack { 1 } else { 2 };
        let (length_bytes, threshold) = (message.length_bytes.into(), Threshold::Count(operations));
        let md = MdSpec::new(length_bytes, threshold, MdOptions::NONE, queue.handle());
        let md = MdSpec { user_ptr: index as u64, ..md };
        let mut to = Target::new(peer, message.portal, message.match_bits);
        to.offset = message.offset_bytes;
        Some(match message.kind {
            Kind::Put => {
                let ack = if ack { Ack::Wanted } else { Ack::NotWanted };
                Outgoing::put(&md, buffer, &to, ack, message.number)
            }
            Kind::Get => Outgoing::get(&md, buffer, &to),
        })
    }

    /// Takes note of how starting that message went.
    pub(super) fn started(
        &mut self,
        message: Message,
        peer: Nid,
        ack: bool,
        begun: Instant,
        started: Result<Descriptor, NotLent>,
    ) -> Started {
        match started {
            Ok(descriptor) => {
                let descriptor = Some(descriptor);
                let (done, moved_bytes, fault) = (None, 0, None);
                self.busy = Some(Busy { message, peer, ack, descriptor, begun, done, moved_bytes, fault });
                Started::Yes
            }
            Err(NotLent { error, buffer }) => {
                // Without it the last event of the descriptor brings it, if there is still a shard.
                self.is_returning = buffer.is_none() && !matches!(error, LnetError::Stopped(_));
                self.buffer = buffer;
                refused(&error, message, peer)
            }
        }
    }

    /// Takes an event of its descriptor; what came of the message, if this was the last one.
    pub(super) fn take(&mut self, queued: QueuedEvent) -> Option<Ended> {
        let is_last = queued.event.unlinked();
        if let Some(busy) = &mut self.busy {
            busy.take(&queued);
        }
        if !is_last {
            return None;
        }
        self.is_returning = false;
        self.buffer = queued.into_buffer();
        let busy = self.busy.take()?;
        if let Some(descriptor) = busy.descriptor {
            // It is gone already.
            descriptor.detach();
        }
        let outcome = match (busy.fault, busy.done) {
            (Some(fault), _) => Err((fault, None)),
            (None, None) => Err((FaultKind::Other, None)),
            (None, Some(done)) => {
                check(&busy.message, busy.moved_bytes, self.buffer.as_deref().unwrap_or_default())
                    .map(|()| done - busy.begun)
            }
        };
        Some(Ended { message: busy.message, peer: busy.peer, outcome })
    }

    /// Gives its message up, if it has one that was started longer ago than that.
    pub(super) fn give_up(&mut self, after: Duration, fault: FaultKind) {
        if let Some(busy) = &mut self.busy
            && busy.begun.elapsed() >= after
            && busy.done.is_none()
        {
            busy.fault.get_or_insert(fault);
            // Unlinks it; the last event follows.
            drop(busy.descriptor.take());
        }
    }

    /// Whether events are still to come.
    pub(super) const fn is_lent(&self) -> bool {
        self.busy.is_some() || self.is_returning
    }

    /// What becomes of a message that is not waited for any more.
    pub(super) fn lose(&mut self) -> Option<Ended> {
        self.is_returning = false;
        let Busy { message, peer, fault, .. } = self.busy.take()?;
        Some(Ended { message, peer, outcome: Err((fault.unwrap_or(FaultKind::Other), None)) })
    }
}

impl Busy {
    fn take(&mut self, queued: &QueuedEvent) {
        let event = &queued.event;
        if let Some(fault) = FaultKind::of(event.status()) {
            self.fault.get_or_insert(fault);
            if !event.unlinked() {
                // No ACK or REPLY comes of it.
                drop(self.descriptor.take());
            }
            return;
        }
        let is_answer = match event.kind() {
            EventKind::Ack | EventKind::Reply => true,
            EventKind::Send => self.message.kind == Kind::Put && !self.ack,
            _ => false,
        };
        if is_answer {
            self.done = Some(Instant::now());
            // A SEND tells the length, and nothing of what the target took.
            self.moved_bytes = event.manipulated_bytes();
        }
    }
}

fn refused(error: &LnetError, message: Message, peer: Nid) -> Started {
    if error.is_busy() {
        return Started::Later;
    }
    Started::No(Ended { message, peer, outcome: Err((FaultKind::NotStarted, None)) })
}

/// Whether a message did what it should.
fn check(message: &Message, moved_bytes: u32, buffer: &[u8]) -> Result<(), (FaultKind, Option<Difference>)> {
    if moved_bytes != message.length_bytes {
        let (expected, found) = (message.length_bytes.into(), moved_bytes.into());
        return Err((FaultKind::Length, Some(Difference { offset_bytes: 0, expected, found })));
    }
    if message.kind == Kind::Put {
        return Ok(());
    }
    let payload = buffer.get(..moved_bytes as usize).unwrap_or_default();
    message.check(payload).map_or(Ok(()), |difference| Err((FaultKind::Byte, Some(difference))))
}
