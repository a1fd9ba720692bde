//! Receive queues that are filled from a pool.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::fake::{Fake, Ignore, PATIENCE, await_state};
use super::pools::SPEC;
use crate::QueueType::Receive;
use crate::transport::{Completion, Outcome, TmLink};
use crate::{
    Attachment, BufferEvent, BufferId, Callback, Domain, Errno, Handler, LockedPool, Operation, Pool,
    PoolHandler, PoolSpec, StopMode, TmEvent, TmState, TransferMachine,
};

/// Counts the times that the pool was not empty any more, and has transfer machines provisioned.
#[derive(Default)]
struct Count(AtomicUsize);

impl PoolHandler for Count {
    fn not_empty(&self, pool: &mut LockedPool<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        pool.reprovision();
    }
}

struct Setup {
    fake: Fake,
    domain: Domain,
    pool: Pool,
    count: Arc<Count>,
}

impl Setup {
    fn new(buffers: usize) -> Self {
        let fake = Fake::default();
        let domain = fake.domain();
        let count = Arc::new(Count::default());
        let pool = Pool::new(&domain, SPEC, count.clone()).unwrap();
        assert_eq!(pool.lock().provision(buffers), buffers);
        Self { fake, domain, pool, count }
    }

    fn attachment(&self) -> Attachment {
        // Buffers come back as soon as they have ended.
        let callback = Callback::new(|tm, event: BufferEvent| give_back(event, tm.colour()));
        let pool = self.pool.clone();
        Attachment { pool, min_receive_bytes: 16, max_messages: 3, callback: Some(callback) }
    }

    /// A started transfer machine with a queue of this length, and how its transport reaches it.
    fn start(&self, length: usize, colour: Option<usize>) -> (TransferMachine, TmLink) {
        let tm = TransferMachine::new(&self.domain, Arc::new(Ignore)).unwrap();
        tm.attach_pool(self.attachment(), length).unwrap();
        tm.set_colour(colour).unwrap();
        tm.start(&format!("{colour:?}")).unwrap();
        await_state(&tm, TmState::Started);
        (tm, self.fake.link())
    }

    fn free(&self) -> usize {
        self.pool.lock().free_count()
    }

    fn end(self, tms: Vec<TransferMachine>) {
        self.fake.plan(|plan| plan.link = None);
        for tm in tms {
            tm.stop(StopMode::Abort).unwrap();
            await_state(&tm, TmState::Stopped);
            tm.finish().unwrap();
        }
        self.pool.finish().unwrap();
    }
}

fn give_back(event: BufferEvent, colour: Option<usize>) {
    if let Some(buffer) = event.into_buffer() {
        buffer.put_back(colour).unwrap();
    }
}

fn queue(link: &TmLink) -> Vec<BufferId> {
    link.with_front(|front| front.queue(Receive).map(|(id, _)| id).collect())
}

/// Length of the receive queue, and the deficit.
fn provided(tm: &TransferMachine) -> (usize, usize) {
    (tm.queue_length(Receive), tm.deficit())
}

#[test]
fn pv_01_pools_lengths_and_colours_are_set() {
    let setup = Setup::new(0);
    let tm = TransferMachine::new(&setup.domain, Arc::new(Ignore)).unwrap();
    assert_eq!(tm.colour(), None);
    tm.set_colour(Some(3)).unwrap();
    assert_eq!(tm.colour(), Some(3));
    let other = Setup::new(0);
    assert_eq!(tm.attach_pool(other.attachment(), 2).unwrap_err().errno(), Errno::Invalid);
    for (min_receive_bytes, max_messages) in [(0, 1), (1, 0)] {
        let attachment = Attachment { min_receive_bytes, max_messages, ..setup.attachment() };
        assert_eq!(tm.attach_pool(attachment, 2).unwrap_err().errno(), Errno::Invalid);
    }
    tm.attach_pool(setup.attachment(), 2).unwrap();
    tm.set_receive_queue_length(5).unwrap();
    tm.start("own").unwrap();
    await_state(&tm, TmState::Started);
    assert_eq!(provided(&tm), (0, 5));
    assert_eq!(tm.attach_pool(setup.attachment(), 2).unwrap_err().errno(), Errno::NotPermitted);
    tm.set_receive_queue_length(0).unwrap();
    assert_eq!(provided(&tm), (0, 2), "two at least");
    tm.stop(StopMode::Drain).unwrap();
    await_state(&tm, TmState::Stopped);
    assert_eq!(tm.set_colour(None).unwrap_err().errno(), Errno::NotPermitted);
    assert_eq!(tm.set_receive_queue_length(3).unwrap_err().errno(), Errno::NotPermitted);
    setup.fake.plan(|plan| plan.link = None);
    tm.finish().unwrap();
}

