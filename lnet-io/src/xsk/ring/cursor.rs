//! Index arithmetic and memory ordering of one half of a ring with one producer and one consumer.
//!
//! Both sides count entries from the beginning, modulo 2^32; an index taken modulo the ring's size is a
//! slot. The producer may be at most `size` entries ahead of the consumer. Each side knows its own index and
//! a copy of the other's that can only be too low, so it never uses more than there is.
//!
//! Ordering (kernel, net/xdp/xsk_queue.h): each side stores its index with release after it has finished
//! with the entries, and loads the other's with acquire before it touches any.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};

/// One side's place in a ring.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// The next entry of ours.
    position: u32,
    /// The first entry that is not ours to use, as far as we know.
    limit: u32,
    /// How far ahead of the other side's index we may go: the size for a producer, 0 for a consumer.
    lead: u32,
    /// Entries of the ring, a power of two.
    size: u32,
}

impl Cursor {
    /// The producer's side of a ring of `size` entries, a power of two, with both indices at `start`.
    pub(super) fn producer(size: u32, start: u32) -> Self {
        assert!(size.is_power_of_two());
        Self { position: start, limit: start.wrapping_add(size), lead: size, size }
    }

    /// The consumer's side of a ring of `size` entries, a power of two, with both indices at `start`.
    pub(super) fn consumer(size: u32, start: u32) -> Self {
        assert!(size.is_power_of_two());
        Self { position: start, limit: start, lead: 0, size }
    }

    /// How many of `wanted` entries can be used now; looks at the other side's index only if the known
    /// ones do not suffice.
    #[inline]
    pub(crate) fn available(&mut self, wanted: u32, theirs: &AtomicU32) -> u32 {
        let known = self.limit.wrapping_sub(self.position);
        if known >= wanted {
            return wanted;
        }
        let limit = theirs.load(Ordering::Acquire).wrapping_add(self.lead);
        let available = limit.wrapping_sub(self.position);
        if available > self.size {
            // The other side is out of step: nothing that it says can be used.
            return known;
        }
        self.limit = limit;
        available.min(wanted)
    }

    /// The slot of the next entry, which is ours until [`Self::publish`]; `None` if none is known to be.
    #[inline]
    pub(crate) fn advance(&mut self) -> Option<u32> {
        if self.position == self.limit {
            return None;
        }
        let slot = self.slot();
        self.position = self.position.wrapping_add(1);
        Some(slot)
    }

    /// The slot of the next entry, with the kernel or here.
    #[inline]
    pub(super) const fn slot(&self) -> u32 {
        self.position & (self.size - 1)
    }

    /// Hands the entries that were advanced over to the other side.
    #[inline]
    pub(crate) fn publish(&self, ours: &AtomicU32) {
        ours.store(self.position, Ordering::Release);
    }

