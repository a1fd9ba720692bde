//! A run: the clock, the events in their order, the nodes, the phases from first faults to final rest.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::rc::Rc;

use lnet_core::handle::ShardId;
use lnet_core::lnd::{Cause, NiId};
use lnet_core::time::Instant;

use super::app::{Late, Posted, Shared, Trial, Wish};
use super::fabric::Fabric;
use super::lane::{Lane, Surroundings};
use super::ledger::Ledger;
use super::node::{self, Identity, Node, PORTALS_USED, draw_keys};
use super::plan::{FRIENDLY_NS, MS, Plan, happens};
use super::pool::Pool;
use super::report::{Counts, Fault};
use super::routers::Asked;
use super::services::Services;
use super::strangers::Stranger;
use super::streams::{StreamStep, Streams};
use super::trace::Trace;
use super::{Bug, Bugs, NetKind, Options, Outcome};
use crate::bpf::random::Random;

/// Steps of a run that never comes to rest.
const STEPS_MAX: u64 = 5_000_000;
/// Messages between shards of a node that wait, at most.
const MESH_ROOM: usize = 4;
/// Operations that begin shortly before something happens to a stream, at most.
const STREAM_ACTS_MAX: usize = 8;
/// How often it is looked whether a phase is over.
pub(super) const CHECK_NS: u64 = 10 * MS;

/// Something that happens at its time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Happening {
    /// A shard's driver goes round.
    Turn {
        node: usize,
        shard: usize,
    },
    /// A device reads a frame, or a frame arrives.
    Pass(u32),
    /// Something happens to a stream.
    Stream(StreamStep),
    /// A stream is cut, or stops.
    BreakStream,
    SilenceStream,
    /// The application starts something.
    Act,
    /// The application posts what an operation should have found.
    Post(u32),
    /// The application looks at a shard's events, which wait since then.
    Poll {
        node: usize,
        shard: usize,
        since: u64,
    },
    Restart(usize),
    /// The MTU of the whole fabric changes.
    Mtu,
    /// The drivers of a node give up one of its devices.
    Fail {
        node: usize,
        rail: u16,
    },
    /// A portal of a node becomes lazy, or ceases to be.
    Lazy {
        node: usize,
        portal: u32,
    },
    /// A rail is cut, or whole again.
    Cut,
    Mend,
    /// Hostile nodes begin.
    Attack,
    /// A name of a hostile node says something.
    Speak(u32),
    /// The control of a node hears what its shards have learned.
    Follow(usize),
    Rail {
        node: usize,
        rail: usize,
        down: bool,
    },
    /// An NI is deleted, or added again.
    DeleteRail {
        node: usize,
        rail: u8,
    },
    AddRail {
        node: usize,
        rail: u8,
        life: u32,
    },
    /// A driver has opened an NI, or not, or closed it.
    Opened {
        node: usize,
        ni: u16,
        rail: u8,
        life: u32,
    },
    Closed {
        node: usize,
        ni: u16,
        rail: Option<u8>,
        life: u32,
    },
    /// The newest snapshot reaches a shard.
    Snapshot {
        node: usize,
        shard: usize,
        life: u32,
    },
    /// A time of a node's control is over.
    Control {
        node: usize,
        life: u32,
    },
    /// A router dies, or is there again.
    Die(usize),
    Return(usize),
    /// The answer to a ping or push that a node's control has asked for.
    Answer(u32),
    /// A look whether the phase is over.
    Check,
}

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Operations begin, faults happen.
    Active,
    /// No more faults: all paths are tried, by this time.
    Proving(u64),
    /// All operations come to their end by this time.
    Settling(u64),
    /// All is unlinked: nothing is left by this time.
    Draining(u64),
    Over,
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) random: Random,
    pub(super) now: u64,
    pub(super) sequence: u64,
    pub(super) queue: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    pub(super) nodes: Vec<Node>,
    pub(super) identities: Vec<Identity>,
    pub(super) pools: Vec<Pool>,
    pub(super) fabric: Fabric,
    pub(super) streams: Streams,
    pub(super) ledger: Ledger,
    pub(super) counts: Counts,
    pub(super) trace: Trace,
    pub(super) bugs: Bugs,
    pub(super) phase: Phase,
    /// What each node can send and take, by rail.
    pub(super) datagram_max_bytes: Vec<[u32; 2]>,
    /// Entries that were made.
    pub(super) posted: Vec<Posted>,
    /// Entries to be made later.
    pub(super) late: Vec<Late>,
    /// Operations whose descriptor has not ended, and without their SEND event.
    pub(super) open: BTreeSet<u32>,
    pub(super) unsent: BTreeSet<u32>,
    /// A descriptor of each shard for many PUTs.
    pub(super) shared: Vec<Shared>,
    /// PUTs to be started before a rail is cut, and the number of the operation after the last one that was.
    pub(super) introductions: Vec<Wish>,
    pub(super) introduced: usize,
    /// Paths that are being tried.
    pub(super) trials: Vec<Trial>,
    /// Names of hostile nodes.
    pub(super) strangers: Vec<Stranger>,
    pub(super) services: Services,
    /// Pings and pushes of controls, where there are routers.
    pub(super) asked: Vec<Asked>,
}

