//! Routing between nets: how it goes on and off, and what others are told of it (LNet `router.c:
//! lnet_rtrpools_enable`, `lnet_rtrpools_disable`; spec: core 11.5).
//!
//! ```text
//! Off --pools are made--> Starting --wait--> On --> Stopping --idle, or three times the wait--> Off
//! ```
//!
//! A router forwards in each state but the first. It says so in On alone: others take a router before all of
//! them know of it else, and go on to use one that stops until they have looked again. The wait is the sum of
//! `alive_router_check_interval` and `router_ping_timeout`; a node without NIs before, of which others know
//! nothing, is On at once.
//!
//! While it forwards, a net on which no other node has pinged it for as long counts as idle: others
//! are told that its NIs there are down (LNet `router.c: lnet_update_ni_status_locked`), so that senders on
//! other nets take routers that their receivers can hear. Invariant: what shards do follows from the state.

use alloc::collections::BTreeMap;
use core::time::Duration;

use lnet_model::pool::PoolKind;
use lnet_wire::{Net, Nid, Parameter};
use thiserror::Error;

use super::{Action, Node};
use crate::lnd::NiId;
use crate::time::{Instant, earliest};
use crate::topology::Forwarding;

/// How long others may take to look again whether a router routes, by the defaults of
/// `alive_router_check_interval` and `router_ping_timeout` (LNet `router.c`).
pub const ROUTER_WAIT: Duration = Duration::from_secs(60 + 50);

/// Buffers of each pool of a router, all shards together (LNet `router.c: LNET_NRB_*`).
pub const POOL_BUFFERS: [u32; PoolKind::ALL.len()] = [2048, 16384, 1024];

/// Whether a node forwards messages of others.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum RouterState {
    /// Forwards nothing.
    #[default]
    Off,
    /// Forwards, and tells others when they have had time to know it.
    Starting,
    /// Forwards.
    On,
    /// Forwards what still comes, and has told others that it does not.
    Stopping,
}

/// Why routing is not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RoutingError {
    /// Routing stops: what is under way ends first.
    #[error("routing is stopping: try again when it is off")]
    Stopping,
    /// The node was made without room for router buffers.
    #[error("cannot enable routing: this node has no room for router buffers")]
    NoRoom,
    /// More buffers than there may be.
    #[error("{asked} router buffers are too many: {max} at most in all pools")]
    TooMany {
        /// How many were to be.
        asked: u64,
        /// How many there may be.
        max: u32,
    },
}

impl RoutingError {
    /// Its errno, positive.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Stopping => 16,
            Self::NoRoom => 95,
            Self::TooMany { .. } => 12,
        }
    }
}

/// Changes of routing that a batch comes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoutingPlan {
    /// The index of the last change in the batch.
    pub(super) index: usize,
    is_on: bool,
    /// Buffers of each pool that there are to be while it is on.
    buffers: [u32; PoolKind::ALL.len()],
}

/// A change of routing that is asked for.
#[derive(Clone, Copy)]
pub(super) enum RoutingChange {
    Switch(bool),
    Buffers(PoolKind, u32),
}

/// How far routing is.
#[derive(Clone, Copy, Debug)]
enum RoutingStep {
    Off,
    Starting {
        until: Instant,
    },
    On,
    /// Ends at the second time, and from the first one on as soon as nothing is under way.
    Stopping {
        idle_from: Instant,
        until: Instant,
        may_end: bool,
    },
}

/// Routing of a node.
#[derive(Debug)]
pub(super) struct Routing {
    phase: RoutingStep,
    /// Whether it was ever on.
    was_on: bool,
    /// Buffers of each pool while it is on.
    buffers: [u32; PoolKind::ALL.len()],
    /// When another node has pinged an NI of a net last, or it came, or routing did; nothing for idle ones.
    pinged: BTreeMap<Net, Option<Instant>>,
}

impl Default for Routing {
    fn default() -> Self {
        Self { phase: RoutingStep::Off, was_on: false, buffers: POOL_BUFFERS, pinged: BTreeMap::new() }
    }
}

