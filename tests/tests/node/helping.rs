//! Shards that help each other over a veth, what a node says to itself, and the example of the interface for
//! applications.

use std::collections::BTreeMap;

use lnet_tests::netns::{Netns, Wiring, enter, wait_until};
use lnet_tests::node::{config, nid_v4, process, start};
use lnet_user::runtime::Worker;
use lnet_user::{
    Buffer, EntrySpec, EqHandle, EventKind, MdHandle, MdOptions, MdSpec, PutRequest, Status, Threshold,
};
use lnet_wire::ProcessId;

use crate::privileged;
use crate::wakeups::PATIENCE;

#[path = "../../../lnet-user/examples/put_get.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example is a program of its own")]
mod put_get;

/// Under `Rotor` in the nodes of these tests.
const ROTOR: u32 = 16;
const LENGTHS: [usize; 4] = [0, 100, 9000, 300_000];

fn bytes_of(number: u64) -> Vec<u8> {
    let length = LENGTHS[number as usize % LENGTHS.len()];
    (0..length).map(|index| (index as u64 * 13 + (index as u64 >> 9) + number) as u8).collect()
}

fn put(worker: &mut Worker, queue: EqHandle, target: ProcessId, number: u64) -> MdHandle {
    let bytes = bytes_of(number);
    let spec = MdSpec::new(bytes.len() as u64, Threshold::Count(2), MdOptions::NONE, queue);
    let md = worker.bind(&spec, Buffer::from(bytes)).unwrap();
    let (match_bits, hdr_data) = (number, 0);
    let request = PutRequest {
        md,
        part: None,
        ack: true,
        self_nid: None,
        target,
        portal: ROTOR,
        match_bits,
        offset: 0,
        hdr_data,
    };
    worker.put(&request).unwrap();
    md
}

fn post(worker: &mut Worker, queue: EqHandle, number: u64) {
    let length = LENGTHS[number as usize % LENGTHS.len()];
    let spec = MdSpec::new(length as u64, Threshold::Count(1), MdOptions::PUT, queue);
    worker.attach(&EntrySpec::new(ROTOR, number), &spec, Buffer::zeroed(length)).unwrap();
}

/// Messages are spread over both shards, and one of them has all entries: half of them before the messages,
/// half of them after, when the portal is lazy.
#[test]
fn entries_on_one_shard_are_found_by_all() {
    if !privileged() {
        return;
    }
    const COUNT: u64 = 200;
    let netns = Netns::new(Wiring::default());
    let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let (_source, mut sources) = start(netns.a(), &config(netns.a(), a));
    let (_target, mut targets) = start(netns.b(), &config(netns.b(), b));
    let source_queue = sources[0].create_event_queue(2000).unwrap();
    let target_queue = targets[1].create_event_queue(2000).unwrap();
    targets.iter_mut().for_each(|worker| worker.set_lazy(ROTOR).unwrap());
    (0..COUNT / 2).for_each(|number| post(&mut targets[1], target_queue, number));
    let (mut started, mut posted, mut acked) = (0, COUNT / 2, 0);
    let mut arrived = BTreeMap::new();
    wait_until("all Puts have arrived", 3 * PATIENCE, || {
        if started < COUNT && started < acked + 16 {
            put(&mut sources[0], source_queue, process(b), started);
            started += 1;
        }
        if posted < started {
            post(&mut targets[1], target_queue, posted);
            posted += 1;
        }
        sources.iter_mut().chain(&mut targets).for_each(|worker| {
            worker.progress();
        });
        while let Some(delivery) = sources[0].poll_event(source_queue) {
            assert_eq!(delivery.event.status(), Status::Ok);
            acked += u64::from(delivery.event.kind() == EventKind::Ack);
        }
        while let Some(delivery) = targets[1].poll_event(target_queue) {
            let number = delivery.event.match_bits().expect("bits");
            assert!(*delivery.buffer.unwrap() == bytes_of(number), "Put {number}");
            assert_eq!(arrived.insert(number, ()), None, "Put {number} arrived twice");
        }
        (arrived.len() as u64, acked) == (COUNT, COUNT)
    });
    let lent = targets[1].counters().lent;
    assert!((COUNT / 4..COUNT).contains(&lent), "{lent} of {COUNT} arrived on the other shard");
}

#[test]
fn a_node_reaches_its_own_address_without_frames() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let nid = nid_v4(netns.a().interface(), 0);
    let (_node, mut workers) = start(netns.a(), &config(netns.a(), nid));
    let queues: Vec<_> = workers.iter_mut().map(|worker| worker.create_event_queue(100).unwrap()).collect();
    for number in 0..4 {
        post(&mut workers[1], queues[1], number);
        put(&mut workers[0], queues[0], process(nid), number);
    }
    let mut ends = 0;
    wait_until("all Puts have arrived", PATIENCE, || {
        for (worker, queue) in workers.iter_mut().zip(&queues) {
            worker.progress();
            while let Some(delivery) = worker.poll_event(*queue) {
                assert_eq!(delivery.event.status(), Status::Ok);
                if delivery.event.kind() == EventKind::Put {
                    let origin = delivery.event.origin().unwrap();
                    assert_eq!((origin.initiator, origin.target), (process(nid), process(nid)));
                    assert!(
                        *delivery.buffer.unwrap() == bytes_of(delivery.event.match_bits().expect("bits"))
                    );
                }
                ends += u32::from(delivery.event.unlinked());
            }
        }
        ends == 8
    });
    assert!(workers.iter().all(|worker| worker.xdp().expect("there is an NI").counters().frames_sent == 0));
}

#[test]
fn the_example_talks_to_a_peer() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let arguments = [netns.a(), netns.b()].map(|namespace| {
        let interface = namespace.interface();
        vec![interface.name.clone(), nid_v4(interface, 0).to_string()]
    });
    let [initiator, target] = arguments;
    let initiator = [&initiator[..], &target[1..]].concat();
    std::thread::scope(|scope| {
        let serving =
            scope.spawn(|| enter(netns.b(), || put_get::run(&target).map_err(|error| error.to_string())));
        let talking =
            scope.spawn(|| enter(netns.a(), || put_get::run(&initiator).map_err(|error| error.to_string())));
        talking.join().unwrap().unwrap();
        serving.join().unwrap().unwrap();
    });
}
