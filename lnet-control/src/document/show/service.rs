//! The blocks `frames` and `load`, our own.

use std::collections::BTreeMap;

use super::block;
use crate::document::output::{Element, Map};
use crate::records::{FramesNi, FramesRecord, LoadRecord, SlotFrames};

/// The block `frames`.
#[must_use]
pub fn frames(frames: &FramesRecord) -> Map {
    let ni = |ni: &FramesNi| Element::Map(Map::new().text("nid", ni.nid).text("active mode", ni.mode));
    let slot = |slot: &SlotFrames| {
        let SlotFrames { queue, shard, frames } = slot;
        Element::Map(Map::new().plain("queue", queue).plain("shard", shard).plain("frames", frames))
    };
    let counters = |counters: &BTreeMap<String, u64>| {
        let entries = counters.iter().filter(|(_, count)| **count != 0);
        Element::Map(entries.map(|(name, count)| (name.clone(), Element::plain(count))).collect())
    };
    let mut map = Map::new();
    for (key, items) in [
        ("local NI(s)", frames.nis.iter().map(ni).collect::<Vec<_>>()),
        ("steered", frames.slots.iter().map(slot).collect()),
    ] {
        if !items.is_empty() {
            map.push(key, Element::Sequence(items));
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
    Map::new().with("frames", Element::Map(map))
}

/// The block `load`; nothing if there are none.
#[must_use]
pub fn loads(loads: &[LoadRecord]) -> Map {
    let item = |load: &LoadRecord| {
        let mut map = Map::new()
            .plain("id", load.id)
            .plain("role", load.role)
            .plain("running", load.is_running)
            .plain("messages_done", load.messages_done);
        if let Some(total) = load.messages_total {
            map = map.plain("messages_total", total);
        }
        if let Some(result) = &load.result {
            map = map.plain("faults", result.faults);
        }
        Element::Map(map)
    };
    block("load", loads.iter().map(item).collect())
}
