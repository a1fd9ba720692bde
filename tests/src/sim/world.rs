//! A run: the clock, the events in their order, the nodes, the phases from first faults to final rest.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::rc::Rc;

use lnet_core::handle::ShardId;
use lnet_core::lnd::NiId;
use lnet_core::stats::DropReason;
use lnet_core::time::Instant;
use lnet_wire::frame::FRAME_HEADER_BYTES;
use lnet_wire::{FrameHeader, Nid, steer};

use super::app::Posted;
use super::fabric::{Departure, Fabric, Fate, Packet, Passage};
use super::lane::{Arrival, Lane, Leaving, Surroundings};
use super::ledger::Ledger;
use super::node::{self, CREDITS, Identity, Node, PORTALS_USED};
use super::plan::{MESSAGE_NS, MS, Plan, TRANSACTION_NS, happens};
use super::pool::Pool;
use super::report::{Counts, Fault};
use super::trace::Trace;
use super::{Bug, Bugs, Options, Outcome};
use crate::bpf::random::Random;

/// Once faults have stopped, all operations end within this time.
const BOUND_NS: u64 = 2 * (TRANSACTION_NS + 2 * MESSAGE_NS) + 4000 * MS;
/// Steps of a run that never comes to rest.
const STEPS_MAX: u64 = 5_000_000;
/// Messages between shards of a node that wait, at most.
const MESH_ROOM: usize = 4;
/// How often it is looked whether a phase is over.
const CHECK_NS: u64 = 10 * MS;

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
    Rail {
        node: usize,
        rail: usize,
        down: bool,
    },
    /// It is looked whether the phase is over.
    Check,
}

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Operations begin, faults happen.
    Active,
    /// No more faults: all operations come to their end by this time.
    Settling(u64),
    /// All is unlinked: nothing is left by this time.
    Draining(u64),
    Over,
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) random: Random,
    pub(super) now: u64,
    sequence: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    pub(super) nodes: Vec<Node>,
    identities: Vec<Identity>,
    pools: Vec<Pool>,
    fabric: Fabric,
    pub(super) ledger: Ledger,
    pub(super) counts: Counts,
    pub(super) trace: Trace,
    bugs: Bugs,
    phase: Phase,
    /// Entries that were made.
    pub(super) posted: Vec<Posted>,
    /// Entries to be made later.
    pub(super) late: Vec<super::app::Late>,
    /// Operations whose descriptor has not ended, and without their SEND event.
    pub(super) open: BTreeSet<u32>,
    pub(super) unsent: BTreeSet<u32>,
    /// A descriptor of each shard for many PUTs.
    pub(super) shared: Vec<(usize, u32, usize, lnet_core::handle::MdHandle, u64)>,
}

