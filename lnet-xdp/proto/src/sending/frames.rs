//! Messages and control frames become frames.

use lnet_core::collections::{Link, List, NONE};
use lnet_core::lnd::Span;
use lnet_core::time::Instant;
use lnet_wire::frame::{
    FIRST_HEADERS_BYTES, FRAGMENT_UNIT_BYTES, FRAME_HEADER_BYTES, FrameHeader, RECORD_BYTES, Transfer,
};
use lnet_wire::header::LARGE_HEADER_BYTES;
use lnet_wire::steer::SteerKey;

use super::SendingSide;
use super::congestion::frame_cost;
use super::item::{Cargo, SentItem};
use super::message::{Queued, Stage};
use crate::contract::{BUNDLE_MAX, Content, Control, OutgoingFrame, SMALL_BYTES_MAX};
use crate::sessions::{BASE_BYTES, Session, Sessions};

/// Fragments of messages that were begun before the queue has its turn.
const TURN_FRAGMENTS: u32 = 4;
/// Messages of the queue that are looked at for a frame that several share: with two rails half of them go by
/// the other one.
const BUNDLE_LOOKS_MAX: usize = 2 * BUNDLE_MAX;
/// Messages of several frames that are begun at once.
const BEGUN_MAX: u32 = 4;

/// Bytes before the payload of a first fragment.
pub(crate) const HEADERS_BYTES: u32 = FIRST_HEADERS_BYTES as u32;

/// Payload of a message that may share a frame with others: what a frame has room for, unless runs spare the
/// kernel's work for each frame anyway. `run_min_bytes` is the payload of the shortest message that leaves in
/// some, by the NI that the session is of.
const fn shared_bytes_max(session: &Session, run_min_bytes: u32) -> u32 {
    if session.runs { run_min_bytes - 1 } else { u32::MAX }
}

impl SendingSide {
    /// The next numbered frame to be sent; an acknowledgement may be added to it.
    pub(crate) fn poll(&mut self, sessions: &mut Sessions) -> Option<OutgoingFrame> {
        while let Some(stream) = self.ready.pop_front(&mut self.streams) {
            let frame = self.next_frame(stream, sessions);
            if frame.is_some() {
                self.go_on(stream);
                self.polled_to = (self.streams[stream].peer, self.streams[stream].shard);
                return frame;
            }
        }
        None
    }

    /// The next frame of a stream, if it has one that may be sent now.
    fn next_frame(&mut self, slot: u32, sessions: &mut Sessions) -> Option<OutgoingFrame> {
        let now = sessions.local.now;
        let pending = self.streams[slot].pending.first();
        let stream = &self.streams[slot];
        let is_fresh_due = stream.fresh_due != 0 && stream.probes_due == 0 && !stream.begun.is_empty();
        if pending != NONE && !(is_fresh_due && self.free_items() != 0) {
            let Cargo::Fragment { message, offset, length } = self.items[pending].cargo else {
                return self.control_frame(slot, pending, sessions);
            };
            let own = self.messages[message].path;
            let path = self.find_path(slot, own, sessions)?;
            let room = self.room_bytes(slot, sessions.datagram_max(path), (offset, length))?;
            if room < length && !self.split(slot, pending, room) {
                self.is_short_of_items = true;
                return None;
            }
            return self.message_frame(slot, pending, path, sessions);
        }
        if self.free_items() == 0 {
            self.is_short_of_items = true;
            return None;
        }
        let message = if is_fresh_due { stream.begun.first() } else { self.next_message(slot, sessions)? };
        let offset = self.messages[message].next_offset;
        let rest = self.messages[message].there_bytes() - offset;
        let path = self.find_path(slot, self.messages[message].path, sessions)?;
        let longer = self.longer_piece((slot, path), (offset, rest), sessions);
        let length = match longer {
            Some(length) => length,
            None => self.room_bytes(slot, sessions.datagram_max(path), (offset, rest))?,
        };
        let item = self.cut(message, offset, length);
        let stream = &mut self.streams[slot];
        stream.fresh_due = stream.fresh_due.saturating_sub(1);
        stream.owes(now);
        stream.pending.push_front(&mut self.items, item);
        self.message_frame(slot, item, path, sessions)
    }

    /// Sent items that fragments may still have.
    #[inline]
    pub(crate) fn free_items(&self) -> u32 {
        let fragments = self.items.used_count() - self.control_count;
        (self.items.capacity() - self.items_reserved).saturating_sub(fragments)
    }

