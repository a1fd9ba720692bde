//! Bytes that arrive: to the protocol, and payload into memory.
//!
//! The head of a message is received alone where long payload came last on its connection. Elsewhere one
//! system call has head and short payload. Long payload is received straight into its place, as much as has
//! arrived, whenever the kernel says that there is some.

use std::collections::VecDeque;

use lnet_core::lnd::{Span, Uplink};
use lnet_core::time::Instant;
use lnet_io::memory::Memory;
use lnet_io::reactor::tcp::{Mode, ReceivedBytes, StreamId};
use lnet_tcp_proto::{ConnId, Wants};

use super::{Receiving, TcpLnd, WAITING_BYTES_MAX, errno_of};

/// The least payload that the kernel is to put in place: for less, a system call of its own costs more than
/// the copy.
const DIRECT_BYTES_MIN: u32 = 4096;
/// After payload of so many bytes the next message's head is received alone, so that nothing of its payload
/// has to be copied: long messages follow long ones. Where messages are short, one system call has head and
/// payload.
const LONG_BYTES_MIN: u32 = 64 << 10;
/// Receives straight into place, of one connection, before others have their turn.
const TURN_MAX: u32 = 16;

impl TcpLnd {
    pub(super) fn received(
        &mut self,
        now: Instant,
        id: StreamId,
        bytes: ReceivedBytes,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) {
        let Some(conn) = self.by_stream.of(id) else {
            self.exchange.arrived(id, self.streams.bytes(&bytes));
            return self.streams.give_back(bytes);
        };
        let link = self.link_mut(conn);
        if link.receiving == Receiving::Once {
            link.receiving = Receiving::Nothing;
        }
        link.pending.push_back((bytes, 0));
        self.feed(now, id, up, memory);
    }

    /// Nothing is under way any more to be received.
    pub(super) fn paused(&mut self, now: Instant, id: StreamId, up: &mut impl Uplink, memory: &mut Memory) {
        let Some(conn) = self.by_stream.of(id) else { return };
        self.link_mut(conn).receiving = Receiving::Nothing;
        self.feed(now, id, up, memory);
    }

    /// Uses what has arrived on a stream, as far as the protocol wants it, and receives more.
    pub(super) fn feed(&mut self, now: Instant, id: StreamId, up: &mut impl Uplink, memory: &mut Memory) {
        let mut turns = 0..TURN_MAX;
        while let Some(conn) = self.by_stream.of(id) {
            let wants = self.sock.wants(conn);
            if let Wants::Replay(count) = wants {
                self.replay(now, conn, count as usize, up);
                continue;
            }
            let link = self.link_mut(conn);
            let is_empty = link.pending.is_empty() && link.early.is_empty();
            let waits = match wants {
                Wants::Nothing => true,
                Wants::Whole(count) => link.arrived_bytes() < count as usize,
                Wants::Head | Wants::Payload(_) | Wants::Skip(_) | Wants::Shelve(_) | Wants::Replay(_) => {
                    false
                }
            };
            if waits && self.streams.lacks_buffers() && !self.set_aside(conn) {
                self.sock.overrun(now, conn, up);
                return self.act(now, up);
            }
            if is_empty && let Some(span) = self.target_of(conn, wants) {
                if !self.receive_in_place(now, (conn, id), &span, &mut turns, up, memory) {
                    return;
                }
                continue;
            }
            if waits || is_empty {
                return self.receive(now, conn, id, wants, up);
            }
            if !self.step(now, conn, wants, up, memory) {
                // Its place is lent: it is looked at again in the next turn.
                return self.waiting.push(id);
            }
            self.act(now, up);
        }
    }

    /// Puts the payload of a request that was shelved in front of what has arrived.
    fn replay(&mut self, now: Instant, conn: ConnId, count: usize, up: &mut impl Uplink) {
        let link = self.link_mut(conn);
        let rest = link.shelved.split_off(count);
        let mut bytes = std::mem::replace(&mut link.shelved, rest);
        bytes.append(&mut link.early);
        link.early = bytes;
        self.early_bytes += count;
        self.sock.replayed(now, conn, up);
        self.act(now, up);
    }

    /// Takes bytes that have to wait out of the buffers that all streams share; false if there are too many.
    /// A connection may have half of the room that is left, so that one that sends without end leaves some
    /// for the others.
    fn set_aside(&mut self, conn: ConnId) -> bool {
        let pending = core::mem::take(&mut self.link_mut(conn).pending);
        let mut early = core::mem::take(&mut self.link_mut(conn).early);
        let room = WAITING_BYTES_MAX.saturating_sub(self.early_bytes) / 2;
        let before = early.len();
        for (bytes, used) in pending {
            if early.len() - before <= room {
                early.extend(&self.streams.bytes(&bytes)[used..]);
            }
            self.streams.give_back(bytes);
        }
        let added = early.len() - before;
        self.early_bytes += added;
        self.link_mut(conn).early = early;
        added <= room
    }

