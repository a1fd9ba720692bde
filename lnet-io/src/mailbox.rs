//! A mailbox: what other threads have for a shard, in a bounded queue, with the waker of who takes it.
//!
//! Invariants: what one sender sends arrives once, in its order. A full mailbox hands back what it does not
//! take. The count is raised before an item is in the queue and lowered after it was taken, so a mailbox with
//! something in it never says that it is empty. A sender wakes after it has sent, and who takes looks once
//! more after it has announced that it is about to sleep ([`Waker`]): so none sleeps while something waits.
//!
//! The queue is the standard library's for many senders, and the bound is the count's: memory follows what
//! waits. A ring takes its memory at once; a node of many shards has a mailbox between each two.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SendError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::uring::Waker;

/// The end that takes.
pub struct Mailbox<T> {
    items: Receiver<T>,
    room: Arc<Room>,
}

/// An end that sends. Several threads may have one each.
pub struct Sender<T> {
    items: std::sync::mpsc::Sender<T>,
    room: Arc<Room>,
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

/// What both ends know of the room in the mailbox.
struct Room {
    capacity: usize,
    /// Items that wait, or are about to.
    count: AtomicUsize,
    /// Senders that wait for room.
    waiting: AtomicUsize,
    is_gone: AtomicBool,
    lock: Mutex<()>,
    freed: Condvar,
}

impl Room {
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
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.freed.notify_all();
    }

    /// Waits until there may be room, or the mailbox is gone.
    fn wait(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let is_full = |_: &mut ()| {
            self.count.load(Ordering::SeqCst) >= self.capacity && !self.is_gone.load(Ordering::SeqCst)
        };
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.freed.wait_while(guard, is_full));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<T> Mailbox<T> {
    /// A mailbox for so many items, and an end that sends to it. `waker`: that of who takes.
    #[must_use]
    pub fn new(capacity: usize, waker: &Waker) -> (Sender<T>, Self) {
        let (sender, items) = channel();
        let room = Arc::new(Room {
            capacity,
            count: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            is_gone: AtomicBool::new(false),
            lock: Mutex::new(()),
            freed: Condvar::new(),
        });
        (Sender { items: sender, room: Arc::clone(&room), waker: waker.clone() }, Self { items, room })
    }

    /// Takes the oldest item.
    #[inline]
    pub fn take(&self) -> Option<T> {
        // The queue is looked at only if there is something: its own look costs more.
        if self.is_empty() {
            return None;
        }
        let item = self.items.try_recv().ok()?;
        self.room.free();
        Some(item)
    }

    /// Whether nothing waits, nor is about to.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.room.count.load(Ordering::Acquire) == 0
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        self.room.is_gone.store(true, Ordering::SeqCst);
        self.room.tell();
    }
}

impl<T> Sender<T> {
    /// Sends an item without waking who takes it.
    ///
    /// # Errors
    /// The item, if there is no room or the mailbox is gone.
    #[inline]
    pub fn send(&self, item: T) -> Result<(), Unsent<T>> {
        if self.room.count.fetch_add(1, Ordering::AcqRel) >= self.room.capacity {
            self.room.free();
            let is_gone = self.room.is_gone.load(Ordering::SeqCst);
            return Err(if is_gone { Unsent::Gone(item) } else { Unsent::Full(item) });
        }
        self.items.send(item).map_err(|SendError(item)| {
            self.room.free();
            Unsent::Gone(item)
        })
    }

    /// Sends an item, and waits for room; false if the mailbox is gone.
    pub fn send_waiting(&self, mut item: T) -> bool {
        loop {
            match self.send(item) {
                Ok(()) => return true,
                Err(Unsent::Gone(_)) => return false,
                Err(Unsent::Full(unsent)) => item = unsent,
            }
            self.room.wait();
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
        self.room.count.load(Ordering::Acquire)
    }

    /// Items for which there is room, if this is the only sender.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.room.capacity.saturating_sub(self.count())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        let Self { items, room, waker } = self;
        Self { items: items.clone(), room: Arc::clone(room), waker: waker.clone() }
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

    #[test]
    fn a_sender_that_waits_is_told_that_the_mailbox_is_gone() {
        let (sender, mailbox) = mailbox(1);
        sender.send(1).unwrap();
        let waiting = sender.clone();
        let thread = std::thread::spawn(move || waiting.send_waiting(2));
        while sender.room.waiting.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        drop(mailbox);
        assert!(!thread.join().unwrap());
        assert_eq!(sender.send(3), Err(Unsent::Gone(3)));
    }
}
