//! The block `peer`.

use super::Reader;
use super::values::get;
use crate::document::tree::{Entry, Marked, Position};
use crate::document::{Action, PeerItem};
use crate::pattern;
use crate::records::{PeerCredits, PeerRecord};

/// Keys of a peer.
const KEYS: [&str; 6] = ["primary nid", "Multi-Rail", "peer state", "peer ni", "seq_no", "detail"];
/// Keys of a peer NI that only tell, besides its credits.
const TELLING: [&str; 7] =
    ["state", "udsp info", "statistics", "sent_stats", "received_stats", "dropped_stats", "health stats"];

impl Reader {
    pub(super) fn peer_block(&mut self, block: &Marked) {
        for (item, entries) in self.maps(block, "peer") {
            self.begin_item(entries);
            if let Some(peer) = self.peer(item.position, entries) {
                self.push(item.position, "peer", Action::Peer(peer));
            }
        }
    }

    fn peer(&mut self, position: Position, entries: &[Entry]) -> Option<PeerItem> {
        self.known_keys(entries, "peer", &KEYS);
        let primary = get(entries, "primary nid");
        if primary.is_none() {
            self.error(position, "a peer without 'primary nid'".to_owned());
        }
        let primary_nid = primary.and_then(|value| self.pattern(value, "primary nid", "a nid", pattern::nid));
        let multi_rail = get(entries, "Multi-Rail").map(|value| self.boolean(value, "Multi-Rail"));
        let state: Option<u32> = self.integer_of(entries, "peer state", 0..=i64::from(u32::MAX));
        let mut nids = Vec::new();
        if let Some(value) = get(entries, "peer ni") {
            let known = [&["nid"], PeerCredits::KEYS, &TELLING].concat();
            for (item, entries) in self.maps(value, "peer ni") {
                self.known_keys(entries, "peer ni", &known);
                match get(entries, "nid") {
                    Some(value) => {
                        nids.extend(self.pattern(value, "nid", "nids", pattern::nids).unwrap_or_default());
                    }
                    None => self.error(item.position, "a peer ni without 'nid'".to_owned()),
                }
            }
        }
        Some(PeerItem {
            primary_nid: primary_nid?,
            nids,
            multi_rail: multi_rail.unwrap_or(Some(true))?,
            found_by_traffic: state.is_some_and(|state| state & PeerRecord::CONFIGURED == 0),
        })
    }
}
