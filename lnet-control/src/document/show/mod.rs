//! Makes documents of records: what `show` and `export` print.
//!
//! Invariants: each key stands where LNet's tools have it and appears from the verbosity at which they show
//! it; our own keys come behind theirs.

mod choice;
mod net;
mod peer;
mod request;
mod route;
mod service;
mod udsp;
use std::fmt::Display;

use lnet_model::Errno;
use lnet_model::capture::CaptureRecord;
use lnet_model::fault::{DelayRuleRecord, DropRuleRecord, Filter};
use lnet_model::pattern::cpts_text;
use lnet_model::records::{
    Globals, NetRecord, NiTraffic, Parameters, PeerRecord, RouteRecord, RoutingRecord, Statistics,
};
use lnet_model::request::{PingPurpose, PingReply};
use lnet_model::steering::{PortalPolicy, SteeringPolicy, SteeringRecord};
use lnet_model::udsp::UdspRule;
use lnet_wire::{Global, Parameter};
use serde::Serialize;
use serde_json::{Value, json};

use super::output::Map;

pub use choice::{cpts_of, explain, recovery};
pub use net::nets;
use peer::exported;
pub use peer::{peer_list, peers};
pub use request::join;
pub use route::{RouteFilter, routes, routing};
pub use service::{frames, loads, usage};
pub use udsp::{selections, udsp};

use udsp::udsp_info;

/// How much of a record is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// The verbosity of a `show`: 0 to 4, more is like 4.
    Level(u8),
    /// What it takes to make the object anew on a node with any number of shards.
    Backup {
        /// Shards of this node: an NI that all of them serve is not restricted.
        shards: u32,
    },
}

impl Detail {
    const fn is_backup(self) -> bool {
        matches!(self, Self::Backup { .. })
    }

    /// Whether it shows what appears from this verbosity.
    const fn shows(self, level: u8) -> bool {
        match self {
            Self::Level(own) => own >= level,
            Self::Backup { .. } => false,
        }
    }
}

/// All that a node's documents are made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeState {
    /// Its nets.
    pub nets: Vec<NetRecord>,
    /// Its peers.
    pub peers: Vec<PeerRecord>,
    /// Its routes, by net and gateway.
    pub routes: Vec<RouteRecord>,
    /// Its routing between nets.
    pub routing: RoutingRecord,
    /// Its global tunables.
    pub globals: Globals,
    /// Its selection policies, by index.
    pub udsp: Vec<UdspRule>,
    /// Its drop rules, newest first.
    pub drop_rules: Vec<DropRuleRecord>,
    /// Its delay rules, newest first.
    pub delay_rules: Vec<DelayRuleRecord>,
    /// Its steering.
    pub steering: SteeringRecord,
}

/// The document of `export`, or of `export --backup`: blocks in the order of LNet's tools, then our own.
#[must_use]
pub fn export(state: &NodeState, backup: bool) -> Map {
    let level = |level| match backup {
        true => Detail::Backup { shards: state.steering.shard_count },
        false => Detail::Level(level),
    };
    let (net, peer) = (level(2), level(3));
    let mut document = nets(&state.nets, net);
    document.extend(routes(&state.routes, net));
    document.extend(peers(&exported(&state.peers), peer));
    document.extend(routing(&state.routing, net));
    document.extend(one("global", globals(&state.globals)));
    document.extend(udsp(&state.udsp, None));
    document.extend(steering(&state.steering));
    document.extend(fault_rules(state, net));
    document
}

/// The block `global`, also with the older name of a tunable, for which monitors ask.
#[must_use]
pub fn global_show(values: &Globals) -> Map {
    let mut entries = globals(values);
    put(&mut entries, "max_intf", values.get(Global::MaxInterfaces));
    one("global", entries)
}

fn globals(globals: &Globals) -> Map {
    let shown = |global: Global, value: u32| global.word(value).map_or_else(|| value.into(), text);
    globals.entries().map(|(global, value)| (global.name().to_owned(), shown(global, value))).collect()
}

