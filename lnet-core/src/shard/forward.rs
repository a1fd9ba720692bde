//! Messages of other nodes that this one sends on (LNet `lib-move.c: lnet_parse_forward_locked`).
//!
//! A message for a NID that is none of this node's, on another net than it came by, is looked at when its
//! header has come: whether it may be forwarded, and by which path. Then it takes what it needs
//! ([`routed`](super::routed)), or waits for that. When its payload lies in its buffer the path is chosen
//! anew, and it goes on as messages of the node itself do: with credits of its next hop and of the NI, by
//! another gateway where one fails. Its header stays as it came, but for the NID of a Multi-Rail peer.
//!
//! A message for a next hop that has not answered for a while is dropped at once: what came behind it in a
//! stream would wait as well.

use lnet_model::pool::PoolKind;
use lnet_wire::{Header, Nid};

use super::routed::{Inward, Onward, PoolUsage, Routed};
use super::target::Arriving;
use super::{Choice, Shard};
use crate::collections::NONE;
use crate::credit::share;
use crate::handle::BufferHandle;
use crate::lnd::{NiId, PeerSlot, RxId, Status, Transmit, TxId, Verdict};
use crate::message::{Budget, Message, MessageState, Purpose, Queued};
use crate::stats::{DelayReason, DropReason};
use crate::time::Instant;
use crate::topology::{Forwarding, LocalNi, NiStatus};

impl Shard {
    /// Sets how many buffers the router pools of the whole node are to have, by [`PoolKind`]; this shard has
    /// its share of them, at most [`Limits::forwards`](crate::Limits::forwards). Allocates lists of so many.
    pub fn set_router_pools(&mut self, totals: [u32; PoolKind::ALL.len()]) {
        let shards = self.shard_count();
        if totals.iter().any(|total| *total > 0) {
            self.loops.reserve();
        }
        self.routed.set_wanted(totals.map(|total| if total == 0 { 0 } else { share(total, shards) }));
    }

    /// Buffers that the router pools lack, by [`PoolKind`].
    #[must_use]
    pub fn missing_router_buffers(&self) -> [u32; PoolKind::ALL.len()] {
        self.routed.missing()
    }

    /// Adds a buffer to a router pool. Those of the tiny one have no bytes: it may get one handle many times.
    ///
    /// # Panics
    /// If the pool lacks none.
    pub fn add_router_buffer(&mut self, pool: PoolKind, buffer: BufferHandle) {
        self.routed.add_buffer(pool, buffer);
    }

    /// A router buffer that is not in use and is not needed any more.
    pub fn poll_surplus(&mut self) -> Option<BufferHandle> {
        self.routed.pop_surplus()
    }

    /// Use of the router pools, by [`PoolKind`].
    #[must_use]
    pub fn router_pools(&self) -> [PoolUsage; PoolKind::ALL.len()] {
        self.routed.usage()
    }

    /// Router credits of a peer NI, those that are free, less its messages that wait for one, and the least
    /// that these were; `None` if none of it was ever forwarded.
    #[must_use]
    pub fn router_credits(&self, peer: &Nid) -> Option<[i64; 3]> {
        self.routed.credits(self.peers.slot(peer)?, peer)
    }

    /// Whether a message is for a NID beyond this node, as seen from the NI that it came by.
    #[inline]
    pub(super) fn is_beyond(&self, local: &LocalNi, header: &Header) -> bool {
        let destination = &header.destination.nid;
        destination.net() != local.net
            && !local.nid.is_loopback()
            && !destination.is_any()
            && !destination.is_loopback()
            && !self.topology.is_local(destination)
    }

    /// Decides on an acceptable message for a NID beyond this node that has just come.
    #[cold]
    pub(super) fn forward(
        &mut self,
        now: Instant,
        (ni, from): (NiId, &Nid),
        rx: RxId,
        header: &Header,
    ) -> Verdict {
        match self.route(now, (ni, from), rx, header) {
            Ok(slot) => {
                self.note_received(ni, from);
                self.routed.land(slot).map_or(Verdict::Delay, Verdict::Deliver)
            }
            Err(reason) => {
                self.count_drop((ni, from), header, reason);
                Verdict::Drop
            }
        }
    }

