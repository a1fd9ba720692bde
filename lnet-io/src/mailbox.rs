//! A mailbox: what other threads have for a shard, in a bounded queue, with the waker of who takes it.
//!
//! Invariants: what one sender sends arrives once, in its order. A full mailbox hands back what it does not
//! take. The count is raised before an item is in the queue and lowered after it was taken, so a mailbox with
//! something in it never says that it is empty. A sender wakes after it has sent, and who takes looks once
//! more after it has announced that it is about to sleep ([`Waker`]): so none sleeps while something waits.
//!
//! The queue is a list behind a lock, of which all that waits is taken at once. It is as long as it may
//! become from the start, so that nothing is allocated later, and fills from its beginning each time, so that
//! it touches no more memory than what has waited: a node of many shards has a mailbox between each two.
//!
//! Rings without a lock were here before. They took a ring and its memory for each pair of threads, and could
//! not serve the callers of a program, who are many. The lock is taken for one push, or for one swap.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::reactor::Waker;

/// The end that takes.
pub struct Mailbox<T> {
    shared: Arc<Shared<T>>,
    /// Items that were taken off the list, and not taken here yet.
    taken: VecDeque<T>,
}

/// An end that sends. Several threads may have one each.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
    waker: Waker,
}

/// An item that was not sent, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsent<T> {
    /// There is no room.
    Full(T),
    /// The mailbox is gone.
    Gone(T),
}

struct Shared<T> {
    capacity: usize,
    /// Items that wait, or are about to.
    count: AtomicUsize,
    /// Senders that wait for room.
    waiting: AtomicUsize,
    list: Mutex<Inbox<T>>,
    freed: Condvar,
}

struct Inbox<T> {
    items: VecDeque<T>,
    is_gone: bool,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Inbox<T>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a place up. All accesses are in one order: this sees who waits, or who waits sees the place.
    #[inline]
    fn free(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) != 0 {
            self.tell();
        }
    }

    #[cold]
    fn tell(&self) {
        // Who waits has looked and sleeps, or has not looked yet.
        drop(self.lock());
        self.freed.notify_all();
    }

    /// Waits until there may be room, or the mailbox is gone.
    fn wait(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let is_full =
            |sent: &mut Inbox<T>| self.count.load(Ordering::SeqCst) >= self.capacity && !sent.is_gone;
        drop(self.freed.wait_while(self.lock(), is_full));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<T> Mailbox<T> {
    /// A mailbox for so many items, and an end that sends to it. `waker`: that of who takes.
    #[must_use]
    pub fn new(capacity: usize, waker: &Waker) -> (Sender<T>, Self) {
        let shared = Arc::new(Shared {
            capacity,
            count: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            list: Mutex::new(Inbox { items: VecDeque::with_capacity(capacity), is_gone: false }),
            freed: Condvar::new(),
        });
        (
            Sender { shared: Arc::clone(&shared), waker: waker.clone() },
            Self { shared, taken: VecDeque::with_capacity(capacity) },
        )
    }

    /// Takes the oldest item.
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        if self.taken.is_empty() {
            if self.is_empty() {
                return None;
            }
            // Empty as it is, it begins at its beginning again.
            self.taken.clear();
            std::mem::swap(&mut self.taken, &mut self.shared.lock().items);
        }
        let item = self.taken.pop_front()?;
        self.shared.free();
        Some(item)
    }

    /// Whether nothing waits, nor is about to.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.count.load(Ordering::Acquire) == 0
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        let mut sent = self.shared.lock();
        sent.is_gone = true;
        let left = std::mem::take(&mut sent.items);
        drop(sent);
        self.shared.freed.notify_all();
        drop(left);
    }
}

impl<T> Sender<T> {
    /// Sends an item without waking who takes it.
    ///
    /// # Errors
    /// The item, if there is no room or the mailbox is gone.
    #[inline]
    pub fn send(&self, item: T) -> Result<(), Unsent<T>> {
        let is_full = self.shared.count.fetch_add(1, Ordering::AcqRel) >= self.shared.capacity;
        let mut sent = self.shared.lock();
        if !is_full && !sent.is_gone {
            sent.items.push_back(item);
            return Ok(());
        }
        let is_gone = sent.is_gone;
        drop(sent);
        self.shared.free();
        Err(if is_gone { Unsent::Gone(item) } else { Unsent::Full(item) })
    }

    /// Sends an item, and waits for room; false if the mailbox is gone.
    pub fn send_waiting(&self, mut item: T) -> bool {
        loop {
            match self.send(item) {
                Ok(()) => return true,
                Err(Unsent::Gone(_)) => return false,
                Err(Unsent::Full(unsent)) => item = unsent,
            }
            self.shared.wait();
        }
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
        self.shared.count.load(Ordering::Acquire)
    }

    /// Items for which there is room, if this is the only sender.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.shared.capacity.saturating_sub(self.count())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), waker: self.waker.clone() }
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
    use crate::reactor::{Reactor, Waiter};

    fn mailbox(capacity: usize) -> (Sender<u32>, Mailbox<u32>) {
        Mailbox::new(capacity, &Waiter::new(1, Reactor::default()).unwrap().waker())
    }

    #[test]
    fn items_arrive_in_order_and_what_has_no_room_comes_back() {
        let (sender, mut mailbox) = mailbox(2);
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
        let (sender, mut mailbox) = mailbox(8);
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

    #[test]
    fn a_sender_that_waits_is_told_that_the_mailbox_is_gone() {
        let (sender, mailbox) = mailbox(1);
        sender.send(1).unwrap();
        let waiting = sender.clone();
        let thread = std::thread::spawn(move || waiting.send_waiting(2));
        while sender.shared.waiting.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        drop(mailbox);
        assert!(!thread.join().unwrap());
        assert_eq!(sender.send(3), Err(Unsent::Gone(3)));
    }
}
