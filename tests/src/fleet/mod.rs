//! A fleet: many nodes of the real core (control state machine and shard) that discover each other and talk over sampled
//! pairs, while rails fail and return. The network, the clock and the drivers are made up; there is no LND, so what a
//! transport does about loss is not in it (the [simulator](crate::sim) has that).
//!
//! Invariants: a run follows from its seed; what checkers find ends in the report.

mod checks;
mod file;
mod node;
mod report;
mod stage;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use lnet_core::event::{Event as LnetEvent, EventKind};
use lnet_core::lnd::{Cause, NiId, RxId, Status, TxId, Uplink as _, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::node::{Action, DriverError, PingId, Report, peer_state};
use lnet_core::shard::{HealthNote, PutRequest};
use lnet_core::time::Instant;
use lnet_wire::{Header, Nid, ProcessId};

pub use file::{Fleet, Group, RailFault, Workload};
pub use node::nid;
pub use report::{FleetReport, Sample};
pub use stage::Stage;

use crate::bpf::random::Random;
use node::{MATCH_BITS, Member, PORTAL, owner};

const SECOND_NS: u64 = 1_000_000_000;
/// After which time a sender learns that nothing comes through.
const SILENCE_NS: u64 = SECOND_NS / 2;
/// How long messages under way may take at the end of a run.
const REST_NS: u64 = 60 * SECOND_NS;
/// How long discovery may go on after a change: a ping or push that is lost is given up, and the next one is sent.
const QUIET_NS: u64 = 30 * SECOND_NS;
const SAMPLES: u64 = 200;
/// Violations that are kept.
const VIOLATIONS_MAX: usize = 20;

enum Event {
    Timer(u32),
    /// A node puts something.
    Put(u32),
    Arrive {
        from: u32,
        ni: Nid,
        to: Nid,
        tx: TxId,
        header: Box<Header>,
    },
    Sent {
        node: u32,
        tx: TxId,
        status: Status,
    },
    Ping {
        from: u32,
        ping: PingId,
        nid: Nid,
        length_bytes: usize,
    },
    Push {
        from: u32,
        ping: PingId,
        source: Nid,
        nid: Nid,
        bytes: Arc<[u8]>,
    },
    /// What comes of a ping or push to a NID: the answer, or nothing.
    Answer {
        to: u32,
        ping: PingId,
        nid: Nid,
        bytes: Option<Vec<u8>>,
    },
    Fault {
        index: usize,
        begins: bool,
    },
    Sample,
}

struct World<'a> {
    fleet: &'a Fleet,
    members: Vec<Member>,
    /// Rails of each node that carry nothing, a bit each.
    cut: Vec<u16>,
    now: u64,
    end: u64,
    order: u64,
    events: BTreeMap<(u64, u64), Event>,
    random: Random,
    report: FleetReport,
    /// Puts that are under way.
    under_way: HashMap<u64, Put>,
    /// When something changed last that discovery is about: a rail, or two nodes that talk for the first time.
    changed_at: u64,
    /// Pairs of nodes that have talked.
    talked: HashSet<(u32, u32)>,
    arrived: HashSet<u64>,
}

/// A Put that is under way.
struct Put {
    is_acked: bool,
    /// To which node.
    to: u32,
    /// Rails by which it may go, a bit each: its initiator knows them, and they have carried everything since it began.
    good: u16,
}

/// Runs a fleet; `progress` hears of each sample.
#[must_use]
pub fn run(fleet: &Fleet, seed: u64, progress: impl FnMut(&Sample)) -> FleetReport {
    let mut world = World::new(fleet, seed);
    world.run(progress);
    world.report
}

