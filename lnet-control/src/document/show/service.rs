//! The blocks `frames` and `load`, our own.

use lnet_model::pattern::cpts_text;
use lnet_model::records::{FramesNi, FramesRecord, LoadRecord, ShardUsage, UsageCount, UsageRecord};
use serde_json::{Value, json};

use super::{block, one, put, text};
use crate::document::output::Map;

/// The block `frames`.
#[must_use]
pub fn frames(frames: &FramesRecord) -> Map {
    let mut map = Map::new();
    let ni = |ni: &FramesNi| json!({"nid": text(ni.nid), "active mode": ni.mode});
    map.extend(block("local NI(s)", frames.nis.iter().map(ni)));
    map.extend(block("steered", frames.slots.iter().map(|slot| json!(slot))));
    if !frames.alarms.is_empty() {
        put(&mut map, "alarms", json!(frames.alarms));
    }
    put(&mut map, "misdirected", frames.misdirected);
    put(&mut map, "lost with interfaces", frames.lost_with_interfaces);
    for (key, counters) in [
        ("not steered", &frames.reasons),
        ("handled", &frames.handled),
        ("recovery", &frames.recovery),
        ("dropped", &frames.drops),
        ("rings", &frames.rings),
        ("sockets", &frames.sockets),
        ("connections", &frames.connections),
    ] {
        let counters = counters.iter().filter(|(_, count)| **count != 0);
        let counters: Map = counters.map(|(name, count)| (name.clone(), Value::from(*count))).collect();
        if !counters.is_empty() {
            put(&mut map, key, counters);
        }
    }
    one("frames", map)
}

/// The block `usage`.
#[must_use]
pub fn usage(usage: &UsageRecord) -> Map {
    let counts = |counts: &[UsageCount]| -> Map {
        let count =
            |count: &UsageCount| (count.name.clone(), json!({"used": count.used, "limit": count.limit}));
        counts.iter().map(count).collect()
    };
    let mut map = Map::new();
    let memory = json!({
        "resident_bytes": usage.resident_bytes,
        "resident_bytes_max": usage.resident_bytes_max,
        "locked_bytes": usage.locked_bytes,
    });
    put(&mut map, "memory", memory);
    map.extend(counts(&usage.counts));
    let shard = |shard: &ShardUsage| {
        let mut map = Map::new();
        put(&mut map, "shard", shard.shard);
        put(&mut map, "cpus", cpts_text(&shard.cpus));
        map.extend(counts(&shard.counts));
        map
    };
    map.extend(block("shards", usage.shards.iter().map(shard)));
    one("usage", map)
}

/// The block `load`; nothing if there are none.
#[must_use]
pub fn loads(loads: &[LoadRecord]) -> Map {
    let item = |load: &LoadRecord| {
        let mut map = Map::new();
        put(&mut map, "id", load.id);
        put(&mut map, "role", json!(load.role));
        put(&mut map, "running", load.is_running);
        put(&mut map, "messages_done", load.messages_done);
        if let Some(total) = load.messages_total {
            put(&mut map, "messages_total", total);
        }
        if let Some(result) = &load.result {
            put(&mut map, "faults", result.faults);
        }
        map
    };
    block("load", loads.iter().map(item))
}
