//! Peers that refuse, that speak another protocol, and that have other names than kernel nodes.

use super::*;

/// What a peer that is dialled says.
enum Says {
    /// NONE, in this version.
    None(Version),
    /// That it takes the connection.
    Yes,
}

/// A dial has reached the peer: its HELLO.
fn dialled(node: &mut Node, now: Instant, conn: ConnId) -> Hello {
    node.sock.dialled(now, conn, Ok(PORT), &mut node.shard);
    let said = sent(node, now, conn);
    let Ok(Parsed::Whole(_, request_bytes)) = ConnectionRequest::parse(&said) else { panic!("{said:?}") };
    super::answer(&said[request_bytes..])
}

/// The peer's answer to a HELLO.
fn reply(
    node: &mut Node,
    now: Instant,
    conn: ConnId,
    hello: &Hello,
    version: Version,
    connection: Option<ConnectionType>,
) {
    let said = Hello {
        version,
        source: ProcessId::lustre(hello.destination.nid),
        destination: hello.source,
        source_incarnation: 5,
        connection,
        ..*hello
    };
    let mut bytes = [0; HELLO_BYTES_MAX];
    let length = said.encode(&mut bytes).unwrap();
    node.take(now, conn, &bytes[..length], 1000);
}

/// Has a peer answer all dials for so many seconds; when it was dialled, in which version, and for which
/// type.
fn answer_dials(
    node: &mut Node,
    from: Instant,
    seconds: u32,
    mut answer: impl FnMut(&Hello) -> Says,
) -> Vec<(u64, Version, ConnectionType)> {
    let mut dials = Vec::new();
    let mut now = from;
    loop {
        while let Some(action) = node.sock.poll_action() {
            let conn = match action {
                StreamOrder::Dial { conn, .. } => conn,
                StreamOrder::Close { conn } => {
                    node.sock.closed(now, conn, &mut node.shard);
                    continue;
                }
                StreamOrder::Serve { .. } | StreamOrder::Ask { .. } => continue,
                StreamOrder::HandOver { .. } => unreachable!("there is one shard"),
            };
            let hello = dialled(node, now, conn);
            let kind = hello.connection.expect("a type is asked for");
            dials.push(((now.0 - from.0) / 1_000_000_000, hello.version, kind));
            assert!(dials.len() < 50, "it dials without a pause: {dials:?}");
            let (version, connection) = match answer(&hello) {
                Says::None(version) => (version, None),
                Says::Yes => (hello.version, Some(kind.inverted())),
            };
            reply(node, now, conn, &hello, version, connection);
            while let Some(ready) = node.sock.poll_ready() {
                sent(node, now, ready);
            }
        }
        match node.sock.poll_timeout().filter(|at| *at <= from + SECOND * seconds) {
            Some(at) => now = now.max(at),
            None => return dials,
        }
        node.sock.handle_timeout(now, &mut node.shard);
    }
}

fn dialling(tx: u32) -> (Node, Instant) {
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let own = node.nid;
    node.sock.submit(now, &transmit(tx, own, nid(0, 1), 64)).unwrap();
    (node, now)
}

#[test]
fn a_peer_of_an_older_protocol_is_dialled_in_it_at_once() {
    use ConnectionType::{BulkIn, BulkOut, Control};
    let (mut node, now) = dialling(3);
    let dials = answer_dials(&mut node, now, 100, |hello| match hello.version {
        Version::V2 => Says::Yes,
        _ => Says::None(Version::V2),
    });
    let types = [Control, BulkIn, BulkOut, BulkIn, BulkOut].map(|kind| (0, Version::V2, kind));
    assert_eq!(dials[0], (0, Version::V3, Control));
    assert_eq!(dials[1..], types);
    assert_eq!(node.sock.poll_ended(), Some((TxId(3), Status::Ok)));
}

#[test]
fn a_peer_that_names_another_protocol_each_time_is_not_dialled_without_pause() {
    let (mut node, now) = dialling(3);
    let dials = answer_dials(&mut node, now, 100, |hello| match hello.version {
        Version::V2 => Says::None(Version::V3),
        _ => Says::None(Version::V2),
    });
    let times: Vec<_> = dials.iter().map(|(second, ..)| *second).collect();
    assert_eq!(times, [0, 0, 1, 2]);
}

