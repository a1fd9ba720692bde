//! NIs that are chosen by the addresses of their host (LNet's `ip2nets`).
//!
//! Invariants: nothing here asks a host; the same rules and interfaces give the same NIs; an NI has the
//! address by which it was chosen. Source: `lnet/lnet/config.c: lnet_parse_ip2nets`,
//! `lnet/utils/lnetconfig/liblnetconfig.c`; LNet control 4.4.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use lnet_wire::{Net, Nid};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::errno::{Errno, Refusal};
use crate::ni::{NiOptions, NiSpec};
use crate::pattern::{InterfaceName, UdspAddress, quoted};

/// An interface of a host, as far as NIs are chosen by it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct InterfaceRecord {
    /// Its name, or the label of an alias.
    pub name: String,
    /// Whether it is switched on.
    pub is_up: bool,
    /// Its addresses, in the kernel's order.
    pub addresses: Vec<IpAddr>,
}

/// Whom the ranges of a choice ask, and what becomes of an interface that is named and has none of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChoiceForm {
    /// An item of a document: the interface is asked. Where one that is named does not fit, the item does
    /// not.
    Item,
    /// A rule of the command line: the host is asked, and an interface that is named has to fit too.
    Rule,
    /// A rule of the kernel module's parameter: the host is asked, whichever of its interfaces has the
    /// address.
    Module,
}

/// A net that a host is on if its addresses fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetChoice {
    /// The net.
    pub net: Net,
    /// Interfaces that are to have an NI; without any those whose addresses fit.
    pub interfaces: Vec<InterfaceName>,
    /// Addresses that are looked for; without any all hosts fit.
    pub ranges: Vec<UdspAddress>,
    /// Options of the NIs.
    pub options: NiOptions,
    /// CPTs of interfaces that name none.
    pub cpts: Vec<u32>,
}

/// Why a choice makes no NI.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Misfit {
    /// Other hosts are meant.
    Elsewhere(String),
    /// The host contradicts the choice.
    Refused(Refusal),
}

impl NetChoice {
    /// The NIs that a host with these interfaces has by it, at least one.
    ///
    /// # Errors
    /// [`Misfit`].
    pub fn nis(&self, form: ChoiceForm, host: &[InterfaceRecord]) -> Result<Vec<NiSpec>, Misfit> {
        let Self { net, interfaces, ranges, options, cpts } = self;
        let spec = |interface: Option<&str>, nid, cpts: &[u32]| NiSpec {
            net: *net,
            interface: interface.map(Into::into),
            nid,
            options: *options,
            cpts: cpts.to_vec(),
        };
        if interfaces.is_empty() && ranges.is_empty() {
            return Ok(vec![spec(None, None, cpts)]);
        }
        // The addresses of aliases are those of their devices too.
        let fitting: Vec<_> = host
            .iter()
            .filter(|one| one.is_up && !one.name.contains(':'))
            .filter_map(|one| Some((one, self.fitting(one)?)))
            .collect();
        if fitting.is_empty() && !ranges.is_empty() && (interfaces.is_empty() || form != ChoiceForm::Item) {
            let message = format!("no interface that is up has an address of {}", self.ranges_text());
            return Err(Misfit::Elsewhere(message));
        }
        if interfaces.is_empty() {
            return Ok(fitting.into_iter().map(|(one, nid)| spec(Some(&one.name), nid, cpts)).collect());
        }
        let named = interfaces.iter().map(|InterfaceName { name, cpts: own }| {
            let nid = self.named(form, name, host)?;
            Ok(spec(Some(name), nid, if own.is_empty() { cpts } else { own }))
        });
        named.collect()
    }

    /// The NID of the first address of an interface that fits; none where it is no address of the net.
    fn fitting(&self, interface: &InterfaceRecord) -> Option<Option<Nid>> {
        let fits = |ip: &&IpAddr| self.ranges.iter().any(|range| range.fits(**ip));
        let nids = interface.addresses.iter().filter(fits).map(|ip| Nid::new_ip(self.net, *ip).ok());
        let mut nids = nids.filter(|nid| nid.is_none_or(|nid| nid.can_name_an_ni()));
        let first = nids.next()?;
        Some(first.or_else(|| nids.flatten().next()))
    }

    /// The NID that an interface which is named is to have, if its addresses say so.
    fn named(&self, form: ChoiceForm, name: &str, host: &[InterfaceRecord]) -> Result<Option<Nid>, Misfit> {
        let misfit = |errno, message| match form {
            ChoiceForm::Item => Misfit::Elsewhere(message),
            ChoiceForm::Rule | ChoiceForm::Module => Misfit::Refused(Refusal::new(errno, message)),
        };
        let found = host.iter().find(|one| one.name == name);
        let one =
            found.ok_or_else(|| misfit(Errno::NETDOWN, format!("no interface {} here", quoted(name))))?;
        if !one.is_up {
            return Err(misfit(Errno::NETDOWN, format!("interface {} is down", quoted(name))));
        }
        if self.ranges.is_empty() {
            return Ok(None);
        }
        match self.fitting(one) {
            Some(nid) => Ok(nid),
            None if form == ChoiceForm::Module => Ok(None),
            None => {
                let has: Vec<_> = one.addresses.iter().map(ToString::to_string).collect();
                let has = if has.is_empty() { "none".into() } else { has.join(", ") };
                let (name, ranges) = (quoted(name), self.ranges_text());
                Err(misfit(
                    Errno::INVAL,
                    format!("interface {name} has no address of {ranges}: it has {has}"),
                ))
            }
        }
    }

