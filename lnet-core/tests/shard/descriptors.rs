//! Descriptors and event queues: made, refused, ended.

use lnet_core::event::{EqError, Event, EventKind};
use lnet_core::handle::{EqHandle, ShardId};
use lnet_core::lnd::{RxId, Status, Uplink};
use lnet_core::md::{MdError, MdOptions, MdSpec, Threshold, Unlinked};
use lnet_core::{Limits, ShardConfig};

use crate::common::{NI, NOW, Node, config, entry, put_header, put_request};

#[test]
fn a_descriptor_that_is_refused_takes_its_entry_along() {
    let mut node = Node::new(config());
    let good = MdSpec { options: MdOptions::PUT, ..node.md(8) };
    let stale = node.shard.create_event_queue(1).unwrap();
    node.shard.free_event_queue(stale).unwrap();
    let cases = [
        (MdSpec { options: MdOptions::TRUNCATE, ..good }, MdError::Options(MdOptions::TRUNCATE)),
        (MdSpec { max_size_bytes: Some(9), ..good }, MdError::MaxSize { max_size_bytes: 9, length_bytes: 8 }),
        (MdSpec { event_queue: Some(stale), ..good }, MdError::UnknownEventQueue(stale)),
        (MdSpec { threshold: Threshold::Count(512), ..good }, MdError::EventSlots { wanted: 513, free: 512 }),
        (
            MdSpec { threshold: Threshold::Count(u32::MAX), ..good },
            MdError::EventSlots { wanted: u32::MAX, free: 512 },
        ),
    ];
    for (spec, expected) in cases {
        let me = node.shard.attach_entry(&entry(1)).unwrap();
        assert_eq!(node.shard.attach(me, &spec), Err(expected));
        assert_eq!(node.shard.attach(me, &good), Err(MdError::UnknownEntry(me)));
        assert_eq!((node.shard.usage().match_entries, node.shard.usage().memory_descs), (0, 0));
    }
    let exact = MdSpec { threshold: Threshold::Count(511), max_size_bytes: Some(8), ..good };
    node.post(1, &exact);
}

#[test]
fn an_entry_keeps_the_descriptor_that_it_has() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, ..node.md(8) };
    let (me, _) = node.post(1, &spec);
    assert_eq!(node.shard.attach(me, &spec), Err(MdError::EntryInUse(me)));
    assert_ne!(node.arrive(&put_header(1, 1)), lnet_core::lnd::Verdict::Drop);
}

#[test]
fn only_what_can_be_sent_is_bound() {
    let mut node = Node::new(config());
    let good = node.md(1 << 20);
    for options in [MdOptions::PUT, MdOptions::GET | MdOptions::TRUNCATE] {
        assert_eq!(node.shard.bind(&MdSpec { options, ..good }), Err(MdError::Options(options)));
    }
    let length_bytes = (1 << 20) + 1;
    assert_eq!(node.shard.bind(&MdSpec { length_bytes, ..good }), Err(MdError::TooLong { length_bytes }));
    assert!(node.shard.bind(&good).is_ok());
}

#[test]
fn descriptors_run_out_without_leaking_event_slots() {
    let limits = Limits { memory_descs: 2, ..config().limits };
    let mut node = Node::new(ShardConfig { limits, ..config() });
    let spec = node.md(1);
    let first = node.shard.bind(&spec).unwrap();
    let second = node.shard.bind(&spec).unwrap();
    assert_eq!(node.shard.bind(&spec), Err(MdError::Full));
    for md in [first, second] {
        node.shard.unlink(md).unwrap();
    }
    assert_eq!(node.events().len(), 2);
    assert_eq!(node.shard.free_event_queue(node.queue), Ok(()));
}

#[test]
fn an_idle_descriptor_is_unlinked_at_once() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, user_ptr: 42, ..node.md(8) };
    let (me, md) = node.post(1, &spec);
    assert_eq!(node.shard.unlink(md), Ok(Unlinked::Done));
    let event = node.event();
    assert_eq!((event.kind(), event.status(), event.unlinked()), (EventKind::Unlink, Status::Ok, true));
    assert_eq!((event.md(), event.user_ptr(), event.match_bits()), (md, 42, None));
    assert_eq!(node.shard.unlink(md), Err(md));
    assert_eq!(node.shard.unlink_entry(me), Err(me), "the entry went with it");
}

#[test]
fn without_a_queue_nothing_is_reported() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, event_queue: None, ..node.md(8) };
    let (_, md) = node.post(1, &MdSpec { threshold: Threshold::Count(1000), ..spec });
    node.arrive(&put_header(1, 1));
    assert_eq!(node.shard.unlink(md), Ok(Unlinked::Done));
    assert!(node.events().is_empty());
}

/// The descriptor ends with the event of its last operation, whatever the order of ends.
#[test]
fn a_busy_descriptor_ends_with_its_last_operation() {
    for (first, second) in [(1, 2), (2, 1)] {
        let mut node = Node::new(config());
        let spec = MdSpec { options: MdOptions::PUT, threshold: Threshold::Count(2), ..node.md(8) };
        node.post(1, &spec);
        for rx in [1, 2] {
            node.shard.header(NOW, NI, &put_header(1, rx).source.nid, RxId(rx), &put_header(1, rx));
        }
        node.shard.received(NOW, RxId(first), Status::Ok);
        node.shard.received(NOW, RxId(second), Status::Ok);
        let ends: Vec<_> =
            node.events().iter().map(|event| (event.manipulated_bytes(), event.unlinked())).collect();
        assert_eq!(ends, [(first, false), (second, true)]);
        assert_eq!(node.shard.usage().memory_descs, 0);
    }
}