/// Tells the length of the receive queue in the callback of the start.
struct Length(Mutex<Sender<usize>>);

impl Handler for Length {
    fn tm_event(&self, tm: &TransferMachine, event: &TmEvent) {
        if matches!(event, TmEvent::StateChange { state: TmState::Started, .. }) {
            self.0.lock().unwrap().send(tm.queue_length(Receive)).unwrap();
        }
    }
}

#[test]
fn pv_02_the_queue_is_filled_behind_the_callback_of_the_start() {
    let setup = Setup::new(8);
    let (told, length) = channel();
    let tm = TransferMachine::new(&setup.domain, Arc::new(Length(Mutex::new(told)))).unwrap();
    tm.attach_pool(setup.attachment(), 0).unwrap();
    tm.start("own").unwrap();
    assert_eq!(length.recv().unwrap(), 0);
    await_state(&tm, TmState::Started);
    assert_eq!((provided(&tm), setup.free()), ((2, 0), 6));
    setup.end(vec![tm]);
}

#[test]
fn pv_03_to_pv_06_a_pool_serves_two_transfer_machines() {
    let setup = Setup::new(8);
    let (one, _) = setup.start(4, Some(1));
    assert_eq!((provided(&one), setup.free()), ((4, 0), 4));
    one.stats(Receive, true).unwrap();
    one.set_receive_queue_length(10).unwrap();
    assert_eq!((provided(&one), setup.free()), ((8, 2), 0));
    assert_eq!(one.stats(Receive, false).unwrap().num_f_events, 2, "the deficit has grown by two");

    let before = setup.count.0.load(Ordering::Relaxed);
    setup.pool.lock().provision(2);
    assert!(setup.count.0.load(Ordering::Relaxed) > before);
    assert_eq!((provided(&one), setup.free()), ((10, 0), 0));

    let (two, _) = setup.start(2, Some(2));
    assert_eq!(provided(&two), (0, 2));
    one.set_receive_queue_length(13).unwrap();
    assert_eq!(provided(&one), (10, 3));
    setup.pool.lock().provision(6);
    assert_eq!((provided(&one), provided(&two), setup.free()), ((13, 0), (2, 0), 1));
    setup.end(vec![one, two]);
}

#[test]
fn pv_07_a_buffer_that_ends_is_made_up_for_before_its_callback() {
    let setup = Setup::new(4);
    let tm = TransferMachine::new(&setup.domain, Arc::new(Ignore)).unwrap();
    let (told, lengths) = channel();
    let callback = Callback::new(move |tm: &TransferMachine, event: BufferEvent| {
        told.send(tm.queue_length(Receive)).unwrap();
        give_back(event, tm.colour());
    });
    tm.attach_pool(Attachment { callback: Some(callback), ..setup.attachment() }, 3).unwrap();
    tm.set_colour(Some(5)).unwrap();
    tm.start("own").unwrap();
    await_state(&tm, TmState::Started);
    let link = setup.fake.link();
    let first = queue(&link)[0];
    tm.look_at(first, |buffer, _| buffer.user_data = 9);
    assert!(tm.del(first));
    assert_eq!(lengths.recv().unwrap(), 3);
    await_state(&tm, TmState::Started);
    assert_eq!((provided(&tm), setup.free()), ((3, 0), 1));
    let back = setup.pool.lock().get(Some(5)).unwrap();
    assert_eq!(back.user_data, 9, "with the colour of the transfer machine");
    setup.pool.lock().put(back, Some(5)).unwrap();
    drop(link);
    setup.end(vec![tm]);
}

#[test]
fn pv_08_each_transfer_machine_gets_its_own_buffer_again() {
    for order in [[0, 1], [1, 0]] {
        let setup = Setup::new(6);
        let (tms, links): (Vec<_>, Vec<_>) =
            [Some(1), Some(2)].into_iter().map(|colour| setup.start(2, colour)).unzip();
        // A buffer of each colour comes back, when none else is free.
        let mut pool = setup.pool.lock();
        let mut out: Vec<_> = std::iter::from_fn(|| pool.get(None)).collect();
        drop(pool);
        assert_eq!(out.len(), 2);
        for (buffer, colour) in out.iter_mut().zip([1, 2]) {
            buffer.user_data = colour;
        }
        for (buffer, colour) in out.into_iter().zip([Some(1), Some(2)]) {
            setup.pool.lock().put(buffer, colour).unwrap();
        }
        for index in order {
            tms[index].set_receive_queue_length(3).unwrap();
            let colour = |id| tms[index].look_at(id, |buffer, _| buffer.user_data);
            let colours: Vec<u64> = queue(&links[index]).into_iter().map(colour).collect();
            assert_eq!(colours, [0, 0, index as u64 + 1]);
        }
        drop(links);
        setup.end(tms);
    }
}

