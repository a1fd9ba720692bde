//! Frames with the verdict that they must meet, written down.

use std::net::IpAddr;

use lnet_tests::bpf::frames::{self, Frame};
use lnet_tests::bpf::{idle_socket, load};
use lnet_tests::netns::{NETNS_NODES, require_privilege};
use lnet_wire::header::MessageType;
use lnet_wire::packet::Reason;
use lnet_wire::steer::{Policy, SHARDS_MAX, Spread};
use lnet_xdp::bpf::{Action, ObjectKind, ReasonCount, SlotCount, TestFrame, XdpProgram};
use rustix::fd::OwnedFd;

/// Where a frame goes: to the socket of a shard, or up for a reason.
#[derive(Debug)]
enum Expected {
    Shard(u32),
    Up(Reason),
}

use Expected::{Shard, Up};

fn v4() -> IpAddr {
    IpAddr::from([10, 0, 0, 1])
}

fn v6() -> IpAddr {
    IpAddr::from([0xFD00, 0, 0, 0, 0, 0, 0, 1])
}

/// A frame with one thing changed.
fn frame(message_type: MessageType, change: impl Fn(&mut Frame)) -> Vec<u8> {
    let mut frame = Frame::new(v4(), 988, message_type);
    change(&mut frame);
    frame.bytes()
}

/// The bytes of a PUT of nothing to portal 4, with some overwritten.
fn put_with(changes: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = frame(MessageType::Put, |frame| frame.header.key.portal = 4);
    for (offset, value) in changes {
        bytes[*offset] = *value;
    }
    bytes
}

fn put(portal: u8, key: u64) -> Vec<u8> {
    frame(MessageType::Put, |frame| {
        frame.header.key.portal = portal;
        frame.header.key.key = key;
    })
}

/// Eight shards with sockets on queue 0, and the socket, which leaves its slots when it is closed.
fn program() -> (XdpProgram, OwnedFd) {
    let mut program = load(ObjectKind::Default);
    let socket = idle_socket();
    program.set_shards(8).unwrap();
    program.set_mac(frames::MAC).unwrap();
    program.add_endpoint(v4(), 988).unwrap();
    program.add_endpoint(v6(), 988).unwrap();
    for shard in 0..SHARDS_MAX {
        program.set_socket(0, shard, &socket).unwrap();
    }
    let table = Spread::Table([7, 6, 5, 4, 3, 2, 1, 40]);
    for (portal, policy) in [
        (4, Policy::Pin(3)),
        (5, Policy::Pin(9)),
        (6, Policy::MatchBits { shift: 4, bits: 3, spread: table }),
        (7, Policy::MatchBits { shift: 0, bits: 64, spread: Spread::Hash }),
        (8, Policy::MatchBits { shift: 8, bits: 16, spread: Spread::Hash }),
        (9, Policy::Initiator),
        (63, Policy::Rotor),
    ] {
        program.set_policy(portal, policy).unwrap();
    }
    (program, socket)
}

/// Runs a frame; action and counters tell what became of it.
fn check(program: &XdpProgram, name: &str, bytes: &[u8], expected: &Expected) {
    let before = program.counters().unwrap();
    let action = program.test_run(&TestFrame::new(bytes, 0), None).unwrap();
    let after = program.counters().unwrap();
    let new_slot = after.slots.iter().find(|slot| !before.slots.contains(slot)).copied();
    let new_reason = after.reasons.iter().find(|reason| !before.reasons.contains(reason)).copied();
    match expected {
        Shard(shard) => {
            assert_eq!(action, Action::Redirect, "{name}");
            let SlotCount { queue, shard: met, .. } = new_slot.unwrap_or_else(|| panic!("{name}: no slot"));
            assert_eq!((queue, met), (0, *shard), "{name}");
            assert_eq!(new_reason, None, "{name}");
        }
        Up(reason) => {
            assert_eq!(action, Action::Pass, "{name}");
            let ReasonCount { queue, reason: met, .. } =
                new_reason.unwrap_or_else(|| panic!("{name}: no reason"));
            assert_eq!((queue, met), (Some(0), *reason), "{name}");
            assert_eq!(new_slot, None, "{name}");
        }
    }
}

