//! LNDs and the options of NIs, as data: what each LND is, and what an NI can be asked to have. Documents,
//! the command line with its help, what is shown, the checks and the table in `docs/control.md` come from
//! here. What an LND does is in a crate of its own.
//!
//! Invariant: the row of an option stands where its value has its place in
//! [`NiOptions`](crate::ni::NiOptions).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use lnet_wire::steer::QUEUES_MAX;
use lnet_wire::{Net, NetType, named};
use thiserror::Error;

named! {
    /// An option of a local NI, by its key in documents. The options before `conns_per_peer` are of its net,
    /// and fixed by the first NI there; the others are of its LND.
    NiOption {
        /// Seconds without a sign of life after which a peer counts as dead.
        PeerTimeout => "peer_timeout",
        /// Messages in flight to one peer NI.
        PeerCredits => "peer_credits",
        /// Router buffers for one peer NI.
        PeerBufferCredits => "peer_buffer_credits",
        /// Messages in flight by the NI.
        Credits => "credits",
        /// Connections of each kind to a peer.
        ConnsPerPeer => "conns_per_peer",
        /// IP type of service.
        Tos => "tos",
        /// Which LND; the others of this enum are its.
        Lnd => "lnd",
        /// How frames reach the shards.
        Mode => "mode",
        /// UDP port.
        Port => "port",
        /// Receive queues of the interface.
        Queues => "queues",
        /// Whether payloads have checksums.
        Checksum => "checksum",
        /// Whether rings have zero copy.
        ZeroCopy => "zero_copy",
        /// Carrier of long messages.
        Carrier => "carrier",
    }
}

words! {
    /// The LND that drives the NIs of a net.
    Lnd {
        /// The protocol of LNet's socklnd.
        Tcp = "tcp",
        /// Our frames, over `AF_XDP` rings or UDP sockets.
        Xdp = "xdp",
    }
}

words! {
    /// How the frames of an xdp NI reach the shards.
    #[derive(Default)]
    XdpMode {
        /// The first of the others that works: it is asked for, and never had.
        #[default]
        Auto = "auto",
        /// Rings, with the XDP program in the driver.
        Native = "native",
        /// Rings, with the XDP program in the kernel's network stack.
        Generic = "generic",
        /// UDP sockets.
        Socket = "socket",
    }
}

words! {
    /// The value of an option that is on or off.
    #[derive(Default)]
    Switch {
        /// On.
        #[default]
        On = "on",
        /// Off.
        Off = "off",
    }
}

words! {
    /// Whether the device reads and writes the frames of rings itself.
    #[derive(Default)]
    ZeroCopy {
        /// Where the device can.
        #[default]
        Auto = "auto",
        /// Always: an NI that cannot have it is refused.
        On = "on",
        /// Never: the kernel copies.
        Off = "off",
    }
}

words! {
    /// Carrier of the long messages of an NI over rings.
    #[derive(Default)]
    Carrier {
        /// The one that suits the device and the peer.
        #[default]
        Auto = "auto",
        /// The rings.
        Rings = "rings",
        /// A UDP socket beside the rings.
        Socket = "socket",
    }
}

/// The values of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionValues {
    /// Numbers. What is less than `least` is read, down to `low`, and asks for the default.
    Numbers {
        /// The least that is read.
        low: i64,
        /// The least that means itself.
        least: i64,
        /// The greatest.
        high: i64,
    },
    /// Words; the value is the position of one.
    Words(&'static [&'static str]),
}

/// Description of an option.
#[derive(Clone, Copy, Debug)]
pub struct OptionRow {
    /// The option.
    pub option: NiOption,
    /// Its values.
    pub values: OptionValues,
    /// Unit of its values, as the help of `net add` names it.
    pub unit: &'static str,
    /// Meaning of the option, for the help of `net add` and the documentation.
    pub meaning: &'static str,
    /// Value of an NI that is not asked to have one; the rows of the LNDs have that of an option of nets.
    pub default: &'static str,
    /// The value by which the choice is left to the node, if one is.
    pub choice: Option<i64>,
    /// Its short form on the command line.
    pub letter: Option<char>,
    /// Whether the command line takes any number below `low` for the default as well.
    pub is_lenient: bool,
    /// Whether it can be changed while an NI is there.
    pub is_changeable: bool,
}

