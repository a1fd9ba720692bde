//! NIs, and the queues of their interfaces, that come and go.
//!
//! Invariants: the first NI of an interface brings its lanes, the last one takes them along; NIs between share
//! them. A shard's own frames stay with it when lanes go, or come home later by [`super::exchange::WaysHome`]: those
//! that the kernel has.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use lnet_core::lnd::{Cause, NiId, Status, Uplink};
use lnet_core::time::Instant;
use lnet_wire::steer::{PORTALS, PolicyWord};

use super::receive::Sender;
use super::{Behind, Lane, OwnedQueue, Port, XdpLnd};
use crate::memory::Memory;
use crate::netlink::Neighbours;
use crate::xsk::Socket;

/// What one shard has of an interface.
pub(crate) struct Rings {
    pub(crate) interface_index: u32,
    /// Finds next hops, and follows the interface.
    pub(crate) neighbours: Arc<Neighbours>,
    /// A lane on each receive queue.
    pub(crate) lanes: Vec<Lane>,
    /// The queues that the shard owns; their lanes are numbered among these.
    pub(crate) owned: Vec<OwnedQueue>,
}

impl Rings {
    /// Sockets to watch while the shard sleeps.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.lanes.iter().filter_map(Lane::socket).map(Socket::as_fd)
    }
}

/// An NI as one shard gets it, and gives it back.
pub(crate) struct ShardPort {
    pub(crate) port: Port,
    /// ACKs and REPLYs that may wait for a next hop at once while this NI is there: others are refused.
    pub(crate) parked_responses_max: u32,
    /// Those of its interface, with the first NI that it has, and with the last.
    pub(crate) rings: Option<Rings>,
}

/// An NI that a shard has.
pub(super) struct OpenPort {
    pub(super) port: Port,
    pub(super) parked_responses_max: u32,
    /// The lane that its frames leave by.
    pub(super) lane_index: usize,
    /// Its interface's place among the links.
    pub(super) link_index: usize,
    /// If its interface is known to be down.
    pub(super) down: Option<Down>,
    /// Who sent its last packet.
    pub(super) last_sender: Sender,
}

/// An interface that is down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Down {
    /// Since when that is known.
    pub(super) since: Instant,
    /// The peer that could not be reached.
    pub(super) address: IpAddr,
    /// Whether it has been so for too long: nothing waits for it any more.
    pub(super) is_given_up: bool,
}

/// An interface, as a shard follows it.
pub(super) struct Link {
    pub(super) interface_index: u32,
    pub(super) neighbours: Arc<Neighbours>,
    /// Of the answers that paths were made of.
    pub(super) generation: u64,
}

impl XdpLnd {
    /// An open NI's place.
    #[inline]
    pub(super) fn place_of(&self, ni: NiId) -> Option<usize> {
        *self.by_ni.get(usize::from(ni.0))?
    }

