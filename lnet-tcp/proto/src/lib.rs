//! The socklnd protocol, as kernel nodes speak it over TCP (LNet `klnds/socklnd`): without I/O and without a
//! clock.
//!
//! A [`Socklnd`] has some of the peer NIs of a node, each with all its connections: a peer NI belongs to one
//! shard ([`home_of`]), since a peer takes no more than a few connections of each type. Its driver carries
//! bytes:
//!
//! ```text
//! bytes arrive        take -> Uplink::header -> wants: Payload(span)   placed -> Uplink::received
//! messages leave      submit -> poll_ready, poll_send: pieces          sent -> poll_ended
//! connections         accept, dialled, ended, closed                   poll_action: Dial, Close, HandOver
//! ```
//!
//! Invariants: the identity of a peer is what its HELLO said, or its address where the dialler was not
//! privileged; a connection carries messages only after both HELLOs; a message ends exactly once, and not
//! before its driver has done with its memory; what an unfinished handshake may take
//! is bounded, in memory and time; a message whose sending has not begun outlives its connection; one that
//! arrives has the name of its connection, so that those of others hold it up in nothing. Nothing
//! allocates after [`Socklnd::new`], but for lists of actions that are as long as there are connections.
//!
//! The driver takes all actions ([`Socklnd::poll_action`]) before it brings the next connection.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod accept;
mod close;
mod connection;
mod dial;
mod peer;
mod receive;
mod send;
mod shares;
mod shelf;
mod stats;
mod timers;
mod tunables;

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use lnet_core::collections::{List, Schedule, Seed, Slab, Table};
use lnet_core::handle::{ShardId, ShardSet};
use lnet_core::lnd::{NiId, Path, PathReport, Span, Status, TxId};
use lnet_core::time::{self, Instant};
use lnet_wire::socklnd::{CHECKSUM_RANGE, Checksum, ConnectionType, Hello};
use lnet_wire::{Nid, ProcessId, steer};

use connection::{Connection, Item, Phase, Ready, Resumed};
use peer::{Idle, SockPeer};
use shares::Shares;
use shelf::{SHELVED_MAX, STOPPED_MAX, Shelved};

pub use connection::Ends;
pub use stats::{SocklndCounters, SocklndEvent};
pub use tunables::{Accept, SOCK_TUNABLES, SockTunable, SockTunables};

/// A connection, as this module names it. The number is used again once the driver has closed the connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u32);

/// How much of everything a [`Socklnd`] may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocklndLimits {
    /// Connections, those included whose handshake is under way.
    pub connections: u32,
    /// Connections whose handshake is under way that others have opened: of more, the oldest ends.
    pub handshakes: u32,
    /// Peer NIs.
    pub peers: u32,
    /// Messages on their way out.
    pub messages: u32,
}

/// What a [`Socklnd`] is to be.
#[derive(Clone, Debug)]
pub struct SocklndConfig {
    /// The shard that drives it.
    pub shard: ShardId,
    /// The node's process id.
    pub pid: u32,
    /// Tunables of the LND.
    pub tunables: SockTunables,
    /// Sizes of the tables.
    pub limits: SocklndLimits,
    /// Seed of the hash tables.
    pub seed: u64,
}

/// A local NI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocklndNi {
    /// Its number.
    pub ni: NiId,
    /// Its NID.
    pub nid: Nid,
    /// Different in each life of the NI; the same on all shards.
    pub incarnation: u64,
    /// Connections of type BULK_IN and of type BULK_OUT with a peer, each.
    pub conns_per_peer: u8,
    /// The shards that have its connections.
    pub serving: ShardSet,
}

/// A connection of which only this much is known yet: its dialler's HELLO.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandedOver {
    /// The NI that was asked for.
    pub ni: NiId,
    /// The HELLO.
    pub hello: Hello,
    /// The stream's ends.
    pub ends: Ends,
}

/// What a [`Socklnd`] has at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocklndUsage {
    /// Connections, those included whose handshake is under way.
    pub connections: u32,
    /// Peer NIs, those included that are remembered for a while.
    pub peers: u32,
    /// Messages on their way out.
    pub messages: u32,
    /// Messages on their way in.
    pub incoming: u32,
}

