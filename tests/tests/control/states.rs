//! The states of nets, NIs, peers and peer NIs, as they are shown.

use lnet_tests::netns::{NETNS_NODES, ip, require_privilege, wait_until};
use xtask::testing::paths;

use crate::run::{Daemon, PATIENCE, Two};

/// The states that a command shows at the highest level of detail, in the order of their objects: each behind
/// what belongs to it.
fn states(daemon: &Daemon, words: &str) -> Vec<String> {
    let shown = paths(&daemon.good(&format!("{words} -v 4")));
    let is_state = |(path, _): &(String, String)| path.ends_with("fsm state");
    shown.into_iter().filter(is_state).map(|(_, state)| state).collect()
}

#[track_caller]
fn await_states(daemon: &Daemon, words: &str, expected: &[&str]) {
    wait_until(&format!("{words} shows {expected:?}"), PATIENCE, || states(daemon, words) == expected);
}

#[test]
fn a_peer_that_was_not_used_waits_to_be_discovered() {
    let node = Daemon::alone();
    node.good("peer add --prim_nid 10.9.0.1@tcp --nid 10.9.0.2@tcp");
    assert_eq!(states(&node, "peer show"), ["CREATED", "CREATED", "INIT"]);
    assert_eq!(states(&node, "net show"), ["CREATED", "ACTIVE"], "lo");
    node.good("set discovery 0");
    assert_eq!(states(&node, "peer show"), ["CREATED", "CREATED", "ACTIVE"]);
    node.good("set health_sensitivity 0");
    node.good("peer set --nid 10.9.0.2@tcp --health 999");
    assert_eq!(states(&node, "peer show"), ["CREATED", "FAILED", "ACTIVE"]);
    node.good("peer set --all --health 0");
    assert_eq!(states(&node, "peer show"), ["FAILED", "FAILED", "INACTIVE"]);
    let shown = node.good("peer show -v 4");
    assert_eq!(node.good_with("import --dry-run", &shown), "", "what is shown says what is so");
    assert!(!node.good("peer show -v 3").contains("fsm state"));
    assert!(!node.good("export").contains("fsm state"));
}

#[test]
fn states_follow_links_health_and_discovery() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::configured(2, "");
    let [a0, b0] = two.nids(0);
    two.a.good(&format!("discover {b0}"));
    wait_until("each NI of the peer has had a message", PATIENCE, || {
        two.a.good(&format!("ping --timeout 5 {b0}"));
        states(&two.a, "peer show") == ["CONNECTED", "CONNECTED", "ACTIVE"]
    });
    two.a.good("set health_sensitivity 0");
    let net = "net show --net xdp";
    assert_eq!(states(&two.a, net), ["CREATED", "ACTIVE"]);
    for (health, expected) in
        [(999, ["DEGRADED", "ACTIVE"]), (0, ["FAILED", "INACTIVE"]), (1000, ["CREATED", "ACTIVE"])]
    {
        two.a.good(&format!("net set --nid {a0} --health {health}"));
        assert_eq!(states(&two.a, net), expected, "{health}");
    }
    let interface = &two.netns.a().interface().name;
    ip(two.netns.a(), &format!("link set {interface} down"));
    await_states(&two.a, net, &["FAILED", "INACTIVE"]);
    ip(two.netns.a(), &format!("link set {interface} up"));
    await_states(&two.a, net, &["CREATED", "ACTIVE"]);
    let peer = format!("peer show --nid {b0}");
    // Each end tells the other one that the link is back.
    await_states(&two.a, &peer, &["CONNECTED", "CONNECTED", "ACTIVE"]);
    two.a.good("peer set --all --health 500");
    assert_eq!(states(&two.a, &peer), ["FAILED", "FAILED", "INACTIVE"]);
    two.a.good("peer set --all --health 1000");
    assert_eq!(states(&two.a, &peer)[2], "ACTIVE");
}
