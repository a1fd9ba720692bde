//! The checkers of a fleet, which are always on. Nothing is delivered twice, and what is acknowledged has
//! arrived, is looked at with each event; the rest here.

use lnet_core::lnd::{Cause, Status};
use lnet_core::node::{RequestId, peer_state};
use lnet_wire::Nid;

use super::hostile::{FRIENDS_BOUND_NS, PING_BOUND_NS};
use super::network::pair;
use super::node::RETRY_COUNT;
use super::{Put, QUIET_NS, SECOND_NS, VIOLATIONS_MAX, World};

/// How long an attempt to discover a peer may take: a ping and a push, each of the transaction timeout.
const ATTEMPT_NS: u64 = 20 * SECOND_NS;

impl World<'_> {
    pub(super) fn violate(&mut self, what: String) {
        if self.report.violations.len() < VIOLATIONS_MAX {
            self.report.violations.push(format!("{:.6} s: {what}", self.now as f64 / SECOND_NS as f64));
        }
    }

    /// What was not sent may be sent by another path, so it is lost only where there is none, or no try is
    /// left. What has waited for a discovery ends with it, of which the ping or the push may have been lost
    /// before a path was in order again.
    pub(super) fn check_sent(&mut self, number: u32, put: u64, status: Status) {
        let is_undiscovered = matches!(status, Status::NeverSent(Cause::Undiscovered(_)));
        if is_undiscovered && self.now <= self.changed_at + ATTEMPT_NS {
            return;
        }
        if let (Status::NeverSent(cause), Some(state)) = (status, self.under_way.get(&put))
            && state.good != 0
        {
            if state.losses > RETRY_COUNT {
                self.report.given_up += 1;
                return;
            }
            let (to, good) = (state.to, state.good);
            self.violate(format!(
                "put {put} of node {number} to node {to} ends as {cause:?}, and the paths {good:#x} were in order"
            ));
        }
    }

    /// Where there are hostile nodes, and the network is in order, messages of the others end in their time.
    pub(super) fn check_time(&mut self, put: u64) {
        let is_attacked = self.is_attacked();
        let Some(Put { begun_at, from, to, good, .. }) = self.under_way.get(&put) else { return };
        let (lasted_ns, from, to) = (self.now - begun_at, *from, *to);
        if is_attacked && *good != 0 && lasted_ns > FRIENDS_BOUND_NS {
            let seconds = lasted_ns as f64 / SECOND_NS as f64;
            self.violate(format!("put {put} of node {from} to node {to} lasted {seconds:.3} s under attack"));
        }
    }

    /// Whether there are hostile nodes.
    pub(super) fn is_attacked(&self) -> bool {
        self.fleet.groups.iter().any(|group| group.hostile.is_some())
    }

    /// A ping of a node to another one has ended: where nothing is lost it is answered soon.
    pub(super) fn check_ping(&mut self, number: u32, request: RequestId, is_answered: bool) {
        let Some((nid, begun_at)) = self.pinged.remove(&(number, request)) else { return };
        let lasted_ns = self.now - begun_at;
        if self.fleet.faults.is_empty() && !(is_answered && lasted_ns <= PING_BOUND_NS) {
            let milliseconds = lasted_ns as f64 / 1e6;
            let how = if is_answered { "answered" } else { "not answered" };
            self.violate(format!("the ping of node {number} to {nid} is {how} after {milliseconds:.3} ms"));
        }
        self.report.answered += u64::from(is_answered);
    }

    /// No node knows another one's NID as a third one's: no shard sends there by it, or takes it for that.
    pub(super) fn check_names(&mut self, number: u32, other: u32) {
        let (own, other_nids) = (&self.members[number as usize], &self.members[other as usize].nids);
        let is_others = |nid: &Nid| other_nids.iter().any(|(_, its)| its == nid);
        let topology = own.shard.topology();
        let mistaken = other_nids.iter().find_map(|(_, nid)| {
            let peer = topology.peer(nid)?;
            let foreign = peer.nis.iter().find(|ni| !is_others(&ni.nid))?;
            Some((*nid, foreign.nid))
        });
        if let Some((nid, foreign)) = mistaken {
            self.violate(format!("node {number} takes {nid} and {foreign} for one peer's"));
        }
    }

    /// The paths by which a message to a NID may go, a bit each, as far as its initiator knows.
    pub(super) fn good_paths(&self, number: u32, to: u32, nid: Nid) -> u64 {
        let own = &self.members[number as usize];
        let peer = own.node.peer(&nid).filter(|peer| peer.is(peer_state::MULTI_RAIL));
        let is_known = |its: &Nid| peer.map_or(*its == nid, |peer| peer.ni(its).is_some());
        // A peer that is not Multi-Rail sees one source, whatever becomes of that.
        if peer.is_none() && own.nids.iter().filter(|(_, own)| own.net() == nid.net()).count() > 1 {
            return 0;
        }
        let mut good = 0;
        for (at, (_, theirs)) in self.members[to as usize].nids.iter().enumerate() {
            for (from, (_, own)) in own.nids.iter().enumerate() {
                if own.net() == theirs.net() && is_known(theirs) && self.is_reached(own, theirs) {
                    good |= pair(from, at);
                }
            }
        }
        good
    }

    /// Whether a node knows one that it talks to as that is.
    fn knows(&self, number: u32, partner: u32) -> bool {
        let (own, other) = (&self.members[number as usize], &self.members[partner as usize]);
        // A peer that is not Multi-Rail is known by the NID that was used.
        let Some(peer) = other.nids.iter().find_map(|(_, nid)| own.node.peer(nid)) else { return false };
        let is_multi_rail = peer.is(peer_state::MULTI_RAIL);
        // NIDs that are out of reach are no more than told.
        let told = peer.nids();
        let is_near = |nid: &Nid| own.nids.iter().any(|(_, own)| own.net() == nid.net());
        let mut nids = other.nids.iter().map(|(_, nid)| nid);
        let all = nids.all(|nid| if is_near(nid) { peer.ni(nid).is_some() } else { told.contains(nid) });
        let discovered = peer.is(peer_state::DISCOVERED | peer_state::NIDS_UP_TO_DATE)
            && !peer.is(peer_state::DISCOVERING);
        discovered && if is_multi_rail { all && told.len() == other.nids.len() } else { peer.nis.len() == 1 }
    }

    /// Whether two nodes that talk know each other as they are: what is talked to is told by the other one,
    /// if both take part. One that has begun anew may have been told before.
    pub(super) fn know_each_other(&self, number: u32, partner: u32) -> bool {
        let takes_part = |number: u32| self.members[number as usize].takes_part;
        let has_forgotten = |number: u32| self.places[number as usize].life > 0;
        self.knows(number, partner)
            && (!takes_part(number)
                || !takes_part(partner)
                || has_forgotten(partner)
                || self.knows(partner, number))
    }

    pub(super) fn count_late(&mut self, number: u32, nid: Nid, bytes: usize) {
        // A peer that is down is asked again with each use.
        // So are gateways, by the clock.
        let owner = self.place_of(&nid);
        if owner.is_some_and(|(other, _)| self.is_router(other)) {
            self.report.gateway_checks += 1;
            return;
        }
        let is_hostile = owner.is_some_and(|(other, _)| self.is_hostile(number, other));
        if self.now > self.changed_at + QUIET_NS && !is_hostile && self.may_reach(number, &nid) {
            let seconds = (self.now - self.changed_at) / SECOND_NS;
            self.violate(format!("node {number} discovers {nid} {seconds} s after the last change"));
        }
        self.report.discovery_bytes += bytes as u64;
        self.report.late_traffic += u64::from(self.now > self.end / 10 * 9 && self.now <= self.end);
    }

    /// What holds when all has ended: nothing is under way, and every credit is home.
    pub(super) fn check_rest(&mut self) {
        if !self.under_way.is_empty() {
            self.violate(format!("{} puts have not ended", self.under_way.len()));
        }
        let mut found = Vec::new();
        // Routes may lead nowhere.
        let reach = |(number, other): &&(u32, u32)| {
            self.has_common_net(*number, *other) || self.acked.contains(&(*number, *other))
        };
        let strange = |(number, other): &&(u32, u32)| !self.know_each_other(*number, *other);
        for (number, other) in self.talked.iter().filter(reach).filter(strange) {
            found.push(format!("nodes {number} and {other} talk, and do not know each other as they are"));
        }
        found.sort();
        for (number, member) in self.members.iter().enumerate() {
            let usage = member.shard.usage();
            if usage.messages != 0 {
                found.push(format!("node {number} has {} messages under way", usage.messages));
            }
            for peer in member.shard.peers().filter(|peer| peer.credits != i64::from(peer.credits_max)) {
                let (nid, credits, max) = (peer.nid, peer.credits, peer.credits_max);
                found.push(format!("node {number} has {credits} of {max} credits of {nid}"));
            }
            for (ni, local) in member.shard.topology().local_nis() {
                let (nid, max) = (local.nid, i64::from(local.credits));
                let credits = member.shard.ni_credits(ni).unwrap_or_default();
                if credits != max {
                    found.push(format!("node {number} has {credits} of {max} credits of {nid}"));
                }
            }
            self.report.resends += member.shard.counters().resends;
        }
        found.into_iter().for_each(|what| self.violate(what));
    }
}

