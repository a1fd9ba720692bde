//! Whole nodes over the rings: shards with all that they drive, which help each other with what arrives.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::event::EventKind;
use lnet_core::handle::{EqHandle, MdHandle, ShardId};
use lnet_core::limits::Limits;
use lnet_core::lnd::{NiId, Status};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::{GetRequest, PutRequest, ShardConfig};
use lnet_core::topology::{self, LocalNi, Topology};
use lnet_io::memory::{Buffer, Memory};
use lnet_io::reactor::{Reactor, Waiter, Waker};
use lnet_wire::ProcessId;

use super::{Delivery, MeshEnd, Worker};
use crate::lnd::{Lnds, LoKind, ShardPort};
use lnet_xdp::played::{LAZY_ROTOR, Node, PORTAL, Plan, ROTOR};

const LIMITS: Limits = Limits {
    match_entries: 256,
    memory_descs: 512,
    event_queues: 4,
    events: 4096,
    unlimited_events: 64,
    spare_events: 0,
    requests: 128,
    responses: 128,
    forwards: 0,
    incoming: 128,
    delayed: 32,
    peers: 16,
    nis: 2,
};
const QUEUES: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(10);

struct Side {
    kernel: Node,
    workers: Vec<Worker>,
    queues: Vec<EqHandle>,
}

impl Side {
    fn new(mut kernel: Node) -> Self {
        let plan = kernel.plan;
        let timeout = Duration::from_secs(30);
        let xdp = LocalNi::new(plan.nid(), 64 * plan.shards, 64 * plan.shards, timeout);
        let steering = topology::Steering { shard_count: plan.shards as u8, policies: *kernel.policies() };
        let topology = Topology::new(vec![xdp, LocalNi::loopback(timeout)]).with_steering(steering);
        let topology = Arc::new(topology);
        let waiters: Vec<Waiter> =
            (0..plan.shards).map(|_| Waiter::new(1, Reactor::default()).unwrap()).collect();
        let wakers: Vec<Waker> = waiters.iter().map(Waiter::waker).collect();
        let limits = Limits { incoming: Lnds::names_max(&LIMITS), ..LIMITS };
        let shards = std::mem::take(&mut kernel.shards).into_iter().zip(waiters).zip(MeshEnd::mesh(&wakers));
        let mut workers: Vec<Worker> = (0..)
            .zip(shards)
            .map(|(shard, ((rings, waiter), mesh))| {
                let shard = lnet_core::Shard::new(ShardConfig {
                    shard: ShardId(shard),
                    shard_count: plan.shards as u8,
                    seal_key: [plan.host.into(), 0],
                    pid: ProcessId::LUSTRE_PID,
                    limits,
                    topology: Arc::clone(&topology),
                    hash_seed: 7,
                });
                let memory = Memory::new(shard.id(), limits.memory_descs, limits.incoming);
                let mut worker = Worker::new(shard, Lnds::new(&LIMITS), mesh, memory, waiter);
                let lo = LoKind::parts(NiId(1), &LIMITS, 1).remove(0);
                worker.add_port(ShardPort::Lo(lo)).unwrap();
                worker.add_port(ShardPort::Xdp(rings.into_port())).unwrap();
                worker
            })
            .collect();
        let queues = workers
            .iter_mut()
            .map(|worker| {
                worker.set_lazy(LAZY_ROTOR).unwrap();
                worker.create_event_queue(2048).unwrap()
            })
            .collect();
        Self { kernel, workers, queues }
    }

    fn spec(&self, shard: usize, length: usize, count: u32, options: MdOptions) -> MdSpec {
        MdSpec::new(length as u64, Threshold::Count(count), options, self.queues[shard])
    }

    fn post(
        &mut self,
        shard: usize,
        portal: u32,
        match_bits: u64,
        bytes: Vec<u8>,
        options: MdOptions,
    ) -> MdHandle {
        let spec = self.spec(shard, bytes.len(), 1, options);
        let entry = EntrySpec::new(portal, match_bits);
        self.workers[shard].attach(&entry, &spec, Buffer::from(bytes)).unwrap().1
    }

    fn bind(&mut self, shard: usize, bytes: Vec<u8>) -> MdHandle {
        let spec = self.spec(shard, bytes.len(), 2, MdOptions::NONE);
        self.workers[shard].bind(&spec, Buffer::from(bytes)).unwrap()
    }

    fn events(&mut self) -> Vec<Delivery> {
        let queues = self.workers.iter_mut().zip(&self.queues);
        queues.flat_map(|(worker, queue)| std::iter::from_fn(|| worker.poll_event(*queue))).collect()
    }
}

struct Pair([Side; 2]);

