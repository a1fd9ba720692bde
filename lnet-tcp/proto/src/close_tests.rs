//! What ends, and when.

use super::*;

#[test]
fn a_connection_that_was_handed_over_in_vain_is_closed_once() {
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let ends = |host| Ends {
        remote: (core::net::Ipv4Addr::new(10, 0, 0, host), 1000).into(),
        local: core::net::Ipv4Addr::new(10, 0, 0, 2).into(),
    };
    let mut adopted = |host| {
        let hello = hello(host, Version::V3, ConnectionType::Control);
        node.sock.adopt(now, &HandedOver { ni: NI, hello, ends: ends(host) }, &mut node.shard)
    };
    assert!((10..26).all(|host| adopted(host).is_some()));
    // There is no room for another peer: `None` says all.
    assert_eq!(adopted(26), None);
    assert_eq!((node.count(SocklndEvent::PeersFull), node.sock.poll_action()), (1, None));
    assert_eq!(node.sock.usage().connections, 16);
}

#[test]
fn an_interface_that_goes_ends_all_that_is_its() {
    let mut pair = Pair::new(1000);
    pair.submit(0, 0, 64);
    pair.run();
    pair.nodes[1].shard.verdicts = [Verdict::Delay].into();
    pair.submit(0, 1, 64);
    pair.run();
    let (now, node) = (pair.now, &mut pair.nodes[1]);
    let own = node.nid;
    node.sock.submit(now, &transmit(8, own, nid(0, 40), 5)).unwrap();
    node.sock.close_ni(now, NI, &mut node.shard);
    node.close(now);
    assert_eq!(node.shard.received.last().unwrap().1, Status::Unknown(Cause::Reset));
    assert_eq!(node.sock.poll_ended(), Some((TxId(8), Status::NeverSent(Cause::Device))));
    assert_eq!((node.sock.usage().connections, node.sock.peers.used_count()), (0, 0));
    node.sock.submit(now, &transmit(9, own, nid(0, 40), 5)).unwrap();
    assert_eq!(node.sock.poll_ended(), Some((TxId(9), Status::NeverSent(Cause::Device))));
}

