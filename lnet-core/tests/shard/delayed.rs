//! Messages that wait: for an entry of a lazy portal, for event slots.

use lnet_core::event::{Event, EventKind};
use lnet_core::handle::MdHandle;
use lnet_core::lnd::{Cause, RxId, Span, Status, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold, Unlinked};
use lnet_core::portal::EntryError;
use lnet_core::shard::SubmitError;
use lnet_core::stats::{DelayReason, DropReason};
use lnet_core::{Limits, ShardConfig};
use lnet_wire::{Body, Header};

use crate::common::{
    NI, NOW, Node, ack_header, acked_put_header, config, from, get_header, get_request, put_header,
    put_request, reply_header,
};

const FAILED: Status = Status::Unknown(Cause::Reset);

/// A node whose portal 4 is lazy.
fn lazy() -> Node {
    let mut node = Node::new(config());
    node.shard.set_lazy(4).unwrap();
    node
}

fn puts(node: &Node, length_bytes: u64, count: u32) -> MdSpec {
    MdSpec { options: MdOptions::PUT, threshold: Threshold::Count(count), ..node.md(length_bytes) }
}

#[track_caller]
fn arrive(node: &mut Node, rx: u32, header: &Header) -> Verdict {
    node.shard.header(NOW, NI, &header.source.nid, RxId(rx), header)
}

fn delay(node: &mut Node, rx: u32, header: &Header) {
    assert_eq!(arrive(node, rx, header), Verdict::Delay);
}

/// Everything that is resumed.
fn resumed(node: &mut Node) -> Vec<(u32, Verdict)> {
    let polled = std::iter::from_fn(|| node.shard.poll_resume());
    let one = |(ni, RxId(rx), verdict)| {
        assert_eq!(ni, NI);
        (rx, verdict)
    };
    polled.map(one).collect()
}

fn span(md: MdHandle, offset_bytes: u64, length_bytes: u32) -> Verdict {
    Verdict::Deliver(Span { buffer: md.into(), offset_bytes, length_bytes })
}

#[test]
fn a_put_waits_on_a_lazy_portal_for_an_entry_that_takes_it() {
    let mut node = lazy();
    for (rx, match_bits) in [(0, 1), (1, 2), (2, 1)] {
        delay(&mut node, rx, &put_header(match_bits, 4));
    }
    assert_eq!(node.shard.usage().delayed, 3);
    assert_eq!(node.shard.counters().delays(DelayReason::Lazy), 3);
    let spec = puts(&node, 100, 5);
    node.post(3, &spec);
    assert_eq!(node.shard.poll_resume(), None, "nothing matches");
    let (_, md) = node.post(1, &spec);
    assert_eq!(resumed(&mut node), [(0, span(md, 0, 4)), (2, span(md, 4, 4))], "in order of arrival");
    for rx in [2, 0] {
        node.shard.received(NOW, RxId(rx), Status::Ok);
    }
    let places: Vec<_> = node.events().iter().map(Event::payload).collect();
    assert_eq!(
        places,
        [4, 0].map(|offset_bytes| Some(Span { buffer: md.into(), offset_bytes, length_bytes: 4 }))
    );
    assert_eq!(node.shard.usage().delayed, 1);
    assert_eq!(node.shard.counters().received.messages, 2);
}

#[test]
fn what_has_waited_may_be_discarded() {
    let mut node = lazy();
    delay(&mut node, 0, &put_header(1, 4));
    let spec = puts(&node, 100, 1);
    let (_, md) = node.post(1, &MdSpec { options: spec.options | MdOptions::DISCARD, ..spec });
    assert_eq!(resumed(&mut node), [(0, span(md, 0, 0))]);
    node.shard.received(NOW, RxId(0), Status::Ok);
    assert_eq!(node.event().manipulated_bytes(), 4);
    assert_eq!(node.shard.counters().received.bytes, 4);
}

#[test]
fn the_scan_stops_when_the_descriptor_is_used_up() {
    let mut node = lazy();
    for rx in 0..4 {
        delay(&mut node, rx, &put_header(1, 4));
    }
    let spec = puts(&node, 100, 2);
    let (_, first) = node.post(1, &spec);
    let (_, second) = node.post(1, &spec);
    let expected =
        [(0, span(first, 0, 4)), (1, span(first, 4, 4)), (2, span(second, 0, 4)), (3, span(second, 4, 4))];
    assert_eq!(resumed(&mut node), expected);
    assert_eq!(node.shard.unlink(first), Ok(Unlinked::Pending), "it is found until its operations end");
    for rx in 0..4 {
        node.shard.received(NOW, RxId(rx), Status::Ok);
    }
    assert_eq!((node.shard.usage().memory_descs, node.shard.usage().match_entries), (0, 0));
}

#[test]
fn one_that_is_too_long_is_dropped_and_the_next_is_tried() {
    let mut node = lazy();
    for (rx, length) in [(5, 4), (6, 9), (7, 3)] {
        delay(&mut node, rx, &put_header(1, length));
    }
    let spec = puts(&node, 8, 3);
    let (_, md) = node.post(1, &spec);
    assert_eq!(resumed(&mut node), [(5, span(md, 0, 4)), (6, Verdict::Drop), (7, span(md, 4, 3))]);
    assert_eq!(node.shard.counters().drops(DropReason::TooLong).bytes, 9);
    assert!(matches!(arrive(&mut node, 6, &put_header(1, 1)), Verdict::Deliver(_)), "the name is free again");
}

