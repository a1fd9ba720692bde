//! Shards that sleep and must not, or must not sleep and do: everything that is to be done is done at once,
//! and what cannot be done keeps no thread awake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lnet_core::event::{Event, EventKind};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_io::xsk::RingSizes;
use lnet_tests::netns::{Netns, Wiring, ip, wait_until};
use lnet_tests::node::{
    By, Driven, PINNED_PORTALS, PUT_BYTES, Putter, Receiver, config, losses, nid_v4, process, settle, start,
    stop_all, try_start,
};
use lnet_user::Buffer;
use lnet_user::Waker;
use lnet_user::node::{LndError, NodeConfig, NodeDriver, NodeError, XdpError};
use lnet_user::runtime::{Idle, ShardThread, Worker};
use lnet_wire::ProcessId;
use rustix::time::{ClockId, clock_gettime};

use crate::privileged;

/// What is done at once is done within this.
pub(crate) const PROMPT: Duration = Duration::from_secs(1);
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Puts that each [`Joined`] begins with.
const FIRST_PUTS: u32 = 8;
const NO_SPIN: Idle = Idle::new(Duration::ZERO);

/// A node that receives, driven by threads of its own, and one whose shards are for the test.
pub(crate) struct Joined {
    pub(crate) sources: Vec<Worker>,
    receivers: Vec<Driven<Receiver>>,
    pub(crate) target: ProcessId,
    pub(crate) nodes: [NodeDriver; 2],
    netns: Netns,
}

impl Joined {
    pub(crate) fn new(queues: u16) -> Self {
        Self::over(Netns::new(Wiring { queues, ..Wiring::default() }), None)
    }

    /// Nodes of two shards each, with one queue that one of them owns.
    fn with_few_frames() -> Self {
        let rings = RingSizes { fill: 64, completion: 64, rx: 64, tx: 64 };
        Self::over(Netns::new(Wiring { queues: 1, ..Wiring::default() }), Some(rings))
    }

    fn over(netns: Netns, rings: Option<RingSizes>) -> Self {
        let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
        let with_rings = |config: NodeConfig| {
            let rings = rings.unwrap_or(config.xdp.rings);
            config.rings(rings)
        };
        let (source, mut sources) = start(netns.a(), &with_rings(config(netns.a(), a)));
        let (target, targets) = start(netns.b(), &with_rings(config(netns.b(), b)));
        let receivers = targets
            .into_iter()
            .zip(PINNED_PORTALS)
            .map(|(mut worker, portal)| {
                let receiver = Receiver::post(&mut worker, portal);
                Driven::start(By::ShardThread, worker, receiver, |worker, receiver: &mut Receiver| {
                    receiver.turn(worker);
                })
            })
            .collect();
        // Next hops are known from here on, both ways and to every shard.
        exchange(&mut sources, process(b), FIRST_PUTS / 2, 2);
        settle(&mut sources, PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
        Self { sources, receivers, target: process(b), nodes: [source, target], netns }
    }

    pub(crate) fn link(&self, state: &str) {
        let name = &self.netns.a().interface().name;
        ip(self.netns.a(), &format!("link set dev {name} {state}"));
    }

    /// Puts that arrived, without those of the beginning.
    fn end(self) -> u32 {
        let (_, receivers) = stop_all(self.receivers);
        receivers.iter().map(|receiver| receiver.arrived).sum::<u32>() - FIRST_PUTS
    }
}

pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time that a shard's thread has taken.
pub(crate) fn thread_cpu_time<S: Send + 'static>(thread: &ShardThread<S>) -> Duration {
    let path = format!("/proc/self/task/{}/schedstat", thread.thread_id());
    let text = std::fs::read_to_string(path).unwrap();
    let time_ns = text.split(' ').next().and_then(|time_ns| time_ns.parse().ok());
    Duration::from_nanos(time_ns.unwrap_or_else(|| panic!("{text}")))
}

/// CPU time that the shard's thread takes in `span`.
pub(crate) fn cpu_time_of<S: Send + 'static>(thread: &ShardThread<S>, span: Duration) -> Duration {
    let before = thread_cpu_time(thread);
    std::thread::sleep(span);
    thread_cpu_time(thread) - before
}

