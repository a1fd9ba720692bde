//! A shard with its transfer machine, and the driver between them and the frames.
//!
//! The driver does what that of the `xdp` LND does: it turns what is to be sent into frames, as long as it
//! has buffers; checks the frames that arrive; hands those of a sibling shard over; copies payload.

use std::collections::VecDeque;
use std::sync::Arc;

use lnet_core::Shard;
use lnet_core::handle::{EqHandle, ShardId};
use lnet_core::lnd::{Cause, Lent, NiId, Transmit, Verdict};
use lnet_core::shard::mesh::MeshMessage;
use lnet_core::time::Instant;
use lnet_core::topology::{NiStatus, Topology};
use lnet_core::xfer::{Action, Arrived, BufferId, Outgoing, Replay, Xfer, XferConfig};
use lnet_wire::Nid;
use lnet_wire::frame::Kind;
use lnet_wire::steer::SteerKey;

use super::frame::{self, Decoded};
use super::ledger::Ledger;
use super::memory::Memory;
use super::node::make_xfer;
use super::plan::{MS, Plan};
use super::pool::Pool;
use super::report::{Counts, Fault};
use super::trace::Trace;
use super::uplink::{Delayed, Desk, Receiving, Up, unmatched};
use super::{Bug, Bugs};
use crate::bpf::random::Random;

/// When a driver with a bug writes a span of a sibling again.
const LEASE_NS: u64 = 5 * MS;

/// A frame that has arrived, in a buffer of its node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) frame: u32,
    pub(super) ni: NiId,
    pub(super) from: Nid,
}

/// A frame that is to leave, in a buffer of its node.
pub(super) struct Leaving {
    pub(super) frame: u32,
    pub(super) ni: NiId,
    pub(super) to: Nid,
}

/// What a lane works with besides what is its own.
pub(super) struct Surroundings<'a> {
    pub(super) memory: &'a mut Memory,
    pub(super) send_pool: &'a mut Pool,
    pub(super) receive_pool: &'a mut Pool,
    pub(super) ledger: &'a mut Ledger,
    pub(super) random: &'a mut Random,
    pub(super) counts: &'a mut Counts,
    pub(super) trace: &'a mut Trace,
    pub(super) plan: &'a Plan,
    pub(super) bugs: &'a mut Bugs,
    /// Rails that are open.
    pub(super) open: [bool; 2],
    /// Frames to be sent.
    pub(super) leaving: &'a mut Vec<Leaving>,
    /// Frames of sibling shards.
    pub(super) handed_over: &'a mut Vec<(u8, Arrival)>,
    /// How much each sibling can be said now, and what is.
    pub(super) mesh_room: &'a mut [usize],
    pub(super) said: &'a mut Vec<(u8, MeshMessage)>,
}

/// A shard, its transfer machine and its driver.
pub(super) struct Lane {
    pub(super) shard: Shard,
    pub(super) xfer: Xfer,
    pub(super) queues: [EqHandle; 2],
    pub(super) desk: Desk,
    pub(super) arrived: VecDeque<Arrival>,
    /// What siblings have said.
    pub(super) heard: VecDeque<(ShardId, MeshMessage)>,
    buffered: Vec<Option<Arrival>>,
    /// When its next turn is.
    pub(super) turn_at: Option<u64>,
    /// Whether its events will be looked at.
    pub(super) is_polled: bool,
    name: String,
}

impl Lane {
    pub(super) fn new(
        shard: Shard,
        xfer: Xfer,
        (queues, rails): ([EqHandle; 2], &[Nid]),
        mut desk: Desk,
        buffered: u32,
        name: String,
    ) -> Self {
        desk.set_slots(&shard, rails);
        let buffered = (0..buffered).map(|_| None).collect();
        Self {
            shard,
            xfer,
            queues,
            desk,
            arrived: VecDeque::new(),
            heard: VecDeque::new(),
            buffered,
            turn_at: None,
            is_polled: false,
            name,
        }
    }

    /// Lets go of all delays.
    pub(super) fn end_delays(&mut self) {
        self.desk.delays = false;
        self.desk.delayed.iter_mut().for_each(|delayed| delayed.until = 0);
    }

