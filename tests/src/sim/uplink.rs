//! A shard as its transfer machine sees it, watched: what it is given and told goes to the ledger first.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;

use lnet_core::Shard;
use lnet_core::lnd::{Cause, NiId, Path, PrefetchHints, RxId, Span, Status, TxId, Uplink, Verdict};
use lnet_core::stats::DropReason;
use lnet_core::time::Instant;
use lnet_wire::steer::{self, PORTALS, Policy, PolicyWord, SteerKey};
use lnet_wire::{Body, Header, Nid};

use super::NetKind;
use super::lane::Surroundings;
use super::ledger::{Hop, Leg, STRANGE};
use super::memory::{Region, differs};
use super::plan::happens;
use super::report::Fault;

/// Messages for which a shard has found no entry.
pub(super) fn unmatched(shard: &Shard) -> u64 {
    shard.counters().drops(DropReason::NoMatch).messages
}

/// A message that arrives.
pub(super) struct Receiving {
    pub(super) message: (u32, Leg),
    pub(super) header: Header,
    pub(super) span: Option<Span>,
}

/// A message that is being sent, where to, and since when.
pub(super) type Sending = ((u32, Leg), Hop, u64);

/// A message whose verdict is delayed.
pub(super) struct Delayed {
    pub(super) rx: RxId,
    pub(super) ni: NiId,
    pub(super) from: Nid,
    pub(super) header: Header,
    pub(super) message: (u32, Leg),
    pub(super) until: u64,
}

/// What a driver knows of the messages of its shard.
pub(super) struct Desk {
    pub(super) receiving: Vec<Option<Receiving>>,
    pub(super) sending: Vec<Option<Sending>>,
    pub(super) delayed: Vec<Delayed>,
    /// Spans of siblings that were written, and what with: a driver with a bug writes them once more.
    pub(super) leased: VecDeque<(u64, Span, Vec<u8>)>,
    /// Whether verdicts are still delayed.
    pub(super) delays: bool,
    /// The NIs of the rails, as the shard knows them.
    pub(super) slots: [Option<NiId>; 2],
    /// The node and its life.
    pub(super) life: (usize, u32),
    /// Transfer machines that the shard has had before.
    pub(super) machines: u32,
    pub(super) policies: [PolicyWord; PORTALS],
    pub(super) shards: u32,
    pub(super) initiator_hashes: Rc<Vec<(Nid, u32)>>,
}

/// The shard as its transfer machine sees it, watched.
pub(super) struct Up<'a, 'b> {
    pub(super) shard: &'a mut Shard,
    pub(super) desk: &'a mut Desk,
    pub(super) around: &'a mut Surroundings<'b>,
    pub(super) name: &'a str,
}

impl Up<'_, '_> {
    /// The node, if what arrives here is to go on.
    fn hop(&self) -> Hop {
        self.around.plan.router(self.desk.life.0)
    }

    /// What the shard says to a message.
    pub(super) fn decide(
        &mut self,
        now: Instant,
        (ni, from): (NiId, &Nid),
        rx: RxId,
        header: &Header,
        message: (u32, Leg),
    ) -> Verdict {
        let Some(slot) = self.desk.slots[usize::from(ni.0)] else {
            // The NI went while its driver had the message; no shard has heard of that.
            self.conclude(rx, header, message, Verdict::Drop);
            return Verdict::Drop;
        };
        let before = unmatched(self.shard);
        let verdict = self.shard.header(now, slot, from, rx, header);
        if unmatched(self.shard) != before {
            self.around.ledger.expect_no_entry(message, self.desk.life);
        }
        self.conclude(rx, header, message, verdict);
        verdict
    }

