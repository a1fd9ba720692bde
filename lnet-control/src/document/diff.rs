//! What changes would do to a node, line by line.

use std::fmt::Write;

use lnet_model::ni::{NiName, NiSpec};
use lnet_model::pattern::{cpts_text, fault_nid_text};
use lnet_model::peer::PeerSpec;
use lnet_model::request::{Change, Effect};
use lnet_model::steering::{PortalPolicy, SteeringPolicy};
use lnet_model::udsp::{Selection, UdspRule};

use super::show::NodeState;

/// Lines that say what changes do to a node in this state: `+` what comes, `-` what goes, `~` what becomes
/// something else. Changes that leave the node as it is have none.
#[must_use]
pub fn diff(state: &NodeState, changes: &[Change], outcomes: &[Effect]) -> Vec<String> {
    let changed = changes.iter().zip(outcomes).filter(|(_, outcome)| **outcome != Effect::Unchanged);
    changed.map(|(change, _)| line(state, change)).collect()
}

fn line(state: &NodeState, change: &Change) -> String {
    match change {
        Change::Configure { .. } => "+ node".to_owned(),
        Change::Unconfigure => "- node: all nets, peers and rules".to_owned(),
        Change::AddNi(spec) => format!("+ net {}: {}", spec.net, ni_text(spec)),
        Change::DeleteNi(NiName::Interface { net, interface }) => format!("- net {net}: ni on {interface}"),
        Change::DeleteNi(NiName::Nid(nid)) => format!("- net {}: ni {nid}", nid.net()),
        Change::DeleteNet(net) => {
            let nis = state.nets.iter().find(|one| one.net == *net).map_or(0, |net| net.nis.len());
            format!("- net {net}: all of it ({nis} ni)")
        }
        Change::SetHealth { nid, value } => format!("~ {}: health {value}", target(nid.as_ref())),
        Change::SetOption { nid, option, value } => {
            format!("~ {}: {option} {}", target(nid.as_ref()), option.row().values.text(*value))
        }
        Change::SetLndTimeout { net, timeout_s } => format!("~ nets like {net}: lnd timeout {timeout_s}"),
        Change::SetGlobal { global, value } => {
            let shown = |value| global.word(value).map_or_else(|| value.to_string(), str::to_owned);
            format!("~ global {global}: {} -> {}", shown(state.globals.get(*global)), shown(*value))
        }
        Change::SetParameter { parameter, value } => format!("~ parameter {parameter}: {value}"),
        Change::ResetStatistics => "~ statistics: all zero".to_owned(),
        Change::AddDropRule(rule) => {
            format!(
                "+ drop rule: {} -> {}",
                fault_nid_text(&rule.filter.source),
                fault_nid_text(&rule.filter.destination)
            )
        }
        Change::DeleteDropRules { source, destination } => {
            format!("- drop rules: {} -> {}", fault_nid_text(source), fault_nid_text(destination))
        }
        Change::AddDelayRule(rule) => {
            format!(
                "+ delay rule: {} -> {}",
                fault_nid_text(&rule.filter.source),
                fault_nid_text(&rule.filter.destination)
            )
        }
        Change::DeleteDelayRules { source, destination } => {
            format!("- delay rules: {} -> {}", fault_nid_text(source), fault_nid_text(destination))
        }
        Change::DeleteAllDelayRules => "- delay rules: all".to_owned(),
        Change::ResetDelayRules => "~ delay rules: counters zero".to_owned(),
        Change::DeleteAllDropRules => "- drop rules: all".to_owned(),
        Change::ResetDropRules => "~ drop rules: counters zero".to_owned(),
        Change::AddPeer(spec) => format!("+ peer {}", peer_text(spec)),
        Change::DeletePeer { primary_nid, nids, .. } if nids.is_empty() || nids.contains(primary_nid) => {
            format!("- peer {primary_nid}: all of it")
        }
        Change::DeletePeer { primary_nid, nids, .. } => format!("- peer {primary_nid}: {}", list(nids)),
        Change::AddRoute(spec) => format!("+ route {spec}"),
        Change::DeleteRoute { net, gateway } => format!("- route {net} by {gateway}"),
        Change::SetRouting { on } => format!("~ routing: {}", if *on { "on" } else { "off" }),
        Change::SetPool { pool, buffer_count } => format!("~ buffers: {pool} {buffer_count}"),
        Change::SetPeerHealth { nid, value } => format!("~ peers: {}: health {value}", target(nid.as_ref())),
        Change::SetPeerState { nid, state } => format!("~ peer with {nid}: state {state}"),
        Change::AddUdsp { index, rule } => {
            let index = index.map_or_else(String::new, |index| format!(" {index}"));
            format!("+ udsp{index}: {}", udsp_text(rule))
        }
        Change::AddSelection(selection) => format!("+ selection: {}", selection_text(selection)),
        Change::DeleteSelection { id, like } => {
            let id = id.map_or_else(String::new, |id| format!(" {id}"));
            let like = like.as_ref().map_or_else(String::new, |like| format!(": {}", selection_text(like)));
            format!("- selection{id}{like}")
        }
        Change::DeleteUdsp { index: None } => "- udsp: all".to_owned(),
        Change::DeleteUdsp { index: Some(index) } => {
            let rule = state.udsp.get(*index as usize).map_or_else(String::new, udsp_text);
            format!("- udsp {index}: {rule}")
        }
        Change::SetSteering(PortalPolicy { portal, policy }) => {
            let known = state.steering.portals.iter().find(|known| known.portal == *portal);
            let known = known.map_or(SteeringPolicy::DEFAULT, |known| known.policy.clone());
            format!("~ steering of portal {portal}: {} -> {}", policy_text(&known), policy_text(policy))
        }
    }
}