/// Something that an LND tells of an open NI besides its options.
#[derive(Clone, Copy, Debug)]
pub struct FactRow {
    /// Its key in documents.
    pub key: &'static str,
    /// Part of documents that shows it.
    pub shown: FactShown,
}

/// Part of a document that shows a fact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FactShown {
    /// Beside the NI, and without `-v` as well.
    Brief,
    /// Beside the NI, with `-v`.
    Verbose,
    /// Among the tunables of the LND.
    Tunable,
}

impl FactRow {
    const fn new(key: &'static str, shown: FactShown) -> Self {
        Self { key, shown }
    }
}

/// The value of a [`FactRow`] of an open NI.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(untagged))]
pub enum NiFact {
    /// A number.
    Number(u64),
    /// Words.
    Text(String),
    /// Counts, numbered from 0 on.
    Counts(Vec<u64>),
}

/// Description of an LND.
#[derive(Debug)]
pub struct LndRow {
    /// Its name.
    pub name: &'static str,
    /// How documents and the command line ask for it; an NI of another one is told by its interface.
    pub asked: Option<Lnd>,
    /// The types of the nets that it can drive.
    pub net_types: &'static [NetType],
    /// The type of the nets that it drives where no LND is asked for.
    pub default_of: Option<NetType>,
    /// The options of nets of its own type that do not say otherwise, in their order.
    pub net_defaults: [u32; 4],
    /// The options that its NIs have besides those of the net.
    pub options: &'static [NiOption],
    /// Facts that it tells of an open NI.
    pub facts: &'static [FactRow],
    /// Whether it has proven from which peer NI a message comes.
    pub proves_sources: bool,
    /// Whether a node reaches its own NIs by it.
    pub reaches_itself: bool,
    /// Whether its peers bear a GET for a portal where they have posted nothing.
    pub takes_any_get: bool,
    /// Whether it begins to send a message of which only a part is there.
    pub takes_parts: bool,
    /// Whether a sender names the NID that it means, so that NIs of other nets may have the same address.
    pub names_nids: bool,
    /// Whether its NIs have frames that the node captures itself; else the kernel has their packets.
    pub has_frames: bool,
}

const NUMBER: OptionRow = OptionRow {
    option: NiOption::PeerTimeout,
    values: OptionValues::Numbers { low: -1, least: 1, high: i32::MAX as i64 },
    unit: "COUNT",
    meaning: "",
    default: "",
    choice: None,
    letter: None,
    is_lenient: true,
    is_changeable: false,
};

/// The options, in their order.
pub const OPTIONS: [OptionRow; NiOption::ALL.len()] = [
    OptionRow {
        option: NiOption::PeerTimeout,
        values: OptionValues::Numbers { low: -1, least: 0, high: i32::MAX as i64 },
        unit: "SECONDS",
        meaning: "Seconds of silence after which a peer counts as dead; 0 is never",
        letter: Some('t'),
        ..NUMBER
    },
    OptionRow {
        option: NiOption::PeerCredits,
        meaning: "Messages in flight to one peer, at most credits",
        letter: Some('c'),
        ..NUMBER
    },
    OptionRow {
        option: NiOption::PeerBufferCredits,
        meaning: "Router buffers for one peer; 0 is as many as peer_credits",
        letter: Some('b'),
        ..NUMBER
    },
    OptionRow { option: NiOption::Credits, meaning: "Messages in flight", letter: Some('r'), ..NUMBER },
    OptionRow {
        option: NiOption::ConnsPerPeer,
        values: OptionValues::Numbers { low: -1, least: 0, high: 127 },
        meaning: "Connections of each kind to a peer; 0 is by the speed of the link",
        default: "0",
        choice: Some(0),
        letter: Some('m'),
        is_changeable: true,
        ..NUMBER
    },
    OptionRow {
        option: NiOption::Tos,
        values: OptionValues::Numbers { low: -1, least: 0, high: 255 },
        unit: "NUMBER",
        meaning: "IP type of service; -1 is the system's",
        default: "-1",
        is_lenient: false,
        ..NUMBER
    },
    OptionRow {
        option: NiOption::Lnd,
        values: OptionValues::Words(Lnd::NAMES),
        unit: "LND",
        meaning: "What drives the net; xdp also serves nets of type tcp",
        default: "that of the net's type",
        is_lenient: false,
        ..NUMBER
    },
    OptionRow {
        option: NiOption::Mode,
        values: OptionValues::Words(XdpMode::NAMES),
        unit: "MODE",
        meaning: "How the frames of an xdp NI reach the shards",
        default: "the node's",
        is_lenient: false,
        ..NUMBER
    },
    OptionRow {
        option: NiOption::Port,
        values: OptionValues::numbers(1, 65_535),
        unit: "PORT",
        meaning: "UDP port of an xdp NI and its peers",
        default: "the node's",
        is_lenient: false,
        ..NUMBER
    },
    OptionRow {
        option: NiOption::Queues,
        values: OptionValues::numbers(0, QUEUES_MAX as i64),
        meaning: "Receive queues that the interface of an xdp NI must have; 0 takes it as it is",
        default: "0",
        is_lenient: false,
        ..NUMBER
    },
    OptionRow {
        option: NiOption::Checksum,
        values: OptionValues::Words(Switch::NAMES),
        unit: "SWITCH",
        meaning: "Checksums of payloads over xdp; off only where both ends say so",
        default: "on",
        is_lenient: false,
        ..NUMBER
    },
    OptionRow {
        option: NiOption::ZeroCopy,
        values: OptionValues::Words(ZeroCopy::NAMES),
        unit: "CHOICE",
        meaning: "Zero copy of an xdp NI over rings; auto is where the driver has it and frames fit",
        default: "auto",
        is_lenient: false,
        ..NUMBER
    },
    OptionRow {
        option: NiOption::Carrier,
        values: OptionValues::Words(Carrier::NAMES),
        unit: "CARRIER",
        meaning: "What takes long messages of an xdp NI over rings; auto is what suits the device",
        default: "auto",
        is_lenient: false,
        is_changeable: true,
        ..NUMBER
    },
];

