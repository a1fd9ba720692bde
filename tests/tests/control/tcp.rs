//! Two daemons with nets of the tcp LND over veth: what `lnetctl` does with them is what LNet's own does.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lnet_model::fault::HealthError;
use lnet_tests::netns::{NETNS_NODES, Namespace, Netns, Wiring, ip, require_privilege, wait_until};
use rustix::process::Signal;
use xtask::testing::{is_ours_alone, paths};

use crate::dialler::nid;
use crate::hostile_tcp::count;
use crate::run::{Daemon, Directory, PATIENCE, Two, program, until_shown};

/// Values that differ from node to node.
const DIFFERING: [&str; 20] = [
    "nid",
    "primary nid",
    "0",
    "CPT",
    "conns_per_peer",
    "send_count",
    "recv_count",
    "put",
    "get",
    "reply",
    "ack",
    "samples",
    "nsec",
    "refcount",
    "min_tx_credits",
    "msgs_max",
    "msgs_alloc",
    "rst_alloc",
    "length",
    "peer state",
];

/// What is the same on all nodes in one state.
fn common(document: &str) -> Vec<(String, String)> {
    let mut entries = paths(document);
    entries.retain(|(path, _)| !is_ours_alone(path));
    for (path, value) in &mut entries {
        let key = path.rsplit('/').next().unwrap_or_default();
        if DIFFERING.iter().any(|differing| key == *differing || key.ends_with(&format!("_{differing}"))) {
            value.clear();
        }
    }
    entries
}

/// What LNet's own tool printed.
fn captured(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lnetctl/tests/data").join(name);
    std::fs::read_to_string(path).unwrap()
}

#[track_caller]
fn check_shown(shown: &str, capture: &str) {
    assert_eq!(common(shown), common(&captured(capture)), "{shown}");
}

#[test]
fn tcp_nets_are_shown_as_kernel_nodes_show_theirs() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::on(&["tcp"], "");
    let other = two.nids(0)[1].replace("@xdp", "@tcp");
    for _ in 0..3 {
        check_shown(&two.a.good(&format!("ping {other}")), "ping.yaml");
    }
    check_shown(&two.a.good("net show"), "net_show.yaml");
    check_shown(&two.a.good("net show -v 4"), "net_show_4.yaml");
    check_shown(&two.a.good("stats show"), "stats_show.yaml");
    check_shown(&two.a.good("peer list"), "peer_list.yaml");
    let peer = two.a.good("peer show -v 4");
    let keys = |document: &str| common(document).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
    assert_eq!(keys(&peer), keys(&captured("peer_show_4.yaml")), "{peer}");
    for part in ["max_ni_tx_credits: 8", "available_tx_credits: 8", "state: NA"] {
        assert!(peer.contains(part), "{part:?} is not in {peer}");
    }
    // A node that has discovered nothing yet knows no peer by its net's end, and its backup is that of the
    // kernel's but for what was chosen.
    let backup = two.a.good("export --backup");
    for part in ["net type: tcp", "peer_credits: 8", "credits: 256", "tos: -1"] {
        assert!(backup.contains(part), "{part:?} is not in {backup}");
    }
}

/// Without `--source` an NI leads to its own NID, with it another one does.
#[test]
fn a_node_pings_each_of_its_nis() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(2, "");
    let interfaces = two.netns.a().interfaces();
    two.a.good("lnet configure");
    two.a.good(&format!("net add --net tcp --if {},{}", interfaces[0].name, interfaces[1].name));
    for interface in interfaces {
        let told = two.a.good(&format!("ping --timeout 10 {}@tcp", interface.ipv4));
        assert!(told.contains(&format!(" nid: {}@tcp\n", interface.ipv4)), "{told}");
    }
    let [first, second] = [0, 1].map(|rail| interfaces[rail].ipv4);
    for (source, to) in [(first, second), (second, first)] {
        two.a.good(&format!("ping --timeout 10 --source {source}@tcp {to}@tcp"));
    }
}

