//! Frames on their way between the shards of a node.
//!
//! Sockets of one receive queue share its fill and completion ring, which one shard owns; frames that
//! another shard received from that queue travel home here, and so do packets that steering brought to the
//! wrong shard. Each parcel holds a frame and there are as many places as frames, so a push never fails.

use rtrb::{Consumer, Producer, RingBuffer};

use crate::uring::Waker;
use crate::xsk::{FRAGMENTS_MAX, Frame, RxDescriptor};

/// What travels between shards.
enum Parcel {
    /// A frame that its home shard may use again.
    Home(Frame),
    /// (A part of) a packet that belongs to the addressee; it arrived on this lane's queue.
    Misdirected { lane_index: u32, descriptor: RxDescriptor },
}

/// What has arrived from another shard.
pub(super) enum Arrival {
    /// A frame that this shard, its home, may use again.
    Home(Frame),
    /// A packet of this shard's, which another one received on the queue of this lane.
    Packet { lane_index: usize },
}

/// A parcel of frames that queues up wakes a sleeping addressee once it is this long: frames that go
/// home are wanted only when the fill ring runs low.
const HOME_WAKE_COUNT: usize = 64;

struct Addressee {
    parcels: Producer<Parcel>,
    waker: Waker,
}

struct Sender {
    parcels: Consumer<Parcel>,
    /// The packet that this sender is about to hand over: its other descriptors may still be on the way.
    packet: Vec<RxDescriptor>,
}

/// One shard's end of the exchange.
pub(super) struct Exchange {
    /// By shard; `None` at this shard's own place.
    to: Vec<Option<Addressee>>,
    from: Vec<Sender>,
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
                let (producer, consumer) = RingBuffer::new(frames);
                ends[sender].to.push(Some(Addressee { parcels: producer, waker: waker.clone() }));
                let packet = Vec::with_capacity(FRAGMENTS_MAX as usize);
                ends[receiver].from.push(Sender { parcels: consumer, packet });
            }
        }
        ends
    }

    /// Sends a frame home to `shard`.
    #[inline]
    pub(super) fn send_home(&mut self, shard: usize, frame: Frame) {
        let addressee = self.addressee(shard);
        push(&mut addressee.parcels, Parcel::Home(frame));
        if addressee.parcels.buffer().capacity() - addressee.parcels.slots() >= HOME_WAKE_COUNT {
            addressee.waker.wake();
        }
    }

    /// Hands a packet over to `shard`, whose it is: all of its descriptors, in order.
    pub(super) fn hand_over(
        &mut self,
        shard: usize,
        lane_index: usize,
        packet: impl Iterator<Item = RxDescriptor>,
    ) {
        let addressee = self.addressee(shard);
        for descriptor in packet {
            let parcel = Parcel::Misdirected { lane_index: lane_index as u32, descriptor };
            push(&mut addressee.parcels, parcel);
        }
        addressee.waker.wake();
    }

    /// What has arrived next; the descriptors of a packet are appended to `packet`, which is never given a
    /// part of one.
    #[inline]
    pub(super) fn receive(&mut self, packet: &mut Vec<RxDescriptor>) -> Option<Arrival> {
        self.from.iter_mut().find_map(|sender| {
            loop {
                match sender.parcels.pop().ok()? {
                    Parcel::Home(frame) => return Some(Arrival::Home(frame)),
                    Parcel::Misdirected { lane_index, descriptor } => {
                        let complete = !descriptor.more;
                        sender.packet.push(descriptor);
                        if complete {
                            packet.append(&mut sender.packet);
                            return Some(Arrival::Packet { lane_index: lane_index as usize });
                        }
                    }
                }
            }
        })
    }

    /// Whether a parcel waits for this shard.
    pub(super) fn has_parcels(&self) -> bool {
        self.from.iter().any(|sender| !sender.parcels.is_empty())
    }

    fn addressee(&mut self, shard: usize) -> &mut Addressee {
        self.to[shard].as_mut().expect("a shard sends no parcels to itself")
    }
}

fn push(parcels: &mut Producer<Parcel>, parcel: Parcel) {
    if parcels.push(parcel).is_err() {
        unreachable!("there are as many places as frames, and each parcel holds one");
    }
}
