//! The blocks `explain`, our own, `cpt-of-nid` and those of recovery.

use lnet_model::pattern::cpts_text;
use lnet_model::records::{CptRecord, ExplainRecord, ExplainedChoice, ExplainedStep};
use lnet_model::udsp::UdspInfo;
use lnet_wire::Nid;
use serde_json::{Value, json};

use super::{Map, block, one, put, text};

/// The block `explain`: an item for the shards that agree.
#[must_use]
pub fn explain(record: &ExplainRecord) -> Map {
    let item = |choice: &ExplainedChoice| {
        let mut map = Map::new();
        put(&mut map, "nid", text(record.nid));
        if let Some(primary) = record.primary_nid {
            put(&mut map, "primary nid", text(primary));
            put(&mut map, "Multi-Rail", record.multi_rail);
        }
        put(&mut map, "shards", cpts_text(&choice.shards));
        if let Some(path) = choice.path {
            put(&mut map, "from", text(path.from));
            put(&mut map, "to", text(path.to));
        }
        if let Some(gateway) = choice.gateway {
            put(&mut map, "gateway", text(gateway));
        }
        if let Some(carrier) = &choice.carrier {
            put(&mut map, "carrier", carrier.as_str());
        }
        if let Some(reason) = &choice.reason {
            put(&mut map, "reason", reason.as_str());
        }
        map.extend(block("steps", choice.steps.iter().map(step)));
        map
    };
    block("explain", record.choices.iter().map(item))
}

fn step(step: &ExplainedStep) -> Map {
    let mut map = Map::new();
    put(&mut map, "choose", step.kind.name());
    let candidates = step.candidates.iter().map(|candidate| {
        let mut map = Map::new();
        put(&mut map, step.kind.name(), candidate.name.as_str());
        put(&mut map, "chosen", candidate.is_chosen);
        if let Some(criterion) = &candidate.lost_by {
            put(&mut map, "lost by", criterion.as_str());
        }
        let values = candidate.values.iter();
        let values: Map = values.map(|(name, value)| (name.clone(), shown(name, *value))).collect();
        put(&mut map, "values", values);
        Value::Object(map)
    });
    put(&mut map, "candidates", candidates.collect::<Vec<_>>());
    map
}

/// A priority that no rule gives is -1, as everywhere.
fn shown(name: &str, value: i64) -> Value {
    let is_none = name.ends_with("priority") && value == i64::from(UdspInfo::NONE);
    Value::from(if is_none { -1 } else { value })
}

/// The block `cpt-of-nid`.
#[must_use]
pub fn cpts_of(cpts: &[CptRecord]) -> Map {
    block("cpt-of-nid", cpts.iter().map(|record| json!({"nid": text(record.nid), "cpt": record.cpt})))
}

/// The NIDs of a recovery queue under the key that tools print; nothing where there are none.
#[must_use]
pub fn recovery(key: &str, nids: &[Nid]) -> Map {
    if nids.is_empty() {
        return Map::new();
    }
    let nids: Map = nids.iter().enumerate().map(|(at, nid)| (format!("nid-{at}"), text(nid))).collect();
    one(key, nids)
}
