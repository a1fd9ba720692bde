//! A node's control state machine: the one owner of its topology, without I/O and without a clock.
//!
//! Its runner calls [`Node::handle_request`], [`Node::handle_report`] and, at the time that
//! [`Node::poll_timeout`] says, [`Node::handle_timeout`]; and after any of these
//! - [`Node::poll_snapshot`], giving what it returns to every shard ([`Shard::update`]), whose
//!   [`Confirmation`]s it reports as soon as they have it, and again whenever one changes while NIs or
//!   policies are about to;
//! - [`Node::poll_action`] until that returns `None`, doing what it says.
//!
//! The rest are getters, which answer whatever is under way. Batches of changes are carried out one after the
//! other, each as a whole or not at all; pings go on beside them.
//!
//! Invariants: each request that was accepted ends in one [`Action::Done`]; generations grow; a slot is an
//! NI's until no shard and no driver has anything of it; what peers say is bounded, and never panics.
//!
//! Every node has this machine, that of an embedded program too: such a program is pinged, pings, and sees
//! its peers as the daemon does.
//!
//! [`Shard::update`]: crate::shard::Shard::update
//! [`Confirmation`]: crate::shard::Confirmation

mod api;
mod change;
mod discovery;
mod error;
mod gateways;
mod learn;
mod nets;
mod paths;
mod peers;
mod pings;
mod questions;
mod recovery;
mod routes;
mod routing;
mod settings;
mod snapshot;
mod source;
mod states;
mod task;
mod told;
mod turns;
mod upper;
mod verify;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use lnet_model::peer::PeerSpec;
use lnet_wire::steer::{PORTALS, PolicyWord};
use lnet_wire::{Net, Nid};

pub use api::{Action, DRAIN_TIMEOUT, NetRecord, NodeConfig, Outcome, Report, Request, RequestId};
pub use change::{NodeChange, policy_word};
pub use discovery::DiscoveryCounters;
pub use error::{ChangeError, DriverError, RequestError, SettingRange};
pub use nets::{LOOPBACK, NetOptions, NiConfig, NiSpec};
pub use peers::{Claim, Peer, PeerEdit, PeerError, PeerNi, TOLD_MAX, peer_state};
pub use pings::{PingId, PingKind, Pinged};
pub use questions::NamedClaim;
pub use recovery::{Recovering, Recovery};
pub use routes::{GATEWAY_NIS_MAX, NET_ROUTES_MAX, NetRoute, RouteError};
pub use routing::{POOL_BUFFERS, ROUTER_WAIT, RouterState, RoutingError};
pub use settings::Settings;
pub use states::{LocalNetState, LocalNiState, PeerNiState, PeerState, PeerTraffic};
pub use verify::Difference;

use crate::shard::PathState;
use crate::time::Instant;
use crate::topology::NiStatus;
use crate::tunables::NetTunables;
use crate::udsp::RuleList;

use discovery::Discoveries;
use gateways::Gateways;
use nets::Nis;
use paths::PathTable;
use peers::{FormerNids, PeerTable};
use pings::{Ping, PingPurpose};
use questions::Asking;
use routes::{RouteList, Routes};
use routing::Routing;
use snapshot::Snapshots;
use task::{Batches, Draining, Step, WaitingBatch};
use told::Told;

/// The control state machine of a node. `O` is what an LND wants to know of an NI and the node does
/// not understand.
#[derive(Debug)]
pub struct Node<O> {
    config: NodeConfig,
    settings: Settings,
    policies: [PolicyWord; PORTALS],
    nis: Nis<O>,
    peers: PeerTable,
    former: FormerNids,
    /// The selection policies.
    rules: RuleList,
    routes: Routes,
    gateways: Gateways,
    routing: Routing,
    snapshots: Snapshots,
    discoveries: Discoveries,
    /// NIDs of peers' NIs that are not in full health.
    ill: BTreeSet<Nid>,
    /// NIDs of which messages wait for the name that they are to go by, and until when.
    windows: BTreeMap<Nid, Instant>,
    asking: Asking,
    paths: PathTable,
    batches: Batches<O>,
    pings: BTreeMap<RequestId, Ping>,
    requests: u64,
    actions: VecDeque<Action<O>>,
    told: Told,
    /// What is to be warned of.
    differences: VecDeque<Difference>,
}