impl Routing {
    const fn state(&self) -> RouterState {
        match self.phase {
            RoutingStep::Off => RouterState::Off,
            RoutingStep::Starting { .. } => RouterState::Starting,
            RoutingStep::On => RouterState::On,
            RoutingStep::Stopping { .. } => RouterState::Stopping,
        }
    }

    /// Whether others are told that this node routes.
    pub(super) const fn is_told(&self) -> bool {
        matches!(self.phase, RoutingStep::On)
    }

    /// Whether shards forward messages of others in this phase.
    pub(super) const fn forwarding(&self) -> Forwarding {
        match self.phase {
            RoutingStep::Off => Forwarding::Off,
            RoutingStep::Starting { .. } | RoutingStep::On => Forwarding::On,
            RoutingStep::Stopping { .. } => Forwarding::Ending,
        }
    }

    /// When there is something to look at.
    pub(super) fn next(&self, wait: Duration) -> Option<Instant> {
        let idle = self.pinged.values().flatten().min().map(|at| *at + wait);
        let phase = match self.phase {
            RoutingStep::Off | RoutingStep::On => None,
            RoutingStep::Starting { until } | RoutingStep::Stopping { until, may_end: true, .. } => {
                Some(until)
            }
            RoutingStep::Stopping { idle_from, .. } => Some(idle_from),
        };
        earliest([idle, phase])
    }

    /// Looks whether a change can be made after others of its batch. Numbers of buffers are forgotten while
    /// routing is off (LNet `router.c: lnet_rtrpools_adjust`); 0 is the default.
    pub(super) fn plan(
        &self,
        former: Option<RoutingPlan>,
        (index, change): (usize, RoutingChange),
        max: u32,
    ) -> Result<Option<RoutingPlan>, RoutingError> {
        let is_on = matches!(self.phase, RoutingStep::Starting { .. } | RoutingStep::On);
        let mut plan = former.unwrap_or(RoutingPlan { index, is_on, buffers: self.buffers });
        if self.state() == RouterState::Stopping && !matches!(change, RoutingChange::Switch(false)) {
            return Err(RoutingError::Stopping);
        }
        match change {
            RoutingChange::Switch(is_on) => plan.is_on = is_on,
            RoutingChange::Buffers(..) if !plan.is_on => return Ok(former),
            RoutingChange::Buffers(kind, 0) => plan.buffers[kind as usize] = POOL_BUFFERS[kind as usize],
            RoutingChange::Buffers(kind, count) => plan.buffers[kind as usize] = count,
        }
        if plan.is_on && max == 0 {
            return Err(RoutingError::NoRoom);
        }
        Ok(Some(RoutingPlan { index, ..plan }))
    }

    /// The buffers that are to be made before a plan is carried out, if any.
    pub(super) fn buffers_for(&self, plan: &RoutingPlan) -> Option<[u32; PoolKind::ALL.len()]> {
        let are_there = !matches!(self.phase, RoutingStep::Off) && plan.buffers == self.buffers;
        (plan.is_on && !are_there).then_some(plan.buffers)
    }

    /// Carries a plan out. `wait`: how long others may take to look again; nothing where they know nothing.
    fn change(&mut self, now: Instant, plan: &RoutingPlan, wait: Option<Duration>) {
        if plan.is_on {
            (self.was_on, self.buffers) = (true, plan.buffers);
        }
        self.phase = match (self.phase, plan.is_on) {
            (RoutingStep::Off, true) => match wait {
                Some(wait) => RoutingStep::Starting { until: now + wait },
                None => RoutingStep::On,
            },
            (RoutingStep::Starting { .. } | RoutingStep::On, false) => {
                let wait = wait.unwrap_or_default();
                let [idle_from, until] = [wait, 3 * wait].map(|wait| now + wait);
                RoutingStep::Stopping { idle_from, until, may_end: false }
            }
            (phase, _) => phase,
        };
    }
}

impl RoutingPlan {
    /// Looks at the buffers that a batch comes to, once all of its changes are known.
    pub(super) fn check(&self, max: u32) -> Result<(), RoutingError> {
        let asked = self.buffers.iter().map(|count| u64::from(*count)).sum();
        if self.is_on && asked > max.into() { Err(RoutingError::TooMany { asked, max }) } else { Ok(()) }
    }
}

