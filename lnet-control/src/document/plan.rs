//! What is left to be done for a document on a node that is in some state.

use super::show::NodeState;
use super::{Action, Document, DocumentError, Item, Mode, PeerItem};
use crate::errno::Errno;
use crate::records::{DropRule, Global, Globals, NiRecord, PeerRecord};
use crate::request::{Change, NiSpec};

impl Document {
    /// The changes that make the node what the document says, each with the item that it comes from. What is so
    /// already is left out.
    ///
    /// # Errors
    /// What this node cannot do.
    pub fn plan(&self, mode: Mode, state: &NodeState) -> Result<Vec<(&Item, Change)>, Vec<DocumentError>> {
        let mut changes = Vec::new();
        let mut errors = Vec::new();
        let mut rules: Vec<_> = state.drop_rules.iter().map(|record| &record.rule).collect();
        for item in &self.items {
            match &item.action {
                Action::Peer(peer) => errors.extend(check_peer(item, peer, mode, state)),
                Action::Change(change) => {
                    if !is_so(change, state, &mut rules) {
                        changes.push((item, change.clone()));
                    }
                }
                Action::Ping(_) => {}
            }
        }
        order_globals(&mut changes, &state.globals);
        if errors.is_empty() { Ok(changes) } else { Err(errors) }
    }
}

/// Brings tunables that limit each other into an order in which each step is allowed, if the end is: LNet wants fewer
/// retries than seconds of a transaction, and none without health.
fn order_globals(changes: &mut [(&Item, Change)], now: &Globals) {
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
    let indices: Vec<_> = (0..changes.len()).filter(|index| rank(&changes[*index].1).is_some()).collect();
    let mut ranked: Vec<_> = indices.iter().map(|index| changes[*index].clone()).collect();
    ranked.sort_by_key(|(_, change)| rank(change));
    for (index, change) in indices.into_iter().zip(ranked) {
        changes[index] = change;
    }
}

/// Peers are found by traffic: a document may tell of them.
fn check_peer(item: &Item, peer: &PeerItem, mode: Mode, state: &NodeState) -> Option<DocumentError> {
    let is_known = |known: &PeerRecord| {
        let has = |nid| known.nis.iter().any(|ni| ni.nid == nid);
        known.primary_nid == peer.primary_nid
            && known.multi_rail == peer.multi_rail
            && peer.nids.iter().all(|nid| has(*nid))
    };
    let exists = state.peers.iter().any(is_known);
    if peer.found_by_traffic || exists == (mode == Mode::Add) {
        return None;
    }
    let what = if mode == Mode::Add { "making" } else { "deleting" };
    let message = format!(
        "peer {}: peers are found by traffic, {what} them by hand is not supported by this version",
        peer.primary_nid
    );
    Some(DocumentError { position: item.position, message, errno: Errno::OPNOTSUPP, seq_no: item.seq_no })
}

/// Whether there is nothing to be done for a change. A rule of the node stands for one of the document.
fn is_so(change: &Change, state: &NodeState, rules: &mut Vec<&DropRule>) -> bool {
    match change {
        Change::AddNi(spec) => {
            let net = state.nets.iter().find(|net| net.net == spec.net);
            net.is_some_and(|net| net.nis.iter().any(|ni| is_like(ni, spec)))
        }
        Change::SetGlobal { global, value } => state.globals.get(*global) == *value,
        Change::AddDropRule(rule) => {
            let same = rules.iter().position(|known| *known == rule);
            same.map(|index| rules.remove(index)).is_some()
        }
        _ => false,
    }
}

/// Whether an NI is what is asked for. What is left open is as it may be.
fn is_like(ni: &NiRecord, spec: &NiSpec) -> bool {
    let interface = spec.interface.as_ref().is_some_and(|name| ni.interface.as_ref() == Some(name));
    let nid = spec.nid == Some(ni.nid);
    // One of them is named and fits, and the other does not contradict.
    let is_named = match (&spec.interface, spec.nid) {
        (Some(_), None) => interface && !ni.is_chosen_by_nid,
        (None, Some(_)) => nid,
        (Some(_), Some(_)) => interface && nid,
        (None, None) => false,
    };
    let cpts = spec.cpts.is_empty() || spec.cpts == ni.cpts;
    is_named && cpts && ni.options.fits(&spec.options)
}
