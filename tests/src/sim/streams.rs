//! The network of the `tcp` LND: streams of bytes between shards, and what befalls them.
//!
//! Invariants: an end reads the bytes of the other one in their order, once; what a sender has under way is
//! bounded; nothing that was under way on a broken stream arrives, and its sender is not told what was. An
//! end learns that its stream is broken when it sends, or after some time, as by the probes of TCP.

use std::collections::VecDeque;

use lnet_core::lnd::NiId;

use super::plan::{MS, StreamPlan, US, happens};
use super::report::{Counts, Fault};
use crate::bpf::random::Random;

/// After this time at most an end that does not send knows that its stream is broken.
const PROBE_NS: u64 = 2000 * MS;
/// How often a stream is looked at again that is silent, or on a rail that is down.
pub(super) const RETRY_NS: u64 = 5 * MS;

/// An end of a stream: the dialler's or the acceptor's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct EndId(u32);

impl EndId {
    pub(super) const fn other(self) -> Self {
        Self(self.0 ^ 1)
    }
}

/// Something that happens to a stream at its time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum StreamStep {
    /// The request of this dialler arrives.
    Request(EndId),
    /// Bytes arrive at this end.
    Flow(EndId),
    /// An end learns that its stream is broken.
    Break(EndId),
}

/// Where an end is: of a node, on its rail, with one of its shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seat {
    pub(super) node: usize,
    pub(super) rail: NiId,
    pub(super) shard: usize,
}

/// One end, with what is on its way to it.
struct End {
    seat: Seat,
    /// Whether a driver has it.
    is_open: bool,
    is_broken: bool,
    /// What the other end has sent and this one has not read: first what has arrived.
    bytes: VecDeque<u8>,
    arrived_bytes: usize,
    /// Whether the other end sends no more, and whether that is known here.
    is_finished: bool,
    has_ended: bool,
    /// Whether what has not arrived never will.
    is_lost: bool,
    /// Whether a step of it is to come.
    is_flowing: bool,
    /// Nothing arrives until then.
    silent_until: u64,
    /// Whether the other end waits for room.
    is_awaited: bool,
    /// Whether nothing is there that reads or writes.
    is_mute: bool,
}

impl End {
    const fn new(seat: Seat) -> Self {
        Self {
            seat,
            is_open: true,
            is_broken: false,
            bytes: VecDeque::new(),
            arrived_bytes: 0,
            is_finished: false,
            has_ended: false,
            is_lost: false,
            is_flowing: false,
            silent_until: 0,
            is_awaited: false,
            is_mute: false,
        }
    }

    /// What has not arrived never will.
    fn lose(&mut self) {
        self.is_lost = true;
        self.bytes.truncate(self.arrived_bytes);
    }
}

/// All streams that there ever were.
pub(super) struct Streams {
    plan: StreamPlan,
    ends: Vec<End>,
    /// Whether streams break, stop and so on.
    pub(super) is_faulty: bool,
    /// What is to happen, and when.
    pub(super) due: Vec<(u64, StreamStep)>,
    /// Ends for which something has changed: their shards have a turn, at this time.
    pub(super) woken: Vec<(u64, Seat)>,
}

impl Streams {
    pub(super) const fn new(plan: StreamPlan) -> Self {
        Self { plan, ends: Vec::new(), is_faulty: true, due: Vec::new(), woken: Vec::new() }
    }

    fn end(&self, end: EndId) -> &End {
        &self.ends[end.0 as usize]
    }

    fn end_mut(&mut self, end: EndId) -> &mut End {
        &mut self.ends[end.0 as usize]
    }

    fn latency(&self, random: &mut Random) -> u64 {
        self.plan.latency_ns + random.bits() % (self.plan.jitter_ns + 1)
    }

    pub(super) fn seat(&self, end: EndId) -> Seat {
        self.end(end).seat
    }

    pub(super) fn is_open(&self, end: EndId) -> bool {
        self.end(end).is_open
    }

    /// The end goes to another shard of its node.
    pub(super) fn move_to(&mut self, end: EndId, shard: usize) {
        self.end_mut(end).seat.shard = shard;
    }

    /// Dials: from a shard to a node, which will choose the shard that accepts.
    pub(super) fn dial(
        &mut self,
        now: u64,
        from: Seat,
        to: (usize, NiId),
        random: &mut Random,
        counts: &mut Counts,
    ) -> EndId {
        let end = EndId(self.ends.len() as u32);
        let target = End::new(Seat { node: to.0, rail: to.1, shard: 0 });
        self.ends.extend([End::new(from), End { is_open: false, ..target }]);
        let mut at = now + self.latency(random);
        if self.is_faulty && happens(random, self.plan.late_dials) {
            counts.add(Fault::DialLate);
            at += random.bits() % self.plan.late_ns;
        }
        self.due.push((at, StreamStep::Request(end)));
        end
    }

