//! Peers and links that go away, and frames that get lost on the way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lnet_tests::netns::{Netns, Wiring, wait_until};
use lnet_tests::node::{
    Account, By, Driven, Flood, Flooded, Flooder, config, losses, nid_v4, process, settle, start, stop_all,
};
use lnet_user::node::Node;
use lnet_user::runtime::Worker;
use lnet_wire::{MessageType, Nid};

use crate::privileged;
use crate::traffic::PATIENCE;

fn flooded(node: &Node, workers: Vec<Worker>, flood: &Arc<Flood>) -> Vec<Driven<Flooded>> {
    let start = |mut worker: Worker| {
        let flooded = Flooded::post(flood, node.steering(), &mut worker);
        Driven::start(By::ShardThread, worker, flooded, |worker, flooded: &mut Flooded| flooded.turn(worker))
    };
    workers.into_iter().map(start).collect()
}

fn flooders(workers: Vec<Worker>, flood: &Arc<Flood>) -> Vec<Driven<Flooder>> {
    let start = |mut worker: Worker| {
        let flooder = Flooder::new(flood, &mut worker);
        Driven::start(By::Application, worker, flooder, |worker, flooder: &mut Flooder| flooder.turn(worker))
    };
    workers.into_iter().map(start).collect()
}

/// Waits until every Put that was started has ended.
fn all_ended(flood: &Flood) {
    let begun = Instant::now();
    while flood.acked() + flood.failed() < flood.started() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(flood.acked() + flood.failed(), flood.started());
}

fn nids(netns: &Netns) -> [Nid; 2] {
    [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0))
}

#[test]
fn a_target_that_vanishes_and_comes_back() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, b] = nids(&netns);
    let target_config = config(netns.b(), b);
    let (_source, source_workers) = start(netns.a(), &config(netns.a(), a));
    let (target, target_workers) = start(netns.b(), &target_config);
    let flood = Flood::new(process(b), 1 << 40, 64);
    let first = flooded(&target, target_workers, &flood);
    let sources = flooders(source_workers, &flood);
    wait_until("the flood runs", PATIENCE, || flood.acked() > 1000);

    // Everything of the target goes at once: its program, its rings, its threads.
    drop(target);
    drop(stop_all(first));
    wait_until("Puts are given up", PATIENCE, || flood.failed() > 64);
    let acked = flood.acked();

    // A new one on the same interface, at once after the end of another.
    for _ in 0..3 {
        drop(start(netns.b(), &target_config));
    }
    let (target, target_workers) = start(netns.b(), &target_config);
    let second = flooded(&target, target_workers, &flood);
    wait_until("the flood goes on", PATIENCE, || flood.acked() > acked + 1000);
    flood.stop();
    all_ended(&flood);
    let (mut source_workers, _) = stop_all(sources);
    let (mut target_workers, _) = stop_all(second);
    settle(&mut source_workers, PATIENCE);
    settle(&mut target_workers, PATIENCE);
    let usage = source_workers.iter().map(|worker| worker.shard().usage());
    assert!(usage.clone().all(|usage| (usage.memory_descs, usage.messages) == (0, 0)), "{usage:?}");
}

#[test]
fn lost_puts_equal_the_frames_that_were_dropped() {
    const COUNT: u64 = 20_000;
    const ONE_PERCENT: u32 = 10_000;
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, b] = nids(&netns);
    let (mut source, source_workers) = start(netns.a(), &config(netns.a(), a));
    let (mut target, target_workers) = start(netns.b(), &config(netns.b(), b));
    target.programs_mut()[0].set_fault(MessageType::Put, ONE_PERCENT, 0).unwrap();
    source.programs_mut()[0].set_fault(MessageType::Ack, ONE_PERCENT, 0).unwrap();
    let flood = Flood::new(process(b), COUNT, 64);
    let targets = flooded(&target, target_workers, &flood);
    let sources = flooders(source_workers, &flood);
    wait_until("every Put has ended", 2 * PATIENCE, || flood.acked() + flood.failed() == COUNT);
    let (mut source_workers, _) = stop_all(sources);
    let (mut target_workers, _) = stop_all(targets);
    settle(&mut source_workers, PATIENCE);
    settle(&mut target_workers, PATIENCE);
    assert_eq!((losses(&source_workers), losses(&target_workers)), (vec![], vec![]));
    let accounts = [Account::of(&source, &source_workers), Account::of(&target, &target_workers)];
    accounts.iter().for_each(Account::check);
    let [acks, puts] = accounts.map(|account| account.reasons["fault_dropped"]);
    assert_eq!((flood.arrived(), flood.failed()), (COUNT - puts, puts + acks));
    // About 200 of each; six standard deviations are 85.
    assert!((115..285).contains(&puts) && (110..285).contains(&acks), "{puts} Puts, {acks} ACKs");
}
