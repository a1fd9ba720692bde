//! The block `net`.

use lnet_wire::Net;

use super::{Detail, Map, Node, block, counters, message_counts, traffic};
use crate::pattern::cpts_text;
use crate::records::{LndTunables, NetRecord, NiRecord, UdspInfo, XdpTunables};

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
        map.push("tunables", counters(ni.tunables.entries()));
        if let Some(lnd) = &ni.lnd {
            map.push("lnd tunables", Node::Map(lnd_tunables(lnd, backup)));
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

fn lnd_tunables(lnd: &LndTunables, backup: bool) -> Map {
    let mut map = Map::new();
    match lnd {
        LndTunables::Tcp { conns_per_peer, timeout_s, tos } => {
            map.push("conns_per_peer", Node::plain(conns_per_peer));
            if !backup {
                map.push("timeout", Node::plain(timeout_s));
            }
            map.push("tos", Node::plain(tos));
        }
        LndTunables::Xdp(xdp) => {
            let XdpTunables { timeout_s, mode, active_mode, port, queues, active_queues } = xdp;
            if !backup {
                map.push("timeout", Node::plain(timeout_s));
            }
            map.push("lnd", Node::text("xdp"));
            map.push("mode", Node::text(mode));
            if !backup {
                map.push("active mode", Node::text(active_mode));
            }
            map.push("port", Node::plain(port));
            map.push("queues", Node::plain(queues));
            if !backup {
                map.push("active queues", Node::plain(active_queues));
            }
        }
    }
    map
}

pub(super) fn udsp_info(udsp: &UdspInfo) -> Node {
    Node::Map(Map::new().plain("net priority", udsp.net_priority).plain("nid priority", udsp.nid_priority))
}
