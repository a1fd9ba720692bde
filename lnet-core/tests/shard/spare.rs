//! Spare event slots: what descriptors without a threshold borrow when their own are in use.

use lnet_core::event::EventKind;
use lnet_core::handle::MdHandle;
use lnet_core::lnd::{Status, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::{PutRequest, SubmitError};
use lnet_core::stats::DelayReason;
use lnet_core::{Limits, ShardConfig};

use crate::common::{NOW, Node, ack_header, config, put_header, put_request};

/// A node whose descriptors without a threshold have 3 slots for events, and so many spare ones in all.
fn node(spare_events: u32) -> Node {
    let limits = Limits { spare_events, peers: 64, ..config().limits };
    Node::new(ShardConfig { limits, ..config() })
}

fn endless(node: &mut Node) -> MdHandle {
    let spec = MdSpec { threshold: Threshold::Infinite, ..node.md(1) };
    node.shard.bind(&spec).unwrap()
}

/// Sends all that may be sent, which succeeds.
fn send_all(node: &mut Node) {
    while let Some(transmit) = node.transmit() {
        node.shard.sent(NOW, transmit.tx, Status::Ok);
    }
}

/// Starts PUTs until one is refused for want of an event slot; how many there were. Each has its SEND.
fn puts(node: &mut Node, md: MdHandle) -> usize {
    for count in 0.. {
        match node.shard.put(NOW, &put_request(md, 2)) {
            Ok(()) => send_all(node),
            Err(error) => {
                assert_eq!(error, SubmitError::EventQueueFull(md));
                return count;
            }
        }
    }
    unreachable!("a descriptor has event slots for ever")
}

/// The window in which a program that binds once and puts many times may keep its messages: by default as
/// many as some hundred, with ACKs, whose events are all polled late.
#[test]
fn a_flood_out_of_one_descriptor_is_neither_refused_nor_delayed() {
    const WINDOW: usize = 128;
    let defaults = Limits { nis: config().limits.nis, ..Limits::DEFAULT };
    let mut node = Node::new(ShardConfig { limits: defaults, ..config() });
    let md = endless(&mut node);
    let (mut refused, mut delayed) = (0, 0);
    for _ in 0..3 {
        for _ in 0..WINDOW {
            let put = PutRequest { ack: true, ..put_request(md, 2) };
            refused += usize::from(node.shard.put(NOW, &put).is_err());
            send_all(&mut node);
        }
        for _ in 0..WINDOW {
            let verdict = node.arrive(&ack_header(md));
            delayed += usize::from(!matches!(verdict, Verdict::Deliver(_)));
        }
        assert_eq!((refused, delayed), (0, 0), "of {WINDOW} PUTs and their ACKs");
        let kinds: Vec<_> = node.events().iter().map(lnet_core::event::Event::kind).collect();
        assert_eq!(kinds.len(), 2 * WINDOW);
        assert_eq!(kinds.iter().filter(|kind| **kind == EventKind::Ack).count(), WINDOW);
    }
    assert_eq!(node.shard.counters().delays(DelayReason::EventSlots), 0);
}

/// The capacity of an event queue is for what was reserved there, whatever is borrowed.
#[test]
fn what_is_borrowed_is_none_of_the_queue() {
    let mut node = node(64);
    let queue = node.shard.create_event_queue(6).unwrap();
    let of_queue = |count| MdSpec::new(1, count, MdOptions::NONE, queue);
    let md = node.shard.bind(&of_queue(Threshold::Infinite)).unwrap();
    assert!(puts(&mut node, md) > 3);
    let last = node.shard.bind(&of_queue(Threshold::Count(1))).unwrap();
    node.shard.bind(&of_queue(Threshold::Count(0))).unwrap_err();
    node.shard.put(NOW, &put_request(last, 2)).unwrap();
    send_all(&mut node);
    // Each PUT has its event, more than the queue has places, and none is lost.
    let mut polled = 0;
    while node.shard.poll_event(queue).is_some() {
        polled += 1;
    }
    assert!(polled > 6, "{polled} events");
    node.shard.unlink(md).unwrap();
    node.shard.free_event_queue(queue).unwrap_err();
    assert!(node.shard.poll_event(queue).is_some_and(|event| event.unlinked()));
    node.shard.free_event_queue(queue).unwrap();
}

/// A descriptor has borrowed as much as it leaves to others.
#[test]
fn no_descriptor_borrows_all() {
    let mut node = node(64);
    let mds: Vec<_> = (0..4).map(|_| endless(&mut node)).collect();
    let counts: Vec<_> = mds.iter().map(|md| puts(&mut node, *md)).collect();
    // Three of its own; 32 of 64, half of the 32 that are left, and so on while more than a quarter is.
    assert_eq!(counts, [3 + 32, 3 + 16, 3 + 1, 3 + 1]);
}

/// Slots come back with the events, in whatever order descriptors and events go.
#[test]
fn what_was_borrowed_comes_back() {
    for (unlinks_first, holds_operation) in [(false, false), (true, false), (true, true)] {
        let mut node = node(16);
        let first = {
            let md = endless(&mut node);
            let count = puts(&mut node, md);
            node.events();
            node.shard.unlink(md).unwrap();
            node.events();
            count
        };
        assert_eq!(first, 3 + 8);
        for round in 0..8 {
            let md = endless(&mut node);
            let wanted = first - usize::from(holds_operation);
            for _ in 0..wanted {
                node.shard.put(NOW, &put_request(md, 2)).unwrap();
                send_all(&mut node);
            }
            let mut last = None;
            if holds_operation {
                node.shard.put(NOW, &put_request(md, 2)).unwrap();
                last = node.transmit();
            }
            assert_eq!(
                node.shard.put(NOW, &put_request(md, 2)),
                Err(SubmitError::EventQueueFull(md)),
                "{round}"
            );
            if unlinks_first {
                node.shard.unlink(md).unwrap();
            }
            let count = node.events().len();
            assert_eq!(count, wanted + usize::from(unlinks_first && !holds_operation), "{round}");
            if let Some(last) = last {
                node.shard.sent(NOW, last.tx, Status::Ok);
                assert!(node.event().unlinked());
            }
            if !unlinks_first {
                node.shard.unlink(md).unwrap();
                assert!(node.event().unlinked());
            }
        }
        node.shard.free_event_queue(node.queue).unwrap();
    }
}

/// Messages that wait for an attached descriptor go on with its own events.
#[test]
fn messages_wait_for_what_may_not_be_borrowed() {
    let mut node = node(4);
    let spec = MdSpec { options: MdOptions::PUT, threshold: Threshold::Infinite, ..node.md(100) };
    let (_, md) = node.post(1, &spec);
    // Three of its own and half of four.
    for _ in 0..5 {
        assert!(matches!(node.arrive(&put_header(1, 1)), Verdict::Deliver(_)));
    }
    let header = put_header(1, 1);
    let waits =
        node.shard.header(NOW, crate::common::NI, &header.source.nid, lnet_core::lnd::RxId(1), &header);
    assert_eq!(waits, Verdict::Delay);
    assert_eq!(node.shard.counters().delays(DelayReason::EventSlots), 1);
    assert_eq!(node.event_once().kind(), EventKind::Put);
    let (_, rx, verdict) = node.shard.poll_resume().expect("a slot is free");
    assert!(matches!(verdict, Verdict::Deliver(span) if span.buffer == md), "{verdict:?}");
    node.shard.received(NOW, rx, Status::Ok);
    assert_eq!(node.events().len(), 5);
}
