//! The machine, its driver and its shard.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use lnet_core::errno;
use lnet_core::handle::{BufferHandle, Cookie, CookieKind, ShardId, ShardSet};
use lnet_core::lnd::{NiId, PeerSlot, PrefetchHints, RxId, Span, Status, Transmit, TxId, Uplink, Verdict};
use lnet_core::time::Instant;
use lnet_tcp_proto::{Accept, SockTunables};
use lnet_tcp_proto::{
    ConnId, Ends, Socklnd, SocklndConfig, SocklndLimits, SocklndNi, StreamOrder, Wants, home_of,
};
use lnet_wire::header::SMALL_HEADER_BYTES;
use lnet_wire::socklnd::{
    ByteOrder, CONNECTION_REQUEST_BYTES_MAX, ConnectionRequest, ConnectionType, HELLO_BYTES_MAX, Hello,
    PREFIX_BYTES, Prefix, Version,
};
use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};

use super::nid;

const NI: NiId = NiId(1);
const HONEST: u8 = 1;
const NODE: u8 = 2;
/// The addresses of hostile peers.
pub(super) const HOSTS: [u8; 3] = [3, 4, 5];
const LIMITS: SocklndLimits = SocklndLimits { connections: 10, handshakes: 3, peers: 6, messages: 16 };
/// Messages to hostile peers that are under way at most.
const SENDING_MAX: usize = 8;
/// Bytes of the honest peer's payloads.
const PAYLOAD_BYTES: u32 = 8;
const COOKIE: u64 = 7;

/// Flags of an input: two shards; diallers need no privileged port; the driver says later that bytes were
/// sent.
const TWO_SHARDS: u8 = 2;
const ACCEPT_ALL: u8 = 4;
const SENDS_LATE: u8 = 8;

/// The shard above: it decides about hostile peers' messages by the bits of a number.
#[derive(Default)]
struct Above {
    verdicts: u8,
    /// Messages that are to end.
    delayed: BTreeMap<u32, u32>,
    delivered: BTreeSet<u32>,
    /// Messages of the honest peer that have ended.
    honest: usize,
    honest_rx: Option<u32>,
}

impl PrefetchHints for Above {}

impl Uplink for Above {
    fn header(&mut self, _: Instant, _: NiId, from: &Nid, rx: RxId, header: &Header) -> Verdict {
        assert!(!self.delayed.contains_key(&rx.0) && !self.delivered.contains(&rx.0));
        if *from == nid(HONEST) {
            self.honest_rx = Some(rx.0);
            self.delivered.insert(rx.0);
            return Verdict::Deliver(span(header.payload_length));
        }
        let choice = self.verdicts & 3;
        self.verdicts = self.verdicts.rotate_left(2);
        if choice == 1 {
            self.delayed.insert(rx.0, header.payload_length);
            return Verdict::Delay;
        }
        self.decided(rx.0, choice, header.payload_length)
    }

    fn received(&mut self, _: Instant, rx: RxId, status: Status) {
        assert!(self.delayed.remove(&rx.0).is_some() || self.delivered.remove(&rx.0), "{rx:?} ends twice");
        if self.honest_rx.take_if(|honest| *honest == rx.0).is_some() && status == Status::Ok {
            self.honest += 1;
        }
    }

    fn sent(&mut self, _: Instant, _: TxId, _: Status) {
        unreachable!("ends are polled")
    }
}

impl Above {
    fn decided(&mut self, rx: u32, choice: u8, length_bytes: u32) -> Verdict {
        if choice == 0 {
            return Verdict::Drop;
        }
        self.delivered.insert(rx);
        Verdict::Deliver(span(if choice == 2 { length_bytes.min(10) } else { length_bytes }))
    }
}

fn span(length_bytes: u32) -> Span {
    let buffer = BufferHandle(Cookie::new(CookieKind::Buffer, ShardId(0), 0, 1)).into();
    Span { buffer, offset_bytes: 0, length_bytes }
}

