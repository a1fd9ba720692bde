//! Acknowledgements, losses, and what they free.

use lnet_core::collections::{List, NONE};
use lnet_core::lnd::{Status, Uplink};
use lnet_core::time::Instant;
use lnet_wire::frame::Ack;

use super::item::{Cargo, SentItem};
use super::message::Outbound;
use super::{SendContext, SendingSide};
use crate::local::existing;
use crate::sessions::Sessions;
use crate::stats::XferDrop;

/// An acknowledgement that is still to be taken in.
pub(crate) struct Unread {
    /// When it came.
    pub(crate) at: Instant,
    pub(crate) peer: u32,
    pub(crate) shard: u8,
    pub(crate) ack: Ack,
}

impl SendingSide {
    /// Takes in the acknowledgement that came with the last data.
    #[inline]
    pub(crate) fn catch_up(&mut self, call: &mut SendContext<'_, impl Uplink>) {
        if let Some(Unread { at, peer, shard, ack }) = self.unread.take() {
            let now = core::mem::replace(&mut call.sessions.local.now, at);
            self.acknowledged((peer, shard), &ack, call);
            call.sessions.local.now = now;
        }
    }

    /// Takes in what a shard of a peer has received from this one.
    pub(crate) fn acknowledged(
        &mut self,
        (peer, shard): (u32, u8),
        ack: &Ack,
        call: &mut SendContext<'_, impl Uplink>,
    ) {
        let now = call.sessions.local.now;
        let slot = self.peers[peer].streams[usize::from(shard)];
        let Some(highest) = self.streams.get(slot).and_then(|stream| stream.number_of(ack.highest)) else {
            call.sessions.local.counters.count_drop(XferDrop::BadAck);
            return;
        };
        let is_newest = self.streams[slot].highest_acked.is_none_or(|newest| newest < highest);
        let (mut frames, mut bytes) = (0, 0);
        // The receiver lets go of what it buffers after the time is over, once it is scheduled.
        let buffered = call.sessions.local.times.buffered * 5;
        let may_be_buffered = self.streams[slot].congestion.set_buffered(ack.buffered, buffered);
        let is_told = |number| highest.checked_sub(number).is_some_and(|far| arrived(far, ack.below));
        self.streams[slot].asked = (0, now);
        self.streams[slot].learn_of_late(now, is_told, |frame| {
            call.sessions.note_found((frame.path, peer), (frame.datagram_bytes, frame.sent_at));
        });
        let reordering = self.streams[slot].congestion.reordering(now);
        let mut by_path = ByPath::default();
        let mut next = self.streams[slot].outstanding.first();
        while let Some(at) = List::step(&self.items, &mut next) {
            let SentItem { number, sent_at, overtaken_at, datagram_bytes, path, is_piece, .. } =
                self.items[at];
            let cost = self.items[at].cost_bytes();
            if number > highest {
                break;
            }
            let distance = highest - number;
            if arrived(distance, ack.below) {
                let congestion = &mut self.streams[slot].congestion;
                // A late frame was buffered, which is no matter of the path.
                let is_measured = distance == 0 && cost != 0 && is_newest;
                if is_measured {
                    congestion.measure(now - sent_at);
                }
                if let Some(overtaken_at) = overtaken_at {
                    congestion.note_late(now, overtaken_at);
                }
                congestion.landed(number);
                // What comes by a slower path than others is overtaken.
                if is_measured || cost != 0 && overtaken_at.is_some() && !may_be_buffered {
                    call.sessions.measure((path, peer), now - sent_at);
                }
                if cost != 0 {
                    if by_path.frames != 0 && by_path.path != path {
                        core::mem::take(&mut by_path).tell(peer, call);
                    }
                    by_path.add(path, is_piece, datagram_bytes, sent_at);
                }
                frames += u32::from(cost != 0);
                bytes += cost;
                self.land(slot, at, call);
            } else if now - *self.items[at].overtaken_at.get_or_insert(now) > reordering {
                self.lose_overtaken(slot, at, call);
            }
        }
        by_path.tell(peer, call);
        frames += self.land_late(slot, is_told, call);
        let stream = &mut self.streams[slot];
        stream.highest_acked = stream.highest_acked.max(Some(highest));
        stream.congestion.granted(ack.grant_bytes);
        if frames != 0 {
            stream.acked_at = Some(now);
            stream.waits_since = now;
        }
        let was_silent = stream.congestion.probes != 0;
        let next_number = stream.next_number;
        if stream.congestion.acknowledged(highest, next_number, (frames, bytes)) {
            call.sessions.local.counters.backoffs += 1;
        }
        if was_silent && frames != 0 {
            self.report_answer(slot, call);
            // A wait that had become long begins anew.
            self.look_at(slot, self.streams[slot].probe_at(&call.sessions.local.times), call.sessions);
        }
        // Frames that were overtaken count as lost after a while.
        if let Some(at) = self.loss_time(slot, now) {
            self.look_at(slot, at, call.sessions);
        }
        if self.streams[slot].outstanding.is_empty() {
            self.timers.remove(slot);
        }
        self.go_on(slot);
        self.go_on_with_items();
    }

