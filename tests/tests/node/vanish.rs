//! Peers and links that go away, and frames that get lost on the way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lnet_tests::netns::{Netns, Wiring, ip, wait_until};
use lnet_tests::node::message::Message;
use lnet_tests::node::{
    Account, By, Driven, Flood, Flooded, Flooder, Plan, Stranger, config, losses, nid_v4, process,
    settle_both, start, stop_all,
};
use lnet_user::node::NodeDriver;
use lnet_user::runtime::Worker;
use lnet_wire::{Body, MessageType, Nid, WireHandle};

use crate::privileged;
use crate::traffic::{PATIENCE, carry_out};

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
    let first = Flooded::start_all(&flood, target.steering(), target_workers);
    let sources = Flooder::start_all(&flood, By::Application, source_workers);
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
    let second = Flooded::start_all(&flood, target.steering(), target_workers);
    wait_until("the flood goes on", PATIENCE, || flood.acked() > acked + 1000);
    flood.stop();
    all_ended(&flood);
    let (mut source_workers, _) = stop_all(sources);
    let (mut target_workers, _) = stop_all(second);
    settle_both(&mut source_workers, &mut target_workers, PATIENCE);
    let usage = source_workers.iter().map(|worker| worker.usage());
    assert!(usage.clone().all(|usage| (usage.memory_descs, usage.messages) == (0, 0)), "{usage:?}");
}

/// Frames that a fault rule drops are sent again: the shards notice nothing.
#[test]
fn frames_that_are_dropped_come_again() {
    const COUNT: u64 = 20_000;
    const ONE_PERCENT: u32 = 10_000;
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, b] = nids(&netns);
    let (source, source_workers) = start(netns.a(), &config(netns.a(), a));
    let (target, target_workers) = start(netns.b(), &config(netns.b(), b));
    target.programs()[0].lock().unwrap().set_fault(MessageType::Put, ONE_PERCENT, 0).unwrap();
    source.programs()[0].lock().unwrap().set_fault(MessageType::Ack, ONE_PERCENT, 0).unwrap();
    let flood = Flood::new(process(b), COUNT, 64);
    let targets = Flooded::start_all(&flood, target.steering(), target_workers);
    let sources = Flooder::start_all(&flood, By::Application, source_workers);
    wait_until("every Put has ended", 2 * PATIENCE, || flood.acked() + flood.failed() == COUNT);
    let (mut source_workers, _) = stop_all(sources);
    let (mut target_workers, _) = stop_all(targets);
    settle_both(&mut source_workers, &mut target_workers, PATIENCE);
    assert_eq!((losses(&source_workers), losses(&target_workers)), (vec![], vec![]));
    assert_eq!((flood.acked(), flood.arrived(), flood.failed()), (COUNT, COUNT, 0));
    let accounts = [Account::of(&source, &source_workers), Account::of(&target, &target_workers)];
    accounts.iter().for_each(Account::check);
    let resent = |workers: &[Worker]| -> u64 {
        workers
            .iter()
            .map(|worker| worker.xdp().expect("there is an NI").transfer_counters().frames_resent)
            .sum()
    };
    for (account, sender) in accounts.iter().zip([&target_workers, &source_workers]) {
        let dropped = account.reasons["fault_dropped"];
        assert!(dropped != 0 && resent(sender) != 0, "{dropped} dropped, {} sent again", resent(sender));
    }
}

/// A flood from one node to another whose link is about to suffer.
struct Suffering {
    netns: Netns,
    nodes: [NodeDriver; 2],
    flood: Arc<Flood>,
    targets: Vec<Driven<Flooded>>,
    sources: Vec<Driven<Flooder>>,
}

impl Suffering {
    fn start() -> Self {
        let netns = Netns::new(Wiring::default());
        let [a, b] = nids(&netns);
        let (source, source_workers) = start(netns.a(), &config(netns.a(), a));
        let (target, target_workers) = start(netns.b(), &config(netns.b(), b));
        let flood = Flood::new(process(b), 1 << 40, 64);
        let targets = Flooded::start_all(&flood, target.steering(), target_workers);
        let sources = Flooder::start_all(&flood, By::Application, source_workers);
        wait_until("the flood runs", PATIENCE, || flood.acked() > 1000);
        Self { netns, nodes: [source, target], flood, targets, sources }
    }

