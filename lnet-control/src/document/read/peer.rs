//! The block `peer`.

use super::values::get;
use super::{Reader, TELLING};
use crate::document::tree::{Entry, Position};
use crate::document::{Action, PeerItem};
use crate::pattern;
use crate::records::{PeerCredits, PeerRecord};

/// Keys of a peer.
const KEYS: [&str; 6] = ["primary nid", "Multi-Rail", "peer state", "peer ni", "seq_no", "detail"];

impl Reader {
    pub(super) fn peer(&mut self, position: Position, entries: &[Entry]) {
        self.known_keys(entries, "peer", &KEYS);
        let primary_nid = self.needed(position, entries, "primary nid", "a peer");
        let primary_nid =
            primary_nid.and_then(|value| self.pattern(value, "primary nid", "a nid", pattern::nid));
        let multi_rail = get(entries, "Multi-Rail").map(|value| self.boolean(value, "Multi-Rail"));
        let state: Option<u32> = self.integer_of(entries, "peer state", 0..=i64::from(u32::MAX));
        let mut nids = Vec::new();
        if let Some(value) = get(entries, "peer ni") {
            let known = [&["nid", "state"], PeerCredits::KEYS, &TELLING].concat();
            for (item, entries) in self.maps(value, "peer ni") {
                self.known_keys(entries, "peer ni", &known);
                if let Some(value) = self.needed(item.position, entries, "nid", "a peer ni") {
                    nids.extend(self.pattern(value, "nid", "nids", pattern::nids).unwrap_or_default());
                }
            }
        }
        if let (Some(primary_nid), Some(multi_rail)) = (primary_nid, multi_rail.unwrap_or(Some(true))) {
            let found_by_traffic = state.is_some_and(|state| state & PeerRecord::CONFIGURED == 0);
            let peer = PeerItem { primary_nid, nids, multi_rail, found_by_traffic };
            self.push(position, "peer", Action::Peer(peer));
        }
    }
}
