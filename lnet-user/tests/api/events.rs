//! Events: polled, waited for, awaited; with payload that is read for as long as one likes.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use lnet_user::{Ack, Buffer, EntrySpec, EventKind, EventQueue, MdOptions, MdSpec, QueuedEvent, Threshold};

use crate::common::{LAZY, PATIENCE, PINNED, await_idle, next, post, spec, start, to_self};

/// Ping-pong of events: each PUT is started when the last one's event came, by a thread that sleeps until
/// then, on a shard that does.
fn ping_pong(rounds: u32, mut wait: impl FnMut(&mut EventQueue) -> QueuedEvent) {
    let lnet = start(2);
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(16).unwrap();
    let other = lnet.shard(1).unwrap();
    let sink_queue = other.create_event_queue(rounds + 1).unwrap();
    let md = spec(&sink_queue, 16, rounds, MdOptions::PUT | MdOptions::MANAGE_REMOTE);
    let sink = other.attach(&EntrySpec::new(PINNED[1], 1), &md, Buffer::zeroed(16)).unwrap();
    for round in 0..rounds {
        let md = shard.bind(&spec(&queue, 16, 2, MdOptions::NONE), Buffer::from(vec![1; 16])).unwrap();
        md.put(&to_self(PINNED[1], 1), Ack::Wanted, round.into()).start().unwrap();
        md.detach();
        while !wait(&mut queue).event.unlinked() {}
    }
    drop(sink);
    drop(sink_queue);
    await_idle(&shard);
    await_idle(&other);
}

#[test]
fn polled() {
    ping_pong(300, |queue| {
        let begun = Instant::now();
        loop {
            if let Some(queued) = queue.try_next().unwrap() {
                return queued;
            }
            assert!(begun.elapsed() < PATIENCE);
            std::hint::spin_loop();
        }
    });
}

#[test]
fn waited_for() {
    ping_pong(2000, next);
}

struct Flag(std::thread::Thread, AtomicU32);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::Release);
        self.0.unpark();
    }
}

/// The smallest of runtimes.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let flag = Arc::new(Flag(std::thread::current(), AtomicU32::new(0)));
    let waker = Waker::from(Arc::clone(&flag));
    let mut future = pin!(future);
    loop {
        let woken = flag.1.load(Ordering::Acquire);
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        let begun = Instant::now();
        while flag.1.load(Ordering::Acquire) == woken {
            std::thread::park_timeout(PATIENCE);
            assert!(begun.elapsed() < PATIENCE, "nobody woke the task");
        }
    }
}

#[test]
fn awaited() {
    ping_pong(2000, |queue| block_on(queue.next()).unwrap());
}

#[test]
fn a_timeout_is_kept() {
    let lnet = start(1);
    let mut queue = lnet.shard(0).unwrap().create_event_queue(4).unwrap();
    let begun = Instant::now();
    assert!(queue.next_blocking(Some(Duration::from_millis(30))).unwrap().is_none());
    assert!(begun.elapsed() >= Duration::from_millis(30));
    assert!(queue.next_blocking(Some(Duration::ZERO)).unwrap().is_none());
}

/// A thread that drives the shard while it waits, in vain, has traffic of others to carry.
#[test]
fn a_timeout_is_kept_beside_traffic_of_others() {
    const WAIT: Duration = Duration::from_millis(10);
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut silent = shard.create_event_queue(4).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut queue = shard.create_event_queue(200).unwrap();
            let endless = |options| MdSpec::new(4, Threshold::Infinite, options, queue.handle());
            let sink = MdSpec { event_queue: None, ..endless(MdOptions::PUT | MdOptions::MANAGE_REMOTE) };
            shard.attach(&EntrySpec::new(PINNED[0], 1), &sink, Buffer::zeroed(4)).unwrap().detach();
            let source = shard.bind(&endless(MdOptions::NONE), Buffer::zeroed(4)).unwrap();
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                if let Err(error) = source.put(&to_self(PINNED[0], 1), Ack::NotWanted, 0).queue() {
                    assert!(error.is_busy(), "{error}");
                }
                while queue.try_next().unwrap().is_some() {}
            }
        });
        for _ in 0..20 {
            let begun = Instant::now();
            assert!(silent.next_blocking(Some(WAIT)).unwrap().is_none());
            assert!(begun.elapsed() < WAIT * 50, "{:?}", begun.elapsed());
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// The last event, with the buffer, waits for the events of those before it.
#[test]
fn a_buffer_comes_home_when_nobody_reads_it() {
    let lnet = start(2);
    let shard = lnet.shard(1).unwrap();
    let mut queue = shard.create_event_queue(16).unwrap();
    let md = spec(&queue, 300, 3, MdOptions::PUT);
    shard.attach(&EntrySpec::new(PINNED[1], 1), &md, Buffer::zeroed(300)).unwrap().detach();
    let source = lnet.shard(0).unwrap();
    let own = source.create_event_queue(16).unwrap();
    let mut queued = Vec::new();
    for number in 0..3_u8 {
        let md = source.bind(&spec(&own, 100, 1, MdOptions::NONE), Buffer::from(vec![number; 100])).unwrap();
        md.put(&to_self(PINNED[1], 1), Ack::NotWanted, 0).start().unwrap();
        md.detach();
        if number < 2 {
            queued.push(next(&mut queue));
        }
    }
    assert!(queue.next_blocking(Some(Duration::from_millis(20))).unwrap().is_none(), "it is being read");
    let reader = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        for (number, queued) in queued.iter().enumerate() {
            assert_eq!(queued.payload(), Some(&[number as u8; 100][..]));
        }
    });
    let last = next(&mut queue);
    reader.join().unwrap();
    assert_eq!((last.event.kind(), last.event.unlinked()), (EventKind::Put, true));
    assert_eq!(last.payload(), Some(&[2; 100][..]));
    assert_eq!(last.into_buffer().unwrap()[..200], [[0; 100], [1; 100]].concat());
}

