//! A fleet: many nodes of the real core (control state machine and shard) that discover each other and talk
//! over sampled pairs, while rails, links and nodes fail and return. The network, the clock and the drivers
//! are made up; there is no LND, so that of what a transport does about loss only the time is in it (the
//! [simulator](crate::sim) has the rest).
//!
//! Invariants: a run follows from its seed; what checkers find ends in the report.

mod checks;
mod file;
mod hostile;
mod memory;
mod network;
mod node;
mod report;
mod routes;
mod stage;
mod traffic;
mod two_rails;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use lnet_core::lnd::{Status, TxId};
use lnet_core::node::{PingId, RequestId};
use lnet_core::time::Instant;
use lnet_wire::{Header, Nid};

pub use file::{Fault, Fleet, Group, Links, NiPlan, Nodes, Rail, RoutePlan, Workload};
pub use hostile::Hostility;
pub use memory::Measure;
pub use node::nid;
pub use report::{FleetReport, Sample};
pub use stage::Stage;
pub use two_rails::TwoRails;

use crate::bpf::random::Random;
use network::Place;
use node::{Member, nid_on};
use routes::{RouterWatch, Routing};

const SECOND_NS: u64 = 1_000_000_000;
/// How long messages under way may take at the end of a run.
const REST_NS: u64 = 60 * SECOND_NS;
/// How long discovery may go on after a change: a ping or push that is lost is given up, and the next one is
/// sent.
const QUIET_NS: u64 = 30 * SECOND_NS;
const SAMPLES: u64 = 200;
/// Violations that are kept.
const VIOLATIONS_MAX: usize = 20;

/// A node, in one of its lives: what is for it is void in the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Life {
    number: u32,
    life: u32,
}

