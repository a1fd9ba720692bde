//! Tests 221 to 256 of the catalogue: nodes on nets of their own, and a router between them.

use lnet_tests::netns::{NETNS_NODES, require_privilege, wait_until};

use crate::router::{Routed, number};
use crate::run::{PATIENCE, until_shown};

fn routed(options: &str) -> Option<Routed> {
    require_privilege("daemons over veth", &NETNS_NODES).then(|| Routed::new(["tcp1", "tcp2"], 2, options))
}

/// Has all daemons set a tunable.
fn set(routed: &Routed, setting: &str) {
    for daemon in routed.ends.iter().chain([&routed.router]) {
        daemon.good(&format!("set {setting}"));
    }
}

#[test]
fn case_221_routes_serve_without_discovery() {
    let Some(routed) = routed("") else { return };
    set(&routed, "discovery 0");
    routed.turn_on();
    routed.ping();
}

/// Tests 222 and 224: with `avoid_asym_router_failure` a route is up while the far side has one as well,
/// since nothing comes to the NI of the router there otherwise; without it the near side is enough.
#[test]
fn case_222_a_route_wants_one_of_the_far_side() {
    for (avoids, alone) in [(1, "state: down"), (0, "state: up")] {
        let Some(routed) = routed(&format!("--param avoid_asym_router_failure={avoids}")) else { return };
        let ([near, far], router) = (&routed.ends, &routed.router);
        let route = format!("--net tcp1 --gateway {}", routed.gateways[1]);
        far.good(&format!("route del {route}"));
        router.good("set routing 1");
        until_shown(router, "net show --net tcp2", "status: down");
        until_shown(near, "route show -v", alone);
        far.good(&format!("route add {route}"));
        until_shown(router, "net show --net tcp2", "status: up");
        until_shown(near, "route show -v", "state: up");
        until_shown(far, "route show -v", "state: up");
        routed.ping();
        far.good("lnet unconfigure");
        until_shown(router, "net show --net tcp2", "status: down");
        until_shown(near, "route show -v", alone);
    }
}

/// A router counts what it cannot forward: as dropped, or as not sent.
#[test]
fn case_227_a_router_gives_up_what_is_for_a_node_that_has_gone() {
    let Some(routed) = routed("") else { return };
    set(&routed, "discovery 0");
    set(&routed, "health_sensitivity 0");
    routed.turn_on();
    routed.ping();
    let Routed { ends: [near, far], router, nids, .. } = routed;
    let given_up = || -> u64 {
        let shown = router.good("stats show");
        let keys = ["drop_count", "remote_dropped_count", "network_timeout_count", "remote_error_count"];
        keys.iter().map(|key| number(&shown, key)).sum()
    };
    let before = given_up();
    far.stop();
    near.bad(&format!("ping --timeout 5 {}", nids[1]), &["errno: -1"]);
    wait_until("the router has given it up", PATIENCE, || given_up() > before);
}

/// A message is forwarded however long it is held up: its time is an affair of its ends.
#[test]
fn case_256_a_router_drops_no_message_for_its_age() {
    let Some(routed) = routed("") else { return };
    routed.turn_on();
    let ([near, _], router, [from, to]) = (&routed.ends, &routed.router, &routed.nids);
    router.good("set retry_count 0");
    router.good("set transaction_timeout 2");
    let before = number(&router.good("stats show"), "drop_count");
    router.good(&format!("fault delay add --source {from} --dest {to} --rate 1 --latency 4"));
    assert!(near.good(&format!("ping --timeout 20 {to}")).contains(to));
    let rules = router.good("fault delay show");
    assert!(rules.contains("ls_delayed: ") && !rules.contains("ls_delayed: 0"), "{rules}");
    assert_eq!(number(&router.good("stats show"), "drop_count"), before);
}
