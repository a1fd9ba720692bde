//! What a node and its NIs are to be. Either is made by `new`, changed by the methods named like its fields,
//! and checked by `build`, and at the start again.
//!
//! Configurations are `#[non_exhaustive]` and built by methods, so that a new field breaks no program.

use std::path::PathBuf;
use std::time::Duration;

use lnet_core::limits::Limits;
use lnet_core::lnd::{LndFacts, NiId};
use lnet_core::node::NetOptions;
use lnet_core::tunables::NetTunables;
use lnet_io::xsk::RingSizes;
use lnet_model::ni::{Lnd, NiOptions};
use lnet_tcp_proto::SockTunables;
use lnet_wire::steer::Policy;
use lnet_wire::{NetType, Nid};
use lnet_xdp_proto::XferTimes;

use super::{ConfigError, SendFault, XdpConfig, XdpMode, fabric_of, plan, setters, start};

/// The number of the interface `lo`, on every node. Other NIs have numbers from 1 to [`Limits::interfaces`].
pub const LO: NiId = NiId(0);

/// Bytes of memory that a peer of one shard takes, which messages go to and come from.
pub const PEER_BYTES: usize = lnet_core::shard::PEER_BYTES + lnet_xdp_proto::PEER_BYTES;

/// Objects of each shard of a node that serves and measures rather than stores: with two shards it takes less
/// than 32 MiB, besides the frames of its NIs over rings.
pub const DAEMON_LIMITS: Limits = Limits {
    match_entries: 1 << 12,
    memory_descs: 1 << 13,
    event_queues: 64,
    events: 3 << 12,
    unlimited_events: 1 << 7,
    requests: 1 << 10,
    responses: 1 << 10,
    forwards: 0,
    incoming: 1 << 10,
    delayed: 1 << 8,
    peers: Limits::peers_in(16 << 20, PEER_BYTES),
    interfaces: 16,
};

const _: () = assert!(DAEMON_LIMITS.is_valid());
const _: () = assert!(DAEMON_LIMITS.peers >= 2 * DAEMON_LIMITS.delayed);

/// A local NI to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NiConfig {
    /// Its NID: an address of the interface, on a net of type xdp or tcp.
    pub nid: Nid,
    /// The network interface; or `in-process:` and a name, by which nodes of one process reach each other
    /// without privileges.
    pub interface: String,
    /// Messages that the NI may have in flight; `None` for the default of its net ([`NetOptions::tunables`]).
    ///
    /// [`NetOptions::tunables`]: lnet_core::node::NetOptions::tunables
    pub credits: Option<u32>,
    /// Messages that the NI may have in flight to one peer NI; `None` as well.
    pub peer_credits: Option<u32>,
    /// The LND; `None` for that of the net's type. A net of type tcp may have xdp.
    pub lnd: Option<Lnd>,
    /// How its frames are to reach the shards; `None` for the node's mode.
    pub mode: Option<XdpMode>,
    /// UDP port of the NI and its peers; `None` for the node's.
    pub udp_port: Option<u16>,
    /// Receive queues that the interface must have at least, all of which are used; `None` for what the node
    /// says.
    pub queues: Option<u32>,
    /// Of the tcp LND: connections with a peer for messages of each direction, at most 127; `None` or 0 for
    /// as many as the speed of the link wants.
    pub conns_per_peer: Option<u32>,
    /// Of the tcp LND: IP type of service, 0 to 255; `None` or less for the system's.
    pub tos: Option<i32>,
    /// Numbers of the shards that receive by it, for the others as well; none for all of the node's.
    pub serving_shards: Vec<u32>,
}

impl NiConfig {
    /// An NI with the defaults of its net and node.
    #[must_use]
    pub fn new(nid: Nid, interface: &str) -> Self {
        Self {
            nid,
            interface: interface.to_owned(),
            credits: None,
            peer_credits: None,
            lnd: None,
            mode: None,
            udp_port: None,
            queues: None,
            conns_per_peer: None,
            tos: None,
            serving_shards: Vec::new(),
        }
    }

    setters! {
        interface: String,
        credits: Option<u32>,
        peer_credits: Option<u32>,
        lnd: Option<Lnd>,
        mode: Option<XdpMode>,
        udp_port: Option<u16>,
        queues: Option<u32>,
        conns_per_peer: Option<u32>,
        tos: Option<i32>,
        serving_shards: Vec<u32>,
    }

    /// What its LND is asked for.
    pub(super) fn options(&self) -> NiOptions {
        let &Self { credits, peer_credits, lnd, mode, udp_port: port, queues, conns_per_peer, tos, .. } =
            self;
        NiOptions {
            credits,
            peer_credits,
            lnd,
            mode,
            port,
            queues,
            conns_per_peer,
            tos,
            ..NiOptions::default()
        }
    }

    /// Whether its LND is tcp.
    pub fn is_tcp(&self) -> bool {
        is_tcp(self.nid, self.lnd) && fabric_of(&self.interface).is_none()
    }

    /// The same, once it is found to be possible; the interface itself is looked at when the NI is opened.
    ///
    /// # Errors
    /// [`ConfigError`] names the value that is wrong, and what is expected.
    pub fn build(self) -> Result<Self, ConfigError> {
        plan::check_ni(&self)?;
        Ok(self)
    }
}

