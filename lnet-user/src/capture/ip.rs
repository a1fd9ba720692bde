//! IP and UDP headers for what a socket sends and receives, as the kernel writes them or may have written them.

use std::net::{IpAddr, SocketAddr};

use lnet_wire::packet::{IPV4_BYTES, IPV6_BYTES, PROTOCOL_UDP, UDP_BYTES};

const HOP_LIMIT: u8 = 64;
const DONT_FRAGMENT: u8 = 0x40;

/// The headers of a datagram.
pub(crate) struct Headers {
    bytes: [u8; IPV6_BYTES + UDP_BYTES],
    length: usize,
}

impl Headers {
    /// Those of a datagram of `payload` between two addresses, with all checksums that IP asks for (none for UDP over IPv4). An IPv4
    /// address and an IPv6 address make none.
    pub(crate) fn new(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Option<Self> {
        let mut bytes = [0; IPV6_BYTES + UDP_BYTES];
        // A datagram is never longer.
        let udp_bytes = (UDP_BYTES + payload.len()) as u16;
        let mut udp = [0; UDP_BYTES];
        udp[0..2].copy_from_slice(&from.port().to_be_bytes());
        udp[2..4].copy_from_slice(&to.port().to_be_bytes());
        udp[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
        let length = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                bytes[0] = 0x45;
                bytes[2..4].copy_from_slice(&(IPV4_BYTES as u16 + udp_bytes).to_be_bytes());
                bytes[6] = DONT_FRAGMENT;
                bytes[8] = HOP_LIMIT;
                bytes[9] = PROTOCOL_UDP;
                bytes[12..16].copy_from_slice(&from.octets());
                bytes[16..20].copy_from_slice(&to.octets());
                let checksum = checksum([&bytes[..IPV4_BYTES]]);
                bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
                IPV4_BYTES
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                bytes[0] = 0x60;
                bytes[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
                bytes[6] = PROTOCOL_UDP;
                bytes[7] = HOP_LIMIT;
                bytes[8..24].copy_from_slice(&from.octets());
                bytes[24..40].copy_from_slice(&to.octets());
                let pseudo = [0, PROTOCOL_UDP];
                let sum = checksum([&bytes[8..40], &udp_bytes.to_be_bytes(), &pseudo, &udp, payload]);
                // Zero means none (RFC 8200 8.1).
                let checksum = if sum == 0 { 0xFFFF } else { sum };
                udp[6..8].copy_from_slice(&checksum.to_be_bytes());
                IPV6_BYTES
            }
            _ => return None,
        };
        bytes[length..length + UDP_BYTES].copy_from_slice(&udp);
        Some(Self { bytes, length: length + UDP_BYTES })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The Internet checksum (RFC 1071) of pieces in a row, all but the last of an even length.
fn checksum<const N: usize>(pieces: [&[u8]; N]) -> u16 {
    let sum_of = |piece: &[u8]| {
        let (words, rest) = piece.as_chunks::<2>();
        let last = rest.first().map_or(0, |byte| u64::from(*byte) << 8);
        words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>() + last
    };
    let mut sum: u64 = pieces.into_iter().map(sum_of).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use lnet_wire::packet::locate;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// The packet behind an Ethernet header, which is what `locate` reads.
    fn located(headers: &Headers, payload: &[u8], ethertype: u16) -> (usize, usize) {
        let mut frame = vec![0; 12];
        frame.extend(ethertype.to_be_bytes());
        frame.extend(headers.as_bytes());
        frame.extend(payload);
        let located = locate(&frame[..]).unwrap();
        (located.payload_offset, located.payload_length)
    }

    #[test]
    fn headers_are_read_back() {
        let payload = *b"an odd number of bytes!";
        let v4 = Headers::new(address("10.0.0.1:988"), address("10.0.0.2:4000"), &payload).unwrap();
        assert_eq!(located(&v4, &payload, 0x0800), (42, payload.len()));
        assert_eq!(checksum([&v4.as_bytes()[..20]]), 0);
        assert_eq!(v4.as_bytes()[20..24], [0x03, 0xDC, 0x0F, 0xA0]);

        let v6 = Headers::new(address("[fd00::1]:988"), address("[fd00::2]:988"), &payload).unwrap();
        assert_eq!(located(&v6, &payload, 0x86DD), (62, payload.len()));
        let bytes = v6.as_bytes();
        let length = [0, 8 + payload.len() as u8, 0, PROTOCOL_UDP];
        assert_eq!(checksum([&bytes[8..40], &length, &bytes[40..], &payload]), 0);
        assert!(Headers::new(address("10.0.0.1:988"), address("[fd00::2]:988"), &payload).is_none());
    }
}
