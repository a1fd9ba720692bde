//! Connections that this node opens (LNet `socklnd_cb.c: ksocknal_connect`).

use core::time::Duration;

use lnet_core::errno;
use lnet_core::lnd::{Cause, NiId, Path, PathReport, Status, Uplink};
use lnet_core::time::Instant;
use lnet_wire::socklnd::{CONNECTION_REQUEST_BYTES_MAX, ConnectionRequest, ConnectionType, Hello, Version};
use lnet_wire::{Nid, ProcessId};

use super::connection::{Connection, PRIVILEGED_PORT_MAX, Phase};
use super::peer::{self, REFUSALS_MAX, SockPeer, is_port};
use super::{ConnId, Ends, FailedDial, Socklnd, SocklndEvent, StreamOrder, Timer};

/// The acceptor's port; the driver knows the one that the node really uses.
const ANY_PORT: u16 = 0;

impl Socklnd {
    /// The peer's slot: known, or new, where need be in the place of the one that has been idle for longest.
    /// `None` if there is no room.
    pub(super) fn peer(&mut self, ni: NiId, nid: &Nid, pid: u32) -> Option<u32> {
        let known = self.known_peer(ni, nid, pid);
        if known.is_some() {
            return known;
        }
        if self.peers.is_full() {
            self.forget_idle();
        }
        self.peers.insert(SockPeer::new(ni, *nid, pid))
    }

    /// The slot of a peer that is known.
    pub(super) fn known_peer(&self, ni: NiId, nid: &Nid, pid: u32) -> Option<u32> {
        let is = |peer: &SockPeer| (peer.ni, peer.pid) == (ni, pid) && peer.nid == *nid;
        self.peers.find(|| peer::words(ni, nid, pid), is)
    }

    fn forget_idle(&mut self) {
        // What has begun since a peer was idle does not take it off the list.
        while let Some(slot) = self.idle.pop_front(&mut self.peers) {
            if self.peers[slot].is_idle() {
                return self.forget_peer(slot);
            }
        }
    }

    /// Frees a peer's slot.
    pub(super) fn forget_peer(&mut self, slot: u32) {
        self.clear_timer(Timer::Peer(slot));
        self.idle.discard(&mut self.peers, slot);
        self.peers.remove(slot);
    }

    /// Dials a connection to a peer that lacks one, unless one is being dialled or it is too early.
    pub(super) fn dial_lacking(&mut self, now: Instant, slot: u32) {
        let peer = &self.peers[slot];
        let local = self.known_ni(peer.ni);
        let (Some(to), Some(from)) = (peer.nid.ip(), local.nid.ip()) else { return };
        // A peer knows each connection from an unprivileged port as a process of its own, and answers by that
        // one alone: of the types only control connections carry answers of all sizes.
        let is_unvouched =
            peer.connections.iter(&self.connections).any(|(_, connection)| connection.is_unvouched);
        let can_lack = !is_unvouched && !is_port(peer.pid) && peer.dialling.is_none();
        let Some(kind) = peer.lacks(local.conns_per_peer).filter(|_| can_lack) else { return };
        if now < peer.retry_at {
            let at = peer.retry_at;
            return self.set_timer(Timer::Peer(slot), at);
        }
        let deadline = now + self.config.tunables.timeout;
        let ends = Ends { remote: (to, ANY_PORT).into(), local: from };
        let mut connection = Connection::new(now, Phase::Dialling, ends, deadline);
        (connection.ni, connection.peer, connection.kind) = (Some(peer.ni), slot, kind);
        connection.version = peer.version.unwrap_or_else(|| default_version(&peer.nid, &local.nid));
        let Some(conn) = self.store(connection) else {
            self.counters.add(SocklndEvent::ConnectionsFull);
            let at = now + self.config.tunables.min_reconnect;
            return self.set_timer(Timer::Peer(slot), at);
        };
        self.peers[slot].dialling = Some(conn);
        self.set_timer(Timer::Connection(conn), deadline);
        self.counters.add(SocklndEvent::Dialled);
        self.actions.push_back(StreamOrder::Dial { conn: ConnId(conn), ni: local.ni, from, to, kind });
    }

