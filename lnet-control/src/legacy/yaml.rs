//! YAML documents of strings.

use lnet_model::choice::{ChoiceForm, InterfaceRecord};
use lnet_model::ni::NiOptions;
use lnet_model::pattern::cpts_text;
use lnet_model::request::Change;
use serde_json::{Value, json};

use super::{Gateway, Legacy, NetEntry, RouteRule, interface_text};
use crate::document::{DocumentError, Instruction, Map};

/// How strings are converted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Conversion {
    /// Hops of routes that say none.
    pub default_hop: Option<u8>,
    /// Whether each gateway has a route of its own in the document, instead of a range.
    pub expands: bool,
    /// Interfaces of the host that rules are carried out for.
    pub host: Option<Vec<InterfaceRecord>>,
}

impl Conversion {
    /// The document: `net`, `ip2nets`, `route`, as far as there is something of them.
    ///
    /// # Errors
    /// Rules that the host contradicts, or of which none fits.
    pub fn document(&self, legacy: &Legacy) -> Result<Map, Vec<DocumentError>> {
        let mut nets: Vec<Value> = legacy.networks.iter().map(|entry| net(&entry.value)).collect();
        let mut rules = Vec::new();
        match &self.host {
            Some(host) => nets.extend(resolved(legacy, host)?),
            None => {
                for rule in &legacy.rules {
                    let ranges = numbered(rule.value.ranges.iter().map(ToString::to_string));
                    rules.extend(rule.value.nets.iter().map(|entry| item(entry, &ranges)));
                }
            }
        }
        let routes: Vec<Value> = legacy.routes.iter().flat_map(|rule| self.routes(&rule.value)).collect();
        let mut document = Map::new();
        for (key, items) in [("net", nets), ("ip2nets", rules), ("route", routes)] {
            if !items.is_empty() {
                document.insert(key.to_owned(), items.into());
            }
        }
        Ok(document)
    }

    fn routes(&self, rule: &RouteRule) -> Vec<Value> {
        let mut routes = Vec::new();
        for net in rule.each_net() {
            for Gateway { text, nids, priority } in &rule.gateways {
                let gateways: Vec<String> = match self.expands {
                    true => nids.iter().map(ToString::to_string).collect(),
                    false => vec![text.clone()],
                };
                for gateway in gateways {
                    let mut route = Map::new();
                    route.insert("net".into(), net.to_string().into());
                    route.insert("gateway".into(), gateway.into());
                    let hops = rule.hops.or(self.default_hop);
                    let numbers = [("hop", hops.map(u32::from)), ("priority", *priority)];
                    for (key, number) in numbers {
                        number.and_then(|number| route.insert(key.into(), number.into()));
                    }
                    routes.push(route.into());
                }
            }
        }
        routes
    }
}

/// Texts by their numbers.
fn numbered(texts: impl Iterator<Item = String>) -> Map {
    texts.zip(0..).map(|(text, number)| (number.to_string(), text.into())).collect()
}

/// The interfaces and CPTs of an entry.
fn members(entry: &NetEntry) -> Map {
    let NetEntry { interfaces, cpts, .. } = entry;
    let mut members = Map::new();
    if !interfaces.is_empty() {
        members.insert("interfaces".into(), numbered(interfaces.iter().map(interface_text)).into());
    }
    if !cpts.is_empty() {
        members.insert("CPT".into(), cpts_text(cpts).into());
    }
    members
}

fn net(entry: &NetEntry) -> Value {
    let mut item = Map::new();
    item.insert("net type".into(), entry.net.to_string().into());
    let members = members(entry);
    if !members.is_empty() {
        item.insert("local NI(s)".into(), json!([members]));
    }
    item.into()
}

fn item(entry: &NetEntry, ranges: &Map) -> Value {
    let mut item = Map::new();
    item.insert("net-spec".into(), entry.net.to_string().into());
    let mut members = members(entry);
    item.extend(members.remove("interfaces").map(|interfaces| ("interfaces".to_owned(), interfaces)));
    item.insert("ip-range".into(), ranges.clone().into());
    item.extend(members);
    item.into()
}

/// The NIs that a host has by the rules, as the kernel's module makes them.
fn resolved(legacy: &Legacy, host: &[InterfaceRecord]) -> Result<Vec<Value>, Vec<DocumentError>> {
    let rules = Legacy { rules: legacy.rules.clone(), ..Legacy::default() };
    let document = rules.document(ChoiceForm::Module, NiOptions::default()).resolve(host)?;
    let net = |action| {
        let Instruction::Change(change) = action else { return None };
        let Change::AddNi(spec) = *change else { return None };
        let mut ni = Map::new();
        ni.extend(spec.nid.map(|nid| ("nid".to_owned(), nid.to_string().into())));
        ni.extend(spec.interface.map(|name| ("interfaces".to_owned(), json!({"0": name}))));
        if !spec.cpts.is_empty() {
            ni.insert("CPT".into(), cpts_text(&spec.cpts).into());
        }
        Some(json!({"net type": spec.net.to_string(), "local NI(s)": [ni]}))
    };
    Ok(document.items.into_iter().filter_map(|item| net(item.action)).collect())
}