fn put(from: u8, to: u8, payload_length: u32) -> Header {
    let body = Body::Put { ack_md: WireHandle::NONE, match_bits: 5, hdr_data: 6, portal: 7, offset: 0 };
    let [source, destination] = [from, to].map(|host| ProcessId::lustre(nid(host)));
    Header { destination, source, payload_length, body }
}

/// A stream as its driver has it.
#[derive(Default)]
struct Stream {
    /// What the peer has said so far.
    said: Vec<u8>,
    /// What the machine does not want yet.
    waiting: Vec<u8>,
    /// Bytes that were sent, and the machine does not know it.
    lent_bytes: u64,
    is_dialling: bool,
    /// How many came before it: the name of a connection is used again.
    number: u64,
}

/// The machine with its driver.
pub(super) struct Node {
    flags: u8,
    now: Instant,
    sock: Socklnd,
    above: Above,
    /// All streams but the honest peer's.
    streams: BTreeMap<ConnId, Stream>,
    stream_count: u64,
    honest: ConnId,
    /// What the honest peer has been sent.
    heard: Vec<u8>,
    /// Messages that have not ended.
    sending: BTreeSet<u32>,
    submitted: u32,
}

impl Node {
    pub(super) fn new(flags: u8, verdicts: u8) -> Self {
        let serving = ShardSet::all(if flags & TWO_SHARDS != 0 { 2 } else { 1 });
        let accept = if flags & ACCEPT_ALL != 0 { Accept::All } else { Accept::Secure };
        let mut sock = Socklnd::new(SocklndConfig {
            shard: home_of(&nid(HONEST), serving),
            pid: ProcessId::LUSTRE_PID,
            tunables: SockTunables { accept, ..SockTunables::DEFAULT },
            limits: LIMITS,
            seed: 1,
        });
        sock.add_ni(SocklndNi { ni: NI, nid: nid(NODE), incarnation: 2, conns_per_peer: 2, serving });
        let (now, mut above) = (Instant(1), Above { verdicts, ..Above::default() });
        let honest = sock.accept(now, ends(HONEST, 1000), &mut above).expect("room for a connection");
        let mut node = Self {
            flags,
            now,
            sock,
            above,
            streams: BTreeMap::new(),
            stream_count: 0,
            honest,
            heard: Vec::new(),
            sending: BTreeSet::new(),
            submitted: 0,
        };
        node.honest_greets();
        node
    }

    fn honest_greets(&mut self) {
        let mut request = [0; CONNECTION_REQUEST_BYTES_MAX];
        let length = ConnectionRequest { target: nid(NODE) }.encode(&mut request);
        assert!(self.take(self.honest, &request[..length]).is_empty());
        let hello = Hello {
            version: Version::V3,
            order: ByteOrder::Little,
            source: ProcessId::lustre(nid(HONEST)),
            destination: ProcessId::lustre(nid(NODE)),
            source_incarnation: 5,
            destination_incarnation: 0,
            connection: Some(ConnectionType::Control),
        };
        let mut bytes = [0; HELLO_BYTES_MAX];
        let length = hello.encode(&mut bytes).expect("small NIDs");
        assert!(self.take(self.honest, &bytes[..length]).is_empty());
        self.settle();
        assert_eq!(std::mem::take(&mut self.heard).len(), length);
    }

