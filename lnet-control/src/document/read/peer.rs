//! The block `peer`.

use lnet_model::pattern;
use lnet_model::peer::{PeerSpec, peer_state};
use lnet_model::records::PeerCredits;
use lnet_model::request::Change;

use super::Reader;
use super::values::get;
use crate::document::Mode;
use crate::document::tree::{MapEntry, Position};

/// Keys of a peer; the last ones are ours.
const KEYS: [&str; 8] =
    ["primary nid", "Multi-Rail", "peer state", "peer ni", "seq_no", "detail", "lock_prim", "shared NIDs"];

impl Reader {
    pub(super) fn peer(&mut self, position: Position, entries: &[MapEntry]) {
        self.known_or_telling(entries, "peer", &KEYS);
        let before = self.errors.len();
        let primary_nid = self.needed(position, entries, "primary nid", "a peer");
        let primary_nid =
            primary_nid.and_then(|value| self.pattern(value, "primary nid", "a nid", pattern::nid));
        let boolean = |reader: &mut Self, key| get(entries, key).and_then(|value| reader.boolean(value, key));
        let multi_rail = boolean(self, "Multi-Rail").unwrap_or(true);
        let locks = boolean(self, "lock_prim").unwrap_or(false);
        let state: Option<u32> = self.integer_of(entries, "peer state", 0..=i64::from(u32::MAX));
        let has = |bit| state.is_some_and(|state| state & bit != 0);
        if let Some(value) = get(entries, "lock_prim").filter(|_| !locks && has(peer_state::LOCK_PRIMARY)) {
            let message =
                "'lock_prim' is false, and 'peer state' has the bit of a locked primary nid: one is expected";
            self.error(value.position, message.to_owned());
        }
        let mut nids = Vec::new();
        if let Some(value) = get(entries, "peer ni") {
            let known = [&["nid", "state"], PeerCredits::KEYS].concat();
            for (item, entries) in self.maps(value, "peer ni") {
                self.known_or_telling(entries, "peer ni", &known);
                if let Some(value) = self.needed(item.position, entries, "nid", "a peer ni") {
                    nids.extend(self.pattern(value, "nid", "nids", pattern::nids).unwrap_or_default());
                }
            }
        }
        let Some(primary_nid) = primary_nid.filter(|_| self.errors.len() == before) else { return };
        if self.only_tells(primary_nid, &nids, state) {
            return;
        }
        // Several items may be about one peer.
        let is_locked = locks || has(peer_state::LOCK_PRIMARY);
        for (key, value) in [("Multi-Rail", multi_rail), ("lock_prim", is_locked)] {
            let location = get(entries, key).map(|value| value.position);
            if let Some(location) = location.or(Some(position).filter(|_| key == "lock_prim" && is_locked)) {
                self.is_new(location, format_args!("'{key}' of peer {primary_nid}"), value);
            }
        }
        let change = if self.mode == Mode::Delete {
            let is_whole = nids.contains(&primary_nid);
            Change::DeletePeer {
                primary_nid,
                nids: if is_whole { Vec::new() } else { nids },
                force: is_locked,
            }
        } else {
            Change::AddPeer(PeerSpec { primary_nid, nids, multi_rail, lock_primary: is_locked })
        };
        self.change(position, "peer", change);
    }
}