#[test]
fn sm_04_unlinking_a_descriptor_that_is_going_makes_no_second_event() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, ..node.md(8) };
    let (_, md) = node.post(1, &spec);
    node.shard.header(NOW, NI, &put_header(1, 1).source.nid, RxId(1), &put_header(1, 1));
    assert_eq!(node.shard.unlink(md), Ok(Unlinked::Pending), "used up, but its operation goes on");
    node.shard.received(NOW, RxId(1), Status::Ok);
    let event = node.event();
    assert_eq!((event.kind(), event.unlinked()), (EventKind::Put, true));
    assert_eq!(node.shard.unlink(md), Err(md));
}

#[test]
fn without_auto_unlink_a_used_up_descriptor_stays() {
    let mut node = Node::new(config());
    let spec = MdSpec { auto_unlink: false, ..node.md(8) };
    let md = node.shard.bind(&spec).unwrap();
    node.shard.put(NOW, &put_request(md, 2)).unwrap();
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    assert!(!node.event().unlinked());
    assert_eq!(node.shard.usage().memory_descs, 1);
    assert_eq!(node.shard.unlink(md), Ok(Unlinked::Done));
    assert!(node.event().unlinked());
}

#[test]
fn event_queues_run_out_and_come_back() {
    let mut node = Node::new(config());
    assert_eq!(node.shard.create_event_queue(513), Err(EqError::Slots { wanted: 513, free: 512 }));
    let queues: Vec<_> = (0..3).map(|_| node.shard.create_event_queue(100).unwrap()).collect();
    assert_eq!(node.shard.create_event_queue(1), Err(EqError::Full));
    for queue in queues {
        assert_eq!(node.shard.free_event_queue(queue), Ok(()));
        assert_eq!(node.shard.free_event_queue(queue), Err(EqError::Unknown));
        assert_eq!(node.shard.poll_event(queue), None);
    }
    assert!(node.shard.create_event_queue(512).is_ok());
}

#[test]
fn an_event_queue_in_use_is_not_freed() {
    let mut node = Node::new(config());
    let md = node.shard.bind(&node.md(8)).unwrap();
    assert_eq!(node.shard.free_event_queue(node.queue), Err(EqError::Busy { reserved: 2 }));
    node.shard.unlink(md).unwrap();
    assert_eq!(node.shard.free_event_queue(node.queue), Err(EqError::Busy { reserved: 1 }));
    node.event();
    assert_eq!(node.shard.free_event_queue(node.queue), Ok(()));
}

#[test]
fn each_queue_gets_its_own_events_in_order() {
    let mut node = Node::new(config());
    let other = node.shard.create_event_queue(100).unwrap();
    let mine = node.queue;
    let mut md_of = |queue: EqHandle, user_ptr| {
        node.shard.bind(&MdSpec { event_queue: Some(queue), user_ptr, ..node.md(8) }).unwrap()
    };
    let mds = [md_of(mine, 1), md_of(other, 2), md_of(mine, 3), md_of(other, 4)];
    for md in mds {
        node.shard.unlink(md).unwrap();
    }
    let users = |events: Vec<Event>| events.iter().map(|event| event.user_ptr()).collect::<Vec<_>>();
    assert_eq!(users(node.events()), [1, 3]);
    node.queue = other;
    assert_eq!(users(node.events()), [2, 4]);
}

/// Slots of events that were polled after the end of their descriptor go back to the queue.
#[test]
fn slots_of_a_descriptor_without_threshold_are_not_lost() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, threshold: Threshold::Infinite, ..node.md(100) };
    for polled_before_the_end in 0..=2 {
        let (_, md) = node.post(1, &spec);
        node.arrive(&put_header(1, 1));
        node.arrive(&put_header(1, 1));
        let mut polled = 0;
        while polled < polled_before_the_end && node.shard.poll_event(node.queue).is_some() {
            polled += 1;
        }
        node.shard.unlink(md).unwrap();
        assert_eq!(node.events().len(), 3 - polled);
    }
    assert_eq!(node.shard.free_event_queue(node.queue), Ok(()));
}

#[test]
fn handles_of_another_shard_or_kind_are_unknown() {
    let mut node = Node::new(config());
    let other = ShardConfig { shard: ShardId(1), shard_count: 2, ..config() };
    let mut other = Node::new(other);
    let md = node.shard.bind(&node.md(8)).unwrap();
    other.shard.bind(&other.md(8)).unwrap();
    assert_eq!(other.shard.unlink(md), Err(md));
    assert_eq!(other.shard.poll_event(node.queue), None);
    assert_eq!(other.shard.free_event_queue(node.queue), Err(EqError::Unknown));
    assert_eq!(node.shard.free_event_queue(EqHandle(md.0)), Err(EqError::Unknown));
}
