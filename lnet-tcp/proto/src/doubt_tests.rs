//! Connections that are left open once another one of their peer has ended in order.

use alloc::format;

use super::super::close::DOUBT;
use super::*;

/// A peer with three connections that was sent a message. Then it ends the first one in order; it may have
/// died with the message unread. `before` is called shortly before that.
fn doubting(before: impl FnOnce(&mut Node, Instant, ConnId)) -> (Node, Instant, [ConnId; 2]) {
    let (mut node, start) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let kinds = [ConnectionType::Control, ConnectionType::BulkIn, ConnectionType::BulkOut];
    let [first, second, third] = kinds.map(|kind| {
        let conn = played(&mut node, start, 1, 1000, hello(1, Version::V3, kind));
        sent(&mut node, start, conn);
        conn
    });
    let own = node.nid;
    node.sock.submit(start, &transmit(3, own, nid(0, 1), 100)).unwrap();
    let conn = node.sock.poll_ready().unwrap();
    sent(&mut node, start, conn);
    assert_eq!(node.sock.poll_ended(), Some((TxId(3), Status::Ok)));
    let now = start + Duration::from_millis(1);
    before(&mut node, now, second);
    node.sock.ended(now, first, None, &mut node.shard);
    assert!(node.has_closed(first));
    node.close(now);
    (node, now, [second, third])
}

/// A message of the peer to the node, which is to be acknowledged by this cookie.
fn message_with(node: &Node, payload_bytes: u32, cookie: u64) -> Vec<u8> {
    message(&header(nid(0, 1), node.nid, payload_bytes), [cookie, 0], 0)
}

fn acknowledgements(cookies: impl Iterator<Item = u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for cookie in cookies {
        let mut noop = [0; PREFIX_BYTES];
        Prefix::acknowledgement(cookie).encode(&mut noop);
        bytes.extend(noop);
    }
    bytes
}

/// The system of a peer that was killed closes its connections one by one, those in order that have nothing
/// unread. Nothing is sent by the others meanwhile.
#[test]
fn a_reset_that_follows_an_end_in_order_is_told() {
    #[derive(Debug)]
    enum Then {
        IsReset,
        EndsInOrder,
        Stays,
    }
    for (then, is_idle) in
        [(Then::IsReset, false), (Then::EndsInOrder, false), (Then::Stays, false), (Then::Stays, true)]
    {
        let (mut node, start) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
        let [first, second, third] =
            [ConnectionType::Control, ConnectionType::BulkIn, ConnectionType::BulkOut].map(|kind| {
                let conn = played(&mut node, start, 1, 1000, hello(1, Version::V3, kind));
                sent(&mut node, start, conn);
                conn
            });
        let (own, peer) = (node.nid, nid(0, 1));
        if !is_idle {
            node.sock.submit(start, &transmit(3, own, peer, 100)).unwrap();
            let conn = node.sock.poll_ready().unwrap();
            sent(&mut node, start, conn);
        }
        let now = start + Duration::from_millis(1);
        node.sock.ended(now, first, None, &mut node.shard);
        let left_open = [second, third].iter().filter(|conn| !node.has_closed(**conn)).count();
        assert_eq!((node.has_closed(first), left_open), (true, if is_idle { 0 } else { 2 }), "{then:?}");
        node.close(now);
        node.sock.submit(now, &transmit(4, own, peer, 100)).unwrap();
        while let Some(conn) = node.sock.poll_ready() {
            assert!(sent(&mut node, now, conn).is_empty(), "nothing leaves by the others");
        }
        let what = format!("{then:?} {is_idle}");
        match then {
            Then::IsReset => {
                node.sock.ended(now, second, Some(errno::ECONNRESET), &mut node.shard);
                assert!(node.has_closed(second) && node.has_closed(third), "one reset tells of all");
                let broken = node.sock.poll_broken().unwrap();
                assert_eq!((broken.connections, broken.messages, broken.has_unread), (2, 0, true));
                assert_eq!(node.shard.lost, [(Path { ni: NI, peer }, Cause::Reset)]);
            }
            Then::EndsInOrder => {
                for conn in [second, third] {
                    node.sock.ended(now, conn, None, &mut node.shard);
                }
            }
            Then::Stays => {}
        }
        node.sock.handle_timeout(start + DOUBT + SECOND / 10, &mut node.shard);
        assert_eq!(node.sock.poll_broken(), None, "{what}");
        let is_reset = matches!(then, Then::IsReset);
        assert_eq!(
            (node.shard.lost.len(), node.count(SocklndEvent::Broken)),
            (is_reset.into(), 2 * u64::from(is_reset))
        );
        assert_eq!(node.count(SocklndEvent::HandshakeTimeout), 0, "{what}");
        node.close(start + DOUBT + SECOND / 10);
        assert_eq!(
            node.sock.usage().connections,
            u32::from(node.sock.peers.used().any(|(_, peer)| peer.dialling.is_some())),
            "{what}"
        );
    }
}