/// A GET to 10.0.0.1 port 988, portal 4, byte by byte: 14 Ethernet, 20 IPv4, 8 UDP, 64 frame header,
/// then 96 of LNet header.
fn get_by_hand() -> Vec<u8> {
    let mut bytes = vec![
        0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x08, 0x00, //
        0x45, 0, 0, 212, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1, //
        0xC3, 0x50, 0x03, 0xDC, 0, 192, 0, 0, //
        b'L', b'N', b'D', b'X', 1, 1, 2, 4, //
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, // key
        1, 0, 0, 0, 0, 0, 0, 0, // message id
        0xEE, 0xFF, 0xC0, 0, // initiator
        0, 0, 0, 0, 0, 0, 0, 0, // fragment offset, total length
    ];
    bytes.resize(14 + 20 + 8 + 88 + 96, 0);
    bytes
}

#[test]
fn policies_pick_the_shard_that_is_written_here() {
    if !require_privilege("policies_pick_the_shard_that_is_written_here", &NETNS_NODES) {
        return;
    }
    let with_key = |message_type, key| frame(message_type, |frame| frame.header.key.key = key);
    let by_initiator = frame(MessageType::Get, |frame| {
        frame.header.key.portal = 9;
        frame.header.key.initiator_hash = 0x00C0_FFEE;
    });
    let rotor = |message_id, fragment_offset, payload_bytes| {
        frame(MessageType::Put, |frame| {
            frame.header.key.portal = 63;
            frame.header.key.message_id = message_id;
            frame.header.key.initiator_hash = 7;
            frame.header.fragment_offset = fragment_offset;
            frame.header.total_length = 5000;
            frame.payload_bytes = payload_bytes;
        })
    };
    // The hashes were worked out apart from this code: SplitMix64's finaliser, high half times 8, over 2^32.
    let table: &[(&str, Vec<u8>, Expected)] = &[
        ("written by hand", get_by_hand(), Shard(3)),
        ("untouched portal: pinned to 0", put(0, u64::MAX), Shard(0)),
        ("pinned", put(4, u64::MAX), Shard(3)),
        ("pinned beyond the last shard: wraps", put(5, 0), Shard(1)),
        ("table, value 0", put(6, 0xFFFF_FFFF_FFFF_FF8F), Shard(7)),
        ("table, value 5", put(6, 0x50), Shard(2)),
        ("table, value 7, entry beyond the last shard", put(6, 0x7F), Shard(0)),
        ("hash of all match bits", put(7, 0xDEAD_BEEF), Shard(2)),
        ("hash of 16 match bits, 0x1234", put(8, 0x00AB_CD12_3456), Shard(5)),
        ("the same bits, others around them", put(8, 0xFFFF_FFFF_FF12_3400), Shard(5)),
        ("initiator", by_initiator, Shard(7)),
        ("rotor, first message, first fragment", rotor(0x0500_0000_0000_0001, 0, 1000), Shard(0)),
        ("rotor, first message, last fragment", rotor(0x0500_0000_0000_0001, 4000, 1000), Shard(0)),
        ("rotor, second message", rotor(0x0500_0000_0000_0002, 0, 1000), Shard(7)),
        ("ACK to a cookie of shard 6", with_key(MessageType::Ack, 0x1234_5600 | 6 << 2 | 3), Shard(6)),
        ("ACK to a cookie of shard 63: wraps", with_key(MessageType::Ack, 63 << 2), Shard(7)),
        ("REPLY to a cookie of shard 2", with_key(MessageType::Reply, u64::MAX << 8 | 2 << 2), Shard(2)),
    ];
    let (program, _socket) = program();
    for (name, bytes, expected) in table {
        check(&program, name, bytes, expected);
    }
}

