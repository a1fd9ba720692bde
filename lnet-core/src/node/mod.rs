//! A node's control state machine: the one owner of its topology, without I/O and without a clock.
//!
//! Its runner calls [`Node::handle_request`], [`Node::handle_report`] and, at the time that
//! [`Node::poll_timeout`] says, [`Node::handle_timeout`]; and after any of these
//! - [`Node::poll_snapshot`], giving what it returns to every shard ([`Shard::update`]), whose
//!   [`Confirmation`]s it reports as soon as they have it, and again whenever one changes while interfaces or
//!   policies are about to;
//! - [`Node::poll_action`] until that returns `None`, doing what it says.
//!
//! The rest are getters, which answer whatever is under way. Batches of changes are carried out one after the
//! other, each as a whole or not at all; pings go on beside them.
//!
//! Invariants: each request that was accepted ends in one [`Action::Done`]; generations grow; a slot is an
//! interface's until no shard and no driver has anything of it; what peers say is bounded, and never panics.
//!
//! [`Shard::update`]: crate::shard::Shard::update

mod api;
mod change;
mod discovery;
mod error;
mod nets;
mod paths;
mod peers;
mod pings;
mod recovery;
mod settings;
mod source;
mod states;
mod task;
mod upper;
mod verify;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_wire::ping::{self, BUFFER_MIN_BYTES, Features, PingNi};
use lnet_wire::steer::{PORTALS, PolicyWord};
use lnet_wire::{Global, Net, Nid};

pub use api::{Action, DRAIN_TIMEOUT, NetRecord, NodeConfig, Outcome, Report, Request, RequestId};
pub use change::{Change, policy_word};
pub use discovery::DiscoveryCounters;
pub use error::{ChangeError, DriverError, RequestError, SettingRange};
pub use nets::{LOOPBACK, NetOptions, NetTunables, NiConfig, NiSpec};
pub use peers::{Peer, PeerEdit, PeerError, PeerNi, TOLD_MAX, peer_state};
pub use pings::{MATCH_BITS, PORTAL, PingId, Pinged};
pub use recovery::{Recovering, Recovery};
pub use settings::Settings;
pub use states::{LocalNetState, LocalNiState, PeerNiState, PeerState, PeerTraffic};
pub use verify::Difference;

use crate::shard::Confirmation;
use crate::time::Instant;
use crate::topology::{
    FailedDiscovery, NiStatus, PRIORITY_NONE, PeerMap, PeerNid, PeerView, Steering, Topology,
};
use crate::udsp::RuleList;

use nets::Nis;
use paths::PathTable;
use peers::{FormerNids, PeerTable};
use pings::{Answer, Ping, Purpose};
use task::{Batch, Step, Task};

/// The errno of what has none of Linux.
const EIO: u8 = 5;

/// The control state machine of a node. `O` is what an LND wants to know of an interface and the node does
/// not understand.
#[derive(Debug)]
pub struct Node<O> {
    config: NodeConfig,
    settings: Settings,
    policies: [PolicyWord; PORTALS],
    /// Portals that get no entries now.
    frozen: u64,
    nis: Nis<O>,
    /// Interfaces that there have been.
    added: u64,
    peers: PeerTable,
    former: FormerNids,
    /// The selection policies.
    rules: RuleList,
    /// The peers as the shards know them.
    peer_map: PeerMap,
    /// Peers that are to be visited, by a NID of each.
    to_discover: VecDeque<Nid>,
    /// Requests that wait for a peer to be discovered, by its NID.
    discoveries: BTreeMap<RequestId, Nid>,
    /// NIDs of peers' NIs that are not in full health.
    ill: BTreeSet<Nid>,
    paths: PathTable,
    /// Whether requests to peers that were never discovered wait for that.
    gates_requests: bool,
    /// Whether something has changed that shards do not know.
    is_changed: bool,
    generation: u64,
    /// A snapshot that was not taken yet.
    snapshot: Option<Arc<Topology>>,
    confirmations: Box<[Option<Confirmation>]>,
    /// The batch that is carried out, and those that wait.
    task: Option<Task<O>>,
    waiting: VecDeque<Batch<O>>,
    pings: BTreeMap<RequestId, Ping>,
    requests: u64,
    actions: VecDeque<Action<O>>,
    /// What others hear of the node and its interfaces, and the sequence number of that.
    features: Features,
    told: Vec<PingNi>,
    sequence: u32,
    /// What pings are answered, and pushes say.
    published: Arc<[u8]>,
    /// Whether peers are to be pushed to: those that are behind, or all.
    push_due: Option<bool>,
    /// What became of pushes that came, and of answers to pings.
    counters: DiscoveryCounters,
    /// What is to be warned of.
    differences: VecDeque<Difference>,
    push_room_bytes: usize,
}

