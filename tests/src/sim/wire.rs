//! Frames from the devices of their senders to the drivers of their receivers.

use std::rc::Rc;

use lnet_core::handle::ShardId;
use lnet_core::lnd::NiId;
use lnet_wire::frame::FRAME_HEADER_BYTES;
use lnet_wire::{FrameHeader, Nid, steer};

use super::datagrams::{Arrival, Leaving};
use super::fabric::{Departure, Fate, Packet, Passage};
use super::node::{self, Node};
use super::plan::{Directions, happens};
use super::report::Fault;
use super::strangers;
use super::world::{Happening, World};
use super::{Bug, Hostility};

impl World {
    /// A driver gives a frame to its device.
    pub(super) fn depart(&mut self, sender: usize, leaving: &Leaving) {
        let Leaving { frame, ni, to } = *leaving;
        let pool = self.nodes[sender].send_pool;
        let own = self.locate(&to);
        let stranger = own.is_none().then_some(to);
        let elsewhere = || strangers::locate(&self.plan, to.ip()?).map(|(node, ni, _)| (node, ni));
        let found = own.or_else(elsewhere);
        self.ledger.expect(found.is_some(), "frames go to nodes", || format!("{to}"));
        let Some((node, to_ni)) = found else { return };
        let length = self.pools[pool].bytes(frame).len();
        let longest = self.datagram_max_bytes[sender][usize::from(ni.0)];
        self.ledger.expect(length <= longest as usize, "frames fit their interface", || {
            format!("{length} bytes by an interface that takes {longest}")
        });
        self.pools[pool].send(frame);
        if self.bugs.strike(Bug::FrameFreedEarly, &mut self.random) {
            self.pools[pool].steal(frame);
        }
        let fate = if !self.nodes[sender].has_rail(ni) {
            self.counts.add(Fault::NoInterface);
            Fate::LOST
        } else if self.plan.narrow.is_some_and(|narrow| narrow.drops([(sender, ni), (node, to_ni)], length)) {
            self.counts.add(Fault::Narrow);
            Fate::LOST
        } else if self.fabric.carries(sender, ni, Directions::Sent) {
            self.fabric.fate(&self.plan, &mut self.random, &mut self.counts)
        } else {
            self.counts.add(Fault::Unplugged);
            Fate::LOST
        };
        let from = node::nid(&self.plan, sender, ni.0 as u8);
        let life = self.nodes[sender].life;
        let departure = Departure { sender, life, pool, frame, node, ni: to_ni, from, stranger, fate };
        let slot = self.fabric.insert(Passage::Departure(departure));
        let at = self.now + 200 + self.random.bits() % 2000;
        self.at(at, Happening::Pass(slot));
    }

    /// A device reads a frame, or a frame arrives.
    pub(super) fn pass(&mut self, slot: u32) {
        match self.fabric.remove(slot) {
            Some(Passage::Departure(departure)) => self.leave(&departure),
            Some(Passage::Packet(packet)) => self.arrive(&packet),
            None => {}
        }
    }

    /// The device reads a frame, which is the driver's again.
    fn leave(&mut self, departure: &Departure) {
        let Departure { sender, life, pool, frame, node, ni, from, stranger, ref fate } = *departure;
        let blocked = !self.pools[pool].has_free();
        let bytes = Rc::new(self.pools[pool].bytes(frame).to_vec());
        self.pools[pool].read(frame);
        self.check_pool(pool);
        if self.fabric.attack_of(sender) == Some(Hostility::Halving) && !is_beginning(&bytes) {
            return self.counts.add(Fault::Withheld);
        }
        if let Some(nid) = stranger
            && let Some(listener) = self.listener(&nid)
        {
            self.listen(listener, &bytes);
        }
        let arrives = stranger.is_none();
        for delay in fate.delays_ns.into_iter().flatten().filter(|_| arrives) {
            let flips = self.fabric.flips(&self.plan, &mut self.random, &mut self.counts);
            let astray = (self.fabric.is_faulty && happens(&mut self.random, self.plan.misdirection))
                .then(|| self.random.bits());
            let lives = (life, self.nodes[node].life);
            let packet = Packet { bytes: Rc::clone(&bytes), node, ni, from, sender, lives, flips, astray };
            let slot = self.fabric.insert(Passage::Packet(packet));
            self.at(self.now + delay, Happening::Pass(slot));
        }
        if blocked && self.nodes[sender].send_pool == pool {
            for shard in 0..self.nodes[sender].lanes.len() {
                self.request_turn(sender, shard, self.now + 100);
            }
        }
    }

