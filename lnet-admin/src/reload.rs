//! The start-up, read again while the node runs.
//!
//! Invariants: the node becomes what the start-up says in one batch, or stays as it is; what clients have
//! changed beside the start-up stays; what has left the start-up goes.

use std::collections::{HashMap, HashSet};

use lnet_control::document::{self, NodeState};
use lnet_control::server::Handler;
use lnet_model::ni::{NiName, NiSpec};
use lnet_model::peer::PeerSpec;
use lnet_model::records::{NiRecord, PeerQuery, PeerRecord, RouteRecord};
use lnet_model::request::{Change, ChangeSet, Effect};
use lnet_model::route::RouteSpec;
use lnet_model::steering::{PortalPolicy, SteeringPolicy};
use lnet_model::udsp::{Selection, UdspRule};
use lnet_model::{Errno, Refusal};
use lnet_wire::{Net, Nid};
use tracing::{error, info, warn};

use super::control::Control;

/// Plans that are made where clients change the node meanwhile.
const PLANS_MAX: u32 = 100;

impl Control {
    /// Reads the start-up again and carries out what has changed in it; tells the log.
    pub(super) async fn reload(&self) {
        if self.options.start_up.is_empty() {
            info!("SIGHUP changes nothing: the node has no start-up document and no start-up strings");
            return;
        }
        match self.reloaded().await {
            Ok(lines) => {
                lines.iter().for_each(|line| info!("reload: {line}"));
                info!(changes = lines.len(), "reload: done");
            }
            Err(refusal) => {
                refusal.message.lines().for_each(|line| error!("reload: {line}"));
                error!("reload: refused, the node stays as it is");
            }
        }
    }

    /// Makes the node what the start-up says now; what has changed.
    async fn reloaded(&self) -> Result<Vec<String>, Refusal> {
        if !self.is_configured.get() {
            let changes = vec![Change::Configure { all: true, large: self.prefers_ipv6.get() }];
            self.apply_batch(ChangeSet { changes, dry_run: false, generation: None }).await?;
            return Ok(vec!["+ node".to_owned()]);
        }
        for _ in 0..PLANS_MAX {
            let generation = Some(self.generation.get());
            let documents = self.start_up().await?;
            let state = self.state().await?;
            let asked: Vec<Change> =
                documents.iter().flat_map(|(_, document)| document.changes().cloned()).collect();
            let mut changes = gone(&self.carried_out.borrow(), &asked, &state);
            let between = without(state.clone(), &changes.list);
            for (origin, document) in &documents {
                for (item, change) in document.plan(&between) {
                    let location = format!("{origin}: {}: {}: ", item.position, item.entity);
                    changes.push(Some(location), change);
                }
            }
            routes_again(&mut changes, &state, &between);
            document::order_globals(&mut changes.list, &state.globals);
            let (locations, changes): (Vec<_>, Vec<_>) = changes.list.into_iter().unzip();
            if changes.is_empty() {
                self.carried_out.replace(asked);
                return Ok(Vec::new());
            }
            let batch = ChangeSet { changes: changes.clone(), dry_run: false, generation };
            match self.apply_batch(batch).await {
                Ok(outcomes) => {
                    self.carried_out.replace(asked);
                    for staying in outcomes.iter().flat_map(Effect::staying) {
                        warn!("reload: {staying}");
                    }
                    return Ok(document::diff(&state, &changes, &outcomes));
                }
                Err(refusal) if refusal.errno == Errno::STALE => {}
                Err(refusal) => {
                    let located = |refusal: &Refusal| {
                        let location = refusal.change.and_then(|at| locations.get(at)?.clone());
                        format!("{}{}", location.unwrap_or_default(), refusal.message)
                    };
                    let all = core::iter::once(&refusal).chain(&refusal.further);
                    let lines: Vec<_> = all.map(located).collect();
                    return Err(Refusal::new(refusal.errno, lines.join("\n")));
                }
            }
        }
        Err(Refusal::new(Errno::STALE, "clients change the node without end"))
    }