    /// Notes what was said to a message.
    pub(super) fn conclude(&mut self, rx: RxId, header: &Header, message: (u32, Leg), verdict: Verdict) {
        let name = self.name;
        self.around.trace.say(|| format!("{name} {message:?} {rx:?}: {verdict:?} {header:?}"));
        let is_refused = message != (STRANGE, Leg::Response) || !matches!(verdict, Verdict::Deliver(_));
        self.around.ledger.expect(is_refused, "who was not asked does not answer", || {
            format!("{name} takes {header:?}: {verdict:?}")
        });
        let span = match verdict {
            Verdict::Drop => {
                self.desk.receiving[rx.0 as usize] = None;
                let hop = self.hop();
                let is_fine = hop.is_none() || !self.around.plan.gentle;
                self.around.ledger.expect(is_fine, "what can arrive does arrive", || {
                    format!("{name} drops {message:?} {header:?}")
                });
                return self.around.ledger.ended(message, hop, true);
            }
            Verdict::Delay => None,
            Verdict::Deliver(span) => Some(span),
        };
        if span.is_some_and(|span| span.buffer.md().is_some()) {
            self.around.ledger.taken(message, self.desk.life);
        }
        if let (Some(span), Body::Get { .. }) = (span, header.body)
            && message.0 != STRANGE
            && let Some(Region::Source(seed)) = span.buffer.md().and_then(|md| self.around.memory.get(md))
        {
            self.around.ledger.operations[message.0 as usize].source = Some((*seed, span.offset_bytes));
        }
        self.desk.receiving[rx.0 as usize] = Some(Receiving { message, header: *header, span });
    }

    fn check_payload(&mut self, receiving: &Receiving) {
        let Receiving { message, header, span: Some(span) } = receiving else { return };
        if span.length_bytes == 0 || message.0 == STRANGE {
            return;
        }
        let operation = &self.around.ledger.operations[message.0 as usize];
        if operation.is_of_node {
            return;
        }
        let sent = (operation.seed, operation.offset);
        let pattern = if message.1 == Leg::Request { Some(sent) } else { operation.source };
        let Some((seed, offset)) = pattern else { return };
        if matches!(
            span.buffer.md().and_then(|md| self.around.memory.get(md)),
            Some(Region::Sink { overlaps: true, .. })
        ) {
            return;
        }
        let found = match self.around.memory.bytes(span) {
            None => Some("descriptor has ended".to_owned()),
            Some(bytes) => {
                differs(seed, offset, bytes).map(|at| format!("differs at byte {at} of {}", bytes.len()))
            }
        };
        if let Some(found) = found {
            self.around
                .ledger
                .fail("payload arrives as it was sent", || format!("{message:?} {header:?}: {found}"));
        }
    }
}

impl PrefetchHints for Up<'_, '_> {}

impl Uplink for Up<'_, '_> {
    fn header(&mut self, now: Instant, ni: NiId, from: &Nid, rx: RxId, header: &Header) -> Verdict {
        let Some(message) = self.around.ledger.identify(header) else {
            self.around.ledger.fail("what arrives was sent", || format!("{header:?}"));
            return Verdict::Drop;
        };
        let ((node, life), hop) = (self.desk.life, self.hop());
        self.around.ledger.seen(message, hop, (node, life, self.desk.machines));
        // A connection brings the messages of all shards.
        let is_steered = self.around.plan.net == NetKind::Xdp;
        let owner = self.desk.owner(from, header).filter(|_| is_steered);
        let own = owner.is_none_or(|owner| owner == u32::from(self.shard.id().0));
        let name = self.name;
        self.around.ledger.expect(own, "a message reaches the shard that it is for", || {
            format!("{name} is given {message:?} {header:?}")
        });
        let is_put = matches!(header.body, Body::Put { .. });
        if is_put && self.desk.delays && happens(self.around.random, self.around.plan.delays) {
            let until = now.0 + self.around.random.bits() % self.around.plan.delay_ns;
            self.around.counts.add(Fault::Delayed);
            self.around.trace.say(|| format!("{name} {message:?} {rx:?}: delayed until {until}"));
            self.desk.delayed.push(Delayed { rx, ni, from: *from, header: *header, message, until });
            return Verdict::Delay;
        }
        self.decide(now, (ni, from), rx, header, message)
    }

    fn is_local(&self, nid: &Nid) -> bool {
        self.shard.is_local(nid)
    }

    fn arrived(&mut self, now: Instant, rx: RxId, bytes: u32) {
        self.shard.arrived(now, rx, bytes);
    }