impl<O: Clone> Node<O> {
    /// Whether it forwards messages of others.
    #[must_use]
    pub const fn router_state(&self) -> RouterState {
        self.routing.state()
    }

    /// Whether it has forwarded messages of others since it was configured.
    #[must_use]
    pub const fn was_router(&self) -> bool {
        self.routing.was_on
    }

    /// Buffers of each pool that it has while it forwards, by [`PoolKind`].
    #[must_use]
    pub const fn router_buffers(&self) -> [u32; PoolKind::ALL.len()] {
        self.routing.buffers
    }

    /// How long others may take to look again whether this node routes.
    pub(super) fn router_wait(&self) -> Duration {
        let waits = [Parameter::AliveRouterCheckInterval, Parameter::RouterPingTimeout];
        Duration::from_secs(waits.map(|wait| u64::from(self.settings.parameter(wait))).iter().sum())
    }

    /// Carries changes of a batch out, and counts the time of NIs that have come with it.
    pub(super) fn change_routing(&mut self, now: Instant, plan: Option<&RoutingPlan>, added: &[Nid]) {
        let was_off = matches!(self.routing.phase, RoutingStep::Off);
        if let Some(plan) = plan {
            let is_new = self.nis.0.iter().all(|config| added.contains(&config.spec.nid));
            let wait = (!is_new || !was_off).then(|| self.router_wait());
            self.routing.change(now, plan, wait);
        }
        if !matches!(self.routing.phase, RoutingStep::Off) {
            let nets = self.nis.nets();
            self.routing.pinged.retain(|net, _| nets.contains(net));
            let new = nets.iter().filter(|net| was_off || added.iter().any(|nid| nid.net() == **net));
            self.routing.pinged.extend(new.map(|net| (*net, Some(now))));
        }
    }

    /// Goes on where the time for that has come, or what was under way has ended.
    pub(super) fn advance_routing(&mut self, now: Instant) {
        let is_quiet = self.snapshots.all_have(self.snapshots.generation) && !self.snapshots.are_forwarding();
        match &mut self.routing.phase {
            RoutingStep::Starting { until } if *until <= now => {
                self.routing.phase = RoutingStep::On;
                self.tell();
            }
            RoutingStep::Stopping { idle_from, until, may_end } if *idle_from <= now => {
                *may_end = true;
                if is_quiet || *until <= now {
                    self.routing.phase = RoutingStep::Off;
                    self.stopped_routing();
                }
            }
            _ => {}
        }
        let wait = self.router_wait();
        let due = |(_, pinged): &(&Net, &mut Option<Instant>)| pinged.is_some_and(|at| at + wait <= now);
        let mut has_idle = false;
        for (net, pinged) in self.routing.pinged.iter_mut().filter(due) {
            *pinged = None;
            let nis = self.nis.0.iter_mut().filter(|config| config.spec.nid.net() == *net);
            nis.for_each(|config| config.is_idle = true);
            has_idle = true;
        }
        if has_idle {
            self.tell();
        }
    }

    /// Ends it at once, and forgets the numbers of buffers.
    pub(super) fn end_routing(&mut self) {
        let former = core::mem::take(&mut self.routing);
        if !matches!(former.phase, RoutingStep::Off) {
            self.stopped_routing();
        }
    }

    /// Routing is off from now on.
    fn stopped_routing(&mut self) {
        self.routing.pinged.clear();
        self.nis.0.iter_mut().for_each(|config| config.is_idle = false);
        self.actions.push_back(Action::DropPools);
        self.publish();
        self.tell();
    }

    /// Another node has pinged an NI.
    pub(super) fn note_pinged(&mut self, now: Instant, ni: NiId) {
        let Some(config) = self.nis.get_mut(ni) else { return };
        if let Some(pinged) = self.routing.pinged.get_mut(&config.spec.nid.net()) {
            *pinged = Some(now);
            if core::mem::take(&mut config.is_idle) {
                self.tell();
            }
        }
    }
}