impl Pair {
    fn new(shards: u32) -> Self {
        let plan = |host| Plan { shards, queues: QUEUES, ..Plan::new(host) };
        Self(Node::pair(plan(1), plan(2)).map(Side::new))
    }

    /// One turn of all shards, and what the network carries between them.
    fn turn(&mut self) {
        for side in 0..2 {
            for worker in &mut self.0[side].workers {
                worker.progress();
            }
            self.carry(side);
        }
    }

    fn carry(&mut self, from: usize) {
        for queue in 0..QUEUES as usize {
            let packets = self.0[from].kernel.take_sent(queue);
            for packet in packets {
                let kernel = &mut self.0[1 - from].kernel;
                let shard = kernel.owner_of(&packet);
                // What finds no room is lost, and sent again.
                kernel.deliver(queue, shard, &packet);
            }
        }
    }

    /// Turns until a side has had events that end so many descriptors.
    #[track_caller]
    fn await_ends(&mut self, counts: [usize; 2]) -> [Vec<Delivery>; 2] {
        let mut events = [Vec::new(), Vec::new()];
        let begun = std::time::Instant::now();
        let ends = |events: &[Delivery]| events.iter().filter(|delivery| delivery.event.unlinked()).count();
        while [0, 1].map(|side: usize| ends(&events[side])) != counts {
            assert!(begun.elapsed() < PATIENCE, "{events:?}; {:?}", self.losses());
            self.turn();
            for (side, events) in self.0.iter_mut().zip(&mut events) {
                events.extend(side.events());
            }
        }
        events
    }

    fn bind_at_source(&mut self, length: usize) -> MdHandle {
        self.0[0].bind(0, vec![0; length])
    }

    /// What the target's shards have counted.
    fn losses(&self) -> Vec<String> {
        let counters =
            |worker: &Worker| format!("{:?} {:?}", worker.shard().counters(), worker.shard().usage());
        self.0[1].workers.iter().map(counters).collect()
    }

    fn put(&mut self, shard: usize, md: MdHandle, portal: u32, match_bits: u64, ack: bool) {
        let request = self.put_request(md, portal, match_bits, ack);
        self.0[0].workers[shard].put(&request).unwrap();
    }

    fn put_request(&self, md: MdHandle, portal: u32, match_bits: u64, ack: bool) -> PutRequest {
        let target = ProcessId::lustre(self.0[1].kernel.plan.nid());
        PutRequest { md, part: None, ack, self_nid: None, target, portal, match_bits, offset: 0, hdr_data: 0 }
    }

    fn get_request(&self, md: MdHandle, portal: u32, match_bits: u64) -> GetRequest {
        let PutRequest { target, .. } = self.put_request(md, portal, match_bits, false);
        GetRequest { md, part: None, self_nid: None, target, portal, match_bits, offset: 0 }
    }

    fn assert_idle(&mut self) {
        let begun = std::time::Instant::now();
        let is_idle = |worker: &Worker| {
            let usage = worker.shard().usage();
            (usage.memory_descs, usage.messages, usage.delayed, usage.match_entries) == (0, 0, 0, 0)
        };
        while !self.0.iter().flat_map(|side| &side.workers).all(is_idle) {
            assert!(begun.elapsed() < PATIENCE);
            self.turn();
        }
    }
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index as u64 * 31 + seed * 7 + (index as u64 >> 8)) as u8).collect()
}

fn check(deliveries: &[Delivery], kind: EventKind, bytes: &[u8]) {
    let found =
        deliveries.iter().find(|delivery| delivery.event.kind() == kind).expect("an event of the kind");
    assert_eq!(found.event.status(), Status::Ok);
    // That a GET was sent may be known after the REPLY has come.
    let of_md = deliveries.iter().filter(|delivery| delivery.event.md() == found.event.md());
    let buffer = of_md.filter_map(|delivery| delivery.buffer.as_ref()).next().expect("the last event");
    assert!(**buffer == *bytes, "{kind:?}");
}

/// Each message arrives at whatever shard the network picks, and one of three has the entry.
#[test]
fn one_shard_has_the_entry() {
    let mut pair = Pair::new(3);
    for number in 0..60_u64 {
        let (from, to) = (number as usize % 3, number as usize / 3 % 3);
        let length = [0, 1, 64, 3000, 20_000, 200_000][number as usize % 6];
        let bytes = pattern(number, length);
        pair.0[1].post(to, ROTOR, number, vec![0; length], MdOptions::PUT);
        let md = pair.0[0].bind(from, bytes.clone());
        pair.put(from, md, ROTOR, number, true);
        let [_, target] = pair.await_ends([1, 1]);
        check(&target, EventKind::Put, &bytes);

        pair.0[1].post(to, ROTOR, number, bytes.clone(), MdOptions::GET);
        let md = pair.0[0].bind(from, vec![0; length]);
        let request = pair.get_request(md, ROTOR, number);
        pair.0[0].workers[from].get(&request).unwrap();
        let [source, _] = pair.await_ends([1, 1]);
        check(&source, EventKind::Reply, &bytes);
    }
    pair.assert_idle();
    let lent: u64 = pair.0[1].workers.iter().map(|worker| worker.shard().counters().lent).sum();
    assert!(lent > 40, "{lent} of 120 messages were a sibling's");
}

