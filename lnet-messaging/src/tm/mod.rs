//! Transfer machines: where buffers are queued, and what tells of them.
//!
//! Invariants: everything of a transfer machine is under its lock, which is never taken while a callback
//! runs: a callback may call the layer as it likes. The callback counter is raised before a callback and
//! lowered behind it, and until it is 0 the transfer machine neither stops nor is finished. A buffer that is
//! added gets exactly one event that says it left its queue.

mod add;
mod control;
mod deliver;
mod handler;
mod pooled;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use lnet_user::locks::{Condvar, Mutex, MutexGuard};

use crate::buffer::Buffer;
use crate::domain::Domain;
use crate::end_point::{EndPoint, EndPoints};
use crate::errno::{Errno, Error};
use crate::memory::Memory;
use crate::operation::Operation;
use crate::queue::{BufferId, ByNumber, Flags, QueueType};
use crate::stats::QueueStats;
use crate::transport::{TmFront, TmLink, TmState, TransportTm};

pub use add::{Added, Addition, NotAdded};
pub use handler::{Callback, Handler};
pub use pooled::Attachment;
use pooled::Provision;

/// How a transfer machine stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopMode {
    /// The end of all queued buffers is asked for.
    Abort,
    /// What is queued ends by itself. Receive and passive buffers do not: the application deletes them.
    Drain,
}

/// Where buffers are queued. Cheap to clone; with the last handle it stops, aborting.
pub struct TransferMachine {
    shared: Arc<TmShared>,
}

struct TmShared {
    domain: Domain,
    handler: Arc<dyn Handler>,
    end_points: Arc<EndPoints>,
    /// Receive buffers that the last provisioning pass found none for.
    deficit: AtomicUsize,
    handle_count: AtomicUsize,
    locked: Mutex<LockedTm>,
    /// Woken when the callback counter falls to 0.
    channel: Condvar,
    /// How often that was, a call of the kernel each.
    #[cfg(test)]
    woken: AtomicUsize,
}

/// The state that the lock protects.
struct LockedTm {
    front: TmFront,
    /// The application's part of queued buffers, by the number of their use.
    owned: ByNumber<Owned>,
    transport: Option<Box<dyn TransportTm>>,
    provision: Provision,
    /// A thread delivers events synchronously at the moment.
    is_delivering: bool,
    /// Threads in [`TransferMachine::wait`]. Where there are none, the end of a callback asks nothing of the
    /// kernel.
    waiting: usize,
}

/// A queued buffer without its memory.
struct Owned {
    buffer: Buffer,
    callback: Option<Callback>,
    added_at: Instant,
}

/// The state of a queued buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuedState {
    /// How far it is.
    pub flags: Flags,
    /// When it is to end.
    pub deadline: Option<Instant>,
    /// Messages that it has received.
    pub messages_received: u32,
}

impl Clone for TransferMachine {
    fn clone(&self) -> Self {
        Self::of(Arc::clone(&self.shared))
    }
}

impl Drop for TransferMachine {
    fn drop(&mut self) {
        if self.shared.handle_count.fetch_sub(1, Ordering::AcqRel) == 1 {
            // A transfer machine that cannot be stopped has been, or has failed.
            let _ = self.stop(StopMode::Abort);
        }
    }
}

impl fmt::Debug for TransferMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TransferMachine").field(&self.state()).finish()
    }
}

impl Drop for TmShared {
    fn drop(&mut self) {
        if self.lock().transport.is_some() {
            self.domain.remove_tm();
        }
    }
}

impl TransferMachine {
    /// An initialised transfer machine of this domain. `handler` is called with its events.
    ///
    /// # Errors
    /// The transport's.
    pub fn new(domain: &Domain, handler: Arc<dyn Handler>) -> Result<Self, Error> {
        let end_points = Arc::new(EndPoints::default());
        let tm = Self::of(Arc::new(TmShared {
            domain: domain.clone(),
            handler,
            deficit: AtomicUsize::new(0),
            handle_count: AtomicUsize::new(0),
            locked: Mutex::new(LockedTm {
                front: TmFront::new(Arc::clone(&end_points), TmState::Undefined),
                owned: ByNumber::default(),
                transport: None,
                provision: Provision::default(),
                is_delivering: false,
                waiting: 0,
            }),
            end_points,
            channel: Condvar::new(),
            #[cfg(test)]
            woken: AtomicUsize::new(0),
        }));
        tm.initialize()?;
        Ok(tm)
    }

