//! The strings by which LNet's kernel module is configured: `networks`, `ip2nets` and `routes`, also from
//! files of modprobe, and the file of `lustre_routes_config`.
//!
//! Invariants: a string is understood whole or refused whole, with the place of everything that is wrong in
//! it; what is read is printed as it would be read again; ranges are counted before they are enumerated.
//! Source: `lnet/lnet/config.c`, `lnet/lnet/module.c`, modprobe.d(5); LNet control 2.5, 4.4 and 6.5.

mod modprobe;
mod read;
mod text;
mod yaml;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};

use lnet_model::choice::{ChoiceForm, NetChoice};
use lnet_model::ni::{NiOptions, NiSpec};
use lnet_model::pattern::{InterfaceName, UdspAddress, UdspPattern, cpts_text};
use lnet_model::request::Change;
use lnet_model::route::RouteSpec;
use lnet_wire::{Net, Nid};

use crate::document::{Document, DocumentError, Instruction, Item, Position};

pub use modprobe::{FileOption, ModuleOption, inline_option, module_options, taken};
pub use text::LegacyText;
pub use yaml::Conversion;

/// Most bytes of a string or a file of them.
pub const LEGACY_BYTES_MAX: usize = 1 << 20;
/// Most routes that one rule makes.
const ROUTES_MAX: usize = 1 << 16;

/// Kinds of strings, by their subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LegacyKind {
    /// Nets and their interfaces: `tcp(eth0),o2ib(ib0)`.
    Networks,
    /// Rules by the addresses of hosts: `tcp(eth0) 10.0.0.*; o2ib 10.1.*.*`.
    Ip2nets,
    /// Routes: `o2ib 10.0.0.[1-4]@tcp; tcp2 2 10.0.0.9@tcp:1`.
    Routes,
}

impl LegacyKind {
    /// All, in the order in which documents have what they say.
    pub const ALL: [Self; 3] = [Self::Networks, Self::Ip2nets, Self::Routes];

    /// The name of the kernel module's parameter.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Networks => "networks",
            Self::Ip2nets => "ip2nets",
            Self::Routes => "routes",
        }
    }

    /// The kind whose parameter has this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The kind of a string of which nothing else is known: gateways have an `@`.
    fn guessed(rule: &str) -> Self {
        if rule.contains('@') { Self::Routes } else { Self::Ip2nets }
    }

    /// Reads a string of this kind.
    ///
    /// # Errors
    /// Everything that is wrong, up to a hundred mistakes.
    pub fn read(self, text: &LegacyText) -> Result<Legacy, Vec<DocumentError>> {
        read::read(Some(self), text)
    }
}

/// Something and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Located<T> {
    /// The place.
    pub position: Position,
    /// The value that stands there.
    pub value: T,
}

/// Content of strings.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Legacy {
    /// Entries of `networks`.
    pub networks: Vec<Located<NetEntry>>,
    /// Rules of `ip2nets`.
    pub rules: Vec<Located<NetRule>>,
    /// Rules of `routes`.
    pub routes: Vec<Located<RouteRule>>,
    /// Notes on what their author may not have meant.
    pub notes: Vec<Located<String>>,
}

/// A net, and the interfaces that are to be on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetEntry {
    /// The net.
    pub net: Net,
    /// The interfaces; without any the host's first one, or those that fit.
    pub interfaces: Vec<InterfaceName>,
    /// CPTs of all of them.
    pub cpts: Vec<u32>,
}

/// Nets that hosts with some addresses are on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetRule {
    /// The nets, at least one.
    pub nets: Vec<NetEntry>,
    /// The addresses, at least one range.
    pub ranges: Vec<UdspAddress>,
}

/// Nets that are reached by others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteRule {
    /// The nets.
    pub nets: UdspPattern,
    /// How many nodes forward a message.
    pub hops: Option<u8>,
    /// The gateways, at least one.
    pub gateways: Vec<Gateway>,
}

/// NIDs of gateways.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gateway {
    /// The text of the NIDs, which may have ranges.
    pub text: String,
    /// The NIDs.
    pub nids: Vec<Nid>,
    /// The priority of the routes by them.
    pub priority: Option<u32>,
}

impl RouteRule {
    /// The nets, one by one.
    pub fn each_net(&self) -> impl Iterator<Item = Net> + '_ {
        let numbers = self.nets.net_numbers.iter().flat_map(|range| range.values());
        numbers.filter_map(|number| Some(Net::new(self.nets.net_type, u16::try_from(number).ok()?)))
    }

    /// The routes.
    pub fn specs(&self) -> impl Iterator<Item = RouteSpec> + '_ {
        let hops = self.hops;
        self.each_net().flat_map(move |net| {
            self.gateways.iter().flat_map(move |gateway| {
                let priority = gateway.priority.unwrap_or(0);
                gateway.nids.iter().map(move |nid| RouteSpec { hops, priority, ..RouteSpec::new(net, *nid) })
            })
        })
    }
}

