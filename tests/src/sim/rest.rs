//! The phases of a run, and what must hold when nothing happens any more.

use lnet_core::lnd::Status;
use lnet_core::stats::{DelayReason, DropReason};

use super::app::Trial;
use super::control::Control;
use super::lane::Lane;
use super::ledger::{Flight, Taken};
use super::node::{self, Node, PORTALS_USED};
use super::pool::Pool;
use super::report::Fault;
use super::world::{CHECK_NS, Happening, Phase, World};

impl World {
    /// Adds what a node has counted to what the run has.
    pub(super) fn count_node(&mut self, number: usize) {
        let node = &self.nodes[number];
        self.counts.evicted_visits += node.control.as_ref().map_or(0, Control::evicted_count);
        for lane in &node.lanes {
            lane.driver.count(&mut self.counts);
            self.counts.add_shard(lane.shard.counters());
            let interfaces = lane.desk.slots.iter().filter_map(|slot| lane.shard.ni_usage((*slot)?));
            let short = interfaces.filter(|usage| usage.credits_min < 0);
            self.counts.short_interfaces += short.count() as u64;
            let waited = lane.shard.counters().delays(DelayReason::EventSlots);
            self.counts.add_many(Fault::SlotAwaited, waited);
            for reason in [
                DropReason::Malformed,
                DropReason::NotLocal,
                DropReason::NoSource,
                DropReason::NoRoute,
                DropReason::Portal,
                DropReason::RoutingOff,
            ] {
                // Routers that are dead lead back nowhere.
                let is_due = reason == DropReason::NoRoute && self.plan.deaths > 0;
                let dropped = if is_due { 0 } else { lane.shard.counters().drops(reason).messages };
                self.ledger.expect(dropped == 0, "no message is dropped without cause", || {
                    format!("node {number} has dropped {dropped}: {reason}")
                });
            }
        }
    }

    pub(super) fn check_phase(&mut self) {
        let (now, bound_ns) = (self.now, self.plan.bound_ns());
        let is_served = matches!(self.phase, Phase::Draining(_)) && !self.are_services_over();
        match self.phase {
            Phase::Active => {
                self.trace.say(|| "faults stop".to_owned());
                // While sessions are young: later they are asked for anew.
                let is_proven = self.plan.is_proven() && self.plan.hostile.is_empty();
                let trials = if is_proven { self.introductions() } else { Vec::new() };
                self.trials = trials.into_iter().map(Trial::new).collect();
                self.phase = Phase::Proving(now + bound_ns * (1 + self.trials.len() as u64));
                self.fabric.is_faulty = false;
                self.fabric.down.fill([false; 2]);
                self.streams.heal();
                self.add_all_rails();
                for node in 0..self.nodes.len() {
                    for shard in 0..self.nodes[node].lanes.len() {
                        let lane = &mut self.nodes[node].lanes[shard];
                        lane.end_delays();
                        for portal in 0..PORTALS_USED as u32 {
                            lane.shard.clear_lazy(portal).expect("a portal that exists");
                        }
                        self.request_turn(node, shard, now + 1);
                    }
                }
            }
            Phase::Proving(_) if self.trials.is_empty() && !self.is_changing() => {
                self.phase = Phase::Settling(now + bound_ns);
            }
            Phase::Proving(until) => {
                if !self.is_changing() {
                    self.prove();
                }
                let found = || format!("{} are left, now {:?}", self.trials.len(), self.trials.last());
                self.ledger.expect(now < until, "paths work in the end", found);
            }
            Phase::Settling(_) if self.open.is_empty() && self.unsent.is_empty() => {
                self.phase = Phase::Draining(now + bound_ns);
                self.trace.say(|| "all is unlinked".to_owned());
                self.fabric.attack.clear();
                self.ledger.friendly_ns = None;
                self.silence_strangers();
                self.end_services();
                self.unlink_all();
            }
            Phase::Settling(until) => self.ledger.expect(now < until, "every operation ends", || {
                format!("without SEND event: {:?}; not unlinked: {:?}", self.unsent, self.open)
            }),
            Phase::Draining(_) if !is_served && self.is_at_rest() => {
                self.phase = Phase::Over;
                self.check_rest();
            }
            Phase::Draining(until) => {
                let rest = now < until || self.ledger.violation.is_some();
                let found = if rest { String::new() } else { self.describe_unrest() };
                self.ledger.expect(rest, "all comes to rest", || found);
            }
            Phase::Over => {}
        }
        self.at(now + CHECK_NS, Happening::Check);
    }

    fn is_changing(&self) -> bool {
        !self.nodes.iter().all(|node| node.control.as_ref().is_none_or(Control::is_at_rest))
    }