/// A stream that ends by an error, or in the middle of a message, is told of; one that ends in order is not.
#[test]
fn connections_that_break_are_told() {
    let ended = |errno, is_sending: bool, received_bytes: usize| {
        let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
        let conn = played(&mut node, now, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
        sent(&mut node, now, conn);
        let (own, peer) = (node.nid, nid(0, 1));
        node.take(now, conn, &message(&header(peer, own, LONG_BYTES), [0; 2], 0)[..received_bytes], 1000);
        if is_sending {
            node.sock.submit(now, &transmit(3, own, peer, 100)).unwrap();
            assert_eq!(node.sock.poll_ready(), Some(conn));
            assert!(node.sock.poll_send(now, conn).is_some());
        }
        node.sock.ended(now, conn, errno, &mut node.shard);
        let broken = node.sock.poll_broken();
        assert_eq!(node.sock.counters().get(SocklndEvent::Broken), u64::from(broken.is_some()));
        assert_eq!(node.sock.poll_broken(), None);
        broken.map(|broken| {
            assert_eq!((broken.path.peer, broken.errno), (peer, errno));
            (broken.connections, broken.messages)
        })
    };
    assert_eq!(ended(None, false, 0), None);
    assert_eq!(ended(Some(errno::ECONNRESET), false, 0), Some((1, 0)));
    assert_eq!(ended(None, true, 0), Some((1, 1)));
    assert_eq!(ended(None, false, 100), Some((1, 1)));
    assert_eq!(ended(Some(errno::EPIPE), true, 100), Some((1, 2)));
}

/// Messages that were sent whole have ended well. Where they may not have been read, the shard is told once
/// of all connections of the peer; of an end in order, and of messages that the peer must have read, never.
#[test]
fn messages_that_were_sent_and_may_be_unread_are_told_once() {
    /// A peer that is sent a message at zero speaks after some time, and then the connection ends.
    fn told(errno: Option<u8>, speaks_after: Option<Duration>, ends_after: Duration, is_known: bool) -> bool {
        let (mut node, start) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
        let kinds = [ConnectionType::Control, ConnectionType::BulkIn];
        let conns = kinds.map(|kind| {
            let conn = played(&mut node, start, 1, 1000, hello(1, Version::V3, kind));
            sent(&mut node, start, conn);
            conn
        });
        let (own, peer) = (node.nid, nid(0, 1));
        node.sock.submit(start, &transmit(3, own, peer, 100)).unwrap();
        let conn = node.sock.poll_ready().unwrap();
        sent(&mut node, start, conn);
        assert_eq!(node.sock.poll_ended(), Some((TxId(3), Status::Ok)));
        if is_known {
            node.sock.unacknowledged(start, conn, 0, &mut node.shard);
        }
        if let Some(after) = speaks_after {
            let whole = message(&header(peer, own, 0), [0; 2], 0);
            assert!(node.take(start + after, conns[1], &whole, 1000).is_empty());
        }
        node.sock.ended(start + ends_after, conns[0], errno, &mut node.shard);
        let broken = node.sock.poll_broken();
        let is_told = !node.shard.lost.is_empty();
        assert_eq!(broken.map(|it| (it.messages, it.has_unread)), errno.map(|_| (0, is_told)));
        let path = Path { ni: NI, peer };
        assert_eq!(node.shard.lost, if is_told { vec![(path, Cause::Reset)] } else { Vec::new() });
        is_told
    }
    const MS: Duration = Duration::from_millis(1);
    let reset = Some(errno::ECONNRESET);
    assert!(told(reset, None, MS, true), "the peer's system has it, and its program may not");
    assert!(told(Some(errno::EPIPE), Some(MS), 2 * MS, true), "what comes may be older");
    assert!(!told(reset, Some(1001 * MS), 1002 * MS, false), "who speaks a second later has read it");
    assert!(!told(None, None, MS, true), "the peer has closed in order");
    assert!(!told(reset, None, 51 * SECOND, true), "who lives for so long has read what it has");
    assert!(told(reset, None, 51 * SECOND, false), "it may never have arrived");
}

/// An idle peer that is reset has lost nothing, and a message that was sent in part ends by its own event.
#[test]
fn nothing_is_told_lost_where_nothing_was_sent_or_a_message_tells() {
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let conn = played(&mut node, now, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
    sent(&mut node, now, conn);
    node.sock.ended(now, conn, Some(errno::ECONNRESET), &mut node.shard);
    assert_eq!(
        (node.sock.poll_broken().map(|broken| broken.has_unread), &node.shard.lost[..]),
        (Some(false), &[][..])
    );
    node.close(now);

    let conn = played(&mut node, now, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
    sent(&mut node, now, conn);
    let (own, peer) = (node.nid, nid(0, 1));
    for tx in 3..5 {
        node.sock.submit(now, &transmit(tx, own, peer, 100)).unwrap();
    }
    let conn = node.sock.poll_ready().unwrap();
    let first = node.sock.poll_send(now, conn).unwrap();
    node.sock.sent(now, conn, u64::from(first.length) + 100, &mut node.shard);
    assert!(node.sock.poll_send(now, conn).is_some());
    node.sock.ended(now, conn, Some(errno::ECONNRESET), &mut node.shard);
    let broken = node.sock.poll_broken().unwrap();
    assert_eq!((broken.messages, broken.has_unread, node.shard.lost.len()), (1, true, 0));
    node.close(now);
    let ended: Vec<_> = core::iter::from_fn(|| node.sock.poll_ended()).collect();
    assert_eq!(ended, [(TxId(3), Status::Ok), (TxId(4), Status::Unknown(Cause::Reset))]);
}

/// The driver may be sending a payload, and receiving another into its place, when the connection ends.
#[test]
fn messages_end_once_their_stream_is_closed() {
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let conn = played(&mut node, now, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
    sent(&mut node, now, conn);
    let (own, peer) = (node.nid, nid(0, 1));
    let whole = message(&header(peer, own, LONG_BYTES), [0; 2], 0);
    node.take(now, conn, &whole[..whole.len() - 60], 1000);
    node.sock.submit(now, &transmit(3, own, peer, 100)).unwrap();
    assert_eq!(node.sock.poll_ready(), Some(conn));
    assert!(node.sock.poll_send(now, conn).is_some());

    node.sock.ended(now, conn, None, &mut node.shard);
    assert_eq!(node.sock.poll_action(), Some(StreamOrder::Close { conn }));
    assert_eq!((node.shard.received.len(), node.sock.poll_ended()), (0, None), "the memory is in use");
    assert_eq!(node.sock.wants(conn), Wants::Nothing);
    // Time changes nothing, nor does the end of the NI.
    node.sock.handle_timeout(now + SECOND * 1000, &mut node.shard);
    node.sock.close_ni(now, NI, &mut node.shard);
    assert_eq!((node.sock.poll_action(), node.sock.poll_ended()), (None, None));

    node.sock.closed(now, conn, &mut node.shard);
    let lost = Status::Unknown(Cause::Reset);
    assert_eq!(node.shard.received, [(RxId(0), lost)]);
    assert_eq!(node.sock.poll_ended(), Some((TxId(3), lost)));
    let SocklndUsage { connections, messages, incoming, .. } = node.sock.usage();
    assert_eq!((connections, messages, incoming), (0, 0, 0));
}

#[test]
fn the_name_of_a_connection_is_free_once_its_stream_is_closed() {
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let conn = played(&mut node, now, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
    node.sock.ended(now, conn, None, &mut node.shard);
    let ends = Ends {
        remote: (core::net::Ipv4Addr::new(10, 0, 0, 3), 1000).into(),
        local: core::net::Ipv4Addr::new(10, 0, 0, 2).into(),
    };
    let handed = HandedOver { ni: NI, hello: hello(3, Version::V3, ConnectionType::Control), ends };
    let adopted = node.sock.adopt(now, &handed, &mut node.shard).unwrap();
    assert_ne!(adopted, conn);
    assert_eq!((node.sock.poll_action(), node.sock.poll_action()), (Some(StreamOrder::Close { conn }), None));
    node.sock.closed(now, conn, &mut node.shard);
    let handed = HandedOver { hello: hello(4, Version::V3, ConnectionType::Control), ..handed };
    assert_eq!(node.sock.adopt(now, &handed, &mut node.shard), Some(conn));
}

/// A peer dials while it is dialled: of each type there may be one more than this node wants, and no more
/// than that. To close it would end all of the peer's connections.
#[test]
fn a_dial_under_way_makes_one_connection_more_at_most() {
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    // The peer's name is the larger one, so it is not refused for the race.
    let (own, peer) = (node.nid, 3);
    node.sock.submit(now, &transmit(1, own, nid(0, peer), 5)).unwrap();
    let mut ports = 900..;
    let mut dialled_by_peer = |node: &mut Node, kind: ConnectionType| {
        let said = hello(peer, Version::V3, kind.inverted());
        let conn = played(node, now, peer, ports.next().unwrap(), said);
        // The message may follow.
        let Ok(Parsed::Whole(answer, _)) = Hello::parse(&sent(node, now, conn)) else { panic!("no HELLO") };
        answer.connection
    };
    for (kind, most) in
        [(ConnectionType::Control, 1), (ConnectionType::BulkIn, 2), (ConnectionType::BulkOut, 2)]
    {
        let dial = loop {
            match node.sock.poll_action().expect("a connection is dialled") {
                StreamOrder::Dial { conn, .. } => break conn,
                StreamOrder::Close { conn } => node.sock.closed(now, conn, &mut node.shard),
                StreamOrder::Serve { .. } | StreamOrder::Ask { .. } => {}
                StreamOrder::HandOver { .. } => unreachable!("there is one shard"),
            }
        };
        node.sock.dialled(now, dial, Ok(PORT), &mut node.shard);
        sent(&mut node, now, dial);
        assert!((0..most).all(|_| dialled_by_peer(&mut node, kind) == Some(kind)), "{kind:?}");
        let mut bytes = [0; HELLO_BYTES_MAX];
        let length = hello(peer, Version::V3, kind.inverted()).encode(&mut bytes).unwrap();
        assert!(node.take(now, dial, &bytes[..length], 1000).is_empty());
        assert_eq!(dialled_by_peer(&mut node, kind), None, "{kind:?}");
        let known = node.sock.connections.used();
        let count =
            known.filter(|(_, known)| known.phase == connection::Phase::Established && known.kind == kind);
        assert_eq!(count.count(), most + 1, "{kind:?}");
    }
}

/// A cut that nothing tells of: the stream takes bytes no more, long before that ends the connection.
#[test]
fn a_stream_that_takes_nothing_is_reported_as_silent() {
    use lnet_core::lnd::{Path, PathReport};

    use core::time::Duration;

    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let conn = played(&mut node, now, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
    sent(&mut node, now, conn);
    let (own, peer) = (node.nid, nid(0, 1));
    let after = |node: &mut Node, milliseconds| {
        node.sock.handle_timeout(now + Duration::from_millis(milliseconds), &mut node.shard);
        core::iter::from_fn(|| node.sock.poll_report()).collect::<alloc::vec::Vec<_>>()
    };
    after(&mut node, 0);
    assert_eq!(after(&mut node, 20_000), [], "there is nothing to be sent");
    let begun = now + Duration::from_secs(20);
    node.sock.submit(begun, &transmit(3, own, peer, 100)).unwrap();
    assert_eq!(node.sock.poll_ready(), Some(conn));
    assert!(node.sock.poll_send(begun, conn).is_some());
    let silent = (Path { ni: NI, peer }, PathReport::Silent);
    assert_eq!(after(&mut node, 21_400), []);
    assert_eq!(after(&mut node, 21_500), [silent]);
    assert_eq!(after(&mut node, 21_900), []);
    assert_eq!(after(&mut node, 22_000), [silent], "as long as it lasts");
    node.sock.sent(now + Duration::from_secs(25), conn, 1, &mut node.shard);
    let answers = (silent.0, PathReport::Answers { round_trip: None });
    assert_eq!(after(&mut node, 25_000), [answers]);
    assert_eq!(after(&mut node, 26_400), []);
    assert_eq!(after(&mut node, 26_500), [silent]);
}

#[test]
fn what_was_not_sent_outlives_its_connection() {
    let mut pair = Pair::new(1000);
    pair.submit(0, 0, 64);
    pair.run();
    pair.submit(0, 1, 64);
    // Before it leaves.
    pair.cut();
    pair.run();
    pair.wait(SECOND);
    assert_eq!(pair.nodes[0].ended, [(TxId(0), Status::Ok), (TxId(1), Status::Ok)]);
    assert_eq!(pair.nodes[1].shard.headers.len(), 2);
}