enum Event {
    Timer(u32),
    /// A node puts something.
    Put(u32),
    /// A hostile node pushes.
    Attack(u32),
    Arrive {
        from: Life,
        source: Nid,
        to: Nid,
        tx: TxId,
        header: Box<Header>,
    },
    /// What a driver says of a message that has left by a path, or has not.
    Sent {
        node: Life,
        tx: TxId,
        path: (Nid, Nid),
        status: Status,
    },
    Ping {
        from: Life,
        ping: PingId,
        source: Nid,
        nid: Nid,
        length_bytes: usize,
    },
    Push {
        from: Life,
        ping: PingId,
        source: Nid,
        nid: Nid,
        bytes: Arc<[u8]>,
    },
    /// What comes of a ping or push to a NID: the answer, or nothing.
    Answer {
        to: Life,
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
    places: Vec<Place>,
    /// Faults of each rail.
    rail_faults: Vec<u8>,
    now: u64,
    end: u64,
    order: u64,
    events: BTreeMap<(u64, u64), Event>,
    random: Random,
    report: FleetReport,
    /// Puts that are under way.
    under_way: HashMap<u64, Put>,
    /// When something changed last that discovery is about: a fault, or two nodes that talk for the first
    /// time.
    changed_at: u64,
    /// Pairs of nodes that have talked.
    talked: HashSet<(u32, u32)>,
    /// Pairs of nodes of which one has had an ACK of the other.
    acked: HashSet<(u32, u32)>,
    arrived: HashSet<u64>,
    /// Pings of nodes to others that are under way, and since when.
    pinged: HashMap<(u32, RequestId), (Nid, u64)>,
    router_watch: RouterWatch,
}

/// A Put that is under way.
struct Put {
    is_acked: bool,
    begun_at: u64,
    from: u32,
    to: u32,
    /// Paths by which it may go, a bit each: its initiator knows them, and they have carried everything since
    /// it began.
    good: u64,
    /// How often it came not through.
    losses: u32,
}

/// Runs a fleet; `progress` hears of each sample.
#[must_use]
pub fn run(fleet: &Fleet, seed: u64, measure: Measure, progress: impl FnMut(&Sample)) -> FleetReport {
    let mut world = World::new(fleet, seed);
    world.run(progress);
    world.measure(measure);
    world.report
}

impl<'a> World<'a> {
    fn new(fleet: &'a Fleet, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let groups = fleet.groups.iter().enumerate();
        let groups = groups.flat_map(|(at, group)| std::iter::repeat_n((at, group), group.nodes as usize));
        let (mut members, mut places) = (Vec::new(), Vec::new());
        for (number, (at, group)) in (0..).zip(groups) {
            let nids = nids_of(fleet, group, number);
            let routing = Routing::of(fleet, group, number);
            members.push(Member::routed((number, 0), nids, group.discovery, true, random.bits(), routing));
            places.push(Place::new(at));
        }
        let report = FleetReport::of(fleet);
        let end = (fleet.workload.seconds * SECOND_NS as f64) as u64;
        let mut world = Self {
            fleet,
            members,
            places,
            rail_faults: vec![0; fleet.rails.len()],
            now: 0,
            end,
            order: 0,
            events: BTreeMap::new(),
            random,
            report,
            under_way: HashMap::new(),
            changed_at: 0,
            talked: HashSet::new(),
            acked: HashSet::new(),
            arrived: HashSet::new(),
            pinged: HashMap::new(),
            router_watch: RouterWatch::default(),
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let nodes = self.members.len() as u64;
        for number in 0..self.members.len() as u32 {
            let mut partners = HashSet::new();
            let reachable = self.fleet.reachable(self.places[number as usize].group);
            let wanted = self.fleet.workload.peers_per_node.min(reachable);
            let wanted = if self.is_router(number) { 0 } else { wanted };
            while partners.len() < wanted as usize {
                let partner = self.below(nodes) as u32;
                if self.may_talk(number, partner) {
                    partners.insert(partner);
                }
            }
            let mut partners: Vec<_> = partners.into_iter().collect();
            partners.sort_unstable();
            let friends = partners.iter().filter(|partner| !self.is_hostile(number, **partner));
            self.report.pairs += friends.count() as u64;
            self.members[number as usize].partners = partners;
            self.settle(number);
            let first = self.below(SECOND_NS);
            if self.hostility(number).is_some() {
                self.at(first, Event::Attack(number));
            } else if self.fleet.workload.puts_per_second > 0.0 && !self.is_router(number) {
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

    fn has_common_net(&self, one: u32, other: u32) -> bool {
        let of = |number: u32| self.members[number as usize].nids.iter().map(|(_, nid)| nid.net());
        of(one).any(|net| of(other).any(|its| its == net))
    }

    fn at(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.events.insert((at.max(self.now), self.order), event);
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
        self.check_routers();
    }

    /// The node in its present life.
    fn life(&self, number: u32) -> Life {
        Life { number, life: self.places[number as usize].life }
    }

    /// Has an event that is for a node that is down wait until it is back; what was for a former life is
    /// void.
    fn postpone(&mut self, event: Event) -> Option<Event> {
        let for_whom = match &event {
            Event::Timer(number) | Event::Put(number) | Event::Attack(number) => self.life(*number),
            Event::Sent { node, .. } => *node,
            Event::Answer { to, .. } => *to,
            _ => return Some(event),
        };
        if for_whom != self.life(for_whom.number) {
            return None;
        }
        let place = &self.places[for_whom.number as usize];
        if place.is_down() {
            let back_at = place.back_at;
            self.at(back_at, event);
            return None;
        }
        Some(event)
    }

    fn step(&mut self, event: Event) {
        let Some(event) = self.postpone(event) else { return };
        match event {
            Event::Timer(number) => self.timer(number),
            Event::Put(number) => self.put(number),
            Event::Attack(number) => self.attack(number),
            Event::Arrive { from, source, to, tx, header } => self.arrive(from, source, to, tx, &header),
            Event::Sent { node, tx, path, status } => self.sent(node.number, tx, path, status),
            Event::Ping { from, ping, source, nid, length_bytes } => {
                self.pinged(from, (ping, source, nid), length_bytes);
            }
            Event::Push { from, ping, source, nid, bytes } => self.pushed(from, (ping, source, nid), &bytes),
            Event::Answer { to, ping, nid, bytes } => self.answered(to.number, ping, nid, bytes.as_deref()),
            Event::Fault { index, begins } => self.fault(index, begins),
            Event::Sample => {}
        }
    }

    fn timer(&mut self, number: u32) {
        let now = Instant(self.now);
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

    fn sample(&mut self) -> Sample {
        let pairs = (0..self.members.len() as u32).flat_map(|number| {
            self.members[number as usize].partners.iter().map(move |other| (number, *other))
        });
        let pairs = pairs.filter(|(number, other)| !self.is_hostile(*number, *other));
        let pairs: Vec<_> = pairs.collect();
        pairs.iter().for_each(|(number, other)| self.check_names(*number, *other));
        let known =
            pairs.iter().filter(|(number, other)| self.know_each_other(*number, *other)).count() as u64;
        let seconds = self.now as f64 / SECOND_NS as f64;
        let sample = Sample { seconds, converged: known as f64 / self.report.pairs.max(1) as f64 };
        if known == self.report.pairs && self.report.converged_s.is_none() {
            self.report.converged_s = Some(seconds);
        }
        self.report.samples.push(sample);
        self.count_routes();
        let next = self.now + (self.end / SAMPLES).max(1);
        if next <= self.end {
            self.at(next, Event::Sample);
        }
        sample
    }
}

/// The NIDs of a node, and which rail each is on.
fn nids_of(fleet: &Fleet, group: &Group, number: u32) -> Vec<(u8, Nid)> {
    let mut nids: Vec<(u8, Nid)> = Vec::new();
    for ni in &group.nis {
        let net = ni.net().expect("a checked net");
        let ordinal = nids.iter().filter(|(_, nid)| nid.net() == net).count() as u8;
        let rail = fleet.rail_index(&ni.rail).expect("a checked rail") as u8;
        nids.push((rail, nid_on(net, number, ordinal)));
    }
    nids
}
