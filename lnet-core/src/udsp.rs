//! User defined selection policies (UDSP): an ordered list of rules by which the administrator says which
//! nets and NIs are used before others (LNet `udsp.c`; spec: core 7.6, `lnetctl` 5).
//!
//! | patterns of a rule | effect |
//! |---|---|
//! | source: net, NID | priority of local nets, of local NIs |
//! | destination: net, NID | priority of peers' nets, of peers' NIs |
//! | destination and source | local NIs are preferred by peers' NIs |
//! | destination and router | gateways are preferred by peers' NIs: kept, and without effect while nothing is routed |
//!
//! Invariants: no two rules have the same patterns; where several set the same priority the one with the
//! lowest index does; what follows from the rules is worked out anew from all of them, so that nothing is
//! left of one that goes.

mod selection;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;

use lnet_wire::{Net, NetType, Nid};
use thiserror::Error;

use crate::topology::{PRIORITY_NONE, PreferredSources};

/// Most rules of a node.
pub const RULES_MAX: usize = 1024;

/// Numbers from `low` to `high`, both included, each `step` after the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NumberRange {
    /// The first.
    pub low: u32,
    /// None is greater.
    pub high: u32,
    /// At least 1.
    pub step: u32,
}

impl NumberRange {
    const fn contains(&self, number: u32) -> bool {
        self.low <= number && number <= self.high && (number - self.low).is_multiple_of(self.step)
    }
}

/// Numbers, by ranges of which one has to contain them.
type Numbers = Vec<NumberRange>;

fn contains(numbers: &Numbers, number: u32) -> bool {
    numbers.iter().any(|range| range.contains(number))
}

/// The addresses that a pattern fits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AddressPattern {
    /// All.
    Any,
    /// The four octets of an IPv4 address.
    Octets(Box<[Numbers; 4]>),
    /// The IP addresses whose first bits are those of this one.
    Prefix {
        /// The address.
        address: IpAddr,
        /// How many bits: at most those that it has.
        bits: u8,
    },
    /// An address that is a number.
    Number(Numbers),
}

impl AddressPattern {
    fn fits(&self, nid: &Nid) -> bool {
        // Large NIDs have no small form, and no octets to go by.
        let address = nid.to_small().map(|small| small as u32);
        match (self, address) {
            (Self::Any, _) => true,
            (Self::Prefix { address, bits }, _) => {
                nid.ip().is_some_and(|ip| begins_alike(ip, *address, (*bits).into()))
            }
            (Self::Octets(octets), Some(address)) => octets
                .iter()
                .zip(address.to_be_bytes())
                .all(|(numbers, octet)| contains(numbers, octet.into())),
            (Self::Number(numbers), Some(address)) => contains(numbers, address),
            (_, None) => false,
        }
    }
}

/// Whether two addresses are of one family and have these first bits in common.
fn begins_alike(one: IpAddr, other: IpAddr, bits: u32) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros() >= bits,
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros() >= bits,
        _ => false,
    }
}

/// Nets, or NIDs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NidPattern {
    /// The type of the nets.
    pub net_type: NetType,
    /// Their numbers.
    pub net_numbers: Vec<NumberRange>,
    /// The addresses of the NIDs; a pattern without them means whole nets.
    pub address: Option<AddressPattern>,
}

impl NidPattern {
    fn fits_net(&self, net: Net) -> bool {
        net.net_type() == self.net_type && contains(&self.net_numbers, net.number().into())
    }

    /// Whether it means this net as a whole.
    fn is_net(&self, net: Net) -> bool {
        self.address.is_none() && self.fits_net(net)
    }

    /// Whether it means this NID, and not its net as a whole.
    fn is_nid(&self, nid: &Nid) -> bool {
        self.address.as_ref().is_some_and(|address| self.fits_net(nid.net()) && address.fits(nid))
    }

    /// Whether it means this NID or its net.
    #[must_use]
    pub fn covers(&self, nid: &Nid) -> bool {
        self.fits_net(nid.net()) && self.address.as_ref().is_none_or(|address| address.fits(nid))
    }
}

