//! Newer snapshots of the topology, between two turns.
//!
//! Messages that wait for an NI that serves no more are selected anew, if they may leave by another one, or
//! end unsent. Those selected under an older snapshot are found in the queues of their NI, so nothing looks
//! at generations on the data path. An LND itself ends the messages that it has.
//!
//! Invariants: no credit is lost or made up, whatever their number becomes; an NI goes only when
//! nothing of this shard's is about it; a portal's policy changes only when nothing here goes by it.

use alloc::sync::Arc;

use super::delayed::{DelayState, DelayedMessage, list_of};
use super::select::RouteRequest;
use super::target::Decision;
use super::{Choice, Shard, ShardNi};
use crate::credit::share;
use crate::handle::ShardId;
use crate::lnd::{Cause, NiId, Status, Transmit};
use crate::message::{Credited, Message, MessageQueue, MessageState, PeerCredited, Purpose, Stage};
use crate::standing::Turn;
use crate::stats::DropReason;
use crate::time::Instant;
use crate::topology::{Forwarding, NiStatus, Topology};

/// What a shard says of the snapshot that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Confirmation {
    /// The shard.
    pub shard: ShardId,
    /// The generation of its snapshot.
    pub generation: u64,
    /// Whether all NIs that are leaving or closed are quiet ([`Shard::is_quiet`]).
    pub is_quiet: bool,
    /// Messages that have ever come by the NIs that are leaving, without pings: who asks whether a NID
    /// answers waits for no work of its node.
    pub arrived_count: u64,
    /// Portals by whose policy something goes here, a bit each: that have entries, or messages that wait.
    pub portals_in_use: u64,
    /// Whether routing ends and messages of other nodes are still under way.
    pub is_forwarding: bool,
}

impl Shard {
    /// Takes a newer snapshot; one that is not newer changes nothing.
    ///
    /// A message that waits for credits, for a delay rule or for its LND at an NI that is not
    /// [up](NiStatus::Up) any more leaves by another NI, from whose NID it then comes: one of its net or, to
    /// a Multi-Rail peer, of another net. Without one it stays where the NI is [down](NiStatus::Down), which
    /// links are for a moment that are reset, and else ends as [`Cause::Unreachable`]. Responses, and
    /// requests that name their NI, leave by no other: responses go on unless the NI is closed, requests
    /// where it is down, the rest ends. A message that arrived by a closed NI and waits is dropped.
    /// Messages that wait for a gateway which leads nowhere any more go by another one; responses do where
    /// the node is no gateway any more.
    ///
    /// # Panics
    /// If the snapshot has more slots than the limits; if an NI has gone, or another one has its slot,
    /// which was not [closed and quiet](Shard::is_quiet); if the policy of a portal that is
    /// [in use](Confirmation::portals_in_use) has changed, or the number of shards.
    pub fn update(&mut self, now: Instant, topology: Arc<Topology>) {
        if topology.generation() > self.topology.generation() {
            self.install(now, topology);
        }
    }

    /// Whether nothing of this shard is about an NI: no message on its way out by it, none that came
    /// by it and is being put in place, waits, or is a sibling's; what its LND has not told is not known.
    /// Responses that are still awaited do not count. An NI that is [closed](NiStatus::Closed) and
    /// quiet stays so.
    #[must_use]
    pub fn is_quiet(&self, ni: NiId) -> bool {
        let idle = |slot: &ShardNi| slot.outgoing_count == 0 && slot.arriving_count == 0;
        self.nis.get(usize::from(ni.0)).is_none_or(|slot| idle(slot) && self.delayed.count_of(ni) == 0)
    }

