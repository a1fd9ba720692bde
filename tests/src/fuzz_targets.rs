//! Bodies of the fuzz targets: what must hold of any bytes. The fuzzer (`tests/fuzz`) includes this file
//! and searches for bytes of which it does not hold; the replay test runs it over the corpus.
//!
//! The bodies use the pure crates and the tool's end of `lnet-control` alone, so that the fuzzer has little
//! to instrument.

#[path = "fuzz_control/mod.rs"]
mod fuzz_control;
#[path = "fuzz_managed/mod.rs"]
mod fuzz_managed;
#[path = "fuzz_rpc/mod.rs"]
mod fuzz_rpc;
#[path = "fuzz_shard/mod.rs"]
mod fuzz_shard;
#[path = "fuzz_socklnd/mod.rs"]
mod fuzz_socklnd;
#[path = "fuzz_transfer/mod.rs"]
mod fuzz_transfer;

use std::str::FromStr;

use lnet_wire::frame::FRAME_HEADER_BYTES;
use lnet_wire::header::{LARGE_HEADER_BYTES, SMALL_HEADER_BYTES};
use lnet_wire::packet::{self, Endpoint, Located, Packet, Reason};
use lnet_wire::ping::{self, PingError};
use lnet_wire::selftest::{Body, Message, MessageError};
use lnet_wire::steer::{PORTALS, PolicyWord, QUEUES_MAX, SHARDS_MAX, shard_of};
use lnet_wire::verdict::{self, Tables};
use lnet_wire::{FrameHeader, Header, HeaderError, MessageType, Net, Nid, PingInfo, ProcessId, Verdict};

pub use fuzz_control::control;
pub use fuzz_managed::{document, request};
pub use fuzz_rpc::{rpc_message, rpc_record};
pub use fuzz_shard::shard;
pub use fuzz_socklnd::{connection_request, hello, prefix, socklnd};
pub use fuzz_transfer::transfer;

/// A fuzz target: panics if something does not hold of these bytes.
pub type Target = fn(&[u8]);

/// All targets with their names, which are those of the corpus directories.
pub const TARGETS: [(&str, Target); 16] = [
    ("connection_request", connection_request),
    ("control", control),
    ("document", document),
    ("frame", frame),
    ("header", header),
    ("hello", hello),
    ("nid_text", nid_text),
    ("ping", ping),
    ("prefix", prefix),
    ("request", request),
    ("rpc_message", rpc_message),
    ("rpc_record", rpc_record),
    ("selftest", selftest),
    ("shard", shard),
    ("socklnd", socklnd),
    ("transfer", transfer),
];

/// Bytes of a `frame` input in front of the packet: queue, shards, flags, readable bytes (2), and the word
/// that the policies of all portals are made of (8).
pub const FRAME_INPUT_BYTES: usize = 13;
/// Flag of a `frame` input: every endpoint is ours; otherwise that of [`FRAME_ENDPOINT`] alone.
pub const FRAME_ALL_OURS: u8 = 1;
/// 10.0.0.2, port 988.
pub const FRAME_ENDPOINT: Endpoint =
    packet::endpoint(core::net::IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2)), 988);

/// The tables of a `frame` input.
struct InputTables {
    shards: u8,
    flags: u8,
    word: u64,
}

impl Tables for InputTables {
    fn is_ours(&self, located: &Located) -> bool {
        self.flags & FRAME_ALL_OURS != 0 || located.destination == FRAME_ENDPOINT
    }

    fn policy(&self, portal: u8) -> PolicyWord {
        PolicyWord(self.word.rotate_left(u32::from(portal)))
    }

    fn shards(&self) -> u32 {
        u32::from(self.shards)
    }
}

/// A packet of which only the first bytes can be read, as XDP has it of a frame in several buffers.
struct Linear<'a> {
    packet: &'a [u8],
    readable_bytes: usize,
}

impl Packet for Linear<'_> {
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.packet[..self.readable_bytes].load(offset)
    }

    fn has(&self, bytes: usize) -> bool {
        bytes <= self.packet.len()
    }
}

