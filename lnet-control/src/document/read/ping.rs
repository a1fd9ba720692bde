//! The blocks `ping` and `discover`.

use lnet_model::pattern::{self, integer};
use lnet_model::request::{PingPurpose, PingRequest};
use lnet_wire::Nid;

use super::Reader;
use super::values::get;
use crate::document::Instruction;
use crate::document::tree::{MapEntry, Marked, Position, Value};

/// Longest timeout, milliseconds.
const TIMEOUT_MS_MAX: i64 = 86_400_000;

impl Reader {
    pub(super) fn ping_block(&mut self, block: &Marked, purpose: PingPurpose) {
        match &block.value {
            Value::Map(entries) => self.ping_map(block.position, entries, purpose),
            _ => self.each(block, purpose.name(), |reader, position, entries| {
                reader.ping_item(position, entries, purpose);
            }),
        }
    }

    fn ping_map(&mut self, position: Position, entries: &[MapEntry], purpose: PingPurpose) {
        let known = ["nids", own_key(purpose, "source"), "timeout", "seq_no"];
        self.known_keys(entries, purpose.name(), &known);
        self.begin_item(entries);
        let Some(value) = self.needed(position, entries, "nids", "a ping") else { return };
        let nids = self.members(value, "nids").into_iter().flat_map(|value| self.nids(value)).collect();
        self.ping(position, nids, entries, ("source", purpose));
    }

    /// The older form: an item for each NID.
    fn ping_item(&mut self, position: Position, entries: &[MapEntry], purpose: PingPurpose) {
        // The last two are in what a ping prints.
        let own = own_key(purpose, "source_nid");
        let known = ["primary nid", own, "timeout", "seq_no", "Multi-Rail", "peer_ni"];
        self.known_keys(entries, purpose.name(), &known);
        let Some(value) = self.needed(position, entries, "primary nid", "a ping") else { return };
        let nids = self.nids(value);
        self.ping(position, nids, entries, ("source_nid", purpose));
    }

    fn nids(&mut self, value: &Marked) -> Vec<Nid> {
        self.pattern(value, "nid", "nids", crate::resolve::nids).unwrap_or_default()
    }

    fn ping(
        &mut self,
        position: Position,
        nids: Vec<Nid>,
        entries: &[MapEntry],
        (source, purpose): (&str, PingPurpose),
    ) {
        let source = match purpose {
            PingPurpose::Ping => self.pattern_of(entries, source, "a nid", pattern::nid),
            _ => None,
        };
        let is_forced = purpose != PingPurpose::Ping && self.force(entries);
        let purpose = if is_forced { PingPurpose::ForceDiscovery } else { purpose };
        let timeout_ms: Option<u64> = self.integer_of(entries, "timeout", -1..=TIMEOUT_MS_MAX);
        let timeout_ms = timeout_ms.filter(|timeout| *timeout > 0);
        let request = PingRequest { nids, source, timeout_ms, purpose };
        self.push(position, purpose.name(), Instruction::Ping(request));
    }

    /// Whether peers are discovered whatever is known of them: `force` is a number or a boolean.
    fn force(&mut self, entries: &[MapEntry]) -> bool {
        let Some(value) = get(entries, "force") else { return false };
        match &value.value {
            Value::Scalar { text, .. } if integer(text).is_some() => integer(text) != Some(0),
            _ => self.boolean(value, "force").unwrap_or(false),
        }
    }
}

/// The key that only one of the blocks has.
const fn own_key(purpose: PingPurpose, of_ping: &'static str) -> &'static str {
    match purpose {
        PingPurpose::Ping => of_ping,
        PingPurpose::Discover | PingPurpose::ForceDiscovery => "force",
    }
}
