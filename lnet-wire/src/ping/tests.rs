use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::testing::{large_nids, nid, small_nids};

const END_NODE: Features = Features(0x1E);

fn up(text: &str) -> PingNi {
    PingNi { nid: nid(text), status: NiStatus::UP }
}

fn written(features: Features, interfaces: &[PingNi]) -> Vec<u8> {
    let mut bytes = vec![0xAA; encoded_bytes(interfaces.iter().copied()).unwrap()];
    let length = bytes.len();
    assert_eq!(write(&mut bytes, features, 12345, 7, interfaces.iter().copied()), Ok(length));
    bytes
}

#[test]
fn a_node_with_small_nids() {
    let bytes = written(END_NODE, &[up("10.0.0.1@tcp"), up("10.1.0.1@tcp1")]);
    let mut expected = vec![];
    for word in [0x7069_6E67, 0x1E, 12345, 3_u32] {
        expected.extend(word.to_le_bytes());
    }
    for (nid, status) in [
        (0x0009_0000_0000_0000, 7),
        (0x0002_0000_0A00_0001, 0x15AA_C0DE),
        (0x0002_0001_0A01_0001_u64, 0x15AA_C0DE_u32),
    ] {
        expected.extend(nid.to_le_bytes());
        expected.extend(status.to_le_bytes());
        expected.extend([0; 4]);
    }
    assert_eq!(bytes, expected);
    let info = PingInfo::parse(&bytes).unwrap();
    assert_eq!((info.features(), info.pid(), info.sequence()), (END_NODE, 12345, 7));
    assert_eq!((info.full_bytes(), info.is_truncated()), (64, false));
    assert_eq!(info.primary(), Some(nid("10.0.0.1@tcp")));
    assert_eq!(info.metadata(), None);
    assert!(info.interfaces().eq([up("10.0.0.1@tcp"), up("10.1.0.1@tcp1")]));
}

#[test]
fn a_node_with_both_kinds() {
    let down = PingNi { nid: nid("fd00::1@tcp"), status: NiStatus::DOWN };
    let bytes = written(END_NODE, &[down, up("10.0.0.1@tcp"), up("fd00::2@xdp3")]);
    assert_eq!(bytes.len(), 16 + 2 * 16 + 2 * 24);
    assert_eq!(bytes[4], 0x7E);
    assert_eq!(bytes[12], 2);
    assert_eq!(bytes[28..32], 96_u32.to_le_bytes());
    assert_eq!(bytes[48..52], NiStatus::DOWN.0.to_le_bytes());
    assert_eq!(bytes[52..72], nid("fd00::1@tcp").to_bytes());
    let info = PingInfo::parse(&bytes).unwrap();
    assert_eq!(info.features(), Features(0x7E));
    assert_eq!(info.primary(), Some(nid("fd00::1@tcp")));
    assert!(info.interfaces().eq([up("10.0.0.1@tcp"), down, up("fd00::2@xdp3")]));

    // The primary is small if the first NI is.
    let bytes = written(END_NODE, &[up("10.0.0.1@tcp"), up("fd00::2@xdp3")]);
    let info = PingInfo::parse(&bytes).unwrap();
    assert_eq!((info.features(), info.primary()), (Features(0x3E), Some(nid("10.0.0.1@tcp"))));
}

#[test]
fn a_node_without_interfaces_has_no_primary() {
    let bytes = written(END_NODE, &[]);
    let info = PingInfo::parse(&bytes).unwrap();
    assert_eq!((info.primary(), info.interfaces().next(), info.full_bytes()), (None, None, 32));
    // Nor has one that announces a large primary and sends none, or the other way round.
    let mut bytes = written(END_NODE, &[up("10.0.0.1@tcp")]);
    bytes[4] |= 0x60;
    assert_eq!(PingInfo::parse(&bytes).unwrap().primary(), None);
    let mut bytes = written(END_NODE, &[up("fd00::1@tcp")]);
    bytes[4] &= !0x40;
    assert_eq!(PingInfo::parse(&bytes).unwrap().primary(), None);
}

