//! The `lo` LND: what a node sends to itself (LNet `lo.c`).
//!
//! A message goes from its descriptor's buffer into that of its target in one copy; there are no frames, and
//! nothing is lost. Where the target is a sibling shard's, the header goes there and the span comes back
//! ([`lnet_core::shard::mesh`]), as with any other LND.
//!
//! Invariants: messages of a shard arrive in the order in which they were submitted, but for those that have
//! to wait; a message is `sent` when it was received, dropped or cut short, and not before, so its buffer can
//! be read until then; nothing allocates after the start. A message that may have to wait has a name of its
//! own, and there are more names than the shard lets messages wait.

use std::collections::VecDeque;

use lnet_core::limits::Limits;
use lnet_core::lnd::{Full, Lent, Lnd, NiId, Progress, RxId, Span, Status, Transmit, TxId, Uplink, Verdict};
use lnet_core::time::Instant;
use lnet_io::memory::Memory;

/// The `lo` LND of one shard.
#[derive(Debug)]
pub(crate) struct LoLnd {
    ni: NiId,
    first_rx: u32,
    submitted: VecDeque<Transmit>,
    idle: Vec<RxId>,
    /// Messages that the shard has delayed, by name.
    delayed: Box<[Option<Transmit>]>,
    /// Those of them that have been given a place.
    resumed: VecDeque<(RxId, Span)>,
}

impl LoLnd {
    /// Messages that it may have to keep at once on a shard with these limits: names that it uses.
    pub(crate) fn names_max(limits: &Limits) -> u32 {
        limits.delayed + 1
    }

    /// The LND of a shard with these limits, over the interface `ni`. It names messages from `first_rx` on.
    pub(crate) fn new(ni: NiId, first_rx: u32, limits: &Limits) -> Self {
        let names = Self::names_max(limits);
        Self {
            ni,
            first_rx,
            submitted: VecDeque::with_capacity(limits.transmits() as usize),
            idle: (0..names).rev().map(|name| RxId(first_rx + name)).collect(),
            delayed: (0..names).map(|_| None).collect(),
            resumed: VecDeque::with_capacity(names as usize),
        }
    }

    /// Its interface.
    #[must_use]
    pub(crate) fn ni(&self) -> NiId {
        self.ni
    }

    /// Whether there is something to do in the next turn.
    pub(crate) fn has_work(&self) -> bool {
        !self.resumed.is_empty() || !self.submitted.is_empty() && !self.idle.is_empty()
    }

    /// A message arrives where it was sent.
    fn arrive(&mut self, now: Instant, transmit: &Transmit, up: &mut impl Uplink, memory: &mut Memory) {
        let Some(rx) = self.idle.pop() else { unreachable!("the caller has seen a free name") };
        match up.header(now, self.ni, &transmit.header.source.nid, rx, &transmit.header) {
            Verdict::Deliver(span) => self.deliver(now, rx, transmit, &span, up, memory),
            Verdict::Delay => *self.delayed(rx) = Some(*transmit),
            Verdict::Drop => self.drop_message(now, rx, transmit, up),
        }
    }

    fn deliver(
        &mut self,
        now: Instant,
        rx: RxId,
        transmit: &Transmit,
        span: &Span,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) {
        if let Some(payload) = transmit.payload.filter(|_| span.length_bytes != 0) {
            memory.copy(&payload, span);
        }
        up.received(now, rx, Status::Ok);
        self.idle.push(rx);
        up.sent(now, transmit.tx, Status::Ok);
    }

    fn drop_message(&mut self, now: Instant, rx: RxId, transmit: &Transmit, up: &mut impl Uplink) {
        self.idle.push(rx);
        // That a message was sent says nothing about its reception.
        up.sent(now, transmit.tx, Status::Ok);
    }

    fn delayed(&mut self, rx: RxId) -> &mut Option<Transmit> {
        &mut self.delayed[(rx.0 - self.first_rx) as usize]
    }
}

impl Lnd for LoLnd {
    type Memory = Memory;

    fn submit(&mut self, _: Instant, Lent { transmit, .. }: Lent<'_>, _: &Memory) -> Result<(), Full<TxId>> {
        if self.submitted.len() == self.submitted.capacity() {
            return Err(Full(transmit.tx));
        }
        self.submitted.push_back(*transmit);
        Ok(())
    }

    fn flush(&mut self, _: Instant, _: &Memory) {}

    fn drive(&mut self, now: Instant, budget: u32, up: &mut impl Uplink, memory: &mut Memory) -> Progress {
        let mut received = 0;
        while received < budget {
            if let Some((rx, span)) = self.resumed.pop_front() {
                let Some(transmit) = self.delayed(rx).take() else { unreachable!("{rx:?} was not delayed") };
                self.deliver(now, rx, &transmit, &span, up, memory);
            } else if let Some(transmit) = self.submitted.pop_front_if(|_| !self.idle.is_empty()) {
                self.arrive(now, &transmit, up, memory);
            } else {
                break;
            }
            received += 1;
        }
        Progress { received, completed: 0 }
    }

    fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut impl Uplink) {
        match verdict {
            // In the next turn, which has the buffers at hand.
            Verdict::Deliver(span) => self.resumed.push_back((rx, span)),
            Verdict::Drop => {
                let Some(transmit) = self.delayed(rx).take() else { unreachable!("{rx:?} was not delayed") };
                self.drop_message(now, rx, &transmit, up);
            }
            Verdict::Delay => unreachable!("{rx:?} is resumed to be delayed"),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}
