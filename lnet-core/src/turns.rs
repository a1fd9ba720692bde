//! Turns at the credits of an NI: which message gets the next one.
//!
//! Peers take turns, one message each, so that the messages of many for one do not stop those for others.
//! Peers that answer come first, and of these the ones that have no credit at the time; then those of which
//! nothing is known yet, then silent ones. Where better ones always wait, a fourth credit goes to the others
//! all the same.
//!
//! A quarter of the credits is a reserve: where those that are not worse have taken less than that, a message
//! is lent a credit though none is free, since credits that worse ones have are no reason for it to wait. A
//! peer that answers and has no credit is lent one as well for each that others of its kind have beyond their
//! first: these may have answered just to have many. Where each has one, all have their turns as ever. A
//! credit that is taken for long counts as one of the silent, and passes on: where more are taken than there
//! are, one that was lent goes. So at most half as many credits as there are, or two, are lent at once.
//!
//! Invariants: messages to one peer by one NI leave in the order they came; while a message waits, no credit
//! is free, and those that are not worse than its peer hold the reserve; while one to a peer waits that
//! answers and has no credit, half as many as there are, or two, are lent, or as many as its kind has beyond
//! the first ones.

use crate::credit::Pool;
use crate::lnd::NiId;
use crate::message::{Expired, Message, MessageQueue, Messages, PeerCredited};
use crate::peer::Peers;
use crate::standing::Turn;

/// Credits of which one goes to peers of a worse turn.
const TURNS: u8 = 4;
/// The reserve, as a part of all credits.
const RESERVE_PART: u32 = 4;
/// Reserves that are lent at once, at most.
const RESERVES: u32 = 2;

/// Credits of an NI, and the messages that wait for one.
///
/// One message of each peer that waits is in a queue, its head; the others are behind that.
pub(crate) struct NiCredits {
    pool: Pool,
    /// The heads, by the turns of their peers.
    turns: [MessageQueue<PeerCredited>; 4],
    /// Credits that others got while peers of a turn waited.
    skipped: [u8; 4],
    /// Credits that the best got in a row while others waited.
    in_row: u8,
    /// Credits that are taken, by the turn that the peers had then.
    taken: [u32; 4],
    #[cfg(feature = "sabotage")]
    pub(crate) bug: Option<TurnsBug>,
}

/// Bugs that can be switched on.
#[cfg(feature = "sabotage")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TurnsBug {
    /// All peers have the same turn, and no credit is lent.
    OneTurn,
    /// No credit is lent.
    NothingLent,
    /// Peers that answer are lent credits from the reserve alone.
    ReserveAlone,
}

impl NiCredits {
    pub(crate) const fn new(total: u32) -> Self {
        Self {
            pool: Pool::new(total),
            turns: [const { MessageQueue::new() }; 4],
            skipped: [0; 4],
            in_row: 0,
            taken: [0; 4],
            #[cfg(feature = "sabotage")]
            bug: None,
        }
    }

    /// Whether a message takes a credit though none is free.
    fn may_borrow(&self, turn: Turn) -> bool {
        let (total, _) = self.pool.bounds();
        let reserve = (total / RESERVE_PART).max(1);
        let taken: u32 = self.taken[..=turn.worst() as usize].iter().sum();
        let beyond_first = self.taken[Turn::Prompt as usize];
        let is_first = turn == Turn::First && self.pool.excess() < beyond_first.min(RESERVES * reserve);
        #[cfg(feature = "sabotage")]
        let (is_first, taken) = match self.bug {
            None => (is_first, taken),
            Some(TurnsBug::ReserveAlone) => (false, taken),
            Some(TurnsBug::NothingLent | TurnsBug::OneTurn) => (false, u32::MAX),
        };
        turn != Turn::Silent && total != 0 && (taken < reserve || is_first)
    }

    /// Takes a credit for a message whose peer has none that waits here; it is noted as one of this turn.
    #[inline]
    pub(crate) fn try_take(&mut self, turn: Turn) -> bool {
        if !self.pool.try_take() {
            if !self.may_borrow(turn) {
                return false;
            }
            self.pool.lend();
        }
        self.taken[turn as usize] += 1;
        true
    }