#[test]
fn options_of_tcp_nets_are_those_of_the_reference() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "--sock sock_timeout=30 --sock accept_port=1988");
    let interface = two.netns.a().interface().name.clone();
    let (a, b) = (&two.a, &two.b);
    a.good("lnet configure");
    b.good("lnet configure --large");
    let add = format!("net add --net tcp --if {interface}");
    a.bad(&format!("{add} --conns-per-peer 128"), &["128"]);
    a.bad(&format!("{add} --tos 256"), &["256"]);
    a.bad(&format!("{add} --mode native"), &["mode is of the LND xdp"]);
    a.bad(&format!("net add --net o2ib --if {interface}"), &["not supported"]);
    assert!(!a.good("net show").contains("tcp"), "nothing was added");
    a.good(&format!("{add} --conns-per-peer 3 --tos 16 --credits 64 --peer-credits 4 --peer-timeout 90"));
    let shown = a.good("net show --net tcp -v 1");
    for part in [
        "conns_per_peer: 3",
        "timeout: 30",
        "tos: 16",
        " credits: 64",
        "peer_credits: 4",
        "peer_timeout: 90",
        "peer_buffer_credits: 0",
    ] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    // A veth has 10 Gbit/s.
    let backup = a.good("export --backup");
    a.good("net set --all --conns-per-peer 5");
    assert!(a.good("net show -v 1").contains("conns_per_peer: 5"));
    a.good(&format!("net set --nid {} --conns-per-peer 0", two.nids(0)[0].replace("@xdp", "@tcp")));
    assert!(a.good("net show -v 1").contains("conns_per_peer: 2"));
    assert!(a.good("export --backup").contains("conns_per_peer: 2"));
    a.bad("net set --nid 10.0.0.99@tcp --conns-per-peer 1", &["10.0.0.99@tcp is not a local nid"]);
    a.bad("net set --net o2ib --lnd-timeout 9", &["-42", "tcp, xdp"]);
    a.good("net del --net tcp");
    a.good(&add);
    assert!(a.good("net show -v 1").contains("conns_per_peer: 2"), "{}", a.good("net show -v 1"));
    a.good("net del --net tcp");
    a.good_with("import", &backup);
    assert_eq!(a.good("export --backup"), backup);

    // With --large an interface is known by its IPv6 address.
    b.good(&format!("net add --net tcp --if {}", two.netns.b().interface().name));
    let large = b.good("net show --net tcp");
    assert!(large.contains("nid: fd"), "{large}");

    // The kernel handles the bytes of such nets.
    let file = a.directory.0.join("none.pcapng");
    let start = format!("capture start {} --limit 1M", file.display());
    let hint = format!("tcpdump -i {interface} -w FILE port 1988");
    a.bad(&start, &[&hint]);
    a.bad(&format!("{start} --if {interface}"), &[&hint]);
    assert!(!file.exists());
}

#[test]
fn daemons_ping_each_other_over_tcp_by_large_nids() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "");
    for (daemon, side) in [(&two.a, two.netns.a()), (&two.b, two.netns.b())] {
        daemon.good("lnet configure --large");
        daemon.good(&format!("net add --net tcp --if {}", side.interface().name));
    }
    let nids = [&two.a, &two.b].map(|daemon| {
        let shown = daemon.good("net show --net tcp");
        shown.lines().find_map(|line| line.trim().strip_prefix("-     nid: ").map(str::to_owned)).unwrap()
    });
    for (daemon, own) in [&two.a, &two.b].into_iter().zip(&nids) {
        let pinged = daemon.good(&format!("ping --timeout 10 {own}"));
        assert!(pinged.contains(&format!("primary nid: {own}")), "{pinged}");
        daemon.good(&format!("ping --timeout 10 --source {own} {own}"));
    }
    until_shown(&two.a, &format!("ping {}", nids[1]), &nids[1]);
    let pinged = two.b.good(&format!("ping {}", nids[0]));
    assert!(pinged.contains(&format!("primary nid: {}", nids[0])), "{pinged}");
}

