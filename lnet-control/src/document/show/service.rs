//! The blocks `frames` and `load`, our own.

use std::collections::BTreeMap;

use serde_json::Value;

use super::block;
use crate::document::output::{Map, Node};
use crate::records::{FramesNi, FramesRecord, LoadRecord, SlotFrames};

/// The block `frames`.
#[must_use]
pub fn frames(frames: &FramesRecord) -> Map {
    let ni = |ni: &FramesNi| Node::Map(Map::new().text("nid", ni.nid).text("active mode", ni.mode));
    let slot = |slot: &SlotFrames| {
        let SlotFrames { queue, shard, frames } = slot;
        Node::Map(Map::new().plain("queue", queue).plain("shard", shard).plain("frames", frames))
    };
    let counters = |counters: &BTreeMap<String, u64>| {
        let entries = counters.iter().filter(|(_, count)| **count != 0);
        Node::Map(entries.map(|(name, count)| (name.clone(), Node::plain(count))).collect())
    };
    let mut map = Map::new();
    for (key, items) in [
        ("local NI(s)", frames.nis.iter().map(ni).collect::<Vec<_>>()),
        ("steered", frames.slots.iter().map(slot).collect()),
    ] {
        if !items.is_empty() {
            map.push(key, Node::Sequence(items));
        }
    }
    map = map.plain("misdirected", frames.misdirected);
    for (key, of) in [
        ("not steered", &frames.reasons),
        ("handled", &frames.handled),
        ("recovery", &frames.recovery),
        ("dropped", &frames.drops),
        ("rings", &frames.rings),
    ] {
        if of.values().any(|count| *count != 0) {
            map.push(key, counters(of));
        }
    }
    Map::new().with("frames", Node::Map(map))
}

/// The block `load`; nothing if there are none.
#[must_use]
pub fn loads(loads: &[LoadRecord]) -> Map {
    let item = |load: &LoadRecord| {
        let mut map = Map::new()
            .plain("id", load.id)
            .plain("role", load.role.name())
            .plain("running", load.is_running)
            .plain("messages_done", load.messages_done);
        if let Some(total) = load.messages_total {
            map = map.plain("messages_total", total);
        }
        if !load.report.is_null() {
            map.push("report", node(&load.report));
        }
        Node::Map(map)
    };
    block("load", loads.iter().map(item).collect())
}

/// JSON in the layout of documents.
fn node(value: &Value) -> Node {
    match value {
        Value::Null => Node::plain("null"),
        Value::Bool(value) => Node::plain(value),
        Value::Number(number) => Node::plain(number),
        Value::String(text) => Node::text(text),
        // Rows of numbers stand on one line.
        Value::Array(values) if values.iter().all(|value| !value.is_object()) => Node::plain(value),
        Value::Array(values) => Node::Sequence(values.iter().map(node).collect()),
        Value::Object(entries) => {
            let entry = |(key, value): (&String, &Value)| match histogram(key, value) {
                Some(quantiles) => (format!("{key}_nsec"), quantiles),
                None => (key.clone(), node(value)),
            };
            Node::Map(entries.iter().map(entry).collect())
        }
    }
}

/// What a person wants to know of a histogram, if it is one: pairs of nanoseconds and counts, in ascending order.
fn histogram(key: &str, value: &Value) -> Option<Node> {
    if key != "latency" {
        return None;
    }
    let pair = |pair: &Value| Some((pair.get(0)?.as_u64()?, pair.get(1)?.as_u64()?));
    let buckets: Vec<(u64, u64)> = value.as_array()?.iter().map(pair).collect::<Option<_>>()?;
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    let quantile = |per_mille: u64| {
        let rank = (u128::from(total) * u128::from(per_mille)).div_ceil(1000).max(1);
        let mut counted = 0;
        let reached = buckets.iter().find(|(_, count)| {
            counted += u128::from(*count);
            counted >= rank
        });
        reached.map_or(0, |(value_ns, _)| *value_ns)
    };
    let names = [("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999), ("max", 1000)];
    let entries = names.map(|(name, per_mille)| (name.to_owned(), Node::plain(quantile(per_mille))));
    Some(Node::Map(entries.into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::records::LoadRole;

    #[test]
    fn a_histogram_is_shown_by_its_quantiles() {
        let latency: Vec<[u64; 2]> = (1..=1000).map(|value| [value * 10, 1]).collect();
        let report = json!({"classes": [{"kind": "put", "latency": latency}], "by_shard": [3, 4]});
        let role = LoadRole::Initiator;
        let record =
            LoadRecord { id: 3, role, is_running: false, messages_done: 7, messages_total: Some(7), report };
        let text = loads(&[record]).to_string();
        for line in ["by_shard: [3,4]", "p50: 5000", "p90: 9000", "p99: 9900", "p99.9: 9990", "max: 10000"] {
            assert!(text.lines().any(|found| found.trim() == line), "{line} in {text}");
        }
        assert!(!text.contains("[10,1]"), "{text}");
        assert_eq!(histogram("latency", &json!([])).map(|node| matches!(node, Node::Map(_))), Some(true));
        assert_eq!(histogram("latency", &json!([[1]])), None);
    }
}