#[test]
fn features_follow_the_interfaces() {
    let all = Features(0xFF);
    let bytes = written(all, &[up("10.0.0.1@tcp")]);
    assert_eq!(PingInfo::parse(&bytes).unwrap().features(), Features(0x1F));
    let bytes = written(Features(0), &[up("fd00::1@tcp")]);
    assert_eq!(PingInfo::parse(&bytes).unwrap().features(), Features(0x62));
    assert!(all.contains(Features::METADATA) && !Features(0x7F).contains(Features::METADATA));
    assert_eq!(Features::MULTI_RAIL.with(Features::DISCOVERY).without(Features(8)), Features(0x10));
}

/// Ping information as an owner of the other byte order has it.
fn swapped(bytes: &[u8], small_count: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let (words, _) = bytes.as_chunks_mut::<4>();
    words[..4].iter_mut().for_each(|word| word.reverse());
    for entry in words[4..4 + 4 * small_count].as_chunks_mut::<4>().0 {
        entry.iter_mut().for_each(|word| word.reverse());
        entry.swap(0, 1);
    }
    words[4 + 4 * small_count..].as_chunks_mut::<6>().0.iter_mut().for_each(|entry| entry[0].reverse());
    bytes
}

#[test]
fn the_other_byte_order() {
    let interfaces = [up("10.0.0.1@tcp2"), up("fd00::1@tcp"), up("fd00::2@tcp")];
    let little = written(END_NODE, &interfaces);
    let big = swapped(&little, 2);
    assert_eq!(big[..4], *b"ping");
    let (little, big) = (PingInfo::parse(&little).unwrap(), PingInfo::parse(&big).unwrap());
    assert!(big.interfaces().eq(interfaces));
    assert_eq!(
        (big.features(), big.pid(), big.sequence(), big.full_bytes(), big.primary()),
        (little.features(), little.pid(), little.sequence(), little.full_bytes(), little.primary()),
    );
}

#[test]
fn malformed_information_is_refused() {
    let good = written(END_NODE, &[up("10.0.0.1@tcp"), up("fd00::1@tcp")]);
    let check = |offset: usize, word: u32, error| {
        let mut bytes = good.clone();
        bytes[offset..offset + 4].copy_from_slice(&word.to_le_bytes());
        assert_eq!(PingInfo::parse(&bytes), Err(error));
    };
    check(0, 0x7069_6E68, PingError::Magic(0x7069_6E68));
    check(4, 0x1C, PingError::Features(Features(0x1C)));
    check(12, 0, PingError::Count(0));
    check(12, 4097, PingError::Count(4097));
    check(12, u32::MAX, PingError::Count(u32::MAX));
    check(16, 1, PingError::FirstEntry(0x0009_0000_0000_0001));
    check(20, 0x0002_0000, PingError::FirstEntry(0x0002_0000_0000_0000));
    check(28, BUFFER_BYTES_MAX as u32 + 4, PingError::Size(BUFFER_BYTES_MAX as u32 + 4));
    check(28, u32::MAX, PingError::Size(u32::MAX - 3));
    for length in 0..32 {
        let error = PingError::Truncated { length, expected: 32 };
        assert_eq!(PingInfo::parse(&good[..length]), Err(error));
    }
}

#[test]
fn the_size_of_entry_0() {
    let good = written(END_NODE, &[up("10.0.0.1@tcp"), up("fd00::1@tcp")]);
    assert_eq!(good.len(), 72);
    for (size, full_bytes, is_truncated) in
        [(72, 72, false), (75, 72, false), (76, 76, true), (0, 48, false), (BUFFER_BYTES_MAX, 163_856, true)]
    {
        let mut bytes = good.clone();
        bytes[28..32].copy_from_slice(&(size as u32).to_le_bytes());
        let info = PingInfo::parse(&bytes).unwrap();
        assert_eq!((info.full_bytes(), info.is_truncated()), (full_bytes, is_truncated));
    }
    // Without large addresses the word says nothing.
    let mut bytes = written(END_NODE, &[up("10.0.0.1@tcp")]);
    bytes[28..32].fill(0xFF);
    assert_eq!(PingInfo::parse(&bytes).unwrap().full_bytes(), 48);
    // The largest count still parses, as truncated.
    bytes[12..16].copy_from_slice(&ENTRIES_MAX.to_le_bytes());
    let info = PingInfo::parse(&bytes).unwrap();
    assert_eq!((info.full_bytes(), info.is_truncated()), (16 + 16 * 4096, true));
    assert!(info.interfaces().eq([up("10.0.0.1@tcp")]));
}

