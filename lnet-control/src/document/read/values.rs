//! Values of the kinds that documents are made of.

use std::fmt::Display;
use std::ops::RangeInclusive;

use lnet_model::pattern::{integer, quoted, shown};
use lnet_model::{Errno, Refusal};

use super::{BONDING, Reader, TELLING};
use crate::document::tree::{MapEntry, Marked, Position, Value};

/// Longest word that is compared with known ones.
const WORD_BYTES_MAX: usize = 64;

/// The value of a key. One with nothing behind it is not given.
pub(super) fn get<'a>(entries: &'a [MapEntry], key: &str) -> Option<&'a Marked> {
    let entry = entries.iter().find(|entry| entry.key == key)?;
    Some(&entry.value).filter(|value| !value.is_null())
}

/// `; did you mean ...?` where a known word is near.
pub(super) fn suggestion<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    // No typo, and too long to be compared with everything.
    if word.len() > WORD_BYTES_MAX {
        return String::new();
    }
    let lower = word.to_lowercase();
    let distance = |candidate: &str| strsim::osa_distance(&lower, &candidate.to_lowercase());
    let nearest =
        known.map(|candidate| (distance(candidate), candidate)).min_by_key(|(distance, _)| *distance);
    match nearest {
        Some((distance, candidate)) if distance <= (candidate.len() / 3).clamp(1, 4) => {
            format!("; did you mean '{candidate}'?")
        }
        _ => String::new(),
    }
}

impl Reader {
    /// Reports a value that is not what its key has.
    pub(super) fn wrong(&mut self, value: &Marked, key: &str, expected: impl Display) {
        self.error(value.position, format!("{} for '{key}': {expected} is expected", value.describe()));
    }

