//! Changes of the configuration, validated as a whole before the first is carried out.
//!
//! Invariant: what passed here fails only where the world outside says no: a driver, or a portal in use.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_model::pool::PoolKind;
use lnet_model::route::RouteSpec;
use lnet_wire::steer::{PORTALS, Policy, PolicyWord, Spread};
use lnet_wire::{Global, Net, Nid, Parameter, ping};

use super::Node;
use super::error::{ChangeError, RequestError};
use super::nets::{LOOPBACK, NiConfig, NiSpec};
use super::peers::{PeerEdit, PeerTable};
use super::routes::{self, RouteError, RouteList, nids_of_gateway};
use super::routing::{RoutingChange, RoutingPlan};
use super::settings::Settings;
use crate::lnd::NiId;
use crate::topology::HEALTH_MAX;
use crate::udsp::{RuleEdit, RuleError, RuleList};

/// One change of the configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeChange<O> {
    /// An NI is added; its net comes with the first.
    AddNi(NiSpec<O>),
    /// An NI is deleted; its net goes with the last.
    DeleteNi {
        /// Its NID.
        nid: Nid,
    },
    /// An NI is closed and opened again: another interface has come in the place of its own. If that fails,
    /// the NI is [absent](NiConfig::is_absent).
    ReopenNi {
        /// Its NID.
        nid: Nid,
    },
    /// The NI of an interface is deleted; its net goes with the last.
    DeleteInterface {
        /// The net.
        net: Net,
        /// The interface's name.
        interface: String,
    },
    /// A net goes with all its NIs.
    DeleteNet {
        /// The net.
        net: Net,
    },
    /// The health of an NI is set, or that of all; 0 takes them down, 1000 up.
    SetHealth {
        /// Its NID; all without one.
        nid: Option<Nid>,
        /// 0 to 1000.
        value: u32,
    },
    /// How long the LND of an NI may take for a message.
    SetLndTimeout {
        /// Its NID.
        nid: Nid,
        /// The time; zero follows the global tunables.
        timeout: Duration,
    },
    /// How messages of a portal find their shard.
    SetPolicy {
        /// The portal, 0 to 63.
        portal: u32,
        /// The policy.
        policy: Policy,
    },
    /// The administrator changes peers.
    Peer(PeerEdit),
    /// A net is reached by a gateway from now on.
    AddRoute(RouteSpec),
    /// A net is reached by a gateway no more.
    DeleteRoute {
        /// The net.
        net: Net,
        /// Any NID of the gateway.
        gateway: Nid,
    },
    /// Messages of other nodes are forwarded from now on, or not any more.
    SetRouting {
        /// Whether they are.
        on: bool,
    },
    /// A pool of a router has so many buffers, all shards together; 0 is the default. Forgotten where routing
    /// is off.
    SetPool {
        /// Which.
        pool: PoolKind,
        /// How many.
        buffer_count: u32,
    },
    /// The administrator changes the selection policies.
    Udsp(RuleEdit),
    /// A global tunable.
    Set {
        /// Which.
        setting: Global,
        /// Its value.
        value: i64,
    },
    /// A parameter.
    SetParameter {
        /// Which.
        parameter: Parameter,
        /// Its value.
        value: u32,
    },
}

/// What a batch comes to.
#[derive(Clone, Debug)]
pub(super) struct Plan<O> {
    pub(super) delete: Vec<NiId>,
    /// NIs that are opened again, each with the index of its change in the batch.
    pub(super) reopen: Vec<(usize, NiId)>,
    /// NIs that come, each with the index of its change in the batch. They have no slots yet.
    pub(super) add: Vec<(usize, NiConfig<O>)>,
    /// The healths that are set, of NIs that are there already, in their order.
    pub(super) healths: Vec<(NiId, u32)>,
    /// The LND timeouts that are set, likewise.
    pub(super) timeouts: Vec<(NiId, Duration)>,
    /// The indices of the changes in the batch, the portals and their policies.
    pub(super) policies: Vec<(usize, u32, PolicyWord)>,
    pub(super) settings: Settings,
    pub(super) peers: Vec<PeerEdit>,
    /// The selection policies, if the batch changes them.
    pub(super) rules: Option<RuleList>,
    /// The net routes, likewise.
    pub(super) routes: Option<RouteList>,
    /// Routing, likewise.
    pub(super) routing: Option<RoutingPlan>,
}

impl<O> Plan<O> {
    /// NIs that are closed.
    pub(super) fn going(&self) -> impl Iterator<Item = NiId> {
        self.delete.iter().copied().chain(self.reopen.iter().map(|(_, ni)| *ni))
    }
}

