//! What the front promises (`IF-` of the catalogue), over any transport.

use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use lnet_messaging::{
    Addition, BulkDescriptor, Callback, Domain, Errno, Operation, QueueStats, QueueType, StopMode, TmState,
    TransferMachine,
};

use crate::common::{PATIENCE, Party};

fn receive() -> Operation {
    Operation::Receive { min_receive_bytes: 8, max_messages: 1 }
}

fn passive() -> [Operation; 2] {
    [
        Operation::PassiveReceive { initiator: None },
        Operation::PassiveSend { initiator: None, length_bytes: 8 },
    ]
}

/// IF-06, IF-14 and IF-19: a start and a stop, each told on another thread, and a transfer machine that was
/// never started.
pub(crate) fn starts_and_stops([near, far]: [Party; 2], address: &str) {
    struct Thread(Mutex<mpsc::Sender<(std::thread::ThreadId, lnet_messaging::TmEvent)>>);
    impl lnet_messaging::Handler for Thread {
        fn tm_event(&self, _: &TransferMachine, event: &lnet_messaging::TmEvent) {
            let _ = self.0.lock().unwrap().send((std::thread::current().id(), event.clone()));
        }
    }
    let (told, seen) = mpsc::channel();
    let tm = TransferMachine::new(&far.domain, std::sync::Arc::new(Thread(Mutex::new(told)))).unwrap();
    assert_eq!(tm.state(), TmState::Initialized);
    tm.start(address).unwrap();
    let (thread, event) = seen.recv().unwrap();
    assert_ne!(thread, std::thread::current().id());
    let lnet_messaging::TmEvent::StateChange { state: TmState::Started, status: Ok(()), end_point } = event
    else {
        panic!("{event:?}")
    };
    let own = end_point.unwrap();
    assert_eq!((Some(&own), own.address()), (tm.end_point().as_ref(), address));
    drop(own);
    assert_eq!(tm.start(address).unwrap_err().errno(), Errno::NotPermitted);
    tm.stop(StopMode::Drain).unwrap();
    let (thread, event) = seen.recv().unwrap();
    assert_ne!(thread, std::thread::current().id());
    assert!(matches!(event, lnet_messaging::TmEvent::StateChange { state: TmState::Stopped, .. }));
    tm.wait(Some(Instant::now() + PATIENCE), |front| front.callback_count() == 0);
    tm.finish().unwrap();
    assert_eq!(tm.state(), TmState::Undefined);
    tm.initialize().unwrap();
    tm.stop(StopMode::Abort).unwrap();
    assert!(matches!(
        seen.recv().unwrap().1,
        lnet_messaging::TmEvent::StateChange { state: TmState::Stopped, .. }
    ));
    tm.wait(Some(Instant::now() + PATIENCE), |front| front.callback_count() == 0);
    tm.finish().unwrap();
    near.end();
    far.end();
}

/// IF-07: the same address is the same end point.
pub(crate) fn end_points([near, far]: [Party; 2]) {
    assert!(near.tm.create_end_point("").is_err());
    let address = far.address();
    let peer = near.tm.create_end_point(&address).unwrap();
    assert_eq!((peer.address(), peer.reference_count()), (&address[..], 1));
    let again = near.tm.create_end_point(&address).unwrap();
    assert_eq!((peer == again, peer.reference_count()), (true, 2));
    let own = near.tm.create_end_point(&near.address()).unwrap();
    assert_eq!((Some(&own), own.reference_count()), (near.tm.end_point().as_ref(), 2));
    drop((peer, own));
    assert_eq!(near.tm.end_point_addresses().len(), 2);
    drop(again);
    assert_eq!(near.tm.end_point_addresses(), [near.address()]);
    near.end();
    far.end();
}

/// IF-08, IF-16, IF-17 and IF-18: what is refused changes nothing.
pub(crate) fn refusals([near, far]: [Party; 2]) {
    let refused = |operation: Addition, bytes: usize, errno| {
        let queue = near.tm.add(near.buffer(&[bytes]), operation).map(|added| added.id.queue());
        assert_eq!(queue.unwrap_err().error.errno(), errno);
    };
    let past = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
    refused(Addition::from(receive()).deadline(past), 8, Errno::Expired);
    let to = || near.tm.create_end_point(&far.address()).unwrap();
    for length_bytes in [0, 9] {
        refused(Operation::Send { to: to(), length_bytes }.into(), 8, Errno::Invalid);
        refused(Operation::PassiveSend { initiator: None, length_bytes }.into(), 8, Errno::Invalid);
        let to = BulkDescriptor::default();
        refused(Operation::ActiveSend { to, length_bytes }.into(), 8, Errno::Invalid);
    }
    for (min_receive_bytes, max_messages) in [(0, 1), (9, 1), (8, 0)] {
        refused(Operation::Receive { min_receive_bytes, max_messages }.into(), 8, Errno::Invalid);
    }
    let theirs = far.tm.create_end_point(&near.address()).unwrap();
    refused(Operation::Send { to: theirs, length_bytes: 8 }.into(), 8, Errno::Invalid);
    let foreign = near.tm.add(far.buffer(&[8]), receive()).unwrap_err();
    assert_eq!(foreign.error.errno(), Errno::Invalid);
    let idle = Party::in_domain(&near.domain);
    assert_eq!(idle.tm.add(near.buffer(&[8]), receive()).unwrap_err().error.errno(), Errno::NotPermitted);
    drop((idle, foreign));
    for queue in QueueType::ALL {
        assert_eq!((near.tm.queue_length(queue), near.counts(queue)), (0, (0, 0, 0, 0)), "{queue:?}");
    }
    near.end();
    far.end();
}

