//! PUTs and GETs of parts of a descriptor that is bound once.

use lnet_core::event::{Event, EventKind};
use lnet_core::lnd::{Cause, RxId, Span, Status, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold, Unlinked};
use lnet_core::shard::{GetRequest, MdPart, PutRequest, SubmitError};
use lnet_core::stats::DropReason;
use lnet_core::time::Instant;
use lnet_core::topology::Topology;
use lnet_core::tunables::Tunables;
use lnet_core::{Limits, ShardConfig};
use lnet_wire::{Body, WireHandle};

use crate::common::{
    NI, NOW, Node, ack_of, config, event_md, get_request, handle_of, local_ni, nid, origin, put_request,
    reply_of,
};

fn part(offset_bytes: u32, length_bytes: u32) -> Option<MdPart> {
    Some(MdPart { offset_bytes, length_bytes })
}

#[test]
fn puts_send_parts_of_one_descriptor_at_once() {
    let mut node = Node::new(config());
    let spec = MdSpec { threshold: Threshold::Count(8), ..node.md(100) };
    let md = node.shard.bind(&spec).unwrap();
    let cases = [(0, 100), (0, 40), (40, 60), (99, 1), (100, 0), (0, 0)];
    for (offset, length) in cases {
        node.shard.put(NOW, &PutRequest { part: part(offset, length), ..put_request(md, 2) }).unwrap();
    }
    node.shard.put(NOW, &put_request(md, 2)).unwrap();
    let cases = cases.into_iter().chain([(0, 100)]);
    let mut unsent: Vec<_> = std::iter::from_fn(|| node.transmit()).collect();
    for (transmit, (offset, length)) in unsent.iter().zip(cases.clone()) {
        let span = Span { buffer: md.into(), offset_bytes: u64::from(offset), length_bytes: length };
        assert_eq!(transmit.payload, (length > 0).then_some(span));
        assert_eq!(transmit.header.payload_length, length);
    }
    // Those beyond a peer's credits come when these return them.
    for (_, length) in cases {
        if unsent.is_empty() {
            unsent.extend(node.transmit());
        }
        node.shard.sent(NOW, unsent.remove(0).tx, Status::Ok);
        let sent = node.event();
        assert!(matches!(sent, Event::Send { length_bytes, .. } if length_bytes == length), "{sent:?}");
    }
    assert_eq!(node.shard.usage().memory_descs, 1, "it is there for more");
}

#[test]
fn a_reply_fills_its_part_and_no_more() {
    for options in [MdOptions::NONE, MdOptions::TRUNCATE] {
        let mut node = Node::new(config());
        let spec = MdSpec { threshold: Threshold::Count(2), options, ..node.md(100) };
        let md = node.shard.bind(&spec).unwrap();
        node.shard.get(NOW, &GetRequest { part: part(30, 20), ..get_request(md) }).unwrap();
        let transmit = node.transmit().unwrap();
        assert!(matches!(transmit.header.body, Body::Get { sink_length: 20, .. }), "{transmit:?}");
        assert_eq!(transmit.payload, None);
        let Body::Get { return_md, .. } = transmit.header.body else { unreachable!() };
        node.shard.sent(NOW, transmit.tx, Status::Ok);
        assert!(matches!(node.event(), Event::Send { length_bytes: 20, .. }));
        let requested_bytes = if options == MdOptions::NONE {
            node.assert_drop(&reply_of(return_md, 21), DropReason::ReplyTooLong);
            20
        } else {
            21
        };
        let span = Span { buffer: md.into(), offset_bytes: 30, length_bytes: 20 };
        assert_eq!(node.arrive(&reply_of(return_md, requested_bytes)), Verdict::Deliver(span));
        let (md, manipulated_bytes, offset_bytes) = (event_md(&spec, md), 20, 30);
        let reply = Event::Reply { md, origin: origin(), requested_bytes, manipulated_bytes, offset_bytes };
        assert_eq!(node.event(), reply);
        assert_eq!(reply.payload(), Some(span));
    }
}

