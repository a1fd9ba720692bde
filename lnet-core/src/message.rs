//! Messages on their way out.
//!
//! Invariants: a message is a token whose type says what it holds; each step consumes the token and yields
//! the next:
//!
//! ```text
//! Message<Queued> --peer credit--> Message<PeerCredited> --NI credit--> Message<Credited>
//!   --poll_transmit--> Message<Submitted> --sent--> Message<Done>
//! ```
//!
//! A request whose peer is to be discovered first waits as `Message<Gated>`, before it is `Queued` again. Any
//! of them may also go straight to `Done`, when it fails; `Done` remembers which credits go home. A token
//! that waits somewhere is inside a [`MessageQueue`] of its type, one that is with an LND is claimed by its
//! [`TxId`]: so no message is ever in two lists, or lost between them.
//!
//! A message names its next hop apart from its header's destination, and its payload is a span of a
//! descriptor or of a buffer of the node: a router needs both.

use core::marker::PhantomData;
use core::time::Duration;

use lnet_wire::Header;

use crate::collections::{Link, List, NONE, Slab, linked};
use crate::limits::{Limits, SHARED_SLOTS, has_share};
use crate::lnd::{NiId, Span, Status, Transmit, TxId};
use crate::standing::Turn;
use crate::time::{Instant, earliest};

/// A state of a message, with what it holds then.
pub(crate) trait Staged {
    const STAGE: Stage;
}

/// What a message holds, for the code that finds it by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Gated,
    Queued,
    PeerCredited,
    Credited,
    Submitted,
}

/// Built; waits until its peer is discovered.
pub(crate) struct Gated;
/// Built; waits for a credit of its peer.
pub(crate) struct Queued;
/// Holds a credit of its peer; waits for one of its NI.
pub(crate) struct PeerCredited;
/// Holds both credits; waits to be polled.
pub(crate) struct Credited;
/// Handed to its LND.
pub(crate) struct Submitted;
/// Ended, well or not. Its stage says how far it had come, until that is dealt with.
pub(crate) struct Done;

impl Staged for Gated {
    const STAGE: Stage = Stage::Gated;
}
impl Staged for Queued {
    const STAGE: Stage = Stage::Queued;
}
impl Staged for PeerCredited {
    const STAGE: Stage = Stage::PeerCredited;
}
impl Staged for Credited {
    const STAGE: Stage = Stage::Credited;
}
impl Staged for Submitted {
    const STAGE: Stage = Stage::Submitted;
}

/// A message in state `S`: the way to touch its record, but for what [`Messages::next_stuck`] finds. Neither
/// `Clone` nor `Copy`.
#[must_use = "a message that is let go never ends"]
pub(crate) struct Message<S> {
    slot: u32,
    state: PhantomData<S>,
}

impl<S> Message<S> {
    const fn at(slot: u32) -> Self {
        Self { slot, state: PhantomData }
    }

    /// Slot of its record.
    pub(crate) const fn slot(&self) -> u32 {
        self.slot
    }
}

/// Whose room a message takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Budget {
    Request,
    Response,
    Forward,
}

/// What a message is for.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// A request: an operation of this descriptor's.
    Request { md: u32 },
    /// The REPLY to this GET, whose operation ends with it.
    Reply { get: Header, span: Span },
    /// An ACK; a late one waits until who made the descriptor says so.
    Ack { is_late: bool },
    /// Another node's message, by its slot among those that are forwarded.
    Forward { routed: u32 },
}

impl Purpose {
    const fn budget(&self) -> Budget {
        match self {
            Self::Request { .. } => Budget::Request,
            Self::Reply { .. } | Self::Ack { .. } => Budget::Response,
            Self::Forward { .. } => Budget::Forward,
        }
    }
}

