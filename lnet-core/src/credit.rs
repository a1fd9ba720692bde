//! Credits: how many messages an NI, or a peer behind it, may have in flight.
//!
//! Invariants: `free` + credits held by messages = `total` + `excess`; while a message waits, `free` is 0;
//! messages to one peer get a peer's or an NI's credit in the order they came, and a credit that returns goes
//! to one that waits directly, so no newcomer overtakes (LNet `lib-move.c: lnet_post_send_locked`,
//! `lnet_return_tx_credits_locked`). A message that an LND has had for long may pass its credit on: then
//! another one holds it, or there is one less that was lent. Whose turn is next at an NI is said by
//! [`turns`](crate::turns).

use crate::message::{Expired, Message, MessageQueue, Messages, Staged};

/// A shard's share of credits that are configured for the whole node: rounded up, and at least 1.
///
/// With one shard a node behaves exactly as LNet with one CPU partition.
#[must_use]
pub(crate) fn share(credits: u32, shard_count: u8) -> u32 {
    credits.div_ceil(u32::from(shard_count).max(1)).max(1)
}

/// How many credits there are, and where they are.
pub(crate) struct Pool {
    total: u32,
    free: u32,
    /// Credits that are taken and that there are no more, or that were lent: they go when they return.
    excess: u32,
    waiting_count: u32,
    /// Messages in flight without a credit, which they have passed on.
    passed_on_count: u32,
    /// The least that was [available](Self::available) so far.
    lowest: i64,
}

impl Pool {
    pub(crate) const fn new(total: u32) -> Self {
        Self { total, free: total, excess: 0, waiting_count: 0, passed_on_count: 0, lowest: total as i64 }
    }

    /// Takes a credit if one is free.
    pub(crate) const fn try_take(&mut self) -> bool {
        if self.free == 0 {
            return false;
        }
        self.free -= 1;
        if (self.free as i64) < self.lowest {
            self.lowest = self.free as i64;
        }
        true
    }

    /// Takes a credit though none is free.
    pub(crate) fn lend(&mut self) {
        assert_eq!(self.free, 0, "a credit is lent though one is free");
        self.excess += 1;
        self.lowest = self.lowest.min(self.available());
    }

    /// Counts a message in that found no credit.
    pub(crate) fn wait(&mut self) {
        assert_eq!(self.free, 0, "a message waits though a credit is free");
        self.waiting_count += 1;
        self.lowest = self.lowest.min(self.available());
    }

    /// Counts a message out that waits no longer.
    pub(crate) const fn end_wait(&mut self) {
        self.waiting_count -= 1;
    }

    /// Has a credit come home. [`wait`](Self::wait)ing ones are to be served.
    pub(crate) fn give_back(&mut self) {
        if self.excess > 0 {
            self.excess -= 1;
        } else {
            self.free += 1;
            assert!(self.free <= self.total, "more credits return than were taken");
        }
    }

    /// Has a credit come home whose message is still in flight.
    pub(crate) fn pass_on(&mut self) {
        self.passed_on_count += 1;
        self.give_back();
    }

    /// A message has ended that had passed its credit on.
    pub(crate) const fn end_passed_on(&mut self) {
        self.passed_on_count -= 1;
    }

    /// Messages that wait.
    pub(crate) const fn waiting_count(&self) -> u32 {
        self.waiting_count
    }

    /// Credits that are taken beyond those that there are.
    pub(crate) const fn excess(&self) -> u32 {
        self.excess
    }

    /// Changes how many there are. Those that come are free: they are for who waits.
    pub(crate) fn set_total(&mut self, total: u32) {
        if total == self.total {
            return;
        }
        let taken = u64::from(self.total - self.free) + u64::from(self.excess);
        self.free = u64::from(total).saturating_sub(taken) as u32;
        self.excess = taken.saturating_sub(u64::from(total)) as u32;
        self.total = total;
        self.lowest = self.available();
    }

    /// Free credits less messages that have none, and wait or are in flight: what LNet shows as "tx credits".
    pub(crate) fn available(&self) -> i64 {
        let without = [self.excess, self.waiting_count, self.passed_on_count].map(i64::from);
        i64::from(self.free) - without.iter().sum::<i64>()
    }

    /// How many there are, and the least that was [available](Self::available) since there are so many.
    pub(crate) const fn bounds(&self) -> (u32, i64) {
        (self.total, self.lowest)
    }
}

/// Credits of a peer, and the messages in state `S` that wait for one, first come first served.
pub(crate) struct Credits<S> {
    pool: Pool,
    waiters: MessageQueue<S>,
}

impl<S: Staged> Credits<S> {
    pub(crate) const fn new(total: u32) -> Self {
        Self { pool: Pool::new(total), waiters: MessageQueue::new() }
    }

    /// Takes a credit if one is free.
    pub(crate) const fn try_take(&mut self) -> bool {
        self.pool.try_take()
    }

    /// Queues a message that found no credit.
    pub(crate) fn wait(&mut self, messages: &mut Messages, message: Message<S>) {
        self.pool.wait();
        self.waiters.push(messages, message);
    }

    /// Returns a credit; the message that now holds it, if one was waiting.
    pub(crate) fn give_back(&mut self, messages: &mut Messages) -> Option<Message<S>> {
        self.pool.give_back();
        self.grant(messages)
    }

    /// Changes how many there are. Those that come are free: [`grant`](Self::grant) them to who waits.
    pub(crate) fn set_total(&mut self, total: u32) {
        self.pool.set_total(total);
    }

    /// The next message that waits though a credit is free; it holds one then.
    pub(crate) fn grant(&mut self, messages: &mut Messages) -> Option<Message<S>> {
        if self.pool.waiting_count() == 0 || !self.pool.try_take() {
            return None;
        }
        self.pool.end_wait();
        self.waiters.pop(messages)
    }

    /// Takes a message out of the queue that will not wait any longer.
    pub(crate) fn withdraw(&mut self, messages: &mut Messages, expired: Message<Expired>) -> Message<S> {
        self.pool.end_wait();
        self.waiters.take_expired(messages, expired)
    }

    /// Free credits less messages without one ([`Pool::available`]).
    pub(crate) fn available(&self) -> i64 {
        self.pool.available()
    }

    /// Total and least of the credits ([`Pool::bounds`]).
    pub(crate) const fn bounds(&self) -> (u32, i64) {
        self.pool.bounds()
    }

    /// Whether all credits are home and no message waits.
    pub(crate) const fn is_idle(&self) -> bool {
        self.pool.free == self.pool.total && self.pool.excess == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_round_up_and_are_never_zero() {
        assert_eq!([share(256, 1), share(256, 3), share(8, 64), share(0, 4)], [256, 86, 1, 1]);
    }
}