#[test]
fn frames_meet_the_verdict_that_is_written_here() {
    if !require_privilege("frames_meet_the_verdict_that_is_written_here", &NETNS_NODES) {
        return;
    }
    let put_to = |address, port| Frame::new(address, port, MessageType::Put).bytes();
    let payload = |total_length, payload_bytes| {
        frame(MessageType::Put, |frame| {
            frame.header.total_length = total_length;
            frame.payload_bytes = payload_bytes;
        })
    };
    let vlan = |change: &[(usize, u8)]| {
        let mut bytes = frame(MessageType::Put, |frame| frame.vlan = Some(0xE000));
        change.iter().for_each(|(offset, value)| bytes[*offset] = *value);
        bytes
    };
    let cut = |end| put_with(&[])[..end].to_vec();
    let table: &[(&str, Vec<u8>, Expected)] = &[
        ("IPv6", put_to(v6(), 988), Shard(0)),
        ("a tag of no VLAN", vlan(&[]), Shard(0)),
        ("VLAN 7", vlan(&[(15, 7)]), Up(Reason::NotOurs)),
        ("VLAN 2048", vlan(&[(14, 0x08)]), Up(Reason::NotOurs)),
        ("another Ethernet address", put_with(&[(5, 2)]), Up(Reason::NotOurs)),
        ("a group of stations", put_with(&[(0, 3)]), Up(Reason::NotOurs)),
        (
            "broadcast",
            put_with(&[(0, 0xFF), (1, 0xFF), (2, 0xFF), (3, 0xFF), (4, 0xFF), (5, 0xFF)]),
            Up(Reason::NotOurs),
        ),
        ("two VLAN tags", vlan(&[(16, 0x81), (17, 0x00)]), Up(Reason::NotIp)),
        ("padding behind the datagram", frame(MessageType::Get, |frame| frame.padding_bytes = 40), Shard(0)),
        ("60,000 bytes, of several buffers", payload(60_000, 60_000), Shard(0)),
        ("ARP", put_with(&[(13, 0x06)]), Up(Reason::NotIp)),
        ("TCP", put_with(&[(23, 6)]), Up(Reason::NotUdp)),
        ("IPv4 with options", put_with(&[(14, 0x46)]), Up(Reason::IpOptions)),
        ("more fragments", put_with(&[(20, 0x20)]), Up(Reason::IpOptions)),
        ("a later IP fragment", put_with(&[(21, 1)]), Up(Reason::IpOptions)),
        ("another address", put_to(IpAddr::from([10, 0, 0, 2]), 988), Up(Reason::NotOurs)),
        (
            "another IPv6 address",
            put_to(IpAddr::from([0xFD00, 0, 0, 0, 0, 0, 0, 2]), 988),
            Up(Reason::NotOurs),
        ),
        ("another port", put_to(v4(), 989), Up(Reason::NotOurs)),
        ("Ethernet header only", cut(14), Up(Reason::Truncated)),
        ("IP header cut", cut(33), Up(Reason::Truncated)),
        ("UDP header cut", cut(41), Up(Reason::Truncated)),
        ("payload cut", cut(225), Up(Reason::Truncated)),
        ("UDP length beyond IP's", put_with(&[(39, 193)]), Up(Reason::Truncated)),
        ("UDP length below its header", put_with(&[(38, 0), (39, 7)]), Up(Reason::Truncated)),
        ("UDP payload shorter than our header", put_with(&[(39, 95)]), Up(Reason::BadLength)),
        ("no room for the LNet header", put_with(&[(39, 191)]), Up(Reason::BadLength)),
        ("magic", put_with(&[(42, b'M')]), Up(Reason::BadMagic)),
        ("version", put_with(&[(46, 2)]), Up(Reason::BadVersion)),
        ("kind", put_with(&[(47, 12)]), Up(Reason::BadVersion)),
        ("type HELLO", put_with(&[(48, 4)]), Up(Reason::BadType)),
        ("portal 64", put_with(&[(49, 64)]), Up(Reason::BadPortal)),
        ("ACK with a portal", put_with(&[(48, 0)]), Up(Reason::BadPortal)),
        ("payload of 1 MiB and more", put_with(&[(70, 1), (76, 0x10), (74, 1)]), Up(Reason::BadLength)),
        ("payload beyond the message", payload(99, 100), Up(Reason::BadLength)),
        ("a message of payload, a fragment of none", payload(100, 0), Up(Reason::BadLength)),
        ("a GET of payload", put_with(&[(48, 2), (74, 1)]), Up(Reason::BadLength)),
    ];
    let (program, _socket) = program();
    for (name, bytes, expected) in table {
        check(&program, name, bytes, expected);
    }
}

#[test]
fn without_shards_or_socket_frames_of_ours_pass_up() {
    if !require_privilege("without_shards_or_socket_frames_of_ours_pass_up", &NETNS_NODES) {
        return;
    }
    let (mut program, _socket) = program();
    program.set_shards(0).unwrap();
    check(&program, "no shards", &put(4, 0), &Up(Reason::NoShard));
    program.set_shards(8).unwrap();
    check(&program, "shards", &put(4, 0), &Shard(3));
    program.clear_socket(0, 3).unwrap();
    program.clear_socket(0, 3).unwrap();
    check(&program, "no socket", &put(4, 0), &Up(Reason::NoSocket));
    assert!(program.remove_endpoint(v4(), 988).unwrap());
    assert!(!program.remove_endpoint(v4(), 988).unwrap());
    check(&program, "no endpoint", &put(4, 0), &Up(Reason::NotOurs));
}