#[cfg(test)]
mod tests {
    use lnet_core::node::{NodeChange, PeerEdit, Request};
    use lnet_core::time::Instant;

    use super::*;
    use crate::fleet::node::owner;
    use crate::fleet::{Event, Fleet, REST_NS, nid};

    const FOUR: &str = "rails: [{name: left}, {name: right}]
groups:
- {name: all, nodes: 4, nis: [{net: xdp, rail: left}, {net: xdp1, rail: right}]}
workload: {peers_per_node: 2, puts_per_second: 4, seconds: 40}
";

    /// What is found in a run of four nodes that talk for 40 seconds, in which something goes wrong; `meddle`
    /// gets each event with its number and may replace it, or swallow it.
    #[track_caller]
    fn check(meddle: impl Fn(&mut World<'_>, u64, Event) -> Option<Event>, expected: &str) {
        let fleet = Fleet::parse(FOUR).unwrap();
        let mut world = World::new(&fleet, 1);
        let mut count = 0;
        while let Some(((at, _), event)) = world.events.pop_first() {
            world.now = at;
            if at > world.end + REST_NS {
                break;
            }
            count += 1;
            if let Some(event) = meddle(&mut world, count, event) {
                world.step(event);
            }
        }
        world.check_rest();
        let found = &world.report.violations;
        let is_found = found.iter().any(|what| what.contains(expected));
        assert!(is_found || (expected.is_empty() && found.is_empty()), "{expected:?}: {found:?}");
    }

    #[test]
    fn a_run_in_which_nothing_is_wrong_has_no_findings() {
        check(|_, _, event| Some(event), "");
    }

    #[test]
    fn what_an_lnd_never_ends_is_found() {
        let swallow = |_: &mut World<'_>, count, event| (count < 100 || !is_sent(&event)).then_some(event);
        check(swallow, " messages under way");
        // Credits of the peer NI, and of the NI.
        check(swallow, " of 128 credits of 10.0.0.");
        check(swallow, " of 1024 credits of 10.0.0.");
    }

    const fn is_sent(event: &Event) -> bool {
        matches!(event, Event::Sent { .. })
    }

    #[test]
    fn what_is_lost_though_a_path_was_in_order_is_found() {
        for cause in [Cause::CreditTimeout, Cause::Undiscovered(110)] {
            let lose = |world: &mut World<'_>, _, event| {
                Some(match event {
                    Event::Arrive { from, tx, source, to, .. }
                        if world.now > world.changed_at + ATTEMPT_NS =>
                    {
                        let status = Status::NeverSent(cause);
                        Event::Sent { node: from, tx, path: (source, to), status }
                    }
                    other => other,
                })
            };
            check(lose, "were in order");
        }
    }

