//! The choice of a gateway for what no local NI leads to (LNet `lib-move.c: lnet_find_route_locked`,
//! `lnet_compare_routes`; spec: core 7.4).
//!
//! Of a Multi-Rail peer the best NID on a net with a route is chosen first, and its gateway then. A peer that
//! is not known to be Multi-Rail gets its messages from one local NI: of several local nets with gateways of
//! one tier that of this NI is taken. A program that names a local NI is obeyed. The NI of a gateway tells
//! when it was last used, and not the route, so shards have nothing to remember of routes.
//!
//! Some NIs of a tier are weighed for one message, others for the next: a choice among 10,000 gateways costs
//! no more than one among a few.

use lnet_wire::{Net, Nid};

use super::criteria::{Candidate, GATEWAY, NoTrace, REMOTE, Trace, Values, best_of};
use super::{Choice, Shard, Turn};
use crate::lnd::NiId;
use crate::time::Instant;
use crate::topology::net_routes::{by_net, on_net, tiers};
use crate::topology::{GatewayNi, MemoryNode, NetRoutes, PRIORITY_NONE, PeerView};

/// NIs of a tier that are weighed for a message.
const WEIGHED_MAX: usize = 8;

/// Demands on a route, beside that it leads to the destination.
#[derive(Clone, Copy, Default)]
pub(in crate::shard) struct RouteRequest {
    /// The local NI that it begins with.
    pub(in crate::shard) by: Option<NiId>,
    /// The primary NID of a gateway that is out of the question.
    pub(in crate::shard) avoid: Option<Nid>,
    /// The memory that the message lies in.
    pub(in crate::shard) memory: Option<MemoryNode>,
    /// Whether the message asks a node who it is: such a one may come from any local NI.
    pub(in crate::shard) is_ping: bool,
    /// The primary NID of the peer that has sent the message, if that is another node's: it keeps its ends,
    /// goes by any local NI, and not back.
    pub(in crate::shard) sender: Option<Nid>,
}

/// The message for which gateways are weighed, and the routes that they are of.
struct Weighing<'a> {
    now: Instant,
    request: &'a RouteRequest,
    routes: &'a NetRoutes,
    destination: Nid,
}

impl<'a> Weighing<'a> {
    const fn new(now: Instant, request: &'a RouteRequest, routes: &'a NetRoutes, destination: &Nid) -> Self {
        Self { now, request, routes, destination: *destination }
    }

    /// Whether a gateway is out of the question, by whichever of its NIs.
    fn avoids(&self, gateway: &GatewayNi) -> bool {
        [self.request.avoid, self.request.sender].contains(&Some(gateway.gateway))
    }

    fn prefers(&self, gateway: &GatewayNi) -> bool {
        self.routes.preferred(&self.destination).any(|gateways| gateways.contains(&gateway.gateway))
    }
}

impl Shard {
    /// The path of a request that no local NI leads to directly: by a gateway, or by an NI whose link is
    /// down.
    #[cold]
    pub(super) fn select_far(
        &self,
        now: Instant,
        destination: &Nid,
        self_nid: Option<&Nid>,
        (memory, is_ping): (Option<MemoryNode>, bool),
    ) -> Option<(Choice, Turn)> {
        let named = |nid: &Nid| self.topology.local_nis().find(|(_, ni)| ni.nid == *nid).map(|(ni, _)| ni);
        let by = self_nid.and_then(named);
        // A NID that is none of this node's leads nowhere.
        let routed = (by.is_some() || self_nid.is_none()).then_some(RouteRequest {
            by,
            memory,
            is_ping,
            ..RouteRequest::default()
        });
        let routed = routed.and_then(|request| self.select_route(now, destination, &request));
        let routed = routed.map(|choice| (choice, Turn::Routed));
        routed.or_else(|| Some((self.select_down(destination, self_nid)?, Turn::None)))
    }

    /// The path by the best gateway that leads to a NID, or to another one of a Multi-Rail peer.
    pub(in crate::shard) fn select_route(
        &self,
        now: Instant,
        destination: &Nid,
        request: &RouteRequest,
    ) -> Option<Choice> {
        self.choose_route(now, destination, request, &mut NoTrace)
    }

