//! Buffers, their queues, events and counters over a fake transport.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::fake::{Fake, Made, PATIENCE, await_state};
use crate::transport::{Completion, Outcome, Report};
use crate::{
    Added, Addition, Buffer, BufferEvent, BufferId, BulkDescriptor, Callback, Errno, Handler, Memory,
    Operation, QueueStats, QueueType, QueuedState, StopMode, TmState, TransferMachine,
};

const SIZE: usize = 64;

impl Made {
    fn buffer(&self) -> Buffer {
        self.domain.allocate(1, SIZE).unwrap()
    }

    /// The operation of a queue.
    fn operation(&self, queue: QueueType) -> Operation {
        let desc = BulkDescriptor::from_bytes(b"remote");
        match queue {
            QueueType::Receive => Operation::Receive { min_receive_bytes: 16, max_messages: 4 },
            QueueType::Send => {
                Operation::Send { to: self.tm.create_end_point("peer").unwrap(), length_bytes: 48 }
            }
            QueueType::PassiveReceive => Operation::PassiveReceive { initiator: None },
            QueueType::PassiveSend => Operation::PassiveSend { initiator: None, length_bytes: 32 },
            QueueType::ActiveReceive => Operation::ActiveReceive { from: desc },
            QueueType::ActiveSend => Operation::ActiveSend { to: desc, length_bytes: 24 },
        }
    }

    fn add(&self, queue: QueueType) -> Added {
        self.tm.add(self.buffer(), self.operation(queue)).unwrap()
    }

    /// A success, with a sender where it is a message.
    fn success(&self, id: BufferId, length_bytes: u64) -> Completion {
        let is_message = id.queue() == QueueType::Receive;
        let end_point = is_message.then(|| self.fake.link().end_point("sender"));
        Completion { end_point, ..Completion::new(id, Ok(()), length_bytes) }
    }

    fn stats(&self, queue: QueueType) -> QueueStats {
        self.tm.stats(queue, true).unwrap()
    }
}

/// Adds, dels, successes, failures.
fn counts(stats: &QueueStats) -> (u64, u64, u64, u64) {
    (stats.num_adds, stats.num_dels, stats.num_s_events, stats.num_f_events)
}

#[test]
fn if_01_a_descriptor_is_copied_and_freed() {
    let mut first = BulkDescriptor::from_bytes(&[1, 2, 3]);
    let copy = first.clone();
    assert_eq!(first, copy);
    assert_ne!(first.as_bytes().as_ptr(), copy.as_bytes().as_ptr());
    for _ in 0..2 {
        first.clear();
        assert!(first.as_bytes().is_empty());
    }
    assert_eq!(copy.as_bytes(), [1, 2, 3]);
}

#[test]
fn if_03_buffers_are_registered_with_the_transport() {
    let made = Made::new();
    made.fake.calls();
    let domain = made.domain.clone();
    let is_locked = move || domain.is_locked();
    let buffers: Vec<Buffer> = made.fake.under(is_locked.clone(), || (0..6).map(|_| made.buffer()).collect());
    assert!(!is_locked());
    assert_eq!((made.fake.calls(), made.domain.buffer_count()), (vec!["register".to_owned(); 6], 6));
    made.fake.under(is_locked, || drop(buffers));
    assert_eq!((made.fake.calls().len(), made.domain.buffer_count()), (6, 0));
    made.fake.plan(|plan| plan.refuse_register = Some(Errno::NoMemory));
    let (error, memory) = made.domain.register(Memory::zeroed(2, 8).unwrap()).unwrap_err();
    assert_eq!((error.errno(), memory.size_bytes(), made.domain.buffer_count()), (Errno::NoMemory, 16, 0));
    made.tm.finish().unwrap();
}

