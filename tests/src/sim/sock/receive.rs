//! What arrives at a lane of the `tcp` LND: from streams and from sibling shards.

use lnet_core::errno;
use lnet_core::lnd::{RxId, Span, Transmit, TxId, Uplink, Verdict};
use lnet_core::time::Instant;
use lnet_tcp_proto::{ConnId, Wants};

use super::super::uplink::Up;
use super::{Letter, Link, SockDriver, StreamEvent};
use crate::bpf::random::Random;

/// A port that nodes dial from.
const PRIVILEGED_PORT: u16 = 1023;

impl SockDriver {
    /// Works off timers and what has arrived.
    pub(in crate::sim) fn receive(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        for conn in std::mem::take(&mut self.closing) {
            // The kernel would take its time to end what is under way.
            if up.around.random.once_in(2) {
                self.sock.closed(now, conn, up);
                self.act(now, up);
            } else {
                self.closing.push(conn);
            }
        }
        if self.sock.poll_timeout().is_some_and(|at| at <= now) {
            self.sock.handle_timeout(now, up);
            self.act(now, up);
        }
        while let Some(event) = self.events.pop_front() {
            self.handle(now, event, up);
        }
        self.confirm(now, up);
        for conn in (0..self.links.len() as u32).map(ConnId) {
            self.feed(now, conn, up);
        }
        while let Some(letter) = self.letters.pop_front() {
            self.take(now, letter, up);
        }
    }

    fn handle(&mut self, now: Instant, event: StreamEvent, up: &mut Up<'_, '_>) {
        match event {
            StreamEvent::Accepted { end, ends } => match self.sock.accept(now, ends, up) {
                Some(conn) => {
                    self.act(now, up);
                    self.link(conn, Link::new(end, true, Vec::new()));
                }
                None => up.around.streams.close(now.0, end, up.around.random),
            },
            StreamEvent::Dialled { end, is_connected } => {
                let is_its = |link: &Option<Link>| link.as_ref().is_some_and(|link| link.end == end);
                let Some(slot) = self.links.iter().position(is_its) else { return };
                let conn = ConnId(slot as u32);
                if let Some(link) = self.link_mut(conn) {
                    link.is_connected = is_connected;
                }
                let result = if is_connected { Ok(PRIVILEGED_PORT) } else { Err(errno::EHOSTUNREACH) };
                self.sock.dialled(now, conn, result, up);
            }
        }
        self.act(now, up);
    }

    /// Takes what a sibling has sent.
    fn take(&mut self, now: Instant, letter: Letter, up: &mut Up<'_, '_>) {
        match letter {
            Letter::Message { from, transmit } => {
                let slot = self.foreign.iter().position(Option::is_none).unwrap_or_else(|| {
                    self.foreign.push(None);
                    self.foreign.len() - 1
                });
                self.foreign[slot] = Some((from, transmit.tx));
                let tx = TxId(self.first_foreign + slot as u32);
                let taken = self.sock.submit(now, &Transmit { tx, ..transmit });
                up.around.ledger.expect(taken.is_ok(), "there is room for messages of siblings", || {
                    format!("{:?}", transmit.header)
                });
            }
            Letter::Ended { tx, status } => up.sent(now, tx, status),
            Letter::Connection { end, handed, arrived } => match self.sock.adopt(now, &handed, up) {
                Some(conn) => {
                    self.act(now, up);
                    self.link(conn, Link::new(end, true, arrived));
                    self.feed(now, conn, up);
                }
                None => up.around.streams.close(now.0, end, up.around.random),
            },
        }
        self.act(now, up);
    }

    /// Goes on with what messages that were resumed have held up.
    pub(in crate::sim) fn settle(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        self.act(now, up);
        self.sock.look_at_shelved(now, up);
        while let Some(conn) = self.sock.poll_resumed() {
            if let Some(link) = self.link_mut(conn) {
                link.used_at = now;
            }
            self.feed(now, conn, up);
        }
        let links = self.links.iter().enumerate().filter_map(|(slot, link)| Some((slot, link.as_ref()?)));
        for (slot, link) in links {
            let is_late = now > link.used_at + self.timeout;
            let is_half = self.sock.is_within_message(ConnId(slot as u32));
            up.around.ledger.expect(!is_late || !is_half, "no half message outlives its time", || {
                format!("connection {slot} waits since {:?}", link.used_at)
            });
        }
    }

