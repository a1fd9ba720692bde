//! Requests that are queued, and such that are awaited.

use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lnet_core::lnd::Cause;
use lnet_user::{
    Ack, Buffer, EntrySpec, Event, EventKind, Lnet, LnetError, MdOptions, MdSpec, Policy, QueuedEvent,
    Status, SubmitError, Target, Threshold,
};

use lnet_user::api::OwnedRequest;

use crate::common::{LAZY, PATIENCE, PINNED, ROTOR, await_idle, config, next, post, spec, start, to_self};
use crate::events::block_on;

fn refused(queued: &QueuedEvent) -> Option<SubmitError> {
    let Event::Send { md, .. } = queued.event else { return None };
    assert_eq!((md.status, md.unlinked), (Status::NeverSent(Cause::Refused), false));
    assert!(queued.payload().is_none());
    queued.refusal().map(|error| match error {
        LnetError::Request(error) => *error,
        error => panic!("{error}"),
    })
}

#[test]
fn what_is_queued_comes_by_events_also_when_it_is_refused() {
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(8).unwrap();
    post(&shard, &queue, PINNED[0], 1, 4);
    let md = MdSpec { user_ptr: 9, ..spec(&queue, 4, 1, MdOptions::NONE) };
    let md = shard.bind(&md, Buffer::from(vec![3; 4])).unwrap();
    md.put(&to_self(64, 5), Ack::NotWanted, 6).queue().unwrap();
    let queued = next(&mut queue);
    assert_eq!(refused(&queued), Some(SubmitError::Portal(64)));
    assert_eq!((queued.event.md(), queued.event.user_ptr()), (md.handle(), 9));
    assert_eq!((queued.event.match_bits(), queued.event.hdr_data()), (Some(5), Some(6)));
    assert!(queued.into_buffer().is_none(), "nothing has ended");

    md.put(&to_self(PINNED[0], 1), Ack::NotWanted, 6).queue().unwrap();
    let events = [next(&mut queue), next(&mut queue)];
    let kinds = events.each_ref().map(|queued| (queued.event.kind(), queued.event.status()));
    assert_eq!(kinds, [(EventKind::Put, Status::Ok), (EventKind::Send, Status::Ok)]);
    md.get(&to_self(PINNED[0], 1)).queue().unwrap();
    let late = refused(&next(&mut queue)).unwrap();
    assert_eq!(late, SubmitError::MdExhausted(md.handle()));
    assert!(late.to_string().contains("used up"), "{late}");
}

/// More than the ring and the call queue have room for; those that are refused at once were not queued.
#[test]
fn no_refusal_is_lost() {
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(4).unwrap();
    let md = shard.bind(&spec(&queue, 4, 1, MdOptions::NONE), Buffer::zeroed(4)).unwrap();
    let (mut queued, mut told) = (0, 0);
    for _ in 0..1000 {
        match md.get(&to_self(64, 1)).queue() {
            Ok(()) => queued += 1,
            Err(error) => {
                assert!(error.is_busy(), "{error}");
                assert_eq!(queued - told, 256);
                assert_eq!(refused(&next(&mut queue)), Some(SubmitError::Portal(64)));
                told += 1;
            }
        }
    }
    assert!(queued >= 256);
    while told < queued {
        assert_eq!(refused(&next(&mut queue)), Some(SubmitError::Portal(64)));
        told += 1;
    }
    assert!(queue.try_next().unwrap().is_none());
    // A descriptor goes with its refusals untaken, and the queue too.
    md.get(&to_self(64, 1)).queue().unwrap();
    drop(md);
    drop(queue);
    await_idle(&shard);
}