/// Whether the LND of an NI is tcp, if this one was asked for.
pub fn is_tcp(nid: Nid, asked: Option<Lnd>) -> bool {
    asked.map_or(nid.net().net_type() == NetType::TCP, |lnd| lnd == Lnd::Tcp)
}

/// What a node is to be.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeConfig {
    /// Its NIs at first but `lo`, which every node has; the first one's NID is the node's primary NID. They
    /// get the numbers 1, 2, 3 ... A node without any reaches only itself, and needs no privileges.
    pub nis: Vec<NiConfig>,
    /// Shards, 1 to 64; one per CPU that the node shall use.
    pub shards: u32,
    /// What NIs of the xdp LND have in common.
    pub xdp: XdpConfig,
    /// Steering policies of portals; others are pinned to shard 0.
    pub policies: Vec<(u8, Policy)>,
    /// Receive queues of NIs over rings, and NIs over sockets, that the node may ever have at once.
    pub queues_max: u32,
    /// Objects that each shard may have.
    pub limits: Limits,
    /// How long a message may be under way: one that its peer has not acknowledged by then ends with an
    /// error. The same on all nodes of a net.
    pub lnd_timeout: Duration,
    /// Tunables of the tcp LND.
    pub sock: SockTunables,
    /// Whether the primary NIDs of announced peers are fixed
    /// ([`Lnet::announce_peer`](crate::Lnet::announce_peer)), whatever discovery finds.
    pub lock_prim_nid: bool,
}

/// What the NIs of a node have that do not say otherwise. A timeout of zero follows the global tunables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LndDefaults {
    xdp_timeout: Duration,
    tcp: SockTunables,
}

impl LndDefaults {
    /// The same with another timeout of an LND.
    pub const fn with_timeout(mut self, is_tcp: bool, timeout: Duration) -> Self {
        if is_tcp {
            self.tcp.timeout = timeout;
        } else {
            self.xdp_timeout = timeout;
        }
        self
    }

    /// How long an LND may take for a message.
    pub fn timeout(&self, is_tcp: bool) -> Duration {
        if is_tcp { self.tcp.timeout } else { self.xdp_timeout }
    }

    /// What is asked of the net of an NI, with what the node says of it.
    pub fn complete(&self, asked: NetOptions, nid: Nid, is_tcp: bool) -> NetOptions {
        // Nodes of one process, and those of xdp on a tcp net, are as others on a net of that type.
        let (new_net, facts) = match nid.net().net_type() {
            _ if is_tcp => (self.tcp.net, LndFacts::KERNEL),
            NetType::XDP => (lnet_xdp_proto::NET_TUNABLES, lnet_xdp_proto::FACTS),
            _ => (NetTunables::LNET, LndFacts::KERNEL),
        };
        NetOptions { new_net, lnd_timeout: self.timeout(is_tcp), facts, ..asked }
    }
}

impl NodeConfig {
    /// The defaults of its NIs.
    pub fn lnd_defaults(&self) -> LndDefaults {
        LndDefaults { xdp_timeout: self.lnd_timeout, tcp: self.sock }
    }

    /// A node that only itself reaches, by `0@lo`.
    #[must_use]
    pub fn loopback() -> Self {
        Self::new(Vec::new())
    }

    /// A node with these NIs and the defaults: one shard, port 988, automatic mode.
    #[must_use]
    pub fn new(nis: Vec<NiConfig>) -> Self {
        Self {
            nis,
            shards: 1,
            xdp: XdpConfig::default(),
            policies: Vec::new(),
            queues_max: 256,
            limits: Limits { peers: Limits::peers_in(32 << 20, PEER_BYTES), ..Limits::DEFAULT },
            lnd_timeout: XferTimes::DEFAULT.message,
            sock: SockTunables::DEFAULT,
            lock_prim_nid: true,
        }
    }

    setters! {
        nis: Vec<NiConfig>,
        shards: u32,
        xdp: XdpConfig,
        policies: Vec<(u8, Policy)>,
        queues_max: u32,
        limits: Limits,
        lnd_timeout: Duration,
        sock: SockTunables,
        lock_prim_nid: bool,
    }

    setters! { of xdp:
        queues: Option<u32>,
        udp_port: u16,
        mode: XdpMode,
        frames: Option<u32>,
        bpf_object: Option<PathBuf>,
        log_refusals: bool,
        registered_bytes: u64,
        rings: RingSizes,
        payload_checksum: bool,
        send_fault: SendFault,
        frame_loss_per_million: u32,
    }

    /// The same, once it is found to be possible: as a start does it, but for what the kernel says of its
    /// interfaces.
    ///
    /// # Errors
    /// [`ConfigError`] names the value that is wrong, and what is expected.
    pub fn build(self) -> Result<Self, ConfigError> {
        start::new_machine(&self)?;
        Ok(self)
    }

    /// Frames that a node of this configuration needs for so many interfaces over rings with so many receive
    /// queues in all: a value for [`XdpConfig::frames`].
    #[must_use]
    pub fn frames_for(&self, interfaces: u32, queues: u32) -> u32 {
        self.xdp.frames_for(self.shards, interfaces, queues)
    }
}
