//! Turns at the credits of an NI: which message gets the next one.
//!
//! Peers take turns, one message each, so that the messages of many for one do not stop those for others.
//! Peers that answer come first, then those of which nothing is known yet, then silent ones. Where better
//! ones always wait, a fourth credit goes to the others all the same.
//!
//! A quarter of the credits is a reserve: where those that are not worse have taken less than that, a message
//! is lent a credit though none is free, since credits that worse ones have are no reason for it to wait. A
//! credit that is taken for long counts as one of the silent, and passes on: where more are taken than there
//! are, one that was lent goes. So at most half as many credits as there are, or two, are lent at once.
//!
//! Invariants: messages to one peer by one NI leave in the order they came; while a message waits, no credit
//! is free, and those that are not worse than its peer hold the reserve.

use crate::credit::Pool;
use crate::lnd::NiId;
use crate::message::{Expired, Message, MessageQueue, Messages, PeerCredited, Standing};
use crate::peer::Peers;

const STANDINGS: [Standing; 3] = [Standing::Prompt, Standing::Unknown, Standing::Silent];
/// Credits of which one goes to peers of a worse standing.
const TURNS: u8 = 4;
/// The reserve, as a part of all credits.
const RESERVE_PART: u32 = 4;

/// Credits of an NI, and the messages that wait for one.
///
/// One message of each peer that waits is in a queue, its head; the others are behind that.
pub(crate) struct NiCredits {
    pool: Pool,
    /// The heads, by the standing of their peers.
    turns: [MessageQueue<PeerCredited>; 3],
    /// Credits that others got while peers of a standing waited.
    skipped: [u8; 3],
    /// Credits that are taken, by the standing that the peers had then.
    taken: [u32; 3],
}

impl NiCredits {
    pub(crate) const fn new(total: u32) -> Self {
        let turns = [const { MessageQueue::new() }; 3];
        Self { pool: Pool::new(total), turns, skipped: [0; 3], taken: [0; 3] }
    }

    /// Whether a message takes a credit though none is free.
    fn may_borrow(&self, standing: Standing) -> bool {
        let (total, _) = self.pool.bounds();
        let taken: u32 = self.taken[..=standing as usize].iter().sum();
        standing != Standing::Silent && total != 0 && taken < (total / RESERVE_PART).max(1)
    }

    /// Takes a credit for a message whose peer has none that waits here; it is noted as one of this standing.
    #[inline]
    pub(crate) fn try_take(&mut self, standing: Standing) -> bool {
        if !self.pool.try_take() {
            if !self.may_borrow(standing) {
                return false;
            }
            self.pool.lend();
        }
        self.taken[standing as usize] += 1;
        true
    }

    /// Queues a message that found no credit, behind those for its peer.
    pub(crate) fn wait(
        &mut self,
        messages: &mut Messages,
        peers: &mut Peers,
        message: Message<PeerCredited>,
    ) {
        self.pool.wait();
        let (ni, peer) = position_of(messages, &message);
        let peer = peers.get_mut(peer);
        if let Some(head) = messages.head_at(peer.heads, ni) {
            messages.follow(head, message);
        } else {
            messages.add_head(&mut peer.heads, &message);
            self.turns[peer.standing as usize].push(messages, message);
        }
    }

    /// Has a credit come home that was taken in this standing. The caller [grants](Self::grant) it.
    pub(crate) fn give_back(&mut self, standing: Standing) {
        self.taken[standing as usize] -= 1;
        self.pool.give_back();
    }

    /// Has a credit come home whose message is still in flight.
    pub(crate) fn pass_on(&mut self, standing: Standing) {
        self.taken[standing as usize] -= 1;
        self.pool.pass_on();
    }

    /// A message has ended that had passed its credit on.
    pub(crate) const fn end_passed_on(&mut self) {
        self.pool.end_passed_on();
    }

    /// Notes that a credit is taken by a message to a peer of another standing than was thought.
    pub(crate) const fn restand(&mut self, from: Standing, to: Standing) {
        self.taken[from as usize] -= 1;
        self.taken[to as usize] += 1;
    }

    /// Changes how many there are. Those that come are free: [`grant`](Self::grant) them to who waits.
    pub(crate) fn set_total(&mut self, total: u32) {
        self.pool.set_total(total);
    }