#[test]
fn what_waits_is_dropped_when_the_portal_is_lazy_no_more() {
    let mut node = lazy();
    node.shard.set_lazy(5).unwrap();
    let elsewhere =
        Body::Put { ack_md: lnet_wire::WireHandle::NONE, match_bits: 1, hdr_data: 0, portal: 5, offset: 0 };
    delay(&mut node, 0, &put_header(1, 4));
    delay(&mut node, 1, &Header { body: elsewhere, ..put_header(1, 4) });
    delay(&mut node, 2, &put_header(2, 5));
    node.shard.clear_lazy(4).unwrap();
    assert_eq!(resumed(&mut node), [(0, Verdict::Drop), (2, Verdict::Drop)]);
    assert_eq!(node.shard.counters().drops(DropReason::NotLazy).bytes, 9);
    node.assert_drop(&put_header(1, 4), DropReason::NoMatch);
    assert_eq!(node.shard.usage().delayed, 1);
    assert_eq!(node.shard.set_lazy(64), Err(EntryError::Portal(64)));
    assert_eq!(node.shard.clear_lazy(64), Err(EntryError::Portal(64)));
}

#[test]
fn a_get_never_waits() {
    lazy().assert_drop(&get_header(1, 4), DropReason::NoMatch);
}

#[test]
fn as_many_wait_as_the_limits_say() {
    let limits = Limits { delayed: 2, ..config().limits };
    let mut node = Node::new(ShardConfig { limits, ..config() });
    node.shard.set_lazy(4).unwrap();
    for rx in 1..3 {
        delay(&mut node, rx, &from(1 + rx as u8, put_header(1, 4)));
    }
    (2..5).for_each(|peer| node.assert_drop(&from(peer, put_header(1, 4)), DropReason::DelayedFull));
    node.shard.received(NOW, RxId(1), FAILED);
    delay(&mut node, 1, &from(4, put_header(1, 4)));
}

#[test]
fn an_lnd_may_give_up_what_it_holds() {
    let mut node = lazy();
    for rx in 0..4 {
        delay(&mut node, rx, &put_header(1, 4));
    }
    node.shard.received(NOW, RxId(1), FAILED);
    assert_eq!(node.shard.usage().delayed, 3);
    let spec = puts(&node, 8, 3);
    let (_, md) = node.post(1, &spec);
    // Taken already, though the LND does not know that: the operation ends, badly.
    node.shard.received(NOW, RxId(2), FAILED);
    assert_eq!(node.event().status(), FAILED);
    assert_eq!(resumed(&mut node), [(0, span(md, 0, 4)), (3, Verdict::Drop)]);
    let counters = node.shard.counters();
    assert_eq!((counters.receive_failures, counters.drops(DropReason::TooLong).messages), (2, 1));
    // One that is to be dropped has been counted.
    delay(&mut node, 5, &put_header(7, 4));
    node.shard.clear_lazy(4).unwrap();
    node.shard.received(NOW, RxId(5), FAILED);
    assert_eq!((node.shard.poll_resume(), node.shard.counters().receive_failures), (None, 2));
    assert_eq!(node.shard.usage().delayed, 0);
}

#[test]
#[should_panic(expected = "cannot be received")]
fn a_delayed_message_cannot_be_received() {
    let mut node = lazy();
    delay(&mut node, 0, &put_header(1, 4));
    node.shard.received(NOW, RxId(0), Status::Ok);
}

#[test]
fn the_response_is_promised_when_the_message_is_taken() {
    let limits = Limits { responses: 1, ..config().limits };
    let mut node = Node::new(ShardConfig { limits, ..config() });
    node.shard.set_lazy(4).unwrap();
    for rx in 0..2 {
        delay(&mut node, rx, &acked_put_header(1, 4));
    }
    let references = |node: &Node| node.shard.peers().map(|peer| peer.reference_count).collect::<Vec<_>>();
    assert_eq!(references(&node), [2], "nothing is promised yet");
    let spec = puts(&node, 8, 3);
    let (_, md) = node.post(1, &spec);
    assert_eq!(resumed(&mut node), [(0, span(md, 0, 4)), (1, Verdict::Drop)]);
    assert_eq!(node.shard.counters().drops(DropReason::ResponsesFull).messages, 1);
    node.shard.received(NOW, RxId(0), Status::Ok);
    let ack = node.transmit().unwrap();
    assert!(matches!(ack.header.body, Body::Ack { manipulated_length: 4, .. }));
    assert_eq!(references(&node), [1]);
}

/// A descriptor without a threshold whose event slots are in use; posted for match bits 1.
fn busy(node: &mut Node, options: MdOptions) -> MdHandle {
    let spec = MdSpec { options, threshold: Threshold::Infinite, ..node.md(100) };
    let (_, md) = node.post(1, &spec);
    for _ in 0..3 {
        assert_ne!(node.arrive(&put_header(1, 4)), Verdict::Drop);
    }
    md
}

