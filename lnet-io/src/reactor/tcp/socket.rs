//! TCP sockets: those that listen, those that dial, and their options.

use core::ops::RangeInclusive;
use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_ip_tos, set_ipv6_tclass, set_ipv6_v6only, set_socket_keepalive, set_socket_recv_buffer_size,
    set_socket_reuseaddr, set_socket_reuseport, set_socket_send_buffer_size, set_tcp_keepcnt,
    set_tcp_keepidle, set_tcp_keepintvl, set_tcp_nodelay, set_tcp_user_timeout,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with};

use super::super::socket::{bind_to_interface, scoped};
use super::TcpError;

/// The source ports that tell a peer of a privileged process, to be tried from the last to the first
/// (`LNET_ACCEPTOR_MIN_RESERVED_PORT` and `_MAX_`, net/lnet/acceptor.c).
pub(crate) const RESERVED_PORTS: RangeInclusive<u16> = 512..=1023;

/// How a socket finds out that its peer has gone without a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keepalive {
    /// Seconds of silence before the first probe.
    pub idle_seconds: u16,
    /// Seconds between two probes.
    pub interval_seconds: u16,
    /// Probes without an answer that end the stream, at most 127.
    pub probes: u8,
}

/// Options of a socket. Streams that are accepted have those of the socket that listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketOptions {
    /// Whether small segments leave at once (`TCP_NODELAY`).
    pub sends_at_once: bool,
    /// `None` for none.
    pub keepalive: Option<Keepalive>,
    /// How long the peer may leave bytes unacknowledged before the stream ends; without, the kernel decides.
    pub unacknowledged_max: Option<Duration>,
    /// The type of service, or traffic class, of packets.
    pub tos: Option<u8>,
    /// Bytes of the kernel's memory for what is sent; without, the kernel adapts them.
    pub send_buffer_bytes: Option<u32>,
    /// Bytes of the kernel's memory for what has arrived, likewise.
    pub receive_buffer_bytes: Option<u32>,
    /// The interface that all packets go by.
    pub interface_index: Option<u32>,
}

impl Default for SocketOptions {
    fn default() -> Self {
        let keepalive = Keepalive { idle_seconds: 30, interval_seconds: 5, probes: 5 };
        Self {
            sends_at_once: true,
            keepalive: Some(keepalive),
            unacknowledged_max: None,
            tos: None,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            interface_index: None,
        }
    }
}

/// The index of `lo` in each network namespace (`LOOPBACK_IFINDEX`, include/net/flow.h).
const LOOPBACK_INDEX: u32 = 1;

impl SocketOptions {
    /// Binds these options to `lo`, where Linux has all that a host sends to IPv4 addresses of its own,
    /// whichever interfaces have them.
    pub const fn loopback(&self) -> Self {
        Self { interface_index: Some(LOOPBACK_INDEX), ..*self }
    }
}

