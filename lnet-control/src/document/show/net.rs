//! The block `net`.

use lnet_wire::Net;

use super::{Detail, Map, Node, block, counters, message_counts, traffic};
use crate::pattern::cpts_text;
use crate::records::{Lnd, NetRecord, NiOptions, NiRecord, UdspInfo};

/// The block `net`; nothing where there are no nets. A backup leaves `lo` out.
#[must_use]
pub fn nets(nets: &[NetRecord], detail: Detail) -> Map {
    let shown = nets.iter().filter(|net| detail != Detail::Backup || net.net != Net::LO);
    let item = |net: &NetRecord| {
        let nis = net.nis.iter().map(|ni| Node::Map(local_ni(ni, detail)));
        Node::Map(Map::new().text("net type", net.net).with("local NI(s)", Node::Sequence(nis.collect())))
    };
    block("net", shown.map(item).collect())
}

fn local_ni(ni: &NiRecord, detail: Detail) -> Map {
    let mut map = Map::new();
    let backup = detail == Detail::Backup;
    if !backup || ni.is_chosen_by_nid {
        map.push("nid", Node::text(ni.nid));
    }
    if !backup {
        map.push("status", Node::text(ni.status));
    }
    if let Some(interface) = &ni.interface {
        map.push("interfaces", Node::Map(Map::new().text("0", interface)));
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
            of_net.map(|(key, value)| (key.to_owned(), Node::plain(value.as_deref().unwrap_or("0"))));
        map.push("tunables", Node::Map(of_net.collect()));
        if ni.options.lnd.is_some() {
            map.push("lnd tunables", Node::Map(lnd_tunables(ni, backup)));
        }
    }
    if detail.shows(1) {
        map.push("dev cpt", Node::plain(ni.device_cpt));
    }
    if backup || detail.shows(1) {
        map.push("CPT", Node::quoted(&cpts_text(&ni.cpts)));
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
            map.push("timeout", Node::plain(ni.timeout_s));
        }
        map.push(key, Node::plain(value));
        match (key, ni.active_mode) {
            ("mode", Some(mode)) if !backup => map.push("active mode", Node::text(mode)),
            ("queues", _) if !backup => map.push("active queues", Node::plain(ni.active_queues)),
            _ => {}
        }
    }
    map
}

pub(super) fn udsp_info(udsp: &UdspInfo) -> Node {
    Node::Map(Map::new().plain("net priority", udsp.net_priority).plain("nid priority", udsp.nid_priority))
}
