//! The driver of a lane of the `xdp` LND: between its transfer machine and the frames.
//!
//! The driver does what that of the LND does: it turns what is to be sent into frames, as long as it has
//! buffers; checks the frames that arrive; hands those of a sibling shard over; copies payload.

use std::collections::VecDeque;

use lnet_core::lnd::{Cause, NiId, RxId, Transmit, Verdict};
use lnet_core::time::Instant;
use lnet_wire::Nid;
use lnet_wire::frame::Kind;
use lnet_wire::steer::SteerKey;
use lnet_xdp_proto::{Arrived, BufferId, Disposition, OutgoingFrame, Replay, Xfer, XferConfig, XferNi};

use super::Bug;
use super::frame::{self, Decoded};
use super::node::make_xfer;
use super::plan::MS;
use super::report::Fault;
use super::uplink::Up;

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

/// A transfer machine with its frames.
pub(super) struct Datagrams {
    pub(super) xfer: Xfer,
    pub(super) arrived: VecDeque<Arrival>,
    buffered: Vec<Option<Arrival>>,
}

impl Datagrams {
    pub(super) fn new(xfer: Xfer, buffered: u32) -> Self {
        Self { xfer, arrived: VecDeque::new(), buffered: (0..buffered).map(|_| None).collect() }
    }

    /// Works off timers and what has arrived.
    pub(super) fn receive(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        self.xfer.handle_timeout(now, up);
        self.replay(now, up);
        for _ in 0..up.around.plan.budget {
            let Some(arrival) = self.arrived.pop_front() else { break };
            self.take_in(now, arrival, up);
            self.replay(now, up);
        }
    }

