//! Traffic of others over an interface with the program: it goes on as before.
//!
//! ```text
//!   namespace near                     namespace far
//!   near0 10.77.0.1/24 [lnet_xdp] ---- far0 10.77.0.2/24
//! ```

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use lnet_tests::bpf::frames::Frame;
use lnet_tests::bpf::netns::{FAR, NEAR, Namespace};
use lnet_tests::bpf::{load, privileged};
use lnet_user::bpf::{ActiveMode, AttachMode, ObjectKind, XdpProgram};
use lnet_wire::header::MessageType;
use lnet_wire::steer::Reason;

const PATIENCE: Duration = Duration::from_secs(10);

fn pair() -> (Namespace, Namespace) {
    let (near, far) = (Namespace::new(), Namespace::new());
    near.add_veth(1, Some(&far));
    near.ip(&["addr", "add", "10.77.0.1/24", "dev", NEAR]);
    far.ip(&["addr", "add", "10.77.0.2/24", "dev", FAR]);
    (near, far)
}

fn attach(near: &Namespace, mode: AttachMode, expected: ActiveMode) -> XdpProgram {
    let _inside = near.enter();
    let mut program = load(ObjectKind::Default);
    program.set_shards(2).unwrap();
    program.add_endpoint("10.77.0.1".parse().unwrap(), 988).unwrap();
    assert_eq!(program.attach(NEAR, mode).unwrap(), expected);
    program
}

fn udp(namespace: &Namespace, address: &str) -> UdpSocket {
    let _inside = namespace.enter();
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// What our frames look like to a UDP socket.
fn datagram(message_type: MessageType) -> Vec<u8> {
    let frame = Frame::new("10.77.0.1".parse().unwrap(), 988, message_type);
    frame.bytes()[frame.payload_offset()..].to_vec()
}

fn others_go_on(mode: AttachMode, expected: ActiveMode) {
    let (near, far) = pair();
    let program = attach(&near, mode, expected);
    let listener = {
        let _inside = near.enter();
        TcpListener::bind("10.77.0.1:988").unwrap()
    };
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut text = [0; 5];
        stream.read_exact(&mut text).unwrap();
        stream.write_all(&text).unwrap();
        text
    });
    // TCP, and ARP before it, to the port that is ours for UDP.
    let mut stream = {
        let _inside = far.enter();
        TcpStream::connect_timeout(&"10.77.0.1:988".parse().unwrap(), PATIENCE).unwrap()
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"hello").unwrap();
    let mut text = [0; 5];
    stream.read_exact(&mut text).unwrap();
    assert_eq!((&text, server.join().unwrap()), (b"hello", *b"hello"));
    // UDP to another port; to ours, of another kind; to ours, where the slot is empty.
    let (other, ours) = (udp(&near, "10.77.0.1:4000"), udp(&near, "10.77.0.1:988"));
    let sender = udp(&far, "10.77.0.2:0");
    let frame = datagram(MessageType::Get);
    for (socket, target, bytes) in [
        (&other, "10.77.0.1:4000", frame.as_slice()),
        (&ours, "10.77.0.1:988", [7; 200].as_slice()),
        (&ours, "10.77.0.1:988", frame.as_slice()),
    ] {
        sender.send_to(bytes, target).unwrap();
        let mut received = vec![0; 2000];
        let length = socket.recv(&mut received).unwrap();
        assert_eq!(&received[..length], bytes, "to {target}");
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
    if privileged("traffic_of_others_passes_up_in_native_mode") {
        others_go_on(AttachMode::Native, ActiveMode::Native);
    }
}

#[test]
fn traffic_of_others_passes_up_in_generic_mode() {
    if privileged("traffic_of_others_passes_up_in_generic_mode") {
        others_go_on(AttachMode::Generic, ActiveMode::Generic);
    }
}

#[test]
fn a_fault_rule_drops_real_frames() {
    if !privileged("a_fault_rule_drops_real_frames") {
        return;
    }
    let (near, far) = pair();
    let mut program = attach(&near, AttachMode::Native, ActiveMode::Native);
    program.set_fault(MessageType::Get, 1_000_000, 0).unwrap();
    let ours = udp(&near, "10.77.0.1:988");
    let sender = udp(&far, "10.77.0.2:0");
    let (get, ack) = (datagram(MessageType::Get), datagram(MessageType::Ack));
    for bytes in [&get, &get, &ack] {
        sender.send_to(bytes, "10.77.0.1:988").unwrap();
    }
    // The rule strikes before the slot is looked at; what passes up is the ACK, sent last.
    let mut received = vec![0; 2000];
    let length = ours.recv(&mut received).unwrap();
    assert_eq!(&received[..length], ack);
    assert_eq!(program.counters().unwrap().frames(Reason::FaultDropped), 2);
}