impl Legacy {
    /// Reads rules of `ip2nets` and `routes`, told apart by the gateways of the latter.
    ///
    /// # Errors
    /// The errors of [`LegacyKind::read`].
    pub fn read(text: &LegacyText) -> Result<Self, Vec<DocumentError>> {
        read::read(None, text)
    }

    /// Takes what other strings say behind its own.
    pub fn append(&mut self, mut other: Self) {
        self.networks.append(&mut other.networks);
        self.rules.append(&mut other.rules);
        self.routes.append(&mut other.routes);
        self.notes.append(&mut other.notes);
    }

    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.rules.is_empty() && self.routes.is_empty()
    }

    /// The document that does what they say: rules in this form, and with these options of NIs. Of a route
    /// that is said twice the first is taken, as LNet does (`lnet_parse_route`: EEXIST).
    #[must_use]
    pub fn document(&self, form: ChoiceForm, options: NiOptions) -> Document {
        let mut items = Vec::new();
        let mut push = |position, entity, action| items.push(Item { position, entity, seq_no: None, action });
        for Located { position, value: NetEntry { net, interfaces, cpts } } in &self.networks {
            let spec = NiSpec { options, cpts: cpts.clone(), ..NiSpec::new(*net) };
            let add = |spec| Instruction::Change(Box::new(Change::AddNi(spec)));
            if interfaces.is_empty() {
                push(*position, "networks", add(spec.clone()));
            }
            for InterfaceName { name, cpts: own } in interfaces {
                let cpts = if own.is_empty() { cpts } else { own }.clone();
                push(
                    *position,
                    "networks",
                    add(NiSpec { interface: Some(name.clone()), cpts, ..spec.clone() }),
                );
            }
        }
        let list = self.rules.first().map(|rule| rule.position);
        for (Located { position, value: NetRule { nets, ranges } }, list) in
            self.rules.iter().zip(list.iter().cycle())
        {
            for NetEntry { net, interfaces, cpts } in nets.clone() {
                let ranges = ranges.clone();
                let choice = Box::new(NetChoice { net, interfaces, ranges, options, cpts });
                push(*position, "ip2nets", Instruction::Choose { form, list: *list, choice });
            }
        }
        let mut known = HashMap::new();
        for Located { position, value } in &self.routes {
            for spec in value.specs() {
                if known.insert((spec.net, spec.gateway), ()).is_none() {
                    push(*position, "routes", Instruction::Change(Box::new(Change::AddRoute(spec))));
                }
            }
        }
        Document { items, is_blank: self.is_empty() }
    }
}

/// Prints a list.
fn list<T: Display>(f: &mut Formatter<'_>, items: &[T], between: &str) -> fmt::Result {
    for (at, item) in items.iter().enumerate() {
        write!(f, "{}{item}", if at > 0 { between } else { "" })?;
    }
    Ok(())
}

impl Display for NetEntry {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { net, interfaces, cpts } = self;
        write!(f, "{net}")?;
        let names: Vec<_> = interfaces.iter().map(interface_text).collect();
        if !names.is_empty() {
            write!(f, "({})", names.join(","))?;
        }
        if cpts.is_empty() { Ok(()) } else { f.write_str(&cpts_text(cpts)) }
    }
}

/// An interface with its CPTs.
fn interface_text(InterfaceName { name, cpts }: &InterfaceName) -> String {
    if cpts.is_empty() { name.clone() } else { format!("{name}{}", cpts_text(cpts)) }
}

impl Display for NetRule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        list(f, &self.nets, ",")?;
        f.write_str(" ")?;
        list(f, &self.ranges, " ")
    }
}

impl Display for RouteRule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.nets)?;
        if let Some(hops) = self.hops {
            write!(f, "{hops} ")?;
        }
        list(f, &self.gateways, " ")
    }
}

impl Display for Gateway {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        self.priority.map_or(Ok(()), |priority| write!(f, ":{priority}"))
    }
}

/// All that is said of a kind, as one string.
#[must_use]
pub fn string(kind: LegacyKind, legacy: &Legacy) -> String {
    fn joined<T: Display>(items: &[Located<T>], between: &str) -> String {
        items.iter().map(|item| item.value.to_string()).collect::<Vec<_>>().join(between)
    }
    match kind {
        LegacyKind::Networks => joined(&legacy.networks, ","),
        LegacyKind::Ip2nets => joined(&legacy.rules, "; "),
        LegacyKind::Routes => joined(&legacy.routes, "; "),
    }
}