#[test]
fn requests_are_awaited() {
    let lnet = start(1);
    let mut events = lnet.create_event_queue(64).unwrap();
    post(&lnet.shard(0).unwrap(), &events, PINNED[0], 1, 4);
    let bytes = spec(&events, 4, 1, MdOptions::GET);
    lnet.attach(&EntrySpec::new(PINNED[0], 2), &bytes, Buffer::from(vec![7; 4])).unwrap().detach();
    let source = lnet.bind(&spec(&events, 4, 2, MdOptions::NONE), Buffer::from(vec![3; 4])).unwrap();
    let sink = lnet.bind(&spec(&events, 4, 2, MdOptions::NONE), Buffer::zeroed(4)).unwrap();
    let (acked, got) = block_on(async {
        let refused = source.put(&to_self(64, 1), Ack::Wanted, 0).await.unwrap_err();
        assert!(matches!(refused, LnetError::Request(SubmitError::Portal(64))), "{refused}");
        let acked = source.put(&to_self(PINNED[0], 1), Ack::Wanted, 0).await.unwrap();
        let late = source.put(&to_self(PINNED[0], 1), Ack::NotWanted, 0).await.unwrap_err();
        assert!(late.to_string().contains("used up"), "{late}");
        (acked, sink.get(&to_self(PINNED[0], 2)).await.unwrap())
    });
    assert_eq!((acked.event.kind(), acked.event.manipulated_bytes()), (EventKind::Ack, 4));
    assert_eq!(*acked.into_buffer().unwrap(), [3; 4]);
    assert_eq!((got.event.kind(), got.payload()), (EventKind::Reply, Some(&[7; 4][..])));
    assert_eq!(*got.into_buffer().unwrap(), [7; 4]);
    // Those of the targets, and no others.
    let kinds = [next(&mut events), next(&mut events)].map(|queued| queued.event.kind());
    assert_eq!(kinds, [EventKind::Put, EventKind::Get]);
    assert!(events.try_next().unwrap().is_none());
}

#[test]
fn an_outcome_that_is_given_up_leaves_its_events_to_the_queue() {
    let lnet = start(1);
    let mut events = lnet.create_event_queue(64).unwrap();
    let source = lnet.bind(&spec(&events, 4, 2, MdOptions::NONE), Buffer::from(vec![3; 4])).unwrap();
    {
        let mut outcome = pin!(source.put(&to_self(LAZY, 1), Ack::Wanted, 0).into_future());
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(outcome.as_mut().poll(&mut context).is_pending(), "no entry takes the Put yet");
        let second = block_on(source.put(&to_self(LAZY, 1), Ack::Wanted, 0).into_future());
        assert!(matches!(second, Err(LnetError::Awaited)), "{second:?}");
        let started = source.put(&to_self(LAZY, 1), Ack::Wanted, 0).start();
        assert!(matches!(started, Err(LnetError::Awaited)), "{started:?}");
        source.put(&to_self(LAZY, 1), Ack::Wanted, 0).queue().unwrap();
        let queued = next(&mut events);
        assert!(matches!(queued.refusal(), Some(LnetError::Awaited)), "{queued:?}");
    }
    post(&lnet.shard(0).unwrap(), &events, LAZY, 1, 4);
    // The SEND came while the outcome was awaited.
    let mut kinds: Vec<_> = (0..3).map(|_| next(&mut events)).collect();
    let queued = kinds.pop().unwrap();
    assert_eq!((queued.event.kind(), queued.event.unlinked()), (EventKind::Ack, true));
    assert_eq!(*queued.into_buffer().unwrap(), [3; 4]);
    let mut kinds: Vec<_> = kinds.iter().map(|queued| queued.event.kind()).collect();
    kinds.sort_by_key(|kind| *kind != EventKind::Put);
    assert_eq!(kinds, [EventKind::Put, EventKind::Send]);
    // Without events there is nothing to await.
    let silent = MdSpec { event_queue: None, ..spec(&events, 4, 2, MdOptions::NONE) };
    let silent = lnet.bind(&silent, Buffer::zeroed(4)).unwrap();
    let outcome = block_on(silent.get(&to_self(PINNED[0], 2)).into_future());
    assert!(matches!(outcome, Err(LnetError::NoEventQueue)), "{outcome:?}");
    // Nor is there a place for a refusal.
    let queued = silent.get(&to_self(64, 2)).queue();
    assert!(matches!(queued, Err(LnetError::NoEventQueue)), "{queued:?}");
    let started = silent.get(&to_self(64, 2)).start();
    assert!(matches!(started, Err(LnetError::Request(SubmitError::Portal(64)))), "{started:?}");
}

