//! PUT and GET at the initiator, and the responses to them.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::event::{Event, EventKind};
use lnet_core::handle::MdHandle;
use lnet_core::health::HealthStatus;
use lnet_core::lnd::{Cause, Full, NiId, RxId, Span, Status, Transmit, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold, Unlinked};
use lnet_core::shard::{GetRequest, PutRequest, SubmitError};
use lnet_core::stats::{DelayReason, DropReason, Traffic};
use lnet_core::topology::Topology;
use lnet_core::{Limits, ShardConfig};
use lnet_wire::{Body, Header, MessageType, ProcessId, WireHandle};

use crate::common::{
    ANYONE, MESSAGE_TIMEOUT, NI, NOW, Node, ack_header, ack_of, config, event_md, get_request, handle_of,
    host, local_ni, nid, origin, put_request, put_sent, reply_of,
};

#[test]
fn a_put_is_sent_whole_and_reported() {
    let mut node = Node::new(config());
    let spec = MdSpec { user_ptr: 42, ..node.md(100) };
    let md = node.shard.bind(&spec).unwrap();
    node.shard.put(NOW, &put_request(md, 2)).unwrap();
    let transmit = node.transmit().unwrap();
    let body = Body::Put { ack_md: WireHandle::NONE, match_bits: 5, hdr_data: 7, portal: 4, offset: 6 };
    let header = Header { destination: host(2), source: host(1), payload_length: 100, body };
    let payload = Some(Span { buffer: md.into(), offset_bytes: 0, length_bytes: 100 });
    assert_eq!(
        transmit,
        Transmit {
            tx: transmit.tx,
            ni: NI,
            next_hop: header.destination.nid,
            peer: transmit.peer,
            header,
            payload
        }
    );
    assert!(node.transmit().is_none());
    assert!(node.events().is_empty(), "nothing is reported before the LND has finished");
    assert_eq!(node.shard.ni_credits(NI), Some(7));
    assert_eq!(node.shard.peer_credits(&nid(1, 2)), Some(3));

    node.shard.sent(NOW, transmit.tx, Status::Ok);
    assert_eq!(node.event(), put_sent(event_md(&spec, md), host(2)));
    assert_eq!(node.shard.ni_credits(NI), Some(8));
    assert_eq!(node.shard.peer_credits(&nid(1, 2)), Some(4));
    assert_eq!(node.shard.counters().sent, Traffic { messages: 1, bytes: 100 });
    assert_eq!(node.shard.usage().memory_descs, 0);
}

#[test]
fn an_empty_put_has_no_payload() {
    let mut node = Node::new(config());
    let md = node.shard.bind(&node.md(0)).unwrap();
    node.shard.put(NOW, &put_request(md, 2)).unwrap();
    assert_eq!(node.transmit().unwrap().payload, None);
}

#[test]
fn an_acked_put_ends_with_its_ack_in_either_order() {
    for ack_first in [false, true] {
        let mut node = Node::new(config());
        let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(2), ..node.md(100) }).unwrap();
        node.shard.put(NOW, &PutRequest { ack: true, ..put_request(md, 2) }).unwrap();
        let transmit = node.transmit().unwrap();
        let Body::Put { ack_md, .. } = transmit.header.body else { panic!("{transmit:?}") };
        assert_eq!(ack_md, handle_of(md));
        if !ack_first {
            node.shard.sent(NOW, transmit.tx, Status::Ok);
        }
        assert_ne!(node.arrive(&ack_of(ack_md)), Verdict::Drop);
        if ack_first {
            node.shard.sent(NOW, transmit.tx, Status::Ok);
        }
        let events = node.events();
        let (first, second) = (events[0], events[1]);
        let (sent, acked) = if ack_first { (second, first) } else { (first, second) };
        assert_eq!((sent.kind(), acked.kind()), (EventKind::Send, EventKind::Ack));
        assert_eq!((first.unlinked(), second.unlinked()), (false, true));
        assert_eq!((acked.match_bits(), acked.manipulated_bytes()), (Some(5), 77));
        assert_eq!(acked.origin(), Some(&origin()));
        assert_eq!(node.shard.counters().received, Traffic { messages: 1, bytes: 0 });
        node.assert_drop(&ack_of(ack_md), DropReason::UnknownMd);
    }
}

