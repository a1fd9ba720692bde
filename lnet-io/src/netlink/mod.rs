//! What a node learns from the kernel by netlink: its interfaces and the MAC addresses of next hops.
//!
//! Everything here sees the network namespace of the thread that calls: netlink answers for it, while sysfs
//! answers for the namespace it was mounted in.

mod features;
mod generic;
mod interface;
mod messages;
mod neighbours;
mod netdev;
mod resolver;
mod tags;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use futures_util::StreamExt;
use rtnetlink::Handle;
use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;

pub use features::cuts_runs;
pub use interface::{
    Interface, LinkPackets, Role, default_interfaces, device_of, interfaces, is_local, link_speed_mbits,
    packets, queues_now,
};
pub use neighbours::{Asker, ENTRIES_MAX, MacHook, Neighbours, Resolution, Unreachable, WakeHook};
pub use netdev::{XdpFeatures, xdp_features};
pub use tags::VlanTags;

/// An Ethernet address, in the order of its bytes on the wire.
pub type Mac = [u8; 6];

/// Says why a node of the same host is not reached over xdp. The kernel sends what is for one of its own
/// addresses by `lo`, past all rings. A socket that is bound to an interface leads to that interface's own
/// addresses alone, by IPv4 as by IPv6: it looks for others on the link.
#[derive(Clone, Copy, Debug)]
pub struct SameHost(pub IpAddr);

impl fmt::Display for SameHost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} is an address of this host, to which the kernel leads by `lo`, past rings and sockets of other \
             interfaces: two nodes of one host reach each other by tcp, if both have sockets on the same interface \
             (mode socket), or each a network namespace of its own",
            self.0
        )
    }
}

/// Why the kernel did not tell or give what a node needs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// No interface of this name in this network namespace.
    #[error("no interface {name:?} in this network namespace, expected one of: {present}")]
    NoSuchInterface {
        /// The name that was asked for.
        name: String,
        /// The names that there are but the loopback's, separated by commas.
        present: String,
    },
    /// No address of the interface has this label.
    #[error(
        "no address has the label {label:?}, expected one of: {present} (`ip address add ... label {label}`)"
    )]
    NoSuchLabel {
        /// The label that was asked for.
        label: String,
        /// The labels that there are, separated by commas.
        present: String,
    },
    /// No interface of this index in this network namespace.
    #[error("no interface with index {index} in this network namespace (was it deleted or moved?)")]
    NoSuchIndex {
        /// The index that was asked for.
        index: u32,
    },
    /// The interface leads to this host alone.
    #[error("interface {name:?} is the loopback, which no other host is reached by: use another interface")]
    Loopback {
        /// Its name.
        name: String,
    },
    /// The kernel wants a capability for this.
    #[error("no permission to {what}: run as root or give this program CAP_NET_ADMIN")]
    NoPermission {
        /// What was tried.
        what: &'static str,
    },
    /// The kernel refused a request, or a socket or thread could not be made.
    #[error("cannot {what}: {source}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A port could not be reserved.
    #[error("udp port {port} of {address} {}", port_hint(source))]
    Port {
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What the kernel's answer to a wish for a port means, and the way out.
fn port_hint(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "is in use: stop the program that has it or configure another port".into(),
        // The port is below the first unprivileged one.
        io::ErrorKind::PermissionDenied => {
            "is not permitted: use a port from 1024 up, give this program CAP_NET_BIND_SERVICE, or lower the sysctl \
             net.ipv4.ip_unprivileged_port_start"
                .into()
        }
        io::ErrorKind::AddrNotAvailable => {
            "cannot be reserved: the address is not assigned to an interface here; add it or use another".into()
        }
        _ => format!("cannot be reserved: {error}"),
    }
}

impl NetlinkError {
    /// Whether a port could not be reserved because of this.
    #[must_use]
    pub fn is_port(&self, kind: io::ErrorKind) -> bool {
        matches!(self, Self::Port { source, .. } if source.kind() == kind)
    }

    /// Sorts an I/O error: a missing capability is named as such.
    fn from_io(what: &'static str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::NoPermission { what },
            _ => Self::Kernel { what, source },
        }
    }

    fn from_request(what: &'static str, error: rtnetlink::Error) -> Self {
        Self::from_io(what, to_io(error))
    }
}

/// The errno inside a netlink answer, or the error as text where there is none.
fn to_io(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other.to_string()),
    }
}

/// Binds `port` of `address` and never reads: while the socket lives, no other program can have the port,
/// and the kernel answers frames that XDP passed up with silence instead of "port unreachable".
///
/// # Errors
/// [`NetlinkError::Port`] with what the kernel said.
pub fn reserve_port(address: IpAddr, port: u16) -> Result<UdpSocket, NetlinkError> {
    let refused = |source| NetlinkError::Port { address, port, source };
    let socket = UdpSocket::bind(SocketAddr::new(address, port)).map_err(refused)?;
    // The kernel rounds 0 up to its smallest buffer (socket(7): SO_RCVBUF).
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 0).map_err(|errno| refused(errno.into()))?;
    Ok(socket)
}

/// A runtime for the calling thread alone.
fn runtime() -> Result<tokio::runtime::Runtime, NetlinkError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| NetlinkError::Kernel { what: "start a tokio runtime", source })
}

/// Opens a route netlink socket for requests, served by a task of the current runtime.
fn connect() -> Result<Handle, NetlinkError> {
    let (connection, handle, _) = rtnetlink::new_connection()
        .map_err(|source| NetlinkError::from_io("open a route netlink socket", source))?;
    tokio::spawn(connection);
    Ok(handle)
}

/// Sends one request that is no dump and gives its answer; `None` for a bare acknowledgement.
async fn request(
    handle: &mut Handle,
    message: RouteNetlinkMessage,
    flags: u16,
) -> Result<Option<RouteNetlinkMessage>, rtnetlink::Error> {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = NLM_F_REQUEST | flags;
    let mut answers = handle.request(message)?;
    while let Some(answer) = answers.next().await {
        match answer.payload {
            NetlinkPayload::InnerMessage(inner) => return Ok(Some(inner)),
            NetlinkPayload::Error(error) => return Err(rtnetlink::Error::NetlinkError(error)),
            _ => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn a_reserved_port_is_ours_until_dropped() {
        let ours = reserve_port(LOOPBACK, 0).unwrap();
        let port = ours.local_addr().unwrap().port();
        let refused = reserve_port(LOOPBACK, port).unwrap_err();
        assert!(refused.is_port(io::ErrorKind::AddrInUse), "{refused}");
        let text = refused.to_string();
        assert!(text.contains(&format!("port {port} of 127.0.0.1 is in use")), "{text}");
        drop(ours);
        reserve_port(LOOPBACK, port).unwrap();
    }

    #[test]
    fn a_reserved_port_buffers_next_to_nothing() {
        let ours = reserve_port(LOOPBACK, 0).unwrap();
        let bytes = rustix::net::sockopt::socket_recv_buffer_size(&ours).unwrap();
        assert!(bytes <= 4096, "{bytes} bytes of receive buffer");
    }

    #[test]
    fn a_foreign_address_cannot_be_reserved() {
        // TEST-NET-1 (RFC 5737) is not assigned to any host.
        let refused = reserve_port(IpAddr::from([192, 0, 2, 1]), 0).unwrap_err();
        assert!(refused.is_port(io::ErrorKind::AddrNotAvailable), "{refused}");
        assert!(
            refused.to_string().contains("192.0.2.1 cannot be reserved: the address is not assigned"),
            "{refused}"
        );
    }
}