    /// All that documents are made of.
    async fn state(&self) -> Result<NodeState, Refusal> {
        let (mut peers, mut query) = (Vec::new(), PeerQuery::default());
        loop {
            let page = self.peer_records(&query).await?;
            peers.extend(page.peers);
            if page.next.is_none() {
                break;
            }
            query.after = page.next;
        }
        let mut routes: Vec<RouteRecord> = Vec::new();
        loop {
            let page = self.routes_behind(routes.last().map(|last| &last.spec));
            routes.extend(page.routes);
            if !page.has_more {
                break;
            }
        }
        Ok(NodeState {
            nets: self.net_records().await?,
            peers,
            routes,
            routing: self.routing().await?,
            globals: self.global_record(),
            udsp: self.udsp_records(),
            drop_rules: self.drop_rules().await?,
            delay_rules: self.delay_rules().await?,
            steering: self.steering_record(),
        })
    }
}

/// Changes, each once, with where the start-up says it.
#[derive(Default)]
struct Unique {
    list: Vec<(Option<String>, Change)>,
    texts: HashSet<String>,
}

impl Unique {
    fn push(&mut self, location: Option<String>, change: Change) {
        if self.texts.insert(format!("{change:?}")) {
            self.list.push((location, change));
        }
    }

    /// Whether a deletion among them takes this fault rule.
    fn takes(&self, rule: &Change) -> bool {
        self.list.iter().any(|(_, change)| takes(change, rule))
    }
}

/// Adds again the routes of clients that go with the last NI of a net that comes again: the node drops the
/// routes by gateways on a net without NIs.
fn routes_again(changes: &mut Unique, state: &NodeState, between: &NodeState) {
    let asked = |change: &Change| match change {
        Change::DeleteRoute { net, gateway } | Change::AddRoute(RouteSpec { net, gateway, .. }) => {
            Some((*net, *gateway))
        }
        _ => None,
    };
    let known = between.routes.iter().map(|route| (route.spec.net, route.spec.gateway));
    let settled: HashSet<_> =
        known.chain(changes.list.iter().filter_map(|(_, change)| asked(change))).collect();
    let added = |change: &Change| match change {
        Change::AddNi(spec) => Some(spec.net),
        _ => None,
    };
    let nets: HashSet<Net> = changes.list.iter().filter_map(|(_, change)| added(change)).collect();
    for spec in state.routes.iter().map(|route| route.spec) {
        if nets.contains(&spec.gateway.net()) && !settled.contains(&(spec.net, spec.gateway)) {
            changes.push(None, Change::AddRoute(spec));
        }
    }
}

