//! Two daemons over veth.

use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use lnet_tests::netns::{
    Interface, NETNS_NODES, Namespace, Netns, Wiring, enter, ip, require_privilege, wait_until,
};
use rustix::process::Signal;
use xtask::testing::{is_ours_alone, paths};

use crate::run::{Daemon, Directory, PATIENCE, PORT, Two, program, until_shown};

/// What LNet's own tool printed of a node, without what only its LND has.
fn captured(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lnetctl/tests/data").join(name);
    common(&std::fs::read_to_string(path).unwrap())
}

fn common(document: &str) -> Vec<String> {
    let mut keys: Vec<String> = paths(document).into_iter().map(|(path, _)| path).collect();
    keys.retain(|path| !path.contains("lnd tunables/") && !is_ours_alone(path));
    keys
}

#[test]
fn two_daemons_are_configured_and_ping_each_other() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "");
    let [a, b] = two.nids(0);
    // The one by a document, the other by commands.
    two.a.good("lnet configure");
    let interface = &two.netns.a().interface().name;
    let document = format!(
        "net:\n    - net type: xdp\n      local NI(s):\n        - interfaces:\n              0: {interface}\n          \
         tunables:\n              peer_credits: 16\n              credits: 64\n"
    );
    let planned = two.a.good_with("import --dry-run", &document);
    assert!(planned.contains("xdp") && !two.a.good("net show").contains("xdp"), "{planned}");
    two.a.good_with("import", &document);
    two.b.good("lnet configure");
    two.b.good(&format!("net add --nid {b} --mode native --queues 2"));

    for (daemon, own, other) in [(&two.a, &a, &b), (&two.b, &b, &a)] {
        let shown = daemon.good(&format!("ping {other}"));
        assert!(shown.contains(&format!("primary nid: {other}")) && shown.contains("peer_ni:"), "{shown}");
        daemon.good(&format!("ping --source {own} --timeout 5 {other}"));
        daemon.good(&format!("ping {own}"));
        daemon.bad(&format!("ping --source {other} {other}"), &["errno: -22"]);
        assert!(daemon.good("peer list").contains(other.as_str()));
        assert_eq!(
            daemon.good("peer show").matches("primary nid").count(),
            2,
            "a node that has pinged itself is a peer of its own"
        );
    }
    assert_eq!(common(&two.a.good("net show -v 4")), captured("net_show_4.yaml"));
    let shown = two.a.good(&format!("peer show --nid {b} -v 4"));
    assert_eq!(common(&shown), captured("peer_show_4.yaml"));
    assert_eq!(common(&two.a.good("stats show")), captured("stats_show.yaml"));
    assert_eq!(common(&two.a.good("net show")), captured("net_show.yaml"));
    let detailed = two.a.good("net show --net xdp -v 4");
    for part in [
        "peer_credits: 16",
        "credits: 64",
        "active mode: native",
        "active queues: 2",
        "mtu: 1500",
        "zero_copy: auto",
        "carrier: auto",
        "off, the driver has none",
        "get: 2",
        "reply: 2",
    ] {
        assert!(detailed.contains(part), "{part:?} is not in {detailed}");
    }
    assert!(two.a.good("peer show -v").contains("max_ni_tx_credits: 16"));
    assert!(two.a.good("export").contains(&a));
}

#[test]
fn an_export_makes_the_same_node_again_and_peers_notice_nothing() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::configured(2, "");
    let [[a0, b0], [a1, b1]] = [two.nids(0), two.nids(1)];
    two.a.good("steering set --portal 30 --policy initiator");
    let exported = two.a.good("export --backup");
    for round in 0..3 {
        two.a.good("lnet unconfigure");
        two.b.bad(&format!("ping --timeout 1 {a0}"), &["errno: -110"]);
        two.a.good("lnet configure");
        two.a.good_with("import", &exported);
        assert_eq!(two.a.good("export --backup"), exported, "round {round}");
        two.a.good(&format!("ping --timeout 5 {b0},{b1}"));
        two.b.good(&format!("ping --timeout 5 {a0},{a1}"));
    }
    let log = two.a.directory.log();
    let lines = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!((lines("NI added"), lines("NI deleted")), (8, 6), "{log}");
    assert!(log.lines().any(|line| {
        let parts = ["NI added", "mode=native", "queues=2", "port=988", a0.as_str(), "interface="];
        parts.iter().all(|part| line.contains(part))
    }));
}

