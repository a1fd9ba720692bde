use std::string::ToString;
use std::vec;

use proptest::prelude::*;

use super::*;
use crate::testing::{fragments, steer_keys};

fn put_frame(fragment_offset: u32, total_length: u32) -> FrameHeader {
    let key = SteerKey {
        message_type: MessageType::Put,
        portal: 50,
        key: 0x1122_3344_5566_7788,
        message_id: 0x0300_0000_0000_0009,
        initiator_hash: 0xAABB_CCDD,
    };
    FrameHeader::data(key, fragment_offset, total_length)
}

fn encoded(frame: &FrameHeader) -> [u8; FRAME_HEADER_BYTES] {
    let mut bytes = [0x55; FRAME_HEADER_BYTES];
    frame.encode(&mut bytes);
    bytes
}

/// The layout is what other implementations read: byte for byte.
#[test]
fn layout() {
    let mut expected = vec![];
    expected.extend(*b"LNDX");
    expected.extend([1, 1, 1, 50]);
    expected.extend([0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
    expected.extend([9, 0, 0, 0, 0, 0, 0, 3]);
    expected.extend([0xDD, 0xCC, 0xBB, 0xAA]);
    expected.extend([0x00, 0x02, 0, 0]);
    expected.extend([0x00, 0x10, 0, 0]);
    expected.extend([0; 52]);
    let frame = put_frame(512, 4096);
    assert_eq!(encoded(&frame)[..], expected);
    assert_eq!(FrameHeader::decode(&encoded(&frame), FRAME_HEADER_BYTES + 1000), Ok(frame));

    let pull = FrameHeader::other(Kind::Pull, 5, 0x0300_0000_0000_0009);
    let mut expected = vec![];
    expected.extend(*b"LNDX");
    expected.extend([1, 7, 0, 0]);
    expected.extend([5 << 2, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([9, 0, 0, 0, 0, 0, 0, 3]);
    expected.extend([0; 64]);
    assert_eq!(encoded(&pull)[..], expected);
    assert_eq!(FrameHeader::decode(&encoded(&pull), FRAME_HEADER_BYTES), Ok(pull));
}

#[test]
fn each_field_is_checked() {
    let good = encoded(&put_frame(0, 0));
    assert!(FrameHeader::decode(&good, FIRST_HEADERS_BYTES).is_ok());
    let check = |offset: usize, byte: u8, error| {
        let mut bytes = good;
        bytes[offset] = byte;
        assert_eq!(FrameHeader::decode(&bytes, FIRST_HEADERS_BYTES), Err(error));
    };
    check(3, b'Y', FrameError::Magic(u32::from_le_bytes(*b"LNDY")));
    check(VERSION_OFFSET, 0, FrameError::Version(0));
    check(VERSION_OFFSET, 2, FrameError::Version(2));
    check(KIND_OFFSET, 0, FrameError::Kind(0));
    check(KIND_OFFSET, 12, FrameError::Kind(12));
    // Only data has a type.
    check(KIND_OFFSET, 2, FrameError::MessageType(1));
    check(TYPE_OFFSET, 4, FrameError::MessageType(4));
    check(TYPE_OFFSET, 255, FrameError::MessageType(255));
    check(PORTAL_OFFSET, 64, FrameError::Portal(64));
    // An ACK and a REPLY have no portal.
    check(TYPE_OFFSET, 0, FrameError::Portal(50));
    check(TYPE_OFFSET, 3, FrameError::Portal(50));
}

#[test]
fn lengths() {
    const FIRST: usize = FIRST_HEADERS_BYTES;
    const LATER: usize = FRAME_HEADER_BYTES;
    let maximum = PAYLOAD_BYTES_MAX;
    for (message_type, fragment_offset, total_length, datagram_bytes, expected) in [
        (MessageType::Put, 0, 0, FIRST, Ok(())),
        (MessageType::Put, 0, 0, FIRST - 1, Err(FrameError::Truncated)),
        (MessageType::Put, 0, 0, 0, Err(FrameError::Truncated)),
        (MessageType::Put, 0, 0, FIRST + 1, Err(FrameError::Length)),
        (MessageType::Put, 0, 1, FIRST, Err(FrameError::Length)),
        (MessageType::Put, 0, 1, FIRST + 1, Ok(())),
        (MessageType::Put, 0, 1, FIRST + 2, Err(FrameError::Length)),
        (MessageType::Put, 0, 9000, FIRST + 1400, Ok(())),
        (MessageType::Put, 1, 2, LATER + 1, Ok(())),
        (MessageType::Put, 1, 2, LATER + 2, Err(FrameError::Length)),
        (MessageType::Put, 1, 2, LATER, Err(FrameError::Length)),
        (MessageType::Put, 1, 2, LATER - 1, Err(FrameError::Truncated)),
        (MessageType::Put, 2, 2, LATER + 1, Err(FrameError::Length)),
        (MessageType::Put, 1, 0, LATER, Err(FrameError::Length)),
        (MessageType::Put, u32::MAX, 2, LATER + 1, Err(FrameError::Length)),
        (MessageType::Put, u32::MAX, u32::MAX, usize::MAX, Err(FrameError::Length)),
        (MessageType::Put, maximum - 1, maximum, LATER + 1, Ok(())),
        (MessageType::Put, maximum - 1, maximum + 1, LATER + 1, Err(FrameError::Length)),
        (MessageType::Reply, 0, 5, FIRST + 5, Ok(())),
        (MessageType::Get, 0, 0, FIRST, Ok(())),
        (MessageType::Get, 0, 5, FIRST + 5, Err(FrameError::Length)),
        (MessageType::Ack, 0, 0, FIRST, Ok(())),
        (MessageType::Ack, 0, 5, FIRST + 5, Err(FrameError::Length)),
        (MessageType::Ack, 5, 5, LATER, Err(FrameError::Length)),
    ] {
        let mut frame = put_frame(fragment_offset, total_length);
        frame.key.message_type = message_type;
        frame.key.portal = 0;
        let result = FrameHeader::decode(&encoded(&frame), datagram_bytes);
        assert_eq!(result, expected.map(|()| frame), "{frame:?} in {datagram_bytes} bytes");
    }
}

#[test]
fn lengths_of_bundles_and_other_kinds() {
    const FIRST: usize = FIRST_HEADERS_BYTES + 10;
    let check = |frame: &FrameHeader, datagram_bytes: usize, expected: Result<(), FrameError>| {
        let result = FrameHeader::decode(&encoded(frame), datagram_bytes);
        assert_eq!(result, expected.map(|()| *frame), "{frame:?} in {datagram_bytes} bytes");
    };
    let bundle = FrameHeader { bundled: true, ..put_frame(0, 10) };
    check(&bundle, FIRST + RECORD_BYTES, Ok(()));
    check(&bundle, FIRST + 1000, Ok(()));
    check(&bundle, FIRST + RECORD_BYTES - 1, Err(FrameError::Length));
    check(&FrameHeader { fragment_offset: 1, ..bundle }, FIRST + RECORD_BYTES, Err(FrameError::Length));
    for (kind, body) in [
        (Kind::Ack, 0),
        (Kind::Hello, HANDSHAKE_BYTES),
        (Kind::Welcome, HANDSHAKE_BYTES),
        (Kind::Reset, 0),
        (Kind::Deferred, 0),
        (Kind::Pull, 0),
        (Kind::Discard, 0),
        (Kind::Ping, 0),
        (Kind::Gone, 0),
        (Kind::Lost, 0),
    ] {
        let frame = FrameHeader::other(kind, 1, 7);
        check(&frame, FRAME_HEADER_BYTES + body, Ok(()));
        check(&frame, FRAME_HEADER_BYTES + body + 1, Err(FrameError::Length));
        check(&frame, FRAME_HEADER_BYTES + body - 1, Err(FrameError::Truncated));
        check(
            &FrameHeader { total_length: 1, ..frame },
            FRAME_HEADER_BYTES + body + 1,
            Err(FrameError::Length),
        );
        check(&FrameHeader { bundled: true, ..frame }, FRAME_HEADER_BYTES + 1000, Err(FrameError::Length));
    }
}

#[test]
fn short_frames() {
    let short = ShortPut { hdr_data: 0x1122_3344_5566_7788, offset: 0x99AA_BBCC };
    let frame = FrameHeader { short: Some(short), ..put_frame(0, 10) };
    let bytes = encoded(&frame);
    assert_eq!(bytes[59], 0x20);
    assert_eq!(bytes[72..84], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xCC, 0xBB, 0xAA, 0x99]);
    assert_eq!(bytes[84..], [0; 4]);
    assert_eq!((frame.covered_bytes(), frame.lnet_header_bytes()), (FRAME_HEADER_BYTES, 0));
    let check = |frame: FrameHeader, datagram_bytes: usize, expected: Result<(), FrameError>| {
        let result = FrameHeader::decode(&encoded(&frame), datagram_bytes);
        assert_eq!(result, expected.map(|()| frame), "{frame:?} in {datagram_bytes} bytes");
    };
    let whole = FRAME_HEADER_BYTES + 10;
    check(frame, whole, Ok(()));
    check(frame, whole - 1, Err(FrameError::Length));
    check(frame, whole + 1, Err(FrameError::Length));
    check(frame, FRAME_HEADER_BYTES - 1, Err(FrameError::Truncated));
    check(FrameHeader { total_length: PAYLOAD_BYTES_MAX, ..frame }, 88 + (1 << 20), Ok(()));
    check(
        FrameHeader { total_length: PAYLOAD_BYTES_MAX + 1, ..frame },
        89 + (1 << 20),
        Err(FrameError::Length),
    );
    check(FrameHeader { bundled: true, ..frame }, whole, Err(FrameError::Length));
    check(FrameHeader { fragment_offset: 5, ..frame }, FRAME_HEADER_BYTES + 5, Err(FrameError::Length));
    let mut reply = frame;
    (reply.key.message_type, reply.key.portal) = (MessageType::Reply, 0);
    check(reply, whole, Err(FrameError::Length));
    let ping = FrameHeader { short: Some(short), total_length: 10, ..FrameHeader::other(Kind::Ping, 1, 7) };
    check(ping, whole, Err(FrameError::Length));
}

#[test]
fn errors_name_the_values() {
    for (error, part) in [
        (FrameError::Truncated, "within its headers"),
        (FrameError::Magic(7), "0x00000007, expected 0x58444e4c"),
        (FrameError::Version(7), "version 7, expected 1"),
        (FrameError::Kind(7), "kind 7, expected 1 to 11"),
        (FrameError::MessageType(7), "type 7, expected 0 to 3"),
        (FrameError::Portal(77), "portal 77, expected one below 64"),
        (FrameError::Length, "1048576"),
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

proptest! {
    #[test]
    fn round_trips(mut key in steer_keys(), (total_length, fragment_offset, length) in fragments()) {
        let frame = FrameHeader::data(key, fragment_offset, total_length);
        let datagram_bytes = FRAME_HEADER_BYTES + frame.lnet_header_bytes() + length as usize;
        let decoded = FrameHeader::decode(&encoded(&frame), datagram_bytes);
        if key.message_type.carries_payload() {
            prop_assert_eq!(decoded, Ok(frame));
        } else {
            prop_assert_eq!(decoded, Err(FrameError::Length));
        }
        let whole = FrameHeader { short: Some(ShortPut { hdr_data: key.key, offset: length }), ..FrameHeader::data(key, 0, total_length) };
        let decoded = FrameHeader::decode(&encoded(&whole), FRAME_HEADER_BYTES + total_length as usize);
        let expected = if key.message_type == MessageType::Put { Ok(whole) } else { Err(FrameError::Length) };
        prop_assert_eq!(decoded, expected);
        key.initiator_hash ^= 1;
        let empty = FrameHeader::data(key, 0, 0);
        prop_assert_eq!(FrameHeader::decode(&encoded(&empty), FIRST_HEADERS_BYTES), Ok(empty));
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        bytes in proptest::array::uniform32(any::<u8>()),
        good_bytes in 0..=8_usize,
        datagram_bytes in any::<usize>(),
    ) {
        // The first bytes are right, so that all checks are reached.
        let mut all = encoded(&put_frame(0, 0));
        all[good_bytes..good_bytes + 32].copy_from_slice(&bytes);
        for datagram_bytes in [datagram_bytes, datagram_bytes % 2000] {
            if let Ok(frame) = FrameHeader::decode(&all, datagram_bytes) {
                prop_assert_eq!(FrameHeader::decode(&encoded(&frame), datagram_bytes), Ok(frame));
                prop_assert!(frame.key.message_type != MessageType::Hello);
            }
        }
    }
}
