//! The sending half.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use lnet_core::lnd::{Cause, Uplink};
use lnet_core::time::Instant;
use lnet_core::xfer::Outgoing;
use lnet_wire::Nid;
use rustix::io::Errno;

use super::super::frames::{Head, Source, ends_crc};
use super::SocketLnd;
use super::ports::{OpenPort, record};
use crate::capture::Direction;
use crate::memory::Memory;
use crate::uring::udp::Refusal;

/// Frames that are sent before something else is looked at.
const FLUSH_BUDGET: u32 = 64;
/// Bytes that are written before the kernel is given them: they are still in this CPU's cache then.
const FLUSH_BYTES: usize = 128 << 10;
/// How long an interface may be down before its messages end without it.
const DOWN_PATIENCE: Duration = Duration::from_secs(1);

impl SocketLnd {
    /// Sends what the transfer protocol has, while there is room and at most the budget.
    #[inline]
    pub(super) fn send_ready(&mut self, now: Instant, memory: &Memory) {
        let mut written_bytes = 0;
        for _ in 0..FLUSH_BUDGET {
            if !self.intake.xfer.has_transmit() {
                break;
            }
            if !self.has_room() || written_bytes >= FLUSH_BYTES {
                // What the kernel takes at once is done with.
                self.flush_endpoints();
                written_bytes = 0;
                if !self.has_room() {
                    return;
                }
            }
            let Some(outgoing) = self.intake.xfer.poll_transmit(now) else { break };
            written_bytes += self.send(&outgoing, memory);
        }
        self.flush_endpoints();
    }

    /// Writes a frame to be sent; its bytes.
    #[inline]
    fn send(&mut self, outgoing: &Outgoing, memory: &Memory) -> usize {
        let open = self.ports.iter_mut().find(|open| open.port.ni == outgoing.ni);
        let (Some(open), Some(address)) = (open, outgoing.destination.ip()) else {
            self.intake.counters.frames_let_go += 1;
            return 0;
        };
        let to = open.port.to(address);
        let source =
            Source { xfer: &self.intake.xfer, memory, payload_checksum: self.intake.common.payload_checksum };
        let mut frame_bytes = 0;
        open.endpoint.send(0, to, |out| {
            frame_bytes = write_frame(outgoing, &source, &open.port.nid, out);
            if self.tap.is_on() {
                let ends = open.port.local().map(|local| (local, to));
                record(&mut self.tap, &open.port, Direction::Sent, ends, &out[..frame_bytes]);
            }
            frame_bytes
        });
        self.intake.counters.frames_sent += 1;
        frame_bytes
    }

    /// Looks at what the kernel has refused: each is a loss, and one says more than that.
    pub(super) fn follow_refusals(&mut self) {
        for place in 0..self.ports.len() {
            while let Some(refusal) = self.ports[place].endpoint.poll_refusal() {
                self.intake.counters.frames_sent -= 1;
                self.intake.counters.frames_let_go += 1;
                if refusal.errno == Errno::MSGSIZE {
                    self.shorten(place, &refusal);
                }
            }
        }
    }

    /// Ends the messages of an interface that has been down for too long.
    pub(super) fn follow_downs(&mut self, now: Instant, up: &mut impl Uplink) {
        for OpenPort { port, down_since, .. } in &mut self.ports {
            if down_since.is_some_and(|since| now - since >= DOWN_PATIENCE) {
                // And those that come later, at the latest then.
                *down_since = Some(now);
                self.intake.xfer.fail_interface(now, port.ni, Cause::Device, up);
            }
        }
    }

    /// When an interface has been down for too long, if there are messages.
    pub(super) fn down_until(&self) -> Option<Instant> {
        let downs = self.ports.iter().filter_map(|open| open.down_since);
        let first = downs.min().map(|since| since + DOWN_PATIENCE)?;
        (self.intake.xfer.usage().messages != 0).then_some(first)
    }

    /// A datagram was longer than the way to a peer: no longer ones are sent by this NI until its interface's MTU
    /// changes.
    pub(super) fn shorten(&mut self, place: usize, refusal: &Refusal) {
        let OpenPort { port, endpoint, .. } = &mut self.ports[place];
        let Ok(mtu_bytes) = endpoint.sockets()[0].path_mtu_bytes(refusal.to) else { return };
        if (mtu_bytes as usize) < port.mtu_bytes {
            tracing::info!(mtu_bytes, to = %refusal.to, "the way to a peer is narrower than the interface");
            port.mtu_bytes = mtu_bytes as usize;
            let bytes = port.datagram_max_bytes(self.intake.common.datagram_max_bytes);
            self.intake.xfer.set_datagram_max(port.ni, bytes);
        }
    }

    /// Takes in what has changed about the interfaces.
    #[inline]
    pub(super) fn follow_interfaces(&mut self, now: Instant) {
        for open in &mut self.ports {
            let generation = open.neighbours.generation();
            if generation == open.generation {
                continue;
            }
            open.generation = generation;
            let port = &mut open.port;
            let is_up = open.neighbours.is_up(port.interface_index);
            open.down_since = if is_up { None } else { open.down_since.or(Some(now)) };
            let mtu = open.neighbours.mtu_bytes(port.interface_index);
            if let Some(mtu_bytes) = mtu.filter(|mtu_bytes| *mtu_bytes != open.interface_mtu_bytes) {
                (open.interface_mtu_bytes, port.mtu_bytes) = (mtu_bytes, mtu_bytes as usize);
                let bytes = port.datagram_max_bytes(self.intake.common.datagram_max_bytes);
                self.intake.xfer.set_datagram_max(port.ni, bytes);
            }
        }
    }
}

/// Where a peer listens; a link-local address is one of the interface's link.
#[inline]
pub(super) fn peer_address(address: IpAddr, udp_port: u16, interface_index: u32) -> SocketAddr {
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(v6, udp_port, 0, interface_index))
        }
        _ => SocketAddr::new(address, udp_port),
    }
}

/// Writes a frame to the beginning of `out`, which is long enough; its bytes.
#[inline]
fn write_frame(outgoing: &Outgoing, source: &Source<'_>, own: &Nid, out: &mut [u8]) -> usize {
    let ends_crc = || ends_crc(&outgoing.destination, own);
    let Head { covered_bytes: mut at, payload, records } = source.write_head(outgoing, out, ends_crc);
    let mut write = |bytes: &[u8]| {
        out[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    write(payload);
    for index in 0..records {
        let (head, payload) = source.record(index);
        write(&head);
        write(payload);
    }
    at
}