#[test]
fn a_get_ends_with_its_reply() {
    let mut node = Node::new(config());
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(2), ..node.md(100) }).unwrap();
    node.shard.get(NOW, &get_request(md)).unwrap();
    let transmit = node.transmit().unwrap();
    let body = Body::Get { return_md: handle_of(md), match_bits: 5, portal: 4, offset: 6, sink_length: 100 };
    assert_eq!(transmit.header, Header { destination: host(2), source: host(1), payload_length: 0, body });
    assert_eq!(transmit.payload, None);
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    let sent = node.event();
    assert!(matches!(sent, Event::Send { message_type: MessageType::Get, length_bytes: 100, .. }));
    assert!(!sent.unlinked());

    let span = Span { buffer: md.into(), offset_bytes: 0, length_bytes: 60 };
    assert_eq!(node.arrive(&reply_of(handle_of(md), 60)), Verdict::Deliver(span));
    let replied = node.event();
    assert!(matches!(replied, Event::Reply { requested_bytes: 60, manipulated_bytes: 60, .. }));
    assert!(replied.unlinked());
    assert_eq!(node.shard.counters().received, Traffic { messages: 1, bytes: 60 });
    assert_eq!(node.shard.usage().memory_descs, 0);
}

#[test]
fn a_long_reply_is_cut_where_that_is_allowed() {
    let mut node = Node::new(config());
    let spec = MdSpec { threshold: Threshold::Count(2), options: MdOptions::TRUNCATE, ..node.md(10) };
    let md = node.shard.bind(&spec).unwrap();
    node.shard.get(NOW, &get_request(md)).unwrap();
    let span = Span { buffer: md.into(), offset_bytes: 0, length_bytes: 10 };
    assert_eq!(node.arrive(&reply_of(handle_of(md), 11)), Verdict::Deliver(span));
    let event = node.event();
    assert!(matches!(event, Event::Reply { requested_bytes: 11, manipulated_bytes: 10, .. }), "{event:?}");
}

#[test]
fn responses_that_name_no_waiting_descriptor_are_dropped() {
    let mut node = Node::new(config());
    let spec = MdSpec { threshold: Threshold::Count(2), auto_unlink: false, ..node.md(10) };
    let md = node.shard.bind(&spec).unwrap();
    let handle = handle_of(md);
    node.assert_drop(&reply_of(handle, 11), DropReason::ReplyTooLong);
    for header in [ack_of, |md| reply_of(md, 3)] {
        let foreign = WireHandle { interface_cookie: 0x2222, ..handle };
        node.assert_drop(&header(foreign), DropReason::UnknownMd);
        node.assert_drop(&header(WireHandle::NONE), DropReason::UnknownMd);
        for bit in 0..64 {
            let object_cookie = handle.object_cookie ^ 1 << bit;
            node.assert_drop(&header(WireHandle { object_cookie, ..handle }), DropReason::UnknownMd);
        }
    }
    for header in [ack_of(handle), reply_of(handle, 3)] {
        assert_ne!(node.arrive(&header), Verdict::Drop, "unasked for, but LNet takes it");
    }
    node.assert_drop(&ack_of(handle), DropReason::MdExhausted);
    node.assert_drop(&reply_of(handle, 3), DropReason::MdExhausted);
    node.shard.unlink(md).unwrap();
    node.assert_drop(&ack_of(handle), DropReason::UnknownMd);

    let attached = MdSpec { options: MdOptions::PUT, ..spec };
    let (_, md) = node.post(1, &attached);
    node.assert_drop(&ack_header(md), DropReason::MdAttached);
    node.assert_drop(&reply_of(handle_of(md), 3), DropReason::MdAttached);
}

