//! Nodes over UDP sockets, and those that they talk to: any mode, either way, with losses and without
//! privileges.

use std::time::Duration;

use lnet_core::limits::Limits;
use lnet_tests::netns::{Namespace, Netns, Wiring, enter, ip, wait_until};
use lnet_tests::node::{
    By, Driven, Flood, Flooded, Flooder, LIMITS, Plan, Putter, Receiver, config, nid_v4, nid_v6, process,
    settle, start, stop_all, try_start,
};
use lnet_user::node::{NiConfig, NodeConfig, NodeDriver, XdpMode};
use lnet_user::runtime::Worker;
use lnet_wire::{MessageType, Nid};
use rustix::thread::CapabilitySet;

use crate::privileged;
use crate::traffic::{PATIENCE, carry_out_with_losses, sizes};

const PORTALS: [u32; 8] = [9, 10, 11, 12, 13, 14, 15, 16];
/// A port that everybody may have.
const FREE_PORT: u16 = 4988;
const MIXED: [By; 4] = [By::Application, By::ShardThread, By::ShardThread, By::Application];

type Started = (NodeDriver, Vec<Worker>);

/// Carries a plan out from a node to another one. Nothing may be lost or left over; what the kernel brought
/// to the wrong shard was handed over.
fn carry_out(plan: Plan, source: Started, target: Started, by: &[By]) -> (Started, Started) {
    carry_out_after(&[], plan, source, target, by)
}

/// Carries out a plan ([`carry_out`]) by nodes that have lost something before.
fn carry_out_after(
    lost: &[(&str, u64)],
    plan: Plan,
    source: Started,
    target: Started,
    by: &[By],
) -> (Started, Started) {
    let ((source, target), mut losses) = carry_out_with_losses(plan, source, target, by);
    // What finds no room, in a socket or with a sibling, comes again.
    let recovered = ["misdirected", "sibling_busy", "ring dropped"];
    losses.retain(|(name, _)| !recovered.contains(&name.as_str()));
    let losses: Vec<_> = losses.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(losses, lost);
    ((source.node, source.workers), (target.node, target.workers))
}

fn nids(netns: &Netns) -> [Nid; 2] {
    [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0))
}

/// A configuration with enough event queues for plans one after the other.
fn config_as(mode: XdpMode, namespace: &Namespace, nid: Nid) -> NodeConfig {
    let limits = Limits { event_queues: 64, ..LIMITS };
    config(namespace, nid).mode(mode).limits(limits)
}

fn start_as(mode: XdpMode, namespace: &Namespace, nid: Nid) -> Started {
    start(namespace, &config_as(mode, namespace, nid))
}

fn mode_of(mode: XdpMode) -> XdpMode {
    if mode == XdpMode::Auto { XdpMode::Native } else { mode }
}

fn received(workers: &[Worker]) -> Vec<u64> {
    workers.iter().map(|worker| worker.xdp().expect("there is an NI").counters().frames_received).collect()
}

/// Puts and Gets of every size and policy, there and back.
fn there_and_back(mtu_bytes: u16, ipv6: bool, modes: [XdpMode; 2], by: &[By]) {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { mtu_bytes, ..Wiring::default() });
    let [a, b] = [netns.a(), netns.b()].map(|namespace| {
        let interface = namespace.interface();
        if ipv6 { nid_v6(interface) } else { nid_v4(interface, 0) }
    });
    let near = start_as(modes[0], netns.a(), a);
    let far = start_as(modes[1], netns.b(), b);
    for ((node, _), mode) in [&near, &far].into_iter().zip(modes) {
        assert_eq!(node.mode(), mode_of(mode));
    }
    let sizes = sizes();
    let plan = |from, to| Plan::of_sizes(vec![(process(from), process(to))], &PORTALS, &sizes);
    let (near, far) = carry_out(plan(a, b), near, far, by);
    let (far, near) = carry_out(plan(b, a), far, near, by);
    for (_, workers) in [&near, &far] {
        let received = received(workers);
        assert!(received.iter().all(|frames| *frames != 0), "{received:?}");
    }
}

#[test]
fn socket_and_native() {
    there_and_back(1500, false, [XdpMode::Socket, XdpMode::Native], &MIXED);
}

