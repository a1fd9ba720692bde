//! Checks of gateways, and which routes are up by what is known of them (LNet `router.c`; spec: core 11.2 to
//! 11.5).
//!
//! A gateway is discovered again and again: pinged and pushed to by one of its nets after the other, at its
//! NI there from an NI of this node there. It is alive if the last check has gone well. A route is up while
//! its gateway is alive, forwards messages, and has an NI up on the net that it is named by; if its net is
//! the next one behind the gateway, also there, unless that is not asked for. That is the gateway's own word,
//! whatever its health: health only orders gateways. Of a gateway that takes no part in discovery the last
//! word counts, or what an LND has found since. Before any word a route is up, unless gateways are to be
//! checked before they are used.
//!
//! A check that fails where no local NI serves says nothing. A gateway that is dead is checked far more often
//! than LNet does, and at once when something comes from it: so routes return soon.
//!
//! Invariants: a gateway has one check under way at most; where routes name a peer by several of its NIDs,
//! one of these is checked, and the outcome counts for all; with the interval 0 a gateway is checked until
//! that has gone well once.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use lnet_wire::ping::{NiStatus as ToldStatus, PingInfo};
use lnet_wire::{Net, Nid, Parameter};

use super::Node;
use super::error::RequestError;
use super::nets::NiConfig;
use super::peers::{Peer, TOLD_MAX, peer_state};
use super::routes::{Route, RouteList, nids_of_gateway};
use crate::shard::{PathNote, PathState};
use crate::time::Instant;
use crate::topology::NiStatus;

/// How long after the beginning of a check that failed the next one begins at the latest.
const DEAD_INTERVAL: Duration = Duration::from_secs(10);
/// How far apart checks of a gateway are at least.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// A gateway, by the NID that it was named by.
#[derive(Clone, Default, Debug)]
struct Gateway {
    /// Whether the last check has gone well, or something has come by it since; `None` before the first.
    is_alive: Option<bool>,
    /// The net that it is being checked by.
    under_check: Option<Net>,
    /// When its last check has begun.
    asked_at: Option<Instant>,
    /// When it is to be checked next by each net; now by others.
    next: BTreeMap<Net, Instant>,
    /// The nets of its NIs as it has told them last, each with whether an NI there is up.
    told: BTreeMap<Net, bool>,
    /// When it is to be looked at.
    due: Option<Instant>,
}

/// The gateways of a node's routes.
#[derive(Clone, Default, Debug)]
pub(super) struct Gateways {
    /// By the NIDs that they were named by.
    named: BTreeMap<Nid, Gateway>,
    /// When each is to be looked at.
    due: BTreeSet<(Instant, Nid)>,
}

impl Gateways {
    /// Whether a gateway is taken for dead, by the NID that it was named by.
    pub(super) fn is_dead(&self, named: &Nid) -> bool {
        self.named.get(named).is_some_and(|gateway| gateway.is_alive == Some(false))
    }

    /// When the first of them is to be looked at.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    fn set_due(&mut self, named: &Nid, due: Option<Instant>) {
        let Some(gateway) = self.named.get_mut(named) else { return };
        if let Some(former) = core::mem::replace(&mut gateway.due, due) {
            self.due.remove(&(former, *named));
        }
        self.due.extend(due.map(|at| (at, *named)));
    }
}

impl<O: Clone> Node<O> {
    /// Whether a gateway is still to be checked for the first time.
    #[must_use]
    pub fn awaits_gateways(&self) -> bool {
        self.gateways.named.values().any(|gateway| gateway.is_alive.is_none())
    }

    /// Takes over the routes that a batch has made. The gateways of new ones are checked at once.
    pub(super) fn replace_routes(&mut self, list: RouteList) {
        let of_new = self.routes.replace(list);
        let routes = &self.routes.list;
        self.gateways.named.retain(|named, _| routes.is_gateway(named));
        self.gateways.due.retain(|(_, named)| routes.is_gateway(named));
        for named in of_new {
            let told = self.told_by(&named);
            let new = || Gateway { told, ..Gateway::default() };
            self.gateways.named.entry(named).or_insert_with(new).next.clear();
        }
    }

    /// A net can be used again: gateways there are checked at once.
    pub(super) fn hurry_gateways_on(&mut self, net: Net) {
        for gateway in self.gateways.named.values_mut() {
            gateway.next.remove(&net);
        }
    }

    /// Brings all gateways up to date with the NIs, the settings and the routes.
    pub(super) fn settle_gateways(&mut self) {
        let named: Vec<Nid> = self.gateways.named.keys().copied().collect();
        named.iter().for_each(|named| self.settle_gateway(named));
    }

