//! Why a node does not do what is asked of it, with the errno by which LNet says so.

use alloc::format;
use alloc::string::String;
use core::time::Duration;

use lnet_model::pattern::NO_NI;
use lnet_wire::ping::PingError;
use lnet_wire::steer::{PORTALS, PolicyError};
use lnet_wire::{Global, Net, Nid, Parameter};
use thiserror::Error;

use super::peers::PeerError;
use super::routes::RouteError;
use super::routing::RoutingError;
use crate::udsp::RuleError;

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
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// `lo` is neither added nor changed nor deleted.
    #[error("lo: not allowed, it is always there as it is")]
    Loopback,
    /// A wildcard, or an address that other nodes cannot know a host by, where one NI is meant.
    #[error("nid {0}: that of one NI is expected, with an address by which other hosts reach it")]
    Wildcard(Nid),
    /// No LND of this node serves nets of this type.
    #[error("net {0}: LND type not supported")]
    NetType(Net),
    /// The NID is a local one already.
    #[error("cannot add {0}: it is a local nid already")]
    NidExists(Nid),
    /// The interface is on the net already.
    #[error("cannot add {interface} to {net}: it is on that net already")]
    InterfaceExists {
        /// The net.
        net: Net,
        /// The interface.
        interface: String,
    },
    /// There are as many local NIs as may be.
    #[error("too many NIs: {max} at most, lo included")]
    TooMany {
        /// How many may be, `lo` included.
        max: u32,
    },
    /// No credits at all, or none for a peer.
    #[error("no credits for {0}: at least 1 is expected, and 1 for a peer")]
    NoCredits(Nid),
    /// There is no such net.
    #[error("net {0} doesn't exist")]
    UnknownNet(Net),
    /// The interface is not on the net.
    #[error("{interface} is not on net {net}")]
    UnknownInterface {
        /// The net.
        net: Net,
        /// The interface.
        interface: String,
    },
    /// The NID is not a local one.
    #[error("{0} is not a local nid")]
    UnknownNid(Nid),
    /// More than 1000.
    #[error("health {0}: 0 to 1000 is expected")]
    Health(u32),
    /// A portal index of 64 or more.
    #[error("policy of portal {0}: portals are 0 to {last}", last = PORTALS - 1)]
    Portal(u32),
    /// No valid policy.
    #[error("policy of portal {portal}: {error}")]
    Policy {
        /// The portal.
        portal: u32,
        /// What is wrong.
        error: PolicyError,
    },
    /// A policy names a shard that this node has not.
    #[error(
        "policy of portal {portal}: shard {shard} of a node with {shards}: 0 to {} are expected",
        .shards.saturating_sub(1)
    )]
    PolicyShard {
        /// The portal.
        portal: u32,
        /// The shard.
        shard: u8,
        /// How many there are.
        shards: u8,
    },
    /// A change of peers is wrong.
    #[error("{0}")]
    Peer(PeerError),
    /// A change of the selection policies is wrong.
    #[error("{0}")]
    Rule(RuleError),
    /// A change of the routes is wrong, or cannot be made while there are such.
    #[error("{0}")]
    Route(RouteError),
    /// Routing is not changed.
    #[error("{0}")]
    Routing(RoutingError),
    /// A tunable has no such value, or not together with the others.
    #[error("{setting} {value}: {range}")]
    Setting {
        /// The tunable.
        setting: Global,
        /// The value.
        value: i64,
        /// What it may be.
        range: SettingRange,
    },
    /// A parameter has no such value.
    #[error("{parameter} {value}: {} to {} is expected", .parameter.range().0, .parameter.range().1)]
    Parameter {
        /// The parameter.
        parameter: Parameter,
        /// The value.
        value: u32,
    },
}

/// What is expected of a tunable, beside the others as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SettingRange {
    /// Bounds that depend on no other setting: from and to.
    #[error("{0} to {1} is expected")]
    Fixed(u32, u32),
    /// Retries take a second each at least.
    #[error("0 to {0} is expected, since transaction_timeout is {0}")]
    Timeout(u32),
    /// The timeout has room for all retries.
    #[error(
        "{least} to {most} is expected, since retry_count is {0}",
        least = .0.saturating_add(1),
        most = u32::MAX
    )]
    Retries(u32),
    /// No NI is ever better than another one, so none is tried again.
    #[error("0 is expected, while health_sensitivity is 0")]
    NoHealth,
}

impl SettingRange {
    pub(super) const fn contains(self, value: u32) -> bool {
        match self {
            Self::Fixed(least, greatest) => least <= value && value <= greatest,
            Self::Timeout(timeout) => value <= timeout,
            Self::Retries(retries) => value > retries,
            Self::NoHealth => value == 0,
        }
    }
}

