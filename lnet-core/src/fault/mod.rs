//! Simulated faults: rules that drop messages, fail or hold them up, and peers that seem to have failed (LNet
//! `net_fault.c`, `lib-move.c: lnet_fail_nid`).
//!
//! Invariants: rules act on what arrives whole and well-formed, before it is matched, and on what leaves once
//! it holds its credits, but for what a node sends to itself; the newest rule is asked first, the
//! first that fires ends the search, each that was asked and whose filter fits has counted the message. What
//! a rule does follows from its seed and from what it has seen. The number of rules and of failed peers is
//! bounded; room for them is made once.

mod rule;

use alloc::vec::Vec;

use lnet_model::Refusal;
use lnet_model::fault::{DropRule, RuleCounters};
use lnet_wire::{Header, Nid};
use thiserror::Error;

pub use rule::DelayRule;

use crate::lnd::Status;
use crate::md::Threshold;
use crate::stats::DropReason;
use crate::time::Instant;

use rule::ActiveRule;

/// Most drop rules that a shard holds, and most delay rules.
pub const FAULT_RULES_MAX: usize = 64;
/// Most simulated peer failures that a shard holds.
pub const FAILED_PEERS_MAX: usize = 64;

/// Why a fault is not simulated.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum FaultError {
    /// The rule makes no sense (`-EINVAL`).
    #[error(transparent)]
    Rule(#[from] Refusal),
    /// A peer that is to fail no times (`-EINVAL`).
    #[error("a peer that fails 0 times: at least 1 is expected; restoring it ends a failure")]
    FailureCount,
    /// A delay rule that holds nothing up (`-EINVAL`).
    #[error("latency 0: more than that is expected of a delay rule")]
    Latency,
    /// There are [`FAULT_RULES_MAX`] rules of the kind (`-ENOMEM`).
    #[error("{FAULT_RULES_MAX} rules of the kind exist, the most there can be: delete some")]
    RulesFull,
    /// There are [`FAILED_PEERS_MAX`] simulated peer failures (`-ENOMEM`).
    #[error("{FAILED_PEERS_MAX} peers fail, the most that can: restore some")]
    FailedPeersFull,
}

/// A peer that seems to have failed: PUTs and GETs to it are refused, what it sends is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedPeer {
    /// Its NID; the wildcard is every peer.
    pub nid: Nid,
    /// How many messages are still to be hit, in either direction.
    pub left: Threshold,
}

/// The faults that a shard simulates.
pub struct Faults {
    /// Oldest first.
    drops: Vec<ActiveRule<DropRule>>,
    /// Oldest first.
    delays: Vec<ActiveRule<DelayRule>>,
    /// Rules that there have been.
    rule_count: u64,
    /// Oldest first.
    failed: Vec<FailedPeer>,
}

impl Faults {
    pub(crate) fn new() -> Self {
        Self {
            drops: Vec::with_capacity(FAULT_RULES_MAX),
            delays: Vec::with_capacity(FAULT_RULES_MAX),
            rule_count: 0,
            failed: Vec::with_capacity(FAILED_PEERS_MAX),
        }
    }

    /// Whether there are any: the only thing that a message pays for when there are none.
    #[inline]
    pub(crate) const fn is_active(&self) -> bool {
        !self.drops.is_empty() || !self.delays.is_empty() || !self.failed.is_empty()
    }

    /// Adds a drop rule, which goes before all others.
    ///
    /// # Errors
    /// [`FaultError`] when the rule makes no sense, or there are too many.
    pub fn add_drop_rule(&mut self, now: Instant, rule: &DropRule, seed: u64) -> Result<(), FaultError> {
        rule::add(&mut self.drops, &mut self.rule_count, now, rule::checked(rule)?, seed)
    }

    /// Adds a delay rule, which goes before all others.
    ///
    /// # Errors
    /// [`FaultError`] when the rule makes no sense, or there are too many.
    pub fn add_delay_rule(&mut self, now: Instant, rule: &DelayRule, seed: u64) -> Result<(), FaultError> {
        rule::add(&mut self.delays, &mut self.rule_count, now, rule.checked()?, seed)
    }

    /// Deletes the drop rules with exactly this source and destination, of which each may be the wildcard,
    /// and then stands for any. Returns how many.
    pub fn delete_drop_rules(&mut self, source: &Nid, destination: &Nid) -> usize {
        self.drops.extract_if(.., |active| active.has_ends(source, destination)).count()
    }