#[test]
fn pv_09_what_one_returns_when_it_stops_another_one_gets() {
    let setup = Setup::new(12);
    let (one, _) = setup.start(10, Some(1));
    let (two, _) = setup.start(12, Some(2));
    assert_eq!((provided(&one), provided(&two)), ((10, 0), (2, 10)));
    let before = setup.count.0.load(Ordering::Relaxed);
    one.stop(StopMode::Abort).unwrap();
    await_state(&one, TmState::Stopped);
    assert!(setup.count.0.load(Ordering::Relaxed) > before);
    assert_eq!((provided(&one), provided(&two), setup.free()), ((0, 0), (12, 0), 0));
    setup.fake.plan(|plan| plan.link = None);
    one.finish().unwrap();
    setup.end(vec![two]);
}

#[test]
fn pv_10_and_pv_11_buffers_are_added_as_attached_and_retained_ones_are_not_made_up_for() {
    let setup = Setup::new(4);
    let (tm, link) = setup.start(2, None);
    link.with_front(|front| {
        for (_, queued) in front.queue(Receive) {
            let Operation::Receive { min_receive_bytes: 16, max_messages: 3 } = queued.operation() else {
                panic!("{:?}", queued.operation());
            };
            assert!(queued.deadline().is_none());
        }
    });
    for id in queue(&link) {
        tm.look_at(id, |buffer, callback| {
            assert_eq!(buffer.pool(), Some(&setup.pool));
            assert!(callback.is_some());
        });
    }
    let id = queue(&link)[0];
    setup.fake.calls();
    let end_point = Some(link.end_point("sender"));
    let outcome = Outcome::Retained(Box::new(()));
    let message = Completion { end_point, outcome, ..Completion::new(id, Ok(()), 4) };
    setup.fake.post_at(&link, message);
    assert!(setup.fake.calls().is_empty());
    assert_eq!((provided(&tm), setup.free()), ((2, 0), 2));
    setup.fake.post_at(&link, Completion::new(id, Err(Errno::Io), 0));
    assert_eq!(setup.fake.calls(), ["add Receive"]);
    drop(link);
    setup.end(vec![tm]);
}

/// A transfer machine that lacks nothing is not locked: it would wait for this test.
#[test]
fn pv_12_a_transfer_machine_without_a_deficit_is_left_alone() {
    let setup = Setup::new(2);
    let (one, link) = setup.start(2, None);
    let (two, _) = setup.start(2, None);
    assert_eq!((provided(&one), provided(&two)), ((2, 0), (0, 2)));
    let (locked, is_locked) = channel();
    let (go, gate) = channel::<()>();
    let holder = {
        let link = link.clone();
        std::thread::spawn(move || {
            link.with_front(|_| {
                locked.send(()).unwrap();
                gate.recv().unwrap();
            });
        })
    };
    is_locked.recv().unwrap();
    setup.pool.lock().provision(2);
    assert_eq!(provided(&two), (2, 0));
    go.send(()).unwrap();
    holder.join().unwrap();
    drop(link);
    setup.end(vec![one, two]);
}

#[test]
fn pv_13_pools_stops_and_lengths_do_not_wait_for_each_other() {
    const ROUNDS: usize = 20;
    let setup = Setup::new(10);
    std::thread::scope(|scope| {
        for index in 0..4 {
            let setup = &setup;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let tm = TransferMachine::new(&setup.domain, Arc::new(Ignore)).unwrap();
                    tm.attach_pool(setup.attachment(), 2 + round % 3).unwrap();
                    tm.set_colour(Some(index)).unwrap();
                    // The fake tells of one link at a time; this one is taken in the callback.
                    tm.start("own").unwrap();
                    await_state(&tm, TmState::Started);
                    for length in [3, 5, 2] {
                        tm.set_receive_queue_length(length).unwrap();
                        // The order matters: a pass that comes between the two makes the sum larger.
                        let deficit = tm.deficit();
                        let queued = tm.queue_length(Receive);
                        assert!(queued + deficit >= length, "{queued} + {deficit} < {length}");
                    }
                    tm.stop(StopMode::Abort).unwrap();
                    await_state(&tm, TmState::Stopped);
                    setup.fake.plan(|plan| plan.link = None);
                    tm.finish().unwrap();
                }
            });
        }
    });
    let begun = Instant::now();
    while setup.free() != 10 {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    setup.end(Vec::new());
}

/// Makes the pool larger whenever it is short.
struct Grow;

impl PoolHandler for Grow {
    fn below_threshold(&self, pool: &mut LockedPool<'_>) {
        if pool.total() < 20 {
            pool.provision(2);
        }
    }
}

