//! What threads see and do of a node while another one opens or closes an NI, which takes as long as the
//! kernel likes.
//!
//! Invariants: no lock of a view is held while the kernel is asked to make or take down anything; an XDP
//! program is in the view once frames may come by it, and lets them in from then on if the node is open.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use lnet_core::limits::Limits;
use lnet_core::lnd::NiId;
use lnet_io::locks::{Mutex, MutexGuard};
use lnet_io::memory::Buffer;
use lnet_io::netlink::{LinkPackets, device_of};
use lnet_io::reactor::{Chosen, Waker};
use lnet_xdp::{Programs, RingTraffic, XdpFrames};

use super::{DownReason, NiConfig, NiState, NodeError, OpenNi};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct NodeView {
    nis: Mutex<BTreeMap<u16, OpenNi>>,
    /// The XDP programs, and the memory of rings.
    programs: Arc<Programs>,
    /// What sockets are opened by.
    opened: Arc<AtomicBool>,
    wakers: Vec<Waker>,
    limits: Limits,
    reactor: Chosen,
}

impl NodeView {
    /// The view of a node without NIs, whose shards these wake.
    pub(super) fn new(
        wakers: Vec<Waker>,
        limits: Limits,
        opened: Arc<AtomicBool>,
        programs: Arc<Programs>,
        reactor: Chosen,
    ) -> Arc<Self> {
        Arc::new(Self { nis: Mutex::default(), programs, opened, wakers, limits, reactor })
    }

    /// The NIs that are open, by their numbers.
    pub(super) fn open_nis(&self) -> MutexGuard<'_, BTreeMap<u16, OpenNi>> {
        // Whatever a thread was doing that has panicked, the list is whole.
        self.nis.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the node waits, and why.
    pub(crate) fn reactor(&self) -> &Chosen {
        &self.reactor
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The XDP programs, and the memory of rings.
    pub(super) fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Lets frames in: [`NodeDriver::open`](super::NodeDriver::open).
    pub(crate) fn open(&self) -> Result<(), NodeError> {
        self.opened.store(true, Ordering::Release);
        for waker in &self.wakers {
            waker.wake();
        }
        Ok(self.programs.open()?)
    }

    /// Has the XDP programs log what they refuse, or not.
    pub(crate) fn log_refusals(&self, on: bool) -> Result<(), NodeError> {
        Ok(self.programs.set_logging(on)?)
    }

    /// Registers a buffer: [`NodeDriver::register`](super::NodeDriver::register).
    pub(crate) fn register(&self, length_bytes: usize) -> Option<Buffer> {
        self.programs.register(length_bytes)
    }

    /// The NIs but `lo`: [`NodeDriver::nis`](super::NodeDriver::nis).
    pub(crate) fn nis(&self) -> Vec<NiState> {
        // A device that is renamed is shown so; the label of an alias stays.
        let named = |open: &OpenNi| match open.lnd.as_ni().followed() {
            Some((found, _)) if device_of(&open.config.interface) == open.config.interface => found.name(),
            _ => open.config.interface.clone(),
        };
        let state = |(number, open): (&u16, &OpenNi)| NiState {
            ni: NiId(*number),
            config: NiConfig { interface: named(open), ..open.config.clone() },
            xdp: open.xdp(),
            options: open.lnd.as_ni().options(),
            facts: open.lnd.as_ni().facts(),
            reach: open.lnd.as_ni().followed().and_then(|(found, _)| found.reach()),
            down: open.lnd.as_ni().followed().and_then(|(found, address)| DownReason::of(found, address)),
        };
        self.open_nis().iter().map(state).collect()
    }

    /// The NIs whose LND has not followed yet what has changed about their interface.
    pub(crate) fn changed(&self) -> Vec<NiId> {
        let nis = self.open_nis();
        let changed = nis.iter().filter(|(_, open)| open.lnd.as_ni().has_changed());
        changed.map(|(number, _)| NiId(*number)).collect()
    }

    /// The interface of an NI whose netlink thread has panicked, if there is one.
    pub(crate) fn unfollowed(&self) -> Option<String> {
        let has_panicked =
            |open: &&OpenNi| open.lnd.as_ni().followed().is_some_and(|(found, _)| found.has_panicked());
        self.open_nis().values().find(has_panicked).map(|open| open.config.interface.clone())
    }

    /// Whether there are frames to be watched ([`NodeView::watch_frames`]).
    pub(crate) fn has_rings(&self) -> bool {
        self.programs.are_there()
    }

    /// Looks whether frames arrive nowhere, by the traffic of the shards and what the kernel counts
    /// ([`Programs::watch`]).
    pub(crate) fn watch_frames(
        &self,
        traffic: &BTreeMap<u32, RingTraffic>,
        packets: &BTreeMap<u32, LinkPackets>,
    ) -> Result<(), NodeError> {
        Ok(self.programs.watch(traffic, packets)?)
    }

    /// Interfaces whose rings have not received any frame yet, and whether they were opened just now.
    pub(crate) fn unheard(&self) -> Vec<(u32, bool)> {
        self.programs.unheard()
    }

    /// The NIs whose rings are found to be deaf.
    pub(crate) fn deaf(&self) -> Vec<NiId> {
        let nis = self.open_nis();
        let deaf = nis.iter().filter(|(_, open)| open.lnd.is_deaf());
        deaf.map(|(number, _)| NiId(*number)).collect()
    }

    /// Counters of the XDP programs: [`NodeDriver::xdp_frames`](super::NodeDriver::xdp_frames).
    pub(crate) fn xdp_frames(&self) -> Result<XdpFrames, NodeError> {
        Ok(self.programs.frames()?)
    }
}
