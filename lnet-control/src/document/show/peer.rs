//! The blocks `peer` and `peer list`.

use serde_json::json;

use super::{Detail, Map, block, fields, put, put_details, statistics_of, text, udsp_info};
use crate::records::{PeerNiRecord, PeerRecord};

/// The block `peer`; nothing where there are no peers. A backup has those alone that a user made: others are found
/// again by traffic. The node itself, known by its loopback NID, is not shown.
#[must_use]
pub fn peers(peers: &[PeerRecord], detail: Detail) -> Map {
    let is_shown = |peer: &&PeerRecord| {
        let configured = peer.state & PeerRecord::CONFIGURED != 0;
        !peer.primary_nid.is_loopback() && (!detail.is_backup() || configured)
    };
    let item = |peer: &PeerRecord| {
        let mut map = Map::new();
        put(&mut map, "primary nid", text(peer.primary_nid));
        put(&mut map, "Multi-Rail", peer.multi_rail);
        if detail.shows(3) {
            put(&mut map, "peer state", peer.state);
        }
        let nis = peer.nis.iter().filter(|ni| !ni.nid.is_loopback());
        put(&mut map, "peer ni", nis.map(|ni| peer_ni(ni, detail)).collect::<Vec<_>>());
        map
    };
    block("peer", peers.iter().filter(is_shown).map(item))
}

fn peer_ni(ni: &PeerNiRecord, detail: Detail) -> Map {
    let mut map = Map::new();
    put(&mut map, "nid", text(ni.nid));
    if detail.shows(4) {
        put(&mut map, "udsp info", udsp_info());
    }
    if detail.shows(0) {
        // Whether it is alive is not tracked.
        put(&mut map, "state", "NA");
    }
    if detail.shows(1) {
        map.extend(fields(&ni.credits));
        put(&mut map, "statistics", statistics_of(&ni.traffic));
    }
    if detail.shows(2) {
        put_details(&mut map, &ni.traffic, &ni.health);
    }
    map
}

/// The block `peer list`.
#[must_use]
pub fn peer_list(peers: &[PeerRecord]) -> Map {
    let shown = peers.iter().filter(|peer| !peer.primary_nid.is_loopback());
    block("peer list", shown.map(|peer| json!({"nid": text(peer.primary_nid)})))
}