/// What was tried, and the kernel's answer.
type Refused = (&'static str, Errno);

fn at(address: SocketAddr) -> impl Fn(Refused) -> TcpError {
    move |(operation, source)| TcpError::Socket { operation, address, source }
}

/// A socket that listens at `address`, with so many connections that wait to be accepted. Where it
/// `shares_port`, others of the same user that do so too may listen there, and the kernel spreads connections
/// over them.
///
/// # Errors
/// [`TcpError::Socket`] with what the kernel refused.
pub fn listener(
    address: SocketAddr,
    backlog: u16,
    shares_port: bool,
    options: &SocketOptions,
) -> Result<OwnedFd, TcpError> {
    let open = || {
        let refused = |operation| move |errno| (operation, errno);
        let socket = open(address, options)?;
        set_socket_reuseaddr(&socket, true).map_err(refused("SO_REUSEADDR"))?;
        set_socket_reuseport(&socket, shares_port).map_err(refused("SO_REUSEPORT"))?;
        bind(&socket, &scoped(address, options.interface_index)).map_err(refused("bind"))?;
        listen(&socket, i32::from(backlog)).map_err(refused("listen"))?;
        Ok(socket)
    };
    open().map_err(at(address))
}

/// A socket to dial this address with, bound to the last reserved port before `below` that is
/// free, and that port. Several sockets may have the same port, each to another destination: where connecting
/// ends with `EADDRNOTAVAIL` or `EADDRINUSE`, the next socket is to be bound below it. Where the process may
/// bind to none of them, it is bound to any port, which counts as 0: the peer does not take its word then,
/// and perhaps not its connection. The source is `to` where that is an IPv6 address of another interface of
/// this host.
///
/// # Errors
/// [`TcpError::Socket`] with what the kernel refused: `EADDRINUSE` if all ports are taken.
pub fn reserved_dialler(
    source: IpAddr,
    below: u16,
    to: IpAddr,
    options: &SocketOptions,
) -> Result<(OwnedFd, u16), TcpError> {
    let mut refused = ("bind", Errno::ADDRINUSE);
    // Linux has an IPv6 address of its own at the interface that has the address, and routes no such packet
    // by `lo` (`addrconf_f6i_alloc`). An interface leads to its own addresses alone, and a listener that is
    // bound to one answers no others. So another interface's address is dialled from itself.
    let (source, options) = match is_of_host(to, None) {
        true if to.is_ipv4() => (source, options.loopback()),
        true if !is_of_host(to, options.interface_index) => {
            (to, SocketOptions { interface_index: None, ..*options })
        }
        _ => (source, *options),
    };
    let open = |address| {
        let socket = open(address, &options)?;
        set_socket_reuseaddr(&socket, true).map_err(|errno| ("SO_REUSEADDR", errno))?;
        bind(&socket, &scoped(address, options.interface_index)).map_err(|errno| ("bind", errno))?;
        Ok(socket)
    };
    for port in RESERVED_PORTS.rev().filter(|port| *port < below) {
        let address = SocketAddr::new(source, port);
        match open(address) {
            Ok(socket) => return Ok((socket, port)),
            Err(next @ ("bind", Errno::ADDRINUSE)) => refused = next,
            Err(("bind", Errno::ACCESS)) => {
                let any = SocketAddr::new(source, 0);
                return open(any).map(|socket| (socket, 0)).map_err(at(any));
            }
            Err(refused) => return Err(at(address)(refused)),
        }
    }
    Err(at(SocketAddr::new(source, 0))(refused))
}

/// Whether an address is one of this host's, or of this interface's: the kernel would send from it what is
/// sent to it.
fn is_of_host(address: IpAddr, interface_index: Option<u32>) -> bool {
    let any: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // A datagram socket sends nothing when it is connected. Any port will do.
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        if let Some(index) = interface_index {
            bind_to_interface(&socket, index)?;
        }
        socket.connect((address, RESERVED_PORTS.start().to_owned()))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

/// Has a socket's packets have this type of service, or traffic class; `None` for the system's.
///
/// # Errors
/// [`TcpError::Socket`] with what the kernel refused.
pub(super) fn set_tos(socket: &OwnedFd, tos: Option<u8>) -> Result<(), TcpError> {
    let address = local_address(socket);
    give_tos(socket, address.is_ipv4(), tos.unwrap_or(0)).map_err(at(address))
}

/// Has a stream end when its peer leaves bytes unacknowledged for so long; `None` for the kernel's choice.
///
/// # Errors
/// [`TcpError::Socket`] with what the kernel refused.
pub(super) fn set_unacknowledged_max(socket: &OwnedFd, limit: Option<Duration>) -> Result<(), TcpError> {
    give_unacknowledged_max(socket, limit.unwrap_or(Duration::ZERO)).map_err(at(local_address(socket)))
}

fn local_address(socket: &OwnedFd) -> SocketAddr {
    let local = rustix::net::getsockname(socket).and_then(SocketAddr::try_from);
    local.unwrap_or(SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 0))
}

/// Bytes in a socket's queue to be sent, of which the peer's system has not acknowledged the last ones.
pub(super) fn unacknowledged_bytes(socket: &OwnedFd) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ, which is SIOCOUTQ, writes one int, and `bytes` is one.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if status == 0 { u64::try_from(bytes).unwrap_or(0) } else { 0 }
}

fn give_tos(socket: &OwnedFd, is_ipv4: bool, tos: u8) -> Result<(), Refused> {
    if is_ipv4 {
        set_ip_tos(socket, tos).map_err(|errno| ("IP_TOS", errno))
    } else {
        set_ipv6_tclass(socket, u32::from(tos)).map_err(|errno| ("IPV6_TCLASS", errno))
    }
}

fn give_unacknowledged_max(socket: &OwnedFd, limit: Duration) -> Result<(), Refused> {
    // The kernel has a signed number.
    let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX).min(i32::MAX as u32);
    set_tcp_user_timeout(socket, limit_ms).map_err(|errno| ("TCP_USER_TIMEOUT", errno))
}

fn open(address: SocketAddr, options: &SocketOptions) -> Result<OwnedFd, Refused> {
    let refused = |operation| move |errno| (operation, errno);
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))
        .map_err(refused("socket"))?;
    if let Some(index) = options.interface_index {
        bind_to_interface(&socket, index).map_err(refused("SO_BINDTOIFINDEX"))?;
    }
    if !address.is_ipv4() {
        set_ipv6_v6only(&socket, true).map_err(refused("IPV6_V6ONLY"))?;
    }
    set_tcp_nodelay(&socket, options.sends_at_once).map_err(refused("TCP_NODELAY"))?;
    if let Some(keepalive) = options.keepalive {
        let seconds = |seconds: u16| Duration::from_secs(u64::from(seconds));
        set_socket_keepalive(&socket, true).map_err(refused("SO_KEEPALIVE"))?;
        set_tcp_keepidle(&socket, seconds(keepalive.idle_seconds)).map_err(refused("TCP_KEEPIDLE"))?;
        set_tcp_keepintvl(&socket, seconds(keepalive.interval_seconds)).map_err(refused("TCP_KEEPINTVL"))?;
        set_tcp_keepcnt(&socket, u32::from(keepalive.probes)).map_err(refused("TCP_KEEPCNT"))?;
    }
    if let Some(limit) = options.unacknowledged_max {
        give_unacknowledged_max(&socket, limit)?;
    }
    if let Some(tos) = options.tos {
        give_tos(&socket, address.is_ipv4(), tos)?;
    }
    if let Some(bytes) = options.send_buffer_bytes {
        set_socket_send_buffer_size(&socket, bytes as usize).map_err(refused("SO_SNDBUF"))?;
    }
    if let Some(bytes) = options.receive_buffer_bytes {
        set_socket_recv_buffer_size(&socket, bytes as usize).map_err(refused("SO_RCVBUF"))?;
    }
    Ok(socket)
}
