//! User defined selection policies (UDSP): an ordered list of rules by which the administrator says which
//! nets and NIs are used before others (LNet `udsp.c`; spec: core 7.6, `lnetctl` 5).
//!
//! | patterns of a rule | effect |
//! |---|---|
//! | source: net, NID | priority of local nets, of local NIs |
//! | destination: net, NID | priority of peers' nets, of peers' NIs |
//! | destination and source | local NIs are preferred by peers' NIs |
//! | destination and router | gateways are preferred by peers' NIs |
//!
//! Invariants: no two rules have the same patterns; where several set the same priority the one with the
//! lowest index does; what follows from the rules is worked out anew from all of them, so that nothing is
//! left of one that goes.

mod selection;

use alloc::boxed::Box;
use alloc::vec::Vec;

use lnet_model::Refusal;
use lnet_model::pattern::UdspPattern;
use lnet_model::udsp::{Selection, UdspRule};
use lnet_wire::{Net, Nid};
use thiserror::Error;

use crate::topology::{PRIORITY_NONE, PreferredSources};

/// Most rules of a node.
pub const UDSP_RULES_MAX: usize = 1024;

/// How far before others a rule brings the local NIs that are preferred by it.
fn rank(rule: &UdspRule) -> u32 {
    let unset = if rule.selection.is_some() { PRIORITY_NONE - 1 } else { 0 };
    rule.priority.unwrap_or(unset)
}

/// What is wrong with a change of the rules.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RuleError {
    /// The rule makes no sense by itself (`-EINVAL`).
    #[error(transparent)]
    Rule(#[from] Refusal),
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
    #[error("there are {UDSP_RULES_MAX} selection policies, the most there can be")]
    TooMany,
}

impl RuleError {
    /// Its errno, positive.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Rule(refusal) => refusal.errno.0 as i32,
            Self::SeveralPreferred(_) => 1,
            Self::Unknown(_) | Self::NoSelection => 2,
            Self::SelectionExists(_) | Self::SelectionId(_) | Self::SelectionGone(_) => 17,
            Self::SelectionDiffers(_) => 22,
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
        index: Option<u32>,
        /// The rule.
        rule: UdspRule,
    },
    /// A selection comes, and gets a number of its own.
    AddSelection(Selection),
    /// A selection goes: that of a number, that of these patterns, or that of both.
    DeleteSelection {
        /// Its number.
        id: Option<u32>,
        /// A policy with the same patterns; its priority is of no interest.
        like: Option<Selection>,
    },
    /// A rule goes; all without an index.
    Delete {
        /// Its index.
        index: Option<u32>,
    },
}

/// The rules of a node, the strongest one first.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RuleList {
    rules: Vec<UdspRule>,
    /// The highest number that a selection ever had: none is given twice.
    last_selection: u32,
    /// The highest number of the selections that have gone since there was none: up to it a free one may have
    /// been used.
    gone_selection: u32,
}

impl RuleList {
    /// The rules, by index.
    #[must_use]
    pub fn rules(&self) -> &[UdspRule] {
        &self.rules
    }

    /// Makes a change, or none.
    ///
    /// # Errors
    /// [`RuleError`].
    pub(crate) fn apply(&mut self, edit: &RuleEdit) -> Result<(), RuleError> {
        match edit {
            RuleEdit::Add { index, rule } => self.add(*index, rule.clone().checked()?),
            RuleEdit::AddSelection(selection) => self.add_selection(&selection.rules()?),
            RuleEdit::DeleteSelection { id, like } => {
                let rules = like.as_ref().map(Selection::rules).transpose()?.unwrap_or_default();
                self.delete_selection(*id, &rules)
            }
            RuleEdit::Delete { index: None } => {
                self.rules.clear();
                Ok(())
            }
            RuleEdit::Delete { index: Some(index) } => {
                let index = *index as usize;
                if index >= self.rules.len() {
                    return Err(RuleError::Unknown(index));
                }
                let id = self.rules.remove(index).selection;
                self.note_gone(id);
                Ok(())
            }
        }
    }

    fn add(&mut self, index: Option<u32>, rule: UdspRule) -> Result<(), RuleError> {
        if let Some(same) = self.rules.iter().position(|known| known.is_like(&rule)) {
            // The rank of a pair stays that of its selection.
            if !rule.is_priority() || self.rules[same].priority == rule.priority {
                return Err(RuleError::Exists(same));
            }
            self.rules[same].priority = rule.priority;
            return Ok(());
        }
        if self.rules.len() >= UDSP_RULES_MAX {
            return Err(RuleError::TooMany);
        }
        self.take_number(&rule)?;
        let index = index.map_or(usize::MAX, |index| index as usize).min(self.rules.len());
        self.rules.insert(index, rule);
        Ok(())
    }

