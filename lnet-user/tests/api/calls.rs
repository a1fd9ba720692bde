//! Calls of many threads, and what is refused.

use std::time::Duration;

use lnet_user::api::{LnetError, Threads};
use lnet_user::runtime::{Idle, LendError};
use lnet_user::{
    Ack, Buffer, EntrySpec, EventKind, Lnet, MdOptions, MdSpec, Nid, NodeConfig, Position, ShardHandle,
    Status, SubmitError, Target, Threshold,
};

use crate::common::{PATIENCE, PINNED, ROTOR, await_idle, config, next, post, spec, start, to_self};

/// More threads than shards, each with descriptors and queues of its own, all at once.
#[test]
fn any_number_of_threads_hold_handles() {
    const THREADS: usize = 8;
    const ROUNDS: u64 = 300;
    let lnet = start(2);
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let lnet = lnet.clone();
            std::thread::spawn(move || {
                let shard = lnet.shard(thread % 2).unwrap();
                let mut queue = shard.create_event_queue(64).unwrap();
                for round in 0..ROUNDS {
                    let bits = (thread as u64) << 32 | round;
                    let bytes: Vec<u8> =
                        (0..100).map(|byte| byte as u8 ^ round as u8 ^ thread as u8).collect();
                    post(&shard, &queue, ROTOR, bits, 100);
                    let source = shard
                        .bind(&spec(&queue, 100, 2, MdOptions::NONE), Buffer::from(bytes.clone()))
                        .unwrap();
                    source.put(&to_self(ROTOR, bits), Ack::Wanted, round).start().unwrap();
                    let (mut ends, mut put) = (0, false);
                    while ends < 2 {
                        let queued = next(&mut queue);
                        assert_eq!(queued.event.status(), Status::Ok);
                        ends += u32::from(queued.event.unlinked());
                        if queued.event.kind() == EventKind::Put {
                            assert_eq!(
                                (queued.payload(), queued.event.hdr_data()),
                                (Some(&bytes[..]), Some(round))
                            );
                            put = true;
                            assert_eq!(*queued.into_buffer().unwrap(), bytes);
                        }
                    }
                    assert!(put);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for shard in 0..2 {
        await_idle(&lnet.shard(shard).unwrap());
    }
    let received: u64 =
        (0..2).map(|shard| lnet.shard(shard).unwrap().counters().unwrap().received.messages).sum();
    assert_eq!(received, 2 * THREADS as u64 * ROUNDS, "PUTs and ACKs");
}

/// An entry beside another one is posted by that one's handle; beside one that has gone, or that another
/// shard has, none is posted and the buffer comes back.
#[test]
fn an_entry_is_posted_beside_another_one() {
    let lnet = start(2);
    let [first_shard, second_shard] = [0, 1].map(|shard| lnet.shard(shard).unwrap());
    let attach = |shard: &ShardHandle, position, user_ptr| {
        let queue = shard.create_event_queue(8).unwrap();
        let md = MdSpec { user_ptr, ..spec(&queue, 4, 1, MdOptions::PUT) };
        let entry = EntrySpec { position, ..EntrySpec::new(ROTOR, 1) };
        shard.attach(&entry, &md, Buffer::zeroed(4)).map(|entry| (entry, queue))
    };
    let (last, mut last_queue) = attach(&first_shard, Position::Last, 3).unwrap();
    let (first, mut first_queue) = attach(&first_shard, Position::Before(last.entry_handle()), 1).unwrap();
    let (middle, mut middle_queue) = attach(&first_shard, Position::After(first.entry_handle()), 2).unwrap();
    let mut source_queue = first_shard.create_event_queue(8).unwrap();
    let source = spec(&source_queue, 4, 3, MdOptions::NONE);
    let source = first_shard.bind(&source, Buffer::zeroed(4)).unwrap();
    for (queue, user_ptr) in [(&mut first_queue, 1), (&mut middle_queue, 2), (&mut last_queue, 3)] {
        source.put(&to_self(ROTOR, 1), Ack::NotWanted, 0).start().unwrap();
        next(&mut source_queue);
        let taken = next(queue).event;
        assert_eq!((taken.kind(), taken.user_ptr()), (EventKind::Put, user_ptr));
    }
    for (shard, expected) in [(&first_shard, "has gone"), (&second_shard, "is on shard 0")] {
        let refused = attach(shard, Position::After(middle.entry_handle()), 4).unwrap_err();
        assert!(refused.error.to_string().contains(expected), "{}", refused.error);
        assert_eq!(refused.buffer.map(|buffer| buffer.len()), Some(4));
    }
}

/// One descriptor, of which many threads put: more calls than may wait at a shard.
#[test]
fn a_descriptor_is_used_by_many_threads() {
    const THREADS: u32 = 16;
    const PUTS: u32 = 200;
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(8000).unwrap();
    let sink = spec(&queue, 8, THREADS * PUTS, MdOptions::PUT | MdOptions::MANAGE_REMOTE);
    shard.attach(&EntrySpec::new(PINNED[0], 1), &sink, Buffer::zeroed(8)).unwrap().detach();
    let source = spec(&queue, 8, THREADS * PUTS, MdOptions::NONE);
    let source = shard.bind(&source, Buffer::from(vec![1; 8])).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for number in 0..PUTS {
                    while let Err(error) =
                        source.put(&to_self(PINNED[0], 1), Ack::NotWanted, number.into()).start()
                    {
                        assert!(error.is_busy(), "{error}");
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    let (mut puts, mut sends) = (0, 0);
    while (puts, sends) != (THREADS * PUTS, THREADS * PUTS) {
        let queued = next(&mut queue);
        assert_eq!(queued.event.status(), Status::Ok);
        match queued.event.kind() {
            EventKind::Put => puts += 1,
            EventKind::Send => sends += 1,
            kind => panic!("{kind:?}"),
        }
        if queued.event.unlinked() {
            assert_eq!(*queued.into_buffer().unwrap(), [1; 8]);
        }
    }
    await_idle(&shard);
}

#[test]
fn refusals_name_the_way_out_and_hand_back() {
    let lnet = start(2);
    let no_shard = lnet.shard(2).unwrap_err();
    assert_eq!(no_shard.to_string(), "the node has 2 shards, numbered from 0: there is no shard 2");
    let shard = lnet.shard(0).unwrap();
    assert!(matches!(shard.create_event_queue(1 << 20), Err(LnetError::Queue(_))));
    assert!(matches!(lnet.set_lazy(64, true), Err(LnetError::Portal(_))));
    let queue = shard.create_event_queue(8).unwrap();
    let other = shard.attach(
        &EntrySpec::new(PINNED[1], 1),
        &spec(&queue, 4, 1, MdOptions::PUT),
        Buffer::from(vec![7; 4]),
    );
    let other = other.unwrap_err();
    assert!(matches!(other.error, LnetError::Lend(LendError::Steering(_))), "{other}");
    assert_eq!(*other.buffer.unwrap(), [7; 4]);
    let short = shard.bind(&spec(&queue, 5, 1, MdOptions::NONE), Buffer::from(vec![8; 4])).unwrap_err();
    assert!(matches!(short.error, LnetError::Lend(LendError::ShortBuffer { .. })), "{short}");
    assert_eq!(*short.buffer.unwrap(), [8; 4]);

    let md = shard.bind(&spec(&queue, 4, 1, MdOptions::NONE), Buffer::zeroed(4)).unwrap();
    let portal = md.put(&to_self(64, 1), Ack::NotWanted, 0).start().unwrap_err();
    assert!(matches!(portal, LnetError::Request(SubmitError::Portal(64))) && !portal.is_busy(), "{portal}");
    drop(md);
    drop(queue);
    await_idle(&shard);
}

#[test]
fn what_goes_wrong_later_is_the_status_of_an_event() {
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(8).unwrap();
    let md = shard.bind(&spec(&queue, 4, 1, MdOptions::NONE), Buffer::zeroed(4)).unwrap();
    let stranger: Nid = "10.0.0.1@xdp".parse().unwrap();
    md.put(&Target::new(stranger, 4, 1), Ack::NotWanted, 0).start().unwrap();
    let queued = next(&mut queue);
    assert!(matches!(queued.event.status(), Status::NeverSent(_)));
    assert!(queued.into_buffer().is_some());
}

#[test]
fn a_cpu_that_is_not_there() {
    let idle = Idle::new(Duration::ZERO);
    let error = Lnet::start_on(&config(1), &Threads::new().cpus(vec![100_000]).idle(idle)).unwrap_err();
    assert!(matches!(error, LnetError::Thread { .. }), "{error}");
    assert!(error.to_string().contains("cpu 100000"), "{error}");
    let error = Lnet::start(&NodeConfig::loopback().shards(65)).unwrap_err();
    assert!(error.to_string().contains("65 shards"), "{error}");
}

/// Threads poll before they sleep, and run where the kernel puts them.
#[test]
fn the_default_threads() {
    assert!(Threads::new().cpus.is_empty());
    let lnet = Lnet::start(&config(1)).unwrap();
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(8).unwrap();
    post(&shard, &queue, PINNED[0], 1, 4);
    let spec = MdSpec::new(4, Threshold::Count(1), MdOptions::NONE, queue.handle());
    let md = shard.bind(&spec, Buffer::from(vec![3; 4])).unwrap();
    md.put(&to_self(PINNED[0], 1), Ack::NotWanted, 0).start().unwrap();
    assert_eq!(next(&mut queue).payload(), Some(&[3; 4][..]));
    assert_eq!(next(&mut queue).event.kind(), EventKind::Send);
    assert!(queue.next_blocking(Some(PATIENCE / 1000)).unwrap().is_none());
}

/// A call's time does not depend on how long another thread waits for events of the same shard.
#[test]
fn a_thread_that_waits_delays_no_call_of_another_one() {
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut waited_for = shard.create_event_queue(64).unwrap();
    let waiting = spec(&waited_for, 4, 1, MdOptions::PUT);
    let last = EntrySpec::new(PINNED[0], 1);
    shard.attach(&last, &waiting, Buffer::zeroed(4)).unwrap().detach();
    // Short waits one after the other make the thread the driver.
    for _ in 0..20 {
        assert!(waited_for.next_blocking(Some(Duration::from_micros(10))).unwrap().is_none());
    }
    let thread = std::thread::spawn(move || next(&mut waited_for).event.kind());
    let queue = shard.create_event_queue(1000).unwrap();
    let mut longest = Duration::ZERO;
    for number in 0..300 {
        let begun = std::time::Instant::now();
        let entry = EntrySpec::new(PINNED[0], 1000 + number);
        drop(shard.attach(&entry, &spec(&queue, 4, 1, MdOptions::PUT), Buffer::zeroed(4)).unwrap());
        shard.usage().unwrap();
        longest = longest.max(begun.elapsed());
    }
    assert!(longest < PATIENCE / 20, "{longest:?}");
    let md = shard.bind(&spec(&queue, 4, 1, MdOptions::NONE), Buffer::zeroed(4)).unwrap();
    md.put(&to_self(PINNED[0], 1), Ack::NotWanted, 0).queue().unwrap();
    assert_eq!(thread.join().unwrap(), EventKind::Put);
}
