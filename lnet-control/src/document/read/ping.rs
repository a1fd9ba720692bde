//! The block `ping`.

use lnet_wire::Nid;

use super::Reader;
use crate::document::Action;
use crate::document::tree::{Entry, Marked, Position, Value};
use crate::pattern;
use crate::request::PingRequest;

/// Longest timeout, milliseconds.
const TIMEOUT_MAX_MS: i64 = 86_400_000;

impl Reader {
    pub(super) fn ping_block(&mut self, block: &Marked) {
        match &block.value {
            Value::Map(entries) => self.ping_map(block.position, entries),
            _ => self.each(block, "ping", Self::ping_item),
        }
    }

    fn ping_map(&mut self, position: Position, entries: &[Entry]) {
        self.known_keys(entries, "ping", &["nids", "source", "timeout", "seq_no"]);
        self.begin_item(entries);
        let Some(value) = self.needed(position, entries, "nids", "a ping") else { return };
        let values: Vec<&Marked> = match &value.value {
            Value::Map(entries) => entries.iter().map(|entry| &entry.value).collect(),
            _ => self.sequence(value, "nids").iter().collect(),
        };
        let nids = values.into_iter().flat_map(|value| self.nids(value)).collect();
        self.ping(position, nids, entries, "source");
    }

    /// The older form: an item for each NID.
    fn ping_item(&mut self, position: Position, entries: &[Entry]) {
        // The last two are in what a ping prints.
        let known = ["primary nid", "source_nid", "timeout", "seq_no", "Multi-Rail", "peer_ni"];
        self.known_keys(entries, "ping", &known);
        let Some(value) = self.needed(position, entries, "primary nid", "a ping") else { return };
        let nids = self.nids(value);
        self.ping(position, nids, entries, "source_nid");
    }

    fn nids(&mut self, value: &Marked) -> Vec<Nid> {
        self.pattern(value, "nid", "nids", pattern::nids_resolved).unwrap_or_default()
    }

    fn ping(&mut self, position: Position, nids: Vec<Nid>, entries: &[Entry], source: &str) {
        let source = self.pattern_of(entries, source, "a nid", pattern::nid);
        let timeout_ms: Option<u64> = self.integer_of(entries, "timeout", -1..=TIMEOUT_MAX_MS);
        let timeout_ms = timeout_ms.filter(|timeout| *timeout > 0);
        self.push(position, "ping", Action::Ping(PingRequest { nids, source, timeout_ms }));
    }
}