#[test]
fn half_a_document_is_none() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::configured(1, "");
    let before = two.a.good("export --backup");
    // The first NI could be made, the second has no interface: neither is.
    let document =
        "net:\n    - net type: xdp1\n      local NI(s):\n        - interfaces:\n              0: lo\n";
    two.a.bad_with("import", document, &["line 5", "errno: -22"]);
    let interface = &two.netns.b().interface().name;
    let words = "net del --net xdp";
    two.b.good(words);
    let document = format!(
        "global:\n    retry_count: 1\nnet:\n    - net type: xdp\n      local NI(s):\n        - interfaces:\n              \
         0: {interface}\n    - net type: xdp2\n      local NI(s):\n        - interfaces:\n              0: absent0\n"
    );
    two.b.bad_with("import", &document, &["absent0", "errno: -100"]);
    assert!(!two.b.good("net show").contains("xdp") && two.b.good("global show").contains("retry_count: 2"));
    // Found out only when the second one is opened.
    let taken = format!("net add --net xdp --if {interface} --queues 9");
    two.b.bad(&taken, &["9 of each are needed", "errno: -22"]);
    assert!(!two.b.good("net show").contains("xdp"));
    assert_eq!(two.a.good("export --backup"), before);
}

#[test]
fn a_port_in_use_is_told_and_changes_nothing() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(2, "");
    two.a.good("lnet configure");
    let interfaces = two.netns.a().interfaces();
    let address = (interfaces[1].ipv4, PORT);
    let taken = enter(two.netns.a(), || UdpSocket::bind(address).unwrap());
    for mode in ["native", "socket"] {
        let names = [&interfaces[0].name, &interfaces[1].name].map(String::as_str).join(",");
        let words = format!("net add --net xdp --if {names} --port {PORT} --mode {mode}");
        two.a.bad(&words, &["errno: -98", &PORT.to_string(), "is in use"]);
        assert!(!two.a.good("net show").contains("xdp"), "mode {mode}: the first one is taken back");
    }
    drop(taken);
    two.a.good(&format!("net add --net xdp --if {} --port {PORT}", interfaces[1].name));
}

#[test]
fn sockets_and_rings_talk_to_each_other() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "--mode socket");
    for (daemon, namespace, mode) in [(&two.a, two.netns.a(), "socket"), (&two.b, two.netns.b(), "native")] {
        daemon.good("lnet configure");
        daemon.good(&format!(
            "net add --net xdp --if {} --mode {mode} --port {PORT}",
            namespace.interface().name
        ));
        let shown = daemon.good("net show -v 1");
        assert!(shown.contains(&format!("active mode: {mode}")) && shown.contains(&format!("port: {PORT}")));
    }
    let [a, b] = two.nids(0);
    two.a.good(&format!("ping --timeout 10 {b}"));
    two.b.good(&format!("ping --timeout 10 {a}"));
    // Sockets have no queues; of a change the log has what was asked for.
    let log = two.a.directory.log();
    let lines = |what: &str| log.lines().filter(|line| line.contains(what)).collect::<Vec<_>>();
    assert!(
        lines("NI added").iter().all(|line| line.contains("mode=socket") && !line.contains("queues=")),
        "{log}"
    );
    assert!(lines("change=").len() == 2 && !log.contains("null"), "{log}");
}

