//! One connection: where its handshake and its stream stand.
//!
//! [`Incoming`] has what arrives, [`Outgoing`] what is to leave, [`StreamProgress`] how far that has come.

mod incoming;
mod outgoing;
mod progress;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use lnet_core::collections::{Link, List, NONE, Slab, linked};
use lnet_core::lnd::{NiId, Path};
use lnet_core::time::{self, Instant};
use lnet_wire::header::LARGE_HEADER_BYTES;
use lnet_wire::socklnd::{
    ByteOrder, CONNECTION_REQUEST_BYTES_MAX, ConnectionType, HELLO_BYTES_MAX, PREFIX_BYTES, Version,
};

pub(crate) use incoming::{Incoming, Reading};
pub(crate) use outgoing::{Item, Outgoing, ToSend};
pub(crate) use progress::{Silence, StreamProgress};

/// Bytes of the longest head of a piece.
pub(super) const HEAD_BYTES_MAX: usize = PREFIX_BYTES + LARGE_HEADER_BYTES;
const _: () = assert!(CONNECTION_REQUEST_BYTES_MAX + HELLO_BYTES_MAX <= HEAD_BYTES_MAX);

/// Marks connections that have pieces for the driver.
pub(super) struct Ready;
/// Marks connections whose bytes need wait no longer.
pub(super) struct Resumed;
/// Marks the requests of a connection that wait out of its way.
pub(super) struct OnShelf;
/// Marks the connections of a peer, or those that are left open without one.
pub(super) struct OfPeer;
/// Marks the connections of an address that have the name of a peer.
pub(super) struct Named;

linked!(Connection, Ready, ready);
linked!(Connection, Resumed, resumed);
linked!(Connection, OfPeer, of_peer);
linked!(Connection, Named, named);

/// The highest source port that only privileged users have.
pub(super) const PRIVILEGED_PORT_MAX: u16 = 1023;

/// The ends of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The peer's.
    pub remote: SocketAddr,
    /// This node's.
    pub local: IpAddr,
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
    /// Another connection of its peer has ended in order, and this one may be reset yet. Messages arrive
    /// by it and are acknowledged; none leaves.
    Doubted(SockOrigin),
    /// The connection is closed once what is to be sent on it has been.
    Closing,
    /// The connection has ended, and its driver closes it.
    Closed,
}

impl Phase {
    /// Whether messages arrive.
    pub(super) const fn receives_messages(self) -> bool {
        matches!(self, Self::Established | Self::Doubted(_))
    }
}

/// Whom the messages of a connection come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SockOrigin {
    /// The NI that they come by, and the peer NI.
    pub(super) path: Path,
    /// The peer's process id.
    pub(super) pid: u32,
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
    /// The end of its handshake.
    pub(super) handshake_deadline: Instant,
    /// Whether this node has dialled it from an unprivileged port.
    pub(super) is_unvouched: bool,
    /// Why it has ended, where the system says so: an errno, positive.
    pub(super) error: Option<u8>,
    pub(super) incoming: Incoming,
    pub(super) outgoing: Outgoing,
    pub(super) progress: StreamProgress,
    /// Requests that wait, how many, and whether they come again now.
    pub(super) shelved: List<OnShelf>,
    pub(super) shelved_count: u32,
    pub(super) is_replaying: bool,
    ready: Link,
    resumed: Link,
    of_peer: Link,
    named: Link,
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
            handshake_deadline,
            is_unvouched: false,
            error: None,
            incoming: Incoming::new(now),
            outgoing: Outgoing::new(),
            progress: StreamProgress::new(now),
            shelved: List::new(),
            shelved_count: 0,
            is_replaying: false,
            ready: Link::UNLINKED,
            resumed: Link::UNLINKED,
            of_peer: Link::UNLINKED,
            named: Link::UNLINKED,
        }
    }

    /// Whether it has bytes for the driver.
    pub(super) fn has_pieces(&self) -> bool {
        self.outgoing.has_greeting() && self.phase != Phase::Closed
            || self.phase.receives_messages() && self.outgoing.has_more()
    }

    /// Whether all that was polled has been sent, and nothing more is to be.
    pub(super) const fn is_drained(&self) -> bool {
        !self.outgoing.has_greeting() && !self.progress.is_sending()
    }

    /// Whether no message is under way by it, either way, nor waits in it for the shard.
    pub(super) const fn is_quiet(&self) -> bool {
        matches!(self.phase, Phase::Established)
            && matches!(self.incoming.reading(), Reading::Head)
            && !self.incoming.is_within_message()
            && !self.outgoing.is_sending_messages()
            && self.shelved_count == 0
            && !self.is_replaying
    }

    /// Gives it a message.
    pub(super) fn push(&mut self, items: &mut Slab<Item>, item: u32, turn: u64) {
        self.outgoing.push(items, item, self.version, turn);
    }

    /// The next message that it is to send.
    pub(super) fn pop(&mut self, items: &mut Slab<Item>) -> Option<u32> {
        self.outgoing.pop(items, self.version)
    }

    /// Sends a message.
    pub(super) fn begin(&mut self, items: &mut Slab<Item>, item: u32) {
        let bytes = message_bytes(self.version, items[item].transmit.header.payload_length);
        self.outgoing.begin(items, item, self.progress.add(bytes));
    }

    /// Bytes that it has to send, and the turn of its last message.
    pub(super) const fn load(&self) -> (u64, u64) {
        let (queued_bytes, turn) = self.outgoing.waiting();
        (queued_bytes + self.progress.sending_bytes(), turn)
    }

    /// When it has made no progress for too long, if it is to make some.
    pub(super) fn stalls_at(&self, timeout: Duration) -> Option<Instant> {
        time::earliest([self.incoming.stalls_at(timeout), self.progress.stalls_at(timeout)])
    }

    /// When something last arrived, or was sent.
    pub(super) fn moved_at(&self) -> Instant {
        self.incoming.received_at().max(self.progress.sent_at())
    }

    /// Whether LNet messages with so much payload may leave by it, and whether that is preferred (LNet
    /// `socklnd_proto.c: ksocknal_match_tx_v3`, and `ksocknal_match_tx` of protocols 1 and 2).
    pub(super) fn carries(&self, payload_bytes: u32, min_bulk_bytes: u32) -> Option<bool> {
        let is_bulk = message_bytes(self.version, payload_bytes) >= u64::from(min_bulk_bytes);
        let is_new = self.version >= Version::V3;
        match self.kind {
            ConnectionType::Any => (!is_new).then_some(true),
            ConnectionType::Control => Some(!is_bulk),
            ConnectionType::BulkOut => Some(is_bulk),
            ConnectionType::BulkIn => (!is_new).then_some(false),
        }
    }
}

/// Bytes before the header of a message.
pub(super) const fn prefix_bytes(version: Version) -> usize {
    if matches!(version, Version::V1) { 0 } else { PREFIX_BYTES }
}

/// Bytes of a message on a stream, before its payload.
pub(super) const fn head_bytes(version: Version) -> usize {
    prefix_bytes(version) + version.header_bytes()
}

/// Bytes of a message on a stream.
const fn message_bytes(version: Version, payload_bytes: u32) -> u64 {
    head_bytes(version) as u64 + payload_bytes as u64
}
