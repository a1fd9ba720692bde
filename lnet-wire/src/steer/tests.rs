use std::net::IpAddr;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::header::WireHandle;
use crate::nid::ProcessId;
use crate::testing::{nid, put_key, steer_keys};

fn match_bits(shift: u8, bits: u8, spread: Spread) -> Policy {
    Policy::MatchBits { shift, bits, spread }
}

fn shard(key: &SteerKey, policy: Policy, shards: u32) -> u32 {
    shard_of(key, policy.pack().unwrap(), shards)
}

#[test]
fn pinned_portals() {
    for (pinned, shards, expected) in
        [(0, 1, 0), (0, 4, 0), (3, 4, 3), (4, 4, 0), (5, 4, 1), (63, 64, 63), (63, 1, 0), (63, 5, 3)]
    {
        for bits in [0, 1, u64::MAX] {
            assert_eq!(shard(&put_key(bits), Policy::Pin(pinned), shards), expected);
        }
    }
}

#[test]
fn tables_over_match_bits() {
    let table = Spread::Table([5, 1, 2, 3, 4, 0, 6, 63]);
    for (shift, bits, key, shards, expected) in [
        (0, 3, 0, 8, 5),
        (0, 3, 1, 8, 1),
        (0, 3, 7, 64, 63),
        (0, 3, 8, 8, 5),
        (0, 3, 0xFFF8, 8, 5),
        (0, 2, 7, 8, 3),
        (0, 1, 6, 8, 5),
        (60, 3, 0x7000_0000_0000_0000, 64, 63),
        (60, 3, 0x8000_0000_0000_0000, 8, 5),
        (61, 3, 0xE000_0000_0000_0000, 64, 63),
        (63, 1, 0x8000_0000_0000_0000, 8, 1),
        // A shard that the node does not have wraps.
        (0, 3, 0, 5, 0),
        (0, 3, 7, 8, 7),
        (0, 3, 6, 4, 2),
        (0, 3, 7, 1, 0),
    ] {
        let policy = match_bits(shift, bits, table);
        assert_eq!(shard(&put_key(key), policy, shards), expected, "{shift} {bits} {key:x} {shards}");
    }
}

#[test]
fn hashes_look_at_the_chosen_bits_alone() {
    let low = match_bits(0, 8, Spread::Hash);
    let high = match_bits(56, 8, Spread::Hash);
    let all = match_bits(0, 64, Spread::Hash);
    let spread_of = |policy, keys: &[u64]| {
        let mut shards: Vec<u32> = keys.iter().map(|key| shard(&put_key(*key), policy, 64)).collect();
        shards.sort_unstable();
        shards.dedup();
        shards.len()
    };
    let low_keys: Vec<u64> = (0..256).collect();
    let high_keys: Vec<u64> = (0..256).map(|key| key << 56).collect();
    assert_eq!(spread_of(low, &high_keys), 1);
    assert_eq!(spread_of(high, &low_keys), 1);
    assert_eq!(spread_of(low, &low_keys), spread_of(high, &high_keys));
    for keys in [&low_keys, &high_keys] {
        assert!(spread_of(all, keys) > 50);
    }
}

#[test]
fn initiators_and_rotors() {
    let key = put_key(1);
    let other_bits = SteerKey { key: 2, portal: 3, message_type: MessageType::Get, ..key };
    let other_message = SteerKey { message_id: 8, ..key };
    let other_initiator = SteerKey { initiator_hash: 0x1234_5679, ..key };
    let at = |key: &SteerKey, policy| shard(key, policy, 64);
    assert_eq!(at(&key, Policy::Initiator), at(&other_bits, Policy::Initiator));
    assert_eq!(at(&key, Policy::Initiator), at(&other_message, Policy::Initiator));
    assert_ne!(at(&key, Policy::Initiator), at(&other_initiator, Policy::Initiator));
    assert_eq!(at(&key, Policy::Rotor), at(&other_bits, Policy::Rotor));
    assert_ne!(at(&key, Policy::Rotor), at(&other_message, Policy::Rotor));
    assert_ne!(at(&key, Policy::Rotor), at(&other_initiator, Policy::Rotor));
}

#[test]
fn acks_and_replies_go_by_their_cookie() {
    // Kind in bits 0 and 1, shard in 2 to 7, anything above.
    for (cookie, shards, expected) in [
        (0b0000_0001, 4, 0),
        (0b0000_0101, 4, 1),
        (0b0000_1111, 4, 3),
        (0b1111_1101, 64, 63),
        (0b1111_1101, 4, 3),
        (0b0001_0001, 4, 0),
        (0xFFFF_FFFF_FFFF_FF00, 64, 0),
        (0xFFFF_FFFF_FFFF_FF09, 64, 2),
        (u64::MAX, 3, 0),
    ] {
        for message_type in [MessageType::Ack, MessageType::Reply] {
            let key = SteerKey { message_type, portal: 0, key: cookie, message_id: 1, initiator_hash: 2 };
            for policy in [Policy::Pin(2), Policy::Rotor, match_bits(0, 64, Spread::Hash)] {
                assert_eq!(shard(&key, policy, shards), expected, "{cookie:x} of {shards}");
            }
        }
    }
}

