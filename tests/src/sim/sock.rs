//! The driver of a lane of the `tcp` LND: between its connections and the streams.
//!
//! It does what that of the LND does: it carries bytes between the protocol and the streams; puts payload into its place;
//! gives messages for peers of sibling shards, and connections with these, to the siblings. Bytes are read and written
//! in pieces that the seed chooses.

use std::collections::VecDeque;
use std::time::Duration;

use lnet_core::handle::{ShardId, ShardSet};
use lnet_core::lnd::{Full, NiId, RxId, Span, Status, Transmit, TxId, Uplink, Verdict};
use lnet_core::socklnd::{
    Action, ConnId, Ends, HandedOver, Socklnd, SocklndConfig, SocklndLimits, SocklndNi, Wants, home_of,
};
use lnet_core::time::Instant;
use lnet_core::tunables::SockTunables;
use lnet_wire::{Nid, ProcessId};

use super::streams::{EndId, Seat};
use super::uplink::Up;
use crate::bpf::random::Random;

/// A connection with so many bytes queued gets no more until some have been sent.
const QUEUED_MAX_BYTES: u64 = 1 << 16;
/// Payload is read from its descriptor in pieces of so many bytes at most.
const PIECE_MAX_BYTES: u32 = 1 << 15;
/// A connection has so many bytes queued at most: those that are allowed, a head and the longest message.
const MEMORY_MAX_BYTES: u64 = QUEUED_MAX_BYTES + 256 + (1 << 20);