/// A packet and the tables that it meets: steering is the composition of its steps, chooses a shard that
/// exists, and needs nothing of the packet but its headers.
pub fn frame(input: &[u8]) {
    let Some((head, packet)) = input.split_first_chunk::<FRAME_INPUT_BYTES>() else { return };
    let [queue, shards, flags, readable @ ..] = *head;
    let [low, high, word @ ..] = readable;
    let queue = u32::from(queue);
    let tables = InputTables { shards, flags, word: u64::from_le_bytes(word) };
    let verdict = verdict::steer(packet, queue, &tables);
    assert_eq!(verdict, by_steps(packet, queue, &tables));

    let readable_bytes = usize::from(u16::from_le_bytes([low, high])).min(packet.len());
    let linear = Linear { packet, readable_bytes };
    let of_linear = verdict::steer(&linear, queue, &tables);
    assert!(of_linear == verdict || of_linear == Verdict::Pass(Reason::Truncated));
    if let Verdict::Redirect { shard, key } = verdict {
        assert!(queue < QUEUES_MAX && shard < u32::from(shards) && u32::from(shards) <= SHARDS_MAX);
        assert!(key.message_type != MessageType::Hello && usize::from(key.portal) < PORTALS);
    }
}

fn by_steps(packet: &[u8], queue: u32, tables: &InputTables) -> Verdict {
    let located = match packet::locate(packet) {
        Ok(located) => located,
        Err(reason) => return Verdict::Pass(reason),
    };
    let end = located.payload_offset + located.payload_length;
    let datagram = packet.get(located.payload_offset..end).expect("a datagram within its packet");
    if !tables.is_ours(&located) {
        return Verdict::Pass(Reason::NotOurs);
    }
    let frame = match packet::frame_header(packet, &located) {
        Ok(frame) => frame,
        Err(reason) => {
            assert!(reason.is_refusal(), "{reason:?} of a packet that can be read to its end");
            return Verdict::Pass(reason);
        }
    };
    let payload_bytes = datagram.len() - frame.covered_bytes();
    let end = u64::from(frame.fragment_offset) + payload_bytes as u64;
    assert!(frame.bundled || end <= u64::from(frame.total_length));
    let mut bytes = [0xAA; FRAME_HEADER_BYTES];
    frame.encode(&mut bytes);
    assert_eq!(FrameHeader::decode(&bytes, datagram.len()), Ok(frame));
    if queue >= QUEUES_MAX || !(1..=SHARDS_MAX).contains(&tables.shards()) {
        return Verdict::Pass(Reason::NoShard);
    }
    let policy = tables.policy(frame.key.portal);
    if let Some(policy_of_word) = policy.unpack() {
        assert_eq!(policy_of_word.pack(), Ok(policy));
    }
    Verdict::Redirect { shard: shard_of(&frame.key, policy, tables.shards()), key: frame.key }
}

/// A header in either form: what is read is written back, and read again to the same value.
pub fn header(input: &[u8]) {
    if let Some(Ok(header)) = input.first_chunk().map(Header::decode_small) {
        let mut small = [0xAA; SMALL_HEADER_BYTES];
        assert_eq!(header.encode_small(&mut small), Ok(()));
        assert_eq!(Header::decode_small(&small), Ok(header));
        assert_eq!(small[..32], input[..32]);
        check_large(&header);
    }
    match Header::split_large(input) {
        Ok((header, payload)) => {
            assert_eq!(payload, &input[LARGE_HEADER_BYTES..]);
            check_large(&header);
        }
        Err(error) => {
            let is_short = matches!(error, HeaderError::Truncated { .. });
            assert_eq!(is_short, input.len() < LARGE_HEADER_BYTES);
            assert!(!error.to_string().is_empty());
        }
    }
}

