//! A load that goes on while something happens to the nodes: Puts and Gets over several rails, each verified,
//! by the interface for applications.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lnet_core::event::{Event, EventKind};
use lnet_core::handle::MdHandle;
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_user::Buffer;
use lnet_user::api::{Ack, Descriptor, EventQueue, Lnet, ShardHandle, Target};
use lnet_wire::Nid;

use super::plan::Plan;

/// The portal that all shards serve, of [`super::policies`].
const PORTAL: u32 = 16;
/// Match bits of what Gets are for.
const GET_BITS: u64 = 100;
const GET_NUMBER: usize = 77;
const LENGTHS: [usize; 4] = [64, 3000, 300, 20_000];
const GET_BYTES: usize = 9000;
/// Messages that one rail has under way at most.
const WINDOW: usize = 12;
/// Puts that one entry takes.
const PUTS_PER_ENTRY: u32 = 32;
const NAP: Duration = Duration::from_millis(2);

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number by which a Put is told from all others.
fn hdr_data(rail: usize, number: u64) -> u64 {
    (rail as u64) << 48 | number
}

fn length(number: u64) -> usize {
    LENGTHS[number as usize % LENGTHS.len()]
}

/// Puts that a node has had.
#[derive(Debug)]
pub struct Serving {
    arrived: Arc<Mutex<HashSet<u64>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Serving {
    /// Has all shards of a node take Puts of so many rails, and answer Gets.
    ///
    /// # Panics
    /// When a shard refuses something, later when a Put is not as it must be.
    #[must_use]
    pub fn start(lnet: &Lnet, rails: usize) -> Self {
        lnet.set_lazy(PORTAL, true).expect("a portal");
        let arrived = Arc::<Mutex<HashSet<u64>>>::default();
        let stop = Arc::<AtomicBool>::default();
        let threads = (0..lnet.shard_count()).map(|shard| {
            let shard = lnet.shard(shard).expect("a shard");
            let mut queue = shard.create_event_queue(4096).expect("an event queue");
            (0..rails).for_each(|rail| post(&shard, &queue, rail));
            post_source(&shard, &queue);
            let (arrived, stop) = (Arc::clone(&arrived), Arc::clone(&stop));
            std::thread::spawn(move || {
                loop {
                    // What was acknowledged before the end has its event in the queue by then.
                    let ends = stop.load(Ordering::Acquire);
                    let next = queue.next_blocking(Some(NAP)).expect("a shard that lives");
                    let Some(queued) = next else {
                        if ends {
                            break;
                        }
                        continue;
                    };
                    let event = queued.event;
                    let Event::Put { match_bits, hdr_data, .. } = event else { continue };
                    // What a rail that went has left half done ends otherwise.
                    if event.status() == Status::Ok {
                        let bytes = queued.payload().expect("a payload");
                        assert_eq!(bytes.len(), length(hdr_data), "{event:?}");
                        assert!(Plan::holds(hdr_data as usize, bytes), "the bytes of {event:?}");
                        assert!(lock(&arrived).insert(hdr_data), "twice: {event:?}");
                    }
                    if event.unlinked() {
                        post(&shard, &queue, match_bits as usize);
                    }
                }
            })
        });
        let threads = threads.collect();
        Self { arrived, stop, threads }
    }

    /// Ends it: the Puts that have arrived.
    ///
    /// # Panics
    /// When one was not as it must be.
    pub fn stop(self) -> HashSet<u64> {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads {
            thread.join().expect("whoever was served has panicked, see above");
        }
        std::mem::take(&mut *lock(&self.arrived))
    }
}

fn post(shard: &ShardHandle, queue: &EventQueue, rail: usize) {
    let length_bytes = PUTS_PER_ENTRY as usize * LENGTHS[3];
    let options = MdOptions::PUT;
    let md = MdSpec::new(length_bytes as u64, Threshold::Count(PUTS_PER_ENTRY), options, queue.handle());
    let entry = EntrySpec::new(PORTAL, rail as u64);
    shard
        .attach(&entry, &md, Buffer::zeroed(length_bytes))
        .unwrap_or_else(|error| panic!("{error}"))
        .detach();
}

fn post_source(shard: &ShardHandle, queue: &EventQueue) {
    let mut bytes = vec![0; GET_BYTES];
    Plan::fill(GET_NUMBER, &mut bytes);
    let options = MdOptions::GET | MdOptions::MANAGE_REMOTE;
    let md = MdSpec::new(GET_BYTES as u64, Threshold::Infinite, options, queue.handle());
    let entry = EntrySpec::new(PORTAL, GET_BITS);
    shard.attach(&entry, &md, Buffer::from(bytes)).unwrap_or_else(|error| panic!("{error}")).detach();
}

/// What has come of the messages of one rail.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Puts that were acknowledged, by number.
    pub acked: HashSet<u64>,
    /// Gets that were answered.
    pub got: u64,
    /// Messages that ended otherwise.
    pub failed: u64,
}

