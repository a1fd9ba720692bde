//! A shard's rings: its sockets, one on each queue, and the rings of the queues that it owns.
//!
//! A message leaves by its own shard's lane. The arrival queue is not echoed to choose a better one. On veth
//! the sender thereby chooses the receiver's queue.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lnet_core::time::Instant;
use lnet_io::xsk::{
    Binding, CompletionRing, Device, FRAGMENTS_MAX, FillRing, Kick, RegisteredRuns, RingDescriptor, RxRing,
    Socket, TxRing,
};

use super::BUDGET_MAX;
use super::traffic::Tuples;

/// Bytes of a packet that are looked at soon after it has arrived: its headers, and a short payload.
const FETCHED_BYTES: u32 = 320;
/// How often a device is tried again that refuses to send.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// How long a device may refuse to send before its messages end without it.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);

/// Frames with the device on a queue that were sent by shards that do not own it: the owner looks for their
/// completion in their stead. And descriptors of registered memory, of whichever shard.
pub(super) type Borrowed = Arc<AtomicU32>;

/// This shard's socket on one queue of one interface; one that only sends where the shard does not serve its
/// NIs.
pub(crate) struct Lane {
    pub(crate) interface_index: u32,
    pub(crate) queue: u32,
    rx: Option<RxRing>,
    tx: TxRing,
    /// How the kernel is told of them; a stand-in for it needs no telling.
    pub(super) device: Option<Device>,
    /// Whether the interface has a transmit queue of this number.
    pub(super) sends: bool,
    /// Whether the device sends from the chunks itself.
    pub(super) zero_copy: bool,
    /// Descriptors of a frame at most.
    pub(super) descriptors_max: usize,
    /// The shard that owns the queue, if that is another one.
    pub(super) owner: Option<usize>,
    /// What the owner of the queue counts.
    borrowed: Borrowed,
    /// Received descriptors: those of a packet whose last one has not been seen wait here.
    pub(super) arrived: VecDeque<RingDescriptor>,
    /// Frames that the shard has received by it.
    pub(super) frames_received: u64,
    /// How often the kernel has taken what was pushed: frames that were sent, at least.
    pub(super) sendings: u64,
    /// Flows of the frames that were looked at since
    /// [`XdpLnd::ring_traffic`](super::XdpLnd::ring_traffic) was last asked.
    pub(super) tuples: Cell<Tuples>,
    /// Descriptors pushed that the kernel has not been told of.
    unflushed: bool,
    refusal: Outage,
    /// Descriptors that a device which was given up has not taken: the owner of the queue does not look for
    /// their completion.
    left_behind: u32,
}

/// What has become of a device that refused to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Followed {
    /// Nothing new.
    Same,
    /// The lane sends again.
    Recovered,
    /// The lane is given up from now on.
    GivenUp,
}

/// Whether the device refuses to send: the interface is down, or gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outage {
    None,
    /// The lane has just refused.
    Fresh,
    /// The lane goes on refusing.
    Lasting {
        since: Instant,
        retry_at: Instant,
        given_up: bool,
    },
}

impl Lane {
    /// `sends`: whether the interface has a transmit queue of this number. `descriptors_max`: descriptors of
    /// a frame at most.
    pub(crate) fn new(
        (interface_index, queue): (u32, u32),
        socket: Socket,
        sends: bool,
        (binding, descriptors_max): (Binding, usize),
    ) -> Self {
        let Socket { device, mut rx, tx } = socket;
        if let Some(rx) = &mut rx {
            rx.fetch_ahead(FETCHED_BYTES);
        }
        let lane = Self::over(interface_index, queue, rx, tx);
        Self { sends, device: Some(device), zero_copy: binding.zero_copy, descriptors_max, ..lane }
    }

    pub(super) fn over(interface_index: u32, queue: u32, rx: Option<RxRing>, tx: TxRing) -> Self {
        let arrived = VecDeque::with_capacity((BUDGET_MAX + FRAGMENTS_MAX) as usize);
        Self {
            interface_index,
            queue,
            rx,
            tx,
            device: None,
            sends: true,
            zero_copy: false,
            descriptors_max: FRAGMENTS_MAX as usize,
            owner: None,
            borrowed: Borrowed::default(),
            arrived,
            frames_received: 0,
            sendings: 0,
            tuples: Cell::default(),
            unflushed: false,
            refusal: Outage::None,
            left_behind: 0,
        }
    }