    /// Ends the flood: every Put ends with an event that brings its buffer, every message ends.
    fn end(self) -> Netns {
        self.flood.stop();
        all_ended(&self.flood);
        let (mut sources, _) = stop_all(self.sources);
        let (mut targets, _) = stop_all(self.targets);
        settle_both(&mut sources, &mut targets, PATIENCE);
        for worker in &sources {
            let usage = worker.usage();
            assert_eq!((usage.memory_descs, usage.events, usage.messages), (0, 0, 0), "{usage:?}");
        }
        drop(self.nodes);
        self.netns
    }
}

#[test]
fn a_link_that_goes_down_and_comes_up() {
    if !privileged() {
        return;
    }
    for down_at_source in [true, false] {
        let suffering = Suffering::start();
        let (netns, flood) = (&suffering.netns, &suffering.flood);
        let side = if down_at_source { netns.a() } else { netns.b() };
        let name = &side.interface().name;
        ip(side, &format!("link set dev {name} down"));
        wait_until("Puts end without an ACK", PATIENCE, || flood.failed() > 0);
        ip(side, &format!("link set dev {name} up"));
        let acked = flood.acked();
        wait_until("the flood goes on", PATIENCE, || flood.acked() > acked + 1000);
        suffering.end();
    }
}

#[test]
fn a_link_that_is_deleted() {
    if !privileged() {
        return;
    }
    let suffering = Suffering::start();
    ip(suffering.netns.a(), "link delete dev veth-a");
    let flood = &suffering.flood;
    wait_until("Puts end without an ACK", PATIENCE, || flood.failed() > 64);
    // The counters of a program without an interface are still there to be read.
    assert_ne!(suffering.nodes[1].xdp_frames().unwrap().slots.len(), 0);
    let netns = suffering.end();

    // Nodes on a new link of the same name.
    ip(
        netns.a(),
        &format!(
            "link add veth-a numrxqueues 2 numtxqueues 2 type veth peer name veth-b numrxqueues 2 \
        numtxqueues 2 netns {}",
            netns.b().name()
        ),
    );
    for namespace in [netns.a(), netns.b()] {
        let interface = namespace.interface();
        ip(namespace, &format!("address add {}/24 dev {}", interface.ipv4, interface.name));
        ip(namespace, &format!("link set dev {} up", interface.name));
    }
    let [a, b] = nids(&netns);
    let source = start(netns.a(), &config(netns.a(), a));
    let target = start(netns.b(), &config(netns.b(), b));
    let plan = Plan::of_sizes(vec![(process(a), process(b))], &[10, 14, 16], &[0, 100, 1000]);
    carry_out(plan, source, target, &[By::Application]);
}

/// Puts that ask for ACKs in the name of hosts that do not exist: the good peer waits for a while, since the
/// ACKs hold credits until their next hop is given up, and goes on afterwards.
#[test]
fn acks_to_nobody_do_not_stay() {
    if !privileged() {
        return;
    }
    let suffering = Suffering::start();
    let [source, target] = nids(&suffering.netns);
    // The source has its own address.
    let stranger_nid = Nid::new_ip(source.net(), [10, 211, 0, 77].into()).unwrap();
    let interface = &suffering.netns.a().interface().name;
    ip(suffering.netns.a(), &format!("address add 10.211.0.77/24 dev {interface}"));
    let mut stranger = Stranger::new(suffering.netns.a(), stranger_nid, target);
    stranger.greet(|| {});
    for number in 0..5_000_u32 {
        let host = 80 + (number % 150) as u8;
        let nobody = Nid::new_ip(target.net(), [10, 211, 0, host].into()).unwrap();
        let mut put = Message::put(nobody, target, 10 + number % 7, u64::from(number / 7 % 32), 64);
        let Body::Put { ack_md, .. } = &mut put.header.body else { panic!("a PUT") };
        *ack_md = WireHandle { interface_cookie: 1, object_cookie: 1 };
        let put = stranger.sign(put).datagram();
        stranger.send(&put);
        if number % 100 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let flood = &suffering.flood;
    let acked = flood.acked();
    wait_until("the flood goes on", Duration::from_secs(2), || flood.acked() > acked + 1000);
    suffering.end();
}