    fn is_at_rest(&self) -> bool {
        let at_rest =
            |node: &Node| node.memory.living().next().is_none() && node.lanes.iter().all(Lane::is_at_rest);
        self.fabric.is_empty()
            && self.streams.is_quiet()
            && !self.is_changing()
            && self.nodes.iter().all(at_rest)
    }

    fn describe_unrest(&self) -> String {
        let (is_empty, is_quiet) = (self.fabric.is_empty(), self.streams.is_quiet());
        let mut text = format!("fabric empty: {is_empty}, streams quiet: {is_quiet}");
        for (number, node) in self.nodes.iter().enumerate() {
            let mds: Vec<_> = node.memory.living().collect();
            text += &format!("\nnode {number}: descriptors {mds:?}");
            for lane in &node.lanes {
                text += &format!("\n  {} {:?}", lane.driver.describe(), lane.shard.usage());
            }
        }
        text
    }

    /// What must hold when nothing happens any more.
    fn check_rest(&mut self) {
        for number in 0..self.nodes.len() {
            self.count_node(number);
            let node = &self.nodes[number];
            let (shards, credits) = (node.lanes.len() as u32, node::credits(&self.plan, number));
            let home = [credits.0, credits.1].map(|credits| i64::from(credits.div_ceil(shards).max(1)));
            for lane in &node.lanes {
                let usage = lane.shard.usage();
                let left = [
                    usage.match_entries,
                    usage.memory_descs,
                    usage.delayed,
                    usage.events,
                    usage.messages,
                    usage.trackers,
                ];
                self.ledger.expect(left == [0; 6], "nothing is left", || format!("node {number}: {usage:?}"));
                let busy = lane.shard.peers().find(|peer| peer.reference_count != u32::from(peer.is_own));
                self.ledger
                    .expect(busy.is_none(), "nobody is referred to", || format!("node {number}: {busy:?}"));
                let interfaces = (0..usize::from(self.plan.rails_of(number)))
                    .map(|rail| lane.desk.slots[rail].and_then(|ni| lane.shard.ni_credits(ni)));
                for credits in interfaces {
                    self.ledger.expect(credits == Some(home[0]), "credits are conserved", || {
                        format!("node {number}: {credits:?} of {home:?}")
                    });
                }
                let rails = |node| (0..self.plan.rails_of(node)).map(move |rail| (node, rail));
                let nids = (0..self.nodes.len()).flat_map(rails);
                // Messages to itself go by `lo`, where there is one.
                for (peer, rail) in nids.filter(|(peer, _)| *peer != number || node.control.is_none()) {
                    let credits = lane.shard.peer_credits(&node::nid(&self.plan, peer, rail));
                    self.ledger.expect(
                        credits.is_none_or(|credits| credits == home[1]),
                        "credits are conserved",
                        || format!("node {number} to {peer}: {credits:?} of {home:?}"),
                    );
                }
            }
            let frames = node.receive_pool.is_home();
            self.ledger
                .expect(frames, "frames are conserved", || format!("node {number}: frames are not home"));
        }
        let frames = self.pools.iter().all(Pool::is_home);
        self.ledger.expect(frames, "frames are conserved", || "sent frames are not home".to_owned());
        self.check_streams();
        self.check_routers();
        self.check_operations();
    }

    fn check_operations(&mut self) {
        for number in 0..self.ledger.operations.len() {
            let operation = self.ledger.operations[number].clone();
            let lives = |(node, life): (usize, u32)| self.nodes[node].life == life;
            let sends = operation.started && lives((operation.node, operation.life));
            let by_one_that_lives = |taken: &Taken| lives(taken.by);
            let taken = operation.taken.filter(by_one_that_lives);
            let answered = operation.answered.filter(by_one_that_lives);
            // A descriptor for many PUTs may be unlinked before all ACKs have come.
            let gentle = self.plan.gentle && !operation.is_hostile;
            let due = gentle && taken.is_some() && operation.awaits && operation.is_alone;
            let arrives = |flight: Flight| flight.sent != Some(Status::Ok) || (flight.ended && flight.well);
            let all_arrive = [operation.request, operation.response].into_iter().all(arrives);
            // A node that has sent it does not know what becomes of it behind a router.
            let is_lost = self.plan.routers > 0 && gentle && operation.started && !operation.request.ended;
            self.ledger.expect(!gentle || (all_arrive && !is_lost), "what can arrive does arrive", || {
                format!("operation {number}: {operation:?}")
            });
            let has_events = |taken: Option<Taken>| taken.is_none_or(|taken| taken.events == taken.times);
            // Services answer pings without an event.
            let is_told = (!sends || operation.send_events == 1)
                && (operation.is_of_node || has_events(taken))
                && has_events(answered)
                && (!due || answered.is_some());
            self.ledger
                .expect(is_told, "events are never lost", || format!("operation {number}: {operation:?}"));
        }
    }
}
