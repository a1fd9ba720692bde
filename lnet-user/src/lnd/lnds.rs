//! The LNDs of one shard, seen as one.
//!
//! Invariants: a message goes to the LND of its interface; the names that the LNDs have for messages that
//! arrive do not overlap, so that each is resumed by the LND that has it.

use lnet_core::lnd::{Full, Lnd, Progress, RxId, Transmit, Uplink, Verdict};
use lnet_core::time::Instant;

use super::AnyLnd;
use super::lo::LoLnd;
use crate::memory::Memory;

/// A shard's LNDs.
pub(crate) struct Lnds {
    /// What carries messages to other nodes; a node without interfaces has none.
    pub(crate) network: Option<AnyLnd>,
    pub(crate) lo: LoLnd,
}

impl Lnds {
    /// Whether there is something to do that no watched descriptor would report.
    pub(crate) fn has_work(&mut self) -> bool {
        self.lo.has_work() || self.network.as_mut().is_some_and(AnyLnd::has_work)
    }

    /// Whether the network is waited for in a way that wakes nobody.
    pub(crate) fn awaits_completions(&self) -> bool {
        self.network.as_ref().is_some_and(AnyLnd::awaits_completions)
    }
}

impl Lnd for Lnds {
    type Memory = Memory;

    #[inline]
    fn submit(&mut self, now: Instant, transmit: Transmit, memory: &Memory) -> Result<(), Full<Transmit>> {
        match &mut self.network {
            Some(network) if transmit.ni != self.lo.ni() => network.submit(now, transmit, memory),
            _ => self.lo.submit(now, transmit, memory),
        }
    }

    #[inline]
    fn flush(&mut self, now: Instant, memory: &Memory) {
        if let Some(network) = &mut self.network {
            network.flush(now, memory);
        }
    }

    #[inline]
    fn drive(&mut self, now: Instant, budget: u32, up: &mut impl Uplink, memory: &mut Memory) -> Progress {
        let mut progress = self.lo.drive(now, budget, up, memory);
        if let Some(network) = &mut self.network {
            let Progress { received, completed } = network.drive(now, budget, up, memory);
            progress.received += received;
            progress.completed += completed;
        }
        progress
    }

    fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut impl Uplink) {
        match &mut self.network {
            Some(network) if !self.lo.has_named(rx) => network.resume(now, rx, verdict, up),
            _ => self.lo.resume(now, rx, verdict, up),
        }
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Instant> {
        self.network.as_ref().and_then(AnyLnd::poll_timeout)
    }
}
