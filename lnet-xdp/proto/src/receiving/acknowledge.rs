//! What is acknowledged, and when.

use core::time::Duration;

use lnet_core::collections::{List, NONE};
use lnet_core::lnd::Uplink;
use lnet_core::time::Instant;
use lnet_wire::frame::{Ack, Kind};

use super::stream::{Busy, ReceiveStream};
use super::window::FramesSeen;
use super::{Fragment, ReceiveContext, ReceivingSide};
use crate::config::XferTimes;
use crate::contract::OutgoingFrame;
use crate::sessions::{Reply, Sessions};

/// Frames after which an acknowledgement does not wait any longer.
const ACK_FRAMES: u32 = 16;
/// How long an acknowledgement waits that is all that the sender waits for: until the driver has shown the
/// application what has arrived, whose answer may take it along.
const NEXT_TURN: Duration = Duration::from_nanos(1);
/// Frames that are received at most between two acknowledgements, which tell of 65.
const ACK_FRAMES_MAX: u32 = 56;

impl ReceivingSide {
    /// The next acknowledgement that is due, alone in a frame.
    pub(crate) fn poll_ack(&mut self, sessions: &mut Sessions) -> Option<OutgoingFrame> {
        let slot = self.acks.first();
        if slot == NONE {
            return None;
        }
        let reply = self.ack_alone(slot, sessions);
        Some(sessions.reply_frame(&reply))
    }

    /// Acknowledges in a frame of its own what has arrived of a stream. Where acknowledgements are not heard,
    /// this one goes back by the path that the last frame came by, and by the others in turn. While that path
    /// counts as silent, this one goes by another path, and by that one too: the other one may be cut.
    fn ack_alone(&mut self, slot: u32, sessions: &mut Sessions) -> Reply {
        let ack = self.acknowledgement(slot);
        let &ReceiveStream { peer, address, shard, token: session, doubt, .. } = &self.streams[slot];
        let repeats = doubt.repeats_by(sessions.local.now);
        let to = if repeats == 0 { sessions.answered_at(peer, address) } else { address };
        let also = match repeats {
            0 => Some(address).filter(|address| *address != to),
            1 => None,
            _ => sessions.also_answered_at(peer, address, repeats),
        };
        let reply = Reply { kind: Kind::Ack, to, shard, nonce: 0, number: 0, session, ack };
        if let Some(to) = also.filter(|_| !sessions.is_full_of_replies()) {
            sessions.reply(Reply { to, ..reply });
        }
        reply
    }

    /// Acknowledges what has arrived, in a frame that goes to that shard of a peer. The frame has a path of
    /// its own: where acknowledgements are not heard, one goes alone all the same.
    #[inline]
    pub(crate) fn acknowledge(&mut self, now: Instant, to: (u32, u8)) -> Option<Ack> {
        let stream = self.stream_from(to)?;
        if self.streams[stream].doubt.repeats_by(now) != 0 {
            return self.acknowledged_by(stream);
        }
        self.acknowledgement(stream)
    }

    /// What a frame would acknowledge that goes to a shard of a peer.
    #[inline]
    pub(crate) fn would_acknowledge(&self, to: (u32, u8)) -> Option<Ack> {
        self.acknowledged_by(self.stream_from(to)?)
    }

    /// Makes all acknowledgements that wait due at once.
    pub(crate) fn acknowledge_now(&mut self, sessions: &mut Sessions) {
        let mut next = self.busy.first();
        while let Some(at) = List::<Busy>::step(&self.streams, &mut next) {
            if self.streams[at].ack_at.is_some() {
                self.ack_within(at, Duration::ZERO, sessions);
            }
        }
    }

    /// What is to be acknowledged of a stream, which thereby is.
    #[inline]
    fn acknowledgement(&mut self, slot: u32) -> Option<Ack> {
        let ack = self.acknowledged_by(slot);
        self.acks.discard(&mut self.streams, slot);
        let stream = &mut self.streams[slot];
        if stream.late.take().is_some() {
            // The others come next.
            self.acks.add(&mut self.streams, slot);
            return ack;
        }
        stream.unacknowledged = 0;
        if stream.ack_at.take().is_some() {
            self.ack_timers.remove(slot);
        }
        ack
    }

    /// What an acknowledgement tells of a stream: first of late frames.
    #[inline]
    fn acknowledged_by(&self, slot: u32) -> Option<Ack> {
        let stream = &self.streams[slot];
        let frames = stream.late.or(stream.frames)?;
        let (grant_bytes, buffered) = (self.grant_bytes(), self.buffer.has_delayed());
        Some(Ack { highest: frames.highest, below: frames.below, grant_bytes, buffered })
    }

