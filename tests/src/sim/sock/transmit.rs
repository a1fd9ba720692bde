//! What leaves by a lane of the `tcp` LND.

use lnet_core::lnd::{Full, Span, Transmit, Uplink};
use lnet_core::time::Instant;
use lnet_tcp_proto::{ConnId, home_of};

use super::super::uplink::Up;
use super::{Letter, Outgoing, SockDriver};

/// A connection with so many bytes queued gets no more until some have been sent.
const QUEUED_BYTES_MAX: u64 = 1 << 16;
/// Payload is read from its descriptor in pieces of so many bytes at most.
const PIECE_BYTES_MAX: u32 = 1 << 15;
/// A connection has so many bytes queued at most: those that are allowed, a head and the longest message.
const MEMORY_BYTES_MAX: u64 = QUEUED_BYTES_MAX + 256 + (1 << 20);

impl SockDriver {
    /// Takes a message, or has no room for it.
    pub(in crate::sim) fn submit(&mut self, now: Instant, transmit: &Transmit, up: &mut Up<'_, '_>) -> bool {
        let serving = self.serving[usize::from(transmit.ni.0)];
        let (own, home) = (up.shard.id(), home_of(&transmit.next_hop, serving));
        if home != own {
            up.around.letters.push((home.0, Letter::Message { from: own.0, transmit: *transmit }));
            return true;
        }
        !matches!(self.sock.submit(now, transmit), Err(Full(_)))
    }

    /// Sends what there is to be sent, and tells the shard what the protocol has found out.
    pub(in crate::sim) fn transmit(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        self.act(now, up);
        while let Some(conn) = self.sock.poll_ready() {
            self.queue(now, conn, up);
        }
        for conn in (0..self.links.len() as u32).map(ConnId) {
            self.write(now, conn, up);
        }
        if up.around.random.once_in(2) {
            self.confirm(now, up);
        }
        self.act(now, up);
        self.tell(now, up);
    }

    /// Queues the pieces of a connection, as many as it may have.
    fn queue(&mut self, now: Instant, conn: ConnId, up: &mut Up<'_, '_>) {
        while let Some(Some(link)) = self.links.get_mut(conn.0 as usize)
            && link.queued_bytes < QUEUED_BYTES_MAX
            && let Some(piece) = self.sock.poll_send(now, conn)
        {
            link.queued_bytes += piece.head().len() as u64;
            link.outgoing.push_back(Outgoing::Head(piece.head().to_vec()));
            if let Some((_, span)) = piece.payload {
                link.queued_bytes += u64::from(span.length_bytes);
                link.outgoing.push_back(Outgoing::Payload(span));
            }
            let queued_bytes = link.queued_bytes;
            up.around.ledger.expect(queued_bytes <= MEMORY_BYTES_MAX, "memory is bounded", || {
                format!("{conn:?} has {queued_bytes} bytes queued")
            });
        }
    }

    /// Writes what is queued, as far as the stream takes it.
    fn write(&mut self, now: Instant, conn: ConnId, up: &mut Up<'_, '_>) {
        let Some(link) = self.link_mut(conn).filter(|link| link.is_connected) else { return };
        while let Some(front) = link.outgoing.front_mut() {
            let room_bytes = up.around.streams.room_bytes(link.end);
            if room_bytes == 0 {
                return;
            }
            let mut bytes = Vec::new();
            let is_whole = match front {
                Outgoing::Head(head) => {
                    bytes.extend(head.drain(..head.len().min(room_bytes)));
                    head.is_empty()
                }
                Outgoing::Payload(span) => {
                    let length_bytes = span.length_bytes.min(PIECE_BYTES_MAX).min(room_bytes as u32);
                    let piece = Span { length_bytes, ..*span };
                    let is_there = up.around.memory.read(&piece, &mut bytes);
                    up.around.ledger.expect(is_there, "a descriptor lives as long as its spans", || {
                        format!("{piece:?} is read")
                    });
                    span.offset_bytes += u64::from(length_bytes);
                    span.length_bytes -= length_bytes;
                    span.length_bytes == 0
                }
            };
            up.around.streams.write(now.0, link.end, &bytes, up.around.random);
            link.written_bytes += bytes.len() as u64;
            link.queued_bytes -= bytes.len() as u64;
            if is_whole {
                link.outgoing.pop_front();
            }
        }
    }

    /// Tells the protocol what has been written.
    pub(super) fn confirm(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        for conn in (0..self.links.len() as u32).map(ConnId) {
            let Some(link) = self.link_mut(conn) else { continue };
            let count = std::mem::take(&mut link.written_bytes);
            if count != 0 {
                self.sock.sent(now, conn, count, up);
                self.act(now, up);
            }
        }
    }

    /// Tells the shard what the protocol has found out.
    pub(super) fn tell(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        while let Some((tx, status)) = self.sock.poll_ended() {
            let foreign = tx.0.checked_sub(self.first_foreign).map(|slot| self.foreign[slot as usize].take());
            match foreign {
                None => up.sent(now, tx, status),
                Some(Some((from, tx))) => up.around.letters.push((from, Letter::Ended { tx, status })),
                Some(None) => {
                    let found = || format!("{tx:?} of a sibling ended as {status:?}");
                    up.around.ledger.fail("a message ends once at its sender", found);
                }
            }
        }
        while self.sock.poll_failed_dial().is_some() || self.sock.poll_broken().is_some() {}
        while let Some(peer) = self.sock.poll_restart() {
            up.around.counts.peers_restarted += 1;
            up.shard.restarted(&peer);
        }
        while let Some((mut path, report)) = self.sock.poll_report() {
            if let Some(slot) = up.desk.slots[usize::from(path.ni.0)] {
                path.ni = slot;
                up.shard.path_health(now, &path, report);
            }
        }
    }
}