    fn awaits_name(&mut self, header: &Header, is_new: bool) -> bool {
        self.around.plan.has_lies() && self.shard.awaits_name(header, is_new)
    }

    fn came_from(&mut self, peer: &Nid, address: IpAddr) -> bool {
        // Without hostile nodes all speak from their own addresses.
        self.around.plan.hostile.is_empty() || self.shard.came_from(peer, address)
    }

    fn lost(&mut self, path: &Path, cause: Cause) {
        self.shard.lost(path, cause);
    }

    fn received(&mut self, now: Instant, rx: RxId, status: Status) {
        let (name, hop) = (self.name, self.hop());
        self.around.trace.say(|| format!("{name} received {rx:?} {status:?}"));
        if let Some(at) = self.desk.delayed.iter().position(|delayed| delayed.rx == rx) {
            // The shard has not heard of it.
            let delayed = self.desk.delayed.swap_remove(at);
            return self.around.ledger.ended(delayed.message, hop, false);
        }
        let Some(receiving) = self.desk.receiving[rx.0 as usize].take() else {
            return self
                .around
                .ledger
                .fail("a message ends once at its receiver", || format!("{name} has no {rx:?}"));
        };
        if status == Status::Ok {
            self.check_payload(&receiving);
        }
        self.around.ledger.ended(receiving.message, hop, status == Status::Ok);
        self.shard.received(now, rx, status);
    }

    fn sent(&mut self, now: Instant, tx: TxId, status: Status) {
        let Some((message, hop, since)) = self.desk.sending[tx.0 as usize].take() else {
            return self
                .around
                .ledger
                .fail("a message ends once at its sender", || format!("{tx:?} is not being sent"));
        };
        let name = self.name;
        self.around.trace.say(|| format!("{name} sent {message:?} {status:?}"));
        self.around.ledger.sent(message, hop, status);
        match status {
            Status::Ok => {}
            Status::NeverSent(_) => self.around.counts.never_sent += 1,
            Status::Unknown(_) => self.around.counts.unknown += 1,
        }
        let plan = self.around.plan;
        if message.0 != STRANGE && plan.gentle && plan.lazy == 0 && plan.delays == 0 && plan.stalls == 0 {
            let longest = &mut self.around.counts.longest_ns;
            *longest = (*longest).max(now.0 - since);
        }
        self.shard.sent(now, tx, status);
    }
}

impl Desk {
    pub(super) fn new(
        life: (usize, u32),
        policies: [PolicyWord; PORTALS],
        shards: u8,
        initiator_hashes: Rc<Vec<(Nid, u32)>>,
        incoming: u32,
        transmits: u32,
    ) -> Self {
        Self {
            receiving: (0..incoming).map(|_| None).collect(),
            sending: vec![None; transmits as usize],
            delayed: Vec::new(),
            leased: VecDeque::new(),
            delays: true,
            slots: [None; 2],
            life,
            machines: 0,
            policies,
            shards: u32::from(shards),
            initiator_hashes,
        }
    }

    /// Looks up the NIs of the rails with these NIDs.
    pub(super) fn set_slots(&mut self, shard: &Shard, rails: &[Nid]) {
        for (slot, nid) in self.slots.iter_mut().zip(rails) {
            *slot = shard.topology().local_nis().find(|(_, ni)| ni.nid == *nid).map(|(ni, _)| ni);
        }
    }

    /// The shard that a header is for, unless its message's id decides that. Frames of a router name the
    /// router as initiator.
    fn owner(&self, from: &Nid, header: &Header) -> Option<u32> {
        let (_, hash) = self.initiator_hashes.iter().find(|(nid, _)| nid == from)?;
        let key = SteerKey::of(header, 0, *hash)?;
        let policy = self.policies[usize::from(key.portal)];
        let by_id = policy.unpack() == Some(Policy::Rotor)
            && matches!(header.body, Body::Put { .. } | Body::Get { .. });
        (!by_id).then(|| steer::shard_of(&key, policy, self.shards))
    }

    pub(super) fn shard_of(&self, key: &SteerKey) -> u32 {
        steer::shard_of(key, self.policies[usize::from(key.portal)], self.shards)
    }
}