    /// One round of the driver's loop.
    pub(super) fn turn(&mut self, now: Instant, around: &mut Surroundings<'_>) {
        self.shard.handle_timeout(now);
        while let Some((from, message)) = self.heard.pop_front() {
            let name = &self.name;
            around.trace.say(|| format!("{name} hears of {} {message:?}", from.0));
            let before = unmatched(&self.shard);
            self.shard.handle_mesh(now, from, message);
            let missed = unmatched(&self.shard) != before;
            self.resume_kept(now, missed, around);
        }
        self.write_late(now, around);
        let Self { shard, xfer, desk, name, .. } = self;
        xfer.handle_timeout(now, &mut Up { shard, desk, around, name });
        self.replay(now, around);
        for _ in 0..around.plan.budget {
            let Some(arrival) = self.arrived.pop_front() else { break };
            self.take_in(now, arrival, around);
            self.replay(now, around);
        }
        self.resume(now, around);
        self.replay(now, around);
        self.submit(now, around);
        self.transmit(now, around);
        self.talk(around);
    }

    /// What the shard has to say goes to its siblings, as far as they have room.
    fn talk(&mut self, around: &mut Surroundings<'_>) {
        for to in 0..around.mesh_room.len() {
            while around.mesh_room[to] != 0
                && let Some(message) = self.shard.poll_mesh_to(ShardId(to as u8))
            {
                around.mesh_room[to] -= 1;
                around.counts.mesh += 1;
                around.said.push((to as u8, message));
            }
        }
    }

    /// A driver with a bug writes into spans of siblings that it has returned.
    fn write_late(&mut self, now: Instant, around: &mut Surroundings<'_>) {
        while let Some((_, span, bytes)) = self.desk.leased.pop_front_if(|(until, ..)| *until <= now.0) {
            match around.memory.bytes_mut(&span) {
                Some(to) => to.copy_from_slice(&bytes),
                None => around
                    .ledger
                    .fail("a descriptor lives as long as its spans", || format!("{span:?} is written")),
            }
        }
    }

    /// The driver gives up a device.
    pub(super) fn fail_interface(
        &mut self,
        now: Instant,
        ni: NiId,
        cause: Cause,
        around: &mut Surroundings<'_>,
    ) {
        let Self { shard, xfer, desk, name, .. } = self;
        xfer.fail_interface(now, ni, cause, &mut Up { shard, desk, around, name });
    }

    /// A newer snapshot has come. What the transfer machine has for an interface that is closed ends, if no other
    /// carries it. The first interface after all have gone comes with another machine, made from `fresh`.
    pub(super) fn install(
        &mut self,
        now: Instant,
        snapshot: &Arc<Topology>,
        (rails, datagram_max_bytes): (&[Nid], [u32; 2]),
        fresh: &XferConfig,
        around: &mut Surroundings<'_>,
    ) {
        self.shard.update(now, Arc::clone(snapshot));
        self.desk.set_slots(&self.shard, rails);
        for (rail, nid) in rails.iter().enumerate() {
            let ni = NiId(rail as u16);
            let local = snapshot.local_nis().find(|(_, local)| local.nid == *nid);
            let is_there = local.is_some_and(|(_, local)| local.status != NiStatus::Closed);
            match (self.xfer.nid_of(ni).is_some(), is_there) {
                (true, false) => self.remove_interface(now, ni, around),
                (false, true) => {
                    let is_first = (0..rails.len()).all(|rail| self.xfer.nid_of(NiId(rail as u16)).is_none());
                    if is_first {
                        self.renew_xfer(fresh, around);
                    }
                    self.xfer.add_interface(ni, *nid, datagram_max_bytes[rail]);
                }
                _ => {}
            }
        }
    }

    fn remove_interface(&mut self, now: Instant, ni: NiId, around: &mut Surroundings<'_>) {
        let Self { shard, xfer, desk, name, .. } = self;
        xfer.remove_interface(now, ni, &mut Up { shard, desk, around, name });
        self.replay(now, around);
    }

