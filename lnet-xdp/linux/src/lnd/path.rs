//! The headers below our frame header, prepared once per peer: Ethernet, IPv4 or IPv6, UDP.

use std::net::IpAddr;

use lnet_io::netlink::Mac;
use lnet_wire::Nid;
use lnet_wire::packet::{
    ETHERNET_BYTES, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_BYTES, IPV6_BYTES, PROTOCOL_UDP, UDP_BYTES,
};

use super::frames::ends_crc;

/// Bytes of the longest template: Ethernet, IPv6, UDP.
pub(super) const TEMPLATE_BYTES_MAX: usize = ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES;
/// Source ports of the lanes: a NIC spreads lanes over receive queues by them.
pub(super) const LANE_PORT_BASE: u16 = 49152;
const HOP_LIMIT: u8 = 64;
const DONT_FRAGMENT: u8 = 0x40;

/// One end of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct End {
    pub(super) mac: Mac,
    pub(super) port: u16,
    pub(super) nid: Nid,
}

/// The way to one peer: its headers with all lengths and checksums zero, and the sums that are known.
#[derive(Clone, Debug)]
pub(super) struct Path {
    template: [u8; TEMPLATE_BYTES_MAX],
    length: usize,
    /// IPv4: ones' complement sum of the IP header. IPv6: that of addresses, protocol and UDP ports.
    partial_sum: u32,
    /// What the two NIDs add to the checksum of a short frame.
    pub(super) ends_crc: u32,
}

impl Path {
    /// `None` when the two NIDs do not have addresses of one family.
    pub(super) fn new(local: &End, remote: &End) -> Option<Self> {
        let (local_address, remote_address) = (local.nid.ip()?, remote.nid.ip()?);
        let mut template = [0; TEMPLATE_BYTES_MAX];
        template[0..6].copy_from_slice(&remote.mac);
        template[6..12].copy_from_slice(&local.mac);
        let (ip, udp) = template.split_at_mut(match remote_address {
            IpAddr::V4(_) => ETHERNET_BYTES + IPV4_BYTES,
            IpAddr::V6(_) => ETHERNET_BYTES + IPV6_BYTES,
        });
        udp[0..2].copy_from_slice(&local.port.to_be_bytes());
        udp[2..4].copy_from_slice(&remote.port.to_be_bytes());
        let partial_sum = match (local_address, remote_address) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ip[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
                let ip = &mut ip[ETHERNET_BYTES..];
                ip[0] = 0x45;
                ip[6] = DONT_FRAGMENT;
                ip[8] = HOP_LIMIT;
                ip[9] = PROTOCOL_UDP;
                ip[12..16].copy_from_slice(&source.octets());
                ip[16..20].copy_from_slice(&destination.octets());
                add_to_sum(0, ip)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ip[12..14].copy_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
                let ip = &mut ip[ETHERNET_BYTES..];
                ip[0] = 0x60;
                ip[6] = PROTOCOL_UDP;
                ip[7] = HOP_LIMIT;
                ip[8..24].copy_from_slice(&source.octets());
                ip[24..40].copy_from_slice(&destination.octets());
                add_to_sum(add_to_sum(u32::from(PROTOCOL_UDP), &ip[8..40]), &udp[..4])
            }
            _ => return None,
        };
        let length = match remote_address {
            IpAddr::V4(_) => ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES,
            IpAddr::V6(_) => ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES,
        };
        Some(Self { template, length, partial_sum, ends_crc: ends_crc(&remote.nid, &local.nid) })
    }

    /// Bytes of the headers.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Whether the UDP checksum must be filled in (RFC 8200 8.1), with [`Path::udp6_checksum`].
    pub(super) fn needs_udp_checksum(&self) -> bool {
        self.length == TEMPLATE_BYTES_MAX
    }

    /// Writes the headers of a datagram of `payload_bytes` to the start of `out`. The UDP checksum is
    /// left zero: "none" on IPv4 (RFC 768).
    pub(super) fn write(&self, out: &mut [u8], payload_bytes: usize) {
        let udp_bytes = (UDP_BYTES + payload_bytes) as u16;
        out[..self.length].copy_from_slice(&self.template[..self.length]);
        out[self.length - 4..self.length - 2].copy_from_slice(&udp_bytes.to_be_bytes());
        let ip = &mut out[ETHERNET_BYTES..];
        if self.needs_udp_checksum() {
            ip[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
        } else {
            let total_bytes = IPV4_BYTES as u16 + udp_bytes;
            ip[2..4].copy_from_slice(&total_bytes.to_be_bytes());
            let checksum = !fold(self.partial_sum + u32::from(total_bytes));
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
    }

    /// The UDP checksum over IPv6 of a datagram whose payload is `pieces` in a row; all but the last
    /// piece have an even length.
    pub(super) fn udp6_checksum<'a>(&self, pieces: impl Iterator<Item = &'a [u8]>) -> u16 {
        let mut sum = self.partial_sum;
        let mut bytes = UDP_BYTES;
        for piece in pieces {
            sum = add_to_sum(sum, piece);
            bytes += piece.len();
        }
        // The length counts twice: in the pseudo header and in the UDP header.
        match !fold(sum + 2 * bytes as u32) {
            0 => 0xFFFF,
            checksum => checksum,
        }
    }
}