/// Changes that take away what the start-up said before and says no more, as far as it is there.
fn gone(before: &[Change], now: &[Change], state: &NodeState) -> Unique {
    let said: HashSet<String> = now.iter().map(|change| format!("{change:?}")).collect();
    let lost: Vec<_> = before.iter().filter(|change| !said.contains(&format!("{change:?}"))).collect();
    let has_global = |global| {
        now.iter().any(|change| matches!(change, Change::SetGlobal { global: said, .. } if *said == global))
    };
    let steers = |portal| {
        now.iter().any(|change| matches!(change, Change::SetSteering(said) if said.portal == portal))
    };
    let routes_on = now.iter().any(|change| matches!(change, Change::SetRouting { .. }));
    let is_on = |change: &Change| matches!(change, Change::SetRouting { on: true });
    // Sizes of pools are forgotten where routing goes off.
    let routes_later = state.routing.state.is_to_be_on() && (routes_on || !before.iter().any(is_on));
    let has_pool =
        |pool| now.iter().any(|change| matches!(change, Change::SetPool { pool: said, .. } if *said == pool));
    let routes: HashSet<_> = state.routes.iter().map(|route| (route.spec.net, route.spec.gateway)).collect();
    let peers: HashMap<Nid, &PeerRecord> = state.peers.iter().map(|peer| (peer.primary_nid, peer)).collect();
    let later_peers: HashMap<Nid, &PeerSpec> = now
        .iter()
        .filter_map(|change| match change {
            Change::AddPeer(spec) => Some((spec.primary_nid, spec)),
            _ => None,
        })
        .collect();
    let mut changes = Unique::default();
    let mut rules: Vec<u32> = Vec::new();
    // Routes come first: they want their nets.
    for change in &lost {
        if let Change::AddRoute(RouteSpec { net, gateway, .. }) = change
            && routes.contains(&(*net, *gateway))
        {
            changes.push(None, Change::DeleteRoute { net: *net, gateway: *gateway });
        }
    }
    for change in lost {
        match change {
            Change::AddNi(spec) => {
                if let Some(ni) = ni_of(spec, state).filter(|ni| !stays(ni, spec, now, state)) {
                    changes.push(None, Change::DeleteNi(NiName::Nid(ni.nid)));
                }
            }
            Change::AddPeer(spec) => {
                let primary_nid = spec.primary_nid;
                let Some(peer) = peers.get(&primary_nid) else { continue };
                let flags = |spec: &PeerSpec| (spec.multi_rail, spec.lock_primary);
                let later = later_peers.get(&primary_nid).filter(|later| flags(later) == flags(spec));
                let Some(later) = later else {
                    changes.push(None, Change::DeletePeer { primary_nid, nids: Vec::new(), force: true });
                    continue;
                };
                let has = |nid: &Nid| peer.nis.iter().any(|ni| ni.nid == *nid);
                let leaves = |nid: &&Nid| **nid != primary_nid && !later.nids.contains(nid) && has(nid);
                let nids: Vec<_> = spec.nids.iter().filter(leaves).copied().collect();
                if !nids.is_empty() {
                    changes.push(None, Change::DeletePeer { primary_nid, nids, force: false });
                }
            }
            Change::SetGlobal { global, .. } => {
                let (global, value) = (*global, global.default_value());
                if !has_global(global) && state.globals.get(global) != value {
                    changes.push(None, Change::SetGlobal { global, value });
                }
            }
            Change::SetRouting { on: true } if !routes_on => {
                changes.push(None, Change::SetRouting { on: false });
            }
            Change::SetPool { pool, .. } if routes_later && !has_pool(*pool) => {
                changes.push(None, Change::SetPool { pool: *pool, buffer_count: 0 });
            }
            Change::AddSelection(selection) => {
                let known = Selection::of(&state.udsp).into_iter().find(|known| known.is_like(selection));
                let id = known.and_then(|known| known.id());
                let its = |rule: &UdspRule| id.is_some() && rule.selection == id;
                let indices = (0..).zip(&state.udsp).filter(|(_, rule)| its(rule)).map(|(index, _)| index);
                rules.extend(indices);
            }
            Change::AddUdsp { rule, .. } => {
                let index = state.udsp.iter().position(|known| known == rule);
                rules.extend(index.and_then(|index| u32::try_from(index).ok()));
            }
            Change::AddDropRule(rule) => {
                let (source, destination) = (rule.filter.source, rule.filter.destination);
                if state.drop_rules.iter().any(|known| known.rule == *rule) && !changes.takes(change) {
                    changes.push(None, Change::DeleteDropRules { source, destination });
                }
            }
            Change::AddDelayRule(spec) => {
                let (source, destination) = (spec.filter.source, spec.filter.destination);
                if state.delay_rules.iter().any(|known| known.rule == *spec) && !changes.takes(change) {
                    changes.push(None, Change::DeleteDelayRules { source, destination });
                }
            }
            Change::SetSteering(PortalPolicy { portal, .. }) if !steers(*portal) => {
                let policy = PortalPolicy { portal: *portal, policy: SteeringPolicy::DEFAULT };
                changes.push(None, Change::SetSteering(policy));
            }
            _ => {}
        }
    }
    rules_again(&mut changes, before, now, state);
    // The last first: the others have their indices still.
    rules.sort_unstable();
    rules.dedup();
    rules.into_iter().rev().for_each(|index| changes.push(None, Change::DeleteUdsp { index: Some(index) }));
    changes
}

