//! Drop rules: the node's list, and those of the shards, which are the same on each.
//!
//! Invariant: the shards' rules stand in the order of the list. Each shard goes by what it has seen itself:
//! of a rule with a rate each shard drops one of so many of its own messages.

use std::hash::{BuildHasher, Hasher, RandomState};

use lnet_core::fault::FAULT_RULES_MAX;
use lnet_model::fault::DropRule;
use lnet_model::{Errno, Refusal};
use lnet_user::runtime::Worker;
use lnet_wire::Nid;

use super::control::Control;

/// A change of the rules.
#[derive(Clone, Debug)]
pub(super) enum RuleStep {
    Add(DropRule),
    /// Either may be the wildcard, and stands for any then.
    Delete(Nid, Nid),
    Reset,
}

/// Adds a rule to a list, in front of the others.
pub(super) fn add(rules: &mut Vec<DropRule>, rule: &DropRule) -> Result<RuleStep, Refusal> {
    rule.check()?;
    if rules.len() >= FAULT_RULES_MAX {
        let message = format!("{FAULT_RULES_MAX} drop rules exist, the most there can be: delete some");
        return Err(Refusal::new(Errno::NOMEM, message));
    }
    rules.insert(0, rule.clone());
    Ok(RuleStep::Add(rule.clone()))
}

/// Deletes the rules with these ends (LNet `net_fault.c: lnet_drop_rule_del`).
pub(super) fn delete(rules: &mut Vec<DropRule>, source: Nid, destination: Nid) -> Result<RuleStep, Refusal> {
    let before = rules.len();
    rules.retain(|rule| {
        let is_it = |wanted: Nid, found: Nid| wanted.is_any() || wanted == found;
        !(is_it(source, rule.filter.source) && is_it(destination, rule.filter.destination))
    });
    if rules.len() == before {
        let message = format!("no drop rule with source {source} and destination {destination}");
        return Err(Refusal::new(Errno::NOENT, message));
    }
    Ok(RuleStep::Delete(source, destination))
}

impl Control {
    /// Makes changes of the rules that were found good, on all shards.
    pub(super) async fn change_rules(
        &self,
        steps: Vec<RuleStep>,
        rules: Vec<DropRule>,
    ) -> Result<(), Refusal> {
        self.on_shards(move |worker| steps.iter().for_each(|step| carry_out(worker, step))).await?;
        *self.rules.borrow_mut() = rules;
        Ok(())
    }
}

fn carry_out(worker: &mut Worker, step: &RuleStep) {
    let now = worker.clock().now();
    let faults = worker.faults_mut();
    match step {
        RuleStep::Add(rule) => {
            // Hashers are seeded at random.
            let seed = RandomState::new().build_hasher().finish();
            if let Err(error) = faults.add_drop_rule(now, rule, seed) {
                tracing::error!(%error, "a shard goes without a drop rule");
            }
        }
        RuleStep::Delete(source, destination) => {
            faults.delete_drop_rules(source, destination);
        }
        RuleStep::Reset => faults.reset_drop_rules(now),
    }
}