/// `lo`: what a node sends to itself. What is true of the whole node is told here, since every node has it.
pub const LO: LndRow = LndRow {
    name: "lo",
    asked: None,
    net_types: &[NetType::LO],
    default_of: Some(NetType::LO),
    net_defaults: [0; 4],
    options: &[],
    facts: &[FactRow::new("no io_uring", FactShown::Brief), FactRow::new("reactor", FactShown::Tunable)],
    proves_sources: true,
    reaches_itself: true,
    takes_any_get: true,
    takes_parts: false,
    names_nids: true,
    has_frames: false,
};

/// `in-process`: between nodes of one process, on interfaces such as `in-process:a`. It is for tests: what
/// would harm a kernel node is refused.
pub const IN_PROCESS: LndRow = LndRow {
    name: "in-process",
    asked: None,
    default_of: None,
    options: &[],
    facts: &[],
    reaches_itself: true,
    takes_any_get: false,
    takes_parts: false,
    names_nids: true,
    has_frames: false,
    ..XDP
};

/// The options of nets of kernel nodes (LNet `socklnd_modparams.c`).
pub const KERNEL_NET: [u32; 4] = [180, 8, 0, 256];

/// `tcp`: connections as kernel nodes have them.
pub const TCP: LndRow = LndRow {
    name: "tcp",
    asked: Some(Lnd::Tcp),
    net_types: &[NetType::TCP],
    default_of: Some(NetType::TCP),
    net_defaults: KERNEL_NET,
    options: &[NiOption::ConnsPerPeer, NiOption::Tos],
    facts: &[FactRow::new("accept port", FactShown::Tunable)],
    proves_sources: false,
    reaches_itself: true,
    takes_any_get: false,
    takes_parts: false,
    names_nids: true,
    has_frames: false,
};

/// The key of the fact that says what takes long messages of an NI, and why.
pub const ACTIVE_CARRIER: &str = "active carrier";

