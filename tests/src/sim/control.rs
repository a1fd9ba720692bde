//! The control of the nodes: NIs that go and come back under load.
//!
//! The control state machine is the real one; this is its runner. Snapshots reach each shard after a time of
//! its own, NIs take theirs to open and to close, and sometimes do not open.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lnet_core::handle::ShardId;
use lnet_core::lnd::NiId;
use lnet_core::node::{
    Action, DriverError, NetOptions, NiSpec, Node, NodeChange, NodeConfig, Report, Request, RequestError,
};
use lnet_core::shard::Confirmation;
use lnet_core::time::Instant;
use lnet_core::topology::Topology;
use lnet_wire::steer::{PORTALS, PolicyWord};
use lnet_wire::{Global, Nid};

use super::driver::Fresh;
use super::node::{self, nid};
use super::plan::{Plan, US};
use super::report::Fault;
use super::routers;
use super::services::Word;
use super::world::{Happening, Phase, World};

const SECOND_NS: u64 = 1_000_000_000;
/// How long a snapshot is on its way to a shard, and a driver busy with an NI, at most.
const SLOW_NS: u64 = 500 * US;

/// The control state machine of a node, and what its runner keeps.
pub(super) struct Control {
    node: Node<()>,
    /// The newest snapshot.
    pub(super) snapshot: Arc<Topology>,
    /// The answer to pings.
    pub(super) published: Arc<[u8]>,
    /// Pings and pushes that it has asked for at its start.
    early: VecDeque<Action<()>>,
    /// What each shard said last.
    confirmed: Vec<Option<Confirmation>>,
    /// Rails that are open.
    pub(super) open: [bool; 2],
    /// When its timers are looked at next.
    due_at: Option<u64>,
}

fn add(plan: &Plan, number: usize, rail: u8) -> NodeChange<()> {
    let (credits, peer_credits) = node::credits(plan, number);
    let (credits, peer_credits) = (Some(credits), Some(peer_credits));
    let lnd_timeout = Duration::from_nanos(plan.message_ns);
    let facts = plan.facts();
    let peer_buffer_credits = (plan.router_credits > 0).then_some(plan.router_credits);
    let options = NetOptions {
        credits,
        peer_credits,
        peer_buffer_credits,
        lnd_timeout,
        facts,
        ..NetOptions::default()
    };
    NodeChange::AddNi(NiSpec {
        nid: nid(plan, number, rail),
        interface: format!("rail{rail}"),
        options,
        lnd: (),
    })
}

impl Control {
    /// A node with all its rails.
    pub(super) fn new(plan: &Plan, number: usize, policies: [PolicyWord; PORTALS], now: Instant) -> Self {
        let shards = plan.shards[number];
        let (rails, slots) = (plan.rails_of(number), u16::from(plan.rails) + 1);
        let router_buffers_max = plan.pool_buffers.iter().sum::<u32>() * u32::from(shards);
        let config =
            NodeConfig { policies, router_buffers_max, ..NodeConfig::new(shards, slots, &[plan.net_type()]) };
        let mut node = Node::new(config);
        let seconds = (plan.transaction_ns / SECOND_NS) as i64;
        let set = [(Global::RetryCount, 0), (Global::TransactionTimeout, seconds)];
        let set = set.map(|(setting, value)| NodeChange::Set { setting, value });
        let changes = set.into_iter().chain((0..rails).map(|rail| add(plan, number, rail)));
        let changes = changes.chain(routers::changes(plan, number));
        let start = if plan.routers > 0 { now } else { Instant(0) };
        node.handle_request(start, Request::batch(changes.collect())).expect("there is no other request");
        let (mut snapshot, mut published, mut early) = (None, Arc::default(), VecDeque::new());
        loop {
            if let Some(newer) = node.poll_snapshot() {
                let generation = newer.generation();
                for shard in (0..shards).map(ShardId) {
                    let confirmation = Confirmation {
                        shard,
                        generation,
                        is_quiet: true,
                        arrived_count: 0,
                        portals_in_use: 0,
                        is_forwarding: false,
                    };
                    node.handle_report(start, Report::Confirmed(confirmation));
                }
                snapshot = Some(newer);
            }
            match node.poll_action() {
                Some(Action::Open { ni, .. }) => {
                    node.handle_report(start, Report::Opened { ni, result: Ok(()) });
                }
                Some(Action::Publish(answer)) => published = answer,
                Some(Action::Pools(_)) => node.handle_report(start, Report::Pools { result: Ok(()) }),
                Some(Action::Done { result, .. }) => assert!(result.is_ok(), "{result:?}"),
                Some(action @ (Action::Ping { .. } | Action::Push { .. })) => early.push_back(action),
                Some(_) => {}
                None => break,
            }
        }
        let snapshot = snapshot.expect("a node has a snapshot");
        let confirmed = vec![None; usize::from(shards)];
        Self { node, snapshot, published, confirmed, early, open: [true, rails == 2], due_at: None }
    }