#[test]
fn socket_and_native_of_several_buffers_on_ipv6() {
    there_and_back(9000, true, [XdpMode::Socket, XdpMode::Native], &MIXED);
}

#[test]
fn socket_and_generic() {
    there_and_back(1500, true, [XdpMode::Socket, XdpMode::Generic], &MIXED);
}

#[test]
fn socket_and_generic_of_several_buffers() {
    there_and_back(9000, false, [XdpMode::Socket, XdpMode::Generic], &[By::ShardThread]);
}

#[test]
fn socket_and_socket() {
    there_and_back(1500, false, [XdpMode::Socket; 2], &[By::Application]);
}

#[test]
fn socket_and_socket_on_ipv6_of_the_largest_mtu() {
    there_and_back(65535, true, [XdpMode::Socket; 2], &MIXED);
}

#[test]
fn socket_and_native_of_the_largest_mtu() {
    there_and_back(65535, false, [XdpMode::Socket, XdpMode::Native], &MIXED);
}

/// The node with rings drops what arrives there; the sockets' end must repeat it, and be repeated to.
#[test]
fn what_is_lost_on_the_way_comes_again() {
    const ONE_PERCENT: u32 = 10_000;
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, b] = nids(&netns);
    let near = start_as(XdpMode::Socket, netns.a(), a);
    let far = start_as(XdpMode::Native, netns.b(), b);
    for message_type in [MessageType::Put, MessageType::Get, MessageType::Ack, MessageType::Reply] {
        far.0.programs()[0].lock().unwrap().set_fault(message_type, ONE_PERCENT, 0).unwrap();
    }
    let sizes = [0, 64, 1000, 5000, 65_536, 1 << 20];
    let plan = |from, to| Plan::of_sizes(vec![(process(from), process(to))], &PORTALS, &sizes);
    let (near, far) = carry_out(plan(a, b), near, far, &MIXED);
    let (far, near) = carry_out(plan(b, a), far, near, &MIXED);
    let dropped = far.0.xdp_frames().unwrap().reasons["fault_dropped"];
    assert!(dropped > 20, "{dropped} frames were dropped");
    let resent: u64 = near
        .1
        .iter()
        .map(|worker| worker.xdp().expect("there is an NI").transfer_counters().frames_resent)
        .sum();
    assert_ne!(resent, 0);
}

#[test]
fn a_node_with_sockets_goes_and_comes_back() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, b] = nids(&netns);
    let (_source, source_workers) = start_as(XdpMode::Native, netns.a(), a);
    let (target, target_workers) = start_as(XdpMode::Socket, netns.b(), b);
    let flood = Flood::new(process(b), 1 << 40, 64);
    let mut target = (Flooded::start_all(&flood, target.steering(), target_workers), target);
    let sources = Flooder::start_all(&flood, By::Application, source_workers);
    wait_until("the flood runs", PATIENCE, || flood.acked() > 1000);
    for _ in 0..5 {
        let (driven, node) = target;
        drop(node);
        drop(stop_all(driven));
        let acked = flood.acked();
        let (node, workers) = start_as(XdpMode::Socket, netns.b(), b);
        target = (Flooded::start_all(&flood, node.steering(), workers), node);
        wait_until("the flood goes on", PATIENCE, || flood.acked() > acked + 1000);
    }
    flood.stop();
    wait_until("every Put has ended", PATIENCE, || flood.acked() + flood.failed() == flood.started());
    let (mut workers, _) = stop_all(sources);
    workers.extend(stop_all(target.0).0);
    settle(&mut workers, PATIENCE);
}

/// Runs `body` on a thread inside a namespace, as a user without privileges; so are those that it starts.
fn unprivileged<R: Send>(namespace: &Namespace, body: impl FnOnce() -> R + Send) -> R {
    enter(namespace, || {
        rustix::thread::set_no_new_privs(true).unwrap();
        rustix::thread::set_thread_groups(&[]).unwrap();
        let nobody = rustix::thread::Gid::from_raw(65534);
        rustix::thread::set_thread_res_gid(nobody, nobody, nobody).unwrap();
        rustix::thread::set_thread_uid(rustix::thread::Uid::from_raw(65534)).unwrap();
        let sets = rustix::thread::capabilities(None).unwrap();
        assert_eq!(sets.effective | sets.permitted, CapabilitySet::empty());
        body()
    })
}