    fn link(&self) -> TmLink {
        TmLink::new(Arc::<TmShared>::clone(&self.shared))
    }

    fn of(shared: Arc<TmShared>) -> Self {
        shared.handle_count.fetch_add(1, Ordering::AcqRel);
        Self { shared }
    }

    /// Its domain.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.shared.domain
    }

    /// Its state at this moment.
    #[must_use]
    pub fn state(&self) -> TmState {
        self.shared.lock().front.state()
    }

    /// Its own end point, while it is started or stops.
    #[must_use]
    pub fn end_point(&self) -> Option<EndPoint> {
        self.shared.lock().front.own_end_point().cloned()
    }

    /// The end point of an address: the same object for the same address.
    ///
    /// # Errors
    /// `EINVAL` where it is no address of the transport; `EPERM` unless started.
    pub fn create_end_point(&self, address: &str) -> Result<EndPoint, Error> {
        let locked = self.shared.lock();
        locked.front.expect_state(&[TmState::Started], "an end point is made")?;
        let address = locked.transport()?.canonical_address(address)?;
        Ok(self.shared.end_points.find_or_create(&address))
    }

    /// The addresses of which there are end points.
    #[must_use]
    pub fn end_point_addresses(&self) -> Vec<String> {
        self.shared.end_points.addresses()
    }

    /// Number of buffers in a queue.
    #[must_use]
    pub fn queue_length(&self, queue: QueueType) -> usize {
        self.shared.lock().front.queue_length(queue)
    }

    /// The state of a buffer, if it is still queued.
    #[must_use]
    pub fn queued(&self, id: BufferId) -> Option<QueuedState> {
        let mut locked = self.shared.lock();
        let queued = locked.front.queued(id)?;
        let (flags, deadline) = (queued.flags, queued.deadline());
        Some(QueuedState { flags, deadline, messages_received: queued.messages_received })
    }

    /// The counters of a queue; `reset` sets them back in the same moment.
    ///
    /// # Errors
    /// `EBUSY` before it is initialised and after it was finished.
    pub fn stats(&self, queue: QueueType, reset: bool) -> Result<QueueStats, Error> {
        let mut locked = self.shared.lock();
        let stats = &mut locked.stats()?[queue as usize];
        Ok(if reset { std::mem::take(stats) } else { *stats })
    }

    /// The counters of all queues, by [`QueueType::number`].
    ///
    /// # Errors
    /// The errors of [`TransferMachine::stats`].
    pub fn all_stats(&self, reset: bool) -> Result<[QueueStats; 6], Error> {
        let mut locked = self.shared.lock();
        let stats = locked.stats()?;
        Ok(if reset { std::mem::take(stats) } else { *stats })
    }

    /// Asks how it is doing: [`TmEvent::Diagnostic`](crate::TmEvent::Diagnostic) follows on another thread,
    /// with its state, the buffers of its queues, and what waits, in words for people.
    ///
    /// # Errors
    /// `EPERM` unless it is started or stops.
    pub fn diagnose(&self) -> Result<(), Error> {
        let mut locked = self.shared.lock();
        locked.front.expect_state(&[TmState::Started, TmState::Stopping], "it is diagnosed")?;
        let deficit = self.shared.deficit.load(Ordering::Relaxed);
        let (front, transport) = locked.parts()?;
        let mut text = format!("{:?}, {} callbacks run", front.state(), front.callback_count());
        for queue in QueueType::ALL {
            let (length, stats) = (front.queue_length(queue), front.stats[queue as usize]);
            let (ended, failed) = (stats.num_s_events + stats.num_f_events, stats.num_f_events);
            if length != 0 || ended != 0 {
                text += &format!("; {queue:?}: {length} queued, {ended} events, {failed} of them failures");
            }
        }
        if let Some(deadline) = front.next_deadline() {
            let left = deadline.saturating_duration_since(Instant::now());
            text += &format!("; the next deadline in {left:.3?}");
        }
        if let Some((needed, slots)) = transport.event_room() {
            text += &format!("; {needed} events may come, {slots} have slots");
        }
        if deficit != 0 {
            text += &format!("; {deficit} receive buffers are lacking");
        }
        front.diagnostics.push(text);
        transport.wake();
        Ok(())
    }

    /// Events that may come over its transport, and the slots for them.
    #[cfg(test)]
    pub(crate) fn event_room(&self) -> Option<(usize, usize)> {
        self.shared.lock().transport().ok()?.event_room()
    }

    /// Looks at a queued buffer, which has no memory here, and its callback.
    #[cfg(test)]
    pub(crate) fn look_at<R>(
        &self,
        id: BufferId,
        look: impl FnOnce(&mut Buffer, Option<&Callback>) -> R,
    ) -> R {
        let mut locked = self.shared.lock();
        let Owned { buffer, callback, .. } = locked.owned.get_mut(&id.number).expect("a queued buffer");
        look(buffer, callback.as_ref())
    }

    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.shared.locked.try_lock().is_err()
    }

    /// How often its channel was woken.
    #[cfg(test)]
    pub(crate) fn woken_count(&self) -> usize {
        self.shared.woken.load(Ordering::Relaxed)
    }

    /// Waits on the transfer machine's channel, which wakes when no callback runs, until `condition` holds or
    /// the deadline passes. Returns whether it holds.
    pub fn wait(&self, deadline: Option<Instant>, mut condition: impl FnMut(&TmFront) -> bool) -> bool {
        let mut locked = self.shared.lock();
        loop {
            if condition(&locked.front) {
                return true;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            locked.waiting += 1;
            locked = match left {
                None => self.shared.channel.wait(locked).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let woken = self.shared.channel.wait_timeout(locked, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            locked.waiting -= 1;
        }
    }
}

impl TmShared {
    fn lock(&self) -> MutexGuard<'_, LockedTm> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a transport has made for it. Called under the domain's lock.
    fn initialize(&self, transport: Box<dyn TransportTm>) -> Result<(), Error> {
        let mut locked = self.lock();
        locked.front.expect_state(&[TmState::Undefined], "it is initialised")?;
        locked.front = TmFront::new(Arc::clone(&self.end_points), TmState::Initialized);
        locked.provision = Provision::default();
        locked.is_delivering = false;
        locked.transport = Some(transport);
        self.deficit.store(0, Ordering::Relaxed);
        Ok(())
    }
}

impl LockedTm {
    fn stats(&mut self) -> Result<&mut [QueueStats; 6], Error> {
        match self.front.state() {
            TmState::Undefined => Err(Error::new(
                Errno::Busy,
                "a transfer machine without state: an initialised one is expected",
            )),
            _ => Ok(&mut self.front.stats),
        }
    }

    /// The transport's part, which is there from the initialisation to the end.
    fn transport(&self) -> Result<&dyn TransportTm, Error> {
        self.transport.as_deref().ok_or_else(finished)
    }

    /// Both parts at once.
    fn parts(&mut self) -> Result<(&mut TmFront, &mut dyn TransportTm), Error> {
        match &mut self.transport {
            Some(transport) => Ok((&mut self.front, transport.as_mut())),
            None => Err(finished()),
        }
    }

    /// Takes a buffer out of its queue: what was done with it, and the buffer with its memory, which the
    /// transport may have had.
    fn remove(&mut self, id: BufferId, memory: Option<Memory>) -> Option<(Operation, Owned)> {
        let (operation, queued_memory) = self.front.remove(id)?.into_parts();
        let mut owned = self.owned.remove(&id.number)?;
        owned.buffer.set_memory(memory.unwrap_or(queued_memory));
        Some((operation, owned))
    }
}

fn finished() -> Error {
    Error::new(Errno::NotPermitted, "the transfer machine was finished: an initialised one is expected")
}
