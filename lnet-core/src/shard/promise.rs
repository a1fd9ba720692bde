//! Responses at the target (LNet `lib-msg.c: lnet_complete_msg_locked`).
//!
//! What a response needs (room for a message, a reference on the peer) is promised before the message is
//! matched: one that could not be answered is dropped and counted, and has changed nothing.

use core::time::Duration;

use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};

use super::Shard;
use super::report::EndedOperation;
use super::select::RouteRequest;
use super::target::Inbound;
use crate::collections::NONE;
use crate::lnd::{Cause, NiId, PeerSlot, Span, Status, Transmit, TxId};
use crate::md::{Ending, MdOptions};
use crate::message::{Budget, Gated, Message, MessageState, Purpose, Queued, SILENT_MAX};
use crate::stats::DropReason;
use crate::time::Instant;
use crate::topology::NiStatus;

/// How long an ACK waits at most for who made the descriptor ([`MdOptions::ACK_LATE`]).
pub const ACK_WAIT: Duration = Duration::from_secs(1);

/// The response to a message: room for it is reserved, with a reference on the peer.
#[derive(Clone, Copy)]
pub(super) struct Promise {
    ni: NiId,
    peer: u32,
    /// What the sender wants to see again.
    handle: WireHandle,
}

impl Shard {
    /// Ends the operation of a message whose payload is in place, or will never be; that of a GET goes on
    /// with the REPLY.
    #[inline(always)]
    pub(super) fn end_arrival(&mut self, now: Instant, header: &Header, inbound: &Inbound, status: Status) {
        let &Inbound { ref span, response } = inbound;
        let md = inbound.md();
        if self.mds[md].withheld.is_filled() && header.message_type().carries_payload() {
            // The message is among those: what has payload and is not counted starts on an idle descriptor.
            self.mds[md].withheld.end_fill();
            self.note_retry(md);
        }
        if let (Body::Get { .. }, Status::Ok, Some(promise)) = (&header.body, status, response) {
            return self.reply(now, header, span, promise);
        }
        // The descriptor may be gone then.
        let is_late = self.mds[md].options.contains(MdOptions::ACK_LATE);
        let reported = self.complete(EndedOperation::Arrived(header, span), status);
        let Some(promise) = response else { return };
        match header.body {
            Body::Put { match_bits, .. } if reported == Status::Ok => {
                let (md, manipulated_length) = (promise.handle, span.length_bytes);
                let body = Body::Ack { md, match_bits, manipulated_length };
                let purpose = Purpose::Ack { is_late };
                self.respond(now, header, promise, body, None, purpose);
            }
            _ => self.break_promise(promise),
        }
    }

    /// Makes sure that a response can be sent to the peer NI that a message came from. No peer has more of
    /// them under way than are free, so one that takes none leaves room for the others'; the last ones are
    /// for those that have few.
    pub(super) fn promise(
        &mut self,
        (ni, from): (NiId, &Nid),
        source: &Nid,
        handle: WireHandle,
    ) -> Result<Promise, DropReason> {
        let local = self.topology.known_ni(ni);
        let is_near = local.net == source.net() || local.nid.is_loopback();
        if !is_near && !self.topology.comes_by(from, source) {
            return Err(DropReason::NoRoute);
        }
        if self.messages.free(Budget::Response) == 0 {
            return Err(DropReason::ResponsesFull);
        }
        let credits = self.ni(ni).peer_share;
        let peer = self.peers.acquire(from, credits).ok_or(DropReason::PeersFull)?;
        if !self.messages.admits_response(self.peers.get_mut(peer).responses) {
            self.peers.release(peer);
            return Err(DropReason::ResponsesFull);
        }
        self.peers.get_mut(peer).responses += 1;
        self.messages.reserve(Budget::Response);
        Ok(Promise { ni, peer, handle })
    }

    /// Ends the response that has waited longest for a credit, where that is long and many places are taken:
    /// its peer does not take what it is sent, and others want to be answered.
    #[cold]
    pub(super) fn evict_response(&mut self, now: Instant) {
        let Some(since) = now.0.checked_sub(SILENT_MAX.as_nanos() as u64).map(Instant) else { return };
        for ni in (0..self.nis.len()).map(|index| NiId(index as u16)) {
            let timers = &mut self.nis[usize::from(ni.0)].timers;
            if let Some(oldest) = timers.pop_response(&mut self.messages, since) {
                self.counters.responses_evicted += 1;
                return self.end_waiting(now, ni, oldest);
            }
        }
    }

    fn break_promise(&mut self, promise: Promise) {
        self.messages.unreserve(Budget::Response);
        self.peers.get_mut(promise.peer).responses -= 1;
        self.peers.release(promise.peer);
    }

