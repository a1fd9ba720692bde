//! The block `net`.

use lnet_model::lnd::{FactShown, LNDS, NiOption, OptionError, OptionValues};
use lnet_model::ni::{NiName, NiOptions, NiSpec};
use lnet_model::pattern::{self, InterfaceName};
use lnet_model::request::Change;
use lnet_model::{Errno, Refusal};
use lnet_wire::{Net, Nid};

use super::Reader;
use super::values::get;
use crate::document::Mode;
use crate::document::tree::{MapEntry, Marked, Position, Value};

/// Keys that speak of NIs, in a net and in each of its local NIs.
const SHARED_KEYS: [&str; 5] = ["nid", "interfaces", "tunables", "lnd tunables", "CPT"];
/// Further keys of a net.
const NET_KEYS: [&str; 7] = ["net type", "net", "local NI(s)", "seq_no", "detail", "intf", "pattern"];
/// Keys of a local NI that only tell, besides those of every NI; older exports have them at the net.
const NI_KEYS: [&str; 3] = ["dev cpt", "numa distance", "numa distances"];
/// Tunable of every LND that only tells.
const TIMEOUT_KEY: &str = "timeout";
/// Tunables of LNDs that are not here.
const FOREIGN_TUNABLES: [&str; 12] = [
    "peercredits_hiw",
    "peer_credits_hiw",
    "map_on_demand",
    "concurrent_sends",
    "fmr_pool_size",
    "fmr_flush_trigger",
    "fmr_cache",
    "ntx",
    "use_fastreg_gaps",
    "auth_key",
    "traffic_class",
    "traffic_class_num",
];

/// Keys of what LNDs tell of open NIs: beside the NI, or among the tunables.
fn facts(is_tunable: bool) -> Vec<&'static str> {
    let rows = LNDS.iter().flat_map(|lnd| lnd.facts);
    rows.filter(|row| (row.shown == FactShown::Tunable) == is_tunable).map(|row| row.key).collect()
}

/// What a net's item says of NIs: one, or several alike.
struct Group {
    position: Position,
    interfaces: Vec<(Position, InterfaceName)>,
    nid: Option<Nid>,
    options: NiOptions,
    cpts: Vec<u32>,
}

impl Reader {
    pub(super) fn net(&mut self, position: Position, entries: &[MapEntry]) {
        let known = [SHARED_KEYS.as_slice(), &NET_KEYS, &NI_KEYS, &facts(false)].concat();
        self.known_or_telling(entries, "net", &known);
        let Some(value) = get(entries, "net type").or_else(|| get(entries, "net")) else {
            return self.error(position, "a net without 'net type'".to_owned());
        };
        let parse = |text: &str| Ok(text.parse::<Net>()?);
        let Some(net) = self.pattern(value, "net type", "a net such as tcp or xdp1", parse) else { return };
        let said = (net, value.position);
        if let Some(other) = get(entries, "net").filter(|_| get(entries, "net type").is_some())
            && let Some(net) = self.pattern(other, "net", "a net such as tcp or xdp1", parse)
        {
            self.on_net(other.position, "net", net, said);
        }
        if let Some(value) = get(entries, "intf").or_else(|| get(entries, "pattern")) {
            return self.older_net(position, value, entries, net);
        }
        let errors = self.errors.len();
        let groups = self.groups(entries, said);
        if self.errors.len() > errors {
            return;
        }
        if net == Net::LO {
            // Exports have it; it can neither be made nor deleted.
            if let Some(group) = groups.iter().find(|group| !group.interfaces.is_empty()) {
                let message = "net lo has no interfaces, and cannot be set".to_owned();
                self.error_of(group.position, Errno::NODEV, message);
            }
        } else if self.mode == Mode::Delete {
            self.delete(position, net, groups);
        } else {
            groups.into_iter().for_each(|group| self.add(net, group));
        }
    }

    /// A net of the Multi-Rail design: an interface, a pattern of addresses, or both.
    fn older_net(&mut self, position: Position, value: &Marked, entries: &[MapEntry], net: Net) {
        let beside = ["interfaces", "local NI(s)", "nid"];
        if let Some(key) = beside.iter().find(|key| get(entries, key).is_some()) {
            let message = format!("'intf' and 'pattern' stand beside '{key}': one of them is expected");
            return self.error(value.position, message);
        }
        if net == Net::LO {
            let message = "net lo has no interfaces, and cannot be set".to_owned();
            return self.error_of(value.position, Errno::NODEV, message);
        }
        if self.mode == Mode::Add {
            return self.older_choice(position, entries, net);
        }
        match get(entries, "intf").and_then(|value| self.interface(value)) {
            Some((position, InterfaceName { name: interface, .. })) => {
                self.change(position, "net", Change::DeleteNi(NiName::Interface { net, interface }));
            }
            None if get(entries, "intf").is_some() => {}
            None => self.change(position, "net", Change::DeleteNet(net)),
        }
    }