/// What is known of a message.
pub(crate) struct MessageState {
    /// The message as its LND gets it. [`Messages::insert`] gives it its name. The record holds a reference
    /// on the slot of its peer.
    pub(crate) transmit: Transmit,
    pub(crate) purpose: Purpose,
    /// How often it was sent anew.
    pub(crate) resends: u32,
    /// When its request started, or its response was ready to be sent.
    pub(crate) started: Instant,
    pub(crate) deadline: Instant,
    pub(crate) release: Release,
    /// Time at which its LND got it last.
    pub(crate) lent_at: Instant,
    /// Whether it has passed that credit on.
    pub(crate) has_passed_on: bool,
    /// Whether its LND was found to have it for long.
    pub(crate) is_stuck: bool,
    /// The turn in which its NI's credit was taken.
    pub(crate) credit_of: Turn,
    /// Messages for the same peer that wait behind it for the same NI.
    followers: MessageQueue<PeerCredited>,
    /// The first message for the same peer that waits for another NI, or [`NONE`].
    next_head: u32,
    /// How it ended.
    pub(crate) status: Status,
    /// Whether it is to leave by its NI and no other: it names it, or what it answers came by it.
    pub(crate) is_bound: bool,
    pub(crate) stage: Stage,
    waiting: Link,
    /// Membership in its NI's list of deadlines.
    timer: Link,
}

impl MessageState {
    #[inline]
    pub(crate) const fn new(purpose: Purpose, transmit: Transmit, deadline: Instant) -> Self {
        Self {
            transmit,
            is_bound: matches!(purpose.budget(), Budget::Response),
            purpose,
            resends: 0,
            started: Instant(0),
            deadline,
            release: (Instant(0), 0),
            lent_at: Instant(0),
            has_passed_on: false,
            is_stuck: false,
            credit_of: Turn::Unknown,
            followers: MessageQueue::new(),
            next_head: NONE,
            status: Status::Ok,
            stage: Stage::Queued,
            waiting: Link::UNLINKED,
            timer: Link::UNLINKED,
        }
    }

    /// The slot of its peer.
    pub(crate) const fn peer(&self) -> u32 {
        self.transmit.peer.0
    }

    /// Whether it answers something.
    pub(crate) const fn is_response(&self) -> bool {
        matches!(self.purpose.budget(), Budget::Response)
    }

    /// Whether some of its payload is to arrive yet: what its LND waits for is not its peer.
    pub(crate) fn is_partial(&self) -> bool {
        self.transmit.payload.is_some_and(|span| span.length_bytes < self.transmit.header.payload_length)
    }

    /// Whether it is another node's.
    pub(crate) const fn is_forwarded(&self) -> bool {
        matches!(self.purpose, Purpose::Forward { .. })
    }

    /// Credits that the message held when it ended: one of its peer, and one of its NI.
    pub(crate) const fn credits_held_at_end(&self) -> (bool, bool) {
        match self.stage {
            Stage::Gated | Stage::Queued => (false, false),
            Stage::PeerCredited => (true, false),
            Stage::Credited | Stage::Submitted => (true, !self.has_passed_on),
        }
    }
}

/// Marks the queue that a message waits in.
struct Waiting;
/// Marks the deadlines of an NI.
struct NiDeadlines;

linked!(MessageState, Waiting, waiting);

linked!(MessageState, NiDeadlines, timer);

/// Messages of one type that wait for the same thing, first come first served.
pub(crate) struct MessageQueue<S> {
    list: List<Waiting>,
    state: PhantomData<S>,
}

impl<S> MessageQueue<S> {
    pub(crate) const fn new() -> Self {
        Self { list: List::new(), state: PhantomData }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.list.first() == NONE
    }

    /// All of them.
    pub(crate) const fn take(&mut self) -> Self {
        core::mem::replace(self, Self::new())
    }

    pub(crate) fn push(&mut self, messages: &mut Messages, message: Message<S>) {
        self.list.push_back(&mut messages.records, message.slot);
    }

    pub(crate) fn push_front(&mut self, messages: &mut Messages, message: Message<S>) {
        self.list.push_front(&mut messages.records, message.slot);
    }

    pub(crate) fn pop(&mut self, messages: &mut Messages) -> Option<Message<S>> {
        self.list.pop_front(&mut messages.records).map(Message::at)
    }

