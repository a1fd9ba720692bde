//! The sending side: acknowledgements, losses, and the ends of messages.

use lnet_wire::frame::Ack;

use super::congestion::OVERTAKEN_FRAMES;
use super::message::Stage;
use super::record::Cargo;
use super::state::Xfer;
use super::stats::XferDrop;
use crate::list::{List, NONE};
use crate::lnd::{Status, Uplink};
use crate::time::Instant;

/// An acknowledgement that is still to be taken in.
pub(super) struct Unread {
    /// When it came.
    pub(super) at: Instant,
    pub(super) peer: u32,
    pub(super) shard: u8,
    pub(super) ack: Ack,
}

impl Xfer {
    /// Takes in the acknowledgement that came with the last data.
    #[inline]
    pub(super) fn catch_up(&mut self, up: &mut impl Uplink) {
        if let Some(Unread { at, peer, shard, ack }) = self.unread.take() {
            self.acknowledged(at, peer, shard, &ack, up);
        }
    }

    /// Takes in what a shard of a peer has received from this one.
    pub(super) fn acknowledged(
        &mut self,
        now: Instant,
        peer: u32,
        shard: u8,
        ack: &Ack,
        up: &mut impl Uplink,
    ) {
        let slot = self.peers.slab[peer].flows[usize::from(shard)];
        let number_of = |xfer: &Self| xfer.flows.get(slot).and_then(|flow| flow.number_of(ack.highest));
        let Some(highest) = number_of(self) else {
            self.counters.count_drop(XferDrop::BadAck);
            return;
        };
        let (mut frames, mut bytes, mut lost) = (0, 0, 0);
        let reordering = self.flows[slot].congestion.reordering();
        let mut at = self.flows[slot].outstanding.first();
        while let Some(record) = self.records.get(at) {
            let (number, sent_at, cost) = (record.number, record.sent_at, record.cost_bytes);
            if number > highest {
                break;
            }
            let next = List::next(&self.records, at);
            let distance = highest - number;
            if arrived(distance, ack.below) {
                if distance == 0 && cost != 0 {
                    self.flows[slot].congestion.measure(now - sent_at);
                }
                frames += u32::from(cost != 0);
                bytes += cost;
                self.land(now, slot, at, up);
            } else if distance >= OVERTAKEN_FRAMES || now - sent_at > reordering {
                lost += u32::from(cost != 0);
                self.lose(slot, at);
            }
            at = next;
        }
        frames += self.land_late(now, slot, highest, ack.below, up);
        let flow = &mut self.flows[slot];
        flow.highest_acked = flow.highest_acked.max(Some(highest));
        flow.congestion.granted(ack.grant_bytes);
        if frames != 0 {
            flow.acked_at = Some(now);
            flow.waits_since = now;
        }
        let next_number = flow.next_number;
        if flow.congestion.acknowledged(highest, next_number, (frames, bytes), lost) {
            self.counters.backoffs += 1;
        }
        self.watch_losses(slot);
        self.go_on(slot);
        self.go_on_with_records();
    }

    /// Records that counted as lost, and wait to be sent again, may have arrived after all. How many frames.
    fn land_late(&mut self, now: Instant, slot: u32, highest: u64, below: u64, up: &mut impl Uplink) -> u32 {
        let mut landed = 0;
        let mut at = self.flows[slot].pending.first();
        while let Some(record) = self.records.get(at) {
            let next = List::next(&self.records, at);
            if record.sends != 0 && highest.checked_sub(record.number).is_some_and(|far| arrived(far, below))
            {
                let flow = &mut self.flows[slot];
                flow.pending.remove(&mut self.records, at);
                flow.outstanding.push_front(&mut self.records, at);
                self.land(now, slot, at, up);
                landed += 1;
            }
            at = next;
        }
        if landed != 0 {
            self.flows[slot].congestion.restore();
        }
        landed
    }

    /// Frames that were overtaken count as lost after a while.
    fn watch_losses(&mut self, slot: u32) {
        if let Some(at) = self.loss_time(slot) {
            self.set_timer(at);
        }
    }

    /// When the oldest outstanding frame counts as lost, if later ones have been acknowledged.
    pub(super) fn loss_time(&self, slot: u32) -> Option<Instant> {
        let flow = &self.flows[slot];
        let first = self.records.get(flow.outstanding.first())?;
        let overtaken = flow.highest_acked.is_some_and(|highest| first.number < highest);
        overtaken.then(|| first.sent_at + flow.congestion.reordering())
    }

    /// Lets a flow send, if it has something.
    pub(super) fn go_on(&mut self, slot: u32) {
        if self.flows[slot].has_more() {
            self.make_ready(slot);
        }
    }