/// Linux has an IPv6 address at its own interface alone: no other one leads there.
#[test]
fn nis_with_ipv6_addresses_of_one_host_reach_each_other_over_tcp() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(2, "");
    let interfaces = two.netns.a().interfaces();
    two.a.good("lnet configure --large");
    for (net, interface) in [("tcp", &interfaces[0]), ("tcp", &interfaces[1]), ("tcp1", &interfaces[1])] {
        two.a.good(&format!("net add --net {net} --if {}", interface.name));
    }
    let [first, second] = [0, 1].map(|rail| interfaces[rail].ipv6.unwrap());
    for (source, to) in [(first, second), (second, first), (first, first), (second, second)] {
        let told = two.a.good(&format!("ping --timeout 10 --source {source}@tcp {to}@tcp"));
        assert!(told.contains(&format!(" nid: {to}@tcp\n")), "{told}");
    }
    two.a.good(&format!("ping --timeout 10 {second}@tcp1"));
    let shown = two.a.good("stats show");
    assert!(shown.contains("drop_count: 0"), "{shown}");
}

#[test]
fn nodes_with_ipv6_addresses_of_one_host_reach_each_other_over_tcp() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring { rails: 2, queues: 2, ..Wiring::default() });
    let start = |_| Daemon::start(Directory::new(), Some(netns.a()), "--shards 2 --spin 0");
    let daemons = [0, 1].map(start);
    let nids = [0, 1].map(|rail| format!("{}@tcp", netns.a().interfaces()[rail].ipv6.unwrap()));
    for (daemon, interface) in daemons.iter().zip(netns.a().interfaces()) {
        daemon.good("lnet configure --large");
        daemon.good(&format!("net add --net tcp --if {}", interface.name));
    }
    for (own, other) in [(0, 1), (1, 0), (0, 1)] {
        let told = daemons[own].good(&format!("ping --timeout 10 {}", nids[other]));
        assert!(told.contains(&format!("primary nid: {}", nids[other])), "{told}");
        daemons[own].good(&format!("discover {}", nids[other]));
    }
    for daemon in daemons {
        let shown = daemon.good("stats show");
        assert!(shown.contains("drop_count: 0"), "{shown}");
    }
}

/// The label of an alias names the interface with that address; the interface's own name goes on to name its
/// own.
#[test]
fn aliases_of_an_interface_are_nis_of_their_own() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "");
    let side = two.netns.a();
    let (name, own) = (&side.interface().name, side.interface().ipv4);
    let label = format!("{name}:7");
    ip(side, &format!("address add 10.77.0.7/24 dev {name} label {label}"));
    two.a.good("lnet configure");
    for order in [[name, &label], [&label, name]] {
        for interface in order {
            two.a.good(&format!("net add --net tcp --if {interface}"));
        }
        let nis = |shown: &str| -> Vec<(String, String)> {
            let values = |key: &'static str| {
                let of = shown.lines().filter_map(move |line| line.trim().strip_prefix(key));
                of.filter(|value| *value != "0@lo").map(str::to_owned)
            };
            values("-     nid: ").zip(values("0: ")).collect()
        };
        let mut expected =
            [(format!("{own}@tcp"), name.clone()), ("10.77.0.7@tcp".to_owned(), label.clone())];
        if order[0] == &label {
            expected.reverse();
        }
        assert_eq!(nis(&two.a.good("net show")), expected);
        let backup = two.a.good("export --backup");
        assert!(backup.contains(&format!("0: {label}\n")), "{backup}");
        two.a.good(&format!("net del --net tcp --if {label}"));
        assert_eq!(nis(&two.a.good("net show")), [(format!("{own}@tcp"), name.clone())]);
        two.a.good(&format!("net del --net tcp --if {name}"));
    }
    let expected = format!("expected one of: {name}, {label}");
    two.a.bad(&format!("net add --net tcp --if {name}:8"), &["errno: -100", &expected]);
}

