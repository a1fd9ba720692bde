//! The driver of a node's `xdp` nets, whichever it is.

use lnet_core::lnd::{Full, Lent, Lnd, Progress, RxId, TxId, Uplink, Verdict};
use lnet_core::time::Instant;
use lnet_core::xfer::{XferCounters, XferUsage};

use super::counters::XdpCounters;
use super::socket::SocketLnd;
use super::xdp::XdpLnd;
use crate::capture::Tap;
use crate::memory::Memory;
use crate::xsk::{SocketError, Statistics};

/// One of the drivers: a closed choice, so that no call goes by a table.
pub enum AnyLnd {
    /// Over `AF_XDP` rings.
    Xdp(Box<XdpLnd>),
    /// Over UDP sockets.
    Socket(Box<SocketLnd>),
}

macro_rules! either {
    ($any:expr, $lnd:ident => $body:expr) => {
        match $any {
            AnyLnd::Xdp($lnd) => $body,
            AnyLnd::Socket($lnd) => $body,
        }
    };
}

impl AnyLnd {
    /// Where its frames are shown to captures.
    pub(crate) fn tap_mut(&mut self) -> &mut Tap {
        either!(self, lnd => &mut lnd.tap)
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &XdpCounters {
        either!(self, lnd => lnd.counters())
    }

    /// What the transfer protocol has counted.
    #[must_use]
    pub fn transfer_counters(&self) -> &XferCounters {
        either!(self, lnd => lnd.transfer_counters())
    }

    /// What the transfer protocol holds at this moment.
    #[must_use]
    pub fn transfer_usage(&self) -> XferUsage {
        either!(self, lnd => lnd.transfer_usage())
    }

    /// Frames of the node's UMEM that this shard has at this moment; sockets have none.
    #[must_use]
    pub fn frames_count(&self) -> usize {
        match self {
            Self::Xdp(lnd) => lnd.frames_count(),
            Self::Socket(_) => 0,
        }
    }

    /// What the kernel counted on this shard's sockets; of UDP sockets, what they had no room for.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn ring_statistics(&self) -> Result<Vec<Statistics>, SocketError> {
        match self {
            Self::Xdp(lnd) => lnd.ring_statistics(),
            Self::Socket(lnd) => {
                let statistics =
                    |dropped: u32| Statistics { rx_dropped: dropped.into(), ..Statistics::default() };
                Ok(lnd.sockets().map(|socket| statistics(socket.dropped())).collect())
            }
        }
    }

    /// Whether something is waited for that wakes nobody.
    pub(crate) fn awaits_completions(&self) -> bool {
        match self {
            Self::Xdp(lnd) => lnd.awaits_completions(),
            Self::Socket(_) => false,
        }
    }

    /// Whether something has arrived, as far as that can be seen at a glance: what sockets have cannot.
    #[inline]
    pub(crate) fn sees_arrivals(&mut self) -> bool {
        match self {
            Self::Xdp(lnd) => lnd.has_arrivals(),
            Self::Socket(_) => false,
        }
    }

    /// Whether there is something to do that nothing watched would report.
    pub(crate) fn has_work(&mut self) -> bool {
        either!(self, lnd => lnd.has_work())
    }
}

impl Lnd for AnyLnd {
    type Memory = Memory;

    #[inline]
    fn submit(&mut self, now: Instant, message: Lent<'_>, memory: &Memory) -> Result<(), Full<TxId>> {
        either!(self, lnd => lnd.submit(now, message, memory))
    }

    #[inline]
    fn flush(&mut self, now: Instant, memory: &Memory) {
        either!(self, lnd => lnd.flush(now, memory));
    }

    #[inline]
    fn drive(&mut self, now: Instant, budget: u32, up: &mut impl Uplink, memory: &mut Memory) -> Progress {
        either!(self, lnd => lnd.drive(now, budget, up, memory))
    }

    fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut impl Uplink) {
        either!(self, lnd => lnd.resume(now, rx, verdict, up));
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Instant> {
        either!(self, lnd => lnd.poll_timeout())
    }
}
