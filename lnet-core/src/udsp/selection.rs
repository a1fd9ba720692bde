//! Selections: the rules of the Multi-Rail design, each of which stands for one or two of today's.
//!
//! | selection | rules |
//! |---|---|
//! | net | priority of local nets |
//! | NID | priority of local NIs, and of peers' NIs |
//! | peer | local NIs are preferred by peers' NIs, by rank |
//!
//! Invariants: a selection has a number that no other one has, had or will have, but that a document may
//! bring any numbers into a list without selections; its rules are in the list of all, where they keep the
//! order of their creation.

use alloc::vec::Vec;

use lnet_model::udsp::UdspRule;

use super::{RuleError, RuleList, UDSP_RULES_MAX};

impl RuleList {
    pub(super) fn add_selection(&mut self, rules: &[UdspRule]) -> Result<(), RuleError> {
        let id = self.last_selection.checked_add(1).ok_or(RuleError::NoNumber)?;
        let rules: Vec<_> =
            rules.iter().map(|rule| UdspRule { selection: Some(id), ..rule.clone() }).collect();
        for rule in &rules {
            if let Some(at) = self.rules.iter().position(|known| known.is_like(rule)) {
                let known = self.rules[at].selection;
                return Err(known.map_or(RuleError::Exists(at), RuleError::SelectionExists));
            }
        }
        if self.rules.len() + rules.len() > UDSP_RULES_MAX {
            return Err(RuleError::TooMany);
        }
        self.last_selection = id;
        self.rules.extend(rules);
        Ok(())
    }

    pub(super) fn delete_selection(&mut self, id: Option<u32>, rules: &[UdspRule]) -> Result<(), RuleError> {
        let like = |rule: &UdspRule| self.rules.iter().find(|known| known.is_like(rule));
        let named = rules.first().map(|rule| like(rule).and_then(|known| known.selection));
        let id = match (id, named) {
            (Some(id), Some(named)) if named != Some(id) => {
                let is_known = self.rules.iter().any(|rule| rule.selection == Some(id));
                return Err(if is_known { RuleError::SelectionDiffers(id) } else { RuleError::NoSelection });
            }
            (Some(id), _) => Some(id),
            (None, named) => named.flatten(),
        };
        let before = self.rules.len();
        self.rules.retain(|rule| id.is_none() || rule.selection != id);
        if self.rules.len() == before {
            return Err(RuleError::NoSelection);
        }
        self.note_gone(id);
        Ok(())
    }

    /// A rule has gone, of this selection if it was of one; of two rules of one the other may be there still.
    pub(super) fn note_gone(&mut self, id: Option<u32>) {
        if !self.rules.iter().any(|rule| rule.selection == id) {
            self.gone_selection = self.gone_selection.max(id.unwrap_or(0));
        }
    }

