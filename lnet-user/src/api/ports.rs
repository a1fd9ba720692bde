//! NIs that come and go while the shards run on threads of their own.
//!
//! A control plane that decides about numbers and snapshots itself uses the primitives: [`Lnet::open_ni`],
//! [`Lnet::update`], [`Lnet::confirmations`], [`Lnet::close_ni`]. Programs without one use [`Lnet::add_ni`],
//! [`Lnet::remove_ni`] and [`Lnet::set_policy`], which are made of them. Not both: each snapshot is made of the last.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use lnet_core::lnd::NiId;
use lnet_core::shard::Confirmation;
use lnet_core::topology::{LocalNi, NiStatus, Steering, Topology};
use lnet_wire::steer::{PORTALS, Policy};

use super::{Lnet, LnetError, ShardEnd};
use crate::lnd::ShardPort;
use crate::node::{LO, NiConfig, NiState, Node};
use crate::runtime::Worker;

/// How often shards are asked whether they are done with an NI.
const QUIET_INTERVAL: Duration = Duration::from_millis(1);

impl Lnet {
    /// Opens an NI under a number that is free, and gives every shard its part. Messages leave by it when a snapshot
    /// has it ([`Lnet::update`]). Call it in the node's network namespace.
    ///
    /// # Errors
    /// [`LnetError::Node`], [`LnetError::Watch`]: the node is as before. [`LnetError::Stopped`] if a shard has ended.
    pub fn open_ni(&self, ni: NiId, config: &NiConfig) -> Result<(), LnetError> {
        let mut node = self.node();
        let parts = node.open_ni(ni, config)?;
        self.show_captures(&node, ni);
        let mut refused = Vec::new();
        let mut outcome = Ok(());
        for (ShardEnd { caller, .. }, part) in self.inner.shards.iter().zip(parts) {
            if outcome.is_err() {
                refused.push(part);
                continue;
            }
            match caller.run(move |worker, _| worker.add_port(part)) {
                Ok(Ok(())) => {}
                Ok(Err(port_refused)) => {
                    refused.push(*port_refused.port);
                    outcome = Err(LnetError::Watch(port_refused.error));
                }
                Err(stopped) => outcome = Err(stopped),
            }
        }
        if outcome.is_err() {
            refused.extend(self.take_ports(ni));
            node.close_ni(ni, refused)?;
        }
        *self.inner.nid.lock().unwrap_or_else(PoisonError::into_inner) = node.nid();
        outcome
    }

    /// Takes the parts of an NI from all shards and closes it. What was under way by it goes by another NI to the same
    /// peer, or ends. The snapshot that the shards have says that it is closed, and they are quiet about it
    /// ([`Lnet::confirmations`]). Call it in the node's network namespace; it may take a moment.
    ///
    /// # Errors
    /// [`LnetError::Node`] if there is none of this number.
    pub fn close_ni(&self, ni: NiId) -> Result<(), LnetError> {
        let mut node = self.node();
        Ok(node.close_ni(ni, self.take_ports(ni))?)
    }

    /// The parts of the shards that have an NI, which give them up. Those of shards that have ended are gone.
    fn take_ports(&self, ni: NiId) -> Vec<ShardPort> {
        let take = move |worker: &mut Worker| worker.has_port(ni).then(|| worker.remove_port(ni));
        let ends = self.inner.shards.iter();
        ends.filter_map(|end| end.caller.run(move |worker, _| take(worker)).ok().flatten()).collect()
    }

    /// Gives all shards a newer snapshot of the topology, one after the other ([`Worker::update`]); what each says
    /// of it.
    ///
    /// # Errors
    /// [`LnetError::Stopped`] if a shard has ended.
    pub fn update(&self, topology: &Arc<Topology>) -> Result<Vec<Confirmation>, LnetError> {
        self.inner.topology.store(Arc::clone(topology));
        let tell = |end: &ShardEnd| {
            let topology = Arc::clone(topology);
            end.caller.run(move |worker, _| {
                worker.update(topology);
                worker.confirmation()
            })
        };
        self.inner.shards.iter().map(tell).collect()
    }

    /// [`Lnet::update`] for a caller that has other things to do meanwhile, in whatever runtime; all shards at once.
    ///
    /// # Errors
    /// [`LnetError::Stopped`] if a shard has ended.
    pub async fn update_async(&self, topology: &Arc<Topology>) -> Result<Vec<Confirmation>, LnetError> {
        self.inner.topology.store(Arc::clone(topology));
        let tell = |worker: &mut Worker, topology| {
            worker.update(topology);
            worker.confirmation()
        };
        let told = self.shards().map(|shard| {
            let topology = Arc::clone(topology);
            shard.run_async(move |worker| tell(worker, topology))
        });
        try_join_all(told.collect::<Vec<_>>()).await
    }

    /// What each shard says of the snapshot that it has.
    ///
    /// # Errors
    /// [`LnetError::Stopped`] if a shard has ended.
    pub fn confirmations(&self) -> Result<Vec<Confirmation>, LnetError> {
        self.inner.shards.iter().map(|end| end.caller.run(|worker, _| worker.confirmation())).collect()
    }

    /// [`Lnet::confirmations`] for a caller that has other things to do meanwhile.
    ///
    /// # Errors
    /// [`LnetError::Stopped`] if a shard has ended.
    pub async fn confirmations_async(&self) -> Result<Vec<Confirmation>, LnetError> {
        let told = self.shards().map(|shard| shard.run_async(|worker| worker.confirmation()));
        try_join_all(told.collect::<Vec<_>>()).await
    }