    pub(in crate::sim) fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut Up<'_, '_>) {
        self.sock.resume(now, rx, verdict, up);
        self.act(now, up);
    }

    /// Uses what has arrived on a stream, as far as the protocol wants it.
    pub(super) fn feed(&mut self, now: Instant, conn: ConnId, up: &mut Up<'_, '_>) {
        loop {
            let wants = self.sock.wants(conn);
            let Some(link) = self.link_mut(conn).filter(|link| link.is_connected) else { return };
            if let Wants::Replay(count) = wants {
                // The payload of a request that was shelved comes in front of what has arrived.
                let rest = link.shelved.split_off(count as usize);
                let mut bytes = std::mem::replace(&mut link.shelved, rest);
                bytes.append(&mut link.early);
                link.early = bytes;
                self.sock.replayed(now, conn, up);
                self.act(now, up);
                continue;
            }
            let (end, early_bytes) = (link.end, link.early.len());
            let arrived_bytes = up.around.streams.arrived_bytes(end);
            let lacks = matches!(wants, Wants::Whole(count) if early_bytes + arrived_bytes < count as usize);
            if lacks && arrived_bytes != 0 {
                // The stream has room for more only where this is read.
                link.early.extend(up.around.streams.peek(end, arrived_bytes));
                up.around.streams.read(now.0, end, arrived_bytes, up.around.random);
                continue;
            }
            if early_bytes == 0 && arrived_bytes == 0 || lacks {
                if up.around.streams.has_ended(end) {
                    self.sock.ended(now, conn, Some(errno::ECONNRESET), up);
                    self.act(now, up);
                }
                return;
            }
            let count = piece(up.around.random, if early_bytes != 0 { early_bytes } else { arrived_bytes });
            let bytes = match early_bytes {
                0 => up.around.streams.peek(end, count),
                _ => link.early[..count].to_vec(),
            };
            let used = match wants {
                Wants::Nothing | Wants::Replay(_) => return,
                Wants::Shelve(left_bytes) => {
                    let count = count.min(left_bytes as usize);
                    link.shelved.extend(&bytes[..count]);
                    self.sock.shelved(conn, count as u32);
                    count
                }
                Wants::Whole(_) => {
                    self.sock.whole(now, conn, up);
                    0
                }
                Wants::Head => self.sock.take(now, conn, &bytes, up),
                Wants::Skip(left_bytes) => {
                    let count = left_bytes.min(count as u32);
                    self.sock.placed(now, conn, count, up);
                    count as usize
                }
                Wants::Payload(span) => self.place(now, conn, &span, &bytes, up),
            };
            if let Some(link) = self.link_mut(conn) {
                link.used_at = now;
            }
            // The link stays until the protocol's actions are carried out.
            match self.link_mut(conn) {
                Some(link) if early_bytes != 0 => drop(link.early.drain(..used)),
                _ => up.around.streams.read(now.0, end, used, up.around.random),
            }
            self.act(now, up);
        }
    }

    /// Puts payload into its place; how much of it.
    fn place(&mut self, now: Instant, conn: ConnId, span: &Span, bytes: &[u8], up: &mut Up<'_, '_>) -> usize {
        let count = bytes.len().min(span.length_bytes as usize);
        let target = Span { length_bytes: count as u32, ..*span };
        up.around.counts.lent += u64::from(span.buffer.0.shard() != up.shard.id());
        match up.around.memory.bytes_mut(&target) {
            Some(to) => to.copy_from_slice(&bytes[..count]),
            None => {
                let found = || format!("{target:?} is written");
                up.around.ledger.fail("a descriptor lives as long as its spans", found);
            }
        }
        if let Some(sum) = self.sock.checksum_mut(conn) {
            sum.update(&bytes[..count]);
        }
        self.sock.placed(now, conn, count as u32, up);
        count
    }
}

/// How many of so many bytes are used at once.
const fn piece(random: &mut Random, most: usize) -> usize {
    match random.below(8) {
        0 => 1,
        1..4 => 1 + random.below(most),
        _ => most,
    }
}
