//! Values for property tests.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use proptest::prelude::*;

use crate::header::{Body, Header, MessageType, PAYLOAD_BYTES_MAX, WireHandle};
use crate::nid::{Net, NetType, Nid, ProcessId};
use crate::steer::{PORTALS, SteerKey};

pub(crate) fn nid(text: &str) -> Nid {
    Nid::from_str(text).unwrap()
}

fn net_of(types: &'static [NetType]) -> impl Strategy<Value = Net> {
    (proptest::sample::select(types), any::<u16>()).prop_map(|(net_type, number)| Net::new(net_type, number))
}

/// NIDs with a small form, besides the wildcard.
pub(crate) fn small_nids() -> impl Strategy<Value = Nid> {
    const IPV4: &[NetType] = &[NetType::TCP, NetType::O2IB, NetType::GIP, NetType::EFA, NetType::XDP];
    const NUMBER: &[NetType] = &[NetType::GNI, NetType::PTLF, NetType::KFI, NetType::BXI3F];
    prop_oneof![
        4 => (net_of(IPV4), any::<u32>())
            .prop_map(|(net, address)| Nid::new_ip(net, IpAddr::V4(Ipv4Addr::from(address))).unwrap()),
        2 => (net_of(NUMBER), any::<u32>()).prop_map(|(net, address)| Nid::new_number(net, address).unwrap()),
        1 => Just(Nid::LO),
    ]
}

/// NIDs with a 16-byte address.
pub(crate) fn large_nids() -> impl Strategy<Value = Nid> {
    const IPV6: &[NetType] = &[NetType::TCP, NetType::O2IB, NetType::EFA, NetType::XDP];
    (net_of(IPV6), any::<u128>())
        .prop_map(|(net, address)| Nid::new_ip(net, IpAddr::V6(Ipv6Addr::from(address))).unwrap())
}

/// NIDs of all kinds that have a text form.
pub(crate) fn nids() -> impl Strategy<Value = Nid> {
    prop_oneof![3 => small_nids(), 3 => large_nids(), 1 => Just(Nid::ANY)]
}

pub(crate) fn processes(nids: impl Strategy<Value = Nid>) -> impl Strategy<Value = ProcessId> {
    let pids = prop_oneof![Just(ProcessId::LUSTRE_PID), Just(ProcessId::ANY_PID), any::<u32>()];
    (nids, pids).prop_map(|(nid, pid)| ProcessId { nid, pid })
}

pub(crate) fn handles() -> impl Strategy<Value = WireHandle> {
    prop_oneof![
        4 => any::<(u64, u64)>().prop_map(|(interface_cookie, object_cookie)| WireHandle {
            interface_cookie,
            object_cookie,
        }),
        1 => Just(WireHandle::NONE),
    ]
}

pub(crate) fn bodies() -> impl Strategy<Value = Body> {
    prop_oneof![
        (handles(), any::<u64>(), any::<u32>()).prop_map(|(md, match_bits, manipulated_length)| Body::Ack {
            md,
            match_bits,
            manipulated_length
        }),
        (handles(), any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>()).prop_map(
            |(ack_md, match_bits, hdr_data, portal, offset)| Body::Put {
                ack_md,
                match_bits,
                hdr_data,
                portal,
                offset
            }
        ),
        (handles(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u32>()).prop_map(
            |(return_md, match_bits, portal, offset, sink_length)| Body::Get {
                return_md,
                match_bits,
                portal,
                offset,
                sink_length
            }
        ),
        handles().prop_map(|md| Body::Reply { md }),
        any::<(u64, u32)>()
            .prop_map(|(incarnation, connection_type)| Body::Hello { incarnation, connection_type }),
    ]
}

pub(crate) fn headers<N: Strategy<Value = Nid>>(nids: impl Fn() -> N) -> impl Strategy<Value = Header> {
    (processes(nids()), processes(nids()), any::<u32>(), bodies()).prop_map(
        |(destination, source, payload_length, body)| Header { destination, source, payload_length, body },
    )
}

/// The contents of frames: a key that [`crate::frame::FrameHeader::decode`] accepts.
pub(crate) fn steer_keys() -> impl Strategy<Value = SteerKey> {
    const TYPES: [MessageType; 4] =
        [MessageType::Ack, MessageType::Put, MessageType::Get, MessageType::Reply];
    (proptest::sample::select(&TYPES[..]), 0..PORTALS as u8, any::<(u64, u64, u32)>()).prop_map(
        |(message_type, portal, (key, message_id, initiator_hash))| {
            let has_portal = matches!(message_type, MessageType::Put | MessageType::Get);
            let portal = if has_portal { portal } else { 0 };
            SteerKey { message_type, portal, key, message_id, initiator_hash }
        },
    )
}

/// Total length, fragment offset and fragment length of a frame of a message that carries payload.
pub(crate) fn fragments() -> impl Strategy<Value = (u32, u32, u32)> {
    (1..=PAYLOAD_BYTES_MAX, any::<u32>(), any::<u32>()).prop_map(|(total, offset, length)| {
        let offset = offset % total;
        (total, offset, 1 + length % (total - offset))
    })
}

/// The key of a PUT to portal 50.
pub(crate) fn put_key(match_bits: u64) -> SteerKey {
    SteerKey {
        message_type: MessageType::Put,
        portal: 50,
        key: match_bits,
        message_id: 7,
        initiator_hash: 0x1234_5678,
    }
}