/// The block `param`: these parameters.
#[must_use]
pub fn parameters(values: &Parameters, shown: &[Parameter]) -> Map {
    let value = |parameter: &Parameter| (parameter.name().to_owned(), Value::from(values.get(*parameter)));
    one("param", shown.iter().map(value).collect::<Map>())
}

/// The block `statistics` of a whole node.
#[must_use]
pub fn statistics(statistics: &Statistics) -> Map {
    one("statistics", json!(statistics))
}

/// The block `fault` with the drop rules; nothing where there are none.
#[must_use]
pub fn drop_rules(rules: &[DropRuleRecord], detail: Detail) -> Map {
    block("fault", rules.iter().map(|record| drop_rule(record, detail)))
}

/// The block `fault` with the delay rules; nothing where there are none.
#[must_use]
pub fn delay_rules(rules: &[DelayRuleRecord], detail: Detail) -> Map {
    block("fault", rules.iter().map(|record| delay_rule(record, detail)))
}

/// The block `fault` with all rules.
fn fault_rules(state: &NodeState, detail: Detail) -> Map {
    let drops = state.drop_rules.iter().map(|record| drop_rule(record, detail));
    block("fault", drops.chain(state.delay_rules.iter().map(|record| delay_rule(record, detail))))
}

/// The item of a rule of this kind, as far as all kinds have it.
fn fault_rule(kind: &str, filter: &Filter) -> Map {
    let mut item = Map::new();
    put(&mut item, "rule_type", kind);
    put(&mut item, "fa_src", text(filter.source));
    put(&mut item, "fa_dst", text(filter.destination));
    put(&mut item, "fa_ptl_mask", filter.portals);
    put(&mut item, "fa_msg_mask", filter.messages.bits());
    item
}

fn put_local_nid(item: &mut Map, filter: &Filter) {
    if !filter.local_nid.is_any() {
        put(item, "fa_local_nid", text(filter.local_nid));
    }
}

fn drop_rule(record: &DropRuleRecord, detail: Detail) -> Map {
    let rule = &record.rule;
    let mut item = fault_rule("drop", &rule.filter);
    put(&mut item, "da_rate", rule.rate);
    put(&mut item, "da_interval", rule.interval_s);
    if !detail.is_backup() {
        put(&mut item, "ds_dropped", record.dropped);
        item.extend(fields(&record.counters));
    }
    put_local_nid(&mut item, &rule.filter);
    for (key, flag) in [("da_random", rule.random), ("da_drop_all", rule.drop_all)] {
        if flag {
            put(&mut item, key, true);
        }
    }
    if !rule.health_errors.is_empty() {
        put(&mut item, "da_health_error", json!(rule.health_errors));
    }
    item
}

fn delay_rule(record: &DelayRuleRecord, detail: Detail) -> Map {
    let rule = &record.rule;
    let mut item = fault_rule("delay", &rule.filter);
    put(&mut item, "la_rate", rule.rate);
    put(&mut item, "la_interval", rule.interval_s);
    put(&mut item, "la_latency", rule.latency_s);
    if !detail.is_backup() {
        put(&mut item, "ls_delayed", record.delayed);
        item.extend(fields(&record.counters));
    }
    put_local_nid(&mut item, &rule.filter);
    item
}

/// The block `steering`, our own: the portals that are not pinned to shard 0.
#[must_use]
pub fn steering(steering: &SteeringRecord) -> Map {
    block("steering", steering.portals.iter().map(portal_policy))
}

/// The item of one portal in the block `steering`.
fn portal_policy(portal: &PortalPolicy) -> Map {
    let mut item = fields(portal);
    if let SteeringPolicy::MatchBits { table: Some(table), .. } = &portal.policy {
        let shards: Vec<_> = table.iter().map(|shard| u32::from(*shard)).collect();
        put(&mut item, "table", cpts_text(&shards));
    }
    item
}

/// The block `capture`, our own.
#[must_use]
pub fn captures(captures: &[CaptureRecord]) -> Map {
    block("capture", captures.iter().map(fields))
}

