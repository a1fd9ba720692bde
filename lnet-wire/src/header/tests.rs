use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::testing::{headers, large_nids, nid, nids, processes, small_nids};

fn hexadecimal(text: &str) -> Vec<u8> {
    text.split_ascii_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

fn ping_get() -> Header {
    Header {
        destination: ProcessId::lustre(nid("10.0.0.2@tcp")),
        source: ProcessId::lustre(nid("10.0.0.1@tcp")),
        payload_length: 0,
        body: Body::Get {
            return_md: WireHandle { interface_cookie: 0x1817_1615_1413_1211, object_cookie: 0x0D },
            match_bits: 1 << 63,
            portal: 0,
            offset: 0,
            sink_length: 272,
        },
    }
}

const PING_GET_BODY: &str = "11 12 13 14 15 16 17 18 0d 00 00 00 00 00 00 00 \
     00 00 00 00 00 00 00 80 00 00 00 00 00 00 00 00 10 01 00 00 00 00 00 00";

#[test]
fn a_ping_in_small_form() {
    let expected = hexadecimal(
        &("02 00 00 0a 00 00 02 00 01 00 00 0a 00 00 02 00 39 30 00 00 39 30 00 00 02 00 00 00 00 00 00 00 "
            .to_string()
            + PING_GET_BODY),
    );
    let mut bytes = [0xAA; SMALL_HEADER_BYTES];
    assert_eq!(ping_get().encode_small(&mut bytes), Ok(()));
    assert_eq!(bytes[..], expected);
    assert_eq!(Header::decode_small(&bytes), Ok(ping_get()));
}

#[test]
fn a_ping_in_large_form() {
    let expected = hexadecimal(
        &("00 02 00 00 0a 00 00 02 00 00 00 00 00 00 00 00 00 00 00 00 \
           00 02 00 00 0a 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00 \
           39 30 00 00 39 30 00 00 02 00 00 00 00 00 00 00 "
            .to_string()
            + PING_GET_BODY),
    );
    let mut bytes = [0xAA; LARGE_HEADER_BYTES];
    ping_get().encode_large(&mut bytes);
    assert_eq!(bytes[..], expected);
    assert_eq!(Header::decode_large(&bytes), Ok(ping_get()));
}

/// A type-specific part, its message type, and its runs of bytes behind the match bits: start, end, value.
type Case = (Body, u32, &'static [(usize, usize, u8)]);

/// Each field of each type at the offset that the wire has it at, and nowhere else.
#[test]
fn type_specific_parts_byte_by_byte() {
    let md = WireHandle { interface_cookie: 0x0101_0101_0101_0101, object_cookie: 0x0202_0202_0202_0202 };
    let match_bits = 0x0303_0303_0303_0303;
    let mut common = [0; BODY_BYTES];
    common[..8].fill(1);
    common[8..16].fill(2);
    common[16..24].fill(3);
    let ack = Body::Ack { md, match_bits, manipulated_length: 0x0404_0404 };
    let put = Body::Put {
        ack_md: md,
        match_bits,
        hdr_data: 0x0404_0404_0404_0404,
        portal: 0x0505_0505,
        offset: 0x0606_0606,
    };
    let get = Body::Get {
        return_md: md,
        match_bits,
        portal: 0x0404_0404,
        offset: 0x0505_0505,
        sink_length: 0x0606_0606,
    };
    let reply = Body::Reply { md };
    let hello = Body::Hello { incarnation: 0x0101_0101_0101_0101, connection_type: 0x0202_0202 };
    let cases: [Case; 5] = [
        (ack, 0, &[(24, 28, 4), (28, 40, 0)]),
        (put, 1, &[(24, 32, 4), (32, 36, 5), (36, 40, 6)]),
        (get, 2, &[(24, 28, 4), (28, 32, 5), (32, 36, 6), (36, 40, 0)]),
        (reply, 3, &[(16, 40, 0)]),
        (hello, 4, &[(12, 40, 0)]),
    ];
    for (body, message_type, fields) in cases {
        let mut expected = common;
        for &(start, end, byte) in fields {
            expected[start..end].fill(byte);
        }
        assert_eq!(body.message_type() as u32, message_type);
        assert_eq!(body.to_bytes(), expected, "{body:?}");
        assert_eq!(Body::from_bytes(message_type, &expected), Ok(body));
        // Fields that a type does not use are ignored.
        let mut noisy = expected;
        for &(start, end, _) in fields.iter().filter(|field| field.2 == 0) {
            noisy[start..end].fill(0xFF);
        }
        assert_eq!(Body::from_bytes(message_type, &noisy), Ok(body));
    }
}

#[test]
fn unknown_types_are_refused() {
    for value in [5, 7, 256, 0x0100_0000, u32::MAX] {
        let mut large = [0; LARGE_HEADER_BYTES];
        large[48..52].copy_from_slice(&value.to_le_bytes());
        assert_eq!(Header::decode_large(&large), Err(HeaderError::MessageType(value)));
        let mut small = [0; SMALL_HEADER_BYTES];
        small[24..28].copy_from_slice(&value.to_le_bytes());
        assert_eq!(Header::decode_small(&small), Err(HeaderError::MessageType(value)));
        assert_eq!(MessageType::from_wire(value), None);
    }
}

#[test]
fn malformed_nids_are_refused() {
    for offset in [0, 20] {
        let mut large = [0; LARGE_HEADER_BYTES];
        large[offset] = 13;
        assert_eq!(Header::decode_large(&large), Err(HeaderError::Nid(NidError::Size(13))));
    }
    for offset in [0, 8] {
        let mut small = [0; SMALL_HEADER_BYTES];
        small[offset + 7] = 1;
        assert_eq!(Header::decode_small(&small), Err(HeaderError::Nid(NidError::Small(1 << 56))));
    }
}

#[test]
fn large_nids_do_not_fit_the_small_form() {
    let large = nid("fe80::1@tcp");
    let mut to = ping_get();
    to.destination.nid = large;
    let mut from = ping_get();
    from.source.nid = large;
    for header in [to, from] {
        let mut bytes = [0xAA; SMALL_HEADER_BYTES];
        assert_eq!(header.encode_small(&mut bytes), Err(HeaderError::LargeNid(large)));
        assert_eq!(bytes, [0xAA; SMALL_HEADER_BYTES]);
    }
}

#[test]
fn payload_rules() {
    let md = WireHandle::NONE;
    let ack = Body::Ack { md, match_bits: 0, manipulated_length: 9 };
    let put = Body::Put { ack_md: md, match_bits: 0, hdr_data: 0, portal: 0, offset: 0 };
    let get = ping_get().body;
    for (body, maximum) in
        [(ack, 0), (get, 0), (put, PAYLOAD_BYTES_MAX), (Body::Reply { md }, PAYLOAD_BYTES_MAX)]
    {
        let message_type = body.message_type();
        for length in [0, maximum] {
            assert_eq!(Header { payload_length: length, body, ..ping_get() }.check_payload(), Ok(()));
        }
        for length in [maximum + 1, u32::MAX] {
            let error = HeaderError::Payload { message_type, length, maximum };
            assert_eq!(Header { payload_length: length, body, ..ping_get() }.check_payload(), Err(error));
        }
    }
    let hello = Body::Hello { incarnation: 1, connection_type: 1 };
    assert_eq!(Header { body: hello, ..ping_get() }.check_payload(), Err(HeaderError::Hello));
}

#[test]
fn handles() {
    assert!(WireHandle::NONE.is_none());
    assert_eq!(WireHandle::NONE.to_bytes(), [0xFF; HANDLE_BYTES]);
    assert!(!WireHandle { interface_cookie: u64::MAX, object_cookie: 0 }.is_none());
    assert!(!WireHandle { interface_cookie: 1, object_cookie: u64::MAX }.is_none());
    let handle = WireHandle { interface_cookie: 0x18e9_daf7_5380_55ae, object_cookie: 0x15 };
    assert_eq!(handle.to_string(), "18e9daf7538055ae.15");
}

#[test]
fn splitting_needs_a_whole_header() {
    let mut bytes = [7; LARGE_HEADER_BYTES + 3];
    ping_get().encode_large(bytes.first_chunk_mut().unwrap());
    assert_eq!(Header::split_large(&bytes), Ok((ping_get(), &[7; 3][..])));
    assert_eq!(Header::split_large(&bytes[..96]), Ok((ping_get(), &[][..])));
    let error = HeaderError::Truncated { length: 95, expected: 96 };
    assert_eq!(Header::split_large(&bytes[..95]), Err(error));
}

#[test]
fn errors_name_the_values() {
    for (error, part) in [
        (HeaderError::Truncated { length: 5, expected: 96 }, "5 bytes, expected a header of 96"),
        (HeaderError::MessageType(7), "type 7, expected 0 to 4"),
        (HeaderError::Nid(NidError::Size(13)), "21 bytes"),
        (HeaderError::LargeNid(nid("fe80::1@tcp")), "fe80::1@tcp does not fit"),
        (
            HeaderError::Payload { message_type: MessageType::Get, length: 3, maximum: 0 },
            "GET with 3 bytes of payload, expected at most 0",
        ),
        (HeaderError::Hello, "HELLO, expected"),
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

proptest! {
    #[test]
    fn large_form_round_trips(header in headers(nids)) {
        let mut bytes = [0xAA; LARGE_HEADER_BYTES];
        header.encode_large(&mut bytes);
        prop_assert_eq!(Header::decode_large(&bytes), Ok(header));
    }

    #[test]
    fn small_form_round_trips(header in headers(small_nids), peer in processes(large_nids())) {
        let mut bytes = [0xAA; SMALL_HEADER_BYTES];
        prop_assert_eq!(header.encode_small(&mut bytes), Ok(()));
        prop_assert_eq!(Header::decode_small(&bytes), Ok(header));
        let header = Header { source: peer, ..header };
        prop_assert_eq!(header.encode_small(&mut bytes), Err(HeaderError::LargeNid(peer.nid)));
    }

    #[test]
    fn both_forms_mean_the_same(header in headers(small_nids)) {
        let mut small = [0; SMALL_HEADER_BYTES];
        let mut large = [0; LARGE_HEADER_BYTES];
        header.encode_small(&mut small).unwrap();
        header.encode_large(&mut large);
        prop_assert_eq!(small[32..].to_vec(), large[56..].to_vec());
        prop_assert_eq!(Header::decode_small(&small), Header::decode_large(&large));
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        mut bytes in proptest::collection::vec(any::<u8>(), LARGE_HEADER_BYTES),
        message_type in 0..6_u32,
    ) {
        // Mostly plausible: a NID size and a type that exist.
        bytes[0] %= 14;
        bytes[20] %= 14;
        bytes[48..52].copy_from_slice(&message_type.to_le_bytes());
        let large = bytes.first_chunk::<LARGE_HEADER_BYTES>().unwrap();
        if let Ok(header) = Header::decode_large(large) {
            let mut again = [0; LARGE_HEADER_BYTES];
            header.encode_large(&mut again);
            prop_assert_eq!(Header::decode_large(&again), Ok(header));
            prop_assert_eq!(&again[40..56], &large[40..56]);
            let _ = header.check_payload();
        }
        bytes[7] = 0;
        bytes[15] = 0;
        bytes[24..28].copy_from_slice(&message_type.to_le_bytes());
        let small = bytes.first_chunk::<SMALL_HEADER_BYTES>().unwrap();
        if let Ok(header) = Header::decode_small(small) {
            let mut again = [0; SMALL_HEADER_BYTES];
            prop_assert_eq!(header.encode_small(&mut again), Ok(()));
            prop_assert_eq!(Header::decode_small(&again), Ok(header));
            prop_assert_eq!(&again[..32], &small[..32]);
        }
    }
}
