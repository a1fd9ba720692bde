//! Event handlers: where they run, what they may do, and how they end.

use std::sync::mpsc;

use lnet_user::{Ack, Buffer, EntrySpec, EventKind, Lnet, MdOptions, MdSpec, ShardHandle, Target, Threshold};

use crate::common::{PATIENCE, PINNED, await_idle, next, spec, start, to_self};

/// Posts room for so many PUTs of 8 bytes, whose events a handler gets.
fn post(shard: &ShardHandle, queue: lnet_user::EqHandle, count: u32) {
    let md = MdSpec::new(8, Threshold::Count(count), MdOptions::PUT | MdOptions::MANAGE_REMOTE, queue);
    shard.attach(&EntrySpec::new(PINNED[0], 7), &md, Buffer::zeroed(8)).unwrap().detach();
}

/// Puts so many messages to that room, and waits until all were acknowledged.
fn put(lnet: &Lnet, count: u32) {
    let shard = lnet.shard(1).unwrap();
    let mut sent = shard.create_event_queue(2 * count + 1).unwrap();
    let source = shard.bind(&spec(&sent, 8, 2 * count, MdOptions::NONE), Buffer::zeroed(8)).unwrap();
    for number in 0..count {
        source.put(&to_self(PINNED[0], 7), Ack::Wanted, number.into()).start().unwrap();
    }
    let mut acks = 0;
    while acks < count {
        acks += u32::from(next(&mut sent).event.kind() == EventKind::Ack);
    }
}

fn number(event: &lnet_user::Event) -> u64 {
    let lnet_user::Event::Put { hdr_data, .. } = event else { panic!("{event:?}") };
    *hdr_data
}

#[test]
fn each_event_is_handled_once_in_its_order() {
    // One at a time is written to the same bytes, and a shard delays no more than some of a sibling's.
    const COUNT: u32 = 8;
    let lnet = start(2);
    let shard = lnet.shard(0).unwrap();
    let (tell, told) = mpsc::channel();
    let handler = shard
        .create_event_handler(COUNT + 1, move |queued| tell.send(number(&queued.event)).unwrap())
        .unwrap();
    post(&shard, handler.handle(), COUNT);
    put(&lnet, COUNT);
    let handled: Vec<_> = (0..COUNT).map(|_| told.recv_timeout(PATIENCE).unwrap()).collect();
    assert_eq!(handled, (0..COUNT).map(u64::from).collect::<Vec<_>>());
}

/// A handler sends, makes descriptors, and waits for its own shard: another thread drives that meanwhile.
#[test]
fn a_handler_may_send_and_wait_for_its_shard() {
    let lnet = start(2);
    let shard = lnet.shard(0).unwrap();
    let (tell, told) = mpsc::channel();
    let own = shard.clone();
    let handler = shard
        .create_event_handler(16, move |queued| {
            let mut events = own.create_event_queue(8).unwrap();
            let source = own.bind(&spec(&events, 5, 2, MdOptions::NONE), Buffer::zeroed(5)).unwrap();
            let target = Target::reply_to(&queued.event, PINNED[1], 9).unwrap();
            source.put(&target, Ack::Wanted, 0).start().unwrap();
            while next(&mut events).event.kind() != EventKind::Ack {}
            own.usage().unwrap();
            tell.send(()).unwrap();
        })
        .unwrap();
    post(&shard, handler.handle(), 3);
    let other = lnet.shard(1).unwrap();
    let mut answers = other.create_event_queue(8).unwrap();
    let md = spec(&answers, 5, 3, MdOptions::PUT | MdOptions::MANAGE_REMOTE);
    other.attach(&EntrySpec::new(PINNED[1], 9), &md, Buffer::zeroed(5)).unwrap().detach();
    put(&lnet, 3);
    for _ in 0..3 {
        assert_eq!(next(&mut answers).event.kind(), EventKind::Put);
        told.recv_timeout(PATIENCE).unwrap();
    }
}

#[test]
fn a_handler_that_panics_has_ended_and_the_node_goes_on() {
    let lnet = start(2);
    let shard = lnet.shard(0).unwrap();
    let (tell, told) = mpsc::channel();
    let handler = shard
        .create_event_handler(16, move |queued| {
            tell.send(number(&queued.event)).unwrap();
            panic!("as the test wants it");
        })
        .unwrap();
    post(&shard, handler.handle(), 8);
    put(&lnet, 1);
    told.recv_timeout(PATIENCE).unwrap();
    // The closure is gone, and its descriptor.
    assert_eq!(told.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
    await_idle(&shard);
    let (tell, told) = mpsc::channel();
    let another = lnet.create_event_handler(16, move |queued| tell.send(number(&queued.event)).unwrap());
    let another = another.unwrap();
    post(&shard, another.handle(), 8);
    put(&lnet, 2);
    assert_eq!([told.recv_timeout(PATIENCE), told.recv_timeout(PATIENCE)], [Ok(0), Ok(1)]);
    drop(handler);
}

#[test]
fn a_handler_that_is_dropped_handles_nothing_more() {
    let lnet = start(2);
    let shard = lnet.shard(0).unwrap();
    let (tell, told) = mpsc::channel();
    let handler = shard.create_event_handler(16, move |queued| tell.send(queued).unwrap()).unwrap();
    post(&shard, handler.handle(), 8);
    put(&lnet, 1);
    drop(told.recv_timeout(PATIENCE).unwrap());
    drop(handler);
    assert_eq!(told.recv_timeout(PATIENCE).map(drop), Err(mpsc::RecvTimeoutError::Disconnected));
    await_idle(&shard);
}