    /// Dials an address of a node where nothing reads or writes; whether it accepts.
    pub(super) fn dial_mute(
        &mut self,
        now: u64,
        from: Seat,
        (node, rail, accepts): (usize, NiId, bool),
        random: &mut Random,
    ) -> EndId {
        let end = EndId(self.ends.len() as u32);
        let target = End::new(Seat { node, rail, shard: 0 });
        self.ends.extend([End::new(from), End { is_open: false, is_mute: true, ..target }]);
        if accepts {
            self.due.push((now + self.latency(random), StreamStep::Request(end)));
        }
        end
    }

    /// Whether nothing reads or writes at an end.
    pub(super) fn is_mute(&self, end: EndId) -> bool {
        self.end(end).is_mute
    }

    /// The ends that have accepted where nothing reads or writes.
    pub(super) fn mute(&self) -> Vec<EndId> {
        let ends = (0..self.ends.len() as u32).map(EndId);
        ends.filter(|end| self.is_mute(*end) && self.is_open(*end)).collect()
    }

    /// A shard accepts what an end has dialled: the end that it has then.
    pub(super) fn accept(&mut self, dialler: EndId, shard: usize) -> EndId {
        let end = dialler.other();
        let accepted = self.end_mut(end);
        (accepted.is_open, accepted.seat.shard) = (true, shard);
        end
    }

    /// How many bytes an end may send now. If that is none, its shard has a turn when there is room.
    pub(super) fn room_bytes(&mut self, end: EndId) -> usize {
        let window_bytes = self.plan.window_bytes;
        if self.end(end).is_broken {
            return 0;
        }
        let to = self.end_mut(end.other());
        // Bytes that are lost look to the sender as if they had been sent.
        let used_bytes = if to.is_lost { 0 } else { to.bytes.len() };
        to.is_awaited = used_bytes == window_bytes;
        window_bytes - used_bytes
    }

    /// Bytes that an end has sent, and that have not arrived.
    pub(super) fn unacknowledged_bytes(&self, end: EndId) -> u64 {
        let to = self.end(end.other());
        // What is lost is not acknowledged, however much it was.
        if to.is_lost { u64::MAX } else { (to.bytes.len() - to.arrived_bytes) as u64 }
    }

    /// Sends bytes, no more than there is room for.
    pub(super) fn write(&mut self, now: u64, end: EndId, bytes: &[u8], random: &mut Random) {
        let room_bytes = self.room_bytes(end);
        assert!(bytes.len() <= room_bytes, "{} bytes are sent where {room_bytes} may be", bytes.len());
        let at = now + self.latency(random);
        let to = self.end_mut(end.other());
        if to.is_lost {
            // The answer says that there is no such stream.
            return self.due.push((at, StreamStep::Break(end)));
        }
        to.bytes.extend(bytes);
        if !bytes.is_empty() && !std::mem::replace(&mut to.is_flowing, true) {
            self.due.push((at, StreamStep::Flow(end.other())));
        }
    }

    /// What has arrived at an end and was not read, of which it reads so many bytes at most.
    pub(super) fn peek(&self, end: EndId, count: usize) -> Vec<u8> {
        let End { bytes, arrived_bytes, .. } = self.end(end);
        let (first, second) = bytes.as_slices();
        let count = count.min(*arrived_bytes);
        let from_first = count.min(first.len());
        [&first[..from_first], &second[..count - from_first]].concat()
    }

    pub(super) fn arrived_bytes(&self, end: EndId) -> usize {
        self.end(end).arrived_bytes
    }

    /// The end has read so many bytes.
    pub(super) fn read(&mut self, now: u64, end: EndId, count: usize, random: &mut Random) {
        let at = now + self.latency(random);
        let other = self.end(end.other()).seat;
        let end = self.end_mut(end);
        end.bytes.drain(..count);
        end.arrived_bytes -= count;
        if std::mem::take(&mut end.is_awaited) {
            self.woken.push((at, other));
        }
    }

    /// Whether an end has all that will ever arrive.
    pub(super) fn has_ended(&self, end: EndId) -> bool {
        let end = self.end(end);
        end.is_broken || end.has_ended
    }

