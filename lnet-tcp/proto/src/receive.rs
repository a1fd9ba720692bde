//! What arrives: heads of messages, and where their payload goes (LNet `socklnd_cb.c:
//! ksocknal_process_receive`).

use lnet_core::lnd::{PING_PORTAL, Path, RxId, Span, Uplink, Verdict};
use lnet_core::time::Instant;
use lnet_wire::header::{LARGE_HEADER_BYTES, SMALL_HEADER_BYTES};
use lnet_wire::socklnd::{
    Acks, CHECKSUM_RANGE, Checksum, ConnectionType, PREFIX_BYTES, Prefix, PrefixKind, Version,
};
use lnet_wire::{Body, Header, ProcessId};

use super::connection::{Connection, Phase, Reading, SockOrigin, head_bytes, prefix_bytes};
use super::{ConnId, Socklnd, SocklndEvent, Timer, Wants};

/// Payload of fewer bytes is there before its message is matched: one that comes slowly, or never, keeps no
/// entry from others.
const EARLY_MATCH_BYTES_MIN: u32 = 4096;
/// Payload of pushes is there before, up to so many bytes: a shard has one entry for those of all peers.
const PUSH_BYTES_MAX: u32 = 16 << 10;

/// How much of a message's payload is to be there before it is matched. That of a longer one goes straight
/// into its place.
pub(super) fn awaited_bytes(header: &Header) -> u32 {
    match (header.payload_length, &header.body) {
        (length_bytes, Body::Put { portal: PING_PORTAL, .. }) => length_bytes.min(PUSH_BYTES_MAX),
        (length_bytes @ ..EARLY_MATCH_BYTES_MIN, _) => length_bytes,
        _ => 0,
    }
}

impl Socklnd {
    /// What is to become of the next bytes of a connection.
    #[must_use]
    pub fn wants(&self, conn: ConnId) -> Wants {
        let Some(connection) = self.connections.get(conn.0) else { return Wants::Nothing };
        match (connection.phase, connection.incoming.reading()) {
            (Phase::Dialling | Phase::Closed, _) | (_, Reading::Delayed { .. }) => Wants::Nothing,
            (_, Reading::Head) if connection.outgoing.is_full_of_acks() => Wants::Nothing,
            (_, Reading::Head) => self.replays(conn.0).map_or(Wants::Head, Wants::Replay),
            (_, Reading::Behind) => self.replays(conn.0).map_or(Wants::Nothing, Wants::Replay),
            (_, Reading::Shelving { left_bytes }) => Wants::Shelve(*left_bytes),
            (_, Reading::Short(header)) => Wants::Whole(awaited_bytes(header)),
            (_, Reading::Payload { span, .. }) => Wants::Payload(*span),
            (_, Reading::Skip { left_bytes }) => Wants::Skip(*left_bytes),
        }
    }

    /// Whether what arrives on a connection is mostly long.
    #[must_use]
    pub fn receives_bulk(&self, conn: ConnId) -> bool {
        let connection = self.connections.get(conn.0);
        connection.is_some_and(|connection| connection.kind != ConnectionType::Control)
    }

    /// Bytes that are missing of the head of the next message on a connection; `None` before messages come,
    /// and within one's payload.
    #[must_use]
    pub fn missing_of_head(&self, conn: ConnId) -> Option<usize> {
        let connection = self.connections.get(conn.0).filter(|known| known.phase.receives_messages())?;
        connection.incoming.missing_of(head_bytes(connection.version))
    }

    /// A connection whose bytes had to wait, and need not any longer.
    pub fn poll_resumed(&mut self) -> Option<ConnId> {
        self.resumed.pop_front(&mut self.connections).map(ConnId)
    }

    /// Takes bytes of a connection that wants [`Wants::Head`]: how many of them. Ask for [`Wants`] again
    /// afterwards.
    pub fn take(&mut self, now: Instant, conn: ConnId, bytes: &[u8], up: &mut impl Uplink) -> usize {
        let connection = &mut self.connections[conn.0];
        connection.incoming.note(now);
        let used = match connection.phase {
            Phase::Accepted => self.take_request(now, conn.0, bytes, up),
            Phase::Requested => self.take_hello(now, conn.0, bytes, up),
            Phase::Greeting => self.take_answer(now, conn.0, bytes, up),
            Phase::Established | Phase::Doubted(_) => self.take_head(now, conn.0, bytes, up),
            Phase::Dialling | Phase::Closing | Phase::Closed => bytes.len(),
        };
        self.watch(conn.0);
        used
    }

