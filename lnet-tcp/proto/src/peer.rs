//! SockPeer NIs.

use core::time::Duration;

use lnet_core::collections::{Chain, Keyed, Link, List, Seed, linked, nid_words};
use lnet_core::errno;
use lnet_core::lnd::{NiId, Path};
use lnet_core::time::Instant;
use lnet_wire::socklnd::{ConnectionType, Version};
use lnet_wire::{Nid, ProcessId};

use super::connection::{OfPeer, SockOrigin, ToSend};

/// Marks peers that nothing is under way with, the longest first.
pub(super) struct Idle;

linked!(SockPeer, Chain, chain);
linked!(SockPeer, Idle, idle);

impl Keyed for SockPeer {
    fn hash(&self, seed: Seed) -> u64 {
        seed.hash(words(self.ni, &self.nid, self.pid))
    }
}

/// What a peer is found by, as words.
pub(super) fn words(ni: NiId, nid: &Nid, pid: u32) -> [u64; 4] {
    let [a, b, c] = nid_words(nid);
    [a, b, c, u64::from(ni.0) << 32 | u64::from(pid)]
}

/// Refusals in a row after which no more connections are asked for, if there is one of each type; without,
/// the last one counts as a failure (LNet `socklnd_cb.c: ksocknal_connect`).
pub(super) const REFUSALS_MAX: u8 = 3;
/// Connections of a type at most, wherever they come from. Kernel nodes count them in eight bits.
pub(super) const CONNECTIONS_OF_TYPE_MAX: u16 = 255;

/// Whether a process id is the port of a dialler that nothing vouches for: it has one for each connection.
pub(super) const fn is_port(pid: u32) -> bool {
    pid & ProcessId::USER_FLAG != 0
}

/// A peer NI, as one local NI reaches it.
pub(super) struct SockPeer {
    pub(super) ni: NiId,
    pub(super) nid: Nid,
    pub(super) pid: u32,
    /// Whether this node connects further connections: it has dialled this peer, and is not only dialled by
    /// it.
    pub(super) is_active: bool,
    /// All that are established.
    pub(super) connections: List<OfPeer>,
    /// Connections that are established no more and left open, since they may be reset yet.
    pub(super) doubted: List<OfPeer>,
    /// How many of these, by type.
    pub(super) counts: [u16; 4],
    /// The one that is being dialled.
    pub(super) dialling: Option<u32>,
    /// The protocol to offer, once it is known.
    pub(super) version: Option<Version>,
    /// Its life, while there are connections.
    pub(super) incarnation: Option<u64>,
    /// Its last life that was seen, whether there are connections or not.
    pub(super) last_incarnation: Option<u64>,
    /// When its last connection ended.
    pub(super) lost_at: Instant,
    /// Not dialled before.
    pub(super) retry_at: Instant,
    /// What the next failure adds to that.
    pub(super) backoff: Duration,
    /// Why the last dial failed: an errno, positive; that of a peer without an address to dial before.
    pub(super) failure: u8,
    /// How often in a row it has refused a connection.
    pub(super) refusals: u8,
    /// Whether it has named another protocol since it last took a connection, or could not be connected.
    pub(super) has_changed_version: bool,
    /// When it was last told that this end lives.
    pub(super) keepalive_at: Instant,
    /// Messages that wait for a connection.
    pub(super) queue: List<ToSend>,
    chain: Link,
    idle: Link,
}

impl SockPeer {
    pub(super) fn new(ni: NiId, nid: Nid, pid: u32) -> Self {
        Self {
            ni,
            nid,
            pid,
            is_active: false,
            connections: List::new(),
            doubted: List::new(),
            counts: [0; 4],
            dialling: None,
            version: None,
            incarnation: None,
            last_incarnation: None,
            lost_at: Instant(0),
            retry_at: Instant(0),
            backoff: Duration::ZERO,
            failure: errno::EHOSTUNREACH,
            refusals: 0,
            has_changed_version: false,
            keepalive_at: Instant(0),
            queue: List::new(),
            chain: Link::UNLINKED,
            idle: Link::UNLINKED,
        }
    }

    /// Whom its messages come from.
    pub(super) const fn origin(&self) -> SockOrigin {
        SockOrigin { path: Path { ni: self.ni, peer: self.nid }, pid: self.pid }
    }

    pub(super) const fn count(&self, kind: ConnectionType) -> u16 {
        self.counts[kind as usize]
    }

    pub(super) const fn count_mut(&mut self, kind: ConnectionType) -> &mut u16 {
        &mut self.counts[kind as usize]
    }

    /// Whether nothing is under way with it.
    pub(super) const fn is_idle(&self) -> bool {
        self.connections.is_empty()
            && self.doubted.is_empty()
            && self.dialling.is_none()
            && self.queue.is_empty()
    }

    /// Whether messages to it can leave.
    const fn has_outgoing(&self) -> bool {
        self.count(ConnectionType::Control) != 0 || self.count(ConnectionType::BulkOut) != 0
    }

    /// Whether there is a connection of each type that this node opens.
    pub(super) const fn has_all_types(&self) -> bool {
        use ConnectionType::{BulkIn, BulkOut, Control};
        self.count(Control) != 0 && self.count(BulkIn) != 0 && self.count(BulkOut) != 0
    }

    /// The type of the connection to be dialled next (LNet `socklnd_cb.c: ksocknal_connect`).
    pub(super) fn lacks(&self, conns_per_peer: u8) -> Option<ConnectionType> {
        use ConnectionType::{BulkIn, BulkOut, Control};
        let [inbound, outbound] = [BulkIn, BulkOut].map(|kind| self.count(kind));
        let conns_per_peer = u16::from(conns_per_peer);
        if !self.is_active && self.has_outgoing() || self.has_all_types() && self.refusals >= REFUSALS_MAX {
            return None;
        }
        if self.count(Control) == 0 {
            return Some(Control);
        }
        if inbound < conns_per_peer && inbound <= outbound {
            return Some(BulkIn);
        }
        (outbound < conns_per_peer).then_some(BulkOut)
    }
}