    /// A driver closes its end. What it has sent arrives, unless it has left something unread.
    pub(super) fn close(&mut self, now: u64, end: EndId, random: &mut Random) {
        let at = now + self.latency(random);
        let own = self.end_mut(end);
        let has_unread = own.arrived_bytes != 0;
        own.is_open = false;
        own.bytes.clear();
        (own.arrived_bytes, own.is_lost) = (0, true);
        let other = self.end_mut(end.other());
        if has_unread {
            other.lose();
            return self.due.push((at, StreamStep::Break(end.other())));
        }
        other.is_finished = true;
        if !std::mem::replace(&mut other.is_flowing, true) {
            self.due.push((at, StreamStep::Flow(end.other())));
        }
    }

    /// Bytes arrive at an end, if they are `carried`; those that follow do later.
    pub(super) fn flow(&mut self, now: u64, end: EndId, is_carried: bool, random: &mut Random) {
        let StreamPlan { piece_bytes, gap_ns, .. } = self.plan;
        let after = now + 1 + random.bits() % gap_ns;
        let answered_at = now + self.latency(random);
        let own = self.end_mut(end);
        own.is_flowing = false;
        if own.is_lost {
            if !own.is_open {
                self.due.push((answered_at, StreamStep::Break(end.other())));
            }
            return;
        }
        if !is_carried || now < own.silent_until {
            own.is_flowing = true;
            return self.due.push((now + RETRY_NS, StreamStep::Flow(end)));
        }
        let left = own.bytes.len() - own.arrived_bytes;
        let most = if random.once_in(4) { piece_bytes } else { 1 + random.below(piece_bytes) };
        let count = left.min(most);
        own.arrived_bytes += count;
        own.has_ended = count == left && own.is_finished;
        if count < left || (own.is_finished && !own.has_ended) {
            own.is_flowing = true;
            self.due.push((after, StreamStep::Flow(end)));
        }
        let seat = self.seat(end);
        self.woken.push((now + 500, seat));
    }

    /// An end learns that its stream is broken. What has arrived may be lost to it as well.
    pub(super) fn break_end(&mut self, now: u64, end: EndId, random: &mut Random) {
        let keeps = random.once_in(2);
        let own = self.end_mut(end);
        if std::mem::replace(&mut own.is_broken, true) || !own.is_open {
            return;
        }
        own.lose();
        if !keeps {
            own.bytes.clear();
            own.arrived_bytes = 0;
        }
        let seat = own.seat;
        self.end_mut(end.other()).lose();
        self.woken.push((now + 500, seat));
    }

    /// The streams that carry messages, by their diallers.
    fn carriers(&self) -> Vec<EndId> {
        let diallers = (0..self.ends.len() as u32).step_by(2).map(EndId);
        let is_whole = |end: &EndId| {
            [*end, end.other()].into_iter().all(|end| self.is_open(end) && !self.end(end).is_broken)
        };
        diallers.filter(is_whole).collect()
    }

    /// A stream, and all that is under way on it, is lost. Its ends learn it at times of their own.
    pub(super) fn break_any(&mut self, now: u64, random: &mut Random, counts: &mut Counts) {
        let carriers = self.carriers();
        if carriers.is_empty() || !self.is_faulty {
            return;
        }
        counts.add(Fault::StreamBroken);
        let end = random.pick(&carriers);
        for end in [end, end.other()] {
            let most = random.pick(&[50 * US, 20 * MS, PROBE_NS]);
            let at = now + 1 + random.bits() % most;
            self.end_mut(end).lose();
            self.due.push((at, StreamStep::Break(end)));
        }
    }

    /// Nothing arrives by one direction of a stream for a while, or by both: of one that is busy, where there
    /// is one, so that a message is cut in two.
    pub(super) fn silence_any(&mut self, now: u64, random: &mut Random, counts: &mut Counts) {
        let mut carriers = self.carriers();
        if carriers.is_empty() || !self.is_faulty {
            return;
        }
        let is_busy = |end: &EndId| [*end, end.other()].into_iter().any(|end| self.end(end).is_flowing);
        if carriers.iter().any(is_busy) {
            carriers.retain(is_busy);
        }
        let dialler = random.pick(&carriers);
        self.silence(now, dialler, random, counts);
    }

    /// Silences some streams as soon as they are connected.
    pub(super) fn silence_new(&mut self, now: u64, dialler: EndId, random: &mut Random, counts: &mut Counts) {
        if self.is_faulty && happens(random, self.plan.silent_dials) {
            self.silence(now, dialler, random, counts);
        }
    }

