//! What a node is told and asked, and what it wants done.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use lnet_model::pool::PoolKind;
use lnet_wire::steer::{PORTALS, PolicyWord};
use lnet_wire::{Net, NetType, Nid};

use super::change::NodeChange;
use super::error::{DriverError, RequestError};
use super::nets::{NiConfig, NiSpec};
use super::pings::{PingId, PingKind, Pinged};
use crate::lnd::NiId;
use crate::shard::{Confirmation, HealthNote, PathNote};
use crate::topology::Reach;
use crate::tunables::NetTunables;

/// How long what is under way by an NI that goes may take, unless a request says otherwise.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// What a node is made of.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Shards that confirm its snapshots, at least 1.
    pub shard_count: u8,
    /// Slots for local NIs, `lo` included: those of the shards' limits.
    pub nis_max: u16,
    /// Types of nets that it has LNDs for.
    pub net_types: Vec<NetType>,
    /// Peers that it remembers.
    pub peers_max: usize,
    /// Requests that may wait or be under way.
    pub requests_max: usize,
    /// How long a ping takes at most, and one that says nothing of it.
    pub ping_timeout_max: Duration,
    /// The node's pid.
    pub pid: u32,
    /// Policies of its portals at the start.
    pub policies: [PolicyWord; PORTALS],
    /// Whether the primary NIDs of peers that a program announces are fixed (LNet `peer.c: lock_prim_nid`).
    pub locks_announced: bool,
    /// Router buffers that there may be, over all shards and pools; without any it is no router.
    pub router_buffers_max: u32,
}

impl NodeConfig {
    /// The configuration of a node with so many shards and slots, and nets of these types.
    #[must_use]
    pub fn new(shard_count: u8, nis_max: u16, net_types: &[NetType]) -> Self {
        Self {
            shard_count,
            nis_max,
            net_types: net_types.to_vec(),
            peers_max: 1 << 12,
            requests_max: 1 << 10,
            ping_timeout_max: Duration::from_secs(180),
            pid: lnet_wire::ProcessId::LUSTRE_PID,
            policies: [PolicyWord::default(); PORTALS],
            locks_announced: true,
            router_buffers_max: 0,
        }
    }
}

/// Names a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// Something that is asked of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request<O> {
    /// All of these changes in their order, or none.
    Batch {
        /// The changes.
        changes: Vec<NodeChange<O>>,
        /// How long what is under way by NIs that go may take.
        drain_timeout: Duration,
    },
    /// A ping.
    Ping {
        /// Who is asked.
        nid: Nid,
        /// The local NID that it comes from.
        source: Option<Nid>,
        /// How long the answer may take; the longest time if there is no number, or it is 0 or longer.
        timeout: Option<Duration>,
    },
    /// A peer is to be discovered: its NIs become those that it tells. It ends as [`Outcome::Pinged`].
    Discover {
        /// A NID of it.
        nid: Nid,
        /// Whether it is pushed to whatever it has acknowledged.
        is_forced: bool,
    },
    /// A program announces a peer: NIDs of one node, of which the first that is usable is to be its primary
    /// NID. It ends at once, as [`Outcome::Pinged`] with what is known of the peer; the other NIDs become its
    /// own as they are discovered.
    Announce {
        /// The NIDs; those on nets that this node is not on are passed over.
        nids: Vec<Nid>,
    },
    /// Asks which NID a peer goes by. It ends as [`Outcome::Pinged`]: once the peer is discovered, unless its
    /// primary NID is known for certain or discovery is off.
    PrimaryNid {
        /// A NID of the peer.
        nid: Nid,
    },
}

impl<O> Request<O> {
    /// A batch with the default time to drain, [`DRAIN_TIMEOUT`].
    #[must_use]
    pub const fn batch(changes: Vec<NodeChange<O>>) -> Self {
        Self::Batch { changes, drain_timeout: DRAIN_TIMEOUT }
    }
}