    /// Chooses that path, with its trace.
    pub(super) fn choose_route(
        &self,
        now: Instant,
        destination: &Nid,
        request: &RouteRequest,
        trace: &mut impl Trace,
    ) -> Option<Choice> {
        let routes = self.topology.net_routes()?;
        let by = request.by.map(|ni| (ni, self.topology.known_ni(ni)));
        if by.is_some_and(|(_, local)| !local.serves() && !local.holds_messages()) {
            return None;
        }
        let view = self.topology.peer(destination);
        let multi_rail = view.filter(|view| view.is_multi_rail);
        let destination = match multi_rail.filter(|_| by.is_none() && request.sender.is_none()) {
            Some(view) => {
                self.choose_remote(&Weighing::new(now, request, routes, destination), view, trace)?
            }
            None => *destination,
        };
        let may_come_from_any = multi_rail.is_some() || request.is_ping || request.sender.is_some();
        let is_steady = !may_come_from_any && self.topology.finds_peers();
        let weighing = Weighing::new(now, request, routes, &destination);
        let source_net = |tier: &[GatewayNi]| match by {
            Some((_, local)) => Some(local.net),
            None if is_steady => self.source_net(tier, &destination, view),
            None => None,
        };
        let nis = routes.to(destination.net());
        let (net, window) = self.window(&weighing, nis, source_net)?;
        let values = |ni: &GatewayNi| self.gateway_values(&weighing, net, ni);
        trace.step(&GATEWAY, || {
            nis.iter().map(|ni| {
                let mut values = values(ni);
                values[TURN] = i64::from(!window.clone().any(|its| core::ptr::eq(its, ni)));
                (Candidate::Gateway(ni.nid), values)
            })
        });
        let named = |ni: &&GatewayNi| Candidate::Gateway(ni.nid);
        let gateway = best_of((&GATEWAY, &mut NoTrace), window, named, |ni| values(ni))?;
        let (hop, net) = (gateway.nid, gateway.nid.net());
        let ni = match by {
            Some((ni, _)) => Some(ni),
            None if is_steady => {
                self.choose_source(self.topology.serving(net), (&destination, Some(&hop)), view, trace)
            }
            None => self.choose_local(now, net, (request.memory, core::iter::once(&hop)), trace),
        };
        let waiting = || {
            let mut locals = self.topology.local_nis();
            locals.find(|(_, ni)| ni.net == net && ni.holds_messages()).map(|(ni, _)| ni)
        };
        Some(Choice { ni: ni.or_else(waiting)?, next_hop: hop, destination })
    }

    /// Another path by a gateway than one that is out of the question: by another gateway if there is one.
    pub(in crate::shard) fn choose_route_again(
        &self,
        now: Instant,
        destination: &Nid,
        than: &Choice,
        request: &RouteRequest,
    ) -> Option<Choice> {
        let nis = self.topology.net_routes()?.to(than.destination.net());
        let failed = nis.iter().find(|ni| ni.nid == than.next_hop).map(|ni| ni.gateway);
        let choose = |avoid| self.select_route(now, destination, &RouteRequest { avoid, ..*request });
        choose(failed).or_else(|| choose(None).filter(|choice| choice.path() != than.path()))
    }

    /// The path by another gateway for a message that stays with its NI, if its path is by one.
    #[cold]
    pub(in crate::shard) fn select_other_gateway(
        &self,
        now: Instant,
        than: &Choice,
        (memory, is_ping): (Option<MemoryNode>, bool),
    ) -> Option<Choice> {
        let request = RouteRequest { by: Some(than.ni), memory, is_ping, ..RouteRequest::default() };
        self.has_routes(than)
            .then(|| self.choose_route_again(now, &than.destination, than, &request))
            .flatten()
    }

    /// Whether a path is by a gateway, and another one leads there as well.
    #[cold]
    pub(in crate::shard) fn has_routes(&self, path: &Choice) -> bool {
        self.topology.net_routes().is_some_and(|routes| routes.to(path.destination.net()).len() > 1)
    }

    /// Whether a path is by a gateway, and no route leads by that any more.
    pub(in crate::shard) fn is_route_lost(&self, path: &Choice) -> bool {
        let net = path.destination.net();
        let leads_there = || {
            let nis = self.topology.net_routes().map_or(&[][..], |routes| routes.to(net));
            nis.iter().any(|ni| ni.nid == path.next_hop)
        };
        path.next_hop != path.destination && self.topology.on_net(net).is_none() && !leads_there()
    }

