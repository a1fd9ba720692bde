//! The receiving half of the `xdp` LND.

use std::net::IpAddr;

use lnet_core::lnd::Uplink;
use lnet_core::time::Instant;
use lnet_io::capture::{Direction, Link};
use lnet_io::memory::{Memory, checksum};
use lnet_io::xsk::{RingDescriptor, Umem};
use lnet_wire::Nid;
use lnet_wire::packet::{
    self, ETHERNET_BYTES, ETHERTYPE_IPV4, ETHERTYPE_VLAN, IPV4_BYTES, IPV6_BYTES, Located, Packet, UDP_BYTES,
    VLAN_BYTES, ethernet_address,
};
use lnet_xdp_proto::{Replay, XferDrop};

use super::announce::{Batch, FRAMES_MAX};
use super::exchange::Packet as Parts;
use super::frames::{self, Aside, Bytes, Datagram, Ingress, Taken, ends_crc};
use super::ports::RingPort;
use super::traffic::Tuples;
use super::{Port, XdpDrop, XdpLnd};

const IPV4_SOURCE_OFFSET: usize = 12;
const IPV6_SOURCE_OFFSET: usize = 8;

/// A packet in one or several descriptors: all our headers lie in the first.
struct Received<'a> {
    head: &'a [u8],
    length: usize,
}

impl Packet for Received<'_> {
    #[inline]
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.head.load(offset)
    }

    fn has(&self, bytes: usize) -> bool {
        bytes <= self.length
    }
}

/// Where a packet came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// A ring or a socket of this shard's.
    Device,
    /// A sibling shard received it.
    Sibling,
    /// The packet was kept.
    Early,
}

/// A packet with what stands around it.
struct Pieces<'a> {
    umem: &'a Umem,
    packet: &'a [RingDescriptor],
}

impl Pieces<'_> {
    /// The bytes from `offset` on, `length` of them or up to the end, in pieces.
    #[inline]
    fn of(&self, offset: usize, length: usize) -> impl Iterator<Item = &[u8]> {
        let (mut skip, mut left) = (offset, length);
        self.packet.iter().filter_map(move |descriptor| {
            let bytes = descriptor.bytes(self.umem);
            let piece = bytes.get(skip..).unwrap_or(&[]);
            skip = skip.saturating_sub(bytes.len());
            let piece = &piece[..piece.len().min(left)];
            left -= piece.len();
            (!piece.is_empty()).then_some(piece)
        })
    }
}

impl Datagram for Pieces<'_> {
    #[inline]
    fn copy_out(&self, offset: usize, to: &mut [u8]) {
        let first = self.packet[0].bytes(self.umem);
        if let Some(bytes) = first.get(offset..offset + to.len()) {
            return to.copy_from_slice(bytes);
        }
        let mut done = 0;
        for piece in self.of(offset, to.len()) {
            to[done..done + piece.len()].copy_from_slice(piece);
            done += piece.len();
        }
    }

    fn checksum(&self, offset: usize, length: usize) -> u32 {
        checksum(self.of(offset, length))
    }
}

