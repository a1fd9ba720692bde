//! What the shards of a node say to each other, from thread to thread.
//!
//! Between each two shards there is a bounded ring for either direction, with one producer and one consumer.
//! A span that is lent travels as a [`WriteLease`] beside its message; who gets it adopts it before the
//! shard hears of it, and releases it before the message says that it is returned
//! ([`lnet_core::shard::mesh`]).
//!
//! Invariants: the messages of one shard to another arrive once and in their order. A ring that is full only
//! delays: what does not fit stays with the shard that has to say it. No thread is kept from sleeping
//! by a message that was read, and none sleeps while one waits: the sender wakes the addressee, which
//! looks at its rings once more after it has said that it is about to sleep ([`crate::uring::Waker`]).

use rtrb::{Consumer, Producer, RingBuffer};

use lnet_core::handle::ShardId;
use lnet_core::lnd::Span;
use lnet_core::shard::Shard;
use lnet_core::shard::mesh::MeshMessage;
use lnet_core::time::Instant;

use crate::memory::Memory;
use crate::region::WriteLease;
use crate::uring::Waker;

/// Places of a ring.
const RING_SLOTS: usize = 64;
/// Messages that one turn takes from one sibling.
const MESSAGE_BUDGET: usize = 64;

/// A message, and the lease that belongs to a span that it lends.
struct Parcel {
    message: MeshMessage,
    lease: Option<WriteLease>,
}

struct Sibling {
    shard: ShardId,
    to: Producer<Parcel>,
    from: Consumer<Parcel>,
    waker: Waker,
}

/// One shard's end of the mesh.
pub(crate) struct MeshEnd {
    siblings: Vec<Sibling>,
    /// Whether the last turn left something unsaid because a ring was full.
    blocked: bool,
}

impl MeshEnd {
    /// The ends of all shards of a node; `wakers` are the shards' own.
    pub(crate) fn mesh(wakers: &[Waker]) -> Vec<Self> {
        Self::with_slots(wakers, RING_SLOTS)
    }

    fn with_slots(wakers: &[Waker], slots: usize) -> Vec<Self> {
        let mut ends: Vec<Self> =
            wakers.iter().map(|_| Self { siblings: Vec::new(), blocked: false }).collect();
        for high in 1..wakers.len() {
            for low in 0..high {
                let (up, from_low) = RingBuffer::new(slots);
                let (down, from_high) = RingBuffer::new(slots);
                let sibling = |shard: usize, to, from| Sibling {
                    shard: ShardId(shard as u8),
                    to,
                    from,
                    waker: wakers[shard].clone(),
                };
                ends[low].siblings.push(sibling(high, up, from_high));
                ends[high].siblings.push(sibling(low, down, from_low));
            }
        }
        ends
    }

    /// Hears what the siblings have said; whether they had said anything.
    #[inline]
    pub(crate) fn hear(&mut self, now: Instant, shard: &mut Shard, memory: &mut Memory) -> bool {
        let mut heard = false;
        for sibling in &mut self.siblings {
            for _ in 0..MESSAGE_BUDGET {
                let Ok(Parcel { message, lease }) = sibling.from.pop() else { break };
                if let (MeshMessage::Lend { span, .. }, Some(lease)) = (&message, lease) {
                    memory.adopt(lease, span);
                }
                shard.handle_mesh(now, sibling.shard, message);
                heard = true;
            }
        }
        heard
    }

    /// Says what the shard has to say, as far as there is room; whether it has said anything.
    #[inline]
    pub(crate) fn say(&mut self, shard: &mut Shard, memory: &mut Memory) -> bool {
        self.blocked = false;
        shard.has_mesh() && self.say_all(shard, memory)
    }

    #[cold]
    fn say_all(&mut self, shard: &mut Shard, memory: &mut Memory) -> bool {
        let mut said_any = false;
        for sibling in &mut self.siblings {
            let mut said = false;
            while !sibling.to.is_full() {
                let Some(message) = shard.poll_mesh_to(sibling.shard) else { break };
                if sibling.to.push(parcel(message, memory)).is_err() {
                    unreachable!("a ring that was not full is")
                }
                said = true;
            }
            if said {
                sibling.waker.wake();
            }
            said_any |= said;
        }
        self.blocked = shard.has_mesh();
        said_any
    }

    /// Whether a sibling has said something.
    pub(crate) fn has_parcels(&self) -> bool {
        self.siblings.iter().any(|sibling| !sibling.from.is_empty())
    }

    /// Whether something waits for room in a ring: no wake-up tells of that.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }
}

/// A message with what belongs to it: a lease that it gives, or none and that which it brings back released.
fn parcel(message: MeshMessage, memory: &mut Memory) -> Parcel {
    let lease = match &message {
        MeshMessage::Lend { span, .. } => lend(span, memory),
        MeshMessage::Returned { span, .. } => {
            memory.release(span);
            None
        }
        _ => None,
    };
    Parcel { message, lease }
}

fn lend(span: &Span, memory: &mut Memory) -> Option<WriteLease> {
    if span.length_bytes == 0 {
        return None;
    }
    match memory.lend_write(span) {
        Ok(lease) => Some(lease),
        // The shard gives the bytes of a span to one sibling only, and reading ones that may still be written
        // is refused.
        Err(error) => panic!("a span cannot be lent: {error}"),
    }
}