#[test]
fn shapes_beyond_the_limits_are_refused() {
    let made = Made::new();
    for (segments, bytes) in [(21, 8), (1, 4097), (17, 4096)] {
        let memory = Memory::zeroed(segments, bytes).unwrap();
        let (error, memory) = made.domain.register(memory).unwrap_err();
        assert_eq!((error.errno(), memory.segments().count()), (Errno::TooBig, segments), "{error}");
        assert_eq!(made.domain.allocate(segments, bytes).unwrap_err().errno(), Errno::TooBig);
    }
    for (segments, bytes) in [(0, 8), (1, 0)] {
        assert_eq!(Memory::zeroed(segments, bytes).unwrap_err().errno(), Errno::Invalid);
        assert_eq!(made.domain.allocate(segments, bytes).unwrap_err().errno(), Errno::Invalid);
    }
    assert_eq!(Memory::zeroed(257, 1).unwrap_err().errno(), Errno::TooBig);
    assert_eq!(made.domain.register(Memory::default()).unwrap_err().0.errno(), Errno::Invalid);
    made.tm.finish().unwrap();
}

#[test]
fn if_08_a_deadline_in_the_past_is_refused() {
    let made = Made::started();
    let past = Instant::now().checked_sub(Duration::from_secs(120)).unwrap_or_else(Instant::now);
    let addition = Addition::from(made.operation(QueueType::Receive)).deadline(past);
    let refused = made.tm.add(made.buffer(), addition).unwrap_err();
    assert_eq!((refused.error.errno(), refused.buffer.size_bytes()), (Errno::Expired, SIZE as u64));
    assert_eq!(made.tm.queue_length(QueueType::Receive), 0);
    drop(refused);
    made.end();
}

#[test]
fn if_09_a_buffer_is_added_to_each_queue() {
    let made = Made::started();
    let deadline = Instant::now() + Duration::from_secs(3600);
    for queue in QueueType::ALL {
        let addition = Addition::from(made.operation(queue)).deadline(deadline);
        let added = made.tm.add(made.buffer(), addition).unwrap();
        let expected =
            QueuedState { flags: Default::default(), deadline: Some(deadline), messages_received: 0 };
        assert_eq!(made.tm.queued(added.id), Some(expected));
        assert_eq!((added.descriptor.is_some(), added.id.queue()), (queue.is_passive(), queue));
        assert_eq!(counts(&made.stats(queue)), (1, 0, 0, 0));
    }
    assert_eq!(made.tm.create_end_point("peer").unwrap().reference_count(), 2, "the send's and this one");
    made.end();
}

#[test]
fn if_10_a_success_takes_the_buffer_out_of_its_queue() {
    let mut made = Made::started();
    for queue in QueueType::ALL {
        let (seen, events) = channel();
        let callback = Callback::new(move |tm: &TransferMachine, event: BufferEvent| {
            seen.send((tm.queued(event.id), event)).unwrap();
        });
        let addition = Addition::from(made.operation(queue)).callback(&callback);
        let added = made.tm.add(made.buffer(), addition).unwrap();
        made.fake.link().with_front(|front| front.queued(added.id).unwrap().flags.in_use = true);
        made.fake.post(made.success(added.id, if queue.is_receive() { 20 } else { 0 }));
        let (queued, event) = events.recv().unwrap();
        assert!(queued.is_none() && event.is_last() && event.status.is_ok());
        assert_eq!((event.queue(), event.end_point.is_some()), (queue, queue == QueueType::Receive));
        assert_eq!(event.payload_bytes().len(), if queue.is_receive() { 20 } else { 0 });
        drop(event);
        await_state(&made.tm, TmState::Started);
        assert!(events.try_recv().is_err(), "one event");
        let stats = made.stats(queue);
        let bytes = made.operation(queue).length_bytes().unwrap_or(20);
        assert_eq!((counts(&stats), stats.total_bytes, stats.max_bytes), ((1, 0, 1, 0), bytes, bytes));
    }
    assert_eq!(made.tm.end_point_addresses(), ["own"], "no reference is left");
    assert!(made.events.try_next().is_none(), "buffers with a callback of their own");
    made.end();
}