impl World {
    pub(super) fn new(seed: u64, options: &Options) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::new(&mut random, options);
        let bugs = Bugs(options.bug);
        let hashes = node::initiator_hashes(&plan);
        let identities: Vec<Identity> = (0..plan.shards.len())
            .map(|number| Identity {
                number,
                policies: node::policies(&mut random, plan.shards[number]),
                initiator_hashes: Rc::clone(&hashes),
            })
            .collect();
        let strangers = Stranger::all(&plan);
        let mut world = Self {
            now: random.bits() >> 14,
            sequence: 0,
            queue: BinaryHeap::new(),
            nodes: Vec::new(),
            identities,
            pools: Vec::new(),
            fabric: Fabric::new(plan.shards.len()),
            streams: Streams::new(plan.streams),
            ledger: Ledger::new(plan.gentle, plan.net == NetKind::Xdp, &strangers),
            counts: Counts::of_one_run(),
            trace: Trace::new(options.tracing),
            bugs,
            phase: Phase::Active,
            datagram_max_bytes: plan.datagram_max_bytes.clone(),
            posted: Vec::new(),
            late: Vec::new(),
            open: BTreeSet::new(),
            unsent: BTreeSet::new(),
            shared: Vec::new(),
            introductions: Vec::new(),
            introduced: 0,
            trials: Vec::new(),
            strangers,
            services: Services::default(),
            asked: Vec::new(),
            random,
            plan,
        };
        for number in 0..world.identities.len() {
            let node = world.make_node(number, 0);
            world.nodes.push(node);
        }
        world
    }

    fn make_node(&mut self, number: usize, life: u32) -> Node {
        let reused = self.bugs.has(Bug::IdReused).then(|| self.nodes.get(number)).flatten();
        let keys = reused.map(|node| node.keys.clone()).unwrap_or_else(|| draw_keys(&mut self.random));
        self.pools.push(Pool::new(self.plan.send_frames));
        let pool = self.pools.len() - 1;
        let identity = &self.identities[number];
        let bytes = self.datagram_max_bytes[number];
        let life = (life, &keys, Instant(self.now));
        Node::new(&self.plan, identity, life, bytes, pool, &mut self.random, &self.bugs)
    }

    /// Has something happen.
    pub(super) fn at(&mut self, time: u64, happening: Happening) {
        self.sequence += 1;
        self.queue.push(Reverse((time, self.sequence, happening)));
    }

    /// Has a shard's driver go round at this time, or before.
    pub(super) fn request_turn(&mut self, node: usize, shard: usize, time: u64) {
        let lane = &mut self.nodes[node].lanes[shard];
        if lane.turn_at.is_none_or(|at| time < at) {
            lane.turn_at = Some(time);
            self.at(time, Happening::Turn { node, shard });
        }
    }

    /// Runs to the end, or to the first violation.
    pub(super) fn run(&mut self) {
        let plan = self.plan.clone();
        self.trace.say(|| format!("{plan:?}"));
        let start = self.now;
        for number in 0..self.nodes.len() {
            self.post_buckets(number);
            self.begin_routing(number);
        }
        if let Some(cut) = &plan.cut {
            self.introductions = self.introductions();
            self.introduce();
            self.at(start + cut.after_ns, Happening::Cut);
        }
        if !plan.hostile.is_empty() {
            self.serve();
            self.introductions = self.introductions();
            self.introduce();
            self.at(start + MS, Happening::Attack);
        }
        if plan.comes_and_goes {
            self.introductions = self.introductions();
            self.introduce();
        }
        for _ in 0..plan.operations {
            let at = start + self.random.bits() % plan.active_ns;
            self.at(at, Happening::Act);
        }
        self.plan_faults(&plan);
        self.at(start + plan.active_ns, Happening::Check);
        let mut steps = 0;
        while self.phase != Phase::Over && self.ledger.violation.is_none() {
            let Some(Reverse((time, _, happening))) = self.queue.pop() else { break };
            steps += 1;
            self.ledger.expect(steps < STEPS_MAX, "a run comes to rest", || format!("{steps} steps"));
            self.now = time;
            self.ledger.now = time;
            self.trace.now = time - start;
            self.step(happening);
        }
    }

    fn step(&mut self, happening: Happening) {
        match happening {
            Happening::Turn { node, shard } => self.turn(node, shard),
            Happening::Pass(slot) => self.pass(slot),
            Happening::Stream(step) => self.step_stream(step),
            Happening::BreakStream | Happening::SilenceStream => self.harm_stream(happening),
            Happening::Act => self.act(),
            Happening::Post(late) => self.post_late(late),
            Happening::Poll { node, shard, since } => {
                if self.now - since > MS {
                    self.counts.add(Fault::SlowPoll);
                }
                self.poll_events(node, shard);
            }
            Happening::Restart(node) => self.restart(node),
            Happening::Mtu => self.change_mtu(),
            Happening::Fail { node, rail } => self.fail_device(node, NiId(rail)),
            Happening::Lazy { node, portal } => self.change_lazy(node, portal),
            Happening::Rail { node, rail, down } => {
                self.trace.say(|| format!("node {node} rail {rail} down: {down}"));
                let down = down && self.phase == Phase::Active;
                self.fabric.down[node][rail] = down;
                if down {
                    self.counts.add(Fault::Outage);
                }
            }
            Happening::Cut => self.cut_rail(),
            Happening::Mend => self.fabric.cut = None,
            Happening::Attack => self.begin_attack(),
            Happening::Speak(stranger) => self.speak(stranger),
            Happening::Follow(node) => self.follow(node),
            Happening::DeleteRail { node, rail } => self.delete_rail(node, rail),
            Happening::AddRail { node, rail, life } => self.add_rail(node, rail, life),
            Happening::Opened { node, ni, rail, life } => self.opened(node, NiId(ni), rail, life),
            Happening::Closed { node, ni, rail, life } => self.closed(node, NiId(ni), rail, life),
            Happening::Snapshot { node, shard, life } => self.take_snapshot(node, shard, life),
            Happening::Control { node, life } => self.time_out_control(node, life),
            Happening::Die(node) => self.router_dies(node),
            Happening::Return(node) => self.router_returns(node),
            Happening::Answer(asked) => self.answer_aside(asked as usize),
            Happening::Check => self.check_phase(),
        }
    }

    /// A rail is cut, as soon as all shards know all peers by all their NIDs.
    fn cut_rail(&mut self) {
        let Some(cut) = self.plan.cut else { return };
        if !self.are_introduced() {
            return self.at(self.now + MS, Happening::Cut);
        }
        self.trace.say(|| format!("{cut:?}"));
        self.counts.add(Fault::Cut);
        self.fabric.cut = Some(cut);
        if let Some(lasts_ns) = cut.lasts_ns {
            self.at(self.now + lasts_ns, Happening::Mend);
        }
    }

    /// Whether all shards know all peers by all their NIDs; goes on with that.
    fn are_introduced(&mut self) -> bool {
        self.introduce();
        let are_on_their_way = self.unsent.iter().any(|number| (*number as usize) < self.introduced);
        self.introductions.is_empty() && !are_on_their_way
    }

    /// Hostile nodes begin, as soon as all shards know all peers: none of them is unknown.
    fn begin_attack(&mut self) {
        if !self.are_introduced() || !self.services.is_idle() {
            return self.at(self.now + MS, Happening::Attack);
        }
        self.trace.say(|| "hostile nodes attack".to_owned());
        self.counts.add(Fault::Attack);
        self.fabric.attack = (0..self.nodes.len()).map(|node| self.plan.hostility(node)).collect();
        self.ledger.friendly_ns = Some(FRIENDLY_NS);
        self.wake_strangers();
    }

    fn plan_faults(&mut self, plan: &Plan) {
        let start = self.now;
        for _ in 0..plan.restarts {
            let at = start + self.random.bits() % plan.active_ns;
            let node = self.random.below(self.nodes.len());
            self.at(at, Happening::Restart(node));
        }
        for _ in 0..plan.outages {
            let from = start + self.random.bits() % plan.active_ns;
            let length = self.random.bits() % plan.active_ns;
            let (node, rail) =
                (self.random.below(self.nodes.len()), self.random.below(usize::from(plan.rails)));
            self.at(from, Happening::Rail { node, rail, down: true });
            self.at(from + length, Happening::Rail { node, rail, down: false });
        }
        for (count, happening) in
            [(plan.streams.breaks, Happening::BreakStream), (plan.streams.silences, Happening::SilenceStream)]
        {
            for _ in 0..count {
                let at = start + self.random.bits() % plan.active_ns;
                // While something is under way.
                for _ in 0..self.random.below(STREAM_ACTS_MAX) {
                    let before = self.random.bits() % (20 * plan.streams.latency_ns);
                    self.at(at.saturating_sub(before).max(start), Happening::Act);
                }
                self.at(at, happening);
            }
        }
        for _ in 0..plan.deaths {
            let at = start + self.random.bits() % plan.active_ns;
            let node = plan.hosts() + self.random.below(plan.routers);
            self.at(at, Happening::Die(node));
        }
        for _ in 0..plan.mtu_changes {
            let at = start + self.random.bits() % plan.active_ns;
            self.at(at, Happening::Mtu);
        }
        for _ in 0..plan.failures {
            let at = start + self.random.bits() % plan.active_ns;
            let node = self.random.below(self.nodes.len());
            let rail = self.random.below(usize::from(plan.rails)) as u16;
            self.at(at, Happening::Fail { node, rail });
        }
        for _ in 0..plan.deletions {
            let at = start + self.random.bits() % plan.active_ns;
            let node = self.random.below(self.nodes.len());
            let rail = self.random.below(usize::from(plan.rails)) as u8;
            self.at(at, Happening::DeleteRail { node, rail });
        }
        for _ in 0..plan.lazy_changes {
            let at = start + self.random.bits() % plan.active_ns;
            let node = self.random.below(self.nodes.len());
            let portal = self.random.below(PORTALS_USED) as u32;
            self.at(at, Happening::Lazy { node, portal });
        }
    }

    fn turn(&mut self, node: usize, shard: usize) {
        let now = self.now;
        let Some(lane) = self.nodes[node].lanes.get_mut(shard).filter(|lane| lane.turn_at == Some(now))
        else {
            return;
        };
        lane.turn_at = None;
        if let Some((_, rest_ns)) = self.plan.slow.filter(|(slow, _)| *slow == node) {
            if lane.rests_until > now {
                let until = lane.rests_until;
                return self.request_turn(node, shard, until);
            }
            lane.rests_until = now + rest_ns;
        }
        if self.phase == Phase::Active && happens(&mut self.random, self.plan.stalls) {
            self.counts.add(Fault::Stalled);
            let at = now + 1 + self.random.bits() % self.plan.stall_ns;
            return self.request_turn(node, shard, at);
        }
        self.with_lane(node, shard, |lane, around| lane.turn(Instant(now), around));
        self.confirm(node, shard);
        let has_free = self.pools[self.nodes[node].send_pool].has_free();
        let lane = &mut self.nodes[node].lanes[shard];
        let polls = lane.shard.usage().events != 0 && !std::mem::replace(&mut lane.is_polled, true);
        if let Some(next) = lane.next_turn(now, has_free) {
            self.request_turn(node, shard, next);
        }
        if polls {
            let at = now + 1 + self.random.bits() % self.plan.poll_ns;
            self.at(at, Happening::Poll { node, shard, since: now });
        }
    }

    /// Does something with a lane, and carries on what comes of it.
    pub(super) fn with_lane(
        &mut self,
        node: usize,
        shard: usize,
        act: impl FnOnce(&mut Lane, &mut Surroundings<'_>),
    ) {
        let now = self.now;
        let (mut leaving, mut handed_over, mut said) = (Vec::new(), Vec::new(), Vec::new());
        let mut letters = Vec::new();
        let room = |lane: &Lane| MESH_ROOM.saturating_sub(lane.heard.len());
        let mut mesh_room: Vec<_> = self.nodes[node].lanes.iter().map(room).collect();
        mesh_room[shard] = 0;
        let open = self.nodes[node].control.as_ref().map_or([true; 2], |control| control.open);
        let Node { lanes, memory, receive_pool, send_pool, .. } = &mut self.nodes[node];
        let mut around = Surroundings {
            memory,
            send_pool: &mut self.pools[*send_pool],
            receive_pool,
            streams: &mut self.streams,
            ledger: &mut self.ledger,
            random: &mut self.random,
            counts: &mut self.counts,
            trace: &mut self.trace,
            plan: &self.plan,
            bugs: &mut self.bugs,
            open,
            leaving: &mut leaving,
            handed_over: &mut handed_over,
            letters: &mut letters,
            mesh_room: &mut mesh_room,
            said: &mut said,
        };
        act(&mut lanes[shard], &mut around);
        for (to, arrival) in handed_over {
            self.nodes[node].lanes[usize::from(to)].driver.arrive(arrival);
            self.request_turn(node, usize::from(to), now + 500);
        }
        for (to, message) in said {
            self.nodes[node].lanes[usize::from(to)].heard.push_back((ShardId(shard as u8), message));
            self.request_turn(node, usize::from(to), now + 500);
        }
        // What finds no room is said when there is some.
        for (sibling, room) in mesh_room.into_iter().enumerate() {
            if room == 0 && sibling != shard {
                self.request_turn(node, shard, now + 1500);
            }
        }
        for frame in leaving {
            self.depart(node, &frame);
        }
        self.carry_letters(node, letters);
        self.carry_streams();
    }

    /// All nodes hear of it at once.
    fn change_mtu(&mut self) {
        if self.phase != Phase::Active {
            return;
        }
        self.counts.add(Fault::MtuChanged);
        let bytes = self.random.pick(&[1472, 2000, 8972]);
        self.trace.say(|| format!("datagrams are at most {bytes} bytes long"));
        self.datagram_max_bytes.fill([bytes; 2]);
        for node in 0..self.nodes.len() {
            for shard in 0..self.nodes[node].lanes.len() {
                for ni in 0..u16::from(self.plan.rails) {
                    if let Some(driver) = self.nodes[node].lanes[shard].driver.datagrams() {
                        driver.xfer.set_datagram_max(NiId(ni), bytes);
                    }
                }
                self.request_turn(node, shard, self.now + 1);
            }
        }
    }

    fn fail_device(&mut self, node: usize, ni: NiId) {
        if self.phase != Phase::Active {
            return;
        }
        self.counts.add(Fault::DeviceGivenUp);
        self.trace.say(|| format!("node {node} gives up {ni:?}"));
        let now = Instant(self.now);
        for shard in 0..self.nodes[node].lanes.len() {
            self.with_lane(node, shard, |lane, around| lane.fail_interface(now, ni, Cause::Device, around));
            self.request_turn(node, shard, now.0 + 1);
        }
    }

    fn change_lazy(&mut self, node: usize, portal: u32) {
        if self.phase != Phase::Active {
            return;
        }
        let lazy = self.random.once_in(2);
        self.counts.add(Fault::LazyChanged);
        self.trace.say(|| format!("node {node} portal {portal} is lazy: {lazy}"));
        for shard in 0..self.nodes[node].lanes.len() {
            let lane = &mut self.nodes[node].lanes[shard].shard;
            let changed = if lazy { lane.set_lazy(portal) } else { lane.clear_lazy(portal) };
            changed.expect("a portal that exists");
            self.request_turn(node, shard, self.now + 1);
        }
    }

    /// A node ends without a word, and begins a new life.
    fn restart(&mut self, number: usize) {
        if self.phase == Phase::Active {
            self.begin_anew(number);
        }
    }

    pub(super) fn begin_anew(&mut self, number: usize) {
        self.counts.add(Fault::Restart);
        let former = self.nodes[number].life;
        self.trace.say(|| format!("node {number} restarts"));
        self.count_node(number);
        self.streams.end_node(self.now, number, &mut self.random);
        self.carry_streams();
        let node = self.make_node(number, former + 1);
        self.nodes[number] = node;
        let Self { ledger, open, unsent, .. } = self;
        let lives = |operation: &u32| {
            let operation = &ledger.operations[*operation as usize];
            (operation.node, operation.life) != (number, former)
        };
        open.retain(lives);
        unsent.retain(lives);
        self.posted.retain(|posted| posted.node != number);
        self.shared.retain(|shared| shared.node != number);
        self.post_buckets(number);
        self.begin_routing(number);
    }

    pub(super) fn into_outcome(mut self) -> Outcome {
        self.counts.operations = self.ledger.operations.len() as u64;
        self.counts.messages = self.ledger.delivered;
        Outcome { counts: self.counts, violation: self.ledger.violation, lines: self.trace.into_lines() }
    }
}