/// The events of others fill the queue while its only consumer awaits an outcome.
#[test]
fn an_outcome_comes_past_events_that_have_no_room() {
    // As many as the ring of the queue has places.
    const PUTS: u32 = 1024;
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut events = shard.create_event_queue(PUTS + 10).unwrap();
    let other = shard.create_event_queue(PUTS + 10).unwrap();
    let sink = spec(&events, PUTS as usize, PUTS, MdOptions::PUT);
    shard.attach(&EntrySpec::new(PINNED[0], 1), &sink, Buffer::zeroed(PUTS as usize)).unwrap().detach();
    let source = shard.bind(&spec(&other, 1, PUTS, MdOptions::NONE), Buffer::zeroed(1)).unwrap();
    for number in 0..PUTS {
        // The shard may be driven by another thread, which does not always have a CPU.
        while let Err(error) = source.put(&to_self(PINNED[0], 1), Ack::NotWanted, number.into()).start() {
            assert!(error.is_busy(), "{error}");
            std::thread::yield_now();
        }
    }
    let awaited = shard.bind(&spec(&events, 4, 1, MdOptions::NONE), Buffer::zeroed(4)).unwrap();
    let outcome = block_on(awaited.put(&to_self(PINNED[1], 1), Ack::NotWanted, 0).into_future()).unwrap();
    assert_eq!((outcome.event.kind(), outcome.event.status()), (EventKind::Send, Status::Ok));
    for number in 0..PUTS {
        assert_eq!(next(&mut events).event.hdr_data(), Some(number.into()), "in their order");
    }
}

/// A thread that waits for one event after the other does what the shard's thread would do, and neither
/// sleeps.
#[test]
fn a_thread_that_waits_drives_the_shard() {
    const ROUNDS: u32 = 2000;
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut events = shard.create_event_queue(100).unwrap();
    let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
    let endless = |options| MdSpec::new(4, Threshold::Infinite, options, events.handle());
    let sink = MdSpec { event_queue: None, ..endless(options) };
    shard.attach(&EntrySpec::new(PINNED[0], 1), &sink, Buffer::zeroed(4)).unwrap().detach();
    let source = shard.bind(&endless(MdOptions::NONE), Buffer::zeroed(4)).unwrap();
    let sleeps = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse::<u32>().unwrap()
    };
    let before = sleeps();
    for number in 0..ROUNDS {
        source.put(&to_self(PINNED[0], 1), Ack::Wanted, number.into()).queue().unwrap();
        let kinds = [next(&mut events), next(&mut events)].map(|queued| queued.event.kind());
        assert!(kinds.contains(&EventKind::Send) && kinds.contains(&EventKind::Ack), "{kinds:?}");
    }
    let slept = sleeps() - before;
    assert!(slept < ROUNDS / 4, "{slept} sleeps in {ROUNDS} rounds");
    // The shard's thread has it back soon.
    drop(source);
    std::thread::sleep(Duration::from_millis(5));
    let begun = Instant::now();
    while shard.usage().unwrap().memory_descs > 1 {
        assert!(begun.elapsed() < PATIENCE);
    }
}

