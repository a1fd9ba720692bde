//! The driver of a lane of the `tcp` LND: between its connections and the streams.
//!
//! The driver does what that of the LND does: it carries bytes between the protocol and the streams; puts
//! payload into its place; gives messages for peers of sibling shards, and connections with these, to the
//! siblings. Bytes are read and written in pieces that the seed chooses.

mod receive;
mod transmit;

use std::collections::VecDeque;
use std::time::Duration;

use lnet_core::handle::{ShardId, ShardSet};
use lnet_core::lnd::{NiId, Span, Status, Transmit, TxId};
use lnet_core::time::Instant;
use lnet_tcp_proto::SockTunables;
use lnet_tcp_proto::{
    ConnId, Ends, HandedOver, Socklnd, SocklndConfig, SocklndLimits, SocklndNi, StreamOrder,
};
use lnet_wire::{Nid, ProcessId};

use super::strangers;
use super::streams::{EndId, Seat};
use super::uplink::Up;

/// What the drivers of a node's shards are made from.
#[derive(Clone)]
pub(super) struct SockConfig {
    /// The shards that serve each rail.
    pub(super) serving: [ShardSet; 2],
    pub(super) tunables: SockTunables,
    pub(super) limits: SocklndLimits,
    pub(super) seed: u64,
    /// Lives of the NIs, by rail.
    pub(super) incarnations: [u64; 2],
    pub(super) conns_per_peer: u8,
    /// Messages that a shard sends at once.
    pub(super) transmits: u32,
}

/// What one shard sends another.
pub(super) enum Letter {
    /// A message for a peer of the receiver's. Its payload stays where it is.
    Message { from: u8, transmit: Transmit },
    /// The end of a message that the receiver has sent here.
    Ended { tx: TxId, status: Status },
    /// A connection with a peer of the receiver's, with what has arrived on it.
    Connection { end: EndId, handed: HandedOver, arrived: Vec<u8> },
}

/// What has happened to a stream besides bytes.
pub(super) enum StreamEvent {
    Accepted { end: EndId, ends: Ends },
    Dialled { end: EndId, is_connected: bool },
}

/// What is to be written to a stream next.
enum Outgoing {
    Head(Vec<u8>),
    Payload(Span),
}

/// What the driver has of a connection.
struct Link {
    end: EndId,
    is_connected: bool,
    /// Bytes that another shard has received.
    early: Vec<u8>,
    /// Payload of the requests that are shelved, in their order.
    shelved: Vec<u8>,
    outgoing: VecDeque<Outgoing>,
    queued_bytes: u64,
    /// Bytes that were written and that the protocol has not been told of.
    written_bytes: u64,
    /// When bytes were last used, or need no longer wait.
    used_at: Instant,
}

impl Link {
    const fn new(end: EndId, is_connected: bool, early: Vec<u8>) -> Self {
        Self {
            end,
            is_connected,
            early,
            shelved: Vec::new(),
            outgoing: VecDeque::new(),
            queued_bytes: 0,
            written_bytes: 0,
            used_at: Instant(0),
        }
    }
}

/// A shard's connections.
pub(super) struct SockDriver {
    pub(super) sock: Socklnd,
    serving: [ShardSet; 2],
    links: Vec<Option<Link>>,
    /// Connections whose streams are closed, and whose messages have not ended yet.
    closing: Vec<ConnId>,
    pub(super) events: VecDeque<StreamEvent>,
    pub(super) letters: VecDeque<Letter>,
    /// Messages of siblings, named from `first_foreign` on.
    foreign: Vec<Option<(u8, TxId)>>,
    first_foreign: u32,
    interfaces: [bool; 2],
    /// How long a message may make no progress.
    timeout: Duration,
}

impl SockDriver {
    /// Without NIs.
    pub(super) fn new(config: &SockConfig, sock: Socklnd) -> Self {
        Self {
            sock,
            serving: config.serving,
            links: Vec::new(),
            closing: Vec::new(),
            events: VecDeque::new(),
            letters: VecDeque::new(),
            foreign: Vec::new(),
            first_foreign: config.transmits,
            interfaces: [false; 2],
            timeout: config.tunables.timeout,
        }
    }

    /// What the protocol of a shard is made from.
    pub(super) fn config(config: &SockConfig, shard: ShardId) -> SocklndConfig {
        SocklndConfig {
            shard,
            pid: ProcessId::LUSTRE_PID,
            tunables: config.tunables,
            limits: config.limits,
            seed: config.seed,
        }
    }

    pub(super) const fn has_interface(&self, ni: NiId) -> bool {
        self.interfaces[ni.0 as usize]
    }

