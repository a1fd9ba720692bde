use std::vec::Vec;

use proptest::prelude::*;

use super::*;

/// The bytes of a captured message, of which the zeros at the end are left out.
fn bytes(hexadecimal: &str) -> [u8; MESSAGE_BYTES] {
    let digits: Vec<u8> =
        hexadecimal.bytes().map(|digit| (digit as char).to_digit(16).unwrap() as u8).collect();
    let mut bytes = [0; MESSAGE_BYTES];
    bytes.iter_mut().zip(digits.chunks(2)).for_each(|(byte, pair)| *byte = pair[0] << 4 | pair[1]);
    bytes
}

const CONSOLE: SessionId = SessionId { nid: 0x0002_0000_0A4D_000B, stamp: 0x131B1 };
const BRW_CONSOLE: SessionId = SessionId { nid: 0x0002_0000_0A4D_000B, stamp: 0x284C6 };

/// A message of a kernel node means this, and is written as it was.
fn check(hexadecimal: &str, body: Body) {
    let captured = bytes(hexadecimal);
    let message = Message::new(FEATURE_VARIABLE_LENGTH, body);
    assert_eq!(Message::decode(&captured), Ok(message));
    assert_eq!(message.encode(), captured);
}

#[test]
fn captured_sessions() {
    check(
        "0df0b0ee010000000000000000000000000000000100000001000000000066aa0b004d0a00000200b1310100000000000000000070696e6774657374",
        Body::MakeSession(MakeSession {
            reply_id: 0xAA66_0000_0000_0001,
            session: CONSOLE,
            force: 0,
            name: Name::new("pingtest").unwrap(),
        }),
    );
    check(
        "0df0b0ee0100000001000000000000000000000001000000000000000b004d0a00000200b13101000000000064",
        Body::MakeSessionReply(JoinReply {
            status: Status::OK,
            session: CONSOLE,
            timeout_s: 100,
            name: Name::EMPTY,
        }),
    );
    check(
        "0df0b0ee010000000200000000000000000000000100000015000000000066aa0b004d0a00000200b13101",
        Body::RemoveSession(RemoveSession { reply_id: 0xAA66_0000_0000_0015, session: CONSOLE }),
    );
    check(
        "0df0b0ee010000000300000000000000000000000100000000000000ffffffffffffffffffffffffffffffff",
        Body::RemoveSessionReply(SessionReply { status: Status::OK, session: SessionId::NONE }),
    );
}

#[test]
fn captured_tests() {
    let add = |test, reply_id, session| AddTest {
        reply_id,
        bulk_id: 0,
        session,
        batch: 2,
        loop_count: 1,
        concurrency: 1,
        is_client: 0,
        stops_on_error: 1,
        destinations: 0,
        test,
    };
    check(
        "0df0b0ee010000000800000000000000000000000100000003000000000066aa00000000000000000b004d0a00000200b13101000000000002000000000000000c00000001000000010000000001",
        Body::AddTest(add(Test::Ping { size_bytes: 0, flags: 0 }, 0xAA66_0000_0000_0003, CONSOLE)),
    );
    let test = Test::Brw { direction: 2, flags: 3, length_bytes: 4096, offset_bytes: 0 };
    assert_eq!(test.bulk(), Some((Direction::Write, Check::Full, 4096)));
    check(
        "0df0b0ee0100000008000000000000000000000001000000030000000000bdaa00000000000000000b004d0a00000200c68402000000000002000000000000000b0000000100000001000000000100000000020003000010",
        Body::AddTest(add(test, 0xAABD_0000_0000_0003, BRW_CONSOLE)),
    );
}

#[test]
fn captured_requests_of_tests() {
    check(
        "0df0b0ee010000000e00000000000000000000000100000008000000000066aacefabeba010000006daa006b00000000e1621212",
        Body::Ping(Ping {
            reply_id: 0xAA66_0000_0000_0008,
            magic: PING_MAGIC,
            sequence: 1,
            seconds: 0x6B00_AA6D,
            nanoseconds: 0x1212_62E1,
        }),
    );
    check(
        "0df0b0ee010000000f00000000000000000000000100000000000000cefabeba01",
        Body::PingReply(PingReply { status: Status::OK, magic: PING_MAGIC, sequence: 1 }),
    );
    check(
        "0df0b0ee010000000c000000000000000000000001000000070000000000bdaa080000000000bdaa020000000010000003",
        Body::Brw(Brw {
            reply_id: 0xAABD_0000_0000_0007,
            bulk_id: 0xAABD_0000_0000_0008,
            direction: Direction::Write as u32,
            length_bytes: 4096,
            flags: Check::Full as u32,
        }),
    );
    check("0df0b0ee010000000d000000000000000000000001", Body::BrwReply(StatusReply { status: Status::OK }));
}

