//! Questions to the kernels of other hosts: whether a UDP port is taken there, and whether they are there.

use core::ffi::c_int;
use core::mem::{size_of, size_of_val};
use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use rustix::net::{SendFlags, connect, sendto, sockopt};

use super::super::socket::set_option;
use super::kernel::read_address;
use super::{UdpError, UdpSocket};

/// Bytes for answers that wait to be read: some forty of them. The kernel doubles the number.
const RECEIVE_BYTES: usize = 32 << 10;

/// A UDP socket that asks ports of other hosts with empty datagrams. A host without a program there answers
/// by an ICMP message, "port unreachable". For a host that does not answer neighbour discovery this host's
/// kernel does, "host unreachable", after some three seconds. The kernel says so to a socket that wants to
/// know (`IP_RECVERR`, ip(7)), with the address that was asked. The datagrams come from a port that the
/// kernel chose when the socket was made. A forged answer names it: a host that sees no datagram has to
/// guess.
#[derive(Debug)]
pub struct RefusalProbe {
    socket: UdpSocket,
    local_ip: IpAddr,
    interface_index: u32,
}

impl RefusalProbe {
    /// Makes the socket, at an address of an interface.
    ///
    /// # Errors
    /// [`UdpError::Socket`] names what the kernel refused.
    pub fn new(local_ip: IpAddr, interface_index: u32) -> Result<Self, UdpError> {
        let address = SocketAddr::new(local_ip, 0);
        let refused = |operation| move |source| UdpError::Socket { operation, address, source };
        // A socket that is bound to an interface hears nothing of what this host's kernel says itself: that
        // comes by `lo`.
        let socket = UdpSocket::bind(address, None)?;
        let (level, unicast_if, receive_errors) = match local_ip {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_UNICAST_IF, libc::IP_RECVERR),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_IF, libc::IPV6_RECVERR),
        };
        let fd = socket.fd();
        set_option(fd, level, unicast_if, &interface_index.to_be()).map_err(refused("IP_UNICAST_IF"))?;
        set_option::<c_int>(fd, level, receive_errors, &1).map_err(refused("IP_RECVERR"))?;
        socket.drop_arrivals().map_err(refused("SO_ATTACH_FILTER"))?;
        sockopt::set_socket_recv_buffer_size(fd, RECEIVE_BYTES).map_err(refused("SO_RCVBUF"))?;
        Ok(Self { socket, local_ip, interface_index })
    }

    /// Asks this port. Where too many errors about other hosts arrive meanwhile, it is not asked.
    ///
    /// # Errors
    /// The kernel's refusal, such as having no route.
    pub fn ask(&self, port: SocketAddr) -> Result<(), Errno> {
        self.ask_by(port, || sendto(self.socket.fd(), &[], SendFlags::DONTWAIT, &port).map(drop))
    }

    /// Asks a port by a call that may tell an error about another host instead, once for each error.
    fn ask_by(&self, port: SocketAddr, ask: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
        // Errors that are known already are taken off the socket.
        sockopt::socket_error(self.socket.fd())?.ok();
        if ask().is_ok() || ask().is_ok() {
            return Ok(());
        }
        // Both may have told of other hosts. A socket that has asked nothing knows of the route alone.
        match Self::new(self.local_ip, self.interface_index) {
            Ok(fresh) => connect(fresh.socket.fd(), &port),
            Err(_) => Ok(()),
        }
    }

    /// The next host that was asked and has no program at the port, or cannot be reached, and the error that
    /// says so.
    pub fn poll_answer(&self) -> Option<(IpAddr, Errno)> {
        loop {
            let (host, error) = self.next_error()?;
            let origin = error.ee_origin;
            if matches!(origin, libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6) {
                return Some((host, Errno::from_raw_os_error(error.ee_errno as c_int)));
            }
        }
    }

    /// The next error of the socket's queue, and the host that it is about.
    fn next_error(&self) -> Option<(IpAddr, libc::sock_extended_err)> {
        let mut name = [0_u8; size_of::<libc::sockaddr_in6>()];
        // Room for the error, and for the address of the host that says so.
        let mut control = [0_u64; 16];
        // SAFETY: all bytes zero is a message header without any part.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_name = name.as_mut_ptr().cast();
        message.msg_namelen = size_of_val(&name) as u32;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: the parts that the header names are writable, and of the lengths that it names.
        if unsafe { libc::recvmsg(self.socket.raw_fd(), &raw mut message, flags) } < 0 {
            return None;
        }
        // SAFETY: the header names the control data, as long as the kernel has written it.
        let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        // SAFETY: it is null, or the header of control data in the memory for that, which is aligned for it.
        let first = unsafe { first.as_ref() }?;
        let is_error = matches!(
            (first.cmsg_level, first.cmsg_type),
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        );
        let (host, _) = read_address(&name)?;
        if !is_error {
            return None;
        }
        // SAFETY: the header is that of control data in the memory for that.
        let data = unsafe { libc::CMSG_DATA(first) };
        // SAFETY: control data of this type begins with the error, and the kernel has written all of it.
        Some((host, unsafe { data.cast::<libc::sock_extended_err>().read_unaligned() }))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::UdpSocket as Std;
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// What the probe hears first within a time.
    fn answer(probe: &RefusalProbe, within: Duration) -> Option<(IpAddr, Errno)> {
        let begun = Instant::now();
        while begun.elapsed() < within {
            let answer = probe.poll_answer();
            if answer.is_some() {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    #[test]
    fn a_port_without_a_program_is_refused_and_another_one_is_silent() {
        for [near, far, other] in [["127.0.0.1", "127.0.0.2", "127.0.0.3"], ["::1"; 3]] {
            let [near, far, other] = [near, far, other].map(|address| address.parse::<IpAddr>().unwrap());
            let taken = Std::bind((far, 0)).unwrap();
            let free = Std::bind((other, 0)).unwrap().local_addr().unwrap();
            let probe = RefusalProbe::new(near, 1).unwrap();
            for _ in 0..3 {
                probe.ask(taken.local_addr().unwrap()).unwrap();
                probe.ask(free).unwrap();
                assert_eq!(answer(&probe, Duration::from_secs(10)), Some((other, Errno::CONNREFUSED)));
                assert_eq!(answer(&probe, Duration::from_millis(20)), None);
            }
            // What arrives is not looked at, and takes no room.
            let asked = probe.socket.address();
            for _ in 0..100 {
                taken.send_to(&[7; 1024], asked).unwrap();
            }
            probe.ask(free).unwrap();
            assert_eq!(answer(&probe, Duration::from_secs(10)), Some((other, Errno::CONNREFUSED)));
        }
    }

    #[test]
    fn errors_about_other_hosts_are_not_taken_for_this_ones() {
        let local = "127.0.0.1".parse().unwrap();
        let taken = Std::bind((local, 0)).unwrap().local_addr().unwrap();
        let free = Std::bind(("127.0.0.3", 0)).unwrap().local_addr().unwrap();
        let probe = RefusalProbe::new(local, 1).unwrap();
        let send = |port| sendto(probe.socket.fd(), &[], SendFlags::DONTWAIT, &port).map(drop);
        // Errors about the other host arrive between the call that takes errors off and the one that asks:
        // before the first try alone, and before each.
        for errors in [1_u32, 2] {
            let (left, told) = (Cell::new(errors), Cell::new(0));
            let asked = probe.ask_by(taken, || {
                if left.replace(left.get().saturating_sub(1)) > 0 {
                    send(free).unwrap();
                    // Reading the error would take it off the socket.
                    let fd = probe.socket.fd();
                    let mut fds = [PollFd::new(&fd, PollFlags::empty())];
                    poll(&mut fds, None).unwrap();
                }
                send(taken).inspect_err(|_| told.set(told.get() + 1))
            });
            assert_eq!((asked, told.get()), (Ok(()), errors));
        }
        let without_route = probe.ask("[::1]:1".parse().unwrap());
        assert_eq!(without_route, Err(Errno::AFNOSUPPORT));
    }
}
