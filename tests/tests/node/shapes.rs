//! Nodes of other shapes: shards and queues in other numbers, several rails, frames that arrive at the wrong
//! shard, shards that sleep.

use std::time::{Duration, Instant};

use lnet_core::event::EventKind;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::PutRequest;
use lnet_tests::netns::{Netns, Wiring, wait_until};
use lnet_tests::node::{
    Account, By, Driven, Flood, Flooded, Flooder, Plan, Sink, Source, config, losses, nid_v4, policies,
    process, settle_both, start, stop_all,
};
use lnet_user::Buffer;
use lnet_user::node::NiConfig;
use lnet_user::runtime::{Idle, ShardThread, Worker};
use lnet_wire::Nid;
use lnet_wire::steer::Policy;

use crate::privileged;
use crate::traffic::{PATIENCE, carry_out, sizes};

/// Floods from a node of `source` shards to one of `target` shards, on `queues` queues.
fn flood(queues: u16, source_shards: u8, target_shards: u8, count: u64) {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { queues, ..Wiring::default() });
    let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let of_shards = |namespace, nid, shards: u8| {
        config(namespace, nid).shards(shards.into()).queues(Some(queues.into())).policies(policies(shards))
    };
    let (_source, source_workers) = start(netns.a(), &of_shards(netns.a(), a, source_shards));
    let (target, target_workers) = start(netns.b(), &of_shards(netns.b(), b, target_shards));
    let flood = Flood::new(process(b), count, 64);
    let flooded = Flooded::start_all(&flood, target.steering(), target_workers);
    let flooders = Flooder::start_all(&flood, By::Application, source_workers);
    let begun = Instant::now();
    while flood.acked() + flood.failed() < count && begun.elapsed() < 2 * PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
    let (mut source_workers, _) = stop_all(flooders);
    let (mut target_workers, _) = stop_all(flooded);
    settle_both(&mut source_workers, &mut target_workers, PATIENCE);
    assert_eq!((losses(&source_workers), losses(&target_workers)), (vec![], vec![]));
    assert_eq!((flood.acked(), flood.arrived()), (count, count));
    let frames = target.xdp_frames().unwrap();
    let of_shard =
        |shard| frames.slots.iter().filter(move |slot| slot.shard == shard).map(|slot| slot.frames);
    for shard in 0..u32::from(target_shards) {
        assert!(of_shard(shard).sum::<u64>() > count / 50, "shard {shard}: {frames:?}");
    }
}

#[test]
fn more_shards_than_queues() {
    flood(2, 4, 4, 200_000);
}

#[test]
fn more_queues_than_shards() {
    flood(4, 2, 1, 100_000);
}

#[test]
fn two_rails_carry_what_their_nids_are_asked_for() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { rails: 2, mtu_bytes: 9000, ..Wiring::default() });
    // Rail 0 on two nets, one address each; rail 1 on the first net as well as a second NI of it.
    let nodes = [netns.a(), netns.b()].map(|namespace| {
        let [first, second] = namespace.interfaces() else { panic!("two rails") };
        let nis = vec![
            NiConfig::new(nid_v4(first, 0), &first.name),
            NiConfig::new(nid_v4(second, 1), &second.name),
            NiConfig::new(lnet_tests::node::nid_v6(second), &second.name),
        ];
        let nids: Vec<Nid> = nis.iter().map(|ni| ni.nid).collect();
        let config = config(namespace, nids[0]).nis(nis);
        (nids, start(namespace, &config))
    });
    let [(a, source), (b, target)] = nodes;
    assert_eq!((source.0.nid(), source.0.queues()), (a[0], 4));
    let rails = a.iter().zip(b).map(|(a, b)| (process(*a), process(b))).collect();
    let sizes = [0, 1, 3000, 3900, 8000, 100_000];
    let plan = Plan::of_sizes(rails, &[10, 12, 15, 16], &sizes.repeat(5));
    let (_, target) = carry_out(plan, source, target, &[By::ShardThread, By::Application]);
    for (index, program) in target.node.programs().iter().enumerate() {
        assert_ne!(program.lock().unwrap().counters().unwrap().redirected(), 0, "rail {index}");
    }
}

