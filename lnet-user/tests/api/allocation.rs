//! A PUT or GET allocates nothing where it is asked for. (That its shard allocates nothing is tested beside
//! the code.)

use std::time::Duration;

use lnet_user::{Ack, Buffer, Descriptor, EntrySpec, EventQueue, MdOptions, MdSpec, Threshold};

use crate::common::{PINNED, next, start, to_self};

fn exchange(queue: &mut EventQueue, md: &Descriptor) {
    md.put(&to_self(PINNED[0], 1), Ack::Wanted, 0).queue().unwrap();
    md.get(&to_self(PINNED[0], 2)).queue().unwrap();
    // PUT, SEND, ACK; SEND, REPLY, GET.
    for _ in 0..6 {
        drop(next(queue));
    }
}

#[test]
fn requests_and_events_allocate_nothing() {
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(500).unwrap();
    let endless = |options| MdSpec::new(64, Threshold::Infinite, options, queue.handle());
    for (bits, options) in [(1, MdOptions::PUT), (2, MdOptions::GET)] {
        let md = endless(options | MdOptions::MANAGE_REMOTE);
        shard.attach(&EntrySpec::new(PINNED[0], bits), &md, Buffer::zeroed(64)).unwrap().detach();
    }
    let md = shard.bind(&endless(MdOptions::NONE), Buffer::zeroed(64)).unwrap();
    // A thread that waits for the first time makes what wakes it.
    assert!(queue.next_blocking(Some(Duration::from_millis(1))).unwrap().is_none());
    (0..10).for_each(|_| exchange(&mut queue, &md));
    // A thread that waits drives its shard, which allocates what it tells of itself once in a while.
    let measured = [(); 5].map(|()| {
        allocation_counter::measure(|| (0..100).for_each(|_| exchange(&mut queue, &md))).count_total
    });
    assert!(measured.contains(&0), "{measured:?}");
}