    /// Visits of peers that were given up for others.
    pub(super) fn evicted_count(&self) -> u64 {
        self.node.discovery_counters().evicted
    }

    /// The slot of the NI with a NID.
    pub(super) fn slot_of(&self, nid: &Nid) -> Option<NiId> {
        self.snapshot.local_nis().find(|(_, ni)| ni.nid == *nid).map(|(ni, _)| ni)
    }

    /// Room for a push.
    pub(super) fn push_room_bytes(&self) -> usize {
        self.node.push_room_bytes()
    }

    /// Whether nothing is being changed.
    pub(super) fn is_at_rest(&self) -> bool {
        self.node.request_count() == 0
    }
}

impl World {
    /// A rail is deleted, and added again after a time.
    pub(super) fn delete_rail(&mut self, number: usize, rail: u8) {
        if self.phase != Phase::Active {
            return;
        }
        let life = self.nodes[number].life;
        let change = NodeChange::DeleteNi { nid: nid(&self.plan, number, rail) };
        if self.change(number, change) {
            self.counts.add(Fault::InterfaceDeleted);
        }
        let back = self.now + self.random.bits() % self.plan.active_ns;
        self.at(back, Happening::AddRail { node: number, rail, life });
    }

    pub(super) fn add_rail(&mut self, number: usize, rail: u8, life: u32) {
        if self.nodes[number].life == life {
            let change = add(&self.plan, number, rail);
            self.change(number, change);
        }
    }

    /// All rails are there again, soon.
    pub(super) fn add_all_rails(&mut self) {
        for number in 0..self.nodes.len() {
            for rail in 0..self.plan.rails_of(number) {
                self.add_rail(number, rail, self.nodes[number].life);
            }
        }
    }

    /// Asks a node's control for a change; says whether it has one.
    fn change(&mut self, number: usize, change: NodeChange<()>) -> bool {
        self.trace.say(|| format!("node {number}: {change:?}"));
        let now = Instant(self.now);
        let Some(control) = &mut self.nodes[number].control else { return false };
        // A change that was refused because too many wait is asked for again at the end.
        let drain_timeout = Duration::from_nanos(self.plan.stall_ns);
        let batch = Request::Batch { changes: vec![change], drain_timeout };
        let accepted = control.node.handle_request(now, batch).is_ok();
        self.run_control(number);
        accepted
    }

    /// Does what a node's control says.
    pub(super) fn run_control(&mut self, number: usize) {
        let (now, life) = (self.now, self.nodes[number].life);
        let Some(mut control) = self.nodes[number].control.take() else { return };
        if let Some(snapshot) = control.node.poll_snapshot() {
            control.snapshot = snapshot;
            for shard in 0..self.nodes[number].lanes.len() {
                let at = now + 1 + self.random.bits() % SLOW_NS;
                self.at(at, Happening::Snapshot { node: number, shard, life });
            }
        }
        while let Some(action) = control.early.pop_front().or_else(|| control.node.poll_action()) {
            self.trace.say(|| format!("node {number}: {action:?}"));
            let later = now + 1 + self.random.bits() % SLOW_NS;
            match action {
                Action::Open { ni, spec, .. } => {
                    let rail = rail_of(&spec.interface);
                    self.at(later, Happening::Opened { node: number, ni: ni.0, rail, life });
                }
                Action::Close { ni } => {
                    let rails = 0..self.plan.rails_of(number);
                    let closed = control.snapshot.ni(ni).map(|local| local.nid);
                    let rail = rails.into_iter().find(|rail| closed == Some(nid(&self.plan, number, *rail)));
                    self.at(later, Happening::Closed { node: number, ni: ni.0, rail, life });
                }
                Action::Done { result: Err(RequestError::Open { nid: failed, .. }), .. } => {
                    let mut rails = 0..self.plan.rails_of(number);
                    if let Some(rail) = rails.find(|rail| failed == nid(&self.plan, number, *rail)) {
                        self.at(later, Happening::AddRail { node: number, rail, life });
                    }
                }
                Action::Ping { ping, nid, source, length_bytes, .. } => {
                    self.ask(number, ping, nid, Word::Ping { source, length_bytes: length_bytes as u32 });
                }
                Action::Push { ping, nid, bytes, .. } => self.ask(number, ping, nid, Word::Push(bytes)),
                Action::Forget { ping } => self.forget_errand(number, ping),
                Action::Disconnect { nid } => self.end_from_elsewhere(number, &nid),
                _ => {}
            }
        }
        if let Some(at) = control.node.poll_timeout().map(|at| at.0.max(now + 1))
            && control.due_at.is_none_or(|due| at < due || due <= now)
        {
            control.due_at = Some(at);
            self.at(at, Happening::Control { node: number, life });
        }
        self.nodes[number].control = Some(control);
        self.begin_errands(number);
    }

