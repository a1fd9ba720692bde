use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket as Plain};
use std::time::Instant;

use super::super::testing::{self, over_both};
use super::super::{Token, Waiter};
use super::*;

const PATIENCE: Duration = Duration::from_secs(10);
const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

over_both! {
    datagrams_arrive_as_they_were_sent,
    many_leave_in_one_call_and_each_to_its_address,
    what_finds_no_buffer_waits_in_the_socket,
    what_finds_no_room_in_the_socket_is_counted,
    what_is_longer_than_a_buffer_is_dropped,
    refusals_name_the_datagram_and_end_nothing,
    another_thread_may_go_on,
    a_sleeping_thread_wakes_when_something_arrives,
    a_dropped_endpoint_frees_its_port_at_once,
    sockets_of_one_port_are_chosen_by_the_program,
    ipv6_datagrams_without_a_checksum_arrive,
    datagrams_allocate_nothing,
    equal_datagrams_to_one_peer_leave_in_one_run,
    runs_arrive_in_one_buffer,
    refused_runs_go_alone_and_no_more_are_made,
    refused_datagrams_end_no_runs,
    datagrams_of_a_run_may_be_given_back_in_any_order,
    sizes_that_cannot_be_are_refused,
}

fn config() -> EndpointConfig {
    let reactor = testing::reactor();
    EndpointConfig {
        receive_buffers: 16,
        send_buffers: 8,
        datagram_max_bytes: 2000,
        receives_runs: true,
        reactor,
    }
}

fn socket(ip: IpAddr) -> UdpSocket {
    UdpSocket::bind(SocketAddr::new(ip, 0), None).unwrap()
}

fn endpoint(ip: IpAddr, config: &EndpointConfig) -> (Endpoint, SocketAddr) {
    let socket = socket(ip);
    let address = socket.address();
    (over(socket, config), address)
}

fn over(socket: UdpSocket, config: &EndpointConfig) -> Endpoint {
    let mut endpoint = Endpoint::new(socket, config).unwrap();
    endpoint.start_receiving();
    endpoint
}

fn plain(ip: IpAddr) -> Plain {
    let plain = Plain::bind(SocketAddr::new(ip, 0)).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain
}

fn send(endpoint: &mut Endpoint, to: SocketAddr, bytes: &[u8]) {
    send_in(endpoint, to, None, bytes);
}

fn send_in(endpoint: &mut Endpoint, to: SocketAddr, run: Option<u8>, bytes: &[u8]) {
    endpoint.send(to, run, |out| {
        out[..bytes.len()].copy_from_slice(bytes);
        bytes.len()
    });
}

/// The next datagram, which has to come; its buffer stays with the caller.
fn await_received(endpoint: &mut Endpoint) -> Received {
    let begun = Instant::now();
    loop {
        endpoint.turn().unwrap();
        if let Some(received) = endpoint.poll_received() {
            return received;
        }
        assert!(begun.elapsed() < PATIENCE, "nothing arrived");
        std::thread::yield_now();
    }
}

fn receive(endpoint: &mut Endpoint) -> (IpAddr, Vec<u8>) {
    let mut received = await_received(endpoint);
    let bytes = endpoint.bytes_mut(&mut received).to_vec();
    let from = received.from;
    endpoint.give_back(received);
    (from, bytes)
}

fn await_refusal(endpoint: &mut Endpoint) -> Refusal {
    let begun = Instant::now();
    loop {
        endpoint.turn().unwrap();
        if let Some(refusal) = endpoint.poll_refusal() {
            return refusal;
        }
        assert!(begun.elapsed() < PATIENCE);
    }
}

fn datagrams_arrive_as_they_were_sent() {
    for ip in [V4, V6] {
        let (mut near, near_address) = endpoint(ip, &config());
        let (mut far, far_address) = endpoint(ip, &config());
        for length in [0, 1, 7, 64, 1472, 1999, 2000] {
            let bytes: Vec<u8> = (0..length).map(|index| (index * 7 + length) as u8).collect();
            send(&mut near, far_address, &bytes);
            near.flush().unwrap();
            assert_eq!(receive(&mut far), (ip, bytes.clone()));
            send(&mut far, near_address, &bytes);
            far.flush().unwrap();
            assert_eq!(receive(&mut near), (ip, bytes));
        }
        assert_eq!((near.poll_refusal(), far.poll_refusal()), (None, None));
    }
}