    fn silence(&mut self, now: u64, dialler: EndId, random: &mut Random, counts: &mut Counts) {
        counts.add(Fault::StreamSilent);
        let until = now + random.bits() % self.plan.silence_ns;
        let ends = random.pick(&[[dialler; 2], [dialler.other(); 2], [dialler, dialler.other()]]);
        ends.into_iter().for_each(|end| self.end_mut(end).silent_until = until);
    }

    /// A node has ended without a word: so have its ends.
    pub(super) fn end_node(&mut self, now: u64, node: usize, random: &mut Random) {
        for end in (0..self.ends.len() as u32).map(EndId) {
            if self.end(end).seat.node != node || !self.is_open(end) {
                continue;
            }
            let own = self.end_mut(end);
            own.is_open = false;
            own.arrived_bytes = 0;
            own.lose();
            let at = now + 1 + random.bits() % PROBE_NS;
            self.end_mut(end.other()).lose();
            self.due.push((at, StreamStep::Break(end.other())));
        }
    }

    /// No more faults.
    pub(super) fn heal(&mut self) {
        self.is_faulty = false;
        self.ends.iter_mut().for_each(|end| end.silent_until = 0);
    }

    /// Whether nothing is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.ends.iter().all(|end| !end.is_open || end.bytes.is_empty())
    }

    /// Ends that the drivers of a node's shard have.
    pub(super) fn open_count(&self, node: usize, shard: usize) -> usize {
        let is_its = |end: &&End| end.is_open && (end.seat.node, end.seat.shard) == (node, shard);
        self.ends.iter().filter(is_its).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: StreamPlan = StreamPlan { piece_bytes: 3, window_bytes: 10, ..StreamPlan::NONE };
    const SEATS: [Seat; 2] =
        [Seat { node: 0, rail: NiId(0), shard: 0 }, Seat { node: 1, rail: NiId(0), shard: 0 }];

    /// A stream, and its ends.
    fn stream(random: &mut Random) -> (Streams, EndId, EndId) {
        let mut streams = Streams::new(PLAN);
        let dialler = streams.dial(0, SEATS[0], (1, NiId(0)), random, &mut Counts::default());
        assert_eq!(streams.due.pop().unwrap().1, StreamStep::Request(dialler));
        let acceptor = streams.accept(dialler, 0);
        (streams, dialler, acceptor)
    }

    /// Lets happen what is to happen; how many steps that were.
    fn run(streams: &mut Streams, random: &mut Random) -> usize {
        let mut steps = 0;
        while let Some((at, step)) = streams.due.pop() {
            steps += 1;
            match step {
                StreamStep::Flow(end) => streams.flow(at, end, true, random),
                StreamStep::Break(end) => streams.break_end(at, end, random),
                StreamStep::Request(_) => unreachable!("all is dialled"),
            }
        }
        steps
    }

    #[test]
    fn bytes_arrive_in_pieces_and_no_more_than_there_is_room_for() {
        let random = &mut Random::new(1);
        let (mut streams, dialler, acceptor) = stream(random);
        let sent: Vec<u8> = (0..25).collect();
        assert_eq!(streams.room_bytes(dialler), 10);
        streams.write(0, dialler, &sent[..10], random);
        assert_eq!(streams.room_bytes(dialler), 0);
        assert!(run(&mut streams, random) >= 4);
        assert_eq!(streams.peek(acceptor, 100), sent[..10]);
        streams.woken.clear();
        streams.read(0, acceptor, 4, random);
        assert_eq!(streams.woken.pop().unwrap().1, SEATS[0]);
        assert_eq!(streams.room_bytes(dialler), 4);
        streams.write(0, dialler, &sent[10..14], random);
        streams.close(0, dialler, random);
        assert!(!streams.has_ended(acceptor));
        run(&mut streams, random);
        assert_eq!(streams.peek(acceptor, 100), sent[4..14]);
        assert!(streams.has_ended(acceptor) && !streams.is_quiet());
    }

    #[test]
    fn what_is_under_way_on_a_broken_stream_is_lost() {
        let random = &mut Random::new(1);
        let (mut streams, dialler, acceptor) = stream(random);
        streams.write(0, dialler, &[1, 2, 3], random);
        streams.break_any(0, random, &mut Counts::default());
        run(&mut streams, random);
        assert!(streams.has_ended(acceptor) && streams.has_ended(dialler) && streams.is_quiet());
        assert_eq!(streams.room_bytes(dialler), 0);
    }
}