    /// A stream was connected, from a port that is given, or could not be, for which the system gives an
    /// errno, positive.
    pub fn dialled(&mut self, now: Instant, conn: ConnId, result: Result<u16, u8>, up: &mut impl Uplink) {
        let slot = conn.0;
        let port = match result {
            Ok(port) => port,
            Err(errno) => return self.dial_failed(now, slot, errno, up),
        };
        let connection = &mut self.connections[slot];
        (connection.phase, connection.is_unvouched) = (Phase::Greeting, port > PRIVILEGED_PORT_MAX);
        let (peer, kind, version) = (&self.peers[connection.peer], connection.kind, connection.version);
        let local = self.known_ni(peer.ni);
        let target = ConnectionRequest { target: peer.nid };
        let hello = Hello {
            version,
            order: lnet_wire::socklnd::ByteOrder::Little,
            source: ProcessId { nid: local.nid, pid: self.config.pid },
            destination: ProcessId { nid: peer.nid, pid: 0 },
            source_incarnation: local.incarnation,
            destination_incarnation: 0,
            connection: Some(kind),
        };
        let mut request = [0; CONNECTION_REQUEST_BYTES_MAX];
        let length = target.encode(&mut request);
        self.say_bytes(slot, &request[..length]);
        if !self.say(slot, &hello) {
            self.dial_failed(now, slot, errno::EPROTO, up);
        }
    }

    /// The answer of a peer that was dialled.
    pub(super) fn take_answer(
        &mut self,
        now: Instant,
        slot: u32,
        bytes: &[u8],
        up: &mut impl Uplink,
    ) -> usize {
        let (used, parsed) = self.connections[slot].incoming.parse(bytes, Hello::parse);
        let Some(parsed) = parsed else { return used };
        let &Connection { peer, kind, version, .. } = &self.connections[slot];
        let known = &self.peers[peer];
        match parsed {
            Ok(hello) if hello.connection.is_none() => self.refused(now, slot, hello.version, up),
            Ok(hello)
                if hello.version == version
                    && hello.connection.map(ConnectionType::inverted) == Some(kind)
                    && (hello.source.nid, hello.source.pid) == (known.nid, known.pid) =>
            {
                let is_new_life =
                    known.incarnation.is_some_and(|incarnation| incarnation != hello.source_incarnation);
                if is_new_life {
                    self.counters.add(SocklndEvent::Restarted);
                    self.close_all(now, peer, None, up);
                }
                self.establish(now, slot, peer, kind, &hello, up);
                self.launch(now, peer);
            }
            Ok(_) | Err(_) => {
                self.counters.add(SocklndEvent::BadHello);
                self.dial_failed(now, slot, errno::EPROTO, up);
            }
        }
        used
    }

    /// The peer has said NONE.
    fn refused(&mut self, now: Instant, slot: u32, version: Version, up: &mut impl Uplink) {
        let (peer, offered) = (self.connections[slot].peer, self.connections[slot].version);
        self.counters.add(SocklndEvent::Refused);
        let min_reconnect = self.config.tunables.min_reconnect;
        let known = &mut self.peers[peer];
        if version != offered && !known.has_changed_version {
            // Another protocol: the peer's own. A peer that names one after the other is not dialled at once
            // for each.
            (known.version, known.has_changed_version) = (Some(version), true);
        } else {
            known.refusals = known.refusals.saturating_add(1);
            if known.refusals >= REFUSALS_MAX && !known.has_all_types() {
                known.backoff = known.backoff.max(min_reconnect);
                return self.back_off(now, slot, errno::ECONNREFUSED, up);
            }
            known.retry_at = now + min_reconnect;
        }
        self.close(now, slot, up);
        self.settle(now, peer);
    }

