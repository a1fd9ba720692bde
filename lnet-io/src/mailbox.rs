//! A mailbox: what other threads have for a shard, in a bounded queue, with the waker of who takes it.
//!
//! Invariants: what one sender sends arrives once, in its order. A full mailbox hands back what it does not
//! take. The count is raised before an item is in the queue and lowered after it was taken, so a mailbox with
//! something in it never says that it is empty. A sender wakes after it has sent, and who takes looks once
//! more after it has announced that it is about to sleep ([`Waker`]): so none sleeps while something waits.
//!
//! Rings for one sender each would cost a look at every ring: shards have several senders, and mostly nothing
//! for each other. So it is the standard library's queue for many, behind one count.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use crate::uring::Waker;

/// The end that takes.
pub struct Mailbox<T> {
    items: Receiver<T>,
    count: Arc<AtomicUsize>,
}

/// An end that sends. Several threads may have one each.
pub struct Sender<T> {
    items: SyncSender<T>,
    count: Arc<AtomicUsize>,
    capacity: usize,
    waker: Waker,
}

/// What was not sent, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsent<T> {
    /// There is no room.
    Full(T),
    /// The mailbox is gone.
    Gone(T),
}

impl<T> Mailbox<T> {
    /// A mailbox for so many items, and an end that sends to it. `waker`: that of who takes.
    #[must_use]
    pub fn new(capacity: usize, waker: &Waker) -> (Sender<T>, Self) {
        let (sender, items) = sync_channel(capacity);
        let count = Arc::<AtomicUsize>::default();
        let sender = Sender { items: sender, count: Arc::clone(&count), capacity, waker: waker.clone() };
        (sender, Self { items, count })
    }

    /// Takes the oldest item.
    #[inline]
    pub fn take(&self) -> Option<T> {
        // The queue is looked at only if there is something: its own look costs more.
        if self.is_empty() {
            return None;
        }
        let item = self.items.try_recv().ok()?;
        self.count.fetch_sub(1, Ordering::AcqRel);
        Some(item)
    }

    /// Whether nothing waits, nor is about to.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

impl<T> Sender<T> {
    /// Sends an item without waking who takes it.
    ///
    /// # Errors
    /// The item, if there is no room or the mailbox is gone.
    #[inline]
    pub fn send(&self, item: T) -> Result<(), Unsent<T>> {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.items.try_send(item).map_err(|error| {
            self.count.fetch_sub(1, Ordering::AcqRel);
            match error {
                TrySendError::Full(item) => Unsent::Full(item),
                TrySendError::Disconnected(item) => Unsent::Gone(item),
            }
        })
    }

    /// Sends an item, and waits for room; false if the mailbox is gone.
    pub fn send_waiting(&self, item: T) -> bool {
        self.count.fetch_add(1, Ordering::AcqRel);
        let is_sent = self.items.send(item).is_ok();
        if !is_sent {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
        is_sent
    }

    /// Makes sure that who takes looks at the mailbox. Whether that took a system call.
    #[inline]
    pub fn wake(&self) -> bool {
        self.waker.wake()
    }

    /// Items that wait, or are about to.
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Items for which there is room, if this is the only sender.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.capacity.saturating_sub(self.count())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        let Self { items, count, capacity, waker } = self;
        Self { items: items.clone(), count: Arc::clone(count), capacity: *capacity, waker: waker.clone() }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("count", &self.count()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uring::Waiter;

    fn mailbox(capacity: usize) -> (Sender<u32>, Mailbox<u32>) {
        Mailbox::new(capacity, &Waiter::new(1).unwrap().waker())
    }

    #[test]
    fn items_arrive_in_order_and_what_has_no_room_comes_back() {
        let (sender, mailbox) = mailbox(2);
        assert!(mailbox.is_empty() && mailbox.take().is_none() && sender.room() == 2);
        assert_eq!([1, 2].map(|item| sender.send(item)), [Ok(()), Ok(())]);
        assert_eq!((sender.send(3), sender.room(), sender.count()), (Err(Unsent::Full(3)), 0, 2));
        assert_eq!(mailbox.take(), Some(1));
        assert_eq!(sender.clone().send(4), Ok(()));
        assert_eq!([mailbox.take(), mailbox.take(), mailbox.take()], [Some(2), Some(4), None]);
        assert!(mailbox.is_empty() && sender.room() == 2);
    }

    #[test]
    fn a_mailbox_that_is_gone_takes_nothing() {
        let (sender, mailbox) = mailbox(1);
        drop(mailbox);
        assert_eq!((sender.send(1), sender.send_waiting(2)), (Err(Unsent::Gone(1)), false));
        assert_eq!(sender.count(), 0);
    }

    #[test]
    fn all_of_many_senders_arrives() {
        const EACH: u32 = 2000;
        let (sender, mailbox) = mailbox(8);
        let senders: Vec<_> = (0..3)
            .map(|number| {
                let sender = sender.clone();
                std::thread::spawn(move || (0..EACH).all(|item| sender.send_waiting(number * EACH + item)))
            })
            .collect();
        let mut next = [0, EACH, 2 * EACH];
        while next != [EACH, 2 * EACH, 3 * EACH] {
            let Some(item) = mailbox.take() else { continue };
            let its = &mut next[(item / EACH) as usize];
            assert_eq!(item, *its);
            *its += 1;
        }
        assert!(senders.into_iter().all(|sender| sender.join().unwrap()) && mailbox.is_empty());
    }
}