/// Both NIs are reached at one address and port, and either goes without the other.
#[test]
fn an_interface_is_on_two_tcp_nets() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(2, "");
    for (daemon, side) in [(&two.a, two.netns.a()), (&two.b, two.netns.b())] {
        daemon.good("lnet configure");
        for net in ["tcp", "tcp1"] {
            daemon.good(&format!("net add --net {net} --if {}", side.interface().name));
        }
    }
    let on = |net: &str| two.nids(0).map(|nid| nid.replace("@xdp", &format!("@{net}")));
    let check = |nets: &[&str]| {
        for net in nets {
            let [a, b] = on(net);
            until_shown(&two.a, &format!("ping {b}"), &b);
            until_shown(&two.b, &format!("ping {a}"), &a);
        }
    };
    check(&["tcp", "tcp1"]);
    // The one that came first has the listener, and then the other.
    for (gone, stays) in [("tcp", "tcp1"), ("tcp1", "tcp")] {
        two.a.good(&format!("net del --net {gone}"));
        // Connections that there are do not tell.
        two.b.good(&format!("net del --net {stays}"));
        two.b.good(&format!("net add --net {stays} --if {}", two.netns.b().interface().name));
        let [a, _] = on(stays);
        until_shown(&two.b, &format!("ping {a}"), &a);
        two.a.good(&format!("net add --net {gone} --if {}", two.netns.a().interface().name));
        check(&[stays, gone]);
    }
}

/// Frames by one of two rails go nowhere, and nothing tells: TCP takes the message, and its sender waits for
/// minutes.
#[test]
fn a_silent_cut_costs_health_before_anything_times_out_and_ends_connections() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::on(&["tcp", "tcp1"], "--sock sock_timeout=9");
    two.b.good("load start target");
    let [first, second] = [0, 1].map(|rail| two.nids(rail)[1].replace("@xdp", "@tcp"));
    until_shown(&two.a, &format!("ping {second}"), &second);
    until_shown(&two.a, &format!("discover {first}"), &second);
    let [near, far] = [two.netns.a(), two.netns.b()].map(|side| side.interface());
    let neighbour = |words: &str| ip(two.netns.a(), &format!("neigh {words} {} dev {}", far.ipv4, near.name));
    neighbour("replace lladdr 02:00:00:00:00:99 nud permanent to");
    let scheme = r#"{"puts_percent":100,"sizes":[{"min_bytes":64,"max_bytes":64,"weight":1}]}"#;
    let scheme = two.a.directory.file("scheme.json", scheme);
    let load = format!("load start initiator --to {first} --messages 8 --window 8 --timeout-ms 120000");
    two.a.good(&format!("{load} --scheme {}", scheme.display()));
    let is_ill = || {
        let shown = two.a.good(&format!("peer show --nid {first} -v 3"));
        let mut values = shown.lines().filter_map(|line| line.trim().strip_prefix("health value: "));
        values.any(|value| value != "1000")
    };
    wait_until("the path costs health", PATIENCE, is_ill);
    assert_eq!(count(&two.a, "stalled") + count(&two.a, "closed"), 0, "that is before the end");
    wait_until("its connections end", PATIENCE, || count(&two.a, "stalled") + count(&two.a, "closed") != 0);
    neighbour("del");
    until_shown(&two.a, &format!("ping --timeout 2 {first}"), &first);
}

