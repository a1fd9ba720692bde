//! What the shards of a node say to each other: "route the header, lend the span".
//!
//! A message may arrive on another shard than that of its descriptor: its LND cannot steer, or its portal
//! is served by all shards and only a sibling has an entry. Then its header goes to the sibling, the span
//! comes back, and the shard with the payload puts it there:
//!
//! ```text
//! arriving shard                         sibling
//!   Verdict::Delay    -- Route -->       matches, consumes threshold and offset
//!   resumes its LND   <-- Lend --        (or Refuse; or the header waits there first)
//!   received          -- Returned -->    event, ACK or REPLY from its own credits
//! ```
//!
//! A header that belongs to a sibling by the portal's policy, or by its descriptor's cookie, goes there and
//! nowhere else. On a portal whose policy is `Rotor`, or `Initiator` (a header does not tell the initiator's
//! primary NID, by which its frames are steered), a shard without a match asks its siblings one after
//! the other, in ascending order from its own number, before it delays or drops the message (LNet
//! `lib-ptl.c: lnet_ptl_match_delay`, "stealing"). A sibling that refuses remembers who asked, and says so
//! when it has a new entry on that portal; the message is then asked about again. So none misses an entry,
//! wherever it is posted.
//!
//! Invariants: each `Route` is answered once; each `Lend` is followed by one `Returned`. A shard has at most
//! a fixed number of messages with each sibling, which has room for just so many, so nothing is ever refused
//! for want of room in between; a peer has as many of them as it leaves to others, its further messages wait;
//! what has to be said is in the records of the messages, so no queue grows here, however rarely
//! [`Shard::poll_mesh_to`] is called. A descriptor whose spans may overlap (`MANAGE_REMOTE`, and what REPLYs
//! go to) lends one span at a time, and only while nothing else is under way on it. A REPLY that arrives on
//! its own shard is written beside nothing that reads its bytes, and beside no other one where its LND may
//! lend them to the kernel; LNDs that copy all themselves write REPLYs beside each other, as PUTs at chosen
//! offsets. A descriptor with a lent span lives until that is returned. A header that goes by a name which
//! the sibling does not know yet waits there until it has the same snapshot.
//!
//! What an arriving shard counts: messages received, failed, dropped. What the lending one does: events,
//! responses, [`Counters::lent`](crate::stats::Counters::lent).
//!
//! A REPLY waits for PUTs out of its bytes, and for REPLYs before it that are to be alone.
//! `Topology::with_steering` switches this exchange on; without it a shard takes everything that its LNDs
//! bring.

use lnet_wire::steer::{PORTALS, PolicyWord, SteerKey, shard_of};
use lnet_wire::{Body, Header, Nid};

use super::Shard;
use super::delayed::{Ask, DelayState, DelayedMessage, PayloadHolder, Resumption};
use super::target::{Decision, Inbound, Scope, Wait};
use crate::collections::NONE;
use crate::handle::ShardId;
use crate::lnd::{Cause, NiId, Span, Status};
use crate::stats::DropReason;
use crate::time::Instant;

/// A question to a sibling, as the shard that asks names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AskId(u32);

/// A lent span, as the shard that lends it names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(u32);

/// What a shard says to a sibling. A driver carries each to its shard once, those of one shard to another in
/// their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MeshMessage {
    /// A message has arrived by this NI: who takes it? Answered by `Lend` or `Refuse`, perhaps late.
    Route {
        /// Names the question.
        ask: AskId,
        /// The NI that it arrived by; responses leave by it.
        ni: NiId,
        /// The peer NI that it came from, as the LND has verified it.
        from: Nid,
        /// Its header.
        header: Header,
        /// Whether it belongs to no shard in particular.
        steal: bool,
    },
    /// The message that was asked about is not to be had any more. `Route` is answered all the same.
    Withdraw {
        /// The question.
        ask: AskId,
    },
    /// The payload goes into this span, which no other message touches until it is returned.
    Lend {
        /// The question.
        ask: AskId,
        /// Names the lease.
        lease: LeaseId,
        /// The span; its descriptor is the lender's.
        span: Span,
        /// When the request was sent that the message answers, if its answer is awaited.
        asked_at: Option<Instant>,
    },
    /// The message is not taken.
    Refuse {
        /// The question.
        ask: AskId,
        /// Why.
        reason: DropReason,
    },
    /// The payload is in the span, or will never be.
    Returned {
        /// The lease.
        lease: LeaseId,
        /// The span, for the driver to hand it back with the message.
        span: Span,
        /// How it went.
        status: Status,
    },
    /// A portal has an entry that it had not when a message of the shard that hears this was refused.
    Attached {
        /// The portal.
        portal: u8,
    },
}

