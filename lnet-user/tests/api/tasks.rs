//! Tasks that wait for a shard: their thread drives it where none of them is ready.

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::time::{Duration, Instant};

use lnet_user::{
    Ack, Buffer, Descriptor, EntrySpec, EventKind, EventQueue, Lnet, MdOptions, MdSpec, Status, Threshold,
};
use tokio::runtime::{Builder, Runtime};

use crate::common::{LAZY, PATIENCE, PINNED, post, spec, start, to_self};

const ROUNDS: u32 = 2000;

/// A queue, and a descriptor that puts to the node itself as often as one likes.
fn puts(lnet: &Lnet) -> (EventQueue, Descriptor) {
    let events = lnet.create_event_queue(100).unwrap();
    let endless = |options| MdSpec::new(4, Threshold::Infinite, options, events.handle());
    let md = lnet.bind(&endless(MdOptions::NONE), Buffer::zeroed(4)).unwrap();
    (events, md)
}

/// Takes puts, of which no event tells.
fn sink(lnet: &Lnet) {
    let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
    let silent = MdSpec { event_queue: None, ..spec(&lnet.create_event_queue(1).unwrap(), 4, 1, options) };
    let sink = MdSpec { threshold: Threshold::Infinite, ..silent };
    lnet.attach(&EntrySpec::new(PINNED[0], 1), &sink, Buffer::zeroed(4)).unwrap().detach();
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Times that the calling thread has slept.
fn sleeps() -> u32 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

/// Asserts that the thread sleeps once in twenty waits at most, of so many one after the other, where nothing
/// keeps it from its CPU: a busy machine does now and then, and its tasks leave the shard to the keeper for a
/// while then. So it is the row in the middle that counts.
#[track_caller]
fn assert_awake(runtime: &Runtime, waits: impl AsyncFn()) {
    let sleeps_of_row = || {
        let before = sleeps();
        runtime.block_on(waits());
        sleeps() - before
    };
    let mut rows: Vec<u32> = (0..11).map(|_| sleeps_of_row()).collect();
    rows.sort_unstable();
    assert!(rows[rows.len() / 2] <= ROUNDS / 20, "{rows:?} sleeps in {ROUNDS} Puts each");
}

#[test]
fn a_task_that_awaits_puts_does_not_sleep() {
    let lnet = start(1);
    sink(&lnet);
    let (_events, md) = puts(&lnet);
    assert_awake(&current_thread(), async || {
        for number in 0..ROUNDS {
            let outcome = md.put(&to_self(PINNED[0], 1), Ack::Wanted, number.into()).await.unwrap();
            assert_eq!(outcome.event.kind(), EventKind::Ack);
        }
    });
}

#[test]
fn a_task_that_awaits_events_does_not_sleep() {
    let lnet = start(1);
    sink(&lnet);
    let (events, md) = puts(&lnet);
    let events = tokio::sync::Mutex::new(events);
    assert_awake(&current_thread(), async || {
        let mut events = events.lock().await;
        for number in 0..ROUNDS {
            md.put(&to_self(PINNED[0], 1), Ack::Wanted, number.into()).queue().unwrap();
            let kinds = [events.next().await, events.next().await].map(|queued| queued.unwrap().event.kind());
            assert!(kinds.contains(&EventKind::Send) && kinds.contains(&EventKind::Ack), "{kinds:?}");
        }
    });
}

#[test]
fn puts_of_many_tasks_end_in_every_runtime() {
    const TASKS: u64 = 64;
    const PUTS: u64 = 200;
    let many_threads = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for runtime in [current_thread(), many_threads] {
        let lnet = start(1);
        sink(&lnet);
        // A task that only waits, and is told when the others are over.
        let mut last = lnet.create_event_queue(4).unwrap();
        post(&lnet.shard(0).unwrap(), &last, PINNED[0], 2, 4);
        let last = runtime.spawn(async move { last.next().await.unwrap().event.hdr_data() });
        let queue = lnet.create_event_queue(TASKS as u32 * 65).unwrap();
        let endless = MdSpec::new(4, Threshold::Infinite, MdOptions::NONE, queue.handle());
        let put = |task: u64| {
            let md = lnet.bind(&endless, Buffer::zeroed(4)).unwrap();
            async move {
                for number in 0..PUTS {
                    let (ack, answer) = match number % 2 {
                        0 => (Ack::Wanted, EventKind::Ack),
                        _ => (Ack::NotWanted, EventKind::Send),
                    };
                    let outcome = md.put(&to_self(PINNED[0], 1), ack, task).await.unwrap();
                    assert_eq!((outcome.event.kind(), outcome.event.status()), (answer, Status::Ok));
                }
            }
        };
        let tasks: Vec<_> = (0..TASKS).map(|task| runtime.spawn(put(task))).collect();
        runtime.block_on(async {
            let all = async {
                for task in tasks {
                    task.await.unwrap();
                }
                let (_events, md) = puts(&lnet);
                md.put(&to_self(PINNED[0], 2), Ack::Wanted, 77).await.unwrap();
                assert_eq!(last.await.unwrap(), Some(77));
            };
            tokio::time::timeout(PATIENCE, all).await.expect("all puts end");
        });
    }
}

/// A Put that no entry takes yet keeps its thread from nothing, and has the task polled a few times.
#[test]
fn a_task_that_waits_for_long_leaves_its_thread_to_others() {
    const TICK: Duration = Duration::from_millis(2);
    let lnet = start(1);
    sink(&lnet);
    let (_events, md) = puts(&lnet);
    let (_others, other) = puts(&lnet);
    current_thread().block_on(async {
        for number in 0..100 {
            md.put(&to_self(PINNED[0], 1), Ack::Wanted, number).await.unwrap();
        }
        let begun = Instant::now();
        let mut polls = 0;
        let mut late = pin!(md.put(&to_self(LAZY, 1), Ack::Wanted, 0).into_future());
        let late = std::future::poll_fn(|context| {
            polls += 1;
            late.as_mut().poll(context)
        });
        let entry = async {
            for _ in 0..20 {
                tokio::time::sleep(TICK).await;
            }
            let queue = lnet.create_event_queue(4).unwrap();
            post(&lnet.shard(0).unwrap(), &queue, LAZY, 1, 4);
            // Others of the thread still drive.
            for number in 0..100 {
                other.put(&to_self(PINNED[0], 1), Ack::Wanted, number).await.unwrap();
            }
            queue
        };
        let both = async { tokio::join!(late, entry) };
        let (outcome, _queue) = tokio::time::timeout(PATIENCE, both).await.expect("the Put ends");
        assert_eq!(outcome.unwrap().event.kind(), EventKind::Ack);
        assert!(begun.elapsed() >= TICK * 20);
        // Each of a task of its own join is polled with the other one.
        assert!(polls < 2000, "{polls} polls of a Put that was waited for");
    });
}
