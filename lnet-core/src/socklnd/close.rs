//! Connections, peers and interfaces that end.

use lnet_wire::socklnd::ConnectionType;

use super::connection::{Phase, Reading};
use super::{Action, ConnId, Socklnd, SocklndEvent, Timer};
use crate::list::NONE;
use crate::lnd::{Cause, NiId, RxId, Status, Uplink};
use crate::time::Instant;

impl Socklnd {
    /// A stream has ended, or is broken.
    pub fn ended(&mut self, now: Instant, conn: ConnId, up: &mut impl Uplink) {
        match self.connections[conn.0].phase {
            Phase::Dialling | Phase::Greeting => self.dial_failed(now, conn.0, up),
            Phase::Accepted | Phase::Requested | Phase::Closing => self.close(now, conn.0, up),
            Phase::Established => {
                self.counters.add(SocklndEvent::Closed);
                self.close_siblings(now, conn.0, up);
            }
        }
        self.feed_starved(now, up);
    }

    /// A peer breaks the protocol: all connections with it end.
    pub(super) fn fault(&mut self, now: Instant, slot: u32, event: SocklndEvent, up: &mut impl Uplink) {
        self.counters.add(event);
        self.close_siblings(now, slot, up);
    }

    /// Ends a connection and all others of its peer.
    pub(super) fn close_siblings(&mut self, now: Instant, slot: u32, up: &mut impl Uplink) {
        let peer = self.connections[slot].peer;
        self.close_all(now, peer, up);
        self.settle(now, peer);
    }

    /// Ends all connections of a peer.
    pub(super) fn close_all(&mut self, now: Instant, peer: u32, up: &mut impl Uplink) {
        loop {
            let slot = self.peers[peer].connections.first();
            if slot == NONE {
                return;
            }
            self.close(now, slot, up);
        }
    }

    /// Ends a connection. What was not polled for sending waits for another one.
    pub(super) fn close(&mut self, now: Instant, slot: u32, up: &mut impl Uplink) {
        match self.connections[slot].reading {
            Reading::Delayed { rx, .. }
            | Reading::Payload { rx, .. }
            | Reading::Skip { rx: Some(rx), .. } => {
                up.received(now, rx, Status::Unknown(Cause::Reset));
                self.release(rx);
            }
            Reading::Head | Reading::Starved(_) | Reading::Skip { rx: None, .. } => {}
        }
        if matches!(self.connections[slot].phase, Phase::Accepted | Phase::Requested) {
            self.handshakes.retain(|other| *other != slot);
        }
        self.requeue(slot);
        self.forget(now, slot);
        self.actions.push_back(Action::Close { conn: ConnId(slot) });
    }

    /// Ends the messages that a connection is sending, and gives those back to its peer that wait.
    fn requeue(&mut self, slot: u32) {
        let connection = &mut self.connections[slot];
        while let Some(item) = connection.sending.pop_front(&mut self.items) {
            let tx = self.items.remove(item).transmit.tx;
            self.ended.push_back((tx, Status::Unknown(Cause::Reset)));
        }
        let Some(peer) = self.peers.get_mut(connection.peer) else { return };
        loop {
            let last = connection.queue.last();
            if last == NONE {
                return;
            }
            connection.queue.remove(&mut self.items, last);
            peer.queue.push_front(&mut self.items, last);
        }
    }

    /// Frees a connection's slot.
    pub(super) fn forget(&mut self, now: Instant, slot: u32) {
        self.ready.discard(&mut self.connections, slot);
        self.resumed.discard(&mut self.connections, slot);
        self.starved.discard(&mut self.connections, slot);
        self.clear_timer(Timer::Connection(slot));
        let connection = &self.connections[slot];
        let (peer, kind, phase): (_, ConnectionType, _) =
            (connection.peer, connection.kind, connection.phase);
        if let Some(peer) = self.peers.get_mut(peer) {
            if phase == Phase::Established {
                peer.connections.remove(&mut self.connections, slot);
                peer.lost_at = now;
                *peer.count_mut(kind) -= 1;
            }
            peer.dialling.take_if(|dialling| *dialling == slot);
        }
        self.connections.vacate(slot);
    }

    /// The name of a message that arrived is free.
    pub(super) fn release(&mut self, rx: RxId) {
        let name = rx.0 - self.first_name;
        self.named[name as usize] = NONE;
        self.names.push(name);
    }

    /// Ends what waits for a connection with a peer.
    pub(super) fn fail_queue(&mut self, peer: u32, status: Status) {
        while let Some(item) = self.peers[peer].queue.pop_front(&mut self.items) {
            let tx = self.items.remove(item).transmit.tx;
            self.ended.push_back((tx, status));
        }
    }

    /// Ends all that is under way by an interface; nothing begins any more.
    pub fn close_ni(&mut self, now: Instant, ni: NiId, up: &mut impl Uplink) {
        let is_its = |slot: &u32| self.connections[*slot].ni == Some(ni);
        let slots: alloc::vec::Vec<u32> =
            self.connections.used().map(|(slot, _)| slot).filter(is_its).collect();
        for slot in slots {
            self.close(now, slot, up);
        }
        let peers: alloc::vec::Vec<u32> =
            self.peers.used().filter(|(_, peer)| peer.ni == ni).map(|(slot, _)| slot).collect();
        for slot in peers {
            self.fail_queue(slot, Status::NeverSent(Cause::Device));
            self.clear_timer(Timer::Peer(slot));
            self.peers.remove(slot);
        }
        self.nis.retain(|known| known.ni != ni);
        self.feed_starved(now, up);
    }
}