    /// Notes the number that a rule comes with, if it is of a selection: free, or that of the other half of a
    /// selection of NIDs. Numbers of selections that are no more may come only where there are no others: a
    /// document brings back all that there were.
    pub(super) fn take_number(&mut self, rule: &UdspRule) -> Result<(), RuleError> {
        let Some(id) = rule.selection else { return Ok(()) };
        let is_half = |known: &UdspRule| {
            known.source == rule.destination
                && known.destination == rule.source
                && known.source.is_none() != known.destination.is_none()
        };
        let its = || self.rules.iter().filter(|known| known.selection == Some(id));
        if its().any(|known| !is_half(known)) {
            return Err(RuleError::SelectionId(id));
        }
        if self.rules.iter().all(|known| known.selection.is_none()) {
            self.gone_selection = 0;
        } else if its().next().is_none() && id <= self.gone_selection {
            return Err(RuleError::SelectionGone(id));
        }
        self.last_selection = self.last_selection.max(id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use lnet_model::pattern::UdspPattern;
    use lnet_model::udsp::{Selection, SelectionKind};

    use super::super::RuleEdit;
    use super::*;
    use crate::testing::nid;

    fn net(number: u32) -> UdspPattern {
        alloc::format!("tcp{number}").parse().unwrap()
    }

    fn nids(number: u32) -> UdspPattern {
        alloc::format!("*@tcp{number}").parse().unwrap()
    }

    fn of_net(number: u32, priority: u32) -> Selection {
        Selection::new(SelectionKind::Net, vec![net(number)], Some(priority)).unwrap()
    }

    fn of_nids(number: u32, priority: u32) -> Selection {
        Selection::new(SelectionKind::Nid, vec![nids(number)], Some(priority)).unwrap()
    }

    fn add(list: &mut RuleList, selection: Selection) -> Result<(), RuleError> {
        list.apply(&RuleEdit::AddSelection(selection))
    }

    /// Adds a rule that comes with a number.
    fn bring(list: &mut RuleList, rule: UdspRule, id: u32) -> Result<(), RuleError> {
        list.apply(&RuleEdit::Add { index: None, rule: UdspRule { selection: Some(id), ..rule } })
    }

    fn bring_net(list: &mut RuleList, number: u32, id: u32) -> Result<(), RuleError> {
        bring(list, UdspRule::new(Some(net(number)), None, None, Some(1)), id)
    }

    fn numbers(list: &RuleList) -> Vec<Option<u32>> {
        list.rules().iter().map(|rule| rule.selection).collect()
    }

    #[test]
    fn each_has_a_number_of_its_own_and_none_is_there_twice() {
        let mut list = RuleList::default();
        let delete = |id, like| RuleEdit::DeleteSelection { id, like };
        add(&mut list, of_net(1, 3)).unwrap();
        add(&mut list, of_nids(2, 1)).unwrap();
        assert_eq!(numbers(&list), [Some(1), Some(2), Some(2)]);
        assert_eq!(add(&mut list, of_nids(2, 7)), Err(RuleError::SelectionExists(2)));
        assert_eq!(list.apply(&delete(Some(1), Some(of_nids(2, 0)))), Err(RuleError::SelectionDiffers(1)));
        assert_eq!(list.apply(&delete(Some(9), Some(of_nids(2, 0)))), Err(RuleError::NoSelection));
        assert_eq!(list.apply(&delete(Some(9), None)), Err(RuleError::NoSelection));
        assert_eq!(list.apply(&delete(None, Some(of_nids(3, 0)))), Err(RuleError::NoSelection));
        list.apply(&delete(Some(2), Some(of_nids(2, 0)))).unwrap();
        assert_eq!(numbers(&list), [Some(1)]);
        // Its number is given to no other one.
        add(&mut list, of_nids(2, 7)).unwrap();
        list.apply(&delete(None, Some(of_net(1, 0)))).unwrap();
        assert_eq!(numbers(&list), [Some(3), Some(3)]);
        list.apply(&delete(Some(3), None)).unwrap();
        assert_eq!(list.rules(), []);
    }

    #[test]
    fn a_number_that_comes_with_a_rule_is_kept() {
        let mut list = RuleList::default();
        let [source, destination] = of_nids(1, 4).rules().unwrap().try_into().unwrap();
        bring(&mut list, source, 5).unwrap();
        bring(&mut list, destination, 5).unwrap();
        assert_eq!(bring_net(&mut list, 1, 5), Err(RuleError::SelectionId(5)));
        add(&mut list, of_nids(2, 1)).unwrap();
        assert_eq!(numbers(&list), [Some(5), Some(5), Some(6), Some(6)]);
    }

    #[test]
    fn the_last_number_is_given_once() {
        let mut list = RuleList::default();
        bring_net(&mut list, 1, u32::MAX - 1).unwrap();
        add(&mut list, of_nids(2, 1)).unwrap();
        assert_eq!(add(&mut list, of_nids(3, 1)), Err(RuleError::NoNumber));
        assert_eq!(numbers(&list), [Some(u32::MAX - 1), Some(u32::MAX), Some(u32::MAX)]);
    }

    /// A document that was exported brings its numbers into a node that has had none of them, or has none any
    /// longer.
    #[test]
    fn the_number_of_a_deleted_selection_comes_with_no_rule_while_there_are_others() {
        let mut list = RuleList::default();
        // Policies come in the order of their rules, which is not that of their numbers.
        for (at, id) in [(1, 7), (2, 3), (3, 5)] {
            bring_net(&mut list, at, id).unwrap();
        }
        list.apply(&RuleEdit::DeleteSelection { id: Some(3), like: None }).unwrap();
        assert_eq!(bring_net(&mut list, 4, 3), Err(RuleError::SelectionGone(3)));
        list.apply(&RuleEdit::Delete { index: Some(1) }).unwrap();
        assert_eq!(bring_net(&mut list, 3, 5), Err(RuleError::SelectionGone(5)));
        list.apply(&RuleEdit::Delete { index: None }).unwrap();
        for (at, id) in [(1, 7), (2, 3), (3, 5)] {
            bring_net(&mut list, at, id).unwrap();
        }
        add(&mut list, of_nids(2, 1)).unwrap();
        assert_eq!(numbers(&list), [7, 3, 5, 8, 8].map(Some));
    }

    #[test]
    fn the_first_of_a_type_wins_and_pairs_have_ranks() {
        let mut list = RuleList::default();
        for (number, priority) in [(1, 4), (2, 9)] {
            add(&mut list, of_nids(number, priority)).unwrap();
        }
        assert_eq!((list.ni_priority(&nid(1, 5)), list.peer_priority(&nid(2, 5))), (4, 9));
        let pair =
            |from, rank| Selection::new(SelectionKind::Peer, vec![nids(from), nids(7)], Some(rank)).unwrap();
        add(&mut list, pair(1, 8)).unwrap();
        add(&mut list, pair(2, 3)).unwrap();
        let own = [nid(1, 1), nid(2, 1), nid(3, 1)];
        let preferred = list.preferred(&nid(7, 1), own.iter());
        assert_eq!(own.map(|own| preferred.rank(&own)), [Some(8), Some(3), None]);
        // A policy of today's with the patterns of one changes no rank.
        let plain = UdspRule::new(Some(nids(2)), Some(nids(7)), None, None);
        let again = list.apply(&RuleEdit::Add { index: None, rule: plain });
        assert!(matches!(again, Err(RuleError::Exists(_))), "{again:?}");
        assert_eq!(list.preferred(&nid(7, 1), own.iter()), preferred);
    }
}