    /// What each sender may have in flight: an equal share of what this shard can take.
    fn grant_bytes(&self) -> u32 {
        self.receive_bytes / self.busy_count.max(1)
    }

    /// A fragment is dealt with; `urgent`: its sender seems to have missed that.
    pub(crate) fn note_fragment(
        &mut self,
        fragment: &Fragment<'_>,
        urgent: bool,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) {
        if urgent {
            self.streams[fragment.stream].doubt.add(call.now());
        }
        if let Some(number) = fragment.number {
            let is_whole = fragment.length == fragment.total;
            self.note_frame(fragment.stream, number, (urgent, is_whole), call.sessions);
        }
    }

    /// A frame is to be acknowledged, at once if it is urgent, and soon if all of its messages are whole.
    #[inline]
    pub(crate) fn note_frame(
        &mut self,
        slot: u32,
        number: u32,
        (urgent, is_whole): (bool, bool),
        sessions: &mut Sessions,
    ) {
        if self.streams[slot].frames.is_some_and(|frames| frames.has_forgotten(number)) {
            return self.note_late(slot, number, sessions);
        }
        if self.streams[slot].would_hide(number) {
            self.ack_at_once(slot, sessions);
        }
        let stream = &mut self.streams[slot];
        let gap = match &mut stream.frames {
            Some(frames) => frames.insert(number),
            None => {
                stream.frames = Some(FramesSeen::starting_with(number));
                false
            }
        };
        if stream.unacknowledged == 0 || (number.wrapping_sub(stream.unacknowledged_from) as i32) < 0 {
            stream.unacknowledged_from = number;
        }
        stream.unacknowledged += 1;
        let urgent = urgent || gap || stream.unacknowledged > ACK_FRAMES;
        if stream.unacknowledged >= ACK_FRAMES_MAX {
            return self.ack_at_once(slot, sessions);
        }
        let XferTimes { ack_soon, ack_delay, .. } = sessions.local.times;
        let latest = match is_whole {
            true if self.streams[slot].is_awaited => NEXT_TURN,
            true => ack_soon,
            false => ack_delay,
        };
        self.ack_within(slot, if urgent { Duration::ZERO } else { latest }, sessions);
    }

    /// A frame that many others have overtaken is to be acknowledged: it was buffered, or came by another
    /// rail.
    fn note_late(&mut self, slot: u32, number: u32, sessions: &mut Sessions) {
        if self.streams[slot].late.is_some_and(|late| late.is_apart(number)) && !sessions.is_full_of_replies()
        {
            let reply = self.ack_alone(slot, sessions);
            sessions.reply(reply);
        }
        match &mut self.streams[slot].late {
            // Without room for another acknowledgement some of these frames come again.
            Some(late) => drop(late.insert(number)),
            late => *late = Some(FramesSeen::starting_with(number)),
        }
        self.ack_within(slot, Duration::ZERO, sessions);
    }

    /// The next acknowledgement of this stream is not to wait.
    pub(crate) fn hurry_ack(&mut self, slot: u32) {
        let stream = &mut self.streams[slot];
        stream.unacknowledged = stream.unacknowledged.max(ACK_FRAMES);
    }

    /// Many frames came in one go: what is to be said of them is noted.
    fn ack_at_once(&mut self, slot: u32, sessions: &mut Sessions) {
        if sessions.is_full_of_replies() {
            // Late is better than never, although it may not tell of all of them any more.
            return self.ack_within(slot, Duration::ZERO, sessions);
        }
        // Late ones are told first, and apart.
        while self.streams[slot].unacknowledged != 0 && !sessions.is_full_of_replies() {
            let reply = self.ack_alone(slot, sessions);
            sessions.reply(reply);
        }
    }

    /// A stream has something to acknowledge within that time, now if it is zero.
    #[inline]
    pub(crate) fn ack_within(&mut self, slot: u32, time: Duration, sessions: &mut Sessions) {
        let at = sessions.local.now + time;
        let stream = &mut self.streams[slot];
        if time.is_zero() {
            stream.ack_at = None;
            self.acks.add(&mut self.streams, slot);
        } else if !stream.acks.is_linked() && stream.ack_at.is_none_or(|earlier| at < earlier) {
            stream.ack_at = Some(at);
            self.ack_timers.set(slot, at);
            sessions.local.set_timer(at);
        }
    }
}
