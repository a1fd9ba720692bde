//! What cannot be seen from outside: a shard that panics, and what a turn allocates.

use std::cell::RefCell;
use std::future::IntoFuture;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::PutRequest;
use lnet_wire::ProcessId;

use super::calls::Command;
use super::queue::QueueEnd;
use super::request::{Answer, PutOrGet, RefusalSlot, Refusals};
use super::runner::block_on;
use super::*;

const PORTAL: u32 = 4;

fn put(md: lnet_core::handle::MdHandle) -> PutRequest {
    let target = ProcessId::lustre(Nid::LO);
    let (match_bits, offset, hdr_data) = (1, 0, 0);
    PutRequest {
        md,
        part: None,
        ack: true,
        self_nid: None,
        target,
        portal: PORTAL,
        match_bits,
        offset,
        hdr_data,
    }
}

#[test]
fn a_shard_that_ends_tells_everybody() {
    let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(16).unwrap();
    let spec = MdSpec::new(4, Threshold::Count(2), MdOptions::NONE, queue.handle());
    let md = shard.bind(&spec, Buffer::zeroed(4)).unwrap();
    md.put(&Target::new(Nid::LO, PORTAL, 1), Ack::NotWanted, 0).start().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let waiting = std::thread::spawn(move || {
        let mut seen = 0;
        loop {
            match queue.next_blocking(Some(Duration::from_secs(20))) {
                Ok(queued) => seen += u32::from(queued.is_some()),
                Err(error) => return (seen, error),
            }
        }
    });
    let gone = |result: Result<(), LnetError>| {
        let said = result.unwrap_err().to_string();
        assert!(said.contains("shard 0 has panicked: on purpose"), "{said}");
    };
    gone(shard.end().caller.run(|_, _| panic!("on purpose")));
    let (seen, error) = waiting.join().unwrap();
    assert_eq!(seen, 1, "the SEND that came before");
    gone(Err(error));
    gone(md.put(&Target::new(Nid::LO, PORTAL, 1), Ack::NotWanted, 0).start());
    gone(shard.counters().map(drop));
    let refused = shard.bind(&spec, Buffer::zeroed(4)).unwrap_err();
    assert!(refused.buffer.is_none());
    gone(Err(refused.error));
}

/// All who wait for another shard of the node, or for the node, are told, and why.
#[test]
fn a_shard_that_ends_ends_the_node() {
    for by_a_guest in [false, true] {
        let lnet = Lnet::start(&NodeConfig::loopback().shards(2)).unwrap();
        let [dies, lives] = [0, 1].map(|shard| lnet.shard(shard).unwrap());
        let (tell, told) = mpsc::channel();
        let mut blocked = lives.create_event_queue(16).unwrap();
        let mut awaited = lives.create_event_queue(16).unwrap();
        let mut of_both = lnet.create_event_queue(16).unwrap();
        let spec = MdSpec::new(4, Threshold::Count(2), MdOptions::NONE, awaited.handle());
        let unanswered = lives.bind(&spec, Buffer::zeroed(4)).unwrap();
        let say = |error: LnetError, tell: &Sender<String>| tell.send(error.to_string()).unwrap();
        std::thread::scope(|scope| {
            let (to_blocked, to_both, to_ended) = (tell.clone(), tell.clone(), tell.clone());
            scope.spawn(move || {
                let error = blocked.next_blocking(Some(Duration::from_secs(20))).unwrap_err();
                say(error, &to_blocked);
            });
            scope.spawn(move || say(of_both.next_blocking(None).unwrap_err(), &to_both));
            scope.spawn(|| {
                // No entry takes it, which its initiator is not told.
                let put = unanswered.put(&Target::new(Nid::LO, PORTAL, 1), Ack::Wanted, 0).into_future();
                say(block_on(put).unwrap_err(), &tell);
                let error = loop {
                    if let Err(error) = block_on(awaited.next()) {
                        break error;
                    }
                };
                say(error, &tell);
            });
            let lnet = &lnet;
            scope.spawn(move || say(block_on(lnet.ended()), &to_ended));
            std::thread::sleep(Duration::from_millis(50));
            if by_a_guest {
                dies.end().thread.call(|_| panic!("on purpose")).map(|(): ()| ()).unwrap_err();
            } else {
                dies.end().caller.run(|_, _| panic!("on purpose")).unwrap_err();
            }
            for _ in 0..5 {
                let said = told.recv_timeout(Duration::from_secs(20)).expect("everyone is told");
                assert!(said.contains("shard 0 has panicked: on purpose"), "{said}");
            }
        });
        let said = lives.usage().unwrap_err().to_string();
        assert!(said.contains("on purpose"), "{said}");
    }
}