/// IF-09, IF-11 and IF-13: waiting buffers are queued, deleted once, and counted.
pub(crate) fn additions_deletions_and_counters([mut near, far]: [Party; 2]) {
    let deadline = Instant::now() + PATIENCE;
    for operation in passive().into_iter().chain([receive()]) {
        let queue = operation.queue();
        let added = near.tm.add(near.buffer(&[8]), Addition::from(operation).deadline(deadline)).unwrap();
        assert_eq!(added.descriptor.is_some(), queue.is_passive());
        let queued = near.tm.queued(added.id).unwrap();
        assert_eq!((queued.deadline, queued.messages_received), (Some(deadline), 0));
        assert!(near.tm.del(added.id));
        assert_eq!(near.end_of(added.id).0, Err(Errno::Canceled));
        assert!(!near.tm.del(added.id) && near.tm.queued(added.id).is_none());
        let stats = near.tm.stats(queue, false).unwrap();
        assert!(!stats.time_in_queue.is_zero());
    }
    let counted = near.tm.all_stats(true).unwrap();
    for queue in QueueType::ALL {
        let waits = u64::from(queue.is_passive() || queue == QueueType::Receive);
        let QueueStats { num_adds, num_dels, num_s_events, num_f_events, .. } = counted[queue as usize];
        assert_eq!([num_adds, num_dels, num_s_events, num_f_events], [waits, waits, 0, waits], "{queue:?}");
    }
    assert!(near.tm.all_stats(false).unwrap().iter().all(|stats| *stats == QueueStats::default()));
    near.end();
    far.end();
}

/// IF-20: a callback adds its buffer again, deletes another one, makes an end point and reads counters.
pub(crate) fn a_callback_uses_the_front([mut near, far]: [Party; 2]) {
    let (told, seen) = mpsc::channel();
    let told = Mutex::new(told);
    let other = far.tm.add(far.buffer(&[8]), Operation::PassiveReceive { initiator: None }).unwrap().id;
    let callback = Callback::new(move |tm: &TransferMachine, event| {
        if event.status.is_err() {
            return;
        }
        let from = event.end_point.as_ref().unwrap().address().to_owned();
        let is_same = event.end_point == tm.create_end_point(&from).ok();
        let deleted = tm.del(other);
        let counted = tm.stats(QueueType::Receive, false).unwrap().num_s_events;
        let again = tm.add(event.into_buffer().unwrap(), receive()).is_ok();
        let finished = tm.finish().map_err(|error| error.errno());
        told.lock().unwrap().send((is_same, deleted, counted, again, finished)).unwrap();
    });
    far.add(far.buffer(&[8]), Addition::from(receive()).callback(&callback));
    let id = near.send(&far.address(), b"go");
    assert_eq!(near.end_of(id).0, Ok(()));
    assert_eq!(seen.recv().unwrap(), (true, true, 1, true, Err(Errno::NotPermitted)));
    near.end();
    far.end();
}

/// LN-02: domains and transfer machines come and go, beside others that live.
pub(crate) fn domains_come_and_go([near, far]: [Party; 2]) {
    for _ in 0..3 {
        let domain: Domain = far.domain.clone();
        let before = (domain.buffer_count(), domain.tm_count());
        let party = Party::in_domain(&domain);
        let buffer = party.buffer(&[4096; 4]);
        assert_eq!((domain.buffer_count(), domain.tm_count()), (before.0 + 1, before.1 + 1));
        party.tm.finish().unwrap();
        party.tm.initialize().unwrap();
        drop(buffer.deregister());
        party.tm.finish().unwrap();
        drop(party);
        assert_eq!((domain.buffer_count(), domain.tm_count()), before);
    }
    near.end();
    far.end();
}