    /// The ranges, as errors name them.
    fn ranges_text(&self) -> String {
        self.ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
    }
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;

    use super::*;
    use crate::pattern;

    fn host() -> Vec<InterfaceRecord> {
        let of = |name: &str, is_up, addresses: &[&str]| InterfaceRecord {
            name: name.into(),
            is_up,
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        };
        vec![
            of("eth0", true, &["10.7.0.11", "10.7.5.11", "fe80::1", "2001:db8:7::b"]),
            of("eth1", true, &["10.7.1.12"]),
            of("eth2", false, &["10.7.2.13"]),
            of("eth0:1", true, &["10.7.5.11"]),
        ]
    }

    /// The NIs of a choice, as `interface nid`.
    #[track_caller]
    fn nis(form: ChoiceForm, interfaces: &str, ranges: &[&str]) -> Result<Vec<String>, String> {
        let choice = NetChoice {
            net: Net::TCP,
            interfaces: if interfaces.is_empty() { vec![] } else { pattern::interfaces(interfaces).unwrap() },
            ranges: ranges.iter().map(|text| pattern::addresses(text).unwrap()).collect(),
            options: NiOptions::default(),
            cpts: Vec::new(),
        };
        let text = |spec: NiSpec| {
            let nid = spec.nid.map_or("-".to_owned(), |nid| nid.to_string());
            format!("{} {nid}", spec.interface.unwrap_or_default())
        };
        match choice.nis(form, &host()) {
            Ok(specs) => Ok(specs.into_iter().map(text).collect()),
            Err(Misfit::Elsewhere(why)) => Err(format!("elsewhere: {why}")),
            Err(Misfit::Refused(refusal)) => Err(format!("{}: {}", refusal.errno, refusal.message)),
        }
    }

    const FORMS: [ChoiceForm; 3] = [ChoiceForm::Item, ChoiceForm::Rule, ChoiceForm::Module];

    /// Rules that all forms have in common (tests 150, 152 to 154, 156, 158, 159 and 161 of the catalogue).
    #[test]
    fn hosts_are_on_nets_by_their_addresses() {
        for form in FORMS {
            let check = |interfaces, ranges: &[&str], expected: &[&str]| {
                assert_eq!(nis(form, interfaces, ranges).unwrap(), expected, "{form:?} {ranges:?}");
            };
            check("", &[], &[" -"]);
            check("eth0", &[], &["eth0 -"]);
            check("eth0", &["10.7.0.11"], &["eth0 10.7.0.11@tcp"]);
            check("", &["10.7.0.*"], &["eth0 10.7.0.11@tcp"]);
            check("", &["*.*.*.*"], &["eth0 10.7.0.11@tcp", "eth1 10.7.1.12@tcp"]);
            check("", &["10.7.[0-1].*"], &["eth0 10.7.0.11@tcp", "eth1 10.7.1.12@tcp"]);
            check("", &["10.7.0.[9-13/2]"], &["eth0 10.7.0.11@tcp"]);
            check("", &["10.7.0.[1,11,20]"], &["eth0 10.7.0.11@tcp"]);
            check("", &["2001:db8:7::b"], &["eth0 2001:db8:7::b@tcp"]);
            check("", &["2001:db8:7::b/128"], &["eth0 2001:db8:7::b@tcp"]);
            for bits in [1, 2, 4, 8, 16, 32, 64, 127] {
                check("", &[&format!("2001:db8:7::b/{bits}")], &["eth0 2001:db8:7::b@tcp"]);
            }
            // The address that fits is the NI's, and not the first one.
            check("eth0", &["10.7.5.0/24"], &["eth0 10.7.5.11@tcp"]);
            check("eth0:1", &["10.7.5.0/24"], &["eth0:1 10.7.5.11@tcp"]);
            check("eth0,eth1", &["10.7.0.*", "10.7.1.*"], &["eth0 10.7.0.11@tcp", "eth1 10.7.1.12@tcp"]);
        }
    }

    /// Tests 155 and 162 of the catalogue, and the contradictions of LNet control 4.4.
    #[test]
    fn what_does_not_fit_is_told_by_its_form() {
        for form in FORMS {
            for range in ["10.9.*.*", "10.7.2.*", "2001:db8:8::/64", "10.7.0.[10-20/2]"] {
                let why = format!("elsewhere: no interface that is up has an address of {range}");
                assert_eq!(nis(form, "", &[range]), Err(why), "{form:?}");
            }
        }
        let check = |form, interfaces, ranges: &[&str], expected: &str| {
            assert_eq!(nis(form, interfaces, ranges), Err(expected.to_owned()), "{form:?}");
        };
        for (form, sort) in FORMS.into_iter().zip(["elsewhere", "NETDOWN", "NETDOWN"]) {
            check(form, "eth9", &[], &format!("{sort}: no interface \"eth9\" here"));
            check(form, "eth2", &[], &format!("{sort}: interface \"eth2\" is down"));
        }
        for (form, sort) in [(ChoiceForm::Item, "elsewhere"), (ChoiceForm::Rule, "INVAL")] {
            let why = "interface \"eth1\" has no address of 10.7.0.*: it has 10.7.1.12";
            check(form, "eth0,eth1", &["10.7.0.*"], &format!("{sort}: {why}"));
        }
        // The kernel's module asks the host.
        assert_eq!(nis(ChoiceForm::Module, "eth1", &["10.7.0.*"]), Ok(vec!["eth1 -".to_owned()]));
    }
}