/// One rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Local nets or NIDs.
    pub source: Option<NidPattern>,
    /// Nets or NIDs of peers.
    pub destination: Option<NidPattern>,
    /// Gateways.
    pub router: Option<NidPattern>,
    /// The priority that it gives, 0 the best. Of a rule with two patterns it is the rank of what it prefers,
    /// which selections alone have.
    pub priority: Option<u32>,
    /// The number of the selection that it is of, if it is of one: a rule of the Multi-Rail design's, which
    /// stands for one or two of these.
    pub selection: Option<u32>,
}

impl Rule {
    fn patterns(&self) -> [&Option<NidPattern>; 3] {
        [&self.source, &self.destination, &self.router]
    }

    /// Whether it says which local NIs an NI of a peer prefers.
    pub(crate) fn prefers_for(&self, nid: &Nid) -> bool {
        self.source.is_some() && self.destination.as_ref().is_some_and(|pattern| pattern.covers(nid))
    }

    /// How far before others it brings the local NIs that are preferred by it.
    fn rank(&self) -> u32 {
        let unset = if self.selection.is_some() { PRIORITY_NONE - 1 } else { 0 };
        self.priority.unwrap_or(unset)
    }

    /// Whether it gives a priority.
    const fn is_priority(&self) -> bool {
        self.router.is_none() && (self.source.is_none() || self.destination.is_none())
    }

    fn check(&self) -> Result<(), RuleError> {
        match (&self.source, &self.destination, &self.router) {
            (Some(_), None, None) | (None, Some(_), None) => Ok(()),
            (None, Some(_), Some(_)) if self.selection.is_some() => Err(RuleError::Patterns),
            (Some(_), Some(_), None) | (None, Some(_), Some(_))
                if self.priority.is_some() && self.selection.is_none() =>
            {
                Err(RuleError::Priority)
            }
            (Some(_), Some(_), None) | (None, Some(_), Some(_)) => Ok(()),
            _ => Err(RuleError::Patterns),
        }
    }
}

/// What is wrong with a change of the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RuleError {
    /// The patterns go not together (`-EINVAL`).
    #[error("a selection policy of these patterns: src, dst, src and dst, or dst and rte are expected")]
    Patterns,
    /// A rule that makes a list of what is preferred has a priority (`-EINVAL`).
    #[error("a selection policy of two patterns has no priority: it says which of two is preferred")]
    Priority,
    /// There is such a rule (`-EALREADY`).
    #[error("the selection policy exists already, as number {0}")]
    Exists(usize),
    /// There is such a selection (`-EEXIST`).
    #[error("there is a selection of these patterns already, with the id {0}")]
    SelectionExists(u32),
    /// The number is that of another selection (`-EEXIST`).
    #[error("the id {0} is that of another selection")]
    SelectionId(u32),
    /// The number was that of a selection that is no more (`-EEXIST`).
    #[error(
        "the id {0} was that of a selection that is no more, and is not given again while there are others"
    )]
    SelectionGone(u32),
    /// A selection has the highest number there is (`-ENOSPC`).
    #[error("a selection had the highest id there is, so that there is none for another one")]
    NoNumber,
    /// There is no such selection (`-ENOENT`).
    #[error("there is no such selection")]
    NoSelection,
    /// The number and the patterns are those of two selections (`-EINVAL`).
    #[error("the selection {0} has other patterns")]
    SelectionDiffers(u32),
    /// There is none of this index (`-ENOENT`).
    #[error("there is no selection policy {0}")]
    Unknown(usize),
    /// A peer NI that is not Multi-Rail would prefer several local NIs (`-EPERM`).
    #[error("{0} belongs to a peer that is not Multi-Rail: one preferred local nid is expected")]
    SeveralPreferred(Nid),
    /// There are as many as may be (`-ENOSPC`).
    #[error("there are {RULES_MAX} selection policies, the most there can be")]
    TooMany,
}

