//! Connections that others open: connection request, HELLO, and what becomes of them (LNet `acceptor.c`,
//! `socklnd.c: ksocknal_create_conn`).

use core::net::IpAddr;

use lnet_core::collections::NONE;
use lnet_core::lnd::{Cause, Status, Uplink};
use lnet_core::time::Instant;
use lnet_wire::socklnd::{ConnectionRequest, ConnectionType, Hello, HelloError, Version};
use lnet_wire::{Nid, ProcessId};

use super::connection::{Connection, PRIVILEGED_PORT_MAX, Phase};
use super::peer::{CONNECTIONS_OF_TYPE_MAX, is_port};
use super::{
    Accept, ConnId, Ends, HandedOver, Socklnd, SocklndEvent, SocklndNi, StreamOrder, Timer, home_of,
};

/// Names that one address has on a shard besides its own: kernel nodes take a name from any address, and so
/// one host could be any number of peers.
const NAMES_PER_ADDRESS_MAX: usize = 4;

/// Handshakes that one address may have under way, however few there may be in all.
const HANDSHAKES_PER_ADDRESS_MIN: u32 = 4;

impl Socklnd {
    /// A stream that a peer has opened; `None` if it is to be closed at once.
    pub fn accept(&mut self, now: Instant, ends: Ends, up: &mut impl Uplink) -> Option<ConnId> {
        let is_privileged = ends.remote.port() <= PRIVILEGED_PORT_MAX;
        if self.config.tunables.accept == Accept::Secure && !is_privileged {
            self.counters.add(SocklndEvent::Unprivileged);
            return None;
        }
        if let Some(oldest) = self.handshake_too_many(ends.remote.ip()) {
            self.counters.add(SocklndEvent::HandshakesFull);
            self.close(now, oldest, up);
        }
        let deadline = now + self.config.tunables.accept_timeout;
        let slot = self.insert(Connection::new(now, Phase::Accepted, ends, deadline))?;
        self.handshakes.push_back(slot);
        self.shares.add_handshake(ends.remote.ip());
        self.set_timer(Timer::Connection(slot), deadline);
        self.counters.add(SocklndEvent::Accepted);
        Some(ConnId(slot))
    }

    /// The handshake that makes room for one with an address: the oldest with that, where it has an eighth of
    /// all that may be, or the oldest of all.
    fn handshake_too_many(&self, address: IpAddr) -> Option<u32> {
        let most = self.config.limits.handshakes;
        let share = (most / 8).max(HANDSHAKES_PER_ADDRESS_MIN);
        if self.shares.of(address).handshakes >= share {
            let is_its = |slot: &&u32| self.connections[**slot].ends.remote.ip() == address;
            return self.handshakes.iter().find(is_its).copied();
        }
        self.handshakes.front().filter(|_| self.handshakes.len() >= most as usize).copied()
    }

    /// Takes a connection off the handshakes under way, if it is one.
    pub(super) fn end_handshake(&mut self, slot: u32) {
        if let Some(at) = self.handshakes.iter().position(|other| *other == slot) {
            self.handshakes.remove(at);
            self.shares.remove_handshake(self.connections[slot].ends.remote.ip());
        }
    }

    /// A stream whose HELLO another shard has read; `None` if it is to be closed at once.
    pub fn adopt(&mut self, now: Instant, handed: &HandedOver, up: &mut impl Uplink) -> Option<ConnId> {
        let local = *self.ni(handed.ni)?;
        let deadline = now + self.config.tunables.accept_timeout;
        let slot = self.insert(Connection::new(now, Phase::Requested, handed.ends, deadline))?;
        self.set_timer(Timer::Connection(slot), deadline);
        self.connections[slot].ni = Some(handed.ni);
        self.answer(now, slot, &local, &handed.hello, up);
        if self.connections[slot].phase != Phase::Closed {
            return Some(ConnId(slot));
        }
        // The driver has no such connection, so it is not told to close it.
        self.actions.retain(|action| *action != StreamOrder::Close { conn: ConnId(slot) });
        self.closed(now, ConnId(slot), up);
        None
    }

    fn insert(&mut self, connection: Connection) -> Option<u32> {
        let (most, used) = (self.config.limits.connections, self.connections.used_count());
        let is_admitted = self.shares.admits_connection(connection.ends.remote.ip(), most, used);
        let slot = if is_admitted { self.store(connection) } else { None };
        if slot.is_none() {
            self.counters.add(SocklndEvent::ConnectionsFull);
        }
        slot
    }

