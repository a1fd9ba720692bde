//! Handles that are dropped, and shards that end.

use std::time::Duration;

use lnet_user::{Ack, Buffer, EntrySpec, EventKind, LnetError, MdOptions, MdSpec, Threshold};

use crate::common::{LAZY, PATIENCE, PINNED, ROTOR, await_idle, next, post, spec, start, to_self};

#[test]
fn a_dropped_handle_unlinks() {
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(32).unwrap();
    let md = shard.bind(&spec(&queue, 4, 9, MdOptions::NONE), Buffer::from(vec![1; 4])).unwrap();
    let entry = shard
        .attach(&EntrySpec::new(PINNED[0], 1), &spec(&queue, 4, 9, MdOptions::PUT), Buffer::zeroed(4))
        .unwrap();
    let handles = [md.handle(), entry.handle()];
    drop((md, entry));
    for handle in handles {
        let queued = next(&mut queue);
        assert_eq!((queued.event.kind(), queued.event.md()), (EventKind::Unlink, handle));
        assert_eq!(queued.into_buffer().unwrap().len(), 4);
    }
    await_idle(&shard);
}

#[test]
fn a_dropped_queue_takes_its_descriptors_along() {
    let lnet = start(2);
    let shard = lnet.shard(0).unwrap();
    for round in 0..50 {
        let mut queue = shard.create_event_queue(1 << 10).unwrap();
        // One idle, one that waits for an entry, one that has events in the ring, one that is being read.
        let idle = MdSpec::new(4, Threshold::Infinite, MdOptions::PUT, queue.handle());
        let idle = shard.attach(&EntrySpec::new(ROTOR, 1), &idle, Buffer::zeroed(4)).unwrap();
        let md = spec(&queue, 4, 9, MdOptions::NONE);
        let waits = shard.bind(&md, Buffer::zeroed(4)).unwrap();
        waits.put(&to_self(LAZY, 99), Ack::Wanted, 0).start().unwrap();
        let busy = shard.bind(&md, Buffer::zeroed(4)).unwrap();
        shard
            .attach(&EntrySpec::new(PINNED[0], 5), &spec(&queue, 8, 3, MdOptions::PUT), Buffer::zeroed(8))
            .unwrap()
            .detach();
        busy.put(&to_self(PINNED[0], 5), Ack::Wanted, 0).start().unwrap();
        let read = loop {
            let queued = next(&mut queue);
            if queued.event.kind() == EventKind::Put {
                break queued;
            }
        };
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        if round % 3 == 0 {
            drop((idle, waits, busy));
            drop(queue);
        } else {
            drop(queue);
            drop((idle, waits, busy));
        }
        assert_eq!(read.payload(), Some(&[0; 4][..]));
        drop(read);
        // The one that waits for an entry does so however its descriptor fares, and may be asked about just
        // now.
        lnet.set_lazy(LAZY, false).unwrap();
        await_idle(&shard);
        lnet.set_lazy(LAZY, true).unwrap();
    }
    // Sixteen queues there may be: those of before are gone.
    let queues: Vec<_> = (0..8).map(|_| shard.create_event_queue(4).unwrap()).collect();
    assert_eq!(queues.len(), 8);
}

/// The node goes with its last handle; events outlive it.
#[test]
fn the_last_handle_stops_the_node() {
    let lnet = start(2);
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(16).unwrap();
    let md = spec(&queue, 8, 2, MdOptions::PUT);
    shard.attach(&EntrySpec::new(PINNED[0], 1), &md, Buffer::zeroed(8)).unwrap().detach();
    let source = shard.bind(&spec(&queue, 4, 2, MdOptions::NONE), Buffer::from(vec![6; 4])).unwrap();
    source.put(&to_self(PINNED[0], 1), Ack::NotWanted, 0).start().unwrap();
    let queued = next(&mut queue);
    drop(lnet);
    drop(shard);
    source.put(&to_self(PINNED[0], 1), Ack::NotWanted, 0).start().unwrap();
    drop(source);
    drop(queue);
    assert_eq!(queued.payload(), Some(&[6; 4][..]));
}

#[test]
fn a_node_that_is_started_again() {
    for _ in 0..3 {
        let lnet = start(1);
        let shard = lnet.shard(0).unwrap();
        let mut queue = shard.create_event_queue(16).unwrap();
        post(&shard, &queue, PINNED[0], 1, 4);
        let source = shard.bind(&spec(&queue, 4, 1, MdOptions::NONE), Buffer::from(vec![6; 4])).unwrap();
        source.put(&to_self(PINNED[0], 1), Ack::NotWanted, 0).start().unwrap();
        assert_eq!(next(&mut queue).event.kind(), EventKind::Put);
        let result: Result<_, LnetError> = queue.next_blocking(Some(PATIENCE));
        assert_eq!(result.unwrap().unwrap().event.kind(), EventKind::Send);
    }
}

/// The ACK may have been on its way: the last event does not pass for one of a descriptor that was idle.
#[test]
fn a_descriptor_that_is_dropped_before_its_ack_says_so() {
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(8).unwrap();
    let md = shard.bind(&spec(&queue, 4, 2, MdOptions::NONE), Buffer::zeroed(4)).unwrap();
    // No entry takes it, which its initiator is not told.
    md.put(&to_self(PINNED[0], 1), Ack::Wanted, 0).start().unwrap();
    assert_eq!(next(&mut queue).event.kind(), EventKind::Send);
    drop(md);
    let queued = next(&mut queue);
    let unknown = lnet_user::Status::Unknown(lnet_user::Cause::Cancelled);
    assert_eq!((queued.event.kind(), queued.event.status()), (EventKind::Unlink, unknown));
    assert_eq!(queued.into_buffer().unwrap().len(), 4);
}