/// The program is all that there is: no file of this workspace, and no variable.
#[test]
fn rings_come_up_wherever_the_program_is_and_their_lack_is_told() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let interface = netns.a().interface();
    let start = |wrapper: &[&str]| {
        let directory = Directory::new();
        let lnetd = directory.0.join("lnetd");
        std::fs::copy(program("lnetd"), &lnetd).unwrap();
        let words = [wrapper, &[lnetd.to_str().unwrap()]].concat();
        let mut command = netns.a().command(Path::new(words[0]));
        command.args(&words[1..]).current_dir("/").env_remove("LNET_BPF_OBJECT");
        let daemon = Daemon::start_as(directory, command, "--configure");
        daemon.good(&format!("net add --net xdp --if {} --port {PORT}", interface.name));
        daemon
    };
    let daemon = start(&[]);
    assert!(daemon.good("net show -v").contains("active mode: native"));
    assert!(!daemon.good("net show").contains("no rings"));
    daemon.stop();

    let daemon = start(&["setpriv", "--bounding-set=-all"]);
    let lacking = "CAP_BPF and CAP_NET_ADMIN";
    assert!(daemon.good("net show -v").contains("active mode: socket"));
    let shown = daemon.good("net show");
    assert!(shown.lines().any(|line| line.contains("no rings: ") && line.contains(lacking)), "{shown}");
    // What is shown can be read again, and a backup does not tell it.
    daemon.good_with("import --dry-run", &shown);
    assert!(!daemon.good("export --backup").contains("no rings"));
    let log = daemon.stop();
    let told = |line: &&str| {
        ["WARN", "no AF_XDP rings", lacking, &interface.name].iter().all(|part| line.contains(part))
    };
    assert_eq!(log.lines().filter(told).count(), 1, "{log}");
}

/// The mode in which frames reach the shards, for tests of interfaces.
const MODES: [&str; 2] = ["native", "socket"];

#[test]
fn an_interface_that_is_made_again_serves_again() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    for mode in MODES {
        let two = Two::configured(1, &format!("--mode {mode}"));
        let [a, b] = two.nids(0);
        let exported = two.a.good("export --backup");
        for round in 1..=2 {
            two.a.good(&format!("ping {b}"));
            let interface = &two.netns.a().interface().name;
            ip(two.netns.a(), &format!("link delete dev {interface}"));
            for daemon in [&two.a, &two.b] {
                until_shown(daemon, "net show --net xdp", "status: down");
                assert!(daemon.good("net show --net xdp -v 2").contains("fatal_error: 1"));
            }
            two.a.bad(&format!("ping --timeout 2 {b}"), &["errno: -113"]);
            two.netns.restore_rail([2, 2], [2, 2]);
            for daemon in [&two.a, &two.b] {
                until_shown(daemon, "net show --net xdp", "status: up");
                assert!(daemon.good("net show --net xdp -v").contains(&format!("active mode: {mode}")));
            }
            two.a.good(&format!("ping --timeout 10 {b}"));
            two.b.good(&format!("ping --timeout 10 {a}"));
            let log = two.a.directory.log();
            let lines = |what: &str| log.lines().filter(|line| line.contains(what)).count();
            assert_eq!([lines("its interface has gone"), lines("NI opened anew")], [round, round], "{log}");
        }
        assert_eq!(two.a.good("export --backup"), exported);
    }
}

/// What cannot be opened anew is told once, shown, exported, tried again, and can be deleted.
#[test]
fn an_interface_that_does_not_suit_any_more_is_waited_for() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::configured(1, "");
    let [_, b] = two.nids(0);
    let Interface { name, .. } = two.netns.a().interface();
    two.a.good("net del --net xdp");
    let add = format!("net add --net xdp --if {name} --queues 2");
    two.a.good(&add);
    let exported = two.a.good("export --backup");
    let told = || two.a.directory.log().lines().filter(|line| line.contains("NI not opened anew")).count();
    let make_anew = |queues: u16| {
        ip(two.netns.a(), &format!("link delete dev {name}"));
        until_shown(&two.a, "net show --net xdp", "status: down");
        two.netns.restore_rail([queues; 2], [queues; 2]);
    };
    make_anew(1);
    wait_until("it is told that it has too few queues", PATIENCE, || told() == 1);
    assert!(two.a.good("net show --net xdp").contains("status: down"));
    assert_eq!(two.a.good("export --backup"), exported);
    make_anew(2);
    until_shown(&two.a, "net show --net xdp", "status: up");
    assert_eq!((told(), two.a.good("export --backup")), (1, exported));
    until_shown(&two.b, "net show --net xdp", "status: up");
    two.a.good(&format!("ping --timeout 10 {b}"));

    make_anew(1);
    wait_until("it is told again", PATIENCE, || told() == 2);
    two.a.good(&format!("net del --net xdp --if {name}"));
    assert!(!two.a.good("net show").contains("xdp"));
    two.a.bad(&add, &["2 of each are needed"]);
    two.a.stop();
}