    /// A connection could not be made, by this errno. What waits for it alone ends.
    pub(super) fn dial_failed(&mut self, now: Instant, slot: u32, errno: u8, up: &mut impl Uplink) {
        let known = &mut self.peers[self.connections[slot].peer];
        (known.refusals, known.has_changed_version) = (0, false);
        self.counters.add(SocklndEvent::DialFailed);
        self.back_off(now, slot, errno, up);
    }

    /// Ends a dial; the next one is later each time.
    fn back_off(&mut self, now: Instant, slot: u32, errno: u8, up: &mut impl Uplink) {
        let Connection { peer, kind, .. } = self.connections[slot];
        self.close(now, slot, up);
        let tunables = &self.config.tunables;
        let known = &mut self.peers[peer];
        known.backoff = (known.backoff * 2).clamp(tunables.min_reconnect, tunables.max_reconnect);
        known.retry_at = now + known.backoff;
        known.failure = errno;
        let path = Path { ni: known.ni, peer: known.nid };
        self.failed_dials.push_back(FailedDial { path, kind, errno });
        if known.connections.is_empty() {
            self.reports.push_back((path, PathReport::Silent));
            self.fail_queue(peer, Status::NeverSent(Cause::System(errno)));
        }
        self.settle(now, peer);
    }

    /// A connection carries messages from now on.
    pub(super) fn establish(
        &mut self,
        now: Instant,
        slot: u32,
        peer: u32,
        kind: ConnectionType,
        hello: &Hello,
        up: &mut impl Uplink,
    ) {
        let known = &mut self.peers[peer];
        if known.dialling == Some(slot) {
            known.dialling = None;
            known.refusals = 0;
        }
        known.has_changed_version = false;
        (known.version, known.incarnation) = (Some(hello.version), Some(hello.source_incarnation));
        let former = known.last_incarnation.replace(hello.source_incarnation);
        let is_new_life = former.is_some_and(|former| former != hello.source_incarnation);
        let origin = known.origin();
        (known.backoff, known.retry_at) = (Duration::ZERO, now);
        *known.count_mut(kind) += 1;
        if known.connections.is_empty() {
            self.shares.move_peer(None, Some(self.connections[slot].ends.remote.ip()));
        }
        known.connections.push_back(&mut self.connections, slot);
        if !is_port(known.pid) {
            self.shares.add_named(&mut self.connections, slot);
        }
        let connection = &mut self.connections[slot];
        (connection.phase, connection.peer, connection.kind) = (Phase::Established, peer, kind);
        (connection.version, connection.order) = (hello.version, hello.order);
        connection.incoming.note(now);
        connection.progress.begin(now);
        self.reports.push_back((origin.path, PathReport::Answers { round_trip: None }));
        if is_new_life {
            self.restarts.push_back(origin.path.peer);
            self.close_doubted(now, peer, |_, _| true, up);
        }
        self.counters.add(SocklndEvent::Established);
        self.clear_timer(Timer::Connection(slot));
        let keepalive = self.config.tunables.keepalive;
        if keepalive != Duration::ZERO {
            self.set_timer(Timer::Connection(slot), now + keepalive);
        }
    }

    /// Looks what a peer needs after something has ended; one that needs nothing is forgotten.
    pub(super) fn settle(&mut self, now: Instant, slot: u32) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        if peer.connections.is_empty() {
            peer.incarnation = None;
            if peer.is_idle() {
                (peer.version, peer.has_changed_version) = (None, false);
                // How long to wait is remembered for as long again.
                let forgotten_at =
                    (peer.retry_at + peer.backoff).max(peer.lost_at + self.config.tunables.timeout);
                self.clear_timer(Timer::Peer(slot));
                if forgotten_at <= now {
                    self.forget_peer(slot);
                } else {
                    self.set_timer(Timer::Peer(slot), forgotten_at);
                    self.idle.discard(&mut self.peers, slot);
                    self.idle.push_back(&mut self.peers, slot);
                }
                return;
            }
        }
        self.launch(now, slot);
    }
}

/// The protocol that is offered to a peer of which nothing is known.
fn default_version(peer: &Nid, local: &Nid) -> Version {
    if peer.is_large() || local.is_large() { Version::V4 } else { Version::V3 }
}