#[test]
fn entries_find_their_shard_and_events_the_queue_of_the_node() {
    let lnet = start(2);
    let mut events = lnet.create_event_queue(64).unwrap();
    let mut only = lnet.shard(1).unwrap().create_event_queue(8).unwrap();
    let md = spec(&events, 4, 1, MdOptions::PUT);
    for (portal, home) in [(PINNED[1], 1), (PINNED[0], 0), (ROTOR, 0)] {
        let entry = lnet.attach(&EntrySpec::new(portal, 1), &md, Buffer::zeroed(4)).unwrap();
        assert_eq!(usize::from(entry.shard().id().0), home, "portal {portal}");
        let source = lnet.bind(&spec(&events, 4, 1, MdOptions::NONE), Buffer::from(vec![3; 4])).unwrap();
        block_on(source.put(&to_self(portal, 1), Ack::NotWanted, 0).into_future()).unwrap();
        let put = block_on(events.next()).unwrap();
        assert_eq!((put.event.md(), put.payload()), (entry.handle(), Some(&[3; 4][..])));
        let back = Target::reply_to(&put.event, 7, 8).unwrap();
        assert_eq!((back.process.nid, back.portal, back.match_bits), (lnet_user::Nid::LO, 7, 8));
    }
    // An entry for any shard is on that of the queue.
    let rotor = lnet.attach(&EntrySpec::new(ROTOR, 2), &spec(&only, 4, 1, MdOptions::PUT), Buffer::zeroed(4));
    assert_eq!(rotor.unwrap().shard().id().0, 1);
    let unlinked = next(&mut only);
    assert_eq!(unlinked.event.kind(), EventKind::Unlink);
    assert!(Target::reply_to(&unlinked.event, 7, 8).is_none());
    let elsewhere = spec(&only, 4, 1, MdOptions::PUT);
    let refused = lnet.attach(&EntrySpec::new(PINNED[0], 1), &elsewhere, Buffer::zeroed(4)).unwrap_err();
    assert!(refused.to_string().contains("event queue"), "{refused}");
    let refused = lnet.attach(&EntrySpec::new(64, 1), &md, Buffer::zeroed(4)).unwrap_err();
    assert!(refused.to_string().contains("portal 64") && refused.buffer.is_some(), "{refused}");
    // As a stream.
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(matches!(events.poll_next_unpin(&mut context), Poll::Pending));
}

#[test]
fn an_entry_that_is_needed_on_each_shard_is_refused() {
    let mut config = config(2);
    config.policies.push((8, Policy::Initiator));
    let lnet = Lnet::start(&config).unwrap();
    let events = lnet.create_event_queue(8).unwrap();
    let md = spec(&events, 4, 1, MdOptions::PUT);
    let refused = lnet.attach(&EntrySpec::new(8, 1), &md, Buffer::from(vec![1; 4])).unwrap_err();
    assert!(matches!(refused.error, LnetError::EachShard(8)), "{refused}");
    assert_eq!(*refused.buffer.unwrap(), [1; 4]);
    let source = lnet_user::ProcessId::lustre(lnet_user::Nid::LO);
    let named = EntrySpec { source, ..EntrySpec::new(8, 1) };
    lnet.attach(&named, &md, Buffer::zeroed(4)).unwrap();
}

#[test]
fn entries_that_are_queued_hand_their_buffers_back_when_they_are_refused() {
    let lnet = start(1);
    let mut queue = lnet.create_event_queue(8).unwrap();
    let md = MdSpec { user_ptr: 9, ..spec(&queue, 4, 2, MdOptions::PUT) };
    lnet.attach_queued(&EntrySpec::new(PINNED[0], 1), &md, Buffer::zeroed(4)).unwrap();
    // Too many events for the queue, and a buffer that is too short.
    let wide = MdSpec { threshold: Threshold::Count(9), ..md };
    lnet.attach_queued(&EntrySpec::new(PINNED[0], 2), &wide, Buffer::from(vec![5; 4])).unwrap();
    lnet.attach_queued(&EntrySpec::new(PINNED[0], 3), &md, Buffer::from(vec![6; 3])).unwrap();
    for (bytes, text) in [(&[5; 4][..], "10 event slots wanted"), (&[6; 3], "3")] {
        let queued = next(&mut queue);
        let refused = Status::NeverSent(Cause::Refused);
        assert_eq!((queued.event.kind(), queued.event.status()), (EventKind::Unlink, refused));
        assert_eq!((queued.event.user_ptr(), queued.event.unlinked()), (9, true));
        let error = queued.refusal().unwrap().to_string();
        assert!(error.contains(text), "{error}");
        assert_eq!(*queued.into_buffer().unwrap(), *bytes);
    }
    let silent = MdSpec { event_queue: None, ..md };
    let refused = lnet.attach_queued(&EntrySpec::new(PINNED[0], 1), &silent, Buffer::from(vec![7; 4]));
    let refused = refused.unwrap_err();
    assert!(matches!(refused.error, LnetError::NoEventQueue), "{refused}");
    assert_eq!(*refused.buffer.unwrap(), [7; 4]);
    // Refused entries that were not taken are 256 at most.
    for _ in 0..256 {
        lnet.attach_queued(&EntrySpec::new(PINNED[0], 2), &wide, Buffer::zeroed(4)).unwrap();
    }
    let busy = lnet.attach_queued(&EntrySpec::new(PINNED[0], 2), &wide, Buffer::zeroed(4)).unwrap_err();
    assert!(busy.error.is_busy() && busy.buffer.is_some(), "{busy}");
    drop(next(&mut queue));
    lnet.attach_queued(&EntrySpec::new(PINNED[0], 2), &wide, Buffer::zeroed(4)).unwrap();
}

