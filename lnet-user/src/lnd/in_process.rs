//! The in-process LND: messages between nodes of one process, over bounded queues in memory.
//!
//! An NI whose interface is named `in-process:` and a name is on the fabric of that name; nodes of one
//! process meet there. It needs neither interface nor privileges. A payload is copied into a buffer that
//! travels with its message; buffers are used again by the shard that has received them.
//!
//! Invariants: a message is delivered at most once; its sender is the NID that the sending node has
//! registered. One for a queue that is full waits for room, within a limit, and no message to another peer
//! waits behind it: credits bound how many wait for each peer. A NID that no node has ends it. A shard
//! receives nothing before its node is opened.
//!
//! The LND is for tests of the public API that need two nodes but no wire, and shows what an LND needs at
//! least.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use lnet_core::handle::{ShardId, ShardSet};
use lnet_core::limits::Limits;
use lnet_core::lnd::{
    Cause, Full, Lent, Lnd, NiId, Progress, RxId, Span, Status, Transmit, TxId, Uplink, Verdict,
};
use lnet_core::time::Instant;
use lnet_io::driver::{Counted, Driver, Part, Port};
use lnet_io::kind::{Host, LndKind, NiRequest, OpenNi};
use lnet_io::locks::Mutex;
use lnet_io::mailbox::{Mailbox, Sender, Unsent};
use lnet_io::memory::Memory;
use lnet_io::netlink::Neighbours;
use lnet_io::reactor::Waker;
use lnet_model::lnd::{IN_PROCESS, LndRow, fabric_of};
use lnet_wire::steer::{self, PORTALS, PolicyWord, SteerKey};
use lnet_wire::{Header, Nid};
use thiserror::Error;

/// Messages that wait for one shard at most.
const QUEUE_MAX: usize = 256;
/// Payload buffers that a shard keeps to use again.
const SPARE_MAX: usize = 64;

/// A message on its way.
struct InTransit {
    from: Nid,
    to: Nid,
    header: Header,
    payload: Vec<u8>,
}

/// A node's NI on a fabric.
#[derive(Clone)]
struct Member {
    /// Inboxes by shard: what is for a shard arrives in its own.
    inboxes: Vec<Sender<InTransit>>,
    policies: [PolicyWord; PORTALS],
}

/// Nodes that reach each other.
#[derive(Default)]
struct Fabric {
    members: ArcSwap<Vec<(Nid, Member)>>,
}

impl Fabric {
    /// The fabric of this name.
    fn named(name: &str) -> Arc<Self> {
        static FABRICS: Mutex<BTreeMap<String, Arc<Fabric>>> = Mutex::new(BTreeMap::new());
        let mut fabrics = FABRICS.lock().unwrap_or_else(PoisonError::into_inner);
        // Fabrics without members are forgotten.
        fabrics.retain(|other, fabric| other == name || Arc::strong_count(fabric) > 1);
        Arc::clone(fabrics.entry(name.to_owned()).or_default())
    }

    fn change(&self, change: impl Fn(&mut Vec<(Nid, Member)>)) {
        self.members.rcu(|members| {
            let mut members = Vec::clone(members);
            change(&mut members);
            members
        });
    }
}

/// A node's place on a fabric: it leaves with the last part of it.
struct Membership {
    fabric: Arc<Fabric>,
    nid: Nid,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.fabric.change(|members| members.retain(|(nid, _)| *nid != self.nid));
    }
}

/// One shard's part of an NI.
pub(crate) struct InProcessPort {
    ni: NiId,
    membership: Arc<Membership>,
}

/// The in-process LND of one shard.
pub(crate) struct InProcessLnd {
    shard: usize,
    opened: Arc<AtomicBool>,
    arrivals: Mailbox<InTransit>,
    inbox: Sender<InTransit>,
    ports: Vec<InProcessPort>,
    closed: Vec<InProcessPort>,
    first_name: u32,
    idle: Vec<u32>,
    /// Messages that the shard has delayed, by name.
    delayed: Box<[Option<(NiId, InTransit)>]>,
    /// Delayed messages that have been given a place.
    resumed: VecDeque<(RxId, Span)>,
    /// Messages for queues that were full, and when that is given up: in the order of submission.
    waiting: VecDeque<(Instant, Transmit)>,
    timeout: Duration,
    ended: VecDeque<(TxId, Status)>,
    spare: Vec<Vec<u8>>,
    sent_count: u64,
    /// Messages that have arrived for an NI that is closed.
    dropped_count: u64,
}

