//! The node's view of its nets: an immutable snapshot that all shards share.

pub(crate) mod net_routes;
mod peers;
mod preferred;
mod reach;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_model::udsp::UdspInfo;
use lnet_wire::steer::{PORTALS, PolicyWord};
use lnet_wire::{Net, Nid};

pub use net_routes::{GatewayNi, NetRoutes};
pub(crate) use peers::source_rank;
pub use peers::{FailedDiscovery, PeerMap, PeerNid, PeerView};
pub use preferred::PreferredSources;
pub use reach::{ROUTES_MAX, Reach};

use crate::handle::ShardId;
use crate::lnd::{LndFacts, NiId};
use crate::tunables::Tunables;

/// Whether an NI serves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum NiStatus {
    /// Serves.
    #[default]
    Up,
    /// No new request leaves by it. Responses to what arrives by it do: their path is fixed.
    Down,
    /// About to go: as if it were down, until nothing is under way any more.
    Leaving,
    /// Nothing begins on it any more, in neither direction, and what waits for it ends. Its driver ends what
    /// it still has ([`Uplink::sent`], [`Uplink::received`]); once [`Shard::is_quiet`] says so it stays
    /// quiet, and the driver may go.
    ///
    /// [`Uplink::sent`]: crate::lnd::Uplink::sent
    /// [`Uplink::received`]: crate::lnd::Uplink::received
    /// [`Shard::is_quiet`]: crate::shard::Shard::is_quiet
    Closed,
}

/// A local NI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalNi {
    /// Its NID.
    pub nid: Nid,
    /// The net it is on.
    pub net: Net,
    /// Messages that it may have in flight, over all shards.
    pub credits: u32,
    /// Messages that it may have in flight to one NI of a peer, over all shards; what exceeds `credits`
    /// counts as `credits`.
    pub peer_credits: u32,
    /// Messages of one NI of a peer that may be forwarded at once, over all shards.
    pub router_credits: u32,
    /// Whether messages of others are dropped whose next hop there does not answer (LNet `lib-move.c:
    /// lnet_peer_alive_locked`, which looks where `peer_timeout` is not 0).
    pub drops_for_silent: bool,
    /// How long a message may wait for its credits.
    pub message_timeout: Duration,
    /// How long its LND may take for a message; what the LND was made with, if there is none.
    pub lnd_timeout: Option<Duration>,
    /// Facts of its LND.
    pub facts: LndFacts,
    /// Whether it serves.
    pub status: NiStatus,
    /// Whether messages without another way wait for it while it is [down](NiStatus::Down).
    pub awaits_carrier: bool,
    /// Its health, at most [`HEALTH_MAX`].
    pub health: u32,
    /// Its priority by the selection policies; the lower one wins.
    pub priority: u32,
    /// The priority of its net, likewise.
    pub net_priority: u32,
    /// How far its device is from the memory of the node's shards
    /// (`/sys/devices/system/node/node*/distance`), the largest where they differ
    /// ([`Topology::numa_distance`]).
    pub numa_distance: u32,
}

/// Where headers belong, among the shards of the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steering {
    /// Shards of the node.
    pub shard_count: u8,
    /// The policy of each portal.
    pub policies: [PolicyWord; PORTALS],
}

pub use lnet_model::ni::HEALTH_MAX;

/// The priority of what no selection policy names (LNet `lib-types.h: LNET_MAX_SELECTION_PRIORITY`).
pub const PRIORITY_NONE: u32 = UdspInfo::NONE;

/// How far a NID is, and where its messages would come from (LNet `lib-move.c: LNetDist`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Distance {
    /// 0 to a NID of this node, 1 to one on a net of an NI's; one more than the hops of the route to others.
    pub hops: u32,
    /// The lower is the better of two NIDs as far away: 0 of `0@lo`, 1 of other NIDs of this node, then those
    /// of the NIs' nets in the order of the NIs; of those behind gateways, that of the gateway's net.
    pub order: u32,
    /// The local NID by which it is reached: itself if it is local, else that of the first NI on its net, or
    /// on its gateway's.
    pub source: Nid,
}

