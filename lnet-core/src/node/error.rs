//! Why a node does not do what is asked of it, with the errno by which LNet says so.

use alloc::string::String;
use core::fmt;
use core::time::Duration;

use lnet_wire::ping::PingError;
use lnet_wire::steer::{PORTALS, PolicyError};
use lnet_wire::{Global, Net, Nid};

const ENOENT: i32 = 2;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EPROTO: i32 = 71;
const ETIMEDOUT: i32 = 110;
const EHOSTUNREACH: i32 = 113;
const ECANCELED: i32 = 125;

/// What is wrong with a change.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ChangeError {
    /// `lo` is neither added nor changed nor deleted.
    Loopback,
    /// A wildcard where one interface is meant.
    Wildcard(Nid),
    /// No LND of this node serves nets of this type.
    NetType(Net),
    /// The NID is a local one already.
    NidExists(Nid),
    /// The interface is on the net already.
    InterfaceExists {
        /// The net.
        net: Net,
        /// The interface.
        interface: String,
    },
    /// There are as many local interfaces as may be.
    TooMany {
        /// How many may be, `lo` included.
        max: u32,
    },
    /// No credits at all, or none for a peer.
    NoCredits(Nid),
    /// There is no such net.
    UnknownNet(Net),
    /// The interface is not on the net.
    UnknownInterface {
        /// The net.
        net: Net,
        /// The interface.
        interface: String,
    },
    /// The NID is not a local one.
    UnknownNid(Nid),
    /// More than 1000.
    Health(u32),
    /// A portal index of 64 or more.
    Portal(u32),
    /// No valid policy.
    Policy {
        /// The portal.
        portal: u32,
        /// What is wrong.
        error: PolicyError,
    },
    /// A policy names a shard that this node has not.
    PolicyShard {
        /// The portal.
        portal: u32,
        /// The shard.
        shard: u8,
        /// How many there are.
        shards: u8,
    },
    /// A tunable has no such value, or not together with the others.
    Setting {
        /// The tunable.
        setting: Global,
        /// The value.
        value: i64,
    },
}

impl ChangeError {
    /// Its errno, positive (spec: LNet `api-ni.c`, `lnetctl`).
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Loopback | Self::UnknownInterface { .. } => ENODEV,
            Self::NidExists(_) | Self::InterfaceExists { .. } => EEXIST,
            Self::TooMany { .. } => ENOSPC,
            Self::UnknownNid(_) => ENOENT,
            Self::Wildcard(_)
            | Self::NetType(_)
            | Self::NoCredits(_)
            | Self::UnknownNet(_)
            | Self::Health(_)
            | Self::Portal(_)
            | Self::Policy { .. }
            | Self::PolicyShard { .. }
            | Self::Setting { .. } => EINVAL,
        }
    }
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => f.write_str("lo: not allowed, it is always there as it is"),
            Self::Wildcard(nid) => write!(f, "nid {nid}: that of one interface is expected"),
            Self::NetType(net) => write!(f, "net {net}: LND type not supported"),
            Self::NidExists(nid) => write!(f, "cannot add {nid}: it is a local nid already"),
            Self::InterfaceExists { net, interface } => {
                write!(f, "cannot add {interface} to {net}: it is on that net already")
            }
            Self::TooMany { max } => write!(f, "too many NIs: {max} at most, lo included"),
            Self::NoCredits(nid) => {
                write!(f, "no credits for {nid}: at least 1 is expected, and 1 for a peer")
            }
            Self::UnknownNet(net) => write!(f, "net {net} doesn't exist"),
            Self::UnknownInterface { net, interface } => write!(f, "{interface} is not on net {net}"),
            Self::UnknownNid(nid) => write!(f, "{nid} is not a local nid"),
            Self::Health(value) => write!(f, "health {value}: 0 to 1000 is expected"),
            Self::Portal(portal) => {
                write!(f, "policy of portal {portal}: portals are 0 to {}", PORTALS - 1)
            }
            Self::Policy { portal, error } => write!(f, "policy of portal {portal}: {error}"),
            Self::PolicyShard { portal, shard, shards } => {
                let last = shards.saturating_sub(1);
                write!(
                    f,
                    "policy of portal {portal}: shard {shard} of a node with {shards}: 0 to {last} are expected"
                )
            }
            Self::Setting { setting: setting @ Global::RetryCount, value } => {
                write!(
                    f,
                    "{setting} {value}: 0 to transaction_timeout is expected, 0 without health_sensitivity"
                )
            }
            Self::Setting { setting: setting @ Global::TransactionTimeout, value } => {
                write!(f, "{setting} {value}: more than retry_count is expected")
            }
            Self::Setting { setting, value } => {
                let (low, high) = setting.range();
                write!(f, "{setting} {value}: {low} to {high} is expected")
            }
        }
    }
}

