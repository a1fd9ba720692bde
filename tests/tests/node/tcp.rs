//! Nodes of the tcp LND over veth: loads of which every byte is checked, peers that go and come back, and
//! dialers that are no peers.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use lnet_core::limits::Limits;
use lnet_load::{Initiator, LoadPlan, Scheme, Target};
use lnet_tests::netns::{Interface, Namespace, Netns, Wiring, enter};
use lnet_tests::node::config;
use lnet_user::api::Lnet;
use lnet_user::node::{NiConfig, NodeConfig};
use lnet_user::{Nid, Policy};
use lnet_wire::{Net, NetType};

use crate::privileged;

const MESSAGES: u64 = 3000;
const PATIENCE: Duration = Duration::from_secs(10);

fn nid(address: impl Into<IpAddr>, rail: u16) -> Nid {
    Nid::new_ip(Net::new(NetType::TCP, rail), address.into()).unwrap()
}

fn nid_v4(interface: &Interface, rail: u16) -> Nid {
    nid(interface.ipv4, rail)
}

pub(crate) fn nids(namespace: &Namespace) -> Vec<Nid> {
    namespace.interfaces().iter().zip(0..).map(|(interface, rail)| nid_v4(interface, rail)).collect()
}

/// A node of two shards at these NIDs, each on the interface in its place, with two connections for each
/// direction.
fn start(namespace: &Namespace, nids: &[Nid]) -> Lnet {
    let interfaces = namespace.interfaces().iter();
    let ni =
        |(nid, interface): (&Nid, &Interface)| NiConfig::new(*nid, &interface.name).conns_per_peer(Some(2));
    let nis = nids.iter().zip(interfaces).map(ni).collect();
    let base = config(namespace, Nid::LO);
    let mut policies = base.policies.clone();
    policies.push((17, Policy::Pin(0)));
    let config: NodeConfig = base.nis(nis).policies(policies).limits(Limits::DEFAULT);
    let lnet = enter(namespace, || Lnet::start(&config).unwrap());
    lnet.open().unwrap();
    lnet
}

/// Both nodes are targets of one another at the same time.
pub(crate) fn both_ways(nodes: &[Lnet; 2], nids: [&[Nid]; 2], messages: u64) {
    let scheme = Scheme { seed: 4, ..Scheme::default() };
    let targets = nodes.each_ref().map(|node| Target::start(node, &scheme).unwrap());
    let plan = |targets: &[Nid]| LoadPlan { messages, ..LoadPlan::new(scheme.clone(), targets.to_vec()) };
    let initiators = [(&nodes[0], nids[1]), (&nodes[1], nids[0])]
        .map(|(node, to)| Initiator::start(node, &plan(to)).unwrap());
    let done = initiators.map(Initiator::wait);
    let [near, far] = targets.map(Target::stop);
    for (done, seen) in done.iter().zip([&far, &near]) {
        assert_eq!((done.faults.count, seen.faults.count), (0, 0), "{:?} {:?}", done.faults, seen.faults);
        assert_eq!(done.puts().messages + done.gets().messages, messages);
        assert_eq!((seen.puts, seen.gets), (done.puts(), done.gets()));
        assert!(seen.by_shard.iter().all(|count| *count > messages / 10), "{:?}", seen.by_shard);
    }
}

#[test]
fn a_load_both_ways_on_two_nets() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { rails: 2, ..Wiring::default() });
    let known = [netns.a(), netns.b()].map(nids);
    let nodes = [(netns.a(), &known[0]), (netns.b(), &known[1])].map(|(node, nids)| start(node, nids));
    both_ways(&nodes, [&known[0], &known[1]], MESSAGES);
}

#[test]
fn a_load_between_large_nids() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let large = |namespace: &Namespace| vec![nid(namespace.interface().ipv6.unwrap(), 0)];
    let known = [netns.a(), netns.b()].map(large);
    let nodes = [(netns.a(), &known[0]), (netns.b(), &known[1])].map(|(node, nids)| start(node, nids));
    both_ways(&nodes, [&known[0], &known[1]], MESSAGES / 3);
}

#[test]
fn a_peer_that_comes_back_is_a_peer_again() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let known = [netns.a(), netns.b()].map(nids);
    let near = start(netns.a(), &known[0]);
    for _life in 0..3 {
        let far = start(netns.b(), &known[1]);
        // The first connection may be one of the life before, of which the end is still to be seen.
        let begun = Instant::now();
        while let Err(error) = near.ping(known[1][0], None, Duration::from_secs(2)) {
            assert!(begun.elapsed() < PATIENCE, "{error}");
            std::thread::sleep(Duration::from_millis(100));
        }
        far.ping(known[0][0], None, PATIENCE).unwrap();
    }
    // The last life is over, and so are its connections.
    let error = near.ping(known[1][0], None, Duration::from_secs(2)).unwrap_err();
    assert!(error.to_string().contains("failed to ping"), "{error}");
}

#[test]
fn a_dialler_that_is_no_peer_is_turned_away_and_harms_no_peer() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let known = [netns.a(), netns.b()].map(nids);
    let nodes = [(netns.a(), &known[0]), (netns.b(), &known[1])].map(|(node, nids)| start(node, nids));
    let to = (netns.b().interface().ipv4, 988);
    let strangers = enter(netns.a(), || {
        let dial = |_| TcpStream::connect(to).unwrap();
        (0..200).map(dial).collect::<Vec<_>>()
    });
    both_ways(&nodes, [&known[0], &known[1]], MESSAGES / 10);
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        // Its source port is not a privileged one: whatever it says, it hears nothing.
        let _ = stranger.write_all(b"GET / HTTP/1.1\r\n\r\n");
        let mut heard = Vec::new();
        let _ = stranger.read_to_end(&mut heard);
        assert!(heard.is_empty(), "{heard:?}");
    }
    nodes[0].ping(known[1][0], None, PATIENCE).unwrap();
}

/// A ping of an own NID goes over a connection as a kernel node's does: it shows whether the NI works.
#[test]
fn an_ni_pings_itself_over_its_own_connection() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { rails: 2, ..Wiring::default() });
    let own = nids(netns.a());
    let node = start(netns.a(), &own);
    for nid in &own {
        let pinged = node.ping(*nid, Some(*nid), PATIENCE).unwrap();
        assert_eq!(pinged.nids, own);
    }
    // Both ends of a stream are at the same address.
    let streams = enter(netns.a(), || std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap());
    let address = |end: &str| end.split(':').next().map(str::to_owned);
    let is_own = |line: &&str| {
        let mut ends = line.split_whitespace().skip(1);
        let (local, remote) = (ends.next().and_then(address), ends.next().and_then(address));
        local == remote && local.is_some_and(|local| local != "00000000")
    };
    assert!(streams.lines().filter(is_own).count() >= 2 * own.len(), "{streams}");
}