impl XdpLnd {
    /// Takes at most `budget` descriptors from a lane and handles the packets that they complete.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        lane_index: usize,
        budget: u32,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) -> u32 {
        let count = self.devices.lanes[lane_index].receive(budget);
        if count == 0 {
            return 0;
        }
        if count > 1 && up.wants_hints() {
            self.announce(lane_index, up, memory);
        }
        self.note_tuple(lane_index);
        let received_before = self.counters.frames_received;
        while let Some(descriptor) = self.devices.lanes[lane_index].arrived.pop_front() {
            let more = descriptor.more;
            self.scratch.packet.parts.push(descriptor);
            if !more {
                if self.tap.is_on() {
                    self.record(lane_index);
                }
                self.receive_packet(now, Origin::Device, up, memory);
                // What was kept may be what comes next.
                if !self.early.is_empty() {
                    self.replay(now, up, memory);
                }
            }
        }
        let lane = &mut self.devices.lanes[lane_index];
        lane.frames_received += self.counters.frames_received - received_before;
        // A packet whose last descriptor is still to come waits in its lane.
        for descriptor in self.scratch.packet.parts.drain(..).rev() {
            lane.arrived.push_front(descriptor);
        }
        count
    }

    /// Notes the flow of one of the packets that have just arrived: a sample shows whether there are several.
    #[inline]
    fn note_tuple(&self, lane_index: usize) {
        let lane = &self.devices.lanes[lane_index];
        if let Some(first) = lane.arrived.front()
            && let Some(tuple) = tuple_of(first.bytes(self.home.umem()))
        {
            lane.tuples.set(lane.tuples.get().and(tuple));
        }
    }

    /// Announces the messages that begin in packets of a lane that have just arrived.
    #[inline(never)]
    fn announce(&self, lane_index: usize, up: &mut impl Uplink, memory: &Memory) {
        let mut batch = Batch::<FRAMES_MAX>::new();
        let umem = self.home.umem();
        let mut begins = true;
        for descriptor in &self.devices.lanes[lane_index].arrived {
            if std::mem::replace(&mut begins, !descriptor.more) {
                let head = descriptor.bytes(umem);
                // How long the packet is does not matter here; its headers are in its first descriptor.
                if let Ok(located) = packet::locate(&Received { head, length: usize::MAX })
                    && let Some(port) =
                        index_of(&self.nis.ports, &located).map(|index| &self.nis.ports[index].port)
                    && let Some(from) = source_nid(port, head, located.payload_offset)
                {
                    batch.add_frame(from, &head[located.payload_offset..], located.payload_length);
                }
            }
        }
        batch.tell(up, memory);
    }

    /// Shows captures the packet in `self.scratch.packet`, which came by a lane.
    fn record(&mut self, lane_index: usize) {
        let interface = (self.devices.lanes[lane_index].interface_index, Link::Ethernet);
        let umem = self.home.umem();
        let pieces = self.scratch.packet.parts.iter().map(|descriptor| descriptor.bytes(umem));
        self.tap.record(interface, Direction::Received, pieces);
    }

    /// Handles the packet in `self.scratch.packet` and empties it.
    pub(super) fn receive_packet(
        &mut self,
        now: Instant,
        origin: Origin,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) {
        let mut packet = std::mem::take(&mut self.scratch.packet);
        let outcome = match &packet.datagram {
            None => self.take_packet(now, &packet, up, memory),
            Some(copy) => self.take_copy(now, copy, up, memory),
        };
        self.conclude(origin, outcome, &mut packet);
        self.scratch.packet = packet;
    }

    /// Counts what has become of a packet, keeps it or hands it over, or lets go of it.
    #[inline(always)]
    pub(super) fn conclude(&mut self, origin: Origin, outcome: Result<Taken, Aside>, packet: &mut Parts) {
        self.counters.frames_received += u64::from(origin == Origin::Device);
        match outcome {
            Ok(Taken::Whole) => self.counters.frames_taken += 1,
            Ok(Taken::Refused(_)) => self.counters.frames_refused += 1,
            Ok(Taken::Buffer(hold)) => {
                if !self.early.keep(hold, packet) {
                    self.counters.frames_forgotten += 1;
                }
            }
            Err(Aside::Dropped(reason)) => self.counters.count_drop(reason),
            Err(Aside::Misdirected(shard)) => {
                self.counters.frames_misdirected += 1;
                if !self.exchange.hand_over(shard, packet) {
                    self.counters.count_drop(XdpDrop::SiblingBusy);
                }
            }
        }
        self.settle_packet(packet);
    }

    /// Handles packets that were kept, as the transfer protocol says; how many.
    pub(super) fn replay(&mut self, now: Instant, up: &mut impl Uplink, memory: &mut Memory) -> u32 {
        self.replay_due = false;
        let mut count = 0;
        while let Some(replay) = self.xfer.poll_replay() {
            count += 1;
            let (Replay::Again(hold) | Replay::Forget(hold)) = replay;
            self.early.take(hold, &mut self.scratch.packet);
            if self.scratch.packet.is_empty() {
                continue;
            }
            if matches!(replay, Replay::Again(_)) {
                self.receive_packet(now, Origin::Early, up, memory);
            } else {
                self.counters.frames_forgotten += 1;
                let mut packet = std::mem::take(&mut self.scratch.packet);
                self.settle_packet(&mut packet);
                self.scratch.packet = packet;
            }
        }
        count
    }

    /// Hands a packet that is a frame for this shard to the transfer protocol.
    // One function with what it calls: what a frame says is read once, and stays where it was written.
    #[inline(always)]
    fn take_packet(
        &mut self,
        now: Instant,
        packet: &Parts,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) -> Result<Taken, Aside> {
        let not_ours = Aside::Dropped(XdpDrop::NotOurs);
        let Some(umem) = &self.home.umem else { return Err(not_ours) };
        let packet = &packet.parts[..];
        let length = packet.iter().map(|descriptor| descriptor.length as usize).sum();
        let head = packet[0].bytes(umem);
        let received = Received { head, length };
        let Ok(located) = packet::locate(&received) else { return Err(not_ours) };
        let Some(index) = index_of(&self.nis.ports, &located) else { return Err(not_ours) };
        let RingPort { port, last_sender, .. } = &mut self.nis.ports[index];
        // An interface in promiscuous mode, or a flooding switch, brings what is meant for others.
        if located.mac != ethernet_address(port.mac) {
            return Err(not_ours);
        }
        let Ok(header) = packet::frame_header(&received, &located) else { return Err(not_ours) };
        let (start, length) = (located.payload_offset, located.payload_length);
        let Some(sender) = last_sender.of(port, head, start) else { return Err(not_ours) };
        let ends_crc = if header.short.is_some() { sender.ends_crc(port) } else { 0 };
        let ingress = Ingress { ni: port.ni, own: &port.nid, from: &sender.nid, ends_crc };
        let owner = self.common.owner(self.shard);
        let bytes = Bytes { header, head, start, length, datagram: &Pieces { umem, packet } };
        let further = &mut self.scratch.further;
        let taken = frames::take((&mut self.xfer, memory, up), now, &ingress, &owner, &bytes, further);
        if matches!(taken, Ok(Taken::Refused(XferDrop::UnknownSession))) {
            self.refused_senders.note(ingress.ni, ingress.from, head);
        }
        taken
    }
}

