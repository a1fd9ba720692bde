//! Finds our frame header in an Ethernet packet: Ethernet, at most one VLAN tag without a VLAN id, IPv4 or
//! IPv6, UDP.
//!
//! Generic over where the bytes are, so that the XDP program runs it on verifier-checked pointers, the
//! host and the fuzzers on slices: one grammar, no drift.

#[cfg(test)]
mod tests;

use crate::bytes::get;
use crate::frame::{FRAME_HEADER_BYTES, FrameError, FrameHeader};
use crate::named;
use crate::steer::SteerKey;

/// Bytes that can be read at an offset.
pub trait Packet {
    /// The `N` bytes at `offset`; `None` where the packet (its linear part, in XDP) ends before.
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]>;

    /// Whether the whole packet, what [`Packet::load`] does not reach included, has as many bytes.
    fn has(&self, bytes: usize) -> bool;
}

impl Packet for [u8] {
    #[inline(always)]
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.get(offset..)?.first_chunk::<N>().copied()
    }

    #[inline(always)]
    fn has(&self, bytes: usize) -> bool {
        bytes <= self.len()
    }
}

/// An Ethernet address, in words as they lie in memory: 6 bytes, and 1 and 0, so that it is never all zeros.
pub type EthernetAddress = [u32; 2];

/// An address and a UDP port, in words as they lie in memory: 16 bytes of address (IPv4 in its mapped form
/// `::ffff:a.b.c.d`), 2 of port (big endian), and 1 and 0, so that it is never all zeros.
pub type Endpoint = [u32; 5];

named! {
    /// Why a frame was passed up, or lost. The values index the counters of the XDP program.
    #[non_exhaustive]
    Reason {
        /// Neither IPv4 nor IPv6 (ARP, two VLAN tags, ...).
        NotIp = 0 => "not_ip",
        /// An IP protocol other than UDP.
        NotUdp = 1 => "not_udp",
        /// An IP fragment, or an IP header with options or extensions: never ours.
        IpOptions = 2 => "ip_options",
        /// Tagged for a VLAN, or UDP to an Ethernet address, IP address or port that no NI has.
        NotOurs = 3 => "not_ours",
        /// Ends before its headers do, or lengths that contradict each other below our frame header.
        Truncated = 4 => "truncated",
        /// A frame to an NI, with another magic.
        BadMagic = 5 => "bad_magic",
        /// A frame to an NI, with a version or kind that is not known here.
        BadVersion = 6 => "bad_version",
        /// A frame to an NI, with a message type other than ACK, PUT, GET, REPLY.
        BadType = 7 => "bad_type",
        /// A frame to an NI, with a portal that does not exist.
        BadPortal = 8 => "bad_portal",
        /// A frame to an NI, with lengths in its frame header that contradict each other.
        BadLength = 9 => "bad_length",
        /// Arrived on a queue beyond [`crate::steer::QUEUES_MAX`], or the node has no shards yet.
        NoShard = 10 => "no_shard",
        /// The slot held no socket: passed up.
        NoSocket = 11 => "no_socket",
        /// Dropped by a fault rule.
        FaultDropped = 12 => "fault_dropped",
        /// A byte was changed by a fault rule; steered all the same.
        FaultCorrupted = 13 => "fault_corrupted",
    }
}

impl Reason {
    /// Whether the frame was addressed to an NI and is not what it should be.
    #[inline(always)]
    #[must_use]
    pub const fn is_refusal(self) -> bool {
        matches!(self, Self::BadMagic | Self::BadVersion | Self::BadType | Self::BadPortal | Self::BadLength)
    }
}

/// Bytes of the Ethernet header.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of one VLAN tag.
pub const VLAN_BYTES: usize = 4;
/// Bytes of an IPv4 header without options.
pub const IPV4_BYTES: usize = 20;
/// Bytes of an IPv6 header.
pub const IPV6_BYTES: usize = 40;
/// Bytes of a UDP header.
pub const UDP_BYTES: usize = 8;
/// `EtherType` of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// `EtherType` of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86DD;
/// `EtherType` of a VLAN tag (IEEE 802.1Q).
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