    fn add(&mut self, net: Net, group: Group) {
        let Group { position, interfaces, nid, options, cpts } = group;
        let spec = NiSpec { net, interface: None, nid, options, cpts };
        if interfaces.is_empty() {
            self.change(position, "net", Change::AddNi(spec.clone()));
        }
        for (position, InterfaceName { name, cpts }) in interfaces {
            let cpts = if cpts.is_empty() { spec.cpts.clone() } else { cpts };
            let spec = NiSpec { interface: Some(name), cpts, ..spec.clone() };
            self.change(position, "net", Change::AddNi(spec));
        }
    }

    /// Refuses a net that is another than the item has said before.
    fn on_net(&mut self, position: Position, key: &str, net: Net, said: (Net, Position)) {
        let (expected, location) = said;
        if net != expected {
            let message =
                format!("'{key}' is of net {net}, and {location} says {expected}: one net is expected");
            self.error(position, message);
        }
    }

    /// The NIs that a net's item speaks of.
    fn groups(&mut self, entries: &[MapEntry], said: (Net, Position)) -> Vec<Group> {
        let (net, _) = said;
        let shared = self.options(entries, net, NiOptions::default());
        let mut groups = Vec::new();
        if let Some(value) = get(entries, "interfaces").or_else(|| get(entries, "nid")) {
            groups.push(self.group(value.position, entries, shared, said));
        }
        if let Some(value) = get(entries, "local NI(s)") {
            let known = [SHARED_KEYS.as_slice(), &NI_KEYS, &facts(false)].concat();
            for (item, entries) in self.maps(value, "local NI(s)") {
                self.known_or_telling(entries, "local NI(s)", &known);
                let options = self.options(entries, net, shared);
                groups.push(self.group(item.position, entries, options, said));
            }
        }
        if groups.is_empty()
            && let Some(first) = entries.first()
        {
            groups.push(self.group(first.position, entries, shared, said));
        }
        groups
    }

    fn group(
        &mut self,
        position: Position,
        entries: &[MapEntry],
        options: NiOptions,
        said: (Net, Position),
    ) -> Group {
        let interfaces = get(entries, "interfaces").map(|value| self.interfaces(value)).unwrap_or_default();
        let nid = self.pattern_of(entries, "nid", "a nid", pattern::nid);
        if let (Some(nid), Some(value)) = (nid, get(entries, "nid")) {
            self.on_net(value.position, "nid", nid.net(), said);
        }
        if nid.is_some() && interfaces.len() > 1 {
            self.error(position, format!("{} interfaces beside one nid: one is expected", interfaces.len()));
        }
        Group { position, interfaces, nid, options, cpts: self.cpts(entries).unwrap_or_default() }
    }

    /// A map of interfaces, or the older list of them.
    pub(super) fn interfaces(&mut self, value: &Marked) -> Vec<(Position, InterfaceName)> {
        match &value.value {
            Value::Map(entries) => entries.iter().filter_map(|entry| self.interface(&entry.value)).collect(),
            Value::Sequence(items) => items.iter().filter_map(|item| self.older_interface(item)).collect(),
            _ => {
                self.wrong(value, "interfaces", "a map such as 0: eth0");
                Vec::new()
            }
        }
    }

    pub(super) fn interface(&mut self, value: &Marked) -> Option<(Position, InterfaceName)> {
        let expected = "the name of an interface, with CPTs in brackets if it has any";
        let one = |text: &str| match <[InterfaceName; 1]>::try_from(pattern::interfaces(text)?) {
            Ok([interface]) => Ok((value.position, interface)),
            Err(_) => Err(Refusal::new(Errno::INVAL, format!("{text:?}: one interface is expected"))),
        };
        self.pattern(value, "interfaces", expected, one)
    }

