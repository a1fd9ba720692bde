//! NIs over plain UDP sockets, which take no privileges.
//!
//! Each shard has a socket for each NI, on an `io_uring` of its own ([`lnet_io::reactor::udp`]); a shard that
//! does not serve the NI sends by that of one which does. The sockets of all
//! shards share the NI's address and port; the kernel chooses among them as far as it can steer
//! ([`super::reuseport`]), and a datagram that it gave to the wrong shard is handed over. The kernel finds
//! next hops.
//!
//! Invariant: a datagram that the kernel refuses is a loss, counted, and never the end of a socket.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lnet_core::handle::{ShardId, ShardSet};
use lnet_core::lnd::{self, Uplink};
use lnet_core::time::{self, Instant};
use lnet_io::capture::{Direction, Link, Tap};
use lnet_io::memory::Memory;
use lnet_io::netlink::Neighbours;
use lnet_io::reactor::udp::{Endpoint, Refusal, RefusalProbe, UdpError, UdpSocket};
use lnet_wire::Nid;
use lnet_wire::frame::FrameHeader;
use lnet_wire::packet::ETHERNET_BYTES;
use lnet_xdp_proto::{Content, OutgoingFrame, Xfer};
use rustix::io::Errno;

use super::announce::{Batch, FRAMES_MAX};
use super::bulk::SharedRuns;
use super::exchange::{DatagramBuffer, Packet};
use super::frames::{self, Aside, Bytes, Further, Head, Ingress, Owner, Source, Taken, ends_crc};
use super::path::{End, Path, TEMPLATE_BYTES_MAX};
use super::receive::Origin;
use super::refusals;
use super::transmit::avoid;
use super::{Port, XdpDrop, XdpLnd};

/// How long a socket rests whose receive has ended with an error.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// How long an interface may be down before its messages go another way, if they have one.
const DOWN_PATIENCE: Duration = Duration::from_secs(1);

/// An NI over a socket that a shard has.
pub struct SocketPort {
    pub(super) port: Port,
    /// Bytes of frames that the shard can take at once by it: what it grants its peers.
    pub(super) receive_bytes: u32,
    pub(super) endpoint: Box<Endpoint>,
    runs: SharedRuns,
    /// Follows the interface.
    neighbours: Arc<Neighbours>,
    /// Bytes of the longest datagram that shards keep and hand over; the same for all sockets.
    pub(super) buffer_bytes: u32,
    /// Generation of what is known of the interface.
    generation: u64,
    /// Since when it is known to be down, or other ways were looked for.
    down_since: Option<Instant>,
    /// When the socket is tried again whose receive has ended with an error.
    retry_at: Option<Instant>,
    /// The shards that receive by it.
    pub(super) serving: ShardSet,
    /// Whether this one is among them.
    receives: bool,
    /// Tells hosts without a daemon from silent ones.
    pub(super) refusals: Option<RefusalProbe>,
}

impl SocketPort {
    pub(crate) fn new(
        port: Port,
        receive_bytes: u32,
        (endpoint, runs): (Box<Endpoint>, &SharedRuns),
        neighbours: Arc<Neighbours>,
        buffer_bytes: u32,
        (serving, shard): (ShardSet, ShardId),
    ) -> Self {
        runs.follow(&port.nid, &endpoint);
        Self {
            serving,
            receives: serving.has(shard),
            refusals: refusals::probe(&port),
            port,
            receive_bytes,
            endpoint,
            runs: runs.clone(),
            neighbours,
            buffer_bytes,
            generation: u64::MAX,
            down_since: None,
            retry_at: None,
        }
    }

    /// Datagrams that the kernel had no room for. A duplicate tells nothing: its socket counts once.
    pub(super) fn dropped(&self) -> u64 {
        if self.receives { self.endpoint.socket().dropped().into() } else { 0 }
    }

    /// Whether there is something to do that its descriptor would not report.
    pub(super) fn has_work(&mut self, is_open: bool) -> bool {
        (is_open && self.receives && !self.endpoint.is_receiving())
            || self.neighbours.generation() != self.generation
            || self.endpoint.has_work()
    }

