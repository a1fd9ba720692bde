//! Carrying a batch out: from validation to the last confirmation.
//!
//! ```text
//! Asking -> Freezing -> Draining -> Closing -> Opening -> Pooling -> Settling -> done
//!     |       |                                   |         |            ^
//!     +-------+-- portal in use: undone           +---------+-- Undoing, Reopening
//! ```
//!
//! Steps with nothing to do are passed at once. Invariants: one batch at a time; shards hear of an NI
//! when all of the batch are open, and an NI is closed when no shard has anything of it; so what
//! fails on the way leaves the shards as they were, but for NIs that cannot be opened again: what was
//! to go is lost then, what was to stay is absent.
//!
//! An NI goes in two steps. `Leaving`: peers are told, and what is under way ends, within a limit. `Closed`:
//! nothing begins on it, in either direction. With one step, a shard that had reported quiet could be busy
//! again when the driver closes. A portal is frozen while its policy changes: it gets no entries, and no
//! message waits on it, until each shard has reported whether it has any.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use lnet_wire::{Net, Nid};

use super::change::{NodeChange, Plan};
use super::error::{DriverError, RequestError};
use super::nets::{LOOPBACK, NiConfig};
use super::peers::{Peer, peer_state};
use super::{Action, Node, Outcome, RequestId};
use crate::lnd::NiId;
use crate::time::Instant;
use crate::topology::NiStatus;

/// How long NIs that go have to be quiet, after peers know of it: messages of theirs were under way then.
const QUIET_LASTS: Duration = Duration::from_millis(100);

/// How far a batch is.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// All shards say which portals are in use: a portal with entries is not frozen, or its messages would be
    /// dropped between two entries.
    Asking,
    /// Portals get no entries; all shards say again whether they have any.
    Freezing,
    /// Peers are told of the NIs that go, and messages under way by them may end.
    Draining(Draining),
    /// Nothing begins on them any more; all shards have to be quiet.
    Quieting,
    /// Drivers close the NIs.
    Closing(Vec<NiId>),
    /// One NI after the other is opened.
    Opening(NiId),
    /// Router buffers are made.
    Pooling,
    /// What was opened is closed again.
    Undoing(Vec<NiId>),
    /// What was deleted is opened again.
    Reopening(NiId),
    /// All shards take the last snapshot.
    Settling,
}

/// How NIs that go have been used since they were to go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draining {
    /// When they go whatever is under way.
    pub(super) deadline: Instant,
    /// Messages that have come by them, when this was last looked at.
    arrived_count: u64,
    /// When they go if nothing comes any more, since peers know of it and nothing is under way.
    pub(super) quiet_until: Option<Instant>,
}

/// A batch that waits for its turn.
#[derive(Clone, Debug)]
pub(super) struct WaitingBatch<O> {
    pub(super) request: RequestId,
    pub(super) changes: Vec<NodeChange<O>>,
    pub(super) drain_timeout: Duration,
}

/// The batch that is being carried out.
#[derive(Clone, Debug)]
pub(super) struct Task<O> {
    pub(super) request: RequestId,
    plan: Plan<O>,
    drain_timeout: Duration,
    pub(super) step: Step,
    /// The generation that all shards have to have for the next step.
    generation: u64,
    opened: Vec<NiConfig<O>>,
    deleted: Vec<NiConfig<O>>,
    failure: Option<RequestError>,
    /// The nets before, and those that routes led to.
    former_nets: Vec<Net>,
}

/// Batches of changes, which are carried out one after the other.
#[derive(Debug)]
pub(super) struct Batches<O> {
    /// The one that is carried out.
    pub(super) current: Option<Task<O>>,
    pub(super) waiting: VecDeque<WaitingBatch<O>>,
}

impl<O> Batches<O> {
    pub(super) const fn new() -> Self {
        Self { current: None, waiting: VecDeque::new() }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.waiting.len() + usize::from(self.current.is_some())
    }

    /// Gives up one that waits; whether there is such a one.
    pub(super) fn cancel(&mut self, request: RequestId) -> bool {
        let at = self.waiting.iter().position(|batch| batch.request == request);
        at.and_then(|at| self.waiting.remove(at)).is_some()
    }
}

