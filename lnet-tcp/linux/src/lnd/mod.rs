//! The tcp LND of one shard: the socklnd protocol over TCP streams of an `io_uring`, with kernel nodes and
//! with others.
//!
//! [`Socklnd`] has the protocol; [`Streams`] the sockets; here bytes go from the one to the other. A peer NI
//! belongs to one shard of those that serve the NI by which it is reached, which has all connections with it.
//! What another shard sends to it goes there first, with a lease on its payload; what arrives there for
//! another shard's descriptor has its header routed by the core, which lends the span.
//!
//! Invariants: a stream belongs to one connection; bytes of a stream are used in their order; payload is
//! taken by the kernel where it lies, under a lease, or is copied once into a buffer of the streams; what is
//! lent elsewhere is waited for; a message ends when its leases are back, also if its connection has ended.
//!
//! Payload that arrives is put into its descriptor by a system call of the shard's own thread, or by a copy
//! out of a buffer of the streams: what has arrived, at once. So no two messages are ever written at the
//! same time, wherever their spans are, and a peer that stops in the middle of its payload keeps no other
//! from those bytes. A shard that was lent a span by a sibling does the same with that.

mod accept_errors;
mod breaks;
mod exchange;
mod failed_dials;
mod port;
mod receive;
mod transmit;

use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use accept_errors::AcceptErrors;
use breaks::Breaks;
use exchange::Exchange;
use failed_dials::FailedDials;
use lnet_core::errno;
use lnet_core::handle::ShardId;
use lnet_core::limits::Limits;
use lnet_core::lnd::{Full, Lent, Lnd, NiId, Progress, RxId, TxId, Uplink, Verdict};
use lnet_core::time::{self, Instant};
use lnet_io::driver::{Counted, Driver};
use lnet_io::memory::Memory;
use lnet_io::reactor::tcp::{ReceivedBytes, StreamEvent, StreamId, Streams, StreamsConfig, TcpError};
use lnet_io::reactor::{Reactor, Waker};
use lnet_model::lnd::NiOption;
use lnet_model::ni::NiOptions;
use lnet_tcp_proto::{
    ConnId, Piece, ShownConnection, SockTunables, Socklnd, SocklndConfig, SocklndLimits, SocklndNi,
    StreamOrder, home_of,
};
use lnet_wire::socklnd::ConnectionType;
use lnet_wire::steer::{PORTALS, PolicyWord};
use lnet_wire::{Nid, ProcessId};
use rustix::io::Errno;

pub use port::TcpPort;
pub(crate) use port::socket_options;

/// Connections of a shard at most.
const SHARD_CONNECTIONS_MAX: u32 = 1 << 14;
/// Handshakes under way at most, of connections that others open.
const HANDSHAKES_MAX: u32 = 1 << 10;
/// Buffers that streams are received into, of a shard, and the bytes of each.
const RECEIVE_BUFFERS: u16 = 256;
const RECEIVE_BUFFER_BYTES: u32 = 8192;
/// Bytes of a shard that have arrived and have to wait, at most, outside of these buffers.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// What the LNDs of a node's shards have in common.
pub(crate) struct TcpCommon<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) tunables: SockTunables,
    pub(crate) seed: u64,
    pub(crate) opened: &'a Arc<AtomicBool>,
    /// How bytes are moved.
    pub(crate) reactor: Reactor,
}

/// What is under way on a stream to be received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Receiving {
    Nothing,
    /// One buffer.
    Once,
    /// Until it is paused.
    Many,
    /// Many buffers, and a pause was asked for.
    Pausing,
    /// Nothing until the kernel tells that there is something to be received.
    Awaited,
}

/// What the driver has of a connection.
struct ConnectionStream {
    stream: Option<StreamId>,
    receiving: Receiving,
    /// Bytes that come before `pending`: another shard has received them, or they had to wait for long.
    early: VecDeque<u8>,
    /// Bytes that have arrived, and from where on they are to be used.
    pending: VecDeque<(ReceivedBytes, usize)>,
    /// Payload of requests that wait out of the way of these.
    shelved: VecDeque<u8>,
    /// Whether nothing arrives any more, and why, where the kernel says so.
    has_ended: bool,
    error: Option<Errno>,
    /// Whether long payload came last, or nothing yet.
    follows_long: bool,
    /// Whether the payload that arrives is received straight into its place, to its last byte.
    is_placing: bool,
    /// A piece that was polled, whose payload could not be queued yet.
    stopped: Option<Piece>,
    /// Where it is dialled, if it is.
    dial: Option<Dial>,
}

