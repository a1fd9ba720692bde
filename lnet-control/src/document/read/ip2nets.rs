//! The block `ip2nets`, and the older nets with a pattern: NIs by the addresses of the host.

use lnet_model::Errno;
use lnet_model::choice::{ChoiceForm, NetChoice};
use lnet_model::ni::NiOptions;
use lnet_model::pattern::{self, InterfaceName, UdspAddress};
use lnet_wire::Net;

use super::Reader;
use super::values::get;
use crate::document::Instruction;
use crate::document::tree::{MapEntry, Marked, Position};

/// Keys of an item.
const KEYS: [&str; 7] = ["net-spec", "interfaces", "ip-range", "tunables", "lnd tunables", "CPT", "seq_no"];

impl Reader {
    /// The items of a block: of each net the first that fits.
    pub(super) fn ip2nets_block(&mut self, list: Position, block: &Marked) {
        self.each(block, "ip2nets", |reader, position, entries| reader.choice_item(list, position, entries));
    }

    fn choice_item(&mut self, list: Position, position: Position, entries: &[MapEntry]) {
        self.known_keys(entries, "ip2nets", &KEYS);
        let errors = self.errors.len();
        let Some(value) = self.needed(position, entries, "net-spec", "an item of 'ip2nets'") else { return };
        let parse = |text: &str| Ok(text.parse::<Net>()?);
        let Some(net) = self.pattern(value, "net-spec", "a net such as tcp or xdp1", parse) else { return };
        if net == Net::LO || net.is_any() {
            self.error(value.position, format!("'net-spec': net {net} is always as it is"));
        }
        let interfaces = get(entries, "interfaces").map(|value| self.interfaces(value)).unwrap_or_default();
        let ranges = get(entries, "ip-range").map(|value| self.ranges(value, "ip-range")).unwrap_or_default();
        let options = self.options(entries, net, NiOptions::default());
        let cpts = self.cpts(entries).unwrap_or_default();
        let interfaces = self.each_once(interfaces);
        if self.errors.len() == errors {
            let choice = Box::new(NetChoice { net, interfaces, ranges, options, cpts });
            self.push(position, "ip2nets", Instruction::Choose { form: ChoiceForm::Item, list, choice });
        }
    }

    /// An older net with a pattern: NIs of all interfaces whose addresses fit, or of the one that is named.
    pub(super) fn older_choice(&mut self, position: Position, entries: &[MapEntry], net: Net) {
        let errors = self.errors.len();
        let ranges = get(entries, "pattern").map(|value| self.ranges(value, "pattern")).unwrap_or_default();
        let interface = get(entries, "intf").and_then(|value| self.interface(value));
        let options = self.options(entries, net, NiOptions::default());
        let cpts = self.cpts(entries).unwrap_or_default();
        if self.errors.len() == errors {
            let interfaces = interface.map(|(_, interface)| interface).into_iter().collect();
            let choice = Box::new(NetChoice { net, interfaces, ranges, options, cpts });
            let list = position;
            self.push(position, "net", Instruction::Choose { form: ChoiceForm::Rule, list, choice });
        }
    }

    /// The interfaces, each of which may stand once.
    fn each_once(&mut self, interfaces: Vec<(Position, InterfaceName)>) -> Vec<InterfaceName> {
        let mut known: Vec<InterfaceName> = Vec::new();
        for (position, interface) in interfaces {
            if known.iter().any(|other| other.name == interface.name) {
                let message = format!("interface {:?} again: each is expected once", interface.name);
                self.error_of(position, Errno::EXIST, message);
            }
            known.push(interface);
        }
        known
    }

    /// The ranges of a map, a list, or a single one.
    fn ranges(&mut self, value: &Marked, key: &str) -> Vec<UdspAddress> {
        let values = if value.is_text() { vec![value] } else { self.members(value, key) };
        let expected = "addresses such as 10.0.[1-9].*";
        values
            .into_iter()
            .filter_map(|value| self.pattern(value, key, expected, pattern::addresses))
            .collect()
    }
}