impl<O> Task<O> {
    /// An NI that was opened, and that shards do not know yet.
    pub(super) fn opened_mut(&mut self, ni: NiId) -> Option<&mut NiConfig<O>> {
        self.opened.iter_mut().find(|config| config.ni == ni)
    }
}

impl<O: Clone> Node<O> {
    /// Begins with a batch.
    pub(super) fn begin(&mut self, now: Instant, request: RequestId, plan: Plan<O>, drain_timeout: Duration) {
        if !plan.policies.is_empty() {
            self.publish();
        }
        let (opened, deleted) = (Vec::new(), Vec::new());
        let generation = self.snapshots.generation;
        let step = Step::Asking;
        let (failure, former_nets) = (None, self.nets_in_reach());
        self.batches.current = Some(Task {
            request,
            plan,
            drain_timeout,
            step,
            generation,
            opened,
            deleted,
            failure,
            former_nets,
        });
        self.advance(now);
    }

    /// Takes all steps that can be taken.
    pub(super) fn advance(&mut self, now: Instant) {
        while let Some(task) = self.batches.current.take() {
            let (task, goes_on) = self.step(now, task);
            self.batches.current = task;
            if !goes_on {
                return;
            }
        }
    }

    /// Takes a step if it can be taken; says whether another one may follow.
    fn step(&mut self, now: Instant, mut task: Task<O>) -> (Option<Task<O>>, bool) {
        match &task.step {
            Step::Asking if task.plan.policies.is_empty() => self.drain_or_open(now, &mut task),
            Step::Asking | Step::Freezing if !self.snapshots.all_have(task.generation) => {
                return (Some(task), false);
            }
            Step::Asking => {
                if !self.fail_if_in_use(&mut task) {
                    self.snapshots.frozen =
                        task.plan.policies.iter().fold(0, |bits, (_, portal, _)| bits | 1 << portal);
                    self.publish();
                    task.generation = self.snapshots.generation;
                    task.step = Step::Freezing;
                }
            }
            Step::Freezing => {
                if !self.fail_if_in_use(&mut task) {
                    self.drain_or_open(now, &mut task);
                }
            }
            Step::Draining(draining) => {
                let draining = self.look_at_drain(now, &task, *draining);
                if now < draining.deadline && draining.quiet_until.is_none_or(|until| now < until) {
                    task.step = Step::Draining(draining);
                    return (Some(task), false);
                }
                self.mark(&mut task, NiStatus::Closed);
                task.step = Step::Quieting;
            }
            Step::Quieting if !self.snapshots.are_quiet(task.generation) => return (Some(task), false),
            Step::Quieting => {
                let nis = task.plan.going();
                let nis: Vec<_> =
                    nis.filter(|ni| self.nis.get(*ni).is_some_and(|config| !config.is_absent)).collect();
                self.actions.extend(nis.iter().map(|ni| Action::Close { ni: *ni }));
                task.step = Step::Closing(nis);
            }
            Step::Closing(left) | Step::Undoing(left) if !left.is_empty() => return (Some(task), false),
            Step::Closing(_) => {
                for ni in &task.plan.delete {
                    let at = self.nis.0.iter().position(|config| config.ni == *ni);
                    task.deleted.extend(at.map(|at| self.nis.0.remove(at)));
                }
                for (_, ni) in &task.plan.reopen {
                    if let Some(config) = self.nis.get_mut(*ni) {
                        (config.is_absent, config.going) = (true, None);
                    }
                }
                // Slots of the closed NIs may be given to others from now on.
                self.publish();
                self.open_next(now, &mut task);
            }
            Step::Undoing(_) => {
                task.opened.clear();
                self.reopen_next(&mut task);
            }
            Step::Opening(_) | Step::Pooling | Step::Reopening(_) => return (Some(task), false),
            Step::Settling if !self.snapshots.all_have(task.generation) => return (Some(task), false),
            Step::Settling => {
                self.look_after_set(now, &task.plan);
                self.ask_on_new_nets(now, &task.former_nets);
                let result = task.failure.map_or(Ok(Outcome::Changed), Err);
                self.end_request(task.request, result);
                self.start_next(now);
                return (self.batches.current.take(), false);
            }
        }
        (Some(task), true)
    }