/// What the drivers of a node's shards are made from.
#[derive(Clone)]
pub(super) struct SockConfig {
    /// The shards that serve each rail.
    pub(super) serving: [ShardSet; 2],
    pub(super) tunables: SockTunables,
    pub(super) limits: SocklndLimits,
    pub(super) seed: u64,
    /// Lives of the interfaces, by rail.
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
    /// Without interfaces.
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
                Action::Dial { conn, ni, to, .. } => {
                    let (node, shard) = (up.desk.life.0, usize::from(up.shard.id().0));
                    let Some(target) = up.around.plan.locate(to) else {
                        return up.around.ledger.fail("streams go to nodes", || format!("{to}"));
                    };
                    let seat = Seat { node, rail: ni, shard };
                    let (random, counts) = (&mut *up.around.random, &mut *up.around.counts);
                    let end = up.around.streams.dial(now.0, seat, target, random, counts);
                    self.link(conn, Link::new(end, false, Vec::new()));
                }
                Action::Close { conn } => {
                    let link = self.unlink(conn);
                    up.around.streams.close(now.0, link.end, up.around.random);
                    self.closing.push(conn);
                }
                // Streams of the simulator have no options.
                Action::Serve { .. } => {}
                Action::HandOver { conn, to, handed } => {
                    let Link { end, early, .. } = self.unlink(conn);
                    up.around.streams.move_to(end, usize::from(to.0));
                    up.around.letters.push((to.0, Letter::Connection { end, handed, arrived: early }));
                }
            }
        }
    }

    /// Works off timers and what has arrived.
    pub(super) fn receive(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        for conn in std::mem::take(&mut self.closing) {
            // The kernel would take its time to end what is under way.
            if up.around.random.once_in(2) {
                self.sock.closed(now, conn, up);
                self.act(now, up);
            } else {
                self.closing.push(conn);
            }
        }
        if self.sock.poll_timeout().is_some_and(|at| at <= now) {
            self.sock.handle_timeout(now, up);
            self.act(now, up);
        }
        while let Some(event) = self.events.pop_front() {
            self.handle(now, event, up);
        }
        self.confirm(now, up);
        for conn in (0..self.links.len() as u32).map(ConnId) {
            self.feed(now, conn, up);
        }
        while let Some(letter) = self.letters.pop_front() {
            self.take(now, letter, up);
        }
    }

    fn handle(&mut self, now: Instant, event: StreamEvent, up: &mut Up<'_, '_>) {
        match event {
            StreamEvent::Accepted { end, ends } => match self.sock.accept(now, ends, up) {
                Some(conn) => {
                    self.act(now, up);
                    self.link(conn, Link::new(end, true, Vec::new()));
                }
                None => up.around.streams.close(now.0, end, up.around.random),
            },
            StreamEvent::Dialled { end, is_connected } => {
                let is_its = |link: &Option<Link>| link.as_ref().is_some_and(|link| link.end == end);
                let Some(slot) = self.links.iter().position(is_its) else { return };
                let conn = ConnId(slot as u32);
                if let Some(link) = self.link_mut(conn) {
                    link.is_connected = is_connected;
                }
                self.sock.dialled(now, conn, is_connected, up);
            }
        }
        self.act(now, up);
    }

    /// Takes what a sibling has sent.
    fn take(&mut self, now: Instant, letter: Letter, up: &mut Up<'_, '_>) {
        match letter {
            Letter::Message { from, transmit } => {
                let slot = self.foreign.iter().position(Option::is_none).unwrap_or_else(|| {
                    self.foreign.push(None);
                    self.foreign.len() - 1
                });
                self.foreign[slot] = Some((from, transmit.tx));
                let tx = TxId(self.first_foreign + slot as u32);
                let taken = self.sock.submit(now, &Transmit { tx, ..transmit });
                up.around.ledger.expect(taken.is_ok(), "there is room for messages of siblings", || {
                    format!("{:?}", transmit.header)
                });
            }
            Letter::Ended { tx, status } => up.sent(now, tx, status),
            Letter::Connection { end, handed, arrived } => match self.sock.adopt(now, &handed, up) {
                Some(conn) => {
                    self.act(now, up);
                    self.link(conn, Link::new(end, true, arrived));
                    self.feed(now, conn, up);
                }
                None => up.around.streams.close(now.0, end, up.around.random),
            },
        }
        self.act(now, up);
    }

    /// Goes on with what messages that were resumed have held up.
    pub(super) fn settle(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        self.act(now, up);
        while let Some(conn) = self.sock.poll_resumed() {
            if let Some(link) = self.link_mut(conn) {
                link.used_at = now;
            }
            self.feed(now, conn, up);
        }
        let links = self.links.iter().enumerate().filter_map(|(slot, link)| Some((slot, link.as_ref()?)));
        for (slot, link) in links {
            let is_late = now > link.used_at + self.timeout;
            let is_half = self.sock.is_within_message(ConnId(slot as u32));
            up.around.ledger.expect(!is_late || !is_half, "no half message outlives its time", || {
                format!("connection {slot} waits since {:?}", link.used_at)
            });
        }
    }

    pub(super) fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut Up<'_, '_>) {
        self.sock.resume(now, rx, verdict, up);
        self.act(now, up);
    }

    /// Uses what has arrived on a stream, as far as the protocol wants it.
    fn feed(&mut self, now: Instant, conn: ConnId, up: &mut Up<'_, '_>) {
        while let Some(link) = self.link_mut(conn).filter(|link| link.is_connected) {
            let (end, early_bytes) = (link.end, link.early.len());
            let arrived_bytes = up.around.streams.arrived_bytes(end);
            if early_bytes == 0 && arrived_bytes == 0 {
                if up.around.streams.has_ended(end) {
                    self.sock.ended(now, conn, up);
                    self.act(now, up);
                }
                return;
            }
            let count = piece(up.around.random, if early_bytes != 0 { early_bytes } else { arrived_bytes });
            let bytes = match early_bytes {
                0 => up.around.streams.peek(end, count),
                _ => link.early[..count].to_vec(),
            };
            let used = match self.sock.wants(conn) {
                Wants::Nothing => return,
                Wants::Head => self.sock.take(now, conn, &bytes, up),
                Wants::Skip(left_bytes) => {
                    let count = left_bytes.min(count as u32);
                    self.sock.placed(now, conn, count, up);
                    count as usize
                }
                Wants::Payload(span) => self.place(now, conn, &span, &bytes, up),
            };
            if let Some(link) = self.link_mut(conn) {
                link.used_at = now;
            }
            // The link stays until the protocol's actions are carried out.
            match self.link_mut(conn) {
                Some(link) if early_bytes != 0 => drop(link.early.drain(..used)),
                _ => up.around.streams.read(now.0, end, used, up.around.random),
            }
            self.act(now, up);
        }
    }

    /// Puts payload into its place; how much of it.
    fn place(&mut self, now: Instant, conn: ConnId, span: &Span, bytes: &[u8], up: &mut Up<'_, '_>) -> usize {
        let count = bytes.len().min(span.length_bytes as usize);
        let target = Span { length_bytes: count as u32, ..*span };
        up.around.counts.lent += u64::from(span.buffer.0.shard() != up.shard.id());
        match up.around.memory.bytes_mut(&target) {
            Some(to) => to.copy_from_slice(&bytes[..count]),
            None => {
                let found = || format!("{target:?} is written");
                up.around.ledger.fail("a descriptor lives as long as its spans", found);
            }
        }
        if let Some(sum) = self.sock.checksum_mut(conn) {
            sum.update(&bytes[..count]);
        }
        self.sock.placed(now, conn, count as u32, up);
        count
    }

    /// Takes a message, or has no room for it.
    pub(super) fn submit(&mut self, now: Instant, transmit: &Transmit, up: &mut Up<'_, '_>) -> bool {
        let serving = self.serving[usize::from(transmit.ni.0)];
        let (own, home) = (up.shard.id(), home_of(&transmit.next_hop, serving));
        if home != own {
            up.around.letters.push((home.0, Letter::Message { from: own.0, transmit: *transmit }));
            return true;
        }
        !matches!(self.sock.submit(now, transmit), Err(Full(_)))
    }

    /// Sends what there is to be sent, and tells the shard what the protocol has found out.
    pub(super) fn transmit(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        self.act(now, up);
        while let Some(conn) = self.sock.poll_ready() {
            self.queue(now, conn, up);
        }
        for conn in (0..self.links.len() as u32).map(ConnId) {
            self.write(now, conn, up);
        }
        if up.around.random.once_in(2) {
            self.confirm(now, up);
        }
        self.act(now, up);
        self.tell(now, up);
    }

    /// Queues the pieces of a connection, as many as it may have.
    fn queue(&mut self, now: Instant, conn: ConnId, up: &mut Up<'_, '_>) {
        while let Some(Some(link)) = self.links.get_mut(conn.0 as usize)
            && link.queued_bytes < QUEUED_MAX_BYTES
            && let Some(piece) = self.sock.poll_send(now, conn)
        {
            link.queued_bytes += piece.head().len() as u64;
            link.outgoing.push_back(Outgoing::Head(piece.head().to_vec()));
            if let Some((_, span)) = piece.payload {
                link.queued_bytes += u64::from(span.length_bytes);
                link.outgoing.push_back(Outgoing::Payload(span));
            }
            let queued_bytes = link.queued_bytes;
            up.around.ledger.expect(queued_bytes <= MEMORY_MAX_BYTES, "memory is bounded", || {
                format!("{conn:?} has {queued_bytes} bytes queued")
            });
        }
    }

    /// Writes what is queued, as far as the stream takes it.
    fn write(&mut self, now: Instant, conn: ConnId, up: &mut Up<'_, '_>) {
        let Some(link) = self.link_mut(conn).filter(|link| link.is_connected) else { return };
        while let Some(front) = link.outgoing.front_mut() {
            let room_bytes = up.around.streams.room_bytes(link.end);
            if room_bytes == 0 {
                return;
            }
            let mut bytes = Vec::new();
            let is_whole = match front {
                Outgoing::Head(head) => {
                    bytes.extend(head.drain(..head.len().min(room_bytes)));
                    head.is_empty()
                }
                Outgoing::Payload(span) => {
                    let length_bytes = span.length_bytes.min(PIECE_MAX_BYTES).min(room_bytes as u32);
                    let piece = Span { length_bytes, ..*span };
                    let is_there = up.around.memory.read(&piece, &mut bytes);
                    up.around.ledger.expect(is_there, "a descriptor lives as long as its spans", || {
                        format!("{piece:?} is read")
                    });
                    span.offset_bytes += u64::from(length_bytes);
                    span.length_bytes -= length_bytes;
                    span.length_bytes == 0
                }
            };
            up.around.streams.write(now.0, link.end, &bytes, up.around.random);
            link.written_bytes += bytes.len() as u64;
            link.queued_bytes -= bytes.len() as u64;
            if is_whole {
                link.outgoing.pop_front();
            }
        }
    }

    /// Tells the protocol what has been written.
    fn confirm(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        for conn in (0..self.links.len() as u32).map(ConnId) {
            let Some(link) = self.link_mut(conn) else { continue };
            let count = std::mem::take(&mut link.written_bytes);
            if count != 0 {
                self.sock.sent(now, conn, count, up);
                self.act(now, up);
            }
        }
    }

    /// Tells the shard what the protocol has found out.
    fn tell(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        while let Some((tx, status)) = self.sock.poll_ended() {
            let foreign = tx.0.checked_sub(self.first_foreign).map(|slot| self.foreign[slot as usize].take());
            match foreign {
                None => up.sent(now, tx, status),
                Some(Some((from, tx))) => up.around.letters.push((from, Letter::Ended { tx, status })),
                Some(None) => {
                    let found = || format!("{tx:?} of a sibling ended as {status:?}");
                    up.around.ledger.fail("a message ends once at its sender", found);
                }
            }
        }
        while let Some(peer) = self.sock.poll_restart() {
            up.around.counts.peers_restarted += 1;
            up.shard.restarted(&peer);
        }
        while let Some((mut path, report)) = self.sock.poll_report() {
            if let Some(slot) = up.desk.slots[usize::from(path.ni.0)] {
                path.ni = slot;
                up.shard.path_health(now, &path, report);
            }
        }
    }
}

/// How many of so many bytes are used at once.
const fn piece(random: &mut Random, most: usize) -> usize {
    match random.below(8) {
        0 => 1,
        1..4 => 1 + random.below(most),
        _ => most,
    }
}
