//! What leaves: which connection carries it, and in which pieces (LNet `socklnd_cb.c:
//! ksocknal_find_conn_locked`, `ksocknal_queue_tx_locked`).

use lnet_core::collections::NONE;
use lnet_core::errno;
use lnet_core::lnd::{Cause, Full, NiId, Status, Transmit, TxId, Uplink};
use lnet_core::time::Instant;
use lnet_wire::header::{LARGE_HEADER_BYTES, SMALL_HEADER_BYTES};
use lnet_wire::socklnd::{Checksum, PREFIX_BYTES, Prefix, Version};
use lnet_wire::{Header, Nid, ProcessId};

use super::connection::{Connection, HEAD_BYTES_MAX, Item, Phase, Silence, head_bytes, prefix_bytes};
use super::peer::REFUSALS_MAX;
use super::{ConnId, Piece, Socklnd, SocklndEvent, Timer};

impl Socklnd {
    /// Takes a message, whose end [`Socklnd::poll_ended`] tells.
    ///
    /// # Errors
    /// [`Full`] names the message when there is no room for it.
    pub fn submit(&mut self, now: Instant, transmit: &Transmit) -> Result<(), Full<TxId>> {
        let &Transmit { tx, ni, next_hop, header, .. } = transmit;
        if self.ni(ni).is_none() {
            self.ended.push_back((tx, Status::NeverSent(Cause::Device)));
            return Ok(());
        }
        let ProcessId { nid, pid } = header.destination;
        let is_user = nid == next_hop && pid & ProcessId::USER_FLAG != 0;
        let connected = Some(pid).filter(|_| nid == next_hop).and_then(|pid| self.connected(ni, &nid, pid));
        let pid = if is_user { pid } else { ProcessId::LUSTRE_PID };
        let Some(peer) = connected.or_else(|| self.peer(ni, &next_hop, pid)) else {
            self.counters.add(SocklndEvent::PeersFull);
            self.ended.push_back((tx, Status::NeverSent(Cause::System(errno::ENOBUFS))));
            return Ok(());
        };
        let known = &mut self.peers[peer];
        known.is_active |= !is_user && known.connections.is_empty();
        // After few refusals the next dial is near.
        let is_failing = !(1..REFUSALS_MAX).contains(&known.refusals);
        let is_dead_end = is_user || known.dialling.is_none() && now < known.retry_at && is_failing;
        if known.connections.is_empty() && is_dead_end {
            self.ended.push_back((tx, Status::NeverSent(Cause::System(known.failure))));
            self.settle(now, peer);
            return Ok(());
        }
        let deadline = now + self.config.tunables.timeout;
        let item = Item::new(*transmit, deadline);
        let Ok(item) = self.items.insert(item) else {
            self.settle(now, peer);
            return Err(Full(tx));
        };
        self.peers[peer].queue.push_back(&mut self.items, item);
        self.launch(now, peer);
        Ok(())
    }

    /// A peer with this pid that is connected. Its pid need not be that of kernel nodes.
    fn connected(&self, ni: NiId, nid: &Nid, pid: u32) -> Option<u32> {
        let peer = self.known_peer(ni, nid, pid)?;
        (!self.peers[peer].connections.is_empty()).then_some(peer)
    }

    /// Gives the messages that wait to connections, and opens those that are lacking.
    pub(super) fn launch(&mut self, now: Instant, peer: u32) {
        loop {
            let item = self.peers[peer].queue.first();
            if item == NONE {
                break;
            }
            let payload_bytes = self.items[item].transmit.header.payload_length;
            let Some(slot) = self.choose(peer, payload_bytes) else { break };
            self.peers[peer].queue.remove(&mut self.items, item);
            self.turn += 1;
            self.connections[slot].push(&mut self.items, item, self.turn);
            self.ready.add(&mut self.connections, slot);
        }
        let first = self.peers[peer].queue.first();
        if first != NONE {
            let at = self.items[first].deadline;
            self.set_timer(Timer::Peer(peer), at);
        }
        let known = &self.peers[peer];
        if known.is_active && !known.connections.is_empty() || first != NONE {
            self.dial_lacking(now, peer);
        }
    }

    /// The connection of a peer for a message with so much payload: one of the preferred type, else another
    /// one that carries it; of these the one with the least to send, and in turn among equals.
    fn choose(&self, peer: u32, payload_bytes: u32) -> Option<u32> {
        let min_bulk_bytes = self.config.tunables.min_bulk_bytes;
        let carriers = self.peers[peer].connections.iter(&self.connections);
        let rank = |(slot, connection): (u32, &Connection)| {
            let is_preferred = connection.carries(payload_bytes, min_bulk_bytes)?;
            Some(((!is_preferred, connection.load()), slot))
        };
        carriers.filter_map(rank).min().map(|(_, slot)| slot)
    }

