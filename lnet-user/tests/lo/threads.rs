//! Shards on threads of their own, which sleep: a sibling with something to say to one wakes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lnet_core::event::EventKind;
use lnet_core::handle::{EqHandle, MdHandle};
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_user::Buffer;
use lnet_user::node::NodeDriver;
use lnet_user::runtime::{Idle, ShardThread, Worker};

use crate::common::{ROTOR, config, get_request, pattern, put_request};

const ROUNDS: u32 = 4_000;
const PATIENCE: Duration = Duration::from_secs(60);
const LENGTH: usize = 300;

/// Gets, each after the end of the last one, from a descriptor that another shard has; and posts the next
/// one. Between two of them its thread sleeps, if it is quick enough.
struct Pinger {
    queue: EqHandle,
    seed: u64,
    rounds: u32,
    md: Option<MdHandle>,
    done: Arc<AtomicU32>,
}

impl Pinger {
    fn new(worker: &mut Worker, seed: u64, done: &Arc<AtomicU32>) -> Self {
        let queue = worker.create_event_queue(1000).unwrap();
        let spec =
            MdSpec::new(LENGTH as u64, Threshold::Infinite, MdOptions::GET | MdOptions::MANAGE_REMOTE, queue);
        let bytes = Buffer::from(pattern(seed, LENGTH));
        worker.attach(&EntrySpec::new(ROTOR, seed), &spec, bytes).unwrap();
        Self { queue, seed, rounds: 0, md: None, done: Arc::clone(done) }
    }

    fn turn(&mut self, worker: &mut Worker, others: &[u64]) {
        while let Some(delivery) = worker.poll_event(self.queue) {
            assert_eq!(delivery.event.status(), Status::Ok);
            if Some(delivery.event.md()) == self.md && delivery.event.unlinked() {
                let whose = others[self.rounds as usize % others.len()];
                assert_eq!(*delivery.buffer.unwrap(), pattern(whose, LENGTH), "round {}", self.rounds);
                self.md = None;
                self.rounds += 1;
                self.done.fetch_add(1, Ordering::Relaxed);
            } else {
                assert!(matches!(delivery.event.kind(), EventKind::Get | EventKind::Send));
            }
        }
        if self.md.is_none() && self.rounds < ROUNDS {
            let spec = MdSpec::new(LENGTH as u64, Threshold::Count(2), MdOptions::NONE, self.queue);
            let md = worker.bind(&spec, Buffer::zeroed(LENGTH)).unwrap();
            let whose = others[self.rounds as usize % others.len()];
            worker.get(&get_request(md, ROTOR, whose)).unwrap();
            self.md = Some(md);
        }
    }
}

/// A shard is asleep most of the time: of the two that take part in a message one waits for the other. A
/// wake-up that is lost stops it, for nothing else comes.
#[test]
fn sleeping_shards_are_woken_for_each_message() {
    for (count, spin) in [(2_u8, 0), (3, 0), (3, 20)] {
        let (_node, workers) = NodeDriver::start(&config(count)).unwrap();
        let done = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                let own = u64::from(worker.shard_id().0);
                let pinger = Pinger::new(&mut worker, own, &done);
                let others: Vec<u64> = (0..u64::from(count)).filter(|seed| *seed != own).collect();
                let idle = Idle::new(Duration::from_micros(spin));
                ShardThread::spawn(worker, None, idle, pinger, move |worker, pinger: &mut Pinger| {
                    pinger.turn(worker, &others);
                })
                .unwrap()
            })
            .collect();
        let begun = Instant::now();
        while done.load(Ordering::Relaxed) != ROUNDS * u32::from(count) {
            assert!(
                begun.elapsed() < PATIENCE,
                "{} rounds, and nothing goes on",
                done.load(Ordering::Relaxed)
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        for thread in threads {
            let (worker, pinger) = thread.stop().unwrap();
            assert_eq!(pinger.rounds, ROUNDS, "{}", pinger.seed);
            assert_eq!(worker.usage().messages, 0);
        }
    }
}

/// The shard that has the entry does nothing else, and no other thread moves it.
#[test]
fn a_put_wakes_the_shard_that_takes_it() {
    let (_node, mut workers) = NodeDriver::start(&config(2)).unwrap();
    let mut sleeper = workers.pop().unwrap();
    let mut worker = workers.pop().unwrap();
    let arrived = Arc::new(AtomicU32::new(0));
    let arrives = Arc::clone(&arrived);
    let queue = sleeper.create_event_queue(1000).unwrap();
    let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
    let spec = MdSpec::new(LENGTH as u64, Threshold::Infinite, options, queue);
    sleeper.attach(&EntrySpec::new(ROTOR, 1), &spec, Buffer::zeroed(LENGTH)).unwrap();
    let thread = ShardThread::spawn(sleeper, None, Idle::new(Duration::ZERO), (), move |worker, ()| {
        while let Some(delivery) = worker.poll_event(queue) {
            assert_eq!(worker.payload(delivery.event.md(), 0, LENGTH as u32).unwrap(), pattern(1, LENGTH));
            arrives.fetch_add(1, Ordering::Release);
        }
    })
    .unwrap();
    let own = worker.create_event_queue(10).unwrap();
    let spec = MdSpec::new(LENGTH as u64, Threshold::Count(2), MdOptions::NONE, own);
    for round in 1..=200 {
        if round % 20 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let md = worker.bind(&spec, Buffer::from(pattern(1, LENGTH))).unwrap();
        worker.put(&put_request(md, ROTOR, 1, true)).unwrap();
        let begun = Instant::now();
        let mut ended = false;
        while !ended {
            if !worker.progress() {
                worker.wait(Some(PATIENCE)).unwrap();
            }
            while let Some(delivery) = worker.poll_event(own) {
                ended |= delivery.event.unlinked();
            }
            assert!(begun.elapsed() < PATIENCE);
        }
        assert_eq!(arrived.load(Ordering::Acquire), round);
    }
    drop(thread.stop().unwrap());
}
