//! NIs that come and go while nodes run.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use lnet_core::lnd::NiId;
use lnet_model::lnd::NiFact;
use lnet_tests::netns::{Interface, Namespace, Netns, Wiring, enter, ip, wait_until};
use lnet_tests::node::{Outcome, Serving, Steady, config, nid_v4};
use lnet_user::api::Lnet;
use lnet_user::node::{NiConfig, NiState, NodeConfig, XdpMode};
use lnet_wire::Nid;

use crate::privileged;
use crate::traffic::PATIENCE;

/// How long a message of these tests may be under way.
const LND_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a message of each rail may take before its initiator gives it up.
const GIVEN_UP_AFTER: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(15)];
const ROUNDS: u32 = 50;

/// Two nodes on two rails, a net each, with a load by both.
pub(crate) struct Rails {
    pub(crate) netns: Netns,
    pub(crate) near: Lnet,
    pub(crate) far: Lnet,
    serving: Serving,
    loads: Vec<Steady>,
}

/// The NI of a rail on its own net, in a mode.
pub(crate) fn ni(interface: &Interface, rail: u16, mode: XdpMode) -> NiConfig {
    NiConfig::new(nid_v4(interface, rail), &interface.name).mode(Some(mode))
}

/// A configuration with room for both rails over rings.
fn config_of(netns: &Namespace, nis: Vec<NiConfig>) -> NodeConfig {
    let config = config(netns, Nid::LO);
    let frames = Some(config.frames_for(2, 4));
    config.frames(frames).lnd_timeout(LND_TIMEOUT).nis(nis)
}

impl Rails {
    /// The nodes of both ends, which let no frames in yet.
    pub(crate) fn start_nodes(modes: [XdpMode; 2]) -> (Netns, [Lnet; 2]) {
        let netns = Netns::new(Wiring { rails: 2, ..Wiring::default() });
        let start = |namespace| {
            let nis = |namespace: &Namespace| -> Vec<NiConfig> {
                let rails = namespace.interfaces().iter().zip(0..).zip(modes);
                rails.map(|((interface, rail), mode)| ni(interface, rail, mode)).collect()
            };
            enter(namespace, || Lnet::start(&config_of(namespace, nis(namespace))).unwrap())
        };
        let nodes = [netns.a(), netns.b()].map(start);
        (netns, nodes)
    }

    pub(crate) fn start(modes: [XdpMode; 2]) -> Self {
        let (netns, [near, far]) = Self::start_nodes(modes);
        let serving = Serving::start(&far, 2);
        near.open().unwrap();
        far.open().unwrap();
        let load = |(rail, interface)| {
            Steady::start(&near, rail, nid_v4(interface, rail as u16), GIVEN_UP_AFTER[rail])
        };
        let loads: Vec<Steady> = netns.b().interfaces().iter().enumerate().map(load).collect();
        for load in &loads {
            wait_until("the load runs", PATIENCE, || load.ok() > 100);
        }
        Self { netns, near, far, serving, loads }
    }

    /// Ends the loads: rail 1 has lost nothing and doubled nothing, and on rail 0 everything has ended.
    pub(crate) fn end(self) -> (Netns, [Lnet; 2], Outcome) {
        let mut outcomes: Vec<Outcome> = self.loads.into_iter().map(|load| load.stop(PATIENCE)).collect();
        let arrived = self.serving.stop();
        let (steady, changing) = (outcomes.pop().unwrap(), outcomes.pop().unwrap());
        assert_eq!(steady.failed, 0, "by the rail that nothing happened to");
        let lost: HashSet<&u64> =
            changing.acked.union(&steady.acked).filter(|put| !arrived.contains(put)).collect();
        assert!(lost.is_empty(), "acknowledged and not there: {lost:?}");
        let by_steady = arrived.iter().filter(|number| *number >> 48 == 1).count();
        assert_eq!(by_steady, steady.acked.len(), "each Put of rail 1 was acknowledged");
        (self.netns, [self.near, self.far], changing)
    }
}

/// Waits until every frame is with a shard or the kernel.
fn assert_frames_conserved(lnet: &Lnet) {
    let missing = || {
        let Some(census) = lnet.with_node(|node| node.frames()) else { return 0 };
        let shards = (0..lnet.shard_count()).map(|shard| lnet.shard(shard).unwrap());
        let count = |shard: lnet_user::api::ShardHandle| {
            shard.run(|worker| worker.xdp().map_or(0, |lnd| lnd.frames_count())).unwrap()
        };
        i64::from(census.user) - shards.map(count).sum::<usize>() as i64
    };
    // Frames on their way home between shards are with none.
    wait_until("all frames are home", PATIENCE, || missing() == 0);
}