    /// Entries of the ring.
    pub(super) fn size(&self) -> u32 {
        self.size
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Produce { wanted: u32, used: u32 },
        PublishProducer,
        Consume { wanted: u32, used: u32 },
        PublishConsumer,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u32..20, 0u32..20).prop_map(|(wanted, used)| Step::Produce { wanted, used }),
            Just(Step::PublishProducer),
            (0u32..20, 0u32..20).prop_map(|(wanted, used)| Step::Consume { wanted, used }),
            Just(Step::PublishConsumer),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn equals_a_deque(
            size_log2 in 0u32..5,
            start in prop_oneof![Just(0u32), (u32::MAX - 40)..=u32::MAX, any::<u32>()],
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let size = 1 << size_log2;
            let (producer_index, consumer_index) = (AtomicU32::new(start), AtomicU32::new(start));
            let mut producer = Cursor::producer(size, start);
            let mut consumer = Cursor::consumer(size, start);
            let mut slots = vec![0u64; size as usize];
            // The oracle: entries written and not yet published, published, and read but not yet released.
            let (mut written, mut published) = (VecDeque::new(), VecDeque::new());
            let mut read = 0usize;
            let mut next = 0u64;
            for step in steps {
                match step {
                    Step::Produce { wanted, used } => {
                        let room = size as usize - written.len() - published.len() - read;
                        let available = producer.available(wanted, &consumer_index);
                        prop_assert!(available as usize <= room);
                        prop_assert_eq!(available as usize, room.min(wanted as usize));
                        for _ in 0..used.min(available) {
                            next += 1;
                            let slot = producer.advance().unwrap();
                            slots[slot as usize] = next;
                            written.push_back(next);
                        }
                    }
                    Step::PublishProducer => {
                        producer.publish(&producer_index);
                        published.append(&mut written);
                    }
                    Step::Consume { wanted, used } => {
                        let available = consumer.available(wanted, &producer_index);
                        prop_assert_eq!(available as usize, published.len().min(wanted as usize));
                        for _ in 0..used.min(available) {
                            let slot = consumer.advance().unwrap();
                            prop_assert_eq!(Some(slots[slot as usize]), published.pop_front());
                            read += 1;
                        }
                    }
                    Step::PublishConsumer => {
                        consumer.publish(&consumer_index);
                        read = 0;
                    }
                }
            }
        }
    }

    #[test]
    fn advancing_stops_at_the_limit() {
        let index = AtomicU32::new(u32::MAX);
        let mut producer = Cursor::producer(2, u32::MAX);
        assert_eq!(producer.advance(), Some(1));
        assert_eq!(producer.advance(), Some(0));
        assert_eq!(producer.advance(), None);
        assert_eq!(producer.available(1, &index), 0);
        let mut consumer = Cursor::consumer(2, 0);
        assert_eq!(consumer.advance(), None);
    }

    #[test]
    fn an_index_out_of_step_gives_nothing() {
        let index = AtomicU32::new(9);
        let mut consumer = Cursor::consumer(8, 0);
        assert_eq!(consumer.available(1, &index), 0);
        assert_eq!(consumer.advance(), None);
        index.store(8, Ordering::Relaxed);
        assert_eq!(consumer.available(100, &index), 8);
    }
}

/// `cargo test --package lnet-loom` runs it.
#[cfg(test)]
#[cfg(loom)]
#[allow(unsafe_code)]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    use super::*;

    struct Ring {
        producer: AtomicU32,
        consumer: AtomicU32,
        slots: Vec<UnsafeCell<u32>>,
    }

    fn run(size: u32, start: u32, total: u32, burst: u32) {
        loom::model(move || {
            let ring = Arc::new(Ring {
                producer: AtomicU32::new(start),
                consumer: AtomicU32::new(start),
                slots: (0..size).map(|_| UnsafeCell::new(0)).collect(),
            });
            let producer = loom::thread::spawn({
                let ring = Arc::clone(&ring);
                move || {
                    let mut cursor = Cursor::producer(size, start);
                    let mut next = 0;
                    while next < total {
                        let available = cursor.available(burst.min(total - next), &ring.consumer);
                        if available == 0 {
                            loom::thread::yield_now();
                            continue;
                        }
                        for _ in 0..available {
                            let slot = cursor.advance().unwrap();
                            next += 1;
                            // SAFETY: loom checks that no other thread touches the cell meanwhile.
                            ring.slots[slot as usize].with_mut(|cell| unsafe { *cell = next });
                        }
                        cursor.publish(&ring.producer);
                    }
                }
            });
            let mut cursor = Cursor::consumer(size, start);
            let mut expected = 0;
            while expected < total {
                let available = cursor.available(burst, &ring.producer);
                if available == 0 {
                    loom::thread::yield_now();
                    continue;
                }
                for _ in 0..available {
                    let slot = cursor.advance().unwrap();
                    expected += 1;
                    // SAFETY: loom checks that no thread writes the cell meanwhile.
                    ring.slots[slot as usize].with(|cell| assert_eq!(unsafe { *cell }, expected));
                }
                cursor.publish(&ring.consumer);
            }
            producer.join().unwrap();
        });
    }

    #[test]
    fn one_slot() {
        run(1, 0, 3, 1);
    }

    #[test]
    fn bursts_across_the_wrap() {
        run(2, u32::MAX, 4, 2);
    }
}
