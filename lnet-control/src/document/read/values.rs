//! Values of the kinds that documents are made of.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::Reader;
use crate::document::tree::{Entry, Marked, Value};
use crate::errno::Errno;
use crate::pattern::{PatternError, integer};

/// Longest word that is compared with known ones.
const WORD_BYTES_MAX: usize = 64;

/// The value of a key.
pub(super) fn get<'a>(entries: &'a [Entry], key: &str) -> Option<&'a Marked> {
    entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
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
    /// The entries of a map.
    pub(super) fn map<'a>(&mut self, value: &'a Marked, what: &str) -> Option<&'a [Entry]> {
        match &value.value {
            Value::Map(entries) => Some(entries),
            _ if value.is_null() => Some(&[]),
            _ => {
                self.error(value.position, format!("{} for '{what}': a map is expected", value.describe()));
                None
            }
        }
    }

    /// The items of a list, each a map; an item that is none is reported and left out.
    pub(super) fn maps<'a>(&mut self, value: &'a Marked, what: &str) -> Vec<(&'a Marked, &'a [Entry])> {
        let items = self.sequence(value, what);
        items.iter().filter_map(|item| Some((item, self.map(item, what)?))).collect()
    }

    /// The items of a list.
    pub(super) fn sequence<'a>(&mut self, value: &'a Marked, what: &str) -> &'a [Marked] {
        match &value.value {
            Value::Sequence(items) => items,
            _ if value.is_null() => &[],
            _ => {
                self.error(value.position, format!("{} for '{what}': a list is expected", value.describe()));
                &[]
            }
        }
    }

    /// Reports keys that are not among `known`.
    pub(super) fn known_keys(&mut self, entries: &[Entry], what: &str, known: &[&str]) {
        for Entry { position, key, .. } in entries {
            if !known.contains(&key.as_str()) {
                let suggestion = suggestion(key, known.iter().copied());
                self.error(*position, format!("unknown key '{key}' in '{what}'{suggestion}"));
            }
        }
    }

    /// A word; `expected` says which.
    pub(super) fn text<'a>(&mut self, value: &'a Marked, key: &str, expected: &str) -> Option<&'a str> {
        match &value.value {
            Value::Scalar { text, .. } if !value.is_null() => Some(text),
            _ => {
                self.error(
                    value.position,
                    format!("{} for '{key}': {expected} is expected", value.describe()),
                );
                None
            }
        }
    }

    /// A word that has a meaning.
    pub(super) fn parsed<T, E: Display>(
        &mut self,
        value: &Marked,
        key: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(value, key, expected)?;
        match parse(text) {
            Ok(parsed) => Some(parsed),
            Err(error) => {
                self.error(value.position, format!("'{key}': {error}"));
                None
            }
        }
    }

    /// The same of a pattern, whose errors have numbers.
    pub(super) fn pattern<T>(
        &mut self,
        value: &Marked,
        key: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Result<T, PatternError>,
    ) -> Option<T> {
        let text = self.text(value, key, expected)?;
        match parse(text) {
            Ok(parsed) => Some(parsed),
            Err(PatternError { errno, message }) => {
                self.error_of(value.position, errno, format!("'{key}': {message}"));
                None
            }
        }
    }

    /// One of some words.
    pub(super) fn word<'a>(&mut self, value: &'a Marked, key: &str, words: &[&str]) -> Option<&'a str> {
        let expected = format!("one of {}", words.join(", "));
        let text = self.text(value, key, &expected)?;
        if words.contains(&text) {
            return Some(text);
        }
        let suggestion = suggestion(text, words.iter().copied());
        let shown = crate::pattern::quoted(text);
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
        let shown = crate::pattern::quoted(text);
        self.error_of(value.position, errno, format!("{shown} for '{key}': {expected} is expected"));
        None
    }

    /// A number within a range, where the key is there.
    pub(super) fn integer_of<T: TryFrom<i64>>(
        &mut self,
        entries: &[Entry],
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
                let shown = crate::pattern::quoted(text);
                self.error(value.position, format!("{shown} for '{key}': true or false is expected"));
                None
            }
        }
    }

    /// Remembers the number that an item gives itself.
    pub(super) fn begin_item(&mut self, entries: &[Entry]) {
        self.seq_no = None;
        self.seq_no = self.integer_of(entries, "seq_no", 0..=i64::MAX);
    }
}