    /// An interface whose CPTs stand beside it.
    fn older_interface(&mut self, item: &Marked) -> Option<(Position, InterfaceName)> {
        let Value::Map(entries) = &item.value else { return self.interface(item) };
        self.known_keys(entries, "interfaces", &["intf", "CPT"]);
        let name = self.needed(item.position, entries, "intf", "an interface")?;
        let beside = self.cpts(entries);
        let (position, InterfaceName { name, cpts }) = self.interface(name)?;
        if let Some(beside) = beside.as_ref().filter(|beside| !cpts.is_empty() && **beside != cpts) {
            let (own, beside) = (pattern::cpts_text(&cpts), pattern::cpts_text(beside));
            let message =
                format!("'intf' has the CPTs {own}, and 'CPT' beside it {beside}: one list is expected");
            self.error(position, message);
        }
        Some((position, InterfaceName { name, cpts: beside.unwrap_or(cpts) }))
    }

    /// A text such as `[0-1]`, or a list of numbers and ranges.
    pub(super) fn cpts(&mut self, entries: &[MapEntry]) -> Option<Vec<u32>> {
        let (value, expected) = (get(entries, "CPT")?, "CPTs such as [0,1]");
        let Value::Sequence(items) = &value.value else {
            return self.pattern(value, "CPT", expected, pattern::cpts);
        };
        let members: Option<Vec<_>> = items.iter().map(|item| self.text(item, "CPT", expected)).collect();
        self.good(value, "CPT", pattern::cpts(&format!("[{}]", members?.join(","))))
    }

    /// The options that stand among these entries; those that do not come from `inherited`.
    pub(super) fn options(&mut self, entries: &[MapEntry], net: Net, inherited: NiOptions) -> NiOptions {
        let mut options = inherited;
        if let Some(entries) = get(entries, "tunables").and_then(|value| self.map(value, "tunables")) {
            let of_net: Vec<_> = NiOption::ALL.into_iter().filter(|option| option.is_of_net()).collect();
            self.known_keys(
                entries,
                "tunables",
                &of_net.iter().map(|option| option.name()).collect::<Vec<_>>(),
            );
            for option in of_net {
                options.set(option, self.option(entries, option));
            }
        }
        let Some(entries) = get(entries, "lnd tunables").and_then(|value| self.map(value, "lnd tunables"))
        else {
            return options;
        };
        let of_lnd: Vec<_> = NiOption::ALL.into_iter().filter(|option| !option.is_of_net()).collect();
        let names = of_lnd.iter().map(|option| option.name());
        let known: Vec<_> = names.chain([TIMEOUT_KEY]).chain(facts(true)).chain(FOREIGN_TUNABLES).collect();
        self.known_keys(entries, "lnd tunables", &known);
        for MapEntry { position, key, .. } in entries {
            if FOREIGN_TUNABLES.contains(&key.as_str()) {
                let message = format!("'{key}': it belongs to an LND that is not supported by this version");
                self.unsupported(*position, message);
            }
        }
        for option in of_lnd {
            options.set(option, self.option(entries, option));
        }
        let mut its = options;
        while let Err(OptionError::OtherLnd { option, .. }) = its.check(net, None) {
            let other = option.owner_name();
            for entry in entries.iter().filter(|entry| entry.key == option.name()) {
                let message =
                    format!("'{option}' is a tunable of the {other} LND: it goes with 'lnd: {other}'");
                self.error(entry.position, message);
            }
            its.set(option, None);
        }
        options
    }

    /// The value of an option, where it is there and asks for more than the default.
    fn option(&mut self, entries: &[MapEntry], option: NiOption) -> Option<i64> {
        let (value, row) = (get(entries, option.name())?, option.row());
        match row.values {
            OptionValues::Numbers { low, high, .. } => {
                row.values.of_number(self.integer(value, option.name(), low..=high)?)
            }
            OptionValues::Words(words) => row.values.value_of(self.word(value, option.name(), words)?),
        }
    }

    fn delete(&mut self, position: Position, net: Net, groups: Vec<Group>) {
        let mut named = Vec::new();
        for group in groups {
            if let (true, Some(nid)) = (group.interfaces.is_empty(), group.nid) {
                named.push((group.position, NiName::Nid(nid)));
            }
            for (position, InterfaceName { name: interface, .. }) in group.interfaces {
                named.push((position, NiName::Interface { net, interface }));
            }
        }
        if named.is_empty() {
            self.change(position, "net", Change::DeleteNet(net));
        }
        for (position, name) in named {
            self.change(position, "net", Change::DeleteNi(name));
        }
    }
}