    /// Whether frames arrive by it.
    pub(super) fn receives(&self) -> bool {
        self.rx.is_some()
    }

    /// Takes at most `budget` descriptors, at most [`BUDGET_MAX`], off the receive ring, behind those that
    /// wait already.
    #[inline(always)]
    pub(super) fn receive(&mut self, budget: u32) -> u32 {
        let Self { rx, arrived, .. } = self;
        let Some(rx) = rx else { return 0 };
        rx.receive(budget.min(BUDGET_MAX), |descriptor| arrived.push_back(descriptor))
    }

    /// Whether something waits in the receive ring.
    #[inline]
    pub(super) fn has_arrivals(&mut self) -> bool {
        self.rx.as_mut().is_some_and(|rx| rx.waiting() != 0)
    }

    /// Whether the transmit ring has room for `count` descriptors.
    #[inline]
    pub(super) fn has_room(&mut self, count: usize) -> bool {
        self.tx.free_slots() as usize >= count
    }

    /// Puts a descriptor into the transmit ring, which has room; the kernel is told with the next
    /// [`Lane::flush`].
    #[inline]
    pub(super) fn push(&mut self, descriptor: RingDescriptor) {
        if self.tx.push(descriptor).is_err() {
            unreachable!("the ring had room for the whole frame, and its parts lie in their chunks");
        }
        self.unflushed = true;
    }

    /// Pushes all bytes that follow in the frame and are sent where they lie ([`Lane::push`]); their
    /// completion is looked for by the owner of the queue, be it this shard or another one.
    #[inline]
    pub(super) fn push_registered(&mut self, runs: RegisteredRuns<'_>) {
        let mut left = runs.len();
        // Descriptors of the owner count as well: no shard is given anything when they come back.
        self.borrowed.fetch_add(left as u32, Ordering::Release);
        for run in runs {
            left -= 1;
            if self.tx.push_registered(run, left != 0).is_err() {
                unreachable!("the ring had room for the whole frame");
            }
        }
        self.unflushed = true;
    }

    /// Counts `count` descriptors that were pushed towards the owner of the queue.
    #[inline]
    pub(super) fn borrow(&self, count: usize) {
        if self.owner.is_some() {
            self.borrowed.fetch_add(count as u32, Ordering::Release);
        }
    }

    /// Whether the kernel is still to be told of something, and might listen.
    pub(super) fn is_unflushed(&self) -> bool {
        self.unflushed && self.refusal == Outage::None
    }

    /// Whether the device refuses to send at present: frames for it are let go.
    #[inline]
    pub(super) fn refuses(&self) -> bool {
        self.refusal != Outage::None
    }

    /// Whether the device has refused to send for so long that nothing more is given to it.
    #[inline]
    pub(super) fn is_given_up(&self) -> bool {
        matches!(self.refusal, Outage::Lasting { given_up: true, .. })
    }

