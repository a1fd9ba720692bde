//! The resolver of next hops, as shards see it: published answers, a queue of questions, wake hooks.
//!
//! Answers are published as a whole snapshot by one thread (`resolver`) and read without waiting. The
//! generation is raised after the snapshot is in place, so that an answer cached under the generation that
//! was read before it can be too new but never too old.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};

use arc_swap::{ArcSwap, ArcSwapOption};
use lnet_core::topology::Reach;
use tokio::sync::mpsc;

use super::{Mac, NetlinkError, resolver, runtime};
use crate::locks::Mutex;

/// Most addresses that are followed at a time; a further one replaces the one looked up longest ago.
pub const ENTRIES_MAX: usize = 1 << 14;
/// Most questions that wait for the thread; a further one is not taken.
pub const QUEUE_MAX: usize = 1024;

/// Called by the thread after answers have changed. It must not block, nor call [`Neighbours::subscribe`].
pub type WakeHook = Box<dyn Fn() + Send + Sync>;

/// Called with the Ethernet address of an interface, when it is new. It must not block, nor call
/// [`Neighbours::subscribe_mac`].
pub type MacHook = Box<dyn Fn(Mac) + Send + Sync>;

/// What is known of the way to an address through the interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// Nothing yet: [`Neighbours::request`] it and wait for the next generation.
    Unknown,
    /// There is no way at present.
    Unreachable(Unreachable),
    /// Frames for the address go to this Ethernet address: its own or its gateway's.
    Mac(Mac),
}

/// Why there is no way to an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unreachable {
    /// The interface is down, has no carrier or is gone.
    InterfaceDown,
    /// The routing tables lead nowhere, or not through this interface.
    NoRoute,
    /// The address is this host's own.
    Local,
    /// A broadcast, multicast or other address that is not one host's.
    NotUnicast,
    /// The next hop does not answer neighbour discovery.
    NoNeighbour,
    /// The kernel refused to follow the next hop; the log says why.
    Refused,
}

/// One published answer.
pub(super) struct Published {
    pub(super) resolution: Resolution,
    /// The [`FollowedInterface::age`] at the last lookup.
    pub(super) used: Arc<AtomicU64>,
}

/// All published answers.
pub(super) type Table = HashMap<IpAddr, Published>;

/// An interface and its answers, which the thread publishes to the callers.
pub(super) struct FollowedInterface {
    pub(super) interface_index: u32,
    /// The interface's MTU, 0 while it is not known.
    mtu_bytes: AtomicU32,
    /// Receive and transmit queues in use, 0 while they are not known.
    queues: [AtomicU32; 2],
    /// The Ethernet address that frames to it have, and those who follow that.
    mac: Mutex<(Option<Mac>, Vec<MacHook>)>,
    /// The interface whose Ethernet address that is, where it is not this one.
    pub(super) bond_index: AtomicU32,
    /// Whether the interface is known to carry nothing.
    is_down: AtomicBool,
    /// Whether the interface has gone: another one never comes in its place.
    is_gone: AtomicBool,
    name: ArcSwap<String>,
    addresses: ArcSwap<Vec<IpAddr>>,
    /// Addresses that the interface has routes to; `None` while they are not known.
    reach: ArcSwapOption<Reach>,
    pub(super) table: ArcSwap<Table>,
    generation: AtomicU64,
    /// Counts addresses taken in: the clock by which lookups are old or recent.
    pub(super) age: AtomicU64,
    hooks: Mutex<Vec<WakeHook>>,
}

impl FollowedInterface {
    pub(super) fn new(interface_index: u32) -> Self {
        Self {
            interface_index,
            mtu_bytes: AtomicU32::new(0),
            queues: [const { AtomicU32::new(0) }; 2],
            mac: Mutex::default(),
            bond_index: AtomicU32::new(0),
            is_down: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            name: ArcSwap::default(),
            addresses: ArcSwap::default(),
            reach: ArcSwapOption::default(),
            table: ArcSwap::default(),
            generation: AtomicU64::new(0),
            age: AtomicU64::new(0),
            hooks: Mutex::default(),
        }
    }

    /// Takes in the interface's MTU; whether it is another one.
    pub(super) fn set_mtu(&self, mtu_bytes: u32) -> bool {
        self.mtu_bytes.swap(mtu_bytes, Ordering::Relaxed) != mtu_bytes
    }

    /// Takes in how many receive and transmit queues are in use; whether these are others.
    pub(super) fn set_queues(&self, (receive, transmit): (u32, u32)) -> bool {
        let former = [(0, receive), (1, transmit)].map(|(of, count)| {
            // Readers look at both behind the generation.
            self.queues[of].swap(count, Ordering::Relaxed)
        });
        former != [receive, transmit]
    }

    pub(super) fn queues(&self) -> Option<(u32, u32)> {
        let [receive, transmit] = [0, 1].map(|of| self.queues[of].load(Ordering::Relaxed));
        (receive != 0 && transmit != 0).then_some((receive, transmit))
    }

