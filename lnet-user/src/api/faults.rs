//! Fault rules of a node: one list of drop rules and one of delay rules, the same on each shard.
//!
//! Invariants: the rules of each shard stand in the order of the lists: who changes them has the lists until
//! each shard has the change in its queue, and who asks for what the shards have counted has them until each
//! has the question. Each shard goes by what it has seen itself: of a rule with a rate each shard hits one of
//! so many of its own messages.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, PoisonError};

use lnet_core::fault::{DelayRule, FAULT_RULES_MAX, FaultError};
use lnet_io::locks::MutexGuard;
use lnet_model::fault::{DropRule, DropRuleRecord, RuleCounters};
use lnet_wire::Nid;
use tokio::sync::oneshot;

use super::error::LnetError;
use super::runner::block_on;
use super::{Core, Lnet, ShardEnd};
use crate::runtime::wakes::Awaited;
use crate::runtime::{Deputy, Worker};

/// Counters of the rules of a list that a shard was asked for.
type Counted = Awaited<oneshot::Receiver<Vec<RuleCounters>>>;

/// A change of the fault rules. A source or destination that is the wildcard ([`Nid::ANY`]) stands for any.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FaultEdit {
    /// A drop rule comes, in front of the others.
    AddDrop(DropRule),
    /// The drop rules with these ends go (LNet `net_fault.c: lnet_drop_rule_del`).
    DeleteDrops {
        /// Source that they have.
        source: Nid,
        /// Destination that they have.
        destination: Nid,
    },
    /// Counters of all drop rules begin at 0 again, and the next hit of each is drawn anew.
    ResetDrops,
    /// A delay rule comes, in front of the others.
    AddDelay(DelayRule),
    /// The delay rules with these ends go, and what they hold up goes on.
    DeleteDelays {
        /// Source that they have.
        source: Nid,
        /// Destination that they have.
        destination: Nid,
    },
    /// Counters of all delay rules begin at 0 again, and the next hit of each is drawn anew.
    ResetDelays,
}

/// The fault rules of a node, the newest first.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct FaultRules {
    /// Rules by which messages are dropped, or fail to be sent.
    pub drops: Vec<DropRule>,
    /// Rules by which messages are held up.
    pub delays: Vec<DelayRule>,
}

impl FaultRules {
    /// Makes a change of the lists; how many rules it came to.
    ///
    /// # Errors
    /// [`FaultError`]: a rule that makes no sense, or one too many.
    pub fn apply(&mut self, edit: &FaultEdit) -> Result<usize, FaultError> {
        let has_ends = |ends: (&Nid, &Nid), (source, destination): (&Nid, &Nid)| {
            let is_it = |wanted: &Nid, found: &Nid| wanted.is_any() || wanted == found;
            is_it(source, ends.0) && is_it(destination, ends.1)
        };
        let (drops, delays) = (self.drops.len(), self.delays.len());
        match edit {
            FaultEdit::AddDrop(rule) => {
                rule.check()?;
                add(&mut self.drops, rule)?;
            }
            FaultEdit::AddDelay(rule) => {
                rule.check()?;
                add(&mut self.delays, rule)?;
            }
            FaultEdit::DeleteDrops { source, destination } => self.drops.retain(|rule| {
                !has_ends((&rule.filter.source, &rule.filter.destination), (source, destination))
            }),
            FaultEdit::DeleteDelays { source, destination } => self.delays.retain(|rule| {
                !has_ends((&rule.filter.source, &rule.filter.destination), (source, destination))
            }),
            FaultEdit::ResetDrops => return Ok(drops),
            FaultEdit::ResetDelays => return Ok(delays),
        }
        Ok(self.drops.len().abs_diff(drops) + self.delays.len().abs_diff(delays))
    }
}

/// Puts a rule in front of the others.
fn add<R: Clone>(rules: &mut Vec<R>, rule: &R) -> Result<(), FaultError> {
    if rules.len() >= FAULT_RULES_MAX {
        return Err(FaultError::RulesFull);
    }
    rules.insert(0, rule.clone());
    Ok(())
}

impl Lnet {
    /// Changes the fault rules of the node: all of the changes, or none. What is sent after this goes by
    /// them.
    ///
    /// # Errors
    /// [`LnetError::Fault`] says what is wrong with the first that cannot be made; [`LnetError::Ended`].
    pub fn edit_faults(&self, edits: &[FaultEdit]) -> Result<(), LnetError> {
        block_on(self.edit_faults_async(edits))
    }

    /// [`Lnet::edit_faults`] for a caller that has other things to do meanwhile. The changes begin at once,
    /// and are made even if the future is dropped.
    ///
    /// # Errors
    /// [`Lnet::edit_faults`] names them.
    pub fn edit_faults_async(
        &self,
        edits: &[FaultEdit],
    ) -> impl Future<Output = Result<(), LnetError>> + Send + use<> {
        let (begun, fate) = (self.begin_edits(edits), Arc::clone(self.inner.shards[0].caller.fate()));
        async move {
            for made in begun? {
                made.await.map_err(|_| LnetError::from(fate.why()))?;
            }
            Ok(())
        }
    }