    /// What it says of its snapshot at this moment.
    #[must_use]
    pub fn confirmation(&self) -> Confirmation {
        let goes = |status| matches!(status, NiStatus::Leaving | NiStatus::Closed);
        let mut nis = self.topology.local_nis();
        let leaving = self.topology.local_nis().filter(|(_, local)| local.status == NiStatus::Leaving);
        let arrived = leaving.map(|(ni, _)| {
            let shard_ni = &self.nis[usize::from(ni.0)];
            // The counters may have begun from 0 on again since.
            shard_ni.counters.arrived_count().wrapping_sub(shard_ni.ping_count)
        });
        Confirmation {
            arrived_count: arrived.fold(0, u64::wrapping_add),
            shard: self.id,
            generation: self.topology.generation(),
            is_quiet: nis.all(|(ni, local)| !goes(local.status) || self.is_quiet(ni)),
            portals_in_use: self.portals_in_use(),
            is_forwarding: self.topology.forwarding() == Forwarding::Ending && !self.routed.is_empty(),
        }
    }

    /// Its snapshot.
    #[must_use]
    pub const fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    pub(super) fn install(&mut self, now: Instant, topology: Arc<Topology>) {
        self.accept(&topology);
        let former = core::mem::replace(&mut self.topology, topology);
        if self.topology.has_other_nis(&former) {
            self.install_nis(now, &former);
            self.install_peers(now, &former);
        }
        if !self.topology.has_routes_of(&former) {
            self.follow_routes(now);
        }
        if self.topology.forwarding() == Forwarding::Off {
            self.drop_waiting_routed(DropReason::RoutingOff, |_| true);
        }
        self.look_at_gated(now, &former);
        self.release_unnamed(now);
        self.settle(now);
        self.wake();
    }

    /// Panics if a snapshot cannot follow the present one.
    fn accept(&self, topology: &Topology) {
        let (slots, most) = (topology.nis().len(), self.delayed.slots());
        assert!(slots <= most, "{slots} slots of NIs exceed the limit, {most}");
        if let Some(steering) = topology.steering() {
            let (steered, shards) = (steering.shard_count, self.shard_count());
            assert_eq!(steered, shards, "headers are steered to {steered} shards, not {shards}");
        }
        for (ni, local) in self.topology.local_nis() {
            let stays = topology.ni(ni).is_some_and(|next| next.nid == local.nid);
            assert!(stays || self.is_quiet(ni), "{ni:?} goes before it is quiet");
        }
        if let (Some(former), Some(next)) = (self.topology.steering(), topology.steering()) {
            let policies = former.policies.iter().zip(&next.policies).enumerate();
            let changed = policies.filter(|(_, (former, next))| former != next);
            let changed = changed.fold(0_u64, |bits, (portal, _)| bits | 1 << portal);
            let in_use = changed & self.portals_in_use();
            assert_eq!(in_use, 0, "the policies of portals in use change, a bit each");
        }
    }

    /// Portals that programs use, a bit each: that have entries which are not of services of the node itself,
    /// or messages that wait where such a service has none.
    #[must_use]
    pub fn portals_of_programs(&self) -> u64 {
        let [own, others] = self.tables.portals_by_user();
        others | self.portals_in_use() & !own
    }

    fn portals_in_use(&self) -> u64 {
        let lists = self.delayed.records.used().map(|(_, record)| list_of(&record.header));
        // The list behind those of the portals is that of responses.
        let delayed = lists.fold(0_u64, |bits, list| bits | 1_u64.checked_shl(list as u32).unwrap_or(0));
        self.tables.portals_in_use() | delayed
    }

    pub(super) fn shard_count(&self) -> u8 {
        self.delayed.siblings.len() as u8
    }

