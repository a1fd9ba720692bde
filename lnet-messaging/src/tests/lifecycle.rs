//! Domains, transfer machines and end points over a fake transport.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread::ThreadId;
use std::time::Instant;

use super::fake::{Fake, Ignore, LIMITS, Made, PATIENCE, await_state};
use crate::domain::all_are_locked;
use crate::transport::{Completion, Report, Transport};
use crate::{
    Domain, Errno, Handler, Limits, MemTransport, Memory, Operation, Registry, StopMode, TmEvent, TmState,
    TransferMachine,
};

#[test]
fn if_02_a_domain_has_the_limits_of_its_transport() {
    let fake = Fake::default();
    let domain = fake.under(all_are_locked, || fake.domain());
    assert_eq!((fake.calls(), *domain.limits()), (vec!["create_domain".to_owned()], LIMITS));
    // Nothing is locked any more.
    assert!(!domain.is_locked());
    drop(fake.domain());
    domain.finish().unwrap();

    fake.plan(|plan| plan.refuse_domain = Some(Errno::NoMemory));
    let transport: Arc<dyn Transport> = Arc::new(fake.clone());
    assert_eq!(Domain::new(&transport).unwrap_err().errno(), Errno::NoMemory);
}

#[test]
fn if_02_sizes_that_an_rpc_layer_may_use() {
    // What it would like, what it gets, and how many of those are in a buffer.
    let sizes = [
        (0, 1 << 16, 1),
        (1, 1 << 12, 16),
        (1 << 12, 1 << 12, 16),
        (5000, 5000, 13),
        (1 << 16, 1 << 16, 1),
        ((1 << 16) + 1, 1 << 16, 1),
        (u64::MAX, 1 << 16, 1),
    ];
    for (wanted, bytes, messages) in sizes {
        let got = (LIMITS.rpc_message_bytes(wanted), LIMITS.rpc_messages_per_buffer(wanted));
        assert_eq!(got, (bytes, messages), "{wanted}");
    }
    let long = Limits { rpc_segment_bytes: 1 << 17, ..LIMITS };
    assert_eq!(long.rpc_message_bytes(1), 1 << 16, "no more than a buffer, though a segment has more");
    assert_eq!(Limits { buffer_bytes: 0, ..LIMITS }.rpc_messages_per_buffer(0), 0);
    // Buffers of these shapes can be registered.
    for limits in [crate::mem::LIMITS, crate::lnet::LIMITS, crate::rpc::LIMITS] {
        assert!(limits.rpc_segments <= limits.segments && limits.rpc_segment_bytes <= limits.segment_bytes);
        assert!(limits.rpc_segment_bytes * limits.rpc_segments as u64 >= limits.rpc_message_bytes(0));
    }
}

#[test]
fn a_domain_is_not_finished_before_its_buffers_and_transfer_machines() {
    let made = Made::new();
    let buffer = made.domain.allocate(1, 8).unwrap();
    let (error, domain) = made.domain.clone().finish().unwrap_err();
    assert_eq!(error.to_string(), "1 buffers and 1 transfer machines: none of them are expected (EBUSY)");
    drop(buffer);
    made.tm.finish().unwrap();
    assert_eq!((domain.buffer_count(), domain.tm_count()), (0, 0));
    domain.finish().unwrap();
    assert_eq!(made.domain.allocate(1, 8).unwrap_err().errno(), Errno::Busy);
}

#[test]
fn if_04_a_transfer_machine_is_initialised_again() {
    let made = Made::new();
    for _ in 0..2 {
        assert_eq!((made.tm.state(), made.domain.tm_count()), (TmState::Initialized, 1));
        assert_eq!(made.tm.initialize().unwrap_err().errno(), Errno::NotPermitted);
        made.tm.finish().unwrap();
        assert_eq!((made.tm.state(), made.domain.tm_count()), (TmState::Undefined, 0));
        assert_eq!(made.tm.stats(crate::QueueType::Send, false).unwrap_err().errno(), Errno::Busy);
        made.tm.initialize().unwrap();
    }
    made.tm.finish().unwrap();
}