fn check_large(header: &Header) {
    let mut large = [0xAA; LARGE_HEADER_BYTES];
    header.encode_large(&mut large);
    assert_eq!(Header::decode_large(&large), Ok(*header));
    let mut small = [0xAA; SMALL_HEADER_BYTES];
    let is_large = header.destination.nid.is_large() || header.source.nid.is_large();
    assert_eq!(header.encode_small(&mut small).is_err(), is_large);
    if !is_large {
        assert_eq!(Header::decode_small(&small), Ok(*header));
    }
    if header.check_payload().is_ok() {
        assert!(header.message_type() != MessageType::Hello);
        assert!(header.payload_length == 0 || header.message_type().carries_payload());
    }
}

/// A text: a NID, net or process id prints as what reads back as itself; a refusal quotes the text.
pub fn nid_text(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Nid::from_str(text) {
        Ok(nid) => {
            assert_eq!(Nid::from_str(&nid.to_string()), Ok(nid));
            assert_eq!(Nid::from_bytes(&nid.to_bytes()), Ok(nid));
            if let Some(small) = nid.to_small() {
                assert_eq!(Nid::from_small(small), Ok(nid));
            }
            if let Some(address) = nid.ip() {
                assert_eq!(Nid::new_ip(nid.net(), address), Ok(nid));
            }
            assert_eq!(Nid::from_str_or_any(text), Ok(nid));
        }
        Err(error) => {
            assert!(text.starts_with(error.text()));
            assert!(!error.to_string().is_empty());
        }
    }
    if let Ok(net) = Net::from_str(text) {
        assert_eq!(Net::from_str(&net.to_string()), Ok(net));
    }
    if let Ok(process) = ProcessId::from_str(text) {
        assert_eq!(ProcessId::from_str(&process.to_string()), Ok(process));
    }
}

/// Ping information: entries stay within the bytes, and what can be written reads back the same.
pub fn ping(input: &[u8]) {
    let info = match PingInfo::parse(input) {
        Ok(info) => info,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(info.full_bytes() <= ping::BUFFER_BYTES_MAX);
    assert_eq!(info.is_truncated(), input.len() < info.full_bytes());
    assert!(info.metadata().is_none_or(|metadata| metadata.len() == input.len() - info.full_bytes()));
    let interfaces: Vec<_> = info.interfaces().collect();
    assert!(interfaces.len() <= input.len() / 12);
    assert!(info.primary().is_none_or(|nid| interfaces.iter().any(|interface| interface.nid == nid)));

    let again = interfaces.iter().copied();
    let length = match ping::encoded_bytes(again.clone()) {
        Ok(length) => length,
        Err(PingError::Interface(_) | PingError::Count(_)) => return,
        Err(error) => panic!("{error}"),
    };
    let mut bytes = vec![0xAA; length];
    assert_eq!(ping::write(&mut bytes, info.features(), info.pid(), info.sequence(), again), Ok(length));
    let copy = PingInfo::parse(&bytes).expect("what was written");
    assert_eq!((copy.pid(), copy.sequence(), copy.full_bytes()), (info.pid(), info.sequence(), length));
    let (small, large): (Vec<_>, Vec<_>) =
        interfaces.into_iter().partition(|interface| !interface.nid.is_large());
    assert!(copy.interfaces().eq(small.into_iter().chain(large)));
}

/// A message of selftest: what is read is written, and read again to the same value.
pub fn selftest(input: &[u8]) {
    let message = match Message::decode(input) {
        Ok(message) => message,
        Err(error) => {
            assert!(matches!(error, MessageError::Length(_)) == (input.len() != 160));
            return assert!(!error.to_string().is_empty());
        }
    };
    let own = Message { is_swapped: false, ..message };
    assert_eq!(Message::decode(&message.encode()), Ok(own));
    assert_eq!(message.body.request().is_some(), message.body.status().is_none());
    match &message.body {
        Body::AddTest(test) => assert!(test.test.bulk().is_none_or(|(.., bytes)| bytes % 8 == 0)),
        Body::MakeSession(session) => assert!(session.name.as_bytes().len() <= 32),
        _ => {}
    }
}
