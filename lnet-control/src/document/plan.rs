//! What is left to be done for a document on a node that is in some state.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};

use lnet_model::fault::{DelaySpec, DropRule};
use lnet_model::lnd::NiOption;
use lnet_model::ni::{NiOptions, NiSpec};
use lnet_model::pattern::cpts_text;
use lnet_model::peer::{PeerSpec, peer_state};
use lnet_model::records::{Globals, NiRecord, PeerRecord, RouteRecord};
use lnet_model::request::{Change, Staying};
use lnet_model::route::RouteSpec;
use lnet_model::udsp::Selection;
use lnet_wire::{Global, Net, Nid};

use super::show::NodeState;
use super::{Document, Instruction, Item, Shown};

impl Document {
    /// NIDs of the peers that it is about: a plan for it wants no others of a node's. There is no list where
    /// it is about all peers.
    #[must_use]
    pub fn peers_named(&self) -> Option<Vec<Nid>> {
        let mut named = BTreeSet::new();
        for item in &self.items {
            match &item.action {
                Instruction::Change(change) => {
                    if let Change::AddPeer(spec) = &**change {
                        named.insert(spec.primary_nid);
                    }
                }
                Instruction::Peers { nids, .. } => named.extend(nids),
                Instruction::Show(Shown::Peers { nid, .. }) => _ = named.insert((*nid)?),
                Instruction::Show(Shown::OlderPeers) => return None,
                _ => {}
            }
        }
        Some(named.into_iter().collect())
    }

    /// Whether it is about routes: a plan for one that is not wants none of a node's.
    #[must_use]
    pub fn names_routes(&self) -> bool {
        self.items.iter().any(|item| match &item.action {
            Instruction::Change(change) => matches!(**change, Change::AddRoute(_)),
            action => matches!(action, Instruction::Show(Shown::Routes { .. })),
        })
    }

    /// The changes that make the node what the document says, each with the item that it comes from. What is
    /// so already is left out.
    #[must_use]
    pub fn plan(&self, state: &NodeState) -> Vec<(&Item, Change)> {
        let mut changes = Vec::new();
        let mut rules = KnownRules {
            drops: state.drop_rules.iter().map(|record| &record.rule).collect(),
            delays: state.delay_rules.iter().map(|record| &record.rule).collect(),
        };
        let known = StateIndex {
            peers: state.peers.iter().map(|peer| (peer.primary_nid, peer)).collect(),
            // The first of several that are shown with a NID is its owner.
            owners: state
                .peers
                .iter()
                .rev()
                .flat_map(|peer| peer.nis.iter().map(move |ni| (ni.nid, peer)))
                .collect(),
            routes: state
                .routes
                .iter()
                .map(|record| ((record.spec.net, record.spec.gateway), record))
                .collect(),
        };
        for item in &self.items {
            match &item.action {
                Instruction::Change(change) => {
                    if !is_so(change, state, &known, &mut rules) && !is_done_by(&changes, change) {
                        changes.push((item, Change::clone(change)));
                    }
                }
                Instruction::Peers { nids, deletes } => {
                    let planned = if *deletes { without(nids, &known) } else { refreshed(nids, &known) };
                    changes.extend(planned.into_iter().map(|change| (item, change)));
                }
                Instruction::Choose { .. } | Instruction::Ping(_) | Instruction::Show(_) => {}
            }
        }
        order_globals(&mut changes, &state.globals);
        order_deletions(&mut changes);
        order_routes(&mut changes);
        changes
    }
}

/// Tunables of nets that NIs of a document are to have otherwise than they have them, each with its item: the
/// net's first NI has fixed them, and so there is nothing to be done. Of NIs that are yet to be made the node
/// tells.
#[must_use]
pub fn passed_over<'a>(document: &'a Document, state: &NodeState) -> Vec<(&'a Item, Staying)> {
    let mut said = Vec::new();
    for item in &document.items {
        let Instruction::Change(change) = &item.action else { continue };
        let Change::AddNi(spec) = &**change else { continue };
        let Some((first, others)) = nis_on(spec.net, state).split_first() else { continue };
        if is_named(first, spec) || !others.iter().any(|ni| is_named(ni, spec)) {
            continue;
        }
        for (row, asked) in spec.options.entries().filter(|(row, _)| row.option.is_of_net()) {
            let (net, option) = (spec.net, row.option);
            let has = first.options.get(option).filter(|has| *has != asked);
            said.extend(has.map(|has| (item, Staying::Tunable { net, option, asked, has })));
        }
    }
    said
}

