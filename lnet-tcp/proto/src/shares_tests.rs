//! How much of everything one address may have.

use super::*;
use crate::connection::Phase;
use crate::peer::is_port;
use crate::shares::Counts;

impl Node {
    /// Counts by address are those of what there is.
    #[track_caller]
    fn check_shares(&self) {
        let connections = &self.sock.connections;
        let of = |host| nid(0, host).ip().unwrap();
        for address in (0..=255).map(of) {
            let is_its = |slot| connections.get(slot).is_some_and(|its| its.ends.remote.ip() == address);
            let its: Vec<_> = connections.used().filter(|(slot, _)| is_its(*slot)).collect();
            let peers = self.sock.peers.used().filter(|(_, peer)| is_its(peer.connections.first()));
            let counts = Counts {
                connections: its.len() as u32,
                handshakes: self.sock.handshakes.iter().filter(|slot| is_its(**slot)).count() as u32,
                peers: peers.count() as u32,
            };
            assert_eq!(self.sock.shares.of(address), counts, "{address}");
            if its.is_empty() {
                continue;
            }
            let is_named = |connection: &&Connection| {
                let peer = self.sock.peers.get(connection.peer);
                connection.phase == Phase::Established && !peer.is_some_and(|peer| is_port(peer.pid))
            };
            let named = its.iter().filter(|(_, connection)| is_named(connection)).map(|(slot, _)| *slot);
            let mut listed: Vec<_> =
                self.sock.shares.named(address).iter(connections).map(|(slot, _)| slot).collect();
            listed.sort_unstable();
            assert_eq!(listed, named.collect::<Vec<_>>(), "{address}");
        }
    }

    /// Connections that are looked at for the names of a host.
    fn named_count(&self, host: u8) -> usize {
        self.sock.shares.named(nid(0, host).ip().unwrap()).iter(&self.sock.connections).count()
    }
}

/// Processes of one host that nothing vouches for, each a peer, leave room for other hosts; so do the
/// connections of few peers.
#[test]
fn one_host_does_not_fill_the_tables() {
    let limits = SocklndLimits { connections: 1 << 10, handshakes: 8, peers: 256, messages: 4 };
    let mut node = Node::with(limits);
    let by_port = |node: &mut Node, host, port| {
        let source = ProcessId::lustre(nid(0, host));
        node.closed.clear();
        node.dial_by((host, port), source, 5, ConnectionType::Control)
    };
    let taken = (0..500).filter(|port| by_port(&mut node, 9, 2_000 + port) != Answer::Closed).count();
    assert_eq!(taken, 192, "three quarters");
    for host in 20..50 {
        assert!(matches!(by_port(&mut node, host, 2_000), Answer::Taken(_)), "host {host}");
        assert!(matches!(node.dial(host, host, 5, ConnectionType::Control), Answer::Taken(_)));
        // A peer that is connected has further connections.
        assert!(matches!(node.dial(host, host, 5, ConnectionType::BulkIn), Answer::Taken(_)));
        node.check_shares();
    }
    assert_eq!(by_port(&mut node, 9, 1_999), Answer::Closed);
    // Peers that are known, and not connected, take no room.
    let first = |node: &Node| node.sock.connections.used().map(|(slot, _)| ConnId(slot)).next();
    while let Some(conn) = first(&node) {
        node.sock.ended(NOW, conn, None, &mut Shard);
        node.act();
        node.check_shares();
    }
    assert!(matches!(by_port(&mut node, 9, 1_999), Answer::Taken(_)));

    let mut node = Node::with(SocklndLimits { connections: 128, peers: 128, ..limits });
    let taken = (0..200).filter(|port| by_port(&mut node, 9, 2_000 + port) != Answer::Closed).count();
    assert_eq!(taken, 96);
    assert!(matches!(node.dial(20, 20, 5, ConnectionType::Control), Answer::Taken(_)));
}

