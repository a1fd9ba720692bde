//! Connections, peers and NIs that end.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::collections::{List, NONE};
use lnet_core::errno;
use lnet_core::lnd::{Cause, NiId, Path, Status, Uplink};
use lnet_core::time::Instant;
use lnet_wire::Nid;
use lnet_wire::socklnd::ConnectionType;

use super::connection::{Connection, Ends, OfPeer, Phase, SockOrigin};
use super::{BrokenConnections, ConnId, Socklnd, SocklndEvent, StreamOrder, Timer};

/// How much later than a message was sent something must come from its peer for it to count as read. Until
/// then a program may have died with it unread.
const READ_AFTER: Duration = Duration::from_secs(1);

/// How long connections are left open once another one with their peer was closed in order, to see whether
/// they are reset. The system of a program that dies closes them one by one, which takes a busy one seconds,
/// and resets those alone that have something unread.
pub(super) const DOUBT: Duration = Duration::from_secs(5);

/// The cause of the end of a connection, by its errno.
const fn cause(error: Option<u8>) -> Cause {
    match error {
        None | Some(errno::ECONNRESET | errno::EPIPE) => Cause::Reset,
        Some(errno) => Cause::System(errno),
    }
}

impl Socklnd {
    /// A stream has ended, or is broken, for which the system gives an errno, positive.
    pub fn ended(&mut self, now: Instant, conn: ConnId, error: Option<u8>, up: &mut impl Uplink) {
        match self.connections[conn.0].phase {
            Phase::Dialling | Phase::Greeting => {
                self.dial_failed(now, conn.0, error.unwrap_or(errno::ECONNRESET), up);
            }
            Phase::Accepted | Phase::Requested | Phase::Closing => self.close(now, conn.0, up),
            Phase::Doubted(origin) => self.end_doubted(now, conn.0, origin, error, up),
            Phase::Established => {
                self.counters.add(SocklndEvent::Closed);
                let peer = self.connections[conn.0].peer;
                let has_unread = self.has_unread(now, peer);
                if error.is_none() && has_unread {
                    self.doubt_siblings(now, conn.0);
                }
                let its = self.slots(&self.peers[peer].connections);
                self.note_broken(conn.0, self.peers[peer].origin().path, error, has_unread, &its);
                self.break_off(now, conn.0, error, up);
            }
            Phase::Closed => unreachable!("{conn:?} is closed"),
        }
    }

    /// A connection has ended, and so are others of its peer, of which it is one: something to tell where an
    /// error has ended it, or where messages are under way.
    fn note_broken(&mut self, slot: u32, path: Path, errno: Option<u8>, has_unread: bool, its: &[u32]) {
        let mut messages = 0;
        for other in its {
            let connection = &self.connections[*other];
            messages += connection.outgoing.sending_count(&self.items);
            messages += u32::from(connection.incoming.has_message()) + connection.shelved_count;
        }
        if errno.is_none() && messages == 0 {
            return;
        }
        its.iter().for_each(|_| self.counters.add(SocklndEvent::Broken));
        let Connection { ends: Ends { remote, .. }, kind, .. } = self.connections[slot];
        let connections = its.len() as u32;
        self.broken.push_back(BrokenConnections {
            path,
            remote,
            kind,
            errno,
            connections,
            messages,
            has_unread,
        });
    }

    /// Connections of a list, which may change meanwhile.
    fn slots(&self, connections: &List<OfPeer>) -> Vec<u32> {
        connections.iter(&self.connections).map(|(slot, _)| slot).collect()
    }

    /// Whether messages that a peer was sent well, by any connection, may not have been read: nothing came
    /// from it since, or hardly later. Long after, it has read what its system has.
    fn has_unread(&self, now: Instant, peer: u32) -> bool {
        let last_received_at = self.last_received_at(peer);
        let timeout = self.config.tunables.timeout;
        self.peers[peer].connections.iter(&self.connections).any(|(_, connection)| {
            let is_late = |at| now >= at + timeout && connection.progress.is_acknowledged();
            let sent_at = connection.outgoing.message_sent_at();
            sent_at.is_some_and(|at| last_received_at < at + READ_AFTER && !is_late(at))
        })
    }

    /// Ends all connections of a peer since one has failed. A message that was sent in part ends by that.
    /// Messages that were sent whole have ended well: where there is no other, the shard is told that they
    /// may be lost.
    pub(super) fn break_off(&mut self, now: Instant, slot: u32, error: Option<u8>, up: &mut impl Uplink) {
        let peer = self.connections[slot].peer;
        let known = &self.peers[peer];
        let is_sending = (known.connections.iter(&self.connections))
            .any(|(_, connection)| connection.outgoing.sending_count(&self.items) != 0);
        if error.is_some() && !is_sending && self.has_unread(now, peer) {
            up.lost(&Path { ni: known.ni, peer: known.nid }, cause(error));
        }
        self.close_siblings(now, slot, error, up);
    }

