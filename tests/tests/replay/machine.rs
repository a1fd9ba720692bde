//! A machine in the part of a node of a capture, with its driver and its shard.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use lnet_core::errno;
use lnet_core::handle::{BufferHandle, Cookie, CookieKind, ShardId, ShardSet};
use lnet_core::lnd::{NiId, PeerSlot, PrefetchHints, RxId, Span, Status, Transmit, TxId, Uplink, Verdict};
use lnet_core::time::Instant;
use lnet_tcp_proto::SockTunables;
use lnet_tcp_proto::{
    ConnId, Ends, Socklnd, SocklndConfig, SocklndEvent, SocklndLimits, SocklndNi, StreamOrder, Wants,
};
use lnet_wire::socklnd::{Acks, Hello};
use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};

use crate::pcap::Connection;
use crate::said::{Said, Unit};

/// Bytes that the driver has at once, at most: not a divisor of anything.
const CHUNK_BYTES: usize = 1447;
/// The message that has a peer dialled of which the capture has no message.
const NO_UNIT: u32 = u32::MAX;

/// What the machine says where the kernel node of the capture said `said`. What is not named here is the
/// same:
/// - the life of its interfaces, which is its own;
/// - its messages ask for no acknowledgement, since its driver keeps no payload until the peer has seen it.
fn as_ours(said: &Said) -> Said {
    let mut said = said.clone();
    match &mut said {
        Said::Hello(hello) => hello.source_incarnation = life(&hello.source.nid),
        Said::Message { prefix, .. } => prefix.cookies[0] = 0,
        Said::Request(_) | Said::Noop(_) => {}
    }
    said
}

/// Whether the machine hears it: acknowledgements of what it did not ask for are left out.
fn has_sent(said: &Said) -> bool {
    !matches!(said, Said::Noop(prefix) if !matches!(prefix.acks(), Acks::None | Acks::Keepalive))
}

/// The life of an interface of the machine.
fn life(nid: &Nid) -> u64 {
    0x0A17_0000_0000 | nid.to_small().unwrap() & 0xFFFF_FFFF
}

/// The shard above, which takes every message.
#[derive(Default)]
struct Above {
    headers: Vec<(NiId, Nid, Header)>,
    received: Vec<Status>,
}

impl PrefetchHints for Above {}

impl Uplink for Above {
    fn header(&mut self, _: Instant, ni: NiId, from: &Nid, _: RxId, header: &Header) -> Verdict {
        self.headers.push((ni, *from, *header));
        Verdict::Deliver(span(header.payload_length))
    }

    fn received(&mut self, _: Instant, _: RxId, status: Status) {
        self.received.push(status);
    }

    fn sent(&mut self, _: Instant, _: TxId, _: Status) {
        unreachable!("ends are polled")
    }
}

fn span(length_bytes: u32) -> Span {
    let buffer = BufferHandle(Cookie::new(CookieKind::Buffer, ShardId(0), 0, 1)).into();
    Span { buffer, offset_bytes: 0, length_bytes }
}

/// A machine that takes part in a capture.
pub(crate) struct Machine {
    host: u8,
    connections: Vec<Connection>,
    units: Vec<Unit>,
    nis: Vec<Nid>,
    now: Instant,
    sock: Socklnd,
    above: Above,
    /// The machine's connections, and those of the capture.
    conns: Vec<Option<ConnId>>,
    /// What it has said, and was not compared yet.
    out: BTreeMap<ConnId, VecDeque<u8>>,
    dials: VecDeque<(ConnId, IpAddr, IpAddr)>,
    /// Messages that it was given to send.
    submitted: Vec<u32>,
    ended: Vec<(TxId, Status)>,
}

impl Machine {
    pub(crate) fn new(host: u8, connections: Vec<Connection>, units: Vec<Unit>) -> Self {
        let limits = SocklndLimits { connections: 16, handshakes: 8, peers: 8, messages: 16 };
        let sock = Socklnd::new(SocklndConfig {
            shard: ShardId(0),
            pid: ProcessId::LUSTRE_PID,
            tunables: SockTunables::DEFAULT,
            limits,
            seed: 1,
        });
        let mut machine = Self {
            host,
            conns: vec![None; connections.len()],
            connections,
            units,
            nis: Vec::new(),
            now: Instant(1),
            sock,
            above: Above::default(),
            out: BTreeMap::new(),
            dials: VecDeque::new(),
            submitted: Vec::new(),
            ended: Vec::new(),
        };
        for connection in 0..machine.connections.len() {
            let Some((_, nid, _)) = machine.part(connection) else { continue };
            if !machine.nis.contains(&nid) {
                machine.nis.push(nid);
                let ni = machine.ni(&nid);
                let incarnation = life(&nid);
                let (conns_per_peer, serving) = (1, ShardSet::all(1));
                machine.sock.add_ni(SocklndNi { ni, nid, incarnation, conns_per_peer, serving });
            }
        }
        machine
    }

