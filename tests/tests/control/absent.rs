//! Peers that are not there: what a ping says of them, what the log does, and whose health it costs.

use lnet_tests::netns::{NETNS_NODES, ip, require_privilege};

use crate::run::{Daemon, Two};

/// The value of a key, where it is first shown.
fn value(shown: &str, key: &str) -> String {
    let line = shown.lines().find_map(|line| line.trim().strip_prefix(&format!("{key}: ")));
    line.unwrap_or_else(|| panic!("{key} is not in {shown}")).to_owned()
}

/// The health of the only NI of a net.
fn health(daemon: &Daemon, net: &str) -> String {
    value(&daemon.good(&format!("net show --net {net} -v 3")), "health value")
}

/// Peers on hosts without a daemon, and on addresses without a host, are told apart, and cost the local NI
/// nothing: others are reached by it.
#[test]
fn absent_peers_are_told_apart_and_cost_the_local_ni_no_health() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "");
    let interface = two.netns.a().interface();
    two.a.good("lnet configure");
    two.a.good(&format!("net add --net tcp --if {}", interface.name));
    let shown = two.a.good("net show --net tcp -v");
    assert_eq!(value(&shown, "accept port"), "988");
    // A host without a daemon.
    let refusing = two.nids(0)[1].replace("@xdp", "@tcp");
    let address = refusing.trim_end_matches("@tcp");
    let refused = ["errno: -111", "Connection refused", address, "port 988"];
    for _ in 0..3 {
        two.a.bad(&format!("ping --timeout 10 {refusing}"), &refused);
    }
    let discovered = two.a.run(&format!("discover {refusing}"));
    assert!(discovered.stdout.contains("Connection refused (it was looked for at"), "{discovered:?}");
    // The kernel answers for hosts that no neighbour has.
    let (prefix, _) = address.rsplit_once('.').unwrap();
    let absent = format!("{prefix}.77");
    two.a.bad(&format!("ping --timeout 20 {absent}@tcp"), &["errno: -113", "No route to host", "port 988"]);
    // A host that takes no frames from here.
    ip(two.netns.a(), "route add unreachable 192.0.2.0/24");
    two.a.bad("ping --timeout 20 192.0.2.1@tcp", &["errno: -113"]);
    assert_eq!(health(&two.a, "tcp"), "1000");
    let statistics = two.a.good("stats show");
    assert_ne!(value(&statistics, "remote_dropped_count"), "0", "{statistics}");
    assert_eq!(value(&statistics, "local_no_route_count"), "0", "{statistics}");
    let log = two.a.stop();
    let lines = log.lines().filter(|line| line.contains("cannot be made") && line.contains(&refusing));
    assert_eq!(lines.clone().count(), 1, "{log}");
    let line = lines.clone().next().unwrap_or_default();
    assert!(line.contains(&format!("{address}:988")) && line.contains("refused"), "{line}");
}
