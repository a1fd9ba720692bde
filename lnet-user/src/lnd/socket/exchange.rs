//! Datagrams that the kernel gave to the wrong shard, on their way to the right one.
//!
//! A datagram is copied into a buffer that its addressee gives back when it has read it, so that nothing is
//! allocated. Each pair of shards has a bounded number of them; a datagram beyond these is lost.

use lnet_core::lnd::NiId;
use lnet_wire::Nid;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::uring::Waker;

/// Buffers that one shard may have with all its siblings, shared out among them.
const BUFFERS_PER_SHARD: usize = 1024;
/// Fewest and most buffers that a shard has for one sibling: as many frames as that says it can take at once.
const BUFFERS_MIN: usize = 4;
const BUFFERS_MAX: usize = 512;
/// Most bytes of them.
const BUFFERS_BYTES: usize = 4 << 20;

/// A datagram that was handed over. Give it back with [`Exchange::give_back`].
pub(super) struct Parcel {
    /// The NI that it came to.
    pub(super) ni: NiId,
    /// Where it came from.
    pub(super) from: Nid,
    /// The shard that received it.
    sender: usize,
    bytes: Box<[u8]>,
    length: usize,
}

impl Parcel {
    /// The datagram.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

struct Addressee {
    parcels: Producer<Parcel>,
    empty: Consumer<Box<[u8]>>,
    waker: Waker,
}

struct Sender {
    parcels: Consumer<Parcel>,
    empty: Producer<Box<[u8]>>,
}

/// One shard's end of the exchange.
pub(super) struct Exchange {
    shard: usize,
    /// By shard; `None` at this shard's own place.
    to: Vec<Option<Addressee>>,
    /// By shard as well.
    from: Vec<Option<Sender>>,
}

impl Exchange {
    /// The ends of all shards, for datagrams of at most `datagram_max_bytes`; `wakers` are the shards' own.
    pub(super) fn mesh(datagram_max_bytes: usize, wakers: &[Waker]) -> Vec<Self> {
        let shards = wakers.len();
        let share = BUFFERS_PER_SHARD / shards.saturating_sub(1).max(1);
        let count = share.min(BUFFERS_BYTES / datagram_max_bytes).clamp(BUFFERS_MIN, BUFFERS_MAX);
        let none = |shard| Self { shard, to: Vec::new(), from: Vec::new() };
        let mut ends: Vec<Self> = (0..shards).map(none).collect();
        for sender in 0..shards {
            for (receiver, waker) in wakers.iter().enumerate() {
                if sender == receiver {
                    ends[sender].to.push(None);
                    ends[receiver].from.push(None);
                    continue;
                }
                let (parcels, arriving) = RingBuffer::new(count);
                let (mut returning, empty) = RingBuffer::new(count);
                for _ in 0..count {
                    // Pages that are never touched take no memory.
                    let fresh = returning.push(vec![0; datagram_max_bytes].into_boxed_slice());
                    assert!(fresh.is_ok(), "there is a place for each buffer");
                }
                ends[sender].to.push(Some(Addressee { parcels, empty, waker: waker.clone() }));
                ends[receiver].from.push(Some(Sender { parcels: arriving, empty: returning }));
            }
        }
        ends
    }

    /// Hands a datagram over to `shard`, another one; false if too many are with it.
    pub(super) fn hand_over(&mut self, shard: usize, ni: NiId, from: Nid, datagram: &[u8]) -> bool {
        let addressee = self.to[shard].as_mut().expect("a shard hands nothing over to itself");
        let Ok(mut bytes) = addressee.empty.pop() else { return false };
        bytes[..datagram.len()].copy_from_slice(datagram);
        let parcel = Parcel { ni, from, sender: self.shard, bytes, length: datagram.len() };
        assert!(addressee.parcels.push(parcel).is_ok(), "there is a place for each buffer");
        addressee.waker.wake();
        true
    }

    /// What was handed over to this shard next.
    #[inline]
    pub(super) fn receive(&mut self) -> Option<Parcel> {
        self.from.iter_mut().flatten().find_map(|sender| sender.parcels.pop().ok())
    }

    /// Gives a datagram's buffer back to its sender.
    pub(super) fn give_back(&mut self, parcel: Parcel) {
        let sender = self.from[parcel.sender].as_mut().expect("a parcel has another shard as its sender");
        assert!(sender.empty.push(parcel.bytes).is_ok(), "there is a place for each buffer");
    }

    /// Whether something was handed over to this shard.
    pub(super) fn has_parcels(&self) -> bool {
        self.from.iter().flatten().any(|sender| !sender.parcels.is_empty())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use lnet_wire::nid::Net;

    use super::*;
    use crate::uring::Waiter;

    #[test]
    fn parcels_arrive_in_order_and_their_buffers_come_back() {
        let wakers: Vec<Waker> = (0..3).map(|_| Waiter::new(1).unwrap().waker()).collect();
        let mut ends = Exchange::mesh(100, &wakers);
        let from = Nid::new_ip(Net::XDP, [10, 0, 0, 1].into()).unwrap();
        for round in 0..3_u8 {
            for number in 0..BUFFERS_MAX {
                assert!(ends[0].hand_over(2, NiId(1), from, &[round, number as u8]), "{number}");
            }
            assert!(!ends[0].hand_over(2, NiId(1), from, &[9; 100]), "one more than there are buffers");
            assert!(ends[1].hand_over(2, NiId(0), from, &[]), "another sender has its own");
            assert!(!ends[1].has_parcels() && ends[2].has_parcels());
            for number in 0..BUFFERS_MAX {
                let parcel = ends[2].receive().unwrap();
                assert_eq!((parcel.ni, parcel.from, parcel.sender), (NiId(1), from, 0));
                assert_eq!(parcel.bytes(), [round, number as u8]);
                ends[2].give_back(parcel);
            }
            let last = ends[2].receive().unwrap();
            assert!(last.bytes().is_empty());
            ends[2].give_back(last);
            assert!(ends[2].receive().is_none());
        }
    }
}
