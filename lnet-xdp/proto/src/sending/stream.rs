//! Send streams: what this shard sends to one shard of a peer.

use core::time::Duration;

use lnet_core::collections::{Link, List, NONE, linked};
use lnet_core::lnd::SILENCE;
use lnet_core::time::Instant;

use super::congestion::Congestion;
use super::item::InStream;
use super::message::Queued;
use crate::config::XferTimes;
use crate::sessions::Paths;

/// How long messages to a portal that has deferred some have frames of their own.
const APART_LASTS: Duration = Duration::from_secs(10);
/// Lost frames that are remembered.
const GIVEN_UP: usize = 8;

/// The shard's choice for the frames of a stream while a path is silent.
#[derive(Clone, Copy)]
pub(crate) struct Failover {
    /// The path that was found silent.
    silent: u32,
    /// Since when it was: the choice holds until that silence ends, and for no later one.
    since: Instant,
    /// The path that frames take instead of their own, or [`NONE`] where there is no better one.
    pub(crate) taken: u32,
}

/// A frame that counts as lost.
#[derive(Clone, Copy)]
pub(crate) struct GivenUp {
    pub(crate) number: u64,
    /// When it was overtaken, if it was.
    pub(crate) overtaken_at: Option<Instant>,
    /// The path that it went by.
    pub(crate) path: u32,
    pub(crate) datagram_bytes: u32,
    pub(crate) sent_at: Instant,
}

pub(crate) struct SendStream {
    pub(crate) peer: u32,
    /// The peer's shard.
    pub(crate) shard: u8,
    pub(crate) next_number: u64,
    /// The highest number that was acknowledged, once one was.
    pub(crate) highest_acked: Option<u64>,
    /// Sent, in the order of frame numbers.
    pub(crate) outstanding: List<InStream>,
    /// Items to be sent again, and control frames.
    pub(crate) pending: List<InStream>,
    /// Messages of which nothing was sent.
    pub(crate) queue: List<Queued>,
    /// Messages of which parts were sent, and others never; a few at a time, since each takes room of its
    /// receiver until it is whole.
    pub(crate) begun: List<Queued>,
    pub(crate) begun_count: u32,
    /// Messages of which all that is there was sent, and more is to come.
    pub(crate) awaiting_count: u32,
    /// Fragments since a message of the queue had its turn.
    pub(crate) turn: u32,
    pub(crate) in_flight_bytes: u32,
    pub(crate) congestion: Congestion,
    /// Frames that counted as lost of late, by the end of their numbers: an acknowledgement may tell yet that
    /// one was only late.
    pub(crate) given_up: [Option<GivenUp>; GIVEN_UP],
    /// When something was acknowledged last, if ever.
    pub(crate) acked_at: Option<Instant>,
    /// Since when there has always been something that is not acknowledged.
    pub(crate) owed_since: Instant,
    /// Time from which on the wait for an acknowledgement counts.
    pub(crate) waits_since: Instant,
    /// How many overtaken frames were sent again since the last acknowledgement, to have the others told of,
    /// and when the last one was.
    pub(crate) asked: (u32, Instant),
    /// Frames that may be sent although the window is full.
    pub(crate) probes_due: u32,
    /// Fragments that were never sent, of messages that are begun, and go before those that were.
    pub(crate) fresh_due: u32,
    /// Portals whose messages share no frames, a bit each, and until when: one that was deferred has all
    /// others of its frame sent again.
    pub(crate) apart: (u64, Instant),
    /// The choice of the last time that a path fell silent.
    pub(crate) failover: Option<Failover>,
    pub(crate) ready: Link,
}

impl Failover {
    /// The choice while this path is silent, which it is now.
    pub(crate) fn new(now: Instant, silent: u32, taken: u32, paths: &Paths) -> Self {
        let since = paths.get(silent).and_then(|path| path.silence(now)).map_or(now, |(since, _)| since);
        Self { silent, since, taken }
    }

    /// Until when a stream to this peer goes by it, as long as it does. The silent path may have made room
    /// for one to another peer.
    fn holds_until(self, peer: u32, now: Instant, paths: &Paths) -> Option<Instant> {
        let path = paths.leading((self.silent, peer))?;
        let (since, until) = path.silence(now)?;
        (since == self.since).then_some(until)
    }
}

/// Marks streams that may have something to send.
pub(crate) struct Ready;

linked!(SendStream, Ready, ready);

