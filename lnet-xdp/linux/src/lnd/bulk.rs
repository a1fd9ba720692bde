//! Long messages of an NI over rings that leave by a socket of its own.
//!
//! The frames are those that the rings would carry, so their receiver sees no difference. The kernel is given
//! many at once, a run, and takes that through its layers as one packet. What arrives comes by the rings
//! alone: the socket has a port that the kernel chose, and what is sent there is dropped.
//!
//! Invariants: frames that are sent again go by the rings, as do all for a while once the kernel has refused
//! some, longer each time that it goes on refusing: no message ends for it. No frame is longer than the
//! socket's buffers.
//!
//! Decision: the socket goes by readiness, whatever the node's reactor is: it belongs to no thread then, so a
//! shard with rings is driven by any.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lnet_core::lnd::NiId;
use lnet_core::time::Instant;
use lnet_io::capture::{Direction, Link};
use lnet_io::memory::Memory;
use lnet_io::reactor::Reactor;
use lnet_io::reactor::udp::{Endpoint, EndpointConfig, NoRuns, Refusal, UdpError, UdpSocket};
use lnet_model::lnd::{Carrier, NiOption};
use lnet_model::ni::NiOptions;
use lnet_wire::Nid;
use lnet_xdp_proto::{Content, OutgoingFrame};
use rustix::io::Errno;

use super::frames::Source;
use super::ports::RingPort;
use super::socket::{record, shorten, write_datagram};
use super::{Port, XdpLnd};

/// Payload of the shortest message that is long: several frames of the longest usual MTU.
const LONG_BYTES_MIN: u32 = 16 << 10;
/// Datagrams that are with the kernel at most: it is given them before they leave a CPU's cache.
const SEND_BUFFERS: u16 = 128;
/// Seconds for which all frames go by the rings after the kernel has refused some: at first, and at most
/// where it goes on refusing.
const RESTS_S: [u8; 2] = [1, 64];

/// A socket beside rings, by which long messages leave.
pub(crate) struct Bulk {
    endpoint: Box<Endpoint>,
    /// Where its datagrams come from.
    local: SocketAddr,
    /// The choice: nothing goes by it, or long messages to peers that take runs (`auto`), or all.
    carrier: Carrier,
    runs: SharedRuns,
    /// Whether no shard of the NI has found so far that the kernel refuses runs.
    makes_runs: bool,
    rest: Rest,
}

/// Whether the kernel takes and gives runs of an NI's frames, which its shards find out one by one.
#[derive(Clone, Default, Debug)]
pub(crate) struct SharedRuns(Arc<OnceLock<NoRuns>>);

impl SharedRuns {
    /// The kernel's refusal of runs, if there was one.
    #[inline]
    pub(crate) fn refused(&self) -> Option<NoRuns> {
        self.0.get().copied()
    }

    /// The kernel has refused them; whether this is the first word of it.
    pub(crate) fn refuse(&self, refused: NoRuns) -> bool {
        self.0.set(refused).is_ok()
    }

    /// Takes in what a socket of the NI with this NID has found.
    #[inline]
    pub(super) fn follow(&self, nid: &Nid, endpoint: &Endpoint) {
        if let Some(refused) = endpoint.no_runs()
            && self.refuse(refused)
        {
            tracing::warn!(%nid, %refused, "frames go one by one");
        }
    }
}

impl Bulk {
    /// A socket for the long messages of an NI on one shard.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn open(port: &Port, frame_max_bytes: usize, runs: &SharedRuns) -> Result<Self, UdpError> {
        let socket = UdpSocket::to_send(port.address, port.interface_index)?;
        let local = socket.address();
        let config = EndpointConfig {
            receive_buffers: 1,
            send_buffers: SEND_BUFFERS,
            datagram_max_bytes: port.ring_datagram_max_bytes(frame_max_bytes),
            receives_runs: false,
            reactor: Reactor::Epoll,
        };
        let endpoint = Box::new(Endpoint::new(socket, &config)?);
        let runs = runs.clone();
        let mut bulk =
            Self { endpoint, local, carrier: Carrier::Rings, runs, makes_runs: true, rest: Rest::NONE };
        bulk.follow_runs(&port.nid);
        Ok(bulk)
    }

    /// Becomes readable when a socket that was full has room.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.endpoint.fd()
    }

    /// Has long messages go as chosen from now on.
    pub(crate) fn set_carrier(&mut self, carrier: Carrier) {
        self.carrier = carrier;
    }

    /// Takes in whether the kernel refuses runs; whether that is news.
    fn follow_runs(&mut self, nid: &Nid) -> bool {
        self.runs.follow(nid, &self.endpoint);
        let makes_runs = self.runs.refused().is_none();
        std::mem::replace(&mut self.makes_runs, makes_runs) != makes_runs
    }

    /// Whether there is something to do that its descriptor would not report.
    pub(super) fn has_work(&mut self) -> bool {
        self.endpoint.has_work()
    }

    /// Whether there is a buffer for one more datagram.
    #[inline]
    pub(super) fn has_room(&mut self) -> bool {
        self.endpoint.has_room()
    }

    /// Whether a frame goes by it.
    #[inline]
    fn takes(&self, outgoing: &OutgoingFrame) -> bool {
        let Content::Message { resent: false, bundled: 0, run, .. } = &outgoing.content else { return false };
        let is_its = match self.carrier {
            Carrier::Rings => false,
            Carrier::Auto => run.is_some() && self.makes_runs,
            Carrier::Socket => outgoing.header.total_length >= LONG_BYTES_MIN,
        };
        is_its && !self.rest.is_on
    }
}