/// A connection that is being dialled.
#[derive(Clone, Copy)]
struct Dial {
    ni: NiId,
    to: SocketAddr,
    /// Source ports below this one are still to be tried.
    below: u16,
}

impl ConnectionStream {
    const fn new(stream: Option<StreamId>, dial: Option<Dial>) -> Self {
        Self {
            stream,
            receiving: Receiving::Nothing,
            early: VecDeque::new(),
            pending: VecDeque::new(),
            shelved: VecDeque::new(),
            has_ended: false,
            error: None,
            follows_long: true,
            is_placing: false,
            stopped: None,
            dial,
        }
    }

    /// Bytes that have arrived and were not used.
    fn arrived_bytes(&self) -> usize {
        let pending = self.pending.iter().map(|(bytes, used)| bytes.length_bytes() - used);
        self.early.len() + pending.sum::<usize>()
    }
}

/// The connections of streams. Each message is looked for here, so by index and not by hash.
#[derive(Default)]
struct StreamConnections(Vec<Option<(StreamId, ConnId)>>);

impl StreamConnections {
    fn of(&self, id: StreamId) -> Option<ConnId> {
        let (stream, conn) = (*self.0.get(id.slot())?)?;
        (stream == id).then_some(conn)
    }

    fn insert(&mut self, id: StreamId, conn: ConnId) {
        if self.0.len() <= id.slot() {
            self.0.resize(id.slot() + 1, None);
        }
        self.0[id.slot()] = Some((id, conn));
    }

    fn remove(&mut self, id: StreamId) {
        if self.of(id).is_some() {
            self.0[id.slot()] = None;
        }
    }
}

/// The tcp LND of one shard.
pub struct TcpLnd {
    shard: ShardId,
    opened: Arc<AtomicBool>,
    sock: Socklnd,
    streams: Streams,
    links: Vec<Option<ConnectionStream>>,
    by_stream: StreamConnections,
    /// Connections that have ended, by streams that are being closed.
    closing: HashMap<StreamId, ConnId>,
    ports: Vec<TcpPort>,
    closed: Vec<TcpPort>,
    exchange: Exchange,
    /// Connections with a piece whose payload could not be queued yet.
    stopped: Vec<ConnId>,
    /// Connections to be looked at again: bytes or payload of theirs had to wait for leases.
    waiting: Vec<StreamId>,
    /// Bytes in all `early`.
    early_bytes: usize,
    failed_dials: FailedDials,
    breaks: Breaks,
    accept_errors: AcceptErrors,
    /// Payload bytes that the kernel put in place, and that were copied there.
    placed_bytes: u64,
    copied_bytes: u64,
    /// Payload bytes that were given to the streams where they lie, and as copies.
    lent_bytes: u64,
    copied_out_bytes: u64,
}