/// A connection by which messages go, as it is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShownConnection {
    /// The peer.
    pub peer: ProcessId,
    /// Our type of it.
    pub kind: ConnectionType,
    /// Its ends; the port is 0 where the driver has chosen it.
    pub ends: Ends,
}

/// Bugs that a test switches on, to see whether it would find them.
#[cfg(feature = "sabotage")]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sabotage {
    /// A message whose connection ends while it is being sent is sent again by another one.
    pub resent_after_cut: bool,
    /// A message whose connection ends while it is being sent never ends.
    pub end_lost: bool,
    /// What is left of a payload goes where its first piece went.
    pub offset_stuck: bool,
    /// A message ends once a byte of it has been sent.
    pub sent_early: bool,
    /// Nothing looks whether a message that has begun to arrive goes on.
    pub stall_unnoticed: bool,
}

/// A connection that could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedDial {
    /// The NI that it was dialled by, and the peer NI.
    pub path: Path,
    /// Type that the connection was to have; acceptors may have a port for each.
    pub kind: ConnectionType,
    /// Why not: an errno, positive. `ECONNREFUSED` also where the peer itself said no, `EPROTO` where what
    /// answers is no LNet node, or another one.
    pub errno: u8,
}

/// Connections with a peer that broke, all at once: where one does, all are closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BrokenConnections {
    /// The NI, and the peer NI.
    pub path: Path,
    /// Far end of the first one; its port is 0 where the driver has chosen it.
    pub remote: SocketAddr,
    /// Type of the first one.
    pub kind: ConnectionType,
    /// Why, as the system says it: an errno, positive. `None` where the peer has ended the stream.
    pub errno: Option<u8>,
    /// How many connections they are.
    pub connections: u32,
    /// Messages that were under way by them, both ways.
    pub messages: u32,
    /// Whether messages that were sent well before may not have been read.
    pub has_unread: bool,
}

/// What the driver is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamOrder {
    /// Connect a stream, and say [`Socklnd::dialled`].
    Dial {
        /// Its name.
        conn: ConnId,
        /// The NI to connect from.
        ni: NiId,
        /// The address of that NI.
        from: IpAddr,
        /// The peer's address.
        to: IpAddr,
        /// What it is to be for, by which acceptors may have different ports.
        kind: ConnectionType,
    },
    /// The dialler of a stream has asked for this NI: from now on the stream has its options.
    Serve {
        /// Its name.
        conn: ConnId,
        /// The NI.
        ni: NiId,
    },
    /// Say by [`Socklnd::unacknowledged`] how many bytes of a stream the peer's system has not acknowledged.
    Ask {
        /// Its name.
        conn: ConnId,
    },
    /// Close a stream, whatever is under way on it, and say [`Socklnd::closed`] once the memory of its
    /// messages is not used any more, be it for sending or for payload that arrives. Nothing else is to be
    /// said of it.
    Close {
        /// Its name.
        conn: ConnId,
    },
    /// Give a stream to the driver of another shard, for [`Socklnd::adopt`] there, with what has arrived on
    /// it meanwhile. Its name is free.
    HandOver {
        /// Its name so far.
        conn: ConnId,
        /// Where it belongs.
        to: ShardId,
        /// What is known of it.
        handed: HandedOver,
    },
}

/// What is to become of the next bytes of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wants {
    /// The bytes go to [`Socklnd::take`].
    Head,
    /// Payload, so many bytes of it: goes here, then to [`Socklnd::placed`]; before that through
    /// [`Socklnd::checksum_mut`], if that has one.
    Payload(Span),
    /// Bytes to be passed over, so many, and then counted by [`Socklnd::placed`].
    Skip(u32),
    /// Bytes that wait elsewhere, so many, behind others there; to be counted by [`Socklnd::shelved`].
    Shelve(u32),
    /// The first bytes that wait elsewhere, so many, are the next ones; then [`Socklnd::replayed`].
    Replay(u32),
    /// The bytes have to wait until there are so many; then [`Socklnd::whole`] goes on with them.
    Whole(u32),
    /// The bytes have to wait, until the connection is polled by [`Socklnd::poll_resumed`].
    Nothing,
}