impl InProcessLnd {
    /// The LNDs of all shards of a node with these limits. `timeout`: how long a message may wait.
    pub(crate) fn for_shards(
        limits: &Limits,
        timeout: Duration,
        opened: &Arc<AtomicBool>,
        wakers: &[Waker],
    ) -> Vec<Self> {
        let lnd = |(shard, waker): (usize, &Waker)| {
            let (inbox, arrivals) = Mailbox::new(QUEUE_MAX, waker);
            let names = Self::names_max(limits);
            Self {
                shard,
                opened: Arc::clone(opened),
                arrivals,
                inbox,
                ports: Vec::new(),
                closed: Vec::new(),
                first_name: 0,
                idle: (0..names).rev().collect(),
                delayed: (0..names).map(|_| None).collect(),
                resumed: VecDeque::with_capacity(names as usize),
                waiting: VecDeque::with_capacity(limits.transmits() as usize),
                timeout,
                ended: VecDeque::with_capacity(limits.transmits() as usize),
                spare: Vec::with_capacity(SPARE_MAX),
                sent_count: 0,
                dropped_count: 0,
            }
        };
        wakers.iter().enumerate().map(lnd).collect()
    }

    fn deliver(
        &mut self,
        now: Instant,
        rx: RxId,
        message: InTransit,
        span: &Span,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) {
        if span.length_bytes != 0 {
            memory.fragments_mut(span).copy_from(&message.payload);
        }
        self.finish(rx, message);
        up.received(now, rx, Status::Ok);
    }

    /// A message is dealt with: its name and its buffer are free.
    fn finish(&mut self, rx: RxId, message: InTransit) {
        self.idle.push(rx.0 - self.first_name);
        if self.spare.len() < SPARE_MAX {
            self.spare.push(message.payload);
        }
    }

    /// A message that was delayed.
    fn take_delayed(&mut self, rx: RxId) -> InTransit {
        let delayed = self.delayed[(rx.0 - self.first_name) as usize].take();
        delayed.unwrap_or_else(|| unreachable!("{rx:?} was not delayed")).1
    }

    fn arrive(&mut self, now: Instant, message: InTransit, up: &mut impl Uplink, memory: &mut Memory) {
        let Some(ni) = self.ports.iter().find(|port| port.membership.nid == message.to).map(|port| port.ni)
        else {
            self.dropped_count += 1;
            return;
        };
        let Some(name) = self.idle.pop() else { unreachable!("the caller has seen a free name") };
        let rx = RxId(self.first_name + name);
        match up.header(now, ni, &message.from, rx, &message.header) {
            Verdict::Deliver(span) => self.deliver(now, rx, message, &span, up, memory),
            Verdict::Delay => self.delayed[name as usize] = Some((ni, message)),
            Verdict::Drop => self.finish(rx, message),
        }
    }

    /// Sends a message or ends it; false if the queue is full that it is for.
    fn send(&mut self, transmit: &Transmit, memory: &Memory) -> bool {
        let port = self.ports.iter().find(|port| port.ni == transmit.ni);
        let Some(Membership { fabric, nid }) = port.map(|port| &*port.membership) else {
            self.ended.push_back((transmit.tx, Status::NeverSent(Cause::Device)));
            return true;
        };
        let members = fabric.members.load();
        let Some(inbox) = self.inbox_of(&members, nid, &transmit.next_hop, &transmit.header) else {
            self.ended.push_back((transmit.tx, Status::NeverSent(Cause::Unreachable)));
            return true;
        };
        // Before the payload is copied; the queue itself has the last word.
        if inbox.room() == 0 {
            return false;
        }
        let mut payload = self.spare.pop().unwrap_or_default();
        payload.clear();
        if let Some(span) = &transmit.payload {
            memory.fragments(span).for_each(|piece| payload.extend_from_slice(piece));
        }
        let message = InTransit { from: *nid, to: transmit.next_hop, header: transmit.header, payload };
        let status = match inbox.send(message) {
            Ok(()) => {
                inbox.wake();
                self.sent_count += 1;
                Status::Ok
            }
            Err(Unsent::Full(_)) => return false,
            Err(Unsent::Gone(_)) => Status::NeverSent(Cause::Unreachable),
        };
        self.ended.push_back((transmit.tx, status));
        true
    }

    /// Sends what its queue has room for by now, and ends what has waited for too long. Messages to one peer
    /// stay in their order.
    fn send_waiting(&mut self, now: Instant, memory: &Memory) {
        let mut full = Vec::new();
        for _ in 0..self.waiting.len() {
            let Some((deadline, transmit)) = self.waiting.pop_front() else { break };
            if deadline <= now {
                self.ended.push_back((transmit.tx, Status::NeverSent(Cause::Timeout)));
            } else if full.contains(&transmit.next_hop) || !self.send(&transmit, memory) {
                full.push(transmit.next_hop);
                self.waiting.push_back((deadline, transmit));
            }
        }
    }