fn target(nid: Option<&lnet_wire::Nid>) -> String {
    nid.map_or_else(|| "all nis".to_owned(), |nid| format!("ni {nid}"))
}

fn list(nids: &[lnet_wire::Nid]) -> String {
    nids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn peer_text(spec: &PeerSpec) -> String {
    let PeerSpec { primary_nid, nids, multi_rail, lock_primary } = spec;
    let others: Vec<_> = nids.iter().filter(|nid| *nid != primary_nid).copied().collect();
    let mut text = primary_nid.to_string();
    if !others.is_empty() {
        let _ = write!(text, ": {}", list(&others));
    }
    for (word, is_so) in [("not Multi-Rail", !multi_rail), ("primary nid locked", *lock_primary)] {
        if is_so {
            let _ = write!(text, ", {word}");
        }
    }
    text
}

/// A selection policy in a few words.
fn udsp_text(rule: &UdspRule) -> String {
    let patterns = rule.patterns().map(|(name, pattern)| format!("{name} {pattern}"));
    let priority = rule.priority.map(|priority| format!("priority {priority}"));
    let selection = rule.selection.map(|id| format!("of selection {id}"));
    patterns.chain(priority).chain(selection).collect::<Vec<_>>().join(", ")
}

/// A selection policy of the older form in a few words.
fn selection_text(selection: &Selection) -> String {
    let patterns = selection.patterns().map(|(name, pattern)| format!("{name} {pattern}"));
    let priority = selection.priority().map(|priority| format!("priority {priority}"));
    patterns.chain(priority).collect::<Vec<_>>().join(", ")
}

fn ni_text(spec: &NiSpec) -> String {
    let NiSpec { interface, nid, options, cpts, .. } = spec;
    let mut text = match (interface, nid) {
        (Some(interface), Some(nid)) => format!("ni {nid} on {interface}"),
        (Some(interface), None) => format!("ni on {interface}"),
        (None, Some(nid)) => format!("ni {nid}"),
        (None, None) => "ni on the first interface that is up".to_owned(),
    };
    for (row, value) in options.entries() {
        let _ = write!(text, ", {} {}", row.option, row.values.text(value));
    }
    if !cpts.is_empty() {
        let _ = write!(text, ", CPT {}", cpts_text(cpts));
    }
    text
}

/// A policy in a few words.
fn policy_text(policy: &SteeringPolicy) -> String {
    match policy {
        SteeringPolicy::Pin { shard } => format!("pin {shard}"),
        SteeringPolicy::MatchBits { shift, bits, table: None } => format!("match_bits {bits} from {shift}"),
        SteeringPolicy::MatchBits { shift, bits, table: Some(table) } => {
            format!("match_bits {bits} from {shift} table {table:?}")
        }
        SteeringPolicy::Initiator | SteeringPolicy::Rotor => policy.name().to_string(),
    }
}