fn add_and_remove(modes: [XdpMode; 2], at_near: bool, rounds: u32) {
    if !privileged() {
        return;
    }
    let rails = Rails::start(modes);
    let (lnet, namespace) =
        if at_near { (&rails.near, rails.netns.a()) } else { (&rails.far, rails.netns.b()) };
    let config = ni(namespace.interface(), 0, modes[0]);
    let mut number = NiId(1);
    let begun = Instant::now();
    for round in 0..rounds {
        let patience = Duration::from_millis([0, 20, 2][round as usize % 3]);
        enter(namespace, || lnet.remove_ni(number, patience)).unwrap();
        assert_eq!(lnet.nis().len(), 1);
        number = enter(namespace, || lnet.add_ni(&config)).unwrap();
        let before = rails.loads.iter().map(Steady::ok).collect::<Vec<_>>();
        for (load, before) in rails.loads.iter().zip(before) {
            wait_until("the load goes on", PATIENCE, || load.ok() > before + 5);
        }
    }
    eprintln!("{rounds} rounds in {:?}", begun.elapsed());
    let (_netns, [near, far], _) = rails.end();
    for lnet in [&near, &far] {
        assert_frames_conserved(lnet);
    }
}

#[test]
fn rings_beside_rings_come_and_go_at_the_initiator() {
    add_and_remove([XdpMode::Native; 2], true, ROUNDS);
}

#[test]
fn rings_beside_rings_come_and_go_at_the_target() {
    add_and_remove([XdpMode::Native; 2], false, ROUNDS);
}

#[test]
fn rings_come_and_go_beside_sockets() {
    add_and_remove([XdpMode::Native, XdpMode::Socket], true, 6);
}

#[test]
fn sockets_come_and_go_beside_rings() {
    add_and_remove([XdpMode::Socket, XdpMode::Generic], false, 6);
}

#[test]
fn sockets_come_and_go_beside_sockets() {
    add_and_remove([XdpMode::Socket; 2], true, 6);
}

/// A node deletes all its NIs, which ends its life for its peer, and adds them again one by one; its peer
/// makes its first one anew in between. What the peer knows of the former life by its other rail is in no
/// answer's way.
#[test]
fn rails_that_come_back_on_both_sides_answer() {
    if !privileged() {
        return;
    }
    for modes in [[XdpMode::Socket; 2], [XdpMode::Native; 2]] {
        let (netns, [near, far]) = Rails::start_nodes(modes);
        near.open().unwrap();
        far.open().unwrap();
        let nis = |namespace: &Namespace| {
            [0, 1].map(|rail| ni(&namespace.interfaces()[rail], rail as u16, modes[rail]))
        };
        let (near_nis, far_nis) = (nis(netns.a()), nis(netns.b()));
        // Long enough for a repeated ping, not for a message that is given up.
        let ping = |from: &Lnet, to: &NiConfig| {
            let pinged = from.ping(to.nid, None, LND_TIMEOUT / 2);
            pinged.unwrap_or_else(|error| panic!("{modes:?}: {}: {error}", to.nid));
        };
        let delete = |lnet: &Lnet, namespace, number| {
            enter(namespace, || lnet.remove_ni(NiId(number), Duration::from_millis(20))).unwrap();
        };
        let add = |lnet: &Lnet, namespace, config: &NiConfig| {
            enter(namespace, || lnet.add_ni(config)).unwrap();
        };
        for _ in 0..4 {
            far_nis.iter().for_each(|ni| ping(&near, ni));
            near_nis.iter().for_each(|ni| ping(&far, ni));
        }
        delete(&near, netns.a(), 1);
        delete(&near, netns.a(), 2);
        add(&near, netns.a(), &near_nis[0]);
        delete(&far, netns.b(), 1);
        add(&far, netns.b(), &far_nis[0]);
        ping(&near, &far_nis[0]);
        add(&near, netns.a(), &near_nis[1]);
        ping(&near, &far_nis[1]);
        near_nis.iter().for_each(|ni| ping(&far, ni));
    }
}