/// The end of a callback is a call of the kernel where a thread waits for it, and none where none does.
#[test]
fn the_end_of_a_callback_wakes_those_that_wait() {
    let mut made = Made::started();
    let take = |made: &mut Made| {
        let added = made.add(QueueType::PassiveReceive);
        made.fake.post(made.success(added.id, 5));
        made.buffer_event();
    };
    let before = made.tm.woken_count();
    for _ in 0..10 {
        take(&mut made);
    }
    assert_eq!(made.tm.woken_count(), before);
    let (tm, looks) = (made.tm.clone(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            // Not at the first look: it waits.
            tm.wait(Some(Instant::now() + PATIENCE), |_| looks.fetch_add(1, Ordering::SeqCst) > 0)
        });
        while !waiting.is_finished() {
            take(&mut made);
        }
        assert!(waiting.join().unwrap());
    });
    assert!(made.tm.woken_count() > before);
    drop(tm);
    made.end();
}

#[test]
fn if_11_a_deleted_buffer_has_one_event() {
    let mut made = Made::started();
    let added = made.add(QueueType::PassiveSend);
    assert!(made.tm.del(added.id));
    let event = made.buffer_event();
    assert_eq!((event.id, event.status), (added.id, Err(Errno::Canceled)));
    assert_eq!(counts(&made.stats(QueueType::PassiveSend)), (1, 1, 0, 1));
    assert_eq!(made.fake.calls(), ["register", "add PassiveSend", "del PassiveSend"]);

    let added = made.add(QueueType::PassiveReceive);
    made.fake.link().with_front(|front| front.queued(added.id).unwrap().flags.in_use = true);
    assert!(made.tm.del(added.id) && made.tm.del(added.id), "a request each");
    made.fake.post(made.success(added.id, 5));
    let event = made.buffer_event();
    assert_eq!((event.id, event.status, event.length_bytes), (added.id, Ok(()), 5));
    assert_eq!(counts(&made.stats(QueueType::PassiveReceive)), (1, 2, 1, 0));
    drop(event);
    made.end();
}

#[test]
fn if_12_a_retained_event_leaves_the_buffer_queued() {
    let mut made = Made::started();
    let deadline = Instant::now() + Duration::from_secs(3600);
    for queue in QueueType::ALL {
        let addition = Addition::from(made.operation(queue)).deadline(deadline);
        let added = made.tm.add(made.buffer(), addition).unwrap();
        made.fake.link().with_front(|front| front.queued(added.id).unwrap().flags.in_use = true);
        let first = Completion { outcome: Outcome::Retained(Box::new(())), ..made.success(added.id, 16) };
        made.fake.post(first);
        let event = made.buffer_event();
        assert!(!event.is_last() && event.buffer().is_none() && event.into_buffer().is_none());
        let queued = made.tm.queued(added.id).unwrap();
        let is_message = u32::from(queue == QueueType::Receive);
        assert_eq!((queued.flags.in_use, queued.deadline), (true, Some(deadline)));
        assert_eq!(queued.messages_received, is_message);
        made.fake.post(made.success(added.id, 16));
        assert_eq!(made.buffer_event().into_buffer().unwrap().size_bytes(), SIZE as u64);
        assert_eq!(made.tm.queued(added.id), None);
        assert_eq!(counts(&made.stats(queue)), (1, 0, 2, 0));
    }
    made.end();
}

#[test]
fn if_13_statistics_count_and_are_set_back() {
    let mut made = Made::started();
    let queue = QueueType::Receive;
    for length in [10, 30, 20] {
        let added = made.add(queue);
        std::thread::sleep(Duration::from_millis(1));
        made.fake.post(made.success(added.id, length));
        drop(made.buffer_event());
    }
    let added = made.add(queue);
    made.fake.post(Completion::new(added.id, Err(Errno::Io), 0));
    drop(made.buffer_event());
    made.add(QueueType::Send);
    let one = made.tm.stats(queue, false).unwrap();
    assert_eq!((counts(&one), one.total_bytes, one.max_bytes), ((4, 0, 3, 1), 60, 30));
    assert!(one.time_in_queue >= Duration::from_millis(3));
    let all = made.tm.all_stats(true).unwrap();
    assert_eq!((all[queue as usize], counts(&all[QueueType::Send as usize])), (one, (1, 0, 0, 0)));
    assert_eq!(made.tm.all_stats(false).unwrap(), [QueueStats::default(); 6]);
    made.end();
}