    /// Takes in the Ethernet address that frames to the interface have; whether it is another one.
    pub(super) fn set_mac(&self, mac: Mac) -> bool {
        let mut known = self.mac.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = known.0.replace(mac) != Some(mac);
        if is_new {
            known.1.iter().for_each(|hook| hook(mac));
        }
        is_new
    }

    pub(super) fn mac(&self) -> Option<Mac> {
        self.mac.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Takes in whether the interface carries frames; whether that is new.
    pub(super) fn set_up(&self, up: bool) -> bool {
        self.is_down.swap(!up, Ordering::Relaxed) == up
    }

    pub(super) fn is_up(&self) -> bool {
        !self.is_down.load(Ordering::Relaxed) && !self.is_gone()
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    /// Takes in that the interface has gone; whether that is new.
    pub(super) fn set_gone(&self) -> bool {
        !self.is_gone.swap(true, Ordering::Relaxed)
    }

    /// Takes in the interface's name; whether it is another one.
    pub(super) fn set_name(&self, name: &str) -> bool {
        let is_new = self.name.load().as_str() != name;
        if is_new {
            self.name.store(Arc::new(name.to_owned()));
        }
        is_new
    }

    pub(super) fn name(&self) -> String {
        self.name.load().as_str().to_owned()
    }

    /// Takes in the interface's addresses; whether they are others.
    pub(super) fn set_addresses(&self, addresses: Vec<IpAddr>) -> bool {
        *self.addresses.swap(Arc::new(addresses.clone())) != addresses
    }

    /// Takes in what the interface has routes to; whether that is new.
    pub(super) fn set_reach(&self, reach: Reach) -> bool {
        let is_new = self.reach.load().as_deref() != Some(&reach);
        if is_new {
            self.reach.store(Some(Arc::new(reach)));
        }
        is_new
    }

    /// Puts a table in place; if `changed`, raises the generation and wakes those who subscribed.
    pub(super) fn publish(&self, table: Table, changed: bool) {
        self.table.store(Arc::new(table));
        if changed {
            self.generation.fetch_add(1, Ordering::Release);
            let hooks = self.hooks.lock().unwrap_or_else(PoisonError::into_inner);
            hooks.iter().for_each(|hook| hook());
        }
    }
}

/// Follows one interface of one network namespace, and the next hops of addresses through it.
///
/// Ring traffic neither resolves nor refreshes the kernel's neighbour entries, so the next hops asked for
/// are added as managed ones (`NTF_EXT_MANAGED`: the kernel resolves them and keeps probing) that its
/// garbage collection spares (`NTF_EXT_LEARNED`). Those are deleted when they are no longer followed.
/// Needs Linux 5.16 and `CAP_NET_ADMIN`.
pub struct Neighbours {
    shared: Arc<FollowedInterface>,
    /// `None` once dropping, which is what ends the thread.
    questions: Option<mpsc::Sender<IpAddr>>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbours {
    /// Starts a thread named `lnet-netlink`, in the calling thread's network namespace, that answers for the
    /// interface of this index. It ends when the last reference is dropped, which waits for it. One that does
    /// not resolve only follows the interface ([`Neighbours::mtu_bytes`], [`Neighbours::is_up`]), for which
    /// it needs no privilege: it is not to be asked for next hops.
    ///
    /// # Errors
    /// [`NetlinkError::NoSuchIndex`], [`NetlinkError::NoPermission`], or what the kernel refused.
    pub fn start(interface_index: u32, resolves: bool) -> Result<Arc<Self>, NetlinkError> {
        let shared = Arc::new(FollowedInterface::new(interface_index));
        let (questions, queue) = mpsc::channel(QUEUE_MAX);
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("lnet-netlink".into())
            .spawn(move || match runtime() {
                Ok(runtime) => runtime.block_on(resolver::run((theirs, resolves), queue, ready)),
                Err(error) => drop(ready.send(Err(error))),
            })
            .map_err(|source| NetlinkError::Kernel { what: "start a thread", source })?;
        let neighbours = Self { shared, questions: Some(questions), thread: Some(thread) };
        started.recv().map_err(|_| NetlinkError::Kernel {
            what: "start the netlink thread",
            source: std::io::Error::other("it ended without a word"),
        })??;
        Ok(Arc::new(neighbours))
    }

    /// What is known of the way to `address` through the interface. Never waits.
    #[must_use]
    pub fn lookup(&self, address: IpAddr) -> Resolution {
        let table = self.shared.table.load();
        let Some(published) = table.get(&address) else { return Resolution::Unknown };
        let age = self.shared.age.load(Ordering::Relaxed);
        // Written only when it changes, so that shards do not take the cache line from each other.
        if published.used.load(Ordering::Relaxed) != age {
            published.used.store(age, Ordering::Relaxed);
        }
        published.resolution
    }

    /// Bytes of the largest IP packet that the interface carries now; `None` while that is not known. The
    /// generation changes with it.
    #[must_use]
    pub fn mtu_bytes(&self) -> Option<u32> {
        Some(self.shared.mtu_bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes != 0)
    }

    /// Receive and transmit queues that are in use now, as the driver counts its channels; `None` while
    /// that is not known, and where the driver has none to count. The generation changes with them. Drivers
    /// change them without a word (virtio when an XDP program is attached), so they are counted every few
    /// seconds.
    #[must_use]
    pub fn queues(&self) -> Option<(u32, u32)> {
        self.shared.queues()
    }

    /// The Ethernet address that frames to the interface have now: its own, or where it is the slave of a
    /// bond, the bond's. `None` while that is not known. The generation changes with it.
    #[must_use]
    pub fn mac(&self) -> Option<Mac> {
        self.shared.mac()
    }

    /// Has `hook` called with [`Neighbours::mac`] now, if that is known, and by the netlink thread whenever
    /// that changes, as long as this lives.
    pub fn subscribe_mac(&self, hook: MacHook) {
        let mut known = self.shared.mac.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mac) = known.0 {
            hook(mac);
        }
        known.1.push(hook);
    }

    /// Whether the interface carries frames. The generation changes with it.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.shared.is_up()
    }

    /// Whether the thread that follows the interface has panicked: nothing here is true any more then.
    #[must_use]
    pub fn has_panicked(&self) -> bool {
        // By itself it ends with the last reference alone.
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Whether the interface has gone. One that comes again, under its name or its index, is another one.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.shared.is_gone()
    }

    /// The interface's name, as it is now.
    #[must_use]
    pub fn name(&self) -> String {
        self.shared.name()
    }

    /// Whether the interface has an address now.
    #[must_use]
    pub fn has_address(&self, address: &IpAddr) -> bool {
        self.shared.addresses.load().contains(address)
    }

    /// Addresses that the interface has routes to, or had when it was up last; `None` while they are not
    /// known. The generation changes with them.
    #[must_use]
    pub fn reach(&self) -> Option<Arc<Reach>> {
        self.shared.reach.load_full()
    }

    /// Changes whenever an answer of [`Self::lookup`] does. To cache an answer, read this before looking it
    /// up, and look it up anew once this differs.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Asks for the way to `address`; the answer comes with a later generation. Never waits; asking again
    /// costs a lookup while the answer is being found, and asking for what is unreachable tries again, at
    /// most once a second.
    ///
    /// False when the queue is full: ask again later.
    pub fn request(&self, address: IpAddr) -> bool {
        let answer = self.shared.table.load().get(&address).map(|published| published.resolution);
        let is_known = matches!(answer, Some(Resolution::Unknown | Resolution::Mac(_)));
        is_known || self.questions.as_ref().is_none_or(|questions| questions.try_send(address).is_ok())
    }

    /// Has `hook` called, by the netlink thread, after each change of the generation, as long as this lives.
    pub fn subscribe(&self, hook: WakeHook) {
        self.shared.hooks.lock().unwrap_or_else(PoisonError::into_inner).push(hook);
    }

    /// Addresses that are followed at present, at most [`ENTRIES_MAX`].
    #[must_use]
    pub fn entries_count(&self) -> usize {
        self.shared.table.load().len()
    }
}

/// Neighbours without a thread and a kernel: for tests of what is above.
#[cfg(feature = "testing")]
impl Neighbours {
    /// Makes neighbours of which nothing is known before [`Self::answer`] says it.
    #[must_use]
    pub fn silent() -> Arc<Self> {
        Arc::new(Self { shared: Arc::new(FollowedInterface::new(1)), questions: None, thread: None })
    }