    fn check_pool(&mut self, pool: usize) {
        if let Some(wrong) = self.pools[pool].wrong.take() {
            self.ledger.fail("frames are conserved", || wrong);
        }
    }

    pub(super) fn locate(&self, nid: &Nid) -> Option<(usize, NiId)> {
        let rails = |node| (0..self.plan.rails_of(node)).map(move |rail| (node, rail));
        let mut all = (0..self.nodes.len()).flat_map(rails);
        let (node, rail) = all.find(|(node, rail)| node::nid(&self.plan, *node, *rail) == *nid)?;
        Some((node, NiId(u16::from(rail))))
    }

    /// A frame arrives at a node.
    fn arrive(&mut self, packet: &Packet) {
        if packet.lives != (self.nodes[packet.sender].life, self.nodes[packet.node].life) {
            self.counts.add(Fault::Stale);
        }
        if !self.nodes[packet.node].has_rail(packet.ni) {
            return self.counts.add(Fault::NoInterface);
        }
        if !self.fabric.carries(packet.node, packet.ni, Directions::Received) {
            return self.counts.add(Fault::Unplugged);
        }
        let length = packet.bytes.len() as u32;
        if length > self.datagram_max_bytes[packet.node][usize::from(packet.ni.0)] {
            return self.counts.add(Fault::TooLong);
        }
        let node = &mut self.nodes[packet.node];
        let Some(buffer) = node.receive_pool.take() else {
            return self.counts.add(Fault::NoBuffer);
        };
        let mut bytes = std::mem::take(node.receive_pool.bytes_mut(buffer));
        packet.copy_to(&mut bytes);
        let own = steered(&bytes, node);
        *node.receive_pool.bytes_mut(buffer) = bytes;
        let Some(own) = own else {
            self.counts.refused += 1;
            return node.receive_pool.free(buffer);
        };
        let serving = self.plan.serving[packet.node][usize::from(packet.ni.0)];
        let steered_to = serving.stand_in(ShardId(own as u8));
        self.counts.unserved += u64::from(usize::from(steered_to.0) != own);
        let astray = |drawn: u64| serving.share((drawn % u64::from(serving.count())) as u32);
        let shard = usize::from(packet.astray.map_or(steered_to, astray).0);
        if shard != usize::from(steered_to.0) {
            self.counts.add(Fault::Misdirected);
        }
        let arrival = Arrival { frame: buffer, ni: packet.ni, from: packet.from };
        node.lanes[shard].driver.arrive(arrival);
        self.request_turn(packet.node, shard, self.now + 500);
        if let Some(wrong) = self.nodes[packet.node].receive_pool.wrong.take() {
            self.ledger.fail("frames are conserved", || wrong);
        }
    }
}

/// Whether a frame is the beginning of a message, or of none.
fn is_beginning(bytes: &[u8]) -> bool {
    let head = bytes.first_chunk::<FRAME_HEADER_BYTES>();
    let header = head.and_then(|head| FrameHeader::decode(head, bytes.len()).ok());
    header.is_none_or(|header| header.fragment_offset == 0)
}

/// The shard that a frame is steered to; `None` if it is none of ours.
fn steered(bytes: &[u8], node: &Node) -> Option<usize> {
    let head = bytes.first_chunk::<FRAME_HEADER_BYTES>()?;
    let key = FrameHeader::decode(head, bytes.len()).ok()?.key;
    let policy = node.policies[usize::from(key.portal)];
    Some(steer::shard_of(&key, policy, node.lanes.len() as u32) as usize)
}