#[test]
fn nobody_may_run_a_node_with_sockets() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, b] = nids(&netns);
    let on = |namespace, nid, mode| config_as(mode, namespace, nid).udp_port(FREE_PORT);
    let far = start(netns.b(), &on(netns.b(), b, XdpMode::Native));
    let near_config = on(netns.a(), a, XdpMode::Socket);
    unprivileged(netns.a(), || {
        let (mut node, workers) = NodeDriver::start(&near_config).unwrap_or_else(|error| panic!("{error}"));
        node.open().unwrap();
        assert_eq!(node.mode(), XdpMode::Socket);
        let sizes = sizes();
        let plan = |from, to| Plan::of_sizes(vec![(process(from), process(to))], &PORTALS, &sizes);
        let (near, far) = carry_out(plan(a, b), (node, workers), far, &MIXED);
        carry_out(plan(b, a), far, near, &MIXED);
    });
}

#[test]
fn auto_takes_the_first_that_works_and_says_which() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, _] = nids(&netns);
    let auto = config(netns.a(), a).udp_port(FREE_PORT);
    assert_eq!(auto.xdp.mode, XdpMode::Auto);
    assert_eq!(start(netns.a(), &auto).0.mode(), XdpMode::Native);
    // Without the program.
    let error = |config: &NodeConfig| {
        unprivileged(netns.a(), || {
            NodeDriver::start(config).map(|(node, _)| node.mode()).map_err(|e| e.to_string())
        })
    };
    assert_eq!(error(&auto), Ok(XdpMode::Socket));
    let no_rings = |config: &NodeConfig| {
        let node = NodeDriver::start(config).unwrap().0;
        node.nis().find_map(|ni| ni.xdp?.no_rings)
    };
    let why = unprivileged(netns.a(), || no_rings(&auto)).unwrap();
    assert!(why.contains("CAP_BPF and CAP_NET_ADMIN"), "{why}");
    let asked_for = auto.clone().mode(XdpMode::Socket);
    assert_eq!(unprivileged(netns.a(), || no_rings(&asked_for)), None);
    // Nothing works: both reasons are told.
    let told = error(&auto.clone().udp_port(988)).unwrap_err();
    for part in ["no mode works", "CAP_BPF and CAP_NET_ADMIN", "udp port 988", "CAP_NET_BIND_SERVICE"] {
        assert!(told.contains(part), "{part:?} is not in {told:?}");
    }
    // What is asked for is had, or refused.
    let native = auto.clone().mode(XdpMode::Native);
    assert!(error(&native).unwrap_err().contains("CAP_BPF"));
    assert_eq!(error(&auto.mode(XdpMode::Socket)), Ok(XdpMode::Socket));
}

/// A bridge's driver knows nothing of XDP.
#[test]
fn auto_takes_generic_where_the_driver_has_no_xdp() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, b] = nids(&netns);
    let port = netns.a().interface();
    ip(netns.a(), "link add name bridge0 type bridge");
    ip(netns.a(), &format!("addr flush dev {}", port.name));
    ip(netns.a(), &format!("link set dev {} master bridge0", port.name));
    ip(netns.a(), &format!("addr add {}/24 dev bridge0", port.ipv4));
    ip(netns.a(), "link set dev bridge0 up");
    let nis = vec![NiConfig::new(a, "bridge0")];
    let on_bridge = config_as(XdpMode::Auto, netns.a(), a).nis(nis);
    let near = start(netns.a(), &on_bridge);
    assert_eq!(near.0.mode(), XdpMode::Generic);
    let far = start_as(XdpMode::Native, netns.b(), b);
    let sizes = [0, 64, 1300, 5000, 66_000];
    let plan = |from, to| Plan::of_sizes(vec![(process(from), process(to))], &PORTALS, &sizes);
    let (near, far) = carry_out(plan(a, b), near, far, &MIXED);
    carry_out(plan(b, a), far, near, &MIXED);
}

fn refused(namespace: &Namespace, config: &NodeConfig, parts: &[&str]) {
    let error = try_start(namespace, config).map(drop).unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}

