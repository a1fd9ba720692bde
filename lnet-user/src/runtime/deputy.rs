//! Deputies of keepers. A waker of a program runs on the thread that drives a shard, and what it calls may
//! wait for that shard: for an event, for an answer, for the end of the node. While a keeper waits there,
//! another thread drives its shard.
//!
//! Invariant: no call of this crate waits on a keeper without a deputy, where a thread can be made.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A shard that another thread can drive in its keeper's place.
pub(super) trait StandIn: Send + Sync {
    /// Drives it until `is_over`, on this thread.
    fn stand_in(&self, is_over: &AtomicBool);

    /// Wakes its driver.
    fn wake(&self);
}

thread_local! {
    /// The shard whose keeper this thread is.
    static SHARD: RefCell<Option<Arc<dyn StandIn>>> = const { RefCell::new(None) };
}

/// Notes which shard the calling thread keeps.
pub(super) fn set_shard(shard: Option<Arc<dyn StandIn>>) {
    SHARD.set(shard);
}

/// Whether the calling thread keeps a shard, for itself or as a deputy.
pub(crate) fn is_keeper() -> bool {
    SHARD.try_with(|shard| shard.borrow().is_some()).unwrap_or(false)
}

/// A thread that drives a shard until this is dropped.
pub(crate) struct Deputy {
    shard: Arc<dyn StandIn>,
    is_over: Arc<AtomicBool>,
}

impl Deputy {
    /// Has another thread drive the shard whose keeper the calling thread is, for the time that it waits.
    /// `None` for any other thread.
    #[inline]
    pub(crate) fn appoint() -> Option<Self> {
        let shard = SHARD.try_with(|shard| shard.borrow().clone()).ok()??;
        Self::of(shard)
    }

    #[cold]
    fn of(shard: Arc<dyn StandIn>) -> Option<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (own, own_end) = (Arc::clone(&shard), Arc::clone(&is_over));
        let thread = std::thread::Builder::new().name("lnet-deputy".to_owned());
        let spawned = thread.spawn(move || {
            set_shard(Some(Arc::clone(&own)));
            own.stand_in(&own_end);
        });
        match spawned {
            Ok(_) => Some(Self { shard, is_over }),
            Err(error) => {
                tracing::error!(%error, "no thread drives a shard while its own one waits");
                None
            }
        }
    }
}

impl Drop for Deputy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.shard.wake();
    }
}