    /// Ends a batch that changes the policy of a portal in use; says whether it does.
    fn fail_if_in_use(&mut self, task: &mut Task<O>) -> bool {
        let in_use = self.snapshots.portals_in_use();
        let busy = task.plan.policies.iter().find(|(_, portal, _)| in_use >> portal & 1 != 0);
        let Some(&(index, portal, _)) = busy else { return false };
        task.failure = Some(RequestError::PortalBusy { portal, index });
        self.settle(task);
        true
    }

    fn drain_or_open(&mut self, now: Instant, task: &mut Task<O>) {
        if task.plan.going().next().is_none() {
            return self.open_next(now, task);
        }
        self.mark(task, NiStatus::Leaving);
        let deadline = now + task.drain_timeout;
        task.step = Step::Draining(Draining { deadline, arrived_count: 0, quiet_until: None });
    }

    /// Looks how far NIs are that go: what peers have sent by them before they were told is under way for a
    /// while, and is not seen before it arrives.
    fn look_at_drain(&self, now: Instant, task: &Task<O>, former: Draining) -> Draining {
        let arrived_count = self.snapshots.arrived_count();
        let is_quiet = self.snapshots.are_quiet(task.generation) && !self.is_telling();
        let has_peers = self.peers.iter().any(|peer| !peer.is_own());
        let lasts = if has_peers { QUIET_LASTS } else { Duration::ZERO };
        let quiet_until = match former.quiet_until {
            _ if !is_quiet => None,
            Some(until) if arrived_count == former.arrived_count => Some(until),
            _ => Some(now + lasts),
        };
        Draining { arrived_count, quiet_until, ..former }
    }

    /// Whether peers that know of this node's NIs are being told which ones there are now.
    fn is_telling(&self) -> bool {
        let knows_former = |peer: &Peer| peer.acked != 0 && peer.acked != self.told.sequence;
        let is_told = |peer: &Peer| peer.is(peer_state::DISCOVERING) && knows_former(peer) && !peer.is_own();
        self.told.push_due.is_some() || self.peers.iter().any(is_told)
    }

    /// Tells the shards how far the NIs are that go.
    fn mark(&mut self, task: &mut Task<O>, status: NiStatus) {
        for ni in task.plan.going() {
            if let Some(config) = self.nis.get_mut(ni) {
                config.going = Some(status);
            }
        }
        self.publish();
        self.tell();
        task.generation = self.snapshots.generation;
    }

    /// A driver has closed an NI.
    pub(super) fn closed(&mut self, now: Instant, ni: NiId) {
        let left = self.batches.current.as_mut().and_then(|task| match &mut task.step {
            Step::Closing(left) | Step::Undoing(left) => Some(left),
            _ => None,
        });
        let at = left.as_ref().and_then(|left| left.iter().position(|other| *other == ni));
        let (Some(left), Some(at)) = (left, at) else { panic!("{ni:?} is closed, but was not to be") };
        left.remove(at);
        self.advance(now);
    }

    /// A driver has opened an NI, or not.
    pub(super) fn opened(&mut self, now: Instant, ni: NiId, result: Result<(), DriverError>) {
        let Some(mut task) = self.batches.current.take() else {
            panic!("{ni:?} is opened, but was not to be")
        };
        match task.step {
            Step::Opening(expected) if expected == ni && !task.plan.reopen.is_empty() => {
                let (index, _) = task.plan.reopen.remove(0);
                let config = self.nis.get_mut(ni).filter(|config| config.is_absent);
                let Some(config) = config else { panic!("{ni:?} is opened again, but is not absent") };
                match result {
                    Ok(()) => {
                        (config.is_absent, config.has_link) = (false, true);
                        self.open_next(now, &mut task);
                    }
                    Err(error) => {
                        let (nid, lost) = (config.spec.nid, Vec::new());
                        task.failure = Some(RequestError::Open { index, nid, error, lost });
                        task.step = Step::Undoing(Vec::new());
                    }
                }
            }
            Step::Opening(expected) if expected == ni => {
                let (index, config) = task.plan.add.remove(0);
                match result {
                    Ok(()) => {
                        task.opened.push(NiConfig { ni, ..config });
                        self.open_next(now, &mut task);
                    }
                    Err(error) => {
                        let (nid, lost) = (config.spec.nid, Vec::new());
                        task.failure = Some(RequestError::Open { index, nid, error, lost });
                        self.undo(&mut task);
                    }
                }
            }
            Step::Reopening(expected) if expected == ni => {
                let former = task.deleted.remove(0);
                let nid = former.spec.nid;
                match (result, &mut task.failure) {
                    (Ok(()), _) => self.restore(NiConfig { ni, going: None, has_link: true, ..former }),
                    (Err(_), Some(RequestError::Open { lost, .. })) => lost.push(nid),
                    (Err(_), _) => {}
                }
                self.reopen_next(&mut task);
            }
            _ => panic!("{ni:?} is opened, but was not to be"),
        }
        self.batches.current = Some(task);
        self.advance(now);
    }