    /// Stores a connection, if there is room for it.
    pub(super) fn store(&mut self, connection: Connection) -> Option<u32> {
        let address = connection.ends.remote.ip();
        let slot = self.connections.insert(connection).ok()?;
        self.shares.add_connection(address);
        Some(slot)
    }

    /// Frees the slot of a connection that has no peer any more.
    pub(super) fn forget(&mut self, slot: u32) {
        self.shares.remove_connection(self.connections[slot].ends.remote.ip());
        self.connections.vacate(slot);
    }

    pub(super) fn take_request(
        &mut self,
        now: Instant,
        slot: u32,
        bytes: &[u8],
        up: &mut impl Uplink,
    ) -> usize {
        let (used, parsed) = self.connections[slot].incoming.parse(bytes, ConnectionRequest::parse);
        match parsed {
            None => {}
            Some(Ok(ConnectionRequest { target })) => match self.nis.iter().find(|ni| ni.nid == target) {
                Some(local) => {
                    let (conn, ni) = (ConnId(slot), local.ni);
                    let connection = &mut self.connections[slot];
                    (connection.phase, connection.ni) = (Phase::Requested, Some(ni));
                    self.actions.push_back(StreamOrder::Serve { conn, ni });
                }
                None => {
                    self.counters.add(SocklndEvent::UnknownTarget);
                    self.close(now, slot, up);
                }
            },
            Some(Err(error)) => {
                self.counters.add(SocklndEvent::BadRequest);
                match error.answer() {
                    Some(answer) => self.say_last(slot, &answer),
                    None => self.close(now, slot, up),
                }
            }
        }
        used
    }

    /// The HELLO of a dialler.
    pub(super) fn take_hello(
        &mut self,
        now: Instant,
        slot: u32,
        bytes: &[u8],
        up: &mut impl Uplink,
    ) -> usize {
        let (used, parsed) = self.connections[slot].incoming.parse(bytes, Hello::parse);
        let connection = &self.connections[slot];
        let (ends, local) = (connection.ends, connection.ni.map(|ni| self.known_ni(ni)));
        let (Some(parsed), Some(local)) = (parsed, local) else { return used };
        match parsed.map(|hello| Hello { source: identity(&hello, &ends, &local), ..hello }) {
            // A peer of the NI is on its net, and has an address of its own; in the name of `0@lo` it would
            // be taken for this node.
            Ok(hello) if hello.connection.is_some() && is_peers(&hello.source.nid, &local) => {
                self.end_handshake(slot);
                let to = home_of(&hello.source.nid, local.serving);
                if to == self.config.shard {
                    self.answer(now, slot, &local, &hello, up);
                } else {
                    self.part(now, slot);
                    self.forget(slot);
                    let handed = HandedOver { ni: local.ni, hello, ends };
                    self.actions.push_back(StreamOrder::HandOver { conn: ConnId(slot), to, handed });
                }
            }
            Err(HelloError::Version { .. }) => {
                self.counters.add(SocklndEvent::BadHello);
                let version = self.connections[slot].version;
                let unknown = ProcessId { nid: Nid::ANY, pid: 0 };
                self.refuse(now, slot, &local, version, unknown, up);
            }
            Ok(_) | Err(_) => {
                self.counters.add(SocklndEvent::BadHello);
                self.close(now, slot, up);
            }
        }
        used
    }