    /// Where a message is to go: the queue of a peer's shard.
    fn inbox_of(
        &self,
        members: &[(Nid, Member)],
        from: &Nid,
        to: &Nid,
        header: &Header,
    ) -> Option<Sender<InTransit>> {
        let (_, member) = members.iter().find(|(nid, _)| nid == to)?;
        let key = SteerKey::of(header, self.sent_count, steer::initiator_hash(from))?;
        let policy = member.policies[usize::from(key.portal)];
        member.inboxes.get(steer::shard_of(&key, policy, member.inboxes.len() as u32) as usize).cloned()
    }
}

impl Port for InProcessPort {
    fn ni(&self) -> NiId {
        self.ni
    }
}

impl InProcessPort {
    /// The parts of all shards of an NI, of which some receive what is for all; `None` if another node is
    /// there with this NID.
    fn join(
        name: &str,
        (ni, nid): (NiId, Nid),
        policies: &[PolicyWord; PORTALS],
        (inboxes, serving): (&[Sender<InTransit>], ShardSet),
    ) -> Option<Vec<Self>> {
        let fabric = Fabric::named(name);
        let stand_ins = (0..inboxes.len() as u8).map(|shard| serving.stand_in(ShardId(shard)));
        let stand_ins = stand_ins.map(|shard| inboxes[usize::from(shard.0)].clone()).collect();
        let member = Member { inboxes: stand_ins, policies: *policies };
        let joined = AtomicBool::new(false);
        fabric.change(|members| {
            let is_free = members.iter().all(|(other, _)| *other != nid);
            joined.store(is_free, Ordering::Relaxed);
            if is_free {
                members.push((nid, member.clone()));
            }
        });
        if !joined.into_inner() {
            return None;
        }
        let membership = Arc::new(Membership { fabric, nid });
        Some(inboxes.iter().map(|_| Self { ni, membership: Arc::clone(&membership) }).collect())
    }
}

/// The in-process LND of a node.
#[derive(Debug)]
pub(crate) struct InProcessKind {
    /// How long a message may wait.
    timeout: Duration,
    /// Where messages for the shards go, while there are NIs.
    inboxes: Vec<Sender<InTransit>>,
    open_count: usize,
}

impl InProcessKind {
    /// The LND of a node without NIs.
    pub(crate) const fn new(timeout: Duration) -> Self {
        Self { timeout, inboxes: Vec::new(), open_count: 0 }
    }
}

/// An NI as it is to be opened.
pub(crate) struct InProcessPlan {
    fabric: String,
    serving: ShardSet,
}

/// An NI that is open.
#[derive(Debug)]
pub(crate) struct InProcessNi;

impl OpenNi for InProcessNi {
    fn followed(&self) -> Option<(&Neighbours, &IpAddr)> {
        None
    }
}

/// Another node has the NID on this in-process fabric.
#[derive(Debug, Error)]
#[error("{nid} is on in-process:{fabric} already: NIDs of nodes that reach each other differ")]
pub struct NidInUse {
    /// The NID.
    pub nid: Nid,
    /// The fabric's name.
    pub fabric: String,
}

impl LndKind for InProcessKind {
    type Driver = InProcessLnd;
    type Plan = InProcessPlan;
    type Ni = InProcessNi;
    type Error = NidInUse;

    const ROW: LndRow = IN_PROCESS;

    fn plan(&self, request: &NiRequest<'_>) -> Result<InProcessPlan, NidInUse> {
        let fabric = fabric_of(request.interface).unwrap_or_default().to_owned();
        Ok(InProcessPlan { fabric, serving: request.serving })
    }

    fn open(
        &mut self,
        host: &Host,
        &NiRequest { ni, nid, .. }: &NiRequest<'_>,
        InProcessPlan { fabric, serving }: InProcessPlan,
    ) -> Result<(InProcessNi, Vec<Part<InProcessLnd>>), NidInUse> {
        let lnds = match self.open_count {
            0 => InProcessLnd::for_shards(&host.limits, self.timeout, &host.opened, &host.wakers),
            _ => Vec::new(),
        };
        let fresh: Vec<_> = lnds.iter().map(|lnd| lnd.inbox.clone()).collect();
        let inboxes = if fresh.is_empty() { self.inboxes.clone() } else { fresh };
        let ports = InProcessPort::join(&fabric, (ni, nid), &host.steering.policies, (&inboxes, serving));
        let ports = ports.ok_or(NidInUse { nid, fabric })?;
        self.inboxes = inboxes;
        self.open_count += 1;
        Ok((InProcessNi, Part::of_shards(lnds, ports)))
    }

    fn close(&mut self, _: &Host, _: InProcessNi, parts: Vec<Part<InProcessLnd>>) {
        drop(parts);
        self.open_count -= 1;
    }
}