#[test]
fn a_part_beyond_the_end_is_refused() {
    let mut node = Node::new(config());
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(2), ..node.md(100) }).unwrap();
    for (offset_bytes, length_bytes) in [(0, 101), (100, 1), (101, 0), (1, u32::MAX), (u32::MAX, 1)] {
        let beyond = MdPart { offset_bytes, length_bytes };
        let error = SubmitError::Part { md, part: beyond, length_bytes: 100 };
        let put = PutRequest { part: Some(beyond), ..put_request(md, 2) };
        assert_eq!(node.shard.put(NOW, &put), Err(error));
        let get = GetRequest { part: Some(beyond), ..get_request(md) };
        assert_eq!(node.shard.get(NOW, &get), Err(error));
    }
    let error =
        SubmitError::Part { md, part: MdPart { offset_bytes: 90, length_bytes: 20 }, length_bytes: 100 };
    assert!(error.to_string().ends_with("it has 100") && error.to_string().starts_with("bytes 90 to 110 of"));
    // Nothing has started: all of the threshold is left.
    node.shard.get(NOW, &GetRequest { part: part(99, 1), ..get_request(md) }).unwrap();
}

/// The handle that the GET which leaves next has for its REPLY.
fn asked(node: &mut Node) -> WireHandle {
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    match transmit.header.body {
        Body::Get { return_md, .. } => return_md,
        body => panic!("{body:?}"),
    }
}

/// Each REPLY fills the part that its GET has asked for, in whatever order they come, and no other one.
#[test]
fn gets_of_several_parts_are_under_way_at_once() {
    let mut node = Node::new(config());
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(40), ..node.md(100) }).unwrap();
    let parts = [part(50, 10), None, part(0, 10), part(50, 10), part(20, 5)];
    let handles = parts.map(|part| {
        node.shard.get(NOW, &GetRequest { part, ..get_request(md) }).unwrap();
        asked(&mut node)
    });
    assert_eq!(node.events().len(), parts.len());
    assert_eq!(handles[1], handle_of(md));
    assert!((0..5).all(|one| !handles[..one].contains(&handles[one])), "{handles:?}");
    // An ACK is for no part.
    node.assert_drop(&ack_of(handles[0]), DropReason::UnknownMd);
    for at in [4, 0, 2, 1, 3] {
        let MdPart { offset_bytes, length_bytes } =
            parts[at].unwrap_or(MdPart { offset_bytes: 0, length_bytes: 100 });
        node.assert_drop(&reply_of(handles[at], length_bytes + 1), DropReason::ReplyTooLong);
        let span = Span { buffer: md.into(), offset_bytes: offset_bytes.into(), length_bytes };
        assert_eq!(node.arrive(&reply_of(handles[at], length_bytes)), Verdict::Deliver(span));
        assert_eq!(node.event().payload(), Some(span));
        if at != 1 {
            // A name is for one REPLY.
            node.assert_drop(&reply_of(handles[at], 1), DropReason::UnknownMd);
        }
    }
}

/// Parts that have nothing in common do not wait for each other, whatever the LND.
#[test]
fn replies_into_several_parts_are_written_at_once() {
    let topology = Topology::new(vec![local_ni(nid(1, 1), 8, 8)]).into();
    let mut node = Node::new(ShardConfig { topology, ..config() });
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(40), ..node.md(80) }).unwrap();
    for rx in 0..8 {
        node.shard.get(NOW, &GetRequest { part: part(10 * rx, 10), ..get_request(md) }).unwrap();
        let header = reply_of(asked(&mut node), 10);
        let span = Span { buffer: md.into(), offset_bytes: u64::from(10 * rx), length_bytes: 10 };
        let verdict = node.shard.header(NOW, NI, &header.source.nid, RxId(rx), &header);
        assert_eq!(verdict, Verdict::Deliver(span));
    }
    (0..8).for_each(|rx| node.shard.received(NOW, RxId(rx), Status::Ok));
    assert_eq!(node.events().len(), 16);
}