/// The panic comes on the thread that drives the shard while it waits.
#[test]
fn a_shard_that_ends_leaves_the_thread_that_drives_it() {
    let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(2000).unwrap();
    let spec = MdSpec::new(4, Threshold::Infinite, MdOptions::NONE, queue.handle());
    let md = shard.bind(&spec, Buffer::zeroed(4)).unwrap();
    let caller = shard.end().caller.clone();
    let (tell, told) = std::sync::mpsc::channel();
    let waiting = std::thread::spawn(move || {
        for number in 0.. {
            if number == 10 {
                tell.send(()).unwrap();
            }
            // No entry takes it: its SEND is all that comes of it.
            let put = md.put(&Target::new(Nid::LO, PORTAL, 1), Ack::NotWanted, number).queue();
            let next = put.and_then(|()| queue.next_blocking(Some(Duration::from_secs(20))));
            if let Err(error) = next {
                return (number, error);
            }
        }
        unreachable!("the shard ends")
    });
    // The thread drives the shard by then.
    told.recv_timeout(Duration::from_secs(20)).unwrap();
    caller.run(|_, _| panic!("on purpose")).unwrap_err();
    let (rounds, error) = waiting.join().expect("a thread that waits has no part in it");
    assert!(rounds >= 10 && matches!(error, LnetError::Ended(_)), "{rounds}: {error}");
    assert!(matches!(shard.counters(), Err(LnetError::Ended(_))));
}

#[test]
fn distances_are_those_of_the_nis() {
    let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
    let to_itself = lnet.distance(&Nid::LO).map(|to| (to.hops, to.order, to.source));
    assert_eq!(to_itself, Some((0, 0, Nid::LO)));
    assert_eq!(lnet.distance(&"10.0.0.1@xdp".parse().unwrap()), None, "no NI is on that net");
}

/// A shard as [`ShardEnd::spawn`] makes it, for the test to drive.
fn driven(config: &NodeConfig) -> (NodeDriver, Worker, Caller, Service) {
    let (node, mut workers) = NodeDriver::start(config).unwrap();
    let worker = workers.remove(0);
    let signals = Signals::new(worker.waker(), worker.shard().event_queues_max());
    let (caller, calls) = channel(worker.shard_id(), &signals, &Arc::default());
    (node, worker, caller, Service::new(calls, signals, std::sync::Arc::default()))
}

/// More calls wait than one turn answers, and none of them wakes the shard again.
#[test]
fn calls_that_a_turn_leaves_are_answered_by_the_next_ones() {
    const CALLS: usize = 200;
    let (_node, mut worker, caller, mut service) = driven(&NodeConfig::loopback());
    let answers: Vec<_> = (0..CALLS).map(|number| caller.begin(move |_, _| number).unwrap()).collect();
    for _ in 0..CALLS {
        service.turn(&mut worker);
    }
    let answered = answers.into_iter().filter_map(|mut answer| answer.get().try_recv().ok());
    assert_eq!(answered.count(), CALLS);
    assert!(!service.has_work());
}

