use core::net::IpAddr;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::frame::FIRST_HEADERS_BYTES;
use crate::testing::steer_keys;

/// A packet to 10.0.0.2 or fd00::2, UDP port 988, with what a test wants changed in it.
#[derive(Clone)]
struct Build {
    is_ipv6: bool,
    vlan_tags: usize,
    payload: Vec<u8>,
    /// Zero bytes behind the UDP payload, as Ethernet pads short packets.
    padding_bytes: usize,
}

impl Build {
    fn new(is_ipv6: bool, payload: &[u8]) -> Self {
        Self { is_ipv6, vlan_tags: 0, payload: payload.to_vec(), padding_bytes: 0 }
    }

    fn network_offset(&self) -> usize {
        ETHERNET_BYTES + self.vlan_tags * VLAN_BYTES
    }

    fn udp_offset(&self) -> usize {
        self.network_offset() + if self.is_ipv6 { IPV6_BYTES } else { IPV4_BYTES }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut packet = vec![0x02; 12];
        for _ in 0..self.vlan_tags {
            // A priority, and no VLAN.
            packet.extend([0x81, 0x00, 0xA0, 0x00]);
        }
        let udp_bytes = (UDP_BYTES + self.payload.len()) as u16;
        if self.is_ipv6 {
            packet.extend([0x86, 0xDD, 0x60, 0, 0, 0]);
            packet.extend(udp_bytes.to_be_bytes());
            packet.extend([PROTOCOL_UDP, 64]);
            for last in [1, 2] {
                packet.extend([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
            }
        } else {
            packet.extend([0x08, 0x00, 0x45, 0]);
            packet.extend((udp_bytes + 20).to_be_bytes());
            packet.extend([0x12, 0x34, 0x40, 0, 64, PROTOCOL_UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        packet.extend([0xC0, 0x00, 0x03, 0xDC]);
        packet.extend(udp_bytes.to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(&self.payload);
        packet.extend(vec![0; self.padding_bytes]);
        packet
    }

    fn with(&self, offset: usize, bytes: &[u8]) -> Vec<u8> {
        let mut packet = self.bytes();
        packet[offset..offset + bytes.len()].copy_from_slice(bytes);
        packet
    }
}

fn ours(is_ipv6: bool) -> Endpoint {
    let address = if is_ipv6 { "fd00::2" } else { "10.0.0.2" };
    endpoint(address.parse::<IpAddr>().unwrap(), 988)
}

#[test]
fn endpoints() {
    let bytes = |endpoint: Endpoint| endpoint.map(u32::to_ne_bytes).concat();
    let mut expected = [0; size_of::<Endpoint>()];
    expected[10..19].copy_from_slice(&[0xFF, 0xFF, 10, 0, 0, 2, 0x03, 0xDC, 1]);
    assert_eq!(bytes(ours(false)), expected);
    let mut expected = [0; size_of::<Endpoint>()];
    expected[..2].copy_from_slice(&[0xFD, 0]);
    expected[15..19].copy_from_slice(&[2, 0x03, 0xDC, 1]);
    assert_eq!(bytes(ours(true)), expected);
}

#[test]
fn udp_is_found_behind_either_ip_and_one_tag() {
    for is_ipv6 in [false, true] {
        for vlan_tags in [0, 1] {
            for padding_bytes in [0, 1, 20] {
                let build = Build { vlan_tags, padding_bytes, ..Build::new(is_ipv6, b"payload") };
                let located = Located {
                    mac: ethernet_address(build.bytes()[..6].try_into().unwrap()),
                    destination: ours(is_ipv6),
                    payload_offset: build.udp_offset() + UDP_BYTES,
                    payload_length: 7,
                };
                assert_eq!(locate(&build.bytes()[..]), Ok(located));
            }
        }
        let build = Build { vlan_tags: 2, ..Build::new(is_ipv6, b"payload") };
        assert_eq!(locate(&build.bytes()[..]), Err(Reason::NotIp));
        assert_eq!(
            locate(&Build::new(is_ipv6, b"").bytes()[..]).map(|located| located.payload_length),
            Ok(0)
        );
    }
}

#[test]
fn other_ethertypes_pass() {
    let build = Build::new(false, b"payload");
    // ARP, 802.1ad, MPLS, a length field.
    for ethertype in [0x0806_u16, 0x88A8, 0x8847, 0x0040] {
        assert_eq!(locate(&build.with(12, &ethertype.to_be_bytes())[..]), Err(Reason::NotIp));
    }
    let tagged = Build { vlan_tags: 1, ..build };
    for vlan in [1_u16, 7, 0x0FFF, 0xF001] {
        assert_eq!(locate(&tagged.with(14, &vlan.to_be_bytes())[..]), Err(Reason::NotOurs), "{vlan:#06x}");
    }
    assert_eq!(locate(&tagged.with(16, &[0x08, 0x06])[..]), Err(Reason::NotIp));
}

#[test]
fn what_is_odd_about_ipv4_passes() {
    let build = Build::new(false, b"payload");
    let ip = ETHERNET_BYTES;
    for (offset, bytes, reason) in [
        (ip, &[0x46][..], Reason::IpOptions),
        (ip, &[0x4F], Reason::IpOptions),
        (ip, &[0x44], Reason::IpOptions),
        (ip, &[0x65], Reason::NotIp),
        (ip + 6, &[0x20, 0], Reason::IpOptions),
        (ip + 6, &[0x00, 1], Reason::IpOptions),
        (ip + 6, &[0x1F, 0xFF], Reason::IpOptions),
        (ip + 6, &[0x01, 0x00], Reason::IpOptions),
        (ip + 9, &[6], Reason::NotUdp),
        (ip + 9, &[1], Reason::NotUdp),
    ] {
        assert_eq!(locate(&build.with(offset, bytes)[..]), Err(reason), "{bytes:x?} at {offset}");
    }
    // "Don't fragment", the reserved bit, type of service and time to live do not matter.
    for (offset, bytes) in [(ip + 6, &[0xC0, 0][..]), (ip + 6, &[0, 0]), (ip + 1, &[0xFF]), (ip + 8, &[1])] {
        assert!(locate(&build.with(offset, bytes)[..]).is_ok());
    }
}

#[test]
fn what_is_odd_about_ipv6_passes() {
    let build = Build::new(true, b"payload");
    let ip = ETHERNET_BYTES;
    assert_eq!(locate(&build.with(ip, &[0x45])[..]), Err(Reason::NotIp));
    for extension in [0, 43, 44, 51, 60] {
        assert_eq!(locate(&build.with(ip + 6, &[extension])[..]), Err(Reason::IpOptions));
    }
    for protocol in [6, 58, 59, 50] {
        assert_eq!(locate(&build.with(ip + 6, &[protocol])[..]), Err(Reason::NotUdp));
    }
    // Traffic class and flow label do not matter; a jumbogram's length of 0 does.
    assert!(locate(&build.with(ip, &[0x6F, 0xFF, 0xFF, 0xFF])[..]).is_ok());
    assert_eq!(locate(&build.with(ip + 4, &[0, 0])[..]), Err(Reason::Truncated));
}

#[test]
fn lengths_off_by_one() {
    for is_ipv6 in [false, true] {
        let build = Build { padding_bytes: 0, ..Build::new(is_ipv6, b"payload") };
        let whole = build.bytes();
        let (ip, udp) = (build.network_offset(), build.udp_offset());
        let ip_length_offset = ip + if is_ipv6 { 4 } else { 2 };
        let ip_length = u16::from_be_bytes([whole[ip_length_offset], whole[ip_length_offset + 1]]);
        let located = locate(&whole[..]);
        assert!(located.is_ok());

        // The packet ends anywhere before its end.
        for end in 0..whole.len() {
            assert_eq!(locate(&whole[..end]), Err(Reason::Truncated), "cut at {end}");
        }
        // IP ends a byte early or a byte behind the packet; behind it is fine once there is padding.
        let shorter = build.with(ip_length_offset, &(ip_length - 1).to_be_bytes());
        assert_eq!(locate(&shorter[..]), Err(Reason::Truncated));
        let longer = build.with(ip_length_offset, &(ip_length + 1).to_be_bytes());
        assert_eq!(locate(&longer[..]), Err(Reason::Truncated));
        let padded = [&longer[..], &[0]].concat();
        assert_eq!(locate(&padded[..]), located);
        // UDP: shorter than its header, exactly its header, a byte more than IP has.
        for (udp_length, expected) in [
            (0_u16, Err(Reason::Truncated)),
            (7, Err(Reason::Truncated)),
            (8, Ok(0)),
            (14, Ok(6)),
            (15, Ok(7)),
            (16, Err(Reason::Truncated)),
            (u16::MAX, Err(Reason::Truncated)),
        ] {
            let packet = build.with(udp + 4, &udp_length.to_be_bytes());
            assert_eq!(locate(&packet[..]).map(|located| located.payload_length), expected);
        }
    }
    let build = Build::new(false, b"payload");
    for ip_length in [0_u16, 19, 20, 27] {
        let packet = build.with(ETHERNET_BYTES + 2, &ip_length.to_be_bytes());
        assert_eq!(locate(&packet[..]), Err(Reason::Truncated));
    }
}

/// A packet of which only the head can be read, as XDP has it of a multi-buffer frame.
struct Linear<'a> {
    head: &'a [u8],
    length: usize,
}

impl Packet for Linear<'_> {
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.head.load(offset)
    }

    fn has(&self, bytes: usize) -> bool {
        bytes <= self.length
    }
}

#[test]
fn only_the_headers_need_to_be_readable() {
    let mut payload = [0; 3000];
    let frame = FrameHeader::data(key(), 0, 2840);
    frame.encode(payload.first_chunk_mut().unwrap());
    let build = Build::new(false, &payload);
    let packet = build.bytes();
    let head_bytes = build.udp_offset() + UDP_BYTES + FRAME_HEADER_BYTES;
    let linear = Linear { head: &packet[..head_bytes], length: packet.len() };
    let located = locate(&linear).unwrap();
    assert_eq!(located.payload_length, 3000);
    assert_eq!(frame_header(&linear, &located), Ok(frame));
    let linear = Linear { head: &packet[..head_bytes - 1], length: packet.len() };
    assert_eq!(frame_header(&linear, &locate(&linear).unwrap()), Err(Reason::Truncated));
}

fn key() -> crate::steer::SteerKey {
    let message_type = crate::header::MessageType::Put;
    crate::steer::SteerKey { message_type, portal: 3, key: 4, message_id: 5, initiator_hash: 6 }
}

#[test]
fn frame_errors_become_reasons() {
    use crate::frame::{KIND_OFFSET, PORTAL_OFFSET, TYPE_OFFSET, VERSION_OFFSET};
    let mut good = [0; FIRST_HEADERS_BYTES];
    let frame = FrameHeader::data(key(), 0, 0);
    frame.encode(good.first_chunk_mut().unwrap());
    let result = |payload: &[u8]| {
        let packet = Build::new(true, payload).bytes();
        frame_header(&packet[..], &locate(&packet[..]).unwrap())
    };
    assert_eq!(result(&good), Ok(frame));
    for (offset, byte, reason) in [
        (0, 0, Reason::BadMagic),
        (VERSION_OFFSET, 9, Reason::BadVersion),
        (KIND_OFFSET, 12, Reason::BadVersion),
        (TYPE_OFFSET, 4, Reason::BadType),
        (PORTAL_OFFSET, 64, Reason::BadPortal),
        (crate::frame::TOTAL_LENGTH_OFFSET, 1, Reason::BadLength),
    ] {
        let mut bytes = good;
        bytes[offset] = byte;
        assert_eq!(result(&bytes), Err(reason));
    }
    assert_eq!(result(&good[..FRAME_HEADER_BYTES - 1]), Err(Reason::BadLength));
    assert_eq!(result(&good[..good.len() - 1]), Err(Reason::BadLength));
    assert_eq!(result(b""), Err(Reason::BadLength));
}

proptest! {
    #[test]
    fn any_packet_is_located_within_itself_or_passed(
        noise in proptest::collection::vec(any::<u8>(), 0..200),
        flips in proptest::collection::vec((0..120_usize, any::<u8>()), 0..4),
        is_ipv6 in any::<bool>(),
        vlan_tags in 0..3_usize,
        cut_bytes in 0..80_usize,
        key in steer_keys(),
    ) {
        let mut payload = [0; 200];
        FrameHeader::data(key, 0, 40).encode(payload.first_chunk_mut().unwrap());
        let mut packet = Build { vlan_tags, ..Build::new(is_ipv6, &payload) }.bytes();
        for (offset, byte) in flips {
            packet[offset] = byte;
        }
        packet.truncate(packet.len() - cut_bytes);
        for packet in [&packet[..], &noise[..]] {
            if let Ok(located) = locate(packet) {
                prop_assert!(located.payload_offset + located.payload_length <= packet.len());
                prop_assert!(located.payload_offset >= ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES);
                if let Ok(frame) = frame_header(packet, &located) {
                    prop_assert!(located.payload_length >= FRAME_HEADER_BYTES + frame.lnet_header_bytes());
                }
            }
        }
    }
}

#[test]
fn reasons_index_counters() {
    for (index, reason) in Reason::ALL.iter().enumerate() {
        assert_eq!(*reason as usize, index);
    }
    let refusals: Vec<_> = Reason::ALL.iter().filter(|reason| reason.is_refusal()).collect();
    assert_eq!(refusals.len(), 5);
    assert!(!Reason::NotOurs.is_refusal() && Reason::BadPortal.is_refusal());
}
