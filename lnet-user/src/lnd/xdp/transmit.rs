//! The sending half of the `xdp` LND.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lnet_core::lnd::{Cause, Full, Status, Transmit, Uplink};
use lnet_core::time::Instant;
use lnet_wire::frame::{CRC_OFFSET, FRAME_HEADER_BYTES, FrameHeader};
use lnet_wire::header::{Body, Header, LARGE_HEADER_BYTES};
use lnet_wire::packet::ETHERNET_BYTES;
use lnet_wire::steer::SteerKey;

use super::lane::Followed;
use super::path::{End, LANE_PORT_BASE, Path};
use super::paths::PathId;
use super::{InFlight, OVERHEAD_BYTES, XdpLnd};
use crate::memory::Memory;
use crate::netlink::Resolution;
use crate::xsk::{CHUNK_BYTES, TxDescriptor};

/// How long a message waits for its next hop to be found: three probes of the kernel, one second apart.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(3500);
/// How long a question waits that found no room.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

/// Where a message's next hop stands.
enum Hop {
    /// Frames take this path of `paths`.
    Known(PathId),
    Unknown,
    Unreachable,
}

impl XdpLnd {
    #[inline]
    pub(super) fn transmit(
        &mut self,
        now: Instant,
        transmit: Transmit,
        memory: &Memory,
    ) -> Result<(), Full<Transmit>> {
        match self.find_path(now, &transmit) {
            Hop::Known(path) if self.send(&transmit, path, memory) => Ok(()),
            Hop::Known(_) => Err(Full(transmit)),
            Hop::Unknown
                if !is_response(&transmit) || self.parked_responses < self.common.parked_responses_max =>
            {
                self.park(now + RESOLVE_TIMEOUT, transmit);
                Ok(())
            }
            Hop::Unknown | Hop::Unreachable => {
                self.refuse(&transmit, Cause::Unreachable);
                Ok(())
            }
        }
    }

    fn park(&mut self, deadline: Instant, transmit: Transmit) {
        self.parked_responses += u32::from(is_response(&transmit));
        self.parked.push_back((deadline, transmit));
    }

    fn unpark(&mut self) -> Option<(Instant, Transmit)> {
        let (deadline, transmit) = self.parked.pop_front()?;
        self.parked_responses -= u32::from(is_response(&transmit));
        Some((deadline, transmit))
    }

    fn refuse(&mut self, transmit: &Transmit, cause: Cause) {
        self.counters.messages_refused += 1;
        self.ended.push_back((transmit.tx, Status::NeverSent(cause)));
    }

    /// Tries again what was waiting for a next hop when one has changed; ends what waited too long. Called
    /// once a turn.
    pub(super) fn follow_neighbours(&mut self, now: Instant, memory: &Memory) {
        self.refresh_paths();
        if self.ask_again_at.is_some_and(|at| at <= now) {
            self.ask_again_at = None;
            self.retry_parked = true;
        }
        if std::mem::take(&mut self.retry_parked) | std::mem::take(&mut self.parked_full) {
            for _ in 0..self.parked.len() {
                let Some((deadline, transmit)) = self.unpark() else { break };
                match self.find_path(now, &transmit) {
                    Hop::Known(path) => {
                        if !self.send(&transmit, path, memory) {
                            self.park(deadline, transmit);
                            self.parked_full = true;
                        }
                    }
                    Hop::Unknown => self.park(deadline, transmit),
                    Hop::Unreachable => self.refuse(&transmit, Cause::Unreachable),
                }
            }
        }
        while self.parked.front().is_some_and(|(deadline, _)| *deadline <= now) {
            if let Some((_, transmit)) = self.unpark() {
                self.refuse(&transmit, Cause::Unreachable);
            }
        }
    }

    /// Forgets all paths when a next hop has changed; what is parked is tried again then.
    #[inline]
    fn refresh_paths(&mut self) {
        let generation = self.common.neighbours.generation();
        if generation != self.paths_generation {
            self.paths_generation = generation;
            self.paths.clear();
            self.retry_parked = true;
        }
    }

    /// The way to the message's destination, if its next hop is known.
    #[inline]
    fn find_path(&mut self, now: Instant, transmit: &Transmit) -> Hop {
        self.refresh_paths();
        let key = (transmit.ni, transmit.header.destination.nid);
        self.paths.find(&key).map_or_else(|| self.make_path(now, transmit), Hop::Known)
    }

    fn make_path(&mut self, now: Instant, transmit: &Transmit) -> Hop {
        let nid = transmit.header.destination.nid;
        let port = &self.common.ports[usize::from(transmit.ni.0)];
        let Some(address) = nid.ip() else { return Hop::Unreachable };
        let mac = match self.common.neighbours.lookup(port.interface_index, address) {
            Resolution::Mac(mac) => mac,
            // Ask again all the same: the way may be back by the next message.
            Resolution::Unreachable(_) => {
                self.common.neighbours.request(port.interface_index, address);
                return Hop::Unreachable;
            }
            Resolution::Unknown => {
                if !self.common.neighbours.request(port.interface_index, address) {
                    self.ask_again_at = Some(now + ASK_INTERVAL);
                }
                return Hop::Unknown;
            }
        };
        let lane = &self.lanes[self.transmit_lanes[usize::from(transmit.ni.0)]];
        let local = End { mac: port.mac, address: port.address, port: LANE_PORT_BASE + lane.queue as u16 };
        let Some(path) = Path::new(&local, &End { mac, address, port: port.udp_port }) else {
            return Hop::Unreachable;
        };
        Hop::Known(self.paths.insert((transmit.ni, nid), path))
    }

