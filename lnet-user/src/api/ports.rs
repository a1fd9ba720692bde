//! The topology of a node that runs: requests to its control state machine, and the NIs that it has opened
//! and closed.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lnet_core::handle::{ShardId, ShardSet};
use lnet_core::limits::Limits;
use lnet_core::lnd::NiId;
use lnet_core::node::{NiConfig as CoreNi, NodeChange, Outcome, Peer, PeerEdit, Pinged, Request};
use lnet_core::shard::Confirmation;
use lnet_core::topology::{Distance, Topology};
use lnet_core::udsp::RuleEdit;
use lnet_io::locks::MutexGuard;
use lnet_model::lnd::{Lnd, NiOption};
use lnet_model::ni::NiOptions;
use lnet_model::udsp::UdspRule;
use lnet_wire::steer::Policy;
use lnet_wire::{Global, Net, Nid};

use super::runner::block_on;
use super::{Core, Lnet, LnetError};
use crate::lnd::ShardPort;
use crate::node::{Chosen, LndDefaults, LndOptions, Machine, NiConfig, NiState, NodeDriver, NodeError};
use crate::runtime::Worker;

impl Lnet {
    /// Adds an NI; its number. The node opens it in the network namespace that it was started in.
    ///
    /// # Errors
    /// [`LnetError::Refused`]: the node is as before. [`LnetError::Ended`].
    pub fn add_ni(&self, config: &NiConfig) -> Result<NiId, LnetError> {
        block_on(self.request(Request::batch(vec![NodeChange::AddNi(config.spec(&self.lnd_defaults()))])))?;
        let added = self.machine().ni(&config.nid).map(|ni| ni.ni);
        // Another request may have deleted it since.
        added.ok_or(LnetError::Refused(lnet_core::node::RequestError::Cancelled))
    }

    /// Removes an NI: no message is sent by it any more, and what is under way has `patience` to end; then
    /// what is left goes by another NI to the same peer, or ends. Returns when it is closed, which may take
    /// as long as the LND timeout beyond `patience` where peers do not answer.
    ///
    /// # Errors
    /// [`LnetError::Node`] if there is none of this number, [`LnetError::Refused`], [`LnetError::Ended`].
    pub fn remove_ni(&self, ni: NiId, patience: Duration) -> Result<(), LnetError> {
        let found = self.find_ni(|config| config.ni == ni);
        let nid = found.ok_or(NodeError::NoNi(ni.0))?.spec.nid;
        let changes = vec![NodeChange::DeleteNi { nid }];
        block_on(self.request(Request::Batch { changes, drain_timeout: patience })).map(drop)
    }

    /// Changes the policy of a portal, which has no entries.
    ///
    /// # Errors
    /// [`LnetError::Refused`] if it has some, or messages wait for one, or the policy cannot be;
    /// [`LnetError::Ended`].
    pub fn set_policy(&self, portal: u8, policy: Policy) -> Result<(), LnetError> {
        let change = NodeChange::SetPolicy { portal: portal.into(), policy };
        block_on(self.request(Request::batch(vec![change]))).map(drop)
    }

    /// Sets a global tunable of the node. The values of [`Global::Discovery`] are those of
    /// [`Discovery`](crate::Discovery), as numbers.
    ///
    /// # Errors
    /// [`LnetError::Refused`] if the value is out of range, or does not go with the others;
    /// [`LnetError::Ended`].
    pub fn set(&self, setting: Global, value: u32) -> Result<(), LnetError> {
        let change = NodeChange::Set { setting, value: value.into() };
        block_on(self.request(Request::batch(vec![change]))).map(drop)
    }

    /// Changes the peers that the node knows, as an administrator does: all of the changes, or none.
    ///
    /// # Errors
    /// [`LnetError::Refused`] says what is wrong with the first that cannot be made; [`LnetError::Ended`].
    pub fn edit_peers(&self, edits: &[PeerEdit]) -> Result<(), LnetError> {
        let changes = edits.iter().cloned().map(NodeChange::Peer).collect();
        block_on(self.request(Request::batch(changes))).map(drop)
    }

    /// Changes the selection policies (UDSP) of the node: all of the changes, or none.
    ///
    /// # Errors
    /// [`Lnet::edit_peers`] names them.
    pub fn edit_selection_policies(&self, edits: &[RuleEdit]) -> Result<(), LnetError> {
        let changes = edits.iter().cloned().map(NodeChange::Udsp).collect();
        block_on(self.request(Request::batch(changes))).map(drop)
    }

    /// The selection policies (UDSP) of the node, the strongest first. The place of each is its index.
    #[must_use]
    pub fn selection_policies(&self) -> Vec<UdspRule> {
        self.machine().rules().rules().to_vec()
    }