/// Whether a node forwards messages of other nodes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Forwarding {
    /// Drops them.
    #[default]
    Off,
    /// Forwards them.
    On,
    /// Forwards them still, and shards tell whether any is under way
    /// ([`Confirmation::is_forwarding`](crate::shard::Confirmation::is_forwarding)).
    Ending,
}

/// A memory node of the machine (NUMA), by the kernel's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryNode(pub u16);

/// The local NIs, each in a slot of its own (their [`NiId`]s are the numbers of the slots), the node's
/// tunables, and where headers belong.
///
/// A snapshot never changes; a newer one, with a higher generation, follows it ([`Shard::update`]). An NI
/// keeps its slot as long as it lives; the slots of those that went are empty until others come.
///
/// [`Shard::update`]: crate::shard::Shard::update
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Topology {
    generation: u64,
    nis: Vec<Option<LocalNi>>,
    loopback: Option<NiId>,
    /// Distances by slot and shard; nothing for a slot where all shards are as far.
    numa_distances: Vec<Box<[u32]>>,
    /// Distances by slot and memory node; nothing for a slot where all of these are as far.
    memory_distances: Vec<Box<[u32]>>,
    /// Addresses that each slot reaches; `None` for a slot of which they are not known.
    reaches: Vec<Option<Arc<Reach>>>,
    tunables: Tunables,
    steering: Option<Steering>,
    /// The peers, if something finds out about them: then a peer that is not among them is yet to be found
    /// out about.
    peers: Option<PeerMap>,
    /// The nets that gateways lead to, if there are any.
    net_routes: Option<Arc<NetRoutes>>,
    forwarding: Forwarding,
    /// Whether there is something to choose among the paths to some destination.
    has_choice: bool,
    /// Whether an NI of this node or of a peer is not in full health.
    has_ill: bool,
    /// Whether some peer has more than one NID.
    has_aliases: bool,
    /// Whether requests of some peer wait for a name.
    has_unnamed: bool,
    /// Whether requests to peers that were never discovered wait for that.
    gates_requests: bool,
    /// Portals whose messages may go to any shard, a bit each.
    open: u64,
    /// Portals that get no entries now, a bit each.
    frozen: u64,
}

impl LocalNi {
    /// An NI that serves.
    #[must_use]
    pub const fn new(nid: Nid, credits: u32, peer_credits: u32, message_timeout: Duration) -> Self {
        let (status, health) = (NiStatus::Up, HEALTH_MAX);
        let (priority, net_priority, numa_distance) = (PRIORITY_NONE, PRIORITY_NONE, 0);
        let net = nid.net();
        Self {
            nid,
            net,
            credits,
            peer_credits,
            router_credits: peer_credits,
            drops_for_silent: true,
            message_timeout,
            lnd_timeout: None,
            facts: LndFacts::KERNEL,
            status,
            awaits_carrier: true,
            health,
            priority,
            net_priority,
            numa_distance,
        }
    }

    /// The NI by which a node reaches itself (LNet's `lo`, `lo.c`), NID `0@lo`. Its credits never run
    /// out: a message that leaves nothing waits for none.
    #[must_use]
    pub const fn loopback(message_timeout: Duration) -> Self {
        Self::new(Nid::LO, u32::MAX, u32::MAX, message_timeout)
    }

    /// Whether messages wait for its link.
    pub(crate) const fn holds_messages(&self) -> bool {
        matches!(self.status, NiStatus::Down) && self.awaits_carrier
    }

    /// Whether new requests may leave by it.
    pub(crate) const fn serves(&self) -> bool {
        matches!(self.status, NiStatus::Up)
    }
}

impl Topology {
    /// A snapshot of these NIs in slots 0, 1, 2 ..., with the default tunables and generation 0. If one of
    /// them is [`LocalNi::loopback`], what is for any of them goes by that one.
    #[must_use]
    pub fn new(nis: Vec<LocalNi>) -> Self {
        Self::with_slots(nis.into_iter().map(Some).collect())
    }

