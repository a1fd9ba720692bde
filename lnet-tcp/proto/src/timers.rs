//! What happens after some time (LNet `socklnd_cb.c: ksocknal_check_peer_timeouts`).

use core::time::Duration;

use lnet_core::collections::NONE;
use lnet_core::errno;
use lnet_core::lnd::{Cause, Path, PathReport, Status, Uplink};
use lnet_core::time::Instant;
use lnet_wire::socklnd::{ConnectionType, Version};

use super::connection::{Phase, Silence};
use super::{ConnId, Socklnd, SocklndEvent, StreamOrder, Timer};

/// Keepalives are so far apart at least.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// How long a stream may take none of the bytes that it is to send, or the peer acknowledge none, before its
/// path counts as silent, at most: half of the time after which the stream is given up. TCP has sent again
/// three times by then, and a node that is not scheduled for a second is not silent.
const SILENT_AFTER: Duration = Duration::from_millis(1500);
/// How often a silent path is reported, and a stream asked whether the peer has what was sent, at least. So a
/// silent path is known after 2 s.
const SILENCE_INTERVAL: Duration = Duration::from_millis(500);

impl Socklnd {
    /// Ends what takes too long, dials again, keeps connections alive.
    pub fn handle_timeout(&mut self, now: Instant, up: &mut impl Uplink) {
        while let Some(due) = self.timers.pop_due(now) {
            match due.checked_sub(self.config.limits.connections) {
                None => self.connection_due(now, due, up),
                Some(peer) => self.peer_due(now, peer),
            }
        }
    }

    fn connection_due(&mut self, now: Instant, slot: u32, up: &mut impl Uplink) {
        let Some(connection) = self.connections.get(slot) else { return };
        let handshake_deadline = connection.handshake_deadline;
        match connection.phase {
            Phase::Established => self.established_due(now, slot, up),
            Phase::Closed => {}
            _ if now < handshake_deadline => self.set_timer(Timer::Connection(slot), handshake_deadline),
            Phase::Dialling | Phase::Greeting => self.dial_failed(now, slot, errno::ETIMEDOUT, up),
            Phase::Doubted(origin) => self.end_doubted(now, slot, origin, None, up),
            Phase::Accepted | Phase::Requested | Phase::Closing => {
                self.counters.add(SocklndEvent::HandshakeTimeout);
                self.close(now, slot, up);
            }
        }
    }

    fn established_due(&mut self, now: Instant, slot: u32, up: &mut impl Uplink) {
        let (timeout, keepalive) = (self.config.tunables.timeout, self.config.tunables.keepalive);
        let connection = &self.connections[slot];
        let stall = connection.stalls_at(timeout);
        #[cfg(feature = "sabotage")]
        let stall =
            stall.filter(|_| !self.sabotage.stall_unnoticed || !connection.incoming.is_within_message());
        if stall.is_some_and(|at| at <= now) {
            return self.give_up(now, slot, Silence::TakesNothing, up);
        }
        let mut keepalive_at = None;
        if keepalive != Duration::ZERO && self.carries_keepalives(slot) {
            let peer = self.connections[slot].peer;
            let quiet_until = self.moved_at(peer) + keepalive;
            let at = quiet_until.max(self.peers[peer].keepalive_at + KEEPALIVE_INTERVAL);
            keepalive_at = Some(at);
            if at <= now {
                self.peers[peer].keepalive_at = now;
                self.connections[slot].outgoing.push_keepalive();
                self.ready.add(&mut self.connections, slot);
                keepalive_at = Some(now + KEEPALIVE_INTERVAL);
            }
        }
        let silent_at = self.look_for_silence(now, slot);
        if let Some(at) = lnet_core::time::earliest([stall, keepalive_at, silent_at]) {
            self.set_timer(Timer::Connection(slot), at);
        }
    }

    /// Whether keepalives of a peer may leave by a connection.
    fn carries_keepalives(&self, slot: u32) -> bool {
        let connection = &self.connections[slot];
        let has_bulk_in = self.peers[connection.peer].count(ConnectionType::BulkIn) != 0;
        let carrier = if has_bulk_in { ConnectionType::BulkIn } else { ConnectionType::Control };
        connection.kind == carrier && connection.version >= Version::V3
    }

    /// When something last arrived from a peer, or TCP took something for it, on any connection.
    fn moved_at(&self, peer: u32) -> Instant {
        let connections = self.peers[peer].connections.iter(&self.connections);
        connections.map(|(_, connection)| connection.moved_at()).max().unwrap_or(Instant(0))
    }