const ETHERTYPE_OFFSET: usize = 12;
/// Offset of the VLAN tag's priority and VLAN id, a big-endian word.
const VLAN_TCI_OFFSET: usize = 14;
/// The VLAN id in it. That of a frame of no VLAN is 0: its tag has a priority alone (IEEE 802.1Q).
const VLAN_ID_MASK: u16 = 0x0FFF;
const IPV4_VERSION_OFFSET: usize = 0;
const IPV4_LENGTH_OFFSET: usize = 2;
const IPV4_FRAGMENT_OFFSET: usize = 6;
const IPV4_PROTOCOL_OFFSET: usize = 9;
const IPV4_DESTINATION_OFFSET: usize = 16;
const IPV6_VERSION_OFFSET: usize = 0;
const IPV6_LENGTH_OFFSET: usize = 4;
const IPV6_NEXT_HEADER_OFFSET: usize = 6;
const IPV6_DESTINATION_OFFSET: usize = 24;
const UDP_DESTINATION_OFFSET: usize = 2;
const UDP_LENGTH_OFFSET: usize = 4;
/// "More fragments" and the fragment offset, in the big-endian word of [`IPV4_FRAGMENT_OFFSET`].
const IPV4_FRAGMENT_MASK: u16 = 0x3FFF;

/// Where the UDP payload of a packet is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Located {
    /// The interface that the packet goes to.
    pub mac: EthernetAddress,
    /// Where the packet goes.
    pub destination: Endpoint,
    /// Offset of the first byte behind the UDP header.
    pub payload_offset: usize,
    /// Bytes of UDP payload by the UDP header; they lie within the packet.
    pub payload_length: usize,
}

/// Finds the UDP payload of a packet.
///
/// # Errors
/// The [`Reason`] why it holds none that could be ours.
#[inline(always)]
pub fn locate<P: Packet + ?Sized>(packet: &P) -> Result<Located, Reason> {
    let mut network_offset = ETHERNET_BYTES;
    let mac = ethernet_address(packet.load(0).ok_or(Reason::Truncated)?);
    let mut ethertype = be16(packet, ETHERTYPE_OFFSET)?;
    if ethertype == ETHERTYPE_VLAN {
        if be16(packet, VLAN_TCI_OFFSET)? & VLAN_ID_MASK != 0 {
            return Err(Reason::NotOurs);
        }
        ethertype = be16(packet, ETHERTYPE_OFFSET + VLAN_BYTES)?;
        network_offset += VLAN_BYTES;
    }
    match ethertype {
        ETHERTYPE_IPV4 => locate_ipv4(packet, mac, network_offset),
        ETHERTYPE_IPV6 => locate_ipv6(packet, mac, network_offset),
        _ => Err(Reason::NotIp),
    }
}

#[inline(always)]
fn locate_ipv4<P: Packet + ?Sized>(
    packet: &P,
    mac: EthernetAddress,
    offset: usize,
) -> Result<Located, Reason> {
    let ip: [u8; IPV4_BYTES] = packet.load(offset).ok_or(Reason::Truncated)?;
    let [version_and_words] = get::<IPV4_VERSION_OFFSET, _, _>(&ip);
    if version_and_words >> 4 != 4 {
        return Err(Reason::NotIp);
    }
    if get::<IPV4_PROTOCOL_OFFSET, _, _>(&ip) != [PROTOCOL_UDP] {
        return Err(Reason::NotUdp);
    }
    let fragment = u16::from_be_bytes(get::<IPV4_FRAGMENT_OFFSET, _, _>(&ip));
    if version_and_words & 0xF != 5 || fragment & IPV4_FRAGMENT_MASK != 0 {
        return Err(Reason::IpOptions);
    }
    let ip_length = usize::from(u16::from_be_bytes(get::<IPV4_LENGTH_OFFSET, _, _>(&ip)));
    let available = ip_length.checked_sub(IPV4_BYTES).ok_or(Reason::Truncated)?;
    let address = mapped(get::<IPV4_DESTINATION_OFFSET, _, _>(&ip));
    locate_udp(packet, offset + IPV4_BYTES, available, (mac, address))
}

#[inline(always)]
fn locate_ipv6<P: Packet + ?Sized>(
    packet: &P,
    mac: EthernetAddress,
    offset: usize,
) -> Result<Located, Reason> {
    let ip: [u8; IPV6_BYTES] = packet.load(offset).ok_or(Reason::Truncated)?;
    let [version] = get::<IPV6_VERSION_OFFSET, _, _>(&ip);
    if version >> 4 != 6 {
        return Err(Reason::NotIp);
    }
    let [next_header] = get::<IPV6_NEXT_HEADER_OFFSET, _, _>(&ip);
    match next_header {
        PROTOCOL_UDP => {}
        // Hop-by-hop options, routing, fragment, authentication, destination options: extensions that
        // UDP may stand behind (RFC 8200 section 4.1).
        0 | 43 | 44 | 51 | 60 => return Err(Reason::IpOptions),
        _ => return Err(Reason::NotUdp),
    }
    // A jumbogram has 0 here, which leaves UDP no room.
    let available = usize::from(u16::from_be_bytes(get::<IPV6_LENGTH_OFFSET, _, _>(&ip)));
    let address = words(get::<IPV6_DESTINATION_OFFSET, _, _>(&ip));
    locate_udp(packet, offset + IPV6_BYTES, available, (mac, address))
}

