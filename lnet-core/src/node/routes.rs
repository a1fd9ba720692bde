//! Net routes, as the administrator makes them (LNet `router.c: lnet_add_route`, `lnet_del_route`; spec: core
//! 11.1, `lnetctl` 6.2), and the table of them that shards choose from.
//!
//! Invariants: no route leads to a net of this node's; the gateway of a route is on one when the route is
//! made, and the route goes with that net; two NIDs of one peer are one gateway. A gateway is a peer, which
//! makes no room for others. Whether a route is up follows from what is known of its gateway (`gateways`).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use lnet_model::route::RouteSpec;
use lnet_wire::{Net, Nid};
use thiserror::Error;

use super::Node;
use super::peers::{Peer, peer_state};
use crate::topology::{GatewayNi, HEALTH_MAX, NetRoutes, NiStatus};

/// Most net routes of a node.
pub const NET_ROUTES_MAX: usize = 1 << 16;

/// NIs of a gateway that messages are sent to, for each of its routes: a gateway may tell of many.
pub const GATEWAY_NIS_MAX: usize = 16;

/// A net route of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetRoute {
    /// The route as it was asked for.
    pub spec: RouteSpec,
    /// Whether messages may go by it.
    pub is_up: bool,
    /// Whether another gateway comes behind its own, as far as is known.
    pub is_multi_hop: bool,
}

/// Faults of a change of routes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RouteError {
    /// There is no such net (`-ENXIO`).
    #[error("route to net {0}: the name of a net is expected")]
    Net(Net),
    /// The net is `lo` (`-EACCES`).
    #[error("route to net lo: not allowed, it never leaves the node")]
    Loopback,
    /// The net is one of this node's (`-EINVAL`).
    #[error("route to net {0}: it is a net of this node's, which needs none")]
    LocalNet(Net),
    /// The gateway can be none (`-EINVAL`).
    #[error("gateway {0}: a nid of another node is expected, on a net of this node's")]
    Gateway(Nid),
    /// The gateway is named by a NID on the net that it is to lead to (`-EINVAL`).
    #[error("gateway {0}: its nid on a net of this node's is expected, not that on the net behind it")]
    FarGateway(Nid),
    /// More or fewer hops than there can be (`-EINVAL`).
    #[error("hop {0}: 1 to 255 is expected")]
    Hops(u8),
    /// No NI of this node is on the gateway's net (`-EHOSTUNREACH`).
    #[error("gateway {0}: no NI of this node is on its net")]
    NoNi(Nid),
    /// The peer is the gateway of such a route already (`-EEXIST`).
    #[error("there is a route to net {net} by gateway {gateway} already")]
    Exists {
        /// The net.
        net: Net,
        /// The gateway's NID.
        gateway: Nid,
    },
    /// There is no such route (`-ENOENT`).
    #[error("there is no route to net {net} by gateway {gateway}")]
    Unknown {
        /// The net.
        net: Net,
        /// The gateway's NID.
        gateway: Nid,
    },
    /// An NI would be on a net that routes lead to (`-EUSERS`).
    #[error("net {0}: there are routes to it, which have to go first")]
    NetRouted(Net),
    /// The peer is a gateway, which is neither made nor deleted as a peer (`-EBUSY`).
    #[error("peer {0} is the gateway of a route")]
    Busy(Nid),
    /// There are as many as may be (`-ENOSPC`).
    #[error("there are {NET_ROUTES_MAX} routes, the most there can be")]
    TooMany,
}

impl RouteError {
    /// Its errno, positive.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Unknown { .. } => 2,
            Self::Net(_) => 6,
            Self::Loopback => 13,
            Self::Busy(_) => 16,
            Self::Exists { .. } => 17,
            Self::LocalNet(_) | Self::Gateway(_) | Self::FarGateway(_) | Self::Hops(_) => 22,
            Self::TooMany => 28,
            Self::NetRouted(_) => 87,
            Self::NoNi(_) => 113,
        }
    }
}

/// A route with its state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) spec: RouteSpec,
    /// Whether messages may go by it.
    pub(super) is_up: bool,
    /// The last word on that, of its gateway or of an LND, if there was one: it counts as long as the gateway
    /// takes no part in discovery.
    pub(super) told_up: Option<bool>,
}

/// Routes by net and gateway.
#[derive(Clone, Default, Debug)]
pub(super) struct RouteList {
    routes: BTreeMap<Net, BTreeMap<Nid, Route>>,
    /// The NIDs that gateways were named by, and the nets that each leads to.
    gateways: BTreeMap<Nid, BTreeSet<Net>>,
    count: usize,
}

