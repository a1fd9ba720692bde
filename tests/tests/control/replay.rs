//! What a kernel node said once, said again to a live daemon in the other node's place: byte for byte but for the
//! handles that the daemon made itself. What the daemon answers is what the kernel node answered.
//!
//! The daemon has the part of node 2, which answers. Node 1's part of the selftest captures cannot be played: its console makes
//! up the numbers of sessions, calls and bulk data, and all that node 2 said has them. Those of `e_router` cannot either: a
//! daemon has no routes yet. The protocol itself plays every part of every capture (the test `replay`).

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use lnet_tests::netns::{NETNS_NODES, Netns, Wiring, enter, ip, require_privilege};
use lnet_wire::header::SMALL_HEADER_BYTES;
use lnet_wire::selftest::{Body as SelftestBody, Message};
use lnet_wire::socklnd::{ByteOrder, Hello, PREFIX_BYTES, Parsed, Prefix, PrefixKind};
use lnet_wire::{Body, Header, PingInfo, WireHandle};

use crate::dialler::privileged;
use crate::pcap::{Connection, connections};
use crate::run::{Daemon, Directory};
use crate::said::{Said, Unit, units};

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it is to say nothing more.
const SILENCE: Duration = Duration::from_millis(300);
/// Where ping information has the number of its changes, in place of the loopback NI's status.
const SEQUENCE: std::ops::Range<usize> = 24..28;

/// Bulk data of which the capture has not every packet.
const BULK_BYTES: usize = 1 << 20;

/// The kernel node's part, and what it has learnt of the daemon.
#[derive(Default)]
struct Player {
    streams: Vec<Option<TcpStream>>,
    /// Handles of the capture, and the daemon's in their place.
    handles: HashMap<WireHandle, WireHandle>,
    incarnation: Option<u64>,
    /// What came before what is waited for, with its connection.
    early: Vec<(usize, Said)>,
    heard: usize,
}

impl Player {
    /// Says what the kernel node said, with the daemon's handles.
    fn say(&mut self, unit: &Unit) {
        let mut said = unit.said.clone();
        match &mut said {
            Said::Message { header, .. } => {
                if let Body::Ack { md, .. } | Body::Reply { md } = &mut header.body {
                    *md = *self.handles.get(md).unwrap_or_else(|| panic!("the daemon has made no {md:?}"));
                }
            }
            // The daemon asks for no acknowledgements, and gets none.
            Said::Noop(_) => return,
            Said::Request(_) | Said::Hello(_) => assert_eq!(said.encode(), unit.bytes),
        }
        let mut stream = self.streams[unit.connection].as_ref().unwrap();
        stream.write_all(&said.encode()).unwrap();
    }

    /// Hears what the daemon says in the place of what the kernel node said.
    fn hear(&mut self, unit: &Unit) {
        let mut stream = self.streams[unit.connection].as_ref().unwrap();
        let what = format!("C{} packet {}: {:?}", unit.connection + 1, unit.packet, unit.said);
        let is_it = |(connection, said): &(usize, Said)| {
            *connection == unit.connection && kind(said) == kind(&unit.said)
        };
        // A push and the ACK of another have no order: those of the captures do not either.
        let said = loop {
            if let Some(index) = self.early.iter().position(is_it) {
                break self.early.remove(index).1;
            }
            match heard(&mut stream, unit.index == 0) {
                Ok(said) => self.early.push((unit.connection, said)),
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
                let life = *self.incarnation.get_or_insert(ours.source_incarnation);
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

/// Takes counters and the number of changes from the daemon's payload, which are those of its life. Of a mebibyte of bulk
/// data the capture has the ends alone, which is also what its sink looks at.
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

/// The next thing that is said on a stream, a HELLO or what comes after it.
fn heard(stream: &mut impl Read, is_hello: bool) -> std::io::Result<Said> {
    if is_hello {
        let mut bytes = Vec::new();
        loop {
            match Hello::parse(&bytes).unwrap() {
                Parsed::Whole(hello, _) => return Ok(Said::Hello(hello)),
                Parsed::Needs(count) => {
                    let begin = bytes.len();
                    bytes.resize(count, 0);
                    stream.read_exact(&mut bytes[begin..])?;
                }
            }
        }
    }
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

/// Plays what was said to node 2, by whom the connections were dialled, in the order of the capture; how many things the
/// daemon has said.
fn play(connections: &[Connection], units: &[Unit]) -> usize {
    let mut player = Player::default();
    player.streams.resize_with(connections.len(), || None);
    let mut order: Vec<&Unit> = units.iter().collect();
    order.sort_by_key(|unit| unit.packet);
    let mut below = 1024;
    for unit in order {
        let Connection { dialler, listener, .. } = &connections[unit.connection];
        if player.streams[unit.connection].is_none() {
            let (stream, port) = privileged(*dialler.ip(), *listener.ip(), below);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_nodelay(true).unwrap();
            below = port;
            player.streams[unit.connection] = Some(stream);
        }
        match unit.direction {
            0 => player.say(unit),
            _ => player.hear(unit),
        }
    }
    assert_eq!(player.early, []);
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

/// The daemon is node 2 of a capture, which node 1 dialled.
fn check(name: &str) {
    if !require_privilege("a daemon over veth", &NETNS_NODES) {
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/captures").join(name).with_extension("pcap");
    let connections = connections(&path);
    let units = units(&connections);
    let netns = Netns::new(Wiring::default());
    for (namespace, address) in [(netns.a(), "10.77.0.12/24"), (netns.b(), "10.77.0.11/24")] {
        let interface = &namespace.interface().name;
        ip(namespace, &format!("addr flush dev {interface}"));
        ip(namespace, &format!("addr add {address} dev {interface}"));
    }
    let daemon = Daemon::start(Directory::new(), Some(netns.a()), "--selftest --shards 1 --spin 0");
    daemon.good("lnet configure");
    daemon.good(&format!("net add --net tcp --if {}", netns.a().interface().name));
    let heard = enter(netns.b(), || play(&connections, &units));
    let expected = units.iter().filter(|unit| unit.direction == 1).count();
    assert_eq!(heard, expected);
}

#[test]
fn a_live_daemon_answers_a_ping_and_a_discovery_as_the_kernel_node_did() {
    check("a_single_ping");
}

#[test]
fn a_live_daemon_answers_a_selftest_of_pings_as_the_kernel_node_did() {
    check("c1_lst_ping");
}

#[test]
fn a_live_daemon_answers_reads_as_the_kernel_node_did() {
    check("c2_brw_read_4k");
}

#[test]
fn a_live_daemon_answers_writes_as_the_kernel_node_did() {
    check("c3_brw_write_4k");
}

#[test]
fn a_live_daemon_answers_reads_of_a_mebibyte_as_the_kernel_node_did() {
    check("c4_brw_read_1m");
}