    /// Lets all flows go on when one had stopped for want of a record, and some are free again.
    #[inline]
    fn go_on_with_records(&mut self) {
        let few = (self.records.capacity() - self.records_kept) / 8;
        if self.short_of_records && self.free_records() > few {
            self.short_of_records = false;
            for flow in 0..self.flows.capacity() {
                if self.flows.get(flow).is_some() {
                    self.go_on(flow);
                }
            }
        }
    }

    /// A record has arrived.
    fn land(&mut self, now: Instant, flow: u32, record: u32, up: &mut impl Uplink) {
        self.flows[flow].outstanding.remove(&mut self.records, record);
        let record = self.records.remove(record);
        self.let_go(flow, &record);
        self.flows[flow].in_flight_bytes -= record.cost_bytes;
        if let Cargo::Fragment { message, .. } = record.cargo {
            self.messages[message].open_frames -= 1;
            if self.messages[message].is_cut() && self.messages[message].open_frames == 0 {
                self.finish(now, message, Status::Ok, up);
            }
        }
    }

    /// A record is to be sent again.
    pub(super) fn lose(&mut self, flow: u32, record: u32) {
        let flow = &mut self.flows[flow];
        flow.outstanding.remove(&mut self.records, record);
        flow.in_flight_bytes -= core::mem::take(&mut self.records[record].cost_bytes);
        flow.pending.push_back(&mut self.records, record);
    }

    /// Takes all frames of a message out of its flow.
    pub(super) fn withdraw_frames(&mut self, message: u32) {
        let slot = self.messages[message].flow;
        for outstanding in [true, false] {
            let flow = &self.flows[slot];
            let mut at = if outstanding { flow.outstanding.first() } else { flow.pending.first() };
            while self.messages[message].open_frames != 0 && at != NONE {
                let next = List::next(&self.records, at);
                if matches!(self.records[at].cargo, Cargo::Fragment { message: of, .. } if of == message) {
                    self.withdraw(slot, at, outstanding);
                    self.messages[message].open_frames -= 1;
                }
                at = next;
            }
        }
        assert_eq!(self.messages[message].open_frames, 0, "frames of a message are in no list");
    }

    /// Takes a record out of its flow. What it had cost passes to the next one of the same frame.
    pub(super) fn withdraw(&mut self, slot: u32, record: u32, outstanding: bool) {
        let next = List::next(&self.records, record);
        let flow = &mut self.flows[slot];
        let list = if outstanding { &mut flow.outstanding } else { &mut flow.pending };
        list.remove(&mut self.records, record);
        let record = self.records.remove(record);
        self.let_go(slot, &record);
        let flow = &mut self.flows[slot];
        let same_frame = outstanding && next != NONE && self.records[next].number == record.number;
        if same_frame && record.cost_bytes != 0 {
            self.records[next].cost_bytes = record.cost_bytes;
        } else {
            flow.in_flight_bytes -= record.cost_bytes;
        }
    }

    /// Takes a message out of every list that it is in, with its frames; it keeps its contact and its
    /// deadline.
    pub(super) fn detach(&mut self, slot: u32) {
        let message = &self.messages[slot];
        let (stage, contact, peer) = (message.stage, message.contact, message.peer);
        match stage {
            Stage::Waiting => self.contacts.slab[contact].waiting.remove(&mut self.messages, slot),
            Stage::Parked => self.peers.slab[peer].parked.remove(&mut self.messages, slot),
            Stage::Queued | Stage::Sent => {
                if stage == Stage::Queued {
                    self.unqueue(slot);
                }
                self.withdraw_frames(slot);
                self.peers.slab[peer].unfinished.remove(&mut self.messages, slot);
            }
        }
    }

    /// Takes a message of which parts were never sent out of its flow's lists.
    pub(super) fn unqueue(&mut self, slot: u32) {
        let flow = &mut self.flows[self.messages[slot].flow];
        if self.messages[slot].begun {
            flow.begun.remove(&mut self.messages, slot);
            flow.begun_count -= 1;
        } else {
            flow.queue.remove(&mut self.messages, slot);
        }
    }

    /// Ends a message.
    pub(super) fn finish(&mut self, now: Instant, slot: u32, status: Status, up: &mut impl Uplink) {
        let stage = self.messages[slot].stage;
        self.detach(slot);
        if stage != Stage::Parked {
            self.deadlines.remove(&mut self.messages, slot);
        }
        let message = self.messages.remove(slot);
        self.contacts.release(message.contact);
        self.go_on_with_records();
        up.sent(now, message.transmit.tx, status);
    }
}

/// Whether an acknowledgement tells of the frame that is so far below its highest one.
#[inline]
const fn arrived(distance: u64, below: u64) -> bool {
    distance == 0 || (distance <= 64 && below >> (distance - 1) & 1 != 0)
}