impl RuleError {
    /// Its errno, positive.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::SeveralPreferred(_) => 1,
            Self::Unknown(_) | Self::NoSelection => 2,
            Self::SelectionExists(_) | Self::SelectionId(_) | Self::SelectionGone(_) => 17,
            Self::Patterns | Self::Priority | Self::SelectionDiffers(_) => 22,
            Self::TooMany | Self::NoNumber => 28,
            Self::Exists(_) => 114,
        }
    }
}

/// A change of the rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RuleEdit {
    /// A rule comes, or the priority of the one with these patterns becomes another one.
    Add {
        /// Its index; behind the others without one, or where there are fewer.
        index: Option<usize>,
        /// The rule.
        rule: Rule,
    },
    /// A selection comes, with a number of its own.
    AddSelection {
        /// Its rules, which get the number.
        rules: Vec<Rule>,
    },
    /// A selection goes: that of a number, that of these patterns, or that of both.
    DeleteSelection {
        /// Its number.
        id: Option<u32>,
        /// Its rules; their priorities are of no interest.
        rules: Vec<Rule>,
    },
    /// A rule goes; all without an index.
    Delete {
        /// Its index.
        index: Option<usize>,
    },
}

/// The rules of a node, the strongest one first.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RuleList {
    rules: Vec<Rule>,
    /// The highest number that a selection ever had: none is given twice.
    last_selection: u32,
    /// The highest number of the selections that have gone since there was none: up to it a free one may have
    /// been used.
    gone_selection: u32,
}

impl RuleList {
    /// The rules, by index.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Makes a change, or none.
    ///
    /// # Errors
    /// [`RuleError`].
    pub(crate) fn apply(&mut self, edit: &RuleEdit) -> Result<(), RuleError> {
        match edit {
            RuleEdit::Add { index, rule } => self.add(*index, rule.clone()),
            RuleEdit::AddSelection { rules } => self.add_selection(rules),
            RuleEdit::DeleteSelection { id, rules } => self.delete_selection(*id, rules),
            RuleEdit::Delete { index: None } => {
                self.rules.clear();
                Ok(())
            }
            RuleEdit::Delete { index: Some(index) } if *index < self.rules.len() => {
                let id = self.rules.remove(*index).selection;
                self.note_gone(id);
                Ok(())
            }
            RuleEdit::Delete { index: Some(index) } => Err(RuleError::Unknown(*index)),
        }
    }

    fn add(&mut self, index: Option<usize>, mut rule: Rule) -> Result<(), RuleError> {
        rule.check()?;
        if rule.is_priority() {
            rule.priority = rule.priority.or(Some(0));
        }
        if let Some(same) = self.rules.iter().position(|known| known.patterns() == rule.patterns()) {
            // Of a pair the rank stays that of its selection.
            if !rule.is_priority() || self.rules[same].priority == rule.priority {
                return Err(RuleError::Exists(same));
            }
            self.rules[same].priority = rule.priority;
            return Ok(());
        }
        if self.rules.len() >= RULES_MAX {
            return Err(RuleError::TooMany);
        }
        self.take_number(&rule)?;
        let index = index.unwrap_or(usize::MAX).min(self.rules.len());
        self.rules.insert(index, rule);
        Ok(())
    }

    /// The priority by the first rule with this pattern alone that fits.
    fn priority(&self, fits: impl Fn(&Rule) -> bool) -> u32 {
        let rule = self.rules.iter().find(|rule| rule.is_priority() && fits(rule));
        rule.and_then(|rule| rule.priority).unwrap_or(PRIORITY_NONE)
    }

    /// The priority of a local net; [`PRIORITY_NONE`] where no rule names it, here and below.
    #[must_use]
    pub fn net_priority(&self, net: Net) -> u32 {
        self.priority(|rule| rule.source.as_ref().is_some_and(|pattern| pattern.is_net(net)))
    }

    /// The priority of a local NI.
    #[must_use]
    pub fn ni_priority(&self, nid: &Nid) -> u32 {
        self.priority(|rule| rule.source.as_ref().is_some_and(|pattern| pattern.is_nid(nid)))
    }

    /// The priority of the nets of peers.
    #[must_use]
    pub fn peer_net_priority(&self, net: Net) -> u32 {
        self.priority(|rule| rule.destination.as_ref().is_some_and(|pattern| pattern.is_net(net)))
    }