#[test]
fn if_05_threads_are_confined_where_the_transport_can() {
    let made = Made::new();
    made.fake.calls();
    assert_eq!(made.tm.confine(&[0, 2]).unwrap_err().errno(), Errno::NotSupported);
    assert!(made.fake.calls().is_empty());
    made.fake.plan(|plan| plan.supports_confine = true);
    made.tm.confine(&[0, 2]).unwrap();
    assert_eq!(made.fake.calls(), ["confine [0, 2]"]);
    assert_eq!(made.tm.confine(&[]).unwrap_err().errno(), Errno::Invalid);
    made.tm.finish().unwrap();
}

/// Notes the thread and what it sees there.
#[derive(Default)]
struct Witness(Mutex<Vec<(ThreadId, TmEvent, Option<usize>)>>);

impl Handler for Witness {
    fn tm_event(&self, tm: &TransferMachine, event: &TmEvent) {
        // Its own handle, that of the event, and this one.
        let references = tm.end_point().map(|own| own.reference_count());
        self.0.lock().unwrap().push((std::thread::current().id(), event.clone(), references));
    }
}

#[test]
fn if_06_a_start_is_told_by_one_event_on_another_thread() {
    let fake = Fake::default();
    let witness = Arc::new(Witness::default());
    let tm = TransferMachine::new(&fake.domain(), witness.clone()).unwrap();
    tm.start("own").unwrap();
    await_state(&tm, TmState::Started);
    let seen = witness.0.lock().unwrap().clone();
    let [(thread, TmEvent::StateChange { state: TmState::Started, status: Ok(()), end_point }, Some(3..=4))] =
        &seen[..]
    else {
        panic!("{seen:?}");
    };
    assert_ne!(*thread, std::thread::current().id());
    assert_eq!(end_point.as_ref().map(|own| own.address()), Some("own"));
    drop(seen);
    witness.0.lock().unwrap().clear();
    assert_eq!(tm.end_point().unwrap().reference_count(), 2, "the transfer machine's and this one");
    tm.stop(StopMode::Drain).unwrap();
    await_state(&tm, TmState::Stopped);
    tm.finish().unwrap();
}

#[test]
fn if_07_the_same_address_is_the_same_end_point() {
    let made = Made::started();
    let tm = &made.tm;
    assert_eq!(tm.create_end_point("").unwrap_err().errno(), Errno::NotSupported);
    assert_eq!(tm.end_point_addresses(), ["own"]);
    let new = tm.create_end_point("other").unwrap();
    assert_eq!((new.reference_count(), new.address()), (1, "other"));
    let own = tm.create_end_point("own").unwrap();
    assert_eq!((own.reference_count(), Some(&own) == tm.end_point().as_ref()), (2, true));
    let again = tm.create_end_point("other").unwrap();
    assert_eq!((new == again, new.reference_count()), (true, 2));
    drop(again);
    assert_eq!((new.reference_count(), tm.end_point_addresses().len()), (1, 2));
    drop((new, own));
    assert_eq!(tm.end_point_addresses(), ["own"]);
    made.end();
}

#[test]
fn if_14_stop_wait_and_finish() {
    let mut made = Made::started();
    let other = made.tm.create_end_point("other").unwrap();
    made.tm.stop(StopMode::Drain).unwrap();
    let expected = TmEvent::StateChange { state: TmState::Stopped, status: Ok(()), end_point: None };
    assert_eq!(made.tm_event(), expected);
    made.await_state(TmState::Stopped);
    assert_eq!(made.tm.create_end_point("x").unwrap_err().errno(), Errno::NotPermitted);
    assert_eq!(made.tm.finish().unwrap_err().errno(), Errno::Busy, "an end point is in use");
    drop(other);
    let own = made.tm.end_point().unwrap();
    assert_eq!(made.tm.finish().unwrap_err().errno(), Errno::Busy, "its own is");
    drop(own);
    made.tm.finish().unwrap();
    assert!(made.tm.end_point_addresses().is_empty() && made.tm.end_point().is_none());
}

struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn if_15_synchronous_delivery_reaches_the_transport() {
    let made = Made::new();
    assert_eq!(made.tm.deliver_synchronously().unwrap_err().errno(), Errno::NotSupported);
    made.tm.finish().unwrap();

    let fake = Fake::default();
    fake.plan(|plan| plan.supports_synchronous = true);
    let mut made = Made::of(fake);
    let fake = made.fake.clone();
    let tm = made.tm.clone();
    fake.under(move || tm.is_locked(), || made.tm.deliver_synchronously().unwrap());
    assert_eq!(made.tm.deliver_synchronously().unwrap_err().errno(), Errno::Busy);
    assert_eq!(made.tm.is_pending().unwrap_err().errno(), Errno::NotPermitted, "not started");
    made.tm.start("own").unwrap();
    made.tm_event();
    made.await_state(TmState::Started);
    made.fake.calls();
    let count = Arc::new(Count(AtomicU32::new(0)));
    let tm = made.tm.clone();
    let is_locked = move || tm.is_locked();
    fake.under(is_locked, || {
        assert!(!made.tm.is_pending().unwrap());
        made.tm.deliver_all().unwrap();
        made.tm.notify(Waker::from(Arc::clone(&count))).unwrap();
    });
    assert!(!made.tm.is_locked());
    assert_eq!(made.fake.calls(), ["is_pending", "next_pending", "notify"]);
    made.fake.plan(|plan| plan.waker.take()).unwrap().wake();
    assert_eq!(count.0.load(Ordering::Relaxed), 1);

    let buffer = made.domain.allocate(1, 8).unwrap();
    let added = made.tm.add(buffer, Operation::PassiveReceive { initiator: None }).unwrap();
    made.fake.plan(|plan| plan.pending.push(Completion::new(added.id, Ok(()), 8)));
    assert!(made.events.try_next().is_none());
    made.tm.deliver_all().unwrap();
    assert_eq!(made.buffer_event().id, added.id);
    made.end();

    let made = Made::started();
    assert_eq!(made.tm.deliver_all().unwrap_err().errno(), Errno::NotPermitted, "automatic");
    made.end();
}

/// Two threads bring an event each and deliver, at about the same time: what one leaves the other delivers.
#[test]
fn an_event_is_delivered_by_whichever_thread_goes_on() {
    const ROUNDS: u32 = 20_000;
    let fake = Fake::default();
    fake.plan(|plan| plan.supports_synchronous = true);
    let mut made = Made::of(fake.clone());
    made.tm.deliver_synchronously().unwrap();
    made.tm.start("own").unwrap();
    made.tm_event();
    made.await_state(TmState::Started);
    let bring = || {
        let buffer = made.domain.allocate(1, 8).unwrap();
        let added = made.tm.add(buffer, Operation::PassiveReceive { initiator: None }).unwrap();
        fake.plan(|plan| plan.pending.push(Completion::new(added.id, Ok(()), 8)));
        made.tm.deliver_all().unwrap();
    };
    let [begun, done] = [(); 2].map(|()| AtomicU32::new(0));
    let await_round = |counter: &AtomicU32, round| {
        while counter.load(Ordering::Acquire) < round {
            std::thread::yield_now();
        }
    };
    let mut left = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                await_round(&begun, round);
                bring();
                done.store(round, Ordering::Release);
            }
        });
        for round in 1..=ROUNDS {
            begun.store(round, Ordering::Release);
            (0..round % 200).for_each(|_| std::hint::spin_loop());
            bring();
            await_round(&done, round);
            left += u32::from(made.tm.is_pending().unwrap());
            made.tm.deliver_all().unwrap();
            fake.calls();
        }
    });
    assert_eq!(left, 0, "rounds after which an event was left by both");
    made.end();
}

#[test]
fn if_19_a_stop_overtakes_the_start_comes_before_it_and_may_fail() {
    let fake = Fake::default();
    fake.plan(|plan| plan.holds_start = true);
    let mut made = Made::of(fake);
    made.tm.start("own").unwrap();
    assert_eq!(made.tm.state(), TmState::Starting);
    made.tm.stop(StopMode::Abort).unwrap();
    made.fake.link().report(Report::Started("own"));
    assert!(matches!(made.tm_event(), TmEvent::StateChange { state: TmState::Stopped, .. }));
    made.await_state(TmState::Stopped);
    assert!(made.events.try_next().is_none() && made.tm.end_point_addresses().is_empty());
    made.end();

    let mut made = Made::new();
    made.tm.stop(StopMode::Drain).unwrap();
    assert!(matches!(made.tm_event(), TmEvent::StateChange { state: TmState::Stopped, .. }));
    made.end();

    let made = Made::started();
    made.fake.plan(|plan| plan.refuse_stop = Some(Errno::Io));
    assert_eq!(made.tm.stop(StopMode::Abort).unwrap_err().errno(), Errno::Io);
    assert_eq!(made.tm.state(), TmState::Started);
    made.fake.plan(|plan| plan.refuse_stop = None);
    made.end();
}

