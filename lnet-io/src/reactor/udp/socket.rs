//! UDP sockets as the shards of a node need them: one for each, all on one address and port.

use core::ffi::{c_int, c_void};
use core::mem::size_of_val;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{
    self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
    set_ipv6_v6only, set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_reuseport,
    set_socket_send_buffer_size,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, socket_with};

use super::super::socket::{bind_to_interface, scoped, set_option};
use super::UdpError;

/// Bytes that a socket may hold of what has arrived, where the process may say so; else as many as any may.
const RECEIVE_BYTES: usize = 8 << 20;
/// Bytes that a socket may hold of what it sends; the kernel cuts this down to `net.core.wmem_max`.
const SEND_BYTES: usize = 4 << 20;

// Values of include/uapi/asm-generic/socket.h, which every architecture of the compiler's but parisc and
// sparc follows.
const SO_NO_CHECK: c_int = 11;
const SO_ATTACH_REUSEPORT_CBPF: c_int = 51;
const SO_MEMINFO: c_int = 55;
/// Up to `SK_MEMINFO_DROPS` (include/uapi/linux/sock_diag.h).
const MEMORY_FACTS: usize = 9;

/// `BPF_RET | BPF_K` of 0 bytes: what arrives is dropped (include/uapi/linux/bpf_common.h).
const DROP: Instruction = Instruction { code: 0x06, jump_true: 0, jump_false: 0, operand: 0 };

/// An instruction of classic BPF (`struct sock_filter`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip if a comparison holds.
    pub jump_true: u8,
    /// Instructions to skip if it does not.
    pub jump_false: u8,
    /// Operand.
    pub operand: u32,
}

/// A UDP socket on an address and port that others of the same user may share: datagrams are sent whole or
/// not at all.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    address: SocketAddr,
}

impl UdpSocket {
    /// Binds a socket to `address`, and to the interface of this index if there is one: what it sends leaves
    /// by that, and what arrives by others is not its.
    ///
    /// # Errors
    /// [`UdpError::Socket`] names what the kernel refused.
    pub fn bind(address: SocketAddr, interface_index: Option<u32>) -> Result<Self, UdpError> {
        Self::open(address, interface_index, true).map_err(|(operation, source)| UdpError::Socket {
            operation,
            address,
            source,
        })
    }

    /// Binds a socket to an address of the interface of this index, and to a port that the kernel chooses and
    /// no other socket has: it sends by that interface, and all that arrives is dropped.
    ///
    /// # Errors
    /// [`UdpError::Socket`] names what the kernel refused.
    pub fn to_send(local_ip: IpAddr, interface_index: u32) -> Result<Self, UdpError> {
        let address = SocketAddr::new(local_ip, 0);
        let made = Self::open(address, Some(interface_index), false).and_then(|socket| {
            socket.drop_arrivals().map_err(|errno| ("SO_ATTACH_FILTER", errno))?;
            Ok(socket)
        });
        made.map_err(|(operation, source)| UdpError::Socket { operation, address, source })
    }

    /// Has the kernel drop all that arrives.
    pub(super) fn drop_arrivals(&self) -> Result<(), Errno> {
        let drop_all = [DROP];
        let program = libc::sock_fprog { len: 1, filter: drop_all.as_ptr().cast_mut().cast() };
        set_option(&self.fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    fn open(
        address: SocketAddr,
        interface_index: Option<u32>,
        is_shared: bool,
    ) -> Result<Self, (&'static str, Errno)> {
        let refused = |operation| move |errno| (operation, errno);
        let address = scoped(address, interface_index);
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd =
            socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP)).map_err(refused("socket"))?;
        // The kernel may choose a port that another socket shares for one that would share it.
        set_socket_reuseport(&fd, is_shared).map_err(refused("SO_REUSEPORT"))?;
        if let Some(index) = interface_index {
            bind_to_interface(&fd, index).map_err(refused("SO_BINDTOIFINDEX"))?;
        }
        if address.is_ipv4() {
            set_ip_mtu_discover(&fd, Ipv4PathMtuDiscovery::DO).map_err(refused("IP_MTU_DISCOVER"))?;
        } else {
            set_ipv6_v6only(&fd, true).map_err(refused("IPV6_V6ONLY"))?;
            set_option(&fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, &1)
                .map_err(refused("UDP_NO_CHECK6_RX"))?;
            set_ipv6_mtu_discover(&fd, Ipv6PathMtuDiscovery::DO).map_err(refused("IPV6_MTU_DISCOVER"))?;
        }
        // Needs CAP_NET_ADMIN; without it the kernel cuts the size down to `net.core.rmem_max`.
        if set_socket_recv_buffer_size_force(&fd, RECEIVE_BYTES).is_err() {
            set_socket_recv_buffer_size(&fd, RECEIVE_BYTES).map_err(refused("SO_RCVBUF"))?;
        }
        set_socket_send_buffer_size(&fd, SEND_BYTES).map_err(refused("SO_SNDBUF"))?;
        bind(&fd, &address).map_err(refused("bind"))?;
        Ok(Self { fd, address })
    }