    /// The priority of an NI of a peer.
    #[must_use]
    pub fn peer_priority(&self, nid: &Nid) -> u32 {
        self.priority(|rule| rule.destination.as_ref().is_some_and(|pattern| pattern.is_nid(nid)))
    }

    /// The NIDs among the local ones that an NI of a peer prefers, in their order, each with the best rank
    /// that a rule gives it.
    #[must_use]
    pub fn preferred<'a>(&self, nid: &Nid, local: impl Iterator<Item = &'a Nid>) -> PreferredSources {
        let pairs = self.rules.iter().filter(|rule| rule.prefers_for(nid));
        let sources: Vec<_> = pairs.filter_map(|rule| Some((rule.source.as_ref()?, rule.rank()))).collect();
        let rank =
            |own: &Nid| sources.iter().filter(|(from, _)| from.covers(own)).map(|(_, rank)| *rank).min();
        local.filter_map(|own| Some((*own, rank(own)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::testing::nid;

    fn one(number: u32) -> Numbers {
        vec![NumberRange { low: number, high: number, step: 1 }]
    }

    fn net(number: u32) -> Option<NidPattern> {
        Some(NidPattern { net_type: NetType::TCP, net_numbers: one(number), address: None })
    }

    /// NIDs of hosts in a range on a net.
    fn hosts(number: u32, low: u32, high: u32, step: u32) -> Option<NidPattern> {
        let all = || vec![NumberRange { low: 0, high: 255, step: 1 }];
        let octets = [all(), all(), all(), vec![NumberRange { low, high, step }]];
        let address = Some(AddressPattern::Octets(Box::new(octets)));
        Some(NidPattern { address, ..net(number).unwrap() })
    }

    fn source(source: Option<NidPattern>, priority: u32) -> Rule {
        Rule { source, destination: None, router: None, priority: Some(priority), selection: None }
    }

    fn destination(destination: Option<NidPattern>, priority: u32) -> Rule {
        Rule { source: None, destination, router: None, priority: Some(priority), selection: None }
    }

    fn list(rules: &[Rule]) -> RuleList {
        let mut list = RuleList::default();
        for rule in rules {
            list.apply(&RuleEdit::Add { index: None, rule: rule.clone() }).unwrap();
        }
        list
    }

    #[test]
    fn the_lowest_index_wins_and_each_kind_has_its_own_objects() {
        let rules = [
            source(hosts(1, 2, 8, 2), 3),
            source(hosts(1, 4, 4, 1), 1),
            source(net(1), 7),
            destination(net(2), 5),
            destination(hosts(2, 9, 9, 1), 6),
        ];
        let list = list(&rules);
        let own = [1, 2, 4, 5].map(|host| list.ni_priority(&nid(1, host)));
        assert_eq!(own, [PRIORITY_NONE, 3, 3, PRIORITY_NONE]);
        let net = |nid: Nid| nid.net();
        assert_eq!([1, 2].map(|at| list.net_priority(net(nid(at, 1)))), [7, PRIORITY_NONE]);
        assert_eq!([1, 2].map(|at| list.peer_net_priority(net(nid(at, 1)))), [PRIORITY_NONE, 5]);
        assert_eq!([8, 9].map(|host| list.peer_priority(&nid(2, host))), [PRIORITY_NONE, 6]);
    }

    #[test]
    fn a_pair_makes_local_nis_preferred() {
        let rule = Rule {
            source: hosts(1, 2, 3, 1),
            destination: net(1),
            router: None,
            priority: None,
            selection: None,
        };
        let other = Rule {
            source: net(2),
            destination: hosts(1, 7, 7, 1),
            router: None,
            priority: None,
            selection: None,
        };
        let list = list(&[rule, other]);
        let local = [nid(1, 1), nid(1, 2), nid(1, 3), nid(2, 1)];
        assert_eq!(list.preferred(&nid(1, 9), local.iter()), local[1..3].iter().copied().collect());
        assert_eq!(list.preferred(&nid(1, 7), local.iter()), local[1..].iter().copied().collect());
        assert!(list.preferred(&nid(2, 7), local.iter()).is_empty());
        assert_eq!(list.peer_net_priority(nid(1, 1).net()), PRIORITY_NONE, "a pair gives no priority");
    }

    #[test]
    fn rules_are_inserted_renumbered_and_changed_in_place() {
        let mut list = list(&[source(net(1), 1), source(net(2), 2)]);
        let add = |index, rule| RuleEdit::Add { index, rule };
        list.apply(&add(Some(1), destination(net(3), 3))).unwrap();
        list.apply(&add(Some(9), destination(net(4), 4))).unwrap();
        let priorities = |list: &RuleList| list.rules().iter().map(|rule| rule.priority).collect::<Vec<_>>();
        assert_eq!(priorities(&list), [Some(1), Some(3), Some(2), Some(4)]);
        assert_eq!(list.apply(&add(Some(0), source(net(2), 2))), Err(RuleError::Exists(2)));
        list.apply(&add(Some(0), source(net(2), 8))).unwrap();
        list.apply(&RuleEdit::Delete { index: Some(0) }).unwrap();
        assert_eq!(priorities(&list), [Some(3), Some(8), Some(4)]);
        let unknown = RuleEdit::Delete { index: Some(3) };
        assert_eq!(list.apply(&unknown).map_err(|error| error.errno()), Err(2));
        // Without a number a priority is the best one.
        list.apply(&add(None, Rule { priority: None, ..source(net(5), 0) })).unwrap();
        assert_eq!(list.rules()[3].priority, Some(0));
        list.apply(&RuleEdit::Delete { index: None }).unwrap();
        assert_eq!(list, RuleList::default());
    }

    #[test]
    fn patterns_that_go_not_together_are_refused() {
        let mut rules = RuleList::default();
        let mut refused = |source, destination, router, priority| {
            let rule = Rule { source, destination, router, priority, selection: None };
            rules.apply(&RuleEdit::Add { index: None, rule }).err()
        };
        assert_eq!(refused(None, None, None, None), Some(RuleError::Patterns));
        assert_eq!(refused(None, None, net(1), Some(1)), Some(RuleError::Patterns));
        assert_eq!(refused(net(1), None, net(1), None), Some(RuleError::Patterns));
        assert_eq!(refused(net(1), net(1), net(1), None), Some(RuleError::Patterns));
        assert_eq!(refused(net(1), net(1), None, Some(1)), Some(RuleError::Priority));
        assert_eq!(refused(None, net(1), net(2), Some(1)), Some(RuleError::Priority));
        assert_eq!(refused(None, net(1), net(2), None), None);
    }

    #[test]
    fn a_wildcard_fits_large_nids_and_octets_do_not() {
        let large = Nid::new_ip(Net::TCP, "2001:db8::1".parse().unwrap()).unwrap();
        let any = NidPattern { address: Some(AddressPattern::Any), ..net(0).unwrap() };
        assert!(any.is_nid(&large));
        assert!(!hosts(0, 0, 255, 1).unwrap().is_nid(&large));
        let prefix = |address: &str, bits| {
            let address = Some(AddressPattern::Prefix { address: address.parse().unwrap(), bits });
            NidPattern { address, ..net(0).unwrap() }
        };
        let small = Nid::new_ip(Net::TCP, "10.1.2.3".parse().unwrap()).unwrap();
        assert!(prefix("2001:db8::", 64).is_nid(&large) && prefix("2001:db8::1", 128).is_nid(&large));
        assert!(!prefix("2001:db8::2", 127).is_nid(&large) && !prefix("2001:db8::", 64).is_nid(&small));
        assert!(prefix("10.1.0.0", 16).is_nid(&small) && !prefix("10.2.0.0", 16).is_nid(&small));
        let number = AddressPattern::Number(one(7));
        let gni = NidPattern { net_type: NetType::GNI, net_numbers: one(0), address: Some(number) };
        let nid = |address| Nid::new_number(Net::new(NetType::GNI, 0), address).unwrap();
        assert_eq!([7, 8].map(|address| gni.is_nid(&nid(address))), [true, false]);
    }
}
