//! A node with two NIs on one net: which of them the kernel's routes let reach a peer, and what Linux's
//! defaults do where both are on one subnet.

use lnet_tests::netns::{NETNS_NODES, enter, ip, require_privilege};
use lnet_tests::tunnel::{DEVICE, Tunnel};

use crate::run::{Daemon, Directory, Two, until_shown};

/// The candidate of a choice with this name.
fn candidate<'a>(shown: &'a str, name: &str) -> &'a str {
    let of = shown.split("local ni: ").find(|part| part.starts_with(name));
    of.unwrap_or_else(|| panic!("{name} is not in {shown}"))
}

/// A peer that is not Multi-Rail is spoken to from the NI whose interface has a route there. It is a peer of
/// one subnet, or one behind a route that comes late.
#[test]
fn a_source_is_an_ni_that_reaches_the_peer() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(2, "--mode socket");
    let [near, far] = [two.netns.a(), two.netns.b()];
    for kind in ["tcp", "xdp"] {
        for (daemon, namespace) in [(&two.a, near), (&two.b, far)] {
            daemon.good("lnet configure");
            daemon.good("set discovery 0");
            let names: Vec<_> = namespace.interfaces().iter().map(|one| one.name.as_str()).collect();
            if namespace.name() == near.name() {
                daemon.good(&format!("net add --net {kind} --if {}", names.join(",")));
            }
        }
        let [own, others] = [near, far]
            .map(|namespace| [0, 1].map(|rail| format!("{}@{kind}", namespace.interfaces()[rail].ipv4)));
        for rail in 0..2 {
            // More NIDs than one, since a rank spreads them.
            for host in 50..58 {
                let nid = format!("10.211.{rail}.{host}@{kind}");
                let shown = two.a.good(&format!("explain {nid}"));
                assert!(shown.contains(&format!("from: {}", own[rail])), "{shown}");
                assert!(candidate(&shown, &own[1 - rail]).contains("lost by: route"), "{shown}");
            }
            let name = &far.interfaces()[rail].name;
            two.b.good(&format!("net add --net {kind} --if {name}"));
            two.a.good(&format!("ping --timeout 5 {}", others[rail]));
            let target = two.b.good("load start target");
            let load = format!("load start initiator --to {} --messages 20 --timeout-ms 5000", others[rail]);
            let started = two.a.good(&load);
            let id = started.split_whitespace().find_map(|word| word.parse::<u32>().ok()).unwrap();
            two.a.good(&format!("load wait {id}"));
            let id = target.split_whitespace().find_map(|word| word.parse::<u32>().ok()).unwrap();
            two.b.good(&format!("load stop {id}"));
            two.b.good(&format!("net del --net {kind}"));
        }
        for (rail, own) in own.iter().enumerate() {
            let (interface, via) = (&near.interfaces()[rail].name, far.interfaces()[rail].ipv4);
            for host in 1..5 {
                let to = format!("10.98.{rail}.{host}");
                let nid = format!("{to}@{kind}");
                let shown = two.a.good(&format!("explain {nid}"));
                assert!(shown.contains("lost by: rank") && shown.contains("route: 0"), "{shown}");
                // By this the source is recorded, which is the wrong one for some.
                two.a.bad(&format!("ping --timeout 1 {nid}"), &["errno: -1"]);
                ip(near, &format!("route add {to}/32 via {via} dev {interface}"));
                until_shown(&two.a, &format!("explain {nid}"), &format!("from: {own}"));
                ip(near, &format!("route del {to}/32"));
            }
        }
        two.a.good("lnet unconfigure");
        two.b.good("lnet unconfigure");
    }
}

/// Two NIs on one subnet are useless under Linux's defaults: that is told with the way out, in the daemon's
/// network namespace.
#[test]
fn two_nis_on_one_subnet_are_warned_of() {
    const COMMANDS: [&str; 2] =
        ["`sysctl -w net.ipv4.conf.all.arp_ignore=1`", "`sysctl -w net.ipv4.conf.all.arp_announce=2`"];
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(2, "--mode socket");
    let near = two.netns.a();
    let [first, second] = [0, 1].map(|rail| near.interfaces()[rail].name.as_str());
    ip(near, &format!("address flush dev {second}"));
    ip(near, &format!("address add 10.211.0.3/24 dev {second}"));
    let document = |kind: &str| {
        format!(
            "net:\n    - net type: {kind}\n      local NI(s):\n        - interfaces:\n              0: {first}\n        \
             - interfaces:\n              0: {second}\n"
        )
    };
    let told = |words: &str, input: &str| {
        let ran = two.a.run_with(words, input);
        assert!(ran.status == 0, "{ran:?}");
        COMMANDS.map(|command| ran.stderr.contains(command) && ran.stderr.contains("10.211.0.3@"))
    };
    let logged = || two.a.directory.log().lines().filter(|line| line.contains(COMMANDS[1])).count();
    two.a.good("lnet configure");
    for kind in ["tcp", "xdp"] {
        let before = logged();
        assert_eq!(told(&format!("net add --net {kind} --if {first}"), ""), [false; 2]);
        assert_eq!(told(&format!("net add --net {kind} --if {second}"), ""), [true; 2]);
        two.a.good(&format!("net del --net {kind}"));
        assert_eq!(told("import --dry-run", &document(kind)), [false; 2]);
        assert_eq!(told("import", &document(kind)), [true; 2]);
        two.a.good(&format!("net del --net {kind}"));
        assert_eq!(logged(), before + 2);
    }
    let set = |name: &str, value: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{name}");
        enter(near, || std::fs::write(path, value)).unwrap();
    };
    set("all/arp_ignore", "1");
    assert_eq!(told("import", &document("tcp")), [false, true]);
    two.a.good("net del --net tcp");
    // The greater of the two counts.
    set(&format!("{first}/arp_announce"), "2");
    set(&format!("{second}/arp_announce"), "2");
    assert_eq!(told("import", &document("tcp")), [false; 2]);
}