    /// Takes the connection of a dialler whose HELLO has been read, or refuses it.
    fn answer(&mut self, now: Instant, slot: u32, local: &SocklndNi, hello: &Hello, up: &mut impl Uplink) {
        let Hello { source, version, source_incarnation, .. } = *hello;
        let Some(kind) = hello.connection.map(ConnectionType::inverted) else { return };
        let ends = self.connections[slot].ends;
        let (is_at_home, is_own) = (self.is_home(&source.nid, &ends), self.is_own(&source.nid));
        let home = is_at_home.then_some(&source.nid);
        let from = source.nid.ip().filter(|_| is_at_home).unwrap_or(ends.remote.ip());
        let known = self.known_peer(local.ni, &source.nid, source.pid);
        let is_connected = known.is_some_and(|known| !self.peers[known].connections.is_empty());
        // Names are few already, while each port is a peer.
        let most = self.config.limits.peers;
        if is_port(source.pid) && !is_connected && !self.shares.admits_peer(ends.remote.ip(), most) {
            self.counters.add(SocklndEvent::PeersFull);
            return self.close(now, slot, up);
        }
        let mut peer = self.peer(local.ni, &source.nid, source.pid);
        let mut noted = None;
        if peer.is_none() && (is_at_home || !is_own) && !is_port(source.pid) {
            // A name that is refused ends none that there is.
            if !*noted.insert(up.came_from(&source.nid, from)) {
                self.counters.add(SocklndEvent::NamesFull);
                return self.close(now, slot, up);
            }
            self.make_room_for_name(now, slot, home, up);
            peer = self.peer(local.ni, &source.nid, source.pid);
        }
        let Some(peer) = peer else {
            self.counters.add(SocklndEvent::PeersFull);
            return self.close(now, slot, up);
        };
        if !is_at_home && (is_own || self.connection_from(peer, true).is_some()) {
            // Kernel nodes take a name from any address; so any node could end another one's connections,
            // or speak as this one.
            self.counters.add(SocklndEvent::Impostor);
            self.refuse(now, slot, local, version, source, up);
            return self.settle(now, peer);
        }
        if is_at_home {
            let ended = self.close_from_elsewhere(now, peer, up);
            (0..ended).for_each(|_| self.counters.add(SocklndEvent::Impostor));
        }
        let known = &self.peers[peer];
        let is_new_life = known.incarnation.is_some_and(|incarnation| incarnation != source_incarnation)
            || known.incarnation.is_some() && known.version != Some(version);
        let loses_race = known.dialling.is_some() && source.nid.to_bytes() < local.nid.to_bytes();
        if loses_race {
            self.counters.add(SocklndEvent::RaceLost);
        } else if is_new_life {
            self.counters.add(SocklndEvent::Restarted);
            self.close_all(now, peer, None, up);
        } else if self.has_enough(peer, kind, slot, local.conns_per_peer) {
            self.counters.add(SocklndEvent::Duplicate);
        } else {
            // The dialler's word for this end goes back as its own name: kernel nodes do so.
            let answer = Hello {
                source: ProcessId { nid: local.nid, pid: self.config.pid },
                destination: ProcessId { nid: source.nid, ..hello.destination },
                source_incarnation: local.incarnation,
                connection: Some(kind),
                ..*hello
            };
            let is_noted = noted.unwrap_or_else(|| up.came_from(&source.nid, from));
            if !is_noted {
                self.counters.add(SocklndEvent::NamesFull);
            }
            if is_noted && self.say(slot, &answer) {
                if self.peers[peer].connections.is_empty() && !is_port(source.pid) {
                    self.make_room_for_name(now, slot, home, up);
                }
                self.establish(now, slot, peer, kind, hello, up);
                return self.launch(now, peer);
            }
            self.close(now, slot, up);
            return self.settle(now, peer);
        }
        self.refuse(now, slot, local, version, source, up);
        self.settle(now, peer);
    }

    /// Ends the name that has been silent for longest of those that are claimed from the address of a
    /// connection, where there are as many as may be. At home a name is a process id with this NID, else a
    /// NID of another address.
    fn make_room_for_name(&mut self, now: Instant, slot: u32, home: Option<&Nid>, up: &mut impl Uplink) {
        let address = self.connections[slot].ends.remote.ip();
        let mut names = [(Instant(0), NONE); NAMES_PER_ADDRESS_MAX];
        let mut count = 0;
        for (other, connection) in self.shares.named(address).iter(&self.connections) {
            let peer = &connection.peer;
            if self.is_at_home(*peer, other).then_some(&self.peers[*peer].nid) != home {
                continue;
            }
            let moved_at = connection.moved_at();
            if let Some(known) = names[..count].iter_mut().find(|(_, known)| known == peer) {
                known.0 = known.0.max(moved_at);
            } else if count < NAMES_PER_ADDRESS_MAX {
                names[count] = (moved_at, *peer);
                count += 1;
            }
        }
        if count == NAMES_PER_ADDRESS_MAX
            && let Some((_, silent)) = names.into_iter().min()
        {
            self.counters.add(SocklndEvent::NamesFull);
            self.close_all(now, silent, None, up);
            self.fail_queue(silent, Status::NeverSent(Cause::Reset));
            self.settle(now, silent);
        }
    }

    /// Whether the other end of a connection has the address of this peer's NID.
    fn is_at_home(&self, peer: u32, slot: u32) -> bool {
        self.is_home(&self.peers[peer].nid, &self.connections[slot].ends)
    }