    /// Discovers the node that has a NID, whatever is known of it: its NIDs, the primary one first (LNet
    /// `peer.c: LNetDiscover`). With `is_forced` it is told as well what this node says of itself.
    ///
    /// # Errors
    /// [`LnetError::Refused`] says why it is not; [`LnetError::Ended`].
    pub fn discover(&self, nid: Nid, is_forced: bool) -> Result<Pinged, LnetError> {
        block_on(self.discover_async(nid, is_forced))
    }

    /// [`Lnet::discover`] for a caller that has other things to do meanwhile. Dropping the future gives it
    /// up.
    ///
    /// # Errors
    /// As [`Lnet::discover`].
    pub async fn discover_async(&self, nid: Nid, is_forced: bool) -> Result<Pinged, LnetError> {
        self.pinged(Request::Discover { nid, is_forced }).await
    }

    /// Announces a peer by its NIDs, as a program does that has them from elsewhere (LNet `peer.c:
    /// LNetAddPeer`); what is known of it then.
    ///
    /// The first NID that is on a net of this node is the peer's primary NID, by which its events and entries
    /// go. That stays, whatever discovery finds, unless
    /// [`NodeConfig::lock_prim_nid`](crate::NodeConfig::lock_prim_nid) says otherwise. The nodes that have
    /// the other NIDs are discovered, and what turns out to be Multi-Rail becomes a part of the peer; this
    /// does not wait for that, as [`Lnet::discover`] does. Without discovery (`Global::Discovery`) each NID
    /// is a peer of its own. A peer that an administrator has made stays as it is.
    ///
    /// # Errors
    /// [`LnetError::Refused`] if no NID is on a net of this node; [`LnetError::Ended`].
    pub fn announce_peer(&self, nids: &[Nid]) -> Result<Pinged, LnetError> {
        block_on(self.announce_peer_async(nids))
    }

    /// [`Lnet::announce_peer`] for a caller that has other things to do meanwhile.
    ///
    /// # Errors
    /// As [`Lnet::announce_peer`].
    pub async fn announce_peer_async(&self, nids: &[Nid]) -> Result<Pinged, LnetError> {
        self.pinged(Request::Announce { nids: nids.to_vec() }).await
    }

    /// The primary NID of the peer that has a NID, by which its events go (LNet `peer.c: LNetPrimaryNID`).
    ///
    /// A peer that was not discovered yet, or has changed since, is discovered first, and this waits for it.
    /// It does not where the primary NID cannot change: it is locked ([`Lnet::announce_peer`], `peer add
    /// --lock_prim`), or discovery is off, when a NID that is not known stands for itself.
    ///
    /// # Errors
    /// [`LnetError::Refused`] says why the peer is not discovered, where LNet takes the NID for the primary
    /// one; [`LnetError::Ended`].
    pub fn primary_nid(&self, nid: Nid) -> Result<Nid, LnetError> {
        block_on(self.primary_nid_async(nid))
    }

    /// [`Lnet::primary_nid`] for a caller that has other things to do meanwhile. Dropping the future gives it
    /// up.
    ///
    /// # Errors
    /// As [`Lnet::primary_nid`].
    pub async fn primary_nid_async(&self, nid: Nid) -> Result<Nid, LnetError> {
        Ok(self.pinged(Request::PrimaryNid { nid }).await?.primary)
    }

    /// Asks a node for its NIDs, from a local NID or whichever leads there, and waits for its answer at most
    /// so long.
    ///
    /// # Errors
    /// [`LnetError::Refused`] says why there is none; [`LnetError::Ended`].
    pub fn ping(&self, nid: Nid, source: Option<Nid>, timeout: Duration) -> Result<Pinged, LnetError> {
        block_on(self.ping_async(nid, source, timeout))
    }

    /// [`Lnet::ping`] for a caller that has other things to do meanwhile, in whatever runtime. Dropping the
    /// future gives it up.
    ///
    /// # Errors
    /// As [`Lnet::ping`].
    pub async fn ping_async(
        &self,
        nid: Nid,
        source: Option<Nid>,
        timeout: Duration,
    ) -> Result<Pinged, LnetError> {
        self.pinged(Request::Ping { nid, source, timeout: Some(timeout) }).await
    }

    /// What comes of a request about a peer.
    async fn pinged(&self, request: Request<LndOptions>) -> Result<Pinged, LnetError> {
        match self.request(request).await? {
            Outcome::Pinged(pinged) => Ok(pinged),
            Outcome::Changed => Err(self.inner.runner.why_ended()),
        }
    }

    /// The nodes that this one knows of by their traffic, has pinged, or was told by; in the order of their
    /// primary NIDs.
    ///
    /// # Errors
    /// [`LnetError::Ended`].
    pub fn peers(&self) -> Result<Vec<Peer>, LnetError> {
        block_on(self.inner.follow_shards())?;
        Ok(self.machine().peers().cloned().collect())
    }