    /// Takes in what the kernel has to say.
    #[inline]
    fn turn(&mut self, now: Instant, is_open: bool) -> Result<(), UdpError> {
        let Self { endpoint, retry_at, receives, .. } = self;
        if !endpoint.is_receiving() && is_open && *receives {
            endpoint.start_receiving();
        }
        if retry_at.is_some_and(|at| at <= now) {
            *retry_at = None;
            endpoint.retry_failed();
        }
        let outcome = endpoint.turn();
        if endpoint.has_failed() {
            retry_at.get_or_insert(now + RETRY_INTERVAL);
        }
        outcome
    }

    /// Announces the messages that begin in the datagrams that are next.
    fn announce(&mut self, up: &mut impl Uplink, memory: &Memory) {
        if self.endpoint.waiting_count() > 1 {
            let mut batch = Batch::<FRAMES_MAX>::new();
            let nid = self.port.nid;
            self.endpoint.peek(FRAMES_MAX, |from, datagram| {
                batch.add_frame(nid.with_ip(from), datagram, datagram.len());
            });
            batch.tell(up, memory);
        }
    }

    /// Where it listens.
    fn local(&self) -> SocketAddr {
        self.port.udp_address()
    }

    /// The longest datagram that it has buffers for, here and in its endpoint, whatever its interface carries
    /// since it was opened.
    pub(super) fn longest_bytes(&self) -> u32 {
        self.buffer_bytes.min(self.endpoint.datagram_max_bytes())
    }

    /// The longest datagram that it carries now.
    pub(super) fn datagram_max_bytes(&self) -> u32 {
        self.port.datagram_max_bytes(self.longest_bytes())
    }

    /// Takes in what has changed about the interface.
    #[inline]
    fn follow_interface(&mut self, now: Instant, xfer: &mut Xfer) {
        let generation = self.neighbours.generation();
        if generation == self.generation {
            return;
        }
        self.generation = generation;
        self.down_since = if self.neighbours.is_up() { None } else { self.down_since.or(Some(now)) };
        let mtu = self.neighbours.mtu_bytes();
        if let Some(mtu_bytes) = mtu.filter(|bytes| *bytes as usize != self.port.mtu_bytes) {
            self.port.mtu_bytes = mtu_bytes as usize;
            xfer.set_datagram_max(self.port.ni, self.datagram_max_bytes());
        }
    }

    /// A datagram was longer than what the kernel sends to a peer.
    pub(super) fn shorten(&self, now: Instant, to: SocketAddr, xfer: &mut Xfer) {
        shorten((&self.port, self.endpoint.socket()), self.longest_bytes(), now, to, xfer);
    }
}

/// A datagram was longer than what the kernel sends to a peer: no longer ones go there by this NI, which has
/// buffers of so many bytes.
pub(super) fn shorten(
    (port, socket): (&Port, &UdpSocket),
    buffer_bytes: u32,
    now: Instant,
    to: SocketAddr,
    xfer: &mut Xfer,
) {
    let Ok(mtu_bytes) = socket.path_mtu_bytes(to) else { return };
    let narrow = Port { mtu_bytes: mtu_bytes as usize, ..*port };
    if narrow.mtu_bytes < port.mtu_bytes {
        let path = lnd::Path { ni: port.ni, peer: port.nid.with_ip(to.ip()) };
        xfer.set_path_max(now, &path, narrow.datagram_max_bytes(buffer_bytes));
    }
}

/// Shows captures a datagram between two ends, with headers as the kernel writes them or may have written
/// them.
pub(super) fn record(
    tap: &mut Tap,
    (port, link): (&Port, Link),
    direction: Direction,
    (from, to): (SocketAddr, SocketAddr),
    payload: &[u8],
) {
    let end =
        |address: SocketAddr| End { mac: [0; 6], port: address.port(), nid: port.nid.with_ip(address.ip()) };
    let Some(path) = Path::new(&end(from), &end(to)) else { return };
    let mut headers = [0; TEMPLATE_BYTES_MAX];
    path.write(&mut headers, payload.len());
    if path.needs_udp_checksum() {
        let checksum = path.udp6_checksum(std::iter::once(payload));
        headers[TEMPLATE_BYTES_MAX - 2..].copy_from_slice(&checksum.to_be_bytes());
    }
    // Ethernet addresses are the kernel's to know: they stay empty.
    let begin = if link == Link::Ethernet { 0 } else { ETHERNET_BYTES };
    let pieces = [&headers[begin..path.length()], payload].into_iter();
    tap.record((port.interface_index, link), direction, pieces);
}

