//! What a kernel node said once, said again to a live daemon in the other node's place: byte for byte but for
//! the handles that the daemon made itself. What the daemon answers is what the kernel node answered.
//!
//! The daemon has the part of node 2, which answers, and in the pings and discoveries that of node 1 too,
//! which is told to begin them. Which of several NIs are taken is not compared but prescribed where it
//! follows from all that went before: LNet counts responses and messages with a given source when it takes
//! NIs in turn, and this stack does not. Nor are the daemon's questions to NIDs that a peer claims, which a
//! kernel node does not ask: its list answers them, on whatever connection they come.
//!
//! Node 1's part of the selftest captures cannot be played: its console makes up the numbers of sessions,
//! calls and bulk data, and all that node 2 said has them. Those of `e_router` cannot either: a daemon has no
//! routes yet. In `d_down_reject` nothing is said. The protocol itself plays every part of every capture (the
//! test `replay`).

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lnet_tests::netns::{NETNS_NODES, Netns, Wiring, enter, ip, require_privilege, wait_until};
use lnet_wire::header::SMALL_HEADER_BYTES;
use lnet_wire::selftest::{Body as SelftestBody, Message};
use lnet_wire::socklnd::{
    ByteOrder, ConnectionRequest, ConnectionType, Hello, PORT, PREFIX_BYTES, Parsed, Prefix, PrefixKind,
};
use lnet_wire::{Body, Header, Nid, PingInfo, ProcessId, WireHandle};

use crate::dialler::privileged;
use crate::pcap::{Connection, connections};
use crate::run::{Daemon, Directory};
use crate::said::{Said, Unit, units};

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Match bits of pings and pushes.
const PING_MATCH_BITS: u64 = 1 << 63;
/// How long it is to say nothing more.
const SILENCE: Duration = Duration::from_millis(300);
/// Where ping information has the number of its changes, in place of the loopback NI's status.
const SEQUENCE: std::ops::Range<usize> = 24..28;

/// Bulk data of which the capture has not every packet.
const BULK_BYTES: usize = 1 << 20;
/// Diallers have ports below this.
const RESERVED_END: u16 = 1024;

/// A command to the daemon, and before what the daemon says it is given: the number of a connection in the
/// texts of the captures, and how many things the daemon has said on it.
type Told = (usize, usize, &'static str);

/// What the daemon plays.
struct Part {
    capture: &'static str,
    /// The number of the node that it is.
    host: u8,
    /// How many interfaces each node has NIs on.
    interfaces: u8,
    /// Selection policies, by which the daemon takes the paths that the kernel node took.
    policies: &'static [&'static str],
    told: &'static [Told],
    /// NIDs of which it asks one at least whose it is.
    asks: &'static [&'static str],
}

/// Answers of the kernel node where it is asked beside the capture: who it is.
struct Answers {
    /// The life of each of its NIs.
    lives: HashMap<Nid, u64>,
    /// Ping information that it has told last, and the prefix of its messages.
    told: Option<(Prefix, Vec<u8>)>,
    /// The NIDs that were asked.
    asked: Mutex<Vec<Nid>>,
}

impl Answers {
    fn new(connections: &[Connection], host: u8, units: &[Unit]) -> Self {
        let (mut lives, mut told) = (HashMap::new(), None);
        for unit in units.iter().filter(|unit| !is_said_by(host, connections, unit)) {
            match &unit.said {
                Said::Hello(hello) => drop(lives.insert(hello.source.nid, hello.source_incarnation)),
                Said::Message { prefix, payload, .. } if PingInfo::parse(payload).is_ok() => {
                    told = Some((Prefix { cookies: [0; 2], ..*prefix }, payload.clone()));
                }
                _ => {}
            }
        }
        Self { lives, told, asked: Mutex::default() }
    }

    /// Answers what the daemon asks on a stream that it has dialled, for as long as it is open.
    fn answer(&self, mut stream: TcpStream) {
        let request = whole(&mut stream, ConnectionRequest::parse).unwrap();
        let hello = whole(&mut stream, Hello::parse).unwrap();
        let own = Hello {
            source: ProcessId::lustre(request.target),
            destination: hello.source,
            source_incarnation: self.lives[&request.target],
            connection: hello.connection.map(ConnectionType::inverted),
            ..hello
        };
        stream.write_all(&Said::Hello(own).encode()).unwrap();
        while let Ok(said) = heard_message(&mut stream) {
            assert!(self.is_answered(&said, &mut stream), "{said:?} is no question");
        }
    }

