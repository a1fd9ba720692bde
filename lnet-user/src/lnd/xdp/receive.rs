//! The receiving half of the `xdp` LND.

use std::net::IpAddr;

use lnet_core::lnd::{Span, Uplink};
use lnet_core::time::Instant;
use lnet_core::xfer::{Action, Arrived, BUNDLE_MAX, HoldId, Replay};
use lnet_wire::Nid;
use lnet_wire::frame::{
    CRC_OFFSET, FRAME_HEADER_BYTES, FrameHeader, HANDSHAKE_BYTES, Handshake, Kind, RECORD_BYTES,
    RECORD_CRC_OFFSET, Record, Transfer,
};
use lnet_wire::header::{Header, LARGE_HEADER_BYTES};
use lnet_wire::packet::{self, IPV4_BYTES, IPV6_BYTES, Packet, UDP_BYTES};
use lnet_wire::steer::{self, SteerKey};

use super::{Port, XdpDrop, XdpLnd};
use crate::memory::Memory;
use crate::xsk::{RxDescriptor, Umem};

const IPV4_SOURCE_OFFSET: usize = 12;
const IPV6_SOURCE_OFFSET: usize = 8;
const RECORD_HEAD_BYTES: usize = RECORD_BYTES + LARGE_HEADER_BYTES;

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

    fn length(&self) -> usize {
        self.length
    }
}

/// Where a packet came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// A ring of this shard's.
    Ring { lane_index: usize },
    /// A sibling shard received it on this lane.
    Sibling { lane_index: usize },
    /// It was kept.
    Held,
}

/// What is to become of a packet that is not for the transfer protocol.
enum Aside {
    /// It belongs to another shard.
    Misdirected(usize),
    /// It is dropped and counted.
    Dropped(XdpDrop),
}

/// A frame for the transfer protocol of this shard.
struct Parsed {
    port_index: usize,
    from: Nid,
    header: FrameHeader,
    transfer: Transfer,
    lnet: Option<Header>,
    /// The payload of the message that the header describes: where in the packet, and how long.
    payload_offset: usize,
    payload_bytes: u32,
}

