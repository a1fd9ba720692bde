//! Diallers of the tcp LND that say what they like.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use lnet_wire::header::{LARGE_HEADER_BYTES, SMALL_HEADER_BYTES};
use lnet_wire::ping::{self, Features, NiStatus, PingNi};
use lnet_wire::socklnd::{
    ACCEPTOR_MAGIC, ByteOrder, CONNECTION_REQUEST_BYTES_MAX, ConnectionRequest, ConnectionType,
    HELLO_BYTES_MAX, HELLO_MAGIC, Hello, OLD_MAGIC, PORT, PREFIX_BYTES, Parsed, Prefix, PrefixKind, Version,
};
use lnet_wire::{Body, Header, MessageType, Nid, ProcessId, WireHandle};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

const PATIENCE: Duration = Duration::from_secs(20);
/// Ports that privileged diallers have.
const RESERVED: std::ops::Range<u16> = 512..1024;
/// Match bits of pings, at portal 0.
const PING_BITS: u64 = 1 << 63;

pub(crate) fn nid(address: Ipv4Addr) -> Nid {
    format!("{address}@tcp").parse().unwrap()
}

/// A stream from the last reserved port of an address that is free below this one, and the port.
pub(crate) fn privileged(from: Ipv4Addr, to: Ipv4Addr, below: u16) -> (TcpStream, u16) {
    for port in RESERVED.rev().filter(|port| *port < below) {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        set_socket_reuseaddr(&socket, true).unwrap();
        let connected = bind(&socket, &SocketAddr::from((from, port)))
            .and_then(|()| connect(&socket, &SocketAddr::from((to, PORT))));
        match connected {
            Ok(()) => return (TcpStream::from(socket), port),
            // Its last connection is remembered yet.
            Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
            Err(error) => panic!("{from}:{port} to {to}: {error}"),
        }
    }
    panic!("{from} has no reserved port below {below} left");
}

/// A connection request of version 1 in either byte order.
pub(crate) fn request(target: &Nid, order: ByteOrder) -> Vec<u8> {
    match order {
        ByteOrder::Little => {
            let mut bytes = [0; CONNECTION_REQUEST_BYTES_MAX];
            let length = ConnectionRequest { target: *target }.encode(&mut bytes);
            bytes[..length].to_vec()
        }
        ByteOrder::Big => {
            let small = target.to_small().unwrap().to_be_bytes();
            [&ACCEPTOR_MAGIC.to_be_bytes()[..], &1_u32.to_be_bytes(), &small].concat()
        }
    }
}

/// A HELLO in the name of `source`.
#[derive(Clone, Copy)]
pub(crate) struct Greeting {
    pub(crate) version: Version,
    pub(crate) source: Nid,
    pub(crate) destination: Nid,
    pub(crate) incarnation: u64,
    pub(crate) kind: ConnectionType,
    /// The byte order of its dialler.
    pub(crate) order: ByteOrder,
}

impl Greeting {
    pub(crate) fn new(source: Nid, destination: Nid) -> Self {
        let (kind, order) = (ConnectionType::Control, ByteOrder::Little);
        Self { version: Version::V3, source, destination, incarnation: 1, kind, order }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let hello = Hello {
            version: self.version,
            order: ByteOrder::Little,
            source: ProcessId::lustre(self.source),
            destination: ProcessId::lustre(self.destination),
            source_incarnation: self.incarnation,
            destination_incarnation: 0,
            connection: Some(self.kind),
        };
        let mut bytes = [0; HELLO_BYTES_MAX];
        let length = hello.encode(&mut bytes).unwrap();
        if self.order == ByteOrder::Big {
            self.swap(&mut bytes);
        }
        bytes[..length].to_vec()
    }

    /// Has a HELLO come from a big-endian node: NIDs of version 4 have one byte order only.
    fn swap(&self, bytes: &mut [u8]) {
        let numbers: &[(usize, usize)] = if self.version == Version::V4 {
            &[(0, 4), (4, 4), (48, 4), (52, 4), (56, 8), (64, 8), (72, 4), (76, 4)]
        } else {
            &[(0, 4), (4, 4), (8, 8), (16, 8), (24, 4), (28, 4), (32, 8), (40, 8), (48, 4), (52, 4)]
        };
        for (at, length) in numbers {
            bytes[*at..at + length].reverse();
        }
    }
}

/// A prefix of a message or of a NOOP.
pub(crate) fn prefix(kind: PrefixKind, checksum: u32, cookies: [u64; 2]) -> Vec<u8> {
    let mut bytes = [0; PREFIX_BYTES];
    Prefix { kind, checksum, cookies }.encode(&mut bytes);
    bytes.to_vec()
}

/// A message in a version of the protocol, without its payload.
pub(crate) fn message(version: Version, header: &Header) -> Vec<u8> {
    let mut bytes = if version == Version::V1 { Vec::new() } else { prefix(PrefixKind::Lnet, 0, [0; 2]) };
    if version == Version::V4 {
        let mut large = [0; LARGE_HEADER_BYTES];
        header.encode_large(&mut large);
        bytes.extend(large);
    } else {
        let mut small = [0; SMALL_HEADER_BYTES];
        header.encode_small(&mut small).unwrap();
        bytes.extend(small);
    }
    bytes
}

pub(crate) fn header(source: Nid, destination: Nid, payload_length: u32, body: Body) -> Header {
    let [source, destination] = [source, destination].map(ProcessId::lustre);
    Header { source, destination, payload_length, body }
}

pub(crate) fn put(portal: u32, match_bits: u64) -> Body {
    Body::Put { ack_md: WireHandle::NONE, match_bits, hdr_data: 0, portal, offset: 0 }
}

