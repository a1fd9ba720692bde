//! The block `net`.

use std::str::FromStr;

use lnet_wire::{Net, NetType, Nid};

use super::Reader;
use super::values::get;
use crate::document::Mode;
use crate::document::tree::{Entry, Marked, Position, Value};
use crate::errno::Errno;
use crate::pattern::{self, InterfaceName};
use crate::records::{Lnd, NiOptions, XdpMode};
use crate::request::{Change, NiName, NiSpec};

/// Keys of a net.
const NET_KEYS: [&str; 12] = [
    "net type",
    "net",
    "local NI(s)",
    "interfaces",
    "nid",
    "tunables",
    "lnd tunables",
    "CPT",
    "seq_no",
    "detail",
    "intf",
    "pattern",
];
/// Keys of a local NI, and behind `CPT` those that only tell.
const NI_KEYS: [&str; 13] = [
    "nid",
    "interfaces",
    "tunables",
    "lnd tunables",
    "CPT",
    "status",
    "statistics",
    "udsp info",
    "sent_stats",
    "received_stats",
    "dropped_stats",
    "health stats",
    "dev cpt",
];
/// Tunables of a net.
const TUNABLES: [&str; 4] = ["peer_timeout", "peer_credits", "peer_buffer_credits", "credits"];
/// Tunables of an LND; the last three only tell.
const LND_TUNABLES: [&str; 9] =
    ["conns_per_peer", "tos", "lnd", "mode", "port", "queues", "timeout", "active mode", "active queues"];
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

/// What a net's item says of NIs: one, or several alike.
struct Group {
    position: Position,
    interfaces: Vec<(Position, InterfaceName)>,
    nid: Option<Nid>,
    tunables: Option<NiOptions>,
    cpts: Vec<u32>,
}

impl Reader {
    pub(super) fn net_block(&mut self, block: &Marked) {
        for (item, entries) in self.maps(block, "net") {
            self.begin_item(entries);
            self.net(item.position, entries);
        }
    }

    fn net(&mut self, position: Position, entries: &[Entry]) {
        self.known_keys(entries, "net", &NET_KEYS);
        for key in ["intf", "pattern"] {
            if let Some(value) = get(entries, key) {
                let message =
                    format!("'{key}': choosing interfaces by a pattern of addresses is not supported yet");
                self.unsupported(value.position, message);
            }
        }
        let Some(value) = get(entries, "net type").or_else(|| get(entries, "net")) else {
            return self.error(position, "a net without 'net type'".to_owned());
        };
        let Some(net) = self.parsed(value, "net type", "a net such as tcp or xdp1", Net::from_str) else {
            return;
        };
        let groups = self.groups(entries);
        let errors = self.errors.len();
        let tunables = get(entries, "tunables").map(|value| self.tunables(value)).unwrap_or_default();
        let lnd = get(entries, "lnd tunables").and_then(|value| self.lnd_tunables(value, net));
        let lnds: Vec<_> = groups
            .iter()
            .map(|(group, lnd)| (group, lnd.and_then(|value| self.lnd_tunables(value, net))))
            .collect();
        if self.errors.len() > errors {
            return;
        }
        if net == Net::LO {
            // Exports have it; it can neither be made nor deleted.
            if let Some((group, _)) = groups.iter().find(|(group, _)| !group.interfaces.is_empty()) {
                self.error_of(
                    group.position,
                    Errno::NODEV,
                    "net lo has no interfaces, and cannot be set".to_owned(),
                );
            }
            return;
        }
        if self.mode == Mode::Delete {
            return self.delete(position, net, groups.into_iter().map(|(group, _)| group).collect());
        }
        let changes: Vec<_> = lnds
            .into_iter()
            .flat_map(|(group, own_lnd)| {
                let mut spec = NiSpec::new(net);
                spec.nid = group.nid;
                spec.options =
                    both(&group.tunables.unwrap_or(tunables), &own_lnd.or(lnd).unwrap_or_default());
                spec.cpts.clone_from(&group.cpts);
                let named = group.interfaces.iter().map(|(position, interface)| {
                    let cpts = if interface.cpts.is_empty() { &group.cpts } else { &interface.cpts };
                    (
                        *position,
                        NiSpec {
                            interface: Some(interface.name.clone()),
                            cpts: cpts.clone(),
                            ..spec.clone()
                        },
                    )
                });
                let named: Vec<_> = named.collect();
                if named.is_empty() { vec![(group.position, spec)] } else { named }
            })
            .collect();
        for (position, spec) in changes {
            self.change(position, "net", Change::AddNi(spec));
        }
    }