#[test]
fn cut_information_has_the_entries_that_are_whole() {
    let interfaces = [up("10.0.0.1@tcp"), up("10.0.0.2@tcp"), up("fd00::1@tcp"), up("fd00::2@tcp")];
    let whole = written(END_NODE, &interfaces);
    let ends = [48, 64, 88, 112];
    assert_eq!(whole.len(), 112);
    for length in 32..=whole.len() {
        let info = PingInfo::parse(&whole[..length]).unwrap();
        assert_eq!(info.is_truncated(), length < whole.len());
        assert_eq!(info.full_bytes(), whole.len());
        let expected = ends.iter().filter(|end| **end <= length).count();
        assert!(info.interfaces().eq(interfaces.into_iter().take(expected)), "cut to {length}");
    }
}

#[test]
fn metadata_stands_behind_the_entries() {
    let mut bytes = written(END_NODE, &[up("10.0.0.1@efa")]);
    bytes[4] |= 0x80;
    assert_eq!(PingInfo::parse(&bytes).unwrap().metadata(), Some(&[][..]));
    assert_eq!(PingInfo::parse(&bytes[..47]).unwrap().metadata(), None);
    bytes.extend([1, 2, 3]);
    let info = PingInfo::parse(&bytes).unwrap();
    assert_eq!(info.metadata(), Some(&[1, 2, 3][..]));
    assert!(info.interfaces().eq([up("10.0.0.1@efa")]));
}

#[test]
fn entries_that_are_no_interfaces_are_skipped() {
    let mut bytes = written(END_NODE, &[up("10.0.0.1@tcp"), up("10.0.0.2@tcp")]);
    bytes[32 + 7] = 1;
    assert!(PingInfo::parse(&bytes).unwrap().interfaces().eq([up("10.0.0.2@tcp")]));
    bytes[32..40].fill(0xFF);
    assert!(PingInfo::parse(&bytes).unwrap().interfaces().eq([up("10.0.0.2@tcp")]));

    // Large entries: a NID of 24 bytes, a wildcard, a small NID in large form, a good one.
    let mut bytes = written(END_NODE, &[up("10.0.0.1@tcp")]);
    bytes[4] |= 0x20;
    bytes.extend([0; 4]);
    bytes.extend([16, 2, 0, 0]);
    bytes.extend([0; 20]);
    bytes.extend([0; 4]);
    bytes.extend([12, 0xFF]);
    bytes.extend([0; 18]);
    bytes.extend(NiStatus::DOWN.0.to_le_bytes());
    bytes.extend([0, 2, 0, 3, 10, 0, 0, 9]);
    bytes.extend(NiStatus::UP.0.to_le_bytes());
    bytes.extend(nid("fd00::1@tcp").to_bytes());
    let length = bytes.len() as u32;
    bytes[28..32].copy_from_slice(&length.to_le_bytes());
    let down = PingNi { nid: nid("10.0.0.9@tcp3"), status: NiStatus::DOWN };
    assert!(PingInfo::parse(&bytes).unwrap().interfaces().eq([up("10.0.0.1@tcp"), down, up("fd00::1@tcp")]));
}