impl SendStream {
    pub(crate) fn new(peer: u32, shard: u8, first_number: u64, now: Instant) -> Self {
        Self {
            peer,
            shard,
            next_number: first_number,
            highest_acked: None,
            outstanding: List::new(),
            pending: List::new(),
            queue: List::new(),
            begun: List::new(),
            begun_count: 0,
            awaiting_count: 0,
            turn: 0,
            in_flight_bytes: 0,
            congestion: Congestion::new(),
            given_up: [None; GIVEN_UP],
            acked_at: None,
            owed_since: now,
            waits_since: now,
            asked: (0, Instant(0)),
            probes_due: 0,
            fresh_due: 0,
            apart: (0, Instant(0)),
            failover: None,
            ready: Link::UNLINKED,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding.is_empty() && self.awaiting_count == 0 && !self.has_more()
    }

    /// A frame counts as lost.
    pub(crate) fn give_up(&mut self, frame: GivenUp) {
        self.given_up[frame.number as usize % GIVEN_UP] = Some(frame);
    }

    /// Frames that counted as lost are acknowledged, if `arrived` says so of their numbers. `found` hears of
    /// each.
    pub(crate) fn learn_of_late(
        &mut self,
        now: Instant,
        arrived: impl Fn(u64) -> bool,
        mut found: impl FnMut(&GivenUp),
    ) {
        for given_up in &mut self.given_up {
            if let Some(frame) = given_up.take_if(|frame| arrived(frame.number)) {
                found(&frame);
                if let Some(overtaken_at) = frame.overtaken_at {
                    self.congestion.note_late(now, overtaken_at);
                }
            }
        }
    }

    /// Whether frames of so many bytes fit what may be in flight.
    #[inline]
    pub(crate) fn has_room_for(&self, cost_bytes: u32) -> bool {
        self.in_flight_bytes + cost_bytes <= self.congestion.window_bytes()
    }

    /// A message to a portal was deferred that shared a frame with others.
    pub(crate) fn set_apart(&mut self, now: Instant, portal: u32) {
        let (portals, until) = self.apart;
        let former = if now < until { portals } else { 0 };
        self.apart = (former | 1 << (portal % 64), now + APART_LASTS);
    }

    /// Whether messages to a portal may share frames with others.
    #[inline]
    pub(crate) fn shares_frames(&self, now: Instant, portal: u32) -> bool {
        let (portals, until) = self.apart;
        portals == 0 || portals >> (portal % 64) & 1 == 0 || now >= until
    }

    /// Whether its receiver has answered of late, and so knows this sender.
    #[inline]
    pub(crate) fn is_open(&self, now: Instant, patience: Duration) -> bool {
        self.acked_at.is_some_and(|at| now - at < patience)
    }

    /// Something is about to be added that is to be acknowledged.
    #[inline]
    pub(crate) fn owes(&mut self, now: Instant) {
        if self.outstanding.is_empty() && self.pending.is_empty() {
            self.owed_since = now;
        }
    }

    /// Whether its receiver has acknowledged nothing for so long although there was something to acknowledge.
    pub(crate) fn is_unanswered(&self, now: Instant, patience: Duration) -> bool {
        let has_items = !self.outstanding.is_empty() || !self.pending.is_empty();
        has_items && now - self.acked_at.map_or(self.owed_since, |at| at.max(self.owed_since)) > patience
    }

    /// Whether another path may be asked for: none was of late, or that was taken for longer than an answer
    /// by it takes.
    pub(crate) fn may_fail_over(&self, now: Instant, times: &XferTimes, paths: &Paths) -> bool {
        let interval = self.congestion.probe_interval(times.probe_min, times.ack_delay);
        let until = self.failover.and_then(|failover| failover.holds_until(self.peer, now, paths));
        until.is_none_or(|until| now + (SILENCE - interval.min(SILENCE)) > until)
    }

    /// The path that was chosen instead of the frames' own one, or [`NONE`] where that was preferred.
    #[inline]
    pub(crate) fn choice(&self, now: Instant, paths: &Paths) -> Option<u32> {
        let failover = self.failover?;
        failover.holds_until(self.peer, now, paths).map(|_| failover.taken)
    }

    /// Forgets a choice that holds no more, so that no frame looks at it.
    pub(crate) fn forget_failover(&mut self, now: Instant, paths: &Paths) {
        let peer = self.peer;
        self.failover.take_if(|failover| failover.holds_until(peer, now, paths).is_none());
    }

    /// The path that frames take instead of their own.
    #[inline]
    pub(crate) fn failover_path(&self, now: Instant, paths: &Paths) -> Option<u32> {
        self.choice(now, paths).filter(|path| *path != NONE)
    }

    /// When a probe is due, unless something is acknowledged before.
    pub(crate) fn probe_at(&self, times: &XferTimes) -> Instant {
        self.waits_since + self.congestion.probe_interval(times.probe_min, times.ack_delay)
    }

    /// Whether there is something to send.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        !self.pending.is_empty() || !self.queue.is_empty() || !self.begun.is_empty()
    }

    /// The number that an acknowledgement means, of those that were used; `None` if it was not.
    pub(crate) fn number_of(&self, wire: u32) -> Option<u64> {
        let last = self.next_number.checked_sub(1)?;
        let distance = (last as u32).wrapping_sub(wire);
        last.checked_sub(u64::from(distance))
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use lnet_core::collections::Seed;
    use lnet_core::lnd::NiId;

    use super::*;
    use crate::met::MetAddresses;

    const PEER: u32 = 1;
    const TAKEN: u32 = 7;
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_choice_holds_for_one_silence() {
        let mut paths = Paths::new(4, 4, Seed::new(1), Arc::new(MetAddresses::new(4, 1)));
        let silent = paths.acquire(NiId(0), &"10.0.0.1@xdp".parse().unwrap()).unwrap();
        paths.set_peer(silent, PEER);
        let begun = Instant(1_000_000_000);
        let mut stream = SendStream::new(PEER, 0, 0, begun);
        paths.note_silence(begun, silent);
        stream.failover = Some(Failover::new(begun, silent, TAKEN, &paths));
        // Found silent again, the path has been so since then.
        for tenths in [9, 18, 27] {
            let now = begun + SECOND * tenths / 10;
            assert_eq!(stream.choice(now, &paths), Some(TAKEN), "{tenths}");
            paths.note_silence(now, silent);
        }
        assert_eq!(stream.choice(begun + SECOND * 4, &paths), None, "it is over");
        // Another stream finds the path silent, or it is silent once more after an answer.
        paths.note_silence(begun + SECOND * 3600, silent);
        assert_eq!(stream.choice(begun + SECOND * 3600, &paths), None, "that silence is another one");
        stream.failover = Some(Failover::new(begun + SECOND * 3600, silent, TAKEN, &paths));
        paths.note_answer(silent);
        paths.note_silence(begun + SECOND * 36001 / 10, silent);
        assert_eq!(stream.choice(begun + SECOND * 36001 / 10, &paths), None, "so is that");
        stream.forget_failover(begun + SECOND * 36001 / 10, &paths);
        assert!(stream.failover.is_none());
    }
}