    /// Whether it has no NI.
    pub(crate) fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.closed.is_empty()
    }

    /// Takes part in an NI from now on.
    ///
    /// # Panics
    /// If it has one of this number, or no rings came with the first one of an interface.
    pub(crate) fn add_port(&mut self, port: ShardPort) {
        let ShardPort { port, parked_responses_max, rings } = port;
        if let Some(rings) = rings {
            self.add_rings(rings);
        }
        let is_its = |link: &Link| link.interface_index == port.interface_index;
        let link_index =
            self.links.iter().position(is_its).expect("the first NI of an interface brings rings");
        let datagram_max_bytes = port.datagram_max_bytes(self.common.frame_max_bytes);
        self.xfer.add_interface(port.ni, port.nid, datagram_max_bytes);
        let lane_index = self.lane_to(port.interface_index);
        self.ports.push(OpenPort {
            port,
            parked_responses_max,
            lane_index,
            link_index,
            down: None,
            last_sender: Sender::NOBODY,
        });
        self.follow_ports();
    }

    fn add_rings(&mut self, rings: Rings) {
        let Rings { interface_index, neighbours, mut lanes, mut owned } = rings;
        for queue in &owned {
            lanes[queue.lane_index].own = Some(Arc::clone(&queue.borrowed));
        }
        let first_lane = self.lanes.len();
        owned.iter_mut().for_each(|queue| queue.lane_index += first_lane);
        self.lanes.append(&mut lanes);
        self.owned.append(&mut owned);
        self.links.push(Link { interface_index, neighbours, generation: u64::MAX });
        self.follow_rings();
        self.refill(true);
    }

    /// Ends all that is under way by an NI, as far as it can go no other way; nothing begins any more.
    pub(crate) fn close_port(&mut self, now: Instant, ni: NiId, up: &mut impl Uplink, memory: &Memory) {
        let Some(place) = self.place_of(ni) else { return };
        let mut lingering = self.lingering.take();
        let up = &mut Behind { up, lingering: lingering.as_deref_mut() };
        // Peers need not wonder what has arrived.
        self.xfer.acknowledge_now(now);
        self.send_ready(now, memory);
        self.flush_lanes();
        for _ in 0..self.parked.count() {
            let Some((deadline, transmit)) = self.parked.pop() else { break };
            if transmit.ni == ni {
                self.counters.messages_refused += 1;
                up.sent(now, transmit.tx, Status::NeverSent(Cause::Device));
            } else {
                self.parked.push(deadline, transmit);
            }
        }
        self.xfer.remove_interface(now, ni, up);
        self.lingering = lingering;
        let port = self.ports.swap_remove(place);
        self.closed.push(port);
        self.follow_ports();
        self.replay_due = true;
    }

    /// Whether an NI was closed whose device refuses to send: what it has not sent by now it never will, for its
    /// sockets are about to be closed.
    pub(super) fn is_given_up(&self, ni: NiId) -> bool {
        let closed = self.closed.iter().find(|closed| closed.port.ni == ni);
        closed.is_some_and(|OpenPort { port, .. }| {
            let mut its = self.lanes.iter().filter(|lane| lane.interface_index == port.interface_index);
            its.any(Lane::refuses)
        })
    }

    /// Gives up an NI, after it was closed; with the last one of an interface its rings as well.
    ///
    /// # Panics
    /// If it has not closed one of this number.
    pub(crate) fn remove_port(&mut self, ni: NiId) -> ShardPort {
        let place = self.closed.iter().position(|closed| closed.port.ni == ni).expect("the NI was closed");
        let OpenPort { port, parked_responses_max, .. } = self.closed.swap_remove(place);
        let mut others = self.ports.iter().chain(&self.closed);
        let is_last = others.all(|other| other.port.interface_index != port.interface_index);
        let rings = is_last.then(|| self.remove_rings(port.interface_index));
        ShardPort { port, parked_responses_max, rings }
    }

    fn remove_rings(&mut self, interface_index: u32) -> Rings {
        self.take_completions(u32::MAX);
        if let Some(late) = self.faults.give_up() {
            self.stock.extend(late.map(|part| part.frame));
        }
        let queue_of = |lane: &Lane| (lane.interface_index, lane.queue);
        let places: Vec<(u32, u32)> = self.lanes.iter().map(queue_of).collect();
        let is_its = |queue: &mut OwnedQueue| places[queue.lane_index].0 == interface_index;
        let mut owned: Vec<OwnedQueue> = self.owned.extract_if(.., is_its).collect();
        let mut lanes: Vec<Lane> =
            self.lanes.extract_if(.., |lane| lane.interface_index == interface_index).collect();
        for (queues, lanes) in [(&mut self.owned, &self.lanes), (&mut owned, &lanes)] {
            for queue in queues {
                let place = places[queue.lane_index];
                queue.lane_index =
                    lanes.iter().position(|lane| queue_of(lane) == place).expect("a lane on each queue");
            }
        }
        // A packet whose last part has not been seen.
        for lane in &mut lanes {
            while let Some(descriptor) = lane.arrived.pop_front() {
                self.settle(descriptor.frame);
            }
        }
        let link = self.links.iter().position(|link| link.interface_index == interface_index);
        let Link { neighbours, .. } = self.links.remove(link.expect("an interface with lanes has a link"));
        self.follow_rings();
        self.follow_ports();
        Rings { interface_index, neighbours, lanes, owned }
    }

    /// Takes in which queues there are.
    fn follow_rings(&mut self) {
        self.refill_count = self.owned.iter().map(OwnedQueue::refill_count).min().unwrap_or(1);
        // Each interface's rings may be full of frames to send, also of one that sends nothing any more.
        self.transmit_reserve = self.common.rings.tx as usize * self.links.len();
    }

    /// Takes in which NIs there are.
    fn follow_ports(&mut self) {
        self.by_ni.fill(None);
        for place in 0..self.ports.len() {
            let Port { ni, interface_index, .. } = self.ports[place].port;
            let slot = usize::from(ni.0);
            if slot >= self.by_ni.len() {
                self.by_ni.resize(slot + 1, None);
            }
            self.by_ni[slot] = Some(place);
            let is_its = |link: &Link| link.interface_index == interface_index;
            let link_index = self.links.iter().position(is_its);
            self.ports[place].link_index = link_index.expect("the link stays as long as NIs");
            self.ports[place].lane_index = self.lane_to(interface_index);
        }
        let responses_max = self.ports.iter().map(|port| port.parked_responses_max).min();
        self.parked.set_responses_max(responses_max.unwrap_or(0));
        self.follow_mtus();
        self.paths.clear();
        self.retry_parked = true;
    }

    /// The lane by which frames of this shard leave: that of a queue that it owns, or any.
    fn lane_to(&self, interface_index: u32) -> usize {
        let of_interface =
            |lane: &usize| self.lanes[*lane].interface_index == interface_index && self.lanes[*lane].sends;
        let own = self.owned.iter().map(|queue| queue.lane_index).find(of_interface);
        own.unwrap_or_else(|| {
            let all: Vec<usize> = (0..self.lanes.len()).filter(of_interface).collect();
            all[usize::from(self.shard.0) % all.len()]
        })
    }

    /// Steers by other policies from now on.
    pub(crate) fn set_policies(&mut self, policies: &[PolicyWord; PORTALS]) {
        self.common.xfer.policies = *policies;
        self.xfer.set_policies(policies);
    }
}