/// LN-20 and LN-21: of buffers of all waiting queues those end whose deadline passes, and the others when
/// they are deleted.
pub(crate) fn deadlines([mut near, far]: [Party; 2]) {
    let wait = Duration::from_millis(60);
    let begun = Instant::now();
    let operations = || passive().into_iter().chain([receive()]);
    let late: Vec<_> = operations()
        .map(|operation| near.add(near.buffer(&[8]), Addition::from(operation).deadline(begun + wait)))
        .collect();
    let never: Vec<_> = operations().map(|operation| near.add(near.buffer(&[8]), operation)).collect();
    for _ in &late {
        let event = near.buffer_event();
        assert!(late.contains(&event.id) && begun.elapsed() >= wait, "{event:?}");
        assert_eq!(event.status, Err(Errno::TimedOut));
    }
    for id in never {
        assert!(near.tm.del(id));
        assert_eq!(near.end_of(id).0, Err(Errno::Canceled));
    }
    for queue in [QueueType::Receive, QueueType::PassiveReceive, QueueType::PassiveSend] {
        let stats = near.tm.stats(queue, true).unwrap();
        assert_eq!((stats.num_adds, stats.num_dels, stats.num_f_events), (2, 1, 2), "{queue:?}");
        assert!(stats.time_in_queue >= wait);
    }
    near.end();
    far.end();
}

/// IF-05 and IF-15 of a transport that can do neither: it says so, and goes on as before.
pub(crate) fn neither_confined_nor_synchronous([mut near, far]: [Party; 2], address: &str) {
    let party = Party::in_domain(&far.domain);
    assert_eq!(party.tm.confine(&[0]).unwrap_err().errno(), Errno::NotSupported);
    assert_eq!(party.tm.deliver_synchronously().unwrap_err().errno(), Errno::NotSupported);
    let mut party = party.start(address);
    assert_eq!(party.tm.is_pending().unwrap_err().errno(), Errno::NotPermitted);
    party.post(8, 8, 1);
    let id = near.send(address, b"message");
    assert_eq!(near.end_of(id).0, Ok(()));
    assert_eq!(party.buffer_event().payload_bytes(), b"message");
    party.end();
    near.end();
    far.end();
}

/// Callbacks that panic, of a buffer and of the transfer machine itself: it fails and says so, what is queued
/// ends, and it is finished and its address free.
pub(crate) fn a_callback_that_panics([near, far]: [Party; 2], address: &str) {
    struct Panicking(Mutex<mpsc::Sender<lnet_messaging::TmEvent>>, bool);
    impl lnet_messaging::Handler for Panicking {
        fn tm_event(&self, _: &TransferMachine, event: &lnet_messaging::TmEvent) {
            self.0.lock().unwrap().send(event.clone()).unwrap();
            assert!(!self.1, "this handler panics at each event");
        }
    }
    for at_each_event in [false, true] {
        let (told, seen) = mpsc::channel();
        let handler = std::sync::Arc::new(Panicking(Mutex::new(told), at_each_event));
        let tm = TransferMachine::new(&far.domain, handler).unwrap();
        tm.start(address).unwrap();
        let started = seen.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(started, lnet_messaging::TmEvent::StateChange { state: TmState::Started, .. }));
        drop(started);
        if !at_each_event {
            let callback = Callback::new(|_: &TransferMachine, _| panic!("this callback panics"));
            let first = far.buffer(&[8]);
            tm.add(first, Addition::from(receive()).callback(&callback)).unwrap();
            tm.add(far.buffer(&[8]), Addition::from(passive().into_iter().next().unwrap())).unwrap();
            near.send(address, b"message");
        }
        let failed = seen.recv_timeout(PATIENCE).unwrap();
        let lnet_messaging::TmEvent::StateChange { state: TmState::Failed, status, .. } = failed else {
            panic!("{failed:?}")
        };
        assert_eq!(status, Err(Errno::Io));
        tm.finish().unwrap();
        assert_eq!(tm.state(), TmState::Undefined);
    }
    near.end();
    far.end();
}

/// A transfer machine says how it is doing when it is asked, while it is started.
pub(crate) fn diagnostics([mut near, mut far]: [Party; 2]) {
    use lnet_messaging::TmEvent;
    let idle = Party::in_domain(&far.domain);
    assert_eq!(idle.tm.diagnose().unwrap_err().errno(), Errno::NotPermitted);
    far.post(64, 8, 4);
    let id = near.send(&far.address(), b"message");
    assert_eq!(near.end_of(id).0, Ok(()));
    drop(far.buffer_event());
    for party in [&mut near, &mut far] {
        party.tm.diagnose().unwrap();
    }
    let TmEvent::Diagnostic(text) = far.tm_event() else { panic!("another event") };
    assert!(text.starts_with("Started, ") && text.contains("Receive: 1 queued, 1 events, 0"), "{text}");
    let TmEvent::Diagnostic(text) = near.tm_event() else { panic!("another event") };
    assert!(text.contains("Send: 0 queued, 1 events, 0 of them failures"), "{text}");
    near.end();
    far.end();
}