impl<O: Clone> Node<O> {
    /// A node with nothing but `lo`, and its first snapshot, which is for
    /// [`Shard::new`](crate::shard::Shard::new) too.
    ///
    /// # Panics
    /// If it has no shards, or no slot for `lo`.
    #[must_use]
    pub fn new(config: NodeConfig) -> Self {
        assert!(config.shard_count > 0 && config.nis_max > 0, "a node without shards or slots");
        let mut node = Self {
            settings: Settings::default(),
            policies: config.policies,
            nis: Nis(Vec::new()),
            peers: PeerTable::new(config.peers_max),
            former: FormerNids::default(),
            rules: RuleList::default(),
            routes: Routes::default(),
            gateways: Gateways::default(),
            routing: Routing::default(),
            snapshots: Snapshots::new(config.shard_count),
            discoveries: Discoveries::new(),
            ill: BTreeSet::new(),
            windows: BTreeMap::new(),
            asking: Asking::default(),
            paths: PathTable::default(),
            batches: Batches::new(),
            pings: BTreeMap::new(),
            requests: 0,
            actions: VecDeque::new(),
            told: Told::default(),
            differences: VecDeque::new(),
            config,
        };
        node.publish();
        node.tell();
        node
    }

    /// Has requests to peers that were never discovered wait for that. The runner
    /// reports at once what shards want ([`Report::Wanted`]) from then on, and gives them each snapshot.
    pub const fn gate_requests(&mut self) {
        self.snapshots.gate_requests();
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
        let answer = match request {
            Request::Batch { changes, drain_timeout } => {
                self.batches.waiting.push_back(WaitingBatch { request: id, changes, drain_timeout });
                if self.batches.current.is_none() {
                    self.start_next(now);
                }
                Ok(None)
            }
            Request::Ping { nid, source, timeout } => self.ping(now, id, nid, source, timeout).map(|()| None),
            Request::Discover { nid, is_forced } => self.discover_on_request(now, id, nid, is_forced),
            Request::Announce { nids } => self.announce(now, &nids).map(Some),
            Request::PrimaryNid { nid } => self.primary_nid(now, id, nid),
        };
        if let Some(result) = answer.transpose() {
            self.end_request(id, result.map(Outcome::Pinged));
        }
        self.go_on(now);
        Ok(id)
    }

    /// Gives a request up: a ping, or a batch whose turn has not come.
    ///
    /// # Errors
    /// [`RequestError::UnknownRequest`] if it has ended, or is being carried out.
    pub fn cancel(&mut self, request: RequestId) -> Result<(), RequestError> {
        if self.batches.cancel(request) {
        } else if let Some(nid) = self.discoveries.requests.remove(&request) {
            self.discoveries.names.remove(&request);
            self.discoveries.unnamed.remove(&request);
            if let Some(peer) = self.peers.get_mut(&nid) {
                peer.waiting.retain(|waiting| *waiting != request);
            }
            // The peer may be visited for nothing but the request.
            self.requeue(&nid);
        } else if let Some(ping) = self.pings.remove(&request) {
            self.actions.push_back(Action::Forget { ping: ping.id });
        } else {
            return Err(RequestError::UnknownRequest(request.0));
        }
        self.end_request(request, Err(RequestError::Cancelled));
        Ok(())
    }

    fn end_request(&mut self, request: RequestId, result: Result<Outcome, RequestError>) {
        self.actions.push_back(Action::Done { request, result });
    }

