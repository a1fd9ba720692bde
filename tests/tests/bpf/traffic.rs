//! Traffic of others over an interface with the program: it goes on as before.
//!
//! The program is on the interface of namespace a.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use lnet_tests::bpf::frames::Frame;
use lnet_tests::bpf::load;
use lnet_tests::netns::{Interface, NETNS_NODES, Namespace, Netns, Wiring, enter, require_privilege};
use lnet_wire::header::MessageType;
use lnet_wire::packet::Reason;
use lnet_xdp::bpf::{ActiveMode, ObjectKind, XdpProgram};

const PATIENCE: Duration = Duration::from_secs(10);

fn attach(near: &Namespace, mode: Option<ActiveMode>, expected: ActiveMode) -> XdpProgram {
    let mut program = load(ObjectKind::Default);
    program.set_shards(2).unwrap();
    let Interface { name, ipv4, .. } = near.interface();
    program.add_endpoint((*ipv4).into(), 988).unwrap();
    let mac = enter(near, || lnet_io::netlink::Interface::by_name(name)).unwrap().mac.unwrap();
    program.set_mac(mac).unwrap();
    assert_eq!(enter(near, || program.attach(name, mode)).unwrap(), expected);
    program
}

fn udp(namespace: &Namespace, port: u16) -> UdpSocket {
    let address = (namespace.interface().ipv4, port);
    let socket = enter(namespace, || UdpSocket::bind(address)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// What our frames to `near` look like to a UDP socket.
fn datagram(near: &Namespace, message_type: MessageType) -> Vec<u8> {
    let frame = Frame::new(near.interface().ipv4.into(), 988, message_type);
    frame.bytes()[frame.payload_offset()..].to_vec()
}

fn others_go_on(mode: Option<ActiveMode>, expected: ActiveMode) {
    let netns = Netns::new(Wiring::default());
    let (near, far) = (netns.a(), netns.b());
    let program = attach(near, mode, expected);
    let address = near.interface().ipv4;
    let listener = enter(near, || TcpListener::bind((address, 988))).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut text = [0; 5];
        stream.read_exact(&mut text).unwrap();
        stream.write_all(&text).unwrap();
        text
    });
    // TCP, and ARP before it, to the port that is ours for UDP.
    let mut stream = enter(far, || TcpStream::connect_timeout(&(address, 988).into(), PATIENCE)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"hello").unwrap();
    let mut text = [0; 5];
    stream.read_exact(&mut text).unwrap();
    assert_eq!((&text, server.join().unwrap()), (b"hello", *b"hello"));
    // UDP to another port; to ours, of another kind; to ours, where the slot is empty.
    let (other, ours, sender) = (udp(near, 4000), udp(near, 988), udp(far, 0));
    let frame = datagram(near, MessageType::Get);
    for (socket, port, bytes) in
        [(&other, 4000, frame.as_slice()), (&ours, 988, [7; 200].as_slice()), (&ours, 988, frame.as_slice())]
    {
        sender.send_to(bytes, (address, port)).unwrap();
        let mut received = vec![0; 2000];
        let length = socket.recv(&mut received).unwrap();
        assert_eq!(&received[..length], bytes, "to port {port}");
    }
    let counters = program.counters().unwrap();
    for (reason, at_least) in [
        (Reason::NotIp, 1),
        (Reason::NotUdp, 3),
        (Reason::NotOurs, 1),
        (Reason::BadMagic, 1),
        (Reason::NoSocket, 1),
    ] {
        assert!(counters.frames(reason) >= at_least, "{reason:?}: {counters:?}");
    }
    assert_eq!(counters.redirected(), 0);
}

#[test]
fn traffic_of_others_passes_up_in_native_mode() {
    if require_privilege("traffic_of_others_passes_up_in_native_mode", &NETNS_NODES) {
        others_go_on(Some(ActiveMode::Native), ActiveMode::Native);
    }
}

#[test]
fn traffic_of_others_passes_up_in_generic_mode() {
    if require_privilege("traffic_of_others_passes_up_in_generic_mode", &NETNS_NODES) {
        others_go_on(Some(ActiveMode::Generic), ActiveMode::Generic);
    }
}

#[test]
fn a_fault_rule_drops_real_frames() {
    if !require_privilege("a_fault_rule_drops_real_frames", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let (near, far) = (netns.a(), netns.b());
    let mut program = attach(near, Some(ActiveMode::Native), ActiveMode::Native);
    program.set_fault(MessageType::Get, 1_000_000, 0).unwrap();
    let (ours, sender) = (udp(near, 988), udp(far, 0));
    let (get, ack) = (datagram(near, MessageType::Get), datagram(near, MessageType::Ack));
    for bytes in [&get, &get, &ack] {
        sender.send_to(bytes, ours.local_addr().unwrap()).unwrap();
    }
    // The rule strikes before the slot is looked at; what passes up is the ACK, sent last.
    let mut received = vec![0; 2000];
    let length = ours.recv(&mut received).unwrap();
    assert_eq!(&received[..length], ack);
    assert_eq!(program.counters().unwrap().frames(Reason::FaultDropped), 2);
}
