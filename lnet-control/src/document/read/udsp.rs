//! The block `udsp`.

use lnet_model::pattern::UdspPattern;
use lnet_model::request::Change;
use lnet_model::udsp::{UdspInfo, UdspRule};

use super::Reader;
use super::values::get;
use crate::document::Mode;
use crate::document::tree::{MapEntry, Marked, Position};

const KEYS: [&str; 8] = ["idx", "src", "dst", "rte", "priority", "action", "selection", "seq_no"];

impl Reader {
    pub(super) fn udsp(&mut self, position: Position, entries: &[MapEntry]) {
        self.known_keys(entries, "udsp", &KEYS);
        let before = self.errors.len();
        let index: Option<i64> = self.integer_of(entries, "idx", -1..=u32::MAX.into());
        let index = index.and_then(|index| u32::try_from(index).ok());
        let [source, destination, router] =
            ["src", "dst", "rte"].map(|key| self.udsp_pattern(get(entries, key)?, key));
        let priority = self.udsp_priority(entries);
        let selection: Option<u32> = self.integer_of(entries, "selection", 1..=u32::MAX.into());
        if self.errors.len() > before {
            return;
        }
        if self.mode == Mode::Delete {
            return self.change(position, "udsp", Change::DeleteUdsp { index });
        }
        match (UdspRule { source, destination, router, priority, selection }).checked() {
            Ok(rule) => self.change(position, "udsp", Change::AddUdsp { index, rule }),
            Err(error) => self.error(position, error.message),
        }
    }

    /// A pattern of a selection policy, in either form.
    pub(super) fn udsp_pattern(&mut self, value: &Marked, key: &str) -> Option<UdspPattern> {
        self.pattern(value, key, "a net or nid, with ranges", str::parse)
    }

    /// The priority of an item, or of its action; -1 is the lowest.
    fn udsp_priority(&mut self, entries: &[MapEntry]) -> Option<u32> {
        let own = get(entries, "priority");
        let actions = match get(entries, "action") {
            Some(action) => self.map(action, "action").unwrap_or_default(),
            None => &[],
        };
        self.known_keys(actions, "action", &["priority"]);
        let mut read = |value: &Marked| self.integer(value, "priority", -1..=u32::MAX.into());
        let said =
            [own, get(actions, "priority")].map(|value| value.and_then(|value| Some((value, read(value)?))));
        if let [Some((own, first)), Some((other, second))] = said
            && first != second
        {
            let location = own.position;
            let message = format!("the priority is {second} here and {first} in {location}: one is expected");
            self.error(other.position, message);
        }
        let (_, priority) = said.into_iter().flatten().next()?;
        Some(u32::try_from(priority).unwrap_or(UdspInfo::NONE))
    }
}