/// Bytes to be sent: a head, and the payload behind it.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    head: [u8; connection::HEAD_BYTES_MAX],
    length: u8,
    /// The payload, and whose it is.
    pub payload: Option<(TxId, Span)>,
    /// The checksum so far, if the head has one.
    checksum: Option<Checksum>,
}

impl Piece {
    /// The head.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.length)]
    }

    /// Whether the head has a checksum: all bytes of the payload are to go through [`Piece::cover`] before it
    /// is sent.
    #[must_use]
    pub const fn has_checksum(&self) -> bool {
        self.checksum.is_some()
    }

    /// Adds the next bytes of the payload to the checksum in the head, if that has one.
    pub fn cover(&mut self, bytes: &[u8]) {
        let Some(sum) = &mut self.checksum else { return };
        sum.update(bytes);
        self.head[CHECKSUM_RANGE].copy_from_slice(&sum.value().to_le_bytes());
    }
}

/// The shard that a peer NI belongs to, of those that serve the NI by which it is reached.
#[must_use]
pub fn home_of(peer: &Nid, serving: ShardSet) -> ShardId {
    serving.share(steer::initiator_hash(peer))
}

/// A timer's owner: a connection, or a peer in the second half of the schedule.
#[derive(Clone, Copy)]
enum Timer {
    Connection(u32),
    Peer(u32),
}

/// The peer NIs of a shard and their connections.
pub struct Socklnd {
    config: SocklndConfig,
    nis: Vec<SocklndNi>,
    peers: Table<SockPeer>,
    connections: Slab<Connection>,
    shares: Shares,
    items: Slab<Item>,
    /// Connections that have pieces for the driver.
    ready: List<Ready>,
    /// Connections whose bytes need wait no longer.
    resumed: List<Resumed>,
    /// Requests that wait for the name of their peer.
    shelved: Slab<Shelved>,
    /// Accepted connections whose handshake is under way, the oldest first.
    handshakes: VecDeque<u32>,
    actions: VecDeque<StreamOrder>,
    ended: VecDeque<(TxId, Status)>,
    reports: VecDeque<(Path, PathReport)>,
    restarts: VecDeque<Nid>,
    failed_dials: VecDeque<FailedDial>,
    broken: VecDeque<BrokenConnections>,
    timers: Schedule,
    /// The name of what arrives on the first connection.
    first_name: u32,
    /// Peers that make room for others.
    idle: List<Idle>,
    /// Whether the next checksum that is sent is to be wrong.
    is_checksum_error_due: bool,
    /// Counts the choices of connections, so that equals take turns.
    turn: u64,
    counters: SocklndCounters,
    #[cfg(feature = "sabotage")]
    sabotage: Sabotage,
}

impl Socklnd {
    /// One without NIs.
    #[must_use]
    pub fn new(config: SocklndConfig) -> Self {
        let SocklndLimits { connections, handshakes, peers, messages } = config.limits;
        let seed = Seed::new(config.seed);
        Self {
            nis: Vec::new(),
            peers: Table::new(peers, seed),
            connections: Slab::new(connections),
            shares: Shares::new(connections, seed),
            items: Slab::new(messages),
            ready: List::new(),
            resumed: List::new(),
            shelved: Slab::new(SHELVED_MAX + STOPPED_MAX),
            handshakes: VecDeque::with_capacity(handshakes as usize + 1),
            actions: VecDeque::new(),
            ended: VecDeque::with_capacity(messages as usize),
            reports: VecDeque::new(),
            restarts: VecDeque::new(),
            failed_dials: VecDeque::new(),
            broken: VecDeque::new(),
            timers: Schedule::new(connections + peers),
            first_name: 0,
            idle: List::new(),
            is_checksum_error_due: config.tunables.injects_checksum_error,
            turn: 0,
            counters: SocklndCounters::default(),
            #[cfg(feature = "sabotage")]
            sabotage: Sabotage::default(),
            config,
        }
    }

    /// Switches bugs on.
    #[cfg(feature = "sabotage")]
    pub const fn sabotage(&mut self, sabotage: Sabotage) {
        self.sabotage = sabotage;
    }

    /// Names messages that arrive from here on: one for each connection that there may be. To be called
    /// before the first NI comes.
    pub const fn set_first_name(&mut self, first: u32) {
        self.first_name = first;
    }