fn many_leave_in_one_call_and_each_to_its_address() {
    let (mut near, _) = endpoint(V4, &config());
    let mut far = [endpoint(V4, &config()), endpoint(V4, &config())];
    for round in 0..100_u8 {
        for number in 0..8_u8 {
            assert!(near.has_room());
            send(&mut near, far[usize::from(number) % 2].1, &[round, number]);
        }
        assert!(!near.has_room());
        near.flush().unwrap();
        for (odd, (far, _)) in (0..2).zip(&mut far) {
            let mut got: Vec<_> = (0..4).map(|_| receive(far)).collect();
            got.sort_unstable();
            let expected: Vec<_> = (0..4).map(|half| (V4, vec![round, 2 * half + odd])).collect();
            assert_eq!(got, expected);
        }
    }
}

fn what_finds_no_buffer_waits_in_the_socket() {
    let (mut near, near_address) = endpoint(V4, &config());
    let other = plain(V4);
    let kept: Vec<_> = (0..16_u8)
        .map(|number| {
            other.send_to(&[number], near_address).unwrap();
            await_received(&mut near)
        })
        .collect();
    for number in 16..48 {
        other.send_to(&[number], near_address).unwrap();
    }
    for _ in 0..3 {
        near.turn().unwrap();
        assert_eq!(near.poll_received(), None);
    }
    for (mut received, number) in kept.into_iter().zip(0..) {
        assert_eq!(near.bytes_mut(&mut received), [number], "a buffer that was not given back");
        near.give_back(received);
    }
    for number in 16..48 {
        assert_eq!(receive(&mut near), (V4, vec![number]));
    }
    assert!(!near.has_failed());
}

fn what_finds_no_room_in_the_socket_is_counted() {
    let (near, near_address) = endpoint(V4, &config());
    let other = plain(V4);
    let fits = near.socket().receive_buffer_bytes() / 60_000;
    for _ in 0..fits + 10 {
        other.send_to(&[0; 60_000], near_address).unwrap();
    }
    assert!((10..=fits as u32 + 10).contains(&near.socket().dropped()));
}

fn what_is_longer_than_a_buffer_is_dropped() {
    let (mut near, near_address) = endpoint(V4, &config());
    let other = plain(V4);
    // More than there are buffers, so that each must have come back.
    for _ in 0..40 {
        other.send_to(&[1; 2100], near_address).unwrap();
        other.send_to(&[2; 3], near_address).unwrap();
        assert_eq!(receive(&mut near), (V4, vec![2; 3]));
    }
    assert_eq!(near.waiting_count(), 0);
}

fn refusals_name_the_datagram_and_end_nothing() {
    let largest = EndpointConfig { datagram_max_bytes: 65535, ..config() };
    let (mut near, near_address) = endpoint(V4, &largest);
    let other = plain(V4);
    let far = other.local_addr().unwrap();
    let everybody = SocketAddr::from((Ipv4Addr::BROADCAST, 9));
    let nobody = plain(V4).local_addr().unwrap();
    for _ in 0..20 {
        near.send(far, None, |_| 65_520);
        near.flush().unwrap();
        assert_eq!(await_refusal(&mut near), Refusal { to: far, errno: Errno::MSGSIZE });
        send(&mut near, everybody, b"?");
        assert_eq!(await_refusal(&mut near).to, everybody);
        // An ICMP error comes back.
        send(&mut near, nobody, b"?");
        send(&mut near, far, b"still here");
        near.flush().unwrap();
        let mut bytes = [0; 20];
        assert_eq!(other.recv_from(&mut bytes).unwrap(), (10, near_address));
        other.send_to(b"and here", near_address).unwrap();
        assert_eq!(receive(&mut near).1, b"and here");
    }
    assert_eq!(near.poll_refusal(), None);
    assert!(!near.has_failed());
    assert!(near.socket().path_mtu_bytes(far).unwrap() >= 1500);
}