pub(crate) fn spawn_putter(mut worker: Worker, target: ProcessId) -> ShardThread<Putter> {
    let putter = Putter::new(target, &mut worker);
    ShardThread::spawn(worker, None, NO_SPIN, putter, |worker, putter| putter.turn(worker)).unwrap()
}

#[test]
fn a_wait_after_a_put_returns_at_once() {
    if !privileged() {
        return;
    }
    let mut joined = Joined::new(2);
    let worker = &mut joined.sources[1];
    let mut putter = Putter::new(joined.target, worker);
    while worker.progress() {}
    let sent = worker.xdp().expect("there is an NI").counters().frames_sent;
    putter.put(worker, PINNED_PORTALS[0], true);
    let begun = Instant::now();
    worker.wait(Some(Duration::from_secs(5))).unwrap();
    assert!(begun.elapsed() < PROMPT, "slept for {:?} with a message to send", begun.elapsed());
    assert!(worker.progress());
    assert_eq!(worker.xdp().expect("there is an NI").counters().frames_sent, sent + 1);
    assert!(putter.drive_to_end(worker, PROMPT), "{putter:?}");
    assert_eq!(joined.end(), 1);
}

/// Has a shard's thread put, out of a turn that has nothing else to do, and knows what came of it.
struct OnDemand {
    wanted: Arc<AtomicBool>,
    acked: Arc<AtomicU32>,
    thread: ShardThread<Putter>,
    waker: Waker,
}

impl OnDemand {
    fn spawn(worker: Worker, putter: Putter) -> Self {
        let waker = worker.waker();
        let (wanted, acked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(putter.acked)));
        let (puts, counts) = (Arc::clone(&wanted), Arc::clone(&acked));
        let turn = move |worker: &mut Worker, putter: &mut Putter| {
            putter.turn(worker);
            counts.store(putter.acked, Ordering::Release);
            if puts.swap(false, Ordering::AcqRel) {
                putter.put(worker, PINNED_PORTALS[1], true);
            }
        };
        let thread = ShardThread::spawn(worker, None, NO_SPIN, putter, turn).unwrap();
        Self { wanted, acked, thread, waker }
    }

    fn put(&self) {
        let acked = self.acked.load(Ordering::Acquire);
        self.wanted.store(true, Ordering::Release);
        self.waker.wake();
        wait_until("the Put is acknowledged", PROMPT, || self.acked.load(Ordering::Acquire) == acked + 1);
    }
}

#[test]
fn a_turn_that_puts_when_there_was_nothing_to_do() {
    if !privileged() {
        return;
    }
    let mut joined = Joined::new(2);
    let mut worker = joined.sources.remove(0);
    let putter = Putter::new(joined.target, &mut worker);
    let on_demand = OnDemand::spawn(worker, putter);
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(10));
        on_demand.put();
    }
    drop(on_demand.thread.stop().unwrap());
}

/// Each turn takes an event and makes one: as many wait as before, and still there is something to do.
#[test]
fn a_turn_that_takes_an_event_and_causes_another() {
    if !privileged() {
        return;
    }
    const COUNT: u32 = 100;
    let mut joined = Joined::new(2);
    let mut worker = joined.sources.remove(0);
    let queue = worker.create_event_queue(2 * COUNT).unwrap();
    let spec = MdSpec::new(8, Threshold::Count(1), MdOptions::NONE, queue);
    let bound: Vec<_> = (0..COUNT).map(|_| worker.bind(&spec, Buffer::zeroed(8)).unwrap()).collect();
    let taken = Arc::new(AtomicU32::new(0));
    let takes = Arc::clone(&taken);
    let turn = move |worker: &mut Worker, bound: &mut Vec<_>| {
        while let Some(delivery) = worker.poll_event(queue) {
            assert_eq!(delivery.event.kind(), EventKind::Unlink);
            takes.fetch_add(1, Ordering::AcqRel);
        }
        if let Some(md) = bound.pop() {
            worker.unlink(md).unwrap();
        }
    };
    let thread = ShardThread::spawn(worker, None, NO_SPIN, bound, turn).unwrap();
    wait_until("all events are taken", PROMPT, || taken.load(Ordering::Acquire) == COUNT);
    drop(thread.stop().unwrap());
}

