//! One connection: where its handshake and its stream stand.

use core::net::{IpAddr, SocketAddr};

use lnet_core::collections::{Link, List, NONE, linked};
use lnet_core::lnd::{NiId, Span, Transmit};
use lnet_core::time::Instant;
use lnet_wire::Header;
use lnet_wire::header::LARGE_HEADER_BYTES;
use lnet_wire::socklnd::{
    ByteOrder, CONNECTION_REQUEST_BYTES_MAX, Checksum, ConnectionType, HELLO_BYTES_MAX, PREFIX_BYTES, Version,
};

/// Bytes of the longest head of a piece.
pub(super) const HEAD_BYTES_MAX: usize = PREFIX_BYTES + LARGE_HEADER_BYTES;
const _: () = assert!(CONNECTION_REQUEST_BYTES_MAX + HELLO_BYTES_MAX <= HEAD_BYTES_MAX);
/// Bytes of the longest thing that is collected before it is looked at: a HELLO of protocol 1 with 16
/// addresses.
const INPUT_BYTES_MAX: usize = 136;
const _: () = assert!(HEAD_BYTES_MAX <= INPUT_BYTES_MAX);
/// Acknowledgements that wait on a connection; with more it is not read from.
const ACKS_MAX: usize = 8;

/// Marks connections that have pieces for the driver.
pub(super) struct Ready;
/// Marks connections whose bytes need wait no longer.
pub(super) struct Resumed;
/// Marks the connections of a peer.
pub(super) struct OfPeer;
/// Marks messages that are queued, or being sent.
pub(super) struct ToSend;

linked!(Connection, Ready, ready);
linked!(Connection, Resumed, resumed);
linked!(Connection, OfPeer, of_peer);
linked!(Item, ToSend, link);

/// The ends of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The peer's.
    pub remote: SocketAddr,
    /// This node's.
    pub local: IpAddr,
}

/// A message on its way out.
pub(super) struct Item {
    pub(super) transmit: Transmit,
    /// When it ends, should it wait for a connection until then.
    pub(super) deadline: Instant,
    /// The count of its connection's bytes with its last one.
    pub(super) end_bytes: u64,
    pub(super) link: Link,
}

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Accepted: the connection request is awaited.
    Accepted,
    /// The request has come, and the HELLO is awaited.
    Requested,
    /// The stream is being connected.
    Dialling,
    /// The stream is connected, our HELLO is on its way, and the answer is awaited.
    Greeting,
    /// Both HELLOs have been said, or ours will be the next bytes.
    Established,
    /// The connection is closed once what is to be sent on it has been.
    Closing,
    /// The connection has ended, and its driver closes it.
    Closed,
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reading {
    /// A handshake, or the head of a message.
    Head,
    /// The head of a short message was read, and its payload is to be there before it is matched.
    Short(Header),
    /// The shard has not decided about the message.
    Delayed { length_bytes: u32 },
    /// Payload, then some that is passed over.
    Payload { span: Span, skip_bytes: u32 },
    /// Passed over: of a message that was dropped, or is larger than its place.
    Skip { left_bytes: u32 },
}

/// Why a connection counts as silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Silence {
    /// The stream takes no bytes.
    TakesNothing,
    /// The stream takes bytes, but the peer's system acknowledges none.
    AcknowledgesNothing,
}

/// Acknowledgements to be sent.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Acks {
    cookies: [u64; ACKS_MAX],
    count: u8,
}