    /// Answers a GET, if this is one.
    fn is_answered(&self, said: &Said, stream: &mut impl Write) -> bool {
        let Said::Message { header: asking @ Header { body: Body::Get { return_md, .. }, .. }, .. } = said
        else {
            return false;
        };
        let (prefix, payload) = self.told.clone().unwrap();
        let header = Header {
            destination: asking.source,
            source: asking.destination,
            payload_length: payload.len() as u32,
            body: Body::Reply { md: *return_md },
        };
        stream.write_all(&Said::Message { prefix, header, payload }.encode()).unwrap();
        self.asked.lock().unwrap().push(asking.destination.nid);
        true
    }

    /// Answers what is said on a connection of the capture, if it is a question, and `due` is not its like.
    fn takes(&self, said: &Said, due: &Said, stream: &mut impl Write) -> bool {
        let room = |said: &Said| match said {
            Said::Message { header: Header { body: Body::Get { sink_length, .. }, .. }, .. } => {
                Some(*sink_length)
            }
            _ => None,
        };
        room(said).is_some() && room(said) != room(due) && self.is_answered(said, stream)
    }
}

/// The kernel node's part, and what it has learnt of the daemon.
struct Player<'a> {
    connections: &'a [Connection],
    streams: Vec<Option<TcpStream>>,
    listeners: Vec<TcpListener>,
    /// The ends of the connections that the daemon dials in the capture, its own first.
    dialled: Vec<[IpAddr; 2]>,
    /// Answers on all others.
    answers: Arc<Answers>,
    /// Connections that the daemon has dialled, and that have not been spoken on yet.
    accepted: Vec<TcpStream>,
    /// The port below which the last stream was dialled from.
    below: u16,
    /// Handles of the capture, and the daemon's in their place.
    handles: HashMap<WireHandle, WireHandle>,
    /// The life of each of the daemon's NIs.
    incarnations: HashMap<Nid, u64>,
    /// What came before what is waited for, with its connection.
    early: Vec<(usize, Said)>,
    heard: usize,
    /// A push that came by another rail, and was not acknowledged: its stream, from whom and to whom.
    pushed: Option<(usize, ProcessId, ProcessId)>,
    /// The NIDs that the daemon asks whose they are.
    asks: &'static [&'static str],
}

impl<'a> Player<'a> {
    /// Listens where the kernel node did.
    fn new(connections: &'a [Connection], part: &Part, answers: Arc<Answers>) -> Self {
        let Part { host, asks, .. } = *part;
        let ends_of = |Connection { dialler, listener, .. }: &Connection| {
            [dialler, listener].map(|end| SocketAddr::from(*end).ip())
        };
        let by_daemon = connections.iter().filter(|connection| is_of(host, connection.dialler.ip()));
        let mut addresses: Vec<Ipv4Addr> =
            connections.iter().map(|connection| *connection.listener.ip()).collect();
        addresses.retain(|address| !is_of(host, address));
        addresses.sort();
        addresses.dedup();
        let listen = |address| {
            let listener = TcpListener::bind((address, PORT)).unwrap();
            listener.set_nonblocking(true).unwrap();
            listener
        };
        Self {
            connections,
            streams: connections.iter().map(|_| None).collect(),
            listeners: addresses.into_iter().map(listen).collect(),
            dialled: by_daemon.map(ends_of).collect(),
            answers,
            accepted: Vec::new(),
            below: RESERVED_END,
            handles: HashMap::new(),
            incarnations: HashMap::new(),
            early: Vec::new(),
            heard: 0,
            pushed: None,
            asks,
        }
    }