impl RouteList {
    /// Whether there is a route to a net.
    pub(super) fn leads_to(&self, net: Net) -> bool {
        self.routes.contains_key(&net)
    }

    fn all(&self) -> impl Iterator<Item = &Route> {
        self.routes.values().flat_map(BTreeMap::values)
    }

    fn to(&self, net: Net) -> impl Iterator<Item = &Route> {
        self.routes.get(&net).into_iter().flat_map(BTreeMap::values)
    }

    /// The route to a net by a gateway that has these NIDs.
    fn get(&self, net: Net, nids: &[Nid]) -> Option<&Route> {
        let to_net = self.routes.get(&net)?;
        nids.iter().find_map(|nid| to_net.get(nid))
    }

    /// The routes by the gateway that was named by a NID.
    pub(super) fn by(&self, gateway: &Nid) -> impl Iterator<Item = &Route> {
        let nets = self.gateways.get(gateway).into_iter().flatten();
        nets.filter_map(|net| self.routes.get(net)?.get(gateway))
    }

    /// Changes the states of the routes by that gateway.
    pub(super) fn by_mut(&mut self, gateway: &Nid, mut change: impl FnMut(&mut Route)) {
        for net in self.gateways.get(gateway).into_iter().flatten() {
            if let Some(route) = self.routes.get_mut(net).and_then(|to_net| to_net.get_mut(gateway)) {
                change(route);
            }
        }
    }

    /// Adds a route by a gateway that has these NIDs.
    pub(super) fn add(&mut self, spec: RouteSpec, nids: &[Nid]) -> Result<(), RouteError> {
        let RouteSpec { net, gateway, .. } = spec;
        if self.get(net, nids).is_some() {
            return Err(RouteError::Exists { net, gateway });
        }
        if self.count >= NET_ROUTES_MAX {
            return Err(RouteError::TooMany);
        }
        let route = Route { spec, is_up: true, told_up: None };
        self.routes.entry(net).or_default().insert(gateway, route);
        self.gateways.entry(gateway).or_default().insert(net);
        self.count += 1;
        Ok(())
    }

    /// Deletes the route to a net by a gateway that has these NIDs, the first of which it was named by.
    pub(super) fn delete(&mut self, net: Net, nids: &[Nid]) -> Result<(), RouteError> {
        let unknown = RouteError::Unknown { net, gateway: nids[0] };
        let spec = self.get(net, nids).ok_or(unknown)?.spec;
        self.remove(&spec);
        Ok(())
    }

    fn remove(&mut self, RouteSpec { net, gateway, .. }: &RouteSpec) {
        if let Some(to_net) = self.routes.get_mut(net) {
            to_net.remove(gateway);
            if to_net.is_empty() {
                self.routes.remove(net);
            }
        }
        if let Some(nets) = self.gateways.get_mut(gateway) {
            nets.remove(net);
            if nets.is_empty() {
                self.gateways.remove(gateway);
            }
        }
        self.count -= 1;
    }

    /// Deletes the routes by gateways that were named by a NID that `goes`.
    pub(super) fn delete_by(&mut self, goes: impl Fn(&Nid) -> bool) {
        let gone: Vec<RouteSpec> =
            self.all().map(|route| route.spec).filter(|spec| goes(&spec.gateway)).collect();
        gone.iter().for_each(|spec| self.remove(spec));
    }

    /// Whether a gateway was named by one of these NIDs.
    pub(super) fn has_gateway(&self, nids: &[Nid]) -> bool {
        nids.iter().any(|nid| self.gateways.contains_key(nid))
    }

    /// Whether a gateway was named by a NID.
    pub(super) fn is_gateway(&self, nid: &Nid) -> bool {
        self.gateways.contains_key(nid)
    }

    /// The NIDs that gateways were named by.
    pub(super) fn gateways(&self) -> impl Iterator<Item = &Nid> {
        self.gateways.keys()
    }
}

/// The net routes of a node.
#[derive(Default, Debug)]
pub(super) struct Routes {
    pub(super) list: RouteList,
    /// The routes as the shards know them.
    table: Option<Arc<NetRoutes>>,
    /// The local nets by which that was made, each with whether messages wait for a link there.
    near: Vec<(Net, bool)>,
    /// Whether shards are to know them otherwise.
    pub(super) is_changed: bool,
}

