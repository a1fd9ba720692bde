//! Packets and memory on their way between the shards of a node.
//!
//! Sockets of one receive queue share its fill and completion ring, which one shard owns; frames that another
//! shard received from that queue travel home here, and so do packets that reached the wrong shard: those of
//! rings as they are, those of UDP sockets as copies in buffers, which travel home as well. There is always a
//! place for every frame and buffer of the addressee's on its way home; packets that are handed over have a
//! bounded number of further places.
//!
//! A frame that a ring brought to the wrong shard is handed over whole, as a token: no byte is copied twice,
//! and the window of the right shard sees the frame.
//!
//! A shard that polls looks at one flag, which is set after each hand-off: with many siblings its mailboxes
//! are as many lines of the cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lnet_core::lnd::NiId;
use lnet_io::mailbox::{Mailbox, Sender, Unsent};
use lnet_io::memory::Buffer;
use lnet_io::reactor::Waker;
use lnet_io::xsk::{FRAGMENTS_MAX, Frame, RingDescriptor};
use lnet_wire::Nid;

/// What travels between shards.
enum HandOff {
    /// A frame that its home shard may use again.
    Frame(Frame),
    /// A buffer that its home shard may use again.
    Buffer(Box<DatagramBuffer>),
    /// (A part of) a packet that belongs to the addressee.
    Part(RingDescriptor),
    /// A datagram that belongs to the addressee.
    Datagram(Box<DatagramBuffer>),
}

/// What has arrived from another shard.
pub(super) enum Arrival {
    /// A frame that this shard, its home, may use again.
    Frame(Frame),
    /// A buffer that this shard, its home, may use again.
    Buffer(Box<DatagramBuffer>),
    /// A packet of this shard's, which another one received.
    Packet,
}

/// A copy of a datagram that a socket received.
pub(super) struct DatagramBuffer {
    /// The NI that it came to.
    pub(super) ni: NiId,
    /// Where it came from.
    pub(super) from: Nid,
    /// The shard that the buffer returns to.
    pub(super) home: u8,
    length: usize,
    bytes: Buffer,
}

impl DatagramBuffer {
    /// Buffers for datagrams of at most `datagram_max_bytes`, one or more. All lie in one mapping: a page of
    /// it takes memory once a datagram was there. The allocator would touch nearly every page, of many
    /// allocations always, of a single one where it takes that from memory that was freed before.
    ///
    /// # Panics
    /// Where the kernel maps no memory for them.
    pub(super) fn several(
        home: u8,
        count: usize,
        datagram_max_bytes: u32,
    ) -> impl Iterator<Item = Box<Self>> {
        let all = Buffer::mapped(count, datagram_max_bytes as usize).expect("memory for datagrams");
        all.into_iter()
            .map(move |bytes| Box::new(Self { ni: NiId(0), from: Nid::ANY, home, length: 0, bytes }))
    }

    /// Copies a datagram, which fits.
    pub(super) fn fill(&mut self, ni: NiId, from: Nid, datagram: &[u8]) {
        (self.ni, self.from, self.length) = (ni, from, datagram.len());
        self.bytes[..datagram.len()].copy_from_slice(datagram);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A packet that arrived: descriptors of a ring, or a copy of a datagram.
#[derive(Default)]
pub(super) struct Packet {
    pub(super) parts: Vec<RingDescriptor>,
    pub(super) datagram: Option<Box<DatagramBuffer>>,
}

impl Packet {
    /// An empty packet, with room for that of a ring.
    pub(super) fn with_capacity() -> Self {
        Self { parts: Vec::with_capacity(FRAGMENTS_MAX as usize), datagram: None }
    }

    /// Whether there is none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.datagram.is_none()
    }
}

/// Descriptors that one shard has handed over to another and that this one has not taken, at most.
const HANDED_OVER_MAX: usize = 1024;
/// Buffers of a shard for datagrams that are handed over, at most, and bytes of them.
pub(super) const BUFFERS_MAX: usize = 1024;
const BUFFERS_BYTES: usize = 8 << 20;
/// Buffers of a shard at least for each sibling.
const BUFFERS_MIN: usize = 4;

/// Sizes of an exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Frames whose home one shard is.
    pub(super) frames_per_shard: usize,
    /// Frames that wait for a sleeping shard before it is woken for them: they are wanted only when its
    /// fill rings run low.
    pub(super) home_wake_count: usize,
}