#[test]
fn three_refusals_are_a_failure_without_all_types() {
    let (mut node, now) = dialling(3);
    let dials = answer_dials(&mut node, now, 2, |hello| Says::None(hello.version));
    assert_eq!(dials.iter().map(|(second, ..)| *second).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(
        node.sock.poll_ended(),
        Some((TxId(3), Status::NeverSent(Cause::System(errno::ECONNREFUSED))))
    );
    // Each further one is a failure, with a longer pause behind it.
    let mut pauses = Vec::new();
    let (mut now, own) = (now + SECOND * 2, node.nid);
    for _ in 0..100 {
        now = now + SECOND;
        node.sock.submit(now, &transmit(4, own, nid(0, 1), 64)).unwrap();
        let dialled = answer_dials(&mut node, now, 0, |hello| Says::None(hello.version));
        pauses.push(!dialled.is_empty());
        assert_eq!(
            node.sock.poll_ended(),
            Some((TxId(4), Status::NeverSent(Cause::System(errno::ECONNREFUSED))))
        );
    }
    let dialled = pauses.iter().enumerate().filter(|(_, dialled)| **dialled).map(|(index, _)| index + 1);
    assert_eq!(dialled.collect::<Vec<_>>(), [2, 6, 14, 30, 62]);
}

#[test]
fn with_all_types_three_refusals_are_the_end_of_it() {
    let (mut node, now) = dialling(3);
    let mut taken = 0;
    let dials = answer_dials(&mut node, now, 100, |hello| {
        taken += 1;
        if taken <= 3 { Says::Yes } else { Says::None(hello.version) }
    });
    assert_eq!(dials.iter().map(|(second, ..)| *second).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 2]);
    assert_eq!(node.count(SocklndEvent::DialFailed), 0);
}

#[test]
fn a_peer_of_this_host_has_no_more_connections_than_can_be_counted() {
    let limits = SocklndLimits { connections: 1024, handshakes: 8, peers: 16, messages: 64 };
    let config = SocklndConfig { limits, ..Node::new(2, SockTunables::DEFAULT).sock.config };
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    node.sock = Socklnd::new(config);
    node.sock.add_ni(SocklndNi {
        ni: NI,
        nid: node.nid,
        incarnation: 2,
        conns_per_peer: 2,
        serving: ShardSet::all(1),
    });
    let mut answers = Vec::new();
    for _ in 0..300 {
        // The dialler has the address of the NI itself.
        let conn = played(&mut node, now, 2, 1000, hello(2, Version::V3, ConnectionType::BulkIn));
        answers.push(super::answer(&sent(&mut node, now, conn)).connection.is_some());
        node.close(now);
    }
    assert_eq!(answers.iter().filter(|taken| **taken).count(), 255);
    assert_eq!((answers[254], answers[255]), (true, false));
    assert_eq!(node.count(SocklndEvent::Duplicate), 45);
}

#[test]
fn an_answer_goes_to_the_process_that_is_connected() {
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let source = ProcessId { nid: nid(0, 1), pid: 99 };
    let said = Hello { source, ..hello(1, Version::V3, ConnectionType::Control) };
    let conn = played(&mut node, now, 1, 1000, said);
    sent(&mut node, now, conn);
    let own = node.nid;
    let back = Transmit {
        header: Header { destination: source, ..header(own, source.nid, 0) },
        ..transmit(3, own, source.nid, 0)
    };
    node.sock.submit(now, &back).unwrap();
    assert_eq!(node.sock.poll_action(), None, "nothing is dialled");
    assert_eq!(sent(&mut node, now, conn).len(), PREFIX_BYTES + 72);
    assert_eq!(node.sock.poll_ended(), Some((TxId(3), Status::Ok)));
    // What is for another process does not go there.
    node.sock.submit(now, &transmit(4, own, source.nid, 0)).unwrap();
    assert!(matches!(node.sock.poll_action(), Some(StreamOrder::Dial { .. })));
}

/// A peer that says NONE once nothing waits for it any more is forgotten like others.
#[test]
fn a_peer_that_refuses_late_is_forgotten() {
    for version in [Version::V3, Version::V2] {
        forgotten_once_it_has_refused_late(version);
    }
}

fn forgotten_once_it_has_refused_late(version: Version) {
    let (mut node, start) = dialling(1);
    let dial = |node: &mut Node| match node.sock.poll_action() {
        Some(StreamOrder::Dial { conn, .. }) => conn,
        action => panic!("{action:?}"),
    };
    let refuse = |node: &mut Node, now, conn, hello: &Hello, version| {
        reply(node, now, conn, hello, version, None);
        assert_eq!(node.sock.poll_action(), Some(StreamOrder::Close { conn }));
        node.sock.closed(now, conn, &mut node.shard);
    };
    let conn = dial(&mut node);
    let hello = dialled(&mut node, start, conn);
    refuse(&mut node, start, conn, &hello, Version::V3);
    let redialled_at = node.sock.poll_timeout().unwrap();
    assert!(redialled_at > start);
    node.sock.handle_timeout(redialled_at, &mut node.shard);
    let conn = dial(&mut node);
    let hello = dialled(&mut node, redialled_at, conn);
    let late = start + SockTunables::DEFAULT.timeout;
    node.sock.handle_timeout(late, &mut node.shard);
    assert_eq!(node.sock.poll_ended(), Some((TxId(1), Status::NeverSent(Cause::System(errno::ETIMEDOUT)))));
    refuse(&mut node, late, conn, &hello, version);
    let known =
        node.sock.known_peer(NI, &nid(0, 1), ProcessId::LUSTRE_PID).map(|peer| &node.sock.peers[peer]);
    assert!(known.is_none_or(|peer| peer.version.is_none() && !peer.has_changed_version), "it is asked anew");
    while let Some(at) = node.sock.poll_timeout() {
        node.sock.handle_timeout(at, &mut node.shard);
    }
    assert_eq!(node.sock.usage().peers, 0);
}