    /// Sent items that counted as lost, and wait to be sent again, may have arrived after all. How many
    /// frames.
    fn land_late(
        &mut self,
        slot: u32,
        is_told: impl Fn(u64) -> bool,
        call: &mut SendContext<'_, impl Uplink>,
    ) -> u32 {
        let mut landed = 0;
        let mut next = self.streams[slot].pending.first();
        while let Some(at) = List::step(&self.items, &mut next) {
            let &SentItem { number, sends, .. } = &self.items[at];
            if sends != 0 && is_told(number) {
                let stream = &mut self.streams[slot];
                stream.congestion.landed(number);
                stream.pending.remove(&mut self.items, at);
                stream.outstanding.push_front(&mut self.items, at);
                self.land(slot, at, call);
                landed += 1;
            }
        }
        landed
    }

    /// Has a stream looked at by then, if frames of it are under way.
    fn look_at(&mut self, slot: u32, at: Instant, sessions: &mut Sessions) {
        if !self.streams[slot].outstanding.is_empty() {
            self.timers.set(slot, at);
            sessions.local.set_timer(at);
        }
    }

    /// When the oldest outstanding frame counts as lost without a further acknowledgement, if later ones have
    /// been acknowledged.
    pub(crate) fn loss_time(&self, slot: u32, now: Instant) -> Option<Instant> {
        let stream = &self.streams[slot];
        let overtaken_at = self.items.get(stream.outstanding.first())?.overtaken_at?;
        let (asked_count, asked_at) = stream.asked;
        let reordering = stream.congestion.reordering(now);
        let next_question = asked_at + reordering.saturating_mul(1 << asked_count.min(16));
        let lost_at = overtaken_at + reordering;
        Some(if asked_count == 0 { lost_at } else { lost_at.max(next_question) })
    }

    /// Lets a stream send, if it has something.
    pub(crate) fn go_on(&mut self, slot: u32) {
        if self.streams[slot].has_more() {
            self.make_ready(slot);
        }
    }

    /// Lets the streams to a peer send that have something.
    pub(crate) fn go_on_to(&mut self, peer: u32) {
        existing(self.peers[peer].streams).for_each(|stream| self.go_on(stream));
    }

    /// Lets all streams send that have something.
    pub(crate) fn go_on_with_all(&mut self) {
        for stream in 0..self.streams.capacity() {
            if self.streams.get(stream).is_some() {
                self.go_on(stream);
            }
        }
    }

    /// Lets all streams go on when one had stopped for want of an item, and some are free again.
    #[inline]
    pub(crate) fn go_on_with_items(&mut self) {
        let few = (self.items.capacity() - self.items_reserved) / 8;
        if self.is_short_of_items && self.free_items() > few {
            self.is_short_of_items = false;
            self.go_on_with_all();
        }
    }

    /// An item is no more.
    #[inline]
    fn forget_item(&mut self, stream: u32, item: &SentItem) {
        if matches!(item.cargo, Cargo::Control(_)) {
            self.peers[self.streams[stream].peer].control_count -= 1;
            self.control_count -= 1;
        }
    }

    /// Forgets what a stream still has to tell about messages.
    pub(crate) fn drop_control_frames(&mut self, stream: u32) {
        self.withdraw_all(stream, |item| matches!(item.cargo, Cargo::Control(_)));
    }

    /// Takes the items of which `is` is true out of a stream. How many those were.
    fn withdraw_all(&mut self, stream: u32, is: impl Fn(&SentItem) -> bool) -> u32 {
        let mut count = 0;
        for outstanding in [true, false] {
            let lists = &self.streams[stream];
            let mut next = if outstanding { lists.outstanding.first() } else { lists.pending.first() };
            while let Some(at) = List::step(&self.items, &mut next) {
                if is(&self.items[at]) {
                    self.withdraw(stream, at, outstanding);
                    count += 1;
                }
            }
        }
        count
    }

