//! What else goes over the interface of a node: ARP, ICMP, TCP and other UDP work as without it, while its
//! own traffic runs.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use lnet_tests::netns::{Namespace, Netns, Wiring, enter, ip};
use lnet_tests::node::{
    By, Flood, Flooded, Flooder, config, losses, nid_v4, process, settle_both, start, stop_all,
};
use lnet_user::node::XdpMode;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, sockopt};

use crate::privileged;
use crate::traffic::PATIENCE;

const TCP_BYTES: usize = 1 << 20;

/// Connects from `near` to `far`, sends a MiB and gets it back.
fn tcp(near: &Namespace, far: &Namespace) {
    let address = far.interface().ipv4;
    // The node's own port, which is its own only for UDP.
    let listener = enter(far, || TcpListener::bind((address, 988)).unwrap());
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = vec![0; TCP_BYTES];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    let to = (address, 988).into();
    let mut stream = enter(near, || TcpStream::connect_timeout(&to, PATIENCE).unwrap());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let bytes: Vec<u8> = (0..TCP_BYTES).map(|index| (index * 7) as u8).collect();
    stream.write_all(&bytes).unwrap();
    let mut back = vec![0; TCP_BYTES];
    stream.read_exact(&mut back).unwrap();
    assert!(back == bytes, "TCP gave other bytes back");
    echo.join().unwrap();
}

/// Sends datagrams to another port than the node's, the shortest and the longest included.
fn udp(near: &Namespace, far: &Namespace) {
    let bind = |namespace: &Namespace, port| {
        let socket = enter(namespace, || UdpSocket::bind((namespace.interface().ipv4, port)).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let (sender, receiver) = (bind(near, 0), bind(far, 989));
    for length in [0, 1, 63, 64, 160, 1000, 1472, 9000] {
        let bytes: Vec<u8> = b"LNDX".iter().copied().cycle().take(length).collect();
        sender.send_to(&bytes, receiver.local_addr().unwrap()).unwrap();
        let mut received = vec![0; 10_000];
        let count = receiver.recv(&mut received).unwrap();
        assert_eq!(received[..count], bytes);
    }
}

/// An ICMP echo (RFC 792).
fn ping(near: &Namespace, far: &Namespace) {
    const ECHO_REPLY: u8 = 0;
    const IPV4_HEADER_BYTES: usize = 20;
    let socket = enter(near, || {
        rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap()
    });
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
    // Type, code, checksum, identifier 0x1234, sequence number 1; the words sum to all ones.
    let request = [8, 0, !(0x08 + 0x12), !(0x34 + 0x01), 0x12, 0x34, 0, 1];
    let to = SocketAddrV4::new(far.interface().ipv4, 0);
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &to).unwrap();
    loop {
        let mut packet = [0_u8; 128];
        let (length, _) = rustix::net::recv(&socket, &mut packet[..], RecvFlags::empty()).unwrap();
        let answer = &packet[IPV4_HEADER_BYTES..length];
        if answer[0] == ECHO_REPLY {
            assert_eq!(answer[4..], request[4..]);
            return;
        }
    }
}

fn neighbour(namespace: &Namespace, address: Ipv4Addr) -> String {
    let arguments = ["-n", namespace.name(), "neighbour", "show", &address.to_string()];
    String::from_utf8(Command::new("ip").args(arguments).output().unwrap().stdout).unwrap()
}

fn others_go_on(mode: XdpMode) {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let with_mode = |namespace, nid| config(namespace, nid).mode(mode);
    let (_source, source_workers) = start(netns.a(), &with_mode(netns.a(), a));
    let (target, target_workers) = start(netns.b(), &with_mode(netns.b(), b));
    let flood = Flood::new(process(b), 1 << 40, 5000);
    let flooded = Flooded::start_all(&flood, target.steering(), target_workers);
    let flooders = Flooder::start_all(&flood, By::ShardThread, source_workers);
    let mut acked = 0;
    for (near, far) in [(netns.a(), netns.b()), (netns.b(), netns.a())] {
        ping(near, far);
        udp(near, far);
        tcp(near, far);
        // Asked anew: the entry is made by ARP, which passes up as well.
        let address = far.interface().ipv4;
        let status =
            Command::new("ip").args(["-n", near.name(), "neighbour", "flush", "all"]).status().unwrap();
        assert!(status.success());
        ping(near, far);
        assert!(neighbour(near, address).contains("lladdr"), "{}", neighbour(near, address));
        let begun = std::time::Instant::now();
        while flood.acked() <= acked {
            assert!(begun.elapsed() < PATIENCE, "the flood stopped at {acked}");
            std::thread::sleep(Duration::from_millis(1));
        }
        acked = flood.acked();
    }
    flood.stop();
    let begun = std::time::Instant::now();
    while flood.acked() + flood.failed() < flood.started() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
    let (mut source_workers, _) = stop_all(flooders);
    let (mut target_workers, _) = stop_all(flooded);
    settle_both(&mut source_workers, &mut target_workers, PATIENCE);
    assert_eq!((losses(&source_workers), losses(&target_workers)), (vec![], vec![]));
    let reasons = target.xdp_frames().unwrap().reasons;
    assert!(reasons["not_udp"] > 20 && reasons["not_ours"] >= 7 && reasons["not_ip"] > 0, "{reasons:?}");
}

/// Traffic goes on when an interface has another Ethernet address, at either end.
#[test]
fn a_new_ethernet_address_is_followed() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let (_source, source_workers) = start(netns.a(), &config(netns.a(), a));
    let (target, target_workers) = start(netns.b(), &config(netns.b(), b));
    let flood = Flood::new(process(b), 1 << 40, 5000);
    let flooded = Flooded::start_all(&flood, target.steering(), target_workers);
    let flooders = Flooder::start_all(&flood, By::ShardThread, source_workers);
    let go_on = |acked: u64| {
        let begun = std::time::Instant::now();
        while flood.acked() <= acked + 1000 {
            assert!(begun.elapsed() < PATIENCE, "the flood stopped at {}", flood.acked());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    go_on(0);
    for (last, namespace) in [(0x21, netns.b()), (0x22, netns.a()), (0x23, netns.b())] {
        let name = &namespace.interface().name;
        // The kernel tells its neighbours.
        enter(namespace, || std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}/arp_notify"), "1"))
            .unwrap();
        ip(namespace, &format!("link set dev {name} address 02:5e:00:00:00:{last:02x}"));
        // Puts that are acknowledged meanwhile were sent before.
        std::thread::sleep(Duration::from_millis(50));
        go_on(flood.acked());
    }
    flood.stop();
    let begun = std::time::Instant::now();
    while flood.acked() + flood.failed() < flood.started() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(flood.failed(), 0);
    drop((stop_all(flooders), stop_all(flooded)));
}

#[test]
fn others_go_on_beside_a_native_node() {
    others_go_on(XdpMode::Native);
}

#[test]
fn others_go_on_beside_a_generic_node() {
    others_go_on(XdpMode::Generic);
}
