//! One shard's part of an NI of the tcp LND.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use lnet_core::handle::ShardSet;
use lnet_core::lnd::NiId;
use lnet_io::blocking;
use lnet_io::reactor::tcp::socket::{Keepalive, SocketOptions, reserved_dialler};
use lnet_io::reactor::tcp::{ListenerId, TcpError};
use lnet_tcp_proto::SockTunables;
use lnet_wire::Nid;
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Source ports are tried from below this one down.
pub(super) const RESERVED_END: u16 = 1024;

/// One shard's part of an NI.
pub struct TcpPort {
    pub(crate) ni: NiId,
    pub(crate) nid: Nid,
    pub(crate) address: IpAddr,
    /// Incarnation of the NI: one number on all shards, and another one in each life of the NI.
    pub(crate) incarnation: u64,
    pub(crate) conns_per_peer: u8,
    /// The shards that have its connections.
    pub(crate) serving: ShardSet,
    /// Options of its sockets.
    pub(crate) options: SocketOptions,
    /// The network namespace of the NI.
    pub(crate) namespace: Arc<OwnedFd>,
    /// Where peers connect to, on the shard that accepts for all, until it listens. NIs with one address
    /// share them.
    pub(crate) listeners: Vec<OwnedFd>,
    /// Becomes readable when streams of the shard have news.
    pub(crate) ring: OwnedFd,
    /// What listens, on that shard.
    pub(crate) listening: Vec<ListenerId>,
}

impl lnet_io::driver::Port for TcpPort {
    fn ni(&self) -> NiId {
        self.ni
    }

    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.ring.as_fd()]
    }
}

impl TcpPort {
    /// Whether peers connect to both at the same address.
    pub(super) fn shares_address(&self, other: &Self) -> bool {
        (self.address, self.options.interface_index) == (other.address, other.options.interface_index)
    }

    /// A socket to dial this address with: bound to a privileged port below this one, or to any where the
    /// process may not do that; and its port.
    ///
    /// # Errors
    /// [`TcpError::Socket`]: what the kernel refused, or an address of the other family.
    pub(super) fn dialling_socket(&self, to: IpAddr, below: u16) -> Result<(OwnedFd, u16), TcpError> {
        if to.is_ipv4() != self.address.is_ipv4() {
            let address = SocketAddr::new(self.address, 0);
            return Err(TcpError::Socket { operation: "a dial", address, source: Errno::AFNOSUPPORT });
        }
        let make = || reserved_dialler(self.address, below, to, &self.options);
        match make() {
            // A thread of the application may drive the shard, and be in another namespace.
            Err(TcpError::Socket { source: Errno::ADDRNOTAVAIL | Errno::NODEV, .. }) => {
                let namespace = self.namespace.as_fd();
                let made = blocking::wait(|| {
                    // Without the right to enter it, the address is as unknown as before.
                    let _ = move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network));
                    make()
                });
                made.unwrap_or_else(|error| {
                    let source = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
                    let address = SocketAddr::new(self.address, 0);
                    Err(TcpError::Socket { operation: "a thread for the dial", address, source })
                })
            }
            made => made,
        }
    }
}

/// Options of the sockets of an NI on this interface.
pub(crate) fn socket_options(
    tunables: &SockTunables,
    tos: Option<u8>,
    interface_index: u32,
) -> SocketOptions {
    let seconds = |value: u32| value.min(u16::MAX.into()) as u16;
    let keepalive = Keepalive {
        idle_seconds: seconds(tunables.keepalive_idle_s),
        interval_seconds: seconds(tunables.keepalive_interval_s),
        probes: tunables.keepalive_count.min(127) as u8,
    };
    let bytes = |value: u32| (value != 0).then_some(value);
    SocketOptions {
        sends_at_once: !tunables.nagle,
        keepalive: (keepalive.idle_seconds != 0 && keepalive.probes != 0).then_some(keepalive),
        unacknowledged_max: Some(tunables.timeout),
        tos,
        send_buffer_bytes: bytes(tunables.tx_buffer_bytes),
        receive_buffer_bytes: bytes(tunables.rx_buffer_bytes),
        interface_index: Some(interface_index),
    }
}