    /// Answers a GET. Its event comes when the REPLY has been sent. A descriptor that was unlinked meanwhile
    /// sends nothing any more.
    fn reply(&mut self, now: Instant, get: &Header, span: &Span, promise: Promise) {
        if self.mds[span.buffer.slot()].ending == Ending::Aborted {
            self.break_promise(promise);
            self.complete(EndedOperation::Arrived(get, span), Status::NeverSent(Cause::Cancelled));
            self.counters.send_failures += 1;
            return;
        }
        let payload = Some(*span).filter(|span| span.length_bytes > 0);
        let (body, purpose) = (Body::Reply { md: promise.handle }, Purpose::Reply { get: *get, span: *span });
        self.respond(now, get, promise, body, payload, purpose);
    }

    /// Sends a response from the NID that was asked to the process that asked.
    fn respond(
        &mut self,
        now: Instant,
        request: &Header,
        promise: Promise,
        body: Body,
        payload: Option<Span>,
        purpose: Purpose,
    ) {
        let local = self.topology.known_ni(promise.ni);
        if local.status == NiStatus::Closed {
            self.break_promise(promise);
            self.counters.count_failure(Status::NeverSent(Cause::Unreachable));
            if let Some(ended) = EndedOperation::of(&purpose, request) {
                self.complete(ended, Status::NeverSent(Cause::Unreachable));
            }
            return;
        }
        let header = Header {
            destination: request.source,
            source: ProcessId { nid: request.destination.nid, pid: self.pid },
            payload_length: payload.map_or(0, |span| span.length_bytes),
            body,
        };
        let deadline = now + local.message_timeout;
        let next_hop = self.peers.get_mut(promise.peer).nid;
        let (ni, peer) = (promise.ni, PeerSlot(promise.peer));
        let transmit = Transmit { tx: TxId(NONE), ni, next_hop, peer, header, payload };
        let mut record = MessageState::new(purpose, transmit, deadline);
        record.started = now;
        if let Purpose::Ack { is_late: true } = purpose {
            let message = self.enlist(record);
            self.messages.gate(message, (now + ACK_WAIT, 0));
        } else if self.has_lost_gateway(&next_hop, &request.source.nid) {
            self.launch_anew(now, record);
        } else {
            self.launch(now, record);
        }
    }

    /// Whether a response to a NID behind gateways would go by a node that is none any more.
    #[inline]
    pub(super) fn has_lost_gateway(&self, next_hop: &Nid, destination: &Nid) -> bool {
        next_hop != destination && self.is_no_gateway(next_hop, destination)
    }

    #[cold]
    fn is_no_gateway(&self, next_hop: &Nid, destination: &Nid) -> bool {
        self.topology.on_net(destination.net()).is_none() && !self.topology.comes_by(next_hop, destination)
    }

    /// Sends a response by another gateway than the one that its request came by, which is none any more.
    #[cold]
    fn launch_anew(&mut self, now: Instant, record: MessageState) {
        let message = self.enlist(record);
        self.send_by_another(now, message);
        self.settle(now);
    }

    /// Has a response go by a gateway to which no peer credit was taken yet; it ends where there is none.
    #[cold]
    fn send_by_another(&mut self, now: Instant, message: Message<Queued>) {
        let Transmit { ni, header, .. } = self.messages.record(&message).transmit;
        let request = RouteRequest { by: Some(ni), ..RouteRequest::default() };
        let choice = self.select_route(now, &header.destination.nid, &request);
        match choice.and_then(|choice| self.move_to_peer(&message, &choice)) {
            Some(former) => {
                self.peers.release(former);
                self.take_peer_credit(now, message);
            }
            None => self.end(message, Status::NeverSent(Cause::Unreachable)),
        }
    }

    /// Sends the ACKs that have waited for this ([`MdOptions::ACK_LATE`]).
    pub fn acknowledge(&mut self, now: Instant) {
        let mut gated = self.messages.take_gated();
        while let Some(message) = gated.pop(&mut self.messages) {
            let record = self.messages.record(&message);
            let release = record.release;
            if record.is_response() {
                self.send_late(now, message);
            } else {
                self.messages.gate(message, release);
            }
        }
        self.settle(now);
        self.wake();
    }

    /// Sends an ACK that has waited.
    pub(super) fn send_late(&mut self, now: Instant, ack: Message<Gated>) {
        let ack = self.messages.let_go(ack);
        self.begin_time(now, &ack);
        let Transmit { next_hop, header, .. } = self.messages.record(&ack).transmit;
        if self.has_lost_gateway(&next_hop, &header.destination.nid) {
            self.send_by_another(now, ack);
        } else {
            self.take_peer_credit(now, ack);
        }
    }
}