#[test]
fn a_port_has_one_node() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, _] = nids(&netns);
    let socket = config(netns.a(), a).mode(XdpMode::Socket);
    let running = start(netns.a(), &socket);
    refused(netns.a(), &socket, &["udp port 988 of 10.211.0.1 is in use"]);
    let native = socket.clone().mode(XdpMode::Native);
    refused(netns.a(), &native, &["udp port 988 of 10.211.0.1 is in use"]);
    // Another one is free.
    drop(start(netns.a(), &socket.clone().udp_port(FREE_PORT)));
    drop(running);
    let running = start(netns.a(), &native);
    refused(netns.a(), &socket, &["udp port 988 of 10.211.0.1 is in use"]);
    drop(running);
    refused(netns.a(), &socket.log_refusals(true), &["log_refusals", "native or generic"]);
}

/// Traffic goes on while the MTUs of both ends change, and after the link was down.
#[test]
fn interfaces_may_change() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { mtu_bytes: 9000, ..Wiring::default() });
    let [a, b] = nids(&netns);
    let mut near = start_as(XdpMode::Socket, netns.a(), a);
    let mut far = start_as(XdpMode::Socket, netns.b(), b);
    let sizes = [0, 64, 8000, 100_000];
    let plan = |from, to| Plan::of_sizes(vec![(process(from), process(to))], &PORTALS, &sizes);
    for mtu_bytes in [9000, 1500, 9000, 1280] {
        for namespace in [netns.a(), netns.b()] {
            ip(namespace, &format!("link set dev {} mtu {mtu_bytes}", namespace.interface().name));
        }
        (near, far) = carry_out(plan(a, b), near, far, &MIXED);
        (far, near) = carry_out(plan(b, a), far, near, &MIXED);
    }
    ip(netns.a(), &format!("link set dev {} down", netns.a().interface().name));
    let mut lost = Putter::new(process(b), &mut near.1[0]);
    lost.put(&mut near.1[0], 9, false);
    assert!(lost.drive_to_end(&mut near.1[0], PATIENCE), "a Put by a dead interface ends");
    assert_eq!((lost.sent, lost.failed), (0, 1));
    ip(netns.a(), &format!("link set dev {} up", netns.a().interface().name));
    carry_out_after(&[("not sent", 1)], plan(a, b), near, far, &MIXED);
}

/// The kernel refuses datagrams to where there is no way: Puts there end, and others go on.
#[test]
fn what_the_kernel_refuses_is_a_loss() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v6(namespace.interface()));
    let patient = config_as(XdpMode::Socket, netns.a(), a).lnd_timeout(Duration::from_secs(2));
    let (_near, mut near) = start(netns.a(), &patient);
    ip(netns.a(), "route add unreachable 2001:db8::/32");
    let at = |address: &str| process(Nid::new_ip(a.net(), address.parse().unwrap()).unwrap());
    let let_go = |near: &[Worker]| near[0].xdp().expect("there is an NI").counters().frames_let_go;
    // A neighbour that does not answer, a host without a node, which answers with an ICMP error, and a way
    // that is closed: the kernel refuses more datagrams to there after the Put has ended.
    for (target, is_refused) in
        [(at("fd00:211:0::77"), false), (process(b), false), (at("2001:db8::1"), true)]
    {
        let before = let_go(&near);
        let mut lost = Putter::new(target, &mut near[0]);
        lost.put(&mut near[0], 9, false);
        assert!(lost.drive_to_end(&mut near[0], PATIENCE), "a Put to nobody ends");
        assert_eq!((lost.sent, lost.failed), (0, 1));
        assert_eq!(let_go(&near) != before, is_refused, "{target:?}");
    }
    let (node, workers) = start_as(XdpMode::Socket, netns.b(), b);
    let targets: Vec<_> = workers
        .into_iter()
        .map(|mut worker| {
            let receiver = (worker.shard_id().0 == 0).then(|| Receiver::post(&mut worker, 9));
            Driven::start(By::ShardThread, worker, receiver, |worker, receiver| {
                if let Some(receiver) = receiver {
                    receiver.turn(worker);
                }
            })
        })
        .collect();
    let mut putter = Putter::new(process(b), &mut near[0]);
    putter.put(&mut near[0], 9, true);
    assert!(putter.drive_to_end(&mut near[0], PATIENCE));
    assert_eq!((putter.sent, putter.acked, putter.failed), (1, 1, 0));
    drop((stop_all(targets), node));
}