impl TcpLnd {
    /// The LNDs of all shards of a node.
    ///
    /// # Errors
    /// The kernel's refusal of an `io_uring`, or of `epoll`.
    pub(crate) fn for_shards(common: &TcpCommon<'_>, wakers: &[Waker]) -> Result<Vec<Self>, TcpError> {
        let shards = wakers.len() as u8;
        let own = common.limits.transmits();
        let make = |(shard, exchange): (u8, Exchange)| {
            let sock = Socklnd::new(SocklndConfig {
                shard: ShardId(shard),
                pid: ProcessId::LUSTRE_PID,
                tunables: common.tunables,
                limits: SocklndLimits {
                    connections: SHARD_CONNECTIONS_MAX,
                    handshakes: HANDSHAKES_MAX,
                    peers: common.limits.peers,
                    messages: own.saturating_mul(u32::from(shards)),
                },
                seed: common.seed,
            });
            let config = StreamsConfig {
                streams_max: SHARD_CONNECTIONS_MAX,
                receive_buffers: RECEIVE_BUFFERS,
                receive_buffer_bytes: RECEIVE_BUFFER_BYTES,
                zero_copy_min_bytes: common.tunables.zero_copy_min_bytes,
                reactor: common.reactor,
            };
            Ok(Self {
                shard: ShardId(shard),
                opened: Arc::clone(common.opened),
                sock,
                streams: Streams::new(&config)?,
                links: Vec::new(),
                by_stream: StreamConnections::default(),
                closing: HashMap::new(),
                ports: Vec::new(),
                closed: Vec::new(),
                exchange,
                stopped: Vec::new(),
                waiting: Vec::new(),
                early_bytes: 0,
                failed_dials: FailedDials::default(),
                breaks: Breaks::default(),
                accept_errors: AcceptErrors::default(),
                placed_bytes: 0,
                copied_bytes: 0,
                lent_bytes: 0,
                copied_out_bytes: 0,
            })
        };
        (0..shards).zip(Exchange::all(wakers, own)).map(make).collect()
    }