    fn install_nis(&mut self, now: Instant, former: &Topology) {
        let topology = Arc::clone(&self.topology);
        let shards = self.shard_count();
        self.nis.resize_with(topology.nis().len(), ShardNi::vacant);
        let slots = self.nis.iter_mut().zip(topology.nis());
        for ((slot, local), ni) in slots.zip((0..).map(NiId)) {
            if former.ni(ni).map(|before| before.nid) != local.map(|local| local.nid) {
                *slot = ShardNi::vacant();
                self.peers.forget_first_ni(ni);
            }
            if let Some(local) = local {
                slot.peer_share = share(local.peer_credits.min(local.credits), shards);
                slot.credits.set_total(share(local.credits, shards));
            }
        }
        // Messages that move are to find no credit free where others wait.
        topology.local_nis().for_each(|(ni, _)| self.grant(now, ni));
        for (ni, local) in topology.local_nis() {
            let before = former.ni(ni).map(|before| before.status);
            if local.status != NiStatus::Up && before != Some(local.status) {
                self.stop_serving(now, ni);
            }
        }
    }

    /// Peers get the credits that are due on their nets now.
    fn install_peers(&mut self, now: Instant, former: &Topology) {
        let topology = Arc::clone(&self.topology);
        let endless = share(u32::MAX, self.shard_count());
        let is_own = |topology: &Topology, nid| topology.loopback_to(nid).is_some();
        for (_, local) in former.local_nis().filter(|(_, local)| !is_own(&topology, &local.nid)) {
            self.peers.clear_own(&local.nid);
        }
        for (_, local) in topology.local_nis().filter(|(_, local)| is_own(&topology, &local.nid)) {
            self.peers.set_own(&local.nid, endless);
        }
        for slot in 0..self.peers.capacity() {
            let Some((nid, is_own)) = self.peers.nid(slot) else { continue };
            let net = nid.net();
            let on_net = topology.local_nis().find(|(_, local)| local.net == net);
            let due = on_net.map(|(ni, _)| self.nis[usize::from(ni.0)].peer_share);
            let Some(due) = due.filter(|_| !is_own).or(is_own.then_some(endless)) else { continue };
            self.peers.get_mut(slot).credits.set_total(due);
            while let Some(message) = self.peers.get_mut(slot).credits.grant(&mut self.messages) {
                self.peer_credited(now, message);
            }
        }
    }

    /// Has the messages that wait for gateways which lead nowhere any more go by others, if there are any.
    #[cold]
    fn follow_routes(&mut self, now: Instant) {
        self.news.forget_foreign();
        let topology = Arc::clone(&self.topology);
        let using = topology.local_nis().filter(|(_, local)| local.serves() || local.holds_messages());
        using.for_each(|(ni, _)| self.redirect(now, ni));
    }

    /// An NI serves no more.
    fn stop_serving(&mut self, now: Instant, ni: NiId) {
        self.redirect(now, ni);
        if self.topology.known_ni(ni).status == NiStatus::Closed {
            self.drop_delayed(ni);
            self.drop_waiting_routed(DropReason::NiClosed, |routed| routed.ni == ni);
        }
    }

    /// Has the messages of an NI go on by the paths that they are to have now.
    fn redirect(&mut self, now: Instant, ni: NiId) {
        self.redirect_queued(now, ni);
        let mut moving = self.redirect_credited(now, ni);
        while let Some(message) = moving.pop(&mut self.messages) {
            match self.next_path(now, self.messages.record(&message)) {
                Some(path) => self.move_credited(now, message, &path),
                None => self.end(message, UNREACHABLE),
            }
        }
    }

    /// Sees to the messages that wait for a credit of their peer. Takes all out of the NI's deadlines;
    /// those that wait for its own credits are not put back.
    fn redirect_queued(&mut self, now: Instant, ni: NiId) {
        let mut timers = self.ni(ni).timers.take();
        while let Some(expired) = timers.pop(&mut self.messages) {
            let record = self.messages.record(&expired);
            if record.stage != Stage::Queued {
                continue;
            }
            let (next_hop, former) = (record.transmit.next_hop, record.peer());
            let path = self.next_path(now, record);
            if let Some(path) = path.filter(|path| path.next_hop == next_hop) {
                self.readdress(path.ni, &expired);
                self.nis[usize::from(path.ni.0)].timers.watch(&mut self.messages, &expired);
                continue;
            }
            let message = self.peers.get_mut(former).credits.withdraw(&mut self.messages, expired);
            match path.filter(|path| self.move_to_peer(&message, path).is_some()) {
                Some(path) => {
                    self.readdress(path.ni, &message);
                    self.peers.release(former);
                    self.take_peer_credit(now, message);
                }
                None => self.end(message, UNREACHABLE),
            }
        }
    }

