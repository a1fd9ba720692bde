//! Peers that stop in the middle of a message, and peers that have nothing to say.

use alloc::format;

use lnet_core::lnd::PathReport;

use super::*;

const TYPES: [ConnectionType; 4] =
    [ConnectionType::Any, ConnectionType::Control, ConnectionType::BulkIn, ConnectionType::BulkOut];
const VERSIONS: [Version; 4] = [Version::V1, Version::V2, Version::V3, Version::V4];

/// A message as this version has it on the stream.
fn whole(version: Version, header: &Header) -> Vec<u8> {
    if version != Version::V4 {
        let bytes = message(header, [0; 2], 0);
        return if version == Version::V1 { bytes[PREFIX_BYTES..].to_vec() } else { bytes };
    }
    let mut bytes = vec![0; PREFIX_BYTES + lnet_wire::header::LARGE_HEADER_BYTES];
    Prefix::message().encode(bytes.first_chunk_mut().unwrap());
    header.encode_large(bytes[PREFIX_BYTES..].first_chunk_mut().unwrap());
    bytes.extend((0..header.payload_length).map(|index| index as u8));
    bytes
}

/// Lets time pass, with a look at the timers whenever they ask for one.
fn pass(node: &mut Node, from: Instant, to: Instant) {
    let mut now = from;
    while let Some(at) = node.sock.poll_timeout().filter(|at| *at <= to) {
        now = now.max(at);
        node.sock.handle_timeout(now, &mut node.shard);
        while let Some(conn) = node.sock.poll_ready() {
            sent(node, now, conn);
        }
    }
}

#[test]
fn half_a_message_ends_with_its_time_on_every_connection() {
    for version in VERSIONS {
        for kind in TYPES {
            for (keepalive, idle_seconds) in [(30, 0), (30, 60), (0, 0), (0, 60)] {
                // Within the prefix or header, the header, payload that is to be whole, the wanted payload,
                // and what is passed over.
                for (cut, length_bytes, verdict) in [
                    (5, 100, None),
                    (70, 100, None),
                    (130, 100, None),
                    (130, LONG_BYTES, None),
                    (130, LONG_BYTES, Some(Verdict::Drop)),
                ] {
                    let tunables = SockTunables { keepalive: SECOND * keepalive, ..SockTunables::DEFAULT };
                    let (mut node, start) = (Node::new(2, tunables), Instant(1));
                    let conn = played(&mut node, start, 1, 1000, hello(1, version, kind));
                    sent(&mut node, start, conn);
                    node.shard.verdicts.extend(verdict);
                    let now = start + SECOND * idle_seconds;
                    pass(&mut node, start, now);
                    let bytes = whole(version, &header(nid(0, 1), node.nid, length_bytes));
                    let left = node.take(now, conn, &bytes[..cut], 1000);
                    let awaits_rest = (cut, length_bytes) == (130, 100);
                    assert_eq!(left.is_empty(), !awaits_rest, "what is to be whole stays with the driver");
                    let what = format!("{version:?} {kind:?} {keepalive} {idle_seconds} {cut}");
                    pass(&mut node, now, now + SECOND * 49);
                    assert_eq!(node.count(SocklndEvent::Stalled), 0, "{what}");
                    pass(&mut node, now, now + SECOND * 51);
                    assert_eq!(node.count(SocklndEvent::Stalled), 1, "{what}");
                }
            }
        }
    }
}

/// The time of a message that had to wait begins when it need wait no longer.
#[test]
fn a_message_that_waited_has_its_time_from_then_on() {
    let (mut node, start) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let conns: Vec<_> = (10..13)
        .map(|host| played(&mut node, start, host, 1000, hello(host, Version::V3, ConnectionType::Control)))
        .collect();
    node.shard.verdicts = core::iter::repeat_n(Verdict::Delay, 3).collect();
    for (conn, host) in conns.iter().zip(10..) {
        sent(&mut node, start, *conn);
        let bytes = message(&header(nid(0, host), node.nid, LONG_BYTES), [0; 2], 0);
        node.take(start, *conn, &bytes[..PREFIX_BYTES + 72], 1000);
    }
    let now = start + SECOND * 200;
    pass(&mut node, start, now);
    assert_eq!(node.count(SocklndEvent::Stalled), 0);
    node.sock.resume(now, node.shard.headers[0].1, Verdict::Drop, &mut node.shard);
    node.sock.resume(now, node.shard.headers[1].1, Verdict::Deliver(span(LONG_BYTES)), &mut node.shard);
    pass(&mut node, now, now + SECOND * 49);
    assert_eq!(node.count(SocklndEvent::Stalled), 0);
    pass(&mut node, now, now + SECOND * 51);
    // The dropped one and the delivered one; the third still waits.
    assert_eq!(node.count(SocklndEvent::Stalled), 2);
}