    /// Becomes readable when a stream has news.
    pub(crate) fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.streams.fd()
    }

    /// Listens once the node is open.
    fn listen(&mut self) {
        if !self.opened.load(Ordering::Acquire) {
            return;
        }
        while let Some(index) = self.to_listen_at() {
            let port = &mut self.ports[index];
            port.listening.extend(port.listeners.drain(..).map(|socket| self.streams.listen(socket)));
        }
    }

    /// The port of an NI at whose address nothing is accepted although it could be.
    fn to_listen_at(&self) -> Option<usize> {
        let is_accepting = |port: &TcpPort| {
            self.ports.iter().any(|other| !other.listening.is_empty() && other.shares_address(port))
        };
        self.ports.iter().position(|port| !port.listeners.is_empty() && !is_accepting(port))
    }

    /// Does what the protocol wants done with connections.
    fn act(&mut self, now: Instant, up: &mut impl Uplink) {
        while let Some(action) = self.sock.poll_action() {
            match action {
                StreamOrder::Dial { conn, ni, to, kind, .. } => {
                    let to = (to, self.accept_port(kind)).into();
                    let dial = Dial { ni, to, below: port::RESERVED_END };
                    self.link(conn, ConnectionStream::new(None, Some(dial)));
                    self.dial(now, conn, up);
                }
                StreamOrder::Close { conn } => {
                    let link = self.unlink(conn);
                    match link.stream {
                        Some(stream) => {
                            self.streams.close(stream);
                            self.closing.insert(stream, conn);
                        }
                        None => self.sock.closed(now, conn, up),
                    }
                    self.drop_pending(link);
                }
                StreamOrder::Serve { conn, ni } => self.serve(conn, ni),
                StreamOrder::Ask { conn } => {
                    let stream = self.link_mut(conn).stream;
                    let bytes = stream.map_or(0, |stream| self.streams.unacknowledged_bytes(stream));
                    self.sock.unacknowledged(now, conn, bytes, up);
                }
                StreamOrder::HandOver { conn, to, handed } => self.hand_over(conn, to, handed),
            }
        }
    }

    /// The connections by which messages go, in no order that means anything.
    pub fn connections(&self) -> impl Iterator<Item = ShownConnection> {
        self.sock.connections().map(|mut shown| {
            if shown.ends.remote.port() == 0 {
                shown.ends.remote.set_port(self.accept_port(shown.kind));
            }
            shown
        })
    }

    /// The port at which peers accept connections of a type.
    fn accept_port(&self, kind: ConnectionType) -> u16 {
        let tunables = self.sock.tunables();
        if kind == ConnectionType::Control { tunables.accept_port } else { tunables.accept_port_bulk }
    }

    /// Gives a stream the options of an NI where it has others by the listener that it came by: those of
    /// another NI, or a timeout that has been changed since.
    fn serve(&mut self, conn: ConnId, ni: NiId) {
        let Some(port) = self.ports.iter().find(|port| port.ni == ni) else { return };
        let options = port.options;
        let mut siblings = self.ports.iter().filter(|other| other.shares_address(port));
        let is_sole_tos = siblings.all(|other| other.options.tos == options.tos);
        let Some(stream) = self.link_mut(conn).stream else { return };
        if !is_sole_tos && let Err(error) = self.streams.set_tos(stream, options.tos) {
            tracing::warn!(%error, "a connection has the type of service of another NI");
        }
        if let Err(error) = self.streams.set_unacknowledged_max(stream, options.unacknowledged_max) {
            tracing::warn!(%error, "a connection has the timeout that its listener was opened with");
        }
    }

    fn link(&mut self, conn: ConnId, link: ConnectionStream) {
        let slot = conn.0 as usize;
        if slot >= self.links.len() {
            self.links.resize_with(slot + 1, || None);
        }
        if let Some(stream) = link.stream {
            self.by_stream.insert(stream, conn);
        }
        assert!(self.links[slot].replace(link).is_none(), "{conn:?} was closed before it is used again");
    }

    fn unlink(&mut self, conn: ConnId) -> ConnectionStream {
        let link = self.links.get_mut(conn.0 as usize).and_then(Option::take);
        let link = link.unwrap_or_else(|| unreachable!("{conn:?} has a link"));
        if let Some(stream) = link.stream {
            self.by_stream.remove(stream);
        }
        link
    }

    fn drop_pending(&mut self, link: ConnectionStream) {
        self.early_bytes -= link.early.len();
        for (bytes, _) in link.pending {
            self.streams.give_back(bytes);
        }
    }

    fn link_mut(&mut self, conn: ConnId) -> &mut ConnectionStream {
        let link = self.links.get_mut(conn.0 as usize).and_then(Option::as_mut);
        link.unwrap_or_else(|| unreachable!("{conn:?} has a link"))
    }

    /// Connects a stream; the next one if the source port is taken.
    fn dial(&mut self, now: Instant, conn: ConnId, up: &mut impl Uplink) {
        let Some(dial) = self.link_mut(conn).dial else { return };
        let port = self.ports.iter().find(|port| port.ni == dial.ni);
        let made = port.map(|port| port.dialling_socket(dial.to.ip(), dial.below));
        let (socket, source_port) = match made {
            Some(Ok(made)) => made,
            Some(Err(error)) => {
                tracing::debug!(%error, to = %dial.to, "a connection cannot be dialled");
                return self.sock.dialled(now, conn, Err(errno_of(error.errno())), up);
            }
            None => return self.sock.dialled(now, conn, Err(errno_of(Errno::NODEV)), up),
        };
        match self.streams.dial(socket, dial.to) {
            Ok(stream) => {
                let next = Dial { below: source_port, ..dial };
                let link = self.link_mut(conn);
                (link.stream, link.dial) = (Some(stream), Some(next));
                self.by_stream.insert(stream, conn);
            }
            Err(Full(_)) => self.sock.dialled(now, conn, Err(errno::ENOBUFS), up),
        }
    }

    fn handle(&mut self, now: Instant, event: StreamEvent, up: &mut impl Uplink, memory: &mut Memory) {
        match event {
            StreamEvent::Accepted { id, from, local, .. } => {
                let ends = lnet_tcp_proto::Ends { remote: from, local: local.ip() };
                match self.sock.accept(now, ends, up) {
                    Some(conn) => {
                        self.act(now, up);
                        self.link(conn, ConnectionStream::new(Some(id), None));
                        self.feed(now, id, up, memory);
                    }
                    None => self.streams.close(id),
                }
            }
            StreamEvent::Dialled { id, result } => self.dial_ended(now, id, result, up, memory),
            StreamEvent::Received { id, bytes } => self.received(now, id, bytes, up, memory),
            StreamEvent::Readable { id } | StreamEvent::Paused { id } => self.paused(now, id, up, memory),
            StreamEvent::Sent { id, bytes } => {
                if let Some(conn) = self.by_stream.of(id) {
                    self.sock.sent(now, conn, bytes, up);
                }
            }
            StreamEvent::Ended { id, error } => {
                if let Some(conn) = self.by_stream.of(id) {
                    tracing::debug!(conn = conn.0, ?error, "a stream has ended");
                    let link = self.link_mut(conn);
                    (link.has_ended, link.error) = (true, error);
                    self.feed(now, id, up, memory);
                }
            }
            StreamEvent::Closed { id } => {
                if let Some(conn) = self.closing.remove(&id) {
                    self.sock.closed(now, conn, up);
                }
            }
            StreamEvent::Detached { id, socket } => self.exchange.detached(id, socket),
        }
        self.act(now, up);
    }

    fn dial_ended(
        &mut self,
        now: Instant,
        id: StreamId,
        result: Result<SocketAddr, Errno>,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) {
        let Some(conn) = self.by_stream.of(id) else { return };
        match result {
            Ok(from) => {
                self.link_mut(conn).dial = None;
                self.sock.dialled(now, conn, Ok(from.port()), up);
                self.act(now, up);
                self.feed(now, id, up, memory);
            }
            Err(Errno::ADDRNOTAVAIL | Errno::ADDRINUSE) => {
                self.streams.close(id);
                self.by_stream.remove(id);
                self.link_mut(conn).stream = None;
                self.dial(now, conn, up);
            }
            Err(error) => {
                self.sock.dialled(now, conn, Err(errno_of(error)), up);
            }
        }
    }
}