#[test]
fn an_unprivileged_dialler_is_its_address() {
    let tunables = SockTunables { accept: crate::Accept::All, ..SockTunables::DEFAULT };
    let (mut node, now) = (Node::new(2, tunables), Instant(1));
    // It says that it is host 7.
    let conn = played(&mut node, now, 1, 4000, hello(7, Version::V3, ConnectionType::Control));
    sent(&mut node, now, conn);
    node.take(now, conn, &message(&header(nid(0, 7), node.nid, 4), [0; 2], 0), 500);
    let (from, _, header) = node.shard.headers[0];
    let known = ProcessId { nid: nid(0, 1), pid: ProcessId::USER_FLAG | 4000 };
    assert_eq!((from, header.source), (nid(0, 1), known));
    // The answer goes back there, and nowhere once it is gone.
    let own = node.nid;
    let answer = Transmit {
        header: Header { destination: known, ..super::header(own, known.nid, 0) },
        ..transmit(3, own, known.nid, 0)
    };
    node.sock.submit(now, &answer).unwrap();
    assert_eq!(sent(&mut node, now, conn).len(), PREFIX_BYTES + 72);
    assert_eq!(node.sock.poll_ended(), Some((TxId(3), Status::Ok)));
    node.sock.ended(now, conn, None, &mut node.shard);
    node.sock.submit(now, &answer).unwrap();
    assert_eq!(
        node.sock.poll_ended(),
        Some((TxId(3), Status::NeverSent(Cause::System(errno::EHOSTUNREACH))))
    );
}

/// A node without privileges has dialled, and its peer knows it by its port. What goes to its name takes
/// connections of its own.
#[test]
fn a_node_without_privileges_is_reached_by_a_peer_that_it_has_dialled() {
    let mut pair = Pair::with([SockTunables { accept: Accept::All, ..SockTunables::DEFAULT }; 2], 1000);
    pair.ports[0] = 40_000;
    pair.submit(0, 0, 64);
    pair.run();
    pair.submit(1, 0, 64);
    pair.run();
    pair.wait(SECOND * 2);
    assert_eq!(pair.nodes.each_ref().map(|node| node.ended.as_slice()), [&[(TxId(0), Status::Ok)]; 2]);
    assert_eq!(pair.nodes[0].shard.headers.len(), 1);
    assert_eq!(pair.nodes[0].count(SocklndEvent::Duplicate), 0);
    // The other's own connections are counted as ever.
    assert_eq!(pair.nodes[0].sock.usage().peers, 1);
}

/// Nodes without privileges are known by their ports, and get their answers by the connections that they have
/// asked by.
#[test]
fn nodes_without_privileges_reach_each_other_and_get_answers() {
    for (bytes, ports) in
        [0, 64, 1 << 20].into_iter().flat_map(|bytes| [(bytes, [40_000, 50_000]), (bytes, [40_000, PORT])])
    {
        let mut pair = Pair::with([SockTunables { accept: Accept::All, ..SockTunables::DEFAULT }; 2], 1000);
        pair.ports = ports;
        for tx in 0..20 {
            for from in 0..2 {
                pair.submit(from, tx, bytes);
                pair.run();
            }
        }
        for from in 0..2 {
            let asked = pair.nodes[from].shard.headers.iter().take(20);
            let asked: Vec<_> = asked.map(|(_, _, header)| *header).collect();
            for (tx, header) in (20..).zip(asked) {
                let ProcessId { nid, .. } = header.source;
                let own = pair.nodes[from].nid;
                let answer = transmit(tx, own, nid, 0);
                let answer =
                    Transmit { header: Header { destination: header.source, ..answer.header }, ..answer };
                pair.nodes[from].sock.submit(pair.now, &answer).unwrap();
                pair.run();
            }
        }
        pair.wait(SECOND * 2);
        for node in &pair.nodes {
            assert_eq!((node.ended.len(), node.shard.headers.len()), (40, 40), "{bytes} {ports:?}");
            assert!(node.ended.iter().all(|(_, status)| *status == Status::Ok), "{:?}", node.ended);
        }
    }
}