impl Acks {
    pub(super) const fn is_full(&self) -> bool {
        self.count as usize == ACKS_MAX
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn push(&mut self, cookie: u64) {
        self.cookies[usize::from(self.count)] = cookie;
        self.count += 1;
    }

    pub(super) fn pop(&mut self) -> Option<u64> {
        self.count = self.count.checked_sub(1)?;
        let first = self.cookies[0];
        self.cookies.rotate_left(1);
        Some(first)
    }
}

/// A connection.
pub(super) struct Connection {
    pub(super) phase: Phase,
    /// The NI; known from the connection request on.
    pub(super) ni: Option<NiId>,
    pub(super) ends: Ends,
    /// The peer's slot, once it is known who that is.
    pub(super) peer: u32,
    /// Our type of it; what it is to become, while it is dialled.
    pub(super) kind: ConnectionType,
    pub(super) version: Version,
    pub(super) order: ByteOrder,
    /// What is collected.
    pub(super) input: [u8; INPUT_BYTES_MAX],
    pub(super) input_bytes: u8,
    pub(super) reading: Reading,
    /// The cookie of the message under way; 0 if none is to be acknowledged.
    pub(super) cookie: u64,
    /// What the checksum of the message under way should be, and is so far.
    pub(super) checksum: Option<(u32, Checksum)>,
    /// What is to be said first.
    pub(super) greeting: [u8; HEAD_BYTES_MAX],
    pub(super) greeting_bytes: u8,
    pub(super) acks: Acks,
    pub(super) wants_keepalive: bool,
    /// Messages that wait to be polled, and those that were.
    pub(super) queue: List<ToSend>,
    pub(super) sending: List<ToSend>,
    /// Bytes in `queue`.
    pub(super) queued_bytes: u64,
    /// Bytes that were polled, ever, those of them that have been sent, and those that are known to have
    /// arrived.
    pub(super) polled_bytes: u64,
    pub(super) sent_bytes: u64,
    pub(super) acknowledged_bytes: u64,
    /// When more was last known to have arrived, or the first byte was polled that was not.
    pub(super) acknowledged_at: Instant,
    /// When a message was last given to it, as a number.
    pub(super) turn: u64,
    /// The end of its handshake.
    pub(super) handshake_deadline: Instant,
    /// When something last arrived, or was sent.
    pub(super) received_at: Instant,
    pub(super) sent_at: Instant,
    /// Why its path was reported as silent, if it was.
    pub(super) silence: Option<Silence>,
    ready: Link,
    resumed: Link,
    of_peer: Link,
}

impl Connection {
    pub(super) fn new(now: Instant, phase: Phase, ends: Ends, handshake_deadline: Instant) -> Self {
        Self {
            phase,
            ni: None,
            ends,
            peer: NONE,
            kind: ConnectionType::Any,
            version: if ends.remote.is_ipv4() { Version::V3 } else { Version::V4 },
            order: ByteOrder::Little,
            input: [0; INPUT_BYTES_MAX],
            input_bytes: 0,
            reading: Reading::Head,
            cookie: 0,
            checksum: None,
            greeting: [0; HEAD_BYTES_MAX],
            greeting_bytes: 0,
            acks: Acks::default(),
            wants_keepalive: false,
            queue: List::new(),
            sending: List::new(),
            queued_bytes: 0,
            polled_bytes: 0,
            sent_bytes: 0,
            acknowledged_bytes: 0,
            acknowledged_at: now,
            turn: 0,
            handshake_deadline,
            received_at: now,
            sent_at: now,
            silence: None,
            ready: Link::UNLINKED,
            resumed: Link::UNLINKED,
            of_peer: Link::UNLINKED,
        }
    }

    /// Collects bytes until there are `wanted`; how many of `bytes` that took.
    pub(super) fn collect(&mut self, bytes: &[u8], wanted: usize) -> usize {
        let have = usize::from(self.input_bytes);
        let count = wanted.saturating_sub(have).min(bytes.len());
        self.input[have..have + count].copy_from_slice(&bytes[..count]);
        self.input_bytes += count as u8;
        count
    }

    pub(super) fn collected(&self) -> &[u8] {
        &self.input[..usize::from(self.input_bytes)]
    }

    /// Whether the shard knows of a message that arrives on it.
    pub(super) const fn has_arriving(&self) -> bool {
        matches!(self.reading, Reading::Delayed { .. } | Reading::Payload { .. })
    }

    /// Whether it has bytes for the driver.
    pub(super) fn has_pieces(&self) -> bool {
        let can_send = matches!(self.phase, Phase::Established);
        self.greeting_bytes != 0 && self.phase != Phase::Closed
            || can_send && (!self.acks.is_empty() || self.wants_keepalive || !self.queue.is_empty())
    }

    /// Whether all that was polled has been sent, and nothing more is to be.
    pub(super) fn is_drained(&self) -> bool {
        self.greeting_bytes == 0 && self.sent_bytes == self.polled_bytes
    }

    /// Whether LNet messages of so many bytes may leave by it, and whether that is preferred (LNet
    /// `socklnd_proto.c: ksocknal_match_tx_v3`, and `ksocknal_match_tx` of protocols 1 and 2).
    pub(super) fn carries(&self, message_bytes: u32, min_bulk_bytes: u32) -> Option<bool> {
        let is_bulk = message_bytes >= min_bulk_bytes;
        let is_new = self.version >= Version::V3;
        match self.kind {
            ConnectionType::Any => (!is_new).then_some(true),
            ConnectionType::Control => Some(!is_bulk),
            ConnectionType::BulkOut => Some(is_bulk),
            ConnectionType::BulkIn => (!is_new).then_some(false),
        }
    }
}