    /// The message whose turn it is: of those begun, several fragments for each of the queue.
    fn next_message(&self, slot: u32, sessions: &Sessions) -> Option<u32> {
        let stream = &self.streams[slot];
        let (begun, queued) = (stream.begun.first(), stream.queue.first());
        let Some(message) = self.messages.get(queued) else { return (begun != NONE).then_some(begun) };
        let fits = || message.total_bytes() <= sessions.datagram_max(message.path) - HEADERS_BYTES;
        let queue_first =
            begun == NONE || (stream.turn >= TURN_FRAGMENTS && (stream.begun_count < BEGUN_MAX || fits()));
        Some(if queue_first { queued } else { begun })
    }

    /// How much of `length` bytes at `offset` of a message one frame takes in a datagram of `limit` bytes;
    /// `None` if the window is full.
    fn room_bytes(&self, stream: u32, limit: u32, (offset, length): (u32, u32)) -> Option<u32> {
        let taken = piece_bytes(limit, (offset, length));
        let stream = &self.streams[stream];
        let cost = frame_cost(headers_bytes(offset) + taken);
        (stream.has_room_for(cost) || stream.in_flight_bytes == 0 || stream.probes_due != 0).then_some(taken)
    }

    /// How much of `rest` bytes at `offset` of a message goes in a frame that tries whether a narrow path
    /// carries longer ones, if one is to.
    #[inline]
    fn longer_piece(
        &self,
        (stream, path): (u32, u32),
        (offset, rest): (u32, u32),
        sessions: &mut Sessions,
    ) -> Option<u32> {
        let now = sessions.local.now;
        let limit = sessions.paths[path].width.longer_bytes(now, sessions.ends_max(path))?;
        let length = self.room_bytes(stream, limit, (offset, rest))?;
        let is_longer = headers_bytes(offset) + length > sessions.datagram_max(path);
        is_longer.then(|| sessions.paths[path].width.note_try(now))?;
        Some(length)
    }

    /// Takes the next fragment of a message.
    fn cut(&mut self, slot: u32, offset: u32, length: u32) -> u32 {
        let cargo = Cargo::Fragment { message: slot, offset, length };
        let item = self.new_item(cargo).unwrap_or_else(|| unreachable!("there was room"));
        self.unqueue(slot);
        let message = &mut self.messages[slot];
        let stream = &mut self.streams[message.stream];
        stream.turn = if message.begun { stream.turn + 1 } else { 0 };
        message.next_offset += length;
        message.begun = true;
        message.open_frames += 1;
        if message.is_cut() {
            message.stage = Stage::Sent;
        } else if message.next_offset == message.there_bytes() {
            message.stage = Stage::Awaiting;
            stream.awaiting_count += 1;
        } else {
            stream.begun.push_back(&mut self.messages, slot);
            stream.begun_count += 1;
        }
        item
    }

    pub(crate) fn new_item(&mut self, cargo: Cargo) -> Option<u32> {
        self.items
            .insert(SentItem {
                cargo,
                number: 0,
                sent_at: Instant(0),
                overtaken_at: None,
                datagram_bytes: 0,
                is_piece: false,
                path: NONE,
                sends: 0,
                link: Link::UNLINKED,
            })
            .ok()
    }

    /// Cuts a pending fragment so that the first piece fits the narrowest path.
    pub(crate) fn cut_short(&mut self, stream: u32, item: u32) {
        let Cargo::Fragment { offset, length, .. } = self.items[item].cargo else { return };
        let room = piece_bytes(BASE_BYTES, (offset, length));
        // Where no item is free the fragment goes as it is.
        if room < length && self.split(stream, item, room) {
            self.items[item].is_piece = true;
        }
    }

    /// Leaves the first `room` bytes of a pending fragment in it, which is the first or the last one; the
    /// rest becomes another one behind it.
    fn split(&mut self, stream: u32, item: u32, room: u32) -> bool {
        let Cargo::Fragment { message, offset, length } = self.items[item].cargo else {
            unreachable!("only fragments are split")
        };
        let cargo = Cargo::Fragment { message, offset: offset + room, length: length - room };
        // Any free item will do: what was begun by a longer path has to go on.
        let Some(rest) = self.new_item(cargo) else { return false };
        // Both were sent in the same frame, if in any: the acknowledgement of that may come late.
        let SentItem { number, sent_at, sends, .. } = self.items[item];
        (self.items[rest].number, self.items[rest].sent_at, self.items[rest].sends) =
            (number, sent_at, sends);
        self.items[item].cargo = Cargo::Fragment { message, offset, length: room };
        self.messages[message].open_frames += 1;
        let pending = &mut self.streams[stream].pending;
        if pending.first() == item {
            pending.remove(&mut self.items, item);
            pending.push_front(&mut self.items, rest);
            pending.push_front(&mut self.items, item);
        } else {
            pending.push_back(&mut self.items, rest);
        }
        true
    }