    /// The honest peer sends a message and is sent one: both arrive.
    pub(super) fn honest_speaks(&mut self) {
        let mut bytes = [0; PREFIX_BYTES + SMALL_HEADER_BYTES + PAYLOAD_BYTES as usize];
        let prefix = Prefix { cookies: [COOKIE, 0], ..Prefix::message() };
        prefix.encode(bytes.first_chunk_mut().expect("room"));
        let header = put(HONEST, NODE, PAYLOAD_BYTES);
        header.encode_small(bytes[PREFIX_BYTES..].first_chunk_mut().expect("room")).expect("small NIDs");
        // Keepalives.
        assert_eq!(std::mem::take(&mut self.heard).len() % PREFIX_BYTES, 0);
        let before = self.above.honest;
        assert!(self.take(self.honest, &bytes).is_empty());
        assert_eq!(self.above.honest, before + 1);
        self.submit(HONEST, PAYLOAD_BYTES);
        let tx = self.submitted;
        self.settle();
        assert!(!self.sending.contains(&tx));
        let mut expected = [0; PREFIX_BYTES];
        Prefix::acknowledgement(COOKIE).encode(&mut expected);
        let (acknowledged, message) = self.heard.split_at(PREFIX_BYTES);
        assert_eq!((acknowledged, message.len()), (expected.as_slice(), bytes.len()));
        self.heard.clear();
    }

    /// The hostile connection that a number stands for.
    fn hostile(&self, number: usize) -> Option<ConnId> {
        self.streams.keys().copied().nth(number.checked_rem(self.streams.len())?)
    }

    /// A hostile peer says something; false if it might pass itself off as the honest one, as its port
    /// allows.
    pub(super) fn say(&mut self, number: usize, bytes: &[u8]) -> bool {
        let Some(conn) = self.hostile(number) else { return true };
        let Some(stream) = self.streams.get_mut(&conn).filter(|stream| !stream.is_dialling) else {
            return true;
        };
        stream.said.extend(bytes);
        let claims = |bytes: &[u8]| bytes == [10, 0, 0, HONEST] || bytes == [HONEST, 0, 0, 10];
        if stream.said.windows(4).any(claims) {
            return false;
        }
        stream.waiting.extend(bytes);
        self.pump(conn);
        true
    }

    /// Gives a stream's bytes to the machine, as far as it wants them.
    fn pump(&mut self, conn: ConnId) {
        let Some(stream) = self.streams.get_mut(&conn) else { return };
        let (bytes, number) = (std::mem::take(&mut stream.waiting), stream.number);
        let left = self.take(conn, &bytes);
        if let Some(stream) = self.streams.get_mut(&conn).filter(|stream| stream.number == number) {
            stream.waiting = left;
        }
    }

    fn insert(&mut self, conn: ConnId, stream: Stream) {
        self.stream_count += 1;
        let stream = Stream { number: self.stream_count, ..stream };
        assert!(self.streams.insert(conn, stream).is_none(), "{conn:?} is there twice");
    }

    fn take(&mut self, conn: ConnId, bytes: &[u8]) -> Vec<u8> {
        let mut left = bytes;
        let number = |node: &Self| node.streams.get(&conn).map(|stream| stream.number);
        let before = number(self);
        while !left.is_empty() {
            let before_it = self.sock.wants(conn);
            let used = match before_it {
                Wants::Nothing => break,
                Wants::Shelve(_) | Wants::Replay(_) => unreachable!("no name is awaited"),
                Wants::Whole(count) if left.len() < count as usize => break,
                Wants::Whole(_) => {
                    self.sock.whole(self.now, conn, &mut self.above);
                    0
                }
                Wants::Head => self.sock.take(self.now, conn, left, &mut self.above),
                Wants::Payload(Span { length_bytes, .. }) => {
                    let count = left.len().min(length_bytes as usize);
                    if let Some(sum) = self.sock.checksum_mut(conn) {
                        sum.update(&left[..count]);
                    }
                    self.sock.placed(self.now, conn, count as u32, &mut self.above);
                    count
                }
                Wants::Skip(length_bytes) => {
                    let count = left.len().min(length_bytes as usize);
                    self.sock.placed(self.now, conn, count as u32, &mut self.above);
                    count
                }
            };
            left = &left[used..];
            self.act();
            if number(self) != before {
                return Vec::new();
            }
            let wants = self.sock.wants(conn);
            assert!(used != 0 || wants != before_it, "no byte was taken");
        }
        left.to_vec()
    }

