//! The block `net`.

use lnet_model::ni::{Lnd, NiOptions};
use lnet_model::pattern::cpts_text;
use lnet_model::records::{NetRecord, NiRecord};
use lnet_wire::Net;
use serde_json::{Value, json};

use super::{Detail, Map, block, one, put, put_details, statistics_of, text, udsp_info};

/// The block `net`; nothing where there are no nets. A backup leaves `lo` out.
#[must_use]
pub fn nets(nets: &[NetRecord], detail: Detail) -> Map {
    let shown = nets.iter().filter(|net| !detail.is_backup() || net.net != Net::LO);
    let item = |net: &NetRecord| {
        let nis: Vec<Map> = net.nis.iter().map(|ni| local_ni(ni, detail)).collect();
        let mut map = Map::new();
        put(&mut map, "net type", text(net.net));
        put(&mut map, "local NI(s)", nis);
        if detail.shows(4) {
            put(&mut map, "fsm state", net.fsm_state.as_str());
        }
        map
    };
    block("net", shown.map(item))
}

fn local_ni(ni: &NiRecord, detail: Detail) -> Map {
    let mut map = Map::new();
    let backup = detail.is_backup();
    if !backup || ni.is_chosen_by_nid {
        put(&mut map, "nid", text(ni.nid));
    }
    if !backup {
        put(&mut map, "status", json!(ni.status));
    }
    if let Some(interface) = &ni.interface {
        put(&mut map, "interfaces", one("0", interface.as_str()));
    }
    if let Some(why) = ni.no_rings.as_ref().filter(|_| !backup) {
        put(&mut map, "no rings", why.as_str());
    }
    if detail.shows(1) {
        put(&mut map, "statistics", statistics_of(&ni.traffic));
    }
    if detail.shows(4) {
        put(&mut map, "udsp info", udsp_info(&ni.udsp));
    }
    if detail.shows(2) {
        put_details(&mut map, &ni.traffic, &ni.health);
    }
    if backup || detail.shows(1) {
        let of_net = entries(&ni.options).into_iter().take(NiOptions::OF_NET);
        let of_net = of_net.map(|(key, value)| (key, if value.is_null() { Value::from(0) } else { value }));
        put(&mut map, "tunables", of_net.collect::<Map>());
        if ni.options.lnd.is_some() {
            put(&mut map, "lnd tunables", lnd_tunables(ni, backup));
        }
    }
    if detail.shows(1) {
        put(&mut map, "dev cpt", -1);
    }
    let shows_cpts = match detail {
        Detail::Level(_) => detail.shows(1),
        Detail::Backup { shards } => (0..shards).any(|cpt| !ni.cpts.contains(&cpt)),
    };
    if shows_cpts {
        put(&mut map, "CPT", cpts_text(&ni.cpts));
    }
    if let Some(distance) = ni.numa_distance.filter(|_| detail.shows(1)) {
        put(&mut map, "numa distance", distance);
        if ni.numa_distances.iter().any(|of_shard| *of_shard != distance) {
            put(&mut map, "numa distances", cpts_text(&ni.numa_distances));
        }
    }
    if detail.shows(4) {
        put(&mut map, "fsm state", ni.fsm_state.as_str());
    }
    map
}

fn lnd_tunables(ni: &NiRecord, backup: bool) -> Map {
    let mut map = Map::new();
    for (key, value) in entries(&ni.options).into_iter().skip(NiOptions::OF_NET) {
        // What a net of socklnd has, the type of the net says.
        if value.is_null() || key == "lnd" && ni.options.lnd != Some(Lnd::Xdp) {
            continue;
        }
        if !backup && matches!(key.as_str(), "tos" | "lnd") {
            put(&mut map, "timeout", ni.timeout_s);
        }
        put(&mut map, &key, value);
        match (key.as_str(), ni.active_mode) {
            ("mode", Some(mode)) if !backup => put(&mut map, "active mode", json!(mode)),
            ("queues", _) if !backup => {
                put(&mut map, "active queues", ni.active_queues);
                if ni.mtu_bytes != 0 {
                    put(&mut map, "mtu", ni.mtu_bytes);
                }
            }
            _ => {}
        }
    }
    map
}

/// The options of an NI by their keys, in the order in which tools print them; `Null` is no value.
pub(in crate::document) fn entries(options: &NiOptions) -> Map {
    let Value::Object(entries) = json!(options) else { return Map::new() };
    entries
}