/// The owner of the only queue has nothing to do but what its sibling sends.
#[test]
fn a_siblings_puts_on_the_queue_of_a_sleeping_shard() {
    if !privileged() {
        return;
    }
    let mut joined = Joined::new(1);
    let mut worker = joined.sources.pop().unwrap();
    let owner = spawn_putter(joined.sources.pop().unwrap(), joined.target);
    let mut putter = Putter::new(joined.target, &mut worker);
    for number in 1..=50 {
        std::thread::sleep(Duration::from_millis(3));
        putter.put(&mut worker, PINNED_PORTALS[number as usize % 2], number % 3 != 0);
        let sent = putter.drive_until(&mut worker, PROMPT, |putter| putter.sent == number);
        assert!(sent, "no SEND event within {PROMPT:?}: {putter:?}");
        assert!(putter.drive_to_end(&mut worker, PROMPT), "{putter:?}");
        assert_eq!(worker.usage().messages, 0, "credits are out");
    }
    assert_eq!((putter.acked, putter.failed), (34, 0));
    let (owner, _) = owner.stop().unwrap();
    assert_eq!(owner.usage().messages, 0);
}

/// `count` Puts with an acknowledgement from each shard, all driven here in turn.
fn exchange(workers: &mut [Worker], target: ProcessId, count: u32, window: u32) -> Vec<Putter> {
    let mut putters: Vec<_> = workers.iter_mut().map(|worker| Putter::new(target, worker)).collect();
    let begun = Instant::now();
    while putters.iter().any(|putter| putter.ended < count) {
        for (putter, worker) in putters.iter_mut().zip(&mut *workers) {
            worker.progress();
            putter.turn(worker);
            while putter.started < count && putter.under_way() < window {
                putter.put(worker, PINNED_PORTALS[putter.started as usize % 2], true);
            }
        }
        assert!(begun.elapsed() < 2 * PATIENCE, "{putters:?}");
    }
    putters
}

#[test]
fn fewer_transmit_queues_than_receive_queues() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    netns.replace_rail([2, 1], [2, 2]);
    let mut joined = Joined::over(netns, None);
    for putter in exchange(&mut joined.sources, joined.target, 250, 16) {
        assert_eq!((putter.sent, putter.acked, putter.failed), (250, 250, 0));
    }
    assert_eq!(joined.end(), 500);
}

#[test]
fn few_receive_frames_for_several_shards() {
    if !privileged() {
        return;
    }
    let mut joined = Joined::with_few_frames();
    for putter in exchange(&mut joined.sources, joined.target, 10_000, 8) {
        assert_eq!((putter.sent, putter.acked, putter.failed), (10_000, 10_000, 0));
    }
    assert_eq!(joined.end(), 20_000);
}

/// The target's shard 1 receives and sends nothing, and every frame belongs into a fill ring that its
/// sleeping sibling owns: the sibling is woken for them before the ring is empty.
#[test]
fn frames_of_a_sleeping_owner_come_home_in_time() {
    if !privileged() {
        return;
    }
    const BATCH: u32 = 8;
    let mut joined = Joined::with_few_frames();
    let mut worker = joined.sources.remove(0);
    let Driven::ShardThread(receiver) = &mut joined.receivers[1] else { panic!("a thread of its own") };
    let arrived = || receiver.call(|worker| worker.counters().received.messages).unwrap();
    let before = arrived();
    let mut putter = Putter::new(joined.target, &mut worker);
    for batch in 1..=50 {
        for _ in 0..BATCH {
            putter.put(&mut worker, PINNED_PORTALS[1], false);
        }
        assert!(putter.drive_to_end(&mut worker, PROMPT), "{putter:?}");
        wait_until("the Puts have arrived", PROMPT, || arrived() - before == batch * u64::from(BATCH));
    }
    assert_eq!(joined.end(), 50 * BATCH);
}