    fn take_head(&mut self, now: Instant, slot: u32, bytes: &[u8], up: &mut impl Uplink) -> usize {
        let Connection { version, order, incoming, .. } = &mut self.connections[slot];
        let (prefix_bytes, head_bytes) = (prefix_bytes(*version), head_bytes(*version));
        let mut used = incoming.collect(bytes, prefix_bytes);
        let mut prefix = None;
        if let Some(collected) = incoming.collected().first_chunk().filter(|_| prefix_bytes != 0) {
            match Prefix::decode(collected, *order) {
                Ok(decoded) => prefix = Some(decoded),
                Err(_) => {
                    self.fault(now, slot, SocklndEvent::BadMessage, up);
                    return used;
                }
            }
        } else if prefix_bytes != 0 {
            return used;
        }
        if let Some(noop) = prefix.filter(|prefix| prefix.kind == PrefixKind::Noop) {
            self.noop(now, slot, &noop, up);
            return used;
        }
        used += incoming.collect(&bytes[used..], head_bytes);
        if incoming.collected().len() == head_bytes {
            self.message(now, slot, prefix, prefix_bytes, up);
        }
        used
    }

    fn noop(&mut self, now: Instant, slot: u32, prefix: &Prefix, up: &mut impl Uplink) {
        let connection = &mut self.connections[slot];
        let mut sum = Checksum::new();
        if connection.version == Version::V2 {
            sum.update(&without_checksum(connection.incoming.collected()));
        }
        connection.incoming.clear();
        if prefix.checksum != 0 && prefix.checksum != sum.value() {
            return self.fault(now, slot, SocklndEvent::BadChecksum, up);
        }
        // This node asks for no acknowledgements.
        if !matches!(prefix.acks(), Acks::None | Acks::Keepalive) {
            self.fault(now, slot, SocklndEvent::UnknownCookie, up);
        }
    }

    /// The head of a message is whole.
    fn message(
        &mut self,
        now: Instant,
        slot: u32,
        prefix: Option<Prefix>,
        prefix_bytes: usize,
        up: &mut impl Uplink,
    ) {
        let Connection { version, incoming, .. } = &mut self.connections[slot];
        let header = decode(*version, &incoming.collected()[prefix_bytes..]);
        let header = header.filter(|header| header.check_payload().is_ok());
        let Some(mut header) = header else { return self.fault(now, slot, SocklndEvent::BadMessage, up) };
        let mut sum = Checksum::new();
        if *version == Version::V2 {
            sum.update(&without_checksum(&incoming.collected()[..prefix_bytes]));
            sum.update(&incoming.collected()[prefix_bytes..]);
        }
        let (cookie, expected) = prefix.map_or((0, 0), |prefix| (prefix.cookies[0], prefix.checksum));
        incoming.begin(cookie, (expected != 0).then_some((expected, sum)));
        let SockOrigin { path, pid } = self.origin(slot);
        if pid & ProcessId::USER_FLAG != 0 {
            header.source = ProcessId { nid: path.peer, pid };
        }
        let ni = self.known_ni(path.ni);
        let destination = &header.destination.nid;
        let is_misaddressed =
            *destination != ni.nid && (destination.net() == ni.nid.net() || up.is_local(destination));
        if is_misaddressed {
            self.fault(now, slot, SocklndEvent::WrongDestination, up);
        } else if prefix.is_some_and(|prefix| !matches!(prefix.acks(), Acks::None | Acks::Keepalive)) {
            self.fault(now, slot, SocklndEvent::UnknownCookie, up);
        } else if expected != 0 && header.payload_length == 0 && expected != sum.value() {
            self.fault(now, slot, SocklndEvent::BadChecksum, up);
        } else if awaited_bytes(&header) != 0 {
            self.connections[slot].incoming.wait(header);
        } else {
            self.arrive(now, slot, &header, up);
        }
    }

    /// Goes on with a message that wants [`Wants::Whole`]: as many bytes are there.
    pub fn whole(&mut self, now: Instant, conn: ConnId, up: &mut impl Uplink) {
        let connection = &mut self.connections[conn.0];
        if let Reading::Short(header) = *connection.incoming.reading() {
            connection.incoming.note(now);
            self.arrive(now, conn.0, &header, up);
            self.watch(conn.0);
        }
    }

    /// The name of what arrives on a connection: one message at a time.
    pub(super) const fn rx(&self, slot: u32) -> RxId {
        RxId(self.first_name + slot)
    }

    /// Whom the messages of a connection come from.
    fn origin(&self, slot: u32) -> SockOrigin {
        let Connection { phase, peer, .. } = &self.connections[slot];
        match phase {
            Phase::Doubted(origin) => *origin,
            _ => self.peers[*peer].origin(),
        }
    }

    /// Asks the shard what becomes of a message.
    pub(super) fn arrive(&mut self, now: Instant, slot: u32, header: &Header, up: &mut impl Uplink) {
        if self.shelve(now, slot, header, up) {
            return;
        }
        // A request that comes behind those that had waited is new.
        self.connections[slot].is_replaying &= self.connections[slot].shelved_count > 0;
        let rx = self.rx(slot);
        let Path { ni, peer: from } = self.origin(slot).path;
        // Set before, since the shard may ask for the message to be resumed.
        self.connections[slot].incoming.delay(header.payload_length);
        let verdict = up.header(now, ni, &from, rx, header);
        self.decide(now, slot, header.payload_length, verdict, up);
    }

