//! Routers between the nodes: their buffers, what the controls of nodes ask each other about routes, and how
//! routers die.
//!
//! Messages go by routers as they are; pings and pushes of controls take a way of their own, on which what is
//! for a rail that is down is lost.

use lnet_core::Shard;
use lnet_core::handle::{BufferHandle, Cookie, CookieKind};
use lnet_core::lnd::NiId;
use lnet_core::node::{NodeChange, PingId, Report};
use lnet_model::pool::PoolKind;
use lnet_model::route::RouteSpec;
use lnet_wire::{Net, Nid, Parameter};

use super::memory::Memory;
use super::node::nid;
use super::plan::{Plan, US};
use super::report::Fault;
use super::services::Word;
use super::world::{Happening, Phase, World};
use super::{Bug, Bugs};

/// How long what a control asks and its answer are under way together, at most.
const ASIDE_NS: u64 = 500 * US;
/// Bytes of a page of a pool.
const PAGE_BYTES: usize = 4096;
/// How often gateways are checked, and how long each answer may take, in seconds.
const CHECKS: [(Parameter, u32); 2] =
    [(Parameter::AliveRouterCheckInterval, 1), (Parameter::RouterPingTimeout, 1)];

/// A ping or push of a node's control to the NI with a NID.
pub(super) struct Asked {
    node: usize,
    life: u32,
    ping: PingId,
    to: Nid,
    word: Word,
}

/// Changes that the control of a node begins with besides its NIs, where there are routers: it is one, or has
/// all of them as gateways to the other net.
pub(super) fn changes(plan: &Plan, number: usize) -> Vec<NodeChange<()>> {
    if plan.routers == 0 {
        return Vec::new();
    }
    let mut changes = CHECKS.map(|(parameter, value)| NodeChange::SetParameter { parameter, value }).to_vec();
    if plan.router(number).is_some() {
        changes.push(NodeChange::SetRouting { on: true });
        let pools = PoolKind::ALL.iter().zip(totals(plan, number));
        changes.extend(pools.map(|(pool, buffer_count)| NodeChange::SetPool { pool: *pool, buffer_count }));
    }
    if plan.is_ring() {
        changes.extend(around(plan, number).into_iter().map(NodeChange::AddRoute));
    } else if plan.router(number).is_none() {
        let own = plan.net_of(number, 0);
        let gateways = (plan.hosts()..plan.shards.len()).map(|router| nid(plan, router, own as u8));
        let net = Net::new(plan.net_type(), 1 - own);
        changes.extend(gateways.map(|gateway| NodeChange::AddRoute(RouteSpec::new(net, gateway))));
    }
    changes
}

/// Routes of a node of a ring to the nets that it is not on: the shorter way round, or both.
fn around(plan: &Plan, number: usize) -> Vec<RouteSpec> {
    let nets = plan.nets();
    let own: Vec<u16> = (0..plan.rails_of(number)).map(|rail| plan.net_of(number, rail)).collect();
    let (first, last) = (own[0], own[own.len() - 1]);
    // The router from a net to the next one.
    let router = |net: u16| plan.hosts() + usize::from(net % nets);
    let mut routes = Vec::new();
    for net in (0..nets).filter(|net| !own.contains(net)) {
        let (on, back) = ((net + nets - last) % nets, (first + nets - net) % nets);
        let route = |hops: u16, gateway| {
            let to = Net::new(plan.net_type(), net);
            RouteSpec { hops: Some(hops as u8), ..RouteSpec::new(to, gateway) }
        };
        if on <= back {
            routes.push(route(on, nid(plan, router(last), 0)));
        }
        if back <= on {
            routes.push(route(back, nid(plan, router(first + nets - 1), 1)));
        }
    }
    routes
}

/// Buffers of each pool of a router, all shards together.
fn totals(plan: &Plan, number: usize) -> [u32; PoolKind::ALL.len()] {
    plan.pool_buffers.map(|count| count * u32::from(plan.shards[number]))
}

/// Gives a shard of a router its buffers.
pub(super) fn fill_pools(
    plan: &Plan,
    number: usize,
    (shard, bugs): (&mut Shard, &Bugs),
    memory: &mut Memory,
) {
    let shared = bugs.has(Bug::BuffersShared);
    shard.set_router_pools(totals(plan, number));
    let mut slot = 0;
    for (kind, count) in PoolKind::ALL.iter().zip(shard.missing_router_buffers()) {
        for _ in 0..count {
            let buffer = BufferHandle(Cookie::new(CookieKind::Buffer, shard.id(), slot, 1));
            memory.provide(buffer, kind.page_count() as usize * PAGE_BYTES, shared);
            shard.add_router_buffer(*kind, buffer);
            slot += 1;
        }
    }
}