/// The processor time of a node's shards so far.
fn processor_time(lnet: &Lnet) -> Duration {
    let of_shard = |shard| {
        let stat = |_: &mut _| std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let stat = lnet.shard(shard).unwrap().run(stat).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap()
    };
    Duration::from_millis(10) * (0..lnet.shard_count()).map(of_shard).sum::<u32>()
}

/// An interface that vanishes under load: the node lives on, and its NI can be removed and added again.
#[test]
fn an_interface_that_vanishes() {
    if !privileged() {
        return;
    }
    for modes in [[XdpMode::Native; 2], [XdpMode::Socket, XdpMode::Native]] {
        let rails = Rails::start(modes);
        ip(rails.netns.a(), "link delete dev veth-a");
        let is_up = |lnet: &Lnet| lnet.nis()[0].down.is_none();
        wait_until("the nodes notice", PATIENCE, || !is_up(&rails.near) && !is_up(&rails.far));
        let ok = rails.loads[1].ok();
        wait_until("the other rail goes on", PATIENCE, || rails.loads[1].ok() > ok + 100);
        rails.netns.restore_rail([2; 2], [2; 2]);
        for (lnet, namespace) in [(&rails.near, rails.netns.a()), (&rails.far, rails.netns.b())] {
            let config = ni(namespace.interface(), 0, modes[0]);
            let refused = enter(namespace, || lnet.add_ni(&config)).unwrap_err().to_string();
            assert!(refused.contains("a local nid already"), "{refused}");
            enter(namespace, || lnet.remove_ni(NiId(1), Duration::ZERO)).unwrap();
            enter(namespace, || lnet.add_ni(&config)).unwrap();
            assert!(is_up(lnet));
        }
        let ok = rails.loads[0].ok();
        wait_until("the rail carries again", PATIENCE, || rails.loads[0].ok() > ok + 100);
        let (_netns, [near, far], _) = rails.end();
        assert_frames_conserved(&near);
        assert_frames_conserved(&far);
    }
}

/// A node without anything to do sleeps, also when an interface of its has vanished.
#[test]
fn what_is_idle_sleeps() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { rails: 2, ..Wiring::default() });
    let nis = netns.a().interfaces().iter().zip(0..).zip([XdpMode::Native, XdpMode::Socket]);
    let nis = nis.map(|((interface, rail), mode)| ni(interface, rail, mode)).collect();
    let lnet = enter(netns.a(), || Lnet::start(&config_of(netns.a(), nis)).unwrap());
    lnet.open().unwrap();
    for vanishing in [Some("veth-a"), Some("veth-a1"), None] {
        std::thread::sleep(Duration::from_millis(300));
        let before = processor_time(&lnet);
        std::thread::sleep(Duration::from_secs(2));
        let used = processor_time(&lnet).saturating_sub(before);
        assert!(used <= Duration::from_millis(50), "{used:?} in 2 s before {vanishing:?} vanishes");
        if let Some(name) = vanishing {
            ip(netns.a(), &format!("link delete dev {name}"));
        }
    }
}