    /// The snapshot that was published last.
    #[must_use]
    pub fn topology(&self) -> Arc<Topology> {
        self.inner.topology.load_full()
    }

    /// How far a NID is, and from which local NID it is reached (`LNetDist`); `None` if no NI is on its net.
    #[must_use]
    pub fn distance(&self, nid: &Nid) -> Option<Distance> {
        self.inner.topology.load().distance(nid)
    }

    /// The NIs but `lo`, in the order of their numbers.
    #[must_use]
    pub fn nis(&self) -> Vec<NiState> {
        self.inner.view.nis()
    }

    /// How the node waits, and why.
    pub fn reactor(&self) -> &Chosen {
        self.inner.view.reactor()
    }

    /// Has the XDP programs log frames that they refuse, or not: those of a node that was started with
    /// [`log_refusals`](crate::NodeConfig::log_refusals).
    ///
    /// # Errors
    /// [`NodeError::Bpf`] where they cannot, and the kernel's refusal.
    pub fn log_refusals(&self, on: bool) -> Result<(), NodeError> {
        self.inner.view.log_refusals(on)
    }

    /// The objects that each shard may have.
    pub fn limits(&self) -> &Limits {
        self.inner.view.limits()
    }

    /// Lends the node: for its configuration, its XDP programs and their fault rules.
    pub fn with_node<R>(&self, body: impl FnOnce(&mut NodeDriver) -> R) -> R {
        body(&mut self.inner.node())
    }

    /// Has something carried out by the state machine.
    ///
    /// # Errors
    /// [`LnetError`]: what the state machine or an NI that is opened refuses.
    pub async fn request(&self, request: Request<LndOptions>) -> Result<Outcome, LnetError> {
        self.inner.runner.request(request).await
    }

    /// The state machine, for a look.
    pub fn machine(&self) -> MutexGuard<'_, Machine> {
        self.inner.runner.machine()
    }

    fn find_ni(&self, fits: impl Fn(&CoreNi<LndOptions>) -> bool) -> Option<CoreNi<LndOptions>> {
        let machine = self.machine();
        let nets = machine.nets();
        nets.iter().flat_map(|net| &net.nis).find(|config| fits(config)).map(|config| (*config).clone())
    }

    /// What is known of an NI, without asking the kernel.
    pub fn known_ni(&self, ni: NiId) -> Option<NiState> {
        self.inner.runner.ni(ni)
    }

    /// The port at which peers of a net are spoken to: TCP or UDP, as the LND has it. `None` for a net
    /// without an NI on a network interface.
    pub fn peer_port(&self, net: Net) -> Option<u16> {
        let state = self.nis().into_iter().find(|state| state.config.nid.net() == net)?;
        match state.lnd()?.asked? {
            Lnd::Tcp => Some(self.inner.accept_ports[0]),
            Lnd::Xdp => Some(state.xdp?.udp_port),
        }
    }

    /// Sets an option of an NI that can be changed while it is there. An NI that there is not is passed over.
    ///
    /// # Errors
    /// [`LnetError::Ended`].
    pub async fn set_option(&self, nid: &Nid, option: NiOption, value: i64) -> Result<(), LnetError> {
        let asked = NiOptions::default().with(option, value);
        let changed = self.inner.node().change_options(nid, &asked);
        let Some((ni, options)) = changed else { return Ok(()) };
        if let Some(lnd) = self.machine().lnd_mut(nid) {
            lnd.options.set(option, Some(value));
        }
        self.inner.look_at_links();
        for shard in self.shards() {
            shard.run_async(move |worker| worker.change_options(ni, &options)).await?;
        }
        Ok(())
    }

    /// The shard that a NID of a peer belongs to, where one shard has all that goes to and comes from it.
    #[must_use]
    pub fn home_of(&self, nid: &Nid) -> ShardId {
        let ni = self.find_ni(|config| config.spec.nid.net() == nid.net());
        let serving = ni.and_then(|ni| ShardSet::of(ni.spec.lnd.serving_shards.iter().copied()));
        lnet_tcp_proto::home_of(nid, serving.unwrap_or(ShardSet::all(self.shard_count() as u8)))
    }

    /// What NIs have that are added.
    pub fn lnd_defaults(&self) -> LndDefaults {
        *self.inner.lnd_defaults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// NIs that are added have these values from now on.
    pub fn set_lnd_defaults(&self, defaults: LndDefaults) {
        *self.inner.lnd_defaults.lock().unwrap_or_else(PoisonError::into_inner) = defaults;
    }

    /// Has the node hear at once what its shards have learned, so that what is shown next is not older than
    /// what a program has seen: with which peers there was traffic, what has failed, and by which paths.
    ///
    /// # Errors
    /// [`LnetError::Ended`].
    pub async fn follow_shards(&self) -> Result<(), LnetError> {
        self.inner.follow_shards().await
    }

    /// Forgets all peers.
    pub fn forget_peers(&self) {
        self.inner.runner.forget_peers();
    }

    /// Gives up all requests that are not being carried out.
    pub fn cancel_requests(&self) {
        self.inner.runner.cancel_all();
    }

    /// Confirmations of the shards for the snapshot that they have, in their order.
    ///
    /// # Errors
    /// [`LnetError::Ended`].
    pub async fn confirmations(&self) -> Result<Vec<Confirmation>, LnetError> {
        self.inner.confirmations().await
    }

    /// Ready when the node has ended, since a thread of it has panicked.
    pub async fn ended(&self) -> LnetError {
        self.inner.runner.ended().await
    }
}