/// The flow of a packet of ours: the XDP program lets no other through, so that the headers have no options.
/// A tag with VID 0 may come before them.
#[inline]
fn tuple_of(head: &[u8]) -> Option<Tuples> {
    let is_tagged = head.get(12..14)? == ETHERTYPE_VLAN.to_be_bytes();
    let head = head.get(if is_tagged { VLAN_BYTES } else { 0 }..)?;
    let is_ipv4 = head.get(12..14)? == ETHERTYPE_IPV4.to_be_bytes();
    let (source, udp) = if is_ipv4 {
        (ETHERNET_BYTES + IPV4_SOURCE_OFFSET, ETHERNET_BYTES + IPV4_BYTES)
    } else {
        // The last bytes of the address.
        (ETHERNET_BYTES + IPV6_SOURCE_OFFSET + 12, ETHERNET_BYTES + IPV6_BYTES)
    };
    Some(Tuples::of(*head.get(source..)?.first_chunk()?, *head.get(udp..)?.first_chunk()?))
}

/// The index of the port that a packet is for.
#[inline]
fn index_of(ports: &[RingPort], located: &Located) -> Option<usize> {
    ports.iter().position(|open| packet::is_same(&open.port.endpoint, &located.destination))
}

/// The address that a packet came from, as a NID of its port's net. `start` is where the UDP payload begins.
#[inline]
fn source_nid(port: &Port, head: &[u8], start: usize) -> Option<Nid> {
    let address = if port.address.is_ipv4() {
        IpAddr::from(*source_ipv4(head, start)?)
    } else {
        IpAddr::from(*source_ipv6(head, start)?)
    };
    Some(port.nid.with_ip(address))
}

/// The address, in network order, that a packet came from by IPv4.
#[inline]
fn source_ipv4(head: &[u8], start: usize) -> Option<&[u8; 4]> {
    head.get(start.checked_sub(UDP_BYTES + IPV4_BYTES)? + IPV4_SOURCE_OFFSET..)?.first_chunk()
}

#[inline]
fn source_ipv6(head: &[u8], start: usize) -> Option<&[u8; 16]> {
    head.get(start.checked_sub(UDP_BYTES + IPV6_BYTES)? + IPV6_SOURCE_OFFSET..)?.first_chunk()
}

/// Who sent a port's last packet: packets come in runs, and what was put together just now is dear to read.
pub(super) struct Sender {
    nid: Nid,
    /// What the NID and the port's own add to the checksum of a short frame, once one has come.
    ends_crc: Option<u32>,
}

impl Sender {
    pub(super) const UNKNOWN: Self = Self { nid: Nid::ANY, ends_crc: None };

    /// The sender of a packet, who may be this one again; `start` is where its UDP payload begins.
    #[inline]
    fn of(&mut self, port: &Port, head: &[u8], start: usize) -> Option<&mut Self> {
        let is_same = if port.address.is_ipv4() {
            self.nid.is_with_ip(&port.nid, source_ipv4(head, start)?)
        } else {
            self.nid.is_with_ip(&port.nid, source_ipv6(head, start)?)
        };
        if !is_same {
            *self = Self { nid: source_nid(port, head, start)?, ends_crc: None };
        }
        Some(self)
    }