    /// Settles which routes by a gateway are up, and when it is checked next.
    pub(super) fn settle_gateway(&mut self, named: &Nid) {
        let states: Vec<bool> = self.routes.list.by(named).map(|route| self.is_route_up(route)).collect();
        let (mut states, mut is_changed) = (states.into_iter(), false);
        self.routes.list.by_mut(named, |route| {
            let is_up = states.next().unwrap_or(route.is_up);
            is_changed |= core::mem::replace(&mut route.is_up, is_up) != is_up;
        });
        self.routes.is_changed |= is_changed;
        self.snapshots.is_changed |= is_changed;
        self.schedule(named);
    }

    /// The NIDs by which a gateway was named that has this one.
    pub(super) fn named_gateways(&self, nid: &Nid) -> Vec<Nid> {
        let mut nids = nids_of_gateway(nid, self.peers.get(nid));
        nids.retain(|nid| self.gateways.named.contains_key(nid));
        nids.sort();
        nids
    }

    /// The nets of a gateway's NIs as far as it has told them before a route was by it.
    fn told_by(&self, named: &Nid) -> BTreeMap<Net, bool> {
        let Some(peer) = self.peers.get(named).filter(|peer| peer.is(peer_state::DISCOVERED)) else {
            return BTreeMap::new();
        };
        let mut told = BTreeMap::new();
        for nid in &peer.told {
            let ni = peer.shown().into_iter().find(|ni| ni.nid == *nid);
            *told.entry(nid.net()).or_default() |= ni.is_none_or(|ni| ni.is_up != Some(false));
        }
        told
    }

    /// Whether a route is up (LNet `router.c: lnet_is_route_alive`).
    fn is_route_up(&self, route: &Route) -> bool {
        let spec = &route.spec;
        let assumed = self.settings.parameter(Parameter::CheckRoutersBeforeUse) == 0;
        let Some(gateway) = self.gateways.named.get(&spec.gateway) else { return assumed };
        if !gateway.is_alive.unwrap_or(assumed) {
            return false;
        }
        let peer = self.peers.get(&spec.gateway).filter(|peer| peer.is(peer_state::DISCOVERED));
        match peer {
            Some(peer) if self.takes_part(peer) => self.is_told_up(gateway, peer, route),
            Some(peer) => route.told_up.unwrap_or_else(|| self.is_told_up(gateway, peer, route)),
            None => route.told_up.unwrap_or(assumed),
        }
    }

    /// Whether discovery finds out about a peer, here and there (LNet `peer.c: lnet_is_discovery_disabled`).
    fn takes_part(&self, peer: &Peer) -> bool {
        self.is_discovery_on() && peer.is_multi_rail() && !peer.is(peer_state::NO_DISCOVERY)
    }

    /// Whether a gateway forwards by a route, by its own word.
    fn is_told_up(&self, gateway: &Gateway, peer: &Peer, route: &Route) -> bool {
        let spec = &route.spec;
        let is_near = |nid: &Nid| nid.net() == spec.gateway.net();
        let is_next = spec.hops == Some(1) || gateway.told.contains_key(&spec.net);
        let asks_far = self.settings.parameter(Parameter::AvoidAsymRouterFailure) != 0 && is_next;
        peer.is(peer_state::ROUTER_ENABLED)
            && peer.nis.iter().any(|ni| is_near(&ni.nid) && ni.is_up != Some(false))
            && (!asks_far || gateway.told.get(&spec.net) == Some(&true))
    }

    /// A peer has said which of its NIs are up: if it is a gateway, that counts for its routes.
    pub(super) fn note_gateway_word(&mut self, from: &Nid, info: &PingInfo<'_>) {
        let Some(peer) = self.peers.get(from).filter(|peer| peer.is_gateway()) else { return };
        let mut told = BTreeMap::new();
        for ni in info.interfaces().take(TOLD_MAX).filter(|ni| !ni.nid.is_loopback()) {
            *told.entry(ni.nid.net()).or_default() |= ni.status == ToldStatus::UP;
        }
        let peer = peer.primary;
        for named in self.named_gateways(from) {
            if let Some(gateway) = self.gateways.named.get_mut(&named) {
                gateway.told.clone_from(&told);
            }
            self.tell_routes(&named, |node, gateway, route| {
                node.peers.get(&peer).map(|peer| node.is_told_up(gateway, peer, route))
            });
        }
    }

    /// Has a word on the routes by a gateway count; `None` has what counted before stay.
    fn tell_routes(&mut self, named: &Nid, word: impl Fn(&Self, &Gateway, &Route) -> Option<bool>) {
        let Some(gateway) = self.gateways.named.get(named) else { return };
        let words: Vec<_> = self.routes.list.by(named).map(|route| word(self, gateway, route)).collect();
        let mut words = words.into_iter();
        self.routes.list.by_mut(named, |route| route.told_up = words.next().flatten().or(route.told_up));
        self.settle_gateway(named);
    }