/// The kernel tells of links: of ten changes one is seen much sooner than by a look at an interval, however
/// busy the machine is.
#[test]
fn a_change_of_a_link_is_told() {
    const LOOK_INTERVAL: Duration = Duration::from_millis(500);
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::configured(1, "--mode socket");
    let Interface { name, .. } = two.netns.a().interface();
    let times = ["down", "up"].repeat(5).into_iter().map(|state| {
        ip(two.netns.a(), &format!("link set dev {name} {state}"));
        let begun = Instant::now();
        until_shown(&two.a, "net show --net xdp", &format!("status: {state}"));
        begun.elapsed()
    });
    let times: Vec<_> = times.collect();
    assert!(times.iter().min().is_some_and(|least| *least < LOOK_INTERVAL / 2), "{times:?}");
}

#[test]
fn an_ni_whose_address_goes_is_down_until_it_is_back() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    for mode in MODES {
        let two = Two::configured(1, &format!("--mode {mode}"));
        let [a, b] = two.nids(0);
        let Interface { name, ipv4, .. } = two.netns.a().interface();
        ip(two.netns.a(), &format!("address add 10.99.0.1/24 dev {name}"));
        ip(two.netns.a(), &format!("address del {ipv4}/24 dev {name}"));
        until_shown(&two.a, "net show --net xdp", "status: down");
        assert!(two.b.good("net show --net xdp").contains("status: up"));
        two.a.bad(&format!("ping --timeout 2 {b}"), &["errno: -113"]);
        ip(two.netns.a(), &format!("address add {ipv4}/24 dev {name}"));
        until_shown(&two.a, "net show --net xdp", "status: up");
        two.a.good(&format!("ping --timeout 10 {b}"));
        two.b.good(&format!("ping --timeout 10 {a}"));
        let log = two.a.stop();
        let lines = |what: &str| log.lines().filter(|line| line.contains(what)).count();
        assert_eq!([lines("does not have its address"), lines("NI up")], [1, 1], "{log}");
    }
}

#[test]
fn an_interface_that_is_renamed_is_shown_and_found_by_its_new_name() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    for mode in MODES {
        let two = Two::configured(1, &format!("--mode {mode}"));
        let [_, b] = two.nids(0);
        let Interface { name, .. } = two.netns.a().interface();
        for change in [format!("{name} down"), format!("{name} name lan0"), "lan0 up".to_owned()] {
            ip(two.netns.a(), &format!("link set dev {change}"));
        }
        until_shown(&two.a, "net show --net xdp", "0: lan0");
        until_shown(&two.a, "net show --net xdp", "status: up");
        two.a.good(&format!("ping --timeout 10 {b}"));
        assert!(two.a.good("export --backup").contains("lan0"));
        two.a.bad(&format!("net del --net xdp --if {name}"), &["errno: -19"]);
        two.a.good("net del --net xdp --if lan0");
        let log = two.a.stop();
        assert_eq!(log.lines().filter(|line| line.contains("is renamed")).count(), 1, "{log}");
    }
}

/// NIs of one node reach each other. Nodes do by sockets on one interface; otherwise they are told why not.
#[test]
fn nodes_of_one_host_reach_each_other_or_are_told_why_not() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring { rails: 2, ..Wiring::default() });
    let [first, second] = netns.a().interfaces() else { panic!("two rails") };
    for address in ["10.211.0.9/24", "fd00:211::9/64 nodad"] {
        ip(netns.a(), &format!("address add {address} dev {}", first.name));
    }
    let v4 = [first.ipv4, [10, 211, 0, 9].into(), second.ipv4, [10, 211, 0, 77].into()].map(IpAddr::V4);
    let (first, second) = (first.ipv6.unwrap(), second.ipv6.unwrap());
    let stranger = Ipv6Addr::from(first.to_bits() + 70);
    let v6 = [first, "fd00:211::9".parse().unwrap(), second, stranger].map(IpAddr::V6);
    for addresses in [v4, v6] {
        nodes_of_one_host(netns.a(), addresses.map(|address| format!("{address}@xdp")));
    }
}