    /// The snapshot that was published last.
    #[must_use]
    pub fn topology(&self) -> Arc<Topology> {
        self.inner.topology.load_full()
    }

    /// The NIs but `lo`, in the order of their numbers.
    #[must_use]
    pub fn nis(&self) -> Vec<NiState> {
        self.node().nis().collect()
    }

    /// Lends the node: for counters, fault rules and policies.
    pub fn with_node<R>(&self, body: impl FnOnce(&mut Node) -> R) -> R {
        body(&mut self.node())
    }

    /// Adds an NI: opens it and publishes a snapshot that has it. Its number.
    ///
    /// # Errors
    /// As [`Lnet::open_ni`].
    pub fn add_ni(&self, config: &NiConfig) -> Result<NiId, LnetError> {
        let _changing = self.inner.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let topology = self.topology();
        let ni = (LO.0 + 1..=u16::MAX).map(NiId).find(|ni| topology.ni(*ni).is_none()).unwrap_or(LO);
        self.open_ni(ni, config)?;
        let message_timeout = self.node().message_timeout();
        let local = LocalNi::new(config.nid, config.credits, config.peer_credits, message_timeout);
        self.publish(|next| next.set(ni, Some(local)))?;
        Ok(ni)
    }

    /// Removes an NI: no message is sent by it any more, and what is under way has `patience` to end; then what
    /// is left goes by another NI to the same peer, or ends. Returns when it is closed, which may take as long as the
    /// LND timeout beyond `patience` where peers do not answer.
    ///
    /// # Errors
    /// [`LnetError::Node`] if there is none of this number, [`LnetError::Stopped`] if a shard has ended.
    pub fn remove_ni(&self, ni: NiId, patience: Duration) -> Result<(), LnetError> {
        let _changing = self.inner.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(local) = self.topology().ni(ni).copied().filter(|_| ni != LO) else {
            return Err(crate::node::NodeError::NoNi(ni.0).into());
        };
        let with = |status| move |next: &mut Next| next.set(ni, Some(LocalNi { status, ..local }));
        self.publish(with(NiStatus::Leaving))?;
        self.await_quiet(ni, Some(patience))?;
        self.publish(with(NiStatus::Closed))?;
        self.await_quiet(ni, None)?;
        self.close_ni(ni)?;
        self.publish(|next| next.set(ni, None))
    }

    /// Changes the policy of a portal, which has no entries.
    ///
    /// # Errors
    /// [`LnetError::PortalInUse`] if it has some, or messages wait for one; [`LnetError::Node`] if the policy cannot be;
    /// [`LnetError::Stopped`].
    pub fn set_policy(&self, portal: u8, policy: Policy) -> Result<(), LnetError> {
        let _changing = self.inner.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let bit = 1_u64.checked_shl(portal.into()).unwrap_or(0);
        let is_in_use =
            |shards: Vec<Confirmation>| shards.iter().any(|shard| shard.portals_in_use & bit != 0);
        if is_in_use(self.confirmations()?) {
            return Err(LnetError::PortalInUse(portal));
        }
        // From now on it gets no entries.
        let is_used = is_in_use(self.publish_all(|next| next.frozen |= bit)?);
        let changed = if is_used {
            Err(LnetError::PortalInUse(portal))
        } else {
            self.node().set_policy(portal, policy).map_err(LnetError::Node)
        };
        let policies = *self.node().policies();
        self.publish(|next| {
            next.frozen &= !bit;
            next.steering = next.steering.map(|steering| Steering { policies, ..steering });
        })?;
        changed
    }

    fn await_quiet(&self, ni: NiId, patience: Option<Duration>) -> Result<(), LnetError> {
        let begun = Instant::now();
        loop {
            let is_quiet = |end: &ShardEnd| end.caller.run(move |worker, _| worker.is_quiet(ni));
            let quiet: Vec<bool> = self.inner.shards.iter().map(is_quiet).collect::<Result<_, _>>()?;
            if quiet.into_iter().all(|is_quiet| is_quiet)
                || patience.is_some_and(|patience| begun.elapsed() >= patience)
            {
                return Ok(());
            }
            std::thread::sleep(QUIET_INTERVAL);
        }
    }

    fn publish(&self, change: impl FnOnce(&mut Next)) -> Result<(), LnetError> {
        self.publish_all(change).map(drop)
    }

    fn publish_all(&self, change: impl FnOnce(&mut Next)) -> Result<Vec<Confirmation>, LnetError> {
        let mut next = Next::of(&self.topology());
        change(&mut next);
        self.update(&Arc::new(next.into_topology()))
    }
}

/// A snapshot in the making, out of the last one.
struct Next {
    former: Topology,
    slots: Vec<Option<LocalNi>>,
    steering: Option<Steering>,
    frozen: u64,
}

impl Next {
    fn of(former: &Topology) -> Self {
        let frozen = (0..PORTALS as u32).filter(|portal| former.is_frozen(*portal));
        Self {
            former: former.clone(),
            slots: former.interfaces().to_vec(),
            steering: former.steering().copied(),
            frozen: frozen.fold(0, |bits, portal| bits | 1 << portal),
        }
    }

    fn set(&mut self, ni: NiId, local: Option<LocalNi>) {
        let place = usize::from(ni.0);
        if place >= self.slots.len() {
            self.slots.resize(place + 1, None);
        }
        self.slots[place] = local;
    }

    fn into_topology(self) -> Topology {
        let next = Topology::with_slots(self.slots)
            .with_generation(self.former.generation() + 1)
            .with_tunables(*self.former.tunables())
            .with_frozen(self.frozen);
        match self.steering {
            Some(steering) => next.with_steering(steering),
            None => next,
        }
    }
}
