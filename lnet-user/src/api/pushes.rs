//! What takes the pushes of peers: on each shard that they may reach an entry for one PUT, which is posted
//! anew after it.
//!
//! Invariants: portal 0 is lazy, so that a push which comes meanwhile waits; what is posted has the room that
//! the state machine says; a push is acknowledged once shards know what it says, since its sender takes that
//! for granted then; the ends of the event queues have no handle of the node.

use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use lnet_io::locks::{Mutex, MutexGuard};
use lnet_io::memory::Buffer;
use rtrb::Consumer;

use lnet_core::event::Event;
use lnet_core::handle::EqHandle;
use lnet_core::lnd::{PING_MATCH_BITS, PING_PORTAL};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_wire::Nid;

use super::queue::{QueueEnd, QueuedEvent};
use super::{Core, LnetError};
use crate::runtime::Worker;

/// Places of a target's event queue: those that its descriptor reserves, and as many for the one that comes
/// after it.
const SLOTS: u32 = 4;

/// A push that has arrived.
pub(super) struct Push {
    pub(super) from: Nid,
    /// What of it had room.
    pub(super) bytes: Vec<u8>,
    /// Bytes of the whole push.
    pub(super) length_bytes: usize,
}

/// What takes pushes on one shard.
struct PushTarget {
    shard: usize,
    queue: EqHandle,
    ring: Consumer<QueuedEvent>,
    is_posted: bool,
}

/// What takes the pushes of a node's peers.
#[derive(Default)]
pub(super) struct PushTargets {
    targets: Mutex<Vec<PushTarget>>,
    waiting: Arc<AtomicWaker>,
}

impl std::fmt::Debug for PushTargets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PushTargets").finish_non_exhaustive()
    }
}

impl PushTargets {
    fn targets(&self) -> MutexGuard<'_, Vec<PushTarget>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Entries of a shard that take pushes.
    pub(super) fn posted_count(&self, shard: usize) -> u32 {
        self.targets().iter().filter(|target| target.shard == shard && target.is_posted).count() as u32
    }

    /// The next push, or `None` for one of which not all has come: the next entry is to be posted either way.
    /// Dropping the future loses nothing.
    pub(super) async fn next(&self) -> Option<Push> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&self, context: &Context<'_>) -> Poll<Option<Push>> {
        // What comes after this wakes.
        self.waiting.register(context.waker());
        for target in self.targets().iter_mut() {
            if let Ok(queued) = target.ring.pop() {
                target.is_posted &= !queued.event.unlinked();
                return Poll::Ready(push_of(queued));
            }
        }
        Poll::Pending
    }
}

fn push_of(queued: QueuedEvent) -> Option<Push> {
    let Event::Put { origin, requested_bytes, .. } = queued.event else { return None };
    let bytes = queued.payload()?.to_vec();
    Some(Push { from: origin.source, bytes, length_bytes: requested_bytes as usize })
}

impl Core {
    /// Has the node take pushes.
    pub(super) fn take_pushes(&self) -> Result<(), LnetError> {
        for shard in &self.shards {
            shard.run(|worker, _| worker.set_lazy(PING_PORTAL))??;
        }
        let pushes = &self.runner.pushes;
        for shard in self.own_homes() {
            let (end, ring) = QueueEnd::new(SLOTS, Arc::clone(&pushes.waiting));
            let create =
                move |worker: &mut _, queues: &mut super::Queues| queues.create(worker, SLOTS, end, None);
            let queue = self.shards[shard].run(create)??;
            pushes.targets().push(PushTarget { shard, queue, ring, is_posted: false });
        }
        self.post_push_targets()
    }

    /// Acknowledges the pushes that have come, which shards know of, and posts the entries for the next ones.
    pub(super) fn post_push_targets(&self) -> Result<(), LnetError> {
        let length_bytes = self.runner.machine().push_room_bytes();
        for target in self.runner.pushes.targets().iter_mut().filter(|target| !target.is_posted) {
            let entry = EntrySpec::new(PING_PORTAL, PING_MATCH_BITS).of_node();
            let options = MdOptions::PUT | MdOptions::TRUNCATE | MdOptions::ACK_LATE;
            let md = MdSpec::new(length_bytes as u64, Threshold::Count(1), options, target.queue);
            let post = move |worker: &mut Worker, queues: &mut super::Queues| {
                worker.acknowledge();
                queues.attach(worker, &entry, &md, Buffer::zeroed(length_bytes)).map(drop)
            };
            self.shards[target.shard].run(post)?.map_err(|refused| refused.error)?;
            target.is_posted = true;
        }
        Ok(())
    }
}