#[test]
fn if_21_a_start_that_fails_at_once_has_no_event() {
    let fake = Fake::default();
    fake.plan(|plan| plan.refuse_start = Some(Errno::Invalid));
    let mut made = Made::of(fake);
    assert_eq!(made.tm.start("own").unwrap_err().errno(), Errno::Invalid);
    assert_eq!(made.tm.state(), TmState::Failed);
    assert!(made.events.try_next().is_none());
    assert_eq!(made.tm.start("own").unwrap_err().errno(), Errno::NotPermitted);
    made.fake.plan(|plan| plan.link = None);
    made.tm.finish().unwrap();
}

#[test]
fn a_start_that_fails_later_is_told_and_so_is_trouble() {
    let fake = Fake::default();
    fake.plan(|plan| plan.holds_start = true);
    let mut made = Made::of(fake);
    made.tm.start("own").unwrap();
    made.fake.link().report(Report::Failed(Errno::NotFound));
    let failed =
        TmEvent::StateChange { state: TmState::Failed, status: Err(Errno::NotFound), end_point: None };
    assert_eq!(made.tm_event(), failed);
    made.fake.link().report(Report::Trouble(Errno::NoBuffers));
    assert_eq!(made.tm_event(), TmEvent::Error(Errno::NoBuffers));
    made.fake.plan(|plan| plan.link = None);
    made.tm.finish().unwrap();
}

#[test]
fn the_last_handle_stops_the_transfer_machine() {
    let made = Made::started();
    let link = made.fake.link();
    drop(made.tm);
    let begun = Instant::now();
    while link.with_front(|front| front.state()) != TmState::Stopped {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

#[test]
fn mi_02_transports_come_and_go_by_name() {
    let registry = Registry::new();
    let mem = MemTransport::default().shared();
    let fake: Arc<dyn Transport> = Arc::new(Fake::default());
    registry.register(Arc::clone(&mem)).unwrap();
    registry.register(Arc::clone(&fake)).unwrap();
    assert_eq!(registry.register(Arc::clone(&fake)).unwrap_err().errno(), Errno::Busy);
    assert_eq!(registry.names(), ["mem", "fake"]);
    assert!(registry.default_transport().is_none());
    registry.set_default("mem").unwrap();
    assert_eq!(registry.default_transport().unwrap().name(), "mem");
    assert_eq!(registry.deregister("mem").unwrap().name(), "mem");
    assert_eq!((registry.contains("mem"), registry.contains("fake")), (false, true));
    assert!(registry.default_transport().is_none() && registry.lookup("mem").is_none());
    for result in [registry.deregister("mem").map(drop), registry.set_default("mem")] {
        assert_eq!(result.unwrap_err().errno(), Errno::NotFound);
    }
    registry.register(mem).unwrap();
    assert_eq!(registry.names(), ["fake", "mem"]);
}

/// Transports that need no node are known from the beginning.
#[test]
fn mi_02_the_process_knows_mem_and_rpc() {
    assert_eq!(crate::registry().names()[..2], ["mem", "rpc"]);
    for name in ["mem", "rpc"] {
        let domain = Domain::new(&crate::registry().lookup(name).unwrap()).unwrap();
        assert_eq!(domain.transport_name(), name);
        domain.finish().map_err(|(error, _)| error).unwrap();
    }
}

#[test]
fn mi_03_what_is_brought_up_is_taken_down() {
    let fake = Fake::default();
    let domain = fake.domain();
    let tm = TransferMachine::new(&domain, Arc::new(Ignore)).unwrap();
    let buffer = domain.register(Memory::zeroed(2, 16).unwrap()).unwrap();
    assert_eq!(fake.calls(), ["create_domain", "create_tm", "register"]);
    drop(buffer);
    tm.finish().unwrap();
    drop(tm);
    domain.finish().unwrap();
    assert_eq!(fake.calls(), ["deregister", "finish"]);
    assert_eq!(Arc::strong_count(&fake.0), 1, "the transport has nothing any more");
}
