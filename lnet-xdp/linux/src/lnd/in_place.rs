//! Payloads that are sent where they lie, and messages that have ended while the kernel may still read
//! theirs.
//!
//! Invariants: a message is reported as sent, and with that the loan of its buffer may end, only when none of
//! its descriptors is with the kernel, those of frames that were sent again included, or when their rings are
//! about to go; and it is reported once. Nothing of a message that has ended is sent any more: the transfer
//! protocol forgets its frames with it.

use std::collections::VecDeque;

use lnet_core::lnd::{
    NiId, Path, PathReport, Prefetch, PrefetchHint, PrefetchHints, RxId, Span, Status, Transmit, TxId,
    Uplink, Verdict,
};
use lnet_core::time::Instant;
use lnet_io::memory::Memory;
use lnet_wire::{Header, Nid};

/// What is known of payloads in registered memory. Allocates all that it will ever use.
pub(super) struct InPlace {
    /// Payloads of messages of which a frame was sent in place, by message.
    payloads: Box<[Option<(NiId, Span)>]>,
    /// Messages that have ended, and were not reported when they did.
    ended: VecDeque<(TxId, Status, NiId, Span)>,
}

impl InPlace {
    /// Room for messages with numbers below `messages`.
    pub(super) fn new(messages: u32) -> Self {
        let messages = messages as usize;
        Self { payloads: vec![None; messages].into(), ended: VecDeque::with_capacity(messages) }
    }

    /// Remembers that a frame of this message is sent in place.
    #[inline]
    pub(super) fn note(&mut self, transmit: &Transmit) {
        self.payloads[transmit.tx.0 as usize] = transmit.payload.map(|span| (transmit.ni, span));
    }

    /// Forgets the payloads that went by an NI, whose rings are about to go; the messages that have ended and
    /// waited for those.
    pub(super) fn forget(&mut self, ni: NiId) -> Vec<(TxId, Status)> {
        for payload in &mut self.payloads {
            *payload = payload.filter(|(of, _)| *of != ni);
        }
        let mut ended = Vec::new();
        self.ended.retain(|(tx, status, of, _)| {
            if *of == ni {
                ended.push((*tx, *status));
            }
            *of != ni
        });
        ended
    }

    /// Whether no message waits to be reported.
    pub(super) fn is_empty(&self) -> bool {
        self.ended.is_empty()
    }

    /// Reports messages whose payloads the kernel has done with, and those of NIs that are given up; how
    /// many.
    #[inline]
    pub(super) fn report(
        &mut self,
        now: Instant,
        memory: &Memory,
        up: &mut impl Uplink,
        is_given_up: impl Fn(NiId) -> bool,
    ) -> u32 {
        let count = self.ended.len();
        for _ in 0..count {
            let Some((tx, status, ni, span)) = self.ended.pop_front() else { break };
            if memory.is_in_flight(&span) && !is_given_up(ni) {
                self.ended.push_back((tx, status, ni, span));
            } else {
                up.sent(now, tx, status);
            }
        }
        (count - self.ended.len()) as u32
    }
}

/// A shard as the transfer protocol sees it: it is not told yet of messages whose payloads were sent in
/// place.
pub(super) struct InPlaceUplink<'a, U> {
    pub(super) up: &'a mut U,
    pub(super) in_place: Option<&'a mut InPlace>,
}

impl<U: Uplink> PrefetchHints for InPlaceUplink<'_, U> {
    #[inline]
    fn wants_hints(&self) -> bool {
        self.up.wants_hints()
    }

    #[inline]
    fn hint(&mut self, arrivals: &[PrefetchHint], prefetch: Prefetch) {
        self.up.hint(arrivals, prefetch);
    }

    #[inline]
    fn expected_md(&self, distance: usize) -> Option<u32> {
        self.up.expected_md(distance)
    }
}

impl<U: Uplink> Uplink for InPlaceUplink<'_, U> {
    #[inline]
    fn header(&mut self, now: Instant, ni: NiId, from: &Nid, rx: RxId, header: &Header) -> Verdict {
        self.up.header(now, ni, from, rx, header)
    }

    #[inline]
    fn arrived(&mut self, now: Instant, rx: RxId, bytes: u32) {
        self.up.arrived(now, rx, bytes);
    }

    #[inline]
    fn received(&mut self, now: Instant, rx: RxId, status: Status) {
        self.up.received(now, rx, status);
    }

    #[inline]
    fn sent(&mut self, now: Instant, tx: TxId, status: Status) {
        if let Some(in_place) = &mut self.in_place
            && let Some((ni, span)) = in_place.payloads[tx.0 as usize].take()
        {
            in_place.ended.push_back((tx, status, ni, span));
        } else {
            self.up.sent(now, tx, status);
        }
    }

    #[inline]
    fn is_local(&self, nid: &Nid) -> bool {
        self.up.is_local(nid)
    }

    #[inline]
    fn restarted(&mut self, peer: &Nid) {
        self.up.restarted(peer);
    }

    #[inline]
    fn path_health(&mut self, now: Instant, path: &Path, report: PathReport) {
        self.up.path_health(now, path, report);
    }

    #[inline]
    fn reroute(&mut self, now: Instant, silent: &Path, candidates: &[Path]) -> Option<usize> {
        self.up.reroute(now, silent, candidates)
    }

    #[inline]
    fn another_path(&self, path: &Path, has: impl Fn(NiId) -> bool) -> Option<Path> {
        self.up.another_path(path, has)
    }
}