    /// The NIs that a net's item speaks of, and where their LND tunables stand.
    fn groups<'a>(&mut self, entries: &'a [Entry]) -> Vec<(Group, Option<&'a Marked>)> {
        let mut groups = Vec::new();
        let direct = ["interfaces", "nid"].iter().find_map(|key| get(entries, key));
        if let Some(value) = direct {
            groups.push((self.group(value.position, entries, false), None));
        }
        if let Some(value) = get(entries, "local NI(s)") {
            for (item, entries) in self.maps(value, "local NI(s)") {
                self.known_keys(entries, "local NI(s)", &NI_KEYS);
                groups.push((self.group(item.position, entries, true), get(entries, "lnd tunables")));
            }
        }
        if groups.is_empty()
            && let Some(first) = entries.first()
        {
            groups.push((self.group(first.position, entries, false), None));
        }
        groups
    }

    fn group(&mut self, position: Position, entries: &[Entry], own_tunables: bool) -> Group {
        let interfaces = get(entries, "interfaces").map(|value| self.interfaces(value)).unwrap_or_default();
        let nid = get(entries, "nid").and_then(|value| self.pattern(value, "nid", "a nid", pattern::nid));
        if nid.is_some() && interfaces.len() > 1 {
            self.error(position, format!("{} interfaces beside one nid: one is expected", interfaces.len()));
        }
        let tunables = get(entries, "tunables").filter(|_| own_tunables).map(|value| self.tunables(value));
        let cpts = get(entries, "CPT").and_then(|value| self.cpts(value)).unwrap_or_default();
        Group { position, interfaces, nid, tunables, cpts }
    }

    /// A map of interfaces, or the older list of them.
    fn interfaces(&mut self, value: &Marked) -> Vec<(Position, InterfaceName)> {
        let expected = "the name of an interface, with CPTs in brackets if it has any";
        let mut found = Vec::new();
        let mut one = |reader: &mut Self, value: &Marked| {
            let parsed = reader.pattern(value, "interfaces", expected, |text| {
                let mut interfaces = pattern::interfaces(text)?;
                match (interfaces.pop(), interfaces.is_empty()) {
                    (Some(interface), true) => Ok(interface),
                    _ => Err(crate::pattern::PatternError {
                        errno: Errno::INVAL,
                        message: format!("{text:?}: one interface is expected"),
                    }),
                }
            });
            found.extend(parsed.map(|interface| (value.position, interface)));
        };
        match &value.value {
            Value::Map(entries) => entries.iter().for_each(|entry| one(self, &entry.value)),
            Value::Sequence(items) => {
                for item in items {
                    let Value::Map(entries) = &item.value else {
                        one(self, item);
                        continue;
                    };
                    self.known_keys(entries, "interfaces", &["intf", "CPT"]);
                    match get(entries, "intf") {
                        Some(name) => one(self, name),
                        None => self.error(item.position, "an interface without 'intf'".to_owned()),
                    }
                }
                self.older_cpts(items, &mut found);
            }
            _ => {
                let message =
                    format!("{} for 'interfaces': a map such as 0: eth0 is expected", value.describe());
                self.error(value.position, message);
            }
        }
        found
    }

    /// The CPTs that stand beside an interface in the older list.
    fn older_cpts(&mut self, items: &[Marked], found: &mut [(Position, InterfaceName)]) {
        for item in items {
            let Value::Map(entries) = &item.value else { continue };
            let Some(cpts) = get(entries, "CPT").and_then(|value| self.cpts(value)) else { continue };
            let name = get(entries, "intf").map(|name| name.position);
            for (_, interface) in found.iter_mut().filter(|(position, _)| Some(*position) == name) {
                interface.cpts.clone_from(&cpts);
            }
        }
    }

    /// A text such as `[0-1]`, or a list of numbers and ranges.
    fn cpts(&mut self, value: &Marked) -> Option<Vec<u32>> {
        let expected = "CPTs such as [0,1]";
        let Value::Sequence(items) = &value.value else {
            return self.pattern(value, "CPT", expected, pattern::cpts);
        };
        let members: Option<Vec<_>> = items.iter().map(|item| self.text(item, "CPT", expected)).collect();
        let text = format!("[{}]", members?.join(","));
        pattern::cpts(&text)
            .map_err(|error| self.error_of(value.position, error.errno, format!("'CPT': {error}")))
            .ok()
    }

    /// The options of a net.
    fn tunables(&mut self, value: &Marked) -> NiOptions {
        let Some(entries) = self.map(value, "tunables") else { return NiOptions::default() };
        self.known_keys(entries, "tunables", &TUNABLES);
        let mut credits = |key: &str| {
            self.integer_of(entries, key, -1..=i64::from(i32::MAX)).filter(|value: &i64| *value > 0)
        };
        let [peer_credits, peer_buffer_credits, credits] = ["peer_credits", "peer_buffer_credits", "credits"]
            .map(|key| credits(key).map(|value| value as u32));
        let peer_timeout: Option<i64> = self.integer_of(entries, "peer_timeout", -1..=i64::from(i32::MAX));
        let peer_timeout_s = peer_timeout.and_then(|value| u32::try_from(value).ok());
        NiOptions { peer_timeout_s, peer_credits, peer_buffer_credits, credits, ..NiOptions::default() }
    }

    /// The options of an LND.
    fn lnd_tunables(&mut self, value: &Marked, net: Net) -> Option<NiOptions> {
        let entries = self.map(value, "lnd tunables")?;
        for Entry { position, key, .. } in
            entries.iter().filter(|entry| FOREIGN_TUNABLES.contains(&entry.key.as_str()))
        {
            self.unsupported(*position, format!("'{key}': it belongs to an LND that is not supported yet"));
        }
        let known = [LND_TUNABLES.as_slice(), FOREIGN_TUNABLES.as_slice()].concat();
        self.known_keys(entries, "lnd tunables", &known);
        let lnd = get(entries, "lnd").and_then(|value| self.word(value, "lnd", Lnd::NAMES)?.parse().ok());
        let mode =
            get(entries, "mode").and_then(|value| self.word(value, "mode", XdpMode::NAMES)?.parse().ok());
        let options = NiOptions {
            lnd,
            mode,
            port: self.integer_of(entries, "port", 1..=65_535),
            queues: self.integer_of(entries, "queues", 0..=64),
            conns_per_peer: self
                .integer_of(entries, "conns_per_peer", -1..=127)
                .and_then(|value: i64| u32::try_from(value).ok()),
            tos: self.integer_of(entries, "tos", -1..=255).filter(|tos| *tos >= 0),
            ..NiOptions::default()
        };
        self.check_lnd(entries, net, &options);
        Some(options)
    }

    /// Reports tunables of another LND than the net's.
    fn check_lnd(&mut self, entries: &[Entry], net: Net, asked: &NiOptions) {
        let lnd = asked.lnd.or(match net.net_type() {
            NetType::TCP => Some(Lnd::Tcp),
            NetType::XDP => Some(Lnd::Xdp),
            _ => None,
        });
        let foreign: &[&str] = match lnd {
            Some(Lnd::Tcp) => &["mode", "port", "queues"],
            Some(Lnd::Xdp) => &["conns_per_peer", "tos"],
            None => return,
        };
        let other = if lnd == Some(Lnd::Tcp) { "xdp" } else { "tcp" };
        let is_set = |key: &str| match key {
            "conns_per_peer" => asked.conns_per_peer.is_some(),
            "tos" => asked.tos.is_some(),
            _ => true,
        };
        for Entry { position, key, .. } in entries {
            if foreign.contains(&key.as_str()) && is_set(key) {
                let message = format!("'{key}' is a tunable of the {other} LND: it goes with 'lnd: {other}'");
                self.error(*position, message);
            }
        }
    }

    fn delete(&mut self, position: Position, net: Net, groups: Vec<Group>) {
        let mut named = Vec::new();
        for group in groups {
            if let (true, Some(nid)) = (group.interfaces.is_empty(), group.nid) {
                named.push((group.position, NiName::Nid(nid)));
            }
            let interfaces = group.interfaces.into_iter();
            named.extend(
                interfaces.map(|(position, one)| (position, NiName::Interface { net, interface: one.name })),
            );
        }
        if named.is_empty() {
            self.change(position, "net", Change::DeleteNet(net));
        }
        for (position, name) in named {
            self.change(position, "net", Change::DeleteNi(name));
        }
    }
}

/// The options of a net and of its LND.
fn both(of_net: &NiOptions, of_lnd: &NiOptions) -> NiOptions {
    let NiOptions { peer_timeout_s, peer_credits, peer_buffer_credits, credits, .. } = *of_net;
    NiOptions { peer_timeout_s, peer_credits, peer_buffer_credits, credits, ..*of_lnd }
}