/// A further message of a packet.
pub(super) struct Further {
    id_delta: u16,
    lnet: Header,
    payload_offset: usize,
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
        let count = self.lanes[lane_index].receive(budget);
        if count == 0 {
            return 0;
        }
        while let Some(descriptor) = self.lanes[lane_index].arrived.pop_front() {
            let more = descriptor.more;
            self.packet.push(descriptor);
            if !more {
                self.receive_packet(now, Origin::Ring { lane_index }, up, memory);
                // What was kept may be what comes next.
                if !self.held.is_empty() {
                    self.replay(now, up, memory);
                }
            }
        }
        // A packet whose last descriptor is still to come waits in its lane.
        for descriptor in self.packet.drain(..).rev() {
            self.lanes[lane_index].arrived.push_front(descriptor);
        }
        count
    }

    /// Handles the packet in `self.packet` and empties it.
    pub(super) fn receive_packet(
        &mut self,
        now: Instant,
        origin: Origin,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) {
        let mut packet = std::mem::take(&mut self.packet);
        self.counters.frames_received += u64::from(matches!(origin, Origin::Ring { .. }));
        match self.examine(&mut packet) {
            Ok(parsed) => self.take_frame(now, &parsed, &mut packet, up, memory),
            Err(Aside::Dropped(reason)) => self.counters.count_drop(reason),
            Err(Aside::Misdirected(shard)) => {
                let (Origin::Ring { lane_index } | Origin::Sibling { lane_index }) = origin else {
                    unreachable!("a packet that was kept is this shard's")
                };
                self.counters.frames_misdirected += 1;
                if !self.exchange.hand_over(shard, lane_index, &mut packet) {
                    self.counters.count_drop(XdpDrop::SiblingBusy);
                }
            }
        }
        for descriptor in packet.drain(..) {
            self.settle(descriptor.frame);
        }
        self.packet = packet;
    }

    /// Handles packets that were kept, as the transfer protocol says; how many.
    pub(super) fn replay(&mut self, now: Instant, up: &mut impl Uplink, memory: &mut Memory) -> u32 {
        self.replay_due = false;
        let mut count = 0;
        while let Some(replay) = self.xfer.poll_replay() {
            count += 1;
            let (Replay::Again(hold) | Replay::Forget(hold)) = replay;
            self.held.take(hold, &mut self.packet);
            if self.packet.is_empty() {
                continue;
            }
            if matches!(replay, Replay::Again(_)) {
                self.receive_packet(now, Origin::Held, up, memory);
            } else {
                self.counters.frames_forgotten += 1;
                let mut packet = std::mem::take(&mut self.packet);
                for descriptor in packet.drain(..) {
                    self.settle(descriptor.frame);
                }
                self.packet = packet;
            }
        }
        count
    }

    #[inline]
    fn take_frame(
        &mut self,
        now: Instant,
        parsed: &Parsed,
        packet: &mut Vec<RxDescriptor>,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) {
        let handshake =
            if parsed.header.kind == Kind::Welcome { self.handshake(parsed, packet) } else { None };
        let arrived = Arrived {
            ni: self.common.ports[parsed.port_index].ni,
            from: parsed.from,
            header: parsed.header,
            transfer: parsed.transfer,
            lnet: parsed.lnet.as_ref(),
            payload_bytes: parsed.payload_bytes,
            handshake: handshake.as_ref(),
        };
        match self.xfer.receive(now, &arrived, up) {
            Action::Write(span) => {
                copy_payload(&self.common.umem, packet, parsed.payload_offset, &span, memory);
                self.xfer.written(now, up);
            }
            Action::Done => {}
            Action::Hold(hold) => return self.hold(hold, packet),
            Action::Drop(_) => {
                self.counters.frames_refused += 1;
                return;
            }
        }
        self.counters.frames_taken += 1;
        if parsed.header.bundled {
            self.take_further(now, &arrived, packet, up, memory);
        }
    }

    /// Takes the further messages of a packet, all of which were looked at.
    fn take_further(
        &mut self,
        now: Instant,
        arrived: &Arrived<'_>,
        packet: &[RxDescriptor],
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) {
        for Further { id_delta, lnet, payload_offset } in self.further.drain(..) {
            match self.xfer.receive_record(now, arrived, id_delta, &lnet, up) {
                Action::Write(span) => {
                    copy_payload(&self.common.umem, packet, payload_offset, &span, memory);
                    self.xfer.written(now, up);
                }
                Action::Done | Action::Drop(_) => {}
                Action::Hold(hold) => unreachable!("a message of several in a frame is kept as {hold:?}"),
            }
        }
        self.xfer.end_bundle(now, arrived);
    }

    fn hold(&mut self, hold: HoldId, packet: &mut Vec<RxDescriptor>) {
        if !self.held.keep(hold, packet) {
            self.counters.frames_forgotten += 1;
        }
    }

    fn handshake(&self, parsed: &Parsed, packet: &[RxDescriptor]) -> Option<Handshake> {
        // Covered by the checksum, so it lies in the first descriptor.
        let head = bytes_of(&self.common.umem, &packet[0]);
        let body = head.get(parsed.payload_offset - HANDSHAKE_BYTES..)?.first_chunk()?;
        Handshake::decode(body)
    }

    #[inline]
    fn examine(&mut self, packet: &mut [RxDescriptor]) -> Result<Parsed, Aside> {
        let not_ours = Aside::Dropped(XdpDrop::NotOurs);
        let length = packet.iter().map(|descriptor| descriptor.length as usize).sum();
        let RxDescriptor { frame, offset, length: first, .. } = &mut packet[0];
        let chunk = self.common.umem.bytes_mut(frame);
        let head = &mut chunk[*offset as usize..*offset as usize + *first as usize];
        let received = Received { head, length };
        let Ok(located) = packet::locate(&received) else { return Err(not_ours) };
        let ours = |port: &Port| port.endpoint == located.destination;
        let Some(port_index) = self.common.ports.iter().position(ours) else { return Err(not_ours) };
        let port = &self.common.ports[port_index];
        // An interface in promiscuous mode, or a flooding switch, brings what is meant for others.
        if received.head[..port.mac.len()] != port.mac {
            return Err(not_ours);
        }
        let Ok(header) = packet::frame_header(&received, &located) else { return Err(not_ours) };
        let start = located.payload_offset;
        let covered_bytes = header.covered_bytes();
        let Some(covered) = head.get_mut(start..start + covered_bytes) else {
            return Err(Aside::Dropped(XdpDrop::BadHeader));
        };
        if !has_right_checksum(covered, CRC_OFFSET) {
            return Err(Aside::Dropped(XdpDrop::BadChecksum));
        }
        let policy = self.common.xfer.policies[usize::from(header.key.portal)];
        let shard = steer::shard_of(&header.key, policy, self.common.shards);
        if shard != u32::from(self.shard.0) {
            return Err(Aside::Misdirected(shard as usize));
        }
        let bad_header = Aside::Dropped(XdpDrop::BadHeader);
        let (frame_header, rest) =
            covered.split_first_chunk::<FRAME_HEADER_BYTES>().expect("the frame header is covered");
        let Some(transfer) = Transfer::decode(frame_header) else { return Err(bad_header) };
        let lnet = if header.lnet_header_bytes() == 0 {
            None
        } else {
            let bytes = rest.first_chunk::<LARGE_HEADER_BYTES>().expect("the LNet header is covered");
            let Ok(lnet) = Header::decode_large(bytes) else { return Err(bad_header) };
            if !agrees(&lnet, &header.key, header.total_length) {
                return Err(Aside::Dropped(XdpDrop::HeaderMismatch));
            }
            Some(lnet)
        };
        let Some(from) = source_nid(port, head, start) else { return Err(not_ours) };
        let payload_offset = start + covered_bytes;
        let behind = located.payload_length - covered_bytes;
        let payload_bytes = if header.bundled { header.total_length } else { behind as u32 };
        let parsed = Parsed { port_index, from, header, transfer, lnet, payload_offset, payload_bytes };
        self.examine_rest(packet, &parsed, payload_offset + behind)?;
        Ok(parsed)
    }

    /// Looks at what stands behind the headers, up to `end`.
    #[inline]
    fn examine_rest(&mut self, packet: &[RxDescriptor], parsed: &Parsed, end: usize) -> Result<(), Aside> {
        let umem = &self.common.umem;
        let payload_bytes = parsed.payload_bytes as usize;
        if let Some(crc) = parsed.transfer.payload_crc
            && checksum(umem, packet, parsed.payload_offset, payload_bytes) != crc
        {
            return Err(Aside::Dropped(XdpDrop::BadPayload));
        }
        if parsed.header.bundled {
            self.examine_further(packet, parsed, end)?;
        }
        Ok(())
    }

    /// Looks at all further messages of a packet before any of its messages is taken.
    fn examine_further(&mut self, packet: &[RxDescriptor], parsed: &Parsed, end: usize) -> Result<(), Aside> {
        self.further.clear();
        let key = &parsed.header.key;
        let mut at = parsed.payload_offset + parsed.payload_bytes as usize;
        while at < end {
            let bad_header = Aside::Dropped(XdpDrop::BadHeader);
            if self.further.len() == BUNDLE_MAX - 1 || end - at < RECORD_HEAD_BYTES {
                return Err(bad_header);
            }
            let mut head = [0; RECORD_HEAD_BYTES];
            copy_out(&self.common.umem, packet, at, &mut head);
            if !has_right_checksum(&mut head, RECORD_CRC_OFFSET) {
                return Err(Aside::Dropped(XdpDrop::BadChecksum));
            }
            let (record, lnet) = head.split_first_chunk::<RECORD_BYTES>().expect("a record has a head");
            let lnet = lnet.first_chunk::<LARGE_HEADER_BYTES>().expect("a record has an LNet header");
            let Some(Record { id_delta, length, payload_crc }) = Record::decode(record) else {
                return Err(bad_header);
            };
            let Ok(lnet) = Header::decode_large(lnet) else { return Err(bad_header) };
            let payload_offset = at + RECORD_HEAD_BYTES;
            if length as usize > end - payload_offset {
                return Err(bad_header);
            }
            let message_id = key.message_id.wrapping_add(u64::from(id_delta));
            let its_key = SteerKey::of(&lnet, message_id, key.initiator_hash);
            let is_ours = its_key.is_some_and(|key| {
                let policy = self.common.xfer.policies[usize::from(key.portal)];
                steer::shard_of(&key, policy, self.common.shards) == u32::from(self.shard.0)
            });
            let carries = length == 0 || lnet.message_type().carries_payload();
            if lnet.payload_length != length || !is_ours || !carries {
                return Err(Aside::Dropped(XdpDrop::HeaderMismatch));
            }
            if parsed.transfer.payload_crc.is_some()
                && checksum(&self.common.umem, packet, payload_offset, length as usize) != payload_crc
            {
                return Err(Aside::Dropped(XdpDrop::BadPayload));
            }
            self.further.push(Further { id_delta, lnet, payload_offset });
            at = payload_offset + length as usize;
        }
        Ok(())
    }
}

