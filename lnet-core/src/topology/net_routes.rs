//! Net routes: the nets that other nodes forward messages to, and by which of their NIs.
//!
//! A table is made by the node, with what changes seldom worked in: whether a route is up, what is near,
//! health and priorities. So shards share one table, and have nothing of their own for a route. Of each net
//! it has the NIs of gateways in the order in which they are taken; those that nothing but their use tells
//! apart stand together, a *tier*. A look-up is two binary searches, however many routes there are.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use lnet_model::pattern::UdspPattern;
use lnet_wire::{Net, Nid};

/// An NI of a gateway, to which messages for a net may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GatewayNi {
    /// Its NID, on a net of this node's.
    pub nid: Nid,
    /// The primary NID of the gateway.
    pub gateway: Nid,
    /// Whether messages to it wait for a link: no local NI on its net is up.
    pub awaits_link: bool,
    /// The priority of the route; the lower one wins.
    pub priority: u32,
    /// The hops of the route.
    pub hops: u8,
    /// The health of the NI.
    pub health: u32,
    /// The priority of the NI by the selection policies; the lower one wins.
    pub ni_priority: u32,
}

impl GatewayNi {
    /// Its rank among those of a net; the lower one wins.
    const fn tier(&self) -> (bool, u32, u8) {
        (self.awaits_link, self.priority, self.hops)
    }
}

/// A NID of a gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct GatewayNid {
    nid: Nid,
    /// Number of the gateway.
    gateway: u32,
    /// Whether the gateway is taken for dead.
    is_dead: bool,
}

/// The net routes of a node: those that are up to be chosen from, all of them to judge what comes by
/// gateways.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NetRoutes {
    /// The nets in order, each with the index of its first NI; its last one stands before those of the next.
    nets: Box<[(Net, u32)]>,
    /// NIs by net, tier and their own net.
    nis: Box<[GatewayNi]>,
    /// All NIDs of all gateways in order, those of gateways whose routes are down among them.
    gateways: Box<[GatewayNid]>,
    /// The nets behind each gateway by its number, in order: also those to which its route is down.
    behind: Box<[(u32, Net)]>,
    /// Which NIDs prefer which gateways, these by their primary NIDs.
    preferences: Box<[(UdspPattern, Box<[Nid]>)]>,
}

impl NetRoutes {
    /// A table of NIs by the nets that they lead to, with the NIDs of all gateways: each is one of its own.
    #[must_use]
    pub fn new(mut nis: Vec<(Net, GatewayNi)>, gateways: Vec<Nid>) -> Self {
        let behind = nis.iter().map(|(net, ni)| (ni.nid, *net)).collect();
        nis.sort_by_key(|(net, ni)| (*net, ni.tier(), ni.nid.net()));
        let mut nets: Vec<(Net, u32)> = Vec::new();
        for ((net, _), at) in nis.iter().zip(0..) {
            if nets.last().is_none_or(|(last, _)| last != net) {
                nets.push((*net, at));
            }
        }
        let nis = nis.into_iter().map(|(_, ni)| ni).collect();
        let gateways = gateways.into_iter().map(|nid| (nid, nid)).collect();
        Self { nets: nets.into(), nis, ..Self::default() }.with_gateways(gateways, behind, &[])
    }

    /// Sets the NIDs of all gateways, each with that by which its gateway is named here; the nets behind
    /// gateways by these names; and the names of gateways that are taken for dead.
    #[must_use]
    pub fn with_gateways(self, mut gateways: Vec<(Nid, Nid)>, behind: Vec<(Nid, Net)>, dead: &[Nid]) -> Self {
        let mut names: Vec<Nid> = gateways.iter().map(|(_, name)| *name).collect();
        names.sort();
        names.dedup();
        gateways.sort();
        gateways.dedup_by_key(|(nid, _)| *nid);
        let dead: BTreeSet<&Nid> = dead.iter().collect();
        let number = |name: &Nid| names.binary_search(name).ok().map(|number| number as u32);
        let of = |(nid, name): (Nid, Nid)| {
            Some(GatewayNid { nid, gateway: number(&name)?, is_dead: dead.contains(&name) })
        };
        let mut behind: Vec<_> =
            behind.into_iter().filter_map(|(name, net)| Some((number(&name)?, net))).collect();
        behind.sort_unstable();
        behind.dedup();
        let gateways = gateways.into_iter().filter_map(of).collect();
        Self { gateways, behind: behind.into(), ..self }
    }

    /// Sets which NIDs prefer which gateways, these by their primary NIDs.
    #[must_use]
    pub fn with_preferences(self, preferences: Vec<(UdspPattern, Box<[Nid]>)>) -> Self {
        Self { preferences: preferences.into(), ..self }
    }

    /// The gateways that a NID prefers, as each policy has them that is about it.
    pub(crate) fn preferred(&self, destination: &Nid) -> impl Iterator<Item = &[Nid]> {
        let is_its = |(pattern, _): &&(UdspPattern, _)| pattern.covers(destination);
        self.preferences.iter().filter(is_its).map(|(_, gateways)| &**gateways)
    }

    /// The NIs that lead to a net, tier by tier.
    #[must_use]
    pub fn to(&self, net: Net) -> &[GatewayNi] {
        let Ok(at) = self.nets.binary_search_by_key(&net, |(net, _)| *net) else { return &[] };
        let end = self.nets.get(at + 1).map_or(self.nis.len(), |(_, end)| *end as usize);
        &self.nis[self.nets[at].1 as usize..end]
    }