/// How a request ended well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All changes are made, and all shards know.
    Changed,
    /// The ping was answered, or what is asked about a peer is known.
    Pinged(Pinged),
}

/// What the runner is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action<O> {
    /// Open an NI on all shards, and report [`Report::Opened`]. Shards do not know it yet.
    Open {
        /// Its slot.
        ni: NiId,
        /// What it is.
        spec: NiSpec<O>,
        /// The tunables of its net.
        tunables: NetTunables,
    },
    /// Close an NI, and report [`Report::Closed`]. No shard has anything of it.
    Close {
        /// Its slot.
        ni: NiId,
    },
    /// Send a GET of [`PING_PORTAL`](crate::lnd::PING_PORTAL) with
    /// [`PING_MATCH_BITS`](crate::lnd::PING_MATCH_BITS), and report
    /// [`Report::Answered`] or [`Report::Unanswered`], if that comes before [`Action::Forget`].
    Ping {
        /// Names it.
        ping: PingId,
        /// Who is asked.
        nid: Nid,
        /// The local NID that it comes from.
        source: Option<Nid>,
        /// Room for the answer.
        length_bytes: usize,
        /// Purpose of the ping.
        kind: PingKind,
    },
    /// Send a PUT with ACK to [`PING_PORTAL`](crate::lnd::PING_PORTAL) with
    /// [`PING_MATCH_BITS`](crate::lnd::PING_MATCH_BITS), and report
    /// [`Report::Answered`], without bytes, when it is acknowledged, or [`Report::Unanswered`].
    Push {
        /// Names it.
        ping: PingId,
        /// Who is told.
        nid: Nid,
        /// The local NID that it comes from.
        source: Option<Nid>,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// An answer is of no interest any more.
    Forget {
        /// The ping.
        ping: PingId,
    },
    /// Answer pings with these bytes from now on.
    Publish(Arc<[u8]>),
    /// End what speaks in the name of a NID from other addresses than its own: the node forgets soon where
    /// that comes from.
    Disconnect {
        /// The NID.
        nid: Nid,
    },
    /// Make the router buffers of all shards as many ([`Shard::set_router_pools`]), by [`PoolKind`], and
    /// report [`Report::Pools`]. Where there is no memory for them, all is to be as it was.
    ///
    /// [`Shard::set_router_pools`]: crate::shard::Shard::set_router_pools
    Pools([u32; PoolKind::ALL.len()]),
    /// Free all router buffers, those in use when they are not any more.
    DropPools,
    /// A portal's policy has changed; shards hear of it by a snapshot, this is for what steers in front of
    /// them.
    Steer {
        /// The portal.
        portal: u32,
        /// The policy.
        policy: PolicyWord,
    },
    /// A request has ended.
    Done {
        /// The request.
        request: RequestId,
        /// How.
        result: Result<Outcome, RequestError>,
    },
}