/// The way home for frames of queues that were closed, which no shard has: from the thread that has taken
/// them back from the kernel.
pub(crate) struct ReturnRings {
    by_shard: Vec<Addressee>,
    frames_per_shard: u32,
}

impl ReturnRings {
    /// Sends frames home.
    pub(crate) fn send(&mut self, frames: Vec<Frame>) {
        for frame in frames {
            let home = frame.chunk_index() / self.frames_per_shard;
            self.by_shard[home as usize].push(HandOff::Frame(frame));
        }
        for shard in &self.by_shard {
            shard.mailbox.wake();
        }
    }
}

impl std::fmt::Debug for ReturnRings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReturnRings").field("shards", &self.by_shard.len()).finish_non_exhaustive()
    }
}

/// Hand-offs that another shard, or the thread that closes queues, sends here.
struct Sent {
    hand_offs: Mailbox<HandOff>,
    /// The packet that this sender is about to hand over: its other descriptors may still be on the way.
    packet: Vec<RingDescriptor>,
}

/// A shard that is sent hand-offs.
struct Addressee {
    mailbox: Sender<HandOff>,
    /// Whether something may have come for it since it has looked.
    has_news: Arc<AtomicBool>,
}

impl Addressee {
    fn push(&self, hand_off: HandOff) {
        // A hand-off to a shard that has ended ends with it.
        if let Err(Unsent::Full(_)) = self.mailbox.send(hand_off) {
            unreachable!(
                "a place is free for every frame and buffer of the addressee's, and packets are counted first"
            );
        }
        // Swapped, so that the flag of one sender never hides that of another.
        self.has_news.swap(true, Ordering::AcqRel);
    }
}

/// One shard's end of the exchange.
pub(super) struct Exchange {
    /// Senders to the shards, by shard; `None` at this shard's own place.
    to: Vec<Option<Addressee>>,
    from: Vec<Sent>,
    /// Whether something may have come since it has looked.
    has_news: Arc<AtomicBool>,
    sizes: Sizes,
    /// Places of each way that are free for frames and buffers that go home.
    home_slots: usize,
}

impl Exchange {
    /// The ends of all shards, and of the thread that closes queues; `wakers` are the shards' own.
    pub(super) fn mesh(sizes: Sizes, wakers: &[Waker]) -> (Vec<Self>, ReturnRings) {
        let shards = wakers.len();
        let home_slots = sizes.frames_per_shard + BUFFERS_MAX;
        let end = |_| Self { to: Vec::new(), from: Vec::new(), has_news: Arc::default(), sizes, home_slots };
        let mut ends: Vec<Self> = (0..shards).map(end).collect();
        for sender in 0..shards {
            for (receiver, waker) in wakers.iter().enumerate() {
                if sender == receiver {
                    ends[sender].to.push(None);
                    continue;
                }
                let (mailbox, hand_offs) = Mailbox::new(home_slots + HANDED_OVER_MAX, waker);
                let has_news = Arc::clone(&ends[receiver].has_news);
                ends[sender].to.push(Some(Addressee { mailbox, has_news }));
                let packet = Vec::with_capacity(FRAGMENTS_MAX as usize);
                ends[receiver].from.push(Sent { hand_offs, packet });
            }
        }
        let return_ring = |(end, waker): (&mut Self, &Waker)| {
            let (mailbox, hand_offs) = Mailbox::new(sizes.frames_per_shard, waker);
            end.from.push(Sent { hand_offs, packet: Vec::new() });
            Addressee { mailbox, has_news: Arc::clone(&end.has_news) }
        };
        let by_shard = ends.iter_mut().zip(wakers).map(return_ring).collect();
        (ends, ReturnRings { by_shard, frames_per_shard: sizes.frames_per_shard as u32 })
    }

