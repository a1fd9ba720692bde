//! Pushes: what peers tell of themselves unasked (LNet `peer.c: lnet_peer_push_event`), and what the node learns of peers.
//!
//! A push is a PUT to where pings go. Invariants: what it says is checked as the answer to a ping is; it makes one peer at
//! most, with [`TOLD_MAX`](super::TOLD_MAX) NIDs at most, among which is the one that it came from, and none of this
//! node; pings that it has the node send are few, and one to a NID at once.

use core::time::Duration;

use alloc::vec::Vec;

use lnet_wire::ping::{BUFFER_MAX_BYTES, BUFFER_MIN_BYTES, Features, PingInfo};
use lnet_wire::{Global, Nid};

use super::pings::{Ping, PingId, nids_of};
use super::{Action, Node, RequestId, peers};
use crate::time::Instant;

/// Pings of its own that a node has under way at most.
const OWN_PINGS_MAX: usize = 16;

/// What became of pushes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PushCounters {
    /// The peer is known by what it said.
    pub taken: u64,
    /// Malformed, or not of its sender: ignored.
    pub refused: u64,
    /// Longer than the buffer, or without Multi-Rail: the sender is pinged instead.
    pub pinged: u64,
}

impl<O: Clone> Node<O> {
    /// What became of pushes so far.
    #[must_use]
    pub const fn push_counters(&self) -> &PushCounters {
        &self.pushes
    }

    /// Bytes that are to be there for the next push: those of the longest one yet.
    #[must_use]
    pub const fn push_room_bytes(&self) -> usize {
        self.push_room_bytes
    }

    /// A push of so many bytes has come, of which these had room.
    pub(super) fn pushed(&mut self, now: Instant, from: Nid, bytes: &[u8], length_bytes: usize) {
        if from.is_any() || self.is_local(&from) {
            self.pushes.refused += 1;
            return;
        }
        let Ok(info) = PingInfo::parse(bytes) else {
            self.pushes.refused += 1;
            return;
        };
        let is_cut = length_bytes > bytes.len() || info.is_truncated();
        if is_cut {
            let room_bytes = info.full_bytes().clamp(BUFFER_MIN_BYTES, BUFFER_MAX_BYTES);
            self.push_room_bytes = self.push_room_bytes.max(room_bytes);
        }
        if is_cut || !info.features().contains(Features::MULTI_RAIL) {
            self.pushes.pinged += 1;
            self.ping_back(now, from);
        } else if self.learn(&from, &info) {
            self.pushes.taken += 1;
        } else {
            self.pushes.refused += 1;
        }
    }

    /// Has a peer say of itself what its push did not.
    fn ping_back(&mut self, now: Instant, nid: Nid) {
        let mut own = self.pings.values().filter(|ping| ping.is_own);
        if own.clone().count() >= OWN_PINGS_MAX || own.any(|ping| ping.nid == nid) {
            return;
        }
        let seconds = self.settings.get(Global::TransactionTimeout);
        let timeout = Duration::from_secs(seconds.into()).min(self.config.ping_timeout_max);
        self.requests += 1;
        let id = PingId { request: RequestId(self.requests), is_second: false };
        let ping = Ping { id, nid, source: None, timeout, deadline: now + timeout, is_own: true };
        self.pings.insert(id.request, ping);
        self.actions.push_back(Action::Ping { ping: id, nid, source: None, length_bytes: BUFFER_MIN_BYTES });
    }

    /// Takes note of what a peer has said of itself; whether it is about the peer at all.
    pub(super) fn learn(&mut self, from: &Nid, info: &PingInfo<'_>) -> bool {
        let mut nids = nids_of(info);
        nids.retain(|nid| !self.is_local(nid));
        let Some(primary) = info.primary().filter(|_| nids.contains(from)) else { return false };
        let has = |feature| info.features().contains(feature);
        let is_discovery_on = self.settings.get(Global::Discovery) != 0;
        let mut state = peers::DISCOVERED | peers::NIDS_UP_TO_DATE;
        if !has(Features::ROUTING_DISABLED) {
            state |= peers::ROUTER_ENABLED;
        }
        let is_discoverable = is_discovery_on && has(Features::DISCOVERY);
        if !is_discoverable {
            state |= peers::NO_DISCOVERY;
        }
        if is_discoverable && has(Features::MULTI_RAIL) && nids.contains(&primary) {
            let nids = in_peers_order(primary, from, nids);
            self.peers.merge(nids, state | peers::MULTI_RAIL);
        } else {
            self.peers.set_state(from, state);
        }
        true
    }
}

/// The NIDs as a peer has them: the primary one first, those of one net together, and the one that it spoke by among them
/// though there be too many.
fn in_peers_order(primary: Nid, from: &Nid, told: Vec<Nid>) -> Vec<Nid> {
    let mut nets = alloc::vec![primary.net()];
    for nid in &told {
        if nets.len() < peers::TOLD_MAX && !nets.contains(&nid.net()) {
            nets.push(nid.net());
        }
    }
    let mut nids = alloc::vec![primary];
    for net in nets {
        nids.extend(told.iter().filter(|nid| nid.net() == net && **nid != primary));
    }
    if nids.iter().position(|nid| nid == from).is_none_or(|at| at >= peers::TOLD_MAX) {
        nids.retain(|nid| nid != from);
        nids.insert(1, *from);
    }
    nids.truncate(peers::TOLD_MAX);
    nids
}