    /// Begins another life of the transfer protocol, once all of the former one has ended.
    fn renew_xfer(&mut self, fresh: &XferConfig, around: &mut Surroundings<'_>) {
        around.counts.add_xfer(self.xfer.counters());
        let usage = self.xfer.usage();
        let left = [usage.messages, usage.incoming, usage.partials];
        let name = &self.name;
        around
            .ledger
            .expect(left == [0; 3], "all ends with the last interface", || format!("{name}: {usage:?}"));
        for arrival in self.buffered.iter_mut().filter_map(Option::take) {
            around.receive_pool.free(arrival.frame);
        }
        self.xfer = make_xfer(fresh, self.shard.id(), around.bugs);
    }

    /// When the next turn is to be, if nothing arrives.
    pub(super) fn next_turn(&self, now: u64, has_frames: bool) -> Option<u64> {
        if !self.arrived.is_empty() || !self.heard.is_empty() || (has_frames && self.xfer.has_transmit()) {
            return Some(now + 1000);
        }
        let timers = [self.shard.poll_timeout(), self.xfer.poll_timeout()].into_iter().flatten();
        let late = self.desk.leased.front().map(|(until, ..)| *until);
        let delays = self.desk.delayed.iter().map(|delayed| delayed.until).chain(late);
        timers.map(|at| at.0).chain(delays).min().map(|at| at.max(now + 1))
    }

    /// Whether nothing is on its way in or out.
    pub(super) fn is_at_rest(&self) -> bool {
        let usage = self.xfer.usage();
        let moving = usage.messages + usage.incoming + usage.partials + usage.frames + usage.buffered;
        let waits = !self.arrived.is_empty() || !self.heard.is_empty() || self.shard.usage().delayed != 0;
        moving == 0 && !waits && self.buffered.iter().all(Option::is_none)
    }

    fn replay(&mut self, now: Instant, around: &mut Surroundings<'_>) {
        while let Some(replay) = self.xfer.poll_replay() {
            let (Replay::Again(BufferId(slot)) | Replay::Forget(BufferId(slot))) = replay;
            let name = &self.name;
            around.trace.say(|| format!("{name} {replay:?}"));
            let Some(arrival) = self.buffered[slot as usize].take() else {
                return around.ledger.fail("frames are conserved", || format!("{replay:?} of no frame"));
            };
            match replay {
                Replay::Again(_) => self.take_in(now, arrival, around),
                Replay::Forget(_) => around.receive_pool.free(arrival.frame),
            }
        }
    }

    fn resume(&mut self, now: Instant, around: &mut Surroundings<'_>) {
        while let Some(at) = self.desk.delayed.iter().position(|delayed| delayed.until <= now.0) {
            let Delayed { rx, ni, from, header, message, .. } = self.desk.delayed.swap_remove(at);
            let Self { shard, xfer, desk, name, .. } = self;
            let mut up = Up { shard, desk, around, name };
            let verdict = up.decide(now, (ni, &from), rx, &header, message);
            if verdict != Verdict::Delay {
                xfer.resume(now, rx, verdict, &mut up);
            }
        }
        self.resume_kept(now, false, around);
    }

    /// What the shard has delayed and decided on; `missed`: it has just found no entry for something.
    fn resume_kept(&mut self, now: Instant, missed: bool, around: &mut Surroundings<'_>) {
        while let Some((_, rx, verdict)) = self.shard.poll_resume() {
            let Self { shard, xfer, desk, name, .. } = self;
            let Some(Receiving { message, header, .. }) = desk.receiving[rx.0 as usize].take() else {
                return around.ledger.fail("what is resumed was delayed", || format!("{name}: {rx:?}"));
            };
            around.counts.resumed += 1;
            if missed && verdict == Verdict::Drop {
                around.ledger.expect_no_entry(message, desk.life);
            }
            let mut up = Up { shard, desk, around, name };
            up.conclude(rx, &header, message, verdict);
            xfer.resume(now, rx, verdict, &mut up);
        }
    }