    /// Deletes delay rules; the caller must release what they hold up.
    pub(crate) fn delete_delay_rules(&mut self, source: &Nid, destination: &Nid) -> usize {
        self.delays.extract_if(.., |active| active.has_ends(source, destination)).count()
    }

    /// Whether a delay rule still exists.
    pub(crate) fn has_delay_rule(&self, id: u64) -> bool {
        self.delays.iter().any(|active| active.id == id)
    }

    /// Clears the counters of all drop rules and draws their next drops anew.
    pub fn reset_drop_rules(&mut self, now: Instant) {
        self.drops.iter_mut().for_each(|active| active.reset(now));
    }

    /// Clears the counters of all delay rules and draws their next delays anew.
    pub fn reset_delay_rules(&mut self, now: Instant) {
        self.delays.iter_mut().for_each(|active| active.reset(now));
    }

    /// The delay rules with what they have counted, newest first; the filters as those of
    /// [`Faults::drop_rules`].
    pub fn delay_rules(&self) -> impl ExactSizeIterator<Item = (&DelayRule, &RuleCounters)> {
        self.delays.iter().rev().map(|active| (&active.rule, &active.counters))
    }

    /// The drop rules with what they have counted, newest first. Of each filter the message types are those
    /// that it can really pass.
    pub fn drop_rules(&self) -> impl ExactSizeIterator<Item = (&DropRule, &RuleCounters)> {
        self.drops.iter().rev().map(|active| (&active.rule, &active.counters))
    }

    /// Makes a peer (or every one, with the wildcard) seem to fail for so many messages. Failures of one peer
    /// add up, and the oldest that fits a message is used up first.
    ///
    /// # Errors
    /// [`FaultError::FailureCount`], [`FaultError::FailedPeersFull`].
    pub fn fail_peer(&mut self, nid: &Nid, left: Threshold) -> Result<(), FaultError> {
        if left == Threshold::Count(0) {
            return Err(FaultError::FailureCount);
        }
        if self.failed.len() == FAILED_PEERS_MAX {
            return Err(FaultError::FailedPeersFull);
        }
        self.failed.push(FailedPeer { nid: *nid, left });
        Ok(())
    }

    /// Ends the failures of this very NID; with the wildcard all failures. Returns how many.
    pub fn restore_peer(&mut self, nid: &Nid) -> usize {
        self.failed.extract_if(.., |failed| nid.is_any() || failed.nid == *nid).count()
    }

    /// The failures that are not used up, oldest first.
    #[must_use]
    pub fn failed_peers(&self) -> &[FailedPeer] {
        &self.failed
    }

    /// Whether a peer seems to have failed; uses one failure up if so.
    pub(crate) fn peer_fails(&mut self, peer: &Nid) -> bool {
        let fits = |failed: &FailedPeer| failed.nid.is_any() || failed.nid == *peer;
        let Some(at) = self.failed.iter().position(fits) else { return false };
        if let Threshold::Count(left) = &mut self.failed[at].left {
            *left -= 1;
            if *left == 0 {
                self.failed.remove(at);
            }
        }
        true
    }

    /// Why a message that arrives by the NI `local` is to be dropped, if it is.
    #[cold]
    pub(crate) fn judge(&mut self, now: Instant, local: &Nid, header: &Header) -> Option<DropReason> {
        if self.peer_fails(&header.source.nid) {
            return Some(DropReason::PeerFailed);
        }
        let fires = |active: &mut ActiveRule<DropRule>| {
            active.rule.health_errors.is_empty() && active.fires(now, Some(local), header)
        };
        self.drops.iter_mut().rev().any(fires).then_some(DropReason::Fault)
    }

    /// How the sending of a message fails, if it does.
    #[cold]
    pub(crate) fn fail_send(&mut self, now: Instant, header: &Header) -> Option<Status> {
        self.drops.iter_mut().rev().find_map(|active| {
            let fires = !active.rule.health_errors.is_empty() && active.fires(now, None, header);
            fires.then(|| active.failure())
        })
    }

    /// Until when a message is delayed, and by which rule, if it is.
    #[cold]
    pub(crate) fn delay(&mut self, now: Instant, header: &Header) -> Option<(Instant, u64)> {
        let mut rules = self.delays.iter_mut().rev();
        rules.find_map(|active| {
            active.fires(now, None, header).then(|| (now + active.rule.latency, active.id))
        })
    }
}