    /// A connection that has pieces to be sent.
    pub fn poll_ready(&mut self) -> Option<ConnId> {
        self.ready.pop_front(&mut self.connections).map(ConnId)
    }

    /// The next piece that a connection sends. A driver that stops before there is none polls on after
    /// [`Socklnd::sent`].
    pub fn poll_send(&mut self, now: Instant, conn: ConnId) -> Option<Piece> {
        let connection = self.connections.get_mut(conn.0).filter(|connection| connection.has_pieces())?;
        connection.progress.poll(now);
        let outgoing = &mut connection.outgoing;
        let mut piece = Piece { head: [0; HEAD_BYTES_MAX], length: 0, payload: None, checksum: None };
        if let Some(greeting) = outgoing.pop_greeting() {
            (piece.head, piece.length) = greeting;
        } else if let Some(cookie) = outgoing.pop_ack() {
            piece.set_prefix(&Prefix::acknowledgement(cookie));
            self.begin_checksum(conn.0, &mut piece);
            self.resumed.add(&mut self.connections, conn.0);
        } else if outgoing.pop_keepalive() {
            piece.set_prefix(&Prefix::keepalive());
        } else {
            return self.poll_message(now, conn.0, piece);
        }
        self.connections[conn.0].progress.add(piece.length.into());
        self.watch_sending(now, conn.0);
        Some(piece)
    }

    /// Gives what leaves by a connection its checksum, if that has one: kernel nodes know them in protocol 2
    /// alone.
    fn begin_checksum(&mut self, slot: u32, piece: &mut Piece) {
        if self.config.tunables.sends_checksums && self.connections[slot].version == Version::V2 {
            piece.begin_checksum(core::mem::take(&mut self.is_checksum_error_due));
        }
    }

    fn poll_message(&mut self, now: Instant, slot: u32, mut piece: Piece) -> Option<Piece> {
        let connection = &mut self.connections[slot];
        while let Some(item) = connection.pop(&mut self.items) {
            let Transmit { tx, header, payload, .. } = self.items[item].transmit;
            if !piece.set_message(connection.version, &header) {
                self.items.remove(item);
                self.ended.push_back((tx, Status::NeverSent(Cause::System(errno::EPROTO))));
                continue;
            }
            connection.begin(&mut self.items, item);
            piece.payload = payload.map(|span| (tx, span));
            self.begin_checksum(slot, &mut piece);
            self.watch_sending(now, slot);
            return Some(piece);
        }
        None
    }

    /// Notes that so many more bytes of a connection have been sent: the messages that end with them have
    /// ended.
    pub fn sent(&mut self, now: Instant, conn: ConnId, bytes: u64, up: &mut impl Uplink) {
        let connection = &mut self.connections[conn.0];
        let sent_bytes = connection.progress.send(now, bytes);
        #[cfg(feature = "sabotage")]
        let sent_bytes = if self.sabotage.sent_early { u64::MAX } else { sent_bytes };
        while let Some(tx) = connection.outgoing.pop_sent(&mut self.items, sent_bytes) {
            connection.outgoing.note_messages_sent(now);
            self.ended.push_back((tx, Status::Ok));
        }
        if connection.progress.is_silent(Silence::TakesNothing) {
            self.end_silence(conn.0);
        }
        let connection = &mut self.connections[conn.0];
        if connection.phase == Phase::Closing && connection.is_drained() {
            return self.close(now, conn.0, up);
        }
        if connection.has_pieces() {
            self.ready.add(&mut self.connections, conn.0);
        }
    }
}

impl Piece {
    fn set_prefix(&mut self, prefix: &Prefix) {
        if let Some(bytes) = self.head.first_chunk_mut() {
            prefix.encode(bytes);
        }
        self.length = PREFIX_BYTES as u8;
    }

    /// Gives the head a checksum, so far of itself, and if asked for of a byte that is not sent.
    fn begin_checksum(&mut self, is_wrong: bool) {
        let mut sum = Checksum::new();
        if is_wrong {
            sum.update(&[1]);
        }
        self.checksum = Some(sum);
        let Self { head, length, .. } = *self;
        self.cover(&head[..usize::from(length)]);
    }

    /// Whether the header can be written in this version.
    fn set_message(&mut self, version: Version, header: &Header) -> bool {
        let begin = prefix_bytes(version);
        if begin != 0 {
            self.set_prefix(&Prefix::message());
        }
        self.length = head_bytes(version) as u8;
        let bytes = &mut self.head[begin..];
        if version == Version::V4 {
            bytes.first_chunk_mut::<LARGE_HEADER_BYTES>().map(|bytes| header.encode_large(bytes)).is_some()
        } else {
            let bytes = bytes.first_chunk_mut::<SMALL_HEADER_BYTES>();
            bytes.is_some_and(|bytes| header.encode_small(bytes).is_ok())
        }
    }
}
