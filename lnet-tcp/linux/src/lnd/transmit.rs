//! Pieces that leave: heads are copied, payload too where it is short, else it stays where it is.

use lnet_core::lnd::{Span, TxId, Uplink};
use lnet_core::time::Instant;
use lnet_io::memory::{Memory, ReadLease};
use lnet_io::reactor::tcp::StreamId;
use lnet_tcp_proto::{ConnId, FailedDial, Piece};

use super::TcpLnd;

/// The least payload that is not copied.
pub(super) const LEND_BYTES_MIN: u32 = 8192;
/// A stream with so many bytes queued gets no more until some have been sent. The kernel's copy of a long
/// message empties the caches, so that all code between two sends runs from memory: several such messages are
/// to leave by one send.
const QUEUED_BYTES_MAX: u64 = 4 << 20;

/// Payload on its way to the shard that sends it.
pub(super) enum Payload {
    /// Where it is.
    Lease(ReadLease),
    /// A copy.
    Bytes(Vec<u8>),
}

impl Payload {
    /// A copy of a span; `None` while it is being written to.
    pub(super) fn copy(memory: &Memory, span: &Span) -> Option<Self> {
        let mut bytes = Vec::with_capacity(span.length_bytes as usize);
        memory.try_fragments(span)?.for_each(|fragment| bytes.extend_from_slice(fragment));
        Some(Self::Bytes(bytes))
    }
}

/// How payload is got at.
pub(super) trait PayloadSource {
    fn memory(&self) -> &Memory;

    /// A lease on a span, if one can be had.
    fn lend(&mut self, span: &Span) -> Option<ReadLease>;

    /// Whether leases can be had at all.
    fn lends(&self) -> bool;
}

/// Where nothing can be lent.
pub(super) struct Copies<'a>(pub(super) &'a Memory);

impl PayloadSource for Copies<'_> {
    fn memory(&self) -> &Memory {
        self.0
    }

    fn lend(&mut self, _: &Span) -> Option<ReadLease> {
        None
    }

    fn lends(&self) -> bool {
        false
    }
}

/// Where long payload is lent.
pub(super) struct Leases<'a>(pub(super) &'a mut Memory);

impl PayloadSource for Leases<'_> {
    fn memory(&self) -> &Memory {
        self.0
    }

    fn lend(&mut self, span: &Span) -> Option<ReadLease> {
        self.0.lend_to_device(span)
    }

    fn lends(&self) -> bool {
        true
    }
}

impl TcpLnd {
    /// Queues what connections have to send, and starts to send it.
    pub(super) fn pump(&mut self, now: Instant, source: &mut impl PayloadSource) {
        while let Some(conn) = self.sock.poll_ready() {
            self.push_pieces(now, conn, source);
        }
        if source.lends() {
            for conn in std::mem::take(&mut self.stopped) {
                if self.links.get(conn.0 as usize).is_some_and(Option::is_some) {
                    self.push_pieces(now, conn, source);
                }
            }
        }
        if let Err(error) = self.streams.flush() {
            tracing::error!(%error, "streams");
        }
    }

    fn push_pieces(&mut self, now: Instant, conn: ConnId, source: &mut impl PayloadSource) {
        let Some(stream) = self.link_mut(conn).stream else { return };
        loop {
            let stopped = self.link_mut(conn).stopped.take();
            let is_full = stopped.is_none() && self.streams.queued_bytes(stream) >= QUEUED_BYTES_MAX;
            // What has been sent makes it ready again.
            if is_full {
                return;
            }
            let Some(mut piece) = stopped.or_else(|| self.sock.poll_send(now, conn)) else { return };
            if let Some((tx, span)) = piece.payload {
                if !self.push_payload(stream, &mut piece, tx, &span, source) {
                    self.link_mut(conn).stopped = Some(piece);
                    self.stopped.push(conn);
                    return;
                }
            } else {
                self.streams.queue_bytes(stream, piece.head());
            }
        }
    }

    /// Queues a head and its payload; false if that has to wait.
    fn push_payload(
        &mut self,
        stream: StreamId,
        piece: &mut Piece,
        tx: TxId,
        span: &Span,
        source: &mut impl PayloadSource,
    ) -> bool {
        if let Some(payload) = self.exchange.payload(tx) {
            match &payload {
                Payload::Lease(lease) if piece.has_checksum() => {
                    lease.fragments().for_each(|fragment| piece.cover(fragment));
                }
                Payload::Bytes(bytes) => piece.cover(bytes),
                Payload::Lease(_) => {}
            }
            self.streams.queue_bytes(stream, piece.head());
            match payload {
                Payload::Lease(lease) => {
                    self.lent_bytes += lease.length_bytes() as u64;
                    self.streams.queue_lease(stream, lease);
                }
                Payload::Bytes(bytes) => {
                    self.copied_out_bytes += bytes.len() as u64;
                    self.streams.queue_bytes(stream, &bytes);
                }
            }
            return true;
        }
        if span.length_bytes >= LEND_BYTES_MIN {
            if !source.lends() {
                return false;
            }
            if let Some(lease) = source.lend(span) {
                if piece.has_checksum() {
                    lease.fragments().for_each(|fragment| piece.cover(fragment));
                }
                self.lent_bytes += u64::from(span.length_bytes);
                self.streams.queue_bytes(stream, piece.head());
                self.streams.queue_lease(stream, lease);
                return true;
            }
        }
        // Written to at this moment: later.
        let Some(fragments) = source.memory().try_fragments(span) else { return false };
        if piece.has_checksum() {
            let Some(covered) = source.memory().try_fragments(span) else { return false };
            covered.for_each(|fragment| piece.cover(fragment));
        }
        self.copied_out_bytes += u64::from(span.length_bytes);
        self.streams.queue_bytes(stream, piece.head());
        fragments.for_each(|fragment| self.streams.queue_bytes(stream, fragment));
        true
    }

    /// Tells the shard what the protocol has found out; how many messages ended.
    pub(super) fn tell(&mut self, now: Instant, up: &mut impl Uplink) -> u32 {
        let mut count = 0;
        while let Some((tx, status)) = self.sock.poll_ended() {
            if !self.exchange.end(tx, status) {
                up.sent(now, tx, status);
            }
            count += 1;
        }
        while let Some(peer) = self.sock.poll_restart() {
            up.restarted(&peer);
        }
        while let Some(FailedDial { path, kind, errno }) = self.sock.poll_failed_dial() {
            if let Some(ip) = path.peer.ip() {
                let address = (ip, self.accept_port(kind)).into();
                self.failed_dials.note(now, path.peer, address, errno);
            }
        }
        while let Some(broken) = self.sock.poll_broken() {
            let port = Some(broken.remote.port()).filter(|port| *port != 0);
            let port = port.unwrap_or_else(|| self.accept_port(broken.kind));
            self.breaks.note(now, (broken.remote.ip(), port).into(), &broken);
        }
        self.breaks.tell(now);
        while let Some((path, report)) = self.sock.poll_report() {
            up.path_health(now, &path, report);
        }
        count
    }
}
