//! What goes wrong, and with which error number it is told.

use std::io;
use std::path::PathBuf;

use lnet_control::server::BindError;
use lnet_control::{Errno, Refusal};
use lnet_core::lnd::{Cause, Status};
use lnet_core::node::{DriverError, RequestError};
use thiserror::Error;

use crate::api::LnetError;
use crate::bpf::BpfError;
use crate::netlink::NetlinkError;
use crate::node::NodeError;

/// Why a node cannot be managed (any more).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// It has NIs that nobody asked for by a request.
    #[error(
        "the node was started with NIs: start it without (NodeConfig::loopback), and add them by requests"
    )]
    HasNis,
    /// The control socket cannot be had.
    #[error(transparent)]
    Socket(#[from] BindError),
    /// The start-up document cannot be read.
    #[error("cannot read the start-up document {path}: {error}")]
    Document {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// What the start-up document says cannot be done.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// A shard has ended, or frames cannot be let in.
    #[error(transparent)]
    Lnet(#[from] LnetError),
    /// The kernel gives no async runtime.
    #[error("cannot start the control thread's runtime: {0}")]
    Runtime(#[source] io::Error),
}

/// The refusal of a request, with the place of the change that it is about.
pub(super) fn refusal(error: &RequestError, positions: &[usize]) -> Refusal {
    let refusal = Refusal::new(errno(error.errno()), error.to_string());
    match error.index().and_then(|index| positions.get(index)) {
        Some(position) => refusal.of_change(*position),
        None => refusal,
    }
}

/// What an LND says of an NI that it does not open.
pub(super) fn driver_error(error: &LnetError) -> DriverError {
    let number = match error {
        LnetError::Node(error) => node_errno(error),
        LnetError::Watch(_) => Errno::NOMEM,
        _ => Errno::IO,
    };
    let way_out = match error {
        LnetError::Node(NodeError::Frames { .. }) => "; more memory is given at the start (lnetd --memory)",
        LnetError::Node(NodeError::TooManyWatches { .. }) => {
            "; more are given at the start (lnetd --queues-max)"
        }
        _ => "",
    };
    DriverError { errno: number.0.into(), message: format!("{error}{way_out}") }
}

/// How a GET failed.
pub(super) fn failed_get(status: Status) -> DriverError {
    let cause = match status {
        Status::Ok => Cause::Timeout,
        Status::NeverSent(cause) | Status::Unknown(cause) => cause,
    };
    let (number, message) = match cause {
        Cause::Unreachable => (Errno::HOSTUNREACH, "No route to host"),
        Cause::Timeout | Cause::CreditTimeout => (Errno::TIMEDOUT, "Connection timed out"),
        Cause::Cancelled => (Errno::CANCELED, "the local interface went away"),
        Cause::Simulated(_) => (Errno::INVAL, "Invalid argument: a fault rule failed it"),
        _ => (Errno::IO, "Input/output error"),
    };
    DriverError { errno: number.0.into(), message: message.to_owned() }
}

pub(super) fn stopped(error: &LnetError) -> Refusal {
    Refusal::new(Errno::SHUTDOWN, error.to_string())
}

pub(super) fn netlink_errno(error: &NetlinkError) -> Errno {
    match error {
        NetlinkError::NoPermission { .. } | NetlinkError::PortPrivileged { .. } => Errno::PERM,
        NetlinkError::PortInUse { .. } => Errno::ADDRINUSE,
        NetlinkError::NotEthernet { .. } => Errno::INVAL,
        // An interface that is absent or has no address (spec: LNet's errno of `net add`).
        _ => Errno::NETDOWN,
    }
}

fn node_errno(error: &NodeError) -> Errno {
    match error {
        NodeError::Netlink(error) => netlink_errno(error),
        NodeError::Down(_) | NodeError::NoSuchAddress { .. } => Errno::NETDOWN,
        NodeError::DuplicateNid(_) | NodeError::DuplicateAddress { .. } => Errno::EXIST,
        NodeError::TooManyNis { .. } | NodeError::TooManyWatches { .. } | NodeError::Frames { .. } => {
            Errno::NOSPC
        }
        NodeError::Bpf(BpfError::Privilege { .. }) => Errno::PERM,
        NodeError::NoMode { sockets, .. } => node_errno(sockets),
        NodeError::Socket(error) if error.is_not_permitted() => Errno::PERM,
        NodeError::Umem(_) => Errno::NOMEM,
        _ => Errno::INVAL,
    }
}

fn errno(number: i32) -> Errno {
    u8::try_from(number).map_or(Errno::IO, Errno)
}

#[cfg(test)]
mod tests {
    use lnet_core::health::HealthStatus;

    use super::*;

    #[test]
    fn a_get_fails_with_the_number_of_its_cause() {
        for (cause, expected) in [
            (Cause::Unreachable, Errno::HOSTUNREACH),
            (Cause::Timeout, Errno::TIMEDOUT),
            (Cause::CreditTimeout, Errno::TIMEDOUT),
            (Cause::Cancelled, Errno::CANCELED),
            (Cause::Device, Errno::IO),
            (Cause::Simulated(HealthStatus::LocalDropped), Errno::INVAL),
        ] {
            for status in [Status::NeverSent(cause), Status::Unknown(cause)] {
                assert_eq!(failed_get(status).errno, i32::from(expected.0), "{status:?}");
            }
        }
    }
}