    #[test]
    fn a_message_that_arrives_twice_is_found() {
        let double = |world: &mut World<'_>, _, event| {
            if let Event::Arrive { source, to, header, .. } = &event
                && let Some((number, _)) = owner(to)
            {
                world.members[number as usize].arrive(Instant(world.now), source, to, header);
            }
            Some(event)
        };
        check(double, "is delivered twice");
    }

    /// A node that asks though nothing has changed.
    #[test]
    fn discovery_that_goes_on_is_found() {
        let ask = |world: &mut World<'_>, _, event| {
            if world.now > world.changed_at + QUIET_NS + SECOND_NS {
                let request = Request::Discover { nid: nid(1, 0), is_forced: true };
                let _ = world.members[0].node.handle_request(Instant(world.now), request);
                world.settle(0);
            }
            Some(event)
        };
        check(ask, "s after the last change");
    }

    /// A node that has forgotten another one after all have talked.
    #[test]
    fn a_peer_that_is_not_known_in_the_end_is_found() {
        let forget = |world: &mut World<'_>, _, event| {
            if world.now > world.end {
                let edit = PeerEdit::Delete { primary: nid(1, 0), nids: Vec::new(), is_forced: true };
                let request = Request::batch(vec![NodeChange::Peer(edit)]);
                for number in [0, 2, 3] {
                    let _ = world.members[number].node.handle_request(Instant(world.now), request.clone());
                    world.settle(number as u32);
                }
            }
            Some(event)
        };
        check(forget, "do not know each other as they are");
    }
}
