//! A shard's account of itself: counters, what is in use, NIs, peers.

use core::time::Duration;

use lnet_wire::{Header, MessageType, Nid};

use super::Shard;
use super::initiator::is_ping;
use super::target::Inbound;
use crate::collections::NONE;
use crate::lnd::{NiId, Status};
use crate::peer::PeerRecord;
use crate::stats::{Counters, DropReason, NiCounters, NiLatencies, Usage};
use crate::time::Instant;
use crate::topology::Forwarding;

/// A local NI as a shard knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NiUsage {
    /// Messages that this shard may have in flight by it.
    pub credits_max: u32,
    /// Free credits, less the messages that wait for one.
    pub credits: i64,
    /// The least that `credits` was.
    pub credits_min: i64,
    /// What has been counted.
    pub counters: NiCounters,
    /// How long messages and answers took.
    pub latencies: NiLatencies,
}

impl Shard {
    /// Event queues that there may be at once: the slots of their handles are below this.
    #[must_use]
    pub const fn event_queues_max(&self) -> u32 {
        self.events.capacity()
    }

    /// What the shard has done so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Events that wait to be taken, in all queues.
    #[must_use]
    pub const fn waiting_events(&self) -> u32 {
        self.events.waiting_count()
    }

    /// What is in use at this moment.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            match_entries: self.tables.entries.used_count(),
            memory_descs: self.mds.used_count(),
            events: self.events.waiting_count(),
            messages: self.messages.count(),
            delayed: self.delayed.count(),
            trackers: self.trackers.count(),
            peers: self.peers.count(),
        }
    }

    /// The shard's knowledge of a local NI; `None` if the slot is empty.
    #[must_use]
    pub fn ni_usage(&self, ni: NiId) -> Option<NiUsage> {
        self.topology.ni(ni)?;
        let shard_ni = self.nis.get(usize::from(ni.0))?;
        let (credits_max, credits_min) = shard_ni.credits.bounds();
        let credits = shard_ni.credits.available();
        let (counters, latencies) = (shard_ni.counters, shard_ni.latencies);
        Some(NiUsage { credits_max, credits, credits_min, counters, latencies })
    }

    /// The NIs of peers that it knows, in no order that means anything.
    pub fn peers(&self) -> impl Iterator<Item = PeerRecord> {
        self.peers.records()
    }

    /// The NI of a peer with this NID, if it knows that.
    #[must_use]
    pub fn peer(&self, nid: &Nid) -> Option<PeerRecord> {
        self.peers.record(nid)
    }

    /// Sets all counters to 0, those of NIs and peers too (`lnetctl stats reset`); what is in use and
    /// the least of credits stay.
    pub fn reset_counters(&mut self) {
        self.counters = Counters::default();
        for shard_ni in &mut self.nis {
            (shard_ni.counters, shard_ni.latencies) = (NiCounters::default(), NiLatencies::default());
        }
        self.peers.reset_counters();
    }

    /// Free credits of an NI, less the messages that wait for one (LNet's "tx credits").
    #[must_use]
    pub fn ni_credits(&self, ni: NiId) -> Option<i64> {
        self.nis.get(usize::from(ni.0)).map(|shard_ni| shard_ni.credits.available())
    }

    /// Free credits of a peer, less the messages that wait for one; `None` if it is not remembered.
    #[must_use]
    pub fn peer_credits(&self, peer: &Nid) -> Option<i64> {
        self.peers.available(peer)
    }

    /// Counts a message that has been put in place, or will never be.
    #[inline]
    pub(super) fn count_delivered(
        &mut self,
        now: Instant,
        (ni, from): (NiId, &Nid),
        header: &Header,
        inbound: &Inbound,
        status: Status,
    ) {
        let message_type = header.message_type();
        let bytes = if message_type.carries_payload() { inbound.span.length_bytes } else { 0 };
        let asked = self.asked_at(header, inbound);
        if status == Status::Ok && is_ping(&header.body) {
            self.note_ping(now, ni, from);
        }
        self.count_received(now, (ni, from, message_type), status, bytes, asked);
    }

    /// Counts a ping that has come by an NI; of a router it is news, once a second, that another node has
    /// sent one.
    pub(super) fn note_ping(&mut self, now: Instant, ni: NiId, from: &Nid) {
        let is_news = self.topology.forwarding() != Forwarding::Off && !self.topology.is_local(from);
        let shard_ni = self.ni(ni);
        shard_ni.ping_count += 1;
        let (next_at, has_news) = &mut shard_ni.ping_news;
        if is_news && *next_at <= now {
            (*next_at, *has_news) = (now + Duration::from_secs(1), true);
        }
    }

    /// An NI that another node has pinged, while this one routes.
    pub fn poll_pinged(&mut self) -> Option<NiId> {
        let at = self.nis.iter_mut().position(|shard_ni| core::mem::take(&mut shard_ni.ping_news.1))?;
        Some(NiId(at as u16))
    }

    /// When the request was sent that a message answers, if its answer is awaited.
    #[inline]
    pub(super) fn asked_at(&self, header: &Header, inbound: &Inbound) -> Option<Instant> {
        let tracker = match header.message_type() {
            MessageType::Ack | MessageType::Reply => self.mds[inbound.md()].tracker,
            _ => NONE,
        };
        self.trackers.asked(tracker)
    }

    /// Counts a message that has arrived, and the round trip of its request if it answers one.
    #[inline]
    pub(super) fn count_received(
        &mut self,
        now: Instant,
        (ni, from, message_type): (NiId, &Nid, MessageType),
        status: Status,
        bytes: u32,
        asked: Option<Instant>,
    ) {
        self.counters.count_received(status, bytes);
        if status != Status::Ok {
            return;
        }
        let shard_ni = &mut self.nis[usize::from(ni.0)];
        shard_ni.counters.received.add(message_type);
        shard_ni.counters.received_bytes += u64::from(bytes);
        let mut sender = self.peers.sender(from, ni, shard_ni.peer_share);
        if let Some(peer) = &mut sender {
            peer.counters.received.add(message_type);
            peer.counters.received_bytes += u64::from(bytes);
        }
        let Some(asked) = asked else { return };
        match message_type {
            MessageType::Reply => shard_ni.latencies.get_rtt.note(asked, now),
            _ => shard_ni.latencies.put_ack.note(asked, now),
        }
        let peer = sender.map(|peer| &mut peer.counters);
        for counters in [Some(&mut shard_ni.counters), peer].into_iter().flatten() {
            match message_type {
                MessageType::Reply => counters.get_rtt.note(asked, now),
                _ => counters.put_ack.note(asked, now),
            }
        }
    }

    /// Counts a message that arrived and is dropped.
    #[cold]
    pub(super) fn count_drop(&mut self, (ni, from): (NiId, &Nid), header: &Header, reason: DropReason) {
        self.counters.count_drop(reason, header.payload_length);
        let message_type = header.message_type();
        self.nis[usize::from(ni.0)].counters.dropped.add(message_type);
        if let Some(peer) = self.peers.find_mut(from) {
            peer.counters.dropped.add(message_type);
        }
    }
}