/// Messages wait with their sender until an entry comes, on any shard; some entries come and go before.
#[test]
fn entries_come_later_and_go() {
    let mut pair = Pair::new(3);
    for number in 0..40_u64 {
        let (from, to) = (number as usize % 3, number as usize / 3 % 3);
        let length = [10, 3000, 50_000][number as usize % 3];
        let bytes = pattern(number, length);
        let md = pair.0[0].bind(from, bytes.clone());
        pair.put(from, md, LAZY_ROTOR, number, true);
        (0..number % 11).for_each(|_| pair.turn());
        let mut gone = 0;
        if number % 2 == 0 {
            // Too short for the message, and gone again.
            let short = pair.0[1].post(to, LAZY_ROTOR, number + 1000, vec![0; length], MdOptions::PUT);
            (0..number % 5).for_each(|_| pair.turn());
            pair.0[1].workers[to].unlink(short).unwrap();
            gone = 1;
        }
        pair.0[1].post(to, LAZY_ROTOR, number, vec![0; length], MdOptions::PUT);
        let [_, target] = pair.await_ends([1, 1 + gone]);
        check(&target, EventKind::Put, &bytes);
    }
    pair.assert_idle();
}

/// An entry goes while its message is on the way to it, from the wire or from a sibling: either it had the
/// message, or it comes home as it was.
#[test]
fn an_entry_is_unlinked_in_between() {
    let mut pair = Pair::new(2);
    let mut taken = 0;
    for number in 0..60_u64 {
        let bytes = pattern(number, 30_000);
        let target = pair.0[1].post(number as usize % 2, ROTOR, number, vec![0; 30_000], MdOptions::PUT);
        let md = pair.0[0].bind(0, bytes.clone());
        pair.put(0, md, ROTOR, number, false);
        (0..number % 20).for_each(|_| pair.turn());
        // Gone already if it had its message.
        let _ = pair.0[1].workers[number as usize % 2].unlink(target);
        let [_, events] = pair.await_ends([0, 1]);
        let last = events.last().unwrap();
        let buffer = last.buffer.as_ref().unwrap();
        if last.event.kind() == EventKind::Put && last.event.status() == Status::Ok {
            assert!(**buffer == bytes);
            taken += 1;
        }
        if last.event.kind() == EventKind::Unlink {
            assert!(buffer.iter().all(|byte| *byte == 0));
        }
        // One operation is left of two.
        pair.0[0].workers[0].unlink(md).unwrap();
        pair.await_ends([1, 0]);
    }
    assert!((1..60).contains(&taken), "{taken}");
    pair.assert_idle();
}

/// The node's own NID is reached without the network.
#[test]
fn nothing_for_the_node_itself_is_sent() {
    let mut pair = Pair::new(2);
    let bytes = pattern(1, 5000);
    pair.0[0].post(1, ROTOR, 1, vec![0; 5000], MdOptions::PUT);
    let md = pair.0[0].bind(0, bytes.clone());
    let mut request = pair.put_request(md, ROTOR, 1, true);
    request.target.nid = pair.0[0].kernel.plan.nid();
    pair.0[0].workers[0].put(&request).unwrap();
    let [events, _] = pair.await_ends([2, 0]);
    check(&events, EventKind::Put, &bytes);
    let put = events.iter().find(|delivery| delivery.event.kind() == EventKind::Put).unwrap();
    assert_eq!(put.event.origin().unwrap().source, request.target.nid);
    let frames: u64 =
        pair.0[0].workers.iter().map(|worker| worker.xdp().unwrap().counters().frames_sent).sum();
    assert_eq!(frames, 0);
    pair.assert_idle();
}