#[test]
fn what_cannot_be_written() {
    let mut bytes = [0xAA; 64];
    let mut stray = nid("10.0.0.1@tcp").to_bytes();
    stray[19] = 1;
    for nid in [Nid::ANY, Nid::LO, Nid::from_bytes(&stray).unwrap()] {
        let interface = PingNi { nid, status: NiStatus::UP };
        assert_eq!(write(&mut bytes, END_NODE, 1, 1, [interface]), Err(PingError::Interface(nid)));
        assert_eq!(encoded_bytes([interface]), Err(PingError::Interface(nid)));
    }
    let interfaces = [up("10.0.0.1@tcp"), up("10.0.0.2@tcp")];
    let error = PingError::NoRoom { length: 63, expected: 64 };
    assert_eq!(write(&mut bytes[..63], END_NODE, 1, 1, interfaces), Err(error));
    assert_eq!(bytes, [0xAA; 64]);
    assert_eq!(write(&mut bytes, END_NODE, 1, 1, interfaces), Ok(64));

    let many = |nid: &str, count| core::iter::repeat_n(up(nid), count);
    assert_eq!(encoded_bytes(many("10.0.0.1@tcp", 4095)), Ok(16 + 16 * 4096));
    assert_eq!(encoded_bytes(many("10.0.0.1@tcp", 4096)), Err(PingError::Count(4097)));
    assert_eq!(encoded_bytes(many("fd00::1@tcp", 4096)), Ok(32 + 24 * 4096));
    assert_eq!(encoded_bytes(many("fd00::1@tcp", 4097)), Err(PingError::Count(4097)));
}

#[test]
fn errors_name_the_values() {
    for (error, part) in [
        (
            PingError::Truncated { length: 5, expected: 32 },
            "5 bytes of ping information, expected at least 32",
        ),
        (PingError::Magic(1), "0x00000001, expected 0x70696e67"),
        (PingError::Features(Features(4)), "0x4, expected 0x2"),
        (PingError::Count(0), "0 ping entries, expected 1 to 4096"),
        (PingError::FirstEntry(5), "0x0000000000000005 in ping entry 0, expected 0@lo"),
        (PingError::Size(200_000), "200000 bytes by ping entry 0, expected at most 163856"),
        (PingError::Interface(Nid::LO), "nid 0@lo, expected"),
        (PingError::NoRoom { length: 5, expected: 48 }, "room for 5 bytes of ping information, expected 48"),
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

fn interfaces() -> impl Strategy<Value = Vec<PingNi>> {
    let nids = prop_oneof![small_nids(), large_nids()];
    let nids = nids.prop_filter("an interface", |nid| !nid.is_loopback());
    let interface = (nids, any::<u32>()).prop_map(|(nid, status)| PingNi { nid, status: NiStatus(status) });
    proptest::collection::vec(interface, 0..20)
}

proptest! {
    #[test]
    fn round_trips(interfaces in interfaces(), features in any::<u32>(), is_swapped in any::<bool>()) {
        let mut bytes = written(Features(features), &interfaces);
        let (small, large): (Vec<_>, Vec<_>) = interfaces.iter().partition(|entry| !entry.nid.is_large());
        if is_swapped {
            bytes = swapped(&bytes, 1 + small.len());
        }
        let info = PingInfo::parse(&bytes).unwrap();
        prop_assert_eq!(info.primary(), interfaces.first().map(|interface| interface.nid));
        prop_assert_eq!(info.full_bytes(), bytes.len());
        prop_assert_eq!(info.interfaces().collect::<Vec<_>>(), [small, large].concat());
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        noise in proptest::collection::vec(any::<u8>(), 0..200),
        good_bytes in 0..=32_usize,
        features in any::<u8>(),
        count in 0..20_u8,
        size in any::<u8>(),
    ) {
        // The first bytes are right, so that all checks are reached.
        let mut bytes = written(Features(u32::from(features)), &[])[..good_bytes].to_vec();
        bytes.extend(noise);
        if bytes.len() >= 32 {
            (bytes[4], bytes[12], bytes[28]) = (features | 2, count, size);
        }
        if let Ok(info) = PingInfo::parse(&bytes) {
            prop_assert!(info.interfaces().count() <= bytes.len() / 12);
            prop_assert!(info.full_bytes() <= BUFFER_BYTES_MAX);
            prop_assert!(info.interfaces().all(|interface| !interface.nid.is_any()));
            let _ = (info.primary(), info.metadata());
        }
    }
}