/// The state after some of the changes of a batch.
struct Draft<'a, O> {
    node: &'a Node<O>,
    /// Local NIs; those that come have the index of their change.
    nis: Vec<(Option<usize>, NiConfig<O>)>,
    /// Peers after the changes so far, if any of them is about peers.
    peers: Option<PeerTable>,
    plan: Plan<O>,
}

impl<O: Clone> Node<O> {
    /// Looks at a batch of changes: whether all of them can be made, one after the other.
    ///
    /// # Errors
    /// What is wrong with the first that cannot.
    pub fn validate(&self, changes: &[NodeChange<O>]) -> Result<(), RequestError> {
        self.plan(changes).map(|_| ())
    }

    pub(super) fn plan(&self, changes: &[NodeChange<O>]) -> Result<Plan<O>, RequestError> {
        let plan = Plan {
            delete: Vec::new(),
            reopen: Vec::new(),
            add: Vec::new(),
            healths: Vec::new(),
            timeouts: Vec::new(),
            policies: Vec::new(),
            settings: self.settings,
            peers: Vec::new(),
            rules: None,
            routes: None,
            routing: None,
        };
        let nis = self.nis.0.iter().map(|config| (None, config.clone())).collect();
        let mut draft = Draft { node: self, nis, peers: None, plan };
        for (index, change) in changes.iter().enumerate() {
            draft.apply(index, change).map_err(|error| RequestError::Change { index, error })?;
        }
        let Draft { nis, mut plan, .. } = draft;
        if let Some(routing) = &plan.routing {
            let refused =
                |error| RequestError::Change { index: routing.index, error: ChangeError::Routing(error) };
            routing.check(self.config.router_buffers_max).map_err(refused)?;
        }
        plan.reopen.retain(|(_, ni)| !plan.delete.contains(ni));
        let added = nis.into_iter().filter_map(|(index, config)| Some((index?, config)));
        plan.add.extend(added);
        Ok(plan)
    }
}