/// What the runner has to tell.
#[derive(Clone, Debug)]
pub enum Report<'a> {
    /// An NI was opened, or not.
    Opened {
        /// Its slot.
        ni: NiId,
        /// Whether.
        result: Result<(), DriverError>,
    },
    /// An NI is closed.
    Closed {
        /// Its slot.
        ni: NiId,
    },
    /// The router buffers are made, or there are as many as before.
    Pools {
        /// Whether they could be made.
        result: Result<(), DriverError>,
    },
    /// Another node has pinged an NI of a router ([`Shard::poll_pinged`]).
    ///
    /// [`Shard::poll_pinged`]: crate::shard::Shard::poll_pinged
    Pinged {
        /// Its slot. What has gone meanwhile is of no interest.
        ni: NiId,
    },
    /// What a shard says of its snapshot.
    Confirmed(Confirmation),
    /// A ping was answered.
    Answered {
        /// The ping.
        ping: PingId,
        /// The payload of the REPLY, at most as long as was asked for.
        bytes: &'a [u8],
    },
    /// A ping was not sent, or its answer is lost.
    Unanswered {
        /// The ping.
        ping: PingId,
        /// Why.
        error: DriverError,
    },
    /// Whether an NI that cannot send may do so again by itself, since only its carrier is lacking: then
    /// messages without another way wait for it. Tell it before [`Report::Link`].
    Carrier {
        /// Slot of the NI, which may have gone meanwhile: then nothing happens.
        ni: NiId,
        /// Whether messages wait.
        is_awaited: bool,
    },
    /// An NI can send, or cannot.
    Link {
        /// Slot of the NI, which may have gone meanwhile: then nothing happens.
        ni: NiId,
        /// Whether it can.
        is_up: bool,
    },
    /// The system's interface of an NI has another name.
    Renamed {
        /// The NI's slot. What has gone meanwhile is of no interest.
        ni: NiId,
        /// The name.
        interface: String,
    },
    /// A peer has pushed what it has to say of itself.
    Pushed {
        /// The header's source.
        from: Nid,
        /// What of it had room ([`Node::push_room_bytes`](super::Node::push_room_bytes)).
        bytes: &'a [u8],
        /// Bytes of the whole push.
        length_bytes: usize,
    },
    /// How far the device of an NI is from the memory of each shard.
    Distance {
        /// Its slot. What has gone meanwhile is of no interest.
        ni: NiId,
        /// Distances by shard, as the system gives them: 10 is as near as can be.
        distances: &'a [u32],
        /// Distances from the memory nodes of the machine, by number; none where there is one node.
        by_memory: &'a [u32],
    },
    /// Addresses that the interface of an NI has routes to.
    Reach {
        /// Its slot. What has gone meanwhile is of no interest.
        ni: NiId,
        /// The routes.
        reach: &'a Arc<Reach>,
    },
    /// Traffic with a peer.
    Traffic {
        /// Its NID.
        nid: Nid,
        /// Whether messages have come from it, and not only gone to it.
        is_incoming: bool,
        /// The local NI that a message of it came by, if that made it known.
        first_ni: Option<NiId>,
    },
    /// A request has gone to a NID that is to be found out about ([`Shard::poll_wanted`]).
    ///
    /// [`Shard::poll_wanted`]: crate::shard::Shard::poll_wanted
    Wanted {
        /// The NID.
        nid: Nid,
    },
    /// A request from a NID waits for the name that its peer is to go by ([`Shard::poll_waiting`]).
    ///
    /// [`Shard::poll_waiting`]: crate::shard::Shard::poll_waiting
    Waiting {
        /// The NID.
        nid: Nid,
    },
    /// Where a NID speaks from ([`Shard::poll_came_from`]): to be reported before what it says, unless it is
    /// its own address and always was.
    ///
    /// [`Shard::poll_came_from`]: crate::shard::Shard::poll_came_from
    CameFrom {
        /// The NID.
        nid: Nid,
        /// The address.
        address: IpAddr,
    },
    /// A shard's note of an NI ([`Shard::poll_health`]).
    ///
    /// [`Shard::poll_health`]: crate::shard::Shard::poll_health
    Health(HealthNote),
    /// What an LND has learned of a path ([`Shard::poll_paths`]).
    ///
    /// [`Shard::poll_paths`]: crate::shard::Shard::poll_paths
    Path(PathNote),
    /// A message from a NID behind a gateway has come, though that is taken for dead
    /// ([`Shard::poll_foreign`]).
    ///
    /// [`Shard::poll_foreign`]: crate::shard::Shard::poll_foreign
    Foreign {
        /// The NI of the gateway that has sent it.
        by: Nid,
        /// The net of the NID.
        net: Net,
    },
}

/// A net with its NIs.
#[derive(Clone, Debug)]
pub struct NetRecord<'a, O> {
    /// The net.
    pub net: Net,
    /// Its tunables; all 0 for `lo`.
    pub tunables: NetTunables,
    /// Its NIs in the order in which they were added; none for `lo`, whose one is always there.
    pub nis: Vec<&'a NiConfig<O>>,
}