    /// Writes the message's frame and pushes it on its lane; false if there is no room for it.
    fn send(&mut self, transmit: &Transmit, path: PathId, memory: &Memory) -> bool {
        let ni = usize::from(transmit.ni.0);
        let payload = transmit.payload.as_ref().map_or(&[][..], |span| memory.bytes(span));
        let path = &self.paths[path];
        let headers_bytes = path.length() + OVERHEAD_BYTES;
        let frame_bytes = headers_bytes + payload.len();
        if frame_bytes > self.common.ports[ni].mtu_bytes + ETHERNET_BYTES {
            self.refuse(transmit, Cause::TooLong);
            return true;
        }
        let chunk_bytes = CHUNK_BYTES as usize;
        let chunks = frame_bytes.div_ceil(chunk_bytes);
        let lane_index = self.transmit_lanes[ni];
        let lane = &mut self.lanes[lane_index];
        if lane.is_given_up() {
            self.refuse(transmit, Cause::Device);
            return true;
        }
        if self.stock.len() < chunks || !lane.has_room(chunks) {
            return false;
        }
        let umem = &self.common.umem;
        let message_id = self.next_message_id;
        self.next_message_id += 1;
        let first_payload_bytes = payload.len().min(chunk_bytes - headers_bytes);
        let (first, rest) = payload.split_at(first_payload_bytes);
        let mut frames = std::iter::from_fn(|| self.stock.pop_back());
        let Some(mut head) = frames.next() else { unreachable!("the stock was long enough") };
        let bytes = umem.bytes_mut(&mut head);
        write_headers(bytes, path, &transmit.header, payload.len(), message_id, self.common.initiator_hash);
        bytes[headers_bytes..headers_bytes + first.len()].copy_from_slice(first);
        if path.needs_udp_checksum() {
            let udp_payload = &bytes[path.length()..headers_bytes + first.len()];
            let pieces = std::iter::once(udp_payload).chain(std::iter::once(rest));
            let checksum = path.udp6_checksum(pieces).to_be_bytes();
            bytes[path.length() - 2..path.length()].copy_from_slice(&checksum);
        }
        let mut last = TxDescriptor {
            frame: head,
            offset: 0,
            length: (headers_bytes + first.len()) as u32,
            more: false,
        };
        // In this order: a frame that found no part would be lost.
        for (part, mut frame) in rest.chunks(chunk_bytes).zip(frames) {
            umem.bytes_mut(&mut frame)[..part.len()].copy_from_slice(part);
            last.more = true;
            let next = TxDescriptor { frame, offset: 0, length: part.len() as u32, more: false };
            lane.push(std::mem::replace(&mut last, next));
        }
        // Frames are sent from the stock, and the stock is of frames that are at home.
        let place = (last.frame.chunk_index() - self.first_chunk) as usize;
        self.in_flight[place] = Some(InFlight { tx: transmit.tx, lane_index: lane_index as u32 });
        self.in_flight_count += 1;
        lane.push(last);
        lane.borrow(chunks);
        self.counters.frames_sent += 1;
        true
    }

    /// Tries devices again that refuse to send; ends the messages of one that has refused for too long. Their
    /// frames are still with it.
    pub(super) fn follow_devices(&mut self, now: Instant) {
        for lane_index in 0..self.lanes.len() {
            match self.lanes[lane_index].follow_refusal(now) {
                Followed::Same => continue,
                Followed::Recovered => {
                    if let Some((owner, _)) = &self.lanes[lane_index].lender {
                        self.exchange.wake(*owner);
                    }
                    continue;
                }
                Followed::GivenUp => {}
            }
            for message in &mut self.in_flight {
                if let Some(InFlight { tx, .. }) =
                    message.take_if(|message| message.lane_index as usize == lane_index)
                {
                    self.in_flight_count -= 1;
                    self.ended.push_back((tx, Status::Unknown(Cause::Device)));
                }
            }
        }
    }

    /// Takes frames whose sending is complete from the owned queues.
    pub(super) fn complete(&mut self, now: Instant, budget: u32, up: &mut impl Uplink) -> u32 {
        let mut returned = std::mem::take(&mut self.moving);
        for queue in &mut self.owned {
            let own = self.first_chunk..self.first_chunk + self.common.frames_per_shard;
            let mut borrowed = 0;
            queue.completion.drain(budget, |frame| {
                borrowed += u32::from(!own.contains(&frame.chunk_index()));
                returned.push(frame);
            });
            if borrowed != 0 {
                queue.borrowed.fetch_sub(borrowed, Ordering::Release);
            }
        }
        let count = returned.len() as u32;
        for frame in returned.drain(..) {
            self.settle(now, frame, up);
        }
        self.moving = returned;
        count
    }
}

fn is_response(transmit: &Transmit) -> bool {
    matches!(transmit.header.body, Body::Ack { .. } | Body::Reply { .. })
}

/// All headers of a message's only frame, from Ethernet to LNet.
fn write_headers(
    bytes: &mut [u8],
    path: &Path,
    header: &Header,
    payload_bytes: usize,
    message_id: u64,
    initiator_hash: u32,
) {
    path.write(bytes, OVERHEAD_BYTES + payload_bytes);
    let (frame_header, rest) = bytes[path.length()..]
        .split_first_chunk_mut::<FRAME_HEADER_BYTES>()
        .expect("a chunk holds the headers");
    let key =
        SteerKey::of(header, message_id, initiator_hash).expect("a shard's messages have a steering key");
    FrameHeader::data(key, 0, payload_bytes as u32).encode(frame_header);
    let lnet_header = rest.first_chunk_mut::<LARGE_HEADER_BYTES>().expect("a chunk holds the headers");
    header.encode_large(lnet_header);
    let covered = &mut bytes[path.length()..path.length() + OVERHEAD_BYTES];
    let crc = crc_fast::crc32_iscsi(covered);
    covered[CRC_OFFSET..FRAME_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
}