    /// A snapshot of these NIs in their slots, with the default tunables and generation 0.
    #[must_use]
    pub fn with_slots(nis: Vec<Option<LocalNi>>) -> Self {
        let is_loopback = |slot: &Option<LocalNi>| slot.is_some_and(|ni| ni.nid.is_loopback());
        let loopback = nis.iter().position(is_loopback);
        let loopback = loopback.map(|position| NiId(position as u16));
        let others = || nis.iter().flatten().filter(|ni| !ni.nid.is_loopback());
        let has_choice = others().any(|ni| others().filter(|other| other.net == ni.net).count() > 1);
        let has_ill = others().any(|ni| ni.health < HEALTH_MAX);
        Self { nis, loopback, has_choice, has_ill, ..Self::default() }
    }

    /// Sets the generation: the higher one is the newer snapshot.
    #[must_use]
    pub fn with_generation(self, generation: u64) -> Self {
        Self { generation, ..self }
    }

    /// Sets the distances of each slot's device from the memory of each shard, where they differ.
    #[must_use]
    pub fn with_numa_distances(self, numa_distances: Vec<Box<[u32]>>) -> Self {
        Self { numa_distances, ..self }
    }

    /// Sets the distances of each slot's device from the memory nodes of the machine, where they differ.
    #[must_use]
    pub fn with_memory_distances(self, memory_distances: Vec<Box<[u32]>>) -> Self {
        Self { memory_distances, ..self }
    }

    /// Sets what each slot's NI reaches by the routes of its interface, where that is known.
    #[must_use]
    pub fn with_reaches(self, reaches: Vec<Option<Arc<Reach>>>) -> Self {
        Self { reaches, ..self }
    }

    /// The bits of the longest prefix by which the interface of an NI has a route to a NID; `None` without a
    /// route. Where it is not known what an NI reaches, the NI reaches all by a prefix of 0 bits, and so does
    /// every NI reach a NID without an address.
    #[must_use]
    #[inline]
    pub fn route_bits(&self, ni: NiId, nid: &Nid) -> Option<u8> {
        if self.reaches.is_empty() {
            return Some(0);
        }
        let reach = self.reaches.get(usize::from(ni.0)).and_then(Option::as_deref);
        match (reach, nid.ip()) {
            (Some(reach), Some(address)) => reach.prefix_bits(&address),
            _ => Some(0),
        }
    }

    /// Whether it matters on which memory node a buffer lies that requests are made with.
    #[must_use]
    #[inline]
    pub const fn has_memory_distances(&self) -> bool {
        !self.memory_distances.is_empty()
    }

    /// How far the device of an NI, of which the shard knows that it is in use, is from memory on a node of
    /// the machine. `None` where no device's is known from there, or those of none differ.
    #[must_use]
    pub fn memory_distance(&self, ni: NiId, node: MemoryNode) -> Option<u32> {
        let from_node = |distances: &[u32]| distances.get(usize::from(node.0)).copied();
        if !self.memory_distances.iter().any(|distances| from_node(distances).is_some()) {
            return None;
        }
        let its = self.memory_distances.get(usize::from(ni.0)).and_then(|distances| from_node(distances));
        Some(its.unwrap_or_else(|| self.known_ni(ni).numa_distance))
    }

    /// How far the device of an NI, of which the shard knows that it is in use, is from the memory of
    /// a shard.
    #[must_use]
    pub fn numa_distance(&self, ni: NiId, shard: ShardId) -> u32 {
        let by_shard = self.numa_distances.get(usize::from(ni.0));
        let its = by_shard.and_then(|distances| distances.get(usize::from(shard.0)));
        its.copied().unwrap_or_else(|| self.known_ni(ni).numa_distance)
    }

    /// Sets the portals, a bit each, that get no entries now: their policies are about to change.
    /// Nothing waits on them either, as if they were not lazy.
    #[must_use]
    pub fn with_frozen(self, frozen: u64) -> Self {
        Self { frozen, ..self }
    }

    /// Sets the peers.
    #[must_use]
    pub fn with_peers(self, peers: PeerMap) -> Self {
        let has_choice = self.has_choice || peers.has_choice();
        let has_ill = self.has_ill || peers.is_any_ill();
        let (has_aliases, has_unnamed) = (peers.has_aliases(), peers.has_unnamed());
        Self { peers: Some(peers), has_choice, has_ill, has_aliases, has_unnamed, ..self }
    }