#[test]
fn every_word_and_count_has_an_owner() {
    let key = put_key(0xDEAD_BEEF);
    for kind in 0..8 {
        for word in [kind, kind | !7, kind | 0x1F8, kind | 0xFE00, kind | 0xFFFF_0000] {
            assert_eq!(shard_of(&key, PolicyWord(word), 0), 0);
            for shards in 1..=SHARDS_MAX {
                assert!(shard_of(&key, PolicyWord(word), shards) < shards);
            }
        }
    }
    // Words that no policy packs are pinned to their first entry.
    assert_eq!(shard_of(&key, PolicyWord(6 | 9 << 16), 64), 9);
    assert_eq!(shard_of(&key, PolicyWord::default(), 64), 0);
}

/// The words stand in a map that programs of several builds share: their layout is fixed.
#[test]
fn words() {
    for (policy, word) in [
        (Policy::Pin(0), 0),
        (Policy::Pin(63), 63 << 16),
        (match_bits(63, 1, Spread::Hash), 1 | 63 << 3 | 1 << 9),
        (match_bits(0, 64, Spread::Hash), 1 | 64 << 9),
        (
            match_bits(4, 3, Spread::Table([1, 0, 0, 0, 0, 0, 0, 63])),
            2 | 4 << 3 | 3 << 9 | 1 << 16 | 63 << 58,
        ),
        (Policy::Initiator, 3),
        (Policy::Rotor, 4),
    ] {
        assert_eq!(policy.pack(), Ok(PolicyWord(word)));
        assert_eq!(PolicyWord(word).unpack(), Some(policy));
    }
    for word in [
        5,
        6,
        7,
        // Bits that the kind does not use.
        8,
        1 << 9,
        3 | 1 << 16,
        4 | 1 << 63,
        1 << 22,
        1 | 8 << 9 | 1 << 16,
        // No bits, too many.
        1,
        1 | 65 << 9,
        1 | 1 << 3 | 64 << 9,
        2 | 4 << 9,
    ] {
        assert_eq!(PolicyWord(word).unpack(), None, "{word:x}");
    }
}

