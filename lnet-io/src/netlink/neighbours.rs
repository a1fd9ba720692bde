//! The resolver of next hops, as shards see it: published answers, queues of questions, wake hooks.
//!
//! Answers are published as a whole snapshot by one thread (`resolver`) and read without waiting. The
//! epoch and the generation are raised after the snapshot is in place, so that an answer cached under the
//! epoch that was read before it can be too new but never too old.
//!
//! Each kind of [`Asker`] has a queue and a part of the table of its own: whatever strangers write into
//! frames, the questions of others wait for none of theirs, and answers of others make no room for theirs.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};

use arc_swap::{ArcSwap, ArcSwapOption};
use lnet_core::topology::Reach;
use tokio::sync::mpsc;

use super::{Mac, NetlinkError, resolver, runtime};
use crate::locks::Mutex;

/// Kinds of those for whom a next hop is asked, in the order of their worth. Each has a queue of its own, and
/// so many addresses that are followed: of more, the one of its kind that was looked up longest ago goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Asker {
    /// An answer to a frame that shows no token: its source may be any address that a stranger has written
    /// there. An answer of [`Neighbours::lookup`] is good for that frame alone.
    Stranger,
    /// A frame to a peer that has shown a token, which receives at its address.
    Peer,
    /// A message of this node's own.
    Own,
}

impl Asker {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Stranger, Self::Peer, Self::Own];

    /// Most addresses that are followed for it at a time.
    #[must_use]
    pub const fn entries_max(self) -> usize {
        match self {
            // A stranger that receives at its address has shown a token a moment later.
            Self::Stranger => 1 << 8,
            Self::Peer => 1 << 13,
            Self::Own => 1 << 14,
        }
    }

    /// Most questions of it that wait for the thread; a further one is not taken.
    #[must_use]
    pub const fn queue_max(self) -> usize {
        match self {
            Self::Stranger => 64,
            Self::Peer | Self::Own => 1024,
        }
    }

    const fn of_number(number: u8) -> Self {
        Self::ALL[number as usize]
    }
}

/// Most addresses that are followed at a time.
pub const ENTRIES_MAX: usize =
    Asker::Stranger.entries_max() + Asker::Peer.entries_max() + Asker::Own.entries_max();

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
    pub(super) used: Arc<Use>,
}

/// When an address was looked up last, and the best of those for whom it was.
pub(super) struct Use {
    /// The [`FollowedInterface::age`] at the last lookup.
    age: AtomicU64,
    asker: AtomicU8,
}

impl Use {
    pub(super) const fn new(age: u64, asker: Asker) -> Self {
        Self { age: AtomicU64::new(age), asker: AtomicU8::new(asker as u8) }
    }

    pub(super) fn age(&self) -> u64 {
        self.age.load(Ordering::Relaxed)
    }

    pub(super) fn asker(&self) -> Asker {
        Asker::of_number(self.asker.load(Ordering::Relaxed))
    }

    /// Notes a lookup. Written only when it changes, so that shards do not take the cache line from each
    /// other. Whether it is the first one by such an asker.
    pub(super) fn note(&self, age: u64, asker: Asker) -> bool {
        if self.age() != age {
            self.age.store(age, Ordering::Relaxed);
        }
        self.asker() < asker && self.asker.fetch_max(asker as u8, Ordering::Relaxed) < asker as u8
    }
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
    epoch: AtomicU64,
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
            epoch: AtomicU64::new(0),
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

    /// Puts a table in place, and wakes those who subscribed if an answer is another one, or the interface
    /// is.
    pub(super) fn publish(&self, table: Table, interface_changed: bool) {
        let table = Arc::new(table);
        let before = self.table.swap(Arc::clone(&table));
        let same = |address: &IpAddr| known(&before, address) == known(&table, address);
        if !interface_changed && table.keys().all(same) && before.keys().all(same) {
            return;
        }
        // Who keeps an answer says so before it looks at the table again (`Neighbours::lookup`).
        fence(Ordering::SeqCst);
        let is_lasting = |was: &Published| {
            matches!(was.resolution, Resolution::Mac(_)) && was.used.asker() != Asker::Stranger
        };
        if interface_changed || before.iter().any(|(address, was)| is_lasting(was) && !same(address)) {
            self.epoch.fetch_add(1, Ordering::Release);
        }
        self.generation.fetch_add(1, Ordering::Release);
        let hooks = self.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        hooks.iter().for_each(|hook| hook());
    }
}

