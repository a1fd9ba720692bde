//! Tunables of the tcp LND on the command line.

use std::ffi::OsStr;
use std::fmt::Write;
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command};
use lnet_user::{SOCK_TUNABLES, SockTunable, SockTunables};

/// The help on `--sock`.
pub(crate) static HELP: LazyLock<String> = LazyLock::new(|| {
    let mut help = String::from("Tunables of the tcp LND, for --sock:\n");
    for row in SOCK_TUNABLES {
        let setting = format!("{}={}", row.name, row.unit);
        let _ = writeln!(help, "  {setting:25}  {} [{}]", row.meaning, row.default_text());
    }
    help + "Those from credits on are for NIs that say nothing else (lnetctl net add)."
});

/// One tunable that is set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    tunable: &'static SockTunable,
    value: i64,
}

/// Reads settings, and offers their names.
#[derive(Clone)]
pub(crate) struct SettingParser;

impl TypedValueParser for SettingParser {
    type Value = Setting;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, word: &OsStr) -> Result<Setting, clap::Error> {
        Setting::from_str.parse_ref(command, arg, word)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let name = |line: &'static str| line.strip_prefix("  ")?.split_inclusive('=').next();
        Some(Box::new(HELP.lines().filter_map(name).map(PossibleValue::new)))
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("NAME=VALUE is expected")?;
        let unknown = || format!("{name}: no tunable of the tcp LND; `lnetd --help` lists them");
        let tunable = SockTunable::of_name(name).ok_or_else(unknown)?;
        let unexpected = || format!("{text}: {} is expected", tunable.values.expected());
        Ok(Self { tunable, value: tunable.values.read(value).ok_or_else(unexpected)? })
    }
}

/// All that are set, the last of a name last; without a timeout of its own the LND has that of the others.
pub(crate) fn tunables(settings: &[Setting], lnd_timeout: Duration) -> Result<SockTunables, String> {
    let mut tunables = SockTunables::DEFAULT;
    settings.iter().for_each(|setting| setting.tunable.set(&mut tunables, setting.value));
    if tunables.timeout == Duration::ZERO {
        tunables.timeout = lnd_timeout;
    }
    let SockTunables { min_reconnect, max_reconnect, .. } = tunables;
    if min_reconnect > max_reconnect {
        return Err(format!(
            "min_reconnectms={}: at most max_reconnectms={} is expected",
            min_reconnect.as_millis(),
            max_reconnect.as_millis()
        ));
    }
    Ok(tunables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &str) -> Result<SockTunables, String> {
        let settings: Result<Vec<Setting>, _> = words.split_whitespace().map(str::parse).collect();
        tunables(&settings?, Duration::from_secs(49))
    }

    #[test]
    fn each_tunable_that_the_help_lists_is_set() {
        for line in HELP.lines().filter(|line| line.starts_with(' ')) {
            let (name, rest) = line.trim().split_once('=').unwrap();
            let default = rest.rsplit_once('[').and_then(|(_, rest)| rest.strip_suffix(']')).unwrap();
            assert_eq!(parsed(&format!("{name}={default}")), Ok(SockTunables::DEFAULT), "{line}");
            let other = match name {
                "accept" => "none",
                "enable_csum" | "inject_csum_error" | "nagle" => "1",
                "zc_min_payload" => "4096",
                _ => "11",
            };
            let set = parsed(&format!("min_reconnectms=9 {name}={other}")).unwrap();
            assert_ne!(Ok(set), parsed("min_reconnectms=9"), "{line}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_told_with_its_value() {
        let cases = [
            ("accept", "NAME=VALUE is expected"),
            ("accept=some", "accept=some: one of secure, all, none is expected"),
            ("accept_port=65536", "accept_port=65536: a number from 1 to 65535 is expected"),
            ("sock_timeout=-1", "sock_timeout=-1: a number from 0"),
            ("speed=1", "speed: no tunable"),
            ("tos=256", "tos=256: a number from -1 to 255"),
            ("zc_min_payload=2047", "zc_min_payload=2047: a number from 2048 to 1048576"),
            ("conns_per_peer=128", "conns_per_peer=128: a number from -1 to 127"),
            (
                "min_reconnectms=5000 max_reconnectms=4000",
                "min_reconnectms=5000: at most max_reconnectms=4000",
            ),
        ];
        for (words, expected) in cases {
            let error = parsed(words).unwrap_err();
            assert!(error.contains(expected), "{words}: {error}");
        }
        assert_eq!(parsed("accept=all accept_port=1988").unwrap().accept_port, 1988);
        assert_eq!(parsed("sock_timeout=0").unwrap().timeout, Duration::from_secs(49));
    }
}
