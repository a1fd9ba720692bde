//! Captures of kernel nodes, decoded: every message means what the decoded text beside the capture says, and
//! encodes to the bytes that were captured.
//!
//! The framing around the headers (acceptor request, HELLO, 24-byte prefix) is read here only as far as it
//! takes to find them.
#![allow(clippy::unwrap_used, reason = "a capture that cannot be read fails the test")]

#[allow(dead_code, reason = "tests of other crates look at the order of packets")]
mod pcap;

use std::fmt::Write;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use lnet_wire::header::{LARGE_HEADER_BYTES, SMALL_HEADER_BYTES};
use lnet_wire::nid::NID_BYTES;
use lnet_wire::ping::{self, NiStatus};
use lnet_wire::{Body, Header, Nid, PingInfo, ProcessId, SteerKey};

const PREFIX_BYTES: usize = 24;
const REQUEST_BYTES: usize = 16;
const HELLO_BYTES: usize = 56;

fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/captures")
}

/// Messages by type, and ping informations, that a capture held.
#[derive(Default)]
struct Seen {
    messages: [usize; 4],
    pings: usize,
}

/// The bytes that are left of one direction of a connection.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(length);
        self.0 = tail;
        head
    }

    fn array<const N: usize>(&mut self) -> &'a [u8; N] {
        self.take(N).first_chunk().unwrap()
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(*self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(*self.array())
    }

    /// A NID in its small form, which must come out as it went in.
    fn nid(&mut self) -> Nid {
        let value = self.u64();
        let nid = Nid::from_small(value).unwrap();
        assert_eq!(nid.to_small(), Some(value));
        let large: [u8; NID_BYTES] = nid.to_bytes();
        assert_eq!(Nid::from_bytes(&large), Ok(nid));
        assert_eq!(nid.to_string().parse(), Ok(nid));
        nid
    }
}

fn acceptor_request(reader: &mut Reader) -> String {
    let raw = &reader.0[..REQUEST_BYTES];
    let (magic, version, nid) = (reader.u32(), reader.u32(), reader.nid());
    let mut line = format!("ACCEPTOR magic={magic:x} version={version:#x} nid={nid} (16 bytes) raw=");
    raw.iter().for_each(|byte| write!(line, "{byte:02x}").unwrap());
    line
}

fn hello(reader: &mut Reader) -> String {
    let before = reader.0.len();
    let (magic, version) = (reader.u32(), reader.u32());
    let (source, destination) = (reader.nid(), reader.nid());
    let (source_pid, destination_pid) = (reader.u32(), reader.u32());
    let (incarnation, destination_incarnation) = (reader.u64(), reader.u64());
    let kind = ["ANY", "CONTROL", "BULK_IN", "BULK_OUT"][reader.u32() as usize];
    let ip_count = reader.u32();
    assert_eq!(before - reader.0.len(), HELLO_BYTES);
    format!(
        "HELLO magic={magic:x} v{version} src={source}/{source_pid} dst={destination}/{destination_pid} \
         src_inc={incarnation:x} dst_inc={destination_incarnation:x} ctype={kind} nips={ip_count}"
    )
}

fn message(reader: &mut Reader, seen: &mut Seen) -> String {
    let mut prefix = Reader(reader.take(PREFIX_BYTES));
    let (kind, checksum, cookies) = (prefix.u32(), prefix.u32(), [prefix.u64(), prefix.u64()]);
    let framing = format!("csum={checksum:#x} zc=[{:#x},{:#x}]", cookies[0], cookies[1]);
    match kind {
        0xC0 => return format!("KSOCK NOOP {framing}"),
        0xC1 => {}
        other => panic!("prefix type {other:#x}"),
    }
    let bytes = reader.array::<SMALL_HEADER_BYTES>();
    let header = Header::decode_small(bytes).unwrap();
    assert_eq!(header.check_payload(), Ok(()));
    check_encodings(&header, bytes);
    seen.messages[header.message_type() as usize] += 1;
    let mut line = format!("KSOCK LNET {framing} | {}", described(&header));
    let payload = reader.take(header.payload_length as usize);
    if payload.starts_with(&ping::MAGIC.to_le_bytes()) {
        seen.pings += 1;
        line += &ping_info(payload);
    }
    line
}

fn check_encodings(header: &Header, bytes: &[u8; SMALL_HEADER_BYTES]) {
    let mut small = [0xAA; SMALL_HEADER_BYTES];
    assert_eq!(header.encode_small(&mut small), Ok(()));
    assert_eq!(small, *bytes);
    let mut large = [0xAA; LARGE_HEADER_BYTES];
    header.encode_large(&mut large);
    assert_eq!(Header::decode_large(&large), Ok(*header));
    assert_eq!(large[40..], bytes[16..]);
    assert!(SteerKey::of(header, 0, 0).is_some());
}