    /// What the shard wants sent goes to the transfer machine. A message that none follows is sent before that has it.
    fn submit(&mut self, now: Instant, around: &mut Surroundings<'_>) {
        for rail in 0..u16::from(around.plan.rails) {
            let Some(slot) = self.desk.slots[usize::from(rail)] else { continue };
            while let Some(Lent { transmit, more }) = self.shard.poll_transmit(slot) {
                let transmit = &Transmit { ni: NiId(rail), ..*transmit };
                let Some(message) = around.ledger.identify(&transmit.header) else {
                    return around
                        .ledger
                        .fail("what is sent was asked for", || format!("{:?}", transmit.header));
                };
                around.ledger.submitted(message);
                let name = &self.name;
                around.trace.say(|| format!("{name} submits {message:?} {:?}", transmit.header.destination));
                let is_sent = !more && around.send_pool.has_free() && self.send_alone(now, transmit, around);
                if !is_sent && let Err(full) = self.xfer.submit(now, transmit) {
                    self.shard.give_back(full);
                    break;
                }
                self.desk.sending[transmit.tx.0 as usize] = Some((message, now.0));
            }
        }
    }

    /// Sends a message before the transfer machine has it, if that can be: its frame is the next one to be polled.
    fn send_alone(&mut self, now: Instant, transmit: &Transmit, around: &mut Surroundings<'_>) -> bool {
        let Some(preview) = self.xfer.preview(now, transmit) else { return false };
        around.counts.previewed += 1;
        self.send(&preview, around);
        let taken = self.xfer.submit(now, transmit).is_ok();
        around.ledger.expect(taken, "what has a preview is taken", || format!("{:?}", transmit.header));
        let polled = self.xfer.poll_transmit(now);
        let is_same = polled.as_ref() == Some(&preview);
        let found = || format!("{preview:?}, but {polled:?}");
        around.ledger.expect(is_same, "a preview is the frame that is polled", found);
        true
    }

    fn transmit(&mut self, now: Instant, around: &mut Surroundings<'_>) {
        while around.send_pool.has_free() {
            let Some(outgoing) = self.xfer.poll_transmit(now) else { break };
            self.send(&outgoing, around);
        }
    }

    fn send(&mut self, outgoing: &Outgoing, around: &mut Surroundings<'_>) {
        if self.xfer.nid_of(outgoing.ni).is_none() {
            // It was to leave by an interface that has gone.
            return around.counts.add(Fault::NoInterface);
        }
        let Some(frame) = around.send_pool.take() else { return };
        let name = &self.name;
        around.trace.say(|| format!("{name} -> {}", describe(outgoing)));
        let bytes = around.send_pool.bytes_mut(frame);
        let (memory, ledger) = (&*around.memory, &mut *around.ledger);
        frame::encode(outgoing, &self.xfer, around.plan.payload_crc, bytes, |span, bytes| {
            let there = memory.read(span, bytes);
            ledger.expect(there, "a descriptor lives as long as its spans", || format!("{span:?} is read"));
        });
        around.counts.frames += 1;
        around.leaving.push(Leaving { frame, ni: outgoing.ni, to: outgoing.destination });
    }

    /// Takes a frame in, or hands it over; its buffer goes home unless it is kept.
    fn take_in(&mut self, now: Instant, arrival: Arrival, around: &mut Surroundings<'_>) {
        if !around.open[usize::from(arrival.ni.0)] {
            around.counts.add(Fault::NoInterface);
            return around.receive_pool.free(arrival.frame);
        }
        let bytes = std::mem::take(around.receive_pool.bytes_mut(arrival.frame));
        let own = self.xfer.nid_of(arrival.ni);
        let keep = match own.and_then(|own| frame::decode(&bytes, own, &arrival.from)) {
            Some(decoded) => self.take_decoded(now, arrival, &decoded, &bytes, around),
            None => {
                around.counts.refused += 1;
                false
            }
        };
        *around.receive_pool.bytes_mut(arrival.frame) = bytes;
        if !keep {
            around.receive_pool.free(arrival.frame);
        }
    }

