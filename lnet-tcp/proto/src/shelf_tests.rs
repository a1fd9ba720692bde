//! Messages that wait: for the name of their peer, and for their shard.

use super::*;

/// A REPLY of so many bytes.
fn reply(from: Nid, to: Nid, payload_length: u32) -> Header {
    let md = WireHandle { interface_cookie: 1, object_cookie: 2 };
    Header { body: Body::Reply { md }, ..header(from, to, payload_length) }
}

/// A node with a connection of a peer whose requests wait for its name.
fn unnamed() -> (Node, Instant, Nid, ConnId) {
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let from = nid(0, 1);
    let conn = played(&mut node, now, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
    node.shard.unnamed = vec![from];
    (node, now, from, conn)
}

#[test]
fn what_comes_behind_a_request_that_waits_is_read() {
    let (mut node, now, from, conn) = unnamed();
    let puts = [40, 0, 3].map(|length| header(from, node.nid, length));
    let [first, second, third] = puts.map(|put| message(&put, [0; 2], 0));
    let answer = message(&reply(from, node.nid, 8), [0; 2], 0);
    let bytes = [first, answer.clone(), second, third, answer].concat();
    assert!(node.take(now, conn, &bytes, 64).is_empty());
    let lengths = |node: &Node| -> Vec<_> {
        node.shard.headers.iter().map(|(_, _, header)| header.payload_length).collect()
    };
    assert_eq!(lengths(&node), [8, 8], "the answers alone");
    node.sock.look_at_shelved(now + SECOND / 2, &mut node.shard);
    assert_eq!(node.sock.poll_resumed(), None);
    assert_eq!(node.sock.poll_timeout().map(|at| at - now), Some(SECOND));
    node.shard.unnamed.clear();
    node.sock.look_at_shelved(now + SECOND / 2, &mut node.shard);
    assert_eq!(node.sock.poll_resumed(), Some(conn));
    let next = message(&header(from, node.nid, 5), [0; 2], 0);
    assert!(node.take_again(now, conn, &next).is_empty());
    assert_eq!(lengths(&node), [8, 8, 40, 0, 3, 5], "in their order, and then what is new");
    assert_eq!((node.shard.received.len(), node.payload.len()), (6, 16 + 48));
    assert!(node.sock.shelved.used_count() == 0 && node.shelved.is_empty());
}

/// The shard may say no name: a second is the most that a request waits.
#[test]
fn a_request_waits_a_second_at_most() {
    let (mut node, now, from, conn) = unnamed();
    assert!(node.take(now, conn, &message(&header(from, node.nid, 40), [0; 2], 0), 64).is_empty());
    node.sock.look_at_shelved(now + SECOND, &mut node.shard);
    assert_eq!(node.sock.poll_resumed(), Some(conn));
    assert!(node.take_again(now + SECOND, conn, &[]).is_empty());
    assert_eq!((node.shard.headers.len(), node.shard.received.len()), (1, 1));
    // The shard asks no more.
    node.shard.unnamed.clear();
    assert!(node.take(now, conn, &message(&header(from, node.nid, 40), [0; 2], 0), 64).is_empty());
    assert_eq!(node.shard.received.len(), 2);
}

/// The one that does not fit stops its connection, and comes when its turn is.
#[test]
fn requests_go_on_in_the_order_in_which_they_came() {
    let lengths: Vec<u32> = (0..40).collect();
    let long = 1 << 16;
    let with_long = |at: usize| [&lengths[..at], &[long], &lengths[at..]].concat();
    for sent in [lengths[..33].to_vec(), lengths.clone(), with_long(1), with_long(20), with_long(32)] {
        for is_known in [true, false] {
            let (mut node, mut now, from, conn) = unnamed();
            let mut bytes = Vec::new();
            for length in &sent {
                bytes.extend(message(&header(from, node.nid, *length), [0; 2], 0));
            }
            let left = node.take(now, conn, &bytes, 500);
            assert!(node.shard.headers.is_empty() && !left.is_empty(), "{sent:?}");
            assert_eq!(node.sock.wants(conn), Wants::Nothing);
            if is_known {
                node.shard.unnamed.clear();
            } else {
                now = now + SECOND;
                assert!(node.sock.poll_timeout().is_some_and(|at| at <= now));
            }
            node.sock.look_at_shelved(now, &mut node.shard);
            assert_eq!(node.sock.poll_resumed(), Some(conn));
            node.shard.unnamed.clear();
            assert!(node.take_again(now, conn, &left).is_empty());
            let arrived: Vec<_> =
                node.shard.headers.iter().map(|(_, _, header)| header.payload_length).collect();
            assert_eq!(arrived, sent);
            assert_eq!(node.payload.len() as u32, sent.iter().sum());
            assert!(node.sock.shelved.used_count() == 0 && node.shelved.is_empty());
        }
    }
}

/// A name that is known before the shelf is looked at lets no request pass, and requests of others need not
/// wait.
#[test]
fn what_need_not_wait_passes_no_request_of_its_own_sender() {
    let (mut node, now, from, conn) = unnamed();
    let another = nid(5, 9);
    let put = |from, length| message(&header(from, nid(0, 2), length), [0; 2], 0);
    assert!(node.take(now, conn, &[put(from, 1), put(another, 2)].concat(), 64).is_empty());
    node.shard.unnamed.clear();
    assert!(node.take(now, conn, &put(from, 3), 64).is_empty());
    let left = node.take(now, conn, &[put(from, 5000), put(another, 4)].concat(), 64);
    node.sock.look_at_shelved(now, &mut node.shard);
    assert_eq!(node.sock.poll_resumed(), Some(conn));
    assert!(node.take_again(now, conn, &left).is_empty());
    let arrived: Vec<_> = node.shard.headers.iter().map(|(_, _, header)| header.payload_length).collect();
    assert_eq!(arrived, [2, 1, 3, 5000, 4]);
}

/// A peer that sends many leaves room to others, and stops with the first one that has none. Who finds no
/// room at all is the shard's as ever. What is shelved on a connection that ends is gone with it.
#[test]
fn what_is_shelved_is_bounded() {
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let mut conns = Vec::new();
    for host in [1, 3, 4, 5, 6, 7] {
        let from = nid(0, host);
        let conn = played(&mut node, now, host, 1000, hello(host, Version::V3, ConnectionType::Control));
        node.shard.unnamed.push(from);
        let put = message(&header(from, node.nid, 10), [0; 2], 0);
        for _ in 0..100 {
            if !node.take(now, conn, &put, 64).is_empty() {
                break;
            }
        }
        conns.push(conn);
    }
    let shelved = |node: &Node| {
        conns.iter().map(|conn| node.sock.connections[conn.0].shelved_count).collect::<Vec<_>>()
    };
    assert_eq!(shelved(&node), [33, 17, 8, 4, 2, 0]);
    assert_eq!(node.shard.headers.len(), 100);
    assert_eq!(node.shelved.len(), 590);
    node.sock.ended(now, conns[0], None, &mut node.shard);
    assert_eq!(node.sock.shelved.used_count(), 31);
}

#[test]
fn messages_that_wait_for_their_shard_hold_up_no_other_connection() {
    let (mut node, now) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let mut waiting = Vec::new();
    node.shard.verdicts = core::iter::repeat_n(Verdict::Delay, 9).collect();
    for host in 10..20 {
        let conn = played(&mut node, now, host, 1000, hello(host, Version::V3, ConnectionType::Control));
        let put = header(nid(0, host), node.nid, 8);
        let left = node.take(now, conn, &message(&put, [0; 2], 0), 500);
        waiting.push((conn, left));
    }
    assert_eq!((node.shard.headers.len(), node.shard.received.len()), (10, 1));
    assert_eq!(node.sock.usage().incoming, 9);
    let names: Vec<_> = node.shard.headers.iter().map(|(_, rx, _)| *rx).collect();
    // The last one that came goes on first.
    for (rx, verdict) in
        names[..9].iter().rev().zip([Verdict::Drop, Verdict::Deliver(span(8))].iter().cycle())
    {
        node.sock.resume(now, *rx, *verdict, &mut node.shard);
    }
    while let Some(conn) = node.sock.poll_resumed() {
        let (_, left) = waiting.iter_mut().find(|(other, _)| *other == conn).unwrap();
        assert!(node.take(now, conn, &core::mem::take(left), 500).is_empty());
    }
    let ended: Vec<_> = node.shard.received.iter().map(|(rx, _)| *rx).collect();
    assert_eq!(ended, [9, 7, 5, 3, 1].map(|host| names[host]));
    assert_eq!(node.sock.usage().incoming, 0);
}
