//! The block `fault`: rules that drop messages or hold them up, in the form in which they are shown.

use lnet_model::fault::{DelaySpec, DropRule, Filter, HealthError, MessageTypes, RuleCounters};
use lnet_model::pattern::{fault_nid, integer, quoted};
use lnet_model::request::Change;
use lnet_model::{Errno, Refusal};
use lnet_wire::Nid;

use super::Reader;
use super::values::get;
use crate::document::Mode;
use crate::document::tree::{MapEntry, Marked, Position};

/// Keys of all rules, besides their counters, which only tell.
const KEYS: [&str; 7] =
    ["rule_type", "fa_src", "fa_dst", "fa_ptl_mask", "fa_msg_mask", "fa_local_nid", "seq_no"];
/// Further keys of a drop rule.
const DROP_KEYS: [&str; 6] =
    ["da_rate", "da_interval", "da_random", "da_drop_all", "da_health_error", "ds_dropped"];
/// Further keys of a delay rule.
const DELAY_KEYS: [&str; 4] = ["la_rate", "la_interval", "la_latency", "ls_delayed"];

/// What a NID of a rule may be.
const NID: &str = "a nid, *@net or *";

impl Reader {
    pub(super) fn fault_block(&mut self, block: &Marked) {
        let mut rules = Vec::new();
        self.each(block, "fault", |reader, position, entries| {
            let rule = reader.fault_rule(position, entries);
            rules.extend(rule.map(|rule| (position, reader.seq_no, rule)));
        });
        // The newest stands first, in documents and on a node: it is made last.
        for (position, seq_no, rule) in rules.into_iter().rev() {
            self.seq_no = seq_no;
            let change = match (self.mode, rule) {
                (Mode::Delete, Change::AddDropRule(DropRule { filter, .. })) => {
                    let Filter { source, destination, .. } = filter;
                    Change::DeleteDropRules { source, destination }
                }
                (Mode::Delete, Change::AddDelayRule(DelaySpec { filter, .. })) => {
                    let Filter { source, destination, .. } = filter;
                    Change::DeleteDelayRules { source, destination }
                }
                (_, rule) => rule,
            };
            self.change(position, "fault", change);
        }
    }

    /// The change that makes a rule.
    fn fault_rule(&mut self, position: Position, entries: &[MapEntry]) -> Option<Change> {
        let delays = match get(entries, "rule_type") {
            Some(value) => self.word(value, "rule_type", &["drop", "delay"])? == "delay",
            None => false,
        };
        let further: &[&str] = if delays { &DELAY_KEYS } else { &DROP_KEYS };
        self.known_keys(entries, "fault", &[&KEYS, further, RuleCounters::KEYS].concat());
        let filter = self.filter(position, entries);
        let mut number =
            |key: &str| self.integer_of(entries, key, 0..=i64::from(u32::MAX)).unwrap_or_default();
        let (checked, rule) = if delays {
            let [rate, interval_s, latency_s] = ["la_rate", "la_interval", "la_latency"].map(&mut number);
            let rule = DelaySpec { filter: filter?, rate, interval_s, latency_s };
            (rule.check(), Change::AddDelayRule(rule))
        } else {
            let [rate, interval_s] = ["da_rate", "da_interval"].map(&mut number);
            let mut flag =
                |key: &str| get(entries, key).and_then(|value| self.boolean(value, key)).unwrap_or_default();
            let [random, drop_all] = ["da_random", "da_drop_all"].map(&mut flag);
            let health_errors = self.health_errors(entries);
            let rule = DropRule { filter: filter?, rate, interval_s, random, drop_all, health_errors };
            (rule.check(), Change::AddDropRule(rule))
        };
        if let Err(refusal) = checked {
            self.error(position, refusal.message);
            return None;
        }
        Some(rule)
    }

    fn filter(&mut self, position: Position, entries: &[MapEntry]) -> Option<Filter> {
        let [source, destination] = ["fa_src", "fa_dst"].map(|key| {
            let value = self.needed(position, entries, key, "a rule")?;
            self.pattern(value, key, NID, fault_nid)
        });
        let local_nid = match get(entries, "fa_local_nid") {
            Some(value) => self.pattern(value, "fa_local_nid", NID, fault_nid),
            None => Some(Nid::ANY),
        };
        let portals = get(entries, "fa_ptl_mask").and_then(|value| self.portals(value));
        let messages = self.integer_of(entries, "fa_msg_mask", 0..=15).and_then(MessageTypes::from_bits);
        Some(Filter {
            source: source?,
            destination: destination?,
            local_nid: local_nid?,
            portals: portals.unwrap_or_default(),
            messages: messages.unwrap_or(MessageTypes::ALL),
        })
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
