//! The block `fault`: drop rules, in the form in which they are shown.

use lnet_model::fault::{DropRule, Filter, HealthError, MessageTypes, RuleCounters};
use lnet_model::pattern::{fault_nid, integer, quoted};
use lnet_model::request::Change;
use lnet_model::{Errno, Refusal};
use lnet_wire::Nid;

use super::Reader;
use super::values::get;
use crate::document::Mode;
use crate::document::tree::{MapEntry, Marked, Position};

/// Keys of a rule, besides its counters, which only tell.
const KEYS: [&str; 13] = [
    "rule_type",
    "fa_src",
    "fa_dst",
    "fa_ptl_mask",
    "fa_msg_mask",
    "da_rate",
    "da_interval",
    "fa_local_nid",
    "da_random",
    "da_drop_all",
    "da_health_error",
    "seq_no",
    "ds_dropped",
];

/// What a NID of a rule may be.
const NID: &str = "a nid, *@net or *";

impl Reader {
    pub(super) fn fault_block(&mut self, block: &Marked) {
        let mut rules = Vec::new();
        self.each(block, "fault", |reader, position, entries| {
            let rule = reader.drop_rule(position, entries);
            rules.extend(rule.map(|rule| (position, reader.seq_no, rule)));
        });
        // The newest stands first, in documents and on a node: it is made last.
        for (position, seq_no, rule) in rules.into_iter().rev() {
            self.seq_no = seq_no;
            let change = match self.mode {
                Mode::Delete => {
                    let Filter { source, destination, .. } = rule.filter;
                    Change::DeleteDropRules { source, destination }
                }
                _ => Change::AddDropRule(rule),
            };
            self.change(position, "fault", change);
        }
    }

    fn drop_rule(&mut self, position: Position, entries: &[MapEntry]) -> Option<DropRule> {
        if let Some(value) = get(entries, "rule_type") {
            match self.word(value, "rule_type", &["drop", "delay"])? {
                "drop" => {}
                _ => {
                    self.unsupported(
                        value.position,
                        "'delay': rules that delay are not supported by this version".to_owned(),
                    );
                    return None;
                }
            }
        }
        self.known_keys(entries, "fault", &[&KEYS, RuleCounters::KEYS].concat());
        let [source, destination] = ["fa_src", "fa_dst"].map(|key| {
            let value = self.needed(position, entries, key, "a rule")?;
            self.pattern(value, key, NID, fault_nid)
        });
        let local_nid = match get(entries, "fa_local_nid") {
            Some(value) => self.pattern(value, "fa_local_nid", NID, fault_nid),
            None => Some(Nid::ANY),
        };
        let portals = get(entries, "fa_ptl_mask").and_then(|value| self.portals(value));
        let mut flag =
            |key: &str| get(entries, key).and_then(|value| self.boolean(value, key)).unwrap_or_default();
        let [random, drop_all] = ["da_random", "da_drop_all"].map(&mut flag);
        let messages = self.integer_of(entries, "fa_msg_mask", 0..=15).and_then(MessageTypes::from_bits);
        let filter = Filter {
            source: source?,
            destination: destination?,
            local_nid: local_nid?,
            portals: portals.unwrap_or_default(),
            messages: messages.unwrap_or(MessageTypes::ALL),
        };
        let rule = DropRule {
            filter,
            rate: self.integer_of(entries, "da_rate", 0..=i64::from(u32::MAX)).unwrap_or_default(),
            interval_s: self.integer_of(entries, "da_interval", 0..=i64::from(u32::MAX)).unwrap_or_default(),
            random,
            drop_all,
            health_errors: self.health_errors(entries),
        };
        if let Err(refusal) = rule.check() {
            self.error(position, refusal.message);
            return None;
        }
        Some(rule)
    }

    /// A mask of 64 bits, which has no place among the numbers of other keys.
    fn portals(&mut self, value: &Marked) -> Option<u64> {
        self.pattern(value, "fa_ptl_mask", "a mask of portals", |text| {
            let mask = text.parse().ok().or_else(|| integer(text).and_then(|mask| u64::try_from(mask).ok()));
            mask.ok_or_else(|| {
                Refusal::new(Errno::INVAL, format!("{}: a mask of 64 bits is expected", quoted(text)))
            })
        })
    }

    fn health_errors(&mut self, entries: &[MapEntry]) -> Vec<HealthError> {
        let Some(value) = get(entries, "da_health_error") else { return Vec::new() };
        let items = self.sequence(value, "da_health_error");
        items
            .iter()
            .filter_map(|item| self.word(item, "da_health_error", HealthError::NAMES)?.parse().ok())
            .collect()
    }
}