/// The peer may have sent messages before it began to close. This node's system has acknowledged them: they
/// would be lost in silence.
#[test]
fn messages_that_arrive_in_doubt_are_delivered_and_acknowledged() {
    for payload_bytes in [0, 100, LONG_BYTES] {
        let (mut node, now, [second, third]) = doubting(|_, _, _| {});
        let bytes = message_with(&node, payload_bytes, 7);
        let left = node.take(now, second, &bytes[..80], 50);
        assert!(left.is_empty());
        // A short message is taken when it is whole.
        let left = node.take(now, second, &bytes[80..], bytes.len());
        assert!(left.is_empty());
        assert_eq!(node.shard.headers.len(), 1, "{payload_bytes}");
        assert_eq!(node.shard.headers[0].0, nid(0, 1));
        assert_eq!(node.shard.received, [(node.shard.headers[0].1, Status::Ok)]);
        assert_eq!(node.payload.len(), payload_bytes as usize);
        assert_eq!(node.sock.poll_ready(), Some(second));
        assert_eq!(sent(&mut node, now, second), acknowledgements(7..8));
        // The doubt goes on, and may still be confirmed.
        node.sock.ended(now, third, Some(errno::ECONNRESET), &mut node.shard);
        assert!(node.has_closed(second) && node.has_closed(third));
        assert_eq!(node.sock.poll_broken().map(|broken| (broken.connections, broken.messages)), Some((2, 0)));
        assert_eq!(node.shard.lost.len(), 1);
    }
}

/// A message of which a part arrives in doubt ends, and is told of, however its connection ends.
#[test]
fn a_message_that_is_cut_in_doubt_ends_and_is_told() {
    for (ends_late, errno, connections) in
        [(true, None, 1), (false, None, 1), (false, Some(errno::ECONNRESET), 2)]
    {
        let (mut node, now, [second, third]) = doubting(|_, _, _| {});
        let bytes = message_with(&node, LONG_BYTES, 7);
        assert!(node.take(now, second, &bytes[..300], 300).is_empty());
        if ends_late {
            node.sock.handle_timeout(now + DOUBT, &mut node.shard);
        } else {
            node.sock.ended(now, second, errno, &mut node.shard);
        }
        let broken = node.sock.poll_broken().unwrap();
        assert_eq!((broken.connections, broken.messages, broken.errno), (connections, 1, errno));
        assert_eq!(broken.has_unread, errno.is_some());
        assert_eq!(node.count(SocklndEvent::Broken), u64::from(connections));
        assert_eq!(node.shard.lost.len(), usize::from(errno.is_some()));
        assert_eq!(node.has_closed(third), errno.is_some() || ends_late);
        assert!(node.shard.received.is_empty(), "the memory is in use");
        node.close(now);
        assert_eq!(node.shard.received, [(node.shard.headers[0].1, Status::Unknown(Cause::Reset))]);
    }
}

/// Each connection counts once, where a message is cut as well.
#[test]
fn connections_that_end_before_a_doubt_is_confirmed_are_not_counted_again() {
    let (mut node, now, [second, third]) = doubting(|node, now, second| {
        let bytes = message_with(node, LONG_BYTES, 7);
        assert!(node.take(now, second, &bytes[..300], 300).is_empty());
    });
    let counts =
        |node: &mut Node| node.sock.poll_broken().map(|broken| (broken.connections, broken.messages));
    assert_eq!(counts(&mut node), Some((2, 1)), "the first one and the one with the message");
    assert!(node.sock.connections.get(second.0).is_none());
    node.sock.ended(now, third, Some(errno::ECONNRESET), &mut node.shard);
    assert_eq!(counts(&mut node), Some((1, 0)));
    assert_eq!((node.count(SocklndEvent::Broken), node.shard.lost.len()), (3, 1));
}

/// The peer's memory is lent until it has the acknowledgement.
#[test]
fn acknowledgements_that_wait_when_a_doubt_begins_are_sent() {
    let mut left = Vec::new();
    let (mut node, now, [second, _]) = doubting(|node, now, second| {
        // The last one finds no room for its acknowledgement, and is not read.
        let messages: Vec<u8> = (1..10).flat_map(|cookie| message_with(node, 0, cookie)).collect();
        left = node.take(now, second, &messages, messages.len());
        assert_eq!((left.len(), node.sock.wants(second)), (messages.len() / 9, Wants::Nothing));
    });
    assert!(!node.has_closed(second));
    assert_eq!(node.sock.poll_ready(), Some(second));
    assert_eq!(sent(&mut node, now, second), acknowledgements(1..9));
    assert_eq!(node.sock.poll_resumed(), Some(second), "more can be read");
    assert!(node.take(now, second, &left, 200).is_empty());
    assert_eq!(sent(&mut node, now, second), acknowledgements(9..10));
    assert_eq!((node.shard.headers.len(), node.shard.received.len()), (9, 9));
}