impl XdpLnd {
    /// Whether sockets are to receive.
    pub(super) fn is_open(&self) -> bool {
        self.common.opened.load(Ordering::Acquire)
    }

    /// Takes in at most `budget` datagrams of a socket; how many.
    pub(super) fn receive_datagrams(
        &mut self,
        now: Instant,
        index: usize,
        budget: u32,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) -> u32 {
        let is_open = self.is_open();
        let outcome = self.nis.sockets[index].turn(now, is_open);
        self.note(outcome);
        for taken in 0..budget {
            let socket = &mut self.nis.sockets[index];
            if (taken as usize).is_multiple_of(FRAMES_MAX) && up.wants_hints() {
                socket.announce(up, memory);
            }
            let Some(mut received) = socket.endpoint.poll_received() else { return taken };
            let local = socket.local();
            let (ni, from) = (socket.port.ni, socket.port.nid.with_ip(received.from));
            let bytes = socket.endpoint.bytes_mut(&mut received);
            if self.tap.is_on() {
                let ends = (SocketAddr::new(received.from, received.from_port), local);
                record(&mut self.tap, (&socket.port, Link::RawIp), Direction::Received, ends, bytes);
            }
            if bytes.is_empty() {
                // A peer asks whether a daemon is here (`refusals`): the kernel does not say that none is.
                socket.endpoint.give_back(received);
                continue;
            }
            let owner = self.common.owner(self.shard);
            let ingress = Ingress { ni, own: &socket.port.nid, from: &from, ends_crc: 0 };
            let outcome = take_bytes(
                (&mut self.xfer, memory, up),
                now,
                ingress,
                &owner,
                bytes,
                &mut self.scratch.further,
            );
            let mut packet = Packet { parts: std::mem::take(&mut self.scratch.packet.parts), datagram: None };
            if matches!(outcome, Ok(Taken::Buffer(_)) | Err(Aside::Misdirected(_))) {
                packet.datagram = self.home.buffers.pop();
                if let Some(buffer) = &mut packet.datagram {
                    buffer.fill(ni, from, bytes);
                }
            }
            socket.endpoint.give_back(received);
            self.counters.datagrams_received += 1;
            self.counters.datagrams_misdirected += u64::from(matches!(outcome, Err(Aside::Misdirected(_))));
            self.conclude(Origin::Device, outcome, &mut packet);
            self.scratch.packet = packet;
            // What was kept may be what comes next.
            if !self.early.is_empty() {
                self.replay(now, up, memory);
            }
        }
        budget
    }

    /// Takes in a copy of a datagram, unless its NI has gone meanwhile.
    pub(super) fn take_copy(
        &mut self,
        now: Instant,
        copy: &DatagramBuffer,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) -> Result<Taken, Aside> {
        let Some(own) = self.xfer.nid_of(copy.ni).copied() else {
            return Err(Aside::Dropped(XdpDrop::NotOurs));
        };
        let owner = self.common.owner(self.shard);
        let ingress = Ingress { ni: copy.ni, own: &own, from: &copy.from, ends_crc: 0 };
        take_bytes(
            (&mut self.xfer, memory, up),
            now,
            ingress,
            &owner,
            copy.bytes(),
            &mut self.scratch.further,
        )
    }

    /// Writes a frame to be sent by a socket, which has room; its bytes.
    #[inline]
    pub(super) fn send_datagram(&mut self, index: usize, outgoing: &OutgoingFrame, memory: &Memory) -> usize {
        let socket = &mut self.nis.sockets[index];
        let Some(address) = outgoing.destination.ip() else {
            self.counters.frames_let_go += 1;
            return 0;
        };
        let (local, to) = (socket.local(), socket.port.remote(address));
        let port = &socket.port;
        let source = Source { xfer: &self.xfer, memory };
        let mut frame_bytes = 0;
        let run = match outgoing.content {
            Content::Message { run, .. } => run,
            Content::Nothing | Content::Handshake => None,
        };
        socket.endpoint.send(to, run, |out| {
            frame_bytes = write_datagram(outgoing, &source, &port.nid, out);
            if self.tap.is_on() {
                let frame = &out[..frame_bytes];
                record(&mut self.tap, (port, Link::RawIp), Direction::Sent, (local, to), frame);
            }
            frame_bytes
        });
        self.counters.frames_sent += 1;
        self.counters.payload_bytes_copied_out += source.payload_bytes(outgoing);
        frame_bytes
    }

