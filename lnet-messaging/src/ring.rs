//! An event ring: one producer, one consumer, first in, first out, and it grows. Each transfer machine over
//! lnet has one.
//!
//! A chain of bounded rings, of which one is in use as a rule. The consumer's side makes a longer ring when
//! events that may come need more room, and sends its producing end to the producer; the producer changes
//! over when its ring is full, and the consumer empties the former ring first.
//!
//! Invariants: a slot is reserved for each event before the operation starts that it may come of, so that a
//! push finds room, and never allocates or waits; neither end waits for the other. A ring of `size` slots
//! holds `size - 1` events.

use std::collections::VecDeque;

#[cfg(not(loom))]
use std::sync::atomic::{Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{Ordering, fence};
#[cfg(loom)]
use model::{RingBuffer, RingConsumer, RingProducer};
#[cfg(not(loom))]
use rtrb::{Consumer as RingConsumer, Producer as RingProducer, RingBuffer};

/// Longer rings that the producer may yet have to change over to. Each is twice as long as the one before at
/// least.
const GROWTHS_MAX: usize = 64;

/// The end where events come in.
pub struct Producer<T> {
    ring: RingProducer<T>,
    longer: RingConsumer<RingProducer<T>>,
}

/// The end where they are taken.
pub struct Consumer<T> {
    /// The oldest first; the last one is the producer's, or will be.
    rings: VecDeque<RingConsumer<T>>,
    longer: RingProducer<RingProducer<T>>,
    size: usize,
    reserved: usize,
}

/// There is no memory, or no number, for so many events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

/// A ring of two slots, for one event.
#[must_use]
pub fn ring<T>() -> (Producer<T>, Consumer<T>) {
    let (producer, consumer) = RingBuffer::new(1);
    let (longer, grown) = RingBuffer::new(GROWTHS_MAX);
    let consumer = Consumer { rings: VecDeque::from([consumer]), longer, size: 2, reserved: 0 };
    (Producer { ring: producer, longer: grown }, consumer)
}

impl<T> Producer<T> {
    /// Adds an event.
    ///
    /// # Errors
    /// The event, where no slot was reserved for it.
    #[inline]
    pub fn push(&mut self, event: T) -> Result<(), T> {
        // Looked at first: an event that is not refused is written where it stays, and nowhere before.
        while self.ring.is_full() {
            let Ok(longer) = self.longer.pop() else { return Err(event) };
            // The former end goes, and with it the promise of more events in that ring.
            self.ring = longer;
        }
        self.ring.push(event).map_err(|rtrb::PushError::Full(event)| event)
    }
}

impl<T> Consumer<T> {
    /// Slots, of which one is always free.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Events that may yet come, or wait.
    pub(crate) fn reserved(&self) -> usize {
        self.reserved
    }

    /// Makes sure of room for so many events more, before the operation starts that they come of.
    ///
    /// # Errors
    /// Nothing is reserved then.
    pub fn reserve(&mut self, count: usize) -> Result<(), NoRoom> {
        let needed = self.reserved.checked_add(count).ok_or(NoRoom)?;
        if self.size - 1 < needed {
            let capacity = needed.max((self.size - 1).saturating_mul(2));
            let (producer, consumer) = RingBuffer::new(capacity);
            if self.longer.push(producer).is_err() {
                return Err(NoRoom);
            }
            self.rings.push_back(consumer);
            self.size = capacity + 1;
        }
        self.reserved = needed;
        Ok(())
    }

    /// Gives back the room of so many events, which have been taken or will not come.
    pub fn release(&mut self, count: usize) {
        debug_assert!(count <= self.reserved, "{count} of {} reserved slots are released", self.reserved);
        self.reserved = self.reserved.saturating_sub(count);
    }

    /// Takes the oldest event.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        match self.rings.front_mut()?.pop() {
            Ok(event) => Some(event),
            Err(_) => self.pop_later(),
        }
    }

    /// Takes the oldest event where the oldest ring had none.
    #[cold]
    fn pop_later(&mut self) -> Option<T> {
        while self.rings.len() > 1 && self.rings.front()?.is_abandoned() {
            // The end was dropped without order. Behind the fence all is there that was added before, and
            // nothing comes any more.
            fence(Ordering::Acquire);
            if let Ok(event) = self.rings.front_mut()?.pop() {
                return Some(event);
            }
            self.rings.pop_front();
            if let Ok(event) = self.rings.front_mut()?.pop() {
                return Some(event);
            }
        }
        None
    }

    /// Whether there is no event. An event that is coming at the moment may be missed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rings.iter().all(RingConsumer::is_empty)
    }
}