#[test]
fn what_is_wrong_with_a_descriptor_is_said_at_once() {
    let mut node = Node::new(config());
    let (me, attached) = {
        let spec = MdSpec { options: MdOptions::GET, ..node.md(1) };
        node.post(1, &spec)
    };
    let check = |node: &mut Node, md, expected| {
        assert_eq!(node.shard.put(NOW, &put_request(md, 2)), Err(expected));
        assert_eq!(node.shard.get(NOW, &get_request(md)), Err(expected));
        assert_eq!(node.shard.usage().messages, 0);
    };
    check(&mut node, attached, SubmitError::MdAttached(attached));
    check(&mut node, MdHandle(me.0), SubmitError::UnknownMd(MdHandle(me.0)));
    let spec = MdSpec { threshold: Threshold::Count(0), auto_unlink: false, ..node.md(1) };
    let used_up = node.shard.bind(&spec).unwrap();
    check(&mut node, used_up, SubmitError::MdExhausted(used_up));
    node.shard.unlink(used_up).unwrap();
    check(&mut node, used_up, SubmitError::UnknownMd(used_up));
}

#[test]
fn a_portal_that_no_node_has_is_refused() {
    let mut node = Node::new(config());
    let spec = node.md(1);
    let md = node.shard.bind(&spec).unwrap();
    for portal in [64, u32::MAX] {
        let put = PutRequest { portal, ..put_request(md, 2) };
        assert_eq!(node.shard.put(NOW, &put), Err(SubmitError::Portal(portal)));
        let get = GetRequest { portal, ..get_request(md) };
        assert_eq!(node.shard.get(NOW, &get), Err(SubmitError::Portal(portal)));
    }
    assert!(node.transmit().is_none());
    node.shard.put(NOW, &PutRequest { portal: 63, ..put_request(md, 2) }).unwrap();
    assert!(node.transmit().is_some());
}

#[test]
fn a_put_that_finds_no_path_is_reported_as_sent_badly() {
    let mut node = Node::new(config());
    for (target, self_nid) in
        [(nid(9, 2), None), (nid(1, 2), Some(nid(1, 7))), (ANYONE.nid, None), (nid(9, 2), Some(nid(1, 1)))]
    {
        let md = node.shard.bind(&node.md(1)).unwrap();
        let target = ProcessId::lustre(target);
        let put = PutRequest { target, self_nid, ..put_request(md, 2) };
        assert_eq!(node.shard.put(NOW, &put), Ok(()));
        let event = node.event();
        assert!(matches!(event, Event::Send { target: named, .. } if named == target), "{event:?}");
        assert_eq!(event.status(), Status::NeverSent(Cause::Unreachable));
        assert!(event.unlinked());
        assert!(node.transmit().is_none());
    }
    assert_eq!(node.shard.counters().send_failures, 4);
    assert_eq!(node.shard.usage().peers, 0, "an unreachable peer takes no slot");
}

#[test]
fn the_ni_follows_the_destination_or_the_self_nid() {
    let nis = vec![local_ni(nid(1, 1), 8, 4), local_ni(nid(2, 1), 8, 4)];
    let mut node = Node::new(ShardConfig { topology: Arc::new(Topology::new(nis)), ..config() });
    let md = node.shard.bind(&node.md(1)).unwrap();
    let target = ProcessId::lustre(nid(2, 2));
    node.shard.put(NOW, &PutRequest { target, ..put_request(md, 2) }).unwrap();
    assert!(node.shard.poll_transmit(NOW, NiId(0)).is_none());
    let transmit = node.shard.poll_transmit(NOW, NiId(1)).map(|lent| *lent.transmit).unwrap();
    assert_eq!((transmit.ni, transmit.header.source.nid), (NiId(1), nid(2, 1)));
    assert!(node.shard.poll_transmit(NOW, NiId(2)).is_none(), "there is no such NI");
}

#[test]
fn whether_another_message_follows_is_told() {
    let nis = vec![local_ni(nid(1, 1), 8, 4), local_ni(nid(2, 1), 8, 4)];
    let mut node = Node::new(ShardConfig { topology: Arc::new(Topology::new(nis)), ..config() });
    for to in [nid(1, 2), nid(1, 3), nid(2, 2)] {
        let md = node.shard.bind(&node.md(1)).unwrap();
        let target = ProcessId::lustre(to);
        node.shard.put(NOW, &PutRequest { target, ..put_request(md, 2) }).unwrap();
    }
    let mut polled = |ni| node.shard.poll_transmit(NOW, NiId(ni)).map(|lent| lent.more);
    assert_eq!([0, 0, 0].map(&mut polled), [Some(true), Some(false), None], "whoever it goes to");
    assert_eq!([1, 1].map(polled), [Some(false), None], "by the same NI");
}