    /// Takes part in an NI from now on.
    pub fn add_ni(&mut self, ni: SocklndNi) {
        self.nis.push(ni);
    }

    /// Has an NI connect so many connections with each peer from now on; those that there are stay.
    pub fn set_conns_per_peer(&mut self, ni: NiId, conns_per_peer: u8) {
        for known in self.nis.iter_mut().filter(|known| known.ni == ni) {
            known.conns_per_peer = conns_per_peer;
        }
    }

    /// A connection, a message or its progress may take so long from now on (`sock_timeout`); dials and
    /// messages that wait already keep their time.
    pub const fn set_timeout(&mut self, timeout: Duration) {
        self.config.tunables.timeout = timeout;
    }

    /// What has been counted.
    #[must_use]
    pub const fn counters(&self) -> &SocklndCounters {
        &self.counters
    }

    /// The tunables.
    #[must_use]
    pub const fn tunables(&self) -> &SockTunables {
        &self.config.tunables
    }

    /// What is in use at this moment.
    #[must_use]
    pub fn usage(&self) -> SocklndUsage {
        SocklndUsage {
            connections: self.connections.used_count(),
            peers: self.peers.used_count(),
            messages: self.items.used_count(),
            incoming: self.connections.used().filter(|(_, known)| known.incoming.has_arriving()).count()
                as u32,
        }
    }

    /// The connections by which messages go, in no order that means anything.
    pub fn connections(&self) -> impl Iterator<Item = ShownConnection> {
        let established = self.connections.used().filter(|(_, known)| known.phase == Phase::Established);
        established.filter_map(|(_, known)| {
            let SockPeer { nid, pid, .. } = *self.peers.get(known.peer)?;
            Some(ShownConnection { peer: ProcessId { nid, pid }, kind: known.kind, ends: known.ends })
        })
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<StreamOrder> {
        self.actions.pop_front()
    }

    /// The end of a message that was submitted.
    pub fn poll_ended(&mut self) -> Option<(TxId, Status)> {
        self.ended.pop_front()
    }

    /// What was learned of a path.
    pub fn poll_report(&mut self) -> Option<(Path, PathReport)> {
        self.reports.pop_front()
    }

    /// A peer that has begun a new life since it was connected last.
    pub fn poll_restart(&mut self) -> Option<Nid> {
        self.restarts.pop_front()
    }

    /// A connection that could not be made.
    pub fn poll_failed_dial(&mut self) -> Option<FailedDial> {
        self.failed_dials.pop_front()
    }

    /// Connections with a peer that broke.
    pub fn poll_broken(&mut self) -> Option<BrokenConnections> {
        self.broken.pop_front()
    }

    /// Whether one of the `poll` functions has something.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.actions.is_empty()
            || !self.ended.is_empty()
            || !self.reports.is_empty()
            || !self.restarts.is_empty()
            || !self.failed_dials.is_empty()
            || !self.broken.is_empty()
            || !self.ready.is_empty()
            || !self.resumed.is_empty()
    }

    /// When [`Socklnd::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        time::earliest([self.timers.first(), self.next_shelved()])
    }

    /// The checksum that the payload of the message under way is to be added to.
    pub fn checksum_mut(&mut self, conn: ConnId) -> Option<&mut Checksum> {
        self.connections[conn.0].incoming.checksum_mut()
    }

    fn ni(&self, ni: NiId) -> Option<&SocklndNi> {
        self.nis.iter().find(|known| known.ni == ni)
    }

    fn known_ni(&self, ni: NiId) -> SocklndNi {
        *self.ni(ni).unwrap_or_else(|| unreachable!("connections end before their NI {}", ni.0))
    }

    fn set_timer(&mut self, timer: Timer, at: Instant) {
        let slot = self.timer_slot(timer);
        // Times are only ever brought forward there; what is due too early is looked at again.
        self.timers.set(slot, at);
    }

    fn clear_timer(&mut self, timer: Timer) {
        let slot = self.timer_slot(timer);
        self.timers.remove(slot);
    }

    const fn timer_slot(&self, timer: Timer) -> u32 {
        match timer {
            Timer::Connection(slot) => slot,
            Timer::Peer(slot) => self.config.limits.connections + slot,
        }
    }
}