#[test]
fn policies_out_of_range() {
    let table = Spread::Table([0; 8]);
    for (policy, error) in [
        (Policy::Pin(64), PolicyError::Shard(64)),
        (Policy::Pin(255), PolicyError::Shard(255)),
        (match_bits(0, 0, Spread::Hash), PolicyError::Bits { shift: 0, bits: 0 }),
        (match_bits(0, 0, table), PolicyError::Bits { shift: 0, bits: 0 }),
        (match_bits(1, 64, Spread::Hash), PolicyError::Bits { shift: 1, bits: 64 }),
        (match_bits(64, 1, Spread::Hash), PolicyError::Bits { shift: 64, bits: 1 }),
        (match_bits(255, 255, Spread::Hash), PolicyError::Bits { shift: 255, bits: 255 }),
        (match_bits(62, 3, table), PolicyError::Bits { shift: 62, bits: 3 }),
        (match_bits(0, 4, table), PolicyError::TableBits(4)),
        (match_bits(0, 1, Spread::Table([0, 0, 0, 0, 0, 0, 0, 64])), PolicyError::Shard(64)),
    ] {
        assert_eq!(policy.pack(), Err(error));
    }
    for (error, part) in [
        (PolicyError::Shard(64), "shard 64, expected one below 64"),
        (PolicyError::Bits { shift: 60, bits: 5 }, "5 match bits from bit 60"),
        (PolicyError::TableBits(4), "4 match bits, expected at most 3"),
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// `keys` reach each of `shards` shards about equally often.
fn assert_even(shards: u32, what: &str, policy: Policy, keys: impl Iterator<Item = SteerKey>) {
    let mut counts = vec![0_u32; shards as usize];
    for key in keys {
        counts[shard(&key, policy, shards) as usize] += 1;
    }
    let mean = f64::from(counts.iter().sum::<u32>()) / f64::from(shards);
    // Six standard deviations of a fair draw.
    let slack = 6.0 * mean.sqrt();
    for (index, count) in counts.iter().enumerate() {
        let difference = (f64::from(*count) - mean).abs();
        assert!(difference <= slack, "{what}: shard {index} of {shards} got {count}, mean {mean}");
    }
}

#[test]
fn hashes_are_even_for_every_number_of_shards() {
    const KEYS: u64 = 8192;
    let all_bits = match_bits(0, 64, Spread::Hash);
    for shards in 1..=SHARDS_MAX {
        // Counters, in the low and in the high bits; strides, as of page-aligned offsets.
        assert_even(shards, "counter", all_bits, (0..KEYS).map(put_key));
        assert_even(shards, "high bits", all_bits, (0..KEYS).map(|key| put_key(key << 48)));
        assert_even(shards, "pages", all_bits, (0..KEYS).map(|key| put_key(key << 12)));
        assert_even(
            shards,
            "16 bits",
            match_bits(8, 16, Spread::Hash),
            (0..KEYS).map(|key| put_key(key << 8)),
        );
        let message = |message_id| SteerKey { message_id, ..put_key(1) };
        assert_even(shards, "message ids", Policy::Rotor, (0..KEYS).map(message));
        let initiator = |index: u64| {
            let address = IpAddr::from((0x0A00_0000 + index as u32).to_be_bytes());
            let nid = Nid::new_ip(crate::nid::Net::XDP, address).unwrap();
            SteerKey { initiator_hash: initiator_hash(&nid), ..put_key(1) }
        };
        assert_even(shards, "initiators", Policy::Initiator, (0..KEYS).map(initiator));
    }
}

/// Both ends of a connection compute it: the value is part of the wire format.
#[test]
fn initiator_hashes_are_fixed() {
    for (text, hash) in [
        ("10.0.0.1@tcp", 0xF0B0_1581),
        ("10.0.0.1@xdp", 0xD52D_AE8B),
        ("fd00::1@xdp3", 0x4890_54C1),
        ("0@lo", 0x5A4E_D47F),
    ] {
        assert_eq!(initiator_hash(&nid(text)), hash, "{text}");
    }
}

#[test]
fn slots_are_distinct() {
    let mut slots: Vec<u32> =
        (0..QUEUES_MAX).flat_map(|queue| (0..SHARDS_MAX).map(move |shard| slot_of(queue, shard))).collect();
    slots.sort_unstable();
    assert_eq!(slots, (0..SLOTS).collect::<Vec<_>>());
}

#[test]
fn keys_of_headers() {
    let md = WireHandle { interface_cookie: 1, object_cookie: 0x0D };
    let header = |body| Header {
        destination: ProcessId::lustre(nid("10.0.0.2@xdp")),
        source: ProcessId::lustre(nid("10.0.0.1@xdp")),
        payload_length: 0,
        body,
    };
    let put = |portal| header(Body::Put { ack_md: md, match_bits: 5, hdr_data: 6, portal, offset: 7 });
    let get = header(Body::Get { return_md: md, match_bits: 5, portal: 63, offset: 7, sink_length: 8 });
    let key = |message_type, portal, key| {
        Some(SteerKey { message_type, portal, key, message_id: 9, initiator_hash: 10 })
    };
    assert_eq!(SteerKey::of(&put(0), 9, 10), key(MessageType::Put, 0, 5));
    assert_eq!(SteerKey::of(&get, 9, 10), key(MessageType::Get, 63, 5));
    assert_eq!(SteerKey::of(&header(Body::Reply { md }), 9, 10), key(MessageType::Reply, 0, 0x0D));
    let ack = header(Body::Ack { md, match_bits: 5, manipulated_length: 6 });
    assert_eq!(SteerKey::of(&ack, 9, 10), key(MessageType::Ack, 0, 0x0D));
    for portal in [64, 256, 0x0100_0001, u32::MAX] {
        assert_eq!(SteerKey::of(&put(portal), 9, 10), None);
    }
    let hello = header(Body::Hello { incarnation: 1, connection_type: 1 });
    assert_eq!(SteerKey::of(&hello, 9, 10), None);
}

fn policies() -> impl Strategy<Value = Policy> {
    let spreads =
        prop_oneof![Just(Spread::Hash), proptest::array::uniform8(0..70_u8).prop_map(Spread::Table)];
    prop_oneof![
        (0..70_u8).prop_map(Policy::Pin),
        (0..70_u8, 0..70_u8, spreads).prop_map(|(shift, bits, spread)| Policy::MatchBits {
            shift,
            bits,
            spread
        }),
        Just(Policy::Initiator),
        Just(Policy::Rotor),
    ]
}

proptest! {
    #[test]
    fn packing_round_trips(policy in policies(), word in any::<u64>()) {
        if let Ok(word) = policy.pack() {
            prop_assert_eq!(word.unpack(), Some(policy));
        }
        for word in [word, word & 0xFFFF, word & 0x3F_0007] {
            if let Some(policy) = PolicyWord(word).unpack() {
                prop_assert_eq!(policy.pack(), Ok(PolicyWord(word)));
            }
        }
    }

    #[test]
    fn a_shard_is_always_chosen(key in steer_keys(), word in any::<u64>(), shards in any::<u32>()) {
        for shards in [shards, shards % SHARDS_MAX + 1] {
            prop_assert!(shard_of(&key, PolicyWord(word), shards) < shards.max(1));
        }
    }
}