    /// Does what the machine asks for.
    fn act(&mut self) {
        while let Some(action) = self.sock.poll_action() {
            match action {
                StreamOrder::Dial { conn, to, .. } if to == address(HONEST) => {
                    self.sock.dialled(self.now, conn, Err(errno::ECONNREFUSED), &mut self.above);
                    self.insert(conn, Stream::default());
                }
                StreamOrder::Dial { conn, .. } => {
                    let stream = Stream { is_dialling: true, ..Stream::default() };
                    self.insert(conn, stream);
                }
                StreamOrder::Close { conn } => {
                    assert!(conn != self.honest, "the honest peer's connection is closed");
                    assert!(self.streams.remove(&conn).is_some(), "{conn:?} is closed twice");
                    self.sock.closed(self.now, conn, &mut self.above);
                }
                StreamOrder::Serve { conn, ni } => {
                    assert_eq!(ni, NI);
                    let has_stream = conn == self.honest || self.streams.contains_key(&conn);
                    assert!(has_stream, "{conn:?} has no stream");
                }
                // Hostile peers acknowledge nothing.
                StreamOrder::Ask { conn } => {
                    let bytes = if conn == self.honest { 0 } else { u64::MAX };
                    self.sock.unacknowledged(self.now, conn, bytes, &mut self.above);
                }
                StreamOrder::HandOver { conn, handed, .. } => {
                    let stream = self.streams.remove(&conn).unwrap_or_default();
                    if let Some(adopted) = self.sock.adopt(self.now, &handed, &mut self.above) {
                        self.act();
                        self.insert(adopted, stream);
                    }
                }
            }
        }
    }

    /// Until nothing more happens at this time.
    pub(super) fn settle(&mut self) {
        loop {
            self.act();
            if let Some(conn) = self.sock.poll_ready() {
                self.send(conn);
            } else if let Some(conn) = self.sock.poll_resumed() {
                self.pump(conn);
            } else if let Some((tx, _)) = self.sock.poll_ended() {
                assert!(self.sending.remove(&tx.0), "{tx:?} ends twice");
            } else if self.sock.poll_report().is_none()
                && self.sock.poll_restart().is_none()
                && self.sock.poll_failed_dial().is_none()
                && self.sock.poll_broken().is_none()
            {
                break;
            }
        }
        assert!(!self.sock.has_work());
        assert_eq!(self.sock.usage().connections as usize, self.streams.len() + 1);
        assert!(self.sock.usage().connections <= LIMITS.connections);
        for (conn, stream) in &self.streams {
            let waits = match self.sock.wants(*conn) {
                Wants::Nothing | Wants::Shelve(_) | Wants::Replay(_) => true,
                Wants::Whole(count) => stream.waiting.len() < count as usize,
                _ => false,
            };
            assert!(stream.waiting.is_empty() || waits, "{conn:?}");
        }
    }

    fn send(&mut self, conn: ConnId) {
        while let Some(piece) = self.sock.poll_send(self.now, conn) {
            let payload_bytes = piece.payload.map_or(0, |(_, span)| span.length_bytes);
            let bytes = piece.head().len() as u64 + u64::from(payload_bytes);
            if let Some(stream) = self.streams.get_mut(&conn) {
                stream.lent_bytes += bytes;
                if self.flags & SENDS_LATE == 0 {
                    self.tell_sent(conn);
                }
            } else {
                assert_eq!(conn, self.honest);
                self.heard.extend(piece.head());
                self.heard.resize(self.heard.len() + payload_bytes as usize, 0);
                self.sock.sent(self.now, conn, bytes, &mut self.above);
            }
            self.act();
        }
    }

    fn tell_sent(&mut self, conn: ConnId) {
        let lent_bytes = self.streams.get_mut(&conn).map(|stream| std::mem::take(&mut stream.lent_bytes));
        if let Some(bytes) = lent_bytes.filter(|bytes| *bytes != 0) {
            self.sock.sent(self.now, conn, bytes, &mut self.above);
        }
    }