impl<O: Clone> Draft<'_, O> {
    fn apply(&mut self, index: usize, change: &NodeChange<O>) -> Result<(), ChangeError> {
        match change {
            NodeChange::AddNi(spec) => self.add(index, spec),
            NodeChange::DeleteNi { nid } if nid.is_loopback() => Err(ChangeError::Loopback),
            NodeChange::DeleteNi { nid } => {
                self.delete(|spec| spec.nid == *nid).ok_or(ChangeError::UnknownNid(*nid))
            }
            NodeChange::ReopenNi { nid } => {
                let its = |(added, config): &&(Option<usize>, NiConfig<O>)| {
                    added.is_none() && config.spec.nid == *nid
                };
                let (_, config) = self.nis.iter().find(its).ok_or(ChangeError::UnknownNid(*nid))?;
                if !self.plan.reopen.iter().any(|(_, ni)| *ni == config.ni) {
                    self.plan.reopen.push((index, config.ni));
                }
                Ok(())
            }
            NodeChange::DeleteInterface { net, .. } | NodeChange::DeleteNet { net } if *net == Net::LO => {
                Err(ChangeError::Loopback)
            }
            NodeChange::DeleteInterface { net, interface } => {
                let found = self.delete(|spec| spec.nid.net() == *net && spec.interface == *interface);
                found.ok_or_else(|| ChangeError::UnknownInterface { net: *net, interface: interface.clone() })
            }
            NodeChange::DeleteNet { net } => {
                self.delete(|spec| spec.nid.net() == *net).ok_or(ChangeError::UnknownNet(*net))
            }
            NodeChange::SetHealth { nid, value } => self.set_health(*nid, *value),
            NodeChange::SetLndTimeout { nid, timeout } => self.set_lnd_timeout(nid, *timeout),
            NodeChange::SetPolicy { portal, policy } => self.set_policy(index, *portal, policy),
            NodeChange::Peer(change) => {
                self.check_gateways(change)?;
                let own: Vec<Nid> = self.nis.iter().map(|(_, config)| config.spec.nid).collect();
                let peers = self.peers.get_or_insert_with(|| self.node.peers.clone());
                peers.apply(change, &own).map_err(ChangeError::Peer)?;
                self.plan.peers.push(change.clone());
                Ok(())
            }
            NodeChange::AddRoute(spec) => self.add_route(spec).map_err(ChangeError::Route),
            NodeChange::DeleteRoute { net, gateway } => {
                let nids = nids_of_gateway(gateway, self.peers().get(gateway));
                self.routes_mut().delete(*net, &nids).map_err(ChangeError::Route)
            }
            NodeChange::SetRouting { on } => self.change_routing(index, RoutingChange::Switch(*on)),
            NodeChange::SetPool { pool, buffer_count } => {
                self.change_routing(index, RoutingChange::Buffers(*pool, *buffer_count))
            }
            NodeChange::Udsp(edit) => {
                let rules = self.plan.rules.get_or_insert_with(|| self.node.rules.clone());
                rules.apply(edit).map_err(ChangeError::Rule)?;
                let RuleEdit::Add { rule, .. } = edit else { return Ok(()) };
                let own = || self.nis.iter().map(|(_, config)| &config.spec.nid);
                let peers = self.peers.as_ref().unwrap_or(&self.node.peers).iter();
                let nis = peers.filter(|peer| !peer.is_multi_rail()).flat_map(|peer| &peer.nis);
                let mut named = nis.filter(|ni| rule.prefers_for(&ni.nid));
                match named.find(|ni| rules.preferred(&ni.nid, own()).nids().len() > 1) {
                    Some(ni) => Err(ChangeError::Rule(RuleError::SeveralPreferred(ni.nid))),
                    None => Ok(()),
                }
            }
            NodeChange::Set { setting, value } => {
                let changed = self.plan.settings.with(*setting, *value);
                let settings = &self.plan.settings;
                self.plan.settings = changed.ok_or_else(|| settings.refusal(*setting, *value))?;
                Ok(())
            }
            &NodeChange::SetParameter { parameter, value } => {
                let changed = self.plan.settings.with_parameter(parameter, value);
                self.plan.settings = changed.ok_or(ChangeError::Parameter { parameter, value })?;
                Ok(())
            }
        }
    }

    fn add(&mut self, index: usize, spec: &NiSpec<O>) -> Result<(), ChangeError> {
        let NiSpec { nid, ref interface, options, .. } = *spec;
        let net = nid.net();
        if net == Net::LO {
            return Err(ChangeError::Loopback);
        }
        // No NI has a NID that the answer to a ping cannot tell.
        let is_told = ping::encoded_bytes([ping::PingNi { nid, status: ping::NiStatus::UP }]).is_ok();
        if !is_told || !nid.can_name_an_ni() {
            return Err(ChangeError::Wildcard(nid));
        }
        if !self.node.config.net_types.contains(&net.net_type()) {
            return Err(ChangeError::NetType(net));
        }
        if self.routes().leads_to(net) {
            return Err(ChangeError::Route(RouteError::NetRouted(net)));
        }
        let on_net = || self.nis.iter().filter(|(_, other)| other.spec.nid.net() == net);
        if on_net().any(|(_, other)| other.spec.nid == nid) {
            return Err(ChangeError::NidExists(nid));
        }
        if on_net().any(|(_, other)| other.spec.interface == *interface) {
            return Err(ChangeError::InterfaceExists { net, interface: interface.clone() });
        }
        let max = self.plan.settings.get(Global::MaxInterfaces).min(self.node.config.nis_max.into());
        if self.nis.len() + usize::from(LOOPBACK.0) + 1 >= max as usize {
            return Err(ChangeError::TooMany { max });
        }
        let tunables = on_net().next().map_or_else(|| options.tunables(), |(_, other)| other.tunables);
        if tunables.peer_credits == 0 {
            return Err(ChangeError::NoCredits(nid));
        }
        self.nis.push((Some(index), NiConfig::new(spec.clone(), tunables)));
        Ok(())
    }

    /// Deletes all that fit, and the routes by gateways on nets that go with them; `None` if none does.
    fn delete(&mut self, fits: impl Fn(&NiSpec<O>) -> bool) -> Option<()> {
        let before = self.nis.len();
        let goes = self.nis.extract_if(.., |(_, config)| fits(&config.spec));
        self.plan.delete.extend(goes.filter(|(index, _)| index.is_none()).map(|(_, config)| config.ni));
        let nets: Vec<Net> = self.nis.iter().map(|(_, config)| config.spec.nid.net()).collect();
        let goes = |gateway: &Nid| !nets.contains(&gateway.net());
        if self.routes().gateways().any(goes) {
            self.routes_mut().delete_by(goes);
        }
        (self.nis.len() < before).then_some(())
    }

    /// The peers after the changes so far.
    fn peers(&self) -> &PeerTable {
        self.peers.as_ref().unwrap_or(&self.node.peers)
    }

    /// The routes after the changes so far.
    fn routes(&self) -> &RouteList {
        self.plan.routes.as_ref().unwrap_or(&self.node.routes.list)
    }

    fn routes_mut(&mut self) -> &mut RouteList {
        self.plan.routes.get_or_insert_with(|| self.node.routes.list.clone())
    }

    fn add_route(&mut self, spec: &RouteSpec) -> Result<(), RouteError> {
        routes::check(spec)?;
        let RouteSpec { net, gateway, .. } = *spec;
        let is_on = |net: Net| self.nis.iter().any(|(_, config)| config.spec.nid.net() == net);
        if is_on(net) {
            return Err(RouteError::LocalNet(net));
        }
        if !is_on(gateway.net()) {
            return Err(RouteError::NoNi(gateway));
        }
        if self.nis.iter().any(|(_, config)| config.spec.nid == gateway) {
            return Err(RouteError::Gateway(gateway));
        }
        let nids = nids_of_gateway(&gateway, self.peers().get(&gateway));
        self.routes_mut().add(*spec, &nids)
    }

    fn change_routing(&mut self, index: usize, change: RoutingChange) -> Result<(), ChangeError> {
        let max = self.node.config.router_buffers_max;
        let plan = self.node.routing.plan(self.plan.routing, (index, change), max);
        self.plan.routing = plan.map_err(ChangeError::Routing)?;
        Ok(())
    }

    /// A gateway is neither made nor deleted as a peer.
    fn check_gateways(&self, change: &PeerEdit) -> Result<(), ChangeError> {
        let nids = match change {
            PeerEdit::Add(spec) => &[&[spec.primary_nid], &spec.nids[..]].concat(),
            PeerEdit::Delete { primary, .. } => &alloc::vec![*primary],
            PeerEdit::SetHealth { .. } | PeerEdit::SetState { .. } => return Ok(()),
        };
        let is_gateway = |nid: &&Nid| self.routes().has_gateway(&nids_of_gateway(nid, self.peers().get(nid)));
        match nids.iter().find(is_gateway) {
            Some(nid) => Err(ChangeError::Route(RouteError::Busy(*nid))),
            None => Ok(()),
        }
    }

    fn set_health(&mut self, nid: Option<Nid>, value: u32) -> Result<(), ChangeError> {
        if value > HEALTH_MAX {
            return Err(ChangeError::Health(value));
        }
        if let Some(nid) = nid.filter(|nid| !self.nis.iter().any(|(_, config)| config.spec.nid == *nid)) {
            return Err(if nid.is_loopback() { ChangeError::Loopback } else { ChangeError::UnknownNid(nid) });
        }
        let its = self.nis.iter_mut().filter(|(_, config)| nid.is_none_or(|nid| config.spec.nid == nid));
        for (added, config) in its {
            match added {
                Some(_) => config.set_health(value),
                // Until the batch is through, messages may change it.
                None => self.plan.healths.push((config.ni, value)),
            }
        }
        Ok(())
    }

    fn set_lnd_timeout(&mut self, nid: &Nid, timeout: Duration) -> Result<(), ChangeError> {
        let its = self.nis.iter_mut().find(|(_, config)| config.spec.nid == *nid);
        match its {
            None if nid.is_loopback() => Err(ChangeError::Loopback),
            None => Err(ChangeError::UnknownNid(*nid)),
            Some((Some(_), config)) => {
                config.spec.options.lnd_timeout = timeout;
                Ok(())
            }
            Some((None, config)) => {
                self.plan.timeouts.push((config.ni, timeout));
                Ok(())
            }
        }
    }

    fn set_policy(&mut self, index: usize, portal: u32, policy: &Policy) -> Result<(), ChangeError> {
        let word = policy_word(portal, policy, self.node.config.shard_count)?;
        self.plan.policies.retain(|(_, other, _)| *other != portal);
        if self.node.policies[portal as usize] != word {
            self.plan.policies.push((index, portal, word));
        }
        Ok(())
    }
}

/// The word of a portal's policy, on a node with so many shards.
///
/// # Errors
/// [`ChangeError::Portal`], [`ChangeError::Policy`], [`ChangeError::PolicyShard`].
pub fn policy_word(portal: u32, policy: &Policy, shards: u8) -> Result<PolicyWord, ChangeError> {
    if portal as usize >= PORTALS {
        return Err(ChangeError::Portal(portal));
    }
    let word = policy.pack().map_err(|error| ChangeError::Policy { portal, error })?;
    let mut named = match policy {
        Policy::Pin(shard) => core::slice::from_ref(shard),
        // No more entries than the bits tell apart are ever looked up.
        Policy::MatchBits { bits, spread: Spread::Table(table), .. } => &table[..1 << *bits],
        Policy::MatchBits { .. } | Policy::Initiator | Policy::Rotor => &[],
    }
    .iter();
    match named.find(|shard| **shard >= shards) {
        Some(&shard) => Err(ChangeError::PolicyShard { portal, shard, shards }),
        None => Ok(word),
    }
}