/// A shard that has nothing to do but what a sibling hands over says that it has done something.
#[test]
fn what_a_sibling_hands_over_is_progress() {
    let mut pair = Pair::new(2);
    let spec =
        MdSpec::new(64, Threshold::Infinite, MdOptions::PUT | MdOptions::MANAGE_REMOTE, pair.0[1].queues[0]);
    let entry = EntrySpec::new(PORTAL, 7);
    let shard = (0..2)
        .find(|shard| {
            let md = MdSpec { event_queue: Some(pair.0[1].queues[*shard]), ..spec };
            pair.0[1].workers[*shard].attach(&entry, &md, Buffer::zeroed(64)).is_ok()
        })
        .expect("a shard takes the entry");
    let mut arrived = 0;
    for _ in 0..20 {
        let md = pair.bind_at_source(64);
        pair.put(0, md, PORTAL, 7, false);
        pair.0[0].workers[0].progress();
        for queue in 0..QUEUES as usize {
            for packet in pair.0[0].kernel.take_sent(queue) {
                let Side { kernel, workers, queues } = &mut pair.0[1];
                while workers[shard].progress() {}
                kernel.deliver(queue, 1 - shard, &packet);
                workers[1 - shard].progress();
                let progressed = workers[shard].progress();
                while workers[shard].poll_event(queues[shard]).is_some() {
                    assert!(progressed);
                    arrived += 1;
                }
            }
        }
        (0..20).for_each(|_| pair.turn());
    }
    assert!(arrived >= 10, "{arrived} of 20 were handed over");
}

/// Nothing but whole turns shows that a device has sent a sibling's frame on a shard's queue: there are no
/// idle polls instead of them while one is with the device.
#[test]
fn a_shard_without_work_takes_completions_for_its_sibling_in_its_next_turn() {
    let mut pair = Pair::new(3);
    let (owner, sibling) = (0, 2);
    for number in 0..20 {
        pair.0[1].post(0, ROTOR, number, vec![0; 64], MdOptions::PUT);
        let md = pair.0[0].bind(sibling, vec![0; 64]);
        pair.0[0].kernel.keep_back(true);
        pair.put(sibling, md, ROTOR, number, true);
        pair.0[0].workers[sibling].progress();
        pair.carry(0);
        let worker = &mut pair.0[0].workers[owner];
        // The idle polls end that had begun before.
        (0..1000).for_each(|_| _ = worker.progress());
        for _ in 0..10 {
            assert!(!worker.progress());
            assert!(!worker.idle_polls.are_on(), "message {number}");
        }
        pair.0[0].kernel.keep_back(false);
        let worker = &mut pair.0[0].workers[owner];
        assert!(worker.progress());
        while worker.progress() {}
        assert!(worker.idle_polls.are_on(), "message {number}");
        pair.await_ends([1, 1]);
    }
    pair.assert_idle();
}

#[test]
fn whole_turns_allocate_nothing() {
    let mut pair = Pair::new(2);
    let endless = |side: &Side, shard: usize, options| {
        MdSpec::new(9000, Threshold::Infinite, options, side.queues[shard])
    };
    for (portal, shard) in [(ROTOR, 1), (LAZY_ROTOR, 0)] {
        for (bits, options) in [(1, MdOptions::PUT), (2, MdOptions::GET)] {
            let md = endless(&pair.0[1], shard, options | MdOptions::MANAGE_REMOTE);
            let entry = EntrySpec::new(portal, bits);
            pair.0[1].workers[shard].attach(&entry, &md, Buffer::zeroed(9000)).unwrap();
        }
    }
    let md = endless(&pair.0[0], 0, MdOptions::NONE);
    let bound: Vec<_> =
        (0..4).map(|_| pair.0[0].workers[0].bind(&md, Buffer::zeroed(9000)).unwrap()).collect();
    let mut measured = 0;
    for round in 0..60 {
        let mut ended = 0;
        let mut requests = Some((ROTOR, LAZY_ROTOR));
        let begun = std::time::Instant::now();
        while ended < 4 * bound.len() {
            assert!(begun.elapsed() < PATIENCE, "round {round}: {ended} ends; {:?}", pair.losses());
            let requests = requests.take();
            let allocations = allocation_counter::measure(|| {
                for (md, portals) in bound.iter().zip(requests.into_iter().cycle()) {
                    for portal in [portals.0, portals.1] {
                        let put = pair.put_request(*md, portal, 1, true);
                        pair.0[0].workers[0].put(&put).unwrap();
                        let get = pair.get_request(*md, portal, 2);
                        pair.0[0].workers[0].get(&get).unwrap();
                    }
                }
                for side in &mut pair.0 {
                    for (worker, queue) in side.workers.iter_mut().zip(&side.queues) {
                        worker.progress();
                        while let Some(delivery) = worker.poll_event(*queue) {
                            let is_end = matches!(delivery.event.kind(), EventKind::Ack | EventKind::Reply);
                            ended += usize::from(is_end);
                        }
                    }
                }
            });
            if round >= 20 {
                measured += allocations.count_total;
            }
            (0..2).for_each(|side| pair.carry(side));
        }
    }
    assert_eq!(measured, 0);
}
