//! Routes and routing of the node in memory, by the rules of LNet.

use lnet_model::Errno;
use lnet_model::pool::PoolKind;
use lnet_model::records::{
    PoolRecord, RoutePage, RouteRecord, RouteState, RouteType, RoutingRecord, RoutingState,
};
use lnet_model::request::Effect;
use lnet_model::route::RouteSpec;
use lnet_wire::{Net, Nid};

use crate::model::{Model, Result, refuse};
use crate::model_records::peer;

/// Buffers of its pools together, where routing comes on.
const POOLS: [u32; 3] = [2048, 16384, 1024];

impl Model {
    pub(crate) fn add_route(&mut self, spec: &RouteSpec) -> Result<()> {
        let RouteSpec { net, gateway, hops, .. } = *spec;
        let is_on = |net: Net| self.state().nets.iter().any(|known| known.net == net);
        let is_local = |nid: Nid| self.state().nets.iter().flat_map(|net| &net.nis).any(|ni| ni.nid == nid);
        let nowhere = gateway.is_any() || gateway.is_loopback() || gateway.net() == net || is_local(gateway);
        if nowhere || net == Net::LO || net.is_any() || hops == Some(0) {
            return refuse(Errno::INVAL, format!("{gateway} is no gateway to {net}"));
        }
        if is_on(net) {
            return refuse(Errno::INVAL, format!("{net} is a net of this node"));
        }
        if !is_on(gateway.net()) {
            return refuse(Errno::HOSTUNREACH, format!("no NI here is on {}", gateway.net()));
        }
        if self.route_by(net, gateway).is_some() {
            return refuse(Errno::EXIST, format!("there is a route to {net} by {gateway}"));
        }
        let is_far = hops.is_some_and(|hops| hops > 1);
        let r#type = if is_far { RouteType::MultiHop } else { RouteType::SingleHop };
        self.routes.push(RouteRecord { spec: *spec, state: RouteState::Down, r#type });
        self.routes.sort_by_key(|record| (record.spec.net, record.spec.gateway));
        if self.peer_mut(gateway).is_err() {
            self.peers.push(peer(&[&gateway.to_string()], 0));
        }
        let gateway = self.peer_mut(gateway)?;
        gateway.is_gateway = true;
        gateway.nis.iter_mut().for_each(|ni| ni.is_alive = Some(false));
        Ok(())
    }

    pub(crate) fn delete_route(&mut self, net: Net, gateway: Nid) -> Result<()> {
        let Some(route) = self.route_by(net, gateway) else {
            return refuse(Errno::NOENT, format!("there is no route to {net} by {gateway}"));
        };
        self.routes.remove(route);
        let nids = self.nids_of(gateway);
        if !self.routes.iter().any(|record| nids.contains(&record.spec.gateway)) {
            let gateway = self.peer_mut(gateway)?;
            gateway.is_gateway = false;
            gateway.nis.iter_mut().for_each(|ni| ni.is_alive = None);
        }
        Ok(())
    }

    /// Pages of two routes.
    pub(crate) fn route_page(&self, after: Option<RouteSpec>) -> RoutePage {
        let name = |spec: &RouteSpec| (spec.net, spec.gateway);
        let is_behind = |record: &&RouteRecord| after.is_none_or(|after| name(&after) < name(&record.spec));
        let mut routes: Vec<_> = self.routes.iter().filter(is_behind).cloned().collect();
        let has_more = routes.len() > 2;
        routes.truncate(2);
        RoutePage { routes, has_more }
    }

    /// Nothing that a gateway is may be changed by hand.
    pub(crate) fn check_no_gateway(&self, nid: Nid) -> Result<()> {
        let nids = self.nids_of(nid);
        match self.routes.iter().any(|record| nids.contains(&record.spec.gateway)) {
            true => refuse(Errno::BUSY, format!("{nid} is a gateway")),
            false => Ok(()),
        }
    }

    pub(crate) fn set_routing(&mut self, on: bool) -> Effect {
        let state = if on { RoutingState::On } else { RoutingState::Off };
        if self.routing.state == state {
            return Effect::Unchanged;
        }
        self.routing = RoutingRecord { state, cpts: vec![[PoolRecord::default(); 3]; self.shards as usize] };
        if on {
            PoolKind::ALL.into_iter().zip(POOLS).for_each(|(pool, count)| drop(self.set_pool(pool, count)));
        }
        Effect::Changed
    }

    /// Sizes are forgotten while there are no pools.
    pub(crate) fn set_pool(&mut self, pool: PoolKind, buffer_count: u32) -> Effect {
        let of_cpt = (buffer_count / self.shards).max(1);
        let (credits, before) = (of_cpt.into(), self.routing.clone());
        for pools in &mut self.routing.cpts {
            pools[pool as usize] = PoolRecord { buffer_count: of_cpt, credits, min_credits: credits };
        }
        if self.routing == before { Effect::Unchanged } else { Effect::Changed }
    }

    /// The NIDs of the peer that has this one.
    fn nids_of(&self, nid: Nid) -> Vec<Nid> {
        let peer = self.peers.iter().find(|peer| peer.nis.iter().any(|ni| ni.nid == nid));
        peer.map_or_else(|| vec![nid], |peer| peer.nis.iter().map(|ni| ni.nid).collect())
    }

    fn route_by(&self, net: Net, gateway: Nid) -> Option<usize> {
        let nids = self.nids_of(gateway);
        self.routes.iter().position(|record| record.spec.net == net && nids.contains(&record.spec.gateway))
    }
}
