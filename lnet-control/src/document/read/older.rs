//! The older forms of `peer` and `udsp`, those of the Multi-Rail design: the blocks `peers` and `selection`.

use lnet_model::pattern;
use lnet_model::request::Change;
use lnet_model::udsp::{Selection, SelectionKind};

use super::Reader;
use super::values::get;
use crate::document::tree::{MapEntry, Position};
use crate::document::{Instruction, Mode};

/// Keys of an item of `selection`.
const SELECTION_KEYS: [&str; 8] = ["type", "net", "nid", "local", "remote", "priority", "id", "seq_no"];

impl Reader {
    /// All NIDs of a peer; to be deleted, some of them.
    pub(super) fn older_peer(&mut self, position: Position, entries: &[MapEntry]) {
        self.known_keys(entries, "peers", &["nids", "seq_no", "detail"]);
        let errors = self.errors.len();
        let Some(value) = self.needed(position, entries, "nids", "a peer") else { return };
        let mut nids = Vec::new();
        for value in self.members(value, "nids") {
            nids.extend(self.pattern(value, "nids", "nids", pattern::nids).unwrap_or_default());
        }
        if nids.is_empty() {
            self.wrong(value, "nids", "at least one nid");
        }
        if self.errors.len() == errors {
            let deletes = self.mode == Mode::Delete;
            self.push(position, "peers", Instruction::Peers { nids, deletes });
        }
    }

    /// A rule of one of three types; to be deleted, also by its number.
    pub(super) fn selection(&mut self, position: Position, entries: &[MapEntry]) {
        self.known_keys(entries, "selection", &SELECTION_KEYS);
        let errors = self.errors.len();
        let deletes = self.mode == Mode::Delete;
        let id: Option<u32> = self.integer_of(entries, "id", 1..=u32::MAX.into());
        if deletes && id.is_some() && get(entries, "type").is_none() {
            if self.errors.len() == errors {
                self.change(position, "selection", Change::DeleteSelection { id, like: None });
            }
            return;
        }
        let Some(value) = self.needed(position, entries, "type", "a rule") else { return };
        let kind = self.word(value, "type", SelectionKind::NAMES);
        let Some(kind) = kind.and_then(|word| word.parse::<SelectionKind>().ok()) else { return };
        let mut pattern = |key: &&str| {
            let value = self.needed(position, entries, key, "a rule of this type")?;
            self.udsp_pattern(value, key)
        };
        let patterns: Vec<_> = kind.keys().iter().map(&mut pattern).collect();
        let priority: Option<u32> = self.integer_of(entries, "priority", 0..=u32::MAX.into());
        let Some(patterns) = patterns.into_iter().collect::<Option<Vec<_>>>() else { return };
        if self.errors.len() > errors {
            return;
        }
        if !deletes && priority.is_none() && kind != SelectionKind::Peer {
            return self.error(position, "a rule without 'priority', 0 is the best".to_owned());
        }
        match Selection::new(kind, patterns, priority) {
            Ok(like) if deletes => {
                self.change(position, "selection", Change::DeleteSelection { id, like: Some(like) });
            }
            // The node gives it a number, whatever number it had.
            Ok(selection) => self.change(position, "selection", Change::AddSelection(selection)),
            Err(refusal) => self.error_of(position, refusal.errno, refusal.message),
        }
    }
}