    fn ni(&self, nid: &Nid) -> NiId {
        NiId(self.nis.iter().position(|own| own == nid).unwrap().try_into().unwrap())
    }

    /// The direction in which the machine speaks on a connection, its NID and the peer's; `None` if it is not
    /// its.
    fn part(&self, connection: usize) -> Option<(usize, Nid, Nid)> {
        let Connection { dialler, listener, .. } = &self.connections[connection];
        let is_ours = |address: &std::net::SocketAddrV4| address.ip().octets()[3] == 10 + self.host;
        let direction = [dialler, listener].into_iter().position(is_ours)?;
        let hello = self.units.iter().find_map(|unit| match unit.said {
            Said::Hello(Hello { source, destination, .. })
                if (unit.connection, unit.direction) == (connection, 0) =>
            {
                Some([source.nid, destination.nid])
            }
            _ => None,
        });
        // Who does not answer is on the first net.
        let net = "0.0.0.0@tcp".parse::<Nid>().unwrap().net();
        let by_address = [dialler, listener].map(|end| Nid::new_ip(net, (*end.ip()).into()).unwrap());
        let nids = hello.unwrap_or(by_address);
        Some((direction, nids[direction], nids[1 - direction]))
    }

    /// A connection is dialled, by the machine or by a peer.
    pub(crate) fn dialled(&mut self, connection: usize) {
        let Some((direction, own, peer)) = self.part(connection) else { return };
        let Connection { dialler, listener, streams, .. } = &self.connections[connection];
        let is_answered = !streams[1].is_empty();
        let [from, to] = [dialler, listener].map(|end| IpAddr::V4(*end.ip()));
        let port = dialler.port();
        let conn = if direction == 0 {
            let is_wanted = |dial: &(ConnId, IpAddr, IpAddr)| (dial.1, dial.2) == (from, to);
            if !self.dials.iter().any(is_wanted) {
                self.submit_first(own, peer);
            }
            let index = self.dials.iter().position(is_wanted);
            let index = index.unwrap_or_else(|| panic!("C{}: {own} does not dial {peer}", connection + 1));
            let (conn, ..) = self.dials.remove(index).unwrap();
            let result = if is_answered { Ok(port) } else { Err(errno::ECONNREFUSED) };
            self.sock.dialled(self.now, conn, result, &mut self.above);
            conn
        } else {
            let ends = Ends { remote: (*dialler).into(), local: to };
            self.sock.accept(self.now, ends, &mut self.above).unwrap()
        };
        if is_answered {
            self.conns[connection] = Some(conn);
            self.out.insert(conn, VecDeque::new());
        }
        self.act();
    }

    /// Has the machine send its first message to a peer that it has not sent yet.
    fn submit_first(&mut self, own: Nid, peer: Nid) {
        let is_first = |(index, unit): &(usize, &Unit)| {
            matches!(unit.said, Said::Message { .. })
                && !self.submitted.contains(&(*index as u32))
                && self.part(unit.connection) == Some((unit.direction, own, peer))
        };
        match self.units.iter().enumerate().filter(is_first).min_by_key(|(_, unit)| unit.packet) {
            Some((index, _)) => self.submit(index),
            None => {
                let body = Body::Get {
                    return_md: WireHandle::NONE,
                    match_bits: 0,
                    portal: 0,
                    offset: 0,
                    sink_length: 0,
                };
                let [source, destination] = [own, peer].map(ProcessId::lustre);
                let header = Header { destination, source, payload_length: 0, body };
                self.transmit(NO_UNIT, own, peer, header);
            }
        }
    }

    fn submit(&mut self, unit: usize) {
        let (_, own, peer) = self.part(self.units[unit].connection).unwrap();
        let Said::Message { header, .. } = self.units[unit].said else { unreachable!("a message") };
        self.submitted.push(unit as u32);
        self.transmit(unit as u32, own, peer, header);
    }

    fn transmit(&mut self, tx: u32, own: Nid, peer: Nid, header: Header) {
        let payload = (header.payload_length != 0).then(|| span(header.payload_length));
        let transmit =
            Transmit { tx: TxId(tx), ni: self.ni(&own), next_hop: peer, peer: PeerSlot(0), header, payload };
        self.sock.submit(self.now, &transmit).unwrap();
        self.act();
    }

