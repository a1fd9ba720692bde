//! An NI of the model: its credits, and the peers whose messages wait for them.

use std::collections::{BTreeMap, VecDeque};

use lnet_core::time::Instant;
use lnet_core::topology::NiStatus;

/// How soon a peer takes messages: an index, the best first.
pub(super) const PROMPT: usize = 0;
pub(super) const UNKNOWN: usize = 1;
pub(super) const SILENT: usize = 2;

#[derive(Default)]
pub(super) struct ModelNi {
    pub(super) status: NiStatus,
    pub(super) total: u32,
    pub(super) free: u32,
    /// Credits that were lent, or that there are no more.
    pub(super) excess: u32,
    /// The excess when their number changed last.
    pub(super) excess_of_change: u32,
    /// Credits that are held, by standing.
    pub(super) held: [u32; 3],
    /// Messages that wait, by peer.
    pub(super) waiters: BTreeMap<u8, VecDeque<usize>>,
    /// Peers whose messages wait, by standing, in their turns.
    pub(super) turns: [VecDeque<u8>; 3],
    pub(super) skipped: [u32; 3],
    /// When credits are passed on, while messages wait.
    pub(super) look_at: Instant,
    /// Messages whose deadlines are watched.
    pub(super) timers: VecDeque<usize>,
    pub(super) ready: VecDeque<usize>,
}

impl ModelNi {
    pub(super) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    pub(super) fn may_borrow(&self, standing: usize) -> bool {
        standing != SILENT && self.held[..=standing].iter().sum::<u32>() < (self.total / 4).max(1)
    }

    pub(super) fn set_total(&mut self, total: u32) {
        if total == self.total {
            return;
        }
        let taken = self.total - self.free + self.excess;
        (self.free, self.excess) = (total.saturating_sub(taken), taken.saturating_sub(total));
        (self.total, self.excess_of_change) = (total, self.excess);
    }

    /// The standing whose peers have the next turn, if there is a credit for one.
    pub(super) fn next_standing(&mut self) -> Option<usize> {
        let waiting: Vec<usize> = (0..3).filter(|it| !self.turns[*it].is_empty()).collect();
        if self.free == 0 {
            return waiting.into_iter().find(|standing| self.may_borrow(*standing));
        }
        let (&best, worse) = waiting.split_first()?;
        worse.iter().for_each(|standing| self.skipped[*standing] += 1);
        let next = worse.iter().copied().find(|standing| self.skipped[*standing] >= 4).unwrap_or(best);
        self.skipped[next] = 0;
        Some(next)
    }

    /// Takes out the first message of a standing.
    pub(super) fn pop(&mut self, standing: usize) -> Option<usize> {
        let peer = self.turns[standing].pop_front()?;
        let mut waiters = self.waiters.remove(&peer).unwrap();
        let next = waiters.pop_front();
        if !waiters.is_empty() {
            self.waiters.insert(peer, waiters);
            self.turns[standing].push_back(peer);
        }
        next
    }

    /// Takes out a message whose peer has this standing.
    pub(super) fn withdraw(&mut self, number: usize, peer: u8, standing: usize) {
        let mut waiters = self.waiters.remove(&peer).unwrap();
        let was_first = waiters.front() == Some(&number);
        waiters.retain(|other| *other != number);
        if was_first {
            self.turns[standing].retain(|other| *other != peer);
            self.turns[standing].extend((!waiters.is_empty()).then_some(peer));
        }
        if !waiters.is_empty() {
            self.waiters.insert(peer, waiters);
        }
    }

    pub(super) fn return_credit(&mut self, standing: usize) {
        self.held[standing] -= 1;
        if self.excess > 0 {
            self.excess -= 1;
        } else {
            self.free += 1;
        }
    }
}
