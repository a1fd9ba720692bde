//! Options of sockets, as the kernel has them afterwards, and of streams.

use std::net::IpAddr;

use rustix::net::sockopt::{
    ip_tos, ipv6_tclass, socket_keepalive, socket_recv_buffer_size, socket_send_buffer_size, tcp_keepcnt,
    tcp_keepidle, tcp_keepintvl, tcp_nodelay, tcp_user_timeout,
};

use super::super::outgoing::{Outgoing, SpareMemory};
use super::super::socket::{
    Keepalive, SocketOptions, listener, reserved_dialler, set_tos, set_unacknowledged_max,
};
use super::*;

over_both! {
    bytes_are_unacknowledged_until_the_peer_has_room_for_them,
}

const OPTIONS: SocketOptions = SocketOptions {
    sends_at_once: false,
    keepalive: Some(Keepalive { idle_seconds: 7, interval_seconds: 3, probes: 4 }),
    unacknowledged_max: Some(Duration::from_millis(12_345)),
    tos: Some(16),
    send_buffer_bytes: Some(50_000),
    receive_buffer_bytes: Some(60_000),
    interface_index: None,
};

#[track_caller]
fn check(socket: &OwnedFd) {
    assert_eq!(tcp_nodelay(socket), Ok(OPTIONS.sends_at_once));
    assert_eq!(socket_keepalive(socket), Ok(true));
    assert_eq!(tcp_keepidle(socket), Ok(Duration::from_secs(7)));
    assert_eq!(tcp_keepintvl(socket), Ok(Duration::from_secs(3)));
    assert_eq!(tcp_keepcnt(socket), Ok(4));
    assert_eq!(tcp_user_timeout(socket), Ok(12_345));
    // The kernel doubles them.
    assert_eq!(socket_send_buffer_size(socket), Ok(100_000));
    assert_eq!(socket_recv_buffer_size(socket), Ok(120_000));
}

#[test]
fn sockets_that_listen_dial_and_are_accepted_have_all_of_them() {
    for host in [IpAddr::from([127, 0, 0, 1]), "::1".parse().unwrap()] {
        let listening = listener((host, 0).into(), 8, false, &OPTIONS).unwrap();
        let (dialling, _) = reserved_dialler(host, 1024, host, &OPTIONS).unwrap();
        let at = socket_address(Some(&listening)).unwrap();
        rustix::net::connect(&dialling, &at).unwrap();
        let accepted = rustix::net::accept(&listening).unwrap();
        let tos = |socket: &OwnedFd| {
            if host.is_ipv4() { ip_tos(socket) } else { ipv6_tclass(socket).map(|tos| tos as u8) }
        };
        for socket in [&listening, &dialling, &accepted] {
            check(socket);
            assert_eq!(tos(socket), Ok(16));
        }
        // That of another NI with the same address, and that of none.
        for (given, had) in [(Some(32), 32), (None, 0)] {
            set_tos(&accepted, given).unwrap();
            assert_eq!(tos(&accepted), Ok(had));
        }
        // That of another time than the listener's, none, and one that is too long for the kernel.
        let longest = Duration::from_secs(u64::MAX);
        for (given, had_ms) in
            [(Some(Duration::from_secs(200)), 200_000), (None, 0), (Some(longest), i32::MAX)]
        {
            set_unacknowledged_max(&accepted, given).unwrap();
            assert_eq!(tcp_user_timeout(&accepted), Ok(had_ms as u32));
        }
    }
}

#[test]
fn leases_are_sent_without_a_copy_from_a_length_on() {
    let (mut outgoing, mut chunks) = (Outgoing::default(), SpareMemory::default());
    let mut region = Region::from(vec![0; 40_000].into_boxed_slice());
    outgoing.queue_bytes(&[1; 2000], &mut chunks);
    assert!(!outgoing.is_worth_zero_copy(1000), "what is copied already is not lent");
    outgoing.queue_lease(region.lend_read(0..40_000).unwrap());
    assert!(outgoing.is_worth_zero_copy(40_000) && !outgoing.is_worth_zero_copy(40_001));
    // The kernel has taken some of that.
    outgoing.sent(2000 + 30_000, None, &mut chunks);
    assert!(outgoing.is_worth_zero_copy(10_000) && !outgoing.is_worth_zero_copy(10_001));
}

/// TCP has taken the bytes, and the peer's end has not.
fn bytes_are_unacknowledged_until_the_peer_has_room_for_them() {
    let few = SocketOptions { receive_buffer_bytes: Some(2000), ..SocketOptions::default() };
    let listening = listener(([127, 0, 0, 1], 0).into(), 8, false, &few).unwrap();
    let at = socket_address(Some(&listening)).unwrap();
    let mut sending = TcpStream::connect(at).unwrap();
    let accepted = rustix::net::accept(&listening).unwrap();
    let mut side = Side::new(small());
    let id = side.streams.adopt(sending.try_clone().unwrap().into()).unwrap();
    sending.set_nonblocking(true).unwrap();
    let taken = sending.write(&[1; 1 << 20]).unwrap();
    let begun = Instant::now();
    let left = |side: &Side| side.streams.unacknowledged_bytes(id);
    while left(&side) as usize == taken {
        assert!(begun.elapsed() < PATIENCE);
    }
    assert!(left(&side) > 0, "{taken} bytes do not fit into the peer's buffer");
    while left(&side) != 0 {
        let mut bytes = [0; 4096];
        let read = rustix::net::recv(&accepted, &mut bytes, rustix::net::RecvFlags::DONTWAIT);
        assert!(read.is_ok() || read.is_err_and(|errno| errno == Errno::AGAIN));
        assert!(begun.elapsed() < PATIENCE);
    }
}