/// Messages and dials that wait keep their time; others have the new one, and so has the progress of
/// connections.
#[test]
fn a_timeout_that_is_set_holds_for_what_begins_afterwards() {
    let (mut node, start) = (Node::new(1, SockTunables::DEFAULT), Instant(1));
    let submit = |node: &mut Node, now, tx, host| {
        node.sock.submit(now, &transmit(tx, node.nid, nid(0, host), 0)).unwrap();
    };
    let ended = |node: &mut Node| {
        core::iter::from_fn(|| node.sock.poll_ended()).map(|(tx, _)| tx.0).collect::<Vec<_>>()
    };
    // Two peers that are dialled, and never connected; the second one's dial and messages begin after the
    // change.
    submit(&mut node, start, 0, 7);
    node.sock.set_timeout(SECOND * 200);
    submit(&mut node, start, 1, 8);
    for (seconds, expected) in [(49, vec![]), (51, vec![0]), (199, vec![]), (201, vec![1])] {
        pass(&mut node, start, start + SECOND * seconds);
        assert_eq!(ended(&mut node), expected, "{seconds}");
    }

    // Half a message is on a connection: it may take longer than when it began.
    let (mut node, start) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    let conn = played(&mut node, start, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
    sent(&mut node, start, conn);
    let bytes = whole(Version::V3, &header(nid(0, 1), node.nid, 100));
    node.take(start, conn, &bytes[..130], 1000);
    node.sock.set_timeout(SECOND * 200);
    for (seconds, stalled) in [(51, 0), (199, 0), (201, 1)] {
        pass(&mut node, start, start + SECOND * seconds);
        assert_eq!(node.count(SocklndEvent::Stalled), stalled, "{seconds}");
    }
}

/// Keepalives that a node sends from one time to another, looking at its timers each second: when, and by
/// which type.
fn keepalives(node: &mut Node, from: Instant, seconds: u32) -> Vec<(u64, ConnectionType)> {
    let mut seen = Vec::new();
    for second in 1..=seconds {
        let now = from + SECOND * second;
        node.sock.handle_timeout(now, &mut node.shard);
        while let Some(conn) = node.sock.poll_ready() {
            let kind = node.sock.connections[conn.0].kind;
            let mut expected = [0; PREFIX_BYTES];
            Prefix::keepalive().encode(&mut expected);
            let bytes = sent(node, now, conn);
            if !bytes.is_empty() {
                assert_eq!(bytes, expected);
                seen.push((u64::from(second), kind));
            }
        }
    }
    seen
}

#[test]
fn an_idle_peer_hears_once_at_a_time_that_this_end_lives() {
    let mut pair = Pair::new(1000);
    pair.submit(0, 0, 64);
    pair.run();
    let (start, node) = (pair.now, &mut pair.nodes[1]);
    // It has two connections of that type.
    let all: Vec<_> = [30, 60, 90].map(|second| (second, ConnectionType::BulkIn)).into();
    assert_eq!(keepalives(node, start, 100), all);
}

#[test]
fn who_is_heard_on_any_connection_needs_no_keepalive() {
    let (mut node, start) = (Node::new(2, SockTunables::DEFAULT), Instant(1));
    // The peer's types.
    let conns = [ConnectionType::Control, ConnectionType::BulkOut, ConnectionType::BulkIn]
        .map(|kind| played(&mut node, start, 1, 1000, hello(1, Version::V3, kind)));
    for conn in conns {
        sent(&mut node, start, conn);
    }
    for turn in 0..10 {
        let now = start + SECOND * 25 * turn;
        node.take(now, conns[0], &message(&header(nid(0, 1), node.nid, 0), [0; 2], 0), 1000);
        assert_eq!(keepalives(&mut node, now, 25), [], "turn {turn}");
    }
    let last = start + SECOND * 250;
    assert_eq!(keepalives(&mut node, last, 6), [(5, ConnectionType::BulkIn)]);
}

/// What is reported of a path while time passes in steps of half a second, where the peer's system does not
/// acknowledge so many bytes: the milliseconds and the report.
fn reports(
    node: &mut Node,
    from: Instant,
    seconds: u32,
    unacknowledged_bytes: u64,
) -> Vec<(u32, PathReport)> {
    let mut seen = Vec::new();
    for milliseconds in (500..=1000 * seconds).step_by(500) {
        let now = from + Duration::from_millis(milliseconds.into());
        node.sock.handle_timeout(now, &mut node.shard);
        while let Some(action) = node.sock.poll_action() {
            if let StreamOrder::Ask { conn } = action {
                node.sock.unacknowledged(now, conn, unacknowledged_bytes, &mut node.shard);
            }
        }
        seen.extend(
            core::iter::from_fn(|| node.sock.poll_report()).map(|(_, report)| (milliseconds, report)),
        );
    }
    seen
}

/// A cut that nothing tells of: TCP takes small messages for a long time.
#[test]
fn small_messages_that_nothing_acknowledges_show_that_a_path_is_silent() {
    let tunables = SockTunables { keepalive: Duration::ZERO, ..SockTunables::DEFAULT };
    let (mut node, start) = (Node::new(2, tunables), Instant(1));
    let conn = played(&mut node, start, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
    sent(&mut node, start, conn);
    let answers = PathReport::Answers { round_trip: None };
    assert_eq!(reports(&mut node, start, 2, 0), [(500, answers)], "it was established");
    let send = |node: &mut Node, tx, now| {
        node.sock.submit(now, &transmit(tx, node.nid, nid(0, 1), 100)).unwrap();
        sent(node, now, conn);
        assert_eq!(node.sock.poll_ended(), Some((TxId(tx), Status::Ok)));
    };
    // All that was sent arrives: nothing is asked for long.
    let now = start + SECOND * 20;
    send(&mut node, 1, now);
    assert_eq!(reports(&mut node, now, 2, 0), []);
    assert_eq!(node.sock.poll_timeout(), None, "nothing is under way");
    // It does not, however often TCP takes more.
    let now = start + SECOND * 40;
    send(&mut node, 2, now);
    assert_eq!(reports(&mut node, now, 1, 196), []);
    assert_eq!(reports(&mut node, now + SECOND, 1, 196), [500, 1000].map(|at| (at, PathReport::Silent)));
    send(&mut node, 3, now + SECOND * 2);
    let silent = [500, 1000, 1500, 2000].map(|at| (at, PathReport::Silent));
    assert_eq!(reports(&mut node, now + SECOND * 2, 2, 392), silent);
    // One of them has arrived, then the other.
    assert_eq!(reports(&mut node, now + SECOND * 4, 1, 196), [(500, answers)]);
    assert_eq!(reports(&mut node, now + SECOND * 5, 2, 0), []);
    assert_eq!(node.sock.poll_timeout(), None, "nothing is under way");
    // What is never acknowledged ends the connections.
    let now = start + SECOND * 100;
    send(&mut node, 4, now);
    reports(&mut node, now, 49, 196);
    assert_eq!(node.count(SocklndEvent::Stalled), 0);
    reports(&mut node, now, 51, 196);
    assert_eq!(node.count(SocklndEvent::Stalled), 1);
}

/// What is sent from then on takes another path, before the next dial has failed.
#[track_caller]
fn given_up(is_taken: bool) {
    let tunables = SockTunables { keepalive: Duration::ZERO, timeout: SECOND, ..SockTunables::DEFAULT };
    let (mut node, start) = (Node::new(2, tunables), Instant(1));
    let conn = played(&mut node, start, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
    sent(&mut node, start, conn);
    reports(&mut node, start, 2, 0);
    let now = start + SECOND * 20;
    node.sock.submit(now, &transmit(1, node.nid, nid(0, 1), 100)).unwrap();
    assert_eq!(node.sock.poll_ready(), Some(conn));
    assert!(node.sock.poll_send(now, conn).is_some());
    if is_taken {
        node.sock.sent(now, conn, 196, &mut node.shard);
    }
    // It counts as silent after half of that time.
    assert_eq!(reports(&mut node, now, 1, 196), [500, 1000].map(|at| (at, PathReport::Silent)));
    assert_eq!(node.count(SocklndEvent::Stalled), 1);
}

#[test]
fn a_path_that_takes_bytes_and_is_given_up_is_silent_at_once() {
    given_up(true);
}

#[test]
fn a_path_that_takes_nothing_and_is_given_up_is_silent_at_once() {
    given_up(false);
}

#[test]
fn who_is_heard_need_not_acknowledge() {
    let tunables = SockTunables { keepalive: Duration::ZERO, ..SockTunables::DEFAULT };
    let (mut node, start) = (Node::new(2, tunables), Instant(1));
    let conn = played(&mut node, start, 1, 1000, hello(1, Version::V3, ConnectionType::Control));
    sent(&mut node, start, conn);
    reports(&mut node, start, 2, 0);
    for turn in 0..20 {
        let now = start + SECOND * (10 + turn);
        node.sock.submit(now, &transmit(turn, node.nid, nid(0, 1), 100)).unwrap();
        sent(&mut node, now, conn);
        node.take(now, conn, &message(&header(nid(0, 1), node.nid, 0), [0; 2], 0), 1000);
        assert_eq!(reports(&mut node, now, 1, u64::MAX), [], "turn {turn}");
    }
}