    /// Takes out the message of a slot, which waits here.
    pub(crate) fn remove(&mut self, messages: &mut Messages, slot: u32) -> Message<S> {
        self.list.remove(&mut messages.records, slot);
        Message::at(slot)
    }
}

/// The records of messages, by their slots.
type Records = Slab<MessageState>;
/// Until when a message waits that a delay rule holds up, and for which rule; or that waits for its peer.
pub(crate) type Release = (Instant, u64);

impl<S> MessageQueue<S> {
    /// Puts a message in the order of release.
    fn hold(&mut self, records: &mut Records, message: Message<S>, release: Release) {
        records[message.slot].release = release;
        self.list.insert_by_key(records, message.slot, |record| record.release.0);
    }

    /// When the first message is released.
    fn first_release(&self, records: &Records) -> Option<Instant> {
        records.get(self.list.first()).map(|record| record.release.0)
    }

    /// Takes out the first message whose release is `due`.
    fn pop_released(&mut self, records: &mut Records, due: impl Fn(Release) -> bool) -> Option<Message<S>> {
        let slot = self.list.find(records, |record| due(record.release))?;
        self.list.remove(records, slot);
        Some(Message::at(slot))
    }
}

impl<S: Staged> MessageQueue<S> {
    /// Takes out a message whose deadline has passed and that waits here.
    pub(crate) fn take_expired(&mut self, messages: &mut Messages, expired: Message<Expired>) -> Message<S> {
        assert_eq!(messages.records[expired.slot].stage, S::STAGE, "a message waits in the wrong queue");
        self.remove(messages, expired.slot)
    }
}

/// Deadlines of the messages that wait for a credit of one NI, or of a peer behind it, in order.
pub(crate) struct Timers {
    list: List<NiDeadlines>,
}

/// A stage of a message that waits for a credit, of its peer or its NI, and is in no list of deadlines any
/// more, mostly because its own has passed.
pub(crate) struct Expired;

impl Timers {
    pub(crate) const fn new() -> Self {
        Self { list: List::new() }
    }

    /// All of them.
    pub(crate) const fn take(&mut self) -> Self {
        core::mem::replace(self, Self::new())
    }

    /// Watches the deadline of a message that has to wait. Deadlines stay in order: one before that of the
    /// last message (the timeout was lowered meanwhile) is put off until then.
    pub(crate) fn watch<S>(&mut self, messages: &mut Messages, message: &Message<S>) {
        let records = &mut messages.records;
        if records[message.slot].timer.is_linked() {
            return;
        }
        if let Some(last) = records.get(self.list.last()) {
            let latest = last.deadline;
            records[message.slot].deadline = records[message.slot].deadline.max(latest);
        }
        self.list.push_back(records, message.slot);
    }

    /// Stops watching a message, if it is watched.
    pub(crate) fn forget<S>(&mut self, messages: &mut Messages, message: &Message<S>) {
        self.list.discard(&mut messages.records, message.slot);
    }

    /// Takes the first message off the list.
    pub(crate) fn pop(&mut self, messages: &mut Messages) -> Option<Message<Expired>> {
        let first = self.list.first();
        let message = messages.records.get(first).map(|_| Message::at(first))?;
        self.forget(messages, &message);
        Some(message)
    }

    /// Takes the response that has waited longest for a credit of its peer off the list, if it has waited
    /// since then. A few messages are looked at. One that waits for the NI waits for what others do not take.
    pub(crate) fn pop_response(
        &mut self,
        messages: &mut Messages,
        since: Instant,
    ) -> Option<Message<Expired>> {
        let is_due = |record: &MessageState| {
            record.is_response() && record.stage == Stage::Queued && record.started <= since
        };
        let oldest = self.list.iter(&messages.records).take(RESPONSES_LOOKED_AT);
        let slot = oldest.filter(|(_, record)| is_due(record)).map(|(slot, _)| slot).next()?;
        let message = Message::at(slot);
        self.forget(messages, &message);
        Some(message)
    }