    pub(super) fn add_interface(&mut self, ni: NiId, nid: Nid, config: &SockConfig) {
        let rail = usize::from(ni.0);
        self.interfaces[rail] = true;
        let (incarnation, conns_per_peer) = (config.incarnations[rail], config.conns_per_peer);
        self.sock.add_ni(SocklndNi { ni, nid, incarnation, conns_per_peer, serving: self.serving[rail] });
    }

    pub(super) fn remove_interface(&mut self, now: Instant, ni: NiId, up: &mut Up<'_, '_>) {
        self.interfaces[usize::from(ni.0)] = false;
        self.sock.close_ni(now, ni, up);
        self.act(now, up);
        self.tell(now, up);
    }

    /// Connections end that speak in a name from other addresses than its own.
    pub(super) fn end_from_elsewhere(&mut self, now: Instant, nid: &Nid, up: &mut Up<'_, '_>) {
        self.sock.end_from_elsewhere(now, nid, up);
        self.act(now, up);
        self.tell(now, up);
    }

    /// Whether the next turn has something to do at once.
    pub(super) fn has_work(&self) -> bool {
        let is_to_be_told = self.links.iter().flatten().any(|link| link.written_bytes != 0);
        self.sock.has_work()
            || is_to_be_told
            || !self.closing.is_empty()
            || !self.events.is_empty()
            || !self.letters.is_empty()
    }

    /// Whether nothing is on its way in or out.
    pub(super) fn is_at_rest(&self) -> bool {
        let usage = self.sock.usage();
        let is_sending = self.links.iter().flatten().any(|link| link.queued_bytes != 0);
        usage.messages == 0 && usage.incoming == 0 && !is_sending && !self.has_work()
    }

    pub(super) fn describe(&self) -> String {
        let (usage, links) = (self.sock.usage(), self.link_count());
        format!("{usage:?}, {links} links, {} events, {} letters", self.events.len(), self.letters.len())
    }

    /// Connections that have a stream.
    pub(super) fn link_count(&self) -> usize {
        self.links.iter().flatten().count()
    }

    fn link(&mut self, conn: ConnId, link: Link) {
        let slot = conn.0 as usize;
        if slot >= self.links.len() {
            self.links.resize_with(slot + 1, || None);
        }
        assert!(self.links[slot].replace(link).is_none(), "{conn:?} was closed before it is used again");
    }

    fn unlink(&mut self, conn: ConnId) -> Link {
        self.links[conn.0 as usize].take().expect("a connection has a link")
    }

    fn link_mut(&mut self, conn: ConnId) -> Option<&mut Link> {
        self.links.get_mut(conn.0 as usize)?.as_mut()
    }

    /// Does what the protocol wants done with connections.
    fn act(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        while let Some(action) = self.sock.poll_action() {
            let name = up.name;
            up.around.trace.say(|| format!("{name} {action:?}"));
            match action {
                StreamOrder::Dial { conn, ni, to, .. } => {
                    let (node, shard) = (up.desk.life.0, usize::from(up.shard.id().0));
                    let seat = Seat { node, rail: ni, shard };
                    let (random, counts) = (&mut *up.around.random, &mut *up.around.counts);
                    let end = if let Some(target) = up.around.plan.locate(to) {
                        up.around.streams.dial(now.0, seat, target, random, counts)
                    } else if let Some(mute) = strangers::locate(up.around.plan, to) {
                        up.around.streams.dial_mute(now.0, seat, mute, random)
                    } else {
                        return up.around.ledger.fail("streams go to nodes", || format!("{to}"));
                    };
                    self.link(conn, Link::new(end, false, Vec::new()));
                }
                StreamOrder::Close { conn } => {
                    let link = self.unlink(conn);
                    up.around.streams.close(now.0, link.end, up.around.random);
                    self.closing.push(conn);
                }
                StreamOrder::Ask { conn } => {
                    let link = self.link_mut(conn);
                    let bytes = link.map_or(0, |link| up.around.streams.unacknowledged_bytes(link.end));
                    up.around.counts.streams_asked += 1;
                    self.sock.unacknowledged(now, conn, bytes, up);
                }
                // Streams of the simulator have no options.
                StreamOrder::Serve { .. } => {}
                StreamOrder::HandOver { conn, to, handed } => {
                    let Link { end, early, .. } = self.unlink(conn);
                    up.around.streams.move_to(end, usize::from(to.0));
                    up.around.letters.push((to.0, Letter::Connection { end, handed, arrived: early }));
                }
            }
        }
    }
}