    /// Closes what a batch has opened that fails.
    fn undo(&mut self, task: &mut Task<O>) {
        let undone: Vec<_> = task.opened.iter().map(|config| config.ni).collect();
        self.actions.extend(undone.iter().map(|ni| Action::Close { ni: *ni }));
        task.step = Step::Undoing(undone);
    }

    /// Router buffers are made, or not.
    pub(super) fn pools_made(&mut self, now: Instant, result: Result<(), DriverError>) {
        let task = self.batches.current.take();
        let Some(mut task) = task.filter(|task| matches!(task.step, Step::Pooling)) else {
            panic!("router buffers are made, but were not to be")
        };
        match result {
            Ok(()) => self.finish(now, &mut task),
            Err(error) => {
                let index = task.plan.routing.map_or(0, |plan| plan.index);
                task.failure = Some(RequestError::Pools { index, error });
                self.undo(&mut task);
            }
        }
        self.batches.current = Some(task);
        self.advance(now);
    }

    fn open_next(&mut self, now: Instant, task: &mut Task<O>) {
        let again = task.plan.reopen.first().and_then(|(_, ni)| self.nis.get(*ni));
        if let Some(NiConfig { ni, spec, tunables, .. }) = again {
            self.actions.push_back(Action::Open { ni: *ni, spec: spec.clone(), tunables: *tunables });
            task.step = Step::Opening(*ni);
            return;
        }
        let Some((_, config)) = task.plan.add.first() else { return self.make_pools(now, task) };
        let ni = self.free_slot(&task.opened);
        self.actions.push_back(Action::Open { ni, spec: config.spec.clone(), tunables: config.tunables });
        task.step = Step::Opening(ni);
    }

    fn make_pools(&mut self, now: Instant, task: &mut Task<O>) {
        let buffers = task.plan.routing.as_ref().and_then(|plan| self.routing.buffers_for(plan));
        let Some(buffers) = buffers else { return self.finish(now, task) };
        self.actions.push_back(Action::Pools(buffers));
        task.step = Step::Pooling;
    }

    fn reopen_next(&mut self, task: &mut Task<O>) {
        while task.deleted.first().is_some_and(|former| former.is_absent) {
            let ni = self.free_slot(&[]);
            let former = task.deleted.remove(0);
            self.restore(NiConfig { ni, going: None, ..former });
        }
        let Some(former) = task.deleted.first() else { return self.settle(task) };
        let ni = self.free_slot(&[]);
        self.actions.push_back(Action::Open { ni, spec: former.spec.clone(), tunables: former.tunables });
        task.step = Step::Reopening(ni);
    }

    /// Puts an NI that was deleted back where it was among the others.
    fn restore(&mut self, config: NiConfig<O>) {
        let at = self.nis.0.iter().position(|other| other.added > config.added);
        self.nis.0.insert(at.unwrap_or(self.nis.0.len()), config);
    }

    /// The lowest free slot.
    fn free_slot(&self, opened: &[NiConfig<O>]) -> NiId {
        let is_taken = |ni: &NiId| {
            *ni == LOOPBACK || self.nis.get(*ni).is_some() || opened.iter().any(|config| config.ni == *ni)
        };
        let mut slots = (0..=u16::MAX).map(NiId);
        slots.find(|ni| !is_taken(ni)).unwrap_or(NiId(u16::MAX))
    }