    /// Has a message take what it needs to be forwarded, or wait for that.
    ///
    /// # Errors
    /// Why it is dropped.
    pub(super) fn route(
        &mut self,
        now: Instant,
        (ni, from): (NiId, &Nid),
        rx: RxId,
        header: &Header,
    ) -> Result<u32, DropReason> {
        if self.is_own_probe(now, from, header) {
            return Err(DropReason::Loop);
        }
        let path = self.next_hop_of(now, from, header)?;
        let pool = self.routed.pool_for(header.payload_length).ok_or(DropReason::RouterTooLong)?;
        let credits = self.ni(ni).peer_share;
        let hop = self.peers.acquire(from, credits).ok_or(DropReason::PeersFull)?;
        let credits = self.ni(path.ni).peer_share;
        let Some(next) = self.peers.acquire(&path.next_hop, credits) else {
            self.peers.release(hop);
            return Err(DropReason::PeersFull);
        };
        let credits = share(self.topology.known_ni(ni).router_credits, self.shard_count());
        let routed = Routed::new(now, rx, (ni, from), header, (path, pool), (hop, next));
        let slot = self.routed.begin(routed, credits);
        self.watch_for_loop(now, from, header, &path);
        self.ni(ni).arriving_count += 1;
        self.incoming.set(rx, Arriving::Routed(slot));
        if self.routed.record(slot).span().is_none() {
            self.counters.count_delay(DelayReason::RouterBuffer);
        }
        Ok(slot)
    }

    /// The path by which a message goes on that a peer NI has sent.
    pub(super) fn next_hop_of(
        &self,
        now: Instant,
        from: &Nid,
        header: &Header,
    ) -> Result<Choice, DropReason> {
        if self.topology.forwarding() == Forwarding::Off {
            return Err(DropReason::RoutingOff);
        }
        let path = self.select_forward(now, (from, header), None);
        let path = path.ok_or_else(|| self.why_not_forwarded(from, &header.destination.nid))?;
        let path = self.avoid_loop(now, (from, header), path)?;
        match self.is_path_dead(now, &path) {
            true => Err(DropReason::NextHopSilent),
            false => Ok(path),
        }
    }

    /// An LND has put a message in place that goes on, or gives it up.
    pub(super) fn received_routed(&mut self, now: Instant, slot: u32, status: Status) {
        let Routed { ni, from, header, .. } = *self.routed.record(slot);
        let is_landing = self.routed.is_landing(slot);
        assert!(is_landing || status != Status::Ok, "a message that waits cannot be received");
        self.ni(ni).arriving_count -= 1;
        let is_whole = status == Status::Ok;
        let arrival = if is_whole { Inward::Whole } else { Inward::Failed };
        let onward = self.routed.end_arrival(slot, arrival);
        if !is_whole {
            self.counters.receive_failures += 1;
            return match onward {
                Onward::Cut(_) | Onward::Withdrawn(_) => self.withdraw_cut(slot),
                Onward::Later | Onward::Ended { .. } => self.end_routed(slot),
            };
        }
        let message_type = header.message_type();
        let shard_ni = &mut self.nis[usize::from(ni.0)];
        shard_ni.counters.received.add(message_type);
        if let Some(peer) = self.peers.sender(&from, ni, shard_ni.peer_share) {
            peer.counters.received.add(message_type);
        }
        match onward {
            Onward::Later | Onward::Ended { goes_again: true } => {
                self.send_on_or_drop(now, slot);
                self.settle(now);
            }
            Onward::Cut(tx) => self.extend_cut(now, slot, tx),
            Onward::Withdrawn(_) => unreachable!("a message that failed is whole"),
            Onward::Ended { goes_again: false } => self.end_routed(slot),
        }
    }