impl Plan {
    /// The node that has a NID, if it is a router.
    pub(super) fn router_at(&self, of: &Nid) -> Option<usize> {
        (self.hosts()..self.shards.len())
            .find(|node| (0..self.rails).any(|rail| nid(self, *node, rail) == *of))
    }
}

impl World {
    /// A node that knows routes begins to look at its gateways.
    pub(super) fn begin_routing(&mut self, number: usize) {
        if self.plan.routers > 0 {
            self.run_control(number);
        }
    }

    /// A control asks something of another one.
    pub(super) fn ask_aside(&mut self, node: usize, ping: PingId, to: Nid, word: Word) {
        let life = self.nodes[node].life;
        self.asked.push(Asked { node, life, ping, to, word });
        let at = self.now + 1 + self.random.bits() % ASIDE_NS;
        self.at(at, Happening::Answer(self.asked.len() as u32 - 1));
    }

    /// Answers what a control has asked, unless it is lost.
    pub(super) fn answer_aside(&mut self, asked: usize) {
        let Asked { node, life, ping, to, ref word } = self.asked[asked];
        let mut own = (0..self.plan.rails_of(node)).map(|rail| (rail, nid(&self.plan, node, rail)));
        let Some((rail, from)) = own.find(|(_, nid)| nid.net() == to.net()) else { return };
        let Some((target, ni)) = self.locate(&to) else { return };
        let is_down = |node: usize, ni: NiId| self.fabric.down[node][usize::from(ni.0)];
        if self.nodes[node].life != life || is_down(node, NiId(rail.into())) || is_down(target, ni) {
            return;
        }
        let Some(control) = &self.nodes[target].control else { return };
        match word {
            Word::Ping { length_bytes, .. } => {
                let (answer, slot) = (control.published.clone(), control.slot_of(&to));
                let length = answer.len().min(*length_bytes as usize);
                if let Some(ni) = slot {
                    self.report(target, Report::Pinged { ni });
                }
                self.report(node, Report::Answered { ping, bytes: &answer[..length] });
            }
            Word::Push(bytes) => {
                let (bytes, room) = (bytes.clone(), control.push_room_bytes());
                let report = Report::Pushed {
                    from,
                    bytes: &bytes[..room.min(bytes.len())],
                    length_bytes: bytes.len(),
                };
                self.report(target, report);
                self.report(node, Report::Answered { ping, bytes: &[] });
            }
        }
    }

    /// A router dies: nothing comes to it, and nothing from it.
    pub(super) fn router_dies(&mut self, node: usize) {
        if self.phase != Phase::Active {
            return;
        }
        self.counts.add(Fault::RouterDead);
        self.trace.say(|| format!("router {node} is dead"));
        self.fabric.down[node] = [true; 2];
        let at = self.now + 1 + self.random.bits() % self.plan.dead_ns;
        self.at(at, Happening::Return(node));
    }

    /// A router that was dead begins a new life.
    pub(super) fn router_returns(&mut self, node: usize) {
        if self.phase == Phase::Active {
            self.fabric.down[node] = [false; 2];
            self.begin_anew(node);
        }
    }

    /// Checks that the buffers and credits of routers are there again when nothing happens any more.
    pub(super) fn check_routers(&mut self) {
        let nodes = self.plan.shards.len();
        let rails = |node| (0..self.plan.rails_of(node)).map(move |rail| (node, rail));
        let nids: Vec<_> =
            (0..nodes).flat_map(rails).map(|(node, rail)| nid(&self.plan, node, rail)).collect();
        for number in self.plan.hosts()..nodes {
            for lane in &self.nodes[number].lanes {
                let pools = lane.shard.router_pools();
                let home = self.plan.pool_buffers;
                let are_home =
                    pools.map(|pool| (pool.buffers, pool.credits)) == home.map(|count| (count, count.into()));
                self.ledger.expect(are_home, "router buffers are conserved", || {
                    format!("router {number}: {pools:?} of {home:?}")
                });
                for nid in &nids {
                    let credits = lane.shard.router_credits(nid);
                    let is_home = credits.is_none_or(|[total, free, _]| total == free);
                    self.ledger.expect(is_home, "router credits are conserved", || {
                        format!("router {number}: {nid} has {credits:?}")
                    });
                }
            }
        }
    }
}
