//! Selection policies and peers in the terms of the core, and in those of the tools.

use lnet_core::node::{Peer, PeerEdit, peer_state};
use lnet_core::udsp::{self, AddressPattern, NidPattern, Rule, RuleEdit};
use lnet_model::Refusal;
use lnet_model::pattern::{NumberRange, UdspAddress, UdspPattern};
use lnet_model::peer::PeerSpec;
use lnet_model::records::PeerRecord;
use lnet_model::request::Outcome;
use lnet_model::udsp::{Selection, UdspInfo, UdspRule};
use lnet_wire::Nid;

use super::control::Control;

impl Control {
    pub(super) fn udsp_records(&self) -> Vec<UdspRule> {
        self.lnet.machine().rules().rules().iter().map(shown_rule).collect()
    }

    /// What becomes of a peer that is to be made.
    pub(super) fn outcome_of_peer(&self, spec: &PeerSpec) -> Outcome {
        let node = self.lnet.machine();
        let is_so = |peer: &Peer| {
            let is_locked = peer.is(peer_state::LOCK_PRIMARY) || !spec.lock_primary;
            peer.primary == spec.primary_nid
                && peer.is(peer_state::CONFIGURED)
                && peer.is_multi_rail() == spec.multi_rail
                && is_locked
                && spec.nids.iter().all(|nid| peer.ni(nid).is_some())
        };
        let is_so = node.peer(&spec.primary_nid).is_some_and(is_so);
        if is_so { Outcome::Unchanged } else { Outcome::Changed }
    }
}

/// The edit that makes a peer.
pub(super) fn peer_to_be(spec: &PeerSpec) -> PeerEdit {
    let PeerSpec { primary_nid, ref nids, multi_rail, lock_primary } = *spec;
    let (primary, nids) = (primary_nid, nids.clone());
    PeerEdit::Add { primary, nids, is_multi_rail: multi_rail, locks_primary: lock_primary }
}

/// The edit that makes a selection policy, or changes its priority.
pub(super) fn rule_to_be(index: Option<u32>, rule: &UdspRule) -> RuleEdit {
    RuleEdit::Add { index: index.map(|index| index as usize), rule: core_rule(rule) }
}

/// The rules that a selection policy of the older form stands for.
///
/// # Errors
/// [`Refusal`]: it has not the patterns of its kind.
pub(super) fn rules_of(selection: &Selection) -> Result<Vec<Rule>, Refusal> {
    Ok(selection.rules()?.iter().map(core_rule).collect())
}

fn core_rule(rule: &UdspRule) -> Rule {
    let UdspRule { source, destination, router, priority, selection } = rule;
    let pattern = |pattern: &Option<UdspPattern>| pattern.as_ref().map(to_core);
    let (source, destination, router) = (pattern(source), pattern(destination), pattern(router));
    Rule { source, destination, router, priority: *priority, selection: *selection }
}

fn to_core(pattern: &UdspPattern) -> NidPattern {
    let numbers = |ranges: &[NumberRange]| {
        let range = |&NumberRange { low, high, step }: &NumberRange| udsp::NumberRange { low, high, step };
        ranges.iter().map(range).collect::<Vec<_>>()
    };
    let address = pattern.address.as_ref().map(|address| match address {
        UdspAddress::Any => AddressPattern::Any,
        UdspAddress::Octets(octets) => {
            AddressPattern::Octets(Box::new(octets.each_ref().map(|octet| numbers(octet))))
        }
        &UdspAddress::Prefix { address, bits } => AddressPattern::Prefix { address, bits },
        UdspAddress::Number(number) => AddressPattern::Number(numbers(number)),
    });
    NidPattern { net_type: pattern.net_type, net_numbers: numbers(&pattern.net_numbers), address }
}

fn shown_rule(rule: &Rule) -> UdspRule {
    let Rule { source, destination, router, priority, selection } = rule;
    let pattern = |pattern: &Option<NidPattern>| pattern.as_ref().map(shown_pattern);
    let (source, destination, router) = (pattern(source), pattern(destination), pattern(router));
    UdspRule { source, destination, router, priority: *priority, selection: *selection }
}

fn shown_pattern(pattern: &NidPattern) -> UdspPattern {
    let numbers = |ranges: &[udsp::NumberRange]| {
        let range =
            |&udsp::NumberRange { low, high, step }: &udsp::NumberRange| NumberRange { low, high, step };
        ranges.iter().map(range).collect::<Vec<_>>()
    };
    let address = pattern.address.as_ref().map(|address| match address {
        AddressPattern::Any => UdspAddress::Any,
        AddressPattern::Octets(octets) => {
            UdspAddress::Octets(Box::new(octets.each_ref().map(|octet| numbers(octet))))
        }
        &AddressPattern::Prefix { address, bits } => UdspAddress::Prefix { address, bits },
        AddressPattern::Number(number) => UdspAddress::Number(numbers(number)),
    });
    UdspPattern { net_type: pattern.net_type, net_numbers: numbers(&pattern.net_numbers), address }
}

/// What the rules say of a local NI.
pub(super) fn local_info(rules: &udsp::RuleList, nid: &Nid) -> UdspInfo {
    UdspInfo {
        net_priority: rules.net_priority(nid.net()),
        nid_priority: rules.ni_priority(nid),
        preferred_sources: Vec::new(),
    }
}

/// What the rules say of an NI of a peer.
pub(super) fn peer_info<'a>(
    rules: &udsp::RuleList,
    nid: &Nid,
    local: impl Iterator<Item = &'a Nid>,
) -> UdspInfo {
    UdspInfo {
        net_priority: rules.peer_net_priority(nid.net()),
        nid_priority: rules.peer_priority(nid),
        preferred_sources: rules.preferred(nid, local).nids().collect(),
    }
}

// The tools have the same numbers for these.
const _: () = {
    assert!(
        PeerRecord::CONFIGURED == peer_state::CONFIGURED && PeerRecord::MULTI_RAIL == peer_state::MULTI_RAIL
    );
    assert!(PeerRecord::LOCK_PRIMARY == peer_state::LOCK_PRIMARY);
    assert!(UdspInfo::NONE == lnet_core::topology::PRIORITY_NONE);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_come_back_as_they_were_given() {
        for text in ["tcp", "xdp[1-3/2]", "10.0.[1-9].*@tcp*", "*@xdp", "2001:db8::/33@tcp", "[3,7]@gni1"] {
            let pattern: UdspPattern = text.parse().unwrap();
            assert_eq!(shown_pattern(&to_core(&pattern)), pattern);
        }
        let fits = |pattern: &str, nid: &str| {
            let rule = UdspRule::new(Some(pattern.parse().unwrap()), None, None, None).unwrap();
            let RuleEdit::Add { rule, .. } = rule_to_be(None, &rule) else { panic!("no rule") };
            let nid: Nid = nid.parse().unwrap();
            let source = rule.source.unwrap();
            source.covers(&nid)
        };
        assert!(fits("10.0.[1-9].*@tcp*", "10.0.3.200@tcp4") && !fits("10.0.[1-9].*@tcp*", "10.0.0.1@tcp"));
        assert!(fits("xdp", "2001:db8::1@xdp") && !fits("xdp", "10.0.0.1@xdp1"));
        assert!(fits("*@xdp", "2001:db8::1@xdp"));
    }
}
