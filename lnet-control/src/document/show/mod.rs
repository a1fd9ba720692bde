//! From records to documents: what `show` and `export` print.
//!
//! Invariants: each key stands where LNet's tools have it and appears from the verbosity at which they show it; our
//! own keys come behind theirs.

mod net;
mod peer;
mod service;

use crate::document::output::{Element, Map};
use crate::errno::{Errno, Refusal};
use crate::pattern::cpts_text;
use crate::records::{
    CaptureRecord, DropRuleRecord, Globals, MessageCounts, NetRecord, PeerRecord, PortalPolicy, Statistics,
    SteeringPolicy, SteeringRecord, Traffic,
};
use crate::request::PingReply;

pub use net::nets;
pub use peer::{peer_list, peers};
pub use service::{frames, loads};

/// How much of a record is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// The verbosity of a `show`: 0 to 4, more is like 4.
    Level(u8),
    /// What it takes to make the object anew.
    Backup,
}

impl Detail {
    /// Whether it shows what appears from this verbosity.
    const fn shows(self, level: u8) -> bool {
        match self {
            Self::Level(own) => own >= level,
            Self::Backup => false,
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
    /// Its global tunables.
    pub globals: Globals,
    /// Its drop rules, newest first.
    pub drop_rules: Vec<DropRuleRecord>,
    /// Its steering.
    pub steering: SteeringRecord,
}

/// The document of `export`, or of `export --backup`: blocks in the order of LNet's tools, then our own.
#[must_use]
pub fn export(state: &NodeState, backup: bool) -> Map {
    let (net, peer) =
        if backup { (Detail::Backup, Detail::Backup) } else { (Detail::Level(2), Detail::Level(3)) };
    let mut document = nets(&state.nets, net);
    document.append(peers(&state.peers, peer));
    document.append(globals(&state.globals));
    document.append(steering(&state.steering));
    document.append(drop_rules(&state.drop_rules, net));
    document
}

/// The block `global`.
#[must_use]
pub fn globals(globals: &Globals) -> Map {
    let entries = globals.entries().map(|(global, value)| (global.name().to_owned(), Element::plain(value)));
    Map::new().with("global", Element::Map(entries.collect()))
}

/// The block `statistics` of a whole node.
#[must_use]
pub fn statistics(statistics: &Statistics) -> Map {
    Map::new().with("statistics", counters(statistics.entries()))
}

/// The block `fault`; nothing where there are no rules.
#[must_use]
pub fn drop_rules(rules: &[DropRuleRecord], detail: Detail) -> Map {
    let items = rules.iter().map(|record| Element::Map(drop_rule(record, detail)));
    block("fault", items.collect())
}

fn drop_rule(record: &DropRuleRecord, detail: Detail) -> Map {
    let rule = &record.rule;
    let mut map = Map::new()
        .text("rule_type", "drop")
        .text("fa_src", rule.source)
        .text("fa_dst", rule.destination)
        .plain("fa_ptl_mask", rule.portals)
        .plain("fa_msg_mask", rule.messages)
        .plain("da_rate", rule.rate)
        .plain("da_interval", rule.interval_s);
    if detail != Detail::Backup {
        map.push("ds_dropped", Element::plain(record.dropped));
        map.append(
            record.counters.entries().map(|(key, value)| (key.to_owned(), Element::plain(value))).collect(),
        );
    }
    if !rule.local_nid.is_any() {
        map.push("fa_local_nid", Element::text(rule.local_nid));
    }
    if rule.random {
        map.push("da_random", Element::plain(true));
    }
    if rule.drop_all {
        map.push("da_drop_all", Element::plain(true));
    }
    if !rule.health_errors.is_empty() {
        map.push(
            "da_health_error",
            Element::Sequence(rule.health_errors.iter().map(Element::text).collect()),
        );
    }
    map
}

/// The block `steering`, our own: the portals that are not pinned to shard 0.
#[must_use]
pub fn steering(steering: &SteeringRecord) -> Map {
    block("steering", steering.portals.iter().map(|portal| Element::Map(portal_policy(portal))).collect())
}

/// The item of one portal in the block `steering`.
fn portal_policy(portal: &PortalPolicy) -> Map {
    let map = Map::new().plain("portal", portal.portal).text("policy", portal.policy.name());
    match &portal.policy {
        SteeringPolicy::Pin { shard } => map.plain("shard", shard),
        SteeringPolicy::Initiator | SteeringPolicy::Rotor => map,
        SteeringPolicy::MatchBits { shift, bits, table } => {
            let map = map.plain("shift", shift).plain("bits", bits);
            match table {
                Some(table) => {
                    let shards: Vec<_> = table.iter().map(|shard| u32::from(*shard)).collect();
                    map.with("table", Element::quoted(&cpts_text(&shards)))
                }
                None => map,
            }
        }
    }
}

/// The block `capture`, our own.
#[must_use]
pub fn captures(captures: &[CaptureRecord]) -> Map {
    let item = |capture: &CaptureRecord| {
        let map = Map::new()
            .text("path", capture.path.display())
            .plain("running", capture.is_running)
            .plain("limit_bytes", capture.limit_bytes)
            .plain("written_bytes", capture.written_bytes)
            .plain("frame_count", capture.frame_count)
            .plain("missed_count", capture.missed_count);
        Element::Map(match &capture.failure {
            Some(failure) => map.text("failure", failure),
            None => map,
        })
    };
    block("capture", captures.iter().map(item).collect())
}

/// The document of `ping`: who answered, then what failed.
#[must_use]
pub fn pings(replies: &[PingReply]) -> Map {
    let mut answered = Vec::new();
    let mut failed = Vec::new();
    for reply in replies {
        match &reply.result {
            Ok(record) => {
                let nids = record.nids.iter().map(|nid| Element::Map(Map::new().text("nid", nid)));
                let item = Map::new()
                    .text("primary nid", record.primary_nid)
                    .plain("Multi-Rail", record.multi_rail)
                    .with("peer_ni", Element::Sequence(nids.collect()));
                answered.push(Element::Map(item));
            }
            Err(refusal) => {
                let message = format!("failed to ping {}: {}", reply.nid, refusal.message);
                failed.push(Failure { entity: "ping", seq_no: None, errno: refusal.errno, message });
            }
        }
    }
    let mut document = block("ping", answered);
    document.append(failures("manage", &failed));
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

impl Failure {
    /// The failure that a refusal means.
    #[must_use]
    pub fn refused(entity: &'static str, refusal: &Refusal) -> Self {
        Self { entity, seq_no: None, errno: refusal.errno, message: refusal.message.clone() }
    }
}

/// The error document of an operation; nothing where nothing failed.
#[must_use]
pub fn failures(operation: &str, failures: &[Failure]) -> Map {
    let item = |failure: &Failure| {
        let mut map = Map::new();
        if let Some(seq_no) = failure.seq_no {
            map.push("seq_no", Element::plain(seq_no));
        }
        map.push("errno", Element::plain(-i32::from(failure.errno.0)));
        map.push("descr", Element::quoted(&failure.message));
        Element::Map(Map::new().with(failure.entity, Element::Map(map)))
    };
    block(operation, failures.iter().map(item).collect())
}

/// A sequence under a key; nothing where it is empty.
fn block(key: &str, items: Vec<Element>) -> Map {
    if items.is_empty() { Map::new() } else { Map::new().with(key, Element::Sequence(items)) }
}

fn counters(entries: impl Iterator<Item = (&'static str, i128)>) -> Element {
    Element::Map(entries.map(|(key, value)| (key.to_owned(), Element::plain(value))).collect())
}

/// The block `statistics` of a local NI or a peer NI.
fn traffic(traffic: &Traffic) -> Element {
    let mut map = Map::new()
        .plain("send_count", traffic.send_count)
        .plain("recv_count", traffic.recv_count)
        .plain("drop_count", traffic.drop_count);
    let times =
        [("put_egress", traffic.put_egress), ("get_rtt", traffic.get_rtt), ("put_ack", traffic.put_ack)];
    for (name, latency) in times {
        map.push(format!("{name}_samples"), Element::plain(latency.samples));
        map.push(format!("{name}_min_nsec"), Element::plain(latency.min_ns));
        map.push(format!("{name}_max_nsec"), Element::plain(latency.max_ns));
        map.push(format!("{name}_avg_nsec"), Element::plain(latency.average_ns));
    }
    Element::Map(map)
}

/// The three blocks of messages by type.
fn message_counts(sent: &MessageCounts, received: &MessageCounts, dropped: &MessageCounts) -> Map {
    Map::new()
        .with("sent_stats", counters(sent.entries()))
        .with("received_stats", counters(received.entries()))
        .with("dropped_stats", counters(dropped.entries()))
}
