//! Routers of a fleet: what nodes know of them, how what is for another net gets there, and what is found out
//! about the ones that fail.

use std::collections::HashMap;

use lnet_core::Shard;
use lnet_core::handle::{BufferHandle, Cookie, CookieKind};
use lnet_core::limits::Limits;
use lnet_core::node::NodeChange;
use lnet_core::stats::DropReason;
use lnet_core::time::Instant;
use lnet_model::pool::PoolKind;
use lnet_model::route::RouteSpec;
use lnet_wire::{Body, Header, Net, Nid};

use super::file::Group;
use super::node::LIMITS;
use super::{Fleet, SECOND_NS, World, nids_of};

/// Routers that a message may meet before it is taken to go round for ever.
const HOPS_MAX: u32 = 64;
/// NIDs that a shard of a router has room for.
const ROUTER_PEERS: u32 = 2048;
/// Messages that arrive at a router at once.
const ROUTER_INCOMING: u32 = 1024;

/// The part of a node in routing: it is a router, or has gateways.
#[derive(Clone, Default)]
pub(super) struct Routing {
    /// Buffers of each pool; without any it is no router.
    pub(super) buffers: u32,
    routes: Vec<RouteSpec>,
}

impl Routing {
    /// The routing of a node of a group.
    pub(super) fn of(fleet: &Fleet, group: &Group, number: u32) -> Self {
        let mut routes = Vec::new();
        let own: Vec<Net> = nids_of(fleet, group, number).iter().map(|(_, nid)| nid.net()).collect();
        for plan in &group.routes {
            let net = plan.net().expect("a checked net");
            let routers = fleet.numbers(&plan.gateways, 0, None);
            let gateways =
                fleet.groups.iter().find(|its| its.name == plan.gateways).expect("a checked group");
            let count = routers.len() as u32;
            for turn in 0..plan.each.unwrap_or(count) {
                let router = routers.start + (number + turn * count / plan.each.unwrap_or(count)) % count;
                let nids = nids_of(fleet, gateways, router);
                if router != number
                    && let Some((_, gateway)) = nids.into_iter().find(|(_, nid)| own.contains(&nid.net()))
                {
                    routes.push(RouteSpec { hops: plan.hops, ..RouteSpec::new(net, gateway) });
                }
            }
        }
        Self { buffers: group.router_buffers, routes }
    }

    pub(super) const fn is_router(&self) -> bool {
        self.buffers > 0
    }

    /// Buffers of all pools.
    pub(super) const fn buffers_max(&self) -> u32 {
        self.buffers * PoolKind::ALL.len() as u32
    }

    /// The limits of its shard.
    pub(super) const fn limits(&self) -> Limits {
        if !self.is_router() {
            return LIMITS;
        }
        let forwards = self.buffers_max();
        Limits { forwards, incoming: ROUTER_INCOMING, peers: ROUTER_PEERS, ..LIMITS }
    }

    /// Changes that its state machine begins with.
    pub(super) fn changes(&self) -> impl Iterator<Item = NodeChange<()>> {
        let buffer_count = self.buffers;
        let pools = PoolKind::ALL.iter().map(move |pool| NodeChange::SetPool { pool: *pool, buffer_count });
        let router = core::iter::once(NodeChange::SetRouting { on: true }).chain(pools);
        let routes = self.routes.iter().map(|route| NodeChange::AddRoute(*route));
        router.filter(|_| self.is_router()).chain(routes)
    }
}

/// Gives a shard as many router buffers, which have no bytes.
pub(super) fn fill_pools(shard: &mut Shard, totals: [u32; PoolKind::ALL.len()]) {
    shard.set_router_pools(totals);
    let mut slot = 0;
    for (kind, count) in PoolKind::ALL.iter().zip(shard.missing_router_buffers()) {
        for _ in 0..count {
            shard
                .add_router_buffer(*kind, BufferHandle(Cookie::new(CookieKind::Buffer, shard.id(), slot, 1)));
            slot += 1;
        }
    }
}

/// Findings about routers in a run.
#[derive(Default)]
pub(super) struct RouterWatch {
    /// When those died that are down.
    died_at: HashMap<u32, u64>,
    /// Time from the death of a router that is down to the last message that each node has sent to it.
    left_after_ns: HashMap<(u32, u32), u64>,
    /// How long nodes went on to send to routers that were down.
    pub(super) left_ns: Vec<u64>,
    /// Routers that each Put has met.
    hops: HashMap<u64, u32>,
    /// When the last router has returned, until all routes are up again.
    pub(super) returned_at: Option<u64>,
}