    fn decide(&mut self, now: Instant, slot: u32, length_bytes: u32, verdict: Verdict, up: &mut impl Uplink) {
        match verdict {
            Verdict::Delay => {}
            Verdict::Drop => self.skip(slot, length_bytes),
            Verdict::Deliver(span) => {
                let skip_bytes = length_bytes - span.length_bytes;
                self.connections[slot].incoming.deliver(span, skip_bytes);
                if span.length_bytes == 0 {
                    self.filled(now, slot, skip_bytes, up);
                }
            }
        }
    }

    /// Notes that so many bytes of what [`Wants::Payload`] or [`Wants::Skip`] said are in place, or passed
    /// over.
    ///
    /// # Panics
    /// If these are more than were wanted.
    pub fn placed(&mut self, now: Instant, conn: ConnId, count: u32, up: &mut impl Uplink) {
        let incoming = &mut self.connections[conn.0].incoming;
        incoming.note(now);
        match *incoming.reading() {
            Reading::Payload { span, skip_bytes } => {
                assert!(count <= span.length_bytes, "{count} bytes are placed in {span:?}");
                let offset_bytes = span.offset_bytes + u64::from(count);
                #[cfg(feature = "sabotage")]
                let offset_bytes = if self.sabotage.offset_stuck { span.offset_bytes } else { offset_bytes };
                let rest = Span { offset_bytes, length_bytes: span.length_bytes - count, ..span };
                incoming.deliver(rest, skip_bytes);
                if rest.length_bytes == 0 {
                    self.filled(now, conn.0, skip_bytes, up);
                } else if rest.is_routed() {
                    up.arrived(now, self.rx(conn.0), rest.offset_bytes as u32);
                }
            }
            Reading::Skip { left_bytes } => {
                assert!(count <= left_bytes, "{count} bytes of {left_bytes} are passed over");
                self.skip(conn.0, left_bytes - count);
            }
            Reading::Head
            | Reading::Short(_)
            | Reading::Shelving { .. }
            | Reading::Behind
            | Reading::Delayed { .. } => unreachable!("{conn:?} wants no payload"),
        }
        self.watch(conn.0);
    }

    /// The wanted part of a payload is in place.
    fn filled(&mut self, now: Instant, slot: u32, skip_bytes: u32, up: &mut impl Uplink) {
        if !self.connections[slot].incoming.is_right() {
            return self.fault(now, slot, SocklndEvent::BadChecksum, up);
        }
        self.skip(slot, skip_bytes);
        up.received(now, self.rx(slot), lnet_core::lnd::Status::Ok);
    }

    /// Passes over the rest of a message; with its last byte it is acknowledged.
    fn skip(&mut self, slot: u32, left_bytes: u32) {
        let connection = &mut self.connections[slot];
        if let Some(cookie) = connection.incoming.skip(left_bytes) {
            connection.outgoing.push_ack(cookie);
            self.ready.add(&mut self.connections, slot);
        }
    }

    /// Goes on with a message that was delayed.
    pub fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut impl Uplink) {
        let slot = rx.0 - self.first_name;
        let incoming = &mut self.connections[slot].incoming;
        let Reading::Delayed { length_bytes } = *incoming.reading() else {
            unreachable!("{rx:?} was not delayed")
        };
        incoming.note(now);
        self.decide(now, slot, length_bytes, verdict, up);
        // The connection may just have ended.
        if self.connections[slot].phase != Phase::Closed {
            self.watch(slot);
            self.resumed.add(&mut self.connections, slot);
        }
    }

    /// Sees to it that a message that has begun to arrive is looked at when its time is up.
    fn watch(&mut self, slot: u32) {
        let Some(connection) = self.connections.get(slot) else { return };
        if connection.phase == Phase::Established && connection.incoming.is_within_message() {
            let at = connection.incoming.received_at() + self.config.tunables.timeout;
            self.set_timer(Timer::Connection(slot), at);
        }
    }

    /// Whether a message has begun to arrive on a connection, and waits for nothing but its own bytes.
    #[must_use]
    pub fn is_within_message(&self, conn: ConnId) -> bool {
        let connection = self.connections.get(conn.0);
        connection.is_some_and(|known| known.phase.receives_messages() && known.incoming.is_within_message())
    }
}

fn decode(version: Version, bytes: &[u8]) -> Option<Header> {
    if version == Version::V4 {
        Header::decode_large(bytes.first_chunk::<LARGE_HEADER_BYTES>()?).ok()
    } else {
        Header::decode_small(bytes.first_chunk::<SMALL_HEADER_BYTES>()?).ok()
    }
}

/// A prefix with a zero in the place of its checksum.
fn without_checksum(prefix: &[u8]) -> [u8; PREFIX_BYTES] {
    let mut bytes = [0; PREFIX_BYTES];
    bytes.copy_from_slice(&prefix[..PREFIX_BYTES]);
    bytes[CHECKSUM_RANGE].fill(0);
    bytes
}