    pub(super) fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut Up<'_, '_>) {
        self.xfer.resume(now, rx, verdict, up);
    }

    pub(super) fn follow(&mut self, now: Instant, transmit: &Transmit, comes: bool, up: &mut Up<'_, '_>) {
        if comes {
            self.xfer.extend(now, transmit);
        } else {
            self.xfer.withdraw(now, transmit.tx, up);
        }
    }

    /// The driver gives up a device.
    pub(super) fn fail_interface(&mut self, now: Instant, ni: NiId, cause: Cause, up: &mut Up<'_, '_>) {
        self.xfer.fail_ni(now, ni, cause, up);
    }

    pub(super) fn remove_interface(&mut self, now: Instant, ni: NiId, up: &mut Up<'_, '_>) {
        self.xfer.remove_ni(now, ni, up);
        self.replay(now, up);
    }

    /// An NI has opened. The first one after all have gone comes with another machine, made from
    /// `fresh`.
    pub(super) fn add_interface(
        &mut self,
        ni: NiId,
        xfer_ni: XferNi,
        fresh: &XferConfig,
        up: &mut Up<'_, '_>,
    ) {
        let is_first = (0..up.desk.slots.len()).all(|rail| self.xfer.nid_of(NiId(rail as u16)).is_none());
        if is_first {
            self.renew_xfer(fresh, up);
        }
        self.xfer.add_ni(ni, xfer_ni);
    }

    /// Begins another life of the transfer protocol, once all of the former one has ended.
    fn renew_xfer(&mut self, fresh: &XferConfig, up: &mut Up<'_, '_>) {
        up.around.counts.add_xfer(self.xfer.counters());
        let usage = self.xfer.usage();
        let left = [usage.messages, usage.incoming, usage.partials];
        let name = up.name;
        up.around
            .ledger
            .expect(left == [0; 3], "all ends with the last interface", || format!("{name}: {usage:?}"));
        for arrival in self.buffered.iter_mut().filter_map(Option::take) {
            up.around.receive_pool.free(arrival.frame);
        }
        up.desk.machines += 1;
        self.xfer = make_xfer(fresh, up.shard.id(), up.around.bugs);
    }

    /// Goes on with frames that had to wait.
    pub(super) fn replay(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        while let Some(replay) = self.xfer.poll_replay() {
            let (Replay::Again(BufferId(slot)) | Replay::Forget(BufferId(slot))) = replay;
            let name = up.name;
            up.around.trace.say(|| format!("{name} {replay:?}"));
            let Some(arrival) = self.buffered[slot as usize].take() else {
                return up.around.ledger.fail("frames are conserved", || format!("{replay:?} of no frame"));
            };
            match replay {
                Replay::Again(_) => self.take_in(now, arrival, up),
                Replay::Forget(_) => up.around.receive_pool.free(arrival.frame),
            }
        }
    }

    /// Takes a message, or has no room for it. One that none follows is sent before the transfer machine has
    /// it.
    pub(super) fn submit(
        &mut self,
        now: Instant,
        transmit: &Transmit,
        more: bool,
        up: &mut Up<'_, '_>,
    ) -> bool {
        let is_sent = !more && up.around.send_pool.has_free() && self.send_alone(now, transmit, up);
        is_sent || self.xfer.submit(now, transmit).is_ok()
    }

    /// Whether the next turn has something to do at once; `has_frames`: frames can be sent.
    pub(super) fn has_work(&self, has_frames: bool) -> bool {
        !self.arrived.is_empty() || (has_frames && self.xfer.has_transmit())
    }

    /// Whether nothing is on its way in or out.
    pub(super) fn is_at_rest(&self) -> bool {
        let usage = self.xfer.usage();
        let moving = usage.messages + usage.incoming + usage.partials + usage.frames + usage.buffered;
        moving == 0 && self.arrived.is_empty() && self.buffered.iter().all(Option::is_none)
    }

    /// Sends a message before the transfer machine has it, if that can be: its frame is the next one to be
    /// polled.
    fn send_alone(&mut self, now: Instant, transmit: &Transmit, up: &mut Up<'_, '_>) -> bool {
        let Some(preview) = self.xfer.preview(now, transmit) else { return false };
        up.around.counts.previewed += 1;
        self.send(&preview, up);
        let taken = self.xfer.submit(now, transmit).is_ok();
        up.around.ledger.expect(taken, "what has a preview is taken", || format!("{:?}", transmit.header));
        let polled = self.xfer.poll_transmit(now);
        let is_same = polled.as_ref() == Some(&preview);
        let found = || format!("{preview:?}, but {polled:?}");
        up.around.ledger.expect(is_same, "a preview is the frame that is polled", found);
        true
    }

    /// Sends what there is to be sent, as far as there are buffers.
    pub(super) fn transmit(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        while up.around.send_pool.has_free() {
            let Some(outgoing) = self.xfer.poll_transmit(now) else { break };
            self.send(&outgoing, up);
        }
    }

    fn send(&mut self, outgoing: &OutgoingFrame, up: &mut Up<'_, '_>) {
        if self.xfer.nid_of(outgoing.ni).is_none() {
            // The frame was to leave by an NI that has gone.
            return up.around.counts.add(Fault::NoInterface);
        }
        let Some(frame) = up.around.send_pool.take() else { return };
        let name = up.name;
        up.around.trace.say(|| format!("{name} -> {}", describe(outgoing)));
        let bytes = up.around.send_pool.bytes_mut(frame);
        let (memory, ledger) = (&*up.around.memory, &mut *up.around.ledger);
        frame::encode(outgoing, &self.xfer, bytes, |span, bytes| {
            let there = memory.read(span, bytes);
            ledger.expect(there, "a descriptor lives as long as its spans", || format!("{span:?} is read"));
        });
        up.around.counts.frames += 1;
        up.around.leaving.push(Leaving { frame, ni: outgoing.ni, to: outgoing.destination });
    }

    /// Takes a frame in, or hands it over; its buffer goes home unless it is kept.
    fn take_in(&mut self, now: Instant, arrival: Arrival, up: &mut Up<'_, '_>) {
        if !up.around.open[usize::from(arrival.ni.0)] {
            up.around.counts.add(Fault::NoInterface);
            return up.around.receive_pool.free(arrival.frame);
        }
        let bytes = std::mem::take(up.around.receive_pool.bytes_mut(arrival.frame));
        let own = self.xfer.nid_of(arrival.ni);
        let keep = match own.and_then(|own| frame::decode(&bytes, own, &arrival.from)) {
            Some(decoded) => self.take_decoded(now, arrival, &decoded, &bytes, up),
            None => {
                up.around.counts.refused += 1;
                false
            }
        };
        *up.around.receive_pool.bytes_mut(arrival.frame) = bytes;
        if !keep {
            up.around.receive_pool.free(arrival.frame);
        }
    }

    /// Says whether the frame's buffer is still needed.
    fn take_decoded(
        &mut self,
        now: Instant,
        arrival: Arrival,
        frame: &Decoded,
        bytes: &[u8],
        up: &mut Up<'_, '_>,
    ) -> bool {
        let own = u32::from(up.shard.id().0);
        let name = up.name;
        up.around.trace.say(|| {
            let (kind, key) = (frame.header.kind, frame.header.key);
            let Decoded { header, transfer, records, .. } = frame;
            format!(
                "{name} <- {kind:?} number {} of {:x}/{} id {:x} oldest {} offset {} of {} ack {:?} ticket {:?}, {} more",
                transfer.number, transfer.incarnation, transfer.shard, key.message_id, transfer.oldest,
                header.fragment_offset, header.total_length, transfer.ack, transfer.ticket, records.len(),
            )
        });
        let owner = up.desk.shard_of(&frame.header.key);
        if owner != own && !up.around.bugs.has(Bug::MisdirectedKept) {
            up.around.handed_over.push((owner as u8, arrival));
            return true;
        }
        let key = &frame.header.key;
        let steered_here = frame.records.iter().all(|(delta, lnet, _)| {
            let id = key.message_id.wrapping_add(u64::from(*delta));
            SteerKey::of(lnet, id, key.initiator_hash).is_some_and(|key| up.desk.shard_of(&key) == owner)
        });
        if !steered_here {
            up.around.ledger.fail("a bundle is of one shard", || format!("{:?}", frame.header));
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
        let xfer = &mut self.xfer;
        let action = xfer.receive(now, &arrived, up);
        match act(xfer, now, action, &bytes[frame.payload.clone()], up) {
            Some(BufferId(slot)) => {
                let place = &mut self.buffered[slot as usize];
                let in_use = place.replace(arrival).is_some();
                up.around.ledger.expect(!in_use, "frames are conserved", || format!("hold {slot} is in use"));
                return true;
            }
            None if !frame.header.bundled || matches!(action, Disposition::Drop(_)) => return false,
            None => {}
        }
        for (delta, lnet, payload) in &frame.records {
            let action = xfer.receive_record(now, &arrived, *delta, lnet, up);
            if act(xfer, now, action, &bytes[payload.clone()], up).is_some() {
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
    action: Disposition,
    payload: &[u8],
    up: &mut Up<'_, '_>,
) -> Option<BufferId> {
    let name = up.name;
    up.around.trace.say(|| format!("{name}    {action:?}"));
    match action {
        Disposition::Write => {
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
        Disposition::Buffer(hold) => Some(hold),
        Disposition::Done | Disposition::Drop(_) => None,
    }
}

fn describe(outgoing: &OutgoingFrame) -> String {
    let OutgoingFrame { ni, destination, header, transfer, content } = outgoing;
    let what = match content {
        lnet_xdp_proto::Content::Message { payload, bundled, .. } => {
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
