//! Messages that find no place: frames that the driver keeps for a moment, and messages of which the
//! receiver keeps the header and the sender the payload.
//!
//! ```text
//! receiver   Delayed --hold over--> Parked --resume--> Pulled --first fragment--> Receiving
//! sender     Queued, Sent --PARKED--> Parked --PULL--> Queued, under a new id, with the ticket
//! ```
//!
//! Frames of a parked message are not acknowledged: its sender withdraws them when it learns of the parking.

use alloc::collections::VecDeque;

use lnet_wire::frame::Kind;

use super::inflow::{Inflow, Phase};
use super::message::{Outbound, Stage};
use super::record::{Cargo, Record};
use super::state::Xfer;
use super::{HoldId, Replay};
use crate::list::{Link, List, NONE, Node};
use crate::lnd::{Cause, RxId, Status, Uplink, Verdict};
use crate::slab::Slab;
use crate::time::Instant;

struct Hold {
    inflow: u32,
    id: u64,
    until: Instant,
    link: Link,
}

/// Marks the order in which holds end.
struct Order;

super::peer::node!(Hold, Order, link);

/// The frames that the driver keeps.
pub(super) struct Holds {
    slab: Slab<Hold>,
    order: List<Order>,
    ended: VecDeque<Replay>,
}

impl Holds {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            slab: Slab::new(capacity),
            order: List::new(),
            ended: VecDeque::with_capacity(capacity as usize),
        }
    }

    pub(super) const fn count(&self) -> u32 {
        self.slab.used_count()
    }

    /// Keeps a frame of a message until then; all are kept for the same time.
    fn keep(&mut self, inflow: u32, id: u64, until: Instant) -> Option<HoldId> {
        let slot = self.slab.insert(Hold { inflow, id, until, link: Link::UNLINKED }).ok()?;
        self.order.push_back(&mut self.slab, slot);
        Some(HoldId(slot))
    }

    /// How many frames of some inflows are kept.
    fn count_of(&self, is_its: impl Fn(u32) -> bool) -> u32 {
        let mut count = 0;
        let mut at = self.order.first();
        while let Some(hold) = self.slab.get(at) {
            count += u32::from(is_its(hold.inflow));
            at = List::<Order>::next(&self.slab, at);
        }
        count
    }

    /// Ends the keeping of all frames of a message.
    fn end(&mut self, inflow: u32, id: u64, how: fn(HoldId) -> Replay) {
        self.end_where(|hold| hold.inflow == inflow && hold.id == id, how);
    }

    /// Forgets all frames of an inflow.
    pub(super) fn forget_inflow(&mut self, inflow: u32) {
        self.end_where(|hold| hold.inflow == inflow, Replay::Forget);
    }

    fn end_where(&mut self, matches: impl Fn(&Hold) -> bool, how: fn(HoldId) -> Replay) {
        let mut at = self.order.first();
        while at != NONE {
            let next = List::<Order>::next(&self.slab, at);
            if matches(&self.slab[at]) {
                self.order.remove(&mut self.slab, at);
                self.ended.push_back(how(HoldId(at)));
            }
            at = next;
        }
    }

    /// The message of the frame that has been kept for longest, and until when it is.
    pub(super) fn first(&self) -> Option<(u32, u64, Instant)> {
        self.slab.get(self.order.first()).map(|hold| (hold.inflow, hold.id, hold.until))
    }
}

impl Xfer {
    /// What becomes of a frame that the driver keeps.
    pub fn poll_replay(&mut self) -> Option<Replay> {
        let replay = self.holds.ended.pop_front()?;
        let (Replay::Again(HoldId(slot)) | Replay::Forget(HoldId(slot))) = replay;
        self.holds.slab.vacate(slot);
        Some(replay)
    }

    /// Has the driver keep a frame of a message that cannot go on; `None` if it keeps too many, or three quarters of all
    /// for this address, so that there is room for others.
    pub(super) fn hold(&mut self, now: Instant, inflow: u32, id: u64) -> Option<HoldId> {
        let room = self.holds.slab.capacity();
        let address = &self.inflows[inflow].address.1;
        let is_its = |inflow: u32| self.inflows[inflow].address.1 == *address;
        if self.holds.count() >= room / 2 && self.holds.count_of(is_its) >= room / 4 * 3 {
            return None;
        }
        let until = now + self.times.hold;
        let hold = self.holds.keep(inflow, id, until)?;
        self.counters.frames_held += 1;
        self.set_timer(until);
        Some(hold)
    }