/// The owner of the only fill ring gets no CPU, and its sibling uses up what is there: frames are dropped, no
/// message is lost or doubled, and nothing else is counted as lost.
#[test]
fn an_owner_that_is_not_scheduled() {
    if !privileged() {
        return;
    }
    let mut joined = Joined::with_few_frames();
    let mut worker = joined.sources.remove(0);
    let (mut owner, mut receiver) = joined.receivers.remove(0).stop();
    let Driven::ShardThread(sibling) = &mut joined.receivers[0] else { panic!("a thread of its own") };
    let dropped = || {
        let rings =
            sibling.call(|worker| worker.xdp().expect("there is an NI").ring_statistics().unwrap()).unwrap();
        rings.iter().map(|ring| ring.rx_dropped).sum::<u64>()
    };
    let mut putter = Putter::new(joined.target, &mut worker);
    wait_until("the fill ring is empty", PATIENCE, || {
        while putter.under_way() < 8 {
            putter.put(&mut worker, PINNED_PORTALS[1], true);
        }
        worker.progress();
        putter.turn(&mut worker);
        dropped() != 0
    });
    wait_until("all Puts end", PATIENCE, || {
        owner.progress();
        receiver.turn(&mut owner);
        worker.progress();
        putter.turn(&mut worker);
        putter.under_way() == 0
    });
    assert_eq!((putter.acked, putter.failed), (putter.started, 0));
    let (siblings, receivers) = stop_all(joined.receivers);
    assert_eq!(losses(&siblings), []);
    assert_eq!(receiver.arrived + receivers[0].arrived - FIRST_PUTS, putter.started);
}

#[test]
fn transmit_rings_that_hold_no_frame() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { mtu_bytes: 65535, ..Wiring::default() });
    let good = config(netns.a(), nid_v4(netns.a().interface(), 0));
    let with_tx = |tx| good.clone().rings(RingSizes { tx, ..good.xdp.rings });
    match try_start(netns.a(), &with_tx(16)) {
        Err(NodeError::Lnd(LndError::Xdp(XdpError::TransmitRing {
            interface,
            mtu_bytes,
            entries,
            needed,
        }))) => {
            assert_eq!((&interface, mtu_bytes, entries), (&netns.a().interface().name, 65535, 16));
            assert!((17..=32).contains(&needed), "{needed}");
        }
        other => panic!("{:?}", other.map(|(node, _)| node)),
    }
    drop(try_start(netns.a(), &with_tx(32)).unwrap());
}

#[test]
fn a_call_to_a_thread_that_panics() {
    if !privileged() {
        return;
    }
    let mut joined = Joined::new(2);
    let told = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&told);
    let turn = move |_: &mut Worker, (): &mut ()| {
        assert!(!told.load(Ordering::Acquire), "on purpose");
    };
    let by_turn = ShardThread::spawn(joined.sources.remove(0), None, NO_SPIN, (), turn).unwrap();
    assert_eq!(by_turn.call(|worker| worker.shard_id().0), Ok(0));
    tell.store(true, Ordering::Release);
    // Calls come before the turn, so that some may still be answered.
    let begun = Instant::now();
    while by_turn.call(|_| ()).is_ok() {
        assert!(begun.elapsed() < PROMPT);
    }
    for _ in 0..300 {
        assert!(by_turn.call(|_| ()).is_err());
    }
    assert!(begun.elapsed() < PROMPT, "{:?}", begun.elapsed());
    assert!(by_turn.stop().is_err());

    let worker = joined.sources.remove(0);
    let by_call = ShardThread::spawn(worker, None, NO_SPIN, (), |_, (): &mut ()| {}).unwrap();
    let begun = Instant::now();
    let ended = by_call.call(|_| panic!("on purpose")).map(|(): ()| ()).unwrap_err();
    assert!(ended.to_string().contains("on purpose"), "{ended}");
    assert_eq!(by_call.call(|_| ()), Err(ended));
    assert!(begun.elapsed() < PROMPT, "{:?}", begun.elapsed());
}