    /// When a device that refuses is to be tried again.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        match self.refusal {
            Outage::None => None,
            Outage::Fresh => Some(Instant(0)),
            Outage::Lasting { retry_at, .. } => Some(retry_at),
        }
    }

    /// Whether a driver has not taken all frames that it was told of.
    pub(super) fn has_left(&mut self) -> bool {
        self.zero_copy && !self.refuses() && self.tx.free_slots() != self.tx.size()
    }

    /// Has a driver go on with frames that it has not taken: it stops without a word where completions have
    /// no room. Whether there were such frames.
    pub(super) fn urge(&mut self) -> bool {
        let has_left = self.has_left();
        if has_left {
            self.kick();
        }
        has_left
    }

    /// Tells the kernel of all that was pushed. Whether there was anything to tell.
    #[inline]
    pub(super) fn flush(&mut self) -> bool {
        if !self.is_unflushed() {
            return false;
        }
        self.kick();
        true
    }

    /// Has the kernel send what was pushed, until it has taken everything or stops moving; what it leaves is
    /// tried again with the next flush, once completions have been taken.
    fn kick(&mut self) {
        // Descriptors were pushed while the device refused, too.
        self.tx.commit();
        loop {
            let before = self.tx.free_slots();
            match self.device.as_ref().map_or(Ok(Kick::Done), Device::kick) {
                Ok(Kick::Done) => {
                    self.sendings += u64::from(self.unflushed);
                    self.unflushed = false;
                    self.refusal = Outage::None;
                    return;
                }
                Ok(Kick::Again | Kick::Busy) if self.tx.free_slots() != before => {}
                Ok(_) => {
                    self.refusal = Outage::None;
                    return;
                }
                Err(error) => {
                    if self.refusal == Outage::None {
                        tracing::warn!(%error, "the kernel refuses to send; it is tried again");
                        self.refusal = Outage::Fresh;
                    }
                    return;
                }
            }
        }
    }

    /// Tries a device again that refuses.
    pub(super) fn follow_refusal(&mut self, now: Instant) -> Followed {
        let (since, given_up) = match self.refusal {
            Outage::None => return Followed::Same,
            Outage::Fresh => (now, false),
            Outage::Lasting { retry_at, .. } if now < retry_at => return Followed::Same,
            Outage::Lasting { since, given_up, .. } => {
                // Before completions can come.
                self.abandon(0);
                self.kick();
                if self.refusal == Outage::None {
                    tracing::info!(queue = self.queue, "the kernel sends again");
                    return Followed::Recovered;
                }
                (since, given_up)
            }
        };
        let gives_up = now - since >= REFUSAL_PATIENCE;
        let retry_at = now + RETRY_INTERVAL;
        self.refusal = Outage::Lasting { since, retry_at, given_up: gives_up };
        if gives_up {
            let waiting = self.tx.size() - self.tx.free_slots();
            self.abandon(waiting);
        }
        if gives_up && !given_up { Followed::GivenUp } else { Followed::Same }
    }

    /// Counts all but `count` descriptors towards the owner of the queue.
    fn abandon(&mut self, count: u32) {
        if self.owner.is_some() {
            self.borrowed.fetch_add(self.left_behind, Ordering::Release);
            self.borrowed.fetch_sub(count, Ordering::Release);
            self.left_behind = count;
        }
    }
}

/// The rings of a queue that this shard owns.
pub(crate) struct OwnedQueue {
    pub(super) interface_index: u32,
    /// Wakes the kernel for the fill ring; a stand-in for it needs no waking.
    pub(super) device: Option<Device>,
    pub(crate) fill: FillRing,
    pub(crate) completion: CompletionRing,
    /// Whether the device receives into the chunks itself.
    pub(super) zero_copy: bool,
    /// Whether the driver's refusal to be woken was logged.
    pub(super) told_of_deafness: bool,
    /// Frames of other shards on this queue.
    pub(super) borrowed: Borrowed,
}

impl OwnedQueue {
    pub(crate) fn new(
        interface_index: u32,
        device: Option<Device>,
        fill: FillRing,
        completion: CompletionRing,
        zero_copy: bool,
    ) -> Self {
        Self {
            interface_index,
            device,
            fill,
            completion,
            zero_copy,
            told_of_deafness: false,
            borrowed: Borrowed::default(),
        }
    }

    /// Wakes a driver that waits for frames which are there. Whether it did wait.
    pub(super) fn wake_driver(&mut self) -> bool {
        if !self.zero_copy || !self.fill.needs_wakeup() {
            return false;
        }
        let woken = self.device.as_ref().map_or(Ok(()), Device::wake_fill);
        if let Err(error) = &woken
            && !self.told_of_deafness
        {
            tracing::warn!(%error, "the driver was not told of free frames; it is told again");
        }
        self.told_of_deafness = woken.is_err();
        true
    }

    /// Makes `lane`, on this queue, count here what its shard sends. `owner` is this queue's shard, if that
    /// is another one.
    pub(crate) fn lend_to(&self, lane: &mut Lane, owner: Option<usize>) {
        (lane.owner, lane.borrowed) = (owner, Arc::clone(&self.borrowed));
    }

    /// Free entries of its fill ring, in which so many frames may be, that make a refill worth its while:
    /// seldom, and many at once.
    pub(super) fn refill_count(&self, fill_max: u32) -> u32 {
        (self.fill.size().min(fill_max) / 4).max(1)
    }

    /// How many frames its fill ring may take, in which so many may be.
    pub(super) fn room(&mut self, fill_max: u32) -> u32 {
        let free = self.fill.free_slots();
        free.min(fill_max.saturating_sub(self.fill.size() - free))
    }
}