    /// Says whether the frame's buffer is still needed.
    fn take_decoded(
        &mut self,
        now: Instant,
        arrival: Arrival,
        frame: &Decoded,
        bytes: &[u8],
        around: &mut Surroundings<'_>,
    ) -> bool {
        let own = u32::from(self.shard.id().0);
        let name = &self.name;
        around.trace.say(|| {
            let (kind, key) = (frame.header.kind, frame.header.key);
            let Decoded { header, transfer, records, .. } = frame;
            format!(
                "{name} <- {kind:?} number {} of {:x}/{} id {:x} oldest {} offset {} of {} ack {:?} ticket {:?}, {} more",
                transfer.number, transfer.incarnation, transfer.shard, key.message_id, transfer.oldest,
                header.fragment_offset, header.total_length, transfer.ack, transfer.ticket, records.len(),
            )
        });
        let owner = self.desk.shard_of(&frame.header.key);
        if owner != own && !around.bugs.has(Bug::MisdirectedKept) {
            around.handed_over.push((owner as u8, arrival));
            return true;
        }
        let key = &frame.header.key;
        let steered_here = frame.records.iter().all(|(delta, lnet, _)| {
            let id = key.message_id.wrapping_add(u64::from(*delta));
            SteerKey::of(lnet, id, key.initiator_hash).is_some_and(|key| self.desk.shard_of(&key) == owner)
        });
        if !steered_here {
            around.ledger.fail("a bundle is of one shard", || format!("{:?}", frame.header));
            return false;
        }
        let arrived = Arrived {
            ni: arrival.ni,
            from: arrival.from,
            header: &frame.header,
            transfer: &frame.transfer,
            lnet: frame.lnet.as_ref(),
            payload_bytes: frame.payload.len() as u32,
            handshake: frame.handshake.as_ref(),
        };
        let Self { shard, xfer, desk, name, .. } = self;
        let mut up = Up { shard, desk, around, name };
        let action = xfer.receive(now, &arrived, &mut up);
        match act(xfer, now, action, &bytes[frame.payload.clone()], &mut up) {
            Some(BufferId(slot)) => {
                let place = &mut self.buffered[slot as usize];
                let in_use = place.replace(arrival).is_some();
                around.ledger.expect(!in_use, "frames are conserved", || format!("hold {slot} is in use"));
                return true;
            }
            None if !frame.header.bundled || matches!(action, Action::Drop(_)) => return false,
            None => {}
        }
        for (delta, lnet, payload) in &frame.records {
            let action = xfer.receive_record(now, &arrived, *delta, lnet, &mut up);
            if act(xfer, now, action, &bytes[payload.clone()], &mut up).is_some() {
                up.around.ledger.fail("no bundle is buffered", || format!("{action:?}"));
            }
        }
        xfer.end_bundle(now, &arrived);
        false
    }
}

/// Does what the transfer machine says; the place of a frame that is to be kept.
fn act(
    xfer: &mut Xfer,
    now: Instant,
    action: Action,
    payload: &[u8],
    up: &mut Up<'_, '_>,
) -> Option<BufferId> {
    let name = up.name;
    up.around.trace.say(|| format!("{name}    {action:?}"));
    match action {
        Action::Write => {
            let span = *xfer.destination();
            let payload = &payload[..span.length_bytes as usize];
            if span.buffer.0.shard() != up.shard.id() {
                up.around.counts.lent += 1;
                if up.around.bugs.has(Bug::LeaseOutlivesMd) {
                    up.desk.leased.push_back((now.0 + LEASE_NS, span, payload.to_vec()));
                }
            }
            match up.around.memory.bytes_mut(&span) {
                Some(to) => to.copy_from_slice(payload),
                None => up
                    .around
                    .ledger
                    .fail("a descriptor lives as long as its spans", || format!("{span:?} is written")),
            }
            xfer.written(now, up);
            None
        }
        Action::Buffer(hold) => Some(hold),
        Action::Done | Action::Drop(_) => None,
    }
}

fn describe(outgoing: &Outgoing) -> String {
    let Outgoing { ni, destination, header, transfer, content } = outgoing;
    let what = match content {
        lnet_core::xfer::Content::Message { payload, bundled, .. } => {
            format!("{} bytes, {bundled} more", payload.map_or(0, |span| span.length_bytes))
        }
        _ => String::new(),
    };
    let steer = if header.kind == Kind::Data { 0 } else { header.key.key >> 2 };
    format!(
        "{destination} by {} {:?} to {steer} number {} id {:x} offset {} of {} ack {:?} ticket {:?} {what}",
        ni.0,
        header.kind,
        transfer.number,
        header.key.message_id,
        header.fragment_offset,
        header.total_length,
        transfer.ack,
        transfer.ticket,
    )
}