#[test]
fn a_worker_that_changes_hands() {
    if !privileged() {
        return;
    }
    let mut joined = Joined::new(2);
    // The test's thread has slept on this shard already.
    let mut worker = joined.sources.remove(1);
    let mut putter = Putter::new(joined.target, &mut worker);
    worker.wait(Some(Duration::from_millis(10))).unwrap();
    for round in 1..=4 {
        let on_demand = OnDemand::spawn(worker, putter);
        on_demand.put();
        let spent = cpu_time_of(&on_demand.thread, Duration::from_millis(200));
        assert!(spent < Duration::from_millis(20), "{spent:?}");
        on_demand.put();
        (worker, putter) = on_demand.thread.stop().unwrap();
        putter.put(&mut worker, PINNED_PORTALS[0], true);
        assert!(putter.drive_to_end(&mut worker, PROMPT), "{putter:?}");
        let begun = Instant::now();
        worker.wait(Some(Duration::from_millis(50))).unwrap();
        // The last acknowledgements of frames go to and fro.
        let mut busy = 0;
        while begun.elapsed() < Duration::from_millis(50) {
            busy += u32::from(worker.progress());
            assert!(busy <= 5, "{busy} busy turns");
            worker.wait(Some(Duration::from_millis(50))).unwrap();
        }
        assert_eq!((putter.acked, putter.failed), (3 * round, 0));
    }
    // Another thread waits on it, which has never slept on it.
    let ended = std::thread::spawn(move || {
        putter.put(&mut worker, PINNED_PORTALS[0], true);
        putter.drive_to_end(&mut worker, PROMPT)
    });
    assert!(ended.join().unwrap());
    drop(joined);
}

/// The last events of a descriptor wait while its place has a new one: what they tell of is still there.
#[test]
fn events_that_outlive_the_place_of_their_descriptor() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let (_source, mut sources) = start(netns.a(), &config(netns.a(), a));
    let (_target, mut targets) = start(netns.b(), &config(netns.b(), b));
    let (source, target) = (&mut sources[0], &mut targets[0]);
    let queue = target.create_event_queue(64).unwrap();
    let spec = MdSpec::new(3 * u64::from(PUT_BYTES), Threshold::Count(3), MdOptions::PUT, queue);
    let post = |target: &mut Worker| {
        let buffer = Buffer::from(vec![0xEE; 3 * PUT_BYTES as usize]);
        target.attach(&EntrySpec::new(PINNED_PORTALS[0], 0), &spec, buffer).unwrap().1
    };
    let first = post(target);
    let mut putter = Putter::new(process(b), source);
    for _ in 0..3 {
        putter.put(source, PINNED_PORTALS[0], false);
    }
    wait_until("three Puts have arrived", PATIENCE, || {
        source.progress();
        target.progress();
        target.waiting_events() == 3
    });
    let mut next = None;
    for number in 0..3_u8 {
        let delivery = target.poll_event(queue).unwrap();
        let event = delivery.event;
        let Event::Put { hdr_data, offset_bytes, .. } = event else { panic!("{event:?}") };
        assert_eq!((event.md(), event.unlinked()), (first, number == 2));
        let next = *next.get_or_insert_with(|| post(target));
        assert_eq!((next.0.slot(), next == first), (first.0.slot(), false), "the place is used again");
        let start = usize::from(number) * PUT_BYTES as usize;
        assert_eq!(offset_bytes, start as u64);
        // Messages of one peer may overtake each other.
        let meant = [hdr_data as u8; PUT_BYTES as usize];
        match delivery.buffer {
            Some(buffer) => assert_eq!(buffer[start..], meant),
            None => assert_eq!(target.payload(event.md(), offset_bytes, PUT_BYTES).unwrap(), meant),
        }
        assert_eq!(target.payload(next, 0, PUT_BYTES).unwrap(), [0xEE; PUT_BYTES as usize]);
    }
}

#[test]
fn events_that_nobody_takes_keep_nobody_awake() {
    if !privileged() {
        return;
    }
    let mut joined = Joined::new(2);
    let mut worker = joined.sources.remove(0);
    let mut putter = Putter::new(joined.target, &mut worker);
    for _ in 0..3 {
        putter.put(&mut worker, PINNED_PORTALS[0], true);
    }
    let thread = ShardThread::spawn(worker, None, NO_SPIN, putter, |_, _: &mut Putter| {}).unwrap();
    wait_until("events wait", PATIENCE, || thread.call(|worker| worker.waiting_events()).unwrap() == 6);
    let spent = cpu_time_of(&thread, Duration::from_secs(1));
    assert!(spent < Duration::from_millis(50), "{spent:?} of a second");
    let (mut worker, mut putter) = thread.stop().unwrap();
    putter.turn(&mut worker);
    assert_eq!((putter.ended, putter.acked), (3, 3));
}
