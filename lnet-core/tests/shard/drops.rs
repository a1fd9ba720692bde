//! Each reason to drop a message that the other modules do not come across.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::lnd::{Cause, RxId, Status, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::stats::DropReason;
use lnet_core::topology::Topology;
use lnet_core::{Limits, ShardConfig};
use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};

use crate::common::{
    FOREIGN, NI, NOW, Node, acked_put_header, config, from, get_header, host, local_ni, nid, put_header,
};

/// A node that would take any PUT and GET with match bits 1.
fn willing(config: ShardConfig) -> Node {
    let mut node = Node::new(config);
    let spec = MdSpec {
        options: MdOptions::PUT | MdOptions::GET | MdOptions::TRUNCATE | MdOptions::MANAGE_REMOTE,
        threshold: Threshold::Count(100),
        ..node.md(1 << 20)
    };
    node.post(1, &spec);
    node
}

const MTU: u32 = 1 << 20;

#[test]
fn malformed_headers() {
    let mut node = willing(config());
    let hello = Body::Hello { incarnation: 1, connection_type: 2 };
    let ack = Body::Ack { md: FOREIGN, match_bits: 1, manipulated_length: 0 };
    for header in [
        Header { body: hello, ..put_header(1, 0) },
        Header { body: ack, ..put_header(1, 1) },
        Header { payload_length: 1, ..get_header(1, 4) },
        put_header(1, MTU + 1),
        put_header(1, u32::MAX),
        get_header(1, MTU + 1),
        Header { body: Body::Reply { md: FOREIGN }, ..put_header(1, MTU + 1) },
    ] {
        node.assert_drop(&header, DropReason::Malformed);
    }
    assert_ne!(node.arrive(&put_header(1, MTU)), Verdict::Drop);
    assert_ne!(node.arrive(&get_header(1, MTU)), Verdict::Drop);
}

#[test]
fn a_destination_that_is_not_the_receiving_ni() {
    let nis = vec![local_ni(nid(1, 1), 8, 4), local_ni(nid(2, 1), 8, 4)];
    let mut node = willing(ShardConfig { topology: Arc::new(Topology::new(nis)), ..config() });
    for (destination, reason) in [
        (nid(1, 3), DropReason::NotLocal),
        (nid(2, 1), DropReason::NotLocal),
        (Nid::ANY, DropReason::NotLocal),
        (Nid::LO, DropReason::NotLocal),
        (nid(9, 9), DropReason::RoutingOff),
    ] {
        let destination = ProcessId::lustre(destination);
        node.assert_drop(&Header { destination, ..put_header(1, 4) }, reason);
    }
    let destination = ProcessId { pid: 777, ..host(1) };
    assert_ne!(
        node.arrive(&Header { destination, ..put_header(1, 4) }),
        Verdict::Drop,
        "pids are not looked at"
    );
}

#[test]
fn a_wildcard_source() {
    let mut node = willing(config());
    let source = ProcessId::lustre(Nid::ANY);
    node.assert_drop(&Header { source, ..put_header(1, 4) }, DropReason::NoSource);
}

#[test]
fn a_source_that_cannot_be_answered() {
    let mut node = willing(config());
    let source = ProcessId::lustre(nid(9, 2));
    node.assert_drop(&Header { source, ..acked_put_header(1, 4) }, DropReason::NoRoute);
    node.assert_drop(&Header { source, ..get_header(1, 4) }, DropReason::NoRoute);
    assert_ne!(
        node.arrive(&Header { source, ..put_header(1, 4) }),
        Verdict::Drop,
        "nothing is to be answered"
    );
}

#[test]
fn a_portal_out_of_range() {
    let mut node = willing(config());
    for portal in [64, 65, u32::MAX] {
        let put = Body::Put { ack_md: WireHandle::NONE, match_bits: 1, hdr_data: 0, portal, offset: 0 };
        node.assert_drop(&Header { body: put, ..put_header(1, 4) }, DropReason::Portal);
        let get = Body::Get { return_md: FOREIGN, match_bits: 1, portal, offset: 0, sink_length: 1 };
        node.assert_drop(&Header { body: get, ..put_header(1, 0) }, DropReason::Portal);
    }
}