    /// When something last arrived from a peer, on any connection.
    pub(super) fn last_received_at(&self, peer: u32) -> Instant {
        let connections = self.peers[peer].connections.iter(&self.connections);
        connections.map(|(_, connection)| connection.incoming.received_at()).max().unwrap_or(Instant(0))
    }

    fn silent_after(&self) -> Duration {
        SILENT_AFTER.min(self.config.tunables.timeout / 2)
    }

    fn silence_interval(&self) -> Duration {
        SILENCE_INTERVAL.min(self.config.tunables.timeout / 4)
    }

    /// Reports the path of a connection by which nothing moves that is to be sent, so that other messages
    /// take another one long before this stalls. When to look again.
    fn look_for_silence(&mut self, now: Instant, slot: u32) -> Option<Instant> {
        if self.connections[slot].progress.is_acknowledged() {
            return None;
        }
        // A peer that has no room for this message, and answers by other connections, is not silent.
        let received_at = self.last_received_at(self.connections[slot].peer);
        let progress = &self.connections[slot].progress;
        let is_sending = progress.is_sending();
        let silent_at = progress.sent_at().max(received_at) + self.silent_after();
        if is_sending && now >= silent_at {
            self.report_silence(slot, Silence::TakesNothing);
        } else if now >= received_at + self.silence_interval() {
            // TCP takes small messages for a long time that reach nothing.
            self.actions.push_back(StreamOrder::Ask { conn: ConnId(slot) });
        } else if progress.is_silent(Silence::AcknowledgesNothing) {
            self.end_silence(slot);
        }
        let next = now + self.silence_interval();
        Some(if is_sending && now < silent_at { next.min(silent_at) } else { next })
    }

    /// Says how many bytes that were sent on a connection are not known to have reached the peer's system,
    /// which [`StreamOrder::Ask`] wanted to know.
    pub fn unacknowledged(&mut self, now: Instant, conn: ConnId, bytes: u64, up: &mut impl Uplink) {
        let connection = self.connections.get_mut(conn.0);
        let Some(connection) = connection.filter(|known| known.phase == Phase::Established) else { return };
        let progress = &mut connection.progress;
        if progress.acknowledge(now, bytes) {
            if progress.is_silent(Silence::AcknowledgesNothing) {
                self.end_silence(conn.0);
            }
            return;
        }
        let (waits_since, peer) = (progress.acknowledged_at(), connection.peer);
        if now >= waits_since + self.config.tunables.timeout {
            #[cfg(feature = "sabotage")]
            if self.sabotage.stall_unnoticed {
                return;
            }
            self.give_up(now, conn.0, Silence::AcknowledgesNothing, up);
        } else if now >= waits_since.max(self.last_received_at(peer)) + self.silent_after() {
            self.report_silence(conn.0, Silence::AcknowledgesNothing);
        }
    }

    /// Ends all connections of a peer since one has made no progress for too long. Messages take another path
    /// before the dial that follows shows whether this one works.
    fn give_up(&mut self, now: Instant, slot: u32, why: Silence, up: &mut impl Uplink) {
        self.counters.add(SocklndEvent::Stalled);
        self.report_silence(slot, why);
        self.break_off(now, slot, Some(errno::ETIMEDOUT), up);
    }

    fn report_silence(&mut self, slot: u32, why: Silence) {
        let connection = &mut self.connections[slot];
        connection.progress.set_silence(Some(why));
        let peer = &self.peers[connection.peer];
        self.reports.push_back((Path { ni: peer.ni, peer: peer.nid }, PathReport::Silent));
    }

    /// Bytes of a connection move again.
    #[cold]
    pub(super) fn end_silence(&mut self, slot: u32) {
        let connection = &mut self.connections[slot];
        connection.progress.set_silence(None);
        if let Some(peer) = self.peers.get(connection.peer) {
            let path = Path { ni: peer.ni, peer: peer.nid };
            self.reports.push_back((path, PathReport::Answers { round_trip: None }));
        }
    }

    /// When a connection that has begun to send is to be looked at.
    pub(super) fn watch_sending(&mut self, now: Instant, slot: u32) {
        let at = now + self.silence_interval();
        self.set_timer(Timer::Connection(slot), at);
    }

    fn peer_due(&mut self, now: Instant, slot: u32) {
        loop {
            let Some(peer) = self.peers.get_mut(slot) else { return };
            let first = peer.queue.first();
            if first == NONE || self.items[first].deadline > now {
                break;
            }
            peer.queue.remove(&mut self.items, first);
            let tx = self.items.remove(first).transmit.tx;
            self.ended.push_back((tx, Status::NeverSent(Cause::System(errno::ETIMEDOUT))));
        }
        self.settle(now, slot);
    }
}