    /// Something is said in the capture: the machine hears it, or says the same.
    pub(crate) fn said(&mut self, index: usize) {
        let unit = &self.units[index];
        let (connection, direction) = (unit.connection, unit.direction);
        let Some((own_direction, ..)) = self.part(connection) else { return };
        self.now = self.now + Duration::from_millis(1);
        if own_direction != direction {
            return self.hears(index);
        }
        let conn = self.conns[connection].unwrap();
        let is_new = !self.submitted.contains(&(index as u32));
        if matches!(unit.said, Said::Message { .. }) && is_new {
            self.submit(index);
        }
        let unit = &self.units[index];
        let what = format!("C{}, packet {}", connection + 1, unit.packet);
        let expected = as_ours(&unit.said);
        let out = self.out.get_mut(&conn).unwrap();
        assert!(!out.is_empty(), "{what}: nothing is said, expected {expected:?}");
        let (said, length) = Said::decode(out.make_contiguous(), direction == 0, unit.index);
        assert_eq!(said, expected, "{what}");
        let bytes: Vec<u8> = out.drain(..length).collect();
        assert_eq!(bytes, expected.encode(), "{what}");
    }

    fn hears(&mut self, index: usize) {
        let unit = &self.units[index];
        if !has_sent(&unit.said) {
            return;
        }
        let (_, own, peer) = self.part(unit.connection).unwrap();
        let (conn, bytes, said) =
            (self.conns[unit.connection].unwrap(), unit.bytes.clone(), unit.said.clone());
        let (headers, received) = (self.above.headers.len(), self.above.received.len());
        let payload = self.take(conn, &bytes);
        if let Said::Message { header, payload: expected, .. } = said {
            assert_eq!(self.above.headers[headers..], [(self.ni(&own), peer, header)]);
            assert_eq!(self.above.received[received..], [Status::Ok]);
            assert!(payload == expected);
        }
        self.act();
    }

    /// Gives bytes to the machine; the payload among them.
    fn take(&mut self, conn: ConnId, bytes: &[u8]) -> Vec<u8> {
        let (mut left, mut payload) = (bytes, Vec::new());
        while !left.is_empty() {
            let some = &left[..left.len().min(CHUNK_BYTES)];
            let used = match self.sock.wants(conn) {
                Wants::Head => self.sock.take(self.now, conn, some, &mut self.above),
                Wants::Payload(Span { length_bytes, .. }) => {
                    let count = some.len().min(length_bytes as usize);
                    payload.extend(&some[..count]);
                    self.sock.placed(self.now, conn, count as u32, &mut self.above);
                    count
                }
                Wants::Whole(count) if left.len() >= count as usize => {
                    self.sock.whole(self.now, conn, &mut self.above);
                    0
                }
                wants => {
                    panic!("{conn:?} wants {wants:?}")
                }
            };
            left = &left[used..];
        }
        payload
    }

    /// Does what the machine asks for.
    fn act(&mut self) {
        while let Some(action) = self.sock.poll_action() {
            match action {
                StreamOrder::Dial { conn, from, to, .. } => self.dials.push_back((conn, from, to)),
                StreamOrder::Close { conn } => {
                    assert!(!self.out.contains_key(&conn), "{conn:?} is closed");
                    self.sock.closed(self.now, conn, &mut self.above);
                }
                StreamOrder::Serve { .. } | StreamOrder::Ask { .. } => {}
                StreamOrder::HandOver { .. } => unreachable!("there is one shard"),
            }
        }
        while let Some(conn) = self.sock.poll_ready() {
            while let Some(piece) = self.sock.poll_send(self.now, conn) {
                let payload = piece.payload.and_then(|(tx, _)| self.units[tx.0 as usize].said.payload());
                let bytes = [piece.head(), payload.unwrap_or_default()].concat();
                self.out.get_mut(&conn).unwrap().extend(&bytes);
                self.sock.sent(self.now, conn, bytes.len() as u64, &mut self.above);
            }
        }
        while let Some(ended) = self.sock.poll_ended() {
            self.ended.push(ended);
        }
        while self.sock.poll_report().is_some() || self.sock.poll_resumed().is_some() {}
    }

    /// Nothing was said or dialled that is not in the capture, and nothing went wrong.
    pub(crate) fn check_end(&self) {
        assert_eq!(self.dials, []);
        assert!(self.out.values().all(VecDeque::is_empty), "{:?}", self.out);
        let connections = self.conns.iter().flatten().count();
        assert_eq!(self.sock.usage().connections as usize, connections);
        let is_fine = |event| {
            use SocklndEvent::{Accepted, DialFailed, Dialled, Established};
            matches!(event, Accepted | Dialled | Established | DialFailed)
        };
        let wrong: Vec<_> = self.sock.counters().iter().filter(|(event, _)| !is_fine(*event)).collect();
        assert!(wrong.iter().all(|(_, count)| *count == 0), "{wrong:?}");
        let lost = self.ended.iter().filter(|(_, status)| *status != Status::Ok).count() as u64;
        assert_eq!(lost, self.count(SocklndEvent::DialFailed));
        assert_eq!(self.ended.len() as u64, self.submitted.len() as u64 + lost);
    }

    pub(crate) fn count(&self, event: SocklndEvent) -> u64 {
        self.sock.counters().get(event)
    }

    /// Messages that it has sent, and received.
    pub(crate) const fn messages(&self) -> [usize; 2] {
        [self.submitted.len(), self.above.received.len()]
    }
}