    /// Sets the nets that gateways lead to.
    #[must_use]
    pub fn with_net_routes(self, net_routes: Option<Arc<NetRoutes>>) -> Self {
        Self { net_routes, ..self }
    }

    /// The nets that gateways lead to, if there are any.
    #[must_use]
    pub fn net_routes(&self) -> Option<&NetRoutes> {
        self.net_routes.as_deref()
    }

    /// Sets whether messages of other nodes are forwarded.
    #[must_use]
    pub fn with_forwarding(self, forwarding: Forwarding) -> Self {
        Self { forwarding, ..self }
    }

    /// Whether messages of other nodes are forwarded.
    #[must_use]
    pub const fn forwarding(&self) -> Forwarding {
        self.forwarding
    }

    /// Whether the net routes are those of another snapshot.
    pub(crate) fn has_routes_of(&self, other: &Self) -> bool {
        match (&self.net_routes, &other.net_routes) {
            (Some(own), Some(others)) => Arc::ptr_eq(own, others),
            (own, others) => own.is_none() && others.is_none(),
        }
    }

    /// Whether messages from a NID may come by another node, which is a gateway: the NID is on no net of this
    /// node's.
    #[cold]
    pub(crate) fn comes_by(&self, gateway: &Nid, source: &Nid) -> bool {
        self.net_routes().is_some_and(|routes| routes.is_gateway(gateway))
            && self.on_net(source.net()).is_none()
    }

    /// The peer that has a NID.
    #[must_use]
    #[inline]
    pub fn peer(&self, nid: &Nid) -> Option<&PeerView> {
        self.peers.as_ref()?.get(nid).map(|peer| &**peer)
    }

    /// The NID by which the peer is known that goes by this one, or did so until of late: messages may be on
    /// their way to it.
    #[must_use]
    pub fn known_as(&self, nid: &Nid) -> Nid {
        self.peers.as_ref().map_or(*nid, |peers| peers.known_as(nid))
    }

    /// The NID that a new request for this one goes to ([`PeerMap::now_at`]).
    #[must_use]
    #[inline]
    pub fn now_at(&self, nid: &Nid) -> Nid {
        self.peers.as_ref().map_or(*nid, |peers| peers.now_at(nid))
    }

    /// Whether something finds out about peers.
    #[must_use]
    pub const fn finds_peers(&self) -> bool {
        self.peers.is_some()
    }

    /// Sets whether requests to peers that are not known, or were never discovered, wait for that.
    /// Something has to ask the shards which peers those are, soon ([`Shard::poll_wanted`]).
    ///
    /// [`Shard::poll_wanted`]: crate::shard::Shard::poll_wanted
    #[must_use]
    pub fn with_gated_requests(self, holds: bool) -> Self {
        Self { gates_requests: holds, ..self }
    }

    /// Whether requests to peers that were never discovered wait for that.
    #[must_use]
    pub const fn gates_requests(&self) -> bool {
        self.gates_requests
    }

    /// Whether there is something to choose among the paths to some destination.
    #[inline]
    pub(crate) const fn has_choice(&self) -> bool {
        self.has_choice
    }

    /// Whether an NI of this node or of a peer is not in full health.
    #[inline]
    pub(crate) const fn has_ill(&self) -> bool {
        self.has_ill
    }

    /// The NID by which the peer goes that has this one: what events and matching go by.
    #[inline]
    #[must_use]
    pub fn primary_of(&self, nid: &Nid) -> Nid {
        self.peer_with_aliases(nid).map_or(*nid, |peer| peer.primary)
    }

    /// The peer that has a NID, if any peer goes by more than one.
    #[inline]
    pub(crate) fn peer_with_aliases(&self, nid: &Nid) -> Option<&PeerView> {
        if self.has_aliases { self.peer(nid) } else { None }
    }

    /// Whether requests from a NID wait for the name that its peer is to go by.
    #[inline]
    pub(crate) fn awaits_name(&self, nid: &Nid) -> bool {
        self.has_unnamed && self.peer(nid).is_some_and(|peer| peer.awaits_name)
    }