/// The document of `ping` or `discover`: who answered, then what failed.
#[must_use]
pub fn pings(purpose: PingPurpose, replies: &[PingReply]) -> Map {
    let entity = purpose.name();
    let mut answered = Vec::new();
    let mut failed = Vec::new();
    for reply in replies {
        match &reply.result {
            Ok(record) => {
                let nids: Vec<Value> = record.nids.iter().map(|nid| json!({"nid": text(nid)})).collect();
                let primary = text(record.primary_nid);
                let mut item =
                    json!({"primary nid": primary, "Multi-Rail": record.multi_rail, "peer_ni": nids});
                if !record.shared_nids.is_empty() {
                    let shared: Vec<Value> = record.shared_nids.iter().map(text).collect();
                    item["shared NIDs"] = shared.into();
                }
                answered.push(item);
            }
            Err(refusal) => {
                let message = format!("failed to {entity} {}: {}", reply.nid, refusal.message);
                failed.push(Failure { entity, seq_no: None, errno: refusal.errno, message });
            }
        }
    }
    let mut document = block(entity, answered);
    document.extend(failures("manage", &failed));
    document
}

/// Something that a command did not do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The kind of object.
    pub entity: &'static str,
    /// Number that the request gave itself.
    pub seq_no: Option<u64>,
    /// The error number.
    pub errno: Errno,
    /// Why.
    pub message: String,
}

/// The error document of an operation; nothing where nothing failed.
#[must_use]
pub fn failures(operation: &str, failures: &[Failure]) -> Map {
    let item = |failure: &Failure| {
        let mut error = Map::new();
        if let Some(seq_no) = failure.seq_no {
            put(&mut error, "seq_no", seq_no);
        }
        put(&mut error, "errno", -i32::from(failure.errno.0));
        put(&mut error, "descr", failure.message.as_str());
        one(failure.entity, error)
    };
    block(operation, failures.iter().map(item))
}

/// A map of one key.
fn one(key: &str, value: impl Into<Value>) -> Map {
    Map::from_iter([(key.to_owned(), value.into())])
}

/// A list under a key; nothing where it is empty.
fn block<T: Into<Value>>(key: &str, items: impl IntoIterator<Item = T>) -> Map {
    let items: Vec<Value> = items.into_iter().map(Into::into).collect();
    if items.is_empty() { Map::new() } else { one(key, items) }
}

/// Adds a key and its value.
fn put(map: &mut Map, key: &str, value: impl Into<Value>) {
    map.insert(key.to_owned(), value.into());
}

fn text(value: impl Display) -> Value {
    Value::String(value.to_string())
}

/// The keys and values of a record that has those that tools print.
fn fields(record: &impl Serialize) -> Map {
    match json!(record) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// The block `statistics` of a local NI or a peer NI.
fn statistics_of(traffic: &NiTraffic) -> Map {
    let NiTraffic { sent, received, dropped, put_egress, get_rtt, put_ack, .. } = traffic;
    let mut map = Map::new();
    for (key, counts) in [("send_count", sent), ("recv_count", received), ("drop_count", dropped)] {
        put(&mut map, key, counts.total());
    }
    for (name, latency) in [("put_egress", put_egress), ("get_rtt", get_rtt), ("put_ack", put_ack)] {
        put(&mut map, &format!("{name}_samples"), latency.samples);
        put(&mut map, &format!("{name}_min_nsec"), latency.min_ns);
        put(&mut map, &format!("{name}_max_nsec"), latency.max_ns);
        put(&mut map, &format!("{name}_avg_nsec"), latency.average_ns);
    }
    map
}

/// Adds the three blocks of messages by type and the one of health.
fn put_details(map: &mut Map, traffic: &NiTraffic, health: &impl Serialize) {
    put(map, "sent_stats", json!(traffic.sent));
    put(map, "received_stats", json!(traffic.received));
    put(map, "dropped_stats", json!(traffic.dropped));
    put(map, "health stats", fields(health));
}