    /// A hostile peer dials, from a privileged port or another one.
    pub(super) fn accept(&mut self, which: u8) {
        let port = if which & 16 == 0 { 1000 } else { 40_000 };
        let host = HOSTS[usize::from(which & 15) % HOSTS.len()];
        if let Some(conn) = self.sock.accept(self.now, ends(host, port), &mut self.above) {
            self.insert(conn, Stream::default());
        }
        // The oldest handshake may have been closed.
        self.act();
    }

    /// A message is sent to a peer, which is dialled if need be.
    pub(super) fn submit(&mut self, host: u8, payload_length: u32) {
        if host != HONEST && self.sending.len() >= SENDING_MAX {
            return;
        }
        self.submitted += 1;
        let payload = (payload_length != 0).then(|| span(payload_length));
        let header = put(NODE, host, payload_length);
        let tx = TxId(self.submitted);
        let transmit = Transmit { tx, ni: NI, next_hop: nid(host), peer: PeerSlot(0), header, payload };
        self.sock.submit(self.now, &transmit).expect("room for a message");
        self.sending.insert(tx.0);
    }

    /// The hostile peers that are dialled answer, or do not.
    pub(super) fn connected(&mut self, which: u8) {
        let dialling = self.streams.iter().find(|(_, stream)| stream.is_dialling);
        let Some(conn) = dialling.map(|(conn, _)| *conn) else { return };
        if let Some(stream) = self.streams.get_mut(&conn) {
            stream.is_dialling = false;
        }
        let result = if which & 1 == 0 { Ok(u16::from(which) << 4) } else { Err(which) };
        self.sock.dialled(self.now, conn, result, &mut self.above);
    }

    /// A hostile stream ends.
    pub(super) fn end(&mut self, number: usize) {
        let is_connected = |conn: &ConnId| !self.streams[conn].is_dialling;
        let Some(conn) = self.hostile(number).filter(is_connected) else { return };
        let error = [None, Some(errno::ECONNRESET), Some(errno::ETIMEDOUT)][number % 3];
        self.sock.ended(self.now, conn, error, &mut self.above);
    }

    pub(super) fn wait(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
        self.sock.handle_timeout(self.now, &mut self.above);
    }

    /// The shard decides about a message that it has delayed.
    pub(super) fn resume(&mut self, which: u8) {
        let Some((rx, length_bytes)) = self.above.delayed.pop_first() else { return };
        let verdict = self.above.decided(rx, which & 3, length_bytes);
        self.sock.resume(self.now, RxId(rx), verdict, &mut self.above);
    }

    /// The driver learns that what it has polled was sent.
    pub(super) fn lend(&mut self, which: u8) {
        if let Some(conn) = self.hostile(which.into()) {
            self.tell_sent(conn);
        }
    }

    /// The hostile streams end, and the honest peer is served; then the NI goes, and nothing is left.
    pub(super) fn finish(mut self) {
        while let Some(conn) = self.streams.keys().next().copied() {
            if std::mem::take(&mut self.streams.entry(conn).or_default().is_dialling) {
                self.sock.dialled(self.now, conn, Err(errno::ETIMEDOUT), &mut self.above);
            } else {
                self.sock.ended(self.now, conn, None, &mut self.above);
            }
            self.settle();
        }
        self.honest_speaks();
        self.sock.close_ni(self.now, NI, &mut self.above);
        while let Some(action) = self.sock.poll_action() {
            let StreamOrder::Close { conn } = action else {
                unreachable!("{action:?} of an interface that is gone")
            };
            self.sock.closed(self.now, conn, &mut self.above);
        }
        while let Some((tx, _)) = self.sock.poll_ended() {
            assert!(self.sending.remove(&tx.0), "{tx:?} ends twice");
        }
        assert!(self.sending.is_empty() && self.above.delayed.is_empty() && self.above.delivered.is_empty());
        assert_eq!(self.sock.usage().connections, 0);
    }
}

const fn address(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, host))
}

fn ends(host: u8, port: u16) -> Ends {
    Ends { remote: (address(host), port).into(), local: address(NODE) }
}
