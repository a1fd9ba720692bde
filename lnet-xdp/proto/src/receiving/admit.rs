//! Whose frames are taken: streams begin and end here.

use core::time::Duration;

use lnet_core::collections::NONE;
use lnet_core::lnd::{Cause, NiId, Uplink};
use lnet_core::time::Instant;
use lnet_wire::frame::{Kind, Transfer};

use super::stream::ReceiveStream;
use super::{ReceiveContext, ReceivingSide};
use crate::contract::{Address, Arrived};
use crate::local::existing;
use crate::sessions::{NOWHERE, Reply, Sessions, Worth, is_newer};
use crate::stats::XferDrop;

impl ReceivingSide {
    /// The stream that a frame belongs to, if there is one; its token must be good, and fresh where there is
    /// none, given where the frame comes from.
    #[inline(always)]
    pub(crate) fn admit(
        &mut self,
        frame: &Arrived<'_>,
        sessions: &mut Sessions,
    ) -> Result<Option<u32>, XferDrop> {
        let now = sessions.local.now;
        let transfer = &frame.transfer;
        let known = self.stream_of(frame, sessions);
        let is_as_before = |stream: &ReceiveStream| {
            stream.is_examined && stream.token == transfer.session && stream.address.1 == frame.from
        };
        if known.is_none_or(|known| !is_as_before(&self.streams[known])) {
            let worth = sessions.tokens.worth(now, &sessions.holder(frame), transfer.session);
            // An aged one may be of frames that came before its sender was forgotten: it begins nothing.
            let begun = known.is_some_and(|known| self.streams[known].window_begun);
            if worth != Worth::Fresh && !(worth == Worth::Aged && begun) {
                let Transfer { shard, session, number, .. } = **transfer;
                let (kind, to, nonce) = (Kind::Reset, frame.address(), frame.header.key.message_id);
                sessions.reply(Reply { kind, to, shard, nonce, number, session, ack: None });
                return Err(XferDrop::UnknownSession);
            }
            if let Some(known) = known {
                let stream = &mut self.streams[known];
                let former = stream.token;
                let is_aged = || sessions.tokens.worth(now, &sessions.holder(frame), former) != Worth::Fresh;
                // The newer one counts where two for one address are fresh; else the fresh one, however far
                // the counts of time are apart.
                if !stream.is_examined
                    || stream.address.1 != frame.from
                    || is_newer(transfer.session, former)
                    || (worth == Worth::Fresh && is_aged())
                {
                    stream.token = transfer.session;
                }
                stream.is_examined = true;
            }
        }
        Ok(known)
    }

    /// Whether there may be a stream for the sender of a frame, which has none.
    pub(crate) fn may_open(&self, frame: &Arrived<'_>) -> Result<(), XferDrop> {
        let opened = self.streams.used().filter(|(_, stream)| stream.opened_at == frame.from).count() as u32;
        // No address has more of them than are left for others.
        let free = self.streams.capacity() - self.streams.used_count();
        if opened >= self.streams_per_address.min(free) {
            return Err(XferDrop::PeersFull);
        }
        Ok(())
    }

    /// The peer of a stream, if it is another one than the sender of a frame and spoke last from where that
    /// comes from.
    pub(crate) fn other_at(&self, stream: u32, frame: &Arrived<'_>, sessions: &Sessions) -> Option<u32> {
        let slot = self.streams.get(stream)?.peer;
        let peer = &sessions.peers[slot];
        let is_another = peer.incarnation != frame.transfer.incarnation;
        (is_another && peer.address.1 == frame.from).then_some(slot)
    }

    /// Begins a stream from a shard of a peer; there is room for it.
    pub(crate) fn open(&mut self, now: Instant, frame: &Arrived<'_>, peer: u32) -> u32 {
        let transfer = &frame.transfer;
        let of = (peer, transfer.shard);
        let stream = ReceiveStream::new(of, transfer.session, frame.address(), now);
        let Ok(slot) = self.streams.insert(stream) else { unreachable!("there was room") };
        self.peers[peer][usize::from(transfer.shard)] = slot;
        self.recent.push_back(&mut self.streams, slot);
        slot
    }

    /// A frame of a stream has arrived.
    #[inline(always)]
    pub(crate) fn received_from(&mut self, slot: u32, address: Address, sessions: &mut Sessions) {
        let now = sessions.local.now;
        let stream = &mut self.streams[slot];
        stream.seen_at = now;
        // The address is mostly the same, and a NID that was written just now is dear to read.
        if stream.address != address {
            stream.address = address;
        }
        sessions.peers[stream.peer].received_from(now, address);
        if self.recent.last() != slot {
            self.recent.remove(&mut self.streams, slot);
            self.recent.push_back(&mut self.streams, slot);
        }
        if self.busy.add(&mut self.streams, slot) {
            self.busy_count += 1;
            sessions.local.schedule_sweep();
        }
    }

    /// Has all tokens examined anew, since what they are keyed by has changed.
    pub(crate) fn examine_anew(&mut self) {
        for stream in 0..self.streams.capacity() {
            if self.streams.get(stream).is_some() {
                self.streams[stream].is_examined = false;
            }
        }
    }

    /// Forgets what came from a peer.
    pub(crate) fn end_peer(&mut self, peer: u32, cause: Cause, call: &mut ReceiveContext<'_, impl Uplink>) {
        existing(self.peers[peer]).for_each(|stream| self.end_stream(stream, cause, call));
    }

    /// Forgets what came from a shard of a peer.
    pub(crate) fn end_stream(&mut self, slot: u32, cause: Cause, call: &mut ReceiveContext<'_, impl Uplink>) {
        self.abandon_all(slot, cause, call);
        self.buffer.forget_stream(slot);
        self.acks.discard(&mut self.streams, slot);
        self.ack_timers.remove(slot);
        self.busy_count -= u32::from(self.busy.discard(&mut self.streams, slot));
        self.recent.remove(&mut self.streams, slot);
        self.given_up.retain(|(stream, _)| *stream != slot);
        let stream = self.streams.remove(slot);
        self.peers[stream.peer][usize::from(stream.shard)] = NONE;
    }

    fn abandon_all(&mut self, stream: u32, cause: Cause, call: &mut ReceiveContext<'_, impl Uplink>) {
        while !self.streams[stream].arriving.is_empty() {
            self.give_up(self.streams[stream].arriving.first(), cause, call);
        }
    }

    /// Gives up a message with which its sender goes on: nothing of it is acknowledged any more.
    pub(crate) fn give_up(&mut self, slot: u32, cause: Cause, call: &mut ReceiveContext<'_, impl Uplink>) {
        if self.given_up.len() == self.given_up.capacity() {
            self.given_up.pop_front();
        }
        self.given_up.push_back((self.arrivals[slot].stream, self.arrivals[slot].id));
        self.abandon(slot, cause, call);
    }

    /// An NI is gone: what came by it is answered at another address of the peer from now on; what
    /// nothing leads to any more ends.
    pub(crate) fn move_peer(
        &mut self,
        peer: u32,
        ni: NiId,
        address: Address,
        call: &mut ReceiveContext<'_, impl Uplink>,
    ) {
        for slot in existing(self.peers[peer]) {
            if self.streams[slot].address.0 == ni {
                self.streams[slot].address = address;
                // The peer learns by which path it is spoken to now.
                if address.0 != NOWHERE && self.streams[slot].frames.is_some() {
                    self.ack_within(slot, Duration::ZERO, call.sessions);
                }
            }
            if address.0 == NOWHERE {
                self.abandon_all(slot, Cause::Device, call);
            }
        }
    }
}