#[test]
fn entries_and_descriptors_are_awaited() {
    let lnet = start(2);
    let mut queue = lnet.create_event_queue(64).unwrap();
    let posted = spec(&queue, 4, 1, MdOptions::PUT);
    let bound = spec(&queue, 4, 1, MdOptions::NONE);
    let (entry, source) = block_on(async {
        let entry = lnet.attach_async(&EntrySpec::new(PINNED[1], 1), &posted, Buffer::zeroed(4)).await;
        (entry.unwrap(), lnet.bind_async(&bound, Buffer::from(vec![3; 4])).await.unwrap())
    });
    assert_eq!((entry.shard().id().0, source.shard().id().0), (1, 0));
    block_on(source.put(&to_self(PINNED[1], 1), Ack::NotWanted, 0).into_future()).unwrap();
    assert_eq!(next(&mut queue).payload(), Some(&[3; 4][..]));
    let short = block_on(lnet.bind_async(&bound, Buffer::from(vec![5; 3]))).unwrap_err();
    assert_eq!(*short.buffer.unwrap(), [5; 3]);
    let unknown =
        block_on(lnet.attach_async(&EntrySpec::new(64, 1), &posted, Buffer::zeroed(4))).unwrap_err();
    assert!(unknown.to_string().contains("portal 64") && unknown.buffer.is_some(), "{unknown}");
    // What is made for a future that is dropped goes with it.
    drop(lnet.attach_async(&EntrySpec::new(PINNED[1], 1), &posted, Buffer::zeroed(4)));
    drop(lnet.bind_async(&bound, Buffer::zeroed(4)));
    for _ in 0..2 {
        assert_eq!(next(&mut queue).event.kind(), EventKind::Unlink);
    }
    drop((entry, source));
    lnet.shards().for_each(|shard| await_idle(&shard));
}

#[test]
fn a_burst_is_started_by_one_call_and_each_refusal_stands_in_its_place() {
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(64).unwrap();
    let mut other = shard.create_event_queue(64).unwrap();
    shard
        .attach(&EntrySpec::new(PINNED[0], 1), &spec(&queue, 64, 8, MdOptions::PUT), Buffer::zeroed(64))
        .unwrap()
        .detach();
    let bytes = spec(&other, 4, 1, MdOptions::GET);
    shard.attach(&EntrySpec::new(PINNED[0], 2), &bytes, Buffer::from(vec![7; 4])).unwrap().detach();
    let md = |user_ptr, count| MdSpec { user_ptr, ..spec(&other, 4, count, MdOptions::NONE) };
    let put = |number: u8, length: usize, portal, ack| {
        let count = 1 + u32::from(number % 2);
        let buffer = Buffer::from(vec![number; length]);
        OwnedRequest::put(&md(number.into(), count), buffer, &to_self(portal, 1), ack, number.into())
    };
    let outgoing = vec![
        put(0, 4, PINNED[0], Ack::NotWanted),
        put(1, 4, PINNED[0], Ack::Wanted),
        put(2, 3, PINNED[0], Ack::NotWanted),
        put(3, 4, 64, Ack::Wanted),
        put(4, 4, PINNED[0], Ack::Wanted),
        OwnedRequest::get(&md(5, 2), Buffer::zeroed(4), &to_self(PINNED[0], 2)),
    ];
    let mut started: Vec<_> = shard.start_all(outgoing).into_iter().map(Some).collect();
    let mut refused = |index: usize| started[index].take().unwrap().unwrap_err();
    let short = refused(2);
    assert!(matches!(short.error, LnetError::Lend(_)) && short.buffer.unwrap().len() == 3);
    let portal = refused(3);
    assert!(matches!(portal.error, LnetError::Request(SubmitError::Portal(64))) && portal.buffer.is_none());
    let room = refused(4);
    let LnetError::Request(SubmitError::NoRoomForResponse { left: 1, wanted: 2, .. }) = room.error else {
        panic!("{room}")
    };
    let _under_way: Vec<_> = started.into_iter().flatten().map(Result::unwrap).collect();
    for number in [0, 1] {
        let put = next(&mut queue);
        assert_eq!((put.event.hdr_data(), put.payload()), (Some(number), Some(&[number as u8; 4][..])));
    }
    let mut ends = Vec::new();
    while ends.len() < 6 {
        let queued = next(&mut other);
        if queued.event.unlinked() {
            let (kind, user_ptr) = (queued.event.kind(), queued.event.user_ptr());
            let end = (user_ptr, kind == EventKind::Unlink, queued.into_buffer().unwrap()[0]);
            ends.push(end);
        }
    }
    ends.sort_unstable();
    // That of the entry for the GET is one of them.
    let expected = [(0, false, 0), (0, false, 7), (1, false, 1), (3, true, 3), (4, true, 4), (5, false, 7)];
    assert_eq!(ends, expected);
}