/// Adds again the fault rules of clients that deletions take with them, the oldest first.
fn rules_again(changes: &mut Unique, before: &[Change], now: &[Change], state: &NodeState) {
    let drops = state.drop_rules.iter().rev().map(|known| Change::AddDropRule(known.rule.clone()));
    let delays = state.delay_rules.iter().rev().map(|known| Change::AddDelayRule(known.rule.clone()));
    let is_theirs = |rule: &Change| !before.contains(rule) && !now.contains(rule);
    let again: Vec<_> = drops.chain(delays).filter(|rule| is_theirs(rule) && changes.takes(rule)).collect();
    // Clients may have made the same rule twice.
    changes.list.extend(again.into_iter().map(|rule| (None, rule)));
}

/// Whether a deletion of fault rules takes this one: a wildcard stands for all ends.
fn takes(deletion: &Change, rule: &Change) -> bool {
    let (source, destination, filter) = match (deletion, rule) {
        (Change::DeleteDropRules { source, destination }, Change::AddDropRule(rule)) => {
            (source, destination, &rule.filter)
        }
        (Change::DeleteDelayRules { source, destination }, Change::AddDelayRule(rule)) => {
            (source, destination, &rule.filter)
        }
        _ => return false,
    };
    let fits = |wanted: &Nid, found: &Nid| wanted.is_any() || wanted == found;
    fits(source, &filter.source) && fits(destination, &filter.destination)
}

/// The NI that a specification has made.
fn ni_of<'a>(spec: &NiSpec, state: &'a NodeState) -> Option<&'a NiRecord> {
    let mut nis = state.nets.iter().filter(|net| net.net == spec.net).flat_map(|net| &net.nis);
    nis.find(|ni| {
        let has_interface = spec.interface.as_ref().is_none_or(|name| ni.interface.as_ref() == Some(name));
        has_interface && spec.nid.map_or(!ni.is_chosen_by_nid, |nid| nid == ni.nid)
    })
}

/// Whether an NI is asked for in other words, and as it was.
fn stays(ni: &NiRecord, spec: &NiSpec, now: &[Change], state: &NodeState) -> bool {
    now.iter().any(|change| match change {
        Change::AddNi(later) => {
            (&later.options, &later.cpts) == (&spec.options, &spec.cpts)
                && ni_of(later, state).is_some_and(|same| same.nid == ni.nid)
        }
        _ => false,
    })
}

/// The state behind deletions: what is asked for anew is planned from it.
fn without(mut state: NodeState, deletions: &[(Option<String>, Change)]) -> NodeState {
    let (mut peers, mut routes) = (HashSet::new(), HashSet::new());
    for (_, change) in deletions {
        match change {
            Change::DeleteNi(NiName::Nid(nid)) => {
                state.nets.iter_mut().for_each(|net| net.nis.retain(|ni| ni.nid != *nid));
            }
            Change::DeletePeer { primary_nid, nids, .. } if nids.is_empty() => {
                peers.insert(*primary_nid);
            }
            Change::DeleteRoute { net, gateway } => {
                routes.insert((*net, *gateway));
            }
            Change::SetGlobal { global, value } => state.globals.set(*global, *value),
            Change::DeleteDropRules { .. } => {
                state.drop_rules.retain(|known| !takes(change, &Change::AddDropRule(known.rule.clone())));
            }
            Change::DeleteDelayRules { .. } => {
                state.delay_rules.retain(|known| !takes(change, &Change::AddDelayRule(known.rule.clone())));
            }
            Change::DeleteUdsp { index: Some(index) } => {
                state.udsp.remove(*index as usize);
            }
            _ => {}
        }
    }
    state.nets.retain(|net| !net.nis.is_empty());
    state.peers.retain(|peer| !peers.contains(&peer.primary_nid));
    // Routes go with the net of their gateway.
    let nets: HashSet<Net> = state.nets.iter().map(|net| net.net).collect();
    state.routes.retain(|RouteRecord { spec, .. }| {
        !routes.contains(&(spec.net, spec.gateway)) && nets.contains(&spec.gateway.net())
    });
    state
}