    /// The frame of the first pending item, which becomes an outstanding one.
    fn message_frame(
        &mut self,
        stream: u32,
        item: u32,
        path: u32,
        sessions: &mut Sessions,
    ) -> Option<OutgoingFrame> {
        let Cargo::Fragment { message: slot, offset, length } = self.items[item].cargo else {
            unreachable!("control frames have frames of their own")
        };
        let now = sessions.local.now;
        let (ni, destination, token) = sessions.paths.session(path);
        self.bundle.clear();
        self.bundle.push(slot);
        let mut datagram_bytes = headers_bytes(offset) + length;
        let whole = length == self.messages[slot].total_bytes();
        let resent = self.items[item].sends != 0;
        let number = self.launch((stream, item), path, sessions);
        let run_min_bytes = sessions.run_min_bytes(ni);
        let shared_max = |session| shared_bytes_max(session, run_min_bytes);
        let shared_max = sessions.paths[path].session.as_ref().map_or(SMALL_BYTES_MAX, shared_max);
        if whole && !resent && length <= shared_max && self.shares_frames(slot, sessions) {
            datagram_bytes = self.bundle_more((stream, number), datagram_bytes, (path, shared_max), sessions);
        }
        if offset == 0 {
            let bundled = self.bundle.len() > 1;
            for message in &self.bundle {
                self.messages[*message].bundled |= bundled;
                self.messages[*message].goes_by(ni, sessions.nid_of(ni), &destination);
            }
        }
        let (transfer, header, lnet, payload) = {
            let message = &mut self.messages[slot];
            message.first_sent.get_or_insert((now, number));
            let header = &message.transmit.header;
            let key = SteerKey::of(header, message.id, sessions.local.initiator_hash)?;
            let payload = (length != 0).then(|| sub_span(message.transmit.payload, offset, length)).flatten();
            let total = message.total_bytes();
            let bundled = self.bundle.len() > 1;
            let header = FrameHeader { bundled, ..FrameHeader::data(key, offset, total) };
            let lnet = (offset == 0).then_some(message.transmit.header);
            let (id, ticket, peer) = (message.id, message.ticket, message.peer);
            let oldest = (id - self.peers[peer].oldest_id(&self.messages)) as u16;
            (Transfer { oldest, ticket, ..sessions.local.transfer(number, token) }, header, lnet, payload)
        };
        let transfer = self.charge((stream, item), datagram_bytes, transfer, sessions);
        let bundled = (self.bundle.len() - 1) as u8;
        let session = sessions.paths[path].session.as_ref();
        let checksum = sessions.has_checksums(ni, session);
        // Small messages are under way sooner alone.
        let is_long = self.messages[slot].total_bytes() >= run_min_bytes;
        let run = session.filter(|session| is_long && session.runs).map(|_| self.streams[stream].shard);
        Some(OutgoingFrame {
            ni,
            destination,
            header,
            transfer,
            content: Content::Message { lnet, payload, bundled, checksum, resent, run },
        })
    }

    /// Whether a message may share a frame with others.
    #[inline]
    fn shares_frames(&self, slot: u32, sessions: &Sessions) -> bool {
        let message = &self.messages[slot];
        message.ticket.is_none()
            && self.streams[message.stream].shares_frames(sessions.local.now, message.portal())
    }

    /// Puts further messages that are ready into a frame that goes by a path; returns its length.
    fn bundle_more(
        &mut self,
        (stream, number): (u32, u64),
        mut datagram_bytes: u32,
        (path, shared_max): (u32, u32),
        sessions: &mut Sessions,
    ) -> u32 {
        let now = sessions.local.now;
        if self.streams[stream].queue.is_empty() {
            return datagram_bytes;
        }
        let first = self.bundle[0];
        let limit = sessions.datagram_max(path);
        let mut next = self.streams[stream].queue.first();
        for _ in 0..BUNDLE_LOOKS_MAX {
            let Some(slot) = List::<Queued>::step(&self.messages, &mut next) else { break };
            let message = &self.messages[slot];
            // Messages take the rails of a peer in turn, and those of one rail share frames all the same.
            if message.path != self.messages[first].path {
                continue;
            }
            let length = message.total_bytes();
            let bytes = (RECORD_BYTES + LARGE_HEADER_BYTES) as u32 + length;
            let fits = self.bundle.len() < BUNDLE_MAX
                && !message.begun
                && length <= shared_max
                && self.shares_frames(slot, sessions)
                && message.id - self.messages[first].id <= u64::from(u16::MAX)
                && datagram_bytes + bytes <= limit
                && self.free_items() != 0;
            if !fits {
                break;
            }
            sessions.local.counters.frames_sent_anew += u64::from(message.was_sent_before(0));
            let item = self.cut(slot, 0, length);
            self.streams[stream].outstanding.push_back(&mut self.items, item);
            let item = &mut self.items[item];
            (item.number, item.sent_at, item.path, item.sends) = (number, now, path, 1);
            self.messages[slot].first_sent.get_or_insert((now, number));
            self.bundle.push(slot);
            sessions.local.counters.messages_bundled += 1;
            datagram_bytes += bytes;
        }
        datagram_bytes
    }