    /// Dials a connection, or waits for the daemon to do it.
    fn open(&mut self, connection: usize, is_own: bool) {
        if self.streams[connection].is_some() {
            return;
        }
        let Connection { dialler, listener, .. } = &self.connections[connection];
        let stream = if is_own {
            let (stream, port) = privileged(*dialler.ip(), *listener.ip(), self.below);
            self.below = port;
            stream
        } else {
            self.accept(connection)
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        self.streams[connection] = Some(stream);
    }

    /// The daemon's next connection between the addresses of this one.
    fn accept(&mut self, connection: usize) -> TcpStream {
        let Connection { dialler, listener, .. } = &self.connections[connection];
        let expected = [dialler, listener].map(|end| SocketAddr::from(*end).ip());
        let mut found = None;
        wait_until(&format!("C{} is dialled: {expected:?}", connection + 1), PATIENCE, || {
            self.accept_all();
            found = self.accepted.iter().position(|stream| ends_of(stream) == expected);
            found.is_some() || !self.accepted.is_empty() && panic!("{:?} came instead", self.accepted)
        });
        let stream = self.accepted.remove(found.unwrap());
        stream.set_nonblocking(false).unwrap();
        stream
    }

    /// Takes what the daemon has dialled; by what the capture has not, the kernel node is asked.
    fn accept_all(&mut self) {
        for (stream, _) in self.listeners.iter().flat_map(TcpListener::accept) {
            if self.dialled.contains(&ends_of(&stream)) {
                self.accepted.push(stream);
            } else {
                stream.set_nonblocking(false).unwrap();
                let answers = Arc::clone(&self.answers);
                thread::spawn(move || answers.answer(stream));
            }
        }
    }

    /// Says what the kernel node said, with the daemon's handles.
    fn say(&mut self, unit: &Unit) {
        let (mut said, mut connection) = (unit.said.clone(), unit.connection);
        match &mut said {
            Said::Message { header, .. } => {
                if let Body::Ack { .. } = header.body
                    && let Some((by, source, destination)) = self.pushed.take()
                {
                    connection = by;
                    (header.source, header.destination) = (destination, source);
                }
                if let Body::Ack { md, .. } | Body::Reply { md } = &mut header.body {
                    *md = *self.handles.get(md).unwrap_or_else(|| panic!("the daemon has made no {md:?}"));
                }
            }
            // The daemon asks for no acknowledgements, and gets none.
            Said::Noop(_) => return,
            Said::Request(_) | Said::Hello(_) => assert_eq!(said.encode(), unit.bytes),
        }
        let mut stream = self.streams[connection].as_ref().unwrap();
        stream.write_all(&said.encode()).unwrap();
    }

    /// The stream that the daemon pushes by: the kernel node's, or that of another of its rails, where it
    /// has asked by the one that was due.
    fn stream_of_push(&mut self, unit: &Unit) -> usize {
        let mut found = None;
        wait_until(&format!("C{} or another has a push", unit.connection + 1), PATIENCE, || {
            self.accept_all();
            let begins_with_push = |stream: &TcpStream| {
                let mut begin = [0; PREFIX_BYTES + SMALL_HEADER_BYTES];
                stream.set_nonblocking(true).unwrap();
                let count = stream.peek(&mut begin).unwrap_or(0);
                stream.set_nonblocking(false).unwrap();
                let header = begin.last_chunk().map(Header::decode_small);
                count == begin.len() && matches!(header, Some(Ok(Header { body: Body::Put { .. }, .. })))
            };
            found = self.streams.iter().position(|stream| stream.as_ref().is_some_and(begins_with_push));
            found.is_some()
        });
        found.unwrap()
    }

    /// Hears what the daemon says in the place of what the kernel node said.
    fn hear(&mut self, unit: &Unit) {
        let is_push = kind(&unit.said) == (3, PING_MATCH_BITS) && !self.asks.is_empty();
        let connection = if is_push { self.stream_of_push(unit) } else { unit.connection };
        let mut stream = self.streams[connection].as_ref().unwrap();
        let what = format!("C{} packet {}: {:?}", unit.connection + 1, unit.packet, unit.said);
        let is_it = |(connection, said): &(usize, Said)| {
            *connection == unit.connection && kind(said) == kind(&unit.said)
        };
        // A push and the ACK of another have no order: those of the captures do not either.
        let said = loop {
            if let Some(index) = self.early.iter().position(is_it) {
                break self.early.remove(index).1;
            }
            match heard(&mut stream, unit) {
                Ok(said) if !self.asks.is_empty() && self.answers.takes(&said, &unit.said, &mut stream) => {}
                Ok(mut said) => {
                    if let (Said::Message { header, .. }, Said::Message { header: theirs, .. }) =
                        (&mut said, &unit.said)
                        && connection != unit.connection
                    {
                        self.pushed = Some((connection, header.source, header.destination));
                        (header.source, header.destination) = (theirs.source, theirs.destination);
                    }
                    self.early.push((unit.connection, said));
                }
                Err(error) => panic!("{error}: {what}; instead came {:?}", self.early),
            }
            assert!(self.early.len() <= 2, "{:?} came instead of {what}", self.early);
        };
        let expected = self.expected(&unit.said, &said);
        assert_eq!(said, expected, "{what}");
        self.heard += 1;
    }

    /// What the kernel node said, with what is the daemon's own.
    fn expected(&mut self, theirs: &Said, ours: &Said) -> Said {
        let mut expected = theirs.clone();
        match (&mut expected, ours) {
            (Said::Hello(theirs), Said::Hello(ours)) => {
                let life = *self.incarnations.entry(ours.source.nid).or_insert(ours.source_incarnation);
                assert_ne!(life, 0, "a life is no number");
                theirs.source_incarnation = life;
            }
            (
                Said::Message { prefix, header, payload },
                Said::Message { header: own, payload: own_payload, .. },
            ) => {
                // The daemon keeps no payload until its peer has seen it.
                prefix.cookies[0] = 0;
                self.learn(header, own);
                own_values(payload, own_payload);
            }
            _ => {}
        }
        expected
    }

    /// Takes the daemon's handle for the kernel node's where it has one.
    fn learn(&mut self, theirs: &mut Header, own: &Header) {
        let both = match (&mut theirs.body, &own.body) {
            (Body::Put { ack_md: theirs, .. }, Body::Put { ack_md: own, .. })
            | (Body::Get { return_md: theirs, .. }, Body::Get { return_md: own, .. }) => Some((theirs, own)),
            _ => None,
        };
        if let Some((theirs, own)) = both.filter(|(theirs, _)| **theirs != WireHandle::NONE) {
            assert_ne!(*own, WireHandle::NONE, "an answer is asked for");
            self.handles.insert(*theirs, *own);
            *theirs = *own;
        }
    }
}

/// What tells things that were said from others that are on their way at the same time.
fn kind(said: &Said) -> (u8, u64) {
    match said {
        Said::Request(_) => (0, 0),
        Said::Hello(_) => (1, 0),
        Said::Noop(_) => (2, 0),
        Said::Message { header, .. } => match header.body {
            Body::Put { match_bits, .. } => (3, match_bits),
            Body::Get { match_bits, .. } => (4, match_bits),
            Body::Ack { match_bits, .. } => (5, match_bits),
            Body::Reply { .. } => (6, 0),
            Body::Hello { .. } => (7, 0),
        },
    }
}

/// Takes counters and the number of changes from the daemon's payload, which are those of its life. Of a
/// mebibyte of bulk data the capture has the ends alone, which is also what its sink looks at.
fn own_values(theirs: &mut Vec<u8>, own: &[u8]) {
    if theirs.len() == BULK_BYTES && own.len() == BULK_BYTES {
        let ends = |payload: &[u8]| [payload.first_chunk::<8>().copied(), payload.last_chunk().copied()];
        assert_eq!(ends(own), ends(theirs), "the ends of bulk data");
        *theirs = own.to_vec();
    } else if PingInfo::parse(theirs).is_ok() && own.len() == theirs.len() {
        theirs[SEQUENCE].copy_from_slice(&own[SEQUENCE]);
    } else if let (Ok(message), Ok(answer)) = (Message::decode(theirs), Message::decode(own))
        && let (SelftestBody::StatReply(known), SelftestBody::StatReply(told)) = (&message.body, &answer.body)
    {
        let errors = |reply: &lnet_wire::selftest::StatReply| {
            (reply.status, reply.session, reply.framework.brw_errors, reply.framework.ping_errors)
        };
        assert_eq!(errors(told), errors(known));
        assert_eq!(answer.features, message.features);
        *theirs = own.to_vec();
    }
}

/// The next thing that is said on a stream, in the place of `unit`.
fn heard(stream: &mut impl Read, unit: &Unit) -> std::io::Result<Said> {
    match &unit.said {
        Said::Request(_) => whole(stream, ConnectionRequest::parse).map(Said::Request),
        Said::Hello(_) => whole(stream, Hello::parse).map(Said::Hello),
        Said::Noop(_) | Said::Message { .. } => heard_message(stream),
    }
}

/// The next message on a stream, or prefix without one.
fn heard_message(stream: &mut impl Read) -> std::io::Result<Said> {
    let mut bytes = [0; PREFIX_BYTES];
    stream.read_exact(&mut bytes)?;
    let prefix = Prefix::decode(&bytes, ByteOrder::Little).unwrap();
    if prefix.kind == PrefixKind::Noop {
        return Ok(Said::Noop(prefix));
    }
    let mut small = [0; SMALL_HEADER_BYTES];
    stream.read_exact(&mut small)?;
    let header = Header::decode_small(&small).unwrap();
    let mut payload = vec![0; header.payload_length as usize];
    stream.read_exact(&mut payload)?;
    Ok(Said::Message { prefix, header, payload })
}

/// Reads as many bytes as it takes.
fn whole<T, E: std::fmt::Debug>(
    stream: &mut impl Read,
    parse: fn(&[u8]) -> Result<Parsed<T>, E>,
) -> std::io::Result<T> {
    let mut bytes = Vec::new();
    loop {
        match parse(&bytes).unwrap() {
            Parsed::Whole(value, _) => return Ok(value),
            Parsed::Needs(count) => {
                let begin = bytes.len();
                bytes.resize(count, 0);
                stream.read_exact(&mut bytes[begin..])?;
            }
        }
    }
}

/// The addresses of a stream that the daemon has dialled, its own first.
fn ends_of(stream: &TcpStream) -> [IpAddr; 2] {
    let (from, to) = (stream.peer_addr().unwrap(), stream.local_addr().unwrap());
    assert!(from.port() < RESERVED_END, "{from} is not reserved");
    [from.ip(), to.ip()]
}

/// Whether node `host` says this.
fn is_said_by(host: u8, connections: &[Connection], unit: &Unit) -> bool {
    is_of(host, connections[unit.connection].dialler.ip()) == (unit.direction == 0)
}

/// Whether this is an address of node `host`.
fn is_of(host: u8, address: &Ipv4Addr) -> bool {
    address.octets()[3] == 10 + host
}

/// Waits for the end of what the daemon was told last.
fn obeyed(told: Option<Child>) {
    let Some(told) = told else { return };
    let output = told.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// Plays what was said to the daemon's node, and what that was told, in the order of the capture; how many
/// things the daemon has said in its place.
fn play(daemon: &Daemon, part: &Part, connections: &[Connection], units: &[Unit]) -> usize {
    let host = part.host;
    let answers = Arc::new(Answers::new(connections, host, units));
    let mut player = Player::new(connections, part, Arc::clone(&answers));
    let mut order: Vec<&Unit> = units.iter().collect();
    order.sort_by_key(|unit| unit.packet);
    let (mut told, mut doing) = (part.told.iter().peekable(), None);
    for unit in order {
        let dials = is_of(host, connections[unit.connection].dialler.ip());
        let is_heard = is_said_by(host, connections, unit);
        let is_told =
            |(connection, index, _): &&Told| (*connection, *index) == (unit.connection + 1, unit.index);
        if is_heard && let Some((_, _, words)) = told.next_if(is_told) {
            obeyed(doing.take());
            let mut command = daemon.lnetctl(words);
            doing = Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        }
        player.open(unit.connection, !dials);
        player.accept_all();
        if is_heard {
            player.hear(unit);
        } else {
            player.say(unit);
        }
    }
    obeyed(doing);
    assert!(told.next().is_none());
    // A NID that is claimed is a peer of its own until it is proven, and may be told the daemon's NIDs.
    player.early.retain(|(_, said)| part.asks.is_empty() || kind(said) != (3, PING_MATCH_BITS));
    assert_eq!(player.early, []);
    let asked = || answers.asked.lock().unwrap().iter().map(Nid::to_string).collect::<Vec<_>>();
    wait_until(&format!("one of {:?} is asked", part.asks), PATIENCE, || {
        player.accept_all();
        part.asks.is_empty() || part.asks.iter().any(|nid| asked().iter().any(|asked| asked == nid))
    });
    assert!(player.accepted.is_empty(), "the daemon dials more: {:?}", player.accepted);
    for stream in player.streams.iter().flatten() {
        stream.set_read_timeout(Some(SILENCE)).unwrap();
        let more = (&mut &*stream).read(&mut [0]).map_err(|error| error.kind());
        assert!(
            matches!(more, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)),
            "the daemon goes on: {more:?}"
        );
    }
    player.heard
}

fn check(part: &Part) {
    if !require_privilege("a daemon over veth", &NETNS_NODES) {
        return;
    }
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/captures");
    let connections = connections(&captures.join(part.capture).with_extension("pcap"));
    let units = units(&connections);
    let netns = Netns::new(Wiring { rails: part.interfaces, ..Wiring::default() });
    for (namespace, host) in [(netns.a(), part.host), (netns.b(), 3 - part.host)] {
        // Between NIDs of different interfaces packets come by one, and are answered by the other.
        enter(namespace, || std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "2").unwrap());
        for (rail, interface) in namespace.interfaces().iter().enumerate() {
            let name = &interface.name;
            ip(namespace, &format!("addr flush dev {name}"));
            ip(namespace, &format!("addr add 10.{}.0.{}/24 dev {name}", 77 + rail, 10 + host));
        }
    }
    // Kernel nodes take NIs without a route in their turn as well.
    for (rail, interface) in netns.a().interfaces().iter().enumerate() {
        let others = (0..usize::from(part.interfaces)).filter(|other| *other != rail);
        for other in others {
            let to = format!("10.{}.0.0/24", 77 + other);
            ip(netns.a(), &format!("route add {to} dev {} metric 200", interface.name));
        }
    }
    let daemon = Daemon::start(Directory::new(), Some(netns.a()), "--selftest --shards 1 --spin 0");
    daemon.good("lnet configure");
    for interface in netns.a().interfaces() {
        daemon.good(&format!("net add --net tcp --if {} --conns-per-peer 1", interface.name));
    }
    for policy in part.policies {
        daemon.good(&format!("udsp add {policy}"));
    }
    let heard = enter(netns.b(), || play(&daemon, part, &connections, &units));
    let is_ours = |unit: &&Unit| is_said_by(part.host, &connections, unit);
    assert_eq!(heard, units.iter().filter(is_ours).count());
}