impl<O: Clone> Node<O> {
    /// A node with nothing but `lo`, and its first snapshot, which is for
    /// [`Shard::new`](crate::shard::Shard::new) too.
    ///
    /// # Panics
    /// If it has no shards, or no slot for `lo`.
    #[must_use]
    pub fn new(config: NodeConfig) -> Self {
        assert!(config.shard_count > 0 && config.interfaces_max > 0, "a node without shards or slots");
        let mut node = Self {
            settings: Settings::default(),
            policies: config.policies,
            frozen: 0,
            nis: Nis(Vec::new()),
            added: 0,
            peers: PeerTable::new(config.peers_max),
            former: FormerNids::default(),
            rules: RuleList::default(),
            peer_map: PeerMap::default(),
            to_discover: VecDeque::new(),
            discoveries: BTreeMap::new(),
            ill: BTreeSet::new(),
            paths: PathTable::default(),
            gates_requests: false,
            is_changed: false,
            generation: 0,
            snapshot: None,
            confirmations: (0..config.shard_count).map(|_| None).collect(),
            task: None,
            waiting: VecDeque::new(),
            pings: BTreeMap::new(),
            requests: 0,
            actions: VecDeque::new(),
            features: Features::default(),
            told: Vec::new(),
            sequence: 0,
            published: Arc::default(),
            push_due: None,
            counters: DiscoveryCounters::default(),
            differences: VecDeque::new(),
            push_room_bytes: BUFFER_MIN_BYTES,
            config,
        };
        node.publish();
        node.tell();
        node
    }

    /// Has requests to peers that were never discovered wait for that. The runner
    /// reports at once what shards want ([`Report::Wanted`]) from then on, and gives them each snapshot.
    pub const fn gate_requests(&mut self) {
        self.gates_requests = true;
        self.is_changed = true;
    }

    /// Something is asked for. It ends by an [`Action::Done`], whatever becomes of it.
    ///
    /// # Errors
    /// [`RequestError::TooManyRequests`]; there is no such action then.
    pub fn handle_request(&mut self, now: Instant, request: Request<O>) -> Result<RequestId, RequestError> {
        let (max, under_way) = (self.config.requests_max, self.request_count());
        if under_way >= max {
            return Err(RequestError::TooManyRequests { max });
        }
        self.requests += 1;
        let id = RequestId(self.requests);
        match request {
            Request::Batch { changes, drain_timeout } => {
                self.waiting.push_back(Batch { request: id, changes, drain_timeout });
                if self.task.is_none() {
                    self.start_next(now);
                }
            }
            Request::Ping { nid, source, timeout } => {
                if let Err(error) = self.ping(now, id, nid, source, timeout) {
                    self.actions.push_back(Action::Done { request: id, result: Err(error) });
                }
            }
            Request::Discover { nid, is_forced } => {
                if let Err(error) = self.discover_on_request(now, id, nid, is_forced) {
                    self.actions.push_back(Action::Done { request: id, result: Err(error) });
                }
            }
            Request::Announce { nids } => {
                if let Err(error) = self.announce(now, id, &nids) {
                    self.actions.push_back(Action::Done { request: id, result: Err(error) });
                }
            }
            Request::PrimaryNid { nid } => {
                if let Err(error) = self.primary_nid(now, id, nid) {
                    self.actions.push_back(Action::Done { request: id, result: Err(error) });
                }
            }
        }
        self.go_on(now);
        Ok(id)
    }

    /// Gives a request up: a ping, or a batch whose turn has not come.
    ///
    /// # Errors
    /// [`RequestError::UnknownRequest`] if it has ended, or is being carried out.
    pub fn cancel(&mut self, request: RequestId) -> Result<(), RequestError> {
        let waiting = self.waiting.iter().position(|batch| batch.request == request);
        if let Some(at) = waiting {
            self.waiting.remove(at);
        } else if let Some(nid) = self.discoveries.remove(&request) {
            if let Some(peer) = self.peers.get_mut(&nid) {
                peer.waiting.retain(|waiting| *waiting != request);
            }
            // It may be visited for nothing but the request.
            self.requeue(&nid);
        } else if let Some(ping) = self.pings.remove(&request) {
            self.actions.push_back(Action::Forget { ping: ping.id });
        } else {
            return Err(RequestError::UnknownRequest(request.0));
        }
        self.actions.push_back(Action::Done { request, result: Err(RequestError::Cancelled) });
        Ok(())
    }