impl ChangeError {
    /// Its errno, positive (spec: LNet `api-ni.c`, `lnetctl`).
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Loopback | Self::UnknownInterface { .. } => ENODEV,
            Self::Peer(error) => error.errno(),
            Self::Rule(error) => error.errno(),
            Self::Route(error) => error.errno(),
            Self::Routing(error) => error.errno(),
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
            | Self::Setting { .. }
            | Self::Parameter { .. } => EINVAL,
        }
    }
}

/// Why a request failed. Nothing has changed then, but for [`Self::Open`] with NIs that are lost.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// A change of a batch is wrong.
    #[error("{error}")]
    Change {
        /// Its place in the batch, from 0.
        index: usize,
        /// What is wrong.
        error: ChangeError,
    },
    /// A portal whose policy was to change has entries, or messages wait on it.
    #[error("portal {portal} has entries, or messages wait on it: its policy is fixed until it has none")]
    PortalBusy {
        /// The portal.
        portal: u32,
        /// The place of the change in its batch, from 0.
        index: usize,
    },
    /// An NI could not be opened.
    #[error("cannot add LNet NI {nid}: {error}{}", lost_text(lost))]
    Open {
        /// The place of the change in its batch, from 0.
        index: usize,
        /// The NI.
        nid: Nid,
        /// What its driver says.
        error: DriverError,
        /// NIs that the batch deletes and that could not be opened again.
        lost: alloc::vec::Vec<Nid>,
    },
    /// The router buffers could not be made.
    #[error("cannot make the router buffers: {error}")]
    Pools {
        /// The place of the change in its batch, from 0.
        index: usize,
        /// Reason of the driver that makes them.
        error: DriverError,
    },
    /// Too many requests wait or are under way.
    #[error("{max} requests are under way, the most there can be")]
    TooManyRequests {
        /// How many may be.
        max: usize,
    },
    /// There is no such request, or it cannot be cancelled.
    #[error("no request {0} that could be cancelled")]
    UnknownRequest(u64),
    /// The request was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The NID to be pinged is a wildcard, or can be no NI's name.
    #[error("failed to ping {0}: {expected}", expected = NO_NI)]
    PingWildcard(Nid),
    /// The NID that a ping is to come from is not a local one that is up.
    #[error("cannot ping from {0}: it is not a local nid that is up")]
    PingSource(Nid),
    /// No local NI that is up leads to the NID; or not the one that was named.
    #[error("failed to ping {0}: No route to host")]
    PingUnreachable(Nid),
    /// No answer in time.
    #[error("failed to ping {nid}: no answer within {timeout:?}")]
    PingTimeout {
        /// Who was asked.
        nid: Nid,
        /// How long was waited.
        timeout: Duration,
    },
    /// The ping was not sent, or its answer not received.
    #[error("failed to ping {nid}: {error}")]
    Ping {
        /// Who was asked.
        nid: Nid,
        /// What the driver says.
        error: DriverError,
    },
    /// The answer is not about the node that was asked: its NID is not among those that it tells.
    #[error("failed to ping {0}: the answer does not name it")]
    PingStranger(Nid),
    /// The peer has gone, or there is no room for one.
    #[error("failed to discover {0}: there is no such peer any more")]
    PeerGone(Nid),
    /// No NID of an announced peer is that of another node on a net of this one.
    #[error("no nid of the announced peer is that of another node on a net of this one")]
    AnnouncedNone,
    /// The answer makes no sense.
    #[error("failed to ping {nid}: {error}")]
    PingAnswer {
        /// Who was asked.
        nid: Nid,
        /// What is wrong with it.
        error: PingError,
    },
}

/// Tells which NIs could not be opened again.
fn lost_text(lost: &[Nid]) -> String {
    lost.iter().map(|nid| format!("; {nid} could not be opened again")).collect()
}

/// A failure, in the words of an NI's driver.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{message}")]
pub struct DriverError {
    /// Its errno, positive.
    pub errno: i32,
    /// What went wrong, for people.
    pub message: String,
}

impl RequestError {
    /// Its errno, positive.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Change { error, .. } => error.errno(),
            Self::PortalBusy { .. } | Self::TooManyRequests { .. } => EBUSY,
            Self::Open { error, .. } | Self::Pools { error, .. } | Self::Ping { error, .. } => error.errno,
            Self::UnknownRequest(_) => ENOENT,
            Self::Cancelled => ECANCELED,
            Self::PingWildcard(_) | Self::PingSource(_) => EINVAL,
            Self::PingUnreachable(_) | Self::AnnouncedNone => EHOSTUNREACH,
            Self::PingTimeout { .. } => ETIMEDOUT,
            Self::PingAnswer { .. } | Self::PingStranger(_) => EPROTO,
            Self::PeerGone(_) => ENOENT,
        }
    }

    /// The place in the batch of the change that failed, from 0.
    #[must_use]
    pub const fn index(&self) -> Option<usize> {
        match self {
            Self::Change { index, .. }
            | Self::PortalBusy { index, .. }
            | Self::Open { index, .. }
            | Self::Pools { index, .. } => Some(*index),
            _ => None,
        }
    }
}
