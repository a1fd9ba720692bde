//! The bytes that clients hold together: requests that arrive, and replies that wait to be read.
//!
//! Invariants: what is taken is no more than there is; those that wait for room get it in their order. Of one
//! budget no client waits for more that has some, and who has some of `working` waits for no `arriving`: so
//! all waiting ends.

use std::cell::Cell;

use tokio::sync::{Semaphore, SemaphorePermit};

/// The room of all clients of a kind.
pub(super) struct Budgets {
    /// For requests, until they are whole.
    pub(super) arriving: Budget,
    /// For what requests become, and for replies.
    pub(super) working: Budget,
}

impl Budgets {
    /// Budgets of so many bytes each.
    pub(super) fn new(bytes: usize) -> Self {
        Self { arriving: Budget::new(bytes), working: Budget::new(bytes) }
    }
}

/// Room, in bytes.
pub(super) struct Budget {
    bytes: Semaphore,
    bytes_max: u32,
    /// Clients that wait for room.
    waiting: Cell<usize>,
}

/// Room that a client has taken, until this is dropped.
pub(super) struct Room<'a> {
    budget: &'a Budget,
    permit: Option<SemaphorePermit<'a>>,
}

/// A client that waits, until this is dropped.
struct Waiter<'a>(&'a Cell<usize>);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Budget {
    pub(super) fn new(bytes: usize) -> Self {
        let bytes_max = u32::try_from(bytes).unwrap_or(u32::MAX >> 1).min(u32::MAX >> 1);
        Self { bytes: Semaphore::new(bytes_max as usize), bytes_max, waiting: Cell::new(0) }
    }

    /// Nothing at all.
    pub(super) fn nothing(&self) -> Room<'_> {
        Room { budget: self, permit: None }
    }

    /// No more than there ever is: what would never fit has all of it.
    fn bounded(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max)
    }

    /// Takes so many bytes, if there is room now.
    pub(super) fn try_take(&self, bytes: usize) -> Option<Room<'_>> {
        let permit = self.bytes.try_acquire_many(self.bounded(bytes)).ok()?;
        Some(Room { budget: self, permit: Some(permit) })
    }

    /// Takes so many bytes, when the turn has come.
    pub(super) async fn take(&self, bytes: usize) -> Room<'_> {
        if let Some(room) = self.try_take(bytes) {
            return room;
        }
        self.waiting.set(self.waiting.get() + 1);
        let waiting = Waiter(&self.waiting);
        // The semaphore is never closed.
        let permit = self.bytes.acquire_many(self.bounded(bytes)).await.ok();
        drop(waiting);
        Room { budget: self, permit }
    }
}

impl Room<'_> {
    pub(super) fn bytes(&self) -> usize {
        self.permit.as_ref().map_or(0, SemaphorePermit::num_permits)
    }

    /// Whether others wait for what is room here.
    pub(super) fn is_waited_for(&self) -> bool {
        self.bytes() != 0 && self.budget.waiting.get() != 0
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn room_goes_to_those_that_wait_in_their_order() {
        let budget = Budget::new(100);
        let mut context = Context::from_waker(Waker::noop());
        let first = budget.try_take(80).unwrap();
        assert!(budget.try_take(21).is_none() && !first.is_waited_for());
        let mut large = pin!(budget.take(90));
        let mut small = pin!(budget.take(20));
        assert!(large.as_mut().poll(&mut context).is_pending());
        assert!(small.as_mut().poll(&mut context).is_pending(), "though there is room for it");
        assert!(first.is_waited_for() && !budget.nothing().is_waited_for());
        drop(first);
        let Poll::Ready(large) = large.as_mut().poll(&mut context) else { panic!() };
        assert!(small.as_mut().poll(&mut context).is_pending());
        drop(large);
        let Poll::Ready(small) = small.as_mut().poll(&mut context) else { panic!() };
        assert_eq!((small.bytes(), small.is_waited_for()), (20, false));
        assert_eq!(budget.try_take(usize::MAX).map(|room| room.bytes()), None);
        drop(small);
        assert_eq!(budget.try_take(usize::MAX).map(|room| room.bytes()), Some(100));
    }
}