    /// Something has come from a NID: a gateway that is dead may live again, and is checked.
    pub(super) fn note_gateway_spoke(&mut self, now: Instant, nid: &Nid) {
        for named in self.named_gateways(nid) {
            if self.gateways.is_dead(&named) {
                self.hurry_gateway(now, &named);
            }
            self.settle_gateway(&named);
        }
    }

    /// A message from a net has come by a gateway that is taken for dead: it is alive, and its NI there is up
    /// (LNet `lib-move.c: lnet_check_route_inconsistency`).
    pub(super) fn note_foreign(&mut self, now: Instant, by: &Nid, net: Net) {
        if !self.named_gateways(by).iter().any(|named| self.gateways.is_dead(named)) {
            return;
        }
        self.received_from(now, by);
        for named in self.named_gateways(by) {
            if let Some(gateway) = self.gateways.named.get_mut(&named) {
                gateway.is_alive = Some(true);
                gateway.told.insert(net, true);
            }
            self.routes.is_changed = true;
            self.tell_routes(&named, |_, _, route| (route.spec.net == net).then_some(true));
            self.hurry_gateway(now, &named);
        }
    }

    /// An LND has found that a path to a gateway answers or is silent. Where the gateway takes no part in
    /// discovery, that counts for the routes by the NI: silence only if no path to it is left that a message
    /// would take instead. In each case the gateway is checked soon.
    pub(super) fn note_gateway_path(&mut self, now: Instant, note: &PathNote) {
        let is_up = note.state == PathState::Answers;
        let others_answer =
            || self.serving(note.peer.net()).any(|own| !self.paths.is_silent(&own, &note.peer));
        let is_named = self.gateways.named.contains_key(&note.peer);
        if !is_named || note.state == PathState::Poor || !is_up && others_answer() {
            return;
        }
        self.tell_routes(&note.peer, |node, gateway, route| {
            let peer = node.peers.get(&note.peer).filter(|peer| peer.is(peer_state::DISCOVERED));
            Some(is_up && peer.is_none_or(|peer| node.is_told_up(gateway, peer, route)))
        });
        if is_up == self.gateways.is_dead(&note.peer) {
            self.hurry_gateway(now, &note.peer);
        }
    }

    /// The NIDs of the NIs on a net that serve.
    fn serving(&self, net: Net) -> impl Iterator<Item = Nid> {
        let serves =
            move |config: &&NiConfig<O>| config.spec.nid.net() == net && config.status() == NiStatus::Up;
        self.nis.0.iter().filter(serves).map(|config| config.spec.nid)
    }

    /// Has a gateway checked as soon as may be.
    fn hurry_gateway(&mut self, now: Instant, named: &Nid) {
        let Some(gateway) = self.gateways.named.get_mut(named) else { return };
        let earliest = gateway.asked_at.map_or(now, |at| now.max(at + INTERVAL_MIN));
        gateway.next.values_mut().for_each(|at| *at = earliest.min(*at));
        self.schedule(named);
    }

    fn schedule(&mut self, named: &Nid) {
        let next = self.next_check(named);
        self.gateways.set_due(named, next.map(|(at, _)| at));
    }