/// A peer that is killed under load: its connections are reset, which the log tells in one line, and the
/// messages that were under way are counted as errors of the peer.
#[test]
fn connections_that_break_under_load_are_told_and_counted() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::on(&["tcp"], "");
    two.b.good("load start target");
    let peer = two.nids(0)[1].replace("@xdp", "@tcp");
    until_shown(&two.a, &format!("ping {peer}"), &peer);
    let scheme = r#"{"puts_percent":100,"sizes":[{"min_bytes":1048576,"max_bytes":1048576,"weight":1}]}"#;
    let scheme = two.a.directory.file("scheme.json", scheme);
    let load = format!("load start initiator --to {peer} --messages 100000 --window 64 --timeout-ms 120000");
    two.a.good(&format!("{load} --scheme {}", scheme.display()));
    let sent = || count(&two.a, "stream_bytes_sent");
    wait_until("messages have arrived", PATIENCE, || sent() > 1 << 24);
    // Messages that a stopped peer does not read fill the connections, and are under way.
    two.b.signal(Signal::STOP);
    let mut before = 0;
    wait_until("the connections are full", PATIENCE, || {
        std::thread::sleep(Duration::from_millis(200));
        std::mem::replace(&mut before, sent()) == before
    });
    two.b.signal(Signal::KILL);
    let broke = |log: &str| log.lines().filter(|line| line.contains("connections with a peer broke")).count();
    wait_until("the log tells of it", PATIENCE, || broke(&two.a.directory.log()) > 0);
    let log = two.a.directory.log();
    let line = log.lines().find(|line| line.contains("connections with a peer broke")).unwrap();
    let address = format!("address={}:988", peer.split('@').next().unwrap());
    for part in
        [format!("peer={peer}"), address, "reset by peer (os error 104)".into(), "connections=".into()]
    {
        assert!(line.contains(&part), "{part:?} is not in {line}");
    }
    assert!(!line.contains("messages=0"), "{line}");
    assert_eq!(broke(&log), 1, "{log}");
    assert!(count(&two.a, "broken") > 0);
    let errors = || {
        let shown = two.a.good(&format!("peer show --nid {peer} -v 3"));
        let mut values = shown.lines().filter_map(|line| line.trim().strip_prefix("error: "));
        values.any(|value| value != "0")
    };
    wait_until("errors of the peer are counted", PATIENCE, errors);
}

/// The same with messages that TCP has taken whole, and that the peer has never read: no message ends by the
/// reset, and the log and the counters tell of it all the same.
#[test]
fn connections_that_break_with_unread_messages_are_told_and_counted() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    // A process that dies may read all that there is, since its io_uring does what is due. Then it closes in
    // order.
    assert!((0..4).any(|_| peer_is_reset()), "four peers have read all as they died");
}

/// Whether a peer that was stopped and then killed had messages unread: then they are told and counted.
fn peer_is_reset() -> bool {
    let two = Two::on(&["tcp"], "");
    two.b.good("load start target");
    let peer = two.nids(0)[1].replace("@xdp", "@tcp");
    until_shown(&two.a, &format!("ping {peer}"), &peer);
    let scheme = r#"{"puts_percent":100,"sizes":[{"min_bytes":1024,"max_bytes":1024,"weight":1}]}"#;
    let scheme = two.a.directory.file("scheme.json", scheme);
    let load = format!("load start initiator --to {peer} --messages 10000000 --window 8 --timeout-ms 120000");
    two.a.good(&format!("{load} --scheme {}", scheme.display()));
    let sent = || count(&two.a, "stream_bytes_sent");
    wait_until("messages have arrived", PATIENCE, || sent() > 1 << 20);
    two.b.signal(Signal::STOP);
    let mut before = 0;
    wait_until("all messages are sent", PATIENCE, || {
        std::thread::sleep(Duration::from_millis(200));
        std::mem::replace(&mut before, sent()) == before
    });
    // The peer may have read all that there was when it was stopped. This it does not read.
    assert_ne!(two.a.run(&format!("ping --timeout 1 {peer}")).status, 0);
    let errors = || {
        let shown = two.a.good(&format!("peer show --nid {peer} -v 3"));
        let errors = shown.lines().filter_map(|line| line.trim().strip_prefix("error: "));
        errors.map(|count| count.parse::<u64>().unwrap()).sum::<u64>()
    };
    assert_eq!(errors(), 0, "nothing has failed yet");
    two.b.signal(Signal::KILL);
    let waits = || {
        std::thread::sleep(Duration::from_millis(200));
        errors() > 0
    };
    if !(0..40).any(|_| waits()) {
        return false;
    }
    assert!(count(&two.a, "broken") > 0);
    assert!(two.a.good("stats show").contains("remote_error_count: 1\n"), "{}", two.a.good("stats show"));
    let log = two.a.directory.log();
    let broke: Vec<&str> =
        log.lines().filter(|line| line.contains("connections with a peer broke")).collect();
    assert!(matches!(broke[..], [line] if line.contains("messages=0 unread=true")), "{log}");
    true
}