/// The NIs on a net, its first one in front.
fn nis_on(net: Net, state: &NodeState) -> &[NiRecord] {
    state.nets.iter().find(|known| known.net == net).map_or(&[], |known| known.nis.as_slice())
}

/// How an NI or a route that is there differs from what is asked for; nothing where there is none.
#[must_use]
pub fn differences(change: &Change, state: &NodeState) -> Vec<String> {
    match change {
        Change::AddNi(spec) => ni_differences(spec, state),
        Change::AddRoute(spec) => route_differences(spec, state),
        _ => Vec::new(),
    }
}

fn route_differences(asked: &RouteSpec, state: &NodeState) -> Vec<String> {
    let is_it = |spec: &RouteSpec| (spec.net, spec.gateway) == (asked.net, asked.gateway);
    let known = state.routes.iter().map(|record| record.spec).find(is_it);
    let values =
        |spec: RouteSpec| [("hop", i64::from(spec.shown_hops())), ("priority", spec.priority.into())];
    let Some(known) = known else { return Vec::new() };
    let both = values(known).into_iter().zip(values(*asked));
    let unlike = both.filter(|(has, asked)| has != asked);
    unlike.map(|((name, has), (_, asked))| format!("{name} is {has} and not {asked}")).collect()
}

fn ni_differences(spec: &NiSpec, state: &NodeState) -> Vec<String> {
    let mut nis = nis_on(spec.net, state).iter().zip(0..);
    let Some((ni, at)) = nis.find(|(ni, _)| is_named(ni, spec)) else { return Vec::new() };
    let mut told: Vec<_> = ni
        .options
        .unfit(&own_options(spec, at == 0))
        .map(|(row, value)| {
            let has = ni.options.get(row.option).map(|value| row.values.text(value).to_string());
            let has = has.unwrap_or_else(|| "not set".to_owned());
            format!("{} is {has} and not {}", row.option, row.values.text(value))
        })
        .collect();
    if !has_cpts(ni, spec) {
        let [has, asked] = [&ni.cpts, &spec.cpts].map(|cpts| cpts_text(cpts));
        told.push(format!("CPT is {has} and not {asked}"));
    }
    told
}

/// Brings tunables that limit each other into an order in which each step is allowed, if the end is: LNet
/// wants fewer retries than seconds of a transaction, and none without health.
pub fn order_globals<T: Clone>(changes: &mut [(T, Change)], now: &Globals) {
    let global_of = |change: &Change| match change {
        Change::SetGlobal { global, value } => Some((*global, *value)),
        _ => None,
    };
    let mut globals = changes.iter().rev().filter_map(|(_, change)| global_of(change));
    let timeout = globals.find(|(global, _)| *global == Global::TransactionTimeout);
    let timeout_first = timeout.is_none_or(|(_, value)| value > now.get(Global::RetryCount));
    let rank = |change: &Change| match global_of(change)?.0 {
        Global::HealthSensitivity => Some(0),
        Global::TransactionTimeout => Some(if timeout_first { 1 } else { 3 }),
        Global::RetryCount => Some(2),
        _ => None,
    };
    order(changes, rank);
}

/// Puts the changes that have a rank in its order, in the positions that they have among the others.
fn order<T: Clone, R: Ord>(changes: &mut [(T, Change)], rank: impl Fn(&Change) -> Option<R>) {
    let indices: Vec<_> = (0..changes.len()).filter(|index| rank(&changes[*index].1).is_some()).collect();
    let mut ranked: Vec<_> = indices.iter().map(|index| changes[*index].clone()).collect();
    ranked.sort_by_key(|(_, change)| rank(change));
    for (index, change) in indices.into_iter().zip(ranked) {
        changes[index] = change;
    }
}

/// Puts deletions of selection policies in an order in which none changes the index of one that is still to
/// go: a document has the indices that they have before.
fn order_deletions(changes: &mut [(&Item, Change)]) {
    // The deletion of all comes last.
    order(changes, |change| match change {
        Change::DeleteUdsp { index } => Some(Reverse(*index)),
        _ => None,
    });
}