/// The kernel runs what it has put off on the thread that asked for it, so another one has to ask anew.
fn another_thread_may_go_on() {
    let (mut near, near_address) = endpoint(V4, &config());
    let other = plain(V4);
    let send_and_receive = |mut near: Endpoint, number: u8| {
        other.send_to(&[number], near_address).unwrap();
        assert_eq!(receive(&mut near).1, [number]);
        // This one arrives while the ring is not read.
        other.send_to(&[number, number], near_address).unwrap();
        near
    };
    near = send_and_receive(near, 1);
    // The thread before lives on, and then it does not.
    for number in 2..6 {
        near = std::thread::scope(|scope| {
            let test = || {
                let mut near = near;
                assert_eq!(receive(&mut near).1, [number - 1; 2]);
                send_and_receive(near, number)
            };
            scope.spawn(test).join().unwrap()
        });
    }
    assert_eq!(receive(&mut near).1, [5; 2]);
    assert!(!near.has_failed());
}

fn a_sleeping_thread_wakes_when_something_arrives() {
    let (mut near, near_address) = endpoint(V4, &config());
    let other = plain(V4);
    let mut waiter = Waiter::new(1, testing::reactor()).unwrap();
    waiter.watch(near.fd(), Token(7)).unwrap();
    near.turn().unwrap();
    assert!(!near.has_work());
    let sender = std::thread::spawn(move || {
        for number in 0..50_u8 {
            std::thread::sleep(Duration::from_millis(if number % 10 == 0 { 20 } else { 0 }));
            other.send_to(&[number], near_address).unwrap();
        }
    });
    let begun = Instant::now();
    let mut next = 0;
    while next < 50 {
        near.turn().unwrap();
        while let Some(mut received) = near.poll_received() {
            assert_eq!(near.bytes_mut(&mut received), [next]);
            near.give_back(received);
            next += 1;
        }
        let armed = waiter.arm();
        if next < 50 && !near.has_work() {
            armed.wait(Some(PATIENCE), |_| {}).unwrap();
        }
        assert!(begun.elapsed() < PATIENCE, "slept through the arrival of {next}");
    }
    sender.join().unwrap();
}

fn a_dropped_endpoint_frees_its_port_at_once() {
    for _ in 0..20 {
        let (mut near, near_address) = endpoint(V4, &config());
        let other = plain(V4);
        other.send_to(b"one", near_address).unwrap();
        let _ = receive(&mut near);
        drop(near);
        // Without SO_REUSEPORT.
        drop(Plain::bind(near_address).unwrap());
    }
}

fn sockets_of_one_port_are_chosen_by_the_program() {
    let first = socket(V4);
    let address = first.address();
    let second = UdpSocket::bind(address, None).unwrap();
    // ldb [0]; ret a
    let instruction = |code, operand| Instruction { code, jump_true: 0, jump_false: 0, operand };
    first.choose_by(&[instruction(0x30, 0), instruction(0x16, 0)]).unwrap();
    let mut endpoints = [over(first, &config()), over(second, &config())];
    let other = plain(V4);
    for number in [0, 1, 1, 0, 0, 1, 1, 1, 0] {
        other.send_to(&[number, 9], address).unwrap();
        assert_eq!(receive(&mut endpoints[usize::from(number)]).1, [number, 9]);
    }
    assert!(endpoints[0].socket().choose_by(&[]).is_err());
}

/// The rings of a peer that does without checksums on IPv6 (RFC 6935) are heard too.
fn ipv6_datagrams_without_a_checksum_arrive() {
    const UDP_NO_CHECK6_TX: i32 = 101;
    let (mut near, near_address) = endpoint(V6, &config());
    let other = plain(V6);
    let on: i32 = 1;
    // SAFETY: the value is a readable `int`, as this option takes it.
    let outcome = unsafe {
        libc::setsockopt(other.as_raw_fd(), libc::SOL_UDP, UDP_NO_CHECK6_TX, (&raw const on).cast(), 4)
    };
    assert_eq!(outcome, 0);
    other.send_to(b"none", near_address).unwrap();
    assert_eq!(receive(&mut near), (V6, b"none".to_vec()));
}