/// The address that a packet came from, as a NID of its port's net. `start` is where the UDP payload begins.
#[inline]
fn source_nid(port: &Port, head: &[u8], start: usize) -> Option<Nid> {
    let address = if port.address.is_ipv4() {
        let source = start.checked_sub(UDP_BYTES + IPV4_BYTES)? + IPV4_SOURCE_OFFSET;
        IpAddr::from(*head.get(source..)?.first_chunk::<4>()?)
    } else {
        let source = start.checked_sub(UDP_BYTES + IPV6_BYTES)? + IPV6_SOURCE_OFFSET;
        IpAddr::from(*head.get(source..)?.first_chunk::<16>()?)
    };
    Nid::new_ip(port.nid.net(), address).ok()
}

/// Whether the CRC32C at an offset is that of the bytes with zero in its place. They are left as they were.
#[inline]
fn has_right_checksum(bytes: &mut [u8], offset: usize) -> bool {
    let field = offset..offset + 4;
    let Some(stored) = bytes.get(field.clone()).and_then(|field| field.first_chunk::<4>().copied()) else {
        return false;
    };
    bytes[field.clone()].fill(0);
    let crc = crc_fast::crc32_iscsi(bytes);
    bytes[field].copy_from_slice(&stored);
    u32::from_le_bytes(stored) == crc
}

