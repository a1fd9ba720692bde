//! Daemons with several rails: which of them a message takes while not all of them lead to its peer.

use lnet_tests::netns::{NETNS_NODES, ip, require_privilege, wait_until};

use crate::run::{Daemon, PATIENCE, Two, until_shown};

/// Two daemons with a net of each kind, `xdp` and `tcp`, each on a rail of its own.
fn two_kinds() -> (Two, [[String; 2]; 2]) {
    let two = Two::on(&["xdp", "tcp"], "");
    let nids = [two.nids(0), two.nids(1).map(|nid| nid.replace("@xdp1", "@tcp"))];
    (two, nids)
}

/// A peer that is known is reached by another net while no NI on the net of the NID that was named is usable,
/// whatever asks for it.
#[test]
fn a_peer_is_reached_by_another_net_while_that_of_its_nid_is_down() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let (two, [[_, xdp], [_, tcp]]) = two_kinds();
    let shown = two.a.good(&format!("discover {xdp}"));
    assert!(shown.contains(&tcp), "{shown}");
    let name = &two.netns.a().interfaces()[0].name;
    ip(two.netns.a(), &format!("link set dev {name} down"));
    until_shown(&two.a, "net show --net xdp", "status: down");
    for nid in [&xdp, &tcp] {
        let shown = two.a.good(&format!("ping --timeout 5 {nid}"));
        assert!(shown.contains(&format!("primary nid: {xdp}")), "{shown}");
        let shown = two.a.good(&format!("explain {nid}"));
        assert!(shown.contains(&format!("to: {tcp}")), "{shown}");
        let shown = two.a.good(&format!("discover --force {nid}"));
        assert!(shown.contains(&xdp) && shown.contains(&tcp), "{shown}");
    }
}

/// Software makes a bridge with the same address on every host, and nodes have NIs there: a peer that tells
/// such a NID first goes by another one, and that is told.
#[test]
fn an_address_that_both_nodes_have_is_told_and_not_used() {
    const SHARED: &str = "172.17.0.1@tcp1";
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(2, "");
    for (daemon, namespace) in [(&two.a, two.netns.a()), (&two.b, two.netns.b())] {
        let [rail, bridge] = [0, 1].map(|rail| &namespace.interfaces()[rail].name);
        ip(namespace, &format!("address add 172.17.0.1/16 dev {bridge}"));
        daemon.good("lnet configure");
        daemon.good(&format!("net add --nid {SHARED}"));
        daemon.good(&format!("net add --net xdp --if {rail}"));
    }
    let [a, b] = two.nids(0);
    for (daemon, nid) in [(&two.a, &b), (&two.b, &a)] {
        daemon.good(&format!("discover {nid}"));
        let shown = daemon.good(&format!("ping --timeout 5 {nid}"));
        assert!(shown.contains("shared NIDs") && shown.contains(SHARED), "{shown}");
        assert!(
            shown.contains(&format!("primary nid: {nid}")) && shown.contains("Multi-Rail: true"),
            "{shown}"
        );
        let shown = daemon.good(&format!("peer show --nid {nid} -v"));
        assert!(shown.contains("shared NIDs") && shown.contains(SHARED), "{shown}");
        assert!(!daemon.good("peer show").contains("shared NIDs"), "a matter of details");
        assert!(!daemon.good("export").contains("shared NIDs"), "nothing that an import could make");
        until_logged(daemon, SHARED);
        let shown = daemon.good(&format!("ping {SHARED}"));
        assert!(!shown.contains("shared NIDs"), "its own NID is that of the node itself: {shown}");
    }
}

#[track_caller]
fn until_logged(daemon: &Daemon, nid: &str) {
    let is_told = |line: &str| line.contains("is not taken over") && line.contains(nid);
    wait_until("the log tells of it", PATIENCE, || daemon.directory.log().lines().any(is_told));
}