    /// The frames of a message are received again.
    pub(super) fn replay(&mut self, inflow: u32, id: u64) {
        self.holds.end(inflow, id, Replay::Again);
    }

    /// The frames of a message are forgotten.
    pub(super) fn holds_forget(&mut self, inflow: u32, id: u64) {
        self.holds.end(inflow, id, Replay::Forget);
    }

    /// Frames that were kept for long enough are forgotten; delayed messages of theirs are parked.
    pub(super) fn end_holds(&mut self, now: Instant) {
        while let Some((inflow, id, until)) = self.holds.first()
            && until <= now
        {
            self.holds_forget(inflow, id);
            if let Some(slot) = self.arrivals.find(inflow, id)
                && self.arrivals.slab[slot].phase == Phase::Delayed
            {
                self.park(now, slot);
            }
        }
    }

    /// Has the sender of a delayed message keep it. If that cannot be said now, its frames come again.
    pub(super) fn park(&mut self, now: Instant, slot: u32) {
        let arriving = &self.arrivals.slab[slot];
        let (inflow, id) = (arriving.inflow, arriving.id);
        if self.notify(now, inflow, Kind::Parked, id, self.ticket(slot)) {
            self.arrivals.slab[slot].phase = Phase::Parked;
            self.inflows[inflow].window.mark(id);
            self.counters.messages_parked += 1;
        }
    }

    /// What the sender is to name a parked message by.
    fn ticket(&self, slot: u32) -> u32 {
        slot | self.arrivals.slab.generation(slot) << crate::handle::SLOT_BITS
    }

    /// The message of a sender that a ticket names.
    pub(super) fn ticket_holder(&self, inflow: u32, ticket: u32) -> Option<u32> {
        let slot = ticket & ((1 << crate::handle::SLOT_BITS) - 1);
        let arriving = self.arrivals.slab.get(slot)?;
        (arriving.inflow == inflow && self.ticket(slot) == ticket).then_some(slot)
    }

    /// Tells the sender of an inflow something about a message; says whether that is on its way.
    pub(super) fn notify(&mut self, now: Instant, inflow: u32, kind: Kind, id: u64, ticket: u32) -> bool {
        let Inflow { peer, shard, .. } = self.inflows[inflow];
        let Some(flow) = self.flow_to(now, peer, shard) else { return false };
        self.tell(now, flow, kind, id, ticket)
    }

    /// Gives a flow something to tell about a message; says whether there was room. No peer has more of it than is
    /// free: one that acknowledges none of it leaves as much for others.
    fn tell(&mut self, now: Instant, slot: u32, kind: Kind, id: u64, ticket: u32) -> bool {
        let peer = self.flows[slot].peer;
        if self.peers.slab[peer].notice_count >= self.records_kept - self.notice_count {
            return false;
        }
        let Some(record) = self.new_record(Cargo::Notice { kind, id, ticket }) else { return false };
        self.peers.slab[peer].notice_count += 1;
        self.notice_count += 1;
        let flow = &mut self.flows[slot];
        flow.owes(now);
        flow.pending.push_back(&mut self.records, record);
        self.make_ready(slot);
        true
    }

    /// A record of a flow is no more.
    #[inline]
    pub(super) fn let_go(&mut self, flow: u32, record: &Record) {
        if matches!(record.cargo, Cargo::Notice { .. }) {
            self.peers.slab[self.flows[flow].peer].notice_count -= 1;
            self.notice_count -= 1;
        }
    }

