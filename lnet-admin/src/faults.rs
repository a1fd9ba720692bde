//! Drop rules: the node's list, and those of the shards, which are the same on each.
//!
//! Invariant: the shards' rules stand in the order of the list. Each shard goes by what it has seen itself:
//! of a rule with a rate each shard drops one of so many of its own messages.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use lnet_core::fault::{self, Filter, HealthMask, MessageTypes, RULES_MAX};
use lnet_core::health::HealthStatus;
use lnet_model::fault::{DropRule, DropRuleRecord, HealthError};
use lnet_model::{Errno, Refusal};
use lnet_user::runtime::Worker;
use lnet_wire::Nid;

use super::control::Control;

/// A change of the rules.
#[derive(Clone, Copy, Debug)]
pub(super) enum RuleStep {
    Add(fault::DropRule),
    /// Either may be the wildcard, and stands for any then.
    Delete(Nid, Nid),
    Reset,
}

/// Adds a rule to a list, in front of the others.
pub(super) fn add(rules: &mut Vec<DropRule>, rule: &DropRule) -> Result<RuleStep, Refusal> {
    rule.check()?;
    if rules.len() >= RULES_MAX {
        let message = format!("{RULES_MAX} drop rules exist, the most there can be: delete some");
        return Err(Refusal::new(Errno::NOMEM, message));
    }
    let step = RuleStep::Add(to_core(rule)?);
    rules.insert(0, rule.clone());
    Ok(step)
}

/// Deletes the rules with these ends (LNet `net_fault.c: lnet_drop_rule_del`).
pub(super) fn delete(rules: &mut Vec<DropRule>, source: Nid, destination: Nid) -> Result<RuleStep, Refusal> {
    let before = rules.len();
    rules.retain(|rule| {
        let is_it = |wanted: Nid, found: Nid| wanted.is_any() || wanted == found;
        !(is_it(source, rule.source) && is_it(destination, rule.destination))
    });
    if rules.len() == before {
        let message = format!("no drop rule with source {source} and destination {destination}");
        return Err(Refusal::new(Errno::NOENT, message));
    }
    Ok(RuleStep::Delete(source, destination))
}

fn to_core(rule: &DropRule) -> Result<fault::DropRule, Refusal> {
    let messages = MessageTypes::from_bits(rule.messages).ok_or_else(|| {
        let message = format!("message types {:#x}: bits of 0xf are expected", rule.messages);
        Refusal::new(Errno::INVAL, message)
    })?;
    let filter = Filter {
        source: rule.source,
        destination: rule.destination,
        local: rule.local_nid,
        messages,
        portals: rule.portals,
    };
    let health = rule.health_errors.iter().fold(HealthMask::NONE, |mask, error| match status(*error) {
        Some(status) => mask.with(status),
        None => HealthMask::ANY,
    });
    Ok(fault::DropRule {
        filter,
        rate: rule.rate,
        interval: Duration::from_secs(rule.interval_s.into()),
        random: rule.random,
        drop_all: rule.drop_all,
        health,
    })
}

/// The status of a health error; none of the random one.
fn status(error: HealthError) -> Option<HealthStatus> {
    let name = error.to_string();
    HealthStatus::ALL.into_iter().find(|status| status.name() == name)
}

impl Control {
    /// Makes changes of the rules that were found good, on all shards.
    pub(super) async fn change_rules(
        &self,
        steps: Vec<RuleStep>,
        rules: Vec<DropRule>,
    ) -> Result<(), Refusal> {
        self.on_shards(move |worker| steps.iter().for_each(|step| carry_out(worker, *step))).await?;
        *self.rules.borrow_mut() = rules;
        Ok(())
    }
}

/// Adds what a shard has counted of a rule.
pub(super) fn count(record: &mut DropRuleRecord, more: &fault::RuleCounters) {
    record.dropped += more.fired();
    record.counters.count += more.matched;
    record.counters.put += more.puts;
    record.counters.ack += more.acks;
    record.counters.get += more.gets;
    record.counters.reply += more.replies;
}

fn carry_out(worker: &mut Worker, step: RuleStep) {
    let now = worker.clock().now();
    let faults = worker.faults_mut();
    match step {
        RuleStep::Add(rule) => {
            // Hashers are seeded at random.
            let seed = RandomState::new().build_hasher().finish();
            if let Err(error) = faults.add_drop_rule(now, &rule, seed) {
                tracing::error!(%error, "a shard goes without a drop rule");
            }
        }
        RuleStep::Delete(source, destination) => {
            faults.delete_drop_rules(&source, &destination);
        }
        RuleStep::Reset => faults.reset_drop_rules(now),
    }
}