#[test]
fn lnd_timeouts_are_set_while_nis_run() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "--mode socket");
    let (a, interface) = (&two.a, two.netns.a().interface().name.clone());
    a.good("lnet configure");
    a.good(&format!("net add --net tcp --if {interface}"));
    a.good(&format!("net add --net xdp --if {interface}"));
    let shown = |net: &str, timeout: u32| {
        let shown = a.good(&format!("net show --net {net} -v"));
        assert!(shown.contains(&format!(" timeout: {timeout}\n")), "{net} {timeout}: {shown}");
    };
    shown("tcp", 50);
    shown("xdp", 49);
    a.good("set transaction_timeout 31");
    shown("tcp", 50);
    a.good("net set --net tcp --lnd-timeout 0");
    a.good("net set --net xdp7 --lnd-timeout 0");
    shown("tcp", 10);
    shown("xdp", 10);
    a.good("set retry_count 5");
    shown("tcp", 5);
    a.good("net set --net tcp7 --lnd-timeout 20");
    a.good("net set --net xdp --lnd-timeout 2");
    shown("tcp", 20);
    shown("xdp", 2);
    // NIs that come have it as well.
    a.good("net del --net tcp");
    a.good(&format!("net add --net tcp1 --if {interface}"));
    shown("tcp1", 20);
    a.good("net del --net tcp1");
    a.good(&format!("net add --net tcp --if {interface}"));
    a.good("set transaction_timeout 150");
    a.good("set retry_count 2");
    assert!(!a.good("export --backup").contains(" timeout:"), "it is no part of a backup");

    // The LND goes by it: what no peer takes ends after this time, and not after the 49 s of the start.
    let silent = two.nids(0)[0].replace(".1@", ".77@");
    let scheme = r#"{"puts_percent":100,"sizes":[{"min_bytes":64,"max_bytes":64,"weight":1}]}"#;
    let scheme = a.directory.file("scheme.json", scheme);
    let begun = std::time::Instant::now();
    let scheme = scheme.display();
    a.good(&format!("load start initiator --to {silent} --messages 2 --window 2 --scheme {scheme}"));
    let ran = a.run("load wait 1");
    assert!(ran.status == 1 && begun.elapsed() < 2 * PATIENCE, "{:?}: {ran:?}", begun.elapsed());
}

/// A kernel node may die of a GET from a portal that never had an entry.
#[test]
fn a_load_gets_nothing_from_a_tcp_node_that_is_no_target() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::on(&["tcp"], "");
    let other = two.nids(0)[1].replace("@xdp", "@tcp");
    until_shown(&two.a, &format!("ping {other}"), &other);
    let start = |timeout_ms: u32| {
        two.a.good(&format!("load start initiator --to {other} --messages 200 --timeout-ms {timeout_ms}"));
    };
    start(1000);
    let ran = two.a.run("load wait 1");
    assert!(ran.status == 1 && (ran.stdout + &ran.stderr).contains("NoTarget"), "{}", ran.status);
    two.b.good("load start target");
    start(20_000);
    assert!(two.a.good("load wait 2").contains("200 messages,"));
}