/// Puts changes into an order in which routes have what they need: nets, and peers with several NIDs that are
/// gateways, come before the routes by them and go behind these.
fn order_routes(changes: &mut [(&Item, Change)]) {
    let gateways: HashSet<Nid> = changes
        .iter()
        .filter_map(|(_, change)| match change {
            Change::AddRoute(spec) => Some(spec.gateway),
            Change::DeleteRoute { gateway, .. } => Some(*gateway),
            _ => None,
        })
        .collect();
    if gateways.is_empty() {
        return;
    }
    let has_gateway =
        |spec: &PeerSpec| [spec.primary_nid].iter().chain(&spec.nids).any(|nid| gateways.contains(nid));
    order(changes, |change| match change {
        Change::DeleteRoute { .. } => Some(0),
        Change::DeleteNi(_) | Change::DeleteNet(_) | Change::DeletePeer { .. } => Some(1),
        Change::AddNi(_) => Some(2),
        Change::AddPeer(spec) if has_gateway(spec) => Some(3),
        Change::AddRoute(_) => Some(4),
        _ => None,
    });
}

/// The state of a node, by the names in it.
struct StateIndex<'a> {
    peers: HashMap<Nid, &'a PeerRecord>,
    owners: HashMap<Nid, &'a PeerRecord>,
    routes: HashMap<(Net, Nid), &'a RouteRecord>,
}

/// Whether a gateway that no user has made is what is asked for: routes alone make it, and the node refuses
/// to make it a user's.
fn is_gateway(peer: &PeerRecord, spec: &PeerSpec) -> bool {
    let has = |nid: &Nid| peer.nis.iter().any(|ni| ni.nid == *nid);
    peer.is_gateway
        && peer.state & peer_state::CONFIGURED == 0
        && peer.multi_rail == spec.multi_rail
        && !spec.lock_primary
        && spec.nids.iter().all(has)
}

/// Whether a peer is what is asked for.
fn is_peer(peer: &PeerRecord, spec: &PeerSpec) -> bool {
    let has = |nid| peer.nis.iter().any(|ni| ni.nid == nid && ni.is_configured);
    let is = |bit| peer.state & bit != 0;
    peer.primary_nid == spec.primary_nid
        && is(peer_state::CONFIGURED)
        && peer.multi_rail == spec.multi_rail
        && (is(peer_state::LOCK_PRIMARY) || !spec.lock_primary)
        && spec.nids.iter().all(|nid| has(*nid))
}

/// The peer that has one of these NIDs, the first of them that is a peer's, with all that it has.
fn owner<'a>(nids: &[Nid], known: &StateIndex<'a>) -> Option<(&'a PeerRecord, Vec<Nid>)> {
    let peer = nids.iter().find_map(|nid| known.owners.get(nid).copied())?;
    Some((peer, peer.nis.iter().map(|ni| ni.nid).collect()))
}

/// What makes a peer anew.
fn made(primary_nid: Nid, nids: Vec<Nid>, like: Option<&PeerRecord>) -> Change {
    let has = |bit| like.is_some_and(|peer| peer.state & bit != 0);
    let multi_rail = like.is_none_or(|peer| peer.multi_rail || !has(peer_state::CONFIGURED));
    Change::AddPeer(PeerSpec { primary_nid, nids, multi_rail, lock_primary: has(peer_state::LOCK_PRIMARY) })
}

/// What gives a peer these NIDs and no others.
fn refreshed(nids: &[Nid], known: &StateIndex<'_>) -> Vec<Change> {
    let Some((peer, known)) = owner(nids, known) else { return vec![made(nids[0], nids.to_vec(), None)] };
    let is_configured = peer.state & peer_state::CONFIGURED != 0;
    let (gone, has_all): (Vec<Nid>, _) = (
        known.iter().filter(|nid| !nids.contains(nid)).copied().collect(),
        nids.iter().all(|nid| peer.nis.iter().any(|ni| ni.nid == *nid && ni.is_configured)),
    );
    let stays = nids.contains(&peer.primary_nid);
    let primary_nid = if stays { peer.primary_nid } else { nids[0] };
    let mut changes = Vec::new();
    if !gone.is_empty() {
        let nids = if stays { gone.clone() } else { Vec::new() };
        changes.push(Change::DeletePeer { primary_nid: peer.primary_nid, nids, force: !stays });
    }
    if !is_configured || !has_all || !stays {
        changes.push(made(primary_nid, nids.to_vec(), Some(peer)));
    }
    changes
}

/// What takes these NIDs from their peer; with the last one the peer goes.
fn without(nids: &[Nid], known: &StateIndex<'_>) -> Vec<Change> {
    let delete = |primary_nid, nids, force| Change::DeletePeer { primary_nid, nids, force };
    // The node says that there is none.
    let Some((peer, known)) = owner(nids, known) else { return vec![delete(nids[0], Vec::new(), false)] };
    if !nids.contains(&peer.primary_nid) || nids.iter().any(|nid| !known.contains(nid)) {
        return vec![delete(peer.primary_nid, nids.to_vec(), false)];
    }
    let rest: Vec<_> = known.into_iter().filter(|nid| !nids.contains(nid)).collect();
    let whole = delete(peer.primary_nid, Vec::new(), true);
    core::iter::once(whole).chain(rest.first().map(|first| made(*first, rest.clone(), Some(peer)))).collect()
}