/// What a shard knows of its siblings, but for the messages.
pub(super) struct Mesh {
    /// Siblings that something may have to be said to, a bit each.
    talks: u64,
    /// Siblings whose messages were refused since the last entry, by portal.
    interested: [u64; PORTALS],
    /// Siblings that are to be told of an entry, by portal; and the portals with such siblings.
    news: [u64; PORTALS],
    news_portals: u64,
    /// How often a sibling told of an entry, by portal.
    attached: [u32; PORTALS],
}

impl Mesh {
    pub(super) const fn new() -> Self {
        Self {
            talks: 0,
            interested: [0; PORTALS],
            news: [0; PORTALS],
            news_portals: 0,
            attached: [0; PORTALS],
        }
    }

    /// The portal that a sibling is to be told of next.
    fn next_news(&mut self, to: ShardId) -> Option<u8> {
        let mut portals = self.news_portals;
        while portals != 0 {
            let portal = portals.trailing_zeros() as usize;
            portals &= portals - 1;
            if self.news[portal] >> to.0 & 1 != 0 {
                self.news[portal] &= !(1 << to.0);
                if self.news[portal] == 0 {
                    self.news_portals &= !(1 << portal);
                }
                return Some(portal as u8);
            }
        }
        None
    }
}

impl Shard {
    /// Whether there may be something to say to a sibling. After [`Shard::poll_mesh_to`] has returned `None`
    /// of all there is nothing.
    #[inline]
    #[must_use]
    pub const fn has_mesh(&self) -> bool {
        self.mesh.talks != 0
    }

    /// What this shard has to say next to one sibling.
    pub fn poll_mesh_to(&mut self, to: ShardId) -> Option<MeshMessage> {
        if self.mesh.talks.checked_shr(to.0.into()).unwrap_or(0) & 1 == 0 {
            return None;
        }
        let sibling = self.delayed.sibling(to);
        let told = sibling.outbox.first();
        if told != NONE {
            return Some(self.say(told, to));
        }
        if let Some(asked) = self.delayed.next_ask(to) {
            return Some(self.say(asked, to));
        }
        let news = self.mesh.next_news(to);
        if news.is_none() {
            self.mesh.talks &= !(1 << to.0);
        }
        news.map(|portal| MeshMessage::Attached { portal })
    }

    /// A sibling has said something.
    ///
    /// # Panics
    /// If the driver carries a message to the wrong shard, or twice.
    pub fn handle_mesh(&mut self, now: Instant, from: ShardId, message: MeshMessage) {
        let is_sibling = from != self.id && usize::from(from.0) < self.delayed.siblings.len();
        assert!(is_sibling, "{from:?} is no sibling of {:?}", self.id);
        match message {
            MeshMessage::Route { ask, ni, from: sender, header, steal } => {
                let origin = PayloadHolder::Sibling { shard: from, ask, steal };
                let slot = self.delayed.insert(origin, (ni, &sender), &header, NONE, DelayState::Lent);
                if !self.await_name_here(now, slot) {
                    let decision = self.decide_delayed(slot, Scope::Sibling { steal });
                    self.settle_sibling_message(slot, from, decision);
                }
            }
            MeshMessage::Withdraw { ask } => self.withdrawn(from, ask),
            MeshMessage::Lend { ask: AskId(slot), lease, span, asked_at } => {
                self.lent(slot, from, lease, (span, asked_at));
            }
            MeshMessage::Refuse { ask: AskId(slot), reason } => self.refused(slot, from, reason),
            MeshMessage::Returned { lease: LeaseId(slot), status, .. } => self.returned(now, slot, status),
            MeshMessage::Attached { portal } => {
                let attached = &mut self.mesh.attached[usize::from(portal)];
                *attached = attached.wrapping_add(1);
                let ask = Ask { shard: from, steal: Some(0), news: *attached };
                self.ask_again(portal, ask);
            }
        }
        self.wake();
    }

    /// Something may have to be said to a sibling.
    pub(super) const fn talks_to(&mut self, sibling: ShardId) {
        self.mesh.talks |= 1 << sibling.0;
    }

    /// Where a header belongs, if not here.
    #[inline]
    pub(super) fn owner(&self, header: &Header) -> Option<Ask> {
        let steering = self.topology.steering()?;
        let policy = match header.body {
            Body::Put { portal, .. } | Body::Get { portal, .. } => {
                let policy = *steering.policies.get(portal as usize)?;
                if self.topology.is_shared(portal) {
                    return None;
                }
                policy
            }
            // The shard that has asked knows who may answer.
            Body::Ack { .. } | Body::Reply { .. } => PolicyWord::default(),
            Body::Hello { .. } => return None,
        };
        // The message's id and its initiator decide on open portals alone.
        let key = SteerKey::of(header, 0, 0)?;
        let shard = ShardId(shard_of(&key, policy, steering.shard_count.into()) as u8);
        (shard != self.id).then_some(Ask { shard, steal: None, news: 0 })
    }