/// A time for which the rings have all frames, since the kernel has refused some.
struct Rest {
    is_on: bool,
    /// How long the last one is or was; 0 where there was none.
    length_s: u8,
    /// When that ends or has ended.
    until: Instant,
}

impl Rest {
    const NONE: Self = Self { is_on: false, length_s: 0, until: Instant(0) };

    /// Begins one, unless one is on; whether it is the first after a time without.
    fn begin(&mut self, now: Instant) -> bool {
        let length = Duration::from_secs(self.length_s.into());
        let is_first = !self.is_on && now >= self.until + length;
        if !self.is_on {
            // Frames that are refused as soon as they are tried again are so for longer.
            let next_s = if is_first { RESTS_S[0] } else { (2 * self.length_s).min(RESTS_S[1]) };
            let until = now + Duration::from_secs(next_s.into());
            *self = Self { is_on: true, length_s: next_s, until };
        }
        is_first
    }

    /// Ends what is over.
    fn follow(&mut self, now: Instant) {
        self.is_on &= now < self.until;
    }
}

/// Payload of the shortest message whose frames leave in runs by an NI over rings.
pub(super) fn run_min_bytes(bulk: Option<&Bulk>) -> u32 {
    match bulk {
        Some(
            Bulk { carrier: Carrier::Socket, .. } | Bulk { carrier: Carrier::Auto, makes_runs: true, .. },
        ) => LONG_BYTES_MIN,
        _ => u32::MAX,
    }
}

impl XdpLnd {
    /// The NI over rings whose socket takes this frame, if one does.
    #[inline]
    pub(super) fn bulk_of(&self, outgoing: &OutgoingFrame) -> Option<usize> {
        let index = self.nis.ring_of(outgoing.ni)?;
        let RingPort { port, bulk, frame_max_bytes, .. } = &self.nis.ports[index];
        let bulk = bulk.as_ref().filter(|bulk| bulk.takes(outgoing))?;
        // The interface may have got a larger MTU.
        let longest = port.ring_datagram_max_bytes(*frame_max_bytes);
        let takes_all = longest <= bulk.endpoint.datagram_max_bytes() && !self.faults.are_set();
        takes_all.then_some(index)
    }

    /// Writes a frame to be sent by the socket of an NI over rings, which has room; its bytes.
    #[inline]
    pub(super) fn send_bulk(&mut self, index: usize, outgoing: &OutgoingFrame, memory: &Memory) -> usize {
        let RingPort { port, bulk, .. } = &mut self.nis.ports[index];
        let (Some(bulk), Some(address)) = (bulk, outgoing.destination.ip()) else {
            self.counters.frames_let_go += 1;
            return 0;
        };
        let Content::Message { run, .. } = &outgoing.content else { unreachable!("it has a payload") };
        let (local, to) = (bulk.local, port.remote(address));
        let source = Source { xfer: &self.xfer, memory };
        let mut frame_bytes = 0;
        bulk.endpoint.send(to, *run, |out| {
            frame_bytes = write_datagram(outgoing, &source, &port.nid, out);
            if self.tap.is_on() {
                let ends = (local, to);
                record(&mut self.tap, (port, Link::Ethernet), Direction::Sent, ends, &out[..frame_bytes]);
            }
            frame_bytes
        });
        self.counters.frames_sent += 1;
        self.counters.frames_sent_by_socket += 1;
        self.counters.payload_bytes_copied_out += source.payload_bytes(outgoing);
        frame_bytes
    }

    /// Hands the kernel what was written for the sockets beside rings.
    #[inline]
    pub(super) fn flush_bulk(&mut self) {
        for index in 0..self.nis.ports.len() {
            let Some(bulk) = &mut self.nis.ports[index].bulk else { continue };
            // Datagrams that wait for room have some by now, or none.
            let outcome = if bulk.endpoint.has_room() { bulk.endpoint.flush() } else { bulk.endpoint.turn() };
            self.note(outcome);
        }
    }

