//! Peers that are to be found out about, and requests that wait for that (LNet `lib-move.c:
//! lnet_initiate_peer_discovery`; spec: core 8.3).
//!
//! Where the snapshot says so ([`Topology::gates_requests`]), a request to a peer that was never discovered
//! waits until a snapshot has the peer as it tells itself. Then it is selected for as if it were new: so the
//! first one goes by the best path already. If a snapshot says that the attempt failed, what has waited for
//! it ends with its error, and what comes later waits for the next attempt. Responses, pings, and what is for
//! this node never wait.
//!
//! Invariants: what waits has its room, its NI and its peer slot as any message on its way out, and no
//! credit; it waits no longer than the transaction timeout, and its own time begins when it goes on; requests
//! to a peer keep their order; what ends here costs no health. A request to a peer that is known looks at
//! nothing but the peer slot that it needs anyway.
//!
//! A runner learns at once which peer is to be discovered; a node that a program drives by itself has none. A
//! snapshot tells which generation was the first to know of a failed attempt, so that no later request ends
//! for it. News for a peer that is known holds no request up: a rail that fails makes such news for all
//! peers.
//!
//! [`Topology::gates_requests`]: crate::topology::Topology::gates_requests

use lnet_wire::{Body, Nid};

use super::initiator::finds_out;
use super::{Choice, Shard};
use crate::lnd::{Cause, Status, Transmit};
use crate::message::{Gated, Message, MessageState, Queued};
use crate::time::Instant;
use crate::topology::{NiStatus, Topology};

/// `ETIMEDOUT`, for what has waited for as long as it may.
const TIMED_OUT: u8 = 110;

impl Shard {
    /// Looks, once under each snapshot, whether the peer that a request goes to is to be found out about, and
    /// says whether the request waits for that; where it does the next one is looked at as well. Pings do
    /// neither: they are what finds out.
    #[inline]
    pub(super) fn look_at_peer(&mut self, slot: u32, target: &Nid, body: &Body) -> bool {
        let known = self.peers.get_mut(slot);
        if known.looked_at == self.topology.generation() {
            return false;
        }
        self.look_closely(slot, target, body)
    }

    #[cold]
    fn look_closely(&mut self, slot: u32, target: &Nid, body: &Body) -> bool {
        let generation = self.topology.generation();
        if finds_out(body) {
            return false;
        }
        let (is_wanted, is_gated) = self.outlook(target);
        let is_told = !is_wanted || self.want(slot, target);
        // What is not told is not found out about.
        let is_gated = is_gated && is_told;
        self.peers.get_mut(slot).looked_at = if is_told && !is_gated { generation } else { 0 };
        is_gated
    }

    /// Looks whether the peer that a request goes to by a gateway is to be found out about, and says whether
    /// the request waits for that. The peer slot is that of the gateway, which says nothing of who is behind
    /// it.
    #[cold]
    pub(super) fn look_behind_gateway(&mut self, target: &Nid, body: &Body) -> bool {
        let (is_wanted, is_gated) = self.outlook(target);
        !finds_out(body) && is_wanted && self.news.want(target) && is_gated
    }

    /// Whether a peer is to be found out about, and whether requests to it wait for that.
    fn outlook(&self, target: &Nid) -> (bool, bool) {
        if !self.topology.finds_peers() || self.topology.is_local(target) {
            return (false, false);
        }
        let (is_wanted, is_gated) =
            self.topology.peer(target).map_or((true, true), |peer| (peer.is_wanted, peer.is_gated));
        (is_wanted, is_gated && self.topology.gates_requests())
    }

    /// Has a NID told by [`Shard::poll_wanted`], once under each snapshot; whether there is room for it.
    fn want(&mut self, slot: u32, target: &Nid) -> bool {
        let generation = self.topology.generation();
        if self.topology.on_net(target.net()).is_none() {
            // The slot is a gateway's.
            return self.news.want(target);
        }
        if self.peers.get_mut(slot).wanted_at == generation {
            return true;
        }
        let is_told = self.news.want(target);
        if is_told {
            self.peers.get_mut(slot).wanted_at = generation;
        }
        is_told
    }