    /// Leaves the other connections of a peer open by which no message is under way: they may be reset in a
    /// moment. None leaves by them any more; those that arrive until then were sent before the peer ended,
    /// and are received as ever.
    fn doubt_siblings(&mut self, now: Instant, slot: u32) {
        let peer = self.connections[slot].peer;
        let known = &self.peers[peer];
        let origin = known.origin();
        let mut quiet = self.slots(&known.connections);
        quiet.retain(|other| *other != slot && self.connections[*other].is_quiet());
        for other in quiet {
            self.requeue(other);
            self.detach(now, other);
            let connection = &mut self.connections[other];
            (connection.phase, connection.handshake_deadline) = (Phase::Doubted(origin), now + DOUBT);
            self.peers[peer].doubted.push_back(&mut self.connections, other);
            self.set_timer(Timer::Connection(other), now + DOUBT);
        }
    }

    /// A connection ends that was left open: its stream has, or its time is up. One that is reset ends all of
    /// its peer that were: the peer's program has died.
    pub(super) fn end_doubted(
        &mut self,
        now: Instant,
        slot: u32,
        origin: SockOrigin,
        error: Option<u8>,
        up: &mut impl Uplink,
    ) {
        let is_confirmed = error.is_some();
        let all = |peer: u32| self.slots(&self.peers[peer].doubted);
        let its = self.peer_of(origin).filter(|_| is_confirmed).map_or_else(|| vec![slot], all);
        self.note_broken(slot, origin.path, error, is_confirmed, &its);
        if is_confirmed {
            up.lost(&origin.path, cause(error));
        }
        for other in its {
            self.connections[other].error = error;
            self.close(now, other, up);
        }
    }

    /// Ends the connections of a peer that were left open, where their ends are such.
    pub(super) fn close_doubted(
        &mut self,
        now: Instant,
        peer: u32,
        is_such: impl Fn(&Self, &Ends) -> bool,
        up: &mut impl Uplink,
    ) {
        let mut next = self.peers[peer].doubted.first();
        while next != NONE {
            let slot = next;
            next = List::<OfPeer>::next(&self.connections, slot);
            if is_such(self, &self.connections[slot].ends) {
                self.close(now, slot, up);
            }
        }
    }

    /// The peer that a connection is of, or was.
    fn peer_of(&self, SockOrigin { path, pid }: SockOrigin) -> Option<u32> {
        self.known_peer(path.ni, &path.peer, pid)
    }

    /// More has arrived on a connection that wants [`Wants::Nothing`](super::Wants::Nothing) or
    /// [`Wants::Whole`](super::Wants::Whole) than its driver can store.
    pub fn overrun(&mut self, now: Instant, conn: ConnId, up: &mut impl Uplink) {
        self.fault(now, conn.0, SocklndEvent::Overrun, up);
    }

    /// A peer breaks the protocol: all connections with it end.
    pub(super) fn fault(&mut self, now: Instant, slot: u32, event: SocklndEvent, up: &mut impl Uplink) {
        self.counters.add(event);
        self.close_siblings(now, slot, None, up);
    }

    /// Ends a connection and all others of its peer, by this errno.
    pub(super) fn close_siblings(
        &mut self,
        now: Instant,
        slot: u32,
        error: Option<u8>,
        up: &mut impl Uplink,
    ) {
        let peer = self.connections[slot].peer;
        if peer == NONE {
            return self.close(now, slot, up);
        }
        self.close_all(now, peer, error, up);
        self.settle(now, peer);
    }

    /// Ends all connections of a peer, by this errno.
    pub(super) fn close_all(&mut self, now: Instant, peer: u32, error: Option<u8>, up: &mut impl Uplink) {
        loop {
            let slot = self.peers[peer].connections.first();
            if slot == NONE {
                return;
            }
            self.connections[slot].error = error;
            self.close(now, slot, up);
        }
    }

    /// Ends a connection. What was not polled for sending waits for another one; what is under way ends with
    /// [`Socklnd::closed`], since the driver may use its memory until then.
    pub(super) fn close(&mut self, now: Instant, slot: u32, up: &mut impl Uplink) {
        if self.connections[slot].incoming.end_delayed() {
            up.received(now, self.rx(slot), Status::Unknown(Cause::Reset));
        }
        if matches!(self.connections[slot].phase, Phase::Accepted | Phase::Requested) {
            self.end_handshake(slot);
        }
        while self.unshelve(slot).is_some() {}
        self.requeue(slot);
        self.part(now, slot);
        self.connections[slot].phase = Phase::Closed;
        self.actions.push_back(StreamOrder::Close { conn: ConnId(slot) });
    }

    /// The driver has closed a stream, and uses no memory of its messages any more: they end now.
    ///
    /// # Panics
    /// If it was not told to close that stream.
    pub fn closed(&mut self, now: Instant, conn: ConnId, up: &mut impl Uplink) {
        let connection = &mut self.connections[conn.0];
        assert!(connection.phase == Phase::Closed, "{conn:?} was to be closed");
        let cause = cause(connection.error);
        while let Some(tx) = connection.outgoing.pop_sent(&mut self.items, u64::MAX) {
            #[cfg(feature = "sabotage")]
            if self.sabotage.end_lost {
                continue;
            }
            self.ended.push_back((tx, Status::Unknown(cause)));
        }
        let has_arriving = connection.incoming.has_arriving();
        self.forget(conn.0);
        if has_arriving {
            up.received(now, self.rx(conn.0), Status::Unknown(Cause::Reset));
        }
    }