    /// Has all shards make changes.
    fn begin_edits(&self, edits: &[FaultEdit]) -> Result<Vec<Awaited<oneshot::Receiver<()>>>, LnetError> {
        let mut rules = self.inner.faults();
        let mut changed = rules.clone();
        for edit in edits {
            changed.apply(edit)?;
        }
        let begin = |shard: &ShardEnd| {
            let edits = edits.to_vec();
            shard.caller.begin(move |worker, _| edits.iter().for_each(|edit| carry_out(worker, edit)))
        };
        let begun = self.inner.shards.iter().map(begin).collect();
        *rules = changed;
        begun
    }

    /// The fault rules of the node.
    #[must_use]
    pub fn fault_rules(&self) -> FaultRules {
        self.inner.faults().clone()
    }

    /// The drop rules of the node with what all shards have counted, the newest first.
    ///
    /// # Errors
    /// [`LnetError::Ended`].
    pub fn drop_rules(&self) -> Result<Vec<DropRuleRecord>, LnetError> {
        block_on(self.drop_rules_async())
    }

    /// [`Lnet::drop_rules`] for a caller that has other things to do meanwhile.
    ///
    /// # Errors
    /// [`Lnet::drop_rules`] names them.
    pub async fn drop_rules_async(&self) -> Result<Vec<DropRuleRecord>, LnetError> {
        let (rules, counted) = self.look(
            |rules| rules.drops.clone(),
            |worker| worker.faults_mut().drop_rules().map(|(_, counters)| *counters).collect(),
        )?;
        let sums = self.sums(rules.len(), counted).await?;
        let record = |(rule, counters): (_, RuleCounters)| DropRuleRecord {
            rule,
            dropped: counters.fired(),
            counters,
        };
        Ok(rules.into_iter().zip(sums).map(record).collect())
    }

    /// The delay rules of the node with what all shards have counted, the newest first.
    ///
    /// # Errors
    /// [`LnetError::Ended`].
    pub fn delay_rules(&self) -> Result<Vec<(DelayRule, RuleCounters)>, LnetError> {
        block_on(self.delay_rules_async())
    }

    /// [`Lnet::delay_rules`] for a caller that has other things to do meanwhile.
    ///
    /// # Errors
    /// [`Lnet::delay_rules`] names them.
    pub async fn delay_rules_async(&self) -> Result<Vec<(DelayRule, RuleCounters)>, LnetError> {
        let (rules, counted) = self.look(
            |rules| rules.delays.clone(),
            |worker| worker.faults_mut().delay_rules().map(|(_, counters)| *counters).collect(),
        )?;
        let sums = self.sums(rules.len(), counted).await?;
        Ok(rules.into_iter().zip(sums).collect())
    }

    /// Some rules, and what each shard has counted of them: nothing changes the rules between one and the
    /// other.
    fn look<R>(
        &self,
        rules: impl FnOnce(&FaultRules) -> Vec<R>,
        counted: fn(&mut Worker) -> Vec<RuleCounters>,
    ) -> Result<(Vec<R>, Vec<Counted>), LnetError> {
        let lists = self.inner.faults();
        let ask = |shard: &ShardEnd| shard.caller.begin(move |worker, _| counted(worker));
        let asked = self.inner.shards.iter().map(ask).collect::<Result<_, _>>()?;
        Ok((rules(&lists), asked))
    }

    /// The sums of what all shards have counted of so many rules.
    async fn sums(&self, count: usize, counted: Vec<Counted>) -> Result<Vec<RuleCounters>, LnetError> {
        let mut sums = vec![RuleCounters::default(); count];
        for shard in counted {
            let counted = shard.await.map_err(|_| self.inner.shards[0].caller.ended())?;
            sums.iter_mut().zip(&counted).for_each(|(sum, counters)| *sum += counters);
        }
        Ok(sums)
    }
}

impl Core {
    fn faults(&self) -> MutexGuard<'_, FaultRules> {
        // The lists may be in the hands of a thread that waits for room in the queue of this thread's shard.
        let _deputy = self.faults.try_lock().is_err().then(Deputy::appoint);
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn carry_out(worker: &mut Worker, edit: &FaultEdit) {
    let now = worker.clock().now();
    // Hashers are seeded at random.
    let seed = RandomState::new().build_hasher().finish();
    let faults = worker.faults_mut();
    let added = match edit {
        FaultEdit::AddDrop(rule) => faults.add_drop_rule(now, rule, seed),
        FaultEdit::AddDelay(rule) => faults.add_delay_rule(now, rule, seed),
        FaultEdit::DeleteDrops { source, destination } => {
            faults.delete_drop_rules(source, destination);
            Ok(())
        }
        FaultEdit::DeleteDelays { source, destination } => {
            worker.delete_delay_rules(source, destination);
            Ok(())
        }
        FaultEdit::ResetDrops => {
            faults.reset_drop_rules(now);
            Ok(())
        }
        FaultEdit::ResetDelays => {
            faults.reset_delay_rules(now);
            Ok(())
        }
    };
    if let Err(error) = added {
        tracing::error!(%error, "a shard goes without a fault rule");
    }
}