/// The NIDs are two of one interface, one of another, and one that no host has.
fn nodes_of_one_host(host: &Namespace, [own, neighbour, other, stranger]: [String; 4]) {
    let start = || Daemon::start(Directory::new(), Some(host), "--configure --mode socket");
    let (near, far) = (start(), start());
    near.good(&format!("net add --nid {own}"));
    for mode in ["native", "socket"] {
        near.good(&format!("net add --nid {other} --mode {mode}"));
        for (source, to) in [(&own, &other), (&other, &own), (&other, &other)] {
            near.good(&format!("ping --timeout 10 --source {source} {to}"));
        }
        near.good(&format!("net del --nid {other}"));
    }
    far.good(&format!("net add --nid {neighbour}"));
    near.good(&format!("ping --timeout 10 {neighbour}"));
    far.good(&format!("ping --timeout 10 {own}"));

    for mode in ["native", "socket"] {
        far.good("net del --net xdp");
        far.good(&format!("net add --nid {other} --mode {mode}"));
        let told = |nid: &str| format!("{} is an address of this host", nid.trim_end_matches("@xdp"));
        near.bad(&format!("ping --timeout 1 {other}"), &[&told(&other), "mode socket", "by tcp"]);
        far.bad(&format!("ping --timeout 1 {own}"), &[&told(&own), "mode socket", "by tcp"]);
        // What is not of this host is not said to be.
        let ran = near.run(&format!("ping --timeout 1 {stranger}"));
        assert!(ran.status != 0 && !ran.stdout.contains("this host"), "{ran:?}");
    }
    let log = far.stop();
    let lines =
        log.lines().filter(|line| line.contains("WARN") && line.contains("is an address of this host"));
    assert_eq!(lines.count(), 1, "{log}");
}

/// What an administrator wants to know, in one line each, whatever number of shards has found it out.
#[test]
fn the_log_tells_of_peers() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let Two { a, mut b, netns } = Two::configured(1, "--lnd-timeout 4");
    let far = netns.b().interface();
    let ping = format!("ping --timeout 10 {}@xdp", far.ipv4);
    let ends =
        |line: &str, what: &str| line.contains(what) && line.contains(&format!("nid={}@xdp", far.ipv4));
    let lines = |what: &str| a.directory.log().lines().filter(|line| ends(line, what)).count();
    a.good(&ping);
    wait_until("a peer is found", PATIENCE, || lines("first traffic with a peer") == 1);

    b.signal(Signal::KILL);
    b.wait();
    let b = Daemon::start(Directory::new(), Some(netns.b()), "--configure --shards 2");
    b.good(&format!("net add --net xdp --if {}", far.name));
    a.good(&ping);
    wait_until("it has begun a new life", PATIENCE, || lines("has begun a new life") == 1);

    b.signal(Signal::STOP);
    a.bad(&format!("ping --timeout 4 {}@xdp", far.ipv4), &["errno"]);
    wait_until("it does not answer", PATIENCE, || lines("a peer does not answer") == 1);
    b.signal(Signal::CONT);
    wait_until("it answers again", PATIENCE, || {
        a.run(&ping);
        lines("a peer answers again") == 1
    });
    assert_eq!(
        ["first traffic", "new life", "not answer", "answers again"].map(lines),
        [1; 4],
        "{}",
        a.directory.log()
    );
}

/// A configuration that is wrong is one line of warning, with what is wrong.
#[test]
fn a_refused_configuration_is_one_line() {
    let node = Daemon::alone();
    node.bad("net add --net xdp --if no-such-interface", &["errno"]);
    let log = node.stop();
    let told = log.lines().filter(|line| line.contains("no-such-interface") && !line.contains("INFO"));
    assert_eq!(told.count(), 1, "{log}");
}

#[test]
fn what_ends_leaves_nothing() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let Two { a, b, netns } = Two::configured(1, "");
    let link = || ip(netns.a(), &format!("-d link show dev {}", netns.a().interface().name));
    assert!(link().contains("prog/xdp"), "{}", link());
    b.good(&format!("ping {}", lnet_tests::node::nid_v4(netns.a().interface(), 0)));
    a.stop();
    assert!(!link().contains("prog/xdp"), "{}", link());
    // The port is free.
    let address = (netns.a().interface().ipv4, 988);
    enter(netns.a(), || UdpSocket::bind(address).unwrap());
    b.stop();
}
