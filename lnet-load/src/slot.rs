//! A place of the initiator's window: runs of messages, one message after the other, by one descriptor.
//!
//! Invariants: a place is free, and has its buffer, or a run has it, and the buffer is lent until the last
//! event of the run's descriptor. The messages of a run are of one kind, and each has its own part of the
//! buffer. The next one starts when both the SEND and the answer of the one before have come, so that an
//! event without a name of its own is of the one under way. After a fault the run starts no more: those that
//! are left are for another one.

use std::time::{Duration, Instant};

use lnet_user::Buffer;
use lnet_user::MdHandle;
use lnet_user::Nid;
use lnet_user::api::{Ack, Descriptor, EventQueue, LnetError, NotLent, OwnedRequest, QueuedEvent, Target};
use lnet_user::{Event, EventKind};
use lnet_user::{MdOptions, MdSpec, Threshold};

use super::Kind;
use super::pattern::Difference;
use super::plan::LoadMessage;
use super::report::FaultKind;

/// Byte that GETs are to replace. A GET asks for what an earlier one may have left in the same buffer.
const BLANK: u8 = 0xA5;

/// What came of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageEnd {
    pub(super) message: LoadMessage,
    pub(super) peer: Nid,
    /// How long it took, or what went wrong.
    pub(super) outcome: Result<Duration, (FaultKind, Option<Difference>)>,
}

/// What came of messages of a place.
#[derive(Default)]
pub(super) struct Outcomes {
    /// Messages that have ended.
    pub(super) ended: Vec<MessageEnd>,
    /// Numbers of those that have not started.
    pub(super) unstarted: Vec<u64>,
}

/// A message of a run.
struct Planned {
    message: LoadMessage,
    peer: Nid,
    /// Where its part of the buffer begins.
    offset_bytes: u32,
    /// How long a GET took whose payload is to be looked at.
    got: Option<Duration>,
}

/// A message under way.
struct UnderWay {
    begun: Instant,
    /// Whether its SEND has come.
    is_sent: bool,
    /// When the event came that tells that it went well, and the bytes that it tells of.
    done: Option<(Instant, u32)>,
}

/// How starting the next message went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// A message is under way, or there is none.
    Done,
    /// The node is busy: again, later.
    Later,
}

/// A place for runs of messages.
pub(super) struct RunSlot {
    /// Names it in events.
    index: usize,
    ack: Ack,
    /// `None` while it is lent, or if it has gone with its shard.
    buffer: Option<Buffer>,
    /// The run, and the message whose turn it is.
    run: Vec<Planned>,
    at: usize,
    under_way: Option<UnderWay>,
    /// `None` when it was unlinked.
    descriptor: Option<Descriptor>,
    /// The descriptor of the run, also when it was unlinked.
    handle: Option<MdHandle>,
    /// Whether a last event is to come.
    is_lent: bool,
}

impl RunSlot {
    /// A free place with a buffer of so many bytes.
    pub(super) fn new(index: usize, ack: bool, buffer_bytes: u32) -> Self {
        Self {
            index,
            ack: if ack { Ack::Wanted } else { Ack::NotWanted },
            buffer: Some(Buffer::zeroed(buffer_bytes as usize)),
            run: Vec::new(),
            at: 0,
            under_way: None,
            descriptor: None,
            handle: None,
            is_lent: false,
        }
    }

    pub(super) const fn is_free(&self) -> bool {
        self.buffer.is_some()
    }

