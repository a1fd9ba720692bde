//! Daemons on nets of their own, and one between them that is a router.
//!
//! The ends are in one namespace, each with a rail of its own to the namespace of the router.

use std::time::{Duration, Instant};

use lnet_tests::netns::{NETNS_NODES, Netns, Wiring, ip, require_privilege, wait_until};

use crate::run::{Daemon, Directory, PATIENCE, until_shown};

/// Gateways are checked each second, so that routers wait for 4 s.
const CHECKS: &str = "--param alive_router_check_interval=1 --param router_ping_timeout=3";

pub(crate) struct Routed {
    pub(crate) ends: [Daemon; 2],
    pub(crate) router: Daemon,
    /// NIDs of the ends.
    pub(crate) nids: [String; 2],
    /// NIDs of the router on the nets of the ends.
    pub(crate) gateways: [String; 2],
    // Last, so that no process is inside when it is removed.
    netns: Netns,
}

impl Routed {
    /// Daemons on these nets; the router has so many shards.
    pub(crate) fn new(nets: [&str; 2], shards: u32, options: &str) -> Self {
        let netns = Netns::new(Wiring { rails: 2, queues: 2, ..Wiring::default() });
        let daemon = |inside, shards| {
            let options = format!("--shards {shards} --spin 0 {CHECKS} {options}");
            let daemon = Daemon::start(Directory::new(), Some(inside), &options);
            daemon.good("lnet configure");
            daemon
        };
        let (near, far) = (netns.a(), netns.b());
        let router = daemon(far, shards);
        let nid = |interface: &lnet_tests::netns::Interface, net| format!("{}@{net}", interface.ipv4);
        let [nids, gateways] =
            [near, far].map(|side| [0, 1].map(|rail| nid(&side.interfaces()[rail], nets[rail])));
        let ends = [0, 1].map(|rail| {
            router.good(&format!("net add --net {} --if {}", nets[rail], far.interfaces()[rail].name));
            let end = daemon(near, 2);
            end.good(&format!("net add --net {} --if {}", nets[rail], near.interfaces()[rail].name));
            end.good(&format!("route add --net {} --gateway {}", nets[1 - rail], gateways[rail]));
            end
        });
        Self { ends, router, nids, gateways, netns }
    }

    pub(crate) fn turn_on(&self) {
        self.router.good("set routing 1");
        self.ends.iter().for_each(|end| until_shown(end, "route show -v", "state: up"));
    }

    /// Both ends ping each other.
    pub(crate) fn ping(&self) {
        for (end, to) in [(&self.ends[0], &self.nids[1]), (&self.ends[1], &self.nids[0])] {
            assert!(end.good(&format!("ping --timeout 5 {to}")).contains(to));
        }
    }
}

/// The number behind a key.
pub(crate) fn number(shown: &str, key: &str) -> u64 {
    let line = shown.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("{key} in {shown}")).parse().unwrap()
}

/// Resident memory of a daemon's own, in bytes.
fn resident(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// Test 220 of the catalogue, and with nets of other LNDs.
#[test]
fn nets_of_all_lnds_are_routed_between() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    for (nets, shards) in [(["tcp1", "tcp2"], 1), (["tcp1", "xdp2"], 4), (["xdp1", "xdp2"], 2)] {
        let routed = Routed::new(nets, shards, "--mode socket");
        assert_eq!(routed.router.good("routing show"), "");
        routed.turn_on();
        routed.ping();
        // Payloads of all sizes, which the target checks.
        for (end, other) in [(0, 1), (1, 0)] {
            let [from, to] = [end, other].map(|at| &routed.ends[at]);
            to.good("load start target");
            let load = format!("load start initiator --to {} --messages 600 --window 16", routed.nids[other]);
            from.good(&load);
            let done = from.good(&format!("load wait {}", 1 + end));
            assert!(done.contains("600 messages"), "{nets:?}: {done}");
        }
        let shown = routed.router.good("stats show");
        assert!(number(&shown, "route_count") >= 2400, "{shown}");
        assert!(number(&shown, "route_length") >= 8 << 20, "{shown}");
        wait_until("all buffers are free", PATIENCE, || {
            let shown = routed.router.good("routing show");
            let of = |key: &str| -> Vec<u64> {
                let values =
                    shown.lines().filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "));
                values.map(|value| value.parse().unwrap()).collect()
            };
            assert_eq!(of("nbuffers").iter().sum::<u64>(), 2048 + 16384 + 1024, "{shown}");
            of("nbuffers") == of("credits") && of("mincredits") != of("credits")
        });
    }
}

