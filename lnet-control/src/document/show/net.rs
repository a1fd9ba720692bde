//! The block `net`.

use lnet_model::lnd::{FactShown, NiFact, NiOption, OptionRow};
use lnet_model::ni::Lnd;
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
    if !backup {
        put_facts(&mut map, ni, FactShown::Brief);
    }
    if detail.shows(1) {
        put(&mut map, "statistics", statistics_of(&ni.traffic));
        put_facts(&mut map, ni, FactShown::Verbose);
    }
    if detail.shows(4) {
        put(&mut map, "udsp info", udsp_info(&ni.udsp));
    }
    if detail.shows(2) {
        put_details(&mut map, &ni.traffic, &ni.health);
    }
    if backup || detail.shows(1) {
        let of_net = NiOption::ALL.into_iter().filter(|option| option.is_of_net());
        let of_net = of_net.map(|option| (option.to_string(), ni.options.get(option).unwrap_or(0).into()));
        put(&mut map, "tunables", of_net.collect::<Map>());
        let of_lnd = lnd_tunables(ni, backup);
        if ni.options.lnd().is_some() || !of_lnd.is_empty() {
            put(&mut map, "lnd tunables", of_lnd);
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
    for (row, value) in ni.options.entries().filter(|(row, _)| !row.option.is_of_net()) {
        // What a net of socklnd has, the type of the net says.
        if row.option == NiOption::Lnd && ni.options.lnd() == Some(Lnd::Tcp) {
            continue;
        }
        if !backup && matches!(row.option, NiOption::Tos | NiOption::Lnd) {
            put(&mut map, "timeout", ni.timeout_s);
        }
        put(&mut map, row.option.name(), shown(row, value));
    }
    if !backup {
        put_facts(&mut map, ni, FactShown::Tunable);
    }
    map
}

/// Adds what the LND tells of an NI and a part of the document shows.
fn put_facts(map: &mut Map, ni: &NiRecord, shown: FactShown) {
    let lnd = ni.options.lnd_on(ni.nid.net(), ni.interface.as_deref().unwrap_or_default());
    let rows = lnd.map_or([].as_slice(), |lnd| lnd.facts);
    for (row, fact) in rows.iter().zip(&ni.facts).filter(|(row, _)| row.shown == shown) {
        match fact {
            Some(NiFact::Counts(counts)) => {
                let numbered = counts.iter().enumerate();
                let numbered = numbered.map(|(number, count)| (number.to_string(), Value::from(*count)));
                put(map, row.key, numbered.collect::<Map>());
            }
            Some(fact) => put(map, row.key, json!(fact)),
            None => {}
        }
    }
}

fn shown(row: &OptionRow, value: i64) -> Value {
    row.values.word(value).map_or(Value::from(value), Value::from)
}