#[test]
fn turns_allocate_nothing() {
    const PUTS: u32 = 4;
    let (_node, mut worker, caller, mut service) = driven(&NodeConfig::loopback());
    let (end, mut ring) = QueueEnd::new(64, Arc::default());
    let queue = service.queues().create(&mut worker, 3000, end, None).unwrap();
    let sink = MdSpec::new(1 << 16, Threshold::Count(1000), MdOptions::PUT, queue);
    let entry = EntrySpec::new(PORTAL, 1);
    service.queues().attach(&mut worker, &entry, &sink, Buffer::zeroed(1 << 16)).unwrap();
    let source = MdSpec::new(16, Threshold::Infinite, MdOptions::NONE, queue);
    let md = service.queues().bind(&mut worker, &source, Buffer::zeroed(16)).unwrap();
    let refusals = Refusals::new(md, &source);
    let mut count = 0;
    let mut round = || {
        for _ in 0..PUTS {
            let answer = Answer::Events(RefusalSlot::reserve(&refusals).unwrap());
            caller.enqueue(Command::Request(PutOrGet::Put(put(md)), answer), || {}).unwrap();
        }
        while service.has_work() || worker.progress() {
            service.turn(&mut worker);
        }
        service.turn(&mut worker);
        while let Ok(queued) = ring.pop() {
            count += u32::from(
                queued.event.kind() != lnet_core::event::EventKind::Put || queued.payload().is_some(),
            );
        }
    };
    (0..10).for_each(|_| round());
    let allocations = allocation_counter::measure(|| (0..20).for_each(|_| round()));
    assert_eq!(count, 30 * PUTS * 3, "PUT, SEND, ACK");
    assert_eq!(allocations.count_total, 0, "{allocations:?}");
}

/// A list of entries makes the caller wait once for each 64 of them.
#[test]
fn many_entries_are_posted_by_few_calls() {
    const COUNT: usize = 1000;
    let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
    let queue = lnet.create_event_queue(2 * COUNT as u32).unwrap();
    let md = MdSpec::new(1, Threshold::Count(1), MdOptions::PUT, queue.handle());
    let entries = |first: u64| {
        let entry = |number| (EntrySpec::new(PORTAL, first + number), md, Buffer::zeroed(1));
        (0..COUNT as u64).map(entry).collect::<Vec<_>>()
    };
    let calls = || lnet.inner.shards[0].run_count.load(std::sync::atomic::Ordering::Relaxed);
    let before = calls();
    let made = lnet.attach_all(entries(0)).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!((made.len(), calls() - before), (COUNT, COUNT.div_ceil(64)));
}

/// What a message costs does not depend on the queues that it does not concern.
#[test]
fn a_turn_looks_at_the_queues_that_have_something() {
    const QUEUES: u64 = 1000;
    let (_node, mut worker, caller, mut service) = driven(&NodeConfig::loopback());
    let mut create = |service: &mut Service, number| {
        let (end, ring) = QueueEnd::new(2, Arc::default());
        let queue = service.queues().create(&mut worker, 4, end, None).unwrap();
        let sink = MdSpec::new(16, Threshold::Count(1), MdOptions::PUT, queue);
        let entry = EntrySpec::new(PORTAL, number);
        service.queues().attach(&mut worker, &entry, &sink, Buffer::zeroed(16)).unwrap();
        (queue, ring)
    };
    let mut queues: Vec<_> = (0..QUEUES).map(|number| create(&mut service, number)).collect();
    let settle = |service: &mut Service, worker: &mut Worker| {
        let before = service.queues().look_count;
        while worker.progress() || service.has_work() || worker.waiting_events() != 0 {
            service.turn(worker);
        }
        service.turn(worker);
        service.queues().look_count - before
    };
    settle(&mut service, &mut worker);
    let (queue, ring) = &mut queues[500];
    let source = MdSpec::new(16, Threshold::Count(1), MdOptions::NONE, *queue);
    let md = service.queues().bind(&mut worker, &source, Buffer::zeroed(16)).unwrap();
    let refusals = Refusals::new(md, &source);
    let answer = Answer::Events(RefusalSlot::reserve(&refusals).unwrap());
    let put = PutRequest { match_bits: 500, ack: false, ..put(md) };
    caller.enqueue(Command::Request(PutOrGet::Put(put), answer), || {}).unwrap();
    let looks = settle(&mut service, &mut worker);
    assert!((1..=4).contains(&looks), "{looks} looks");
    assert_eq!([ring.pop().is_ok(), ring.pop().is_ok()], [true; 2], "SEND and PUT");

    // A queue that is dropped is looked at for as long as it goes.
    let (queue, ring) = queues.remove(7);
    drop(ring);
    caller.signals().mark(queue.0.slot());
    let looks = settle(&mut service, &mut worker);
    assert!((1..=4).contains(&looks), "{looks} looks");
    assert_eq!(worker.free_event_queue(queue), Err(lnet_core::event::EqError::Unknown), "it has gone");
    assert!(!service.has_work());
}