fn described(header: &Header) -> String {
    let process = |process: ProcessId| format!("{}/{}", process.nid, process.pid);
    let body = match header.body {
        Body::Ack { md, match_bits, manipulated_length } => {
            format!("dst_wmd={md} mbits={match_bits:#x} mlength={manipulated_length}")
        }
        Body::Put { ack_md, match_bits, hdr_data, portal, offset } => {
            format!("ack_wmd={ack_md} mbits={match_bits:#x} hdr_data={hdr_data:#x} ptl={portal} off={offset}")
        }
        Body::Get { return_md, match_bits, portal, offset, sink_length } => format!(
            "ret_wmd={return_md} mbits={match_bits:#x} ptl={portal} src_off={offset} sink_len={sink_length}"
        ),
        Body::Reply { md } => format!("dst_wmd={md}"),
        Body::Hello { .. } => panic!("a HELLO among the messages"),
    };
    let (source, destination) = (process(header.source), process(header.destination));
    format!("{} {source} -> {destination} len={} {body}", header.message_type(), header.payload_length)
}

fn ping_info(payload: &[u8]) -> String {
    let info = PingInfo::parse(payload).unwrap();
    assert!(!info.is_truncated());
    assert_eq!(info.full_bytes(), payload.len());
    let interfaces: Vec<_> = info.interfaces().collect();
    assert_eq!(info.primary(), Some(interfaces[0].nid));

    let mut again = vec![0xAA; payload.len()];
    let length =
        ping::write(&mut again, info.features(), info.pid(), info.sequence(), interfaces.iter().copied());
    assert_eq!(length, Ok(payload.len()));
    assert_eq!(again, payload);

    let (features, pid, count) = (info.features().0, info.pid(), interfaces.len() + 1);
    let mut line = format!(" PINGINFO magic={:x} feat={features:#x} pid={pid} nnis={count}", ping::MAGIC);
    write!(line, " {{0.0.0.0@lo status={:08x} msgsz/unused=0}}", info.sequence()).unwrap();
    for interface in interfaces {
        assert!([NiStatus::UP, NiStatus::DOWN].contains(&interface.status));
        write!(line, " {{{} status={:08x} msgsz/unused=0}}", interface.nid, interface.status.0).unwrap();
    }
    line
}

/// The lines of one direction of a connection.
fn lines_of(connection: &pcap::Connection, direction: usize, seen: &mut Seen) -> Vec<String> {
    let mut reader = Reader(&connection.streams[direction]);
    let mut lines = Vec::new();
    if direction == 0 {
        lines.push(format!("SYN {} > {}", connection.dialler, connection.listener));
        lines.push(acceptor_request(&mut reader));
    }
    lines.push(hello(&mut reader));
    while !reader.0.is_empty() {
        lines.push(message(&mut reader, seen));
    }
    lines
}

/// The decoded text of one direction of a connection.
fn expected_lines(text: &str, connection: usize, direction: usize) -> Vec<String> {
    let mark = format!(" C{connection} {} ", ["->", "<-"][direction]);
    text.lines().filter_map(|line| line.split_once(&mark)).map(|(_, line)| line.trim().to_string()).collect()
}

/// `messages`: how many ACK, PUT, GET, REPLY the capture has; `pings`: how many ping informations.
fn check(name: &str, messages: [usize; 4], pings: usize) {
    let text = fs::read_to_string(captures().join(name).with_extension("txt")).unwrap();
    let connections = pcap::connections(&captures().join(name).with_extension("pcap"));
    let mut seen = Seen::default();
    let mut line_count = 0;
    for (index, connection) in connections.iter().enumerate() {
        assert!(connection.lacking_bytes == 0 || name == "c4_brw_read_1m");
        for direction in [0, 1] {
            let lines = lines_of(connection, direction, &mut seen);
            assert_eq!(lines, expected_lines(&text, index + 1, direction), "{name}, C{}", index + 1);
            line_count += lines.len();
        }
    }
    assert_eq!(line_count, text.lines().count());
    assert_eq!((seen.messages, seen.pings), (messages, pings));
}

#[test]
fn a_single_ping() {
    check("a_single_ping", [2, 2, 3, 3], 5);
}

#[test]
fn multi_rail() {
    check("b_multirail", [2, 2, 7, 7], 9);
}

#[test]
fn selftest_ping() {
    check("c1_lst_ping", [2, 24, 1, 1], 3);
}

#[test]
fn selftest_read() {
    check("c2_brw_read_4k", [2, 23, 1, 1], 3);
}

#[test]
fn selftest_write() {
    check("c3_brw_write_4k", [2, 20, 4, 4], 3);
}

#[test]
fn selftest_read_of_a_mebibyte() {
    check("c4_brw_read_1m", [2, 20, 1, 1], 3);
}

#[test]
fn router() {
    check("e_router", [13, 13, 10, 10], 23);
}

/// The NIDs of the nodes, as the README of the captures tells them.
#[test]
fn nids_are_those_of_the_nodes() {
    let connections = pcap::connections(&captures().join("e_router.pcap"));
    let mut nets = Vec::new();
    for connection in &connections {
        // The acceptor request ends in the NID that was dialled; the HELLO has the dialler's as third field.
        let mut reader = Reader(&connection.streams[0]);
        let (_, target) = (reader.u64(), reader.nid());
        let (_, source) = (reader.u64(), reader.nid());
        assert_eq!(target.ip(), Some(IpAddr::V4(*connection.listener.ip())));
        assert_eq!(source.ip(), Some(IpAddr::V4(*connection.dialler.ip())));
        assert_eq!(source.net(), target.net());
        nets.push(target.net().to_string());
    }
    nets.sort_unstable();
    nets.dedup();
    assert_eq!(nets, ["tcp", "tcp1"]);
}