    /// The earliest deadline.
    pub(crate) fn next(&self, messages: &Messages) -> Option<Instant> {
        messages.records.get(self.list.first()).map(|record| record.deadline)
    }

    /// Takes the first message whose deadline has come off the list.
    pub(crate) fn pop_expired(&mut self, messages: &mut Messages, now: Instant) -> Option<Message<Expired>> {
        if self.next(messages)? > now { None } else { self.pop(messages) }
    }
}

/// How long a message that goes nowhere has what others need as well.
pub(crate) const SILENT_MAX: Duration = Duration::from_secs(1);
/// Messages among which a response is looked for that has waited for long.
const RESPONSES_LOOKED_AT: usize = 16;

/// All messages of a shard that are on their way out.
pub(crate) struct Messages {
    records: Records,
    /// Responses at once at most.
    responses_max: u32,
    /// Room for requests that is for pings and pushes.
    finding_out: u32,
    /// Room that is neither promised nor in use, by budget.
    free: [u32; 3],
    /// Messages that have ended and whose end has not been dealt with; none between calls of the shard.
    ended: MessageQueue<Done>,
    /// Messages that hold their credits and that a delay rule holds up, in the order of their time.
    delayed: MessageQueue<Credited>,
    /// Requests that wait until their peers are discovered, in the order of their time.
    gated: MessageQueue<Gated>,
}

impl Messages {
    pub(crate) fn new(limits: &Limits) -> Self {
        let free = [limits.requests, limits.responses, limits.forwards];
        Self {
            records: Slab::new(limits.transmits()),
            responses_max: limits.responses,
            finding_out: limits.requests / SHARED_SLOTS,
            free,
            ended: MessageQueue::new(),
            delayed: MessageQueue::new(),
            gated: MessageQueue::new(),
        }
    }

    /// Messages that there is room for and that were not promised.
    pub(crate) const fn free(&self, budget: Budget) -> u32 {
        self.free[budget as usize]
    }

    /// Whether there is room for a response to a peer that has so many under way.
    pub(crate) const fn admits_response(&self, responses: u32) -> bool {
        has_share(responses, self.free(Budget::Response), self.responses_max)
    }

    /// Whether more than half of the room for responses is taken, where that is shared.
    #[inline]
    pub(crate) const fn is_short_of_responses(&self) -> bool {
        self.responses_max >= SHARED_SLOTS && self.free(Budget::Response) < self.responses_max / 2
    }

    /// Promises room for one message; says whether there is any.
    pub(crate) const fn reserve(&mut self, budget: Budget) -> bool {
        let free = &mut self.free[budget as usize];
        if *free == 0 {
            return false;
        }
        *free -= 1;
        true
    }

    /// Promises room for a request, one that finds out who a node is or another one.
    #[inline]
    pub(crate) const fn reserve_request(&mut self, finds_out: bool) -> bool {
        (finds_out || self.free(Budget::Request) > self.finding_out) && self.reserve(Budget::Request)
    }

    /// Takes such a promise back.
    pub(crate) const fn unreserve(&mut self, budget: Budget) {
        self.free[budget as usize] += 1;
    }

    /// Stores a message for which room was reserved.
    #[inline]
    pub(crate) fn insert(&mut self, record: MessageState) -> Message<Queued> {
        let Ok(slot) = self.records.insert(record) else {
            unreachable!("a message was built without reserved room")
        };
        self.records[slot].transmit.tx = TxId(slot);
        Message::at(slot)
    }

    pub(crate) fn record<S>(&self, message: &Message<S>) -> &MessageState {
        &self.records[message.slot]
    }

    pub(crate) fn record_mut<S>(&mut self, message: &Message<S>) -> &mut MessageState {
        &mut self.records[message.slot]
    }

    fn step<S, T: Staged>(&mut self, message: Message<S>) -> Message<T> {
        self.records[message.slot].stage = T::STAGE;
        Message::at(message.slot)
    }

