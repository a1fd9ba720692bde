//! An NI over rings and an NI over a socket of the same nodes: one transfer protocol over both.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant as Clock};

use lnet_core::handle::{ShardId, ShardSet};
use lnet_core::lnd::{NiId, Status, Transmit, TxId};
use lnet_core::time::Instant;
use lnet_io::driver::Driver;
use lnet_io::netlink::Neighbours;
use lnet_io::reactor::Reactor;
use lnet_io::reactor::udp::{Endpoint, EndpointConfig, UdpSocket};
use lnet_wire::nid::Net;
use lnet_wire::packet::endpoint;
use lnet_wire::{Nid, ProcessId};

use super::super::Port;
use super::acquainted;
use super::node::{Node, Plan};
use super::sockets::{DATAGRAM_BYTES_MAX, socket_port};
use super::wire::Wire;

const SOCKET_NI: NiId = NiId(1);
const PATIENCE: Duration = Duration::from_secs(10);

fn rail(host: u8) -> Nid {
    Nid::new_ip(Net::XDP, [127, 0, 1, host].into()).unwrap()
}

/// Gives a node an NI over a socket of the loopback interface; the port that it has.
fn add_socket(node: &mut Node, udp_port: u16) -> u16 {
    let nid = rail(node.plan.host);
    let address: IpAddr = nid.ip().unwrap();
    let socket = UdpSocket::bind(SocketAddr::new(address, udp_port), None).unwrap();
    let udp_port = socket.address().port();
    let port = Port {
        ni: SOCKET_NI,
        nid,
        address,
        udp_port,
        endpoint: endpoint(address, udp_port),
        interface_index: 1,
        mac: [0; 6],
        mtu_bytes: 9000,
        checksum: true,
    };
    let sizes = EndpointConfig {
        receive_buffers: 64,
        send_buffers: 16,
        datagram_max_bytes: DATAGRAM_BYTES_MAX,
        receives_runs: true,
        reactor: Reactor::default(),
    };
    let endpoint = Endpoint::new(socket, &sizes).unwrap();
    let port = socket_port(port, endpoint, &Neighbours::silent(), (ShardSet::all(1), ShardId(0)));
    let lnd = &mut node.shards[0].lnd;
    lnd.common.opened.store(true, Ordering::Release);
    lnd.add_port(port);
    udp_port
}

/// A PUT by the sockets.
fn put_by_socket([a, b]: &[Node; 2], tx: u32, match_bits: u64, length_bytes: u32) -> Transmit {
    let mut put = a.put(tx, &b.plan, match_bits, length_bytes);
    (put.ni, put.next_hop) = (SOCKET_NI, rail(b.plan.host));
    (put.header.source, put.header.destination) =
        (ProcessId::lustre(rail(a.plan.host)), ProcessId::lustre(rail(b.plan.host)));
    put
}

/// Drives both nodes, with no more than their sockets between them, until the first has so many ends.
fn run_by_sockets(wire: &mut Wire, ends: usize) {
    let begun = Clock::now();
    while wire.nodes[0].shards[0].up.sent.len() < ends {
        wire.now = Instant(wire.now.0 + 20_000);
        for node in &mut wire.nodes {
            // What rings send is lost.
            node.take_sent(0);
            node.shards[0].drive(wire.now);
        }
        assert!(begun.elapsed() < PATIENCE, "{:?}", wire.nodes[0].shards[0].up.sent);
    }
}

/// The frames of a message arrive by rings, and what acknowledges them is lost; the NI goes, and the message
/// leaves by the socket again. Its receiver has had it.
#[test]
fn a_message_that_changes_from_rings_to_sockets_is_recognised() {
    for length_bytes in [64, 20_000] {
        let mut wire = acquainted(Plan::new(1), Plan::new(2));
        let udp_port = add_socket(&mut wire.nodes[0], 0);
        add_socket(&mut wire.nodes[1], udp_port);
        // They meet by the sockets as well.
        let (now, put) = (wire.now, put_by_socket(&wire.nodes, 1, 3, 64));
        wire.nodes[0].shards[0].up.sent.clear();
        wire.nodes[0].shards[0].submit_at(now, put).unwrap();
        run_by_sockets(&mut wire, 1);
        assert_eq!(wire.nodes[1].shards[0].up.arrived_by, Some(SOCKET_NI));

        wire.nodes[1].shards[0].up.arrived.clear();
        let received = wire.nodes[1].shards[0].up.received;
        let now = wire.now;
        let [a, b] = &mut wire.nodes;
        let put = a.put(2, &b.plan, 9, length_bytes);
        a.shards[0].submit_at(now, put).unwrap();
        for packet in a.take_sent(0) {
            assert!(b.deliver(0, 0, &packet));
        }
        b.shards[0].drive(now);
        assert_eq!(b.shards[0].up.arrived, [(9, length_bytes)]);
        assert_eq!(b.shards[0].up.arrived_by, Some(NiId(0)));
        assert_eq!(a.shards[0].up.sent.len(), 1, "its acknowledgement is not there");

        let shard = &mut a.shards[0];
        shard.lnd.close_port(now, NiId(0), &mut shard.up, &shard.memory);
        run_by_sockets(&mut wire, 2);
        let [a, b] = &wire.nodes;
        assert_eq!(a.shards[0].up.sent[1], (TxId(2), Status::Ok));
        assert_eq!(b.shards[0].up.arrived, [(9, length_bytes)], "it came once");
        assert_eq!(b.shards[0].up.received, received + 1);
        assert_ne!(a.shards[0].lnd.transfer_counters().frames_resent, 0, "by the socket");
    }
}