/// The daemon is the node that is asked.
fn check_answers(capture: &'static str) {
    check(&Part { capture, host: 2, interfaces: 1, policies: &[], told: &[], asks: &[] });
}

#[test]
fn a_live_daemon_answers_a_ping_and_a_discovery_as_the_kernel_node_did() {
    check_answers("a_single_ping");
}

#[test]
fn a_live_daemon_pings_and_discovers_as_the_kernel_node_did() {
    check(&Part {
        capture: "a_single_ping",
        host: 1,
        interfaces: 1,
        policies: &[],
        told: &[
            (1, 0, "ping 10.77.0.12@tcp"),
            (1, 3, "ping 10.77.0.12@tcp"),
            (1, 4, "discover 10.77.0.12@tcp"),
        ],
        asks: &[],
    });
}

/// A policy says by which NIs it pushes.
#[test]
fn a_live_daemon_of_two_interfaces_is_discovered_as_the_kernel_node_was() {
    check(&Part {
        capture: "b_multirail",
        host: 2,
        interfaces: 2,
        policies: &["--src 10.78.0.12@tcp --priority 0", "--dst 10.78.0.11@tcp --priority 0"],
        told: &[],
        asks: &["10.77.0.11@tcp"],
    });
}

/// Pings of a peer of two NIs are told their source.
#[test]
fn a_live_daemon_of_two_interfaces_discovers_as_the_kernel_node_did() {
    const FIRST: &str = "ping --source 10.77.0.11@tcp 10.77.0.12@tcp";
    const SECOND: &str = "ping --source 10.78.0.11@tcp 10.78.0.12@tcp";
    check(&Part {
        capture: "b_multirail",
        host: 1,
        interfaces: 2,
        policies: &["--dst 10.77.0.12@tcp --priority 0", "--dst 10.78.0.12@tcp --src 10.77.0.11@tcp"],
        told: &[
            (1, 0, "ping 10.77.0.12@tcp"),
            (4, 0, "discover 10.77.0.12@tcp"),
            (1, 3, FIRST),
            (7, 2, SECOND),
            (1, 4, FIRST),
            (7, 3, SECOND),
            (7, 4, SECOND),
        ],
        // Whichever of both claims is proven first proves the other.
        asks: &["10.78.0.12@tcp", "10.77.0.12@tcp"],
    });
}

#[test]
fn a_live_daemon_answers_a_selftest_of_pings_as_the_kernel_node_did() {
    check_answers("c1_lst_ping");
}

#[test]
fn a_live_daemon_answers_reads_as_the_kernel_node_did() {
    check_answers("c2_brw_read_4k");
}

#[test]
fn a_live_daemon_answers_writes_as_the_kernel_node_did() {
    check_answers("c3_brw_write_4k");
}

#[test]
fn a_live_daemon_answers_reads_of_a_mebibyte_as_the_kernel_node_did() {
    check_answers("c4_brw_read_1m");
}