/// A node without interfaces has nothing to capture; the file is complete all the same.
#[test]
fn a_capture_of_nothing() {
    use crate::reading::Contents;
    use lnet_io::capture::{CaptureError, CaptureSpec};
    let path = std::env::temp_dir().join(format!("lnet-api-{}.pcapng", std::process::id()));
    let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
    lnet.start_capture(&CaptureSpec::new(path.to_str().unwrap(), 4096)).unwrap();
    assert!(lnet.captures()[0].is_running);
    let state = lnet.stop_capture(&path).unwrap();
    assert_eq!((state.is_running, state.frame_count, state.limit_bytes), (false, 0, 4096));
    assert!(matches!(
        lnet.stop_capture(&path),
        Err(LnetError::Capture(CaptureError::NoCapture(unknown))) if unknown == path
    ));
    assert!(Contents::read_complete(&std::fs::read(&path).unwrap()).interfaces.is_empty());
    std::fs::remove_file(&path).unwrap();

    // A shard that has ended.
    let shard = lnet.shard(0).unwrap();
    shard.end().caller.run(|_, _| panic!("on purpose")).unwrap_err();
    let error = lnet.start_capture(&CaptureSpec::new(path.to_str().unwrap(), 4096)).unwrap_err();
    assert!(matches!(error, LnetError::Ended(_)), "{error}");
    assert!(!path.exists() && lnet.captures().is_empty());
}

/// The node is busy for as long as an NI takes to be opened or closed, which is what its lock says.
#[test]
fn calls_wait_for_no_ni_that_is_being_opened() {
    use lnet_io::capture::CaptureSpec;
    let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
    let path = std::env::temp_dir().join(format!("lnet-api-busy-{}.pcapng", std::process::id()));
    let (done, is_done) = std::sync::mpsc::channel();
    let other = lnet.clone();
    let opening = lnet.inner.node();
    let calls = std::thread::spawn(move || {
        other.open().unwrap();
        assert!(other.register(4096).is_none(), "no NI is over rings");
        assert!(other.xdp_frames().unwrap().slots.is_empty() && other.nis().is_empty());
        other.start_capture(&CaptureSpec::new(path.to_str().unwrap(), 4096)).unwrap();
        assert!(other.stop_capture(&path).is_ok());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(other.limits().peers, NodeConfig::loopback().limits.peers);
        done.send(()).unwrap();
    });
    let outcome = is_done.recv_timeout(Duration::from_secs(10));
    drop(opening);
    calls.join().unwrap();
    outcome.expect("calls that are done before the NI is");
}