    /// The runner has something to tell.
    ///
    /// # Panics
    /// If it has opened or closed what it was not asked to, or tells of a shard that there is not.
    pub fn handle_report(&mut self, now: Instant, report: Report<'_>) {
        match report {
            Report::Opened { ni, result } => self.opened(now, ni, result),
            Report::Closed { ni } => self.closed(now, ni),
            Report::Pools { result } => self.pools_made(now, result),
            Report::Pinged { ni } => self.note_pinged(now, ni),
            Report::Confirmed(confirmation) => {
                self.snapshots.confirm(confirmation);
                self.advance(now);
                self.advance_routing(now);
            }
            Report::Answered { ping, bytes } => self.answered(now, ping, bytes),
            Report::Unanswered { ping, error } => {
                if let Some(ping) = self.take_ping(ping) {
                    self.end_ping(now, &ping, Err(RequestError::Ping { nid: ping.nid, error }));
                }
            }
            Report::Carrier { ni, is_awaited } => {
                if let Some(config) = self.nis.get_mut(ni)
                    && core::mem::replace(&mut config.awaits_carrier, is_awaited) != is_awaited
                    && !config.has_link
                {
                    self.publish();
                }
            }
            Report::Link { ni, is_up } => {
                if let Some(config) = self.nis.get_mut(ni)
                    && core::mem::replace(&mut config.has_link, is_up) != is_up
                {
                    let net = config.spec.nid.net();
                    self.publish();
                    self.tell();
                    if is_up {
                        self.peers.hurry_nets(now, |its| its == net);
                        self.hurry_gateways_on(net);
                    }
                    self.settle_gateways();
                    // Peers may have given paths up that a link makes good again, whatever they were told
                    // last.
                    if is_up && self.is_discovery_on() {
                        self.told.push_due = Some(true);
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
                    let is_new = self.peers.get(&nid).is_none();
                    self.peers.note_traffic(&nid, is_incoming);
                    self.note_first_ni(&nid, first_ni);
                    if is_incoming {
                        self.received_from(now, &nid);
                    }
                    if is_incoming && is_new {
                        self.peers.hurry(now, &nid);
                    }
                }
            }
            Report::Wanted { nid } => {
                let nid = self.now_named(&nid);
                let is_wanted = |peer: &Peer| self.is_wanted(peer) || self.is_waited_for(peer);
                if self.may_be_peer(&nid) && self.peers.get(&nid).is_none_or(is_wanted) {
                    self.discover_for(now, &nid, None);
                }
            }
            Report::Waiting { nid } => self.note_waiting(now, &nid),
            Report::CameFrom { nid, address } => {
                let leaves = self.peers.note_came_from(&nid, address);
                self.actions.extend(leaves.map(|nid| Action::Disconnect { nid }));
            }
            Report::Distance { ni, distances, by_memory } => {
                // The NI may wait for others of its batch to be opened.
                let opened = self.batches.current.as_mut().and_then(|task| task.opened_mut(ni));
                if let Some(config) = opened.or(self.nis.get_mut(ni))
                    && (&config.numa_distances[..], &config.memory_distances[..]) != (distances, by_memory)
                {
                    config.numa_distances = distances.to_vec();
                    config.memory_distances = by_memory.to_vec();
                    self.snapshots.is_changed = true;
                }
            }
            Report::Reach { ni, reach } => {
                let opened = self.batches.current.as_mut().and_then(|task| task.opened_mut(ni));
                if let Some(config) = opened.or(self.nis.get_mut(ni))
                    && config.reach.as_ref() != Some(reach)
                {
                    config.reach = Some(Arc::clone(reach));
                    self.snapshots.is_changed = true;
                    // Sources that lead nowhere end.
                    self.peers.mark_all();
                }
            }
            Report::Health(note) => self.note_health(now, &note),
            Report::Path(note) => {
                if note.state == PathState::Answers {
                    self.peers.hurry(now, &note.peer);
                }
                self.note_path(now, &note);
                self.note_gateway_path(now, &note);
            }
            Report::Foreign { by, net } => self.note_foreign(now, &by, net),
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
        let drained = self.batches.current.as_ref().and_then(|task| match task.step {
            Step::Draining(Draining { deadline, quiet_until, .. }) => {
                Some(quiet_until.map_or(deadline, |until| until.min(deadline)))
            }
            _ => None,
        });
        let pings = self.pings.values().map(|ping| ping.deadline);
        let questions = self.peers.next_question().map(|(at, ..)| at);
        let unnamed = self.discoveries.unnamed.values().flatten();
        let waits = self.windows.values().chain(unnamed).min().copied();
        let own = questions.into_iter().chain(waits).chain(self.former.next_end()).chain(self.next_turn());
        let own = own.chain(self.next_gateway()).chain(self.routing.next(self.router_wait()));
        pings.chain(drained).chain(self.next_recovery()).chain(own).min()
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
        self.end_waiting(now);
        self.advance_routing(now);
        self.advance(now);
        self.go_on(now);
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

    /// The local NI with a NID; not `lo`.
    #[must_use]
    pub fn ni(&self, nid: &Nid) -> Option<&NiConfig<O>> {
        self.nis.of(nid)
    }

    /// Options that the driver of a local NI understands, to be changed: the NI has them when it is opened
    /// again.
    pub fn lnd_mut(&mut self, nid: &Nid) -> Option<&mut O> {
        self.nis.of_mut(nid).map(|config| &mut config.spec.lnd)
    }

    /// The peers, in the order of their primary NIDs.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter()
    }

    /// The peers whose primary NIDs come behind this one, in the order of these; all of them without one.
    pub fn peers_after(&self, nid: Option<Nid>) -> impl Iterator<Item = &Peer> {
        self.peers.after(nid)
    }

    /// The peer that a NID is shown with: that has it or, where none does, has claimed it first.
    #[must_use]
    pub fn peer(&self, nid: &Nid) -> Option<&Peer> {
        self.peers.shown_with(nid)
    }

    /// The NIDs of a peer that is to be made which other peers keep, each with the primary NID of that one: a
    /// peer whose primary NID is locked, and that has more than one, is not touched.
    pub fn staying_nids<'a>(&'a self, spec: &'a PeerSpec) -> impl Iterator<Item = (Nid, Nid)> + 'a {
        let staying = |nid: &Nid| Some((*nid, self.peers.stays_with(&spec.primary_nid, nid)?));
        spec.nids.iter().filter_map(staying)
    }

    /// Forgets all peers, the routes that they are gateways of, and that this node was a router.
    pub fn forget_peers(&mut self) {
        self.end_routing();
        self.replace_routes(RouteList::default());
        self.peers.set_gateways(BTreeSet::new());
        self.peers.clear();
        self.former = FormerNids::default();
        self.snapshots.set_former(&self.former);
        self.ill.clear();
        self.windows.clear();
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
        self.snapshots.generation
    }

    /// Requests that wait or are under way.
    #[must_use]
    pub fn request_count(&self) -> usize {
        let pings = self.pings.values().filter(|ping| ping.purpose == PingPurpose::Request).count();
        self.batches.count() + pings + self.discoveries.requests.len()
    }

    fn is_local(&self, nid: &Nid) -> bool {
        nid.is_loopback() || self.ni(nid).is_some()
    }

    /// Whether a local NI leads to another node by one of these NIDs.
    fn leads_to_any(&self, nids: &[Nid]) -> bool {
        nids.iter().any(|nid| !self.is_local(nid) && self.leads_to(nid, None))
    }

    /// The NID by which a peer is known that had this one on a net that this node has left; else this one.
    fn now_named(&self, nid: &Nid) -> Nid {
        let peer = self.peers.reached_as(nid).filter(|_| !self.is_local(nid));
        let mut nids = peer.into_iter().flat_map(|peer| &peer.nis).map(|ni| ni.nid);
        nids.find(|nid| !self.is_local(nid)).unwrap_or(*nid)
    }

    /// Begins with the next batch that can be carried out.
    fn start_next(&mut self, now: Instant) {
        while let Some(WaitingBatch { request, changes, drain_timeout }) = self.batches.waiting.pop_front() {
            match self.plan(&changes) {
                Ok(plan) => return self.begin(now, request, plan, drain_timeout),
                Err(error) => self.end_request(request, Err(error)),
            }
        }
    }

    /// Whether an NI that is up leads to a NID, by itself or by a gateway; with a source, the one with that
    /// NID.
    fn leads_to(&self, nid: &Nid, source: Option<Nid>) -> bool {
        self.is_near(nid, source) || self.is_routed(nid.net(), source)
    }

    /// Whether an NI that is up is on the net of a NID; with a source, the one with that NID.
    fn is_near(&self, nid: &Nid, source: Option<Nid>) -> bool {
        let mut nis = self.nis.0.iter().filter(|config| config.status() == NiStatus::Up);
        nis.any(|config| {
            let own = config.spec.nid;
            own.net() == nid.net() && source.is_none_or(|source| source == own)
        })
    }
}