    /// The best NID of a Multi-Rail peer on the nets that gateways lead to, those out of the question left
    /// out; equal ones take turns.
    fn choose_remote(&self, weighing: &Weighing<'_>, view: &PeerView, trace: &mut impl Trace) -> Option<Nid> {
        let leads = |net: &Net| weighing.routes.to(*net).iter().any(|ni| !weighing.avoids(ni));
        let nets = view.nets().filter(|(net, _)| leads(net));
        let nis = nets.flat_map(|(net, nis)| {
            let is_silent = self.paths.has_silent()
                && weighing.routes.to(net).iter().all(|ni| self.is_gateway_silent(weighing, ni));
            let net_health = nis.iter().map(|ni| ni.health).max().unwrap_or(0);
            let of_net = [i64::from(is_silent), -i64::from(net_health), view.net_priority(net).into()];
            nis.iter().map(move |ni| {
                let [is_silent, health, priority] = of_net;
                (ni.nid, [is_silent, health, priority, -i64::from(ni.health), ni.priority.into()])
            })
        });
        let start = self.sequence as usize % nis.clone().count().max(1);
        let in_turn = nis.clone().skip(start).chain(nis.take(start));
        let (nid, _) =
            best_of((&REMOTE, trace), in_turn, |(nid, _)| Candidate::Peer(*nid), |(_, values)| *values)?;
        Some(nid)
    }

    /// The net of the one local NI that messages to a peer come from which is not Multi-Rail, where gateways
    /// of a tier are on several.
    fn source_net(&self, tier: &[GatewayNi], destination: &Nid, view: Option<&PeerView>) -> Option<Net> {
        if tier.first()?.nid.net() == tier.last()?.nid.net() {
            return None;
        }
        let locals = by_net(tier).flat_map(|nis| self.topology.serving(nis[0].nid.net()));
        let ni = self.choose_source(locals, (destination, None), view, &mut NoTrace)?;
        Some(self.topology.known_ni(ni).net)
    }

    /// The NIs that are weighed, all equal but for their use, and the local net that these are on if one was
    /// chosen. Those that answer come first, then those that are preferred, whatever their tier is.
    fn window<'a>(
        &self,
        weighing: &'a Weighing<'_>,
        nis: &'a [GatewayNi],
        source_net: impl Fn(&[GatewayNi]) -> Option<Net>,
    ) -> Option<(Option<Net>, impl Iterator<Item = &'a GatewayNi> + Clone)> {
        let has_preferred = weighing.routes.preferred(&weighing.destination).next().is_some();
        let given = weighing.request.by.map(|ni| self.topology.known_ni(ni).net);
        for (may_be_silent, must_be_preferred) in [(false, true), (false, false), (true, true), (true, false)]
        {
            if must_be_preferred && !has_preferred || may_be_silent && !self.paths.has_silent() {
                continue;
            }
            let fits = move |ni: &&GatewayNi| {
                !weighing.avoids(ni)
                    && (may_be_silent || !self.is_gateway_silent(weighing, ni))
                    && (!must_be_preferred || weighing.prefers(ni))
            };
            for tier in tiers(nis) {
                for net in [source_net(tier), given] {
                    let group = net.map_or(tier, |net| on_net(tier, net));
                    let start =
                        if group.len() > WEIGHED_MAX { self.sequence as usize % group.len() } else { 0 };
                    let (before, from) = group.split_at(start);
                    let window = from.iter().chain(before).filter(fits).take(WEIGHED_MAX);
                    if window.clone().next().is_some() {
                        return Some((net, window));
                    }
                }
            }
        }
        None
    }

    /// Whether no path to a gateway's NI answers.
    fn is_gateway_silent(&self, weighing: &Weighing<'_>, gateway: &GatewayNi) -> bool {
        let is_cut_off = |ni| self.is_cut_off(weighing.now, ni, core::iter::once(&gateway.nid));
        self.paths.has_silent()
            && match weighing.request.by {
                Some(ni) => is_cut_off(ni),
                None => self.topology.serving(gateway.nid.net()).all(is_cut_off),
            }
    }

    fn gateway_values(&self, weighing: &Weighing<'_>, net: Option<Net>, ni: &GatewayNi) -> Values<12> {
        let its = ni.nid.net();
        let share =
            || self.topology.serving(its).next().map_or(0, |ni| self.nis[usize::from(ni.0)].peer_share);
        let (queued_bytes, credits, sequence) =
            self.peers.load(&ni.nid).unwrap_or_else(|| (0, share().into(), 0));
        [
            i64::from(self.is_gateway_silent(weighing, ni)),
            if weighing.prefers(ni) { 0 } else { PRIORITY_NONE.into() },
            i64::from(ni.awaits_link),
            ni.priority.into(),
            ni.hops.into(),
            i64::from(net.is_some_and(|net| net != its)),
            0,
            -i64::from(ni.health),
            ni.ni_priority.into(),
            queued_bytes as i64,
            -credits,
            sequence as i64,
        ]
    }
}

/// The index of [`Criterion::Turn`](super::criteria::Criterion::Turn) among the criteria for gateways.
const TURN: usize = 6;
