//! Frames on their way between the shards of a node.
//!
//! Sockets of one receive queue share its fill and completion ring, which one shard owns; frames that
//! another shard received from that queue travel home here, and so do packets that steering brought to the
//! wrong shard. Each parcel holds a frame, and there is always a place for every frame of the addressee's
//! on its way home; packets that are handed over have a bounded number of further places.

use rtrb::{Consumer, Producer, RingBuffer};

use crate::uring::Waker;
use crate::xsk::{FRAGMENTS_MAX, Frame, RxDescriptor};

/// What travels between shards.
enum Parcel {
    /// A frame that its home shard may use again.
    Home(Frame),
    /// (A part of) a packet that belongs to the addressee.
    Misdirected(RxDescriptor),
}

/// What has arrived from another shard.
pub(super) enum Arrival {
    /// A frame that this shard, its home, may use again.
    Home(Frame),
    /// A packet of this shard's, which another one received.
    Packet,
}

/// Places for descriptors that are handed over, from one shard to another.
const HANDED_OVER_MAX: usize = 1024;

/// Sizes of an exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Frames whose home one shard is.
    pub(super) frames_per_shard: usize,
    /// Frames that wait for a sleeping shard before it is woken for them: they are wanted only when its
    /// fill rings run low.
    pub(super) home_wake_count: usize,
}

struct Addressee {
    parcels: Producer<Parcel>,
    waker: Waker,
}

/// The way home for frames of queues that were closed, which no shard has: from whoever has taken them back from the
/// kernel.
pub(crate) struct WaysHome {
    by_shard: Vec<Addressee>,
    frames_per_shard: u32,
}

impl WaysHome {
    /// Sends frames home.
    pub(crate) fn send(&mut self, frames: Vec<Frame>) {
        for frame in frames {
            let home = frame.chunk_index() / self.frames_per_shard;
            push(&mut self.by_shard[home as usize].parcels, Parcel::Home(frame));
        }
        for shard in &self.by_shard {
            shard.waker.wake();
        }
    }
}

impl std::fmt::Debug for WaysHome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaysHome").field("shards", &self.by_shard.len()).finish_non_exhaustive()
    }
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
    sizes: Sizes,
}

impl Exchange {
    /// The ends of all shards, and of whoever closes queues; `wakers` are the shards' own.
    pub(super) fn mesh(sizes: Sizes, wakers: &[Waker]) -> (Vec<Self>, WaysHome) {
        let shards = wakers.len();
        let mut ends: Vec<Self> =
            (0..shards).map(|_| Self { to: Vec::new(), from: Vec::new(), sizes }).collect();
        for sender in 0..shards {
            for (receiver, waker) in wakers.iter().enumerate() {
                if sender == receiver {
                    ends[sender].to.push(None);
                    continue;
                }
                let (producer, consumer) = RingBuffer::new(sizes.frames_per_shard + HANDED_OVER_MAX);
                ends[sender].to.push(Some(Addressee { parcels: producer, waker: waker.clone() }));
                let packet = Vec::with_capacity(FRAGMENTS_MAX as usize);
                ends[receiver].from.push(Sender { parcels: consumer, packet });
            }
        }
        let way_home = |(end, waker): (&mut Self, &Waker)| {
            let (producer, consumer) = RingBuffer::new(sizes.frames_per_shard);
            end.from.push(Sender { parcels: consumer, packet: Vec::new() });
            Addressee { parcels: producer, waker: waker.clone() }
        };
        let by_shard = ends.iter_mut().zip(wakers).map(way_home).collect();
        (ends, WaysHome { by_shard, frames_per_shard: sizes.frames_per_shard as u32 })
    }

    /// Sends a frame home to `shard`.
    #[inline]
    pub(super) fn send_home(&mut self, shard: usize, frame: Frame) {
        let wake_count = self.sizes.home_wake_count;
        let addressee = self.addressee(shard);
        push(&mut addressee.parcels, Parcel::Home(frame));
        if addressee.parcels.buffer().capacity() - addressee.parcels.slots() >= wake_count {
            addressee.waker.wake();
        }
    }

    /// Hands the descriptors of a packet over to `shard`, whose it is, and empties `packet`; leaves it as it
    /// is and returns false when too many wait there already.
    pub(super) fn hand_over(&mut self, shard: usize, packet: &mut Vec<RxDescriptor>) -> bool {
        let kept_for_home = self.sizes.frames_per_shard;
        let addressee = self.addressee(shard);
        if addressee.parcels.slots() < kept_for_home + packet.len() {
            return false;
        }
        for descriptor in packet.drain(..) {
            push(&mut addressee.parcels, Parcel::Misdirected(descriptor));
        }
        addressee.waker.wake();
        true
    }

    /// Wakes `shard`, another one.
    pub(super) fn wake(&self, shard: usize) {
        if let Some(addressee) = &self.to[shard] {
            addressee.waker.wake();
        }
    }

    /// What has arrived next; the descriptors of a packet are appended to `packet`, which is never given a
    /// part of one.
    #[inline]
    pub(super) fn receive(&mut self, packet: &mut Vec<RxDescriptor>) -> Option<Arrival> {
        self.from.iter_mut().find_map(|sender| {
            loop {
                match sender.parcels.pop().ok()? {
                    Parcel::Home(frame) => return Some(Arrival::Home(frame)),
                    Parcel::Misdirected(descriptor) => {
                        let complete = !descriptor.more;
                        sender.packet.push(descriptor);
                        if complete {
                            packet.append(&mut sender.packet);
                            return Some(Arrival::Packet);
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
        unreachable!("a place is kept for every frame of the addressee's, and others ask first");
    }
}