    /// The runner has something to tell.
    ///
    /// # Panics
    /// If it has opened or closed what it was not asked to, or tells of a shard that there is not.
    pub fn handle_report(&mut self, now: Instant, report: Report<'_>) {
        match report {
            Report::Opened { ni, result } => self.opened(now, ni, result),
            Report::Closed { ni } => self.closed(now, ni),
            Report::Confirmed(confirmation) => {
                let shard = usize::from(confirmation.shard.0);
                assert!(shard < self.confirmations.len(), "there is no shard {shard}");
                self.confirmations[shard] = Some(confirmation);
                self.advance(now);
            }
            Report::Answered { ping, bytes } => self.answered(now, ping, bytes),
            Report::Unanswered { ping, error } => {
                if let Some(ping) = self.take_ping(ping) {
                    self.end_ping(now, &ping, Err(RequestError::Ping { nid: ping.nid, error }));
                }
            }
            Report::Link { ni, is_up } => {
                if let Some(config) = self.nis.get_mut(ni)
                    && core::mem::replace(&mut config.has_link, is_up) != is_up
                {
                    self.publish();
                    self.tell();
                    // Peers may have given paths up that a link makes good again, whatever they were told
                    // last.
                    if is_up && self.is_discovery_on() {
                        self.push_due = Some(true);
                    }
                }
            }
            Report::Renamed { ni, interface } => {
                if let Some(config) = self.nis.get_mut(ni) {
                    config.spec.interface = interface;
                }
            }
            Report::Pushed { from, bytes, length_bytes } => self.pushed(now, from, bytes, length_bytes),
            Report::Traffic { nid, is_incoming, first_ni } => {
                // A net may have gone since; peers have lost what they had there. What a peer has told to be
                // its own no more was used before that.
                let is_told_lost = || self.former.get(now, &nid).is_some_and(|lost| lost.is_told);
                let is_known = self.peers.get(&nid).is_some() || self.is_on(nid.net()) && !is_told_lost();
                if is_known && self.may_be_peer(&nid) {
                    self.peers.note_traffic(&nid);
                    self.note_first_ni(&nid, first_ni);
                    if is_incoming {
                        self.received_from(now, &nid);
                    }
                }
            }
            Report::Wanted { nid } => {
                let is_wanted = |peer: &Peer| self.is_wanted(peer);
                if self.may_be_peer(&nid) && self.peers.get(&nid).is_none_or(is_wanted) {
                    self.discover(now, &nid, None);
                }
            }
            Report::Distance { ni, distances } => {
                // It may wait for others of its batch to be opened.
                let opened = self.task.as_mut().and_then(|task| task.opened_mut(ni));
                if let Some(config) = opened.or(self.nis.get_mut(ni))
                    && config.numa_distances != distances
                {
                    config.numa_distances = distances.to_vec();
                    self.is_changed = true;
                }
            }
            Report::Health(note) => self.note_health(now, &note),
            Report::Path(note) => self.note_path(now, &note),
        }
        self.go_on(now);
    }

    /// Whether this node has an NI on a net, or is about to.
    fn is_on(&self, net: Net) -> bool {
        self.nis.0.iter().any(|config| config.spec.nid.net() == net)
            || self.coming().any(|nid| nid.net() == net)
    }

    fn may_be_peer(&self, nid: &Nid) -> bool {
        !nid.is_any() && !nid.is_loopback() && !self.is_local(nid)
    }