#[test]
fn if_16_a_buffer_that_is_not_queued_is_not_deleted() {
    let mut made = Made::started();
    let added = made.add(QueueType::Receive);
    made.fake.post(made.success(added.id, 1));
    drop(made.buffer_event());
    made.stats(QueueType::Receive);
    assert!(!made.tm.del(added.id));
    assert_eq!(made.stats(QueueType::Receive), QueueStats::default());
    assert!(made.events.try_next().is_none());
    made.end();
}

#[test]
fn if_17_a_refused_addition_changes_nothing() {
    let mut made = Made::started();
    made.fake.plan(|plan| plan.refuse_add = Some(Errno::NoMemory));
    for queue in QueueType::ALL {
        let refused = made.tm.add(made.buffer(), made.operation(queue)).unwrap_err();
        assert_eq!(refused.error.errno(), Errno::NoMemory);
        assert_eq!((made.tm.queue_length(queue), made.stats(queue)), (0, QueueStats::default()));
    }
    assert!(made.events.try_next().is_none());
    assert_eq!(made.tm.end_point_addresses(), ["own"]);
    made.end();
}

#[test]
fn if_18_each_precondition_is_checked() {
    let made = Made::started();
    let strange = Made::started();
    let size = SIZE as u64;
    let strange_end_point = || strange.tm.create_end_point("peer").unwrap();
    let desc = || BulkDescriptor::default();
    let wrong = [
        Operation::Receive { min_receive_bytes: 0, max_messages: 1 },
        Operation::Receive { min_receive_bytes: size + 1, max_messages: 1 },
        Operation::Receive { min_receive_bytes: 1, max_messages: 0 },
        Operation::Send { to: made.tm.create_end_point("peer").unwrap(), length_bytes: 0 },
        Operation::Send { to: made.tm.create_end_point("peer").unwrap(), length_bytes: size + 1 },
        Operation::Send { to: strange_end_point(), length_bytes: 1 },
        Operation::PassiveSend { initiator: None, length_bytes: 0 },
        Operation::PassiveSend { initiator: Some(strange_end_point()), length_bytes: 1 },
        Operation::PassiveReceive { initiator: Some(strange_end_point()) },
        Operation::ActiveSend { to: desc(), length_bytes: size + 1 },
    ];
    for operation in wrong {
        let queue = operation.queue();
        let text = format!("{operation:?}");
        let refused = made.tm.add(made.buffer(), operation).unwrap_err();
        assert_eq!(refused.error.errno(), Errno::Invalid, "{text}");
        assert_eq!((made.tm.queue_length(queue), made.stats(queue)), (0, QueueStats::default()), "{text}");
    }
    let refused = made.tm.add(strange.buffer(), made.operation(QueueType::Receive)).unwrap_err();
    assert_eq!(refused.error.errno(), Errno::Invalid, "another domain's buffer");
    assert!(made.fake.calls().iter().all(|call| !call.starts_with("add")));
    drop(refused);
    strange.end();

    let other = Made::of(Fake::default());
    let refused = other.tm.add(other.buffer(), made.operation(QueueType::ActiveSend)).unwrap_err();
    assert_eq!(refused.error.errno(), Errno::NotPermitted, "not started");
    assert_eq!(refused.to_string(), refused.error.to_string());
    other.tm.finish().unwrap();
    made.end();
}

/// Does in its callback what an application may.
struct Busybody {
    deleted: Mutex<Option<BufferId>>,
    done: Mutex<Sender<bool>>,
}

impl Handler for Busybody {
    fn buffer_event(&self, tm: &TransferMachine, event: BufferEvent) {
        let is_first = event.status.is_ok();
        if is_first {
            let end_point = tm.create_end_point("other").unwrap();
            drop(end_point);
            let added = tm.add(event.into_buffer().unwrap(), Operation::PassiveReceive { initiator: None });
            let other = self.deleted.lock().unwrap().replace(added.unwrap().id);
            assert!(other.is_none_or(|other| tm.del(other)));
        }
        tm.all_stats(false).unwrap();
        assert_eq!(tm.finish().unwrap_err().errno(), Errno::NotPermitted);
        let _ = self.done.lock().unwrap().send(is_first);
    }
}

