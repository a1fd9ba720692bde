//! Hand-offs between the shards of a node, from thread to thread.
//!
//! Between each two shards there is a mailbox for either direction, with one sender.
//! A span that is lent travels as a [`WriteLease`] beside its message; the receiver adopts it before
//! its shard has the message, and releases it before the message says that it is returned
//! ([`lnet_core::shard::mesh`]).
//!
//! Invariants: the messages of one shard to another arrive once and in their order. A mailbox that is full
//! only delays: what does not fit stays with its sender. No thread is kept from sleeping by a message that
//! was read, and none sleeps while one waits: the sender wakes the addressee, which looks once more after it
//! has announced that it is about to sleep ([`lnet_io::mailbox`]). It looks at one flag, which is set after
//! each message: with many siblings its mailboxes are as many lines of the cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lnet_io::mailbox::{Mailbox, Sender, Unsent};
use lnet_io::memory::Memory;
use lnet_io::reactor::Waker;
use lnet_io::region::WriteLease;

use lnet_core::handle::ShardId;
use lnet_core::shard::Shard;
use lnet_core::shard::mesh::MeshMessage;
use lnet_core::time::Instant;

/// Places of a mailbox.
const MAILBOX_SLOTS: usize = 64;
/// Messages that one turn takes from one sibling.
const MESSAGE_BUDGET: usize = 64;

/// A message, and the lease that belongs to a span that it lends.
struct HandOff {
    message: MeshMessage,
    lease: Option<WriteLease>,
}

struct Sibling {
    shard: ShardId,
    to: Sender<HandOff>,
    /// Whether siblings have sent it something, since it has looked.
    has_news: Arc<AtomicBool>,
    from: Mailbox<HandOff>,
}

/// One shard's end of the mesh.
pub(crate) struct MeshEnd {
    siblings: Vec<Sibling>,
    /// Whether they have sent something, since it has looked.
    has_news: Arc<AtomicBool>,
    /// Whether the last turn left something unsent because a mailbox was full.
    blocked: bool,
}

impl MeshEnd {
    /// The ends of all shards of a node; `wakers` are the shards' own.
    pub(crate) fn mesh(wakers: &[Waker]) -> Vec<Self> {
        Self::with_slots(wakers, MAILBOX_SLOTS)
    }

    fn with_slots(wakers: &[Waker], slots: usize) -> Vec<Self> {
        let end = |_| Self { siblings: Vec::new(), has_news: Arc::default(), blocked: false };
        let mut ends: Vec<Self> = wakers.iter().map(end).collect();
        for high in 1..wakers.len() {
            for low in 0..high {
                let (up, from_low) = Mailbox::new(slots, &wakers[high]);
                let (down, from_high) = Mailbox::new(slots, &wakers[low]);
                let [low_news, high_news] = [low, high].map(|shard| Arc::clone(&ends[shard].has_news));
                let sibling = |shard: usize, to, has_news, from| {
                    let shard = ShardId(shard as u8);
                    Sibling { shard, to, has_news, from }
                };
                ends[low].siblings.push(sibling(high, up, high_news, from_high));
                ends[high].siblings.push(sibling(low, down, low_news, from_low));
            }
        }
        ends
    }

    /// Hands the shard what the siblings have sent; whether there was anything.
    #[inline]
    pub(crate) fn receive(&mut self, now: Instant, shard: &mut Shard, memory: &mut Memory) -> bool {
        self.has_arrivals() && self.receive_all(now, shard, memory)
    }

    fn receive_all(&mut self, now: Instant, shard: &mut Shard, memory: &mut Memory) -> bool {
        // Siblings that send from now on set it again.
        self.has_news.swap(false, Ordering::AcqRel);
        let (mut received, mut is_left) = (false, false);
        for sibling in &mut self.siblings {
            for _ in 0..MESSAGE_BUDGET {
                let Some(HandOff { message, lease }) = sibling.from.take() else { break };
                if let (MeshMessage::Lend { span, .. }, Some(lease)) = (&message, lease) {
                    memory.adopt(lease, span);
                }
                shard.handle_mesh(now, sibling.shard, message);
                received = true;
            }
            is_left |= !sibling.from.is_empty();
        }
        if is_left {
            self.has_news.store(true, Ordering::Relaxed);
        }
        received
    }

    /// Sends what the shard has for its siblings, as far as there is room; whether there was anything.
    #[inline]
    pub(crate) fn send(&mut self, shard: &mut Shard, memory: &mut Memory) -> bool {
        let was_blocked = std::mem::take(&mut self.blocked);
        (was_blocked || shard.has_mesh()) && self.send_all(shard, memory)
    }

    #[cold]
    fn send_all(&mut self, shard: &mut Shard, memory: &mut Memory) -> bool {
        let mut sent_any = false;
        for sibling in &mut self.siblings {
            let mut sent = false;
            while sibling.to.room() != 0 {
                let Some(message) = shard.poll_mesh_to(sibling.shard) else { break };
                if let Err(Unsent::Full(_)) = sibling.to.send(hand_off(message, memory)) {
                    unreachable!("a mailbox that had room for its only sender is full")
                }
                sent = true;
            }
            if sent {
                // Swapped, so that the flag of one sender never hides that of another.
                sibling.has_news.swap(true, Ordering::AcqRel);
                sibling.to.wake();
            }
            sent_any |= sent;
        }
        self.blocked = shard.has_mesh();
        sent_any
    }

    /// Whether a sibling has sent something.
    #[inline]
    pub(crate) fn has_arrivals(&self) -> bool {
        self.has_news.load(Ordering::Acquire)
    }

    /// Whether something waits for room in a ring: no wake-up tells of that.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }
}

/// A message with what belongs to it: a lease that it gives, or none and that which it brings back released.
///
/// # Panics
/// If a span that is to be lent is lent already: a shard gives bytes to one message only, which ends when its
/// leases are back.
fn hand_off(message: MeshMessage, memory: &mut Memory) -> HandOff {
    let lease = match &message {
        MeshMessage::Lend { span, .. } if span.length_bytes != 0 => match memory.lend_write(span) {
            Ok(lease) => Some(lease),
            Err(error) => panic!("a span cannot be lent: {error}"),
        },
        MeshMessage::Returned { span, .. } => {
            memory.release(span);
            None
        }
        _ => None,
    };
    HandOff { message, lease }
}
