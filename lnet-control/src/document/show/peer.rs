//! The blocks `peer` and `peer list`.

use lnet_model::peer::peer_state;
use lnet_model::records::{PeerNiRecord, PeerRecord};
use serde_json::json;

use super::{Detail, Map, block, fields, put, put_details, statistics_of, text, udsp_info};

/// The block `peer`; nothing where there are no peers. A backup has those that a user made and, as LNet's,
/// gateways: others are found again by traffic. The node itself, known by its loopback NID, is not shown.
#[must_use]
pub fn peers(peers: &[PeerRecord], detail: Detail) -> Map {
    let is_shown = |peer: &&PeerRecord| {
        !peer.primary_nid.is_loopback() && (!detail.is_backup() || is_configured(peer) || peer.is_gateway)
    };
    let item = |peer: &PeerRecord| {
        let mut map = Map::new();
        put(&mut map, "primary nid", text(peer.primary_nid));
        put(&mut map, "Multi-Rail", peer.multi_rail);
        if detail.shows(3) {
            put(&mut map, "peer state", peer.state);
        } else if detail.is_backup() && peer.is_gateway && is_configured(peer) {
            // Gateways are made by their routes, unless a document says otherwise.
            put(&mut map, "peer state", peer_state::CONFIGURED);
        }
        if detail.is_backup() && peer.state & peer_state::LOCK_PRIMARY != 0 {
            put(&mut map, "lock_prim", true);
        }
        if detail.shows(1) && !peer.shared_nids.is_empty() {
            put(&mut map, "shared NIDs", peer.shared_nids.iter().map(text).collect::<Vec<_>>());
        }
        let nis = peer.nis.iter().filter(|ni| !ni.nid.is_loopback());
        put(&mut map, "peer ni", nis.map(|ni| peer_ni(ni, detail)).collect::<Vec<_>>());
        if detail.shows(4) {
            put(&mut map, "fsm state", peer.fsm_state.as_str());
        }
        map
    };
    block("peer", peers.iter().filter(is_shown).map(item))
}

/// Peers as an import is to make them again: what peers only claim is left out, and where an administrator
/// has made one, or added to it, also what was found.
pub(super) fn exported(peers: &[PeerRecord]) -> Vec<PeerRecord> {
    let exported = |peer: &PeerRecord| {
        let is_told = |ni: &&PeerNiRecord| !ni.is_claim && (ni.is_configured || !is_configured(peer));
        let nis: Vec<_> = peer.nis.iter().filter(is_told).cloned().collect();
        // A peer may be shown by a primary NID that is a claim.
        let has_primary = nis.iter().any(|ni| ni.nid == peer.primary_nid);
        let first = nis.first().filter(|_| !has_primary).map(|ni| ni.nid);
        let shared_nids = Vec::new();
        PeerRecord { primary_nid: first.unwrap_or(peer.primary_nid), nis, shared_nids, ..peer.clone() }
    };
    peers.iter().map(exported).collect()
}

const fn is_configured(peer: &PeerRecord) -> bool {
    peer.state & peer_state::CONFIGURED != 0
}

fn peer_ni(ni: &PeerNiRecord, detail: Detail) -> Map {
    let mut map = Map::new();
    put(&mut map, "nid", text(ni.nid));
    if detail.shows(4) {
        put(&mut map, "udsp info", udsp_info(&ni.udsp));
    }
    if detail.shows(0) {
        let state = ni.is_alive.map_or("NA", |is_alive| if is_alive { "up" } else { "down" });
        put(&mut map, "state", state);
    }
    if detail.shows(1) {
        map.extend(fields(&ni.credits));
        put(&mut map, "statistics", statistics_of(&ni.traffic));
    }
    if detail.shows(2) {
        put_details(&mut map, &ni.traffic, &ni.health);
    }
    if detail.shows(4) {
        put(&mut map, "fsm state", ni.fsm_state.as_str());
    }
    map
}

/// The block `peers`, the older form: NIDs, the primary one first.
pub(super) fn older_peers(peers: &[PeerRecord]) -> Map {
    let shown = peers.iter().filter(|peer| !peer.primary_nid.is_loopback());
    let item = |peer: &PeerRecord| {
        let nids = peer.nis.iter().enumerate().map(|(at, ni)| (at.to_string(), text(ni.nid)));
        json!({"nids": nids.collect::<Map>()})
    };
    block("peers", shown.map(item))
}

/// The block `peer list`.
#[must_use]
pub fn peer_list(peers: &[PeerRecord]) -> Map {
    let shown = peers.iter().filter(|peer| !peer.primary_nid.is_loopback());
    block("peer list", shown.map(|peer| json!({"nid": text(peer.primary_nid)})))
}