    /// Whether the kernel knows runs that are sent (udp(7): `UDP_SEGMENT`): it takes the length of their
    /// datagrams, 0 as before, which each run names anew.
    pub(super) fn try_runs(&self) -> Result<(), Errno> {
        set_option::<c_int>(&self.fd, libc::SOL_UDP, libc::UDP_SEGMENT, &0)
    }

    /// Has the kernel put datagrams of one sender behind each other where it can (udp(7): `UDP_GRO`).
    pub(super) fn receive_runs(&self) -> Result<(), Errno> {
        set_option::<c_int>(&self.fd, libc::SOL_UDP, libc::UDP_GRO, &1)
    }

    /// Has the kernel compute no checksums, which a zero stands for over IPv4 (RFC 768): our frames have
    /// their own. Runs need those of UDP: the kernel refuses them then with `EINVAL`.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn omit_checksums(&self) -> Result<(), Errno> {
        match self.address {
            SocketAddr::V4(_) => set_option::<c_int>(&self.fd, libc::SOL_SOCKET, SO_NO_CHECK, &1),
            SocketAddr::V6(_) => Ok(()),
        }
    }

    /// Duplicate of the socket.
    ///
    /// # Errors
    /// [`UdpError::Socket`] if there are too many descriptors.
    pub fn duplicate(&self) -> Result<Self, UdpError> {
        let duplicated = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0);
        let address = self.address;
        let refused = |source| UdpError::Socket { operation: "F_DUPFD_CLOEXEC", address, source };
        Ok(Self { fd: duplicated.map_err(refused)?, address })
    }

    /// Has the kernel choose among the sockets of this address and port by a program, which every one of them
    /// shares: it is given the datagram's payload and returns a socket's number, in the order of their
    /// binding. Where that does not exist, the kernel goes by addresses and ports (socket(7):
    /// `SO_REUSEPORT`).
    ///
    /// # Errors
    /// [`UdpError::Socket`] with what the kernel refused.
    pub fn choose_by(&self, program: &[Instruction]) -> Result<(), UdpError> {
        let refused = |source| UdpError::Socket {
            operation: "SO_ATTACH_REUSEPORT_CBPF",
            address: self.address,
            source,
        };
        let length = u16::try_from(program.len()).map_err(|_| refused(Errno::TOOBIG))?;
        let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
        set_option(&self.fd, libc::SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program).map_err(refused)
    }

    /// Bytes of the longest IP packet that the kernel sends to this destination without cutting it.
    ///
    /// # Errors
    /// The kernel's refusal, such as having no route.
    pub fn path_mtu_bytes(&self, to: SocketAddr) -> Result<u32, Errno> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let probe = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(ipproto::UDP))?;
        let mut local = self.address;
        local.set_port(0);
        bind(&probe, &local)?;
        connect(&probe, &to)?;
        if to.is_ipv4() { sockopt::ip_mtu(&probe) } else { sockopt::ipv6_mtu(&probe) }
    }

    /// Bytes of the kernel's memory that may hold what has arrived.
    #[must_use]
    pub fn receive_buffer_bytes(&self) -> usize {
        sockopt::socket_recv_buffer_size(&self.fd).unwrap_or(0)
    }

    /// Datagrams that the kernel dropped because the socket had no room for them, modulo 2^32.
    #[must_use]
    pub fn dropped(&self) -> u32 {
        let mut facts = [0_u32; MEMORY_FACTS];
        let mut length = size_of_val(&facts) as u32;
        let (fd, value) = (self.fd.as_raw_fd(), facts.as_mut_ptr().cast::<c_void>());
        // SAFETY: the place is writable and of that length.
        let outcome = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, SO_MEMINFO, value, &raw mut length) };
        debug_assert_eq!(outcome, 0, "SO_MEMINFO");
        facts[MEMORY_FACTS - 1]
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn raw_fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }
}

impl UdpSocket {
    /// The address and port that it is bound to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        match rustix::net::getsockname(&self.fd).map(SocketAddr::try_from) {
            Ok(Ok(address)) => address,
            _ => self.address,
        }
    }
}