    /// Gives the messages of a connection that wait back to its peer.
    fn requeue(&mut self, slot: u32) {
        let connection = &mut self.connections[slot];
        #[cfg(feature = "sabotage")]
        if self.sabotage.resent_after_cut {
            connection.outgoing.send_again(&mut self.items);
        }
        let Some(peer) = self.peers.get_mut(connection.peer) else { return };
        while let Some(last) = connection.outgoing.pop_last(&mut self.items) {
            peer.queue.push_front(&mut self.items, last);
        }
    }

    /// Takes a connection off its peer, and off all lists.
    pub(super) fn part(&mut self, now: Instant, slot: u32) {
        self.ready.discard(&mut self.connections, slot);
        self.resumed.discard(&mut self.connections, slot);
        self.clear_timer(Timer::Connection(slot));
        if let Phase::Doubted(origin) = self.connections[slot].phase {
            self.part_doubted(now, slot, origin);
        }
        self.detach(now, slot);
    }

    /// Takes a connection that was left open off its peer. A peer without anything else is soon looked at.
    fn part_doubted(&mut self, now: Instant, slot: u32, origin: SockOrigin) {
        let Some(peer) = self.peer_of(origin) else { unreachable!("a peer is forgotten before it is idle") };
        self.peers[peer].doubted.remove(&mut self.connections, slot);
        if self.peers[peer].is_idle() {
            self.set_timer(Timer::Peer(peer), now);
        }
    }

    /// Takes a connection off its peer.
    fn detach(&mut self, now: Instant, slot: u32) {
        let connection = &self.connections[slot];
        let (peer, kind, phase): (_, ConnectionType, _) =
            (connection.peer, connection.kind, connection.phase);
        if let Some(peer) = self.peers.get_mut(peer) {
            if phase == Phase::Established {
                self.shares.remove_named(&mut self.connections, slot);
                let first = peer.connections.first();
                peer.connections.remove(&mut self.connections, slot);
                if first == slot {
                    let next = self.connections.get(peer.connections.first());
                    let [from, to] = [self.connections.get(slot), next]
                        .map(|connection| connection.map(|connection| connection.ends.remote.ip()));
                    self.shares.move_peer(from, to);
                }
                peer.lost_at = now;
                *peer.count_mut(kind) -= 1;
                if peer.connections.is_empty() {
                    peer.refusals = 0;
                }
            }
            peer.dialling.take_if(|dialling| *dialling == slot);
        }
        self.connections[slot].peer = NONE;
    }

    /// Ends what waits for a connection with a peer.
    pub(super) fn fail_queue(&mut self, peer: u32, status: Status) {
        while let Some(item) = self.peers[peer].queue.pop_front(&mut self.items) {
            let tx = self.items.remove(item).transmit.tx;
            self.ended.push_back((tx, status));
        }
    }

    /// Ends the connections that come in the name of a NID from other addresses than its own.
    pub fn end_from_elsewhere(&mut self, now: Instant, nid: &Nid, up: &mut impl Uplink) {
        let named = self.peers.used().filter(|(_, peer)| peer.nid == *nid);
        let peers: Vec<u32> = named.map(|(slot, _)| slot).collect();
        for peer in peers {
            self.close_from_elsewhere(now, peer, up);
            self.settle(now, peer);
        }
    }

    /// Ends the connections of a peer that come from other addresses than its own. How many of these were
    /// established.
    pub(super) fn close_from_elsewhere(&mut self, now: Instant, peer: u32, up: &mut impl Uplink) -> u32 {
        let nid = self.peers[peer].nid;
        self.close_doubted(now, peer, |sock, ends| !sock.is_home(&nid, ends), up);
        let mut count = 0;
        while let Some(connection) = self.connection_from(peer, false) {
            count += 1;
            self.close(now, connection, up);
            if self.peers[peer].connections.is_empty() {
                // The peer's life is not known: its dialler's word on that counts no more.
                self.peers[peer].incarnation = None;
            }
        }
        count
    }

    /// Ends all that is under way by an NI, once its connections are closed; nothing begins any more.
    pub fn close_ni(&mut self, now: Instant, ni: NiId, up: &mut impl Uplink) {
        let is_its = |connection: &Connection| connection.ni == Some(ni) && connection.phase != Phase::Closed;
        let its = self.connections.used().filter(|(_, connection)| is_its(connection));
        let slots: Vec<u32> = its.map(|(slot, _)| slot).collect();
        for slot in slots {
            self.close(now, slot, up);
        }
        let peers: Vec<u32> =
            self.peers.used().filter(|(_, peer)| peer.ni == ni).map(|(slot, _)| slot).collect();
        for slot in peers {
            self.fail_queue(slot, Status::NeverSent(Cause::Device));
            self.forget_peer(slot);
        }
        self.nis.retain(|known| known.ni != ni);
    }
}