#[test]
fn requests_run_out_before_anything_is_consumed() {
    let limits = Limits { requests: 2, ..config().limits };
    let mut node = Node::new(ShardConfig { limits, ..config() });
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(3), ..node.md(1) }).unwrap();
    for _ in 0..2 {
        node.shard.put(NOW, &put_request(md, 2)).unwrap();
    }
    assert_eq!(node.shard.put(NOW, &put_request(md, 2)), Err(SubmitError::RequestsFull));
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    assert_eq!(node.shard.put(NOW, &put_request(md, 2)), Ok(()));
    assert_eq!(node.shard.counters().messages_max, 2);
}

#[test]
fn busy_peers_make_no_room_and_idle_ones_do() {
    let limits = Limits { peers: 1, ..config().limits };
    let mut node = Node::new(ShardConfig { limits, ..config() });
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(2), ..node.md(1) }).unwrap();
    node.shard.put(NOW, &put_request(md, 2)).unwrap();
    assert_eq!(node.shard.put(NOW, &put_request(md, 3)), Err(SubmitError::PeersFull));
    assert_eq!(node.shard.counters().peers_refused, 1);
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    assert_eq!(node.shard.put(NOW, &put_request(md, 3)), Ok(()));
    assert_eq!(node.shard.peer_credits(&nid(1, 2)), None);
    assert_eq!(node.shard.peer_credits(&nid(1, 3)), Some(3));
}

#[test]
fn without_a_threshold_the_event_slots_are_the_limit() {
    let mut node = Node::new(config());
    let spec = MdSpec { threshold: Threshold::Infinite, ..node.md(1) };
    let md = node.shard.bind(&spec).unwrap();
    for _ in 0..3 {
        node.shard.put(NOW, &put_request(md, 2)).unwrap();
    }
    let full = Err(SubmitError::EventQueueFull(md));
    assert_eq!(node.shard.put(NOW, &put_request(md, 2)), full);
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    assert_eq!(node.shard.put(NOW, &put_request(md, 2)), full, "the event has not been polled");
    assert_eq!(node.event().kind(), EventKind::Send);
    assert_eq!(node.shard.put(NOW, &put_request(md, 2)), Ok(()));
}

#[test]
fn a_full_device_gets_the_same_message_again_first() {
    let mut node = Node::new(config());
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(3), ..node.md(1) }).unwrap();
    for hdr_data in 0..3 {
        let put = PutRequest { hdr_data, ..put_request(md, 2) };
        node.shard.put(NOW, &put).unwrap();
    }
    let first = node.transmit().unwrap();
    let second = node.transmit().unwrap();
    node.shard.give_back(Full(second.tx));
    node.shard.give_back(Full(first.tx));
    let numbers: Vec<_> = std::iter::from_fn(|| node.transmit())
        .map(|transmit| match transmit.header.body {
            Body::Put { hdr_data, .. } => hdr_data,
            body => panic!("{body:?}"),
        })
        .collect();
    assert_eq!(numbers, [0, 1, 2]);
}

#[test]
#[should_panic(expected = "the LND does not have the message")]
fn an_lnd_that_finishes_a_message_twice_is_caught() {
    let mut node = Node::new(config());
    let md = node.shard.bind(&node.md(1)).unwrap();
    node.shard.put(NOW, &put_request(md, 2)).unwrap();
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    node.shard.sent(NOW, transmit.tx, Status::Ok);
}

#[test]
#[should_panic(expected = "the LND does not have the message")]
fn a_message_that_was_given_back_is_not_with_the_lnd() {
    let mut node = Node::new(config());
    let md = node.shard.bind(&node.md(1)).unwrap();
    node.shard.put(NOW, &put_request(md, 2)).unwrap();
    let transmit = node.transmit().unwrap();
    node.shard.give_back(Full(transmit.tx));
    node.shard.sent(NOW, transmit.tx, Status::Ok);
}