    /// The queue of those that have a turn.
    const fn queue(&self, turn: Turn) -> usize {
        #[cfg(feature = "sabotage")]
        if matches!(self.bug, Some(TurnsBug::OneTurn)) {
            return Turn::First as usize;
        }
        turn as usize
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
            self.turns[self.queue(peer.turn())].push(messages, message);
        }
    }

    /// Has a credit come home that was taken in this turn. The caller [grants](Self::grant) it.
    pub(crate) fn give_back(&mut self, taken_as: Turn) {
        self.taken[taken_as as usize] -= 1;
        self.pool.give_back();
    }

    /// Has a credit come home whose message is still in flight.
    pub(crate) fn pass_on(&mut self, taken_as: Turn) {
        self.taken[taken_as as usize] -= 1;
        self.pool.pass_on();
    }

    /// A message has ended that had passed its credit on.
    pub(crate) const fn end_passed_on(&mut self) {
        self.pool.end_passed_on();
    }

    /// Notes that a credit is taken by a message to a peer of another turn than was thought.
    pub(crate) const fn restand(&mut self, from: Turn, to: Turn) {
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
        let turn = if self.pool.try_take() {
            self.next_turn()?
        } else {
            let waits = |turn: &Turn| !self.turns[*turn as usize].is_empty();
            let turn = Turn::ALL.into_iter().find(|it| waits(it) && self.may_borrow(*it))?;
            self.pool.lend();
            turn
        };
        let message = self.pop(messages, peers, turn)?;
        self.taken[turn as usize] += 1;
        messages.record_mut(&message).credit_of = turn;
        Some(message)
    }

    /// The next turn: the best, and after three credits for those the one that has waited longest of the
    /// others.
    fn next_turn(&mut self) -> Option<Turn> {
        let mut waiting = Turn::ALL.into_iter().filter(|it| !self.turns[*it as usize].is_empty());
        let best = waiting.next()?;
        let (skipped, mut longest) = (&mut self.skipped, None);
        for worse in waiting {
            let of_worse = &mut skipped[worse as usize];
            *of_worse = of_worse.saturating_add(1);
            if longest.is_none_or(|(_, most)| most < *of_worse) {
                longest = Some((worse, *of_worse));
            }
        }
        let Some((longest, _)) = longest else { return Some(best) };
        self.in_row += 1;
        if self.in_row < TURNS {
            return Some(best);
        }
        (self.in_row, skipped[longest as usize]) = (0, 0);
        Some(longest)
    }

    /// Takes out the first message that has a turn; the next one for its peer waits for the next round.
    fn pop(
        &mut self,
        messages: &mut Messages,
        peers: &mut Peers,
        turn: Turn,
    ) -> Option<Message<PeerCredited>> {
        let message = self.turns[turn as usize].pop(messages)?;
        self.succeed(messages, peers, &message);
        self.pool.end_wait();
        Some(message)
    }

    /// Has the first message behind a head that was taken out be the head.
    fn succeed(&mut self, messages: &mut Messages, peers: &mut Peers, former: &Message<PeerCredited>) {
        let peer = peers.get_mut(messages.record(former).peer());
        if let Some(first) = messages.succeed(&mut peer.heads, former) {
            self.turns[self.queue(peer.turn())].push(messages, first);
        }
    }

    /// All messages that wait; the caller has each of them [wait](Self::wait) again or do something else.
    pub(crate) fn take_waiters(
        &mut self,
        messages: &mut Messages,
        peers: &mut Peers,
    ) -> MessageQueue<PeerCredited> {
        let mut all = MessageQueue::new();
        for turn in Turn::ALL {
            while let Some(message) = self.pop(messages, peers, turn) {
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
        let message = self.turns[self.queue(peer.turn())].take_expired(messages, expired);
        self.succeed(messages, peers, &message);
        message
    }

    /// Has the peer of a head wait among those of another turn.
    pub(crate) fn move_head(&mut self, messages: &mut Messages, head: u32, from: Turn, to: Turn) {
        let [from, to] = [from, to].map(|turn| self.queue(turn));
        if from != to {
            let message = self.turns[from].remove(messages, head);
            self.turns[to].push(messages, message);
        }
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
