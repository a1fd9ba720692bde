//! Tunables of the tcp LND, by the names that socklnd and the acceptor have for them.

use std::ffi::OsStr;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command};
use lnet_user::{Accept, NetTunables, SockTunables};

/// The help on `--sock`.
pub(crate) const HELP: &str = "\
Tunables of the tcp LND, for --sock:
  accept=secure|all|none   who may connect: peers with a port below 1024, all, or none
  accept_port=PORT         port of the acceptors, this node's and its peers' [988]
  accept_port_bulk=PORT    their port for connections of types other than control [988]
  accept_backlog=COUNT     connections that may wait to be accepted [127]
  accept_timeout=SECONDS   how long a handshake may take [5]
  sock_timeout=SECONDS     how long a message, or its progress, may take, 0 for --lnd-timeout [50]
  keepalive=SECONDS        silence after which a peer is told that this end lives, 0 for never [30]
  keepalive_idle=SECONDS   silence after which TCP probes a connection, 0 for never [30]
  keepalive_intvl=SECONDS  pause between probes [5]
  keepalive_count=COUNT    probes without an answer that end a connection [5]
  min_reconnectms=MS       first pause before a connection is tried again [1000]
  max_reconnectms=MS       longest pause [60000]
  min_bulk=BYTES           messages from which on they go by a connection for large ones [1024]
  enable_csum=0|1          whether messages of protocol 2 leave with checksums [0]
  inject_csum_error=0|1    whether the first checksum that a shard sends is wrong [0]
  nagle=0|1                whether small segments wait [0]
  tx_buffer_size=BYTES     send buffer of a connection, 0 for the system's choice [0]
  rx_buffer_size=BYTES     receive buffer of a connection, 0 for the system's choice [0]
  zc_min_payload=BYTES     least payload that is sent without being copied [65536]
  credits=COUNT            messages in flight by an NI [256]
  peer_credits=COUNT       messages in flight to a peer NI, at most credits [8]
  peer_buffer_credits=COUNT  messages of a peer NI to be forwarded at once, 0 for peer_credits [0]
  peer_timeout=SECONDS     silence after which a gateway counts as dead, 0 for never [180]
  conns_per_peer=COUNT     connections of each bulk type with a peer, 0 for what the link wants [0]
  tos=NUMBER               type of service of packets, -1 for the system's [-1]
The last six are for NIs that say nothing else (lnetctl net add).";

/// One tunable that is set.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    name: String,
    value: String,
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
        let setting = Self { name: name.to_owned(), value: value.to_owned() };
        // Told with the command line.
        setting.apply(&mut SockTunables::default())?;
        Ok(setting)
    }
}

impl Setting {
    /// Sets it.
    pub(crate) fn apply(&self, tunables: &mut SockTunables) -> Result<(), String> {
        let seconds = |least: u32| self.number(least, 86_400).map(|value| Duration::from_secs(value.into()));
        let milliseconds = || self.number(1, 3_600_000).map(|value| Duration::from_millis(value.into()));
        match self.name.as_str() {
            "accept" => {
                tunables.accept = match self.value.as_str() {
                    "secure" => Accept::Secure,
                    "all" => Accept::All,
                    "none" => Accept::None,
                    _ => return Err(self.unexpected("secure, all or none")),
                }
            }
            "accept_port" => tunables.accept_port = self.number(1, 65_535)? as u16,
            "accept_port_bulk" => tunables.accept_port_bulk = self.number(1, 65_535)? as u16,
            "accept_backlog" => tunables.accept_backlog = self.number(1, 65_535)?,
            "accept_timeout" => tunables.accept_timeout = seconds(1)?,
            "sock_timeout" => tunables.timeout = seconds(0)?,
            "keepalive" => tunables.keepalive = seconds(0)?,
            "keepalive_idle" => tunables.keepalive_idle_s = self.number(0, 32_767)?,
            "keepalive_intvl" => tunables.keepalive_interval_s = self.number(1, 32_767)?,
            "keepalive_count" => tunables.keepalive_count = self.number(1, 127)?,
            "min_reconnectms" => tunables.min_reconnect = milliseconds()?,
            "max_reconnectms" => tunables.max_reconnect = milliseconds()?,
            "min_bulk" => tunables.min_bulk_bytes = self.number(0, u32::MAX)?,
            "enable_csum" => tunables.sends_checksums = self.number(0, 1)? != 0,
            "inject_csum_error" => tunables.injects_checksum_error = self.number(0, 1)? != 0,
            "nagle" => tunables.nagle = self.number(0, 1)? != 0,
            "tx_buffer_size" => tunables.tx_buffer_bytes = self.number(0, i32::MAX as u32)?,
            "rx_buffer_size" => tunables.rx_buffer_bytes = self.number(0, i32::MAX as u32)?,
            "zc_min_payload" => tunables.zero_copy_min_bytes = self.number(2048, 1 << 20)?,
            "conns_per_peer" => tunables.conns_per_peer = self.number(0, 127)? as u8,
            "tos" => tunables.tos = self.tos()?,
            _ => return self.apply_to_nets(&mut tunables.net),
        }
        Ok(())
    }