#[test]
fn a_message_waits_for_a_credit_until_its_deadline() {
    let nis = vec![local_ni(nid(1, 1), 2, 1)];
    let mut node = Node::new(ShardConfig { topology: Arc::new(Topology::new(nis)), ..config() });
    let put = |node: &mut Node, user_ptr, after: Duration, to| {
        let md = node.shard.bind(&MdSpec { user_ptr, ..node.md(1) }).unwrap();
        node.shard.put(NOW + after, &put_request(md, to)).unwrap();
    };
    let seconds = Duration::from_secs;
    put(&mut node, 1, seconds(0), 2);
    assert_eq!(node.shard.poll_timeout(), None, "nobody waits");
    put(&mut node, 2, seconds(1), 2);
    put(&mut node, 3, seconds(2), 3);
    put(&mut node, 4, seconds(3), 4);
    let look_interval = Duration::from_millis(250);
    assert_eq!(node.shard.poll_timeout(), Some(NOW + seconds(3)), "has one had a credit for long?");
    assert_eq!(node.shard.ni_credits(NI), Some(-1), "the last one waits for it");
    assert_eq!(node.shard.peer_credits(&nid(1, 2)), Some(-1));

    node.shard.handle_timeout(NOW + MESSAGE_TIMEOUT);
    assert!(node.events().is_empty(), "too early");
    node.shard.handle_timeout(NOW + MESSAGE_TIMEOUT + seconds(1));
    let event = node.event();
    assert_eq!((event.user_ptr(), event.status()), (2, Status::NeverSent(Cause::CreditTimeout)));
    assert_eq!(node.shard.peer_credits(&nid(1, 2)), Some(0));
    let looked_at = NOW + MESSAGE_TIMEOUT + seconds(1);
    assert_eq!(node.shard.poll_timeout(), Some(looked_at + look_interval));

    // The last one's turn comes just after its deadline, before `handle_timeout` is called.
    let first = node.transmit().unwrap();
    node.shard.sent(NOW + MESSAGE_TIMEOUT + seconds(4), first.tx, Status::Ok);
    let events: Vec<_> = node.events().iter().map(|event| (event.user_ptr(), event.status())).collect();
    assert_eq!(events, [(1, Status::Ok), (4, Status::NeverSent(Cause::CreditTimeout))]);
    assert_eq!(node.shard.poll_timeout(), None);
    let third = node.transmit().unwrap();
    node.shard.sent(NOW, third.tx, Status::Unknown(Cause::Device));
    assert_eq!(node.event().status(), Status::Unknown(Cause::Device));
    assert_eq!(node.shard.ni_credits(NI), Some(2));
    let counters = node.shard.counters();
    assert_eq!(counters.send_failures, 3);
    let counted =
        [HealthStatus::NetworkTimeout, HealthStatus::LocalTimeout].map(|status| counters.failed.of(status));
    assert_eq!(counted, [2, 0], "whose fault it is nobody knows");
}

#[test]
fn messages_of_an_unlinked_descriptor_are_cancelled_when_their_turn_comes() {
    let nis = vec![local_ni(nid(1, 1), 1, 1)];
    let mut node = Node::new(ShardConfig { topology: Arc::new(Topology::new(nis)), ..config() });
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(4), ..node.md(1) }).unwrap();
    for to in [2, 2, 3] {
        node.shard.put(NOW, &put_request(md, to)).unwrap();
    }
    let first = node.transmit().unwrap();
    assert_eq!(node.shard.unlink(md), Ok(Unlinked::Pending));
    assert_eq!(node.shard.unlink(md), Err(md), "nothing finds it any more");
    assert!(node.events().is_empty(), "the others' turn has not come");
    node.shard.sent(NOW, first.tx, Status::Ok);
    let events = node.events();
    let cancelled = Status::NeverSent(Cause::Cancelled);
    let statuses: Vec<_> = events.iter().map(|event| event.status()).collect();
    assert_eq!(statuses, [Status::Unknown(Cause::Timeout), cancelled, cancelled]);
    assert_eq!(events.iter().filter(|event| event.unlinked()).count(), 1);
    assert!(events[2].unlinked());
    assert!(events.iter().all(|event| event.kind() == EventKind::Send));
    assert!(node.transmit().is_none());
    assert_eq!(node.shard.usage().memory_descs, 0);
}