#[test]
fn a_message_waits_for_event_slots() {
    let mut node = Node::new(config());
    let md = busy(&mut node, MdOptions::PUT | MdOptions::GET);
    delay(&mut node, 4, &put_header(1, 5));
    delay(&mut node, 5, &get_header(1, 6));
    assert_eq!(node.shard.counters().delays(DelayReason::EventSlots), 2);
    node.shard.poll_event(node.queue).unwrap();
    assert_eq!(resumed(&mut node), [(4, span(md, 12, 5))], "one slot, one message");
    node.shard.poll_event(node.queue).unwrap();
    assert_eq!(resumed(&mut node), [(5, span(md, 17, 0))]);
    node.shard.received(NOW, RxId(4), Status::Ok);
    node.shard.received(NOW, RxId(5), Status::Ok);
    assert_eq!(node.transmit().unwrap().header.payload_length, 6);
    assert_eq!(node.shard.usage().delayed, 0);
}

#[test]
fn a_message_for_a_busy_descriptor_finds_another_when_that_goes() {
    let mut node = Node::new(config());
    let md = busy(&mut node, MdOptions::PUT);
    for rx in 4..6 {
        delay(&mut node, rx, &put_header(1, 5));
    }
    let spec = puts(&node, 100, 1);
    let (_, other) = node.post(1, &spec);
    assert_eq!(node.shard.poll_resume(), None, "the first that matches is the one");
    assert_eq!(node.shard.unlink(md), Ok(Unlinked::Done));
    assert_eq!(resumed(&mut node), [(4, span(other, 0, 5)), (5, Verdict::Drop)]);
    assert_eq!(node.shard.counters().drops(DropReason::NoMatch).messages, 1);
}

#[test]
fn an_entry_before_a_busy_one_takes_what_waits() {
    let mut node = Node::new(config());
    busy(&mut node, MdOptions::PUT);
    delay(&mut node, 4, &put_header(1, 5));
    let position = lnet_core::portal::Position::First;
    let spec = lnet_core::portal::EntrySpec { position, ..crate::common::entry(1) };
    let entry = node.shard.attach_entry(&spec).unwrap();
    let spec = puts(&node, 100, 1);
    let md = node.shard.attach(entry, &spec).unwrap();
    assert_eq!(resumed(&mut node), [(4, span(md, 0, 5))]);
}

#[test]
fn responses_wait_for_event_slots_too() {
    let mut node = Node::new(config());
    let spec = MdSpec { threshold: Threshold::Infinite, ..node.md(8) };
    let md = node.shard.bind(&spec).unwrap();
    node.shard.get(NOW, &get_request(md)).unwrap();
    node.shard.put(NOW, &lnet_core::shard::PutRequest { ack: true, ..put_request(md, 2) }).unwrap();
    node.shard.put(NOW, &put_request(md, 2)).unwrap();
    assert_eq!(node.shard.put(NOW, &put_request(md, 2)), Err(SubmitError::EventQueueFull(md)));
    delay(&mut node, 0, &ack_header(md));
    delay(&mut node, 1, &reply_header(md, 3));
    for _ in 0..3 {
        let transmit = node.transmit().unwrap();
        node.shard.sent(NOW, transmit.tx, Status::Ok);
    }
    assert_eq!(node.shard.poll_resume(), None, "no event has been polled");
    assert_eq!(node.event_once().kind(), EventKind::Send);
    assert_eq!(resumed(&mut node), [(0, span(md, 0, 0))]);
    node.shard.received(NOW, RxId(0), Status::Ok);
    assert_eq!(node.shard.unlink(md), Ok(Unlinked::Done));
    assert_eq!(resumed(&mut node), [(1, Verdict::Drop)]);
    assert_eq!(node.shard.counters().drops(DropReason::UnknownMd).messages, 1);
    let last = node.events().pop().unwrap();
    assert_eq!((last.kind(), last.unlinked()), (EventKind::Unlink, true));
}

#[test]
fn a_used_up_descriptor_lets_go_of_what_waits_for_it() {
    let mut node = lazy();
    let spec = MdSpec {
        options: MdOptions::PUT,
        threshold: Threshold::Infinite,
        max_size_bytes: Some(10),
        ..node.md(30)
    };
    let (_, md) = node.post(1, &spec);
    for length in [5, 5, 5] {
        assert_ne!(node.arrive(&put_header(1, length)), Verdict::Drop);
    }
    for rx in 1..4 {
        delay(&mut node, rx, &put_header(1, 10));
    }
    assert_eq!(node.shard.counters().delays(DelayReason::EventSlots), 3);
    node.shard.poll_event(node.queue).unwrap();
    assert_eq!(resumed(&mut node), [(1, span(md, 15, 10))]);
    // The others wait for another entry now.
    let spec = puts(&node, 30, 2);
    let (_, other) = node.post(1, &spec);
    assert_eq!(resumed(&mut node), [(2, span(other, 0, 10)), (3, span(other, 10, 10))]);
}