/// A lone task is woken by no other thread: its own drives the shard while it waits. So it is beside one that
/// waits for what does not come.
#[test]
fn a_lone_awaited_put_is_driven_by_the_thread_that_awaits_it() {
    const MOMENTS: usize = 200;
    let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
    let shard = lnet.shard(0).unwrap();
    let mut quiet = shard.create_event_queue(16).unwrap();
    let queue = shard.create_event_queue(200).unwrap();
    let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
    let endless = |options| MdSpec::new(4, Threshold::Infinite, options, queue.handle());
    let sink = MdSpec { event_queue: None, ..endless(options) };
    shard.attach(&EntrySpec::new(PORTAL, 1), &sink, Buffer::zeroed(4)).unwrap().detach();
    let md = shard.bind(&endless(MdOptions::NONE), Buffer::zeroed(4)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let moments = || shard.end().thread.shared().moments();
    let begun = std::time::Instant::now();
    let put_until = async |count: usize| {
        while moments() < count {
            assert!(begun.elapsed() < Duration::from_secs(20), "{} moments", moments());
            md.put(&Target::new(Nid::LO, PORTAL, 1), Ack::Wanted, 0).await.unwrap();
        }
    };
    runtime.block_on(put_until(MOMENTS));
    let waits = runtime.spawn(async move { quiet.next().await.map(drop) });
    runtime.block_on(put_until(2 * MOMENTS));
    assert!(!waits.is_finished());
}

/// A task that was woken is polled before other tasks of its thread, which have to wait, drive the shard
/// again.
#[test]
fn a_task_that_was_woken_does_not_wait_for_those_that_drive() {
    const TASKS: u64 = 32;
    const DRIVEN: usize = 500;
    let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
    let shard = lnet.shard(0).unwrap();
    let queues: Vec<_> = (0..TASKS).map(|_| shard.create_event_queue(256).unwrap()).collect();
    for (queue, match_bits) in queues.iter().zip(0..) {
        let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
        let spec = MdSpec::new(4, Threshold::Infinite, options, queue.handle());
        shard.attach(&EntrySpec::new(PORTAL, match_bits), &spec, Buffer::zeroed(4)).unwrap().detach();
    }
    let source = MdSpec::new(4, Threshold::Infinite, MdOptions::NONE, queues[0].handle());
    let source = shard.bind(&MdSpec { event_queue: None, ..source }, Buffer::zeroed(4)).unwrap();
    let moments = || shard.end().thread.shared().moments();
    let (begun, ends) = (std::time::Instant::now(), AtomicBool::new(false));
    let mut waited = std::thread::scope(|scope| {
        // One Put after the other, each for the next task: all the others wait.
        scope.spawn(|| {
            for match_bits in (0..TASKS).cycle().take_while(|_| !ends.load(Ordering::Relaxed)) {
                let last = std::time::Instant::now();
                while last.elapsed() < Duration::from_micros(20) {
                    std::hint::spin_loop();
                }
                let target = Target::new(Nid::LO, PORTAL, match_bits);
                source.put(&target, Ack::NotWanted, moments() as u64).start().unwrap();
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (tasks, waited) = (tokio::task::LocalSet::new(), Rc::new(RefCell::new(Vec::new())));
        for mut queue in queues {
            let (waited, shared) = (Rc::clone(&waited), Arc::clone(shard.end().thread.shared()));
            tasks.spawn_local(async move {
                while waited.borrow().len() < DRIVEN && begun.elapsed() < Duration::from_secs(20) {
                    let put = queue.next().await.unwrap().event.hdr_data().unwrap();
                    // Where tasks have left the shard to its keeper, there is none.
                    waited
                        .borrow_mut()
                        .extend(Some(shared.moments() - put as usize).filter(|count| *count > 0));
                }
            });
        }
        runtime.block_on(tasks);
        ends.store(true, Ordering::Relaxed);
        waited.take()
    });
    assert!(waited.len() >= DRIVEN, "tasks drove for {} Puts in {:?}", waited.len(), begun.elapsed());
    waited.sort_unstable();
    let median = waited[waited.len() / 2];
    assert!(median <= TASKS as usize / 4, "{median} moments between a Put and the task that it is for");
}

/// Runs calls until one finds that the thread that drives sleeps, which is none of the caller's: what they
/// return.
fn run_at_rest<R>(shard: &ShardHandle, call: impl Fn() -> R) -> Vec<R> {
    let begun = std::time::Instant::now();
    let mut results = Vec::new();
    loop {
        let call = |(), _: &mut Worker, _: &mut Service| call();
        if let Ok(result) = shard.end().thread.try_call_at_rest((), Service::is_free, call) {
            results.extend(result.ok());
            return results;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "the driver does not sleep");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A driver that sleeps is not waited for, and is woken for what it has to do then.
#[test]
fn calls_that_find_the_driver_asleep_run_where_they_are_made() {
    let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(64).unwrap();
    let here = std::thread::current().id();
    assert_eq!(run_at_rest(&shard, || std::thread::current().id()), [here]);
    for round in 0..200 {
        let taken = MdSpec::new(4, Threshold::Count(1), MdOptions::PUT, queue.handle());
        shard.attach(&EntrySpec::new(PORTAL, 1), &taken, Buffer::zeroed(4)).unwrap().detach();
        let source = MdSpec::new(4, Threshold::Count(1), MdOptions::NONE, queue.handle());
        let source = OwnedRequest::put(
            &source,
            Buffer::zeroed(4),
            &Target::new(Nid::LO, PORTAL, 1),
            Ack::NotWanted,
            round,
        );
        shard.start(source).unwrap().detach();
        for _ in 0..2 {
            // Nothing but the message wakes the driver.
            let begun = std::time::Instant::now();
            let mut queued = queue.try_next().unwrap();
            while queued.is_none() {
                assert!(begun.elapsed() < Duration::from_secs(20), "no event in round {round}");
                std::thread::yield_now();
                queued = queue.try_next().unwrap();
            }
        }
        if round % 20 == 0 {
            run_at_rest(&shard, || ());
        }
    }
}

/// The end of a descriptor whose driver sleeps is told as well.
#[test]
fn a_driver_that_sleeps_tells_of_what_calls_have_ended() {
    let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(16).unwrap();
    let spec = MdSpec::new(4, Threshold::Count(1), MdOptions::NONE, queue.handle());
    for _ in 0..20 {
        let md = shard.bind(&spec, Buffer::zeroed(4)).unwrap();
        run_at_rest(&shard, || ());
        shard
            .end()
            .run_soon({
                let handle = md.handle();
                move |worker, _| {
                    let _ = worker.unlink(handle);
                }
            })
            .unwrap();
        md.detach();
        let ended = queue.next_blocking(Some(Duration::from_secs(20))).unwrap();
        assert!(ended.is_some_and(|ended| ended.event.unlinked()));
    }
}

#[test]
fn a_call_that_panics_while_the_driver_sleeps_ends_the_node() {
    let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(16).unwrap();
    assert!(run_at_rest(&shard, || -> () { panic!("on purpose") }).is_empty());
    let error = queue.next_blocking(Some(Duration::from_secs(20))).unwrap_err();
    assert!(error.to_string().contains("shard 0 has panicked: on purpose"), "{error}");
    let error = shard.end().run_soon(|_, _| ()).unwrap_err();
    assert!(error.to_string().contains("on purpose"), "{error}");
}

/// What is queued, awaited or unlinked does not wait for another thread that has the shard: here for half a
/// second.
#[test]
fn calls_that_are_queued_wait_for_no_other_thread() {
    const HELD: Duration = Duration::from_millis(500);
    let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(64).unwrap();
    let posted =
        MdSpec { user_ptr: 1, ..MdSpec::new(4, Threshold::Count(1), MdOptions::PUT, queue.handle()) };
    let dropped = shard.attach(&EntrySpec::new(PORTAL, 2), &posted, Buffer::zeroed(4)).unwrap();
    let source = MdSpec::new(4, Threshold::Count(1), MdOptions::NONE, queue.handle());
    let bound = shard.bind(&source, Buffer::from(vec![3; 4])).unwrap();
    let (held, end) = (Arc::new(std::sync::Barrier::new(2)), shard.clone());
    let holding = std::thread::spawn({
        let held = Arc::clone(&held);
        move || {
            let hold = move |_: &mut Worker, _: &mut Queues| {
                held.wait();
                std::thread::sleep(HELD);
            };
            end.end().run(hold).unwrap();
        }
    });
    held.wait();
    let begun = std::time::Instant::now();
    shard.attach_queued(&EntrySpec::new(PORTAL, 1), &posted, Buffer::zeroed(4)).unwrap();
    bound.put(&Target::new(Nid::LO, PORTAL, 1), Ack::NotWanted, 0).queue().unwrap();
    let later = shard.bind_async(&source, Buffer::from(vec![4; 4]));
    let other = shard.attach_async(&EntrySpec::new(PORTAL, 3), &posted, Buffer::zeroed(4));
    drop(dropped);
    assert!(begun.elapsed() < HELD / 2, "{:?}", begun.elapsed());
    let (later, other) = (runner::block_on(later).unwrap(), runner::block_on(other).unwrap());
    assert!(begun.elapsed() > HELD / 2);
    later.put(&Target::new(Nid::LO, PORTAL, 3), Ack::NotWanted, 0).queue().unwrap();
    let mut payloads = Vec::new();
    for _ in 0..5 {
        let queued = queue.next_blocking(Some(Duration::from_secs(20))).unwrap().unwrap();
        payloads.extend(queued.payload().map(|payload| payload[0]));
    }
    assert_eq!(payloads, [3, 4], "two PUTs, two SENDs, and the entry that was dropped");
    assert!(queue.try_next().unwrap().is_none());
    drop((later, other));
    holding.join().unwrap();
}

/// Threads add and remove NIs, start captures, change peers and look at all of it. Each order in which they
/// lock is checked as it comes (`locks`), and those that comments of the locks promise are among them.
#[cfg(debug_assertions)]
#[test]
fn sm_06_control_from_several_threads_locks_in_one_order() {
    use crate::NiConfig;
    use lnet_io::capture::CaptureSpec;
    const ROUNDS: usize = 20;
    let nid = |host| Nid::new_ip(lnet_wire::nid::Net::XDP, [10, 9, 7, host].into()).unwrap();
    let ni = |host, fabric| NiConfig::new(nid(host), &format!("in-process:{fabric}"));
    let shards = NodeConfig::loopback().shards(2);
    let lnet = Lnet::start(&shards.nis(vec![ni(1, "locks")])).unwrap();
    lnet.open().unwrap();
    let other = Lnet::start(&NodeConfig::loopback().nis(vec![ni(2, "locks")])).unwrap();
    other.open().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let added = lnet.add_ni(&ni(3, "other locks")).unwrap();
                lnet.remove_ni(added, Duration::from_secs(20)).unwrap();
            }
        });
        for capture in 0..2 {
            let lnet = &lnet;
            scope.spawn(move || {
                let path =
                    std::env::temp_dir().join(format!("lnet-locks-{}-{capture}.pcapng", std::process::id()));
                for _ in 0..ROUNDS {
                    lnet.start_capture(&CaptureSpec::new(path.to_str().unwrap(), 4096)).unwrap();
                    assert!(!lnet.captures().is_empty());
                    lnet.stop_capture(&path).unwrap();
                    std::fs::remove_file(&path).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for round in 0..ROUNDS {
                lnet.discover(nid(2), true).unwrap();
                lnet.announce_peer(&[nid(2), nid(100 + round as u8)]).unwrap();
                lnet.peers().unwrap();
            }
        });
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                assert!(!lnet.nis().is_empty());
                lnet.xdp_frames().unwrap();
                assert!(lnet.shards().all(|shard| shard.usage().is_ok()));
            }
        });
    });
    let orders = lnet_io::locks::files();
    for (first, second) in
        [("api/mod.rs", "api/mod.rs"), ("api/mod.rs", "node/view.rs"), ("api/runner.rs", "api/runner.rs")]
    {
        let is_there = |(before, behind): &(&str, &str)| before.ends_with(first) && behind.ends_with(second);
        assert!(orders.iter().any(is_there), "{first} before {second}: {orders:?}");
    }
}
