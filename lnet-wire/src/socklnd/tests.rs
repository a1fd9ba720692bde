use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::nid::{Nid, ProcessId};
use crate::testing::nid;

/// A HELLO of 10.0.0.1 to 10.0.0.2, protocol 3, for a CONTROL connection, in life 7.
fn worked_hello() -> Vec<u8> {
    let mut bytes = Vec::from(
        *b"\x63\x69\x72\x45\x03\0\0\0\x01\0\0\x0A\0\0\x02\0\x02\0\0\x0A\0\0\x02\0\x39\x30\0\0\0\0\0\0",
    );
    bytes.extend(7_u64.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend(b"\x01\0\0\0\0\0\0\0");
    bytes
}

fn hello(version: Version) -> Hello {
    let is_large = version == Version::V4;
    Hello {
        version,
        order: ByteOrder::Little,
        source: ProcessId::lustre(nid(if is_large { "fd77::11@tcp" } else { "10.0.0.1@tcp" })),
        destination: ProcessId { nid: nid("10.0.0.2@tcp3"), pid: 0 },
        source_incarnation: 7,
        destination_incarnation: 9,
        connection: Some(ConnectionType::BulkIn),
    }
}

/// Whether each beginning of `bytes` asks for more bytes than it has, and `bytes` are `whole`.
fn check<T: PartialEq + core::fmt::Debug, E: core::fmt::Debug + PartialEq>(
    bytes: &[u8],
    whole: T,
    parse: impl Fn(&[u8]) -> Result<Parsed<T>, E>,
) {
    for length in 0..bytes.len() {
        let parsed = parse(&bytes[..length]);
        assert!(matches!(parsed, Ok(Parsed::Needs(needed)) if needed > length && needed <= bytes.len()));
    }
    assert_eq!(parse(bytes), Ok(Parsed::Whole(whole, bytes.len())));
}

#[test]
fn the_worked_examples() {
    let request = ConnectionRequest { target: nid("10.0.0.2@tcp") };
    let mut bytes = [0; CONNECTION_REQUEST_BYTES_MAX];
    let length = request.encode(&mut bytes);
    assert_eq!(bytes[..length], *b"\x00\x71\xCE\xAC\x01\0\0\0\x02\0\0\x0A\0\0\x02\0");
    check(&bytes[..length], request, ConnectionRequest::parse);

    let expected = Hello {
        destination: ProcessId { nid: nid("10.0.0.2@tcp"), pid: 0 },
        destination_incarnation: 0,
        connection: Some(ConnectionType::Control),
        ..hello(Version::V3)
    };
    let mut bytes = [0; HELLO_BYTES_MAX];
    let length = expected.encode(&mut bytes).unwrap();
    assert_eq!(bytes[..length], worked_hello());
    check(&bytes[..length], expected, Hello::parse);

    let mut bytes = [0; PREFIX_BYTES];
    Prefix::keepalive().encode(&mut bytes);
    let mut expected = [0; PREFIX_BYTES];
    (expected[0], expected[16]) = (0xC0, 1);
    assert_eq!(bytes, expected);
    assert_eq!(Prefix::decode(&bytes, ByteOrder::Little).unwrap().acks(), Acks::Keepalive);
}

#[test]
fn large_requests_and_all_versions_come_back() {
    let request = ConnectionRequest { target: nid("fd77::12@tcp") };
    let mut bytes = [0; CONNECTION_REQUEST_BYTES_MAX];
    let length = request.encode(&mut bytes);
    check(&bytes[..length], request, ConnectionRequest::parse);
    for version in [Version::V1, Version::V2, Version::V3, Version::V4] {
        for connection in [None, Some(ConnectionType::Any), Some(ConnectionType::BulkOut)] {
            let mut said = Hello { connection, ..hello(version) };
            let mut bytes = [0; HELLO_BYTES_MAX];
            let length = said.encode(&mut bytes).unwrap();
            if version == Version::V1 {
                (said.destination, said.destination_incarnation) = (ProcessId::ANY, 0);
            }
            check(&bytes[..length], said, Hello::parse);
        }
    }
}

#[test]
fn the_other_byte_order() {
    let mut bytes = worked_hello();
    for (start, length) in
        [(0, 4), (4, 4), (8, 8), (16, 8), (24, 4), (28, 4), (32, 8), (40, 8), (48, 4), (52, 4)]
    {
        bytes[start..start + length].reverse();
    }
    let Ok(Parsed::Whole(swapped, _)) = Hello::parse(&bytes) else { panic!("no HELLO") };
    assert_eq!(swapped.order, ByteOrder::Big);
    assert_eq!((swapped.source, swapped.source_incarnation), (ProcessId::lustre(nid("10.0.0.1@tcp")), 7));
    // Kernel nodes do not swap NIDs: only those that are little endian mean to them what they should.
    for version in [2, 3] {
        bytes[7] = version;
        bytes[8..24].copy_from_slice(&worked_hello()[8..24]);
        let Ok(Parsed::Whole(mixed, _)) = Hello::parse(&bytes) else { panic!("no HELLO") };
        assert_eq!((mixed.source, mixed.source_incarnation), (swapped.source, 7));
        assert_eq!(mixed.destination, swapped.destination);
    }
    let mut noop = [0; PREFIX_BYTES];
    (noop[3], noop[23]) = (0xC0, 5);
    assert_eq!(Prefix::decode(&noop, ByteOrder::Big).unwrap().acks(), Acks::One(5));
    assert_eq!(Prefix::decode(&noop, ByteOrder::Little), Err(PrefixError(0xC000_0000)));
}

#[test]
fn a_destination_that_is_no_nid_is_the_wildcard() {
    for version in [Version::V2, Version::V3, Version::V4] {
        let said = hello(version);
        let mut bytes = [0; HELLO_BYTES_MAX];
        let length = said.encode(&mut bytes).unwrap();
        // A type, or a size, that no NID has.
        let odd = if version == Version::V4 { 28 } else { 23 };
        bytes[odd] = 0x77;
        let Ok(Parsed::Whole(read, _)) = Hello::parse(&bytes[..length]) else { panic!("no HELLO") };
        let destination = ProcessId { nid: Nid::ANY, ..said.destination };
        assert_eq!(read, Hello { destination, ..said });
        let echo = Hello { source: read.destination, destination: read.source, ..read };
        assert_eq!(Hello { source: read.source, ..echo }.encode(&mut bytes), Ok(length));
        assert_eq!(read.encode(&mut bytes), Ok(length));
    }
}

#[test]
fn what_is_refused() {
    let magic = |magic: u32| magic.to_le_bytes();
    assert_eq!(ConnectionRequest::parse(&magic(HELLO_MAGIC)), Err(ConnectionRequestError::Query));
    assert_eq!(ConnectionRequest::parse(&magic(OLD_MAGIC)), Err(ConnectionRequestError::Magic(OLD_MAGIC)));
    let mut request = Vec::from(magic(ACCEPTOR_MAGIC));
    request.extend(9_u32.to_le_bytes());
    assert_eq!(ConnectionRequest::parse(&request), Err(ConnectionRequestError::Version(9)));
    assert!(
        ConnectionRequestError::Version(9).answer().is_some()
            && ConnectionRequestError::Magic(1).answer().is_none()
    );

    let with = |offset: usize, value: u32, further: &[u8]| {
        let mut bytes = worked_hello();
        bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        bytes.extend(further);
        Hello::parse(&bytes)
    };
    assert_eq!(with(0, 5, &[]), Err(HelloError::Magic(5)));
    assert_eq!(with(4, 5, &[]), Err(HelloError::Version { number: 5, order: ByteOrder::Little }));
    assert_eq!(with(48, 7, &[]), Err(HelloError::Connection(7)));
    assert_eq!(with(52, 17, &[]), Err(HelloError::AddressCount(17)));
    assert_eq!(with(52, 2, &[1, 2, 3, 4, 0, 0, 0, 0]), Err(HelloError::ZeroAddress));
    assert_eq!(with(52, 2, &[1, 2, 3, 4]), Ok(Parsed::Needs(64)));
    let mut wildcard = worked_hello();
    wildcard[8..16].fill(0xFF);
    assert_eq!(Hello::parse(&wildcard), Err(HelloError::AnySource));
    let mut bytes = [0; HELLO_BYTES_MAX];
    let large = Hello { version: Version::V3, ..hello(Version::V4) };
    assert_eq!(large.encode(&mut bytes), Err(HelloError::LargeNid(large.source.nid)));
}

#[test]
fn acknowledgements() {
    let acks = |kind, cookies| Prefix { kind, checksum: 0, cookies }.acks();
    assert_eq!(acks(PrefixKind::Noop, [0, 0]), Acks::None);
    assert_eq!(acks(PrefixKind::Noop, [9, 0]), Acks::None);
    assert_eq!(acks(PrefixKind::Noop, [0, 4]), Acks::One(4));
    assert_eq!(acks(PrefixKind::Noop, [5, 4]), Acks::Two(5, 4));
    assert_eq!(acks(PrefixKind::Noop, [4, 9]), Acks::Range(4, 9));
    assert_eq!(acks(PrefixKind::Lnet, [4, 9]), Acks::One(9));
    assert_eq!(acks(PrefixKind::Lnet, [4, 0]), Acks::None);
}

#[test]
fn the_checksum_of_the_check_string() {
    let mut sum = Checksum::new();
    sum.update(b"1234");
    sum.update(b"56789");
    assert_eq!(sum.value(), !0xCBF4_3926);
    assert_eq!(Checksum::new().value(), u32::MAX);
}

const MAGICS: &[u32] = &[ACCEPTOR_MAGIC, HELLO_MAGIC, HELLO_MAGIC.swap_bytes(), OLD_MAGIC];

/// Two answers to pings and an acknowledgement, as a kernel node with `enable_csum` has sent them in version
/// 2.
#[test]
fn the_checksums_of_a_kernel_node() {
    let mut rest = &include_bytes!("../../../tests/data/captures/checksums_v2.bin")[..];
    for length in [144, 144, PREFIX_BYTES] {
        let (bytes, behind) = rest.split_at(length);
        let prefix = Prefix::decode(bytes.first_chunk().unwrap(), ByteOrder::Little).unwrap();
        let mut covered = bytes.to_vec();
        covered[CHECKSUM_RANGE].fill(0);
        let mut sum = Checksum::new();
        sum.update(&covered);
        assert_eq!(prefix.checksum, sum.value());
        rest = behind;
    }
    assert_eq!(rest, []);
}

proptest! {
    #[test]
    fn no_bytes_are_too_wild(
        mut bytes in proptest::collection::vec(any::<u8>(), 56..160),
        magic in proptest::sample::select(MAGICS),
        (version, connection, addresses, length) in (0_u8..6, 0_u8..5, 0_u8..20, 0_usize..160),
    ) {
        bytes[..4].copy_from_slice(&magic.to_le_bytes());
        bytes[4..8].copy_from_slice(&[version, 0, 0, 0]);
        bytes[48..56].copy_from_slice(&[connection, 0, 0, 0, addresses, 0, 0, 0]);
        bytes.truncate(length);
        let request = ConnectionRequest::parse(&bytes).map(|parsed| is_sound(parsed, &bytes));
        let hello = Hello::parse(&bytes).map(|parsed| is_sound(parsed, &bytes));
        prop_assert!(request != Ok(false) && hello != Ok(false));
    }
}

/// Whether more bytes are wanted than there are, and never more than are collected, or no more were used.
fn is_sound<T>(parsed: Parsed<T>, bytes: &[u8]) -> bool {
    match parsed {
        Parsed::Needs(count) => (bytes.len() + 1..=136).contains(&count),
        Parsed::Whole(_, length) => length <= bytes.len(),
    }
}