#[test]
fn shares_of_credits_are_rounded_up() {
    for (credits, shards, share) in [(8, 1, 8), (8, 3, 3), (1, 4, 1)] {
        let nis = vec![local_ni(nid(1, 1), credits, 100)];
        let topology = Arc::new(Topology::new(nis));
        let mut node = Node::new(ShardConfig { topology, shard_count: shards, ..config() });
        assert_eq!(node.shard.ni_credits(NI), Some(share));
        let md = node.shard.bind(&node.md(1)).unwrap();
        node.shard.put(NOW, &put_request(md, 2)).unwrap();
        assert_eq!(node.shard.peer_credits(&nid(1, 2)), Some(share - 1), "capped to the NI's");
    }
    assert_eq!(Node::new(config()).shard.ni_credits(NiId(1)), None);
}

/// A PUT with ACK or a GET, whose response the threshold is to have room for as well.
#[test]
fn a_response_that_the_threshold_has_no_room_for_is_refused() {
    for is_get in [false, true] {
        let mut node = Node::new(config());
        let ask = |node: &mut Node, md| match is_get {
            true => node.shard.get(NOW, &get_request(md)),
            false => node.shard.put(NOW, &PutRequest { ack: true, ..put_request(md, 2) }),
        };
        let bind = |node: &mut Node, count| {
            node.shard.bind(&MdSpec { threshold: Threshold::Count(count), ..node.md(1) }).unwrap()
        };
        let md = bind(&mut node, 1);
        let refused = ask(&mut node, md).unwrap_err();
        assert_eq!(refused, SubmitError::NoRoomForResponse { md, left: 1, wanted: 2 });
        assert!(refused.to_string().contains("takes 1 more, and 2 are wanted"), "{refused}");
        // Without a response there is room.
        node.shard.put(NOW, &put_request(md, 2)).unwrap();

        // The first response takes what the second one would.
        let md = bind(&mut node, 3);
        ask(&mut node, md).unwrap();
        assert_eq!(ask(&mut node, md), Err(SubmitError::NoRoomForResponse { md, left: 2, wanted: 3 }));
        assert_eq!(node.shard.usage().trackers, 1);

        // No response comes to what was never sent.
        let md = bind(&mut node, 3);
        let target = ProcessId::lustre(nid(9, 2));
        node.shard.get(NOW, &GetRequest { target, ..get_request(md) }).unwrap();
        ask(&mut node, md).unwrap();
    }
}

#[test]
fn an_unlinked_descriptor_says_whether_a_response_may_still_have_come() {
    let lost = Status::Unknown(Cause::Cancelled);
    for (threshold, answered, status) in [
        (Threshold::Count(4), true, Status::Ok),
        (Threshold::Count(4), false, lost),
        (Threshold::Infinite, true, Status::Ok),
        (Threshold::Infinite, false, lost),
    ] {
        let mut node = Node::new(config());
        let md = node.shard.bind(&MdSpec { threshold, ..node.md(1) }).unwrap();
        node.shard.put(NOW, &PutRequest { ack: true, ..put_request(md, 2) }).unwrap();
        let tx = node.transmit().unwrap().tx;
        node.shard.sent(NOW, tx, Status::Ok);
        if answered {
            assert_ne!(node.arrive(&ack_of(handle_of(md))), Verdict::Drop);
        }
        node.events();
        assert_eq!(node.shard.unlink(md), Ok(Unlinked::Done));
        let event = node.event();
        assert_eq!((event.kind(), event.status(), event.unlinked()), (EventKind::Unlink, status, true));
    }
}

/// A message begins to arrive.
fn arrive(node: &mut Node, rx: u32, header: &Header) -> Verdict {
    node.shard.header(NOW, NI, &header.source.nid, RxId(rx), header)
}