/// Whether a frame was steered by what its LNet header says, and is as long as that says.
#[inline]
fn agrees(header: &Header, key: &SteerKey, total_length: u32) -> bool {
    header.payload_length == total_length
        && SteerKey::of(header, key.message_id, key.initiator_hash).is_some_and(|expected| expected == *key)
}

#[inline]
fn bytes_of<'a>(umem: &'a Umem, descriptor: &'a RxDescriptor) -> &'a [u8] {
    let start = descriptor.offset as usize;
    &umem.bytes(&descriptor.frame)[start..start + descriptor.length as usize]
}

/// The bytes from `offset` of a packet on, `length` of them or up to its end, in pieces.
#[inline]
fn pieces<'a>(
    umem: &'a Umem,
    packet: &'a [RxDescriptor],
    offset: usize,
    length: usize,
) -> impl Iterator<Item = &'a [u8]> {
    let (mut skip, mut left) = (offset, length);
    packet.iter().filter_map(move |descriptor| {
        let bytes = bytes_of(umem, descriptor);
        let piece = bytes.get(skip..).unwrap_or(&[]);
        skip = skip.saturating_sub(bytes.len());
        let piece = &piece[..piece.len().min(left)];
        left -= piece.len();
        (!piece.is_empty()).then_some(piece)
    })
}

/// Copies the bytes from `offset` of a packet on until `to` is full; the packet is at least that long, or its
/// headers would have been refused.
#[inline]
fn copy_out(umem: &Umem, packet: &[RxDescriptor], offset: usize, to: &mut [u8]) {
    let mut done = 0;
    for piece in pieces(umem, packet, offset, to.len()) {
        to[done..done + piece.len()].copy_from_slice(piece);
        done += piece.len();
    }
}

#[inline]
fn copy_payload(umem: &Umem, packet: &[RxDescriptor], offset: usize, span: &Span, memory: &mut Memory) {
    copy_out(umem, packet, offset, memory.bytes_mut(span));
}

/// CRC32C of a part of a packet.
fn checksum(umem: &Umem, packet: &[RxDescriptor], offset: usize, length: usize) -> u32 {
    let mut pieces = pieces(umem, packet, offset, length);
    let first = pieces.next().unwrap_or(&[]);
    let Some(second) = pieces.next() else { return crc_fast::crc32_iscsi(first) };
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(first);
    digest.update(second);
    pieces.for_each(|piece| digest.update(piece));
    digest.finalize() as u32
}
