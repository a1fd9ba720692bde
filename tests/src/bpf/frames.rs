//! Frames: valid ones from their meaning, and others made from those.

use std::net::IpAddr;

use lnet_wire::frame::{FIRST_HEADERS_BYTES, FRAME_HEADER_BYTES, FrameHeader, ShortPut};
use lnet_wire::header::MessageType;
use lnet_wire::packet::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, UDP_BYTES, VLAN_BYTES};
use lnet_wire::steer::{PORTALS, SteerKey};

use super::random::Random;

/// Shortest frame that the kernel's test facility takes.
pub const FRAME_BYTES_MIN: usize = 14;

/// The Ethernet address that frames go to.
pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A frame, in meaning.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Ethernet address that it goes to.
    pub mac: [u8; 6],
    /// Priority and VLAN of its tag, if it has one.
    pub vlan: Option<u16>,
    /// Where it comes from; of the destination's family.
    pub source: IpAddr,
    /// Where it goes.
    pub destination: IpAddr,
    /// UDP port that it goes to.
    pub port: u16,
    /// Our header.
    pub header: FrameHeader,
    /// Bytes behind our header, and behind the LNet header in a first fragment.
    pub payload_bytes: usize,
    /// Bytes behind the datagram, as short Ethernet frames have them.
    pub padding_bytes: usize,
}

impl Frame {
    /// A whole message of `message_type` without payload.
    #[must_use]
    pub fn new(destination: IpAddr, port: u16, message_type: MessageType) -> Self {
        let source = match destination {
            IpAddr::V4(_) => IpAddr::from([10, 9, 8, 7]),
            IpAddr::V6(_) => IpAddr::from([0xFD00, 0, 0, 0, 9, 8, 7, 6]),
        };
        let key = SteerKey { message_type, portal: 0, key: 0, message_id: 1, initiator_hash: 0 };
        let header = FrameHeader::data(key, 0, 0);
        Self { mac: MAC, vlan: None, source, destination, port, header, payload_bytes: 0, padding_bytes: 0 }
    }

    /// Bytes in front of the UDP payload.
    #[must_use]
    pub fn payload_offset(&self) -> usize {
        let vlan = if self.vlan.is_some() { VLAN_BYTES } else { 0 };
        let ip = if self.destination.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
        ETHERNET_BYTES + vlan + ip + UDP_BYTES
    }

    /// Bytes of the UDP payload.
    #[must_use]
    pub fn datagram_bytes(&self) -> usize {
        self.header.covered_bytes() + self.payload_bytes
    }

    /// Writes the frame into `bytes`, which it replaces.
    ///
    /// # Panics
    /// When source and destination are of different families, or the frame is beyond 64 KiB.
    pub fn write(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        bytes.extend_from_slice(&self.mac);
        bytes.extend_from_slice(&[2, 0, 0, 0, 0, 2]);
        if let Some(vlan) = self.vlan {
            bytes.extend_from_slice(&0x8100_u16.to_be_bytes());
            bytes.extend_from_slice(&vlan.to_be_bytes());
        }
        let udp_bytes =
            u16::try_from(UDP_BYTES + self.datagram_bytes()).expect("a datagram of 64 KiB at most");
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let ip_bytes = udp_bytes.checked_add(IPV4_BYTES as u16).expect("a packet of 64 KiB at most");
                bytes.extend_from_slice(&[0x08, 0x00, 0x45, 0]);
                bytes.extend_from_slice(&ip_bytes.to_be_bytes());
                bytes.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0]);
                bytes.extend_from_slice(&source.octets());
                bytes.extend_from_slice(&destination.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                bytes.extend_from_slice(&[0x86, 0xDD, 0x60, 0, 0, 0]);
                bytes.extend_from_slice(&udp_bytes.to_be_bytes());
                bytes.extend_from_slice(&[17, 64]);
                bytes.extend_from_slice(&source.octets());
                bytes.extend_from_slice(&destination.octets());
            }
            families => panic!("{families:?}"),
        }
        bytes.extend_from_slice(&50_000_u16.to_be_bytes());
        bytes.extend_from_slice(&self.port.to_be_bytes());
        bytes.extend_from_slice(&udp_bytes.to_be_bytes());
        bytes.extend_from_slice(&[0, 0]);
        let mut header = [0; FRAME_HEADER_BYTES];
        self.header.encode(&mut header);
        let datagram_end = bytes.len() + self.datagram_bytes();
        bytes.extend_from_slice(&header);
        bytes.resize(datagram_end, 0xA5);
        bytes.resize(datagram_end + self.padding_bytes, 0);
    }

    /// The frame.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        bytes
    }
}

/// A valid frame of any kind to one of `endpoints`; about one in `large_once_in` is of several buffers.
pub fn valid(random: &mut Random, endpoints: &[(IpAddr, u16)], large_once_in: usize) -> Frame {
    const TYPES: [MessageType; 4] =
        [MessageType::Ack, MessageType::Put, MessageType::Get, MessageType::Reply];
    let (destination, port) = random.pick(endpoints);
    let mut frame = Frame::new(destination, port, random.pick(&TYPES));
    // A priority, and no VLAN.
    frame.vlan = random.once_in(3).then(|| (random.below(16) as u16) << 12);
    let key = &mut frame.header.key;
    let has_portal = matches!(key.message_type, MessageType::Put | MessageType::Get);
    key.portal = if has_portal { random.below(PORTALS) as u8 } else { 0 };
    key.key = random.bits();
    key.message_id = random.bits();
    key.initiator_hash = random.bits() as u32;
    if matches!(key.message_type, MessageType::Put | MessageType::Reply) && !random.once_in(4) {
        frame.payload_bytes = match random.once_in(large_once_in) {
            true => 4_000 + random.below(56_000),
            false => 1 + random.below(300),
        };
        if random.once_in(2) {
            frame.header.fragment_offset = 1 + random.below(500_000) as u32;
        }
        let end = frame.header.fragment_offset + frame.payload_bytes as u32;
        frame.header.total_length = end + random.pick(&[0, 1, 4096]);
        let whole = frame.header.fragment_offset == 0 && frame.header.total_length == end;
        if frame.header.key.message_type == MessageType::Put && whole && random.once_in(2) {
            frame.header.short = Some(ShortPut { hdr_data: random.bits(), offset: random.bits() as u32 });
        }
    }
    if random.once_in(8) {
        frame.padding_bytes = random.below(40);
    }
    frame
}