    /// Has a message wait until its peer is discovered, or a late ACK until it is to be sent, or as long as
    /// it may.
    pub(crate) fn gate<S>(&mut self, message: Message<S>, release: Release) {
        let message = self.step(message);
        self.gated.hold(&mut self.records, message, release);
    }

    /// A message that has waited so for as long as it may.
    pub(crate) fn next_ungated(&mut self, now: Instant) -> Option<Message<Gated>> {
        self.gated.pop_released(&mut self.records, |(until, _)| until <= now)
    }

    /// All messages that wait so; the caller has each of them wait again or go on.
    pub(crate) const fn take_gated(&mut self) -> MessageQueue<Gated> {
        self.gated.take()
    }

    /// Has a message wait until a delay rule lets it go: until when, and which rule that is.
    pub(crate) fn delay(&mut self, message: Message<Credited>, release: Release) {
        self.delayed.hold(&mut self.records, message, release);
    }

    /// The first message that a delay rule holds up and that is `due`.
    pub(crate) fn next_undelayed(&mut self, due: impl Fn(Release) -> bool) -> Option<Message<Credited>> {
        self.delayed.pop_released(&mut self.records, due)
    }

    /// All messages that delay rules hold up; the caller has each of them wait again or go on.
    pub(crate) const fn take_delayed(&mut self) -> MessageQueue<Credited> {
        self.delayed.take()
    }

    /// When the first message is released that a delay rule holds up, or that waits for its peer.
    pub(crate) fn next_release(&self) -> Option<Instant> {
        earliest([self.delayed.first_release(&self.records), self.gated.first_release(&self.records)])
    }

    /// A message has waited so, and goes on.
    pub(crate) fn let_go(&mut self, message: Message<Gated>) -> Message<Queued> {
        self.step(message)
    }

    /// A message got its peer's credit.
    pub(crate) fn peer_credited(&mut self, message: Message<Queued>) -> Message<PeerCredited> {
        self.step(message)
    }

    /// A message got its NI's credit.
    pub(crate) fn credited(&mut self, message: Message<PeerCredited>) -> Message<Credited> {
        self.step(message)
    }

    /// The first message from `next` on that the LND of this NI has had for [`SILENT_MAX`], and that has not
    /// passed its credit on.
    pub(crate) fn next_stuck(&mut self, now: Instant, ni: NiId, next: &mut u32) -> Option<&mut MessageState> {
        let is_stuck = |record: &MessageState| {
            record.stage == Stage::Submitted
                && !record.has_passed_on
                && record.transmit.ni == ni
                && now - record.lent_at >= SILENT_MAX
        };
        let slot =
            (*next..self.records.capacity()).find(|slot| self.records.get(*slot).is_some_and(is_stuck))?;
        *next = slot + 1;
        Some(&mut self.records[slot])
    }

    /// The NI for which a head waits, and the next head of its peer; `None` behind the last one.
    pub(crate) fn head(&self, slot: u32) -> Option<(NiId, u32)> {
        self.records.get(slot).map(|record| (record.transmit.ni, record.next_head))
    }

    /// The head that waits for an NI among those of a peer.
    pub(crate) fn head_at(&self, heads: u32, ni: NiId) -> Option<u32> {
        let mut slot = heads;
        while let Some((by, next)) = self.head(slot) {
            if by == ni {
                return Some(slot);
            }
            slot = next;
        }
        None
    }

    /// Has a message be the first one of the heads of its peer.
    pub(crate) fn add_head(&mut self, heads: &mut u32, message: &Message<PeerCredited>) {
        self.records[message.slot].next_head = core::mem::replace(heads, message.slot);
    }

    /// Has a message wait behind a head, for the same peer and NI.
    pub(crate) fn follow(&mut self, head: u32, message: Message<PeerCredited>) {
        let mut followers = self.records[head].followers.take();
        followers.push(self, message);
        self.records[head].followers = followers;
    }

    /// Takes a message out that waits behind a head.
    pub(crate) fn unfollow(&mut self, head: u32, expired: Message<Expired>) -> Message<PeerCredited> {
        let mut followers = self.records[head].followers.take();
        let message = followers.take_expired(self, expired);
        self.records[head].followers = followers;
        message
    }