impl Core {
    /// Opens an NI, and gives every shard its part. Messages leave by it when a snapshot has it.
    pub(super) fn open_ni(&self, ni: NiId, config: &NiConfig) -> Result<NiState, LnetError> {
        let mut node = self.node();
        let parts = node.open_ni(ni, config)?;
        self.show_captures(ni);
        let mut refused = Vec::new();
        let mut outcome = Ok(());
        for (shard, part) in self.shards.iter().zip(parts) {
            if outcome.is_err() {
                refused.push(part);
                continue;
            }
            match shard.run(move |worker, _| worker.add_port(part)) {
                Ok(Ok(())) => {}
                Ok(Err((error, port))) => {
                    refused.push(*port);
                    outcome = Err(LnetError::Watch(error));
                }
                Err(stopped) => outcome = Err(stopped),
            }
        }
        if outcome.is_err() {
            refused.extend(self.take_ports(ni));
            node.close_ni(ni, refused)?;
        }
        *self.nid.lock().unwrap_or_else(PoisonError::into_inner) = node.nid();
        outcome?;
        node.nis().find(|state| state.ni == ni).ok_or(NodeError::NoNi(ni.0).into())
    }

    /// Follows what has changed about the interface of an NI, and gives every shard its part. Shards that do
    /// not take part yet are given it when the interface is looked at next.
    pub(super) fn follow_ni(&self, ni: NiId) {
        let mut node = self.node();
        let takes_part = |end: &super::ShardEnd| end.run(move |worker, _| worker.takes_part_in(ni));
        if !self.shards.iter().all(|end| takes_part(end).unwrap_or(false)) {
            return;
        }
        for (end, part) in self.shards.iter().zip(node.follow_ni(ni)) {
            // A shard that has ended needs nothing any more.
            let _ = end.run(move |worker, _| worker.extend_port(part));
        }
    }

    /// Has something else carry the frames of an NI whose rings are deaf, and of those that share these.
    /// Their messages wait meanwhile. The NIDs of NIs that nothing carries now: they are to be opened anew.
    pub(super) fn replace_rings(&self, ni: NiId) -> Vec<Nid> {
        let mut node = self.node();
        let nis = node.sharers_of_rings(ni);
        let take_part = |end: &super::ShardEnd| {
            let nis = nis.clone();
            end.run(move |worker, _| nis.iter().all(|ni| worker.takes_part_in(*ni))).unwrap_or(false)
        };
        if nis.is_empty() || !self.shards.iter().all(take_part) {
            return Vec::new();
        }
        // The last of them gives the rings up.
        let suspend = |ni: NiId| {
            let taken = self.shards.iter().map(move |end| end.run(move |worker, _| worker.suspend_port(ni)));
            (ni, taken.filter_map(Result::ok).flatten().collect::<Vec<_>>())
        };
        let suspended = nis.iter().map(|ni| suspend(*ni)).collect();
        let (carried, lost) = node.replace_rings(suspended);
        for (ni, parts) in carried {
            for (end, part) in self.shards.iter().zip(parts) {
                // A shard that has ended needs nothing any more.
                let _ = end.run(move |worker, _| worker.extend_port(part));
            }
            self.show_captures(ni);
        }
        lost
    }

    /// Takes the parts of an NI from all shards, which are quiet about it, and closes it. It may take a
    /// moment.
    pub(super) fn close_ni(&self, ni: NiId) -> Result<(), LnetError> {
        let mut node = self.node();
        Ok(node.close_ni(ni, self.take_ports(ni))?)
    }

    /// The parts of the shards that have an NI, which give them up. Those of shards that have ended are gone.
    fn take_ports(&self, ni: NiId) -> Vec<ShardPort> {
        let take = move |worker: &mut Worker| worker.has_port(ni).then(|| worker.remove_port(ni));
        let ends = self.shards.iter();
        ends.filter_map(|end| end.run(move |worker, _| take(worker)).ok().flatten()).collect()
    }
}