/// A ping that a rule fails ends with the errno of the rule, that of the reference, and says so.
#[test]
fn a_ping_that_a_fault_rule_fails_has_the_rules_errno() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::on(&["tcp"], "");
    let to = nid(two.netns.b().interface().ipv4);
    two.a.good(&format!("discover {to}"));
    for health_error in HealthError::ALL {
        let rule = format!("fault drop add -s * -d {to} -m GET -r 1 -e {health_error}");
        two.a.good(&rule);
        two.a.bad(&format!("ping --timeout 10 {to}"), &["errno: -22", "a fault rule failed it"]);
        // The next `show` is not older than the answer. A peer with one NI keeps its health.
        let shown = two.a.good("net show -v 3 --net tcp");
        let value = shown.lines().find_map(|line| line.trim().strip_prefix("health value: "));
        let value: u32 = value.unwrap_or_else(|| panic!("{shown}")).parse().unwrap();
        let blames_local = !health_error.to_string().starts_with("remote");
        assert!(
            health_error == HealthError::Random || (value < 1000) == blames_local,
            "{health_error}: {value}"
        );
        two.a.good("fault drop del --all");
        two.a.good("net set --all --health 1000");
        two.a.good("peer set --all --health 1000");
    }
    // Round trips count, whichever shard the answer comes by.
    for pings in 1..=4 {
        two.a.good(&format!("ping --timeout 10 {to}"));
        let shown = two.a.good("peer show -v 3");
        let samples = shown.lines().find_map(|line| line.trim().strip_prefix("get_rtt_samples: "));
        assert!(samples.unwrap().parse::<u32>().unwrap() >= pings, "{pings} pings: {shown}");
    }
}

/// A daemon that may bind no privileged port, at ports that it may bind. Each reaches the other, also where
/// the other has dialled first.
#[test]
fn a_node_without_the_right_to_privileged_ports_is_reached_by_whom_it_has_dialled() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let options = "--configure --sock accept=all --sock accept_port=4988 --sock accept_port_bulk=4988";
    let start = |namespace: &Namespace, wrapper: &[&str], options: &str| {
        let lnetd = program("lnetd");
        let words = [wrapper, &[lnetd.to_str().unwrap()]].concat();
        let mut command = namespace.command(Path::new(words[0]));
        command.args(&words[1..]);
        let daemon = Daemon::start_as(Directory::new(), command, options);
        let added = daemon.run(&format!("net add --net tcp --if {}", namespace.interface().name));
        (daemon, added)
    };
    let bounding = ["setpriv", "--bounding-set=-net_bind_service"];
    let (daemon, refused) = start(netns.a(), &bounding, "--configure");
    assert!(refused.status != 0 && refused.stderr.contains("CAP_NET_BIND_SERVICE"), "{refused:?}");
    daemon.stop();
    let [bound, free] = [(netns.a(), &bounding[..]), (netns.b(), &[])].map(|(namespace, wrapper)| {
        let (daemon, added) = start(namespace, wrapper, options);
        assert_eq!(added.status, 0, "{added:?}");
        daemon
    });
    let [a, b] = [netns.a(), netns.b()].map(|namespace| format!("{}@tcp", namespace.interface().ipv4));
    for _ in 0..2 {
        bound.good(&format!("ping {b}"));
        free.good(&format!("ping {a}"));
    }
    free.good(&format!("discover {a}"));
    for daemon in [&bound, &free] {
        assert_eq!(count(daemon, "duplicate"), 0);
        assert_eq!(count(daemon, "refused"), 0);
    }
}

/// `lctl conn_list` has a line for each connection, in the form of LNet's tool.
#[test]
fn connections_are_listed() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::on(&["tcp"], "");
    let [near, far] = [two.netns.a(), two.netns.b()].map(|side| side.interface().ipv4);
    let listed = |options: &str| {
        let mut lctl = Command::new(program("lctl"));
        lctl.arg("--socket").arg(two.a.socket()).args(options.split_whitespace()).arg("conn_list");
        let output = lctl.output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(listed(""), "<no connections>\n");
    two.a.good(&format!("ping {far}@tcp"));
    let shown = listed("--net tcp");
    let id = format!("12345-{far}@tcp");
    let ends = format!("]{near}->{far}:988 0/0 nonagle");
    let is_one = |line: &str| line.starts_with(&format!("{id:<20} ")) && line.ends_with(&ends);
    assert!(!shown.is_empty() && shown.lines().all(is_one), "{shown}");
    assert!(shown.contains(&format!("{id:<20} C[")), "{shown}");
    assert_eq!(listed("--net tcp7"), "<no connections>\n");
}