/// Adds big-endian 16-bit words to a ones' complement sum (RFC 1071); an odd last byte is a high one.
fn add_to_sum(sum: u32, bytes: &[u8]) -> u32 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let words = pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum::<u64>();
    let last = rest.first().map_or(0, |byte| u64::from(*byte) << 8);
    let mut total = u64::from(sum) + words + last;
    while total >> 16 != 0 {
        total = (total & 0xFFFF) + (total >> 16);
    }
    total as u32
}

fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xFFFF) + (sum >> 16);
    ((sum & 0xFFFF) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use lnet_wire::nid::Net;

    use super::*;

    fn end(last: u8, address: &str) -> End {
        let nid = Nid::new_ip(Net::XDP, address.parse().unwrap()).unwrap();
        End { mac: [2, 0, 0, 0, 0, last], port: 988, nid }
    }

    #[test]
    fn ipv4_header_sums_to_all_ones() {
        let path = Path::new(&end(1, "10.0.0.1"), &end(2, "10.0.0.2")).unwrap();
        let mut out = [0; 200];
        path.write(&mut out, 100);
        assert_eq!(path.length(), 42);
        assert_eq!(fold(add_to_sum(0, &out[14..34])), 0xFFFF);
        assert_eq!(out[16..18], 128u16.to_be_bytes());
        assert_eq!(out[34..40], [0x03, 0xDC, 0x03, 0xDC, 0, 108]);
        let located = lnet_wire::packet::locate(&out[..142]).unwrap();
        assert_eq!((located.payload_offset, located.payload_length), (42, 100));
    }

    /// The pseudo header, header and payload together sum to all ones (RFC 8200 8.1).
    #[test]
    fn ipv6_udp_checksum_verifies() {
        let path = Path::new(&end(1, "fd00::1"), &end(2, "fd00::2")).unwrap();
        let payload = *b"an odd number of bytes!";
        let mut out = vec![0; 62];
        path.write(&mut out, payload.len());
        let checksum = path.udp6_checksum([&payload[..10], &payload[10..]].into_iter());
        out[60..62].copy_from_slice(&checksum.to_be_bytes());
        let mut pseudo = out[22..54].to_vec();
        pseudo.extend((8 + payload.len() as u32).to_be_bytes());
        pseudo.extend([0, 0, 0, PROTOCOL_UDP]);
        pseudo.extend(&out[54..62]);
        pseudo.extend(payload);
        assert_eq!(fold(add_to_sum(0, &pseudo)), 0xFFFF);
    }

    #[test]
    fn families_must_agree() {
        assert!(Path::new(&end(1, "10.0.0.1"), &end(2, "fd00::2")).is_none());
    }
}
