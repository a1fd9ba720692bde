//! Tunables of the tcp LND that an operator may set, with the names and defaults of socklnd and the acceptor.
//!
//! Invariant: what one of them is stands once, in the table below or, where an NI has it as an option, in the
//! row of that. Fields, defaults, what `lnetd --sock` reads, its help and the table in `docs/tcp-lnd.md` come
//! from there.

use core::time::Duration;

use lnet_core::tunables::NetTunables;
use lnet_model::lnd::{NiOption, OptionValues};

lnet_wire::named! {
    /// Who may connect to this node (socklnd's `accept`).
    #[derive(Default)]
    Accept {
        /// Peers with a privileged source port: their system vouches for who they are.
        #[default]
        Secure => "secure",
        /// Every peer. One without a privileged port is known by its address.
        All => "all",
        /// No peers: this node does not listen.
        None => "none",
    }
}

/// Description of a tunable.
#[derive(Clone, Copy, Debug)]
pub struct SockTunable {
    /// Its name.
    pub name: &'static str,
    /// Its values.
    pub values: OptionValues,
    /// Unit of its values.
    pub unit: &'static str,
    /// Meaning, for the help of `lnetd` and the documentation.
    pub meaning: &'static str,
    field: fn(&mut SockTunables) -> Field<'_>,
}