#[test]
fn captured_counters() {
    check(
        "0df0b0ee0100000007000000000000000000000001000000000000000b004d0a00000200c68402000000000081090000000000000000000000000000000000000000000000000000060000000000000000000000003000000000000000000000000000000000000002000000000000000b0000000c00000000000000000000008003000000000000f033",
        Body::StatReply(StatReply {
            status: Status::OK,
            session: BRW_CONSOLE,
            framework: FrameworkCounters {
                running_ms: 2433,
                active_batches: 0,
                zombie_sessions: 0,
                brw_errors: 0,
                ping_errors: 0,
            },
            rpc: RpcCounters {
                errors: 0,
                sent: 0,
                received: 6,
                dropped: 0,
                expired: 0,
                bulk_get_bytes: 12288,
                bulk_put_bytes: 0,
            },
            lnet: LnetCounters {
                messages: 0,
                messages_max: 2,
                errors: 0,
                sent: 11,
                received: 12,
                routed: 0,
                dropped: 0,
                sent_bytes: 896,
                received_bytes: 0x33F0,
                routed_bytes: 0,
                dropped_bytes: 0,
            },
        }),
    );
}

#[test]
fn the_other_byte_order() {
    // A ping as a big-endian node writes it.
    let mut swapped = [0; MESSAGE_BYTES];
    let words = [MAGIC, 1, 14, 0, 0, 1, 0x1122_3344, 0x5566_7788, PING_MAGIC, 7, 0, 9, 0, 10];
    for (field, word) in swapped.chunks_exact_mut(4).zip(words) {
        field.copy_from_slice(&word.to_be_bytes());
    }
    let ping =
        Ping { reply_id: 0x1122_3344_5566_7788, magic: PING_MAGIC, sequence: 7, seconds: 9, nanoseconds: 10 };
    let message = Message { is_swapped: true, ..Message::new(1, Body::Ping(ping)) };
    assert_eq!(Message::decode(&swapped), Ok(message));
    let own = Message { is_swapped: false, ..message };
    assert_eq!(Message::decode(&message.encode()), Ok(own));

    let destination = Destination { nid: CONSOLE.nid, pid: 12345 };
    let mut entry = destination.encode();
    assert_eq!(entry, [0x0B, 0, 0x4D, 0x0A, 0, 0, 2, 0, 0x39, 0x30, 0, 0]);
    assert_eq!(Destination::decode(&entry, false), destination);
    entry[..8].reverse();
    entry[8..].reverse();
    assert_eq!(Destination::decode(&entry, true), destination);
}

#[test]
fn what_is_no_message() {
    let ping = bytes("0df0b0ee010000000f00000000000000000000000100000000000000cefabeba01");
    for length in 0..MESSAGE_BYTES {
        assert_eq!(Message::decode(&ping[..length]), Err(MessageError::Length(length)));
    }
    assert_eq!(Message::decode(&[0; 161]), Err(MessageError::Length(161)));
    assert_eq!(Message::decode(&[0; 160]), Err(MessageError::Magic(0)));
    let mut other = ping;
    other[8] = 18;
    assert_eq!(Message::decode(&other), Err(MessageError::Type(18)));
    // A node answers this itself.
    other = ping;
    other[4] = 9;
    assert_eq!(Message::decode(&other).map(|message| message.version), Ok(9));
}

#[test]
fn bulk_that_can_be_sent() {
    let brw = |direction, flags, length_bytes, offset_bytes| {
        Test::Brw { direction, flags, length_bytes, offset_bytes }.bulk()
    };
    assert_eq!(brw(1, 1, 8, 0), Some((Direction::Read, Check::None, 8)));
    assert_eq!(brw(2, 4, 1 << 20, 64), Some((Direction::Write, Check::Discard, 1 << 20)));
    for (direction, flags, length, offset) in [
        (0, 1, 8, 0),
        (3, 1, 8, 0),
        (1, 0, 8, 0),
        (1, 5, 8, 0),
        (1, 1, 0, 0),
        (1, 1, 4097, 0),
        (1, 1, 12, 0),
        (1, 1, (1 << 20) + 8, 0),
        (1, 1, 8, 4),
    ] {
        assert_eq!(brw(direction, flags, length, offset), None, "{direction} {flags} {length} {offset}");
    }
    let pages = |pages| Test::BrwPages { direction: 1, pages, flags: 3 }.bulk();
    assert_eq!(pages(256), Some((Direction::Read, Check::Full, 1 << 20)));
    assert_eq!((pages(0), pages(257), pages(1 << 20)), (None, None, None));
}

#[test]
fn names() {
    assert_eq!(Name::new(&"x".repeat(32)), None);
    assert_eq!(Name::new("a\0b"), None);
    let longest = "x".repeat(31);
    assert_eq!(std::format!("{}", Name::new(&longest).unwrap()), longest);
    assert_eq!(Name::new("").unwrap(), Name::EMPTY);
}

proptest! {
    #[test]
    fn any_bytes(mut input: Vec<u8>, kind in 0_u32..20, is_swapped: bool) {
        input.resize(MESSAGE_BYTES, 0xAA);
        let ordered = |word: u32| if is_swapped { word.to_be_bytes() } else { word.to_le_bytes() };
        input[..4].copy_from_slice(&ordered(MAGIC));
        input[8..12].copy_from_slice(&ordered(kind));
        match Message::decode(&input) {
            Ok(message) => {
                prop_assert_eq!((message.is_swapped, message.body.message_type()), (is_swapped, kind));
                let own = Message { is_swapped: false, ..message };
                prop_assert_eq!(Message::decode(&message.encode()), Ok(own));
                prop_assert_eq!(message.body.request().is_some(), message.body.status().is_none());
            }
            Err(error) => prop_assert_eq!(error, MessageError::Type(kind)),
        }
    }
}