/// Fills `bytes` with a frame of any kind: valid, valid and then damaged, or noise.
pub fn any(random: &mut Random, endpoints: &[(IpAddr, u16)], bytes: &mut Vec<u8>) {
    if random.once_in(20) {
        noise(random, bytes);
        return;
    }
    let mut frame = valid(random, endpoints, 300);
    match random.below(20) {
        0 => frame.mac[random.below(6)] ^= 1 << random.below(8),
        1 => frame.vlan = Some(1 + random.below(0xFFFF) as u16),
        _ => {}
    }
    frame.write(bytes);
    match random.below(10) {
        0 => flip_bits(random, bytes),
        1 => overwrite(random, bytes),
        2 => cut(random, bytes),
        3 => change_length(random, &frame, bytes),
        4 => change_meaning(random, &frame, bytes),
        _ => {}
    }
}

fn flip_bits(random: &mut Random, bytes: &mut [u8]) {
    for _ in 0..=random.below(4) {
        let index = random.below(bytes.len().min(FIRST_HEADERS_BYTES));
        bytes[index] ^= 1 << random.below(8);
    }
}

fn overwrite(random: &mut Random, bytes: &mut [u8]) {
    for _ in 0..=random.below(4) {
        let index = random.below(bytes.len().min(FIRST_HEADERS_BYTES));
        let noise = random.bits() as u8;
        bytes[index] = random.pick(&[0, 1, 0x7F, 0x80, 0xFF, noise]);
    }
}

fn cut(random: &mut Random, bytes: &mut Vec<u8>) {
    let end = FRAME_BYTES_MIN + random.below(bytes.len() - FRAME_BYTES_MIN);
    bytes.truncate(end);
    if random.once_in(4) {
        bytes.resize(end + random.below(200), 0);
    }
}

/// Lengths of the IP and UDP headers that are off by a little, or by much.
fn change_length(random: &mut Random, frame: &Frame, bytes: &mut [u8]) {
    let udp = frame.payload_offset() - UDP_BYTES;
    let ip_length = udp - if frame.destination.is_ipv4() { IPV4_BYTES - 2 } else { IPV6_BYTES - 4 };
    let offset = random.pick(&[udp + 4, ip_length]);
    let now = u16::from_be_bytes([bytes[offset], bytes[offset + 1]]);
    let changed = match random.below(4) {
        0 => random.bits() as u16,
        1 => random.below(180) as u16,
        2 => now.wrapping_add(1 + random.below(8) as u16),
        _ => now.wrapping_sub(1 + random.below(8) as u16),
    };
    bytes[offset..offset + 2].copy_from_slice(&changed.to_be_bytes());
}

/// One field of the headers set to a value that decides something.
fn change_meaning(random: &mut Random, frame: &Frame, bytes: &mut [u8]) {
    let ours = frame.payload_offset();
    let ip = ours - UDP_BYTES - if frame.destination.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
    let (offset, value) = match random.below(12) {
        // EtherType, outer and inner: ARP, a second VLAN tag, the other family.
        0 => (ip - 1, random.pick(&[0x06, 0x00, 0xDD])),
        1 => (ip - 2, random.pick(&[0x08, 0x81, 0x86])),
        // Version and header length; fragment flags; protocol.
        2 => (ip, random.pick(&[0x46, 0x4F, 0x44, 0x65, 0x60, 0x05])),
        3 => (ip + 6, random.pick(&[0x20, 0x3F, 0x80, 0x11, 0x00, 0x2C])),
        4 => (ip + 9, random.pick(&[6, 1, 17])),
        // Destination and port.
        5 => (ours - UDP_BYTES - 1, random.bits() as u8),
        6 => (ours - UDP_BYTES + 3, random.bits() as u8),
        // Version, kind, type, portal.
        7 => (ours + 4, random.pick(&[0, 1, 2, 0xFF])),
        8 => (ours + 5, random.pick(&[0, 1, 2, 0xFF])),
        9 => (ours + 6, random.pick(&[0, 1, 2, 3, 4, 5, 0xFF])),
        10 => (ours + 7, random.pick(&[0, 1, 63, 64, 0xFF])),
        // Fragment offset and total length.
        _ => (ours + 28 + random.below(8), random.bits() as u8),
    };
    bytes[offset] = value;
}

fn noise(random: &mut Random, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.resize(FRAME_BYTES_MIN + random.below(240), 0);
    random.fill(bytes);
    let start: &[u8] = match random.below(4) {
        0 => &[0x08, 0x00, 0x45],
        1 => &[0x86, 0xDD, 0x60],
        2 => &[0x81, 0x00],
        _ => &[],
    };
    for (place, byte) in bytes[12..].iter_mut().zip(start) {
        *place = *byte;
    }
}