    /// Whether events are still to come.
    pub(super) const fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// Makes a run of these messages ready, which are of one kind and find room in the buffer: what binds the
    /// descriptor and starts the first. Their payload is in the buffer from now on. `None` if there are none,
    /// or the place is not free.
    pub(super) fn prepare(
        &mut self,
        messages: impl Iterator<Item = (LoadMessage, Nid)>,
        queue: &EventQueue,
    ) -> Option<OwnedRequest> {
        let mut buffer = self.buffer.take()?;
        self.run.clear();
        let mut end = 0;
        for (message, peer) in messages {
            self.run.push(Planned { message, peer, offset_bytes: end, got: None });
            let part = &mut buffer[end as usize..][..message.length_bytes as usize];
            match message.kind {
                Kind::Put => message.fill(part),
                Kind::Get => part.fill(BLANK),
            }
            end += message.length_bytes;
        }
        self.at = 0;
        let Some(Planned { message, peer, .. }) = self.run.first() else {
            self.buffer = Some(buffer);
            return None;
        };
        let (is_put, to) = (message.kind == Kind::Put, target(message, *peer));
        let each = if is_put && self.ack == Ack::NotWanted { 1 } else { 2 };
        let threshold = Threshold::Count(self.run.len() as u32 * each);
        let md = MdSpec::new(end.into(), threshold, MdOptions::NONE, queue.handle());
        let md = MdSpec { user_ptr: self.index as u64, ..md };
        let first = if is_put {
            OwnedRequest::put(&md, buffer, &to, self.ack, message.number)
        } else {
            OwnedRequest::get(&md, buffer, &to)
        };
        Some(first.part(0, message.length_bytes))
    }

    /// Takes note of how starting the first message of the run went.
    pub(super) fn started(
        &mut self,
        begun: Instant,
        started: Result<Descriptor, NotLent>,
        outcomes: &mut Outcomes,
    ) -> Next {
        match started {
            Ok(descriptor) => {
                self.handle = Some(descriptor.handle());
                (self.descriptor, self.is_lent) = (Some(descriptor), true);
                self.under_way = Some(UnderWay { begun, is_sent: false, done: None });
                Next::Done
            }
            Err(NotLent { error, buffer }) => {
                // Without it the last event of the descriptor brings it, if there is still a shard.
                self.is_lent = buffer.is_none() && !matches!(error, LnetError::Ended(_));
                self.buffer = buffer;
                if !error.is_busy() {
                    self.end_current(Err((FaultKind::NotStarted, None)), outcomes);
                }
                self.give_back_rest(outcomes);
                Next::Later
            }
        }
    }

    /// Starts the next message of the run, if it is its turn.
    pub(super) fn start_next(&mut self, outcomes: &mut Outcomes) -> Next {
        let (Some(descriptor), Some(next), None) = (&self.descriptor, self.run.get(self.at), &self.under_way)
        else {
            return Next::Done;
        };
        let Planned { message, peer, offset_bytes, .. } = next;
        let begun = Instant::now();
        let to = target(message, *peer);
        let request = match message.kind {
            Kind::Put => descriptor.put(&to, self.ack, message.number),
            Kind::Get => descriptor.get(&to),
        };
        match request.part(*offset_bytes, message.length_bytes).queue() {
            Ok(()) => self.under_way = Some(UnderWay { begun, is_sent: false, done: None }),
            Err(error) if error.is_busy() => return Next::Later,
            Err(_) => self.fail(FaultKind::NotStarted, outcomes),
        }
        Next::Done
    }

    /// Takes an event of its descriptor. The next message may then be started; after the last event the place
    /// is free.
    pub(super) fn take(&mut self, queued: QueuedEvent, outcomes: &mut Outcomes) -> Next {
        if let Some(error) = queued.refusal() {
            // A message that was queued. Its run may be over since, by a fault.
            if self.handle != Some(queued.event.md()) || self.under_way.is_none() {
                return Next::Done;
            }
            if error.is_busy() {
                self.under_way = None;
                return Next::Later;
            }
            self.fail(FaultKind::NotStarted, outcomes);
            return Next::Done;
        }
        self.note(&queued.event, outcomes);
        if queued.event.unlinked() {
            self.end(queued.into_buffer(), outcomes);
        }
        Next::Done
    }