/// XDP steers by another policy than the shards do: each frame to such a portal goes round by the shard that
/// it arrived at, and nothing else comes of it.
#[test]
fn misdirected_frames_are_handed_over() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { mtu_bytes: 9000, ..Wiring::default() });
    let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let with_shards = |namespace, nid| config(namespace, nid).shards(3).policies(policies(3));
    let (_source, mut source_workers) = start(netns.a(), &with_shards(netns.a(), a));
    let (target, target_workers) = start(netns.b(), &with_shards(netns.b(), b));
    for portal in 10..17 {
        target.programs()[0].lock().unwrap().set_policy(portal, Policy::Pin(1)).unwrap();
    }
    let sizes: Vec<u32> = (0..12).flat_map(|_| sizes()).filter(|size| *size <= 8700).collect();
    let plan = Plan::of_sizes(vec![(process(a), process(b))], &[10, 12, 14, 16], &sizes);
    let count = plan.operations.len();
    let plan = std::sync::Arc::new(plan);
    let sources: Vec<_> = source_workers.iter_mut().map(|worker| Source::new(&plan, 3, worker)).collect();
    let sinks: Vec<_> = target_workers
        .into_iter()
        .map(|mut worker| {
            let sink = Sink::post(&plan, target.steering(), &mut worker);
            Driven::start(By::ShardThread, worker, sink, |worker, sink: &mut Sink| sink.turn(worker))
        })
        .collect();
    let sources: Vec<_> = source_workers
        .into_iter()
        .zip(sources)
        .map(|(worker, source)| {
            Driven::start(By::Application, worker, source, |worker, source: &mut Source| source.turn(worker))
        })
        .collect();
    let begun = Instant::now();
    while !plan.is_done() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
    let (mut source_workers, _) = stop_all(sources);
    let (mut target_workers, _) = stop_all(sinks);
    settle_both(&mut source_workers, &mut target_workers, PATIENCE);
    let lost = losses(&target_workers);
    let (arrived, ended) = (plan.arrived(), plan.ended());
    let account = Account::of(&target, &target_workers);
    assert!(plan.is_done(), "of {count} operations {arrived} arrived, {ended} ended; {lost:?}, {account:?}");
    assert!(lost.iter().all(|(name, _)| name == "misdirected"), "{lost:?}");
    let misdirected: u64 = lost.iter().map(|(_, count)| count).sum();
    // Messages share frames, of which each counts once.
    assert!(misdirected as usize > count / 4 && misdirected as usize <= count, "{misdirected} of {count}");
}

#[test]
fn a_sleeping_shard_takes_no_cpu_and_wakes_for_a_put() {
    sleep_and_put(2, 0);
}

/// The shard that puts owns no queue: what it has sent comes back by a shard that sleeps.
#[test]
fn a_shard_without_a_queue_ends_its_put_while_the_others_sleep() {
    sleep_and_put(1, 1);
}

fn sleep_and_put(queues: u16, shard: usize) {
    if !privileged() {
        return;
    }
    const PORTAL: u32 = 14;
    let netns = Netns::new(Wiring { queues, ..Wiring::default() });
    let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let (_source, source_workers) = start(netns.a(), &config(netns.a(), a));
    let (_target, target_workers) = start(netns.b(), &config(netns.b(), b));
    let spawn = |mut worker: Worker| {
        let queue = worker.create_event_queue(64).unwrap();
        let take = move |worker: &mut Worker, events: &mut u32| {
            while let Some(delivery) = worker.poll_event(queue) {
                assert_eq!(delivery.event.status(), lnet_core::lnd::Status::Ok);
                *events += u32::from(delivery.event.kind() != EventKind::Unlink);
            }
        };
        (queue, ShardThread::spawn(worker, None, Idle::new(Duration::ZERO), 0_u32, take).unwrap())
    };
    let mut sources: Vec<_> = source_workers.into_iter().map(spawn).collect();
    let mut targets: Vec<_> = target_workers.into_iter().map(spawn).collect();
    let md = |options, threshold, event_queue| MdSpec::new(100, threshold, options, event_queue);
    let entry = EntrySpec::new(PORTAL, 5);
    let (queue, target) = &mut targets[1];
    let spec = md(MdOptions::PUT | MdOptions::MANAGE_REMOTE, Threshold::Count(2), *queue);
    target.call(move |worker| worker.attach(&entry, &spec, Buffer::zeroed(100)).map(drop)).unwrap().unwrap();

    let mut all: Vec<&mut ShardThread<u32>> =
        sources.iter_mut().chain(&mut targets).map(|(_, thread)| thread).collect();
    // Neighbour discovery of IPv6 and the start itself are over by then.
    std::thread::sleep(Duration::from_millis(200));
    let before: Vec<_> = all.iter_mut().map(|thread| crate::wakeups::thread_cpu_time(thread)).collect();
    std::thread::sleep(Duration::from_secs(1));
    let spent: Vec<_> = all
        .iter_mut()
        .zip(before)
        .map(|(thread, before)| crate::wakeups::thread_cpu_time(thread) - before)
        .collect();
    assert!(spent.iter().all(|time| *time < Duration::from_millis(50)), "{spent:?} of a second");

    let (queue, source) = &mut sources[shard];
    let spec = md(MdOptions::NONE, Threshold::Count(2), *queue);
    let put = move |worker: &mut Worker| {
        let md = worker.bind(&spec, Buffer::zeroed(100)).unwrap();
        let (target, hdr_data) = (process(b), 1);
        let request = PutRequest {
            md,
            part: None,
            ack: true,
            self_nid: None,
            target,
            portal: PORTAL,
            match_bits: 5,
            offset: 0,
            hdr_data,
        };
        worker.put(&request).unwrap();
    };
    // The first one asks for its next hop, whose answer wakes every shard; the second one does not.
    for _ in 0..2 {
        source.call(put).unwrap();
        wait_until("the Put has been acknowledged", Duration::from_secs(5), || {
            source.call(|worker| worker.usage().memory_descs).unwrap() == 0
        });
        std::thread::sleep(Duration::from_millis(100));
    }
    let events = |threads: Vec<(_, ShardThread<u32>)>| -> Vec<u32> {
        threads.into_iter().map(|(_, thread)| thread.stop().unwrap().1).collect()
    };
    let mut expected = vec![0, 0];
    expected[shard] = 4;
    assert_eq!((events(sources), events(targets)), (expected, vec![0, 2]));
}