/// What `rtrb` does, with loom's atomics: an index at each end that the other one looks at, and an end that
/// is dropped, of which the other learns without order, as of `Arc::strong_count`. The indices decide what
/// the consumer sees. The bytes of a slot are under a lock here: that they are there when the index says so
/// is rtrb's part, and its tests'.
#[cfg(loom)]
mod model {
    use std::sync::PoisonError;

    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use loom::sync::{Arc, Mutex};

    struct Shared<T> {
        slots: Vec<Mutex<Option<T>>>,
        /// Taken so far.
        head: AtomicUsize,
        /// Added so far.
        tail: AtomicUsize,
        is_abandoned: AtomicBool,
    }

    impl<T> Shared<T> {
        fn exchange(&self, at: usize, event: Option<T>) -> Option<T> {
            let slot = &self.slots[at % self.slots.len()];
            std::mem::replace(&mut slot.lock().unwrap_or_else(PoisonError::into_inner), event)
        }
    }

    pub(super) struct RingBuffer;
    pub(super) struct RingProducer<T>(Arc<Shared<T>>);
    pub(super) struct RingConsumer<T>(Arc<Shared<T>>);

    impl RingBuffer {
        #[expect(clippy::new_ret_no_self, reason = "as in rtrb")]
        pub(super) fn new<T>(capacity: usize) -> (RingProducer<T>, RingConsumer<T>) {
            let slots = (0..capacity).map(|_| Mutex::new(None)).collect();
            let (head, tail, is_abandoned) = Default::default();
            let shared = Arc::new(Shared { slots, head, tail, is_abandoned });
            (RingProducer(Arc::clone(&shared)), RingConsumer(shared))
        }
    }

    impl<T> RingProducer<T> {
        pub(super) fn is_full(&self) -> bool {
            let tail = self.0.tail.load(Ordering::Relaxed);
            tail - self.0.head.load(Ordering::Acquire) == self.0.slots.len()
        }

        pub(super) fn push(&mut self, event: T) -> Result<(), rtrb::PushError<T>> {
            if self.is_full() {
                return Err(rtrb::PushError::Full(event));
            }
            let tail = self.0.tail.load(Ordering::Relaxed);
            self.0.exchange(tail, Some(event));
            self.0.tail.store(tail + 1, Ordering::Release);
            Ok(())
        }
    }

    impl<T> Drop for RingProducer<T> {
        fn drop(&mut self) {
            self.0.is_abandoned.store(true, Ordering::Release);
        }
    }

    impl<T> RingConsumer<T> {
        pub(super) fn pop(&mut self) -> Result<T, ()> {
            let head = self.0.head.load(Ordering::Relaxed);
            if self.is_empty() {
                return Err(());
            }
            let event = self.0.exchange(head, None).ok_or(())?;
            self.0.head.store(head + 1, Ordering::Release);
            Ok(event)
        }

        pub(super) fn is_abandoned(&self) -> bool {
            self.0.is_abandoned.load(Ordering::Relaxed)
        }