/// `available` is what the IP header leaves for UDP.
#[inline(always)]
fn locate_udp<P: Packet + ?Sized>(
    packet: &P,
    offset: usize,
    available: usize,
    (mac, address): (EthernetAddress, [u32; 4]),
) -> Result<Located, Reason> {
    let udp: [u8; UDP_BYTES] = packet.load(offset).ok_or(Reason::Truncated)?;
    let udp_length = usize::from(u16::from_be_bytes(get::<UDP_LENGTH_OFFSET, _, _>(&udp)));
    if udp_length < UDP_BYTES || udp_length > available || !packet.has(offset + available) {
        return Err(Reason::Truncated);
    }
    let destination = endpoint_of(address, get::<UDP_DESTINATION_OFFSET, _, _>(&udp));
    let (payload_offset, payload_length) = (offset + UDP_BYTES, udp_length - UDP_BYTES);
    Ok(Located { mac, destination, payload_offset, payload_length })
}

/// Reads our frame header out of a located packet.
///
/// # Errors
/// The [`Reason`] why it is no frame of ours.
#[inline(always)]
pub fn frame_header<P: Packet + ?Sized>(packet: &P, located: &Located) -> Result<FrameHeader, Reason> {
    if located.payload_length < FRAME_HEADER_BYTES {
        return Err(Reason::BadLength);
    }
    let bytes = packet.load(located.payload_offset).ok_or(Reason::Truncated)?;
    FrameHeader::decode(&bytes, located.payload_length).map_err(|error| match error {
        FrameError::Magic(_) => Reason::BadMagic,
        FrameError::Version(_) | FrameError::Kind(_) => Reason::BadVersion,
        FrameError::MessageType(_) => Reason::BadType,
        FrameError::Portal(_) => Reason::BadPortal,
        FrameError::Truncated | FrameError::Length => Reason::BadLength,
    })
}

/// Reads once more what a frame is steered by; `None` where the packet ends before.
#[inline(always)]
pub(crate) fn key<P: Packet + ?Sized>(
    packet: &P,
    located: &Located,
    frame: &FrameHeader,
) -> Option<SteerKey> {
    let SteerKey { message_type, portal, .. } = frame.key;
    Some(SteerKey::read(&packet.load(located.payload_offset)?, message_type, portal))
}

#[inline(always)]
fn be16<P: Packet + ?Sized>(packet: &P, offset: usize) -> Result<u16, Reason> {
    packet.load(offset).map(u16::from_be_bytes).ok_or(Reason::Truncated)
}

/// The endpoint of an address and port.
#[must_use]
pub const fn endpoint(address: core::net::IpAddr, port: u16) -> Endpoint {
    let address = match address {
        core::net::IpAddr::V4(v4) => mapped(v4.octets()),
        core::net::IpAddr::V6(v6) => words(v6.octets()),
    };
    endpoint_of(address, port.to_be_bytes())
}

/// The Ethernet address with these bytes.
#[inline(always)]
#[must_use]
pub const fn ethernet_address([a, b, c, d, e, f]: [u8; 6]) -> EthernetAddress {
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, 1, 0])]
}

/// Whether two endpoints, or Ethernet addresses, are the same. Word by word: a BPF program has no `memcmp`,
/// and for so little a call is dear.
#[inline(always)]
#[must_use]
pub fn is_same<const WORDS: usize>(one: &[u32; WORDS], other: &[u32; WORDS]) -> bool {
    one.iter().zip(other).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
}

#[inline(always)]
const fn endpoint_of([a, b, c, d]: [u32; 4], [high, low]: [u8; 2]) -> Endpoint {
    [a, b, c, d, u32::from_ne_bytes([high, low, 1, 0])]
}

#[inline(always)]
const fn mapped(address: [u8; 4]) -> [u32; 4] {
    [0, 0, u32::from_ne_bytes([0, 0, 0xFF, 0xFF]), u32::from_ne_bytes(address)]
}

#[inline(always)]
const fn words(address: [u8; 16]) -> [u32; 4] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = address;
    [
        u32::from_ne_bytes([a, b, c, d]),
        u32::from_ne_bytes([e, f, g, h]),
        u32::from_ne_bytes([i, j, k, l]),
        u32::from_ne_bytes([m, n, o, p]),
    ]
}
