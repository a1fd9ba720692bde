//! The error numbers by which the state machine is told of failures.

use std::io::ErrorKind;

use lnet_core::lnd::{Cause, Status};
use lnet_core::node::DriverError;
use lnet_io::netlink::NetlinkError;
use rustix::io::Errno;

use super::LnetError;
use crate::node::{ConfigError, LndError, NodeError};
use lnet_io::kind::InterfaceError;
use lnet_tcp::TcpNiError;
use lnet_xdp::XdpError;
use lnet_xdp::bpf::BpfError;

/// What an LND says of an NI that it does not open.
pub(super) fn driver_error(error: &LnetError) -> DriverError {
    let number = match error {
        LnetError::Node(error) => node_errno(error),
        LnetError::Watch(_) => Errno::NOMEM,
        _ => Errno::IO,
    };
    DriverError { errno: number.raw_os_error(), message: error.to_string() }
}

/// How a GET failed.
pub(super) fn failed_get(status: Status) -> DriverError {
    let cause = match status {
        Status::Ok => Cause::Timeout,
        Status::NeverSent(cause) | Status::Unknown(cause) => cause,
    };
    let (number, message) = match cause {
        Cause::System(errno) => return system_error(errno.into()),
        Cause::Unreachable => (Errno::HOSTUNREACH, "No route to host"),
        Cause::Timeout | Cause::CreditTimeout => (Errno::TIMEDOUT, "Connection timed out"),
        Cause::Cancelled => (Errno::CANCELED, "the local interface went away"),
        Cause::Simulated(_) => (Errno::INVAL, "Invalid argument: a fault rule failed it"),
        _ => (Errno::IO, "Input/output error"),
    };
    DriverError { errno: number.raw_os_error(), message: message.to_owned() }
}

/// An errno, positive, and what the system says of it.
fn system_error(errno: i32) -> DriverError {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    let message = text.split(" (os error").next().unwrap_or_default().to_owned();
    DriverError { errno, message }
}

/// The error number of a refusal by the kernel that concerns an NI, as `net add` tells it.
#[must_use]
pub fn netlink_errno(error: &NetlinkError) -> Errno {
    match error {
        NetlinkError::NoPermission { .. } => Errno::PERM,
        error if error.is_port(ErrorKind::PermissionDenied) => Errno::PERM,
        error if error.is_port(ErrorKind::AddrInUse) => Errno::ADDRINUSE,
        NetlinkError::Loopback { .. } => Errno::INVAL,
        // An interface that is absent or has no address (LNet's errno of `net add`).
        _ => Errno::NETDOWN,
    }
}

fn node_errno(error: &NodeError) -> Errno {
    match error {
        NodeError::Lnd(LndError::Xdp(error)) => xdp_errno(error),
        NodeError::Lnd(LndError::Tcp(TcpNiError::Interface(error))) => interface_errno(error),
        NodeError::Config(ConfigError::DuplicateAddress { .. }) => Errno::EXIST,
        _ => Errno::INVAL,
    }
}

fn interface_errno(error: &InterfaceError) -> Errno {
    match error {
        InterfaceError::Netlink(error) => netlink_errno(error),
        InterfaceError::Down(_) | InterfaceError::NoSuchAddress { .. } => Errno::NETDOWN,
        _ => Errno::INVAL,
    }
}

fn xdp_errno(error: &XdpError) -> Errno {
    match error {
        XdpError::Interface(error) => interface_errno(error),
        XdpError::TooManyWatches { .. } | XdpError::Frames { .. } => Errno::NOSPC,
        XdpError::Bpf(BpfError::Privilege { .. }) => Errno::PERM,
        XdpError::NoMode { sockets, .. } => xdp_errno(sockets),
        XdpError::Socket(error) if error.is_not_permitted() => Errno::PERM,
        XdpError::Socket(error) if error.is_busy() => Errno::BUSY,
        XdpError::Umem(_) => Errno::NOMEM,
        _ => Errno::INVAL,
    }
}

#[cfg(test)]
mod tests {
    use lnet_core::health::HealthStatus;

    use super::*;

    #[test]
    fn a_get_fails_with_the_number_of_its_cause() {
        for (cause, expected) in [
            (Cause::Unreachable, Errno::HOSTUNREACH),
            (Cause::System(111), Errno::CONNREFUSED),
            (Cause::System(110), Errno::TIMEDOUT),
            (Cause::Timeout, Errno::TIMEDOUT),
            (Cause::CreditTimeout, Errno::TIMEDOUT),
            (Cause::Cancelled, Errno::CANCELED),
            (Cause::Device, Errno::IO),
            (Cause::Simulated(HealthStatus::LocalDropped), Errno::INVAL),
        ] {
            for status in [Status::NeverSent(cause), Status::Unknown(cause)] {
                assert_eq!(failed_get(status).errno, expected.raw_os_error(), "{status:?}");
            }
        }
        assert_eq!(failed_get(Status::NeverSent(Cause::System(111))).message, "Connection refused");
    }
}