    /// The sibling that is asked first about a message without a match here, if any is.
    pub(super) fn first_ask(&self, header: &Header) -> Option<Ask> {
        let portal = portal_of(header)?;
        let siblings = self.delayed.siblings.len() as u8 - 1;
        let news = self.mesh.attached[usize::from(portal)];
        (siblings > 0 && self.topology.is_open(portal.into())).then(|| Ask {
            shard: self.after(self.id),
            steal: Some(siblings - 1),
            news,
        })
    }

    /// Notes that a portal has a new entry, for the siblings that have missed one.
    pub(super) const fn tell_of_entry(&mut self, portal: u8) {
        let interested = core::mem::replace(&mut self.mesh.interested[portal as usize], 0);
        if interested != 0 {
            self.mesh.news[portal as usize] |= interested;
            self.mesh.news_portals |= 1 << portal;
            self.mesh.talks |= interested;
        }
    }

    /// Does with a sibling's message what was decided.
    pub(super) fn settle_sibling_message(&mut self, slot: u32, from: ShardId, decision: Decision) {
        self.talks_to(from);
        match decision {
            Decision::Take(inbound) => {
                let exclusive = self.is_exclusive(&self.delayed.records[slot].header, &inbound);
                if exclusive {
                    self.mds[inbound.md()].withheld.fill_alone();
                }
                let record = &mut self.delayed.records[slot];
                // Nothing is discarded there: who has the message counts what it takes by this span.
                record.take(inbound, inbound.landing(&record.header));
                self.delayed.set_state(slot, DelayState::Lending);
            }
            Decision::Drop(reason) => {
                let DelayedMessage { header, origin, .. } = &self.delayed.records[slot];
                if let (DropReason::NoMatch, PayloadHolder::Sibling { steal: true, .. }, Some(portal)) =
                    (reason, origin, portal_of(header))
                {
                    self.mesh.interested[usize::from(portal)] |= 1 << from.0;
                }
                self.delayed.set_state(slot, DelayState::Refusing(reason));
            }
            Decision::Wait(wait) => {
                let DelayedMessage { origin, ni, from: sender, .. } = self.delayed.records[slot];
                let state = match self.refer_to_sender(origin, (ni, &sender), wait) {
                    Ok(peer) => {
                        self.delayed.records[slot].peer = peer;
                        self.wait_for(wait)
                    }
                    Err(reason) => DelayState::Refusing(reason),
                };
                self.delayed.set_state(slot, state);
            }
        }
    }

    /// Takes a record's message for a sibling.
    fn say(&mut self, slot: u32, to: ShardId) -> MeshMessage {
        let record = &self.delayed.records[slot];
        match (record.state, record.origin) {
            (DelayState::Asking(ask), _) => {
                let DelayedMessage { ni, from, header, peer, .. } = *record;
                let steal = ask.steal.is_some();
                self.delayed.set_state(slot, DelayState::Asked(ask));
                self.delayed.sibling(to).asking.take(peer);
                MeshMessage::Route { ask: AskId(slot), ni, from, header, steal }
            }
            (DelayState::Withdrawing(ask), _) => {
                self.delayed.set_state(slot, DelayState::Asked(ask));
                MeshMessage::Withdraw { ask: AskId(slot) }
            }
            (DelayState::Returning { lease, status, .. }, _) => {
                let DelayedMessage { span: Some(span), peer, .. } = *record else {
                    unreachable!("nothing was lent")
                };
                self.delayed.sibling(to).asking.give_back(peer);
                self.forget_delayed(slot);
                MeshMessage::Returned { lease, span, status }
            }
            (DelayState::Lending, PayloadHolder::Sibling { ask, .. }) => {
                let Some(span) = record.span else { unreachable!("nothing is lent") };
                let asked_at =
                    record.inbound.as_ref().and_then(|inbound| self.asked_at(&record.header, inbound));
                self.delayed.set_state(slot, DelayState::Lent);
                MeshMessage::Lend { ask, lease: LeaseId(slot), span, asked_at }
            }
            (DelayState::Refusing(reason), PayloadHolder::Sibling { ask, .. }) => {
                self.forget_delayed(slot);
                MeshMessage::Refuse { ask, reason }
            }
            (state, origin) => unreachable!("{origin:?} is {state:?} and says nothing"),
        }
    }

