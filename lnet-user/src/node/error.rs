//! Why a node does not start, or an NI is not opened; each message names the value and the way out.

use lnet_core::handle::SLOT_BITS;
use lnet_core::limits::Limits;
use lnet_core::node::{ChangeError, RequestError};
use lnet_io::random::NoRandom;
use lnet_io::reactor::{WATCHES_MAX, WaitError};
use lnet_model::lnd::OptionError;
use lnet_wire::Nid;
use lnet_xdp::XdpError;
use lnet_xdp::bpf::BpfError;
use thiserror::Error;

use crate::lnd::LndError;

/// What is wrong with a configuration by itself.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An unusable number of shards.
    #[error("{0} shards: 1 to 64 are expected")]
    Shards(u32),
    /// A refusal of an NI or a policy by the control state machine.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// A refusal by the control state machine, with the position in the configuration.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A NID that names no address.
    #[error(
        "NID {0} has no IP address: ADDRESS@tcp or ADDRESS@xdp, with a number behind it or not, is expected"
    )]
    NoAddress(Nid),
    /// Two NIDs of one address and port: which of them a frame is for would be open.
    #[error(
        "NIDs {first} and {second} have the same address: each NI needs one of its own, or a port of its own \
         (`port`)"
    )]
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
    /// Options that the NI cannot have.
    #[error(transparent)]
    Options(#[from] OptionError),
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
    /// A fault of the xdp LND's configuration.
    #[error(transparent)]
    Xdp(XdpError),
}

/// Why a node does not start, or an NI is not opened: the node is as before then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The configuration cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An NI of a number that is taken, or is none.
    #[error("there is an NI {0} already, or it is no number of an NI: 1 to Limits::nis are expected")]
    NiTaken(u16),
    /// An NI that is not there.
    #[error("there is no NI {0}")]
    NoNi(u16),
    /// The LND refuses the NI.
    #[error(transparent)]
    Lnd(#[from] LndError),
    /// The XDP programs.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The waiting of shards.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The kernel has no random numbers.
    #[error(transparent)]
    Random(#[from] NoRandom),
}