    fn note(&mut self, event: &Event, outcomes: &mut Outcomes) {
        let Some(under_way) = &mut self.under_way else { return };
        if let Some(fault) = FaultKind::of(event.status()) {
            return self.fail(fault, outcomes);
        }
        let is_put = self.run[self.at].message.kind == Kind::Put;
        // A SEND tells the length, and nothing of what the target took.
        let is_answer = match event.kind() {
            EventKind::Ack | EventKind::Reply => true,
            EventKind::Send => {
                under_way.is_sent = true;
                is_put && self.ack == Ack::NotWanted
            }
            _ => false,
        };
        if is_answer {
            under_way.done = Some((Instant::now(), event.manipulated_bytes()));
        }
        let UnderWay { begun, is_sent: true, done: Some((done, moved_bytes)) } = *under_way else { return };
        self.under_way = None;
        let Planned { message, got, .. } = &mut self.run[self.at];
        if moved_bytes != message.length_bytes {
            let (expected, found) = (message.length_bytes.into(), moved_bytes.into());
            let difference = Some(Difference { offset_bytes: 0, expected, found });
            self.end_current(Err((FaultKind::Length, difference)), outcomes);
        } else if is_put {
            self.end_current(Ok(done - begun), outcomes);
        } else {
            *got = Some(done - begun);
            self.at += 1;
        }
    }

    /// Gives the message under way up, if it was started longer ago than that.
    pub(super) fn give_up(&mut self, after: Duration, fault: FaultKind, outcomes: &mut Outcomes) {
        if let Some(UnderWay { begun, done: None, .. }) = self.under_way
            && begun.elapsed() >= after
        {
            self.fail(fault, outcomes);
        }
    }

    /// Starts no more messages of the run.
    pub(super) fn stop(&mut self) {
        if self.under_way.is_none() {
            drop(self.descriptor.take());
        }
    }

    /// What becomes of messages that are not waited for any more.
    pub(super) fn lose(&mut self, outcomes: &mut Outcomes) {
        self.is_lent = false;
        if self.under_way.take().is_some() {
            self.end_current(Err((FaultKind::Other, None)), outcomes);
        }
        for Planned { message, peer, got, .. } in self.run.drain(..) {
            if got.is_some() {
                outcomes.ended.push(MessageEnd { message, peer, outcome: Err((FaultKind::Other, None)) });
            }
        }
    }

    /// The message under way has a fault. Its descriptor goes, since an event of it may come later; the last
    /// one follows.
    fn fail(&mut self, fault: FaultKind, outcomes: &mut Outcomes) {
        self.under_way = None;
        self.end_current(Err((fault, None)), outcomes);
        drop(self.descriptor.take());
    }

    fn end_current(
        &mut self,
        outcome: Result<Duration, (FaultKind, Option<Difference>)>,
        outcomes: &mut Outcomes,
    ) {
        let Planned { message, peer, .. } = self.run[self.at];
        outcomes.ended.push(MessageEnd { message, peer, outcome });
        self.at += 1;
    }

    /// The last event has come, with the buffer if there is still a shard.
    fn end(&mut self, buffer: Option<Buffer>, outcomes: &mut Outcomes) {
        (self.buffer, self.is_lent, self.handle) = (buffer, false, None);
        if let Some(descriptor) = self.descriptor.take() {
            // The message is gone already.
            descriptor.detach();
        }
        if self.under_way.take().is_some() {
            self.end_current(Err((FaultKind::Other, None)), outcomes);
        }
        for Planned { message, peer, offset_bytes, got } in &self.run[..self.at] {
            let Some(latency) = got else { continue };
            let part = *offset_bytes as usize..(*offset_bytes + message.length_bytes) as usize;
            let outcome = match self.buffer.as_ref().map(|buffer| message.check(&buffer[part])) {
                Some(None) => Ok(*latency),
                Some(difference) => Err((FaultKind::Byte, difference)),
                None => Err((FaultKind::Other, None)),
            };
            outcomes.ended.push(MessageEnd { message: *message, peer: *peer, outcome });
        }
        self.give_back_rest(outcomes);
    }

    /// Leaves the messages whose turn has not come.
    fn give_back_rest(&mut self, outcomes: &mut Outcomes) {
        outcomes.unstarted.extend(self.run[self.at..].iter().map(|planned| planned.message.number));
        self.run.clear();
        self.at = 0;
    }
}

fn target(message: &LoadMessage, peer: Nid) -> Target {
    let mut to = Target::new(peer, message.portal, message.match_bits);
    to.offset = message.offset_bytes;
    to
}

#[cfg(test)]
#[path = "slot_tests.rs"]
mod tests;
