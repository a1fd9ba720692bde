//! The receiving half.

use std::net::SocketAddr;

use lnet_core::lnd::{NiId, Uplink};
use lnet_core::time::Instant;
use lnet_core::xfer::{Replay, Xfer};
use lnet_wire::Nid;
use lnet_wire::frame::FrameHeader;

use super::super::announce::{Batch, FRAMES_MAX};
use super::super::counters::{XdpCounters, XdpDrop};
use super::super::frames::{self, Aside, Bytes, Further, Owner, Taken, Way, ends_crc};
use super::exchange::Exchange;
use super::held::Held;
use super::ports::record;
use super::{Common, OpenPort, Port, SocketLnd};
use crate::capture::Direction;
use crate::memory::Memory;

/// Where a frame came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    Socket,
    Sibling,
    Held,
}

/// What frames are taken in by, apart from where their bytes are.
pub(super) struct Intake {
    pub(super) common: Common,
    pub(super) shard: u32,
    pub(super) xfer: Xfer,
    pub(super) exchange: Exchange,
    pub(super) held: Held,
    pub(super) counters: XdpCounters,
    /// Scratch of [`frames::take`].
    pub(super) further: Vec<Further>,
}

impl Intake {
    #[inline]
    fn take(
        &mut self,
        now: Instant,
        origin: Origin,
        (ni, from): (NiId, Nid),
        bytes: &[u8],
        (up, memory): (&mut impl Uplink, &mut Memory),
    ) {
        self.counters.frames_received += u64::from(origin == Origin::Socket);
        let header = bytes.first_chunk().map(|header| FrameHeader::decode(header, bytes.len()));
        let (Some(Ok(header)), Some(own)) = (header, self.xfer.nid_of(ni).copied()) else {
            return self.counters.count_drop(XdpDrop::NotOurs);
        };
        let beside = header.short.map_or(0, |_| ends_crc(&own, &from));
        let way = Way { ni, own: &own, from: &from, ends_crc: beside };
        let owner =
            Owner { policies: &self.common.xfer.policies, shards: self.common.shards(), shard: self.shard };
        let frame = Bytes { header, head: bytes, start: 0, length: bytes.len(), datagram: bytes };
        let to = (&mut self.xfer, memory, up);
        match frames::take(to, now, &way, &owner, &frame, &mut self.further) {
            Ok(Taken::Whole) => self.counters.frames_taken += 1,
            Ok(Taken::Refused) => self.counters.frames_refused += 1,
            Ok(Taken::Hold(hold)) => self.held.keep(hold, ni, from, bytes),
            Err(Aside::Dropped(reason)) => self.counters.count_drop(reason),
            Err(Aside::Misdirected(shard)) => {
                self.counters.frames_misdirected += 1;
                if !self.exchange.hand_over(shard, ni, from, bytes) {
                    self.counters.count_drop(XdpDrop::SiblingBusy);
                }
            }
        }
    }
}

impl OpenPort {
    /// Announces the messages that begin in the datagrams that are next.
    fn announce(&mut self, up: &mut impl Uplink, memory: &Memory) {
        if self.endpoint.waiting_count() > 1 {
            let mut batch = Batch::<FRAMES_MAX>::new();
            let net = self.port.nid.net();
            self.endpoint.peek(FRAMES_MAX, |from, datagram| {
                if let Ok(from) = Nid::new_ip(net, from) {
                    batch.add_frame(from, datagram, datagram.len());
                }
            });
            batch.tell(up, memory);
        }
    }
}

impl SocketLnd {
    /// Takes in at most `budget` datagrams of each socket; how many.
    #[inline]
    pub(super) fn receive(
        &mut self,
        now: Instant,
        budget: u32,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) -> u32 {
        let mut count = 0;
        for place in 0..self.ports.len() {
            let port @ Port { ni, nid, .. } = self.ports[place].port;
            for taken in 0..budget {
                if (taken as usize).is_multiple_of(FRAMES_MAX) && up.wants_hints() {
                    self.ports[place].announce(up, memory);
                }
                let Some(mut received) = self.ports[place].endpoint.poll_received() else { break };
                count += 1;
                let endpoint = &mut self.ports[place].endpoint;
                if self.tap.is_on() {
                    let from = SocketAddr::new(received.from, received.from_port);
                    let ends = port.local().map(|local| (from, local));
                    record(
                        &mut self.tap,
                        &port,
                        Direction::Received,
                        ends,
                        endpoint.bytes_mut(&mut received),
                    );
                }
                if let Ok(from) = Nid::new_ip(nid.net(), received.from) {
                    let bytes = endpoint.bytes_mut(&mut received);
                    self.intake.take(now, Origin::Socket, (ni, from), bytes, (up, memory));
                }
                endpoint.give_back(received);
                // What was kept may be what comes next.
                self.replay(now, up, memory);
            }
        }
        count
    }

    /// Takes in at most `budget` datagrams that siblings have handed over; how many.
    pub(super) fn take_parcels(
        &mut self,
        now: Instant,
        budget: u32,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) -> u32 {
        for count in 0..budget {
            let Some(parcel) = self.intake.exchange.receive() else { return count };
            let origin = (parcel.ni, parcel.from);
            self.take_copy(now, Origin::Sibling, origin, parcel.bytes(), (up, memory));
            self.intake.exchange.give_back(parcel);
            self.replay(now, up, memory);
        }
        budget
    }

    /// Handles frames that were kept, as the transfer protocol says; how many.
    #[inline]
    pub(super) fn replay(&mut self, now: Instant, up: &mut impl Uplink, memory: &mut Memory) -> u32 {
        self.replay_due = false;
        let mut count = 0;
        while let Some(replay) = self.intake.xfer.poll_replay() {
            count += 1;
            match replay {
                Replay::Forget(_) => self.intake.counters.frames_forgotten += 1,
                Replay::Again(hold) => {
                    let kept = self.intake.held.take(hold);
                    let origin = (kept.ni, kept.from);
                    self.take_copy(now, Origin::Held, origin, kept.bytes(), (up, memory));
                    self.intake.held.give_back(kept);
                }
            }
        }
        count
    }

    /// Takes in a copy of a datagram, unless its NI has gone meanwhile.
    fn take_copy(
        &mut self,
        now: Instant,
        origin: Origin,
        from: (NiId, Nid),
        bytes: &[u8],
        to: (&mut impl Uplink, &mut Memory),
    ) {
        if self.ports.iter().any(|open| open.port.ni == from.0) {
            self.intake.take(now, origin, from, bytes, to);
        } else {
            self.intake.counters.count_drop(XdpDrop::NotOurs);
        }
    }
}