impl World<'_> {
    /// Whether a node is a router.
    pub(super) fn is_router(&self, number: u32) -> bool {
        self.fleet.groups[self.places[number as usize].group].router_buffers > 0
    }

    /// Whether a node has routes to a net.
    pub(super) fn has_route(&self, number: u32, net: Net) -> bool {
        let group = &self.fleet.groups[self.places[number as usize].group];
        group.routes.iter().any(|route| route.net() == Ok(net))
    }

    /// Whether a node may begin to talk to another one.
    pub(super) fn may_talk(&self, number: u32, partner: u32) -> bool {
        let [group, its] =
            [number, partner].map(|number| &self.fleet.groups[self.places[number as usize].group]);
        let is_meant = group.talks_to.as_ref().is_none_or(|name| *name == its.name);
        let reaches = || {
            let nids = &self.members[partner as usize].nids;
            nids.iter().any(|(_, nid)| self.has_route(number, nid.net()))
        };
        number != partner
            && is_meant
            && its.router_buffers == 0
            && (self.has_common_net(number, partner) || reaches())
    }

    /// The NID by which a node leaves for a net that it is not on, if the gateway that its shard would choose
    /// is there.
    pub(super) fn leaves_by(&self, number: u32, to: &Nid) -> Option<Nid> {
        let shard = &self.members[number as usize].shard;
        let choice = shard.explain(Instant(self.now), to).choice?;
        let source = shard.topology().ni(choice.ni)?.nid;
        self.is_reached(&source, &choice.next_hop).then_some(source)
    }

    /// A message goes to a NID: if that is of a router which is down, its sender has not left it yet.
    pub(super) fn note_hop(&mut self, number: u32, to: &Nid) {
        let Some((router, _)) = self.place_of(to) else { return };
        if let Some(died_at) = self.router_watch.died_at.get(&router) {
            self.report.lost_at_routers += 1;
            self.router_watch.left_after_ns.insert((number, router), self.now - died_at);
        }
    }

    /// A router dies, or is there again.
    pub(super) fn note_router(&mut self, router: u32, is_down: bool) {
        if !self.is_router(router) {
            return;
        }
        let watch = &mut self.router_watch;
        if is_down {
            watch.died_at.entry(router).or_insert(self.now);
            watch.returned_at = None;
            return;
        }
        watch.died_at.remove(&router);
        watch
            .left_ns
            .extend(watch.left_after_ns.extract_if(|(_, its), _| *its == router).map(|(_, left_ns)| left_ns));
        if watch.died_at.is_empty() {
            watch.returned_at = Some(self.now);
        }
    }

    /// A message arrives at a router: one that goes round is found.
    pub(super) fn note_forwarded(&mut self, header: &Header) {
        let Body::Put { hdr_data, .. } = header.body else { return };
        let hops = self.router_watch.hops.entry(hdr_data).or_default();
        *hops += 1;
        let hops = *hops;
        self.report.hops_max = self.report.hops_max.max(hops);
        if hops == HOPS_MAX {
            self.violate(format!("put {hdr_data} goes round: it has met {hops} routers"));
        }
    }

    /// Counts the routes that are up, of all that nodes have.
    pub(super) fn count_routes(&mut self) {
        let routes = self.members.iter().flat_map(|member| member.node.net_routes());
        let (mut up, mut all) = (0, 0);
        for route in routes {
            all += 1;
            up += u64::from(route.is_up);
        }
        (self.report.routes, self.report.routes_up) = (all, up);
        self.report.routes_down_max = self.report.routes_down_max.max(all - up);
        if up == all
            && let Some(returned_at) = self.router_watch.returned_at.take()
        {
            self.report.routes_back_s = Some((self.now - returned_at) as f64 / SECOND_NS as f64);
        }
    }

    /// Checks that the buffers and credits of routers are there again when all has ended.
    pub(super) fn check_routers(&mut self) {
        let mut found = Vec::new();
        for (number, member) in
            self.members.iter().enumerate().filter(|(_, member)| member.routing.is_router())
        {
            for pool in member.shard.router_pools() {
                if (pool.buffers, pool.credits) != (member.routing.buffers, i64::from(pool.buffers)) {
                    found.push(format!("router {number} has a pool of {pool:?}"));
                }
            }
            for peer in member.shard.peers() {
                let credits = member.shard.router_credits(&peer.nid);
                if let Some([total, free, _]) = credits
                    && total != free
                {
                    found.push(format!(
                        "router {number} has {free} of {total} router credits of {}",
                        peer.nid
                    ));
                }
            }
            let counters = member.shard.counters();
            self.report.forwarded += counters.routed.messages;
            self.report.looped += counters.drops(DropReason::Loop).messages;
            self.report.dropped_at_routers += counters.dropped().messages;
        }
        found.into_iter().for_each(|what| self.violate(what));
        self.router_watch.left_ns.sort_unstable();
        let left_ns = &self.router_watch.left_ns;
        let part = |of: usize| left_ns.get((left_ns.len() * of / 100).min(left_ns.len().saturating_sub(1)));
        let seconds =
            |left_ns: Option<&u64>| left_ns.map_or(0.0, |left_ns| *left_ns as f64 / SECOND_NS as f64);
        self.report.left_s = [part(50), part(99), left_ns.last()].map(seconds);
    }
}
