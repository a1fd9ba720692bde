//! Messages that wait for their next hop to be found.

use std::collections::VecDeque;

use lnet_core::lnd::{Transmit, TxId};
use lnet_core::time::{self, Instant};
use lnet_wire::header::Body;

/// Messages in the order in which their time is up. Allocates all that it will ever use.
pub(super) struct Unresolved {
    messages: VecDeque<(Instant, Transmit)>,
    /// How many of them are ACKs and REPLYs.
    responses: u32,
    /// How many of those there may be: they hold credits, and a sender of requests under made-up addresses
    /// could otherwise have all of them.
    responses_max: u32,
    /// Whether a next hop has changed since these messages were tried.
    pub(super) retry: bool,
    /// Whether one of them knows its next hop and the transfer protocol had no room for it.
    pub(super) is_full: bool,
    /// When to ask again for next hops, because the question found no room.
    pub(super) ask_again_at: Option<Instant>,
}

impl Unresolved {
    pub(super) fn new(messages: u32) -> Self {
        Self {
            messages: VecDeque::with_capacity(messages as usize),
            responses: 0,
            responses_max: 0,
            retry: false,
            is_full: false,
            ask_again_at: None,
        }
    }

    pub(super) fn set_responses_max(&mut self, responses_max: u32) {
        self.responses_max = responses_max;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn count(&self) -> usize {
        self.messages.len()
    }

    /// Whether this message may wait.
    pub(super) fn takes(&self, transmit: &Transmit) -> bool {
        !is_response(transmit) || self.responses < self.responses_max
    }

    pub(super) fn push(&mut self, deadline: Instant, transmit: Transmit) {
        self.responses += u32::from(is_response(&transmit));
        self.messages.push_back((deadline, transmit));
    }

    pub(super) fn pop(&mut self) -> Option<(Instant, Transmit)> {
        let (deadline, transmit) = self.messages.pop_front()?;
        self.responses -= u32::from(is_response(&transmit));
        Some((deadline, transmit))
    }

    /// More of the payload of a message is there, if it waits here.
    pub(super) fn extend(&mut self, transmit: &Transmit) {
        if let Some((_, waiting)) = self.messages.iter_mut().find(|(_, waiting)| waiting.tx == transmit.tx) {
            waiting.payload = transmit.payload;
        }
    }

    /// Takes a message out; whether it waited here.
    pub(super) fn remove(&mut self, tx: TxId) -> bool {
        let index = self.messages.iter().position(|(_, waiting)| waiting.tx == tx);
        let removed = index.and_then(|index| self.messages.remove(index));
        self.responses -= u32::from(removed.is_some_and(|(_, transmit)| is_response(&transmit)));
        removed.is_some()
    }

    /// Whether they are to be tried again now; that is said once.
    pub(super) fn take_retry(&mut self, now: Instant) -> bool {
        let asks_again = self.ask_again_at.take_if(|at| *at <= now).is_some();
        asks_again | std::mem::take(&mut self.retry) | std::mem::take(&mut self.is_full)
    }

    /// When something is to be done about them at the latest.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        time::earliest([self.deadline(), self.ask_again_at])
    }

    /// When the first one's time is up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.messages.front().map(|(deadline, _)| *deadline)
    }
}

pub(super) fn is_response(transmit: &Transmit) -> bool {
    matches!(transmit.header.body, Body::Ack { .. } | Body::Reply { .. })
}