fn known(table: &Table, address: &IpAddr) -> Resolution {
    table.get(address).map_or(Resolution::Unknown, |published| published.resolution)
}

/// Follows one interface of one network namespace, and the next hops of addresses through it.
///
/// Ring traffic neither resolves nor refreshes the kernel's neighbour entries, so the next hops asked for
/// are added as managed ones (`NTF_EXT_MANAGED`: the kernel resolves them and keeps probing) that its
/// garbage collection spares (`NTF_EXT_LEARNED`). Those are deleted when they are no longer followed.
/// Needs Linux 5.16 and `CAP_NET_ADMIN`.
pub struct Neighbours {
    shared: Arc<FollowedInterface>,
    /// Questions by [`Asker`]. `None` once dropping, which is what ends the thread.
    questions: Option<[mpsc::Sender<IpAddr>; 3]>,
    thread: Option<JoinHandle<()>>,
}

/// Queues of questions by [`Asker`].
pub(super) type Questions = [mpsc::Receiver<IpAddr>; 3];

fn queues() -> ([mpsc::Sender<IpAddr>; 3], Questions) {
    let [strangers, peers, own] = Asker::ALL.map(|asker| mpsc::channel(asker.queue_max()));
    ([strangers.0, peers.0, own.0], [strangers.1, peers.1, own.1])
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
        let (questions, queues) = queues();
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("lnet-netlink".into())
            .spawn(move || match runtime() {
                Ok(runtime) => runtime.block_on(resolver::run((theirs, resolves), queues, ready)),
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
    pub fn lookup(&self, address: IpAddr, asker: Asker) -> Resolution {
        loop {
            let table = self.shared.table.load();
            let Some(published) = table.get(&address) else { return Resolution::Unknown };
            if !published.used.note(self.shared.age.load(Ordering::Relaxed), asker) {
                return published.resolution;
            }
            // An answer for a stranger goes without a word: it may have just now.
            fence(Ordering::SeqCst);
        }
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

    /// Changes whenever the interface does, or an Ethernet address that [`Self::lookup`] has given for others
    /// than strangers holds no more. To cache such an answer, read this before looking it up, and look it up
    /// anew once this differs.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    /// Changes whenever an answer of [`Self::lookup`] does, after the epoch.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Asks for the way to `address`; the answer comes with a later generation. Never waits; asking again
    /// costs a lookup while the answer is being found, and asking for what is unreachable tries again, at
    /// most once a second.
    ///
    /// False when the queue is full: ask again later.
    pub fn request(&self, address: IpAddr, asker: Asker) -> bool {
        let answer = self.shared.table.load().get(&address).map(|published| published.resolution);
        let is_known = matches!(answer, Some(Resolution::Unknown | Resolution::Mac(_)));
        let queue = self.questions.as_ref().map(|questions| &questions[asker as usize]);
        is_known || queue.is_none_or(|queue| queue.try_send(address).is_ok())
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

    /// Publishes the answers that there are, as those of another interface.
    fn publish_again(&self) {
        self.shared.publish(self.published(), true);
    }

    fn published(&self) -> Table {
        let again =
            |answer: &Published| Published { resolution: answer.resolution, used: Arc::clone(&answer.used) };
        self.shared.table.load().iter().map(|(address, answer)| (*address, again(answer))).collect()
    }

    /// Publishes the interface's Ethernet address.
    pub fn answer_mac(&self, mac: Mac) {
        self.shared.set_mac(mac);
        self.publish_again();
    }

    /// Publishes an answer; all others stand.
    pub fn answer(&self, address: IpAddr, resolution: Resolution) {
        let mut table = self.published();
        let used =
            table.remove(&address).map_or_else(|| Arc::new(Use::new(0, Asker::Stranger)), |it| it.used);
        table.insert(address, Published { resolution, used });
        self.shared.publish(table, false);
    }

    /// Takes an answer back; all others stand.
    pub fn forget(&self, address: IpAddr) {
        let mut table = self.published();
        table.remove(&address);
        self.shared.publish(table, false);
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