/// `xdp`: frames over rings or UDP sockets. A peer's certificates prove its NIDs; a frame to an own NID does
/// not come back from the wire; no kernel node speaks this protocol.
pub const XDP: LndRow = LndRow {
    name: "xdp",
    asked: Some(Lnd::Xdp),
    net_types: &[NetType::XDP, NetType::TCP],
    default_of: Some(NetType::XDP),
    net_defaults: [180, 128, 0, 1024],
    options: &[
        NiOption::Mode,
        NiOption::Port,
        NiOption::Queues,
        NiOption::Checksum,
        NiOption::ZeroCopy,
        NiOption::Carrier,
    ],
    facts: &[
        FactRow::new("no rings", FactShown::Brief),
        FactRow::new("alarm", FactShown::Brief),
        FactRow::new("active mode", FactShown::Tunable),
        FactRow::new("reason", FactShown::Tunable),
        FactRow::new("active queues", FactShown::Tunable),
        FactRow::new("mtu", FactShown::Tunable),
        FactRow::new("active zero copy", FactShown::Tunable),
        FactRow::new(ACTIVE_CARRIER, FactShown::Tunable),
        FactRow::new("idle queues", FactShown::Brief),
        FactRow::new("frames by queue", FactShown::Verbose),
    ],
    proves_sources: true,
    reaches_itself: false,
    takes_any_get: true,
    takes_parts: true,
    names_nids: false,
    has_frames: true,
};

/// The LNDs.
pub const LNDS: [LndRow; 4] = [LO, IN_PROCESS, TCP, XDP];

/// Names of the types of the nets that NIs on network interfaces can be on.
#[must_use]
pub fn nets_of_lnds() -> Vec<&'static str> {
    let asked = LNDS.iter().filter(|row| row.asked.is_some());
    asked.filter_map(|row| row.default_of?.name()).collect()
}

/// The fabric that an NI on this interface is on, if its LND is `in-process`.
#[must_use]
pub fn fabric_of(interface: &str) -> Option<&str> {
    interface.strip_prefix("in-process:")
}

impl NiOption {
    /// The description of this option.
    #[must_use]
    pub const fn row(self) -> &'static OptionRow {
        &OPTIONS[self as usize]
    }

    /// Whether it is one of a net.
    #[must_use]
    pub const fn is_of_net(self) -> bool {
        (self as u8) < Self::ConnsPerPeer as u8
    }

    /// The LND whose NIs alone have it; none of an option of the net, and of `lnd`.
    #[must_use]
    pub fn owner(self) -> Option<&'static LndRow> {
        LNDS.iter().find(|lnd| lnd.options.contains(&self))
    }

    /// The name of that LND; empty where there is none.
    #[must_use]
    pub fn owner_name(self) -> &'static str {
        self.owner().map_or("", |owner| owner.name)
    }

    /// The option of this key.
    #[must_use]
    pub fn of_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|option| option.name() == key)
    }
}

/// Why an NI cannot have the options that it is asked to have.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum OptionError {
    /// The LND does not drive the net.
    #[error("net {net}: the LND {lnd} serves nets of type {types}")]
    Net {
        /// The net.
        net: Net,
        /// The LND.
        lnd: &'static str,
        /// The types of its nets.
        types: String,
    },
    /// An NI between nodes of one process has no option of an interface.
    #[error("{option} {value} for {interface}: none is expected there, it is for NIs on network interfaces")]
    InProcess {
        /// The option.
        option: NiOption,
        /// The value that was asked for.
        value: String,
        /// The NI's interface.
        interface: String,
    },
    /// The option is of another LND.
    #[error("net {net}: {option} is of the LND {}, and its LND is another one", option.owner_name())]
    OtherLnd {
        /// The net.
        net: Net,
        /// The option.
        option: NiOption,
    },
    /// The option has no such value.
    #[error("{option} {value}: {} is expected", option.row().values.expected())]
    Value {
        /// The option.
        option: NiOption,
        /// The value that was asked for.
        value: i64,
    },
}

impl FromStr for NiOption {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::of_key(text).ok_or("an option of an NI is expected")
    }
}

impl OptionValues {
    /// Numbers that all mean themselves.
    #[must_use]
    pub const fn numbers(least: i64, high: i64) -> Self {
        Self::Numbers { low: least, least, high }
    }

    /// The greatest.
    #[must_use]
    pub const fn greatest(&self) -> i64 {
        match self {
            Self::Numbers { high, .. } => *high,
            Self::Words(words) => words.len() as i64 - 1,
        }
    }

    /// The value of a number that was read: none below the least that means itself.
    #[must_use]
    pub fn of_number(&self, number: i64) -> Option<i64> {
        match self {
            Self::Numbers { least, .. } => (number >= *least).then_some(number),
            Self::Words(_) => None,
        }
    }

    /// Whether this is one of them.
    #[must_use]
    pub fn takes(&self, value: i64) -> bool {
        match self {
            Self::Numbers { low, high, .. } => (*low..=*high).contains(&value),
            Self::Words(_) => self.word(value).is_some(),
        }
    }