impl World {
    pub(super) fn new(seed: u64, options: &Options) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::new(&mut random, options.nodes);
        let bugs = Bugs(options.bug);
        let hashes = node::initiator_hashes(&plan);
        let identities: Vec<Identity> = (0..plan.shards.len())
            .map(|number| Identity {
                number,
                policies: node::policies(&mut random, plan.shards[number]),
                initiator_hashes: Rc::clone(&hashes),
            })
            .collect();
        let mut world = Self {
            now: random.bits() >> 14,
            sequence: 0,
            queue: BinaryHeap::new(),
            nodes: Vec::new(),
            identities,
            pools: Vec::new(),
            fabric: Fabric::new(plan.shards.len()),
            ledger: Ledger::new(plan.gentle),
            counts: Counts::of_one_run(),
            trace: Trace::new(options.tracing),
            bugs,
            phase: Phase::Active,
            posted: Vec::new(),
            late: Vec::new(),
            open: BTreeSet::new(),
            unsent: BTreeSet::new(),
            shared: Vec::new(),
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
        let incarnation = reused.map_or_else(|| self.random.bits(), |node| node.incarnation);
        self.pools.push(Pool::new(self.plan.send_frames));
        let pool = self.pools.len() - 1;
        let identity = &self.identities[number];
        Node::new(&self.plan, identity, (life, incarnation), pool, &mut self.random, &self.bugs)
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
        }
        for _ in 0..plan.operations {
            let at = start + self.random.bits() % plan.active_ns;
            self.at(at, Happening::Act);
        }
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
        self.at(start + plan.active_ns, Happening::Check);
        let mut steps = 0;
        while self.phase != Phase::Over && self.ledger.violation.is_none() {
            let Some(Reverse((time, _, happening))) = self.queue.pop() else { break };
            steps += 1;
            self.ledger.expect(steps < STEPS_MAX, "a run comes to rest", || format!("{steps} steps"));
            self.now = time;
            self.trace.now = time - start;
            self.step(happening);
        }
    }

    fn step(&mut self, happening: Happening) {
        match happening {
            Happening::Turn { node, shard } => self.turn(node, shard),
            Happening::Pass(slot) => self.pass(slot),
            Happening::Act => self.act(),
            Happening::Post(late) => self.post_late(late),
            Happening::Poll { node, shard, since } => {
                if self.now - since > MS {
                    self.counts.add(Fault::SlowPoll);
                }
                self.poll_events(node, shard);
            }
            Happening::Restart(node) => self.restart(node),
            Happening::Rail { node, rail, down } => {
                self.trace.say(|| format!("node {node} rail {rail} down: {down}"));
                let down = down && self.phase == Phase::Active;
                self.fabric.down[node][rail] = down;
                if down {
                    self.counts.add(Fault::Outage);
                }
            }
            Happening::Check => self.check_phase(),
        }
    }

    fn turn(&mut self, node: usize, shard: usize) {
        let now = self.now;
        let Some(lane) = self.nodes[node].lanes.get_mut(shard).filter(|lane| lane.turn_at == Some(now))
        else {
            return;
        };
        lane.turn_at = None;
        let (mut leaving, mut handed_over, mut said) = (Vec::new(), Vec::new(), Vec::new());
        let room = |lane: &Lane| MESH_ROOM.saturating_sub(lane.heard.len());
        let mut mesh_room: Vec<_> = self.nodes[node].lanes.iter().map(room).collect();
        mesh_room[shard] = 0;
        let Node { lanes, memory, receive_pool, send_pool, .. } = &mut self.nodes[node];
        let pool = *send_pool;
        let mut around = Surroundings {
            memory,
            send_pool: &mut self.pools[pool],
            receive_pool,
            ledger: &mut self.ledger,
            random: &mut self.random,
            counts: &mut self.counts,
            trace: &mut self.trace,
            plan: &self.plan,
            bugs: &mut self.bugs,
            leaving: &mut leaving,
            handed_over: &mut handed_over,
            mesh_room: &mut mesh_room,
            said: &mut said,
        };
        let lane = &mut lanes[shard];
        lane.turn(Instant(now), &mut around);
        let next = lane.next_turn(now, self.pools[pool].has_free());
        let polls = lane.shard.usage().events != 0 && !std::mem::replace(&mut lane.is_polled, true);
        for (to, arrival) in handed_over {
            self.nodes[node].lanes[usize::from(to)].arrived.push_back(arrival);
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
        if let Some(next) = next {
            self.request_turn(node, shard, next);
        }
        if polls {
            let at = now + 1 + self.random.bits() % self.plan.poll_ns;
            self.at(at, Happening::Poll { node, shard, since: now });
        }
    }

    /// A driver gives a frame to its device.
    fn depart(&mut self, sender: usize, leaving: &Leaving) {
        let Leaving { frame, ni, to } = *leaving;
        let pool = self.nodes[sender].send_pool;
        let found = self.locate(&to);
        self.ledger.expect(found.is_some(), "frames go to nodes", || format!("{to}"));
        let Some((node, to_ni)) = found else { return };
        self.pools[pool].send(frame);
        if self.bugs.strike(Bug::FrameFreedEarly, &mut self.random) {
            self.pools[pool].steal(frame);
        }
        let fate = if self.fabric.carries(sender, ni) {
            self.fabric.fate(&self.plan, &mut self.random, &mut self.counts)
        } else {
            self.counts.add(Fault::Unplugged);
            Fate::LOST
        };
        let from = node::nid(&self.plan, sender, ni.0 as u8);
        let life = self.nodes[sender].life;
        let departure = Departure { sender, life, pool, frame, node, ni: to_ni, from, fate };
        let slot = self.fabric.insert(Passage::Departure(departure));
        let at = self.now + 200 + self.random.bits() % 2000;
        self.at(at, Happening::Pass(slot));
    }

    /// A device reads a frame, or a frame arrives.
    fn pass(&mut self, slot: u32) {
        match self.fabric.remove(slot) {
            Some(Passage::Departure(departure)) => self.leave(&departure),
            Some(Passage::Packet(packet)) => self.arrive(&packet),
            None => {}
        }
    }

    /// The device reads a frame, which is the driver's again.
    fn leave(&mut self, departure: &Departure) {
        let Departure { sender, life, pool, frame, node, ni, from, ref fate } = *departure;
        let blocked = !self.pools[pool].has_free();
        let bytes = Rc::new(self.pools[pool].bytes(frame).to_vec());
        self.pools[pool].read(frame);
        self.check_pool(pool);
        for delay in fate.delays_ns.into_iter().flatten() {
            let flips = self.fabric.flips(&self.plan, &mut self.random, &mut self.counts);
            let astray = (self.fabric.is_faulty && happens(&mut self.random, self.plan.misdirection))
                .then(|| self.random.bits());
            let lives = (life, self.nodes[node].life);
            let packet = Packet { bytes: Rc::clone(&bytes), node, ni, from, sender, lives, flips, astray };
            let slot = self.fabric.insert(Passage::Packet(packet));
            self.at(self.now + delay, Happening::Pass(slot));
        }
        if blocked && self.nodes[sender].send_pool == pool {
            for shard in 0..self.nodes[sender].lanes.len() {
                self.request_turn(sender, shard, self.now + 100);
            }
        }
    }

    fn check_pool(&mut self, pool: usize) {
        if let Some(wrong) = self.pools[pool].wrong.take() {
            self.ledger.fail("frames are conserved", || wrong);
        }
    }

    fn locate(&self, nid: &Nid) -> Option<(usize, NiId)> {
        let rails = 0..self.plan.rails;
        let mut all = (0..self.nodes.len()).flat_map(|node| rails.clone().map(move |rail| (node, rail)));
        let (node, rail) = all.find(|(node, rail)| node::nid(&self.plan, *node, *rail) == *nid)?;
        Some((node, NiId(u16::from(rail))))
    }

    /// A frame arrives at a node.
    fn arrive(&mut self, packet: &Packet) {
        if packet.lives != (self.nodes[packet.sender].life, self.nodes[packet.node].life) {
            self.counts.add(Fault::Stale);
        }
        if !self.fabric.carries(packet.node, packet.ni) {
            return self.counts.add(Fault::Unplugged);
        }
        let node = &mut self.nodes[packet.node];
        let Some(buffer) = node.receive_pool.take() else {
            return self.counts.add(Fault::NoBuffer);
        };
        let mut bytes = std::mem::take(node.receive_pool.bytes_mut(buffer));
        packet.copy_to(&mut bytes);
        let own = steered(&bytes, node);
        *node.receive_pool.bytes_mut(buffer) = bytes;
        let Some(own) = own else {
            self.counts.refused += 1;
            return node.receive_pool.free(buffer);
        };
        let shard = packet.astray.map_or(own, |astray| (astray % node.lanes.len() as u64) as usize);
        if shard != own {
            self.counts.add(Fault::Misdirected);
        }
        let arrival = Arrival { frame: buffer, ni: packet.ni, from: packet.from };
        node.lanes[shard].arrived.push_back(arrival);
        self.request_turn(packet.node, shard, self.now + 500);
        if let Some(wrong) = self.nodes[packet.node].receive_pool.wrong.take() {
            self.ledger.fail("frames are conserved", || wrong);
        }
    }

    /// A node ends without a word, and begins a new life.
    fn restart(&mut self, number: usize) {
        if self.phase != Phase::Active {
            return;
        }
        self.counts.add(Fault::Restart);
        let former = self.nodes[number].life;
        self.trace.say(|| format!("node {number} restarts"));
        self.count_node(number);
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
        self.shared.retain(|shared| shared.0 != number);
        self.post_buckets(number);
    }

    /// Adds what a node has counted to what the run has.
    fn count_node(&mut self, number: usize) {
        for lane in &self.nodes[number].lanes {
            self.counts.add_xfer(lane.xfer.counters());
            for reason in [
                DropReason::Malformed,
                DropReason::NotLocal,
                DropReason::NoSource,
                DropReason::NoRoute,
                DropReason::Portal,
            ] {
                let dropped = lane.shard.counters().drops(reason).messages;
                self.ledger.expect(dropped == 0, "no message is dropped without cause", || {
                    format!("node {number} has dropped {dropped}: {reason}")
                });
            }
        }
    }

    fn check_phase(&mut self) {
        let now = self.now;
        match self.phase {
            Phase::Active => {
                self.trace.say(|| "faults stop".to_owned());
                self.phase = Phase::Settling(now + BOUND_NS);
                self.fabric.is_faulty = false;
                self.fabric.down.fill([false; 2]);
                for node in 0..self.nodes.len() {
                    for shard in 0..self.nodes[node].lanes.len() {
                        let lane = &mut self.nodes[node].lanes[shard];
                        lane.end_delays();
                        for portal in 0..PORTALS_USED as u32 {
                            lane.shard.clear_lazy(portal).expect("a portal that exists");
                        }
                        self.request_turn(node, shard, now + 1);
                    }
                }
            }
            Phase::Settling(_) if self.open.is_empty() && self.unsent.is_empty() => {
                self.phase = Phase::Draining(now + BOUND_NS);
                self.trace.say(|| "all is unlinked".to_owned());
                self.unlink_all();
            }
            Phase::Settling(until) => self.ledger.expect(now < until, "every operation ends", || {
                format!("without SEND event: {:?}; not unlinked: {:?}", self.unsent, self.open)
            }),
            Phase::Draining(_) if self.is_at_rest() => {
                self.phase = Phase::Over;
                self.check_rest();
            }
            Phase::Draining(until) => {
                let rest = now < until || self.ledger.violation.is_some();
                let found = if rest { String::new() } else { self.describe_unrest() };
                self.ledger.expect(rest, "all comes to rest", || found);
            }
            Phase::Over => {}
        }
        self.at(now + CHECK_NS, Happening::Check);
    }

    fn is_at_rest(&self) -> bool {
        let at_rest =
            |node: &Node| node.memory.living().next().is_none() && node.lanes.iter().all(Lane::is_at_rest);
        self.fabric.is_empty() && self.nodes.iter().all(at_rest)
    }

    fn describe_unrest(&self) -> String {
        let mut text = format!("fabric empty: {}", self.fabric.is_empty());
        for (number, node) in self.nodes.iter().enumerate() {
            let mds: Vec<_> = node.memory.living().collect();
            text += &format!("\nnode {number}: descriptors {mds:?}");
            for lane in &node.lanes {
                text += &format!("\n  {:?} {:?}", lane.xfer.usage(), lane.shard.usage());
            }
        }
        text
    }

    /// What must hold when nothing happens any more.
    fn check_rest(&mut self) {
        for number in 0..self.nodes.len() {
            self.count_node(number);
            let node = &self.nodes[number];
            let shards = node.lanes.len() as u32;
            let home = [CREDITS.0, CREDITS.1].map(|credits| i64::from(credits.div_ceil(shards).max(1)));
            for lane in &node.lanes {
                let usage = lane.shard.usage();
                let left = [
                    usage.match_entries,
                    usage.memory_descs,
                    usage.delayed,
                    usage.events,
                    usage.messages,
                    usage.trackers,
                ];
                self.ledger.expect(left == [0; 6], "nothing is left", || format!("node {number}: {usage:?}"));
                let interfaces =
                    (0..u16::from(self.plan.rails)).map(|ni| lane.shard.interface_credits(NiId(ni)));
                for credits in interfaces {
                    self.ledger.expect(credits == Some(home[0]), "credits are conserved", || {
                        format!("node {number}: {credits:?} of {home:?}")
                    });
                }
                let nids =
                    (0..self.nodes.len()).flat_map(|node| (0..self.plan.rails).map(move |rail| (node, rail)));
                for (peer, rail) in nids {
                    let credits = lane.shard.peer_credits(&node::nid(&self.plan, peer, rail));
                    self.ledger.expect(
                        credits.is_none_or(|credits| credits == home[1]),
                        "credits are conserved",
                        || format!("node {number} to {peer}: {credits:?} of {home:?}"),
                    );
                }
            }
            let frames = node.receive_pool.is_home();
            self.ledger
                .expect(frames, "frames are conserved", || format!("node {number}: frames are not home"));
        }
        let frames = self.pools.iter().all(Pool::is_home);
        self.ledger.expect(frames, "frames are conserved", || "sent frames are not home".to_owned());
        self.check_operations();
    }

    fn check_operations(&mut self) {
        for number in 0..self.ledger.operations.len() {
            let operation = self.ledger.operations[number].clone();
            let lives = self.nodes[operation.node].life == operation.life;
            let holds = !lives || !operation.started || operation.send_events == 1;
            self.ledger
                .expect(holds, "events are never lost", || format!("operation {number}: {operation:?}"));
            let taken = operation.taken.is_some_and(|(node, life)| self.nodes[node].life == life);
            let holds = !taken || operation.target_events == 1;
            self.ledger
                .expect(holds, "events are never lost", || format!("operation {number}: {operation:?}"));
        }
    }

    pub(super) fn into_outcome(mut self) -> Outcome {
        self.counts.operations = self.ledger.operations.len() as u64;
        self.counts.messages = self.ledger.delivered;
        Outcome { counts: self.counts, violation: self.ledger.violation, lines: self.trace.into_lines() }
    }
}

/// The shard that a frame is steered to; `None` if it is none of ours.
fn steered(bytes: &[u8], node: &Node) -> Option<usize> {
    let head = bytes.first_chunk::<FRAME_HEADER_BYTES>()?;
    let key = FrameHeader::decode(head, bytes.len()).ok()?.key;
    let policy = node.policies[usize::from(key.portal)];
    Some(steer::shard_of(&key, policy, node.lanes.len() as u32) as usize)
}