    /// Sends a frame home to `shard`.
    #[inline]
    pub(super) fn send_home(&mut self, shard: usize, frame: Frame) {
        let wake_count = self.sizes.home_wake_count;
        let addressee = self.addressee(shard);
        addressee.push(HandOff::Frame(frame));
        if addressee.mailbox.count() >= wake_count {
            addressee.mailbox.wake();
        }
    }

    /// Sends a buffer home.
    pub(super) fn return_buffer(&mut self, buffer: Box<DatagramBuffer>) {
        self.addressee(buffer.home.into()).push(HandOff::Buffer(buffer));
    }

    /// Hands a packet over to `shard`, whose it is, and empties `packet`; leaves it as it is and returns
    /// false when too many wait there already.
    pub(super) fn hand_over(&mut self, shard: usize, packet: &mut Packet) -> bool {
        let (home_slots, share) = (self.home_slots, BUFFERS_MAX / (self.to.len() - 1).max(1));
        let addressee = self.addressee(shard);
        let count = packet.parts.len() + usize::from(packet.datagram.is_some());
        // One sibling that takes nothing must not have all buffers.
        let has_share = packet.datagram.is_none() || addressee.mailbox.count() < share;
        if packet.is_empty() || !has_share || addressee.mailbox.room() < home_slots + count {
            return false;
        }
        for descriptor in packet.parts.drain(..) {
            addressee.push(HandOff::Part(descriptor));
        }
        if let Some(datagram) = packet.datagram.take() {
            addressee.push(HandOff::Datagram(datagram));
        }
        addressee.mailbox.wake();
        true
    }

    /// Buffers that a shard needs for datagrams of this size that it hands over.
    pub(super) fn buffer_count(&self, datagram_max_bytes: u32) -> usize {
        let siblings = self.to.len() - 1;
        let count = (BUFFERS_BYTES / datagram_max_bytes as usize).max(BUFFERS_MIN * siblings);
        if siblings == 0 { 0 } else { count.min(BUFFERS_MAX) }
    }

    /// Wakes `shard`, another one.
    pub(super) fn wake(&self, shard: usize) {
        if let Some(addressee) = &self.to[shard] {
            addressee.mailbox.wake();
        }
    }

    /// What has arrived next; the descriptors of a packet are appended to `packet`, which is never given a
    /// part of one.
    #[inline]
    pub(super) fn receive(&mut self, packet: &mut Packet) -> Option<Arrival> {
        if !self.has_arrivals() {
            return None;
        }
        self.take(packet).or_else(|| {
            // Siblings that send from now on set it again.
            self.has_news.swap(false, Ordering::AcqRel);
            let arrival = self.take(packet);
            if arrival.is_some() {
                self.has_news.store(true, Ordering::Relaxed);
            }
            arrival
        })
    }

    fn take(&mut self, packet: &mut Packet) -> Option<Arrival> {
        self.from.iter_mut().find_map(|sender| {
            loop {
                match sender.hand_offs.take()? {
                    HandOff::Frame(frame) => return Some(Arrival::Frame(frame)),
                    HandOff::Buffer(buffer) => return Some(Arrival::Buffer(buffer)),
                    HandOff::Datagram(datagram) => {
                        packet.datagram = Some(datagram);
                        return Some(Arrival::Packet);
                    }
                    HandOff::Part(descriptor) => {
                        let complete = !descriptor.more;
                        sender.packet.push(descriptor);
                        if complete {
                            packet.parts.append(&mut sender.packet);
                            return Some(Arrival::Packet);
                        }
                    }
                }
            }
        })
    }

    /// What siblings have not taken yet of what this shard has sent them: the most that one of them lets
    /// wait.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.to.iter().flatten().map(|to| to.mailbox.count()).max().unwrap_or(0)
    }

    /// Whether something may wait for this shard.
    #[inline]
    pub(super) fn has_arrivals(&self) -> bool {
        self.has_news.load(Ordering::Acquire)
    }

    fn addressee(&self, shard: usize) -> &Addressee {
        self.to[shard].as_ref().expect("a shard hands nothing over to itself")
    }
}