    /// Uses some of the bytes that are pending; false if their place cannot be written to now.
    fn step(
        &mut self,
        now: Instant,
        conn: ConnId,
        wants: Wants,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) -> bool {
        let link =
            self.links[conn.0 as usize].as_mut().unwrap_or_else(|| unreachable!("{conn:?} has a link"));
        let bytes = match link.pending.front() {
            _ if !link.early.is_empty() => link.early.as_slices().0,
            Some((received, used)) => &self.streams.bytes(received)[*used..],
            None => return true,
        };
        let left = bytes.len();
        let count = match wants {
            Wants::Nothing | Wants::Replay(_) => 0,
            Wants::Whole(_) => {
                self.sock.whole(now, conn, up);
                0
            }
            Wants::Shelve(count) => {
                let count = left.min(count as usize);
                link.shelved.extend(&bytes[..count]);
                self.sock.shelved(conn, count as u32);
                count
            }
            Wants::Head => self.sock.take(now, conn, bytes, up),
            Wants::Skip(count) => {
                let count = left.min(count as usize);
                self.sock.placed(now, conn, count as u32, up);
                count
            }
            Wants::Payload(span) => {
                let count = left.min(span.length_bytes as usize);
                link.follows_long &= count < span.length_bytes as usize;
                let target = Span { length_bytes: count as u32, ..span };
                let Some(fragments) = memory.try_fragments_mut(&target) else { return false };
                fragments.copy_from(&bytes[..count]);
                if let Some(sum) = self.sock.checksum_mut(conn) {
                    sum.update(&bytes[..count]);
                }
                self.copied_bytes += count as u64;
                self.sock.placed(now, conn, count as u32, up);
                count
            }
        };
        // The link stays until the protocol's actions are carried out.
        if !link.early.is_empty() {
            link.early.drain(..count);
            self.early_bytes -= count;
            if link.early.is_empty() {
                // The queue gives its memory back.
                link.early = VecDeque::new();
            }
        } else if let Some((_, used)) = link.pending.front_mut() {
            *used += count;
            if count == left
                && let Some((bytes, _)) = link.pending.pop_front()
            {
                self.streams.give_back(bytes);
            }
        }
        true
    }

    /// Where the next payload goes that is to be received straight into its place, if that can be done now.
    fn target_of(&mut self, conn: ConnId, wants: Wants) -> Option<Span> {
        let Wants::Payload(span) = wants else { return None };
        let is_long = span.length_bytes >= DIRECT_BYTES_MIN && self.sock.checksum_mut(conn).is_none();
        let link = self.link_mut(conn);
        let is_free = link.receiving == Receiving::Nothing && link.dial.is_none() && !link.has_ended;
        (is_free && (is_long || link.is_placing)).then_some(span)
    }

    /// Receives payload that has arrived straight into its place. Whether to go on; else the connection is
    /// looked at again when more has arrived, or its place is free.
    fn receive_in_place(
        &mut self,
        now: Instant,
        (conn, id): (ConnId, StreamId),
        span: &Span,
        turns: &mut impl Iterator,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) -> bool {
        let link = self.link_mut(conn);
        if !std::mem::replace(&mut link.is_placing, true) {
            link.follows_long = span.length_bytes >= LONG_BYTES_MIN;
        }
        let Some(target) = memory.try_fragments_mut(span) else {
            self.waiting.push(id);
            return false;
        };
        let received = turns.next().and_then(|_| self.streams.receive_now(id, target));
        let Some(bytes) = received else {
            self.link_mut(conn).receiving = Receiving::Awaited;
            self.streams.await_bytes(id);
            return false;
        };
        self.link_mut(conn).is_placing = bytes < span.length_bytes as usize;
        self.placed_bytes += bytes as u64;
        self.sock.placed(now, conn, bytes as u32, up);
        self.act(now, up);
        true
    }

    /// Sees to it that more arrives, if it is wanted.
    fn receive(&mut self, now: Instant, conn: ConnId, id: StreamId, wants: Wants, up: &mut impl Uplink) {
        let is_bulk = self.sock.receives_bulk(conn);
        let is_checked = self.sock.checksum_mut(conn).is_some();
        let head_bytes = self.sock.missing_of_head(conn);
        let link = self.link_mut(conn);
        if link.dial.is_some() {
            return;
        }
        // The rest of a message that is to be whole does not come any more.
        let is_used = link.pending.is_empty() && link.early.is_empty();
        if link.has_ended && (is_used || matches!(wants, Wants::Whole(_))) {
            let error = link.error.map(errno_of);
            self.sock.ended(now, conn, error, up);
            return self.act(now, up);
        }
        match (link.receiving, wants) {
            (Receiving::Many, Wants::Nothing) => {
                link.receiving = Receiving::Pausing;
                self.streams.pause(id);
            }
            // The messages before were short. This is not.
            (Receiving::Many, Wants::Payload(span))
                if (is_bulk && span.length_bytes >= DIRECT_BYTES_MIN
                    || span.length_bytes >= LONG_BYTES_MIN)
                    && !is_checked =>
            {
                link.receiving = Receiving::Pausing;
                self.streams.pause(id);
            }
            (Receiving::Nothing, Wants::Head | Wants::Payload(_) | Wants::Skip(_) | Wants::Whole(_))
                if !link.has_ended =>
            {
                let mode = match head_bytes {
                    _ if !is_bulk => Mode::Many,
                    Some(bytes) if link.follows_long => Mode::UpTo(bytes as u32),
                    _ => Mode::Once,
                };
                link.receiving = if mode == Mode::Many { Receiving::Many } else { Receiving::Once };
                self.streams.receive(id, mode);
            }
            _ => {}
        }
    }
}