    /// All drivers have done what they were asked for: the rest cannot fail.
    fn finish(&mut self, now: Instant, task: &mut Task<O>) {
        // NIs that are gone have left their slots to others that come.
        for &(ni, value) in &task.plan.healths {
            if let Some(config) = self.nis.get_mut(ni) {
                config.set_health(value);
            }
        }
        for &(ni, timeout) in &task.plan.timeouts {
            if let Some(config) = self.nis.get_mut(ni) {
                config.spec.options.lnd_timeout = timeout;
            }
        }
        let former_nets = self.nis.nets();
        let added: Vec<Nid> = task.opened.iter().map(|config| config.spec.nid).collect();
        let last = self.nis.0.iter().map(|config| config.added).max().unwrap_or(0);
        for (config, added) in task.opened.drain(..).zip(last + 1..) {
            self.nis.0.push(NiConfig { added, ..config });
        }
        for &(_, portal, word) in &task.plan.policies {
            self.policies[portal as usize] = word;
            self.actions.push_back(Action::Steer { portal, policy: word });
        }
        self.settings = task.plan.settings;
        // Preferences go by what is local.
        let had_rules = !self.rules.rules().is_empty();
        if let Some(rules) = task.plan.rules.take() {
            self.rules = rules;
        }
        let has_other_routes = task.plan.routes.is_some();
        if let Some(routes) = task.plan.routes.take() {
            self.replace_routes(routes);
        }
        let has_other_nis = !task.plan.delete.is_empty() || !added.is_empty();
        if had_rules || !self.rules.rules().is_empty() || has_other_nis || has_other_routes {
            self.peers.mark_all();
        }
        self.change_nets(&task.deleted, &former_nets);
        for primary in added.iter().filter_map(|nid| self.peers.lose_nid(nid)).collect::<Vec<_>>() {
            self.requeue(&primary);
        }
        let own: Vec<Nid> = self.nis.0.iter().map(|config| config.spec.nid).collect();
        let gone: Vec<Nid> = task.deleted.iter().map(|config| config.spec.nid).collect();
        self.peers.mark_own(&gone, &own);
        self.peers.mark_own(&own, &own);
        for change in &task.plan.peers {
            // All of them were tried when the batch began; what peers have done since may have made one
            // superfluous.
            let _ = self.peers.apply(change, &own);
        }
        self.change_routing(now, task.plan.routing.as_ref(), &added);
        if has_other_routes {
            self.peers.set_gateways(self.routes.list.gateways().copied().collect());
        }
        self.settle(task);
    }

    /// Has the peers follow the nets that have gone and come.
    fn change_nets(&mut self, deleted: &[NiConfig<O>], former: &[Net]) {
        let nets = self.nis.nets();
        if nets.iter().any(|net| !former.contains(net)) {
            self.peers.gain_net(|net| nets.contains(&net));
        }
        let gone: BTreeSet<Net> = deleted.iter().map(|config| config.spec.nid.net()).collect();
        for net in gone.into_iter().filter(|net| !nets.contains(net)) {
            let routes = &self.routes.list;
            for primary in self.peers.lose_net(net, |net| nets.contains(&net) || routes.leads_to(net)) {
                self.requeue(&primary);
            }
        }
    }

    fn settle(&mut self, task: &mut Task<O>) {
        self.snapshots.frozen = 0;
        self.settle_gateways();
        self.publish();
        self.tell();
        task.generation = self.snapshots.generation;
        task.step = Step::Settling;
    }

    /// The NIDs of the NIs that come with the batch that is carried out.
    pub(super) fn coming(&self) -> impl Iterator<Item = Nid> {
        let coming = |task: &'_ Task<O>| {
            let planned = task.plan.add.iter().map(|(_, config)| config.spec.nid);
            planned.chain(task.opened.iter().map(|config| config.spec.nid)).collect::<Vec<_>>()
        };
        self.batches.current.as_ref().map(coming).unwrap_or_default().into_iter()
    }

    /// The NIDs of the NIs that come and go with the batch that is carried out.
    #[must_use]
    pub fn changing(&self) -> Vec<Nid> {
        let Some(task) = &self.batches.current else { return Vec::new() };
        let going = self.nis.0.iter().filter(|config| config.going.is_some());
        let coming = task.plan.add.iter().map(|(_, config)| config.spec.nid);
        let back = task.opened.iter().chain(&task.deleted).chain(going);
        back.map(|config| config.spec.nid).chain(coming).collect()
    }
}
