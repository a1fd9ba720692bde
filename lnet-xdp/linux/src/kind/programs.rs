//! XDP programs and memory of a node's rings, for threads that look at them while another one opens or closes
//! an NI, which takes as long as the kernel likes.
//!
//! Invariants: the lock is not held while the kernel is asked to make or take down anything; an XDP program
//! is here once frames may come by it, and lets them in from then on if the node is open.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use lnet_io::locks::{Mutex, MutexGuard};
use lnet_io::memory::Buffer;
use lnet_io::netlink::{LinkPackets, Neighbours};
use lnet_io::xsk::Umem;
use lnet_wire::steer::Policy;

use super::link::{LinkState, Seen};
use crate::bpf::{ActiveMode, BpfError, Counters, Outline, SlotCount, XdpProgram};
use crate::lnd::RingTraffic;

/// An XDP program that several threads may have something to do with.
pub type SharedProgram = Arc<Mutex<XdpProgram>>;

/// Frames that the XDP programs of a node have counted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct XdpFrames {
    /// Frames steered, by queue and shard; queues of several interfaces are added up.
    pub slots: Vec<SlotCount>,
    /// Frames by reason for which they were not, or otherwise, steered.
    pub reasons: BTreeMap<&'static str, u64>,
    /// Frames steered on interfaces that have gone, or whose last NI was closed. What has not arrived of them
    /// ([`XdpLnd::arrived_by_gone`](crate::XdpLnd::arrived_by_gone)) never will.
    pub steered_by_gone: u64,
}

/// Sums of what the programs of a node have counted.
#[derive(Clone, Default, Debug)]
struct Sums {
    slots: BTreeMap<(u32, u32), u64>,
    reasons: BTreeMap<&'static str, u64>,
    steered_by_gone: u64,
}

impl Sums {
    fn add(&mut self, counters: &Counters, is_gone: bool) {
        if is_gone {
            self.steered_by_gone += counters.redirected();
        }
        for slot in &counters.slots {
            *self.slots.entry((slot.queue, slot.shard)).or_default() += slot.frames;
        }
        for (reason, count) in counters.totals() {
            *self.reasons.entry(reason.name()).or_default() += count;
        }
    }

    fn into_frames(self) -> XdpFrames {
        let slot = |((queue, shard), frames)| SlotCount { queue, shard, frames };
        XdpFrames {
            slots: self.slots.into_iter().map(slot).collect(),
            reasons: self.reasons,
            steered_by_gone: self.steered_by_gone,
        }
    }
}

/// The XDP programs of a node, and the memory of its rings.
#[derive(Debug)]
pub struct Programs {
    rings: Mutex<Rings>,
    /// Whether the node lets frames in.
    opened: Arc<AtomicBool>,
    shards: u32,
    /// Whether the programs can log what they refuse, and whether they do.
    can_log: bool,
    logs: AtomicBool,
}

#[derive(Debug, Default)]
struct Rings {
    umem: Option<Arc<Umem>>,
    /// Programs in the order of their interfaces' first NIs.
    programs: Vec<Listed>,
    /// Counts of the programs that have gone, while the LNDs count what they received by them.
    gone: Sums,
}

/// A program and what follows its interface.
#[derive(Clone, Debug)]
struct Listed {
    program: SharedProgram,
    neighbours: Arc<Neighbours>,
    interface_index: u32,
    link: Arc<LinkState>,
}