#[test]
fn nothing_was_ever_attached() {
    let mut node = Node::new(config());
    node.assert_drop(&put_header(1, 4), DropReason::NoMatch);
    node.assert_drop(&get_header(1, 4), DropReason::NoMatch);
}

#[test]
fn the_event_slots_of_a_descriptor_without_threshold_are_used_up_and_none_may_wait() {
    let limits = Limits { delayed: 0, ..config().limits };
    let mut node = Node::new(ShardConfig { limits, ..config() });
    let spec = MdSpec { options: MdOptions::PUT, threshold: Threshold::Infinite, ..node.md(100) };
    node.post(1, &spec);
    for _ in 0..3 {
        assert_ne!(node.arrive(&put_header(1, 4)), Verdict::Drop);
    }
    node.assert_drop(&put_header(1, 4), DropReason::EventQueueFull);
    assert!(node.shard.poll_event(node.queue).is_some());
    assert_ne!(node.arrive(&put_header(1, 4)), Verdict::Drop);
    node.assert_drop(&put_header(1, 4), DropReason::EventQueueFull);
}

#[test]
fn peers_that_wait_for_responses_fill_the_table_and_no_more() {
    let limits = Limits { peers: 2, ..config().limits };
    let mut node = willing(ShardConfig { limits, ..config() });
    node.arrive(&from(2, get_header(1, 4)));
    node.arrive(&from(3, acked_put_header(1, 4)));
    node.shard.poll_event(node.queue).unwrap();
    let queued: Vec<_> = std::iter::from_fn(|| node.transmit()).collect();
    assert_eq!(queued.len(), 2);
    node.assert_drop(&from(4, get_header(1, 4)), DropReason::PeersFull);
    node.assert_drop(&from(4, acked_put_header(1, 4)), DropReason::PeersFull);
    assert_ne!(
        node.arrive(&from(4, put_header(1, 4))),
        Verdict::Drop,
        "without a response no peer is needed"
    );
    node.shard.sent(NOW, queued[0].tx, Status::Ok);
    assert_ne!(node.arrive(&from(4, get_header(1, 4))), Verdict::Drop);
}

/// A peer that takes no responses leaves as much room as it has, however often it asks.
#[test]
fn no_peer_takes_all_responses() {
    let limits = Limits { responses: 16, ..config().limits };
    let mut node = willing(ShardConfig { limits, ..config() });
    for peer in 3..6 {
        // Half of 16, of the 8 that are left, of the 4 that are left.
        let share = 8 >> (peer - 3);
        for _ in 0..share {
            assert_ne!(node.arrive(&from(peer, get_header(1, 4))), Verdict::Drop);
        }
        node.assert_drop(&from(peer, get_header(1, 4)), DropReason::ResponsesFull);
        node.assert_drop(&from(peer, acked_put_header(1, 4)), DropReason::ResponsesFull);
    }
    // What has ended can be promised again.
    while let Some(sent) = node.transmit() {
        node.shard.sent(NOW, sent.tx, Status::Ok);
    }
    let taken = std::iter::repeat_with(|| node.arrive(&from(3, get_header(1, 4))));
    assert_eq!(taken.take_while(|verdict| *verdict != Verdict::Drop).count(), 8);
}

/// Many peers take no responses: others have room at once, and once those of the silent ones have waited for
/// a second as much as they want.
#[test]
fn peers_that_take_no_responses_make_room() {
    let limits = Limits { responses: 256, unlimited_events: 400, peers: 64, ..config().limits };
    let topology = Arc::new(Topology::new(vec![local_ni(nid(1, 1), 256, 4)]));
    let mut node = Node::new(ShardConfig { limits, topology, ..config() });
    let options = MdOptions::GET | MdOptions::TRUNCATE | MdOptions::MANAGE_REMOTE;
    let spec = MdSpec { options, threshold: Threshold::Infinite, ..node.md(1 << 20) };
    node.post(1, &spec);
    let ask = |node: &mut Node, now, peer| {
        let header = from(peer, get_header(1, 4));
        let verdict = node.shard.header(now, NI, &header.source.nid, RxId(0), &header);
        let is_taken = verdict != Verdict::Drop;
        if is_taken {
            node.shard.received(now, RxId(0), Status::Ok);
        }
        node.events();
        is_taken
    };
    let silent: Vec<u8> = (10..22).collect();
    for peer in &silent {
        while ask(&mut node, NOW, *peer) {}
    }
    assert!((0..4).all(|_| ask(&mut node, NOW, 3)), "there is room for a few");
    let later = NOW + Duration::from_secs(1);
    let mut taken = 0;
    for _ in 0..200 {
        for peer in &silent {
            ask(&mut node, later, *peer);
        }
        taken += u32::from(ask(&mut node, later, 4));
        while let Some(sent) = node.transmit() {
            if sent.header.destination.nid == nid(1, 4) {
                node.shard.sent(later, sent.tx, Status::Ok);
            }
        }
    }
    let evicted = node.shard.counters().responses_evicted;
    assert!(taken >= 60 && evicted > 0, "{taken} taken, {evicted} evicted");
}