impl core::error::Error for ChangeError {}

/// Why a request failed. Nothing has changed then, but for [`Self::Open`] with interfaces that are lost.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RequestError {
    /// A change of a batch is wrong.
    Change {
        /// Its place in the batch, from 0.
        index: usize,
        /// What is wrong.
        error: ChangeError,
    },
    /// A portal whose policy was to change has entries, or messages wait on it.
    PortalBusy {
        /// The portal.
        portal: u32,
        /// The place of the change in its batch, from 0.
        index: usize,
    },
    /// An interface could not be opened.
    Open {
        /// The place of the change in its batch, from 0.
        index: usize,
        /// The interface.
        nid: Nid,
        /// What its driver says.
        error: DriverError,
        /// Interfaces that the batch deletes and that could not be opened again.
        lost: alloc::vec::Vec<Nid>,
    },
    /// As many requests wait or are under way as may be.
    TooManyRequests {
        /// How many may be.
        max: usize,
    },
    /// There is no such request, or it cannot be cancelled.
    UnknownRequest(u64),
    /// It was cancelled.
    Cancelled,
    /// The NID to be pinged is a wildcard.
    PingWildcard(Nid),
    /// The NID that a ping is to come from is not a local one that is up.
    PingSource(Nid),
    /// No local interface that is up leads to the NID; or not the one that was named.
    PingUnreachable(Nid),
    /// No answer in time.
    PingTimeout {
        /// Who was asked.
        nid: Nid,
        /// How long was waited.
        timeout: Duration,
    },
    /// The ping was not sent, or its answer not received.
    Ping {
        /// Who was asked.
        nid: Nid,
        /// What the driver says.
        error: DriverError,
    },
    /// The answer is none.
    PingAnswer {
        /// Who was asked.
        nid: Nid,
        /// What is wrong with it.
        error: PingError,
    },
}

/// What the driver of an interface says of a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriverError {
    /// Its errno, positive.
    pub errno: i32,
    /// What went wrong, for people.
    pub message: String,
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl RequestError {
    /// Its errno, positive.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Change { error, .. } => error.errno(),
            Self::PortalBusy { .. } | Self::TooManyRequests { .. } => EBUSY,
            Self::Open { error, .. } | Self::Ping { error, .. } => error.errno,
            Self::UnknownRequest(_) => ENOENT,
            Self::Cancelled => ECANCELED,
            Self::PingWildcard(_) | Self::PingSource(_) => EINVAL,
            Self::PingUnreachable(_) => EHOSTUNREACH,
            Self::PingTimeout { .. } => ETIMEDOUT,
            Self::PingAnswer { .. } => EPROTO,
        }
    }

    /// The place in the batch of the change that failed, from 0.
    #[must_use]
    pub const fn index(&self) -> Option<usize> {
        match self {
            Self::Change { index, .. } | Self::PortalBusy { index, .. } | Self::Open { index, .. } => {
                Some(*index)
            }
            _ => None,
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Change { error, .. } => error.fmt(f),
            Self::PortalBusy { portal, .. } => {
                write!(
                    f,
                    "portal {portal} has entries, or messages wait on it: its policy is fixed until it has none"
                )
            }
            Self::Open { nid, error, lost, .. } => {
                write!(f, "cannot add LNet NI {nid}: {error}")?;
                lost.iter().try_for_each(|nid| write!(f, "; {nid} could not be opened again"))
            }
            Self::TooManyRequests { max } => write!(f, "{max} requests are under way, the most there can be"),
            Self::UnknownRequest(request) => write!(f, "no request {request} that could be cancelled"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::PingWildcard(nid) => {
                write!(f, "failed to ping {nid}: the nid of one interface is expected")
            }
            Self::PingSource(nid) => write!(f, "cannot ping from {nid}: it is not a local nid that is up"),
            Self::PingUnreachable(nid) => write!(f, "failed to ping {nid}: No route to host"),
            Self::PingTimeout { nid, timeout } => {
                write!(f, "failed to ping {nid}: no answer within {timeout:?}")
            }
            Self::Ping { nid, error } => write!(f, "failed to ping {nid}: {error}"),
            Self::PingAnswer { nid, error } => write!(f, "failed to ping {nid}: {error}"),
        }
    }
}

impl core::error::Error for RequestError {}