    /// How long the checks by a net are apart; `None` without checks.
    fn check_interval(&self) -> Option<Duration> {
        let seconds = self.settings.parameter(Parameter::AliveRouterCheckInterval);
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    /// When a gateway is to be looked at next, and the net that it is to be checked by then. It has nothing
    /// to be looked at where no NI leads to it, and where it is checked by another name.
    fn next_check(&self, named: &Nid) -> Option<(Instant, Net)> {
        let gateway = self.gateways.named.get(named)?;
        let is_over = self.check_interval().is_none() && gateway.is_alive == Some(true);
        if is_over || self.config.peers_max == 0 || self.named_gateways(named).first() != Some(named) {
            return None;
        }
        let nets =
            nids_of_gateway(named, self.peers.get(named)).into_iter().filter(|nid| !self.is_local(nid));
        let nets = nets.map(|nid| nid.net()).filter(|net| self.serving(*net).next().is_some());
        // The interval may have become shorter since the last check.
        let latest = gateway.asked_at.zip(self.check_interval()).map(|(at, interval)| at + interval);
        let due = |net| {
            let at = gateway.next.get(&net).copied().unwrap_or(Instant(0));
            (latest.map_or(at, |latest| latest.min(at)), net)
        };
        nets.map(due).min()
    }

    /// When the first gateway is to be looked at.
    pub(super) fn next_gateway(&self) -> Option<Instant> {
        self.gateways.next()
    }

    /// Checks the gateways whose time has come.
    pub(super) fn check_gateways(&mut self, now: Instant) {
        while let Some(named) =
            self.gateways.due.first().filter(|(at, _)| *at <= now).map(|(_, named)| *named)
        {
            match self.next_check(&named) {
                Some((at, net)) if at <= now => self.check_gateway(now, &named, net),
                next => self.gateways.set_due(&named, next.map(|(at, _)| at)),
            }
        }
    }

    /// Checks a gateway by a net. A check that is under way, or was lost with its peer, has its time first.
    fn check_gateway(&mut self, now: Instant, named: &Nid, net: Net) {
        let patience = self.gateway_timeout() + self.gateway_timeout();
        let is_asked = self.peers.get(named).is_some_and(|peer| peer.is(peer_state::DISCOVERING));
        let interval = self.check_interval().unwrap_or(DEAD_INTERVAL);
        let Some(gateway) = self.gateways.named.get_mut(named) else { return };
        if gateway.under_check.is_some() && is_asked {
            return self.gateways.set_due(named, Some(now + patience));
        }
        (gateway.under_check, gateway.asked_at) = (Some(net), Some(now));
        gateway.next.insert(net, now + interval);
        self.gateways.set_due(named, Some(now + patience));
        if self.peers.get(named).is_none() {
            self.peers.note_traffic(named, false);
        }
        let forced = peer_state::FORCE_PING | peer_state::FORCE_PUSH | peer_state::ROUTER_DISCOVERY;
        self.set_state(named, forced, peer_state::NIDS_UP_TO_DATE);
        self.discover(now, named);
    }

    /// How long an answer of a gateway may take.
    fn gateway_timeout(&self) -> Duration {
        let seconds = self.settings.parameter(Parameter::RouterPingTimeout);
        Duration::from_secs(seconds.into()).min(self.own_timeout())
    }

    /// The check that is under way of the gateway that has a NID: when it has begun, the NI that it goes to,
    /// the one here that it comes from, and how long each answer may take.
    pub(super) fn check_of(&self, nid: &Nid) -> Option<Check> {
        let peer = self.peers.get(nid).filter(|peer| peer.is_gateway())?;
        let (named, gateway, net) = self.named_gateways(nid).into_iter().find_map(|named| {
            let gateway = self.gateways.named.get(&named)?;
            Some((named, gateway, gateway.under_check?))
        })?;
        let on_net = nids_of_gateway(&named, Some(peer)).into_iter().find(|nid| nid.net() == net);
        Some(Check {
            to: on_net.filter(|nid| !self.is_local(nid))?,
            source: self.serving(net).next()?,
            begun_at: gateway.asked_at?,
            timeout: self.gateway_timeout(),
        })
    }

    /// The discovery of a peer has ended: if it is a gateway under check, that has.
    pub(super) fn gateway_checked(&mut self, nid: &Nid, result: &Result<(), RequestError>) {
        let all = self.named_gateways(nid);
        let mut net = None;
        for named in &all {
            net = self.gateways.named.get_mut(named).and_then(|gateway| gateway.under_check.take()).or(net);
        }
        let Some(net) = net else { return };
        self.set_state(nid, peer_state::ROUTER_DISCOVERED, peer_state::ROUTER_DISCOVERY);
        let is_alive = result.is_ok();
        let is_word = is_alive || self.serving(net).next().is_some();
        if !is_alive
            && is_word
            && let Some(peer) = self.peers.get_mut(nid)
        {
            peer.nis.iter_mut().for_each(|ni| ni.is_up = Some(false));
        }
        for named in &all {
            let Some(gateway) = self.gateways.named.get_mut(named).filter(|_| is_word) else { continue };
            self.routes.is_changed |= gateway.is_alive.replace(is_alive) != Some(is_alive);
            if !is_alive {
                gateway.told.values_mut().for_each(|is_up| *is_up = false);
                let soon = gateway.asked_at.map(|at| at + DEAD_INTERVAL);
                gateway.next.values_mut().for_each(|at| *at = soon.map_or(*at, |soon| soon.min(*at)));
                self.tell_routes(named, |_, _, _| Some(false));
            }
        }
        self.snapshots.is_changed |= self.routes.is_changed;
        all.iter().for_each(|named| self.settle_gateway(named));
    }
}

/// A check of a gateway that is under way.
pub(super) struct Check {
    /// The NI that it goes to.
    pub(super) to: Nid,
    /// The NID that it comes from.
    pub(super) source: Nid,
    /// When it has begun.
    pub(super) begun_at: Instant,
    /// How long each answer may take.
    pub(super) timeout: Duration,
}