    fn apply_to_nets(&self, net: &mut NetTunables) -> Result<(), String> {
        match self.name.as_str() {
            "credits" => net.credits = self.number(1, i32::MAX as u32)?,
            "peer_credits" => net.peer_credits = self.number(1, i32::MAX as u32)?,
            "peer_buffer_credits" => net.peer_buffer_credits = self.number(0, i32::MAX as u32)?,
            "peer_timeout" => net.peer_timeout_s = self.number(0, i32::MAX as u32)?,
            _ => return Err(format!("{}: no tunable of the tcp LND; `lnetd --help` lists them", self.name)),
        }
        Ok(())
    }

    /// The type of service: `None` for the system's.
    fn tos(&self) -> Result<Option<u8>, String> {
        if self.value == "-1" {
            return Ok(None);
        }
        let number = self.value.parse().map(Some);
        number.map_err(|_| self.unexpected("a number from -1 to 255"))
    }

    fn number(&self, least: u32, greatest: u32) -> Result<u32, String> {
        let number = self.value.parse().ok().filter(|value| (least..=greatest).contains(value));
        number.ok_or_else(|| self.unexpected(&format!("a number from {least} to {greatest}")))
    }

    fn unexpected(&self, expected: &str) -> String {
        format!("{}={}: {expected} is expected", self.name, self.value)
    }
}

/// All that are set, the last of a name last; without a timeout of its own the LND has that of the others.
pub(crate) fn tunables(settings: &[Setting], lnd_timeout: Duration) -> Result<SockTunables, String> {
    let mut tunables = SockTunables::DEFAULT;
    settings.iter().try_for_each(|setting| setting.apply(&mut tunables))?;
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
        for line in HELP.lines().skip(1).filter(|line| line.starts_with(' ')) {
            let (name, rest) = line.trim().split_once('=').unwrap();
            // The value that the help calls the default, else the first of a choice.
            let default = rest.rsplit_once('[').and_then(|(_, rest)| rest.strip_suffix(']'));
            let value = default.unwrap_or_else(|| rest.split('|').next().unwrap());
            assert_eq!(parsed(&format!("{name}={value}")), Ok(SockTunables::DEFAULT), "{line}");
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
            ("accept=some", "accept=some: secure, all or none is expected"),
            ("accept_port=65536", "accept_port=65536: a number from 1 to 65535 is expected"),
            ("sock_timeout=-1", "sock_timeout=-1: a number from 0"),
            ("speed=1", "speed: no tunable"),
            ("tos=256", "tos=256: a number from -1 to 255"),
            ("zc_min_payload=2047", "zc_min_payload=2047: a number from 2048 to 1048576"),
            ("conns_per_peer=128", "conns_per_peer=128: a number from 0 to 127"),
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