    /// The priority by the first rule with this pattern alone that fits.
    fn priority(&self, fits: impl Fn(&UdspRule) -> bool) -> u32 {
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
        let sources: Vec<_> = pairs.filter_map(|rule| Some((rule.source.as_ref()?, rank(rule)))).collect();
        let rank =
            |own: &Nid| sources.iter().filter(|(from, _)| from.covers(own)).map(|(_, rank)| *rank).min();
        local.filter_map(|own| Some((*own, rank(own)?))).collect()
    }

    /// Preferences for gateways that rules state: which NIDs of peers prefer which of these.
    #[must_use]
    pub fn preferred_gateways<I: Iterator<Item = Nid>>(
        &self,
        gateways: impl Fn() -> I,
    ) -> Vec<(UdspPattern, Box<[Nid]>)> {
        let preference = |rule: &UdspRule| {
            let (destination, router) = (rule.destination.as_ref()?, rule.router.as_ref()?);
            Some((destination.clone(), gateways().filter(|nid| router.covers(nid)).collect()))
        };
        self.rules.iter().filter_map(preference).collect()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::testing::nid;

    fn pattern(text: &str) -> UdspPattern {
        text.parse().unwrap()
    }

    fn net(number: u32) -> Option<UdspPattern> {
        Some(pattern(&alloc::format!("tcp{number}")))
    }

    /// NIDs of hosts in a range on a net.
    fn hosts(number: u32, low: u32, high: u32, step: u32) -> Option<UdspPattern> {
        Some(pattern(&alloc::format!("*.*.*.[{low}-{high}/{step}]@tcp{number}")))
    }

    fn source(source: Option<UdspPattern>, priority: u32) -> UdspRule {
        UdspRule::new(source, None, None, Some(priority))
    }

    fn destination(destination: Option<UdspPattern>, priority: u32) -> UdspRule {
        UdspRule::new(None, destination, None, Some(priority))
    }

    fn list(rules: &[UdspRule]) -> RuleList {
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
        let rule = UdspRule::new(hosts(1, 2, 3, 1), net(1), None, None);
        let other = UdspRule::new(net(2), hosts(1, 7, 7, 1), None, None);
        let list = list(&[rule, other]);
        let local = [nid(1, 1), nid(1, 2), nid(1, 3), nid(2, 1)];
        assert_eq!(list.preferred(&nid(1, 9), local.iter()), local[1..3].iter().copied().collect());
        assert_eq!(list.preferred(&nid(1, 7), local.iter()), local[1..].iter().copied().collect());
        assert!(list.preferred(&nid(2, 7), local.iter()).is_empty());
        assert_eq!(list.peer_net_priority(nid(1, 1).net()), PRIORITY_NONE, "a pair gives no priority");
    }

    #[test]
    fn a_router_rule_makes_gateways_preferred() {
        let rule = |hosts, router| UdspRule::new(None, hosts, router, None);
        let list = list(&[rule(hosts(9, 1, 4, 1), hosts(1, 3, 3, 1)), rule(hosts(9, 4, 4, 1), net(2))]);
        let gateways = [nid(1, 2), nid(1, 3), nid(2, 2)];
        let preferred = list.preferred_gateways(|| gateways.into_iter());
        let preferred = |host| {
            let rules = preferred.iter().filter(|(pattern, _)| pattern.covers(&nid(9, host)));
            rules.flat_map(|(_, gateways)| gateways).copied().collect::<Vec<_>>()
        };
        assert_eq!([1, 4, 5].map(preferred), [vec![nid(1, 3)], vec![nid(1, 3), nid(2, 2)], vec![]]);
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
        list.apply(&add(None, UdspRule { priority: None, ..source(net(5), 0) })).unwrap();
        assert_eq!(list.rules()[3].priority, Some(0));
        list.apply(&RuleEdit::Delete { index: None }).unwrap();
        assert_eq!(list, RuleList::default());
    }

    #[test]
    fn patterns_that_go_not_together_are_refused() {
        let mut rules = RuleList::default();
        let mut errno = |source, destination, router, priority| {
            let rule = UdspRule::new(source, destination, router, priority);
            rules.apply(&RuleEdit::Add { index: None, rule }).map_err(|error| error.errno())
        };
        assert_eq!(errno(None, None, None, None), Err(22));
        assert_eq!(errno(None, None, net(1), Some(1)), Err(22));
        assert_eq!(errno(net(1), None, net(1), None), Err(22));
        assert_eq!(errno(net(1), net(1), net(1), None), Err(22));
        assert_eq!(errno(net(1), net(1), None, Some(1)), Err(22));
        assert_eq!(errno(None, net(1), net(2), Some(1)), Err(22));
        assert_eq!(errno(None, net(1), net(2), None), Ok(()));
    }
}