/// Bytes that may be read again when a doubt begins are not forgotten.
#[test]
fn a_connection_that_was_to_be_read_on_when_a_doubt_begins_is() {
    let mut left = Vec::new();
    let (mut node, _, [second, _]) = doubting(|node, now, second| {
        let messages: Vec<u8> = (1..10).flat_map(|cookie| message_with(node, 0, cookie)).collect();
        left = node.take(now, second, &messages, messages.len());
        sent(node, now, second);
    });
    assert_eq!((node.sock.poll_resumed(), node.sock.wants(second)), (Some(second), Wants::Head));
    assert!(!left.is_empty());
}

/// A driver may have no room for what waits on a connection that belongs to no peer. The others of the node
/// have nothing to do with that.
#[test]
fn more_than_can_be_stored_ends_a_connection_without_a_peer_alone() {
    let (mut node, now, [second, third]) = doubting(|_, _, _| {});
    let bytes = message_with(&node, 100, 7);
    let left = node.take(now, second, &bytes[..bytes.len() - 1], bytes.len());
    assert_eq!((left.len(), node.sock.wants(second)), (99, Wants::Whole(100)));
    node.sock.overrun(now, second, &mut node.shard);
    assert!(node.has_closed(second) && !node.has_closed(third));
    // Nor has the dialler of one said yet who it is.
    let ends = Ends {
        remote: (core::net::Ipv4Addr::new(10, 0, 0, 9), PORT).into(),
        local: core::net::Ipv4Addr::new(10, 0, 0, 2).into(),
    };
    let nameless = node.sock.accept(now, ends, &mut node.shard).unwrap();
    node.sock.overrun(now, nameless, &mut node.shard);
    assert!(node.has_closed(nameless) && !node.has_closed(third));
    assert_eq!(node.count(SocklndEvent::Overrun), 2);
}

/// The old messages of a peer do not follow the first ones of its new life.
#[test]
fn a_new_life_of_the_peer_ends_a_doubt() {
    let (mut node, now, doubted) = doubting(|_, _, _| {});
    let said = hello(1, Version::V3, ConnectionType::Control);
    let same = played(&mut node, now, 1, 990, said);
    assert!(!doubted.iter().any(|conn| node.has_closed(*conn)), "the same life");
    node.sock.ended(now, same, None, &mut node.shard);
    let conn = played(&mut node, now, 1, 991, Hello { source_incarnation: 6, ..said });
    assert!(doubted.iter().all(|conn| node.has_closed(*conn)) && !node.has_closed(conn));
    node.sock.handle_timeout(now + DOUBT, &mut node.shard);
    assert_eq!((node.count(SocklndEvent::Broken), node.count(SocklndEvent::HandshakeTimeout)), (0, 0));
}

/// Connections that are left open speak in the name of their peer: where they came from elsewhere, they end
/// with the others that did, and once that name comes from its own address.
#[test]
fn connections_from_elsewhere_that_are_left_open_end_like_others() {
    for comes_home in [false, true] {
        let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
        let [first, second] = [ConnectionType::Control, ConnectionType::BulkIn].map(|kind| {
            let conn = played(&mut node, now, 9, 1000, hello(1, Version::V3, kind));
            sent(&mut node, now, conn);
            conn
        });
        let own = node.nid;
        node.sock.submit(now, &transmit(3, own, nid(0, 1), 100)).unwrap();
        let conn = node.sock.poll_ready().unwrap();
        sent(&mut node, now, conn);
        node.sock.ended(now, first, None, &mut node.shard);
        assert!(node.has_closed(first) && !node.has_closed(second));
        if comes_home {
            let home = played(&mut node, now, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
            assert!(!node.has_closed(home));
        } else {
            node.sock.end_from_elsewhere(now, &nid(0, 9), &mut node.shard);
            assert!(!node.has_closed(second), "another name");
            node.sock.end_from_elsewhere(now, &nid(0, 1), &mut node.shard);
        }
        assert!(node.has_closed(second), "comes home: {comes_home}");
    }
}

/// A peer is known while connections of it are left open, and forgotten as late as others after that.
#[test]
fn a_peer_whose_connections_have_ended_in_doubt_is_forgotten() {
    let (mut node, now, doubted) = doubting(|_, _, _| {});
    let timeout = SockTunables::DEFAULT.timeout;
    node.sock.handle_timeout(now + DOUBT, &mut node.shard);
    assert!(doubted.iter().all(|conn| node.has_closed(*conn)));
    node.close(now + DOUBT);
    node.sock.handle_timeout(now + DOUBT, &mut node.shard);
    assert_eq!((node.sock.usage().connections, node.sock.peers.used_count()), (0, 1));
    node.sock.handle_timeout(now + timeout, &mut node.shard);
    assert_eq!(node.sock.peers.used_count(), 0);
}