    /// Has a request wait until the peer with a NID is discovered.
    #[cold]
    pub(super) fn gate(&mut self, now: Instant, mut record: MessageState, target: &Nid) {
        let until = now + self.topology.tunables().transaction_timeout;
        record.transmit.header.destination.nid = *target;
        let message = self.enlist(record);
        self.messages.gate(message, (until, self.topology.generation()));
        self.counters.gated += 1;
    }

    /// Looks at all requests that wait after a newer snapshot: those go on whose peers are known now, or
    /// whose NI has gone, and those end whose peers could not be discovered. ACKs that wait go on if their NI
    /// has gone.
    pub(super) fn look_at_gated(&mut self, now: Instant, former: &Topology) {
        let mut gated = self.messages.take_gated();
        while let Some(message) = gated.pop(&mut self.messages) {
            let record = self.messages.record(&message);
            let (release, peer) = (record.release, record.peer());
            let (ni, target) = (record.transmit.ni, record.transmit.header.destination.nid);
            let has_ni = self.topology.known_ni(ni).status == NiStatus::Up;
            if record.is_response() {
                if has_ni {
                    self.messages.gate(message, release);
                } else {
                    self.send_late(now, message);
                }
                continue;
            }
            // Its peer may have lost the NID just now. What was given a NID that was lost before means
            // another node, unless asking there tells that there is none.
            let is_lost_since = former.known_as(&target) == target;
            let target =
                if is_lost_since { self.topology.known_as(&target) } else { self.topology.now_at(&target) };
            self.messages.record_mut(&message).transmit.header.destination.nid = target;
            let (is_wanted, is_gated) = self.outlook(&target);
            if let Some(errno) = self.failed_errno(release.1, &target).filter(|_| is_gated) {
                self.end(message, Status::NeverSent(Cause::Undiscovered(errno)));
            } else if is_gated && has_ni && (!is_wanted || self.want(peer, &target)) {
                self.messages.gate(message, release);
            } else {
                self.let_go(now, message);
            }
        }
    }

    /// The error of the attempt to discover a peer that a request waits for since a snapshot, if that has
    /// failed: one that had failed before the request began to wait is not its own.
    fn failed_errno(&self, gated_at: u64, target: &Nid) -> Option<u8> {
        let failed = self.topology.peer(target)?.failed?;
        (failed.generation > gated_at).then_some(failed.errno)
    }

    /// Ends the requests that have waited for as long as they may, and sends the ACKs that have.
    pub(super) fn release_gated(&mut self, now: Instant) {
        while let Some(message) = self.messages.next_ungated(now) {
            if self.messages.record(&message).is_response() {
                self.send_late(now, message);
                continue;
            }
            self.end(message, Status::NeverSent(Cause::Undiscovered(TIMED_OUT)));
            self.settle(now);
        }
    }

    /// A request that has waited is sent by the path that is the best one now.
    fn let_go(&mut self, now: Instant, message: Message<Gated>) {
        let message = self.messages.let_go(message);
        self.begin_time(now, &message);
        let record = self.messages.record(&message);
        let Transmit { ni, header, .. } = record.transmit;
        let (source, target) = (header.source.nid, header.destination.nid);
        let (is_bound, cause) = (record.is_bound, self.overdue(now, record));
        if let Some(cause) = cause {
            return self.end(message, Status::NeverSent(cause));
        }
        let memory = self.memory_node_of(&record.purpose);
        let choice = self.select(now, &target, is_bound.then_some(&source), (memory, false));
        let moved = choice.and_then(|(choice, turn)| {
            // The NID may have become one of this node's own.
            let ni = self.topology.loopback_to(&target).unwrap_or(choice.ni);
            let former = self.move_to_peer(&message, &Choice { ni, ..choice })?;
            self.take_turn(turn, choice.ni, self.messages.record(&message).peer());
            Some((ni, former))
        });
        let Some((to, former)) = moved else {
            return self.end(message, Status::NeverSent(Cause::Unreachable));
        };
        if to != ni {
            self.readdress(to, &message);
            self.begin_time(now, &message);
        }
        self.peers.release(former);
        self.take_peer_credit(now, message);
    }

    /// The time that a message has for itself, by its NI, begins now.
    pub(super) fn begin_time(&mut self, now: Instant, message: &Message<Queued>) {
        let ni = self.messages.record(message).transmit.ni;
        let message_timeout = self.topology.known_ni(ni).message_timeout;
        self.messages.record_mut(message).deadline = now + message_timeout;
    }
}