    #[inline]
    fn ends_crc(&mut self, port: &Port) -> u32 {
        *self.ends_crc.get_or_insert_with(|| ends_crc(&port.nid, &self.nid))
    }
}

#[cfg(test)]
mod tests {
    use lnet_core::lnd::NiId;
    use lnet_wire::nid::Net;
    use lnet_wire::packet::endpoint;

    use super::*;

    fn port(address: &str) -> Port {
        let address: IpAddr = address.parse().unwrap();
        Port {
            ni: NiId(0),
            nid: Nid::new_ip(Net::XDP, address).unwrap(),
            address,
            udp_port: 988,
            endpoint: endpoint(address, 988),
            interface_index: 1,
            mac: [2; 6],
            mtu_bytes: 1500,
            checksum: true,
        }
    }

    /// The sender of a packet to a port, of which only the source address matters.
    fn sender(last: &mut Sender, port: &Port, source: &str) -> (Nid, u32) {
        let mut head = [0; 100];
        let (offset, start) = if port.address.is_ipv4() {
            (IPV4_SOURCE_OFFSET, ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES)
        } else {
            (IPV6_SOURCE_OFFSET, ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES)
        };
        let octets = match source.parse().unwrap() {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        head[ETHERNET_BYTES + offset..][..octets.len()].copy_from_slice(&octets);
        let found = last.of(port, &head, start).unwrap();
        (found.nid, found.ends_crc(port))
    }

    #[test]
    fn the_last_sender_is_not_taken_for_another() {
        for (address, sources) in [
            ("10.0.0.1", ["10.0.0.2", "10.0.0.2", "10.0.0.3", "10.0.0.2"]),
            ("fd00::1", ["fd00::2", "fd00::2", "fd00::3", "fd00::2"]),
        ] {
            let (port, mut last) = (port(address), Sender::UNKNOWN);
            for source in sources {
                let nid = Nid::new_ip(Net::XDP, source.parse().unwrap()).unwrap();
                assert_eq!(sender(&mut last, &port, source), (nid, ends_crc(&port.nid, &nid)), "{source}");
            }
        }
    }

    #[test]
    fn flows_go_by_the_address_and_the_ports_of_a_packet() {
        let packet = |ethertype: u16, source: usize, host: u8, udp: usize, port: u16| {
            let mut head = [0; 100];
            head[12..14].copy_from_slice(&ethertype.to_be_bytes());
            head[source] = host;
            head[udp..udp + 2].copy_from_slice(&port.to_be_bytes());
            tuple_of(&head)
        };
        for (ethertype, source, udp) in [(0x0800, 14 + 15, 34), (0x86DD, 14 + 23, 54)] {
            let tuple = |host, port| packet(ethertype, source, host, udp, port).unwrap();
            assert_eq!(tuple(2, 49152), tuple(2, 49152));
            assert_ne!(tuple(2, 49152), tuple(2, 49153));
            assert_ne!(tuple(2, 49152), tuple(3, 49152));
        }
        assert_eq!((tuple_of(&[0; 13]), tuple_of(&[0; 57])), (None, None));
        assert_eq!(tuple_of(&[&[0; 12][..], &[0x81, 0]].concat()), None);
    }

    /// Such tags have a priority alone: VID 0.
    #[test]
    fn the_tuple_of_a_packet_with_a_tag_is_that_of_one_without() {
        for (ethertype, source, udp) in [(0x0800_u16, 14 + 15, 34), (0x86DD, 14 + 23, 54)] {
            for (host, port) in [(2, 49152_u16), (3, 49152), (2, 49153)] {
                let mut head = vec![0; 100];
                head[12..14].copy_from_slice(&ethertype.to_be_bytes());
                head[source] = host;
                head[udp..udp + 2].copy_from_slice(&port.to_be_bytes());
                let tuple = tuple_of(&head);
                head.splice(12..12, [0x81, 0, 0xE0, 0]);
                assert_eq!(tuple_of(&head), tuple);
            }
        }
    }

    #[test]
    fn a_packet_without_an_address_has_no_sender() {
        let mut last = Sender::UNKNOWN;
        assert!(last.of(&port("10.0.0.1"), &[0; 20], 42).is_none());
        assert!(last.of(&port("10.0.0.1"), &[0; 20], 4).is_none());
        assert!(last.of(&port("fd00::1"), &[0; 30], 62).is_none());
    }
}