#[test]
fn if_20_a_callback_may_call_the_layer() {
    let fake = Fake::default();
    let domain = fake.domain();
    let (done, told) = channel();
    let busybody = Busybody { deleted: Mutex::default(), done: Mutex::new(done) };
    let tm = TransferMachine::new(&domain, Arc::new(busybody)).unwrap();
    tm.start("own").unwrap();
    await_state(&tm, TmState::Started);
    for _ in 0..2 {
        let buffer = domain.allocate(1, SIZE).unwrap();
        let added = tm.add(buffer, Operation::PassiveReceive { initiator: None }).unwrap();
        fake.post(Completion::new(added.id, Ok(()), 1));
    }
    // Two successes, and the buffer that the second callback deleted.
    let told_so_far: Vec<bool> = (0..3).map(|_| told.recv().unwrap()).collect();
    assert_eq!(told_so_far.iter().filter(|is_first| **is_first).count(), 2);
    tm.stop(StopMode::Abort).unwrap();
    assert!(!told.recv().unwrap());
    await_state(&tm, TmState::Stopped);
    fake.plan(|plan| plan.link = None);
    tm.finish().unwrap();
    assert_eq!(domain.buffer_count(), 0);
}

/// A callback that finishes its own transfer machine would wait for itself.
#[test]
fn a_callback_does_not_finish_its_transfer_machine_and_finish_waits_for_it() {
    let mut made = Made::started();
    let (in_callback, entered) = channel();
    let (go, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let callback = Callback::new(move |tm, event| {
        in_callback.send(()).unwrap();
        gate.lock().unwrap().recv().unwrap();
        // The transport has failed meanwhile.
        assert_eq!(tm.finish().unwrap_err().errno(), Errno::Busy);
        drop(event);
    });
    let addition = Addition::from(made.operation(QueueType::Receive)).callback(&callback);
    let added = made.tm.add(made.buffer(), addition).unwrap();
    let (link, success) = (made.fake.link(), made.success(added.id, 1));
    let poster = std::thread::spawn(move || link.post(success));
    entered.recv().unwrap();
    made.fake.link().report(Report::Failed(Errno::Io));
    made.tm_event();
    let tm = made.tm.clone();
    let finisher = std::thread::spawn(move || tm.finish());
    assert_eq!(made.tm.state(), TmState::Failed);
    go.send(()).unwrap();
    poster.join().unwrap();
    made.fake.plan(|plan| plan.link = None);
    finisher.join().unwrap().unwrap();
    assert_eq!(made.tm.state(), TmState::Undefined);
}

#[test]
fn deadlines_end_what_is_not_in_use() {
    let mut made = Made::started();
    let deadline = Instant::now() + Duration::from_secs(3600);
    let add = |queue| {
        let addition = Addition::from(made.operation(queue)).deadline(deadline);
        made.tm.add(made.buffer(), addition).unwrap().id
    };
    let (late, moving) = (add(QueueType::Receive), add(QueueType::PassiveReceive));
    let never = made.add(QueueType::PassiveSend).id;
    let link = made.fake.link();
    link.with_front(|front| front.queued(moving).unwrap().flags.in_use = true);
    assert_eq!(link.expire(deadline - Duration::from_nanos(1)), 0);
    assert_eq!(link.expire(deadline), 1);
    let event = made.buffer_event();
    assert_eq!((event.id, event.status), (late, Err(Errno::TimedOut)));
    drop(event);
    assert_eq!(link.with_front(|front| front.next_deadline()), None);
    assert_eq!(counts(&made.stats(QueueType::Receive)), (1, 0, 0, 1), "no del");
    assert!(made.tm.queued(moving).is_some() && made.tm.queued(never).is_some());
    made.fake.post(made.success(moving, 3));
    assert_eq!(made.buffer_event().status, Ok(()));
    made.end();
}
