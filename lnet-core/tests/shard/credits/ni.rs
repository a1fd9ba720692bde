//! An NI of the model: its credits, and the peers whose messages wait for them.

use std::collections::{BTreeMap, VecDeque};

use lnet_core::time::Instant;
use lnet_core::topology::NiStatus;

/// Turns: indices, the best first. A peer has the first one where it is prompt and has no credit.
pub(super) const FIRST: usize = 0;
pub(super) const PROMPT: usize = 1;
pub(super) const UNKNOWN: usize = 2;
pub(super) const SILENT: usize = 3;
pub(super) const TURNS: usize = 4;

#[derive(Default)]
pub(super) struct ModelNi {
    pub(super) status: NiStatus,
    pub(super) total: u32,
    pub(super) free: u32,
    /// Credits that were lent, or that there are no more.
    pub(super) excess: u32,
    /// The excess when their number changed last.
    pub(super) excess_of_change: u32,
    /// Credits that are held, by the turn that they were taken in.
    pub(super) held: [u32; TURNS],
    /// Messages that wait, by peer.
    pub(super) waiters: BTreeMap<u8, VecDeque<usize>>,
    /// Peers whose messages wait, by their turns.
    pub(super) turns: [VecDeque<u8>; TURNS],
    pub(super) skipped: [u32; TURNS],
    /// Credits that the best had in a row while others waited.
    pub(super) in_row: u32,
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

    pub(super) fn may_borrow(&self, turn: usize) -> bool {
        let reserve = (self.total / 4).max(1);
        let of_reserve = self.held[..=turn.max(PROMPT)].iter().sum::<u32>() < reserve;
        let of_many = turn == FIRST && self.excess < self.held[PROMPT].min(2 * reserve);
        turn != SILENT && (of_reserve || of_many)
    }

    pub(super) fn set_total(&mut self, total: u32) {
        if total == self.total {
            return;
        }
        let taken = self.total - self.free + self.excess;
        (self.free, self.excess) = (total.saturating_sub(taken), taken.saturating_sub(total));
        (self.total, self.excess_of_change) = (total, self.excess);
    }

    /// The next turn, if there is a credit for it.
    pub(super) fn next_turn(&mut self) -> Option<usize> {
        let waiting: Vec<usize> = (0..TURNS).filter(|it| !self.turns[*it].is_empty()).collect();
        if self.free == 0 {
            return waiting.into_iter().find(|turn| self.may_borrow(*turn));
        }
        let (&best, worse) = waiting.split_first()?;
        worse.iter().for_each(|turn| self.skipped[*turn] += 1);
        if worse.is_empty() {
            return Some(best);
        }
        self.in_row += 1;
        if self.in_row < 4 {
            return Some(best);
        }
        self.in_row = 0;
        let next = *worse.iter().rev().max_by_key(|turn| self.skipped[**turn])?;
        self.skipped[next] = 0;
        Some(next)
    }

    /// Takes out the first message that has a turn.
    pub(super) fn pop(&mut self, turn: usize) -> Option<usize> {
        let peer = self.turns[turn].pop_front()?;
        let mut waiters = self.waiters.remove(&peer).unwrap();
        let next = waiters.pop_front();
        if !waiters.is_empty() {
            self.waiters.insert(peer, waiters);
            self.turns[turn].push_back(peer);
        }
        next
    }

    /// Takes out a message whose peer has this turn.
    pub(super) fn withdraw(&mut self, number: usize, peer: u8, turn: usize) {
        let mut waiters = self.waiters.remove(&peer).unwrap();
        let was_first = waiters.front() == Some(&number);
        waiters.retain(|other| *other != number);
        if was_first {
            self.turns[turn].retain(|other| *other != peer);
            self.turns[turn].extend((!waiters.is_empty()).then_some(peer));
        }
        if !waiters.is_empty() {
            self.waiters.insert(peer, waiters);
        }
    }

    pub(super) fn return_credit(&mut self, turn: usize) {
        self.held[turn] -= 1;
        if self.excess > 0 {
            self.excess -= 1;
        } else {
            self.free += 1;
        }
    }
}