    /// Whether two NIDs belong to one peer.
    #[must_use]
    pub fn is_same_peer(&self, one: &Nid, other: &Nid) -> bool {
        self.peer(one).is_some_and(|peer| peer.ni(other).is_some())
    }

    /// The health of a peer's NID; whole if it is not known.
    #[must_use]
    pub fn peer_health(&self, nid: &Nid) -> u32 {
        self.peer(nid).and_then(|peer| peer.ni(nid)).map_or(HEALTH_MAX, |its| its.health)
    }

    /// Sets the tunables.
    #[must_use]
    pub fn with_tunables(self, tunables: Tunables) -> Self {
        Self { tunables, ..self }
    }

    /// Has shards hand headers to each other ([`crate::shard::mesh`]). Without, each shard
    /// takes what its LNDs bring for its own.
    #[must_use]
    pub fn with_steering(self, steering: Steering) -> Self {
        let is_open = |word: &PolicyWord| word.unpack().is_some_and(|policy| policy.is_open());
        let policies = steering.policies.iter().enumerate();
        let open = policies.fold(0, |bits, (portal, word)| bits | u64::from(is_open(word)) << portal);
        Self { steering: Some(steering), open, ..self }
    }

    /// Where headers belong, if shards hand them to each other.
    #[must_use]
    pub const fn steering(&self) -> Option<&Steering> {
        self.steering.as_ref()
    }

    /// Whether the policy of a portal below [`PORTALS`] is an open one ([`lnet_wire::Policy::is_open`]).
    pub(crate) const fn is_open(&self, portal: u32) -> bool {
        self.open >> portal & 1 != 0
    }

    /// Whether a shard keeps the messages of a portal below [`PORTALS`] that it has: it is open, or frozen.
    pub(crate) const fn is_shared(&self, portal: u32) -> bool {
        (self.open | self.frozen) >> portal & 1 != 0
    }

    /// The node's tunables.
    #[must_use]
    pub const fn tunables(&self) -> &Tunables {
        &self.tunables
    }

    /// The slots of the local NIs; [`NiId`] n is slot n.
    #[must_use]
    pub fn nis(&self) -> &[Option<LocalNi>] {
        &self.nis
    }

    /// The local NIs with their slots.
    pub fn local_nis(&self) -> impl DoubleEndedIterator<Item = (NiId, &LocalNi)> + Clone {
        let slots = self.nis.iter().enumerate();
        slots.filter_map(|(slot, ni)| ni.as_ref().map(|ni| (NiId(slot as u16), ni)))
    }

    /// The first NI on a net, whether it serves or not.
    pub(crate) fn on_net(&self, net: Net) -> Option<&LocalNi> {
        self.local_nis().map(|(_, ni)| ni).find(|ni| ni.net == net)
    }

    /// The NIs on a net by which new requests may leave.
    pub(crate) fn serving(&self, net: Net) -> impl Iterator<Item = NiId> + Clone {
        self.local_nis().filter(move |(_, ni)| ni.net == net && ni.serves()).map(|(ni, _)| ni)
    }

    /// The NI in a slot.
    #[must_use]
    pub fn ni(&self, ni: NiId) -> Option<&LocalNi> {
        self.nis.get(usize::from(ni.0))?.as_ref()
    }

    /// The NI in a slot of which the shard knows that it is in use.
    #[inline]
    pub(crate) fn known_ni(&self, ni: NiId) -> &LocalNi {
        match self.ni(ni) {
            Some(local) => local,
            None => panic!("there is no NI {}", ni.0),
        }
    }

    /// Which snapshot this is.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether a portal below [`PORTALS`] gets no entries now.
    #[must_use]
    pub const fn is_frozen(&self, portal: u32) -> bool {
        self.frozen >> portal & 1 != 0
    }

