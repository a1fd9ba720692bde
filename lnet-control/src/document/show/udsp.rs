//! The block `udsp`, and what follows from it for NIs.

use lnet_model::udsp::{Selection, UdspInfo, UdspRule};
use serde_json::Value;

use super::{Map, block, one, put, text};

/// NIDs that are shown of a list of preferred ones.
const PREFERRED_MAX: usize = 128;

/// The block `udsp`: all rules, or the one with this index; nothing where there are none.
#[must_use]
pub fn udsp(rules: &[UdspRule], index: Option<u32>) -> Map {
    let item = |(idx, rule): (u32, &UdspRule)| {
        let mut map = Map::new();
        put(&mut map, "idx", idx);
        for (name, pattern) in rule.patterns() {
            put(&mut map, name, text(pattern));
        }
        if let Some(value) = rule.priority {
            put(&mut map, "action", one("priority", priority(value)));
        }
        if let Some(id) = rule.selection {
            put(&mut map, "selection", id);
        }
        map
    };
    let shown = (0..).zip(rules).filter(|(idx, _)| index.is_none_or(|index| index == *idx));
    block("udsp", shown.map(item))
}

/// The block `selection`, the older form; nothing where no rule has it.
#[must_use]
pub fn selections(selections: &[Selection]) -> Map {
    let item = |selection: &Selection| {
        let mut map = Map::new();
        put(&mut map, "type", selection.kind().name());
        for (key, pattern) in selection.patterns() {
            put(&mut map, key, text(pattern));
        }
        if let Some(value) = selection.priority() {
            put(&mut map, "priority", priority(value));
        }
        if let Some(id) = selection.id() {
            put(&mut map, "id", id);
        }
        map
    };
    block("selection", selections.iter().map(item))
}

fn priority(value: u32) -> Value {
    if value == UdspInfo::NONE { Value::from(-1) } else { Value::from(value) }
}

/// The map `udsp info` of an NI.
pub(super) fn udsp_info(info: &UdspInfo) -> Map {
    let mut map = Map::new();
    put(&mut map, "net priority", priority(info.net_priority));
    put(&mut map, "nid priority", priority(info.nid_priority));
    for (key, nids) in [
        ("Preferred gateway NIDs", &info.preferred_gateways),
        ("Preferred source NIDs", &info.preferred_sources),
    ] {
        let shown = nids.iter().take(PREFERRED_MAX).enumerate();
        let nids: Map = shown.map(|(at, nid)| (format!("NID-{at}"), text(nid))).collect();
        if !nids.is_empty() {
            put(&mut map, key, nids);
        }
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferred_nids_are_numbered_from_0() {
        let nid = |text: &str| text.parse().unwrap();
        let info = UdspInfo {
            net_priority: 3,
            nid_priority: UdspInfo::NONE,
            preferred_gateways: vec![nid("10.0.0.3@tcp")],
            preferred_sources: vec![nid("10.0.0.1@tcp"), nid("10.0.0.2@tcp")],
        };
        let expected = concat!(
            r#"{"net priority":3,"nid priority":-1,"Preferred gateway NIDs":{"NID-0":"10.0.0.3@tcp"},"#,
            r#""Preferred source NIDs":{"NID-0":"10.0.0.1@tcp","NID-1":"10.0.0.2@tcp"}}"#
        );
        assert_eq!(serde_json::to_string(&udsp_info(&info)).unwrap(), expected);
        let none = UdspInfo { net_priority: 3, ..UdspInfo::default() };
        assert!(!serde_json::to_string(&udsp_info(&none)).unwrap().contains("Preferred"));
    }
}
