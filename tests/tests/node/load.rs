//! The load service between two nodes on two rails.

use std::time::Duration;

use lnet_core::limits::Limits;
use lnet_load::{Initiator, Kind, LoadPlan, Scheme, Target};
use lnet_tests::netns::{Interface, Namespace, Netns, Wiring, enter};
use lnet_tests::node::{config, nid_v4};
use lnet_user::api::Lnet;
use lnet_user::node::{NiConfig, XdpMode};
use lnet_user::{Nid, Policy};

use crate::privileged;

const MESSAGES: u64 = 4000;

fn start(namespace: &Namespace, mode: XdpMode) -> Lnet {
    let ni = |(interface, rail): (&Interface, u16)| {
        NiConfig::new(nid_v4(interface, rail), &interface.name).mode(Some(mode))
    };
    let nis = namespace.interfaces().iter().zip(0..).map(ni).collect();
    let config = config(namespace, Nid::LO);
    let mut policies = config.policies.clone();
    policies.push((17, Policy::Pin(0)));
    let frames = Some(config.frames_for(2, 4));
    let config = config
        .frames(frames)
        .lnd_timeout(Duration::from_secs(5))
        .nis(nis)
        .policies(policies)
        .limits(Limits::DEFAULT);
    let lnet = enter(namespace, || Lnet::start(&config).unwrap());
    lnet.open().unwrap();
    lnet
}

/// Both nodes are targets of one another at the same time, by both rails.
fn both_ways(mode: XdpMode) {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { rails: 2, ..Wiring::default() });
    let nodes = [netns.a(), netns.b()].map(|namespace| start(namespace, mode));
    let nids = [netns.a(), netns.b()].map(|namespace| -> Vec<Nid> {
        namespace.interfaces().iter().zip(0..).map(|(interface, rail)| nid_v4(interface, rail)).collect()
    });
    let scheme = Scheme { seed: 4, ..Scheme::default() };
    let targets = nodes.each_ref().map(|node| Target::start(node, &scheme).unwrap());
    let plan =
        |targets: &[Nid]| LoadPlan { messages: MESSAGES, ..LoadPlan::new(scheme.clone(), targets.to_vec()) };
    let initiators = [(&nodes[0], &nids[1]), (&nodes[1], &nids[0])]
        .map(|(node, to)| Initiator::start(node, &plan(to)).unwrap());
    let done = initiators.map(Initiator::wait);
    let [near, far] = targets.map(Target::stop);
    for (done, seen) in done.iter().zip([&far, &near]) {
        assert_eq!((done.faults.count, seen.faults.count), (0, 0), "{:?} {:?}", done.faults, seen.faults);
        assert_eq!(done.puts().messages + done.gets().messages, MESSAGES);
        assert_eq!((seen.puts, seen.gets), (done.puts(), done.gets()));
        assert!(seen.by_shard.iter().all(|count| *count > MESSAGES / 10), "{:?}", seen.by_shard);
        let puts = |number: &u64| scheme.message(*number).kind == Kind::Put;
        assert_eq!(done.puts().messages, (0..MESSAGES).filter(puts).count() as u64);
        let seconds = done.elapsed_ns as f64 / 1e9;
        eprintln!("{mode:?}: {:.0} messages/s", MESSAGES as f64 / seconds);
    }
}

#[test]
fn a_load_over_rings_on_two_rails() {
    both_ways(XdpMode::Native);
}

#[test]
fn a_load_over_sockets_on_two_rails() {
    both_ways(XdpMode::Socket);
}