    /// The value of a key without which an item says nothing.
    pub(super) fn needed<'a>(
        &mut self,
        position: Position,
        entries: &'a [MapEntry],
        key: &str,
        what: &str,
    ) -> Option<&'a Marked> {
        let value = get(entries, key);
        if value.is_none() {
            self.error(position, format!("{what} without '{key}'"));
        }
        value
    }

    /// The entries of a map.
    pub(super) fn map<'a>(&mut self, value: &'a Marked, what: &str) -> Option<&'a [MapEntry]> {
        match &value.value {
            Value::Map(entries) => return Some(entries),
            _ if value.is_blank() => return Some(&[]),
            _ => self.wrong(value, what, "a map"),
        }
        None
    }

    /// The items of a list, each a map; an item that is none is reported and left out. Empty items say
    /// nothing.
    pub(super) fn maps<'a>(&mut self, value: &'a Marked, what: &str) -> Vec<(&'a Marked, &'a [MapEntry])> {
        let items = self.sequence(value, what).iter().filter(|item| !item.is_null());
        items.filter_map(|item| Some((item, self.map(item, what)?))).collect()
    }

    /// The items of a list.
    pub(super) fn sequence<'a>(&mut self, value: &'a Marked, what: &str) -> &'a [Marked] {
        match &value.value {
            Value::Sequence(items) => return items,
            _ if value.is_blank() => {}
            _ => self.wrong(value, what, "a list"),
        }
        &[]
    }

    /// The values of a map, or the items of a list.
    pub(super) fn members<'a>(&mut self, value: &'a Marked, what: &str) -> Vec<&'a Marked> {
        match &value.value {
            Value::Map(entries) => entries.iter().map(|entry| &entry.value).collect(),
            _ => self.sequence(value, what).iter().collect(),
        }
    }

    /// Reports keys that are not among `known`.
    pub(super) fn known_keys(&mut self, entries: &[MapEntry], what: &str, known: &[&str]) {
        for MapEntry { position, key, .. } in entries {
            if !known.contains(&key.as_str()) {
                let suggestion = suggestion(key, known.iter().copied());
                self.error(*position, format!("unknown key '{}' in '{what}'{suggestion}", shown(key)));
            }
        }
    }

    /// Reports keys of a net, an NI, a peer or a peer NI that are neither among `known` nor only tell.
    pub(super) fn known_or_telling(&mut self, entries: &[MapEntry], what: &str, known: &[&str]) {
        self.known_keys(entries, what, &[known, &TELLING].concat());
        if let Some(value) = get(entries, BONDING) {
            self.bonding(value, BONDING);
        }
    }

    /// A word; `expected` says which.
    pub(super) fn text<'a>(&mut self, value: &'a Marked, key: &str, expected: &str) -> Option<&'a str> {
        match &value.value {
            Value::Scalar { text, .. } if !value.is_null() => return Some(text),
            _ => self.wrong(value, key, expected),
        }
        None
    }

    /// A word that has a meaning.
    pub(super) fn pattern<T>(
        &mut self,
        value: &Marked,
        key: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Result<T, Refusal>,
    ) -> Option<T> {
        let text = self.text(value, key, expected)?;
        self.good(value, key, parse(text))
    }

    /// A word that has a meaning, where the key is there.
    pub(super) fn pattern_of<T>(
        &mut self,
        entries: &[MapEntry],
        key: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Result<T, Refusal>,
    ) -> Option<T> {
        self.pattern(get(entries, key)?, key, expected, parse)
    }

    /// What was parsed, unless it was refused.
    pub(super) fn good<T>(&mut self, value: &Marked, key: &str, parsed: Result<T, Refusal>) -> Option<T> {
        let report = |error: Refusal| self.error_of(value.position, error.errno, format!("'{key}': {error}"));
        parsed.map_err(report).ok()
    }

    /// A word of these.
    pub(super) fn word<'a>(&mut self, value: &'a Marked, key: &str, words: &[&str]) -> Option<&'a str> {
        let expected = format!("one of {}", words.join(", "));
        let text = self.text(value, key, &expected)?;
        if words.contains(&text) {
            return Some(text);
        }
        let suggestion = suggestion(text, words.iter().copied());
        let shown = quoted(text);
        self.error(value.position, format!("{shown} for '{key}': {expected} is expected{suggestion}"));
        None
    }

    /// A number within a range.
    pub(super) fn integer(&mut self, value: &Marked, key: &str, range: RangeInclusive<i64>) -> Option<i64> {
        let (low, high) = (range.start(), range.end());
        let expected = format!("a number from {low} to {high}");
        let text = self.text(value, key, &expected)?;
        let number = integer(text);
        if let Some(number) = number.filter(|number| range.contains(number)) {
            return Some(number);
        }
        let errno = if number.is_some() { Errno::RANGE } else { Errno::INVAL };
        let shown = quoted(text);
        self.error_of(value.position, errno, format!("{shown} for '{key}': {expected} is expected"));
        None
    }

    /// A number within a range, where the key is there.
    pub(super) fn integer_of<T: TryFrom<i64>>(
        &mut self,
        entries: &[MapEntry],
        key: &str,
        range: RangeInclusive<i64>,
    ) -> Option<T> {
        let value = get(entries, key)?;
        T::try_from(self.integer(value, key, range)?).ok()
    }

    /// A boolean, in any case.
    pub(super) fn boolean(&mut self, value: &Marked, key: &str) -> Option<bool> {
        let text = self.text(value, key, "true or false")?;
        match text.to_ascii_lowercase().as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => {
                self.wrong(value, key, "true or false");
                None
            }
        }
    }

    /// Reads the items of a block, each a map that may give itself a number.
    pub(super) fn each(
        &mut self,
        block: &Marked,
        what: &str,
        mut read: impl FnMut(&mut Self, Position, &[MapEntry]),
    ) {
        for (item, entries) in self.maps(block, what) {
            self.begin_item(entries);
            read(self, item.position, entries);
        }
    }

    /// Remembers the number that an item gives itself.
    pub(super) fn begin_item(&mut self, entries: &[MapEntry]) {
        self.seq_no = None;
        self.seq_no = self.integer_of(entries, "seq_no", 0..=i64::MAX);
    }
}