    /// Sends a message on that lies in its buffer, or drops it where nothing leads on. The caller settles
    /// what comes of it.
    pub(super) fn send_on_or_drop(&mut self, now: Instant, slot: u32) {
        if let Err(reason) = self.send_on(now, slot) {
            let Routed { ni, from, header, .. } = *self.routed.record(slot);
            self.count_drop((ni, &from), &header, reason);
            self.end_routed(slot);
        }
    }

    /// Sends a message on that lies in its buffer, by the path that is the best one now. Where every peer
    /// slot is busy with another peer it goes by that for which it has one.
    fn send_on(&mut self, now: Instant, slot: u32) -> Result<(), DropReason> {
        let Routed { from, header, path, .. } = *self.routed.record(slot);
        let best = self.next_hop_of(now, &from, &header)?;
        let (path, peer) = match self.acquire_next(&best) {
            Some(peer) => (best, peer),
            None => {
                let serves = self.topology.ni(path.ni).is_some_and(|ni| ni.status == NiStatus::Up);
                let peer = if serves { self.acquire_next(&path) } else { None };
                (path, peer.ok_or(DropReason::PeersFull)?)
            }
        };
        self.launch_on(now, slot, (&path, peer));
        Ok(())
    }

    /// Counts in what there is of a message, to go on by a path to whose next hop the caller has a reference.
    pub(super) fn enlist_routed(
        &mut self,
        now: Instant,
        slot: u32,
        (path, peer): (&Choice, u32),
    ) -> Message<Queued> {
        self.charge(slot, path);
        let has_room = self.messages.reserve(Budget::Forward);
        assert!(has_room, "more router buffers than forwarded messages");
        let deadline = now + self.topology.known_ni(path.ni).message_timeout;
        let &Choice { ni, next_hop, destination } = path;
        let routed = self.routed.record(slot);
        let mut header = routed.header;
        header.destination.nid = destination;
        let payload = routed.arrived_span();
        let transmit = Transmit { tx: TxId(NONE), ni, next_hop, peer: PeerSlot(peer), header, payload };
        self.enlist(MessageState::new(Purpose::Forward { routed: slot }, transmit, deadline))
    }

    /// A reference on the next hop of a path.
    pub(super) fn acquire_next(&mut self, path: &Choice) -> Option<u32> {
        let credits = self.nis.get(usize::from(path.ni.0))?.peer_share;
        self.peers.acquire(&path.next_hop, credits)
    }

    /// Charges the buffer of a message to the next hop of a path, to which the caller holds a reference.
    pub(super) fn charge(&mut self, slot: u32, path: &Choice) {
        if let Some(next) = self.acquire_next(path) {
            let former = self.routed.move_to(slot, next);
            self.peers.release(former);
        }
    }

    /// A message of another node has ended: what it had goes to others.
    pub(super) fn end_routed(&mut self, slot: u32) {
        for peer in self.routed.end(slot) {
            self.peers.release(peer);
        }
    }

    /// Drops the messages that wait to be forwarded and of which this is true.
    pub(super) fn drop_waiting_routed(&mut self, reason: DropReason, is: impl Fn(&Routed) -> bool) {
        while let Some(slot) = self.routed.find_waiting(&is) {
            self.drop_routed(slot, reason);
        }
    }

    /// Drops a message that waits to be forwarded.
    pub(super) fn drop_routed(&mut self, slot: u32, reason: DropReason) {
        let Routed { ni, from, header, .. } = *self.routed.record(slot);
        self.count_drop((ni, &from), &header, reason);
        self.routed.give_up(slot);
    }

    /// The next message of another node that was delayed and is not any more.
    pub(super) fn resume_routed(&mut self) -> Option<(NiId, RxId, Verdict)> {
        let slot = self.routed.first_resumed();
        if slot == NONE {
            return None;
        }
        let Routed { ni, rx, .. } = *self.routed.record(slot);
        let verdict = match self.routed.land(slot) {
            Some(span) => Verdict::Deliver(span),
            None => {
                self.ni(ni).arriving_count -= 1;
                self.incoming.set(rx, Arriving::Idle);
                self.end_routed(slot);
                Verdict::Drop
            }
        };
        Some((ni, rx, verdict))
    }
}