    /// An item has arrived.
    fn land(&mut self, stream: u32, item: u32, call: &mut SendContext<'_, impl Uplink>) {
        self.streams[stream].outstanding.remove(&mut self.items, item);
        let item = self.items.remove(item);
        self.forget_item(stream, &item);
        self.streams[stream].in_flight_bytes -= item.cost_bytes();
        if let Cargo::Fragment { message, .. } = item.cargo {
            self.messages[message].open_frames -= 1;
            self.messages[message].is_told = true;
            if self.messages[message].is_cut() && self.messages[message].open_frames == 0 {
                self.finish(message, Status::Ok, call);
            }
        }
    }

    /// An item is to be sent again.
    pub(crate) fn lose(&mut self, stream: u32, item: u32) {
        let stream = &mut self.streams[stream];
        stream.outstanding.remove(&mut self.items, item);
        stream.in_flight_bytes -= self.items[item].cost_bytes();
        self.items[item].datagram_bytes = 0;
        stream.pending.push_back(&mut self.items, item);
    }

    /// All that is in flight is to be sent again.
    pub(crate) fn lose_all(&mut self, stream: u32) {
        while !self.streams[stream].outstanding.is_empty() {
            let first = self.streams[stream].outstanding.first();
            self.lose(stream, first);
        }
    }

    /// A peer has forgotten this shard: what is in flight to it was not taken.
    pub(crate) fn lose_all_of_peer(&mut self, peer: u32) {
        existing(self.peers[peer].streams).for_each(|stream| self.lose_all(stream));
    }

    /// Takes all frames of a message out of its stream.
    pub(crate) fn withdraw_frames(&mut self, message: u32) {
        let Outbound { stream, open_frames, .. } = self.messages[message];
        if open_frames != 0 {
            let is_its =
                |item: &SentItem| matches!(item.cargo, Cargo::Fragment { message: of, .. } if of == message);
            assert_eq!(self.withdraw_all(stream, is_its), open_frames, "frames of a message are in no list");
            self.messages[message].open_frames = 0;
        }
    }

    /// Takes an item out of its stream. What it had cost passes to the next one of the same frame.
    fn withdraw(&mut self, slot: u32, item: u32, outstanding: bool) {
        let next = List::next(&self.items, item);
        let stream = &mut self.streams[slot];
        let list = if outstanding { &mut stream.outstanding } else { &mut stream.pending };
        list.remove(&mut self.items, item);
        let item = self.items.remove(item);
        self.forget_item(slot, &item);
        let stream = &mut self.streams[slot];
        let same_frame = outstanding && next != NONE && self.items[next].number == item.number;
        if same_frame && item.datagram_bytes != 0 {
            self.items[next].datagram_bytes = item.datagram_bytes;
        } else {
            stream.in_flight_bytes -= item.cost_bytes();
        }
    }
}

/// Frames in a row that went by one path.
#[derive(Default)]
struct ByPath {
    path: u32,
    frames: u32,
    pieces: u32,
    /// The longest of them, and when the last one as long was sent.
    longest_bytes: u32,
    sent_at: Instant,
}

impl ByPath {
    /// Counts one that went by the same path as the others.
    #[inline]
    fn add(&mut self, path: u32, is_piece: bool, datagram_bytes: u32, sent_at: Instant) {
        self.path = path;
        self.frames += 1;
        self.pieces += u32::from(is_piece);
        if datagram_bytes >= self.longest_bytes {
            (self.longest_bytes, self.sent_at) = (datagram_bytes, sent_at);
        }
    }

    /// Tells what has arrived by the path.
    #[inline]
    fn tell(&self, peer: u32, call: &mut SendContext<'_, impl Uplink>) {
        if self.frames != 0 {
            let (frames, longest) = ((self.frames, self.pieces), (self.longest_bytes, self.sent_at));
            call.sessions.note_arrived((self.path, peer), frames, longest, call.up);
        }
    }
}

/// Whether an acknowledgement tells of the frame that is so far below its highest one.
#[inline]
const fn arrived(distance: u64, below: u64) -> bool {
    distance == 0 || (distance <= 64 && below >> (distance - 1) & 1 != 0)
}