    /// Publishes the interface's MTU.
    pub fn answer_mtu(&self, mtu_bytes: u32) {
        self.shared.set_mtu(mtu_bytes);
        self.publish_again();
    }

    /// Publishes how many queues the interface has.
    pub fn answer_queues(&self, queues: (u32, u32)) {
        self.shared.set_queues(queues);
        self.publish_again();
    }

    /// Publishes the answers that there are, as another generation.
    fn publish_again(&self) {
        let published = |resolution| Published { resolution, used: Arc::default() };
        let table = self.shared.table.load();
        let known = table.iter().map(|(key, answer)| (*key, published(answer.resolution)));
        self.shared.publish(known.collect(), true);
    }

    /// Publishes the interface's Ethernet address.
    pub fn answer_mac(&self, mac: Mac) {
        self.shared.set_mac(mac);
        self.publish_again();
    }

    /// Publishes an answer; all others stand.
    pub fn answer(&self, address: IpAddr, resolution: Resolution) {
        let published = |resolution| Published { resolution, used: Arc::default() };
        let table = self.shared.table.load();
        let known = table.iter().map(|(key, answer)| (*key, published(answer.resolution)));
        let fresh = (address, published(resolution));
        self.shared.publish(known.chain([fresh]).collect(), true);
    }
}

impl fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Neighbours")
            .field("interface", &self.shared.interface_index)
            .field("generation", &self.generation())
            .field("entries", &self.entries_count())
            .finish_non_exhaustive()
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.questions = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the netlink thread panicked");
        }
    }
}