/// A peer whose messages wait leaves as much room as they take, however many it sends.
#[test]
fn no_peer_takes_all_room_for_what_waits() {
    let limits = Limits { incoming: 32, delayed: 16, ..config().limits };
    let mut node = Node::new(ShardConfig { limits, ..config() });
    node.shard.set_lazy(4).unwrap();
    // 0 is for what is dropped.
    let mut names = (1..).map(RxId);
    let mut wait = |node: &mut Node, peer, count| {
        for rx in names.by_ref().take(count) {
            assert_eq!(
                node.shard.header(
                    NOW,
                    NI,
                    &from(peer, put_header(1, 4)).source.nid,
                    rx,
                    &from(peer, put_header(1, 4))
                ),
                Verdict::Delay
            );
        }
        node.assert_drop(&from(peer, put_header(1, 4)), DropReason::DelayedFull);
    };
    for peer in 3..6 {
        // Half of 16, of the 8 that are left, of the 4 that are left.
        wait(&mut node, peer, 8 >> (peer - 3));
    }
    // What has ended can wait again: of the 10 that are left.
    (1..9).for_each(|rx| node.shard.received(NOW, RxId(rx), Status::Unknown(Cause::Reset)));
    wait(&mut node, 3, 5);
}

/// A message that waits refers to its peer, whether that can be answered or not.
#[test]
fn peers_whose_messages_wait_fill_the_table_and_no_more() {
    let limits = Limits { peers: 2, ..config().limits };
    let mut node = Node::new(ShardConfig { limits, ..config() });
    node.shard.set_lazy(4).unwrap();
    let source = ProcessId::lustre(nid(9, 2));
    for (rx, header) in
        [(1, from(2, put_header(1, 4))), (2, Header { source, ..put_header(1, 4) }), (3, put_header(1, 4))]
    {
        assert_eq!(node.shard.header(NOW, NI, &header.source.nid, RxId(rx), &header), Verdict::Delay);
    }
    node.assert_drop(&from(4, put_header(1, 4)), DropReason::PeersFull);
    node.shard.received(NOW, RxId(1), Status::Unknown(Cause::Reset));
    node.assert_drop(&from(4, put_header(1, 4)), DropReason::PeersFull);
    node.shard.received(NOW, RxId(3), Status::Unknown(Cause::Reset));
    assert_eq!(
        node.shard.header(
            NOW,
            NI,
            &from(4, put_header(1, 4)).source.nid,
            RxId(1),
            &from(4, put_header(1, 4))
        ),
        Verdict::Delay
    );
}

#[test]
fn responses_run_out() {
    let limits = Limits { responses: 2, ..config().limits };
    let mut node = willing(ShardConfig { limits, ..config() });
    node.arrive(&get_header(1, 4));
    assert_ne!(
        node.shard.header(
            NOW,
            NI,
            &from(3, acked_put_header(1, 4)).source.nid,
            RxId(1),
            &from(3, acked_put_header(1, 4))
        ),
        Verdict::Drop
    );
    let reply = node.transmit().unwrap();
    node.assert_drop(&from(4, get_header(1, 4)), DropReason::ResponsesFull);
    node.assert_drop(&from(4, acked_put_header(1, 4)), DropReason::ResponsesFull);
    assert_ne!(node.arrive(&put_header(1, 4)), Verdict::Drop, "without a response no room is needed");
    node.shard.sent(NOW, reply.tx, Status::Ok);
    assert_ne!(node.arrive(&get_header(1, 4)), Verdict::Drop);
}