impl Routes {
    /// Takes over the routes that a batch has made; those that stay are up or down as they were. Returns
    /// the gateways of routes that are new, by the NIDs that name them.
    pub(super) fn replace(&mut self, list: RouteList) -> BTreeSet<Nid> {
        let former = core::mem::replace(&mut self.list, list);
        let mut of_new = BTreeSet::new();
        for (net, to_net) in &mut self.list.routes {
            let before = former.routes.get(net);
            for (gateway, route) in to_net {
                match before.and_then(|before| before.get(gateway)) {
                    Some(former) => (route.is_up, route.told_up) = (former.is_up, former.told_up),
                    None => drop(of_new.insert(*gateway)),
                }
            }
        }
        self.is_changed = true;
        of_new
    }
}

/// Finds what is wrong with a route by itself.
pub(super) fn check(spec: &RouteSpec) -> Result<(), RouteError> {
    let RouteSpec { net, gateway, hops, .. } = *spec;
    if net == Net::LO {
        Err(RouteError::Loopback)
    } else if net.is_any() {
        Err(RouteError::Net(net))
    } else if gateway.is_loopback() || !gateway.can_name_an_ni() {
        Err(RouteError::Gateway(gateway))
    } else if gateway.net() == net {
        Err(RouteError::FarGateway(gateway))
    } else if hops == Some(0) {
        Err(RouteError::Hops(0))
    } else {
        Ok(())
    }
}

/// The NIDs of a gateway: that by which it is named first, then others of its peer.
pub(super) fn nids_of_gateway(named: &Nid, peer: Option<&Peer>) -> Vec<Nid> {
    let others = peer.into_iter().flat_map(|peer| &peer.nis).map(|ni| ni.nid);
    core::iter::once(*named).chain(others.filter(|nid| nid != named)).collect()
}

impl<O: Clone> Node<O> {
    /// The net routes, by net and gateway.
    pub fn net_routes(&self) -> impl Iterator<Item = NetRoute> {
        self.routes.list.all().map(|&Route { spec, is_up, .. }| {
            let is_multi_hop = spec.hops.map_or_else(|| self.is_far_behind(&spec), |hops| hops > 1);
            NetRoute { spec, is_up, is_multi_hop }
        })
    }

    /// The gateways that messages to a NID go by before others, by their primary NIDs.
    #[must_use]
    pub fn preferred_gateways(&self, nid: &Nid) -> Vec<Nid> {
        let rules = self.rules.preferred_gateways(|| self.gateway_names());
        let its = rules.into_iter().filter(|(pattern, _)| pattern.covers(nid));
        let gateways: BTreeSet<Nid> = its.flat_map(|(_, gateways)| gateways).collect();
        gateways.into_iter().collect()
    }

    /// The primary NIDs of the gateways, by which policies name them.
    fn gateway_names(&self) -> impl Iterator<Item = Nid> {
        self.routes.list.gateways().map(|nid| self.peers.get(nid).map_or(*nid, |peer| peer.primary))
    }

    /// Whether the gateway of a route has told its NIDs, and none on the net is among them.
    fn is_far_behind(&self, spec: &RouteSpec) -> bool {
        let is_far = |peer: &Peer| {
            peer.is(peer_state::DISCOVERED) && !peer.told.iter().any(|nid| nid.net() == spec.net)
        };
        self.peers.get(&spec.gateway).is_some_and(is_far)
    }

    /// Whether a net is one of this node's, or routes lead there.
    pub(super) fn is_in_reach(&self, net: Net) -> bool {
        self.is_on(net) || self.routes.list.leads_to(net)
    }

    /// The local nets by which a net is reached: itself, or those of gateways that lead there.
    pub(super) fn nets_towards(&self, net: Net) -> Vec<Net> {
        if self.nis.0.iter().any(|config| config.spec.nid.net() == net) {
            return alloc::vec![net];
        }
        let gateways = self.routes.list.to(net).map(|route| route.spec.gateway);
        let nids = gateways.flat_map(|named| nids_of_gateway(&named, self.peers.get(&named)));
        let nets: BTreeSet<Net> = nids.map(|nid| nid.net()).collect();
        nets.into_iter().collect()
    }

    /// Whether a route that is up leads to a net, by a local NI that is up: with a source, by the one with
    /// that NID.
    pub(super) fn is_routed(&self, net: Net, source: Option<Nid>) -> bool {
        let mut up = self.routes.list.to(net).filter(|route| route.is_up).map(|route| route.spec.gateway);
        let is_near = |nid: &Nid| self.is_near(nid, source);
        up.any(|gateway| nids_of_gateway(&gateway, self.peers.get(&gateway)).iter().any(is_near))
    }

