//! Fault rules of the node in memory.

use lnet_model::Errno;
use lnet_model::fault::{DelayRuleRecord, DropRuleRecord, Filter, RuleCounters};
use lnet_model::request::Change;
use lnet_wire::Nid;

use crate::model::{Model, Result, refuse};

impl Model {
    pub(crate) fn change_rules(&mut self, change: &Change) -> Result<()> {
        let counters = RuleCounters::default();
        match change {
            Change::AddDropRule(rule) => {
                rule.check()?;
                self.rules.insert(0, DropRuleRecord { rule: rule.clone(), dropped: 0, counters });
            }
            Change::AddDelayRule(rule) => {
                rule.check()?;
                self.delays.insert(0, DelayRuleRecord { rule: rule.clone(), delayed: 0, counters });
            }
            Change::DeleteDropRules { source, destination } => {
                delete(&mut self.rules, |one| &one.rule.filter, source, destination)?;
            }
            Change::DeleteDelayRules { source, destination } => {
                delete(&mut self.delays, |one| &one.rule.filter, source, destination)?;
            }
            Change::DeleteAllDropRules => self.rules.clear(),
            Change::DeleteAllDelayRules => self.delays.clear(),
            Change::ResetDropRules => self.rules.iter_mut().for_each(|record| record.counters = counters),
            Change::ResetDelayRules => self.delays.iter_mut().for_each(|record| record.counters = counters),
            other => panic!("{other:?} is about no rules"),
        }
        Ok(())
    }
}

fn delete<R>(
    rules: &mut Vec<R>,
    filter: impl Fn(&R) -> &Filter,
    source: &Nid,
    destination: &Nid,
) -> Result<()> {
    let before = rules.len();
    rules.retain(|one| (filter(one).source, filter(one).destination) != (*source, *destination));
    if rules.len() == before {
        return refuse(Errno::NOENT, format!("no rule from {source} to {destination}"));
    }
    Ok(())
}