    /// Has a message that holds a credit of its peer and none of an NI's go on by a path.
    fn move_credited(&mut self, now: Instant, message: Message<PeerCredited>, path: &Choice) {
        if path.next_hop == self.messages.record(&message).transmit.next_hop {
            self.readdress(path.ni, &message);
            self.take_ni_credit(now, path.ni, message);
        } else if let Some(former) = self.move_to_peer(&message, path) {
            self.readdress(path.ni, &message);
            let message = self.messages.requeued(message);
            self.release_peer(now, former);
            self.take_peer_credit(now, message);
        } else {
            self.end(message, UNREACHABLE);
        }
    }

    /// Takes the messages that have a credit of their peer, and perhaps one of the NI, away from it;
    /// that credit goes to who stays.
    fn redirect_credited(&mut self, now: Instant, ni: NiId) -> MessageQueue<PeerCredited> {
        let mut moving = MessageQueue::new();
        // Credits that come home, by the turn in which they were taken.
        let mut returned = Turn::ALL.map(|turn| (turn, 0));
        let slot = usize::from(ni.0);
        let mut waiting = self.nis[slot].credits.take_waiters(&mut self.messages, &mut self.peers);
        let mut ready = self.nis[slot].ready.take();
        let mut delayed = self.messages.take_delayed();
        while let Some(message) = ready.pop(&mut self.messages) {
            if self.stays(&message) {
                self.nis[slot].ready.push(&mut self.messages, message);
            } else {
                let message = self.uncredit(now, message, &mut returned);
                moving.push(&mut self.messages, message);
            }
        }
        while let Some(message) = delayed.pop(&mut self.messages) {
            let MessageState { transmit: Transmit { ni: by, .. }, release, .. } =
                *self.messages.record(&message);
            if by != ni || self.stays(&message) {
                self.messages.delay(message, release);
            } else {
                let message = self.uncredit(now, message, &mut returned);
                moving.push(&mut self.messages, message);
            }
        }
        while let Some(message) = waiting.pop(&mut self.messages) {
            if self.stays(&message) {
                let shard_ni = &mut self.nis[slot];
                shard_ni.timers.watch(&mut self.messages, &message);
                shard_ni.credits.wait(&mut self.messages, &mut self.peers, message);
            } else {
                moving.push(&mut self.messages, message);
            }
        }
        for (taken_as, count) in returned {
            (0..count).for_each(|_| self.return_ni_credit(now, ni, taken_as));
        }
        moving
    }

    /// Takes a message away from its NI. A message that a device had no room for may have passed its credit
    /// on before: then no credit comes home.
    fn uncredit(
        &mut self,
        now: Instant,
        message: Message<Credited>,
        returned: &mut [(Turn, u32); 4],
    ) -> Message<PeerCredited> {
        self.end_stuck(&message);
        let record = self.messages.record(&message);
        let (ni, peer, taken_as) = (record.transmit.ni, record.peer(), record.credit_of);
        if record.has_passed_on {
            self.ni(ni).credits.end_passed_on();
        } else {
            returned[taken_as as usize].1 += 1;
            if self.end_credit(peer) {
                self.grant_all(now);
            }
        }
        self.messages.uncredited(message)
    }

