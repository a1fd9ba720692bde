//! The sending half of a connection. It sends in this order: the greeting, acknowledgements, a keepalive,
//! messages.

use lnet_core::collections::{Link, List, NONE, Slab, linked};
use lnet_core::lnd::{Transmit, TxId};
use lnet_core::time::Instant;
use lnet_wire::socklnd::Version;

use super::{HEAD_BYTES_MAX, message_bytes};

/// Acknowledgements that wait on a connection; with more it is not read from.
const ACKS_MAX: usize = 8;

/// Marks messages that are queued, or being sent.
pub(crate) struct ToSend;

linked!(Item, ToSend, link);

/// A message on its way out.
pub(crate) struct Item {
    pub(crate) transmit: Transmit,
    /// When it ends, should it wait for a connection until then.
    pub(crate) deadline: Instant,
    /// The count of its connection's bytes with its last one.
    end_bytes: u64,
    link: Link,
}

impl Item {
    pub(crate) const fn new(transmit: Transmit, deadline: Instant) -> Self {
        Self { transmit, deadline, end_bytes: 0, link: Link::UNLINKED }
    }
}

/// Acknowledgements to be sent.
#[derive(Clone, Copy, Default, Debug)]
struct Acks {
    cookies: [u64; ACKS_MAX],
    count: u8,
}

impl Acks {
    fn push(&mut self, cookie: u64) {
        self.cookies[usize::from(self.count)] = cookie;
        self.count += 1;
    }

    fn pop(&mut self) -> Option<u64> {
        self.count = self.count.checked_sub(1)?;
        let first = self.cookies[0];
        self.cookies.rotate_left(1);
        Some(first)
    }
}

/// The sending half of a connection.
pub(crate) struct Outgoing {
    /// Bytes that are to be said first.
    greeting: [u8; HEAD_BYTES_MAX],
    greeting_bytes: u8,
    acks: Acks,
    wants_keepalive: bool,
    /// Messages that wait to be polled, and those that were.
    queue: List<ToSend>,
    sending: List<ToSend>,
    /// Bytes in `queue`.
    queued_bytes: u64,
    /// When a message was last given to it, as a number.
    turn: u64,
    /// When a message was last sent whole.
    message_sent_at: Option<Instant>,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Self {
            greeting: [0; HEAD_BYTES_MAX],
            greeting_bytes: 0,
            acks: Acks::default(),
            wants_keepalive: false,
            queue: List::new(),
            sending: List::new(),
            queued_bytes: 0,
            turn: 0,
            message_sent_at: None,
        }
    }

    /// Has bytes be sent in front of all others.
    pub(crate) fn greet(&mut self, bytes: &[u8]) {
        let begin = usize::from(self.greeting_bytes);
        self.greeting[begin..begin + bytes.len()].copy_from_slice(bytes);
        self.greeting_bytes += bytes.len() as u8;
    }

    pub(super) const fn has_greeting(&self) -> bool {
        self.greeting_bytes != 0
    }

    /// Takes the bytes that are to be said first, and how many there are.
    pub(crate) fn pop_greeting(&mut self) -> Option<([u8; HEAD_BYTES_MAX], u8)> {
        let length = core::mem::take(&mut self.greeting_bytes);
        (length != 0).then_some((self.greeting, length))
    }

    /// Whether something is to be sent behind the greeting.
    pub(super) const fn has_more(&self) -> bool {
        self.acks.count != 0 || self.wants_keepalive || !self.queue.is_empty()
    }

    /// Whether no more acknowledgements have room.
    pub(crate) const fn is_full_of_acks(&self) -> bool {
        self.acks.count as usize == ACKS_MAX
    }

    pub(crate) fn push_ack(&mut self, cookie: u64) {
        self.acks.push(cookie);
    }

    pub(crate) fn pop_ack(&mut self) -> Option<u64> {
        self.acks.pop()
    }

    pub(crate) const fn push_keepalive(&mut self) {
        self.wants_keepalive = true;
    }

    /// Whether a keepalive is to be sent.
    pub(crate) const fn pop_keepalive(&mut self) -> bool {
        core::mem::replace(&mut self.wants_keepalive, false)
    }

    /// Has a message wait behind those that do.
    pub(super) fn push(&mut self, items: &mut Slab<Item>, item: u32, version: Version, turn: u64) {
        self.queued_bytes += message_bytes(version, items[item].transmit.header.payload_length);
        self.queue.push_back(items, item);
        self.turn = turn;
    }

    /// The next message to be sent.
    pub(super) fn pop(&mut self, items: &mut Slab<Item>, version: Version) -> Option<u32> {
        let item = self.queue.pop_front(items)?;
        self.queued_bytes -= message_bytes(version, items[item].transmit.header.payload_length);
        Some(item)
    }

    /// The last message that waits, for another connection.
    pub(crate) fn pop_last(&mut self, items: &mut Slab<Item>) -> Option<u32> {
        let last = Some(self.queue.last()).filter(|last| *last != NONE)?;
        self.queue.remove(items, last);
        Some(last)
    }

    /// Bytes of messages that wait, and the turn of the last.
    pub(super) const fn waiting(&self) -> (u64, u64) {
        (self.queued_bytes, self.turn)
    }

    /// A message is being sent, which ends with this count of bytes.
    pub(super) fn begin(&mut self, items: &mut Slab<Item>, item: u32, end_bytes: u64) {
        items[item].end_bytes = end_bytes;
        self.sending.push_back(items, item);
    }

    /// The next message that ends with so many bytes sent.
    pub(crate) fn pop_sent(&mut self, items: &mut Slab<Item>, sent_bytes: u64) -> Option<TxId> {
        let first = Some(self.sending.first()).filter(|first| *first != NONE)?;
        if items[first].end_bytes > sent_bytes {
            return None;
        }
        self.sending.remove(items, first);
        Some(items.remove(first).transmit.tx)
    }

    /// Notes that messages were sent whole.
    pub(crate) const fn note_messages_sent(&mut self, now: Instant) {
        self.message_sent_at = Some(now);
    }

    /// When a message was last sent whole.
    pub(crate) const fn message_sent_at(&self) -> Option<Instant> {
        self.message_sent_at
    }

    pub(super) const fn is_sending_messages(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Messages that are being sent.
    pub(crate) fn sending_count(&self, items: &Slab<Item>) -> u32 {
        self.sending.iter(items).count() as u32
    }

    /// Has what is being sent wait again.
    #[cfg(feature = "sabotage")]
    pub(crate) fn send_again(&mut self, items: &mut Slab<Item>) {
        while let Some(item) = self.sending.pop_front(items) {
            self.queue.push_front(items, item);
        }
    }
}