    fn control_frame(&mut self, stream: u32, item: u32, sessions: &mut Sessions) -> Option<OutgoingFrame> {
        let Cargo::Control(Control { kind, id, ticket }) = self.items[item].cargo else {
            unreachable!("fragments have frames of their own")
        };
        let own = self.last_path(stream, sessions).unwrap_or(NONE);
        let path = self.find_path(stream, own, sessions)?;
        let (ni, destination, token) = sessions.paths.session(path);
        let number = self.launch((stream, item), path, sessions);
        let transfer = Transfer { ticket: Some(ticket), ..sessions.local.transfer(number, token) };
        let transfer = self.charge((stream, item), FRAME_HEADER_BYTES as u32, transfer, sessions);
        let header = FrameHeader::other(kind, self.streams[stream].shard, id);
        Some(OutgoingFrame { ni, destination, header, transfer, content: Content::Nothing })
    }

    /// Moves the first pending item to the outstanding ones, under a new number; it goes by a path.
    fn launch(&mut self, (stream, item): (u32, u32), path: u32, sessions: &mut Sessions) -> u64 {
        let now = sessions.local.now;
        let stream = &mut self.streams[stream];
        stream.pending.remove(&mut self.items, item);
        if stream.outstanding.is_empty() {
            stream.waits_since = now;
        }
        let number = stream.next_number;
        stream.next_number += 1;
        stream.outstanding.push_back(&mut self.items, item);
        let item = &mut self.items[item];
        let is_anew = match item.cargo {
            Cargo::Fragment { message, offset, .. } => self.messages[message].was_sent_before(offset),
            Cargo::Control(_) => false,
        };
        sessions.local.counters.frames_sent += 1;
        sessions.local.counters.frames_resent += u64::from(item.sends != 0);
        sessions.local.counters.frames_sent_anew += u64::from(item.sends == 0 && is_anew);
        (item.number, item.sent_at, item.overtaken_at, item.path) = (number, now, None, path);
        item.sends = item.sends.saturating_add(1);
        number
    }

    /// Counts a frame as in flight, and says whether it wants an acknowledgement at once.
    #[inline]
    fn charge(
        &mut self,
        (slot, item): (u32, u32),
        datagram_bytes: u32,
        transfer: Transfer,
        sessions: &mut Sessions,
    ) -> Transfer {
        let now = sessions.local.now;
        let cost_bytes = frame_cost(datagram_bytes);
        self.items[item].datagram_bytes = datagram_bytes;
        let stream = &mut self.streams[slot];
        stream.in_flight_bytes += cost_bytes;
        let is_probe = stream.probes_due != 0;
        stream.probes_due = stream.probes_due.saturating_sub(1);
        // Where another one would not fit, all that is left to do is to wait for it.
        let ack_now = is_probe || !stream.has_room_for(cost_bytes);
        let timeout = stream.probe_at(&sessions.local.times);
        let timeout = timeout.max(now);
        self.timers.set(slot, timeout);
        sessions.local.set_timer(timeout);
        Transfer { ack_now, ..transfer }
    }
}

/// Bytes before the payload of a fragment.
#[inline]
const fn headers_bytes(offset: u32) -> u32 {
    if offset == 0 { HEADERS_BYTES } else { FRAME_HEADER_BYTES as u32 }
}

/// How much of `length` bytes at `offset` of a message a datagram of `limit` bytes takes.
#[inline]
const fn piece_bytes(limit: u32, (offset, length): (u32, u32)) -> u32 {
    let room = limit - headers_bytes(offset);
    if room >= length { length } else { room / FRAGMENT_UNIT_BYTES * FRAGMENT_UNIT_BYTES }
}

/// A part of a payload.
fn sub_span(payload: Option<Span>, offset: u32, length: u32) -> Option<Span> {
    let span = payload?;
    Some(Span { offset_bytes: span.offset_bytes + u64::from(offset), length_bytes: length, ..span })
}