    /// Whether a name comes from its own address. Connections of this host come from any of its addresses,
    /// over IPv6 from the one that they lead to: one with the same address at both ends speaks for the NIs
    /// of this node.
    pub(super) fn is_home(&self, nid: &Nid, ends: &Ends) -> bool {
        let remote = ends.remote.ip();
        nid.ip() == Some(remote) || remote == ends.local && self.is_own(nid)
    }

    fn is_own(&self, nid: &Nid) -> bool {
        self.nis.iter().any(|ni| ni.nid == *nid)
    }

    /// A connection of a peer that comes from its own address, or one that does not.
    pub(super) fn connection_from(&self, peer: u32, is_at_home: bool) -> Option<u32> {
        let mut connections = self.peers[peer].connections.iter(&self.connections);
        connections.find(|(slot, _)| self.is_at_home(peer, *slot) == is_at_home).map(|(slot, _)| slot)
    }

    /// Whether a peer has as many connections of this type between these addresses as it may have. One of
    /// this host may have more, since both ends of it have the same addresses; none has more than can be
    /// counted. Connections that this node has dialled from an unprivileged port do not count: their peer
    /// knows it by that port, and sends by others what goes to its name.
    fn has_enough(&self, peer: u32, kind: ConnectionType, slot: u32, conns_per_peer: u8) -> bool {
        let Ends { remote, local } = self.connections[slot].ends;
        let max = if kind == ConnectionType::Control { 1 } else { usize::from(conns_per_peer) };
        let is_like = |other: &Connection| {
            let same = (other.kind, other.ends.remote.ip(), other.ends.local) == (kind, remote.ip(), local);
            same && !other.is_unvouched
        };
        let known = &self.peers[peer];
        let present = known.connections.iter(&self.connections);
        known.count(kind) >= CONNECTIONS_OF_TYPE_MAX
            || remote.ip() != local && present.filter(|(_, other)| is_like(other)).count() >= max
    }

    /// Says NONE to a dialler, and closes the connection.
    fn refuse(
        &mut self,
        now: Instant,
        slot: u32,
        local: &SocklndNi,
        version: Version,
        to: ProcessId,
        up: &mut impl Uplink,
    ) {
        let refusal = Hello {
            version,
            order: self.connections[slot].order,
            source: ProcessId { nid: local.nid, pid: self.config.pid },
            destination: to,
            source_incarnation: local.incarnation,
            destination_incarnation: 0,
            connection: None,
        };
        self.end_handshake(slot);
        if self.say(slot, &refusal) {
            self.connections[slot].phase = Phase::Closing;
        } else {
            self.close(now, slot, up);
        }
    }

    /// Has a HELLO be the next that is sent; false if it cannot be written in its version.
    pub(super) fn say(&mut self, slot: u32, hello: &Hello) -> bool {
        let mut bytes = [0; lnet_wire::socklnd::HELLO_BYTES_MAX];
        let Ok(length) = hello.encode(&mut bytes) else { return false };
        self.say_bytes(slot, &bytes[..length]);
        true
    }

    /// Has bytes be sent in front of all others.
    pub(super) fn say_bytes(&mut self, slot: u32, bytes: &[u8]) {
        self.connections[slot].outgoing.greet(bytes);
        self.ready.add(&mut self.connections, slot);
    }

    /// Sends bytes, and closes the connection.
    fn say_last(&mut self, slot: u32, bytes: &[u8]) {
        self.end_handshake(slot);
        self.say_bytes(slot, bytes);
        self.connections[slot].phase = Phase::Closing;
    }
}

/// Whether a NID can be that of a peer of an NI.
fn is_peers(nid: &Nid, local: &SocklndNi) -> bool {
    nid.net() == local.nid.net() && nid.can_name_an_ni()
}

/// Who a dialler is: what it says, if its port shows that its system vouches for it (LNet `socklnd_cb.c:
/// ksocknal_recv_hello`).
fn identity(hello: &Hello, ends: &Ends, local: &SocklndNi) -> ProcessId {
    if ends.remote.port() <= PRIVILEGED_PORT_MAX {
        return hello.source;
    }
    let nid = Nid::new_ip(local.nid.net(), ends.remote.ip()).unwrap_or(hello.source.nid);
    ProcessId { nid, pid: u32::from(ends.remote.port()) | ProcessId::USER_FLAG }
}