impl<'a> World<'a> {
    fn new(fleet: &'a Fleet, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let all: Vec<u8> = (0..fleet.rails).collect();
        let groups = fleet.groups.iter().flat_map(|group| std::iter::repeat_n(group, group.nodes as usize));
        let members: Vec<_> = (0..)
            .zip(groups)
            .map(|(number, group)| {
                let rails = if group.rails.is_empty() { &all } else { &group.rails };
                Member::new(number, rails, group.discovery, true, random.bits())
            })
            .collect();
        let nodes = members.len() as u32;
        let report = FleetReport { nodes, ..FleetReport::default() };
        let end = (fleet.workload.seconds * SECOND_NS as f64) as u64;
        let cut = vec![0; members.len()];
        let (events, under_way, arrived) = (BTreeMap::new(), HashMap::new(), HashSet::new());
        let (changed_at, talked) = (0, HashSet::new());
        let mut world = Self {
            fleet,
            members,
            cut,
            now: 0,
            end,
            order: 0,
            events,
            random,
            report,
            under_way,
            changed_at,
            talked,
            arrived,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let nodes = self.members.len() as u64;
        for number in 0..self.members.len() as u32 {
            let mut partners = HashSet::new();
            while partners.len() < self.fleet.workload.peers_per_node as usize {
                let partner = self.below(nodes) as u32;
                if partner != number && self.has_common_rail(number, partner) {
                    partners.insert(partner);
                } else if !(0..nodes as u32)
                    .any(|other| other != number && self.has_common_rail(number, other))
                {
                    break;
                }
            }
            let mut partners: Vec<_> = partners.into_iter().collect();
            partners.sort_unstable();
            self.report.pairs += partners.len() as u64;
            self.members[number as usize].partners = partners;
            self.settle(number);
            let first = self.below(SECOND_NS);
            if self.fleet.workload.puts_per_second > 0.0 {
                self.at(first, Event::Put(number));
            }
        }
        for (index, fault) in self.fleet.faults.iter().enumerate() {
            let at = |seconds: f64| (seconds * SECOND_NS as f64) as u64;
            self.at(at(fault.from_s), Event::Fault { index, begins: true });
            self.at(at(fault.to_s), Event::Fault { index, begins: false });
        }
        self.at(0, Event::Sample);
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.bits() % bound
    }

    fn has_common_rail(&self, one: u32, other: u32) -> bool {
        let of = |number: u32| self.members[number as usize].nids.iter().map(|(rail, _)| *rail);
        of(one).any(|rail| of(other).any(|its| its == rail))
    }

    fn at(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.events.insert((at.max(self.now), self.order), event);
    }

    /// After the time that a message takes.
    fn soon(&mut self, event: Event) {
        let latency = self.fleet.latency_us * 1000;
        let jitter = self.below(latency / 4 + 1);
        self.at(self.now + latency + jitter, event);
    }

    fn run(&mut self, mut progress: impl FnMut(&Sample)) {
        while let Some(((at, _), event)) = self.events.pop_first() {
            self.now = at;
            if at > self.end + REST_NS {
                break;
            }
            if matches!(event, Event::Sample) {
                let sample = self.sample();
                progress(&sample);
            } else {
                self.step(event);
            }
        }
        self.check_rest();
    }

    fn step(&mut self, event: Event) {
        let now = Instant(self.now);
        match event {
            Event::Timer(number) => {
                let member = &mut self.members[number as usize];
                if member.timer.is_some_and(|timer| timer <= now.0) {
                    member.timer = None;
                }
                if member.node.poll_timeout().is_some_and(|at| at <= now) {
                    member.node.handle_timeout(now);
                }
                if member.shard.poll_timeout().is_some_and(|at| at <= now) {
                    member.shard.handle_timeout(now);
                }
                self.settle(number);
            }
            Event::Put(number) => self.put(number),
            Event::Arrive { from, ni, to, tx, header } => self.arrive(from, ni, to, tx, &header),
            Event::Sent { node, tx, status } => {
                self.members[node as usize].shard.sent(now, tx, status);
                self.settle(node);
            }
            Event::Ping { from, ping, nid, length_bytes } => {
                let bytes = self.reach(from, &nid).map(|to| {
                    let answer = &self.members[to as usize].published;
                    answer[..answer.len().min(length_bytes)].to_vec()
                });
                self.answer(from, (ping, nid), bytes);
            }
            Event::Push { from, ping, source, nid, bytes } => {
                let reached = self.reach(from, &nid);
                if let Some(to) = reached {
                    let node = &mut self.members[to as usize].node;
                    let room = node.push_room_bytes().min(bytes.len());
                    let report =
                        Report::Pushed { from: source, bytes: &bytes[..room], length_bytes: bytes.len() };
                    node.handle_report(now, report);
                    self.settle(to);
                }
                self.answer(from, (ping, nid), reached.map(|_| Vec::new()));
            }
            Event::Answer { to, ping, nid, bytes } => {
                let node = &mut self.members[to as usize].node;
                match &bytes {
                    Some(bytes) => {
                        // A shard would note the REPLY or ACK.
                        let note = HealthNote { nid, failures: 0, successes: 1 };
                        node.handle_report(now, Report::Health(note));
                        node.handle_report(now, Report::Answered { ping, bytes });
                    }
                    None => {
                        let error = DriverError { errno: 110, message: "no answer".to_owned() };
                        node.handle_report(now, Report::Unanswered { ping, error });
                    }
                }
                self.settle(to);
            }
            Event::Fault { index, begins } => self.fault(index, begins),
            Event::Sample => {}
        }
    }

    fn answer(&mut self, to: u32, (ping, nid): (PingId, Nid), bytes: Option<Vec<u8>>) {
        let is_answered = bytes.is_some();
        let event = Event::Answer { to, ping, nid, bytes };
        if is_answered { self.soon(event) } else { self.at(self.now + 2 * SECOND_NS, event) }
    }

    /// The node that has a NID, if its rail carries something from this one.
    fn reach(&self, from: u32, nid: &Nid) -> Option<u32> {
        let (to, rail) = owner(nid)?;
        let is_cut = |number: u32| self.cut[number as usize] >> rail & 1 != 0;
        let is_there = self.members.get(to as usize)?.nids.iter().any(|(its, _)| *its == rail);
        (is_there && !is_cut(from) && !is_cut(to)).then_some(to)
    }

    fn put(&mut self, number: u32) {
        let member = &self.members[number as usize];
        let partner = member.partners.get(self.random.below(member.partners.len().max(1)));
        if let Some(partner) = partner.copied() {
            // Each knows one NID of the other: one of a rail that both are on.
            let rails: Vec<_> = member.nids.iter().map(|(rail, _)| *rail).collect();
            let other = &self.members[partner as usize].nids;
            let common: Vec<_> = other.iter().filter(|(rail, _)| rails.contains(rail)).collect();
            let (_, nid) = *common[partner as usize % common.len()];
            if self.talked.insert((number, partner)) {
                self.changed_at = self.now;
            }
            self.start_put(number, partner, nid);
        }
        let interval = (SECOND_NS as f64 / self.fleet.workload.puts_per_second) as u64;
        let next = self.now + interval / 2 + self.below(interval + 1);
        if next < self.end {
            self.at(next, Event::Put(number));
        }
    }

    fn start_put(&mut self, number: u32, to: u32, nid: Nid) {
        let now = Instant(self.now);
        let good = self.good_rails(number, to, nid);
        self.report.puts += 1;
        let put = self.report.puts;
        let member = &mut self.members[number as usize];
        let spec = MdSpec::new(8, Threshold::Count(2), MdOptions::NONE, member.queue);
        let bound = member.shard.bind(&MdSpec { user_ptr: put, ..spec });
        let request = |md| PutRequest {
            md,
            ack: true,
            self_nid: None,
            target: ProcessId::lustre(nid),
            portal: PORTAL,
            match_bits: MATCH_BITS,
            offset: 0,
            hdr_data: put,
        };
        let started = bound.map(|md| (md, member.shard.put(now, &request(md))));
        match started {
            Ok((_, Ok(()))) => {
                self.under_way.insert(put, Put { is_acked: false, to, good });
            }
            Ok((md, Err(_))) => {
                // It was not started: its descriptor goes, which an event tells.
                let _ = member.shard.unlink(md);
                self.report.failed += 1;
            }
            Err(_) => self.report.failed += 1,
        }
        self.settle(number);
    }

    fn arrive(&mut self, from: u32, source: Nid, to: Nid, tx: TxId, header: &Header) {
        let now = Instant(self.now);
        let Some(number) = self.reach(from, &to) else {
            let status = Status::NeverSent(Cause::Unreachable);
            return self.at(self.now + SILENCE_NS, Event::Sent { node: from, tx, status });
        };
        let rail = to.net().number() as u8;
        let member = &mut self.members[number as usize];
        if let Some(ni) = member.ni_of(rail) {
            // Nothing is arriving in between, so one name does.
            match member.shard.header(now, ni, &source, RxId(0), header) {
                Verdict::Deliver(_) => member.shard.received(now, RxId(0), Status::Ok),
                Verdict::Drop => {}
                Verdict::Delay => self.violate(format!("node {number} delays {header:?}")),
            }
        }
        self.soon(Event::Sent { node: from, tx, status: Status::Ok });
        self.settle(number);
    }

    fn fault(&mut self, index: usize, begins: bool) {
        self.changed_at = self.now;
        let fault = self.fleet.faults[index].clone();
        let bit = 1 << fault.rail;
        let nodes = fault.nodes.unwrap_or(u32::MAX).min(self.members.len() as u32);
        // What has begun before may have met the fault.
        self.under_way.values_mut().for_each(|put| put.good &= !bit);
        for number in 0..nodes {
            let cut = &mut self.cut[number as usize];
            *cut = if begins { *cut | bit } else { *cut & !bit };
            let member = &mut self.members[number as usize];
            if let Some(ni) = member.ni_of(fault.rail).filter(|_| fault.link_down) {
                member.node.handle_report(Instant(self.now), Report::Link { ni, is_up: !begins });
                self.settle(number);
            }
        }
    }

    /// Carries out what a node says, and takes what its shard tells.
    fn settle(&mut self, number: u32) {
        let now = Instant(self.now);
        while let Some(action) = self.members[number as usize].poll(now) {
            self.carry_out(number, action);
        }
        self.take_events(number);
        self.take_messages(number);
        let member = &mut self.members[number as usize];
        let timers = [member.node.poll_timeout(), member.shard.poll_timeout()];
        if let Some(at) = timers.into_iter().flatten().min()
            && member.timer.is_none_or(|timer| at.0 < timer)
        {
            member.timer = Some(at.0);
            self.at(at.0, Event::Timer(number));
        }
    }

    fn carry_out(&mut self, number: u32, action: Action<()>) {
        let member = &mut self.members[number as usize];
        match action {
            Action::Ping { ping, nid, length_bytes, .. } => {
                if member.nids.iter().any(|(_, its)| *its == nid) {
                    self.report.recovery_pings += 1;
                    let bytes = member.published.to_vec();
                    return self.soon(Event::Answer { to: number, ping, nid, bytes: Some(bytes) });
                }
                let is_recovery = member.node.peer(&nid).is_none_or(|peer| !peer.is(peer_state::PING_SENT));
                let count =
                    if is_recovery { &mut self.report.recovery_pings } else { &mut self.report.pings };
                *count += 1;
                self.count_late(number, nid, length_bytes.min(272));
                self.soon(Event::Ping { from: number, ping, nid, length_bytes });
            }
            Action::Push { ping, nid, bytes } => {
                self.report.pushes += 1;
                let source = member.nids.iter().find(|(_, its)| its.net() == nid.net()).map(|(_, its)| *its);
                self.count_late(number, nid, bytes.len());
                match source {
                    Some(source) => self.soon(Event::Push { from: number, ping, source, nid, bytes }),
                    None => self.answer(number, (ping, nid), None),
                }
            }
            _ => {}
        }
    }

    fn take_messages(&mut self, number: u32) {
        let slots = self.members[number as usize].shard.topology().interfaces().len() as u16;
        for ni in (0..slots).map(NiId) {
            while let Some(lent) = self.members[number as usize].shard.poll_transmit(ni) {
                let transmit = *lent.transmit;
                let source = transmit.header.source.nid;
                let (to, tx, header) = (transmit.next_hop, transmit.tx, Box::new(transmit.header));
                self.soon(Event::Arrive { from: number, ni: source, to, tx, header });
            }
        }
    }

    fn take_events(&mut self, number: u32) {
        loop {
            let member = &mut self.members[number as usize];
            let Some(event) = member.shard.poll_event(member.queue) else { return };
            if let LnetEvent::Put { hdr_data, .. } = event {
                if !self.arrived.insert(hdr_data) {
                    self.violate(format!("put {hdr_data} is delivered twice, to node {number}"));
                }
                continue;
            }
            let put = event.user_ptr();
            let is_acked = event.kind() == EventKind::Ack && event.status() == Status::Ok;
            if is_acked && !self.arrived.contains(&put) {
                self.violate(format!("put {put} of node {number} is acknowledged and has not arrived"));
            }
            if event.kind() == EventKind::Send {
                self.check_sent(number, put, event.status());
            }
            if let Some(state) = self.under_way.get_mut(&put) {
                state.is_acked |= is_acked;
            }
            if event.unlinked()
                && let Some(Put { is_acked, .. }) = self.under_way.remove(&put)
            {
                let count = if is_acked { &mut self.report.acked } else { &mut self.report.failed };
                *count += 1;
            } else if event.kind() == EventKind::Send && event.status() != Status::Ok {
                // No ACK comes of it.
                let md = event.md();
                let _ = self.members[number as usize].shard.unlink(md);
            }
        }
    }

    fn sample(&mut self) -> Sample {
        let pairs = (0..self.members.len() as u32).flat_map(|number| {
            self.members[number as usize].partners.iter().map(move |other| (number, *other))
        });
        let known = pairs.filter(|(number, other)| self.know_each_other(*number, *other)).count() as u64;
        let seconds = self.now as f64 / SECOND_NS as f64;
        let sample = Sample { seconds, converged: known as f64 / self.report.pairs.max(1) as f64 };
        if known == self.report.pairs && self.report.converged_s.is_none() {
            self.report.converged_s = Some(seconds);
        }
        self.report.samples.push(sample);
        let next = self.now + (self.end / SAMPLES).max(1);
        if next <= self.end {
            self.at(next, Event::Sample);
        }
        sample
    }
}
