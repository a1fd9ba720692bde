//! Why a node does not start, or an NI is not opened; each message names the value and the way out.

use lnet_core::handle::SLOT_BITS;
use lnet_core::limits::Limits;
use lnet_core::node::{ChangeError, RequestError};
use lnet_io::netlink::NetlinkError;
use lnet_io::port::BindError;
use lnet_io::uring::tcp::TcpError;
use lnet_io::uring::udp::UdpError;
use lnet_io::uring::{WATCHES_MAX, WaitError};
use lnet_io::xsk::{SocketError, UmemError};
use lnet_wire::Nid;
use thiserror::Error;

use crate::bpf::BpfError;

/// What is wrong with a configuration by itself.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An unusable number of shards.
    #[error("{0} shards: 1 to 64 are expected")]
    Shards(u32),
    /// What the control state machine says of an NI or a policy.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The same of the place in the configuration.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A NID that names no address.
    #[error(
        "NID {0} has no IP address: ADDRESS@tcp or ADDRESS@xdp, with a number behind it or not, is expected"
    )]
    NoAddress(Nid),
    /// Two NIDs of one address: which of them a frame is for would be open.
    #[error("NIDs {first} and {second} have the same address: each NI needs one of its own")]
    DuplicateAddress {
        /// The first NID.
        first: Nid,
        /// The other one.
        second: Nid,
    },
    /// Limits that no shard can be made of.
    #[error("{0:?}: each number is at most 2^{bits}, requests and responses half that, unlimited_events at least 2", bits = SLOT_BITS)]
    Limits(Limits),
    /// An unusable number of queues.
    #[error("queues_max {0}: 1 to {WATCHES_MAX} are expected")]
    QueuesMax(u32),
    /// A UDP port that means "any".
    #[error("UDP port 0: the port that all nodes of the net share is expected, 1 to 65535 (default 988)")]
    UdpPort,
    /// Something that an in-process NI does not have.
    #[error("{what} {value} for {interface}: none is expected there, it is for NIs on network interfaces")]
    NotInProcess {
        /// What it does not have.
        what: &'static str,
        /// What was asked for.
        value: String,
        /// The NI's interface.
        interface: String,
    },
    /// The LND tcp on a net of another type.
    #[error("{0}: lnd tcp serves nets of type tcp")]
    NoTcp(Nid),
    /// An option of another LND than the NI's.
    #[error("{what} {value} for {nid}: its LND, {lnd}, has no such option")]
    OtherLnd {
        /// The NI.
        nid: Nid,
        /// The option.
        what: &'static str,
        /// What was asked for.
        value: String,
        /// The NI's LND.
        lnd: &'static str,
    },
    /// An NI for a shard that the node has not.
    #[error("CPT {shard} for {nid}: this node has the CPTs (shards) 0 to {last}")]
    NoShard {
        /// The NI.
        nid: Nid,
        /// The shard that was asked for.
        shard: u32,
        /// The highest number of a shard.
        last: u32,
    },
    /// A portal with two policies.
    #[error("portal {0} has two policies: one is expected")]
    DuplicatePolicy(u8),
    /// Rings of an unusable size.
    #[error(transparent)]
    Rings(SocketError),
}

/// Why a node does not start, or an NI is not opened: the node is as before then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodeError {
    /// Another node has the NID on this in-process fabric.
    #[error("{nid} is on in-process:{fabric} already: NIDs of nodes that reach each other differ")]
    NidInUse {
        /// The NID.
        nid: Nid,
        /// The fabric's name.
        fabric: String,
    },
    /// The configuration cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// More queues than the node was made for.
    #[error(
        "{nid} would make {queues} receive queues and sockets: the node was started for at most {max} \
         (NodeConfig::queues_max, lnetd --queues-max)"
    )]
    TooManyWatches {
        /// The NI that is one too many.
        nid: Nid,
        /// Receive queues of NIs over rings, and NIs over sockets.
        queues: u32,
        /// `NodeConfig::queues_max`.
        max: u32,
    },
    /// Too few frames for one more interface.
    #[error(
        "interface {interface} with {queues} receive queues: {wanted} frames are wanted, the node has {present} \
         since its start (NodeConfig::frames, lnetd --memory)"
    )]
    Frames {
        /// The interface.
        interface: String,
        /// Its receive queues.
        queues: u32,
        /// Frames that the node would need.
        wanted: u32,
        /// Frames that it has.
        present: u32,
    },
    /// An NI of a number that is taken, or is none.
    #[error("there is an NI {0} already, or it is no number of an NI: 1 to Limits::interfaces are expected")]
    NiTaken(u16),
    /// An NI that is not there.
    #[error("there is no NI {0}")]
    NoNi(u16),
    /// A NID whose address the interface does not have.
    #[error("interface {interface} does not have the address of {nid}; it has {present}")]
    NoSuchAddress {
        /// The NID.
        nid: Nid,
        /// The interface.
        interface: String,
        /// The addresses that it has.
        present: String,
    },
    /// An interface that is switched off. One without a carrier will do: frames flow when it comes.
    #[error("interface {0} is down: `ip link set dev {0} up` brings it up")]
    Down(String),
    /// An interface that cannot have the NI as it is.
    #[error("interface {interface} has {present}")]
    Unsuitable {
        /// The interface.
        interface: String,
        /// What it has, what was expected, and the way out.
        present: String,
    },
    /// Transmit rings that cannot hold one frame.
    #[error(
        "transmit rings of {entries} entries: a frame on {interface}, whose MTU is {mtu_bytes}, needs {needed}"
    )]
    TransmitRing {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu_bytes: u32,
        /// Entries asked for.
        entries: u32,
        /// Entries that one frame takes.
        needed: u32,
    },
    /// The kernel's network tables.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The XDP program.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The memory of the frames.
    #[error(transparent)]
    Umem(#[from] UmemError),
    /// The `AF_XDP` sockets.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The UDP sockets.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// The TCP sockets.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// An option that UDP sockets cannot serve.
    #[error("{option} is for AF_XDP rings: mode native or generic is expected with it")]
    OnlyRings {
        /// The option.
        option: &'static str,
    },
    /// Neither rings nor sockets can be had.
    #[error("no mode works; with rings: {rings}; with sockets: {sockets}")]
    NoMode {
        /// Why not by rings.
        rings: Box<NodeError>,
        /// Why not by sockets.
        sockets: Box<NodeError>,
    },
    /// The waiting of shards.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The kernel has no random numbers.
    #[error("the kernel gives no random numbers: {0}")]
    Random(rustix::io::Errno),
}

impl From<BindError> for NodeError {
    fn from(error: BindError) -> Self {
        match error {
            BindError::Reserve(error) => Self::Netlink(error),
            BindError::Udp(error) => Self::Udp(error),
        }
    }
}

impl NodeError {
    /// Whether rings cannot be had here, as opposed to a mistake that is to be told: privileges, or support
    /// by the kernel or the driver are lacking.
    pub(super) fn is_lack(&self) -> bool {
        match self {
            Self::Bpf(error) => matches!(
                error,
                BpfError::Privilege { .. } | BpfError::FragsUnsupported { .. } | BpfError::Refused { .. }
            ),
            Self::Netlink(error) => matches!(error, NetlinkError::NoPermission { .. }),
            Self::Umem(error) => matches!(error, UmemError::Map { .. }),
            Self::Socket(error) => {
                error.is_not_permitted()
                    || matches!(error, SocketError::NoXdpSockets { .. } | SocketError::NoMultiBuffer { .. })
            }
            _ => false,
        }
    }
}