fn datagrams_allocate_nothing() {
    let (mut near, _) = endpoint(V4, &config());
    let (mut far, far_address) = endpoint(V4, &config());
    let mut round = || {
        for _ in 0..8 {
            send(&mut near, far_address, &[3; 100]);
        }
        near.flush().unwrap();
        for _ in 0..8 {
            let received = await_received(&mut far);
            far.give_back(received);
        }
    };
    round();
    let counted = allocation_counter::measure(|| (0..50).for_each(|_| round()));
    assert_eq!(counted.count_total, 0);
}

/// Makes a socket show what comes in a run as one datagram.
fn show_runs(socket: &Plain) {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 1);
}

fn set(socket: &impl AsRawFd, level: i32, option: i32, value: i32) {
    // SAFETY: the value is a readable `int`, as these options take it.
    let outcome =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), 4) };
    assert_eq!(outcome, 0);
}

/// Lengths of what a socket receives until it has so many bytes.
fn lengths(socket: &Plain, expected_bytes: usize) -> Vec<usize> {
    let (mut bytes, mut lengths) = (vec![0; 65536], Vec::new());
    while lengths.iter().sum::<usize>() < expected_bytes {
        lengths.push(socket.recv(&mut bytes).unwrap());
    }
    lengths
}

fn equal_datagrams_to_one_peer_leave_in_one_run() {
    for ip in [V4, V6] {
        let (mut near, _) = endpoint(ip, &config());
        let far = [plain(ip), plain(ip)];
        far.iter().for_each(show_runs);
        let [one, other] = [0, 1].map(|number: usize| far[number].local_addr().unwrap());
        let mut leave = |datagrams: &[(SocketAddr, Option<u8>, usize)]| {
            for (to, run, length) in datagrams {
                send_in(&mut near, *to, *run, &vec![7; *length]);
            }
            near.flush().unwrap();
            let to_one = datagrams.iter().filter(|(to, ..)| *to == one);
            lengths(&far[0], to_one.map(|(.., length)| length).sum())
        };
        assert_eq!(leave(&[(one, Some(3), 500); 4]), [2000]);
        assert_eq!(leave(&[(one, None, 500); 4]), [500; 4]);
        // The last may be shorter, and ends it.
        let shorter = [500, 500, 100, 500, 500, 501].map(|length| (one, Some(0), length));
        assert_eq!(leave(&shorter), [1100, 1000, 501]);
        // Other numbers and other peers are in other runs.
        let mixed = [(one, Some(1)), (one, Some(1)), (one, Some(2)), (other, Some(2)), (one, Some(2))];
        assert_eq!(leave(&mixed.map(|(to, run)| (to, run, 300))), [600, 300, 300]);
        assert_eq!(leave(&[(one, Some(0), 2000); 8]), [16_000]);
        assert_eq!(lengths(&far[1], 300), [300]);
        assert_eq!(near.poll_refusal(), None);
    }
}

/// With one buffer, of which a datagram is kept, no other could arrive that is not in it.
fn runs_arrive_in_one_buffer() {
    for ip in [V4, V6] {
        let (mut near, _) = endpoint(ip, &config());
        let (mut far, far_address) = endpoint(ip, &EndpointConfig { receive_buffers: 1, ..config() });
        for round in 0..20_u8 {
            let datagrams: Vec<Vec<u8>> = (0..5).map(|number| vec![round + number; 700]).collect();
            datagrams.iter().for_each(|bytes| send_in(&mut near, far_address, Some(0), bytes));
            send_in(&mut near, far_address, Some(0), &[round; 3]);
            near.flush().unwrap();
            let mut kept = vec![await_received(&mut far)];
            assert_eq!(far.waiting_count(), 5);
            let mut seen = Vec::new();
            far.peek(4, |from, bytes| {
                assert_eq!(from, ip);
                seen.push(bytes.to_vec());
            });
            assert_eq!(seen, datagrams[1..]);
            kept.extend((0..5).map(|_| await_received(&mut far)));
            for (received, expected) in kept.iter_mut().zip(datagrams.iter().chain([&vec![round; 3]])) {
                assert_eq!(far.bytes_mut(received), expected);
            }
            assert!(!far.has_work() && far.poll_received().is_none());
            kept.into_iter().for_each(|received| far.give_back(received));
        }
    }
}