    /// Drops what came by an NI and waits here; what a sibling is asked about is dropped when it
    /// answers.
    fn drop_delayed(&mut self, ni: NiId) {
        let waits = |record: &DelayedMessage| {
            record.ni == ni
                && matches!(
                    record.state,
                    DelayState::Timed { .. }
                        | DelayState::Unnamed { .. }
                        | DelayState::Unmatched { .. }
                        | DelayState::Asking(_)
                )
        };
        for slot in 0..self.delayed.records.capacity() {
            if self.delayed.records.get(slot).is_some_and(waits) {
                self.settle_delayed(slot, Decision::Drop(DropReason::NiClosed));
            }
        }
    }

    /// The path by which a message goes on whose NI serves no more, or whose gateway leads nowhere: the same,
    /// another one, or none.
    fn next_path(&self, now: Instant, record: &MessageState) -> Option<Choice> {
        let path = path_of(record);
        let ni = path.ni;
        if let Purpose::Forward { routed } = record.purpose {
            let stays = self.topology.known_ni(ni).serves() && !self.is_route_lost(&path);
            let other = || {
                let from = &self.routed.record(routed).from;
                self.select_forward(now, (from, &record.transmit.header), None)
            };
            return if stays { Some(path) } else { other().filter(|_| !self.is_cut(record)) };
        }
        let is_ping = super::initiator::finds_out(&record.transmit.header.body);
        let memory = self.memory_node_of(&record.purpose);
        let bound = || {
            let request = RouteRequest { by: Some(ni), memory, is_ping, ..RouteRequest::default() };
            self.select_route(now, &path.destination, &request)
        };
        // The node that was a gateway may forward it still.
        let bound = |is_lost: bool| if is_lost { bound().unwrap_or(path) } else { path };
        if record.is_response() {
            let is_lost = || self.has_lost_gateway(&path.next_hop, &path.destination);
            return self.is_still_answered_by(ni).then(|| bound(is_lost()));
        }
        // A link that is down may be back in a moment.
        let waits = || match self.topology.known_ni(ni).holds_messages() {
            true => Some(bound(self.is_route_lost(&path))),
            false if record.is_bound => None,
            false => self.select_down(&path.destination, None),
        };
        if self.topology.known_ni(ni).serves() {
            if !self.is_route_lost(&path) {
                return Some(path);
            }
            let other = match record.is_bound {
                true => None,
                false => self.select_again(now, &path, (memory, is_ping)),
            };
            return Some(other.unwrap_or_else(|| bound(record.is_bound)));
        }
        if record.is_bound {
            return waits();
        }
        self.select_again(now, &path, (memory, is_ping)).or_else(waits)
    }

    /// Whether responses leave by an NI.
    fn is_still_answered_by(&self, ni: NiId) -> bool {
        self.topology.known_ni(ni).status != NiStatus::Closed
    }

    /// Whether a message keeps the path that it has.
    fn stays<S>(&self, message: &Message<S>) -> bool {
        let record = self.messages.record(message);
        let ni = record.transmit.ni;
        match record.is_response() {
            true => {
                let path = path_of(record);
                self.is_still_answered_by(ni) && !self.has_lost_gateway(&path.next_hop, &path.destination)
            }
            false => self.topology.known_ni(ni).serves() && !self.is_route_lost(&path_of(record)),
        }
    }

    /// Has a message leave by another NI, from whose NID it comes then if it is this node's.
    pub(super) fn readdress<S>(&mut self, to: NiId, message: &Message<S>) {
        let nid = self.topology.known_ni(to).nid;
        let record = self.messages.record_mut(message);
        let from = core::mem::replace(&mut record.transmit.ni, to);
        if from != to {
            if !record.is_forwarded() {
                record.transmit.header.source.nid = nid;
            }
            self.ni(from).outgoing_count -= 1;
            self.ni(to).outgoing_count += 1;
        }
    }
}

/// The path that a message has.
const fn path_of(record: &MessageState) -> Choice {
    let Transmit { ni, next_hop, header, .. } = record.transmit;
    Choice { ni, next_hop, destination: header.destination.nid }
}

/// How a message ends that no NI leads away.
const UNREACHABLE: Status = Status::NeverSent(Cause::Unreachable);