    /// Whether a NID is that of a gateway, be its routes up or down.
    #[must_use]
    pub fn is_gateway(&self, nid: &Nid) -> bool {
        self.gateway(nid).is_some()
    }

    /// Whether a NID is that of a gateway which is taken for dead.
    #[must_use]
    pub fn is_dead(&self, nid: &Nid) -> bool {
        self.gateway(nid).is_some_and(|gateway| gateway.is_dead)
    }

    /// Whether there is a route to a net by the gateway that has a NID, be it up or down.
    #[must_use]
    pub fn leads_back(&self, gateway: &Nid, net: Net) -> bool {
        let its = self.gateway(gateway);
        its.is_some_and(|its| self.behind.binary_search(&(its.gateway, net)).is_ok())
    }

    fn gateway(&self, nid: &Nid) -> Option<&GatewayNid> {
        let at = self.gateways.binary_search_by_key(nid, |gateway| gateway.nid).ok()?;
        self.gateways.get(at)
    }
}

/// The tiers among the NIs that lead to a net, the best one first.
pub(crate) fn tiers(nis: &[GatewayNi]) -> impl Iterator<Item = &[GatewayNi]> + Clone {
    parts(nis, GatewayNi::tier)
}

/// The NIs of a tier on a net.
pub(crate) fn on_net(tier: &[GatewayNi], net: Net) -> &[GatewayNi] {
    by_net(tier).find(|nis| nis[0].nid.net() == net).unwrap_or_default()
}

/// The NIs of a tier by their nets.
pub(crate) fn by_net(tier: &[GatewayNi]) -> impl Iterator<Item = &[GatewayNi]> + Clone {
    parts(tier, |ni| ni.nid.net())
}

/// Parts of a list in the order of a key, each with one key: found without a look at each element.
fn parts<K: Ord>(
    mut rest: &[GatewayNi],
    key: impl Fn(&GatewayNi) -> K + Clone,
) -> impl Iterator<Item = &[GatewayNi]> + Clone {
    core::iter::from_fn(move || {
        let first = key(rest.first()?);
        let (part, others) = rest.split_at(rest.partition_point(|ni| key(ni) <= first));
        rest = others;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::testing::nid;
    use crate::topology::{HEALTH_MAX, PRIORITY_NONE};

    fn ni(net: u16, host: u8, priority: u32, hops: u8) -> GatewayNi {
        let nid = nid(net, host);
        let (awaits_link, health, ni_priority) = (false, HEALTH_MAX, PRIORITY_NONE);
        GatewayNi { nid, gateway: nid, awaits_link, priority, hops, health, ni_priority }
    }

    #[test]
    fn nis_stand_by_net_and_tier() {
        let [far, farther] = [9, 8].map(|net| nid(net, 1).net());
        let waiting = GatewayNi { awaits_link: true, ..ni(1, 6, 0, 1) };
        let nis = vec![
            (far, ni(1, 1, 2, 1)),
            (farther, ni(1, 1, 0, 1)),
            (far, waiting),
            (far, ni(2, 2, 1, 2)),
            (far, ni(1, 3, 1, 2)),
            (far, ni(2, 4, 1, 2)),
            (far, ni(1, 5, 1, 9)),
        ];
        let routes = NetRoutes::new(nis, [3, 1, 3].map(|host| nid(1, host)).to_vec());
        let hosts = |nis: &[GatewayNi]| nis.iter().map(|ni| ni.nid).collect::<Vec<_>>();
        assert_eq!(hosts(routes.to(farther)), [nid(1, 1)]);
        assert_eq!(routes.to(nid(7, 1).net()), []);
        let found: Vec<_> = tiers(routes.to(far)).map(hosts).collect();
        let expected =
            [vec![nid(1, 3), nid(2, 2), nid(2, 4)], vec![nid(1, 5)], vec![nid(1, 1)], vec![nid(1, 6)]];
        assert_eq!(found, expected);
        let first = tiers(routes.to(far)).next().unwrap();
        let nets: Vec<_> = by_net(first).map(hosts).collect();
        assert_eq!(nets, [vec![nid(1, 3)], vec![nid(2, 2), nid(2, 4)]]);
        assert_eq!([1, 2, 3].map(|host| routes.is_gateway(&nid(1, host))), [true, false, true]);
    }

    #[test]
    fn what_comes_by_a_gateway_is_judged_by_all_of_its_routes() {
        let [far, farther, other] = [9, 8, 7].map(|net| nid(net, 1).net());
        let [first, second, third] = [1, 2, 3].map(|host| nid(1, host));
        let gateways = vec![(third, third), (second, first), (first, first)];
        let behind = vec![(third, farther), (first, far), (first, farther)];
        let routes = NetRoutes::default().with_gateways(gateways, behind, &[first]);
        assert_eq!([first, second, third].map(|nid| routes.is_dead(&nid)), [true, true, false]);
        for (gateway, expected) in [(first, [true, true, false]), (second, [true, true, false])] {
            assert_eq!([far, farther, other].map(|net| routes.leads_back(&gateway, net)), expected);
        }
        assert!(routes.leads_back(&third, farther) && !routes.leads_back(&third, far));
        assert!(!routes.is_gateway(&nid(1, 4)) && !routes.leads_back(&nid(1, 4), far));
    }

    /// The figure that the table is made for: 200 bytes a route, with two NIs of its gateway.
    #[test]
    fn a_route_takes_few_bytes() {
        let of_ni = size_of::<GatewayNi>() + size_of::<GatewayNid>();
        let of_route = size_of::<(Net, u32)>() + size_of::<(u32, Net)>();
        assert!(2 * of_ni + of_route <= 200, "{of_ni} {of_route}");
    }
}
