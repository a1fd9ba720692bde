//! Why an NI of the xdp LND is not opened; each message names the value and the way out.

use lnet_io::kind::InterfaceError;
use lnet_io::netlink::NetlinkError;
use lnet_io::port::BindError;
use lnet_io::random::NoRandom;
use lnet_io::reactor::udp::UdpError;
use lnet_io::xsk::{SocketError, UmemError};
use lnet_wire::Nid;
use thiserror::Error;

use crate::bpf::BpfError;

/// Why an NI of the xdp LND is not opened: the node is as before then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum XdpError {
    /// A UDP port that means "any".
    #[error("UDP port 0: the port that all nodes of the net share is expected, 1 to 65535 (default 988)")]
    UdpPort,
    /// Rings of an unusable size.
    #[error(transparent)]
    Rings(SocketError),
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
        /// The most that there may be.
        max: u32,
    },
    /// Too few frames for one more interface.
    #[error(
        "interface {interface} with {queues} receive queues: {wanted} frames are wanted, the node has {present} \
         since its start (`lnetd --memory {}M`, NodeConfig::frames)",
        (u64::from(*wanted) * u64::from(lnet_io::xsk::CHUNK_BYTES)).div_ceil(1 << 20)
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
    /// The interface.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
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
    /// An option that UDP sockets cannot serve.
    #[error("{option} is for AF_XDP rings: mode native or generic is expected with it")]
    OnlyRings {
        /// The option.
        option: &'static str,
    },
    /// Rings cannot have the zero copy that they must have.
    #[error("interface {interface} cannot have zero copy: {reason}; zero_copy auto or off is expected")]
    NoZeroCopy {
        /// The interface.
        interface: String,
        /// Why not.
        reason: String,
    },
    /// Neither rings nor sockets can be had.
    #[error("no mode works; with rings: {rings}; with sockets: {sockets}")]
    NoMode {
        /// Why not by rings.
        rings: Box<XdpError>,
        /// Why not by sockets.
        sockets: Box<XdpError>,
    },
    /// The kernel has no random numbers.
    #[error(transparent)]
    Random(#[from] NoRandom),
}

impl From<NetlinkError> for XdpError {
    fn from(error: NetlinkError) -> Self {
        Self::Interface(error.into())
    }
}

impl From<BindError> for XdpError {
    fn from(error: BindError) -> Self {
        match error {
            BindError::Reserve(error) => error.into(),
            BindError::Udp(error) => Self::Udp(error),
        }
    }
}

impl XdpError {
    /// Whether rings cannot be had here, as opposed to a mistake that is to be told: privileges, or support
    /// by the kernel or the driver are lacking.
    pub(super) fn is_lack(&self) -> bool {
        match self {
            Self::Bpf(error) => matches!(
                error,
                BpfError::Privilege { .. } | BpfError::FragsUnsupported { .. } | BpfError::Refused { .. }
            ),
            Self::Interface(InterfaceError::Netlink(error)) => {
                matches!(error, NetlinkError::NoPermission { .. })
            }
            Self::Interface(InterfaceError::NotEthernet(_)) => true,
            Self::Frames { .. } => true,
            Self::Umem(error) => matches!(error, UmemError::Map { .. }),
            Self::Socket(error) => {
                error.is_not_permitted() || matches!(error, SocketError::NoXdpSockets { .. })
            }
            _ => false,
        }
    }
}