    /// When [`Node::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let drained = self.task.as_ref().and_then(|task| match task.step {
            Step::Draining(deadline) => Some(deadline),
            _ => None,
        });
        self.pings.values().map(|ping| ping.deadline).chain(drained).chain(self.next_recovery()).min()
    }

    /// Ends the pings whose time is over, and goes on with what has waited for long enough.
    pub fn handle_timeout(&mut self, now: Instant) {
        let over: Vec<Ping> = self.pings.values().filter(|ping| ping.deadline <= now).copied().collect();
        for ping in over {
            let Ping { id, nid, timeout, .. } = ping;
            self.pings.remove(&id.request);
            self.actions.push_back(Action::Forget { ping: id });
            self.end_ping(now, &ping, Err(RequestError::PingTimeout { nid, timeout }));
        }
        self.recover(now);
        self.advance(now);
        self.go_on(now);
    }

    /// The newest snapshot, once.
    pub fn poll_snapshot(&mut self) -> Option<Arc<Topology>> {
        let has_news = self.tell_of_peers();
        if has_news || core::mem::take(&mut self.is_changed) {
            self.publish();
        }
        self.snapshot.take()
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action<O>> {
        self.actions.pop_front()
    }

    /// The nets in the order in which they were made, `lo` first.
    pub fn nets(&self) -> Vec<NetRecord<'_, O>> {
        let lo = NetRecord { net: Net::LO, tunables: NetTunables::default(), nis: Vec::new() };
        let record = |net| {
            let nis: Vec<_> = self.nis.0.iter().filter(|config| config.spec.nid.net() == net).collect();
            let tunables = self.nis.tunables(net).unwrap_or_default();
            NetRecord { net, tunables, nis }
        };
        core::iter::once(lo).chain(self.nis.nets().into_iter().map(record)).collect()
    }

    /// The local interface with a NID; not `lo`.
    #[must_use]
    pub fn ni(&self, nid: &Nid) -> Option<&NiConfig<O>> {
        self.nis.0.iter().find(|config| config.spec.nid == *nid)
    }

    /// What the driver of a local interface understands, to be changed: the interface has it when it is
    /// opened again.
    pub fn lnd_mut(&mut self, nid: &Nid) -> Option<&mut O> {
        self.nis.0.iter_mut().find(|config| config.spec.nid == *nid).map(|config| &mut config.spec.lnd)
    }

    /// The peers, in the order of their primary NIDs.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter()
    }

    /// The peer that has a NID.
    #[must_use]
    pub fn peer(&self, nid: &Nid) -> Option<&Peer> {
        self.peers.get(nid)
    }

    /// Forgets all peers.
    pub fn forget_peers(&mut self) {
        self.peers.clear();
        self.former = FormerNids::default();
        self.ill.clear();
    }

    /// The global tunables.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The selection policies.
    #[must_use]
    pub const fn rules(&self) -> &RuleList {
        &self.rules
    }

    /// The policies of the portals.
    #[must_use]
    pub const fn policies(&self) -> &[PolicyWord; PORTALS] {
        &self.policies
    }

    /// The generation of the newest snapshot.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Requests that wait or are under way.
    #[must_use]
    pub fn request_count(&self) -> usize {
        let pings = self.pings.values().filter(|ping| ping.purpose == Purpose::Request).count();
        self.waiting.len() + pings + self.discoveries.len() + usize::from(self.task.is_some())
    }

    fn is_local(&self, nid: &Nid) -> bool {
        nid.is_loopback() || self.ni(nid).is_some()
    }

    /// Begins with the next batch that can be carried out.
    fn start_next(&mut self, now: Instant) {
        while let Some(Batch { request, changes, drain_timeout }) = self.waiting.pop_front() {
            match self.plan(&changes) {
                Ok(plan) => return self.begin(now, request, plan, drain_timeout),
                Err(error) => self.actions.push_back(Action::Done { request, result: Err(error) }),
            }
        }
    }

    /// Makes a snapshot of what there is now.
    fn publish(&mut self) {
        self.generation += 1;
        let steering = Steering { shard_count: self.config.shard_count, policies: self.policies };
        let topology = Topology::with_slots(self.nis.slots(&self.settings, &self.rules))
            .with_numa_distances(self.nis.numa_distances(&self.settings))
            .with_tunables(self.settings.tunables())
            .with_steering(steering)
            .with_frozen(self.frozen)
            .with_peers(self.peer_map.clone())
            .with_gated_requests(self.gates_requests && self.config.peers_max > 0)
            .with_generation(self.generation);
        self.snapshot = Some(Arc::new(topology));
    }

    /// Brings the peers as the shards know them up to date; whether that changed something.
    fn tell_of_peers(&mut self) -> bool {
        let Some((removed, changed)) = self.peers.take_changes() else { return false };
        for nid in &removed {
            self.peer_map.remove(nid);
        }
        for primary in &changed {
            self.record_sources(primary);
        }
        let peers = changed.iter().filter_map(|primary| self.peers.get(primary));
        for peer in peers.filter(|peer| !peer.is_own()) {
            if let Some(view) = self.view(peer) {
                self.peer_map.insert(view);
            }
        }
        true
    }

    /// A peer as the shards know it.
    fn view(&self, peer: &Peer) -> Option<PeerView> {
        let nis = peer.nis.iter().map(|ni| PeerNid {
            priority: self.rules.peer_priority(&ni.nid),
            preferred: self.preferred(peer, ni),
            ..PeerNid::new(ni.nid, ni.health)
        });
        let view = PeerView::new(peer.is_multi_rail(), nis.collect())?;
        let nets: BTreeSet<_> = view.nis.iter().map(|ni| ni.nid.net()).collect();
        let priorities = nets.into_iter().map(|net| (net, self.rules.peer_net_priority(net)));
        let net_priorities = priorities.filter(|(_, priority)| *priority != PRIORITY_NONE).collect();
        let failed = |error: &RequestError| FailedDiscovery {
            generation: peer.failed_at,
            errno: u8::try_from(error.errno()).unwrap_or(EIO),
        };
        Some(PeerView {
            is_wanted: self.is_wanted(peer),
            is_gated: Self::is_gated(peer),
            failed: peer.error.as_deref().map(failed),
            net_priorities,
            ..view
        })
    }

    /// Tells those who ping, if there is anything new (LNet `api-ni.c: lnet_ping_target_update`). The
    /// interfaces stand there by net, in the order in which they were made; the sequence number counts what
    /// is new of them.
    fn tell(&mut self) {
        let mut told = Vec::new();
        for net in self.nis.nets() {
            let stays =
                self.nis.0.iter().filter(|config| config.spec.nid.net() == net && config.going.is_none());
            told.extend(stays.map(|config| {
                let status = if config.is_told_up() { ping::NiStatus::UP } else { ping::NiStatus::DOWN };
                PingNi { nid: config.spec.nid, status }
            }));
        }
        let mut features = Features::NI_STATUS.with(Features::ROUTING_DISABLED).with(Features::MULTI_RAIL);
        if self.is_discovery_on() {
            features = features.with(Features::DISCOVERY);
        }
        let are_same = self.sequence != 0 && told == self.told;
        if are_same && features == self.features {
            return;
        }
        if !are_same {
            self.sequence = self.sequence.wrapping_add(1).max(1);
            let nids: Vec<_> = told.iter().map(|ni| ni.nid).collect();
            self.peers.follow_own(&nids, self.sequence);
        }
        // What is new is pushed; that discovery is off now, to all.
        let ends_discovery =
            !features.contains(Features::DISCOVERY) && self.features.contains(Features::DISCOVERY);
        self.push_due = Some(self.push_due.unwrap_or(false) || ends_discovery);
        (self.told, self.features) = (told, features);
        let interfaces = self.told.iter().copied();
        let mut bytes = alloc::vec![0; ping::encoded_bytes(interfaces.clone()).unwrap_or(0)];
        let written = ping::write(&mut bytes, features, self.config.pid, self.sequence, interfaces);
        assert!(written.is_ok(), "what was validated cannot be told: {written:?}");
        self.published = bytes.into();
        self.actions.push_back(Action::Publish(Arc::clone(&self.published)));
    }

    /// Whether an interface that is up is on the net of a NID; with a source, the one with that NID.
    fn leads_to(&self, nid: &Nid, source: Option<Nid>) -> bool {
        let mut nis = self.nis.0.iter().filter(|config| config.status() == NiStatus::Up);
        nis.any(|config| {
            let own = config.spec.nid;
            own.net() == nid.net() && source.is_none_or(|source| source == own)
        })
    }

    /// Discovers a peer anew, whatever is known of it (LNet `peer.c: lnet_discover`).
    fn discover_on_request(
        &mut self,
        now: Instant,
        request: RequestId,
        nid: Nid,
        is_forced: bool,
    ) -> Result<(), RequestError> {
        if nid.is_any() {
            return Err(RequestError::PingWildcard(nid));
        }
        if self.is_local(&nid) {
            let result = Ok(Outcome::Pinged(self.discover_self(nid)));
            self.actions.push_back(Action::Done { request, result });
            return Ok(());
        }
        let known = self.peers.get(&nid).map_or_else(|| alloc::vec![nid], Peer::nids);
        if !known.iter().any(|nid| self.leads_to(nid, None)) {
            return Err(RequestError::PingUnreachable(nid));
        }
        if self.peers.get(&nid).is_none() {
            self.peers.note_traffic(&nid);
        }
        self.peers.change(&nid, |peer| {
            peer.state &= !peer_state::NIDS_UP_TO_DATE;
            peer.state |= if is_forced { peer_state::FORCE_PING | peer_state::FORCE_PUSH } else { 0 };
        });
        self.discover(now, &nid, Some(request));
        Ok(())
    }

    fn ping(
        &mut self,
        now: Instant,
        request: RequestId,
        nid: Nid,
        source: Option<Nid>,
        timeout: Option<Duration>,
    ) -> Result<(), RequestError> {
        if nid.is_any() {
            return Err(RequestError::PingWildcard(nid));
        }
        let is_up = |nid: &Nid| self.ni(nid).is_some_and(|config| config.status() == NiStatus::Up);
        if let Some(source) = source.filter(|source| !is_up(source) && !source.is_loopback()) {
            return Err(RequestError::PingSource(source));
        }
        if !self.leads_to(&nid, source) && !nid.is_loopback() {
            return Err(RequestError::PingUnreachable(nid));
        }
        let max = self.config.ping_timeout_max;
        let timeout = timeout.filter(|timeout| !timeout.is_zero()).map_or(max, |timeout| timeout.min(max));
        let id = PingId { request, is_second: false };
        let purpose = Purpose::Request;
        let ping = Ping { id, nid, source, timeout, deadline: now + timeout, purpose };
        self.pings.insert(request, ping);
        let length_bytes = pings::room_bytes(self.settings.get(Global::MaxInterfaces));
        self.actions.push_back(Action::Ping { ping: id, nid, source, length_bytes });
        Ok(())
    }

    fn answered(&mut self, now: Instant, id: PingId, bytes: &[u8]) {
        let Some(ping) = self.take_ping(id) else { return };
        match ping.purpose {
            Purpose::Push { sequence } => return self.push_ended(now, &ping, sequence, Ok(())),
            Purpose::Recovery => return self.recovery_answered(now, &ping),
            Purpose::Request | Purpose::Discovery => {}
        }
        match ping.read(bytes) {
            Answer::Again(length_bytes) => {
                let id = PingId { is_second: true, ..id };
                let Ping { nid, source, .. } = ping;
                self.pings.insert(id.request, Ping { id, ..ping });
                self.actions.push_back(Action::Ping { ping: id, nid, source, length_bytes });
            }
            // What is cut still says enough of its peer.
            _ if ping.purpose == Purpose::Discovery => self.discovery_answered(now, &ping, Ok(bytes)),
            Answer::Done(Ok(nids)) => {
                if !self.is_local(&ping.nid) {
                    self.peers.note_traffic(&ping.nid);
                } else if !ping.nid.is_loopback() {
                    self.peers.note_own(&ping.nid);
                }
                let peer = self.peers.get(&ping.nid);
                let (primary, is_multi_rail) =
                    peer.map_or((ping.nid, false), |peer| (peer.primary, peer.is_multi_rail()));
                let pinged = Pinged { nid: ping.nid, primary, is_multi_rail, nids };
                self.end_ping(now, &ping, Ok(Outcome::Pinged(pinged)));
            }
            Answer::Done(Err(error)) => {
                self.counters.answers_refused += 1;
                self.end_ping(now, &ping, Err(error));
            }
        }
    }

    /// A ping of which something is told; `None` if it has ended.
    fn take_ping(&mut self, id: PingId) -> Option<Ping> {
        if self.pings.get(&id.request)?.id != id {
            return None;
        }
        self.pings.remove(&id.request)
    }

    /// A ping or push has ended, a push badly.
    fn end_ping(&mut self, now: Instant, ping: &Ping, result: Result<Outcome, RequestError>) {
        let error = result.as_ref().err().cloned();
        match (ping.purpose, error) {
            (Purpose::Request, _) => {
                self.actions.push_back(Action::Done { request: ping.id.request, result });
            }
            (Purpose::Discovery, Some(error)) => self.discovery_answered(now, ping, Err(error)),
            (Purpose::Push { sequence }, Some(error)) => self.push_ended(now, ping, sequence, Err(error)),
            _ => {}
        }
    }
}