/// The kernel reads what is PUT: nothing is written there meanwhile, and what is written is not PUT.
#[test]
fn bytes_that_a_reply_writes_are_not_sent() {
    let mut node = Node::new(config());
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(9), ..node.md(100) }).unwrap();
    let span = Span { buffer: md.into(), offset_bytes: 0, length_bytes: 8 };
    let reply = reply_of(handle_of(md), 8);
    assert_eq!(arrive(&mut node, 0, &reply), Verdict::Deliver(span));
    assert_eq!(node.shard.put(NOW, &put_request(md, 2)), Err(SubmitError::MdLent(md)));
    assert!(matches!(arrive(&mut node, 2, &ack_of(handle_of(md))), Verdict::Deliver(_)));
    node.shard.received(NOW, RxId(2), Status::Ok);
    assert_eq!(node.shard.put(NOW, &put_request(md, 2)), Err(SubmitError::MdLent(md)), "an ACK has no bytes");
    node.shard.received(NOW, RxId(0), Status::Unknown(Cause::Reset));

    node.shard.put(NOW, &put_request(md, 2)).unwrap();
    assert_eq!(arrive(&mut node, 0, &reply), Verdict::Delay, "its bytes are being read");
    assert_eq!(arrive(&mut node, 1, &reply), Verdict::Delay);
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    assert_eq!(node.shard.poll_resume(), Some((NI, RxId(0), Verdict::Deliver(span))));
    assert_eq!(node.shard.poll_resume(), None);
    node.shard.received(NOW, RxId(0), Status::Ok);
    assert_eq!(node.shard.poll_resume(), Some((NI, RxId(1), Verdict::Deliver(span))));
}

/// GETs of one descriptor may be under way in any number, also where their REPLYs have bytes in common: none
/// holds the frames of another one up.
#[test]
fn replies_do_not_wait_for_each_other() {
    const COUNT: u32 = 8;
    let mut node = Node::new(config());
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(200), ..node.md(100) }).unwrap();
    let reply = reply_of(handle_of(md), 8);
    for _ in 0..COUNT {
        node.shard.get(NOW, &get_request(md)).unwrap();
        let tx = node.transmit().unwrap().tx;
        node.shard.sent(NOW, tx, Status::Ok);
    }
    let span = Span { buffer: md.into(), offset_bytes: 0, length_bytes: 8 };
    let waiting = (0..COUNT).filter(|rx| arrive(&mut node, *rx, &reply) != Verdict::Deliver(span));
    assert_eq!(waiting.count(), 0, "REPLYs wait for others");
    // In whatever order they end, nothing is read before the last has.
    for rx in (0..COUNT).rev() {
        assert_eq!(node.shard.put(NOW, &put_request(md, 2)), Err(SubmitError::MdLent(md)));
        let status = if rx == 3 { Status::Unknown(Cause::Reset) } else { Status::Ok };
        node.shard.received(NOW, RxId(rx), status);
    }
    assert_eq!(node.shard.counters().delays(DelayReason::Filled), 0);
    let replies = node.events().into_iter().filter(|event| event.kind() == EventKind::Reply);
    assert_eq!(replies.count(), COUNT as usize);

    // Bytes that are being sent are not written.
    node.shard.put(NOW, &put_request(md, 2)).unwrap();
    assert_eq!(arrive(&mut node, 0, &reply), Verdict::Delay);
    let tx = node.transmit().unwrap().tx;
    node.shard.sent(NOW, tx, Status::Ok);
    assert_eq!(node.shard.poll_resume(), Some((NI, RxId(0), Verdict::Deliver(span))));
}

/// More REPLYs at once than are counted wait, and no count is lost.
#[test]
fn more_replies_than_are_counted_wait() {
    let limits = Limits { incoming: 256, delayed: 128, ..config().limits };
    let mut node = Node::new(ShardConfig { limits, ..config() });
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(400), ..node.md(100) }).unwrap();
    let reply = reply_of(handle_of(md), 8);
    let verdicts: Vec<_> = (0..140).map(|rx| arrive(&mut node, rx, &reply)).collect();
    let taken = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Deliver(_))).count() as u32;
    assert!((100..140).contains(&taken), "{taken}");
    (0..taken).for_each(|rx| node.shard.received(NOW, RxId(rx), Status::Ok));
    for _ in taken..140 {
        let (_, rx, verdict) = node.shard.poll_resume().expect("those that have waited");
        assert!(matches!(verdict, Verdict::Deliver(_)));
        node.shard.received(NOW, rx, Status::Ok);
    }
    assert_eq!(node.events().len(), 140);
    node.shard.put(NOW, &put_request(md, 2)).unwrap();
}