    /// The nets that this node is on, and those that routes lead to.
    pub(super) fn nets_in_reach(&self) -> Vec<Net> {
        self.nis.nets().into_iter().chain(self.routes.list.routes.keys().copied()).collect()
    }

    /// Takes note of peers that have changed, and of NIDs that were taken from peers.
    pub(super) fn note_changed_gateways<'a>(&mut self, nids: impl Iterator<Item = &'a Nid>) {
        if self.routes.list.routes.is_empty() {
            return;
        }
        let was_gateway = |nid: &Nid| self.routes.table.as_ref().is_some_and(|table| table.is_gateway(nid));
        let is_gateway =
            |nid: &&Nid| was_gateway(nid) || self.peers.get(nid).is_some_and(|peer| peer.is_gateway());
        let changed: Vec<Nid> = nids.filter(is_gateway).copied().collect();
        self.routes.is_changed |= !changed.is_empty();
        for named in changed.iter().flat_map(|nid| self.named_gateways(nid)).collect::<BTreeSet<_>>() {
            self.settle_gateway(&named);
        }
    }

    /// The routes as the shards are to know them.
    pub(super) fn route_table(&mut self) -> Option<Arc<NetRoutes>> {
        if self.routes.list.routes.is_empty() {
            self.routes.table = None;
            return None;
        }
        let mut near: Vec<(Net, bool)> = Vec::new();
        for config in &self.nis.0 {
            let net = config.spec.nid.net();
            let is_up = config.status() == NiStatus::Up;
            let awaits_link = config.status() == NiStatus::Down && config.awaits_carrier && !config.is_absent;
            match near.iter_mut().find(|(its, _)| *its == net) {
                Some((_, awaits)) => *awaits &= !is_up,
                None if is_up || awaits_link => near.push((net, !is_up)),
                None => {}
            }
        }
        if self.routes.table.is_none() || self.routes.is_changed || self.routes.near != near {
            // Shards look at what waits for gateways whenever there is another table.
            let made = self.made_table(&near);
            if self.routes.table.as_deref() != Some(&made) {
                self.routes.table = Some(Arc::new(made));
            }
            self.routes.near = near;
            self.routes.is_changed = false;
        }
        self.routes.table.clone()
    }

    fn made_table(&self, near: &[(Net, bool)]) -> NetRoutes {
        let (mut nis, mut gateways, mut listed) = (Vec::new(), Vec::<(Nid, Nid)>::new(), BTreeSet::new());
        let (mut behind, mut dead) = (Vec::new(), Vec::new());
        for Route { spec, is_up, .. } in self.routes.list.all() {
            let peer = self.peers.get(&spec.gateway);
            let nids = nids_of_gateway(&spec.gateway, peer);
            let name = peer.map_or(spec.gateway, |peer| peer.primary);
            behind.push((name, spec.net));
            // A peer that is not Multi-Rail takes messages for others by the NID that it was named by.
            let used = if peer.is_some_and(Peer::is_multi_rail) { &nids[..] } else { &nids[..1] };
            let usable = used.iter().filter(|nid| *is_up && !self.is_local(nid)).filter_map(|nid| {
                let (_, awaits_link) = near.iter().find(|(net, _)| *net == nid.net())?;
                Some((nid, awaits_link))
            });
            for (nid, awaits_link) in usable.take(GATEWAY_NIS_MAX) {
                let ni = GatewayNi {
                    nid: *nid,
                    gateway: name,
                    awaits_link: *awaits_link,
                    priority: spec.priority,
                    hops: spec.distance(),
                    health: peer.and_then(|peer| peer.ni(nid)).map_or(HEALTH_MAX, |ni| ni.health),
                    ni_priority: self.rules.peer_priority(nid),
                };
                nis.push((spec.net, ni));
            }
            if listed.insert(spec.gateway) {
                if self.gateways.is_dead(&spec.gateway) {
                    dead.push(name);
                }
                gateways.extend(nids.into_iter().map(|nid| (nid, name)));
            }
        }
        let preferences = self.rules.preferred_gateways(|| self.gateway_names());
        NetRoutes::new(nis, Vec::new()).with_preferences(preferences).with_gateways(gateways, behind, &dead)
    }
}