/// Locks a value. Each is whole, whatever a thread was doing that has panicked.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Programs {
    /// No programs yet, of a node with so many shards that is open or not, and that log what they refuse or
    /// cannot.
    #[must_use]
    pub fn new(opened: &Arc<AtomicBool>, shards: u32, logs: bool) -> Arc<Self> {
        let (rings, opened) = (Mutex::default(), Arc::clone(opened));
        Arc::new(Self { rings, opened, shards, can_log: logs, logs: logs.into() })
    }

    /// Has programs log what they refuse or not, those that are there and those that come.
    ///
    /// # Errors
    /// [`BpfError::NoLogging`] where they cannot; [`BpfError::Map`].
    pub fn set_logging(&self, on: bool) -> Result<(), BpfError> {
        if !self.can_log {
            return Err(BpfError::NoLogging);
        }
        self.logs.store(on, Ordering::Release);
        self.list().iter().try_for_each(|program| lock(program).set_logging(on))
    }

    pub(super) fn logs(&self) -> bool {
        self.logs.load(Ordering::Acquire)
    }

    /// Shows a program that was attached, what follows its interface, and the memory that its sockets have.
    pub(super) fn add(
        &self,
        mut program: XdpProgram,
        (neighbours, interface_index): (&Arc<Neighbours>, u32),
        (link, umem): (&Arc<LinkState>, &Arc<Umem>),
    ) -> Result<SharedProgram, BpfError> {
        let mut rings = lock(&self.rings);
        // A node that is opened later finds the program here.
        if self.opened.load(Ordering::Acquire) {
            program.set_shards(self.shards)?;
        }
        let program = Arc::new(Mutex::new(program));
        rings.programs.push(Listed {
            program: Arc::clone(&program),
            neighbours: Arc::clone(neighbours),
            interface_index,
            link: Arc::clone(link),
        });
        rings.umem = Some(Arc::clone(umem));
        Ok(program)
    }

    /// Shows a program no more that was detached, after its last frame; the memory goes with the last one.
    /// The counts stay, but for those of deaf rings: none of their frames has arrived, and that was told.
    pub(super) fn remove(&self, program: &SharedProgram, is_deaf: bool) {
        let counters = lock(program).counters();
        let mut rings = lock(&self.rings);
        match counters {
            Ok(_) if is_deaf => {}
            Ok(counters) => rings.gone.add(&counters, true),
            Err(error) => {
                tracing::warn!(%error, "frames of an interface without NIs are not counted any more")
            }
        }
        rings.programs.retain(|other| !Arc::ptr_eq(&other.program, program));
        if rings.programs.is_empty() {
            rings.umem = None;
        }
    }

    /// Begins to count anew, as the LNDs do that are made next.
    pub(super) fn forget_gone(&self) {
        lock(&self.rings).gone = Sums::default();
    }

    /// Leaves the programs and the memory to the node, which ends.
    pub(super) fn forget(&self) {
        *lock(&self.rings) = Rings::default();
    }

    /// The XDP programs, in the order of their interfaces' first NIs: for fault rules and counters of each
    /// interface. NIs over sockets have none.
    #[must_use]
    pub fn list(&self) -> Vec<SharedProgram> {
        lock(&self.rings).programs.iter().map(|listed| Arc::clone(&listed.program)).collect()
    }

    /// Lets frames in that come by rings. The node was marked as open before.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn open(&self) -> Result<(), BpfError> {
        self.list().iter().try_for_each(|program| lock(program).set_shards(self.shards))
    }

    /// Steers by another policy of a portal from now on.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn steer(&self, portal: u8, policy: Policy) -> Result<(), BpfError> {
        self.list().iter().try_for_each(|program| lock(program).set_policy(portal, policy))
    }

    /// A zeroed buffer of `length_bytes` in registered memory ([`XdpConfig::registered_bytes`]): long
    /// payloads that begin in it are sent by rings without a copy. Each takes whole chunks of 4096 bytes,
    /// which are free again when it is dropped. `None` when there is no free run of them that is long enough,
    /// for no bytes, and while no NI of the node is over rings.
    ///
    /// [`XdpConfig::registered_bytes`]: super::XdpConfig::registered_bytes
    #[must_use]
    pub fn register(&self, length_bytes: usize) -> Option<Buffer> {
        let umem = lock(&self.rings).umem.clone()?;
        umem.register(length_bytes).map(Buffer::from)
    }

    /// Whether there is any program.
    #[must_use]
    pub fn are_there(&self) -> bool {
        !lock(&self.rings).programs.is_empty()
    }

    /// Looks whether frames arrive nowhere: those that find no socket, and those that were steered while
    /// shards receive nothing; and whether one queue of several has all of them. `traffic` is that of the
    /// shards by each interface ([`XdpLnd::ring_traffic`](crate::XdpLnd::ring_traffic)), `packets` what the
    /// kernel counts on those that have not [received](Programs::unheard) yet. The NIs tell it, and the log.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn watch(
        &self,
        traffic: &BTreeMap<u32, RingTraffic>,
        packets: &BTreeMap<u32, LinkPackets>,
    ) -> Result<(), BpfError> {
        let programs = lock(&self.rings).programs.clone();
        for Listed { program, neighbours, interface_index, link } in programs {
            let queues = neighbours.queues().map_or(0, |(receive, _)| receive).max(link.served());
            let Outline { no_socket, steered } = lock(&program).outline(queues, self.shards)?;
            let traffic = traffic.get(&interface_index).copied().unwrap_or_default();
            // A link that carries nothing tells nothing. A bond counts what is for its slaves alone (LACP).
            let is_native = lock(&program).mode() == Some(ActiveMode::Native);
            let packets = packets.get(&interface_index).copied();
            let packets = packets.filter(|_| is_native && neighbours.is_up());
            let examined = match packets {
                Some(packets) => match link.examined_before(&packets) {
                    Some(examined) => examined,
                    None => steered.iter().sum::<u64>() + lock(&program).passed()?,
                },
                None => 0,
            };
            let seen = Seen { no_socket, steered, examined, traffic, packets };
            link.note_frames(&neighbours.name(), seen);
        }
        Ok(())
    }

    /// Interfaces whose rings have not received any frame yet, and whether they were opened just now.
    #[must_use]
    pub fn unheard(&self) -> Vec<(u32, bool)> {
        let rings = lock(&self.rings);
        let unheard = rings.programs.iter().filter(|listed| !listed.link.has_received());
        unheard.map(|listed| (listed.interface_index, listed.link.is_young())).collect()
    }

    /// Frames that the programs have counted since the node had none, those of interfaces that have gone
    /// among them.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn frames(&self) -> Result<XdpFrames, BpfError> {
        let (programs, mut sums) = {
            // At once: a program that goes meanwhile is not counted twice.
            let rings = lock(&self.rings);
            (rings.programs.clone(), rings.gone.clone())
        };
        for Listed { program, neighbours, .. } in programs {
            // First: what is gone steers no more.
            let is_gone = neighbours.is_gone();
            sums.add(&lock(&program).counters()?, is_gone);
        }
        Ok(sums.into_frames())
    }
}