#[test]
fn a_message_is_sent_by_one_call_and_brings_its_outcome() {
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(64).unwrap();
    let mut other = shard.create_event_queue(64).unwrap();
    let room = spec(&queue, 64, 8, MdOptions::PUT);
    shard.attach(&EntrySpec::new(PINNED[0], 1), &room, Buffer::zeroed(64)).unwrap().detach();
    let bytes = spec(&queue, 4, 1, MdOptions::GET);
    shard.attach(&EntrySpec::new(PINNED[0], 2), &bytes, Buffer::from(vec![7; 4])).unwrap().detach();
    let template = spec(&other, 4, 1, MdOptions::NONE);
    let md = |count| MdSpec { threshold: Threshold::Count(count), ..template };
    let put = |count, portal, ack, number: u8| {
        let buffer = Buffer::from(vec![number; 4]);
        shard.send(OwnedRequest::put(&md(count), buffer, &to_self(portal, 1), ack, number.into()))
    };
    let sent = block_on(put(1, PINNED[0], Ack::NotWanted, 3)).unwrap();
    assert_eq!((sent.event.kind(), sent.event.unlinked()), (EventKind::Send, true));
    assert_eq!(sent.into_buffer().unwrap()[..], [3; 4]);
    let acked = block_on(put(2, PINNED[0], Ack::Wanted, 4)).unwrap();
    assert_eq!((acked.event.kind(), acked.event.status()), (EventKind::Ack, Status::Ok));
    let get = OwnedRequest::get(&md(2), Buffer::zeroed(4), &to_self(PINNED[0], 2));
    let got = block_on(shard.send(get)).unwrap();
    assert_eq!((got.event.kind(), got.into_buffer().unwrap()[..].to_vec()), (EventKind::Reply, vec![7; 4]));
    let refused = block_on(put(1, 64, Ack::NotWanted, 5)).unwrap_err();
    assert!(matches!(refused, LnetError::Request(SubmitError::Portal(64))), "{refused}");
    // The event is that of the descriptor that was made for it.
    assert_eq!(next(&mut other).event.kind(), EventKind::Unlink);
    let silent = MdSpec { event_queue: None, ..md(1) };
    let silent = OwnedRequest::put(&silent, Buffer::zeroed(4), &to_self(PINNED[0], 1), Ack::NotWanted, 0);
    assert!(matches!(block_on(shard.send(silent)), Err(LnetError::NoEventQueue)));
    let short = OwnedRequest::put(&md(1), Buffer::zeroed(3), &to_self(PINNED[0], 1), Ack::NotWanted, 0);
    assert!(matches!(block_on(shard.send(short)), Err(LnetError::Lend(_))));
    assert!(other.try_next().unwrap().is_none(), "outcomes go to their futures alone");
    drop(put(1, PINNED[0], Ack::NotWanted, 6));
    let numbers: Vec<_> = std::iter::repeat_with(|| next(&mut queue))
        .filter(|queued| queued.event.kind() == EventKind::Put)
        .map(|queued| queued.event.hdr_data())
        .take(3)
        .collect();
    assert_eq!(numbers, [Some(3), Some(4), Some(6)]);
}