    /// The value as a word, where values are words.
    #[must_use]
    pub fn word(&self, value: i64) -> Option<&'static str> {
        match self {
            Self::Numbers { .. } => None,
            Self::Words(words) => words.get(usize::try_from(value).ok()?).copied(),
        }
    }

    /// The value of a word.
    #[must_use]
    pub fn value_of(&self, word: &str) -> Option<i64> {
        match self {
            Self::Numbers { .. } => None,
            Self::Words(words) => words.iter().position(|known| *known == word).map(|at| at as i64),
        }
    }

    /// The value that a text says, a number or a word.
    #[must_use]
    pub fn read(&self, text: &str) -> Option<i64> {
        match self {
            Self::Numbers { .. } => text.parse().ok().filter(|value| self.takes(*value)),
            Self::Words(_) => self.value_of(text),
        }
    }

    /// The value as people write it.
    #[must_use]
    pub fn text(&self, value: i64) -> String {
        self.word(value).map_or_else(|| value.to_string(), ToString::to_string)
    }

    /// The values, in words.
    #[must_use]
    pub fn expected(&self) -> String {
        match self {
            Self::Numbers { .. } => format!("a number from {self}"),
            Self::Words(_) => format!("one of {self}"),
        }
    }
}

impl fmt::Display for OptionValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numbers { low, high, .. } => write!(f, "{low} to {high}"),
            Self::Words(words) => f.write_str(&words.join(", ")),
        }
    }
}

impl OptionRow {
    /// The value of an NI that is not asked to have one; none where that follows from the net or the node.
    #[must_use]
    pub fn default_value(&self) -> Option<i64> {
        self.values.read(self.default)
    }
}

impl LndRow {
    /// The LND of nets of this type that do not ask for another one.
    #[must_use]
    pub fn of_net_type(net_type: NetType) -> Option<&'static Self> {
        LNDS.iter().find(|row| row.default_of == Some(net_type))
    }

    /// Whether it drives nets of this type.
    #[must_use]
    pub fn drives(&self, net: Net) -> bool {
        self.net_types.contains(&net.net_type())
    }
}

// Each row stands in its option's place.
const _: () = {
    let mut at = 0;
    while at < OPTIONS.len() {
        assert!(OPTIONS[at].option as usize == at);
        at += 1;
    }
};

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    const BEGIN: &str = "<!-- generated: options of NIs -->\n";
    const END: &str = "<!-- end -->";

    /// The table of the documentation, as the rows say it.
    fn table() -> String {
        let mut text = String::from("| option | of | values | default | meaning |\n|---|---|---|---|---|\n");
        for row in &OPTIONS {
            let of = match row.option.owner() {
                Some(lnd) => lnd.name,
                None if row.option.is_of_net() => "the net",
                None => "the NI",
            };
            let values = row.values;
            let of_net = |lnd: LndRow| format!("{} {}", lnd.name, lnd.net_defaults[row.option as usize]);
            let default = match row.option.is_of_net() {
                true => [TCP, XDP].map(of_net).join(", "),
                false => row.default.to_string(),
            };
            writeln!(text, "| `{}` | {of} | {values} | {default} | {} |", row.option, row.meaning).unwrap();
        }
        text
    }

    #[test]
    fn the_documentation_has_the_table_of_options() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/control.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (_, rest) = text.split_once(BEGIN).unwrap();
        let (found, _) = rest.split_once(END).unwrap();
        assert_eq!(found, table(), "{path}: this is the table between {BEGIN} and {END}");
    }

    #[test]
    fn values_are_told_apart_from_what_asks_for_the_default() {
        assert_eq!(NiOption::Credits.row().values.of_number(0), None);
        assert_eq!(NiOption::PeerTimeout.row().values.of_number(0), Some(0));
        assert_eq!(NiOption::Tos.row().values.of_number(-1), None);
        assert!(NiOption::Port.row().values.takes(65_535) && !NiOption::Port.row().values.takes(0));
        assert_eq!(NiOption::Mode.row().values.value_of("socket"), Some(XdpMode::Socket as i64));
        assert_eq!(NiOption::Mode.row().values.text(1), "native");
        assert_eq!(NiOption::of_key("queues"), Some(NiOption::Queues));
    }
}
