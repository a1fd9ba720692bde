//! NIs that a document chooses by the addresses of the host.

use std::collections::{BTreeMap, HashSet};

use lnet_model::Errno;
use lnet_model::choice::{ChoiceForm, InterfaceRecord, Misfit};
use lnet_model::request::Change;

use super::{Document, DocumentError, Instruction, Item, Position};

/// Outcome of the choices of a list.
#[derive(Default)]
struct ListOutcome {
    fits: bool,
    /// Why those that are for other hosts are that.
    misfits: Vec<String>,
    nets: HashSet<lnet_wire::Net>,
}

impl Document {
    /// A document that asks for one change.
    #[must_use]
    pub fn of(position: Position, entity: &'static str, change: Change) -> Self {
        let action = Instruction::Change(Box::new(change));
        Self { items: vec![Item { position, entity, seq_no: None, action }], is_blank: false }
    }

    /// Whether NIs are chosen by the addresses of the host.
    #[must_use]
    pub fn chooses(&self) -> bool {
        self.items.iter().any(|item| matches!(item.action, Instruction::Choose { .. }))
    }

    /// The changes that it asks for.
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.items.iter().filter_map(|item| match &item.action {
            Instruction::Change(change) => Some(&**change),
            _ => None,
        })
    }

    /// The interfaces that its choices name; none where it chooses nothing.
    #[must_use]
    pub fn interfaces_named(&self) -> Option<Vec<String>> {
        let choices = self.items.iter().filter_map(|item| match &item.action {
            Instruction::Choose { choice, .. } => Some(&choice.interfaces),
            _ => None,
        });
        let mut names = None;
        for interfaces in choices {
            let names: &mut Vec<String> = names.get_or_insert_default();
            names.extend(interfaces.iter().map(|interface| interface.name.clone()));
        }
        names.map(|mut names| {
            names.sort();
            names.dedup();
            names
        })
    }

    /// The document for a host with these interfaces: NIs stand where it had choices. Of items of a block the
    /// first that fits has its net; of rules all that fit add up (LNet control 4.4).
    ///
    /// # Errors
    /// Choices that contradict the host, and lists of which none fits.
    pub fn resolve(self, host: &[InterfaceRecord]) -> Result<Self, Vec<DocumentError>> {
        let mut items = Vec::new();
        let mut errors = Vec::new();
        let mut lists: BTreeMap<Position, (ChoiceForm, ListOutcome)> = BTreeMap::new();
        for item in self.items {
            let Item { position, entity, seq_no, action } = item;
            let (form, list, choice) = match action {
                Instruction::Choose { form, list, choice } => (form, list, choice),
                action => {
                    items.push(Item { position, entity, seq_no, action });
                    continue;
                }
            };
            let (_, outcome) = lists.entry(list).or_insert_with(|| (form, ListOutcome::default()));
            if form == ChoiceForm::Item && outcome.nets.contains(&choice.net) {
                continue;
            }
            match choice.nis(form, host) {
                Ok(specs) => {
                    outcome.fits = true;
                    outcome.nets.insert(choice.net);
                    let changes =
                        specs.into_iter().map(|spec| Instruction::Change(Box::new(Change::AddNi(spec))));
                    items.extend(changes.map(|action| Item { position, entity, seq_no, action }));
                }
                Err(Misfit::Elsewhere(why)) => outcome.misfits.push(why),
                Err(Misfit::Refused(refusal)) => {
                    outcome.fits = true;
                    let message = format!("net {}: {}", choice.net, refusal.message);
                    errors.push(DocumentError { position, message, errno: refusal.errno, seq_no });
                }
            }
        }
        for (position, (form, outcome)) in lists.into_iter().filter(|(_, (_, outcome))| !outcome.fits) {
            let misfits = outcome.misfits.join("; ");
            let (what, errno) = match form {
                ChoiceForm::Item => ("items", Errno::INVAL),
                ChoiceForm::Rule | ChoiceForm::Module => ("rules", Errno::NOENT),
            };
            let message = format!("none of the {what} fits this host: {misfits}");
            errors.push(DocumentError { position, message, errno, seq_no: None });
        }
        if errors.is_empty() { Ok(Self { items, ..self }) } else { Err(errors) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Mode, parse};

    fn host() -> Vec<InterfaceRecord> {
        let of = |name: &str, addresses: &[&str]| InterfaceRecord {
            name: name.into(),
            is_up: true,
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        };
        vec![of("eth0", &["10.7.0.11", "2001:db8:7::b"]), of("eth1", &["10.7.1.12", "2001:db8:8::c"])]
    }

    /// The NIs that a document asks for on this host, or what is wrong with it.
    fn resolved(text: &str) -> Result<Vec<String>, Vec<String>> {
        let texts = |errors: Vec<DocumentError>| {
            errors.iter().map(|error| format!("{} {error}", error.errno)).collect::<Vec<_>>()
        };
        let document = parse(text, Mode::Add).map_err(texts)?;
        let document = document.resolve(&host()).map_err(texts)?;
        let text = |change: &Change| match change {
            Change::AddNi(spec) => {
                let nid = spec.nid.map_or_else(|| spec.net.to_string(), |nid| nid.to_string());
                format!("{nid} {}", spec.interface.as_deref().unwrap_or("-"))
            }
            other => format!("{other:?}"),
        };
        Ok(document.changes().map(text).collect())
    }

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        assert_eq!(resolved(text).unwrap(), expected, "{text}");
    }

    #[track_caller]
    fn refused(text: &str, expected: &[&str]) {
        assert_eq!(resolved(text).unwrap_err(), expected, "{text}");
    }

    /// Tests 151, 152 and 160 of the catalogue.
    #[test]
    fn the_first_item_that_fits_has_the_net() {
        for ranges in ["{0: 10.7.0.*, 1: 10.7.1.12}", "{0: '2001:db8:7::/64', 1: '2001:db8:8::c'}"] {
            let text = format!(
                "ip2nets:\n- net-spec: tcp\n  interfaces: {{0: eth0, 1: eth1}}\n  ip-range: {ranges}\n- \
                 net-spec: tcp\n  interfaces: {{0: eth1}}\n- net-spec: tcp1\n  interfaces: {{0: eth1}}\n"
            );
            let made = resolved(&text).unwrap();
            assert_eq!(made.len(), 3, "{made:?}");
            assert!(
                made[0].ends_with("@tcp eth0") && made[1].ends_with("@tcp eth1") && made[2] == "tcp1 eth1",
                "{made:?}"
            );
        }
        check(
            "ip2nets:\n- {net-spec: tcp, ip-range: {0: 10.7.0.*}}\n- {net-spec: tcp, ip-range: {0: '*.*.*.*'}}\n",
            &["10.7.0.11@tcp eth0"],
        );
        // One for another host is passed over.
        check(
            "ip2nets:\n- {net-spec: tcp, interfaces: {0: eth9}}\n- {net-spec: tcp, interfaces: {0: eth1}, \
             ip-range: {0: 10.7.0.*}}\n- {net-spec: tcp}\n",
            &["tcp -"],
        );
    }

    #[test]
    fn older_nets_have_patterns() {
        check("net:\n- {net: tcp, pattern: 10.7.*.*}\n", &["10.7.0.11@tcp eth0", "10.7.1.12@tcp eth1"]);
        check("net:\n- {net: tcp, intf: eth1, pattern: 10.7.1.*}\n", &["10.7.1.12@tcp eth1"]);
        check("net:\n- {net: tcp, intf: eth1}\n", &["tcp eth1"]);
        refused(
            "net:\n- {net: tcp, intf: eth0, pattern: 10.7.1.*}\n",
            &["INVAL line 2, column 3: net tcp: interface \"eth0\" has no address of 10.7.1.*: it has \
               10.7.0.11, 2001:db8:7::b"],
        );
        refused(
            "net:\n- {net: tcp, pattern: 10.8.*.*}\n",
            &["NOENT line 2, column 3: none of the rules fits this host: no interface that is up has an \
               address of 10.8.*.*"],
        );
    }

    /// Tests 155, 157 and 162 of the catalogue, and what cannot be read.
    #[test]
    fn what_fits_nothing_is_refused_with_its_reasons() {
        refused(
            "ip2nets:\n- {net-spec: tcp, ip-range: {0: 10.9.*.*}}\n- {net-spec: tcp, interfaces: {0: eth0}, \
             ip-range: {0: '2001:db8:9::/64'}}\n",
            &["INVAL line 1, column 1: none of the items fits this host: no interface that is up has an \
               address of 10.9.*.*; interface \"eth0\" has no address of 2001:db8:9::/64: it has 10.7.0.11, \
               2001:db8:7::b"],
        );
        refused(
            "ip2nets:\n- interfaces: {0: eth0}\n",
            &["INVAL line 2, column 3: an item of 'ip2nets' without 'net-spec'"],
        );
        for (item, expected) in [
            ("{net-spec: lo}", "INVAL line 2, column 14: 'net-spec': net lo is always as it is"),
            (
                "{net-spec: tcp, net type: tcp}",
                "INVAL line 2, column 19: unknown key 'net type' in 'ip2nets'",
            ),
            (
                "{net-spec: tcp, ip-range: {0: 10.0.0}}",
                "INVAL line 2, column 33: 'ip-range': \"10.0.0\": expected addresses such as 10.0.[1-9].*, 10.0.0.0/16 or 2001:db8::/64",
            ),
            (
                "{net-spec: tcp, interfaces: {0: eth0, 1: eth0}}",
                "EXIST line 2, column 44: interface \"eth0\" again: each is expected once",
            ),
            (
                "{net-spec: tcp, interfaces: {0: 'eth0[1-0]'}}",
                "INVAL line 2, column 35: 'interfaces': \"[1-0]\": expected a list of CPTs such as [0,2-4]",
            ),
        ] {
            refused(&format!("ip2nets:\n- {item}\n"), &[expected]);
        }
    }
}