        pub(super) fn is_empty(&self) -> bool {
            self.0.tail.load(Ordering::Acquire) == self.0.head.load(Ordering::Relaxed)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn cq_01_to_cq_03_a_new_ring_holds_one_event() {
        let (mut producer, mut consumer) = ring();
        assert_eq!((consumer.size(), consumer.is_empty(), consumer.pop()), (2, true, None));
        consumer.reserve(1).unwrap();
        assert_eq!(consumer.size(), 2);
        producer.push(7).unwrap();
        assert_eq!(producer.push(8), Err(8), "one slot is always free");
        assert!(!consumer.is_empty());
        assert_eq!((consumer.pop(), consumer.pop(), consumer.pop()), (Some(7), None, None));
        assert!(consumer.is_empty());
    }

    #[test]
    fn cq_04_a_ring_goes_round() {
        let (mut producer, mut consumer) = ring();
        consumer.reserve(15).unwrap();
        assert_eq!(consumer.size(), 16);
        // The producer leaves the former ring when that is full.
        (0..2).for_each(|event| producer.push(event).unwrap());
        (0..2).for_each(|event| assert_eq!(consumer.pop(), Some(event)));
        for lap in 0..100 {
            (0..15).for_each(|event| producer.push(lap * 15 + event).unwrap());
            assert!(producer.push(0).is_err());
            (0..15).for_each(|event| assert_eq!(consumer.pop(), Some(lap * 15 + event)));
            assert_eq!(consumer.pop(), None);
        }
    }

    #[test]
    fn cq_05_growth_keeps_the_order() {
        let (mut producer, mut consumer) = ring();
        consumer.reserve(3).unwrap();
        let former = consumer.size();
        (0..2).for_each(|event| producer.push(event).unwrap());
        consumer.reserve(1).unwrap();
        assert!(consumer.size() > former);
        (2..4).for_each(|event| producer.push(event).unwrap());
        assert_eq!(consumer.pop(), Some(0));
        consumer.reserve(40).unwrap();
        consumer.reserve(400).unwrap();
        (4..9).for_each(|event| producer.push(event).unwrap());
        let left: Vec<i32> = std::iter::from_fn(|| consumer.pop()).collect();
        assert_eq!(left, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn cq_06_two_threads_lose_nothing() {
        const EVENTS: usize = 1_000_000;
        let (mut producer, consumer) = ring();
        let consumer = Mutex::new(consumer);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for event in 0..EVENTS {
                    // An operation is started under the consumer's lock, now and then before the last one has
                    // ended.
                    loop {
                        let mut consumer = consumer.lock().unwrap();
                        if consumer.reserved() < 64 + event / 1000 {
                            break consumer.reserve(1).unwrap();
                        }
                        drop(consumer);
                        std::thread::yield_now();
                    }
                    producer.push(event).unwrap();
                }
            });
            for expected in 0..EVENTS {
                loop {
                    let mut consumer = consumer.lock().unwrap();
                    if let Some(event) = consumer.pop() {
                        consumer.release(1);
                        break assert_eq!(event, expected);
                    }
                    drop(consumer);
                    std::thread::yield_now();
                }
            }
        });
        let consumer = consumer.into_inner().unwrap();
        assert!(consumer.is_empty() && consumer.reserved() == 0 && consumer.size() > 2);
    }

    #[test]
    fn cq_07_room_is_reserved_and_released() {
        let (_producer, mut consumer) = ring::<u8>();
        for (reserve, release) in [(1, 0), (4, 2), (10, 13), (3, 1)] {
            consumer.reserve(reserve).unwrap();
            assert!(consumer.size() > consumer.reserved());
            consumer.release(release);
        }
        assert_eq!(consumer.reserved(), 2);
        assert_eq!(consumer.reserve(usize::MAX), Err(NoRoom));
        assert_eq!(consumer.reserved(), 2, "what was refused is not reserved");
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::sync::Mutex;

    use super::*;

    /// An event of an operation that started before the ring grew, one of an operation behind that, and a
    /// consumer that takes both.
    #[test]
    fn no_event_is_lost_or_overtaken_while_the_ring_grows() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring();
            consumer.reserve(1).unwrap();
            let consumer = Arc::new(Mutex::new(consumer));
            let starter = Arc::clone(&consumer);
            let thread = loom::thread::spawn(move || {
                producer.push(0).unwrap();
                starter.lock().unwrap().reserve(2).unwrap();
                producer.push(1).unwrap();
                producer.push(2).unwrap();
            });
            let mut taken = Vec::new();
            for _ in 0..2 {
                taken.extend(consumer.lock().unwrap().pop());
            }
            thread.join().unwrap();
            let mut consumer = consumer.lock().unwrap();
            taken.extend(std::iter::from_fn(|| consumer.pop()));
            assert_eq!(taken, [0, 1, 2]);
        });
    }
    /// A producer that changes over without any lock: the ring has grown before, and the consumer alone is at
    /// its end.
    #[test]
    fn a_ring_that_is_left_is_emptied_first() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring();
            consumer.reserve(1).unwrap();
            consumer.reserve(1).unwrap();
            let thread = loom::thread::spawn(move || {
                producer.push(0).unwrap();
                producer.push(1).unwrap();
            });
            let mut taken: Vec<i32> = consumer.pop().into_iter().chain(consumer.pop()).collect();
            thread.join().unwrap();
            taken.extend(std::iter::from_fn(|| consumer.pop()));
            assert_eq!(taken, [0, 1]);
        });
    }
}
