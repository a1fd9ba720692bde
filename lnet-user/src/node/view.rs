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
use lnet_io::netlink::device_of;
use lnet_io::uring::Waker;
use lnet_io::xsk::Umem;

use super::tcp::TcpNi;
use super::{DownReason, NiConfig, NiState, NodeError, OpenNi, SlotCount, XdpFrames, XdpNi};
use crate::bpf::{BpfError, XdpProgram};

/// An XDP program that several threads may have something to do with.
pub(super) type SharedProgram = Arc<Mutex<XdpProgram>>;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct View {
    nis: Mutex<BTreeMap<u16, OpenNi>>,
    rings: Mutex<Rings>,
    /// What sockets are opened by.
    opened: Arc<AtomicBool>,
    wakers: Vec<Waker>,
    limits: Limits,
}

/// What there is of rings.
#[derive(Debug, Default)]
struct Rings {
    umem: Option<Arc<Umem>>,
    /// In the order of their interfaces' first NIs.
    programs: Vec<SharedProgram>,
}

/// Whatever a thread was doing that has panicked, each value is whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl View {
    /// That of a node without NIs, whose shards these wake.
    pub(super) fn new(wakers: Vec<Waker>, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            nis: Mutex::default(),
            rings: Mutex::default(),
            opened: Arc::default(),
            wakers,
            limits,
        })
    }

    /// The NIs that are open, by their numbers.
    pub(super) fn open_nis(&self) -> MutexGuard<'_, BTreeMap<u16, OpenNi>> {
        lock(&self.nis)
    }

    pub(super) fn opened(&self) -> &Arc<AtomicBool> {
        &self.opened
    }

    pub(super) fn wakers(&self) -> &[Waker] {
        &self.wakers
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    fn shard_count(&self) -> u32 {
        self.wakers.len() as u32
    }

    /// Shows a program that was attached, and the memory that its sockets have.
    pub(super) fn add_program(
        &self,
        mut program: XdpProgram,
        umem: &Arc<Umem>,
    ) -> Result<SharedProgram, BpfError> {
        let mut rings = lock(&self.rings);
        // A node that is opened later finds the program here.
        if self.opened.load(Ordering::Acquire) {
            program.set_shards(self.shard_count())?;
        }
        let program = Arc::new(Mutex::new(program));
        rings.programs.push(Arc::clone(&program));
        rings.umem = Some(Arc::clone(umem));
        Ok(program)
    }

    /// Shows a program no more that is about to be detached; the memory goes with the last one.
    pub(super) fn remove_program(&self, program: &SharedProgram) {
        let mut rings = lock(&self.rings);
        rings.programs.retain(|other| !Arc::ptr_eq(other, program));
        if rings.programs.is_empty() {
            rings.umem = None;
        }
    }

    /// Leaves the programs and the memory to the node, which ends.
    pub(super) fn forget_rings(&self) {
        *lock(&self.rings) = Rings::default();
    }

    /// The XDP programs, in the order of their interfaces' first NIs.
    pub(super) fn programs(&self) -> Vec<SharedProgram> {
        lock(&self.rings).programs.clone()
    }

    /// As [`NodeDriver::open`](super::NodeDriver::open).
    pub(crate) fn open(&self) -> Result<(), NodeError> {
        self.opened.store(true, Ordering::Release);
        for waker in &self.wakers {
            waker.wake();
        }
        let shards = self.shard_count();
        Ok(self.programs().iter().try_for_each(|program| lock(program).set_shards(shards))?)
    }

    /// As [`NodeDriver::register`](super::NodeDriver::register).
    pub(crate) fn register(&self, length_bytes: usize) -> Option<Buffer> {
        let umem = lock(&self.rings).umem.clone()?;
        umem.register(length_bytes).map(Buffer::from)
    }

    /// As [`NodeDriver::nis`](super::NodeDriver::nis).
    pub(crate) fn nis(&self) -> Vec<NiState> {
        // A device that is renamed is shown so; the label of an alias stays.
        let named = |open: &OpenNi| match open.followed() {
            Some((found, _)) if device_of(&open.config.interface) == open.config.interface => found.name(),
            _ => open.config.interface.clone(),
        };
        let state = |(number, open): (&u16, &OpenNi)| NiState {
            ni: NiId(*number),
            config: NiConfig { interface: named(open), ..open.config.clone() },
            xdp: open.xdp().map(XdpNi::state),
            tcp: open.tcp().map(TcpNi::state),
            down: open.followed().and_then(|(found, address)| DownReason::of(found, address)),
        };
        self.open_nis().iter().map(state).collect()
    }

    /// As [`NodeDriver::xdp_frames`](super::NodeDriver::xdp_frames).
    pub(crate) fn xdp_frames(&self) -> Result<XdpFrames, NodeError> {
        let mut frames = XdpFrames::default();
        let mut slots = BTreeMap::new();
        for program in self.programs() {
            let counters = lock(&program).counters()?;
            for slot in &counters.slots {
                *slots.entry((slot.queue, slot.shard)).or_default() += slot.frames;
            }
            for (reason, count) in counters.totals() {
                *frames.reasons.entry(reason.name()).or_default() += count;
            }
        }
        frames.slots =
            slots.into_iter().map(|((queue, shard), frames)| SlotCount { queue, shard, frames }).collect();
        Ok(frames)
    }
}
