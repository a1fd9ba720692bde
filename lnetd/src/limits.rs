//! Limits of a node on the command line: how many objects each shard may have, and the node NIs.

use std::ffi::OsStr;
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::LazyLock;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command};
use lnet_model::pattern::integer;
use lnet_user::Limits;
use lnet_user::node::DAEMON_LIMITS;

/// A limit that can be set.
#[derive(Debug)]
pub(crate) struct LimitRow {
    name: &'static str,
    range: RangeInclusive<u32>,
    get: fn(&Limits) -> u32,
    set: fn(&mut Limits, u32),
    meaning: &'static str,
}

macro_rules! rows {
    ($($name:ident: $range:expr, $meaning:literal;)+) => {
        [$(LimitRow {
            name: stringify!($name),
            range: $range,
            get: |limits| limits.$name.into(),
            // The range has no more than the type.
            set: |limits, value| limits.$name = value.try_into().unwrap_or_default(),
            meaning: $meaning,
        }),+]
    };
}

/// Most of what a shard has most of, well within what the core takes (`Limits::is_valid`).
const SLOTS_MAX: u32 = 1 << 20;

/// All of them. What peers take is a matter of memory: `--peer-memory`.
static LIMITS: [LimitRow; 9] = rows! {
    nis: 1..=1024, "NIs of the node besides lo";
    match_entries: 1..=SLOTS_MAX, "match entries, less than memory_descs";
    memory_descs: 2..=SLOTS_MAX, "memory descriptors";
    event_queues: 1..=SLOTS_MAX, "event queues";
    events: 256..=SLOTS_MAX / 2, "events of all queues that were not taken yet";
    requests: 1..=SLOTS_MAX / 2, "PUTs and GETs on their way out";
    responses: 2..=SLOTS_MAX / 4, "ACKs and REPLYs, at least incoming and twice delayed";
    incoming: 1..=SLOTS_MAX, "messages that arrive at once";
    delayed: 1..=SLOTS_MAX / 4, "messages that wait for an entry or a descriptor";
};

/// The help on `--limit`.
pub(crate) static HELP: LazyLock<String> = LazyLock::new(|| {
    let mut help = String::from(
        "Limits, for --limit: nis of the node, the others of each shard. `lnetctl usage` shows their use,\n\
         that of requests and responses as messages, but not that of event_queues and incoming:\n",
    );
    for row in &LIMITS {
        let setting = format!("{}=COUNT", row.name);
        let _ = writeln!(help, "  {setting:22}  {} [{}]", row.meaning, (row.get)(&DAEMON_LIMITS));
    }
    help
});

/// One limit that is set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitSetting {
    row: &'static LimitRow,
    value: u32,
}

/// Reads settings, and offers their names.
#[derive(Clone)]
pub(crate) struct LimitParser;

impl TypedValueParser for LimitParser {
    type Value = LimitSetting;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        word: &OsStr,
    ) -> Result<LimitSetting, clap::Error> {
        LimitSetting::from_str.parse_ref(command, arg, word)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(LIMITS.iter().map(|row| PossibleValue::new(format!("{}=", row.name)))))
    }
}

impl FromStr for LimitSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("NAME=COUNT is expected")?;
        let row = LIMITS.iter().find(|row| row.name == name);
        let row = row.ok_or_else(|| format!("{name}: no such limit; `lnetd --help` lists them"))?;
        let number = integer(value).and_then(|value| u32::try_from(value).ok());
        let value = number.filter(|value| row.range.contains(value)).ok_or_else(|| {
            format!("{text}: a number from {} to {} is expected", row.range.start(), row.range.end())
        })?;
        Ok(Self { row, value })
    }
}

/// The limits of a daemon with these settings, the last of a name last.
pub(crate) fn limits(settings: &[LimitSetting]) -> Result<Limits, String> {
    let mut limits = DAEMON_LIMITS;
    settings.iter().for_each(|setting| (setting.row.set)(&mut limits, setting.value));
    let Limits { match_entries, memory_descs, responses, incoming, delayed, .. } = limits;
    for (is_so, message) in [
        (
            memory_descs > match_entries,
            format!("memory_descs={memory_descs}: more than match_entries={match_entries} is expected"),
        ),
        (
            responses >= incoming.max(2 * delayed),
            format!(
                "responses={responses}: at least incoming={incoming} and twice delayed={delayed} is expected"
            ),
        ),
        (limits.is_valid(), "too many requests, responses and messages together".to_owned()),
    ] {
        if !is_so {
            return Err(message);
        }
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &str) -> Result<Limits, String> {
        let settings: Result<Vec<LimitSetting>, _> = words.split_whitespace().map(str::parse).collect();
        limits(&settings?)
    }

    #[test]
    fn each_limit_is_set() {
        assert_eq!(parsed(""), Ok(DAEMON_LIMITS));
        for row in &LIMITS {
            let value = (row.get)(&DAEMON_LIMITS) + 1;
            let set = parsed(&format!("{}=7 {0}={value}", row.name));
            // Some want others to be more too.
            let both = parsed(&format!("responses=4096 memory_descs=16384 {}={value}", row.name)).unwrap();
            assert_eq!((row.get)(&both), value, "{}: {set:?}", row.name);
            assert!(HELP.contains(&format!("  {}=COUNT", row.name)));
        }
    }

    #[test]
    fn what_makes_no_sense_is_told_with_its_value() {
        for (words, expected) in [
            ("nis", "NAME=COUNT is expected"),
            ("nis=0", "nis=0: a number from 1 to 1024 is expected"),
            ("foo=1", "foo: no such limit"),
            ("memory_descs=4096", "memory_descs=4096: more than match_entries=4096 is expected"),
            ("delayed=1024", "responses=1024: at least incoming=1024 and twice delayed=1024 is expected"),
        ] {
            let error = parsed(words).unwrap_err();
            assert!(error.starts_with(expected), "{words}: {error}");
        }
    }
}