/// What is refused leaves the node as it was.
#[test]
fn refused_nis_change_nothing() {
    if !privileged() {
        return;
    }
    let rails = Rails::start([XdpMode::Native, XdpMode::Socket]);
    let (near, namespace) = (&rails.near, rails.netns.a());
    let interfaces = namespace.interfaces();
    let slots = || near.topology().nis().to_vec();
    // Routes of an interface change with its addresses, and frames are counted all the time.
    let lasting = |mut ni: NiState| {
        ni.facts
            .iter_mut()
            .filter(|fact| matches!(fact, Some(NiFact::Counts(_))))
            .for_each(|fact| *fact = None);
        NiState { reach: None, ..ni }
    };
    let nis = || near.nis().into_iter().map(lasting).collect::<Vec<_>>();
    let before = (nis(), slots());
    let refused = |config: &NiConfig, parts: &[&str]| {
        let error = enter(namespace, || near.add_ni(config)).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        assert_eq!((nis(), slots()), before);
    };
    let other = Interface { ipv4: "10.211.0.77".parse().unwrap(), ..interfaces[0].clone() };
    let third = ni(&other, 2, XdpMode::Native);
    refused(&third, &["does not have the address", "10.211.0.77"]);
    refused(&ni(&interfaces[0], 0, XdpMode::Native), &["a local nid already"]);
    refused(&ni(&interfaces[0], 5, XdpMode::Native), &["the same address"]);
    refused(&third.clone().interface("absent0".to_owned()), &["absent0"]);
    ip(namespace, &format!("address add 10.211.0.77/24 dev {}", other.name));
    let held = enter(namespace, || std::net::UdpSocket::bind("10.211.0.77:988").unwrap());
    for mode in [XdpMode::Native, XdpMode::Socket] {
        refused(&third.clone().mode(Some(mode)), &["988"]);
    }
    drop(held);
    refused(&third.clone().udp_port(Some(0)), &["port 0", "1 to 65535 is expected"]);
    refused(&third.clone().queues(Some(4)), &["2 receive", "4 of each"]);
    refused(&third.clone().mode(Some(XdpMode::Generic)), &["native mode", "expected"]);
    // What was refused may come after all: on a port of its own, sharing the program of its interface.
    let fine = third.udp_port(Some(4000));
    let number = enter(namespace, || near.add_ni(&fine)).unwrap();
    assert_eq!((number, near.nis().len()), (NiId(3), 3));
    assert_eq!(near.with_node(|node| node.programs().len()), 1);
    let ok = rails.loads[0].ok();
    enter(namespace, || near.remove_ni(number, Duration::ZERO)).unwrap();
    assert_eq!(nis(), before.0);
    wait_until("the load goes on", PATIENCE, || rails.loads[0].ok() > ok + 100);
    let (_netns, [near, far], changing) = rails.end();
    assert_eq!(changing.failed, 0);
    assert_frames_conserved(&near);
    assert_frames_conserved(&far);
}

/// An interface for which there are too few frames, and more than the node was made for.
#[test]
fn the_memory_for_nis_is_bounded_from_the_start() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { rails: 2, ..Wiring::default() });
    let namespace = netns.a();
    let [first, second] = [0, 1].map(|rail| ni(&namespace.interfaces()[rail], rail as u16, XdpMode::Native));
    let config = config_of(namespace, Vec::new());
    let frames = Some(config.frames_for(1, 2));
    let start = |config| enter(namespace, || Lnet::start(&config).unwrap());
    let lnet = start(config.clone().frames(frames));
    let add = |lnet: &Lnet, config| enter(namespace, || lnet.add_ni(config));
    let first_ni = add(&lnet, &first).unwrap();
    let refused = add(&lnet, &second).unwrap_err().to_string();
    assert!(refused.contains("frames are wanted, the node has"), "{refused}");
    // There is room for either, one after the other, and for sockets anyway.
    let socket = second.clone().mode(Some(XdpMode::Socket));
    let socket_ni = add(&lnet, &socket).unwrap();
    enter(namespace, || lnet.remove_ni(socket_ni, Duration::ZERO)).unwrap();
    enter(namespace, || lnet.remove_ni(first_ni, Duration::ZERO)).unwrap();
    assert_eq!(lnet.with_node(|node| node.frames()), None, "the memory goes with the last NI over rings");
    add(&lnet, &second).unwrap();
    drop(lnet);
    let lnet = start(config.queues_max(3));
    add(&lnet, &first).unwrap();
    let refused = add(&lnet, &second).unwrap_err().to_string();
    assert!(refused.contains("4 receive queues and sockets") && refused.contains("at most 3"), "{refused}");
}

/// The policy of a portal without entries changes under load on others.
#[test]
fn policies_change_under_load() {
    use lnet_wire::steer::Policy;
    if !privileged() {
        return;
    }
    let rails = Rails::start([XdpMode::Native, XdpMode::Socket]);
    for round in 0..10_u8 {
        let policy = if round % 2 == 0 { Policy::Initiator } else { Policy::Pin(1) };
        rails.far.set_policy(20, policy).unwrap();
        let ok = rails.loads.iter().map(Steady::ok).collect::<Vec<_>>();
        for (load, ok) in rails.loads.iter().zip(ok) {
            wait_until("the load goes on", PATIENCE, || load.ok() > ok + 20);
        }
    }
    let refused = rails.far.set_policy(16, Policy::Pin(0)).unwrap_err().to_string();
    assert!(refused.contains("portal 16 has entries"), "{refused}");
    let refused = rails.far.set_policy(20, Policy::Pin(9)).unwrap_err().to_string();
    assert!(refused.contains("shard 9 of a node with 2"), "{refused}");
    let (_netns, _, changing) = rails.end();
    assert_eq!(changing.failed, 0);
}