    /// Whether the NIs differ from those of another snapshot in what credits and queues go by: not in
    /// health and priorities, which are looked at with each choice.
    pub(crate) fn has_other_nis(&self, than: &Self) -> bool {
        let as_queued = |ni: &Option<LocalNi>| {
            ni.map(|ni| (ni.nid, ni.credits, ni.peer_credits, ni.message_timeout, ni.status))
        };
        let (own, others) = (self.nis.iter().map(as_queued), than.nis.iter().map(as_queued));
        !own.eq(others)
    }

    /// Whether a NID is that of a local NI.
    #[must_use]
    pub fn is_local(&self, nid: &Nid) -> bool {
        self.nis.iter().flatten().any(|ni| ni.nid == *nid)
    }

    /// How far a NID is; `None` if no NI is on its net, and no route leads there (`-EHOSTUNREACH`). NIs that
    /// go do not count.
    #[must_use]
    pub fn distance(&self, nid: &Nid) -> Option<Distance> {
        let stays = |ni: &LocalNi| matches!(ni.status, NiStatus::Up | NiStatus::Down);
        let nis = || self.local_nis().map(|(_, ni)| ni).filter(|ni| stays(ni)).zip(2..);
        if nis().any(|(ni, _)| ni.nid == *nid) {
            return Some(Distance { hops: 0, order: u32::from(!nid.is_loopback()), source: *nid });
        }
        if let Some((ni, order)) = nis().find(|(ni, _)| ni.net == nid.net()) {
            return Some(Distance { hops: 1, order, source: ni.nid });
        }
        let nearest = self.net_routes()?.to(nid.net()).iter().min_by_key(|gateway| gateway.hops)?;
        let (ni, order) = nis().find(|(ni, _)| ni.net == nearest.nid.net())?;
        Some(Distance { hops: u32::from(nearest.hops) + 1, order, source: ni.nid })
    }

    /// The loopback NI, if there is one and `destination` is this node.
    pub(crate) fn loopback_to(&self, destination: &Nid) -> Option<NiId> {
        self.loopback.filter(|_| self.is_local(destination))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::testing::nid;

    fn local_ni(nid: Nid) -> LocalNi {
        LocalNi::new(nid, 8, 4, Duration::from_secs(50))
    }

    #[test]
    fn what_is_for_this_node_goes_by_the_loopback_ni() {
        let loopback = LocalNi::loopback(Duration::from_secs(50));
        let topology = Topology::new(vec![local_ni(nid(1, 10)), local_ni(nid(1, 11)), loopback]);
        let lo = Some(NiId(2));
        assert_eq!([Nid::LO, nid(1, 10), nid(1, 11)].map(|nid| topology.loopback_to(&nid)), [lo; 3]);
        assert_eq!(topology.loopback_to(&nid(1, 12)), None);
        assert_eq!(Topology::new(vec![local_ni(nid(1, 10))]).loopback_to(&nid(1, 10)), None);
    }

    #[test]
    fn near_nids_come_before_far_ones() {
        let far = Nid::from_small(2 << 48 | 9 << 32 | 5).unwrap();
        let leaving = LocalNi { status: NiStatus::Leaving, ..local_ni(far) };
        let loopback = LocalNi::loopback(Duration::from_secs(50));
        let nis = [loopback, local_ni(nid(1, 10)), local_ni(nid(2, 10)), local_ni(nid(2, 11)), leaving];
        let topology = Topology::new(nis.to_vec());
        let distance = |nid: Nid| topology.distance(&nid).map(|to| (to.hops, to.order, to.source));
        assert_eq!(distance(Nid::LO), Some((0, 0, Nid::LO)));
        assert_eq!(distance(nid(2, 11)), Some((0, 1, nid(2, 11))));
        assert_eq!(distance(nid(1, 7)), Some((1, 3, nid(1, 10))));
        assert_eq!(distance(nid(2, 7)), Some((1, 4, nid(2, 10))), "the first NI of the net");
        assert_eq!([distance(nid(3, 7)), distance(far)], [None, None]);
    }

    #[test]
    fn holes_shift_nothing() {
        let topology =
            Topology::with_slots(vec![Some(local_ni(nid(1, 10))), None, Some(local_ni(nid(1, 11)))]);
        assert_eq!(topology.local_nis().map(|(ni, _)| ni.0).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(topology.ni(NiId(1)), None);
    }
}