/// Whether changes before this one do all of it: a deletion of fault rules takes all that it names.
fn is_done_by(changes: &[(&Item, Change)], change: &Change) -> bool {
    matches!(change, Change::DeleteDropRules { .. } | Change::DeleteDelayRules { .. })
        && changes.iter().any(|(_, earlier)| earlier == change)
}

/// Rules of the node that stand for none of the document yet.
struct KnownRules<'a> {
    drops: Vec<&'a DropRule>,
    delays: Vec<&'a DelaySpec>,
}

/// Whether a rule is among those, which it is taken out of.
fn taken<R: PartialEq>(rules: &mut Vec<&R>, rule: &R) -> bool {
    let same = rules.iter().position(|known| *known == rule);
    same.map(|index| rules.remove(index)).is_some()
}

/// Whether there is nothing to be done for a change. A rule of the node stands for one of the document.
fn is_so(change: &Change, state: &NodeState, known: &StateIndex<'_>, rules: &mut KnownRules<'_>) -> bool {
    match change {
        Change::AddNi(spec) => {
            let nis = nis_on(spec.net, state).iter().zip(0..);
            // An NI that has no name is the net's first one, which has the tunables of the net.
            let mut nis = nis.take(if is_unnamed(spec) { 1 } else { usize::MAX });
            nis.any(|(ni, at)| is_like(ni, spec, at == 0))
        }
        Change::SetGlobal { global, value } => state.globals.get(*global) == *value,
        Change::AddDropRule(rule) => taken(&mut rules.drops, rule),
        Change::AddDelayRule(rule) => taken(&mut rules.delays, rule),
        Change::AddPeer(spec) => known
            .peers
            .get(&spec.primary_nid)
            .is_some_and(|peer| is_peer(peer, spec) || is_gateway(peer, spec)),
        Change::AddRoute(spec) => {
            known.routes.get(&(spec.net, spec.gateway)).is_some_and(|record| record.spec == *spec)
        }
        Change::AddUdsp { rule, .. } => state.udsp.contains(rule),
        Change::AddSelection(selection) => Selection::of(&state.udsp)
            .iter()
            .any(|known| known.is_like(selection) && known.priority() == selection.priority()),
        _ => false,
    }
}

/// Whether an NI is what is asked for. What is left open is as it may be, and so is what the net's first NI
/// has fixed.
fn is_like(ni: &NiRecord, spec: &NiSpec, is_first: bool) -> bool {
    is_named(ni, spec) && has_cpts(ni, spec) && ni.options.fits(&own_options(spec, is_first))
}

/// The options that an NI is to have itself: those of its net are its own where it is the first one.
fn own_options(spec: &NiSpec, is_first: bool) -> NiOptions {
    let mut options = spec.options;
    for option in NiOption::ALL.into_iter().filter(|option| option.is_of_net() && !is_first) {
        options.set(option, None);
    }
    options
}

/// Whether an NI is asked for by its net alone.
fn is_unnamed(spec: &NiSpec) -> bool {
    spec.interface.is_none() && spec.nid.is_none()
}

/// Whether an NI is the one that is meant: neither its interface nor its NID is another one than asked for.
fn is_named(ni: &NiRecord, spec: &NiSpec) -> bool {
    let interface = spec.interface.as_ref().is_some_and(|name| ni.interface.as_ref() == Some(name));
    let nid = spec.nid == Some(ni.nid);
    ni.nid.net() == spec.net
        && match (&spec.interface, spec.nid) {
            (Some(_), None) => interface && !ni.is_chosen_by_nid,
            (None, Some(_)) => nid,
            (Some(_), Some(_)) => interface && nid,
            // An NI by an interface of the node's choice is one by any.
            (None, None) => true,
        }
}

/// Whether the CPTs that are asked for serve an NI.
fn has_cpts(ni: &NiRecord, spec: &NiSpec) -> bool {
    let has_all = |some: &[u32], of: &[u32]| of.iter().all(|cpt| some.contains(cpt));
    spec.cpts.is_empty() || has_all(&spec.cpts, &ni.cpts) && has_all(&ni.cpts, &spec.cpts)
}