    /// The next message that waits and may have a credit; it holds one then.
    pub(crate) fn grant(
        &mut self,
        messages: &mut Messages,
        peers: &mut Peers,
    ) -> Option<Message<PeerCredited>> {
        if self.pool.waiting_count() == 0 {
            return None;
        }
        let standing = if self.pool.try_take() {
            self.next_standing()?
        } else {
            let waits = |standing: &Standing| !self.turns[*standing as usize].is_empty();
            let standing = STANDINGS.into_iter().find(|it| waits(it) && self.may_borrow(*it))?;
            self.pool.lend();
            standing
        };
        self.taken[standing as usize] += 1;
        let message = self.pop(messages, peers, standing)?;
        messages.record_mut(&message).credit_of = standing;
        Some(message)
    }

    /// Peers of which standing have the next turn.
    fn next_standing(&mut self) -> Option<Standing> {
        let mut waiting = STANDINGS.into_iter().filter(|it| !self.turns[*it as usize].is_empty());
        let best = waiting.next()?;
        let (mut next, skipped) = (best, &mut self.skipped);
        for worse in waiting {
            skipped[worse as usize] += 1;
            if next == best && skipped[worse as usize] >= TURNS {
                next = worse;
            }
        }
        skipped[next as usize] = 0;
        Some(next)
    }

    /// Takes out the first message of a standing; the next one for its peer waits for the next round.
    fn pop(
        &mut self,
        messages: &mut Messages,
        peers: &mut Peers,
        standing: Standing,
    ) -> Option<Message<PeerCredited>> {
        let message = self.turns[standing as usize].pop(messages)?;
        self.succeed(messages, peers, &message);
        self.pool.end_wait();
        Some(message)
    }

    /// Has the first message behind a head that was taken out be the head.
    fn succeed(&mut self, messages: &mut Messages, peers: &mut Peers, former: &Message<PeerCredited>) {
        let peer = peers.get_mut(messages.record(former).peer());
        if let Some(first) = messages.succeed(&mut peer.heads, former) {
            self.turns[peer.standing as usize].push(messages, first);
        }
    }

    /// All messages that wait; the caller has each of them [wait](Self::wait) again or do something else.
    pub(crate) fn take_waiters(
        &mut self,
        messages: &mut Messages,
        peers: &mut Peers,
    ) -> MessageQueue<PeerCredited> {
        let mut all = MessageQueue::new();
        for standing in STANDINGS {
            while let Some(message) = self.pop(messages, peers, standing) {
                all.push(messages, message);
            }
        }
        all
    }

    /// Takes a message out of the queue that will not wait any longer.
    pub(crate) fn withdraw(
        &mut self,
        messages: &mut Messages,
        peers: &mut Peers,
        expired: Message<Expired>,
    ) -> Message<PeerCredited> {
        let (ni, peer) = position_of(messages, &expired);
        let peer = peers.get_mut(peer);
        let Some(head) = messages.head_at(peer.heads, ni) else {
            unreachable!("a message waits for no turn")
        };
        self.pool.end_wait();
        if head != expired.slot() {
            return messages.unfollow(head, expired);
        }
        let message = self.turns[peer.standing as usize].take_expired(messages, expired);
        self.succeed(messages, peers, &message);
        message
    }

    /// Has the peer of a head wait among those of another standing.
    pub(crate) fn move_head(&mut self, messages: &mut Messages, head: u32, from: Standing, to: Standing) {
        let message = self.turns[from as usize].remove(messages, head);
        self.turns[to as usize].push(messages, message);
    }

    /// Messages that wait.
    pub(crate) const fn waiting_count(&self) -> u32 {
        self.pool.waiting_count()
    }

    /// Whether a message waits, or more credits are taken than there are.
    pub(crate) const fn is_short(&self) -> bool {
        self.pool.waiting_count() > 0 || self.pool.excess() > 0
    }

    /// The credits that [`Pool::available`] tells.
    pub(crate) fn available(&self) -> i64 {
        self.pool.available()
    }

    /// The numbers that [`Pool::bounds`] tells.
    pub(crate) const fn bounds(&self) -> (u32, i64) {
        self.pool.bounds()
    }
}

/// The NI and the peer of a message.
fn position_of<S>(messages: &Messages, message: &Message<S>) -> (NiId, u32) {
    let record = messages.record(message);
    (record.transmit.ni, record.peer())
}