    /// A sibling lends a span for a message.
    fn lent(
        &mut self,
        slot: u32,
        lender: ShardId,
        lease: LeaseId,
        (span, asked_at): (Span, Option<Instant>),
    ) {
        self.asked(slot, lender);
        let record = &mut self.delayed.records[slot];
        (record.span, record.asked_at) = (Some(span), asked_at);
        if record.origin == PayloadHolder::Gone {
            let status = Status::Unknown(Cause::Cancelled);
            self.delayed.set_state(slot, DelayState::Returning { lender, lease, status });
            self.talks_to(lender);
        } else {
            self.delayed.set_state(slot, DelayState::Resumed(Resumption::Borrow { lender, lease }));
        }
    }

    /// A sibling does not take a message.
    fn refused(&mut self, slot: u32, by: ShardId, reason: DropReason) {
        let ask = self.asked(slot, by);
        let peer = self.delayed.records[slot].peer;
        self.delayed.sibling(by).asking.give_back(peer);
        self.talks_to(by);
        let record = &self.delayed.records[slot];
        if record.origin == PayloadHolder::Gone {
            self.forget_delayed(slot);
            return;
        }
        match ask.steal {
            Some(0) if reason == DropReason::NoMatch => self.all_refused(slot, ask),
            Some(left) if reason == DropReason::NoMatch => {
                let ask = Ask { shard: self.after(by), steal: Some(left - 1), news: ask.news };
                self.delayed.set_state(slot, DelayState::Asking(ask));
                self.talks_to(ask.shard);
            }
            _ => self.settle_delayed(slot, Decision::Drop(reason)),
        }
    }

    /// All siblings have refused a message. What has changed here meanwhile is looked at, and what has
    /// changed there is asked about again.
    fn all_refused(&mut self, slot: u32, ask: Ask) {
        let mut decision = self.decide_delayed(slot, Scope::Asked);
        let unmatched = matches!(decision, Decision::Wait(Wait::Entry) | Decision::Drop(DropReason::NoMatch));
        let again = self.first_ask(&self.delayed.records[slot].header);
        if let (true, Some(again)) = (unmatched, again)
            && again.news != ask.news
        {
            decision = Decision::Wait(Wait::Sibling(again));
        }
        self.settle_delayed(slot, decision);
    }

    /// The question that a sibling answers.
    fn asked(&self, slot: u32, sibling: ShardId) -> Ask {
        match self.delayed.records.get(slot).map(|record| record.state) {
            Some(DelayState::Asked(ask) | DelayState::Withdrawing(ask)) if ask.shard == sibling => ask,
            state => panic!("{sibling:?} answers a question that is {state:?}"),
        }
    }

    /// A sibling has lost the message that it asked about: it is refused if it still waits, and else the
    /// answer is on its way.
    fn withdrawn(&mut self, from: ShardId, withdrawn: AskId) {
        for list in 0..=self.delayed.unmatched.len() {
            let mut next = self.delayed.unmatched.get(list).unwrap_or(&self.delayed.unnamed).first();
            while let Some(slot) = self.delayed.step(&mut next) {
                let is_it = matches!(self.delayed.records[slot].origin,
                    PayloadHolder::Sibling { shard, ask, .. } if shard == from && ask == withdrawn);
                if is_it {
                    self.delayed.set_state(slot, DelayState::Refusing(DropReason::NotLazy));
                    return self.talks_to(from);
                }
            }
        }
    }

    /// A sibling returns a span.
    fn returned(&mut self, now: Instant, slot: u32, status: Status) {
        let record = self.delayed.records.get(slot).map(|record| record.state);
        assert_eq!(record, Some(DelayState::Lent), "a span is returned that is not lent");
        let DelayedMessage { header, inbound: Some(inbound), .. } = self.delayed.records[slot] else {
            unreachable!("a lent span has no operation")
        };
        self.forget_delayed(slot);
        self.counters.lent += u64::from(status == Status::Ok);
        self.end_arrival(now, &header, &inbound, status);
    }

    /// Whether a sibling that has this operation's span writes where others might.
    fn is_exclusive(&self, header: &Header, inbound: &Inbound) -> bool {
        header.message_type().carries_payload() && self.mds[inbound.md()].shares_spans()
    }

    /// The shard after this one.
    const fn after(&self, shard: ShardId) -> ShardId {
        ShardId((shard.0 + 1) % self.delayed.siblings.len() as u8)
    }
}

/// The portal of a PUT or GET.
const fn portal_of(header: &Header) -> Option<u8> {
    match header.body {
        Body::Put { portal, .. } | Body::Get { portal, .. } if (portal as usize) < PORTALS => {
            Some(portal as u8)
        }
        _ => None,
    }
}
