//! Reads changes from documents.
//!
//! Invariants: reading goes on behind a mistake, so that all are reported at once; each key is known, known
//! to be passed over because it only tells, known and not supported, or an error.

mod fault;
mod ip2nets;
mod net;
mod older;
mod peer;
mod ping;
mod route;
mod show;
mod steering;
mod udsp;
mod values;
use std::collections::{HashMap, HashSet};
use std::fmt::Display;

use lnet_model::Errno;
use lnet_model::pattern::{integer, shown};
use lnet_model::request::{Change, PingPurpose};
use lnet_wire::{Global, Nid};
use values::suggestion;

use super::tree::{self, MapEntry, Marked, Position, Value};
use super::{Document, DocumentError, Instruction, Item, Mode};

/// Most mistakes that are reported.
const ERRORS_MAX: usize = 100;

/// Blocks that are read.
const BLOCKS: [&str; 17] = [
    "net",
    IP2NETS,
    "route",
    "routing",
    "buffers",
    "peer",
    "peers",
    "global",
    "numa",
    "udsp",
    "selection",
    "statistics",
    "fault",
    "steering",
    "ping",
    "discover",
    DAEMON,
];

/// Block of options that a daemon has at its start (`document::daemon_options`).
const DAEMON: &str = "daemon";

/// Block of nets that are chosen by the addresses of the host.
const IP2NETS: &str = "ip2nets";

/// Key of older exports, with 0 where interfaces are not bonded.
const BONDING: &str = "tcp bonding";
/// Keys of nets, local NIs, peers and peer NIs that only tell, those of older exports among them.
const TELLING: [&str; 10] = [
    "udsp info",
    "statistics",
    "sent_stats",
    "received_stats",
    "dropped_stats",
    "health stats",
    "fsm state",
    "status",
    "ni_ref",
    BONDING,
];

/// What the document says, if nothing is wrong with it.
///
/// # Errors
/// Everything that is wrong, in the order in which it stands, up to a hundred mistakes.
pub fn parse(text: &str, mode: Mode) -> Result<Document, Vec<DocumentError>> {
    let root = match tree::load(text) {
        Ok(Some(root)) => root,
        Ok(None) => return Ok(Document { is_blank: true, ..Document::default() }),
        Err(error) => return Err(vec![error]),
    };
    let mut reader = Reader {
        mode,
        items: Vec::new(),
        errors: Vec::new(),
        seq_no: None,
        said: HashMap::new(),
        gateways: HashSet::new(),
        route_count: 0,
    };
    reader.document(&root);
    let Reader { items, mut errors, .. } = reader;
    if errors.is_empty() {
        return Ok(Document { items, is_blank: is_empty(&root) });
    }
    errors.sort_by_key(|error| error.position);
    Err(errors)
}

/// What has been read.
struct Reader {
    mode: Mode,
    items: Vec<Item>,
    errors: Vec<DocumentError>,
    /// Number of the item that is being read.
    seq_no: Option<u64>,
    /// Values of what has one value alone, by its name, and where the document says them.
    said: HashMap<String, (String, Position)>,
    /// Gateways of the document's routes.
    gateways: HashSet<Nid>,
    /// Routes that were read.
    route_count: usize,
}

impl Reader {
    fn document(&mut self, root: &Marked) {
        let Value::Map(blocks) = &root.value else {
            let message =
                format!("{} as a document: a map with keys such as net: is expected", root.describe());
            return self.error(root.position, message);
        };
        self.find_gateways(blocks);
        for block in blocks {
            self.seq_no = None;
            self.block(block);
        }
    }

    fn block(&mut self, block: &MapEntry) {
        let MapEntry { position, key, value } = block;
        let executes = matches!(key.as_str(), "ping" | "discover");
        let is_known = BLOCKS.contains(&key.as_str());
        if is_known && executes != (self.mode == Mode::Execute) {
            return;
        }
        if self.mode == Mode::Show && is_known {
            return self.shown(block);
        }
        match key.as_str() {
            "net" => self.each(value, "net", Self::net),
            "route" => self.each(value, "route", Self::route),
            "routing" => self.routing_block(value),
            "buffers" => self.buffers_block(value),
            "peer" => self.each(value, "peer", Self::peer),
            "peers" => self.each(value, "peers", Self::older_peer),
            "selection" => self.each(value, "selection", Self::selection),
            "global" => self.global_block(value),
            "numa" => self.numa_block(value),
            "udsp" => self.each(value, "udsp", Self::udsp),
            // Statistics only tell, and daemons have their options at their start.
            "statistics" | DAEMON => {}
            "fault" => self.fault_block(value),
            "steering" => self.each(value, "steering", Self::steering),
            "ping" => self.ping_block(value, PingPurpose::Ping),
            "discover" => self.ping_block(value, PingPurpose::Discover),
            // Rules by address name nothing that could be deleted or shown.
            IP2NETS if self.mode != Mode::Add => {}
            IP2NETS => self.ip2nets_block(*position, value),
            other => {
                let message =
                    format!("invalid key '{}'{}", shown(other), suggestion(other, BLOCKS.into_iter()));
                self.error(*position, message);
            }
        }
    }