/// A descriptor that has gone is filled by nothing, and its names are free for others.
#[test]
fn the_end_of_a_descriptor_ends_the_names_of_its_parts() {
    let limits = Limits { memory_descs: 4, ..config().limits };
    let mut node = Node::new(ShardConfig { limits, ..config() });
    for _ in 0..20 {
        let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(20), ..node.md(100) }).unwrap();
        let get =
            |node: &mut Node, at| node.shard.get(NOW, &GetRequest { part: part(at, 1), ..get_request(md) });
        let handles = [0, 1, 2, 3].map(|at| {
            get(&mut node, at).unwrap();
            asked(&mut node)
        });
        assert_eq!(get(&mut node, 4), Err(SubmitError::RequestsFull), "as many as descriptors");
        assert!(matches!(node.arrive(&reply_of(handles[2], 1)), Verdict::Deliver(_)));
        get(&mut node, 4).unwrap();
        asked(&mut node);
        assert_eq!(node.shard.unlink(md), Ok(Unlinked::Done));
        node.assert_drop(&reply_of(handles[0], 1), DropReason::UnknownMd);
        assert!(node.events().pop().unwrap().unlinked());
    }
}

#[test]
fn a_get_that_was_never_sent_holds_up_no_other_part() {
    let limits = Limits { memory_descs: 1, ..config().limits };
    let mut node = Node::new(ShardConfig { limits, ..config() });
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Infinite, ..node.md(100) }).unwrap();
    node.shard.get(NOW, &GetRequest { part: part(0, 10), ..get_request(md) }).unwrap();
    let tx = node.transmit().unwrap().tx;
    node.shard.sent(NOW, tx, Status::NeverSent(Cause::TooLong));
    assert_eq!(node.event().kind(), EventKind::Send);
    node.shard.get(NOW, &GetRequest { part: part(10, 10), ..get_request(md) }).unwrap();
}

/// A REPLY that is lost is awaited for a transaction's time where others want its place: a descriptor without
/// a threshold outlives it.
#[test]
fn gets_that_nothing_answers_hold_up_others_for_a_while() {
    let limits = Limits { memory_descs: 4, ..config().limits };
    let mut node = Node::new(ShardConfig { limits, ..config() });
    let endless = MdSpec { threshold: Threshold::Infinite, ..node.md(100) };
    let [md, other] = [(); 2].map(|()| node.shard.bind(&endless).unwrap());
    let timeout = Tunables::DEFAULT.transaction_timeout;
    let get = |node: &mut Node, now: Instant, md, at| {
        let handle = node.shard.get(now, &GetRequest { part: part(at, 1), ..get_request(md) });
        let handle = handle.map(|()| asked(node));
        node.events();
        handle
    };
    let mut now = NOW;
    let mut lost = Vec::new();
    for round in 0..5 {
        let handles = [0, 1, 2, 3].map(|at| get(&mut node, now, md, at).unwrap());
        let early = Instant((now + timeout).0 - 1);
        assert_eq!(get(&mut node, early, other, 4), Err(SubmitError::RequestsFull), "round {round}");
        // A REPLY that comes in time finds its part, and makes room.
        let span = Span { buffer: md.into(), offset_bytes: 2, length_bytes: 1 };
        assert_eq!(node.arrive(&reply_of(handles[2], 1)), Verdict::Deliver(span));
        lost.extend([handles[0], handles[1], handles[3]]);
        node.events();
        now = now + timeout;
    }
    let last = get(&mut node, now, other, 4).unwrap();
    for late in &lost[..12] {
        node.assert_drop(&reply_of(*late, 1), DropReason::UnknownMd);
    }
    assert!(matches!(node.arrive(&reply_of(last, 1)), Verdict::Deliver(span) if span.offset_bytes == 4));
    for md in [md, other] {
        node.shard.unlink(md).unwrap();
    }
}
