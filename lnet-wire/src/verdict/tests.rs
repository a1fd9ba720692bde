use core::net::IpAddr;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::frame::{FIRST_HEADERS_BYTES, FrameHeader};
use crate::packet::{Endpoint, endpoint, ethernet_address};
use crate::steer::{PORTALS, Policy};
use crate::testing::{headers, nids, put_key, steer_keys};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

/// Tables that know one endpoint.
struct OneNi {
    endpoint: Endpoint,
    policies: [PolicyWord; PORTALS],
    shards: u32,
}

impl Tables for OneNi {
    fn is_ours(&self, located: &Located) -> bool {
        located.mac == ethernet_address(MAC) && located.destination == self.endpoint
    }

    fn policy(&self, portal: u8) -> PolicyWord {
        self.policies[usize::from(portal)]
    }

    fn shards(&self) -> u32 {
        self.shards
    }
}

fn tables(shards: u32) -> OneNi {
    let mut policies = [PolicyWord::default(); PORTALS];
    policies[50] = Policy::Pin(3).pack().unwrap();
    OneNi { endpoint: endpoint(IpAddr::from([10, 0, 0, 2]), 988), policies, shards }
}

/// An IPv4 packet with a whole empty message in it.
fn packet_of(key: SteerKey) -> Vec<u8> {
    const UDP_LENGTH: usize = 8 + FIRST_HEADERS_BYTES;
    let mut packet = vec![0; 42 + FIRST_HEADERS_BYTES];
    packet[..6].copy_from_slice(&MAC);
    packet[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
    packet[16..18].copy_from_slice(&(UDP_LENGTH as u16 + 20).to_be_bytes());
    packet[23] = 17;
    packet[30..34].copy_from_slice(&[10, 0, 0, 2]);
    packet[36..38].copy_from_slice(&988_u16.to_be_bytes());
    packet[38..40].copy_from_slice(&(UDP_LENGTH as u16).to_be_bytes());
    let frame = FrameHeader::data(key, 0, 0);
    frame.encode(packet[42..].first_chunk_mut().unwrap());
    packet
}

#[test]
fn frames_to_an_ni_are_redirected() {
    let key = put_key(99);
    let packet = &packet_of(key)[..];
    assert_eq!(steer(packet, 0, &tables(4)), Verdict::Redirect { shard: 3, key });
    assert_eq!(steer(packet, QUEUES_MAX - 1, &tables(2)), Verdict::Redirect { shard: 1, key });
    assert_eq!(steer(packet, QUEUES_MAX, &tables(4)), Verdict::Pass(Reason::NoShard));
    assert_eq!(steer(packet, 0, &tables(0)), Verdict::Pass(Reason::NoShard));
    assert_eq!(steer(packet, 0, &tables(65)), Verdict::Pass(Reason::NoShard));
    let other_portal = SteerKey { portal: 51, ..key };
    let verdict = Verdict::Redirect { shard: 0, key: other_portal };
    assert_eq!(steer(&packet_of(other_portal)[..], 0, &tables(4)), verdict);
}

#[test]
fn everything_else_passes_up() {
    let good = packet_of(put_key(99));
    for (offset, byte, reason) in [
        (13, 6, Reason::NotIp),
        (23, 6, Reason::NotUdp),
        (14, 0x46, Reason::IpOptions),
        (33, 3, Reason::NotOurs),
        (37, 0, Reason::NotOurs),
        (39, 0, Reason::Truncated),
        (42, 0, Reason::BadMagic),
        (46, 0, Reason::BadVersion),
        (48, 9, Reason::BadType),
        (49, 64, Reason::BadPortal),
        (74, 1, Reason::BadLength),
    ] {
        let mut packet = good.clone();
        packet[offset] = byte;
        assert_eq!(steer(&packet[..], 0, &tables(4)), Verdict::Pass(reason), "byte {offset}");
    }
    // An interface that takes frames of others, or a switch that floods them.
    for place in 0..6 {
        let mut packet = good.clone();
        packet[place] ^= 1;
        assert_eq!(steer(&packet[..], 0, &tables(4)), Verdict::Pass(Reason::NotOurs), "byte {place}");
    }
    // A tag of VLAN 0 is a priority; any other VLAN is not this interface's.
    for (tci, is_ours) in
        [(0, true), (0xF000, true), (1, false), (7, false), (0x0FFF, false), (0xE800, false)]
    {
        let tag = [&[0x81, 0x00][..], &u16::to_be_bytes(tci)].concat();
        let packet = [&good[..12], &tag, &good[12..]].concat();
        let verdict = steer(&packet[..], 0, &tables(4));
        assert_eq!(matches!(verdict, Verdict::Redirect { .. }), is_ours, "{tci:#06x}");
        assert!(is_ours || verdict == Verdict::Pass(Reason::NotOurs), "{tci:#06x}");
    }
    // The content of a packet to another address is not judged.
    let mut packet = good;
    packet[33] = 3;
    packet[42] = 0;
    assert_eq!(steer(&packet[..], 0, &tables(4)), Verdict::Pass(Reason::NotOurs));
}

proptest! {
    #[test]
    fn any_packet_and_tables(
        key in steer_keys(),
        flips in proptest::collection::vec((0..202_usize, any::<u8>()), 0..3),
        queue in 0..70_u32,
        shards in 0..70_u32,
        word in any::<u64>(),
    ) {
        let mut packet = packet_of(key);
        for (offset, byte) in flips {
            packet[offset] = byte;
        }
        let tables = OneNi { policies: [PolicyWord(word); PORTALS], ..tables(shards) };
        match steer(&packet[..], queue, &tables) {
            Verdict::Redirect { shard, .. } => {
                prop_assert!(shard < shards && shards <= SHARDS_MAX && queue < QUEUES_MAX);
            }
            Verdict::Pass(reason) => prop_assert!(Reason::ALL.contains(&reason)),
        }
    }

    /// The receiver steers a frame where the sender expects it.
    #[test]
    fn frames_carry_the_key_of_their_header(header in headers(nids), message_id in any::<u64>()) {
        if let Some(key) = SteerKey::of(&header, message_id, 5) {
            match steer(&packet_of(key)[..], 0, &tables(4)) {
                Verdict::Redirect { key: received, .. } => prop_assert_eq!(received, key),
                Verdict::Pass(reason) => prop_assert!(false, "passed up: {:?}", reason),
            }
        }
    }
}
