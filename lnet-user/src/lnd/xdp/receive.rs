//! The receiving half of the `xdp` LND.

use lnet_core::lnd::{Cause, NiId, RxId, Status, Uplink, Verdict};
use lnet_core::time::Instant;
use lnet_wire::frame::{CRC_OFFSET, FRAME_HEADER_BYTES, Kind};
use lnet_wire::header::{Header, LARGE_HEADER_BYTES};
use lnet_wire::packet::{self, Packet};
use lnet_wire::steer::{self, SteerKey};

use super::{OVERHEAD_BYTES, XdpDrop, XdpLnd};
use crate::memory::Memory;
use crate::xsk::{RxDescriptor, Umem};

/// A message of one frame ends in the call that it began in: there is only ever one under way.
const RX: RxId = RxId(0);

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

/// What is to become of a packet.
enum Outcome {
    /// Its payload, `length_bytes` long at `offset_bytes` of the packet, belongs to this message.
    Message { ni: NiId, header: Header, offset_bytes: usize },
    /// It belongs to another shard.
    Misdirected(usize),
    /// It is dropped and counted.
    Dropped(XdpDrop),
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
                self.receive_packet(now, lane_index, false, up, memory);
            }
        }
        // A packet whose last descriptor is still to come waits in its lane.
        for descriptor in self.packet.drain(..).rev() {
            self.lanes[lane_index].arrived.push_front(descriptor);
        }
        count
    }

    /// Handles the packet in `self.packet` and empties it. `handed_over`: a sibling shard received it.
    pub(super) fn receive_packet(
        &mut self,
        now: Instant,
        lane_index: usize,
        handed_over: bool,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) {
        let mut packet = std::mem::take(&mut self.packet);
        self.counters.frames_received += u64::from(!handed_over);
        match self.examine(&packet) {
            Outcome::Message { ni, header, offset_bytes } => {
                match up.header(now, ni, RX, &header) {
                    Verdict::Deliver(span) => {
                        let to = memory.bytes_mut(&span);
                        copy_payload(&self.common.umem, &packet, offset_bytes, to);
                        up.received(now, RX, Status::Ok);
                    }
                    // No place to keep it.
                    Verdict::Delay => up.received(now, RX, Status::Unknown(Cause::Cancelled)),
                    Verdict::Drop => {}
                }
            }
            Outcome::Misdirected(shard) => {
                self.counters.frames_misdirected += 1;
                if !self.exchange.hand_over(shard, lane_index, &mut packet) {
                    self.counters.drops[XdpDrop::SiblingBusy as usize] += 1;
                }
            }
            Outcome::Dropped(reason) => self.counters.drops[reason as usize] += 1,
        }
        for descriptor in packet.drain(..) {
            self.settle(now, descriptor.frame, up);
        }
        self.packet = packet;
    }

    fn examine(&self, descriptors: &[RxDescriptor]) -> Outcome {
        let head = bytes_of(&self.common.umem, &descriptors[0]);
        let length = descriptors.iter().map(|descriptor| descriptor.length as usize).sum();
        let received = Received { head, length };
        let Ok(located) = packet::locate(&received) else { return Outcome::Dropped(XdpDrop::NotOurs) };
        let Some(port) = self.common.ports.iter().find(|port| port.endpoint == located.destination) else {
            return Outcome::Dropped(XdpDrop::NotOurs);
        };
        // An interface in promiscuous mode, or a flooding switch, brings what is meant for others.
        if head[..port.mac.len()] != port.mac {
            return Outcome::Dropped(XdpDrop::NotOurs);
        }
        let Ok(frame) = packet::frame_header(&received, &located) else {
            return Outcome::Dropped(XdpDrop::NotOurs);
        };
        if frame.fragment_offset != 0 || frame.bundled || frame.kind != Kind::Data {
            return Outcome::Dropped(XdpDrop::Fragment);
        }
        let Some(covered) = received.load::<OVERHEAD_BYTES>(located.payload_offset) else {
            return Outcome::Dropped(XdpDrop::BadHeader);
        };
        let Some(lnet_header) = checked_header(covered) else {
            return Outcome::Dropped(XdpDrop::BadChecksum);
        };
        let shard = steer::shard_of(
            &frame.key,
            self.common.policies[usize::from(frame.key.portal)],
            self.common.shards,
        );
        if shard != u32::from(self.shard.0) {
            return Outcome::Misdirected(shard as usize);
        }
        if located.payload_length != OVERHEAD_BYTES + frame.total_length as usize {
            return Outcome::Dropped(XdpDrop::Fragment);
        }
        let Ok(header) = Header::decode_large(&lnet_header) else {
            return Outcome::Dropped(XdpDrop::BadHeader);
        };
        if !agrees(&header, &frame.key, frame.total_length) {
            return Outcome::Dropped(XdpDrop::HeaderMismatch);
        }
        Outcome::Message { ni: port.ni, header, offset_bytes: located.payload_offset + OVERHEAD_BYTES }
    }
}

/// The LNet header, if the checksum covers both headers as they are.
#[inline]
fn checked_header(mut covered: [u8; OVERHEAD_BYTES]) -> Option<[u8; LARGE_HEADER_BYTES]> {
    let field = covered.get_mut(CRC_OFFSET..FRAME_HEADER_BYTES)?;
    let crc = u32::from_le_bytes(field.try_into().ok()?);
    field.fill(0);
    (crc_fast::crc32_iscsi(&covered) == crc).then_some(())?;
    covered.last_chunk().copied()
}

/// Whether a frame was steered by what its LNet header says, and is as long as that says.
fn agrees(header: &Header, key: &SteerKey, total_length: u32) -> bool {
    header.payload_length == total_length
        && SteerKey::of(header, key.message_id, key.initiator_hash).is_some_and(|expected| expected == *key)
}

fn bytes_of<'a>(umem: &'a Umem, descriptor: &'a RxDescriptor) -> &'a [u8] {
    let start = descriptor.offset as usize;
    &umem.bytes(&descriptor.frame)[start..start + descriptor.length as usize]
}

/// Copies the bytes from `offset_bytes` of the packet on until `to` is full; the packet is at least that
/// long, or the frame header would have been refused.
fn copy_payload(umem: &Umem, descriptors: &[RxDescriptor], offset_bytes: usize, to: &mut [u8]) {
    let mut skip = offset_bytes;
    let mut done = 0;
    for descriptor in descriptors {
        let bytes = bytes_of(umem, descriptor);
        let part = bytes.get(skip..).unwrap_or(&[]);
        skip = skip.saturating_sub(bytes.len());
        let count = part.len().min(to.len() - done);
        to[done..done + count].copy_from_slice(&part[..count]);
        done += count;
    }
}
