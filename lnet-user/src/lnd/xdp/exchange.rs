//! Frames on their way between the shards of a node.
//!
//! Sockets of one receive queue share its fill and completion ring, which one shard owns; frames that
//! another shard received from that queue travel home here, and so do frames that steering brought to the
//! wrong shard. Each parcel holds a frame and there are as many places as frames, so a push never fails.

use rtrb::{Consumer, Producer, RingBuffer};

use crate::uring::Waker;
use crate::xsk::{Frame, RxDescriptor};

/// What travels between shards.
pub(super) enum Parcel {
    /// A frame that its home shard may use again.
    Home(Frame),
    /// (A part of) a packet that belongs to the addressee; it arrived on this lane's queue.
    Misdirected { lane_index: u32, descriptor: RxDescriptor },
}

/// A parcel of frames that queues up wakes a sleeping addressee once it is this long: frames that go
/// home are wanted only when the fill ring runs low.
const HOME_WAKE_COUNT: usize = 64;

struct Sibling {
    parcels: Producer<Parcel>,
    waker: Waker,
}

/// One shard's end of the exchange.
pub(super) struct Exchange {
    /// By shard; `None` at this shard's own place.
    to: Vec<Option<Sibling>>,
    from: Vec<Consumer<Parcel>>,
}

impl Exchange {
    /// The ends of all shards, for at most `frames` frames; `wakers` are the shards' own.
    pub(super) fn mesh(frames: usize, wakers: &[Waker]) -> Vec<Self> {
        let shards = wakers.len();
        let mut ends: Vec<Self> = (0..shards).map(|_| Self { to: Vec::new(), from: Vec::new() }).collect();
        for sender in 0..shards {
            for (receiver, waker) in wakers.iter().enumerate() {
                if sender == receiver {
                    ends[sender].to.push(None);
                    continue;
                }
                let (parcels, consumer) = RingBuffer::new(frames);
                ends[sender].to.push(Some(Sibling { parcels, waker: waker.clone() }));
                ends[receiver].from.push(consumer);
            }
        }
        ends
    }

    /// Sends a frame home to `shard`.
    #[inline]
    pub(super) fn send_home(&mut self, shard: usize, frame: Frame) {
        let sibling = self.sibling(shard);
        push(&mut sibling.parcels, Parcel::Home(frame));
        if sibling.parcels.buffer().capacity() - sibling.parcels.slots() >= HOME_WAKE_COUNT {
            sibling.waker.wake();
        }
    }

    /// Hands a packet over to `shard`, whose it is.
    pub(super) fn hand_over(&mut self, shard: usize, lane_index: u32, descriptor: RxDescriptor) {
        let sibling = self.sibling(shard);
        push(&mut sibling.parcels, Parcel::Misdirected { lane_index, descriptor });
        sibling.waker.wake();
    }

    /// The next parcel for this shard.
    #[inline]
    pub(super) fn receive(&mut self) -> Option<Parcel> {
        self.from.iter_mut().find_map(|consumer| consumer.pop().ok())
    }

    /// Whether a parcel waits for this shard.
    pub(super) fn has_parcels(&self) -> bool {
        self.from.iter().any(|consumer| !consumer.is_empty())
    }

    fn sibling(&mut self, shard: usize) -> &mut Sibling {
        self.to[shard].as_mut().expect("a shard sends no parcels to itself")
    }
}

fn push(parcels: &mut Producer<Parcel>, parcel: Parcel) {
    if parcels.push(parcel).is_err() {
        unreachable!("there are as many places as frames, and each parcel holds one");
    }
}
