//! The blocks `peer` and `peer list`.

use super::net::udsp_info;
use super::{Detail, Element, Map, block, counters, message_counts, traffic};
use crate::records::{PeerNiRecord, PeerRecord};

/// The block `peer`; nothing where there are no peers. A backup has those alone that a user made: others are found
/// again by traffic. The node itself, known by its loopback NID, is not shown.
#[must_use]
pub fn peers(peers: &[PeerRecord], detail: Detail) -> Map {
    let is_shown = |peer: &&PeerRecord| {
        let configured = peer.state & PeerRecord::CONFIGURED != 0;
        !peer.primary_nid.is_loopback() && (detail != Detail::Backup || configured)
    };
    let item = |peer: &PeerRecord| {
        let mut map = Map::new().text("primary nid", peer.primary_nid).plain("Multi-Rail", peer.multi_rail);
        if detail.shows(3) {
            map.push("peer state", Element::plain(peer.state));
        }
        let nis = peer.nis.iter().filter(|ni| !ni.nid.is_loopback());
        map.push("peer ni", Element::Sequence(nis.map(|ni| Element::Map(peer_ni(ni, detail))).collect()));
        Element::Map(map)
    };
    block("peer", peers.iter().filter(is_shown).map(item).collect())
}

fn peer_ni(ni: &PeerNiRecord, detail: Detail) -> Map {
    let mut map = Map::new().text("nid", ni.nid);
    if detail.shows(4) {
        map.push("udsp info", udsp_info(&ni.udsp));
    }
    if detail.shows(0) {
        map.push("state", Element::text(ni.state));
    }
    if detail.shows(1) {
        let credits = ni.credits.entries().map(|(key, value)| (key.to_owned(), Element::plain(value)));
        map.append(credits.collect());
        map.push("statistics", traffic(&ni.statistics));
    }
    if detail.shows(2) {
        map.append(message_counts(&ni.sent, &ni.received, &ni.dropped));
        map.push("health stats", counters(ni.health.entries()));
    }
    map
}

/// The block `peer list`.
#[must_use]
pub fn peer_list(peers: &[PeerRecord]) -> Map {
    let shown = peers.iter().filter(|peer| !peer.primary_nid.is_loopback());
    block("peer list", shown.map(|peer| Element::Map(Map::new().text("nid", peer.primary_nid))).collect())
}