/// What may be written again comes without payload, until the buffer does.
#[test]
fn nothing_is_read_while_it_may_be_written() {
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(32).unwrap();
    let md = spec(&queue, 8, 3, MdOptions::GET | MdOptions::MANAGE_REMOTE);
    shard.attach(&EntrySpec::new(PINNED[0], 1), &md, Buffer::from(vec![9; 8])).unwrap().detach();
    let sink = shard.bind(&spec(&queue, 8, 6, MdOptions::NONE), Buffer::zeroed(8)).unwrap();
    let mut kept = Vec::new();
    let mut replies = 0;
    for _ in 0..3 {
        sink.get(&to_self(PINNED[0], 1)).start().unwrap();
        let target = kept.len() + 3;
        while kept.len() < target {
            let queued = next(&mut queue);
            if queued.event.kind() == EventKind::Reply {
                replies += 1;
                let payload = (replies == 3).then_some(&[9; 8][..]);
                assert_eq!(queued.payload(), payload, "the last event has the buffer");
            }
            kept.push(queued);
        }
    }
    assert_eq!(replies, 3);
    await_idle(&shard);
}

/// Events that are not taken stay in their slots, and nothing is lost, however small the ring.
#[test]
fn more_events_than_the_ring_holds() {
    const COUNT: u32 = 3000;
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(COUNT + 10).unwrap();
    let other = shard.create_event_queue(COUNT + 10).unwrap();
    let sink = spec(&queue, COUNT as usize, COUNT, MdOptions::PUT);
    shard.attach(&EntrySpec::new(PINNED[0], 1), &sink, Buffer::zeroed(COUNT as usize)).unwrap().detach();
    let source = shard.bind(&spec(&other, 1, COUNT, MdOptions::NONE), Buffer::from(vec![5; 1])).unwrap();
    for number in 0..COUNT {
        while let Err(error) = source.put(&to_self(PINNED[0], 1), Ack::NotWanted, number.into()).start() {
            assert!(error.is_busy(), "{error}");
        }
    }
    for number in 0..COUNT {
        let queued = next(&mut queue);
        assert_eq!((queued.event.hdr_data(), queued.payload()), (Some(number.into()), Some(&[5][..])));
        if let Some(buffer) = queued.into_buffer() {
            assert_eq!((number, &*buffer), (COUNT - 1, &[5; COUNT as usize][..]));
        }
    }
}

#[test]
fn a_put_waits_for_its_entry() {
    let lnet = start(2);
    let [first, second] = [0, 1].map(|shard| lnet.shard(shard).unwrap());
    let mut queue = first.create_event_queue(8).unwrap();
    let md = first.bind(&spec(&queue, 4, 2, MdOptions::NONE), Buffer::from(vec![4; 4])).unwrap();
    md.put(&to_self(LAZY, 1), Ack::Wanted, 0).start().unwrap();
    assert!(queue.next_blocking(Some(Duration::from_millis(10))).unwrap().is_none());
    let mut posted = second.create_event_queue(8).unwrap();
    post(&second, &posted, LAZY, 1, 4);
    assert_eq!(next(&mut posted).payload(), Some(&[4; 4][..]));
    let kinds = [(); 2].map(|()| next(&mut queue).event.kind());
    assert_eq!(kinds, [EventKind::Send, EventKind::Ack]);
}