impl Driver for InProcessLnd {
    type Port = InProcessPort;

    // Delayed messages, and one that arrives.
    fn names_max(limits: &Limits) -> u32 {
        limits.delayed + 1
    }

    fn set_first_name(&mut self, first: u32) {
        self.first_name = first;
    }

    fn add_port(&mut self, port: InProcessPort) {
        self.ports.push(port);
    }

    fn close_port(&mut self, now: Instant, ni: NiId, up: &mut impl Uplink, _: &Memory) {
        let Some(index) = self.ports.iter().position(|port| port.ni == ni) else { return };
        let port = self.ports.swap_remove(index);
        self.closed.push(port);
        self.waiting.retain(|(_, transmit)| {
            let stays = transmit.ni != ni;
            if !stays {
                up.sent(now, transmit.tx, Status::NeverSent(Cause::Device));
            }
            stays
        });
        for name in 0..self.delayed.len() as u32 {
            if self.delayed[name as usize].as_ref().is_some_and(|(other, _)| *other == ni) {
                let rx = RxId(self.first_name + name);
                self.resumed.retain(|(other, _)| *other != rx);
                let message = self.take_delayed(rx);
                self.finish(rx, message);
                up.received(now, rx, Status::Unknown(Cause::Device));
            }
        }
    }

    fn remove_port(&mut self, ni: NiId) -> InProcessPort {
        let index = self.closed.iter().position(|port| port.ni == ni).expect("the NI was closed");
        self.closed.swap_remove(index)
    }

    fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.closed.is_empty()
    }

    // What waits keeps its time, and ends in its order.
    fn set_timeout(&mut self, _: Instant, timeout: Duration) {
        self.timeout = timeout;
    }

    // The first shard tells the fabrics.
    fn set_policies(&mut self, policies: &[PolicyWord; PORTALS]) {
        for port in self.ports.iter().filter(|_| self.shard == 0) {
            let Membership { fabric, nid } = &*port.membership;
            fabric.change(|members| {
                for (_, member) in members.iter_mut().filter(|(other, _)| other == nid) {
                    member.policies = *policies;
                }
            });
        }
    }

    fn has_work(&mut self) -> bool {
        !self.ended.is_empty() || !self.resumed.is_empty() || self.has_arrivals() && !self.idle.is_empty()
    }

    // Queues that have room again cause no wake-up.
    fn awaits_completions(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn has_arrivals(&mut self) -> bool {
        !self.arrivals.is_empty() && self.opened.load(Ordering::Acquire)
    }

    fn count(&self, tell: &mut dyn FnMut(Counted, &'static str, u64)) -> std::io::Result<()> {
        // What has arrived for an NI that is closed.
        tell(Counted::Drops, "closed_ni", self.dropped_count);
        Ok(())
    }
}

impl Lnd for InProcessLnd {
    type Memory = Memory;

    fn submit(
        &mut self,
        now: Instant,
        Lent { transmit, .. }: Lent<'_>,
        memory: &Memory,
    ) -> Result<(), Full<TxId>> {
        let is_behind = self.waiting.iter().any(|(_, other)| other.next_hop == transmit.next_hop);
        if is_behind || !self.send(transmit, memory) {
            self.waiting.push_back((now + self.timeout, *transmit));
        }
        Ok(())
    }

    fn flush(&mut self, _: Instant, _: &Memory) {}

    fn drive(&mut self, now: Instant, budget: u32, up: &mut impl Uplink, memory: &mut Memory) -> Progress {
        let mut progress = Progress::default();
        self.send_waiting(now, memory);
        while let Some((tx, status)) = self.ended.pop_front() {
            up.sent(now, tx, status);
            progress.completed += 1;
        }
        while progress.received < budget {
            if let Some((rx, span)) = self.resumed.pop_front() {
                let message = self.take_delayed(rx);
                self.deliver(now, rx, message, &span, up, memory);
            } else if !self.idle.is_empty()
                && self.opened.load(Ordering::Acquire)
                && let Some(message) = self.arrivals.take()
            {
                self.arrive(now, message, up, memory);
            } else {
                break;
            }
            progress.received += 1;
        }
        progress
    }

    fn resume(&mut self, _: Instant, rx: RxId, verdict: Verdict, _: &mut impl Uplink) {
        match verdict {
            // The next turn has the buffers at hand.
            Verdict::Deliver(span) => self.resumed.push_back((rx, span)),
            Verdict::Drop => {
                let message = self.take_delayed(rx);
                self.finish(rx, message);
            }
            Verdict::Delay => unreachable!("{rx:?} is resumed to be delayed"),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.front().map(|(deadline, _)| *deadline)
    }
}