/// A bridge, such as a container engine makes, is no interface that a node takes by itself.
#[test]
fn a_default_ni_is_never_a_bridge() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "");
    let interface = two.netns.a().interface();
    let link = |arguments: &str| ip(two.netns.a(), arguments);
    link("link add docker0 type bridge");
    link("link set docker0 up");
    link("address add 172.17.0.1/16 dev docker0");
    link(&format!("link set {} down", interface.name));
    two.a.good("lnet configure");
    let document = "net:\n- net type: tcp\n";
    let refused = ["errno: -100", "no interface here but bridges"];
    two.a.bad_with("import", document, &refused);
    link(&format!("link set {} up", interface.name));
    two.a.good_with("import", document);
    let shown = two.a.good("net show --net tcp");
    assert!(shown.contains(&format!("{}@tcp", interface.ipv4)) && !shown.contains("172.17."), "{shown}");
}

/// A device without Ethernet carries tcp and sockets, and no rings.
#[test]
fn a_tunnel_carries_all_but_rings() {
    if !require_privilege("daemons over a tunnel", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "");
    let _tunnel = Tunnel::new(&two.netns);
    let no_ethernet = "interface tun0 has no Ethernet address";
    for daemon in [&two.a, &two.b] {
        daemon.good("lnet configure");
        daemon.good(&format!("net add --net tcp --if {DEVICE}"));
        daemon.bad(&format!("net add --net xdp --if {DEVICE} --mode native"), &["errno: -22", no_ethernet]);
        daemon.good(&format!("net add --net xdp --if {DEVICE}"));
        let shown = daemon.good("net show --net xdp -v");
        assert!(shown.contains("mode: socket") && shown.contains(no_ethernet), "{shown}");
    }
    two.b.good("load start target");
    for net in ["tcp", "xdp"] {
        two.a.good(&format!("ping 10.212.0.2@{net}"));
        two.b.good(&format!("ping 10.212.0.1@{net}"));
    }
    two.a.good("load start initiator --to 10.212.0.2@xdp --messages 300 --window 8");
    let done = two.a.good("load wait 1");
    assert!(done.contains("300 messages,"), "{done}");
    // Ethernet goes first where a document names no interface.
    two.a.good("net del --net tcp");
    two.a.good_with("import", "net:\n- net type: tcp\n");
    let shown = two.a.good("net show --net tcp");
    assert!(shown.contains(&format!("{}@tcp", two.netns.a().interface().ipv4)), "{shown}");
}

/// Two nets of one interface, each with a port of its own, over rings and over sockets.
#[test]
fn one_interface_serves_two_xdp_nets() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    for mode in ["native", "generic", "socket"] {
        let two = Two::new(1, "");
        for daemon in [&two.a, &two.b] {
            daemon.good("lnet configure");
            let name = if std::ptr::eq(daemon, &two.a) { "veth-a" } else { "veth-b" };
            for (net, port) in [("xdp", 988), ("xdp1", 10_988)] {
                daemon.good(&format!("net add --net {net} --if {name} --mode {mode} --port {port}"));
            }
        }
        let [_, b] = two.nids(0);
        let b = b.to_string().replace("@xdp", "");
        two.b.good("load start target");
        for net in ["xdp", "xdp1"] {
            two.a.good(&format!("ping {b}@{net}"));
        }
        two.a.good(&format!("load start initiator --to {b}@xdp1 --messages 200 --window 8"));
        assert!(two.a.good("load wait 1").contains("200 messages,"));
        two.a.good("net del --net xdp");
        two.a.good(&format!("ping --source {}@xdp1 {b}@xdp1", two.netns.a().interface().ipv4));
    }
}

/// The state bits of the only peer of a node.
fn peer_state(daemon: &Daemon) -> u32 {
    let shown = daemon.good("peer show -v 3");
    let state = shown.lines().find_map(|line| line.trim().strip_prefix("peer state: "));
    state.unwrap_or_else(|| panic!("{shown}")).parse().unwrap()
}

/// A node that forwards nothing says so when it is checked as a gateway. A node that is to check its gateways
/// first is ready after that.
#[test]
fn routes_by_a_node_that_forwards_nothing_are_down() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::on(&["tcp"], "--mode socket");
    let gateway = format!("{}@tcp", two.netns.b().interface().ipv4);
    two.a.good(&format!("route add --net tcp9 --gateway {gateway}"));
    until_shown(&two.a, "route show -v", "state: down");
    let is_checked = |daemon: &Daemon| peer_state(daemon) & 1 << 17 != 0;
    assert!(is_checked(&two.a));
    two.a.bad("ping --timeout 1 10.0.0.1@tcp9", &["errno: -1"]);
    // Nothing goes by it, whatever is asked of it itself.
    two.a.good(&format!("ping --timeout 5 {gateway}"));
    let Two { a, b: _b, netns } = two;
    a.stop();
    let directory = Directory::new();
    let interface = &netns.a().interface().name;
    let document = format!(
        "net:\n- net type: tcp\n  local NI(s):\n  - interfaces:\n      0: {interface}\nroute:\n- net: tcp9\n  gateway: \
         {gateway}\n"
    );
    let file = directory.file("start.yaml", &document);
    let options = format!("--param check_routers_before_use=1 --config {}", file.display());
    let daemon = Daemon::start(directory, Some(netns.a()), &options);
    assert!(is_checked(&daemon), "it is ready once its gateway was checked");
    assert!(daemon.good("route show -v").contains("state: down"));
    assert!(daemon.good("param get check_routers_before_use").contains(": 1"));
}