    /// Connections end that speak in a name from other addresses than its own.
    fn end_from_elsewhere(&mut self, number: usize, nid: &Nid) {
        let now = Instant(self.now);
        for shard in 0..self.nodes[number].lanes.len() {
            self.with_lane(number, shard, |lane, around| lane.end_from_elsewhere(now, nid, around));
            self.request_turn(number, shard, self.now + 1);
        }
    }

    /// Tells a node's control something.
    pub(super) fn report(&mut self, number: usize, report: Report<'_>) {
        let now = Instant(self.now);
        if let Some(control) = &mut self.nodes[number].control {
            control.node.handle_report(now, report);
            self.run_control(number);
        }
    }

    pub(super) fn time_out_control(&mut self, number: usize, life: u32) {
        let now = Instant(self.now);
        if self.nodes[number].life == life
            && let Some(control) = &mut self.nodes[number].control
        {
            control.node.handle_timeout(now);
            self.run_control(number);
        }
    }

    pub(super) fn opened(&mut self, number: usize, ni: NiId, rail: u8, life: u32) {
        if self.nodes[number].life != life {
            return;
        }
        let fails = self.phase == Phase::Active && self.random.once_in(4);
        let message = "no such device".to_owned();
        let result = if fails { Err(DriverError { errno: 19, message }) } else { Ok(()) };
        let node = &mut self.nodes[number];
        if fails {
            self.counts.add(Fault::OpenFailed);
        } else if let Some(control) = &mut node.control {
            let is_first = control.open == [false; 2];
            control.open[usize::from(rail)] = true;
            if is_first {
                self.counts.add(Fault::AllDeleted);
            }
            node.renew(rail, is_first, &mut self.random);
        }
        self.report(number, Report::Opened { ni, result });
    }

    pub(super) fn closed(&mut self, number: usize, ni: NiId, rail: Option<u8>, life: u32) {
        if self.nodes[number].life != life {
            return;
        }
        if let (Some(control), Some(rail)) = (&mut self.nodes[number].control, rail) {
            control.open[usize::from(rail)] = false;
        }
        let quiet = self.nodes[number].lanes.iter().all(|lane| lane.shard.is_quiet(ni));
        self.ledger.expect(quiet, "what is closed is quiet", || format!("node {number} {ni:?}"));
        self.report(number, Report::Closed { ni });
    }

    /// The newest snapshot reaches a shard.
    pub(super) fn take_snapshot(&mut self, number: usize, shard: usize, life: u32) {
        let node = &self.nodes[number];
        let Some(control) = node.control.as_ref().filter(|_| node.life == life) else { return };
        let snapshot = Arc::clone(&control.snapshot);
        let rails: Vec<_> =
            (0..self.plan.rails_of(number)).map(|rail| nid(&self.plan, number, rail)).collect();
        let now = Instant(self.now);
        let fresh = Fresh {
            config: node.config.clone(),
            datagram_max_bytes: self.datagram_max_bytes[number],
            checksum: self.plan.checksums[number],
        };
        self.with_lane(number, shard, |lane, around| {
            lane.install(now, &snapshot, &rails, &fresh, around);
        });
        self.request_turn(number, shard, self.now + 1);
        self.confirm(number, shard);
    }

    /// A shard says what it has, if that is anything new.
    pub(super) fn confirm(&mut self, number: usize, shard: usize) {
        let node = &mut self.nodes[number];
        let Some(control) = &mut node.control else { return };
        let confirmation = node.lanes[shard].shard.confirmation();
        if !control.is_at_rest() && control.confirmed[shard].replace(confirmation) != Some(confirmation) {
            self.report(number, Report::Confirmed(confirmation));
        }
    }
}

fn rail_of(interface: &str) -> u8 {
    interface.trim_start_matches("rail").parse().expect("the name of a rail")
}