/// An errno of the kernel as the protocol has it.
fn errno_of(error: Errno) -> u8 {
    error.raw_os_error().try_into().unwrap_or(errno::EHOSTUNREACH)
}

impl Driver for TcpLnd {
    type Port = TcpPort;

    // A message on each connection.
    fn names_max(_: &Limits) -> u32 {
        SHARD_CONNECTIONS_MAX
    }

    fn set_first_name(&mut self, first: u32) {
        self.sock.set_first_name(first);
    }

    fn add_port(&mut self, port: TcpPort) {
        self.sock.add_ni(SocklndNi {
            ni: port.ni,
            nid: port.nid,
            incarnation: port.incarnation,
            conns_per_peer: port.conns_per_peer,
            serving: port.serving,
        });
        self.ports.push(port);
        self.listen();
    }

    fn close_port(&mut self, now: Instant, ni: NiId, up: &mut impl Uplink, _: &Memory) {
        let Some(index) = self.ports.iter().position(|port| port.ni == ni) else { return };
        let mut port = self.ports.swap_remove(index);
        let listening = std::mem::take(&mut port.listening);
        if !listening.is_empty() {
            let heir = self
                .ports
                .iter_mut()
                .find(|other| !other.listeners.is_empty() && other.shares_address(&port));
            if let Some(heir) = heir {
                // The kernel has the same sockets by both descriptors.
                (heir.listening, heir.listeners) = (listening, Vec::new());
            } else {
                listening.into_iter().for_each(|listening| self.streams.unlisten(listening));
            }
        }
        self.closed.push(port);
        self.sock.close_ni(now, ni, up);
        self.act(now, up);
        self.tell(now, up);
    }

    fn remove_port(&mut self, ni: NiId) -> TcpPort {
        let index = self.closed.iter().position(|port| port.ni == ni).expect("the NI was closed");
        self.closed.swap_remove(index)
    }

    fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.closed.is_empty()
    }

    /// Has an NI connect so many connections of each type with its peers from now on.
    fn change(&mut self, ni: NiId, options: &NiOptions) {
        let Some(conns_per_peer) = options.number(NiOption::ConnsPerPeer) else { return };
        for port in self.ports.iter_mut().filter(|port| port.ni == ni) {
            port.conns_per_peer = conns_per_peer;
        }
        self.sock.set_conns_per_peer(ni, conns_per_peer);
    }

    fn end_from_elsewhere(&mut self, now: Instant, nid: &Nid, up: &mut impl Uplink) {
        self.sock.end_from_elsewhere(now, nid, up);
    }

    fn is_bound_to_driver(&self) -> bool {
        true
    }

    // Connections carry messages of all portals.
    fn set_policies(&mut self, _: &[PolicyWord; PORTALS]) {}

    fn set_timeout(&mut self, _: Instant, timeout: Duration) {
        self.sock.set_timeout(timeout);
        for port in &mut self.ports {
            // The timeout is that of streams that are dialled, or accepted for this NI, from now on.
            port.options.unacknowledged_max = Some(timeout);
        }
    }

    fn has_work(&mut self) -> bool {
        let is_due = self.to_listen_at().is_some() && self.opened.load(Ordering::Acquire);
        is_due || self.sock.has_work() || self.streams.has_work() || self.exchange.has_work()
    }

    fn prepare_sleep(&mut self) {
        if let Err(error) = self.streams.end_polling() {
            tracing::error!(%error, "streams");
        }
    }

    fn has_arrivals(&mut self) -> bool {
        self.streams.has_arrivals() || self.exchange.has_arrivals()
    }

    // Leases that come back cause no wake-up.
    fn awaits_completions(&self) -> bool {
        !self.waiting.is_empty() || self.exchange.is_blocked()
    }

    fn count(&self, tell: &mut dyn FnMut(Counted, &'static str, u64)) -> std::io::Result<()> {
        for (event, count) in self.sock.counters().iter() {
            tell(Counted::Connections, event.name(), count);
        }
        tell(Counted::Connections, "payload_bytes_placed", self.placed_bytes);
        tell(Counted::Connections, "payload_bytes_copied", self.copied_bytes);
        tell(Counted::Connections, "payload_bytes_lent", self.lent_bytes);
        tell(Counted::Connections, "payload_bytes_copied_out", self.copied_out_bytes);
        let streams = self.streams.counters();
        tell(Counted::Connections, "stream_bytes_placed", streams.placed_bytes);
        tell(Counted::Connections, "stream_bytes_buffered", streams.copied_bytes);
        tell(Counted::Connections, "stream_bytes_sent", streams.sent_bytes);
        tell(Counted::Connections, "stream_bytes_sent_without_copy", streams.zero_copy_bytes);
        tell(Counted::Connections, "accept_errors", streams.accept_errors);
        tell(Counted::Connections, "receive_buffers_lacking", streams.buffers_lacking);
        Ok(())
    }
}

impl Lnd for TcpLnd {
    type Memory = Memory;

    fn submit(
        &mut self,
        now: Instant,
        Lent { transmit, .. }: Lent<'_>,
        _: &Memory,
    ) -> Result<(), Full<TxId>> {
        let serving = self.ports.iter().find(|port| port.ni == transmit.ni).map(|port| port.serving);
        let home = serving.map(|serving| home_of(&transmit.next_hop, serving));
        match home.filter(|home| *home != self.shard) {
            Some(home) => {
                self.exchange.submit(home, transmit);
                Ok(())
            }
            None => self.sock.submit(now, transmit),
        }
    }

    fn flush(&mut self, now: Instant, memory: &Memory) {
        self.pump(now, &mut transmit::Copies(memory));
    }

    fn drive(&mut self, now: Instant, budget: u32, up: &mut impl Uplink, memory: &mut Memory) -> Progress {
        let mut progress = Progress::default();
        self.listen();
        if let Err(error) = self.streams.turn() {
            tracing::error!(%error, "streams");
        }
        if self.accept_errors.take_due(now) {
            self.streams.retry_failed();
        } else if let Some(errno) = self.streams.accept_error() {
            self.accept_errors.note(now, errno);
        }
        if self.sock.poll_timeout().is_some_and(|at| at <= now) {
            self.sock.handle_timeout(now, up);
            self.act(now, up);
        }
        while progress.received < budget
            && let Some(event) = self.streams.poll_event()
        {
            self.handle(now, event, up, memory);
            progress.received += 1;
        }
        progress.received += self.take_letters(now, up, memory);
        self.sock.look_at_shelved(now, up);
        while let Some(conn) = self.sock.poll_resumed() {
            if let Some(stream) = self.link_mut(conn).stream {
                self.feed(now, stream, up, memory);
            }
        }
        for stream in std::mem::take(&mut self.waiting) {
            self.feed(now, stream, up, memory);
        }
        self.act(now, up);
        self.send_letters(memory);
        self.pump(now, &mut transmit::Leases(memory));
        progress.completed += self.tell(now, up);
        progress
    }

    fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut impl Uplink) {
        self.sock.resume(now, rx, verdict, up);
        self.act(now, up);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        time::earliest([self.sock.poll_timeout(), self.accept_errors.again_at])
    }
}