/// Messages of one rail that go on until they are stopped.
#[derive(Debug)]
pub struct Steady {
    ok: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Outcome>,
}

struct UnderWay {
    descriptor: Option<Descriptor>,
    begun: Instant,
    /// Number of a Put.
    put: Option<u64>,
    done: bool,
}

impl Steady {
    /// Puts to, and gets from, `target` from one shard of a node. A message that takes longer than `patience`
    /// is unlinked.
    ///
    /// # Panics
    /// When the shard has no room.
    #[must_use]
    pub fn start(lnet: &Lnet, rail: usize, target: Nid, patience: Duration) -> Self {
        let shard = lnet.shard(rail % lnet.shard_count()).expect("a shard");
        let queue = shard.create_event_queue(8 * WINDOW as u32).expect("an event queue");
        // Its own rail, although the peer has another one.
        let self_nid = lnet.distance(&target).map(|distance| distance.source);
        let (ok, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (all_ok, stopped) = (Arc::clone(&ok), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut source =
                Source { shard, queue, rail, target, self_nid, number: 0, under_way: HashMap::new() };
            let mut outcome = Outcome::default();
            while !stopped.load(Ordering::Acquire) || !source.under_way.is_empty() {
                while source.under_way.len() < WINDOW && !stopped.load(Ordering::Acquire) {
                    source.begin();
                }
                source.take(&mut outcome, patience);
                all_ok.store(outcome.acked.len() as u64 + outcome.got, Ordering::Release);
            }
            outcome
        });
        Self { ok, stop, thread }
    }

    /// Messages that have ended well.
    #[must_use]
    pub fn ok(&self) -> u64 {
        self.ok.load(Ordering::Acquire)
    }

    /// Ends it when all messages have ended.
    ///
    /// # Panics
    /// When a message was not as it must be, or one does not end.
    pub fn stop(self, patience: Duration) -> Outcome {
        self.stop.store(true, Ordering::Release);
        let begun = Instant::now();
        while !self.thread.is_finished() {
            assert!(begun.elapsed() < patience, "messages are under way for {patience:?}");
            std::thread::sleep(NAP);
        }
        self.thread.join().expect("the load has panicked, see above")
    }
}

struct Source {
    shard: ShardHandle,
    queue: EventQueue,
    rail: usize,
    target: Nid,
    self_nid: Option<Nid>,
    number: u64,
    under_way: HashMap<MdHandle, UnderWay>,
}

impl Source {
    fn begin(&mut self) {
        self.number += 1;
        let is_get = self.number.is_multiple_of(5);
        let number = hdr_data(self.rail, self.number);
        let mut bytes = vec![0; if is_get { GET_BYTES } else { length(number) }];
        if !is_get {
            Plan::fill(number as usize, &mut bytes);
        }
        let md = MdSpec::new(bytes.len() as u64, Threshold::Count(2), MdOptions::NONE, self.queue.handle());
        let descriptor = self.shard.bind(&md, Buffer::from(bytes)).unwrap_or_else(|error| panic!("{error}"));
        let handle = descriptor.handle();
        let begun = if is_get {
            descriptor
                .get(&Target { self_nid: self.self_nid, ..Target::new(self.target, PORTAL, GET_BITS) })
                .start()
        } else {
            let target =
                Target { self_nid: self.self_nid, ..Target::new(self.target, PORTAL, self.rail as u64) };
            descriptor.put(&target, Ack::Wanted, number).start()
        };
        begun.unwrap_or_else(|error| panic!("{error}"));
        let put = (!is_get).then_some(number);
        let under_way = UnderWay { descriptor: Some(descriptor), begun: Instant::now(), put, done: false };
        self.under_way.insert(handle, under_way);
    }

    fn take(&mut self, outcome: &mut Outcome, patience: Duration) {
        let next = self.queue.next_blocking(Some(NAP)).expect("a shard that lives");
        for message in self.under_way.values_mut().filter(|message| message.begun.elapsed() > patience) {
            message.descriptor = None;
        }
        let Some(queued) = next else { return };
        let event = queued.event;
        let message = self.under_way.get_mut(&event.md()).expect("a message under way");
        let answers = matches!(event.kind(), EventKind::Ack | EventKind::Reply);
        message.done |= answers && event.status() == Status::Ok;
        if event.status() != Status::Ok {
            // The message has no more to wait for.
            message.descriptor = None;
            if event.kind() == EventKind::Send {
                // Where nothing leads to the target the next one would end at once as well.
                std::thread::sleep(NAP / 4);
            }
        }
        if !event.unlinked() {
            return;
        }
        let UnderWay { put, done, .. } = self.under_way.remove(&event.md()).expect("a message under way");
        match put {
            _ if !done => outcome.failed += 1,
            Some(number) => assert!(outcome.acked.insert(number)),
            None => {
                let bytes = queued.into_buffer().expect("the last event brings the buffer");
                assert!(Plan::holds(GET_NUMBER, &bytes), "the bytes of a Get");
                outcome.got += 1;
            }
        }
    }
}