/// The handler is called while transfer machines are provisioned, and needs the lock of the domain.
#[test]
fn a_pool_grows_while_transfer_machines_are_provisioned() {
    let setup = Setup::new(0);
    let pool = Pool::new(&setup.domain, SPEC, Arc::new(Grow)).unwrap();
    let tm = TransferMachine::new(&setup.domain, Arc::new(Ignore)).unwrap();
    tm.attach_pool(Attachment { pool: pool.clone(), ..setup.attachment() }, 6).unwrap();
    tm.start("own").unwrap();
    await_state(&tm, TmState::Started);
    assert_eq!(provided(&tm), (0, 6));
    let (done, is_done) = channel();
    let grown = pool.clone();
    std::thread::spawn(move || {
        grown.lock().provision(1);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(PATIENCE).expect("nothing waits for itself");
    assert_eq!(provided(&tm), (6, 0));
    setup.end(vec![tm]);
    pool.finish().unwrap();
}

/// A buffer of the pool that the program drops is the pool's no longer.
#[test]
fn a_buffer_that_is_dropped_leaves_its_pool() {
    let setup = Setup::new(3);
    let mut pool = setup.pool.lock();
    let (dropped, deregistered) = (pool.get(None).unwrap(), pool.get(None).unwrap());
    drop(dropped);
    drop(deregistered.deregister());
    assert_eq!((pool.free_count(), pool.total()), (1, 1));
    drop(pool);
    setup.end(Vec::new());
}

/// Each buffer of a burst is looked at by itself: one that is too short for a message goes back, and the
/// others are queued.
#[test]
fn a_buffer_that_is_too_short_does_not_keep_the_others_out() {
    let setup = Setup::new(5);
    let short = setup.domain.allocate(1, 8).unwrap();
    let (tm, _) = setup.start(2, None);
    let mut pool = setup.pool.lock();
    pool.put(short, None).unwrap();
    drop(pool);
    tm.stats(Receive, true).unwrap();
    tm.set_receive_queue_length(6).unwrap();
    assert_eq!((provided(&tm), setup.free()), ((5, 1), 1));
    let stats = tm.stats(Receive, false).unwrap();
    assert_eq!((stats.num_adds, stats.num_f_events), (3, 1));
    setup.end(vec![tm]);
}

/// Counts how often the pool was too small.
#[derive(Default)]
struct CountLow(AtomicUsize);

impl PoolHandler for CountLow {
    fn below_threshold(&self, _: &mut LockedPool<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Each buffer that a queue gets and that leaves fewer than the threshold is told once; one that is refused
/// is not.
#[test]
fn a_buffer_that_is_refused_does_not_make_the_pool_too_small() {
    let setup = Setup::new(0);
    let count = Arc::new(CountLow::default());
    let spec = PoolSpec { threshold: 3, ..SPEC };
    let pool = Pool::new(&setup.domain, spec, count.clone()).unwrap();
    assert_eq!(pool.lock().provision(4), 4);
    for _ in 0..2 {
        // Too short for a message.
        let short = setup.domain.allocate(1, 8).unwrap();
        pool.lock().put(short, None).unwrap();
    }
    let tm = TransferMachine::new(&setup.domain, Arc::new(Ignore)).unwrap();
    tm.attach_pool(Attachment { pool: pool.clone(), ..setup.attachment() }, 2).unwrap();
    tm.start("own").unwrap();
    await_state(&tm, TmState::Started);
    let told = || count.0.swap(0, Ordering::Relaxed);
    assert_eq!((provided(&tm), told()), ((2, 0), 0), "four are left");
    tm.set_receive_queue_length(6).unwrap();
    assert_eq!((provided(&tm), told()), ((4, 2), 1), "three and then two are left");
    setup.end(vec![tm]);
    pool.finish().unwrap();
}

#[test]
fn pv_14_an_addition_that_fails_gives_the_buffer_back() {
    let setup = Setup::new(4);
    let (tm, _) = setup.start(2, Some(3));
    tm.stats(Receive, true).unwrap();
    let before = setup.count.0.load(Ordering::Relaxed);
    setup.fake.plan(|plan| plan.refuse_add = Some(Errno::NoMemory));
    tm.set_receive_queue_length(4).unwrap();
    assert_eq!((provided(&tm), setup.free()), ((2, 2), 2));
    assert_eq!(tm.stats(Receive, false).unwrap().num_f_events, 2);
    assert_eq!(setup.count.0.load(Ordering::Relaxed), before);
    setup.fake.plan(|plan| plan.refuse_add = None);
    tm.set_receive_queue_length(4).unwrap();
    assert_eq!((provided(&tm), setup.free()), ((4, 0), 0));
    setup.end(vec![tm]);
}
