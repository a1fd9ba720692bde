//! NIs that some of their node's shards serve: messages of all shards go by them, both ways, whatever carries
//! them.

use lnet_core::limits::Limits;
use lnet_tests::netns::{Interface, Namespace, Netns, Wiring, enter};
use lnet_tests::node::{By, LIMITS, Plan, config, nid_v4, policies, process, start, try_start};
use lnet_user::api::Lnet;
use lnet_user::node::{ConfigError, NiConfig, NodeConfig, NodeDriver, NodeError, XdpMode};
use lnet_user::runtime::Worker;
use lnet_user::{Nid, Policy};
use lnet_wire::{Net, NetType};

use crate::privileged;
use crate::tcp;
use crate::traffic::{carry_out_over, sizes};

const PORTALS: [u32; 8] = [9, 10, 11, 12, 13, 14, 15, 16];
const MIXED: [By; 4] = [By::Application, By::ShardThread, By::ShardThread, By::Application];
const SHARDS: u8 = 3;

/// A node of three shards whose NI is served by some of them.
fn served(namespace: &Namespace, nid: Nid, serving: &[u32]) -> NodeConfig {
    let ni = NiConfig::new(nid, &namespace.interface().name).serving_shards(serving.to_vec());
    let limits = Limits { event_queues: 64, ..LIMITS };
    let config = config(namespace, nid).nis(vec![ni]).limits(limits);
    config.shards(SHARDS.into()).policies(policies(SHARDS))
}

/// Puts and Gets of every size and policy, there and back. Frames arrive at the shards that serve, and at no
/// others.
fn there_and_back(queues: u16, modes: [XdpMode; 2], serving: [&[u32]; 2]) {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { queues, mtu_bytes: 9000, ..Wiring::default() });
    let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let start_as =
        |namespace, nid, mode, serving| start(namespace, &served(namespace, nid, serving).mode(mode));
    let near = start_as(netns.a(), a, modes[0], serving[0]);
    let far = start_as(netns.b(), b, modes[1], serving[1]);
    let plan = |from, to| Plan::of_sizes(vec![(process(from), process(to))], &PORTALS, &sizes());
    // What arrives for others is handed over, and what finds no room there comes again.
    let forgiven = ["misdirected", "sibling_busy", "ring dropped", "ring full"];
    let both = |ended: crate::traffic::Ended| -> (NodeDriver, Vec<Worker>) { (ended.node, ended.workers) };
    let (near, far) = carry_out_over(&forgiven, plan(a, b), near, far, &MIXED);
    let (far, near) = carry_out_over(&forgiven, plan(b, a), both(far), both(near), &MIXED);
    for (ended, (mode, serving)) in [near, far].iter().zip(modes.into_iter().zip(serving)) {
        assert_eq!(ended.node.mode(), mode);
        for (shard, worker) in (0..).zip(&ended.workers) {
            let received = worker.xdp().unwrap().counters().frames_received;
            assert_eq!(
                received != 0,
                serving.contains(&shard),
                "{received} frames at shard {shard} of {serving:?}"
            );
        }
    }
}

#[test]
fn rings_are_on_the_shards_that_serve() {
    there_and_back(1, [XdpMode::Native; 2], [&[1], &[2]]);
}

#[test]
fn rings_of_several_queues_are_on_the_shards_that_serve() {
    there_and_back(4, [XdpMode::Native, XdpMode::Generic], [&[0, 2], &[0]]);
}

#[test]
fn sockets_are_on_the_shards_that_serve() {
    there_and_back(1, [XdpMode::Socket; 2], [&[1], &[2]]);
}

#[test]
fn rings_and_sockets_are_on_the_shards_that_serve() {
    there_and_back(2, [XdpMode::Native, XdpMode::Socket], [&[2, 1], &[0, 2]]);
}

/// Loads both ways between nodes of two shards, by node and rail served by these; the shards of each that
/// have sent something.
fn tcp_load(serving: [&[&[u32]]; 2]) -> [Vec<bool>; 2] {
    let netns = Netns::new(Wiring { rails: serving[0].len() as u8, ..Wiring::default() });
    let namespaces = [netns.a(), netns.b()];
    let known = namespaces.map(tcp::nids);
    let started = |node: usize| {
        let base = config(namespaces[node], Nid::LO);
        let mut policies = base.policies.clone();
        policies.push((17, Policy::Pin(0)));
        let places = known[node].iter().zip(namespaces[node].interfaces()).zip(serving[node]);
        let ni = |((nid, interface), serving): ((&Nid, &Interface), &&[u32])| {
            NiConfig::new(*nid, &interface.name).serving_shards(serving.to_vec())
        };
        let config = base.nis(places.map(ni).collect()).policies(policies).limits(Limits::DEFAULT);
        let lnet = enter(namespaces[node], || Lnet::start(&config).unwrap());
        lnet.open().unwrap();
        lnet
    };
    let sent = |lnet: &Lnet| {
        let bytes = |worker: &mut Worker| worker.counted("stream_bytes_sent");
        lnet.shards().map(|shard| shard.run(bytes).unwrap().unwrap() != 0).collect()
    };
    let nodes = [started(0), started(1)];
    tcp::both_ways(&nodes, [&known[0], &known[1]], 1000);
    nodes.each_ref().map(sent)
}

#[test]
fn connections_are_on_the_shards_that_serve() {
    if privileged() {
        assert_eq!(tcp_load([&[&[1]], &[&[0]]]), [[false, true], [true, false]]);
    }
}

/// A peer's NIs on two nets have their connections on two shards.
#[test]
fn each_ni_has_its_connections_on_its_own_shards() {
    if privileged() {
        assert_eq!(tcp_load([&[&[1], &[0]], &[&[0], &[]]])[0], [true, true]);
    }
}

#[test]
fn what_does_not_go_together_is_told() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let namespace = netns.a();
    let nid = nid_v4(namespace.interface(), 0);
    let refused = try_start(namespace, &served(namespace, nid, &[0, 3])).map(drop).unwrap_err();
    assert!(
        matches!(refused, NodeError::Config(ConfigError::NoShard { shard: 3, last: 2, .. })),
        "{refused}"
    );
    // Two NIs of one interface share its rings.
    let interface = namespace.interface();
    let nis = |serving: Vec<u32>| {
        let first = NiConfig::new(nid, &interface.name).serving_shards(vec![1]);
        let large = Nid::new_ip(Net::new(NetType::XDP, 1), interface.ipv6.unwrap().into()).unwrap();
        let second = NiConfig::new(large, &interface.name);
        served(namespace, nid, &[]).nis(vec![first, second.serving_shards(serving)])
    };
    let refused = try_start(namespace, &nis(vec![0, 1])).map(drop).unwrap_err();
    assert!(refused.to_string().contains("the rings of another NI, on CPT [1]"), "{refused}");
    drop(try_start(namespace, &nis(vec![1])).unwrap());
    drop(try_start(namespace, &nis(vec![0]).mode(XdpMode::Socket)).unwrap());
}
