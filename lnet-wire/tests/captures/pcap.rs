//! Captured TCP connections: a reader for pcap files, and reassembly.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// One TCP connection of a capture.
pub(crate) struct Connection {
    pub(crate) dialler: SocketAddrV4,
    pub(crate) listener: SocketAddrV4,
    /// The number of the packet that dialled it.
    pub(crate) packet: usize,
    /// The bytes that the dialler sent, and those of the listener.
    pub(crate) streams: [Vec<u8>; 2],
    /// How far each stream had come with which packet.
    pub(crate) reached: [Vec<(usize, usize)>; 2],
    /// Bytes of both that the capture does not have, and that are zeros here.
    pub(crate) lacking_bytes: usize,
}

/// Segments by sequence number, each with the number of its packet.
type Segments = BTreeMap<u32, (usize, Vec<u8>)>;

struct Segment<'a> {
    source: SocketAddrV4,
    destination: SocketAddrV4,
    sequence: u32,
    flags: u8,
    payload: &'a [u8],
}

/// The connections of a little-endian Ethernet capture, in the order in which they were dialled.
pub(crate) fn connections(path: &Path) -> Vec<Connection> {
    let file = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut connections: Vec<Connection> = Vec::new();
    let mut segments: Vec<[Segments; 2]> = Vec::new();
    let numbered = packets(&file).enumerate();
    for (packet, segment) in numbered.filter_map(|(packet, bytes)| Some((packet, segment(bytes)?))) {
        if segment.flags & (SYN | ACK) == SYN {
            connections.push(Connection {
                dialler: segment.source,
                listener: segment.destination,
                packet,
                streams: Default::default(),
                reached: Default::default(),
                lacking_bytes: 0,
            });
            segments.push(Default::default());
        }
        let ends = (segment.source, segment.destination);
        let forth = |connection: &Connection| ends == (connection.dialler, connection.listener);
        let back = |connection: &Connection| ends == (connection.listener, connection.dialler);
        // The latest one, should a pair of ports have been used twice.
        let index = connections.iter().rposition(|connection| forth(connection) || back(connection));
        let index = index.expect("a segment of a connection whose beginning was captured");
        let direction = usize::from(back(&connections[index]));
        // A SYN takes a sequence number: the first byte of the stream is the one behind it.
        let first = segment.sequence.wrapping_add(u32::from(segment.flags & SYN != 0));
        if segment.flags & SYN != 0 || !segment.payload.is_empty() {
            let known = segments[index][direction].entry(first).or_default();
            if known.1.len() < segment.payload.len() {
                *known = (packet, segment.payload.to_vec());
            }
        }
        assert!(segment.flags & FIN == 0 || segment.payload.is_empty());
    }
    for (connection, segments) in connections.iter_mut().zip(&segments) {
        for direction in [0, 1] {
            connection.reassemble(direction, &segments[direction]);
        }
    }
    connections
}

impl Connection {
    /// Joins segments, which may repeat each other.
    fn reassemble(&mut self, direction: usize, segments: &Segments) {
        let stream = &mut self.streams[direction];
        let Some(first) = segments.keys().next() else { return };
        let mut last_packet = 0;
        for (sequence, (packet, payload)) in segments {
            let offset = (sequence - first) as usize;
            self.lacking_bytes += offset.saturating_sub(stream.len());
            stream.resize(stream.len().max(offset), 0);
            stream.extend(payload.iter().skip(stream.len() - offset));
            last_packet = last_packet.max(*packet);
            self.reached[direction].push((stream.len(), last_packet));
        }
    }
}

fn packets(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (header, mut rest) = file.split_first_chunk::<24>().expect("a pcap header");
    assert_eq!(header[..4], [0xD4, 0xC3, 0xB2, 0xA1], "microseconds, little endian");
    assert_eq!(header[20..], [1, 0, 0, 0], "ethernet");
    std::iter::from_fn(move || {
        let (record, behind) = rest.split_first_chunk::<16>()?;
        let length = |offset| u32::from_le_bytes(*record[offset..].first_chunk().unwrap()) as usize;
        assert_eq!(length(8), length(12), "a packet that the capture cut");
        let (packet, behind) = behind.split_at(length(8));
        rest = behind;
        Some(packet)
    })
}

/// The TCP segment of a packet; `None` for one that holds no TCP over IPv4.
fn segment(packet: &[u8]) -> Option<Segment<'_>> {
    let be16 = |bytes: &[u8], offset| u16::from_be_bytes([bytes[offset], bytes[offset + 1]]);
    let be32 = |bytes: &[u8], offset: usize| u32::from_be_bytes(*bytes[offset..].first_chunk().unwrap());
    if be16(packet, 12) != 0x0800 || packet[23] != 6 {
        return None;
    }
    let ip = &packet[14..14 + usize::from(be16(packet, 16))];
    let tcp = &ip[usize::from(ip[0] & 0xF) * 4..];
    let end = |address_offset, port_offset| {
        SocketAddrV4::new(Ipv4Addr::from(be32(ip, address_offset)), be16(tcp, port_offset))
    };
    Some(Segment {
        source: end(12, 0),
        destination: end(16, 2),
        sequence: be32(tcp, 4),
        flags: tcp[13],
        payload: &tcp[usize::from(tcp[12] >> 4) * 4..],
    })
}