    /// Whether something that has one value alone is said for the first time. Another value than before is
    /// refused with both positions.
    fn is_new(&mut self, position: Position, what: impl Display, value: impl Display) -> bool {
        let (what, value) = (what.to_string(), value.to_string());
        match self.said.get(&what) {
            None => {
                self.said.insert(what, (value, position));
                true
            }
            Some((known, location)) => {
                if *known != value {
                    let message =
                        format!("{what} is to be {value} here and {known} in {location}: one is expected");
                    self.error(position, message);
                }
                false
            }
        }
    }

    fn global_block(&mut self, block: &Marked) {
        // What LNet's tools reset when a document with globals is deleted; others stay.
        let reset = [Global::MaxInterfaces, Global::NumaRange, Global::Discovery, Global::DropAsymRoute];
        for MapEntry { position, key, value } in self.map(block, "global").unwrap_or_default() {
            if key == "use_tcp_bonding" {
                self.bonding(value, key);
                continue;
            }
            let Ok(global) = key.parse::<Global>() else {
                let known = Global::ALL.map(Global::name).into_iter();
                let message = format!("invalid key '{}' in 'global'{}", shown(key), suggestion(key, known));
                self.error(*position, message);
                continue;
            };
            let value = match self.mode {
                Mode::Delete => reset.contains(&global).then(|| global.default_value()),
                _ => self.global_value(global, key, value).filter(|_| global.is_settable()),
            };
            if let Some(value) = value {
                self.set_global(*position, "global", global, value);
            }
        }
    }

    /// Sets a tunable, unless the document has said another value of it.
    fn set_global(&mut self, position: Position, entity: &'static str, global: Global, value: u32) {
        if self.is_new(position, global, value) {
            self.change(position, entity, Change::SetGlobal { global, value });
        }
    }

    /// Bonding of interfaces, which is off here.
    fn bonding(&mut self, value: &Marked, key: &str) {
        let is_off = value.is_null() || matches!(&value.value, Value::Scalar { text, .. } if text == "0");
        if !is_off {
            self.unsupported(
                value.position,
                format!("'{key}': bonding of interfaces is not supported by this version"),
            );
        }
    }

    fn global_value(&mut self, global: Global, key: &str, value: &Marked) -> Option<u32> {
        let (low, high) = global.range();
        if value.is_null() {
            // Other keys with nothing behind them are not given. LNet refuses these, in these words.
            self.error(value.position, format!("no value specified for key '{key}'"));
            return None;
        }
        let (text, said) = match &value.value {
            Value::Scalar { text, .. } => (text.as_str(), shown(text)),
            _ => ("", value.describe()),
        };
        let number = integer(text).and_then(|number| u32::try_from(number).ok());
        // A value that has a word is not taken by its number: LNet's tools have another meaning for that.
        let is_number = |number: &u32| (low..=high).contains(number) && global.word(*number).is_none();
        let found = number.filter(is_number).or_else(|| global.value_of_word(text));
        if found.is_none() {
            let expected = match global.word(high) {
                Some(word) => format!("{low} to {} or {word}", high - 1),
                None => format!("{low} to {high}"),
            };
            let message = format!("invalid value '{said}' for key '{key}': {expected} is expected");
            self.error(value.position, message);
        }
        found
    }

    fn numa_block(&mut self, block: &Marked) {
        let Some(entries) = self.map(block, "numa") else { return };
        self.known_keys(entries, "numa", &["range"]);
        let range = entries.iter().find(|entry| entry.key == "range" && !entry.value.is_null());
        let Some(range) = range else { return };
        let global = Global::NumaRange;
        let value = match self.mode {
            Mode::Delete => Some(0),
            _ => self.global_value(global, "range", &range.value),
        };
        if let Some(value) = value {
            self.set_global(range.position, "numa", global, value);
        }
    }

    fn change(&mut self, position: Position, entity: &'static str, change: Change) {
        self.push(position, entity, Instruction::Change(Box::new(change)));
    }

    fn push(&mut self, position: Position, entity: &'static str, action: Instruction) {
        self.items.push(Item { position, entity, seq_no: self.seq_no, action });
    }

    fn error(&mut self, position: Position, message: String) {
        self.error_of(position, Errno::INVAL, message);
    }

    fn unsupported(&mut self, position: Position, message: String) {
        self.error_of(position, Errno::OPNOTSUPP, message);
    }

    fn error_of(&mut self, position: Position, errno: Errno, message: String) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(DocumentError { position, message, errno, seq_no: self.seq_no });
        }
    }
}

/// Whether nothing is asked for: nothing stands there, or a list of nothing.
fn is_empty(value: &Marked) -> bool {
    match &value.value {
        Value::Scalar { .. } => value.is_blank(),
        Value::Sequence(items) => items.iter().all(is_empty),
        Value::Map(entries) => entries.is_empty(),
    }
}