    /// Hands the kernel what was written.
    #[inline]
    pub(super) fn flush_sockets(&mut self) {
        for index in 0..self.nis.sockets.len() {
            let outcome = self.nis.sockets[index].endpoint.flush();
            self.note(outcome);
        }
    }

    /// Looks at what the kernel has refused, and at the interfaces. Messages of one that has been down for a
    /// while go another way; without one they wait, unless it has gone.
    #[inline]
    pub(super) fn follow_sockets(&mut self, now: Instant, up: &mut impl Uplink) {
        for socket in &mut self.nis.sockets {
            socket.follow_interface(now, &mut self.xfer);
            socket.runs.follow(&socket.port.nid, &socket.endpoint);
            let mut shortened = None;
            while let Some(Refusal { to, errno }) = socket.endpoint.poll_refusal() {
                self.counters.frames_sent -= 1;
                self.counters.frames_let_go += 1;
                // The kernel is asked once about a window that is refused.
                if errno == Errno::MSGSIZE && shortened.replace(to) != Some(to) {
                    socket.shorten(now, to, &mut self.xfer);
                }
            }
            if socket.down_since.is_some_and(|since| now - since >= DOWN_PATIENCE) {
                // And those that come later, at the latest then.
                socket.down_since = Some(now);
                avoid(&mut self.xfer, now, (socket.port.ni, socket.neighbours.is_gone()), up);
            }
        }
    }

    /// When a socket is tried again, or an interface has been down for too long, if there are messages.
    pub(super) fn socket_timeout(&self) -> Option<Instant> {
        let retries = self.nis.sockets.iter().filter_map(|socket| socket.retry_at).min();
        let downs = self.nis.sockets.iter().filter_map(|socket| socket.down_since).min();
        let down = downs.filter(|_| self.xfer.usage().messages != 0).map(|since| since + DOWN_PATIENCE);
        time::earliest([retries, down])
    }

    #[inline]
    pub(super) fn note(&mut self, outcome: Result<(), UdpError>) {
        if let Err(error) = outcome
            && !std::mem::replace(&mut self.told_of_failure, true)
        {
            tracing::error!(%error, "the kernel does not go on with the sockets; it is asked again");
        }
    }
}

/// Hands a datagram that is a frame for this shard to the transfer protocol.
#[inline]
fn take_bytes(
    to: (&mut Xfer, &mut Memory, &mut impl Uplink),
    now: Instant,
    ingress: Ingress<'_>,
    owner: &Owner<'_>,
    bytes: &[u8],
    further: &mut Vec<Further>,
) -> Result<Taken, Aside> {
    let header = bytes.first_chunk().map(|header| FrameHeader::decode(header, bytes.len()));
    let Some(Ok(header)) = header else { return Err(Aside::Dropped(XdpDrop::NotOurs)) };
    let ends_crc = header.short.map_or(0, |_| ends_crc(ingress.own, ingress.from));
    let frame = Bytes { header, head: bytes, start: 0, length: bytes.len(), datagram: bytes };
    frames::take(to, now, &Ingress { ends_crc, ..ingress }, owner, &frame, further)
}

/// Writes a frame to the beginning of `out`, which is long enough; its bytes.
#[inline]
pub(super) fn write_datagram(
    outgoing: &OutgoingFrame,
    source: &Source<'_>,
    own: &Nid,
    out: &mut [u8],
) -> usize {
    let ends_crc = || ends_crc(&outgoing.destination, own);
    let Head { covered_bytes: mut at, payload, records, checksum } =
        source.write_head(outgoing, out, ends_crc);
    let mut write = |bytes: &[u8]| {
        out[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    payload.for_each(&mut write);
    for index in 0..records {
        let (head, payload) = source.record(index, checksum);
        write(&head);
        payload.for_each(&mut write);
    }
    at
}
