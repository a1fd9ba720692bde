//! PUTs and GETs of parts of a descriptor that is bound once.

use lnet_core::event::{Event, EventKind};
use lnet_core::lnd::{Cause, Span, Status, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::{GetRequest, MdPart, PutRequest, SubmitError};
use lnet_core::stats::DropReason;
use lnet_wire::Body;

use crate::common::{
    NOW, Node, ack_of, config, event_md, get_request, handle_of, origin, put_request, reply_header,
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
        node.shard.sent(NOW, transmit.tx, Status::Ok);
        assert!(matches!(node.event(), Event::Send { length_bytes: 20, .. }));
        let requested_bytes = if options == MdOptions::NONE {
            node.assert_drop(&reply_header(md, 21), DropReason::ReplyTooLong);
            20
        } else {
            21
        };
        let span = Span { buffer: md.into(), offset_bytes: 30, length_bytes: 20 };
        assert_eq!(node.arrive(&reply_header(md, requested_bytes)), Verdict::Deliver(span));
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

/// A REPLY that comes late must not fill what another one is for.
#[test]
fn gets_of_other_parts_are_one_after_the_other() {
    let mut node = Node::new(config());
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(20), ..node.md(100) }).unwrap();
    let get = |node: &mut Node, part| node.shard.get(NOW, &GetRequest { part, ..get_request(md) });
    let answer = |node: &mut Node, offset_bytes| {
        let span = Span { buffer: md.into(), offset_bytes, length_bytes: 8 };
        assert_eq!(node.arrive(&reply_header(md, 8)), Verdict::Deliver(span));
    };
    let busy = Err(SubmitError::OtherPart(md));
    get(&mut node, None).unwrap();
    assert_eq!(get(&mut node, part(50, 10)), busy);
    answer(&mut node, 0);
    get(&mut node, part(50, 10)).unwrap();
    get(&mut node, part(50, 10)).unwrap();
    for other in [part(50, 11), part(0, 10), None] {
        assert_eq!(get(&mut node, other), busy);
    }
    answer(&mut node, 50);
    assert_eq!(get(&mut node, None), busy, "another one may still come");
    answer(&mut node, 50);
    get(&mut node, None).unwrap();
    answer(&mut node, 0);
    get(&mut node, part(90, 10)).unwrap();
    answer(&mut node, 90);

    // An ACK is awaited as well; PUTs change nothing about where REPLYs go.
    node.shard.put(NOW, &PutRequest { ack: true, part: part(0, 4), ..put_request(md, 2) }).unwrap();
    assert_eq!(get(&mut node, part(10, 10)), busy);
    assert_ne!(node.arrive(&ack_of(handle_of(md))), Verdict::Drop);
    get(&mut node, part(10, 10)).unwrap();
}

#[test]
fn a_get_that_was_never_sent_holds_up_no_other_part() {
    let mut node = Node::new(config());
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Infinite, ..node.md(100) }).unwrap();
    node.shard.get(NOW, &GetRequest { part: part(0, 10), ..get_request(md) }).unwrap();
    let tx = node.transmit().unwrap().tx;
    node.shard.sent(NOW, tx, Status::NeverSent(Cause::TooLong));
    assert_eq!(node.event().kind(), EventKind::Send);
    node.shard.get(NOW, &GetRequest { part: part(10, 10), ..get_request(md) }).unwrap();
}