    /// Has a message be no head of its peer any more; the first one behind it, which is one instead.
    pub(crate) fn succeed(
        &mut self,
        heads: &mut u32,
        message: &Message<PeerCredited>,
    ) -> Option<Message<PeerCredited>> {
        let mut followers = self.records[message.slot].followers.take();
        let mut next = core::mem::replace(&mut self.records[message.slot].next_head, NONE);
        let first = followers.pop(self);
        if let Some(first) = &first {
            let record = &mut self.records[first.slot];
            (record.followers, record.next_head) = (followers, next);
            next = first.slot;
        }
        if *heads == message.slot {
            *heads = next;
            return first;
        }
        let mut before = *heads;
        while self.records[before].next_head != message.slot {
            before = self.records[before].next_head;
        }
        self.records[before].next_head = next;
        first
    }

    /// A message gave its NI's credit back before it was sent.
    pub(crate) fn uncredited(&mut self, message: Message<Credited>) -> Message<PeerCredited> {
        self.records[message.slot].has_passed_on = false;
        self.step(message)
    }

    /// Makes a message over to its LND, until [`claim`](Self::claim).
    #[inline]
    pub(crate) fn submit(&mut self, now: Instant, message: Message<Credited>) -> &Transmit {
        let message: Message<Submitted> = self.step(message);
        let record = &mut self.records[message.slot];
        record.lent_at = now;
        &record.transmit
    }

    /// Whether an LND has a message.
    pub(crate) fn is_lent(&self, tx: TxId) -> bool {
        self.records.get(tx.0).is_some_and(|record| record.stage == Stage::Submitted)
    }

    /// The message of this name.
    pub(crate) fn lent(&self, tx: TxId) -> &Transmit {
        &self.records[tx.0].transmit
    }

    /// More of the payload of a message is there. Whether an LND has it: so much of it only from now on.
    pub(crate) fn extend(&mut self, now: Instant, tx: TxId, payload: Option<Span>) -> bool {
        let record = &mut self.records[tx.0];
        (record.transmit.payload, record.lent_at) = (payload, now);
        record.stage == Stage::Submitted
    }

    /// Takes a message back from its LND, which must have it.
    pub(crate) fn claim(&mut self, tx: TxId) -> Message<Submitted> {
        let stage = self.records.get(tx.0).map(|record| record.stage);
        assert_eq!(stage, Some(Stage::Submitted), "the LND does not have the message {tx:?}");
        Message::at(tx.0)
    }

    /// A device had no room for a message.
    pub(crate) fn refused(&mut self, message: Message<Submitted>) -> Message<Credited> {
        self.step(message)
    }

    /// A message that ended is sent anew, and keeps the credit of its peer.
    pub(crate) fn resent(&mut self, message: Message<Done>) -> Message<PeerCredited> {
        self.records[message.slot].has_passed_on = false;
        self.step(message)
    }

    /// A message goes to another NI of its peer, and keeps no credit.
    pub(crate) fn requeued<S>(&mut self, message: Message<S>) -> Message<Queued> {
        self.records[message.slot].has_passed_on = false;
        self.step(message)
    }

    /// Notes how a message has ended, for [`Messages::next_ended`].
    pub(crate) fn end<S>(&mut self, message: Message<S>, status: Status) {
        self.records[message.slot].status = status;
        self.ended.list.push_back(&mut self.records, message.slot);
    }

    /// A message that has ended and whose end has not been dealt with.
    pub(crate) fn next_ended(&mut self) -> Option<Message<Done>> {
        self.ended.list.pop_front(&mut self.records).map(Message::at)
    }

    /// Forgets a message that has ended.
    #[inline]
    pub(crate) fn forget(&mut self, message: Message<Done>) {
        self.unreserve(self.records[message.slot].purpose.budget());
        self.records.vacate(message.slot);
    }

    /// Messages on their way out.
    pub(crate) const fn count(&self) -> u32 {
        self.records.used_count()
    }
}
