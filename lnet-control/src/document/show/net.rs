//! The block `net`.

use lnet_wire::Net;

use super::{Detail, Element, Map, block, counters, message_counts, traffic};
use crate::pattern::cpts_text;
use crate::records::{Lnd, NetRecord, NiOptions, NiRecord, UdspInfo};

/// The block `net`; nothing where there are no nets. A backup leaves `lo` out.
#[must_use]
pub fn nets(nets: &[NetRecord], detail: Detail) -> Map {
    let shown = nets.iter().filter(|net| detail != Detail::Backup || net.net != Net::LO);
    let item = |net: &NetRecord| {
        let nis = net.nis.iter().map(|ni| Element::Map(local_ni(ni, detail)));
        Element::Map(
            Map::new().text("net type", net.net).with("local NI(s)", Element::Sequence(nis.collect())),
        )
    };
    block("net", shown.map(item).collect())
}

fn local_ni(ni: &NiRecord, detail: Detail) -> Map {
    let mut map = Map::new();
    let backup = detail == Detail::Backup;
    if !backup || ni.is_chosen_by_nid {
        map.push("nid", Element::text(ni.nid));
    }
    if !backup {
        map.push("status", Element::text(ni.status));
    }
    if let Some(interface) = &ni.interface {
        map.push("interfaces", Element::Map(Map::new().text("0", interface)));
    }
    if detail.shows(1) {
        map.push("statistics", traffic(&ni.statistics));
    }
    if detail.shows(4) {
        map.push("udsp info", udsp_info(&ni.udsp));
    }
    if detail.shows(2) {
        map.append(message_counts(&ni.sent, &ni.received, &ni.dropped));
        map.push("health stats", counters(ni.health.entries()));
    }
    if backup || detail.shows(1) {
        let of_net = ni.options.entries().into_iter().take(NiOptions::OF_NET);
        let of_net =
            of_net.map(|(key, value)| (key.to_owned(), Element::plain(value.as_deref().unwrap_or("0"))));
        map.push("tunables", Element::Map(of_net.collect()));
        if ni.options.lnd.is_some() {
            map.push("lnd tunables", Element::Map(lnd_tunables(ni, backup)));
        }
    }
    if detail.shows(1) {
        map.push("dev cpt", Element::plain(ni.device_cpt));
    }
    if backup || detail.shows(1) {
        map.push("CPT", Element::quoted(&cpts_text(&ni.cpts)));
    }
    map
}

fn lnd_tunables(ni: &NiRecord, backup: bool) -> Map {
    let mut map = Map::new();
    for (key, value) in ni.options.entries().into_iter().skip(NiOptions::OF_NET) {
        // What a net of socklnd has, the type of the net says.
        let Some(value) = value.filter(|_| key != "lnd" || ni.options.lnd == Some(Lnd::Xdp)) else {
            continue;
        };
        if !backup && matches!(key, "tos" | "lnd") {
            map.push("timeout", Element::plain(ni.timeout_s));
        }
        map.push(key, Element::plain(value));
        match (key, ni.active_mode) {
            ("mode", Some(mode)) if !backup => map.push("active mode", Element::text(mode)),
            ("queues", _) if !backup => map.push("active queues", Element::plain(ni.active_queues)),
            _ => {}
        }
    }
    map
}

pub(super) fn udsp_info(udsp: &UdspInfo) -> Element {
    Element::Map(Map::new().plain("net priority", udsp.net_priority).plain("nid priority", udsp.nid_priority))
}