pub(crate) fn ping() -> Body {
    let return_md = WireHandle { interface_cookie: 1, object_cookie: 5 };
    Body::Get { return_md, match_bits: PING_BITS, portal: 0, offset: 0, sink_length: 272 }
}

/// What a node that is not Multi-Rail tells those who ping it.
pub(crate) fn told(nid: Nid) -> Vec<u8> {
    let interfaces = [PingNi { nid, status: NiStatus::UP }];
    let mut bytes = vec![0; ping::encoded_bytes(interfaces).unwrap()];
    ping::write(&mut bytes, Features::NI_STATUS, ProcessId::LUSTRE_PID, 1, interfaces).unwrap();
    bytes
}

/// A dialler and its stream.
pub(crate) struct Dialler {
    pub(crate) stream: TcpStream,
    /// The name in which it speaks, and whom to.
    pub(crate) greeting: Greeting,
}

impl Dialler {
    /// A dialler that has said its request and its HELLO, whatever the answer will be.
    pub(crate) fn greet(stream: TcpStream, greeting: Greeting) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut dialler = Self { stream, greeting };
        let said = [request(&greeting.destination, ByteOrder::Little), greeting.bytes()].concat();
        // The other end may have closed it.
        let _ = dialler.stream.write_all(&said);
        dialler
    }

    /// A dialler whose HELLO was answered with another.
    pub(crate) fn connected(stream: TcpStream, greeting: Greeting) -> Self {
        let mut dialler = Self::greet(stream, greeting);
        let answer = dialler.hello();
        assert!(answer.connection.is_some(), "{answer:?}");
        dialler
    }

    /// The HELLO that comes.
    pub(crate) fn hello(&mut self) -> Hello {
        let mut bytes = Vec::new();
        loop {
            match Hello::parse(&bytes).unwrap() {
                Parsed::Whole(hello, _) => return hello,
                Parsed::Needs(count) => {
                    let begin = bytes.len();
                    bytes.resize(count, 0);
                    self.stream.read_exact(&mut bytes[begin..]).unwrap();
                }
            }
        }
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Pings, and waits for the answer: it is taken for a peer yet.
    pub(crate) fn ping(&mut self) {
        let Greeting { version, source, order, .. } = self.greeting;
        let mut said = message(version, &header(source, self.greeting.destination, 0, ping()));
        if order == ByteOrder::Big {
            // The type is all that is not zero in this prefix.
            said[..4].reverse();
        }
        self.say(&said);
        loop {
            let (header, payload) = self.next_message();
            if header.message_type() == MessageType::Reply {
                assert_eq!(payload[..4], 0x7069_6E67_u32.to_le_bytes(), "a ping's answer");
                return;
            }
        }
    }

    /// Waits until it is pinged, and answers with these bytes.
    pub(crate) fn answer(&mut self, bytes: &[u8]) {
        loop {
            if let (Header { body: Body::Get { return_md, .. }, .. }, _) = self.next_message() {
                return self.reply(return_md, bytes);
            }
        }
    }

    /// Answers a GET.
    pub(crate) fn reply(&mut self, md: WireHandle, bytes: &[u8]) {
        let Greeting { source, destination, version, .. } = self.greeting;
        let header = header(source, destination, bytes.len() as u32, Body::Reply { md });
        self.say(&[&message(version, &header), bytes].concat());
    }

    /// The next message that comes, without NOOPs.
    fn next_message(&mut self) -> (Header, Vec<u8>) {
        self.try_next_message().unwrap()
    }

    /// The next message, or why none comes any more.
    pub(crate) fn try_next_message(&mut self) -> io::Result<(Header, Vec<u8>)> {
        let version = self.greeting.version;
        let prefix_bytes = if version == Version::V1 { 0 } else { PREFIX_BYTES };
        loop {
            let mut prefix = vec![0; prefix_bytes];
            self.stream.read_exact(&mut prefix)?;
            let is_noop = prefix.first_chunk().is_some_and(|bytes| {
                Prefix::decode(bytes, ByteOrder::Little).unwrap().kind == PrefixKind::Noop
            });
            if is_noop {
                continue;
            }
            let header = if version == Version::V4 {
                let mut bytes = [0; LARGE_HEADER_BYTES];
                self.stream.read_exact(&mut bytes)?;
                Header::decode_large(&bytes).unwrap()
            } else {
                let mut bytes = [0; SMALL_HEADER_BYTES];
                self.stream.read_exact(&mut bytes)?;
                Header::decode_small(&bytes).unwrap()
            };
            let mut payload = vec![0; header.payload_length as usize];
            self.stream.read_exact(&mut payload)?;
            return Ok((header, payload));
        }
    }
}

/// What comes on a stream until it is closed.
pub(crate) fn rest(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut heard = Vec::new();
    match stream.read_to_end(&mut heard) {
        Ok(_) => {}
        // There was more than was read.
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
        Err(error) => panic!("it is not closed: {error}, after {heard:02x?}"),
    }
    heard
}

/// Waits for the end of a stream that is to say nothing more.
pub(crate) fn waits_for_end(stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    match (&mut &*stream).read(&mut [0]) {
        Ok(0) => true,
        Ok(_) => panic!("it says something"),
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}

/// What a listener says of its own protocol.
pub(crate) fn own_request() -> Vec<u8> {
    [&ACCEPTOR_MAGIC.to_le_bytes()[..], &1_u32.to_le_bytes(), &[0; 8]].concat()
}

/// Magics of others, and of this protocol where they do not belong.
pub(crate) const OTHER_MAGICS: [u32; 5] = [OLD_MAGIC, 0x0BE9_1B91, 0xDEAD_BEEF, 0, u32::MAX];
pub(crate) const OWN_MAGIC: u32 = HELLO_MAGIC;