    /// Goes on with a message that the shard has delayed.
    ///
    /// # Panics
    /// If it was not delayed, or `verdict` is to delay it again.
    pub fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut impl Uplink) {
        let RxId(slot) = rx;
        let arriving = self.arrivals.slab.get(slot).unwrap_or_else(|| panic!("{rx:?} is no message"));
        let (inflow, id, total_bytes) = (arriving.inflow, arriving.id, arriving.total_bytes);
        match (arriving.phase, verdict) {
            (Phase::Delayed, Verdict::Deliver(span)) => {
                self.arrivals.slab[slot].phase = Phase::Receiving(span);
                self.replay(inflow, id);
            }
            (Phase::Delayed, Verdict::Drop) => {
                self.inflows[inflow].window.mark(id);
                self.remove_arriving(slot);
                self.replay(inflow, id);
            }
            (Phase::Parked, Verdict::Deliver(_)) if total_bytes == 0 => {
                self.dismiss(now, slot);
                up.received(now, rx, Status::Ok);
            }
            (Phase::Parked, Verdict::Deliver(span)) => {
                self.arrivals.slab[slot].phase = Phase::Pulled(span);
                self.arrivals.slab[slot].touched_at = now;
                self.counters.messages_pulled += 1;
                self.pull(now, slot);
            }
            (Phase::Parked, Verdict::Drop) => self.dismiss(now, slot),
            (phase, verdict) => panic!("{rx:?} is {phase:?}, and {verdict:?} comes"),
        }
    }

    /// Has the sender of a parked message send it. What cannot be said now is said later.
    pub(super) fn pull(&mut self, now: Instant, slot: u32) {
        let (inflow, id) = (self.arrivals.slab[slot].inflow, self.arrivals.slab[slot].id);
        let said = self.notify(now, inflow, Kind::Pull, id, self.ticket(slot));
        self.arrivals.slab[slot].pull_owed = !said;
    }

    /// Lets go of a parked message, and tells its sender.
    fn dismiss(&mut self, now: Instant, slot: u32) {
        let (inflow, id) = (self.arrivals.slab[slot].inflow, self.arrivals.slab[slot].id);
        // A sender that does not hear of it asks, and is told then.
        self.notify(now, inflow, Kind::Discard, id, self.ticket(slot));
        self.remove_arriving(slot);
    }

    /// Takes in what the receiver of a message says of it.
    pub(super) fn noticed(
        &mut self,
        now: Instant,
        inflow: u32,
        kind: Kind,
        id: u64,
        ticket: u32,
        up: &mut impl Uplink,
    ) {
        let Inflow { peer, shard, .. } = self.inflows[inflow];
        let parked = self.parked_message(peer, shard, id, ticket);
        match kind {
            Kind::Parked => {
                if let Some(message) = self.unfinished_message(peer, shard, |its| its.id == id) {
                    self.set_aside(now, message, ticket);
                } else if parked.is_none() && self.pulled_message(peer, shard, ticket).is_none() {
                    self.notify(now, inflow, Kind::Gone, id, ticket);
                }
            }
            Kind::Pull => {
                // It may overtake the word that the message was parked.
                let unaware = self.unfinished_message(peer, shard, |its| its.id == id);
                let unaware = unaware.filter(|_| parked.is_none());
                if let Some(message) = unaware {
                    self.set_aside(now, message, ticket);
                }
                if let Some(message) = parked.or(unaware) {
                    self.send_again(now, message);
                } else if self.pulled_message(peer, shard, ticket).is_none() {
                    self.notify(now, inflow, Kind::Gone, id, ticket);
                }
            }
            Kind::Discard => {
                let unaware = || self.unfinished_message(peer, shard, |its| its.id == id);
                if let Some(message) = parked.or_else(unaware) {
                    self.finish(now, message, Status::Ok, up);
                }
            }
            Kind::Gone => {
                if let Some(slot) = self.ticket_holder(inflow, ticket)
                    && self.arrivals.slab[slot].id == id
                    && matches!(self.arrivals.slab[slot].phase, Phase::Parked | Phase::Pulled(_))
                {
                    self.abandon(now, slot, Cause::Timeout, up);
                }
            }
            Kind::Ping => {
                if self.ticket_holder(inflow, ticket).is_none() && !self.is_telling(peer, shard, ticket) {
                    self.notify(now, inflow, Kind::Lost, id, ticket);
                }
            }
            Kind::Lost => {
                // The answer to a question that was overtaken has the id from before the message was pulled.
                let its = |message: &Outbound| message.ticket == Some(ticket) && message.id == id;
                let pulled = || self.unfinished_message(peer, shard, its);
                if let Some(message) = parked.or_else(pulled) {
                    self.finish(now, message, Status::Unknown(Cause::Timeout), up);
                }
            }
            kind => unreachable!("{kind:?} is no notice"),
        }
    }

    /// Whether a shard of a peer may not have heard yet what became of a message that it asks after.
    fn is_telling(&self, peer: u32, shard: u8, asked: u32) -> bool {
        let Some(flow) = self.flows.get(self.peers.slab[peer].flows[usize::from(shard)]) else {
            return false;
        };
        [flow.outstanding.first(), flow.pending.first()].into_iter().any(|mut at| {
            while let Some(record) = self.records.get(at) {
                if matches!(record.cargo, Cargo::Notice { kind: Kind::Discard, ticket, .. } if ticket == asked) {
                    return true;
                }
                at = List::next(&self.records, at);
            }
            false
        })
    }

    /// The message that a shard of a peer has parked under this id and ticket.
    fn parked_message(&self, peer: u32, shard: u8, id: u64, ticket: u32) -> Option<u32> {
        let mut at = self.peers.slab[peer].parked.first();
        while let Some(message) = self.messages.get(at) {
            // Other shards of the peer may have given the same ticket.
            if message.ticket == Some(ticket) && message.id == id && message.shard == shard {
                return Some(at);
            }
            at = List::<super::message::Queued>::next(&self.messages, at);
        }
        None
    }

    /// The message that goes to a shard of a peer again for its ticket.
    fn pulled_message(&self, peer: u32, shard: u8, ticket: u32) -> Option<u32> {
        self.unfinished_message(peer, shard, |message| message.ticket == Some(ticket))
    }

    /// A message that a shard of a peer may know of: some of it was sent there.
    fn unfinished_message(&self, peer: u32, shard: u8, wanted: impl Fn(&Outbound) -> bool) -> Option<u32> {
        let mut at = self.peers.slab[peer].unfinished.first();
        while let Some(message) = self.messages.get(at) {
            if message.shard == shard && message.polled && wanted(message) {
                return Some(at);
            }
            at = List::<super::message::Unfinished>::next(&self.messages, at);
        }
        None
    }

    /// Keeps a message that its receiver has parked.
    fn set_aside(&mut self, now: Instant, slot: u32, ticket: u32) {
        self.detach(slot);
        self.deadlines.remove(&mut self.messages, slot);
        let message = &mut self.messages[slot];
        (message.stage, message.ticket) = (Stage::Parked, Some(ticket));
        (message.next_offset, message.begun) = (0, false);
        let (peer, flow) = (message.peer, message.flow);
        if self.peers.slab[peer].parked.is_empty() {
            self.peers.slab[peer].ping_at = now + self.times.message / 4;
            self.set_timer(now + self.times.message / 4);
        }
        self.peers.slab[peer].parked.push_back(&mut self.messages, slot);
        self.go_on(flow);
    }

    /// Sends a parked message under a new id.
    fn send_again(&mut self, now: Instant, slot: u32) {
        self.detach(slot);
        let deadline = now + self.times.message;
        self.messages[slot].deadline = deadline;
        self.deadlines.push_back(&mut self.messages, slot);
        self.set_timer(deadline);
        self.dispatch(now, slot);
    }

    /// Asks after the parked message of a peer that was asked after longest ago.
    pub(super) fn ask_after_parked(&mut self, now: Instant, peer: u32) {
        let slot = self.peers.slab[peer].parked.first();
        if slot == NONE || self.peers.slab[peer].ping_at > now {
            return;
        }
        let next = now + self.times.message / 4;
        self.peers.slab[peer].ping_at = next;
        self.set_timer(next);
        self.peers.slab[peer].parked.remove(&mut self.messages, slot);
        self.peers.slab[peer].parked.push_back(&mut self.messages, slot);
        let message = &self.messages[slot];
        let (id, ticket, shard) = (message.id, message.ticket.unwrap_or_default(), message.shard);
        // Where there is no room for it now, the next question may have some.
        if let Some(flow) = self.flow_to(now, peer, shard) {
            self.tell(now, flow, Kind::Ping, id, ticket);
        }
    }
}