fn datagrams_of_a_run_may_be_given_back_in_any_order() {
    let (mut near, _) = endpoint(V4, &config());
    let (mut far, far_address) = endpoint(V4, &EndpointConfig { receive_buffers: 2, ..config() });
    for round in 0..40_u8 {
        for number in 0..4 {
            send_in(&mut near, far_address, Some(0), &[round, number, 9]);
        }
        near.flush().unwrap();
        let mut kept: Vec<_> = (0..4).map(|_| await_received(&mut far)).collect();
        kept.rotate_left(usize::from(round) % 4);
        while let Some(received) = kept.pop() {
            far.give_back(received);
            for (at, received) in kept.iter_mut().enumerate() {
                let number = (at as u8 + round) % 4;
                assert_eq!(far.bytes_mut(received), [round, number, 9]);
            }
        }
    }
}

/// A socket that leaves checksums out makes no runs: the kernel answers EINVAL.
fn refused_runs_go_alone_and_no_more_are_made() {
    const SO_NO_CHECK: i32 = 11;
    let (mut near, _) = endpoint(V4, &config());
    set(&near.socket().raw_fd(), libc::SOL_SOCKET, SO_NO_CHECK, 1);
    let far = plain(V4);
    show_runs(&far);
    let to = far.local_addr().unwrap();
    for round in 0..3 {
        for _ in 0..8 {
            assert!(near.has_room(), "round {round}");
            send_in(&mut near, to, Some(0), &[1; 400]);
        }
        near.flush().unwrap();
        near.turn().unwrap();
        assert_eq!(lengths(&far, 8 * 400), [400; 8]);
        assert_eq!(near.no_runs(), Some(NoRuns { option: "UDP_SEGMENT", errno: Errno::INVAL }));
    }
    // The refusal is remembered.
    set(&near.socket().raw_fd(), libc::SOL_SOCKET, SO_NO_CHECK, 0);
    (0..2).for_each(|_| send_in(&mut near, to, Some(0), &[1; 400]));
    near.flush().unwrap();
    assert_eq!(lengths(&far, 800), [400; 2]);
    assert_eq!(near.poll_refusal(), None);
}

/// A refusal that each datagram has alone says nothing about runs.
fn refused_datagrams_end_no_runs() {
    let (mut near, _) = endpoint(V4, &config());
    let far = plain(V4);
    show_runs(&far);
    let to = far.local_addr().unwrap();
    // A host that has no route: each is refused for itself.
    let everybody = SocketAddr::from((Ipv4Addr::BROADCAST, 9));
    for _ in 0..3 {
        (0..3).for_each(|_| send_in(&mut near, everybody, Some(0), &[1; 100]));
        near.flush().unwrap();
        for _ in 0..3 {
            assert_eq!(await_refusal(&mut near).to, everybody);
        }
        (0..3).for_each(|_| send_in(&mut near, to, Some(0), &[1; 100]));
        near.flush().unwrap();
        assert_eq!(lengths(&far, 300), [300]);
    }
    assert_eq!((near.poll_refusal(), near.no_runs()), (None, None));
}

fn sizes_that_cannot_be_are_refused() {
    let refused = |config: EndpointConfig| Endpoint::new(socket(V4), &config).unwrap_err();
    for config in [
        EndpointConfig { receive_buffers: 0, ..config() },
        EndpointConfig { receive_buffers: 12, ..config() },
        EndpointConfig { send_buffers: 0, ..config() },
        EndpointConfig { datagram_max_bytes: 0, ..config() },
        EndpointConfig { datagram_max_bytes: 65536, ..config() },
    ] {
        assert!(matches!(refused(config), UdpError::Sizes { .. }), "{config:?}");
    }
    // TEST-NET-1 (RFC 5737) is not assigned to any host.
    let foreign = UdpSocket::bind(SocketAddr::from(([192, 0, 2, 1], 7000)), None).unwrap_err();
    assert!(matches!(foreign, UdpError::Socket { operation: "bind", .. }), "{foreign}");
}