    /// Looks at what the kernel has refused of the sockets beside rings: those rest then.
    pub(super) fn follow_bulk(&mut self, now: Instant) {
        for index in 0..self.nis.ports.len() {
            let RingPort { port, bulk: Some(bulk), frame_max_bytes, .. } = &mut self.nis.ports[index] else {
                continue;
            };
            bulk.rest.follow(now);
            let outcome = bulk.endpoint.turn();
            if bulk.follow_runs(&port.nid) {
                self.xfer.set_run_min(port.ni, run_min_bytes(Some(bulk)));
            }
            let mut shortened = None;
            while let Some(Refusal { to, errno }) = bulk.endpoint.poll_refusal() {
                self.counters.frames_sent -= 1;
                self.counters.frames_sent_by_socket -= 1;
                self.counters.frames_let_go += 1;
                if errno != Errno::MSGSIZE {
                    if bulk.rest.begin(now) {
                        tracing::warn!(%errno, %to, "the kernel refuses frames of a socket: the rings have them");
                    }
                } else if shortened.replace(to) != Some(to) {
                    // The kernel is asked once about a window that is refused.
                    let buffer_bytes = port.ring_datagram_max_bytes(*frame_max_bytes);
                    shorten((port, bulk.endpoint.socket()), buffer_bytes, now, to, &mut self.xfer);
                }
            }
            self.note(outcome);
        }
    }

    /// Has the long messages of an NI over rings go by another carrier from now on.
    pub(super) fn change_carrier(&mut self, ni: NiId, options: &NiOptions) {
        let Some(index) = self.nis.ring_of(ni).filter(|_| options.get(NiOption::Carrier).is_some()) else {
            return;
        };
        let bulk = &mut self.nis.ports[index].bulk;
        if let Some(bulk) = bulk {
            bulk.set_carrier(options.carrier());
        }
        self.xfer.set_run_min(ni, run_min_bytes(bulk.as_ref()));
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use lnet_wire::nid::Net;
    use lnet_wire::packet::endpoint;

    use super::*;

    /// A shard's socket refuses a run: the NI's shards leave long messages to the rings, and may have more
    /// of them share frames.
    #[test]
    fn a_refused_run_ends_those_of_all_shards() {
        let address: IpAddr = [127, 0, 0, 1].into();
        let nid = Nid::new_ip(Net::XDP, address).unwrap();
        let port = Port {
            ni: NiId(0),
            nid,
            address,
            udp_port: 988,
            endpoint: endpoint(address, 988),
            interface_index: 1,
            mac: [0; 6],
            mtu_bytes: 9000,
            checksum: true,
        };
        let runs = SharedRuns::default();
        let [mut one, mut other] = [(); 2].map(|()| Bulk::open(&port, 4096, &runs).unwrap());
        for bulk in [&mut one, &mut other] {
            bulk.set_carrier(Carrier::Auto);
            assert!(!bulk.follow_runs(&nid));
            assert_eq!(run_min_bytes(Some(bulk)), LONG_BYTES_MIN);
        }
        // The kernel refuses runs without checksums.
        one.endpoint.socket().omit_checksums().unwrap();
        for _ in 0..4 {
            one.endpoint.send(SocketAddr::new(address, 9), Some(0), |out| out[..100].len());
        }
        one.endpoint.flush().unwrap();
        for bulk in [&mut one, &mut other] {
            assert!(bulk.follow_runs(&nid) && !bulk.follow_runs(&nid), "it is news once");
            assert_eq!(run_min_bytes(Some(bulk)), u32::MAX);
        }
        assert_eq!(runs.refused(), Some(NoRuns { option: "UDP_SEGMENT", errno: Errno::INVAL }));
    }

    #[test]
    fn rests_get_longer_while_the_kernel_goes_on_refusing() {
        let (mut rest, mut now) = (Rest::NONE, Instant(0));
        let mut lengths_s = Vec::new();
        for round in 0..9 {
            assert_eq!(rest.begin(now), round == 0);
            assert!(!rest.begin(now), "one is on");
            let length = Duration::from_secs(rest.length_s.into());
            rest.follow(now + length / 2);
            assert!(rest.is_on);
            now = now + length;
            rest.follow(now);
            assert!(!rest.is_on);
            lengths_s.push(rest.length_s);
        }
        assert_eq!(lengths_s, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        assert!(rest.begin(now + Duration::from_secs(130)), "it took frames for long enough");
        assert_eq!(rest.length_s, RESTS_S[0]);
    }
}