/// The field of a tunable, by what a number means there.
enum Field<'a> {
    Accept(&'a mut Accept),
    Switch(&'a mut bool),
    Port(&'a mut u16),
    Number(&'a mut u32),
    Seconds(&'a mut Duration),
    Milliseconds(&'a mut Duration),
    Tos(&'a mut Option<u8>),
}

/// Defines the tunables. The text above one is its meaning.
macro_rules! tunables {
    ($(#[doc = $meaning:literal] $name:literal, $unit:literal, $values:expr, $field:ident: $type:ty as $as:ident = $default:expr;)+) => {
        /// The tunables of the tcp LND of a node, with the names and defaults of socklnd's.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct SockTunables {
            $(#[doc = concat!($meaning, " (`", $name, "`).")] pub $field: $type,)+
            /// Tunables of a new net where nothing is asked for.
            pub net: NetTunables,
            /// Connections of an NI that does not say how many with a peer for messages of each direction; 0
            /// for as many as the speed of its link wants (`conns_per_peer`).
            pub conns_per_peer: u32,
            /// The IP type of service of an NI that does not say which; `None` for the system's (`tos`).
            pub tos: Option<u8>,
        }

        impl SockTunables {
            /// Defaults of socklnd: [`SockTunables::default`].
            pub const DEFAULT: Self =
                Self { $($field: $default,)+ net: NetTunables::LNET, conns_per_peer: 0, tos: None };
        }

        /// The tunables, those last that NIs have as options: NIs have them that say nothing else.
        pub const SOCK_TUNABLES: &[SockTunable] = &[
            $(SockTunable {
                name: $name,
                values: $values,
                unit: $unit,
                meaning: $meaning.trim_ascii(),
                field: |tunables| Field::$as(&mut tunables.$field),
            },)+
            of_option(NiOption::Credits, |tunables| Field::Number(&mut tunables.net.credits)),
            of_option(NiOption::PeerCredits, |tunables| Field::Number(&mut tunables.net.peer_credits)),
            of_option(NiOption::PeerBufferCredits, |tunables| {
                Field::Number(&mut tunables.net.peer_buffer_credits)
            }),
            of_option(NiOption::PeerTimeout, |tunables| Field::Number(&mut tunables.net.peer_timeout_s)),
            of_option(NiOption::ConnsPerPeer, |tunables| Field::Number(&mut tunables.conns_per_peer)),
            of_option(NiOption::Tos, |tunables| Field::Tos(&mut tunables.tos)),
        ];
    };
}

tunables! {
    /// Who may connect: secure (from a port below 1024), all or none
    "accept", "WHO", OptionValues::Words(WHO), accept: Accept as Accept = Accept::Secure;
    /// Port of the acceptors, this node's and its peers'
    "accept_port", "PORT", numbers(1, 65_535), accept_port: u16 as Port = 988;
    /// Port of acceptors for connections of other types than control
    "accept_port_bulk", "PORT", numbers(1, 65_535), accept_port_bulk: u16 as Port = 988;
    /// Connections that may wait to be accepted
    "accept_backlog", "COUNT", numbers(1, 65_535), accept_backlog: u32 as Number = 127;
    /// How long a handshake may take
    "accept_timeout", "SECONDS", numbers(1, DAY_S), accept_timeout: Duration as Seconds = seconds(5);
    /// How long a message, or its progress, may take; 0 is --lnd-timeout
    "sock_timeout", "SECONDS", numbers(0, DAY_S), timeout: Duration as Seconds = seconds(50);
    /// Silence after which a peer is told that this end lives; 0 is never
    "keepalive", "SECONDS", numbers(0, DAY_S), keepalive: Duration as Seconds = seconds(30);
    /// Silence after which TCP probes a connection; 0 is never
    "keepalive_idle", "SECONDS", numbers(0, 32_767), keepalive_idle_s: u32 as Number = 30;
    /// Pause between probes
    "keepalive_intvl", "SECONDS", numbers(1, 32_767), keepalive_interval_s: u32 as Number = 5;
    /// Probes without an answer that end a connection
    "keepalive_count", "COUNT", numbers(1, 127), keepalive_count: u32 as Number = 5;
    /// First pause before a connection is tried again
    "min_reconnectms", "MS", numbers(1, HOUR_MS), min_reconnect: Duration as Milliseconds = seconds(1);
    /// Longest pause
    "max_reconnectms", "MS", numbers(1, HOUR_MS), max_reconnect: Duration as Milliseconds = seconds(60);
    /// Messages from there on go by a connection for large ones
    "min_bulk", "BYTES", numbers(0, u32::MAX as i64), min_bulk_bytes: u32 as Number = 1024;
    /// Whether messages of protocol 2 leave with checksums
    "enable_csum", "0|1", numbers(0, 1), sends_checksums: bool as Switch = false;
    /// Whether the first checksum that a shard sends is wrong
    "inject_csum_error", "0|1", numbers(0, 1), injects_checksum_error: bool as Switch = false;
    /// Whether small segments wait
    "nagle", "0|1", numbers(0, 1), nagle: bool as Switch = false;
    /// Send buffer of a connection; 0 is the system's choice
    "tx_buffer_size", "BYTES", numbers(0, i32::MAX as i64), tx_buffer_bytes: u32 as Number = 0;
    /// Receive buffer of a connection; 0 is the system's choice
    "rx_buffer_size", "BYTES", numbers(0, i32::MAX as i64), rx_buffer_bytes: u32 as Number = 0;
    /// Least payload that is sent without being copied
    "zc_min_payload", "BYTES", numbers(2048, 1 << 20), zero_copy_min_bytes: u32 as Number = 64 << 10;
}

/// The words of `accept`, in the order of the values.
const WHO: &[&str] = &[Accept::Secure.name(), Accept::All.name(), Accept::None.name()];
const DAY_S: i64 = 86_400;
const HOUR_MS: i64 = 3_600_000;

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const fn numbers(least: i64, high: i64) -> OptionValues {
    OptionValues::numbers(least, high)
}

/// The tunable for NIs that say nothing of an option.
const fn of_option(option: NiOption, field: fn(&mut SockTunables) -> Field<'_>) -> SockTunable {
    let row = option.row();
    SockTunable { name: option.name(), values: row.values, unit: row.unit, meaning: row.meaning, field }
}

impl Default for SockTunables {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl SockTunable {
    /// The tunable of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<&'static Self> {
        SOCK_TUNABLES.iter().find(|known| known.name == name)
    }

    /// Its value among these, the default if there is none.
    #[must_use]
    pub fn value(&self, tunables: &SockTunables) -> i64 {
        let mut tunables = *tunables;
        match (self.field)(&mut tunables) {
            Field::Accept(accept) => *accept as i64,
            Field::Switch(is_on) => i64::from(*is_on),
            Field::Port(port) => i64::from(*port),
            Field::Number(number) => i64::from(*number),
            Field::Seconds(time) => time.as_secs() as i64,
            Field::Milliseconds(time) => time.as_millis() as i64,
            Field::Tos(tos) => tos.map_or(-1, i64::from),
        }
    }

    /// The value of a node that is not asked to have one, as people write it.
    #[must_use]
    pub fn default_text(&self) -> alloc::string::String {
        self.values.text(self.value(&SockTunables::DEFAULT))
    }

    /// Sets its value among these, one that it takes; one that asks for the default sets that.
    pub fn set(&self, tunables: &mut SockTunables, value: i64) {
        let value = match self.values {
            OptionValues::Numbers { least, .. } if value < least => self.value(&SockTunables::DEFAULT),
            _ => value,
        };
        match (self.field)(tunables) {
            Field::Accept(accept) => *accept = Accept::ALL[value as usize],
            Field::Switch(is_on) => *is_on = value != 0,
            Field::Port(port) => *port = value as u16,
            Field::Number(number) => *number = value as u32,
            Field::Seconds(time) => *time = Duration::from_secs(value as u64),
            Field::Milliseconds(time) => *time = Duration::from_millis(value as u64),
            Field::Tos(tos) => *tos = u8::try_from(value).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use alloc::format;
    use alloc::string::String;

    use super::*;

    const BEGIN: &str = "<!-- generated: tunables of the tcp LND -->\n";
    const END: &str = "<!-- end -->";

    #[test]
    fn the_documentation_has_the_table_of_tunables() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tcp-lnd.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (_, rest) = text.split_once(BEGIN).unwrap();
        let (found, _) = rest.split_once(END).unwrap();
        let mut table = String::from("| parameter | values | default | meaning |\n|---|---|---|---|\n");
        for row in SOCK_TUNABLES {
            let SockTunable { name, values, meaning, .. } = row;
            let unit = row.unit.replace('|', r"\|");
            table += &format!("| `{name}={unit}` | {values} | {} | {meaning} |\n", row.default_text());
        }
        assert_eq!(found, table, "{path}: this is the table between {BEGIN} and {END}");
    }

    #[test]
    fn fields_hold_the_values_of_their_tunables() {
        for row in SOCK_TUNABLES {
            let least = match row.values {
                OptionValues::Numbers { least, .. } => least,
                OptionValues::Words(_) => 0,
            };
            for value in [least, row.values.greatest()] {
                let mut tunables = SockTunables::DEFAULT;
                row.set(&mut tunables, value);
                assert_eq!(row.value(&tunables), value, "{}", row.name);
            }
        }
    }

    #[test]
    fn options_that_are_asked_for_nothing_have_their_defaults() {
        for option in NiOption::ALL {
            let Some(row) = SockTunable::of_name(option.name()) else { continue };
            let mut tunables = SockTunables::DEFAULT;
            row.set(&mut tunables, -1);
            assert_eq!(tunables, SockTunables::DEFAULT, "{option}");
            assert!(option.is_of_net() || row.default_text() == option.row().default);
        }
    }
}