/// A peer whose first connection ends counts for the address of the next one.
#[test]
fn peers_count_for_the_address_of_their_first_connection() {
    let mut node = Node::new();
    let first = node.take(9, 30, 5, ConnectionType::Control);
    let second = node.take(8, 30, 5, ConnectionType::BulkIn);
    let of = |node: &Node, host| {
        let counts = node.sock.shares.of(nid(0, host).ip().unwrap());
        (counts.connections, counts.peers)
    };
    assert_eq!([9, 8].map(|host| of(&node, host)), [(1, 1), (1, 0)]);
    for (conn, left) in [(first, [(0, 0), (1, 1)]), (second, [(0, 0); 2])] {
        node.sock.close(NOW, conn.0, &mut Shard);
        node.act();
        assert_eq!([9, 8].map(|host| of(&node, host)), left);
        node.check_shares();
    }
}

/// A host that opens connections and says nothing ends its own handshakes.
#[test]
fn a_host_that_says_nothing_ends_no_handshake_of_others() {
    let mut node = Node::new();
    let ends = |host: u8| Ends {
        remote: (nid(0, host).ip().unwrap(), 1000).into(),
        local: nid(0, OWN).ip().unwrap(),
    };
    let honest = node.sock.accept(NOW, ends(1), &mut Shard).unwrap();
    for _ in 0..100 {
        node.sock.accept(NOW, ends(9), &mut Shard).unwrap();
        node.act();
        assert!(!node.closed.contains(&honest));
        node.check_shares();
    }
    assert_eq!(node.count(SocklndEvent::HandshakesFull), 96);
}

/// Handshakes end well, by the peer's fault, by its silence, or since it is refused: none counts any longer.
#[test]
fn handshakes_that_are_over_do_not_count() {
    let mut node = Node::new();
    let of = |node: &Node| node.sock.shares.of(nid(0, 9).ip().unwrap()).handshakes;
    let ends = Ends { remote: (nid(0, 9).ip().unwrap(), 1000).into(), local: nid(0, OWN).ip().unwrap() };
    node.take(1, 1, 5, ConnectionType::Control);
    assert_eq!(node.dial(9, 1, 5, ConnectionType::Control), Answer::Refused, "the name of another one");
    assert_eq!(node.dial_as(9, nid(7, 1), 1, ConnectionType::Control), Answer::Closed);
    node.take(9, 9, 5, ConnectionType::Control);
    assert_eq!(of(&node), 0);
    for say in [&[][..], &[0xff; CONNECTION_REQUEST_BYTES_MAX]] {
        let conn = node.sock.accept(NOW, ends, &mut Shard).unwrap();
        assert_eq!(of(&node), 1);
        node.sock.take(NOW, conn, say, &mut Shard);
        node.sock.handle_timeout(NOW + SockTunables::DEFAULT.accept_timeout, &mut Shard);
        node.act();
        node.check_shares();
        assert_eq!(of(&node), 0);
    }
}

/// A host that comes from many ports, and in one name after the other, has few connections looked at for its
/// names, and none of other hosts.
#[test]
fn few_connections_are_looked_at_for_the_names_of_a_host() {
    let limits = SocklndLimits { connections: 1 << 10, handshakes: 8, peers: 256, messages: 4 };
    let mut node = Node::with(limits);
    for host in 20..60 {
        node.take(host, host, 5, ConnectionType::Control);
    }
    for port in 2_000..2_100 {
        let source = ProcessId::lustre(nid(0, 9));
        assert!(matches!(node.dial_by((9, port), source, 5, ConnectionType::Control), Answer::Taken(_)));
    }
    assert_eq!(node.named_count(9), 0);
    for name in 100..200 {
        node.closed.clear();
        for kind in [ConnectionType::Control, ConnectionType::BulkIn] {
            node.take(9, name, 5, kind);
        }
        node.check_shares();
        assert!(node.named_count(9) <= 4 * 2, "{} connections", node.named_count(9));
    }
}