/// Pools are there while a router routes; while it stops, changes are refused.
#[test]
fn a_router_goes_on_and_off() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let routed = Routed::new(["tcp1", "tcp2"], 2, "");
    let router = &routed.router;
    let before = resident(router);
    router.good("set small_buffers 600");
    assert_eq!(router.good("routing show"), "", "forgotten");
    routed.turn_on();
    until_shown(router, "routing show", "enable: 1");
    let shown = router.good("routing show");
    assert!(shown.contains("buffers:\n      tiny: 2048\n      small: 16384\n      large: 1024\n"), "{shown}");
    let grown = resident(router) - before;
    assert!(grown < 16 << 20, "{grown} bytes for buffers in which nothing has lain");
    router.good("set small_buffers 600");
    assert!(router.good("routing show").contains("      small: 600\n"));
    router.bad("set large_buffers 100000", &["errno: -12", "at most in all pools"]);
    routed.ping();
    let exported = router.good("export --backup");
    assert!(
        exported.contains("routing:\n      enable: 1\nbuffers:\n      tiny: 2048\n      small: 600\n"),
        "{exported}"
    );

    // Loads in both directions do not hang.
    routed.ends[1].good("load start target");
    let load = format!("load start initiator --to {} --timeout-ms 3000", routed.nids[1]);
    routed.ends[0].good(&load);
    std::thread::sleep(Duration::from_millis(500));
    router.good("set routing 0");
    assert!(router.good("routing show").contains("enable: 2"));
    for words in ["set routing 1", "set tiny_buffers 5"] {
        router.bad(words, &["errno: -16", "routing is stopping"]);
    }
    until_shown(router, "routing show", "enable: 0");
    until_shown(router, "routing show", "buffers:\n      tiny: 0\n      small: 0\n      large: 0\n");
    let begun = Instant::now();
    let ran = routed.ends[0].run("load wait 1");
    assert!(begun.elapsed() < PATIENCE, "{ran:?}");
    let begun = Instant::now();
    routed.ends[0].bad(&format!("ping --timeout 2 {}", routed.nids[1]), &["errno: -1"]);
    assert!(begun.elapsed() < Duration::from_secs(4));
    routed.turn_on();
    routed.ping();

    // Unconfigured, and configured as a router by a document: it says so at once.
    let document = router.good("export --backup");
    router.good("lnet unconfigure");
    router.good("lnet configure");
    assert_eq!(router.good("routing show"), "");
    router.good_with("import", &document);
    assert!(router.good("routing show").contains("enable: 1"));
    until_shown(&routed.ends[0], "route show -v", "state: up");
    routed.ping();
}

/// Without room for buffers no node routes.
#[test]
fn a_node_without_room_is_no_router() {
    let daemon = Daemon::alone_with("--configure --router-buffers 0");
    daemon.bad("set routing 1", &["errno: -95", "no room for router buffers"]);
    assert_eq!(daemon.good("routing show"), "");
}

/// Where the kernel gives no memory, all is as before.
#[test]
fn pools_without_memory_are_refused() {
    let daemon = Daemon::alone_with("--configure");
    daemon.good("set routing 1");
    let shown = daemon.good("routing show");
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let size: u64 = size.split_whitespace().next().unwrap().parse().unwrap();
    let limit = (size + (100 << 10)) << 10;
    let limited = std::process::Command::new("prlimit")
        .args([format!("--pid={}", daemon.pid()), format!("--as={limit}:{limit}")])
        .status();
    assert!(limited.unwrap().success());
    daemon.bad("set large_buffers 5000", &["errno: -12", "no memory for router buffers"]);
    assert_eq!(daemon.good("routing show").replace("mincredits", ""), shown.replace("mincredits", ""));
    daemon.good("set large_buffers 1030");
    assert!(daemon.good("routing show").contains("      large: 1030\n"));
}

/// A router with jumbo frames on one side, and one with IPv6 on the other.
#[test]
fn sides_may_have_other_mtus_and_addresses() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    for nets in [["tcp1", "xdp2"], ["xdp1", "tcp2"]] {
        let routed = Routed::new(nets, 2, "--mode socket");
        for side in [routed.netns.a(), routed.netns.b()] {
            ip(side, &format!("link set dev {} mtu 9000", side.interfaces()[0].name));
        }
        routed.turn_on();
        routed.ping();
        routed.ends[1].good("load start target");
        routed.ends[0].good(&format!("load start initiator --to {} --messages 200", routed.nids[1]));
        assert!(routed.ends[0].good("load wait 1").contains("200 messages"));
        let shown = routed.ends[0].good(&format!("explain {}", routed.nids[1]));
        assert!(shown.contains(&routed.gateways[0]), "{shown}");
    }
}
